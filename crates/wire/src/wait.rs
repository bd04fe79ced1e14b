//! WQEs that send nothing and hold back what is behind them: until a CQ has an entry (WAIT, mlx5 PRM, "Cross-Channel
//! Communication"), or until what was written to memory is there (DUMP, which reads it and keeps nothing).

use super::wqe::{Ctrl, DS_BYTES, DataSeg, Sge, WqeError};

/// Bytes of a WAIT, and of a DUMP of one entry: control segment, and wait or data segment.
pub(crate) const WAIT_BYTES: usize = 2 * DS_BYTES;
/// `op_mod` of a WAIT for a CQ's producer index.
const CQ_PI: u8 = 0;
/// Bits of a CQ's indices.
const INDEX_BITS: u32 = 24;

/// A WAIT for an entry of a CQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// Number of the CQ.
    pub cqn: u32,
    /// Index of the entry, of which 24 bits count.
    pub index: u32,
}

impl Wait {
    /// Parses a copy of a WQE.
    ///
    /// # Errors
    /// [`WqeError::Short`] and [`WqeError::Ds`] for bytes that are none, [`WqeError::Opcode`] for another modifier.
    pub fn parse(bytes: &[u8]) -> Result<Self, WqeError> {
        let ctrl = Ctrl::parse(bytes)?;
        if ctrl.op_mod != CQ_PI {
            return Err(WqeError::Opcode(ctrl.opcode));
        }
        let wqe: &[u8; WAIT_BYTES] =
            bytes.first_chunk().ok_or(WqeError::Ds(bytes.len() / DS_BYTES))?;
        let word = |at| u32::from_be_bytes(std::array::from_fn(|i| wqe[at + i]));
        Ok(Self { index: word(24), cqn: word(28) & 0xff_ffff })
    }

    /// Whether a CQ that has so many entries written has this one.
    pub fn is_reached(&self, written: u64) -> bool {
        let ahead = (written as u32).wrapping_sub(self.index).wrapping_sub(1);
        // Indices wrap: what is less than half of them behind has been.
        ahead << (32 - INDEX_BITS) >> 31 == 0
    }
}

/// The entry that a DUMP reads.
///
/// # Errors
/// [`WqeError::Ds`] for bytes that hold none.
pub fn dumped(bytes: &[u8]) -> Result<Sge, WqeError> {
    let wqe: &[u8; WAIT_BYTES] = bytes.first_chunk().ok_or(WqeError::Ds(bytes.len() / DS_BYTES))?;
    Ok(Sge::parse(&bytemuck::pod_read_unaligned::<DataSeg>(&wqe[DS_BYTES..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_names_a_cq_and_an_entry() {
        let mut wqe = [0; WAIT_BYTES];
        (wqe[3], wqe[7]) = (0x0f, 2);
        wqe[24..32].copy_from_slice(&[0x12, 0x34, 0x56, 0x78, 0xff, 0xab, 0xcd, 0xef]);
        let wait = Wait::parse(&wqe).unwrap();
        assert_eq!(wait, Wait { cqn: 0xab_cdef, index: 0x1234_5678 });
        assert_eq!(Wait::parse(&wqe[..16]), Err(WqeError::Ds(1)));
        wqe[0] = 1; // for a word in memory
        assert_eq!(Wait::parse(&wqe), Err(WqeError::Opcode(0x0f)));
    }

    #[test]
    fn an_entry_is_there_from_the_next_one_on_and_indices_wrap() {
        let reached = |index, written| Wait { cqn: 0, index }.is_reached(written);
        assert!(!reached(0, 0) && reached(0, 1) && reached(0, 2));
        assert!(!reached(7, 7) && reached(7, 8));
        // The last index of a lap, and the first of the next.
        assert!(!reached(0xff_ffff, 0xff_ffff) && reached(0xff_ffff, 0x100_0000));
        assert!(!reached(0x100_0000, 0x100_0000) && reached(0x100_0000, 0x100_0001));
        assert!(!reached(0, 0x100_0000) && reached(0, 0x100_0001), "24 bits count");
        assert!(!reached(5, 0xff_fff0), "not yet, since the entry of the last lap was long ago");
    }

    #[test]
    fn a_dump_reads_one_entry() {
        let mut wqe = [0; WAIT_BYTES];
        wqe[16..32].copy_from_slice(&[0, 0, 0, 1, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        let sge = dumped(&wqe).unwrap();
        assert_eq!((sge.bytes, sge.lkey.0, sge.addr.0), (1, 0x300, 0x1000));
        assert_eq!(dumped(&wqe[..16]), Err(WqeError::Ds(1)));
    }
}
