//! Memory that does not work, for tests of what its users do then.

use bellpush_mem::{Dma, HostMem, MemError};

/// 4096 bytes of which every access panics, or fails.
pub struct Broken {
    /// Panic rather than fail.
    pub panics: bool,
}

impl Broken {
    fn access<T>(&self) -> Result<T, MemError> {
        assert!(!self.panics, "planted");
        Err(MemError::Far)
    }
}

// SAFETY: it names no addresses.
unsafe impl Dma for Broken {
    fn bytes(&self) -> usize {
        4096
    }

    fn read(&self, _: usize, _: &mut [u8]) -> Result<(), MemError> {
        self.access()
    }

    fn write(&self, _: usize, _: &[u8]) -> Result<(), MemError> {
        self.access()
    }

    fn fetch_add(&self, _: usize, _: u64) -> Result<u64, MemError> {
        self.access()
    }

    fn compare_swap(&self, _: usize, _: u64, _: u64) -> Result<u64, MemError> {
        self.access()
    }

    fn read_to_host(&self, _: usize, _: &HostMem, _: usize, _: usize) -> Result<(), MemError> {
        self.access()
    }

    fn write_from_host(&self, _: usize, _: &HostMem, _: usize, _: usize) -> Result<(), MemError> {
        self.access()
    }
}
