//! Threads that may be cancelled anywhere (`PTHREAD_CANCEL_ASYNCHRONOUS`), and functions of libc that make threads with
//! all signals blocked: what `trap` has to know of a program's threads besides their masks.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::hooks::set_errno;
use crate::{real, trap};

/// `PTHREAD_CANCEL_ASYNCHRONOUS` (pthread.h).
const AT_ONCE: c_int = 1;

thread_local! {
    static IS_AT_ONCE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread has asked to be cancelled at once. It would end inside of a step as soon as that lets
/// cancellation through again: on the step's stack, and with what the step holds.
pub fn is_at_once() -> bool {
    IS_AT_ONCE.get()
}

/// Ends the thread where it is to be cancelled already; nothing is here then that is to be dropped.
#[unsafe(no_mangle)]
extern "C-unwind" fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int {
    let before = IS_AT_ONCE.replace(kind == AT_ONCE);
    // SAFETY: the program's own arguments.
    let done = unsafe { real::setcanceltype(kind, old) };
    if done != 0 {
        IS_AT_ONCE.set(before);
    }
    done
}

/// Whether an event is told by a call in a thread of libc's own (`SIGEV_THREAD`). Such threads, or the one that makes
/// them, block all signals.
///
/// # Safety
/// `event` is null, or an event.
unsafe fn calls(event: *const libc::sigevent) -> bool {
    // SAFETY: as the caller promises.
    unsafe { event.as_ref() }.is_some_and(|event| event.sigev_notify == libc::SIGEV_THREAD)
}

/// A function of libc, or of librt before glibc 2.34, which a program need not have; null where it has not.
fn next(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    if known.load(Ordering::Relaxed).is_null() {
        // SAFETY: the name is a C string; dlsym has no other demands.
        known.store(unsafe { real::dlsym(libc::RTLD_NEXT, name.as_ptr()) }, Ordering::Relaxed);
    }
    known.load(Ordering::Relaxed)
}

/// Declares hooks of functions that take an event and may make a thread.
macro_rules! hook_events {
    ($($name:ident $symbol:literal ($($arg:ident: $type:ty),*) $event:ident;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> c_int {
            type Function = unsafe extern "C" fn($($type),*) -> c_int;
            static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let found = next($symbol, &KNOWN);
            if found.is_null() {
                set_errno(libc::ENOSYS);
                return -1;
            }
            // SAFETY: libc's function of this signature, with the program's own arguments.
            unsafe {
                let call = || std::mem::transmute::<*mut c_void, Function>(found)($($arg),*);
                if calls($event) { trap::makes_a_thread(call) } else { call() }
            }
        }
    )*};
}
hook_events! {
    timer_create c"timer_create"
        (clock: libc::clockid_t, event: *mut libc::sigevent, timer: *mut libc::timer_t) event;
    mq_notify c"mq_notify" (queue: libc::mqd_t, event: *const libc::sigevent) event;
}
