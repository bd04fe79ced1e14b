//! UMRs in a send queue: when their turn has come, they change a memory key of this NIC.
//!
//! All that was posted before must be complete, and what is posted after waits: a message that may
//! be sent again still names the keys that it was first sent with. Silicon waits for less; what a
//! program may rely on is the same.

use crate::objects::mr::User;
use crate::queue::sq::{Scratch, SendQueue};
use crate::service::outstanding::{Failure, Outstanding};
use crate::vendor::of_parse;
use bellpush_wire::cqe::Syndrome;
use bellpush_wire::umr::Umr;
use bellpush_wire::wqe::DS_BYTES;

/// Carries out a UMR that is next. No lock of the regions may be held.
pub(crate) fn execute(message: &mut Outstanding, sq: &SendQueue, scratch: &mut Scratch) {
    message.waits = false;
    message.failed = change(message, sq, scratch).err();
}

fn change(message: &Outstanding, sq: &SendQueue, scratch: &mut Scratch) -> Result<(), Failure> {
    let wqe = message.load(sq, scratch)?;
    let bytes = message.wqe_bytes(scratch);
    let umr = Umr::parse(&bytes[..usize::from(wqe.ds) * DS_BYTES]).map_err(of_parse);
    let umr = umr.map_err(|(_, vendor)| (Syndrome::MwBind, vendor))?;
    let qp = &sq.qp;
    let user = User { pd: qp.pd, qpn: qp.qpn };
    let changed = qp.mrs.write().update(user, wqe.imm, &umr);
    changed.map_err(|vendor| (Syndrome::MwBind, vendor))
}
