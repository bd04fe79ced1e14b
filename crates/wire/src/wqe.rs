//! Send work queue entries (mlx5 PRM, "Send WQE Format").
//!
//! A WQE is a control segment; then, by opcode, a remote-address segment and an atomic segment;
//! then data segments and inline data. Its length ("ds") is in units of 16 bytes; a ring counts in
//! basic blocks of 64 bytes. [`SendWr`] is a request and emits it as a WQE. [`Wqe`] is the result
//! of parsing a copy of the bytes. It does not copy the payload's segments: [`Wqe::pieces`] walks
//! them in the bytes.

use std::fmt;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};

pub use super::masked::{Kind, Masks};
pub use super::seg::*;
use super::{Iova, Qpn, Rkey};

/// A part of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Memory of a gather or scatter entry.
    Data(Sge),
    /// Inline data in the WQE.
    Inline(&'a [u8]),
}

/// Reason why bytes are not a WQE, or why a request cannot be emitted as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WqeError {
    /// The WQE takes more bytes than there are.
    Short {
        /// Bytes given.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// An opcode that is not executed.
    Opcode(u8),
    /// ds does not cover the opcode's segments, or is too large for 6 bits.
    Ds(usize),
    /// Offset of a segment that reaches beyond the WQE, or whose kind the opcode does not take.
    Segment(usize),
    /// An atomic's local entry is not as long as its operand.
    AtomicLength(u64),
    /// The message is longer than 2^31 bytes.
    Message(u64),
}

impl fmt::Display for WqeError {
    #[inline]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { have, need } => write!(f, "{have} bytes hold no WQE of {need}"),
            Self::Opcode(n) => write!(f, "opcode {n:#x} is not known"),
            Self::Ds(n) => write!(f, "ds {n} does not fit the opcode"),
            Self::Segment(n) => write!(f, "the segment at byte {n} does not fit"),
            Self::AtomicLength(n) => write!(f, "an atomic does not return {n} bytes"),
            Self::Message(n) => write!(f, "a message of {n} bytes is longer than 2^31"),
        }
    }
}

impl std::error::Error for WqeError {}

/// The fields of a control segment, unchecked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ctrl {
    /// Opcode, known or not.
    pub opcode: u8,
    /// Modifier of the opcode.
    pub op_mod: u8,
    /// WQE index, in basic blocks modulo 2^16.
    pub index: u16,
    /// Queue pair number.
    pub qpn: Qpn,
    /// Length in 16-byte units.
    pub ds: u8,
    /// Completion, solicited, fence.
    pub flags: Flags,
    /// Immediate data.
    pub imm: u32,
    /// Stream of an initiator of dynamic connections.
    pub stream: u16,
}

impl Ctrl {
    /// Decodes a control segment.
    ///
    /// # Errors
    /// [`WqeError::Short`] for fewer than 16 bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WqeError> {
        let seg: CtrlSeg = segment(bytes, 0)?;
        let (first, second) = (seg.opmod_idx_opcode.get(), seg.qpn_ds.get());
        Ok(Self {
            opcode: first as u8,
            op_mod: (first >> 24) as u8,
            index: (first >> 8) as u16,
            qpn: Qpn(second >> 8),
            ds: (second & 0x3f) as u8,
            flags: Flags::from_bits(seg.fm_ce_se),
            imm: seg.imm.get(),
            stream: u16::from_be_bytes(seg.dci_stream),
        })
    }

    /// Basic blocks that the WQE takes in a ring; at least one, also for a ds of 0.
    #[inline]
    pub fn blocks(&self) -> u32 {
        u32::from(self.ds).div_ceil(4).max(1)
    }
}

/// A checked WQE. The payload's segments stay in the bytes that it was parsed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wqe {
    /// The operation.
    pub opcode: Opcode,
    /// WQE index.
    pub index: u16,
    /// Queue pair number.
    pub qpn: Qpn,
    /// Length in 16-byte units.
    pub ds: u8,
    /// Completion, solicited, fence.
    pub flags: Flags,
    /// Immediate data, or the key that the WQE changes or invalidates.
    pub imm: u32,
    /// Remote address, for opcodes that have one.
    pub remote: Option<Remote>,
    /// Operands, for atomics.
    pub atomic: Option<Operands>,
    /// Masks, for masked atomics.
    pub masks: Option<Masks>,
    /// Destination, on a queue pair that sends datagrams.
    pub datagram: Option<Datagram>,
    /// Shared receive queue of the receiver, on an XRC queue pair.
    pub srqn: Option<u32>,
    /// Stream, on an initiator of dynamic connections.
    pub stream: u16,
    /// Bytes of the whole payload.
    pub bytes: u32,
    /// Byte range of the payload's segments in the parsed bytes.
    pub payload: Range<u32>,
}

impl Wqe {
    /// Parses a copy of a WQE in a ring.
    ///
    /// # Errors
    /// [`WqeError`] for bytes that are invalid by themselves. The NIC checks keys, addresses, the
    /// index and the queue pair number.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WqeError> {
        let ctrl = Ctrl::parse(bytes)?;
        Self::parse_to(bytes, &ctrl, usize::from(ctrl.ds) * DS_BYTES, Second::None)
    }

    /// Parses a copy of a WQE of an XRC queue pair, in which an XRC segment follows the control
    /// segment.
    ///
    /// # Errors
    /// As [`Wqe::parse`].
    #[inline]
    pub fn parse_xrc(bytes: &[u8]) -> Result<Self, WqeError> {
        let ctrl = Ctrl::parse(bytes)?;
        Self::parse_to(bytes, &ctrl, usize::from(ctrl.ds) * DS_BYTES, Second::Xrc)
    }

    /// Parses a copy of a WQE of a datagram queue pair, in which an address vector follows the
    /// control segment.
    ///
    /// # Errors
    /// As [`Wqe::parse`]; [`WqeError::Opcode`] for anything but SEND and NOP.
    #[inline]
    pub fn parse_datagram(bytes: &[u8]) -> Result<Self, WqeError> {
        let ctrl = Ctrl::parse(bytes)?;
        Self::parse_to(bytes, &ctrl, usize::from(ctrl.ds) * DS_BYTES, Second::Av)
    }

    /// Parses a copy of a WQE of an initiator of dynamic connections, in which the target's address vector follows the
    /// control segment.
    ///
    /// # Errors
    /// As [`Wqe::parse`].
    #[inline]
    pub fn parse_dc(bytes: &[u8]) -> Result<Self, WqeError> {
        let ctrl = Ctrl::parse(bytes)?;
        Self::parse_to(bytes, &ctrl, usize::from(ctrl.ds) * DS_BYTES, Second::Target)
    }

    /// Parses the data stream of an in-band slot. [`super::inband::stream_need`] gives its end.
    ///
    /// # Errors
    /// As [`Wqe::parse`].
    #[inline]
    pub fn parse_stream(stream: &[u8]) -> Result<Self, WqeError> {
        let wqe = Self::parse_to(stream, &Ctrl::parse(stream)?, stream.len(), Second::None)?;
        // The stream's format has no room for masks.
        if wqe.masks.is_some() { Err(WqeError::Opcode(wqe.opcode as u8)) } else { Ok(wqe) }
    }

    #[inline]
    fn parse_to(bytes: &[u8], ctrl: &Ctrl, end: usize, second: Second) -> Result<Self, WqeError> {
        let opcode = Opcode::from_code(ctrl.opcode)
            .filter(|op| {
                second != Second::Av || matches!(op, Opcode::Send | Opcode::SendImm | Opcode::Nop)
            })
            .ok_or(WqeError::Opcode(ctrl.opcode))?;
        let second = if opcode.is_local() { Second::None } else { second };
        let ds = usize::from(ctrl.ds);
        let masked = Masks::layout(opcode, ctrl)?;
        let more = masked.map_or(0, |(_, _, more)| more);
        let (at, header) = (16 + second.bytes(), opcode.header_bytes() + second.bytes() + more);
        if ds * DS_BYTES < header || end < header {
            return Err(WqeError::Ds(ds));
        }
        let have = bytes.len();
        let bytes = bytes.get(..end).ok_or(WqeError::Short { have, need: end })?;
        let mut wqe = Self {
            opcode,
            index: ctrl.index,
            qpn: ctrl.qpn,
            ds: ctrl.ds,
            flags: ctrl.flags,
            imm: ctrl.imm,
            remote: None,
            atomic: None,
            masks: None,
            datagram: None,
            srqn: None,
            stream: ctrl.stream,
            bytes: 0,
            payload: header as u32..end as u32,
        };
        if opcode.is_local() {
            // The bytes after a NOP's control segment are padding; `Umr::parse` reads those of a
            // UMR.
            wqe.payload = 16..16;
            return Ok(wqe);
        }
        if opcode.has_remote() {
            let seg: RaddrSeg = segment(bytes, at)?;
            wqe.remote = Some(Remote { addr: Iova(seg.raddr.get()), rkey: Rkey(seg.rkey.get()) });
        }
        if let Some((kind, each, _)) = masked {
            let (operands, masks) = Masks::parse(kind, each, &bytes[at + 16..header])?;
            (wqe.atomic, wqe.masks) = (Some(operands), Some(masks));
        } else if opcode.is_atomic() {
            let seg: AtomicSeg = segment(bytes, at + 16)?;
            wqe.atomic =
                Some(Operands { swap_add: seg.swap_add.get(), compare: seg.compare.get() });
        }
        match second {
            Second::None => {}
            Second::Av | Second::Target => {
                let seg: AvSeg = segment(bytes, 16)?;
                // A short one, of 16 bytes, has no GID.
                if second == Second::Target && seg.dqp_dct.get() & AV_EXTENDED == 0 {
                    return Err(WqeError::Segment(16));
                }
                wqe.datagram = Some(Datagram::parse(&seg));
            }
            Second::Xrc => {
                let seg: XrcSeg = segment(bytes, 16)?;
                wqe.srqn = Some(seg.xrc_srqn.get() & 0xff_ffff);
            }
        }
        let mut total = 0u64;
        let mut at = header;
        while at < end {
            let (piece, next) = piece_at(bytes, at)?;
            total += match piece {
                Piece::Data(sge) => u64::from(sge.bytes),
                Piece::Inline(_) if opcode.scatters() => return Err(WqeError::Segment(at)),
                Piece::Inline(data) => data.len() as u64,
            };
            at = next;
        }
        if opcode.is_atomic() && total != wqe.masks.map_or(8, |masks| masks.bytes.into()) {
            return Err(WqeError::AtomicLength(total));
        }
        if total > u64::from(MAX_MESSAGE_BYTES) {
            return Err(WqeError::Message(total));
        }
        wqe.bytes = total as u32;
        Ok(wqe)
    }

    /// Walks the payload. `bytes` are those that the WQE was parsed from.
    #[inline]
    pub fn pieces<'a>(&self, bytes: &'a [u8]) -> Pieces<'a> {
        let end = (self.payload.end as usize).min(bytes.len());
        Pieces { bytes: &bytes[..end], at: self.payload.start as usize }
    }

    /// Sets the length of a WQE with one data entry to `total` bytes, also in the bytes that it was
    /// parsed from.
    ///
    /// # Panics
    /// When `bytes` are not those that the WQE was parsed from.
    #[inline]
    pub fn extend(&mut self, bytes: &mut [u8], total: u32) {
        let at = self.payload.start as usize;
        bytes[at..at + 4].copy_from_slice(&total.to_be_bytes());
        self.bytes = total;
    }

    /// Basic blocks that the WQE takes in a ring.
    #[inline]
    pub fn blocks(&self) -> u32 {
        u32::from(self.ds).div_ceil(4).max(1)
    }
}

/// Segment between the control segment and the remote-address segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Second {
    None,
    /// An address vector, of datagram queue pairs.
    Av,
    /// An address vector, of initiators of dynamic connections.
    Target,
    Xrc,
}

impl Second {
    #[inline]
    fn bytes(self) -> usize {
        match self {
            Self::None => 0,
            Self::Av | Self::Target => size_of::<AvSeg>(),
            Self::Xrc => size_of::<XrcSeg>(),
        }
    }
}

/// Iterator over the pieces of a WQE's payload.
#[derive(Debug, Clone)]
pub struct Pieces<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    #[inline]
    fn next(&mut self) -> Option<Piece<'a>> {
        // Parsed bytes have no error here; an error in other bytes ends the walk.
        let (piece, next) = piece_at(self.bytes, self.at).ok()?;
        self.at = next;
        Some(piece)
    }
}

/// The segment at an offset, and the offset of the next one, which may lie beyond the end.
#[inline]
fn piece_at(bytes: &[u8], at: usize) -> Result<(Piece<'_>, usize), WqeError> {
    let bad = WqeError::Segment(at);
    let header: InlineHeader = segment(bytes, at).map_err(|_| bad)?;
    let count = header.byte_count.get();
    if count & INLINE_FLAG == 0 {
        let seg: DataSeg = segment(bytes, at).map_err(|_| bad)?;
        return Ok((Piece::Data(Sge::parse(&seg)), at + DS_BYTES));
    }
    let start = at + 4;
    let end = start + (count & !INLINE_FLAG) as usize;
    let data = bytes.get(start..end).ok_or(bad)?;
    Ok((Piece::Inline(data), end.next_multiple_of(DS_BYTES)))
}

#[inline]
fn segment<T: Pod>(bytes: &[u8], at: usize) -> Result<T, WqeError> {
    let need = at + size_of::<T>();
    let part = bytes.get(at..need).ok_or(WqeError::Short { have: bytes.len(), need })?;
    Ok(bytemuck::pod_read_unaligned(part))
}

/// A send work request that can be emitted as a WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendWr<'a> {
    /// The operation.
    pub opcode: Opcode,
    /// Completion, solicited, fence.
    pub flags: Flags,
    /// Immediate data.
    pub imm: u32,
    /// Remote address, for opcodes that have one.
    pub remote: Option<Remote>,
    /// Operands, for atomics.
    pub atomic: Option<Operands>,
    /// Destination, for a queue pair that sends datagrams.
    pub datagram: Option<Datagram>,
    /// Shared receive queue of the receiver, for an XRC queue pair.
    pub srqn: Option<u32>,
    /// Stream, for an initiator of dynamic connections.
    pub stream: u16,
    /// Payload, in order. Empty entries are left out, as libmlx5 does.
    pub payload: &'a [Piece<'a>],
}

impl<'a> SendWr<'a> {
    /// A signalled request without payload.
    #[inline]
    pub fn new(opcode: Opcode) -> Self {
        let flags = Flags::SIGNALLED;
        let (remote, atomic, datagram, srqn) = (None, None, None, None);
        Self { opcode, flags, imm: 0, remote, atomic, datagram, srqn, stream: 0, payload: &[] }
    }

    /// The same request with a remote address.
    #[must_use]
    #[inline]
    pub fn to(self, addr: Iova, rkey: Rkey) -> Self {
        Self { remote: Some(Remote { addr, rkey }), ..self }
    }

    /// The same request with a payload.
    #[must_use]
    #[inline]
    pub fn payload(self, payload: &'a [Piece<'a>]) -> Self {
        Self { payload, ..self }
    }

    #[inline]
    fn header_bytes(&self) -> usize {
        self.opcode.header_bytes() + self.second().bytes()
    }

    #[inline]
    fn second(&self) -> Second {
        match (self.datagram, self.srqn) {
            (Some(_), _) => Second::Av,
            (None, Some(_)) => Second::Xrc,
            (None, None) => Second::None,
        }
    }

    /// Bytes up to the end of the last segment, before padding to 16.
    #[inline]
    fn bytes(&self) -> usize {
        let mut at = self.header_bytes();
        for piece in self.payload {
            at = at.next_multiple_of(DS_BYTES)
                + match piece {
                    Piece::Data(sge) if sge.bytes == 0 => 0,
                    Piece::Data(_) => 16,
                    Piece::Inline(data) => 4 + data.len(),
                };
        }
        at
    }

    /// Basic blocks that the request takes in a ring.
    #[inline]
    pub fn blocks(&self) -> u32 {
        self.bytes().div_ceil(WQEBB_BYTES) as u32
    }

    /// Emits the WQE into whole basic blocks, zero-padded, and returns their number.
    ///
    /// # Errors
    /// [`WqeError::Ds`] when it is longer than [`MAX_WQE_BYTES`], [`WqeError::Short`] when `into`
    /// is shorter than its blocks.
    #[inline]
    pub fn emit(&self, index: u16, qpn: Qpn, into: &mut [u8]) -> Result<u32, WqeError> {
        let ds = self.bytes().div_ceil(DS_BYTES);
        let blocks = self.blocks();
        self.emit_to(index, qpn, ds, blocks as usize * WQEBB_BYTES, into)?;
        Ok(blocks)
    }

    /// Emits the data stream of an in-band slot and returns its length in bytes.
    ///
    /// ds counts up to and including the 16-byte unit in which an inline header begins: ds has only
    /// 6 bits, and the inline byte count gives the end of the stream (see [`super::inband`]).
    ///
    /// # Errors
    /// As [`SendWr::emit`]; [`WqeError::Segment`] for inline data that is not last.
    #[inline]
    pub fn emit_stream(&self, ticket: u64, qpn: Qpn, into: &mut [u8]) -> Result<usize, WqeError> {
        let end = self.bytes();
        let ds = match self.payload.split_last() {
            Some((Piece::Inline(data), before)) => {
                if before.iter().any(|p| matches!(p, Piece::Inline(_))) {
                    return Err(WqeError::Segment(self.opcode.header_bytes()));
                }
                (end - data.len() - 4) / DS_BYTES + 1
            }
            _ => end.div_ceil(DS_BYTES),
        };
        self.emit_to(ticket as u16, qpn, ds, end, into)?;
        Ok(end)
    }

    #[inline]
    fn emit_to(
        &self,
        index: u16,
        qpn: Qpn,
        ds: usize,
        need: usize,
        into: &mut [u8],
    ) -> Result<(), WqeError> {
        if self.opcode.masked().is_some() {
            return Err(WqeError::Opcode(self.opcode as u8)); // a request has no masks
        }
        if ds > MAX_DS {
            return Err(WqeError::Ds(ds));
        }
        let have = into.len();
        let into = into.get_mut(..need).ok_or(WqeError::Short { have, need })?;
        into.fill(0);
        let ctrl = CtrlSeg {
            opmod_idx_opcode: (u32::from(index) << 8 | self.opcode as u32).into(),
            qpn_ds: (qpn.0 << 8 | ds as u32).into(),
            dci_stream: self.stream.to_be_bytes(),
            fm_ce_se: self.flags.bits(),
            imm: self.imm.into(),
            ..CtrlSeg::zeroed()
        };
        put(into, 0, &ctrl);
        let at = 16 + self.second().bytes();
        if self.opcode.has_remote() {
            let remote = self.remote.unwrap_or(Remote { addr: Iova(0), rkey: Rkey(0) });
            let seg = RaddrSeg {
                raddr: remote.addr.0.into(),
                rkey: remote.rkey.0.into(),
                ..RaddrSeg::zeroed()
            };
            put(into, at, &seg);
        }
        if self.opcode.is_atomic() {
            let ops = self.atomic.unwrap_or(Operands { swap_add: 0, compare: 0 });
            let seg = AtomicSeg { swap_add: ops.swap_add.into(), compare: ops.compare.into() };
            put(into, at + 16, &seg);
        }
        if let Some(datagram) = &self.datagram {
            put(into, 16, &datagram.emit());
        } else if let Some(srqn) = self.srqn {
            put(into, 16, &XrcSeg { xrc_srqn: (srqn & 0xff_ffff).into(), ..XrcSeg::zeroed() });
        }
        let mut at = self.header_bytes();
        for piece in self.payload {
            match piece {
                Piece::Data(sge) if sge.bytes == 0 => {}
                Piece::Data(sge) => {
                    put(into, at, &sge.emit());
                    at += DS_BYTES;
                }
                Piece::Inline(data) => {
                    let count = INLINE_FLAG | data.len() as u32;
                    put(into, at, &InlineHeader { byte_count: count.into() });
                    into[at + 4..at + 4 + data.len()].copy_from_slice(data);
                    at = (at + 4 + data.len()).next_multiple_of(DS_BYTES);
                }
            }
        }
        Ok(())
    }
}

#[inline]
fn put<T: Pod>(into: &mut [u8], at: usize, seg: &T) {
    into[at..at + size_of::<T>()].copy_from_slice(bytemuck::bytes_of(seg));
}

#[cfg(test)]
#[path = "wqe_tests.rs"]
mod tests;
