//! A connected rank: its calls and their results.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::calls::Calls;
use super::layout::Layout;
use super::member::{MAX_THREADS, Member, Options};
use super::{Algorithm, Call, Dtype, Error, Op};
use crate::abi::collective::{
    BLOCK_BYTES, CollArgs, DEPTH, HEADER_BYTES, LL_ALL_BYTES, LL_BYTES, LL_SLOT_BYTES, LL_SLOTS,
    SHARED_BYTES,
};
use crate::gpu::{DeviceMem, Dims, Gpu, GpuError, Graph, Kept, Kernel, Mapped, Stream};
use crate::nic::Nic;
use crate::transport::{Endpoint, Memory};

/// Threads per block on the host executor, where a lane is a fibre and a barrier switches to each
/// of them.
const HOST_THREADS: u32 = 8;
/// Bytes per channel of an LL call, up to [`Options::ll_messages`]: beyond them a NIC's engine
/// on the host takes longer than a further channel costs (docs/results/allreduce-h200.md).
const LL_SHARE: u64 = 680;
/// Channels that a host's engine serves with a thread each; and bytes per further channel: up to
/// this length, a thread with two messages takes longer than with one of their total length.
const LL_AT_ONCE: u64 = 12;
const LL_BEYOND: u64 = 2731;
/// Bytes per channel where regions lie in GPU memory, and for channels beyond those that begin
/// early.
const LL_SHARE_IN_GPU: u64 = 1024;
const LL_BEYOND_IN_GPU: u64 = 4096;
/// Messages per one-shot share: one is built while another is on its way and a third is consumed
/// (measured: docs/results/allreduce-h200.md).
const PIECES: u64 = 3;
/// Largest number of blocks, over the calls of all ranks of a GPU, that may be resident beside
/// their successors where an engine may run on the same GPU: the engine needs room beside twice as
/// many.
const EARLY_BESIDE_ENGINE: u32 = 16;
/// Constants of this build that decide how a call goes and where its messages lie. They must be
/// equal at all ranks.
pub(super) const ALIKE: [u64; 12] = [
    HEADER_BYTES,
    DEPTH,
    LL_BYTES,
    LL_SLOTS,
    LL_SLOT_BYTES,
    LL_ALL_BYTES,
    LL_SHARE,
    LL_AT_ONCE,
    LL_BEYOND,
    LL_SHARE_IN_GPU,
    LL_BEYOND_IN_GPU,
    PIECES,
];
/// Interval at which a waiting thread checks whether a call has ended the communicator.
const LOOK: Duration = Duration::from_millis(50);
/// Bound of a drop's wait for sent messages.
const DRAIN: Duration = Duration::from_secs(1);

/// Elements in memory that the rank's GPU reaches: a whole memory, or the part from a byte offset
/// on.
#[derive(Clone, Copy)]
pub struct Buffer<'a> {
    memory: &'a Memory,
    offset: u64,
}

impl<'a> Buffer<'a> {
    /// The elements from byte `offset` of `memory` on.
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

/// Memory and endpoints of a rank, which its kernels access. Streams keep it until they are idle.
pub(super) struct Inner {
    pub gpu: Arc<Gpu>,
    pub rank: u32,
    pub ranks: u32,
    /// Upper bound of the number of ranks on this GPU, from their addresses.
    pub sharing: u32,
    pub channels: u32,
    pub options: Options,
    pub layout: Layout,
    pub all_reduce: Kernel,
    pub all_reduce_ll: Kernel,
    pub drain: Kernel,
    /// By channel and peer.
    pub endpoints: Vec<Option<Endpoint>>,
    pub region: Memory,
    pub stage: Option<Arc<DeviceMem>>,
    pub table: Arc<DeviceMem>,
    pub state: Arc<DeviceMem>,
    pub status: Mapped,
}

/// A rank as its calls use it. Streams keep it until they are idle. Its drop therefore follows the
/// last call, and then waits for the sent messages.
struct Running {
    inner: Arc<Inner>,
    /// Calls were made, and no failure has ended the communicator.
    sends: AtomicBool,
}

/// A rank that is connected to the others.
///
/// A call is queued on a stream and returns at once; [`Communicator::synchronize`] waits for it and
/// returns its result. All ranks make the same calls in the same order. A rank makes its calls on
/// one stream until it has synchronised; dropping that stream before its calls are done ends the
/// communicator.
///
/// Dropping the communicator waits up to a second for the acknowledgement of sent messages. If a
/// stream that is not idle, or a [`Recording`], still keeps the communicator's memory, its drop
/// waits instead.
pub struct Communicator {
    running: Arc<Running>,
    calls: Mutex<Calls>,
}

/// Recorded calls, which can be repeated at the cost of one launch.
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

    /// Ranks that are threads of this process: one for each GPU and NIC, in order. A GPU or NIC may
    /// occur more than once.
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

    /// This rank, from 0.
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

    /// The [`Call`] that an all-reduce of these elements would be.
    pub fn plan(&self, count: u64, dtype: Dtype, op: Op) -> Call {
        let Inner { ranks, channels, options, .. } = self.inner();
        let bytes = count.saturating_mul(dtype.bytes());
        let others = u64::from(*ranks - 1).max(1);
        let holds = Algorithm::ll_holds(bytes, *ranks, *channels);
        let algorithm = match options.algorithm {
            Some(Algorithm::Ll) if !holds => Algorithm::OneShot,
            Some(named) => named,
            None if holds && bytes.saturating_mul(others * others.min(2)) <= options.ll_bytes => {
                Algorithm::Ll
            }
            None => {
                let in_gpu = matches!(self.inner().region, Memory::Device(_));
                Algorithm::choose(bytes, *ranks, dtype, op, in_gpu)
            }
        };
        let wanted = match algorithm {
            Algorithm::Ll => {
                let needed = bytes.div_ceil(Algorithm::ll_share(*ranks));
                let (shares, most) = match self.inner().region {
                    Memory::Host(_) => {
                        (bytes / LL_SHARE, bytes.div_ceil(LL_BEYOND).max(LL_AT_ONCE))
                    }
                    Memory::Device(_) => (
                        bytes.div_ceil(LL_SHARE_IN_GPU),
                        bytes.div_ceil(LL_BEYOND_IN_GPU).max(EARLY_BESIDE_ENGINE.into()),
                    ),
                };
                shares.min(most).min((u64::from(options.ll_messages) / others).max(1)).max(needed)
            }
            _ => bytes.div_ceil(options.channel_bytes.saturating_mul(others.min(2))),
        };
        let wanted = wanted.clamp(1, (*channels).into());
        Call { count, dtype, op, algorithm, channels: wanted as u32 }
    }

    /// Queues an all-reduce. `output` receives, with the same bits at every rank, the result of
    /// `op` over the ranks' `count` elements of `input`. The order of the additions depends on the
    /// call's shape alone. `output` is `input`, or memory that does not overlap it.
    ///
    /// # Errors
    /// Invalid arguments; nothing is then queued, and no other rank notices until it waits for this
    /// one. The failure that has ended the communicator, once; afterwards [`Error::Ended`].
    /// [`Error::OtherStream`] while calls on another stream are outstanding.
    /// [`Communicator::synchronize`] reports later failures and mismatches of calls.
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
            Algorithm::Ll => &inner.all_reduce_ll,
            _ => &inner.all_reduce,
        };
        // SAFETY: the kernel takes this argument; its addresses are of memory that `kept` keeps.
        unsafe { stream.launch_keeping(kernel, inner.dims(&call), &args, kept) }?;
        self.running.sends.store(inner.ranks > 1, Ordering::Relaxed);
        calls.queue(stream, inner.waits(&call));
        Ok(())
    }

    /// Records the calls that `make` makes on `stream`, instead of queueing them. All ranks replay
    /// recordings of the same calls the same number of times, in the same order with respect to
    /// other calls.
    ///
    /// # Errors
    /// Errors of `make`; [`Error::Gpu`] on the host executor, which has no graphs.
    pub fn record<'a>(
        &'a self,
        stream: &'a Stream,
        make: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Recording<'a>, Error> {
        // The calls of `make` are recorded, not queued: the record is that of a communicator with
        // nothing outstanding.
        let aside = self.lock().set_aside(stream);
        let recorded = catch_unwind(AssertUnwindSafe(|| stream.capture(make)));
        let waits = self.lock().put_back(aside); // Also after a panic: earlier calls may be outstanding.
        let graph = recorded.unwrap_or_else(|panic| resume_unwind(panic))?;
        Ok(Recording { communicator: self, stream, graph, waits })
    }

    /// Waits until the calls queued on `stream` are done, or until one has ended the communicator.
    /// In the latter case the calls behind it do nothing, and their memory is kept until the stream
    /// is idle. The wait is bounded, since each wait of the calls is. Other threads may queue calls
    /// meanwhile; only those of the first 50 ms are waited for.
    ///
    /// # Errors
    /// [`Error::OtherStream`], without a wait, while the calls are on another stream. Otherwise the
    /// first failure of any call; the failure that ended the communicator takes precedence. After
    /// [`Error::Mismatch`] the communicator continues; every other failure ends it, and all later
    /// calls and synchronisations return [`Error::Ended`]. A failure of the stream's other work is
    /// returned, and ends nothing if no calls are on the stream.
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
            // Neither tells anything about the calls: they continue, or a thread is recording.
            Err(GpuError::Timeout { .. } | GpuError::Recording) => waited.map(|_| ())?,
            // A cancelled kernel leaves streams of messages that no rank can continue.
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

    /// Whether the calls are done; otherwise the communicator has ended.
    fn wait(&self, stream: &Stream) -> Result<bool, GpuError> {
        // Free of cost for calls that end soon, as most do.
        match stream.synchronize(LOOK) {
            Err(GpuError::Timeout { .. }) => {}
            done => return done.map(|()| true),
        }
        // Other threads may queue calls continuously, so that the stream is never idle.
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
            // A failed stream reaches its events all the same, and reports the failure here.
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

    /// Whether a kernel has reported an end, to this or another thread.
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

    /// Runs `what` and ends the communicator if its failure is of a kind that does so.
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
    /// Repeats the recorded calls on the stream from which they were recorded.
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
            ll_slots: l.ll_slots,
            all_to_all_signals: l.all_to_all_signals,
            ring_signals: l.ring_signals,
            all_to_all_slots: l.all_to_all_slots,
            ring_slots: l.ring_slots,
            ll_stage: stage,
            stage: stage + l.ll_stage_bytes,
            piece_bytes: self.piece(call),
            timeout_ns: ns(self.options.timeout),
            grace_ns: ns(self.options.grace()),
        }
    }

    fn dims(&self, call: &Call) -> Dims {
        let dims = Dims::new(call.blocks(), self.threads(call)).shared(BLOCK_BYTES);
        if self.early(call) { dims.early() } else { dims }
    }

    /// Payload of a message of this call. A long share has several messages, so that one can be
    /// built, one sent and one consumed at the same time.
    fn piece(&self, call: &Call) -> u64 {
        let most = u64::from(self.options.chunk(self.ranks));
        let share = call.share() * call.dtype.bytes();
        let (part, pieces) = match call.algorithm {
            Algorithm::OneShot => (share, PIECES),
            // As many as may be outstanding: scattering runs some rounds ahead of gathering.
            Algorithm::TwoShot => (share.div_ceil(self.ranks.into()), DEPTH),
            Algorithm::Ring | Algorithm::Ll => return most,
        };
        let messages = (part / self.options.message_bytes.max(1)).clamp(1, pieces);
        part.div_ceil(messages).next_multiple_of(64).clamp(64, most)
    }

    /// Whether a call may begin while the preceding one ends, and the following one while this one
    /// ends. Blocks of two calls are then on the GPU. They must not take multiprocessors from
    /// kernels that they wait for: those of other ranks on this GPU, or an engine's between two
    /// launches.
    fn early(&self, call: &Call) -> bool {
        let blocks = call.blocks() * self.sharing;
        match self.region {
            // No engine on a GPU writes to host memory.
            Memory::Host(_) => 2 * blocks <= self.gpu.describe().sms,
            Memory::Device(_) => blocks <= EARLY_BESIDE_ENGINE,
        }
    }

    /// Threads per block. An LL call has one per unit that it waits for, and no more: a barrier
    /// takes longer with more threads.
    fn threads(&self, call: &Call) -> u32 {
        let units = (call.share() * call.dtype.bytes() / 12 + 4) * u64::from(self.ranks - 1).max(1);
        let host = self.gpu.is_host();
        let given = self.options.threads.map(|n| if host { n } else { n.next_multiple_of(32) });
        given.unwrap_or(match call.algorithm {
            _ if host => HOST_THREADS,
            Algorithm::OneShot | Algorithm::TwoShot => MAX_THREADS / 2, // of each of its two blocks
            Algorithm::Ring => MAX_THREADS,
            Algorithm::Ll => units.next_multiple_of(32).min(MAX_THREADS.into()) as u32,
        })
    }

    /// Number of messages that a call may wait for, one after the other.
    fn waits(&self, call: &Call) -> u64 {
        let bytes = call.count.saturating_mul(8) / u64::from(call.channels);
        let chunks = bytes.div_ceil(self.piece(call)) + 1;
        chunks.saturating_mul(2 * DEPTH + 2 * u64::from(self.ranks))
    }
}

impl Drop for Inner {
    /// All queue pairs before any memory: while an engine on this GPU has one, it is launched again and again, and each
    /// call that gives memory back waits for two launches (docs/results/allreduce-h200.md).
    fn drop(&mut self) {
        self.endpoints.iter().flatten().for_each(Endpoint::end);
    }
}

impl Drop for Running {
    /// This rank's messages must reach the others before its queue pairs are destroyed. No call is
    /// running: its stream would keep this value.
    fn drop(&mut self) {
        if !*self.sends.get_mut() {
            return;
        }
        let inner = &self.inner;
        let all = Call {
            count: 0,
            dtype: Dtype::F32,
            op: Op::Sum,
            algorithm: Algorithm::Ring, // One block per channel.
            channels: inner.channels,
        };
        // A rank that does not acknowledge cannot be helped.
        let Ok(stream) = inner.gpu.stream() else { return };
        let (dims, args) = (inner.dims(&all), inner.args(&all));
        // SAFETY: as in `all_reduce`; nothing is read or written of input and output.
        if unsafe { stream.launch_keeping(&inner.drain, dims, &args, [inner.clone() as Kept]) }
            .is_ok()
        {
            let _ = stream.synchronize(DRAIN);
        }
    }
}
