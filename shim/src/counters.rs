//! The port's counters in sysfs: those of the process that reads them, written when it opens one.
//!
//! `counters/` has InfiniBand's (vol. 1, 16.1.3), `hw_counters/` those that mlx5 names itself. What
//! the NIC does not count has no file.

use std::io;

use bellpush_soft_nic::{Counters, DropReason};

use crate::dir::Dir;

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

/// The port's directory of a device, below the tree's root.
pub fn port(index: usize) -> String {
    format!("class/infiniband/mlx5_{index}/ports/1")
}

/// The device whose counter a path below the tree's root names.
pub fn device_of(path: &str) -> Option<usize> {
    let (device, rest) = path.strip_prefix("class/infiniband/mlx5_")?.split_once('/')?;
    let is_counter =
        rest.starts_with("ports/1/counters/") || rest.starts_with("ports/1/hw_counters/");
    device.parse().ok().filter(|_| is_counter)
}

/// Writes a device's counters into the tree's directory. Each file is replaced as a whole: another
/// process may be reading it.
pub fn write(dir: &Dir, index: usize, counters: &Counters) -> io::Result<()> {
    let scratch = format!(".counter-{}", std::process::id());
    for (name, value) in values(counters) {
        dir.write(&scratch, &format!("{value}\n"))?;
        dir.rename(&scratch, &format!("{}/{name}", port(index)))?;
    }
    Ok(())
}
