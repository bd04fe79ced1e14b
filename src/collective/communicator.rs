//! A connected rank: calls, and what became of them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::calls::Calls;
use super::layout::Layout;
use super::member::{MAX_THREADS, Member, Options};
use super::{Algorithm, Call, Dtype, Error, Op};
use crate::gpu::collective_args::{BLOCK_BYTES, CollArgs, DEPTH, SHARED_BYTES};
use crate::gpu::{DeviceMem, Dims, Gpu, GpuError, Graph, Kept, Kernel, Mapped, Stream};
use crate::nic::Nic;
use crate::transport::{Endpoint, Memory};

/// Threads a block on the host executor, where a lane is a fibre and a barrier a switch to each.
const HOST_THREADS: u32 = 8;
/// Bytes of a quick call for which it takes one channel more, up to [`Options::quick_messages`]: a NIC's engine on
/// the host takes longer for them than a channel costs (docs/results/allreduce-h200.md).
const QUICK_SHARE: u64 = 680;
/// Channels of which a host's engine carries each on a thread of its own, and bytes for which a call takes one more
/// beyond these: a thread that has two messages takes longer than for one of both's length, up to there.
const QUICK_AT_ONCE: u64 = 12;
const QUICK_BEYOND: u64 = 2731;
/// The same where regions lie in GPU memory, and beyond those that begin early.
const QUICK_SHARE_IN_GPU: u64 = 1024;
const QUICK_BEYOND_IN_GPU: u64 = 4096;
/// Messages that a one-shot share is cut into: one is made while another is on its way and a third is consumed. With four, calls
/// of 1 and 2 MiB take 5 to 10 % longer (docs/results/allreduce-h200.md).
const PIECES: u64 = 3;
/// Blocks of the calls of all ranks of a GPU that may be there beside their next ones, where an engine may be there too:
/// it must leave room for twice as many.
const EARLY_BESIDE_ENGINE: u32 = 16;
/// Between two looks of who waits for calls at whether one of them has ended the communicator.
const LOOK: Duration = Duration::from_millis(50);
/// How long dropping waits for what was sent.
const DRAIN: Duration = Duration::from_secs(1);

/// Elements in memory that the rank's GPU reaches: a memory, or from some byte of it on.
#[derive(Clone, Copy)]
pub struct Buffer<'a> {
    memory: &'a Memory,
    offset: u64,
}

impl<'a> Buffer<'a> {
    /// Elements from byte `offset` of `memory` on.
    pub fn at(memory: &'a Memory, offset: u64) -> Self {
        Self { memory, offset }
    }

    fn check(&self, which: &'static str, gpu: &Arc<Gpu>, call: &Call) -> Result<u64, Error> {
        let owner = match self.memory {
            Memory::Device(mem) => mem.gpu(),
            Memory::Host(mem) => mem.gpu(),
        };
        if !Arc::ptr_eq(owner, gpu) {
            return Err(Error::OtherGpu { what: which });
        }
        let Call { count, dtype, .. } = *call;
        let len = self.memory.bytes() as u64;
        let end = count.checked_mul(dtype.bytes()).and_then(|b| b.checked_add(self.offset));
        if end.is_none_or(|end| end > len) {
            return Err(Error::Range { which, count, dtype, offset: self.offset, len });
        }
        let address = self.memory.addr() + self.offset;
        if !address.is_multiple_of(dtype.bytes()) {
            return Err(Error::Misaligned { which, address, dtype });
        }
        Ok(address)
    }
}

impl<'a> From<&'a Memory> for Buffer<'a> {
    fn from(memory: &'a Memory) -> Self {
        Self { memory, offset: 0 }
    }
}

/// Memory and endpoints of a rank: all that its kernels reach. Streams keep it until they are idle.
pub(super) struct Inner {
    pub gpu: Arc<Gpu>,
    pub rank: u32,
    pub ranks: u32,
    /// Ranks on this GPU, as far as addresses tell: not fewer than there are.
    pub sharing: u32,
    pub channels: u32,
    pub options: Options,
    pub layout: Layout,
    pub all_reduce: Kernel,
    pub all_reduce_quick: Kernel,
    pub drain: Kernel,
    /// By channel and peer.
    pub endpoints: Vec<Option<Endpoint>>,
    pub region: Memory,
    pub stage: Option<Arc<DeviceMem>>,
    pub table: Arc<DeviceMem>,
    pub state: Arc<DeviceMem>,
    pub status: Mapped,
}

/// A rank as its calls use it. Streams keep it until they are idle, so its end comes after that of the last
/// call, and then what was sent is waited for.
struct Running {
    inner: Arc<Inner>,
    /// Calls were made, and none has ended the communicator.
    sends: AtomicBool,
}

/// A rank, connected to the others.
///
/// A call is queued on a stream and returns at once; [`Communicator::synchronize`] waits for it and
/// says what became of it. All ranks make the same calls in the same order; a rank's calls are made
/// on one stream until they are waited for. One that is dropped before they are done ends the communicator. Dropping a communicator, or what keeps it after that (a stream
/// that is not idle, a [`Recording`]), waits for what it sent to be acknowledged, a second at most.
pub struct Communicator {
    running: Arc<Running>,
    calls: Mutex<Calls>,
}

/// Calls that were recorded, to be made again at the cost of one launch.
pub struct Recording<'a> {
    communicator: &'a Communicator,
    stream: &'a Stream,
    graph: Graph<'a>,
    waits: u64,
}

impl Communicator {
    pub(super) fn new(inner: Inner) -> Self {
        let running = Running { inner: Arc::new(inner), sends: AtomicBool::new(false) };
        Self { running: Arc::new(running), calls: Mutex::default() }
    }

    fn inner(&self) -> &Inner {
        &self.running.inner
    }

    /// Ranks that are threads of this process: one for each GPU and NIC, in order. GPUs and NICs may
    /// be named more than once.
    ///
    /// # Errors
    /// As [`Member::new`] and [`Member::connect`].
    pub fn threads(
        places: &[(Arc<Gpu>, Arc<dyn Nic>)],
        options: &Options,
    ) -> Result<Vec<Self>, Error> {
        let ranks = u32::try_from(places.len()).unwrap_or(u32::MAX);
        options.check(0, ranks)?;
        let members: Vec<_> = (0..ranks)
            .zip(places)
            .map(|(rank, (gpu, nic))| {
                Member::new(gpu, std::slice::from_ref(nic), rank, ranks, options)
            })
            .collect::<Result<_, _>>()?;
        let addresses: Vec<_> = members.iter().map(|m| m.address().clone()).collect();
        members.into_iter().map(|m| m.connect(&addresses)).collect()
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.inner().rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.inner().ranks
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.inner().options
    }

    /// What a call of these elements would be.
    pub fn plan(&self, count: u64, dtype: Dtype, op: Op) -> Call {
        let Inner { ranks, channels, options, .. } = self.inner();
        let bytes = count.saturating_mul(dtype.bytes());
        let others = u64::from(*ranks - 1).max(1);
        let holds = Algorithm::quick_holds(bytes, *ranks, *channels);
        let algorithm = match options.algorithm {
            Some(Algorithm::Quick) if !holds => Algorithm::OneShot,
            Some(named) => named,
            None if holds
                && bytes.saturating_mul(others * others.min(2)) <= options.quick_bytes =>
            {
                Algorithm::Quick
            }
            None => {
                let in_gpu = matches!(self.inner().region, Memory::Device(_));
                Algorithm::choose(bytes, *ranks, dtype, op, in_gpu)
            }
        };
        let wanted = match algorithm {
            Algorithm::Quick => {
                let needed = bytes.div_ceil(Algorithm::quick_share(*ranks));
                let (shares, most) = match self.inner().region {
                    Memory::Host(_) => {
                        (bytes / QUICK_SHARE, bytes.div_ceil(QUICK_BEYOND).max(QUICK_AT_ONCE))
                    }
                    Memory::Device(_) => (
                        bytes.div_ceil(QUICK_SHARE_IN_GPU),
                        bytes.div_ceil(QUICK_BEYOND_IN_GPU).max(EARLY_BESIDE_ENGINE.into()),
                    ),
                };
                shares
                    .min(most)
                    .min((u64::from(options.quick_messages) / others).max(1))
                    .max(needed)
            }
            _ => bytes.div_ceil(options.channel_bytes.saturating_mul(others.min(2))),
        };
        let wanted = wanted.clamp(1, (*channels).into());
        Call { count, dtype, op, algorithm, channels: wanted as u32 }
    }

    /// Queues an all-reduce: `output` receives, at every rank and the same bits at each, `op` over
    /// the ranks' `count` elements of `input`, added up in an order that depends on the call's shape
    /// alone. `output` is `input`, or memory apart.
    ///
    /// # Errors
    /// What is wrong with the arguments; nothing is queued then, and no other rank is affected until
    /// it waits for this one. What has ended the communicator by now, once, and [`Error::Ended`] from then on;
    /// [`Error::OtherStream`] while calls on another stream are not waited for. What
    /// fails later, and where ranks differ, is [`Communicator::synchronize`]'s to report.
    pub fn all_reduce<'a>(
        &self,
        stream: &Stream,
        input: impl Into<Buffer<'a>>,
        output: impl Into<Buffer<'a>>,
        count: u64,
        dtype: Dtype,
        op: Op,
    ) -> Result<(), Error> {
        let inner = self.inner();
        if !Arc::ptr_eq(stream.gpu(), &inner.gpu) {
            return Err(Error::OtherGpu { what: "stream" });
        }
        let call = self.plan(count, dtype, op);
        let (from, to) = (input.into(), output.into());
        let input = from.check("input", &inner.gpu, &call)?;
        let output = to.check("output", &inner.gpu, &call)?;
        if input != output && input.abs_diff(output) < count * dtype.bytes() {
            return Err(Error::Overlap);
        }
        let mut calls = self.lock();
        self.check(&mut calls, stream)?;
        let args = CollArgs { input, output, ..inner.args(&call) };
        let keep = |memory: &Memory| -> Kept {
            match memory {
                Memory::Device(mem) => mem.clone(),
                Memory::Host(mem) => mem.keep(),
            }
        };
        let kept = [keep(from.memory), keep(to.memory), self.running.clone()];
        let kernel = match call.algorithm {
            Algorithm::Quick => &inner.all_reduce_quick,
            _ => &inner.all_reduce,
        };
        stream.launch_own(kernel, inner.dims(&call), &args, kept)?;
        self.running.sends.store(inner.ranks > 1, Ordering::Relaxed);
        calls.queue(stream, inner.waits(&call));
        Ok(())
    }

    /// Records the calls that `make` makes on `stream`, instead of making them. All ranks replay a
    /// recording of the same calls as often, and in the same order with other calls.
    ///
    /// # Errors
    /// What `make` reports, and [`Error::Gpu`] where there are no graphs: on the host executor.
    pub fn record<'a>(
        &'a self,
        stream: &'a Stream,
        make: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Recording<'a>, Error> {
        // What `make` calls is the recording's, not queued: as if on a communicator that waits for nothing.
        let aside = self.lock().set_aside(stream);
        let recorded = catch_unwind(AssertUnwindSafe(|| stream.capture(make)));
        let waits = self.lock().put_back(aside); // also after a panic: earlier calls may be out
        let graph = recorded.unwrap_or_else(|panic| resume_unwind(panic))?;
        Ok(Recording { communicator: self, stream, graph, waits })
    }

    /// Waits until the calls queued on `stream` are done, or one has ended the communicator: what is queued behind it
    /// does nothing, and memory that it was given stays until the stream is idle. Bounded, since each of the
    /// calls' waits is. Others may call meanwhile: their calls are not waited for, but those of the first 50 ms.
    ///
    /// # Errors
    /// [`Error::OtherStream`], without waiting, where the calls are on another. Otherwise
    /// the first failure of any of them, but the one that ended the communicator before others. After
    /// [`Error::Mismatch`] the communicator goes on; every other failure ends it, and all later calls and
    /// synchronisations say [`Error::Ended`]. What a stream's other work ended with is told and ends nothing, if no
    /// calls are on it.
    pub fn synchronize(&self, stream: &Stream) -> Result<(), Error> {
        let queued = {
            let mut calls = self.lock();
            calls.check()?;
            self.end_by(&mut calls, |calls| calls.same(stream))?;
            calls.queued()
        };
        let waited = self.wait(stream);
        let mut calls = self.lock();
        match waited {
            Ok(true) => calls.done(queued),
            Ok(false) => {}
            // Neither says anything of the calls: they go on, or somebody records.
            Err(GpuError::Timeout { .. } | GpuError::Recording) => waited.map(|_| ())?,
            // A kernel that ended where it stood leaves streams of messages that nobody can go on with.
            Err(fault) if calls.are_on(stream) => {
                return self.end_by(&mut calls, |_| Err(fault.into()));
            }
            Err(fault) => return Err(fault.into()),
        }
        self.end_by(&mut calls, |calls| match self.inner().failure()? {
            Some(failure) => Err(failure),
            None => calls.check(),
        })
    }

    /// Whether the calls are done; else the communicator has ended.
    fn wait(&self, stream: &Stream) -> Result<bool, GpuError> {
        // Costs nothing where they are done soon, as most are.
        match stream.synchronize(LOOK) {
            Err(GpuError::Timeout { .. }) => {}
            done => return done.map(|()| true),
        }
        // Others may queue on and on, so that the stream is never idle.
        let done = stream.gpu().event()?;
        stream.record(&done)?;
        let most = u32::try_from(self.lock().waits + 4).unwrap_or(u32::MAX);
        let bound = self.inner().options.timeout.saturating_mul(most);
        let since = Instant::now();
        loop {
            if self.has_ended() {
                return Ok(false);
            }
            let reached = done.query()?;
            let left = bound.saturating_sub(since.elapsed());
            // A stream that failed reaches its events all the same, and says so here.
            match stream.synchronize(if reached { Duration::ZERO } else { left.min(LOOK) }) {
                Err(GpuError::Timeout { .. } | GpuError::Recording) if reached => return Ok(true),
                Err(GpuError::Timeout { what, .. }) if left.is_zero() => {
                    return Err(GpuError::Timeout { what, after: bound });
                }
                Err(GpuError::Timeout { .. }) => {}
                ended => return ended.map(|()| true),
            }
        }
    }

    /// Whether a kernel says so, or said so to another thread, which has taken it.
    fn has_ended(&self) -> bool {
        self.inner().has_ended() || self.lock().check().is_err()
    }

    /// Whether a call may be queued.
    fn check(&self, calls: &mut Calls, stream: &Stream) -> Result<(), Error> {
        calls.check()?;
        self.end_by(calls, |calls| match self.inner().end()? {
            Some(end) => Err(end),
            None => calls.same(stream),
        })
    }

    /// What this ends with, if that is such a thing, ends the communicator.
    fn end_by(
        &self,
        calls: &mut Calls,
        what: impl FnOnce(&Calls) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let ended = what(calls);
        if let Err(why) = &ended
            && !matches!(why, Error::Mismatch { .. } | Error::OtherStream)
        {
            calls.end(why);
            self.running.sends.store(false, Ordering::Relaxed);
        }
        ended
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recording<'_> {
    /// Makes the recorded calls once more, on the stream that they were recorded from.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn replay(&self) -> Result<(), Error> {
        let mut calls = self.communicator.lock();
        self.communicator.check(&mut calls, self.stream)?;
        self.graph.launch()?;
        calls.queue(self.stream, self.waits);
        Ok(())
    }
}

impl Inner {
    fn args(&self, call: &Call) -> CollArgs {
        let l = self.layout;
        let stage = match &self.stage {
            Some(own) => own.addr(),
            None => self.region.addr() + l.stage,
        };
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX / 4);
        CollArgs {
            input: 0,
            output: 0,
            count: call.count,
            share: call.share(),
            dtype: call.dtype as u32,
            op: call.op as u32,
            algorithm: call.algorithm as u32,
            channels: call.channels,
            rank: self.rank,
            ranks: self.ranks,
            chunk_bytes: self.options.chunk(self.ranks),
            unwaited: (!self.options.waits).into(),
            early: self.early(call).into(),
            all_channels: self.channels as u16, // at most MAX_CHANNELS
            endpoints: self.table.addr(),
            channel_state: self.state.addr() + SHARED_BYTES as u64,
            shared: self.state.addr(),
            status: self.status.addr(),
            region: self.region.addr(),
            reports: l.reports,
            quick_slots: l.quick_slots,
            exchange_signals: l.exchange_signals,
            ring_signals: l.ring_signals,
            exchange_slots: l.exchange_slots,
            ring_slots: l.ring_slots,
            quick_stage: stage,
            stage: stage + l.quick_stage_bytes,
            piece_bytes: self.piece(call),
            timeout_ns: ns(self.options.timeout),
            grace_ns: ns(self.options.grace()),
        }
    }

    fn dims(&self, call: &Call) -> Dims {
        let dims = Dims::new(call.blocks(), self.threads(call)).shared(BLOCK_BYTES);
        if self.early(call) { dims.early() } else { dims }
    }

    /// Bytes of a message of this call: several to a long share, so that they are made, on their way and consumed
    /// at once.
    fn piece(&self, call: &Call) -> u64 {
        let most = u64::from(self.options.chunk(self.ranks));
        let share = call.share() * call.dtype.bytes();
        let (part, pieces) = match call.algorithm {
            Algorithm::OneShot => (share, PIECES),
            // As many as may be on their way: it scatters some rounds ahead of those that it gathers.
            Algorithm::TwoShot => (share.div_ceil(self.ranks.into()), DEPTH),
            Algorithm::Ring | Algorithm::Quick => return most,
        };
        let messages = (part / self.options.message_bytes.max(1)).clamp(1, pieces);
        part.div_ceil(messages).next_multiple_of(64).clamp(64, most)
    }

    /// Whether a call may begin while the one before it ends, and the one behind it while this one does. Only
    /// then are blocks of both on the GPU, and they must not take the multiprocessors that somebody needs whom
    /// they wait for: other ranks on this GPU, or an engine's kernel between two launches.
    fn early(&self, call: &Call) -> bool {
        let blocks = call.blocks() * self.sharing;
        match self.region {
            // No engine on a GPU writes there.
            Memory::Host(_) => 2 * blocks <= self.gpu.describe().sms,
            Memory::Device(_) => blocks <= EARLY_BESIDE_ENGINE,
        }
    }

    /// Threads a block. In a quick call as many as there are units to wait for, each of which looks at one: the more
    /// there are, the longer a barrier takes.
    fn threads(&self, call: &Call) -> u32 {
        let units = (call.share() * call.dtype.bytes() / 12 + 4) * u64::from(self.ranks - 1).max(1);
        let host = self.gpu.is_host();
        let given = self.options.threads.map(|n| if host { n } else { n.next_multiple_of(32) });
        given.unwrap_or(match call.algorithm {
            _ if host => HOST_THREADS,
            Algorithm::OneShot | Algorithm::TwoShot => MAX_THREADS / 2, // of each of its two blocks
            Algorithm::Ring => MAX_THREADS,
            Algorithm::Quick => units.next_multiple_of(32).min(MAX_THREADS.into()) as u32,
        })
    }

    /// Messages that a call may wait for, one after the other.
    fn waits(&self, call: &Call) -> u64 {
        let bytes = call.count.saturating_mul(8) / u64::from(call.channels);
        let chunks = bytes.div_ceil(self.piece(call)) + 1;
        chunks.saturating_mul(2 * DEPTH + 2 * u64::from(self.ranks))
    }
}

impl Drop for Running {
    /// What this rank sent must reach the others before its queue pairs go. No call is running: the stream
    /// that one runs on would keep this.
    fn drop(&mut self) {
        if !*self.sends.get_mut() {
            return;
        }
        let inner = &self.inner;
        let all = Call {
            count: 0,
            dtype: Dtype::F32,
            op: Op::Sum,
            algorithm: Algorithm::Ring, // a block a channel
            channels: inner.channels,
        };
        // Nothing more can be done for a rank that does not acknowledge.
        let Ok(stream) = inner.gpu.stream() else { return };
        let (dims, args) = (inner.dims(&all), inner.args(&all));
        if stream.launch_own(&inner.drain, dims, &args, [inner.clone() as Kept]).is_ok() {
            let _ = stream.synchronize(DRAIN);
        }
    }
}
