//! The software NIC: what is posted, what comes of it, and what is refused.

#[path = "../support/queue_pairs.rs"]
mod queue_pairs;

mod coalesce;
mod errors;
mod hostile;
mod inband;
mod layouts;
mod mixed;
mod mkeys;
mod objects;
mod ops;
mod spread;
mod states;
mod threads;

/// Which engine the NICs have.
const ENGINE: &str = "cpu";
