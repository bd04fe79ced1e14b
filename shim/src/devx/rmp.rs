//! `CREATE_RMP`: a receive memory pool, which is an SRQ in umems; `CREATE_XRQ`: one that matches tags.

use std::sync::Arc;

use bellpush_soft_nic::{MAX_TAGS, Srq, SrqAttr, TagAttr};

use super::prm::{Field, Mailbox, rmp, xrq};
use super::qp::AnyCq;
use super::{Umem, at_least, named};
use crate::commands::Command;
use crate::commands::device::MAX_WQES;
use crate::commands::memory::PdObj;
use crate::context::Object;
use crate::error::Refusal;

const DBR_BYTES: usize = 8;
/// `wq_type`: WQEs that name the next one; WQEs one after the other.
const LIST: u64 = 0;
const CYCLIC: u64 = 1;
/// `topology` and `offload` of an XRQ: tag matching, rendezvous.
const TAG_MATCHING: u64 = 1;
const RENDEZVOUS: u64 = 1;

/// A pool.
pub struct DevxRmp {
    /// The NIC's.
    pub srq: Arc<Srq>,
    _pd: Arc<PdObj>,
    _cq: Option<AnyCq>,
    _umems: [Arc<Umem>; 2],
}

/// The queue of a pool, whose `wq` lies so many bytes later than an RMP's.
struct Queue {
    kind: u64,
    attr: SrqAttr,
    pd: Arc<PdObj>,
    umems: [Arc<Umem>; 2],
}

/// Reads a queue. WQEs of both types begin with a next segment.
fn queue(c: &Command<'_>, cmd: &Mailbox, shift: usize) -> Result<Queue, Refusal> {
    let get = |field: Field| cmd.get(field.within(shift));
    let word = |field: Field| cmd.word(field.within(shift));
    if get(rmp::PAGE_OFFSET) != 0 {
        let value = get(rmp::PAGE_OFFSET);
        return Err(Refusal::Value { what: "pool's page_offset", value, must: "0" });
    }
    let kind = get(rmp::WQ_TYPE);
    if !matches!(kind, LIST | CYCLIC) {
        return Err(Refusal::Unsupported("a pool whose WQEs are of strides"));
    }
    let pdn = word(rmp::PD);
    let pd = named(c.objects, "protection domain", pdn, |object| match object {
        Object::Pd(pd) if pd.pd.number() == pdn => Some(pd.clone()),
        _ => None,
    })?;
    let (stride_log, log) = (word(rmp::LOG_WQ_STRIDE), word(rmp::LOG_WQ_SZ));
    if 1u32.checked_shl(log).is_none_or(|wqes| wqes > MAX_WQES) {
        let must = "within log_max_srq_sz";
        return Err(Refusal::Value { what: "log_wq_sz", value: log.into(), must });
    }
    let buffer = super::umem(c.objects, word(rmp::WQ_UMEM_ID))?;
    let record = super::umem(c.objects, word(rmp::DBR_UMEM_ID))?;
    let ring = buffer.queue(get(rmp::WQ_UMEM_OFFSET), 1 << (log + stride_log))?;
    let dbr = record.queue(get(rmp::DBR_ADDR), DBR_BYTES)?;
    let attr = SrqAttr { pd: pd.pd.clone(), ring, stride_log, dbr, limit: word(rmp::LWM) };
    Ok(Queue { kind, attr, pd, umems: [buffer, record] })
}

fn made(srq: Arc<Srq>, queue: Queue, cq: Option<AnyCq>) -> (Object, u32) {
    let number = srq.number();
    let object = DevxRmp { srq, _pd: queue.pd, _cq: cq, _umems: queue.umems };
    (Object::DevxRmp(Arc::new(object)), number)
}

/// Creates a pool.
pub fn create(c: &mut Command<'_>, cmd: &Mailbox) -> Result<(Object, u32), Refusal> {
    at_least(cmd, rmp::IN_BYTES)?;
    if cmd.flag(rmp::BASIC_CYCLIC) {
        return Err(Refusal::Unsupported("a pool whose WQEs have no next segment"));
    }
    let queue = queue(c, cmd, 0)?;
    let nic = &c.context.device.nic;
    let srq = match queue.kind {
        LIST => nic.create_srq(&queue.attr)?,
        _ => nic.create_cyclic_srq(&queue.attr)?,
    };
    Ok(made(srq, queue, None))
}

/// Creates a pool that matches tags.
pub fn create_matching(c: &mut Command<'_>, cmd: &Mailbox) -> Result<(Object, u32), Refusal> {
    at_least(cmd, xrq::IN_BYTES)?;
    if (cmd.get(xrq::TOPOLOGY), cmd.get(xrq::OFFLOAD)) != (TAG_MATCHING, RENDEZVOUS) {
        return Err(Refusal::Unsupported("an XRQ but for tag matching with rendezvous"));
    }
    if cmd.flag(xrq::DC) {
        return Err(Refusal::Unsupported("tag matching of dynamic connections"));
    }
    let log = cmd.word(xrq::LOG_MATCHING_LIST_SZ);
    // One place of the list stays empty.
    let tags = (1u32 << log).saturating_sub(1);
    if !(1..=MAX_TAGS).contains(&tags) {
        let (what, must) = ("log_matching_list_sz", "1 to 7");
        return Err(Refusal::Value { what, value: log.into(), must });
    }
    let cq = AnyCq::find(c.objects, cmd.word(xrq::CQN))?;
    let queue = queue(c, cmd, xrq::WQ_SHIFT)?;
    let (uidx, cyclic) = (cmd.word(xrq::USER_INDEX), queue.kind == CYCLIC);
    let tags = TagAttr { cq: cq.cq(), uidx, tags, cyclic };
    let srq = c.context.device.nic.create_tag_srq(&queue.attr, tags)?;
    Ok(made(srq, queue, Some(cq)))
}
