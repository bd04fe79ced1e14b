//! The C interface of `bellpush.h`. No panic unwinds out of it. Pointers must be valid as the
//! header requires; all other arguments are checked.

mod job;
mod options;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use job::{Comm, Failure};
use options::Options;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

fn tell(text: String) {
    // A NUL ends the message for C.
    let text: Vec<u8> = text.into_bytes().into_iter().take_while(|&b| b != 0).collect();
    ERROR.with_borrow_mut(|error| *error = CString::new(text).unwrap_or_default());
}

/// Executes a call and turns its failure, or a panic, into a code and a message.
fn call(what: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(what)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::failed("bellpush panicked, which is a bug"),
    };
    tell(failure.text);
    failure.code as c_int
}

/// `bellpush_join`.
///
/// # Safety
/// `options` is NULL or a string; `joined` is valid for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_join(options: *const c_char, joined: *mut *mut Comm) -> c_int {
    call(|| {
        if joined.is_null() {
            return Err(Failure::refused("bellpush_join: joined is NULL"));
        }
        // SAFETY: the caller's promise.
        unsafe { *joined = std::ptr::null_mut() };
        // SAFETY: the caller's promise; NULL was checked.
        let text = (!options.is_null()).then(|| unsafe { CStr::from_ptr(options) });
        let comm = Box::new(Comm::join(&Options::parse(text)?)?);
        // SAFETY: the caller's promise.
        unsafe { *joined = Box::into_raw(comm) };
        Ok(())
    })
}

/// # Safety
/// `comm` is NULL, or from `bellpush_join` and not left yet.
unsafe fn of<'a>(comm: *const Comm) -> Result<&'a Comm, Failure> {
    // SAFETY: the caller's promise.
    unsafe { comm.as_ref() }.ok_or_else(|| Failure::refused("the communicator is NULL"))
}

/// `bellpush_rank`.
///
/// # Safety
/// `comm` is NULL, or from `bellpush_join` and not left yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_rank(comm: *const Comm) -> c_int {
    let mut rank = 0;
    // SAFETY: the caller's promise.
    let code = call(|| unsafe { of(comm) }.map(|comm| rank = comm.rank() as c_int));
    if code == 0 { rank } else { code }
}

/// `bellpush_ranks`.
///
/// # Safety
/// As for `bellpush_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_ranks(comm: *const Comm) -> c_int {
    let mut ranks = 0;
    // SAFETY: the caller's promise.
    let code = call(|| unsafe { of(comm) }.map(|comm| ranks = comm.ranks() as c_int));
    if code == 0 { ranks } else { code }
}

/// `bellpush_all_reduce`.
///
/// # Safety
/// `comm` as for `bellpush_rank`. The elements stay the program's memory, and `stream` stays a stream
/// of the communicator's GPU, until the call is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_all_reduce(
    comm: *mut Comm,
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dtype: c_int,
    op: c_int,
    stream: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let comm = unsafe { of(comm) }?;
        let (dtype, op) = (options::dtype(dtype)?, options::op(op)?);
        // SAFETY: the caller's promise.
        unsafe { comm.all_reduce((input as u64, output as u64), count, dtype, op, stream as u64) }
    })
}

/// `bellpush_synchronize`.
///
/// # Safety
/// As for `bellpush_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_synchronize(comm: *mut Comm) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { of(comm) }?.synchronize())
}

/// `bellpush_leave`.
///
/// # Safety
/// As for `bellpush_rank`; `comm` is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_leave(comm: *mut Comm) {
    if comm.is_null() {
        return;
    }
    call(|| {
        // SAFETY: from `bellpush_join`, by the caller's promise.
        let comm = unsafe { Box::from_raw(comm) };
        comm.leave();
        Ok(())
    });
}

/// `bellpush_error`.
#[unsafe(no_mangle)]
pub extern "C" fn bellpush_error() -> *const c_char {
    ERROR.with_borrow(|error| error.as_ptr())
}
