//! User memory that DEVX objects are laid out in.

use std::sync::Arc;

use bellpush_mem::{Dma, HostMem, PAGE_BYTES, View};

use crate::abi::ids::attr;
use crate::commands::memory::{Memory, rights, user_memory};
use crate::commands::{Command, word};
use crate::context::Object;
use crate::cuda::GpuMem;
use crate::error::Refusal;

/// A registered range.
pub struct Umem {
    addr: u64,
    bytes: u64,
    /// The memory as something that mkeys stand for.
    pub mem: Arc<dyn Dma>,
    /// The same, where it is a GPU's.
    gpu: Option<Arc<GpuMem>>,
    /// Whether the device may write it.
    pub writable: bool,
}

impl Umem {
    fn check(&self, offset: u64, bytes: u64) -> Result<(), Refusal> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => {
                let must = "one that leaves the object room in the umem";
                Err(Refusal::Value { what: "umem's offset", value: offset, must })
            }
        }
    }

    /// A part of the memory as a ring that the device writes.
    ///
    /// # Errors
    /// As [`Umem::queue`], and [`Refusal::Value`] where the device may not write.
    pub fn written(&self, offset: u64, bytes: usize) -> Result<View, Refusal> {
        if !self.writable {
            let must = "with local write for a CQ";
            return Err(Refusal::Value { what: "umem's access", value: 0, must });
        }
        self.queue(offset, bytes)
    }

    /// A part of the memory as a queue that the device reads, or as a record. (Of a record, this device takes back what
    /// is old: in memory that may be written, whatever the umem's access says.)
    ///
    /// # Errors
    /// [`Refusal::Value`] where the umem ends before.
    ///
    /// Of a GPU's memory, each access is a copy.
    pub fn queue(&self, offset: u64, bytes: usize) -> Result<View, Refusal> {
        self.check(offset, bytes as u64)?;
        if !(self.addr + offset).is_multiple_of(8) {
            let (value, must) = (offset, "a multiple of 8 in memory");
            return Err(Refusal::Value { what: "umem's offset", value, must });
        }
        if let Some(gpu) = &self.gpu {
            let shift = self.addr as usize % PAGE_BYTES;
            return Ok(View::hooked(gpu.hooked(), shift + offset as usize, bytes)?);
        }
        // SAFETY: the program keeps a umem's memory until it has taken the umem back, which is
        // refused while an object that was laid out in it lives; the object alone holds the view.
        Ok(unsafe { HostMem::borrowed(self.addr + offset, bytes, true) }?)
    }

    /// Whether it is a GPU's memory.
    pub fn is_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// `MLX5_IB_METHOD_DEVX_UMEM_REG`.
pub fn register(c: &mut Command<'_>) -> Result<(), Refusal> {
    if c.request.has(attr::DEVX_UMEM_REG_DMABUF_FD) {
        return Err(Refusal::Unsupported(
            "a umem of a dma-buf: the engine is a CPU thread, and has no address for it",
        ));
    }
    let addr = c.request.number(attr::DEVX_UMEM_REG_ADDR)?;
    let bytes = c.request.number(attr::DEVX_UMEM_REG_LEN)?;
    let access = rights(c.request.word(attr::DEVX_UMEM_REG_ACCESS)?)?;
    let pages = c.request.number_or(attr::DEVX_UMEM_REG_PGSZ_BITMAP, u64::MAX)?;
    if pages >> 12 == 0 {
        let must = "some size of at least 4 KiB";
        return Err(Refusal::Value { what: "umem's page sizes", value: pages, must });
    }
    let (mem, gpu): (Arc<dyn Dma>, _) = match user_memory(addr, bytes, access.local_write)? {
        Memory::Host(mem) => (Arc::new(mem), None),
        Memory::Gpu(mem) => {
            c.context.device.driver.keep_to_thread();
            let mem = Arc::new(mem);
            (mem.clone(), Some(mem))
        }
    };
    let umem = Umem { addr, bytes, mem, gpu, writable: access.local_write };
    let handle = c.objects.add(Object::Umem(Arc::new(umem)));
    c.created(attr::DEVX_UMEM_REG_HANDLE, handle);
    c.request.put(attr::DEVX_UMEM_REG_OUT_ID, &word(handle));
    Ok(())
}

/// `MLX5_IB_METHOD_DEVX_UMEM_DEREG`.
pub fn deregister(c: &mut Command<'_>) -> Result<(), Refusal> {
    let handle = c.request.handle(attr::DEVX_UMEM_DEREG_HANDLE)?;
    super::umem(c.objects, handle)?;
    c.context.destroy(c.objects, handle)
}
