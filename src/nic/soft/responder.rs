//! The responder: what a queue pair does with a request that reaches it (InfiniBand vol. 1,
//! 9.7.5).
//!
//! A refused request answers with a syndrome for the requester, and moves the responder's queue
//! pair to ERR as well, except when it is merely not ready.

use std::sync::atomic::Ordering;

use super::counters::Live;
use super::inproc::Message;
use super::mr::{Regions, Right, Span};
use super::qp::{MAX_RQ_SGES, Qp};
use super::vendor::Vendor;
use crate::mem::{Dma, MemError};
use crate::nic::{QpAddress, QpState, QueuePair};
use crate::wire::Qpn;
use crate::wire::cqe::{Cqe, CqeOpcode, Syndrome};
use crate::wire::doorbell::{DBR_RCV_OFFSET, ahead, dbr_counter};
use crate::wire::wqe::{DS_BYTES, DataSeg, INVALID_LKEY, Opcode, Remote, Sge};

/// Receive side of a queue pair.
pub(super) struct Responder {
    /// Receives consumed.
    rq_ci: u64,
    /// Cleared when the queue pair is destroyed: its memory is not touched any more.
    alive: bool,
}

/// Why a request was not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No receive is posted: try again.
    Rnr,
    /// Nobody there who would answer.
    NoAnswer,
    /// The requester's WQE fails.
    Nak(Syndrome, Vendor),
}

/// A receive WQE, copied out.
struct Receive {
    counter: u16,
    entries: [Sge; MAX_RQ_SGES],
    count: usize,
}

impl Responder {
    pub(super) fn new() -> Self {
        Self { rq_ci: 0, alive: true }
    }

    pub(super) fn kill(&mut self) {
        self.alive = false;
    }

    pub(super) fn reset(&mut self) {
        self.rq_ci = 0;
    }

    /// Whether a receive is posted.
    fn has_receive(&self, qp: &Qp) -> bool {
        if !self.alive || qp.attr.rq_wqes == 0 {
            return false;
        }
        // Acquire: the receive WQEs were written before the record.
        let word = qp.queues.dbr.load_u32(DBR_RCV_OFFSET, Ordering::Acquire).unwrap_or(0);
        let posted = ahead(dbr_counter(word), self.rq_ci, qp.attr.rq_wqes);
        posted.is_some_and(|n| n > 0)
    }

    /// Takes the next receive; the caller knows that there is one.
    fn take(&mut self, qp: &Qp) -> Receive {
        let stride = 1usize << qp.queues.rq_stride_log;
        let mut bytes = [0; MAX_RQ_SGES * DS_BYTES];
        let at = (self.rq_ci % u64::from(qp.attr.rq_wqes)) as usize * stride;
        let bytes = &mut bytes[..stride];
        qp.queues.rq.read(at, bytes).expect("the ring was checked when it was created");
        let none = Sge { addr: crate::wire::Iova(0), lkey: INVALID_LKEY, bytes: 0 };
        let mut receive =
            Receive { counter: self.rq_ci as u16, entries: [none; MAX_RQ_SGES], count: 0 };
        for seg in bytes.chunks_exact(DS_BYTES) {
            let sge = Sge::parse(&bytemuck::pod_read_unaligned::<DataSeg>(seg));
            if sge.lkey == INVALID_LKEY {
                break;
            }
            receive.entries[receive.count] = sge;
            receive.count += 1;
        }
        self.rq_ci += 1;
        receive
    }

    /// Flushes posted receives of a queue pair in ERR; says whether there were any.
    pub(super) fn flush(&mut self, qp: &Qp) -> bool {
        let mut any = false;
        while self.has_receive(qp) {
            any = true;
            let (op, syndrome) = (CqeOpcode::RespErr, Syndrome::WrFlush);
            let cqe = Cqe::error(op, qp.qpn, self.rq_ci as u16, syndrome, Vendor::Flush as u8);
            self.rq_ci += 1;
            qp.complete_receive(&cqe); // a full CQ is counted; there is no other place to say it
        }
        any
    }
}

/// Whether the queue pair answers that requester.
pub(super) fn answers(qp: &Qp, from: QpAddress) -> bool {
    matches!(QueuePair::state(qp), QpState::Rtr | QpState::Rts | QpState::Sqd)
        && qp.connected_to() == from
}

fn nak(qp: &Qp, syndrome: Syndrome, vendor: Vendor) -> Refusal {
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
    regions
        .resolve(remote.rkey.0, remote.addr, bytes, right)
        .map_err(|vendor| nak(qp, Syndrome::RemoteAccess, vendor))
}

/// RDMA WRITE without immediate.
pub(super) fn write(qp: &Qp, regions: &Regions, msg: &Message<'_>) -> Result<(), Refusal> {
    if msg.wqe.bytes == 0 {
        return Ok(()); // the key of an empty access is not looked at (9.7.5.2.4)
    }
    let to = reach(qp, regions, msg.remote(), msg.wqe.bytes, Right::RemoteWrite)?;
    msg.gather(to).map_err(|e| of_mem(qp, &e))
}

/// RDMA READ.
pub(super) fn read(qp: &Qp, regions: &Regions, msg: &Message<'_>) -> Result<(), Refusal> {
    if msg.wqe.bytes == 0 {
        return Ok(());
    }
    let from = reach(qp, regions, msg.remote(), msg.wqe.bytes, Right::RemoteRead)?;
    msg.scatter(from).map_err(|e| of_mem(qp, &e))
}

/// FETCH_ADD and CMP_SWAP: 8 bytes in the machine's order.
pub(super) fn atomic(qp: &Qp, regions: &Regions, msg: &Message<'_>) -> Result<(), Refusal> {
    let remote = msg.remote();
    if !remote.addr.0.is_multiple_of(8) {
        return Err(nak(qp, Syndrome::RemoteInvalReq, Vendor::Misaligned));
    }
    let at = reach(qp, regions, remote, 8, Right::RemoteAtomic)?;
    let ops = msg.wqe.atomic.expect("an atomic was parsed with its operands");
    let old = match msg.wqe.opcode {
        Opcode::AtomicFa => at.mem.fetch_add(at.offset, ops.swap_add),
        _ => at.mem.compare_swap(at.offset, ops.compare, ops.swap_add),
    };
    let old = old.map_err(|e| of_mem(qp, &e))?;
    msg.scatter_bytes(&old.to_ne_bytes()).map_err(|e| of_mem(qp, &e))
}

/// SEND, and RDMA WRITE with immediate: both consume a receive.
pub(super) fn receive(qp: &Qp, regions: &Regions, msg: &Message<'_>) -> Result<(), Refusal> {
    let mut responder = qp.responder();
    if !responder.alive {
        return Err(Refusal::NoAnswer);
    }
    if !responder.has_receive(qp) {
        return Err(Refusal::Rnr);
    }
    let opcode = match msg.wqe.opcode {
        Opcode::RdmaWriteImm => {
            write(qp, regions, msg)?;
            CqeOpcode::RespWrImm
        }
        Opcode::SendImm => CqeOpcode::RespSendImm,
        _ => CqeOpcode::RespSend,
    };
    let taken = responder.take(qp);
    if opcode != CqeOpcode::RespWrImm {
        scatter(qp, regions, msg, &taken)?;
    }
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
    let entries = &receive.entries[..receive.count];
    // The receiver learns of its own mistake from an error CQE, the sender from the NAK.
    let spoil = |local: Syndrome, remote: Syndrome, vendor: Vendor| {
        let op = CqeOpcode::RespErr;
        qp.complete_receive(&Cqe::error(op, qp.qpn, receive.counter, local, vendor as u8));
        nak(qp, remote, vendor)
    };
    let room: u64 = entries.iter().map(|e| u64::from(e.bytes)).sum();
    if u64::from(msg.wqe.bytes) > room {
        return Err(spoil(Syndrome::LocalLength, Syndrome::RemoteInvalReq, Vendor::Length));
    }
    // All entries that the message needs are checked before anything moves.
    let mut left = msg.wqe.bytes;
    for entry in entries {
        let n = left.min(entry.bytes);
        if n == 0 {
            break;
        }
        let span = regions.resolve(entry.lkey.0, entry.addr, n, Right::LocalWrite);
        span.map_err(|v| spoil(Syndrome::LocalProt, Syndrome::RemoteOp, v))?;
        left -= n;
    }
    let spans = entries.iter().map_while(|e| {
        let span = regions.resolve(e.lkey.0, e.addr, 0, Right::LocalWrite).ok()?;
        Some((span, e.bytes as usize))
    });
    msg.gather_into(spans).map_err(|_| spoil(Syndrome::LocalProt, Syndrome::RemoteOp, Vendor::Dma))
}
