//! All-reduce on NICs of other kinds: an engine on a GPU, and links that lose packets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::nics::Silent;
use crate::world::check::Kind;
use crate::world::{World, path, small};
use bellpush::collective::{Algorithm, Communicator, Dtype, Op};
use bellpush::gpu::{Executor, Gpu, HostOptions};
use bellpush::gpu_engine::{self, EngineOptions};
use bellpush::nic::Nic;
use bellpush::nic::soft::link::{Faulty, ShmNet};
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};

/// On the engine of `kernels/engine/engine.cuh`: a unit in parts would bring its flag with words of the message before.
#[test]
fn units_of_ll_messages_come_whole() {
    const RANKS: i32 = 2;
    const CALLS: u32 = 500;
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    for name in ["pull/kernel", "push/kernel", "push/blueflame"] {
        let net = InProcess::new();
        let nic = || -> Arc<dyn Nic> {
            let own = EngineOptions { blocks: 1, threads: 1, ..EngineOptions::new(&gpu) };
            let offload = Some(gpu_engine::open(&gpu, &[], own).unwrap());
            SoftNic::open(SoftConfig { offload, ..SoftConfig::new(&net) }).unwrap()
        };
        let mut options = small(Algorithm::Ll).path(path(name));
        (options.channels, options.threads) = (1, Some(1));
        options.window_bytes = Some(128 << 10);
        options.endpoint.slot_bytes = 16 << 10;
        let places: Vec<_> = (0..RANKS).map(|_| (gpu.clone(), nic())).collect();
        let ranks = Communicator::threads(&places, &options).unwrap();
        let world = World { gpu: gpu.clone(), ranks, _silent: Silent::of([]) };
        // Lengths that the engine moves in different ways.
        for count in [10, 60] {
            let until = Instant::now() + Duration::from_millis(1500);
            while Instant::now() < until {
                // In place, one call after the other, so that a rank's messages differ from call to call.
                let sums = world.each(|rank, stream| {
                    let memory = world.memory(count);
                    let first: Vec<i32> =
                        (0..count as i32).map(|i| i + rank.rank() as i32).collect();
                    memory.write(0, bytemuck::cast_slice(&first)).unwrap();
                    for _ in 0..CALLS {
                        rank.all_reduce(stream, &memory, &memory, count, Dtype::I32, Op::Sum)
                            .unwrap();
                    }
                    rank.synchronize(stream).unwrap_or_else(|why| panic!("{name}, {count}: {why}"));
                    let mut found = vec![0; count as usize];
                    memory.read(0, bytemuck::cast_slice_mut(&mut found)).unwrap();
                    found
                });
                // The first call adds up, those after it multiply.
                let factor = (1..CALLS).fold(1i32, |f, _| f.wrapping_mul(RANKS));
                let right: Vec<i32> =
                    (0..count as i32).map(|i| (2 * i + 1).wrapping_mul(factor)).collect();
                for (rank, sum) in sums.iter().enumerate() {
                    assert!(*sum == right, "{name}: rank {rank} has {sum:?}");
                }
            }
        }
    }
}

#[test]
fn five_percent_of_lost_packets_change_nothing() {
    for name in ["push/inband", "pull/kernel"] {
        for &algorithm in Algorithm::ALL {
            let net = ShmNet::anonymous(false).unwrap();
            let nic = |seed: u32| -> Arc<dyn Nic> {
                let faults = format!("loss=5%,seed={}", seed + 1).parse().unwrap();
                let link = Faulty::new(net.attach_free().unwrap(), faults).unwrap();
                SoftNic::open_on(SoftConfig::default(), Box::new(link)).unwrap()
            };
            let options = small(algorithm).path(path(name));
            let world = World::on((0..3).map(nic).collect(), &options);
            world.reduce(Dtype::F32, Op::Sum, 1031, Kind::Random, false);
            world.reduce(Dtype::Bf16, Op::Mean, 515, Kind::Random, false);
        }
    }
}

/// Calls of several kinds, queued without waiting for any: a rank that has everyone's messages begins the next call,
/// of another kind, while others wait for messages that were lost.
#[test]
fn calls_of_other_kinds_follow_before_all_have_ended() {
    let net = ShmNet::anonymous(false).unwrap();
    let nic = |seed: u32| -> Arc<dyn Nic> {
        let faults = format!("loss=5%,seed={}", seed + 11).parse().unwrap();
        let link = Faulty::new(net.attach_free().unwrap(), faults).unwrap();
        SoftNic::open_on(SoftConfig::default(), Box::new(link)).unwrap()
    };
    let options = small(Algorithm::Ring).algorithm(None).channels(2).ll_bytes(1536);
    let world = World::on((0..4).map(nic).collect(), &options);
    let errors = world.each(|rank, stream| {
        let memory = world.memory(1000);
        for call in 0..120u64 {
            let count = [300, 8, 600, 200, 8][call as usize % 5];
            rank.all_reduce(stream, &memory, &memory, count, Dtype::I32, Op::Max).unwrap();
        }
        rank.synchronize(stream).err()
    });
    assert!(errors.iter().all(Option::is_none), "{errors:?}");
    world.reduce(Dtype::F32, Op::Sum, 515, Kind::Random, false);
}

/// In place, what others sent is added to elements that this rank has sent before. A rank whose packets are lost sends
/// later than it receives.
#[test]
fn a_rank_that_sends_late_has_sent_what_it_writes_over() {
    let net = ShmNet::anonymous(false).unwrap();
    let nic = |rank: u32| -> Arc<dyn Nic> {
        let faults = ["seed=5", "loss=30%,seed=5"][usize::from(rank == 0)].parse().unwrap();
        let link = Faulty::new(net.attach_free().unwrap(), faults).unwrap();
        SoftNic::open_on(SoftConfig::default(), Box::new(link)).unwrap()
    };
    for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
        let mut options = small(algorithm).channels(1);
        // One slot, so that a message goes when the one before has been acknowledged.
        options.window_bytes = Some(1024);
        let world = World::on((0..3).map(nic).collect(), &options);
        for count in [600, 700] {
            world.reduce(Dtype::F32, Op::Sum, count, Kind::Random, true);
        }
    }
}
