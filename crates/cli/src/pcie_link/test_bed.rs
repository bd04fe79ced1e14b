//! The memories of a run, and single measurements.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bellpush::abi::bench::{LinkChaseArgs, LinkFlagArgs, LinkLap, LinkMoveArgs, LinkResult};
use bellpush::abi::wire::Code;
use bellpush::gpu::{DeviceMem, Dims, Gpu, Kernel, KernelArgs, Mapped, Module, Stream};
use bellpush::mem::{Dma, HostMem, MemError, PAGE_BYTES, View};
use bellpush::pcie::sim::{Access, BURST_THREADS, Held, Pattern, Probe, Target};

use super::scale::Scale;
use crate::cli::CliError;
use crate::launch::launch;

/// Offset of the answering flag from the first one: another line.
const ANSWER: usize = 256;
/// Most blocks of a launch here.
const MAX_BLOCKS: usize = 1024;
const FILL_BYTES: usize = 1 << 20;
/// Value of every byte that load rows read.
const LOADED: u8 = 1;

pub struct TestBed {
    pub gpu: Arc<Gpu>,
    pub peer: Option<Peer>,
    scale: Scale,
    stream: Stream,
    kernels: Kernels,
    local: Arc<DeviceMem>,
    host: Mapped,
    host_view: View,
    flags: Mapped,
    /// The flag that a peer GPU stores.
    local_flag: Arc<DeviceMem>,
    results: Arc<DeviceMem>,
    limit: Duration,
    /// Value for the next store row; no row finds its own value in memory.
    value: u8,
    /// Start of the next stream.
    at: u32,
    /// Memories in which every byte is [`LOADED`]; the host's is then in no cache.
    filled: Vec<Target>,
}

pub struct Peer {
    pub gpu: Arc<Gpu>,
    stream: Stream,
    flag: Kernel,
    memory: Arc<DeviceMem>,
    local_flag: Arc<DeviceMem>,
    results: Arc<DeviceMem>,
}

struct Kernels {
    store: Kernel,
    load: Kernel,
    chase: Kernel,
    flag: Kernel,
}

/// Repeated work of a kernel.
#[derive(Clone, Copy)]
struct Laps {
    /// Accesses per lap.
    accesses: u64,
    count: u32,
    /// Bytes from one lap to the next.
    bytes: u32,
    end: LinkLap,
}

/// A row's outcome.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// GB/s or ns.
    pub value: f64,
    /// Difference between largest and smallest repetition, in percent of the median.
    pub spread_percent: f64,
    /// Whether every expected byte was moved.
    pub verified: bool,
}

pub(super) fn bug(error: MemError) -> CliError {
    CliError::new(error, "this is a bug: please report it")
}

impl TestBed {
    pub fn new(
        gpu: Arc<Gpu>,
        peer: Option<Arc<Gpu>>,
        host_numa: Option<usize>,
        limit: Duration,
    ) -> Result<Self, CliError> {
        let scale = if gpu.is_host() { Scale::HOST } else { Scale::GPU };
        let span = scale.span_bytes as usize;
        let loaded = gpu.load(&Module::builtin())?;
        let kernels = Kernels {
            store: loaded.kernel("bp_link_store")?,
            load: loaded.kernel("bp_link_load")?,
            chase: loaded.kernel("bp_link_chase")?,
            flag: loaded.kernel("bp_link_flag")?,
        };
        let peer = peer.map(|other| Peer::new(&gpu, other, span)).transpose()?;
        let host = gpu.alloc_mapped(span, host_numa)?;
        let host_view = View::new(host.host(), 0, span).map_err(bug)?;
        Ok(Self {
            stream: gpu.stream()?,
            kernels,
            local: gpu.alloc(span)?,
            host,
            host_view,
            flags: gpu.alloc_mapped(PAGE_BYTES, host_numa)?,
            local_flag: gpu.alloc(PAGE_BYTES)?,
            results: gpu.alloc(MAX_BLOCKS * size_of::<LinkResult>())?,
            peer,
            scale,
            gpu,
            limit,
            value: LOADED + 1,
            at: 0,
            filled: Vec::new(),
        })
    }

    /// How many measurements a median is of.
    pub fn runs(&self) -> usize {
        self.scale.repeats
    }

    /// The median of several measurements. `model` is the predicted value, which determines the
    /// length of streams.
    pub fn measure(&mut self, probe: Probe, model: f64) -> Result<Measured, CliError> {
        let mut values = Vec::new();
        // The first measurement finds caches, TLBs and clocks as another row left them: it does not
        // count.
        let (_, mut verified) = self.once(probe, model)?;
        for _ in 0..self.scale.repeats {
            let (value, right) = self.once(probe, model)?;
            values.push(value);
            verified &= right;
        }
        values.sort_by(f64::total_cmp);
        let median = values[values.len() / 2];
        let spread_percent = (values[values.len() - 1] - values[0]) / median * 100.0;
        Ok(Measured { value: median, spread_percent, verified })
    }

    fn once(&mut self, probe: Probe, model: f64) -> Result<(f64, bool), CliError> {
        match probe {
            Probe::Stream(target, access, pattern) => self.stream(target, access, pattern, model),
            Probe::Burst(target, access, bytes) => self.burst(target, access, bytes, 0),
            Probe::Page(held, bytes) => self.page(held, bytes),
            Probe::FenceSystem(Some(target)) => self.fences(target, 4, LinkLap::FenceSystem),
            Probe::FenceSystem(None) => self.fences(Target::Local, 0, LinkLap::FenceSystem),
            Probe::FenceGpu(target) => self.fences(target, 4, LinkLap::FenceGpu),
            Probe::Latency(target) => self.chase(target),
            Probe::RoundTrip(target) => self.round_trip(target),
        }
    }

    /// Bursts, each shifted by `lap_bytes`.
    fn burst(
        &mut self,
        target: Target,
        access: Access,
        bytes: u32,
        lap_bytes: u32,
    ) -> Result<(f64, bool), CliError> {
        let pattern = Pattern::dense(1, BURST_THREADS.min(self.most_threads()));
        let end = match access {
            Access::Store => LinkLap::FenceSystem,
            Access::Load => LinkLap::Barrier,
        };
        let count = (self.scale.laps / (bytes >> 14).max(1)).max(8).min(self.scale.laps);
        let laps = Laps { accesses: u64::from(bytes / 16).max(1), count, bytes: lap_bytes, end };
        self.laps(target, access, pattern, laps)
    }

    /// Loads from a page of host memory in the place `held`. A device's reads leave it there.
    fn page(&mut self, held: Held, bytes: u32) -> Result<(f64, bool), CliError> {
        self.fill(Target::Host)?;
        let length = (bytes as usize).max(PAGE_BYTES);
        match held {
            Held::Core => self.host_view.write(0, &vec![LOADED; length]).map_err(bug)?,
            Held::Device => self.store_loaded(length)?,
            Held::Another => {
                return self.burst(Target::Host, Access::Load, bytes, length as u32);
            }
        }
        let found = self.burst(Target::Host, Access::Load, bytes, 0);
        self.host.host().evict(0, length);
        found
    }

    /// Lets this GPU store the start of the host's memory, with unchanged values.
    fn store_loaded(&self, bytes: usize) -> Result<(), CliError> {
        let threads = BURST_THREADS.min(self.most_threads());
        let accesses = bytes as u64 / 16;
        let laps = Laps { accesses, count: 1, bytes: 0, end: LinkLap::FenceSystem };
        let pattern = Pattern::dense(1, threads);
        let args = self.arguments(Target::Host, pattern, laps, LOADED)?;
        self.launch(&self.kernels.store, 1, threads, &args).map(|_| ())
    }

    /// Most threads per block for the executor.
    fn most_threads(&self) -> u32 {
        if self.gpu.is_host() { 64 } else { 1024 }
    }

    fn address(&self, target: Target) -> Result<u64, CliError> {
        Ok(match target {
            Target::Local => self.local.addr(),
            Target::Host => self.host.addr(),
            Target::Peer => self.peer()?.memory.addr(),
        })
    }

    fn peer(&self) -> Result<&Peer, CliError> {
        self.peer
            .as_ref()
            .ok_or_else(|| CliError::new("there is no peer GPU", "this is a bug: please report it"))
    }

    fn stream(
        &mut self,
        target: Target,
        access: Access,
        pattern: Pattern,
        model: f64,
    ) -> Result<(f64, bool), CliError> {
        let (accesses, count) = self.scale.length(pattern, model);
        let laps = Laps { accesses, count, bytes: 0, end: LinkLap::RunOn };
        // Each repetition continues where the last one ended, so that it does not find its own data
        // in a cache.
        let length = accesses * u64::from(pattern.stride_bytes) + u64::from(pattern.offset_bytes);
        if u64::from(self.at) + length + 16 > self.scale.span_bytes {
            self.at = 0;
        }
        let here = Pattern { offset_bytes: self.at + pattern.offset_bytes, ..pattern };
        self.at = (self.at + length as u32).next_multiple_of(128);
        let (ns, right) = self.laps(target, access, here, laps)?;
        let bytes = accesses * u64::from(pattern.access_bytes);
        Ok((bytes as f64 / ns, right))
    }

    fn fences(
        &mut self,
        target: Target,
        accesses: u64,
        fence: LinkLap,
    ) -> Result<(f64, bool), CliError> {
        let one = Pattern::dense(1, 1);
        let laps = Laps { accesses, count: self.scale.laps, bytes: 0, end: fence };
        self.laps(target, Access::Store, one, laps)
    }

    /// Time of a lap, and whether the expected bytes were moved.
    fn laps(
        &mut self,
        target: Target,
        access: Access,
        pattern: Pattern,
        laps: Laps,
    ) -> Result<(f64, bool), CliError> {
        self.value = self.value.wrapping_add(1).max(LOADED + 1);
        let args = self.arguments(target, pattern, laps, self.value)?;
        let kernel = match access {
            Access::Store => {
                self.filled.retain(|filled| *filled != target);
                self.kernels.store.clone()
            }
            Access::Load => {
                self.fill(target)?;
                self.kernels.load.clone()
            }
        };
        let results = self.launch(&kernel, pattern.blocks, pattern.threads, &args)?;
        let right = match access {
            Access::Load => {
                let word = u64::from(u32::from_ne_bytes([LOADED; 4]));
                let words =
                    u64::from(pattern.access_bytes / 4) * laps.accesses * u64::from(laps.count);
                let sum = results.iter().fold(0u64, |sum, r| sum.wrapping_add(r.sum));
                sum == words.wrapping_mul(word)
            }
            Access::Store => self.stored(target, pattern, laps.accesses)?,
        };
        Ok((elapsed_ns(&results) / f64::from(laps.count), right))
    }

    fn arguments(
        &self,
        target: Target,
        pattern: Pattern,
        laps: Laps,
        value: u8,
    ) -> Result<LinkMoveArgs, CliError> {
        Ok(LinkMoveArgs {
            target: self.address(target)? + u64::from(pattern.offset_bytes),
            accesses: laps.accesses,
            results: self.results.addr(),
            limit_ns: self.limit.as_nanos() as u64,
            access_bytes: pattern.access_bytes,
            stride_bytes: pattern.stride_bytes,
            laps: laps.count,
            each_lap: laps.end as u32,
            value: u32::from_ne_bytes([value; 4]),
            lap_bytes: laps.bytes,
        })
    }

    /// Whether the first, the last and some of the accesses between them are found in memory.
    fn stored(&self, target: Target, p: Pattern, accesses: u64) -> Result<bool, CliError> {
        let looks = accesses.min(64);
        for look in 0..looks {
            let i = if looks < 2 { 0 } else { look * (accesses - 1) / (looks - 1) };
            let at = u64::from(p.offset_bytes) + i * u64::from(p.stride_bytes);
            let mut found = vec![0; p.access_bytes as usize];
            self.memory(target)?.read(at as usize, &mut found).map_err(bug)?;
            if found.iter().any(|byte| *byte != self.value) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn memory(&self, target: Target) -> Result<&dyn Dma, CliError> {
        Ok(match target {
            Target::Local => &*self.local,
            Target::Peer => &*self.peer()?.memory,
            Target::Host => &self.host_view,
        })
    }

    fn fill(&mut self, target: Target) -> Result<(), CliError> {
        if self.filled.contains(&target) {
            return Ok(());
        }
        let bytes = vec![LOADED; FILL_BYTES.min(self.scale.span_bytes as usize)];
        let memory = self.memory(target)?;
        for at in (0..self.scale.span_bytes as usize).step_by(bytes.len()) {
            memory.write(at, &bytes).map_err(bug)?;
        }
        self.filled.push(target);
        self.touch(target)?;
        if target == Target::Host {
            // Its start, or all of it where the cache is large, is still in a cache.
            self.host.host().evict(0, self.scale.span_bytes as usize);
        }
        Ok(())
    }

    /// Loads all of a memory once. The first loads are slower, presumably for the page walks
    /// (docs/results/link-h200.md).
    fn touch(&self, target: Target) -> Result<(), CliError> {
        let (blocks, threads) =
            if self.gpu.is_host() { (1, 32) } else { (self.gpu.describe().sms, 512) };
        let accesses = self.scale.span_bytes / 16;
        let laps = Laps { accesses, count: 1, bytes: 0, end: LinkLap::RunOn };
        let args = self.arguments(target, Pattern::dense(blocks, threads), laps, 0)?;
        self.launch(&self.kernels.load, blocks, threads, &args).map(|_| ())
    }

    fn chase(&mut self, target: Target) -> Result<(f64, bool), CliError> {
        // The chain needs 1 MiB of zeros: larger than a GPU's L1, and within the TLBs of GPU and
        // CPU.
        let span_bytes = 1 << 20;
        let zeros = vec![0; span_bytes as usize];
        self.filled.retain(|filled| *filled != target);
        self.memory(target)?.write(0, &zeros).map_err(bug)?;
        let args = LinkChaseArgs {
            target: self.address(target)?,
            span_bytes,
            results: self.results.addr(),
            limit_ns: self.limit.as_nanos() as u64,
            count: self.scale.laps,
            stride_bytes: 128,
        };
        let results = self.launch(&self.kernels.chase, 1, 1, &args)?;
        // Address at which a chain of this length ends.
        let end = u64::from(args.count) * 128 % span_bytes;
        Ok((elapsed_ns(&results) / f64::from(args.count), results[0].sum == end))
    }

    fn round_trip(&self, target: Target) -> Result<(f64, bool), CliError> {
        let rounds = self.scale.laps;
        let mut args = LinkFlagArgs {
            store_at: self.flags.addr(),
            watch_at: self.flags.addr() + ANSWER as u64,
            results: self.results.addr(),
            limit_ns: self.limit.as_nanos() as u64,
            rounds,
            answers: 0,
        };
        if target == Target::Host {
            let page = self.flags.host();
            page.fill(0, PAGE_BYTES, 0).map_err(bug)?;
            self.clear(&self.results)?;
            launch(&self.stream, &self.kernels.flag, Dims::new(1, 1), &args)?;
            let answered = answer(page, u64::from(rounds), self.limit).map_err(bug)?;
            let results = self.collect(&self.stream, &self.results, 1)?;
            return Ok((elapsed_ns(&results) / f64::from(rounds), answered));
        }
        let peer = self.peer()?;
        for flag in [&self.local_flag, &peer.local_flag] {
            flag.copy_in(0, &[0; 8])?;
        }
        self.clear(&self.results)?;
        self.clear(&peer.results)?;
        args.store_at = peer.local_flag.addr();
        args.watch_at = self.local_flag.addr();
        let answers = LinkFlagArgs {
            store_at: self.local_flag.addr(),
            watch_at: peer.local_flag.addr(),
            results: peer.results.addr(),
            answers: 1,
            ..args
        };
        launch(&peer.stream, &peer.flag, Dims::new(1, 1), &answers)?;
        launch(&self.stream, &self.kernels.flag, Dims::new(1, 1), &args)?;
        let results = self.collect(&self.stream, &self.results, 1)?;
        let theirs = self.collect(&peer.stream, &peer.results, 1)?;
        Ok((elapsed_ns(&results) / f64::from(rounds), theirs[0].laps == rounds))
    }

    fn clear(&self, results: &DeviceMem) -> Result<(), CliError> {
        let zeros = vec![0; MAX_BLOCKS * size_of::<LinkResult>()];
        Ok(results.copy_in(0, &zeros)?)
    }

    fn launch<A: KernelArgs>(
        &self,
        kernel: &Kernel,
        blocks: u32,
        threads: u32,
        args: &A,
    ) -> Result<Vec<LinkResult>, CliError> {
        self.clear(&self.results)?;
        launch(&self.stream, kernel, Dims::new(blocks, threads), args)?;
        self.collect(&self.stream, &self.results, blocks)
    }

    /// Waits for a kernel and reads the results of its blocks.
    fn collect(
        &self,
        stream: &Stream,
        from: &DeviceMem,
        blocks: u32,
    ) -> Result<Vec<LinkResult>, CliError> {
        stream.synchronize(self.limit * 2 + Duration::from_secs(10))?;
        let mut raw = vec![0; blocks as usize * size_of::<LinkResult>()];
        from.copy_out(0, &mut raw)?;
        let results: Vec<LinkResult> =
            raw.chunks_exact(size_of::<LinkResult>()).map(bytemuck::pod_read_unaligned).collect();
        for result in &results {
            Code::check(result.status).map_err(|code| {
                CliError::new(
                    format!("a measurement did not end: {code} after {} laps", result.laps),
                    "give a longer --timeout-ms",
                )
            })?;
        }
        Ok(results)
    }
}

impl Peer {
    fn new(gpu: &Arc<Gpu>, other: Arc<Gpu>, span: usize) -> Result<Self, CliError> {
        gpu.enable_peer(&other)?;
        other.enable_peer(gpu)?;
        Ok(Self {
            stream: other.stream()?,
            flag: other.load(&Module::builtin())?.kernel("bp_link_flag")?,
            memory: other.alloc(span)?,
            local_flag: other.alloc(PAGE_BYTES)?,
            results: other.alloc(MAX_BLOCKS * size_of::<LinkResult>())?,
            gpu: other,
        })
    }
}

/// From the first block's start to the last one's end.
fn elapsed_ns(results: &[LinkResult]) -> f64 {
    let start = results.iter().map(|r| r.start_ns).min().unwrap_or(0);
    let end = results.iter().map(|r| r.end_ns).max().unwrap_or(0);
    end.saturating_sub(start).max(1) as f64
}

/// The CPU's half of the round trips; false when a flag did not arrive in time.
fn answer(page: &HostMem, rounds: u64, limit: Duration) -> Result<bool, MemError> {
    for round in 1..=rounds {
        let (mut since, mut looks) = (None, 0u32);
        // Acquire and release order nothing but the flags themselves here.
        while page.load_u64(0, Ordering::Acquire)? < round {
            std::hint::spin_loop();
            looks += 1;
            // The clock is read only now and then: it takes longer than a poll.
            if looks % 64 == 0 && since.get_or_insert_with(Instant::now).elapsed() > limit {
                return Ok(false);
            }
        }
        page.store_u64(ANSWER, round, Ordering::Release)?;
    }
    Ok(true)
}
