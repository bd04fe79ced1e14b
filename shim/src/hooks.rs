//! What is interposed.
//!
//! Hooks run before anything is initialised, inside `malloc` and `dlopen`, and in programs that
//! have nothing to do with verbs: on the way to libc's function they allocate nothing and take no
//! lock, unless the path or the descriptor is one of ours, and need little stack: programs call
//! them in signal handlers. No panic leaves them.
//!
//! Static and setuid programs, and libraries loaded with `RTLD_DEEPBIND`, do not come here.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::abi::ids::IOCTL_MAGIC;
use crate::context::Context;
use crate::drive::Inside;
use crate::files::Kind;
use crate::process::{self, process};
use crate::real;
use crate::tree::{Target, rdev};

/// Runs when the object is loaded, after libc's own initialisation.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        let _ = catch_unwind(process::start); // without it there is no device
    }
    start
};

/// Runs when the process ends in order.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = {
    extern "C" fn end() {
        // A child that was made past `fork` leaves the files to its parent.
        let remove = || process::own().map(|process| process.tree.remove());
        let _ = catch_unwind(remove); // nobody is left to be told
    }
    end
};

pub fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// The value, or -1 with its errno; a panic is `EIO`.
pub fn answer(body: impl FnOnce() -> Result<c_int, c_int>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(libc::EIO));
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// # Safety
/// `path` is a C string, or null.
unsafe fn target<'a>(path: *const c_char) -> Target<'a> {
    // SAFETY: as the caller promises.
    process().map_or(Target::Foreign, |process| unsafe { process.tree.target(path) })
}

/// A file of the tree is opened.
fn opening(inside: &CStr) {
    let path = Path::new(OsStr::from_bytes(inside.to_bytes()));
    let opening = || process::own().map(|process| process.opening(path));
    let _ = catch_unwind(opening); // the file shows what it showed before
}

/// Opens a device.
fn open_device(index: usize, flags: c_int) -> c_int {
    answer(|| {
        let process = process().ok_or(libc::ENOENT)?;
        if !process.is_here() {
            return Err(libc::EIO);
        }
        if index >= process.options.devices {
            return Err(libc::ENOENT);
        }
        let opened = Context::open(process, index, flags & libc::O_CLOEXEC != 0);
        let file = opened.map_err(|refusal| {
            process::say(&format!("mlx5_{index} cannot be opened: {refusal}"));
            refusal.errno()
        })?;
        Ok(file.into_raw_fd())
    })
}

/// Calls libc's function with the path that a path of ours leads to; of a character device, with that
/// of the file that stands for it.
///
/// # Safety
/// `path` is a C string, or null.
unsafe fn redirect<R>(path: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: as the caller promises.
    match unsafe { target(path) } {
        Target::Foreign => call(path),
        Target::File(inside) | Target::Uverbs(_, inside) => inside.with(|inside| {
            opening(inside);
            call(inside.as_ptr())
        }),
    }
}

/// Declares hooks of functions that take a path: the hook, its arguments before the path, those
/// behind it, and the function of `real`.
macro_rules! hook_paths {
    ($($name:ident = $real:ident [$($before:ident: $b:ty),*] path [$($after:ident: $a:ty),*]
        -> $ret:ty;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($before: $b,)* path: *const c_char, $($after: $a),*) -> $ret {
            // SAFETY: the program's own arguments, of which the path may be replaced.
            unsafe { redirect(path, |path| real::$real($($before,)* path $(, $after)*)) }
        }
    )*};
}
hook_paths! {
    opendir = opendir [] path [] -> *mut libc::DIR;
    fopen = fopen [] path [mode: *const c_char] -> *mut libc::FILE;
    fopen64 = fopen [] path [mode: *const c_char] -> *mut libc::FILE;
    access = access [] path [mode: c_int] -> c_int;
    readlink = readlink [] path [buf: *mut c_char, size: usize] -> isize;
    realpath = realpath [] path [buf: *mut c_char] -> *mut c_char;
    statx = statx [dir: c_int] path [flags: c_int, mask: u32, buf: *mut libc::statx] -> c_int;
}

/// Opens a path.
///
/// # Safety
/// `path` is a C string, or null.
unsafe fn open_path(dir: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: as the caller promises; what is not ours goes to libc as it came.
    unsafe {
        match target(path) {
            Target::Uverbs(index, _) => open_device(index, flags),
            Target::File(inside) => inside.with(|inside| {
                opening(inside);
                real::openat(dir, inside.as_ptr(), flags, mode)
            }),
            Target::Foreign => real::openat(dir, path, flags, mode),
        }
    }
}

/// Declares hooks that open; those without a mode are what `_FORTIFY_SOURCE` makes of such calls.
macro_rules! hook_opens {
    ($($name:ident ($($dir:ident)?) ($($mode:ident)?);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            $($dir: c_int,)?
            path: *const c_char,
            flags: c_int,
            $($mode: libc::mode_t,)?
        ) -> c_int {
            let dir = libc::AT_FDCWD $(- libc::AT_FDCWD + $dir)?;
            let mode = 0 $(+ $mode)?;
            // SAFETY: the program's own arguments.
            unsafe { open_path(dir, path, flags, mode) }
        }
    )*};
}
hook_opens! {
    open () (mode); open64 () (mode); __open_2 () (); __open64_2 () ();
    openat (dir) (mode); openat64 (dir) (mode); __openat_2 (dir) (); __openat64_2 (dir) ();
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
        match target(path) {
            Target::Foreign => real::fstatat(dir, path, buf, flags),
            Target::File(inside) => {
                inside.with(|inside| real::fstatat(dir, inside.as_ptr(), buf, flags))
            }
            Target::Uverbs(index, inside) => {
                let done = inside.with(|inside| real::fstatat(dir, inside.as_ptr(), buf, flags));
                as_device(done, buf, rdev(index))
            }
        }
    }
}

/// The status of a descriptor.
///
/// # Safety
/// As `fstat`.
unsafe fn stat_fd(fd: c_int, buf: *mut libc::stat) -> c_int {
    // SAFETY: as the caller promises.
    let done = unsafe { real::fstat(fd, buf) };
    let find = || {
        let process = process().filter(|process| done == 0 && !process.files.is_empty())?;
        // SAFETY: `done` says that the buffer is filled.
        process.rdev(unsafe { ((*buf).st_dev, (*buf).st_ino) })
    };
    match catch_unwind(AssertUnwindSafe(find)) {
        // SAFETY: `done` says whether the buffer is filled.
        Ok(Some(number)) => unsafe { as_device(done, buf, number) },
        _ => done,
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
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            dir: c_int,
            path: *const c_char,
            buf: *mut libc::stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                let empty = flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || *path == 0);
                if empty { stat_fd(dir, buf) } else { stat_path(dir, path, buf, flags) }
            }
        }
    )*};
}
hook_stats_at! { fstatat fstatat64 }

/// Discovery by netlink would find the machine's own devices: without it libibverbs reads sysfs.
#[unsafe(no_mangle)]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    const NETLINK_RDMA: c_int = 20;
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && process().is_some() {
        return answer(|| Err(libc::EPROTONOSUPPORT));
    }
    // SAFETY: the program's own arguments.
    unsafe { real::socket(domain, kind, protocol) }
}

#[unsafe(no_mangle)]
extern "C" fn ioctl(fd: c_int, request: libc::c_ulong, arg: *mut c_void) -> c_int {
    // The request's upper half is not part of it.
    let request = request & 0xffff_ffff;
    if request >> 8 & 0xff == IOCTL_MAGIC
        && let Some(process) = process()
    {
        let kind = catch_unwind(AssertUnwindSafe(|| process.find(fd))).unwrap_or(None);
        match kind {
            Some(Kind::Device(context)) => {
                let _inside = Inside::enter();
                return answer(|| context.ioctl(process, fd, request, arg as u64).map(|()| 0));
            }
            Some(Kind::Inherited { .. }) => return answer(|| Err(libc::EIO)),
            Some(Kind::Events(_)) | None => {}
        }
    }
    // SAFETY: the program's own arguments.
    unsafe { real::ioctl(fd, request, arg) }
}
