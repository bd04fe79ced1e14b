//! The status of what is interposed: files of the tree, and descriptors that stand for devices (`stat`, `fstat`, `statx`).

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::hooks::target;
use crate::layout::rdev;
use crate::process::{self, Process, process};
use crate::real;
use crate::tree::{self, Inside, Target};

/// Looks at a file of the tree; once more where whoever made the tree has taken it along.
fn look(inside: &Inside<'_>, mut call: impl FnMut(*const c_char) -> c_int) -> c_int {
    inside.with(|inside| {
        let done = call(inside.as_ptr());
        // SAFETY: the calling thread's own.
        if done == 0 || unsafe { *libc::__errno_location() } != libc::ENOENT {
            return done;
        }
        let stay = || process::own().map(Process::stay);
        let _ = catch_unwind(stay); // the second look says what came of it
        call(inside.as_ptr())
    })
}

/// Makes a status that was filled in that of a character device.
///
/// # Safety
/// `buf` holds a status if `done` is 0.
unsafe fn as_device(done: c_int, buf: *mut libc::stat, number: u64) -> c_int {
    if done == 0 {
        // SAFETY: as the caller promises.
        unsafe {
            (*buf).st_mode = libc::S_IFCHR | 0o666;
            (*buf).st_rdev = number;
            (*buf).st_size = 0;
        }
    }
    done
}

/// The status of a path.
///
/// # Safety
/// As `fstatat`.
unsafe fn stat_path(dir: c_int, path: *const c_char, buf: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let stat = |path: *const c_char| real::fstatat(dir, path, buf, flags);
        match target(dir, path) {
            Target::Foreign => stat(path),
            Target::File(inside) | Target::List(inside) => look(&inside, stat),
            Target::Uverbs(index, inside) => as_device(look(&inside, stat), buf, rdev(index)),
            Target::RdmaCm(inside) => as_device(look(&inside, stat), buf, tree::RDMA_CM),
        }
    }
}

/// The number of the device that a descriptor of this status stands for, if it does.
fn device_behind(status: &libc::stat) -> Option<u64> {
    let find = || {
        let process = process().filter(|process| !process.files.is_empty())?;
        process.rdev((status.st_dev, status.st_ino))
    };
    catch_unwind(AssertUnwindSafe(find)).ok().flatten()
}

/// The status of a descriptor.
///
/// # Safety
/// As `fstat`.
unsafe fn stat_fd(fd: c_int, buf: *mut libc::stat) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let done = real::fstat(fd, buf);
        // It is filled in where that was done.
        let number = (done == 0).then(|| device_behind(&*buf)).flatten();
        number.map_or(done, |number| as_device(done, buf, number))
    }
}

/// Declares hooks for the status of a path. Those with a version are of programs built for glibc
/// before 2.33; on 64-bit machines there is one version of the struct.
macro_rules! hook_stats {
    ($($name:ident ($($version:ident)?) $flags:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            $($version: c_int,)?
            path: *const c_char,
            buf: *mut libc::stat,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { stat_path(libc::AT_FDCWD, path, buf, $flags) }
        }
    )*};
}
hook_stats! {
    stat () 0; stat64 () 0; __xstat (_version) 0; __xstat64 (_version) 0;
    lstat () libc::AT_SYMLINK_NOFOLLOW; lstat64 () libc::AT_SYMLINK_NOFOLLOW;
    __lxstat (_version) libc::AT_SYMLINK_NOFOLLOW; __lxstat64 (_version) libc::AT_SYMLINK_NOFOLLOW;
}

macro_rules! hook_fstats {
    ($($name:ident ($($version:ident)?);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($version: c_int,)? fd: c_int, buf: *mut libc::stat) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { stat_fd(fd, buf) }
        }
    )*};
}
hook_fstats! { fstat (); fstat64 (); __fxstat (_version); __fxstat64 (_version); }

macro_rules! hook_stats_at {
    ($($name:ident ($($version:ident)?);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            $($version: c_int,)?
            dir: c_int,
            path: *const c_char,
            buf: *mut libc::stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                if flags & libc::AT_EMPTY_PATH == 0 || !path.is_null() && *path != 0 {
                    return stat_path(dir, path, buf, flags);
                }
                let done = real::fstatat(dir, path, buf, flags);
                let number = (done == 0).then(|| device_behind(&*buf)).flatten();
                number.map_or(done, |number| as_device(done, buf, number))
            }
        }
    )*};
}
hook_stats_at! { fstatat (); fstatat64 (); __fxstatat (_version); __fxstatat64 (_version); }

/// What [`as_device`] makes of a status, of one by `statx`.
///
/// # Safety
/// `buf` holds one if `done` is 0.
unsafe fn as_device_x(done: c_int, buf: *mut libc::statx, number: u64) -> c_int {
    if done == 0 {
        // SAFETY: as the caller promises.
        unsafe {
            (*buf).stx_mode = (libc::S_IFCHR | 0o666) as u16;
            (*buf).stx_rdev_major = libc::major(number);
            (*buf).stx_rdev_minor = libc::minor(number);
            (*buf).stx_size = 0;
        }
    }
    done
}

#[unsafe(no_mangle)]
extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: u32,
    buf: *mut libc::statx,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        let call = |path| real::statx(dir, path, flags, mask, buf);
        if flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || *path == 0) {
            let mut status: libc::stat = std::mem::zeroed();
            let is_known = real::fstat(dir, &mut status) == 0;
            let number = is_known.then(|| device_behind(&status)).flatten();
            let done = call(path);
            return number.map_or(done, |number| as_device_x(done, buf, number));
        }
        match target(dir, path) {
            Target::Foreign => call(path),
            Target::File(inside) | Target::List(inside) => look(&inside, call),
            Target::Uverbs(index, inside) => as_device_x(look(&inside, call), buf, rdev(index)),
            Target::RdmaCm(inside) => as_device_x(look(&inside, call), buf, tree::RDMA_CM),
        }
    }
}
