//! Runs over a link that loses, doubles and reorders, through what else happens to a connection:
//! its PSNs wrap, a region goes, receives come late.

use crate::queue_pairs::{
    A_IOVA, B_IOVA, BUF_BYTES, Buf, Check, End, Pair, attr, make_qp, packet_nics, pattern,
};
use bellpush::mem::Dma;
use bellpush::nic::queue::HostQp;
use bellpush::nic::{Access, Connection, Mtu, Nic, QpAttr, QpState, QueuePair};
use bellpush::wire::Psn;
use bellpush::wire::cqe::{Cqe, Syndrome};
use bellpush::wire::roce::rnr_timer_ns;
use bellpush::wire::wqe::{Opcode, Operands, SendWr};

const MTU: usize = 256;
/// Messages on their way at most, each with a slot of its own in both ends' memory.
const SLOTS: u64 = 16;
const SLOT_BYTES: u64 = 2048;
const OPCODES: [Opcode; 4] = [Opcode::Send, Opcode::RdmaWrite, Opcode::RdmaRead, Opcode::AtomicFa];
/// Where atomics add, behind the slots.
const COUNT_AT: u64 = SLOTS * SLOT_BYTES;
const SECOND: u64 = 1_000_000_000;

/// A pair whose first PSNs are these.
fn pair(seed: u64, psns: [u32; 2]) -> Pair {
    let faults = format!("loss=2%,dup=2%,reorder=3%,delay=2us,rate=1GB/s,seed={seed}");
    let (nics, engines) = packet_nics(&faults, true);
    let deep = QpAttr { rq_wqes: 32, ..attr() };
    let end = |i: usize, iova| {
        let (qp, memory) = make_qp(&nics[i], &deep);
        let host = HostQp::new(&*qp);
        End { qp, host, memory, buf: Buf::new(&nics[i], BUF_BYTES, iova, Access::ALL) }
    };
    let (a, b) = (end(0, A_IOVA), end(1, B_IOVA));
    for (me, peer, [mine, theirs]) in [(&a, &b, psns), (&b, &a, [psns[1], psns[0]])] {
        let mut connection = Connection::new(me.qp.address(), peer.qp.address());
        let with = &mut connection.with;
        (with.sq_psn, with.rq_psn) = (Some(Psn::new(mine)), Some(Psn::new(theirs)));
        (with.path_mtu, with.timeout) = (Mtu::new(MTU), Some(8));
        with.min_rnr_timer = Some(4);
        me.qp.connect_with(&connection).unwrap();
    }
    Pair { nics, engines, a, b, now_ns: 0, recorded: Check::new() }
}

fn data(i: u64) -> Vec<u8> {
    pattern(1 + (i * 97 % SLOT_BYTES) as usize, i)
}

fn opcode(i: u64) -> Opcode {
    OPCODES[(i / 3 % 4) as usize]
}

fn slot(i: u64) -> u64 {
    i % SLOTS * SLOT_BYTES
}

/// Posts message `i`, whose receive somebody else posts.
fn post(p: &mut Pair, i: u64) {
    let (at, bytes) = (slot(i), data(i));
    let (opcode, n) = (opcode(i), bytes.len() as u32);
    let source = if opcode == Opcode::RdmaRead { &p.b.buf } else { &p.a.buf };
    source.put(at as usize, &bytes);
    let is_atomic = opcode == Opcode::AtomicFa;
    let payload = [p.a.buf.data(at, if is_atomic { 8 } else { n })];
    let atomic = is_atomic.then_some(Operands { swap_add: 1, compare: 0 });
    let to = p.b.buf.at(if is_atomic { COUNT_AT } else { at });
    let wr = SendWr { atomic, ..SendWr::new(opcode) }.to(to, p.b.buf.mr.rkey).payload(&payload);
    p.a.host.send(&wr).unwrap();
}

fn post_receive(p: &mut Pair, i: u64) {
    p.b.host.rq.post(&[p.b.buf.sge(slot(i), SLOT_BYTES as u32)]).unwrap();
}

/// Looks at what message `i` led to; `added` counts the atomics before it.
fn check(p: &mut Pair, i: u64, added: &mut u64) {
    let (at, bytes) = (slot(i) as usize, data(i));
    match opcode(i) {
        Opcode::AtomicFa => {
            assert_eq!(p.a.buf.get(at, 8), added.to_ne_bytes(), "atomic {i}");
            *added += 1;
        }
        Opcode::RdmaRead => assert!(p.a.buf.get(at, bytes.len()) == bytes, "READ {i}"),
        other => {
            assert!(p.b.buf.get(at, bytes.len()) == bytes, "{other:?} {i}");
            if other == Opcode::Send {
                let cqe = p.b.host.poll_recv().unwrap().expect("it was acknowledged");
                assert_eq!((cqe.byte_cnt as usize, cqe.opcode.is_error()), (bytes.len(), false));
            }
        }
    }
}

/// Sends messages until `most` are done; `before` comes before each is posted.
fn run(p: &mut Pair, most: u64, mut before: impl FnMut(&mut Pair, u64)) {
    let (mut posted, mut done, mut added) = (0, 0, 0);
    while done < most {
        while posted < most && posted - done < SLOTS {
            before(p, posted);
            post(p, posted);
            posted += 1;
        }
        let mut cqes: Vec<Cqe> = Vec::new();
        let came = p.run_until(SECOND, |p| {
            cqes = p.sent();
            !cqes.is_empty()
        });
        assert!(came, "message {done} does not complete");
        for cqe in cqes {
            assert!(!cqe.opcode.is_error(), "message {done}: {cqe:?}");
            check(p, done, &mut added);
            done += 1;
        }
    }
    p.run_until(SECOND / 100, |_| false);
    assert!(p.sent().is_empty() && p.received().is_empty(), "something was delivered twice");
    assert_eq!(p.b.buf.get(COUNT_AT as usize, 8), added.to_ne_bytes());
    let lost = p.nics[0].counters().retransmitted + p.nics[1].counters().sequence_naks;
    assert!(lost > 0, "the link lost nothing");
}

#[test]
fn psns_wrap() {
    for seed in 0..4 {
        // Some 3 packets a message: the wrap comes after a quarter of them, and half way.
        for before in [100, 200] {
            let mut p = pair(seed, [Psn::MODULUS - before, Psn::MODULUS - 1]);
            run(&mut p, 120, |p, i| {
                if opcode(i) == Opcode::Send {
                    post_receive(p, i);
                }
            });
        }
    }
}

#[test]
fn receives_come_late() {
    for seed in 0..4 {
        let mut p = pair(seed, [1, 2]);
        let late = |p: &mut Pair, i: u64| {
            // A receive comes when its SEND has been on its way for a while, and found none.
            if i > 0 && opcode(i - 1) == Opcode::Send {
                p.run_until(3 * rnr_timer_ns(4), |_| false);
                post_receive(p, i - 1);
            }
        };
        run(&mut p, 96, late);
        let waits = p.nics[0].counters().rnr_waits;
        assert!(waits > 8, "{waits} receives were late");
    }
}

/// What a program takes back is not touched any more, whatever is still on its way to it, and
/// every message completes all the same.
#[test]
fn a_region_goes_meanwhile() {
    for (seed, at_sender) in (0..8).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut p = pair(seed, [1, 2]);
        (0..SLOTS).filter(|&i| opcode(i) == Opcode::Send).for_each(|i| post_receive(&mut p, i));
        (0..SLOTS).for_each(|i| post(&mut p, i));
        // Sooner or later: some messages are done by then, one is on its way, some have not begun.
        p.run_until(1_000 + seed * 1_500, |_| false);
        let end = if at_sender { &p.a } else { &p.b };
        let (nic, view) = (&p.nics[usize::from(!at_sender)], end.buf.view.clone());
        nic.deregister(end.buf.mr).unwrap();
        view.fill(0, BUF_BYTES, 0xa5).unwrap();
        let mut cqes = Vec::new();
        let all = p.run_until(10 * SECOND, |p| {
            cqes.extend(p.sent());
            cqes.len() == SLOTS as usize
        });
        assert!(all, "{} of {SLOTS} completed", cqes.len());
        p.run_until(SECOND / 100, |_| false);
        assert!(p.sent().is_empty(), "something completed twice");
        let mut bytes = vec![0; BUF_BYTES];
        view.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&b| b == 0xa5), "memory that was taken back was touched");
        // First what was done, then what failed, then what did not come to its turn.
        let failed = cqes.iter().position(|cqe| cqe.opcode.is_error()).expect("the region is gone");
        let syndrome = |cqe: &Cqe| Syndrome::from_code(cqe.syndrome);
        let why: &[Syndrome] = if at_sender {
            &[Syndrome::LocalProt]
        } else {
            // A SEND's receive lies there as well, which is the receiver's own mistake. A NAK that
            // is lost is not said again.
            &[Syndrome::RemoteAccess, Syndrome::RemoteOp, Syndrome::TransportRetryExc]
        };
        let first = syndrome(&cqes[failed]).expect("a syndrome");
        assert!(why.contains(&first), "{first:?}");
        let rest = &cqes[failed + 1..];
        assert!(rest.iter().all(|cqe| syndrome(cqe) == Some(Syndrome::WrFlush)));
        assert_eq!(p.a.qp.state(), QpState::Err);
    }
}
