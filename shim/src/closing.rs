//! Hooks of what closes descriptors: `close`, `close_range`, `closefrom`, `dup2`, `dup3`.
//!
//! A program's descriptor of a device stands for all that was made through it. The device's own
//! descriptors, of which the program does not know, are as if they were not there: closing one
//! answers `EBADF`, and `dup2` onto one `EBUSY`. (`fcntl` only duplicates to numbers that are free.)
//!
//! `close`, `dup2` and `dup3` are called in signal handlers, and between `vfork` and `exec`: for
//! descriptors that are not ours they allocate nothing and wait for nobody. A child that did not
//! come of `fork` has its parent's state, and perhaps its memory, and closes without touching it.

use std::ffi::{c_int, c_uint};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bellpush_mem::hidden::{hidden_in, is_hidden};

use crate::drive::Inside;
use crate::hooks::{answer, set_errno};
use crate::process;
use crate::real;

/// Whether a descriptor is one that the program must leave alone.
fn is_denied(fd: RawFd) -> bool {
    is_hidden(fd) && process::own().is_some()
}

/// A descriptor is about to be closed.
fn closing(fd: RawFd) {
    if let Some(process) = process::process().filter(|process| !process.files.is_empty())
        && process.is_here()
    {
        let closing = || {
            let _inside = Inside::enter();
            process.closing(fd)
        };
        let _ = catch_unwind(AssertUnwindSafe(closing)); // the descriptor goes whatever happens
    }
}

#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    if is_denied(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    closing(fd);
    // SAFETY: the program's own argument.
    unsafe { real::close(fd) }
}

/// Has `dup` put another file behind a descriptor. What the one before stands for goes when that was
/// done, and stays if it failed. It is known by its file: that the number is the program's meanwhile
/// leads nobody to it.
fn replace(old: RawFd, new: RawFd, dup: impl FnOnce() -> c_int) -> c_int {
    if old == new {
        return dup();
    }
    if is_denied(new) {
        set_errno(libc::EBUSY);
        return -1;
    }
    let process = process::process().filter(|it| !it.files.is_empty() && it.is_here());
    let before = process.and_then(|process| {
        catch_unwind(AssertUnwindSafe(|| Some((process, process.ours(new)?)))).unwrap_or(None)
    });
    let done = dup();
    if let Some((process, id)) = before.filter(|_| done >= 0) {
        let _ = catch_unwind(AssertUnwindSafe(|| process.replaced(id))); // it is done all the same
    }
    done
}

#[unsafe(no_mangle)]
extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    replace(old, new, || unsafe { real::dup2(old, new) })
}

#[unsafe(no_mangle)]
extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    replace(old, new, || unsafe { real::dup3(old, new, flags) })
}

/// The system call: libc before 2.34 has no function.
fn system_close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the program's own arguments, or a part of the range that it named.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int }
}

#[unsafe(no_mangle)]
extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // With a flag, nothing of this process's is closed: later, or in a table of the thread's own.
    if flags != 0 || first > last || process::own().is_none() {
        return system_close_range(first, last, flags);
    }
    answer(|| {
        let end = c_int::try_from(last).unwrap_or(c_int::MAX);
        let begin = c_int::try_from(first).unwrap_or(c_int::MAX);
        let ours = process::own().map(|process| process.ours_in(begin..=end));
        for fd in ours.into_iter().flatten() {
            close(fd);
        }
        let part = |first, last| match system_close_range(first, last, 0) {
            0 => Ok(0),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        };
        let mut next = first;
        for kept in hidden_in(begin..=end) {
            let kept = kept.cast_unsigned();
            if kept > next {
                part(next, kept - 1)?;
            }
            next = kept + 1;
        }
        if next <= last { part(next, last) } else { Ok(0) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn closefrom(low: c_int) {
    let low = low.max(0);
    if close_range(low.cast_unsigned(), c_uint::MAX, 0) == 0 {
        return;
    }
    // A system without close_range (Linux before 5.9).
    // SAFETY: asks for a limit.
    let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    for fd in low..c_int::try_from(limit).unwrap_or(c_int::MAX) {
        close(fd);
    }
}
