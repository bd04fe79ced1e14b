//! `bellpush bench --post`: what posting costs the GPU that posts.
//!
//! Kernels post on queue pairs that are filled by hand, in queues longer than what is posted, so that nobody waits for
//! a NIC. Each row stands beside its floor: the stores and fences that it cannot do without, in the same run. Streams
//! have a NIC, in software, and the exchange of slots without one as their floor.

mod cases;
mod check;
mod measure;
mod queues;
mod streams;
mod table;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::thread::available_parallelism;
use std::time::Duration;

use bellpush::gpu::Gpu;
use bellpush_cli::report::notes::HOST_EXECUTOR;
use bellpush_cli::report::{Nic, machine};
use serde_json::{Value, json};

use self::cases::{CASES, Case, all};
use self::measure::{Bench, Line};
use crate::bench::BenchArgs;
use crate::bench::test_bed::{node, open_gpu, say_where};
use crate::cli::{self, CliError, UNVERIFIED};
use crate::{plan, values};

/// Options of `bench` for posting.
#[derive(Debug, Clone, clap::Args)]
pub struct PostArgs {
    /// Measure what it costs a kernel to post, on queues that no NIC reads, and how fast streams of
    /// long messages are, each beside its floor, instead of measuring paths
    #[arg(long, conflicts_with_all = ["tearing", "report", "payload", "link", "pcap"])]
    pub post: bool,
    /// With --post: only rows whose name and place have all of these words, or those behind a comma
    #[arg(long, value_name = "WORDS", requires = "post")]
    pub only: Option<String>,
}

const RUNS: u32 = 5;
const MAX_TIMEOUT_MS: u64 = 600_000;

const NO_NIC: &str = "no NIC reads the queues of posts: a row is what a call takes until it returns, and \
                      nothing of what a NIC takes";

/// Measures, prints and saves. Exit status 1 when a row's queues did not hold what was posted.
///
/// # Errors
/// One line for invalid input, or for a GPU that is missing or refuses.
pub fn run(args: &BenchArgs) -> Result<ExitCode, CliError> {
    let wanted = args.gpu.as_deref().map_or(Ok(plan::Gpu::Auto), plan::gpu)?;
    let numa = args.host_numa.as_deref().map(plan::numa).transpose()?;
    let runs = plan::runs(args.runs.unwrap_or(RUNS))?;
    if !(1..=MAX_TIMEOUT_MS).contains(&args.timeout_ms) {
        let remedy = format!("give a number from 1 to {MAX_TIMEOUT_MS}");
        return Err(CliError::new(format!("--timeout-ms is {}", args.timeout_ms), remedy));
    }
    cli::check_places(args.json.as_deref(), None)?;
    let gpu = open_gpu(wanted)?;
    let host_numa = numa.map(|numa| node(&gpu, numa)).transpose()?;
    let timeout = Duration::from_millis(args.timeout_ms);
    let mut bench = Bench::new(gpu.clone(), host_numa, runs, timeout)?;
    let (rows, streamed) = chosen(args.post.only.as_deref())?;
    say_where(wanted, &gpu);
    let lines = rows.iter().map(|case| bench.line(case)).collect::<Result<Vec<_>, _>>()?;
    drop(bench);
    let streamed = streams::measure(&gpu, args, host_numa, &streamed, runs)?;
    emit(&gpu, runs, (&lines, &streamed), args.json.as_deref())
}

/// The rows that `--only` names, and those of streams.
fn chosen(only: Option<&str>) -> Result<(Vec<&'static Case>, Vec<streams::Row>), CliError> {
    let named = |name: &str| {
        let is_of = |words: &str| words.split_whitespace().all(|word| name.contains(word));
        only.is_none_or(|only| only.split(',').any(is_of))
    };
    let rows: Vec<_> = all().filter(|case| named(&case.full_name())).collect();
    let mut streamed = streams::rows(available_parallelism().map_or(1, usize::from));
    streamed.retain(|row| named(&row.full_name()));
    if let (Some(only), true) = (only, rows.is_empty() && streamed.is_empty()) {
        return Err(CliError::new(
            format!("--only {only:?}: no row has these words"),
            format!("a row is for example {:?}", CASES[0].full_name()),
        ));
    }
    Ok((rows, streamed))
}

fn emit(
    gpu: &Gpu,
    runs: u32,
    (lines, streamed): (&[Line], &[streams::Line]),
    to: Option<&Path>,
) -> Result<ExitCode, CliError> {
    let mut notes = Vec::new();
    if gpu.is_host() {
        notes.push(HOST_EXECUTOR);
    }
    if !lines.is_empty() {
        notes.push(NO_NIC);
    }
    if !streamed.is_empty() {
        notes.push(streams::NOTE);
    }
    if let Some(path) = to {
        let posted = lines.iter().map(table::json);
        let results: Vec<Value> = posted.chain(streamed.iter().map(streams::json)).collect();
        let json = json!({ "meta": meta(gpu, runs, &notes)?, "results": results });
        let text = serde_json::to_string_pretty(&json).map_err(bug)?;
        values::put(path, &(text + "\n"), &mut io::stdout())?;
    }
    let mut text = table::render(&gpu.describe().to_string(), lines);
    text += &streams::render(streamed);
    for note in notes {
        let _ = writeln!(text, "note: {note}"); // a String takes everything
    }
    // The table gives way to the JSON on standard output.
    let printed = match to.is_some_and(|path| path.as_os_str() == "-") {
        true => io::stderr().lock().write_all(text.as_bytes()),
        false => io::stdout().lock().write_all(text.as_bytes()),
    };
    match printed {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::new(format!("cannot print the table: {e}"), "check where output goes"))
        }
        _ if lines.iter().all(Line::verified) && streamed.iter().all(streams::Line::verified) => {
            Ok(ExitCode::SUCCESS)
        }
        _ => Ok(ExitCode::from(UNVERIFIED)),
    }
}

fn meta(gpu: &Gpu, runs: u32, notes: &[&str]) -> Result<Value, CliError> {
    let meta = machine::meta(Nic::default(), &gpu.describe().to_string(), 0);
    let mut meta = serde_json::to_value(&meta).map_err(bug)?;
    if let Value::Object(meta) = &mut meta {
        // Posts have neither a NIC nor randomness, and streams a NIC of their own, in software.
        meta.remove("nic");
        meta.remove("seed");
        meta.insert("command".into(), "bench --post".into());
        meta.insert("runs".into(), runs.into());
        meta.insert("sms".into(), gpu.describe().sms.into());
        meta.insert("notes".into(), json!(notes));
        if gpu.is_host() {
            meta.insert("gpu".into(), Value::Null);
        }
    }
    Ok(meta)
}

fn bug(e: impl std::fmt::Display) -> CliError {
    CliError::new(e, "this is a bug: please report it")
}
