//! Traces: what devices did and when, as Chrome trace JSON that Perfetto opens, and what a run that stands still
//! waits for.
//!
//! `timeline` turns the events of [`bellpush::nic::soft::trace`] into slices, instants, counters and arrows, and sums
//! up where each queue stood at the end (`ends`). `kernels` puts marks of kernels beside them. `explain` says from those ends alone what is waited for. `chrome` is
//! the file, which is not trusted when it is read. `stats` shows the counters, for people and for Prometheus.

mod chrome;
mod ends;
mod explain;
mod flows;
mod kernels;
mod open;
mod queue;
pub mod stats;
#[cfg(test)]
mod tests;
mod timeline;

pub use chrome::{Event, Trace, TraceError};
pub use ends::{BlockEnd, CqEnd, KernelsEnd, ProgramEnd, QueueEnd, Stage, WaitEnd};
pub use explain::explain;
pub use kernels::KernelMarks;
pub use timeline::timeline;
