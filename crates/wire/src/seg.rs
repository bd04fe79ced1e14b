//! Segments of a WQE and their fields (mlx5 PRM, "Send WQE Format").

use super::masked::Kind;
use std::net::{IpAddr, Ipv6Addr};

use bytemuck::{Pod, Zeroable};

use super::be::{Be32, Be64};
use super::mmo::MMO_BYTES;
use super::roce::{Fields, ROCE_PORT};
use super::tm::LIST_HEADER_BYTES;
use super::umr::UMR_HEADER_BYTES;
use super::wait::WAIT_BYTES;
use super::{Iova, Lkey, Qpn, Rkey};

/// Bytes of a basic block.
pub const WQEBB_BYTES: usize = 64;
/// Bytes of the unit of `ctrl.ds`.
pub const DS_BYTES: usize = 16;
/// Largest `ctrl.ds`: it has 6 bits.
pub const MAX_DS: usize = 63;
/// Bytes of the longest WQE.
pub const MAX_WQE_BYTES: usize = MAX_DS * DS_BYTES;
/// Flag in a byte count: inline data follow.
pub const INLINE_FLAG: u32 = 0x8000_0000;
/// Key of the entry that ends a receive scatter list.
pub const INVALID_LKEY: Lkey = Lkey(0x100);
/// Bytes of the longest message; a data segment expresses them as a byte count of 0 (InfiniBand
/// vol. 1, 9.3.3).
pub const MAX_MESSAGE_BYTES: u32 = 1 << 31;

/// `fm_ce_se`, bit 1.
pub const CTRL_SOLICITED: u8 = 0x02;
/// `fm_ce_se`, bits 3:2 = 2: a CQE in every case, not only on error.
pub const CTRL_CQ_UPDATE: u8 = 0x08;
/// `fm_ce_se`, bits 7:5 = 1: initiator small fence.
pub const CTRL_FENCE_SMALL: u8 = 0x20;
const CTRL_FENCE_MASK: u8 = 0xe0;

/// Control segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct CtrlSeg {
    /// opmod 31:24, WQE index 23:8, opcode 7:0.
    pub opmod_idx_opcode: Be32,
    /// Queue pair number 31:8, ds 5:0.
    pub qpn_ds: Be32,
    /// Not used: bellpush creates queue pairs without signatures.
    pub signature: u8,
    /// Stream of an initiator of dynamic connections, big-endian.
    pub dci_stream: [u8; 2],
    /// Fence 7:5, completion 3:2, solicited 1.
    pub fm_ce_se: u8,
    /// Immediate data, or the key that the WQE changes or invalidates.
    pub imm: Be32,
}

/// Remote-address segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct RaddrSeg {
    /// Address in the remote region.
    pub raddr: Be64,
    /// Key of the remote region.
    pub rkey: Be32,
    /// Zero.
    pub reserved: Be32,
}

/// Address vector of a datagram (`mlx5_wqe_datagram_seg`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct AvSeg {
    /// Queue key; of DC the upper half of the access key.
    pub qkey: Be32,
    /// Zero; of DC the lower half of the access key.
    pub key_low: Be32,
    /// [`AV_EXTENDED`] 31, destination queue pair 23:0.
    pub dqp_dct: Be32,
    /// Rate and service level.
    pub stat_rate_sl: u8,
    /// Bit 7: force local loopback; not used.
    pub fl_mlid: u8,
    /// RoCEv2: UDP source port.
    pub rlid: [u8; 2],
    /// Zero.
    pub reserved1: [u8; 4],
    /// Destination MAC address.
    pub rmac: [u8; 6],
    /// Traffic class.
    pub tclass: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Bit 30: with GRH; flow label, 19:0.
    pub grh_gid_fl: Be32,
    /// GID of the destination: its IPv6 address, or its IPv4-mapped address.
    pub rgid: [u8; 16],
}

/// XRC segment: shared receive queue at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct XrcSeg {
    /// Number of the shared receive queue, 23:0.
    pub xrc_srqn: Be32,
    /// Zero.
    pub reserved: [u8; 12],
}

/// Bit of [`AvSeg::dqp_dct`]: the segment has its full length.
pub const AV_EXTENDED: u32 = 0x8000_0000;

/// Data segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct DataSeg {
    /// Bytes, 30:0; 0 means 2^31.
    pub byte_count: Be32,
    /// Key of the local region.
    pub lkey: Be32,
    /// Address in the local region.
    pub addr: Be64,
}

/// Header of inline data; the data follow, and padding to a multiple of 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct InlineHeader {
    /// [`INLINE_FLAG`] 31, bytes 30:0.
    pub byte_count: Be32,
}

/// Atomic segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct AtomicSeg {
    /// Value to swap in or to add.
    pub swap_add: Be64,
    /// Value that CMP_SWAP compares with.
    pub compare: Be64,
}

const _: () = assert!(
    size_of::<CtrlSeg>() == 16
        && size_of::<AvSeg>() == 48
        && size_of::<XrcSeg>() == 16
        && size_of::<RaddrSeg>() == 16
        && size_of::<DataSeg>() == 16
        && size_of::<InlineHeader>() == 4
        && size_of::<AtomicSeg>() == 16
);

/// Send opcodes that bellpush executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// No operation; it produces a CQE if one is asked for.
    Nop = 0x00,
    /// SEND that invalidates a key of the receiver.
    SendInval = 0x01,
    /// RDMA WRITE.
    RdmaWrite = 0x08,
    /// RDMA WRITE that consumes a receive and delivers immediate data.
    RdmaWriteImm = 0x09,
    /// SEND.
    Send = 0x0a,
    /// SEND with immediate data.
    SendImm = 0x0b,
    /// Waits for an entry of a CQ; see [`super::wait`].
    Wait = 0x0f,
    /// RDMA READ.
    RdmaRead = 0x10,
    /// Compare and swap of 8 bytes.
    AtomicCs = 0x11,
    /// Fetch and add of 8 bytes.
    AtomicFa = 0x12,
    /// Compare and swap of selected bits of 4 or 8 bytes.
    AtomicMaskedCs = 0x14,
    /// Fetch and add on fields of 4 or 8 bytes.
    AtomicMaskedFa = 0x15,
    /// Reads local memory and keeps nothing; see [`super::wait`].
    Dump = 0x23,
    /// Changes a memory key; see [`super::umr`].
    Umr = 0x25,
    /// Changes the list of a shared receive queue that matches tags; see [`super::tm`].
    TagMatching = 0x28,
    /// Copies within the NIC's reach; see [`super::mmo`].
    Mmo = 0x2f,
}

impl Opcode {
    /// Opcodes that a request may have, in numerical order. It lacks WAIT, DUMP, the masked atomics, tag matching and MMO:
    /// only other programs post those.
    pub const ALL: [Self; 10] = [
        Self::Nop,
        Self::SendInval,
        Self::RdmaWrite,
        Self::RdmaWriteImm,
        Self::Send,
        Self::SendImm,
        Self::RdmaRead,
        Self::AtomicCs,
        Self::AtomicFa,
        Self::Umr,
    ];

    /// The opcode of a code; `None` for an unknown one.
    #[inline]
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x00 => Self::Nop,
            0x01 => Self::SendInval,
            0x08 => Self::RdmaWrite,
            0x09 => Self::RdmaWriteImm,
            0x0a => Self::Send,
            0x0b => Self::SendImm,
            0x0f => Self::Wait,
            0x10 => Self::RdmaRead,
            0x11 => Self::AtomicCs,
            0x12 => Self::AtomicFa,
            0x14 => Self::AtomicMaskedCs,
            0x15 => Self::AtomicMaskedFa,
            0x23 => Self::Dump,
            0x25 => Self::Umr,
            0x28 => Self::TagMatching,
            0x2f => Self::Mmo,
            _ => return None,
        })
    }

    /// Whether the opcode is an atomic, masked or not.
    #[inline]
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicCs | Self::AtomicFa) || self.masked().is_some()
    }

    /// Kind of masked atomic; `None` for other opcodes.
    #[inline]
    pub fn masked(self) -> Option<Kind> {
        match self {
            Self::AtomicMaskedCs => Some(Kind::CompareSwap),
            Self::AtomicMaskedFa => Some(Kind::FetchAdd),
            _ => None,
        }
    }

    /// Whether a remote-address segment follows the control segment.
    #[inline]
    pub fn has_remote(self) -> bool {
        !self.is_local() && !matches!(self, Self::Send | Self::SendImm | Self::SendInval)
    }

    /// Whether the response is scattered to the local entries.
    #[inline]
    pub fn scatters(self) -> bool {
        self.is_atomic() || self == Self::RdmaRead
    }

    /// Whether the NIC executes the opcode without sending anything.
    #[inline]
    pub fn is_local(self) -> bool {
        self == Self::Nop || self.waits()
    }

    /// Whether the NIC executes the opcode when all before it is complete, and all behind it later.
    #[inline]
    pub fn waits(self) -> bool {
        matches!(self, Self::Wait | Self::Dump | Self::Umr | Self::TagMatching | Self::Mmo)
    }

    /// Bytes before the payload. For masked atomics: with operands of 16 bytes.
    #[inline]
    pub(super) fn header_bytes(self) -> usize {
        match self {
            Self::Wait | Self::Dump => return WAIT_BYTES,
            Self::Umr => return UMR_HEADER_BYTES,
            Self::TagMatching => return LIST_HEADER_BYTES,
            Self::Mmo => return MMO_BYTES,
            _ => {}
        }
        16 + 16 * usize::from(self.has_remote()) + 16 * usize::from(self.is_atomic())
    }
}

/// Flags of a control segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags {
    /// A CQE in every case, not only on error.
    pub cq_update: bool,
    /// The receiver's CQE raises an event.
    pub solicited: bool,
    /// The WQE waits for earlier READs and atomics.
    pub fence: bool,
}

impl Flags {
    /// [`Flags::cq_update`] alone.
    pub const SIGNALLED: Self = Self { cq_update: true, solicited: false, fence: false };

    #[inline]
    pub(super) fn from_bits(bits: u8) -> Self {
        Self {
            cq_update: bits & CTRL_CQ_UPDATE != 0,
            solicited: bits & CTRL_SOLICITED != 0,
            fence: bits & CTRL_FENCE_MASK != 0,
        }
    }

    #[inline]
    pub(super) fn bits(self) -> u8 {
        (u8::from(self.cq_update) * CTRL_CQ_UPDATE)
            | (u8::from(self.solicited) * CTRL_SOLICITED)
            | (u8::from(self.fence) * CTRL_FENCE_SMALL)
    }
}

/// A place in remote memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Address in the region.
    pub addr: Iova,
    /// Key of the region.
    pub rkey: Rkey,
}

/// Destination of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    /// GID of the destination NIC, as an IPv6 address.
    pub to: Ipv6Addr,
    /// Destination queue pair.
    pub qpn: Qpn,
    /// Queue key. If its top bit is set, the key of the sender's queue pair is sent instead
    /// (InfiniBand vol. 1, 10.2.5).
    pub qkey: u32,
    /// Lower half of the access key of a target of dynamic connections, whose upper half lies where the queue key does.
    pub key_low: u32,
    /// Type of service, or traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit; 0 for the default.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// UDP source port; 0 for the NIC's own.
    pub src_port: u16,
}

impl Datagram {
    /// A destination with default header fields.
    #[inline]
    pub fn new(to: Ipv6Addr, qpn: Qpn, qkey: u32) -> Self {
        let (traffic_class, hop_limit, flow_label, src_port) = (0, 64, 0, 0);
        Self { to, qpn, qkey, key_low: 0, traffic_class, hop_limit, flow_label, src_port }
    }

    #[inline]
    pub(super) fn parse(seg: &AvSeg) -> Self {
        Self {
            to: Ipv6Addr::from(seg.rgid),
            qpn: Qpn(seg.dqp_dct.get() & Qpn::MAX),
            qkey: seg.qkey.get(),
            key_low: seg.key_low.get(),
            traffic_class: seg.tclass,
            hop_limit: seg.hop_limit,
            flow_label: seg.grh_gid_fl.get() & 0xf_ffff,
            src_port: u16::from_be_bytes(seg.rlid),
        }
    }

    #[inline]
    pub(super) fn emit(&self) -> AvSeg {
        AvSeg {
            qkey: self.qkey.into(),
            key_low: self.key_low.into(),
            dqp_dct: (AV_EXTENDED | self.qpn.0 & Qpn::MAX).into(),
            rlid: self.src_port.to_be_bytes(),
            tclass: self.traffic_class,
            hop_limit: self.hop_limit,
            grh_gid_fl: (1 << 30 | self.flow_label & 0xf_ffff).into(),
            rgid: self.to.octets(),
            ..AvSeg::zeroed()
        }
    }

    /// Access key of a target of dynamic connections.
    #[inline]
    pub fn dc_key(&self) -> u64 {
        u64::from(self.qkey) << 32 | u64::from(self.key_low)
    }

    /// The destination as an address of its family: IPv4 for an IPv4-mapped GID.
    #[inline]
    pub fn address(&self) -> IpAddr {
        self.to.to_canonical()
    }

    /// Fields of the packet's IP and UDP headers.
    #[inline]
    pub fn fields(&self) -> Fields {
        Fields {
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            src_port: if self.src_port == 0 { ROCE_PORT } else { self.src_port },
            flow_label: self.flow_label,
        }
    }
}

/// Operands of an atomic, in the machine's byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operands {
    /// Value to swap in or to add.
    pub swap_add: u64,
    /// Value that CMP_SWAP compares with.
    pub compare: u64,
}

/// A gather or scatter entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    /// Address in the region.
    pub addr: Iova,
    /// Key of the region.
    pub lkey: Lkey,
    /// Length in bytes, at most [`MAX_MESSAGE_BYTES`].
    pub bytes: u32,
}

impl Sge {
    /// Decodes a data segment.
    #[inline]
    pub fn parse(seg: &DataSeg) -> Self {
        let count = seg.byte_count.get() & !INLINE_FLAG;
        Self {
            addr: Iova(seg.addr.get()),
            lkey: Lkey(seg.lkey.get()),
            bytes: if count == 0 { MAX_MESSAGE_BYTES } else { count },
        }
    }

    /// Encodes a data segment. A byte count of 0 stands for [`MAX_MESSAGE_BYTES`]; an empty entry
    /// has no encoding.
    #[inline]
    pub fn emit(&self) -> DataSeg {
        DataSeg {
            byte_count: (self.bytes & !INLINE_FLAG).into(),
            lkey: self.lkey.0.into(),
            addr: self.addr.0.into(),
        }
    }
}
