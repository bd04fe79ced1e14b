//! A checked packet, and a frame whose payload the caller fills in place.

use bytemuck::Pod;
use std::fmt;
use std::ops::Range;

use super::headers::{AtomicWire, BthWire, DcethWire, DethWire, MasksWire, RethWire};
use super::{
    Aeth, AtomicEth, BTH_BYTES, Bth, Dceth, Deth, Envelope, ICRC_BYTES, MAX_PATH_MTU, Opcode, Reth,
    icrc,
};
use crate::Rkey;
use crate::be::{Be32, Be64};
use crate::wqe::Masks;

/// Reason why bytes are not a packet. A receiver drops them without an answer and counts the reason
/// (InfiniBand vol. 1, 9.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketError {
    /// Shorter than its headers and the ICRC.
    Short {
        /// Bytes given.
        bytes: usize,
        /// Bytes needed.
        need: usize,
    },
    /// A transport version other than 0.
    Version(u8),
    /// A reserved opcode, or one of a service that bellpush does not implement.
    Opcode(u8),
    /// A reserved AETH syndrome.
    Syndrome(u8),
    /// The pad does not extend the payload to a multiple of 4, or is longer than payload and pad
    /// together.
    Pad {
        /// Pad count in the BTH.
        pad: u8,
        /// Bytes of payload and pad.
        bytes: usize,
    },
    /// The payload is too long, or the opcode takes none.
    Payload {
        /// Code of the opcode.
        opcode: u8,
        /// Bytes of payload.
        bytes: usize,
    },
    /// The ICRC does not match the bytes.
    Icrc {
        /// The ICRC in the packet, a little-endian word.
        stored: u32,
        /// The ICRC computed from the bytes.
        computed: u32,
    },
}

impl fmt::Display for PacketError {
    #[inline]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { bytes, need } => {
                write!(f, "a packet of {bytes} bytes, where its headers and the ICRC take {need}")
            }
            Self::Version(n) => write!(f, "transport version {n} is not known"),
            Self::Opcode(n) => write!(f, "opcode {n:#04x} is not known"),
            Self::Syndrome(n) => write!(f, "AETH syndrome {n:#04x} is reserved"),
            Self::Pad { pad, bytes } => {
                write!(f, "a pad of {pad} bytes after headers, in {bytes} bytes of payload and pad")
            }
            Self::Payload { bytes, opcode } => {
                write!(f, "{bytes} bytes of payload on opcode {opcode:#04x}")
            }
            Self::Icrc { stored, computed } => {
                // As its bytes lie in the packet, which is how the field is shown.
                let (stored, computed) = (stored.swap_bytes(), computed.swap_bytes());
                write!(f, "ICRC {stored:#010x}, computed {computed:#010x}")
            }
        }
    }
}

impl std::error::Error for PacketError {}

/// Extension headers. The opcode determines which are present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extensions {
    /// Shared receive queue number of an XRC request.
    pub srqn: Option<u32>,
    /// Header of a request of a dynamic connection.
    pub dc: Option<Dceth>,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// Header of a WRITE's first packet and of a READ request.
    pub reth: Option<Reth>,
    /// Header of an atomic request.
    pub atomic: Option<AtomicEth>,
    /// Masks of a masked atomic request.
    pub masks: Option<Masks>,
    /// Header of a response, except the middle packets of a READ response.
    pub aeth: Option<Aeth>,
    /// Value before an atomic, in its response.
    pub atomic_ack: Option<u64>,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Key that the receiver invalidates.
    pub ieth: Option<Rkey>,
}

/// Bits of an SRQ number; the bits above are reserved.
const SRQN: u32 = 0xff_ffff;

/// All headers of a packet, parsed or to be emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// Extension headers.
    pub ext: Extensions,
}

impl Headers {
    /// Headers without extensions.
    #[inline]
    pub fn new(bth: Bth) -> Self {
        Self { bth, ext: Extensions::default() }
    }

    /// Bytes of BTH and extension headers.
    #[inline]
    pub fn bytes(&self) -> usize {
        BTH_BYTES + self.bth.opcode.extensions().bytes()
    }

    /// Writes the headers of a packet with `payload_bytes` of payload, and its pad, to `buf`. The
    /// caller then fills the payload in place; [`Frame::finish`] adds the ICRC. The pad count
    /// follows from the payload: the one in `bth` is ignored.
    ///
    /// # Panics
    /// As [`Headers::emit_apart`].
    #[inline]
    pub fn emit<'a>(&self, payload_bytes: usize, buf: &'a mut [u8]) -> Frame<'a> {
        let (start, pad) = self.emit_apart(payload_bytes, buf);
        let end = start + payload_bytes + pad;
        let buf = &mut buf[..end + ICRC_BYTES];
        buf[end - pad..end].fill(0);
        Frame { buf, payload: start..end - pad }
    }

    /// Writes the headers of a packet with `payload_bytes` of payload to `buf`, for payload that lies
    /// elsewhere. Returns their bytes, and those of the pad that follows the payload.
    ///
    /// # Panics
    /// When the extensions do not match the opcode, when the opcode takes no payload, or when `buf`
    /// is too short. [`super::MAX_HEADER_BYTES`] always suffice for the headers, [`super::MAX_PACKET_BYTES`] for a packet.
    #[inline]
    pub fn emit_apart(&self, payload_bytes: usize, buf: &mut [u8]) -> (usize, usize) {
        let opcode = self.bth.opcode;
        assert!(payload_bytes == 0 || opcode.operation().has_payload(), "{opcode:?} with payload");
        let pad = payload_bytes.wrapping_neg() & 3;
        let start = self.bytes();
        let mut out = Writer { rest: &mut buf[..start] };
        out.put(&Bth { pad: pad as u8, ..self.bth }.emit());
        let (set, ext) = (opcode.extensions(), &self.ext);
        out.optional(set.xrc, ext.srqn.map(|srqn| Be32::new(srqn & SRQN)));
        out.optional(set.dc, ext.dc.as_ref().map(DcethWire::from));
        out.optional(set.deth, ext.deth.as_ref().map(DethWire::from));
        out.optional(set.reth, ext.reth.as_ref().map(RethWire::from));
        out.optional(set.atomic, ext.atomic.as_ref().map(AtomicWire::from));
        out.optional(set.masks, ext.masks.as_ref().map(MasksWire::from));
        out.optional(set.aeth, ext.aeth.as_ref().map(Aeth::emit));
        out.optional(set.atomic_ack, ext.atomic_ack.map(Be64::new));
        out.optional(set.imm, ext.imm.map(Be32::new));
        out.optional(set.ieth, ext.ieth.map(|key| Be32::new(key.0)));
        out.optional(set.cnp, set.cnp.then_some([0u8; 16]));
        (start, pad)
    }

    /// Parses the headers of a packet of `bytes` bytes, ICRC included, that begins with `head`: the
    /// whole packet, or at least [`super::MAX_HEADER_BYTES`]. Returns them, and where the payload lies, without
    /// its pad.
    ///
    /// # Errors
    /// All of [`PacketError`] but [`PacketError::Icrc`]; [`PacketError::Short`] also for a head that has
    /// not all headers.
    #[inline]
    pub fn parse(head: &[u8], bytes: usize) -> Result<(Self, Range<usize>), PacketError> {
        let short = |need| PacketError::Short { bytes, need };
        let Some((bth, rest)) = head.split_first_chunk::<BTH_BYTES>() else {
            return Err(short(BTH_BYTES + ICRC_BYTES));
        };
        let bth = Bth::parse(bytemuck::cast_ref::<_, BthWire>(bth))?;
        let set = bth.opcode.extensions();
        let start = BTH_BYTES + set.bytes();
        if bytes < start + ICRC_BYTES || rest.len() < set.bytes() {
            return Err(short(start + ICRC_BYTES));
        }
        let mut at = Reader { rest };
        let ext = Extensions {
            srqn: set.xrc.then(|| at.take::<Be32>().get() & SRQN),
            dc: set.dc.then(|| at.take::<DcethWire>().into()),
            deth: set.deth.then(|| at.take::<DethWire>().into()),
            reth: set.reth.then(|| at.take::<RethWire>().into()),
            atomic: set.atomic.then(|| at.take::<AtomicWire>().into()),
            masks: set.masks.then(|| at.take::<MasksWire>().into()),
            aeth: set.aeth.then(|| Aeth::parse(*at.take())).transpose()?,
            atomic_ack: set.atomic_ack.then(|| at.take::<Be64>().get()),
            imm: set.imm.then(|| at.take::<Be32>().get()),
            ieth: set.ieth.then(|| Rkey(at.take::<Be32>().get())),
        };
        let padded = bytes - ICRC_BYTES - start;
        let payload = padded.wrapping_sub(usize::from(bth.pad));
        if !padded.is_multiple_of(4) || payload > padded {
            return Err(PacketError::Pad { pad: bth.pad, bytes: padded });
        }
        if payload > if bth.opcode.operation().has_payload() { MAX_PATH_MTU } else { 0 } {
            return Err(PacketError::Payload { opcode: bth.opcode.code(), bytes: payload });
        }
        Ok((Self { bth, ext }, start..start + payload))
    }
}

struct Writer<'a> {
    rest: &'a mut [u8],
}

impl Writer<'_> {
    #[inline]
    fn put<T: Pod>(&mut self, value: &T) {
        let (now, later) = std::mem::take(&mut self.rest).split_at_mut(size_of::<T>());
        now.copy_from_slice(bytemuck::bytes_of(value));
        self.rest = later;
    }

    #[inline]
    fn optional<T: Pod>(&mut self, due: bool, value: Option<T>) {
        assert_eq!(due, value.is_some(), "extension headers are those of the opcode");
        if let Some(value) = value {
            self.put(&value);
        }
    }
}

/// A packet under construction: headers and pad are written, payload and ICRC are not.
#[derive(Debug)]
pub struct Frame<'a> {
    buf: &'a mut [u8],
    payload: Range<usize>,
}

impl Frame<'_> {
    /// The place of the payload.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.buf[self.payload.clone()]
    }

    /// Writes the ICRC and returns the packet's length. Without an `envelope` (a link without ICRC)
    /// zeros take its place.
    #[inline]
    pub fn finish(self, envelope: Option<&Envelope>) -> usize {
        let (body, tail) = self.buf.split_at_mut(self.buf.len() - ICRC_BYTES);
        tail.copy_from_slice(&envelope.map_or(0, |e| icrc(e, body)).to_le_bytes());
        self.buf.len()
    }
}

/// A parsed packet: lengths, version, opcode and pad are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// BTH and the opcode's extension headers.
    pub headers: Headers,
    /// Payload without pad.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses UDP's payload, ICRC included. [`Packet::check`] checks the ICRC.
    ///
    /// # Errors
    /// All of [`PacketError`] but [`PacketError::Icrc`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let (headers, payload) = Headers::parse(bytes, bytes.len())?;
        Ok(Self { headers, payload: &bytes[payload] })
    }

    /// Checks the ICRC of UDP's payload.
    ///
    /// # Errors
    /// [`PacketError::Icrc`]; [`PacketError::Short`] for bytes that have no room for an ICRC.
    #[inline]
    pub fn check(bytes: &[u8], envelope: &Envelope) -> Result<(), PacketError> {
        let Some((body, stored)) = bytes.split_last_chunk::<ICRC_BYTES>() else {
            return Err(PacketError::Short { bytes: bytes.len(), need: BTH_BYTES + ICRC_BYTES });
        };
        if body.len() < BTH_BYTES {
            return Err(PacketError::Short { bytes: bytes.len(), need: BTH_BYTES + ICRC_BYTES });
        }
        let (stored, computed) = (u32::from_le_bytes(*stored), icrc(envelope, body));
        if stored == computed { Ok(()) } else { Err(PacketError::Icrc { stored, computed }) }
    }

    /// Service and operation of the packet.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.headers.bth.opcode
    }
}

/// Takes headers from the front of bytes whose length has been checked.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    fn take<T: Pod>(&mut self) -> &'a T {
        let (now, later) = self.rest.split_at(size_of::<T>());
        self.rest = later;
        bytemuck::from_bytes(now)
    }
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
