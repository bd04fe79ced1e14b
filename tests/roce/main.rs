//! The software NIC over packets: RoCEv2 as it is sent, lost, refused and captured.

#[path = "../support/queue_pairs.rs"]
mod queue_pairs;

mod ack;
mod adversary;
mod adversary_edges;
mod adversary_ends;
mod adversary_landing;
mod dc;
mod errors;
mod faults;
mod fields;
mod gsi;
mod hostile;
mod kill;
mod many;
mod meanwhile;
mod mmo;
mod pace;
mod pcap;
mod rc;
mod refusals;
mod reset;
mod scripted;
mod streams;
mod tags;
mod uc_ud;
mod xrc;

/// Which engine the NICs have.
const ENGINE: &str = "cpu";
