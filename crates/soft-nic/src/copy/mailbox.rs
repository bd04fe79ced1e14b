//! What an engine and one copy thread share: a short queue of pieces, each of which one of the two copies.
//!
//! The engine posts at one end, and may take the newest piece back as long as nobody has begun it; the thread takes
//! the oldest. So an engine waits for copies that are under way and for no thread that sleeps.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::copy::piece::{Ends, Outcome, Piece};
use bellpush_mem::{Dma, LINE_BYTES, MemError, View};

/// Pieces that a thread has before it while it copies another: it finds the next one at once.
pub(crate) const DEPTH: usize = 4;

/// Bytes of the words of one mailbox: a cache line for each piece, and one that the thread alone writes.
pub(crate) const MAILBOX_BYTES: usize = (DEPTH + 1) * LINE_BYTES;
/// Where the thread says how many pieces it has carried out, shifted left by one; the lowest bit says that one of them
/// was not copied, and its entry why. The engine looks at this word alone, which changes once a piece.
const CARRIED_AT: usize = DEPTH * LINE_BYTES;

/// States of an entry, its first word. The rest is the piece.
const FREE: u64 = 0;
const POSTED: u64 = 1;
const TAKEN: u64 = 2;
const UNDONE: u64 = 3;
const PANICKED: u64 = 4;

/// One engine's mailbox at one copy thread.
#[derive(Clone)]
pub(crate) struct Mailbox(Arc<Shared>);

struct Shared {
    words: View,
    /// What the pieces are parts of. Written while no piece is out, and held by whoever copies one.
    ends: Mutex<Option<Ends>>,
}

impl Mailbox {
    /// A mailbox over [`MAILBOX_BYTES`] zeros.
    pub(crate) fn new(words: View) -> Self {
        Self(Arc::new(Shared { words, ends: Mutex::default() }))
    }

    fn ends(&self) -> MutexGuard<'_, Option<Ends>> {
        self.0.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(number: u64) -> usize {
        number as usize % DEPTH * LINE_BYTES
    }

    fn set(&self, number: u64, state: u64, order: Ordering) {
        self.0.words.store_u64(Self::at(number), state, order).expect(OWN);
    }

    fn state(&self, number: u64, order: Ordering) -> u64 {
        self.0.words.load_u64(Self::at(number), order).expect(OWN)
    }

    /// Moves a posted entry on; false when the other side has done so.
    fn moved_on(&self, number: u64, to: u64) -> bool {
        self.0.words.compare_swap(Self::at(number), POSTED, to).expect(OWN) == POSTED
    }

    /// The engine's: says what the pieces to come are parts of; `None` when there are no more. No piece is out.
    pub(crate) fn give(&self, ends: Option<Ends>) {
        *self.ends() = ends;
    }

    /// The engine's: posts a piece as number `number`, whose entry is free.
    pub(crate) fn post(&self, number: u64, piece: Piece) {
        for (i, word) in piece.words().into_iter().enumerate() {
            let at = Self::at(number) + (1 + i) * 8;
            self.0.words.store_u64(at, word, Ordering::Relaxed).expect(OWN);
        }
        // Release: the piece, and the bytes that its WQEs were seen with, for the thread that takes it.
        self.set(number, POSTED, Ordering::Release);
    }

    /// The engine's: takes the newest piece back, unless the thread has begun it.
    pub(crate) fn take_back(&self, number: u64) -> bool {
        self.moved_on(number, FREE)
    }

    /// The engine's: what has become of a piece, `None` while it is posted or under way. The entry is free then.
    pub(crate) fn outcome(&self, number: u64) -> Option<Outcome> {
        // Acquire: the thread's copy comes before what the engine does next, such as the CQE that covers it, and
        // its reads of a slot before the credit that allows the slot's next writer.
        let carried = self.0.words.load_u64(CARRIED_AT, Ordering::Acquire).expect(OWN);
        if carried >> 1 <= number {
            return None;
        }
        if carried & 1 == 0 {
            return Some(Outcome::Done);
        }
        // Relaxed: it was stored before the word above.
        Some(match self.state(number, Ordering::Relaxed) {
            UNDONE => Outcome::Undone,
            PANICKED => Outcome::Panicked,
            _ => Outcome::Done,
        })
    }

    /// The thread's: carries piece `number` out if it is posted; says whether it was.
    pub(crate) fn carry_out(&self, number: u64, room: &mut Vec<u8>) -> bool {
        // Relaxed: an idle look. Taking it acquires: the piece's words and whatever the engine saw before it posted.
        if self.state(number, Ordering::Relaxed) != POSTED || !self.moved_on(number, TAKEN) {
            return false;
        }
        let words = [1, 2, 3].map(|i| {
            self.0.words.load_u64(Self::at(number) + i * 8, Ordering::Relaxed).expect(OWN)
        });
        let outcome = {
            let ends = self.ends();
            ends.as_ref().map_or(Outcome::Undone, |ends| ends.contained(Piece::of(words), room))
        };
        let before = self.0.words.load_u64(CARRIED_AT, Ordering::Relaxed).expect(OWN);
        let state = match outcome {
            Outcome::Done => TAKEN,
            Outcome::Undone => UNDONE,
            Outcome::Panicked => PANICKED,
        };
        if state != TAKEN {
            self.set(number, state, Ordering::Relaxed);
        }
        let carried = (number + 1) << 1 | before & 1 | u64::from(state != TAKEN);
        // Release: the copy, for the engine and through its CQE for everyone; and the reads that it was made from.
        self.0.words.store_u64(CARRIED_AT, carried, Ordering::Release).expect(OWN);
        true
    }
}

/// Words of the library's own host memory, in bounds and aligned.
const OWN: &str = "a mailbox has its words";

/// Zeros for so many mailboxes.
pub(crate) fn words(mailboxes: usize) -> Result<Vec<View>, MemError> {
    let mem = bellpush_mem::HostMem::alloc(mailboxes * MAILBOX_BYTES)?;
    (0..mailboxes).map(|i| View::new(&mem, i * MAILBOX_BYTES, MAILBOX_BYTES)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_mem::HostMem;
    use bellpush_mem::model::{Shape, explore};
    use std::collections::VecDeque;

    const BYTES: usize = 64;

    /// Two pieces of 64 bytes. The engine takes one back if it can; it looks at what was written when the mailbox says
    /// that it was, and writes the source again, as who gets the credit does.
    #[test]
    fn under_loom_a_piece_is_copied_once_and_before_it_is_done() {
        explore(3, || {
            let words = HostMem::modelled(MAILBOX_BYTES, Shape::Guarded);
            let words = View::new(&words, 0, MAILBOX_BYTES).unwrap();
            for at in (0..2 * LINE_BYTES).step_by(8).chain([CARRIED_AT]) {
                words.load_u64(at, Ordering::Relaxed).unwrap();
            }
            let mailbox = Mailbox::new(words);
            let data = HostMem::modelled(4 * BYTES, Shape::Guarded);
            let [from, to] = [0, 2].map(|at| View::new(&data, at * BYTES, 2 * BYTES).unwrap());
            from.write(0, &[7; BYTES]).unwrap();
            from.write(BYTES, &[9; BYTES]).unwrap();
            let ends = Ends::Memory { from: Arc::new(from.clone()), to: Arc::new(to.clone()) };
            mailbox.give(Some(ends.clone()));
            let theirs = mailbox.clone();
            let thread = loom::thread::spawn(move || {
                let (mut next, mut room) = (0, Vec::new());
                for _ in 0..2 {
                    next += u64::from(theirs.carry_out(next, &mut room));
                    loom::thread::yield_now();
                }
            });
            let piece = |i| Piece { from: i * 64, to: i * 64, bytes: 64, each: 0 };
            for i in 0..2 {
                mailbox.post(i, piece(i));
            }
            let mut room = Vec::new();
            let mut open = VecDeque::from([0, 1]);
            while let Some(newest) = open.pop_back() {
                if mailbox.take_back(newest) {
                    assert_eq!(ends.contained(piece(newest), &mut room), Outcome::Done);
                } else {
                    open.push_back(newest);
                    break;
                }
            }
            for i in open {
                while mailbox.outcome(i).is_none_or(|outcome| outcome != Outcome::Done) {
                    loom::thread::yield_now();
                }
            }
            let mut got = [0; 2 * BYTES];
            to.read(0, &mut got).unwrap();
            assert_eq!((&got[..BYTES], &got[BYTES..]), (&[7; BYTES][..], &[9; BYTES][..]));
            from.write(0, &[1; 2 * BYTES]).unwrap();
            thread.join().unwrap();
        });
    }

    #[test]
    fn the_newest_comes_back_until_it_is_begun() {
        let mailbox = Mailbox::new(words(1).unwrap().remove(0));
        let view = |bytes| View::new(&HostMem::alloc(bytes).unwrap(), 0, bytes).unwrap();
        let (from, to) = (view(4096), view(4096));
        from.write(0, &[5; 300]).unwrap();
        mailbox.give(Some(Ends::Memory { from: Arc::new(from), to: Arc::new(to.clone()) }));
        let mut room = Vec::new();
        assert!(!mailbox.carry_out(0, &mut room), "nothing is posted");
        for number in 0..DEPTH as u64 {
            let at = number * 100;
            mailbox.post(number, Piece { from: at, to: at, bytes: 100, each: 0 });
        }
        let last = DEPTH as u64 - 1;
        assert!(mailbox.take_back(last) && !mailbox.take_back(last));
        assert!(mailbox.carry_out(0, &mut room) && !mailbox.carry_out(0, &mut room));
        assert!(!mailbox.take_back(0));
        assert_eq!((mailbox.outcome(0), mailbox.outcome(1)), (Some(Outcome::Done), None));
        let mut got = [0; 101];
        to.read(0, &mut got).unwrap();
        assert_eq!((got[..100].to_vec(), got[100]), (vec![5; 100], 0));
    }
}
