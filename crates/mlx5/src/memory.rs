//! Memory regions and device memory.

use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdma_sys::{
    ibv_access_flags, ibv_alloc_dm_attr, ibv_dereg_mr, ibv_mr, ibv_pd, ibv_reg_dmabuf_mr,
    ibv_reg_mr_iova2,
};

use super::device::Device;
use super::error::Mlx5Error;
use super::object::Object;
use super::pool::page_bytes;
use super::verbs::verb;
use bellpush_mem::{Dma, Exported, HostMem, View};
use bellpush_nic::{Access, Dm, Mr, NicError};
use bellpush_wire::{Iova, Lkey, Rkey};

/// A device's regions, by lkey.
#[derive(Default)]
pub(super) struct Regions(Mutex<HashMap<u32, Object<ibv_mr>>>);

pub(super) fn flags(access: Access) -> u32 {
    let flag = |wanted: bool, flag: ibv_access_flags| if wanted { flag.0 } else { 0 };
    // The specification wants local write access wherever a peer may change memory.
    let local = access.local_write || access.remote_write || access.remote_atomic;
    flag(local, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE)
        | flag(access.remote_write, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)
        | flag(access.remote_read, ibv_access_flags::IBV_ACCESS_REMOTE_READ)
        | flag(access.remote_atomic, ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)
}

impl Regions {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Object<ibv_mr>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, object: Object<ibv_mr>, iova: Iova, bytes: usize) -> Mr {
        // SAFETY: a live region; its keys do not change.
        let (lkey, rkey) = unsafe {
            let mr = object.raw().as_ptr();
            ((*mr).lkey, (*mr).rkey)
        };
        self.lock().insert(lkey, object);
        Mr { lkey: Lkey(lkey), rkey: Rkey(rkey), iova, bytes: bytes as u64 }
    }

    /// Registers memory: host memory by its address, GPU memory as a dma-buf or, where that cannot
    /// be had, by its address for nvidia_peermem.
    pub fn register(
        &self,
        device: &Arc<Device>,
        pd: &Arc<Object<ibv_pd>>,
        mem: Arc<dyn Dma>,
        iova: Iova,
        access: Access,
    ) -> Result<Mr, NicError> {
        let remote_atomic = access.remote_atomic && device.atomics;
        let (bytes, access) = (mem.bytes(), flags(Access { remote_atomic, ..access }));
        let plain = |addr: u64, uses| {
            // SAFETY: a live protection domain; the system checks the range.
            let raw = unsafe {
                ibv_reg_mr_iova2(pd.raw().as_ptr(), addr as *mut _, bytes, iova.0, access)
            };
            take(device, raw, "ibv_reg_mr", uses)
        };
        if let Some(view) = mem.as_host() {
            let addr = view.addr();
            return Ok(self.keep(plain(addr, (pd.clone(), mem))?, iova, bytes));
        }
        let Some(Exported { addr, dmabuf }) = mem.export() else {
            let what = "memory that neither the CPU nor a GPU addresses";
            return Err(NicError::Unsupported { nic: device.name.clone(), what });
        };
        let refused = match &dmabuf {
            Ok((fd, offset)) => {
                // SAFETY: a live protection domain and an open descriptor, which the system keeps
                // for itself as long as it needs it.
                let raw = unsafe {
                    let (fd, access) = (fd.as_raw_fd(), access as i32);
                    ibv_reg_dmabuf_mr(pd.raw().as_ptr(), *offset, bytes, iova.0, fd, access)
                };
                match take(device, raw, "ibv_reg_dmabuf_mr", (pd.clone(), mem.clone())) {
                    Ok(object) => return Ok(self.keep(object, iova, bytes)),
                    Err(error) => source_of(error).to_string(),
                }
            }
            Err(error) => error.to_string(),
        };
        match plain(addr, (pd.clone(), mem)) {
            Ok(object) => Ok(self.keep(object, iova, bytes)),
            Err(error) => Err(Mlx5Error::GpuMemory {
                name: device.name.clone(),
                bytes,
                dmabuf: refused,
                plain: source_of(error),
            }
            .into()),
        }
    }

    /// Allocates device memory and registers it zero-based; `None` where the device has none.
    pub fn alloc_dm(
        &self,
        device: &Arc<Device>,
        pd: &Arc<Object<ibv_pd>>,
        bytes: usize,
    ) -> Result<Option<Dm>, NicError> {
        let max = device.max_dm_bytes;
        if max == 0 {
            return Ok(None);
        }
        let (alloc, free) = (verb!(&**device, alloc_dm)?, verb!(&**device, free_dm)?);
        let register = verb!(&**device, reg_dm_mr)?;
        let mut attr = ibv_alloc_dm_attr { length: bytes, log_align_req: 0, comp_mask: 0 };
        // SAFETY: an open context.
        let raw = unsafe { alloc(device.context().as_ptr(), &mut attr) };
        // SAFETY: null, or fresh device memory that this alone frees.
        let dm = unsafe {
            Object::take(device, raw, "ibv_alloc_dm", (free, "ibv_free_dm"), device.clone())
        };
        let dm = Arc::new(dm.map_err(|error| Mlx5Error::DeviceMemory {
            name: device.name.clone(),
            bytes,
            max,
            source: source_of(error),
        })?);
        // SAFETY: live device memory of libmlx5's.
        let mapped = unsafe { device.dv.dm(dm.raw()) };
        let (addr, length) = mapped.map_err(|code| {
            Mlx5Error::verb(&device.name, "mlx5dv_init_obj", io::Error::from_raw_os_error(code))
        })?;
        if length < bytes as u64 || addr == 0 {
            let (what, wanted) = ("device memory of bytes", bytes as u64);
            return Err(Mlx5Error::Queue { what, found: length, wanted }.into());
        }
        let access = flags(Access { local_write: true, ..Access::NONE })
            | ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
        // SAFETY: live objects of one context.
        let raw = unsafe { register(pd.raw().as_ptr(), dm.raw().as_ptr(), 0, bytes, access) };
        let mr = take(device, raw, "ibv_reg_dm_mr", (pd.clone(), dm.clone()))?;
        let page = page_bytes();
        let head = (addr % page as u64) as usize;
        let mapped = (head + bytes).next_multiple_of(page);
        // SAFETY: libmlx5 maps whole pages readable and writable until the memory is freed, which
        // the view's owner puts off; it is memory, so any value may be written.
        let memory = unsafe { HostMem::of_device(addr - head as u64, mapped, dm) };
        let view = View::new(&memory, head, bytes)?;
        Ok(Some(Dm { view, mr: self.keep(mr, Iova(0), bytes) }))
    }

    pub fn deregister(&self, mr: Mr) -> Result<(), NicError> {
        let object = self.lock().remove(&mr.lkey.0);
        Ok(object.ok_or(NicError::NoSuchRegion(mr.lkey.0))?.destroy()?)
    }
}

fn take(
    device: &Arc<Device>,
    raw: *mut ibv_mr,
    made_by: &'static str,
    uses: impl Any + Send + Sync,
) -> Result<Object<ibv_mr>, Mlx5Error> {
    // SAFETY: null, or a fresh region that this alone deregisters.
    unsafe { Object::take(device, raw, made_by, (ibv_dereg_mr, "ibv_dereg_mr"), uses) }
}

/// The system's part of an error.
fn source_of(error: Mlx5Error) -> io::Error {
    match error {
        Mlx5Error::Verb { source, .. } => source,
        other => io::Error::other(other.to_string()),
    }
}
