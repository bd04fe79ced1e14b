//! Copies and atomics in the program's memory without a system call, whose faults are errors.
//!
//! What a program registered it may unmap at any moment. The few instructions here that reach it have known
//! addresses: a fault at one of them is no signal of the program's, and goes on at the error's return. Any
//! other fault is the program's, and goes to whom the program has it go to. For that, whoever interposes
//! libc's functions hands the program's wishes over ([`program_sets`]) and says when a thread may have changed
//! its mask ([`forget_mask`]).
//!
//! Where that cannot be (another processor, a handler that came past libc, a thread that blocks the signals)
//! nothing is guarded, and `user` has the system copy.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::stores;

/// The type of libc's `sigaction`.
pub type Sigaction =
    unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

/// Signals of faults.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// What the program has for a signal. It is read in handlers, where a lock could be what they interrupted.
struct Wish {
    handler: AtomicUsize,
    flags: AtomicI32,
    /// What its handler blocks, 64 signals from the first on.
    mask: AtomicU64,
}

impl Wish {
    const fn new() -> Self {
        Self {
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
        }
    }

    fn set(&self, action: &libc::sigaction) {
        self.handler.store(action.sa_sigaction, Ordering::Relaxed);
        self.flags.store(action.sa_flags, Ordering::Relaxed);
        self.mask.store(mask(action), Ordering::Relaxed);
    }

    /// Has an action say what this does.
    fn get(&self, action: &mut libc::sigaction) {
        action.sa_sigaction = self.handler.load(Ordering::Relaxed);
        action.sa_flags = self.flags.load(Ordering::Relaxed);
        set_mask(action, self.mask.load(Ordering::Relaxed));
    }
}

static WISHES: [Wish; 2] = [const { Wish::new() }; 2];
/// Libc's own function; set before any handler is.
static REAL: OnceLock<Sigaction> = OnceLock::new();
/// The process whose wishes these are: a child of `vfork` has its memory, and wishes of its own. 0 before anybody has
/// said.
static PID: AtomicI32 = AtomicI32::new(0);
/// Whether faults come to [`on_fault`], as far as is known.
static ARMED: AtomicBool = AtomicBool::new(false);

/// Who is told of a thread that blocks a signal of faults.
static TOLD: OnceLock<fn()> = OnceLock::new();

/// Has a function called, in a handler of the system's, after a thread has come to block a signal of faults because a
/// handler of the program's for them begins. It takes no lock and allocates nothing. Once for a process.
pub fn tell_who_blocks(tell: fn()) {
    let _ = TOLD.set(tell); // it is the same
}

fn index(signal: c_int) -> Option<usize> {
    SIGNALS.iter().position(|&other| other == signal)
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_fault as *const () as usize
}

/// Has faults come here first. `real` is libc's own `sigaction`. Does nothing where faults cannot be told apart.
pub fn install(real: Sigaction) {
    static ONCE: Mutex<()> = Mutex::new(());
    let _once = ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    if !code::IS_THERE || REAL.get().is_some() {
        return;
    }
    is_programs_own();
    let real = *REAL.get_or_init(|| real);
    let took = SIGNALS.iter().zip(&WISHES).all(|(&signal, wish)| {
        // SAFETY: all zeros are an action; the handler is as libc wants it.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if real(signal, std::ptr::null(), &mut action) != 0 {
                return false;
            }
            wish.set(&action);
            real(signal, &with_ours(&action), std::ptr::null_mut()) == 0
        }
    });
    ARMED.store(took, Ordering::Release);
}

/// The signals that an action's handler blocks, 64 from the first on.
pub fn mask(action: &libc::sigaction) -> u64 {
    // SAFETY: a set begins with its first 64 signals.
    unsafe { (&raw const action.sa_mask).cast::<u64>().read() }
}

/// Sets what [`mask`] tells.
pub fn set_mask(action: &mut libc::sigaction, mask: u64) {
    // SAFETY: as above.
    unsafe { (&raw mut action.sa_mask).cast::<u64>().write(mask) }
}

/// An action of the program's, with our handler in front. While that runs, faults come to it and no other signal does:
/// a handler of the program's that came in between could fault itself, find locks held, or never come back.
fn with_ours(action: &libc::sigaction) -> libc::sigaction {
    let mut ours = *action;
    ours.sa_sigaction = on_fault as *const () as usize;
    // That the action is taken only once is for the program's own faults: `chain` sees to it, as to what it blocks.
    ours.sa_flags = (ours.sa_flags | libc::SA_SIGINFO | libc::SA_NODEFER) & !libc::SA_RESETHAND;
    set_mask(&mut ours, let_faults(u64::MAX));
    if matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
        ours.sa_flags |= libc::SA_ONSTACK;
    }
    ours
}

/// The calling process is the program from now on: the first, or the child of a fork, whose wishes are a copy.
pub fn is_programs_own() {
    // SAFETY: takes nothing and cannot fail.
    PID.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Whether the calling process is the program, and no child that has its memory (`vfork`) or was made past the handlers
/// of a fork: signals of such a child are its own, and what it has set says nothing of its parent.
pub fn is_the_program() -> bool {
    let program = PID.load(Ordering::Relaxed);
    // SAFETY: takes nothing and cannot fail.
    program == 0 || program == unsafe { libc::getpid() }
}

/// What the program's `sigaction` does; `None` for signals that are not of faults, and before [`install`].
/// Takes no lock and allocates nothing.
///
/// # Safety
/// As libc's function.
pub unsafe fn program_sets(
    signal: c_int,
    action: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> Option<c_int> {
    let wish = &WISHES[index(signal)?];
    let real = REAL.get()?;
    // SAFETY: as the caller promises; all zeros are an action.
    unsafe {
        let (mut was, mut before): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        wish.get(&mut before);
        let is_own = is_the_program();
        let done = match action.as_ref() {
            // The system has a child's actions apart, and the child has no engine.
            Some(action) if !is_own => real(signal, action, &mut was),
            None => real(signal, std::ptr::null(), &mut was),
            Some(action) => {
                wish.set(action);
                let done = real(signal, &with_ours(action), &mut was);
                if done != 0 {
                    wish.set(&before);
                }
                done
            }
        };
        if let (0, Some(old)) = (done, old.as_mut()) {
            if is_ours(&was) {
                (was.sa_sigaction, was.sa_flags) = (before.sa_sigaction, before.sa_flags);
                set_mask(&mut was, mask(&before));
            }
            *old = was;
        }
        Some(done)
    }
}

/// Looks whether the program has put another handler in our place, past libc: nothing is guarded after that.
pub fn check() {
    let Some(real) = REAL.get() else { return };
    if !ARMED.load(Ordering::Relaxed) {
        return;
    }
    let has_ours = |&signal: &c_int| {
        // SAFETY: all zeros are an action, which is written.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            real(signal, std::ptr::null(), &mut action) == 0 && is_ours(&action)
        }
    };
    if !SIGNALS.iter().all(has_ours) {
        ARMED.store(false, Ordering::Relaxed);
    }
}

/// Unwinding passes it where the program's handler is left so, by an exception or by `pthread_cancel`.
extern "C-unwind" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system's own, for the time of the handler.
    unsafe {
        if (*info).si_code > 0 && (code::go_on(context) || stores::told(info, context)) {
            return;
        }
        chain(signal, info, context);
    }
}

/// Does with a fault what the program wants.
///
/// # Safety
/// In a handler of the signal, with what it was given.
unsafe fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(wish) = index(signal).map(|at| &WISHES[at]) else { return };
    let handler = wish.handler.load(Ordering::Relaxed);
    // A fault cannot be ignored; a signal that somebody sent can.
    // SAFETY: as the caller promises.
    let sent = unsafe { (*info).si_code } <= 0;
    if handler == libc::SIG_IGN && sent {
        return;
    }
    if matches!(handler, libc::SIG_DFL | libc::SIG_IGN) {
        ARMED.store(false, Ordering::Relaxed);
        // SAFETY: all zeros are the default action. What faulted faults again when this returns; what was sent
        // is sent again.
        unsafe {
            if let Some(real) = REAL.get() {
                real(signal, &std::mem::zeroed(), std::ptr::null_mut());
            }
            if sent {
                libc::raise(signal);
            }
        }
        return;
    }
    let flags = wish.flags.load(Ordering::Relaxed);
    if flags & libc::SA_RESETHAND != 0 {
        wish.handler.store(libc::SIG_DFL, Ordering::Relaxed);
    }
    type Handler = unsafe extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    let itself = if flags & libc::SA_NODEFER == 0 { bit(signal) | HANDLER } else { HANDLER };
    // SAFETY: as the caller promises.
    let interrupted = unsafe { interrupted_mask(context) };
    let blocked = interrupted | wish.mask.load(Ordering::Relaxed) | itself;
    change_mask(libc::SIG_SETMASK, blocked);
    // The handler may run with the signal blocked, and may leave by a jump that keeps the mask.
    forget_mask();
    if is_blocked_by(blocked) {
        TOLD.get().into_iter().for_each(|tell| tell());
    }
    // SAFETY: the program's handler; one that takes the signal alone does not look at the rest.
    unsafe { std::mem::transmute::<usize, Handler>(handler)(signal, info, context) };
}

thread_local! {
    /// Whether the calling thread's mask is known to let the signals through. That it blocks them is asked anew each
    /// time: a handler's mask goes when the handler ends.
    static LETS: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread's signal mask may have changed.
pub fn forget_mask() {
    LETS.set(false);
}

/// Lets the calling thread, one of ours, take its own faults.
pub fn unblock() {
    change_mask(libc::SIG_UNBLOCK, SIGNALS.iter().fold(0, |set, signal| set | bit(*signal)));
    forget_mask();
}

/// What every handler of the program's blocks besides what it asks for, so that its mask tells it from other code: a
/// signal that Linux never sends.
pub const HANDLER: u64 = bit(libc::SIGSTKFLT);

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Changes the calling thread's mask by the system call itself: libc's function may be the preloaded object's.
/// What it was.
fn change_mask(how: c_int, set: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: sets of 64 signals, as the kernel has them.
    unsafe {
        let bytes = size_of::<u64>();
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const set, &raw mut old, bytes);
    }
    old
}

/// Whether faults come here, as far as is known.
pub fn is_armed() -> bool {
    ARMED.load(Ordering::Acquire)
}

/// Whether a thread with this mask, 64 signals from the first on, would end by a fault.
pub fn is_blocked_by(mask: u64) -> bool {
    SIGNALS.iter().any(|&signal| mask & bit(signal) != 0)
}

/// A mask without the signals of faults.
pub fn let_faults(mask: u64) -> u64 {
    SIGNALS.iter().fold(mask, |mask, &signal| mask & !bit(signal))
}

/// The signals that the code blocks which a handler has interrupted, 64 from the first on.
///
/// # Safety
/// With the handler's context.
pub unsafe fn interrupted_mask(context: *mut c_void) -> u64 {
    // SAFETY: as the caller promises; a set begins with its first 64 signals.
    unsafe { (&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>().read() }
}

/// Whether a fault of the calling thread's would come here. A fault whose signal is blocked ends the process.
pub(crate) fn is_guarded() -> bool {
    // Acquire: `install` has set what a handler looks at.
    if !ARMED.load(Ordering::Acquire) {
        return false;
    }
    if !LETS.get() {
        let blocked = change_mask(libc::SIG_BLOCK, 0);
        LETS.set(SIGNALS.iter().all(|&signal| blocked & bit(signal) == 0));
    }
    LETS.get()
}

/// Copies bytes of which one side may not be there; false if it is not, or if nothing is guarded here. How much
/// has moved by then is not said. Bytes move from the first to the last, as `memcpy` of the kernel's moves them.
///
/// # Safety
/// The side that is ours is valid for `bytes` bytes; at the other, nothing of Rust's lies.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) -> bool {
    // SAFETY: as the caller promises.
    is_guarded() && unsafe { code::copy(to, from, bytes) }
}

/// Adds to an aligned word that may not be there, atomically; its old value, or `None` as [`copy`].
///
/// # Safety
/// Nothing of Rust's lies there but atomics.
pub(crate) unsafe fn fetch_add(word: *mut u64, add: u64) -> Option<u64> {
    // SAFETY: as the caller promises.
    if is_guarded() { unsafe { code::fetch_add(word, add) } } else { None }
}

/// Compares and swaps an aligned word that may not be there, atomically; as [`fetch_add`].
///
/// # Safety
/// As [`fetch_add`].
pub(crate) unsafe fn compare_swap(word: *mut u64, compare: u64, swap: u64) -> Option<u64> {
    // SAFETY: as the caller promises.
    if is_guarded() { unsafe { code::compare_swap(word, compare, swap) } } else { None }
}

#[cfg(target_arch = "x86_64")]
mod code {
    use std::ffi::{c_int, c_void};

    pub const IS_THERE: bool = true;

    // Each returns 0, or 1 where its one access to the program's memory has faulted.
    std::arch::global_asm!(
        ".hidden bellpush_guarded_copy, bellpush_guarded_add, bellpush_guarded_swap",
        ".hidden bellpush_fault_copy, bellpush_fault_add, bellpush_fault_swap, bellpush_faulted",
        ".globl bellpush_guarded_copy, bellpush_guarded_add, bellpush_guarded_swap",
        ".globl bellpush_fault_copy, bellpush_fault_add, bellpush_fault_swap, bellpush_faulted",
        "bellpush_guarded_copy:", // to, from, bytes
        "mov rcx, rdx",
        "bellpush_fault_copy:",
        "rep movsb",
        "xor eax, eax",
        "ret",
        "bellpush_guarded_add:", // word, add, old
        "bellpush_fault_add:",
        "lock xadd [rdi], rsi",
        "mov [rdx], rsi",
        "xor eax, eax",
        "ret",
        "bellpush_guarded_swap:", // word, compare, swap, old
        "mov rax, rsi",
        "bellpush_fault_swap:",
        "lock cmpxchg [rdi], rdx",
        "mov [rcx], rax",
        "xor eax, eax",
        "ret",
        "bellpush_faulted:",
        "mov eax, 1",
        "ret",
    );

    unsafe extern "C" {
        fn bellpush_guarded_copy(to: *mut u8, from: *const u8, bytes: usize) -> c_int;
        fn bellpush_guarded_add(word: *mut u64, add: u64, old: *mut u64) -> c_int;
        fn bellpush_guarded_swap(word: *mut u64, compare: u64, swap: u64, old: *mut u64) -> c_int;
        fn bellpush_fault_copy();
        fn bellpush_fault_add();
        fn bellpush_fault_swap();
        fn bellpush_faulted();
    }

    /// Has the interrupted code go on at the error's return, if it is ours.
    ///
    /// # Safety
    /// The context of a handler that runs.
    pub unsafe fn go_on(context: *mut c_void) -> bool {
        let ours = [
            bellpush_fault_copy as *const () as i64,
            bellpush_fault_add as *const () as i64,
            bellpush_fault_swap as *const () as i64,
        ];
        // SAFETY: as the caller promises.
        let at = unsafe {
            &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize]
        };
        let is_ours = ours.contains(at);
        if is_ours {
            *at = bellpush_faulted as *const () as i64;
        }
        is_ours
    }

    /// # Safety
    /// As [`super::copy`], where faults are guarded.
    pub unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) -> bool {
        // SAFETY: as the caller promises.
        unsafe { bellpush_guarded_copy(to, from, bytes) == 0 }
    }

    /// # Safety
    /// As [`super::fetch_add`], where faults are guarded.
    pub unsafe fn fetch_add(word: *mut u64, add: u64) -> Option<u64> {
        let mut old = 0;
        // SAFETY: as the caller promises.
        unsafe { (bellpush_guarded_add(word, add, &mut old) == 0).then_some(old) }
    }

    /// # Safety
    /// As [`super::fetch_add`], where faults are guarded.
    pub unsafe fn compare_swap(word: *mut u64, compare: u64, swap: u64) -> Option<u64> {
        let mut old = 0;
        // SAFETY: as the caller promises.
        unsafe { (bellpush_guarded_swap(word, compare, swap, &mut old) == 0).then_some(old) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod code {
    use std::ffi::c_void;

    pub const IS_THERE: bool = false;

    /// # Safety
    /// None.
    pub unsafe fn go_on(_: *mut c_void) -> bool {
        false
    }

    /// # Safety
    /// None.
    pub unsafe fn copy(_: *mut u8, _: *const u8, _: usize) -> bool {
        false
    }

    /// # Safety
    /// None.
    pub unsafe fn fetch_add(_: *mut u64, _: u64) -> Option<u64> {
        None
    }

    /// # Safety
    /// None.
    pub unsafe fn compare_swap(_: *mut u64, _: u64, _: u64) -> Option<u64> {
        None
    }
}
