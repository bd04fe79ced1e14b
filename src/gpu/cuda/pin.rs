//! Host memory pinned for every GPU of the process (`cuMemHostRegister`).
//!
//! The driver refuses to register a range twice, and two GPUs, or two users of one memory, may want
//! it: registrations are counted here, process-wide.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUresult};

use super::{Device, DriverError, check, error_name, make_current};
use crate::gpu::GpuError;

/// By the range's first address. An entry goes when its memory has been unregistered.
static PINS: Mutex<BTreeMap<u64, Weak<Pin>>> = Mutex::new(BTreeMap::new());

fn pins() -> MutexGuard<'static, BTreeMap<u64, Weak<Pin>>> {
    PINS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A registered range; unregistered on drop.
pub(in crate::gpu) struct Pin {
    ctx: Arc<CudaContext>,
    host: u64,
    bytes: usize,
    io: bool,
}

impl Pin {
    /// Registers the range, or shares its registration.
    ///
    /// # Safety
    /// The range stays mapped while the result lives.
    pub(in crate::gpu) unsafe fn take(
        device: &Device,
        host: u64,
        bytes: usize,
        io: bool,
    ) -> Result<Arc<Self>, GpuError> {
        loop {
            let mut pins = pins();
            let existing = pins.get(&host).map(Weak::upgrade);
            match existing {
                None => {
                    // SAFETY: the caller's promise.
                    let pin = Arc::new(unsafe { Self::register(device, host, bytes, io)? });
                    pins.insert(host, Arc::downgrade(&pin));
                    return Ok(pin);
                }
                Some(Some(pin)) => {
                    drop(pins); // this may be the last reference by now, and its drop locks
                    if pin.bytes >= bytes && pin.io == io {
                        return Ok(pin);
                    }
                    let twice = CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
                    return Err(GpuError::Pin { bytes, error: error_name(DriverError(twice)) });
                }
                // Its last owner is about to unregister it, for which it needs the lock.
                Some(None) => {
                    drop(pins);
                    std::thread::yield_now();
                }
            }
        }
    }

    /// # Safety
    /// The range stays mapped while the result lives.
    unsafe fn register(
        device: &Device,
        host: u64,
        bytes: usize,
        io: bool,
    ) -> Result<Self, GpuError> {
        device.make_current()?;
        let mut flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        if io {
            flags |= sys::CU_MEMHOSTREGISTER_IOMEMORY;
        }
        // SAFETY: the caller's promise; the driver checks the rest.
        match unsafe { sys::cuMemHostRegister_v2(host as *mut _, bytes, flags) } {
            CUresult::CUDA_SUCCESS => Ok(Self { ctx: device.ctx.clone(), host, bytes, io }),
            code => Err(GpuError::Pin { bytes, error: error_name(DriverError(code)) }),
        }
    }

    /// The pin of ordinary memory that covers `host .. host + bytes`.
    pub(in crate::gpu) fn covering(host: u64, bytes: usize) -> Option<Arc<Self>> {
        let pin = pins().range(..=host).next_back()?.1.upgrade()?;
        (!pin.io && host + bytes as u64 <= pin.host + pin.bytes as u64).then_some(pin)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = pins();
        if make_current(&self.ctx).is_ok() {
            // SAFETY: registered by `register`, still mapped, and used by nobody any more.
            let _ = unsafe { sys::cuMemHostUnregister(self.host as *mut _) };
        }
        pins.remove(&self.host);
    }
}

impl Device {
    /// Ordinal of the GPU whose memory lies at an address.
    pub(in crate::gpu) fn owner_of(&self, addr: u64) -> Option<usize> {
        self.make_current().ok()?;
        let mut ordinal: i32 = -1;
        let which = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: writes one int; an address that the driver does not know is refused.
        let code = unsafe { sys::cuPointerGetAttribute((&raw mut ordinal).cast(), which, addr) };
        check("cuPointerGetAttribute", code).ok()?;
        usize::try_from(ordinal).ok()
    }

    /// The GPU's address of registered host memory.
    pub(in crate::gpu) fn device_address(&self, host: u64) -> Result<u64, GpuError> {
        self.make_current()?;
        let mut addr = 0;
        // SAFETY: writes one address.
        let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut addr, host as *mut _, 0) };
        check("cuMemHostGetDevicePointer", code)?;
        Ok(addr)
    }
}
