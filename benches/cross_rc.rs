//! Wall time of the PCIe simulator on paths across root complexes. What it simulates is virtual
//! time and printed by `bellpush sim`; criterion measures how fast it does so.
#![allow(missing_docs)]

use bellpush::pcie::scale::{Algorithm, Cost, dgx_cluster};
use bellpush::pcie::sim::{Load, Params, Path, Program, Rig, RigSpec, Step, Until, predict};
use bellpush::pcie::topology::builtin;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn tlp_events(c: &mut Criterion) {
    let topology = builtin("two-sockets").unwrap();
    let params = Params::default();
    let (gpu, nic) = (topology.find("gpu0").unwrap(), topology.find("nic0").unwrap());
    let spec = RigSpec { topology: &topology, gpu, nic, params: &params, seed: 1 };
    let once = || {
        let mut rig = Rig::new(spec);
        let (n, bytes) = (rig.near, 65_536);
        let mut push = Program::new(u64::from(bytes));
        let until = Until::Visible;
        let write = Step::Write { from: n.sm, to: n.window, bytes, addr: 0, tlp_bytes: 128, until };
        push.task(write, &[]);
        let mut pull = Program::new(u64::from(bytes));
        let read = Step::Read { by: n.nic, at: n.hbm, bytes, addr: 0, request_bytes: 512 };
        pull.task(read, &[]);
        let load = |program| Load { program, window: 4, count: 100 };
        rig.sim.run(vec![load(push), load(pull)]).unwrap();
        rig.sim.tlp_events()
    };
    let mut group = c.benchmark_group("cross_rc");
    group.throughput(Throughput::Elements(once()));
    group.bench_function("tlp_events", |b| b.iter(once));
    group.finish();
}

fn operations(c: &mut Criterion) {
    let params = Params::default();
    let mut group = c.benchmark_group("cross_rc_predict");
    for name in ["same-switch", "two-root-complexes", "two-sockets"] {
        let topology = builtin(name).unwrap();
        let (gpu, nic) = (topology.find("gpu0").unwrap(), topology.find("nic0").unwrap());
        let spec = RigSpec { topology: &topology, gpu, nic, params: &params, seed: 1 };
        for path in [Path::PushInband, Path::Pull] {
            group.bench_function(format!("{name}/{}/4096", path.name()), |b| {
                b.iter(|| predict(spec, path, 4096, 1).unwrap());
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

criterion_group!(benches, tlp_events, operations, all_reduce);
criterion_main!(benches);
