//! The software NIC's own error codes: byte 54 of an error CQE.

use bellpush_wire::cqe::Syndrome;
use bellpush_wire::wqe::WqeError;

/// Why the NIC refused a WQE, finer than the syndrome says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Vendor {
    /// The opcode is not carried out.
    Opcode = 0x01,
    /// ds or a segment does not fit.
    Segment = 0x02,
    /// The control segment's index is not the ring's position, or not the slot's ticket.
    Index = 0x03,
    /// The control segment names another queue pair.
    Qpn = 0x04,
    /// A key names no region.
    Key = 0x05,
    /// An address range leaves its region.
    Range = 0x06,
    /// The region does not allow the access.
    Right = 0x07,
    /// An in-band slot was written again without a credit.
    Overrun = 0x08,
    /// The message is too long for its buffers, or an atomic is not 8 bytes.
    Length = 0x09,
    /// Memory behind a region failed.
    Dma = 0x0a,
    /// The WQE reaches past the producer index.
    Producer = 0x0b,
    /// The peer's receive queue stayed empty.
    Rnr = 0x0c,
    /// The peer did not answer.
    NoAnswer = 0x0d,
    /// Flushed.
    Flush = 0x0e,
    /// An atomic's address is not a multiple of 8.
    Misaligned = 0x0f,
    /// The peer's completion queue overran.
    CqOverrun = 0x10,
    /// The region belongs to another protection domain.
    Domain = 0x11,
    /// The WQE was changed before its completion.
    Changed = 0x12,
    /// A packet does not follow the one before it, or a response does not fit its request.
    Sequence = 0x13,
    /// The peer refused it; its NAK says no more than the syndrome.
    Nak = 0x15,
    /// An address vector leads nowhere.
    Address = 0x14,
    /// A memory key that is free, or another queue pair's, or that does not allow the change.
    Mkey = 0x16,
    /// A request of an XRC connection for an SRQ that its domain does not have.
    Srq = 0x17,
    /// A list of tags has no such place free.
    Tag = 0x18,
    /// A fault script says so.
    Script = 0x19,
    /// A number names no CQ.
    Cq = 0x1a,
}

/// Syndrome and vendor error of a WQE that cannot be parsed.
pub(crate) fn of_parse(error: WqeError) -> (Syndrome, Vendor) {
    match error {
        WqeError::Opcode(_) => (Syndrome::LocalQpOp, Vendor::Opcode),
        WqeError::AtomicLength(_) | WqeError::Message(_) => (Syndrome::LocalLength, Vendor::Length),
        WqeError::Short { .. } | WqeError::Ds(_) | WqeError::Segment(_) => {
            (Syndrome::LocalQpOp, Vendor::Segment)
        }
    }
}
