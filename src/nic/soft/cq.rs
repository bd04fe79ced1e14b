//! Completion queues as the NIC writes them, and the events that their consumers ask for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::events::{Event, Events};
use crate::mem::{Dma, Intent, MemError, View};
use crate::nic::NicError;
use crate::wire::cqe::{CQE_BYTES, CQE_TAIL_OFFSET, Cqe, OP_OWN_INIT, owner_bit};
use crate::wire::doorbell::{CqArm, DBR_CQ_ARM_OFFSET, DBR_CQ_CI_OFFSET, UAR_BYTES, cq_ci};

/// Largest CQ: consumer indices have 24 bits.
pub(super) const MAX_CQES: u64 = 1 << 22;

/// The CQ is full: the consumer has not reported an entry free.
#[derive(Debug)]
pub(super) struct Overrun;

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

/// A completion queue. It lives as long as anyone holds it; queue pairs do.
///
/// A CQ that one queue pair's one side has for itself needs no lock: its pusher holds the engine's
/// state, or the responder. Nor a read-modify-write: one of those would hold the engine up until
/// its stores of the payload have left for cold lines. Shared CQs have a lock.
pub struct Cq {
    number: u32,
    ring: View,
    dbr: View,
    entries: u32,
    pi: AtomicU64,
    /// Consumer index as last read from the doorbell record.
    ci: AtomicU64,
    overran: AtomicBool,
    shared: Option<Shared>,
    events: Arc<Events>,
}

struct Shared {
    pusher: Mutex<()>,
    notify: Option<Notify>,
    /// Sequence of the arming that was answered last; 2 bits.
    answered: AtomicU64,
    /// Past the index of the last entry that is solicited or an error.
    solicited: AtomicU64,
}

impl Cq {
    /// A CQ over a ring, whose entries are marked as never written.
    pub(super) fn private(
        number: u32,
        (ring, dbr): (View, View),
        entries: u32,
        events: Arc<Events>,
    ) -> Result<Self, MemError> {
        for entry in 0..entries as usize {
            ring.write(entry * CQE_BYTES + CQE_BYTES - 1, &[OP_OWN_INIT])?;
        }
        dbr.load_u32(DBR_CQ_CI_OFFSET, Ordering::Relaxed)?;
        Ok(Self {
            number,
            ring,
            dbr,
            entries,
            pi: AtomicU64::new(0),
            ci: AtomicU64::new(0),
            overran: AtomicBool::new(false),
            shared: None,
            events,
        })
    }

    /// A CQ that several queue pairs may complete to.
    pub(super) fn shared(
        number: u32,
        attr: &CqAttr,
        events: Arc<Events>,
    ) -> Result<Self, NicError> {
        let entries = (attr.ring.len / CQE_BYTES) as u64;
        if !entries.is_power_of_two() || entries > MAX_CQES {
            let must = "a power of two up to 2^22";
            return Err(NicError::Attribute { what: "CQ's entries", value: entries, must });
        }
        for (what, view, bytes) in [
            ("CQ's doorbell record's bytes", &attr.dbr, 8),
            ("UAR page's bytes", &attr.uar, UAR_BYTES),
        ] {
            if view.len < bytes || view.offset % 8 != 0 {
                let (value, must) = (view.len as u64, "the object's size, 8-byte aligned");
                return Err(NicError::Attribute { what, value, must });
            }
        }
        let cq =
            Self::private(number, (attr.ring.clone(), attr.dbr.clone()), entries as u32, events)?;
        // The first arming may write the word that is there. An arming is new when its sequence is.
        attr.dbr.store_u32(DBR_CQ_ARM_OFFSET, CqArm::NEVER, Ordering::Relaxed)?;
        let shared = Shared {
            pusher: Mutex::default(),
            notify: attr.notify.clone(),
            answered: AtomicU64::new(CqArm::parse(CqArm::NEVER).sequence.into()),
            solicited: AtomicU64::new(0),
        };
        Ok(Self { shared: Some(shared), ..cq })
    }

    /// Its number on the NIC.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Writes the next entry, and tells the consumer if it armed the CQ for it.
    ///
    /// # Errors
    /// [`Overrun`] when the consumer has not reported room; nothing is written.
    pub(super) fn push(&self, cqe: &Cqe) -> Result<(), Overrun> {
        let Some(shared) = &self.shared else { return self.write(cqe) };
        let _alone = shared.pusher.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(cqe)?;
        if cqe.solicited || cqe.opcode.is_error() {
            shared.solicited.store(self.pi.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.answer(shared);
        Ok(())
    }

    fn write(&self, cqe: &Cqe) -> Result<(), Overrun> {
        // Relaxed: the lock that the pusher holds hands the indices on.
        let pi = self.pi.load(Ordering::Relaxed);
        if pi - self.ci.load(Ordering::Relaxed) >= self.entries.into() {
            let Some(ci) = self.reported(pi) else {
                if !self.overran.swap(true, Ordering::Relaxed) {
                    self.events.push(Event::CqOverrun(self.number));
                }
                return Err(Overrun);
            };
            self.ci.store(ci, Ordering::Relaxed);
        }
        let bytes = cqe.emit(owner_bit(pi, self.entries));
        let entry = self.entry(pi);
        let (body, tail) = bytes.split_at(CQE_TAIL_OFFSET);
        let tail = u64::from_ne_bytes(tail.try_into().expect("8 bytes are left"));
        // Release: the body, and the payload and receives that the entry reports, become visible
        // to a poller no later than the owner bit in the tail.
        self.ring
            .write(entry, body)
            .and_then(|()| self.ring.store_u64(entry + CQE_TAIL_OFFSET, tail, Ordering::Release))
            .expect("the ring was checked when the CQ was created");
        self.pi.store(pi + 1, Ordering::Relaxed);
        Ok(())
    }

    /// The consumer rang: entries may have come before it armed the CQ.
    pub(super) fn armed(&self) {
        if let Some(shared) = &self.shared {
            let _alone = shared.pusher.lock().unwrap_or_else(PoisonError::into_inner);
            self.answer(shared);
        }
    }

    /// Tells the consumer, once for each arming, when there is an entry that it asked for.
    fn answer(&self, shared: &Shared) {
        let Some(notify) = &shared.notify else { return };
        // Acquire: pairs with the consumer's release of the record.
        let Ok(word) = self.dbr.load_u32(DBR_CQ_ARM_OFFSET, Ordering::Acquire) else { return };
        let arm = CqArm::parse(word);
        if u64::from(arm.sequence) == shared.answered.load(Ordering::Relaxed) {
            return;
        }
        let pi = self.pi.load(Ordering::Relaxed);
        let newest = match arm.solicited_only {
            true => shared.solicited.load(Ordering::Relaxed),
            false => pi,
        };
        let waiting = u64::from((pi as u32).wrapping_sub(arm.ci) & 0xff_ffff);
        if newest > pi.saturating_sub(waiting) {
            shared.answered.store(arm.sequence.into(), Ordering::Relaxed);
            notify(self.number);
        }
    }

    /// Fetches the line of the next entry, which a poller on another core or device has read.
    pub(super) fn prefetch(&self) {
        let entry = self.entry(self.pi.load(Ordering::Relaxed));
        self.ring.prefetch(entry, CQE_BYTES, Intent::Write);
    }

    fn entry(&self, index: u64) -> usize {
        // The number of entries is a power of two.
        (index as usize & (self.entries as usize - 1)) * CQE_BYTES
    }

    /// The consumer index that the doorbell record reports, if it leaves room.
    fn reported(&self, pi: u64) -> Option<u64> {
        // Acquire: the consumer's reads of its entries come before our next writes to them.
        let word = self.dbr.load_u32(DBR_CQ_CI_OFFSET, Ordering::Acquire).ok()?;
        let in_use = (pi as u32).wrapping_sub(cq_ci(word)) & 0xff_ffff;
        (in_use < self.entries).then(|| pi - u64::from(in_use))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::mem::HostMem;
    use crate::wire::Qpn;
    use crate::wire::doorbell::cq_ci_word;

    #[test]
    fn a_full_queue_refuses_and_goes_on_when_the_consumer_reports() {
        let mem = HostMem::alloc(4096).unwrap();
        let (ring, dbr) = (View::new(&mem, 0, 256).unwrap(), View::new(&mem, 1024, 8).unwrap());
        let events = Arc::new(Events::default());
        let cq = Cq::private(5, (ring.clone(), dbr.clone()), 4, events.clone()).unwrap();
        let op_own = |entry: usize| {
            let mut byte = [0];
            ring.read(entry * 64 + 63, &mut byte).unwrap();
            byte[0]
        };
        let cqe = Cqe::requester(Qpn(1), 8, 0, 0);
        assert_eq!([0, 1, 2, 3].map(op_own), [0xf1; 4]);
        for _ in 0..4 {
            cq.push(&cqe).unwrap();
        }
        assert_eq!(events.pop(), None);
        assert!(cq.push(&cqe).is_err());
        assert_eq!(events.pop(), Some(Event::CqOverrun(5)));
        // A consumer index from nowhere leaves no room either.
        dbr.store_u32(0, cq_ci_word(77), Ordering::Relaxed).unwrap();
        assert!(cq.push(&cqe).is_err());
        assert_eq!(events.pop(), None, "once is enough");
        dbr.store_u32(0, cq_ci_word(1), Ordering::Relaxed).unwrap();
        cq.push(&cqe).unwrap();
        assert_eq!([0, 1].map(op_own), [0x01, 0x00], "the second lap has owner 1");
        assert!(cq.push(&cqe).is_err());
    }

    struct Armable {
        cq: Cq,
        dbr: View,
        told: Arc<AtomicUsize>,
    }

    impl Armable {
        fn new() -> Self {
            let mem = HostMem::alloc(8192).unwrap();
            let part = |at, n| View::new(&mem, at, n).unwrap();
            let told = Arc::new(AtomicUsize::new(0));
            let counter = told.clone();
            let notify: Notify = Arc::new(move |number| {
                assert_eq!(number, 9);
                counter.fetch_add(1, Ordering::Relaxed);
            });
            let dbr = part(1024, 8);
            let attr = CqAttr {
                ring: part(0, 1024),
                dbr: dbr.clone(),
                uar: part(4096, 4096),
                notify: Some(notify),
            };
            Self { cq: Cq::shared(9, &attr, Arc::default()).unwrap(), dbr, told }
        }

        fn arm(&self, sequence: u8, ci: u32, solicited_only: bool) {
            let word = CqArm { sequence, ci, solicited_only }.emit();
            self.dbr.store_u32(DBR_CQ_ARM_OFFSET, word, Ordering::Relaxed).unwrap();
            self.cq.armed();
        }

        fn told(&self) -> usize {
            self.told.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn one_event_comes_for_each_arming() {
        let a = Armable::new();
        let cqe = Cqe::requester(Qpn(1), 8, 0, 0);
        a.cq.push(&cqe).unwrap();
        assert_eq!(a.told(), 0, "it was not armed");
        // libmlx5's first arming: sequence 0, written over what it had set to 0 itself.
        a.arm(0, 1, false);
        assert_eq!(a.told(), 0, "entry 0 was consumed");
        a.cq.push(&cqe).unwrap();
        a.cq.push(&cqe).unwrap();
        assert_eq!(a.told(), 1);
        a.arm(1, 2, false);
        assert_eq!(a.told(), 2, "entry 2 was there before the arming");
        a.arm(1, 3, false);
        a.cq.push(&cqe).unwrap();
        assert_eq!(a.told(), 2, "the same sequence is the same arming");
    }

    #[test]
    fn an_arming_for_solicited_entries_waits_for_one_or_an_error() {
        use crate::wire::cqe::{CqeOpcode, Syndrome};
        let a = Armable::new();
        let plain = Cqe::requester(Qpn(1), 8, 0, 0);
        a.arm(0, 0, true);
        a.cq.push(&plain).unwrap();
        assert_eq!(a.told(), 0);
        a.cq.push(&Cqe { solicited: true, ..plain }).unwrap();
        assert_eq!(a.told(), 1);
        a.arm(1, 2, true);
        a.cq.push(&plain).unwrap();
        assert_eq!(a.told(), 1);
        a.cq.push(&Cqe::error(CqeOpcode::ReqErr, Qpn(1), 0, Syndrome::WrFlush, 0)).unwrap();
        assert_eq!(a.told(), 2);
    }
}
