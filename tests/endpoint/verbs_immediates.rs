//! Writes with immediate: what the peer's host takes, in order, behind their data.

use std::time::{Duration, Instant};

use crate::test_bed::*;
use bellpush::abi::entry::{Scope, Verb};
use bellpush::nic::Order;
use bellpush::transport::{Endpoint, Error, Options, Path};

const KERNELS: [(&str, &str); 8] = [
    ("push/kernel", "bp_extra_push_kernel"),
    ("push/blueflame", "bp_extra_push_blueflame"),
    ("push/inband", "bp_extra_push_inband_12_4"),
    ("pull/kernel", "bp_extra_pull_kernel"),
    ("staged/kernel", "bp_extra_push_kernel"),
    ("push/kernel", "bp_extra_shared_push_kernel"),
    ("pull/kernel", "bp_extra_shared_pull_kernel"),
    ("push/inband", "bp_extra_shared_push_inband_12_4"),
];

fn receiving(n: u32) -> Options {
    Options::default().sq_blocks(64).window_bytes(8 * 128).slot_bytes(128).receives(n)
}

/// The next immediate, which comes soon.
fn next(end: &Endpoint) -> u32 {
    let since = Instant::now();
    loop {
        if let Some(imm) = end.poll_immediate().unwrap() {
            return imm;
        }
        assert!(since.elapsed() < Duration::from_secs(10), "no immediate has come");
        std::thread::yield_now();
    }
}

/// Each comes once, in order, and with it the data: of one slot, of several, and of none.
#[test]
fn immediates_come_in_order_behind_their_data() {
    let bed = TestBed::fibres();
    for (name, kernel) in KERNELS.into_iter().filter(|k| bed.takes(path(k.0))) {
        let pair = bed.pair(path(name), 4096, receiving(4));
        assert_eq!(pair.b.poll_immediate().unwrap(), None, "{kernel}");
        for round in 0..30u32 {
            let bytes = [8u64, 45, 304][round as usize % 3];
            let sent = pattern(u64::from(round) + 1, bytes as usize);
            pair.src.write(0, &sent).unwrap();
            let mut call = op(&pair, Verb::PutImm, Scope::Block, bytes);
            (call.remote_offset, call.value) = (16, u64::from(round * 0x0101_0101 + 1));
            assert_eq!(bed.launch(kernel, (1, 32), call), [OK], "{kernel}");
            assert_eq!(next(&pair.b), call.value as u32, "{kernel}");
            let what = format!("{kernel}, round {round}");
            assert_same(&read(&pair.dst, 16, bytes as usize), &sent, &what);
            // Alone. The peer's immediate says nothing of the source, which is the NIC's until it has completed the put:
            // the kernel waits for that before the next round writes there.
            (call.op, call.value, call.quiet_after) = (Verb::SignalImm as u32, 0xffff_ffff, 1);
            assert_eq!(bed.launch(kernel, (1, 32), call), [OK], "{kernel}");
            assert_eq!(next(&pair.b), 0xffff_ffff, "{kernel}");
            assert_eq!(read(&pair.dst, 0, 16), [0; 16], "{kernel}");
        }
        assert_eq!(pair.b.poll_immediate().unwrap(), None, "{kernel}");
        assert_eq!(pair.a.poll_immediate().unwrap(), None, "{kernel}: the sender gets none");
        let call = op(&pair, Verb::PutImm, Scope::Block, 0);
        assert_eq!(bed.launch(kernel, (1, 32), call), [INVALID], "{kernel}: no data");
        assert!(pair.a.failure().is_none() && pair.b.failure().is_none(), "{kernel}");
    }
}

/// More than there are receives for: the sender's queue pair waits until they are taken, and nothing is lost.
#[test]
fn a_sender_without_receives_waits_for_them() {
    let bed = TestBed::fibres();
    for (name, kernel) in KERNELS.into_iter().filter(|k| bed.takes(path(k.0))) {
        let pair = bed.pair(path(name), 4096, receiving(4).timeout(Duration::from_millis(50)));
        let mut call = op(&pair, Verb::SignalImm, Scope::Block, 0);
        for n in 0..5 {
            call.value = n;
            assert_eq!(bed.launch(kernel, (1, 32), call), [OK], "{kernel}");
        }
        let mut quiet = call;
        (quiet.op, quiet.value) = (Verb::WaitWithin as u32, 5);
        quiet.compare = 20_000_000;
        assert_eq!(bed.launch(kernel, (1, 32), quiet), [TIMEOUT], "{kernel}");
        for n in 0..5 {
            assert_eq!(next(&pair.b), n, "{kernel}");
        }
        quiet.compare = 10_000_000_000;
        assert_eq!(bed.launch(kernel, (1, 32), quiet), [OK], "{kernel}");
    }
}

/// On paths that the host posts an endpoint receives as well.
#[test]
fn receives_are_for_every_rdma_path() {
    let bed = TestBed::fibres();
    for path in bed.paths() {
        let memory = || bed.memory(4096);
        let make = |n| Endpoint::new(&bed.gpu, &bed.nic, path, memory(), receiving(n));
        if path == Path::TCP {
            assert!(matches!(make(4), Err(Error::Unsupported { .. })));
            continue;
        }
        for n in [2, 5, 65536] {
            assert!(matches!(make(n), Err(Error::Option { .. })), "{path}: {n}");
        }
        let alone = make(4).unwrap();
        assert!(matches!(alone.poll_immediate(), Err(Error::NotConnected)), "{path}");
        let pair = bed.pair(path, 4096, receiving(4));
        assert_eq!(pair.b.poll_immediate().unwrap(), None, "{path}");
        let without = bed.pair(path, 4096, receiving(0));
        assert!(matches!(without.b.poll_immediate(), Err(Error::Option { .. })), "{path}");
    }
}

/// A queue pair that has ended gives its receives back, each with an error.
#[test]
fn receives_of_a_queue_pair_that_has_ended_are_told_of() {
    let bed = TestBed::fibres();
    if bed.nic.order() != Order::Later {
        return; // a device may leave the peer as it is
    }
    let pair = bed.pair(path("push/kernel"), 4096, receiving(4));
    let mut call = op(&pair, Verb::SignalAdd, Scope::Block, 8);
    call.remote_offset = 4; // no atomic of the NIC's, which ends both ends
    call.quiet_after = 1;
    assert_eq!(bed.launch("bp_extra_push_kernel", (1, 32), call), [CQE_ERROR]);
    let since = Instant::now();
    let mut told = 0;
    while told < 4 && since.elapsed() < Duration::from_secs(10) {
        match pair.b.poll_immediate() {
            Err(Error::Completion { .. }) => told += 1,
            other => assert!(matches!(other, Ok(None)), "{other:?}"),
        }
    }
    assert_eq!(told, 4);
    assert_eq!(pair.b.poll_immediate().unwrap(), None);
}
