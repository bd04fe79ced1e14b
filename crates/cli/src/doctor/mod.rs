//! `bellpush doctor`: what a machine can do for GPU-initiated networking, and why not.
//!
//! [`machine`] reads, [`checks`] is a table of functions from the machine to findings, [`verdict`]
//! says what they mean together, [`report`] renders them. Nothing is changed, and nothing is run but with `--live`.

mod checks;
mod finding;
mod grown;
mod live;
mod machine;
pub mod packed;
mod placement;
mod puts;
mod read;
mod record;
mod report;
mod right;
mod verdict;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bellpush_cli::report::human::printable;

use crate::cli::CliError;
use crate::explained;
use crate::values;
use checks::CHECKS;
use finding::Finding;
use machine::Machine;
use packed::Unpacked;
use read::Root;
use report::Report;

/// How long the machine may take to answer. A device whose firmware is gone can hold a read for
/// minutes.
const READING: Duration = Duration::from_secs(4);

/// Arguments of `bellpush doctor`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Exit status: 0 nothing to mend, 1 warnings, 2 wrong input or a machine that \
     does \
                        not answer, 3 something is prevented. Measurements count as findings."
)]
pub struct DoctorArgs {
    /// A recorded machine: a directory with sys/, proc/, dev/ and `env` of another machine, or a text
    /// of statements that stands for one, such as those of tests/fixtures/doctor
    #[arg(long, visible_alias = "root", value_name = "DIR|FILE", conflicts_with = "live")]
    machine: Option<PathBuf>,
    /// Copy what the checks read to this new or empty directory, for --machine elsewhere
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Write JSON to this file, or to standard output with `-` (the default)
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Print a shell script of what would mend it, and run nothing
    #[arg(long, conflicts_with = "json")]
    fix: bool,
    /// Measure as well: a put by every path, and the counters around it
    #[arg(long)]
    live: bool,
    /// Say instead what each queue of this trace waits for, as `bellpush trace --explain` does
    #[arg(long, value_name = "FILE", conflicts_with_all = ["machine", "record", "json", "fix", "live"])]
    trace: Option<PathBuf>,
    /// NIC of --live: `soft`, or an RDMA device such as mlx5_0
    #[arg(long, value_name = "NIC", default_value = "soft", requires = "live")]
    nic: String,
}

/// Runs the command.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let (status, text) = examine_and_tell(args, true)?;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CliError::new(format!("cannot print: {e}"), "check where output goes"))
        }
        _ => Ok(ExitCode::from(status)),
    }
}

/// The exit status, and what is printed.
#[allow(
    dead_code,
    reason = "the tests look at it; they are not this program, which is its own guard"
)]
pub fn told(args: &DoctorArgs) -> Result<(u8, String), CliError> {
    examine_and_tell(args, false)
}

fn examine_and_tell(args: &DoctorArgs, guarded: bool) -> Result<(u8, String), CliError> {
    if let Some(file) = &args.trace {
        return Ok((0, explained::text(file)?));
    }
    let places = [("--json", &args.json)];
    let taken = values::check_places(&places)?;
    let begun = Instant::now();
    let into = args.record.clone();
    let given = args.machine.as_deref();
    let text = given.filter(|path| !path.is_dir());
    let unpacked = text.map(|path| unpacked(path, guarded)).transpose()?;
    values::keep_inputs(unpacked.iter().flat_map(|unpacked| &unpacked.inputs), &places)?;
    let root = unpacked.as_ref().map_or(given, |unpacked| Some(unpacked.root.as_path()));
    let (mut machine, mut findings, files) = examined(root, into)?;
    if let (Some(dir), Some(files)) = (&args.record, files) {
        return Ok((0, format!("{files} files in {}\n", printable(&dir.display().to_string()))));
    }
    let left = READING.saturating_sub(begun.elapsed()).max(READING / 8);
    let measured = match args.live {
        true => Some(live::measure(&args.nic, || {
            let (m, ..) = examined(None, None).map_err(|e| e.to_string())?;
            let mut all = grown::counters(&m);
            all.extend(grown::of_drivers(&m));
            Ok(all)
        })?),
        false => None,
    };
    if let Some(measured) = &measured {
        measured.add_to(&mut machine, &args.nic, &mut findings);
    }
    verdict::answer(&machine, &mut findings);
    verdict::settle(&machine, &mut findings);
    let status = verdict::status(&findings);
    let name = given.map_or("this machine".to_owned(), |path| path.display().to_string());
    let what = unpacked.as_ref().map_or_else(String::new, |unpacked| read::short(&unpacked.what));
    let (fix, wants_json) = (args.fix, args.json.is_some());
    let (text, json) = within(left, &Arc::default(), move || {
        let (findings, live) = (&findings[..], measured.as_ref());
        let report = Report::new([name, what], &machine, findings, live);
        let text = if fix { report.script() } else { report.text() };
        (text, wants_json.then(|| report.json()))
    })?;
    let (Some(place), Some(json)) = (&args.json, json) else { return Ok((status, text)) };
    let wrong = |e: serde_json::Error| CliError::new(e, "please report it");
    let json = serde_json::to_string_pretty(&json).map_err(wrong)? + "\n";
    if taken {
        return Ok((status, json));
    }
    values::put(place, &json, &mut std::io::sink())?;
    Ok((status, text))
}

/// What all checks find.
fn examine(machine: &Machine) -> Vec<Finding> {
    CHECKS.iter().flat_map(|check| check.findings(machine)).map(in_one_line).collect()
}

/// Files may hold anything, and a finding is read in a terminal and in a script.
fn in_one_line(mut f: Finding) -> Finding {
    for text in [&mut f.subject, &mut f.found, &mut f.expected, &mut f.cost, &mut f.fix] {
        *text = printable(text);
    }
    f.script.iter_mut().for_each(|line| *line = printable(line));
    f
}

/// What was read, what the checks find in it, and how many files were recorded.
type Examined = (Machine, Vec<Finding>, Option<usize>);

/// Reads a machine and examines it, or records it in the folder `into`, in bounded time.
fn examined(recorded: Option<&Path>, into: Option<PathBuf>) -> Result<Examined, CliError> {
    let live = recorded.is_none();
    let dir = recorded.unwrap_or(Path::new("/")).to_owned();
    let reading = Arc::new(Mutex::new(dir.clone()));
    let work = {
        let reading = reading.clone();
        move || {
            let root = open(&dir, reading)?;
            let machine = Machine::read(&root, live);
            let files = into.map(|into| record::write(&root, &machine, &into)).transpose()?;
            let findings = if files.is_some() { Vec::new() } else { examine(&machine) };
            Ok((machine, findings, files))
        }
    };
    within(READING, &reading, work)?
}

/// A machine of which a text was given.
fn unpacked(path: &Path, guarded: bool) -> Result<Unpacked, CliError> {
    let remedy =
        "name a directory with sys/ and proc/ of a machine, or a text as docs/doctor.md has it";
    Unpacked::new(path, guarded).map_err(|e| CliError::new(printable(&e), remedy))
}

/// The root of a machine.
fn open(dir: &Path, reading: Arc<Mutex<PathBuf>>) -> Result<Root, CliError> {
    let remedy = "name a directory with sys/ and proc/ of a machine";
    let root = Root::new(dir, reading).map_err(|e| CliError::new(e, remedy))?;
    if !root.has("sys") && !root.has("proc") {
        let what = format!("{}: neither sys nor proc in it", dir.display());
        return Err(CliError::new(what, remedy));
    }
    Ok(root)
}

/// The result of `work`, which reads what `reading` says, if it comes in time. A read that does not
/// return cannot be ended; the program ends without it.
fn within<T: Send + 'static>(
    time: Duration,
    reading: &Mutex<PathBuf>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CliError> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || drop(send.send(work())));
    receive.recv_timeout(time).map_err(|e| {
        let at = reading.lock().unwrap_or_else(PoisonError::into_inner).display().to_string();
        let what = match (e, at.as_str()) {
            (RecvTimeoutError::Timeout, "") => "the report took too long".to_owned(),
            (RecvTimeoutError::Timeout, at) => format!("{at} did not answer within {READING:?}"),
            (RecvTimeoutError::Disconnected, at) => format!("reading {at} ended early"),
        };
        CliError::new(
            what,
            "look at dmesg for the device, or copy the rest to a directory for --machine",
        )
    })
}

/// A row of the table in docs/doctor.md.
#[allow(dead_code, reason = "the tests compare it with the page")]
pub fn check_table() -> String {
    let row = |c: &finding::Check| format!("| `{}` | {} | {} |\n", c.id, c.about, c.source);
    let rows: String = CHECKS.iter().map(row).collect();
    format!("| check | looks at | source |\n|---|---|---|\n{rows}")
}

/// Findings of a recorded machine, worst last: check, severity, subject and text.
#[allow(dead_code, reason = "the tests look at each")]
pub fn findings_of(root: &Path) -> Result<Vec<[String; 4]>, CliError> {
    // Without the bound of time: a machine that builds may be slow.
    let machine = Machine::read(&open(root, Arc::default())?, false);
    let mut findings = examine(&machine);
    verdict::settle(&machine, &mut findings);
    Ok(findings
        .into_iter()
        .map(|f| [f.check.to_owned(), f.severity.name().to_owned(), f.subject, f.found])
        .collect())
}

/// Counters that grew from one recording of a machine to another, as `--live` shows them.
#[allow(dead_code, reason = "the tests look at each")]
pub fn counters_grown(before: &Path, after: &Path) -> Result<BTreeMap<String, u64>, CliError> {
    let read = |root: &Path| {
        let machine = Machine::read(&open(root, Arc::default())?, false);
        Ok::<_, CliError>(grown::counters(&machine))
    };
    Ok(grown::grown(&read(before)?, read(after)?))
}

/// What is found of counters that grew so while this NIC of a recording was measured: severity, subject and text.
#[allow(dead_code, reason = "the tests look at each")]
pub fn found_of_grown(
    root: &Path,
    nic: &str,
    counters: &BTreeMap<String, u64>,
) -> Result<Vec<[String; 3]>, CliError> {
    let machine = Machine::read(&open(root, Arc::default())?, false);
    let all = grown::findings(counters, &machine, nic).into_iter();
    Ok(all.map(|f| [f.severity.name().to_owned(), f.subject, f.found]).collect())
}
