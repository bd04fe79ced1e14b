//! When acknowledgements leave: beside an answer where that saves a datagram, soon in any case.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::dc::Dc;
use crate::queue_pairs::{Pair, attr, inline, packet_nics_over, syndromes};
use bellpush::nic::soft::link::{
    Carries, Link, LinkCounters, LinkError, Received, ShmLink, TxBatch,
};
use bellpush::nic::{Change, Nic, NicAddress, QpState, QueuePair};
use bellpush::wire::cm::MAD_BYTES;
use bellpush::wire::wqe::{Opcode, SendWr};

/// How many packets each call of [`Link::send`] took.
type Sends = Arc<Mutex<Vec<usize>>>;

struct Watched {
    inner: ShmLink,
    joins: bool,
    full: Arc<AtomicBool>,
    sends: Sends,
    lengths: Sends,
}

impl Link for Watched {
    fn address(&self) -> IpAddr {
        self.inner.address()
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn src_port(&self) -> u16 {
        self.inner.src_port()
    }

    fn carries(&self) -> Carries {
        self.inner.carries()
    }

    fn joins(&self) -> bool {
        self.joins
    }

    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        if self.full.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let lengths: Vec<_> = batch.iter().map(|packet| packet.bytes.len()).collect();
        let taken = self.inner.send(now_ns, batch)?;
        self.lengths.lock().unwrap().extend(&lengths[..taken]);
        self.sends.lock().unwrap().push(taken);
        Ok(taken)
    }

    fn recv(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        self.inner.recv(now_ns, most, each)
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

/// Two NICs, and what B's link was given.
fn pair(joins: bool) -> (Pair, Sends) {
    let (pair, sends, _) = watched_pair(joins);
    (pair, sends)
}

/// The same, and the lengths of the packets that B's link has taken.
fn watched_pair(joins: bool) -> (Pair, Sends, Sends) {
    let all: [[Sends; 2]; 2] = Default::default();
    let nics = packet_nics_over(true, |host, inner| {
        let [sends, lengths] = all[usize::from(host) - 1].clone();
        Box::new(Watched { inner, joins, full: Arc::default(), sends, lengths })
    });
    let [_, [sends, lengths]] = all;
    (Pair::of(nics, &attr(), &attr(), &Change::default()), sends, lengths)
}

/// A write of A that has come to B in its first step; B's poster answers after that step, or not.
fn write_and_answer(joins: bool, answers: bool) -> Vec<usize> {
    let (mut p, sends) = pair(joins);
    let payload = inline(b"ping");
    let write = SendWr::new(Opcode::RdmaWrite).payload(&payload);
    p.a.host.send(&write.to(p.b.buf.at(0), p.b.buf.mr.rkey)).unwrap();
    p.step();
    assert_eq!(p.b.buf.get(0, 4), b"ping", "what came is there after the step");
    if answers {
        p.b.host.send(&write.to(p.a.buf.at(0), p.a.buf.mr.rkey)).unwrap();
    }
    p.settle();
    p.settle(); // what left in the last step arrives
    assert_eq!(p.sent().len(), 1, "acknowledged");
    let sends = sends.lock().unwrap();
    sends.iter().copied().filter(|&n| n > 0).collect()
}

#[test]
fn an_acknowledgement_leaves_with_the_answer_where_that_costs_less() {
    assert_eq!(write_and_answer(true, true), [2]);
    assert_eq!(write_and_answer(false, true), [1, 1], "control: the link gains nothing");
}

#[test]
fn an_acknowledgement_without_an_answer_leaves_at_the_next_visit() {
    assert_eq!(write_and_answer(true, false), [1]);
    let (mut p, sends) = pair(true);
    let payload = inline(b"x");
    let write = SendWr::new(Opcode::RdmaWrite).payload(&payload);
    p.a.host.send(&write.to(p.b.buf.at(0), p.b.buf.mr.rkey)).unwrap();
    p.step();
    let count = |sends: &Sends| sends.lock().unwrap().iter().sum::<usize>();
    assert_eq!(count(&sends), 0, "held");
    p.step();
    assert_eq!(count(&sends), 1);
}

/// Such as the word that it disconnects: who hears that first takes its last message for lost.
#[test]
fn a_management_datagram_overtakes_no_acknowledgement() {
    let (mut p, _, lengths) = watched_pair(true);
    let payload = inline(b"last");
    let write = SendWr::new(Opcode::RdmaWrite).payload(&payload);
    p.a.host.send(&write.to(p.b.buf.at(0), p.b.buf.mr.rkey)).unwrap();
    p.step();
    assert!(lengths.lock().unwrap().is_empty(), "control: it is held");
    let (NicAddress::Ip(to), _) = p.nics[0].address() else { panic!() };
    p.nics[1].send_mad(to, [0; MAD_BYTES]).unwrap();
    p.step();
    let lengths = lengths.lock().unwrap();
    let (acknowledgement, mad) = (12 + 4 + 4, 12 + 8 + MAD_BYTES + 4); // BTH, AETH or DETH, ICRC
    assert_eq!(**lengths, [acknowledgement, mad]);
}

/// Who hears of a WRITE first takes the responses of the READ before it for lost.
#[test]
fn a_management_datagram_has_no_acknowledgement_overtake_a_response() {
    let mut dc = Dc::new("");
    let (at, rkey) = (dc.to[0].buf.at(16384), dc.to[0].buf.mr.rkey);
    let (back, payload) = ([dc.buf.data(8192, 64)], [dc.buf.data(0, 64)]);
    let (NicAddress::Ip(to), _) = dc.nics[0].address() else { panic!() };
    for _ in 0..4 {
        let target = dc.target(0);
        dc.post(0, target, &SendWr::new(Opcode::RdmaRead).to(at, rkey).payload(&back));
        dc.post(0, target, &SendWr::new(Opcode::RdmaWrite).to(at, rkey).payload(&payload));
        dc.nics[1].send_mad(to, [0; MAD_BYTES]).unwrap();
        dc.run(200_000);
        assert_eq!(syndromes(&dc.sent(0)), [None, None]);
    }
    assert_eq!(dc.nics[0].counters().retransmitted, 0);
}

/// Whoever ends a NIC waits for it.
#[test]
fn what_a_full_link_does_not_take_is_told() {
    let full: Arc<AtomicBool> = Arc::default();
    let nics = packet_nics_over(true, |host, inner| {
        let full = if host == 2 { full.clone() } else { Arc::default() };
        let (sends, lengths) = Default::default();
        Box::new(Watched { inner, joins: false, full, sends, lengths })
    });
    let mut p = Pair::of(nics, &attr(), &attr(), &Change::default());
    let payload = inline(b"last");
    let write = SendWr::new(Opcode::RdmaWrite).payload(&payload);
    p.a.host.send(&write.to(p.b.buf.at(0), p.b.buf.mr.rkey)).unwrap();
    full.store(true, Ordering::Relaxed);
    p.step();
    let holds = |p: &mut Pair| {
        p.now_ns += 1_000;
        p.engines[1].step(p.now_ns).link_holds
    };
    assert!(holds(&mut p), "the acknowledgement");
    full.store(false, Ordering::Relaxed);
    assert!(!holds(&mut p));
}

#[test]
fn a_queue_pair_that_goes_acknowledges_what_it_has_received() {
    for which in 0..3 {
        let (mut p, sends) = pair(true);
        let payload = inline(b"last");
        let write = SendWr::new(Opcode::RdmaWrite).payload(&payload);
        p.a.host.send(&write.to(p.b.buf.at(0), p.b.buf.mr.rkey)).unwrap();
        p.step();
        assert_eq!(p.b.buf.get(0, 4), b"last");
        assert_eq!(sends.lock().unwrap().iter().sum::<usize>(), 0, "control: it is held");
        match which {
            0 => p.nics[1].destroy_qp(p.b.qp.qpn()).unwrap(),
            1 => p.b.qp.modify(QpState::Reset, &Change::default()).unwrap(),
            _ => p.b.qp.modify(QpState::Err, &Change::default()).unwrap(),
        }
        p.step();
        p.step();
        let sent = p.sent();
        assert!(sent.len() == 1 && !sent[0].opcode.is_error(), "{which}: {sent:?}");
    }
}
