//! Transport opcodes (InfiniBand vol. 1, 9.2.1 and its table "OpCode field"; annex A17 for CNP).

/// Transport service of a packet: the upper 3 bits of its opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0b000,
    /// Unreliable connection.
    Uc = 0b001,
    /// Unreliable datagram.
    Ud = 0b011,
    /// Extended reliable connection (annex A14).
    Xrc = 0b101,
    /// Dynamic connection: bellpush's own, in the range of manufacturer-specific codes. What a ConnectX sends for it is
    /// not published.
    Dc = 0b111,
    /// Congestion notification of RoCEv2 (annex A17.9.3); it belongs to no queue pair's service.
    Cnp = 0b100,
}

/// Operation of a packet: the lower 5 bits of its opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the specification's names")]
pub enum Operation {
    SendFirst,
    SendMiddle,
    SendLast,
    SendLastImm,
    SendOnly,
    SendOnlyImm,
    WriteFirst,
    WriteMiddle,
    WriteLast,
    WriteLastImm,
    WriteOnly,
    WriteOnlyImm,
    ReadRequest,
    ReadResponseFirst,
    ReadResponseMiddle,
    ReadResponseLast,
    ReadResponseOnly,
    Acknowledge,
    AtomicAcknowledge,
    CompareSwap,
    FetchAdd,
    SendLastInvalidate,
    SendOnlyInvalidate,
    /// Compare and swap with masks: bellpush's own, in the range of manufacturer-specific codes.
    MaskedCompareSwap,
    /// Fetch and add with masks, likewise.
    MaskedFetchAdd,
    /// Congestion notification packet.
    Cnp,
}

use Operation as Op;

/// Position of a packet in its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the specification's names")]
pub enum Position {
    First,
    Middle,
    Last,
    Only,
}

impl Position {
    /// Position of a packet that is the first of its message, the last, both or neither.
    #[inline]
    pub const fn new(first: bool, last: bool) -> Self {
        match (first, last) {
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
            (true, true) => Self::Only,
        }
    }

    /// Whether a message begins with this packet.
    #[inline]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends with this packet.
    #[inline]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Data that the last packet of a message carries beside the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tail {
    /// Nothing.
    Plain,
    /// Immediate data.
    Imm,
    /// A key that the receiver invalidates.
    Invalidate,
}

impl Operation {
    /// The operations of a reliable connection with their codes.
    const CODES: [(u8, Self); 23] = [
        (0x00, Op::SendFirst),
        (0x01, Op::SendMiddle),
        (0x02, Op::SendLast),
        (0x03, Op::SendLastImm),
        (0x04, Op::SendOnly),
        (0x05, Op::SendOnlyImm),
        (0x06, Op::WriteFirst),
        (0x07, Op::WriteMiddle),
        (0x08, Op::WriteLast),
        (0x09, Op::WriteLastImm),
        (0x0a, Op::WriteOnly),
        (0x0b, Op::WriteOnlyImm),
        (0x0c, Op::ReadRequest),
        (0x0d, Op::ReadResponseFirst),
        (0x0e, Op::ReadResponseMiddle),
        (0x0f, Op::ReadResponseLast),
        (0x10, Op::ReadResponseOnly),
        (0x11, Op::Acknowledge),
        (0x12, Op::AtomicAcknowledge),
        (0x13, Op::CompareSwap),
        (0x14, Op::FetchAdd),
        (0x16, Op::SendLastInvalidate),
        (0x17, Op::SendOnlyInvalidate),
    ];

    /// The operation of a packet of a SEND; `tail` applies to the last packet.
    #[inline]
    pub const fn send(position: Position, tail: Tail) -> Self {
        match (position, tail) {
            (Position::First, _) => Op::SendFirst,
            (Position::Middle, _) => Op::SendMiddle,
            (Position::Last, Tail::Plain) => Op::SendLast,
            (Position::Last, Tail::Imm) => Op::SendLastImm,
            (Position::Last, Tail::Invalidate) => Op::SendLastInvalidate,
            (Position::Only, Tail::Plain) => Op::SendOnly,
            (Position::Only, Tail::Imm) => Op::SendOnlyImm,
            (Position::Only, Tail::Invalidate) => Op::SendOnlyInvalidate,
        }
    }

    /// The operation of a packet of a WRITE, with or without immediate data.
    #[inline]
    pub const fn write(position: Position, imm: bool) -> Self {
        match (position, imm) {
            (Position::First, _) => Op::WriteFirst,
            (Position::Middle, _) => Op::WriteMiddle,
            (Position::Last, false) => Op::WriteLast,
            (Position::Last, true) => Op::WriteLastImm,
            (Position::Only, false) => Op::WriteOnly,
            (Position::Only, true) => Op::WriteOnlyImm,
        }
    }

    /// The operation of a READ response's packet.
    #[inline]
    pub const fn read_response(position: Position) -> Self {
        match position {
            Position::First => Op::ReadResponseFirst,
            Position::Middle => Op::ReadResponseMiddle,
            Position::Last => Op::ReadResponseLast,
            Position::Only => Op::ReadResponseOnly,
        }
    }

    /// Position in its message of a packet with this operation.
    #[inline]
    pub const fn position(self) -> Position {
        match self {
            Op::SendFirst | Op::WriteFirst | Op::ReadResponseFirst => Position::First,
            Op::SendMiddle | Op::WriteMiddle | Op::ReadResponseMiddle => Position::Middle,
            Op::SendLast
            | Op::SendLastImm
            | Op::SendLastInvalidate
            | Op::WriteLast
            | Op::WriteLastImm
            | Op::ReadResponseLast => Position::Last,
            _ => Position::Only,
        }
    }

    /// Whether the packet belongs to a SEND.
    #[inline]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Op::SendFirst
                | Op::SendMiddle
                | Op::SendLast
                | Op::SendLastImm
                | Op::SendLastInvalidate
                | Op::SendOnly
                | Op::SendOnlyImm
                | Op::SendOnlyInvalidate
        )
    }

    /// Whether the packet belongs to a WRITE.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Op::WriteFirst
                | Op::WriteMiddle
                | Op::WriteLast
                | Op::WriteLastImm
                | Op::WriteOnly
                | Op::WriteOnlyImm
        )
    }

    /// Whether the packet belongs to a READ response.
    #[inline]
    pub const fn is_read_response(self) -> bool {
        matches!(
            self,
            Op::ReadResponseFirst
                | Op::ReadResponseMiddle
                | Op::ReadResponseLast
                | Op::ReadResponseOnly
        )
    }

    /// Whether the packet requests a masked atomic.
    #[inline]
    pub const fn is_masked(self) -> bool {
        matches!(self, Op::MaskedCompareSwap | Op::MaskedFetchAdd)
    }

    /// Whether the packet requests an atomic, masked or not.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Op::CompareSwap | Op::FetchAdd) || self.is_masked()
    }

    /// Whether the packet travels from requester to responder; false for responses and CNPs.
    #[inline]
    pub const fn is_request(self) -> bool {
        self.is_send() || self.is_write() || self.is_atomic() || matches!(self, Op::ReadRequest)
    }

    /// Whether the packet travels from responder to requester.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.is_read_response() || matches!(self, Op::Acknowledge | Op::AtomicAcknowledge)
    }

    /// Whether a payload may follow the headers.
    #[inline]
    pub const fn has_payload(self) -> bool {
        self.is_send() || self.is_write() || self.is_read_response()
    }

    #[inline]
    const fn is_imm(self) -> bool {
        matches!(self, Op::SendLastImm | Op::SendOnlyImm | Op::WriteLastImm | Op::WriteOnlyImm)
    }
}

/// Extension headers that follow the BTH, in the order of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the specification's names")]
pub struct ExtensionSet {
    pub deth: bool,
    pub reth: bool,
    pub atomic: bool,
    /// Masks and operand size, after the atomic extended transport header.
    pub masks: bool,
    pub aeth: bool,
    pub atomic_ack: bool,
    pub imm: bool,
    pub ieth: bool,
    /// The 16 reserved bytes of a congestion notification packet.
    pub cnp: bool,
    /// Number of the shared receive queue (annex A14); follows the BTH.
    pub xrc: bool,
    /// Who asks a target of dynamic connections, and with which key; follows the BTH.
    pub dc: bool,
}

impl ExtensionSet {
    /// Bytes of all headers in the set.
    #[inline]
    pub const fn bytes(self) -> usize {
        8 * self.deth as usize
            + 16 * self.reth as usize
            + 28 * self.atomic as usize
            + 20 * self.masks as usize
            + 4 * self.aeth as usize
            + 8 * self.atomic_ack as usize
            + 4 * self.imm as usize
            + 4 * self.ieth as usize
            + 16 * self.cnp as usize
            + 4 * self.xrc as usize
            + 20 * self.dc as usize
    }
}

/// A service and one of its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode {
    service: Service,
    operation: Operation,
}

impl Opcode {
    /// Congestion notification packet (annex A17.9.3).
    pub const CNP: Self = Self::new(Service::Cnp, Op::Cnp);
    const CNP_CODE: u8 = 0x81;
    /// Codes from 0xc0 on are manufacturer-specific (vol. 1, 9.2.1). The low 5 bits of these two
    /// equal those of the reliable connection's operation that they extend.
    const MASKED_CS_CODE: u8 = 0xd3;
    const MASKED_FA_CODE: u8 = 0xd4;
    /// The same of dynamic connections, whose codes 0xf3 and 0xf4 are those of atomics without masks.
    const DC_MASKED_CS_CODE: u8 = 0xf8;
    const DC_MASKED_FA_CODE: u8 = 0xf9;

    /// The opcode of an operation of a service.
    ///
    /// # Panics
    /// When the service does not have the operation.
    #[inline]
    pub const fn new(service: Service, operation: Operation) -> Self {
        assert!(Self::exists(service, operation), "the service does not have the operation");
        Self { service, operation }
    }

    /// The opcode of an operation of a reliable connection.
    ///
    /// # Panics
    /// For [`Operation::Cnp`].
    #[inline]
    pub const fn rc(operation: Operation) -> Self {
        Self::new(Service::Rc, operation)
    }

    /// The opcode of a code; `None` for an unknown one.
    #[inline]
    pub fn from_code(code: u8) -> Option<Self> {
        if code == Self::CNP_CODE {
            return Some(Self::CNP);
        }
        match code {
            Self::MASKED_CS_CODE => return Some(Self::rc(Op::MaskedCompareSwap)),
            Self::MASKED_FA_CODE => return Some(Self::rc(Op::MaskedFetchAdd)),
            Self::DC_MASKED_CS_CODE => return Some(Self::new(Service::Dc, Op::MaskedCompareSwap)),
            Self::DC_MASKED_FA_CODE => return Some(Self::new(Service::Dc, Op::MaskedFetchAdd)),
            _ => {}
        }
        let service = match code >> 5 {
            0b000 => Service::Rc,
            0b001 => Service::Uc,
            0b011 => Service::Ud,
            0b101 => Service::Xrc,
            0b111 => Service::Dc,
            _ => return None,
        };
        // Codes below 0x15 are their own index; the reserved one shifts those after it.
        let index = match code & 0x1f {
            low @ 0..=0x14 => low,
            low @ 0x16..=0x17 => low - 1,
            _ => return None,
        };
        let operation = Op::CODES[usize::from(index)].1;
        Self::exists(service, operation).then_some(Self { service, operation })
    }

    /// The code on the wire.
    #[inline]
    pub fn code(self) -> u8 {
        if self == Self::CNP {
            return Self::CNP_CODE;
        }
        match (self.operation, self.service) {
            (Op::MaskedCompareSwap, Service::Dc) => return Self::DC_MASKED_CS_CODE,
            (Op::MaskedFetchAdd, Service::Dc) => return Self::DC_MASKED_FA_CODE,
            (Op::MaskedCompareSwap, _) => return Self::MASKED_CS_CODE,
            (Op::MaskedFetchAdd, _) => return Self::MASKED_FA_CODE,
            _ => {}
        }
        let low = self.operation as u8;
        (self.service as u8) << 5 | if low < 0x15 { low } else { low + 1 }
    }

    /// The service.
    #[inline]
    pub const fn service(self) -> Service {
        self.service
    }

    /// The operation.
    #[inline]
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// The extension headers that follow the BTH.
    #[inline]
    pub const fn extensions(self) -> ExtensionSet {
        let op = self.operation;
        ExtensionSet {
            deth: matches!(self.service, Service::Ud),
            reth: matches!(op, Op::WriteFirst | Op::WriteOnly | Op::WriteOnlyImm | Op::ReadRequest),
            atomic: op.is_atomic(),
            masks: op.is_masked(),
            aeth: op.is_response() && !matches!(op, Op::ReadResponseMiddle),
            atomic_ack: matches!(op, Op::AtomicAcknowledge),
            imm: op.is_imm(),
            ieth: matches!(op, Op::SendLastInvalidate | Op::SendOnlyInvalidate),
            cnp: matches!(op, Op::Cnp),
            xrc: matches!(self.service, Service::Xrc) && op.is_request(),
            dc: matches!(self.service, Service::Dc) && op.is_request(),
        }
    }

    #[inline]
    const fn exists(service: Service, op: Operation) -> bool {
        match service {
            Service::Rc | Service::Xrc | Service::Dc => !matches!(op, Op::Cnp),
            Service::Uc => {
                op.is_write()
                    || op.is_send()
                        && !matches!(op, Op::SendLastInvalidate | Op::SendOnlyInvalidate)
            }
            Service::Ud => matches!(op, Op::SendOnly | Op::SendOnlyImm),
            Service::Cnp => matches!(op, Op::Cnp),
        }
    }

    /// All opcodes, in numerical order.
    #[inline]
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).filter_map(Self::from_code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_table() {
        for (code, operation) in Op::CODES {
            assert_eq!(Opcode::from_code(code), Some(Opcode::rc(operation)));
            assert_eq!(Opcode::rc(operation).code(), code);
        }
        let all: Vec<u8> = Opcode::all().map(Opcode::code).collect();
        let rc = (0..=0x14).chain(0x16..=0x17);
        let expected = rc.chain(0x20..=0x2b).chain([0x64, 0x65, 0x81]);
        let xrc = (0xa0..=0xb4).chain(0xb6..=0xb7);
        let dc = (0xe0..=0xf4).chain(0xf6..=0xf9);
        let expected: Vec<u8> = expected.chain(xrc).chain([0xd3, 0xd4]).chain(dc).collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn headers_are_those_of_the_table() {
        // Bytes of extension headers by code, of RC: written out once more from the table.
        #[rustfmt::skip]
        let rc = [
            0, 0, 0, 4, 0, 4, 16, 0, 0, 4, 16, 20, 16, 4, 0, 4, 4, 4, 12, 28, 28, 0, 4, 4,
        ];
        for (code, bytes) in rc.into_iter().enumerate().filter(|&(code, _)| code != 0x15) {
            let opcode = Opcode::from_code(code as u8).unwrap();
            assert_eq!(opcode.extensions().bytes(), bytes, "{opcode:?}");
        }
        assert_eq!(Opcode::new(Service::Ud, Op::SendOnlyImm).extensions().bytes(), 12);
        assert_eq!(Opcode::CNP.extensions().bytes(), 16);
        for (_, op) in Op::CODES {
            let (rc, xrc) = (Opcode::rc(op), Opcode::new(Service::Xrc, op));
            let more = if op.is_request() { 4 } else { 0 };
            assert_eq!(xrc.extensions().bytes(), rc.extensions().bytes() + more, "{op:?}");
            let dc = Opcode::new(Service::Dc, op);
            assert_eq!(dc.extensions().bytes(), rc.extensions().bytes() + 5 * more, "{op:?}");
        }
    }

    #[test]
    fn an_operation_is_a_request_or_a_response_and_lies_where_it_was_put() {
        for (_, op) in Op::CODES {
            assert!(op.is_request() != op.is_response(), "{op:?}");
        }
        for (first, last) in [(true, true), (true, false), (false, true), (false, false)] {
            let at = Position::new(first, last);
            assert_eq!((at.starts(), at.ends()), (first, last));
            for tail in [Tail::Plain, Tail::Imm, Tail::Invalidate] {
                let send = Op::send(at, tail);
                assert_eq!((send.position(), send.is_send()), (at, true));
                let set = Opcode::rc(send).extensions();
                assert_eq!(set.imm, last && tail == Tail::Imm);
                assert_eq!(set.ieth, last && tail == Tail::Invalidate);
            }
            for imm in [false, true] {
                let write = Op::write(at, imm);
                assert_eq!((write.position(), write.is_write()), (at, true));
                let set = Opcode::rc(write).extensions();
                assert_eq!((set.reth, set.imm), (first, last && imm));
            }
            let response = Op::read_response(at);
            assert_eq!((response.position(), response.is_read_response()), (at, true));
            assert_eq!(Opcode::rc(response).extensions().aeth, first || last);
        }
    }

    #[test]
    fn masked_atomics_are_atomics_and_have_their_masks() {
        for op in Opcode::all().map(Opcode::operation) {
            let masked = matches!(op, Op::MaskedCompareSwap | Op::MaskedFetchAdd);
            assert_eq!((op.is_masked(), op.is_atomic() || !masked), (masked, true), "{op:?}");
        }
        assert_eq!(Opcode::all().filter(|opcode| opcode.extensions().masks).count(), 4);
    }

    #[test]
    #[should_panic(expected = "does not have the operation")]
    fn a_service_without_the_operation_is_our_own_mistake() {
        let _ = Opcode::new(Service::Ud, Op::WriteOnly);
    }
}
