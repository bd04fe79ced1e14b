//! Queue pairs: what the posting side, the engine and the peer's engine share of one.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::counters::Live;
use super::cq::Cq;
use super::device::Device;
use super::mr::MrTable;
use super::responder::Responder;
use crate::mem::{MemError, PAGE_BYTES, View};
use crate::nic::{NicError, QpAddress, QpAttr, QpState, QueuePair, Queues};
use crate::wire::Qpn;
use crate::wire::cqe::{CQE_BYTES, Cqe, Syndrome};
use crate::wire::doorbell::UAR_BYTES;
use crate::wire::wqe::{DS_BYTES, WQEBB_BYTES};

/// Largest ring: the send and receive counters have 16 bits, and a counter that lies more than a
/// ring ahead must be recognisable as stale.
const MAX_RING: u64 = 1 << 15;
/// Largest CQ: consumer indices have 24 bits.
const MAX_CQES: u64 = 1 << 22;
/// Most scatter entries of a receive.
pub(super) const MAX_RQ_SGES: usize = 32;
/// Largest in-band slot.
const MAX_SLOT_BYTES: u64 = 1 << 20;

/// A queue pair of the software NIC.
pub struct Qp {
    pub(super) qpn: Qpn,
    /// Index of its engine in the device.
    pub(super) engine: usize,
    nic: u64,
    device: Weak<Device>,
    pub(super) queues: Queues,
    pub(super) attr: QpAttr,
    state: AtomicU8,
    /// NIC and queue pair of the peer, valid from RTR on.
    remote: [AtomicU64; 2],
    pub(super) mrs: Arc<MrTable>,
    pub(super) send_cq: Cq,
    pub(super) recv_cq: Option<Cq>,
    responder: Mutex<Responder>,
    /// The engine's: some queue pair of it changed state behind its back.
    attention: Arc<AtomicBool>,
    pub(super) counters: Arc<Live>,
}

const STATES: [QpState; 6] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];

/// Whether the state machine allows a move (InfiniBand vol. 1, 10.3.1). From ERR only RESET leads
/// on; ERR and RESET can be entered from everywhere.
pub(super) fn allowed(from: QpState, to: QpState) -> bool {
    use QpState::*;
    matches!(
        (from, to),
        (Reset | Init, Init) | (Init, Rtr) | (Rtr | Sqd, Rts) | (Rts, Sqd) | (_, Err | Reset)
    )
}

impl Qp {
    #[expect(clippy::too_many_arguments, reason = "the device's only call, each part once")]
    pub(super) fn new(
        qpn: Qpn,
        engine: usize,
        nic: u64,
        device: Weak<Device>,
        attr: &QpAttr,
        queues: Queues,
        mrs: Arc<MrTable>,
        attention: Arc<AtomicBool>,
        counters: Arc<Live>,
    ) -> Result<Self, MemError> {
        let send_cq = Cq::new(queues.send_cq.clone(), queues.send_cq_dbr.clone(), attr.send_cqes)?;
        let recv_cq = (attr.recv_cqes > 0)
            .then(|| Cq::new(queues.recv_cq.clone(), queues.recv_cq_dbr.clone(), attr.recv_cqes))
            .transpose()?;
        Ok(Self {
            qpn,
            engine,
            nic,
            device,
            queues,
            attr: attr.clone(),
            state: AtomicU8::new(0),
            remote: Default::default(),
            mrs,
            send_cq,
            recv_cq,
            responder: Mutex::new(Responder::new()),
            attention,
            counters,
        })
    }

    pub(super) fn responder(&self) -> MutexGuard<'_, Responder> {
        self.responder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn connected_to(&self) -> QpAddress {
        let [nic, qpn] = [0, 1].map(|i| self.remote[i].load(Ordering::Relaxed));
        QpAddress { nic, qpn: Qpn(qpn as u32) }
    }

    pub(super) fn set_remote(&self, peer: QpAddress) {
        // Relaxed: the state's store to RTR, with release, publishes them.
        self.remote[0].store(peer.nic, Ordering::Relaxed);
        self.remote[1].store(peer.qpn.0.into(), Ordering::Relaxed);
    }

    /// Moves on, if nobody else has moved the queue pair meanwhile.
    pub(super) fn advance(&self, from: QpState, to: QpState) -> Result<(), NicError> {
        let moved =
            self.state.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire);
        moved.map(|_| ()).map_err(|_| self.refused(to))
    }

    pub(super) fn refused(&self, to: QpState) -> NicError {
        NicError::State { qpn: self.qpn.0, from: QueuePair::state(self), to }
    }

    /// Moves to ERR; its engine flushes what is outstanding.
    pub(super) fn set_error(&self) {
        self.state.store(QpState::Err as u8, Ordering::Release);
        self.attention.store(true, Ordering::Release);
    }

    /// Writes a send completion; an overrun moves the queue pair to ERR.
    pub(super) fn complete(&self, cqe: &Cqe) -> bool {
        self.push(&self.send_cq, cqe)
    }

    /// Writes a receive completion; an overrun moves the queue pair to ERR.
    pub(super) fn complete_receive(&self, cqe: &Cqe) -> bool {
        self.recv_cq.as_ref().is_some_and(|cq| self.push(cq, cqe))
    }

    fn push(&self, cq: &Cq, cqe: &Cqe) -> bool {
        let written = cq.push(cqe).is_ok();
        if !written {
            Live::add(&self.counters.cq_overruns, 1);
            self.set_error();
        } else if cqe.opcode.is_error() {
            let syndrome = Syndrome::from_code(cqe.syndrome);
            self.counters.error(syndrome.expect("only known syndromes are written"));
        }
        written
    }

    /// Moves through the states one at a time.
    ///
    /// # Errors
    /// [`NicError::State`] for a move that the state machine does not allow,
    /// [`NicError::NoSuchPeer`] when RTR is asked for without a peer that is on the link.
    pub fn modify(&self, to: QpState, peer: Option<QpAddress>) -> Result<(), NicError> {
        let device = self.device.upgrade().ok_or(NicError::NoSuchQp(self.qpn.0))?;
        device.modify(self, to, peer)
    }
}

impl QueuePair for Qp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn queues(&self) -> &Queues {
        &self.queues
    }

    fn address(&self) -> QpAddress {
        QpAddress { nic: self.nic, qpn: self.qpn }
    }

    fn state(&self) -> QpState {
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    fn connect(&self, peer: QpAddress) -> Result<(), NicError> {
        let state = QueuePair::state(self);
        if state == QpState::Reset {
            self.modify(QpState::Init, None)?;
        } else if state != QpState::Init {
            return Err(self.refused(QpState::Rtr));
        }
        self.modify(QpState::Rtr, Some(peer))?;
        self.modify(QpState::Rts, None)
    }

    fn fail(&self) {
        self.set_error();
    }
}

fn power_of_two(what: &'static str, value: u64, most: u64) -> Result<(), NicError> {
    if value.is_power_of_two() && value <= most {
        return Ok(());
    }
    Err(NicError::Attribute { what, value, must: "a power of two within the NIC's limit" })
}

/// Checks what a queue pair is to be made of.
pub(super) fn check(attr: &QpAttr) -> Result<(), NicError> {
    let refuse = |what, value: u64, must| Err(NicError::Attribute { what, value, must });
    power_of_two("send queue's blocks", attr.sq_blocks.into(), MAX_RING)?;
    power_of_two("send CQ's entries", attr.send_cqes.into(), MAX_CQES)?;
    if attr.rq_wqes > 0 {
        power_of_two("receive queue's WQEs", attr.rq_wqes.into(), MAX_RING)?;
        power_of_two("receive's scatter entries", attr.rq_sges.into(), MAX_RQ_SGES as u64)?;
    }
    if attr.rq_wqes > 0 || attr.recv_cqes > 0 {
        power_of_two("receive CQ's entries", attr.recv_cqes.into(), MAX_CQES)?;
    }
    if attr.rnr_retry > 7 {
        return refuse("RNR retry count", attr.rnr_retry.into(), "0..=7");
    }
    let Some(inband) = &attr.inband else { return Ok(()) };
    if attr.blueflame {
        return refuse("BlueFlame", 1, "off for an in-band queue pair");
    }
    let slot_bytes = u64::from(inband.slot_bytes);
    if slot_bytes == 0 || slot_bytes % 64 != 0 || slot_bytes > MAX_SLOT_BYTES {
        return refuse("slot's bytes", slot_bytes, "a multiple of 64, at most 1 MiB");
    }
    if inband.slots == 0 || u64::from(inband.slots) > MAX_RING {
        return refuse("number of slots", inband.slots.into(), "1..=32768");
    }
    if slot_bytes * u64::from(inband.slots) > inband.window.len as u64 {
        return refuse("window's bytes", inband.window.len as u64, "at least slots * slot_bytes");
    }
    if inband.window.offset % 64 != 0 {
        return refuse("window's offset", inband.window.offset as u64, "a multiple of 64");
    }
    if inband.seq0 == 0 || inband.seq0 > inband.line.modulus() {
        return refuse("first sequence", inband.seq0.into(), "1..=the line format's largest");
    }
    Ok(())
}

/// Offsets of a queue pair's parts in its memory, in the order of [`Queues`], and the total.
///
/// The UAR page comes first, so that it starts a page where the memory does.
struct Layout {
    sq: (usize, usize),
    rq: (usize, usize),
    rq_stride_log: u32,
    dbrs: usize,
    send_cq: (usize, usize),
    recv_cq: (usize, usize),
    total: usize,
}

fn layout(attr: &QpAttr) -> Layout {
    let stride = if attr.rq_wqes == 0 { DS_BYTES } else { attr.rq_sges as usize * DS_BYTES };
    let mut at = UAR_BYTES;
    let mut take = |bytes: usize| {
        let start = at;
        at = (at + bytes).next_multiple_of(WQEBB_BYTES);
        (start, bytes)
    };
    let (dbrs, _) = take(3 * WQEBB_BYTES); // a line each: they are written by different sides
    let sq = take(attr.sq_blocks as usize * WQEBB_BYTES);
    let rq = take(attr.rq_wqes as usize * stride);
    let send_cq = take(attr.send_cqes as usize * CQE_BYTES);
    let recv_cq = take(attr.recv_cqes as usize * CQE_BYTES);
    let total = at.next_multiple_of(PAGE_BYTES);
    Layout { sq, rq, rq_stride_log: stride.trailing_zeros(), dbrs, send_cq, recv_cq, total }
}

/// Bytes of memory that [`place`] takes.
pub(super) fn queue_bytes(attr: &QpAttr) -> usize {
    layout(attr).total
}

/// Lays the queues out in memory.
pub(super) fn place(attr: &QpAttr, memory: &View) -> Result<Queues, NicError> {
    if !memory.offset.is_multiple_of(WQEBB_BYTES) {
        let (value, must) = (memory.offset as u64, "a multiple of 64");
        return Err(NicError::Attribute { what: "queue memory's offset", value, must });
    }
    let l = layout(attr);
    let part = |(start, bytes): (usize, usize)| memory.part(start, bytes);
    Ok(Queues {
        sq: part(l.sq)?,
        rq: part(l.rq)?,
        rq_stride_log: l.rq_stride_log,
        dbr: part((l.dbrs, 8))?,
        uar: part((0, UAR_BYTES))?,
        send_cq: part(l.send_cq)?,
        send_cq_dbr: part((l.dbrs + WQEBB_BYTES, 8))?,
        recv_cq: part(l.recv_cq)?,
        recv_cq_dbr: part((l.dbrs + 2 * WQEBB_BYTES, 8))?,
    })
}

/// Checks that queues which lie anywhere are as long as the attributes say.
pub(super) fn fits(attr: &QpAttr, q: &Queues) -> Result<(), NicError> {
    let l = layout(attr);
    let recv_dbr = if attr.recv_cqes > 0 { 8 } else { 0 };
    for (what, view, bytes) in [
        ("send queue's bytes", &q.sq, l.sq.1),
        ("receive queue's bytes", &q.rq, l.rq.1),
        ("doorbell record's bytes", &q.dbr, 8),
        ("UAR page's bytes", &q.uar, UAR_BYTES),
        ("send CQ's bytes", &q.send_cq, l.send_cq.1),
        ("send CQ's doorbell record's bytes", &q.send_cq_dbr, 8),
        ("receive CQ's bytes", &q.recv_cq, l.recv_cq.1),
        ("receive CQ's doorbell record's bytes", &q.recv_cq_dbr, recv_dbr),
    ] {
        if view.len < bytes || view.offset % 8 != 0 {
            let (value, must) = (view.len as u64, "what the attributes ask for, 8-byte aligned");
            return Err(NicError::Attribute { what, value, must });
        }
    }
    if attr.rq_wqes > 0 && q.rq_stride_log != l.rq_stride_log {
        let (value, must) = (q.rq_stride_log.into(), "log2 of 16 bytes a scatter entry");
        return Err(NicError::Attribute { what: "receive stride", value, must });
    }
    Ok(())
}
