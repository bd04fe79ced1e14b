//! Lanes as threads of their own, for race checkers and for real interleavings.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

use super::HostOptions;
use super::ffi::{self, Args, Grid};
use crate::{Dims, GpuError, HostKernel};

/// Runs all lanes, and returns when every one has returned.
///
/// # Safety
/// The argument fits the kernel, and the memory that it points to outlives the launch.
pub(super) unsafe fn run(
    options: &HostOptions,
    kernel: HostKernel,
    dims: Dims,
    args: &[u8],
) -> Result<(), GpuError> {
    let grid = Grid::new(dims, on_yield, on_fault, options.collective_timeout)?;
    let args = Args::copy(args);
    let (grid, args) = (&grid, &args);
    std::thread::scope(|scope| {
        for bid in 0..dims.grid {
            for tid in 0..dims.block {
                let lane = move || {
                    let lane = grid.lane(dims, bid, tid, null_mut());
                    // SAFETY: the lane is this thread's; the rest is the caller's promise.
                    unsafe { ffi::bp_host_lane_run(lane, kernel, args.as_ptr()) };
                };
                let started = std::thread::Builder::new()
                    .name(format!("lane {bid}.{tid}"))
                    .stack_size(options.stack_bytes.max(256 << 10))
                    .spawn_scoped(scope, lane);
                if let Err(error) = started {
                    // The running lanes may wait for this one for ever, and cannot be cancelled.
                    eprintln!("bellpush: cannot start a thread for lane {bid}.{tid}: {error}");
                    std::process::abort();
                }
            }
        }
    });
    Ok(())
}

unsafe extern "C" fn on_yield(_: *mut c_void) {
    std::thread::yield_now();
}

unsafe extern "C" fn on_fault(_: *mut c_void, why: *const c_char) {
    // SAFETY: the C++ side passes a string literal.
    let why = unsafe { CStr::from_ptr(why) };
    eprintln!("bellpush: host kernel fault: {}", why.to_string_lossy());
    std::process::abort();
}
