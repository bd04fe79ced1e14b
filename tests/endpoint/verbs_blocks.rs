//! Messages that several blocks put together.

use std::time::{Duration, Instant};

use crate::test_bed::*;
use bellpush::abi::bench::BLOCKS_STATE_BYTES;
use bellpush::abi::entry::{OpArgs, Scope, Verb};
use bellpush::abi::wire::tag;
use bellpush::transport::{Memory, Options};

fn kernels(bed: &TestBed) -> impl Iterator<Item = (&'static str, &'static str)> {
    EXTRA_SHARED.into_iter().filter(|(name, _)| bed.takes(path(name)))
}

/// A window of so many slots of 128 bytes.
fn slots(n: u64) -> Options {
    Options::default().sq_blocks(64).window_bytes(n * 128).slot_bytes(128)
}

fn fresh_state(bed: &TestBed) -> Memory {
    let state = bed.memory(BLOCKS_STATE_BYTES);
    state.write(0, &[0; BLOCKS_STATE_BYTES]).unwrap();
    state
}

fn call(pair: &Pair, state: &Memory, bytes: u64) -> OpArgs {
    let call = op(pair, Verb::PutBlocks, Scope::Block, bytes);
    OpArgs { compare: state.addr(), scope: 0, ..call }
}

/// Messages of less than a slot, of a slot, of a window and of many, one after the other.
#[test]
fn a_message_of_several_blocks_arrives_whole() {
    let bed = TestBed::fibres();
    for (name, kernel) in kernels(&bed) {
        for (dims, window) in [((1, 32), 8), ((3, 45), 8), ((5, 128), 3), ((2, 64), 1)] {
            for (bytes, flags) in
                [(45, 0), (128, 0), (999, UNSIGNALLED), (20_001, 0), (4100, DEFER_RING)]
            {
                let (count, stride) = (3, 20_032);
                let pair = bed.pair(path(name), count * stride, slots(window));
                let sent = pattern(bytes as u64, count * stride);
                pair.src.write(0, &sent).unwrap();
                let state = fresh_state(&bed);
                let mut call = call(&pair, &state, bytes as u64);
                (call.count, call.flags, call.quiet_after) = (count as u32, flags, 1);
                (call.local_stride, call.remote_stride) = (stride as u64, stride as u64);
                let what =
                    format!("{kernel}, {dims:?}, {window} slots, {bytes} bytes, flags {flags}");
                assert_eq!(bed.launch(kernel, dims, call), vec![OK; dims.0 as usize], "{what}");
                let mut wanted = sent;
                wanted.chunks_mut(stride).for_each(|message| message[bytes..].fill(0));
                assert_same(&read(&pair.dst, 0, count * stride), &wanted, &what);
                assert!(pair.a.failure().is_none(), "{what}");
            }
        }
    }
}

/// All blocks wait for the ticket that they are told of: the message is complete then, whoever posted its end.
#[test]
fn the_ticket_covers_what_all_blocks_posted() {
    let bed = TestBed::threads();
    for (name, kernel) in kernels(&bed) {
        let pair = bed.pair(path(name), 8192, slots(8));
        let sent = pattern(7, 8192);
        pair.src.write(0, &sent).unwrap();
        let state = fresh_state(&bed);
        // With a signal each: the last word is seen behind the last message.
        let mut call = call(&pair, &state, 1500);
        (call.op, call.value, call.signal_offset) = (Verb::PutSignalBlocks as u32, 3, 8184);
        (call.count, call.local_stride, call.remote_stride, call.quiet_after) = (5, 1504, 1504, 1);
        assert_eq!(bed.launch(kernel, (4, 1), call), [OK; 4], "{kernel}");
        for n in 0..5 {
            let at = n * 1504;
            assert_same(
                &read(&pair.dst, at, 1500),
                &sent[at..at + 1500],
                &format!("{kernel}, {n}"),
            );
        }
        assert_eq!(word(&pair.dst, 8184), 15, "{kernel}");
    }
}

/// The signal waits for the block that comes last, though all of the message has arrived.
#[test]
fn the_signal_comes_behind_the_parts_of_all_blocks() {
    for (name, kernel) in EXTRA_SHARED.into_iter().filter(|(name, _)| !name.starts_with("pull")) {
        let (bed, mut engine) = TestBed::manual();
        let pair = bed.pair(path(name), 4096, slots(32));
        let bytes = 20 * if name.ends_with("inband") { 48 } else { 128 };
        let sent = pattern(8, 4096);
        pair.src.write(0, &sent).unwrap();
        let (state, statuses) = (fresh_state(&bed), bed.memory(8));
        statuses.write(0, &[0xff; 8]).unwrap();
        let part = |rank: u32| {
            let mut part = call(&pair, &state, bytes);
            (part.op, part.value) = (Verb::PutSignalBlocks as u32, 1);
            (part.signal_offset, part.scope, part.others) = (4088, rank, 1);
            part.status = statuses.addr() + u64::from(rank) * 4;
            part.ep.tag &= !tag::STRICT;
            part
        };
        let streams = [0, 1].map(|_| bed.gpu.stream().unwrap());
        bed.queue_on(&streams[0], kernel, &part(0));
        let mut steps = 0..;
        let mut step = || engine.step(steps.next().unwrap() * 1000);
        // The last piece's doorbell may be the signal's: what can arrive has after so many steps.
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(300) {
            step();
            assert_eq!(word(&pair.dst, 4088), 0, "{kernel}: half of the blocks are not there");
            std::thread::yield_now();
        }
        bed.queue_on(&streams[1], kernel, &part(1));
        streams.iter().for_each(|stream| stream.synchronize(Duration::from_secs(20)).unwrap());
        for _ in 0..200 {
            step();
        }
        assert_eq!(read(&statuses, 0, 8), [0; 8], "{kernel}");
        assert_eq!(word(&pair.dst, 4088), 1, "{kernel}");
        let n = bytes as usize;
        assert_same(&read(&pair.dst, 0, n), &sent[..n], kernel);
    }
}

/// What is refused is refused to all, and leaves the state for the next message.
#[test]
fn what_is_refused_leaves_the_state_as_it_was() {
    let bed = TestBed::fibres();
    for (name, kernel) in kernels(&bed) {
        let pair = bed.pair(path(name), 4096, slots(8));
        let sent = pattern(9, 4096);
        pair.src.write(0, &sent).unwrap();
        let state = fresh_state(&bed);
        for (bytes, at) in [(0, 0), (4097, 0), (2000, 2097)] {
            let call = OpArgs { remote_offset: at, ..call(&pair, &state, bytes) };
            assert_eq!(
                bed.launch(kernel, (3, 32), call),
                [INVALID; 3],
                "{kernel}, {bytes} at {at}"
            );
        }
        let late = OpArgs {
            op: Verb::PutSignalBlocks as u32,
            signal_offset: 4089,
            ..call(&pair, &state, 2000)
        };
        assert_eq!(bed.launch(kernel, (3, 32), late), [INVALID; 3], "{kernel}");
        assert_eq!(read(&state, 0, BLOCKS_STATE_BYTES), [0; BLOCKS_STATE_BYTES], "{kernel}");
        let call = OpArgs { quiet_after: 1, ..call(&pair, &state, 4096) };
        assert_eq!(bed.launch(kernel, (3, 32), call), [OK; 3], "{kernel}");
        assert_same(&read(&pair.dst, 0, 4096), &sent, kernel);
    }
}

/// An engine that stands still: every block gets the same status, also those that had nothing left to post.
#[test]
fn a_timeout_of_one_block_is_everybodys() {
    for (name, kernel) in EXTRA_SHARED.into_iter().filter(|(name, _)| !name.starts_with("pull")) {
        let (bed, mut engine) = TestBed::manual();
        let options = slots(8).timeout(Duration::from_millis(50));
        let pair = bed.pair(path(name), 8192, options);
        let state = fresh_state(&bed);
        let statuses = bed.launch(kernel, (3, 32), call(&pair, &state, 8000));
        assert_eq!(statuses.len(), 3, "{kernel}");
        assert!(
            statuses.iter().all(|&s| s == statuses[0] && (s == TIMEOUT || s == DEAD)),
            "{kernel}: {statuses:?}"
        );
        for now in 0..200 {
            engine.step(now);
        }
    }
}

/// A block that does not come is waited for so long and no longer.
#[test]
fn a_block_that_does_not_come_is_a_timeout() {
    let bed = TestBed::fibres();
    for (name, kernel) in kernels(&bed) {
        let options = slots(8).timeout(Duration::from_millis(50));
        let pair = bed.pair(path(name), 4096, options);
        pair.src.write(0, &pattern(10, 4096)).unwrap();
        let state = fresh_state(&bed);
        let missing = OpArgs { others: 1, ..call(&pair, &state, 4096) };
        assert_eq!(bed.launch(kernel, (2, 32), missing), [TIMEOUT; 2], "{kernel}");
        assert!(pair.a.failure().is_none(), "{kernel}: the queue pair goes on");
        state.write(0, &[0; BLOCKS_STATE_BYTES]).unwrap();
        let again = OpArgs { quiet_after: 1, ..call(&pair, &state, 4096) };
        assert_eq!(bed.launch(kernel, (2, 32), again), [OK; 2], "{kernel}");
    }
}
