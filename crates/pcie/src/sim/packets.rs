//! The two rules of packet sizes (`topology/packets.rs`) beside the rows that others measured: which they
//! can move, and what they were said to do before the model had them, in docs/results/pcie-packets.md.

use super::CopyMachine;
use crate::topology::peer_bytes;

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

    /// Machines whose GPUs have such packets are named so that the rule would tell it of them.
    #[test]
    fn machines_with_such_packets_are_called_so() {
        let named = |m: &CopyMachine| crate::topology::gpu_bytes(m.name).is_some();
        let stated = |m: &CopyMachine| m.devices.iter().any(|d| d.packet_bytes > 0);
        let unnamed: Vec<&str> = copy_rows()
            .filter(|r| stated(r.machine) && !named(r.machine))
            .map(|r| r.machine.name)
            .collect();
        assert_eq!(unnamed, [""; 0]);
        // GPUs that move nothing themselves, and of which a NIC or an SSD reads or writes.
        let mut still: Vec<&str> = copy_rows()
            .filter(|r| named(r.machine) && !stated(r.machine))
            .map(|r| r.machine.name)
            .collect();
        still.dedup();
        assert_eq!(still, ["E5-2650 v4, P40, three P4600", "A30, NIC of the other socket"]);
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
