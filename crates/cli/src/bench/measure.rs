//! One row: messages of one size on one path, timed and verified.

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
use bellpush_cli::report::stats::Samples;

use super::payload::{Arrived, POISON, Payload, Tally};
use super::test_bed::{ROUND_MESSAGES, TestBed};
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

/// Measurements of a row.
#[derive(Default)]
pub struct Seen {
    pub posted: u64,
    pub tally: Tally,
    pub latency_ns: Option<Samples>,
    pub streamed: u64,
    pub streaming: Duration,
    pub max_credits: u32,
    /// What the kernel's fence before a doorbell reached; `None` where the host posted.
    pub reach: Option<Reach>,
    /// Reason of an early end.
    pub failure: Option<String>,
    /// SHA-256 of the received file (with `--payload`).
    pub arrived: Option<String>,
    /// Whether source bytes changed after they were sent.
    pub source_damaged: bool,
}

impl Seen {
    /// Whether every message arrived as it was sent.
    pub fn is_whole(&self) -> bool {
        self.failure.is_none()
            && !self.source_damaged
            && self.posted > 0
            && self.tally.whole == self.posted
    }
}

/// Kernels of paths that several blocks post by together.
const BY_BLOCKS: [&str; 3] = ["push_kernel", "push_inband_12_4", "push_inband_60_4"];

/// A row while it is being measured.
struct Running {
    seen: Seen,
    latencies: Vec<u64>,
    file: Option<Arrived>,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Latency,
    Streaming,
}

/// One path, ready to measure.
pub struct Lane<'a> {
    bed: &'a TestBed,
    ends: Vec<(Endpoint, Endpoint)>,
    kernel: Option<Kernel>,
    reach: Option<Reach>,
    in_flight: u32,
    is_auto: bool,
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
    /// The kernel of a path: one whose calls have this scope, as a program's would.
    fn kernel(self, path: &str) -> String {
        match self {
            Self::Thread if BY_CALLERS.contains(&path) => format!("bp_bench_thread_{path}"),
            Self::Warp if BY_CALLERS.contains(&path) => format!("bp_bench_warp_{path}"),
            _ => format!("bp_bench_{path}"),
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

impl<'a> Lane<'a> {
    pub fn new(bed: &'a TestBed, path: Path, ask: &Ask) -> Result<Self, Error> {
        let mut ends = Vec::new();
        // tcp has one connection; the number of queue pairs applies to the other paths.
        let qps = if path == Path::TCP { 1 } else { ask.qps };
        for _ in 0..qps {
            let memories = (bed.src.clone(), bed.dst.clone());
            let nics = [&bed.nic, &bed.peer];
            ends.push(Endpoint::between(&bed.gpu, nics, path, memories, &ask.options)?);
        }
        // All senders are alike: the same places, the same source.
        let reach = ends[0].0.reach();
        let reach_of_kernels = path.posted_by_gpu().then_some(reach);
        let kernel = match path.kernel_name(ask.options.line, bed.nic.order(), reach) {
            name if ask.blocks > 1 => {
                let name = name.filter(|name| BY_BLOCKS.contains(name)).ok_or({
                    let (what, why) = (
                        "be posted by several blocks",
                        "take push/kernel or push/inband of 12+4 or 60+4",
                    );
                    Error::Unsupported { path, what, why }
                })?;
                Some(bed.gpu.load(&Module::builtin())?.kernel(&format!("bp_bench_blocks_{name}"))?)
            }
            Some(name) => {
                let module = bed.gpu.load(&Module::builtin())?;
                Some(module.kernel(&ask.callers.kernel(name))?)
            }
            None if path == Path::AUTO => {
                let (what, why) = ("be measured with these lines", "take --line 12+4");
                return Err(Error::Unsupported { path, what, why });
            }
            None => None,
        };
        let is_auto = path == Path::AUTO;
        if is_auto && qps > BENCH_MAX_AUTO_ENDPOINTS {
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
        Ok(Self { bed, ends, kernel, reach, in_flight, is_auto, least, blocks, callers })
    }

    /// Latencies alone, at most `ask.messages` of them. Every byte is checked all the same.
    pub fn latencies(&self, size: usize, payload: &Payload, ask: &Ask) -> Result<Seen, Error> {
        let mut row = Running { seen: Seen::default(), latencies: Vec::new(), file: None };
        let at_once = u64::from(ask.in_flight);
        let most = (self.bed.src.bytes() / size.next_multiple_of(64)).min(ROUND_MESSAGES) as u64;
        // The first round warms up, and shows how long a message takes.
        let (mut phase, mut rows, since) = (None, 2, Instant::now());
        while row.seen.failure.is_none() {
            let begun = Instant::now();
            let left = ask.messages.saturating_sub(row.latencies.len() as u64).max(1);
            let n = (rows.min(left) * at_once).clamp(1, most.max(1));
            self.round(size, n as u32, phase, payload, &mut row)?;
            let done = row.latencies.len() as u64 >= ask.messages || since.elapsed() > ask.limit;
            if phase.is_some() && done {
                break;
            }
            phase = Some(Phase::Latency);
            if begun.elapsed() < ask.limit / 10 {
                rows *= 4;
            }
        }
        let Running { mut seen, latencies, .. } = row;
        seen.latency_ns = (!latencies.is_empty()).then(|| Samples::new(latencies));
        Ok(seen)
    }

    /// Sends and checks messages of `size` bytes.
    pub fn row(&self, size: usize, payload: &Payload, ask: &Ask) -> Result<Seen, Error> {
        let stride = size.next_multiple_of(64);
        let most = (self.bed.src.bytes() / stride).clamp(1, ROUND_MESSAGES);
        let mut row = Running {
            seen: Seen { reach: self.reach, ..Seen::default() },
            latencies: Vec::new(),
            file: match payload {
                Payload::File(bytes) => Some(Arrived::new(bytes.len())),
                Payload::Tags(_) => None,
            },
        };
        let wanted = ask.messages.max(payload.pieces(size));
        // A short first round warms up; it is verified, but not timed.
        let warm_up = (wanted / 8).min(16);
        let latency = (wanted / 4).max(1);
        let plan = [
            (None, warm_up),
            (Some(Phase::Latency), latency),
            (Some(Phase::Streaming), wanted - warm_up - latency),
        ];
        for (phase, count) in plan {
            let since = Instant::now();
            let mut left = count;
            let mut round = most.min(64) as u64;
            while left > 0 && row.seen.failure.is_none() {
                let n = round.min(left);
                let begun = Instant::now();
                self.round(size, n as u32, phase, payload, &mut row)?;
                left -= n;
                // Rounds grow until they take a tenth of the limit.
                if begun.elapsed() < ask.limit / 10 {
                    round = (round * 2).min(most as u64);
                }
                let file_done = row.seen.posted >= payload.pieces(size);
                if since.elapsed() > ask.limit / 2 && (phase != Some(Phase::Streaming) || file_done)
                {
                    break;
                }
            }
        }
        let Running { mut seen, latencies, file } = row;
        seen.arrived = file.and_then(Arrived::finish);
        seen.latency_ns = (!latencies.is_empty()).then(|| Samples::new(latencies));
        for (sender, _) in &self.ends {
            seen.max_credits = seen.max_credits.max(sender.max_credits_in_use()?);
        }
        Ok(seen)
    }

    fn round(
        &self,
        size: usize,
        n: u32,
        phase: Option<Phase>,
        payload: &Payload,
        row: &mut Running,
    ) -> Result<(), Error> {
        let stride = size.next_multiple_of(64);
        let bytes = stride * n as usize;
        let first = row.seen.posted;
        let mut sent = vec![0; bytes];
        for (i, message) in sent.chunks_exact_mut(stride).enumerate() {
            payload.fill(first + i as u64, &mut message[..size]);
        }
        self.bed.src.write(0, &sent)?;
        self.bed.dst.write(0, &vec![POISON; bytes])?;

        let outcome = match &self.kernel {
            Some(kernel) => self.by_kernel(kernel, size, n, phase, &mut row.latencies),
            None => self.by_host(size, n, phase, &mut row.latencies),
        };
        let seen = &mut row.seen;
        let (posted, took) = match outcome {
            Ok(done) => done,
            Err((posted, why)) => {
                seen.failure = Some(why);
                (posted, Duration::ZERO)
            }
        };
        if phase == Some(Phase::Streaming) && seen.failure.is_none() {
            seen.streamed += u64::from(posted);
            seen.streaming += took;
        }
        seen.posted += u64::from(posted);

        let mut got = vec![0; bytes];
        self.bed.dst.read(0, &mut got)?;
        for (i, message) in got.chunks_exact(stride).take(posted as usize).enumerate() {
            // A foreign tag may belong to a message that the failed call did not count as posted.
            let all = first + u64::from(n);
            seen.tally.count(payload.look(first + i as u64, all, &message[..size]));
            if let Some(file) = &mut row.file {
                file.take(&message[..size]);
            }
        }
        self.bed.src.read(0, &mut got)?;
        seen.source_damaged |= got != sent;
        Ok(())
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
        let stride = size.next_multiple_of(64);
        rows.endpoints = self.ends.len().min(BENCH_MAX_ENDPOINTS) as u32;
        rows.messages = n;
        let row = self.in_flight.min(n);
        rows.each_quiet = if phase == Some(Phase::Streaming) { 0 } else { row };
        rows.ring_every = (32768 / size).clamp(1, 32) as u32;
        rows.src = self.bed.src.addr();
        rows.stride = stride as u64;
        rows.bytes = size as u64;
        rows.ticks = self.bed.ticks.addr();
        rows.result = self.bed.result.addr();
        let threads = match self.bed.gpu.is_host() {
            true => self.least,
            false => self.callers.threads(size),
        };
        let (stream, dims) = (&self.bed.stream, Dims::new(1, threads));
        let senders = || self.ends.iter().map(|(sender, _)| sender);
        let launched = if let Some((blocks, state)) = &self.blocks {
            let ep = self.ends[0].0.device().map_err(|e| fail(&e))?;
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
        // The timeout bounds each of the kernel's waits, and the first that fails ends the kernel.
        let bound = self.bed.timeout.saturating_mul(3).saturating_add(Duration::from_secs(60));
        self.bed.stream.synchronize(bound).map_err(|e| fail(&e))?;

        let mut raw = [0; size_of::<BenchResult>()];
        let result = Memory::Host(self.bed.result.clone());
        result.read(0, &mut raw).map_err(|e| fail(&e))?;
        let result: BenchResult = bytemuck::pod_read_unaligned(&raw);
        if let Err(code) = Code::check(result.status) {
            let reasons = self.ends.iter().filter_map(|(sender, _)| sender.failure());
            let reason = reasons.map(|e| e.to_string()).next();
            return Err((result.posted, reason.unwrap_or_else(|| code.to_string())));
        }
        let ns = result.end_ns.saturating_sub(result.start_ns);
        let ticks = result.end_ticks.saturating_sub(result.start_ticks).max(1);
        if phase == Some(Phase::Latency) {
            let mut raw = vec![0; (n / row) as usize * 8]; // whole rows
            self.bed.ticks.read(0, &mut raw).map_err(|e| fail(&e))?;
            let scale = ns as f64 / ticks as f64;
            latencies.extend(raw.chunks_exact(8).map(|tick| {
                let tick = u64::from_ne_bytes(tick.try_into().expect("eight bytes"));
                (tick as f64 * scale).round() as u64
            }));
        }
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
        let stride = size.next_multiple_of(64) as u64;
        let streaming = phase == Some(Phase::Streaming);
        let since = Instant::now();
        let row = self.in_flight.min(n);
        let mut begun = Instant::now();
        for m in 0..n {
            // One queue pair sends the whole row, as in a kernel.
            let by = if streaming { m as usize % self.ends.len() } else { 0 };
            let sender = &self.ends[by].0;
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
        for (sender, _) in &self.ends {
            sender.quiet(&self.bed.stream).map_err(|e| (n, e.to_string()))?;
        }
        Ok((n, since.elapsed()))
    }
}
