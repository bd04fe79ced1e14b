//! A stream of the host executor: one thread that executes operations in order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::fibres::Launch;
use super::{HostOptions, Lanes, threads};
use crate::gpu::{Dims, GpuError, HostKernel, Mapped};
use crate::mem::HostMem;

/// A word that a stream stores.
#[derive(Debug, Clone, Copy)]
pub(in crate::gpu) enum Word {
    U64(u64),
    U32(u32),
}

impl Word {
    pub(in crate::gpu) fn bytes(self) -> usize {
        match self {
            Self::U64(_) => 8,
            Self::U32(_) => 4,
        }
    }
}

/// An event's state. A recording counts as reached when as many were reached as were queued.
#[derive(Default)]
pub(in crate::gpu) struct Mark {
    queued: AtomicU64,
    reached: AtomicU64,
    at_ns: AtomicU64,
}

impl Mark {
    pub(in crate::gpu) fn reached(&self) -> bool {
        // Acquire: pairs with the worker's Release, so that its work before the event is visible.
        self.reached.load(Ordering::Acquire) >= self.queued.load(Ordering::Relaxed)
    }

    pub(in crate::gpu) fn reached_ns(&self) -> Option<u64> {
        let recorded = self.queued.load(Ordering::Relaxed) > 0;
        (recorded && self.reached()).then(|| self.at_ns.load(Ordering::Relaxed))
    }
}

enum Op {
    Launch { name: Arc<str>, kernel: HostKernel, dims: Dims, args: Box<[u8]> },
    Copy { from: Arc<HostMem>, from_offset: usize, to: Arc<HostMem>, to_offset: usize, n: usize },
    Write { to: Mapped, offset: usize, word: Word },
    Record(Arc<Mark>),
}

/// Queue and result, shared with the thread.
#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Work was queued, or the queue closed.
    work: Condvar,
    /// An operation was finished.
    done: Condvar,
    /// Ends the running kernel where it stands.
    stop: AtomicBool,
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Op>,
    /// Operations queued and not finished, the running one among them.
    pending: usize,
    closed: bool,
    /// What a kernel or copy ended with. Nothing is executed after it.
    failed: Option<Failure>,
}

#[derive(Clone)]
struct Failure {
    kernel: Arc<str>,
    why: String,
}

impl From<Failure> for GpuError {
    fn from(failure: Failure) -> Self {
        GpuError::Fault { kernel: failure.kernel.to_string(), why: failure.why }
    }
}

/// The calling side of a stream.
pub(in crate::gpu) struct Worker {
    shared: Arc<Shared>,
    options: HostOptions,
    thread: Option<JoinHandle<()>>,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    pub(in crate::gpu) fn start(options: HostOptions) -> Result<Self, GpuError> {
        let shared = Arc::new(Shared::default());
        let thread = spawn("bellpush stream", {
            let (shared, options) = (shared.clone(), options.clone());
            move || execute(&shared, &options)
        })?;
        Ok(Self { shared, options, thread: Some(thread) })
    }

    fn queue(&self, op: Op) -> Result<(), GpuError> {
        let mut queue = lock(&self.shared.queue);
        if let Some(failure) = &queue.failed {
            return Err(failure.clone().into());
        }
        queue.ops.push_back(op);
        queue.pending += 1;
        drop(queue);
        self.shared.work.notify_one();
        Ok(())
    }

    /// # Safety
    /// The argument suits the kernel, and what it points to outlives the launch.
    pub(in crate::gpu) unsafe fn launch(
        &self,
        name: &Arc<str>,
        kernel: HostKernel,
        dims: Dims,
        args: &[u8],
    ) -> Result<(), GpuError> {
        if dims.lanes() > self.options.max_lanes as u64 {
            let limit = self.options.max_lanes;
            return Err(GpuError::TooManyLanes { lanes: dims.lanes(), limit });
        }
        self.queue(Op::Launch { name: name.clone(), kernel, dims, args: args.into() })
    }

    pub(in crate::gpu) fn copy(
        &self,
        from: Arc<HostMem>,
        from_offset: usize,
        to: Arc<HostMem>,
        to_offset: usize,
        n: usize,
    ) -> Result<(), GpuError> {
        self.queue(Op::Copy { from, from_offset, to, to_offset, n })
    }

    pub(in crate::gpu) fn write(
        &self,
        to: Mapped,
        offset: usize,
        word: Word,
    ) -> Result<(), GpuError> {
        self.queue(Op::Write { to, offset, word })
    }

    pub(in crate::gpu) fn record(&self, mark: Arc<Mark>) -> Result<(), GpuError> {
        mark.queued.fetch_add(1, Ordering::Relaxed);
        self.queue(Op::Record(mark.clone())).inspect_err(|_| {
            mark.queued.fetch_sub(1, Ordering::Relaxed);
        })
    }

    pub(in crate::gpu) fn query(&self) -> Result<bool, GpuError> {
        let queue = lock(&self.shared.queue);
        match &queue.failed {
            Some(failure) => Err(failure.clone().into()),
            None => Ok(queue.pending == 0),
        }
    }

    pub(in crate::gpu) fn synchronize(&self, timeout: Duration) -> Result<(), GpuError> {
        let (queue, wait) = self
            .shared
            .done
            .wait_timeout_while(lock(&self.shared.queue), timeout, |queue| queue.pending > 0)
            .unwrap_or_else(PoisonError::into_inner);
        match &queue.failed {
            Some(failure) => Err(failure.clone().into()),
            None if wait.timed_out() => {
                Err(GpuError::Timeout { what: "the stream", after: timeout })
            }
            None => Ok(()),
        }
    }

    /// Ends the running kernel, and executes nothing further.
    pub(in crate::gpu) fn cancel(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let abandoned = self.shared.stop.load(Ordering::Relaxed);
        lock(&self.shared.queue).closed = true;
        self.shared.work.notify_one();
        // Lanes that are threads cannot be ended: theirs is left behind.
        if abandoned && self.options.lanes == Lanes::Threads {
            return;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its panic was printed, and there is nobody to tell
        }
    }
}

/// The stream's thread.
fn execute(shared: &Arc<Shared>, options: &HostOptions) {
    let start = clock_origin();
    let mut helpers = Helpers::default();
    loop {
        let mut queue = lock(&shared.queue);
        while queue.ops.is_empty() && !queue.closed {
            queue = shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(op) = queue.ops.pop_front() else { return };
        let skip = queue.failed.is_some() || shared.stop.load(Ordering::Relaxed);
        drop(queue);

        let result = if skip { Ok(()) } else { perform(&op, shared, options, &mut helpers) };
        if let Op::Record(mark) = &op {
            let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            mark.at_ns.store(now, Ordering::Relaxed);
            mark.reached.fetch_add(1, Ordering::Release);
        }
        drop(op); // before the operation counts as done: it holds memory that its owner may want

        let mut queue = lock(&shared.queue);
        queue.pending -= 1;
        if let Err(failure) = result {
            queue.failed.get_or_insert(failure);
        }
        let idle = queue.pending == 0;
        drop(queue);
        if idle {
            shared.done.notify_all();
        }
    }
}

/// Events of different streams are compared: one origin for the process.
fn clock_origin() -> Instant {
    static ORIGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *ORIGIN.get_or_init(Instant::now)
}

fn perform(
    op: &Op,
    shared: &Arc<Shared>,
    options: &HostOptions,
    helpers: &mut Helpers,
) -> Result<(), Failure> {
    match op {
        Op::Launch { name, kernel, dims, args } => {
            let failed = |why: String| Failure { kernel: name.clone(), why };
            if options.lanes == Lanes::Threads {
                // SAFETY: Worker::launch's promise.
                return unsafe { threads::run(options, *kernel, *dims, args) }
                    .map_err(|e| failed(e.to_string()));
            }
            let launch =
                Launch::new(options, *kernel, *dims, args).map_err(|e| failed(e.to_string()))?;
            let launch = Arc::new(launch);
            helpers.run(&launch, shared).map_err(|e| failed(e.to_string()))?;
            let fault = launch.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
            fault.map_or(Ok(()), |why| Err(failed(why)))
        }
        Op::Copy { from, from_offset, to, to_offset, n } => from
            .copy_to(*from_offset, to, *to_offset, *n)
            .map_err(|e| Failure { kernel: "(copy)".into(), why: e.to_string() }),
        Op::Write { to, offset, word } => {
            let at = to.host_addr() as usize + offset;
            // Release: all earlier work of the stream, by this thread, before the word.
            match *word {
                Word::U64(value) => {
                    // SAFETY: in bounds, aligned (Stream::write_u64), and kept mapped by `to`.
                    unsafe { AtomicU64::from_ptr(at as *mut u64) }.store(value, Ordering::Release);
                }
                Word::U32(value) => {
                    // SAFETY: as above.
                    unsafe { AtomicU32::from_ptr(at as *mut u32) }.store(value, Ordering::Release);
                }
            }
            Ok(())
        }
        Op::Record(_) => Ok(()),
    }
}

/// Further threads of a stream's launches, started when first needed.
#[derive(Default)]
struct Helpers(Vec<(Sender<Part>, JoinHandle<()>)>);

/// One thread's part of a launch, and where to say how it ended.
struct Part {
    launch: Arc<Launch>,
    shared: Arc<Shared>,
    ended: Sender<Result<(), GpuError>>,
}

impl Helpers {
    /// Runs the whole launch; this thread runs the first part.
    fn run(&mut self, launch: &Arc<Launch>, shared: &Arc<Shared>) -> Result<(), GpuError> {
        while self.0.len() + 1 < launch.threads {
            let (sender, parts) = mpsc::channel();
            let index = self.0.len() + 1;
            self.0.push((sender, spawn("bellpush helper", move || help(index, &parts))?));
        }
        let (ended, results) = mpsc::channel();
        for (sender, _) in &self.0[..launch.threads - 1] {
            let (launch, shared, ended) = (launch.clone(), shared.clone(), ended.clone());
            sender.send(Part { launch, shared, ended }).expect("a helper lives as long as we do");
        }
        drop(ended);
        // SAFETY: Worker::launch's promise.
        let mut result = unsafe { launch.run(0, &shared.stop) };
        for other in results {
            result = result.and(other);
        }
        result
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        for (sender, thread) in self.0.drain(..) {
            drop(sender); // ends the helper's loop
            let _ = thread.join();
        }
    }
}

fn help(index: usize, parts: &Receiver<Part>) {
    for Part { launch, shared, ended } in parts {
        // SAFETY: Worker::launch's promise.
        let result = unsafe { launch.run(index, &shared.stop) };
        drop(launch);
        let _ = ended.send(result);
    }
}

fn spawn(
    name: &'static str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, GpuError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(body)
        .map_err(|source| GpuError::System { call: "starting a thread", source })
}
