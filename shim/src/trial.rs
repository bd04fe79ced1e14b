//! Whether it pays to look on for what a peer answers: tried where answers came soon, and less and less often
//! after it was in vain. Hints: nothing is ordered by them.

use std::sync::atomic::{AtomicU32, Ordering};

/// Answers that came soon until it is tried, and twice as many after each failure, up to a bound.
const NEEDED: u32 = 2;
const MOST_NEEDED: u32 = 1024;
/// Failures in a row until it is not tried any more.
const MOST_IN_VAIN: u32 = 4;

/// See above.
#[derive(Default)]
pub struct Trial {
    /// Answers that came soon, and how many it takes.
    soon: AtomicU32,
    needed: AtomicU32,
    in_vain: AtomicU32,
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
    }

    /// Somebody did, and none came.
    pub fn in_vain(&self) {
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
}
