//! The C interface of `bellpush.h`. No panic unwinds out of it. Pointers must be valid as the
//! header requires; all other arguments are checked.

mod bench;
mod endpoint;
mod job;
mod options;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bellpush::abi::wire::DeviceEndpoint;
use endpoint::{Context, End};
use job::{Comm, Failure};

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

fn tell(text: String) {
    // A NUL ends the message for C.
    let text: Vec<u8> = text.into_bytes().into_iter().take_while(|&b| b != 0).collect();
    // A thread that is ending may have no place for it any more.
    let keep =
        |error: &RefCell<CString>| *error.borrow_mut() = CString::new(text).unwrap_or_default();
    let _ = ERROR.try_with(keep);
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
        let comm = Box::new(Comm::join(&options::parse(text)?)?);
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
    let code = call(|| {
        // SAFETY: the caller's promise.
        rank = unsafe { of(comm) }?.rank()? as c_int;
        Ok(())
    });
    if code == 0 { rank } else { code }
}

/// `bellpush_ranks`.
///
/// # Safety
/// As for `bellpush_rank`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_ranks(comm: *const Comm) -> c_int {
    let mut ranks = 0;
    let code = call(|| {
        // SAFETY: the caller's promise.
        ranks = unsafe { of(comm) }?.ranks()? as c_int;
        Ok(())
    });
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
    ERROR.try_with(|error| error.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// `bellpush_code_name`.
#[unsafe(no_mangle)]
pub extern "C" fn bellpush_code_name(code: c_int) -> *const c_char {
    let name = match code {
        0 => c"BELLPUSH_OK",
        -1 => c"BELLPUSH_REFUSED",
        -2 => c"BELLPUSH_DIFFERS",
        -3 => c"BELLPUSH_FAILED",
        -4 => c"BELLPUSH_IN_USE",
        _ => c"no code of bellpush.h",
    };
    name.as_ptr()
}

// ---- Endpoints ---------------------------------------------------------------------------------

/// # Safety
/// `text` is NULL or a string.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller's promise; NULL is checked.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

/// A string that has to be there.
///
/// # Safety
/// As [`text`].
unsafe fn string<'a>(given: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { text(given) };
    let text = text.ok_or_else(|| Failure::refused(format!("{what} is NULL")))?;
    text.to_str().map_err(|e| Failure::refused(format!("{what}: {e}")))
}

/// Hands out what was made, or NULL.
///
/// # Safety
/// `place` is NULL, or valid for writing a pointer.
unsafe fn hand_out<T>(
    place: *mut *mut T,
    what: &str,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::refused(format!("{what} is NULL")));
    }
    // SAFETY: the caller's promise.
    unsafe { *place = std::ptr::null_mut() };
    let made = Box::new(make()?);
    // SAFETY: the caller's promise.
    unsafe { *place = Box::into_raw(made) };
    Ok(())
}

/// # Safety
/// `end` is NULL, or from `bellpush_endpoint_new` and not closed yet.
unsafe fn end_of<'a>(end: *const End) -> Result<&'a End, Failure> {
    // SAFETY: the caller's promise.
    unsafe { end.as_ref() }.ok_or_else(|| Failure::refused("the endpoint is NULL"))
}

/// # Safety
/// `context` is NULL, or from `bellpush_open` and not closed yet.
unsafe fn context_of<'a>(context: *const Context) -> Result<&'a Context, Failure> {
    // SAFETY: the caller's promise.
    unsafe { context.as_ref() }.ok_or_else(|| Failure::refused("the context is NULL"))
}

/// `bellpush_open`.
///
/// # Safety
/// `options` is NULL or a string; `opened` is valid for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_open(options: *const c_char, opened: *mut *mut Context) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let options = unsafe { text(options) };
        // SAFETY: the caller's promise.
        unsafe { hand_out(opened, "opened", || Context::open(&options::parse(options)?)) }
    })
}

/// `bellpush_close`.
///
/// # Safety
/// `context` is NULL, or from `bellpush_open`, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_close(context: *mut Context) {
    if !context.is_null() {
        // SAFETY: from `bellpush_open`, by the caller's promise.
        call(|| unsafe { Box::from_raw(context) }.close());
    }
}

/// `bellpush_order`.
///
/// # Safety
/// `context` is NULL, or from `bellpush_open` and not closed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_order(context: *const Context) -> c_int {
    let mut order = 0;
    let code = call(|| {
        // SAFETY: the caller's promise.
        order = unsafe { context_of(context) }?.is_strict()?.into();
        Ok(())
    });
    if code == 0 { order } else { code }
}

/// `bellpush_bench`.
///
/// # Safety
/// `context` is NULL, or from `bellpush_open` and not closed yet; `options` is NULL or a string; `rows` is NULL, or `room`
/// bytes can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_bench(
    context: *const Context,
    options: *const c_char,
    rows: *mut c_char,
    room: usize,
) -> c_int {
    let mut length = 0;
    let code = call(|| {
        // SAFETY: the caller's promise.
        let (context, options) = unsafe { (context_of(context)?, text(options)) };
        let options = options::parse(options)?;
        let room = if rows.is_null() { 0 } else { room };
        let told = bench::bench(context.parts()?, &options, room)?;
        // SAFETY: the caller's promise.
        length = unsafe { written(&told, "the table", rows, room) }?;
        Ok(())
    });
    if code == 0 { length } else { code }
}

/// `bellpush_endpoint_new`.
///
/// # Safety
/// `context` is NULL, or from `bellpush_open` and not closed yet; `path` and `options` are NULL or strings; the region
/// stays the program's until the endpoint is closed; `made` is valid for writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_endpoint_new(
    context: *const Context,
    path: *const c_char,
    options: *const c_char,
    region: *mut c_void,
    bytes: u64,
    made: *mut *mut End,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let (options, region) = (unsafe { text(options) }, region as u64);
        let make = || {
            // SAFETY: the caller's promise.
            let (context, path) = unsafe { (context_of(context)?, string(path, "the path")?) };
            let options = options::parse(options)?;
            // SAFETY: the caller's promise.
            unsafe { context.endpoint(path, &options, region, bytes) }
        };
        // SAFETY: the caller's promise.
        unsafe { hand_out(made, "made", make) }
    })
}

/// `bellpush_endpoint_close`.
///
/// # Safety
/// `end` is NULL, or from `bellpush_endpoint_new`, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_endpoint_close(end: *mut End) -> c_int {
    if end.is_null() {
        return 0;
    }
    // SAFETY: from `bellpush_endpoint_new`, by the caller's promise.
    call(|| unsafe { Box::from_raw(end) }.close())
}

/// `bellpush_endpoint_address`.
///
/// # Safety
/// `end` is NULL, or from `bellpush_endpoint_new` and not closed yet; `room` bytes can be written at `address`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_endpoint_address(
    end: *const End,
    address: *mut c_char,
    room: usize,
) -> c_int {
    let mut length = 0;
    let code = call(|| {
        // SAFETY: the caller's promise.
        let text = unsafe { end_of(end) }?.address()?;
        // SAFETY: the caller's promise.
        length = unsafe { written(&text, "the address", address, room) }?;
        Ok(())
    });
    if code == 0 { length } else { code }
}

/// Writes a text and its NUL; its length.
///
/// # Safety
/// `place` is NULL, or `room` bytes can be written there.
unsafe fn written(
    text: &str,
    what: &str,
    place: *mut c_char,
    room: usize,
) -> Result<c_int, Failure> {
    if place.is_null() {
        return Err(Failure::refused(format!("{what}: the place for it is NULL")));
    }
    if room <= text.len() {
        let need = text.len() + 1;
        return Err(Failure::refused(format!("{what} takes {need} bytes, not {room}")));
    }
    // SAFETY: the caller's promise; the text and its NUL fit.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), text.len());
        place.add(text.len()).write(0);
    }
    Ok(text.len() as c_int)
}

/// `bellpush_endpoint_connect`.
///
/// # Safety
/// `end` is NULL, or from `bellpush_endpoint_new` and not closed yet; `address` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_endpoint_connect(end: *mut End, address: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { end_of(end)?.connect(string(address, "the peer's address")?) })
}

/// `bellpush_endpoint_device`.
///
/// # Safety
/// `end` is NULL, or from `bellpush_endpoint_new` and not closed yet; `bytes` bytes can be written at `device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_endpoint_device(
    end: *const End,
    device: *mut DeviceEndpoint,
    bytes: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let end = unsafe { end_of(end) }?;
        if device.is_null() {
            return Err(Failure::refused("the place for the program's struct bp_endpoint is NULL"));
        }
        if bytes != size_of::<DeviceEndpoint>() {
            let want = size_of::<DeviceEndpoint>();
            let text = format!("the program's struct bp_endpoint has {bytes} bytes, not {want}");
            return Err(Failure::refused(text));
        }
        let found = end.device()?;
        // SAFETY: the caller's promise.
        unsafe { device.write_unaligned(found) };
        Ok(())
    })
}

/// `bellpush_endpoint_reach`.
///
/// # Safety
/// `end` is NULL, or from `bellpush_endpoint_new` and not closed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_endpoint_reach(end: *const End) -> c_int {
    let mut reach = 0;
    let code = call(|| {
        // SAFETY: the caller's promise.
        reach = c_int::from(unsafe { end_of(end) }?.is_system()?);
        Ok(())
    });
    if code == 0 { reach } else { code }
}

/// `bellpush_put`.
///
/// # Safety
/// `end` is NULL, or from `bellpush_endpoint_new` and not closed yet; `stream` is NULL, or a stream of its GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_put(
    end: *mut End,
    to: u64,
    from: u64,
    bytes: u64,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { end_of(end)?.put((from, to, bytes), None, stream as u64) })
}

/// `bellpush_put_signal`.
///
/// # Safety
/// As for `bellpush_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_put_signal(
    end: *mut End,
    to: u64,
    from: u64,
    bytes: u64,
    word: u64,
    add: u64,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { end_of(end)?.put((from, to, bytes), Some((word, add)), stream as u64) })
}

/// `bellpush_get`.
///
/// # Safety
/// As for `bellpush_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_get(
    end: *mut End,
    to: u64,
    from: u64,
    bytes: u64,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { end_of(end)?.get((from, to, bytes), stream as u64) })
}

/// `bellpush_quiet`.
///
/// # Safety
/// As for `bellpush_endpoint_reach`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_quiet(end: *mut End) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { end_of(end) }?.quiet())
}

/// `bellpush_poll_immediate`.
///
/// # Safety
/// As for `bellpush_endpoint_reach`; `value` is NULL, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bellpush_poll_immediate(end: *mut End, value: *mut u32) -> c_int {
    let mut came = 0;
    let code = call(|| {
        // SAFETY: the caller's promise.
        let end = unsafe { end_of(end) }?;
        if value.is_null() {
            return Err(Failure::refused("value is NULL"));
        }
        if let Some(immediate) = end.poll_immediate()? {
            // SAFETY: the caller's promise.
            unsafe { *value = immediate };
            came = 1;
        }
        Ok(())
    });
    if code == 0 { came } else { code }
}
