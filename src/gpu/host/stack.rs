//! Stacks of lanes: kept by their thread from launch to launch, and begun at different offsets of
//! their pages. All stacks being page-aligned, their hot ends would otherwise share a few cache
//! sets, which costs a tenth of every switch.

use std::cell::{Cell, RefCell};
use std::io;
use std::num::NonZeroUsize;

use corosensei::stack::{DefaultStack, Stack, StackPointer};

/// Stacks that a thread keeps for its next launch.
const POOLED: usize = 2048;
/// Distance between the beginnings of two stacks made one after the other; a multiple of a cache
/// line, and odd in lines, so that all offsets of a page come round.
const STEP_BYTES: usize = 5 * 64;
const PAGE_BYTES: usize = 4096;

thread_local! {
    static POOL: RefCell<Vec<LaneStack>> = const { RefCell::new(Vec::new()) };
    static MADE: Cell<usize> = const { Cell::new(0) };
}

/// A guarded stack whose first `skip` bytes are left unused.
pub(super) struct LaneStack {
    stack: DefaultStack,
    skip: usize,
}

// SAFETY: the stack's own bounds with its guard page; `new` adds the page that the skipped bytes
// come from, so that the capacity is no less; the skip keeps the base's alignment.
unsafe impl Stack for LaneStack {
    fn base(&self) -> StackPointer {
        NonZeroUsize::new(self.stack.base().get() - self.skip).expect("inside the stack")
    }

    fn limit(&self) -> StackPointer {
        self.stack.limit()
    }
}

impl LaneStack {
    /// A pooled stack of this thread, or a new one of at least `bytes`.
    pub(super) fn take(bytes: usize) -> io::Result<Self> {
        if let Some(stack) = POOL.with_borrow_mut(Vec::pop) {
            return Ok(stack);
        }
        let made = MADE.replace(MADE.get() + 1);
        let stack = DefaultStack::new(bytes + PAGE_BYTES)?;
        Ok(Self { stack, skip: made * STEP_BYTES % PAGE_BYTES })
    }

    /// Back to this thread's pool.
    pub(super) fn put(self) {
        POOL.with_borrow_mut(|pool| {
            if pool.len() < POOLED {
                pool.push(self);
            }
        });
    }
}
