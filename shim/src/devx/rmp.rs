//! `CREATE_RMP`: a receive memory pool, which is an SRQ in umems.

use std::sync::Arc;

use bellpush_soft_nic::{Srq, SrqAttr};

use super::prm::{Mailbox, rmp};
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

/// A pool.
pub struct DevxRmp {
    /// The NIC's.
    pub srq: Arc<Srq>,
    _pd: Arc<PdObj>,
    _umems: [Arc<Umem>; 2],
}

/// Creates a pool. WQEs of both types begin with a next segment.
pub fn create(c: &mut Command<'_>, cmd: &Mailbox) -> Result<(Object, u32), Refusal> {
    at_least(cmd, rmp::IN_BYTES)?;
    if cmd.flag(rmp::BASIC_CYCLIC) {
        return Err(Refusal::Unsupported("a pool whose WQEs have no next segment"));
    }
    if cmd.get(rmp::PAGE_OFFSET) != 0 {
        let value = cmd.get(rmp::PAGE_OFFSET);
        return Err(Refusal::Value { what: "pool's page_offset", value, must: "0" });
    }
    let kind = cmd.get(rmp::WQ_TYPE);
    if !matches!(kind, LIST | CYCLIC) {
        return Err(Refusal::Unsupported("a pool whose WQEs are of strides"));
    }
    let pdn = cmd.word(rmp::PD);
    let pd = named(c.objects, "protection domain", pdn, |object| match object {
        Object::Pd(pd) if pd.pd.number() == pdn => Some(pd.clone()),
        _ => None,
    })?;
    let (stride_log, log) = (cmd.word(rmp::LOG_WQ_STRIDE), cmd.word(rmp::LOG_WQ_SZ));
    if 1u32.checked_shl(log).is_none_or(|wqes| wqes > MAX_WQES) {
        let must = "within log_max_srq_sz";
        return Err(Refusal::Value { what: "log_wq_sz", value: log.into(), must });
    }
    let buffer = super::umem(c.objects, cmd.word(rmp::WQ_UMEM_ID))?;
    let record = super::umem(c.objects, cmd.word(rmp::DBR_UMEM_ID))?;
    let ring = buffer.queue(cmd.get(rmp::WQ_UMEM_OFFSET), 1 << (log + stride_log))?;
    let dbr = record.queue(cmd.get(rmp::DBR_ADDR), DBR_BYTES)?;
    let attr = SrqAttr { pd: pd.pd.clone(), ring, stride_log, dbr, limit: cmd.word(rmp::LWM) };
    let nic = &c.context.device.nic;
    let srq = if kind == LIST { nic.create_srq(&attr)? } else { nic.create_cyclic_srq(&attr)? };
    let number = srq.number();
    let object = DevxRmp { srq, _pd: pd, _umems: [buffer, record] };
    Ok((Object::DevxRmp(Arc::new(object)), number))
}
