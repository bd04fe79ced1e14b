//! Packets made by hand, and Linux as the judge of their headers and ICRC.

use std::io;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use bellpush::nic::soft::link::{Link, Received, TxBatch, UdpLink};

use bellpush::wire::roce::{
    Addresses, Aeth, Bth, Envelope, Extensions, Headers, Opcode, Operation, Packet, Position, Reth,
    Service as Transport, Syndrome, Tail,
};
use bellpush::wire::{Iova, Psn, Qpn, Rkey};

use crate::failure::{Failure, expect};
use crate::peer::{Attributes, Peer, Service, Side, Status};

const MTU: usize = 1024;
const DST: u64 = 4096;
const OUR_QPN: u64 = 0x77;
const OUR_PSN: u64 = 0xff_ffff; // the next one wraps
const QUIET_MS: u64 = 200;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A case: the peer, our address, its address.
pub type Case = fn(&mut Peer, IpAddr, IpAddr) -> Result<(), Failure>;

/// All of them, by name.
pub const CASES: &[(&str, Case)] = &[
    ("UC SEND of three packets", |peer, from, to| {
        let mut wire = Wire::open(peer, Service::Uc, from, to)?;
        let bytes = 2 * MTU + 301; // padded
        peer.post_recv(DST, 3000)?;
        let payload = pattern(3, bytes);
        for (i, piece) in payload.chunks(MTU).enumerate() {
            let operation = Operation::send(Position::new(i == 0, i == 2), Tail::Plain);
            wire.send(operation, Extensions::default(), piece, 0)?;
        }
        expect("bytes", peer.completes(Side::Recv, Status::SUCCESS)?.bytes, bytes as u64)?;
        peer.check(&[(DST, bytes as u64, 3)])
    }),
    ("a wrong ICRC is dropped, the right one arrives", |peer, from, to| {
        let mut wire = Wire::open(peer, Service::Uc, from, to)?;
        peer.post_recv(DST, 3000)?;
        let only = Operation::send(Position::new(true, true), Tail::Imm);
        let ext = Extensions { imm: Some(0x1234_5678), ..Extensions::default() };
        wire.send(only, ext, &pattern(4, 302), 1)?;
        wire.psn = Psn::new(OUR_PSN as u32);
        expect("a completion", peer.poll(Side::Recv, QUIET_MS)?, None)?;
        wire.send(only, ext, &pattern(5, 303), 0)?;
        expect("immediate", peer.completes(Side::Recv, Status::SUCCESS)?.imm, 0x1234_5678)?;
        peer.check(&[(DST, 303, 5)])
    }),
    ("RC WRITE, and its acknowledgement's ICRC", |peer, from, to| {
        let mut wire = Wire::open(peer, Service::Rc, from, to)?;
        let reth =
            Reth { addr: Iova(peer.address + DST), rkey: Rkey(peer.rkey), bytes: MTU as u32 + 1 };
        let payload = pattern(6, MTU + 1);
        let (first, last) = payload.split_at(MTU);
        let write = |first, last| Operation::write(Position::new(first, last), false);
        let with_reth = Extensions { reth: Some(reth), ..Extensions::default() };
        wire.send(write(true, false), with_reth, first, 0)?;
        wire.send(write(false, true), Extensions::default(), last, 0)?;

        let headers = wire.receive()?;
        expect("PSN of the ACK", headers.bth.psn, Psn::new(0))?;
        expect("queue pair of the ACK", headers.bth.dest, Qpn(OUR_QPN as u32))?;
        let aeth = headers.ext.aeth.map(|Aeth { syndrome, msn }| (syndrome, msn));
        let acknowledged = matches!(aeth, Some((Syndrome::Ack { .. }, 1)));
        expect("an ACK of message 1", acknowledged, true)?;
        peer.check(&[(DST, MTU as u64 + 1, 6)])
    }),
];

/// A queue pair of the peer that has us as its peer.
struct Wire {
    link: UdpLink,
    envelope: Envelope,
    transport: Transport,
    dest: Qpn,
    psn: Psn,
}

impl Wire {
    fn open(peer: &mut Peer, service: Service, from: IpAddr, to: IpAddr) -> Result<Self, Failure> {
        peer.new_qp(service)?;
        peer.connect_to(&gid(from), OUR_QPN, OUR_PSN, Attributes::mtu(MTU as u64))?;
        let link = UdpLink::open(from, None).map_err(other)?;
        let transport = match service {
            Service::Rc => Transport::Rc,
            Service::Uc => Transport::Uc,
            Service::Ud => Transport::Ud,
        };
        let psn = Psn::new(OUR_PSN as u32);
        let envelope =
            Envelope::new(Addresses::new(from, to).expect("of one family"), link.src_port());
        Ok(Self { link, envelope, transport, dest: Qpn(peer.qpn as u32), psn })
    }

    /// Sends a packet with the next PSN; `flip` is XORed into the ICRC.
    fn send(
        &mut self,
        operation: Operation,
        ext: Extensions,
        payload: &[u8],
        flip: u8,
    ) -> Result<(), Failure> {
        let opcode = Opcode::new(self.transport, operation);
        let mut bth = Bth::new(opcode, self.dest, self.psn);
        bth.ack_req = operation.position().ends();
        self.psn = self.psn.plus(1);
        let mut batch = TxBatch::new(1);
        batch.push(self.envelope.addresses.dst(), |buf| {
            let mut frame = Headers { bth, ext }.emit(payload.len(), buf);
            frame.payload_mut().copy_from_slice(payload);
            let n = frame.finish(Some(&self.envelope));
            buf[n - 1] ^= flip;
            Some(n)
        });
        self.link.send(0, &mut batch).map_err(other)?;
        Ok(())
    }

    /// The next packet's headers; its ICRC must be right.
    fn receive(&mut self) -> Result<Headers, Failure> {
        let start = Instant::now();
        let mut found = None;
        while found.is_none() && start.elapsed() < TIMEOUT {
            let mut each = |received: &Received<'_>| {
                let checked = Packet::check(received.bytes, &received.envelope);
                found =
                    Some(checked.and_then(|()| Packet::parse(received.bytes)).map(|p| p.headers));
            };
            self.link.recv(0, 1, &mut each).map_err(other)?;
            thread::sleep(Duration::from_millis(1));
        }
        let none = || io::Error::from(io::ErrorKind::TimedOut);
        Ok(found.ok_or_else(none)?.map_err(other)?)
    }
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

/// GID of an address, IPv4 mapped, as 32 hexadecimal digits.
fn gid(address: IpAddr) -> String {
    let bytes = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The peers' pattern of a seed.
fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let word = |i: u64| {
        let mut x = (seed << 32 | i).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31).to_le_bytes()
    };
    (0..).flat_map(word).take(bytes).collect()
}
