//! Captures of the in-process link: the packets that a RoCEv2 link would carry for its messages.
//!
//! The link moves messages as wholes, so that there are no packets to record: they are made up when
//! a message has been carried out or refused. Payloads are real, and so are keys, addresses and queue
//! pair numbers. PSNs count up from 0 for each queue pair, the path MTU is 4096, every request is
//! answered at once, and NIC *n* of the link has the address 127.0.0.*n*.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::link::Room;
use crate::link::pcap::Pcap;
use crate::objects::qp::Qp;
use crate::service::local::execute::Message;
use crate::service::local::responder::Refusal;
use crate::service::outstanding::{self, atomic_operation};
use crate::vendor::Vendor;
use bellpush_nic::{Mtu, QpType};
use bellpush_wire::cqe::Syndrome as Cause;
use bellpush_wire::roce::{
    Addresses, Aeth, AtomicEth, Bth, Envelope, Headers, MAX_PACKET_BYTES, NakCode,
    Opcode as Packet, Operation, Position, ROCE_PORT, Reth, Service, Syndrome,
};
use bellpush_wire::wqe::{Opcode, Wqe};
use bellpush_wire::{Psn, Qpn};

/// Records what goes over an in-process link.
pub(crate) struct InprocCapture(Mutex<State>);

struct State {
    /// Nothing after it could not be written: the link goes on without.
    pcap: Option<Pcap>,
    /// By NIC and queue pair of the requester.
    connections: HashMap<(u64, u32), Connection>,
    buf: Box<[u8; MAX_PACKET_BYTES]>,
}

/// Where the requests of a queue pair stand.
#[derive(Clone, Copy)]
struct Connection {
    psn: Psn,
    /// Requests completed, modulo 2^24.
    msn: u32,
}

/// A packet's way: from where to where, and to which queue pair.
#[derive(Clone, Copy)]
struct Way {
    service: Service,
    envelope: Envelope,
    dest: Qpn,
}

impl InprocCapture {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let (pcap, buf) = (Some(Pcap::create(path)?), Box::new([0; MAX_PACKET_BYTES]));
        Ok(Self(Mutex::new(State { pcap, connections: HashMap::new(), buf })))
    }

    /// Whether what happened so far could be written.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pcap.is_some()
    }

    /// Records a request and its answer.
    pub(crate) fn record(&self, msg: &Message<'_>, peer: &Qp, done: Result<(), Refusal>) {
        if msg.wqe.opcode.is_local() || msg.wqe.opcode == Opcode::SendInval {
            return; // nothing leaves the NIC: all but NOPs are refused on this link
        }
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.message(msg, peer, done).is_err() {
            state.pcap = None;
        }
    }

    /// Lets what was recorded reach the file although nothing follows.
    pub(crate) fn pass(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.pcap.as_mut().is_some_and(|pcap| pcap.pass(now_ns()).is_err()) {
            state.pcap = None;
        }
    }
}

impl State {
    fn message(
        &mut self,
        msg: &Message<'_>,
        peer: &Qp,
        done: Result<(), Refusal>,
    ) -> io::Result<()> {
        let service = if peer.kind == QpType::Uc { Service::Uc } else { Service::Rc };
        let to = peer.in_process();
        let way = |from: (u64, u32), to: (u64, u32)| Way {
            service,
            envelope: Envelope::new(
                Addresses::V4 { src: host(from.0), dst: host(to.0) },
                ROCE_PORT,
            ),
            dest: Qpn(to.1),
        };
        let connection = self.connections.get(&msg.from).copied();
        let mut connection = connection.unwrap_or(Connection { psn: Psn::new(0), msn: 0 });
        let first = connection.psn;
        let packets = Mtu::MAX.packets(msg.wqe.bytes);
        self.request(msg, way(msg.from, to), first)?;
        connection.msn += u32::from(done.is_ok());
        if service == Service::Rc {
            let syndrome = match done {
                Ok(()) => Some(Syndrome::ACK),
                Err(Refusal::Rnr) => {
                    Some(Syndrome::RnrNak { timer: peer.attributes().min_rnr_timer })
                }
                Err(Refusal::NoAnswer) => None,
                Err(Refusal::Nak(cause, _)) => Some(Syndrome::Nak(match cause {
                    Cause::RemoteAccess => NakCode::RemoteAccess,
                    Cause::RemoteInvalReq => NakCode::InvalidRequest,
                    _ => NakCode::RemoteOperational,
                })),
            };
            let back = way(to, msg.from);
            match syndrome.map(|syndrome| Aeth { syndrome, msn: connection.msn }) {
                None => {}
                Some(aeth) if done.is_ok() && msg.wqe.opcode.scatters() => {
                    self.responses(msg, back, first, aeth)?;
                }
                Some(aeth) => {
                    let last = first.plus(if done.is_ok() { packets - 1 } else { 0 });
                    let mut headers = back.headers(Operation::Acknowledge, last);
                    headers.ext.aeth = Some(aeth);
                    self.packet(&back, &headers, 0, |_| Ok(()))?;
                }
            }
        }
        // What was refused for now is said again with the same PSNs.
        if !matches!(done, Err(Refusal::Rnr | Refusal::NoAnswer)) {
            connection.psn = first.plus(packets);
        }
        self.connections.insert(msg.from, connection);
        Ok(())
    }

    fn request(&mut self, msg: &Message<'_>, way: Way, first: Psn) -> io::Result<()> {
        let wqe = msg.wqe;
        if wqe.opcode.scatters() {
            let remote = msg.remote();
            let operation = match wqe.opcode {
                Opcode::RdmaRead => Operation::ReadRequest,
                op => atomic_operation(op),
            };
            let mut headers = way.headers(operation, first);
            headers.bth.ack_req = true;
            let (addr, rkey) = (remote.addr, remote.rkey);
            match wqe.atomic {
                Some(ops) => {
                    let (swap_add, compare) = (ops.swap_add, ops.compare);
                    headers.ext.atomic = Some(AtomicEth { addr, rkey, swap_add, compare });
                    headers.ext.masks = wqe.masks;
                }
                None => headers.ext.reth = Some(Reth { addr, rkey, bytes: wqe.bytes }),
            }
            return self.packet(&way, &headers, 0, |_| Ok(()));
        }
        let packets = Mtu::MAX.packets(wqe.bytes);
        for index in 0..packets {
            let (mut headers, part) = outstanding::request(
                wqe,
                (first, packets),
                index,
                Mtu::MAX,
                (way.service, way.dest),
            );
            headers.bth.ack_req = way.service == Service::Rc && index + 1 == packets;
            self.packet(&way, &headers, part.len(), |into| {
                msg.domain.gather(wqe.pieces(msg.bytes), part.start, &mut Room::Bytes(into))
            })?;
        }
        Ok(())
    }

    /// Responses whose bytes the message has brought to the requester's memory.
    fn responses(&mut self, msg: &Message<'_>, way: Way, first: Psn, aeth: Aeth) -> io::Result<()> {
        if msg.wqe.opcode != Opcode::RdmaRead {
            let mut old = [0; 8];
            let into = &mut old[..msg.wqe.bytes as usize];
            let into = &mut Room::Bytes(into);
            let _ = msg.domain.gather(msg.wqe.pieces(msg.bytes), 0, into); // was written just now
            let mut headers = way.headers(Operation::AtomicAcknowledge, first);
            (headers.ext.aeth, headers.ext.atomic_ack) = (Some(aeth), Some(returned(msg.wqe, old)));
            return self.packet(&way, &headers, 0, |_| Ok(()));
        }
        let packets = Mtu::MAX.packets(msg.wqe.bytes);
        for index in 0..packets {
            let at = Position::new(index == 0, index + 1 == packets);
            let part = Mtu::MAX.part(index, msg.wqe.bytes);
            let mut headers = way.headers(Operation::read_response(at), first.plus(index));
            headers.ext.aeth = (at != Position::Middle).then_some(aeth);
            self.packet(&way, &headers, part.len(), |into| {
                msg.domain.gather(msg.wqe.pieces(msg.bytes), part.start, &mut Room::Bytes(into))
            })?;
        }
        Ok(())
    }

    fn packet(
        &mut self,
        way: &Way,
        headers: &Headers,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Vendor>,
    ) -> io::Result<()> {
        let Some(pcap) = &mut self.pcap else { return Ok(()) };
        let mut frame = headers.emit(bytes, &mut self.buf[..]);
        // Memory that failed has ended the message with an error; its packet shows zeros.
        if fill(frame.payload_mut()).is_err() {
            frame.payload_mut().fill(0);
        }
        let n = frame.finish(Some(&way.envelope));
        pcap.record(now_ns(), &way.envelope, &self.buf[..n], false)
    }
}

impl Way {
    fn headers(&self, operation: Operation, psn: Psn) -> Headers {
        Headers::new(Bth::new(Packet::new(self.service, operation), self.dest, psn))
    }
}

fn host(nic: u64) -> Ipv4Addr {
    let [.., a, b, c] = nic.to_be_bytes();
    Ipv4Addr::new(127, a, b, c)
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The old value of an atomic, of its bytes as they were scattered.
fn returned(wqe: &Wqe, bytes: [u8; 8]) -> u64 {
    match wqe.masks {
        Some(masks) if masks.bytes == 4 => {
            u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into()
        }
        _ => u64::from_ne_bytes(bytes),
    }
}
