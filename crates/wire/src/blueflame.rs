//! BlueFlame check word: proves to the software NIC that a WQE stored to the UAR has arrived whole.
//!
//! A NIC on PCIe receives a BlueFlame store as one write-combined TLP. A software NIC reads plain
//! memory, in which the stores of one WQE may become visible in any order. The sender therefore
//! adds a checksum over the WQE's words. The checksum travels in `ctrl.imm` of an RDMA_WRITE, a
//! field that silicon ignores for that opcode. The format is bellpush's own; no specification has
//! it.

/// Index of the 32-bit word that holds the checksum and that the checksum does not cover:
/// `ctrl.imm`.
pub const CHECK_WORD: usize = 3;
/// Bytes of one BlueFlame buffer.
pub const BF_BYTES: usize = 256;

/// Checksum of a WQE that fills whole basic blocks.
///
/// Words are little-endian. Every word but [`CHECK_WORD`] takes part, together with its position,
/// so a stale or misplaced word changes the checksum.
#[inline]
pub fn check(blocks: &[u8]) -> u32 {
    let words = blocks.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    words.zip(0u32..).fold(0, |sum, (word, i)| {
        if i as usize == CHECK_WORD { sum } else { sum.wrapping_add(term(word, i)) }
    })
}

#[inline]
fn term(word: u32, i: u32) -> u32 {
    mix(word.wrapping_add(i.wrapping_mul(0x9e37_79b9)))
}

#[inline]
fn mix(mut x: u32) -> u32 {
    x = x.wrapping_mul(0x85eb_ca6b);
    x ^= x >> 13;
    x = x.wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// Whether the stored checksum matches the blocks. `blocks` holds at least one basic block.
#[inline]
pub fn is_whole(blocks: &[u8]) -> bool {
    blocks.get(CHECK_WORD * 4..CHECK_WORD * 4 + 4).is_some_and(|w| w == check(blocks).to_le_bytes())
}

/// Stores the checksum into the blocks.
///
/// # Panics
/// When `blocks` is shorter than a control segment.
#[inline]
pub fn seal(blocks: &mut [u8]) {
    let sum = check(blocks);
    blocks[CHECK_WORD * 4..CHECK_WORD * 4 + 4].copy_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zeros_do_not_check_out() {
        assert!(!is_whole(&[0; 64]));
        assert!(!is_whole(&[]));
    }

    #[test]
    fn the_sum_is_what_the_kernels_compute() {
        // Written out once more, word by word, as kernels/include/bellpush/impl/doorbell.cuh does it.
        let bytes: Vec<u8> = (0..128u8).collect();
        let mut sum = 0u32;
        for i in 0..32u32 {
            if i == 3 {
                continue;
            }
            let at = i as usize * 4;
            let w = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let mut x = w.wrapping_add(i.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
            x ^= x >> 13;
            x = x.wrapping_mul(0xc2b2_ae35);
            x ^= x >> 16;
            sum = sum.wrapping_add(x);
        }
        assert_eq!(check(&bytes), sum);
    }

    proptest! {
        #[test]
        fn a_changed_word_is_noticed(
            mut blocks in prop::collection::vec(any::<u8>(), 64),
            word in 0usize..16,
            flip in 1u32..,
        ) {
            seal(&mut blocks);
            prop_assert!(is_whole(&blocks));
            for (i, b) in flip.to_le_bytes().into_iter().enumerate() {
                blocks[word * 4 + i] ^= b;
            }
            prop_assert!(!is_whole(&blocks));
        }
    }
}
