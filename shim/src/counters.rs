//! The port's counters in sysfs: those of the process that reads them, written when it opens one.
//!
//! `counters/` has InfiniBand's (vol. 1, 16.1.3), `hw_counters/` those that mlx5 names itself. What
//! the NIC does not count has no file.

use std::io;

use bellpush_soft_nic::{Counters, DropReason};

use crate::dir::{Dir, Written};
use crate::layout;

/// The files below a port's directory, with their values.
pub fn values(c: &Counters) -> [(&'static str, u64); 14] {
    use DropReason::{Duplicate, Gap, Icrc, Length, NoReceive, Opcode, Pad, Syndrome, Version};
    let dropped = |reasons: &[DropReason]| reasons.iter().map(|&why| c.dropped(why)).sum();
    [
        // In units of 4 bytes.
        ("counters/port_xmit_data", c.tx_bytes / 4),
        ("counters/port_rcv_data", c.rx_bytes / 4),
        ("counters/port_xmit_packets", c.tx_packets),
        ("counters/port_rcv_packets", c.rx_packets),
        ("counters/unicast_xmit_packets", c.tx_packets),
        ("counters/unicast_rcv_packets", c.rx_packets),
        ("counters/port_rcv_errors", dropped(&[Length, Version, Opcode, Syndrome, Pad, Icrc])),
        ("hw_counters/duplicate_request", dropped(&[Duplicate])),
        ("hw_counters/out_of_sequence", dropped(&[Gap])),
        ("hw_counters/out_of_buffer", dropped(&[NoReceive])),
        ("hw_counters/rx_icrc_encapsulated", dropped(&[Icrc])),
        ("hw_counters/packet_seq_err", c.sequence_naks),
        ("hw_counters/local_ack_timeout_err", c.timeouts),
        ("hw_counters/rnr_nak_retry_err", c.rnr_waits),
    ]
}

/// Whether a file below a device's directory is a counter.
pub fn is_counter(file: &str) -> bool {
    file.starts_with("ports/1/counters/") || file.starts_with("ports/1/hw_counters/")
}

/// Writes a device's counters into the tree's directory. Returns one of them.
pub fn write(
    dir: &Dir,
    index: usize,
    counters: &Counters,
    file: &str,
) -> io::Result<Option<Written>> {
    let port = layout::port(index);
    let mut wanted = None;
    for (name, value) in values(counters) {
        let path = format!("{port}/{name}");
        let written = dir.replace(&path, &value.to_string())?;
        if path.ends_with(file) {
            wanted = Some(written);
        }
    }
    Ok(wanted)
}
