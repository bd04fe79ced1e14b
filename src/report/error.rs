//! What can go wrong between a result and its file.

use std::io;
use std::path::PathBuf;

/// A result that could not be read, written or drawn. Every message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A file or directory operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried: "read", "write", "create".
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The text holds nothing at all.
    #[error("it is empty")]
    Empty,
    /// The text is not JSON, or not the JSON of a result.
    #[error("it is not a bellpush result: {0}")]
    Json(#[from] serde_json::Error),
    /// A row contradicts itself.
    #[error("row {row} is not valid: {field} is {value}, {rule}")]
    Row {
        /// Its position, counted from 1.
        row: usize,
        /// Which field.
        field: &'static str,
        /// What it holds.
        value: String,
        /// What it should hold.
        rule: &'static str,
    },
    /// There is not one row.
    #[error("it has no rows")]
    NoRows,
    /// The plotting library refused.
    #[error("cannot draw the {plot} plot: {reason}")]
    Draw {
        /// Which plot.
        plot: &'static str,
        /// Its message; the library's own error type is generic over its backend.
        reason: String,
    },
}
