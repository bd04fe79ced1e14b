use super::*;
use crate::sim::{Layout, predict};
use crate::topology::{BUILTIN_NAMES, Kind, Knob, builtin};

fn ranks(name: &str, nic: NicModel, origins: &Origins, goals: &[Goal]) -> Ranks {
    let t = builtin(name).unwrap();
    let (gpu, to) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let spec = TestBedSpec { topology: &t, gpu, nic: to, params: &Params::default(), seed: 1 };
    rank(spec, nic, origins, goals)
}

#[test]
fn a_part_takes_the_times_of_the_whole() {
    let params = Params::default();
    for name in BUILTIN_NAMES {
        let t = builtin(name).unwrap();
        for gpu in t.of_kind(Kind::Gpu) {
            let nic = *t.of_kind(Kind::Nic).last().unwrap();
            let (part, ends) = t.part(gpu, nic);
            let whole = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
            let [gpu, nic] = ends;
            let less = TestBedSpec { topology: &part, gpu, nic, ..whole };
            for path in PathModel::ALL {
                let of = |spec| predict(spec, path, 200, 3).ok();
                assert_eq!(of(whole), of(less), "{name} {path:?}");
            }
        }
    }
    // All pairs of a DGX that share a switch are one.
    let t = builtin("dgx-h100").unwrap();
    let of =
        |i: u32| t.part(t.find(&format!("gpu{i}")).unwrap(), t.find(&format!("nic{i}")).unwrap());
    assert!((1..8).all(|i| of(i) == of(0)));
    assert_ne!(t.part(t.find("gpu0").unwrap(), t.find("nic7").unwrap()), of(0));
}

/// What an equal imprint leaves out has no effect; and a number that has one is never left out.
#[test]
fn what_is_left_out_changes_nothing() {
    let origins = Origins::default();
    for (name, nic) in [("same-switch", NicModel::Cx7), ("two-sockets", NicModel::Software)] {
        let t = builtin(name).unwrap();
        let (gpu, to) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        let goal = Goal::Latency(4096);
        let found = ranks(name, nic, &origins, &[goal]);
        for &(path, figure) in &found.rankings[0].paths {
            let (mut low, mut high) = (figure.value, figure.value);
            for m in moves(&t, &Params::default(), &origins) {
                let (topology, params) = (&m.topology, &m.params);
                let bed = Bed { topology, ends: [gpu, to], nic, params, seed: 1 };
                let ns = run(bed.operation(path, goal), goal).unwrap();
                (low, high) = (low.min(ns), high.max(ns));
            }
            assert_eq!((figure.low, figure.high), (low, high), "{name} {path:?}");
        }
        let names: Vec<&str> = found.hangs_on.iter().map(|c| c.name.as_str()).collect();
        assert!(names.contains(&"wire_ns") && names.contains(&"nic_port_ns"), "{names:?}");
        for other in ["nvlink_ns", "fence_nvlink_ns", "copy_tags", "chip_ns", "dllp_bytes"] {
            assert!(!names.contains(&other), "{other}: {names:?}");
        }
    }
}

#[test]
fn a_tie_is_what_one_number_turns() {
    let goals = [Goal::Latency(8), Goal::Latency(256 << 10)];
    let found = ranks("two-sockets", NicModel::Software, &Origins::default(), &goals);
    // In-band is half of all others: no number turns that.
    assert_eq!(found.rankings[0].paths[0].0, PathModel::PushInband);
    assert!(found.rankings[0].ties.iter().all(|t| t.path == PathModel::PushBlueflame));
    let card = ranks("two-root-complexes", NicModel::Cx7, &Origins::default(), &goals);
    for r in &card.rankings {
        let (best, own) = r.paths[0];
        assert!(r.paths.iter().all(|(_, f)| f.low <= f.value && f.value <= f.high && f.low > 0.0));
        for (path, f) in &r.paths[1..] {
            // Whose interval lies above the winner's own is no tie.
            let apart = f.low > own.high * (1.0 + EQUAL);
            let tie = r.ties.iter().any(|t| t.path == *path);
            assert!(!(apart && tie), "{best:?} {path:?}");
        }
    }
}

/// The mark of a number hangs on the root complexes that its way crosses and on what is known of
/// them, not on the class.
#[test]
fn what_nobody_says_of_root_complexes_is_unknown() {
    let of = |t: &Topology, path: PathModel, goal: Goal| {
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        let spec = TestBedSpec { topology: t, gpu, nic, params: &Params::default(), seed: 1 };
        let found = rank(spec, NicModel::Cx7, &measured(), &[goal]);
        let paths = &found.rankings[0].paths;
        paths.iter().find(|p| p.0 == path).unwrap().1.origin == Origin::Unknown
    };
    let small = Goal::Latency(8);
    for name in ["same-root-complex", "two-root-complexes", "two-sockets"] {
        let t = builtin(name).unwrap();
        for path in [PathModel::PushKernel, PathModel::Pull, PathModel::Staged] {
            assert!(of(&t, path, small), "{name} {path:?}");
        }
        let told = t.map_p2p(|p| (p.reads, p.writes) = (Some(true), Some(true)));
        assert!(!of(&told, PathModel::Pull, Goal::Rate), "{name}");
    }
    // A way inside a switch crosses no root complex; with ACS it does.
    let inside = builtin("same-switch").unwrap();
    assert!(!of(&inside, PathModel::Pull, small));
    let acs = inside.with(Knob::Acs, 1.0).unwrap();
    assert!(of(&acs, PathModel::Pull, small));
    // Where writes alone are known, a pull is not.
    let writes = builtin("two-sockets").unwrap().map_p2p(|p| p.writes = Some(true));
    assert!(!of(&writes, PathModel::PushKernel, small));
    assert!(of(&writes, PathModel::Pull, small));
}

/// A family of CPUs of which it is said that peer traffic is forwarded, and not at what rate.
#[test]
#[cfg(feature = "toml")]
fn a_profile_makes_known_what_it_says() {
    let of = |cpu: &str, path, goal| {
        let text = format!(
            "[[socket]]\nid='s0'\ncpu='{cpu}'\n[[root_complex]]\nid='a'\nsocket='s0'\n\
             [[root_complex]]\nid='b'\nsocket='s0'\n[[gpu]]\nid='g'\nparent='a'\n\
             [[nic]]\nid='n'\nparent='b'\n"
        );
        let t = crate::topology::from_toml(&text).unwrap();
        let ends = [t.find("g").unwrap(), t.find("n").unwrap()];
        unknown_roots(&t, ends, path, goal).len()
    };
    let (small, large) = (Goal::Latency(8), Goal::Latency(256 << 10));
    for (cpu, path, goal, unknown) in [
        ("AMD EPYC 9575F", PathModel::Pull, small, 0),
        ("AMD EPYC 9575F", PathModel::Pull, Goal::Rate, 2),
        ("AMD EPYC 9575F", PathModel::PushKernel, Goal::Rate, 0),
        ("Threadripper PRO 7955WX", PathModel::Pull, Goal::Rate, 0),
        ("AMD EPYC 9374F", PathModel::PushKernel, Goal::Rate, 0),
        ("AMD EPYC 9374F", PathModel::Pull, small, 2),
        ("NVIDIA Grace", PathModel::Pull, small, 0),
        ("NVIDIA Grace", PathModel::Pull, large, 2),
        ("NVIDIA Grace", PathModel::PushKernel, Goal::Rate, 2),
        ("", PathModel::Staged, small, 2),
    ] {
        assert_eq!(of(cpu, path, goal), unknown, "{cpu} {path:?} {goal:?}");
    }
}

/// Much between two sockets is unknown where neither the link's rate nor what the root complexes have is
/// known.
#[test]
#[cfg(feature = "toml")]
fn what_nobody_says_of_sockets_is_unknown() {
    let of = |cpu: &str, link: &str, path, goal| {
        let socket = |s: u32| format!("[[socket]]\nid='s{s}'\ncpu='{cpu}'\n");
        let root = |s: u32| format!("[[root_complex]]\nid='r{s}'\nsocket='s{s}'\n");
        let text = format!(
            "{}{}{}{}[[interconnect]]\nfrom='s0'\nto='s1'\n{link}\n[[gpu]]\nid='g'\nparent='r0'\n\
             [[nic]]\nid='n'\nparent='r1'\n",
            socket(0),
            socket(1),
            root(0),
            root(1)
        );
        let t = crate::topology::from_toml(&text).unwrap();
        let ends = [t.find("g").unwrap(), t.find("n").unwrap()];
        unknown_sockets(&t, ends, path, goal).len()
    };
    let (small, large) = (Goal::Latency(4096), Goal::Latency(256 << 10));
    for (cpu, link, path, goal, unknown) in [
        ("", "", PathModel::Pull, large, 1),
        ("", "", PathModel::Pull, small, 0),
        ("", "gb_per_s=30.0", PathModel::Pull, Goal::Rate, 0),
        ("AMD EPYC 7542", "", PathModel::PushKernel, large, 0),
        ("AMD EPYC 7542", "", PathModel::Pull, Goal::Rate, 1),
        // To host memory of the other socket nobody has measured.
        ("AMD EPYC 7542", "", PathModel::Staged, large, 1),
    ] {
        assert_eq!(of(cpu, link, path, goal), unknown, "{cpu} {link} {path:?} {goal:?}");
    }
}

/// A number that is given is not moved.
#[test]
fn what_is_measured_is_not_moved() {
    let goal = [Goal::Latency(8)];
    let mut origins = Origins::default();
    let before = ranks("same-switch", NicModel::Cx7, &origins, &goal);
    for &name in Params::NAMES {
        origins.set(name, Origin::Measured);
    }
    let after = ranks("same-switch", NicModel::Cx7, &origins, &goal);
    for (a, b) in before.rankings[0].paths.iter().zip(&after.rankings[0].paths) {
        assert_eq!((a.0, a.1.value), (b.0, b.1.value));
        assert!(a.1.low < a.1.high && a.1.origin == Origin::Assumed, "{a:?}");
        assert!(b.1.low == b.1.high && b.1.origin == Origin::Read, "{b:?}");
    }
    assert!(after.hangs_on.is_empty() && after.rankings[0].ties.len() <= 1);
}

/// Two fences of system scope, and queues in host memory.
#[test]
fn a_card_takes_longer_than_the_best_layout() {
    let t = builtin("two-root-complexes").unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let params = Params::default();
    let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
    let ns = |layout, path| Operation::new(spec, layout, path, 64, 1).run(9).unwrap().median_ns();
    for path in NicModel::Cx7.paths() {
        let (best, card) = (ns(Layout::Best, *path), ns(Layout::Card, *path));
        // Of staged the CPU posts: the GPU's poll of host memory alone is longer.
        let more = if *path == PathModel::Staged { 300.0 } else { 900.0 };
        assert!(card > best + more, "{path:?}: {best} {card}");
    }
    // BlueFlame saves the fetch of the WQE, not a fence.
    let (flame, pull) =
        (ns(Layout::Card, PathModel::PushBlueflame), ns(Layout::Card, PathModel::Pull));
    assert!(flame < pull && flame > 2.0 * params.fence_pcie_ns + 1000.0, "{flame} {pull}");
    let no_fence = Params { fence_pcie_ns: 0.0, ..params.clone() };
    let spec = TestBedSpec { params: &no_fence, ..spec };
    let without = Operation::new(spec, Layout::Card, PathModel::Pull, 64, 1).run(9).unwrap();
    assert!(pull - without.median_ns() > 2.0 * params.fence_pcie_ns, "two fences");
}

#[test]
fn a_connectx_has_no_engine_that_reads_lines() {
    assert!(!NicModel::Cx7.paths().contains(&PathModel::PushInband));
    assert_eq!("cx7".parse(), Ok(NicModel::Cx7));
    assert!("cx8".parse::<NicModel>().unwrap_err().to_string().contains("cx7, software"));
    for nic in [NicModel::Cx7, NicModel::Software] {
        assert_eq!(nic.to_string().parse(), Ok(nic));
    }
    assert_eq!(NicModel::Software.to_string(), "software");
    assert!(NicModel::Cx7.text().starts_with("a ConnectX-7: "));
    assert!(NicModel::Software.text().starts_with("the software NIC: "));
    let (nic, why) = NicModel::by_default("ConnectX-7");
    assert_eq!((nic, why), (NicModel::Cx7, "the NIC's name is a ConnectX's"));
    assert!(NicModel::by_default("a NIC").1.starts_with("the default: "));
}

/// Short runs give the rates of long ones.
#[test]
fn rates_are_those_of_a_steady_state() {
    let t = builtin("two-root-complexes").unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let params = Params::default();
    let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
    for path in [PathModel::PushKernel, PathModel::Pull] {
        let of = |runs| {
            let operation = Operation::new(spec, Layout::Card, path, RATE.0, RATE.1);
            operation.run(runs).unwrap().gb_per_s()
        };
        let (short, long) = (of(RATE.2), of(256));
        assert!((short / long - 1.0).abs() < 0.04, "{path:?}: {short} {long}");
        assert!(short < params.wire_gb_per_s, "{path:?}: {short}");
    }
}

/// Staged and pull of 64 KiB are as good when the wire is slower, and the one is better as it is.
#[test]
fn one_number_turns_an_order() {
    let found =
        ranks("two-root-complexes", NicModel::Cx7, &Origins::default(), &[Goal::Latency(8)]);
    let r = &found.rankings[0];
    assert_eq!(r.paths[0].0, PathModel::PushBlueflame);
    let tie = r.ties.iter().find(|t| t.path == PathModel::Staged).unwrap();
    assert!(tie.because.iter().any(|why| why == "cpu_post_ns -30 %"), "{tie:?}");
    assert!(!tie.because.iter().any(|why| why == "cpu_post_ns +30 %"), "{tie:?}");
}

/// One port's ACS sends the completions another way than the requests: both ways count.
#[test]
#[cfg(feature = "toml")]
fn an_imprint_has_both_ways() {
    let text = "[[socket]]\nid='s0'\n[[root_complex]]\nid='rc0'\nsocket='s0'\np2p_reads=true\n\
                [[switch]]\nid='sw0'\nparent='rc0'\n[[gpu]]\nid='gpu0'\nparent='sw0'\nport_acs=true\n\
                [[nic]]\nid='nic0'\nparent='sw0'\n";
    let t = crate::topology::from_toml(text).unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let imprint = |params: &Params| {
        let spec = TestBedSpec { topology: &t, gpu, nic, params, seed: 1 };
        let bed = crate::sim::TestBed::new(spec);
        let mut p = crate::sim::Program::new(64);
        let (by, at) = (bed.near.nic, bed.near.hbm);
        let read = crate::sim::Step::Read { by, at, bytes: 64, addr: 0, request_bytes: 64 };
        p.task(read, &[]);
        bed.sim.imprint(&p)
    };
    let base = Params::default();
    let slow = Params { root_complex_ns: 200.0, ..base.clone() };
    assert_ne!(imprint(&base), imprint(&slow), "completions cross the root complex");
    let other = Params { numa_ns: 200.0, ..base.clone() };
    assert_eq!(imprint(&base), imprint(&other));
}

#[test]
fn goals_load_a_path_as_they_say() {
    assert_eq!(Goal::Latency(4096).load(), (4096, 1));
    assert_eq!(Goal::Rate.load(), (64 << 10, 8));
}

/// Every parameter is measured, so that nothing but the paths themselves is simulated.
fn measured() -> Origins {
    let mut origins = Origins::default();
    Params::NAMES.iter().for_each(|name| origins.set(name, Origin::Measured));
    origins
}

/// By rate the greatest is first, and a tie is within a hundredth of it.
#[test]
fn rates_are_ranked_from_the_greatest_down() {
    let found = ranks("two-root-complexes-slow-reads", NicModel::Cx7, &measured(), &[Goal::Rate]);
    let r = &found.rankings[0];
    let values: Vec<f64> = r.paths.iter().map(|(_, f)| f.value).collect();
    assert!(values.len() > 1 && values.is_sorted_by(|a, b| a >= b), "{values:?}");
    let slow = r.paths.last().unwrap();
    assert!(slow.1.value < 0.5 * values[0], "{values:?}");
    assert!(r.ties.iter().all(|t| t.path != slow.0), "{r:?}");
}

/// A path that is refused is absent by its own goal.
#[test]
fn a_path_that_is_refused_is_absent() {
    let goals = [Goal::Latency(8)];
    let found = ranks("desktop", NicModel::Software, &measured(), &goals);
    let absent: Vec<PathModel> = found.rankings[0].absent.iter().map(|a| a.0).collect();
    assert_eq!(absent, [PathModel::Pull]);
}

/// What is assumed of a topology is moved in it.
#[test]
fn an_assumed_link_is_moved() {
    let found = ranks("two-sockets", NicModel::Cx7, &measured(), &[Goal::Latency(64 << 10)]);
    let names: Vec<&str> = found.hangs_on.iter().map(|h| h.name.as_str()).collect();
    assert!(names.contains(&Guess::Interconnects.name()), "{names:?}");
}

/// So are sizes of packets that are told from names, in the pair's part of the topology too.
#[test]
fn assumed_packets_are_moved() {
    let mut t = builtin("two-root-complexes").unwrap();
    let hangs = |t: &Topology, goal| {
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        let spec = TestBedSpec { topology: t, gpu, nic, params: &Params::default(), seed: 1 };
        let found = rank(spec, NicModel::Cx7, &measured(), &[goal]);
        let is_it = |h: &&HangsOn| h.name == Guess::Packets.name();
        found.hangs_on.iter().find(is_it).map(|h| h.origin)
    };
    let goal = Goal::Latency(64 << 10);
    assert_eq!(hangs(&t, goal), None, "no CPU is named");
    assert!(t.name_cpu("Intel(R) Xeon(R) Platinum 8480+"));
    assert_eq!(hangs(&t, goal), Some(Origin::Assumed));
    assert_eq!(hangs(&t.map_p2p(|p| p.tlp_bytes = Some(64)), goal), None, "a file says it");
}
