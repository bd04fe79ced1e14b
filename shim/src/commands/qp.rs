//! Queue pairs.

use std::net::IpAddr;
use std::sync::Arc;

use bellpush_mem::{HostMem, PAGE_BYTES, View};
use bellpush_nic::{
    Access, Change, Mtu, NicAddress, Order, QpAttr, QpState, QpType, QueuePair, Queues,
};
use bellpush_soft_nic::{Objects as Used, Qp};
use bellpush_wire::{Psn, Qpn};
use bytemuck::{Zeroable, bytes_of};

use super::cq::CqObj;
use super::dct;
use super::device::{DCI_STREAMS, mtu_code};
use super::memory::{PdObj, path};
use super::srq::SrqObj;
use super::xrcd::XrcdObj;
use super::{Command, word};
use crate::abi::ids::{UHW_IN, UHW_OUT, attr};
use crate::abi::mlx5::{self, CreateQp, CreateQpResp};
use crate::abi::verbs::{ModifyQp, QpCap, QpDest, QueryQp, QueryQpResp, access, qp_attr as mask};
use crate::context::Object;
use crate::device::Source;
use crate::error::Refusal;
use crate::layout;
use crate::trap::Trap;

/// `IB_UVERBS_QP_CREATE_SQ_SIG_ALL`: libmlx5 asks for a CQE in each WQE.
const SQ_SIG_ALL: u64 = 1 << 12;
/// `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`, which a device without multicast keeps without effort.
const BLOCK_MULTICAST_LOOPBACK: u64 = 1 << 1;
const WQEBB_BYTES: usize = 64;
const DBR_BYTES: usize = 8;

/// A queue pair.
pub struct QpObj {
    /// The NIC's.
    pub qp: Arc<Qp>,
    /// As a query answers it: the receive queue as it is, and not as it was asked for.
    cap: QpCap,
    sq_sig_all: bool,
    dest: Option<QpDest>,
    uses: Uses,
}

impl QpObj {
    /// Whether it is connected to itself, to change a list of tags. libmlx5 gives it an address without a GRH, as on
    /// InfiniBand; nothing that it does leaves the NIC.
    fn changes_list(&self, r: &ModifyQp) -> bool {
        let matches = self.uses.srq.as_ref().is_some_and(|srq| srq.srq.matches_tags());
        matches && r.attr_mask & mask::AV != 0 && r.dest_qp_num == self.qp.qpn().0
    }
}

/// What a queue pair keeps from being destroyed.
#[derive(Default)]
struct Uses {
    _pd: Option<Arc<PdObj>>,
    _cqs: Vec<Arc<CqObj>>,
    srq: Option<Arc<SrqObj>>,
    _xrcd: Option<Arc<XrcdObj>>,
    _trap: Option<Arc<Trap>>,
}

/// `enum ib_uverbs_qp_type`.
fn kind(number: u64) -> Result<QpType, Refusal> {
    match number {
        2 => Ok(QpType::Rc),
        3 => Ok(QpType::Uc),
        4 => Ok(QpType::Ud),
        9 => Ok(QpType::XrcSend),
        10 => Ok(QpType::XrcRecv),
        _ => Err(Refusal::Unsupported("a queue pair of a type other than RC, UC, UD and XRC")),
    }
}

/// Memory for a ring without entries.
fn none() -> Result<View, Refusal> {
    Ok(View::new(&HostMem::alloc(PAGE_BYTES)?, 0, WQEBB_BYTES)?)
}

/// The rings that libmlx5 laid out: the receive queue, then the send queue.
fn queues(driver: &CreateQp, uar: View) -> Result<Queues, Refusal> {
    let refuse = |what, value: u32| {
        let must = "0, or a power of two within the device's limit";
        Err(Refusal::Value { what, value: value.into(), must })
    };
    let fine = |n: u32| n == 0 || n.is_power_of_two() && n <= super::device::MAX_WQES;
    let CreateQp { sq_wqe_count: sends, rq_wqe_count: receives, rq_wqe_shift: shift, .. } = *driver;
    if !fine(sends) {
        return refuse("send queue's blocks", sends);
    }
    if !fine(receives) {
        return refuse("receive queue's WQEs", receives);
    }
    if receives > 0 && !(4..=9).contains(&shift) {
        let must = "4 to 9";
        return Err(Refusal::Value { what: "receive WQE's stride", value: shift.into(), must });
    }
    let shift = if receives > 0 { shift } else { 4 };
    let (rq_bytes, sq_bytes) = ((receives as usize) << shift, sends as usize * WQEBB_BYTES);
    // SAFETY: libmlx5 keeps a queue pair's buffer and record until the queue pair is destroyed. When
    // that returns, the engine has let it go, and it has left the NIC's table, under whose lock alone
    // reports look at queues.
    let (buffer, dbr) = unsafe {
        let bytes = rq_bytes + sq_bytes;
        let buffer = match bytes {
            0 => None,
            _ => Some(HostMem::borrowed(driver.buf_addr, bytes, true)?),
        };
        (buffer, HostMem::borrowed(driver.db_addr, DBR_BYTES, true)?)
    };
    let part = |at, bytes| match &buffer {
        Some(buffer) if bytes > 0 => Ok::<_, Refusal>(buffer.part(at, bytes)?),
        _ => none(),
    };
    Ok(Queues {
        rq: part(0, rq_bytes)?,
        sq: part(rq_bytes, sq_bytes)?,
        rq_stride_log: shift,
        uar,
        order: Order::Strict,
        // The CQs are objects of their own.
        send_cq: dbr.clone(),
        send_cq_dbr: dbr.clone(),
        recv_cq: dbr.clone(),
        recv_cq_dbr: dbr.clone(),
        dbr,
    })
}

/// How many streams of an initiator may be in error, if it has streams.
fn streams(driver: &CreateQp) -> Result<Option<u32>, Refusal> {
    if driver.flags & mlx5::QP_FLAG_DCI_STREAM == 0 {
        return Ok(None);
    }
    for (log, most) in driver.dci_streams.into_iter().zip(DCI_STREAMS) {
        if log > most {
            let (what, must) = ("DC streams (log2)", "within dci_streams_caps");
            return Err(Refusal::Value { what, value: log.into(), must });
        }
    }
    Ok(Some(1 << driver.dci_streams[1]))
}

/// `UVERBS_METHOD_QP_CREATE`.
pub fn create(c: &mut Command<'_>) -> Result<(), Refusal> {
    // Of every type, in the kernel's order.
    let cap: QpCap = c.request.input(attr::CREATE_QP_CAP)?;
    let user_handle = c.request.number(attr::CREATE_QP_USER_HANDLE)?;
    let number = c.request.number(attr::CREATE_QP_TYPE)?;
    let kind = match number {
        dct::DRIVER => {
            let driver: CreateQp = c.request.input_from(UHW_IN, 40)?;
            match driver.flags & (mlx5::QP_FLAG_TYPE_DCT | mlx5::QP_FLAG_TYPE_DCI) {
                mlx5::QP_FLAG_TYPE_DCT => return dct::create(c, &driver, &cap),
                mlx5::QP_FLAG_TYPE_DCI => QpType::Dci,
                _ => return Err(Refusal::Unsupported("a queue pair of a driver's type but DC's")),
            }
        }
        _ => kind(number)?,
    };
    let flags = c.request.number_or(attr::CREATE_QP_FLAGS, 0)?;
    let blocks = if kind == QpType::Ud { BLOCK_MULTICAST_LOOPBACK } else { 0 };
    if flags & !(SQ_SIG_ALL | blocks) != 0 {
        return Err(Refusal::Unsupported("a creation flag of a queue pair"));
    }
    if kind == QpType::XrcRecv {
        return create_xrc_recv(c, user_handle, flags & SQ_SIG_ALL != 0);
    }
    let pd = c.objects.pd(c.request.handle(attr::CREATE_QP_PD_HANDLE)?)?.clone();
    let send_cq = c.objects.cq(c.request.handle(attr::CREATE_QP_SEND_CQ_HANDLE)?)?.clone();
    let recv_cq = match kind {
        QpType::XrcSend | QpType::Dci => None,
        _ => Some(c.objects.cq(c.request.handle(attr::CREATE_QP_RECV_CQ_HANDLE)?)?.clone()),
    };
    let srq = match c.request.has(attr::CREATE_QP_SRQ_HANDLE) {
        true => Some(c.objects.srq(c.request.handle(attr::CREATE_QP_SRQ_HANDLE)?)?.clone()),
        false => None,
    };
    // Older libraries end before the second buffer's address.
    let driver: CreateQp = c.request.input_from(UHW_IN, 40)?;
    // The kernel may scatter small messages into CQEs where the library allows it; it need not.
    let known = mlx5::QP_FLAG_SCATTER_CQE
        | mlx5::QP_FLAG_ALLOW_SCATTER_CQE
        | mlx5::QP_FLAG_BFREG_INDEX
        | mlx5::QP_FLAG_UAR_PAGE_INDEX;
    let of_dci = mlx5::QP_FLAG_TYPE_DCI | mlx5::QP_FLAG_DCI_STREAM;
    let dci = if kind == QpType::Dci { of_dci } else { 0 };
    if driver.flags & !(known | dci) != 0 {
        return Err(Refusal::Unsupported(
            "a queue pair with signatures, tunnels, or streams but DC's",
        ));
    }
    let streams = streams(&driver)?;
    let page = driver.bfreg_index;
    let uar = c.objects.uars.get(&page);
    let uar = uar.filter(|_| driver.flags & mlx5::QP_FLAG_UAR_PAGE_INDEX != 0);
    let uar = uar.ok_or(Refusal::Handle { what: "UAR page", handle: page })?.clone();
    let queues = queues(&driver, uar)?;
    // An initiator never receives, whatever it was given for that.
    let receives = kind != QpType::Dci;
    let made = QpAttr {
        sq_blocks: driver.sq_wqe_count,
        rq_wqes: if receives { driver.rq_wqe_count } else { 0 },
        rq_sges: 1 << (queues.rq_stride_log - 4),
        // Those of the objects hold.
        send_cqes: 1,
        recv_cqes: 1,
        rnr_retry: 0,
        ack_timeout: 0, // modify_qp says
        inband: None,
        blueflame: false,
    };
    let objects = Used {
        kind,
        pd: pd.pd.clone(),
        send_cq: send_cq.cq.clone(),
        recv_cq: recv_cq.as_ref().map(|cq| cq.cq.clone()),
        srq: srq.as_ref().filter(|_| receives).map(|srq| srq.srq.clone()),
        uidx: driver.uidx & 0xff_ffff,
    };
    let qp = c.context.device.nic.create_with(&made, queues, objects)?;
    let trap = c.objects.trap(c.fd, page, &c.context.device);
    if let Some(most_in_error) = streams {
        qp.set_streams(most_in_error);
    }
    let in_force = match made.rq_wqes {
        0 => cap,
        max_recv_wr => QpCap { max_recv_wr, max_recv_sge: made.rq_sges, ..cap },
    };
    let object = QpObj {
        qp,
        cap: in_force,
        sq_sig_all: flags & SQ_SIG_ALL != 0,
        dest: None,
        uses: Uses {
            _pd: Some(pd),
            _cqs: [Some(send_cq), recv_cq].into_iter().flatten().collect(),
            srq,
            _xrcd: None,
            _trap: trap,
        },
    };
    created(c, object, (cap, page), user_handle);
    Ok(())
}

/// The receiving end of XRC, which has no queues, and of whose attributes its domain alone counts.
fn create_xrc_recv(c: &mut Command<'_>, user_handle: u64, sq_sig_all: bool) -> Result<(), Refusal> {
    let xrcd = c.objects.xrcd(c.request.handle(attr::CREATE_QP_XRCD_HANDLE)?)?.clone();
    let qp = c.context.device.nic.create_xrc_recv(&xrcd.xrcd)?;
    let (cap, uses) = (QpCap::zeroed(), Uses { _xrcd: Some(xrcd), ..Uses::default() });
    created(c, QpObj { qp, cap, sq_sig_all, dest: None, uses }, (cap, 0), user_handle);
    Ok(())
}

/// Takes a new queue pair on, and answers with what it got and the page where it rings.
fn created(c: &mut Command<'_>, object: QpObj, (cap, page): (QpCap, u32), user_handle: u64) {
    let number = object.qp.qpn().0;
    let handle = c.objects.add(Object::Qp(object));
    c.context.listen(c.objects, Source::Qp(number), user_handle);
    c.created(attr::CREATE_QP_HANDLE, handle);
    c.request.put(attr::CREATE_QP_RESP_CAP, bytes_of(&cap));
    c.request.put(attr::CREATE_QP_RESP_QP_NUM, &word(number));
    let response = CreateQpResp { bfreg_index: page, ..CreateQpResp::zeroed() };
    c.request.put(UHW_OUT, bytes_of(&response));
}

/// `UVERBS_METHOD_QP_DESTROY`.
pub fn destroy(c: &mut Command<'_>) -> Result<(), Refusal> {
    let handle = c.request.handle(attr::DESTROY_HANDLE)?;
    let number = match c.objects.get(handle) {
        Some(Object::Dct(dct)) => dct.qp.qpn(),
        _ => c.objects.qp(handle)?.qp.qpn(),
    };
    let source = Source::Qp(number.0);
    let events = c.context.destroy_with_events(c.objects, handle, source)?;
    c.request.put(attr::DESTROY_RESP, &word(events));
    Ok(())
}

/// `enum ibv_qp_state`; SQE is not used.
pub fn state(code: u8) -> Result<QpState, Refusal> {
    Ok(match code {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::Rtr,
        3 => QpState::Rts,
        4 => QpState::Sqd,
        6 => QpState::Err,
        _ => {
            let must = "RESET, INIT, RTR, RTS, SQD or ERR";
            return Err(Refusal::Value { what: "queue pair's state", value: code.into(), must });
        }
    })
}

fn code(state: QpState) -> u8 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqd => 4,
        QpState::Err => 6,
    }
}

fn mtu(code: u8) -> Result<Mtu, Refusal> {
    let mtu = 1usize.checked_shl(u32::from(code) + 7).filter(|_| code > 0).and_then(Mtu::new);
    let must = "256 to 4096 (1 to 5)";
    mtu.ok_or(Refusal::Value { what: "path MTU", value: code.into(), must })
}

/// What an `ibv_modify_qp` changes.
pub fn change(r: &ModifyQp) -> Result<Change, Refusal> {
    use mask::*;
    let has = |bit: u32| r.attr_mask & bit != 0;
    let unknown = ALT_PATH | PATH_MIG_STATE | CAP | RATE_LIMIT;
    if has(unknown) {
        return Err(Refusal::Unsupported("alternate paths, resizing and rate limits"));
    }
    let remote = |flags: u32| Access {
        local_write: true,
        remote_write: flags & access::REMOTE_WRITE != 0,
        remote_read: flags & access::REMOTE_READ != 0,
        remote_atomic: flags & access::REMOTE_ATOMIC != 0,
        ..Access::NONE
    };
    let av = |d: &QpDest| {
        let route = (d.flow_label, d.hop_limit, d.traffic_class);
        path(d.dgid, route, (d.is_global, d.sgid_index, d.port_num))
    };
    Ok(Change {
        access: has(ACCESS_FLAGS).then(|| remote(r.qp_access_flags)),
        pkey_index: has(PKEY_INDEX).then_some(r.pkey_index),
        port: has(PORT).then_some(r.port_num),
        qkey: has(QKEY).then_some(r.qkey),
        av: has(AV).then(|| av(&r.dest)).transpose()?,
        path_mtu: has(PATH_MTU).then(|| mtu(r.path_mtu)).transpose()?,
        dest_qpn: has(DEST_QPN).then_some(Qpn(r.dest_qp_num)),
        rq_psn: has(RQ_PSN).then(|| Psn::new(r.rq_psn & (Psn::MODULUS - 1))),
        sq_psn: has(SQ_PSN).then(|| Psn::new(r.sq_psn & (Psn::MODULUS - 1))),
        max_rd_atomic: has(MAX_QP_RD_ATOMIC).then_some(r.max_rd_atomic),
        max_dest_rd_atomic: has(MAX_DEST_RD_ATOMIC).then_some(r.max_dest_rd_atomic),
        min_rnr_timer: has(MIN_RNR_TIMER).then_some(r.min_rnr_timer),
        timeout: has(TIMEOUT).then_some(r.timeout),
        retry_cnt: has(RETRY_CNT).then_some(r.retry_cnt),
        rnr_retry: has(RNR_RETRY).then_some(r.rnr_retry),
        sqd_event: has(EN_SQD_ASYNC_NOTIFY).then_some(r.en_sqd_async_notify != 0),
        src_port: None,
    })
}

/// `IB_USER_VERBS_CMD_MODIFY_QP`.
pub fn modify(c: &mut Command<'_>) -> Result<(), Refusal> {
    // The extended command's struct ends with a rate limit, which its bit asks for.
    let mut r: ModifyQp = c.request.input(attr::CORE_IN)?;
    if let Some(Object::Dct(_)) = c.objects.get(r.qp_handle) {
        return dct::modify(c, &r);
    }
    let object = c.objects.qp(r.qp_handle)?;
    let qp = &object.qp;
    if object.changes_list(&r) && r.dest.is_global == 0 {
        (r.dest.dgid, r.dest.is_global) = (layout::gid(c.context.device.address), 1);
    }
    if qp.kind() == QpType::Dci {
        // Its peers stand in its WQEs: as of a target.
        r.dest.dgid = layout::gid(c.context.device.address);
    }
    let now = QueuePair::state(&**qp);
    if r.attr_mask & mask::CUR_STATE != 0 && state(r.cur_qp_state)? != now {
        let (value, must) = (r.cur_qp_state.into(), "the one that the queue pair is in");
        return Err(Refusal::Value { what: "current state", value, must });
    }
    let to = if r.attr_mask & mask::STATE != 0 { state(r.qp_state)? } else { now };
    qp.modify(to, &change(&r)?)?;
    if r.attr_mask & mask::AV != 0
        && let Some(Object::Qp(object)) = c.objects.get_mut(r.qp_handle)
    {
        object.dest = Some(r.dest);
    }
    c.request.put(UHW_OUT, &word(16));
    Ok(())
}

fn gid(address: NicAddress) -> [u8; 16] {
    match address {
        NicAddress::Ip(IpAddr::V4(v4)) => v4.to_ipv6_mapped().octets(),
        NicAddress::Ip(IpAddr::V6(v6)) => v6.octets(),
        NicAddress::Lid { gid, .. } => gid,
        NicAddress::InProcess(_) => [0; 16],
    }
}

/// `IB_USER_VERBS_CMD_QUERY_QP`.
pub fn query(c: &mut Command<'_>) -> Result<(), Refusal> {
    let r: QueryQp = c.request.input(attr::CORE_IN)?;
    let object = c.objects.qp(r.qp_handle)?;
    let (qp, in_force) = (&object.qp, object.qp.query());
    let flags = in_force.access.map_or(0, |a| {
        let flag = |is, bit| if is { bit } else { 0 };
        flag(a.remote_write, access::REMOTE_WRITE)
            | flag(a.remote_read, access::REMOTE_READ)
            | flag(a.remote_atomic, access::REMOTE_ATOMIC)
    });
    let state = code(QueuePair::state(&**qp));
    let none = QpDest::zeroed();
    let dest = match (&object.dest, &in_force.av) {
        (Some(dest), Some(av)) => QpDest { dgid: gid(av.nic), hop_limit: av.hop_limit, ..*dest },
        _ => none,
    };
    let response = QueryQpResp {
        dest,
        alt_dest: none,
        cap: object.cap,
        qkey: in_force.qkey.unwrap_or(0),
        rq_psn: in_force.rq_psn.map_or(0, Psn::value),
        sq_psn: in_force.sq_psn.map_or(0, Psn::value),
        dest_qp_num: in_force.dest_qpn.map_or(0, |qpn| qpn.0),
        qp_access_flags: flags,
        pkey_index: in_force.pkey_index.unwrap_or(0),
        qp_state: state,
        cur_qp_state: state,
        path_mtu: in_force.path_mtu.map_or(0, |mtu| mtu_code(mtu.bytes())),
        max_rd_atomic: in_force.max_rd_atomic.unwrap_or(0),
        max_dest_rd_atomic: in_force.max_dest_rd_atomic.unwrap_or(0),
        min_rnr_timer: in_force.min_rnr_timer.unwrap_or(0),
        port_num: in_force.port.unwrap_or(0),
        timeout: in_force.timeout.unwrap_or(0),
        retry_cnt: in_force.retry_cnt.unwrap_or(0),
        rnr_retry: in_force.rnr_retry.unwrap_or(0),
        sq_sig_all: object.sq_sig_all.into(),
        ..QueryQpResp::zeroed()
    };
    c.answer(bytes_of(&response));
    Ok(())
}
