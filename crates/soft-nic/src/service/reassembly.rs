//! SENDs and WRITEs as they come in, packet by packet: the receiver's side of RC and UC alike
//! (InfiniBand vol. 1, 9.7.4 and 9.8.3).
//!
//! Packets come here in order and once; what the order is, and what a refusal leads to, is the
//! service's to say.

use std::collections::VecDeque;

use crate::counters::Live;
use crate::link::place::Payload;
use crate::link::port::Incoming;
use crate::objects::mr::Right;
use crate::objects::qp::Qp;
use crate::queue::recv::{self, Receive};
use crate::service::payload::{Domain, Remote};
use crate::service::rendezvous::{self, Place, Rendezvous};
use crate::vendor::Vendor;
use bellpush_nic::Mtu;
use bellpush_wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush_wire::roce::{Operation, Position, Reth};
use bellpush_wire::tm::{TMH_BYTES, TagInfo, Tmh, Told};
use bellpush_wire::wqe::MAX_MESSAGE_BYTES;
use bellpush_wire::{Iova, Rkey};

/// The message that is coming in.
#[derive(Default)]
pub(crate) struct Reassembly {
    message: Message,
    /// The receive that was taken last. It stays in its place from packet to packet, as it is long.
    receive: Receive,
    /// Whether it is that of a SEND that has begun. When the SEND is given up, it is the next message's.
    held: bool,
    /// Rendezvous that have matched, for the requester.
    rendezvous: VecDeque<Rendezvous>,
}

#[derive(Default)]
enum Message {
    #[default]
    None,
    Send {
        offset: usize,
    },
    Write {
        to: Reth,
        offset: u32,
    },
}

/// Why a packet was not taken; nothing of it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No receive is posted.
    NotReady,
    /// The request cannot be carried out: what its sender is to be told.
    Request(Syndrome, Vendor),
    /// The receive that it takes cannot be used; its poster was told. What the sender is to be
    /// told.
    Receive(Syndrome, Vendor),
}

/// A request that makes no sense.
const fn invalid(vendor: Vendor) -> Refused {
    Refused::Request(Syndrome::RemoteInvalReq, vendor)
}

impl Reassembly {
    /// Takes a packet of a SEND or WRITE; says whether it was its message's last.
    pub(crate) fn accept(
        &mut self,
        qp: &Qp,
        domain: Domain<'_>,
        packet: &Incoming<'_>,
        mtu: Mtu,
    ) -> Result<bool, Refused> {
        let operation = packet.opcode().operation();
        let at = operation.position();
        let follows = match self.message {
            Message::None => at.starts(),
            Message::Send { .. } => !at.starts() && operation.is_send(),
            Message::Write { .. } => !at.starts() && operation.is_write(),
        };
        if !follows {
            return Err(invalid(Vendor::Sequence));
        }
        check_length(at, packet.payload.len(), mtu)?;
        match operation.is_send() {
            true => self.send(qp, domain, packet, mtu)?,
            false => self.write(qp, domain, packet, operation)?,
        }
        if at.ends() {
            self.message = Message::None;
        }
        Ok(at.ends())
    }

    /// Takes over the receive that another has taken and not completed.
    pub(crate) fn inherit(&mut self, before: &mut Self) {
        if std::mem::take(&mut before.held) {
            (self.receive, self.held) = (before.receive.clone(), true);
        }
    }

    /// Whether a receive was taken and is not complete.
    pub(crate) fn holds_receive(&self) -> bool {
        self.held
    }

    /// The rendezvous that have matched since it was asked last.
    pub(crate) fn rendezvous(&mut self) -> impl Iterator<Item = Rendezvous> {
        self.rendezvous.drain(..)
    }

    /// Takes the receive of a SEND; false for a rendezvous, whose payload comes otherwise.
    fn take_for(&mut self, qp: &Qp, packet: &Incoming<'_>, mtu: Mtu) -> Result<bool, Refused> {
        let at = packet.opcode().operation().position();
        // A SEND's first packet is private.
        let (false, true, Payload::Bytes(message)) = (self.held, at.starts(), packet.payload)
        else {
            return self.take(qp).map(|()| true);
        };
        let receive = match rendezvous::place(qp, (at, message), mtu)? {
            None => return self.take(qp).map(|()| true),
            Some(Place::Receive(receive)) => Some(receive),
            Some(Place::Rendezvous(rendezvous)) => {
                self.rendezvous.push_back(rendezvous);
                None
            }
        };
        let consumed = match &receive {
            None => self.rendezvous.back().map(|rendezvous| rendezvous.index),
            Some(receive) => {
                receive.tag.filter(|tag| tag.told == Told::Expected).map(|tag| tag.index)
            }
        };
        if let (Some(index), Some(tmh)) = (consumed, Tmh::parse(message)) {
            let tag = Some(TagInfo::message(Told::Consumed, index, tmh.bytes));
            let cqe = Cqe { opcode: CqeOpcode::NoPacket, tag, ..Cqe::requester(qp.qpn, 0, 0, 0) };
            // A CQ that is full moves the queue pair to ERR.
            qp.complete_receive(&cqe);
        }
        let is_there = receive.is_some();
        receive.into_iter().for_each(|receive| self.receive = receive);
        Ok(is_there)
    }

    fn take(&mut self, qp: &Qp) -> Result<(), Refused> {
        if std::mem::take(&mut self.held) {
            qp.let_receive_go();
            return Ok(());
        }
        self.receive.clone_from(qp.receives().take(qp).ok_or(Refused::NotReady)?);
        Ok(())
    }

    fn send(
        &mut self,
        qp: &Qp,
        domain: Domain<'_>,
        packet: &Incoming<'_>,
        mtu: Mtu,
    ) -> Result<(), Refused> {
        let operation = packet.opcode().operation();
        // Only keys that were made for it are invalidated (10.6.5 and 9.9.6.1.3).
        let invalidated = packet.headers.ext.ieth;
        if let Some(key) = invalidated {
            let may = domain.regions.may_invalidate(domain.user, key);
            may.map_err(|vendor| Refused::Request(Syndrome::RemoteAccess, vendor))?;
        }
        let offset = match self.message {
            Message::Send { offset } => offset,
            _ => 0,
        };
        if !self.take_for(qp, packet, mtu)? {
            return invalidated.map_or(Ok(()), |key| invalidate(domain, key));
        }
        let receive = &self.receive;
        // Of a message that has matched the header is left out.
        let begins = operation.position().starts();
        let skip = if begins { rendezvous::header_bytes(receive.tag.as_ref()) } else { 0 };
        let payload = packet.payload.part(skip..packet.payload.len());
        let room: u64 = receive.entries().iter().map(|e| u64::from(e.bytes)).sum();
        // No message is longer, whatever the entries hold: a CQE counts its bytes in 32 bits.
        let room = room.min(MAX_MESSAGE_BYTES.into());
        let end = offset + payload.len();
        let moving = recv::Moving { qp, taken: receive.name() };
        let moved = match end as u64 <= room {
            false => Err((Syndrome::LocalLength, Syndrome::RemoteInvalReq, Vendor::Length)),
            true => domain
                .scatter(receive.entries().iter().copied(), offset, payload)
                .map_err(|vendor| (Syndrome::LocalProt, Syndrome::RemoteOp, vendor)),
        };
        drop(moving);
        if let Err((local, remote, vendor)) = moved {
            self.message = Message::None;
            recv::fail(qp, receive.name(), local, vendor);
            return Err(Refused::Receive(remote, vendor));
        }
        if operation.position().ends() {
            // The payload may have come through the key itself. By now somebody else may have invalidated it: the message
            // is there, and its receive is complete with an error, as for Linux's soft RoCE (its class J).
            if let Some(key) = invalidated
                && let Err(vendor) = domain.regions.invalidate(domain.user, key)
            {
                self.message = Message::None;
                recv::fail(qp, receive.name(), Syndrome::RemoteInvalReq, vendor);
                return Err(Refused::Receive(Syndrome::RemoteAccess, vendor));
            }
            let opcode = match (packet.headers.ext.imm, invalidated) {
                (Some(_), _) => CqeOpcode::RespSendImm,
                (None, Some(_)) => CqeOpcode::RespSendInv,
                (None, None) => CqeOpcode::RespSend,
            };
            return deliver(qp, opcode, receive, end as u32, packet);
        }
        self.message = Message::Send { offset: end };
        self.held = true;
        qp.hold_receive();
        Ok(())
    }

    fn write(
        &mut self,
        qp: &Qp,
        domain: Domain<'_>,
        packet: &Incoming<'_>,
        operation: Operation,
    ) -> Result<(), Refused> {
        let (to, offset) = match self.message {
            Message::Write { to, offset } => (to, offset),
            _ => (begin_write(qp, domain, packet)?, 0),
        };
        let bytes = packet.payload.len() as u32;
        let ends = operation.position().ends();
        let fits = match ends {
            true => bytes == to.bytes - offset,
            false => bytes < to.bytes - offset,
        };
        if !fits {
            return Err(invalid(Vendor::Length));
        }
        // The receive first: without one, nothing of the packet is taken.
        let with_imm = packet.headers.ext.imm.is_some();
        with_imm.then(|| self.take(qp)).transpose()?;
        let receive = with_imm.then_some(&self.receive);
        let moving = receive.as_ref().map(|r| recv::Moving { qp, taken: r.name() });
        let moved = put(domain, to, offset, packet.payload);
        drop(moving);
        if let Err(vendor) = moved {
            if let Some(receive) = receive {
                recv::flush(qp, receive.name());
            }
            return Err(Refused::Request(Syndrome::RemoteAccess, vendor));
        }
        if let Some(receive) = receive {
            deliver(qp, CqeOpcode::RespWrImm, receive, to.bytes, packet)?;
        }
        self.message = Message::Write { to, offset: offset + bytes };
        Ok(())
    }

    /// Gives the message up: its missing rest will not come.
    pub(crate) fn abandon(&mut self) {
        self.message = Message::None;
    }

    /// Whether a message has begun.
    pub(crate) fn is_under_way(&self) -> bool {
        !matches!(self.message, Message::None)
    }

    /// Completes the receive that it holds, of a queue pair in ERR.
    pub(crate) fn flush(&mut self, qp: &Qp) {
        self.abandon();
        if std::mem::take(&mut self.held) {
            recv::flush(qp, self.receive.name());
            qp.let_receive_go();
        }
    }

    /// The queue pair goes, or to RESET.
    pub(crate) fn lose(&mut self, qp: &Qp) {
        if std::mem::take(&mut self.held) {
            recv::lose(qp, self.receive.name());
        }
    }
}

fn invalidate(domain: Domain<'_>, key: Rkey) -> Result<(), Refused> {
    let done = domain.regions.invalidate(domain.user, key);
    done.map_err(|vendor| Refused::Request(Syndrome::RemoteAccess, vendor))
}

/// All packets of a message are full but the last, which is not empty unless the message is
/// (9.7.4.1.6 and 9.8.3.1.5).
fn check_length(at: Position, bytes: usize, mtu: Mtu) -> Result<(), Refused> {
    let right = match at {
        Position::First | Position::Middle => bytes == mtu.bytes(),
        Position::Last => (1..=mtu.bytes()).contains(&bytes),
        Position::Only => bytes <= mtu.bytes(),
    };
    if right { Ok(()) } else { Err(invalid(Vendor::Length)) }
}

fn begin_write(qp: &Qp, domain: Domain<'_>, packet: &Incoming<'_>) -> Result<Reth, Refused> {
    let to = packet.headers.ext.reth.ok_or(invalid(Vendor::Sequence))?;
    reach(qp, domain, (to.rkey, to.addr), to.bytes, Right::RemoteWrite)?;
    Ok(to)
}

/// Checks all of a remote access at once. The key of an empty one is not looked at (9.7.5.2.4).
pub(crate) fn reach(
    qp: &Qp,
    domain: Domain<'_>,
    (rkey, addr): (Rkey, Iova),
    bytes: u32,
    right: Right,
) -> Result<(), Refused> {
    if !qp.permits(right) {
        return Err(invalid(Vendor::Right));
    }
    if bytes > 0 {
        let reached = domain.reach(Remote { rkey, addr, bytes }, right);
        reached.map_err(|vendor| Refused::Request(Syndrome::RemoteAccess, vendor))?;
    }
    Ok(())
}

fn put(domain: Domain<'_>, to: Reth, offset: u32, bytes: Payload<'_>) -> Result<(), Vendor> {
    if bytes.len() == 0 {
        return Ok(());
    }
    // Again for each packet: the region may have gone since the first.
    let Reth { rkey, addr, bytes: all } = to;
    domain.put(Remote { rkey, addr, bytes: all }, offset as usize, bytes)
}

/// The receiver learns of its own mistake from an error CQE.
pub(crate) fn spoil(qp: &Qp, counter: u16, syndrome: Syndrome, vendor: Vendor) {
    qp.complete_receive(&Cqe::error(CqeOpcode::RespErr, qp.qpn, counter, syndrome, vendor as u8));
}

fn deliver(
    qp: &Qp,
    opcode: CqeOpcode,
    receive: &Receive,
    bytes: u32,
    packet: &Incoming<'_>,
) -> Result<(), Refused> {
    // That a message has matched was told with its header before, if its payload comes later.
    let tag = receive.tag.map(|tag| match tag.told {
        Told::Expected => TagInfo::message(tag.told, tag.index, [0; TMH_BYTES]),
        _ => tag,
    });
    let cqe = Cqe {
        opcode,
        tag,
        imm: packet.headers.ext.imm.or(packet.headers.ext.ieth.map(|key| key.0)).unwrap_or(0),
        solicited: packet.headers.bth.solicited,
        ..Cqe::requester(qp.qpn, 0, receive.counter, bytes)
    };
    if !qp.complete_receive(&cqe) {
        recv::discount(qp, receive.name());
        return Err(Refused::Receive(Syndrome::RemoteOp, Vendor::CqOverrun));
    }
    Live::add(&qp.counters.receives, 1);
    Ok(())
}

#[cfg(test)]
#[path = "reassembly_tests.rs"]
mod tests;
