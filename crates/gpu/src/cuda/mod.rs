//! CUDA through the driver API: cudarc's safe layer where it covers a call, else `driver::sys` in
//! the small wrappers of this folder.
//!
//! Every function that calls the driver first makes the GPU's primary context current in the
//! calling thread, and restores the thread's previous context afterwards. cudarc's event tracking
//! is off: cudarc must never make one stream wait for another.

mod copy;
mod kernels;
mod pin;
mod pins;
mod queue;

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute, CUresult};
use cudarc::driver::{CudaContext, DriverError, result};

use super::{About, GpuError};
use bellpush_mem::own_thread;
use copy::CopyLanes;

pub(super) use copy::Memory;
pub(super) use kernels::{Function, LoadedModule};
pub(super) use pin::Pin;
pub(super) use queue::{Graph, Mark, Queue};

/// Oldest supported driver. CUDA 12.4 introduced the calls that enumerate and load a module's
/// functions.
const LEAST_DRIVER: i32 = 12_040;
/// Oldest compute capability for which the kernels are compiled.
const LEAST_CAPABILITY: (i32, i32) = (8, 0);
/// Bound of a copy; a longer one means that the GPU hangs.
const COPY_LIMIT: Duration = Duration::from_secs(20);

/// One GPU: its primary context, and the streams for copies of its memory.
pub(super) struct Device {
    ctx: Context,
    copies: CopyLanes,
    /// Held for a whole read-modify-write.
    atomics: Mutex<()>,
    /// The library's own kernels, once something has asked for them.
    builtin: Mutex<Option<Arc<LoadedModule>>>,
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

/// Checks the result of a call of `driver::sys`.
fn check(call: &'static str, code: CUresult) -> Result<(), GpuError> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failed(call, code)) }
}

/// Checks the result of a call of cudarc's safe layer.
fn safe<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, GpuError> {
    result.map_err(|error| failed(call, error.0))
}

/// Number of GPUs that the driver sees; initialises the driver.
pub(super) fn count() -> Result<usize, GpuError> {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: opens libcuda by name and closes it again; its initialisers are NVIDIA's.
    if !*PRESENT.get_or_init(|| unsafe { sys::is_culib_present() }) {
        return Err(GpuError::NoDriver); // any other call of cudarc would panic
    }
    super::environment::prepare();
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
        if let Some(reason) = super::Gpu::why_not_built() {
            return Err(GpuError::NotBuilt { reason });
        }
        let _callers = Caller::note()?;
        let ctx = Ours::new(safe("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))?);
        // SAFETY: no CudaSlice is ever made; ordering and lifetimes are Stream's and DeviceMem's.
        unsafe { ctx.disable_event_tracking() };
        let about = about(&ctx)?;
        let name = about.name.clone().unwrap_or_default();
        let (major, minor) = about.capability.unwrap_or_default();
        if (major, minor) < LEAST_CAPABILITY {
            return Err(GpuError::UnsupportedArch { name, major, minor });
        }
        let copies = CopyLanes::new(&ctx)?;
        let (atomics, builtin) = (Mutex::default(), Mutex::default());
        Ok((Arc::new(Self { ctx, copies, atomics, builtin, name }), about))
    }

    pub(super) fn ordinal(&self) -> usize {
        self.ctx.ordinal()
    }

    /// Lets this GPU's kernels access the other GPU's memory. A repeated call is harmless.
    pub(super) fn enable_peer(&self, other: &Self) -> Result<(), GpuError> {
        let mut can = 0;
        // SAFETY: writes one int.
        check("cuDeviceCanAccessPeer", unsafe {
            sys::cuDeviceCanAccessPeer(&raw mut can, self.ctx.cu_device(), other.ctx.cu_device())
        })?;
        if can == 0 {
            return Err(GpuError::NoPeer { from: self.ordinal(), to: other.ordinal() });
        }
        let _current = self.make_current()?;
        // SAFETY: the other context is retained by `other`, and by its memory after that.
        match unsafe { sys::cuCtxEnablePeerAccess(other.ctx.cu_ctx(), 0) } {
            CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => Err(failed("cuCtxEnablePeerAccess", code)),
        }
    }

    /// Checks that a range is memory of this GPU: allocated, managed, or mapped piece by piece
    /// (virtual memory management, such as PyTorch's expandable segments).
    pub(super) fn owns(&self, addr: u64, bytes: usize) -> Result<(), GpuError> {
        let _current = self.make_current()?;
        if covered(addr, bytes, |at| self.piece(at)) {
            Ok(())
        } else {
            Err(GpuError::NotGpuMemory { gpu: self.ordinal(), addr, bytes })
        }
    }

    /// End of the piece of this GPU's memory that contains an address.
    fn piece(&self, addr: u64) -> Option<u64> {
        use sys::CUpointer_attribute::{
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_MANAGED,
            CU_POINTER_ATTRIBUTE_MAPPED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        };
        const HOST: i32 = sys::CUmemorytype::CU_MEMORYTYPE_HOST as i32;
        let number = |which| {
            let mut value = 0i32;
            // SAFETY: writes a number of at most 4 bytes; an address that the driver does not know is refused.
            let code = unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), which, addr) };
            (code == CUresult::CUDA_SUCCESS).then_some(value)
        };
        let ordinal = usize::try_from(number(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?);
        if ordinal != Ok(self.ordinal()) {
            return None;
        }
        // Pinned host memory has the ordinal of the GPU that it was pinned for.
        let managed = || number(CU_POINTER_ATTRIBUTE_IS_MANAGED).is_some_and(|it| it & 0xff != 0);
        if number(CU_POINTER_ATTRIBUTE_MEMORY_TYPE)? == HOST && !managed() {
            return None;
        }
        let (mut start, mut length) = (0, 0usize);
        // SAFETY: writes both results, or refuses the address.
        let code = unsafe { sys::cuMemGetAddressRange_v2(&raw mut start, &raw mut length, addr) };
        if code == CUresult::CUDA_SUCCESS {
            return start.checked_add(length as u64);
        }
        // For memory that the call does not know, only the mapping of this page is certain.
        (number(CU_POINTER_ATTRIBUTE_MAPPED)? & 0xff != 0)
            .then(|| (addr & !(MAPPED_BYTES - 1)).checked_add(MAPPED_BYTES))?
    }

    pub(super) fn make_current(&self) -> Result<Current, GpuError> {
        make_current(&self.ctx)
    }
}

/// Least size of a mapping by the driver (the granularity of `cuMemCreate`).
const MAPPED_BYTES: u64 = 2 << 20;

/// Whether adjacent pieces cover a range. `piece` returns the end of the piece that contains an
/// address.
fn covered(addr: u64, bytes: usize, piece: impl Fn(u64) -> Option<u64>) -> bool {
    let Some(end) = addr.checked_add(bytes as u64) else { return false };
    let mut at = addr;
    loop {
        match piece(at) {
            Some(to) if to >= end => return true,
            Some(to) if to > at => at = to,
            _ => return false,
        }
    }
}

/// Makes a context current until the result is dropped.
///
/// A nested call costs nothing, so a poller holds one around its whole wait. On the library's own
/// threads the outermost one leaves its context current: no other code relies on another context
/// there, and two changes around each copy of the engine would be noticeable.
fn make_current(ctx: &CudaContext) -> Result<Current, GpuError> {
    // What a drop of cudarc's met it keeps, and says as the next call's error. Nobody can do anything about it, and a
    // context that is broken says so by itself.
    let _ = ctx.check_err();
    let raw = ctx.cu_ctx() as usize;
    let (before, depth) = HELD.get();
    let mut callers = None;
    if before != raw {
        callers = Some(Caller::note()?);
        safe("cuCtxSetCurrent", ctx.bind_to_thread())?;
    }
    HELD.set((raw, depth + 1));
    if depth == 0 && own_thread::is_own() {
        std::mem::forget(callers);
        return Ok(Current { before: raw, _callers: None });
    }
    Ok(Current { before, _callers: callers })
}

thread_local! {
    /// The context that this thread's innermost [`Current`] has made current, and the number of
    /// nested ones.
    static HELD: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

/// Keeps one of our contexts current while it lives.
pub(crate) struct Current {
    /// The context of the enclosing [`Current`]; 0 for none.
    before: usize,
    _callers: Option<Caller>,
}

impl Drop for Current {
    fn drop(&mut self) {
        let (_, depth) = HELD.get();
        HELD.set((self.before, depth - 1));
    }
}

/// The context that was current in this thread before, on which the program relies; restored on
/// drop.
struct Caller(sys::CUcontext);

impl Caller {
    fn note() -> Result<Self, GpuError> {
        let current = safe("cuCtxGetCurrent", result::ctx::get_current())?;
        Ok(Self(current.unwrap_or(std::ptr::null_mut())))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // SAFETY: the thread's own, or null for none. If its owner has destroyed it meanwhile, the driver
        // refuses it at the next call.
        let _ = unsafe { sys::cuCtxSetCurrent(self.0) };
    }
}

/// A value of cudarc whose drop makes its context current; afterwards the thread's own is restored.
struct Ours<T>(ManuallyDrop<T>);

type Context = Ours<Arc<CudaContext>>;

impl<T> Ours<T> {
    fn new(inner: T) -> Self {
        Self(ManuallyDrop::new(inner))
    }
}

impl<T: Clone> Clone for Ours<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Ours<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for Ours<T> {
    fn drop(&mut self) {
        let _callers = Caller::note();
        // SAFETY: not used after this.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_mapped_piece_by_piece_is_one_range() {
        let pieces = [(0x1000u64, 0x3000u64), (0x3000, 0x4000), (0x8000, 0x9000)];
        let piece = |at| pieces.iter().find(|(from, to)| (*from..*to).contains(&at)).map(|p| p.1);
        for (addr, bytes, whole) in [
            (0x1000, 0x2000, true),
            (0x1800, 0x2800, true),
            (0x1800, 0x2801, false),
            (0x3fff, 0x4002, false),
            (0x8000, 0x1000, true),
            (0x0fff, 1, false),
            (u64::MAX, 2, false),
        ] {
            assert_eq!(covered(addr, bytes, piece), whole, "{bytes:#x} bytes at {addr:#x}");
        }
    }
}
