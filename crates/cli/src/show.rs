//! `bellpush show`: prints saved results as a table or a report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bellpush_cli::report::{ReportError, Results};
use clap::Args;

use crate::cli::{self, CliError};

/// Arguments of `bellpush show`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 every row was verified, 1 some row was not, 2 a file \
                        cannot be shown.")]
pub struct ShowArgs {
    /// Result that `bellpush bench --json FILE` wrote, `-` reads stdin; several of one machine are
    /// shown together, and plots have bars from the least to the greatest of a row
    #[arg(value_name = "FILE.json", required = true)]
    files: Vec<PathBuf>,
    /// Write an HTML page with plots into this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

/// Longest result that is read: three hundred thousand rows of `bench` are as long.
const MAX_BYTES: u64 = 256 << 20;

fn read(file: &Path) -> Result<Results, CliError> {
    let bytes = cli::read_at_most(file, MAX_BYTES)?;
    Results::parse(&bytes).map_err(|e| {
        let remedy = match e {
            ReportError::Row { .. } => "repair that row, or measure again",
            _ => "make one with 'bellpush bench --json FILE'",
        };
        CliError::new(format!("cannot show {}: {e}", file.display()), remedy)
    })
}

/// Refuses to put several results in the place of one of them. Of one result alone a report is made anew.
fn keep_inputs(args: &ShowArgs) -> Result<(), CliError> {
    let saved = args.report.as_ref().and_then(|dir| dir.join("results.json").canonicalize().ok());
    let own = |file: &&PathBuf| saved.is_some() && file.canonicalize().ok() == saved;
    match args.files.iter().find(own).filter(|_| args.files.len() > 1) {
        Some(file) => {
            let what = format!("--report: {} is one of the files to show", file.display());
            Err(CliError::new(what, "name another directory"))
        }
        None => Ok(()),
    }
}

/// Runs the command.
pub fn run(args: &ShowArgs) -> Result<ExitCode, CliError> {
    let (first, others) = args.files.split_first().expect("clap wants one");
    let mut all = read(first)?;
    keep_inputs(args)?;
    let mut known = vec![all.results.clone()];
    for file in others {
        let other = read(file)?;
        if known.contains(&other.results) {
            let what = format!("{}: the same result a second time", file.display());
            return Err(CliError::new(what, "it is no repetition: leave it out"));
        }
        known.push(other.results.clone());
        if let Some(what) = all.add(other) {
            let what = format!("{} and {}: not the same {what}", first.display(), file.display());
            return Err(CliError::new(what, "see 'bellpush compare --help'"));
        }
    }
    cli::emit(&all, None, args.report.as_deref())
}
