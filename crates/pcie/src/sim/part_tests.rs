use super::*;
use crate::sim::{flow_latency_ns, predict, simulate_messages};
use crate::topology::builtin;

fn in_operation(topology: &str, params: &Params, path: PathModel, bytes: u32, name: &str) -> bool {
    let t = builtin(topology).unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let spec = TestBedSpec { topology: &t, gpu, nic, params, seed: 1 };
    has_part_in_operation(spec, path, (bytes, 8), name)
}

#[test]
fn a_parameter_has_a_part_where_some_value_moves_something() {
    let p = Params::default();
    let has = |path, bytes, name| in_operation("two-sockets", &p, path, bytes, name);
    for (path, bytes, name, part) in [
        (PathModel::Pull, 8, "wire_ns", true),
        (PathModel::Pull, 8, "nic_message_ns", false),
        (PathModel::Pull, 8, "chip_ns", false),
        (PathModel::Pull, 8, "switch_ns", false),
        (PathModel::Pull, 8, "segment_kib", false),
        (PathModel::Pull, 8, "iotlb_walkers", false),
        (PathModel::PushKernel, 1 << 20, "segment_kib", true),
        (PathModel::PushBlueflame, 4096, "wire_ns", false),
        // Zero by default there, and a number like any other.
        (PathModel::Staged, 64 << 10, "staged_ends", true),
    ] {
        assert_eq!(has(path, bytes, name), part, "{} {bytes} {name}", path.name());
    }
    // Half the window is the limit at this value, not at others.
    let large = Params { segment_kib: 4096.0, ..Params::default() };
    assert!(in_operation("same-switch", &large, PathModel::PushKernel, 1 << 20, "segment_kib"));
}

/// What has no part moves nothing, in flows and in operations.
#[test]
fn what_has_no_part_moves_nothing() {
    let p = Params::default();
    let t = builtin("dgx-h100").unwrap();
    let id = |name: &str| t.find(name).unwrap();
    let flows = [
        Flow::write(id("gpu0"), id("nic0")),
        Flow::read(id("gpu5"), id("gpu0")),
        Flow::write(id("nic1"), id("s0")),
    ];
    let run = |p: &Params| {
        let times = flows.map(|f| flow_latency_ns(&t, p, f, 64).unwrap());
        (simulate_messages(&t, p, &flows, (4096, 4)).unwrap(), times)
    };
    let (topology, gpu, nic) = (&t, id("gpu0"), id("nic5"));
    let spec = TestBedSpec { topology, gpu, nic, params: &p, seed: 1 };
    let operate = |params: &Params| {
        let spec = TestBedSpec { params, ..spec };
        PathModel::ALL.map(|path| predict(spec, path, 64, 8).unwrap())
    };
    let (flowed, operated) = (run(&p), operate(&p));
    let (mut without, mut with) = (0, 0);
    for &name in Params::NAMES {
        let other = p.scaled(name, if Params::is_count(name) { 2.0 } else { 0.7 }).unwrap();
        if has_part_in_flows(&t, &p, &flows, None, name) {
            with += 1;
        } else {
            without += 1;
            assert_eq!(run(&other), flowed, "{name} in flows");
        }
        let has = |path| has_part_in_operation(spec, path, (64, 8), name);
        if !PathModel::ALL.into_iter().any(has) {
            without += 1;
            assert_eq!(operate(&other), operated, "{name} in operations");
        }
    }
    assert!(without > 20 && with > 10, "{without} {with}");
    let streams = [Flow::write(id("gpu0"), id("gpu1"))];
    assert!(!has_part_in_flows(&t, &p, &streams, Some(64), "nic_message_ns"));
    assert!(has_part_in_flows(&t, &p, &flows, Some(64), "nic_message_ns"));
}

#[test]
fn rows_have_the_parameters_of_their_hardware() {
    let p = Params::default();
    let has = |rows, name| has_part_in_rows(&p, rows, name).unwrap();
    for (name, parts) in [
        ("sm_ns", [true; 3]),
        ("fence_pcie_ns", [true, true, false]),
        ("iotlb_walkers", [true; 3]),
        ("write_buffer_ns", [true, false, false]),
        ("wire_ns", [false; 3]),
        ("nic_scan_ns", [false; 3]),
        ("chip_ns", [true, false, false]),
    ] {
        let all = [Compared::All, Compared::Fitted, Compared::Derivatives];
        assert_eq!(all.map(|rows| has(rows, name)), parts, "{name}");
    }
}

/// A number of the whole topology has a part where some value of it moves something.
#[test]
fn numbers_of_a_topology_have_a_part_where_they_move_something() {
    let params = Params::default();
    for (name, path, knob, part) in [
        ("two-sockets", PathModel::Pull, Knob::Sockets, true),
        ("same-root-complex", PathModel::Pull, Knob::Sockets, false),
        ("same-switch", PathModel::Pull, Knob::P2pCap, false),
        ("same-root-complex", PathModel::Pull, Knob::P2pCap, true),
        ("same-switch", PathModel::Pull, Knob::Acs, true),
        ("same-root-complex", PathModel::Pull, Knob::Acs, false),
        ("two-root-complexes", PathModel::Staged, Knob::RelaxedOrdering, true),
        ("two-root-complexes", PathModel::Pull, Knob::Mrrs, true),
        ("two-root-complexes", PathModel::PushBlueflame, Knob::Mrrs, false),
    ] {
        let t = builtin(name).unwrap();
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
        let has = knob_has_part_in_operation(spec, path, (64, 8), knob);
        assert_eq!(has, part, "{name} {path:?} {knob:?}");
    }
}

/// Around the value that it has, and around its default.
#[test]
fn other_values_are_around_a_parameters_own() {
    let params = Params { wire_ns: 401.0, ..Params::default() };
    let values: Vec<f64> = others(&params, "wire_ns").iter().map(|p| p.wire_ns).collect();
    assert_eq!(values, [401.0, 200.5, 802.0, 501.0, 600.0, 300.0, 1200.0, 700.0]);
}

#[test]
fn a_parameter_has_a_part_in_ranks_and_a_number_in_flows() {
    let (t, params) = (builtin("two-sockets").unwrap(), Params::default());
    let [gpu, nic, near, far] = ["gpu0", "nic0", "s0", "s1"].map(|id| t.find(id).unwrap());
    let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
    let in_ranks = |name| has_part_in_ranks(spec, NicModel::Cx7, &[Goal::Latency(8)], name);
    assert_eq!(["wire_ns", "nvlink_ns"].map(in_ranks), [true, false]);
    let in_flows =
        |to| knob_has_part_in_flows((&t, &params), &[Flow::write(gpu, to)], Knob::Sockets);
    assert_eq!([near, far].map(in_flows), [false, true]);
}
