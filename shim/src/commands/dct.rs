//! Targets of dynamic connections (DC), which take requests of any initiator that has their key.

use std::sync::Arc;

use bellpush_mem::{HostMem, PAGE_BYTES, View};
use bellpush_nic::{Order, QpAttr, QpType, QueuePair, Queues};
use bellpush_soft_nic::{Objects as Used, Qp};
use bytemuck::Zeroable;

use super::cq::CqObj;
use super::memory::PdObj;
use super::srq::SrqObj;
use super::{Command, qp, word};
use crate::abi::ids::{UHW_OUT, attr};
use crate::abi::mlx5::{CreateQp, CreateQpResp};
use crate::abi::verbs::{ModifyQp, QpCap, QpDest, qp_attr as mask};
use crate::context::Object;
use crate::error::Refusal;
use crate::layout;

/// `IBV_QPT_DRIVER`.
pub const DRIVER: u64 = 0xff;
/// Bytes of `struct mlx5_ib_modify_qp_resp`, of which the second word is the target's number.
const MODIFY_RESP_BYTES: u32 = 16;

/// A target.
pub struct Dct {
    /// The NIC's.
    pub qp: Arc<Qp>,
    _uses: (Arc<PdObj>, Arc<CqObj>, Arc<CqObj>, Arc<SrqObj>),
}

/// What a queue pair is made of that has no queues of its own.
pub fn no_queues() -> Result<(QpAttr, Queues), Refusal> {
    let page = View::new(&HostMem::alloc(PAGE_BYTES)?, 0, PAGE_BYTES)?;
    let made = QpAttr {
        sq_blocks: 0,
        rq_wqes: 0,
        rq_sges: 1,
        send_cqes: 1,
        recv_cqes: 1,
        rnr_retry: 0,
        ack_timeout: 0, // modify_qp says
        inband: None,
        blueflame: false,
    };
    let queues = Queues {
        sq: page.clone(),
        rq: page.clone(),
        rq_stride_log: 4,
        order: Order::Later,
        uar: page.clone(),
        send_cq: page.clone(),
        send_cq_dbr: page.clone(),
        recv_cq: page.clone(),
        recv_cq_dbr: page.clone(),
        dbr: page,
    };
    Ok((made, queues))
}

/// `UVERBS_METHOD_QP_CREATE` of a driver's type, with `MLX5_QP_FLAG_TYPE_DCT`.
pub fn create(c: &mut Command<'_>, driver: &CreateQp, cap: &QpCap) -> Result<(), Refusal> {
    let pd = c.objects.pd(c.request.handle(attr::CREATE_QP_PD_HANDLE)?)?.clone();
    let send_cq = c.objects.cq(c.request.handle(attr::CREATE_QP_SEND_CQ_HANDLE)?)?.clone();
    let recv_cq = c.objects.cq(c.request.handle(attr::CREATE_QP_RECV_CQ_HANDLE)?)?.clone();
    let srq = c.objects.srq(c.request.handle(attr::CREATE_QP_SRQ_HANDLE)?)?.clone();
    let (made, queues) = no_queues()?;
    let objects = Used {
        kind: QpType::Dct,
        pd: pd.pd.clone(),
        send_cq: send_cq.cq.clone(),
        recv_cq: Some(recv_cq.cq.clone()),
        srq: Some(srq.srq.clone()),
        uidx: driver.uidx & 0xff_ffff,
    };
    let qp = c.context.device.nic.create_with(&made, queues, objects)?;
    qp.set_dc_key(driver.access_key);
    let object = Dct { qp, _uses: (pd, send_cq, recv_cq, srq) };
    let handle = c.objects.add(Object::Dct(object));
    c.created(attr::CREATE_QP_HANDLE, handle);
    // A target has no queues: what was asked for is answered, as the kernel does.
    c.request.put(attr::CREATE_QP_RESP_CAP, bytemuck::bytes_of(cap));
    // Its number comes with RTR.
    c.request.put(attr::CREATE_QP_RESP_QP_NUM, &word(0));
    c.request.put(UHW_OUT, bytemuck::bytes_of(&CreateQpResp::zeroed()));
    Ok(())
}

/// `IB_USER_VERBS_EX_CMD_MODIFY_QP` of a target: RESET to INIT to RTR, and back.
pub fn modify(c: &mut Command<'_>, r: &ModifyQp) -> Result<(), Refusal> {
    let Some(Object::Dct(Dct { qp, .. })) = c.objects.get(r.qp_handle) else {
        return Err(Refusal::Handle { what: "DC target", handle: r.qp_handle });
    };
    let now = QueuePair::state(&**qp);
    let to = if r.attr_mask & mask::STATE != 0 { qp::state(r.qp_state)? } else { now };
    // A target has no peer. What programs give for one's address, UCX none, is not looked at.
    let dest = QpDest { dgid: layout::gid(c.context.device.address), ..r.dest };
    qp.modify(to, &qp::change(&ModifyQp { dest, ..*r })?)?;
    let number = qp.qpn().0;
    c.request.put(UHW_OUT, bytemuck::bytes_of(&[MODIFY_RESP_BYTES, number, 0, 0]));
    Ok(())
}
