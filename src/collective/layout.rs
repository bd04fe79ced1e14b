//! Layout of a rank's region. It is the same at every rank, so that an offset is valid at all of
//! them.

use crate::abi::collective::{DEPTH, HEADER_BYTES, LL_SLOT_BYTES, LL_SLOTS};

/// Offsets and lengths in bytes; see `kernels/collective/collective.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub reports: u64,
    pub all_to_all_signals: u64,
    pub ring_signals: u64,
    pub ll_slots: u64,
    pub all_to_all_slots: u64,
    pub ring_slots: u64,
    /// Offset of the slots to send from, if the region holds them; those of LL messages come
    /// first.
    pub stage: u64,
    pub ll_stage_bytes: u64,
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
        let all_to_all_signals = line(ranks * 8);
        let ring_signals = all_to_all_signals + line(channels * ranks * 8);
        let ll_slots = (ring_signals + line(channels * 8)).next_multiple_of(4096);
        let ll = channels * LL_SLOTS * LL_SLOT_BYTES;
        let all_to_all_slots = (ll_slots + ranks * ll).next_multiple_of(4096);
        let ring_slots = all_to_all_slots + channels * ranks * 2 * DEPTH * slot;
        let received = ring_slots + channels * ranks * DEPTH * slot;
        let ll_stage_bytes = ll.next_multiple_of(4096);
        let stage_bytes = ll_stage_bytes + channels * 3 * DEPTH * ranks * slot;
        let stage = received.next_multiple_of(4096);
        Self {
            reports,
            all_to_all_signals,
            ring_signals,
            ll_slots,
            all_to_all_slots,
            ring_slots,
            stage,
            ll_stage_bytes,
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
                (l.all_to_all_signals, channels * ranks * 8),
                (l.ring_signals, channels * 8),
                (l.ll_slots, channels * ranks * 2 * 11008),
                (l.all_to_all_slots, channels * ranks * 2 * DEPTH * slot),
                (l.ring_slots, channels * ranks * DEPTH * slot),
                (l.stage, l.stage_bytes),
            ];
            for pair in parts.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{l:?}");
            }
            assert!(l.ring_slots + channels * ranks * DEPTH * slot <= l.received);
            let aligned = [l.ll_slots, l.ll_stage_bytes, l.all_to_all_slots, l.stage, slot]
                .iter()
                .all(|n| n.is_multiple_of(64));
            assert!(aligned, "{l:?}");
        }
    }
}
