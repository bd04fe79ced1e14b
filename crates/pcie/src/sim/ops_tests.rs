use super::*;
use crate::topology::{BUILTIN_NAMES, Topology, builtin};

fn ns(name: &str, path: PathModel, bytes: u32, params: &Params) -> Result<f64, SimError> {
    let t = builtin(name).unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let spec = TestBedSpec { topology: &t, gpu, nic, params, seed: 1 };
    Ok(predict(spec, path, bytes, 1)?.unwrap().completed_ns)
}

#[test]
fn every_path_runs_on_every_builtin_that_has_it() {
    let params = Params::default();
    for name in BUILTIN_NAMES {
        for path in
            [PathModel::PushKernel, PathModel::PushInband, PathModel::Pull, PathModel::Staged]
        {
            match ns(name, path, 4096, &params) {
                Ok(ns) => assert!(ns > 1000.0 && ns < 50_000.0, "{name} {path:?} {ns}"),
                // A client CPU forwards no peer reads, so its NIC cannot fetch from the GPU.
                Err(SimError::NoPeerReads { .. }) => assert_eq!(name, "desktop"),
                Err(e) => panic!("{name} {path:?}: {e}"),
            }
        }
    }
    let desktop = ns("desktop", PathModel::PushInband, 4096, &params);
    assert!(desktop.is_ok(), "posted writes pass: {desktop:?}");
}

#[test]
fn the_fence_is_what_makes_push_lose() {
    let p = Params::default();
    let t = "two-root-complexes";
    let kernel = ns(t, PathModel::PushKernel, 64, &p).unwrap();
    let pull = ns(t, PathModel::Pull, 64, &p).unwrap();
    let inband = ns(t, PathModel::PushInband, 64, &p).unwrap();
    assert!(inband < pull && pull < kernel, "{inband} {pull} {kernel}");
    let flame = ns(t, PathModel::PushBlueflame, 64, &p).unwrap();
    assert!(flame < pull);
}

#[test]
fn push_carries_more_where_peer_reads_are_hampered() {
    let params = Params::default();
    let t = builtin("two-root-complexes-slow-reads").unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
    let rate = |path| predict(spec, path, 1 << 20, 4).unwrap().unwrap().gb_per_s;
    let (push, pull, staged) =
        (rate(PathModel::PushInband), rate(PathModel::Pull), rate(PathModel::Staged));
    assert!(push > 5.0 * pull && staged > 5.0 * pull, "{push} {pull} {staged}");
}

#[test]
fn a_small_window_limits_push_on_a_long_wire() {
    let t = builtin("same-switch").unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let gb_per_s = |kib: f64| {
        let params = Params { wire_ns: 20_000.0, window_kib: kib, ..Params::default() };
        let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
        predict(spec, PathModel::PushInband, 1 << 20, 4).unwrap().unwrap().gb_per_s
    };
    let (small, large) = (gb_per_s(128.0), gb_per_s(4096.0));
    // 128 KiB in flight on a round trip of at least 40 us: at most 3.3 GB/s.
    assert!(small < 3.3 && small > 2.0 && large > 8.0 * small, "{small} {large}");
}

#[test]
fn a_window_of_few_slots_holds_few_operations() {
    let t = builtin("same-switch").unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let params = Params { window_kib: 16.0, ..Params::default() };
    let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
    let alone = predict(spec, PathModel::PushInband, 4096, 1).unwrap().unwrap().completed_ns;
    for path in [PathModel::PushInband, PathModel::PushKernel] {
        let rate = predict(spec, path, 64 << 10, 8).unwrap().unwrap().gb_per_s;
        // Four slots, each away for at least the time of one operation alone.
        assert!(rate < 1.02 * 16384.0 / alone, "{path:?}: {rate}");
    }
}

#[test]
fn throughput_never_exceeds_what_carries_it() {
    let p = Params { blocks: 1.0, ..Params::default() };
    for (name, cap) in [("same-switch", p.sm_store_gb_per_s()), ("two-sockets", 22.0)] {
        let t = builtin(name).unwrap();
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        let spec = TestBedSpec { topology: &t, gpu, nic, params: &p, seed: 1 };
        for path in [PathModel::PushInband, PathModel::PushKernel] {
            let rate = predict(spec, path, 1 << 20, 8).unwrap().unwrap().gb_per_s;
            assert!(rate < 1.01 * cap, "{name} {path:?}: {rate} over {cap}");
        }
    }
}

/// The far copy takes a CQE, a CPU, a flag and a load; the operation ends with it.
#[test]
fn staging_at_both_ends_delivers_later() {
    let t = builtin("two-root-complexes").unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let at = |ends: f64, bytes| {
        let params = Params { staged_ends: ends, ..Params::default() };
        let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
        let p = predict(spec, PathModel::Staged, bytes, 8).unwrap().unwrap();
        [p.delivered_ns, p.completed_ns, p.gb_per_s]
    };
    let ([near, done, _], [far, later, _]) = (at(1.0, 64), at(2.0, 64));
    let p = Params::default();
    let least = p.memory_ns / 2.0 + p.cpu_post_ns + 1000.0;
    assert!(far > near + least && far < near + least + 2500.0, "{near} {far}");
    assert!(later >= far && later > done, "{done} {far} {later}");
    // Pieces follow each other: where the far link carries what the wire brings, no rate is lost.
    let ([.., one], [.., two]) = (at(1.0, 1 << 20), at(2.0, 1 << 20));
    assert!((two / one - 1.0).abs() < 0.01 && one < 50.0, "{one} {two}");
}

#[test]
fn blueflame_carries_small_payloads_only() {
    let t = builtin("same-switch").unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let params = Params::default();
    let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
    assert!(predict(spec, PathModel::PushBlueflame, 220, 1).unwrap().is_some());
    assert_eq!(predict(spec, PathModel::PushBlueflame, 221, 1), Ok(None));
    assert_eq!(predict(spec, PathModel::Pull, 0, 1), Ok(None));
}

/// A polling phase is drawn anew where its range is another by picoseconds, as it is below a root
/// port that the tree shows: two topologies of one machine differ by it, over many seeds by nothing.
#[test]
fn a_root_port_in_the_tree_changes_the_phases_alone() {
    let shown = builtin("two-root-complexes").unwrap();
    let hidden = builtin("epyc-2s").unwrap();
    let mean = |t: &Topology| {
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        let params = Params::default();
        let ns = |seed| {
            let spec = TestBedSpec { topology: t, gpu, nic, params: &params, seed };
            let o = Operation::new(spec, Layout::Card, PathModel::PushBlueflame, 8, 1);
            o.run(Operation::alone_runs(8)).unwrap().median_ns()
        };
        let all: Vec<f64> = (0..400).map(ns).collect();
        println!(
            "{} {:?}",
            t.name,
            all.iter().fold([f64::MAX, 0.0], |[a, b], v| [a.min(*v), b.max(*v)])
        );
        all.iter().sum::<f64>() / 400.0
    };
    let (shown, hidden) = (mean(&shown), mean(&hidden));
    println!("{shown} {hidden}");
    assert!((shown / hidden - 1.0).abs() < 0.005, "{shown} {hidden}");
}
