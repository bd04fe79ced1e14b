//! Wall time of the PCIe simulator on paths across root complexes. What it simulates is virtual
//! time and printed by `bellpush sim`; criterion measures how fast it does so.
//!
//! Aims: 5 M TLP events a second; an operation of 4 KiB predicted in 1 ms.
#![allow(missing_docs)]

mod aim;

use std::process::ExitCode;

use bellpush::pcie::scale::{Algorithm, Cost, dgx_cluster};
use bellpush::pcie::sim::{
    Load, Params, PathModel, Program, Step, TestBed, TestBedSpec, Until, predict,
};
use bellpush::pcie::topology::builtin;
use criterion::{Criterion, Throughput};

fn tlp_events(c: &mut Criterion) {
    let topology = builtin("two-sockets").unwrap();
    let params = Params::default();
    let (gpu, nic) = (topology.find("gpu0").unwrap(), topology.find("nic0").unwrap());
    let spec = TestBedSpec { topology: &topology, gpu, nic, params: &params, seed: 1 };
    let once = || {
        let mut bed = TestBed::new(spec);
        let (n, bytes) = (bed.near, 65_536);
        let mut push = Program::new(u64::from(bytes));
        let until = Until::Visible;
        let write = Step::Write { from: n.sm, to: n.window, bytes, addr: 0, tlp_bytes: 128, until };
        push.task(write, &[]);
        let mut pull = Program::new(u64::from(bytes));
        let read = Step::Read { by: n.nic, at: n.hbm, bytes, addr: 0, request_bytes: 512 };
        pull.task(read, &[]);
        let load = |program| Load { program, window: 4, count: 100 };
        bed.sim.run(vec![load(push), load(pull)]).unwrap();
        bed.sim.tlp_events()
    };
    let mut group = c.benchmark_group("cross_rc");
    let events = once();
    group.throughput(Throughput::Elements(events));
    group.bench_function("tlp_events", |b| aim::iter(b, "tlp_events", events, once));
    group.finish();
}

fn operations(c: &mut Criterion) {
    let params = Params::default();
    let mut group = c.benchmark_group("cross_rc_predict");
    for name in ["same-switch", "two-root-complexes", "two-sockets"] {
        let topology = builtin(name).unwrap();
        let (gpu, nic) = (topology.find("gpu0").unwrap(), topology.find("nic0").unwrap());
        let spec = TestBedSpec { topology: &topology, gpu, nic, params: &params, seed: 1 };
        for path in [PathModel::PushInband, PathModel::Pull] {
            group.bench_function(format!("{name}/{}/4096", path.name()), |b| {
                aim::iter(b, "predict", 1, || predict(spec, path, 4096, 1).unwrap());
            });
        }
    }
    group.finish();
}

fn all_reduce(c: &mut Criterion) {
    let wire = Cost { latency_ns: 2_000.0, gap_ns: 300.0, gb_per_s: 48.0 };
    c.bench_function("cross_rc_scale/two_level/16384", |b| {
        b.iter(|| dgx_cluster(16_384, wire).all_reduce_ns(Algorithm::TwoLevel, 1 << 28));
    });
}

fn main() -> ExitCode {
    let mut c = Criterion::default().configure_from_args();
    tlp_events(&mut c);
    operations(&mut c);
    all_reduce(&mut c);
    c.final_summary();
    let mut aims = aim::Aims::default();
    aims.at_least("TLP events", aim::rate("tlp_events").map(|rate| rate / 1e6), 5.0, "M/s");
    aims.at_most("a prediction", aim::rate("predict").map(|rate| 1e3 / rate), 1.0, "ms");
    aims.end()
}
