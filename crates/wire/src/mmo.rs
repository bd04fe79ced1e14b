//! Copies that the NIC makes by itself (memory-to-memory operations, `MLX5_OPCODE_MMO` with the modifier DMA; libmlx5's
//! `mlx5_mmo_wqe`).
//!
//! The WQE is one basic block: control segment, metadata, data segments of the source and of the destination. The
//! metadata name memory for results, which a copy has none of.

use super::wqe::{Ctrl, DS_BYTES, DataSeg, Sge, WqeError};

/// Bytes of the WQE.
pub const MMO_BYTES: usize = 64;
/// Most bytes of a copy.
pub const MAX_COPY_BYTES: u32 = 1 << 20;
/// `op_mod`: a plain copy.
const DMA: u8 = 1;

/// A copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    /// Where the bytes are.
    pub from: Sge,
    /// Where they go.
    pub to: Sge,
}

impl Copy {
    /// Parses a copy of a WQE.
    ///
    /// # Errors
    /// [`WqeError::Short`] and [`WqeError::Ds`] for bytes that are none, [`WqeError::Opcode`] for another modifier,
    /// [`WqeError::Message`] for lengths that differ or are over [`MAX_COPY_BYTES`].
    pub fn parse(bytes: &[u8]) -> Result<Self, WqeError> {
        let ctrl = Ctrl::parse(bytes)?;
        if ctrl.op_mod != DMA {
            return Err(WqeError::Opcode(ctrl.opcode));
        }
        let wqe: &[u8; MMO_BYTES] =
            bytes.first_chunk().ok_or(WqeError::Ds(bytes.len() / DS_BYTES))?;
        let entry =
            |at| Sge::parse(&bytemuck::pod_read_unaligned::<DataSeg>(&wqe[at..at + DS_BYTES]));
        let (from, to) = (entry(32), entry(48));
        if from.bytes != to.bytes || from.bytes > MAX_COPY_BYTES {
            return Err(WqeError::Message(from.bytes.max(to.bytes).into()));
        }
        Ok(Self { from, to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_read_as_libmlx5_writes_it() {
        let mut wqe = [0; MMO_BYTES];
        (wqe[0], wqe[3]) = (1, 0x2f);
        wqe[32..48].copy_from_slice(&[0, 0, 0, 9, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        wqe[48..64].copy_from_slice(&[0, 0, 0, 9, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0x20, 0]);
        let Copy { from, to } = Copy::parse(&wqe).unwrap();
        assert_eq!((from.bytes, from.lkey.0, from.addr.0), (9, 0x300, 0x1000));
        assert_eq!((to.bytes, to.lkey.0, to.addr.0), (9, 0x400, 0x2000));
        assert_eq!(Copy::parse(&wqe[..48]), Err(WqeError::Ds(3)));
        wqe[51] = 8;
        assert_eq!(Copy::parse(&wqe), Err(WqeError::Message(9)), "it would end elsewhere");
        (wqe[32], wqe[48]) = (1, 1);
        wqe[51] = 9;
        assert_eq!(Copy::parse(&wqe), Err(WqeError::Message(0x100_0009)));
        wqe[32..36].copy_from_slice(&MAX_COPY_BYTES.to_be_bytes());
        wqe[48..52].copy_from_slice(&MAX_COPY_BYTES.to_be_bytes());
        assert_eq!(Copy::parse(&wqe).map(|copy| copy.to.bytes), Ok(1 << 20), "the longest");
        (wqe[35], wqe[51]) = (1, 1);
        assert_eq!(Copy::parse(&wqe), Err(WqeError::Message((1 << 20) + 1)));
        wqe[0] = 2;
        assert_eq!(Copy::parse(&wqe), Err(WqeError::Opcode(0x2f)), "compression");
    }
}
