//! Dynamic connections: initiators that turn from target to target, targets that take requests of whoever has the key.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::queue_pairs::{Buf, attr, bad_key, make_typed, packet_nics, pattern, syndromes};
use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::link::{Link, ShmNet, TxBatch};
use bellpush::nic::soft::{DropReason, Engine, InProcess, Qp, SoftConfig, SoftNic, SrqAttr};
use bellpush::nic::{
    Access, AddressVector, Change, Mtu, Nic, NicAddress, NicError, QpAttr, QpState, QpType,
    QueuePair,
};
use bellpush::wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush::wire::doorbell::{DBR_RCV_OFFSET, dbr_word};
use bellpush::wire::roce::{
    Addresses, Bth, Dceth, Envelope, Fields, Headers, MAX_PACKET_BYTES, Opcode as Code, Operation,
    Packet, Service,
};
use bellpush::wire::wqe::{DataSeg, Datagram, INVALID_LKEY, Opcode, Operands, Piece, SendWr, Sge};
use bellpush::wire::{Iova, Psn, Qpn, Rkey};

const KEY: u64 = 0x1234_5678_9abc_def0;
const SLOTS: usize = 16;
const SLOT_BYTES: usize = 2048;

/// A target with the shared receive queue that it has for itself: receive `n` is for slot `n % SLOTS` of its memory.
pub(crate) struct Target {
    pub(crate) qp: Arc<Qp>,
    host: HostQp,
    _memory: Arc<HostMem>,
    pub(crate) buf: Buf,
    ring: View,
    dbr: View,
    posted: u16,
    taken: usize,
}

impl Target {
    fn new(nic: &SoftNic) -> Self {
        let mem = HostMem::alloc(8192).unwrap();
        let (ring, dbr) =
            (View::new(&mem, 0, SLOTS * 64).unwrap(), View::new(&mem, 4096, 8).unwrap());
        let pd = nic.default_pd().clone();
        let srq = SrqAttr { pd, ring: ring.clone(), stride_log: 6, dbr: dbr.clone(), limit: 0 };
        let srq = nic.create_srq(&srq).unwrap();
        let none = QpAttr { sq_blocks: 0, rq_wqes: 0, ..attr() };
        let (qp, memory) = make_typed(nic, QpType::Dct, &none, Some(srq));
        qp.set_dc_key(KEY);
        let init = Change { access: Some(Access::ALL), ..pkey_and_port() };
        qp.modify(QpState::Init, &init).unwrap();
        let av = Some(AddressVector::to(NicAddress::Ip(Ipv4Addr::LOCALHOST.into())));
        let rtr =
            Change { av, path_mtu: Mtu::new(256), min_rnr_timer: Some(1), ..Change::default() };
        qp.modify(QpState::Rtr, &rtr).unwrap();
        let host = HostQp::new(&*qp);
        let buf = Buf::new(nic, SLOTS * SLOT_BYTES, 0x50_0000, Access::ALL);
        Self { qp, host, _memory: memory, buf, ring, dbr, posted: 0, taken: 0 }
    }

    pub(crate) fn post(&mut self) {
        self.post_of(SLOT_BYTES as u32);
    }

    fn post_of(&mut self, bytes: u32) {
        let index = usize::from(self.posted) % SLOTS;
        let mut wqe = [0; 64];
        wqe[2..4].copy_from_slice(&(((index + 1) % SLOTS) as u16).to_be_bytes());
        let to = self.buf.sge((index * SLOT_BYTES) as u64, bytes);
        let seg =
            DataSeg { byte_count: to.bytes.into(), lkey: to.lkey.0.into(), addr: to.addr.0.into() };
        let end = DataSeg { lkey: INVALID_LKEY.0.into(), ..DataSeg::default() };
        wqe[16..32].copy_from_slice(bytemuck::bytes_of(&seg));
        wqe[32..48].copy_from_slice(bytemuck::bytes_of(&end));
        self.ring.write(index * 64, &wqe).unwrap();
        self.posted += 1;
        self.dbr.store_u32(DBR_RCV_OFFSET, dbr_word(self.posted), Ordering::Release).unwrap();
    }

    /// The messages that came, each with its bytes.
    pub(crate) fn take(&mut self) -> Vec<(Cqe, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(cqe) = self.host.poll_recv().unwrap() {
            let bytes = self.buf.get(self.taken % SLOTS * SLOT_BYTES, cqe.byte_cnt as usize);
            self.taken += 1;
            all.push((cqe, bytes));
        }
        all
    }
}

fn pkey_and_port() -> Change {
    Change { pkey_index: Some(0), port: Some(1), ..Change::default() }
}

/// An initiator that gives up soon.
pub(crate) struct Initiator {
    pub(crate) qp: Arc<Qp>,
    pub(crate) host: HostQp,
    _memory: Arc<HostMem>,
}

impl Initiator {
    fn new(nic: &SoftNic) -> Self {
        Self::with(nic, |_| {})
    }

    pub(crate) fn with(nic: &SoftNic, prepare: impl Fn(&Qp)) -> Self {
        let (qp, memory) = make_typed(nic, QpType::Dci, &QpAttr { rq_wqes: 0, ..attr() }, None);
        prepare(&qp);
        let host = HostQp::new(&*qp);
        let made = Self { qp, host, _memory: memory };
        made.begin();
        made
    }

    /// From RESET to RTS.
    pub(crate) fn begin(&self) {
        let qp = &self.qp;
        qp.modify(QpState::Init, &pkey_and_port()).unwrap();
        qp.modify(QpState::Rtr, &Change { path_mtu: Mtu::new(256), ..Change::default() }).unwrap();
        let rts = Change {
            sq_psn: Some(Psn::new(0xff_fff8)),
            timeout: Some(8),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(4),
            ..Change::default()
        };
        qp.modify(QpState::Rts, &rts).unwrap();
    }
}

pub(crate) struct Dc {
    pub(crate) nics: [Arc<SoftNic>; 2],
    engines: Vec<Engine>,
    now_ns: u64,
    pub(crate) from: Vec<Initiator>,
    pub(crate) to: Vec<Target>,
    pub(crate) buf: Buf,
}

impl Dc {
    pub(crate) fn new(faults: &str) -> Self {
        Self::on(packet_nics(faults, true))
    }

    /// The same on NICs that are there.
    pub(crate) fn on((nics, engines): ([Arc<SoftNic>; 2], Vec<Engine>)) -> Self {
        let from = (0..2).map(|_| Initiator::new(&nics[0])).collect();
        let to = (0..2).map(|_| Target::new(&nics[1])).collect();
        let buf = Buf::new(&nics[0], 65536, 0x10_0000, Access::ALL);
        Self { nics, engines, now_ns: 0, from, to, buf }
    }

    pub(crate) fn target(&self, to: usize) -> Datagram {
        let mut datagram =
            Datagram::new(Ipv4Addr::new(127, 0, 0, 2).to_ipv6_mapped(), self.to[to].qp.qpn(), 0);
        (datagram.qkey, datagram.key_low) = ((KEY >> 32) as u32, KEY as u32);
        datagram
    }

    pub(crate) fn post(&mut self, from: usize, to: Datagram, wr: &SendWr<'_>) {
        self.from[from].host.send(&SendWr { datagram: Some(to), ..*wr }).unwrap();
    }

    pub(crate) fn run(&mut self, ns: u64) {
        let end = self.now_ns + ns;
        while self.now_ns < end {
            self.now_ns += 2_000;
            for engine in &mut self.engines {
                engine.step(self.now_ns);
            }
        }
    }

    pub(crate) fn sent(&mut self, from: usize) -> Vec<Cqe> {
        std::iter::from_fn(|| self.from[from].host.poll_send().unwrap()).collect()
    }

    pub(crate) fn send(
        &mut self,
        from: usize,
        to: usize,
        wr: &SendWr<'_>,
    ) -> Vec<Option<Syndrome>> {
        self.post(from, self.target(to), wr);
        self.run(200_000);
        syndromes(&self.sent(from))
    }
}

#[test]
fn each_request_goes_to_the_target_that_it_names() {
    let mut dc = Dc::new("");
    for round in 0..8usize {
        let (from, to) = (round / 2 % 2, round % 2);
        let data = pattern(1 + round * 200, round as u64);
        dc.buf.put(0, &data);
        let (payload, back) =
            ([dc.buf.data(0, data.len() as u32)], [dc.buf.data(8192, data.len() as u32)]);
        dc.to[to].post();
        let wr = SendWr { imm: round as u32, ..SendWr::new(Opcode::SendImm) }.payload(&payload);
        assert_eq!(dc.send(from, to, &wr), [None]);
        let got = dc.to[to].take();
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].0.opcode, got[0].0.imm), (CqeOpcode::RespSendImm, round as u32));
        assert_eq!((got[0].0.qpn, &got[0].1), (dc.to[to].qp.qpn(), &data));
        assert!(dc.to[1 - to].take().is_empty(), "the other one sees nothing");
        let (at, rkey) = (dc.to[to].buf.at(16384), dc.to[to].buf.mr.rkey);
        let write = SendWr::new(Opcode::RdmaWrite).to(at, rkey).payload(&payload);
        assert_eq!(dc.send(from, to, &write), [None]);
        assert_eq!(dc.to[to].buf.get(16384, data.len()), data);
        let read = SendWr::new(Opcode::RdmaRead).to(at, rkey).payload(&back);
        assert_eq!(dc.send(from, to, &read), [None]);
        assert_eq!(dc.buf.get(8192, data.len()), data);
        dc.to[to].buf.put(24576, &7u64.to_ne_bytes());
        let (word, old) = (dc.to[to].buf.at(24576), [dc.buf.data(16384, 8)]);
        let atomic = Some(Operands { swap_add: 5, compare: 0 });
        let add = SendWr { atomic, ..SendWr::new(Opcode::AtomicFa) }.to(word, rkey).payload(&old);
        assert_eq!(dc.send(from, to, &add), [None]);
        assert_eq!(dc.buf.get(16384, 8), 7u64.to_ne_bytes());
        assert_eq!(dc.to[to].buf.get(24576, 8), 12u64.to_ne_bytes());
    }
}

#[test]
fn messages_to_several_targets_arrive_once_and_in_order_over_a_bad_link() {
    let mut dc = Dc::new("loss=3%,dup=2%,reorder=2%,seed=11");
    let mut expected = vec![Vec::new(); 2];
    let mut got = vec![Vec::new(); 2];
    let mut sent = 0;
    for round in 0..60u64 {
        let payloads: Vec<_> = (0..4)
            .map(|i| pattern(1 + (round as usize * 97 + i * 311) % 900, round * 4 + i as u64))
            .collect();
        for (i, data) in payloads.iter().enumerate() {
            dc.buf.put(i * 1024, data);
            // Bursts to one target, and turns between.
            let to = (round as usize / 3 + i / 2) % 2;
            dc.to[to].post();
            expected[to].push(data.clone());
            let payload = [dc.buf.data(i as u64 * 1024, data.len() as u32)];
            let wr = SendWr::new(Opcode::Send).payload(&payload);
            dc.post(0, dc.target(to), &wr);
            sent += 1;
        }
        for _ in 0..400 {
            dc.run(1_000_000);
            let cqes = dc.sent(0);
            assert!(syndromes(&cqes).iter().all(Option::is_none), "{cqes:?}");
            sent -= cqes.len();
            if sent == 0 {
                break;
            }
        }
        assert_eq!(sent, 0, "round {round}: not done");
        for (got, to) in got.iter_mut().zip(&mut dc.to) {
            got.extend(to.take().into_iter().map(|(_, bytes)| bytes));
        }
    }
    assert_eq!(got, expected);
}

#[test]
fn who_has_not_the_key_is_not_answered() {
    let mut dc = Dc::new("");
    dc.to[0].post();
    let data = pattern(100, 1);
    dc.buf.put(0, &data);
    let payload = [dc.buf.data(0, 100)];
    let wr = SendWr::new(Opcode::Send).payload(&payload);
    let wrong = Datagram { key_low: KEY as u32 ^ 1, ..dc.target(0) };
    dc.post(0, wrong, &wr);
    dc.run(100_000_000);
    assert_eq!(syndromes(&dc.sent(0)), [Some(Syndrome::TransportRetryExc)]);
    assert!(dc.nics[1].counters().dropped(DropReason::Qkey) >= 8, "each of its tries");
    assert_eq!(dc.send(1, 0, &wr), [None]);
    assert_eq!(dc.to[0].take().len(), 1);
}

#[test]
fn what_one_initiator_does_wrong_is_told_that_one_alone() {
    let mut dc = Dc::new("");
    let payload = [dc.buf.data(0, 8)];
    let (at, rkey) = (dc.to[0].buf.at(0), dc.to[0].buf.mr.rkey);
    let stray = SendWr::new(Opcode::RdmaWrite).to(at, Rkey(rkey.0 ^ 0x100)).payload(&payload);
    assert_eq!(dc.send(0, 0, &stray), [Some(Syndrome::RemoteAccess)]);
    assert_eq!((dc.from[0].qp.state(), dc.to[0].qp.state()), (QpState::Err, QpState::Rtr));
    assert_eq!(dc.nics[1].next_event(), None, "nothing has befallen the target");
    let good = SendWr::new(Opcode::RdmaWrite).to(at, rkey).payload(&payload);
    assert_eq!(dc.send(1, 0, &good), [None]);
    // Its own mistakes, and an address of another family.
    let nothing = [Piece::Data(Sge { addr: Iova(0), lkey: bad_key(), bytes: 8 })];
    let mistake = SendWr::new(Opcode::Send).payload(&nothing);
    assert_eq!(dc.send(1, 0, &mistake), [Some(Syndrome::LocalProt)]);
    let mut dc = Dc::new("");
    let IpAddr::V6(v6) = "2001:db8::1".parse().unwrap() else { unreachable!() };
    dc.post(0, Datagram { to: v6, ..dc.target(0) }, &SendWr::new(Opcode::Send).payload(&payload));
    dc.run(200_000);
    assert_eq!(syndromes(&dc.sent(0)), [Some(Syndrome::LocalQpOp)]);
}

#[test]
fn a_refusal_is_told_whatever_came_behind_what_was_refused() {
    // All of it arrives at once.
    let mut dc = Dc::new("");
    let payload = [dc.buf.data(0, 8)];
    let (at, rkey) = (dc.to[0].buf.at(0), dc.to[0].buf.mr.rkey);
    let write = |rkey| SendWr::new(Opcode::RdmaWrite).to(at, rkey).payload(&payload);
    dc.post(0, dc.target(0), &write(Rkey(rkey.0 ^ 0x100)));
    (0..3).for_each(|_| dc.post(0, dc.target(0), &write(rkey)));
    dc.run(200_000);
    let flush = Some(Syndrome::WrFlush);
    let told = [Some(Syndrome::RemoteAccess), flush, flush, flush];
    assert_eq!(syndromes(&dc.sent(0)), told);
    assert_eq!(dc.nics[0].counters().sequence_naks, 0, "nothing is missing");
    // A SEND that its receive has no room for is not for the next receive.
    dc.to[0].post_of(100);
    dc.to[0].post();
    let long = [dc.buf.data(0, 200)];
    dc.post(1, dc.target(0), &SendWr::new(Opcode::Send).payload(&long));
    dc.post(1, dc.target(0), &write(rkey));
    dc.run(20_000_000);
    assert_eq!(syndromes(&dc.sent(1)), [Some(Syndrome::RemoteInvalReq), flush]);
    let got: Vec<Cqe> = dc.to[0].take().into_iter().map(|(cqe, _)| cqe).collect();
    assert_eq!(syndromes(&got), [Some(Syndrome::LocalLength)]);
}

#[test]
fn what_there_is_not_is_refused() {
    let (nics, _engines) = packet_nics("", true);
    let queues = |attr: &QpAttr| {
        let memory = HostMem::alloc(nics[0].queue_bytes(attr)).unwrap();
        (SoftNic::place(attr, &View::new(&memory, 0, memory.len()).unwrap()).unwrap(), memory)
    };
    let refused = |nic: &SoftNic, kind, attr: &QpAttr| {
        let (queues, _memory) = queues(attr);
        let pd = nic.default_pd().clone();
        let (ring, dbr, uar) =
            (queues.send_cq.clone(), queues.send_cq_dbr.clone(), queues.uar.clone());
        let cq =
            nic.create_cq(&bellpush::nic::soft::CqAttr { ring, dbr, uar, notify: None }).unwrap();
        let recv_cq = Some(cq.clone());
        let objects =
            bellpush::nic::soft::Objects { kind, pd, send_cq: cq, recv_cq, srq: None, uidx: 0 };
        matches!(nic.create_with(attr, queues, objects), Err(NicError::Attribute { .. }))
    };
    assert!(
        refused(&nics[0], QpType::Dct, &QpAttr { rq_wqes: 0, ..attr() }),
        "a target without an SRQ"
    );
    assert!(refused(&nics[0], QpType::Dci, &attr()), "an initiator with receives");
    let (alone, _engines) = SoftNic::manual(&SoftConfig::new(&InProcess::new())).unwrap();
    assert!(refused(&alone, QpType::Dci, &QpAttr { rq_wqes: 0, ..attr() }), "without packets");
    let target = Target::new(&nics[0]);
    assert!(matches!(
        target.qp.modify(QpState::Rts, &Change::default()),
        Err(NicError::State { .. })
    ));
}

/// A target, and packets of somebody who words them himself.
struct Wire {
    link: Box<dyn Link>,
    engine: Engine,
    nic: Arc<SoftNic>,
    to: Target,
    now_ns: u64,
}

impl Wire {
    fn new() -> Self {
        let net = ShmNet::anonymous(true).unwrap();
        let link = Box::new(net.attach(Ipv4Addr::new(127, 0, 0, 1).into()).unwrap());
        let theirs = Box::new(net.attach(Ipv4Addr::new(127, 0, 0, 2).into()).unwrap());
        let (nic, engine) = SoftNic::manual_on(&SoftConfig::default(), theirs).unwrap();
        let to = Target::new(&nic);
        Self { link, engine, nic, to, now_ns: 0 }
    }

    /// Sends a packet of a SEND, in a session of queue pair `source`; the operations that are answered.
    fn send(
        &mut self,
        source: u32,
        (life, start, psn): (u32, u32, u32),
        operation: Operation,
        payload: &[u8],
    ) -> Vec<Operation> {
        let mut headers = Headers::new(Bth::new(
            Code::new(Service::Dc, operation),
            self.to.qp.qpn(),
            Psn::new(psn),
        ));
        headers.bth.ack_req = true;
        headers.ext.dc =
            Some(Dceth { key: KEY, source: Qpn(source), start: Psn::new(start), life });
        let (me, them) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let envelope = Envelope::new(Addresses::new(me, them).unwrap(), 0xc000)
            .with(&Fields { src_port: 0xc000, ..Fields::default() });
        let mut batch = TxBatch::new(1);
        let fields = Fields { src_port: 0xc000, ..Fields::default() };
        assert!(batch.push_with(them, fields, |buf| {
            let mut frame = headers.emit(payload.len(), &mut buf[..MAX_PACKET_BYTES]);
            frame.payload_mut().copy_from_slice(payload);
            Some(frame.finish(Some(&envelope)))
        }));
        self.link.send(0, &mut batch).unwrap();
        let mut answers = Vec::new();
        for _ in 0..20 {
            self.now_ns += 1_000;
            self.engine.step(self.now_ns);
            self.link
                .recv(0, 16, &mut |received| {
                    let packet = Packet::parse(received.bytes).unwrap();
                    assert_eq!(
                        (packet.headers.bth.dest, packet.opcode().service()),
                        (Qpn(source), Service::Dc)
                    );
                    answers.push(packet.opcode().operation());
                })
                .unwrap();
        }
        answers
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.nic.counters().dropped(reason)
    }
}

#[test]
fn packets_of_a_session_that_has_ended_are_dropped() {
    let mut wire = Wire::new();
    (0..4).for_each(|_| wire.to.post());
    let only = Operation::SendOnly;
    assert_eq!(wire.send(7, (1, 100, 100), only, b"one"), [Operation::Acknowledge]);
    // Again, as if the acknowledgement were lost: it is said again, and not received again.
    assert_eq!(wire.send(7, (1, 100, 100), only, b"one"), [Operation::Acknowledge]);
    assert_eq!(wire.send(7, (1, 101, 101), only, b"two"), [Operation::Acknowledge]);
    assert!(wire.send(7, (1, 100, 100), only, b"one").is_empty(), "an answer to what is over");
    assert_eq!(wire.dropped(DropReason::Duplicate), 1);
    // Connected anew, from an earlier PSN on; and another with the same PSNs.
    assert_eq!(wire.send(7, (2, 50, 50), only, b"three"), [Operation::Acknowledge]);
    assert_eq!(wire.send(8, (2, 50, 50), only, b"four"), [Operation::Acknowledge]);
    let got: Vec<_> = wire.to.take().into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(got, [&b"one"[..], b"two", b"three", b"four"]);
}

#[test]
fn packets_of_the_life_before_are_dropped() {
    let mut wire = Wire::new();
    (0..4).for_each(|_| wire.to.post());
    let only = Operation::SendOnly;
    for (life, start) in [(u32::MAX, 100), (0, 0x80_0200), (1, 300)] {
        assert_eq!(wire.send(7, (life, start, start), only, b"new"), [Operation::Acknowledge]);
        let before = (life.wrapping_sub(1), 0x40_0000, 0x40_0000);
        assert!(wire.send(7, before, only, b"late").is_empty(), "an answer to what is over");
    }
    assert_eq!((wire.dropped(DropReason::Duplicate), wire.to.take().len()), (3, 3));
}

/// Half of all PSNs: 8.4 million packets, four seconds.
#[test]
fn a_target_is_found_again_after_half_of_all_psns_went_to_another() {
    let mut dc = Dc::new("");
    let payload = [dc.buf.data(0, (SLOTS * SLOT_BYTES) as u32)];
    let packets = (SLOTS * SLOT_BYTES / 256) as u32;
    let write = |dc: &Dc, to: usize| {
        let (at, rkey) = (dc.to[to].buf.at(0), dc.to[to].buf.mr.rkey);
        SendWr::new(Opcode::RdmaWrite).to(at, rkey).payload(&payload)
    };
    let wr = write(&dc, 0);
    assert_eq!(dc.send(0, 0, &wr), [None]);
    let wr = write(&dc, 1);
    for _ in 0..Psn::MODULUS / 2 / packets + 1 {
        dc.post(0, dc.target(1), &wr);
        while dc.from[0].host.poll_send().unwrap().is_none() {
            dc.run(2_000);
        }
    }
    let wr = write(&dc, 0);
    assert_eq!(dc.send(0, 0, &wr), [None], "taken for an old session");
}

#[test]
fn a_session_that_ends_within_a_message_leaves_its_receive_to_the_next() {
    let mut wire = Wire::new();
    wire.to.post();
    assert_eq!(
        wire.send(7, (1, 10, 10), Operation::SendFirst, &[1; 256]),
        [Operation::Acknowledge]
    );
    assert_eq!(wire.send(7, (1, 12, 12), Operation::SendOnly, b"whole"), [Operation::Acknowledge]);
    let got = wire.to.take();
    assert_eq!((got.len(), &got[0].1[..]), (1, &b"whole"[..]));
}

#[test]
fn more_initiators_than_a_target_remembers_wait_until_others_were_long_silent() {
    let mut wire = Wire::new();
    wire.to.post();
    for source in 0..4096 {
        wire.send(0x1000 + source, (1, 5, 6), Operation::SendOnly, b""); // a packet is missing: it is told so
    }
    assert!(wire.send(0x9000, (1, 5, 5), Operation::SendOnly, b"late").is_empty());
    assert_eq!(wire.dropped(DropReason::NoReceive), 1);
    wire.now_ns += 600_000_000_000;
    assert_eq!(
        wire.send(0x9000, (1, 5, 5), Operation::SendOnly, b"late"),
        [Operation::Acknowledge]
    );
}
