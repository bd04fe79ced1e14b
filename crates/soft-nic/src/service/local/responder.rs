//! The responder of the in-process link: what a queue pair does with a request that reaches it
//! (InfiniBand vol. 1, 9.7.5).
//!
//! A refused request answers with a syndrome for the requester, and moves the responder's queue
//! pair to ERR as well, except when it is merely not ready. An unreliable connection answers
//! nothing: what it refuses is dropped, and it goes on, unless a receive of its own is at fault.

use crate::counters::{DropReason, Live};
use crate::link::Room;
use crate::objects::events::Event;
use crate::objects::mr::{Regions, Right, Span};
use crate::objects::qp::Qp;
use crate::queue::recv::{self, Receive};
use crate::service::local::execute::Message;
use crate::service::masked;
use crate::service::payload::{self, Domain};
use crate::vendor::Vendor;
use bellpush_mem::MemError;
use bellpush_nic::{QpState, QpType, QueuePair};
use bellpush_wire::Qpn;
use bellpush_wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush_wire::wqe::{self, Opcode, Remote};

/// Why a request was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No receive is posted: try again.
    Rnr,
    /// Nobody there who would answer.
    NoAnswer,
    /// The requester's WQE fails.
    Nak(Syndrome, Vendor),
}

/// Whether the queue pair answers that requester.
pub(crate) fn answers(qp: &Qp, from: (u64, u32)) -> bool {
    matches!(QueuePair::state(qp), QpState::Rtr | QpState::Rts | QpState::Sqd)
        && qp.connected_to() == from
}

pub(crate) fn nak(qp: &Qp, syndrome: Syndrome, vendor: Vendor) -> Refusal {
    if qp.kind == QpType::Uc {
        qp.counters.dropped(DropReason::Refused);
        return Refusal::Nak(syndrome, vendor);
    }
    qp.events.push(match syndrome {
        Syndrome::RemoteAccess => Event::QpAccess(qp.qpn),
        Syndrome::RemoteInvalReq => Event::QpRequest(qp.qpn),
        _ => Event::QpFatal(qp.qpn),
    });
    qp.set_error();
    Refusal::Nak(syndrome, vendor)
}

fn of_mem(qp: &Qp, error: &MemError) -> Refusal {
    match error {
        MemError::Misaligned { .. } => nak(qp, Syndrome::RemoteInvalReq, Vendor::Misaligned),
        _ => nak(qp, Syndrome::RemoteOp, Vendor::Dma),
    }
}

fn reach<'a>(
    qp: &Qp,
    regions: &'a Regions,
    remote: Remote,
    bytes: u32,
    right: Right,
) -> Result<Span<'a>, Refusal> {
    permitted(qp, right)?;
    regions
        .resolve(qp.pd, remote.rkey.0, remote.addr, bytes, right)
        .map_err(|vendor| nak(qp, Syndrome::RemoteAccess, vendor))
}

/// Whether the queue pair lets its peer do that at all; also where nothing is accessed.
fn permitted(qp: &Qp, right: Right) -> Result<(), Refusal> {
    match qp.permits(right) {
        true => Ok(()),
        false => Err(nak(qp, Syndrome::RemoteInvalReq, Vendor::Right)),
    }
}

/// Where a WRITE goes, if it may; `None` for one without bytes.
fn target<'a>(
    qp: &Qp,
    regions: &'a Regions,
    msg: &Message<'_>,
) -> Result<Option<Span<'a>>, Refusal> {
    match msg.wqe.bytes {
        0 => permitted(qp, Right::RemoteWrite).map(|()| None), // whatever its key (9.7.5.2.4)
        bytes => reach(qp, regions, msg.remote(), bytes, Right::RemoteWrite).map(Some),
    }
}

/// RDMA WRITE without immediate.
pub(crate) fn write(qp: &Qp, regions: &Regions, msg: &Message<'_>) -> Result<(), Refusal> {
    write_to(qp, regions, msg, target(qp, regions, msg)?)
}

fn write_to(
    qp: &Qp,
    regions: &Regions,
    msg: &Message<'_>,
    to: Option<Span<'_>>,
) -> Result<(), Refusal> {
    let Some(to) = to else { return Ok(()) };
    if let Some(put) = put_late(qp, regions, msg) {
        return put;
    }
    regions.land_under(to, msg.wqe.bytes as usize);
    msg.gather(to).map_err(|e| of_mem(qp, &e))
}

/// The same, of bytes that an adversary may keep from memory for a while; `None` if it may not.
fn put_late(qp: &Qp, regions: &Regions, msg: &Message<'_>) -> Option<Result<(), Refusal>> {
    let adversary = regions.adversary.as_ref()?;
    let refuse = |vendor| Some(Err(nak(qp, Syndrome::RemoteOp, vendor)));
    let mut bytes = vec![0; msg.wqe.bytes as usize];
    let into = &mut Room::Bytes(&mut bytes);
    if let Err(vendor) = msg.domain.gather(msg.wqe.pieces(msg.bytes), 0, into) {
        return refuse(vendor);
    }
    let wqe::Remote { rkey, addr } = msg.remote();
    let to = payload::Remote { rkey, addr, bytes: msg.wqe.bytes };
    match adversary.put(Domain::of(qp, regions), to, 0, &bytes) {
        Ok(put) => put.then_some(Ok(())),
        Err(vendor) => refuse(vendor),
    }
}

/// RDMA READ.
pub(crate) fn read(qp: &Qp, regions: &Regions, msg: &Message<'_>) -> Result<(), Refusal> {
    let from = match msg.wqe.bytes {
        0 => permitted(qp, Right::RemoteRead).map(|()| None)?,
        bytes => Some(reach(qp, regions, msg.remote(), bytes, Right::RemoteRead)?),
    };
    // It comes behind the queue pair's WRITEs, also where it fetches nothing.
    qp.land();
    from.map_or(Ok(()), |from| msg.scatter(from).map_err(|e| of_mem(qp, &e)))
}

/// FETCH_ADD and CMP_SWAP: 8 bytes in the machine's order, or what masks say.
pub(crate) fn atomic(qp: &Qp, regions: &Regions, msg: &Message<'_>) -> Result<(), Refusal> {
    let remote = msg.remote();
    let masked = msg.wqe.opcode.masked().zip(msg.wqe.masks);
    let word = masked.map_or(Some(remote.addr), |(_, masks)| masked::word(remote.addr, &masks));
    let word = word.filter(|word| word.0.is_multiple_of(8));
    let word = word.ok_or_else(|| nak(qp, Syndrome::RemoteInvalReq, Vendor::Misaligned))?;
    let at = reach(qp, regions, Remote { addr: word, ..remote }, 8, Right::RemoteAtomic)?;
    if let Some(adversary) = &regions.adversary {
        adversary.land_before_atomic(qp.qpn);
    }
    regions.land_under(at, 8); // what it passes lies beside its word
    let ops = msg.wqe.atomic.expect("an atomic was parsed with its operands");
    let old = match (masked, msg.wqe.opcode) {
        (Some((kind, masks)), _) => {
            masked::execute(at.mem, at.offset, remote.addr, kind, (ops, &masks))
        }
        (None, Opcode::AtomicFa) => at.mem.fetch_add(at.offset, ops.swap_add),
        (None, _) => at.mem.compare_swap(at.offset, ops.compare, ops.swap_add),
    };
    let old = old.map_err(|e| of_mem(qp, &e))?;
    let result = msg.wqe.masks.map_or(old.to_ne_bytes(), |masks| masks.result(old));
    msg.scatter_bytes(&result[..msg.wqe.bytes as usize]).map_err(|e| of_mem(qp, &e))
}

/// SEND, and RDMA WRITE with immediate: both consume a receive.
pub(crate) fn receive(qp: &Qp, regions: &Regions, msg: &Message<'_>) -> Result<(), Refusal> {
    qp.land();
    let mut receives = qp.receives();
    if !receives.is_alive() {
        return Err(Refusal::NoAnswer);
    }
    // First: what is refused takes no receive.
    let is_write = msg.wqe.opcode == Opcode::RdmaWriteImm;
    let to = if is_write { target(qp, regions, msg)? } else { None };
    let taken = receives.take(qp).ok_or(Refusal::Rnr)?;
    let opcode = match msg.wqe.opcode {
        Opcode::RdmaWriteImm => CqeOpcode::RespWrImm,
        Opcode::SendImm => CqeOpcode::RespSendImm,
        _ => CqeOpcode::RespSend,
    };
    let moving = recv::Moving { qp, taken: taken.name() };
    if opcode == CqeOpcode::RespWrImm {
        write_to(qp, regions, msg, to).inspect_err(|_| recv::flush(qp, taken.name()))?;
    } else {
        scatter(qp, regions, msg, taken)?;
    }
    drop(moving);
    let cqe = Cqe {
        opcode,
        imm: if opcode == CqeOpcode::RespSend { 0 } else { msg.wqe.imm },
        solicited: msg.wqe.flags.solicited,
        ..Cqe::requester(Qpn(qp.qpn.0), 0, taken.counter, msg.wqe.bytes)
    };
    if !qp.complete_receive(&cqe) {
        return Err(Refusal::Nak(Syndrome::RemoteOp, Vendor::CqOverrun));
    }
    Live::add(&qp.counters.receives, 1);
    Ok(())
}

fn scatter(
    qp: &Qp,
    regions: &Regions,
    msg: &Message<'_>,
    receive: &Receive,
) -> Result<(), Refusal> {
    let entries = receive.entries();
    // The receiver learns of its own mistake from an error CQE, so it is told by no event (InfiniBand 9.9.3.1, class C);
    // the sender learns of it from the NAK.
    let spoil = |local: Syndrome, remote: Syndrome, vendor: Vendor| {
        let op = CqeOpcode::RespErr;
        qp.complete_receive(&Cqe::error(op, qp.qpn, receive.counter, local, vendor as u8));
        qp.set_error();
        Refusal::Nak(remote, vendor)
    };
    let room: u64 = entries.iter().map(|e| u64::from(e.bytes)).sum();
    if u64::from(msg.wqe.bytes) > room {
        return Err(spoil(Syndrome::LocalLength, Syndrome::RemoteInvalReq, Vendor::Length));
    }
    // All entries that the message needs are checked before anything moves.
    let pd = qp.pd;
    let mut left = msg.wqe.bytes;
    for entry in entries {
        let n = left.min(entry.bytes);
        if n == 0 {
            break;
        }
        let span = regions.resolve(pd, entry.lkey.0, entry.addr, n, Right::LocalWrite);
        let span = span.map_err(|v| spoil(Syndrome::LocalProt, Syndrome::RemoteOp, v))?;
        regions.land_under(span, n as usize);
        left -= n;
    }
    let spans = entries.iter().map_while(|e| {
        let span = regions.resolve(pd, e.lkey.0, e.addr, 0, Right::LocalWrite).ok()?;
        Some((span, e.bytes as usize))
    });
    msg.gather_into(spans).map_err(|_| spoil(Syndrome::LocalProt, Syndrome::RemoteOp, Vendor::Dma))
}
