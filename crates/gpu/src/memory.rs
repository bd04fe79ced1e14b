//! Memory that kernels can address: a GPU's own memory, and host memory that is mapped for it.

use std::any::Any;
use std::sync::Arc;

use super::{Backend, Gpu, GpuError};
use bellpush_mem::{Dma, Exported, HostMem, MemError, View};

/// Memory of the GPU (of the host executor: host memory). It is zero-filled, and freed with the
/// last `Arc`.
///
/// As a [`Dma`] with CUDA: copies run on separate streams that the caller polls, so they complete
/// while kernels spin. Any thread may call. Atomics are read-modify-write under one lock of the
/// GPU: they are atomic among each other, but not against kernels.
///
/// CUDA's free waits for all running kernels of the GPU. A thread that a kernel waits for must
/// therefore not drop the last `Arc`.
pub struct DeviceMem {
    pub(super) gpu: Arc<Gpu>,
    pub(super) kind: DeviceKind,
}

pub(super) enum DeviceKind {
    Host(View),
    #[cfg(feature = "cuda")]
    Cuda(super::cuda::Memory),
}

impl Gpu {
    /// Allocates zero-filled memory on the GPU. Do not call it while a kernel waits for the caller.
    ///
    /// # Errors
    /// [`GpuError`] when the GPU has too little memory, or for 0 bytes.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Arc<DeviceMem>, GpuError> {
        let kind = match &self.backend {
            Backend::Host(_) => DeviceKind::Host(View::new(&HostMem::alloc(bytes)?, 0, bytes)?),
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => DeviceKind::Cuda(super::cuda::Memory::alloc(device, bytes)?),
        };
        Ok(Arc::new(DeviceMem { gpu: self.clone(), kind }))
    }

    /// Wraps memory of this GPU (of the host executor: of this process) that another library of the
    /// program has allocated. Kernels may read it, and with `write` also write it. The library
    /// still frees it.
    ///
    /// # Safety
    /// Until the last `Arc` is dropped and the work of all streams that use it has ended, the range
    /// stays the program's own and on this GPU, and no Rust reference to it is formed. Without
    /// `write` nothing writes to it.
    ///
    /// # Errors
    /// [`MemError::Fault`] on the host executor, for a range that is not mapped for reading (with
    /// `write`: for writing); [`GpuError::NotGpuMemory`] with CUDA, for memory that is not this
    /// GPU's.
    pub unsafe fn borrow(
        self: &Arc<Self>,
        addr: u64,
        bytes: usize,
        write: bool,
    ) -> Result<Arc<DeviceMem>, GpuError> {
        let kind = match &self.backend {
            // SAFETY: the caller's promise.
            Backend::Host(_) => DeviceKind::Host(unsafe { HostMem::borrowed(addr, bytes, write)? }),
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => {
                device.owns(addr, bytes)?;
                // SAFETY: the caller's promise.
                DeviceKind::Cuda(unsafe { super::cuda::Memory::borrow(device, addr, bytes) })
            }
        };
        Ok(Arc::new(DeviceMem { gpu: self.clone(), kind }))
    }

    /// Pins host memory, or a device's memory, and maps it for the GPU until the last clone of the
    /// result is dropped. Memory that is already mapped for a GPU of this process may be mapped
    /// again.
    ///
    /// # Errors
    /// [`GpuError::Pin`] when the system refuses: a device's memory requires the privilege to map
    /// I/O memory. [`MemError::Far`] for memory that the processor cannot access.
    pub fn register(self: &Arc<Self>, mem: &Arc<HostMem>) -> Result<Mapped, GpuError> {
        if mem.is_far() {
            return Err(MemError::Far.into()); // its address is another device's
        }
        if !self.is_host() {
            mem.read_by_device();
        }
        if !mem.is_device() {
            return self.map(mem, false);
        }
        // The driver accepts a device's pages as I/O memory only, and ordinary pages, which a
        // software device has in their place, only as ordinary memory.
        self.map(mem, true).or_else(|refused| self.map(mem, false).map_err(|_| refused))
    }

    /// Allocates host memory, on a NUMA node if one is given, and maps it for the GPU.
    ///
    /// # Errors
    /// As [`HostMem::alloc`], [`HostMem::alloc_on_node`] and [`Gpu::register`].
    pub fn alloc_mapped(
        self: &Arc<Self>,
        bytes: usize,
        numa: Option<usize>,
    ) -> Result<Mapped, GpuError> {
        let mem = match numa {
            Some(node) => HostMem::alloc_on_node(bytes, node)?,
            None => HostMem::alloc(bytes)?,
        };
        self.register(&mem)
    }

    /// Address at which this GPU's kernels access memory: their own GPU's, that of the GPUs
    /// `within`, or pinned host memory. The returned guard keeps host memory and its pin; a GPU's
    /// memory is kept by its owner.
    pub fn reach(
        &self,
        memory: &dyn Dma,
        within: &[usize],
    ) -> Option<(u64, Arc<dyn Any + Send + Sync>)> {
        match (&self.backend, memory.as_host(), memory.device_addr()) {
            (Backend::Host(_), Some(view), _) => {
                let _ = within;
                Some((view.addr(), view.mem().clone()))
            }
            (Backend::Host(_), None, _) => None,
            #[cfg(feature = "cuda")]
            (Backend::Cuda(gpu), Some(view), _) => {
                let pin = super::cuda::Pin::covering(view.addr(), view.len())?;
                // The pin is dropped first: it must not outlive the memory.
                Some((gpu.device_address(view.addr()).ok()?, Arc::new((pin, view.mem().clone()))))
            }
            #[cfg(feature = "cuda")]
            (Backend::Cuda(gpu), None, Some(addr)) => {
                let owner = gpu.owner_of(addr)?;
                within.contains(&owner).then(|| (addr, Arc::new(()) as _))
            }
            #[cfg(feature = "cuda")]
            (Backend::Cuda(_), None, None) => None,
        }
    }

    fn map(self: &Arc<Self>, mem: &Arc<HostMem>, io: bool) -> Result<Mapped, GpuError> {
        let (device, pin) = match &self.backend {
            Backend::Host(_) => {
                let _ = io;
                (mem.addr(), Pinned::No)
            }
            #[cfg(feature = "cuda")]
            Backend::Cuda(gpu) => {
                // SAFETY: the range is `mem`'s, which the result keeps longer than the pin.
                let pin = unsafe { super::cuda::Pin::take(gpu, mem.addr(), mem.len(), io)? };
                (gpu.device_address(mem.addr())?, Pinned::Cuda(pin))
            }
        };
        let (gpu, memory) = (self.clone(), mem.clone());
        Ok(Mapped(Arc::new(Inner { _pin: pin, memory, gpu, device })))
    }
}

impl DeviceMem {
    /// Address of the memory in kernels.
    pub fn addr(&self) -> u64 {
        match &self.kind {
            DeviceKind::Host(view) => view.addr(),
            #[cfg(feature = "cuda")]
            DeviceKind::Cuda(memory) => memory.addr(),
        }
    }

    /// The GPU that owns the memory.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Copies bytes into the memory and returns when they have arrived.
    ///
    /// # Errors
    /// As [`Dma::write`].
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> Result<(), GpuError> {
        Ok(self.write(offset, from)?)
    }

    /// Copies bytes from the memory.
    ///
    /// # Errors
    /// As [`Dma::read`].
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> Result<(), GpuError> {
        Ok(self.read(offset, into)?)
    }

    fn dma(&self) -> &dyn Dma {
        match &self.kind {
            DeviceKind::Host(view) => view,
            #[cfg(feature = "cuda")]
            DeviceKind::Cuda(memory) => memory,
        }
    }
}

// SAFETY: the named memory is the view's or the allocation's, which the value keeps.
unsafe impl Dma for DeviceMem {
    fn bytes(&self) -> usize {
        self.dma().bytes()
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        self.dma().read(offset, into)
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        self.dma().write(offset, from)
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        self.dma().fetch_add(offset, add)
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        self.dma().compare_swap(offset, compare, swap)
    }

    fn as_host(&self) -> Option<&View> {
        self.dma().as_host()
    }

    fn device_addr(&self) -> Option<u64> {
        self.dma().device_addr()
    }

    fn export(&self) -> Option<Exported> {
        self.dma().export()
    }

    fn read_to_host(
        &self,
        offset: usize,
        to: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        self.dma().read_to_host(offset, to, at, n)
    }

    fn write_from_host(
        &self,
        offset: usize,
        from: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        self.dma().write_from_host(offset, from, at, n)
    }
}

/// Host memory, or memory of a device that the processor reaches too, mapped for the GPU. Clones share the
/// mapping.
#[derive(Clone)]
pub struct Mapped(Arc<Inner>);

/// The pin is dropped first: it must not outlive the memory.
struct Inner {
    _pin: Pinned,
    memory: Arc<HostMem>,
    gpu: Arc<Gpu>,
    device: u64,
}

enum Pinned {
    No,
    #[cfg(feature = "cuda")]
    Cuda(#[expect(dead_code, reason = "held for its drop")] Arc<super::cuda::Pin>),
}

impl Mapped {
    /// Address of the memory in kernels.
    pub fn addr(&self) -> u64 {
        self.0.device
    }

    /// Address of the memory in this process.
    pub fn host_addr(&self) -> u64 {
        self.0.memory.addr()
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.0.memory.len()
    }

    /// The memory as this process reaches it.
    pub fn host(&self) -> &Arc<HostMem> {
        &self.0.memory
    }

    /// The GPU for which the memory is mapped.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.0.gpu
    }

    pub(super) fn check(&self, offset: usize, bytes: usize) -> Result<(), MemError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes() => Ok(()),
            _ => Err(MemError::OutOfBounds { offset, bytes, len: self.bytes() }),
        }
    }

    /// Checks that a whole word of `bytes` bytes lies at `offset`.
    pub(super) fn check_word(&self, offset: usize, bytes: usize) -> Result<(), MemError> {
        self.check(offset, bytes)?;
        if (self.host_addr() as usize + offset).is_multiple_of(bytes) {
            Ok(())
        } else {
            Err(MemError::Misaligned { offset, align: bytes })
        }
    }

    /// What keeps the memory and its pin.
    pub fn keep(&self) -> Arc<dyn Any + Send + Sync> {
        self.0.clone()
    }
}
