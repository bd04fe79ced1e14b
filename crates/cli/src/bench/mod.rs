//! `bellpush bench`: measures and verifies the paths between GPU and NIC.

mod marks;
mod measure;
mod payload;
mod remote;
mod runs;
mod sender;
mod store;
pub mod stream;
mod tearing;
pub mod test_bed;
mod tune;
mod turns;

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use bellpush::gpu::GpuError;
use bellpush::nic::NicError;
use bellpush::transport::{Data, Error, Kick, MemoryPlace, Options, Path};
use bellpush_cli::report::{self, Results, Row, Side};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use self::measure::{Ask, Callers, Lane, Seen};
use self::payload::{Payload, Tags, sha256};
use self::test_bed::TestBed;
use crate::cli::{self, CliError};
use crate::link::LinkSpec;
use crate::plan::{BenchPlan, Dest, Numa};
use crate::post::{self, PostArgs};
use crate::trace;
use crate::values;

/// The command line; [`BenchPlan`] is its checked meaning.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Sizes: 8, 4KiB, 1MiB; lists 8,64,4KiB; ranges 8..4MiB in powers of two. \
                        Exit status: 0 every row was verified, 1 some row was not, 2 wrong input \
                        or something missing.")]
pub struct BenchArgs {
    /// CUDA device, or `host` for kernels on CPU threads [default: 0 if there is one, else host]
    #[arg(long, value_name = "N|host", allow_hyphen_values = true)]
    pub gpu: Option<String>,
    /// Host memory near the GPU or on another NUMA node [default: where the system puts it]
    #[arg(long, value_name = "near|far")]
    pub host_numa: Option<String>,
    /// `soft` for the software NIC, or a verbs device's name
    #[arg(long, value_name = "NIC", default_value = "soft")]
    pub nic: String,
    /// Data paths, by the mover of the payload: push, pull, staged, tcp, and auto, which chooses by size
    /// [default: all but auto]
    #[arg(long, value_name = "LIST")]
    pub data: Option<String>,
    /// Kicks, which signal the NIC: kernel, blueflame, inband, stream, cpu [default: all]
    #[arg(long, value_name = "LIST")]
    pub kick: Option<String>,
    /// Message sizes
    #[arg(long, value_name = "LIST", default_value = "8..4MiB", allow_hyphen_values = true)]
    pub sizes: String,
    /// Messages per row
    #[arg(long, value_name = "N", default_value = "10000", allow_negative_numbers = true)]
    pub messages: u64,
    /// Time limit of a row in seconds; a row that reaches it has fewer messages
    #[arg(long, value_name = "S", default_value = "0.5", allow_negative_numbers = true)]
    pub seconds: f64,
    /// Window of NIC-side memory
    #[arg(long, value_name = "SIZE", default_value = "128KiB", allow_hyphen_values = true)]
    pub window: String,
    /// Slot size of the window, a multiple of 64
    #[arg(long, value_name = "SIZE", default_value = "4096", allow_hyphen_values = true)]
    pub slot: String,
    /// Places of send queue, doorbell record, completion queue and window, each gpu (the sending GPU's memory), host or
    /// auto: sq=gpu,dbr=gpu,cq=gpu,window=gpu [default: auto, the NIC's memory where it has some, else host]
    #[arg(long, value_name = "LIST")]
    pub place: Option<String>,
    /// Format of in-band lines, payload bytes + sequence bytes: 12+4, 14+2 or 60+4 [default: 12+4]
    #[arg(long, value_name = "FORMAT")]
    pub line: Option<String>,
    /// Place of the software NIC's engine: threads of this process (`host`), or a kernel on another
    /// GPU (`gpu:N`), which then is the other PCIe device
    #[arg(long, value_name = "host|gpu:N", default_value = "host")]
    pub engine: String,
    /// Messages posted in a row before the first wait, when latency is measured; the latency is
    /// that of the whole row
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    pub in_flight: u32,
    /// Number of engines of the software NIC
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    pub engines: u32,
    /// Threads that help the software NIC's engines to copy, 0 to 64 [default: as many as the
    /// machine has cores for, at most 7; none on two cores]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub copy_threads: Option<u32>,
    /// Blocks of the kernel that post each message together, on one queue pair that they share: push/kernel, and
    /// push/inband by lines of 12+4 or 60+4
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    pub blocks: u32,
    /// Number of queue pairs
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    pub qps: u32,
    /// Send RoCEv2 packets between two NICs, over shared memory or UDP, with faults: shm, udp,
    /// udp,loss=1%,dup=0.1%,reorder=1%,seed=7 [default: copies, without packets]
    #[arg(long, value_name = "LINK")]
    pub link: Option<LinkSpec>,
    /// Record the packets; the link is shared memory unless --link selects another
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Write down what the software NIC and the kernels do and when, as Chrome trace JSON, which
    /// ui.perfetto.dev opens (docs/trace.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["remote", "tearing", "tune", "post"])]
    pub trace: Option<PathBuf>,
    /// Times that everything is measured: the rows in turn, every other run in reverse order; of each row the table has
    /// the median and the least and greatest [default: 1; with --post 5, after one that does not count]
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with_all = ["tearing", "tune"])]
    pub runs: Option<u32>,
    /// Seed of payloads and faults
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true)]
    pub seed: u64,
    /// Send this file's bytes instead of generated ones
    #[arg(long, value_name = "FILE")]
    pub payload: Option<PathBuf>,
    /// Save the result; `-` prints it on stdout
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write an HTML page with plots into this directory
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Whether senders keep within the window's credits; `off` shows the loss without them
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub credits: String,
    /// Test this machine for torn lines, instead of measuring paths
    #[arg(long, conflicts_with = "remote")]
    pub tearing: bool,
    /// Measure which path is best for which size, keep that for the path auto (docs/auto.md), and measure auto beside
    /// the best
    #[arg(long, conflicts_with_all = [
        "tearing", "post", "data", "kick", "line", "payload", "report", "json", "credits", "blocks", "remote"
    ])]
    pub tune: bool,
    /// Memory from which messages are sent
    #[arg(long, value_name = "gpu|host", default_value = "gpu", conflicts_with_all = ["remote", "tearing", "post"])]
    pub source: String,
    /// Memory in which messages arrive; `engine` is the memory of the engine's GPU
    #[arg(long, value_name = "host|gpu|engine", default_value = "host")]
    pub dest: String,
    /// Timeout of one wait for a completion, in milliseconds
    #[arg(long, value_name = "MS", default_value = "5000", allow_negative_numbers = true)]
    pub timeout_ms: u64,
    /// Measure with another process, which connects here: address or host of this side, with a port or without
    /// [default: 127.0.0.1, port 29401]
    #[arg(long, value_name = "HOST", num_args = 0..=1, default_missing_value = "127.0.0.1", group = "remote")]
    pub listen: Option<String>,
    /// Measure with the process that listens there
    #[arg(long, value_name = "HOST", group = "remote")]
    pub connect: Option<String>,
    /// Messages in both directions at once; rates are their sum
    #[arg(long, requires = "connect")]
    pub both_ways: bool,
    /// Address of this side's software NIC, UDP port 4791 [default: that of the way to the other side]
    #[arg(long, value_name = "IP", requires = "remote")]
    pub address: Option<IpAddr>,
    #[command(flatten)]
    pub post: PostArgs,
}

impl BenchArgs {
    /// What they are where nothing is said.
    pub fn default_of_the_command_line() -> Self {
        #[derive(Debug, clap::Parser)]
        struct Nothing {
            #[command(flatten)]
            args: BenchArgs,
        }
        <Nothing as clap::Parser>::parse_from(["bench"]).args
    }
}

/// Measures, prints and saves.
///
/// # Errors
/// One line for invalid input or a missing device; nothing is written then.
pub fn run(args: BenchArgs) -> Result<ExitCode, CliError> {
    if args.post.post {
        if args.listen.is_some() || args.connect.is_some() {
            let what = "--post with --listen or --connect";
            return Err(CliError::new(
                what,
                "leave one of them out: --post measures this side alone",
            ));
        }
        return post::run(&args);
    }
    let plan = BenchPlan::try_from(&args)?;
    let payload = match &plan.payload {
        Some(path) => Payload::File(cli::read_payload(path)?),
        None => Payload::Tags(Tags::new(plan.seed)),
    };
    let places = [("--json", &plan.json), ("--trace", &args.trace)];
    values::check_places(&places)?;
    values::keep_inputs(&plan.payload, &places)?;
    cli::check_places(None, plan.report.as_deref())?;
    if args.tune {
        return tune::run(&plan, &payload);
    }
    if let Some(remote) = &plan.remote {
        return remote::run(&plan, remote, &payload);
    }
    let tracing = args.trace.as_deref().map(|path| trace::begin(path, false)).transpose()?;
    let bed = TestBed::traced(&plan, tracing.as_ref())?;
    if plan.tearing {
        return tearing::run(&bed, &plan);
    }
    let results = measure_all(&bed, &plan, &payload);
    let kernels = bed.marks.as_ref().and_then(|marks| {
        let unread = |e| eprintln!("bellpush: trace: marks of kernels cannot be read: {e}");
        marks.read(&bed.gpu).map_err(unread).ok()
    });
    drop(bed); // its NICs have said where they stand at the end
    let saved = match (&args.trace, &tracing) {
        (Some(path), Some(tracing)) => trace::save(tracing, kernels.as_ref(), path),
        _ => Ok(()),
    };
    // What was measured is not lost with a trace that cannot be written.
    let ended = cli::emit(&results?, plan.json.as_deref(), plan.report.as_deref())?;
    saved.map(|()| ended)
}

fn measure_all(bed: &TestBed, plan: &BenchPlan, payload: &Payload) -> Result<Results, CliError> {
    let meta = meta(bed, plan, payload)?;
    let sent = match payload {
        Payload::File(bytes) => Some(sha256(bytes)),
        Payload::Tags(_) => None,
    };
    let mut refused = None;
    let (rows, ended) = runs::measure(plan, |path, size, bar| {
        let ask = ask(plan, bed, path);
        // A new pair for each row: the state of a failed one ends with it.
        let lane = match Lane::new(bed, path, &ask) {
            Err(why @ (Error::Nic(NicError::Unsupported { .. }) | Error::Unsupported { .. })) => {
                bar.suspend(|| eprintln!("bellpush: {path} is left out: {why}"));
                refused = Some(why);
                return Ok(None);
            }
            lane => lane.map_err(|e| transport_error(&e))?,
        };
        let seen = lane.row(size as usize, payload, &ask).map_err(|e| transport_error(&e))?;
        if let Some(why) = &seen.failure {
            bar.suspend(|| eprintln!("bellpush: {path}, {size} B ended early: {why}"));
        }
        Ok::<_, CliError>(Some(row(bed, plan, path, size, &seen, sent.as_deref())))
    });
    ended?;
    if let (true, Some(why)) = (rows.is_empty(), refused) {
        return Err(transport_error(&why));
    }
    Ok(Results { meta, results: rows })
}

/// The circumstances of a run.
fn meta(bed: &TestBed, plan: &BenchPlan, payload: &Payload) -> Result<report::Meta, CliError> {
    let executor = bed.gpu.describe().to_string();
    let nic = report::Nic { name: bed.nic.name().into(), software: bed.nic.is_software() };
    let mut meta = report::machine::meta(nic, &executor, plan.seed);
    if bed.gpu.is_host() {
        meta.gpu = None; // a GPU may be present, but the run does not use it
    }
    if let Payload::File(bytes) = payload {
        let sha = sha256(bytes);
        meta.notes
            .push(format!("payload file: SHA-256 {sha}, compared with what arrived in every row"));
    }
    meta.notes.extend(bed.link.iter().chain(&bed.engine).cloned());
    if !plan.places.is_open() {
        let placed = plan.places;
        meta.notes.push(format!("placed: {placed} (gpu is the sending GPU's memory)"));
    }
    if plan.runs > 1 {
        let runs = plan.runs;
        meta.notes.push(format!("{runs} runs of all rows, every other in reverse order"));
    }
    if bed.marks.is_some() {
        meta.notes.push("times include what NICs and kernels write down for --trace".into());
    }
    if !plan.credits {
        meta.notes.push("credits are off (negative control): messages must be lost".into());
    }
    // Measured with a window of host memory, from a GPU's.
    if plan.places.window != MemoryPlace::Gpu
        && plan.source == Side::Gpu
        && let Some(gb_s) = store::rate(bed, plan.window_bytes)?
    {
        meta.notes.push(format!(
            "plain stores of one block into a window of {} reach {gb_s:.1} GB/s here: what a push \
             through it can reach at most",
            report::size::print(plan.window_bytes)
        ));
    }
    if plan.paths.contains(&Path::AUTO) {
        meta.notes.push(format!("auto's table: {}", tune::origin(bed, plan)?));
    }
    Ok(meta)
}

fn ask(plan: &BenchPlan, bed: &TestBed, path: Path) -> Ask {
    Ask {
        options: options(plan, bed, path),
        qps: plan.qps as usize,
        messages: plan.messages,
        in_flight: plan.in_flight,
        blocks: plan.blocks,
        callers: Callers::BySize,
        limit: plan.row_limit,
    }
}

fn progress(rows: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({eta} left)");
    let bar = ProgressBar::new(rows as u64);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar, // the template is ours; a bar of another look would do
    }
}

fn options(plan: &BenchPlan, bed: &TestBed, path: Path) -> Options {
    Options::default()
        .window_bytes(plan.window_bytes)
        .slot_bytes(plan.slot_bytes as u32)
        .line(plan.line)
        .timeout(plan.timeout)
        .host_numa(bed.host_numa)
        .sq_place(plan.places.sq)
        .dbr_place(plan.places.dbr)
        .cq_place(plan.places.cq)
        .window_place(plan.places.window)
        // Without a window there are no credits to keep within.
        .credits(plan.credits || !path.has_window())
}

fn row(
    bed: &TestBed,
    plan: &BenchPlan,
    path: Path,
    size: u64,
    seen: &Seen,
    sent: Option<&str>,
) -> Row {
    let window = path.has_window();
    let soft = path != Path::TCP && bed.nic.is_software();
    let delivered = seen.tally.all() - seen.tally.missing;
    let dropped = seen.posted.saturating_sub(delivered);
    let seconds = seen.streaming.as_secs_f64();
    let per_s = if seconds > 0.0 { seen.streamed as f64 / seconds } else { 0.0 };
    let latency =
        |percent| seen.latency_ns.as_ref().and_then(|s| s.percentile(percent)).map(|ns| ns as f64);
    let verified = seen.is_whole() && sent == seen.arrived.as_deref();
    Row {
        nic: if path == Path::TCP { "none".into() } else { bed.nic.name().into() },
        engine: soft.then_some(if bed.engine.is_some() { Side::Gpu } else { Side::Host }),
        executor: bed.gpu.describe().to_string(),
        messages: seen.posted,
        latency_ns_p50: latency(50.0),
        latency_ns_p99: latency(99.0),
        bandwidth_gb_s: per_s * size as f64 / 1e9,
        messages_per_s: per_s,
        verified,
        dropped,
        overwritten: seen.tally.overwritten,
        corrupted: seen.tally.corrupted,
        max_credits_in_use: Some(if window { seen.max_credits.into() } else { 0 }),
        window_bytes: Some(if window { plan.window_bytes } else { 0 }),
        slot_bytes: window.then_some(plan.slot_bytes),
        line: (path.kick() == Some(Kick::Inband)).then_some(plan.line),
        observer: Some(if path.posted_by_gpu() { Side::Gpu } else { Side::Host }),
        host_numa: plan.host_numa.map(|numa| match numa {
            Numa::Near => "near".into(),
            Numa::Far => "far".into(),
        }),
        from: Some(plan.source).filter(|side| *side != Side::Gpu),
        dest: Some(plan.dest.side()),
        in_flight: Some(plan.in_flight),
        blocks: path.posted_by_gpu().then_some(plan.blocks),
        qps: Some(if path == Path::TCP { 1 } else { plan.qps }),
        engines: soft.then_some(plan.engines),
        places: (path != Path::TCP && !plan.places.is_open()).then_some(plan.places),
        reach: seen.reach,
        copy_threads: soft.then_some(bed.copy_threads),
        credits: window.then_some(plan.credits),
        artefact: artefact(bed, plan, path, soft),
        ..Row::new(path.data(), path.kick(), size)
    }
}

/// Reason, beyond the notes, why a row's times are an artefact of the software NIC.
fn artefact(bed: &TestBed, plan: &BenchPlan, path: Path, soft: bool) -> Option<String> {
    if !soft || bed.gpu.is_host() {
        return None;
    }
    if bed.engine.is_some() && path != Path::TCP {
        return Some(
            "the engine is a kernel: what crosses the interconnect is physical, and what it takes \
             to look, check and complete is its own"
                .into(),
        );
    }
    if plan.dest == Dest::Gpu && path.data() != Data::Tcp {
        return Some(
            "the engine writes to GPU memory through the copy engine, a copy a WQE".into(),
        );
    }
    if path.data() == Data::Push && plan.places.window == MemoryPlace::Gpu {
        return Some(
            "the window is GPU memory, from which the engine reads through the copy engine, a copy \
             a WQE"
                .into(),
        );
    }
    (path.data() == Data::Push).then(|| {
        let times = if plan.source == Side::Host { "twice" } else { "once" };
        format!(
            "the window is host memory, so a push crosses PCIe {times} and the engine's copy to the \
             destination stands in for NIC and wire"
        )
    })
}

fn transport_error(error: &Error) -> CliError {
    match error {
        Error::Gpu(e) => test_bed::gpu_error(e),
        Error::Option { .. } => CliError::new(error, "change the option"),
        Error::Memory(_) => CliError::new(error, "use smaller sizes or windows"),
        Error::Tuning(_) => CliError::new(error, "see docs/auto.md"),
        _ => CliError::new(error, "see the message"),
    }
}

impl From<GpuError> for CliError {
    fn from(error: GpuError) -> Self {
        test_bed::gpu_error(&error)
    }
}
