//! All-reduce among ranks that are threads of this process, on the host executor: every algorithm, path and size.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::world::check::Kind;
use crate::world::{World, path, small};
use bellpush::collective::{Algorithm, Communicator, Dtype, Error, Member, Op, Options};
use bellpush::gpu::{Executor, Gpu, HostOptions};
use bellpush::gpu_engine::{self, EngineOptions};
use bellpush::nic::soft::link::{Faulty, ShmNet};
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::nic::{LineFormat, Nic};
use bellpush::transport::Memory;

#[test]
fn every_algorithm_type_and_operation_from_1_to_8_ranks() {
    let lengths = [1, 0, 3, 7, 64, 129, 515, 1031, 2055];
    let mut turn = 0;
    for ranks in 1..=8 {
        for &algorithm in Algorithm::ALL {
            let world = World::new(ranks, &small(algorithm));
            for &dtype in Dtype::ALL {
                for &op in Op::ALL {
                    turn += 1;
                    let count = lengths[turn % lengths.len()];
                    world.reduce(dtype, op, count, Kind::Random, turn % 2 == 0);
                }
            }
        }
    }
}

#[test]
fn every_path_carries_it() {
    for path in Options::paths() {
        for &algorithm in Algorithm::ALL {
            let world = World::new(3, &small(algorithm).path(path));
            for count in [5, 3001] {
                world.reduce(Dtype::F32, Op::Sum, count, Kind::Random, false);
            }
        }
    }
    assert_eq!(Options::paths().count(), 6);
}

/// An LL message's words lie otherwise in the lines of each format.
#[test]
fn ll_messages_lie_in_lines_of_every_format() {
    for line in [LineFormat::L12S4, LineFormat::L14S2, LineFormat::L60S4] {
        for threads in [None, Some(64)] {
            let mut options = small(Algorithm::Ll).threads(threads);
            options.endpoint.line = line;
            options.window_bytes = Some(128 << 10);
            options.endpoint.slot_bytes = 16 << 10;
            let world = World::new(3, &options);
            for (dtype, count) in
                [(Dtype::F32, 1), (Dtype::F32, 256), (Dtype::F16, 31), (Dtype::I32, 1999)]
            {
                // Twice as many calls as there are slots: the first messages are longer than others.
                for _ in 0..4 {
                    world.reduce(dtype, Op::Sum, count, Kind::Random, false);
                }
            }
        }
    }
}

/// Where a block has several warps, each posts to a rank, or all together.
#[test]
fn blocks_of_several_warps_send_long_messages() {
    for name in ["pull/kernel", "push/kernel", "push/inband"] {
        for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
            let mut options = small(algorithm).path(path(name));
            (options.threads, options.chunk_bytes) = (Some(64), Some(4096));
            options.endpoint.slot_bytes = 8192;
            World::new(4, &options).reduce(Dtype::F32, Op::Sum, 20_001, Kind::Random, false);
        }
    }
}

#[test]
fn channels_are_dealt_to_as_many_nics_at_every_rank() {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let net = InProcess::new();
    let nics = |n: usize| -> Vec<Arc<dyn Nic>> {
        let nic = |_| -> Arc<dyn Nic> { SoftNic::open(SoftConfig::new(&net)).unwrap() };
        (0..n).map(nic).collect()
    };
    let options = small(Algorithm::TwoShot).channels(5);
    let world = |counts: [usize; 2]| {
        let member = |(rank, n)| Member::new(&gpu, &nics(n), rank, 2, &options);
        let members = (0..).zip(counts).map(member).collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<_> = members.iter().map(|m| m.address().clone()).collect();
        let ranks = members.into_iter().map(|m| m.connect(&addresses)).collect::<Result<_, _>>()?;
        Ok::<_, Error>(World { gpu: gpu.clone(), ranks })
    };
    for n in [1, 2, 3, 7] {
        world([n, n]).unwrap().reduce(Dtype::F32, Op::Sum, 5003, Kind::Random, false);
    }
    let refused = |counts| world(counts).err().expect("it is refused");
    assert!(refused([0, 1]).to_string().contains("number of a rank's NICs is 0"));
    let differs = refused([2, 1]);
    assert!(matches!(differs, Error::Differs { rank: 1, .. }), "{differs}");
    assert!(differs.to_string().contains("NICs 1"), "{differs}");
}

/// Which NaN went in cannot be told from the results, also where nothing is added up.
#[test]
fn a_single_rank_canonicalises_too() {
    for &algorithm in Algorithm::ALL {
        let world = World::new(1, &small(algorithm));
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            for (op, in_place) in [(Op::Sum, true), (Op::Max, false), (Op::Mean, true)] {
                world.reduce(dtype, op, 1500, Kind::Payloads, in_place);
            }
        }
    }
}

/// Shares just below and above what goes in one message without a signal, of one rank and of all.
#[test]
fn shares_around_what_an_ll_message_holds() {
    for (ranks, channels) in [(2, 1), (3, 4), (9, 1)] {
        let options = small(Algorithm::Ll).channels(channels);
        let world = World::new(ranks, &options);
        let most = 8192.min(32_832 / ranks as usize / 12 * 12 / 16 * 16) * channels as usize;
        for bytes in [most - 64, most - 4, most, most + 4, most + 64] {
            world.reduce(Dtype::F32, Op::Sum, bytes / 4, Kind::Random, bytes % 8 == 0);
            world.reduce(Dtype::F16, Op::Max, bytes / 2 - 1, Kind::Random, false);
        }
    }
}

/// Calls on one channel and on several, by LL messages, in one step and in two: streams that one call
/// leaves alone go on where they stood.
#[test]
fn calls_of_all_kinds_in_turn() {
    let options = small(Algorithm::Ring).algorithm(None).channels(3).ll_bytes(16_384);
    let world = World::new(3, &options);
    let counts = [1, 9000, 300, 50_000, 2, 70_000, 40, 50_000, 1];
    let algorithms: std::collections::HashSet<_> =
        counts.iter().map(|&n| world.ranks[0].plan(n, Dtype::F32, Op::Sum).algorithm).collect();
    assert_eq!(algorithms.len(), 3, "{algorithms:?}");
    for count in counts {
        world.reduce(Dtype::F32, Op::Sum, count as usize, Kind::Random, count % 2 == 0);
    }
}

/// LL calls are limited by what a rank sends to all: more ranks, shorter calls on fewer channels.
#[test]
fn ll_calls_get_shorter_with_more_ranks() {
    for (ranks, longest, channels) in [(2, 192 << 10, 24), (4, 32 << 10, 8), (7, 16 << 10, 4)] {
        let options = small(Algorithm::Ring).channels(24).algorithm(None);
        let world = World::new(ranks, &options);
        let plan = |bytes: u64| world.ranks[0].plan(bytes / 4, Dtype::F32, Op::Sum);
        let call = plan(longest);
        assert_eq!((call.algorithm, call.channels), (Algorithm::Ll, channels), "{ranks} ranks");
        assert_ne!(plan(longest + 4).algorithm, Algorithm::Ll, "{ranks} ranks");
        assert_eq!(plan(8).channels, 1);
    }
}

#[test]
fn nan_infinity_and_zeros_as_ieee_754_says() {
    for &algorithm in Algorithm::ALL {
        let world = World::new(3, &small(algorithm));
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            for &op in Op::ALL {
                world.reduce(dtype, op, 1500, Kind::Special, false);
            }
        }
    }
}

#[test]
fn a_thousand_calls_in_a_row_need_no_barrier() {
    for &algorithm in Algorithm::ALL {
        let world = World::new(4, &small(algorithm));
        let (calls, count) = (1000u64, 37usize);
        let sums = world.each(|rank, stream| {
            let memory = Memory::from(world.gpu.alloc(count * 4).unwrap());
            let start: Vec<i32> = (0..count as i32).map(|i| i + rank.rank() as i32).collect();
            memory.write(0, bytemuck::cast_slice(&start)).unwrap();
            for _ in 0..calls {
                // Each call's result is the next one's input: a wrong one stays to be seen.
                let n = count as u64;
                rank.all_reduce(stream, &memory, &memory, n, Dtype::I32, Op::Sum).unwrap();
            }
            rank.synchronize(stream).unwrap();
            let mut found = vec![0i32; count];
            memory.read(0, bytemuck::cast_slice_mut(&mut found)).unwrap();
            found
        });
        let factor = (1..calls).fold(1i32, |f, _| f.wrapping_mul(4));
        for sum in sums {
            for (i, found) in sum.iter().enumerate() {
                let first: i32 = (0..4).map(|rank| i as i32 + rank).sum();
                assert_eq!(*found, first.wrapping_mul(factor), "{algorithm}, element {i}");
            }
        }
    }
}

#[test]
fn a_window_of_one_slot_is_enough() {
    for name in ["push/inband", "push/kernel"] {
        for &algorithm in Algorithm::ALL {
            let mut options = small(algorithm).path(path(name));
            options.window_bytes = Some(1024);
            World::new(3, &options).reduce(Dtype::F32, Op::Sum, 2055, Kind::Random, true);
        }
    }
}

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
        let world = World { gpu: gpu.clone(), ranks };
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
