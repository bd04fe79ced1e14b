//! What it costs to build a WQE: in Rust, and by the device code, compiled for the host executor.
//!
//! The device code's rows contain the launch of one lane, spread over a ring of WQEs, and say
//! nothing about a GPU. Both must build the same bytes, which is checked before anything is timed.
//!
//! Aims: 20 M WQE/s in Rust, 10 M by the device code.
#![allow(missing_docs)]

mod aim;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bellpush::abi::entry::OpArgs;
use bellpush::gpu::{DeviceMem, Dims, Executor, Gpu, HostOptions, Kernel, Module, Stream};
use bellpush::wire::wqe::{Opcode, Piece, SendWr, Sge, WQEBB_BYTES};
use bellpush::wire::{Iova, Lkey, Qpn, Rkey};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};

const RING_BLOCKS: usize = 1 << 15;
const COUNT: usize = 8192;
const QPN: Qpn = Qpn(0x100);
const REMOTE: u64 = 0x7000_0000_0000;
const PATIENCE: Duration = Duration::from_secs(60);

/// How the payload is named: by a gather entry, or in the WQE itself.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    kernel: &'static str,
    bytes: usize,
    inline: bool,
}

const SHAPES: [Shape; 3] = [
    Shape { name: "write_gather", kernel: "bp_build_gather", bytes: 4096, inline: false },
    Shape { name: "write_inline_8B", kernel: "bp_build_inline", bytes: 8, inline: true },
    Shape { name: "write_inline_220B", kernel: "bp_build_inline", bytes: 220, inline: true },
];

/// Builds the ring in Rust and returns its bytes in use.
fn in_rust(shape: Shape, gather: u64, data: &[u8], ring: &mut [u8]) -> usize {
    let (mut at, mut index) = (0, 0);
    for n in 0..COUNT as u64 {
        let payload = [match shape.inline {
            true => Piece::Inline(&data[..shape.bytes]),
            false => {
                let (addr, bytes) = (Iova(gather), shape.bytes as u32);
                Piece::Data(Sge { addr, lkey: Lkey(0x1234), bytes })
            }
        }];
        let to = Iova(REMOTE + n * 64);
        let wr = SendWr::new(Opcode::RdmaWrite).to(to, Rkey(0x5678)).payload(&payload);
        let blocks = wr.emit(index, QPN, &mut ring[at..]).expect("the ring is long enough");
        at += blocks as usize * WQEBB_BYTES;
        index = index.wrapping_add(blocks as u16);
    }
    at
}

/// Has device code build the ring.
fn by_device_code(stream: &Stream, kernel: &Kernel, shape: Shape, ring: &DeviceMem, data: u64) {
    let mut args: OpArgs = bytemuck::Zeroable::zeroed();
    args.ep.qp.sq = ring.addr();
    args.ep.qp.sq_log = RING_BLOCKS.ilog2();
    args.ep.qp.qpn = QPN.0;
    args.ep.local_lkey = 0x1234;
    args.ep.remote_iova = REMOTE;
    args.ep.remote_rkey = 0x5678;
    args.count = COUNT as u32;
    args.remote_stride = 64;
    args.local = data;
    args.bytes = shape.bytes as u64;
    // SAFETY: the ring is the caller's, and the kernel is waited for; `data` is only written down.
    let launched = unsafe { stream.launch(kernel, Dims::new(1, 1), &args) };
    launched.expect("the kernel can be launched");
    stream.synchronize(PATIENCE).expect("the kernel ends");
}

fn wqe(c: &mut Criterion) {
    let gpu =
        Gpu::open(Executor::Host(HostOptions::default())).expect("the host executor is there");
    let stream = gpu.stream().expect("a stream");
    let module = gpu.load(&Module::builtin()).expect("the kernels are linked");
    let memory: Arc<DeviceMem> = gpu.alloc(RING_BLOCKS * WQEBB_BYTES).expect("memory");
    let source = gpu.alloc(4096).expect("memory");
    let data: Vec<u8> = (0..4096u32).map(|i| ((i * 5) >> 1) as u8).collect();
    source.copy_in(0, &data).expect("the range fits");
    let mut ring = vec![0; RING_BLOCKS * WQEBB_BYTES];

    let mut group: BenchmarkGroup<'_, WallTime> = c.benchmark_group("wqe");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(300));
    group.sample_size(20).throughput(Throughput::Elements(COUNT as u64));
    for shape in SHAPES {
        let kernel = module.kernel(shape.kernel).expect("the kernel is built in");
        let used = in_rust(shape, source.addr(), &data, &mut ring);
        by_device_code(&stream, &kernel, shape, &memory, source.addr());
        let mut built = vec![0; used];
        memory.copy_out(0, &mut built).expect("the range fits");
        assert!(built == ring[..used], "{}: device code and Rust build other bytes", shape.name);

        group.bench_function(format!("{}/rust", shape.name), |b| {
            let once = || in_rust(shape, source.addr(), &data, std::hint::black_box(&mut ring));
            aim::iter(b, "rust", COUNT as u64, once);
        });
        group.bench_function(format!("{}/device_code_on_host", shape.name), |b| {
            b.iter_custom(|iters| {
                let start = Instant::now();
                for _ in 0..iters {
                    by_device_code(&stream, &kernel, shape, &memory, source.addr());
                }
                let spent = start.elapsed();
                aim::note("device code", COUNT as u64 * iters, spent);
                spent
            });
        });
    }
    group.finish();
}

fn main() -> ExitCode {
    let mut c = Criterion::default().configure_from_args();
    wqe(&mut c);
    c.final_summary();
    let mut aims = aim::Aims::default();
    for (name, wanted) in [("rust", 20.0), ("device code", 10.0)] {
        aims.at_least(name, aim::rate(name).map(|rate| rate / 1e6), wanted, "M WQE/s");
    }
    aims.end()
}
