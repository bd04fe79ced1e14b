//! Packets that are well-formed and that a queue pair has to refuse: a peer made by hand sends them
//! one by one, and each was counted for its reason or answered with its NAK, changed nothing, and
//! is taken once what is wrong about it has been put right.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::queue_pairs::{Buf, attr, make_typed};
use bellpush::mem::HostMem;
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::link::{Link, ShmLink, ShmNet, TxBatch};
use bellpush::nic::soft::{DropReason, Engine, Qp, SoftConfig, SoftNic};
use bellpush::nic::{
    Access, Connection, MAX_RD_ATOMIC, Mtu, NicAddress, QpAddress, QpState, QpType, QueuePair,
};
use bellpush::wire::roce::{
    Addresses, Aeth, AtomicEth, Bth, Envelope, Headers, MAX_PACKET_BYTES, NakCode, Opcode,
    Operation, Packet, Position, Reth, Service, Syndrome, Tail,
};
use bellpush::wire::{Psn, Qpn, Rkey};

const VICTIM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const PEER_QPN: Qpn = Qpn(0x77);
const MTU: usize = 256;
/// Close to the wrap, so that the messages of these tests cross it.
const PSN: u32 = Psn::MODULUS - 2;
const IOVA: u64 = 0x1_0000;

/// What came back.
type Answer = (Operation, Option<Syndrome>);

/// A queue pair that is connected to an address that tests send from.
struct Victim {
    nic: Arc<SoftNic>,
    engine: Engine,
    qp: Arc<Qp>,
    host: HostQp,
    _memory: Arc<HostMem>,
    buf: Buf,
    links: Vec<(Ipv4Addr, ShmLink)>,
    service: Service,
    next: Psn,
    now_ns: u64,
}

impl Victim {
    fn new(kind: QpType) -> Self {
        let net = ShmNet::anonymous(true).unwrap();
        let links = [PEER, STRANGER].map(|from| (from, net.attach(from.into()).unwrap())).into();
        let link = Box::new(net.attach(VICTIM.into()).unwrap());
        let config = SoftConfig { seed: Some(1), ..SoftConfig::default() };
        let (nic, engine) = SoftNic::manual_on(&config, link).unwrap();
        let (qp, memory) = make_typed(&nic, kind, &attr(), None);
        let me = QpAddress {
            nic: NicAddress::Ip(IpAddr::V4(PEER)),
            qpn: PEER_QPN,
            psn: Psn::new(PSN),
            mtu: Mtu::new(MTU).unwrap(),
            rd_atomic: MAX_RD_ATOMIC,
        };
        let mut connection = Connection::new(qp.address(), me);
        connection.with.max_dest_rd_atomic = Some(4);
        qp.connect_with(&connection).unwrap();
        let host = HostQp::new(&*qp);
        let buf = Buf::new(&nic, 4096, IOVA, Access::ALL);
        let service = if kind == QpType::Rc { Service::Rc } else { Service::Uc };
        let next = Psn::new(PSN);
        let _memory = memory;
        Self { nic, engine, qp, host, _memory, buf, links, service, next, now_ns: 0 }
    }

    fn headers(&self, operation: Operation) -> Headers {
        Headers::new(Bth::new(Opcode::new(self.service, operation), self.qp.qpn(), self.next))
    }

    /// A WRITE's packet; `all` are the message's bytes, which its first packet says.
    fn write(&self, at: Position, all: u32) -> Headers {
        let mut headers = self.headers(Operation::write(at, false));
        let reth = Reth { addr: self.buf.at(0), rkey: self.buf.mr.rkey, bytes: all };
        headers.ext.reth = at.starts().then_some(reth);
        headers
    }

    fn send_packet(&self, at: Position) -> Headers {
        self.headers(Operation::send(at, Tail::Plain))
    }

    fn read(&self) -> Headers {
        let mut headers = self.headers(Operation::ReadRequest);
        headers.ext.reth = Some(Reth { addr: self.buf.at(0), rkey: self.buf.mr.rkey, bytes: 8 });
        headers
    }

    fn fetch_add(&self) -> Headers {
        let mut headers = self.headers(Operation::FetchAdd);
        let (addr, rkey) = (self.buf.at(64), self.buf.mr.rkey);
        headers.ext.atomic = Some(AtomicEth { addr, rkey, swap_add: 1, compare: 0 });
        headers
    }

    /// Sends a packet of so many bytes from an address, and says what came back to the peer.
    fn packet(&mut self, from: Ipv4Addr, headers: &Headers, bytes: usize) -> Vec<Answer> {
        self.packets(from, &[(headers, bytes)])
    }

    /// The same of several, which arrive at once.
    fn packets(&mut self, from: Ipv4Addr, packets: &[(&Headers, usize)]) -> Vec<Answer> {
        let (_, link) = self.links.iter_mut().find(|(addr, _)| *addr == from).unwrap();
        let envelope = Envelope::new(Addresses::V4 { src: from, dst: VICTIM }, link.src_port());
        let mut batch = TxBatch::new(packets.len());
        for &(headers, bytes) in packets {
            assert!(batch.push(VICTIM.into(), |buf| {
                let mut whole = [0; MAX_PACKET_BYTES];
                let mut frame = headers.emit(bytes, &mut whole);
                frame.payload_mut().fill(0x5a);
                let n = frame.finish(Some(&envelope));
                buf[..n].copy_from_slice(&whole[..n]);
                Some(n)
            }));
        }
        assert_eq!(link.send(self.now_ns, &mut batch).unwrap(), packets.len());
        let mut answers = Vec::new();
        for _ in 0..4 {
            self.now_ns += 1_000;
            self.engine.step(self.now_ns);
            for (addr, link) in &mut self.links {
                let each = &mut |received: &bellpush::nic::soft::link::Received<'_>| {
                    assert_eq!(*addr, PEER, "a stranger was answered");
                    let packet = Packet::parse(received.bytes).unwrap();
                    let syndrome = packet.headers.ext.aeth.map(|aeth: Aeth| aeth.syndrome);
                    answers.push((packet.opcode().operation(), syndrome));
                };
                link.recv(self.now_ns, 64, each).unwrap();
            }
        }
        answers
    }

    /// A packet that is taken; nothing of it is counted as dropped.
    fn taken(&mut self, headers: &Headers, bytes: usize) -> Vec<Answer> {
        let drops = self.drops();
        let answers = self.packet(PEER, headers, bytes);
        assert_eq!(self.drops(), drops, "{headers:?}");
        let is_nak = |(_, syndrome): &Answer| {
            matches!(syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak { .. }))
        };
        assert!(!answers.iter().any(is_nak), "{headers:?}: {answers:?}");
        self.next = self.next.plus(1);
        answers
    }

    /// A packet that is dropped for this reason, is not answered, and changes nothing.
    fn dropped(&mut self, from: Ipv4Addr, headers: &Headers, bytes: usize, reason: DropReason) {
        let (before, memory) = (self.nic.counters().dropped(reason), self.memory());
        let drops = self.drops();
        assert_eq!(self.packet(from, headers, bytes), [], "{headers:?}");
        assert_eq!(self.nic.counters().dropped(reason), before + 1, "{headers:?}");
        assert_eq!(self.drops(), drops + 1);
        assert!(self.memory() == memory && self.host.poll_recv().unwrap().is_none());
        assert_eq!(self.qp.state(), QpState::Rts);
    }

    /// A request that is refused for good, and changes nothing.
    fn refused(&mut self, headers: &Headers, bytes: usize, code: NakCode) {
        let memory = self.memory();
        let answers = self.packet(PEER, headers, bytes);
        let nak = (Operation::Acknowledge, Some(Syndrome::Nak(code)));
        assert_eq!(answers, [nak], "{headers:?} of {bytes}");
        assert!(self.memory() == memory, "{headers:?} of {bytes}");
        assert_eq!(self.qp.state(), QpState::Err);
    }

    fn memory(&self) -> Vec<u8> {
        self.buf.get(0, 4096)
    }

    fn drops(&self) -> u64 {
        self.nic.counters().drops.iter().sum()
    }
}

#[test]
fn packets_from_another_address_than_the_peers_are_dropped() {
    for kind in [QpType::Rc, QpType::Uc] {
        let mut v = Victim::new(kind);
        let write = v.write(Position::Only, 8);
        v.dropped(STRANGER, &write, 8, DropReason::Source);
        if kind == QpType::Rc {
            let (read, add) = (v.read(), v.fetch_add());
            v.dropped(STRANGER, &read, 0, DropReason::Source);
            v.dropped(STRANGER, &add, 0, DropReason::Source);
        }
        v.taken(&write, 8);
        assert_eq!(v.buf.get(0, 9), [&[0x5a; 8][..], &[0]].concat());
    }
}

#[test]
fn packets_of_another_partition_are_dropped() {
    for kind in [QpType::Rc, QpType::Uc] {
        let mut v = Victim::new(kind);
        for pkey in [0x1234, 0x8000, 0, 0xfffe, 0x7ffe] {
            let mut write = v.write(Position::Only, 8);
            write.bth.pkey = pkey;
            v.dropped(PEER, &write, 8, DropReason::Pkey);
        }
        // Full and limited members of the default partition.
        for pkey in [0xffff, 0x7fff] {
            let mut write = v.write(Position::Only, 8);
            write.bth.pkey = pkey;
            v.taken(&write, 8);
        }
        assert_eq!(v.buf.get(0, 9), [&[0x5a; 8][..], &[0]].concat());
    }
}

#[test]
fn reads_and_atomics_in_the_middle_of_a_message_are_invalid_requests() {
    for atomic in [false, true] {
        for send in [false, true] {
            let mut v = Victim::new(QpType::Rc);
            v.host.rq.post(&[v.buf.sge(1024, 1024)]).unwrap();
            let first = match send {
                true => v.send_packet(Position::First),
                false => v.write(Position::First, 2 * MTU as u32),
            };
            v.taken(&first, MTU);
            let request = if atomic { v.fetch_add() } else { v.read() };
            v.refused(&request, 0, NakCode::InvalidRequest);
        }
        // The same between two messages.
        let mut v = Victim::new(QpType::Rc);
        let write = v.write(Position::First, 2 * MTU as u32);
        v.taken(&write, MTU);
        let write = v.write(Position::Last, 0);
        v.taken(&write, MTU);
        let request = if atomic { v.fetch_add() } else { v.read() };
        assert_eq!(v.taken(&request, 0).len(), 1);
    }
}

#[test]
fn a_refusal_leaves_behind_the_responses_that_are_due_before_it() {
    for atomic in [false, true] {
        let mut v = Victim::new(QpType::Rc);
        let good = if atomic { v.fetch_add() } else { v.read() };
        v.next = v.next.plus(1);
        let mut bad = v.read();
        bad.ext.reth.as_mut().unwrap().rkey = Rkey(0xff);
        let answers = v.packets(PEER, &[(&good, 0), (&bad, 0)]);
        let response = match atomic {
            true => Operation::AtomicAcknowledge,
            false => Operation::read_response(Position::Only),
        };
        let nak = Syndrome::Nak(NakCode::RemoteAccess);
        let expected = [(response, Some(Syndrome::ACK)), (Operation::Acknowledge, Some(nak))];
        assert_eq!(answers, expected);
        assert_eq!(v.qp.state(), QpState::Err);
    }
}

#[test]
fn packets_of_a_wrong_length_are_invalid_requests() {
    use Position::{First, Last, Middle, Only};
    // What comes before, the packet, and its bytes.
    let wrong: [(&[Position], Position, usize); 8] = [
        (&[], First, MTU - 4),
        (&[], First, 0),
        (&[], First, MTU + 4),
        (&[First], Middle, MTU - 4),
        (&[First], Middle, MTU + 4),
        (&[First], Last, 0),
        (&[First, Middle], Last, MTU + 4),
        (&[], Only, MTU + 4),
    ];
    for (before, at, bytes) in wrong {
        let mut v = Victim::new(QpType::Rc);
        v.host.rq.post(&[v.buf.sge(1024, 2048)]).unwrap();
        for &at in before {
            let packet = v.send_packet(at);
            v.taken(&packet, MTU);
        }
        let packet = v.send_packet(at);
        v.refused(&packet, bytes, NakCode::InvalidRequest);
        // An unreliable connection gives the message up and says nothing.
        let mut v = Victim::new(QpType::Uc);
        v.host.rq.post(&[v.buf.sge(1024, 2048)]).unwrap();
        for &at in before {
            let packet = v.send_packet(at);
            v.taken(&packet, MTU);
        }
        let packet = v.send_packet(at);
        v.dropped(PEER, &packet, bytes, DropReason::Refused);
    }
    // Those that are right, an empty message among them.
    let mut v = Victim::new(QpType::Rc);
    for _ in 0..3 {
        v.host.rq.post(&[v.buf.sge(1024, 2048)]).unwrap();
    }
    let right = [(First, MTU), (Middle, MTU), (Last, 1), (Only, 0), (Only, MTU)];
    for (at, bytes) in right {
        let packet = v.send_packet(at);
        v.taken(&packet, bytes);
    }
    let received = std::iter::from_fn(|| v.host.poll_recv().unwrap());
    let bytes: Vec<_> = received.map(|cqe| cqe.byte_cnt as usize).collect();
    assert_eq!(bytes, [2 * MTU + 1, 0, MTU]);
}

/// Whoever sends in the peer's name has to know three numbers, and what is right but for one of them
/// changes nothing.
#[test]
fn a_packet_that_is_right_but_for_one_number_changes_nothing() {
    let mut v = Victim::new(QpType::Rc);
    let (right, memory) = (v.next, v.memory());
    let half = Psn::MODULUS / 2;
    for off in [1, 2, 0x1234, half - 1, half, half + 1, Psn::MODULUS - 0x1234, Psn::MODULUS - 1] {
        v.next = right.plus(off);
        let write = v.write(Position::Only, 8);
        v.packet(PEER, &write, 8);
        assert!(v.memory() == memory && v.qp.state() == QpState::Rts, "PSN {off} ahead");
    }
    v.next = right;
    for bit in 0..24 {
        let mut write = v.write(Position::Only, 8);
        write.bth.dest = Qpn(write.bth.dest.0 ^ 1 << bit);
        assert_eq!(v.packet(PEER, &write, 8), [], "bit {bit} of the number");
        assert!(v.memory() == memory && v.qp.state() == QpState::Rts);
    }
    let write = v.write(Position::Only, 8);
    v.taken(&write, 8);
    assert!(v.memory() != memory, "control");
    for bit in 0..32 {
        let mut v = Victim::new(QpType::Rc);
        let mut write = v.write(Position::Only, 8);
        let reth = write.ext.reth.as_mut().unwrap();
        reth.rkey = Rkey(reth.rkey.0 ^ 1 << bit);
        // One guess: the connection is over.
        v.refused(&write, 8, NakCode::RemoteAccess);
    }
}

/// Whoever does not see a connection's packets cannot guess its PSNs.
#[test]
fn first_psns_are_drawn() {
    let net = ShmNet::anonymous(true).unwrap();
    let mut psns = Vec::new();
    for host in 1..=2 {
        let link = Box::new(net.attach(IpAddr::from([127, 0, 0, host])).unwrap());
        let (nic, _engine) = SoftNic::manual_on(&SoftConfig::default(), link).unwrap();
        for _ in 0..16 {
            let (qp, _memory) = make_typed(&nic, QpType::Rc, &attr(), None);
            psns.push(qp.address().psn.value());
        }
    }
    // 32 of 2^24: two alike once in 30,000 runs, three never. Every bit is used.
    let mut different = psns.clone();
    different.sort_unstable();
    different.dedup();
    assert!(different.len() >= psns.len() - 1, "{psns:x?}");
    let (ones, zeros) = psns.iter().fold((0, 0), |(ones, zeros), psn| (ones | psn, zeros | !psn));
    assert_eq!((ones, zeros & (Psn::MODULUS - 1)), (Psn::MODULUS - 1, Psn::MODULUS - 1));
}
