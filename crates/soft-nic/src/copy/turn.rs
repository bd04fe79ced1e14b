//! Whose slots of a run are next.

use std::sync::atomic::Ordering;

use crate::copy::pause;
use bellpush_mem::{Dma, View};

/// What the word says when the run has ended. No ticket comes so far.
const CLOSED: u64 = u64::MAX;
/// Looks of a thread at the word before it gives up: the one before it joins several slots, or does not run.
const LOOKS: u32 = 1 << 16;

/// The ticket of the slot below which all slots of a run were seen to be what the run expects. One for each engine, as a
/// word of memory of the NIC's own.
#[derive(Clone)]
pub(crate) struct Turn(View);

impl Turn {
    pub(crate) fn new(word: View) -> Self {
        Self(word)
    }

    /// Begins a run at a ticket. No thread has a piece.
    pub(crate) fn begin(&self, ticket: u64) {
        self.0.store_u64(0, ticket, Ordering::Release).expect(OWN);
    }

    pub(crate) fn is_at(&self, ticket: u64) -> bool {
        self.0.load_u64(0, Ordering::Acquire).expect(OWN) == ticket
    }

    /// Ends the run: who has not had its turn gets none. One who has may still write.
    pub(crate) fn close(&self) {
        let mut at = self.0.load_u64(0, Ordering::Acquire).expect(OWN);
        // Each try that fails has had a piece pass.
        while at != CLOSED {
            let found = self.0.compare_swap(0, at, CLOSED).expect(OWN);
            at = if found == at { CLOSED } else { found };
        }
    }

    /// Waits until it is the turn of the slot of a ticket, and has the slot `next` follow, or none: says whether it was.
    pub(crate) fn pass(&self, ticket: u64, next: Option<u64>) -> bool {
        let mut looks = 0;
        for _ in 0..LOOKS {
            if let Some(was) = self.passes(ticket, next) {
                return was;
            }
            pause(&mut looks);
        }
        self.close();
        false
    }

    /// A look of it; `None` when others come first. Release and acquire: who comes next writes after the looks of all
    /// before it.
    fn passes(&self, ticket: u64, next: Option<u64>) -> Option<bool> {
        match self.0.load_u64(0, Ordering::Acquire).expect(OWN) {
            // The engine may close the run meanwhile, and that stands.
            at if at == ticket => {
                let next = next.unwrap_or(CLOSED);
                Some(self.0.compare_swap(0, ticket, next).expect(OWN) == ticket)
            }
            CLOSED => Some(false),
            _ => None,
        }
    }
}

/// A word of the library's own host memory, aligned.
const OWN: &str = "a run has its word";

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_mem::HostMem;
    use bellpush_mem::model::{Shape, explore};

    /// Two pieces, the second of which finds something else: it has its turn behind the first one's look, and nobody has
    /// one behind it. The engine may end the run at any time.
    #[test]
    fn under_loom_nobody_writes_before_its_turn() {
        for engine_ends_it in [false, true] {
            explore(3, move || {
                let words = HostMem::modelled(128, Shape::Guarded);
                let turn = Turn::new(View::new(&words, 0, 64).unwrap());
                let seen = View::new(&words, 64, 64).unwrap();
                turn.begin(4);
                seen.store_u64(0, 0, Ordering::Relaxed).unwrap();
                let until = |turn: &Turn, ticket, next| loop {
                    if let Some(was) = turn.passes(ticket, next) {
                        break was;
                    }
                    loom::thread::yield_now();
                };
                let (theirs, said) = (turn.clone(), seen.clone());
                let first = loom::thread::spawn(move || {
                    said.store_u64(0, 1, Ordering::Relaxed).unwrap();
                    until(&theirs, 4, Some(6))
                });
                if engine_ends_it {
                    turn.close();
                }
                if until(&turn, 6, None) {
                    assert_eq!(seen.load_u64(0, Ordering::Relaxed).unwrap(), 1, "before its turn");
                    assert!(!engine_ends_it);
                }
                assert!(!until(&turn, 8, Some(10)), "behind the end");
                assert!(first.join().unwrap() || engine_ends_it);
            });
        }
    }
}
