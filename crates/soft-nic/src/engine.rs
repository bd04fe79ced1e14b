//! The engine: watches UAR pages and in-band windows, and visits queue pairs that have work.
//!
//! It has no thread and no clock of its own; [`Engine::step`] is driven by a thread, by a waiting
//! caller, or by a test. [`step`] is what it does then.

mod step;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use crate::copy::Copiers;
use crate::counters::Live;
use crate::device::Device;
use crate::link::port::Port;
use crate::objects::cq::Cq;
use crate::objects::qp::Qp;
use crate::objects::state::Attributes;
use crate::queue::sq::{Carried, Scratch};
use crate::queue::uar::{ArmPage, Kind, Rung, Uar};
use crate::record::Turn;
use crate::report::SendReport;
use crate::service::Transport;
use crate::service::local::coalesce::COALESCE_MAX_WQES;
use crate::service::requester::Requester;
use bellpush_mem::{MemError, View};
use bellpush_nic::{NicError, QpState};
use bellpush_wire::Qpn;

/// No slot.
pub(crate) const NOBODY: usize = usize::MAX;

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Send WQEs carried out.
    pub wqes: u64,
    /// Bytes of their payload.
    pub bytes: u64,
    /// Error CQEs written.
    pub errors: u64,
    /// UAR pages that were rung.
    pub doorbells: u64,
    /// Packets that came from peers, without acknowledgements that carry no data.
    pub arrivals: u64,
    /// Messages that have come whole and that a program may see: SENDs, WRITEs and atomics of peers, as they come, accepted
    /// or not, and what READs and atomics of its own fetched. What peers read is none.
    pub messages: u64,
    /// Acknowledgements that came and carry no data.
    pub acknowledgements: u64,
    /// Whether the last of the arrivals does not end its message, or asks for part of a long READ: more are to come at
    /// once.
    pub under_way: bool,
    /// Whether some queue pair wants another step at once.
    pub more: bool,
    /// When a queue pair that waits is to be tried again, in the time of `now_ns`.
    pub next_ns: Option<u64>,
    /// Whether what was sent has not left yet: the link has no room for it, or holds it.
    pub link_holds: bool,
}

impl Progress {
    /// Whether anything happened or is about to.
    pub fn is_busy(&self) -> bool {
        self.wqes > 0 || self.errors > 0 || self.more
    }
}

/// One engine of a NIC; [`crate::SoftNic::manual`] hands them out.
pub struct Engine {
    pub(crate) device: Arc<Device>,
    pub(crate) index: usize,
}

impl Engine {
    /// Looks at everything once and does a bounded amount of work. `now_ns` never goes back.
    pub fn step(&mut self, now_ns: u64) -> Progress {
        let seat = &self.device.engines[self.index];
        // A plain lock would let a busy engine starve whoever wants to create a queue pair.
        while seat.waiting.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        let turn = self.device.recorder.as_ref().map(|recorder| recorder.turn());
        self.stepped(seat.lock(), turn, now_ns)
    }

    /// As [`Engine::step`], unless somebody is in a step, or waits for the engine.
    pub fn try_step(&self, now_ns: u64) -> Option<Progress> {
        let seat = &self.device.engines[self.index];
        let turn = match &self.device.recorder {
            Some(recorder) => Some(recorder.try_turn()?),
            None => None,
        };
        Some(self.stepped(seat.try_lock()?, turn, now_ns))
    }

    fn stepped(
        &self,
        mut core: MutexGuard<'_, Core>,
        turn: Option<Turn<'_>>,
        now_ns: u64,
    ) -> Progress {
        let seat = &self.device.engines[self.index];
        if let Some(turn) = &turn {
            turn.begin_step(now_ns);
        }
        let before = core.queues.active.len();
        let traced = self.device.events.trace().filter(|_| self.index == 0).map(|it| it.step());
        let progress = core.step(&self.device, now_ns, &seat.attention, &seat.counters);
        drop(traced); // before anybody else has the engine
        let left = progress.more || progress.is_busy() || core.queues.active.len() != before;
        drop(core);
        self.end_by_script();
        if let Some(turn) = turn {
            turn.end_step(left);
        }
        progress
    }

    /// A way to step the engine for others than who drives it.
    pub fn helper(&self) -> Helper {
        Helper(Self { device: self.device.clone(), index: self.index })
    }
}

/// Steps an engine beside who drives it: never two at a time, and nobody waits for the other.
pub struct Helper(pub(crate) Engine);

/// An engine's place in the device.
#[derive(Default)]
pub(crate) struct Seat {
    core: Mutex<Core>,
    waiting: AtomicUsize,
    pub(crate) attention: Arc<AtomicBool>,
    /// Its thread panicked.
    pub(crate) failed: AtomicBool,
    /// What its steps have done. The device's own would go from engine to engine with every step.
    pub(crate) counters: Live,
}

impl Seat {
    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine's state, unless someone has it, or waits for it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Core>> {
        if self.waiting.load(Ordering::Acquire) > 0 {
            return None;
        }
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(core)) => Some(core.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether someone wants the engine between two steps.
    #[cfg(test)]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// The engine's state, between two steps.
    pub(crate) fn control(&self) -> MutexGuard<'_, Core> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let core = self.lock();
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        core
    }
}

impl Seat {
    /// What the engine knows of its queue pairs' send sides, by number; `None` when it stays in a
    /// step for longer than `patience`.
    pub(crate) fn sends(&self, patience: Duration) -> Option<HashMap<u32, SendReport>> {
        let until = Instant::now() + patience;
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let core = loop {
            match self.core.try_lock() {
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_micros(50));
                }
                Err(TryLockError::WouldBlock) => break None,
                Err(TryLockError::Poisoned(core)) => break Some(core.into_inner()),
                Ok(core) => break Some(core),
            }
        };
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let core = core?;
        let Queues { slots, uars, .. } = &core.queues;
        let of = |(slot, r): (usize, &Requester)| {
            let uar = uars.iter().find(|uar| uar.qps.contains(&slot));
            (r.qp().qpn.0, r.report(uar.map_or_else(Rung::default, Uar::taken)))
        };
        let all = slots.iter().enumerate().filter_map(|(slot, r)| Some((slot, r.as_deref()?)));
        Some(all.map(of).collect())
    }
}

/// What an engine works on.
#[derive(Default)]
pub(crate) struct Core {
    pub(crate) queues: Queues,
    pub(crate) workspace: Workspace,
    /// The packet link, on a NIC that has one; such a NIC has one engine.
    pub(crate) port: Option<Port>,
    /// The time of the last step.
    now_ns: u64,
}

/// Memory that a step works with.
pub(crate) struct Workspace {
    scratch: Scratch,
    coalesced: Vec<Carried>,
    /// On a NIC with copy threads.
    pub(crate) copiers: Option<Copiers>,
}

/// The queue pairs of an engine, and lists of those that it looks at.
pub(crate) struct Queues {
    pub(crate) slots: Vec<Option<Box<Requester>>>,
    pub(crate) by_qpn: HashMap<u32, usize, ByQpn>,
    pub(crate) uars: Vec<Uar>,
    arm_pages: Vec<ArmPage>,
    /// CQs that may hold news back.
    moderated: Vec<Weak<Cq>>,
    /// In-band queue pairs: looked at every step.
    inband: Vec<usize>,
    /// Queue pairs whose records are looked at every step.
    by_record: Vec<usize>,
    /// Queue pairs with work.
    pub(crate) active: Vec<usize>,
    /// Queue pairs in ERR: their receives announce themselves by no doorbell.
    failed: Vec<usize>,
    /// The slot that is being visited, or [`NOBODY`].
    pub(crate) visited: usize,
}

/// Queue pair numbers as hashes. The NIC has drawn those that are in the table; peers can only ask for others.
type ByQpn = BuildHasherDefault<QpnHasher>;

#[derive(Default)]
pub(crate) struct QpnHasher(u64);

impl Hasher for QpnHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        // Fibonacci hashing: a table looks at the upper bits as well as at the lower ones.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

impl Default for Workspace {
    fn default() -> Self {
        Self {
            scratch: [0; size_of::<Scratch>()],
            coalesced: Vec::with_capacity(COALESCE_MAX_WQES),
            copiers: None,
        }
    }
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            by_qpn: HashMap::default(),
            uars: Vec::new(),
            arm_pages: Vec::new(),
            moderated: Vec::new(),
            inband: Vec::new(),
            by_record: Vec::new(),
            active: Vec::new(),
            failed: Vec::new(),
            visited: NOBODY,
        }
    }
}

impl Core {
    /// Takes a queue pair on.
    pub(crate) fn add(&mut self, qp: Arc<Qp>) -> Result<(), MemError> {
        let requester = Box::new(Requester::new(qp.clone())?);
        let slot =
            self.queues.slots.iter().position(Option::is_none).unwrap_or(self.queues.slots.len());
        if requester.sq.is_inband() {
            self.queues.inband.push(slot);
        } else {
            let kind = match (qp.attr.blueflame, &self.port) {
                (true, _) => Kind::BlueFlame,
                (false, Some(_)) => Kind::Foreign,
                (false, None) => Kind::Own,
            };
            let shared = (kind != Kind::BlueFlame)
                .then(|| self.queues.uars.iter_mut().find(|u| u.is(&qp.queues.uar)))
                .flatten();
            let by_bell = requester.sq.goes_by_bell();
            let take = |uar: &mut Uar| if by_bell { uar.take_doorbells() } else { Ok(()) };
            match shared {
                Some(uar) => {
                    take(uar)?;
                    uar.add(slot)?;
                }
                None => {
                    let mut uar = Uar::new(qp.queues.uar.clone(), kind, slot);
                    take(&mut uar)?;
                    self.queues.uars.push(uar);
                }
            }
        }
        if requester.sq.watches_record() {
            self.queues.by_record.push(slot);
        }
        self.queues.by_qpn.insert(qp.qpn.0, slot);
        if slot == self.queues.slots.len() {
            self.queues.slots.push(None);
        }
        self.queues.slots[slot] = Some(requester);
        // So that no step has to grow a list.
        let most = self.queues.slots.len();
        for list in [&mut self.queues.active, &mut self.queues.failed] {
            list.reserve(most.saturating_sub(list.len()));
        }
        Ok(())
    }

    /// Looks for armings of a CQ on a page.
    pub(crate) fn watch_arming(&mut self, page: &View, cq: &Arc<Cq>) {
        let at = self.queues.arm_pages.iter().position(|p| p.is(page)).unwrap_or_else(|| {
            self.queues.arm_pages.push(ArmPage::new(page.clone()));
            self.queues.arm_pages.len() - 1
        });
        self.queues.arm_pages[at].add(Arc::downgrade(cq));
    }

    /// Looks after the news that a CQ holds back.
    pub(crate) fn watch_moderated(&mut self, cq: &Arc<Cq>) {
        let cq = Arc::downgrade(cq);
        if !self.queues.moderated.iter().any(|other| other.ptr_eq(&cq)) {
            self.queues.moderated.push(cq);
        }
    }

    /// Lets pages go on which no CQ is armed any more.
    pub(crate) fn forget_arming(&mut self) {
        self.queues.arm_pages.retain(ArmPage::is_needed);
        self.queues.moderated.retain(|cq| cq.strong_count() > 0);
    }

    /// Sends what a queue pair that goes owes its peer.
    fn farewell(&mut self, qpn: u32) {
        let Some(&slot) = self.queues.by_qpn.get(&qpn) else { return };
        let transport = self.queues.slots[slot].as_deref_mut().and_then(|r| r.transport.as_mut());
        if let (Some(port), Some(transport)) = (&mut self.port, transport) {
            transport.farewell(port);
            port.flush();
        }
    }

    /// Lets a queue pair go: it is not looked at after this.
    pub(crate) fn remove(&mut self, qpn: u32) {
        self.farewell(qpn);
        self.let_go(qpn);
    }

    /// As [`Core::remove`], without a word to its peer.
    pub(crate) fn let_go(&mut self, qpn: u32) {
        let recalled = self.recall(qpn);
        let Some(slot) = self.queues.by_qpn.remove(&qpn) else { return };
        let mut removed = self.queues.slots[slot].take();
        let Queues { inband, by_record, active, failed, .. } = &mut self.queues;
        for list in [inband, by_record, active, failed] {
            list.retain(|&s| s != slot);
        }
        self.queues.uars.iter_mut().for_each(|uar| uar.remove(slot));
        self.queues.uars.retain(|u| !u.qps.is_empty());
        // Last: nothing of this engine names it any more, whatever becomes of that.
        if let Some(requester) = &mut removed {
            requester.lose();
        }
        if !recalled {
            std::mem::forget(removed); // with the queues, which an engine may still reach
        }
    }

    fn requester(&mut self, qpn: u32) -> Option<&mut Requester> {
        let slot = *self.queues.by_qpn.get(&qpn)?;
        self.queues.slots[slot].as_deref_mut()
    }

    /// Gives the engine its packet link.
    pub(crate) fn attach(&mut self, port: Port) {
        self.port = Some(port);
    }

    /// Whether packets to that address can be sent; not without a packet link.
    pub(crate) fn reaches(&self, to: IpAddr) -> bool {
        self.port.as_ref().is_some_and(|port| port.reaches(to))
    }

    /// Has packets that ask for a source port leave from it, if one is asked for.
    pub(crate) fn take_port(&mut self, port: Option<u16>) -> Result<(), NicError> {
        match (port, &mut self.port) {
            (None, _) => Ok(()),
            (Some(port), Some(link)) => link.take_port(port),
            (Some(_), None) => Err(NicError::Unsupported {
                nic: "soft".into(),
                what: "a UDP source port on the in-process link, which has no packets",
            }),
        }
    }

    /// Takes [`Core::take_port`] back.
    pub(crate) fn leave_port(&mut self, port: Option<u16>) {
        if let (Some(port), Some(link)) = (port, &mut self.port) {
            link.leave_port(port);
        }
    }

    /// Gives the send side of a queue pair that enters RTR its transport.
    pub(crate) fn carry(&mut self, qpn: u32, transport: Transport) {
        if let Some(requester) = self.requester(qpn) {
            requester.transport = Some(transport);
        }
    }

    /// Tells the transport that its queue pair enters a state, or takes attributes over.
    pub(crate) fn enter(&mut self, qpn: u32, from: QpState, to: QpState, attributes: &Attributes) {
        if let Some(transport) = self.requester(qpn).and_then(|r| r.transport.as_mut()) {
            transport.enter(from, to, attributes);
        }
    }

    /// Whether a stream of an initiator is in error.
    pub(crate) fn is_in_error(&self, qpn: u32, stream: u16) -> bool {
        let requester = self.queues.by_qpn.get(&qpn).map(|&slot| &self.queues.slots[slot]);
        let transport = requester.and_then(|it| it.as_ref()).and_then(|it| it.transport.as_ref());
        transport.is_some_and(|transport| transport.is_in_error(stream))
    }

    /// Takes a stream of an initiator out of error.
    pub(crate) fn reset_stream(&mut self, qpn: u32, stream: u16) {
        if let Some(transport) = self.requester(qpn).and_then(|r| r.transport.as_mut()) {
            transport.reset_stream(stream);
        }
    }

    /// The queue pair leaves RESET.
    pub(crate) fn begin(&mut self, qpn: u32) {
        if let Some(requester) = self.requester(qpn) {
            requester.sq.begin();
        }
    }

    /// Looks at what was posted before the queue pair could send.
    pub(crate) fn wake(&mut self, qpn: u32) {
        let Some(&slot) = self.queues.by_qpn.get(&qpn) else { return };
        if let Some(requester) = &mut self.queues.slots[slot] {
            requester.sq.glance();
            activate(requester, slot, &mut self.queues.active);
        }
    }

    /// Forgets what was posted.
    ///
    /// # Errors
    /// [`MemError`]; then nothing is forgotten.
    pub(crate) fn reset(&mut self, qpn: u32) -> Result<(), MemError> {
        let Some(&slot) = self.queues.by_qpn.get(&qpn) else { return Ok(()) };
        let fresh = self.queues.slots[slot].as_deref().map(|it| Requester::new(it.qp().clone()));
        let fresh = fresh.transpose()?;
        for uar in self.queues.uars.iter_mut().filter(|u| u.qps.contains(&slot)) {
            if uar.takes() {
                uar.clear(Qpn(qpn))?;
                continue;
            }
            let rung = uar.poll().unwrap_or_default();
            let cleared = uar.clear(Qpn(qpn));
            // Also this one: it stays if the page cannot be cleared.
            for &other in &uar.qps {
                if let Some(requester) = &mut self.queues.slots[other] {
                    requester.sq.ring(rung);
                    activate(requester, other, &mut self.queues.active);
                }
            }
            cleared?;
        }
        self.farewell(qpn);
        if let (Some(requester), Some(mut fresh)) = (self.requester(qpn), fresh) {
            requester.lose();
            (fresh.listed, fresh.leased) = (requester.listed, requester.leased.take());
            fresh.sq.disregard_record();
            *requester = fresh;
        }
        self.queues.failed.retain(|&s| s != slot);
        Ok(())
    }
}

pub(crate) fn activate(requester: &mut Requester, slot: usize, active: &mut Vec<usize>) {
    if !requester.listed && !requester.sq.is_inband() && !requester.is_out() {
        requester.listed = true;
        active.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::ShmNet;
    use crate::record::{Record, show};
    use crate::{SoftConfig, SoftNic};

    #[test]
    fn a_recording_has_the_steps_that_did_something() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nic");
        let record = Some(Record { path: path.clone(), whole: false, script: None });
        let link = ShmNet::anonymous(true).unwrap().attach("10.0.0.1".parse().unwrap()).unwrap();
        let config = SoftConfig { record, ..SoftConfig::default() };
        let (nic, engine) = SoftNic::manual_on(&config, Box::new(link)).unwrap();
        let seat = &engine.device.engines[0];
        seat.attention.store(true, Ordering::Relaxed);
        let taken = seat.lock();
        assert_eq!(engine.try_step(1), None);
        drop(taken);
        // Two that see nothing, of which one does something.
        for (now_ns, leaves_trace) in [(2, false), (3, true)] {
            let turn = engine.device.recorder.as_ref().unwrap().turn();
            turn.begin_step(now_ns);
            turn.end_step(leaves_trace);
        }
        drop((nic, engine));
        let mut lines = Vec::new();
        show(std::fs::read(&path).unwrap(), &mut lines).unwrap();
        let lines = String::from_utf8(lines).unwrap();
        let steps: Vec<_> = lines.lines().filter(|line| line.contains("step at")).collect();
        assert!(matches!(steps[..], [step] if step.contains("0.000000003 s")), "{lines}");
    }
}
