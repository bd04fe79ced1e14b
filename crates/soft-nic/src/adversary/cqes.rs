//! Completions that come late: kind `cqe`.
//!
//! Entries of a CQ wait in their order; those of several CQs pass each other. A full CQ is noticed when the completion
//! happens, as ever.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::{State, lock, wait_ns};
use crate::link::Rng;
use crate::objects::cq::{Cq, Overrun};
use bellpush_wire::cqe::Cqe;

/// Entries of a CQ that are not written yet. Its lock is held by whoever writes an entry.
pub(crate) struct Late {
    state: Arc<State>,
    waiting: Mutex<Waiting>,
}

struct Waiting {
    entries: VecDeque<(u64, Cqe)>,
    rng: Rng,
}

impl Late {
    pub(crate) fn new(state: &Arc<State>) -> Self {
        let waiting = Waiting { entries: VecDeque::new(), rng: state.stream() };
        Self { state: state.clone(), waiting: Mutex::new(waiting) }
    }

    /// Takes an entry that is to be written, now or later.
    pub(crate) fn push(&self, cq: &Cq, cqe: &Cqe) -> Result<(), Overrun> {
        let mut waiting = lock(&self.waiting);
        let Waiting { entries, rng } = &mut *waiting;
        let wait = wait_ns(rng);
        if entries.is_empty() && wait == 0 {
            return cq.push_now(cqe);
        }
        cq.has_room_behind(entries.len() as u64)?;
        let due = self.state.now_ns() + wait;
        let due = entries.back().map_or(due, |&(last, _)| due.max(last));
        entries.push_back((due, *cqe));
        Ok(())
    }

    /// Writes the entries that are due; says when more are.
    pub(crate) fn release(&self, cq: &Cq, now_ns: u64) -> Option<u64> {
        lock(&self.waiting).release(cq, now_ns)
    }

    /// Writes all entries and does something before the next one comes.
    pub(crate) fn without_any<R>(&self, cq: &Cq, then: impl FnOnce() -> R) -> R {
        let mut waiting = lock(&self.waiting);
        waiting.release(cq, u64::MAX);
        then()
    }
}

impl Waiting {
    fn release(&mut self, cq: &Cq, now_ns: u64) -> Option<u64> {
        while let Some(&(due, cqe)) = self.entries.front() {
            if due > now_ns {
                return Some(due);
            }
            self.entries.pop_front();
            // There was room, and consumer indices do not go back; in memory that is gone it fails, which is told.
            let _ = cq.push_now(&cqe);
        }
        None
    }
}
