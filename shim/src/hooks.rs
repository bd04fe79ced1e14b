//! What is interposed.
//!
//! Hooks run before anything is initialised, inside `malloc` and `dlopen`, and in programs that
//! have nothing to do with verbs: on the way to libc's function they allocate nothing and take no
//! lock, unless the path or the descriptor is one of ours, and need little stack: programs call
//! them in signal handlers. No panic leaves them.
//!
//! Static and setuid programs, and libraries loaded with `RTLD_DEEPBIND`, do not come here.

use std::convert::Infallible;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::abi::ids::IOCTL_MAGIC;
use crate::context::Context;
use crate::dir;
use crate::drive::{Inside, Undisturbed};
use crate::files::{FileId, Kind, file_id};
use crate::process::{self, Process, process};
use crate::rdma_cm::{self, MAX_COMMAND_BYTES, Named, Outcome};
use crate::real::{self, Choose, Compare};
use crate::signals;
use crate::tree::{self, Target};

/// Runs when the object is loaded, after libc's own initialisation.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        // SAFETY: the calling thread's own.
        let before = unsafe { *libc::__errno_location() };
        signals::begin();
        // SAFETY: a function that stays. Without room for it, what quick_exit takes along is not said.
        unsafe { at_quick_exit(leaves_quickly) };
        let _ = catch_unwind(process::start); // without it there is no device
        set_errno(before); // a program expects zero where it begins
    }
    start
};

unsafe extern "C" {
    fn at_quick_exit(then: extern "C" fn()) -> c_int;
}

/// `quick_exit` does not come by way of `_exit`'s hook.
extern "C" fn leaves_quickly() {
    say_what_is_owed();
}

fn say_what_is_owed() {
    let leave = || process::own().map(|process| process.drivers.take_leave());
    let _ = catch_unwind(leave); // nobody is left to be told
}

/// Ends the process at once, but for what its devices owe.
fn leave(status: c_int) -> Infallible {
    say_what_is_owed();
    // SAFETY: takes a number.
    unsafe { real::exit_now(status) }
}

#[unsafe(no_mangle)]
extern "C" fn _exit(status: c_int) -> Infallible {
    leave(status)
}

#[unsafe(no_mangle)]
extern "C" fn _Exit(status: c_int) -> Infallible {
    leave(status)
}

/// Runs when the process ends in order.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = {
    extern "C" fn end() {
        std::mem::forget(Undisturbed::new()); // as `take_leave`
        // A child that was made past `fork` leaves the files to its parent.
        let end = || process::own().map(|process| process.end());
        let _ = catch_unwind(end); // nobody is left to be told
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
pub unsafe fn target<'a>(dir: c_int, path: *const c_char) -> Target<'a> {
    // SAFETY: as the caller promises.
    let found =
        process().map_or(Target::Foreign, |process| unsafe { process.tree.target(dir, path) });
    match found {
        // Where this process does not come to it (another user by now, another root), the machine's.
        Target::List(inside) => match inside.with(is_reached) {
            true => Target::File(inside),
            false => Target::Foreign,
        },
        found => found,
    }
}

/// Whether a path of the tree is there, for the process as it is now.
fn is_reached(inside: &CStr) -> bool {
    // SAFETY: all zeros are a status, which the call fills in.
    let is_there = || unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        real::fstatat(libc::AT_FDCWD, inside.as_ptr(), &mut status, 0) == 0
    };
    is_there() || {
        opening(inside);
        is_there()
    }
}

/// A file of the tree is to be opened; where another process may write it as well, the one that is meant.
pub fn opening(inside: &CStr) -> Option<dir::Written> {
    let path = Path::new(OsStr::from_bytes(inside.to_bytes()));
    let opening = || process::own()?.opening(path);
    catch_unwind(opening).unwrap_or(None) // the file shows what it showed before
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

/// Opens the connection manager's device.
fn open_rdma_cm() -> c_int {
    answer(|| {
        let process = process::own().ok_or(libc::EIO)?;
        rdma_cm::open(process).map_err(|refusal| {
            process::say(&format!("rdma_cm cannot be opened: {refusal}"));
            refusal.errno()
        })
    })
}

/// Calls libc's function with the path that a path of ours leads to; of a character device, with that
/// of the file that stands for it. If it `opens` the file, the path need not be one to be looked at.
///
/// # Safety
/// `path` is a C string, or null.
unsafe fn redirect<R>(
    dir: c_int,
    path: *const c_char,
    opens: bool,
    call: impl FnOnce(*const c_char) -> R,
) -> R {
    // SAFETY: as the caller promises.
    match unsafe { target(dir, path) } {
        Target::Foreign => call(path),
        Target::File(inside)
        | Target::List(inside)
        | Target::Uverbs(_, inside)
        | Target::RdmaCm(inside) => inside.with(|inside| {
            let written = opening(inside).filter(|_| opens);
            call(written.as_ref().map_or(inside, dir::Written::path).as_ptr())
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
            let dir = libc::AT_FDCWD $(- libc::AT_FDCWD + $before)*;
            // SAFETY: the program's own arguments, of which the path may be replaced.
            unsafe { redirect(dir, path, false, |path| real::$real($($before,)* path $(, $after)*)) }
        }
    )*};
}
hook_paths! {
    opendir = opendir [] path [] -> *mut libc::DIR;
    access = access [] path [mode: c_int] -> c_int;
    euidaccess = euidaccess [] path [mode: c_int] -> c_int;
    eaccess = euidaccess [] path [mode: c_int] -> c_int;
    faccessat = faccessat [dir: c_int] path [mode: c_int, flags: c_int] -> c_int;
    chdir = chdir [] path [] -> c_int;
    getxattr = getxattr [] path [name: *const c_char, value: *mut c_void, size: usize] -> isize;
    lgetxattr = lgetxattr [] path [name: *const c_char, value: *mut c_void, size: usize] -> isize;
    listxattr = listxattr [] path [list: *mut c_char, size: usize] -> isize;
    llistxattr = llistxattr [] path [list: *mut c_char, size: usize] -> isize;
    readlink = readlink [] path [buf: *mut c_char, size: usize] -> isize;
    __readlink_chk = readlink_chk [] path [buf: *mut c_char, size: usize, room: usize] -> isize;
    readlinkat = readlinkat [dir: c_int] path [buf: *mut c_char, size: usize] -> isize;
    __readlinkat_chk = readlinkat_chk
        [dir: c_int] path [buf: *mut c_char, size: usize, room: usize] -> isize;
    scandir = scandir [] path
        [list: *mut *mut *mut libc::dirent, choose: Choose, compare: Compare] -> c_int;
    scandir64 = scandir [] path
        [list: *mut *mut *mut libc::dirent, choose: Choose, compare: Compare] -> c_int;
}

/// Declares hooks of `fopen`.
macro_rules! hook_fopens {
    ($($name:ident),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
            // SAFETY: the program's own arguments, of which the path may be replaced.
            unsafe { redirect(libc::AT_FDCWD, path, true, |path| real::fopen(path, mode)) }
        }
    )*};
}
hook_fopens!(fopen, fopen64);

/// Has a canonical path that leads into the tree begin as programs know it.
///
/// # Safety
/// `found` is null, or a C string that `realpath` has put into `given`, with room for `PATH_MAX` bytes, or without that
/// allocated.
unsafe fn as_known(found: *mut c_char, given: *mut c_char) -> *mut c_char {
    if found.is_null() {
        return found;
    }
    // SAFETY: as the caller promises.
    let canonical = unsafe { CStr::from_ptr(found) };
    let known = || process()?.tree.known(canonical.to_bytes());
    let Ok(Some(known)) = catch_unwind(AssertUnwindSafe(known)) else { return found };
    // SAFETY: a C string of less than PATH_MAX bytes, into room for as many or into a copy of its own.
    unsafe {
        if !given.is_null() {
            return libc::strcpy(given, known.as_ptr());
        }
        libc::free(found.cast());
        libc::strdup(known.as_ptr())
    }
}

#[unsafe(no_mangle)]
extern "C" fn realpath(path: *const c_char, buf: *mut c_char) -> *mut c_char {
    // SAFETY: the program's own arguments, of which the path may be replaced.
    unsafe {
        as_known(redirect(libc::AT_FDCWD, path, false, |path| real::realpath(path, buf)), buf)
    }
}

#[unsafe(no_mangle)]
extern "C" fn __realpath_chk(path: *const c_char, buf: *mut c_char, room: usize) -> *mut c_char {
    // SAFETY: as above; what has less room than PATH_MAX ends the program before it comes back.
    unsafe {
        as_known(
            redirect(libc::AT_FDCWD, path, false, |path| real::realpath_chk(path, buf, room)),
            buf,
        )
    }
}

#[unsafe(no_mangle)]
extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    realpath(path, std::ptr::null_mut())
}

/// Opens a path.
///
/// # Safety
/// `path` is a C string, or null.
unsafe fn open_path(dir: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: as the caller promises; what is not ours goes to libc as it came.
    unsafe {
        match target(dir, path) {
            Target::Uverbs(index, _) => open_device(index, flags),
            Target::RdmaCm(_) => open_rdma_cm(),
            Target::File(inside) | Target::List(inside) => inside.with(|inside| {
                match opening(inside) {
                    // Its path is a link.
                    Some(written) => {
                        real::openat(dir, written.path().as_ptr(), flags & !libc::O_NOFOLLOW, mode)
                    }
                    None => real::openat(dir, inside.as_ptr(), flags, mode),
                }
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
            Some(Kind::Events(_) | Kind::Subscribed(_) | Kind::RdmaCm(_)) | None => {}
        }
    }
    // SAFETY: the program's own arguments.
    unsafe { real::ioctl(fd, request, arg) }
}

/// What became of a `write`. Nothing that is to be dropped: see [`write`].
#[derive(Clone, Copy)]
enum Written {
    /// It is not to a file of ours.
    Foreign,
    /// It is a command that waits for an event of this file.
    Waits(FileId),
    /// The file that it waits for an event of is closed: it waits on, as in the kernel.
    WaitsForNothing,
    /// It is done.
    Done(isize),
}

/// A command by `write`, if it is one. `waited`: the file for which it has waited already. By now the
/// number may be another's, to which nothing must be written.
fn command(fd: c_int, buf: *const c_void, count: usize, waited: Option<FileId>) -> Written {
    let looks = |process: &&Process| waited.is_some() || !process.files.none_is_written();
    let Some(process) = process().filter(looks) else {
        return Written::Foreign;
    };
    if count > MAX_COMMAND_BYTES {
        return Written::Foreign; // longer than any command
    }
    let id = file_id(fd);
    if waited.is_some() && waited != id {
        return Written::WaitsForNothing;
    }
    let file = match catch_unwind(AssertUnwindSafe(|| process.find(fd))) {
        Ok(Some(Kind::RdmaCm(file))) => file,
        Ok(Some(Kind::Inherited { rdev: Some(tree::RDMA_CM) })) => {
            set_errno(libc::EIO);
            return Written::Done(-1);
        }
        _ if waited.is_some() => return Written::WaitsForNothing,
        _ => return Written::Foreign,
    };
    let done = catch_unwind(AssertUnwindSafe(|| {
        let _inside = Inside::enter();
        let cm = process.rdma_cm().map_err(|refusal| Named("rdma_cm", refusal))?;
        cm.command(process, &file, fd, (buf as u64, count))
    }));
    let errno = match done {
        Ok(Ok(Outcome::Done)) => return Written::Done(count as isize),
        Ok(Ok(Outcome::Wait)) => return id.map_or(Written::WaitsForNothing, Written::Waits),
        Ok(Err(Named(what, refusal))) => {
            process.refused(what, &refusal);
            refusal.errno()
        }
        Err(_) => libc::EIO,
    };
    set_errno(errno);
    Written::Done(-1)
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}
const CANCEL_DISABLE: c_int = 1;

/// Longest that a command waits before it looks again whether there is an event.
const LOOK_MS: c_int = 1000;

/// Commands of librdmacm's. One that waits for an event is interrupted by signals, unless their handlers have SA_RESTART,
/// and ends with its thread when that is cancelled (`pthread_cancel`): in `poll`, while nothing is here that is to be
/// dropped, and nowhere else.
#[unsafe(no_mangle)]
extern "C-unwind" fn write(fd: c_int, buf: *const c_void, count: usize) -> isize {
    let mut waited = None;
    loop {
        let mut cancel = 0;
        // SAFETY: the calling thread's own state, which is put back.
        let written = unsafe {
            pthread_setcancelstate(CANCEL_DISABLE, &mut cancel);
            let written = command(fd, buf, count, waited);
            pthread_setcancelstate(cancel, std::ptr::null_mut());
            written
        };
        match written {
            Written::Done(result) => return result,
            // SAFETY: the program's own arguments.
            Written::Foreign => return unsafe { real::write(fd, buf, count) },
            Written::Waits(file) => waited = Some(file),
            Written::WaitsForNothing => {}
        }
        let mut event = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let entries = matches!(written, Written::Waits(_)).into();
        let asked = crate::watch::asked_so_far();
        // SAFETY: one entry or none, which outlives the call.
        let polled = unsafe { real::poll(&mut event, entries, LOOK_MS) };
        if polled < 0 {
            let errno = std::io::Error::last_os_error().raw_os_error();
            if errno != Some(libc::EINTR) {
                return -1;
            }
            if !signals::wait_goes_on(asked) {
                set_errno(libc::EINTR);
                return -1;
            }
        }
    }
}
