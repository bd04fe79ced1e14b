//! Stacks of lanes. A thread keeps its stacks from launch to launch.
//!
//! Stacks start at different offsets of their pages: page-aligned stacks would share a few cache
//! sets with their hot ends, which makes every switch slower.
//!
//! Guard pages lie below a stack, enough for a kernel's large local array to not reach across them.
//! The library's own kernels touch each page as they descend (`-fstack-clash-protection`); a user's
//! kernels may not.

use std::cell::{Cell, RefCell};
use std::io;
use std::num::NonZeroUsize;

use corosensei::stack::{DefaultStack, Stack, StackPointer};

/// Most stacks that a thread keeps for its next launch.
const POOLED: usize = 2048;
/// Offset between two stacks that are made in sequence: a multiple of a cache line, and odd in
/// lines, so that all offsets of a page occur.
const STEP_BYTES: usize = 5 * 64;
const PAGE_BYTES: usize = 4096;
/// Bytes of guard pages below a stack, of address space only: a frame of up to this size cannot
/// cross them.
const GUARD_BYTES: usize = 1 << 20;

thread_local! {
    static POOL: RefCell<Vec<LaneStack>> = const { RefCell::new(Vec::new()) };
    static MADE: Cell<usize> = const { Cell::new(0) };
}

/// A guarded stack whose first `skip` bytes are left unused.
pub(super) struct LaneStack {
    stack: DefaultStack,
    skip: usize,
}

// SAFETY: the bounds are those of the stack with its guard pages. `take` adds the page of the
// skipped bytes and the guard, so the capacity is not reduced; the skip keeps the base's alignment.
unsafe impl Stack for LaneStack {
    fn base(&self) -> StackPointer {
        NonZeroUsize::new(self.stack.base().get() - self.skip).expect("inside the stack")
    }

    fn limit(&self) -> StackPointer {
        self.stack.limit()
    }
}

impl LaneStack {
    /// A stack of this thread's pool, or a new one, of at least `bytes`.
    pub(super) fn take(bytes: usize) -> io::Result<Self> {
        if let Some(stack) = POOL.with_borrow_mut(Vec::pop) {
            return Ok(stack);
        }
        let made = MADE.replace(MADE.get() + 1);
        // Twice what is added here: the stack adds pages of its own.
        let spare = 2 * (PAGE_BYTES + GUARD_BYTES);
        if bytes.checked_add(spare).is_none() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let stack = DefaultStack::new(bytes + PAGE_BYTES + GUARD_BYTES)?;
        // SAFETY: the lowest bytes of a fresh mapping of ours, which is longer; its lowest page is
        // already guarded.
        let guarded =
            unsafe { libc::mprotect(stack.limit().get() as *mut _, GUARD_BYTES, libc::PROT_NONE) };
        if guarded != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { stack, skip: made * STEP_BYTES % PAGE_BYTES })
    }

    /// Returns the stack to this thread's pool.
    pub(super) fn put(self) {
        POOL.with_borrow_mut(|pool| {
            if pool.len() < POOLED {
                pool.push(self);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_longer_than_memory_is_refused() {
        for short in [0, PAGE_BYTES, PAGE_BYTES + GUARD_BYTES, 3 * GUARD_BYTES] {
            assert!(LaneStack::take(usize::MAX - short).is_err(), "{short} less than all");
        }
    }

    #[test]
    fn a_large_frame_cannot_reach_over_the_guard() {
        let stack = LaneStack::take(64 << 10).unwrap();
        let (low, high) = (stack.limit().get(), stack.base().get());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let rights = |addr: usize| {
            maps.lines().find_map(|line| {
                let (range, rest) = line.split_once(' ')?;
                let (from, to) = range.split_once('-')?;
                let number = |hex| usize::from_str_radix(hex, 16).ok();
                (number(from)?..number(to)?).contains(&addr).then(|| rest[..3].to_owned())
            })
        };
        let first = (low..high).step_by(PAGE_BYTES).find(|&addr| rights(addr).unwrap() != "---");
        let first = first.expect("a stack");
        assert!(
            first - low >= 1 << 20,
            "{} bytes are less than a local array may have",
            first - low
        );
        assert!(high - first >= 64 << 10, "the stack is as long as asked for");
        assert_eq!(rights(first).as_deref(), Some("rw-"));
        assert_eq!(rights(high - 1).as_deref(), Some("rw-"));
    }
}
