//! Device verbs called by many on one queue pair: threads, warps and blocks.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::test_bed::*;
use bellpush::abi::entry::{OpArgs, Scope, Verb};
use bellpush::abi::wire::tag;
use bellpush::gpu::HostOptions;
use bellpush::nic::Order;
use bellpush::transport::{Kick, Options, Path, Reach};

/// Paths whose kernels are built for sharing.
const SHARED: [(&str, &str); 3] = [
    ("push/kernel", "bp_verb_shared_push_kernel"),
    ("pull/kernel", "bp_verb_shared_pull_kernel"),
    ("push/inband", "bp_verb_shared_push_inband_12_4"),
];
const SCOPES: [Scope; 3] = [Scope::Thread, Scope::Warp, Scope::Block];

fn callers(scope: Scope, (grid, block): (u32, u32)) -> usize {
    (match scope {
        Scope::Thread => grid * block,
        Scope::Warp => grid * block / 32,
        Scope::Block => grid,
    }) as usize
}

/// Those that the NIC can take.
fn shared(bed: &TestBed) -> impl Iterator<Item = (&'static str, &'static str)> {
    SHARED.into_iter().filter(|(name, _)| bed.takes(path(name)))
}

/// Few of everything, so that callers wait for room all the time.
fn narrow() -> Options {
    Options::default().sq_blocks(64).window_bytes(8 * 128).slot_bytes(128)
}

/// Every caller puts `count` messages to places of their own; each arrives once.
fn everything_arrives(bed: &TestBed, dims: (u32, u32), count: u32, options: &Options) {
    for (path_name, kernel) in shared(bed) {
        for scope in SCOPES {
            for (bytes, stride) in [(8u64, 8usize), (45, 48), (301, 304)] {
                let callers = callers(scope, dims);
                let all = callers * count as usize * stride;
                let pair = bed.pair(path(path_name), all, options.clone());
                let sent = pattern(bytes, all);
                pair.src.write(0, &sent).unwrap();
                let mut op = op(&pair, Verb::Put, scope, bytes);
                (op.count, op.quiet_after) = (count, 1);
                (op.local_stride, op.remote_stride) = (stride as u64, stride as u64);
                let what = format!("{path_name}, {scope:?}, {bytes} bytes");
                assert_eq!(bed.launch(kernel, dims, op), vec![OK; callers], "{what}");
                let mut wanted = sent;
                wanted.chunks_mut(stride).for_each(|chunk| chunk[bytes as usize..].fill(0));
                assert_same(&read(&pair.dst, 0, all), &wanted, &what);
                assert!(pair.a.failure().is_none());
                let used = pair.a.max_credits_in_use().unwrap();
                assert!(path_name.starts_with("pull") || used <= 8, "{what}: {used} credits");
            }
        }
    }
}

#[test]
fn callers_of_every_scope_share_a_queue_pair() {
    everything_arrives(&TestBed::fibres(), (4, 32), 7, &narrow());
}

#[test]
fn blocks_of_several_threads_of_the_executor_share_a_queue_pair() {
    let options = HostOptions { workers: 2, ..HostOptions::default() };
    everything_arrives(&TestBed::new(options, running_nic()), (2, 48), 5, &narrow());
}

#[test]
fn lanes_that_are_threads_share_a_queue_pair() {
    everything_arrives(&TestBed::threads(), (2, 32), 3, &narrow());
}

/// An atomic is carried out exactly once: the old values are all different, and none is missing.
fn sums_are_exact(bed: &TestBed, dims: (u32, u32), count: u32) {
    for (path_name, kernel) in shared(bed) {
        for scope in SCOPES {
            let calls = callers(scope, dims) * count as usize;
            let pair = bed.pair(path(path_name), calls * 8, narrow());
            let mut op = op(&pair, Verb::FetchAdd, scope, 8);
            (op.count, op.value, op.local_stride, op.quiet_after) = (count, 3, 8, 1);
            let statuses = bed.launch(kernel, dims, op);
            assert!(statuses.iter().all(|&s| s == OK), "{path_name}, {scope:?}: {statuses:?}");
            assert_eq!(word(&pair.dst, 0), 3 * calls as u64, "{path_name}, {scope:?}");
            let mut old: Vec<u64> = (0..calls).map(|n| word(&pair.src, n * 8)).collect();
            old.sort_unstable();
            let wanted: Vec<u64> = (0..calls as u64).map(|n| n * 3).collect();
            assert_eq!(old, wanted, "{path_name}, {scope:?}");
        }
    }
}

#[test]
fn atomics_happen_exactly_once() {
    sums_are_exact(&TestBed::fibres(), (4, 32), 5);
    sums_are_exact(&TestBed::threads(), (2, 32), 3);
}

/// Every caller's message and signal; whoever counts them all finds them all there.
#[test]
fn put_signal_from_all_lanes() {
    let bed = TestBed::fibres();
    for (path_name, kernel) in shared(&bed) {
        for scope in SCOPES {
            let (dims, count) = ((4, 32), 4);
            let calls = callers(scope, dims) * count;
            let pair = bed.pair(path(path_name), calls * 304 + 8, narrow());
            let sent = pattern(21, calls * 304);
            pair.src.write(0, &sent).unwrap();
            let mut op = op(&pair, Verb::PutSignal, scope, 304);
            (op.count, op.local_stride, op.remote_stride) = (count as u32, 304, 304);
            (op.signal_offset, op.value) = (calls as u64 * 304, 2);
            let statuses = bed.launch(kernel, dims, op);
            assert!(statuses.iter().all(|&s| s == OK), "{path_name}, {scope:?}: {statuses:?}");
            // No quiet: the signal alone says that the data are there.
            let signal = op_at(&pair, calls * 304, 2 * calls as u64);
            assert_eq!(bed.launch(kernel, (1, 1), signal), [OK], "{path_name}, {scope:?}");
            let what = format!("{path_name}, {scope:?}");
            assert_same(&read(&pair.dst, 0, calls * 304), &sent, &what);
        }
    }
}

/// Waits on this side for a word of the peer's region, which lies in the same process.
fn op_at(pair: &Pair, offset: usize, value: u64) -> OpArgs {
    let mut op = op(pair, Verb::WaitSignal, Scope::Thread, 8);
    op.local = pair.dst.addr() + offset as u64;
    op.value = value;
    op
}

#[test]
fn a_signal_that_does_not_come_times_out() {
    let bed = TestBed::fibres();
    let options = narrow().timeout(Duration::from_millis(50));
    let pair = bed.pair(path("push/kernel"), 64, options);
    set_word(&pair.dst, 8, 6);
    for (value, status) in [(6, OK), (5, OK), (7, TIMEOUT)] {
        for scope in SCOPES {
            let mut op = op_at(&pair, 8, value);
            op.scope = scope as u32;
            let statuses = bed.launch("bp_verb_shared_push_kernel", (1, 32), op);
            assert!(statuses.iter().all(|&s| s == status), "{value}: {statuses:?}");
        }
    }
    assert!(pair.a.failure().is_none(), "a wait that ends takes nothing with it");
}

/// Deferred and unsignalled posts, in every combination: they arrive with whatever comes after.
#[test]
fn deferred_and_unsignalled_posts_arrive_with_the_quiet() {
    let bed = TestBed::fibres();
    for flags in [DEFER_RING, UNSIGNALLED, DEFER_RING | UNSIGNALLED] {
        for (path_name, kernel) in shared(&bed) {
            for scope in SCOPES {
                let (dims, count) = ((3, 32), 9);
                let calls = callers(scope, dims) * count;
                let pair = bed.pair(path(path_name), calls * 16, narrow());
                let sent = pattern(22, calls * 16);
                pair.src.write(0, &sent).unwrap();
                let mut op = op(&pair, Verb::Put, scope, 16);
                (op.count, op.local_stride, op.remote_stride) = (count as u32, 16, 16);
                (op.flags, op.quiet_after) = (flags, 1);
                let statuses = bed.launch(kernel, dims, op);
                let what = format!("{path_name}, {scope:?}, flags {flags}");
                assert!(statuses.iter().all(|&s| s == OK), "{what}: {statuses:?}");
                assert_same(&read(&pair.dst, 0, calls * 16), &sent, &what);
            }
        }
    }
}

/// Callers that put off their doorbells and leave: whoever waits for room behind them rings, also
/// when it took its ticket while there was room, and the room was gone by then.
#[test]
fn callers_that_defer_do_not_stop_those_that_wait() {
    for (bed, rounds) in [(TestBed::fibres(), 5), (TestBed::threads(), 150)] {
        let options = narrow().timeout(Duration::from_secs(2));
        let pair = bed.pair(path("push/kernel"), 64 * 16, options);
        for round in 0..rounds {
            let sent = pattern(round, 64 * 16);
            pair.src.write(0, &sent).unwrap();
            let mut op = op(&pair, Verb::Put, Scope::Thread, 16);
            (op.local_stride, op.remote_stride, op.flags) = (16, 16, DEFER_RING);
            assert_eq!(bed.launch("bp_verb_shared_push_kernel", (4, 16), op), [OK; 64]);
            let mut quiet = op;
            quiet.op = Verb::Quiet as u32;
            assert_eq!(bed.launch("bp_verb_shared_push_kernel", (1, 1), quiet), [OK]);
            assert_same(&read(&pair.dst, 0, 64 * 16), &sent, "deferred");
        }
    }
}

#[test]
fn a_small_send_queue_carries_thousands_of_posts() {
    let bed = TestBed::fibres();
    for (path_name, kernel) in shared(&bed) {
        let count = 3000;
        let options = Options::default().sq_blocks(64);
        let pair = bed.pair(path(path_name), 2 * count * 8, options);
        let sent = pattern(24, 2 * count * 8);
        pair.src.write(0, &sent).unwrap();
        let mut op = op(&pair, Verb::Put, Scope::Block, 8);
        (op.count, op.local_stride, op.remote_stride) = (count as u32, 8, 8);
        op.quiet_after = 1;
        assert_eq!(bed.launch(kernel, (2, 1), op), [OK; 2], "{path_name}");
        assert_same(&read(&pair.dst, 0, 2 * count * 8), &sent, path_name);
    }
}

/// The call as a kernel for BlueFlame accepts it, whatever the endpoint was made for.
fn for_kernel(mut op: OpArgs, kernel: &str) -> OpArgs {
    if kernel.contains("blueflame") {
        op.ep.tag = op.ep.tag & !tag::KERNEL | tag::BLUEFLAME;
    }
    op
}

/// Inline WQEs of one to four basic blocks, over the ring's end, by the one and by many callers.
#[test]
fn inline_puts_of_every_length() {
    let bed = TestBed::fibres();
    let kernels = [
        ("push/kernel", "bp_verb_push_kernel", (1, 32)),
        ("push/blueflame", "bp_verb_push_blueflame", (1, 32)),
        ("push/inband", "bp_verb_push_inband_12_4", (1, 32)),
        ("pull/kernel", "bp_verb_pull_kernel", (1, 1)),
        ("push/kernel", "bp_verb_shared_push_kernel", (3, 32)),
        // As for silicon; the software NIC takes what comes to the buffer for a doorbell.
        ("push/kernel", "bp_verb_push_kernel_strict", (1, 32)),
        ("push/kernel", "bp_verb_push_blueflame_strict", (1, 32)),
        ("pull/kernel", "bp_verb_pull_blueflame_strict", (1, 1)),
    ];
    for (path_name, kernel, dims) in kernels {
        if !bed.takes(path(path_name)) {
            continue;
        }
        let pair = bed.pair(path(path_name), 40 << 10, narrow());
        let sent = pattern(25, 40 << 10);
        pair.src.write(0, &sent).unwrap();
        let (callers, mut wanted) = (dims.0 as usize, vec![0; 40 << 10]);
        for bytes in [1, 12, 28, 29, 44, 45, 92, 93, 220] {
            let mut op = for_kernel(op(&pair, Verb::PutInline, Scope::Block, bytes), kernel);
            op.local += 1;
            (op.count, op.local_stride, op.remote_stride) = (21, 223, 223);
            (op.remote_offset, op.quiet_after) = (3, 1);
            assert_eq!(bed.launch(kernel, dims, op), vec![OK; callers], "{kernel}, {bytes}");
            for at in (0..callers * 21).map(|n| n * 223) {
                let n = bytes as usize;
                wanted[at + 3..at + 3 + n].copy_from_slice(&sent[at + 1..at + 1 + n]);
            }
            assert_same(&read(&pair.dst, 0, 40 << 10), &wanted, &format!("{kernel}, {bytes}"));
        }
        for bytes in [0, 221] {
            let op = for_kernel(op(&pair, Verb::PutInline, Scope::Block, bytes), kernel);
            assert_eq!(bed.launch(kernel, dims, op), vec![INVALID; callers]);
        }
    }
}

#[test]
fn test_says_pending_until_it_is_complete() {
    for (name, kernel) in [("push/kernel", "bp_verb_push_kernel"), SHARED[0], SHARED[2]] {
        let (bed, mut engine) = TestBed::manual();
        let pair = bed.pair(path(name), 64, Options::default());
        let mut put = op(&pair, Verb::Put, Scope::Block, 8);
        put.count = 3;
        assert_eq!(bed.launch(kernel, (1, 32), put), [OK]);
        let test = |end| {
            let mut op = op(&pair, Verb::Test, Scope::Block, 0);
            op.value = end;
            bed.launch(kernel, (1, 32), op)
        };
        assert_eq!((test(0), test(1), test(3)), (vec![OK], vec![PENDING], vec![PENDING]), "{name}");
        step(&mut engine, &mut 0);
        assert_eq!((test(3), test(1), test(4)), (vec![OK], vec![OK], vec![PENDING]), "{name}");
    }
}

/// A WQE of several blocks, whose CQE a wait for an earlier one took, is complete for the next wait.
#[test]
fn a_wait_for_an_earlier_put_leaves_later_ones_complete() {
    for (name, kernel) in [("push/kernel", "bp_verb_push_kernel"), SHARED[0], SHARED[1]] {
        let bed = TestBed::fibres();
        let options = Options::default().timeout(Duration::from_millis(500));
        let pair = bed.pair(path(name), 128, options);
        pair.src.write(0, &pattern(7, 128)).unwrap();
        let launch = |verb, bytes, value, flags| {
            let op = OpArgs { value, flags, ..op(&pair, verb, Scope::Block, bytes) };
            bed.launch(kernel, (1, 32), op)
        };
        assert_eq!(launch(Verb::Put, 64, 0, UNSIGNALLED), [OK], "{name}");
        assert_eq!(launch(Verb::PutInline, 100, 0, 0), [OK], "{name}"); // three blocks
        let since = std::time::Instant::now();
        while launch(Verb::Test, 0, 1, 0) == [PENDING] {
            assert!(since.elapsed() < Duration::from_secs(20), "{name}");
        }
        assert_eq!(launch(Verb::Test, 0, 4, 0), [OK], "{name}");
        assert_eq!(launch(Verb::Quiet, 0, 0, 0), [OK], "{name}");
        assert_same(&read(&pair.dst, 0, 100), &pattern(7, 128)[..100], name);
    }
}

#[test]
fn arguments_out_of_range_are_refused_and_nothing_is_posted() {
    let bed = TestBed::fibres();
    let kernels = [
        ("push/kernel", "bp_verb_push_kernel"),
        ("pull/kernel", "bp_verb_pull_kernel"),
        ("push/blueflame", "bp_verb_push_blueflame"),
        ("push/inband", "bp_verb_push_inband_12_4"),
        SHARED[0],
        SHARED[1],
        SHARED[2],
    ];
    for (name, kernel) in kernels.into_iter().filter(|(name, _)| bed.takes(path(name))) {
        let pair = bed.pair(path(name), 4096, Options::default());
        let bad = |verb, change: &dyn Fn(&mut OpArgs)| {
            let mut op = op(&pair, verb, Scope::Block, 8);
            change(&mut op);
            assert_eq!(bed.launch(kernel, (1, 32), op), [INVALID], "{kernel}: {verb:?}");
        };
        bad(Verb::Put, &|op| op.bytes = 0);
        bad(Verb::PutInline, &|op| op.bytes = 0);
        bad(Verb::PutInline, &|op| op.bytes = 221);
        bad(Verb::PutInline, &|op| op.bytes = (1 << 32) + 8); // whose low half would do
        bad(Verb::Put, &|op| op.remote_offset = 4089);
        bad(Verb::Put, &|op| op.remote_offset = u64::MAX);
        bad(Verb::PutSignal, &|op| op.signal_offset = 4090);
        bad(Verb::Get, &|op| op.local += 4089);
        bad(Verb::Get, &|op| op.local -= 1);
        bad(Verb::Get, &|op| op.bytes = u64::MAX);
        bad(Verb::FetchAdd, &|op| op.local += 4096);
        bad(Verb::CompareSwap, &|op| op.remote_offset = 4096);
        if name.starts_with("pull") {
            bad(Verb::Put, &|op| op.local += 4089);
        }
        assert_eq!(pair.a.max_credits_in_use().unwrap(), 0, "{kernel}: nothing was posted");
        pair.a.put(&bed.stream, message(0, 0, 8)).unwrap();
        pair.a.quiet(&bed.stream).unwrap();
    }
}

/// Nothing is posted, whatever a kernel calls that was compiled for another path, line format or order of stores than
/// the endpoint's. (tests/device/tags.cpp has the other fences, and the verbs that no kernel of ours calls by itself.)
#[test]
fn a_kernel_of_another_path_is_refused() {
    let bed = TestBed::fibres();
    let order = bed.nic.order();
    let kernel_of = |path: Path, line| path.kernel_name(line, order, Reach::System);
    let built: BTreeSet<_> =
        Path::ALL.iter().flat_map(|&p| LINES.map(|l| kernel_of(p, l))).flatten().collect();
    assert_eq!(built.len(), if order == Order::Later { 7 } else { 4 });
    let verbs = [
        Verb::Put,
        Verb::PutInline,
        Verb::PutSignal,
        Verb::Get,
        Verb::FetchAdd,
        Verb::CompareSwap,
        Verb::Quiet,
        Verb::Test,
    ];
    for path in bed.paths().filter(|p| p.posted_by_gpu()) {
        let lines = if path.kick() == Some(Kick::Inband) { &LINES[..] } else { &LINES[..1] };
        for &line in lines {
            let pair = bed.pair(path, 4096, Options::default().line(line));
            let own = kernel_of(path, line).unwrap();
            pair.src.write(0, &[7; 4096]).unwrap();
            for kernel in built.iter().filter(|&&kernel| kernel != own) {
                for verb in verbs {
                    let op = op(&pair, verb, Scope::Block, 8);
                    let ended = bed.launch(&format!("bp_verb_{kernel}"), (1, 32), op);
                    assert_eq!(ended, [INVALID], "{verb:?} by {kernel} on {path}, {line:?}");
                }
            }
            let mut put = op(&pair, Verb::Put, Scope::Block, 8);
            put.quiet_after = 1;
            let own = format!("bp_verb_{own}");
            assert_eq!(bed.launch(&own, (1, 32), put), [OK], "{path}, {line:?}");
            assert_eq!(read(&pair.dst, 0, 16), [[7; 8], [0; 8]].concat(), "{path}, {line:?}");
            assert!(pair.a.failure().is_none());
            // A NIC that reads the doorbell record when the doorbell comes.
            put.ep.tag |= tag::STRICT;
            if order == Order::Later {
                assert_eq!(bed.launch(&own, (1, 32), put), [INVALID], "{path}, {line:?}");
            }
        }
    }
}
