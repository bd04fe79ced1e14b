//! Bounds of single calls, counts of tickets, and fences between queue pairs.

use std::time::{Duration, Instant};

use crate::test_bed::*;
use bellpush::abi::entry::{OpArgs, Scope, Verb};
use bellpush::gpu::HostOptions;
use bellpush::transport::Options;

/// 48 bytes are a slot's, or of a WQE for BlueFlame two blocks.
const BYTES: u64 = 48;

fn small(timeout: Duration) -> Options {
    Options::default().sq_blocks(64).window_bytes(8 * 128).slot_bytes(128).timeout(timeout)
}

/// Puts of that many messages at once, whatever their status is, for at most so many nanoseconds each.
fn put(pair: &Pair, scope: Scope, count: u32, within: u64) -> OpArgs {
    let mut call = op(pair, Verb::PutWithin, scope, BYTES);
    (call.count, call.compare, call.local_stride, call.remote_stride) =
        (count, within, BYTES, BYTES);
    call
}

/// How many messages are there.
fn arrived(pair: &Pair, sent: &[u8]) -> usize {
    let found = read(&pair.dst, 0, sent.len());
    let each = BYTES as usize;
    let (found, sent) = (found.chunks_exact(each), sent.chunks_exact(each));
    found.zip(sent).filter(|(found, sent)| found == sent).count()
}

/// Nobody takes anything from a queue: a put that has no room says so at once, whatever the endpoint's timeout is, and
/// posts nothing. So does a wait.
#[test]
fn what_would_wait_returns_at_once() {
    for (name, kernel) in EXTRA_ALONE.into_iter().chain(EXTRA_SHARED) {
        let (bed, mut engine) = TestBed::manual();
        let pair = bed.pair(path(name), 8192, small(Duration::from_secs(20)));
        let sent = pattern(51, 100 * BYTES as usize);
        pair.src.write(0, &sent).unwrap();
        let room = match name {
            "pull/kernel" => 64,
            "push/blueflame" => 32, // the ring: they are inline
            _ => 8,
        };
        let since = Instant::now();
        assert_eq!(bed.launch(kernel, (1, 32), put(&pair, Scope::Block, 100, 0)), [TIMEOUT]);
        let wait = OpArgs { value: room, ..op(&pair, Verb::WaitWithin, Scope::Block, 0) };
        assert_eq!(bed.launch(kernel, (1, 32), wait), [TIMEOUT], "{kernel}");
        assert!(since.elapsed() < Duration::from_secs(5), "{kernel}: {:?}", since.elapsed());
        assert!(pair.a.failure().is_none(), "{kernel}");
        let mut now = 0;
        step(&mut engine, &mut now);
        assert_eq!(arrived(&pair, &sent), room as usize, "{kernel}");
        assert_eq!(bed.launch(kernel, (1, 32), wait), [OK], "{kernel}");
        assert_eq!(bed.launch(kernel, (1, 32), put(&pair, Scope::Block, 2, 0)), [OK], "{kernel}");
    }
}

/// A short bound ends its own wait only, long before the queue pair's.
#[test]
fn a_bound_of_a_call_is_its_own() {
    for (name, kernel) in EXTRA_ALONE.into_iter().chain(EXTRA_SHARED) {
        let (bed, _engine) = TestBed::manual();
        let pair = bed.pair(path(name), 8192, small(Duration::from_secs(20)));
        for within in [30_000_000, 60_000_000] {
            let since = Instant::now();
            let call = put(&pair, Scope::Block, 100, within);
            assert_eq!(bed.launch(kernel, (1, 32), call), [TIMEOUT], "{kernel}");
            let took = since.elapsed();
            let bounds = Duration::from_nanos(within)..Duration::from_secs(10);
            assert!(bounds.contains(&took), "{kernel}: {took:?}");
        }
        assert!(pair.a.failure().is_none(), "{kernel}");
    }
}

/// Many threads ask at once for the last room of a shared queue pair: no more get it than there is, the others are told
/// at once, and nobody's ticket is left without room, which would end the queue pair. (On a GPU the lanes of a warp ask
/// as one, and whoever finds another at the CQ does not learn what has become free.)
#[test]
fn callers_that_do_not_wait_never_take_what_is_not_there() {
    for (name, kernel) in EXTRA_SHARED {
        let (bed, mut engine) = TestBed::manual();
        let bed = TestBed::new(HostOptions::threads(), bed.nic.clone());
        let pair = bed.pair(path(name), 8192, small(Duration::from_secs(20)));
        let sent = pattern(52, 128 * BYTES as usize);
        pair.src.write(0, &sent).unwrap();
        let room = if name.starts_with("pull") { 64 } else { 8 };
        let mut now = 0;
        for round in 0..20 {
            pair.dst.write(0, &vec![0; 128 * BYTES as usize]).unwrap();
            let within = if round % 2 == 0 { 0 } else { 1000 };
            let since = Instant::now();
            let statuses = bed.launch(kernel, (4, 32), put(&pair, Scope::Thread, 1, within));
            let what = format!("{kernel}, {within} ns: {statuses:?}");
            assert!(since.elapsed() < Duration::from_secs(10), "{what}");
            let ok = statuses.iter().filter(|&&s| s == OK).count();
            assert!(statuses.iter().all(|s| [OK, TIMEOUT].contains(s)), "{what}");
            assert!((1..=room).contains(&ok), "{what}");
            assert!(pair.a.failure().is_none(), "{what}");
            step(&mut engine, &mut now);
            assert_eq!(arrived(&pair, &sent), ok, "{what}");
        }
    }
}

/// Counts of tickets that were taken, and of those that are complete.
#[test]
fn tickets_are_counted() {
    for (name, kernel) in EXTRA_ALONE.into_iter().chain(EXTRA_SHARED) {
        let (bed, mut engine) = TestBed::manual();
        let pair = bed.pair(path(name), 8192, small(Duration::from_secs(20)));
        let counts = bed.memory(16);
        let count = || {
            let mut call = op(&pair, Verb::CountTickets, Scope::Block, 0);
            call.local = counts.addr();
            assert_eq!(bed.launch(kernel, (1, 32), call), [OK], "{kernel}");
            (word(&counts, 0), word(&counts, 8))
        };
        let each = if name == "push/blueflame" { 2 } else { 1 }; // blocks
        let mut now = 0;
        assert_eq!(count(), (0, 0), "{kernel}");
        for round in 0..20 {
            let (before, after) = (round * 5 * each, (round + 1) * 5 * each);
            assert_eq!(bed.launch(kernel, (1, 32), put(&pair, Scope::Block, 5, 0)), [OK]);
            assert_eq!(count(), (after, before), "{kernel}, round {round}");
            step(&mut engine, &mut now);
            assert_eq!(count(), (after, after), "{kernel}, round {round}");
        }
    }
}

/// After a fence what was posted on both endpoints is at their peers, and a fence that comes too early does not say so.
#[test]
fn a_fence_waits_for_every_endpoint() {
    for (name, kernel) in EXTRA_ALONE.into_iter().chain(EXTRA_SHARED) {
        let (bed, mut engine) = TestBed::manual();
        let pairs = [(); 2].map(|()| bed.pair(path(name), 4096, small(Duration::from_millis(20))));
        let sent = pattern(53, 4096);
        let other = bed.memory(4096);
        other
            .write(0, bytemuck::bytes_of(&op(&pairs[1], Verb::Fence, Scope::Block, 0).ep))
            .unwrap();
        let mut call = op(&pairs[0], Verb::Fence, Scope::Block, 0);
        call.local = other.addr();
        let fence = || bed.launch(kernel, (1, 32), call);
        assert_eq!(fence(), [OK], "{kernel}: nothing was posted");
        let mut now = 0;
        for pair in &pairs {
            pair.src.write(0, &sent).unwrap();
            // Its doorbell is the fence's to ring.
            let flags = DEFER_RING;
            let call = OpArgs { flags, ..put(pair, Scope::Block, 1, 0) };
            assert_eq!(bed.launch(kernel, (1, 32), call), [OK], "{kernel}");
            assert_eq!(fence(), [TIMEOUT], "{kernel}");
            step(&mut engine, &mut now);
            assert_eq!(read(&pair.dst, 0, BYTES as usize), sent[..BYTES as usize], "{kernel}");
            assert_eq!(fence(), [OK], "{kernel}");
        }
    }
}

/// A source may be written again at once after a push, and after a pull's completion.
#[test]
fn a_source_is_waited_for_where_the_nic_reads_it() {
    for (name, kernel) in EXTRA_ALONE.into_iter().chain(EXTRA_SHARED) {
        let (bed, mut engine) = TestBed::manual();
        let pair = bed.pair(path(name), 4096, small(Duration::from_millis(20)));
        let sent = pattern(54, BYTES as usize);
        pair.src.write(0, &sent).unwrap();
        assert_eq!(bed.launch(kernel, (1, 32), put(&pair, Scope::Block, 1, 0)), [OK], "{kernel}");
        let wait = OpArgs { value: 1, ..op(&pair, Verb::WaitLocal, Scope::Block, 0) };
        let pulls = name.starts_with("pull");
        assert_eq!(
            bed.launch(kernel, (1, 32), wait),
            [if pulls { TIMEOUT } else { OK }],
            "{kernel}"
        );
        if pulls {
            step(&mut engine, &mut 0);
            assert_eq!(bed.launch(kernel, (1, 32), wait), [OK], "{kernel}");
        }
        pair.src.write(0, &[0xee; BYTES as usize]).unwrap();
        step(&mut engine, &mut (1 << 30));
        assert_eq!(read(&pair.dst, 0, BYTES as usize), sent, "{kernel}");
    }
}
