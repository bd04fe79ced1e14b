//! Errors between a result and its file.

use std::io;
use std::path::PathBuf;

use bellpush::preload::one_line;

/// An error of reading, writing or drawing a result. Every message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A file or directory operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation: "read", "write", "create".
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The text is empty.
    #[error("it is empty")]
    Empty,
    /// The text is not JSON, or not the JSON of a result.
    #[error("it is not a bellpush result: {}", one_line(.0))]
    Json(#[from] serde_json::Error),
    /// A row's fields contradict each other.
    #[error("row {row} is not valid: {field} is {value}, {rule}")]
    Row {
        /// Position of the row, counted from 1.
        row: usize,
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: String,
        /// Rule that the value breaks.
        rule: &'static str,
    },
    /// The result has no rows.
    #[error("it has no rows")]
    NoRows,
    /// The plotting library reported an error.
    #[error("cannot draw the {plot} plot: {reason}")]
    Draw {
        /// The plot.
        plot: &'static str,
        /// The library's message; its own error type is generic over its backend.
        reason: String,
    },
}
