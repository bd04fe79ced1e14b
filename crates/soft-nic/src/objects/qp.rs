//! Queue pairs: what the posting side, the engine and the peer's engine share of one.

mod ends;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::adversary::OfQp;
use crate::counters::Live;
use crate::device::{Device, Extra};
use crate::objects::cq::Cq;
use crate::objects::events::Events;
use crate::objects::layout::MAX_RING;
use crate::objects::mr::{MrTable, Pd, Right};
use crate::objects::pace::SchedElement;
use crate::objects::srq::Srq;
use crate::objects::state::{self, Attributes};
use crate::objects::xrc::Target;
use crate::offload::{Lease, Offload};
use crate::queue::recv::Receives;
use crate::record::{Call, Outcome, outside, plainly};
use crate::script::ScriptedFaults;
use crate::trace::Kind;
use bellpush_abi::engine::{Fixed, Line, State};
use bellpush_mem::View;
use bellpush_nic::{
    Change, Connection, LineFormat, MAX_RD_ATOMIC, NicAddress, NicError, QpAddress, QpAttr,
    QpState, QpType, QueuePair, Queues,
};
use bellpush_wire::cqe::{Cqe, Syndrome};
use bellpush_wire::doorbell::{DBR_RCV_OFFSET, DBR_SND_OFFSET};
use bellpush_wire::{Psn, Qpn};
use ends::Held;

/// The objects that a queue pair uses, beside its own rings.
#[derive(Clone)]
pub struct Objects {
    /// Service.
    pub kind: QpType,
    /// Protection domain of the regions that it may name.
    pub pd: Arc<Pd>,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete; may be the same CQ.
    pub recv_cq: Option<Arc<Cq>>,
    /// Where receives come from instead of the queue pair's own receive queue.
    pub srq: Option<Arc<Srq>>,
    /// User index that CQEs carry (CQE version 1), 24 bits.
    pub uidx: u32,
}

/// A queue pair of the software NIC.
pub struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) kind: QpType,
    /// Index of its engine in the device.
    pub(crate) engine: usize,
    nic: u64,
    device: Weak<Device>,
    pub(crate) queues: Queues,
    pub(crate) attr: QpAttr,
    state: AtomicU8,
    /// NIC and queue pair of an in-process peer, valid from RTR on.
    remote: [AtomicU64; 2],
    attributes: Mutex<Attributes>,
    /// First PSN of the next connection.
    first_psn: AtomicU32,
    /// In SQD, and not all of what was sent is complete.
    pub(crate) draining: AtomicBool,
    /// What peers may do: bits of [`Right::bit`].
    rights: AtomicU8,
    /// Number of its protection domain, which it keeps.
    pub(crate) pd: u32,
    _pd: Arc<Pd>,
    pub(crate) mrs: Arc<MrTable>,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Option<Arc<Cq>>,
    pub(crate) srq: Option<Arc<Srq>>,
    /// Of an XRC target.
    pub(crate) xrc: Option<Target>,
    uidx: u32,
    /// Access key of a DC target.
    dc_key: AtomicU64,
    /// Of an initiator with streams: how many in error end it; else 0.
    error_streams: AtomicU32,
    /// What its requests and its responses are paced by, and whether anything is.
    groups: Mutex<Groups>,
    paced: AtomicBool,
    receives: Mutex<Receives>,
    /// Of an SRQ.
    held: Held,
    /// Leases of queue pairs that an engine elsewhere sends to this one.
    senders: Mutex<Vec<Weak<Lease>>>,
    /// The first CQE since RESET that is an error of its own.
    error: Mutex<Option<(u16, Syndrome, u8)>>,
    /// The engine's: some queue pair of it changed state behind its back.
    attention: Arc<AtomicBool>,
    /// Of a NIC that takes every freedom.
    pub(crate) adversary: Option<Box<OfQp>>,
    pub(crate) counters: Arc<Live>,
    pub(crate) events: Arc<Events>,
    /// What strikes its WQEs.
    pub(crate) faults: Option<Arc<ScriptedFaults>>,
}

/// Groups of a schedule that requests and responses are of.
pub type Groups = [Option<Arc<SchedElement>>; 2];

const STATES: [QpState; 6] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];

impl Qp {
    pub(crate) fn new(
        qpn: Qpn,
        engine: usize,
        device: &Device,
        attr: &QpAttr,
        queues: Queues,
        (objects, xrc): (Objects, Option<Target>),
    ) -> Self {
        Self {
            qpn,
            kind: objects.kind,
            engine,
            nic: device.id(),
            device: device.myself.clone(),
            queues,
            attr: attr.clone(),
            state: AtomicU8::new(0),
            remote: Default::default(),
            attributes: Mutex::default(),
            first_psn: AtomicU32::new(device.random() & (Psn::MODULUS - 1)),
            draining: AtomicBool::new(false),
            rights: AtomicU8::new(0),
            pd: objects.pd.number(),
            _pd: objects.pd,
            mrs: device.mrs.clone(),
            send_cq: objects.send_cq,
            recv_cq: objects.recv_cq,
            srq: objects.srq,
            xrc,
            uidx: objects.uidx,
            dc_key: AtomicU64::new(0),
            error_streams: AtomicU32::new(0),
            groups: Mutex::default(),
            paced: AtomicBool::new(false),
            receives: Mutex::new(Receives::new()),
            held: Held::default(),
            senders: Mutex::default(),
            error: Mutex::default(),
            attention: device.engines[engine].attention.clone(),
            adversary: device.adversary.as_ref().map(|state| state.of_qp()),
            counters: device.counters.clone(),
            events: device.events.clone(),
            faults: device.faults.clone(),
        }
    }

    pub(crate) fn receives(&self) -> MutexGuard<'_, Receives> {
        self.receives.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// NIC and queue pair number of the in-process peer.
    pub(crate) fn connected_to(&self) -> (u64, u32) {
        let [nic, qpn] = [0, 1].map(|i| self.remote[i].load(Ordering::Relaxed));
        (nic, qpn as u32)
    }

    /// NIC and queue pair number as an in-process peer knows them.
    pub(crate) fn in_process(&self) -> (u64, u32) {
        (self.nic, self.qpn.0)
    }

    /// Attributes in force.
    pub(crate) fn attributes(&self) -> Attributes {
        *self.attributes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a move; the attributes that are in force after it. The device's, under the engine's lock, as all moves.
    pub(crate) fn check(
        &self,
        from: QpState,
        to: QpState,
        change: &Change,
    ) -> Result<Attributes, NicError> {
        state::check(self.qpn, self.kind, from, to, change)?;
        let mut attributes = self.attributes();
        attributes.apply(change);
        if (from, to) == (QpState::Rts, QpState::Sqd) {
            attributes.sqd_event = change.sqd_event == Some(true); // of this move alone
        }
        Ok(attributes)
    }

    /// Takes attributes over, to be in a state with them.
    pub(crate) fn take_over(&self, to: QpState, attributes: &Attributes) {
        *self.attributes.lock().unwrap_or_else(PoisonError::into_inner) = *attributes;
        self.rights.store(Right::bits(attributes.access), Ordering::Relaxed);
        self.call_senders_back();
        self.trace_connected(to, attributes.dest_qpn);
        if let (QpState::Rtr, NicAddress::InProcess(nic)) = (to, attributes.av.nic) {
            // Relaxed: the state's store to RTR, with release, publishes them.
            self.remote[0].store(nic, Ordering::Relaxed);
            self.remote[1].store(attributes.dest_qpn.0.into(), Ordering::Relaxed);
        }
    }

    /// Forgets the connection; the next one begins with another PSN.
    pub(crate) fn forget(&self, psn: u32) {
        *self.attributes.lock().unwrap_or_else(PoisonError::into_inner) = Attributes::default();
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.set_groups([None, None]);
        self.held.clear();
        self.first_psn.store(psn & (Psn::MODULUS - 1), Ordering::Relaxed);
    }

    /// Whether peers may access regions in that way through this queue pair.
    pub(crate) fn permits(&self, right: Right) -> bool {
        self.rights.load(Ordering::Relaxed) & right.bit() != 0
    }

    /// Moves on, if nobody else has moved the queue pair meanwhile.
    pub(crate) fn advance(&self, from: QpState, to: QpState) -> Result<(), NicError> {
        let moved =
            self.state.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire);
        if !matches!(to, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            self.call_senders_back();
        }
        if moved.is_ok() {
            self.mark(Kind::State, 0, [from as u64, to as u64]);
        }
        moved.map(|_| ()).map_err(|_| self.refused(to))
    }

    /// Moves to RESET, which there is a way to from every state: somebody else's move to ERR does not keep it from that.
    pub(crate) fn start_over(&self) {
        let before = self.state.swap(QpState::Reset as u8, Ordering::AcqRel);
        self.mark(Kind::State, 0, [before.into(), QpState::Reset as u64]);
        self.call_senders_back();
    }

    pub(crate) fn refused(&self, to: QpState) -> NicError {
        NicError::State { qpn: self.qpn.0, from: QueuePair::state(self), to }
    }

    /// Leases the send side to an engine elsewhere, as it stands and towards that peer. `None`: it is
    /// not for that engine.
    pub(crate) fn grant(&self, lease: &Arc<Lease>, peer: &Qp, state: State) -> Option<bool> {
        let (cq, cq_dbr, [cq_pi, cq_ci]) = self.send_cq.hand_over()?;
        let offload = lease.offload();
        let mut keep = Vec::new();
        let mut reach = |view: &View| {
            let reached = offload.reach(view)?;
            keep.push(reached.keep);
            Some(reached.addr)
        };
        let q = &self.queues;
        let inband = self.attr.inband.as_ref();
        let fixed = Fixed {
            sq: reach(&q.sq)?,
            dbr: reach(&q.dbr)?,
            uar: reach(&q.uar)?,
            cq: reach(cq)?,
            cq_dbr: reach(cq_dbr)?,
            window: inband.map_or(Some(0), |inband| reach(&inband.window))?,
            keys: self.mrs.mirror(offload).ok()?.addr,
            peer_keys: peer.mrs.mirror(offload).ok()?.addr,
            qpn: self.qpn.0,
            pd: self.pd,
            uidx: self.uidx,
            sq_blocks: self.attr.sq_blocks,
            cqes: self.send_cq.entries(),
            peer_pd: peer.pd,
            peer_rights: peer.rights.load(Ordering::Relaxed).into(),
            blueflame: self.attr.blueflame.into(),
            line: inband.map_or(Line::None, |inband| match inband.line {
                LineFormat::L12S4 => Line::L12S4,
                LineFormat::L14S2 => Line::L14S2,
                LineFormat::L60S4 => Line::L60S4,
            }) as u32,
            slot_bytes: inband.map_or(0, |inband| inband.slot_bytes),
            slots: inband.map_or(0, |inband| inband.slots),
            seq0: inband.map_or(0, |inband| inband.seq0),
            reserved: [0; 4],
        };
        let mut senders = peer.senders.lock().unwrap_or_else(PoisonError::into_inner);
        senders.retain(|sender| sender.upgrade().is_some_and(|it| !Arc::ptr_eq(&it, lease)));
        senders.push(Arc::downgrade(lease));
        drop(senders);
        Some(lease.grant(&fixed, &State { cq_pi, cq_ci, ..state }, keep))
    }

    /// Whether an engine elsewhere may have the send side at all.
    pub(crate) fn suits(&self, has_page_alone: bool) -> bool {
        self.kind == QpType::Rc
            // Engines elsewhere take the index of a register, which is not enough in a largest ring.
            && (1..MAX_RING).contains(&self.attr.sq_blocks.into())
            && self.send_cq.hand_over().is_some()
            && match &self.attr.inband {
                Some(inband) => Offload::takes_slots_of(inband.slot_bytes),
                None => has_page_alone,
            }
    }

    fn senders(&self) -> Vec<Arc<Lease>> {
        let senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        senders.iter().filter_map(Weak::upgrade).collect()
    }

    /// Has the engines of those that send to it look at its state again.
    fn call_senders_back(&self) {
        self.senders().iter().for_each(|lease| lease.ask_back());
    }

    /// Waits until no engine elsewhere sends to it.
    pub(crate) fn part_from_senders(&self) {
        // An engine that does not answer is given up; what it may still reach is kept.
        self.senders().iter().for_each(|lease| {
            lease.recall();
        });
    }

    /// Writes a send completion; an overrun moves the queue pair to ERR.
    pub(crate) fn complete(&self, cqe: &Cqe) -> bool {
        self.push(&self.send_cq, cqe)
    }

    /// Writes a receive completion; an overrun moves the queue pair to ERR.
    pub(crate) fn complete_receive(&self, cqe: &Cqe) -> bool {
        self.land();
        match (&self.xrc, &self.srq) {
            (Some(xrc), _) => xrc.srq().is_some_and(|srq| self.wrote(srq.complete(cqe), cqe)),
            (None, Some(srq)) if srq.tags().is_some() => self.wrote(srq.complete(cqe), cqe),
            (None, _) => self.recv_cq.as_ref().is_some_and(|cq| self.push(cq, cqe)),
        }
    }

    /// Lands the WRITEs that an adversary still keeps from memory: something comes that is ordered behind them.
    pub(crate) fn land(&self) {
        if let Some(of) = &self.adversary {
            of.state.land_of(self.qpn);
        }
    }

    /// Whether an adversary still keeps WRITEs from memory that are not to be acknowledged before.
    pub(crate) fn is_landing(&self) -> bool {
        self.adversary.as_ref().is_some_and(|of| of.state.is_landing(self.qpn))
    }

    /// A requester is told that its WRITEs are complete.
    pub(crate) fn land_acknowledged(&self) {
        if self.is_landing() {
            self.land();
        }
    }

    /// Brings about what an adversary has put off: the queue pair goes, or to RESET.
    pub(crate) fn bring_about(&self) {
        self.land();
        self.release_completions();
    }

    /// Writes the CQEs that an adversary has put off.
    pub(crate) fn release_completions(&self) {
        for cq in [Some(&self.send_cq), self.recv_cq.as_ref()].into_iter().flatten() {
            cq.release_late(u64::MAX);
        }
        if let Some(srq) = &self.srq {
            srq.bring_about();
        }
    }

    fn push(&self, cq: &Cq, cqe: &Cqe) -> bool {
        self.wrote(cq.push(&Cqe { uidx: self.uidx, ..*cqe }), cqe)
    }

    /// A call that goes into a recording, if there is one.
    fn recorded(&self, call: Call, run: impl FnOnce()) {
        let device = self.device.upgrade();
        let recorder = device.as_ref().and_then(|device| device.recorder.as_ref());
        plainly(recorder, call, run);
    }

    /// Gives a target of dynamic connections its access key. Before RTR: nobody reaches it earlier.
    pub fn set_dc_key(&self, key: u64) {
        self.recorded(Call::DcKey { qpn: self.qpn.0, key }, || {
            self.dc_key.store(key, Ordering::Relaxed);
        });
    }

    /// Has an error of an initiator of dynamic connections end the stream of the work request alone,
    /// until so many are in error. Before RTR.
    pub fn set_streams(&self, most_in_error: u32) {
        self.recorded(Call::Streams { qpn: self.qpn.0, most_in_error }, || {
            self.error_streams.store(most_in_error.max(1), Ordering::Relaxed);
        });
    }

    /// A CQ of its device that several queue pairs may share, by its number.
    pub(crate) fn cq_of_device(&self, number: u32) -> Option<Arc<Cq>> {
        self.device.upgrade()?.cq(number)
    }

    pub(crate) fn error_streams(&self) -> Option<usize> {
        let most = self.error_streams.load(Ordering::Relaxed) as usize;
        (self.kind == QpType::Dci && most > 0).then_some(most)
    }

    /// Has its requests and its responses go as fast as groups of a schedule may, until RESET
    /// (`mlx5dv_modify_qp_sched_elem`).
    ///
    /// # Errors
    /// [`NicError::Attribute`] for another type than RC, or without a packet link.
    pub fn pace(&self, groups: Groups) -> Result<(), NicError> {
        self.may_be_paced()?;
        let call = Call::Other("a queue pair of a schedule".into());
        self.recorded(call, || self.set_groups(groups));
        Ok(())
    }

    pub(crate) fn may_be_paced(&self) -> Result<(), NicError> {
        if self.kind != QpType::Rc || self.nic != 0 {
            let (what, must) = ("queue pair of a schedule", "RC, on a packet link");
            return Err(NicError::Attribute { what, value: self.kind as u64, must });
        }
        Ok(())
    }

    /// Has it be a user of groups of a schedule, if it may be.
    pub(crate) fn set_groups(&self, groups: Groups) {
        let groups = groups.map(|group| group.as_ref().map(SchedElement::user_of));
        let mut held = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        self.paced.store(groups.iter().any(Option::is_some), Ordering::Relaxed);
        *held = groups;
    }

    #[inline]
    pub(crate) fn groups(&self) -> Groups {
        if !self.paced.load(Ordering::Relaxed) {
            return [None, None];
        }
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes a stream out of error (`mlx5dv_dci_stream_id_reset`).
    ///
    /// # Errors
    /// [`NicError::State`] but in RTS, [`NicError::Attribute`] for a stream that is in none.
    pub fn reset_stream(&self, stream: u16) -> Result<(), NicError> {
        let device = self.device.upgrade().ok_or(NicError::NoSuchQp(self.qpn.0))?;
        let call = || Call::ResetStream { qpn: self.qpn.0, stream };
        let reset = || device.reset_stream(self, stream);
        outside(device.recorder.as_ref(), call, reset, |&()| Outcome::Done)
    }

    pub(crate) fn dc_key(&self) -> u64 {
        self.dc_key.load(Ordering::Relaxed)
    }

    /// Service of the queue pair.
    pub fn kind(&self) -> QpType {
        self.kind
    }

    /// The attributes in force (`ibv_query_qp`); those that were not set yet have default values.
    pub fn query(&self) -> Change {
        self.attributes().into()
    }

    /// Whether it is in SQD while something that was sent is not complete (`sq_draining`).
    pub fn is_draining(&self) -> bool {
        QueuePair::state(self) == QpState::Sqd && self.draining.load(Ordering::Relaxed)
    }

    /// Moves to a state, or changes attributes within one (`ibv_modify_qp`).
    ///
    /// # Errors
    /// [`NicError::State`] for a move that the state machine does not allow, [`NicError::Missing`]
    /// and [`NicError::Superfluous`] for attributes, [`NicError::Attribute`] for a value out of
    /// range, [`NicError::NoSuchPeer`] when the address vector leads nowhere.
    pub fn modify(&self, to: QpState, change: &Change) -> Result<(), NicError> {
        self.modify_with(to, change, Extra::default())
    }

    /// As [`Qp::modify`], and changes what verbs have no attributes for. All of it is done, or nothing.
    ///
    /// # Errors
    /// As [`Qp::modify`], [`Qp::pace`] and [`Qp::reset_stream`].
    pub fn modify_with(&self, to: QpState, change: &Change, extra: Extra) -> Result<(), NicError> {
        let device = self.device.upgrade().ok_or(NicError::NoSuchQp(self.qpn.0))?;
        let call = || match extra {
            Extra { groups: None, stream: None } => {
                Call::Modify { qpn: self.qpn.0, to, change: Box::new(*change) }
            }
            _ => Call::Other("a queue pair of a schedule, or a stream with it".into()),
        };
        let (recorder, extra) = (device.recorder.as_ref(), extra.clone());
        let modify = || device.modify(self, to, change, extra);
        crate::log::told(self.qpn.0, outside(recorder, call, modify, |&()| Outcome::Done))
    }

    /// Moves through INIT and RTR to RTS.
    ///
    /// # Errors
    /// As [`Qp::modify`]; a queue pair that is past INIT is refused.
    pub fn connect_with(&self, connection: &Connection) -> Result<(), NicError> {
        let state = QueuePair::state(self);
        if !matches!(state, QpState::Reset | QpState::Init) {
            return Err(self.refused(QpState::Rtr));
        }
        for (to, change) in state::ladder(self.kind, connection) {
            self.modify(to, &change)?;
        }
        Ok(())
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
        let psn = Psn::new(self.first_psn.load(Ordering::Relaxed));
        let here = self.device.upgrade().map(|device| device.here());
        let (nic, mtu) = here.unwrap_or((NicAddress::InProcess(self.nic), bellpush_nic::Mtu::MAX));
        QpAddress { nic, qpn: self.qpn, psn, mtu, rd_atomic: MAX_RD_ATOMIC }
    }

    fn state(&self) -> QpState {
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    fn connect(&self, peer: QpAddress) -> Result<(), NicError> {
        let mut connection = Connection::new(QueuePair::address(self), peer);
        connection.with.rnr_retry = Some(self.attr.rnr_retry);
        connection.with.timeout = Some(self.attr.ack_timeout);
        self.connect_with(&connection)
    }

    fn fail(&self) {
        self.recorded(Call::Fail { qpn: self.qpn.0 }, || self.set_error());
    }

    fn reset(&self) -> Result<(), NicError> {
        self.modify(QpState::Reset, &Change::default())?;
        // After the move: an engine that is still at work would take an older record for one that wrapped. Before the
        // next connection, which looks at it: what it said would be WQEs. libmlx5 does the same.
        for word in [DBR_RCV_OFFSET, DBR_SND_OFFSET] {
            self.queues.dbr.store_u32(word, 0, Ordering::Release)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "qp_tests.rs"]
mod tests;
