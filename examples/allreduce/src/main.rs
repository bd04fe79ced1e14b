//! All-reduce: every element checked, and timed. Ranks are threads of this process, or processes of a
//! job that a launcher started.
//!
//! ```text
//! cargo run --release --package allreduce -- --ranks 4 --executor host --sizes 8,4100,1048580
//! BELLPUSH_ROOT=127.0.0.1 mpirun -np 4 target/release/allreduce --link shm
//! ```
//!
//! As a process it is the rank that torchrun, mpirun or Slurm says it is, and `--ranks` is not looked at. With
//! `--executor cuda` a rank has the GPU of its number on the host, modulo the number of GPUs. The NIC is the software
//! NIC, of which a thread has one and a process as many as it has cores for. Its engines run on CPU threads, or with
//! `--engine` as a kernel on a GPU (ranks as threads only): `own` on each rank's, `gpu:N` all on one. Exit status 1 on
//! any wrong element.

mod bare;
mod check;
mod meet;
mod nccl;
mod plot;
mod rank;
mod table;

use std::error::Error;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bellpush::collective::{Algorithm, Bootstrap, Dtype, Job, MAX_RANKS, Op, Options, Place};
use bellpush::gpu::{Executor, Gpu, HostOptions};
use bellpush::gpu_engine::{self, EngineOptions};
use bellpush::nic::Nic;
use bellpush::nic::soft::link::{Faults, Faulty, Link, ShmNet, UdpLink};
use bellpush::nic::soft::offload::Offload;
use bellpush::nic::soft::{InProcess, Nap, SoftConfig, SoftNic};
use bellpush::transport::{Data, Kick, Path};
use bellpush::wire::inband::LineFormat;
use bellpush_cli::report::size;
use clap::Parser;
use meet::Meeting;
use rank::{Rank, Task};
use table::Table;

type Failure = Box<dyn Error + Send + Sync>;

type Nics = Vec<Arc<dyn Nic>>;

/// All-reduce with sends that kernels post.
#[derive(Debug, Clone, Parser)]
struct Args {
    /// Ranks, each a thread of this process
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=MAX_RANKS as i64))]
    ranks: u32,
    /// What runs the kernels
    #[arg(long, default_value = "host", value_parser = ["host", "cuda"])]
    executor: String,
    /// Bytes a rank, such as 8,4100,1MiB or 4KiB..64KiB (powers of two)
    #[arg(long, default_value = "8,4100,1048580")]
    sizes: String,
    /// one-shot, two-shot, ring or ll [default: by size]
    #[arg(long)]
    algorithm: Option<Algorithm>,
    /// push or pull
    #[arg(long, default_value = "push")]
    data: Data,
    /// kernel, blueflame or inband [default: inband for push, kernel for pull]
    #[arg(long)]
    kick: Option<Kick>,
    /// Lines of in-band slots: 12+4, 14+2 or 60+4
    #[arg(long, default_value = "12+4")]
    line: LineFormat,
    /// sum, max, min or mean
    #[arg(long, default_value = "sum")]
    op: Op,
    /// f32, f16, bf16 or i32
    #[arg(long, default_value = "f32")]
    dtype: Dtype,
    /// Timed calls of each size [default: by size]
    #[arg(long)]
    calls: Option<u32>,
    /// Parts of a call at most, of one or two blocks each [default: 24; with --engine own 32; on the
    /// host executor 1]
    #[arg(long)]
    channels: Option<u32>,
    /// Bytes for which a call takes one channel more, such as 128KiB
    #[arg(long)]
    channel_bytes: Option<String>,
    /// Payload of a message at most [default: 128KiB by the number of ranks, a power of two; with --engine own 512KiB]
    #[arg(long)]
    chunk: Option<String>,
    /// Bytes of a slot of push/inband and push/kernel [default: 16KiB]
    #[arg(long)]
    slot: Option<String>,
    /// Bytes of the slots of a queue pair [default: 1MiB by the number of ranks, a power of two up to 8]
    #[arg(long)]
    window: Option<String>,
    /// Where the ranks' regions lie: gpu (an engine on the host writes there by the GPU's copy engine) or host
    /// [default: host beside a GPU with the engine on the host, else gpu]
    #[arg(long, value_parser = ["gpu", "host"])]
    region: Option<String>,
    /// Engine threads of each rank's NIC on the in-process link [default: three quarters of the cores
    /// over all ranks, 1 to 12 each]
    #[arg(long)]
    engines: Option<usize>,
    /// Where the NICs' engines run: host, own (each on its rank's GPU), or gpu:N
    #[arg(long, default_value = "host")]
    engine: String,
    /// Blocks of an engine on a GPU; on a rank's own they and the channels need a multiprocessor each
    /// [default: 16; for own what the channels leave, 96 at most]
    #[arg(long)]
    engine_blocks: Option<u32>,
    /// NICs of each process, to which channels are dealt; each has a thread that makes and checks its packets
    /// [default: one for each --address; else as --engines, on the host executor 1; of all processes the least]
    #[arg(long, conflicts_with = "address")]
    nics: Option<NonZeroUsize>,
    /// What carries packets between processes
    #[arg(long, default_value = "shm", value_parser = ["shm", "udp"])]
    link: String,
    /// Addresses of this process's NICs for --link udp, separated by commas [default: the first free 127.x.y.z]
    #[arg(long, value_name = "IPS", value_delimiter = ',')]
    address: Vec<IpAddr>,
    /// What happens to packets between processes, such as loss=5%,seed=7
    #[arg(long, value_name = "FAULTS")]
    faults: Option<Faults>,
    /// Input and output in the same memory
    #[arg(long)]
    in_place: bool,
    /// Bound of each wait, in seconds
    #[arg(long, default_value_t = 10.0)]
    timeout: f64,
    /// How long the first process waits for the last to come, in seconds
    #[arg(long, default_value_t = 300.0)]
    join_timeout: f64,
    /// Seed of the elements
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time the same calls of nccl, of the same memory on the same streams, batch by batch in turn
    #[arg(long, value_parser = ["nccl"])]
    compare: Option<String>,
    /// Instead of our all-reduce (f32 sums, up to 256KiB), the least that one by way of the host's processors can
    /// take: kernels store words with flags, threads copy them to where the other kernels look
    #[arg(long)]
    bare: bool,
    /// Time a batch as one CUDA graph of its calls, NCCL's too
    #[arg(long)]
    graph: bool,
    /// Draw results that were written before (files, separated by commas) into STEM-time.svg and
    /// STEM-rate.svg, and do nothing else
    #[arg(long, value_name = "STEM", requires = "from")]
    plot: Option<PathBuf>,
    /// What --plot draws
    #[arg(long, value_name = "FILES", value_delimiter = ',')]
    from: Vec<PathBuf>,
    /// Write results here (- for stdout)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
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
    options.endpoint.line = args.line;
    options.timeout = Duration::try_from_secs_f64(args.timeout)?;
    if args.engine == "own" && args.executor == "cuda" {
        // An engine's block pulls or pushes at what one multiprocessor can: many, with long messages.
        (options.channels, options.chunk_bytes) = (32, Some(512 << 10));
    }
    options.channels =
        args.channels.unwrap_or(if args.executor == "host" { 1 } else { options.channels });
    if let Some(bytes) = &args.channel_bytes {
        options.channel_bytes = size::parse(bytes)?;
    }
    if let Some(chunk) = &args.chunk {
        options.chunk_bytes = Some(u32::try_from(size::parse(chunk)?)?);
    }
    if args.engine != "host" {
        options.region = Place::Gpu; // which an engine on a GPU reaches
        // Looked at where they lie, and carried by blocks of which there are many.
        let others = args.ranks.saturating_sub(1).max(1);
        options.ll_bytes = u64::from(others) * (256 << 10);
        options.ll_messages = others.saturating_mul(options.channels);
        options.message_bytes = options.chunk(args.ranks).into();
    }
    match args.region.as_deref() {
        Some("gpu") => options.region = Place::Gpu,
        Some(_) => options.region = Place::Host,
        None => {}
    }
    if let Some(bytes) = &args.slot {
        options.endpoint.slot_bytes = u32::try_from(size::parse(bytes)?)?;
    }
    if let Some(bytes) = &args.window {
        options.window_bytes = Some(size::parse(bytes)?);
    }
    Ok(options)
}

fn open_gpu(args: &Args, number: usize) -> Result<Arc<Gpu>, Failure> {
    Ok(match args.executor.as_str() {
        "host" => Gpu::open(Executor::Host(HostOptions::default()))?,
        _ => Gpu::open(Executor::Cuda(number))?,
    })
}

fn gpus(args: &Args) -> Result<usize, Failure> {
    Ok(if args.executor == "host" { 1 } else { Gpu::cuda_count()? })
}

/// A process's NICs, each on a link of the job's name and its place, or on UDP. The links, which lose their names once
/// all are there.
fn packet_nics(
    args: &Args,
    name: &str,
    job: &Job,
    (nics, nap): (usize, Nap),
) -> Result<(Nics, Vec<ShmNet>), Failure> {
    let (mut made, mut nets) = (Nics::new(), Vec::new());
    if args.link == "shm" {
        ShmNet::sweep("job-");
    }
    for place in 0..nics {
        let mut link: Box<dyn Link> = match (args.link.as_str(), args.address.get(place)) {
            ("shm", _) => {
                let icrc = args.faults.is_some_and(|f| f.corrupt > 0.0);
                let net = ShmNet::named(&format!("{name}-{place}"), icrc)?;
                nets.push(net.clone());
                Box::new(net.attach_free()?)
            }
            (_, Some(address)) => Box::new(UdpLink::open(*address, None)?),
            (_, None) => Box::new(UdpLink::open_free()?),
        };
        if let Some(faults) = args.faults {
            // The same faults for the same packets, but not at the same ones.
            let other = u64::from(job.rank) + place as u64 * u64::from(job.ranks);
            let faults = Faults { seed: faults.seed.wrapping_add(other), ..faults };
            link = Box::new(Faulty::new(link, faults)?);
        }
        made.push(SoftNic::open_on(SoftConfig { nap, ..SoftConfig::default() }, link)?);
    }
    Ok((made, nets))
}

fn run(args: &Args) -> Result<(), Failure> {
    if let Some(stem) = &args.plot {
        return plot::draw(stem, &args.from);
    }
    let options = options(args)?;
    let task = Task {
        sizes: size::parse_list(&args.sizes)?,
        dtype: args.dtype,
        op: args.op,
        calls: args.calls,
        in_place: args.in_place,
        graph: args.graph,
        seed: args.seed,
    };
    if args.bare && (args.dtype, args.op) != (Dtype::F32, Op::Sum) {
        return Err("--bare adds up f32 and nothing else".into());
    }
    if let Some(bytes) = task.sizes.iter().find(|&&bytes| args.bare && bytes > bare::MOST_BYTES) {
        return Err(format!("--bare: {bytes} bytes are more than {}", bare::MOST_BYTES).into());
    }
    match Job::from_env(Duration::try_from_secs_f64(args.join_timeout)?, options.timeout)? {
        None if args.faults.is_some() || !args.address.is_empty() => {
            Err("--faults and --address are of links between processes; ranks are threads".into())
        }
        None if args.nics.is_some() => {
            Err("--nics: ranks that are threads have one each, with --engines threads".into())
        }
        Some(_) if args.bare => Err("--bare: ranks must be threads".into()),
        Some(_) if args.engine != "host" => {
            Err("--engine: an engine on a GPU is on the in-process link; ranks must be threads"
                .into())
        }
        Some(job) => process(args, &job, &options, &task),
        None => threads(args, &options, &task),
    }
}

/// This process is one rank.
fn process(args: &Args, job: &Job, options: &Options, task: &Task) -> Result<(), Failure> {
    let gpu = open_gpu(args, rank::gpu_of(job, gpus(args)?))?;
    let mut bootstrap = Bootstrap::join(job)?;
    let (nics, nets) = process_nics(args, job, options, gpu.is_host(), &mut bootstrap)
        .inspect_err(|why| bootstrap.fail(&why.to_string()))?;
    let count = nics.len();
    let meeting = Meeting::Processes(Box::new(bootstrap));
    let about = gpu.describe().to_string();
    let what = format!("processes, {count} NIC(s) each, over {}", args.link);
    let place = (gpu, nics);
    let mut rank =
        Rank::join(place, (job.rank, job.ranks), meeting, options, args.compare.is_some(), None)?;
    nets.iter().for_each(ShmNet::unname); // all ranks are connected
    let mut table = Table::new(args, options, (&about, &what, count), job.ranks, job.rank == 0);
    rank.run(task, |communicator, all| table.add(communicator, all))?;
    table.write()
}

/// This process's NICs, as many as every rank's, and their links.
fn process_nics(
    args: &Args,
    job: &Job,
    options: &Options,
    on_host: bool,
    bootstrap: &mut Bootstrap,
) -> Result<(Nics, Vec<ShmNet>), Failure> {
    if args.link == "shm" && !args.address.is_empty() {
        return Err("--address is of NICs on --link udp; on shm they find their own".into());
    }
    // Rank 0's process number and time name the job's link.
    let name = format!("job-{}-{}", std::process::id(), machine_time());
    let said = bootstrap.all_gather(format!("{} {name}", args.link).as_bytes())?;
    let said: Vec<_> = said.iter().map(|s| String::from_utf8_lossy(s)).collect();
    let other = |s: &str| s.split_once(' ').is_none_or(|(link, _)| link != args.link);
    if let Some(rank) = said.iter().position(|s| other(s)) {
        return Err(format!("rank {rank} is not on --link {}, as this one is", args.link).into());
    }
    let name = said[0].split_once(' ').map_or(String::new(), |(_, name)| name.into());
    let cores = bootstrap.cores()?;
    let wanted = match args.address.len() {
        0 if on_host => Some(args.nics.map_or(1, NonZeroUsize::get)),
        0 => args.nics.map(NonZeroUsize::get),
        n => Some(n),
    };
    let count = bootstrap.nics(wanted, options.channels, cores)?;
    let nap = Nap::for_threads(count + 1, cores);
    packet_nics(args, &name, job, (count, nap))
}

fn machine_time() -> u128 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos())
}

/// Multiprocessors for the calls of the ranks that share a GPU: for a large one of each a multiprocessor a channel,
/// with its two blocks; for short ones, of which the next begin while others end, 32 in all.
fn room_for_calls(options: &Options, sharing: u32) -> u32 {
    (options.channels * sharing).max(32)
}

/// The options for ranks of which so many share a GPU: all of their blocks must be there at once, beside an engine's.
fn shared(args: &Args, options: &Options, gpu: &Gpu, sharing: u32) -> Options {
    let mut options = options.clone();
    if args.channels.is_none() && !gpu.is_host() {
        let sms = gpu.describe().sms;
        let room = if args.engine == "host" { sms } else { sms / 4 };
        options.channels = options.channels.min(room / sharing).max(1);
    }
    options
}

/// The engine of each rank's NIC: none, its own GPU's, or one for all.
fn offloads(
    args: &Args,
    options: &Options,
    gpus: &[Arc<Gpu>],
    sharing: u32,
) -> Result<Vec<Option<Arc<Offload>>>, Failure> {
    let ranks = args.ranks as usize;
    let room = room_for_calls(options, sharing);
    let open = |gpu: &Arc<Gpu>| -> Result<Arc<Offload>, Failure> {
        let others = gpus.iter().filter(|other| other.ordinal() != gpu.ordinal()).cloned();
        let peers: Vec<_> = others.collect();
        let usual = EngineOptions::new(gpu);
        let beside = if args.engine == "own" && args.executor == "cuda" {
            // Each with a multiprocessor for itself, as the channels have.
            gpu.describe().sms.saturating_sub(room).clamp(16, 96)
        } else {
            usual.blocks
        };
        let blocks = args.engine_blocks.unwrap_or(beside);
        let needs = blocks + room;
        if args.engine == "own" && args.executor == "cuda" && needs > gpu.describe().sms {
            let has = gpu.describe().sms;
            let why = format!(
                "--engine-blocks {blocks} and {room} for calls need {needs} multiprocessors; the GPU has {has}"
            );
            return Err(why.into());
        }
        Ok(gpu_engine::open(gpu, &peers, EngineOptions { blocks, ..usual })?)
    };
    match args.engine.as_str() {
        "host" => Ok(vec![None; ranks]),
        "own" => {
            let each = gpus.iter().map(open).collect::<Result<Vec<_>, _>>()?;
            Ok((0..ranks).map(|rank| Some(each[rank % each.len()].clone())).collect())
        }
        other => {
            let number = other.strip_prefix("gpu:").and_then(|n| n.parse::<usize>().ok());
            let number = number.ok_or("--engine takes host, own, or gpu:N")?;
            let found = gpus.iter().find(|gpu| gpu.ordinal() == Some(number)).cloned();
            let gpu = found.map_or_else(|| open_gpu(args, number), Ok)?;
            Ok(vec![Some(open(&gpu)?); ranks])
        }
    }
}

/// All ranks are threads of this process.
fn threads(args: &Args, options: &Options, task: &Task) -> Result<(), Failure> {
    let count = gpus(args)?.clamp(1, args.ranks.max(1) as usize);
    let gpus: Vec<_> = (0..count).map(|n| open_gpu(args, n)).collect::<Result<_, _>>()?;
    let all = std::thread::available_parallelism().map_or(1, |n| n.get());
    let cores = all / args.ranks.max(1) as usize;
    // Bare: the cores are for the threads that copy.
    let (engines, nap) = match args.engines.unwrap_or_else(|| SoftConfig::engines_for(cores)) {
        _ if args.bare => (1, Nap::default()),
        engines => (engines, Nap::for_threads(engines + 1, cores)),
    };
    let places = bare::Places::default();
    let config = SoftConfig { engines, nap, ..SoftConfig::new(&InProcess::new()) };
    let sharing = args.ranks.max(1).div_ceil(gpus.len() as u32);
    let options = &shared(args, options, &gpus[0], sharing);
    let offloads = offloads(args, options, &gpus, sharing)?;
    let meetings = Meeting::threads(args.ranks, options.timeout.saturating_mul(10));
    let what = match offloads.first().and_then(Option::as_ref) {
        _ if args.bare => "threads, bare exchange".to_owned(),
        None => format!("threads, {engines} engine thread(s) a rank"),
        Some(offload) if args.engine == "own" => {
            let said =
                "a payload crosses between GPUs once, from the engine's to the peer's region";
            format!("threads, each rank's engine on its own GPU, as {}: {said}", offload.describe())
        }
        Some(offload) => {
            let said = "a payload crosses between GPUs on its way to the engine and from it, but for the \
                        ranks that share its GPU";
            format!("threads, all engines on {}: {said}", offload.describe())
        }
    };
    let about = gpus.first().map_or(String::new(), |gpu| gpu.describe().to_string());
    let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.ranks)
            .zip(meetings)
            .map(|(number, meeting)| {
                let gpu = gpus[number as usize % gpus.len()].clone();
                let offload = offloads[number as usize].clone();
                let config = SoftConfig { offload, ..config.clone() };
                let (about, what, places) = (&about, &what, &places);
                scope.spawn(move || {
                    let nic: Arc<dyn Nic> = SoftNic::open(config)?;
                    let place = (gpu, vec![nic]);
                    let mut rank = Rank::join(
                        place,
                        (number, args.ranks),
                        meeting,
                        options,
                        args.compare.is_some(),
                        args.bare.then_some(places),
                    )?;
                    let mut table =
                        Table::new(args, options, (about, what, 1), args.ranks, number == 0);
                    rank.run(task, |communicator, all| table.add(communicator, all))?;
                    table.write()
                })
            })
            .collect();
        let ended = |t: std::thread::ScopedJoinHandle<'_, _>| {
            t.join().unwrap_or_else(|_| Err("a rank's thread panicked".into()))
        };
        threads.into_iter().map(ended).collect()
    });
    if results.is_empty() {
        return Err("--ranks 0 has nothing to do".into());
    }
    results.into_iter().collect()
}
