//! Completion queues as the NIC writes them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::mem::{Dma, Intent, MemError, View};
use crate::wire::cqe::{CQE_BYTES, CQE_TAIL_OFFSET, Cqe, OP_OWN_INIT, owner_bit};
use crate::wire::doorbell::{DBR_CQ_CI_OFFSET, cq_ci};

/// The CQ is full: the consumer has not reported an entry free.
#[derive(Debug)]
pub(super) struct Overrun;

/// A CQ of one queue pair's one side.
///
/// One thread at a time pushes: a send CQ's pusher holds its engine's state, a receive CQ's the
/// responder. So the indices need no lock of their own, and no read-modify-write either: one of
/// those would hold the engine up until its stores of the payload have left for cold lines.
pub(super) struct Cq {
    ring: View,
    dbr: View,
    entries: u32,
    pi: AtomicU64,
    /// Consumer index as last read from the doorbell record.
    ci: AtomicU64,
}

impl Cq {
    /// A CQ over a ring, whose entries are marked as never written.
    pub(super) fn new(ring: View, dbr: View, entries: u32) -> Result<Self, MemError> {
        for entry in 0..entries as usize {
            ring.write(entry * CQE_BYTES + CQE_BYTES - 1, &[OP_OWN_INIT])?;
        }
        dbr.load_u32(DBR_CQ_CI_OFFSET, Ordering::Relaxed)?;
        Ok(Self { ring, dbr, entries, pi: AtomicU64::new(0), ci: AtomicU64::new(0) })
    }

    /// Writes the next entry.
    ///
    /// # Errors
    /// [`Overrun`] when the consumer has not reported room; nothing is written.
    pub(super) fn push(&self, cqe: &Cqe) -> Result<(), Overrun> {
        // Relaxed: the lock that the pusher holds hands the indices on.
        let pi = self.pi.load(Ordering::Relaxed);
        if pi - self.ci.load(Ordering::Relaxed) >= self.entries.into() {
            self.ci.store(self.reported(pi).ok_or(Overrun)?, Ordering::Relaxed);
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
            .expect("the ring was checked when the queue pair was created");
        // The next to look is another core or a device, which finds it sooner in the shared cache.
        self.ring.prefetch(entry, CQE_BYTES, Intent::Elsewhere);
        self.pi.store(pi + 1, Ordering::Relaxed);
        Ok(())
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
    use super::*;
    use crate::mem::HostMem;
    use crate::wire::Qpn;
    use crate::wire::doorbell::cq_ci_word;

    #[test]
    fn a_full_queue_refuses_and_goes_on_when_the_consumer_reports() {
        let mem = HostMem::alloc(4096).unwrap();
        let (ring, dbr) = (View::new(&mem, 0, 256).unwrap(), View::new(&mem, 1024, 8).unwrap());
        let cq = Cq::new(ring.clone(), dbr.clone(), 4).unwrap();
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
        assert!(cq.push(&cqe).is_err());
        // A consumer index from nowhere leaves no room either.
        dbr.store_u32(0, cq_ci_word(77), Ordering::Relaxed).unwrap();
        assert!(cq.push(&cqe).is_err());
        dbr.store_u32(0, cq_ci_word(1), Ordering::Relaxed).unwrap();
        cq.push(&cqe).unwrap();
        assert_eq!([0, 1].map(op_own), [0x01, 0x00], "the second lap has owner 1");
        assert!(cq.push(&cqe).is_err());
    }
}
