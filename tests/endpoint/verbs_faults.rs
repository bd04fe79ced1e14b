//! Faults end every wait on the device with a status that the host can read.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::test_bed::*;
use bellpush::abi::entry::{OpArgs, Scope, Verb};
use bellpush::abi::wire::Code;
use bellpush::gpu::HostOptions;
use bellpush::nic::Access;
use bellpush::nic::soft::Engine;
use bellpush::transport::{
    Address, Endpoint, Error, FetchAdd, Local, Memory, Options, Path, Remote,
};
use bellpush::wire::{Iova, Rkey};

const REMOTE_ACCESS: u8 = 0x13;

/// Every path that kernels post on, with its kernel, and the shared ones.
const KERNELS: [(&str, &str); 9] = [
    ("push/kernel", "bp_verb_push_kernel"),
    ("push/blueflame", "bp_verb_push_blueflame"),
    ("push/inband", "bp_verb_push_inband_12_4"),
    ("pull/kernel", "bp_verb_pull_kernel"),
    ("pull/blueflame", "bp_verb_pull_blueflame"),
    ("staged/kernel", "bp_verb_push_kernel"),
    ("push/kernel", "bp_verb_shared_push_kernel"),
    ("pull/kernel", "bp_verb_shared_pull_kernel"),
    ("push/inband", "bp_verb_shared_push_inband_12_4"),
];

fn small(timeout_ms: u64) -> Options {
    Options::default()
        .sq_blocks(64)
        .window_bytes(8 * 128)
        .slot_bytes(128)
        .timeout(Duration::from_millis(timeout_ms))
}

fn shared(kernel: &str) -> bool {
    kernel.contains("shared")
}

/// A pair whose `a` addresses the peer's region by `rkey`.
fn pair_by_key(bed: &TestBed, path: Path, bytes: usize, options: &Options, rkey: Rkey) -> Pair {
    let (src, dst) = (bed.memory(bytes), bed.memory(bytes));
    let end = |memory: &Memory| {
        Endpoint::new(&bed.gpu, &bed.nic, path, memory.clone(), options.clone()).unwrap()
    };
    let (mut a, mut b) = (end(&src), end(&dst));
    a.connect(Address { rkey, ..b.address() }).unwrap();
    b.connect(a.address()).unwrap();
    Pair { a, b, src, dst }
}

#[test]
fn a_wrong_key_ends_every_rdma_path_with_its_syndrome() {
    let bed = TestBed::fibres();
    for path in bed.paths().filter(|&p| p != Path::TCP) {
        let Pair { a, b, src: _src, dst } =
            pair_by_key(&bed, path, 4096, &Options::default(), Rkey(0x00ab_cd00));
        a.put(&bed.stream, message(0, 0, 100)).unwrap();
        let ended = a.quiet(&bed.stream).unwrap_err();
        assert!(matches!(ended, Error::Completion { code: Code::CqeError, .. }), "{path}: {ended}");
        assert_eq!(syndrome(a.failure()), Some(REMOTE_ACCESS), "{path}");
        // It stays so, and nothing waits for its timeout.
        let since = Instant::now();
        let _ = a.put(&bed.stream, message(0, 0, 100));
        assert!(a.quiet(&bed.stream).is_err(), "{path}");
        assert!(since.elapsed() < Duration::from_secs(2), "{path}");
        assert_eq!(read(&dst, 0, 100), [0; 100]);
        assert!(b.failure().is_none(), "{path}");
    }
}

/// The peer's region goes while kernels stream into it: every caller ends with a status, soon.
#[test]
fn a_region_that_goes_ends_a_stream_of_puts() {
    for (name, kernel) in KERNELS {
        let bed = TestBed::fibres();
        if !bed.takes(path(name)) {
            continue;
        }
        let target = bed.memory(1 << 16);
        let mr = bed.nic.register(target.dma(), Iova(target.addr()), Access::ALL).unwrap();
        let mut pair = pair_by_key(&bed, path(name), 1 << 16, &small(5000), mr.rkey);
        let address = Address { iova: mr.iova.0, rkey: mr.rkey, ..pair.b.address() };
        let mut op = op(&pair, Verb::Put, Scope::Block, 600);
        (op.ep.remote_iova, op.count) = (address.iova, u32::MAX); // more than there is time for
        let nic = bed.nic.clone();
        let gone = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            nic.deregister(mr).unwrap();
        });
        let callers = if shared(kernel) { 4 } else { 1 };
        let since = Instant::now();
        let statuses = bed.launch(kernel, (callers, 32), op);
        gone.join().unwrap();
        assert_eq!(statuses.len(), callers as usize, "{kernel}");
        // Who has it alone finds the error CQE itself; of those who share it, others come after.
        let finds = |s: &u32| *s == CQE_ERROR || *s == DEAD && shared(kernel);
        assert!(statuses.iter().all(finds), "{kernel}: {statuses:?}");
        assert!(since.elapsed() < Duration::from_secs(4), "{kernel}: {:?}", since.elapsed());
        assert_eq!(syndrome(pair.a.failure()), Some(REMOTE_ACCESS), "{kernel}");
        // What comes after knows it at once: arguments first, then what is complete, then the error.
        for (verb, bytes, value, wanted) in [
            (Verb::Put, 8, 0, DEAD),
            (Verb::PutInline, 8, 0, DEAD),
            (Verb::PutSignal, 8, 1, DEAD),
            (Verb::Get, 8, 0, DEAD),
            (Verb::FetchAdd, 8, 1, DEAD),
            (Verb::CompareSwap, 8, 1, DEAD),
            (Verb::Put, 0, 0, INVALID),
            (Verb::Quiet, 0, 0, CQE_ERROR),
            (Verb::Test, 0, u64::MAX, CQE_ERROR),
            (Verb::Test, 0, 0, OK),
            (Verb::WaitSignal, 0, u64::MAX, CQE_ERROR),
            (Verb::WaitSignal, 0, 0, OK),
        ] {
            (op.op, op.count, op.bytes, op.value) = (verb as u32, 1, bytes, value);
            let statuses = bed.launch(kernel, (callers, 32), op);
            assert!(statuses.iter().all(|&s| s == wanted), "{kernel}, {verb:?}: {statuses:?}");
        }
        assert!(since.elapsed() < Duration::from_secs(5), "{kernel}: {:?}", since.elapsed());
        pair.b = pair.a; // both ends go without waiting for anything
    }
}

/// A `quiet` that would have to ask for a CQE is a wait all the same.
#[test]
fn a_quiet_behind_unsignalled_posts_says_what_every_wait_says() {
    for (name, kernel) in KERNELS {
        let (bed, mut engine) = TestBed::manual();
        let pair = pair_by_key(&bed, path(name), 4096, &Options::default(), Rkey(0x00ab_cd00));
        let launch = |verb: Verb, flags: u32, value: u64| {
            let op = OpArgs { flags, value, ..op(&pair, verb, Scope::Block, 8) };
            bed.launch(kernel, (1, 32), op)[0]
        };
        assert_eq!(launch(Verb::Get, 0, 0), OK, "{kernel}");
        assert_eq!(launch(Verb::Get, UNSIGNALLED, 0), OK, "{kernel}");
        let mut now = 0;
        while launch(Verb::Test, 0, 1) == PENDING {
            assert!(now < 1 << 40, "{kernel}");
            step(&mut engine, &mut now);
        }
        for _ in 0..2 {
            assert_eq!(launch(Verb::Test, 0, 1), CQE_ERROR, "{kernel}");
            assert_eq!(launch(Verb::Quiet, 0, 0), CQE_ERROR, "{kernel}");
        }
    }
}

#[test]
fn a_peer_that_goes_ends_a_wait() {
    let bed = TestBed::fibres();
    for (name, _) in KERNELS.into_iter().filter(|(name, _)| bed.takes(path(name))) {
        let Pair { a, b, src: _src, dst: _dst } = bed.pair(path(name), 4096, small(3000));
        a.put(&bed.stream, message(0, 0, 100)).unwrap();
        a.quiet(&bed.stream).unwrap();
        drop(b);
        a.put(&bed.stream, message(0, 0, 100)).unwrap();
        let ended = a.quiet(&bed.stream).unwrap_err();
        assert!(matches!(ended, Error::Completion { .. }), "{name}: {ended}");
    }
}

/// The engine stands still: what fits is posted, what does not times out and has taken nothing, and
/// when the engine moves again the queue pair works.
#[test]
fn a_full_queue_times_out_and_takes_nothing() {
    for (name, kernel) in KERNELS {
        let (bed, mut engine) = TestBed::manual();
        let pair = bed.pair(path(name), 1 << 16, small(100));
        let sent = pattern(31, 1 << 16);
        pair.src.write(0, &sent).unwrap();
        // One caller, more than fits: the window's 8 slots, or the ring's 64 blocks.
        let room = if name.starts_with("pull") { 64 } else { 8 };
        // BlueFlame sends small messages inline, past the window: take larger ones.
        let bytes: u64 = if name == "push/blueflame" { 360 } else { 48 };
        let fits = if bytes == 360 { 2 } else { room };
        let mut put = op(&pair, Verb::Put, Scope::Block, bytes);
        (put.count, put.local_stride, put.remote_stride) = (fits + 1, 360, 360);
        let since = Instant::now();
        let what = format!("{name}, {kernel}");
        assert_eq!(bed.launch(kernel, (1, 32), put), [TIMEOUT], "{what}");
        let mut quiet = put;
        (quiet.op, quiet.count) = (Verb::Quiet as u32, 1);
        assert_eq!(bed.launch(kernel, (1, 32), quiet), [TIMEOUT], "{what}");
        let took = since.elapsed();
        let bounds = Duration::from_millis(200)..Duration::from_secs(5);
        assert!(bounds.contains(&took), "{what}: {took:?}");
        assert!(pair.a.failure().is_none(), "{what}: nothing was taken, so nothing is lost");

        // The engine moves again, and the very calls that timed out are made again.
        let mut now = 0;
        step(&mut engine, &mut now);
        assert_eq!(bed.launch(kernel, (1, 32), quiet), [OK], "{what}");
        for n in 0..fits as usize {
            assert_eq!(read(&pair.dst, n * 360, bytes as usize), sent[n * 360..][..bytes as usize]);
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    step(&mut engine, &mut now);
                }
            });
            put.quiet_after = 1;
            let statuses =
                std::panic::catch_unwind(AssertUnwindSafe(|| bed.launch(kernel, (1, 32), put)));
            done.store(true, Ordering::Relaxed);
            assert_eq!(statuses.unwrap(), [OK], "{what}");
        });
        let last = fits as usize * 360;
        assert_eq!(read(&pair.dst, last, bytes as usize), sent[last..last + bytes as usize]);
        assert!(pair.a.failure().is_none(), "{what}");
    }
}

/// The same of every verb: a queue without room refuses it and is as it was.
#[test]
fn no_room_takes_nothing_whatever_the_verb() {
    for (name, kernel) in KERNELS {
        let (bed, mut engine) = TestBed::manual();
        let pair = bed.pair(path(name), 4096, small(10));
        let room = if name == "push/inband" { 8 } else { 64 };
        let launch = |verb: Verb, count: u32, value: u64| {
            let mut op = op(&pair, verb, Scope::Block, 8);
            (op.op, op.count, op.value) = (verb as u32, count, value);
            (op.signal_offset, op.remote_offset) = (512, 256);
            bed.launch(kernel, (1, 32), op)[0]
        };
        let what = format!("{name}, {kernel}");
        assert_eq!(launch(Verb::FetchAdd, room, 3), OK, "{what}");
        let posts = [Verb::Put, Verb::PutInline, Verb::PutSignal, Verb::Get, Verb::FetchAdd];
        for verb in posts.into_iter().chain([Verb::CompareSwap]) {
            assert_eq!(launch(verb, 1, 1), TIMEOUT, "{what}, {verb:?}");
        }
        assert_eq!(launch(Verb::Test, 1, room.into()), PENDING, "{what}");
        assert_eq!(launch(Verb::Quiet, 1, 0), TIMEOUT, "{what}");
        assert_eq!(launch(Verb::WaitSignal, 1, 1 << 60), TIMEOUT, "{what}");
        assert!(pair.a.failure().is_none(), "{what}");
        step(&mut engine, &mut 0);
        assert_eq!(launch(Verb::Quiet, 1, 0), OK, "{what}");
        assert_eq!(word(&pair.dst, 256), u64::from(room) * 3, "{what}");
        assert_eq!(word(&pair.dst, 512), 0, "{what}");
    }
}

/// A put_signal of `bytes` bytes on a queue pair of 64 credits, of which all but `room` are in use, and the same again
/// when the engine has moved. Returns whether the first call posted the data.
fn put_signal_into(room: u32, bytes: u64, name: &str, kernel: &str) -> bool {
    let (bed, mut engine) = TestBed::manual();
    let options = small(20).window_bytes(64 * 128);
    let pair = bed.pair(path(name), 4096, options);
    let sent = pattern(33, 4096);
    pair.src.write(0, &sent).unwrap();
    let mut fill = op(&pair, Verb::FetchAdd, Scope::Block, 8);
    (fill.count, fill.remote_offset, fill.local) = (64 - room, 4088, 0);
    let mut put = op(&pair, Verb::PutSignal, Scope::Block, bytes);
    (put.signal_offset, put.value) = (1024, 5);
    let quiet = op(&pair, Verb::Quiet, Scope::Block, 0);
    let what = format!("{name}, {kernel}");
    assert_eq!(bed.launch(kernel, (1, 32), fill), [OK], "{what}");
    assert_eq!(bed.launch(kernel, (1, 32), put), [TIMEOUT], "{what}");
    let mut now = 0;
    step(&mut engine, &mut now);
    let found = read(&pair.dst, 0, bytes as usize);
    let is_posted = found == sent[..bytes as usize];
    assert!(is_posted || found == vec![0; bytes as usize], "{what}: a part was posted");
    assert_eq!(word(&pair.dst, 1024), 0, "{what}");
    assert_eq!(bed.launch(kernel, (1, 32), put), [OK], "{what}");
    step(&mut engine, &mut now);
    assert_eq!(bed.launch(kernel, (1, 32), quiet), [OK], "{what}");
    assert_same(&read(&pair.dst, 0, bytes as usize), &sent[..bytes as usize], &what);
    assert_eq!(word(&pair.dst, 1024), 5, "{what}");
    assert!(pair.a.failure().is_none(), "{what}");
    is_posted
}

/// Data of one WQE or slot and their signal are posted both or neither.
#[test]
fn a_put_signal_of_one_slot_has_its_signal_or_is_not_posted() {
    for (name, kernel) in KERNELS.into_iter().filter(|k| !k.0.ends_with("blueflame")) {
        for bytes in [8, 48] {
            assert!(!put_signal_into(1, bytes, name, kernel), "{name}, {kernel}, {bytes} bytes");
        }
    }
}

/// Room for the data of a longer one and none for the signal: the data are posted, the signal is not, and the same
/// call made again adds it once. So by BlueFlame, which takes one WQE at a time.
#[test]
fn a_longer_put_signal_may_end_between_its_data_and_its_signal() {
    for (name, kernel) in KERNELS {
        let (room, bytes) = match name {
            "push/blueflame" => (2, 48), // within a WQE, of two blocks
            "pull/blueflame" => (1, 48),
            "pull/kernel" => continue, // one WQE takes all
            "push/inband" => (2, 96),
            _ => (2, 256),
        };
        assert!(put_signal_into(room, bytes, name, kernel), "{name}, {kernel}");
    }
}

/// A message of several batches that times out is posted as far as there was room.
#[test]
fn a_long_message_may_end_between_its_batches() {
    for (name, kernel) in KERNELS.into_iter().filter(|k| !k.0.starts_with("pull")) {
        let (bed, mut engine) = TestBed::manual();
        let pair = bed.pair(path(name), 4096, small(20));
        let sent = pattern(34, 4096);
        pair.src.write(0, &sent).unwrap();
        let capacity = if name == "push/inband" { 48 } else { 128 };
        let put = op(&pair, Verb::Put, Scope::Block, 12 * capacity as u64);
        let what = format!("{name}, {kernel}");
        assert_eq!(bed.launch(kernel, (1, 32), put), [TIMEOUT], "{what}");
        step(&mut engine, &mut 0);
        let found = read(&pair.dst, 0, 12 * capacity);
        assert_same(&found[..8 * capacity], &sent[..8 * capacity], &what);
        assert_eq!(found[8 * capacity..], vec![0; 4 * capacity], "{what}");
        assert!(pair.a.failure().is_none(), "{what}");
    }
}

/// Kernels that still wait when their endpoint and its memory go reach nothing that is gone.
#[test]
fn an_endpoint_may_go_before_its_kernels() {
    for (name, _) in &KERNELS[..6] {
        let (bed, _engine) = TestBed::manual();
        let pair = bed.pair(path(name), 1 << 16, small(200));
        for _ in 0..3 {
            pair.a.put(&bed.stream, message(0, 0, 1 << 16)).unwrap();
            pair.a
                .fetch_add(&bed.stream, FetchAdd { word: Remote(0), add: 1, old: Local(0) })
                .unwrap();
        }
        drop(pair);
        bed.stream.synchronize(Duration::from_secs(10)).unwrap();
    }
}

/// What the host posts ends as well when no engine ever looks: with an error, and in time.
#[test]
fn host_posted_paths_end_when_the_engine_stands_still() {
    for name in
        ["push/cpu", "push/stream", "pull/cpu", "pull/stream", "staged/cpu", "staged/stream"]
    {
        let (bed, _engine) = TestBed::manual();
        let pair = bed.pair(path(name), 1 << 16, small(50));
        let begun = Instant::now();
        // More than window and ring hold: some put, or the quiet, has to give up.
        let ended = (0..40).try_for_each(|_| pair.a.put(&bed.stream, message(0, 0, 1 << 16)));
        let ended = ended.and_then(|()| pair.a.quiet(&bed.stream));
        assert!(matches!(ended, Err(Error::Timeout { .. })), "{name}: {ended:?}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{name}: {:?}", begun.elapsed());
    }
}

/// Many callers on a queue pair whose engine stands still. Either nobody took a ticket that it could
/// not fill, and then all works again; or the queue pair is in error, for everybody.
fn full_for_many(
    bed: &TestBed,
    (engine, now): (&mut Engine, &mut u64),
    (name, kernel): (&str, &str),
) -> bool {
    let pair = bed.pair(path(name), 1 << 14, small(100));
    let sent = pattern(32, 1 << 14);
    pair.src.write(0, &sent).unwrap();
    let mut put = op(&pair, Verb::Put, Scope::Thread, 8);
    (put.count, put.local_stride, put.remote_stride) = (2, 8, 8);
    let statuses = bed.launch(kernel, (4, 32), put);
    assert_eq!(statuses.len(), 128);
    // BP_TIMEOUT says that one may go on, BP_DEAD that the queue pair ended.
    let ended = pair.a.failure().is_some();
    assert!(statuses.contains(if ended { &DEAD } else { &TIMEOUT }), "{kernel}: {statuses:?}");
    let known = |s: &u32| matches!(*s, OK | TIMEOUT) || ended && *s == DEAD;
    assert!(statuses.iter().all(known), "{kernel}: {statuses:?}");
    step(engine, now);
    let mut quiet = put;
    (quiet.op, quiet.count) = (Verb::Quiet as u32, 1);
    let after = bed.launch(kernel, (1, 32), quiet);
    match pair.a.failure() {
        None => {
            assert!(after.iter().all(|&s| s == OK), "{kernel}: {after:?}");
            (put.count, put.quiet_after) = (1, 0);
            assert_eq!(bed.launch(kernel, (1, 4), put), [OK; 4], "{kernel}");
            true
        }
        Some(Error::Completion { code, .. }) => {
            assert_eq!(code, Code::Timeout, "{kernel}");
            assert!(after.iter().all(|&s| s == DEAD), "{kernel}: {after:?}");
            assert_eq!(bed.launch(kernel, (1, 2), put), [DEAD; 2], "{kernel}");
            (put.op, put.value) = (Verb::WaitSignal as u32, u64::MAX);
            assert_eq!(bed.launch(kernel, (1, 2), put), [DEAD; 2], "{kernel}");
            false
        }
        Some(other) => panic!("{kernel}: {other}"),
    }
}

#[test]
fn a_full_shared_queue_works_again_or_is_in_error_for_everybody() {
    let shared = KERNELS.iter().filter(|k| shared(k.1));
    for (name, kernel) in shared {
        let (bed, mut engine) = TestBed::manual();
        // Fibres give way in waits only, so the room that one has seen is still there; a GPU's
        // threads may all see the last room at once.
        let (mut now, what) = (1 << 40, (*name, *kernel));
        assert!(full_for_many(&bed, (&mut engine, &mut now), what) || !bed.gpu.is_host());
        for _ in 0..3 {
            let bed = TestBed::new(HostOptions::threads(), bed.nic.clone());
            full_for_many(&bed, (&mut engine, &mut now), what);
        }
    }
}
