//! Model of how posters that share a queue ring its doorbell (`kernels/include/bellpush/impl/doorbell.cuh`): loom tries
//! every interleaving and every value that a load may see under the C++ memory model.
//!
//! 1. *reserve*: look at the word `ring`, take tickets by an atomic add, and wait until those one lap before are
//!    complete; write the WQE.
//! 2. *ready*: store the WQE's end in the ready words of its further tickets; fence (release); store it in that of the
//!    first one.
//! 3. *ring*: atomic or of the bit *held* into `ring`; before the fence of 2 where the look said that nobody else is
//!    about. Who gets the word and finds in it exactly its own WQE publishes that. Else it fences (acquire), looks at
//!    the ready words from there on once, fences again, publishes, and stores the word anew (release), with *left* if
//!    there is a gap before its own WQE, or if there was the mark and not all tickets are rung.
//!    Who finds the word held polls it until its WQE is published or the word is free.
//!
//! A poster that finds a gap leaves, and the gap's poster must see what it left. It takes the word after it, because it
//! is ready only then, or it was in the word before it. The release of the one store and the acquire of the other order
//! the ready word before the look. The negative controls below take each part away, and show that the model notices.
//!
//! A poster may also *defer*, which leaves out 3, and *ring* later for all that is there.
//!
//! The NIC has done what it was told of as soon as it was told. So tickets come round, and what a
//! poster stores late may meet the words of the next lap. It takes the later of two indices.

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
    poster_fence: bool,
    /// The words behind a WQE's first come before it.
    first_word_last: bool,
    acquire_before_look: bool,
    acquire_after_look: bool,
    release_of_word: bool,
    /// Who finds a gap says so.
    gap_is_marked: bool,
    /// Who finds the mark looks, also where `ring` is at its own WQE.
    mark_is_heeded: bool,
    /// Who cannot ring for all leaves the mark there.
    mark_is_kept: bool,
    /// A call that rings for what was deferred marks a gap as well.
    ring_marks: bool,
}

const WHOLE: Parts = Parts {
    poster_fence: true,
    first_word_last: true,
    acquire_before_look: true,
    acquire_after_look: true,
    release_of_word: true,
    gap_is_marked: true,
    mark_is_heeded: true,
    mark_is_kept: true,
    ring_marks: true,
};

const HELD: u64 = 1;
const LEFT: u64 = 2;
const SHIFT: u32 = 2;

/// What a poster does.
#[derive(Clone, Copy)]
enum Act {
    /// Posts a WQE of so many blocks.
    Post(u64),
    /// The same without ringing.
    Defer(u64),
    /// Takes tickets for two WQEs, and posts one after the other, as two callers would: polls of three threads are too
    /// much for loom.
    Two,
    /// Rings for all that is ready.
    Ring,
}
use Act::{Defer, Post, Ring, Two};

/// What is posted by whom, on what.
#[derive(Clone, Copy)]
struct Case {
    posters: &'static [&'static [Act]],
    /// Blocks of the ring, at most `RING`.
    ring: u64,
}

const fn case(posters: &'static [&'static [Act]]) -> Case {
    Case { posters, ring: RING as u64 }
}

/// One WQE's tickets.
struct Taken {
    start: u64,
    end: u64,
    /// All that was posted before is rung for, and nobody has come since.
    alone: bool,
}

struct Queue {
    parts: Parts,
    case: Case,
    reserved: AtomicU64,
    wqes: [UnsafeCell<u64>; RING],
    ready: [AtomicU32; RING],
    ring: AtomicU64,
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
            ready: std::array::from_fn(|i| AtomicU32::new(i as u32)),
            ring: AtomicU64::new(0),
            dbr: AtomicU64::new(0),
        }
    }

    fn slot(&self, ticket: u64) -> usize {
        (ticket % self.case.ring) as usize
    }

    fn act(&self, act: Act) {
        match act {
            Post(blocks) => self.post(self.reserve(blocks), true),
            Defer(blocks) => self.post(self.reserve(blocks), false),
            Two => {
                let (first, second) = (self.reserve(1), self.reserve(1));
                self.post(first, true);
                self.post(second, true);
            }
            Ring => self.ring_pending(),
        }
    }

    fn reserve(&self, blocks: u64) -> Taken {
        let seen = self.ring.load(Ordering::Relaxed);
        let start = self.reserved.fetch_add(blocks, Ordering::Relaxed);
        Taken { start, end: start + blocks, alone: seen == start << SHIFT }
    }

    /// Posts one WQE.
    fn post(&self, Taken { start, end, alone }: Taken, rings: bool) {
        // Acquire: those who had the tickets one lap before, through the NIC.
        let has_room = || end <= self.dbr.load(Ordering::Acquire) + self.case.ring;
        while !has_room() {
            self.ring_ready(); // what the NIC waits for may be ready, and its poster not here yet
            if !has_room() {
                thread::yield_now();
            }
        }
        // SAFETY: the tickets are ours alone until the ready word is stored; loom checks that.
        self.wqes[self.slot(start)].with_mut(|wqe| unsafe { *wqe = end });
        let mark_others = || {
            for ticket in start + 1..end {
                self.ready[self.slot(ticket)].store(end as u32, Ordering::Relaxed);
            }
        };
        if self.parts.first_word_last {
            mark_others();
        }
        let asked = (rings && alone).then(|| self.ask());
        if self.parts.poster_fence {
            // Orders the WQE and the other words before the first one, for whoever rings and for the next lap.
            fence(Ordering::Release);
        }
        self.ready[self.slot(start)].store(end as u32, Ordering::Relaxed);
        if !self.parts.first_word_last {
            mark_others();
        }
        if rings {
            self.ring_own(asked.unwrap_or_else(|| self.ask()), start, end);
        }
    }

    fn ask(&self) -> u64 {
        self.ring.fetch_or(HELD, Ordering::Relaxed)
    }

    /// Rings for the poster's own WQE, and for others'.
    fn ring_own(&self, word: u64, start: u64, end: u64) {
        let heeded = if self.parts.mark_is_heeded { word } else { word & !LEFT };
        if heeded == start << SHIFT {
            self.give_back(start, end, false);
        } else if word & HELD == 0 || word >> SHIFT < end {
            self.look(word, end, self.parts.gap_is_marked);
        }
    }

    /// Rings for all that is ready.
    fn ring_pending(&self) {
        let end = self.reserved.load(Ordering::Relaxed);
        if self.ring.load(Ordering::Relaxed) >> SHIFT < end {
            self.look(self.ask(), end, self.parts.ring_marks);
        }
    }

    /// Rings for what is ready, if nobody else does at present and there is something.
    fn ring_ready(&self) {
        let word = self.ring.load(Ordering::Relaxed);
        if word & HELD == 0 && self.ready_at(word >> SHIFT).is_some() {
            let word = self.ask();
            if word & HELD == 0 {
                self.look(word, 0, false);
            }
        }
    }

    /// Takes the word, or finds that all below `end` is rung.
    fn take(&self, mut word: u64, end: u64) -> Option<u64> {
        while word & HELD != 0 {
            if word >> SHIFT >= end {
                return None;
            }
            thread::yield_now();
            // Not a load first, as on a GPU: one here may see an old value again and again.
            word = self.ask();
        }
        Some(word)
    }

    /// Takes the word, and publishes the WQEs that are ready.
    fn look(&self, word: u64, end: u64, marks: bool) {
        let Some(word) = self.take(word, end) else { return };
        let from = word >> SHIFT;
        if self.parts.acquire_before_look {
            // The ready words that were left to us.
            fence(Ordering::Acquire);
        }
        let mut to = from;
        while let Some(end) = self.ready_at(to) {
            to = end;
        }
        if self.parts.acquire_after_look {
            // The WQEs whose words were seen.
            fence(Ordering::Acquire);
        }
        let mut at = from;
        while at < to {
            // SAFETY: the ready word says that the WQE is whole; loom checks that.
            at = self.wqes[self.slot(at)].with(|wqe| unsafe { *wqe });
        }
        assert_eq!(at, to, "half a WQE");
        let has_gap = marks && to < end;
        let keeps = || {
            word & LEFT != 0
                && self.parts.mark_is_kept
                && to < self.reserved.load(Ordering::Relaxed)
        };
        self.give_back(from, to, has_gap || keeps());
    }

    /// Publishes what is below `to`, and gives the word back.
    fn give_back(&self, from: u64, to: u64, left: bool) {
        if to != from {
            // The WQEs before the producer index, for the NIC.
            let before = self.dbr.fetch_max(to, Ordering::Release);
            assert_eq!(before, from, "two ring at once");
        }
        // This doorbell before the next holder's, and our ready word before that one's look.
        let order = if self.parts.release_of_word { Ordering::Release } else { Ordering::Relaxed };
        // An exchange, because loom would let a plain store come before other callers' atomics that it follows.
        self.ring.swap(to << SHIFT | if left { LEFT } else { 0 }, order);
    }

    fn ready_at(&self, start: u64) -> Option<u64> {
        let word = self.ready[self.slot(start)].load(Ordering::Relaxed);
        ready_end(word, start)
    }
}

/// Runs every interleaving of the posters (the test's own thread is the last). `preemptions` bounds the
/// search where exhausting it would take minutes.
fn explore(parts: Parts, case: Case, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let queue = Arc::new(Queue::new(parts, case));
        let act_all = |queue: &Queue, acts: &[Act]| acts.iter().for_each(|&act| queue.act(act));
        let (mine, others) = case.posters.split_last().unwrap();
        let others: Vec<_> = others
            .iter()
            .map(|&acts| {
                let queue = queue.clone();
                thread::spawn(move || act_all(&queue, acts))
            })
            .collect();
        act_all(&queue, mine);
        others.into_iter().for_each(|other| other.join().unwrap());
        let reserved = queue.reserved.load(Ordering::Relaxed);
        assert_eq!(queue.dbr.load(Ordering::Relaxed), reserved, "doorbell lost");
    });
}

const ONE_EACH: Case = case(&[&[Post(1)], &[Post(1)]]);
const THREE: Case = case(&[&[Two], &[Post(1)]]);
/// The second WQE of one block has the ticket of the first one's second block, one lap on.
const LAPS: Case = Case { ring: 2, ..case(&[&[Post(1), Defer(1), Ring], &[Post(2)]]) };
/// The same where the poster of two blocks is not alone, and so has not asked for the word before it marks.
const LATE: Case = Case { ring: 2, ..case(&[&[Post(1), Post(1), Defer(1), Ring], &[Post(2)]]) };
const DEFERRED: Case = case(&[&[Post(1)], &[Defer(1), Ring]]);

/// What the model says when it fails, or nothing.
fn complaint(parts: Parts, case: Case) -> Option<String> {
    let run = || explore(parts, case, Some(3));
    let panic = catch_unwind(AssertUnwindSafe(run)).err()?;
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    Some(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default())
}

#[track_caller]
fn loses_a_doorbell(parts: Parts, case: Case) {
    let complaint = complaint(parts, case).expect("loom finds it");
    assert!(complaint.contains("doorbell lost"), "{complaint}");
}

/// Somebody reads a WQE that is still being written.
#[track_caller]
fn rings_too_early(parts: Parts, case: Case) {
    let complaint = complaint(parts, case).expect("loom finds it");
    assert!(complaint.contains("Causality violation"), "{complaint}");
}

#[test]
fn two_posters_lose_no_doorbell() {
    explore(WHOLE, ONE_EACH, None);
}

#[test]
fn two_posters_of_two_wqes_lose_no_doorbell() {
    explore(WHOLE, case(&[&[Post(1), Post(1)], &[Post(1), Post(1)]]), Some(3));
}

#[test]
fn posters_of_wqes_of_two_blocks_lose_no_doorbell() {
    explore(WHOLE, case(&[&[Post(2)], &[Post(2)]]), None);
}

#[test]
fn posters_of_three_and_four_wqes_lose_no_doorbell() {
    explore(WHOLE, THREE, None);
    explore(WHOLE, case(&[&[Two], &[Two]]), Some(3));
}

#[test]
fn posters_that_come_round_the_ring_lose_no_doorbell() {
    explore(WHOLE, LAPS, Some(3));
    explore(WHOLE, LATE, Some(3));
    explore(WHOLE, Case { ring: 2, ..case(&[&[Post(1), Post(1)], &[Post(2)]]) }, Some(3));
}

#[test]
fn deferred_doorbells_are_not_lost() {
    explore(WHOLE, DEFERRED, None);
    explore(WHOLE, case(&[&[Post(1), Post(1)], &[Defer(1), Ring]]), Some(3));
    explore(WHOLE, case(&[&[Post(1)], &[Defer(1), Post(1)]]), Some(3));
}

#[test]
fn without_the_posters_fence_a_half_written_wqe_is_rung_for() {
    rings_too_early(Parts { poster_fence: false, ..WHOLE }, ONE_EACH);
}

#[test]
fn without_an_acquire_behind_the_look_a_half_written_wqe_is_rung_for() {
    rings_too_early(Parts { acquire_after_look: false, ..WHOLE }, ONE_EACH);
}

#[test]
fn a_word_that_is_stored_after_the_first_one_takes_a_later_doorbell_away() {
    loses_a_doorbell(Parts { first_word_last: false, ..WHOLE }, LATE);
}

#[test]
fn without_an_acquire_before_the_look_a_doorbell_is_lost() {
    loses_a_doorbell(Parts { acquire_before_look: false, ..WHOLE }, ONE_EACH);
}

#[test]
fn without_the_release_of_the_word_a_doorbell_is_lost() {
    loses_a_doorbell(Parts { release_of_word: false, ..WHOLE }, ONE_EACH);
}

#[test]
fn without_the_mark_of_a_gap_a_doorbell_is_lost() {
    loses_a_doorbell(Parts { gap_is_marked: false, ..WHOLE }, ONE_EACH);
}

#[test]
fn who_does_not_heed_the_mark_loses_a_doorbell() {
    loses_a_doorbell(Parts { mark_is_heeded: false, ..WHOLE }, ONE_EACH);
}

#[test]
fn who_does_not_leave_the_mark_there_loses_a_doorbell() {
    loses_a_doorbell(Parts { mark_is_kept: false, ..WHOLE }, THREE);
}

#[test]
fn a_call_that_rings_and_does_not_mark_a_gap_loses_a_doorbell() {
    loses_a_doorbell(Parts { ring_marks: false, ..WHOLE }, DEFERRED);
}
