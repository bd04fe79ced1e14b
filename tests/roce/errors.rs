//! What goes wrong over packets, and what each side is told: NAKs, timers, dead and restarted
//! peers.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::queue_pairs::{
    self, Buf, Check, End, Pair, attr, bad_key, connect, inline, make_qp, pattern, syndromes,
};
use bellpush::nic::soft::link::{
    Carries, Link, LinkCounters, LinkError, Received, ShmLink, ShmNet, TxBatch,
};
use bellpush::nic::soft::{DropReason, Event, SoftConfig, SoftNic};
use bellpush::nic::{Access, Change, Mtu, Nic, QpAttr, QpState, QueuePair};
use bellpush::wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush::wire::roce::{Fields, ack_timeout_ns, rnr_timer_ns};
use bellpush::wire::wqe::{Flags, Opcode, Operands, Piece, SendWr, Sge};
use bellpush::wire::{Iova, Rkey};
use bellpush_broken_mem::Broken;

fn pair(with: &Change) -> Pair {
    Pair::on_packets("", &attr(), &attr(), with)
}

fn events(nic: &SoftNic) -> Vec<Event> {
    std::iter::from_fn(|| nic.next_event()).collect()
}

/// A link that sends the last packet of an opcode once more when it is told to.
struct Echo {
    inner: ShmLink,
    opcode: u8,
    kept: Option<(IpAddr, Fields, Vec<u8>)>,
    again: Arc<AtomicBool>,
}

impl Link for Echo {
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
    fn has_icrc(&self) -> bool {
        self.inner.has_icrc()
    }
    fn send(&mut self, now: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        let last = batch.iter().filter(|p| p.bytes[0] == self.opcode).last();
        self.kept = last.map(|p| (p.to, p.fields, p.bytes.to_vec())).or(self.kept.take());
        self.inner.send(now, batch)
    }
    fn recv(
        &mut self,
        now: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        if self.again.swap(false, Ordering::Relaxed) {
            let (to, fields, bytes) = self.kept.clone().expect("one was sent");
            let mut batch = TxBatch::new(1);
            batch.push_with(to, fields, |into| {
                into[..bytes.len()].copy_from_slice(&bytes);
                Some(bytes.len())
            });
            assert_eq!(self.inner.send(now, &mut batch)?, 1);
        }
        self.inner.recv(now, most, each)
    }
    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}

#[test]
fn a_late_duplicate_of_a_read_whose_region_is_gone_is_dropped() {
    const READ_REQUEST: u8 = 0x0c;
    let again = Arc::new(AtomicBool::new(false));
    let nics = queue_pairs::packet_nics_over(true, |host, inner| {
        let again = if host == 1 { again.clone() } else { Arc::default() };
        Box::new(Echo { inner, opcode: READ_REQUEST, kept: None, again })
    });
    let mut p = Pair::of(nics, &attr(), &attr(), &Change::default());
    let other = Buf::new(&p.nics[1], 64, 0, Access::ALL);
    let read = [p.a.buf.data(0, 8)];
    let wr = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&read);
    assert_eq!(p.send(&wr)[0].opcode, CqeOpcode::Req);
    p.nics[1].deregister(p.b.buf.mr).unwrap();
    again.store(true, Ordering::Relaxed);
    p.settle();
    assert_eq!(p.nics[1].counters().dropped(DropReason::Duplicate), 1);
    assert_eq!((p.b.qp.state(), events(&p.nics[1]).len()), (QpState::Rts, 0));
    let payload = inline(b"goes on");
    let cqes =
        p.send(&SendWr::new(Opcode::RdmaWrite).to(other.at(0), other.mr.rkey).payload(&payload));
    assert_eq!(cqes[0].opcode, CqeOpcode::Req);
    assert_eq!(other.get(0, 7), b"goes on");
    // The first request to a region that is gone is refused as ever.
    let cqes = p.send(&wr);
    assert_eq!(syndromes(&cqes), [Some(Syndrome::RemoteAccess)]);
}

/// Sends one request, and expects its syndrome, both ends in ERR, and B's buffer untouched.
fn refused(p: &mut Pair, wr: &SendWr<'_>, syndrome: Syndrome) {
    let before = p.b.buf.get(0, queue_pairs::BUF_BYTES);
    let cqes = p.send(wr);
    assert_eq!(syndromes(&cqes), [Some(syndrome)], "{wr:?}");
    assert_eq!(cqes[0].opcode, CqeOpcode::ReqErr);
    assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Err, QpState::Err));
    assert!(p.b.buf.get(0, queue_pairs::BUF_BYTES) == before);
    // A packet that had changed something would have been acknowledged.
    assert_eq!(p.nics[0].counters().wqes, 0);
}

#[test]
fn what_a_region_or_queue_pair_does_not_allow_is_a_remote_access_or_invalid_request() {
    let ops = [Opcode::RdmaWrite, Opcode::RdmaRead, Opcode::AtomicFa, Opcode::AtomicCs];
    for opcode in ops {
        for case in 0..5 {
            let access = if case == 4 { Access::NONE } else { Access::ALL };
            let mut p = pair(&Change { access: Some(access), ..Change::default() });
            let none = Buf::new(&p.nics[1], 64, 0, Access::NONE);
            let gone = Buf::new(&p.nics[1], 64, 0, Access::ALL);
            p.nics[1].deregister(gone.mr).unwrap();
            let (to, rkey) = match case {
                0 => (Iova(0), Rkey(bad_key().0)),
                1 => (Iova(0), none.mr.rkey),
                2 => (p.b.buf.at(queue_pairs::BUF_BYTES as u64), p.b.buf.mr.rkey),
                3 => (Iova(0), gone.mr.rkey),
                _ => (p.b.buf.at(0), p.b.buf.mr.rkey),
            };
            let payload = [p.a.buf.data(0, 8)];
            let atomic = Some(Operands { swap_add: 1, compare: 0 });
            let wr = SendWr { atomic, ..SendWr::new(opcode) }.to(to, rkey).payload(&payload);
            let (syndrome, event) = match case {
                4 => (Syndrome::RemoteInvalReq, Event::QpRequest(p.b.qp.qpn())),
                _ => (Syndrome::RemoteAccess, Event::QpAccess(p.b.qp.qpn())),
            };
            refused(&mut p, &wr, syndrome);
            assert!(events(&p.nics[1]).contains(&event), "{opcode:?} {case}");
        }
    }
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    let mut p = pair(&Change::default());
    let payload = [p.a.buf.data(0, 8)];
    let wr = SendWr::new(Opcode::AtomicFa).to(p.b.buf.at(4), p.b.buf.mr.rkey).payload(&payload);
    refused(&mut p, &wr, Syndrome::RemoteInvalReq);
}

#[test]
fn more_reads_than_the_responder_allows_are_an_invalid_request() {
    let with = Change { max_dest_rd_atomic: Some(0), ..Change::default() };
    let mut p = pair(&with);
    let payload = [p.a.buf.data(0, 8)];
    let wr = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    refused(&mut p, &wr, Syndrome::RemoteInvalReq);
    // A requester that may have none outstanding refuses by itself.
    let mut p = pair(&Change { max_rd_atomic: Some(0), ..Change::default() });
    let wr = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    assert_eq!(syndromes(&p.send(&wr)), [Some(Syndrome::LocalQpOp)]);
}

#[test]
fn a_receive_that_is_too_short_or_not_writable_fails_both_ends() {
    for case in 0..2 {
        let mut p = pair(&Change { path_mtu: Mtu::new(256), ..Change::default() });
        let ro = Buf::new(&p.nics[1], 4096, 0, Access::NONE);
        let (receive, local, remote): (Sge, _, _) = match case {
            0 => (p.b.buf.sge(0, 299), Syndrome::LocalLength, Syndrome::RemoteInvalReq),
            _ => (ro.sge(0, 4096), Syndrome::LocalProt, Syndrome::RemoteOp),
        };
        p.b.host.rq.post(&[receive]).unwrap();
        p.b.host.rq.post(&[]).unwrap();
        let payload = [p.a.buf.data(0, 300)];
        let cqes = p.send(&SendWr::new(Opcode::Send).payload(&payload));
        assert_eq!(syndromes(&cqes), [Some(remote)]);
        assert_eq!(syndromes(&p.received()), [Some(local), Some(Syndrome::WrFlush)]);
        assert_eq!(p.b.qp.state(), QpState::Err);
        // The receive's CQE has told it (InfiniBand 9.9.3.1, class C).
        assert_eq!(events(&p.nics[1]), []);
    }
}

#[test]
fn local_errors_are_reported_in_their_turn_and_the_rest_is_flushed() {
    let mut p = pair(&Change::default());
    let good = [p.a.buf.data(0, 8)];
    let bad = [p.a.buf.data(queue_pairs::BUF_BYTES as u64 - 7, 8)];
    for i in 0..4 {
        let payload = if i == 2 { &bad } else { &good };
        let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey);
        p.a.host.sq.post(&wr.payload(payload)).unwrap();
    }
    p.a.host.sq.ring().unwrap();
    p.settle();
    let expected = [None, None, Some(Syndrome::LocalProt), Some(Syndrome::WrFlush)];
    let cqes = p.sent();
    assert_eq!(syndromes(&cqes), expected);
    assert_eq!(cqes.iter().map(|c| c.wqe_counter).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn an_empty_receive_queue_is_tried_again_after_the_timer_and_as_often_as_asked() {
    let timer = 10;
    for (rnr_retry, tries) in [(0u8, 1u64), (1, 2), (6, 7)] {
        let with =
            Change { rnr_retry: Some(rnr_retry), min_rnr_timer: Some(timer), ..Change::default() };
        let mut p = pair(&with);
        let start = p.now_ns;
        p.a.host.send(&SendWr::new(Opcode::Send)).unwrap();
        let mut cqes = Vec::new();
        assert!(p.run_until(1_000_000_000, |p| {
            cqes = p.sent();
            !cqes.is_empty()
        }));
        assert_eq!(syndromes(&cqes), [Some(Syndrome::RnrRetryExc)]);
        assert_eq!(p.nics[0].counters().rnr_waits, tries);
        let waited = p.now_ns - start;
        let least = (tries - 1) * rnr_timer_ns(timer);
        assert!((least..least + 100_000).contains(&waited), "{waited} ns for {tries} tries");
        assert_eq!(p.b.qp.state(), QpState::Rts, "not being ready is no fault");
    }
    let mut p = pair(&Change { min_rnr_timer: Some(timer), ..Change::default() });
    p.a.buf.put(0, &pattern(9000, 3));
    let payload = [p.a.buf.data(0, 9000)];
    p.a.host.send(&SendWr::new(Opcode::Send).payload(&payload)).unwrap();
    p.run_until(50_000_000, |_| false);
    assert!(p.sent().is_empty());
    p.b.host.rq.post(&[p.b.buf.sge(0, 9000)]).unwrap();
    p.run_until(2_000_000, |_| false);
    assert_eq!(p.sent()[0].opcode, CqeOpcode::Req);
    assert_eq!(p.received()[0].byte_cnt, 9000);
    assert_eq!(p.b.buf.get(0, 9000), pattern(9000, 3));
}

#[test]
fn each_message_has_all_tries_of_an_empty_receive_queue() {
    let with = Change { rnr_retry: Some(2), min_rnr_timer: Some(10), ..Change::default() };
    let mut p = pair(&with);
    for message in 1..=3 {
        p.a.host.send(&SendWr::new(Opcode::Send)).unwrap();
        // As often as it may be; the third time were one too many.
        let tries = 2 * message;
        assert!(p.run_until(1_000_000_000, |p| p.nics[0].counters().rnr_waits == tries));
        p.b.host.rq.post(&[]).unwrap();
        p.run_until(2 * rnr_timer_ns(10), |_| false);
        assert_eq!(syndromes(&p.sent()), [None], "message {message}");
        assert_eq!(p.nics[0].counters().rnr_waits, tries);
    }
}

#[test]
fn a_write_whose_immediate_finds_no_receive_waits_with_its_last_packet() {
    let mut p = pair(&Change { path_mtu: Mtu::new(256), ..Change::default() });
    p.a.buf.put(0, &pattern(1000, 3));
    let payload = [p.a.buf.data(0, 1000)];
    let wr = SendWr { imm: 1, ..SendWr::new(Opcode::RdmaWriteImm) };
    p.a.host.send(&wr.to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload)).unwrap();
    p.run_until(100_000, |_| false);
    assert_eq!(p.b.buf.get(0, 768), pattern(1000, 3)[..768]);
    p.b.host.rq.post(&[]).unwrap();
    p.run_until(100_000, |_| false);
    assert_eq!(p.sent()[0].opcode, CqeOpcode::Req);
    assert_eq!(p.received()[0].byte_cnt, 1000);
    assert_eq!(p.b.buf.get(0, 1000), pattern(1000, 3));
}

#[test]
fn a_dead_peer_is_given_up_within_the_configured_time() {
    // How often the timer expires. One of 268 ms sends again after 67, 134 and 268 ms, and waits out the last 67 of the
    // 537 that it and one retry allow; without a retry nothing goes again.
    for (timeout, retry_cnt, expires) in
        [(8u8, 0u8, 1), (8, 3, 4), (10, 7, 8), (14, 1, 2), (16, 0, 1), (16, 1, 4)]
    {
        let with =
            Change { timeout: Some(timeout), retry_cnt: Some(retry_cnt), ..Change::default() };
        let mut p = pair(&with);
        let payload = [p.a.buf.data(0, 100_000)];
        for _ in 0..3 {
            let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey);
            p.a.host.sq.post(&wr.payload(&payload)).unwrap();
        }
        p.a.host.sq.ring().unwrap();
        p.engines.pop(); // B's engine: killed, with packets on their way to it
        p.step();
        let start = p.now_ns;
        let mut cqes: Vec<Cqe> = Vec::new();
        assert!(p.run_until(100_000_000_000, |p| {
            cqes.extend(p.sent());
            cqes.len() == 3
        }));
        let flushed = Some(Syndrome::WrFlush);
        assert_eq!(syndromes(&cqes), [Some(Syndrome::TransportRetryExc), flushed, flushed]);
        let most = ack_timeout_ns(timeout).unwrap() * (u64::from(retry_cnt) + 1);
        let waited = p.now_ns - start;
        assert!((most / 2..most + 1_000_000).contains(&waited), "{waited} ns of {most}");
        assert_eq!(p.nics[0].counters().timeouts, expires, "{timeout} {retry_cnt}");
        // What is posted to a queue pair in ERR does not leave it.
        let sent = p.nics[0].counters().tx_packets;
        let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey);
        p.a.host.send(&wr.payload(&payload)).unwrap();
        p.run_until(1_000_000, |_| false);
        assert_eq!(syndromes(&p.sent()), [flushed]);
        assert_eq!(p.nics[0].counters().tx_packets, sent);
    }
}

/// A peer that comes back on the same address, even with the same queue pair number, is not taken
/// for the old one: its PSNs differ.
#[test]
fn a_restarted_peer_is_not_mistaken_for_the_old_one() {
    for same_number in [false, true] {
        let net = ShmNet::anonymous(true).unwrap();
        let open = |host: u8, seed: u64| {
            let link: Box<dyn Link> =
                Box::new(net.attach(IpAddr::from([127, 0, 0, host])).unwrap());
            let config = SoftConfig { seed: Some(seed), ..SoftConfig::default() };
            SoftNic::manual_on(&config, link).unwrap()
        };
        let (na, ea) = open(1, 1);
        let (nb, eb) = open(2, 2);
        let ends = |nic: &SoftNic, iova| {
            let (qp, memory) = make_qp(nic, &attr());
            let host = bellpush::nic::queue::HostQp::new(&*qp);
            End { qp, host, memory, buf: Buf::new(nic, queue_pairs::BUF_BYTES, iova, Access::ALL) }
        };
        let (a, b) = (ends(&na, queue_pairs::A_IOVA), ends(&nb, queue_pairs::B_IOVA));
        let with = Change { timeout: Some(8), retry_cnt: Some(1), ..Change::default() };
        connect(&a.qp, &b.qp, &with);
        let old = (b.qp.address(), b.buf.mr.rkey);
        let (engines, recorded) = (vec![ea, eb], Check::new());
        let mut p = Pair { nics: [na, nb], engines, a, b, now_ns: 0, recorded };
        let payload = inline(b"first");
        let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), old.1).payload(&payload);
        assert_eq!(p.send(&wr)[0].opcode, CqeOpcode::Req);
        // B restarts, and connects to A's address from its side.
        let Pair { nics: [na, nb], mut engines, a, b, now_ns, recorded } = p;
        engines.pop();
        drop((nb, b));
        let (nb, eb) = open(2, if same_number { 2 } else { 3 });
        engines.push(eb);
        let b = ends(&nb, queue_pairs::B_IOVA);
        assert_eq!(b.qp.qpn() == old.0.qpn, same_number);
        assert_eq!(b.buf.mr.rkey == old.1, same_number, "where it is, it alone would let A in");
        let mut connection = bellpush::nic::Connection::new(b.qp.address(), a.qp.address());
        if same_number {
            // What a new exchange would draw, since the seed is the same here.
            connection.with.rq_psn = Some(a.qp.address().psn.plus(0x3a_5a5a));
        }
        b.qp.connect_with(&connection).unwrap();
        let mut p = Pair { nics: [na, nb], engines, a, b, now_ns, recorded };
        for opcode in [Opcode::RdmaWrite, Opcode::AtomicFa] {
            let payload = [p.a.buf.data(0, 8)];
            let atomic = Some(Operands { swap_add: 1, compare: 0 });
            let wr = SendWr { atomic, ..SendWr::new(opcode) };
            p.a.host.sq.post(&wr.to(p.b.buf.at(0), old.1).payload(&payload)).unwrap();
        }
        p.a.host.sq.ring().unwrap();
        let mut cqes: Vec<Cqe> = Vec::new();
        assert!(p.run_until(100_000_000, |p| {
            cqes.extend(p.sent());
            cqes.len() == 2
        }));
        let expected = [Some(Syndrome::TransportRetryExc), Some(Syndrome::WrFlush)];
        assert_eq!(syndromes(&cqes), expected);
        assert_eq!(p.b.buf.get(0, 8), [0; 8], "nothing of the old connection arrives");
        assert_eq!(p.b.qp.state(), QpState::Rts);
        let drops = p.nics[1].counters();
        let reason = if same_number { DropReason::Gap } else { DropReason::NoSuchQp };
        assert!(drops.dropped(reason) + drops.dropped(DropReason::Duplicate) > 0);
    }
}

#[test]
fn a_drained_send_queue_waits_in_sqd_and_goes_on() {
    let mut p = pair(&Change::default());
    let payload = [p.a.buf.data(0, 60_000)];
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    p.a.host.send(&wr).unwrap();
    p.engines[0].step(1);
    p.a.qp.modify(QpState::Sqd, &Change { sqd_event: Some(true), ..Change::default() }).unwrap();
    events(&p.nics[0]);
    p.a.host.send(&wr).unwrap();
    p.settle();
    assert_eq!(p.sent().iter().map(|c| c.wqe_counter).collect::<Vec<_>>(), [0]);
    assert_eq!(events(&p.nics[0]), [Event::SqDrained(p.a.qp.qpn())]);
    p.a.qp.modify(QpState::Rts, &Change::default()).unwrap();
    p.settle();
    assert_eq!(p.sent().iter().map(|c| c.wqe_counter).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_port_that_goes_down_and_up_is_reported_and_costs_time_only() {
    let mut p = pair(&Change { timeout: Some(8), ..Change::default() });
    p.nics[1].set_port(false);
    let payload = inline(b"through");
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    p.a.host.send(&wr).unwrap();
    p.run_until(2_000_000, |_| false);
    assert!(p.sent().is_empty());
    assert_eq!(events(&p.nics[1]), [Event::PortDown]);
    assert!(p.nics[1].counters().dropped(DropReason::PortDown) > 0);
    p.nics[1].set_port(true);
    assert!(p.run_until(20_000_000, |p| !p.sent().is_empty()));
    assert_eq!(events(&p.nics[1])[0], Event::PortUp);
    assert_eq!(p.b.buf.get(0, 7), b"through");
}

#[test]
fn communication_is_established_by_the_first_packet_in_rtr() {
    let (nics, engines) = queue_pairs::packet_nics("", true);
    let (qa, _ma) = make_qp(&nics[0], &attr());
    let (qb, _mb) = make_qp(&nics[1], &attr());
    let mut engines = engines;
    qa.connect(qb.address()).unwrap();
    let connection = bellpush::nic::Connection::new(qb.address(), qa.address());
    for to in [QpState::Init, QpState::Rtr] {
        qb.modify(to, &connection.change(qb.kind(), to)).unwrap();
    }
    let mut host = bellpush::nic::queue::HostQp::new(&*qa);
    host.send(&SendWr::new(Opcode::RdmaWrite)).unwrap();
    for t in 1..10 {
        for engine in &mut engines {
            engine.step(t);
        }
    }
    assert_eq!(events(&nics[1]), [Event::Established(qb.qpn())]);
    assert_eq!(host.poll_send().unwrap().unwrap().opcode, CqeOpcode::Req);
}

#[test]
fn a_fence_waits_for_the_reads_before_it() {
    let mut p = pair(&Change { path_mtu: Mtu::new(256), ..Change::default() });
    p.b.buf.put(0, &pattern(20_000, 9));
    let read = [p.a.buf.data(0, 20_000)];
    let wr = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&read);
    p.a.host.sq.post(&wr).unwrap();
    // What was read is written elsewhere: without the fence, what was there before would be.
    let write = [p.a.buf.data(0, 20_000)];
    let flags = Flags { fence: true, ..Flags::SIGNALLED };
    let wr = SendWr { flags, ..SendWr::new(Opcode::RdmaWrite) };
    p.a.host.sq.post(&wr.to(p.b.buf.at(50_000), p.b.buf.mr.rkey).payload(&write)).unwrap();
    p.a.host.sq.ring().unwrap();
    p.settle();
    assert_eq!(p.sent().len(), 2);
    assert_eq!(p.b.buf.get(50_000, 20_000), pattern(20_000, 9));
}

#[test]
fn attributes_that_lead_nowhere_are_refused() {
    use bellpush::nic::{AddressVector, NicAddress, NicError};
    let (nics, _engines) = queue_pairs::packet_nics("", true);
    let (qp, _m) = make_qp(&nics[0], &attr());
    let (peer, _m2) = make_qp(&nics[1], &QpAttr { ..attr() });
    let mut connection = bellpush::nic::Connection::new(qp.address(), peer.address());
    for nic in [NicAddress::InProcess(1), NicAddress::Ip("2001:db8::1".parse().unwrap())] {
        connection.with.av = Some(AddressVector::to(nic));
        assert!(matches!(qp.connect_with(&connection), Err(NicError::NoSuchPeer { .. })));
    }
}

/// As where a program unmaps a part of what it has posted: the packet that would have had it is none, those before it
/// are as they were.
#[test]
fn memory_that_is_gone_in_the_middle_of_a_message_ends_it_there() {
    const GOOD: u32 = 2 * 4096 + 100;
    for icrc in [false, true] {
        let with = Change::default();
        let mut p = Pair::of(queue_pairs::packet_nics("", icrc), &attr(), &attr(), &with);
        let gone = Arc::new(Broken { panics: false });
        let gone = p.nics[0].register(gone, Iova(0), Access::ALL).unwrap();
        let data = pattern(GOOD as usize, 3);
        p.a.buf.put(0, &data);
        let gone = Piece::Data(Sge { addr: gone.iova, lkey: gone.lkey, bytes: 4000 });
        let payload = [p.a.buf.data(0, GOOD), gone];
        let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey);
        let cqes = p.send(&wr.payload(&payload));
        assert_eq!(syndromes(&cqes), [Some(Syndrome::LocalProt)], "{icrc}");
        assert_eq!(p.b.buf.get(0, 2 * 4096), data[..2 * 4096], "{icrc}");
        assert_eq!(p.b.buf.get(2 * 4096, 4096), [0; 4096], "{icrc}");
        assert_eq!(p.nics[1].counters().rx_packets, 2, "{icrc}");
    }
}
