//! The checked meaning of a `bench` command line. Pure: it accesses no file and no device.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bellpush::abi::bench::BENCH_MAX_ENDPOINTS;
use bellpush::transport::Path;
use bellpush::wire::inband::LineFormat;
use bellpush_cli::report::size::{self, SizeError};
use bellpush_cli::report::{Data, Kick, Places, Side};

use crate::bench::BenchArgs;
use crate::cli::CliError;
use crate::link::LinkSpec;

/// Largest message of one WQE (mlx5 PRM, `log_max_msg`: 2³⁰).
pub const MAX_MESSAGE_BYTES: u64 = 1 << 30;
/// Slots consist of whole WQE basic blocks, each of which holds whole lines of every format.
const SLOT_UNIT_BYTES: u64 = 64;
pub const MAX_WINDOW_BYTES: u64 = 1 << 30;
const MAX_ENGINES: u64 = 64;
const MAX_COPY_THREADS: u32 = 64;
pub const MAX_IN_FLIGHT: u64 = 64;
/// As many as every GPU runs at once.
pub const MAX_BLOCKS: u64 = 64;
pub const MAX_QPS: u64 = BENCH_MAX_ENDPOINTS as u64;
const MAX_RUNS: u64 = 1000;
const MAX_SECONDS: f64 = 3600.0;
const MAX_TIMEOUT_MS: u64 = 600_000;
/// With the other end in another process: a step of several waits has to end before that side gives this one up.
pub const MAX_TIMEOUT_MS_APART: u64 = 60_000;
const MAX_SECONDS_APART: f64 = 60.0;

/// Executor of the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gpu {
    /// The first CUDA device, or CPU threads if there is none.
    Auto,
    /// CPU threads.
    Host,
    /// This CUDA device.
    Cuda(u32),
}

/// Place of the software NIC's engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineAt {
    /// Threads of this process.
    Host,
    /// This CUDA device; with kernels on CPU threads, further CPU threads.
    Gpu(u32),
}

/// Memory in which messages arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dest {
    /// Host memory.
    Host,
    /// The memory of the sending GPU.
    Gpu,
    /// The memory of the engine's GPU.
    Engine,
}

impl Dest {
    /// The side, as in results.
    pub fn side(self) -> Side {
        match self {
            Self::Host => Side::Host,
            Self::Gpu | Self::Engine => Side::Gpu,
        }
    }
}

/// Place of host memory relative to the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numa {
    /// On the GPU's node.
    Near,
    /// On another node.
    Far,
}

/// A checked command line.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchPlan {
    /// Executor of the kernels.
    pub gpu: Gpu,
    /// Place of host memory; `None` leaves it to the system.
    pub host_numa: Option<Numa>,
    /// `soft`, or a verbs device's name.
    pub nic: String,
    /// The paths, in the order of [`Path::ALL`], and [`Path::AUTO`] where it was asked for.
    pub paths: Vec<Path>,
    /// Message sizes, ascending.
    pub sizes_bytes: Vec<u64>,
    /// Messages per row.
    pub messages: u64,
    /// Times that all rows are measured.
    pub runs: u32,
    /// Time limit of a row.
    pub row_limit: Duration,
    /// Window size in bytes: whole slots.
    pub window_bytes: u64,
    /// Slot size in bytes: a multiple of 64.
    pub slot_bytes: u64,
    /// Places of queues and window.
    pub places: Places,
    /// In-band line format.
    pub line: LineFormat,
    /// Place of the software NIC's engine.
    pub engine: EngineAt,
    /// Messages in a row before the first wait.
    pub in_flight: u32,
    /// Blocks that post each message together.
    pub blocks: u32,
    /// Number of engines of the software NIC.
    pub engines: u32,
    /// Threads that help them to copy; `None`: what the machine has cores for.
    pub copy_threads: Option<u32>,
    /// Number of queue pairs.
    pub qps: u32,
    /// Packet link between two NICs and its faults; `None`: copies.
    pub link: Option<LinkSpec>,
    /// File that records the packets; for the in-process link, those that would carry its messages.
    pub pcap: Option<PathBuf>,
    /// Seed of payloads and faults.
    pub seed: u64,
    /// File whose bytes are sent.
    pub payload: Option<PathBuf>,
    /// File for the result.
    pub json: Option<PathBuf>,
    /// Directory of the report.
    pub report: Option<PathBuf>,
    /// Whether senders keep within the credits.
    pub credits: bool,
    /// Whether to test for torn lines instead of measuring paths.
    pub tearing: bool,
    /// Memory in which messages arrive.
    pub dest: Dest,
    /// Memory from which messages are sent: of the sending GPU, or of the host.
    pub source: Side,
    /// Bound of one wait.
    pub timeout: Duration,
    /// The other end, where it is another process.
    pub remote: Option<Remote>,
    /// Address of the software NIC, where the other end is another process.
    pub address: Option<IpAddr>,
}

/// The other end, in another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// It connects to this place, and says what is measured.
    Listen(String),
    /// It listens at this place.
    Connect {
        /// The place: a host, with a port or without.
        to: String,
        /// Whether messages go both ways at once.
        both_ways: bool,
    },
}

impl BenchPlan {
    /// The largest message.
    pub fn largest_bytes(&self) -> usize {
        self.sizes_bytes.iter().copied().max().unwrap_or(1) as usize
    }
}

impl TryFrom<&BenchArgs> for BenchPlan {
    type Error = CliError;

    fn try_from(args: &BenchArgs) -> Result<Self, CliError> {
        let mut paths = paths(args.data.as_deref(), args.kick.as_deref())?;
        if args.nic != "soft" {
            soft_only(args)?;
            // In-band was not requested by name, but as part of all kicks.
            paths.retain(|path| path.kick() != Some(Kick::Inband));
        }
        if args.line.is_some() && !paths.iter().any(|path| path.kick() == Some(Kick::Inband)) {
            return Err(CliError::new(
                "--line concerns push/inband, which is not measured",
                "add it with --data push --kick inband, or leave the option out",
            ));
        }
        let (window_bytes, slot_bytes) = window(&args.window, &args.slot)?;
        if !args.seconds.is_finite() || args.seconds <= 0.0 || args.seconds > MAX_SECONDS {
            return Err(CliError::new(
                format!("--seconds is {}", args.seconds),
                format!("give more than 0 and at most {MAX_SECONDS}"),
            ));
        }
        if args.nic.trim().is_empty() {
            return Err(CliError::new("--nic is empty", "give soft, or a verbs device's name"));
        }
        for (option, path) in [
            ("--payload", &args.payload),
            ("--json", &args.json),
            ("--report", &args.report),
            ("--pcap", &args.pcap),
        ] {
            if path.as_ref().is_some_and(|p| p.as_os_str().is_empty()) {
                return Err(CliError::new(format!("{option} is empty"), "give a name"));
            }
        }
        let engine = engine_at(&args.engine)?;
        let source = one("--source", args.source.trim())?;
        let dest = dest(&args.dest, engine)?;
        if engine != EngineAt::Host && (args.link.is_some() || args.pcap.is_some()) {
            return Err(CliError::new(
                format!("--engine {} on a packet link, or with a capture", args.engine),
                "leave --link and --pcap out: an engine on a GPU has no packets",
            ));
        }
        let remote = remote(args)?;
        if args.link.is_some() && args.engines != 1 {
            return Err(CliError::new(
                format!("--engines is {} on a packet link", args.engines),
                "leave it out: one engine owns the link",
            ));
        }
        Ok(Self {
            gpu: args.gpu.as_deref().map_or(Ok(Gpu::Auto), gpu)?,
            host_numa: args.host_numa.as_deref().map(numa).transpose()?,
            nic: args.nic.clone(),
            paths,
            sizes_bytes: sizes(&args.sizes)?,
            messages: within("--messages", args.messages, u64::MAX)?,
            runs: runs(args.runs.unwrap_or(1))?,
            row_limit: Duration::from_secs_f64(args.seconds),
            window_bytes,
            slot_bytes,
            places: args.place.as_deref().map_or(Ok(Places::default()), places)?,
            line: args.line.as_deref().map_or(Ok(LineFormat::L12S4), |l| one("--line", l))?,
            engine,
            in_flight: within("--in-flight", args.in_flight.into(), MAX_IN_FLIGHT)? as u32,
            blocks: blocks(args)?,
            copy_threads: copy_threads(args)?,
            engines: within("--engines", args.engines.into(), MAX_ENGINES)? as u32,
            qps: within("--qps", args.qps.into(), MAX_QPS)? as u32,
            link: args.link,
            pcap: args.pcap.clone(),
            seed: args.seed,
            payload: args.payload.clone(),
            json: args.json.clone(),
            report: args.report.clone(),
            credits: on_off("--credits", &args.credits)?,
            tearing: args.tearing,
            source,
            dest,
            timeout: Duration::from_millis(within(
                "--timeout-ms",
                args.timeout_ms,
                MAX_TIMEOUT_MS,
            )?),
            remote,
            address: args.address,
        })
    }
}

/// The other end, if it is another process.
fn remote(args: &BenchArgs) -> Result<Option<Remote>, CliError> {
    let remote = match (&args.listen, &args.connect) {
        (None, None) => return Ok(None),
        (Some(place), _) => Remote::Listen(place.clone()),
        (None, Some(to)) => Remote::Connect { to: to.clone(), both_ways: args.both_ways },
    };
    let here = match () {
        () if args.engines != 1 => "--engines",
        () if args.copy_threads.is_some() => "--copy-threads",
        () if args.engine.trim() != "host" => "--engine",
        () => "",
    };
    if !here.is_empty() {
        let what = format!("{here} with --listen or --connect");
        return Err(CliError::new(
            what,
            "leave it out: the NICs carry packets, by one engine each",
        ));
    }
    let Remote::Listen(_) = remote else {
        let long = args.timeout_ms > MAX_TIMEOUT_MS_APART || args.seconds > MAX_SECONDS_APART;
        return match long {
            true => Err(CliError::new(
                "--timeout-ms or --seconds of more than a minute with --connect",
                "give at most 60000 and 60: the other side waits no longer",
            )),
            false => Ok(Some(remote)),
        };
    };
    // What is measured, the other side says.
    let default = BenchArgs::default_of_the_command_line();
    let theirs = match () {
        () if args.both_ways => "--both-ways",
        () if args.data.is_some() => "--data",
        () if args.kick.is_some() => "--kick",
        () if args.line.is_some() => "--line",
        () if args.place.is_some() => "--place",
        () if args.payload.is_some() => "--payload",
        () if args.sizes != default.sizes => "--sizes",
        () if args.messages != default.messages => "--messages",
        () if args.runs.is_some() => "--runs",
        () if args.seconds.to_bits() != default.seconds.to_bits() => "--seconds",
        () if args.window != default.window => "--window",
        () if args.slot != default.slot => "--slot",
        () if args.in_flight != default.in_flight => "--in-flight",
        () if args.blocks != default.blocks => "--blocks",
        () if args.qps != default.qps => "--qps",
        () if args.seed != default.seed => "--seed",
        () if args.credits != default.credits => "--credits",
        () if args.timeout_ms != default.timeout_ms => "--timeout-ms",
        () => return Ok(Some(remote)),
    };
    Err(CliError::new(format!("{theirs} with --listen"), "give it to the side that connects"))
}

/// Several blocks, which have one queue pair and wait for each message.
fn blocks(args: &BenchArgs) -> Result<u32, CliError> {
    let count = within("--blocks", args.blocks.into(), MAX_BLOCKS)? as u32;
    let with = match () {
        () if count == 1 => return Ok(1),
        () if args.qps != 1 => "--qps",
        () if args.in_flight != 1 => "--in-flight",
        () => return Ok(count),
    };
    let remedy = "leave it out: blocks that put together share one queue pair, a message at a time";
    Err(CliError::new(format!("{with} with --blocks {count}"), remedy))
}

/// Copy threads, which engines of the host have that carry no packets.
fn copy_threads(args: &BenchArgs) -> Result<Option<u32>, CliError> {
    let Some(count) = args.copy_threads else { return Ok(None) };
    let (wrong, remedy) = if count > MAX_COPY_THREADS {
        ("", "give a number from 0 to 64")
    } else if args.link.is_some() {
        (" on a packet link", "leave it out: one engine owns the link")
    } else if args.engine.trim() != "host" {
        (", and the engine is on a GPU", "leave it out: its blocks copy")
    } else {
        return Ok(Some(count));
    };
    Err(CliError::new(format!("--copy-threads is {count}{wrong}"), remedy))
}

fn engine_at(text: &str) -> Result<EngineAt, CliError> {
    let wrong = || {
        CliError::new(format!("--engine is {text:?}"), "give host, or gpu:N with a device's number")
    };
    match text.trim() {
        "host" => Ok(EngineAt::Host),
        other => {
            let number = other.strip_prefix("gpu:").ok_or_else(wrong)?;
            Ok(EngineAt::Gpu(number.parse().map_err(|_| wrong())?))
        }
    }
}

fn dest(text: &str, engine: EngineAt) -> Result<Dest, CliError> {
    match text.trim() {
        "engine" if engine == EngineAt::Host => Err(CliError::new(
            "--dest engine, but the engine runs on the host",
            "add --engine gpu:N, or give host or gpu",
        )),
        "engine" => Ok(Dest::Engine),
        text => Ok(match one("--dest", text)? {
            Side::Host => Dest::Host,
            Side::Gpu => Dest::Gpu,
        }),
    }
}

/// Refuses options of the software NIC where another NIC is selected.
fn soft_only(args: &BenchArgs) -> Result<(), CliError> {
    let inband =
        args.kick.as_deref().is_some_and(|list| list.split(',').any(|k| k.trim() == "inband"));
    let option = match () {
        () if inband => "--kick inband",
        () if args.line.is_some() => "--line",
        () if args.engines != 1 => "--engines",
        () if args.copy_threads.is_some() => "--copy-threads",
        () if args.engine.trim() != "host" => "--engine",
        () if args.link.is_some() => "--link",
        () if args.pcap.is_some() => "--pcap",
        () if args.address.is_some() => "--address",
        () => return Ok(()),
    };
    Err(CliError::new(
        format!("{option} is the software NIC's own, and --nic is {}", args.nic),
        "leave it out, or give --nic soft",
    ))
}

/// Every existing combination of the requested data paths and kicks. A choice by name that takes
/// part in no combination is an error: it would be omitted silently.
fn paths(data: Option<&str>, kick: Option<&str>) -> Result<Vec<Path>, CliError> {
    let asked_data = data.map(|list| several::<Data>("--data", list)).transpose()?;
    let asked_kicks = kick.map(|list| several::<Kick>("--kick", list)).transpose()?;
    let data = asked_data.clone().unwrap_or_else(|| Data::ALL.to_vec());
    let kicks = asked_kicks.clone().unwrap_or_else(|| Kick::ALL.to_vec());
    let wanted = |path: &Path| match path.kick() {
        Some(kick) => data.contains(&path.data()) && kicks.contains(&kick),
        // tcp is included unless only kicks were requested.
        None => data.contains(&Data::Tcp) && (asked_data.is_some() || asked_kicks.is_none()),
    };
    let mut paths: Vec<Path> = Path::ALL.into_iter().filter(wanted).collect();
    // It consists of others, and is measured when it is asked for.
    if asked_data.as_ref().is_some_and(|data| data.contains(&Data::Auto)) {
        paths.push(Path::AUTO);
    }
    let absent_data = asked_data.iter().flatten().find(|d| paths.iter().all(|p| p.data() != **d));
    if let Some(data) = absent_data {
        let fitting: Vec<&str> =
            Kick::ALL.iter().filter(|k| k.goes_with(*data)).map(|k| k.as_str()).collect();
        return Err(CliError::new(
            format!("--data {data} goes with none of --kick {}", kick.unwrap_or_default()),
            format!("its kicks are {}", fitting.join(", ")),
        ));
    }
    let absent_kick =
        asked_kicks.iter().flatten().find(|k| paths.iter().all(|p| p.kick() != Some(**k)));
    if let Some(kick) = absent_kick {
        return Err(CliError::new(
            format!("--kick {kick} goes with none of --data {}", list_of(&data)),
            "add --data push, which goes with every kick",
        ));
    }
    Ok(paths)
}

fn list_of<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

/// Parses one name.
fn one<T: FromStr<Err: fmt::Display>>(option: &str, word: &str) -> Result<T, CliError> {
    word.parse().map_err(|e| CliError::new(format!("{option}: {e}"), "give one of these"))
}

/// Parses a list of names; returns them in the order of their type, each once.
fn several<T>(option: &str, list: &str) -> Result<Vec<T>, CliError>
where
    T: FromStr<Err: fmt::Display> + Ord,
{
    let mut items = list
        .split(',')
        .map(|word| one(option, word.trim()))
        .collect::<Result<Vec<T>, CliError>>()?;
    items.sort_unstable();
    items.dedup();
    Ok(items)
}

/// Parses a CUDA device's number, or `host`.
pub fn gpu(word: &str) -> Result<Gpu, CliError> {
    match word {
        "host" => Ok(Gpu::Host),
        number => number.parse().map(Gpu::Cuda).map_err(|_| {
            CliError::new(format!("--gpu: '{word}' is no device"), "give its number, or host")
        }),
    }
}

/// Parses `near` or `far`.
pub fn numa(word: &str) -> Result<Numa, CliError> {
    match word {
        "near" => Ok(Numa::Near),
        "far" => Ok(Numa::Far),
        _ => {
            Err(CliError::new(format!("--host-numa: '{word}' is no placement"), "give near or far"))
        }
    }
}

fn places(list: &str) -> Result<Places, CliError> {
    list.parse()
        .map_err(|e| CliError::new(format!("--place: {e}"), "give for example sq=gpu,cq=host"))
}

fn on_off(option: &str, word: &str) -> Result<bool, CliError> {
    match word {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(CliError::new(format!("{option}: '{word}' is no choice"), "give on or off")),
    }
}

/// Checks how many runs there are.
pub fn runs(count: u32) -> Result<u32, CliError> {
    Ok(within("--runs", count.into(), MAX_RUNS)? as u32)
}

/// Checks that a number lies between 1 and a limit.
fn within(option: &str, value: u64, max: u64) -> Result<u64, CliError> {
    if (1..=max).contains(&value) {
        return Ok(value);
    }
    let remedy = if max == u64::MAX {
        "give at least 1".to_string()
    } else {
        format!("give a number from 1 to {max}")
    };
    Err(CliError::new(format!("{option} is {value}"), remedy))
}

fn size_error(option: &str, error: &SizeError, example: &str) -> CliError {
    CliError::new(format!("{option}: {error}"), format!("give for example {example}"))
}

fn sizes(list: &str) -> Result<Vec<u64>, CliError> {
    let sizes =
        size::parse_list(list).map_err(|e| size_error("--sizes", &e, "8,64,4KiB or 8..4MiB"))?;
    match sizes.last() {
        Some(&largest) if largest > MAX_MESSAGE_BYTES => Err(CliError::new(
            format!("--sizes: {} is more than a message holds", size::print(largest)),
            format!("give at most {}", size::print(MAX_MESSAGE_BYTES)),
        )),
        _ => Ok(sizes),
    }
}

/// Parses the sizes of window and slot, which must fit each other.
fn window(window: &str, slot: &str) -> Result<(u64, u64), CliError> {
    let window = size::parse(window).map_err(|e| size_error("--window", &e, "128KiB"))?;
    let slot = size::parse(slot).map_err(|e| size_error("--slot", &e, "4096"))?;
    let (shown_window, shown_slot) = (size::print(window), size::print(slot));
    if !slot.is_multiple_of(SLOT_UNIT_BYTES) {
        return Err(CliError::new(
            format!("--slot is {shown_slot}, which is no multiple of {SLOT_UNIT_BYTES}"),
            format!("give for example {}", (slot / SLOT_UNIT_BYTES).max(1) * SLOT_UNIT_BYTES),
        ));
    }
    if window > MAX_WINDOW_BYTES {
        return Err(CliError::new(
            format!("--window is {shown_window}"),
            format!("give at most {}", size::print(MAX_WINDOW_BYTES)),
        ));
    }
    if window < slot {
        return Err(CliError::new(
            format!("--window is {shown_window}, smaller than a slot of {shown_slot}"),
            "give a larger --window or a smaller --slot",
        ));
    }
    if !window.is_multiple_of(slot) {
        return Err(CliError::new(
            format!("--window is {shown_window}, which is not whole slots of {shown_slot}"),
            format!("give for example {}", window / slot * slot),
        ));
    }
    Ok((window, slot))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
