//! Lanes as fibres: round-robin on one thread, a switch at every yield.
//!
//! A fibre is made, resumed and ended on one thread. Nothing unwinds through a lane: kernels throw
//! nothing, the hooks are `extern "C"` (a panic in them aborts), and a launch that is given up
//! forgets its lanes' stacks without running anything on them.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::HostOptions;
use super::ffi::{self, Args, Grid, RawLane};
use super::stack::LaneStack;
use crate::gpu::{Dims, GpuError, HostKernel};

/// Yields between two offers of the processor to other threads of the system.
const YIELDS_TO_SYSTEM: u32 = 128;

type Fibre = Coroutine<(), (), (), LaneStack>;

/// A launch, shared by the threads that run its blocks.
pub(super) struct Launch {
    pub dims: Dims,
    pub kernel: HostKernel,
    pub args: Args,
    pub grid: Grid,
    pub stack_bytes: usize,
    /// Threads that share the blocks: thread `i` runs blocks `i`, `i + threads`, …
    pub threads: usize,
    /// Set to end the launch where it stands.
    pub cancel: AtomicBool,
    /// Why a lane set `cancel`.
    pub fault: Mutex<Option<String>>,
}

/// One thread's part of a launch, as its lanes' hooks see it.
struct Scheduler<'a> {
    launch: &'a Launch,
    stop: &'a AtomicBool,
    live: Cell<usize>,
    yields: Cell<u32>,
}

/// A lane's owner. Its address is in the C++ lane.
struct Owner<'a> {
    scheduler: &'a Scheduler<'a>,
    yielder: Cell<*const Yielder<(), ()>>,
}

impl Launch {
    pub(super) fn new(
        options: &HostOptions,
        kernel: HostKernel,
        dims: Dims,
        args: &[u8],
    ) -> Result<Self, GpuError> {
        Ok(Self {
            dims,
            kernel,
            args: Args::copy(args),
            grid: Grid::new(dims, on_yield, on_fault, options.collective_timeout)?,
            stack_bytes: options.stack_bytes,
            threads: options.workers.clamp(1, dims.grid as usize),
            cancel: AtomicBool::new(false),
            fault: Mutex::new(None),
        })
    }

    /// Runs the blocks of thread `thread`; ends early when the launch or `stop` is set.
    ///
    /// # Safety
    /// The argument suits the kernel, and what it points to outlives the launch.
    pub(super) unsafe fn run(&self, thread: usize, stop: &AtomicBool) -> Result<(), GpuError> {
        let blocks = (thread as u32..self.dims.grid).step_by(self.threads);
        let lanes = blocks.len() * self.dims.block as usize;
        let scheduler =
            Scheduler { launch: self, stop, live: Cell::new(lanes), yields: Cell::new(0) };
        let owners: Vec<Owner> = (0..lanes)
            .map(|_| Owner { scheduler: &scheduler, yielder: Cell::new(std::ptr::null()) })
            .collect();
        let mut fibres = Fibres(Vec::with_capacity(lanes));
        let ids = blocks.flat_map(|bid| (0..self.dims.block).map(move |tid| (bid, tid)));
        for (owner, (bid, tid)) in owners.iter().zip(ids) {
            let lane = self.grid.lane(self.dims, bid, tid, (&raw const *owner).cast_mut().cast());
            let stack = match LaneStack::take(self.stack_bytes) {
                Ok(stack) => stack,
                Err(source) => {
                    self.cancel.store(true, Ordering::Relaxed);
                    return Err(GpuError::System { call: "mapping a lane's stack", source });
                }
            };
            let (kernel, args) = (self.kernel, self.args.as_ptr());
            let owner: *const Owner<'static> = (&raw const *owner).cast();
            let body = move |yielder: &Yielder<(), ()>, ()| {
                // SAFETY: `owners` outlives `fibres`, and an ended fibre is not resumed.
                unsafe { (*owner).yielder.set(yielder) };
                // SAFETY: the lane is this fibre's; the rest is the caller's promise.
                unsafe { ffi::bp_host_lane_run(lane, kernel, args) };
            };
            fibres.0.push((lane, Fibre::with_stack(stack, body)));
        }
        scheduler.round_robin(&mut fibres.0);
        Ok(())
    }
}

impl Scheduler<'_> {
    fn ended(&self) -> bool {
        self.launch.cancel.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed)
    }

    /// Until every fibre has returned, or the launch is ended.
    fn round_robin(&self, fibres: &mut Vec<(*mut RawLane, Fibre)>) {
        while !fibres.is_empty() && !self.ended() {
            let mut i = 0;
            while i < fibres.len() {
                let (lane, fibre) = &mut fibres[i];
                // SAFETY: the lane lives as long as the grid; it is the one resumed next.
                unsafe { ffi::bp_host_set_current(*lane) };
                match fibre.resume(()) {
                    CoroutineResult::Yield(()) => i += 1,
                    CoroutineResult::Return(()) => {
                        let (_, done) = fibres.swap_remove(i);
                        self.live.set(fibres.len());
                        done.into_stack().put();
                    }
                }
                self.offer_processor();
            }
        }
        // SAFETY: no lane runs on this thread any more.
        unsafe { ffi::bp_host_set_current(std::ptr::null_mut()) };
    }

    /// Whom the lanes wait for may be a thread that shares this processor.
    fn offer_processor(&self) {
        let yields = self.yields.get() + 1;
        self.yields.set(yields % YIELDS_TO_SYSTEM);
        if yields == YIELDS_TO_SYSTEM {
            std::thread::yield_now();
        }
    }
}

/// A lane waits.
unsafe extern "C" fn on_yield(owner: *mut c_void) {
    // SAFETY: set by `run` for this grid's lanes, and lives while they run.
    let owner = unsafe { &*owner.cast::<Owner<'_>>() };
    let scheduler = owner.scheduler;
    if scheduler.live.get() == 1 && !scheduler.ended() {
        // Nobody to switch to.
        std::hint::spin_loop();
        scheduler.offer_processor();
        return;
    }
    owner.suspend();
}

/// A lane cannot go on: ends the launch.
unsafe extern "C" fn on_fault(owner: *mut c_void, why: *const c_char) {
    // SAFETY: as in `on_yield`.
    let owner = unsafe { &*owner.cast::<Owner<'_>>() };
    // SAFETY: the C++ side passes a string literal.
    let why = unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned();
    let launch = owner.scheduler.launch;
    launch.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    launch.cancel.store(true, Ordering::Relaxed);
    loop {
        owner.suspend();
    }
}

impl Owner<'_> {
    fn suspend(&self) {
        // SAFETY: set when the fibre started, and it is this fibre that calls.
        unsafe { (*self.yielder.get()).suspend(()) };
    }
}

/// The fibres of a thread's part; those that have not returned are given up on drop.
struct Fibres(Vec<(*mut RawLane, Fibre)>);

impl Drop for Fibres {
    fn drop(&mut self) {
        for (_, mut fibre) in self.0.drain(..) {
            if !fibre.done() {
                // SAFETY: the stack holds frames of kernels and hooks only, which own nothing that
                // must be dropped; it is not resumed again.
                unsafe { fibre.force_reset() };
            }
            fibre.into_stack().put();
        }
    }
}
