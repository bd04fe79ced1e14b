//! The device's clock: the system's monotonic one, in nanoseconds.
//!
//! CQEs of CQs that ask for it are stamped with it, and a page tells programs what its time of day
//! is (`mlx5dv_get_clock_info`), taken when the device is opened: the two run at one rate, and where
//! the time of day is set later, the page does not follow. There is no page of the running counter
//! itself, which only a device's register keeps running: `ibv_query_rt_values_ex` is a hook (`verbs`).

use std::os::fd::RawFd;

use bellpush_mem::Dma;

use crate::abi::mlx5::{ClockInfo, MMAP_CLOCK_INFO};
use crate::context::map;
use crate::error::Refusal;

/// The clock's rate.
pub const KHZ: u64 = 1_000_000;
/// The file's page of the clock, as libmlx5 computes it, for the first version of its struct.
const PAGE: u64 = MMAP_CLOCK_INFO << 8;

fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the time; both clocks are always there.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The clock.
pub fn cycles() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Lays the page out in a device's file.
pub fn lay_out(fd: RawFd) -> Result<(), Refusal> {
    // A cycle is a nanosecond: nothing is scaled, and the counter does not wrap.
    let info = ClockInfo {
        sign: 0,
        resv: 0,
        nsec: read(libc::CLOCK_REALTIME),
        cycles: cycles(),
        frac: 0,
        mult: 1,
        shift: 0,
        mask: u64::MAX,
        overflow_period: u64::MAX,
    };
    map(fd, PAGE, size_of::<ClockInfo>())?.write(0, bytemuck::bytes_of(&info))?;
    Ok(())
}
