//! Push, pull and staged side by side, posted by a kernel, over host memory near and far.
//!
//! On a CUDA GPU the time is the GPU's, between two events around the kernel; without one it is the
//! wall time of a launch on the host executor, where no ranking of paths means anything. The NIC is
//! the software NIC with a host engine: what `pull` takes there is the copy engine's time, and
//! `push/kernel` and `staged/kernel` are the same stores to the same memory.
//!
//! *near* and *far* place queues, window and destination on the GPU's NUMA node or on another one.
//! The host executor's threads belong to no node, so there the nodes go by their numbers.
//!
//! Aim: a message of 64 B in 5 µs, on whatever path, launch and all shared by 64 of them. On a GPU it is
//! twice that, since the copy engine reads what `pull` sends.
#![allow(missing_docs)]

mod aim;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bellpush::abi::bench::{BenchArgs, BenchResult};
use bellpush::abi::wire::Code;
use bellpush::gpu::{Dims, Event, Executor, Gpu, HostOptions, Kernel, Mapped, Module, Stream};
use bellpush::mem;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::nic::{Nic, Order};
use bellpush::transport::{Endpoint, Memory, Options, Path, Reach};
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkId, Criterion, Throughput};

const PATHS: [&str; 5] =
    ["push/inband", "push/blueflame", "push/kernel", "pull/kernel", "staged/kernel"];
/// Message sizes; each launch sends `MESSAGES` of one.
const SIZES: [usize; 3] = [64, 4096, 65536];
const MESSAGES: u32 = 64;
const REGION_BYTES: usize = 65536 * MESSAGES as usize;
const PATIENCE: Duration = Duration::from_secs(60);

/// The GPU's own time, between two events of a stream.
struct GpuTime {
    stream: Arc<Stream>,
    start: Event,
    end: Event,
    wall: WallTime,
}

impl Measurement for GpuTime {
    type Intermediate = ();
    /// Nanoseconds.
    type Value = u64;

    fn start(&self) {
        self.stream.record(&self.start).expect("an event can be recorded");
    }

    fn end(&self, (): ()) -> u64 {
        self.stream.record(&self.end).expect("an event can be recorded");
        self.end.wait(PATIENCE).expect("the kernels end");
        self.stream.elapsed_ns(&self.start, &self.end).expect("both were reached")
    }

    fn add(&self, a: &u64, b: &u64) -> u64 {
        a + b
    }

    fn zero(&self) -> u64 {
        0
    }

    fn to_f64(&self, ns: &u64) -> f64 {
        *ns as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        self.wall.formatter() // nanoseconds too
    }
}

/// One path over one placement of host memory, ready to be launched.
struct Lane {
    stream: Arc<Stream>,
    kernel: Kernel,
    args: BenchArgs,
    threads: u32,
    result: Mapped,
    from: Memory,
    to: Memory,
    ends: (Endpoint, Endpoint),
}

impl Lane {
    fn new(
        gpu: &Arc<Gpu>,
        stream: &Arc<Stream>,
        path: Path,
        bytes: usize,
        node: Option<usize>,
    ) -> Self {
        let say = "the benchmark's memory and endpoints can be made";
        let nic: Arc<dyn Nic> = SoftNic::open(SoftConfig::new(&InProcess::new())).expect(say);
        let from = Memory::from(gpu.alloc(REGION_BYTES).expect(say));
        let to = Memory::from(gpu.alloc_mapped(REGION_BYTES, node).expect(say));
        let result = gpu.alloc_mapped(mem::PAGE_BYTES, node).expect(say);
        let data: Vec<u8> = (0..REGION_BYTES as u32).map(|i| ((i * 3) >> 2) as u8).collect();
        from.write(0, &data).expect(say);

        let options = Options::default().host_numa(node);
        let name = path
            .kernel_name(options.line, Order::Later, Reach::System)
            .expect("a kernel posts on this path");
        let regions = (from.clone(), to.clone());
        let ends = Endpoint::pair(gpu, &nic, path, regions, options).expect(say);
        let module = gpu.load(&Module::builtin()).expect(say);
        let kernel = module.kernel(&format!("bp_bench_{name}")).expect(say);

        let mut args: BenchArgs = bytemuck::Zeroable::zeroed();
        args.ep[0] = ends.0.device().expect("the endpoint is connected");
        args.rows.endpoints = 1;
        args.rows.messages = MESSAGES;
        args.rows.ring_every = (32768 / bytes).clamp(1, 32) as u32;
        args.rows.src = from.addr();
        args.rows.stride = bytes as u64;
        args.rows.bytes = bytes as u64;
        args.rows.result = result.addr();
        // Lanes of the host executor would only take turns on one processor.
        let threads = if gpu.is_host() { 1 } else { 512 };
        Self { stream: stream.clone(), kernel, args, threads, result, from, to, ends }
    }

    /// Queues one launch.
    fn launch(&self) {
        let dims = Dims::new(1, self.threads);
        // SAFETY: what the argument names is this value's, which waits for each launch.
        let launched = unsafe { self.stream.launch(&self.kernel, dims, &self.args) };
        launched.expect("the kernel can be launched");
    }

    fn launch_and_wait(&self) {
        self.launch();
        self.stream.synchronize(PATIENCE).expect("the kernel ends");
    }

    /// Keeps what launches take, beside criterion.
    fn note(&self) {
        const LAUNCHES: u64 = 20;
        let start = std::time::Instant::now();
        (0..LAUNCHES).for_each(|_| self.launch_and_wait());
        aim::note("message", LAUNCHES * u64::from(MESSAGES), start.elapsed());
    }

    /// Every message of the last launch was accepted, and the bytes are there.
    fn check(&self, path: Path) {
        self.stream.synchronize(PATIENCE).expect("the kernels end");
        let mut raw = [0; size_of::<BenchResult>()];
        Memory::from(self.result.clone()).read(0, &mut raw).expect("the range fits");
        let result: BenchResult = bytemuck::pod_read_unaligned(&raw);
        if let Err(code) = Code::check(result.status) {
            panic!("{path}: {code}: {:?}", self.ends.0.failure());
        }
        let bytes = self.args.rows.bytes as usize * MESSAGES as usize;
        let (mut sent, mut arrived) = (vec![0; bytes], vec![0; bytes]);
        self.from.read(0, &mut sent).expect("the range fits");
        self.to.read(0, &mut arrived).expect("the range fits");
        assert!(sent == arrived, "{path}: other bytes arrived than were sent");
    }
}

/// Placements that this machine has, by name.
fn placements(gpu: &Gpu) -> Vec<(&'static str, Option<usize>)> {
    if mem::node_count() < 2 {
        eprintln!("paths: far memory is left out: this machine has one NUMA node");
        return vec![("near", None)];
    }
    match gpu.describe().pci.as_deref().and_then(mem::node_of_pci) {
        Some(near) => vec![("near", Some(near)), ("far", Some(usize::from(near == 0)))],
        None => vec![("node0", Some(0)), ("node1", Some(1))],
    }
}

fn paths<M: Measurement>(
    c: &mut Criterion<M>,
    gpu: &Arc<Gpu>,
    stream: &Arc<Stream>,
    run: fn(&Lane),
) {
    let mut group = c.benchmark_group("paths");
    group.measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(200));
    group.sample_size(10);
    for (place, node) in placements(gpu) {
        for bytes in SIZES {
            group.throughput(Throughput::Bytes(bytes as u64 * u64::from(MESSAGES)));
            for path in PATHS {
                let path: Path = path.parse().expect("a path's name");
                let lane = Lane::new(gpu, stream, path, bytes, node);
                let id = BenchmarkId::new(format!("{path}/{place}"), bytes);
                group.bench_function(id, |b| b.iter(|| run(&lane)));
                lane.launch();
                lane.check(path);
                if bytes == SIZES[0] {
                    lane.note();
                }
            }
        }
    }
    group.finish();
}

fn main() -> ExitCode {
    let on_gpu = match Gpu::open(Executor::Cuda(0)) {
        Ok(gpu) => {
            let stream = Arc::new(gpu.stream().expect("a stream"));
            let event = || gpu.event().expect("an event");
            let (start, end) = (event(), event());
            let time = GpuTime { stream: stream.clone(), start, end, wall: WallTime };
            let mut c = Criterion::default().with_measurement(time).configure_from_args();
            paths(&mut c, &gpu, &stream, Lane::launch);
            c.final_summary();
            true
        }
        Err(why) => {
            eprintln!(
                "paths: {why}: wall time on the host executor, where no ranking of paths means anything"
            );
            let gpu = Gpu::open(Executor::Host(HostOptions::default())).expect("it needs nothing");
            let stream = Arc::new(gpu.stream().expect("a stream"));
            let mut c = Criterion::default().configure_from_args();
            paths(&mut c, &gpu, &stream, Lane::launch_and_wait);
            c.final_summary();
            false
        }
    };
    let mut aims = aim::Aims::default();
    let us = aim::rate("message").map(|rate| 1e6 / rate);
    aims.at_most("a message of 64 B", us, if on_gpu { 10.0 } else { 5.0 }, "µs");
    aims.end()
}
