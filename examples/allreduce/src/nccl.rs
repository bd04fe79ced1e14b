//! NCCL, NVIDIA's collective library, on the same GPUs and streams, for comparison: its C interface (nccl.h of 2.4
//! and later), loaded at run time, in the six functions that an all-reduce needs.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bellpush::gpu::{DeviceMem, Gpu, Kept, Stream};
use bellpush::mem::Dma;
use libloading::Library;

use crate::Failure;

/// Bytes of `ncclUniqueId`.
pub const UNIQUE_ID_BYTES: usize = 128;

/// Names of the library for the loader. PyTorch's wheels have the first name only.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// NCCL's `ncclDataType_t`: the types that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum NcclType {
    I32 = 2,
    F16 = 6,
    F32 = 7,
    Bf16 = 9,
}

/// NCCL's `ncclRedOp_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum NcclOp {
    Sum = 0,
    Max = 2,
    Min = 3,
    Mean = 4,
}

impl NcclType {
    const fn bytes(self) -> u64 {
        match self {
            Self::I32 | Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

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
fn calls() -> Result<Calls, Failure> {
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
    LOADED.get_or_init(load).clone().map_err(|error| {
        format!("no NCCL: {error} (LD_LIBRARY_PATH says where libnccl.so.2 is)").into()
    })
}

impl Calls {
    fn check(&self, call: &str, code: Code) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: a constant string for any code.
        let text = unsafe { CStr::from_ptr((self.error)(code)) };
        Err(format!("{call}: {}", text.to_string_lossy()).into())
    }
}

/// A rank of a NCCL communicator. NCCL chooses its transports from its environment, once per process
/// (`NCCL_P2P_DISABLE=1` for host memory).
pub struct Nccl {
    gpu: Arc<Gpu>,
    comm: Arc<Comm>,
}

impl Nccl {
    /// The library's version, 10000 major + 100 minor + patch.
    pub fn version() -> Result<i32, Failure> {
        let calls = calls()?;
        let mut version = 0;
        // SAFETY: writes one int.
        calls.check("ncclGetVersion", unsafe { (calls.version)(&raw mut version) })?;
        Ok(version)
    }

    /// Identifier of a communicator, which one rank creates and all ranks join with.
    pub fn unique_id() -> Result<[u8; UNIQUE_ID_BYTES], Failure> {
        let calls = calls()?;
        let mut id = UniqueId([0; UNIQUE_ID_BYTES]);
        // SAFETY: writes one id.
        calls.check("ncclGetUniqueId", unsafe { (calls.unique_id)(&raw mut id) })?;
        Ok(id.0)
    }

    /// Joins as rank `rank` of `ranks`, each on a GPU of its own; waits for all of them, in a separate thread, since
    /// NCCL's wait is unbounded. After a timeout that thread stays behind.
    pub fn join(
        gpu: &Arc<Gpu>,
        id: [u8; UNIQUE_ID_BYTES],
        (rank, ranks): (u32, u32),
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let calls = calls()?;
        let (tell, told) = mpsc::channel();
        let device = gpu.clone();
        let join = move || {
            let mut raw = std::ptr::null_mut();
            let (rank, ranks) = (rank as c_int, ranks as c_int);
            // SAFETY: the context is current; writes one pointer.
            let init = || unsafe { (calls.init)(&raw mut raw, ranks, UniqueId(id), rank) };
            let code = device.with_context(init);
            let joined = code.map_err(Failure::from).and_then(|code| {
                calls.check("ncclCommInitRank", code)?;
                Ok(Comm { calls, gpu: device, raw: Mutex::new(Raw(raw)) })
            });
            // After the timeout the receiver is gone; the communicator is then dropped here.
            let _ = tell.send(joined);
        };
        std::thread::Builder::new().name("nccl".into()).spawn(join)?;
        let comm = told.recv_timeout(timeout).unwrap_or_else(|why| {
            Err(match why {
                RecvTimeoutError::Timeout => format!("ncclCommInitRank: not done in {timeout:?}"),
                RecvTimeoutError::Disconnected => "ncclCommInitRank: its thread panicked".into(),
            }
            .into())
        })?;
        Ok(Self { gpu: gpu.clone(), comm: Arc::new(comm) })
    }

    /// Queues an all-reduce of `count` elements; `output` may be `input`.
    pub fn all_reduce(
        &self,
        stream: &Stream,
        (input, output): (&Arc<DeviceMem>, &Arc<DeviceMem>),
        count: u64,
        (dtype, op): (NcclType, NcclOp),
    ) -> Result<(), Failure> {
        for memory in [input, output] {
            if !Arc::ptr_eq(memory.gpu(), &self.gpu) || !Arc::ptr_eq(stream.gpu(), &self.gpu) {
                return Err("memory or stream of another GPU than the communicator's".into());
            }
            if count.saturating_mul(dtype.bytes()) > memory.bytes() as u64 {
                return Err(format!("{count} elements are more than {}", memory.bytes()).into());
            }
        }
        let mut kept: Vec<Kept> = vec![input.clone(), output.clone()];
        if stream.is_recording() {
            // The graph refers to the communicator's memory. A queued call needs no such guard: the drop of the
            // communicator ends it.
            kept.push(self.comm.clone());
        }
        let Comm { calls, raw, .. } = &*self.comm;
        let (from, to) = (input.addr() as *const c_void, output.addr() as *mut c_void);
        let code = stream.queue_foreign(kept, |queue| {
            let raw = raw.lock().unwrap_or_else(PoisonError::into_inner);
            let (dtype, op) = (dtype as c_int, op as c_int);
            // SAFETY: both hold `count` elements and are kept until the stream is idle; the lock is held.
            unsafe { (calls.all_reduce)(from, to, count as usize, dtype, op, raw.0, queue) }
        })?;
        calls.check("ncclAllReduce", code)
    }
}

/// A rank's `ncclComm_t`.
struct Comm {
    calls: Calls,
    gpu: Arc<Gpu>,
    raw: Mutex<Raw>,
}

struct Raw(*mut c_void);
// SAFETY: NCCL's communicators are used from any thread, by one at a time.
unsafe impl Send for Raw {}

impl Drop for Comm {
    fn drop(&mut self) {
        let raw = self.raw.get_mut().unwrap_or_else(PoisonError::into_inner).0;
        let abort = self.calls.abort;
        // SAFETY: the communicator is this one's, and used no more. Abort rather than destroy, which waits for the
        // other ranks.
        let _ = self.gpu.with_context(|| unsafe { abort(raw) });
    }
}
