//! Host memory pinned for every GPU of the process (`cuMemHostRegister`).
//!
//! The driver refuses to register a range twice, but two GPUs, or two users of one memory, may need
//! it. Registrations are therefore counted here, for the whole process.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use super::pins::{Pins, Range};
use super::{Context, Device, DriverError, check, error_name, make_current};
use crate::GpuError;

static PINS: Pins<Pin> = Pins::new();

/// A registered range; unregistered on drop.
pub(crate) struct Pin {
    ctx: Context,
    host: u64,
    bytes: usize,
    io: bool,
}

impl Range for Pin {
    fn host(&self) -> u64 {
        self.host
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Pin {
    /// Registers the range, or shares its registration.
    ///
    /// # Safety
    /// The range stays mapped while the result lives.
    pub(crate) unsafe fn take(
        device: &Device,
        host: u64,
        bytes: usize,
        io: bool,
    ) -> Result<Arc<Self>, GpuError> {
        // SAFETY: the caller's promise.
        let pin = PINS.take(host, || unsafe { Self::register(device, host, bytes, io) })?;
        let twice = CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        let refused = || GpuError::Pin { bytes, error: error_name(DriverError(twice)) };
        pin.filter(|pin| pin.bytes >= bytes && pin.io == io).ok_or_else(refused)
    }

    /// # Safety
    /// The range stays mapped while the result lives.
    unsafe fn register(
        device: &Device,
        host: u64,
        bytes: usize,
        io: bool,
    ) -> Result<Self, GpuError> {
        let _current = device.make_current()?;
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
    pub(crate) fn covering(host: u64, bytes: usize) -> Option<Arc<Self>> {
        PINS.covering(host, bytes).filter(|pin| !pin.io)
    }

    /// Keeps the pages pinned for good, after a copy that did not end: the GPU may still access
    /// them.
    pub(super) fn lose(self: Arc<Self>) {
        PINS.lose(self);
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        PINS.give_back(self.host, || {
            let Ok(_current) = make_current(&self.ctx) else { return };
            // SAFETY: registered by `register`, still mapped, and used by nobody any more.
            let _ = unsafe { sys::cuMemHostUnregister(self.host as *mut _) };
        });
    }
}

impl Device {
    /// Ordinal of the GPU whose memory contains an address.
    pub(crate) fn owner_of(&self, addr: u64) -> Option<usize> {
        let _current = self.make_current().ok()?;
        let mut ordinal: i32 = -1;
        let which = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: writes one int; an address that the driver does not know is refused.
        let code = unsafe { sys::cuPointerGetAttribute((&raw mut ordinal).cast(), which, addr) };
        check("cuPointerGetAttribute", code).ok()?;
        usize::try_from(ordinal).ok()
    }

    /// The GPU's address of registered host memory.
    pub(crate) fn device_address(&self, host: u64) -> Result<u64, GpuError> {
        let _current = self.make_current()?;
        let mut addr = 0;
        // SAFETY: writes one address.
        let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut addr, host as *mut _, 0) };
        check("cuMemHostGetDevicePointer", code)?;
        Ok(addr)
    }
}
