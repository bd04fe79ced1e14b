//! Ordered asynchronous work on a GPU.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::ThreadId;
use std::time::Duration;

#[cfg(feature = "cuda")]
use super::event::poll;
use super::event::{Event, EventKind};
use super::memory::DeviceKind;
use super::module::Code;
use super::{Backend, DeviceMem, Dims, Gpu, GpuError, Kernel, KernelArgs, Mapped, host};
use bellpush_mem::{Dma, MemError};

/// A queue of kernels, copies and word writes. They execute in order, concurrently with other streams.
///
/// The stream keeps its work's memory and kernels until [`Stream::synchronize`] finds it idle.
/// Dropping a busy stream waits for up to a second; after that a kernel on the host executor is
/// cancelled. A kernel that cannot be cancelled (with CUDA, with lanes that are threads, or in a
/// fibre that does not yield) continues, and the memory given to the stream is leaked.
pub struct Stream {
    gpu: Arc<Gpu>,
    kind: Kind,
    state: Mutex<State>,
    token: Arc<Token>,
}

/// Identity of a stream; its holder learns how the stream was dropped.
#[derive(Debug, Default)]
pub struct Token(OnceLock<bool>);

impl Token {
    /// Once the stream is dropped: whether all of its work had ended by then.
    pub fn dropped_idle(&self) -> Option<bool> {
        self.0.get().copied()
    }
}

/// Kept objects and refusals of a stream. The lock is held from the keeping of an object until the
/// queueing of the work that uses it, so that no thread that finds the stream idle in between drops
/// it.
#[derive(Default)]
pub(super) struct State {
    /// By address, so that a loop over the same memories does not grow the map.
    kept: HashMap<usize, Kept>,
    /// The thread whose work is recorded instead of executed.
    recorder: Option<ThreadId>,
}

/// Something that lives as long as it is kept.
pub type Kept = Arc<dyn Any + Send + Sync>;

impl State {
    pub(super) fn keep(&mut self, what: Kept) {
        self.kept.insert(Arc::as_ptr(&what).cast::<()>() as usize, what);
    }

    /// All kept objects.
    #[cfg(feature = "cuda")]
    pub(super) fn kept(&self) -> Vec<Kept> {
        self.kept.values().cloned().collect()
    }

    /// Whether the calling thread may queue work: during a recording, other threads' work would be
    /// recorded too.
    fn may_queue(&self) -> Result<(), GpuError> {
        match self.recorder {
            Some(recorder) if recorder != std::thread::current().id() => Err(GpuError::Recording),
            _ => Ok(()),
        }
    }

    /// Whether the stream's progress may be queried: recorded work has none.
    fn may_ask(&self) -> Result<(), GpuError> {
        if self.is_recording() { Err(GpuError::Recording) } else { Ok(()) }
    }

    #[cfg(feature = "cuda")]
    pub(super) fn begin_recording(&mut self) -> Result<(), GpuError> {
        self.may_ask()?;
        self.recorder = Some(std::thread::current().id());
        Ok(())
    }

    #[cfg(feature = "cuda")]
    pub(super) fn end_recording(&mut self) {
        self.recorder = None;
    }

    /// Whether queued work is recorded instead of executed.
    pub(super) fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }
}

enum Kind {
    Host(host::Worker),
    #[cfg(feature = "cuda")]
    Cuda(super::cuda::Queue),
}

/// Bound of a drop's wait for the stream's work.
const DROP_WAIT: Duration = Duration::from_secs(1);
/// Bound of a drop's wait for a cancelled kernel: until its fibres yield.
const END_WAIT: Duration = Duration::from_millis(250);

impl Gpu {
    /// A new stream.
    ///
    /// # Errors
    /// Errors of the driver, or of starting the host executor's thread.
    pub fn stream(self: &Arc<Self>) -> Result<Stream, GpuError> {
        let kind = match &self.backend {
            Backend::Host(options) => Kind::Host(host::Worker::start(options.clone())?),
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => Kind::Cuda(device.queue()?),
        };
        Ok(self.stream_of(kind))
    }

    /// A new stream whose kernels have priority over others that wait for multiprocessors. Running
    /// kernels are not interrupted.
    ///
    /// # Errors
    /// As [`Gpu::stream`].
    pub fn urgent_stream(self: &Arc<Self>) -> Result<Stream, GpuError> {
        match &self.backend {
            Backend::Host(_) => self.stream(),
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => Ok(self.stream_of(Kind::Cuda(device.urgent_queue()?))),
        }
    }

    fn stream_of(self: &Arc<Self>, kind: Kind) -> Stream {
        Stream { gpu: self.clone(), kind, state: Mutex::default(), token: Arc::default() }
    }
}

impl Stream {
    /// The GPU of the stream.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Queues a kernel. Its argument is copied now.
    ///
    /// # Safety
    /// The argument is the one that the kernel takes. Every address in it is of memory that the
    /// kernel may use as it does, until the stream has been found idle. (Dropping the stream does
    /// not prove that.)
    ///
    /// ```compile_fail,E0133
    /// # use bellpush_gpu::{Dims, GpuError, Kernel, Stream};
    /// # use bellpush_abi::bench::StoreArgs;
    /// fn stores_anywhere(stream: &Stream, kernel: &Kernel, args: &StoreArgs) -> Result<(), GpuError> {
    ///     stream.launch(kernel, Dims::new(1, 1), args)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`GpuError`] when the dimensions or the argument's size do not fit the kernel; on the host
    /// executor also [`GpuError::Fault`] of an earlier kernel of this stream.
    pub unsafe fn launch<A: KernelArgs>(
        &self,
        kernel: &Kernel,
        dims: Dims,
        args: &A,
    ) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_keeping(kernel, dims, args, []) }
    }

    /// As [`Stream::launch`]; the stream keeps `kept` until it is found idle, and with it the memory that the
    /// argument names.
    ///
    /// # Safety
    /// As [`Stream::launch`], for memory that none of `kept` keeps.
    ///
    /// # Errors
    /// As [`Stream::launch`].
    pub unsafe fn launch_keeping<A: KernelArgs>(
        &self,
        kernel: &Kernel,
        dims: Dims,
        args: &A,
        kept: impl IntoIterator<Item = Kept>,
    ) -> Result<(), GpuError> {
        self.same_gpu(&kernel.gpu, "kernel")?;
        dims.check()?;
        if size_of::<A>() != kernel.args_bytes {
            return Err(GpuError::ArgsSize {
                kernel: kernel.name.to_string(),
                takes: kernel.args_bytes,
                given: size_of::<A>(),
            });
        }
        let args = bytemuck::bytes_of(args);
        let mut state = self.queueing()?;
        kept.into_iter().for_each(|what| state.keep(what));
        match (&self.kind, &kernel.code) {
            (Kind::Host(worker), &Code::Host(entry)) => {
                // SAFETY: the caller's promise: that of `launch`.
                unsafe { worker.launch(&kernel.name, entry, dims, args) }
            }
            #[cfg(feature = "cuda")]
            (Kind::Cuda(queue), Code::Cuda(function)) => {
                state.keep(function.keep());
                // SAFETY: as above.
                unsafe { queue.launch(function, dims, args) }
            }
            #[cfg(feature = "cuda")]
            _ => Err(GpuError::OtherGpu { what: "kernel" }),
        }
    }

    /// Queues a copy from mapped host memory to the GPU's memory.
    ///
    /// # Errors
    /// [`GpuError`] for a range beyond its memory, or for memory of another GPU.
    pub fn copy_to_device(
        &self,
        from: &Mapped,
        from_offset: usize,
        to: &Arc<DeviceMem>,
        to_offset: usize,
        bytes: usize,
    ) -> Result<(), GpuError> {
        let _queueing = self.check_copy(from, from_offset, to, to_offset, bytes)?;
        match (&self.kind, &to.kind) {
            (Kind::Host(worker), DeviceKind::Host(view)) => {
                let mem = from.host().clone();
                worker.copy(mem, from_offset, view.mem().clone(), view.offset() + to_offset, bytes)
            }
            #[cfg(feature = "cuda")]
            (Kind::Cuda(queue), DeviceKind::Cuda(memory)) => {
                // SAFETY: both ranges were checked, and are kept until the stream is idle.
                unsafe { queue.copy_in(from.host_addr(), from_offset, memory, to_offset, bytes) }
            }
            #[cfg(feature = "cuda")]
            _ => Err(GpuError::OtherGpu { what: "memory" }),
        }
    }

    /// Queues a copy from the GPU's memory to mapped host memory.
    ///
    /// # Errors
    /// As [`Stream::copy_to_device`].
    pub fn copy_to_host(
        &self,
        from: &Arc<DeviceMem>,
        from_offset: usize,
        to: &Mapped,
        to_offset: usize,
        bytes: usize,
    ) -> Result<(), GpuError> {
        let _queueing = self.check_copy(to, to_offset, from, from_offset, bytes)?;
        match (&self.kind, &from.kind) {
            (Kind::Host(worker), DeviceKind::Host(view)) => {
                let mem = to.host().clone();
                worker.copy(view.mem().clone(), view.offset() + from_offset, mem, to_offset, bytes)
            }
            #[cfg(feature = "cuda")]
            (Kind::Cuda(queue), DeviceKind::Cuda(memory)) => {
                // SAFETY: both ranges were checked, and are kept until the stream is idle.
                unsafe { queue.copy_out(memory, from_offset, to.host_addr(), to_offset, bytes) }
            }
            #[cfg(feature = "cuda")]
            _ => Err(GpuError::OtherGpu { what: "memory" }),
        }
    }

    /// Queues an 8-byte store to mapped memory, after the memory effects of all earlier work of
    /// this stream: an observer of the word also observes those effects.
    ///
    /// # Errors
    /// [`GpuError`] for a word beyond the memory, or not aligned.
    pub fn write_u64(&self, to: &Mapped, offset: usize, value: u64) -> Result<(), GpuError> {
        self.write_word(to, offset, host::Word::U64(value))
    }

    /// As [`Stream::write_u64`], with 4 bytes.
    ///
    /// # Errors
    /// As [`Stream::write_u64`].
    pub fn write_u32(&self, to: &Mapped, offset: usize, value: u32) -> Result<(), GpuError> {
        self.write_word(to, offset, host::Word::U32(value))
    }

    fn write_word(&self, to: &Mapped, offset: usize, word: host::Word) -> Result<(), GpuError> {
        self.same_gpu(to.gpu(), "memory")?;
        to.check_word(offset, word.bytes())?;
        let mut state = self.queueing()?;
        state.keep(to.keep());
        match &self.kind {
            Kind::Host(worker) => worker.write(to.clone(), offset, word),
            #[cfg(feature = "cuda")]
            Kind::Cuda(queue) => {
                // SAFETY: the word was checked, and its memory is kept until the stream is idle.
                unsafe { queue.write(to.addr() + offset as u64, word) }
            }
        }
    }

    /// Queues an event, which is reached when all earlier work of this stream has ended.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn record(&self, event: &Event) -> Result<(), GpuError> {
        let _queueing = self.queueing()?;
        match (&self.kind, &event.kind) {
            (Kind::Host(worker), EventKind::Host(mark)) => worker.record(mark.clone()),
            #[cfg(feature = "cuda")]
            (Kind::Cuda(queue), EventKind::Cuda(mark)) => queue.record(mark),
            #[cfg(feature = "cuda")]
            _ => Err(GpuError::OtherGpu { what: "event" }),
        }
    }

    /// Makes this stream's later work wait for the work that another library's stream has queued so
    /// far (a `cudaStream_t`; 0 is the default stream). `event` is recorded on that stream.
    ///
    /// # Safety
    /// `foreign` is a stream of this GPU's primary context.
    ///
    /// # Errors
    /// [`GpuError::Recording`] while work of one of the two streams is recorded: the graph would
    /// contain our stream's part, and could be launched after the memory of that part is freed.
    /// Errors of the driver. The host executor has no foreign streams.
    pub unsafe fn follow(&self, foreign: u64, event: &Event) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        unsafe { self.order(foreign, true, event) }
    }

    /// Makes later work of another library's stream wait for the work that this stream has queued
    /// so far.
    ///
    /// # Safety
    /// As for [`Stream::follow`].
    ///
    /// # Errors
    /// As [`Stream::follow`].
    pub unsafe fn precede(&self, foreign: u64, event: &Event) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        unsafe { self.order(foreign, false, event) }
    }

    unsafe fn order(
        &self,
        foreign: u64,
        foreign_first: bool,
        event: &Event,
    ) -> Result<(), GpuError> {
        let state = self.lock();
        state.may_ask()?;
        #[cfg(feature = "cuda")]
        if let (Kind::Cuda(queue), EventKind::Cuda(mark)) = (&self.kind, &event.kind) {
            // SAFETY: the caller's promise.
            return unsafe { queue.order(foreign as *mut _, foreign_first, mark) };
        }
        let _ = (foreign, foreign_first, event);
        Err(GpuError::OtherGpu { what: "stream" })
    }

    /// Whether all queued work has ended.
    ///
    /// # Errors
    /// The failure of the work.
    pub fn query(&self) -> Result<bool, GpuError> {
        Ok(self.idle()?.is_some())
    }

    /// The state of an idle stream; `None` while there is work, or while another thread queues
    /// some.
    fn idle(&self) -> Result<Option<MutexGuard<'_, State>>, GpuError> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        state.may_ask()?;
        let done = match &self.kind {
            Kind::Host(worker) => worker.query()?,
            #[cfg(feature = "cuda")]
            Kind::Cuda(queue) => queue.query()?,
        };
        Ok(done.then_some(state))
    }

    /// Waits until all queued work has ended.
    ///
    /// # Errors
    /// [`GpuError::Timeout`], after which the work continues, or the failure of the work.
    pub fn synchronize(&self, timeout: Duration) -> Result<(), GpuError> {
        match &self.kind {
            Kind::Host(worker) => {
                worker.synchronize(timeout)?;
                self.let_go().map(|_| ()) // unless others have queued since
            }
            #[cfg(feature = "cuda")]
            Kind::Cuda(queue) => {
                let _current = queue.current()?;
                poll("the stream", timeout, || self.let_go())
            }
        }
    }

    /// Drops the kept objects if the stream is idle, and returns whether it is.
    fn let_go(&self) -> Result<bool, GpuError> {
        let Some(mut state) = self.idle()? else { return Ok(false) };
        let kept = std::mem::take(&mut state.kept);
        drop(state);
        drop(kept); // may wait for kernels, for which others who queue are not to wait
        Ok(true)
    }

    /// Cancels the work of a stream of the host executor; nothing more is executed. Returns whether
    /// the work has ended: lanes that are threads, a fibre that does not yield, and CUDA's kernels
    /// continue.
    pub fn end(&self) -> bool {
        match &self.kind {
            Kind::Host(worker) => worker.cancel(END_WAIT),
            // A query would spoil another thread's recording.
            #[cfg(feature = "cuda")]
            Kind::Cuda(_) => matches!(self.query(), Ok(true)),
        }
    }

    /// Time between two events that were reached, in ns.
    ///
    /// # Errors
    /// [`GpuError::NotRecorded`] when one of them has not been reached.
    pub fn elapsed_ns(&self, start: &Event, end: &Event) -> Result<u64, GpuError> {
        match (&start.kind, &end.kind) {
            (EventKind::Host(start), EventKind::Host(end)) => {
                let (Some(start), Some(end)) = (start.reached_ns()?, end.reached_ns()?) else {
                    return Err(GpuError::NotRecorded);
                };
                Ok(end.saturating_sub(start))
            }
            #[cfg(feature = "cuda")]
            (EventKind::Cuda(start), EventKind::Cuda(end)) => start.elapsed_ns(end),
            #[cfg(feature = "cuda")]
            _ => Err(GpuError::OtherGpu { what: "event" }),
        }
    }

    fn check_copy(
        &self,
        mapped: &Mapped,
        mapped_offset: usize,
        device: &Arc<DeviceMem>,
        device_offset: usize,
        bytes: usize,
    ) -> Result<MutexGuard<'_, State>, GpuError> {
        self.same_gpu(mapped.gpu(), "memory")?;
        self.same_gpu(device.gpu(), "memory")?;
        mapped.check(mapped_offset, bytes)?;
        match device_offset.checked_add(bytes) {
            Some(end) if end <= device.bytes() => {}
            _ => {
                let len = device.bytes();
                return Err(MemError::OutOfBounds { offset: device_offset, bytes, len }.into());
            }
        }
        let mut state = self.queueing()?;
        state.keep(mapped.keep());
        state.keep(device.clone());
        Ok(state)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guard to hold while an object is kept and the work that uses it is queued.
    pub(super) fn queueing(&self) -> Result<MutexGuard<'_, State>, GpuError> {
        let state = self.lock();
        state.may_queue()?;
        Ok(state)
    }

    #[cfg(feature = "cuda")]
    pub(super) fn queue(&self) -> Option<&super::cuda::Queue> {
        match &self.kind {
            Kind::Host(_) => None,
            Kind::Cuda(queue) => Some(queue),
        }
    }

    fn same_gpu(&self, other: &Arc<Gpu>, what: &'static str) -> Result<(), GpuError> {
        if Arc::ptr_eq(&self.gpu, other) { Ok(()) } else { Err(GpuError::OtherGpu { what }) }
    }

    /// The stream's identity, which outlives it.
    pub fn token(&self) -> &Arc<Token> {
        &self.token
    }

    /// Keeps an object until the stream is found idle.
    pub fn keep(&self, what: Kept) {
        self.lock().keep(what);
    }

    /// Whether queued work is recorded instead of executed.
    pub fn is_recording(&self) -> bool {
        self.lock().is_recording()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let ended = self.synchronize(DROP_WAIT);
        let _ = self.token.0.set(ended.is_ok()); // nobody else sets it
        let idle = match &self.kind {
            // A failure does not tell what still runs: `end` records its own before the kernel's
            // end, or without it.
            Kind::Host(worker) => ended.is_ok() || worker.cancel(END_WAIT),
            // After any error it is unknown what still runs.
            #[cfg(feature = "cuda")]
            Kind::Cuda(_) => ended.is_ok(),
        };
        if !idle {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            state.kept.drain().for_each(|(_, what)| std::mem::forget(what));
        }
    }
}

#[cfg(all(test, feature = "bench-kernels"))]
#[path = "stream_tests.rs"]
mod tests;
