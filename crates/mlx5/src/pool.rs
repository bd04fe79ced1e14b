//! Queue memory of the caller's, handed to libmlx5 piece by piece.
//!
//! libmlx5 asks a parent domain's allocator for each ring and each doorbell record. Other than the
//! context's own allocators (`mlx5dv_set_context_attr`), which serve all queues of a process and
//! pack the records of many into one page, a parent domain serves one queue pair: all its pieces
//! lie in the memory that the GPU has mapped for it, and nothing of others does.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use rdma_sys::ibv_pd;

use bellpush_mem::{PAGE_BYTES, View};
use bellpush_nic::NicError;

/// Bytes of a cache line: doorbell records of different owners lie in different ones.
const RECORD_ALIGN: usize = 64;

/// The memory: a page of records, then rings, which begin pages. libmlx5 holds its address, so it
/// stays behind its `Arc`.
pub(super) struct Pool {
    memory: View,
    /// Bytes of a page.
    page: usize,
    /// Bytes taken of the records' page.
    records: AtomicUsize,
    /// First byte that no ring has.
    rings: AtomicUsize,
    /// Whether libmlx5 wanted more than there was, for the error message.
    short: AtomicBool,
}

/// Bytes of this machine's pages, of which libmlx5 makes rings and the system mappings: 4 KiB on
/// x86-64, up to 64 KiB on Arm and POWER.
pub(super) fn page_bytes() -> usize {
    static PAGE: LazyLock<usize> = LazyLock::new(|| {
        // SAFETY: reads a constant of the system's.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(page).unwrap_or(0).max(PAGE_BYTES)
    });
    *PAGE
}

impl Pool {
    pub fn new(memory: View) -> Arc<Self> {
        Self::of_pages(memory, page_bytes())
    }

    pub fn of_pages(memory: View, page: usize) -> Arc<Self> {
        Arc::new(Self {
            memory,
            page,
            records: AtomicUsize::new(0),
            rings: AtomicUsize::new(page),
            short: AtomicBool::new(false),
        })
    }

    /// Address of `bytes` fresh bytes; 0 when there are no more.
    pub fn take(&self, bytes: usize, align: usize) -> u64 {
        let align = align.max(RECORD_ALIGN) as u64;
        if !align.is_power_of_two() {
            return 0;
        }
        let (taken, limit) = match bytes <= RECORD_ALIGN {
            true => (&self.records, self.page.min(self.memory.len())),
            false => (&self.rings, self.memory.len()),
        };
        let mut found = 0;
        let took = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            found = (self.memory.addr() + taken as u64).checked_next_multiple_of(align)?;
            let end = (found - self.memory.addr()).checked_add(bytes as u64)?;
            (end <= limit as u64).then_some(end as usize)
        });
        if took.is_err() {
            self.short.store(true, Ordering::Relaxed);
            return 0;
        }
        found
    }

    /// Length of the memory.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Whether a request could not be met.
    pub fn was_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// The view of what libmlx5 says lies at an address.
    ///
    /// # Errors
    /// [`NicError::Memory`] when that is not within the pool: libmlx5 has put it elsewhere, where
    /// no GPU reaches it.
    pub fn view(&self, addr: u64, bytes: usize) -> Result<View, NicError> {
        let offset = addr.wrapping_sub(self.memory.addr());
        Ok(self.memory.part(usize::try_from(offset).unwrap_or(usize::MAX), bytes)?)
    }

    /// `alloc` of `struct ibv_parent_domain_init_attr`.
    ///
    /// # Safety
    /// libmlx5 calls it, with the pool's address as `pool`.
    pub unsafe extern "C" fn alloc(
        _pd: *mut ibv_pd,
        pool: *mut c_void,
        bytes: usize,
        align: usize,
        _kind: u64,
    ) -> *mut c_void {
        // SAFETY: the address of a shared pool that outlives the parent domain. Nothing in here
        // panics: unwinding into C would be undefined.
        let pool = unsafe { &*pool.cast::<Pool>() };
        match pool.take(bytes, align) {
            0 => null_mut(),
            addr => addr as *mut c_void,
        }
    }

    /// `free` of `struct ibv_parent_domain_init_attr`: the memory goes as a whole, with the view.
    ///
    /// # Safety
    /// As [`Pool::alloc`].
    pub unsafe extern "C" fn free(_: *mut ibv_pd, _: *mut c_void, _: *mut c_void, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_mem::HostMem;

    fn pool(bytes: usize) -> Arc<Pool> {
        let memory = HostMem::alloc(bytes).unwrap();
        Pool::of_pages(View::new(&memory, 0, bytes).unwrap(), PAGE_BYTES)
    }

    #[test]
    fn pieces_lie_apart_aligned_and_inside() {
        let pool = pool(4 * PAGE_BYTES);
        let start = pool.memory.addr();
        // As for a queue pair with two CQs: rings of whole pages, each with its record.
        let taken: Vec<u64> = [4096, 8, 4096, 8, 4000, 8].map(|n| pool.take(n, 8)).into();
        let pages = [4096, 0, 8192, 64, 12288, 128].map(|at| start + at);
        assert_eq!(taken, pages);
        for (at, bytes) in taken.into_iter().zip([4096, 8, 4096, 8, 4000, 8]) {
            assert_eq!(pool.view(at, bytes).unwrap().addr(), at);
        }
        assert!(!pool.was_short());
    }

    #[test]
    fn more_than_there_is_gets_nothing_and_costs_nothing() {
        let pool = pool(2 * PAGE_BYTES);
        assert_eq!(pool.take(PAGE_BYTES + 1, 8), 0);
        assert!(pool.was_short());
        assert_eq!(pool.take(usize::MAX, 8), 0);
        assert_eq!(pool.take(8, 96), 0, "an alignment that is none");
        assert_eq!(pool.take(PAGE_BYTES, 4096), pool.memory.addr() + PAGE_BYTES as u64);
        assert_eq!(pool.take(65, 1), 0);
        for n in 0..64 {
            assert_eq!(pool.take(8, 8), pool.memory.addr() + n * 64);
        }
        assert_eq!(pool.take(8, 8), 0, "records stay in their page");
    }

    #[test]
    fn what_lies_elsewhere_is_noticed() {
        let pool = pool(PAGE_BYTES);
        let (start, end) = (pool.memory.addr(), pool.memory.addr() + PAGE_BYTES as u64);
        for (addr, bytes) in [(start - 64, 64), (end, 1), (end - 8, 16), (0, 8), (u64::MAX, 8)] {
            assert!(pool.view(addr, bytes).is_err(), "{addr:#x}");
        }
        assert!(pool.view(end - 8, 8).is_ok());
    }

    #[test]
    fn libmlx5_gets_addresses_in_the_pool_or_null() {
        let pool = pool(PAGE_BYTES);
        let context = (&raw const *pool).cast_mut().cast();
        // SAFETY: the pool's own address, as libmlx5 hands it back.
        let (first, second) = unsafe {
            (
                Pool::alloc(null_mut(), context, 8, 8, 3),
                Pool::alloc(null_mut(), context, PAGE_BYTES, 64, 5),
            )
        };
        assert_eq!(first as u64, pool.memory.addr());
        assert!(second.is_null());
    }
}
