//! All-reduce among ranks that are threads of this process, on the host executor: every algorithm, path and size.

use std::sync::Arc;

use crate::nics::{Fabric, Silent};
use crate::world::check::Kind;
use crate::world::{World, path, small};
use bellpush::collective::{Algorithm, Dtype, Error, Member, Op, Options};
use bellpush::gpu::{Executor, Gpu, HostOptions};
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
    let fabric = Fabric::new();
    let nics =
        |n: usize| -> Vec<Arc<dyn Nic>> { (0..n).map(|_| fabric.open_for_answers()).collect() };
    let options = small(Algorithm::TwoShot).channels(5);
    let world = |counts: [usize; 2]| {
        let nics = counts.map(nics);
        let silent = Silent::of(nics.iter().flatten());
        let member = |(rank, nics): (_, &Vec<_>)| Member::new(&gpu, nics, rank, 2, &options);
        let members = (0..).zip(&nics).map(member).collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<_> = members.iter().map(|m| m.address().clone()).collect();
        let ranks = members.into_iter().map(|m| m.connect(&addresses)).collect::<Result<_, _>>()?;
        Ok::<_, Error>(World { gpu: gpu.clone(), ranks, _silent: silent })
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
