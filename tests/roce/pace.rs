//! Queue pairs that go by a schedule: their packets leave at its rate.

use bellpush::nic::soft::{Bandwidth, SchedElement};
use bellpush::nic::{Change, NicError, QpAttr, QueuePair};
use bellpush::wire::wqe::{Opcode, SendWr};

use crate::queue_pairs::{Pair, attr, inline, syndromes};

const BYTES: u32 = 50_000;

/// How long a message of 50,000 bytes takes, in microseconds.
fn time(p: &mut Pair, opcode: Opcode) -> u64 {
    let payload = [p.a.buf.data(0, BYTES)];
    let wr = SendWr::new(opcode).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    p.a.host.send(&wr).unwrap();
    let start = p.now_ns;
    // All the time, as a peer that polls.
    while p.sent().is_empty() {
        p.run_for(10_000);
        assert!(p.now_ns - start < 400_000_000, "{opcode:?}");
    }
    (p.now_ns - start) / 1000
}

#[test]
fn requests_and_responses_leave_at_the_rate_of_their_groups() {
    for faults in ["", "loss=2%,seed=3"] {
        let mut p = Pair::on_packets(faults, &attr(), &attr(), &Change::default());
        let root = SchedElement::new(None, Bandwidth::default()).unwrap();
        let limit = Bandwidth { max_mbps: 40, share: 1 };
        let [asks, answers] = [(); 2].map(|()| SchedElement::new(Some(&root), limit).unwrap());
        let (free, slow) = (0..2_000, 8_000..12_000);
        let free = if faults.is_empty() { free } else { 0..400_000 };
        let slow = if faults.is_empty() { slow } else { 9_000..400_000 };
        assert!(free.contains(&time(&mut p, Opcode::RdmaWrite)), "nothing is limited yet");
        p.a.qp.pace([Some(asks.clone()), None]).unwrap();
        // 50,000 bytes at 40 Mbit/s: 10 ms, of which 1 may be made up for.
        let took = time(&mut p, Opcode::RdmaWrite);
        assert!(slow.contains(&took), "{took} us");
        assert!(free.contains(&time(&mut p, Opcode::RdmaRead)), "what the peer sends");
        p.b.qp.pace([None, Some(answers)]).unwrap();
        let took = time(&mut p, Opcode::RdmaRead);
        assert!(slow.contains(&took), "{took} us");
        // It may be changed, and the way of RESET is out of it.
        asks.set(Bandwidth::default());
        assert!(free.contains(&time(&mut p, Opcode::RdmaWrite)), "without a limit");
        p.a.qp.reset().unwrap();
        drop(p.a);
        assert_eq!(std::sync::Arc::strong_count(&asks), 1, "{faults}");
    }
}

#[test]
fn queue_pairs_without_packets_go_by_no_schedule() {
    let p = Pair::new(&attr());
    let root = SchedElement::new(None, Bandwidth::default()).unwrap();
    let refused = p.a.qp.pace([Some(root), None]);
    assert!(matches!(refused, Err(NicError::Attribute { .. })), "{refused:?}");
}

#[test]
fn requests_behind_a_read_are_acknowledged_behind_its_answer() {
    let mut p = Pair::on_packets("", &attr(), &attr(), &Change::default());
    let limit = Bandwidth { max_mbps: 40, share: 1 };
    let group = SchedElement::new(None, limit).unwrap();
    p.b.qp.pace([None, Some(group)]).unwrap();
    let payload = [p.a.buf.data(0, BYTES)];
    let read = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(0), p.b.buf.mr.rkey);
    p.a.host.send(&read.payload(&payload)).unwrap();
    let write = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(60_000), p.b.buf.mr.rkey);
    p.a.host.send(&write.payload(&inline(b"behind"))).unwrap();
    p.run_for(20_000_000);
    assert_eq!(syndromes(&p.sent()), [None, None]);
    assert_eq!(p.nics[0].counters().retransmitted, 0, "an answer that was late is not lost");
}

#[test]
fn a_slow_group_is_no_loss() {
    // A packet of 4096 bytes takes 33 ms, and the timer 1 ms.
    let hasty = QpAttr { ack_timeout: 8, ..attr() };
    let mut p = Pair::on_packets("", &hasty, &hasty, &Change::default());
    let group = SchedElement::new(None, Bandwidth { max_mbps: 1, share: 1 }).unwrap();
    p.a.qp.pace([Some(group), None]).unwrap();
    let payload = [p.a.buf.data(0, 20_000)];
    let write = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey);
    p.a.host.send(&write.payload(&payload)).unwrap();
    for _ in 0..40_000 {
        p.run_for(10_000);
    }
    assert_eq!(syndromes(&p.sent()), [None]);
    let counters = p.nics[0].counters();
    assert_eq!((counters.timeouts, counters.retransmitted), (0, 0));
}

#[test]
fn what_a_queue_pair_asks_has_its_turn_beside_what_it_answers() {
    let mut p = Pair::on_packets("", &attr(), &attr(), &Change::default());
    let group = SchedElement::new(None, Bandwidth { max_mbps: 40, share: 1 }).unwrap();
    p.b.qp.pace([Some(group.clone()), Some(group)]).unwrap();
    // 10 ms of answers, and 2 ms of requests.
    let payload = [p.a.buf.data(0, BYTES)];
    let read = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(0), p.b.buf.mr.rkey);
    p.a.host.send(&read.payload(&payload)).unwrap();
    p.run_for(1_000_000);
    let payload = [p.b.buf.data(0, 8_000)];
    let write = SendWr::new(Opcode::RdmaWrite).to(p.a.buf.at(60_000), p.a.buf.mr.rkey);
    p.b.host.send(&write.payload(&payload)).unwrap();
    while p.b.host.poll_send().unwrap().is_none() {
        p.run_for(10_000);
        assert!(p.now_ns < 8_000_000, "the answers went first");
    }
    assert!(p.sent().is_empty(), "the READ is not over");
}
