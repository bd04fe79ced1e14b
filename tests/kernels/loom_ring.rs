//! Model of how posters that share a queue ring its doorbell (`kernels/include/bellpush/impl/doorbell.cuh`): loom tries
//! every interleaving and every value that a load may see under the C++ memory model.
//!
//! 1. *reserve*: take tickets by an atomic add, and wait until those one lap before are complete;
//!    write the WQE.
//! 2. *ready*: store the WQE's end in the ready words of all its tickets, in that of the first one
//!    last (release).
//! 3. *ring*: full fence; try the lock; who gets it scans ready words forward from `rung`,
//!    publishes the producer index, unlocks, fences again, and looks once more whether the next
//!    WQE is ready; if so it tries the lock again. Who finds the lock held leaves.
//!
//! Nobody waits for the lock, so a poster may leave with its WQE unpublished; the holder must then
//! see it. That is the store-buffering pattern: the poster stores *ready* and loads *lock*, the
//! holder stores *lock* and loads *ready*. With a full fence between store and load on both sides,
//! at least one load sees the other's store; without either fence, or without the second look, a
//! doorbell is lost, and the negative controls below show that the model would notice.
//!
//! A holder that has come round often enough marks its last round in the lock, fences, scans, and
//! leaves without a second look. Whoever finds the mark stays until the lock has another holder. The
//! same pattern: the mark is stored, *ready* loaded. One that has looked too often changes the mark and
//! leaves; a holder that finds it changed comes round anew.
//!
//! The NIC has done what it was told of as soon as it was told. So tickets come round, and what a
//! poster stores late may meet the words of the next lap.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::credit::ready_end;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;

const RING: usize = 4;

/// The protocol's parts, each of which a negative control takes away.
#[derive(Clone, Copy)]
struct Parts {
    ready_is_release: bool,
    poster_fence: bool,
    holder_fence: bool,
    second_look: bool,
    /// The words behind a WQE's first come before it.
    first_word_last: bool,
    last_round_fence: bool,
    last_round_keeps_posters: bool,
    changed_mark_is_heeded: bool,
}

const WHOLE: Parts = Parts {
    ready_is_release: true,
    poster_fence: true,
    holder_fence: true,
    second_look: true,
    first_word_last: true,
    last_round_fence: true,
    last_round_keeps_posters: true,
    changed_mark_is_heeded: true,
};

const FREE: u32 = 0;
const HELD: u32 = 1;
const LAST: u32 = 2;
const MORE: u32 = 3;

/// What is posted by whom, on what.
#[derive(Clone, Copy)]
struct Case {
    /// Blocks of the WQEs of each poster.
    posters: &'static [&'static [u64]],
    /// Blocks of the ring, at most `RING`.
    ring: u64,
    /// Rounds of a holder.
    rounds: u32,
    /// Looks at a holder's last round.
    looks: u32,
}

const fn case(posters: &'static [&'static [u64]]) -> Case {
    Case { posters, ring: RING as u64, rounds: 100, looks: 100 }
}

struct Queue {
    parts: Parts,
    case: Case,
    reserved: AtomicU64,
    wqes: [UnsafeCell<u64>; RING],
    ready: [AtomicU32; RING],
    lock: AtomicU32,
    /// Guarded by `lock`.
    rung: UnsafeCell<u64>,
    /// Producer index as the NIC reads it.
    dbr: AtomicU64,
}

impl Queue {
    fn new(parts: Parts, case: Case) -> Self {
        Self {
            parts,
            case,
            reserved: AtomicU64::new(0),
            wqes: std::array::from_fn(|_| UnsafeCell::new(0)),
            ready: std::array::from_fn(|_| AtomicU32::new(0)),
            lock: AtomicU32::new(0),
            rung: UnsafeCell::new(0),
            dbr: AtomicU64::new(0),
        }
    }

    fn slot(&self, ticket: u64) -> usize {
        (ticket % self.case.ring) as usize
    }

    /// Posts one WQE of `blocks` blocks and returns without waiting for anybody but the NIC.
    fn post(&self, blocks: u64) {
        let start = self.reserved.fetch_add(blocks, Ordering::Relaxed);
        let end = start + blocks;
        // Acquire: those who had the tickets one lap before, through the NIC.
        let has_room = || end <= self.dbr.load(Ordering::Acquire) + self.case.ring;
        while !has_room() {
            self.ring(); // what the NIC waits for may be ready, and its poster not here yet
            if !has_room() {
                thread::yield_now();
            }
        }
        // SAFETY: the tickets are ours alone until the ready word is stored; loom checks that.
        self.wqes[self.slot(start)].with_mut(|wqe| unsafe { *wqe = end });
        let order = if self.parts.ready_is_release { Ordering::Release } else { Ordering::Relaxed };
        let mark_others = || {
            for ticket in start + 1..end {
                self.ready[self.slot(ticket)].store(end as u32, Ordering::Relaxed);
            }
        };
        if self.parts.first_word_last {
            mark_others();
        }
        self.ready[self.slot(start)].store(end as u32, order);
        if !self.parts.first_word_last {
            mark_others();
        }
        if self.parts.poster_fence {
            // Orders the ready store before the lock load, against the holder's fence.
            fence(Ordering::SeqCst);
        }
        self.ring();
    }

    /// Takes the lock, unless its holder will ring for us too.
    fn take_lock(&self) -> bool {
        for look in 1.. {
            let Err(found) =
                self.lock.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            else {
                return true;
            };
            if found != LAST || !self.parts.last_round_keeps_posters {
                return false;
            }
            let change = || {
                self.lock.compare_exchange(LAST, MORE, Ordering::Acquire, Ordering::Relaxed).is_ok()
            };
            if look >= self.case.looks && change() {
                return false;
            }
            thread::yield_now();
        }
        unreachable!()
    }

    fn ring(&self) {
        let mut round = 0;
        while self.take_lock() {
            round += 1;
            let is_last = round == self.case.rounds;
            if is_last {
                self.lock.store(LAST, Ordering::Relaxed);
                if self.parts.last_round_fence {
                    // Orders the mark before the scan, against the posters' fences.
                    fence(Ordering::SeqCst);
                }
            }
            // SAFETY: we hold the lock; loom checks that nobody else is here.
            let rung = self.rung.with_mut(|rung| unsafe {
                *rung = self.scan(*rung);
                *rung
            });
            if is_last {
                fence(Ordering::Release);
                let unlocked =
                    self.lock.compare_exchange(LAST, FREE, Ordering::Acquire, Ordering::Relaxed);
                if unlocked.is_ok() {
                    return;
                }
                self.lock.store(FREE, Ordering::Release);
                if !self.parts.changed_mark_is_heeded {
                    return;
                }
                round = 0;
                continue;
            }
            self.lock.store(FREE, Ordering::Release);
            if self.parts.holder_fence {
                // Orders the unlock before the second look, against the posters' fences.
                fence(Ordering::SeqCst);
            }
            if !self.parts.second_look || self.ready_at(rung).is_none() {
                return;
            }
        }
    }

    /// Publishes the WQEs that are ready from `rung` on; returns the new producer index.
    fn scan(&self, mut rung: u64) -> u64 {
        let before = rung;
        while let Some(end) = self.ready_at(rung) {
            // SAFETY: the ready word, loaded with acquire, says that the WQE is whole.
            self.wqes[self.slot(rung)].with(|wqe| assert_eq!(unsafe { *wqe }, end));
            rung = end;
        }
        if rung != before {
            // Only the holder stores here, so that the producer index never goes back.
            assert_eq!(self.dbr.load(Ordering::Relaxed), before, "producer index went back");
            // The WQEs before the producer index, for the NIC.
            self.dbr.store(rung, Ordering::Release);
        }
        rung
    }

    fn ready_at(&self, start: u64) -> Option<u64> {
        let word = self.ready[self.slot(start)].load(Ordering::Acquire);
        ready_end(word, start, self.case.ring as u32)
    }
}

/// Runs every interleaving of the posters (the test's own thread is the last). `preemptions` bounds the
/// search where exhausting it would take minutes.
fn explore(parts: Parts, case: Case, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let queue = Arc::new(Queue::new(parts, case));
        let post_all = |queue: &Queue, wqes: &[u64]| wqes.iter().for_each(|&n| queue.post(n));
        let (mine, others) = case.posters.split_last().unwrap();
        let others: Vec<_> = others
            .iter()
            .map(|&wqes| {
                let queue = queue.clone();
                thread::spawn(move || post_all(&queue, wqes))
            })
            .collect();
        post_all(&queue, mine);
        others.into_iter().for_each(|other| other.join().unwrap());
        let reserved = queue.reserved.load(Ordering::Relaxed);
        assert_eq!(queue.dbr.load(Ordering::Relaxed), reserved, "doorbell lost");
    });
}

const ONE_EACH: Case = case(&[&[1], &[1]]);
/// The second WQE of one block has the ticket of the first one's second block, one lap on.
const LAPS: Case = Case { ring: 2, ..case(&[&[1, 1], &[2]]) };
const SHORT_HOLDS: Case = Case { rounds: 1, ..ONE_EACH };
const SHORT_LOOKS: Case = Case { looks: 1, ..SHORT_HOLDS };

/// What the model says when it fails, or nothing.
fn complaint(parts: Parts, case: Case) -> Option<String> {
    let run = || explore(parts, case, Some(3));
    let panic = catch_unwind(AssertUnwindSafe(run)).err()?;
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    Some(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default())
}

#[test]
fn two_posters_lose_no_doorbell() {
    explore(WHOLE, ONE_EACH, None);
}

#[test]
fn two_posters_of_two_wqes_lose_no_doorbell() {
    explore(WHOLE, case(&[&[1, 1], &[1, 1]]), Some(3));
}

#[test]
fn posters_of_wqes_of_two_blocks_lose_no_doorbell() {
    explore(WHOLE, case(&[&[2], &[2]]), None);
}

#[test]
fn three_posters_lose_no_doorbell() {
    explore(WHOLE, case(&[&[1], &[1], &[1]]), Some(3));
}

#[test]
fn posters_that_come_round_the_ring_lose_no_doorbell() {
    explore(WHOLE, LAPS, Some(3));
}

#[test]
fn holders_of_few_rounds_lose_no_doorbell() {
    explore(WHOLE, SHORT_HOLDS, Some(4));
    explore(WHOLE, Case { rounds: 2, ..case(&[&[1, 1], &[1]]) }, Some(3));
}

#[test]
fn posters_that_do_not_wait_for_a_last_round_lose_no_doorbell() {
    explore(WHOLE, SHORT_LOOKS, Some(4));
    explore(WHOLE, Case { posters: &[&[1], &[1], &[1]], ..SHORT_LOOKS }, Some(3));
}

#[test]
fn without_the_posters_fence_a_doorbell_is_lost() {
    let complaint = complaint(Parts { poster_fence: false, ..WHOLE }, ONE_EACH);
    let complaint = complaint.expect("loom finds it");
    assert!(complaint.contains("doorbell lost"), "{complaint}");
}

#[test]
fn without_the_holders_fence_a_doorbell_is_lost() {
    let complaint = complaint(Parts { holder_fence: false, ..WHOLE }, ONE_EACH);
    let complaint = complaint.expect("loom finds it");
    assert!(complaint.contains("doorbell lost"), "{complaint}");
}

#[test]
fn without_the_second_look_a_doorbell_is_lost() {
    let complaint = complaint(Parts { second_look: false, ..WHOLE }, ONE_EACH);
    let complaint = complaint.expect("loom finds it");
    assert!(complaint.contains("doorbell lost"), "{complaint}");
}

#[test]
fn without_release_a_half_written_wqe_is_published() {
    let complaint = complaint(Parts { ready_is_release: false, ..WHOLE }, ONE_EACH);
    let complaint = complaint.expect("loom finds it");
    assert!(!complaint.contains("doorbell lost"), "{complaint}");
}

#[test]
fn a_word_that_is_stored_after_the_first_one_takes_a_later_doorbell_away() {
    let complaint = complaint(Parts { first_word_last: false, ..WHOLE }, LAPS);
    let complaint = complaint.expect("loom finds it");
    assert!(complaint.contains("doorbell lost"), "{complaint}");
}

#[test]
fn without_the_last_rounds_fence_a_doorbell_is_lost() {
    let complaint = complaint(Parts { last_round_fence: false, ..WHOLE }, SHORT_HOLDS);
    let complaint = complaint.expect("loom finds it");
    assert!(complaint.contains("doorbell lost"), "{complaint}");
}

#[test]
fn a_poster_that_leaves_in_a_last_round_loses_its_doorbell() {
    let complaint = complaint(Parts { last_round_keeps_posters: false, ..WHOLE }, SHORT_HOLDS);
    let complaint = complaint.expect("loom finds it");
    assert!(complaint.contains("doorbell lost"), "{complaint}");
}

#[test]
fn a_holder_that_does_not_heed_a_changed_mark_loses_a_doorbell() {
    let complaint = complaint(Parts { changed_mark_is_heeded: false, ..WHOLE }, SHORT_LOOKS);
    let complaint = complaint.expect("loom finds it");
    assert!(complaint.contains("doorbell lost"), "{complaint}");
}
