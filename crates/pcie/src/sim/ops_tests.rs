use super::*;
use crate::sim::{NicModel, transmissions};
use crate::topology::{BUILTIN_NAMES, Knob, Topology, builtin};

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

/// A program counts its steps in 16 bits. Small lines make many chunks of a message, and a small window many segments.
#[test]
fn operations_of_too_many_steps_are_refused() {
    let refused = Err(SimError::TooManySteps);
    let lines = |bytes: f64| Params { inband_data_bytes: bytes, ..Params::default() };
    assert_eq!(ns("same-switch", PathModel::PushInband, 1 << 20, &lines(1.0)), refused);
    assert_eq!(ns("same-switch", PathModel::PushInband, 16 << 20, &lines(16.0)), refused);
    assert!(ns("same-switch", PathModel::PushInband, 64 << 10, &lines(1.0)).is_ok());
    let window = Params { window_kib: 8.0, ..Params::default() };
    // 16 steps and more of each of 4096 segments: two more than there can be.
    assert_eq!(ns("desktop", PathModel::PushKernel, 16 << 20, &window), refused);
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

fn with<T>(name: &str, params: &Params, f: impl Fn(TestBedSpec<'_>) -> T) -> T {
    let t = builtin(name).unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    f(TestBedSpec { topology: &t, gpu, nic, params, seed: 1 })
}

/// One more in flight, and one more slot, never cost rate: all messages share the window in the
/// order of their slots, and none waits for a part of it that is its own.
#[test]
fn rates_do_not_fall_with_the_number_in_flight_or_the_window() {
    let rate = |params: &Params, path, n| {
        with("two-root-complexes", params, |spec| {
            let operation = Operation::new(spec, Layout::Best, path, 64 << 10, n);
            operation.run(8 * u64::from(n)).unwrap().gb_per_s()
        })
    };
    let base = Params::default();
    for path in [PathModel::PushInband, PathModel::PushKernel] {
        let by_number: Vec<f64> = (2..=10).map(|n| rate(&base, path, n)).collect();
        let kib = [64.0, 96.0, 128.0, 160.0, 192.0, 224.0, 256.0, 320.0];
        let by_window: Vec<f64> =
            kib.map(|kib| rate(&Params { window_kib: kib, ..base.clone() }, path, 8)).into();
        for rates in [by_number, by_window] {
            assert!(rates.windows(2).all(|w| w[1] > 0.97 * w[0]), "{path:?}: {rates:?}");
        }
    }
    // Credits of a part of a message return before its end: else 44 GB/s, as with three messages.
    let four = rate(&base, PathModel::PushInband, 4);
    assert!(four > 47.0, "{four}");
}

/// A rate is that of the whole run, although the simulation ends before the last operations do.
#[test]
fn a_rate_is_that_of_the_whole_run() {
    for path in [PathModel::PushKernel, PathModel::PushInband, PathModel::Pull, PathModel::Staged] {
        for (bytes, n, count) in [(8, 8, 64), (64 << 10, 3, 12), (256 << 10, 8, 32), (4096, 4, 5)] {
            let (whole, rate) = with("two-sockets", &Params::default(), |spec| {
                let of = || Operation::new(spec, Layout::Best, path, bytes, n);
                (of().run(count).unwrap(), of().rate(count).unwrap())
            });
            assert_eq!(whole.done, count);
            assert_eq!(rate, whole.gb_per_s(), "{path:?}, {bytes} B, {n} of {count}");
        }
    }
}

/// A segment's doorbell does not wait for the stores of later segments, so that smaller segments do
/// not take longer; what is one slot longer than the window waits for one CQE.
#[test]
fn a_doorbell_waits_for_its_own_segment() {
    let us = |segment_kib: f64, kib: u32| {
        let params = Params { segment_kib, ..Params::default() };
        let ns = ns("same-switch", PathModel::PushKernel, kib << 10, &params).unwrap();
        ns / 1000.0
    };
    let by_segment = [32.0, 64.0, 88.0, 96.0, 128.0].map(|segment| us(segment, 256));
    assert!(by_segment.windows(2).all(|w| w[0] < 1.01 * w[1]), "{by_segment:?}");
    // The first doorbell rings when a small segment is stored, not when all are.
    let (small, large) = (us(32.0, 192), us(128.0, 192));
    assert!(small < large - 1.2, "{small} {large}");
    let (whole, more) = (us(128.0, 256), us(128.0, 257));
    assert!(more > whole && more < 1.15 * whole, "{whole} {more}");
}

/// Links that are slower than the wire: the last write is still under way when the peer's
/// acknowledgement could be here.
#[test]
fn nothing_completes_before_it_is_delivered() {
    let t = builtin("same-root-complex").unwrap().with(Knob::Generation, 1.0).unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let params = Params::default();
    for seed in 0..4 {
        let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed };
        for path in [PathModel::PushKernel, PathModel::PushInband, PathModel::Pull] {
            let run = Operation::new(spec, Layout::Best, path, 1 << 20, 1).run(1).unwrap();
            let (done, delivered) = (run.median_ns(), run.mark_ns(0));
            assert!(done > delivered, "{path:?}: {done} {delivered}");
        }
    }
}

/// A root port that the tree shows makes a word of host memory some picoseconds nearer or farther:
/// it changes neither times nor rates by more.
#[test]
fn a_root_port_in_the_tree_changes_nothing_else() {
    let shown = builtin("two-root-complexes").unwrap();
    let hidden = builtin("epyc-2s").unwrap();
    let params = Params::default();
    let of = |t: &Topology, seed, (path, bytes, n, runs)| {
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        let spec = TestBedSpec { topology: t, gpu, nic, params: &params, seed };
        let run = Operation::new(spec, Layout::Card, path, bytes, n).run(runs).unwrap();
        if n == 1 { run.median_ns() } else { run.gb_per_s() }
    };
    for seed in 0..20 {
        for what in [(PathModel::PushBlueflame, 8, 1, 9), (PathModel::Staged, 4096, 1, 9)] {
            let (a, b) = (of(&shown, seed, what), of(&hidden, seed, what));
            assert!((a / b - 1.0).abs() < 0.002, "{seed} {what:?}: {a} {b}");
        }
    }
    for path in [PathModel::Staged, PathModel::PushKernel] {
        let (a, b) =
            (of(&shown, 1, (path, 64 << 10, 8, 40)), of(&hidden, 1, (path, 64 << 10, 8, 40)));
        assert!((a / b - 1.0).abs() < 0.01, "{path:?}: {a} {b}");
    }
}

/// The mean latency with drawn phases, of `runs` runs, and the model's own with spread ones: the
/// least and the greatest of some seeds.
fn drawn_and_own(name: &str, layout: Layout, path: PathModel, bytes: u32, runs: u64) -> [f64; 3] {
    let t = builtin(name).unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let params = Params::default();
    let operation = |seed| {
        let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed };
        Operation::new(spec, layout, path, bytes, 1)
    };
    let Ok(drawn) = operation(1).run(runs) else { return [1.0; 3] };
    let own: Vec<f64> =
        (1..=4).map(|seed| operation(seed).run_alone().unwrap().mean_ns()).collect();
    let least = own.iter().copied().fold(f64::INFINITY, f64::min);
    [drawn.mean_ns(), least, own.iter().copied().fold(0.0, f64::max)]
}

/// Drawn and own latencies are within 1 %; returns by how much they differ at most, %.
fn assert_near(name: &str, nic: NicModel, path: PathModel, bytes: u32, runs: u64) -> f64 {
    let [drawn, least, most] = drawn_and_own(name, nic.layout(), path, bytes, runs);
    let off = (most / drawn - 1.0).max(1.0 - least / drawn);
    assert!(off < 0.01, "{nic} {name} {path:?} {bytes}: {drawn}, {least} to {most}");
    100.0 * off
}

/// A latency is the mean over the polling phases, of few runs as of many, with any seed.
#[test]
fn latencies_are_means_over_the_polling_phases() {
    for nic in [NicModel::Software, NicModel::Cx7] {
        for name in BUILTIN_NAMES {
            for &path in nic.paths() {
                assert_near(name, nic, path, 8, 1000);
            }
        }
        for &path in nic.paths().iter().filter(|p| p.carries(4096)) {
            assert_near("two-root-complexes", nic, path, 4096, 400);
            assert_near("two-root-complexes", nic, path, 64 << 10, 100);
        }
    }
}

#[test]
#[ignore = "long: 400 phases of 256 KiB on every topology"]
fn latencies_are_means_on_every_topology() {
    for nic in [NicModel::Software, NicModel::Cx7] {
        for name in BUILTIN_NAMES {
            for &path in nic.paths() {
                for bytes in [8, 4096, 256 << 10].into_iter().filter(|&b| path.carries(b)) {
                    let off = assert_near(name, nic, path, bytes, 400);
                    println!("{off:5.2} % {nic} {name} {path:?} {bytes} B");
                }
            }
        }
    }
}

/// A fetch of a WQE passes payload reads that the NIC has not asked for yet: behind them, five and
/// six operations in flight had 35.1 and 36.8 GB/s.
#[test]
fn a_wqe_is_fetched_before_payload() {
    let params = Params::default();
    let t = builtin("two-root-complexes").unwrap();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
    let rate = |n| predict(spec, PathModel::Pull, 64 << 10, n).unwrap().unwrap().gb_per_s;
    let rates: Vec<f64> = (1..=8).map(rate).collect();
    assert!(rates.is_sorted_by(|a, b| *b > 0.99 * a), "{rates:?}");
    // As many operations as fit into a round trip, until the wire is full.
    assert!((3..5).all(|n| rates[n] > 0.9 * rates[0] * (n + 1) as f64), "{rates:?}");
    assert!(rates[5..].iter().all(|r| *r > 48.0), "{rates:?}");
    let [three, four, five, six] = [2, 3, 4, 5].map(|n| format!("{:.1}", rates[n]));
    let results = include_str!("../../../../docs/results/pcie.md");
    let model = include_str!("../../../../docs/pcie-model.md");
    for (page, said) in [
        (results, format!("{three}, {four}, {five}, then {six} GB/s")),
        (model, format!("{three}, {four}, {five} and {six} GB/s with three to six")),
    ] {
        assert!(page.contains(&said), "the page does not say: {said}");
    }
}

/// Where nothing is simulated yet, what is to be is known well enough to refuse too much of it.
#[test]
fn transmissions_are_known_before_they_are_simulated() {
    let changes: [&dyn Fn(&mut Params); 3] =
        [&|_| {}, &|p| p.store_tlp_bytes = 16.0, &|p| p.store_tlp_bytes = 4096.0];
    for name in BUILTIN_NAMES {
        let t = builtin(name).unwrap();
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        for change in changes {
            let mut params = Params::default();
            change(&mut params);
            let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 };
            for path in PathModel::ALL.into_iter().filter(|path| path.carries(256 << 10)) {
                let guess = transmissions(spec, path, 256 << 10, 1);
                let operation = Operation::new(spec, Layout::Best, path, 256 << 10, 1);
                let (mut sim, program) = (operation.bed.sim, operation.program);
                if sim.run(vec![Load { program, window: 1, count: 3 }]).is_err() {
                    continue;
                }
                let ratio = sim.tlp_events() as f64 / guess;
                assert!((0.4..=2.5).contains(&ratio), "{name} {}: {ratio}", path.name());
            }
        }
    }
}

#[test]
fn paths_have_the_names_of_the_rest_of_bellpush() {
    let names = ["push/kernel", "push/inband", "push/blueflame", "pull", "staged"];
    assert_eq!(PathModel::ALL.map(PathModel::name), names);
}

fn steps(layout: Layout, path: PathModel, params: &Params) -> Vec<Step> {
    with("two-root-complexes", params, |spec| {
        let program = Operation::new(spec, layout, path, 64, 1).program;
        program.tasks.iter().map(|task| task.step).collect()
    })
}

/// Without a fence nothing waits for acknowledgements.
#[test]
fn without_a_fence_a_card_waits_for_no_acknowledgement() {
    let acked = |params: &Params| {
        let until = |s: &Step| matches!(s, Step::Write { until: Until::Acked, .. });
        steps(Layout::Card, PathModel::Pull, params).iter().filter(|s| until(s)).count()
    };
    assert_eq!(acked(&Params::default()), 2);
    assert_eq!(acked(&Params { fence_pcie_ns: 0.0, ..Params::default() }), 0);
}

/// A poll sees a word half to one and a half times its load later; the CPU at the other end polls
/// its cache for half of a load, and posts.
#[test]
fn the_other_end_polls_posts_and_polls() {
    let params = Params { staged_ends: 2.0, ..Params::default() };
    let all = steps(Layout::Card, PathModel::Staged, &params);
    let ps = Params::ps(params.memory_ns / 2.0 + params.cpu_post_ns);
    assert!(all.contains(&Step::Delay { ps }), "{all:?}");
    let polls = all.iter().filter_map(|step| match *step {
        Step::Uniform { min_ps, max_ps } => Some((min_ps, max_ps)),
        _ => None,
    });
    let polls: Vec<_> = polls.collect();
    assert_eq!(polls.len(), 2);
    assert!(polls.iter().all(|&(min, max)| max.abs_diff(3 * min) <= 2 && min > 1000), "{polls:?}");
}

/// By hand: lines of 64 B with 60 B of data in TLPs of 128 B, then packets of 256 B, over four hops,
/// three times.
#[test]
fn transmissions_of_lines_are_those_of_their_data() {
    let got = with("same-switch", &Params::default(), |spec| {
        transmissions(spec, PathModel::PushInband, 1 << 20, 1)
    });
    let want = f64::from(1 << 20) * 4.0 * (1.0 / 120.0 + 1.0 / 256.0) * 3.0;
    assert!((got / want - 1.0).abs() < 1e-9, "{got} {want}");
}
