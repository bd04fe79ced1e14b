//! All-reduce among ranks that are threads of this process: every element checked, and timed.
//!
//! ```text
//! cargo run --release --example allreduce -- --ranks 4 --executor host --sizes 8,4100,1048580
//! ```
//!
//! With `--executor cuda` rank r has GPU r modulo the number of GPUs. The NIC is the software NIC, one
//! a rank; its engines run on CPU threads. Exit status 1 on any wrong element.

mod check;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use bellpush::collective::{Algorithm, Communicator, Dtype, Op, Options};
use bellpush::gpu::{Executor, Gpu, HostOptions};
use bellpush::nic::Nic;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::report::{machine, size};
use bellpush::transport::{Data, Kick, Memory, Path};
use check::Kind;
use clap::Parser;
use serde::Serialize;

type Failure = Box<dyn Error + Send + Sync>;

/// All-reduce with sends that kernels post.
#[derive(Debug, Clone, Parser)]
struct Args {
    /// Ranks, each a thread of this process
    #[arg(long, default_value_t = 2)]
    ranks: u32,
    /// What runs the kernels
    #[arg(long, default_value = "host", value_parser = ["host", "cuda"])]
    executor: String,
    /// Bytes a rank, such as 8,4100,1MiB or 4KiB..64KiB (powers of two)
    #[arg(long, default_value = "8,4100,1048580")]
    sizes: String,
    /// one-shot, two-shot or ring [default: by size]
    #[arg(long)]
    algorithm: Option<Algorithm>,
    /// push or pull
    #[arg(long, default_value = "push")]
    data: Data,
    /// kernel, blueflame or inband [default: inband for push, kernel for pull]
    #[arg(long)]
    kick: Option<Kick>,
    /// sum, max, min or mean
    #[arg(long, default_value = "sum")]
    op: Op,
    /// f32, f16, bf16 or i32
    #[arg(long, default_value = "f32")]
    dtype: Dtype,
    /// Timed calls of each size [default: by size]
    #[arg(long)]
    calls: Option<u32>,
    /// Blocks a launch at most
    #[arg(long)]
    channels: Option<u32>,
    /// Payload of a message at most, such as 64KiB
    #[arg(long)]
    chunk: Option<String>,
    /// Engine threads of each rank's NIC
    #[arg(long, default_value_t = 1)]
    engines: usize,
    /// Input and output in the same memory
    #[arg(long)]
    in_place: bool,
    /// Bound of each wait, in seconds
    #[arg(long, default_value_t = 10.0)]
    timeout: f64,
    /// Seed of the elements
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write results here (- for stdout)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One size.
#[derive(Debug, Clone, Serialize)]
struct Row {
    bytes: u64,
    count: u64,
    dtype: String,
    op: String,
    algorithm: String,
    channels: u32,
    ranks: u32,
    data: String,
    kick: Option<String>,
    executor: String,
    calls: u32,
    /// Median and least of the slowest rank's times of a call, in µs.
    time_us: f64,
    least_us: f64,
    /// Bus bandwidth, 2 (N - 1) / N bytes a time, in GB/s.
    bus_gb_s: f64,
    verified: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("allreduce: {why}");
            ExitCode::FAILURE
        }
    }
}

fn options(args: &Args) -> Result<Options, Failure> {
    let usual = if args.data == Data::Push { Kick::Inband } else { Kick::Kernel };
    let mut options = Options::new(Path::new(args.data, args.kick.unwrap_or(usual))?);
    options.algorithm = args.algorithm;
    options.timeout = Duration::try_from_secs_f64(args.timeout)?;
    options.channels = args.channels.unwrap_or(if args.executor == "host" { 1 } else { 8 });
    if let Some(chunk) = &args.chunk {
        options.chunk_bytes = u32::try_from(size::parse(chunk)?)?;
    }
    Ok(options)
}

/// A GPU and a NIC for each rank.
fn places(args: &Args) -> Result<Vec<(Arc<Gpu>, Arc<dyn Nic>)>, Failure> {
    let gpus = match args.executor.as_str() {
        "host" => vec![Gpu::open(Executor::Host(HostOptions::default()))?],
        _ => {
            let count = Gpu::cuda_count()?.min(args.ranks as usize);
            let open = |n| Gpu::open(Executor::Cuda(n));
            (0..count).map(open).collect::<Result<_, _>>()?
        }
    };
    let link = InProcess::new();
    let config = SoftConfig { engines: args.engines, ..SoftConfig::new(&link) };
    let place = |rank: u32| -> Result<(Arc<Gpu>, Arc<dyn Nic>), Failure> {
        Ok((gpus[rank as usize % gpus.len()].clone(), SoftNic::open(config.clone())?))
    };
    (0..args.ranks).map(place).collect()
}

fn run(args: &Args) -> Result<(), Failure> {
    let sizes = size::parse_list(&args.sizes)?;
    let options = options(args)?;
    let places = places(args)?;
    let Some((gpu, _)) = places.first() else { return Err("--ranks 0 has nothing to do".into()) };
    let executor = gpu.describe().to_string();
    let nic = bellpush::report::Nic { name: "soft".into(), software: true };
    let meta = machine::meta(nic, &executor, args.seed);

    let communicators = Communicator::threads(&places, &options)?;
    let barrier = Arc::new(Barrier::new(communicators.len()));
    println!(
        "{} ranks on {executor}, {}, software NIC with {} engine thread(s) a rank",
        args.ranks, options.path, args.engines
    );
    println!("{:>12} {:>10} {:>9} {:>12} {:>10}", "bytes", "algorithm", "channels", "µs", "GB/s bus");
    let mut rows = Vec::new();
    for &bytes in &sizes {
        let count = (bytes / args.dtype.bytes()).max(1);
        let results: Vec<Result<Measured, Failure>> = std::thread::scope(|scope| {
            let ranks = communicators.iter().zip(&places);
            let threads: Vec<_> = ranks
                .map(|(communicator, (gpu, _))| {
                    let barrier = barrier.clone();
                    scope.spawn(move || measure(args, communicator, gpu, count, &barrier))
                })
                .collect();
            let ended = |t: std::thread::ScopedJoinHandle<'_, _>| {
                t.join().unwrap_or_else(|_| Err("a rank's thread panicked".into()))
            };
            threads.into_iter().map(ended).collect()
        });
        let measured: Vec<Measured> = results.into_iter().collect::<Result<_, _>>()?;
        verify(args, count, &measured)?;
        let row = row(args, &communicators[0], &options, &executor, count, &measured);
        println!(
            "{:>12} {:>10} {:>9} {:>12.1} {:>10.3}",
            row.bytes, row.algorithm, row.channels, row.time_us, row.bus_gb_s
        );
        rows.push(row);
    }
    if let Some(file) = &args.json {
        let all = serde_json::json!({ "meta": meta, "results": rows });
        let text = serde_json::to_string_pretty(&all)? + "\n";
        if file.as_os_str() == "-" {
            print!("{text}");
        } else {
            std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))?;
        }
    }
    Ok(())
}

/// What one rank brings home.
struct Measured {
    /// ns a call, by batch.
    batches: Vec<u64>,
    output: Vec<u8>,
}

/// Calls of one size by one rank: one to warm up, which is the one checked, then batches, timed.
fn measure(
    args: &Args,
    communicator: &Communicator,
    gpu: &Arc<Gpu>,
    count: u64,
    barrier: &Barrier,
) -> Result<Measured, Failure> {
    // A rank that fails must still meet the others.
    let mut result = prepare(args, communicator, gpu, count);
    let batches = 5;
    for batch in 0..=batches {
        barrier.wait();
        if let Ok((prepared, measured)) = &mut result {
            let calls = if batch == 0 { 1 } else { calls(args, count) };
            match prepared.call(args, communicator, count, calls) {
                Ok(ns) if batch > 0 => measured.batches.push(ns / u64::from(calls)),
                Ok(_) => {
                    measured.output = vec![0; (count * args.dtype.bytes()) as usize];
                    prepared.output.read(0, &mut measured.output)?;
                }
                Err(why) => result = Err(why),
            }
        }
    }
    result.map(|(_, measured)| measured)
}

struct Prepared {
    stream: bellpush::gpu::Stream,
    input: Memory,
    output: Memory,
}

fn prepare(
    args: &Args,
    communicator: &Communicator,
    gpu: &Arc<Gpu>,
    count: u64,
) -> Result<(Prepared, Measured), Failure> {
    let bytes = (count * args.dtype.bytes()) as usize;
    let input = Memory::from(gpu.alloc(bytes)?);
    let output = if args.in_place { input.clone() } else { gpu.alloc(bytes)?.into() };
    let elements =
        check::elements(args.dtype, count as usize, Kind::Random, args.seed, communicator.rank());
    input.write(0, &elements)?;
    let prepared = Prepared { stream: gpu.stream()?, input, output };
    Ok((prepared, Measured { batches: Vec::new(), output: Vec::new() }))
}

impl Prepared {
    /// ns of `calls` calls in a row.
    fn call(
        &self,
        args: &Args,
        communicator: &Communicator,
        count: u64,
        calls: u32,
    ) -> Result<u64, Failure> {
        let since = Instant::now();
        for _ in 0..calls {
            let (input, output) = (&self.input, &self.output);
            communicator.all_reduce(&self.stream, input, output, count, args.dtype, args.op)?;
        }
        communicator.synchronize(&self.stream)?;
        Ok(u64::try_from(since.elapsed().as_nanos())?)
    }
}

fn calls(args: &Args, count: u64) -> u32 {
    let bytes = count * args.dtype.bytes();
    let most = if args.executor == "host" { 20 } else { 200 };
    let usual = ((64u64 << 20) / bytes.max(1)).clamp(2, most) as u32;
    args.calls.unwrap_or(usual).max(1)
}

/// Every element of every rank, and that all ranks have the same bits.
fn verify(args: &Args, count: u64, measured: &[Measured]) -> Result<(), Failure> {
    let elements =
        |rank| check::elements(args.dtype, count as usize, Kind::Random, args.seed, rank);
    let inputs: Vec<_> = (0..args.ranks).map(elements).collect();
    check::check(args.dtype, args.op, &inputs, &measured[0].output)
        .map_err(|why| format!("{count} elements, rank 0: {why}"))?;
    for (rank, other) in measured.iter().enumerate() {
        if other.output != measured[0].output {
            return Err(format!("{count} elements: rank {rank} has other bits than rank 0").into());
        }
    }
    Ok(())
}

fn row(
    args: &Args,
    communicator: &Communicator,
    options: &Options,
    executor: &str,
    count: u64,
    measured: &[Measured],
) -> Row {
    let batches = measured.iter().map(|m| m.batches.len()).min().unwrap_or(0);
    let slowest = |b: usize| measured.iter().map(|m| m.batches[b]).max().unwrap_or(0);
    let mut times: Vec<u64> = (0..batches).map(slowest).collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or(0);
    let plan = communicator.plan(count, args.dtype, args.op);
    let bytes = count * args.dtype.bytes();
    let ranks = f64::from(args.ranks);
    Row {
        bytes,
        count,
        dtype: args.dtype.to_string(),
        op: args.op.to_string(),
        algorithm: plan.algorithm.to_string(),
        channels: plan.channels,
        ranks: args.ranks,
        data: options.path.data().to_string(),
        kick: options.path.kick().map(|k| k.to_string()),
        executor: executor.into(),
        calls: calls(args, count),
        time_us: median as f64 / 1e3,
        least_us: times.first().copied().unwrap_or(0) as f64 / 1e3,
        bus_gb_s: 2.0 * (ranks - 1.0) / ranks * bytes as f64 / median.max(1) as f64,
        verified: true,
    }
}
