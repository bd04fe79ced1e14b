//! The mark of handlers in a thread's signal mask, and what the program sees and sets of it.
//!
//! Every handler of the program's runs with [`HANDLER`] blocked, a signal that Linux never sends, so that a doorbell
//! that is caught knows that it may have interrupted `malloc` (`trap`). The system takes the mark away where the
//! handler ends, as it brings the interrupted code's mask back. A handler that lets all signals through keeps the
//! mark, and does not see it. Where the program blocks that signal itself, as who blocks all does, it is the program's:
//! each thread knows what it has asked for. Of a thread other than the main one that is known once it has been outside of
//! handlers for the first time that anybody looks at its mask; before that, the mark is taken for the program's.

use std::cell::Cell;
use std::ffi::c_int;

use bellpush_mem::guarded::HANDLER;

/// What a thread is known to have asked for of [`HANDLER`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Nothing is known: it may have been blocked when the thread began.
    Unknown,
    /// That it is blocked, or not.
    Blocked(bool),
}

thread_local! {
    static ASKED: Cell<Asked> = const { Cell::new(Asked::Unknown) };
}

/// The calling thread is in no handler and has this mask.
pub fn is_outside(mask: u64) {
    ASKED.set(Asked::Blocked(mask & HANDLER != 0));
}

/// The calling thread has this mask. Without a mark it is in no handler.
pub fn seen(mask: u64) {
    if mask & HANDLER == 0 {
        is_outside(mask);
    }
}

/// What the calling thread has asked for.
pub fn asked() -> Asked {
    ASKED.get()
}

/// A change of a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The set that the system is given.
    pub set: u64,
    /// Whether a mark was there, which the program does not see.
    pub is_marked: bool,
}

/// Whether what a change does depends on the mask that was there.
pub fn depends(how: c_int, set: u64, asked: Asked) -> bool {
    let takes = match how {
        libc::SIG_UNBLOCK => set & HANDLER != 0,
        libc::SIG_SETMASK => set & HANDLER == 0,
        _ => false,
    };
    takes && asked != Asked::Blocked(true)
}

/// What becomes of a change in a thread with this mask.
pub fn change(how: c_int, set: u64, mask: u64, asked: Asked) -> Change {
    let is_marked = mask & HANDLER != 0 && asked == Asked::Blocked(false);
    let set = match how {
        libc::SIG_UNBLOCK if is_marked => set & !HANDLER,
        libc::SIG_SETMASK if is_marked => set | HANDLER,
        _ => set,
    };
    Change { set, is_marked }
}

/// The calling thread has changed its mask from one to another, and not a mark in it.
pub fn changed(how: c_int, set: u64, mask: u64) {
    is_outside(match how {
        libc::SIG_BLOCK => mask | set,
        libc::SIG_UNBLOCK => mask & !set,
        _ => set,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: u64 = 1 << 13;

    #[test]
    fn a_handler_keeps_its_mark_whatever_it_lets_through() {
        let (mask, asked) = (HANDLER | OTHER, Asked::Blocked(false));
        for (how, set, given) in [
            (libc::SIG_SETMASK, 0, HANDLER),
            (libc::SIG_SETMASK, OTHER, OTHER | HANDLER),
            (libc::SIG_UNBLOCK, u64::MAX, !HANDLER),
            (libc::SIG_UNBLOCK, OTHER, OTHER),
            (libc::SIG_BLOCK, OTHER, OTHER),
        ] {
            assert_eq!(change(how, set, mask, asked), Change { set: given, is_marked: true });
        }
        assert!(
            depends(libc::SIG_SETMASK, 0, asked) && depends(libc::SIG_UNBLOCK, u64::MAX, asked)
        );
        assert!(!depends(libc::SIG_SETMASK, u64::MAX, asked));
        assert!(!depends(libc::SIG_UNBLOCK, OTHER, asked) && !depends(libc::SIG_BLOCK, 0, asked));
    }

    #[test]
    fn what_the_program_blocks_itself_it_lets_through_itself() {
        for asked in [Asked::Blocked(true), Asked::Unknown] {
            for (how, set) in [(libc::SIG_SETMASK, 0), (libc::SIG_UNBLOCK, u64::MAX)] {
                let as_is = Change { set, is_marked: false };
                assert_eq!(change(how, set, u64::MAX, asked), as_is);
            }
        }
        let as_is = Change { set: 0, is_marked: false };
        assert_eq!(change(libc::SIG_SETMASK, 0, OTHER, Asked::Blocked(false)), as_is);
        // Blocks all, and lets through what it let through before.
        changed(libc::SIG_BLOCK, u64::MAX, OTHER);
        assert_eq!(super::asked(), Asked::Blocked(true));
        changed(libc::SIG_SETMASK, OTHER, u64::MAX);
        assert_eq!(super::asked(), Asked::Blocked(false));
        changed(libc::SIG_SETMASK, HANDLER, OTHER);
        changed(libc::SIG_UNBLOCK, HANDLER, HANDLER);
        assert_eq!(super::asked(), Asked::Blocked(false));
    }
}
