//! When a consumer that has armed a CQ is told of its entries (mlx5 PRM, "CQ Context", `cq_period`
//! and `cq_max_count`): at once, or when so many wait, at the latest after a while.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// How many entries a consumer wants to be told of together, and how long it waits for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moderation {
    /// Entries waiting; 0 leaves it to the period alone.
    pub count: u16,
    /// Longest wait from when an entry is there that would be told of, in microseconds; with 0
    /// nothing is moderated, since a consumer might be told never.
    pub period_us: u16,
}

impl Moderation {
    fn holds_back(self, waiting: u64) -> bool {
        self.period_us > 0 && (self.count == 0 || waiting < self.count.into())
    }
}

/// A CQ's moderation, and what it holds back. Changed under the CQ's lock.
#[derive(Default)]
pub(crate) struct Held {
    /// Count and period, which change together.
    moderation: AtomicU32,
    /// Whether the consumer would have been told.
    back: AtomicBool,
    /// When that was first seen, in ns; valid while `back` is, and 0 before anybody looked.
    since: AtomicU64,
}

impl Held {
    pub(crate) fn set(&self, Moderation { count, period_us }: Moderation) {
        self.moderation.store(u32::from(count) << 16 | u32::from(period_us), Ordering::Relaxed);
    }

    fn moderation(&self) -> Moderation {
        let word = self.moderation.load(Ordering::Relaxed);
        Moderation { count: (word >> 16) as u16, period_us: word as u16 }
    }

    /// Whether anything is held back.
    pub(crate) fn is_back(&self) -> bool {
        self.back.load(Ordering::Relaxed)
    }

    /// Whether news of so many entries is to be held back.
    pub(crate) fn keeps(&self, waiting: u64) -> bool {
        let keeps = self.moderation().holds_back(waiting);
        if keeps && !self.back.swap(true, Ordering::Relaxed) {
            self.since.store(0, Ordering::Relaxed);
        }
        keeps
    }

    /// The consumer is told, or has asked anew.
    pub(crate) fn release(&self) {
        self.back.store(false, Ordering::Relaxed);
    }

    /// When what is held back is due.
    pub(crate) fn due(&self, now_ns: u64) -> u64 {
        // Engines' clocks may begin at 0.
        let first =
            self.since.compare_exchange(0, now_ns.max(1), Ordering::Relaxed, Ordering::Relaxed);
        let since = first.map_or_else(|since| since, |_| now_ns.max(1));
        since + u64::from(self.moderation().period_us) * 1000
    }
}
