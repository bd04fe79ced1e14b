//! The sending side of a row: endpoints of one path, and the kernel or the host that posts on them.

use std::time::{Duration, Instant};

use bellpush::abi::bench::{
    AutoBenchArgs, BENCH_MAX_AUTO_ENDPOINTS, BENCH_MAX_ENDPOINTS, BLOCKS_STATE_BYTES, BenchArgs,
    BenchResult, BenchRows, BlocksBenchArgs,
};
use bellpush::abi::wire::Code;
use bellpush::gpu::{Dims, Kernel, Module};
use bellpush::nic::LineFormat;
use bellpush::transport::{
    Endpoint, Error, Kick, Local, Memory, Options, Path, Put, Reach, Remote,
};
use bellpush_cli::report;
use serde::{Deserialize, Serialize};

use super::payload::Payload;
use super::test_bed::TestBed;
use crate::launch::launch;

/// Parameters that all rows share.
pub struct Ask {
    pub options: Options,
    pub qps: usize,
    pub messages: u64,
    pub in_flight: u32,
    pub blocks: u32,
    pub callers: Callers,
    pub limit: Duration,
}

/// From one message to the next, at both ends.
pub fn stride(size: usize) -> usize {
    size.next_multiple_of(64)
}

/// What a round measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The time of each message.
    Latency,
    /// The rate of all of them.
    Streaming,
}

/// Kernels of paths that several blocks post by together.
const BY_BLOCKS: [&str; 3] = ["push_kernel", "push_inband_12_4", "push_inband_60_4"];

/// Endpoints of one path, ready to send.
pub struct Sender<'a> {
    pub(super) bed: &'a TestBed,
    pub(super) path: Path,
    pub(super) endpoints: Vec<Endpoint>,
    kernel: Option<Kernel>,
    /// What takes turns with the peer's kernel; `None` where the host posts.
    pub(super) turns: Option<Kernel>,
    /// What the kernel's fence before a doorbell reaches; `None` where the host posts.
    pub reach: Option<Reach>,
    in_flight: u32,
    pub(super) is_auto: bool,
    /// Threads of a block on the host executor: lanes on one processor would only take turns, but four of them write
    /// a line of 60+4.
    least: u32,
    /// Several blocks that post together, and the state that they share.
    blocks: Option<(u32, Memory)>,
    callers: Callers,
}

/// Who posts: the kernel's block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    /// As many threads as the size wants: a warp, then more.
    BySize,
    /// One thread.
    Thread,
    /// A warp.
    Warp,
    /// More than a warp, as many as the size wants.
    Block,
}

/// Paths that have kernels of a thread and a warp; of the others a block is measured that is no longer.
const BY_CALLERS: [&str; 15] = [
    "push_kernel",
    "push_blueflame",
    "push_inband_12_4",
    "push_inband_14_2",
    "pull_kernel",
    "pull_blueflame",
    "push_kernel_near",
    "pull_kernel_near",
    "push_kernel_strict",
    "push_blueflame_strict",
    "pull_kernel_strict",
    "pull_blueflame_strict",
    "auto",
    "auto_near",
    "auto_strict",
];

impl Callers {
    /// The kernel of a path: one whose calls have this scope, as a program's would. Those that write marks are blocks'.
    fn kernel(self, kind: &str, path: &str) -> String {
        match self {
            Self::Thread if BY_CALLERS.contains(&path) => format!("bp_bench_thread_{path}"),
            Self::Warp if BY_CALLERS.contains(&path) => format!("bp_bench_warp_{path}"),
            _ => format!("bp_{kind}_{path}"),
        }
    }

    fn threads(self, size: usize) -> u32 {
        match (self, size) {
            (Self::Thread, _) => 1,
            (Self::Warp, _) | (Self::BySize, ..=512) => 32,
            (_, ..=4096) => 128,
            _ => 512,
        }
    }
}

impl<'a> Sender<'a> {
    /// Over these endpoints, whose local region is the bed's source, and which are connected before the first message.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where no kernel does what is asked for; what the GPU refuses.
    pub fn new(
        bed: &'a TestBed,
        path: Path,
        ask: &Ask,
        endpoints: Vec<Endpoint>,
    ) -> Result<Self, Error> {
        // All senders are alike: the same places, the same source.
        let reach = endpoints[0].reach();
        let reach_of_kernels = path.posted_by_gpu().then_some(reach);
        let kind = if bed.marks.is_some() { "marked" } else { "bench" };
        let kernel = match path.kernel_name(ask.options.line, bed.nic.order(), reach) {
            name if ask.blocks > 1 => {
                let name = name.filter(|name| BY_BLOCKS.contains(name)).ok_or({
                    let (what, why) = (
                        "be posted by several blocks",
                        "take push/kernel or push/inband of 12+4 or 60+4",
                    );
                    Error::Unsupported { path, what, why }
                })?;
                let name = format!("bp_{kind}_blocks_{name}");
                Some(bed.gpu.load(&Module::builtin())?.kernel(&name)?)
            }
            Some(name) => {
                let module = bed.gpu.load(&Module::builtin())?;
                Some(module.kernel(&ask.callers.kernel(kind, name))?)
            }
            None if path == Path::AUTO => {
                let (what, why) = ("be measured with these lines", "take --line 12+4");
                return Err(Error::Unsupported { path, what, why });
            }
            None => None,
        };
        // Blocks have a queue pair to themselves, which no single one of them may use.
        let turns = match path.kernel_name(ask.options.line, bed.nic.order(), reach) {
            Some(name) if ask.blocks == 1 => {
                Some(bed.gpu.load(&Module::builtin())?.kernel(&format!("bp_turns_{name}"))?)
            }
            _ => None,
        };
        let is_auto = path == Path::AUTO;
        if is_auto && endpoints.len() > BENCH_MAX_AUTO_ENDPOINTS {
            let (what, why) = ("be measured with so many queue pairs", "take --qps 6 or fewer");
            return Err(Error::Unsupported { path, what, why });
        }
        let blocks = if ask.blocks > 1 {
            let state = Memory::Device(bed.gpu.alloc(BLOCKS_STATE_BYTES)?);
            state.write(0, &[0; BLOCKS_STATE_BYTES])?;
            Some((ask.blocks, state))
        } else {
            None
        };
        let by_four = path.kick() == Some(Kick::Inband) && ask.options.line == LineFormat::L60S4;
        let least = if by_four { 4 } else { 1 };
        let in_flight = ask.in_flight;
        let (reach, callers) = (reach_of_kernels, ask.callers);
        Ok(Self {
            bed,
            path,
            endpoints,
            kernel,
            turns,
            reach,
            in_flight,
            is_auto,
            least,
            blocks,
            callers,
        })
    }

    /// Endpoints of a path: tcp has one connection, the others as many queue pairs as are asked for.
    pub fn endpoints(path: Path, ask: &Ask) -> usize {
        if path == Path::TCP { 1 } else { ask.qps }
    }

    /// Fills the source with messages, the first of which has the number `first`; what is in it then.
    pub fn fill(
        &self,
        size: usize,
        n: u32,
        first: u64,
        payload: &Payload,
    ) -> Result<Vec<u8>, Error> {
        let stride = stride(size);
        let mut sent = vec![0; stride * n as usize];
        for (i, message) in sent.chunks_exact_mut(stride).enumerate() {
            payload.fill(first + i as u64, &mut message[..size]);
        }
        self.bed.src.write(0, &sent)?;
        Ok(sent)
    }

    /// Sends the first `n` messages of the source, and waits until they are complete.
    ///
    /// # Errors
    /// How many were posted, and what ended the round.
    pub fn send(
        &self,
        size: usize,
        n: u32,
        phase: Option<Phase>,
        latencies: &mut Vec<u64>,
    ) -> Result<(u32, Duration), (u32, String)> {
        match &self.kernel {
            Some(kernel) => self.by_kernel(kernel, size, n, phase, latencies),
            None => self.by_host(size, n, phase, latencies),
        }
    }

    /// Largest number of window slots in use at once, of any endpoint.
    pub fn max_credits(&self) -> Result<u32, Error> {
        let mut each = self.endpoints.iter().map(Endpoint::max_credits_in_use);
        each.try_fold(0, |most, it| it.map(|it| most.max(it)))
    }

    /// Threads of the block that posts.
    pub(super) fn threads(&self, size: usize) -> u32 {
        match self.bed.gpu.is_host() {
            true => self.least,
            false => self.callers.threads(size),
        }
    }

    /// The timeout bounds each of a kernel's waits, and the first that fails ends the kernel.
    pub(super) fn bound(&self) -> Duration {
        self.bed.timeout.saturating_mul(3).saturating_add(Duration::from_secs(60))
    }

    /// What a kernel left in the bed's result, or what ended it and how many messages it had posted.
    pub(super) fn result(&self) -> Result<BenchResult, (u32, String)> {
        let mut raw = [0; size_of::<BenchResult>()];
        let result = Memory::Host(self.bed.result.clone());
        result.read(0, &mut raw).map_err(|e| (0, e.to_string()))?;
        let result: BenchResult = bytemuck::pod_read_unaligned(&raw);
        if let Err(code) = Code::check(result.status) {
            let mut reasons = self.endpoints.iter().filter_map(Endpoint::failure);
            let reason = reasons.next().map(|e| e.to_string());
            return Err((result.posted, reason.unwrap_or_else(|| code.to_string())));
        }
        Ok(result)
    }

    /// The first `n` of the bed's ticks in nanoseconds.
    pub(super) fn ticks(&self, n: usize, result: &BenchResult) -> Result<Vec<u64>, Error> {
        let mut raw = vec![0; n * 8];
        self.bed.ticks.read(0, &mut raw)?;
        let ns = result.end_ns.saturating_sub(result.start_ns);
        let ticks = result.end_ticks.saturating_sub(result.start_ticks).max(1);
        let scale = ns as f64 / ticks as f64;
        let tick = |tick: &[u8]| u64::from_ne_bytes(tick.try_into().expect("eight bytes"));
        Ok(raw.chunks_exact(8).map(|it| (tick(it) as f64 * scale).round() as u64).collect())
    }

    /// A round that a kernel posts, timed by the GPU's clock.
    fn by_kernel(
        &self,
        kernel: &Kernel,
        size: usize,
        n: u32,
        phase: Option<Phase>,
        latencies: &mut Vec<u64>,
    ) -> Result<(u32, Duration), (u32, String)> {
        let fail = |e: &dyn std::fmt::Display| (0, e.to_string());
        let mut rows: BenchRows = bytemuck::Zeroable::zeroed();
        let stride = stride(size);
        rows.endpoints = self.endpoints.len().min(BENCH_MAX_ENDPOINTS) as u32;
        rows.messages = n;
        let row = self.in_flight.min(n);
        rows.each_quiet = if phase == Some(Phase::Streaming) { 0 } else { row };
        rows.ring_every = (32768 / size).clamp(1, 32) as u32;
        rows.src = self.bed.src.addr();
        rows.stride = stride as u64;
        rows.bytes = size as u64;
        rows.ticks = self.bed.ticks.addr();
        rows.result = self.bed.result.addr();
        if let Some(marks) = &self.bed.marks {
            let what = format!("{}, {}", self.path, report::size::print(size as u64));
            marks.begin(&mut rows, what);
        }
        let threads = self.threads(size);
        let (stream, dims) = (&self.bed.stream, Dims::new(1, threads));
        let senders = || self.endpoints.iter();
        let launched = if let Some((blocks, state)) = &self.blocks {
            let ep = self.endpoints[0].device().map_err(|e| fail(&e))?;
            let args = BlocksBenchArgs { ep, rows, state: state.addr() };
            launch(stream, kernel, Dims::new(*blocks, threads), &args)
        } else if self.is_auto {
            let mut args = AutoBenchArgs { rows, ..bytemuck::Zeroable::zeroed() };
            for (slot, sender) in args.ep.iter_mut().zip(senders()) {
                *slot = sender.auto_device().map_err(|e| fail(&e))?;
            }
            launch(stream, kernel, dims, &args)
        } else {
            let mut args = BenchArgs { rows, ..bytemuck::Zeroable::zeroed() };
            for (slot, sender) in args.ep.iter_mut().zip(senders()) {
                *slot = sender.device().map_err(|e| fail(&e))?;
            }
            launch(stream, kernel, dims, &args)
        };
        launched.map_err(|e| fail(&e))?;
        self.bed.stream.synchronize(self.bound()).map_err(|e| fail(&e))?;
        let result = self.result()?;
        if phase == Some(Phase::Latency) {
            // Of whole rows.
            latencies.extend(self.ticks((n / row) as usize, &result).map_err(|e| fail(&e))?);
        }
        let ns = result.end_ns.saturating_sub(result.start_ns);
        Ok((result.posted, Duration::from_nanos(ns)))
    }

    /// A round that the host posts, timed by the host's clock.
    fn by_host(
        &self,
        size: usize,
        n: u32,
        phase: Option<Phase>,
        latencies: &mut Vec<u64>,
    ) -> Result<(u32, Duration), (u32, String)> {
        let stride = stride(size) as u64;
        let streaming = phase == Some(Phase::Streaming);
        let since = Instant::now();
        let row = self.in_flight.min(n);
        let mut begun = Instant::now();
        for m in 0..n {
            // One queue pair sends the whole row, as in a kernel.
            let by = if streaming { m as usize % self.endpoints.len() } else { 0 };
            let sender = &self.endpoints[by];
            let at = u64::from(m) * stride;
            if m % row == 0 {
                begun = Instant::now();
            }
            let put = Put { from: Local(at), to: Remote(at), bytes: size as u64, signal: None };
            let mut done = sender.put(&self.bed.stream, put);
            let whole = (m + 1) % row == 0;
            if !streaming && whole {
                done = done.and_then(|()| sender.quiet(&self.bed.stream));
            }
            done.map_err(|e| (m, e.to_string()))?;
            if phase == Some(Phase::Latency) && whole {
                latencies.push(begun.elapsed().as_nanos() as u64);
            }
        }
        for sender in &self.endpoints {
            sender.quiet(&self.bed.stream).map_err(|e| (n, e.to_string()))?;
        }
        Ok((n, since.elapsed()))
    }
}
