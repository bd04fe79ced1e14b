//! Reliable connections whose rings lie in the caller's memory.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::mem::zeroed;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_sys::{
    ibv_ah_attr, ibv_cq, ibv_cq_init_attr_ex, ibv_cq_init_attr_mask, ibv_dealloc_pd,
    ibv_destroy_cq, ibv_destroy_qp, ibv_global_route, ibv_modify_qp, ibv_parent_domain_init_attr,
    ibv_parent_domain_init_attr_mask, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_create_send_ops_flags, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask, ibv_qp_state,
    ibv_qp_type, ibv_query_qp, ibv_td_init_attr,
};

use super::device::{Device, Marks, mtu_code};
use super::error::Mlx5Error;
use super::gid;
use super::object::Object;
use super::pool::{Pool, page_bytes};
use super::verbs::verb;
use bellpush_mem::{HostMem, MemError, PAGE_BYTES, View};
use bellpush_nic::{
    Access, AddressVector, Change, Connection, MAX_RD_ATOMIC, NicAddress, NicError, Order,
    QpAddress, QpAttr, QpState, QpType, QueuePair, Queues,
};
use bellpush_wire::blueflame::BF_BYTES;
use bellpush_wire::cqe::CQE_BYTES;
use bellpush_wire::doorbell::UAR_DOORBELL_OFFSET;
use bellpush_wire::wqe::{DS_BYTES, WQEBB_BYTES};
use bellpush_wire::{Psn, Qpn};

/// Largest ring: the producer index of a doorbell has 16 bits.
const MAX_RING: u64 = 1 << 15;
/// Scatter entries of a receive, at most; the device may allow fewer.
const MAX_RQ_SGES: u64 = 32;

type Domain = Object<ibv_pd>;

fn address(device: &Device, qpn: Qpn, psn: Psn) -> QpAddress {
    let [_, answers] = device.max_rd_atomic;
    let rd_atomic = answers.min(MAX_RD_ATOMIC);
    QpAddress { nic: device.address, qpn, psn, mtu: device.mtu, rd_atomic }
}

/// A queue pair.
pub(super) struct Qp {
    device: Arc<Device>,
    /// `None` once it is destroyed.
    object: Mutex<Option<Object<ibv_qp>>>,
    /// Addresses of the queue pair and its CQs, which events name.
    events_of: [usize; 3],
    queues: Queues,
    /// With the first PSN that the queue pair was made with.
    address: QpAddress,
    /// First PSN of the next connection.
    first_psn: AtomicU32,
    rnr_retry: u8,
    ack_timeout: u8,
    connected: AtomicBool,
}

/// Bytes of queue memory: a page of records, and rings that begin pages. libmlx5 aligns the send and
/// receive queues to a 64th of their buffer's size, rounded up to a power of two (the PRM's QP page
/// offset counts in such parts), wherever the CQs before them end.
pub(super) fn queue_bytes(attr: &QpAttr) -> usize {
    queue_bytes_in(attr, page_bytes())
}

fn queue_bytes_in(attr: &QpAttr, page: usize) -> usize {
    let pages = |bytes: usize| bytes.next_multiple_of(page);
    let rq = attr.rq_wqes as usize * attr.rq_sges.max(1) as usize * DS_BYTES;
    let rings = pages(rq + attr.sq_blocks as usize * WQEBB_BYTES);
    let align = (rings.next_power_of_two() / 64).max(page);
    let cq = |entries: u32| pages(entries as usize * CQE_BYTES);
    let cqs = cq(attr.send_cqes) + cq(attr.recv_cqes);
    page + cqs + (align - page) + rings.next_multiple_of(align)
}

fn check(device: &Device, attr: &QpAttr) -> Result<(), NicError> {
    let power = |what, value: u32, most: u64| match u64::from(value) {
        value if value.is_power_of_two() && value <= most => Ok(()),
        value => {
            let must = "a power of two within the NIC's limit";
            Err(NicError::Attribute { what, value, must })
        }
    };
    if attr.inband.is_some() {
        let what = "push/inband, which is the software NIC's own: a ConnectX needs a doorbell. \
                    Take push/kernel, or --nic soft";
        return Err(NicError::Unsupported { nic: device.name.clone(), what });
    }
    let most_cqes = device.max_cqes.into();
    power("send queue's blocks", attr.sq_blocks, MAX_RING)?;
    power("send CQ's entries", attr.send_cqes, most_cqes)?;
    if attr.rq_wqes > 0 {
        power("receive queue's WQEs", attr.rq_wqes, MAX_RING)?;
        power("receive's scatter entries", attr.rq_sges, MAX_RQ_SGES)?;
        power("receive CQ's entries", attr.recv_cqes, most_cqes)?;
    }
    if attr.rnr_retry > 7 {
        let (value, must) = (attr.rnr_retry.into(), "0..=7");
        return Err(NicError::Attribute { what: "RNR retry count", value, must });
    }
    if attr.ack_timeout > 31 {
        let (value, must) = (attr.ack_timeout.into(), "0..=31");
        return Err(NicError::Attribute { what: "local ACK timeout's code", value, must });
    }
    Ok(())
}

/// A domain for one queue pair: its queue memory comes from the pool, its doorbell register is its
/// own. (A thread domain is how libmlx5 dedicates a register; a UAR of `mlx5dv_devx_alloc_uar`
/// could be given to queue pairs made by DEVX commands only.)
fn domain(
    device: &Arc<Device>,
    pd: &Arc<Domain>,
    pool: &Arc<Pool>,
) -> Result<Arc<Domain>, NicError> {
    let (alloc_td, dealloc_td) = (verb!(&**device, alloc_td)?, verb!(&**device, dealloc_td)?);
    let alloc_domain = verb!(&**device, alloc_parent_domain)?;
    let mut attr = ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: an open context; null or a fresh thread domain that this alone frees.
    let td = unsafe {
        let raw = alloc_td(device.context().as_ptr(), &mut attr);
        let how = (dealloc_td, "ibv_dealloc_td");
        Arc::new(Object::take(device, raw, "ibv_alloc_td", how, device.clone())?)
    };
    let mask = ibv_parent_domain_init_attr_mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0
        | ibv_parent_domain_init_attr_mask::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT.0;
    let mut attr = ibv_parent_domain_init_attr {
        pd: pd.raw().as_ptr(),
        td: td.raw().as_ptr(),
        comp_mask: mask,
        alloc: Some(Pool::alloc),
        free: Some(Pool::free),
        pd_context: (&raw const **pool).cast_mut().cast(),
    };
    let uses = (pd.clone(), td, pool.clone());
    // SAFETY: live objects of one context; pool and thread domain outlive the domain, which keeps
    // them.
    unsafe {
        let raw = alloc_domain(device.context().as_ptr(), &mut attr);
        let how = (ibv_dealloc_pd as super::object::Destroy<ibv_pd>, "ibv_dealloc_pd");
        Ok(Arc::new(Object::take(device, raw, "ibv_alloc_parent_domain", how, uses)?))
    }
}

fn create_cq(
    device: &Arc<Device>,
    domain: &Arc<Domain>,
    entries: u32,
) -> Result<Arc<Object<ibv_cq>>, Mlx5Error> {
    // SAFETY: integers and pointers that may be null.
    let mut attr: ibv_cq_init_attr_ex = unsafe { zeroed() };
    attr.cqe = entries - 1; // libmlx5 keeps one more and rounds up to a power of two
    attr.comp_mask = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_PD.0;
    attr.parent_domain = domain.raw().as_ptr();
    let how = (ibv_destroy_cq as super::object::Destroy<ibv_cq>, "ibv_destroy_cq");
    // SAFETY: live objects of one context; null or a fresh CQ that this alone destroys.
    unsafe {
        let raw = device.dv.create_cq(device.context(), &mut attr, CQE_BYTES as u16);
        let raw = raw.map_or(std::ptr::null_mut(), |raw| raw.as_ptr());
        Ok(Arc::new(Object::take(device, raw, "mlx5dv_create_cq", how, domain.clone())?))
    }
}

/// Ring and doorbell record of a CQ, which must be those asked for, in the pool.
fn cq_views(
    device: &Device,
    pool: &Pool,
    cq: &Object<ibv_cq>,
    entries: u32,
) -> Result<(View, View), NicError> {
    // SAFETY: a live CQ of libmlx5's.
    let found = unsafe { device.dv.cq(cq.raw()) }.map_err(|code| init_obj(device, code))?;
    same("a CQ with entries", found.cqes.into(), entries.into())?;
    same("a CQ with entries of bytes", found.cqe_bytes.into(), CQE_BYTES as u64)?;
    let ring = pool.view(found.ring, entries as usize * CQE_BYTES)?;
    Ok((ring, pool.view(found.dbr, 8)?))
}

fn init_obj(device: &Device, code: i32) -> Mlx5Error {
    Mlx5Error::verb(&device.name, "mlx5dv_init_obj", io::Error::from_raw_os_error(code.abs()))
}

fn same(what: &'static str, found: u64, wanted: u64) -> Result<(), Mlx5Error> {
    if found == wanted { Ok(()) } else { Err(Mlx5Error::Queue { what, found, wanted }) }
}

impl Qp {
    pub fn create(
        device: &Arc<Device>,
        pd: &Arc<Domain>,
        attr: &QpAttr,
        memory: View,
        psn: Psn,
    ) -> Result<Arc<Self>, NicError> {
        check(device, attr)?;
        if memory.mem().is_far() {
            return Err(MemError::Far.into()); // libmlx5 writes at the addresses that it is given
        }
        let pool = Pool::new(memory);
        let qp = Self::make(device, pd, attr, &pool, psn);
        if qp.is_err() && pool.was_short() {
            let (what, must) = ("queue memory", "as long as Nic::queue_bytes says");
            return Err(NicError::Attribute { what, value: pool.bytes() as u64, must });
        }
        qp
    }

    fn make(
        device: &Arc<Device>,
        pd: &Arc<Domain>,
        attr: &QpAttr,
        pool: &Arc<Pool>,
        psn: Psn,
    ) -> Result<Arc<Self>, NicError> {
        let domain = domain(device, pd, pool)?;
        let send_cq = create_cq(device, &domain, attr.send_cqes)?;
        let recv_cq = match attr.recv_cqes {
            0 => None,
            entries => Some(create_cq(device, &domain, entries)?),
        };
        // SAFETY: integers and pointers that may be null.
        let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
        init.send_cq = send_cq.raw().as_ptr();
        init.recv_cq = recv_cq.as_ref().unwrap_or(&send_cq).raw().as_ptr();
        init.qp_type = ibv_qp_type::IBV_QPT_RC;
        init.pd = domain.raw().as_ptr();
        // One gather entry and these operations make a WQE of one basic block, so that libmlx5's
        // ring has one block a request. Longer WQEs of ours take several; the NIC does not mind.
        init.cap.max_send_wr = attr.sq_blocks;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_wr = attr.rq_wqes;
        init.cap.max_recv_sge = if attr.rq_wqes == 0 { 0 } else { attr.rq_sges };
        init.send_ops_flags = send_ops(device.atomics);
        init.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0
            | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        // SAFETY: live objects of one context; null or a fresh queue pair that this alone destroys.
        let object = unsafe {
            let raw = device.dv.create_qp(device.context(), &mut init);
            let raw = raw.map_or(std::ptr::null_mut(), |raw| raw.as_ptr());
            let how = (ibv_destroy_qp as super::object::Destroy<ibv_qp>, "ibv_destroy_qp");
            let uses = (send_cq.clone(), recv_cq.clone(), domain);
            Object::take(device, raw, "mlx5dv_create_qp", how, uses)?
        };
        // SAFETY: a live queue pair of libmlx5's.
        let found = unsafe { device.dv.qp(object.raw()) }.map_err(|code| init_obj(device, code))?;
        same("a send queue with blocks", found.sq_blocks.into(), attr.sq_blocks.into())?;
        same("a send queue with strides of", found.sq_stride.into(), WQEBB_BYTES as u64)?;
        let mut rq = (found.sq, 0);
        let mut rq_stride_log = DS_BYTES.ilog2();
        if attr.rq_wqes > 0 {
            same("a receive queue with WQEs", found.rq_wqes.into(), attr.rq_wqes.into())?;
            let stride = attr.rq_sges as usize * DS_BYTES;
            same("a receive queue with strides of", found.rq_stride.into(), stride as u64)?;
            rq = (found.rq, attr.rq_wqes as usize * stride);
            rq_stride_log = stride.ilog2();
        }
        if attr.blueflame && (found.bf_bytes as usize) < BF_BYTES {
            let what = "a BlueFlame path: its doorbell page has no BlueFlame buffer of 256 bytes. \
                        Take kick kernel";
            return Err(NicError::Unsupported { nic: device.name.clone(), what });
        }
        let (send_ring, send_cq_dbr) = cq_views(device, pool, &send_cq, attr.send_cqes)?;
        let (recv_ring, recv_cq_dbr) = match &recv_cq {
            Some(cq) => cq_views(device, pool, cq, attr.recv_cqes)?,
            None => (send_ring.part(0, 0)?, send_cq_dbr.clone()),
        };
        let queues = Queues {
            sq: pool.view(found.sq, attr.sq_blocks as usize * WQEBB_BYTES)?,
            rq: pool.view(rq.0, rq.1)?,
            rq_stride_log,
            dbr: pool.view(found.dbr, 8)?,
            uar: uar(device, found.register)?,
            order: Order::Strict,
            send_cq: send_ring,
            send_cq_dbr,
            recv_cq: recv_ring,
            recv_cq_dbr,
        };
        // SAFETY: a live queue pair; its number does not change.
        let qpn = Qpn(unsafe { (*object.raw().as_ptr()).qp_num });
        let recv = recv_cq.as_ref().unwrap_or(&send_cq).raw();
        let events_of =
            [object.raw().addr(), send_cq.raw().addr(), recv.addr()].map(|addr| addr.get());
        Ok(Arc::new(Self {
            device: device.clone(),
            events_of,
            object: Mutex::new(Some(object)),
            queues,
            address: address(device, qpn, psn),
            first_psn: AtomicU32::new(psn.value()),
            rnr_retry: attr.rnr_retry,
            ack_timeout: attr.ack_timeout,
            connected: AtomicBool::new(false),
        }))
    }

    /// Destroys the queue pair; its memory is not touched afterwards.
    pub fn destroy(&self) -> Result<(), NicError> {
        let object = self.object.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(object) = object else { return Ok(()) };
        object.destroy()?;
        // From here on nobody reports an event of them: destruction takes back those not yet read.
        self.events_of.iter().for_each(|&object| self.device.events.forget(object));
        Ok(())
    }

    fn with<R>(
        &self,
        call: &'static str,
        f: impl FnOnce(*mut ibv_qp) -> R,
    ) -> Result<R, Mlx5Error> {
        match &*self.object.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(object) => Ok(f(object.raw().as_ptr())),
            None => {
                let gone = io::Error::from_raw_os_error(libc::ENOENT);
                Err(Mlx5Error::verb(&self.device.name, call, gone))
            }
        }
    }

    fn modify(&self, to: QpState, change: &Change) -> Result<(), Mlx5Error> {
        let call = match to {
            QpState::Init => "ibv_modify_qp to INIT",
            QpState::Rtr => "ibv_modify_qp to RTR",
            QpState::Rts => "ibv_modify_qp to RTS",
            _ => "ibv_modify_qp",
        };
        let (mut attr, mask) = self.attributes(to, change)?;
        // SAFETY: a live queue pair, and a structure of ours.
        let code = self.with(call, |qp| unsafe { ibv_modify_qp(qp, &mut attr, mask.0 as i32) })?;
        match code {
            0 => Ok(()),
            code => {
                let source = io::Error::from_raw_os_error(code.abs());
                Err(Mlx5Error::verb(&self.device.name, call, source))
            }
        }
    }

    /// `ibv_qp_attr` and its mask.
    fn attributes(
        &self,
        to: QpState,
        change: &Change,
    ) -> Result<(ibv_qp_attr, ibv_qp_attr_mask), Mlx5Error> {
        use ibv_qp_attr_mask as m;
        // SAFETY: integers and unions of them.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = state_code(to);
        let mut mask = m::IBV_QP_STATE;
        macro_rules! set {
            ($($value:expr => $field:ident, $flag:ident;)*) => {
                $(if let Some(value) = $value {
                    attr.$field = value;
                    mask |= m::$flag;
                })*
            };
        }
        let [own, answers] = self.device.max_rd_atomic;
        set! {
            change.access.map(|access| access_flags(access, self.device.atomics)) => qp_access_flags, IBV_QP_ACCESS_FLAGS;
            change.pkey_index => pkey_index, IBV_QP_PKEY_INDEX;
            change.port.map(|_| self.device.port) => port_num, IBV_QP_PORT;
            change.av.map(|av| self.path(&av)).transpose()? => ah_attr, IBV_QP_AV;
            change.path_mtu.map(mtu_code) => path_mtu, IBV_QP_PATH_MTU;
            change.dest_qpn.map(|qpn| qpn.0) => dest_qp_num, IBV_QP_DEST_QPN;
            change.rq_psn.map(Psn::value) => rq_psn, IBV_QP_RQ_PSN;
            change.sq_psn.map(Psn::value) => sq_psn, IBV_QP_SQ_PSN;
            change.max_rd_atomic.map(|n| n.min(own)) => max_rd_atomic, IBV_QP_MAX_QP_RD_ATOMIC;
            change.max_dest_rd_atomic.map(|n| n.min(answers))
                => max_dest_rd_atomic, IBV_QP_MAX_DEST_RD_ATOMIC;
            change.min_rnr_timer => min_rnr_timer, IBV_QP_MIN_RNR_TIMER;
            change.timeout => timeout, IBV_QP_TIMEOUT;
            change.retry_cnt => retry_cnt, IBV_QP_RETRY_CNT;
            change.rnr_retry => rnr_retry, IBV_QP_RNR_RETRY;
        }
        Ok((attr, mask))
    }

    /// The path to a peer, as `ibv_ah_attr`.
    fn path(&self, to: &AddressVector) -> Result<ibv_ah_attr, Mlx5Error> {
        let Device { port, address, gid, marks, .. } = &*self.device;
        path(*address, (*port, gid.index), *marks, to)
    }
}

/// The path from a port, by one of its GIDs. The device's marks hold unless the address vector has
/// others.
fn path(
    local: NicAddress,
    (port, sgid_index): (u8, u8),
    marks: Marks,
    to: &AddressVector,
) -> Result<ibv_ah_attr, Mlx5Error> {
    // SAFETY: integers and a union of them.
    let mut av: ibv_ah_attr = unsafe { zeroed() };
    (av.port_num, av.sl) = (port, marks.service_level);
    let global = |raw: [u8; 16]| ibv_global_route {
        dgid: rdma_sys::ibv_gid { raw },
        flow_label: to.flow_label,
        sgid_index,
        hop_limit: if to.hop_limit == 0 { 64 } else { to.hop_limit },
        traffic_class: match to.traffic_class {
            0 => marks.traffic_class,
            other => other,
        },
    };
    match (local, to.nic) {
        (NicAddress::Ip(own), NicAddress::Ip(peer)) if own.is_ipv4() == peer.is_ipv4() => {
            (av.is_global, av.grh) = (1, global(gid::of(peer)));
        }
        (NicAddress::Lid { gid: own, .. }, NicAddress::Lid { lid, gid: peer }) => {
            av.dlid = lid;
            // Routed where the peer is in another subnet (the GID's first 8 bytes), or has no LID
            // at all.
            if lid == 0 || own[..8] != peer[..8] {
                (av.is_global, av.grh) = (1, global(peer));
            }
        }
        (local, peer) => {
            let (peer, local) = (peer.to_string(), local.to_string());
            return Err(Mlx5Error::Unreachable { peer, local });
        }
    }
    Ok(av)
}

/// The operations that posters of ours use. libmlx5 makes no queue pair for atomics on a card without.
fn send_ops(atomics: bool) -> u64 {
    use ibv_qp_create_send_ops_flags as f;
    let plain = f::IBV_QP_EX_WITH_RDMA_WRITE
        | f::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | f::IBV_QP_EX_WITH_SEND
        | f::IBV_QP_EX_WITH_SEND_WITH_IMM
        | f::IBV_QP_EX_WITH_RDMA_READ;
    let both = f::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | f::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    u64::from(if atomics { plain | both } else { plain }.0)
}

/// What a peer may do, for the queue pair as a whole; regions narrow it.
fn access_flags(access: Access, atomics: bool) -> u32 {
    let remote_atomic = access.remote_atomic && atomics;
    super::memory::flags(Access { local_write: false, remote_atomic, ..access })
}

fn state_code(state: QpState) -> u32 {
    match state {
        QpState::Reset => ibv_qp_state::IBV_QPS_RESET,
        QpState::Init => ibv_qp_state::IBV_QPS_INIT,
        QpState::Rtr => ibv_qp_state::IBV_QPS_RTR,
        QpState::Rts => ibv_qp_state::IBV_QPS_RTS,
        QpState::Sqd => ibv_qp_state::IBV_QPS_SQD,
        QpState::Err => ibv_qp_state::IBV_QPS_ERR,
    }
}

/// The part of the register's page from which our offsets count: a UAR page, 4 KiB whatever the
/// system's pages, has two registers, at 0x800 and 0xa00, and each queue pair sees its own at 0x800.
fn uar(device: &Arc<Device>, register: u64) -> Result<View, NicError> {
    let size = page_bytes();
    let (page, part) = register_part(register, size).ok_or(Mlx5Error::Queue {
        what: "a doorbell register at its page's offset",
        found: register % PAGE_BYTES as u64,
        wanted: UAR_DOORBELL_OFFSET as u64,
    })?;
    // SAFETY: libmlx5 maps the page for writing and keeps it until the context is closed, which the
    // owner puts off; what is written there concerns this process's queue pairs only.
    let memory = unsafe { HostMem::of_device(page, size, device.clone()) };
    Ok(View::new(&memory, part.start, part.len())?)
}

/// Address of the system's page that a register lies in, and the part of that page that a queue pair
/// sees: to the end of the UAR page.
fn register_part(register: u64, page_bytes: usize) -> Option<(u64, Range<usize>)> {
    let page = register & !(page_bytes as u64 - 1);
    let (at, in_uar) = ((register - page) as usize, register as usize % PAGE_BYTES);
    let before = in_uar.checked_sub(UAR_DOORBELL_OFFSET)?;
    let end = at - in_uar + PAGE_BYTES;
    register.is_multiple_of(8).then(|| (page, end - PAGE_BYTES + before..end))
}

impl QueuePair for Qp {
    fn qpn(&self) -> Qpn {
        self.address.qpn
    }

    fn queues(&self) -> &Queues {
        &self.queues
    }

    fn address(&self) -> QpAddress {
        // Acquire: pairs with a reset of another thread's, after which the queue pair is in RESET.
        QpAddress { psn: Psn::new(self.first_psn.load(Ordering::Acquire)), ..self.address }
    }

    fn state(&self) -> QpState {
        // SAFETY: integers, pointers that may be null, unions of them.
        let (mut attr, mut init) = unsafe { (zeroed::<ibv_qp_attr>(), zeroed()) };
        let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 as i32;
        // SAFETY: a live queue pair, and structures of ours.
        let code =
            self.with("ibv_query_qp", |qp| unsafe { ibv_query_qp(qp, &mut attr, mask, &mut init) });
        let states = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd];
        let known = states.into_iter().find(|&state| state_code(state) == attr.qp_state);
        match code {
            Ok(0) => known.unwrap_or(QpState::Err),
            _ => QpState::Err, // destroyed, or the device is gone
        }
    }

    fn connect(&self, peer: QpAddress) -> Result<(), NicError> {
        self.path(&AddressVector::to(peer.nic))?; // before any state changes
        if self.connected.swap(true, Ordering::AcqRel) {
            let (qpn, from, to) = (self.address.qpn.0, self.state(), QpState::Init);
            return Err(NicError::State { qpn, from, to });
        }
        let mut connection = Connection::new(QueuePair::address(self), peer);
        connection.with.rnr_retry = Some(self.rnr_retry);
        connection.with.timeout = Some(self.ack_timeout);
        let mut steps = [QpState::Init, QpState::Rtr, QpState::Rts].into_iter();
        let done = steps.try_for_each(|to| self.modify(to, &connection.change(QpType::Rc, to)));
        // A peer that cannot be reached leaves the queue pair as it was, for another one. From RESET
        // nothing was sent, and what was received is forgotten.
        if done.is_err() && self.modify(QpState::Reset, &Change::default()).is_ok() {
            self.connected.store(false, Ordering::Release);
        }
        Ok(done?)
    }

    fn trouble(&self) -> Option<NicError> {
        self.device.trouble(&self.events_of).map(NicError::from)
    }

    fn fail(&self) {
        // A device that refuses this has failed the queue pair itself.
        let _ = self.modify(QpState::Err, &Change::default());
    }

    fn reset(&self) -> Result<(), NicError> {
        // libmlx5 clears the doorbell record.
        self.modify(QpState::Reset, &Change::default())?;
        // A hasher's keys are drawn at random.
        let psn =
            Psn::new(RandomState::new().hash_one(self.first_psn.load(Ordering::Relaxed)) as u32);
        self.first_psn.store(psn.value(), Ordering::Release);
        self.connected.store(false, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
#[path = "qp_tests.rs"]
mod tests;
