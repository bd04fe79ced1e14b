//! Model of how posters that share a queue ring its doorbell (`kernels/doorbell.cuh`): loom tries
//! every interleaving and every value that a load may see under the C++ memory model.
//!
//! 1. *reserve*: take tickets by an atomic add; write the WQE.
//! 2. *ready*: store the WQE's end in the ready word of its first ticket (release).
//! 3. *ring*: full fence; try the lock; who gets it scans ready words forward from `rung`,
//!    publishes the producer index, unlocks, fences again, and looks once more whether the next
//!    WQE is ready; if so it tries the lock again. Who does not get the lock leaves.
//!
//! Nobody waits for the lock, so a poster may leave with its WQE unpublished; the holder must then
//! see it. That is the store-buffering pattern: the poster stores *ready* and loads *lock*, the
//! holder stores *lock* and loads *ready*. With a full fence between store and load on both sides,
//! at least one load sees the other's store; without either fence, or without the second look, a
//! doorbell is lost, and the negative controls below show that the model would notice.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bellpush::credit::ready_end;
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
}

const WHOLE: Parts =
    Parts { ready_is_release: true, poster_fence: true, holder_fence: true, second_look: true };

struct Queue {
    parts: Parts,
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
    fn new(parts: Parts) -> Self {
        Self {
            parts,
            reserved: AtomicU64::new(0),
            wqes: std::array::from_fn(|_| UnsafeCell::new(0)),
            ready: std::array::from_fn(|_| AtomicU32::new(0)),
            lock: AtomicU32::new(0),
            rung: UnsafeCell::new(0),
            dbr: AtomicU64::new(0),
        }
    }

    /// Posts one WQE of `blocks` blocks and returns without waiting for anybody.
    fn post(&self, blocks: u64) {
        let start = self.reserved.fetch_add(blocks, Ordering::Relaxed);
        let end = start + blocks;
        // SAFETY: the tickets are ours alone until the ready word is stored; loom checks that.
        self.wqes[start as usize % RING].with_mut(|wqe| unsafe { *wqe = end });
        let order = if self.parts.ready_is_release { Ordering::Release } else { Ordering::Relaxed };
        self.ready[start as usize % RING].store(end as u32, order);
        if self.parts.poster_fence {
            // Orders the ready store before the lock load, against the holder's fence.
            fence(Ordering::SeqCst);
        }
        self.ring();
    }

    fn ring(&self) {
        loop {
            let taken =
                self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if !taken {
                return;
            }
            // SAFETY: we hold the lock; loom checks that nobody else is here.
            let rung = self.rung.with_mut(|rung| unsafe {
                *rung = self.scan(*rung);
                *rung
            });
            self.lock.store(0, Ordering::Release);
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
            self.wqes[rung as usize % RING].with(|wqe| assert_eq!(unsafe { *wqe }, end));
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
        let word = self.ready[start as usize % RING].load(Ordering::Acquire);
        ready_end(word, start, RING as u32)
    }
}

/// Runs every interleaving of `posters` threads (the test's own among them), each of which posts
/// these WQEs. `preemptions` bounds the search where exhausting it would take minutes.
fn explore(parts: Parts, posters: usize, blocks: &'static [u64], preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let queue = Arc::new(Queue::new(parts));
        let post_all = |queue: &Queue| blocks.iter().for_each(|&blocks| queue.post(blocks));
        let others: Vec<_> = (1..posters)
            .map(|_| {
                let queue = queue.clone();
                thread::spawn(move || post_all(&queue))
            })
            .collect();
        post_all(&queue);
        others.into_iter().for_each(|other| other.join().unwrap());
        let reserved = queue.reserved.load(Ordering::Relaxed);
        assert_eq!(queue.dbr.load(Ordering::Relaxed), reserved, "doorbell lost");
    });
}

/// What the model says when it fails, or nothing.
fn complaint(parts: Parts) -> Option<String> {
    let run = || explore(parts, 2, &[1], None);
    let panic = catch_unwind(AssertUnwindSafe(run)).err()?;
    Some(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "another panic".into()))
}

#[test]
fn two_posters_lose_no_doorbell() {
    explore(WHOLE, 2, &[1], None);
}

#[test]
fn two_posters_of_two_wqes_lose_no_doorbell() {
    explore(WHOLE, 2, &[1, 1], Some(3));
}

#[test]
fn posters_of_wqes_of_two_blocks_lose_no_doorbell() {
    explore(WHOLE, 2, &[2], None);
}

#[test]
fn three_posters_lose_no_doorbell() {
    explore(WHOLE, 3, &[1], Some(3));
}

#[test]
fn without_the_posters_fence_a_doorbell_is_lost() {
    let complaint = complaint(Parts { poster_fence: false, ..WHOLE }).expect("loom finds it");
    assert!(complaint.contains("doorbell lost"), "{complaint}");
}

#[test]
fn without_the_holders_fence_a_doorbell_is_lost() {
    let complaint = complaint(Parts { holder_fence: false, ..WHOLE }).expect("loom finds it");
    assert!(complaint.contains("doorbell lost"), "{complaint}");
}

#[test]
fn without_the_second_look_a_doorbell_is_lost() {
    let complaint = complaint(Parts { second_look: false, ..WHOLE }).expect("loom finds it");
    assert!(complaint.contains("doorbell lost"), "{complaint}");
}

#[test]
fn without_release_a_half_written_wqe_is_published() {
    let complaint = complaint(Parts { ready_is_release: false, ..WHOLE }).expect("loom finds it");
    assert!(!complaint.contains("doorbell lost"), "{complaint}");
}
