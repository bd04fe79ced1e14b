//! Doorbell records and UAR doorbells (mlx5 PRM, "Doorbell Record", "UAR Page Format").
//!
//! A doorbell record is two big-endian words in memory. A UAR doorbell is the first 8 bytes of a
//! control segment, stored to the UAR page with its bytes in the same order as in memory.

use super::Qpn;
use super::be::Be32;

/// Bytes of a doorbell record.
pub const DBR_BYTES: usize = 8;
/// Byte offset of the receive counter in a queue pair's doorbell record.
pub const DBR_RCV_OFFSET: usize = 0;
/// Byte offset of the send counter in a queue pair's doorbell record.
pub const DBR_SND_OFFSET: usize = 4;
/// Byte offset of the consumer index in a CQ's doorbell record.
pub const DBR_CQ_CI_OFFSET: usize = 0;
/// Byte offset of the arm word in a CQ's doorbell record.
pub const DBR_CQ_ARM_OFFSET: usize = 4;
/// Bytes of a UAR page.
pub const UAR_BYTES: usize = 4096;
/// Byte offset of the register that arms a CQ: arm word, then CQ number.
pub const UAR_CQ_DOORBELL_OFFSET: usize = 0x20;
/// Byte offset of the doorbell register, also BlueFlame buffer 0.
pub const UAR_DOORBELL_OFFSET: usize = 0x800;
/// Byte offset of BlueFlame buffer 1.
pub const UAR_BF1_OFFSET: usize = 0x900;
/// Byte offsets of a page's doorbell registers. libmlx5 assigns each of the four registers of a
/// non-cached page to a different queue pair (`MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED`), independently
/// of the number in the queue pair's context.
pub const UAR_DOORBELL_OFFSETS: [usize; 4] = [UAR_DOORBELL_OFFSET, UAR_BF1_OFFSET, 0xa00, 0xb00];

/// The contents of a doorbell's 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doorbell {
    /// The queue pair that is rung.
    pub qpn: Qpn,
    /// Producer index of its send queue, in basic blocks modulo 2^16.
    pub next: u16,
}

impl Doorbell {
    /// Decodes a UAR register, given as the word that a little-endian machine loads from it.
    ///
    /// libmlx5 rings with the last WQE's control segment: next = index + ⌈ds/4⌉. NVSHMEM rings
    /// the next index itself with ds = 0.
    #[inline]
    pub fn parse(register: u64) -> Self {
        let [index_opcode, qpn_ds] = halves(register);
        let ds = (qpn_ds & 0x3f) as u16;
        Self {
            qpn: Qpn(qpn_ds >> 8),
            next: ((index_opcode >> 8) as u16).wrapping_add(ds.div_ceil(4)),
        }
    }

    /// The register that rings `next` as NVSHMEM does (ds = 0), as the word to store on a
    /// little-endian machine. `opcode` is informative: the NIC does not read it.
    #[inline]
    pub fn emit(self, opcode: u8) -> u64 {
        let index_opcode = u32::from(self.next) << 8 | u32::from(opcode);
        register([index_opcode, self.qpn.0 << 8])
    }
}

/// The register that rings with a control segment: its first 8 bytes as one word.
#[inline]
pub fn register_of(ctrl: &[u8; 16]) -> u64 {
    u64::from_le_bytes([ctrl[0], ctrl[1], ctrl[2], ctrl[3], ctrl[4], ctrl[5], ctrl[6], ctrl[7]])
}

#[inline]
fn halves(register: u64) -> [u32; 2] {
    let words: [Be32; 2] = bytemuck::cast(register.to_le_bytes());
    words.map(Be32::get)
}

#[inline]
fn register(words: [u32; 2]) -> u64 {
    u64::from_le_bytes(bytemuck::cast(words.map(Be32::new)))
}

/// The 16-bit counter in a word of a queue pair's doorbell record, as loaded natively.
#[inline]
pub fn dbr_counter(word: u32) -> u16 {
    u32::from_be(word) as u16
}

/// The word to store natively for a 16-bit counter.
#[inline]
pub fn dbr_word(counter: u16) -> u32 {
    u32::from(counter).to_be()
}

/// The 24-bit consumer index in a CQ's doorbell record, as loaded natively.
#[inline]
pub fn cq_ci(word: u32) -> u32 {
    u32::from_be(word) & 0xff_ffff
}

/// The word to store natively for a CQ's consumer index.
#[inline]
pub fn cq_ci_word(ci: u64) -> u32 {
    ((ci & 0xff_ffff) as u32).to_be()
}

/// The arm word of a CQ's doorbell record (mlx5 PRM, "CQ DoorBell Record").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CqArm {
    /// Counter of the events that the consumer has taken, modulo 4.
    pub sequence: u8,
    /// Only a solicited entry or an error raises the event.
    pub solicited_only: bool,
    /// Consumer index, 24 bits: an entry at or after it raises the event.
    pub ci: u32,
}

impl CqArm {
    /// Arm word, as stored natively, whose sequence no consumer starts with.
    pub const NEVER: u32 = (3u32 << 28).to_be();

    /// Decodes the word, as loaded natively.
    #[inline]
    pub fn parse(word: u32) -> Self {
        let word = u32::from_be(word);
        Self {
            sequence: (word >> 28 & 3) as u8,
            solicited_only: word & 1 << 24 != 0,
            ci: word & 0xff_ffff,
        }
    }

    /// The word to store natively.
    #[inline]
    pub fn emit(self) -> u32 {
        let only = u32::from(self.solicited_only) << 24;
        (u32::from(self.sequence & 3) << 28 | only | self.ci & 0xff_ffff).to_be()
    }
}

/// Distance of `counter` ahead of consumer index `ci`, if it is at most `ring` blocks.
///
/// `None` for a stale or invalid counter.
#[inline]
pub fn ahead(counter: u16, ci: u64, ring: u32) -> Option<u32> {
    let distance = u32::from(counter.wrapping_sub(ci as u16));
    (distance <= ring).then_some(distance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_register_seen_from_libmlx5() {
        // index 2, opcode 0x10, QPN 0x10040, ds 3: one block, so the producer is at 3.
        let seen = 0x0000_0210_0100_4003u64.swap_bytes();
        assert_eq!(Doorbell::parse(seen), Doorbell { qpn: Qpn(0x10040), next: 3 });
    }

    #[test]
    fn an_index_with_ds_0_is_the_next_index() {
        let bell = Doorbell { qpn: Qpn(7), next: 0xffff };
        assert_eq!(Doorbell::parse(bell.emit(8)), bell);
    }

    #[test]
    fn a_register_is_a_control_segments_first_8_bytes() {
        let ctrl = [0, 0, 2, 0x10, 1, 0, 0x40, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(register_of(&ctrl).to_le_bytes(), ctrl[..8]);
        let bell = Doorbell { qpn: Qpn(0x10040), next: 3 };
        assert_eq!(Doorbell::parse(register_of(&ctrl)), bell);
    }

    #[test]
    fn an_arm_word_that_nobody_writes_has_the_last_sequence() {
        let never = CqArm { sequence: 3, solicited_only: false, ci: 0 };
        assert_eq!((CqArm::parse(CqArm::NEVER), never.emit()), (never, CqArm::NEVER));
    }

    #[test]
    fn stale_counters_are_not_ahead() {
        assert_eq!(ahead(5, 0x1_0003, 64), Some(2));
        assert_eq!(ahead(2, 0x1_0003, 64), None);
        assert_eq!(ahead(1, 0xffff, 64), Some(2));
        assert_eq!(ahead(64, 0, 64), Some(64), "a full ring");
        assert_eq!(ahead(65, 0, 64), None);
    }

    proptest! {
        /// As whole numbers say it: what is at most a ring ahead is so far ahead, at any wrap of 16 bits; what is
        /// behind, by less than the rest of the 16 bits, is not.
        #[test]
        fn counters_are_ahead_across_any_wrap(
            ci in prop_oneof![0u64..1 << 40, 0xffe0u64..0x1_0020, 0xffff_ffe0u64..0x1_0000_0020],
            log in 0u32..=15,
            n in prop_oneof![0u32..0x1_0000, 0u32..4],
            from_ring: bool,
        ) {
            let ring = 1 << log;
            let n = if from_ring { (ring + n % 4).saturating_sub(2) } else { n };
            prop_assert_eq!(ahead((ci + u64::from(n)) as u16, ci, ring), (n <= ring).then_some(n));
            let behind = n % (0x1_0000 - ring);
            let stale = ahead((ci + (1 << 16) - u64::from(behind)) as u16, ci, ring);
            prop_assert_eq!(stale, (behind == 0).then_some(0));
        }

        #[test]
        fn doorbells_round_trip(qpn in 0u32..1 << 24, next: u16, opcode: u8) {
            let bell = Doorbell { qpn: Qpn(qpn), next };
            prop_assert_eq!(Doorbell::parse(bell.emit(opcode)), bell);
        }

        #[test]
        fn arm_words_round_trip(sequence in 0u8..4, solicited_only: bool, ci in 0u32..1 << 24) {
            let arm = CqArm { sequence, solicited_only, ci };
            prop_assert_eq!(CqArm::parse(arm.emit()), arm);
        }

        #[test]
        fn records_round_trip(counter: u16, ci: u64) {
            prop_assert_eq!(dbr_counter(dbr_word(counter)), counter);
            prop_assert_eq!(u64::from(cq_ci(cq_ci_word(ci))), ci & 0xff_ffff);
        }
    }
}
