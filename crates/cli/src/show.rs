//! `bellpush show`: prints a saved result as a table or a report.

use std::path::PathBuf;
use std::process::ExitCode;

use bellpush_cli::report::{ReportError, Results};
use clap::Args;

use crate::cli::{self, CliError};

/// Arguments of `bellpush show`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 every row was verified, 1 some row was not, 2 the file \
                        cannot be shown.")]
pub struct ShowArgs {
    /// A result that `bellpush bench --json FILE` wrote; `-` reads stdin
    #[arg(value_name = "FILE.json")]
    file: PathBuf,
    /// Write an HTML page with plots into this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &ShowArgs) -> Result<ExitCode, CliError> {
    let results = Results::parse(&cli::read(&args.file)?).map_err(|e| {
        let remedy = match e {
            ReportError::Row { .. } => "repair that row, or measure again",
            _ => "make one with 'bellpush bench --json FILE'",
        };
        CliError::new(format!("cannot show {}: {e}", args.file.display()), remedy)
    })?;
    cli::emit(&results, None, args.report.as_deref())
}
