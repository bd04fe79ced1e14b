//! Sequences of packets against a live queue pair: what the bytes of an input say, done by a peer
//! that means harm. Any input is a session; a fuzzer and property tests make them up.
//!
//! What a packet's own bytes say is wrong (`wrong`) has to be refused, whatever came before it: it
//! is counted or answered with a NAK, delivers nothing, fetches nothing and changes no byte.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::queue::{HostCq, HostQp};
use bellpush::nic::soft::link::{Link, Received, ShmLink, ShmNet, TxBatch};
use bellpush::nic::soft::{
    Cq, CqAttr, Engine, MwType, Objects, Qp, SoftConfig, SoftNic, Srq, SrqAttr, XrcSrq, Xrcd,
};
use bellpush::nic::{
    Access, Connection, MAX_RD_ATOMIC, Mr, Mtu, Nic, NicAddress, QpAddress, QpAttr, QpState,
    QpType, QueuePair,
};
use bellpush::wire::doorbell::{DBR_RCV_OFFSET, dbr_word};
use bellpush::wire::roce::{
    Addresses, Aeth, AtomicEth, BTH_BYTES, Bth, Dceth, Deth, Envelope, Headers, ICRC_BYTES,
    MAX_PACKET_BYTES, Opcode, Operation, Packet, Position, Reth, Service, Syndrome, icrc,
};
use bellpush::wire::umr::{ANY_QPN, Part, Translation, Umr, mask};
use bellpush::wire::wqe::{self, Datagram, Masks, Operands, Piece, SendWr, Sge};
use bellpush::wire::{Iova, Psn, Qpn, Rkey};

const ME: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const VICTIM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Whom the victim is not connected to.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const GUARD: usize = 4096;
const BODY: usize = 4096;
const IOVA: u64 = 0x1_0000;
const PSN: u32 = 0xff_fff0;
const MY_QPN: Qpn = Qpn(0x77);
const QKEY: u32 = 0x1111;
const DC_KEY: u64 = 0x2222;
const KINDS: [QpType; 5] = [QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcRecv];
/// Operations of a session at most.
const MOST: usize = 200;

/// What a session led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Packets sent to the queue pair.
    pub sent: u64,
    /// Responses that came back.
    pub responses: u64,
    /// Packets that were counted as dropped.
    pub dropped: u64,
    /// Send WQEs posted, and completions seen.
    pub posted: u64,
    pub completed: u64,
    /// Receives completed, and those of them that brought a message.
    pub received: u64,
    pub delivered: u64,
    /// Responses that had data with them, of READs and atomics, and those that refused.
    pub fetched: u64,
    pub naks: u64,
    /// Packets that had to be refused, and were.
    pub refused: u64,
    /// Whether the queue pair ended in ERR.
    pub failed: bool,
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    /// Mostly 0, else something small and signed.
    fn slip(&mut self) -> i32 {
        match self.u8() {
            0..=191 => 0,
            other => i32::from(other) - 224,
        }
    }
}

/// What has to become of a packet that is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// Before anybody looks for what it asks: it is counted, and nobody answers.
    Packet,
    /// In what it asks. Whether that is said depends on what came before it.
    Request,
}

struct Session {
    link: ShmLink,
    stranger: ShmLink,
    batch: TxBatch,
    nic: Arc<SoftNic>,
    engine: Engine,
    qp: Arc<Qp>,
    host: HostQp,
    _memory: Arc<HostMem>,
    /// A region in the middle of memory that nobody may touch.
    guarded: Arc<HostMem>,
    mr: Mr,
    /// A memory window that the victim may bind to parts of the region.
    window: Rkey,
    /// The shared receive queue of an XRC target.
    xrc: Option<Xrc>,
    now_ns: u64,
    /// PSN of the next request, and the one that the victim sends next.
    next: Psn,
    theirs: Psn,
    outcome: Outcome,
}

/// A shared receive queue and its poster.
struct Xrc {
    srq: Arc<Srq>,
    ring: View,
    dbr: View,
    posted: u16,
    cqes: HostCq,
}

impl Xrc {
    /// Of an XRC domain, or of DC targets, which complete to the CQ that comes with it.
    fn new(nic: &SoftNic, xrcd: Option<&Arc<Xrcd>>) -> (Self, Arc<Cq>) {
        let mem = HostMem::alloc(4 * 4096).unwrap();
        let part = |at, n| View::new(&mem, at, n).unwrap();
        let (ring, dbr) = (part(0, 16 * 64), part(4096, 8));
        let (cq_ring, cq_dbr, uar) = (part(2048, 1024), part(4160, 8), part(8192, 4096));
        let attr = CqAttr { ring: cq_ring.clone(), dbr: cq_dbr.clone(), uar, notify: None };
        let cq = nic.create_cq(&attr).unwrap();
        let (pd, limit) = (nic.default_pd().clone(), 0);
        let attr = SrqAttr { pd, ring: ring.clone(), stride_log: 6, dbr: dbr.clone(), limit };
        let srq = match xrcd {
            Some(xrcd) => {
                let xrc = XrcSrq { xrcd: xrcd.clone(), cq: cq.clone(), uidx: 1 };
                nic.create_xrc_srq(&attr, xrc).unwrap()
            }
            None => nic.create_srq(&attr).unwrap(),
        };
        (Self { srq, ring, dbr, posted: 0, cqes: HostCq::new(&cq_ring, &cq_dbr) }, cq)
    }

    fn post(&mut self, sge: Sge) {
        let index = self.posted % 16;
        let end = Sge { lkey: wqe::INVALID_LKEY, addr: Iova(0), bytes: 0 };
        let next = [[0, 0], ((index + 1) % 16).to_be_bytes()].concat();
        let at = usize::from(index) * 64;
        self.ring.write(at, &next).unwrap();
        for (at, sge) in [(at + 16, sge), (at + 32, end)] {
            let words = [&sge.bytes.to_be_bytes()[..], &sge.lkey.0.to_be_bytes()].concat();
            self.ring.write(at, &[words, sge.addr.0.to_be_bytes().into()].concat()).unwrap();
        }
        self.posted = self.posted.wrapping_add(1);
        let word = dbr_word(self.posted);
        self.dbr.store_u32(DBR_RCV_OFFSET, word, Ordering::Release).unwrap();
    }
}

/// A DC target that takes its receives from there.
fn dct(nic: &SoftNic, receives: &Xrc, cq: Arc<Cq>) -> (Arc<Qp>, Arc<HostMem>) {
    let attr = QpAttr { sq_blocks: 0, rq_wqes: 0, ..crate::queue_pairs::attr() };
    let memory = HostMem::alloc(nic.queue_bytes(&attr)).unwrap();
    let queues = SoftNic::place(&attr, &View::new(&memory, 0, memory.len()).unwrap()).unwrap();
    let objects = Objects {
        kind: QpType::Dct,
        pd: nic.default_pd().clone(),
        send_cq: cq.clone(),
        recv_cq: Some(cq),
        srq: Some(receives.srq.clone()),
        uidx: 1,
    };
    let qp = nic.create_with(&attr, queues, objects).unwrap();
    qp.set_dc_key(DC_KEY);
    (qp, memory)
}

impl Session {
    fn new(kind: QpType) -> Self {
        let net = ShmNet::anonymous(true).unwrap();
        let link = net.attach(ME.into()).unwrap();
        let stranger = net.attach(STRANGER.into()).unwrap();
        let config = SoftConfig { seed: Some(1), ..SoftConfig::default() };
        let their_link = Box::new(net.attach(VICTIM.into()).unwrap());
        let (nic, engine) = SoftNic::manual_on(&config, their_link).unwrap();
        let mut xrc = None;
        let (qp, memory) = if kind == QpType::XrcRecv {
            let xrcd = nic.create_xrcd();
            xrc = Some(Xrc::new(&nic, Some(&xrcd)).0);
            (nic.create_xrc_recv(&xrcd).unwrap(), HostMem::alloc(1).unwrap())
        } else if kind == QpType::Dct {
            let (receives, cq) = Xrc::new(&nic, None);
            let target = dct(&nic, &receives, cq);
            xrc = Some(receives);
            target
        } else {
            crate::queue_pairs::make_typed(&nic, kind, &crate::queue_pairs::attr(), None)
        };
        let host = HostQp::new(&*qp);
        let guarded = HostMem::alloc(BODY + 2 * GUARD).unwrap();
        guarded.fill(0, guarded.len(), 0xa5).unwrap();
        let view = View::new(&guarded, GUARD, BODY).unwrap();
        let mr = nic.register(Arc::new(view), Iova(IOVA), Access::ALL).unwrap();
        let window = nic.alloc_mw(nic.default_pd(), MwType::Two).unwrap();
        let me = QpAddress {
            nic: NicAddress::Ip(IpAddr::V4(ME)),
            qpn: MY_QPN,
            psn: Psn::new(PSN),
            mtu: Mtu::ALL[0],
            rd_atomic: MAX_RD_ATOMIC,
        };
        let mut connection = Connection::new(qp.address(), me);
        connection.with.timeout = Some(5);
        connection.with.retry_cnt = Some(2);
        connection.with.rnr_retry = Some(2);
        connection.with.max_dest_rd_atomic = Some(4);
        connection.with.qkey = Some(QKEY);
        match kind {
            QpType::Dct => {
                let (init, rtr) = (QpState::Init, QpState::Rtr);
                qp.modify(init, &connection.change(kind, init)).unwrap();
                qp.modify(rtr, &connection.change(kind, rtr)).unwrap();
            }
            _ => qp.connect_with(&connection).unwrap(),
        }
        let theirs = qp.address().psn;
        Self {
            link,
            stranger,
            batch: TxBatch::new(8),
            nic,
            engine,
            qp,
            host,
            _memory: memory,
            guarded,
            mr,
            window,
            xrc,
            now_ns: 0,
            next: Psn::new(PSN),
            theirs,
            outcome: Outcome::default(),
        }
    }

    /// A packet that is right but for what the input does to it.
    fn packet(&mut self, input: &mut Input<'_>) {
        let code = input.u8();
        let Some(opcode) = Opcode::from_code(code) else { return self.noise(input) };
        let operation = opcode.operation();
        let slip = input.slip();
        let base = if operation.is_response() { self.theirs } else { self.next };
        let psn = Psn::new(base.value().wrapping_add_signed(slip));
        if operation.is_request() && slip == 0 {
            self.next = self.next.plus(1);
        }
        let flags = input.u8();
        let mut bth = Bth::new(opcode, self.qp.qpn(), psn);
        (bth.ack_req, bth.solicited) = (flags & 1 != 0, flags & 2 != 0);
        if flags & 0xf8 == 0xf8 {
            bth.pkey = input.u16();
        }
        let rkey = match flags & 0x0c {
            0x0c => Rkey(input.u32()),
            0x08 => self.window,
            _ => self.mr.rkey,
        };
        let addr = Iova(IOVA.wrapping_add_signed(i64::from(input.u16() as i16)));
        let payload_bytes = match (operation.has_payload(), flags >> 4 & 3) {
            (false, _) => 0,
            (true, 0) => 256,
            (true, _) => usize::from(input.u16() % 300),
        };
        let set = opcode.extensions();
        let mut headers = Headers::new(bth);
        let ext = &mut headers.ext;
        let known = self.xrc.as_ref().map_or(0, |xrc| xrc.srq.number());
        ext.srqn = set.xrc.then_some(known + u32::from(flags & 0xc4 == 0xc4));
        let start = Psn::new(PSN);
        let key = DC_KEY ^ u64::from(flags >> 7);
        ext.dc = set.dc.then_some(Dceth { key, source: MY_QPN, start, life: 1 });
        ext.deth = set.deth.then_some(Deth { qkey: QKEY ^ u32::from(flags >> 7), source: MY_QPN });
        if set.reth {
            let bytes = match flags >> 6 {
                0 => payload_bytes as u32,
                1 => u32::from(input.u16()) % 4500,
                2 => input.u32(),
                _ => 256 * (1 + u32::from(input.u8() % 4)),
            };
            ext.reth = Some(Reth { addr, rkey, bytes });
            if slip == 0 && bytes < 5000 && !operation.has_payload() {
                self.next = self.next.plus(bytes.div_ceil(256).max(1) - 1);
            }
        }
        if set.atomic {
            let addr = Iova(addr.0 & !u64::from(flags >> 6 == 0) & !7 | u64::from(flags >> 6 == 0));
            ext.atomic = Some(AtomicEth { addr, rkey, swap_add: 1, compare: 0 });
        }
        if set.masks {
            let bytes = [8, 4, 0, u32::MAX][usize::from(input.u8() & 3)];
            let (change, compare) = (input.u32().into(), input.u32().into());
            ext.masks = Some(Masks { bytes, change, compare });
        }
        if set.aeth {
            let syndrome = Syndrome::from_code(input.u8()).unwrap_or(Syndrome::ACK);
            ext.aeth = Some(Aeth { syndrome, msn: input.u16().into() });
        }
        ext.atomic_ack = set.atomic_ack.then_some(7);
        ext.imm = set.imm.then_some(9);
        ext.ieth = set.ieth.then_some(rkey);
        let mut buf = [0; MAX_PACKET_BYTES];
        let mut frame = headers.emit(payload_bytes, &mut buf);
        frame.payload_mut().fill(0x5a);
        let n = frame.finish(None);
        let flips = input.u8();
        for _ in 0..flips.saturating_sub(250) {
            let at = usize::from(input.u16()) % n;
            buf[at] ^= input.u8();
        }
        let from = if flips == 201 { STRANGER } else { ME };
        self.send(from, &mut buf[..n], flips != 200);
    }

    /// Anything.
    fn noise(&mut self, input: &mut Input<'_>) {
        let mut bytes: Vec<u8> = (0..input.u8()).map(|_| input.u8()).collect();
        let right = input.u8() & 1 == 0 && bytes.len() >= BTH_BYTES + ICRC_BYTES;
        self.send(ME, &mut bytes, right);
    }

    fn send(&mut self, from: Ipv4Addr, bytes: &mut [u8], right_icrc: bool) {
        let addresses = Addresses::V4 { src: from, dst: VICTIM };
        let envelope = Envelope::new(addresses, self.link.src_port());
        if right_icrc {
            let (body, tail) = bytes.split_at_mut(bytes.len() - ICRC_BYTES);
            tail.copy_from_slice(&icrc(&envelope, body).to_le_bytes());
        }
        let wrong = self.wrong(bytes, &envelope);
        if wrong.is_some() {
            self.rest();
        }
        let (before, body, drops) = (self.outcome, self.body(), self.drops());
        let built = self.batch.push(VICTIM.into(), |buf| {
            buf[..bytes.len()].copy_from_slice(bytes);
            Some(bytes.len())
        });
        assert!(built);
        self.outcome.sent += 1;
        while !self.batch.is_empty() {
            let link = if from == ME { &mut self.link } else { &mut self.stranger };
            link.send(self.now_ns, &mut self.batch).unwrap();
            self.step(1);
        }
        let Some(wrong) = wrong else { return };
        self.rest();
        let after = &self.outcome;
        let harm = (after.delivered, after.fetched) != (before.delivered, before.fetched);
        assert!(!harm && self.body() == body, "carried out ({wrong:?}): {bytes:x?}");
        if wrong == Wrong::Packet {
            assert_eq!(self.drops(), drops + 1, "not counted: {bytes:x?}");
            assert_eq!(after.responses, before.responses, "answered: {bytes:x?}");
        }
        self.outcome.refused += 1;
    }

    /// Steps until nothing comes any more.
    fn rest(&mut self) {
        for _ in 0..100 {
            let before = self.outcome;
            self.step(2);
            if self.outcome == before {
                return;
            }
        }
    }

    /// What is wrong about a packet, if its own bytes, and who sends them, say it.
    fn wrong(&self, bytes: &[u8], envelope: &Envelope) -> Option<Wrong> {
        if Packet::check(bytes, envelope).is_err() {
            return Some(Wrong::Packet);
        }
        let Ok(packet) = Packet::parse(bytes) else { return Some(Wrong::Packet) };
        let (bth, ext) = (&packet.headers.bth, &packet.headers.ext);
        let service = match self.qp.kind() {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::Dct => Service::Dc,
            _ => Service::Xrc,
        };
        // Datagrams come from anybody, and a target's requests from whoever has the key.
        let open = matches!(service, Service::Ud | Service::Dc);
        let stranger = envelope.addresses.src() != ME && !open;
        if bth.pkey & 0x7fff != 0x7fff
            || bth.dest != self.qp.qpn()
            || packet.opcode().service() != service
            || stranger
            || ext.deth.is_some_and(|deth| deth.qkey != QKEY)
            || ext.dc.is_some_and(|dc| dc.key != DC_KEY)
        {
            return Some(Wrong::Packet);
        }
        let (operation, n) = (packet.opcode().operation(), packet.payload.len());
        let known = |key| key == self.mr.rkey || key == self.window;
        let within = |key: Rkey, addr: Iova, bytes: u32| {
            let end = u128::from(addr.0) + u128::from(bytes);
            key != self.mr.rkey || addr.0 >= IOVA && end <= u128::from(IOVA) + BODY as u128
        };
        let mtu = Mtu::ALL[0].bytes();
        let length = match operation.position() {
            _ if service == Service::Ud || !(operation.is_send() || operation.is_write()) => true,
            Position::First | Position::Middle => n == mtu,
            Position::Last => n > 0 && n <= mtu,
            Position::Only => n <= mtu && ext.reth.is_none_or(|reth| reth.bytes == n as u32),
        };
        let reach = ext.reth.is_none_or(|Reth { addr, rkey, bytes }| {
            bytes == 0 || known(rkey) && within(rkey, addr, bytes)
        });
        let atomic = ext.atomic.is_none_or(|AtomicEth { addr, rkey, .. }| {
            let plain = !operation.is_masked();
            known(rkey) && (!plain || addr.0.is_multiple_of(8) && within(rkey, addr, 8))
        });
        (!(length && reach && atomic)).then_some(Wrong::Request)
    }

    /// The region's bytes.
    fn body(&self) -> Vec<u8> {
        let mut body = vec![0; BODY];
        self.guarded.read(GUARD, &mut body).unwrap();
        body
    }

    fn drops(&self) -> u64 {
        self.nic.counters().drops.iter().sum()
    }

    fn post_send(&mut self, input: &mut Input<'_>) {
        if self.qp.kind() == QpType::Dct {
            return; // it has no send queue
        }
        let opcode = wqe::Opcode::ALL[usize::from(input.u8()) % wqe::Opcode::ALL.len()];
        if opcode == wqe::Opcode::Umr {
            return self.post_umr(input);
        }
        let bytes = if opcode.is_atomic() { 8 } else { 1 + u32::from(input.u16()) % 2000 };
        let at = Iova(IOVA + u64::from(input.u16() % 2000));
        let payload = [Piece::Data(Sge { addr: at, lkey: self.mr.lkey, bytes })];
        let atomic = Some(Operands { swap_add: 1, compare: 0 });
        let ud = self.qp.kind() == QpType::Ud;
        let to = Datagram::new(ME.to_ipv6_mapped(), MY_QPN, QKEY);
        let wr = SendWr { atomic, datagram: ud.then_some(to), ..SendWr::new(opcode) };
        let wr = if ud { wr } else { wr.to(Iova(8), Rkey(1)) };
        let wr = wr.payload(if opcode == wqe::Opcode::Nop { &[] } else { &payload });
        if self.host.send(&wr).is_ok() {
            self.outcome.posted += 1;
        }
    }

    /// Binds the window to something, mostly within the region, or takes it back.
    fn post_umr(&mut self, input: &mut Input<'_>) {
        let (flags, at, bytes) = (input.u8(), input.u16(), input.u16());
        let (repeat, stride) =
            if flags & 2 != 0 { (1 + u32::from(input.u8()), 40) } else { (1, 0) };
        let addr = Iova(IOVA + u64::from(at % 4500));
        let part = Part { addr, lkey: self.mr.lkey, bytes: u32::from(bytes % 2000).max(1), stride };
        let translation = Translation { repeat, parts: vec![part; usize::from(flags >> 6) + 1] };
        let bind = Umr {
            check_free: flags & 4 != 0,
            tag: Some(self.window.0 as u8),
            qpn: Some(if flags & 8 != 0 { self.qp.qpn() } else { ANY_QPN }),
            free: Some(false),
            start: Some(Iova(IOVA)),
            bytes: Some(translation.bytes()),
            rights: (mask::RIGHTS, mask::RIGHTS),
            translation: Some(translation),
            ..Umr::default()
        };
        let umr = if flags & 1 != 0 { Umr::invalidate() } else { bind };
        if self.host.sq.post_umr(self.window, &umr, wqe::Flags::SIGNALLED).is_ok() {
            self.host.sq.ring().unwrap();
            self.outcome.posted += 1;
        }
    }

    fn post_receive(&mut self, input: &mut Input<'_>) {
        let bytes = u32::from(input.u16()) % 1200;
        let addr = Iova(IOVA + u64::from(input.u16()) % 4500);
        let sge = Sge { addr, lkey: self.mr.lkey, bytes };
        match &mut self.xrc {
            Some(xrc) => xrc.post(sge),
            None => drop(self.host.rq.post(&[sge, sge])), // a full queue stays as it is
        }
    }

    fn step(&mut self, times: u32) {
        for _ in 0..times {
            self.now_ns += 1_000;
            self.engine.step(self.now_ns);
            self.look();
        }
    }

    /// Takes what the victim sent and completed.
    fn look(&mut self) {
        let (outcome, theirs) = (&mut self.outcome, &mut self.theirs);
        self.link
            .recv(self.now_ns, 1024, &mut |received| {
                Packet::check(received.bytes, &received.envelope).expect("a right ICRC");
                let packet = Packet::parse(received.bytes).expect("a well-formed packet");
                let operation = packet.opcode().operation();
                if operation.is_response() {
                    outcome.responses += 1;
                    outcome.fetched += u64::from(operation != Operation::Acknowledge);
                    let nak = |aeth: Aeth| matches!(aeth.syndrome, Syndrome::Nak(_));
                    outcome.naks += u64::from(packet.headers.ext.aeth.is_some_and(nak));
                } else {
                    *theirs = packet.headers.bth.psn;
                }
            })
            .unwrap();
        let sends = self.qp.kind() != QpType::Dct; // its CQ is another than the poster's
        while sends && let Ok(Some(_)) = self.host.poll_send() {
            self.outcome.completed += 1;
        }
        let mut cqe = || match &mut self.xrc {
            Some(xrc) => xrc.cqes.poll().ok().flatten(),
            None => self.host.poll_recv().ok().flatten(),
        };
        while let Some(cqe) = cqe() {
            self.outcome.received += 1;
            self.outcome.delivered += u64::from(!cqe.opcode.is_error());
        }
        let open = self.qp.kind() == QpType::Dct;
        let each = &mut |_: &Received<'_>| assert!(open, "a stranger was answered");
        self.stranger.recv(self.now_ns, 16, each).unwrap();
    }

    fn is_intact(&self) -> bool {
        let mut guards = vec![0; 2 * GUARD];
        self.guarded.read(0, &mut guards[..GUARD]).unwrap();
        self.guarded.read(GUARD + BODY, &mut guards[GUARD..]).unwrap();
        guards.iter().all(|&b| b == 0xa5)
    }
}

/// Runs a session, and checks what must hold whatever was sent.
pub fn session(bytes: &[u8]) -> Outcome {
    let mut input = Input(bytes);
    let kind = match input.u8() {
        0xf0.. => QpType::Dct,
        n => KINDS[usize::from(n) % KINDS.len()],
    };
    let mut s = Session::new(kind);
    for _ in 0..MOST {
        if input.0.is_empty() {
            break;
        }
        match input.u8() % 8 {
            0..=4 => s.packet(&mut input),
            5 => s.post_send(&mut input),
            6 => s.post_receive(&mut input),
            _ => {
                s.now_ns += u64::from(input.u16()) * 1_000;
                s.step(1);
            }
        }
        s.step(2);
    }
    // Whatever waits for an answer gives up.
    for _ in 0..400 {
        s.now_ns += 10_000_000;
        s.step(1);
    }
    assert!(s.is_intact(), "memory outside the region was touched");
    s.outcome.failed = s.qp.state() == QpState::Err;
    s.outcome.dropped = s.drops();
    assert_eq!(s.outcome.completed, s.outcome.posted, "a send neither completed nor failed");
    // Nobody is answered more than the READs of the region's length ask for.
    assert!(s.outcome.responses <= s.outcome.sent * 18, "{:?}", s.outcome);
    s.outcome
}
