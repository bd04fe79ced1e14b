//! Whether it pays to look on for what a peer answers: tried where answers came soon, and less and less often
//! after it was in vain. Hints: nothing is ordered by them.

use std::sync::atomic::{AtomicU32, Ordering};

/// Answers that came soon until it is tried, and twice as many after each failure, up to a bound.
const NEEDED: u32 = 2;
const MOST_NEEDED: u32 = 1024;
/// Failures in a row until it is not tried any more.
const MOST_IN_VAIN: u32 = 4;
/// Successes in a row from which on there is hardly anything else to look for, and as many as are counted.
const STEADY: u32 = 16;
const MOST_PAID: u32 = 1024;

/// See above.
#[derive(Default)]
pub struct Trial {
    /// Answers that came soon, and how many it takes.
    soon: AtomicU32,
    needed: AtomicU32,
    in_vain: AtomicU32,
    /// Successes in a row.
    paid: AtomicU32,
}

impl Trial {
    /// An answer came so soon that it would have been worth it.
    pub fn came_soon(&self) {
        let soon = self.soon.load(Ordering::Relaxed);
        self.soon.store((soon + 1).min(MOST_NEEDED), Ordering::Relaxed);
    }

    /// Whether to look on.
    pub fn is_due(&self) -> bool {
        self.soon.load(Ordering::Relaxed) >= self.needed.load(Ordering::Relaxed).max(NEEDED)
    }

    /// Somebody did, and an answer came.
    pub fn paid(&self) {
        self.needed.store(NEEDED, Ordering::Relaxed);
        self.in_vain.store(0, Ordering::Relaxed);
        let paid = self.paid.load(Ordering::Relaxed);
        self.paid.store((paid + 1).min(MOST_PAID), Ordering::Relaxed);
    }

    /// Whether it has paid for a good while: message and answer in turns.
    pub fn is_steady(&self) -> bool {
        self.paid.load(Ordering::Relaxed) >= STEADY
    }

    /// After it has paid for long, whether it is needed is to be seen anew: of what is looked for there is no telling.
    pub fn renew(&self) {
        if self.paid.load(Ordering::Relaxed) >= MOST_PAID {
            self.paid.store(0, Ordering::Relaxed);
            self.soon.store(0, Ordering::Relaxed);
        }
    }

    /// Somebody did, and none came.
    pub fn in_vain(&self) {
        self.paid.store(0, Ordering::Relaxed);
        let in_vain = self.in_vain.load(Ordering::Relaxed) + 1;
        self.in_vain.store(in_vain % MOST_IN_VAIN, Ordering::Relaxed);
        if in_vain >= MOST_IN_VAIN {
            let needed = self.needed.load(Ordering::Relaxed).max(NEEDED);
            self.needed.store((2 * needed).min(MOST_NEEDED), Ordering::Relaxed);
            self.soon.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_vain_is_tried_less_and_less() {
        let trial = Trial::default();
        let tries = (0..5000).filter(|_| {
            let due = trial.is_due();
            if due {
                trial.in_vain();
            }
            trial.came_soon();
            due
        });
        assert!((MOST_IN_VAIN as usize..60).contains(&tries.count()));
        trial.paid();
        trial.came_soon();
        assert!(trial.is_due());
    }

    #[test]
    fn what_has_paid_for_long_is_steady_and_is_seen_anew() {
        let trial = Trial::default();
        (0..NEEDED).for_each(|_| trial.came_soon());
        for _ in 0..2 {
            (1..STEADY).for_each(|_| trial.paid());
            assert!(!trial.is_steady());
            trial.paid();
            assert!(trial.is_steady());
            trial.in_vain();
            assert!(!trial.is_steady());
        }
        (1..MOST_PAID).for_each(|_| trial.paid());
        trial.renew();
        assert!(trial.is_due());
        trial.paid();
        trial.renew();
        assert!(!trial.is_due());
    }
}
