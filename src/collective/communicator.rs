//! A connected rank: calls, and what became of them.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::layout::Layout;
use super::member::{Member, Options};
use super::{Algorithm, Call, Dtype, Error, Op};
use crate::gpu::collective_args::{CollArgs, CollStatus, DEPTH, SHARED_BYTES, SHARED_STATUS};
use crate::gpu::{DeviceMem, Dims, Event, Gpu, Kernel, Mapped, Stream};
use crate::nic::Nic;
use crate::transport::{Endpoint, Memory};

/// Calls whose shape is remembered, to be named when one of them fails.
const REMEMBERED: usize = 1024;
/// Threads a block on the host executor, where a lane is a fibre and a barrier a switch to each.
const HOST_THREADS: u32 = 8;
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
    pub channels: u32,
    pub options: Options,
    pub layout: Layout,
    pub all_reduce: Kernel,
    pub drain: Kernel,
    /// By channel and peer.
    pub endpoints: Vec<Option<Endpoint>>,
    pub region: Memory,
    pub stage: Option<Arc<DeviceMem>>,
    pub table: Arc<DeviceMem>,
    pub state: Arc<DeviceMem>,
    pub status: Mapped,
    /// The end of the last call.
    pub last: Event,
}

/// A rank, connected to the others.
///
/// A call is queued on a stream and returns at once; [`Communicator::synchronize`] waits for it and
/// says what became of it. All ranks make the same calls in the same order; a rank's calls are made
/// on one stream, or ordered by the caller. Dropping a communicator waits for what it sent to be
/// acknowledged, a second at most.
pub struct Communicator {
    inner: Arc<Inner>,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    made: u64,
    /// The last ones, the newest at the back.
    recent: VecDeque<Call>,
    /// Messages that calls since the last synchronisation may wait for, each up to the timeout.
    waits: u64,
    ended: Option<String>,
}

impl Communicator {
    pub(super) fn new(inner: Inner) -> Self {
        Self { inner: Arc::new(inner), calls: Mutex::default() }
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
            .map(|(rank, (gpu, nic))| Member::new(gpu, nic, rank, ranks, options))
            .collect::<Result<_, _>>()?;
        let addresses: Vec<_> = members.iter().map(|m| m.address().clone()).collect();
        members.into_iter().map(|m| m.connect(&addresses)).collect()
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.inner.ranks
    }

    /// The options.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// What a call of these elements would be.
    pub fn plan(&self, count: u64, dtype: Dtype, op: Op) -> Call {
        let Inner { ranks, channels, options, .. } = &*self.inner;
        let bytes = count.saturating_mul(dtype.bytes());
        let choice = || Algorithm::choose(bytes, *ranks, dtype, op);
        let algorithm = options.algorithm.unwrap_or_else(choice);
        let wanted = bytes.div_ceil(options.channel_bytes).clamp(1, (*channels).into());
        Call { count, dtype, op, algorithm, channels: wanted as u32 }
    }

    /// Queues an all-reduce: `output` receives, at every rank and the same bits at each, `op` over
    /// the ranks' `count` elements of `input`, added up in an order that depends on the call's shape
    /// alone. `output` is `input`, or memory apart.
    ///
    /// # Errors
    /// What is wrong with the arguments; nothing is queued then, and no other rank is affected until
    /// it waits for this one. [`Error::Ended`] after a failure that ended the communicator. What
    /// fails later is [`Communicator::synchronize`]'s to report.
    pub fn all_reduce<'a>(
        &self,
        stream: &Stream,
        input: impl Into<Buffer<'a>>,
        output: impl Into<Buffer<'a>>,
        count: u64,
        dtype: Dtype,
        op: Op,
    ) -> Result<(), Error> {
        let inner = &self.inner;
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
        if let Some(why) = &calls.ended {
            return Err(Error::Ended { why: why.clone() });
        }
        let args = CollArgs { input, output, call: calls.made, ..inner.args(&call) };
        for memory in [from.memory, to.memory] {
            match memory {
                Memory::Device(mem) => stream.keep(mem.clone()),
                Memory::Host(mem) => stream.keep(mem.keep()),
            }
        }
        stream.keep(inner.clone());
        stream.launch(&inner.all_reduce, inner.dims(call.channels), &args)?;
        stream.record(&inner.last)?;
        calls.made += 1;
        calls.waits += inner.waits(&call);
        if calls.recent.len() == REMEMBERED {
            calls.recent.pop_front();
        }
        calls.recent.push_back(call);
        Ok(())
    }

    /// Waits until the calls queued on `stream` are done: bounded, since each of their waits is.
    ///
    /// # Errors
    /// The first failure of any of them. After [`Error::Mismatch`] the communicator goes on; every
    /// other failure ends it.
    pub fn synchronize(&self, stream: &Stream) -> Result<(), Error> {
        let mut calls = self.lock();
        let timeout = self.inner.options.timeout;
        let most = u32::try_from(calls.waits + 4).unwrap_or(u32::MAX);
        stream.synchronize(timeout.saturating_mul(most))?;
        calls.waits = 0;
        match self.inner.failure(&calls)? {
            None => Ok(()),
            Some(e) => {
                if !matches!(e, Error::Mismatch { .. }) {
                    calls.ended = Some(e.to_string());
                }
                Err(e)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn args(&self, call: &Call) -> CollArgs {
        let Layout { reports, exchange_signals, ring_signals, exchange_slots, ring_slots, .. } =
            self.layout;
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX / 4);
        CollArgs {
            input: 0,
            output: 0,
            count: call.count,
            call: 0,
            dtype: call.dtype as u32,
            op: call.op as u32,
            algorithm: call.algorithm as u32,
            channels: call.channels,
            rank: self.rank,
            ranks: self.ranks,
            chunk_bytes: self.options.chunk_bytes,
            unwaited: (!self.options.waits).into(),
            all_channels: self.channels as u16, // at most MAX_CHANNELS
            endpoints: self.table.addr(),
            channel_state: self.state.addr() + SHARED_BYTES as u64,
            shared: self.state.addr(),
            status: self.status.addr(),
            region: self.region.addr(),
            reports,
            exchange_signals,
            ring_signals,
            exchange_slots,
            ring_slots,
            stage: match &self.stage {
                Some(own) => own.addr(),
                None => self.region.addr() + self.layout.stage,
            },
            timeout_ns: ns(self.options.timeout),
            grace_ns: ns(self.options.grace()),
        }
    }

    /// One word of shared memory, through which a block's threads tell each other of a failed send.
    fn dims(&self, channels: u32) -> Dims {
        let usual = if self.gpu.is_host() { HOST_THREADS } else { 512 };
        Dims::new(channels, self.options.threads.unwrap_or(usual)).shared(16)
    }

    /// Messages that a call may wait for, one after the other.
    fn waits(&self, call: &Call) -> u64 {
        let bytes = call.count.saturating_mul(8) / u64::from(call.channels);
        let chunks = bytes.div_ceil(self.options.chunk_bytes.into()) + 1;
        chunks.saturating_mul(2 * DEPTH + 2 * u64::from(self.ranks))
    }

    /// What the kernels wrote, if they did; they have ended.
    fn failure(&self, calls: &Calls) -> Result<Option<Error>, Error> {
        let Some(host) = self.status.host() else { return Ok(None) };
        // Acquire: pairs with device code, which writes the reason before the code.
        let code = host.load_u32(0, Ordering::Acquire)?;
        if code == 0 {
            return Ok(None);
        }
        let mut raw = [0; size_of::<CollStatus>()];
        host.read(0, &mut raw)?;
        let status: CollStatus = bytemuck::pod_read_unaligned(&raw);
        // Taken: the next failure is reported again.
        host.write(0, &[0; size_of::<CollStatus>()])?;
        self.state.copy_in(SHARED_STATUS, &[0; 4])?;
        let (rank, call) = (status.rank, status.call);
        let ms = self.options.timeout.as_millis();
        Ok(Some(match code {
            2 => {
                let to_rank = |i: usize| i as u32 % self.ranks == rank;
                let ends = self.endpoints.iter().enumerate().filter(|(i, _)| to_rank(*i));
                let why = ends.flat_map(|(_, e)| e).find_map(Endpoint::failure);
                Error::Link { rank, call, why }
            }
            3 => match (said(&status), calls.at(call)) {
                (Some(theirs), Some(ours)) => Error::Mismatch { rank, call, theirs, ours },
                _ => Error::Corrupt { rank, call },
            },
            4 => Error::Late { rank, call },
            5 => Error::Corrupt { rank, call },
            _ => Error::Silent { rank, call, ms },
        }))
    }
}

/// What another rank calls, as it said; `None` for numbers that mean nothing.
fn said(status: &CollStatus) -> Option<Call> {
    let said = &status.said;
    Some(Call {
        count: said.count,
        dtype: Dtype::of(said.dtype)?,
        op: Op::of(said.op)?,
        algorithm: Algorithm::of(said.algorithm)?,
        channels: said.channels,
    })
}

impl Calls {
    fn at(&self, call: u64) -> Option<Call> {
        let back = self.made.checked_sub(call + 1)? as usize;
        self.recent.iter().rev().nth(back).copied()
    }
}

impl Drop for Communicator {
    /// What this rank sent must reach the others before its queue pairs go.
    fn drop(&mut self) {
        let mut calls = self.lock();
        if calls.ended.take().is_some() || calls.made == 0 || self.inner.ranks == 1 {
            return;
        }
        let call = self.plan(0, Dtype::F32, Op::Sum);
        let args = self.inner.args(&call);
        // One caller at a time has the queue pairs. Nothing more can be done for a call that does not
        // end, nor for a rank that does not acknowledge.
        let Ok(()) = self.inner.last.wait(DRAIN) else { return };
        let Ok(stream) = self.inner.gpu.stream() else { return };
        stream.keep(self.inner.clone());
        if stream.launch(&self.inner.drain, self.inner.dims(self.inner.channels), &args).is_ok() {
            let _ = stream.synchronize(DRAIN);
        }
    }
}
