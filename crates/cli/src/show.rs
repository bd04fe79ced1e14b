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

fn read(file: &Path) -> Result<Results, CliError> {
    Results::parse(&cli::read(file)?).map_err(|e| {
        let remedy = match e {
            ReportError::Row { .. } => "repair that row, or measure again",
            _ => "make one with 'bellpush bench --json FILE'",
        };
        CliError::new(format!("cannot show {}: {e}", file.display()), remedy)
    })
}

/// Runs the command.
pub fn run(args: &ShowArgs) -> Result<ExitCode, CliError> {
    let (first, others) = args.files.split_first().expect("clap wants one");
    let mut all = read(first)?;
    for file in others {
        let other = read(file)?;
        if let Some(what) = all.add(other) {
            let what = format!("{} and {}: not the same {what}", first.display(), file.display());
            return Err(CliError::new(what, "see 'bellpush compare --help'"));
        }
    }
    cli::emit(&all, None, args.report.as_deref())
}
