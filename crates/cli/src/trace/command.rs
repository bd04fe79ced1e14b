//! `bellpush trace`: a program's devices on one timeline, and what a run that stands still waits for.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use bellpush::nic::soft::trace::Tracing;
use bellpush_cli::trace::{KernelMarks, Trace, timeline};

use crate::cli::CliError;
use crate::explained::{self, unusable};
use crate::run::{self, DeviceArgs};

#[derive(Debug, clap::Args)]
pub struct TraceArgs {
    /// The file: Chrome trace JSON, which ui.perfetto.dev opens
    #[arg(short, long, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    /// Say what each queue of a trace waits for, instead of running a program
    #[arg(long, value_name = "FILE", group = "instead", conflicts_with = "output")]
    explain: Option<PathBuf>,
    /// Put traces of one host together in the file, instead of running a program
    #[arg(long, value_name = "FILE", num_args = 2.., group = "instead")]
    merge: Vec<PathBuf>,
    #[command(flatten)]
    devices: DeviceArgs,
    /// The program and its arguments
    #[arg(
        required_unless_present = "instead",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    #[arg(conflicts_with = "instead")]
    command: Vec<OsString>,
}

pub fn run(args: &TraceArgs) -> Result<ExitCode, CliError> {
    if let Some(file) = &args.explain {
        return match io::stdout().lock().write_all(explained::text(file)?.as_bytes()) {
            // Who reads along has seen enough.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(CliError::new(format!("cannot print all: {error}"), "make room"))
            }
            _ => Ok(ExitCode::SUCCESS),
        };
    }
    if let Some((first, others)) = args.merge.split_first() {
        keep_inputs(args)?;
        let read = |file: &PathBuf| Trace::read(file).map_err(|error| unusable(file, &error));
        let mut trace = read(first)?;
        for other in others {
            trace.merge(read(other)?);
        }
        return write(&trace, &args.output).map(|()| ExitCode::SUCCESS);
    }
    let _pipes = args.devices.check_places(Some(&args.output))?;
    let counts = args.devices.stats || args.devices.metrics.is_some();
    let tracing = begin(&args.output, counts)?;
    let ended = run::execute(&args.devices, &args.command, Some(&tracing))?;
    save(&tracing, None, &args.output)?;
    Ok(ended)
}

/// Refuses to write over a trace that is merged: the output's name is one that a trace has by default.
fn keep_inputs(args: &TraceArgs) -> Result<(), CliError> {
    let real = |path: &PathBuf| path.canonicalize().ok().filter(|real| real.is_file());
    let Some(output) = real(&args.output) else { return Ok(()) };
    match args.merge.iter().any(|input| real(input).as_ref() == Some(&output)) {
        true => {
            let what = format!("{}: it is one of the traces to merge", args.output.display());
            Err(CliError::new(what, "name another file with --output"))
        }
        false => Ok(()),
    }
}

fn unwritten(path: &Path, error: &io::Error) -> CliError {
    CliError::new(format!("cannot write {}: {error}", path.display()), "name another file")
}

/// Memory for a trace that is to be in a file, which can be written; with `counts`, of queue pairs' counters as well.
pub fn begin(path: &Path, counts: bool) -> Result<Arc<Tracing>, CliError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    options.open(path).map_err(|e| unwritten(path, &e))?;
    Tracing::new(true, counts)
        .map_err(|e| CliError::new(format!("no memory for a trace: {e}"), "make room"))
}

/// Writes down what devices did, and kernels.
pub fn save(tracing: &Tracing, kernels: Option<&KernelMarks>, path: &Path) -> Result<(), CliError> {
    let devices = tracing.devices(true);
    let lost = devices.iter().fold(0, |sum: u64, device| sum.saturating_add(device.lost[0]));
    if lost > 0 {
        eprintln!("bellpush: trace: the oldest {lost} events are lost");
    }
    if tracing.refused() > 0 {
        eprintln!("bellpush: trace: {} devices beyond the first are not in it", tracing.refused());
    }
    if devices.is_empty() {
        eprintln!("bellpush: trace: no device was opened");
    }
    let mut trace = timeline(&devices);
    if let Some(kernels) = kernels {
        if kernels.read.lost > 0 {
            let lost = kernels.read.lost;
            eprintln!("bellpush: trace: {lost} marks of kernels are lost");
        }
        trace.add_kernels(kernels);
    }
    write(&trace, path)
}

fn write(trace: &Trace, path: &Path) -> Result<(), CliError> {
    trace.write(path).map_err(|e| unwritten(path, &e))?;
    eprintln!("bellpush: trace: {} events in {}", trace.events.len(), path.display());
    Ok(())
}
