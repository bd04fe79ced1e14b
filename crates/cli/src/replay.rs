//! `bellpush replay`: recordings of `bellpush run --record`, played, compared or shown.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bellpush::nic::soft::record::{
    Difference, End, FirstDifference, RecordingError, compare, replay, show,
};

use crate::cli::{self, CliError};

/// Longest recording that is read: it is in memory whole.
const MAX_BYTES: u64 = 4 << 30;

#[derive(Debug, clap::Args)]
pub struct ReplayArgs {
    /// The recording
    file: PathBuf,
    /// Say where another recording of the same program parts from it, instead of playing it
    #[arg(long, value_name = "FILE", conflicts_with = "show")]
    against: Option<PathBuf>,
    /// Write it in words, an event a line, instead of playing it
    #[arg(long)]
    show: bool,
}

pub fn run(args: &ReplayArgs) -> Result<ExitCode, CliError> {
    let recording = read(&args.file)?;
    if args.show {
        let mut out = io::BufWriter::new(io::stdout().lock());
        show(recording, &mut out).map_err(|error| unusable(&args.file, &error))?;
        return match out.flush() {
            // Who reads along has seen enough.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(CliError::new(format!("cannot write all of it: {error}"), "make room"))
            }
            _ => Ok(ExitCode::SUCCESS),
        };
    }
    if let Some(other) = &args.against {
        return against([&args.file, other], [recording, read(other)?]);
    }
    let played = replay(recording).map_err(|error| unusable(&args.file, &error))?;
    let (steps, events) = (played.steps, played.events);
    match played.end {
        End::Same => {
            println!("the same: {steps} steps, {events} events");
            Ok(ExitCode::SUCCESS)
        }
        End::Stops { unread } => {
            let within = match unread {
                0 => String::new(),
                _ => format!(", {unread} bytes into an event"),
            };
            println!(
                "the same: {steps} steps, {events} events; the recording stops there{within}, and its device was not closed"
            );
            Ok(ExitCode::SUCCESS)
        }
        End::Beyond(what) => {
            let what = format!(
                "{}: the same for {steps} steps and {events} events; then comes {what}, which a replay does not make",
                args.file.display()
            );
            Err(CliError::new(what, "see it with --show, or compare two with --against"))
        }
        End::Differs(difference) => {
            tell(&difference);
            Ok(ExitCode::FAILURE)
        }
    }
}

fn read(file: &Path) -> Result<Vec<u8>, CliError> {
    cli::read_at_most(file, MAX_BYTES)
}

fn unusable(file: &Path, error: &RecordingError) -> CliError {
    let what = format!("{}: {error}", file.display());
    CliError::new(what, "name a file that 'bellpush run --record' of this version has written")
}

/// A time of an engine's clock.
fn seconds(ns: u64) -> String {
    format!("{}.{:09} s", ns / 1_000_000_000, ns % 1_000_000_000)
}

fn tell(difference: &Difference) {
    let Difference { step, event, now_ns, recorded, did } = difference;
    println!("differs at step {step}, event {event}, {}", seconds(*now_ns));
    println!("recorded: {}", recorded.as_deref().unwrap_or("nothing more").trim());
    println!("now:      {}", did.trim());
}

fn against(files: [&PathBuf; 2], recordings: [Vec<u8>; 2]) -> Result<ExitCode, CliError> {
    let found = compare(recordings).map_err(|(which, error)| unusable(files[which], &error))?;
    let Some(FirstDifference { qp, after, did }) = found else {
        println!("the same: what each queue pair sent, completed and told of");
        return Ok(ExitCode::SUCCESS);
    };
    println!("queue pair {} of the recordings parts after {after} things that both did", qp + 1);
    for (file, did) in files.into_iter().zip(did) {
        let did =
            did.map_or("nothing more".into(), |(what, at)| format!("{what}, at {}", seconds(at)));
        println!("{}: {did}", file.display());
    }
    Ok(ExitCode::FAILURE)
}
