//! Suites of the NIC over packets while it records; each recording is played afterwards, and differs in nothing.

#[path = "../support/queue_pairs.rs"]
mod queue_pairs;

#[path = "../roce/ack.rs"]
mod ack;
#[path = "../roce/dc.rs"]
mod dc;
#[path = "../roce/errors.rs"]
mod errors;
#[path = "../roce/many.rs"]
mod many;
#[path = "../roce/meanwhile.rs"]
mod meanwhile;
#[path = "../roce/rc.rs"]
mod rc;
#[path = "../roce/reset.rs"]
mod reset;
#[path = "../roce/streams.rs"]
mod streams;
#[path = "../roce/tags.rs"]
mod tags;
#[path = "../roce/uc_ud.rs"]
mod uc_ud;
#[path = "../roce/xrc.rs"]
mod xrc;

mod compared;
mod cost;
mod damaged;
mod play;
mod stamps;

/// Which engine the NICs have.
const ENGINE: &str = "recorded";
