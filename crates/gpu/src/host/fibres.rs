//! Lanes as fibres: one thread runs them round-robin and switches at every yield.
//!
//! One thread makes, resumes and ends a fibre. Nothing unwinds through a lane: kernels throw no
//! exceptions, and the hooks are `extern "C"`, in which a panic aborts. A cancelled launch discards
//! its lanes' stacks without running anything on them.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::HostOptions;
use super::ffi::{self, Args, Grid, RawLane};
use super::stack::LaneStack;
use crate::{Dims, GpuError, HostKernel};

/// Yields of lanes between two yields of the thread to the operating system.
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
    /// Cancels the launch at once.
    pub cancel: AtomicBool,
    /// The reason why a lane set `cancel`.
    pub fault: Mutex<Option<String>>,
}

/// One thread's part of a launch, as the hooks of its lanes see it.
struct Scheduler<'a> {
    launch: &'a Launch,
    stop: &'a AtomicBool,
    live: Cell<usize>,
    yields: Cell<u32>,
}

/// The owner of a lane; the C++ lane holds its address.
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

    /// Runs the blocks of thread `thread`. It ends early when the launch's `cancel` or `stop` is
    /// set.
    ///
    /// # Safety
    /// The argument fits the kernel, and the memory that it points to outlives the launch.
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

    /// Runs until every fibre has returned or the launch is cancelled.
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

    /// Yields to the system: the lanes may wait for a thread that shares this processor.
    fn offer_processor(&self) {
        let yields = self.yields.get() + 1;
        self.yields.set(yields % YIELDS_TO_SYSTEM);
        if yields == YIELDS_TO_SYSTEM {
            std::thread::yield_now();
        }
    }
}

/// Hook: a lane waits.
unsafe extern "C" fn on_yield(owner: *mut c_void) {
    // SAFETY: set by `run` for this grid's lanes, and lives while they run.
    let owner = unsafe { &*owner.cast::<Owner<'_>>() };
    let scheduler = owner.scheduler;
    if scheduler.live.get() == 1 && !scheduler.ended() {
        // There is no fibre to switch to.
        std::hint::spin_loop();
        scheduler.offer_processor();
        return;
    }
    owner.suspend();
}

/// Hook: a lane cannot continue; cancels the launch.
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

/// The fibres of a thread's part. On drop, those that have not returned are discarded.
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
