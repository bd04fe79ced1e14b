//! Immediates that one end has sent and that are to come at its peer, in their order.
//!
//! A script that drops a CQE may strike that of a receive: the immediate has taken the receive, its data are there, and
//! nobody is told. The NIC counts those; so many may be missing, and no more.

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub struct Immediates {
    coming: VecDeque<u32>,
    /// Those of the lost that were found to be missing, as the NIC counts them: from the round's begin on.
    missed: u64,
    /// Receives that are posted no more, since their CQEs are missing: from the last reset on.
    gone: usize,
}

/// Another immediate was to come.
#[derive(Debug, PartialEq, Eq)]
pub struct Unexpected(pub Option<u32>);

impl Immediates {
    pub fn sent(&mut self, value: u32) {
        self.coming.push_back(value);
    }

    /// The oldest that has not come.
    pub fn next(&self) -> Option<u32> {
        self.coming.front().copied()
    }

    /// Whether another finds a receive of so many although none of those under way is taken meanwhile.
    pub fn has_room(&self, receives: usize) -> bool {
        self.coming.len() + self.gone < receives
    }

    /// One has come. `lost`: receives of this end's peer whose CQEs were dropped, in all. Whether it is the last of those
    /// that were sent.
    pub fn came(&mut self, seen: u32, lost: u64) -> Result<bool, Unexpected> {
        let most = lost.saturating_sub(self.missed) as usize;
        let mut missing = self.coming.iter().take(most + 1);
        let Some(missing) = missing.position(|&value| value == seen) else {
            return Err(Unexpected(self.next()));
        };
        self.coming.drain(..=missing);
        self.miss(missing);
        Ok(self.coming.is_empty())
    }

    /// Whether all that have not come never will, because just so many CQEs were dropped. They are not waited for any
    /// more.
    pub fn rest_is_lost(&mut self, lost: u64) -> bool {
        let missing = self.coming.len();
        let is_lost = missing > 0 && self.missed + missing as u64 == lost;
        if is_lost {
            self.coming.clear();
            self.miss(missing);
        }
        is_lost
    }

    fn miss(&mut self, missing: usize) {
        self.missed += missing as u64;
        self.gone += missing;
    }

    /// The peer has been reset: what was under way does not come, and all receives are posted anew.
    pub fn begin_anew(&mut self, lost: u64) {
        *self = Self { missed: lost, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(values: impl IntoIterator<Item = u32>) -> Immediates {
        let mut all = Immediates::default();
        values.into_iter().for_each(|value| all.sent(value));
        all
    }

    /// The control: without a dropped CQE each one comes, in its order.
    #[test]
    fn without_a_lost_cqe_none_may_be_missing() {
        let mut all = sent([3, 4, 5]);
        assert_eq!(all.came(4, 0), Err(Unexpected(Some(3))));
        assert!(!all.rest_is_lost(0));
        assert_eq!((all.came(3, 0), all.came(5, 0)), (Ok(false), Err(Unexpected(Some(4)))));
        assert_eq!((all.came(4, 0), all.came(5, 0)), (Ok(false), Ok(true)));
        assert_eq!(all.came(5, 0), Err(Unexpected(None)), "it comes once");
    }

    #[test]
    fn as_many_may_be_missing_as_cqes_were_lost() {
        let mut all = sent(1..=7);
        assert_eq!(all.came(3, 1), Err(Unexpected(Some(1))), "two are missing");
        assert_eq!(all.came(2, 1), Ok(false));
        assert_eq!(all.came(4, 1), Err(Unexpected(Some(3))), "another is missing");
        assert_eq!(all.came(4, 2), Ok(false));
        assert!(!all.rest_is_lost(2) && !all.rest_is_lost(3), "three are to come");
        assert_eq!(all.came(5, 3), Ok(false));
        assert!(!all.rest_is_lost(3), "one of two is to come");
        assert_eq!(all.came(7, 3), Ok(true));
        assert!(!all.rest_is_lost(3), "there is none");
        all.sent(8);
        assert!(!all.rest_is_lost(3), "the others' CQEs were lost");
        assert!(all.rest_is_lost(4) && all.next().is_none());
    }

    #[test]
    fn a_receive_whose_cqe_is_lost_is_not_posted_again_before_a_reset() {
        let mut all = sent([1, 2, 3]);
        assert!(all.has_room(4) && !all.has_room(3));
        assert_eq!(all.came(2, 1), Ok(false));
        assert!(all.has_room(3) && !all.has_room(2), "one is under way, one is gone");
        all.begin_anew(2);
        assert!(all.has_room(1) && all.next().is_none());
        all.sent(4);
        assert!(!all.rest_is_lost(2), "what was lost before is not lost again");
        assert_eq!(all.came(5, 2), Err(Unexpected(Some(4))));
        assert_eq!(all.came(4, 2), Ok(true));
    }
}
