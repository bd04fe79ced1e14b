//! Memory whose accesses somebody sees, or answers: a recording of what a NIC does to it, and the memory that such a
//! recording stands for.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::dma::load_by_read;
use crate::host::Owner;
use crate::{Dma, HostMem, MemError, PAGE_BYTES, View};

/// What becomes of the accesses. Offsets are bytes from the start of the memory; ranges lie within it.
pub trait Hook: Send + Sync {
    /// Fills `into` with what lies there. A word of 4 or 8 bytes that is naturally aligned is read at once, and before
    /// what the caller reads next (acquire).
    ///
    /// # Errors
    /// What the memory says.
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError>;

    /// As [`Hook::read`], of a word of 4 or 8 bytes, in the machine's byte order.
    ///
    /// # Errors
    /// What the memory says.
    fn load(&self, offset: usize, bytes: usize) -> Result<u64, MemError> {
        load_by_read(bytes, |word| self.read(offset, word))
    }

    /// As [`Hook::load`] of 8 bytes, by one who has seen the word before, looks whether it changed, and looks no second
    /// time until something else has happened.
    ///
    /// # Errors
    /// What the memory says.
    fn poll(&self, offset: usize, seen: u64) -> Result<u64, MemError> {
        let _ = seen;
        self.load(offset, 8)
    }

    /// Puts `from` there. A word of 4 or 8 bytes that is naturally aligned is written at once, and after what the
    /// caller has written before (release).
    ///
    /// # Errors
    /// What the memory says.
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError>;

    /// As [`Dma::fetch_add`].
    ///
    /// # Errors
    /// What the memory says.
    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError>;

    /// As [`Dma::compare_swap`].
    ///
    /// # Errors
    /// What the memory says.
    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError>;
}

/// Memory that is reached through a [`Hook`] alone: nobody has an address of it to load from.
pub struct Hooked {
    hook: Box<dyn Hook>,
    addr: u64,
    bytes: usize,
}

impl Hooked {
    /// So many bytes that are known by an address, which tells them from others and is not reached.
    pub fn new(addr: u64, bytes: usize, hook: Box<dyn Hook>) -> Arc<Self> {
        Arc::new(Self { hook, addr, bytes })
    }

    fn check(&self, offset: usize, bytes: usize) -> Result<(), MemError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(MemError::OutOfBounds { offset, bytes, len: self.bytes }),
        }
    }

    fn check_word(&self, offset: usize) -> Result<(), MemError> {
        match offset.is_multiple_of(8) {
            true => self.check(offset, 8),
            false => Err(MemError::Misaligned { offset, align: 8 }),
        }
    }
}

// SAFETY: names no address that is to be reached.
unsafe impl Dma for Hooked {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        self.check(offset, into.len())?;
        self.hook.read(offset, into)
    }

    fn load(&self, offset: usize, bytes: usize) -> Result<u64, MemError> {
        self.check(offset, bytes)?;
        self.hook.load(offset, bytes)
    }

    fn poll(&self, offset: usize, seen: u64) -> Result<u64, MemError> {
        self.check(offset, 8)?;
        self.hook.poll(offset, seen)
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        self.check(offset, from.len())?;
        self.hook.write(offset, from)
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        self.check_word(offset)?;
        self.hook.fetch_add(offset, add)
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        self.check_word(offset)?;
        self.hook.compare_swap(offset, compare, swap)
    }

    fn place(&self) -> Option<u64> {
        Some(self.addr)
    }
}

impl View {
    /// A view of hooked memory: `len` bytes from `offset`, in whole pages from a page's address on.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`] for a part that is not in it, [`MemError::Misaligned`] for memory whose address is no
    /// page's.
    pub fn hooked(memory: Arc<Hooked>, offset: usize, len: usize) -> Result<Self, MemError> {
        let misaligned = MemError::Misaligned { offset: 0, align: PAGE_BYTES };
        if !memory.addr.is_multiple_of(PAGE_BYTES as u64) {
            return Err(misaligned);
        }
        let base = NonNull::new(memory.addr as *mut u8).ok_or(misaligned)?;
        let (len_all, owner) = (memory.bytes, Owner::Far(memory));
        let mem = HostMem { base, len: len_all, owner, device_reads: AtomicBool::new(false) };
        Self::new(&Arc::new(mem), offset, len)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::Ordering;

    use super::*;

    /// Lengths of the accesses.
    #[derive(Default)]
    struct Seen(Mutex<Vec<(char, usize, usize)>>);

    struct Over(Arc<HostMem>, Arc<Seen>);

    impl Hook for Over {
        fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
            self.1.0.lock().unwrap().push(('r', offset, into.len()));
            self.0.read(offset, into)
        }
        fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
            self.1.0.lock().unwrap().push(('w', offset, from.len()));
            self.0.write(offset, from)
        }
        fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
            self.0.fetch_add_u64(offset, add)
        }
        fn compare_swap(&self, offset: usize, old: u64, new: u64) -> Result<u64, MemError> {
            self.0.compare_swap_u64(offset, old, new)
        }
    }

    #[test]
    fn each_access_through_a_view_is_seen_once() {
        let (near, seen) = (HostMem::alloc(PAGE_BYTES).unwrap(), Arc::new(Seen::default()));
        let hook = Box::new(Over(near.clone(), seen.clone()));
        let hooked = Hooked::new(near.addr(), near.len(), hook);
        let view = View::hooked(hooked.clone(), 64, 128).unwrap();
        assert_eq!(view.addr(), near.addr() + 64);
        view.store_u64(8, 7, Ordering::Release).unwrap();
        view.store_u32(16, 9, Ordering::Release).unwrap();
        assert_eq!(view.load_u64(8, Ordering::Acquire).unwrap(), 7);
        assert_eq!(view.load_u32(16, Ordering::Acquire).unwrap(), 9);
        assert_eq!(near.load_u64(72, Ordering::Relaxed).unwrap(), 7);
        assert_eq!(view.fetch_add(8, 1).unwrap(), 7);
        assert_eq!(view.compare_swap(8, 8, 1).unwrap(), 8);
        let expected = [('w', 72, 8), ('w', 80, 4), ('r', 72, 8), ('r', 80, 4)];
        assert_eq!(*seen.0.lock().unwrap(), expected);
    }

    #[test]
    fn what_does_not_lie_there_is_refused_before_the_hook() {
        let (near, seen) = (HostMem::alloc(PAGE_BYTES).unwrap(), Arc::new(Seen::default()));
        let hooked =
            Hooked::new(near.addr(), near.len(), Box::new(Over(near.clone(), seen.clone())));
        assert!(hooked.read(PAGE_BYTES - 1, &mut [0; 2]).is_err());
        assert!(hooked.write(usize::MAX, &[0]).is_err());
        assert!(hooked.fetch_add(4, 1).is_err());
        assert!(hooked.compare_swap(PAGE_BYTES, 0, 1).is_err());
        assert!(View::hooked(hooked.clone(), 0, PAGE_BYTES + 1).is_err());
        let odd = Hooked::new(near.addr() + 64, 64, Box::new(Over(near, seen.clone())));
        assert!(View::hooked(odd, 0, 64).is_err());
        let view = View::hooked(hooked, 0, PAGE_BYTES).unwrap();
        assert!(view.load_u64(4, Ordering::Acquire).is_err());
        assert!(view.store_u32(2, 0, Ordering::Release).is_err());
        assert!(seen.0.lock().unwrap().is_empty());
    }
}
