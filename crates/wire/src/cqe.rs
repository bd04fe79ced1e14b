//! Completion queue entries (mlx5 PRM, "Completion Queue Entry Format").

use bytemuck::{Pod, Zeroable};
use std::fmt;

use super::Qpn;
use super::be::{Be16, Be32, Be64};
use super::tm::TagInfo;

/// Bytes of a CQE.
pub const CQE_BYTES: usize = 64;
/// Offset of the entry's last 8 bytes. A poller reads them; the NIC stores them last.
pub const CQE_TAIL_OFFSET: usize = 56;
/// Byte range of a successful entry's timestamp: big-endian, in ticks of the NIC's clock.
pub const CQE_TIMESTAMP: std::ops::Range<usize> = 48..56;
/// `op_own` of an entry that was never written: opcode INVALID, owner 1 (as libmlx5 sets it).
pub const OP_OWN_INIT: u8 = 0xf1;

/// The 64 bytes of a CQE.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct CqeBytes {
    /// Tag matching: see [`TagInfo::head`]; other scattered data and offload results are not used.
    pub head: [u8; 24],
    /// Received datagrams: GRH present 29:28, UDP header 27, kind of network header 26:24, source queue pair 23:0.
    pub flags_rqpn: Be32,
    /// Offload results; not used.
    pub reserved2: [u8; 4],
    /// SRQ number, or user index (CQE version 1).
    pub srqn_uidx: Be32,
    /// Immediate data, or invalidated key.
    pub imm_inval_pkey: Be32,
    /// Application: tag matching 31:24, what is told 23:16, place in the list 15:0.
    pub app: [u8; 4],
    /// Bytes received, read, or exchanged by an atomic.
    pub byte_cnt: Be32,
    /// Bytes 48..56: the timestamp; in an error CQE, vendor error (byte 54) and syndrome (byte 55).
    pub timestamp: Be64,
    /// Opcode of the send WQE 31:24, queue pair number 23:0.
    pub sop_drop_qpn: Be32,
    /// Index of the WQE that completed.
    pub wqe_counter: Be16,
    /// Not used: bellpush creates CQs without signatures.
    pub signature: u8,
    /// Opcode 7:4, format 3:2, solicited 1, owner 0.
    pub op_own: u8,
}
const _: () = assert!(size_of::<CqeBytes>() == CQE_BYTES);

/// Opcode of a CQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum CqeOpcode {
    /// Requester: a send WQE has completed.
    Req = 0x0,
    /// Responder: an RDMA WRITE with immediate arrived.
    RespWrImm = 0x1,
    /// Responder: a SEND arrived.
    RespSend = 0x2,
    /// Responder: a SEND with immediate arrived.
    RespSendImm = 0x3,
    /// Responder: a SEND arrived and invalidated a key.
    RespSendInv = 0x4,
    /// The CQ continues in another ring.
    Resize = 0x5,
    /// Tag matching: no message has ended.
    NoPacket = 0x6,
    /// Requester error.
    ReqErr = 0xd,
    /// Responder error.
    RespErr = 0xe,
    /// The entry has not been written yet.
    Invalid = 0xf,
}

impl CqeOpcode {
    #[inline]
    fn from_bits(bits: u8) -> Option<Self> {
        use CqeOpcode::*;
        [Req, RespWrImm, RespSend, RespSendImm, RespSendInv, Resize, NoPacket]
            .into_iter()
            .chain([ReqErr, RespErr, Invalid])
            .find(|&op| op as u8 == bits)
    }

    /// Whether the entry reports an error.
    #[inline]
    pub fn is_error(self) -> bool {
        matches!(self, Self::ReqErr | Self::RespErr)
    }
}

/// Syndrome of an error CQE (mlx5 PRM, "CQE Error Syndromes"; meanings: InfiniBand vol. 1,
/// 11.6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Syndrome {
    /// The message is longer than its buffers or than a message may be.
    LocalLength = 0x01,
    /// The WQE is malformed.
    LocalQpOp = 0x02,
    /// A gather or scatter entry names memory that the queue pair may not access.
    LocalProt = 0x04,
    /// The queue pair was in error before the NIC executed the WQE.
    WrFlush = 0x05,
    /// A memory window could not be bound.
    MwBind = 0x06,
    /// The response was malformed.
    BadResp = 0x10,
    /// A local access at the responder failed.
    LocalAccess = 0x11,
    /// The responder refused the request as malformed.
    RemoteInvalReq = 0x12,
    /// The responder refused the access: key, bounds or rights.
    RemoteAccess = 0x13,
    /// The responder failed to execute the request.
    RemoteOp = 0x14,
    /// The retries ended without an answer.
    TransportRetryExc = 0x15,
    /// The responder was still not ready when the RNR retries ended.
    RnrRetryExc = 0x16,
    /// The responder aborted the operation.
    RemoteAborted = 0x22,
}

impl Syndrome {
    /// All syndromes, in numerical order.
    pub const ALL: [Self; 13] = [
        Self::LocalLength,
        Self::LocalQpOp,
        Self::LocalProt,
        Self::WrFlush,
        Self::MwBind,
        Self::BadResp,
        Self::LocalAccess,
        Self::RemoteInvalReq,
        Self::RemoteAccess,
        Self::RemoteOp,
        Self::TransportRetryExc,
        Self::RnrRetryExc,
        Self::RemoteAborted,
    ];

    /// The syndrome of a code; `None` for an unknown one.
    #[inline]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&s| s as u8 == code)
    }
}

/// Network header of a received datagram (`L3_Header_Type` of a responder's CQE over RoCE): where in the 40 bytes
/// that its buffer begins with a program finds the addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum NetworkHeader {
    /// All 40 bytes.
    Ipv6 = 1,
    /// The last 20 bytes.
    Ipv4 = 2,
}

impl NetworkHeader {
    /// Whether there is a header, in the buffer.
    const IN_BUFFER: u32 = 1 << 28;
    /// Whether a UDP header follows: RoCEv2.
    const UDP: u32 = 1 << 27;

    #[inline]
    fn to_flags(header: Option<Self>) -> u32 {
        header.map_or(0, |kind| Self::IN_BUFFER | Self::UDP | (kind as u32) << 24)
    }

    #[inline]
    fn from_flags(flags: u32) -> Option<Self> {
        match flags >> 24 & 7 {
            1 => Some(Self::Ipv6),
            2 => Some(Self::Ipv4),
            _ => None,
        }
    }
}

/// The fields of a CQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cqe {
    /// Kind of completion.
    pub opcode: CqeOpcode,
    /// Queue pair that the entry belongs to.
    pub qpn: Qpn,
    /// Opcode of the send WQE; 0 at a responder.
    pub send_opcode: u8,
    /// Index of the WQE that completed.
    pub wqe_counter: u16,
    /// Bytes received, read, or exchanged by an atomic.
    pub byte_cnt: u32,
    /// Immediate data, or the key that was invalidated.
    pub imm: u32,
    /// User index (CQE version 1), 24 bits.
    pub uidx: u32,
    /// Sender's queue pair of a received datagram; 0 for any other message.
    pub source: Qpn,
    /// What the receive buffer of a datagram begins with; `None` for any other message.
    pub network: Option<NetworkHeader>,
    /// Whether the sender asked for an event.
    pub solicited: bool,
    /// Syndrome code of an error; else 0.
    pub syndrome: u8,
    /// The NIC's vendor code of an error; else 0.
    pub vendor_err: u8,
    /// What is told of tag matching.
    pub tag: Option<TagInfo>,
}

/// A CQE opcode that [`CqeOpcode`] does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CqeOpcodeError(pub u8);

impl fmt::Display for CqeOpcodeError {
    #[inline]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CQE opcode {:#x} is not known", self.0)
    }
}

impl std::error::Error for CqeOpcodeError {}

impl Cqe {
    /// A successful completion of a send WQE.
    #[inline]
    pub fn requester(qpn: Qpn, send_opcode: u8, wqe_counter: u16, byte_cnt: u32) -> Self {
        Self {
            opcode: CqeOpcode::Req,
            qpn,
            send_opcode,
            wqe_counter,
            byte_cnt,
            imm: 0,
            uidx: 0,
            source: Qpn(0),
            network: None,
            solicited: false,
            syndrome: 0,
            vendor_err: 0,
            tag: None,
        }
    }

    /// An error entry: `opcode` is [`CqeOpcode::ReqErr`] or [`CqeOpcode::RespErr`].
    #[inline]
    pub fn error(
        opcode: CqeOpcode,
        qpn: Qpn,
        wqe_counter: u16,
        syndrome: Syndrome,
        vendor_err: u8,
    ) -> Self {
        let ok = Self::requester(qpn, 0, wqe_counter, 0);
        Self { opcode, syndrome: syndrome as u8, vendor_err, ..ok }
    }

    /// The 64 bytes, with the owner bit of the entry's ring position (see [`owner_bit`]).
    #[inline]
    pub fn emit(&self, owner: u8) -> [u8; CQE_BYTES] {
        let tail = u64::from(self.vendor_err) << 8 | u64::from(self.syndrome);
        let op_own = (self.opcode as u8) << 4 | u8::from(self.solicited) << 1 | (owner & 1);
        let mut head = [0; 24];
        if let Some(tag) = &self.tag {
            head[..tag.head.len()].copy_from_slice(&tag.head);
        }
        bytemuck::cast(CqeBytes {
            head,
            app: TagInfo::tag(self.tag.as_ref()),
            flags_rqpn: (NetworkHeader::to_flags(self.network) | self.source.0 & Qpn::MAX).into(),
            srqn_uidx: self.uidx.into(),
            imm_inval_pkey: self.imm.into(),
            byte_cnt: self.byte_cnt.into(),
            timestamp: (if self.opcode.is_error() { tail } else { 0 }).into(),
            sop_drop_qpn: (u32::from(self.send_opcode) << 24 | (self.qpn.0 & Qpn::MAX)).into(),
            wqe_counter: self.wqe_counter.into(),
            op_own,
            ..CqeBytes::zeroed()
        })
    }

    /// Parses a copy of an entry.
    ///
    /// # Errors
    /// [`CqeOpcodeError`] for an unknown opcode.
    #[inline]
    pub fn parse(bytes: &[u8; CQE_BYTES]) -> Result<Self, CqeOpcodeError> {
        let raw: &CqeBytes = bytemuck::cast_ref(bytes);
        let code = raw.op_own >> 4;
        let opcode = CqeOpcode::from_bits(code).ok_or(CqeOpcodeError(code))?;
        let sop = raw.sop_drop_qpn.get();
        let tail = if opcode.is_error() { raw.timestamp.get() } else { 0 };
        Ok(Self {
            opcode,
            qpn: Qpn(sop & Qpn::MAX),
            send_opcode: (sop >> 24) as u8,
            wqe_counter: raw.wqe_counter.get(),
            byte_cnt: raw.byte_cnt.get(),
            imm: raw.imm_inval_pkey.get(),
            uidx: raw.srqn_uidx.get() & Qpn::MAX,
            source: Qpn(raw.flags_rqpn.get() & Qpn::MAX),
            network: NetworkHeader::from_flags(raw.flags_rqpn.get()),
            solicited: raw.op_own & 2 != 0,
            syndrome: tail as u8,
            vendor_err: (tail >> 8) as u8,
            tag: TagInfo::parse(raw.app, &raw.head),
        })
    }
}

/// Owner bit of the entry at producer (or consumer) index `index` of a ring of `entries`.
#[inline]
pub fn owner_bit(index: u64, entries: u32) -> u8 {
    (index / u64::from(entries)) as u8 & 1
}

/// Whether an entry has been written in the lap of owner bit `owner`. `tail` is its last 8 bytes,
/// loaded natively.
#[inline]
pub fn is_ready(tail: u64, owner: u8) -> bool {
    let op_own = tail.to_ne_bytes()[7];
    op_own & 1 == owner & 1 && op_own >> 4 != CqeOpcode::Invalid as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn error_bytes_lie_where_mlx5_has_them() {
        let cqe = Cqe::error(CqeOpcode::ReqErr, Qpn(0x12_3456), 9, Syndrome::RemoteAccess, 0x77);
        let bytes = cqe.emit(1);
        assert_eq!((bytes[54], bytes[55]), (0x77, 0x13));
        assert_eq!(bytes[57..62], [0x12, 0x34, 0x56, 0, 9]);
        assert_eq!(bytes[63], 0xd1);
        assert_eq!(Cqe::parse(&bytes), Ok(cqe));
    }

    #[test]
    fn a_datagrams_network_header_is_told_as_mlx5_tells_it() {
        for (network, first) in
            [(None, 0), (Some(NetworkHeader::Ipv6), 0x19), (Some(NetworkHeader::Ipv4), 0x1a)]
        {
            let cqe = Cqe { source: Qpn(0x12_3456), network, ..Cqe::requester(Qpn(1), 0, 0, 40) };
            let bytes = cqe.emit(0);
            assert_eq!(bytes[24..28], [first, 0x12, 0x34, 0x56]);
            assert_eq!(Cqe::parse(&bytes), Ok(cqe));
        }
    }

    #[test]
    fn owner_bit_flips_each_lap_and_unwritten_entries_are_not_ready() {
        assert_eq!([0, 15, 16, 31, 32].map(|i| owner_bit(i, 16)), [0, 0, 1, 1, 0]);
        let mut tail = [0; 8];
        tail[7] = OP_OWN_INIT;
        assert!(!is_ready(u64::from_ne_bytes(tail), 0));
        assert!(!is_ready(u64::from_ne_bytes(tail), 1));
        tail[7] = 0x01;
        assert!(is_ready(u64::from_ne_bytes(tail), 1));
        assert!(!is_ready(u64::from_ne_bytes(tail), 0));
    }

    #[test]
    fn an_entry_of_the_other_lap_is_not_ready() {
        for (op_own, owner, ready) in [
            (0x00, 0, true),
            (0x00, 1, false),
            (0xd1, 1, true),
            (0xd1, 0, false),
            (0xf0, 0, false),
            (0xf1, 1, false),
        ] {
            let tail = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, op_own]);
            assert_eq!(is_ready(tail, owner), ready, "{op_own:#x}, owner {owner}");
            assert_eq!(is_ready(tail, owner | 2), ready, "one bit of the owner counts");
        }
    }

    #[test]
    fn errors_are_those_of_two_opcodes_and_their_syndromes_are_the_tables() {
        for bits in 0..=0xf {
            let error = CqeOpcode::from_bits(bits).is_some_and(CqeOpcode::is_error);
            assert_eq!(error, matches!(bits, 0xd | 0xe), "{bits:#x}");
        }
        for code in 0..=u8::MAX {
            let known = Syndrome::ALL.iter().any(|&syndrome| syndrome as u8 == code);
            let found = Syndrome::from_code(code).map(|syndrome| syndrome as u8);
            assert_eq!(found, known.then_some(code));
        }
        assert_eq!(Syndrome::from_code(0x15), Some(Syndrome::TransportRetryExc));
    }

    #[test]
    fn unknown_opcodes_are_refused() {
        let mut bytes = [0xa5; CQE_BYTES];
        bytes[63] = 0x70;
        assert_eq!(Cqe::parse(&bytes), Err(CqeOpcodeError(7)));
    }

    proptest! {
        #[test]
        fn entries_round_trip(
            op in 0usize..9,
            qpn in 0u32..1 << 24,
            uidx in 0u32..1 << 24,
            source in 0u32..1 << 24,
            words: (u32, u32, u16, u8),
            error: (u8, u8),
            solicited: bool,
            header in 0usize..3,
            owner in 0u8..2,
        ) {
            let opcode = [0, 1, 2, 3, 4, 5, 6, 0xd, 0xe].map(|b| CqeOpcode::from_bits(b).unwrap())[op];
            let (syndrome, vendor_err) = if opcode.is_error() { error } else { (0, 0) };
            let cqe = Cqe {
                opcode, qpn: Qpn(qpn), send_opcode: words.3, wqe_counter: words.2,
                byte_cnt: words.0, imm: words.1, uidx, source: Qpn(source), solicited, syndrome, vendor_err, tag: None,
                network: [None, Some(NetworkHeader::Ipv6), Some(NetworkHeader::Ipv4)][header],
            };
            let bytes = cqe.emit(owner);
            prop_assert_eq!(bytes[63] & 1, owner);
            prop_assert_eq!(Cqe::parse(&bytes), Ok(cqe));
        }

        #[test]
        fn any_bytes_parse_or_are_refused(bytes: [u8; 64]) {
            let _ = Cqe::parse(&bytes);
        }
    }
}
