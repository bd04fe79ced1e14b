//! WQEs that the NIC carries out by itself when everything before them is complete: UMRs, copies, operations on a list
//! of tags, reads of memory for nothing but their order, and waits for an entry of a CQ.
//!
//! What is posted after waits: a message that may be sent again still names the keys that it was first sent with.
//! Silicon waits for less; what a program may rely on is the same.

use crate::objects::mr::Right;
use crate::objects::qp::Qp;
use crate::queue::sq::{Scratch, SendQueue};
use crate::queue::umr;
use crate::service::outstanding::{Failure, Outstanding};
use crate::service::payload::Domain;
use crate::vendor::{Vendor, of_parse};
use bellpush_mem::MemError;
use bellpush_nic::QpType;
use bellpush_wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush_wire::mmo::Copy;
use bellpush_wire::tm::ListWqe;
use bellpush_wire::wait::{Wait, dumped};
use bellpush_wire::wqe::{DS_BYTES, Opcode, Piece};

/// How soon a WAIT looks at its CQ again. What it waits for is mostly an entry of this engine's.
pub(crate) const LOOK_NS: u64 = 2_000;

/// Carries out a WQE that is next; says whether it is done. No lock of the regions may be held.
pub(crate) fn execute(message: &mut Outstanding, sq: &SendQueue, scratch: &mut Scratch) -> bool {
    let done = match message.opcode {
        Opcode::Wait => wait(message, sq, scratch),
        _ => carry_out(message, sq, scratch).map(|()| true),
    };
    message.waits = done == Ok(false);
    message.failed = done.err();
    !message.waits
}

/// Whether the entry that a WAIT is for has been written.
fn wait(message: &Outstanding, sq: &SendQueue, scratch: &mut Scratch) -> Result<bool, Failure> {
    message.load(sq, scratch)?;
    let wait = Wait::parse(message.wqe_bytes(scratch)).map_err(of_parse)?;
    let cq = sq.qp.cq_of_device(wait.cqn).ok_or((Syndrome::LocalQpOp, Vendor::Cq))?;
    Ok(wait.is_reached(cq.written()))
}

fn carry_out(message: &Outstanding, sq: &SendQueue, scratch: &mut Scratch) -> Result<(), Failure> {
    let wqe = message.load(sq, scratch)?;
    let bytes = &message.wqe_bytes(scratch)[..usize::from(wqe.ds) * DS_BYTES];
    match message.opcode {
        Opcode::Mmo => copy(&sq.qp, bytes),
        Opcode::Dump => dump(&sq.qp, bytes),
        Opcode::TagMatching => change_list(&sq.qp, bytes),
        _ => umr::change(&sq.qp, wqe.imm, bytes),
    }
}

/// A copy from registered memory to registered memory, of reliable connections and initiators of dynamic ones.
fn copy(qp: &Qp, bytes: &[u8]) -> Result<(), Failure> {
    if !matches!(qp.kind, QpType::Rc | QpType::Dci) {
        return Err((Syndrome::LocalQpOp, Vendor::Opcode));
    }
    let Copy { from, to } = Copy::parse(bytes).map_err(of_parse)?;
    let regions = qp.mrs.read();
    let domain = Domain::of(qp, &regions);
    let all = from.bytes as usize;
    let checked = domain.check([from].into_iter(), Right::Gather);
    let checked = checked.and_then(|()| domain.check([to].into_iter(), Right::LocalWrite));
    let moved = checked.and_then(|()| {
        domain.sources([Piece::Data(from)].into_iter(), (0, all), |source, at| {
            domain.places([to].into_iter(), (at, source.bytes()), |place, n, skip| {
                source.copy_to(skip, place, n).map_err(|_: MemError| Vendor::Dma)
            })
        })
    });
    moved.map_err(|vendor| (Syndrome::LocalProt, vendor))
}

/// Looks at memory that what was before has written. A card reads it, so that no write of its own is on its way any
/// more; here none is.
fn dump(qp: &Qp, bytes: &[u8]) -> Result<(), Failure> {
    let from = dumped(bytes).map_err(of_parse)?;
    let regions = qp.mrs.read();
    let checked = Domain::of(qp, &regions).check([from].into_iter(), Right::Gather);
    checked.map_err(|vendor| (Syndrome::LocalProt, vendor))
}

/// An operation on the list of the queue pair's shared receive queue.
fn change_list(qp: &Qp, bytes: &[u8]) -> Result<(), Failure> {
    let tags = qp.srq.as_ref().and_then(|srq| srq.tags());
    let tags = tags.ok_or((Syndrome::LocalQpOp, Vendor::Opcode))?;
    let wqe = ListWqe::parse(bytes).map_err(of_parse)?;
    // The list stays locked: a message that takes the entry is told after the operation.
    let mut list = tags.list();
    let told = list.change(&wqe).map_err(|_| (Syndrome::LocalQpOp, Vendor::Tag))?;
    let cqe = Cqe { tag: Some(told), ..Cqe::requester(qp.qpn, 0, 0, 0) };
    let cqe = Cqe { opcode: CqeOpcode::NoPacket, ..cqe };
    match wqe.report && !qp.complete_receive(&cqe) {
        true => Err((Syndrome::LocalQpOp, Vendor::CqOverrun)),
        false => Ok(()),
    }
}
