//! Functions of libc by which a program says what becomes of its faults: `mem::guarded` has them come to it
//! first. As safe in a signal handler as libc's.

use std::ffi::{c_int, c_void};

use bellpush_mem::guarded;

use crate::{masks, real, trap};

/// Has faults of the engine's copies come to it, for as long as the process lives.
pub fn install() {
    guarded::install(sigaction_of_libc);
}

unsafe extern "C" fn sigaction_of_libc(
    signal: c_int,
    action: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { real::sigaction(signal, action, old) }
}

#[unsafe(no_mangle)]
extern "C" fn sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the program's own arguments; a set begins with its first 64 signals.
    unsafe {
        guarded::program_sets(signal, action, old).unwrap_or_else(|| {
            // A handler may ring, and a fault whose signal is blocked ends the process.
            let mut lets = action.as_ref().copied();
            if let Some(lets) = &mut lets {
                let mask = (&raw mut lets.sa_mask).cast::<u64>();
                mask.write(guarded::let_faults(mask.read()));
            }
            real::sigaction(signal, lets.as_ref().map_or(std::ptr::null(), std::ptr::from_ref), old)
        })
    }
}

// After these, what is mapped at an address may be something else. They are system calls and nothing more, as libc's are.

#[unsafe(no_mangle)]
extern "C" fn munmap(at: *mut c_void, bytes: usize) -> c_int {
    trap::leaves(at as usize, bytes);
    // SAFETY: the program's own arguments.
    unsafe { libc::syscall(libc::SYS_munmap, at, bytes) as c_int }
}

#[unsafe(no_mangle)]
extern "C" fn mremap(
    at: *mut c_void,
    bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new_at: *mut c_void,
) -> *mut c_void {
    trap::leaves(at as usize, bytes);
    if flags & libc::MREMAP_FIXED != 0 {
        trap::leaves(new_at as usize, new_bytes);
    }
    // SAFETY: the program's own arguments; the system looks at the last one where the flags name it.
    unsafe {
        libc::syscall(libc::SYS_mremap, at, bytes, new_bytes, flags as isize, new_at) as *mut c_void
    }
}

/// Declares hooks of `mmap` under its names, which are one where offsets have 64 bits.
macro_rules! hook_mmap {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            at: *mut c_void,
            bytes: usize,
            rights: c_int,
            flags: c_int,
            fd: c_int,
            offset: i64,
        ) -> *mut c_void {
            if flags & libc::MAP_FIXED != 0 {
                trap::leaves(at as usize, bytes);
            }
            let (rights, flags, fd) = (rights as isize, flags as isize, fd as isize);
            // SAFETY: the program's own arguments.
            unsafe {
                libc::syscall(libc::SYS_mmap, at, bytes, rights, flags, fd, offset) as *mut c_void
            }
        }
    )*};
}
hook_mmap! { mmap mmap64 }

/// Declares hooks of `signal` under its names, by the flags of what it sets. `__sysv_signal` is what the header makes of
/// it for programs that keep to a standard (`cc -std=c11`).
macro_rules! hook_signals {
    ($($name:ident = $real:ident $flags:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
            // SAFETY: all zeros are an action; the program's own arguments.
            unsafe {
                let (mut action, mut old): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
                (action.sa_sigaction, action.sa_flags) = (handler, $flags);
                match guarded::program_sets(signal, &action, &mut old) {
                    Some(0) => old.sa_sigaction,
                    Some(_) => libc::SIG_ERR,
                    None => real::$real(signal, handler),
                }
            }
        }
    )*};
}
hook_signals! {
    signal = signal libc::SA_RESTART;
    bsd_signal = signal libc::SA_RESTART;
    ssignal = signal libc::SA_RESTART;
    sysv_signal = sysv_signal libc::SA_RESETHAND | libc::SA_NODEFER;
    __sysv_signal = sysv_signal libc::SA_RESETHAND | libc::SA_NODEFER;
}

/// Declares hooks of functions that change the calling thread's mask.
macro_rules! hook_masks {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            how: c_int,
            set: *const libc::sigset_t,
            old: *mut libc::sigset_t,
        ) -> c_int {
            // SAFETY: the program's own arguments: a set begins with its first 64 signals; all zeros are a set.
            let (blocks, done) = unsafe {
                let of_faults = |set: *const libc::sigset_t| {
                    guarded::is_blocked_by(set.cast::<u64>().read())
                };
                let named = !set.is_null() && of_faults(set);
                let blocks = named && how != libc::SIG_UNBLOCK;
                let mut now: libc::sigset_t = std::mem::zeroed();
                if !set.is_null()
                    && named != (how == libc::SIG_SETMASK)
                    && real::$name(libc::SIG_BLOCK, std::ptr::null(), &mut now) == 0
                    && of_faults(&now)
                {
                    // What this thread has made meanwhile blocks them still.
                    masks::change();
                }
                (blocks, real::$name(how, set, old))
            };
            if blocks {
                trap::blocks();
            }
            guarded::forget_mask();
            done
        }
    )*};
}
hook_masks! { pthread_sigmask sigprocmask }
