//! The software NIC's engine on a GPU: launches `kernels/entry/engine.cu` and keeps it running.
//!
//! The kernel ends by itself after [`EngineOptions::run`]. Its state is in memory, so nothing is
//! lost between two launches. The next launch is queued behind the running one, so that no message
//! waits for the thread that launches. Both launches are bounded, and so is a CUDA call that waits
//! for running kernels (such as an allocation). A launch that fails, or does not end in time, ends
//! the engine: the NIC reports its failure, and a caller that waits for one of its queue pairs ends
//! by its own timeout.
//!
//! Between two launches the GPU may give the engine's multiprocessors to another kernel. The
//! engine's stream has the highest priority, so that its blocks precede other waiting blocks; but
//! running blocks are not interrupted. A kernel that fills the GPU and waits for a message of this
//! engine therefore ends both, with an error.
//!
//! On the host executor the same kernel runs on CPU threads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::engine::EngineArgs;
use crate::abi::engine::{MAX_SLOT_BYTES, SHARED_BYTES};
use crate::gpu::{Dims, Event, Gpu, GpuError, Kernel, Mapped, Module, Stream};
use crate::mem::{Dma, HostMem, MemError, View};
use crate::nic::NicError;
use crate::nic::soft::offload::{Accelerator, Offload, Reached, Shared};

/// Excess duration after which a launch has failed, on a GPU and on the host executor. A launch first finishes the work
/// that it has begun. On a CPU whose cores others use as well, blocks wait for each other's time slices: 4 s were too
/// few for three blocks on two cores beside three threads that spin.
const OVERDUE: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(30)];
const OVERDUE_LAUNCH: &str =
    "a launch of the engine (do other kernels of its GPU leave no multiprocessors to it?)";
/// The kernel's `BP_MAX_THREADS`.
const MAX_THREADS: u32 = 512;
/// Most blocks; all of them must be resident at once.
const MAX_BLOCKS: u32 = 128;
/// Queued launches: the running one and the next. The host executor has only the running one: a
/// queued one would occupy a thread that spins for nothing.
const LAUNCHES: usize = 2;

/// Options of an engine on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Number of blocks. Each has a multiprocessor to itself and at most 32 queue pairs.
    pub blocks: u32,
    /// Threads per block: whole warps up to 512; on the host executor also less than a warp.
    pub threads: u32,
    /// Duration of a launch.
    pub run: Duration,
    /// `Some(n)`: a launch makes n rounds over all queue pairs, and a step of the NIC waits for it.
    /// For tests that step a NIC by hand.
    pub rounds: Option<u32>,
}

impl EngineOptions {
    /// Defaults: on a GPU 16 blocks (an eighth of an H200's multiprocessors), on the host executor
    /// one lane. 512 threads have all registers of a multiprocessor. The 16 warps of each block take
    /// 256 slots of a run at once: all of a window of 1 MiB.
    pub fn new(gpu: &Gpu) -> Self {
        let (blocks, threads) = if gpu.is_host() { (1, 1) } else { (16, MAX_THREADS) };
        Self { blocks, threads, run: Duration::from_millis(20), rounds: None }
    }

    fn check(&self, gpu: &Gpu) -> Result<(), NicError> {
        let refuse = |what, value, must| Err(NicError::Attribute { what, value, must });
        if !(1..=MAX_BLOCKS).contains(&self.blocks) {
            return refuse("engine's blocks", self.blocks.into(), "1..=128");
        }
        let whole = self.threads.is_multiple_of(32) || (gpu.is_host() && self.threads < 32);
        if !(1..=MAX_THREADS).contains(&self.threads) || !whole {
            let must = "whole warps to 512, or on the host executor 1 to 31";
            return refuse("engine's threads a block", self.threads.into(), must);
        }
        if self.run.is_zero() || self.run > Duration::from_secs(1) {
            let ns = u64::try_from(self.run.as_nanos()).unwrap_or(u64::MAX);
            return refuse("engine's ns a launch", ns, "more than 0, at most a second");
        }
        if self.rounds == Some(0) {
            return refuse("engine's rounds a launch", 0, "at least 1");
        }
        Ok(())
    }
}

/// Reason why an engine on a GPU could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The GPU refused a request.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// An option is invalid, or memory shared by host and engine could not be allocated.
    #[error(transparent)]
    Nic(#[from] NicError),
}

/// Opens an engine on a GPU, for [`SoftConfig::offload`](crate::nic::soft::SoftConfig).
///
/// `peers` are the other GPUs whose kernels post to the engine, or whose memory it reads and
/// writes; access is enabled both ways, for as long as the engine is there. The NIC's own engine moves data to and from memory that
/// this engine does not reach.
///
/// # Errors
/// [`EngineError::Gpu`] when a GPU has no kernels or no access to another GPU; [`EngineError::Nic`]
/// for options out of range.
pub fn open(
    gpu: &Arc<Gpu>,
    peers: &[Arc<Gpu>],
    options: EngineOptions,
) -> Result<Arc<Offload>, EngineError> {
    Ok(Offload::new(accelerator(gpu, peers, options)?)?)
}

/// The device on which [`open`] runs the engine.
fn accelerator(
    gpu: &Arc<Gpu>,
    peers: &[Arc<Gpu>],
    options: EngineOptions,
) -> Result<Arc<GpuEngine>, EngineError> {
    options.check(gpu)?;
    for peer in peers {
        gpu.enable_peer(peer)?;
        peer.enable_peer(gpu)?;
    }
    let within = std::iter::once(gpu).chain(peers).filter_map(|gpu| gpu.ordinal()).collect();
    let kernel = gpu.load(&Module::builtin())?.kernel("bp_engine")?;
    let engine = GpuEngine {
        within,
        _peers: peers.to_vec(),
        launches: Mutex::new(Launches::new(gpu)?),
        gpu: gpu.clone(),
        kernel,
        options,
        mapped: Mutex::default(),
    };
    Ok(Arc::new(engine))
}

/// The kernel, which uses whatever addresses [`Accelerator::run`] gives it: nobody but an [`Offload`] may have it.
///
/// ```compile_fail,E0603
/// use bellpush::gpu_engine::GpuEngine;
/// ```
struct GpuEngine {
    gpu: Arc<Gpu>,
    /// Ordinals of the GPUs whose memory the engine reaches.
    within: Vec<usize>,
    /// Access ends with a GPU's context, and a context with its last user: a program that opens the GPU again gets
    /// the same one as long as this is here.
    _peers: Vec<Arc<Gpu>>,
    kernel: Kernel,
    options: EngineOptions,
    launches: Mutex<Launches>,
    /// Host memory in which the engine reports; it stays mapped.
    mapped: Mutex<Vec<Mapped>>,
}

struct Launches {
    stream: Stream,
    /// Events at the ends of the queued launches, the oldest first.
    queued: VecDeque<Event>,
    /// Events of launches that have ended.
    spare: Vec<Event>,
    /// Earliest start of the oldest launch.
    since: Instant,
}

impl Launches {
    fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let events = if gpu.is_host() { 1 } else { LAUNCHES };
        let spare = (0..events).map(|_| gpu.event()).collect::<Result<_, _>>()?;
        Ok(Self {
            stream: gpu.urgent_stream()?,
            queued: VecDeque::new(),
            spare,
            since: Instant::now(),
        })
    }

    /// Removes launches that have ended.
    fn reap(&mut self) -> Result<(), GpuError> {
        while let Some(oldest) = self.queued.front()
            && oldest.query()?
        {
            self.spare.extend(self.queued.pop_front());
            self.since = Instant::now();
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gone(error: GpuError) -> NicError {
    NicError::Engine(error.to_string())
}

fn refused(error: GpuError) -> MemError {
    MemError::Device(error.to_string())
}

impl GpuEngine {
    fn overdue(&self) -> Duration {
        OVERDUE[usize::from(self.gpu.is_host())]
    }

    /// Fails when the oldest launch should have ended.
    fn in_time(&self, launches: &Launches) -> Result<(), NicError> {
        let after = self.options.run + self.overdue();
        if !launches.queued.is_empty() && launches.since.elapsed() > after {
            return Err(gone(GpuError::Timeout { what: OVERDUE_LAUNCH, after }));
        }
        Ok(())
    }

    fn launch(&self, stream: &Stream, shared: &Shared) -> Result<(), GpuError> {
        let args = EngineArgs {
            control: shared.control,
            contexts: shared.contexts,
            records: shared.records,
            answers: shared.answers,
            run_ns: self.options.run.as_nanos() as u64,
            rounds: self.options.rounds.unwrap_or(0),
            slot_bytes: MAX_SLOT_BYTES,
        };
        let dims = Dims::new(self.options.blocks, self.options.threads);
        let dims = dims.shared(SHARED_BYTES + MAX_SLOT_BYTES);
        let mapped: Vec<_> = lock(&self.mapped).iter().map(Mapped::keep).collect();
        let kept = mapped.into_iter().chain([shared.keep.clone()]);
        // SAFETY: the kernel takes this argument; its addresses are of memory that `kept` keeps.
        unsafe { stream.launch_keeping(&self.kernel, dims, &args, kept) }
    }
}

impl Accelerator for GpuEngine {
    fn describe(&self) -> String {
        let place = match self.gpu.ordinal() {
            Some(n) => format!("gpu:{n}"),
            None => "the host executor".into(),
        };
        format!("{place} ({} blocks of {} threads)", self.options.blocks, self.options.threads)
    }

    fn blocks(&self) -> usize {
        self.options.blocks as usize
    }

    fn alloc(&self, bytes: usize) -> Result<View, MemError> {
        let memory = self.gpu.alloc(bytes).map_err(refused)?;
        match memory.as_host() {
            Some(view) => Ok(view.clone()),
            None => {
                let far = HostMem::far(memory).expect("a GPU's memory has an address");
                View::new(&far, 0, bytes)
            }
        }
    }

    fn alloc_host(&self, bytes: usize) -> Result<View, MemError> {
        let mapped = self.gpu.alloc_mapped(bytes, None).map_err(refused)?;
        let memory = mapped.host().clone();
        lock(&self.mapped).push(mapped);
        View::new(&memory, 0, bytes)
    }

    fn reach(&self, memory: &dyn Dma) -> Option<Reached> {
        let (addr, keep) = self.gpu.reach(memory, &self.within)?;
        let own: Vec<usize> = self.gpu.ordinal().into_iter().collect();
        let near = self.gpu.is_host()
            || memory.as_host().is_none() && self.gpu.reach(memory, &own).is_some();
        Some(Reached { addr, near, keep })
    }

    fn run(&self, shared: &Shared) -> Result<(), NicError> {
        let mut launches = lock(&self.launches);
        if self.options.rounds.is_some() {
            self.launch(&launches.stream, shared).map_err(gone)?;
            return launches.stream.synchronize(self.overdue()).map_err(gone);
        }
        launches.reap().map_err(gone)?;
        while let Some(event) = launches.spare.pop() {
            if launches.queued.is_empty() {
                launches.since = Instant::now();
            }
            self.launch(&launches.stream, shared).map_err(gone)?;
            launches.stream.record(&event).map_err(gone)?;
            launches.queued.push_back(event);
        }
        self.in_time(&launches)
    }

    fn rests(&self) -> Result<bool, NicError> {
        let mut launches = lock(&self.launches);
        launches.reap().map_err(gone)?;
        self.in_time(&launches)?;
        Ok(launches.queued.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::engine::{BLOCK_QPS, CONTEXT_BYTES, CONTROL_BLOCK_BYTES, RECORD_BYTES};
    use crate::gpu::{Executor, HostOptions};

    #[test]
    fn what_host_and_engine_share_stays_while_a_launch_runs() {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let options = EngineOptions { run: Duration::from_millis(300), ..EngineOptions::new(&gpu) };
        let engine = accelerator(&gpu, &[], options).unwrap();
        let (control, contexts) = (2 * CONTROL_BLOCK_BYTES, CONTEXT_BYTES * BLOCK_QPS);
        let records = RECORD_BYTES * BLOCK_QPS;
        let memory = HostMem::alloc(control + contexts + records + 8).unwrap();
        let at = |offset: usize| memory.addr() + offset as u64;
        let shared = Shared {
            control: at(0),
            contexts: at(control),
            records: at(control + contexts),
            answers: at(control + contexts + records),
            keep: memory.clone(),
        };
        engine.run(&shared).unwrap();
        let seen = Arc::downgrade(&memory);
        drop((memory, shared));
        assert!(seen.upgrade().is_some(), "freed below the kernel");
        drop(engine);
        assert!(seen.upgrade().is_none(), "kept for ever");
    }
}
