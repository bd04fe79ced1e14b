//! The host executor: a stream is a thread that executes its operations in order; a kernel's lanes
//! are fibres on that thread (and on helpers, one each further worker), or threads.
//!
//! Every block of a grid is resident from the launch to the end. Warp semantics are `exec.cuh`'s.

mod ffi;
mod fibres;
mod stack;
mod threads;
mod worker;

use std::time::Duration;

pub(super) use worker::{Mark, Word, Worker};

/// What a lane of the host executor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lanes {
    /// A fibre: cheap, deterministic with one worker, ended when its launch is.
    Fibres,
    /// A thread: for race checkers. A launch that never ends cannot be ended, and a kernel's fault
    /// ends the program.
    Threads,
}

/// How the host executor runs kernels.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// OS threads that a launch's blocks are dealt to, one block to one thread. Fibres only.
    pub workers: usize,
    /// What a lane is.
    pub lanes: Lanes,
    /// Stack of a lane, rounded up to whole pages.
    pub stack_bytes: usize,
    /// Lanes that one launch may have.
    pub max_lanes: usize,
    /// A warp or block whose lanes do not meet in a collective for so long is a fault.
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
    /// Lanes as threads, at most 1,024.
    pub fn threads() -> Self {
        Self { lanes: Lanes::Threads, max_lanes: 1024, ..Self::default() }
    }
}
