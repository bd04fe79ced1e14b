//! Tag matching: list operations, headers of messages, and what CQEs say (mlx5 PRM, "Tag Matching"; libmlx5's
//! `mlx5_wqe_tm_seg` and `mlx5_cqe64`, libibverbs' `tm_types.h`).
//!
//! A list operation's WQE is a control segment, a TM segment of 32 bytes and, if it appends an entry, one data segment.
//! A message begins with a TMH of 16 bytes; one that asks for a rendezvous goes on with an RVH of 16.

use bytemuck::{Pod, Zeroable};

use super::be::{Be16, Be64};
use super::wqe::{DS_BYTES, DataSeg, INVALID_LKEY, Sge, WqeError};
use super::{Iova, Rkey};

/// Bytes of a TMH.
pub const TMH_BYTES: usize = 16;
/// Bytes of a TMH and an RVH.
pub const RENDEZVOUS_BYTES: usize = 32;
/// `app` of a CQE that tells of tag matching.
pub const CQE_APP: u8 = 1;
/// Bytes of a list operation's control and TM segments.
pub(crate) const LIST_HEADER_BYTES: usize = 48;

const OP_NOOP: u8 = 0;
const OP_APPEND: u8 = 1;
const OP_REMOVE: u8 = 2;
const FLAG_REPORT: u8 = 1 << 7;
const FLAG_COUNT: u8 = 1 << 6;
/// `success` of a list operation's CQE.
const SUCCESS: u32 = 1 << 31;

/// TM segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct TmSeg {
    /// Operation 7:4.
    pub opcode: u8,
    /// A CQE 7, `sw_cnt` counts 6.
    pub flags: u8,
    /// Place of the entry to be removed, or of the one after that which is appended.
    pub index: Be16,
    /// Zero.
    pub reserved0: [u8; 2],
    /// Unexpected messages that the program has handled.
    pub sw_cnt: Be16,
    /// Zero.
    pub reserved1: [u8; 8],
    /// Tag of the entry.
    pub append_tag: Be64,
    /// Bits of the tag that count.
    pub append_mask: Be64,
}

/// What a list operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListOp {
    /// Nothing but what its count says.
    Noop,
    /// Fills the empty place at the end of the list.
    Append {
        /// The place that is the empty one at the end from then on.
        next: u16,
        /// Tag of the entry.
        tag: u64,
        /// Bits of the tag that count.
        mask: u64,
        /// Where the message goes; `None` for nowhere, which an empty one fits into.
        buffer: Option<Sge>,
    },
    /// Takes an entry off the list.
    Remove {
        /// Place of the entry.
        index: u16,
    },
}

/// A list operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListWqe {
    /// What it does.
    pub op: ListOp,
    /// Whether it produces a CQE.
    pub report: bool,
    /// Unexpected messages that the program has handled, modulo 2^16, if it says.
    pub handled: Option<u16>,
}

impl ListWqe {
    /// Parses a copy of a list operation's WQE, of `ds` units of 16 bytes.
    ///
    /// # Errors
    /// [`WqeError::Ds`] and [`WqeError::Segment`] for bytes that are none.
    pub fn parse(bytes: &[u8]) -> Result<Self, WqeError> {
        let seg = bytes.get(16..LIST_HEADER_BYTES).ok_or(WqeError::Ds(bytes.len() / DS_BYTES))?;
        let seg: TmSeg = bytemuck::pod_read_unaligned(seg);
        let op = match seg.opcode >> 4 {
            OP_NOOP => ListOp::Noop,
            OP_REMOVE => ListOp::Remove { index: seg.index.get() },
            OP_APPEND => {
                let end = LIST_HEADER_BYTES + DS_BYTES;
                let data = bytes.get(LIST_HEADER_BYTES..end);
                let data = data.ok_or(WqeError::Ds(bytes.len() / DS_BYTES))?;
                let sge = Sge::parse(&bytemuck::pod_read_unaligned::<DataSeg>(data));
                let buffer = Some(sge).filter(|sge| sge.lkey != INVALID_LKEY);
                let (tag, mask) = (seg.append_tag.get(), seg.append_mask.get());
                ListOp::Append { next: seg.index.get(), tag, mask, buffer }
            }
            _ => return Err(WqeError::Segment(16)),
        };
        let handled = (seg.flags & FLAG_COUNT != 0).then_some(seg.sw_cnt.get());
        Ok(Self { op, report: seg.flags & FLAG_REPORT != 0, handled })
    }
}

/// Kind of a message (`enum ibv_tmh_op`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It takes no part in matching: also the end of a rendezvous, and what is not known.
    NoTag,
    /// It asks the receiver to read the payload, and to say when it has.
    Rendezvous,
    /// The payload follows.
    Eager,
}

/// A TMH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tmh {
    /// Kind of the message.
    pub kind: Kind,
    /// The tag.
    pub tag: u64,
    /// Its bytes, as CQEs repeat them.
    pub bytes: [u8; TMH_BYTES],
}

impl Tmh {
    /// The header of a message that begins with these bytes; `None` if they are too few.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let bytes: [u8; TMH_BYTES] = *message.first_chunk()?;
        let kind = match bytes[0] {
            1 => Kind::Rendezvous,
            3 => Kind::Eager,
            _ => Kind::NoTag,
        };
        let tag = u64::from_be_bytes(*bytes.last_chunk()?);
        Some(Self { kind, tag, bytes })
    }

    /// The message that ends this one's rendezvous.
    pub fn end_of_rendezvous(&self) -> [u8; TMH_BYTES] {
        let mut bytes = self.bytes;
        bytes[..4].copy_from_slice(&[2, 0, 0, 0]);
        bytes
    }
}

/// An RVH: where the payload of a rendezvous lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rvh {
    /// Address in the sender's region.
    pub addr: Iova,
    /// Key of the sender's region.
    pub rkey: Rkey,
    /// Bytes of the payload.
    pub bytes: u32,
}

impl Rvh {
    /// The RVH of a message that begins with these bytes; `None` if they are too few.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let head: [u8; RENDEZVOUS_BYTES] = *message.first_chunk()?;
        let [.., addr, rest]: [Be64; 4] = bytemuck::cast(head);
        let (addr, rest) = (Iova(addr.get()), rest.get());
        Some(Self { addr, rkey: Rkey((rest >> 32) as u32), bytes: rest as u32 })
    }
}

/// What a CQE tells (`app_op`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Told {
    /// A message has matched; its payload is on its way.
    Consumed = 0x1,
    /// The payload of a message that has matched is there.
    Expected = 0x2,
    /// A message that did not match is in a receive.
    Unexpected = 0x3,
    /// A message that takes no part in matching is in a receive.
    NoTag = 0x4,
    /// An entry was appended.
    Append = 0x5,
    /// An entry was removed, or was not there any more.
    Remove = 0x6,
    /// An operation without an entry is done.
    Noop = 0x7,
    /// A message has matched, and its payload is there.
    ConsumedMessage = 0xa,
    /// A rendezvous has matched that is the program's to carry out: its message is in the entry's memory.
    ConsumedForSoftware = 0xb,
    /// A message has matched, and its payload will not come.
    Cancelled = 0xc,
}

impl Told {
    const ALL: [Self; 10] = [
        Self::Consumed,
        Self::Expected,
        Self::Unexpected,
        Self::NoTag,
        Self::Append,
        Self::Remove,
        Self::Noop,
        Self::ConsumedMessage,
        Self::ConsumedForSoftware,
        Self::Cancelled,
    ];
}

/// The part of a CQE that tells of tag matching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagInfo {
    /// What it tells.
    pub told: Told,
    /// Place of the entry in the list (`app_info`).
    pub index: u16,
    /// The CQE's first 16 bytes: a TMH, or see [`TagInfo::list`].
    pub head: [u8; TMH_BYTES],
}

impl TagInfo {
    /// Of a message.
    pub fn message(told: Told, index: u16, head: [u8; TMH_BYTES]) -> Self {
        Self { told, index, head }
    }

    /// Of a list operation: whether it was done, and the unexpected messages that there were.
    pub fn list(told: Told, success: bool, unexpected: u16) -> Self {
        let mut head = [0; TMH_BYTES];
        head[..4].copy_from_slice(&(u32::from(success) * SUCCESS).to_be_bytes());
        head[4..6].copy_from_slice(&unexpected.to_be_bytes());
        Self { told, index: 0, head }
    }

    /// `app`, `app_op` and `app_info`.
    pub(crate) fn tag(info: Option<&Self>) -> [u8; 4] {
        info.map_or([0; 4], |info| {
            let [high, low] = info.index.to_be_bytes();
            [CQE_APP, info.told as u8, high, low]
        })
    }

    /// From `app`, `app_op` and `app_info`, and the CQE's first bytes.
    pub(crate) fn parse([app, op, high, low]: [u8; 4], first: &[u8; 24]) -> Option<Self> {
        let told = Told::ALL.into_iter().find(|&told| told as u8 == op && app == CQE_APP)?;
        Some(Self { told, index: u16::from_be_bytes([high, low]), head: *first.first_chunk()? })
    }
}

const _: () = assert!(size_of::<TmSeg>() == 32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Qpn;
    use crate::cqe::{CQE_BYTES, Cqe, CqeOpcode};
    use proptest::prelude::*;

    #[test]
    fn a_list_operation_is_read_as_libmlx5_writes_it() {
        let mut wqe = [0; 64];
        wqe[16..24].copy_from_slice(&[0x10, 0xc0, 0x01, 0x02, 0, 0, 0x03, 0x04]);
        wqe[32..48].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        wqe[48..64].copy_from_slice(&[0, 0, 0, 9, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        let parsed = ListWqe::parse(&wqe).unwrap();
        let ListOp::Append { next, tag, mask, buffer } = parsed.op else { panic!("{parsed:?}") };
        assert_eq!((next, tag, mask), (0x102, 0x0102_0304_0506_0708, 0xffff));
        let buffer = buffer.unwrap();
        assert_eq!((buffer.bytes, buffer.lkey.0, buffer.addr.0), (9, 0x300, 0x1000));
        assert_eq!((parsed.report, parsed.handled), (true, Some(0x304)));
        assert_eq!(ListWqe::parse(&wqe[..48]), Err(WqeError::Ds(3)), "an entry without memory");
        wqe[16] = 0x20;
        assert_eq!(ListWqe::parse(&wqe[..48]).unwrap().op, ListOp::Remove { index: 0x102 });
        (wqe[16], wqe[17]) = (0, 0);
        let noop = ListWqe { op: ListOp::Noop, report: false, handled: None };
        assert_eq!(ListWqe::parse(&wqe[..48]), Ok(noop));
        wqe[16] = 0x30;
        assert_eq!(ListWqe::parse(&wqe), Err(WqeError::Segment(16)));
    }

    #[test]
    fn kinds_and_lengths_are_told_apart() {
        let kinds = [0, 1, 2, 3, 4].map(|op| Tmh::parse(&[op; 16]).unwrap().kind);
        let none = Kind::NoTag;
        assert_eq!(kinds, [none, Kind::Rendezvous, none, Kind::Eager, none]);
        assert_eq!(ListWqe::parse(&[0; 47]), Err(WqeError::Ds(2)), "no whole segment");
        let head = [0; 24];
        assert!(TagInfo::parse([CQE_APP, Told::Consumed as u8, 0, 0], &head).is_some());
        assert_eq!(TagInfo::parse([CQE_APP, 0xff, 0, 0], &head), None);
        assert_eq!(TagInfo::parse([CQE_APP ^ 2, Told::Consumed as u8, 0, 0], &head), None);
    }

    #[test]
    fn a_rendezvous_says_where_its_payload_lies_and_how_it_ends() {
        let mut message = [0; 32];
        message[..16].copy_from_slice(&[1, 0, 0, 0, 9, 8, 7, 6, 0, 0, 0, 0, 0, 0, 0, 5]);
        message[22..32].copy_from_slice(&[0x10, 0, 0, 0, 2, 0, 0, 1, 0, 0]);
        let tmh = Tmh::parse(&message).unwrap();
        assert_eq!((tmh.kind, tmh.tag), (Kind::Rendezvous, 5));
        assert_eq!(tmh.end_of_rendezvous(), [2, 0, 0, 0, 9, 8, 7, 6, 0, 0, 0, 0, 0, 0, 0, 5]);
        let rvh = Rvh { addr: Iova(0x1000), rkey: Rkey(0x200), bytes: 0x10000 };
        assert_eq!(Rvh::parse(&message), Some(rvh));
        assert_eq!((Tmh::parse(&message[..15]), Rvh::parse(&message[..31])), (None, None));
    }

    #[test]
    fn a_cqe_tells_it_where_mlx5_does() {
        let tag = TagInfo::message(Told::Consumed, 0x102, [7; 16]);
        let opcode = CqeOpcode::NoPacket;
        let cqe = Cqe { opcode, tag: Some(tag), ..Cqe::requester(Qpn(1), 0, 0, 40) };
        let bytes: [u8; CQE_BYTES] = cqe.emit(0);
        assert_eq!((bytes[..16].to_vec(), &bytes[40..44]), (vec![7; 16], &[1, 1, 1, 2][..]));
        assert_eq!((bytes[63], Cqe::parse(&bytes)), (0x60, Ok(cqe)));
        let head = TagInfo::list(Told::Remove, true, 0x304).head;
        assert_eq!(head[..6], [0x80, 0, 0, 0, 3, 4]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_operation_or_none(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (ListWqe::parse(&bytes), Tmh::parse(&bytes), Rvh::parse(&bytes));
        }
    }
}
