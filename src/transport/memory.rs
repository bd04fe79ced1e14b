//! Memory that an endpoint sends from and receives into.

use std::sync::Arc;

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

    /// Whether it is this GPU's own memory.
    pub(super) fn is_of(&self, gpu: &Arc<Gpu>) -> bool {
        matches!(self, Self::Device(mem) if Arc::ptr_eq(mem.gpu(), gpu))
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

/// All of a mapped host memory as a view.
fn view_of(mapped: &Mapped) -> View {
    View::new(mapped.host(), 0, mapped.bytes()).expect("all of it lies within it")
}
