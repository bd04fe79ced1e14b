//! How large a packet is that a stated piece of hardware sends: two rules, with their sources and
//! what they were said to do before the model had them, in docs/results/pcie-packets.md.
//!
//! 1. A GPU of NVIDIA of a compute capability below 9 moves 128 B a packet, whatever its link's MPS:
//!    `packet_bytes` of `copies.rs` and `peers.rs`. NVIDIA's DCGM counts 12.3 % of protocol beside the
//!    payload of its copies, and 8 % beside that of later ones (`RunSubtestPcieBandwidth`); of powers of
//!    two only 128 and 256 B have that.
//! 2. Intel's root complexes forward peers' writes and completions in packets of 64 B (NVIDIA/nccl,
//!    `INTEL_P2P_OVERHEAD`).

use super::CopyMachine;

/// Bytes of a packet that an Intel root complex forwards to a peer.
const INTEL_PEER_BYTES: u32 = 64;

/// Size to which the root complexes of this CPU cut what peers send, where one is known.
pub(super) fn peer_bytes(cpu: &str) -> Option<u32> {
    let is_intel = ["Intel", "Xeon", "E5-"].iter().any(|part| cpu.contains(part));
    is_intel.then_some(INTEL_PEER_BYTES)
}

/// Whether one of the two rules can have a part in a machine's rows.
pub(super) fn is_packeted(machine: &CopyMachine) -> bool {
    machine.devices.iter().any(|d| d.packet_bytes > 0) || peer_bytes(machine.cpu).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::{COPY_ROWS, CopyRow, Params, answer_copy_row, copy_rows, simulate_copy_row};
    use super::*;

    fn of(machine: &str, what: &str) -> &'static CopyRow {
        copy_rows().find(|r| r.machine.name == machine && r.what == what).expect("a row")
    }

    fn rate(machine: &str, what: &str) -> f64 {
        simulate_copy_row(&Params::default(), of(machine, what)).unwrap()
    }

    /// What the page said by arithmetic before: payload over payload and header, of the raw rate.
    #[test]
    fn packets_carry_what_the_page_said() {
        let near = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 0.015, "{got} {want}");
        let (gen3, gen4) = (16.0 * 128.0 / 130.0, 32.0 * 128.0 / 130.0);
        let (wrote, read, cut) = (128.0 / 152.0, 128.0 / 148.0, 64.0 / 88.0);
        near(rate("A100", "to host memory"), gen4 * wrote);
        near(rate("A100", "from host memory"), gen4 * read);
        near(rate("4 x T4, host not named", "to host memory"), gen3 * wrote);
        near(rate("Xeon W-2123, WX 8100", "one writes"), gen3 * cut);
        near(rate("Xeon W-3365, 2 x RTX 6000 Ada", "one writes"), gen4 * cut);
        // Neither rule is of AMD's GPUs below AMD's CPUs, nor of Hopper.
        near(rate("2 x EPYC 7763, MI100", "to host memory"), 28.8);
        near(rate("8 x H200, host not named", "to host memory"), 57.6);
    }

    #[test]
    fn root_complexes_of_intel_cut_and_no_others() {
        for cpu in ["Xeon W-2123", "E5-2650 v4", "Intel(R) Core(TM) Ultra 9 285K"] {
            assert_eq!(peer_bytes(cpu), Some(64), "{cpu}");
        }
        for cpu in ["EPYC 7542", "Threadripper PRO 7955WX", "Ryzen 9 3900X", "NVIDIA Grace CPU", ""]
        {
            assert_eq!(peer_bytes(cpu), None, "{cpu}");
        }
    }

    /// A row that one of the rules moves was known before it, and what it said then stays.
    #[test]
    fn what_packets_move_was_known_before() {
        let answer =
            |machine, what| answer_copy_row(&Params::default(), of(machine, what)).unwrap();
        let moved = answer("Tiger, P100", "to host memory");
        assert!(moved.is_moved() && (moved.first / 14.4 - 1.0).abs() < 0.01, "{moved:?}");
        assert!(!answer("4 x T4, host not named", "to host memory").is_moved(), "read after them");
        let queued = answer("A100", "from host memory beside the way back");
        let one_queue = queued.one_queue().unwrap();
        let share = one_queue / queued.now;
        assert!((0.3..0.6).contains(&share) && one_queue != queued.first, "{queued:?}");
        assert!(COPY_ROWS.iter().all(|r| r.machine.rules_before == 0));
    }
}
