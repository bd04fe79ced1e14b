//! The functions of libc that lie behind the interposed ones.
//!
//! Found by `dlsym(RTLD_NEXT)`, itself found in libc's symbols, when the object is loaded, or at an
//! earlier first use, which allocates nothing when it finds them; an object that was preloaded behind this one keeps its turn.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::symbols;

/// What `scandir` asks which entries are wanted.
pub type Choose = Option<unsafe extern "C" fn(*const libc::dirent) -> c_int>;
/// What `scandir` sorts by.
pub type Compare =
    Option<unsafe extern "C" fn(*mut *const libc::dirent, *mut *const libc::dirent) -> c_int>;

/// A function of libc, once it was looked for.
pub struct Real(&'static CStr, AtomicPtr<c_void>);

impl Real {
    const fn new(name: &'static CStr) -> Self {
        Self(name, AtomicPtr::new(std::ptr::null_mut()))
    }

    fn address(&self) -> *mut c_void {
        let known = self.1.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a C string; dlsym has no other demands.
        let found = unsafe { dlsym(libc::RTLD_NEXT, self.0.as_ptr()) };
        if found.is_null() {
            // Without libc's function there is no going on, and no way to say so but this.
            std::process::abort();
        }
        self.1.store(found, Ordering::Relaxed);
        found
    }
}

/// Declares callers of libc's functions by their C signatures.
macro_rules! real {
    ($($name:ident as $symbol:literal in $abi:literal ( $($arg:ident : $type:ty),* ) -> $ret:ty;)*) => {
    $(
        /// libc's function of that name.
        ///
        /// # Safety
        /// As the C function.
        pub unsafe fn $name($($arg: $type),*) -> $ret {
            type Function = unsafe extern $abi fn($($type),*) -> $ret;
            // SAFETY: the symbol is libc's function of this signature.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found::$name.address()) };
            // SAFETY: as the caller promises.
            unsafe { function($($arg),*) }
        }
    )*
        mod found {
            #![allow(non_upper_case_globals)] // each has the name of its function
            $(pub static $name: super::Real = super::Real::new($symbol);)*
        }

        /// Looks all of them up, so that no signal handler has to.
        pub fn resolve() {
            $(found::$name.address();)*
        }
    };
}

// A thread that is cancelled (`pthread_cancel`) in a function of "C-unwind" is unwound through its
// callers here, which have nothing to be dropped.
//
// Variadic functions (open, openat, ioctl) are called with their longest argument list: the
// integer arguments of the System V and AArch64 conventions lie where fixed ones would.
real! {
    openat as c"openat64" in "C" (dir: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int;
    opendir as c"opendir" in "C" (path: *const c_char) -> *mut libc::DIR;
    fopen as c"fopen64" in "C" (path: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    fstat as c"fstat64" in "C" (fd: c_int, buf: *mut libc::stat) -> c_int;
    fstatat as c"fstatat64" in "C" (dir: c_int, path: *const c_char, buf: *mut libc::stat, flags: c_int) -> c_int;
    statx as c"statx" in "C" (dir: c_int, path: *const c_char, flags: c_int, mask: u32, buf: *mut libc::statx) -> c_int;
    access as c"access" in "C" (path: *const c_char, mode: c_int) -> c_int;
    readlink as c"readlink" in "C" (path: *const c_char, buf: *mut c_char, size: usize) -> isize;
    realpath as c"realpath" in "C" (path: *const c_char, buf: *mut c_char) -> *mut c_char;
    realpath_chk as c"__realpath_chk" in "C" (path: *const c_char, buf: *mut c_char, room: usize) -> *mut c_char;
    readlink_chk as c"__readlink_chk" in "C" (path: *const c_char, buf: *mut c_char, size: usize, room: usize) -> isize;
    readlinkat as c"readlinkat" in "C" (dir: c_int, path: *const c_char, buf: *mut c_char, size: usize) -> isize;
    readlinkat_chk as c"__readlinkat_chk" in "C"
        (dir: c_int, path: *const c_char, buf: *mut c_char, size: usize, room: usize) -> isize;
    euidaccess as c"euidaccess" in "C" (path: *const c_char, mode: c_int) -> c_int;
    faccessat as c"faccessat" in "C" (dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int;
    getxattr as c"getxattr" in "C" (path: *const c_char, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    lgetxattr as c"lgetxattr" in "C"
        (path: *const c_char, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    listxattr as c"listxattr" in "C" (path: *const c_char, list: *mut c_char, size: usize) -> isize;
    llistxattr as c"llistxattr" in "C" (path: *const c_char, list: *mut c_char, size: usize) -> isize;
    chdir as c"chdir" in "C" (path: *const c_char) -> c_int;
    scandir as c"scandir64" in "C"
        (path: *const c_char, list: *mut *mut *mut libc::dirent, choose: Choose, compare: Compare) -> c_int;
    ioctl as c"ioctl" in "C" (fd: c_int, request: u64, arg: *mut c_void) -> c_int;
    close as c"close" in "C" (fd: c_int) -> c_int;
    dup2 as c"dup2" in "C" (old: c_int, new: c_int) -> c_int;
    dup3 as c"dup3" in "C" (old: c_int, new: c_int, flags: c_int) -> c_int;
    write as c"write" in "C-unwind" (fd: c_int, buf: *const c_void, count: usize) -> isize;
    poll as c"poll" in "C-unwind" (fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    sigaction as c"sigaction" in "C" (signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    signal as c"signal" in "C" (signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t;
    setcanceltype as c"pthread_setcanceltype" in "C-unwind" (kind: c_int, old: *mut c_int) -> c_int;
    pthread_sigmask as c"pthread_sigmask" in "C" (how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int;
    sigprocmask as c"sigprocmask" in "C" (how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int;
    mmap as c"mmap" in "C"
        (at: *mut c_void, bytes: usize, rights: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
    mmap64 as c"mmap64" in "C"
        (at: *mut c_void, bytes: usize, rights: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void;
    mremap as c"mremap" in "C"
        (at: *mut c_void, bytes: usize, new_bytes: usize, flags: c_int, new_at: *mut c_void) -> *mut c_void;
    munmap as c"munmap" in "C" (at: *mut c_void, bytes: usize) -> c_int;
    socket as c"socket" in "C" (domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    exit_now as c"_exit" in "C" (status: c_int) -> std::convert::Infallible;
    dlvsym as c"dlvsym" in "C" (library: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
}

/// libc's `dlvsym`, to be jumped to: it looks at where it was called from.
pub fn dlvsym_itself() -> *mut c_void {
    found::dlvsym.address()
}

/// libc's `dlsym`, to be jumped to.
pub fn dlsym_itself() -> *mut c_void {
    static ITSELF: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let known = ITSELF.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = symbols::in_libc(c"dlsym");
    if found.is_null() {
        std::process::abort(); // as above
    }
    ITSELF.store(found, Ordering::Relaxed);
    found
}

/// libc's `dlsym`.
///
/// # Safety
/// As the C function.
pub unsafe fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void {
    type Function = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    // SAFETY: libc's function of this signature, with what the caller promises.
    unsafe { std::mem::transmute::<*mut c_void, Function>(dlsym_itself())(library, name) }
}
