//! The WQE that most are, read at one go.

use super::seg::{
    CtrlSeg, DS_BYTES, DataSeg, Flags, INLINE_FLAG, InlineHeader, Opcode, RaddrSeg, Remote, Sge,
    WQEBB_BYTES,
};
use super::{Iova, Qpn, Rkey};

/// An RDMA WRITE of one basic block, whose payload is one gather entry or inline.
///
/// [`Wqe::parse`](super::wqe::Wqe::parse) reads such a WQE as well, at several times the cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainWrite {
    /// WQE index.
    pub index: u16,
    /// Queue pair number.
    pub qpn: Qpn,
    /// Completion, solicited, fence.
    pub flags: Flags,
    /// Where the payload goes.
    pub remote: Remote,
    /// Bytes of the payload.
    pub bytes: u32,
    /// The gather entry; without one the payload is inline.
    pub from: Option<Sge>,
}

/// The segments up to an inline payload.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Header {
    ctrl: CtrlSeg,
    raddr: RaddrSeg,
    inline: InlineHeader,
}

/// The first three segments.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Segments {
    ctrl: CtrlSeg,
    raddr: RaddrSeg,
    data: DataSeg,
    rest: [u8; WQEBB_BYTES - 3 * DS_BYTES],
}

impl PlainWrite {
    /// Where inline payload lies in the block.
    pub const INLINE_AT: usize = 2 * DS_BYTES + size_of::<InlineHeader>();

    /// Reads the beginning of an in-band slot's stream, if it is that of a WRITE whose payload is all inline and follows
    /// in the stream, however long. Nothing is said of others.
    #[inline]
    pub fn parse_stream(begin: &[u8; Self::INLINE_AT]) -> Option<Self> {
        let Header { ctrl, raddr, inline } = bytemuck::pod_read_unaligned(begin);
        let (first, second) = (ctrl.opmod_idx_opcode.get(), ctrl.qpn_ds.get());
        let (count, bytes) = (inline.byte_count.get(), inline.byte_count.get() & !INLINE_FLAG);
        // The stream's WQE ends with the unit that the inline header begins.
        if first as u8 != Opcode::RdmaWrite as u8
            || second & 0x3f != 3
            || bytes == 0
            || count == bytes
        {
            return None;
        }
        Some(Self::of(ctrl, raddr, bytes, None))
    }

    /// Reads a block, if that is what it holds. Nothing is said of others: they may be as right.
    #[inline]
    pub fn parse(block: &[u8; WQEBB_BYTES]) -> Option<Self> {
        let Segments { ctrl, raddr, data, .. } = bytemuck::cast(*block);
        let (first, second) = (ctrl.opmod_idx_opcode.get(), ctrl.qpn_ds.get());
        if first as u8 != Opcode::RdmaWrite as u8 {
            return None;
        }
        let (ds, count) = ((second & 0x3f) as usize, data.byte_count.get());
        let inline = count & INLINE_FLAG != 0;
        let bytes = count & !INLINE_FLAG;
        let end = if inline { Self::INLINE_AT.checked_add(bytes as usize)? } else { 3 * DS_BYTES };
        // A count of 0 stands for the longest message.
        if end > WQEBB_BYTES || ds != end.div_ceil(DS_BYTES) || bytes == 0 {
            return None;
        }
        Some(Self::of(ctrl, raddr, bytes, (!inline).then(|| Sge::parse(&data))))
    }

    fn of(ctrl: CtrlSeg, raddr: RaddrSeg, bytes: u32, from: Option<Sge>) -> Self {
        Self {
            index: (ctrl.opmod_idx_opcode.get() >> 8) as u16,
            qpn: Qpn(ctrl.qpn_ds.get() >> 8),
            flags: Flags::from_bits(ctrl.fm_ce_se),
            remote: Remote { addr: Iova(raddr.raddr.get()), rkey: Rkey(raddr.rkey.get()) },
            bytes,
            from,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::wqe::{Piece, Wqe};
    use super::*;
    use proptest::prelude::*;

    /// What the general parser makes of it.
    fn agrees(block: &[u8; WQEBB_BYTES]) -> Option<PlainWrite> {
        let plain = PlainWrite::parse(block)?;
        let wqe = Wqe::parse(block).expect("a plain WRITE is a WQE");
        assert_eq!((wqe.opcode, wqe.blocks()), (Opcode::RdmaWrite, 1));
        assert_eq!((wqe.index, wqe.qpn, wqe.flags), (plain.index, plain.qpn, plain.flags));
        assert_eq!((wqe.remote, wqe.bytes), (Some(plain.remote), plain.bytes));
        let pieces: Vec<_> = wqe.pieces(block).collect();
        let at = PlainWrite::INLINE_AT;
        let expected = match plain.from {
            Some(sge) => Piece::Data(sge),
            None => Piece::Inline(&block[at..at + plain.bytes as usize]),
        };
        assert_eq!(pieces, [expected]);
        Some(plain)
    }

    #[test]
    fn inline_bytes_may_fill_the_block() {
        for (bytes, ds, is_plain) in [(27, 4, true), (28, 4, true), (29, 5, false), (28, 5, false)]
        {
            let mut block = [0; WQEBB_BYTES];
            (block[3], block[7], block[32], block[35]) = (8, ds, 0x80, bytes);
            let plain = PlainWrite::parse(&block);
            assert_eq!(plain.map(|plain| plain.bytes), is_plain.then_some(bytes.into()), "{bytes}");
        }
    }

    proptest! {
        /// Streams that nearly are.
        #[test]
        fn a_stream_is_what_the_general_parser_finds(
            noise in prop::collection::vec(any::<u8>(), 300),
            opcode in prop_oneof![9 => Just(8u8), 1 => any::<u8>()],
            ds in prop_oneof![9 => Just(3u8), 1 => 0u8..64],
            count in prop_oneof![9 => 0u32..264, 1 => any::<u32>()],
            inline in prop_oneof![9 => Just(true), 1 => Just(false)],
        ) {
            let mut stream = noise;
            stream[3] = opcode;
            stream[7] = ds;
            let count = if inline { count | INLINE_FLAG } else { count & !INLINE_FLAG };
            stream[32..36].copy_from_slice(&count.to_be_bytes());
            let begin = stream.first_chunk().unwrap();
            let bytes = (count & !INLINE_FLAG) as usize;
            let plain = PlainWrite::parse_stream(begin);
            prop_assert_eq!(plain.is_some(), opcode == 8 && ds == 3 && inline && bytes != 0);
            let Some(plain) = plain.filter(|_| bytes <= 264) else { return Ok(()) };
            let stream = &stream[..36 + bytes];
            let wqe = Wqe::parse_stream(stream).expect("it is a WQE");
            prop_assert_eq!((wqe.opcode, wqe.index, wqe.qpn), (Opcode::RdmaWrite, plain.index, plain.qpn));
            prop_assert_eq!((wqe.flags, wqe.remote), (plain.flags, Some(plain.remote)));
            prop_assert_eq!((wqe.bytes, plain.bytes as usize, plain.from), (plain.bytes, bytes, None));
            let pieces: Vec<_> = wqe.pieces(stream).collect();
            prop_assert_eq!(pieces, [Piece::Inline(&stream[36..])]);
        }

        /// Blocks that are nearly plain WRITEs.
        #[test]
        fn a_plain_write_is_what_the_general_parser_finds(
            noise in prop::collection::vec(any::<u8>(), WQEBB_BYTES),
            opcode in prop_oneof![9 => Just(8u8), 1 => any::<u8>()],
            ds in 0u8..6,
            count in prop_oneof![0u32..40, Just(INLINE_FLAG), any::<u32>()],
            inline: bool,
        ) {
            let mut block: [u8; WQEBB_BYTES] = noise.try_into().unwrap();
            block[3] = opcode;
            block[7] = ds;
            let count = if inline { count | INLINE_FLAG } else { count };
            block[32..36].copy_from_slice(&count.to_be_bytes());
            let plain = agrees(&block);
            let bytes = count & !INLINE_FLAG;
            let inline = count != bytes;
            let fits = if inline { (1..=28).contains(&bytes) } else { bytes != 0 };
            let length = if inline && fits { (36 + bytes).div_ceil(16) } else { 3 };
            prop_assert_eq!(plain.is_some(), opcode == 8 && fits && u32::from(ds) == length);
        }
    }
}
