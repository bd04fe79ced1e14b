//! Completion queues as the NIC writes them, and the events that their consumers ask for.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::adversary::{self, Kind, cqes::Late};
use crate::log;
use crate::objects::events::{Event, Events};
use crate::objects::moderation::{Held, Moderation};
use crate::objects::number::Number;
use crate::record::{Call, Outcome, hooked, outside};
use crate::script::{CqeAct, ScriptedFaults};
use crate::trace;
use bellpush_mem::{Dma, Intent, MemError, View};
use bellpush_nic::NicError;
use bellpush_wire::Qpn;
use bellpush_wire::cqe::{
    CQE_BYTES, CQE_TAIL_OFFSET, CQE_TIMESTAMP, Cqe, CqeOpcode, OP_OWN_INIT, owner_bit,
};
use bellpush_wire::doorbell::{CqArm, DBR_CQ_ARM_OFFSET, DBR_CQ_CI_OFFSET, UAR_BYTES, cq_ci};

/// Largest CQ: consumer indices have 24 bits.
pub(crate) const MAX_CQES: u64 = 1 << 22;

/// The CQ is full, since the consumer has not reported an entry free; or an entry could not be written.
#[derive(Debug)]
pub(crate) struct Overrun;

/// Called with a CQ's number when a completion comes that its consumer armed it for.
///
/// It runs on the engine's thread, which holds its own locks: it must only pass the news on.
pub type Notify = Arc<dyn Fn(u32) + Send + Sync>;

/// What a CQ that several queue pairs may share is made of.
#[derive(Clone)]
pub struct CqAttr {
    /// Its entries, 64 bytes each, a power of two of them.
    pub ring: View,
    /// Its doorbell record: consumer index, then arm word.
    pub dbr: View,
    /// UAR page that its consumer rings when it arms the CQ.
    pub uar: View,
    /// Who is told; `None` for a CQ that is only polled.
    pub notify: Option<Notify>,
}

/// How a CQ's entries lie and what becomes of them when nobody takes them (mlx5 PRM, "Completion
/// Queue Context").
#[derive(Debug, Clone, Copy)]
pub struct CqLayout {
    /// Bytes from one entry to the next, 64 or 128 (`cqe_sz`). The CQE is the last 64 of them.
    pub entry_bytes: usize,
    /// Every CQE goes into entry 0 (`cc`), with the owner bit of the place that it would have had.
    pub collapsed: bool,
    /// The consumer index is not looked at: what was not taken is overwritten (`oi`).
    pub overrun_ignored: bool,
    /// Clock that entries are stamped with when they are written; errors have other fields there.
    pub timestamp: Option<fn() -> u64>,
}

impl Default for CqLayout {
    /// Entries of 64 bytes, one for each CQE, none overwritten.
    fn default() -> Self {
        Self { entry_bytes: CQE_BYTES, collapsed: false, overrun_ignored: false, timestamp: None }
    }
}

/// The entries.
struct Ring {
    view: View,
    entries: u32,
    layout: CqLayout,
}

impl Ring {
    /// A ring whose entries are marked as never written.
    fn new(view: View, entries: u32, layout: CqLayout) -> Result<Self, MemError> {
        // Many at a time: in memory that is far, every access is a copy of its own.
        let bytes = entries as usize * layout.entry_bytes;
        let mut part = vec![0; bytes.min(1 << 20)];
        for at in (0..bytes).step_by(part.len()) {
            view.read(at, &mut part)?;
            part.chunks_exact_mut(layout.entry_bytes)
                .for_each(|entry| entry[layout.entry_bytes - 1] = OP_OWN_INIT);
            view.write(at, &part)?;
        }
        Ok(Self { view, entries, layout })
    }

    /// A ring that is as long as its memory.
    fn checked(view: View, layout: CqLayout) -> Result<Self, NicError> {
        let refuse = |what, value, must| Err(NicError::Attribute { what, value, must });
        if ![CQE_BYTES, 2 * CQE_BYTES].contains(&layout.entry_bytes) {
            return refuse("CQE's bytes", layout.entry_bytes as u64, "64 or 128");
        }
        let entries = (view.len() / layout.entry_bytes) as u64;
        if !entries.is_power_of_two() || entries > MAX_CQES {
            return refuse("CQ's entries", entries, "a power of two up to 2^22");
        }
        // As the hardware's context says where they begin: in units of an entry.
        if !view.offset().is_multiple_of(CQE_BYTES) {
            let value = view.offset() as u64;
            return refuse("CQ's offset in its first page", value, "a multiple of 64");
        }
        Ok(Self::new(view, entries as u32, layout)?)
    }

    /// Where the CQE of an index lies.
    fn place(&self, index: u64) -> usize {
        // The number of entries is a power of two.
        let entry =
            if self.layout.collapsed { 0 } else { index as usize & (self.entries as usize - 1) };
        (entry + 1) * self.layout.entry_bytes - CQE_BYTES
    }

    fn write(&self, index: u64, cqe: &Cqe) -> Result<(), MemError> {
        let mut bytes = cqe.emit(owner_bit(index, self.entries));
        if let Some(clock) = self.layout.timestamp.filter(|_| !cqe.opcode.is_error()) {
            bytes[CQE_TIMESTAMP].copy_from_slice(&clock().to_be_bytes());
        }
        let at = self.place(index);
        let (body, tail) = bytes.split_at(CQE_TAIL_OFFSET);
        let tail = u64::from_ne_bytes(tail.try_into().expect("8 bytes are left"));
        // Release: the body, and the payload and receives that the entry reports, become visible
        // to a poller no later than the owner bit in the tail.
        self.view
            .write(at, body)
            .and_then(|()| self.view.store_u64(at + CQE_TAIL_OFFSET, tail, Ordering::Release))?;
        // The next to look is another core or a device, which finds it sooner in the shared cache.
        self.view.prefetch(at, CQE_BYTES, Intent::Elsewhere);
        Ok(())
    }
}

/// A CQ at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CqReport {
    /// Number.
    pub number: u32,
    /// Entries written since it was created.
    pub written: u64,
    /// Consumer index in the doorbell record, modulo 2^24; one that overwrites has none.
    pub taken: Option<u32>,
    /// Whether an entry found no room.
    pub overran: bool,
}

impl fmt::Display for CqReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, written, .. } = self;
        write!(f, "CQ {number:#x}: {written} written")?;
        if let Some(taken) = self.taken {
            write!(f, ", {taken} taken")?;
        }
        if self.overran { write!(f, ", overrun") } else { Ok(()) }
    }
}

/// A completion queue. It lives as long as anyone holds it; queue pairs do.
///
/// A CQ that one queue pair's one side has for itself needs no lock: its pusher holds the engine's
/// state, or the responder. Nor a read-modify-write: one of those would hold the engine up until
/// its stores of the payload have left for cold lines. Shared CQs have a lock.
pub struct Cq {
    number: Number,
    /// As it was created; [`Shared::resized`] takes its place.
    ring: Ring,
    dbr: View,
    entries: AtomicU32,
    pi: AtomicU64,
    /// Consumer index as last read from the doorbell record.
    ci: AtomicU64,
    overran: AtomicBool,
    shared: Option<Shared>,
    /// Entries that are to come late.
    late: Option<Late>,
    pub(crate) events: Arc<Events>,
    /// What strikes its entries, and its place in the order of the device's CQs.
    faults: Option<(Arc<ScriptedFaults>, u32)>,
    /// A script had it overrun.
    ended: AtomicBool,
}

struct Shared {
    /// Held by whoever writes an entry. The ring that the CQ was resized to.
    resized: Mutex<Option<Ring>>,
    /// Without it, nobody looks at the arm word, which may lie on another device.
    notify: OnceLock<Notify>,
    /// Sequence of the arming that was answered last; 2 bits.
    answered: AtomicU64,
    /// Past the index of the last entry that is a completion: a resize has one that is none.
    newest: AtomicU64,
    /// Past the index of the last one that is solicited or an error.
    solicited: AtomicU64,
    held: Held,
}

impl Cq {
    /// A CQ over a ring, whose entries are marked as never written.
    pub(crate) fn private(
        number: Number,
        (ring, dbr): (View, View),
        entries: u32,
        events: Arc<Events>,
    ) -> Result<Self, MemError> {
        dbr.load_u32(DBR_CQ_CI_OFFSET, Ordering::Relaxed)?;
        Ok(Self::over(number, Ring::new(ring, entries, CqLayout::default())?, dbr, events))
    }

    fn over(number: Number, ring: Ring, dbr: View, events: Arc<Events>) -> Self {
        Self {
            number,
            entries: AtomicU32::new(ring.entries),
            ring,
            dbr,
            pi: AtomicU64::new(0),
            ci: AtomicU64::new(0),
            overran: AtomicBool::new(false),
            shared: None,
            late: None,
            events,
            faults: None,
            ended: AtomicBool::new(false),
        }
    }

    /// The CQ on a NIC that may have an adversary.
    pub(crate) fn under(mut self, adversary: Option<&Arc<adversary::State>>) -> Arc<Self> {
        let adversary = adversary.filter(|it| it.has(Kind::Cqe));
        self.late = adversary.map(Late::new);
        let cq = Arc::new(self);
        if let Some(adversary) = adversary {
            adversary.watch(&cq);
        }
        cq
    }

    /// Writes the entries that are due of those that come late; says when more are.
    pub(crate) fn release_late(&self, now_ns: u64) -> Option<u64> {
        self.late.as_ref().and_then(|late| late.release(self, now_ns))
    }

    /// A CQ that several queue pairs may complete to.
    pub(crate) fn shared(
        number: Number,
        attr: &CqAttr,
        layout: CqLayout,
        events: Arc<Events>,
    ) -> Result<Self, NicError> {
        for (what, view, bytes) in [
            ("CQ's doorbell record's bytes", &attr.dbr, 8),
            ("UAR page's bytes", &attr.uar, UAR_BYTES),
        ] {
            if view.len() < bytes || view.offset() % 8 != 0 {
                let (value, must) = (view.len() as u64, "the object's size, 8-byte aligned");
                return Err(NicError::Attribute { what, value, must });
            }
        }
        let ring = Ring::checked(attr.ring.clone(), layout)?;
        // The first arming may write the word that is there. An arming is new when its sequence is.
        attr.dbr.store_u32(DBR_CQ_ARM_OFFSET, CqArm::NEVER, Ordering::Relaxed)?;
        let shared = Shared {
            resized: Mutex::default(),
            notify: attr.notify.clone().map_or_else(OnceLock::new, OnceLock::from),
            answered: AtomicU64::new(CqArm::parse(CqArm::NEVER).sequence.into()),
            newest: AtomicU64::new(0),
            solicited: AtomicU64::new(0),
            held: Held::default(),
        };
        let cq = Self::over(number, ring, attr.dbr.clone(), events);
        Ok(Self { shared: Some(shared), ..cq })
    }

    /// Has a script strike its entries.
    pub(crate) fn struck_by(self, faults: &Option<Arc<ScriptedFaults>>) -> Self {
        let faults = faults.clone().map(|faults| (faults.made_cq(), faults));
        Self { faults: faults.map(|(nth, faults)| (faults, nth)), ..self }
    }

    /// Its number on the NIC.
    pub fn number(&self) -> u32 {
        self.number.get()
    }

    /// Whether its entries have the time, in whatever ring.
    pub(crate) fn is_stamped(&self) -> bool {
        self.ring.layout.timestamp.is_some()
    }

    /// Entries written since it was created.
    pub(crate) fn written(&self) -> u64 {
        self.pi.load(Ordering::Acquire)
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        self.entries.load(Ordering::Relaxed)
    }

    pub(crate) fn report(&self) -> CqReport {
        let word = self.dbr.load_u32(DBR_CQ_CI_OFFSET, Ordering::Relaxed).unwrap_or(0);
        CqReport {
            number: self.number.get(),
            written: self.pi.load(Ordering::Relaxed),
            taken: (!self.ring.layout.overrun_ignored).then(|| cq_ci(word)),
            overran: self.overran.load(Ordering::Relaxed),
        }
    }

    /// Moves to another ring: writes a RESIZE_CQ entry as the last one of the old ring and goes on
    /// in the new one at the index after it. The consumer copies what it has not taken before that
    /// entry to the new ring, each to the index after its own, and takes the entry as consumed
    /// (libmlx5's `mlx5_cq_resize_copy_cqes`). The old ring is not touched after this.
    ///
    /// # Errors
    /// [`NicError::Attribute`] for a ring of the wrong size, or with fewer entries than are waiting
    /// to be taken; [`NicError::Full`] when the old ring has no room for the entry that says so.
    pub fn resize(&self, ring: View, entry_bytes: usize) -> Result<(), NicError> {
        let recorder = self.number.recorder();
        let Some(hooked) = recorder.map(|it| hooked::view(it, &ring)) else {
            return self.resize_to(ring, entry_bytes);
        };
        let (place, ring) = hooked;
        let (cq, bytes) = (self.number(), entry_bytes as u64);
        let call = || Call::ResizeCq { cq, ring: place, entry_bytes: bytes };
        outside(recorder, call, || self.resize_to(ring, entry_bytes), |&()| Outcome::Done)
    }

    fn resize_to(&self, ring: View, entry_bytes: usize) -> Result<(), NicError> {
        let Some(shared) = &self.shared else {
            let must = "one that several queue pairs may share";
            return Err(NicError::Attribute { what: "CQ to be resized", value: 0, must });
        };
        let layout = self.ring.layout;
        if layout.collapsed || layout.overrun_ignored {
            let must = "one that neither collapses nor overwrites its entries";
            return Err(NicError::Attribute { what: "CQ to be resized", value: 1, must });
        }
        // A large ring takes long to mark, and the engine writes entries meanwhile.
        let new = Ring::checked(ring, CqLayout { entry_bytes, ..layout })?;
        // What is held back has been promised room in the old ring, and none in the new one.
        match &self.late {
            Some(late) => late.without_any(self, || self.move_to(shared, new)),
            None => self.move_to(shared, new),
        }
    }

    fn move_to(&self, shared: &Shared, new: Ring) -> Result<(), NicError> {
        let mut resized = shared.lock();
        let old = resized.as_ref().unwrap_or(&self.ring);
        let pi = self.pi.load(Ordering::Relaxed);
        let ci = self.reported(pi, old.entries);
        // Nothing reported: all of the old ring waits.
        let waiting = ci.map_or(old.entries.into(), |ci| pi - ci);
        if waiting + 1 > new.entries.into() {
            let must = "at least those that wait to be taken, and one";
            let value = new.entries.into();
            return Err(NicError::Attribute { what: "CQ's entries", value, must });
        }
        let full =
            NicError::Full { what: "entries waiting in the CQ", limit: old.entries as usize };
        let ci = ci.ok_or(full)?;
        let none = Cqe::requester(Qpn(0), 0, 0, 0);
        old.write(pi, &Cqe { opcode: CqeOpcode::Resize, ..none })?;
        self.pi.store(pi + 1, Ordering::Relaxed);
        self.ci.store(ci, Ordering::Relaxed);
        self.entries.store(new.entries, Ordering::Relaxed);
        // What waits moves on by one.
        for past in [&shared.newest, &shared.solicited] {
            let last = past.load(Ordering::Relaxed);
            past.store(last + u64::from(last > ci), Ordering::Relaxed);
        }
        *resized = Some(new);
        Ok(())
    }

    /// Writes the next entry, and tells the consumer if it armed the CQ for it.
    ///
    /// # Errors
    /// [`Overrun`] when the consumer has not reported room; nothing is written.
    pub(crate) fn push(&self, cqe: &Cqe) -> Result<(), Overrun> {
        if let Some(struck) = self.struck(cqe) {
            return struck;
        }
        match &self.late {
            Some(late) => late.push(self, cqe),
            None => self.push_now(cqe),
        }
    }

    /// Whether there is room for an entry behind so many that are not written yet.
    pub(crate) fn has_room_behind(&self, more: u64) -> Result<(), Overrun> {
        let resized = self.shared.as_ref().map(Shared::lock);
        let ring = resized.as_ref().and_then(|ring| ring.as_ref()).unwrap_or(&self.ring);
        let pi = self.pi.load(Ordering::Relaxed) + more;
        let used = pi - self.ci.load(Ordering::Relaxed);
        let has_room = used < ring.entries.into()
            || ring.layout.overrun_ignored
            || self.reported(pi, ring.entries).is_some();
        if has_room { Ok(()) } else { Err(self.overrun()) }
    }

    /// As [`Cq::push`], without delay.
    pub(crate) fn push_now(&self, cqe: &Cqe) -> Result<(), Overrun> {
        let Some(shared) = &self.shared else { return self.write(&self.ring, cqe) };
        let resized = shared.lock();
        self.write(resized.as_ref().unwrap_or(&self.ring), cqe)?;
        let past = self.pi.load(Ordering::Relaxed);
        shared.newest.store(past, Ordering::Relaxed);
        if cqe.solicited || cqe.opcode.is_error() {
            shared.solicited.store(past, Ordering::Relaxed);
        }
        self.answer(shared, false);
        Ok(())
    }

    /// What a script makes of an entry, if it does not leave it to be written. A CQ that has overrun
    /// takes nothing more; one that overwrites does not overrun.
    fn struck(&self, cqe: &Cqe) -> Option<Result<(), Overrun>> {
        let (faults, nth) = self.faults.as_ref()?;
        if self.ended.load(Ordering::Relaxed) {
            return Some(Err(Overrun));
        }
        match faults.on_cqe(*nth, cqe)? {
            CqeAct::Drop => Some(Ok(())),
            CqeAct::Overrun if self.ring.layout.overrun_ignored => None,
            CqeAct::Overrun => {
                self.ended.store(true, Ordering::Relaxed);
                Some(Err(self.overrun()))
            }
        }
    }

    fn write(&self, ring: &Ring, cqe: &Cqe) -> Result<(), Overrun> {
        // Relaxed: the lock that the pusher holds hands the indices on.
        let pi = self.pi.load(Ordering::Relaxed);
        let full = pi - self.ci.load(Ordering::Relaxed) >= ring.entries.into();
        if full && !ring.layout.overrun_ignored {
            let Some(ci) = self.reported(pi, ring.entries) else {
                return Err(self.overrun());
            };
            self.ci.store(ci, Ordering::Relaxed);
        }
        // In a device's memory, which can be gone, every store can fail.
        ring.write(pi, cqe).map_err(|_| self.overrun())?;
        self.pi.store(pi + 1, Ordering::Relaxed);
        let a = trace::cqe(self.number(), cqe.opcode as u8, cqe.syndrome, cqe.vendor_err);
        if cqe.opcode.is_error() {
            log::of_qp(cqe.qpn.0, trace::Kind::Cqe, cqe.wqe_counter, [a, 0]);
        }
        if let Some(trace) = self.events.trace() {
            let words = [a, u64::from(cqe.byte_cnt)];
            trace.mark(trace::Kind::Cqe, cqe.qpn.0, cqe.wqe_counter, words);
        }
        Ok(())
    }

    #[cold]
    fn overrun(&self) -> Overrun {
        if !self.overran.swap(true, Ordering::Relaxed) {
            self.events.push(Event::CqOverrun(self.number.get()));
        }
        Overrun
    }

    /// Has the consumer told, if it is not yet; says whether it was not.
    pub(crate) fn notify_with(&self, notify: Notify) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.notify.set(notify).is_ok())
    }

    /// The consumer rang: entries may have come before it armed the CQ.
    pub(crate) fn armed(&self) {
        if let Some(shared) = &self.shared {
            let _alone = shared.lock();
            self.answer(shared, false);
        }
    }

    pub(crate) fn moderate(&self, moderation: Moderation) {
        if let Some(shared) = &self.shared {
            let _alone = shared.lock();
            shared.held.set(moderation);
        }
    }

    /// Tells the consumer what was held back for long enough; says when more of it is due.
    pub(crate) fn release(&self, now_ns: u64) -> Option<u64> {
        // Looked at again under the lock: the consumer may have been told meanwhile.
        let shared = self.shared.as_ref().filter(|shared| shared.held.is_back())?;
        let _alone = shared.lock();
        if !shared.held.is_back() {
            return None;
        }
        let at = shared.held.due(now_ns);
        if now_ns < at {
            return Some(at);
        }
        self.answer(shared, true);
        None
    }

    /// Tells the consumer, once for each arming, when there is an entry that it asked for, or as many
    /// as it wants together; `now` if it waited long enough for those.
    fn answer(&self, shared: &Shared, now: bool) {
        let Some(notify) = shared.notify.get() else { return };
        // Acquire: pairs with the consumer's release of the record.
        let Ok(word) = self.dbr.load_u32(DBR_CQ_ARM_OFFSET, Ordering::Acquire) else { return };
        let arm = CqArm::parse(word);
        if u64::from(arm.sequence) == shared.answered.load(Ordering::Relaxed) {
            return;
        }
        let pi = self.pi.load(Ordering::Relaxed);
        let newest = match arm.solicited_only {
            true => shared.solicited.load(Ordering::Relaxed),
            false => shared.newest.load(Ordering::Relaxed),
        };
        let waiting = u64::from((pi as u32).wrapping_sub(arm.ci) & 0xff_ffff);
        if newest > pi.saturating_sub(waiting) {
            if !now && shared.held.keeps(waiting) {
                return;
            }
            shared.held.release();
            shared.answered.store(arm.sequence.into(), Ordering::Relaxed);
            notify(self.number.get());
        }
    }

    /// Ring, doorbell record and indices of a CQ that one queue pair has for itself, for an engine
    /// elsewhere to go on with.
    pub(crate) fn hand_over(&self) -> Option<(&View, &View, [u64; 2])> {
        let indices = [&self.pi, &self.ci].map(|index| index.load(Ordering::Relaxed));
        self.shared.is_none().then_some((&self.ring.view, &self.dbr, indices))
    }

    /// Goes on where an engine elsewhere has come to.
    pub(crate) fn take_over(&self, [pi, ci]: [u64; 2]) {
        self.pi.store(pi, Ordering::Relaxed);
        self.ci.store(ci, Ordering::Relaxed);
    }

    /// Fetches the line of the next entry, which a poller on another core or device has read. A
    /// shared CQ's may lie in another ring by now.
    pub(crate) fn prefetch(&self) {
        if self.shared.is_none() {
            let at = self.ring.place(self.pi.load(Ordering::Relaxed));
            self.ring.view.prefetch(at, CQE_BYTES, Intent::Write);
        }
    }

    /// The consumer index that the doorbell record reports, if it leaves room in so many entries.
    fn reported(&self, pi: u64, entries: u32) -> Option<u64> {
        // Acquire: the consumer's reads of its entries come before our next writes to them.
        let word = self.dbr.load_u32(DBR_CQ_CI_OFFSET, Ordering::Acquire).ok()?;
        let in_use = (pi as u32).wrapping_sub(cq_ci(word)) & 0xff_ffff;
        // A record that lies before the first entry, or ahead of the last, reports nothing.
        (in_use < entries).then(|| pi.checked_sub(in_use.into()))?
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Ring>> {
        self.resized.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[path = "cq_tests.rs"]
mod tests;
