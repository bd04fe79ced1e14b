//! Memory of the program around us: ranges that it registered, and queues that it gave to the NIC.
//!
//! What is registered may be unmapped, or lose its rights, at any moment; a NIC must then report
//! an error and not die with the program. So its bytes are moved by the system, which says `EFAULT`
//! where a copy of our own would raise a signal: `process_vm_readv` and `process_vm_writev` on this
//! very process, and for mappings that those refuse (a device's pages, `VM_IO` and `VM_PFNMAP`)
//! `pwrite` to and `pread` from a scratch file. Where a signal of a copy of our own is caught
//! (`guarded`), such a copy goes first, and the system decides what it could not reach.
//!
//! Unlike pages that a kernel has pinned, these are found anew at each access: a program that maps
//! something else at the same addresses without registering it has the NIC write there.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::guarded;
use crate::hidden::Hidden;
use crate::host::Owner;
use crate::{Dma, HostMem, MemError, PAGE_BYTES, View, rewrite};

/// Bytes that go through the scratch file at once.
const SCRATCH_BYTES: usize = 64 << 10;

impl HostMem {
    /// A view of memory that the program has mapped elsewhere, which stays when the view goes.
    ///
    /// # Safety
    /// From now on until the last clone of the view is gone, the range must stay mapped readable, and no Rust reference
    /// may be formed to it. With `write` it must stay writable too; without, nobody may write through the view.
    ///
    /// # Errors
    /// [`MemError::Fault`] for a range that is not mapped for reading, or for writing with `write`, now, or empty.
    pub unsafe fn borrowed(addr: u64, bytes: usize, write: bool) -> Result<View, MemError> {
        let fault = MemError::Fault { addr, bytes };
        let pages = Pages::around(addr, bytes).ok_or(fault)?;
        if bytes == 0 || !pages.are_there(write) {
            return Err(MemError::Fault { addr, bytes });
        }
        let base = NonNull::new(pages.start as *mut u8).ok_or(MemError::Fault { addr, bytes })?;
        let mem = Arc::new(Self::over(base, pages.len, Owner::Program));
        View::new(&mem, (addr - pages.start as u64) as usize, bytes)
    }
}

/// Whole pages that hold a range.
#[derive(Clone, Copy)]
struct Pages {
    start: usize,
    len: usize,
}

impl Pages {
    fn around(addr: u64, bytes: usize) -> Option<Self> {
        let start = usize::try_from(addr).ok()? & !(PAGE_BYTES - 1);
        let end = usize::try_from(addr).ok()?.checked_add(bytes)?;
        let len = end.checked_next_multiple_of(PAGE_BYTES)? - start;
        Some(Self { start, len })
    }

    /// Faults the pages in, as registration with a kernel does. Fails when one is not mapped, or
    /// not for writing where that is asked for.
    fn populate(self, write: bool) -> io::Result<()> {
        let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // SAFETY: populating changes no byte, and what is not mapped is refused.
        match unsafe { libc::madvise(self.start as *mut _, self.len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn are_there(self, write: bool) -> bool {
        match self.populate(write) {
            Ok(()) => true,
            // A device's pages cannot be populated, nor can pages without the right, and kernels
            // before 5.14 do not know how: the list of mappings tells.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                let maps = std::fs::read_to_string("/proc/self/maps");
                maps.is_ok_and(|maps| self.allowed_by(&maps, write))
            }
            Err(_) => false,
        }
    }

    /// Whether mappings, in the format of `/proc/self/maps` (proc(5)), cover the pages with the
    /// right.
    fn allowed_by(self, maps: &str, write: bool) -> bool {
        let mut at = self.start;
        for line in maps.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
            let hex = |text| usize::from_str_radix(text, 16).ok();
            let ends = range.split_once('-').map(|(from, to)| (hex(from), hex(to)));
            let Some((Some(from), Some(to))) = ends else { continue };
            let right = if write { rights.as_bytes().get(1) == Some(&b'w') } else { true };
            if from <= at && at < to && rights.starts_with('r') && right {
                at = to;
            }
        }
        at >= self.start + self.len
    }
}

/// A range of this process's memory that the program registered. No access to it can crash.
#[derive(Debug)]
pub struct UserMem {
    addr: u64,
    bytes: usize,
    pid: libc::pid_t,
    /// Whether the way past the mappings was refused, and the scratch file is tried before it. Memory that was gone for
    /// the one and back for the other gets it too: nothing but speed hangs on it, and none where faults are caught.
    special: AtomicBool,
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Out,
    In,
}

impl UserMem {
    /// Takes a range on, and faults its pages in.
    ///
    /// # Safety
    /// The program hands the range over: nothing of Rust's lies there, and what is written there is
    /// written on the program's behalf.
    ///
    /// # Errors
    /// [`MemError::Fault`] when part of the range is not mapped, or not writable although `write`
    /// asks for it.
    pub unsafe fn register(addr: u64, bytes: usize, write: bool) -> Result<Self, MemError> {
        let pages = Pages::around(addr, bytes).filter(|_| bytes > 0);
        if !pages.is_some_and(|pages| pages.are_there(write)) {
            return Err(MemError::Fault { addr, bytes });
        }
        // SAFETY: as this function's caller promises.
        Ok(unsafe { Self::unchecked(addr, bytes) })
    }

    /// A range that the program names in passing: nothing is looked at before it is accessed.
    ///
    /// # Safety
    /// As [`UserMem::register`].
    pub unsafe fn unchecked(addr: u64, bytes: usize) -> Self {
        let pid = std::process::id() as libc::pid_t;
        Self { addr, bytes, pid, special: AtomicBool::new(false) }
    }

    /// Faults a part of the range in, as a prefetch of on-demand paging does.
    ///
    /// # Errors
    /// [`MemError::OutOfBounds`]; [`MemError::Fault`] as [`UserMem::register`].
    pub fn populate(&self, offset: usize, bytes: usize, write: bool) -> Result<(), MemError> {
        let addr = self.at(offset, bytes)?;
        match Pages::around(addr, bytes).is_some_and(|pages| pages.are_there(write)) {
            true => Ok(()),
            false => Err(MemError::Fault { addr, bytes }),
        }
    }

    fn at(&self, offset: usize, bytes: usize) -> Result<u64, MemError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.addr.wrapping_add(offset as u64)),
            _ => Err(MemError::OutOfBounds { offset, bytes, len: self.bytes }),
        }
    }

    /// Moves bytes between the range and memory of ours.
    ///
    /// # Safety
    /// `ours` is valid for `bytes` bytes, for writes where they go [`Way::Out`] of the range.
    unsafe fn transfer(
        &self,
        way: Way,
        offset: usize,
        ours: *mut u8,
        bytes: usize,
    ) -> Result<(), MemError> {
        let addr = self.at(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let (from, to) = match way {
            Way::Out => (addr as *const u8, ours),
            Way::In => (ours.cast_const(), addr as *mut u8),
        };
        // SAFETY: as this function's caller promises; the range was checked against the bounds, and the program has
        // handed it over.
        unsafe {
            if guarded::copy(to, from, bytes)
                || !self.special.load(Ordering::Relaxed) && self.direct(way, addr, ours, bytes)
            {
                return Ok(());
            }
            if !through_scratch(way, addr, ours, bytes) {
                return Err(MemError::Fault { addr, bytes });
            }
        }
        self.special.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// # Safety
    /// As [`UserMem::transfer`].
    unsafe fn direct(&self, way: Way, addr: u64, ours: *mut u8, bytes: usize) -> bool {
        let local = libc::iovec { iov_base: ours.cast(), iov_len: bytes };
        let remote = libc::iovec { iov_base: addr as *mut _, iov_len: bytes };
        // SAFETY: `ours` is valid as the caller promises; the other range is the system's to check.
        let moved = unsafe {
            match way {
                Way::Out => libc::process_vm_readv(self.pid, &local, 1, &remote, 1, 0),
                Way::In => libc::process_vm_writev(self.pid, &local, 1, &remote, 1, 0),
            }
        };
        moved == bytes as isize
    }

    fn word(&self, offset: usize) -> Result<u64, MemError> {
        let addr = self.at(offset, 8)?;
        match addr % 8 {
            0 => Ok(addr),
            _ => Err(MemError::Misaligned { offset, align: 8 }),
        }
    }

    /// Changes a word atomically; returns its old value. In a device's pages, which cannot be made
    /// sure of, atomic among operations of this kind only.
    fn atomic(
        &self,
        offset: usize,
        guarded: impl Fn(*mut u64) -> Option<u64>,
        on_word: impl Fn(&AtomicU64) -> u64,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, MemError> {
        static ALONE: Mutex<()> = Mutex::new(());
        let addr = self.word(offset)?;
        let fault = || MemError::Fault { addr, bytes: 8 };
        for _ in 0..TRIES {
            let is_guarded = guarded::is_guarded();
            if let (true, Some(old)) = (is_guarded, guarded(addr as *mut u64)) {
                return Ok(old);
            }
            match Pages::around(addr, 8).ok_or_else(fault)?.populate(true) {
                // It has faulted, and is there by now.
                Ok(()) if is_guarded => continue,
                Ok(()) => {
                    // SAFETY: aligned, and mapped for writing a moment ago. A program that unmaps what
                    // it has registered in just that moment is beyond help here, where nothing is guarded: no system
                    // call changes 8 bytes atomically and says EFAULT (futex(2) has operations on 4), and without the
                    // processor's own atomic the device could not promise atomicity towards its program.
                    return Ok(on_word(unsafe { AtomicU64::from_ptr(addr as *mut u64) }));
                }
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
                    return rewrite(self, offset, change);
                }
                Err(_) => return Err(fault()),
            }
        }
        Err(fault())
    }
}

/// How often a word is tried that was gone, and there again before the next look.
const TRIES: usize = 4;

/// Does something with the thread's scratch file, which is made when it is not there: not yet, not
/// in the child of a fork, or not any more, because the program closed what it did not know.
fn with_scratch(work: impl FnOnce(RawFd) -> bool) -> bool {
    thread_local! {
        static SCRATCH: RefCell<Option<Hidden<File>>> = const { RefCell::new(None) };
    }
    let mut work = Some(work);
    let mut with = |scratch: &mut Option<Hidden<File>>| {
        if !scratch.as_ref().is_some_and(Hidden::is_there) {
            // SAFETY: the name is a C string; what comes back is checked.
            let fd = unsafe { libc::memfd_create(c"bellpush-scratch".as_ptr(), libc::MFD_CLOEXEC) };
            // SAFETY: a new descriptor that nobody else has.
            *scratch = (fd >= 0).then(|| Hidden::new(unsafe { File::from_raw_fd(fd) }));
        }
        let work = work.take();
        scratch.as_ref().zip(work).is_some_and(|(file, work)| work(file.as_raw_fd()))
    };
    // A handler of the process's end comes behind the destructors of the thread's own.
    let done = SCRATCH.try_with(|scratch| with(&mut scratch.borrow_mut()));
    done.unwrap_or_else(|_| with(&mut None))
}

/// Moves bytes through the scratch file: the system copies on both sides.
///
/// # Safety
/// As [`UserMem::transfer`].
unsafe fn through_scratch(way: Way, addr: u64, ours: *mut u8, bytes: usize) -> bool {
    let piece = |fd, at: usize| {
        let n = (bytes - at).min(SCRATCH_BYTES);
        // SAFETY: `at + n` stays within what the caller vouches for.
        let ours = unsafe { ours.add(at) };
        let theirs = (addr + at as u64) as *mut u8;
        let (from, to) = match way {
            Way::Out => (theirs, ours),
            Way::In => (ours, theirs),
        };
        // SAFETY: the system checks the program's side; ours is valid.
        unsafe {
            libc::pwrite(fd, from.cast(), n, 0) == n as isize
                && libc::pread(fd, to.cast(), n, 0) == n as isize
        }
    };
    with_scratch(|fd| (0..bytes).step_by(SCRATCH_BYTES).all(|at| piece(fd, at)))
}

// SAFETY: names no address that is to be reached.
unsafe impl Dma for UserMem {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn place(&self) -> Option<u64> {
        Some(self.addr)
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        // SAFETY: the slice is valid for its length.
        unsafe { self.transfer(Way::Out, offset, into.as_mut_ptr(), into.len()) }
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        // SAFETY: the slice is valid for its length, and nothing is written to it.
        unsafe { self.transfer(Way::In, offset, from.as_ptr().cast_mut(), from.len()) }
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        // SAFETY: the program has handed the range over.
        let guarded = |word| unsafe { guarded::fetch_add(word, add) };
        let on_word = |word: &AtomicU64| word.fetch_add(add, Ordering::AcqRel);
        self.atomic(offset, guarded, on_word, |old| old.wrapping_add(add))
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        // SAFETY: the program has handed the range over.
        let guarded = |word| unsafe { guarded::compare_swap(word, compare, swap) };
        let on_word = |word: &AtomicU64| {
            let swapped = word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire);
            swapped.unwrap_or_else(|old| old)
        };
        self.atomic(offset, guarded, on_word, |old| if old == compare { swap } else { old })
    }

    fn read_to_host(
        &self,
        offset: usize,
        to: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        // SAFETY: the mapping's range was checked.
        unsafe { self.transfer(Way::Out, offset, to.at(at, n)?, n) }
    }

    fn write_from_host(
        &self,
        offset: usize,
        from: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        // SAFETY: the mapping's range was checked.
        unsafe { self.transfer(Way::In, offset, from.at(at, n)?, n) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Pages of the program's, which tests unmap and protect under the region's feet.
    struct Theirs(usize, usize);

    impl Theirs {
        fn new(pages: usize) -> Self {
            let len = pages * PAGE_BYTES;
            // SAFETY: an anonymous mapping of the system's choice.
            let at = unsafe {
                let (rw, private) =
                    (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                libc::mmap(std::ptr::null_mut(), len, rw, private, -1, 0)
            };
            assert_ne!(at, libc::MAP_FAILED);
            Self(at as usize, len)
        }

        fn register(&self, write: bool) -> Result<UserMem, MemError> {
            // SAFETY: nothing of Rust's lies in the pages.
            unsafe { UserMem::register(self.0 as u64, self.1, write) }
        }

        fn protect(&self, page: usize, rights: i32) {
            let at = (self.0 + page * PAGE_BYTES) as *mut _;
            // SAFETY: a page of this mapping.
            assert_eq!(unsafe { libc::mprotect(at, PAGE_BYTES, rights) }, 0);
        }

        fn unmap(&self, page: usize) {
            // SAFETY: a page of this mapping, which nothing refers to.
            unsafe { libc::munmap((self.0 + page * PAGE_BYTES) as *mut _, PAGE_BYTES) };
        }
    }

    impl Drop for Theirs {
        fn drop(&mut self) {
            // SAFETY: this mapping alone; nothing refers to it any more.
            unsafe { libc::munmap(self.0 as *mut _, self.1) };
        }
    }

    #[test]
    fn bytes_arrive_and_bounds_hold() {
        let theirs = Theirs::new(3);
        let mem = theirs.register(true).unwrap();
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
        mem.write(100, &bytes).unwrap();
        let mut got = vec![0; 5000];
        mem.read(100, &mut got).unwrap();
        assert_eq!(got, bytes);
        let host = HostMem::alloc(8192).unwrap();
        mem.read_to_host(100, &host, 8, 5000).unwrap();
        mem.write_from_host(3000, &host, 8, 5000).unwrap();
        mem.read(3000, &mut got).unwrap();
        assert_eq!(got, bytes);
        for (offset, n) in [(3 * PAGE_BYTES - 1, 2), (usize::MAX, 1), (3 * PAGE_BYTES, 1)] {
            let refused = mem.read(offset, &mut got[..n]);
            assert!(matches!(refused, Err(MemError::OutOfBounds { .. })), "{offset}");
        }
        assert!(mem.read(3 * PAGE_BYTES, &mut []).is_ok(), "nothing at the end");
    }

    #[test]
    fn what_is_unmapped_or_protected_is_an_error_and_no_crash() {
        let theirs = Theirs::new(4);
        let mem = theirs.register(true).unwrap();
        let mut byte = [0; 1];
        let fault = |r: Result<(), MemError>| assert!(matches!(r, Err(MemError::Fault { .. })));
        theirs.protect(1, libc::PROT_READ);
        mem.read(PAGE_BYTES, &mut byte).unwrap();
        fault(mem.write(PAGE_BYTES, &byte));
        fault(mem.fetch_add(PAGE_BYTES, 1).map(|_| ()));
        theirs.unmap(2);
        fault(mem.read(2 * PAGE_BYTES, &mut byte));
        fault(mem.write(2 * PAGE_BYTES, &byte));
        fault(mem.compare_swap(2 * PAGE_BYTES, 0, 1).map(|_| ()));
        fault(mem.read(2 * PAGE_BYTES - 1, &mut [0; 2]));
        mem.write(3 * PAGE_BYTES, &byte).unwrap();
    }

    #[test]
    fn ranges_that_are_not_there_are_not_registered() {
        let theirs = Theirs::new(3);
        theirs.register(true).unwrap();
        theirs.protect(1, libc::PROT_READ);
        theirs.register(false).unwrap();
        assert!(matches!(theirs.register(true), Err(MemError::Fault { .. })));
        theirs.unmap(2);
        assert!(theirs.register(false).is_err());
        for (addr, bytes) in [(0, 8), (8, 1), (u64::MAX - 4, 8), (1 << 62, 8), (theirs.0 as u64, 0)]
        {
            // SAFETY: there is nothing at these addresses, or nothing is asked for.
            assert!(unsafe { UserMem::register(addr, bytes, false) }.is_err(), "{addr:#x}");
            // SAFETY: as above.
            assert!(unsafe { HostMem::borrowed(addr, bytes, false) }.is_err(), "{addr:#x}");
        }
    }

    #[test]
    fn lists_of_mappings_are_read() {
        let maps = "1000-3000 rw-p 00000000 00:00 0\n3000-4000 r--p 0 00:00 0 [x]\n\n\
                    4000-5000 ---p 0 00:00 0\n6000-7000 rw-p 0 00:00 0 /a b\n";
        for (start, len, write, wanted) in [
            (0x1000, 0x2000, true, true),
            (0x1000, 0x3000, false, true),
            (0x1000, 0x3000, true, false),
            (0x3000, 0x2000, false, false),
            (0x6000, 0x1000, true, true),
            (0x6000, 0x2000, false, false),
            (0x0, 0x2000, false, false),
        ] {
            assert_eq!(Pages { start, len }.allowed_by(maps, write), wanted, "{start:#x} {len:#x}");
        }
    }

    #[test]
    fn atomics_are_real_ones() {
        let theirs = Theirs::new(1);
        let mem = theirs.register(true).unwrap();
        // SAFETY: aligned, mapped until the end of the test, and shared as an atomic only.
        let word = unsafe { AtomicU64::from_ptr((theirs.0 + 8) as *mut u64) };
        std::thread::scope(|s| {
            s.spawn(|| (0..2000).for_each(|_| _ = word.fetch_add(1, Ordering::Relaxed)));
            (0..2000).for_each(|_| _ = mem.fetch_add(8, 1 << 32).unwrap());
        });
        assert_eq!(word.load(Ordering::Relaxed), 2000 << 32 | 2000);
        assert_eq!(mem.compare_swap(8, 5, 9).unwrap(), 2000 << 32 | 2000);
        assert_eq!(mem.compare_swap(8, 2000 << 32 | 2000, 9).unwrap(), 2000 << 32 | 2000);
        assert_eq!(mem.fetch_add(8, u64::MAX).unwrap(), 9);
        assert_eq!(word.load(Ordering::Relaxed), 8);
        assert!(matches!(mem.fetch_add(4, 1), Err(MemError::Misaligned { .. })));
    }

    #[test]
    fn the_scratch_file_does_the_same() {
        let theirs = Theirs::new(40);
        let mem = theirs.register(true).unwrap();
        mem.special.store(true, Ordering::Relaxed);
        let bytes: Vec<u8> = (0..150_000u32).map(|i| (i ^ i >> 8) as u8).collect();
        mem.write(11, &bytes).unwrap();
        let mut got = vec![0; bytes.len()];
        mem.read(11, &mut got).unwrap();
        assert!(got == bytes);
        theirs.unmap(39);
        assert!(mem.read(39 * PAGE_BYTES, &mut got[..1]).is_err());
        theirs.protect(38, libc::PROT_READ);
        assert!(mem.write(38 * PAGE_BYTES, &got[..1]).is_err());
    }

    #[test]
    fn a_word_that_comes_and_goes_never_ends_the_process() {
        guarded::install(libc::sigaction);
        let theirs = Theirs::new(1);
        let mem = theirs.register(true).unwrap();
        // A copy has found it gone for the system's way, and back for the scratch file's.
        mem.special.store(true, Ordering::Relaxed);
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    theirs.protect(0, libc::PROT_READ);
                    theirs.protect(0, libc::PROT_READ | libc::PROT_WRITE);
                }
            });
            let until = Instant::now() + Duration::from_secs(1);
            while Instant::now() < until {
                let _ = mem.fetch_add(0, 1); // it may be gone
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_borrowed_view_leaves_the_memory_alone() {
        let theirs = Theirs::new(1);
        let addr = (theirs.0 + 72) as u64;
        // SAFETY: the page stays mapped, and no reference to it is formed.
        let view = unsafe { HostMem::borrowed(addr, 16, true) }.unwrap();
        assert_eq!((view.addr(), view.len), (addr, 16));
        view.store_u64(8, 7, Ordering::Relaxed).unwrap();
        assert!(view.store_u64(16, 7, Ordering::Relaxed).is_err());
        drop(view);
        let mut word = [0; 8];
        theirs.register(true).unwrap().read(80, &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 7);
        theirs.protect(0, libc::PROT_READ);
        // SAFETY: as above, and nothing is written.
        let view = unsafe { HostMem::borrowed(addr, 16, false) }.unwrap();
        assert_eq!(view.load_u64(8, Ordering::Relaxed).unwrap(), 7);
        // SAFETY: refused.
        assert!(unsafe { HostMem::borrowed(addr, 16, true) }.is_err());
    }
}
