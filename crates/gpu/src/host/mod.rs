//! The host executor, which runs device code on CPU threads.
//!
//! A stream is a thread that executes its operations in order. The lanes of a kernel are fibres on
//! that thread and on one helper thread per further worker, or they are threads. Every block of a
//! grid is resident from the launch to its end. The warp semantics are those of `kernels/include/bellpush/exec.cuh`.

mod ffi;
mod fibres;
mod stack;
mod threads;
mod worker;

use std::time::Duration;

pub(super) use worker::{Mark, Word, Worker};

/// Implementation of a lane of the host executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lanes {
    /// A fibre: cheap, and deterministic with one worker. It can be cancelled with its launch.
    Fibres,
    /// A thread, for race checkers. A launch that never ends cannot be cancelled, and a kernel's
    /// fault ends the program.
    Threads,
}

/// How the host executor runs kernels.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// OS threads per launch; each block runs on one of them. For fibres only.
    pub workers: usize,
    /// Implementation of a lane.
    pub lanes: Lanes,
    /// Bytes of a lane's stack, rounded up to whole pages.
    pub stack_bytes: usize,
    /// Most lanes of one launch.
    pub max_lanes: usize,
    /// Bound of a collective: it is a fault if the lanes of a warp or block do not meet in it for
    /// so long.
    pub collective_timeout: Duration,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            workers: 1,
            lanes: Lanes::Fibres,
            stack_bytes: 64 << 10,
            // A stack is two mappings, and Linux allows a process 65,530.
            max_lanes: 16 << 10,
            collective_timeout: Duration::from_secs(60),
        }
    }
}

impl HostOptions {
    /// Lanes as threads, at most 1,024 per launch.
    pub fn threads() -> Self {
        Self { lanes: Lanes::Threads, max_lanes: 1024, ..Self::default() }
    }
}
