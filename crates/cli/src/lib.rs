//! What bellpush's command line and the examples share: results and their reports.

pub mod report;
