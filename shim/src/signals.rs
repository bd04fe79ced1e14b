//! Functions of libc by which a program says what becomes of its faults: `mem::guarded` has them come to it
//! first. As safe in a signal handler as libc's.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use bellpush_mem::guarded;

use crate::{marked, masks, real, trap};

/// The program begins, in no handler.
pub fn begin() {
    guarded::is_programs_own();
    // SAFETY: all zeros are a set, which is written.
    unsafe {
        let mut mask: libc::sigset_t = std::mem::zeroed();
        if real::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask) == 0 {
            marked::is_outside(bits(&mask));
        }
    }
}

/// Has faults of the engine's copies come to it, for as long as the process lives.
pub fn install() {
    guarded::tell_who_blocks(trap::blocks);
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
    // SAFETY: the program's own arguments.
    unsafe {
        guarded::program_sets(signal, action, old).unwrap_or_else(|| {
            let is_own = guarded::is_the_program();
            let ours = action.as_ref().map(|it| if is_own { for_the_system(it) } else { *it });
            let ours = ours.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            let was_own = MARKS.is_own(signal);
            let done = real::sigaction(signal, ours, old);
            if done == 0 {
                old.as_mut().into_iter().for_each(|old| for_the_program(old, was_own));
                let noted = action.as_ref().filter(|_| is_own);
                noted.into_iter().for_each(|action| MARKS.note(signal, action));
            }
            done
        })
    }
}

/// Signals for whose handlers the program itself blocks [`guarded::HANDLER`], 64 from the first on.
struct Marks(AtomicU64);

static MARKS: Marks = Marks(AtomicU64::new(0));

impl Marks {
    fn bit(signal: c_int) -> u64 {
        1u64.checked_shl(signal.wrapping_sub(1) as u32).unwrap_or(0)
    }

    fn is_own(&self, signal: c_int) -> bool {
        self.0.load(Ordering::Relaxed) & Self::bit(signal) != 0
    }

    fn note(&self, signal: c_int, action: &libc::sigaction) {
        let bit = Self::bit(signal);
        match guarded::mask(action) & guarded::HANDLER != 0 {
            true => self.0.fetch_or(bit, Ordering::Relaxed),
            false => self.0.fetch_and(!bit, Ordering::Relaxed),
        };
    }
}

/// A handler may ring, and a fault whose signal is blocked ends the process. It is marked (`marked`): what it has
/// interrupted may be `malloc`, where no step may begin.
fn for_the_system(action: &libc::sigaction) -> libc::sigaction {
    let mut ours = *action;
    guarded::set_mask(&mut ours, guarded::let_faults(guarded::mask(action)) | guarded::HANDLER);
    ours
}

/// The action as the program has set it.
fn for_the_program(action: &mut libc::sigaction, is_own: bool) {
    if !is_own {
        guarded::set_mask(action, guarded::mask(action) & !guarded::HANDLER);
    }
}

/// Signals of the program's own instructions: they interrupt no wait.
const SYNCHRONOUS: [c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

/// Whether a wait that a signal has interrupted goes on, as the kernel's does for a handler with SA_RESTART. Which signal
/// it was nobody says: it does where SIGUSR2 has asked meanwhile, of which a program is to notice nothing, and where no
/// handler would have it end.
pub fn wait_goes_on(asked_before: u32) -> bool {
    let ends_it = |signal: c_int| {
        // SAFETY: all zeros are an action; the call only asks.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action) == 0
                && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction)
                && action.sa_flags & libc::SA_RESTART == 0
        }
    };
    let mut others = (1..=libc::SIGRTMAX()).filter(|signal| !SYNCHRONOUS.contains(signal));
    crate::watch::asked_so_far() != asked_before || !others.any(ends_it)
}

// After these, what is mapped at an address may be something else. Who patches libc's functions, as UCX does to learn
// what becomes of memory that it has registered, hears of the program's calls: they end in libc's, not in the system.

#[unsafe(no_mangle)]
extern "C" fn munmap(at: *mut c_void, bytes: usize) -> c_int {
    trap::leaves(at as usize, bytes);
    // SAFETY: the program's own arguments.
    unsafe { real::munmap(at, bytes) }
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
    // SAFETY: the program's own arguments; the last one is looked at where the flags name it.
    unsafe { real::mremap(at, bytes, new_bytes, flags, new_at) }
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
            // SAFETY: the program's own arguments.
            unsafe { real::$name(at, bytes, rights, flags, fd, offset) }
        }
    )*};
}
hook_mmap! { mmap mmap64 }

/// libc's own, which knows what `siginterrupt` was told; the handler is marked after that.
///
/// # Safety
/// As `signal`.
unsafe fn own_signal(
    signal: c_int,
    handler: libc::sighandler_t,
    _: &libc::sigaction,
) -> libc::sighandler_t {
    // SAFETY: as the caller promises; all zeros are an action.
    unsafe {
        let before = real::signal(signal, handler);
        let mut action: libc::sigaction = std::mem::zeroed();
        let is_noted = before != libc::SIG_ERR && guarded::is_the_program();
        if is_noted && real::sigaction(signal, std::ptr::null(), &mut action) == 0 {
            MARKS.note(signal, &action);
            // It was set a moment ago.
            let _ = real::sigaction(signal, &for_the_system(&action), std::ptr::null_mut());
        }
        before
    }
}

/// By [`sigaction`]: a handler that blocks nothing is marked there.
///
/// # Safety
/// As `signal`.
unsafe fn by_action(
    signal: c_int,
    handler: libc::sighandler_t,
    action: &libc::sigaction,
) -> libc::sighandler_t {
    if handler == libc::SIG_ERR {
        crate::hooks::set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: all zeros are an action.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    match sigaction(signal, action, &mut old) {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

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
                    None => $real(signal, handler, &action),
                }
            }
        }
    )*};
}
hook_signals! {
    signal = own_signal libc::SA_RESTART;
    bsd_signal = own_signal libc::SA_RESTART;
    ssignal = own_signal libc::SA_RESTART;
    sysv_signal = by_action libc::SA_RESETHAND | libc::SA_NODEFER;
    __sysv_signal = by_action libc::SA_RESETHAND | libc::SA_NODEFER;
}

/// The first 64 signals of a set.
///
/// # Safety
/// It is one.
unsafe fn bits(set: *const libc::sigset_t) -> u64 {
    // SAFETY: as the caller promises; a set begins with them.
    unsafe { set.cast::<u64>().read() }
}

/// Changes the calling thread's mask by one of libc's functions. A child of `vfork` has its parent's memory, also what is
/// known of the thread, and a mask of its own.
///
/// # Safety
/// As that function.
unsafe fn change_mask(
    change: impl Fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int,
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    if !guarded::is_the_program() {
        return change(how, set, old);
    }
    // SAFETY: the program's own arguments; all zeros are a set.
    unsafe {
        let mut was: libc::sigset_t = std::mem::zeroed();
        let asked = marked::asked();
        let mut now = (!set.is_null()).then(|| *set);
        let wanted = now.as_ref().map(|set| bits(set));
        let named = wanted.is_some_and(guarded::is_blocked_by);
        let lets =
            wanted.is_some() && named != (how == libc::SIG_SETMASK) && how != libc::SIG_BLOCK;
        if let Some(now) = now.as_mut()
            && (lets || marked::depends(how, bits(now), asked))
            && change(libc::SIG_BLOCK, std::ptr::null(), &mut was) == 0
        {
            if lets && guarded::is_blocked_by(bits(&was)) {
                // What this thread has made meanwhile blocks them still.
                masks::change();
            }
            let given = marked::change(how, bits(now), bits(&was), asked).set;
            std::ptr::from_mut(now).cast::<u64>().write(given);
        }
        let given = now.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let done = change(how, given, &mut was);
        if done != 0 {
            return done;
        }
        let is_marked = marked::change(how, 0, bits(&was), asked).is_marked;
        match wanted {
            _ if is_marked => {}
            Some(wanted) => marked::changed(how, wanted, bits(&was)),
            None => marked::seen(bits(&was)),
        }
        if let Some(old) = old.as_mut() {
            *old = was;
            if is_marked {
                std::ptr::from_mut(old).cast::<u64>().write(bits(&was) & !guarded::HANDLER);
            }
        }
        if named && how != libc::SIG_UNBLOCK {
            trap::blocks();
        }
        guarded::forget_mask();
        done
    }
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
            // SAFETY: the program's own arguments.
            unsafe { change_mask(|how, set, old| real::$name(how, set, old), how, set, old) }
        }
    )*};
}
hook_masks! { pthread_sigmask sigprocmask }
