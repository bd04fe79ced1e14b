//! Masked atomics (mlx5 PRM, "Extended Atomic Operations") on 4 or 8 bytes: compare and swap of
//! selected bits, and fetch and add on fields that do not carry into each other.

use super::seg::{AtomicSeg, Opcode, Operands};
use super::wqe::{Ctrl, WqeError};

/// `op_mod` of an extended atomic: this bit, and the operand's size as log2 of its 4-byte words.
const EXTENDED: u8 = 0x8;

/// Masks and operand width of a masked atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Masks {
    /// Bytes of the operands: 4 or 8.
    pub bytes: u32,
    /// Compare and swap: the bits that are swapped in. Fetch and add: the top bit of each field; no
    /// field carries into the next.
    pub change: u64,
    /// Compare and swap: the bits that are compared.
    pub compare: u64,
}

/// The two masked atomics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
}

impl Masks {
    /// Bytes of the operands according to `op_mod`, and of the segments that carry them.
    #[inline]
    fn size(kind: Kind, op_mod: u8) -> Option<(u32, usize)> {
        let bytes = match op_mod ^ EXTENDED {
            0 => 4,
            1 => 8,
            _ => return None,
        };
        Some((bytes, if (kind, bytes) == (Kind::CompareSwap, 8) { 32 } else { 16 }))
    }

    /// Kind of masked atomic of an opcode, the bytes of its operands, and the bytes of its segments
    /// beyond an atomic segment; `None` for other opcodes.
    #[inline]
    pub(super) fn layout(
        opcode: Opcode,
        ctrl: &Ctrl,
    ) -> Result<Option<(Kind, u32, usize)>, WqeError> {
        let Some(kind) = opcode.masked() else { return Ok(None) };
        let size = Self::size(kind, ctrl.op_mod).ok_or(WqeError::Opcode(ctrl.opcode))?;
        Ok(Some((kind, size.0, size.1 - size_of::<AtomicSeg>())))
    }

    /// Parses the segments of a WQE.
    #[inline]
    pub(super) fn parse(
        kind: Kind,
        bytes: u32,
        segments: &[u8],
    ) -> Result<(Operands, Self), WqeError> {
        let word = |i: usize| {
            let width = bytes as usize;
            let at = segments.get(i * width..(i + 1) * width);
            let need = (i + 1) * width;
            let at = at.ok_or(WqeError::Short { have: segments.len(), need })?;
            Ok(at.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
        };
        let (swap_add, second) = (word(0)?, word(1)?);
        Ok(match kind {
            Kind::FetchAdd => {
                (Operands { swap_add, compare: 0 }, Self { bytes, change: second, compare: 0 })
            }
            Kind::CompareSwap => (
                Operands { swap_add, compare: second },
                Self { bytes, change: word(2)?, compare: word(3)? },
            ),
        })
    }

    /// The value that replaces `old`.
    #[inline]
    pub fn apply(&self, kind: Kind, operands: Operands, old: u64) -> u64 {
        let Operands { swap_add: operand, compare } = operands;
        let new = match kind {
            Kind::CompareSwap if (old ^ compare) & self.compare != 0 => old,
            Kind::CompareSwap => old & !self.change | operand & self.change,
            Kind::FetchAdd => {
                // Topmost bits are added without carry, and get the carry of those below.
                let below = (old & !self.change).wrapping_add(operand & !self.change);
                below ^ (old ^ operand) & self.change
            }
        };
        if self.bytes == 4 { new & 0xffff_ffff } else { new }
    }

    /// The old value in the bytes that are scattered: an 8-byte value in the machine's order, a
    /// 4-byte value in the order of the WQE.
    #[inline]
    pub fn result(&self, old: u64) -> [u8; 8] {
        let mut bytes = old.to_ne_bytes();
        if self.bytes == 4 {
            bytes[..4].copy_from_slice(&(old as u32).to_be_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wqe::Wqe;

    fn add(change: u64, operand: u64, old: u64, bytes: u32) -> u64 {
        let masks = Masks { bytes, change, compare: 0 };
        masks.apply(Kind::FetchAdd, Operands { swap_add: operand, compare: 0 }, old)
    }

    #[test]
    fn fields_do_not_carry_into_each_other() {
        assert_eq!(add(0, 5, u64::MAX, 8), 4);
        assert_eq!(add(0, 5, 0xffff_ffff, 4), 4, "4 bytes wrap");
        assert_eq!(add(u64::MAX, 0b0110, 0b0101, 8), 0b0011, "each bit a field: XOR");
        assert_eq!(add(0x80, 0x01, 0xff, 8), 0x00, "no carry out of a topmost bit");
        assert_eq!(add(0x80, 0x101, 0x1ff, 8), 0x200, "the field above adds by itself");
        // Against fields that are added one by one.
        let (mut a, mut b) = (0x0123_4567_89ab_cdefu64, 0xfedc_ba98_7654_3210u64);
        for _ in 0..1000 {
            (a, b) = (a.wrapping_mul(6364136223846793005).wrapping_add(b), a.rotate_left(17));
            let bytes = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
            let sums: Vec<u8> = bytes.map(|(a, b)| a.wrapping_add(b)).collect();
            let sum = u64::from_le_bytes(sums.try_into().unwrap());
            assert_eq!(add(0x8080_8080_8080_8080, b, a, 8), sum);
        }
    }

    #[test]
    fn only_masked_bits_are_compared_and_swapped() {
        let masks = Masks { bytes: 8, change: 0xff00, compare: 0x00ff };
        let swap = |compare, old| {
            masks.apply(Kind::CompareSwap, Operands { swap_add: 0x1234, compare }, old)
        };
        assert_eq!(swap(0xaa01, 0xbb01), 0x1201);
        assert_eq!(swap(0xaa02, 0xbb01), 0xbb01);
    }

    #[test]
    fn sizes_are_those_of_op_mod() {
        assert_eq!(Masks::size(Kind::CompareSwap, 8), Some((4, 16)));
        assert_eq!(Masks::size(Kind::CompareSwap, 9), Some((8, 32)));
        assert_eq!(Masks::size(Kind::FetchAdd, 9), Some((8, 16)));
        assert_eq!(Masks::size(Kind::FetchAdd, 0), None);
        assert_eq!(Masks::size(Kind::FetchAdd, 10), None);
        let short = Masks::parse(Kind::CompareSwap, 8, &[0; 16]);
        assert_eq!(short, Err(WqeError::Short { have: 16, need: 24 }));
        let short = Masks::parse(Kind::CompareSwap, 4, &[0; 15]);
        assert_eq!(short, Err(WqeError::Short { have: 15, need: 16 }));
    }

    /// A WQE with a modifier, segments from byte 32 on, and a local entry behind them.
    fn wqe(opcode: u8, op_mod: u8, segments: &[u8], entry_bytes: u8) -> Vec<u8> {
        let ds = 3 + segments.len() as u8 / 16;
        let mut wqe = vec![op_mod, 0, 0, opcode, 0, 0, 9, ds, 0, 0, 0, 8, 0, 0, 0, 0];
        wqe.extend([[0, 0, 0, 0, 0, 0, 0x10, 0], [0, 0, 0, 5, 0, 0, 0, 0]].concat());
        wqe.extend(segments);
        wqe.extend([0, 0, 0, entry_bytes, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0x20, 0]);
        wqe
    }

    #[test]
    fn operands_and_masks_are_read_where_libmlx5_writes_them() {
        let bytes: Vec<u8> = (1..=32).collect();
        let long = [0x0102_0304_0506_0708u64, 0x090a_0b0c_0d0e_0f10];
        let masks = [0x1112_1314_1516_1718u64, 0x191a_1b1c_1d1e_1f20];
        let add = |compare| Operands { swap_add: long[0], compare };
        let short = Operands { swap_add: 0x0102_0304, compare: 0x0506_0708 };
        let swapped = Masks { bytes: 4, change: 0x090a_0b0c, compare: 0x0d0e_0f10 };
        for (opcode, op_mod, segment_bytes, operands, masks) in [
            (0x14, 8, 16, short, swapped),
            (0x14, 9, 32, add(long[1]), Masks { bytes: 8, change: masks[0], compare: masks[1] }),
            (
                0x15,
                8,
                16,
                Operands { compare: 0, ..short },
                Masks { bytes: 4, change: 0x0506_0708, compare: 0 },
            ),
            (0x15, 9, 16, add(0), Masks { bytes: 8, change: long[1], compare: 0 }),
        ] {
            let wqe = wqe(opcode, op_mod, &bytes[..segment_bytes], masks.bytes as u8);
            let parsed = Wqe::parse(&wqe).unwrap();
            assert_eq!((parsed.atomic, parsed.masks), (Some(operands), Some(masks)));
            assert_eq!(
                (parsed.payload.start as usize, parsed.bytes),
                (wqe.len() - 16, masks.bytes)
            );
            assert_eq!(Wqe::parse_stream(&wqe), Err(WqeError::Opcode(opcode)), "no room for masks");
        }
        let other = wqe(0x14, 9, &bytes, 4);
        assert_eq!(Wqe::parse(&other), Err(WqeError::AtomicLength(4)));
        assert_eq!(Wqe::parse(&wqe(0x15, 0, &bytes[..16], 8)), Err(WqeError::Opcode(0x15)));
        // Masks of 8 bytes take 16 more than operands do.
        let mut cut = wqe(0x14, 9, &bytes, 8);
        cut[7] = 3;
        assert_eq!(Wqe::parse(&cut), Err(WqeError::Ds(3)));
    }

    #[test]
    fn what_was_there_is_scattered_in_the_order_of_its_width() {
        let masks = |bytes| Masks { bytes, change: 0, compare: 0 };
        let old = 0x0102_0304_0506_0708u64;
        assert_eq!(masks(8).result(old), old.to_ne_bytes());
        assert_eq!(masks(4).result(old)[..4], [5, 6, 7, 8]);
    }
}
