//! CUDA through the driver API: cudarc's safe layer where it has one, `driver::sys` in the small
//! wrappers of this folder where not.
//!
//! Every function that calls the driver first makes the GPU's primary context current in the
//! calling thread. Event tracking is off: cudarc must never make one stream wait for another.

mod copy;
mod kernels;
mod nccl;
mod pin;
mod queue;

use std::ffi::{CStr, c_char};
use std::sync::{Arc, Mutex, Once, OnceLock};
use std::time::Duration;

use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute, CUresult};
use cudarc::driver::{CudaContext, DriverError, result};

use super::{About, GpuError, module};
use copy::CopyLanes;

pub(super) use copy::Memory;
pub(super) use kernels::{Function, LoadedModule};
pub(super) use nccl::{Comm, unique_id as nccl_unique_id, version as nccl_version};
pub(super) use pin::Pin;
pub(super) use queue::{Graph, Mark, Queue};

/// The driver calls that enumerate and load a module's functions came with CUDA 12.4.
const LEAST_DRIVER: i32 = 12_040;
/// The oldest compute capability that the kernels are compiled for.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);
/// A copy that takes longer means a GPU that hangs.
const COPY_LIMIT: Duration = Duration::from_secs(20);

/// One GPU: its primary context, and the streams of its memory's copies.
pub(super) struct Device {
    ctx: Arc<CudaContext>,
    copies: CopyLanes,
    /// Held for a whole read-modify-write.
    atomics: Mutex<()>,
    name: String,
}

/// The error of a call that returned `code`.
fn failed(call: &'static str, code: CUresult) -> GpuError {
    GpuError::Cuda { call, error: error_name(DriverError(code)) }
}

fn error_name(error: DriverError) -> String {
    let text = |s: Result<&CStr, DriverError>| s.ok().map(|s| s.to_string_lossy().into_owned());
    match (text(error.error_name()), text(error.error_string())) {
        (Some(name), Some(what)) => format!("{name} ({what})"),
        (Some(name), None) => name,
        _ => format!("CUDA error {}", error.0 as u32),
    }
}

/// A call of `driver::sys`.
fn check(call: &'static str, code: CUresult) -> Result<(), GpuError> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failed(call, code)) }
}

/// A call of cudarc's safe layer.
fn safe<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, GpuError> {
    result.map_err(|error| failed(call, error.0))
}

/// GPUs that the driver sees; initialises the driver.
pub(super) fn count() -> Result<usize, GpuError> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: opens libcuda by name and closes it again; its initialisers are NVIDIA's.
    if !*PRESENT.get_or_init(|| unsafe { sys::is_culib_present() }) {
        return Err(GpuError::NoDriver); // any other call of cudarc would panic
    }
    static ENVIRONMENT: Once = Once::new();
    ENVIRONMENT.call_once(|| {
        for (name, value) in [
            // Loading a kernel at its first launch waits for running kernels: load all at once.
            // Where the program set it otherwise, Device::load still loads each function of ours.
            ("CUDA_MODULE_LOADING", "EAGER"),
            // Streams that share one of the (by default 8) connections wait for each other, and a
            // copy that waits for a spinning kernel is a deadlock: as many as there can be.
            ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
        ] {
            if std::env::var_os(name).is_none() {
                // SAFETY: once, before cuInit reads it; Rust's own readers of the environment are
                // locked out, and foreign threads that call setenv or getenv at this very moment
                // are the race that a program avoids by opening its GPU before it starts them.
                unsafe { std::env::set_var(name, value) };
            }
        }
    });
    let mut version = 0;
    // SAFETY: writes one int; allowed before cuInit.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
    if version < LEAST_DRIVER {
        return Err(GpuError::OldDriver { version });
    }
    match result::init() {
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => return Ok(0),
        other => safe("cuInit", other)?,
    }
    let count = safe("cuDeviceGetCount", CudaContext::device_count())?;
    Ok(usize::try_from(count).unwrap_or(0))
}

impl Device {
    pub(super) fn open(ordinal: usize) -> Result<(Arc<Self>, About), GpuError> {
        let count = count()?;
        if count == 0 {
            return Err(GpuError::NoDevice);
        }
        if ordinal >= count {
            return Err(GpuError::NoSuchDevice { ordinal, count });
        }
        if !cfg!(bellpush_cubin) {
            return Err(GpuError::NotBuilt { reason: module::WHY_NO_FATBINS });
        }
        let ctx = safe("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))?;
        // SAFETY: no CudaSlice is ever made; ordering and lifetimes are Stream's and DeviceMem's.
        unsafe { ctx.disable_event_tracking() };
        let about = about(&ctx)?;
        let name = about.name.clone().unwrap_or_default();
        let (major, minor) = about.capability.unwrap_or_default();
        if (major, minor) < LEAST_CAPABILITY {
            return Err(GpuError::UnsupportedArch { name, major, minor });
        }
        let copies = CopyLanes::new(&ctx)?;
        Ok((Arc::new(Self { ctx, copies, atomics: Mutex::new(()), name }), about))
    }

    pub(super) fn ordinal(&self) -> usize {
        self.ctx.ordinal()
    }

    /// Lets this GPU's kernels reach the other's memory; enabling it twice is fine.
    pub(super) fn enable_peer(&self, other: &Self) -> Result<(), GpuError> {
        let mut can = 0;
        // SAFETY: writes one int.
        check("cuDeviceCanAccessPeer", unsafe {
            sys::cuDeviceCanAccessPeer(&raw mut can, self.ctx.cu_device(), other.ctx.cu_device())
        })?;
        if can == 0 {
            return Err(GpuError::NoPeer { from: self.ordinal(), to: other.ordinal() });
        }
        self.make_current()?;
        // SAFETY: the other context is retained by `other`, and by its memory after that.
        match unsafe { sys::cuCtxEnablePeerAccess(other.ctx.cu_ctx(), 0) } {
            CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => Err(failed("cuCtxEnablePeerAccess", code)),
        }
    }

    /// Checks that a range is memory of this GPU, allocated or managed.
    pub(super) fn owns(&self, addr: u64, bytes: usize) -> Result<(), GpuError> {
        self.make_current()?;
        let foreign = GpuError::NotGpuMemory { gpu: self.ordinal(), addr, bytes };
        let (mut start, mut length, mut ordinal) = (0, 0usize, -1i32);
        let which = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: each writes its results; the driver refuses an address that is none of its own.
        let codes = unsafe {
            [
                sys::cuMemGetAddressRange_v2(&raw mut start, &raw mut length, addr),
                sys::cuPointerGetAttribute((&raw mut ordinal).cast(), which, addr),
            ]
        };
        let inside = addr.checked_add(bytes as u64).is_some_and(|end| end <= start + length as u64);
        let known = codes.iter().all(|&code| code == CUresult::CUDA_SUCCESS);
        if known && inside && usize::try_from(ordinal) == Ok(self.ordinal()) {
            Ok(())
        } else {
            Err(foreign)
        }
    }

    fn make_current(&self) -> Result<(), GpuError> {
        make_current(&self.ctx)
    }
}

fn make_current(ctx: &CudaContext) -> Result<(), GpuError> {
    safe("cuCtxSetCurrent", ctx.bind_to_thread())
}

fn about(ctx: &CudaContext) -> Result<About, GpuError> {
    let attribute = |which| safe("cuDeviceGetAttribute", ctx.attribute(which));
    let mut pci: [c_char; 32] = [0; 32];
    // SAFETY: writes at most the stated length, with the final 0.
    let code = unsafe { sys::cuDeviceGetPCIBusId(pci.as_mut_ptr(), 31, ctx.cu_device()) };
    check("cuDeviceGetPCIBusId", code)?;
    // SAFETY: the array's last byte is 0 whatever was written.
    let pci = unsafe { CStr::from_ptr(pci.as_ptr()) }.to_string_lossy().to_ascii_lowercase();
    let mut version = 0;
    // SAFETY: writes one int.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
    let positive = |n: i32| u32::try_from(n).ok().filter(|&n| n > 0);
    Ok(About {
        name: Some(safe("cuDeviceGetName", ctx.name())?),
        pci: Some(pci),
        sms: positive(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?).unwrap_or(1),
        clock_khz: positive(attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?),
        memory_bytes: Some(safe("cuDeviceTotalMem", ctx.total_mem())? as u64),
        capability: Some(safe("cuDeviceGetAttribute", ctx.compute_capability())?),
        driver: Some((version / 1000, version % 1000 / 10)),
    })
}
