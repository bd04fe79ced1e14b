//! UAR pages as an engine watches them.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use super::cq::Cq;
use crate::mem::{MemError, View};
use crate::wire::doorbell::{UAR_BF1_OFFSET, UAR_CQ_DOORBELL_OFFSET, UAR_DOORBELL_OFFSET};

/// A UAR page and the queue pairs that ring there.
pub(super) struct Uar {
    page: View,
    /// The registers as last seen.
    seen: [u64; 2],
    /// Whether the second register is a BlueFlame buffer with check words.
    blueflame: bool,
    /// Slots of the queue pairs in the engine.
    pub(super) qps: Vec<usize>,
}

/// What a look at a page found.
pub(super) struct Rung {
    /// Registers that changed.
    pub(super) registers: [Option<u64>; 2],
}

impl Uar {
    pub(super) fn new(page: View, blueflame: bool, slot: usize) -> Self {
        Self { page, seen: [0; 2], blueflame, qps: vec![slot] }
    }

    /// Whether this is the page of that view, for plain doorbells.
    pub(super) fn is(&self, page: &View) -> bool {
        self.page.addr() == page.addr()
    }

    /// The registers as last seen.
    pub(super) fn seen(&self) -> [u64; 2] {
        self.seen
    }

    /// Takes over what an engine elsewhere has seen.
    pub(super) fn go_on(&mut self, seen: [u64; 2]) {
        self.seen = seen;
    }

    /// Empties the registers: a queue pair that starts over rings with the same bytes again, which
    /// would look like no change. What others rang meanwhile, the caller must look for.
    pub(super) fn clear(&mut self) -> Result<(), MemError> {
        for (offset, seen) in [UAR_DOORBELL_OFFSET, UAR_BF1_OFFSET].into_iter().zip(&mut self.seen)
        {
            self.page.store_u64(offset, 0, Ordering::Release)?;
            *seen = 0;
        }
        Ok(())
    }

    /// Looks at the two registers; an idle queue pair costs this and nothing else.
    pub(super) fn poll(&mut self) -> Option<Rung> {
        // Acquire: what the ringer stored before the register (WQE, doorbell record) is visible to
        // the loads that follow a changed register.
        let load = |offset| self.page.load_u64(offset, Ordering::Acquire).unwrap_or(0);
        let first = load(UAR_DOORBELL_OFFSET);
        let second = load(UAR_BF1_OFFSET);
        let bell = first != self.seen[0];
        if self.blueflame {
            // The engine clears the buffer itself; while anything is in it, it is worth a look.
            self.seen[0] = first;
            let rung = Rung { registers: [bell.then_some(first), None] };
            return (bell || second != 0).then_some(rung);
        }
        let bell1 = second != self.seen[1];
        self.seen = [first, second];
        let rung = Rung { registers: [bell.then_some(first), bell1.then_some(second)] };
        (bell || bell1).then_some(rung)
    }
}

/// A UAR page as the consumers of CQs ring there to arm them.
pub(super) struct ArmPage {
    page: View,
    seen: u64,
    cqs: Vec<Weak<Cq>>,
}

impl ArmPage {
    pub(super) fn new(page: View) -> Self {
        Self { page, seen: 0, cqs: Vec::new() }
    }

    pub(super) fn is(&self, page: &View) -> bool {
        self.page.addr() == page.addr()
    }

    /// Whether any of its CQs is still there.
    pub(super) fn is_needed(&self) -> bool {
        self.cqs.iter().any(|cq| cq.strong_count() > 0)
    }

    pub(super) fn add(&mut self, cq: Weak<Cq>) {
        self.cqs.retain(|cq| cq.strong_count() > 0);
        self.cqs.push(cq);
    }

    /// Has the page's CQs answer when the register changed: one of several rings survives there,
    /// the records tell the rest.
    pub(super) fn poll(&mut self) {
        // Acquire: the arm record was written before.
        let word = self.page.load_u64(UAR_CQ_DOORBELL_OFFSET, Ordering::Acquire).unwrap_or(0);
        if word != self.seen {
            self.seen = word;
            self.cqs.iter().filter_map(Weak::upgrade).for_each(|cq| cq.armed());
        }
    }
}
