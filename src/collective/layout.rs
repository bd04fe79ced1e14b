//! Layout of a rank's region. It is the same at every rank, so that an offset is valid at all of
//! them.

use crate::gpu::collective_args::{DEPTH, HEADER_BYTES, QUICK_SLOT_BYTES, QUICK_SLOTS};

/// Offsets and lengths in bytes; see `kernels/collective/collective.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub reports: u64,
    pub exchange_signals: u64,
    pub ring_signals: u64,
    pub quick_slots: u64,
    pub exchange_slots: u64,
    pub ring_slots: u64,
    /// Offset of the slots to send from, if the region holds them; those of quick messages come
    /// first.
    pub stage: u64,
    pub quick_stage_bytes: u64,
    pub stage_bytes: u64,
    /// Bytes of the region without the slots to send from.
    pub received: u64,
}

impl Layout {
    pub fn new(ranks: u64, channels: u64, chunk_bytes: u64) -> Self {
        let slot = HEADER_BYTES + chunk_bytes;
        // Words to which different ranks add start on 128-byte lines of their own kind; slots start
        // on pages.
        let line = |n: u64| n.next_multiple_of(128);
        let reports = 0;
        let exchange_signals = line(ranks * 8);
        let ring_signals = exchange_signals + line(channels * ranks * 8);
        let quick_slots = (ring_signals + line(channels * 8)).next_multiple_of(4096);
        let quick = channels * QUICK_SLOTS * QUICK_SLOT_BYTES;
        let exchange_slots = (quick_slots + ranks * quick).next_multiple_of(4096);
        let ring_slots = exchange_slots + channels * ranks * 2 * DEPTH * slot;
        let received = ring_slots + channels * ranks * DEPTH * slot;
        let quick_stage_bytes = quick.next_multiple_of(4096);
        let stage_bytes = quick_stage_bytes + channels * 3 * DEPTH * ranks * slot;
        let stage = received.next_multiple_of(4096);
        Self {
            reports,
            exchange_signals,
            ring_signals,
            quick_slots,
            exchange_slots,
            ring_slots,
            stage,
            quick_stage_bytes,
            stage_bytes,
            received,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another() {
        for (ranks, channels, chunk) in [(1, 1, 64), (2, 1, 4096), (8, 16, 65536), (64, 3, 192)] {
            let l = Layout::new(ranks, channels, chunk);
            let slot = chunk + 64;
            let parts = [
                (l.reports, ranks * 8),
                (l.exchange_signals, channels * ranks * 8),
                (l.ring_signals, channels * 8),
                (l.quick_slots, channels * ranks * 2 * 11008),
                (l.exchange_slots, channels * ranks * 2 * DEPTH * slot),
                (l.ring_slots, channels * ranks * DEPTH * slot),
                (l.stage, l.stage_bytes),
            ];
            for pair in parts.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{l:?}");
            }
            assert!(l.ring_slots + channels * ranks * DEPTH * slot <= l.received);
            let aligned = [l.quick_slots, l.quick_stage_bytes, l.exchange_slots, l.stage, slot]
                .iter()
                .all(|n| n.is_multiple_of(64));
            assert!(aligned, "{l:?}");
        }
    }
}
