//! Tells a process from its children without a system call.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::PAGE_BYTES;

/// A mark that the children of the process that made it do not have, also those that no handler of a fork has seen: its
/// page is empty in a child (`MADV_WIPEONFORK`, Linux 4.14). A child of `vfork` has the page itself.
pub struct Here(AtomicPtr<AtomicU32>);

impl Here {
    /// A mark of this process.
    pub fn of_this_process() -> Self {
        let (rights, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, of which nothing is used unless the system wipes it in children.
        let page = unsafe {
            let page = libc::mmap(std::ptr::null_mut(), PAGE_BYTES, rights, kind, -1, 0);
            let is_there = page != libc::MAP_FAILED;
            match is_there && libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) == 0 {
                true => page.cast::<AtomicU32>(),
                false => std::ptr::null_mut(),
            }
        };
        // SAFETY: null, or a page that stays as long as this.
        if let Some(word) = unsafe { page.as_ref() } {
            word.store(1, Ordering::Relaxed);
        }
        Self(AtomicPtr::new(page))
    }

    /// Whether it is this process's: false also where the system has no such pages.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.word().is_some_and(|word| word.load(Ordering::Relaxed) == 1)
    }

    /// Whether this is a child of the process that made it, as far as the system has such pages.
    #[inline]
    pub fn is_child(&self) -> bool {
        self.word().is_some_and(|word| word.load(Ordering::Relaxed) != 1)
    }

    #[inline]
    fn word(&self) -> Option<&AtomicU32> {
        // SAFETY: null, or a page that stays as long as this.
        unsafe { self.0.load(Ordering::Relaxed).as_ref() }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        let page = *self.0.get_mut();
        if !page.is_null() {
            // SAFETY: its own page, of which a child has a copy; nobody else has its address.
            unsafe { libc::munmap(page.cast(), PAGE_BYTES) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_no_handler_of_a_fork_saw_is_told_apart() {
        let here = Here::of_this_process();
        assert!(here.is_here() && !here.is_child());
        let mut status = 0;
        // SAFETY: the child looks at a word and ends.
        unsafe {
            let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t;
            if child == 0 {
                libc::_exit((here.is_here() || !here.is_child()).into());
            }
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
        }
        assert_eq!(status, 0);
        assert!(here.is_here() && !here.is_child());
    }

    /// Without such pages nobody is known to be the process, nor to be a child.
    #[test]
    fn a_system_without_such_pages_tells_nothing() {
        let none = Here(AtomicPtr::new(std::ptr::null_mut()));
        assert!(!none.is_here() && !none.is_child());
    }
}
