//! Shared receive queues that match tags: eager messages, rendezvous, list operations; right, lost and hostile.

#[path = "tags/rendezvous.rs"]
mod rendezvous;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::queue_pairs::{
    Buf, Check, End, Pair, attr, bad_key, connect, inline, make_typed, packet_nics, pattern,
    syndromes,
};
use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::queue::{HostCq, HostQp};
use bellpush::nic::soft::{CqAttr, Qp, SoftConfig, SoftNic, Srq, SrqAttr, TagAttr};
use bellpush::nic::{
    Access, Change, Connection, Mtu, Nic, NicError, QpAttr, QpState, QpType, QueuePair,
};
use bellpush::wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush::wire::doorbell::{DBR_RCV_OFFSET, dbr_word};
use bellpush::wire::tm::Told;
use bellpush::wire::wqe::{DataSeg, INVALID_LKEY, Opcode, SendWr, Sge};

const EAGER: u8 = 3;
const RENDEZVOUS: u8 = 1;
const NO_TAG: u8 = 0;
const MTU: usize = 1024;
/// Where the receives of B's queue begin in its buffer, and their length.
const POOL: u64 = 64 << 10;
const POOL_BYTES: u32 = 4096;

/// A sends to B, whose queue pair matches tags.
struct Tags {
    pair: Pair,
    srq: Arc<Srq>,
    ring: View,
    dbr: View,
    posted: u16,
    cqes: HostCq,
    /// Changes the list.
    list: HostQp,
    list_qp: Arc<Qp>,
    _memory: Arc<HostMem>,
    /// The place that the next entry fills.
    tail: u16,
    handled: u16,
}

fn tag_srq(nic: &SoftNic) -> Result<(Arc<Srq>, View, View, HostCq), NicError> {
    let mem = HostMem::alloc(32768).unwrap();
    let part = |at, n| View::new(&mem, at, n).unwrap();
    let (uar, cq_dbr, cqes) = (part(0, 4096), part(4096, 8), part(8192, 8192));
    let (ring, dbr) = (part(16384, 1024), part(20480, 8));
    let attr = CqAttr { ring: cqes.clone(), dbr: cq_dbr.clone(), uar, notify: None };
    let cq = nic.create_cq(&attr).unwrap();
    let (pd, stride_log) = (nic.default_pd().clone(), 6);
    let attr = SrqAttr { pd, ring: ring.clone(), stride_log, dbr: dbr.clone(), limit: 0 };
    let tags = TagAttr { cq, uidx: 9, tags: 15, cyclic: false };
    Ok((nic.create_tag_srq(&attr, tags)?, ring, dbr, HostCq::new(&cqes, &cq_dbr)))
}

impl Tags {
    fn new(faults: &str, with: &Change) -> Self {
        let (nics, engines) = packet_nics(faults, true);
        let (srq, ring, dbr, cqes) = tag_srq(&nics[1]).unwrap();
        let matching = |attr: &QpAttr| make_typed(&nics[1], QpType::Rc, attr, Some(srq.clone()));
        let sender = make_typed(&nics[0], QpType::Rc, &attr(), None);
        // The NIC's own READs and SENDs need no send queue.
        let no_queues = QpAttr { sq_blocks: 0, rq_wqes: 0, ..attr() };
        let receiver = matching(&no_queues);
        let mtu = Some(Mtu::new(MTU).unwrap());
        connect(&sender.0, &receiver.0, &Change { path_mtu: mtu, ..*with });
        let end = |nic, (qp, memory): (Arc<Qp>, _), iova| {
            let host = HostQp::new(&*qp);
            End { qp, host, memory, buf: Buf::new(nic, 128 << 10, iova, Access::ALL) }
        };
        let (a, b) = (end(&nics[0], sender, 0x10_0000), end(&nics[1], receiver, 0x7000_0000));
        let (list_qp, memory) = matching(&QpAttr { rq_wqes: 0, ..attr() });
        list_qp.connect_with(&Connection::new(list_qp.address(), list_qp.address())).unwrap();
        let list = HostQp::new(&*list_qp);
        let pair = Pair { nics, engines, a, b, now_ns: 0, recorded: Check::new() };
        let (posted, tail, handled) = (0, 0, 0);
        let mut tags = Self {
            pair,
            srq,
            ring,
            dbr,
            posted,
            cqes,
            list,
            list_qp,
            _memory: memory,
            tail,
            handled,
        };
        (0..4).for_each(|_| tags.post());
        (0..4).for_each(|_| {
            tags.pair.a.host.rq.post(&[tags.pair.a.buf.sge(120 << 10, 64)]).map(|_| ()).unwrap()
        });
        tags
    }

    /// Posts the next receive of the pool.
    fn post(&mut self) {
        let index = self.posted % 16;
        let mut wqe = [0; 64];
        wqe[2..4].copy_from_slice(&((index + 1) % 16).to_be_bytes());
        let at = self.pair.b.buf.sge(POOL + u64::from(index) * u64::from(POOL_BYTES), POOL_BYTES);
        wqe[16..32].copy_from_slice(bytemuck::bytes_of(&at.emit()));
        let end = DataSeg { lkey: INVALID_LKEY.0.into(), ..DataSeg::default() };
        wqe[32..48].copy_from_slice(bytemuck::bytes_of(&end));
        self.ring.write(usize::from(index) * 64, &wqe).unwrap();
        self.posted += 1;
        self.dbr.store_u32(DBR_RCV_OFFSET, dbr_word(self.posted), Ordering::Release).unwrap();
    }

    /// Posts a list operation: what it does (1 appends, 2 removes), the place that it says, tag, mask, memory.
    fn operate(&mut self, op: u8, place: u16, (tag, mask): (u64, u64), memory: Sge) {
        let index = self.list.sq.post(&SendWr::new(Opcode::Nop)).unwrap();
        let mut wqe = [0; 64];
        wqe[1..3].copy_from_slice(&(index as u16).to_be_bytes());
        wqe[3] = 0x28;
        wqe[4..8].copy_from_slice(&(self.list_qp.qpn().0 << 8 | 4).to_be_bytes());
        (wqe[16], wqe[17]) = (op << 4, 0xc0);
        wqe[18..20].copy_from_slice(&place.to_be_bytes());
        wqe[22..24].copy_from_slice(&self.handled.to_be_bytes());
        wqe[32..40].copy_from_slice(&tag.to_be_bytes());
        wqe[40..48].copy_from_slice(&mask.to_be_bytes());
        wqe[48..64].copy_from_slice(bytemuck::bytes_of(&memory.emit()));
        self.list_qp.queues().sq.write(index as usize % 64 * 64, &wqe).unwrap();
        self.list.sq.ring().unwrap();
        self.pair.settle();
    }

    /// Appends an entry whose memory is a part of B's buffer; its place.
    fn append(&mut self, tag: u64, offset: u64, bytes: u32) -> u16 {
        let (place, next) = (self.tail, (self.tail + 1) % 16);
        self.operate(1, next, (tag, 0xffff), self.pair.b.buf.sge(offset, bytes));
        let told = self.told();
        assert_eq!(told, [(CqeOpcode::NoPacket, Some(Told::Append), 0, 0)]);
        self.tail = next;
        place
    }

    fn cqes(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.cqes.poll().unwrap()).collect()
    }

    /// Opcode, what is told, place of the entry, bytes.
    fn told(&mut self) -> Vec<(CqeOpcode, Option<Told>, u16, u32)> {
        let of =
            |c: &Cqe| (c.opcode, c.tag.map(|t| t.told), c.tag.map_or(0, |t| t.index), c.byte_cnt);
        self.cqes().iter().map(of).collect()
    }

    fn send(&mut self, message: &[u8]) -> Vec<Option<Syndrome>> {
        let a = &mut self.pair.a;
        a.buf.put(0, message);
        let data = [a.buf.data(0, message.len() as u32)];
        a.host.send(&SendWr::new(Opcode::Send).payload(&data)).unwrap();
        self.pair.run_until(2_000_000_000, |_| false);
        syndromes(&self.pair.sent())
    }

    /// Sends a request for a rendezvous of bytes at an offset of A's buffer.
    fn offer(&mut self, tag: u64, (offset, bytes): (u64, u32)) -> Vec<Option<Syndrome>> {
        let (at, rkey) = (self.pair.a.buf.at(offset), self.pair.a.buf.mr.rkey.0);
        self.send(&offer(tag, (at.0, rkey, bytes)))
    }
}

fn message(kind: u8, tag: u64, payload: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 7, 7, 7, 7][..], &tag.to_be_bytes(), payload].concat()
}

fn offer(tag: u64, (addr, rkey, bytes): (u64, u32, u32)) -> Vec<u8> {
    let place = [&addr.to_be_bytes()[..], &rkey.to_be_bytes(), &bytes.to_be_bytes()].concat();
    message(RENDEZVOUS, tag, &place)
}

const SEND: CqeOpcode = CqeOpcode::RespSend;

#[test]
fn a_message_goes_to_the_entry_that_it_matches_without_its_header() {
    let mut t = Tags::new("", &Change::default());
    t.append(1, 0, 200);
    let place = t.append(2, 1000, 200);
    let data = pattern(150, 1);
    assert_eq!(t.send(&message(EAGER, 0x7_0002, &data)), [None], "bits beyond the mask");
    let cqes = t.cqes();
    let tag = cqes[0].tag.unwrap();
    assert_eq!((tag.told, tag.index, cqes[0].byte_cnt), (Told::ConsumedMessage, place, 150));
    assert_eq!((cqes[0].uidx, &tag.head[..]), (9, &message(EAGER, 0x7_0002, &[])[..]));
    assert_eq!(
        (t.pair.b.buf.get(1000, 151), t.pair.b.buf.get(0, 200)),
        ([&data[..], &[0]].concat(), vec![0; 200])
    );
    // It was there once; the next goes to a receive, as does what takes no part.
    assert_eq!(t.send(&message(EAGER, 2, &data)), [None]);
    assert_eq!(t.told(), [(SEND, Some(Told::Unexpected), 0, 166)]);
    assert_eq!(t.pair.b.buf.get(POOL as usize, 166), message(EAGER, 2, &data));
    for odd in [&message(NO_TAG, 1, &data), &message(2, 1, &[]), &[EAGER; 15][..], &[]] {
        assert_eq!(t.send(odd), [None]);
        assert_eq!(t.told(), [(SEND, Some(Told::NoTag), 0, odd.len() as u32)]);
        t.post();
    }
    assert_eq!(t.send(&message(EAGER, 1, &[])), [None]);
    assert_eq!(t.told(), [(SEND, Some(Told::ConsumedMessage), 0, 0)]);
}

#[test]
fn a_long_message_is_told_when_it_matches_and_when_it_is_there() {
    for faults in ["", "loss=20%,seed=3"] {
        let mut t = Tags::new(faults, &Change::default());
        let place = t.append(5, 0, 10_000);
        let data = pattern(10_000, 2);
        assert_eq!(t.send(&message(EAGER, 5, &data)), [None], "{faults}");
        let consumed = (CqeOpcode::NoPacket, Some(Told::Consumed), place, 0);
        assert_eq!(t.told(), [consumed, (SEND, Some(Told::Expected), place, 10_000)], "{faults}");
        assert_eq!(t.pair.b.buf.get(0, 10_000), data);
    }
}

#[test]
fn the_nic_reads_what_a_rendezvous_offers_and_says_so() {
    for faults in ["", "loss=20%,seed=5"] {
        let mut t = Tags::new(faults, &Change::default());
        let place = t.append(5, 0, 50_000);
        let data = pattern(50_000, 4);
        t.pair.a.buf.put(60_000, &data);
        assert_eq!(t.offer(5, (60_000, 50_000)), [None], "{faults}");
        let consumed = (CqeOpcode::NoPacket, Some(Told::Consumed), place, 0);
        assert_eq!(t.told(), [consumed, (SEND, Some(Told::Expected), place, 50_000)], "{faults}");
        assert_eq!(t.pair.b.buf.get(0, 50_000), data);
        let told = t.pair.a.host.poll_recv().unwrap().unwrap();
        assert_eq!((told.opcode, told.byte_cnt), (SEND, 16));
        let end = [&[2, 0, 0, 0, 7, 7, 7, 7][..], &5u64.to_be_bytes()].concat();
        assert_eq!(t.pair.a.buf.get(120 << 10, 16), end);
        assert!(t.pair.b.host.poll_send().unwrap().is_none(), "it is no WQE's");
        // Of nothing.
        let place = t.append(6, 0, 10);
        assert_eq!(t.offer(6, (0, 0)), [None]);
        let consumed = (CqeOpcode::NoPacket, Some(Told::Consumed), place, 0);
        assert_eq!(t.told(), [consumed, (SEND, Some(Told::Expected), place, 0)], "{faults}");
        assert!(t.pair.a.host.poll_recv().unwrap().is_some());
    }
}

#[test]
fn a_rendezvous_that_the_nic_cannot_carry_out_is_the_programs() {
    // Longer than the entry, and without READs of its own.
    let none = Change { max_rd_atomic: Some(0), ..Change::default() };
    for (with, bytes) in [(Change::default(), 101), (none, 100)] {
        let mut t = Tags::new("", &with);
        let place = t.append(5, 0, 100);
        assert_eq!(t.offer(5, (1000, bytes)), [None]);
        assert_eq!(t.told(), [(SEND, Some(Told::ConsumedForSoftware), place, 32)]);
        assert_eq!(t.pair.b.buf.get(0, 1)[0], RENDEZVOUS);
    }
    // Unexpected: all of it is in a receive. Too short to be one: it matches nothing.
    let mut t = Tags::new("", &Change::default());
    t.append(5, 0, 100);
    assert_eq!(t.offer(6, (1000, 50)), [None]);
    assert_eq!(t.send(&message(RENDEZVOUS, 5, &[0; 15])), [None]);
    let unexpected = |bytes| (SEND, Some(Told::Unexpected), 0, bytes);
    assert_eq!(t.told(), [unexpected(32), unexpected(31)]);
}

#[test]
fn a_new_entry_waits_for_the_program_to_handle_what_was_unexpected() {
    let mut t = Tags::new("", &Change::default());
    assert_eq!(t.send(&message(EAGER, 5, b"first")), [None]);
    assert_eq!(t.told(), [(SEND, Some(Told::Unexpected), 0, 21)]);
    // The message that it is for has come already.
    let place = t.append(5, 0, 100);
    assert_eq!(t.send(&message(EAGER, 5, b"next")), [None]);
    assert_eq!(t.told(), [(SEND, Some(Told::Unexpected), 0, 20)], "it would overtake");
    t.handled = 2;
    t.operate(0, 0, (0, 0), t.pair.b.buf.sge(0, 0));
    assert_eq!(t.told(), [(CqeOpcode::NoPacket, Some(Told::Noop), 0, 0)]);
    assert_eq!(t.send(&message(EAGER, 5, b"third")), [None]);
    assert_eq!(t.told(), [(SEND, Some(Told::ConsumedMessage), place, 5)]);
    // What was taken cannot be removed, what was not can.
    for (place, done) in [(place, 0), (t.append(6, 0, 100), 0x80)] {
        t.operate(2, place, (0, 0), t.pair.b.buf.sge(0, 0));
        let cqe = t.cqes()[0];
        let tag = cqe.tag.unwrap();
        assert_eq!((tag.told, tag.head[0], &tag.head[4..6]), (Told::Remove, done, &[0, 2][..]));
    }
    assert_eq!(t.send(&message(EAGER, 6, b"late")), [None]);
    assert_eq!(t.told(), [(SEND, Some(Told::Unexpected), 0, 20)]);
}

#[test]
fn what_is_wrong_with_an_entry_or_an_offer_is_told_as_cancelled() {
    // Longer than the entry, in one packet and in several.
    for bytes in [101, 5000] {
        let mut t = Tags::new("", &Change::default());
        let place = t.append(5, 0, 100);
        let sent = t.send(&message(EAGER, 5, &vec![1; bytes]));
        assert_eq!(sent, [Some(Syndrome::RemoteInvalReq)]);
        let last = *t.told().last().unwrap();
        assert_eq!(last, (SEND, Some(Told::Cancelled), place, 0));
        assert_eq!((t.pair.b.buf.get(0, 101), t.pair.b.qp.state()), (vec![0; 101], QpState::Err));
    }
    // Memory that is none, and memory of the sender that is none.
    // A sender that refuses a READ ends, before it hears of its SEND.
    let flushed = Some(Syndrome::WrFlush);
    for (lkey, rkey, refused) in [(bad_key().0, None, None), (0, Some(bad_key().0), flushed)] {
        let mut t = Tags::new("", &Change::default());
        let mut memory = t.pair.b.buf.sge(0, 100);
        if lkey != 0 {
            memory.lkey = bad_key();
        }
        t.operate(1, 1, (5, 0xffff), memory);
        t.cqes();
        let (at, own) = (t.pair.a.buf.at(1000), t.pair.a.buf.mr.rkey.0);
        assert_eq!(t.send(&offer(5, (at.0, rkey.unwrap_or(own), 100))), [refused]);
        let consumed = (CqeOpcode::NoPacket, Some(Told::Consumed), 0, 0);
        assert_eq!(t.told(), [consumed, (SEND, Some(Told::Cancelled), 0, 0)]);
        assert_eq!((t.pair.b.buf.get(0, 100), t.pair.b.qp.state()), (vec![0; 100], QpState::Err));
        assert!(t.pair.a.host.poll_recv().unwrap().is_none_or(|cqe| cqe.opcode.is_error()));
    }
}

#[test]
fn a_queue_pair_that_ends_cancels_what_has_matched() {
    // A rendezvous whose sender does not answer: of both the first READ alone was sent.
    let mut t = Tags::new("", &Change::default());
    let places = [t.append(5, 0, 1000), t.append(6, 1000, 1000)];
    let a = &mut t.pair.a;
    for tag in [5, 6] {
        let bytes = offer(tag, (a.buf.at(0).0, a.buf.mr.rkey.0, 1000));
        a.host.send(&SendWr::new(Opcode::Send).payload(&inline(&bytes))).unwrap();
    }
    // A's engine sends, B's takes; A answers nothing any more.
    t.pair.engines[0].step(1_000);
    t.pair.engines[1].step(2_000);
    t.pair.b.qp.modify(QpState::Err, &Change::default()).unwrap();
    (3..20).for_each(|n| _ = t.pair.engines[1].step(n * 1_000));
    let cqes = t.told();
    let cancelled = |place| (SEND, Some(Told::Cancelled), place, 0);
    let ends: Vec<_> = cqes.iter().filter(|cqe| cqe.0 == SEND).copied().collect();
    assert_eq!(ends, places.map(cancelled), "{cqes:?}");
}

#[test]
fn an_operation_that_makes_no_sense_ends_its_queue_pair_and_no_other() {
    let mut t = Tags::new("", &Change::default());
    t.append(5, 0, 100);
    let memory = t.pair.b.buf.sge(0, 100);
    // A place that there is not.
    t.operate(1, 16, (6, 0xffff), memory);
    assert_eq!((t.list_qp.state(), t.told()), (QpState::Err, vec![]));
    let cqe = t.list.poll_send().unwrap().unwrap();
    assert_eq!(
        (cqe.opcode, syndromes(&[cqe])),
        (CqeOpcode::ReqErr, vec![Some(Syndrome::LocalQpOp)])
    );
    assert_eq!(t.send(&message(EAGER, 5, b"still")), [None]);
    assert_eq!(t.told(), [(SEND, Some(Told::ConsumedMessage), 0, 5)]);
    // A queue that is closed matches nothing, and nothing is written to its CQ.
    t.srq.close();
    t.pair
        .a
        .host
        .send(&SendWr::new(Opcode::Send).payload(&inline(&message(EAGER, 5, b"x"))))
        .unwrap();
    t.pair.run_for(1_000_000);
    assert_eq!(t.told(), []);
}

#[test]
fn what_cannot_match_tags_is_refused() {
    let (nics, _engines) = packet_nics("", true);
    let (srq, ..) = tag_srq(&nics[0]).unwrap();
    let memory = HostMem::alloc(1 << 20).unwrap();
    let view = View::new(&memory, 0, memory.len()).unwrap();
    let queues = SoftNic::place(&attr(), &view).unwrap();
    for kind in [QpType::Uc, QpType::Ud] {
        let cq = CqAttr {
            ring: queues.send_cq.clone(),
            dbr: queues.send_cq_dbr.clone(),
            uar: queues.uar.clone(),
            notify: None,
        };
        let cq = nics[0].create_cq(&cq).unwrap();
        let objects = bellpush::nic::soft::Objects {
            kind,
            pd: nics[0].default_pd().clone(),
            send_cq: cq.clone(),
            recv_cq: Some(cq),
            srq: Some(srq.clone()),
            uidx: 0,
        };
        let refused =
            nics[0].create_with(&QpAttr { rq_wqes: 0, ..attr() }, queues.clone(), objects);
        let refused = refused.err();
        assert!(matches!(refused, Some(NicError::Attribute { must: "RC", .. })), "{refused:?}");
    }
    let (nic, _engines) = SoftNic::manual(&SoftConfig::default()).unwrap();
    assert!(matches!(tag_srq(&nic).err(), Some(NicError::Attribute { .. })), "no packets");
    // A list operation where there is no list.
    let mut pair = Pair::on_packets("", &attr(), &attr(), &Change::default());
    let index = pair.a.host.sq.post(&SendWr::new(Opcode::Nop)).unwrap();
    let mut wqe = [0; 64];
    wqe[3] = 0x28;
    wqe[4..8].copy_from_slice(&(pair.a.qp.qpn().0 << 8 | 3).to_be_bytes());
    pair.a.qp.queues().sq.write(index as usize * 64, &wqe).unwrap();
    pair.a.host.sq.ring().unwrap();
    pair.settle();
    assert_eq!(syndromes(&pair.sent()), [Some(Syndrome::LocalQpOp)]);
}

/// How a queue pair leaves in the middle of a message.
#[derive(Debug, Clone, Copy)]
enum Leaves {
    Err,
    Reset,
    Destroyed,
}

impl Tags {
    /// Has the first packets of a message arrive, and no more.
    fn begin(&mut self, message: &[u8]) {
        let Pair { a, b, .. } = &mut self.pair;
        // A visit's packets: most are those of a WRITE.
        let write = SendWr::new(Opcode::RdmaWrite).to(b.buf.at(32 << 10), b.buf.mr.rkey);
        a.host.send(&write.payload(&[a.buf.data(64 << 10, 28 << 10)])).unwrap();
        a.buf.put(0, message);
        let data = [a.buf.data(0, message.len() as u32)];
        a.host.send(&SendWr::new(Opcode::Send).payload(&data)).unwrap();
        self.pair.engines[0].step(1_000);
        self.pair.engines[1].step(2_000);
    }

    fn end(&mut self, how: Leaves) {
        let qp = self.pair.b.qp.clone();
        match how {
            Leaves::Err => qp.modify(QpState::Err, &Change::default()).unwrap(),
            Leaves::Reset => qp.modify(QpState::Reset, &Change::default()).unwrap(),
            Leaves::Destroyed => self.pair.nics[1].destroy_qp(qp.qpn()).unwrap(),
        }
        (3..20).for_each(|n| _ = self.pair.engines[1].step(n * 1_000));
        self.pair.now_ns = 20_000;
    }

    /// Sends by the queue pair that is connected to itself.
    fn send_to_itself(&mut self, message: &[u8]) {
        self.list.send(&SendWr::new(Opcode::Send).payload(&inline(message))).unwrap();
        self.pair.run_for(1_000_000);
    }
}

#[test]
fn an_unexpected_message_that_is_given_up_does_not_disable_matching() {
    for how in [None, Some(Leaves::Err), Some(Leaves::Reset), Some(Leaves::Destroyed)] {
        let mut t = Tags::new("", &Change::default());
        match how {
            // Longer than its receive.
            None => _ = t.send(&message(EAGER, 9, &vec![1; 5000])),
            Some(how) => {
                t.begin(&message(EAGER, 9, &vec![1; 4000]));
                t.end(how);
            }
        }
        // The program has not heard of an unexpected message, so it counts none.
        assert!(t.told().iter().all(|told| told.1.is_none()), "{how:?}");
        let place = t.append(5, 0, 100);
        t.send_to_itself(&message(EAGER, 5, b"x"));
        assert_eq!(t.told(), [(SEND, Some(Told::ConsumedMessage), place, 1)], "{how:?}");
    }
}

#[test]
fn an_entry_whose_queue_pair_goes_is_told_as_cancelled() {
    for how in [Leaves::Err, Leaves::Reset, Leaves::Destroyed] {
        let mut t = Tags::new("", &Change::default());
        let place = t.append(5, 0, 4000);
        t.begin(&message(EAGER, 5, &vec![1; 3900]));
        let consumed = |place| (CqeOpcode::NoPacket, Some(Told::Consumed), place, 0);
        let cancelled = |place| (SEND, Some(Told::Cancelled), place, 0);
        assert_eq!(t.told(), [consumed(place)], "{how:?}");
        t.end(how);
        assert_eq!(t.told(), [cancelled(place)], "{how:?}");
        // Rendezvous of which the first was begun.
        let mut t = Tags::new("", &Change::default());
        let places = [t.append(5, 0, 1000), t.append(6, 1000, 1000)];
        let a = &mut t.pair.a;
        for tag in [5, 6] {
            let bytes = offer(tag, (a.buf.at(0).0, a.buf.mr.rkey.0, 1000));
            a.host.send(&SendWr::new(Opcode::Send).payload(&inline(&bytes))).unwrap();
        }
        t.pair.engines[0].step(1_000);
        t.pair.engines[1].step(2_000);
        assert_eq!(t.told(), places.map(consumed), "{how:?}");
        t.end(how);
        assert_eq!(t.told(), places.map(cancelled), "{how:?}");
    }
}

#[test]
fn an_entry_without_memory_takes_a_rendezvous_of_nothing() {
    let mut t = Tags::new("", &Change::default());
    let none = Sge { lkey: INVALID_LKEY, ..t.pair.b.buf.sge(0, 0) };
    for n in 0..3 {
        t.operate(1, n + 1, (5, 0xffff), none);
        assert_eq!(t.told(), [(CqeOpcode::NoPacket, Some(Told::Append), 0, 0)]);
        assert_eq!(t.offer(5, (0, 0)), [None]);
        let consumed = (CqeOpcode::NoPacket, Some(Told::Consumed), n, 0);
        assert_eq!(t.told(), [consumed, (SEND, Some(Told::Expected), n, 0)]);
        assert!(t.pair.a.host.poll_recv().unwrap().is_some());
    }
}

#[test]
fn an_offer_of_wild_lengths_and_addresses_harms_nobody() {
    let (software, cancelled) = (Told::ConsumedForSoftware, Told::Cancelled);
    for (addr, bytes, entry, told) in [
        (u64::MAX - 10, 100, 100, cancelled),
        (u64::MAX, 1, 100, cancelled),
        // Entries of 2 GiB, of a region that is shorter; longer than these: only the header is written.
        (0, 1 << 31, 1 << 31, cancelled),
        (0, (1 << 31) + 1, 1 << 31, software),
        (0, u32::MAX, 1 << 31, software),
        (0, 1 << 31, 100, software),
        (0, u32::MAX, 100, software),
    ] {
        let mut t = Tags::new("", &Change::default());
        t.operate(1, 1, (5, 0xffff), t.pair.b.buf.sge(0, entry));
        t.cqes();
        let rkey = t.pair.a.buf.mr.rkey.0;
        t.send(&offer(5, (addr, rkey, bytes)));
        let last = t.told().pop().unwrap();
        let length = if told == software { 32 } else { 0 };
        assert_eq!(last, (SEND, Some(told), 0, length), "{addr:#x} {bytes:#x}");
        assert_eq!(t.pair.b.qp.state() == QpState::Err, told == cancelled);
    }
}

#[test]
fn a_list_of_a_queue_that_is_closed_takes_no_entry() {
    let mut t = Tags::new("", &Change::default());
    t.srq.close();
    t.operate(1, 1, (5, 0xffff), t.pair.b.buf.sge(0, 100));
    let bytes = message(EAGER, 5, b"x");
    t.pair.a.host.send(&SendWr::new(Opcode::Send).payload(&inline(&bytes))).unwrap();
    t.pair.run_for(1_000_000);
    assert_eq!((t.told(), t.pair.b.buf.get(0, 1)), (vec![], vec![0]));
}

#[test]
fn an_unexpected_message_whose_cqe_finds_no_room_does_not_disable_matching() {
    let mut t = Tags::new("", &Change::default());
    for _ in 0..128 {
        t.post();
        t.send(&message(EAGER, 9, b"x"));
    }
    t.send(&message(EAGER, 9, b"y"));
    assert_eq!(t.pair.b.qp.state(), QpState::Err);
    // Those that the program hears of.
    let told = t.told();
    assert!(told.iter().all(|told| told.1 == Some(Told::Unexpected)));
    t.handled = told.len() as u16;
    let place = t.append(5, 0, 100);
    t.send_to_itself(&message(EAGER, 5, b"x"));
    assert_eq!(t.told(), [(SEND, Some(Told::ConsumedMessage), place, 1)]);
}
