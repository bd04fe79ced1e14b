//! Copies to and from GPU memory that complete while kernels spin.
//!
//! Each copy runs on a lane: a non-blocking stream of its own with a pinned bounce buffer, which
//! the caller polls. No copy synchronises with the context. The driver never receives pageable
//! memory, with which it might.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};

use super::{COPY_LIMIT, Context, Device, Ours, Pin, check, failed, make_current, safe};
use crate::GpuError;
use crate::event::poll;
use bellpush_mem::{Dma, Exported, HostMem, MemError, PAGE_BYTES, rewrite};

/// Copies that may run concurrently; further callers wait for a free lane.
const LANES: usize = 4;
/// Bytes of a lane's bounce buffer; longer copies from pageable memory pass through it piece by
/// piece.
const BOUNCE_BYTES: usize = 1 << 20;

/// The streams for a GPU's copies.
pub(super) struct CopyLanes {
    lanes: Vec<Mutex<Lane>>,
    next: AtomicUsize,
}

struct Lane {
    stream: Ours<Arc<CudaStream>>,
    ctx: Context,
    /// Address of the pinned buffer.
    bounce: usize,
    /// Whether a copy did not end in time, so that the GPU may still access the buffer.
    broken: bool,
}

impl CopyLanes {
    pub(super) fn new(ctx: &Context) -> Result<Self, GpuError> {
        let lanes = (0..LANES).map(|_| Lane::new(ctx).map(Mutex::new)).collect::<Result<_, _>>()?;
        Ok(Self { lanes, next: AtomicUsize::new(0) })
    }

    fn take(&self) -> MutexGuard<'_, Lane> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        free(&self.lanes, first, |lane| !lane.broken)
    }
}

/// A free lane that works, or the turn of one that does. Where none does any more, one that says why.
fn free<'a, T>(
    lanes: &'a [Mutex<T>],
    first: usize,
    works: impl Fn(&T) -> bool,
) -> MutexGuard<'a, T> {
    let wait = |lane: &'a Mutex<T>| lane.lock().unwrap_or_else(PoisonError::into_inner);
    let in_turn = || (0..lanes.len()).map(|i| &lanes[(first + i) % lanes.len()]);
    let free = in_turn().filter_map(|lane| lane.try_lock().ok()).find(|lane| works(lane));
    free.or_else(|| in_turn().map(wait).find(|lane| works(lane)))
        .unwrap_or_else(|| wait(&lanes[first % lanes.len()]))
}

impl Lane {
    fn new(ctx: &Context) -> Result<Self, GpuError> {
        let _current = make_current(ctx)?;
        let stream = safe("cuStreamCreate", ctx.new_stream())?;
        let mut bounce = std::ptr::null_mut();
        // SAFETY: the context is current; writes one pointer.
        let code = unsafe {
            sys::cuMemHostAlloc(&raw mut bounce, BOUNCE_BYTES, sys::CU_MEMHOSTALLOC_PORTABLE)
        };
        if code != CUresult::CUDA_SUCCESS {
            let GpuError::Cuda { error, .. } = failed("cuMemHostAlloc", code) else {
                unreachable!("failed makes this variant")
            };
            return Err(GpuError::Pin { bytes: BOUNCE_BYTES, error });
        }
        Ok(Self {
            stream: Ours::new(stream),
            ctx: ctx.clone(),
            bounce: bounce as usize,
            broken: false,
        })
    }

    /// Runs one asynchronous operation on the lane's stream and waits for its end.
    fn run(
        &mut self,
        call: &'static str,
        start: impl FnOnce(sys::CUstream) -> CUresult,
    ) -> Result<(), GpuError> {
        if self.broken {
            return Err(GpuError::Timeout { what: "an earlier copy", after: COPY_LIMIT });
        }
        let _current = make_current(&self.ctx)?;
        let stream = self.stream.cu_stream();
        check(call, start(stream))?;
        let ended = poll("a copy", COPY_LIMIT, || {
            // SAFETY: the stream is ours and alive.
            match unsafe { sys::cuStreamQuery(stream) } {
                CUresult::CUDA_SUCCESS => Ok(true),
                CUresult::CUDA_ERROR_NOT_READY => Ok(false),
                code => Err(failed("cuStreamQuery", code)),
            }
        });
        self.broken = matches!(ended, Err(GpuError::Timeout { .. }));
        ended
    }

    /// # Safety
    /// `to .. to + n` is pinned host memory; `from .. from + n` is memory of this GPU.
    unsafe fn fetch(&mut self, from: CUdeviceptr, to: usize, n: usize) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        self.run("cuMemcpyDtoHAsync", |stream| unsafe {
            sys::cuMemcpyDtoHAsync_v2(to as *mut _, from, n, stream)
        })
    }

    /// # Safety
    /// As for `fetch`, in the other direction.
    unsafe fn store(&mut self, from: usize, to: CUdeviceptr, n: usize) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        self.run("cuMemcpyHtoDAsync", |stream| unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, from as *const _, n, stream)
        })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.broken {
            return;
        }
        if let Ok(_current) = make_current(&self.ctx) {
            // SAFETY: allocated in `new`, and no copy uses it.
            let _ = unsafe { sys::cuMemFreeHost(self.bounce as *mut _) };
        }
    }
}

/// Memory of a GPU from `cuMemAlloc`, which can be exported and registered.
pub(crate) struct Memory {
    device: Arc<Device>,
    addr: CUdeviceptr,
    bytes: usize,
    /// Whether another library allocated the memory and frees it.
    borrowed: bool,
}

impl Memory {
    pub(crate) fn alloc(device: &Arc<Device>, bytes: usize) -> Result<Self, GpuError> {
        let _current = device.make_current()?;
        let mut addr = 0;
        // SAFETY: writes one address.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut addr, bytes) })?;
        let memory = Self { device: device.clone(), addr, bytes, borrowed: false };
        // SAFETY: the allocation's own range.
        device.copies.take().run("cuMemsetD8Async", |stream| unsafe {
            sys::cuMemsetD8Async(addr, 0, bytes, stream)
        })?;
        Ok(memory)
    }

    /// # Safety
    /// The range stays the program's memory on this GPU until the value is dropped.
    pub(crate) unsafe fn borrow(device: &Arc<Device>, addr: u64, bytes: usize) -> Self {
        Self { device: device.clone(), addr, bytes, borrowed: true }
    }

    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    fn at(&self, offset: usize, bytes: usize) -> Result<CUdeviceptr, MemError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.addr + offset as u64),
            _ => Err(MemError::OutOfBounds { offset, bytes, len: self.bytes }),
        }
    }

    /// A dma-buf of the pages that hold the memory, and the memory's offset in it.
    fn dmabuf(&self) -> Result<(OwnedFd, u64), MemError> {
        let refused = |e: GpuError| MemError::Export(e.to_string());
        let _current = self.device.make_current().map_err(refused)?;
        // The driver exports whole pages of the host's size.
        let head = self.addr % PAGE_BYTES as u64;
        let bytes = (head as usize + self.bytes).next_multiple_of(PAGE_BYTES);
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let mut fd: i32 = -1;
        // SAFETY: writes one descriptor; the driver checks the range against its allocations.
        let code = unsafe {
            let fd = (&raw mut fd).cast();
            sys::cuMemGetHandleForAddressRange(fd, self.addr - head, bytes, kind, 0)
        };
        check("cuMemGetHandleForAddressRange", code).map_err(refused)?;
        // SAFETY: a fresh descriptor that the driver hands over.
        Ok((unsafe { OwnedFd::from_raw_fd(fd) }, head))
    }

    /// Changes an 8-byte word and returns the old one, under the GPU's lock.
    fn change(&self, offset: usize, new: impl FnOnce(u64) -> u64) -> Result<u64, MemError> {
        self.at(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(MemError::Misaligned { offset, align: 8 });
        }
        let _lock = self.device.atomics.lock().unwrap_or_else(PoisonError::into_inner);
        rewrite(self, offset, new)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.borrowed {
            return;
        }
        if let Ok(_current) = self.device.make_current() {
            // SAFETY: from cuMemAlloc; the owner's promise is that no kernel uses it any more.
            let _ = unsafe { sys::cuMemFree_v2(self.addr) };
        }
    }
}

fn device(error: GpuError) -> MemError {
    MemError::Device(error.to_string())
}

/// Address of a checked range of host memory.
fn host_range(mem: &HostMem, offset: usize, bytes: usize) -> Result<usize, MemError> {
    match offset.checked_add(bytes) {
        Some(end) if end <= mem.len() => Ok(mem.addr() as usize + offset),
        _ => Err(MemError::OutOfBounds { offset, bytes, len: mem.len() }),
    }
}

// SAFETY: the address is the allocation's, which it keeps, or one that `borrow`'s caller keeps.
unsafe impl Dma for Memory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        let from = self.at(offset, into.len())?;
        let mut lane = self.device.copies.take();
        for (i, piece) in into.chunks_mut(BOUNCE_BYTES).enumerate() {
            let bounce = lane.bounce;
            // SAFETY: the piece lies in the checked range and fits the buffer.
            unsafe { lane.fetch(from + (i * BOUNCE_BYTES) as u64, bounce, piece.len()) }
                .map_err(device)?;
            // SAFETY: the lane is ours and idle, so nobody writes the buffer.
            unsafe {
                std::ptr::copy_nonoverlapping(bounce as *const u8, piece.as_mut_ptr(), piece.len());
            }
        }
        Ok(())
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        let to = self.at(offset, from.len())?;
        let mut lane = self.device.copies.take();
        for (i, piece) in from.chunks(BOUNCE_BYTES).enumerate() {
            if lane.broken {
                return Err(MemError::Device("an earlier copy did not end".into()));
            }
            let bounce = lane.bounce;
            // SAFETY: the piece fits the buffer; the lane is ours and idle.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), bounce as *mut u8, piece.len());
            }
            // SAFETY: the piece lies in the checked range.
            unsafe { lane.store(bounce, to + (i * BOUNCE_BYTES) as u64, piece.len()) }
                .map_err(device)?;
        }
        Ok(())
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        self.change(offset, |old| old.wrapping_add(add))
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        self.change(offset, |old| if old == compare { swap } else { old })
    }

    fn device_addr(&self) -> Option<u64> {
        Some(self.addr)
    }

    fn export(&self) -> Option<Exported> {
        Some(Exported { addr: self.addr, dmabuf: self.dmabuf() })
    }

    fn read_to_host(
        &self,
        offset: usize,
        to: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        let from = self.at(offset, n)?;
        let host = host_range(to, at, n)?;
        if n == 0 {
            return Ok(());
        }
        if let Some(pin) = Pin::covering(host as u64, n) {
            // SAFETY: both ranges were checked, and the pin is held until the copy has ended.
            let ended = unsafe { self.device.copies.take().fetch(from, host, n) };
            return finish(ended, pin);
        }
        let mut lane = self.device.copies.take();
        for start in (0..n).step_by(BOUNCE_BYTES) {
            let (bounce, len) = (lane.bounce, (n - start).min(BOUNCE_BYTES));
            // SAFETY: a part of the checked range, and it fits the buffer.
            unsafe { lane.fetch(from + start as u64, bounce, len) }.map_err(device)?;
            // SAFETY: both ranges are good; libc's copy is opaque, so others may touch `to`.
            unsafe { libc::memcpy((host + start) as *mut _, bounce as *const _, len) };
        }
        Ok(())
    }

    fn write_from_host(
        &self,
        offset: usize,
        from: &HostMem,
        at: usize,
        n: usize,
    ) -> Result<(), MemError> {
        let to = self.at(offset, n)?;
        let host = host_range(from, at, n)?;
        if n == 0 {
            return Ok(());
        }
        if let Some(pin) = Pin::covering(host as u64, n) {
            // SAFETY: both ranges were checked, and the pin is held until the copy has ended.
            let ended = unsafe { self.device.copies.take().store(host, to, n) };
            return finish(ended, pin);
        }
        let mut lane = self.device.copies.take();
        for start in (0..n).step_by(BOUNCE_BYTES) {
            if lane.broken {
                return Err(MemError::Device("an earlier copy did not end".into()));
            }
            let (bounce, len) = (lane.bounce, (n - start).min(BOUNCE_BYTES));
            // SAFETY: both ranges are good; libc's copy is opaque, so others may touch `from`.
            unsafe { libc::memcpy(bounce as *mut _, (host + start) as *const _, len) };
            // SAFETY: a part of the checked range.
            unsafe { lane.store(bounce, to + start as u64, len) }.map_err(device)?;
        }
        Ok(())
    }
}

/// After a copy that did not end, the memory stays pinned for good: the GPU may still access it.
fn finish(ended: Result<(), GpuError>, pin: Arc<Pin>) -> Result<(), MemError> {
    if matches!(ended, Err(GpuError::Timeout { .. })) {
        pin.lose();
    }
    ended.map_err(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_did_not_end_costs_its_own_lane_alone() {
        let lanes = [true, false, true, true].map(Mutex::new);
        let works = |works: &bool| *works;
        for first in 0..8 {
            assert!(*free(&lanes, first, works));
        }
        let held = [0, 2].map(|n| lanes[n].lock().unwrap());
        assert!((0..4).all(|first| *free(&lanes, first, works)), "one is free");
        drop(held);
        lanes.iter().for_each(|lane| *lane.lock().unwrap() = false);
        assert!((0..4).all(|first| !*free(&lanes, first, works)), "it says why");
    }
}
