//! BTH and the extension headers as values (InfiniBand vol. 1, 9.2 to 9.4 and 9.7.5.1).

use bytemuck::{Pod, Zeroable};

use super::opcode::Opcode;
use super::packet::PacketError;
use crate::be::{Be16, Be32, Be64};
use crate::wqe::Masks;
use crate::{Iova, Psn, Qpn, Rkey};

/// Base transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bth {
    /// Service and operation of the packet.
    pub opcode: Opcode,
    /// The receiver's CQE raises an event (SE).
    pub solicited: bool,
    /// The sender's path migration has ended (M).
    pub migrated: bool,
    /// Bytes after the payload that fill it up to a multiple of 4.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Destination queue pair.
    pub dest: Qpn,
    /// An acknowledgement is asked for (A).
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

/// The default partition, full member.
pub(super) const DEFAULT_PKEY: u16 = 0xffff;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct BthWire {
    opcode: u8,
    /// SE 7, M 6, pad 5:4, TVer 3:0.
    flags: u8,
    pkey: Be16,
    /// FECN 31, BECN 30, reserved 29:24, destination 23:0.
    dest: Be32,
    /// A 31, reserved 30:24, PSN 23:0.
    psn: Be32,
}

impl Bth {
    /// A header with no flag set, in the default partition.
    #[inline]
    pub fn new(opcode: Opcode, dest: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            // Migration is not supported: the state is Migrated (9.2.3).
            migrated: true,
            pad: 0,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest,
            ack_req: false,
            psn,
        }
    }

    #[inline]
    pub(super) fn parse(wire: &BthWire) -> Result<Self, PacketError> {
        if wire.flags & 0xf != 0 {
            return Err(PacketError::Version(wire.flags & 0xf));
        }
        let opcode = Opcode::from_code(wire.opcode).ok_or(PacketError::Opcode(wire.opcode))?;
        let (dest, psn) = (wire.dest.get(), wire.psn.get());
        Ok(Self {
            opcode,
            solicited: wire.flags & 0x80 != 0,
            migrated: wire.flags & 0x40 != 0,
            pad: wire.flags >> 4 & 3,
            pkey: wire.pkey.get(),
            fecn: dest >> 31 != 0,
            becn: dest >> 30 & 1 != 0,
            dest: Qpn(dest & Qpn::MAX),
            ack_req: psn >> 31 != 0,
            psn: Psn::new(psn),
        })
    }

    #[inline]
    pub(super) fn emit(&self) -> BthWire {
        let bit = |set: bool, at: u32| u32::from(set) << at;
        BthWire {
            opcode: self.opcode.code(),
            flags: u8::from(self.solicited) << 7
                | u8::from(self.migrated) << 6
                | (self.pad & 3) << 4,
            pkey: self.pkey.into(),
            dest: (bit(self.fecn, 31) | bit(self.becn, 30) | self.dest.0 & Qpn::MAX).into(),
            psn: (bit(self.ack_req, 31) | self.psn.value()).into(),
        }
    }
}

/// RDMA extended transport header: target of a WRITE or source of a READ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reth {
    /// Address in the responder's region.
    pub addr: Iova,
    /// Key of the region.
    pub rkey: Rkey,
    /// Bytes of the whole message.
    pub bytes: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RethWire {
    addr: Be64,
    rkey: Be32,
    bytes: Be32,
}

impl From<&RethWire> for Reth {
    #[inline]
    fn from(wire: &RethWire) -> Self {
        let addr = Iova(wire.addr.get());
        Self { addr, rkey: Rkey(wire.rkey.get()), bytes: wire.bytes.get() }
    }
}

impl From<&Reth> for RethWire {
    #[inline]
    fn from(reth: &Reth) -> Self {
        Self { addr: reth.addr.0.into(), rkey: reth.rkey.0.into(), bytes: reth.bytes.into() }
    }
}

/// Atomic extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address in the responder's region, a multiple of 8.
    pub addr: Iova,
    /// Key of the region.
    pub rkey: Rkey,
    /// Value to swap in or to add.
    pub swap_add: u64,
    /// Value that CMP_SWAP compares with.
    pub compare: u64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct AtomicWire {
    addr: Be64,
    rkey: Be32,
    swap_add: Be64,
    compare: Be64,
}

impl From<&AtomicWire> for AtomicEth {
    #[inline]
    fn from(wire: &AtomicWire) -> Self {
        Self {
            addr: Iova(wire.addr.get()),
            rkey: Rkey(wire.rkey.get()),
            swap_add: wire.swap_add.get(),
            compare: wire.compare.get(),
        }
    }
}

impl From<&AtomicEth> for AtomicWire {
    #[inline]
    fn from(atomic: &AtomicEth) -> Self {
        Self {
            addr: atomic.addr.0.into(),
            rkey: atomic.rkey.0.into(),
            swap_add: atomic.swap_add.into(),
            compare: atomic.compare.into(),
        }
    }
}

/// Masks behind an atomic extended transport header, in packets of [`Operation::is_masked`].
///
/// [`Operation::is_masked`]: super::Operation::is_masked
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct MasksWire {
    change: Be64,
    compare: Be64,
    bytes: Be32,
}

impl From<&MasksWire> for Masks {
    #[inline]
    fn from(wire: &MasksWire) -> Self {
        // Any other size is refused as misaligned, whatever the address.
        let bytes = wire.bytes.get();
        Self { bytes, change: wire.change.get(), compare: wire.compare.get() }
    }
}

impl From<&Masks> for MasksWire {
    #[inline]
    fn from(masks: &Masks) -> Self {
        let (change, compare) = (masks.change.into(), masks.compare.into());
        Self { change, compare, bytes: masks.bytes.into() }
    }
}

/// ACK extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aeth {
    /// Kind of acknowledgement.
    pub syndrome: Syndrome,
    /// Message sequence number: number of requests that the responder has completed, modulo 2^24.
    pub msn: u32,
}

/// Syndrome of an AETH (table "AETH Syndrome Field").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Acknowledges all packets up to the PSN.
    Ack {
        /// Credit code: see [`super::credits`]; 31 where credits are not used.
        credits: u8,
    },
    /// The receiver is not ready.
    RnrNak {
        /// Timer code: see [`super::rnr_timer_ns`].
        timer: u8,
    },
    /// The responder refuses the request.
    Nak(NakCode),
}

/// Reason of a refusal (table "NAK Codes").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing; the requester resends from this PSN.
    PsnSequence = 0,
    /// The request is malformed.
    InvalidRequest = 1,
    /// The key, the bounds or the rights do not allow the access.
    RemoteAccess = 2,
    /// The responder failed to execute the request.
    RemoteOperational = 3,
    /// Invalid request on a reliable datagram service, which bellpush does not have.
    InvalidRdRequest = 4,
}

impl Syndrome {
    /// An acknowledgement without credits.
    pub const ACK: Self = Self::Ack { credits: 31 };

    /// The syndrome of a code; `None` for a reserved one.
    #[inline]
    pub fn from_code(code: u8) -> Option<Self> {
        let low = code & 0x1f;
        Some(match code >> 5 {
            0b000 => Self::Ack { credits: low },
            0b001 => Self::RnrNak { timer: low },
            0b011 => Self::Nak(match low {
                0 => NakCode::PsnSequence,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccess,
                3 => NakCode::RemoteOperational,
                4 => NakCode::InvalidRdRequest,
                _ => return None,
            }),
            _ => return None,
        })
    }

    /// The code on the wire.
    #[inline]
    pub fn code(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code as u8,
        }
    }
}

impl Aeth {
    #[inline]
    pub(super) fn parse(wire: Be32) -> Result<Self, PacketError> {
        let code = (wire.get() >> 24) as u8;
        let syndrome = Syndrome::from_code(code).ok_or(PacketError::Syndrome(code))?;
        Ok(Self { syndrome, msn: wire.get() & (Psn::MODULUS - 1) })
    }

    #[inline]
    pub(super) fn emit(&self) -> Be32 {
        (u32::from(self.syndrome.code()) << 24 | self.msn & (Psn::MODULUS - 1)).into()
    }
}

/// Datagram extended transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Source queue pair.
    pub source: Qpn,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct DethWire {
    qkey: Be32,
    /// Reserved 31:24, source 23:0.
    source: Be32,
}

impl From<&DethWire> for Deth {
    #[inline]
    fn from(wire: &DethWire) -> Self {
        Self { qkey: wire.qkey.get(), source: Qpn(wire.source.get() & Qpn::MAX) }
    }
}

impl From<&Deth> for DethWire {
    #[inline]
    fn from(deth: &Deth) -> Self {
        Self { qkey: deth.qkey.into(), source: (deth.source.0 & Qpn::MAX).into() }
    }
}

/// Header of a request of a dynamic connection: bellpush's own, as the opcodes are.
///
/// A session lasts from one moment at which its initiator has nothing outstanding to the next: all of its
/// requests go to one target. A target that does not know a session begins it with any of its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dceth {
    /// The target's access key.
    pub key: u64,
    /// Queue pair of the initiator, to which responses go.
    pub source: Qpn,
    /// PSN of the session's first packet.
    pub start: Psn,
    /// Drawn anew whenever the initiator is connected: what is left of an earlier one's packets is known by it. One
    /// more for a session that begins 2^22 PSNs or more after the first of its life, so that starts have an order.
    pub life: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct DcethWire {
    key: Be64,
    /// Reserved 31:24, source 23:0.
    source: Be32,
    /// Reserved 31:24, PSN 23:0.
    start: Be32,
    life: Be32,
}

impl From<&DcethWire> for Dceth {
    #[inline]
    fn from(wire: &DcethWire) -> Self {
        let source = Qpn(wire.source.get() & Qpn::MAX);
        let start = Psn::new(wire.start.get());
        Self { key: wire.key.get(), source, start, life: wire.life.get() }
    }
}

impl From<&Dceth> for DcethWire {
    #[inline]
    fn from(dc: &Dceth) -> Self {
        Self {
            key: dc.key.into(),
            source: (dc.source.0 & Qpn::MAX).into(),
            start: dc.start.value().into(),
            life: dc.life.into(),
        }
    }
}

const _: () = assert!(
    size_of::<BthWire>() == super::BTH_BYTES
        && size_of::<RethWire>() == 16
        && size_of::<AtomicWire>() == 28
        && size_of::<MasksWire>() == 20
        && size_of::<DethWire>() == 8
        && size_of::<DcethWire>() == 20
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roce::{Operation, Service};

    #[test]
    fn the_base_header_has_the_specifications_bits() {
        let mut bth =
            Bth::new(Opcode::rc(Operation::SendOnly), Qpn(0x01_0203), Psn::new(0x04_0506));
        assert_eq!(bytemuck::bytes_of(&bth.emit()), [4, 0x40, 0xff, 0xff, 0, 1, 2, 3, 0, 4, 5, 6]);
        bth.opcode = Opcode::new(Service::Ud, Operation::SendOnlyImm);
        (bth.solicited, bth.migrated, bth.pad, bth.pkey) = (true, false, 3, 0x8001);
        (bth.fecn, bth.ack_req) = (true, true);
        let bytes = [0x65, 0xb0, 0x80, 1, 0x80, 1, 2, 3, 0x80, 4, 5, 6];
        assert_eq!(bytemuck::bytes_of(&bth.emit()), bytes);
        assert_eq!(Bth::parse(&bytemuck::cast(bytes)), Ok(bth));
        (bth.fecn, bth.becn) = (false, true);
        assert_eq!(bytemuck::bytes_of(&bth.emit())[4], 0x40);
        assert_eq!(Bth::parse(&bth.emit()), Ok(bth));
    }

    #[test]
    fn versions_and_opcodes_that_are_not_known_are_refused() {
        let bytes = [4u8, 0x41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Bth::parse(&bytemuck::cast(bytes)), Err(PacketError::Version(1)));
        let bytes = [0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0u8];
        assert_eq!(Bth::parse(&bytemuck::cast(bytes)), Err(PacketError::Opcode(0x15)));
    }

    #[test]
    fn syndromes_are_those_of_the_table() {
        for (code, syndrome) in [
            (0x00, Some(Syndrome::Ack { credits: 0 })),
            (0x1f, Some(Syndrome::ACK)),
            (0x2e, Some(Syndrome::RnrNak { timer: 14 })),
            (0x60, Some(Syndrome::Nak(NakCode::PsnSequence))),
            (0x61, Some(Syndrome::Nak(NakCode::InvalidRequest))),
            (0x62, Some(Syndrome::Nak(NakCode::RemoteAccess))),
            (0x63, Some(Syndrome::Nak(NakCode::RemoteOperational))),
            (0x64, Some(Syndrome::Nak(NakCode::InvalidRdRequest))),
            (0x65, None),
            (0x40, None),
            (0x80, None),
        ] {
            assert_eq!(Syndrome::from_code(code), syndrome, "{code:#x}");
        }
        for code in 0..=u8::MAX {
            assert!(Syndrome::from_code(code).is_none_or(|s| s.code() == code), "{code:#x}");
        }
    }
}
