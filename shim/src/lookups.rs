//! Functions that programs look up by name, `dlsym` and `dlvsym`, past the loader's own binding.
//!
//! NCCL finds libibverbs so, and each copy of CUDA's runtime the driver. What they get for two names is a function of
//! this object: libibverbs' `ibv_open_device` (`verbs`), and the driver's way to `cuMemHostRegister`. All else is
//! libc's answer, given to the caller as if libc had been called.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::real;
use crate::trap;
use crate::verbs;

/// `CU_MEMHOSTREGISTER_IOMEMORY` (CUDA Driver API, `cuMemHostRegister`).
const IO_MEMORY: c_uint = 4;
/// `CUDA_ERROR_NOT_FOUND`.
const NOT_FOUND: c_int = 500;
/// What `/proc/self/maps` calls the memory of a device: its UARs among it.
const OF_A_DEVICE: &str = "/memfd:bellpush-uverbs";

/// Defines the hook of a function of libc that finds others: it jumps to what `who` names, with the registers and the
/// stack as they were, because libc takes `RTLD_NEXT` to be of the object that called it.
#[cfg(target_arch = "x86_64")]
macro_rules! hook_lookup {
    ($name:ident, ($($arg:ident: $type:ty),*), $who:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> *mut c_void {
            std::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "call {who}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                who = sym $who,
            )
        }
    };
}
/// The same with the registers of AArch64 (AAPCS64): the link register says who has called.
#[cfg(target_arch = "aarch64")]
macro_rules! hook_lookup {
    ($name:ident, ($($arg:ident: $type:ty),*), $who:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> *mut c_void {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-48]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {who}",
                "mov x16, x0",
                "ldr x2, [sp, #32]",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #48",
                "br x16",
                who = sym $who,
            )
        }
    };
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "a jump to libc's function with the arguments as they came, in this processor's instructions"
);
hook_lookup!(dlsym, (library: *mut c_void, name: *const c_char), who_answers_dlsym);
hook_lookup!(
    dlvsym,
    (library: *mut c_void, name: *const c_char, version: *const c_char),
    who_answers_dlvsym
);

/// What answers a `dlsym`. Nothing is allocated; a use before the object's constructor takes the loader's lock, which
/// the caller's thread may hold already.
extern "C" fn who_answers_dlsym(_: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: null, or a C string, as the C function's caller promises.
    let asks = |it: &CStr| !name.is_null() && unsafe { CStr::from_ptr(name) } == it;
    if asks(c"cuGetProcAddress_v2") { look_up_driver as *mut c_void } else { real::dlsym_itself() }
}

/// What answers a `dlvsym`.
extern "C" fn who_answers_dlvsym(_: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: as above.
    let asks = |it: &CStr| !name.is_null() && unsafe { CStr::from_ptr(name) } == it;
    if asks(c"ibv_open_device") {
        verbs::look_up_open as *mut c_void
    } else {
        real::dlvsym_itself()
    }
}

type ProcAddress = unsafe extern "C" fn(
    symbol: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> c_int;
type HostRegister = unsafe extern "C" fn(at: *mut c_void, bytes: usize, flags: c_uint) -> c_int;

static PROC_ADDRESS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static HOST_REGISTER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The driver's `cuGetProcAddress_v2`, with ours before it.
extern "C" fn look_up_driver(library: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the program's own arguments.
    let found = unsafe { real::dlsym(library, name) };
    if found.is_null() {
        return found;
    }
    PROC_ADDRESS.store(found, Ordering::Release);
    proc_address as *mut c_void
}

/// `cuGetProcAddress` of CUDA 12 and later: what it finds is the driver's, but for `cuMemHostRegister`.
unsafe extern "C" fn proc_address(
    symbol: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> c_int {
    // SAFETY: the driver's function, which was found before this one was given away, with the program's arguments; it
    // has written to `found` if it says that it found something, and `symbol` is a C string then.
    unsafe {
        let original = PROC_ADDRESS.load(Ordering::Acquire);
        let original = std::mem::transmute::<*mut c_void, ProcAddress>(original);
        let result = original(symbol, found, version, flags, status);
        if result == 0 && !found.is_null() && !(*found).is_null() {
            match CStr::from_ptr(symbol).to_bytes() {
                b"cuMemHostRegister" => {
                    HOST_REGISTER.store(*found, Ordering::Release);
                    *found = host_register as *mut c_void;
                }
                // Of this one the runtime looks everything else up.
                b"cuGetProcAddress" if version >= 12000 => *found = proc_address as *mut c_void,
                _ => {}
            }
        }
        result
    }
}

/// `cuMemHostRegister`: a UAR of a real NIC is I/O memory, which the driver wants to be told. Of a software device it is
/// memory, which the driver refuses under that name; it is registered as what it is.
unsafe extern "C" fn host_register(at: *mut c_void, bytes: usize, flags: c_uint) -> c_int {
    let original = HOST_REGISTER.load(Ordering::Acquire);
    if original.is_null() {
        return NOT_FOUND;
    }
    let is_ours = is_of_a_device(at as usize, bytes);
    if is_ours {
        trap::give_away();
    }
    let flags = if is_ours { flags & !IO_MEMORY } else { flags };
    // SAFETY: the driver's function with the program's own arguments.
    unsafe { std::mem::transmute::<*mut c_void, HostRegister>(original)(at, bytes, flags) }
}

/// Whether a range lies in memory of one of our devices, as the program has mapped it.
fn is_of_a_device(at: usize, bytes: usize) -> bool {
    let Some(end) = at.checked_add(bytes) else { return false };
    let Ok(maps) = std::fs::File::open("/proc/self/maps") else { return false };
    BufReader::new(maps).lines().map_while(Result::ok).any(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        let holds = range.is_some_and(|(from, to)| {
            number(from).is_some_and(|from| from <= at) && number(to).is_some_and(|to| end <= to)
        });
        holds && line.contains(OF_A_DEVICE)
    })
}
