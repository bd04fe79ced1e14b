//! Ordered asynchronous work on a GPU, and the events that time it.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::memory::DeviceKind;
use super::module::Code;
use super::{Backend, DeviceMem, Dims, Gpu, GpuError, Kernel, KernelArgs, Mapped, host};
use crate::mem::{Dma, MemError};

/// A queue of kernels, copies and word writes, executed in order, beside those of other streams.
///
/// The stream keeps the memory and the kernels that it was given until [`Stream::synchronize`]
/// finds it idle. Dropping a busy stream waits up to a second; after that a host executor's
/// kernel is ended where it stands. One that cannot be ended (CUDA's, lanes that are threads, a fibre
/// that does not yield) goes on, and the memory that the stream was given is leaked.
pub struct Stream {
    gpu: Arc<Gpu>,
    kind: Kind,
    state: Mutex<State>,
    token: Arc<Token>,
}

/// Another one for every stream; who holds it learns how the stream was dropped.
#[derive(Debug, Default)]
pub(crate) struct Token(OnceLock<bool>);

impl Token {
    /// Once the stream is gone: whether all of its work was done then.
    pub(crate) fn dropped_idle(&self) -> Option<bool> {
        self.0.get().copied()
    }
}

/// What a stream keeps and refuses. Locked from before something is kept until the work that reaches it
/// is queued, so that nobody who finds the stream idle in between lets go of it.
#[derive(Default)]
pub(super) struct State {
    /// By address, so that a loop over the same memories does not grow it.
    kept: HashMap<usize, Kept>,
    /// The thread whose work is recorded instead of executed.
    recorder: Option<ThreadId>,
}

/// Something that lives as long as it is kept.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

impl State {
    pub(super) fn keep(&mut self, what: Kept) {
        self.kept.insert(Arc::as_ptr(&what).cast::<()>() as usize, what);
    }

    /// All that is kept.
    #[cfg(feature = "cuda")]
    pub(super) fn kept(&self) -> Vec<Kept> {
        self.kept.values().cloned().collect()
    }

    /// Whether the calling thread may queue work: while one records, all others' would be recorded too.
    fn may_queue(&self) -> Result<(), GpuError> {
        match self.recorder {
            Some(recorder) if recorder != std::thread::current().id() => Err(GpuError::Recording),
            _ => Ok(()),
        }
    }

    /// Whether the stream may be asked how far it is: recorded work has no progress.
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

    /// Whether what is queued is recorded, and not executed.
    pub(super) fn is_recording(&self) -> bool {
        self.recorder.is_some()
    }
}

enum Kind {
    Host(host::Worker),
    #[cfg(feature = "cuda")]
    Cuda(super::cuda::Queue),
}

/// How long dropping a stream waits for its work.
const DROP_WAIT: Duration = Duration::from_secs(1);
/// How long it waits for a kernel that is to end where it stands: until its fibres yield.
const END_WAIT: Duration = Duration::from_millis(250);

/// A point in a stream's work: whether it was reached, and when.
pub struct Event {
    kind: EventKind,
}

enum EventKind {
    Host(Arc<host::Mark>),
    #[cfg(feature = "cuda")]
    Cuda(super::cuda::Mark),
}

impl Gpu {
    /// A new stream.
    ///
    /// # Errors
    /// What the driver, or starting the host executor's thread, reports.
    pub fn stream(self: &Arc<Self>) -> Result<Stream, GpuError> {
        let kind = match &self.backend {
            Backend::Host(options) => Kind::Host(host::Worker::start(options.clone())?),
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => Kind::Cuda(device.queue()?),
        };
        Ok(self.stream_of(kind))
    }

    /// A new stream whose kernels come first where others wait for multiprocessors too. What runs already
    /// is not interrupted.
    ///
    /// # Errors
    /// As [`Gpu::stream`].
    pub(crate) fn urgent_stream(self: &Arc<Self>) -> Result<Stream, GpuError> {
        match &self.backend {
            Backend::Host(_) => self.stream(),
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => Ok(self.stream_of(Kind::Cuda(device.urgent_queue()?))),
        }
    }

    fn stream_of(self: &Arc<Self>, kind: Kind) -> Stream {
        Stream { gpu: self.clone(), kind, state: Mutex::default(), token: Arc::default() }
    }

    /// A new event, recorded nowhere yet.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn event(self: &Arc<Self>) -> Result<Event, GpuError> {
        let kind = match &self.backend {
            Backend::Host(_) => EventKind::Host(Arc::default()),
            #[cfg(feature = "cuda")]
            Backend::Cuda(device) => EventKind::Cuda(device.mark()?),
        };
        Ok(Event { kind })
    }
}

impl Stream {
    /// The GPU that the stream works on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Queues a kernel; its argument is copied now.
    ///
    /// # Safety
    /// The argument is what the kernel takes, and each address in it is of memory that the kernel may
    /// use as it does, until the stream was found idle. (Dropping the stream is no proof of that.)
    ///
    /// ```compile_fail,E0133
    /// # use bellpush::gpu::{Dims, GpuError, Kernel, Stream, args::StoreArgs};
    /// fn stores_anywhere(stream: &Stream, kernel: &Kernel, args: &StoreArgs) -> Result<(), GpuError> {
    ///     stream.launch(kernel, Dims::new(1, 1), args)
    /// }
    /// ```
    ///
    /// # Errors
    /// When the dimensions or the argument's size do not suit the kernel; on the host executor
    /// also [`GpuError::Fault`] of an earlier kernel of this stream.
    pub unsafe fn launch<A: KernelArgs>(
        &self,
        kernel: &Kernel,
        dims: Dims,
        args: &A,
    ) -> Result<(), GpuError> {
        self.launch_own(kernel, dims, args, [])
    }

    /// As [`Stream::launch`] for this library's own modules, which write into the argument only
    /// addresses of what they keep: `kept`, until the stream is idle.
    pub(crate) fn launch_own<A: KernelArgs>(
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
    /// When a range leaves its memory, or the memory is another GPU's.
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
                let mem = from.host().ok_or(GpuError::Registers)?.clone();
                worker.copy(mem, from_offset, view.mem.clone(), view.offset + to_offset, bytes)
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
                let mem = to.host().ok_or(GpuError::Registers)?.clone();
                worker.copy(view.mem.clone(), view.offset + from_offset, mem, to_offset, bytes)
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
    /// this stream: whoever sees the word sees them.
    ///
    /// # Errors
    /// When the word leaves the memory or is not aligned.
    pub fn write_u64(&self, to: &Mapped, offset: usize, value: u64) -> Result<(), GpuError> {
        self.write_word(to, offset, host::Word::U64(value))
    }

    /// As [`Stream::write_u64`], 4 bytes.
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

    /// Queues the event: it is reached when all earlier work of this stream is done.
    ///
    /// # Errors
    /// What the driver reports.
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

    /// Makes later work of this stream wait for what another library's stream (a `cudaStream_t`; 0 is
    /// the default stream) has queued by now. `event` is recorded there.
    ///
    /// # Safety
    /// `foreign` is a stream of this GPU's primary context.
    ///
    /// # Errors
    /// [`GpuError::Recording`] where work of one of the two is being recorded: the graph would keep our
    /// stream's part in it, and be launched when what that part reaches is gone. What the driver
    /// reports. The host executor knows no other streams.
    pub unsafe fn follow(&self, foreign: u64, event: &Event) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        unsafe { self.order(foreign, true, event) }
    }

    /// Makes later work of another library's stream wait for what this one has queued by now.
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

    /// Whether all queued work is done.
    ///
    /// # Errors
    /// What the work ended with.
    pub fn query(&self) -> Result<bool, GpuError> {
        Ok(self.idle()?.is_some())
    }

    /// The state of an idle stream; `None` while there is work, or another thread queues some.
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

    /// Waits until all queued work is done.
    ///
    /// # Errors
    /// [`GpuError::Timeout`] (the work goes on), or what the work ended with.
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

    /// Lets go of what is kept if the stream is idle, and says whether it is.
    fn let_go(&self) -> Result<bool, GpuError> {
        let Some(mut state) = self.idle()? else { return Ok(false) };
        let kept = std::mem::take(&mut state.kept);
        drop(state);
        drop(kept); // may wait for kernels, for which others who queue are not to wait
        Ok(true)
    }

    /// Ends the work of a stream of the host executor where it stands; nothing more is executed. Returns
    /// whether that is done: lanes that are threads, and a fibre that does not yield, go on, as CUDA's
    /// kernels do.
    pub fn end(&self) -> bool {
        match &self.kind {
            Kind::Host(worker) => worker.cancel(END_WAIT),
            // To ask the driver would spoil what another thread records.
            #[cfg(feature = "cuda")]
            Kind::Cuda(_) => matches!(self.query(), Ok(true)),
        }
    }

    /// Time between two reached events, in ns.
    ///
    /// # Errors
    /// [`GpuError::NotRecorded`] when one was not reached yet.
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
        mapped.host().ok_or(GpuError::Registers)?;
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

    /// To be held while something is kept and the work that reaches it is queued.
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

    pub(crate) fn token(&self) -> &Arc<Token> {
        &self.token
    }

    /// Keeps something until the stream is found idle.
    pub(crate) fn keep(&self, what: Kept) {
        self.lock().keep(what);
    }

    /// Whether what is queued is recorded, and not executed.
    pub(crate) fn is_recording(&self) -> bool {
        self.lock().is_recording()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let ended = self.synchronize(DROP_WAIT);
        let _ = self.token.0.set(ended.is_ok()); // nobody else sets it
        let idle = match &self.kind {
            // A failure says nothing of what runs: `end` notes its own before the kernel's end, or without it.
            Kind::Host(worker) => ended.is_ok() || worker.cancel(END_WAIT),
            // After any error it is not known what still runs.
            #[cfg(feature = "cuda")]
            Kind::Cuda(_) => ended.is_ok(),
        };
        if !idle {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            state.kept.drain().for_each(|(_, what)| std::mem::forget(what));
        }
    }
}

impl Event {
    /// Whether the work before the last recording is done; an event never recorded is done.
    ///
    /// # Errors
    /// What the work ended with.
    pub fn query(&self) -> Result<bool, GpuError> {
        match &self.kind {
            EventKind::Host(mark) => mark.reached(),
            #[cfg(feature = "cuda")]
            EventKind::Cuda(mark) => mark.query(),
        }
    }

    /// Waits for [`Event::query`].
    ///
    /// # Errors
    /// [`GpuError::Timeout`], or what the work ended with.
    pub fn wait(&self, timeout: Duration) -> Result<(), GpuError> {
        #[cfg(feature = "cuda")]
        let _current = match &self.kind {
            EventKind::Cuda(mark) => Some(mark.current()?),
            EventKind::Host(_) => None,
        };
        poll("the event", timeout, || self.query())
    }
}

/// Polls until `done`: spinning first, then giving the processor away, never asleep for long.
pub(super) fn poll(
    what: &'static str,
    timeout: Duration,
    mut done: impl FnMut() -> Result<bool, GpuError>,
) -> Result<(), GpuError> {
    let since = Instant::now();
    let mut spins = 0u32;
    while !done()? {
        let waited = since.elapsed();
        if waited >= timeout {
            return Err(GpuError::Timeout { what, after: timeout });
        }
        spins += 1;
        if spins < 64 {
            std::hint::spin_loop();
        } else if waited < Duration::from_millis(2) {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    Ok(())
}

#[cfg(all(test, feature = "bench-kernels"))]
#[path = "stream_tests.rs"]
mod tests;
