//! What a traced run waits for, as `trace --explain` and `doctor --trace` tell it.

use std::path::Path;

use bellpush_cli::trace::{TraceError, explain};

use crate::cli::CliError;

/// A line for each thing.
///
/// # Errors
/// A file that is no trace of this version, or cannot be read.
pub fn text(file: &Path) -> Result<String, CliError> {
    let lines = explain(file).map_err(|error| unusable(file, &error))?;
    Ok(lines.into_iter().map(|line| line + "\n").collect())
}

pub fn unusable(file: &Path, error: &TraceError) -> CliError {
    let what = format!("{}: {error}", file.display());
    CliError::new(what, "name a file that 'bellpush trace' or 'bench --trace' has written")
}
