//! Verbs of many messages: of a warp's lanes, each with its own, and batches.

use std::time::Duration;

use crate::test_bed::*;
use bellpush::abi::entry::{OpArgs, Scope, Verb};
use bellpush::transport::Options;

const ALL_LANES: u64 = 0xffff_ffff;
const FLAGS: [u32; 4] = [0, DEFER_RING, UNSIGNALLED, DEFER_RING | UNSIGNALLED];

/// Kernels of a caller that has its queue pair alone.
const ALONE: [(&str, &str); 6] = [
    ("push/kernel", "bp_verb_push_kernel"),
    ("push/blueflame", "bp_verb_push_blueflame"),
    ("push/inband", "bp_verb_push_inband_12_4"),
    ("pull/kernel", "bp_verb_pull_kernel"),
    ("pull/blueflame", "bp_verb_pull_blueflame"),
    ("staged/kernel", "bp_verb_push_kernel"),
];
/// Those of many callers.
const SHARED: [(&str, &str); 3] = [
    ("push/kernel", "bp_verb_shared_push_kernel"),
    ("pull/kernel", "bp_verb_shared_pull_kernel"),
    ("push/inband", "bp_verb_shared_push_inband_12_4"),
];

fn kernels(bed: &TestBed) -> impl Iterator<Item = (&'static str, &'static str)> {
    ALONE.into_iter().chain(SHARED).filter(|(name, _)| bed.takes(path(name)))
}

fn shared(bed: &TestBed) -> impl Iterator<Item = (&'static str, &'static str)> {
    SHARED.into_iter().filter(|(name, _)| bed.takes(path(name)))
}

/// A window of so many slots of 128 bytes, and the smallest send queue.
fn slots(n: u64) -> Options {
    Options::default().sq_blocks(64).window_bytes(n * 128).slot_bytes(128)
}

/// Most bytes of one message of `slots`, by path.
fn most(name: &str) -> u64 {
    match name {
        "push/inband" => 48,
        name if name.starts_with("pull") => 1 << 20,
        _ => 128,
    }
}

fn lanes(pair: &Pair, bytes: u64, stride: u64) -> OpArgs {
    let mut op = op(pair, Verb::PutLanes, Scope::Warp, bytes);
    (op.value, op.local_stride, op.remote_stride, op.quiet_after) = (ALL_LANES, stride, stride, 1);
    op
}

/// Each lane's status is its own, and what is posted is what can be.
#[test]
fn lanes_that_are_refused_leave_the_others() {
    const REGION: usize = 4096;
    let bed = TestBed::fibres();
    for (name, kernel) in kernels(&bed) {
        // From 0 bytes on, past what fits; the last sixteen lie behind the peer's region.
        let pair = bed.pair(path(name), REGION, slots(32));
        let sent = pattern(41, REGION);
        pair.src.write(0, &sent).unwrap();
        for active in [ALL_LANES, 0x3fff_aaaa, 1, 1 << 31, 0x20, 0] {
            pair.dst.write(0, &[0; REGION]).unwrap();
            let call = OpArgs { compare: 12, value: active, ..lanes(&pair, 0, 256) };
            let statuses = bed.launch(kernel, (1, 32), call);
            let mut wanted = vec![0; REGION];
            for (lane, &found) in statuses.iter().enumerate() {
                let (bytes, at) = (12 * lane as u64, 256 * lane);
                let fits = 0 < bytes && bytes <= most(name) && lane < 16;
                let is_active = active >> lane & 1 == 1;
                let status = if is_active && !fits { INVALID } else { OK };
                assert_eq!(found, status, "{kernel}, {active:#x}, lane {lane}");
                if is_active && fits {
                    let range = at..at + bytes as usize;
                    wanted[range.clone()].copy_from_slice(&sent[range]);
                }
            }
            assert_same(&read(&pair.dst, 0, REGION), &wanted, &format!("{kernel}, {active:#x}"));
        }
        assert!(pair.a.failure().is_none(), "{kernel}");
    }
}

/// Lanes that outnumber half the slots take turns; also behind a post of which no CQE tells.
#[test]
fn lanes_that_outnumber_the_slots_take_turns() {
    let bed = TestBed::fibres();
    for window in [1, 3, 8, 32] {
        for (name, kernel) in kernels(&bed) {
            let options = slots(window).timeout(Duration::from_secs(2));
            let pair = bed.pair(path(name), 32 * 5 * 48, options);
            let sent = pattern(42, 32 * 5 * 48);
            pair.src.write(0, &sent).unwrap();
            let what = format!("{kernel}, {window} slots");
            let before = OpArgs { flags: UNSIGNALLED, ..op(&pair, Verb::Put, Scope::Block, 48) };
            assert_eq!(bed.launch(kernel, (1, 32), before), [OK], "{what}");
            for flags in [0, UNSIGNALLED, DEFER_RING] {
                pair.dst.write(0, &vec![0; 32 * 5 * 48]).unwrap();
                let call = OpArgs { flags, count: 5, ..lanes(&pair, 48, 48) };
                assert_eq!(bed.launch(kernel, (1, 32), call), [OK; 32], "{what}, flags {flags}");
                assert_same(&read(&pair.dst, 0, 32 * 5 * 48), &sent, &what);
            }
            assert!(pair.a.failure().is_none(), "{what}");
        }
    }
}

/// An engine that stands still: those lanes get BP_OK whose message was posted.
#[test]
fn a_timeout_is_that_of_the_lanes_whose_turn_did_not_come() {
    for (name, kernel) in ALONE.into_iter().chain(SHARED).filter(|k| !k.0.starts_with("pull")) {
        let (bed, mut engine) = TestBed::manual();
        let options = slots(8).timeout(Duration::from_millis(20));
        let pair = bed.pair(path(name), 4096, options);
        pair.src.write(0, &pattern(45, 4096)).unwrap();
        let call = OpArgs { value: 0xf0f_0ff0, quiet_after: 0, ..lanes(&pair, 48, 48) };
        let statuses = bed.launch(kernel, (1, 32), call);
        step(&mut engine, &mut 0);
        for (lane, &status) in statuses.iter().enumerate() {
            let (active, posted) = (call.value >> lane & 1 == 1, (4..12).contains(&lane));
            assert_eq!(status, if active && !posted { TIMEOUT } else { OK }, "{kernel}, {lane}");
            let wanted =
                if posted { pattern(45, 4096)[lane * 48..][..48].to_vec() } else { vec![0; 48] };
            assert_eq!(read(&pair.dst, lane * 48, 48), wanted, "{kernel}, lane {lane}");
        }
        assert!(pair.a.failure().is_none(), "{kernel}");
    }
}

/// Every lane of every warp puts `count` messages to places of their own; each arrives once.
fn all_lanes_messages_arrive(
    bed: &TestBed,
    dims: (u32, u32),
    count: u32,
    options: &Options,
    flags: &[u32],
) {
    let callers = (dims.0 * dims.1) as usize;
    for (name, kernel) in shared(bed) {
        for &flags in flags {
            for bytes in [8u64, 45] {
                let all = callers * count as usize * 48;
                let pair = bed.pair(path(name), all, options.clone());
                let sent = pattern(bytes, all);
                pair.src.write(0, &sent).unwrap();
                let call = OpArgs { count, flags, ..lanes(&pair, bytes, 48) };
                let what = format!("{kernel}, flags {flags}, {bytes} bytes");
                let statuses = bed.launch(kernel, dims, call);
                assert_eq!(statuses.len(), callers, "{what}");
                let other = statuses.iter().find(|&&s| s != OK);
                assert_eq!(other, None, "{what}");
                let mut wanted = sent;
                wanted.chunks_mut(48).for_each(|chunk| chunk[bytes as usize..].fill(0));
                assert_same(&read(&pair.dst, 0, all), &wanted, &what);
                assert!(pair.a.failure().is_none(), "{what}");
            }
        }
    }
}

#[test]
fn lanes_of_several_hundred_warps_share_a_queue_pair() {
    // Thousands of fibres take turns: a round of them is long, so queue and patience are too.
    let options = slots(256).sq_blocks(512).timeout(Duration::from_secs(25));
    let flags = [0, DEFER_RING | UNSIGNALLED];
    all_lanes_messages_arrive(&TestBed::fibres(), (100, 96), 1, &options, &flags);
}

#[test]
fn lanes_of_a_partial_warp_share_a_queue_pair() {
    all_lanes_messages_arrive(&TestBed::fibres(), (3, 41), 7, &slots(32), &FLAGS);
}

#[test]
fn lanes_that_are_threads_share_a_queue_pair() {
    all_lanes_messages_arrive(&TestBed::threads(), (1, 64), 2, &slots(32), &FLAGS);
}

/// The last message asks for a CQE, which completes all of them: no more has to be posted for a wait.
#[test]
fn the_last_message_completes_all() {
    for (name, kernel) in ALONE.into_iter().chain(SHARED) {
        for verb in [Verb::PutLanes, Verb::PutBatch, Verb::PutSignal] {
            let (bed, mut engine) = TestBed::manual();
            let pair = bed.pair(path(name), 4096, slots(32));
            let n = if matches!(verb, Verb::PutSignal) { 2 } else { 5 };
            let value = if matches!(verb, Verb::PutLanes) { 0b1_0101_1001 } else { n };
            let mut call = OpArgs { value, quiet_after: 0, ..lanes(&pair, 8, 8) };
            (call.op, call.signal_offset) = (verb as u32, 2048);
            let what = format!("{kernel}, {verb:?}");
            let statuses = bed.launch(kernel, (1, 32), call);
            assert!(statuses.iter().all(|&s| s == OK), "{what}: {statuses:?}");
            let test = |end| {
                let op = OpArgs { value: end, ..op(&pair, Verb::Test, Scope::Block, 0) };
                bed.launch(kernel, (1, 32), op)[0]
            };
            assert_eq!(test(n), PENDING, "{what}");
            step(&mut engine, &mut 0);
            assert_eq!((test(n), test(n + 1)), (OK, PENDING), "{what}");
        }
    }
}

/// Batches of any size, also larger than ring and window, from every scope.
#[test]
fn batches_arrive_whatever_their_size() {
    let bed = TestBed::fibres();
    for (name, kernel) in kernels(&bed) {
        let is_shared = kernel.contains("shared");
        let scopes = [Scope::Thread, Scope::Warp, Scope::Block];
        // Blocks of 45 threads: their last four are not all there.
        for (scope, dims) in scopes.into_iter().zip([(1, 5), (2, 32), (2, 45)]) {
            if !is_shared && !matches!(scope, Scope::Block) {
                continue;
            }
            let dims = if is_shared { dims } else { (1, dims.1) };
            let callers = if matches!(scope, Scope::Thread) { 5 } else { dims.0 as usize };
            for (n, flags) in [(1, 0), (7, DEFER_RING), (8, UNSIGNALLED), (40, 0), (201, 3)] {
                for bytes in [8u64, 45] {
                    let all = callers * 2 * n * 48;
                    let pair = bed.pair(path(name), all, slots(16));
                    let sent = pattern(n as u64, all);
                    pair.src.write(0, &sent).unwrap();
                    let mut call = op(&pair, Verb::PutBatch, scope, bytes);
                    (call.value, call.count, call.flags) = (n as u64, 2, flags);
                    (call.local_stride, call.remote_stride, call.quiet_after) = (48, 48, 1);
                    let what = format!("{kernel}, {scope:?}, {n} of {bytes} bytes, flags {flags}");
                    assert_eq!(bed.launch(kernel, dims, call), vec![OK; callers], "{what}");
                    let mut wanted = sent;
                    wanted.chunks_mut(48).for_each(|chunk| chunk[bytes as usize..].fill(0));
                    assert_same(&read(&pair.dst, 0, all), &wanted, &what);
                    assert!(pair.a.failure().is_none(), "{what}");
                }
            }
        }
    }
}

/// Rows that are written from the last to the first, and rows that are all read from one.
#[test]
fn strides_may_be_negative_or_nothing() {
    let bed = TestBed::fibres();
    for (name, kernel) in kernels(&bed) {
        let pair = bed.pair(path(name), 20 * 16, slots(16));
        let sent = pattern(43, 20 * 16);
        pair.src.write(0, &sent).unwrap();
        let mut call = op(&pair, Verb::PutBatch, Scope::Block, 16);
        (call.value, call.quiet_after) = (20, 1);
        (call.local_stride, call.remote_offset, call.remote_stride) = (16, 19 * 16, -16i64 as u64);
        assert_eq!(bed.launch(kernel, (1, 32), call), [OK], "{kernel}");
        let reversed: Vec<u8> = sent.rchunks(16).flatten().copied().collect();
        assert_same(&read(&pair.dst, 0, 20 * 16), &reversed, kernel);
        (call.local_stride, call.remote_offset, call.remote_stride) = (0, 0, 16);
        assert_eq!(bed.launch(kernel, (1, 32), call), [OK], "{kernel}");
        assert_same(&read(&pair.dst, 0, 20 * 16), &sent[..16].repeat(20), kernel);
    }
}

/// A batch of which one message is refused posts nothing.
#[test]
fn batches_are_posted_whole_or_refused() {
    let bed = TestBed::fibres();
    for (name, kernel) in kernels(&bed) {
        let pair = bed.pair(path(name), 4096, slots(16));
        let bad = |what: &str, change: &dyn Fn(&mut OpArgs)| {
            let mut call = op(&pair, Verb::PutBatch, Scope::Block, 8);
            (call.value, call.local_stride, call.remote_stride) = (5, 8, 8);
            change(&mut call);
            assert_eq!(bed.launch(kernel, (1, 32), call), [INVALID], "{kernel}: {what}");
        };
        bad("no message", &|call| call.value = 0);
        bad("no bytes", &|call| call.bytes = 0);
        bad("too long", &|call| call.bytes = most(name) + 1);
        bad("behind the region", &|call| call.remote_offset = 4096 - 39);
        bad("before the region", &|call| {
            (call.remote_offset, call.remote_stride) = (24, -8i64 as u64);
        });
        bad("round the address space", &|call| call.remote_stride = 1 << 62);
        if name.starts_with("pull") {
            bad("behind our own region", &|call| call.local += 4096 - 39);
        }
        let test = OpArgs { value: 1, ..op(&pair, Verb::Test, Scope::Block, 0) };
        assert_eq!(bed.launch(kernel, (1, 32), test), [PENDING], "{kernel}");
        assert_eq!(pair.a.max_credits_in_use().unwrap(), 0, "{kernel}: nothing was posted");
        // And then the queue pair works.
        let mut call = op(&pair, Verb::PutBatch, Scope::Block, 8);
        (call.value, call.local_stride, call.remote_stride, call.quiet_after) = (512, 8, 8, 1);
        let sent = pattern(44, 4096);
        pair.src.write(0, &sent).unwrap();
        assert_eq!(bed.launch(kernel, (1, 32), call), [OK], "{kernel}");
        assert_same(&read(&pair.dst, 0, 4096), &sent, kernel);
    }
}

/// Messages of a list in the GPU's memory: of any length, from anywhere to anywhere.
#[test]
fn lists_in_memory_arrive_whatever_is_in_them() {
    const DATA: usize = 4096;
    let bed = TestBed::fibres();
    for (name, kernel) in kernels(&bed).filter(|(name, _)| *name != "pull/blueflame") {
        let kernel = &kernel.replace("verb", "extra");
        let block = (Scope::Block, 32);
        let one_caller = [(Scope::Thread, 1), (Scope::Warp, 32), block];
        let scopes = if name == "pull/kernel" { &one_caller } else { &[block][..] };
        for (n, &(scope, threads)) in
            [1, 9, 30, 61].into_iter().flat_map(|n| scopes.iter().map(move |s| (n, s)))
        {
            let pair = bed.pair(path(name), 2 * DATA, slots(16));
            let sent = pattern(46, DATA);
            pair.src.write(0, &sent).unwrap();
            let message = |i: usize| (i * 23 % n * 64, (i * 29 + 5) % 4000, 1 + i * 7 % 48);
            let of = |(to, from, bytes)| [to as u64, pair.src.addr() + from as u64, bytes as u64];
            let list: Vec<[u64; 3]> = (0..n).map(|i| of(message(i))).collect();
            pair.src.write(DATA, bytemuck::cast_slice(&list)).unwrap();
            let mut call = op(&pair, Verb::PutVector, scope, 0);
            (call.value, call.compare) = (n as u64, pair.src.addr() + DATA as u64);
            call.quiet_after = 1;
            let what = format!("{kernel}, {scope:?}, {n}");
            assert_eq!(bed.launch(kernel, (1, threads), call), [OK], "{what}");
            let mut wanted = vec![0; 2 * DATA];
            for (to, from, bytes) in (0..n).map(message) {
                wanted[to..to + bytes].copy_from_slice(&sent[from..from + bytes]);
            }
            assert_same(&read(&pair.dst, 0, 2 * DATA), &wanted, &what);
        }
    }
}

/// A list by one caller, of which each message in turn is refused: nothing is posted, what was written of it is not
/// carried out by what follows, and the next list is.
#[test]
fn lists_are_posted_whole_or_refused() {
    const ROWS: usize = 64; // regions are whole pages
    let (bed, kernel) = (TestBed::fibres(), "bp_extra_pull_kernel");
    for (scope, threads) in [(Scope::Thread, 1), (Scope::Warp, 32), (Scope::Block, 45)] {
        // More than half a ring of 64 takes another way.
        for n in [1, 5, 32, 33, 39] {
            let pair = bed.pair(path("pull/kernel"), 2 * 64 * ROWS, slots(16));
            let sent = pattern(47, 64 * ROWS);
            pair.src.write(0, &sent).unwrap();
            let (at, list_at) = (pair.src.addr(), 64 * ROWS);
            let post = |bad: Option<(usize, [u64; 3])>, quiet: bool, count: usize| {
                let row = |i: usize| [64 * i as u64, at + 64 * i as u64, 48];
                let mut list: Vec<[u64; 3]> = (0..count).map(row).collect();
                if let Some((i, message)) = bad {
                    list[i] = message;
                }
                pair.src.write(list_at, bytemuck::cast_slice(&list)).unwrap();
                let mut call = op(&pair, Verb::PutVector, scope, 0);
                (call.value, call.compare) = (count as u64, at + list_at as u64);
                call.quiet_after = quiet.into();
                bed.launch(kernel, (1, threads), call)
            };
            let end = 2 * 64 * ROWS as u64;
            let refused = [
                [0, at, 0],
                [end - 7, at, 8],
                [0, at + end - 7, 8],
                [0, at - 1, 8],
                [1 << 63, at, 8],
            ];
            for i in 0..n {
                let what = format!("{scope:?}, {i} of {n}");
                assert_eq!(post(Some((i, refused[i % 5])), false, n), [INVALID], "{what}");
            }
            assert_same(&read(&pair.dst, 0, 64 * ROWS), &vec![0; 64 * ROWS], "nothing is there");
            // Shorter than what was refused: none of that comes with it.
            let short = n.div_ceil(2);
            assert_eq!(post(None, true, short), [OK], "{scope:?}, {n}");
            let mut wanted = vec![0; 64 * ROWS];
            for i in 0..short {
                wanted[64 * i..64 * i + 48].copy_from_slice(&sent[64 * i..64 * i + 48]);
            }
            assert_same(&read(&pair.dst, 0, 64 * ROWS), &wanted, &format!("{scope:?}, {n}"));
        }
    }
}
