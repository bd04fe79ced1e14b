//! All-reduce where ranks differ, stop or ask for what is not there, and its checkers' negative controls.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::world::check::{Kind, check, elements};
use crate::world::{PATIENT, World, small};
use bellpush::collective::{
    Algorithm, Buffer, Communicator, Dtype, Error, Member, Op, Options, Place,
};
use bellpush::gpu::{Event, Executor, Gpu, GpuError, HostOptions, Stream};
use bellpush::nic::Nic;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::transport::{Memory, Path};

/// Where regions lie says which algorithm long calls take.
#[test]
fn ranks_whose_regions_lie_elsewhere_are_refused() {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let nic: Arc<dyn Nic> = SoftNic::open(SoftConfig::new(&InProcess::new())).unwrap();
    let member = |(rank, region)| {
        let options = small(Algorithm::OneShot).region(region);
        Member::new(&gpu, std::slice::from_ref(&nic), rank, 2, &options).unwrap()
    };
    let members: Vec<_> = (0..).zip([Place::Host, Place::Gpu]).map(member).collect();
    let addresses: Vec<_> = members.iter().map(|m| m.address().clone()).collect();
    for member in members {
        let differs = member.connect(&addresses).err().expect("it is refused");
        assert!(differs.to_string().contains("memory of regions"), "{differs}");
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
    let world = World::new(3, &small(Algorithm::Ring).algorithm(None).channels(4));
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
    let options = small(Algorithm::Ring).algorithm(None).channels(4).ll_bytes(1024);
    let world = World::new(3, &options);
    let counts: [u64; 5] = [8, 200, 500, 900, 50_000];
    for (a, b, c) in
        (0..125).map(|i| (i / 25, i / 5 % 5, i % 5)).filter(|&(a, b, c)| a != b || a != c)
    {
        world.each(|rank, stream| {
            let count = counts[[a, b, c][rank.rank() as usize]];
            rank.all_reduce(
                stream,
                &world.memory(count),
                &world.memory(count),
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

#[test]
fn a_rank_that_does_not_call_is_named_by_all_others_in_time() {
    for &algorithm in Algorithm::ALL {
        let timeout = Duration::from_millis(600);
        let world = World::new(4, &small(algorithm).timeout(timeout));
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
            Ok(()) if [Algorithm::OneShot, Algorithm::Ll].contains(&algorithm) => {}
            other => panic!("{algorithm}: {other:?}"),
        }
    }
}

/// Two calls before one synchronisation: that ranks differ in the first does not hide who is missing in the second.
#[test]
fn who_ends_the_communicator_is_told_before_who_differs() {
    for &algorithm in Algorithm::ALL {
        let timeout = Duration::from_millis(600);
        let world = World::new(3, &small(algorithm).timeout(timeout));
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
        // A rank may see a difference that is none, and wait for those who have gone on.
        let timeout = Duration::from_secs(1);
        let options = small(algorithm).waits(false).timeout(timeout);
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

/// Two ranks, for calls that one of them does not make.
fn pair(timeout: Duration, algorithm: Algorithm) -> World {
    World::new(2, &small(algorithm).timeout(timeout))
}

/// Its work is ended where it stands: whoever went on would take up streams of messages in the middle.
#[test]
fn a_stream_that_is_dropped_before_its_calls_are_done_ends_the_communicator() {
    for algorithm in [Algorithm::Ll, Algorithm::OneShot] {
        let timeout = Duration::from_secs(4);
        let world = pair(timeout, algorithm);
        let memory = world.memory(300);
        let [rank, late] = &world.ranks[..] else { panic!("two") };
        let call = |rank: &Communicator, stream: &Stream| {
            rank.all_reduce(stream, &memory, &memory, 300, Dtype::I32, Op::Sum)
        };
        let (first, second) = (world.gpu.stream().unwrap(), world.gpu.stream().unwrap());
        call(rank, &first).unwrap();
        drop(first);
        let ended = call(rank, &second).unwrap_err();
        assert!(matches!(ended, Error::Abandoned), "{algorithm}: {ended}");
        assert!(matches!(call(rank, &second), Err(Error::Ended { .. })), "{algorithm}");
        assert!(matches!(rank.synchronize(&second), Err(Error::Ended { .. })), "{algorithm}");
        if algorithm == Algorithm::OneShot {
            // Nothing of it is taken for a later call: the other one waits in vain, or had all of that call.
            let stream = world.gpu.stream().unwrap();
            call(late, &stream).unwrap();
            call(late, &stream).unwrap();
            let silent = late.synchronize(&stream).unwrap_err();
            assert!(matches!(silent, Error::Silent { rank: 0, .. }), "{silent}");
        }
    }
}

/// Without a synchronisation: each call looks, and the first that knows says why.
#[test]
fn calls_after_a_failure_say_so() {
    let world = pair(Duration::from_millis(200), Algorithm::OneShot);
    let (stream, memory, rank) = (world.gpu.stream().unwrap(), world.memory(100), &world.ranks[0]);
    let call = || rank.all_reduce(&stream, &memory, &memory, 100, Dtype::F32, Op::Sum);
    call().unwrap();
    let since = Instant::now();
    let why = loop {
        match call() {
            Err(why) => break why,
            Ok(()) => assert!(since.elapsed() < PATIENT, "calls go on and on"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(matches!(why, Error::Silent { rank: 1, call: 0, .. }), "{why}");
    for _ in 0..100 {
        assert!(matches!(call(), Err(Error::Ended { .. })));
    }
    assert!(matches!(rank.synchronize(&stream), Err(Error::Ended { .. })));
}

/// What is queued behind a failure does nothing, and is not waited for; others may ask meanwhile.
#[test]
fn a_failure_is_told_before_what_is_queued_behind_it_is_done() {
    let timeout = Duration::from_secs(2);
    let world = pair(timeout, Algorithm::TwoShot);
    let (stream, memory, rank) = (world.gpu.stream().unwrap(), world.memory(100), &world.ranks[0]);
    let since = Instant::now();
    for _ in 0..10_000 {
        rank.all_reduce(&stream, &memory, &memory, 100, Dtype::F32, Op::Sum).unwrap();
    }
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| (rank.synchronize(&stream), stream.query().unwrap()));
        std::thread::sleep(timeout / 20);
        let refused = rank.synchronize(&world.gpu.stream().unwrap()).unwrap_err();
        assert!(matches!(refused, Error::OtherStream), "{refused}");
        assert!(since.elapsed() < timeout, "it had to wait: {:?}", since.elapsed());
        let (why, idle) = waits.join().unwrap();
        assert!(matches!(why, Err(Error::Silent { rank: 1, call: 0, .. })), "{why:?}");
        assert!(!idle, "all that was queued was done after {:?}", since.elapsed());
    });
}

/// A call sees the end before who waits does, and takes note of it: who waits leaves all the same.
#[test]
fn an_end_that_another_thread_has_taken_note_of_ends_waits() {
    let world = pair(Duration::from_secs(2), Algorithm::TwoShot);
    let (stream, memory, rank) = (world.gpu.stream().unwrap(), world.memory(100), &world.ranks[0]);
    let call = || rank.all_reduce(&stream, &memory, &memory, 100, Dtype::F32, Op::Sum);
    for _ in 0..40_000 {
        call().unwrap();
    }
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| (rank.synchronize(&stream), stream.query().unwrap()));
        let since = Instant::now();
        let noted = loop {
            match call() {
                Err(why) => break why,
                Ok(()) => assert!(since.elapsed() < PATIENT, "calls go on and on"),
            }
            std::thread::sleep(Duration::from_micros(100));
        };
        assert!(matches!(noted, Error::Silent { rank: 1, call: 0, .. }), "{noted}");
        let (why, idle) = waits.join().unwrap();
        assert!(matches!(why, Err(Error::Ended { .. })), "{why:?}");
        assert!(!idle, "all that was queued was done");
    });
}

#[test]
fn calls_that_others_queue_meanwhile_are_not_waited_for() {
    let world = World::new(1, &small(Algorithm::Ring));
    let (stream, count) = (world.gpu.stream().unwrap(), 1_000_000);
    let (from, to, rank) = (world.memory(count), world.memory(count), &world.ranks[0]);
    let waited = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A hundred at a time, so that the stream has work whenever it is looked at.
        scope.spawn(|| {
            let (since, mut queued) = (Instant::now(), VecDeque::<Event>::new());
            while !waited.load(Ordering::Relaxed) {
                assert!(since.elapsed() < PATIENT / 3, "who waits waits for these");
                rank.all_reduce(&stream, &from, &to, count, Dtype::F32, Op::Sum).unwrap();
                let event = world.gpu.event().unwrap();
                stream.record(&event).unwrap();
                queued.push_back(event);
                if queued.len() == 100 {
                    queued.pop_front().unwrap().wait(PATIENT).unwrap();
                }
            }
        });
        std::thread::sleep(Duration::from_millis(200));
        rank.synchronize(&stream).unwrap();
        waited.store(true, Ordering::Relaxed);
    });
    rank.synchronize(&stream).unwrap();
}

/// It is none of the communicator's calls that faulted.
#[test]
fn a_fault_of_a_stream_without_calls_ends_nothing() {
    let world = World::new(2, &small(Algorithm::OneShot));
    let broken = world.gpu.stream().unwrap();
    assert!(broken.end());
    for rank in &world.ranks {
        let fault = rank.synchronize(&broken).unwrap_err();
        assert!(matches!(fault, Error::Gpu(GpuError::Fault { .. })), "{fault}");
    }
    world.reduce(Dtype::F32, Op::Sum, 515, Kind::Random, false);
}

/// The host executor has no graphs: that is said, and the communicator goes on.
#[test]
fn a_second_stream_is_refused_until_the_first_is_waited_for() {
    let world = World::new(2, &small(Algorithm::OneShot));
    let (count, other) = (1000, |e| matches!(e, Error::OtherStream));
    let results = world.each(|rank, first| {
        let call = |stream: &Stream| {
            let memory = world.memory(count);
            rank.all_reduce(stream, &memory, &memory, count, Dtype::F32, Op::Sum)
        };
        call(first).unwrap();
        let second = world.gpu.stream().unwrap();
        let refused =
            (other(call(&second).unwrap_err()), other(rank.synchronize(&second).unwrap_err()));
        call(first).unwrap();
        rank.synchronize(first).unwrap();
        call(&second).unwrap();
        // Dropping it waits for its work, as a synchronisation does.
        drop(second);
        call(first).unwrap();
        rank.synchronize(first).unwrap();
        refused
    });
    assert_eq!(results, [(true, true); 2]);
    world.reduce(Dtype::F32, Op::Sum, 515, Kind::Random, false);
}

#[test]
fn recording_without_a_gpu_is_refused() {
    let world = World::new(2, &small(Algorithm::Ll));
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
    assert!(refused(2, ring().channels(0)).contains("channels is 0"));
    assert!(refused(2, ring().chunk_bytes(Some(100))).contains("chunk size is 100"));
    assert!(refused(2, ring().threads(Some(48))).contains("threads"));
    assert!(refused(2, ring().path(Path::TCP)).contains("tcp cannot"));
}
