//! NCCL through its C interface (nccl.h of 2.4 and later), loaded at run time: the six functions
//! that an all-reduce needs.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use libloading::Library;

use super::{Device, Queue};
use crate::gpu::GpuError;
use crate::gpu::nccl::{NcclOp, NcclType, UNIQUE_ID_BYTES};

/// Names of the library for the loader. PyTorch's wheels have the first name only.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

type Code = c_int;

/// `ncclUniqueId`, which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
struct UniqueId([u8; UNIQUE_ID_BYTES]);

#[derive(Clone, Copy)]
struct Calls {
    version: unsafe extern "C" fn(*mut c_int) -> Code,
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> Code,
    init: unsafe extern "C" fn(*mut *mut c_void, c_int, UniqueId, c_int) -> Code,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        *mut c_void,
        *mut c_void,
    ) -> Code,
    abort: unsafe extern "C" fn(*mut c_void) -> Code,
    error: unsafe extern "C" fn(Code) -> *const c_char,
}

/// The library's functions. The library stays loaded until the process ends.
fn calls() -> Result<Calls, GpuError> {
    static LOADED: OnceLock<Result<Calls, String>> = OnceLock::new();
    let load = || {
        // SAFETY: the initialisers are NVIDIA's.
        let open = |name: &&str| unsafe { Library::new(*name) };
        let mut why = String::new();
        let found = NAMES.iter().find_map(|n| open(n).map_err(|e| why = e.to_string()).ok());
        let library: &'static Library = Box::leak(Box::new(found.ok_or(why)?));
        macro_rules! call {
            ($name:literal) => {
                // SAFETY: the type is the one of nccl.h.
                *unsafe { library.get($name) }.map_err(|e| e.to_string())?
            };
        }
        Ok(Calls {
            version: call!(b"ncclGetVersion\0"),
            unique_id: call!(b"ncclGetUniqueId\0"),
            init: call!(b"ncclCommInitRank\0"),
            all_reduce: call!(b"ncclAllReduce\0"),
            abort: call!(b"ncclCommAbort\0"),
            error: call!(b"ncclGetErrorString\0"),
        })
    };
    LOADED.get_or_init(load).clone().map_err(|error| GpuError::NoNccl { error })
}

impl Calls {
    fn check(&self, call: &'static str, code: Code) -> Result<(), GpuError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: a constant string for any code.
        let text = unsafe { CStr::from_ptr((self.error)(code)) };
        Err(GpuError::Nccl { call, error: text.to_string_lossy().into_owned() })
    }
}

pub(in crate::gpu) fn version() -> Result<i32, GpuError> {
    let calls = calls()?;
    let mut version = 0;
    // SAFETY: writes one int.
    calls.check("ncclGetVersion", unsafe { (calls.version)(&raw mut version) })?;
    Ok(version)
}

pub(in crate::gpu) fn unique_id() -> Result<[u8; UNIQUE_ID_BYTES], GpuError> {
    let calls = calls()?;
    let mut id = UniqueId([0; UNIQUE_ID_BYTES]);
    // SAFETY: writes one id.
    calls.check("ncclGetUniqueId", unsafe { (calls.unique_id)(&raw mut id) })?;
    Ok(id.0)
}

/// A rank's `ncclComm_t`.
pub(in crate::gpu) struct Comm {
    calls: Calls,
    device: Arc<Device>,
    raw: Mutex<Raw>,
}

struct Raw(*mut c_void);
// SAFETY: NCCL's communicators are used from any thread, by one at a time.
unsafe impl Send for Raw {}

impl Comm {
    /// Waits for the other ranks in a separate thread, since NCCL's wait is unbounded. After a
    /// timeout that thread stays behind.
    pub(in crate::gpu) fn join(
        device: &Arc<Device>,
        id: [u8; UNIQUE_ID_BYTES],
        (rank, ranks): (u32, u32),
        timeout: Duration,
    ) -> Result<Self, GpuError> {
        let calls = calls()?;
        let (tell, told) = mpsc::channel();
        let device = device.clone();
        let join = move || {
            let joined = device.make_current().and_then(|_current| {
                let mut raw = std::ptr::null_mut();
                let (rank, ranks) = (rank as c_int, ranks as c_int);
                // SAFETY: the context is current; writes one pointer.
                let code = unsafe { (calls.init)(&raw mut raw, ranks, UniqueId(id), rank) };
                calls.check("ncclCommInitRank", code)?;
                Ok(Self { calls, device, raw: Mutex::new(Raw(raw)) })
            });
            // After the timeout the receiver is gone; the communicator is then dropped here.
            let _ = tell.send(joined);
        };
        std::thread::Builder::new()
            .name("bellpush-nccl".into())
            .spawn(join)
            .map_err(|source| GpuError::System { call: "starting a thread", source })?;
        let call = "ncclCommInitRank";
        told.recv_timeout(timeout).unwrap_or_else(|why| {
            Err(match why {
                RecvTimeoutError::Timeout => GpuError::Timeout { what: call, after: timeout },
                RecvTimeoutError::Disconnected => {
                    GpuError::Nccl { call, error: "the thread that called it panicked".into() }
                }
            })
        })
    }

    /// # Safety
    /// Both addresses have `count` elements until the stream is idle.
    pub(in crate::gpu) unsafe fn all_reduce(
        &self,
        queue: &Queue,
        (input, output): (u64, u64),
        count: u64,
        (dtype, op): (NcclType, NcclOp),
    ) -> Result<(), GpuError> {
        let _current = self.device.make_current()?;
        let (input, output) = (input as *const c_void, output as *mut c_void);
        let (dtype, op) = (dtype as c_int, op as c_int);
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        let (call, count) = (self.calls.all_reduce, count as usize);
        // SAFETY: the caller's promise; the lock is held.
        let code = unsafe { call(input, output, count, dtype, op, raw.0, queue.raw()) };
        drop(raw);
        self.calls.check("ncclAllReduce", code)
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.make_current() {
            let raw = self.raw.get_mut().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the communicator is this one's, and used no more. Abort rather than destroy,
            // which waits for the other ranks.
            unsafe { (self.calls.abort)(raw.0) };
        }
    }
}
