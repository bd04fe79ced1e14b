//! Interface of `kernels/host/exec.cpp`: grids, and the lane that runs on this thread.

use std::ffi::{c_char, c_void};
use std::ptr::NonNull;
use std::time::Duration;

use crate::{Dims, GpuError, HostKernel};

/// `bp_host_hooks`.
#[repr(C)]
pub(super) struct Hooks {
    pub yield_: unsafe extern "C" fn(owner: *mut c_void),
    pub fault: unsafe extern "C" fn(owner: *mut c_void, why: *const c_char),
    pub collective_timeout_ns: u64,
}

#[repr(C)]
struct RawGrid {
    _opaque: [u8; 0],
}

/// A lane of a grid; only its address has a meaning here.
#[repr(C)]
pub(super) struct RawLane {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn bp_host_grid_new(
        grid_blocks: u32,
        block_threads: u32,
        shared_bytes: usize,
        hooks: *const Hooks,
    ) -> *mut RawGrid;
    fn bp_host_grid_lane(
        grid: *mut RawGrid,
        bid: u32,
        tid: u32,
        owner: *mut c_void,
    ) -> *mut RawLane;
    fn bp_host_grid_free(grid: *mut RawGrid);
    pub(super) fn bp_host_set_current(lane: *mut RawLane);
    pub(super) fn bp_host_lane_run(lane: *mut RawLane, kernel: HostKernel, args: *const c_void);
}

/// All lanes of a launch; freed on drop.
pub(super) struct Grid(NonNull<RawGrid>);

// SAFETY: plain memory of our own; lanes access its shared parts through atomics (lane.hpp).
unsafe impl Send for Grid {}
// SAFETY: as above.
unsafe impl Sync for Grid {}

impl Grid {
    pub(super) fn new(
        dims: Dims,
        yield_: unsafe extern "C" fn(*mut c_void),
        fault: unsafe extern "C" fn(*mut c_void, *const c_char),
        collective_timeout: Duration,
    ) -> Result<Self, GpuError> {
        let collective_timeout_ns =
            u64::try_from(collective_timeout.as_nanos()).unwrap_or(u64::MAX);
        let hooks = Hooks { yield_, fault, collective_timeout_ns };
        // SAFETY: copies the hooks and allocates; the dimensions were checked.
        let grid = unsafe {
            bp_host_grid_new(dims.grid, dims.block, dims.shared_bytes as usize, &raw const hooks)
        };
        NonNull::new(grid).map(Self).ok_or_else(|| GpuError::System {
            call: "allocating a grid",
            source: std::io::ErrorKind::OutOfMemory.into(),
        })
    }

    /// The lane. The hooks of its waits receive `owner`.
    pub(super) fn lane(&self, dims: Dims, bid: u32, tid: u32, owner: *mut c_void) -> *mut RawLane {
        assert!(bid < dims.grid && tid < dims.block);
        // SAFETY: the grid has this lane.
        unsafe { bp_host_grid_lane(self.0.as_ptr(), bid, tid, owner) }
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        // SAFETY: made by bp_host_grid_new; every thread that runs lanes holds the grid.
        unsafe { bp_host_grid_free(self.0.as_ptr()) };
    }
}

/// A copy of a kernel's argument, aligned for any C++ struct that a GPU takes too.
pub(super) struct Args(Box<[u128]>);

impl Args {
    pub(super) fn copy(bytes: &[u8]) -> Self {
        // At least one word: null would ask a kernel for its argument's size.
        let mut words = vec![0u128; bytes.len().div_ceil(16).max(1)].into_boxed_slice();
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Self(words)
    }

    pub(super) fn as_ptr(&self) -> *const c_void {
        self.0.as_ptr().cast()
    }
}
