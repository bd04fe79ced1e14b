//! Unreliable datagrams over packets (InfiniBand vol. 1, 9.8.2; annex A17.5 for RoCEv2).
//!
//! A message is one packet. Its receive begins with the 40 bytes of a GRH: the IPv6 header, or
//! 20 bytes of zeros and the IPv4 header.

use crate::counters::{DropReason, Live};
use crate::link::place::Payload;
use crate::link::port::{Arrived, Port, Route};
use crate::objects::qp::Qp;
use crate::objects::state::Attributes;
use crate::queue::recv;
use crate::queue::sq::{Scratch, SendQueue};
use crate::service::outstanding::{Failure, Outstanding};
use crate::service::payload::Domain;
use crate::service::reassembly::spoil;
use crate::service::requester::{StepContext, Visit};
use crate::trace::Kind;
use crate::vendor::Vendor;
use bellpush_nic::{Mtu, QpState, QueuePair};
use bellpush_wire::Psn;
use bellpush_wire::cqe::{Cqe, CqeOpcode, NetworkHeader, Syndrome as Cause};
use bellpush_wire::roce::{
    Addresses, Bth, Deth, Headers, MAX_IP_UDP_BYTES, Opcode as Wire, Operation, Service,
    UDP_HEADER_BYTES,
};
use bellpush_wire::wqe::{Opcode, Wqe};

/// Bytes that a receive begins with.
const GRH_BYTES: usize = 40;
/// Packets of a visit, so that no queue pair starves the others.
const VISIT_PACKETS: usize = 64;
/// Set in a work request's queue key: take the queue pair's own (10.2.5).
const OWN_QKEY: u32 = 1 << 31;

/// Both sides of a queue pair that sends and receives datagrams.
pub(crate) struct Ud {
    qkey: u32,
    mtu: Mtu,
    next: Psn,
}

impl Ud {
    pub(crate) fn new(mtu: Mtu, attributes: &Attributes) -> Self {
        Self { qkey: attributes.qkey, mtu, next: attributes.sq_psn }
    }

    pub(crate) fn start(&mut self, attributes: &Attributes) {
        self.next = attributes.sq_psn;
    }

    pub(crate) fn apply(&mut self, attributes: &Attributes) {
        self.qkey = attributes.qkey;
    }

    pub(crate) fn on_packet(&mut self, qp: &Qp, domain: Domain<'_>, arrived: &Arrived<'_>) {
        let packet = arrived.packet;
        let Some(deth) = packet.headers.ext.deth else { return };
        if deth.qkey != self.qkey {
            return qp.counters.dropped(DropReason::Qkey);
        }
        if packet.payload.len() > self.mtu.bytes() {
            return qp.counters.dropped(DropReason::Length);
        }
        let mut receives = qp.receives();
        let Some(receive) = receives.take(qp) else {
            return qp.counters.dropped(DropReason::NoReceive);
        };
        let room: u64 = receive.entries().iter().map(|e| u64::from(e.bytes)).sum();
        let bytes = GRH_BYTES + packet.payload.len();
        let entries = || receive.entries().iter().copied();
        let moving = recv::Moving { qp, taken: receive.name() };
        let moved = match bytes as u64 <= room {
            false => Err((Cause::LocalLength, Vendor::Length)),
            true => domain
                .scatter(entries(), 0, Payload::Bytes(&grh(arrived)))
                .and_then(|()| domain.scatter(entries(), GRH_BYTES, packet.payload))
                .map_err(|vendor| (Cause::LocalProt, vendor)),
        };
        drop(moving);
        if let Err((cause, vendor)) = moved {
            spoil(qp, receive.counter, cause, vendor);
            return qp.set_error();
        }
        let imm = packet.headers.ext.imm;
        let cqe = Cqe {
            opcode: if imm.is_some() { CqeOpcode::RespSendImm } else { CqeOpcode::RespSend },
            imm: imm.unwrap_or(0),
            solicited: packet.headers.bth.solicited,
            source: deth.source,
            network: Some(match arrived.envelope.addresses {
                Addresses::V4 { .. } => NetworkHeader::Ipv4,
                Addresses::V6 { .. } => NetworkHeader::Ipv6,
            }),
            ..Cqe::requester(qp.qpn, 0, receive.counter, bytes as u32)
        };
        qp.mark(
            Kind::Placed,
            0,
            [packet.headers.bth.psn.value().into(), packet.payload.len() as u64],
        );
        if qp.complete_receive(&cqe) {
            Live::add(&qp.counters.receives, 1);
        }
    }

    pub(crate) fn visit(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut StepContext<'_>,
        domain: Domain<'_>,
    ) -> Visit {
        let port = cx.port.as_deref_mut().expect("transports are visited with a port");
        for _ in 0..VISIT_PACKETS {
            if QueuePair::state(&*sq.qp) != QpState::Rts || !sq.has_work() {
                return Visit::Idle;
            }
            if port.room() == 0 {
                return Visit::More;
            }
            let from = (self.next, self.mtu);
            let Some((message, wqe)) =
                Outstanding::take(sq, cx.scratch, domain, from, &mut Vec::new())
            else {
                return Visit::Idle;
            };
            let sent = match (message.failed, &wqe) {
                (Some(failure), _) => Err(failure),
                (None, Some(wqe)) => {
                    let to = wqe.datagram.map(|to| to.qpn);
                    let sent = self.send(sq, port, cx.scratch, domain, wqe);
                    if let (Ok(()), Some(dest)) = (&sent, to) {
                        message.trace_sent(&sq.qp, dest, (0, 1));
                    }
                    sent
                }
                (None, None) => Ok(()),
            };
            match sent {
                Ok(()) => message.complete(&sq.qp, &mut cx.tally),
                Err(failure) => message.fail(&sq.qp, &mut cx.tally, failure),
            }
        }
        Visit::More
    }

    fn send(
        &mut self,
        sq: &SendQueue,
        port: &mut Port,
        scratch: &Scratch,
        domain: Domain<'_>,
        wqe: &Wqe,
    ) -> Result<(), Failure> {
        if wqe.opcode == Opcode::Nop {
            return Ok(());
        }
        if wqe.bytes as usize > self.mtu.bytes() {
            return Err((Cause::LocalLength, Vendor::Length));
        }
        let to = wqe.datagram.ok_or((Cause::LocalQpOp, Vendor::Segment))?;
        if !port.reaches(to.address()) {
            return Err((Cause::LocalQpOp, Vendor::Address));
        }
        let imm = wqe.opcode == Opcode::SendImm;
        let operation = if imm { Operation::SendOnlyImm } else { Operation::SendOnly };
        let mut headers =
            Headers::new(Bth::new(Wire::new(Service::Ud, operation), to.qpn, self.next));
        headers.bth.solicited = wqe.flags.solicited;
        let qkey = if to.qkey & OWN_QKEY != 0 { self.qkey } else { to.qkey };
        headers.ext.deth = Some(Deth { qkey, source: sq.qp.qpn });
        headers.ext.imm = imm.then_some(wqe.imm);
        let pieces = wqe.pieces(scratch);
        let route = Route { to: to.address(), fields: to.fields() };
        port.send(&route, &headers, wqe.bytes as usize, |into| domain.gather(pieces, 0, into))
            .map_err(|vendor| (Cause::LocalProt, vendor))?;
        self.next = self.next.plus(1);
        Ok(())
    }
}

/// What lies in the place of a GRH.
fn grh(arrived: &Arrived<'_>) -> [u8; GRH_BYTES] {
    let mut ip = [0; MAX_IP_UDP_BYTES];
    let bytes = arrived.envelope.emit(&[arrived.bytes], &mut ip) - UDP_HEADER_BYTES;
    let mut grh = [0; GRH_BYTES];
    match arrived.envelope.addresses {
        Addresses::V4 { .. } => grh[GRH_BYTES - bytes..].copy_from_slice(&ip[..bytes]),
        Addresses::V6 { .. } => grh.copy_from_slice(&ip[..bytes]),
    }
    grh
}
