//! Shared receive queues.

use std::sync::Arc;

use bellpush_mem::HostMem;
use bellpush_soft_nic::{Srq, SrqAttr, TagAttr, XrcSrq};

use super::cq::CqObj;
use super::device::MAX_WQES;
use super::memory::PdObj;
use super::xrcd::XrcdObj;
use super::{Command, word};
use crate::abi::ids::{UHW_IN, UHW_OUT, attr};
use crate::abi::mlx5::CreateSrq;
use crate::abi::verbs::{ModifySrq, QuerySrq, QuerySrqResp};
use crate::context::Object;
use crate::device::Source;
use crate::error::Refusal;

/// `enum ib_uverbs_srq_type`.
const BASIC: u64 = 0;
const XRC: u64 = 1;
const TM: u64 = 2;

/// A shared receive queue.
pub struct SrqObj {
    /// The NIC's.
    pub srq: Arc<Srq>,
    _pd: Arc<PdObj>,
    _xrcd: Option<Arc<XrcdObj>>,
    _cq: Option<Arc<CqObj>>,
    max_wr: u32,
    max_sge: u32,
}

/// `UVERBS_METHOD_SRQ_CREATE`.
pub fn create(c: &mut Command<'_>) -> Result<(), Refusal> {
    let kind = c.request.number(attr::CREATE_SRQ_TYPE)?;
    let (xrcd, cq, tags) = match kind {
        BASIC => (None, None, 0),
        XRC | TM => {
            let cq = c.objects.cq(c.request.handle(attr::CREATE_SRQ_CQ_HANDLE)?)?.clone();
            match kind {
                TM => (None, Some(cq), c.request.word(attr::CREATE_SRQ_MAX_NUM_TAGS)?),
                _ => {
                    let xrcd = c.request.handle(attr::CREATE_SRQ_XRCD_HANDLE)?;
                    (Some(c.objects.xrcd(xrcd)?.clone()), Some(cq), 0)
                }
            }
        }
        value => {
            let must = "0, 1 or 2";
            return Err(Refusal::Value { what: "type of SRQ", value, must });
        }
    };
    let pd = c.objects.pd(c.request.handle(attr::CREATE_SRQ_PD_HANDLE)?)?.clone();
    let user_handle = c.request.number(attr::CREATE_SRQ_USER_HANDLE)?;
    let max_wr = c.request.word(attr::CREATE_SRQ_MAX_WR)?;
    let max_sge = c.request.word(attr::CREATE_SRQ_MAX_SGE)?;
    let limit = c.request.word(attr::CREATE_SRQ_LIMIT)?;
    let driver: CreateSrq = c.request.input_from(UHW_IN, 24)?;
    if driver.flags != 0 {
        return Err(Refusal::Unsupported("an SRQ with signatures"));
    }
    // As libmlx5 and the kernel each compute it (mlx5_alloc_srq_buf, create_srq_user): WQEs with a
    // next segment, and one more WQE than may be posted.
    let refuse = |what, value: u32| Refusal::Value {
        what,
        value: value.into(),
        must: "within the device's limit",
    };
    let wqes = max_wr.checked_add(1).and_then(u32::checked_next_power_of_two);
    let wqes = wqes.filter(|&n| n <= MAX_WQES);
    let wqes = wqes.ok_or_else(|| refuse("SRQ's WQEs", max_wr))?;
    let stride = max_sge.checked_add(1).and_then(|n| (n.max(2) * 16).checked_next_power_of_two());
    let stride = stride.filter(|&n| max_sge < 64 && n <= 1024);
    let stride = stride.ok_or_else(|| refuse("SRQ's scatter entries", max_sge))?;
    // SAFETY: libmlx5 keeps an SRQ's buffer and record until the SRQ is destroyed; the SRQ, which
    // alone holds the views, is gone then.
    let (ring, dbr) = unsafe {
        let ring = HostMem::borrowed(driver.buf_addr, wqes as usize * stride as usize, true)?;
        (ring, HostMem::borrowed(driver.db_addr, 4, true)?)
    };
    let stride_log = stride.trailing_zeros();
    let made = SrqAttr { pd: pd.pd.clone(), ring, stride_log, dbr, limit };
    let nic = &c.context.device.nic;
    let uidx = driver.uidx & 0xff_ffff;
    let srq = match (&xrcd, &cq) {
        (_, None) => nic.create_srq(&made)?,
        (Some(xrcd), Some(cq)) => {
            let (xrcd, cq) = (xrcd.xrcd.clone(), cq.cq.clone());
            nic.create_xrc_srq(&made, XrcSrq { xrcd, cq, uidx })?
        }
        (None, Some(cq)) => {
            nic.create_tag_srq(&made, TagAttr { cq: cq.cq.clone(), uidx, tags, cyclic: false })?
        }
    };
    let number = srq.number();
    let object = SrqObj { srq, _pd: pd, _xrcd: xrcd, _cq: cq, max_wr, max_sge };
    let handle = c.objects.add(Object::Srq(Arc::new(object)));
    c.context.listen(c.objects, Source::Srq(number), user_handle);
    c.created(attr::CREATE_SRQ_HANDLE, handle);
    c.request.put(attr::CREATE_SRQ_RESP_MAX_WR, &word(max_wr));
    c.request.put(attr::CREATE_SRQ_RESP_MAX_SGE, &word(max_sge));
    c.request.put(attr::CREATE_SRQ_RESP_SRQ_NUM, &word(number));
    c.request.put(UHW_OUT, &super::long(number.into()));
    Ok(())
}

/// `UVERBS_METHOD_SRQ_DESTROY`.
pub fn destroy(c: &mut Command<'_>) -> Result<(), Refusal> {
    let handle = c.request.handle(attr::DESTROY_HANDLE)?;
    let source = Source::Srq(c.objects.srq(handle)?.srq.number());
    let events = c.context.destroy_with_events(c.objects, handle, source)?;
    c.request.put(attr::DESTROY_RESP, &word(events));
    Ok(())
}

/// `IB_USER_VERBS_CMD_MODIFY_SRQ`.
pub fn modify(c: &mut Command<'_>) -> Result<(), Refusal> {
    const LIMIT: u32 = 2;
    let r: ModifySrq = c.request.input(attr::CORE_IN)?;
    let srq = c.objects.srq(r.srq_handle)?;
    if r.attr_mask & !LIMIT != 0 {
        return Err(Refusal::Unsupported("an SRQ that changes its size"));
    }
    if r.attr_mask & LIMIT != 0 {
        srq.srq.arm_limit(r.srq_limit)?;
    }
    Ok(())
}

/// `IB_USER_VERBS_CMD_QUERY_SRQ`.
pub fn query(c: &mut Command<'_>) -> Result<(), Refusal> {
    let r: QuerySrq = c.request.input(attr::CORE_IN)?;
    let SrqObj { srq, max_wr, max_sge, .. } = &**c.objects.srq(r.srq_handle)?;
    let (max_wr, max_sge, srq_limit) = (*max_wr, *max_sge, srq.limit());
    c.answer(bytemuck::bytes_of(&QuerySrqResp { max_wr, max_sge, srq_limit, reserved: 0 }));
    Ok(())
}
