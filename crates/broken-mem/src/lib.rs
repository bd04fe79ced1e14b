//! Memory that does not work, for tests of what its users do then.

use std::ops::Range;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use bellpush_mem::{Dma, HostMem, MemError, View, rewrite};

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

/// What becomes of a copy into [`Late`] memory that is made by a copy thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It takes long.
    Late,
    /// It panics.
    Panics,
}

/// Host memory into a range of which a software NIC's copy threads copy late. Other threads' copies wait, for a while,
/// until a copy thread has begun one: so it is known who is late.
pub struct Late {
    view: View,
    range: Range<usize>,
    fate: Fate,
    begun: Mutex<bool>,
    begins: Condvar,
}

impl Late {
    /// How late a copy is.
    pub const BY: Duration = Duration::from_millis(50);
    /// How long others wait for one.
    const PATIENCE: Duration = Duration::from_millis(300);

    /// Memory of which copies into `range` are late.
    pub fn new(view: View, range: Range<usize>, fate: Fate) -> Self {
        Self { view, range, fate, begun: Mutex::new(false), begins: Condvar::new() }
    }

    /// Whether a copy thread has begun a copy into the range.
    pub fn has_begun(&self) -> bool {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn before_copying(&self, offset: usize, bytes: usize) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::thread::current().name().is_some_and(|name| name.starts_with("bellpush-copy")) {
            let waited = self.begins.wait_timeout_while(begun, Self::PATIENCE, |begun| !*begun);
            drop(waited);
        } else if offset < self.range.end && self.range.start < offset + bytes {
            *begun = true;
            drop(begun);
            self.begins.notify_all();
            assert!(self.fate != Fate::Panics, "planted");
            std::thread::sleep(Self::BY);
        }
    }
}

/// Host memory of which each write by a NIC tells somebody: what happens at that moment.
pub struct Telling {
    view: View,
    tell: Box<dyn Fn() + Send + Sync>,
}

impl Telling {
    /// Memory that calls `tell` after each write.
    pub fn new(view: View, tell: Box<dyn Fn() + Send + Sync>) -> Self {
        Self { view, tell }
    }
}

// SAFETY: a view, which is told of.
unsafe impl Dma for Telling {
    fn bytes(&self) -> usize {
        self.view.bytes()
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        self.view.read(offset, into)
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        self.view.write(offset, from)?;
        (self.tell)();
        Ok(())
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        self.view.fetch_add(offset, add)
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        self.view.compare_swap(offset, compare, swap)
    }

    fn read_to_host(
        &self,
        at: usize,
        to: &HostMem,
        to_at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        self.view.read_to_host(at, to, to_at, n)
    }

    fn write_from_host(
        &self,
        offset: usize,
        from: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        self.view.write_from_host(offset, from, at, n)?;
        (self.tell)();
        Ok(())
    }
}

/// Host memory as a NIC has a GPU's: it can only be copied, also for atomics. Somebody else stores to it at the last
/// moment before each write.
pub struct Copied {
    view: View,
    other: Box<dyn Fn(&View) + Send + Sync>,
}

impl Copied {
    /// Memory to which `other` stores.
    pub fn new(view: View, other: Box<dyn Fn(&View) + Send + Sync>) -> Self {
        Self { view, other }
    }
}

// SAFETY: it names no addresses.
unsafe impl Dma for Copied {
    fn bytes(&self) -> usize {
        self.view.bytes()
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        self.view.read(offset, into)
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        (self.other)(&self.view);
        self.view.write(offset, from)
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        rewrite(self, offset, |old| old.wrapping_add(add))
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        rewrite(self, offset, |old| if old == compare { swap } else { old })
    }
}

// SAFETY: a view, and nothing of it is changed but the time.
unsafe impl Dma for Late {
    fn bytes(&self) -> usize {
        self.view.bytes()
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        self.view.read(offset, into)
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        self.before_copying(offset, from.len());
        self.view.write(offset, from)
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        self.view.fetch_add(offset, add)
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        self.view.compare_swap(offset, compare, swap)
    }

    fn as_host(&self) -> Option<&View> {
        Some(&self.view)
    }

    fn read_to_host(
        &self,
        at: usize,
        to: &HostMem,
        to_at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        self.view.read_to_host(at, to, to_at, n)
    }

    fn write_from_host(
        &self,
        offset: usize,
        from: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        self.before_copying(offset, n);
        self.view.write_from_host(offset, from, at, n)
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
