//! All-reduce among ranks that are threads of this process, on the host executor.

#[path = "../examples/allreduce/check.rs"]
mod check;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bellpush::collective::{
    Algorithm, Buffer, Communicator, Dtype, Error, Member, Op, Options, Place,
};
use bellpush::gpu::{Executor, Gpu, HostOptions, Stream};
use bellpush::nic::soft::link::{Faulty, ShmNet};
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::nic::{LineFormat, Nic};
use bellpush::transport::{Memory, Path};
use check::{Kind, check, elements};

/// Long enough for a loaded machine.
const PATIENT: Duration = Duration::from_secs(30);

fn path(name: &str) -> Path {
    name.parse().unwrap()
}

/// Many small messages, so that slots are used again and again.
fn small(algorithm: Algorithm) -> Options {
    let mut options = Options::new(path("push/inband"));
    options.algorithm = Some(algorithm);
    options.channels = 2;
    options.channel_bytes = 1024;
    options.chunk_bytes = Some(256);
    options.message_bytes = 64;
    options.timeout = PATIENT;
    options.endpoint.window_bytes = 16 << 10;
    options.endpoint.slot_bytes = 1024;
    options.endpoint.sq_blocks = 64;
    options
}

struct World {
    gpu: Arc<Gpu>,
    ranks: Vec<Communicator>,
}

impl World {
    fn new(ranks: u32, options: &Options) -> Self {
        let nic: Arc<dyn Nic> = SoftNic::open(SoftConfig::new(&InProcess::new())).unwrap();
        Self::on((0..ranks).map(|_| nic.clone()).collect(), options)
    }

    fn on(nics: Vec<Arc<dyn Nic>>, options: &Options) -> Self {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let places: Vec<_> = nics.into_iter().map(|nic| (gpu.clone(), nic)).collect();
        let ranks = Communicator::threads(&places, options).unwrap();
        Self { gpu, ranks }
    }

    /// Runs something on a thread for each rank, each with a stream of its own.
    fn each<R: Send>(&self, run: impl Fn(&Communicator, &Stream) -> R + Sync) -> Vec<R> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .ranks
                .iter()
                .map(|rank| {
                    let (gpu, run) = (&self.gpu, &run);
                    scope.spawn(move || run(rank, &gpu.stream().unwrap()))
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    /// One call by all ranks, checked element by element.
    fn reduce(&self, dtype: Dtype, op: Op, count: usize, kind: Kind, in_place: bool) {
        let seed = count as u64 * 31 + op as u64 * 7 + dtype as u64;
        let n = self.ranks.len() as u32;
        let inputs: Vec<_> = (0..n).map(|r| elements(dtype, count, kind, seed, r)).collect();
        let outputs = self.each(|rank, stream| {
            let mine = &inputs[rank.rank() as usize];
            // One element on either side: nothing beside the result changes.
            let edge = dtype.bytes() as usize;
            let around = vec![0xa5; mine.len() + 2 * edge];
            let memory = |bytes: &[u8]| {
                let memory = Memory::from(self.gpu.alloc(bytes.len()).unwrap());
                memory.write(0, bytes).unwrap();
                memory
            };
            let output = memory(&around);
            let input = if in_place { output.clone() } else { memory(&around) };
            input.write(edge, mine).unwrap();
            let (from, to) = (Buffer::at(&input, edge as u64), Buffer::at(&output, edge as u64));
            rank.all_reduce(stream, from, to, count as u64, dtype, op).unwrap();
            rank.synchronize(stream).unwrap();
            let mut found = around.clone();
            output.read(0, &mut found).unwrap();
            for at in [0, edge + mine.len()] {
                assert_eq!(found[at..at + edge], around[..edge], "beside the result");
            }
            found[edge..edge + mine.len()].to_vec()
        });
        let plan = self.ranks[0].plan(count as u64, dtype, op);
        for (rank, output) in outputs.iter().enumerate() {
            check(dtype, op, &inputs, output)
                .unwrap_or_else(|why| panic!("{n} ranks, {plan}, rank {rank}: {why}"));
            assert!(*output == outputs[0], "{n} ranks, {plan}: rank {rank} has other bits");
        }
    }
}

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
            let world = World::new(3, &Options { path, ..small(algorithm) });
            for count in [5, 3001] {
                world.reduce(Dtype::F32, Op::Sum, count, Kind::Random, false);
            }
        }
    }
    assert_eq!(Options::paths().count(), 6);
}

/// A quick message's words lie otherwise in the lines of each format.
#[test]
fn quick_messages_lie_in_lines_of_every_format() {
    for line in [LineFormat::L12S4, LineFormat::L14S2, LineFormat::L60S4] {
        for threads in [None, Some(64)] {
            let mut options = Options { threads, ..small(Algorithm::Quick) };
            options.endpoint.line = line;
            options.endpoint.window_bytes = 128 << 10;
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
            let mut options = Options { path: path(name), ..small(algorithm) };
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
    let options = Options { channels: 5, ..small(Algorithm::TwoShot) };
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

/// Where regions lie says which algorithm long calls take.
#[test]
fn ranks_whose_regions_lie_elsewhere_are_refused() {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let nic: Arc<dyn Nic> = SoftNic::open(SoftConfig::new(&InProcess::new())).unwrap();
    let member = |(rank, region)| {
        let options = Options { region, ..small(Algorithm::OneShot) };
        Member::new(&gpu, std::slice::from_ref(&nic), rank, 2, &options).unwrap()
    };
    let members: Vec<_> = (0..).zip([Place::Host, Place::Gpu]).map(member).collect();
    let addresses: Vec<_> = members.iter().map(|m| m.address().clone()).collect();
    for member in members {
        let differs = member.connect(&addresses).err().expect("it is refused");
        assert!(differs.to_string().contains("memory of regions"), "{differs}");
    }
}

/// Shares just below and above what goes in one message without a signal, of one rank and of all.
#[test]
fn shares_around_what_a_quick_message_holds() {
    for (ranks, channels) in [(2, 1), (3, 4), (9, 1)] {
        let options = Options { channels, ..small(Algorithm::Quick) };
        let world = World::new(ranks, &options);
        let most = 4096.min(32768 / ranks as usize / 16 * 16) * channels as usize;
        for bytes in [most - 64, most - 4, most, most + 4, most + 64] {
            world.reduce(Dtype::F32, Op::Sum, bytes / 4, Kind::Random, bytes % 8 == 0);
            world.reduce(Dtype::F16, Op::Max, bytes / 2 - 1, Kind::Random, false);
        }
    }
}

/// Calls on one channel and on several, by quick messages, in one step and in two: streams that one call
/// leaves alone go on where they stood.
#[test]
fn calls_of_all_kinds_in_turn() {
    let options =
        Options { algorithm: None, channels: 3, quick_bytes: 16_384, ..small(Algorithm::Ring) };
    let world = World::new(3, &options);
    let counts = [1, 9000, 300, 50_000, 2, 70_000, 40, 50_000, 1];
    let algorithms: std::collections::HashSet<_> =
        counts.iter().map(|&n| world.ranks[0].plan(n, Dtype::F32, Op::Sum).algorithm).collect();
    assert_eq!(algorithms.len(), 3, "{algorithms:?}");
    for count in counts {
        world.reduce(Dtype::F32, Op::Sum, count as usize, Kind::Random, count % 2 == 0);
    }
}

/// Quick calls are limited by what a rank sends to all: more ranks, shorter calls on fewer channels.
#[test]
fn quick_calls_get_shorter_with_more_ranks() {
    for (ranks, longest, channels) in [(2, 96 << 10, 24), (4, 32 << 10, 8), (7, 16 << 10, 4)] {
        let options = Options { channels: 24, algorithm: None, ..small(Algorithm::Ring) };
        let world = World::new(ranks, &options);
        let plan = |bytes: u64| world.ranks[0].plan(bytes / 4, Dtype::F32, Op::Sum);
        let call = plan(longest);
        assert_eq!((call.algorithm, call.channels), (Algorithm::Quick, channels), "{ranks} ranks");
        assert_ne!(plan(longest + 4).algorithm, Algorithm::Quick, "{ranks} ranks");
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
            let mut options = Options { path: path(name), ..small(algorithm) };
            options.endpoint.window_bytes = 1024;
            World::new(3, &options).reduce(Dtype::F32, Op::Sum, 2055, Kind::Random, true);
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
            let options = Options { path: path(name), ..small(algorithm) };
            let world = World::on((0..3).map(nic).collect(), &options);
            world.reduce(Dtype::F32, Op::Sum, 1031, Kind::Random, false);
            world.reduce(Dtype::Bf16, Op::Mean, 515, Kind::Random, false);
        }
    }
}

#[test]
fn ranks_that_call_different_things_are_told_and_go_on() {
    for &algorithm in Algorithm::ALL {
        let world = World::new(3, &small(algorithm));
        let odd: [(u64, Dtype, Op); 4] = [
            (9, Dtype::F32, Op::Sum),
            (5000, Dtype::F32, Op::Sum),
            (8, Dtype::I32, Op::Sum),
            (8, Dtype::F32, Op::Max),
        ];
        for (count, dtype, op) in odd {
            let errors = world.each(|rank, stream| {
                let memory = Memory::from(world.gpu.alloc(20_000).unwrap());
                let (count, dtype, op) =
                    if rank.rank() == 1 { (count, dtype, op) } else { (8, Dtype::F32, Op::Sum) };
                rank.all_reduce(stream, &memory, &memory, count, dtype, op).unwrap();
                rank.synchronize(stream).unwrap_err()
            });
            for (rank, error) in errors.iter().enumerate() {
                let Error::Mismatch { rank: named, theirs, ours, .. } = error else {
                    panic!("{algorithm}, rank {rank}: {error}");
                };
                let about = if rank == 1 { 0 } else { 1 };
                assert_eq!(*named, about, "{algorithm}, rank {rank}: {error}");
                let call = if rank == 1 { ours } else { theirs };
                assert_eq!((call.count, call.dtype, call.op), (count, dtype, op), "{error}");
            }
            world.reduce(Dtype::F32, Op::Sum, 1031, Kind::Random, false);
        }
    }
}

/// Sizes of which each is another algorithm's, on another number of channels: the ranks have sent first
/// messages where others expect none.
#[test]
fn ranks_that_choose_different_algorithms_go_on_too() {
    let world = World::new(3, &Options { algorithm: None, channels: 4, ..small(Algorithm::Ring) });
    let counts: [u64; 4] = [8, 500, 100_000, 9_000_000];
    let memory = Memory::from(world.gpu.alloc(36_000_000).unwrap());
    let since = Instant::now();
    for shift in 0..8 {
        let plans = world.each(|rank, stream| {
            let count = counts[(rank.rank() as usize + shift) % counts.len()];
            rank.all_reduce(stream, &memory, &memory, count, Dtype::F32, Op::Sum).unwrap();
            let error = rank.synchronize(stream).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            rank.plan(count, Dtype::F32, Op::Sum).algorithm
        });
        assert!(plans.iter().any(|&a| a != plans[0]), "{plans:?}");
        world.reduce(Dtype::F32, Op::Sum, 2055, Kind::Random, false);
    }
    // All but the first by exchanges, on 1, 2, 4 and 4 channels.
    let options =
        Options { algorithm: None, channels: 4, quick_bytes: 1024, ..small(Algorithm::Ring) };
    let world = World::new(3, &options);
    let counts: [u64; 5] = [8, 200, 500, 900, 50_000];
    for (a, b, c) in
        (0..125).map(|i| (i / 25, i / 5 % 5, i % 5)).filter(|&(a, b, c)| a != b || a != c)
    {
        world.each(|rank, stream| {
            let count = counts[[a, b, c][rank.rank() as usize]];
            rank.all_reduce(
                stream,
                &memory_of(&world, count),
                &memory_of(&world, count),
                count,
                Dtype::F32,
                Op::Sum,
            )
            .unwrap();
            let error = rank.synchronize(stream).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{a} {b} {c}: {error}");
        });
        world.reduce(Dtype::F32, Op::Sum, 515, Kind::Random, false);
    }
    assert!(since.elapsed() < PATIENT, "a difference is noticed, not waited out");
}

fn memory_of(world: &World, count: u64) -> Memory {
    Memory::from(world.gpu.alloc(count as usize * 4).unwrap())
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
    let options =
        Options { algorithm: None, channels: 2, quick_bytes: 1536, ..small(Algorithm::Ring) };
    let world = World::on((0..4).map(nic).collect(), &options);
    let errors = world.each(|rank, stream| {
        let memory = memory_of(&world, 1000);
        for call in 0..120u64 {
            let count = [300, 8, 600, 200, 8][call as usize % 5];
            rank.all_reduce(stream, &memory, &memory, count, Dtype::I32, Op::Max).unwrap();
        }
        rank.synchronize(stream).err()
    });
    assert!(errors.iter().all(Option::is_none), "{errors:?}");
    world.reduce(Dtype::F32, Op::Sum, 515, Kind::Random, false);
}

/// In place, what others sent is added to elements that this rank has sent before. A rank whose packets are lost sends later than
/// it receives.
#[test]
fn a_rank_that_sends_late_has_sent_what_it_writes_over() {
    let net = ShmNet::anonymous(false).unwrap();
    let nic = |rank: u32| -> Arc<dyn Nic> {
        let faults = ["seed=5", "loss=30%,seed=5"][usize::from(rank == 0)].parse().unwrap();
        let link = Faulty::new(net.attach_free().unwrap(), faults).unwrap();
        SoftNic::open_on(SoftConfig::default(), Box::new(link)).unwrap()
    };
    for algorithm in [Algorithm::OneShot, Algorithm::TwoShot] {
        let mut options = Options { channels: 1, ..small(algorithm) };
        // One slot, so that a message goes when the one before has been acknowledged.
        options.endpoint.window_bytes = 1024;
        let world = World::on((0..3).map(nic).collect(), &options);
        for count in [600, 700] {
            world.reduce(Dtype::F32, Op::Sum, count, Kind::Random, true);
        }
    }
}

#[test]
fn a_rank_that_does_not_call_is_named_by_all_others_in_time() {
    for &algorithm in Algorithm::ALL {
        let timeout = Duration::from_millis(600);
        let world = World::new(4, &Options { timeout, ..small(algorithm) });
        // A first call by all, so that the silence falls into the middle of the streams.
        world.reduce(Dtype::F32, Op::Sum, 1031, Kind::Random, false);
        let since = Instant::now();
        let errors = world.each(|rank, stream| {
            if rank.rank() == 2 {
                return None;
            }
            let memory = Memory::from(world.gpu.alloc(8000).unwrap());
            rank.all_reduce(stream, &memory, &memory, 1000, Dtype::F32, Op::Sum).unwrap();
            let first = rank.synchronize(stream).unwrap_err();
            let again = rank.all_reduce(stream, &memory, &memory, 1, Dtype::F32, Op::Sum);
            assert!(matches!(again, Err(Error::Ended { .. })), "{again:?}");
            let again = rank.synchronize(stream);
            assert!(matches!(again, Err(Error::Ended { .. })), "{again:?}");
            Some(first)
        });
        for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != 2) {
            let named = matches!(error, Some(Error::Silent { rank: 2, call: 1, .. }));
            assert!(named, "{algorithm}, rank {rank}: {error:?}");
        }
        assert!(since.elapsed() < 5 * timeout, "{:?}", since.elapsed());

        // It comes after all: the others have given up on it.
        let late = &world.ranks[2];
        let stream = world.gpu.stream().unwrap();
        let memory = Memory::from(world.gpu.alloc(8000).unwrap());
        late.all_reduce(&stream, &memory, &memory, 1000, Dtype::F32, Op::Sum).unwrap();
        match late.synchronize(&stream) {
            Err(Error::Late { .. }) => {}
            // One step, whose messages had all arrived: its result is right.
            Ok(()) if [Algorithm::OneShot, Algorithm::Quick].contains(&algorithm) => {}
            other => panic!("{algorithm}: {other:?}"),
        }
    }
}

/// Two calls before one synchronisation: that ranks differ in the first does not hide who is missing in the second.
#[test]
fn who_ends_the_communicator_is_told_before_who_differs() {
    for &algorithm in Algorithm::ALL {
        let timeout = Duration::from_millis(600);
        let world = World::new(3, &Options { timeout, ..small(algorithm) });
        let errors = world.each(|rank, stream| {
            let memory = Memory::from(world.gpu.alloc(4000).unwrap());
            let calls = if rank.rank() == 2 { 1 } else { 2 };
            for call in 0..calls {
                let count = if (rank.rank(), call) == (1, 0) { 9 } else { 8 };
                rank.all_reduce(stream, &memory, &memory, count, Dtype::F32, Op::Sum).unwrap();
            }
            rank.synchronize(stream).unwrap_err()
        });
        for (rank, error) in errors.iter().enumerate() {
            let right = match error {
                Error::Silent { rank: 2, call: 1, .. } => rank != 2,
                Error::Mismatch { rank: 1, call: 0, .. } => rank == 2,
                _ => false,
            };
            assert!(right, "{algorithm}, rank {rank}: {error}");
        }
    }
}

#[test]
fn a_missing_wait_is_found() {
    let mut found = 0;
    for &algorithm in Algorithm::ALL {
        let options = Options { waits: false, ..small(algorithm) };
        let world = World::new(3, &options);
        let results = world.each(|rank, stream| {
            let memory = Memory::from(world.gpu.alloc(8000).unwrap());
            rank.all_reduce(stream, &memory, &memory, 2000, Dtype::F32, Op::Sum).unwrap();
            rank.synchronize(stream)
        });
        found += results.iter().filter(|r| matches!(r, Err(Error::Corrupt { .. }))).count();
    }
    assert!(found > 0, "messages were read without a wait, and nobody noticed");
}

#[test]
fn a_wrong_element_is_found() {
    for &dtype in Dtype::ALL {
        for op in [Op::Sum, Op::Max] {
            let inputs: Vec<_> = (0..2).map(|r| elements(dtype, 40, Kind::Random, 5, r)).collect();
            // The second input alone is no sum; as a maximum it is wrong somewhere.
            let why = check(dtype, op, &inputs, &inputs[1]).unwrap_err();
            assert!(why.contains("element"), "{why}");
        }
    }
    let one = 1.0f32.to_ne_bytes().to_vec();
    let next = f32::from_bits(2.0f32.to_bits() + 2).to_ne_bytes();
    assert!(check(Dtype::F32, Op::Sum, &[one.clone(), one], &next).is_err(), "two ulp off");
}

/// The host executor has no graphs: that is said, and the communicator goes on.
#[test]
fn recording_without_a_gpu_is_refused() {
    let world = World::new(2, &small(Algorithm::Quick));
    world.each(|rank, stream| {
        let memory = Memory::from(world.gpu.alloc(64).unwrap());
        let make = || rank.all_reduce(stream, &memory, &memory, 16, Dtype::F32, Op::Sum);
        let refused = rank.record(stream, make).err().expect("recorded by a CPU");
        assert!(refused.to_string().contains("no graphs"), "{refused}");
    });
    world.reduce(Dtype::F32, Op::Sum, 16, Kind::Random, true);
}

#[test]
fn bad_arguments_are_refused_by_name_and_lose_nothing() {
    let world = World::new(1, &small(Algorithm::Ring));
    let rank = &world.ranks[0];
    let stream = world.gpu.stream().unwrap();
    let memory = Memory::from(world.gpu.alloc(64).unwrap());
    let call = |from, to, count| {
        let (from, to) = (Buffer::at(&memory, from), Buffer::at(&memory, to));
        rank.all_reduce(&stream, from, to, count, Dtype::F32, Op::Sum).unwrap_err().to_string()
    };
    assert!(call(0, 0, 17).contains("17 f32 at offset 0 leave the input of 64 bytes"));
    assert!(call(0, 32, 9).contains("leave the output"));
    assert!(call(u64::MAX - 3, 0, 1).contains("leave the input"));
    assert!(call(0, 0, u64::MAX / 2).contains("leave the input"));
    assert!(call(2, 0, 1).contains("needs a multiple of 4"));
    assert!(call(0, 8, 3).contains("overlap"));
    let elsewhere = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let other = Memory::from(elsewhere.alloc(64).unwrap());
    let refused = rank.all_reduce(&stream, &other, &memory, 1, Dtype::F32, Op::Sum);
    assert!(matches!(refused, Err(Error::OtherGpu { what: "input" })), "{refused:?}");
    rank.all_reduce(&stream, &memory, &memory, 16, Dtype::F32, Op::Sum).unwrap();
    rank.synchronize(&stream).unwrap();

    let nic: Arc<dyn Nic> = SoftNic::open(SoftConfig::default()).unwrap();
    let places = |n: usize| vec![(world.gpu.clone(), nic.clone()); n];
    let refused = |n, options: Options| {
        let made = Communicator::threads(&places(n), &options);
        made.err().expect("it is refused").to_string()
    };
    let ring = || small(Algorithm::Ring);
    assert!(refused(0, ring()).contains("number of ranks is 0"));
    assert!(refused(65, ring()).contains("number of ranks is 65"));
    assert!(refused(2, Options { channels: 0, ..ring() }).contains("channels is 0"));
    assert!(refused(2, Options { chunk_bytes: Some(100), ..ring() }).contains("chunk size is 100"));
    assert!(refused(2, Options { threads: Some(48), ..ring() }).contains("threads"));
    assert!(refused(2, Options { path: Path::TCP, ..ring() }).contains("tcp cannot"));
}
