//! Page-aligned host memory that devices share, and views of parts of it.

use std::any::Any;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::{Dma, MemError, PAGE_BYTES};

/// Bytes of a huge page on x86-64 and most others.
const HUGE_BYTES: usize = 2 << 20;

/// Page-aligned, resident memory: zero-filled memory of the host, unmapped when the last reference
/// goes, or a device's ([`HostMem::of_device`]).
///
/// All methods take `&self`: other threads, GPUs and NICs write the same bytes concurrently.
pub struct HostMem {
    pub(crate) base: NonNull<u8>,
    pub(crate) len: usize,
    pub(crate) owner: Owner,
    /// A device reads it ([`HostMem::read_by_device`]).
    pub(crate) device_reads: AtomicBool,
}

/// Who unmaps the memory.
pub(crate) enum Owner {
    /// This, in the process that mapped it: the child of a fork has something else there, or nothing.
    Mapping {
        /// Its number.
        process: u32,
    },
    /// The program, somewhere else ([`HostMem::borrowed`]).
    Program,
    /// A driver of a device, once this lets go of it.
    Device(#[expect(dead_code, reason = "held for its drop")] Arc<dyn Any + Send + Sync>),
    /// A device, into whose memory the processor cannot reach ([`HostMem::far`]).
    Far(Arc<dyn Dma>),
    /// A loom model ([`HostMem::modelled`]).
    #[cfg(feature = "model")]
    Model {
        /// Its copies.
        dma: Arc<dyn Dma>,
        /// Its words.
        model: Arc<crate::model::Model>,
        /// Keeps the address.
        #[expect(dead_code, reason = "held for its drop")]
        place: Arc<HostMem>,
    },
}

impl Owner {
    /// This, of a mapping that was made just now.
    pub(crate) fn mapping() -> Self {
        Self::Mapping { process: std::process::id() }
    }
}

// SAFETY: the mapping stays while this lives, never moves, and is reached through raw copies and atomics only.
unsafe impl Send for HostMem {}
// SAFETY: as above; concurrent access is what the type is for, and no reference to it is formed.
unsafe impl Sync for HostMem {}

impl HostMem {
    /// What lies at a place that somebody has mapped.
    pub(crate) fn over(base: NonNull<u8>, len: usize, owner: Owner) -> Self {
        Self { base, len, owner, device_reads: AtomicBool::new(false) }
    }

    /// Maps `bytes` (rounded up to whole pages), zero-filled and populated.
    ///
    /// # Errors
    /// [`MemError::Map`] when the system refuses, also for 0 bytes.
    pub fn alloc(bytes: usize) -> Result<Arc<Self>, MemError> {
        let mem = Self::map(bytes)?;
        mem.populate()?;
        Ok(Arc::new(mem))
    }

    /// As [`HostMem::alloc`], with all pages on NUMA node `node`.
    ///
    /// # Errors
    /// [`MemError::Bind`] when the node does not exist or the system refuses.
    pub fn alloc_on_node(bytes: usize, node: usize) -> Result<Arc<Self>, MemError> {
        let mem = Self::map(bytes)?;
        crate::numa::bind(mem.base.as_ptr(), mem.len, node)?;
        mem.populate()?; // on its node
        Ok(Arc::new(mem))
    }

    /// Registers or memory of a device, which its driver has mapped for this process.
    ///
    /// # Safety
    /// `addr .. addr + bytes` are whole pages that stay mapped for writing while `owner` lives, to
    /// which no Rust reference is formed, and any word that is written there is sound for this
    /// program. They are read only where the driver maps them readable.
    ///
    /// # Panics
    /// For address 0.
    pub unsafe fn of_device(
        addr: u64,
        bytes: usize,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        let base = NonNull::new(addr as *mut u8).expect("a device's pages are not at address 0");
        Arc::new(Self::over(base, bytes, Owner::Device(owner)))
    }

    /// Whether it is a device's.
    #[inline]
    pub fn is_device(&self) -> bool {
        matches!(self.owner, Owner::Device(_))
    }

    /// Maps without touching. From 2 MiB on, aligned for huge pages and asking for them: a NIC's
    /// engine that copies slot by slot would else miss the TLB at every slot.
    fn map(bytes: usize) -> Result<Self, MemError> {
        let too_big =
            || MemError::Map { bytes, source: io::Error::from(io::ErrorKind::InvalidInput) };
        let len = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or_else(too_big)?;
        let huge = len >= HUGE_BYTES;
        let spare = if huge { HUGE_BYTES } else { 0 };
        // SAFETY: an anonymous mapping at an address of the system's choice aliases nothing.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len.checked_add(spare).ok_or_else(too_big)?,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(MemError::Map { bytes, source: io::Error::last_os_error() });
        }
        let head =
            if huge { (mapped as usize).next_multiple_of(HUGE_BYTES) - mapped as usize } else { 0 };
        // SAFETY: head <= spare, so both ends that are given back lie in the mapping and outside
        // what is kept, and the advice concerns what is kept. Advice that is not taken costs speed
        // only, but for DONTFORK: without it a fork would move pages under a device.
        let (base, kept) = unsafe {
            let base = mapped.cast::<u8>().add(head);
            if head > 0 {
                libc::munmap(mapped, head);
            }
            if spare > head {
                libc::munmap(base.add(len).cast(), spare - head);
            }
            if huge {
                libc::madvise(base.cast(), len, libc::MADV_HUGEPAGE);
            }
            (base, libc::madvise(base.cast(), len, libc::MADV_DONTFORK))
        };
        let refused = io::Error::last_os_error();
        let base = NonNull::new(base).ok_or_else(too_big)?;
        let mem = Self::over(base, len, Owner::mapping());
        if kept == 0 { Ok(mem) } else { Err(MemError::Map { bytes, source: refused }) }
    }

    /// Faults all pages in.
    fn populate(&self) -> Result<(), MemError> {
        for page in (0..self.len).step_by(PAGE_BYTES) {
            self.store_u64(page, 0, Ordering::Relaxed)?;
        }
        Ok(())
    }

    /// Length in bytes, a multiple of [`PAGE_BYTES`].
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping is empty; it never is.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte, for registration with devices and for kernels' arguments.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Memory of a device that the processor neither loads from nor stores to, at its address for
    /// kernels: every access is a copy of the device's. A queue in a GPU's memory is one. Words are
    /// single copies; they order nothing but what was copied before by this thread.
    ///
    /// `None` for memory without an address.
    pub fn far(memory: Arc<dyn Dma>) -> Option<Arc<Self>> {
        let near = || memory.as_host().map(View::addr);
        let base = NonNull::new(memory.device_addr().or_else(near)? as *mut u8)?;
        Some(Arc::new(Self::over(base, memory.bytes(), Owner::Far(memory))))
    }

    /// The device's memory, where the processor does not reach it.
    #[inline]
    pub(crate) fn as_far(&self) -> Option<&Arc<dyn Dma>> {
        match &self.owner {
            Owner::Far(memory) => Some(memory),
            #[cfg(feature = "model")]
            Owner::Model { dma, .. } => Some(dma),
            _ => None,
        }
    }

    /// Whether loom sees its accesses; never, but in tests.
    #[inline]
    pub(crate) fn is_modelled(&self) -> bool {
        #[cfg(feature = "model")]
        return matches!(self.owner, Owner::Model { .. });
        #[cfg(not(feature = "model"))]
        false
    }

    /// As [`HostMem::at`]; in a model's memory a place of which only the address is of use.
    #[inline]
    pub(crate) fn at_or_modelled(&self, offset: usize, bytes: usize) -> Result<*mut u8, MemError> {
        if self.is_modelled() {
            self.check(offset, bytes)?;
            return Ok(self.base.as_ptr().wrapping_add(offset));
        }
        self.at(offset, bytes)
    }

    /// The model that a word belongs to, if the memory is one's and the word is aligned in it.
    #[cfg(feature = "model")]
    pub(crate) fn modelled_word(
        &self,
        offset: usize,
        bytes: usize,
    ) -> Option<&crate::model::Model> {
        match &self.owner {
            Owner::Model { model, .. } if self.check(offset, bytes).is_ok() => {
                offset.is_multiple_of(bytes).then_some(&**model)
            }
            _ => None,
        }
    }

    /// Whether the processor cannot reach it.
    #[inline]
    pub fn is_far(&self) -> bool {
        self.as_far().is_some()
    }

    #[inline]
    pub(crate) fn check(&self, offset: usize, bytes: usize) -> Result<(), MemError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(MemError::OutOfBounds { offset, bytes, len: self.len }),
        }
    }

    /// Where the processor finds a range; nowhere in a device's memory that is far.
    #[inline]
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> Result<*mut u8, MemError> {
        self.check(offset, bytes)?;
        if self.is_far() {
            return Err(MemError::Far);
        }
        // SAFETY: offset <= end <= len: inside the mapping or one past it.
        Ok(unsafe { self.base.as_ptr().add(offset) })
    }

    #[inline]
    fn aligned(&self, offset: usize, bytes: usize) -> Result<*mut u8, MemError> {
        let ptr = self.at(offset, bytes)?;
        // The base is page-aligned, so the offset's alignment is the address's.
        if offset.is_multiple_of(bytes) {
            Ok(ptr)
        } else {
            Err(MemError::Misaligned { offset, align: bytes })
        }
    }

    /// Whether a word of memory that is far lies in it, aligned.
    fn check_far(&self, offset: usize, bytes: usize) -> Result<(), MemError> {
        if !offset.is_multiple_of(bytes) {
            return Err(MemError::Misaligned { offset, align: bytes });
        }
        self.check(offset, bytes)
    }

    #[inline]
    fn atomic_u32(&self, offset: usize) -> Result<&AtomicU32, MemError> {
        // SAFETY: in bounds, aligned, and lives as long as `self`; an atomic may be shared.
        Ok(unsafe { AtomicU32::from_ptr(self.aligned(offset, 4)?.cast()) })
    }

    #[inline]
    fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, MemError> {
        // SAFETY: in bounds, aligned, and lives as long as `self`; an atomic may be shared.
        Ok(unsafe { AtomicU64::from_ptr(self.aligned(offset, 8)?.cast()) })
    }

    /// Atomic 4-byte load, in the machine's byte order.
    #[inline]
    pub fn load_u32(&self, offset: usize, order: Ordering) -> Result<u32, MemError> {
        #[cfg(feature = "model")]
        if let Some(model) = self.modelled_word(offset, 4) {
            return Ok(model.load_u32(offset, order));
        }
        if let Some(far) = self.as_far() {
            self.check_far(offset, 4)?;
            return Ok(far.load(offset, 4)? as u32);
        }
        Ok(self.atomic_u32(offset)?.load(order))
    }

    /// Atomic 4-byte store, in the machine's byte order.
    #[inline]
    pub fn store_u32(&self, offset: usize, value: u32, order: Ordering) -> Result<(), MemError> {
        #[cfg(feature = "model")]
        if let Some(model) = self.modelled_word(offset, 4) {
            model.store_u32(offset, value, order);
            return Ok(());
        }
        if self.is_far() {
            self.check_far(offset, 4)?;
            return self.write(offset, &value.to_ne_bytes());
        }
        self.atomic_u32(offset)?.store(value, order);
        Ok(())
    }

    /// Atomic 8-byte load, in the machine's byte order.
    #[inline]
    pub fn load_u64(&self, offset: usize, order: Ordering) -> Result<u64, MemError> {
        #[cfg(feature = "model")]
        if let Some(model) = self.modelled_word(offset, 8) {
            return Ok(model.load_u64(offset, order));
        }
        if let Some(far) = self.as_far() {
            self.check_far(offset, 8)?;
            return far.load(offset, 8);
        }
        Ok(self.atomic_u64(offset)?.load(order))
    }

    /// As [`HostMem::load_u64`] with acquire, by one who has seen the word before and looks whether it changed.
    #[inline]
    pub fn poll_u64(&self, offset: usize, seen: u64) -> Result<u64, MemError> {
        match self.as_far() {
            Some(far) if !self.is_modelled() => {
                self.check_far(offset, 8)?;
                far.poll(offset, seen)
            }
            _ => self.load_u64(offset, Ordering::Acquire),
        }
    }

    /// Atomic 8-byte store, in the machine's byte order.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64, order: Ordering) -> Result<(), MemError> {
        #[cfg(feature = "model")]
        if let Some(model) = self.modelled_word(offset, 8) {
            model.store_u64(offset, value, order);
            return Ok(());
        }
        if self.is_far() {
            self.check_far(offset, 8)?;
            return self.write(offset, &value.to_ne_bytes());
        }
        self.atomic_u64(offset)?.store(value, order);
        Ok(())
    }

    /// Atomic 8-byte fetch-and-add; returns the old value.
    #[inline]
    pub fn fetch_add_u64(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        if let Some(far) = self.as_far() {
            return far.fetch_add(offset, add);
        }
        Ok(self.atomic_u64(offset)?.fetch_add(add, Ordering::AcqRel))
    }

    /// Atomic 8-byte compare-and-swap; returns the old value.
    #[inline]
    pub fn compare_swap_u64(
        &self,
        offset: usize,
        compare: u64,
        swap: u64,
    ) -> Result<u64, MemError> {
        if let Some(far) = self.as_far() {
            return far.compare_swap(offset, compare, swap);
        }
        let word = self.atomic_u64(offset)?;
        Ok(match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
            Ok(old) | Err(old) => old,
        })
    }
}

impl std::fmt::Debug for HostMem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("HostMem");
        shown.field("base", &self.base).field("len", &self.len).field("far", &self.is_far());
        shown.finish_non_exhaustive()
    }
}

impl Drop for HostMem {
    fn drop(&mut self) {
        if matches!(self.owner, Owner::Mapping { process } if process == std::process::id()) {
            // SAFETY: mapped by this type with this length; nobody holds a pointer past the last Arc.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

/// A part of a [`HostMem`] that keeps it alive: a queue, a doorbell record, a page.
///
/// ```compile_fail,E0451
/// # use bellpush_mem::{HostMem, View};
/// let mem = HostMem::alloc(4096).unwrap();
/// let longer = View { mem, offset: 0, len: 1 << 40 };
/// ```
#[derive(Debug, Clone)]
pub struct View {
    // Made by `new` and `part` alone, which check the range: devices use it without looking again.
    pub(crate) mem: Arc<HostMem>,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl View {
    /// A checked view of `len` bytes from `offset`.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`] when the range leaves the mapping.
    #[inline]
    pub fn new(mem: &Arc<HostMem>, offset: usize, len: usize) -> Result<Self, MemError> {
        mem.check(offset, len)?;
        Ok(Self { mem: mem.clone(), offset, len })
    }

    /// The mapping that the view is a part of.
    #[inline]
    pub fn mem(&self) -> &Arc<HostMem> {
        &self.mem
    }

    /// First byte of the view in its mapping.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Length of the view.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the view's first byte.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.mem.addr() + self.offset as u64
    }

    /// The mapping's offset of `bytes` bytes at `offset` of the view.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`] when they leave the view.
    #[inline]
    pub fn at(&self, offset: usize, bytes: usize) -> Result<usize, MemError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.len => Ok(self.offset + offset),
            _ => Err(MemError::OutOfBounds { offset, bytes, len: self.len }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_mappings_are_whole_and_aligned_for_huge_pages() {
        let bytes = 3 * HUGE_BYTES + 5;
        let mem = HostMem::alloc(bytes).unwrap();
        assert_eq!(mem.addr() as usize % HUGE_BYTES, 0);
        assert_eq!(mem.len(), bytes.next_multiple_of(PAGE_BYTES));
        mem.fill(0, mem.len(), 7).unwrap();
        let mut last = [0; 3];
        mem.read(mem.len() - 3, &mut last).unwrap();
        assert_eq!(last, [7; 3]);
    }

    #[test]
    fn misaligned_atomics_are_refused() {
        let mem = HostMem::alloc(64).unwrap();
        assert!(matches!(mem.load_u64(4, Ordering::Relaxed), Err(MemError::Misaligned { .. })));
        assert!(mem.load_u32(4, Ordering::Relaxed).is_ok());
        assert_eq!(mem.fetch_add_u64(8, 5).unwrap(), 0);
        assert_eq!(mem.compare_swap_u64(8, 5, 9).unwrap(), 5);
        assert_eq!(mem.compare_swap_u64(8, 5, 1).unwrap(), 9);
        assert_eq!(mem.load_u64(8, Ordering::Relaxed).unwrap(), 9);
    }

    #[test]
    fn views_stay_inside_their_mapping() {
        let mem = HostMem::alloc(PAGE_BYTES).unwrap();
        let view = View::new(&mem, 64, 64).unwrap();
        assert_eq!(view.at(0, 64).unwrap(), 64);
        assert!(view.at(1, 64).is_err());
        assert!(View::new(&mem, PAGE_BYTES, 1).is_err());
    }

    /// Flags of the mapping that begins at an address (proc_pid_smaps(5)).
    fn flags_at(addr: u64) -> Vec<String> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (begin, mut inside) = (format!("{addr:x}-"), false);
        for line in smaps.lines() {
            match line.strip_prefix("VmFlags:") {
                Some(flags) if inside => return flags.split_whitespace().map(Into::into).collect(),
                Some(_) => {}
                None => inside = line.starts_with(&begin) || inside,
            }
        }
        panic!("no mapping begins at {addr:#x}");
    }

    #[test]
    fn a_forks_child_has_none_of_the_memory() {
        for bytes in [PAGE_BYTES, 2 * HUGE_BYTES] {
            let mem = HostMem::alloc(bytes).unwrap();
            assert!(flags_at(mem.addr()).contains(&"dc".into()), "{bytes}: not to be copied");
        }
    }

    /// The child has none of the memory, and something else may lie there by the time that it drops it.
    #[test]
    fn a_forks_child_unmaps_nothing_of_its_own() {
        let mem = HostMem::alloc(PAGE_BYTES).unwrap();
        let at = mem.addr() as *mut libc::c_void;
        // SAFETY: the child maps a page where it has none, and ends; glibc keeps its allocator whole across a fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let (rights, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let mut seen = 0;
            // SAFETY: the page is the child's own; the last calls look at it, and end the child.
            unsafe {
                let flags = flags | libc::MAP_FIXED_NOREPLACE;
                let mapped = libc::mmap(at, PAGE_BYTES, rights, flags, -1, 0) == at;
                drop(mem);
                let stays = libc::mincore(at, PAGE_BYTES, &raw mut seen) == 0;
                libc::_exit(if !mapped { 2 } else { (!stays).into() });
            }
        }
        let mut status = -1;
        // SAFETY: writes the status of the child, which ends by itself.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        assert_eq!(libc::WEXITSTATUS(status), 0, "1: unmapped; 2: the page was there");
    }

    #[test]
    fn a_node_that_does_not_exist_is_refused() {
        assert!(matches!(HostMem::alloc_on_node(4096, 1000), Err(MemError::Bind { .. })));
    }
}
