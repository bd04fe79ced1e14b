//! Queue pair numbers that are set aside: no queue pair is given one, and packets to them find
//! nobody.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::SoftNic;
use crate::link::{Notice, Share};
use crate::random::Random;
use crate::record::{Call, Outcome, outside, plainly};
use bellpush_nic::NicError;
use bellpush_wire::Qpn;

/// Queue pair numbers 0 and 1 are special (InfiniBand vol. 1, 9.2.3); the first pages are left to
/// them and to whoever wants fixed numbers.
pub(crate) const FIRST_QPN: u32 = 0x100;
/// Numbers that may be set aside at a time: queue pairs must find some as well.
const MAX_NUMBERS: usize = 1 << 20;
/// Numbers of queue pairs that are gone which are not drawn.
const RESTING: usize = 1024;
/// Numbers that are drawn before the next free one behind the last of them is taken.
const DRAWS: usize = 64;
/// Logarithm of the longest range.
const MAX_LOG: u8 = 16;

/// All ranges of a NIC, by their first number.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    ranges: Mutex<BTreeMap<u32, u32>>,
    /// Numbers of queue pairs that are gone, the oldest first.
    resting: Mutex<VecDeque<u32>>,
    /// The NIC's share of the numbers, where others at its address may have the rest.
    pub(crate) of: OnceLock<Share>,
}

/// Numbers in a row that no queue pair has, until it is dropped.
#[derive(Debug)]
pub struct ReservedQpns {
    first: Qpn,
    count: u32,
    of: Arc<Reserved>,
}

impl Reserved {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, u32>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has all numbers come out of a share from now on.
    pub(crate) fn confine(&self, share: Share) {
        let _ = self.of.set(share); // once, before there is a queue pair
    }

    /// The numbers that there are: the first, and how many.
    fn share(&self) -> (u32, u32) {
        self.of.get().map_or((0, Qpn::MAX + 1), |share| share.qpns())
    }

    /// A number of the share, as many behind its first as `any` is.
    pub(crate) fn within(&self, any: u32) -> u32 {
        let (first, count) = self.share();
        first | any & (count - 1)
    }

    /// The next number that nobody has, if there is one.
    pub(crate) fn deal(&self, next: &AtomicU32, taken: impl Fn(u32) -> bool) -> Option<u32> {
        let all = (0..self.share().1).map(|_| self.within(next.fetch_add(1, Ordering::Relaxed)));
        { all }.find(|&qpn| self.is_free(qpn, &taken))
    }

    /// A number that nobody has and nobody can guess. Those that were in use a while ago are the last
    /// to come.
    pub(crate) fn draw(&self, random: &Random, taken: impl Fn(u32) -> bool) -> Option<u32> {
        let resting = self.resting();
        let mut last = 0;
        for _ in 0..DRAWS {
            last = self.within(random.number());
            if self.is_free(last, &taken) && !resting.contains(&last) {
                return Some(last);
            }
        }
        let behind = AtomicU32::new(last);
        let rested = self.deal(&behind, |qpn| resting.contains(&qpn) || taken(qpn));
        rested.or_else(|| self.deal(&behind, taken))
    }

    /// A queue pair's number is free again.
    pub(crate) fn rest(&self, qpn: u32) {
        let mut resting = self.resting();
        if resting.len() == RESTING {
            resting.pop_front();
        }
        resting.push_back(qpn);
    }

    fn resting(&self) -> MutexGuard<'_, VecDeque<u32>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_free(&self, qpn: u32, taken: &impl Fn(u32) -> bool) -> bool {
        qpn >= FIRST_QPN && !taken(qpn) && !self.has(qpn)
    }

    pub(crate) fn has(&self, qpn: u32) -> bool {
        self.lock().range(..=qpn).next_back().is_some_and(|(first, count)| qpn - first < *count)
    }

    /// Sets 2^`log` numbers aside, of which the first is a multiple of their count: those that come
    /// next behind `from`. `used` says whether a queue pair has one of so many numbers from one on.
    pub(crate) fn take(
        self: &Arc<Self>,
        log: u8,
        from: u32,
        used: impl Fn(u32, u32) -> bool,
    ) -> Result<ReservedQpns, NicError> {
        if log > MAX_LOG {
            let (what, must) = ("queue pair numbers to be set aside (log2)", "at most 16");
            return Err(NicError::Attribute { what, value: log.into(), must });
        }
        let count = 1 << log;
        let (begin, share) = self.share();
        let limit = MAX_NUMBERS.min(share as usize / 2);
        let full = NicError::Full { what: "reserved queue pair numbers", limit };
        let mut ranges = self.lock();
        let set_aside: usize = ranges.values().map(|&n| n as usize).sum();
        if set_aside + count as usize > limit {
            return Err(full);
        }
        let (end, start) = (begin + share, self.within(from).next_multiple_of(count));
        // From there to the end, then from the beginning: its first range has the special numbers.
        let behind = (start..end).step_by(count as usize);
        let before = (begin.max(count).max(FIRST_QPN)..start.min(end)).step_by(count as usize);
        let is_free = |&first: &u32| {
            let below = ranges.range(..first + count).next_back();
            below.is_none_or(|(other, n)| other + n <= first) && !used(first, count)
        };
        let first = behind.chain(before).find(is_free).ok_or(full)?;
        ranges.insert(first, count);
        drop(ranges);
        Ok(ReservedQpns { first: Qpn(first), count, of: self.clone() })
    }
}

impl SoftNic {
    /// Sets 2^`log` queue pair numbers in a row aside, which no queue pair gets while the answer is
    /// kept.
    ///
    /// # Errors
    /// [`NicError::Attribute`] for more than 65536 at once, [`NicError::Full`] for too many in all.
    pub fn reserve_qpns(&self, log: u8) -> Result<ReservedQpns, NicError> {
        let call = || Call::Other("queue pair numbers that are set aside".into());
        let take = || self.device.reserve_qpns(log);
        outside(self.device.recorder.as_ref(), call, take, |it| Outcome::Number(it.first().0))
    }

    /// The NIC's part of what processes at its address share; `None` where the address is its alone.
    pub fn share(&self) -> Option<Share> {
        self.device.reserved.of.get().copied()
    }

    /// Says what the manager of queue pair 1 wants of the requests to the NIC's address, where other
    /// processes have NICs there. It counts once [`SoftNic::has_sent_mads`] says that all was sent.
    pub fn notice(&self, notice: Notice) {
        let call = Call::Notice(notice.into());
        plainly(self.device.recorder.as_ref(), call, || self.device.gsi.notice(notice));
    }

    /// Whether a queue pair has that number.
    pub fn has_qp(&self, qpn: Qpn) -> bool {
        self.device.qp(qpn.0).is_some()
    }
}

impl ReservedQpns {
    /// The first number.
    pub fn first(&self) -> Qpn {
        self.first
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.count
    }
}

impl Drop for ReservedQpns {
    fn drop(&mut self) {
        self.of.lock().remove(&self.first.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_aligned_apart_and_come_again_after_all_others() {
        let all = Arc::new(Reserved::default());
        let nobody = |_, _| false;
        let a = all.take(4, 0x1234, nobody).unwrap();
        assert_eq!((a.first(), a.count()), (Qpn(0x1240), 16));
        let b = all.take(4, 0x1234, nobody).unwrap();
        assert_eq!(b.first(), Qpn(0x1250));
        let wide = all.take(6, 0x1234, nobody).unwrap();
        assert_eq!(wide.first(), Qpn(0x1280), "0x1240 to 0x127f are taken in part");
        assert!(all.has(0x1240) && all.has(0x125f) && !all.has(0x1260) && !all.has(0x123f));
        drop(a);
        assert!(!all.has(0x1240) && all.has(0x1250));
        let occupied = |first, count| (first..first + count).contains(&0x1245);
        assert_eq!(all.take(4, 0x1240, occupied).unwrap().first(), Qpn(0x1260));
        let last = all.take(4, Qpn::MAX, nobody).unwrap();
        assert_eq!(last.first(), Qpn(0x100), "behind the last comes the first");
    }

    #[test]
    fn drawn_numbers_are_anywhere_and_rest() {
        let (all, random) = (Reserved::default(), Random::system().unwrap());
        let mut steps = std::collections::HashSet::new();
        let mut before = 0;
        for _ in 0..64 {
            let qpn = all.draw(&random, |_| false).unwrap();
            steps.insert(qpn.wrapping_sub(before));
            before = qpn;
        }
        assert!(steps.len() > 60, "{} distances", steps.len());
        // Where few are free, one that is gone comes when there is no other.
        let (gone, fresh) = (0x2000, 0x2001..0x2401);
        all.rest(gone);
        let taken = |qpn: u32| qpn != gone && !fresh.contains(&qpn);
        for _ in 0..8 {
            assert_ne!(all.draw(&random, taken).unwrap(), gone);
        }
        assert_eq!(all.draw(&random, |qpn| qpn != gone), Some(gone));
        assert_eq!(all.draw(&random, |_| true), None);
        (0..RESTING as u32).for_each(|i| all.rest(0x3000 + i));
        assert!(!all.resting().contains(&gone), "so long, and no longer");
    }

    #[test]
    fn there_is_an_end_to_what_is_set_aside() {
        let all = Arc::new(Reserved::default());
        assert!(matches!(all.take(17, 0, |_, _| false), Err(NicError::Attribute { .. })));
        let held: Vec<_> = (0..16).map(|_| all.take(16, 0x100, |_, _| false).unwrap()).collect();
        assert!(matches!(all.take(0, 0x100, |_, _| false), Err(NicError::Full { .. })));
        drop(held);
        assert!(matches!(all.take(0, 0x100, |_, _| true), Err(NicError::Full { .. })));
        all.take(0, 0x100, |_, _| false).unwrap();
    }
}
