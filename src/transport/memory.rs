//! Memory that an endpoint sends from and receives into.

use std::sync::Arc;

use super::Error;
use crate::gpu::{DeviceMem, Gpu, Mapped};
use crate::mem::{Dma, MemError, View};

/// GPU memory, or host memory that the GPU has mapped.
#[derive(Clone)]
pub enum Memory {
    /// The GPU's own memory.
    Device(Arc<DeviceMem>),
    /// Pinned host memory.
    Host(Mapped),
}

impl Memory {
    /// Address by which kernels reach it.
    pub fn addr(&self) -> u64 {
        match self {
            Self::Device(mem) => mem.addr(),
            Self::Host(mem) => mem.addr(),
        }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Device(mem) => mem.bytes(),
            Self::Host(mem) => mem.bytes(),
        }
    }

    /// The memory as a NIC reaches it.
    pub fn dma(&self) -> Arc<dyn Dma> {
        match self {
            Self::Device(mem) => mem.clone(),
            Self::Host(mem) => Arc::new(view_of(mem)),
        }
    }

    /// Copies bytes in from this process, and returns when they are there.
    ///
    /// # Errors
    /// When the range leaves the memory, or the copy engine fails.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        self.dma().write(offset, from)
    }

    /// Copies bytes out to this process.
    ///
    /// # Errors
    /// As [`Memory::write`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        self.dma().read(offset, into)
    }
}

impl From<Arc<DeviceMem>> for Memory {
    fn from(mem: Arc<DeviceMem>) -> Self {
        Self::Device(mem)
    }
}

impl From<Mapped> for Memory {
    fn from(mem: Mapped) -> Self {
        Self::Host(mem)
    }
}

/// Where queues or a window lie.
#[derive(Clone)]
pub(super) enum Place {
    /// Host memory, or a device's that the processor reaches too.
    Mapped(Mapped),
    /// A GPU's, which the processor does not reach: it has its address for kernels.
    Far(View),
}

impl Place {
    /// Memory of the NIC's own.
    pub fn of_nic(gpu: &Arc<Gpu>, view: &View) -> Result<Self, Error> {
        Ok(match view.mem().is_far() {
            true => Self::Far(view.clone()),
            false => Self::Mapped(gpu.register(view.mem())?),
        })
    }

    pub fn mapped(&self) -> Option<&Mapped> {
        match self {
            Self::Mapped(mapped) => Some(mapped),
            Self::Far(_) => None,
        }
    }

    /// The kernels' address of what the NIC calls `view`, if it lies here.
    pub fn device_addr(&self, view: &View) -> Option<u64> {
        let (begin, bytes, addr) = match self {
            Self::Mapped(mapped) => (mapped.host_addr(), mapped.bytes(), mapped.addr()),
            Self::Far(all) => (all.addr(), all.len(), all.addr()),
        };
        let at = view.addr().checked_sub(begin)?;
        (at < bytes as u64).then_some(addr + at)
    }
}

/// All of a mapped host memory as a view.
pub(super) fn view_of(mapped: &Mapped) -> View {
    View::new(mapped.host(), 0, mapped.bytes()).expect("all of it lies within it")
}
