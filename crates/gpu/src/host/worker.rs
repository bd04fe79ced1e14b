//! A stream of the host executor: one thread that executes the operations in order.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::fibres::Launch;
use super::{HostOptions, Lanes, threads};
use crate::{Dims, GpuError, HostKernel, Mapped};
use bellpush_mem::HostMem;

/// A word that a stream stores.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Word {
    U64(u64),
    U32(u32),
}

impl Word {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::U64(_) => 8,
            Self::U32(_) => 4,
        }
    }
}

/// State of an event. A recording counts as reached when as many recordings were reached as were
/// queued.
#[derive(Default)]
pub(crate) struct Mark {
    queued: AtomicU64,
    reached: AtomicU64,
    at_ns: AtomicU64,
    /// Failure, by then, of the last stream that reached the event.
    failed: Mutex<Option<Failure>>,
}

impl Mark {
    pub(crate) fn reached(&self) -> Result<bool, GpuError> {
        // Acquire: pairs with the worker's Release, so that its work before the event is visible.
        if self.reached.load(Ordering::Acquire) < self.queued.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match &*lock(&self.failed) {
            Some(failure) => Err(failure.clone().into()),
            None => Ok(true),
        }
    }

    pub(crate) fn reached_ns(&self) -> Result<Option<u64>, GpuError> {
        let recorded = self.queued.load(Ordering::Relaxed) > 0;
        Ok((recorded && self.reached()?).then(|| self.at_ns.load(Ordering::Relaxed)))
    }

    /// Called by a stream's thread: the work before the event has ended or will not run.
    fn reach(&self, at: Duration, failed: Option<Failure>) {
        *lock(&self.failed) = failed;
        self.at_ns.store(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        // Release: pairs with the Acquire in `reached`.
        self.reached.fetch_add(1, Ordering::Release);
    }
}

enum Op {
    Launch { name: Arc<str>, kernel: HostKernel, dims: Dims, args: Box<[u8]> },
    Copy { from: Arc<HostMem>, from_offset: usize, to: Arc<HostMem>, to_offset: usize, n: usize },
    Write { to: Mapped, offset: usize, word: Word },
    Record(Arc<Mark>),
}

/// Queue and result, shared with the stream's thread.
#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Signals queued work, or the closing of the queue.
    work: Condvar,
    /// Signals a finished operation.
    done: Condvar,
    /// Cancels the running kernel at once.
    stop: AtomicBool,
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Op>,
    /// Operations that are queued and not finished, including the running one.
    pending: usize,
    closed: bool,
    /// Failure of a kernel or copy; nothing is executed after it.
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
pub(crate) struct Worker {
    shared: Arc<Shared>,
    options: HostOptions,
    thread: Option<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    pub(crate) fn start(options: HostOptions) -> Result<Self, GpuError> {
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
    /// The argument fits the kernel, and the memory that it points to outlives the launch.
    pub(crate) unsafe fn launch(
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

    pub(crate) fn copy(
        &self,
        from: Arc<HostMem>,
        from_offset: usize,
        to: Arc<HostMem>,
        to_offset: usize,
        n: usize,
    ) -> Result<(), GpuError> {
        self.queue(Op::Copy { from, from_offset, to, to_offset, n })
    }

    pub(crate) fn write(&self, to: Mapped, offset: usize, word: Word) -> Result<(), GpuError> {
        self.queue(Op::Write { to, offset, word })
    }

    pub(crate) fn record(&self, mark: Arc<Mark>) -> Result<(), GpuError> {
        mark.queued.fetch_add(1, Ordering::Relaxed);
        self.queue(Op::Record(mark.clone())).inspect_err(|_| {
            mark.queued.fetch_sub(1, Ordering::Relaxed);
        })
    }

    pub(crate) fn query(&self) -> Result<bool, GpuError> {
        let queue = lock(&self.shared.queue);
        match &queue.failed {
            Some(failure) => Err(failure.clone().into()),
            None => Ok(queue.pending == 0),
        }
    }

    pub(crate) fn synchronize(&self, timeout: Duration) -> Result<(), GpuError> {
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

    /// Cancels the running kernel, executes nothing further, and waits for the kernel's end.
    /// `false` if the kernel still runs after `wait`, as lanes that are threads do, or a fibre that
    /// does not yield: the memory that it accesses must then stay for good.
    pub(crate) fn cancel(&self, wait: Duration) -> bool {
        let ended = Failure { kernel: "(stream)".into(), why: "the stream was ended".into() };
        lock(&self.shared.queue).failed.get_or_insert(ended); // later work is refused, not forgotten
        // Only now: operations queued behind the kernel then know why they are not executed.
        self.shared.stop.store(true, Ordering::Relaxed);
        let (queue, _) = self
            .shared
            .done
            .wait_timeout_while(lock(&self.shared.queue), wait, |queue| queue.pending > 0)
            .unwrap_or_else(PoisonError::into_inner);
        queue.pending == 0
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.closed = true;
        // A cancelled kernel that continues would block this drop for as long: its thread is left
        // behind.
        let abandoned = queue.pending > 0 && self.shared.stop.load(Ordering::Relaxed);
        drop(queue);
        self.shared.work.notify_one();
        if abandoned {
            return;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // its panic was printed, and there is nobody to tell
        }
    }
}

/// Message for a panic in one of the executor's threads; the panic itself was printed.
const PANICKED: &str = "a thread of the executor panicked";

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
        let failed = queue.failed.clone();
        drop(queue);

        let result = if failed.is_some() {
            Ok(())
        } else {
            // A panic is a bug of ours or of a memory's copies. It ends the stream as a fault does,
            // so that every waiter learns of it.
            let done = AssertUnwindSafe(|| perform(&op, shared, options, &mut helpers));
            catch_unwind(done).unwrap_or_else(|_| {
                Err(Failure { kernel: "(stream)".into(), why: PANICKED.into() })
            })
        };
        if let Op::Record(mark) = &op {
            mark.reach(start.elapsed(), failed);
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

/// Common origin of the process, since events of different streams are compared.
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
            // Release: orders all earlier work of the stream, by this thread, before the word, for
            // its readers.
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

/// Further threads for a stream's launches, started on first use.
#[derive(Default)]
struct Helpers(Vec<(Sender<Part>, JoinHandle<()>)>);

/// One thread's part of a launch, and the channel for its result.
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
        let mut result = run_part(launch, 0, shared);
        // Ends when every helper has dropped the launch.
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
        let result = run_part(&launch, index, &shared);
        drop(launch);
        let _ = ended.send(result);
    }
}

/// Runs a thread's part of a launch. A panic ends the other parts too, whose lanes may wait for
/// this one's. The thread survives, since the next launch relies on it.
fn run_part(launch: &Launch, index: usize, shared: &Shared) -> Result<(), GpuError> {
    // SAFETY: Worker::launch's promise.
    let part = AssertUnwindSafe(|| unsafe { launch.run(index, &shared.stop) });
    catch_unwind(part).unwrap_or_else(|_| {
        launch.cancel.store(true, Ordering::Relaxed);
        let source = std::io::Error::other(PANICKED);
        Err(GpuError::System { call: "running a part of a launch", source })
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush_mem::{Dma, MemError};

    const LIMIT: Duration = Duration::from_secs(10);

    /// Memory of a device whose copies panic.
    struct Panics;

    // SAFETY: names no address, and copies nothing.
    unsafe impl Dma for Panics {
        fn bytes(&self) -> usize {
            4096
        }
        fn read(&self, _: usize, _: &mut [u8]) -> Result<(), MemError> {
            panic!("planted")
        }
        fn write(&self, _: usize, _: &[u8]) -> Result<(), MemError> {
            panic!("planted")
        }
        fn fetch_add(&self, _: usize, _: u64) -> Result<u64, MemError> {
            panic!("planted")
        }
        fn compare_swap(&self, _: usize, _: u64, _: u64) -> Result<u64, MemError> {
            panic!("planted")
        }
        fn device_addr(&self) -> Option<u64> {
            Some(0x1000)
        }
        fn read_to_host(&self, _: usize, _: &HostMem, _: usize, _: usize) -> Result<(), MemError> {
            panic!("planted")
        }
        fn write_from_host(
            &self,
            _: usize,
            _: &HostMem,
            _: usize,
            _: usize,
        ) -> Result<(), MemError> {
            panic!("planted")
        }
    }

    #[test]
    fn a_panic_in_the_streams_thread_ends_waits_with_an_error() {
        let worker = Worker::start(HostOptions::default()).unwrap();
        let far = HostMem::far(Arc::new(Panics)).unwrap();
        let near = HostMem::alloc(4096).unwrap();
        worker.copy(far, 0, near.clone(), 0, 8).unwrap();
        let ended = worker.synchronize(LIMIT).unwrap_err();
        assert!(matches!(&ended, GpuError::Fault { why, .. } if why == PANICKED), "{ended}");
        assert!(worker.copy(near.clone(), 0, near, 64, 8).is_err(), "the stream stays failed");
        assert!(worker.query().is_err());
    }

    unsafe extern "C" fn nothing(_: *const std::ffi::c_void) -> usize {
        0
    }

    #[test]
    fn a_panic_in_a_helper_ends_its_launch_and_not_the_helper() {
        let shared = Arc::new(Shared::default());
        let launch = |threads| {
            let dims = Dims::new(2, 1);
            let mut made = Launch::new(&HostOptions::default(), nothing, dims, &[]).unwrap();
            made.threads = threads;
            Arc::new(made)
        };
        let (sender, parts) = mpsc::channel();
        let helper = spawn("bellpush helper", move || help(1, &parts)).unwrap();
        let run = |launch: &Arc<Launch>| {
            let (ended, results) = mpsc::channel();
            sender.send(Part { launch: launch.clone(), shared: shared.clone(), ended }).unwrap();
            results.recv_timeout(LIMIT).expect("it says how its part ended")
        };
        // A launch of no threads is one that nobody makes: dealing its blocks panics.
        let broken = launch(0);
        assert!(run(&broken).unwrap_err().to_string().contains(PANICKED));
        assert!(broken.cancel.load(Ordering::Relaxed), "the other parts go on for ever");
        run(&launch(2)).unwrap();
        drop(sender);
        helper.join().unwrap();
    }
}
