//! The engine: watches UAR pages and in-band windows, and visits queue pairs that have work.
//!
//! It has no thread and no clock of its own; [`Engine::step`] is driven by a thread, by a waiting
//! caller, or by a test.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use crate::counters::{DropReason, Live};
use crate::device::Device;
use crate::link::port::Port;
use crate::objects::cq::Cq;
use crate::objects::qp::Qp;
use crate::objects::state::Attributes;
use crate::queue::sq::{Posted, Scratch};
use crate::queue::uar::{ArmPage, Kind, Rung, Uar};
use crate::report::SendReport;
use crate::service::Transport;
use crate::service::local::coalesce::COALESCE_MAX_WQES;
use crate::service::payload::Domain;
use crate::service::requester::{Requester, StepContext, Tally, Visit};
use bellpush_mem::{MemError, View};
use bellpush_nic::{QpState, QueuePair};
use bellpush_wire::roce::Opcode;

/// Every partition key that the one partition's matches, but for the membership bit on top.
const PKEY_BASE: u16 = 0x7fff;
/// Packets that there should be room for when a queue pair is visited.
const VISIT_ROOM: usize = 64;

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
    /// Whether some queue pair wants another step at once.
    pub more: bool,
    /// When a queue pair that waits is to be tried again, in the time of `now_ns`.
    pub next_ns: Option<u64>,
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
        seat.lock().step(&self.device, now_ns, &seat.attention, &seat.counters)
    }
}

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
        let of = |r: &Requester| (r.qp().qpn.0, r.report());
        Some(core.slots.iter().flatten().map(|r| of(r)).collect())
    }
}

/// What an engine works on.
pub(crate) struct Core {
    pub(crate) slots: Vec<Option<Box<Requester>>>,
    pub(crate) by_qpn: HashMap<u32, usize>,
    pub(crate) uars: Vec<Uar>,
    arm_pages: Vec<ArmPage>,
    /// CQs that may hold news back.
    moderated: Vec<Weak<Cq>>,
    /// In-band queue pairs: looked at every step.
    inband: Vec<usize>,
    /// Queue pairs with work.
    pub(crate) active: Vec<usize>,
    /// Queue pairs in ERR: their receives announce themselves by no doorbell.
    failed: Vec<usize>,
    scratch: Scratch,
    coalesced: Vec<Posted>,
    /// The packet link, on a NIC that has one; such a NIC has one engine.
    pub(crate) port: Option<Port>,
    /// The slot that is being visited, or [`NOBODY`].
    pub(crate) visited: usize,
}

impl Default for Core {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            by_qpn: HashMap::new(),
            uars: Vec::new(),
            arm_pages: Vec::new(),
            moderated: Vec::new(),
            inband: Vec::new(),
            active: Vec::new(),
            failed: Vec::new(),
            scratch: [0; size_of::<Scratch>()],
            coalesced: Vec::with_capacity(COALESCE_MAX_WQES),
            port: None,
            visited: NOBODY,
        }
    }
}

impl Core {
    /// Takes a queue pair on.
    pub(crate) fn add(&mut self, qp: Arc<Qp>) -> Result<(), MemError> {
        let requester = Box::new(Requester::new(qp.clone())?);
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if requester.sq.is_inband() {
            self.inband.push(slot);
        } else {
            let kind = match (qp.attr.blueflame, &self.port) {
                (true, _) => Kind::BlueFlame,
                (false, Some(_)) => Kind::Foreign,
                (false, None) => Kind::Own,
            };
            let shared = (kind != Kind::BlueFlame)
                .then(|| self.uars.iter_mut().find(|u| u.is(&qp.queues.uar)))
                .flatten();
            match shared {
                Some(uar) => uar.qps.push(slot),
                None => {
                    let page = qp.queues.uar.clone();
                    self.uars.push(Uar::new(page, kind, slot));
                }
            }
        }
        self.by_qpn.insert(qp.qpn.0, slot);
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot] = Some(requester);
        // So that no step has to grow a list.
        let most = self.slots.len();
        for list in [&mut self.active, &mut self.failed] {
            list.reserve(most.saturating_sub(list.len()));
        }
        Ok(())
    }

    /// Looks for armings of a CQ on a page.
    pub(crate) fn watch_arming(&mut self, page: &View, cq: &Arc<Cq>) {
        let at = self.arm_pages.iter().position(|p| p.is(page)).unwrap_or_else(|| {
            self.arm_pages.push(ArmPage::new(page.clone()));
            self.arm_pages.len() - 1
        });
        self.arm_pages[at].add(Arc::downgrade(cq));
    }

    /// Looks after the news that a CQ holds back.
    pub(crate) fn watch_moderated(&mut self, cq: &Arc<Cq>) {
        let cq = Arc::downgrade(cq);
        if !self.moderated.iter().any(|other| other.ptr_eq(&cq)) {
            self.moderated.push(cq);
        }
    }

    /// Lets pages go on which no CQ is armed any more.
    pub(crate) fn forget_arming(&mut self) {
        self.arm_pages.retain(ArmPage::is_needed);
        self.moderated.retain(|cq| cq.strong_count() > 0);
    }

    /// Sends what a queue pair that goes owes its peer.
    fn farewell(&mut self, qpn: u32) {
        let Some(&slot) = self.by_qpn.get(&qpn) else { return };
        let transport = self.slots[slot].as_deref_mut().and_then(|r| r.transport.as_mut());
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
        let Some(slot) = self.by_qpn.remove(&qpn) else { return };
        let removed = self.slots[slot].take();
        if !recalled {
            std::mem::forget(removed); // with the queues, which an engine may still reach
        }
        for list in [&mut self.inband, &mut self.active, &mut self.failed] {
            list.retain(|&s| s != slot);
        }
        for uar in &mut self.uars {
            uar.qps.retain(|&s| s != slot);
        }
        self.uars.retain(|u| !u.qps.is_empty());
    }

    fn requester(&mut self, qpn: u32) -> Option<&mut Requester> {
        let slot = *self.by_qpn.get(&qpn)?;
        self.slots[slot].as_deref_mut()
    }

    /// Gives the send side its peer.
    pub(crate) fn connect(&mut self, qpn: u32, peer: Arc<Qp>) {
        if let Some(requester) = self.requester(qpn) {
            requester.connect(peer);
        }
    }

    /// Gives the engine its packet link.
    pub(crate) fn attach(&mut self, port: Port) {
        self.port = Some(port);
    }

    /// Whether packets to that address can be sent; not without a packet link.
    pub(crate) fn reaches(&self, to: IpAddr) -> bool {
        self.port.as_ref().is_some_and(|port| port.reaches(to))
    }

    /// Gives a queue pair that enters RTR its transport.
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

    /// Looks at what was posted before the queue pair could send.
    pub(crate) fn wake(&mut self, qpn: u32) {
        let Some(&slot) = self.by_qpn.get(&qpn) else { return };
        if let Some(requester) = &mut self.slots[slot] {
            requester.sq.ring(Rung::default());
            activate(requester, slot, &mut self.active);
        }
    }

    /// Forgets what was posted.
    pub(crate) fn reset(&mut self, qpn: u32) -> Result<(), MemError> {
        self.farewell(qpn);
        let Some(&slot) = self.by_qpn.get(&qpn) else { return Ok(()) };
        if let Some(requester) = self.slots[slot].as_deref_mut() {
            let (listed, leased) = (requester.listed, requester.leased.take());
            *requester = Requester::new(requester.qp().clone())?;
            (requester.listed, requester.leased) = (listed, leased);
        }
        self.failed.retain(|&s| s != slot);
        for uar in self.uars.iter_mut().filter(|u| u.qps.contains(&slot)) {
            let rung = uar.poll().unwrap_or_default();
            uar.clear()?;
            for &other in uar.qps.iter().filter(|&&s| s != slot) {
                if let Some(requester) = &mut self.slots[other] {
                    requester.sq.ring(rung);
                    activate(requester, other, &mut self.active);
                }
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        device: &Device,
        now_ns: u64,
        attention: &AtomicBool,
        live: &Live,
    ) -> Progress {
        let mut tally = Tally::default();
        let returned = device.offload.as_ref().is_some_and(|it| self.offload(it, &mut tally));
        let mut cx = StepContext {
            now_ns,
            timers: device.timers,
            scratch: &mut self.scratch,
            coalesced: &mut self.coalesced,
            counters: &device.counters,
            tally,
            port: None,
            inproc_capture: device.inproc_capture(),
        };
        let mut progress = Progress { more: returned, ..Progress::default() };
        // 1. Doorbells.
        let mut rung_count = 0;
        for uar in &mut self.uars {
            if uar.qps.iter().all(|&slot| self.slots[slot].as_ref().is_some_and(|r| r.is_out())) {
                continue; // an engine elsewhere looks at them
            }
            let Some(rung) = uar.poll() else { continue };
            rung_count += u64::from(rung.iter().any(Option::is_some));
            for &slot in &uar.qps {
                if let Some(requester) = &mut self.slots[slot] {
                    requester.sq.ring(rung);
                    // Those that share the page and have nothing cost no more than this.
                    if requester.sq.has_work() {
                        activate(requester, slot, &mut self.active);
                    }
                }
            }
        }
        self.arm_pages.iter_mut().for_each(ArmPage::poll);
        // 2. State changes that other threads made.
        if attention.load(Ordering::Relaxed) && attention.swap(false, Ordering::Acquire) {
            for (slot, requester) in self.slots.iter_mut().enumerate() {
                let Some(requester) = requester else { continue };
                if QueuePair::state(&**requester.qp()) == QpState::Err {
                    if let Some(leased) = &requester.leased {
                        leased.lease.ask_back();
                    }
                    if requester.is_out() {
                        if !self.failed.contains(&slot) {
                            self.failed.push(slot);
                        }
                        continue;
                    }
                    requester.sq.ring(Rung::default());
                    activate(requester, slot, &mut self.active);
                    if !self.failed.contains(&slot) {
                        self.failed.push(slot);
                    }
                }
            }
        }
        // 3. Packets.
        if let Some(port) = &mut self.port {
            port.begin(now_ns);
            let regions = device.mrs.read();
            let came = port.receive(|arrived| {
                let bth = &arrived.packet.headers.bth;
                if arrived.packet.opcode() == Opcode::CNP {
                    return device.counters.dropped(DropReason::Congestion);
                }
                if bth.pkey & PKEY_BASE != PKEY_BASE {
                    return device.counters.dropped(DropReason::Pkey);
                }
                let found = self.by_qpn.get(&bth.dest.0);
                let Some((slot, requester)) =
                    found.and_then(|&slot| Some((slot, self.slots[slot].as_deref_mut()?)))
                else {
                    return device.counters.dropped(DropReason::NoSuchQp);
                };
                self.visited = slot;
                let domain = Domain::of(requester.qp(), &regions);
                match &mut requester.transport {
                    Some(transport) => {
                        transport.on_packet(&requester.sq, &mut cx, domain, arrived);
                        activate(requester, slot, &mut self.active);
                    }
                    None => device.counters.dropped(DropReason::State),
                }
            });
            self.visited = NOBODY;
            progress.more |= came > 0;
            cx.port = Some(port);
        }
        // 4. Work.
        for &slot in &self.inband {
            if let Some(requester) = &mut self.slots[slot]
                && !requester.is_out()
            {
                self.visited = slot;
                note(requester.visit(&mut cx), &mut progress);
            }
        }
        let mut i = 0;
        let mut unserved = None;
        while let Some(&slot) = self.active.get(i) {
            // Without room there are still timers to be looked at.
            if unserved.is_none() && !has_room(&mut cx) {
                unserved = Some(i);
            }
            self.visited = slot;
            let requester = self.slots[slot].as_deref_mut();
            let visit = requester.map_or(Visit::Idle, |r| {
                let visit = r.visit(&mut cx);
                r.listed = visit != Visit::Idle;
                visit
            });
            note(visit, &mut progress);
            if visit == Visit::Idle {
                self.active.swap_remove(i);
            } else {
                i += 1;
            }
        }
        if let Some(first) = unserved {
            // Those that were not served come first next time.
            let first = first.min(self.active.len());
            self.active.rotate_left(first);
            progress.more = true;
        }
        for &slot in &self.failed {
            self.visited = slot;
            if self.slots[slot].as_ref().is_some_and(|r| r.flush_receives()) {
                cx.tally.errors += 1;
            }
        }
        self.visited = NOBODY;
        if let Some(port) = &mut cx.port {
            port.flush();
            progress.more |= port.is_full();
            if let Some(at) = port.poll_at() {
                note(Visit::Later(at), &mut progress);
            }
        }
        if let Some(capture) = cx.inproc_capture {
            capture.pass();
        }
        for cq in self.moderated.iter().filter_map(Weak::upgrade) {
            if let Some(at) = cq.release(now_ns) {
                note(Visit::Later(at), &mut progress);
            }
        }
        // 5. Counters, once a step.
        let tally = cx.tally;
        for (counter, n) in [
            (&live.wqes, tally.wqes),
            (&live.bytes, tally.bytes),
            (&live.inband, tally.inband),
            (&live.blueflame, tally.blueflame),
            (&live.doorbells, rung_count + tally.doorbells),
            (&live.offloaded, tally.offloaded),
            (&live.returned, tally.returned),
        ] {
            Live::add(counter, n);
        }
        (progress.wqes, progress.bytes, progress.errors) = (tally.wqes, tally.bytes, tally.errors);
        progress
    }
}

/// Whether the packet link, if there is one, has room for a visit's packets.
fn has_room(cx: &mut StepContext<'_>) -> bool {
    let Some(port) = &mut cx.port else { return true };
    if port.room() < VISIT_ROOM {
        port.flush();
    }
    port.room() > 0
}

pub(crate) fn activate(requester: &mut Requester, slot: usize, active: &mut Vec<usize>) {
    if !requester.listed && !requester.sq.is_inband() && !requester.is_out() {
        requester.listed = true;
        active.push(slot);
    }
}

fn note(visit: Visit, progress: &mut Progress) {
    match visit {
        Visit::Idle => {}
        Visit::More => progress.more = true,
        Visit::Later(at) => progress.next_ns = Some(progress.next_ns.map_or(at, |n| n.min(at))),
    }
}
