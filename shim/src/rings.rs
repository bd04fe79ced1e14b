//! What is known of a program that rings past libibverbs: whether it does, whether its doorbells are to be
//! caught (`trap`), and whether who rings should look on for the answer.
//!
//! A program that rings and polls in plain memory is seen by the engine's thread alone, which competes for the
//! core that the program spins on. A doorbell that is caught is carried out in the program's own thread. A
//! program that waits for an answer then spins for it, and where answers come soon, the time is better spent on
//! the engine: the thread that was caught steps it on for a short while, as `ibv_poll_cq` would: after the last of
//! several doorbells, until all messages of the answer have come (`turns`), and the acknowledgement where a program
//! waits for that as well. All of this are hints: no doorbell depends on them, since every step looks at the registers.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bellpush_soft_nic::Progress;

use crate::trial::Trial;
use crate::turns::Turns;

/// Doorbells in a row that the engine's thread found, with no post through libibverbs in between, from which
/// on a program rings by itself.
const ENOUGH: u32 = 4;
/// How long whoever rings looks on for an answer at most, and for more of a message; for the next message of an answer,
/// which a peer sends at once; and for all of it.
pub const LINGER_NS: u64 = 50_000;
pub const NEXT_NS: u64 = 40_000;
pub const MOST_LINGER_NS: u64 = 20 * LINGER_NS;
/// An answer that came so long after the doorbell would perhaps have come in time if it had been looked for.
const SOON_NS: u64 = 200_000;
/// A program that has its answer for so long waits for something else: longer than the engine's thread keeps it.
const WHILE_NS: u64 = 30_000;
/// Doorbells in a row without an answer, from which on a program is one that streams: its page is left open
/// for a while, since each catch costs it a signal.
const STREAM: u32 = 16;
const OPEN_NS: u64 = 1_000_000;

/// See above. Written by whoever steps the engine, and by who rings.
#[derive(Default)]
pub struct Rings {
    /// Doorbells that were caught.
    count: AtomicU32,
    /// When the last was, in ns of the driver's clock.
    last_ns: AtomicU64,
    /// Posts through libibverbs, and as many as there were when a doorbell was last seen.
    posts: AtomicU32,
    seen_posts: AtomicU32,
    /// Doorbells in a row of the program's own.
    direct: AtomicU32,
    /// No answer has come since the last one caught.
    waits: AtomicBool,
    /// Whether who rings looks on, and then for the acknowledgement of what it sent.
    pub answers: Trial,
    pub acknowledgements: Trial,
    /// For how much.
    pub turns: Turns,
    /// When the last message came.
    answered_ns: AtomicU64,
    /// Messages are unacknowledged, as far as their timers tell: one without a timer is not waited for, and timers of a
    /// link's or a CQ's own count as well.
    outstanding: AtomicBool,
    /// Doorbells without an answer.
    streak: AtomicU32,
    /// Nothing is caught until then.
    open_until_ns: AtomicU64,
}

impl Rings {
    /// The program has posted through libibverbs.
    pub fn posted(&self) {
        self.posts.fetch_add(1, Ordering::Relaxed);
    }

    /// Doorbells that were caught so far. Sequentially consistent with [`Rings::caught`].
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// When the last was caught.
    pub fn last(&self) -> Duration {
        Duration::from_nanos(self.last_ns.load(Ordering::Relaxed))
    }

    /// A doorbell was caught, and lies in its register: before whoever looks for it next.
    pub fn caught(&self, now_ns: u64) {
        self.last_ns.store(now_ns, Ordering::Relaxed);
        self.waits.store(true, Ordering::Relaxed);
        self.turns.rang();
        let streak = self.streak.load(Ordering::Relaxed) + 1;
        self.streak.store(streak, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// What a step found, and whether the engine's thread did it.
    pub fn saw(&self, progress: &Progress, now_ns: u64, in_thread: bool) {
        if in_thread && progress.doorbells > 0 {
            let direct = self.direct.load(Ordering::Relaxed);
            let is_direct = !self.have_posts_changed();
            self.direct
                .store(if is_direct { (direct + 1).min(ENOUGH) } else { 0 }, Ordering::Relaxed);
        }
        self.turns.came(progress.messages);
        let answered_ns = self.answered_ns.load(Ordering::Relaxed);
        if progress.messages > 0 {
            self.answered_ns.store(now_ns, Ordering::Relaxed);
        }
        let since = now_ns.saturating_sub(self.last_ns.load(Ordering::Relaxed));
        let were_outstanding = self.is_outstanding();
        match progress.next_ns {
            Some(_) => self.outstanding.store(true, Ordering::Relaxed),
            None if progress.more => {} // of a queue pair that wants another step at once it is not told
            None => self.outstanding.store(false, Ordering::Relaxed),
        }
        let is_last = were_outstanding && !self.is_outstanding();
        // The program has had its answer for a while, and has not rung since.
        let waits = self.turns.has_all() && now_ns.saturating_sub(answered_ns) > WHILE_NS;
        if in_thread && is_last && waits && since < SOON_NS {
            self.acknowledgements.came_soon();
        }
        if progress.arrivals > 0 {
            self.streak.store(0, Ordering::Relaxed);
            if self.waits.swap(false, Ordering::Relaxed) && since < SOON_NS {
                self.answers.came_soon();
            }
        }
    }

    /// Whether messages were unacknowledged after the last step that tells.
    pub fn is_outstanding(&self) -> bool {
        self.outstanding.load(Ordering::Relaxed)
    }

    fn have_posts_changed(&self) -> bool {
        let posts = self.posts.load(Ordering::Relaxed);
        self.seen_posts.swap(posts, Ordering::Relaxed) != posts
    }

    /// Whether doorbells are to be caught.
    pub fn are_to_be_caught(&self, now_ns: u64) -> bool {
        self.direct.load(Ordering::Relaxed) >= ENOUGH
            && now_ns >= self.open_until_ns.load(Ordering::Relaxed)
    }

    /// Whether a doorbell that was caught is one too many: the program streams, or posts through libibverbs.
    pub fn are_too_many(&self, now_ns: u64) -> bool {
        if self.have_posts_changed() {
            self.direct.store(0, Ordering::Relaxed);
            return true;
        }
        if self.streak.load(Ordering::Relaxed) < STREAM {
            return false;
        }
        self.streak.store(0, Ordering::Relaxed);
        self.open_until_ns.store(now_ns + OPEN_NS, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANG: Progress = Progress {
        wqes: 1,
        bytes: 0,
        errors: 0,
        doorbells: 1,
        arrivals: 0,
        messages: 0,
        acknowledgements: 0,
        under_way: false,
        more: false,
        next_ns: None,
        link_holds: false,
    };
    const CAME: Progress = Progress { doorbells: 0, arrivals: 1, messages: 1, ..RANG };

    #[test]
    fn doorbells_of_libibverbs_are_not_caught() {
        let rings = Rings::default();
        for _ in 0..3 * ENOUGH {
            rings.posted();
            rings.saw(&RANG, 1, true);
        }
        assert!(!rings.are_to_be_caught(1));
        (0..ENOUGH).for_each(|_| rings.saw(&RANG, 1, true));
        assert!(rings.are_to_be_caught(1));
        rings.posted();
        rings.caught(2);
        assert!(rings.are_too_many(2) && !rings.are_to_be_caught(2));
    }

    #[test]
    fn a_stream_is_left_alone_for_a_while() {
        let rings = Rings::default();
        (0..ENOUGH).for_each(|_| rings.saw(&RANG, 1, true));
        for _ in 0..3 * STREAM {
            rings.caught(2);
            assert!(!rings.are_too_many(2));
            rings.saw(&CAME, 3, false);
        }
        (0..STREAM).for_each(|_| rings.caught(4));
        assert!(rings.are_too_many(4) && !rings.are_to_be_caught(5));
        assert!(rings.are_to_be_caught(4 + OPEN_NS));
    }

    /// Neither what comes right behind the answer, nor what a program's own step finds.
    #[test]
    fn acknowledgements_are_waited_for_where_the_engines_thread_finds_them_late() {
        const POSTED: Progress = Progress { next_ns: Some(1), ..RANG };
        const ACKNOWLEDGED: Progress = Progress { doorbells: 0, acknowledgements: 1, ..RANG };
        for (late_ns, in_thread, due) in
            [(WHILE_NS + 1, true, true), (WHILE_NS, true, false), (WHILE_NS + 1, false, false)]
        {
            let rings = Rings::default();
            for i in 1..4_u64 {
                let now_ns = i << 32;
                rings.caught(now_ns);
                rings.saw(&POSTED, now_ns, false);
                rings.saw(&Progress { more: true, ..CAME }, now_ns + 1, false);
                assert!(rings.is_outstanding(), "a step with packets does not tell");
                rings.saw(&ACKNOWLEDGED, now_ns + 1 + late_ns, in_thread);
                assert!(!rings.is_outstanding());
            }
            assert_eq!(rings.acknowledgements.is_due(), due, "{late_ns} {in_thread}");
        }
    }

    #[test]
    fn who_rings_looks_on_where_answers_come_soon() {
        let rings = Rings::default();
        for late in [SOON_NS, 1] {
            for i in 1..4 {
                assert!(!rings.answers.is_due());
                rings.caught(i);
                rings.saw(&CAME, i + late, true);
                if late == 1 && rings.answers.is_due() {
                    return;
                }
            }
        }
        panic!("they came soon");
    }
}
