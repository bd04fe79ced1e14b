//! In-band slots: lines of data that carry a sequence number, from which the NIC learns that the
//! whole slot has arrived. `docs/protocol.md` specifies them; `kernels/include/bellpush/impl/inband.cuh` writes them.
//!
//! A slot is an array of lines. Each line ends with a little-endian sequence number. The data bytes
//! of the lines, joined, form a stream. The stream is an mlx5 WQE: control segment, remote-address
//! segment (not for SEND), atomic segment, data segments and inline data, which must be last. ds
//! has only 6 bits: a WQE with inline data counts in ds only up to and including the 16-byte unit
//! in which the inline header begins, and the inline byte count gives the end of the stream.
//!
//! Ticket t uses slot t % slots in lap t / slots. The sequence number of a lap cycles over 1..=M; 0
//! is never valid. In the laps with sequence numbers 1 and 2 the writer also clears the lines behind its
//! stream, so that no line of an earlier cycle can pass for a fresh one. The format is bellpush's
//! own; it resembles NCCL's LL and LL128 protocols.

use std::fmt;
use std::str::FromStr;

use super::wqe::{Ctrl, DS_BYTES, INLINE_FLAG, Opcode, WqeError};

/// Laps of a cycle in which a writer clears the lines behind its stream: those with sequence numbers 1
/// up to this. After both, no line of the slot has kept one of these numbers, nor, until the cycle
/// ends, one that is to come.
pub const SCRUB_LAPS: u32 = 2;

/// Layout of the lines of an in-band slot: data bytes, then a little-endian sequence number.
/// Named `12+4`, `14+2` and `60+4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LineFormat {
    /// 16-byte lines, each one store of one thread: 12 bytes of data, then a 4-byte sequence.
    #[cfg_attr(feature = "serde", serde(rename = "12+4"))]
    L12S4,
    /// 16-byte lines: 14 bytes of data, then a 2-byte sequence.
    #[cfg_attr(feature = "serde", serde(rename = "14+2"))]
    L14S2,
    /// 64-byte lines, stored by four threads: 60 bytes of data, then a 4-byte sequence. That a line arrives as a whole
    /// is measured, and not guaranteed by the architecture.
    #[cfg_attr(feature = "serde", serde(rename = "60+4"))]
    L60S4,
}

/// A name that is no line format's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownLineFormat(String);

impl fmt::Display for UnknownLineFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not a line format: it is one of 12+4, 14+2, 60+4", self.0)
    }
}

impl std::error::Error for UnknownLineFormat {}

impl fmt::Display for LineFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::L12S4 => "12+4",
            Self::L14S2 => "14+2",
            Self::L60S4 => "60+4",
        })
    }
}

impl FromStr for LineFormat {
    type Err = UnknownLineFormat;

    fn from_str(name: &str) -> Result<Self, UnknownLineFormat> {
        let found = Self::ALL.into_iter().find(|format| format.to_string() == name);
        found.ok_or_else(|| UnknownLineFormat(name.into()))
    }
}

/// Relation of a line's sequence number to the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The expected number.
    Expected,
    /// 0, invalid, or of an earlier lap: the writer has not yet written this line.
    Stale,
    /// Of a later lap: the writer overran its credits.
    Ahead,
}

impl LineFormat {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::L12S4, Self::L14S2, Self::L60S4];

    /// Bytes of a line.
    #[inline]
    pub const fn line_bytes(self) -> usize {
        match self {
            Self::L12S4 | Self::L14S2 => 16,
            Self::L60S4 => 64,
        }
    }

    /// Bytes of a line's sequence.
    #[inline]
    pub const fn seq_bytes(self) -> usize {
        match self {
            Self::L12S4 | Self::L60S4 => 4,
            Self::L14S2 => 2,
        }
    }

    /// Bytes of data in a line.
    #[inline]
    pub const fn data_bytes(self) -> usize {
        self.line_bytes() - self.seq_bytes()
    }

    /// M: the sequence numbers are 1..=M.
    #[inline]
    pub const fn modulus(self) -> u32 {
        match self {
            Self::L12S4 | Self::L60S4 => u32::MAX,
            Self::L14S2 => 0xffff,
        }
    }

    /// Sequence number of a lap: ((seq0 - 1 + lap) mod M) + 1.
    #[inline]
    pub const fn seq(self, seq0: u32, lap: u64) -> u32 {
        let m = self.modulus() as u64;
        // Both terms are below 2^32, so the sum does not wrap.
        (((seq0 as u64).wrapping_sub(1) % m + lap % m) % m) as u32 + 1
    }

    /// Compares the sequence number `found` with `expected`.
    ///
    /// Half of the cycle counts as ahead; the rest counts as stale, as do 0 and numbers above
    /// [`LineFormat::modulus`].
    #[inline]
    pub const fn standing(self, expected: u32, found: u32) -> Standing {
        let m = self.modulus();
        if found == expected {
            Standing::Expected
        } else if found == 0 || found > m {
            Standing::Stale
        } else {
            let distance = if found > expected { found - expected } else { m - (expected - found) };
            if distance <= m / 2 { Standing::Ahead } else { Standing::Stale }
        }
    }

    /// Number of lines that a stream of `bytes` takes; at least one.
    #[inline]
    pub const fn lines(self, bytes: usize) -> usize {
        let n = bytes.div_ceil(self.data_bytes());
        if n == 0 { 1 } else { n }
    }

    /// Bytes of the longest stream that a slot holds.
    #[inline]
    pub const fn capacity(self, slot_bytes: usize) -> usize {
        slot_bytes / self.line_bytes() * self.data_bytes()
    }

    /// Bytes of the longest inline payload of an RDMA WRITE in a slot: header and segments take 36.
    #[inline]
    pub const fn write_capacity(self, slot_bytes: usize) -> usize {
        self.capacity(slot_bytes).saturating_sub(36)
    }

    /// The sequence number at the end of a line.
    #[inline]
    pub fn seq_of(self, line: &[u8]) -> u32 {
        let at = self.data_bytes();
        match self {
            Self::L12S4 | Self::L60S4 => {
                u32::from_le_bytes([line[at], line[at + 1], line[at + 2], line[at + 3]])
            }
            Self::L14S2 => u16::from_le_bytes([line[at], line[at + 1]]).into(),
        }
    }

    /// Joins the data of whole lines and checks each line's sequence number again.
    ///
    /// The length of `into`, in data bytes, gives the number of lines; the last may be partial.
    ///
    /// # Errors
    /// The index of the first line with another sequence number. The data of the lines before it
    /// are in `into`.
    #[inline]
    pub fn gather(self, lines: &[u8], expected: u32, into: &mut [u8]) -> Result<(), usize> {
        match self {
            Self::L12S4 => gather_sized::<16, 12>(self, lines, expected, into),
            Self::L14S2 => gather_sized::<16, 14>(self, lines, expected, into),
            Self::L60S4 => gather_sized::<64, 60>(self, lines, expected, into),
        }
    }

    /// Writes a stream as lines with sequence number `seq`, as a sender does. Returns the number of
    /// lines written: those of the stream, or all lines of the slot when `seq` is at most
    /// [`SCRUB_LAPS`]. Those behind the stream are then 0; the NIC must see them no later than the
    /// stream's.
    ///
    /// # Panics
    /// When the stream is longer than [`LineFormat::capacity`].
    #[inline]
    pub fn scatter(self, stream: &[u8], seq: u32, slot: &mut [u8]) -> usize {
        let (line_bytes, data) = (self.line_bytes(), self.data_bytes());
        assert!(stream.len() <= self.capacity(slot.len()), "the stream does not fit the slot");
        let lines = self.lines(stream.len());
        let mut slot = slot.chunks_exact_mut(line_bytes);
        for (i, line) in slot.by_ref().take(lines).enumerate() {
            line[..data].fill(0);
            let part = stream.get(i * data..).unwrap_or(&[]);
            let n = part.len().min(data);
            line[..n].copy_from_slice(&part[..n]);
            line[data..].copy_from_slice(&seq.to_le_bytes()[..self.seq_bytes()]);
        }
        if seq > SCRUB_LAPS { lines } else { lines + slot.map(|line| line.fill(0)).count() }
    }
}

/// The formats' hot loop, with sizes that the compiler turns into register moves, and without a
/// branch per line: lines of another lap are rare, and are searched for only if the sum shows one.
#[inline]
fn gather_sized<const LINE: usize, const DATA: usize>(
    format: LineFormat,
    lines: &[u8],
    expected: u32,
    into: &mut [u8],
) -> Result<(), usize> {
    let count = into.len().div_ceil(DATA);
    let lines = &lines[..count * LINE];
    let (whole, rest) = lines.split_at(into.len() / DATA * LINE);
    let mut other = 0;
    let mut parts = into.chunks_exact_mut(DATA);
    for (line, part) in whole.as_chunks::<LINE>().0.iter().zip(&mut parts) {
        other |= tail::<LINE, DATA>(line) ^ expected;
        part.copy_from_slice(&line[..DATA]);
    }
    if let Some(line) = rest.as_chunks::<LINE>().0.first() {
        other |= tail::<LINE, DATA>(line) ^ expected;
        let part = parts.into_remainder();
        let n = part.len();
        part.copy_from_slice(&line[..n]);
    }
    if other == 0 {
        return Ok(());
    }
    let bad = lines.chunks_exact(LINE).position(|line| format.seq_of(line) != expected);
    Err(bad.expect("some line differed"))
}

#[inline]
fn tail<const LINE: usize, const DATA: usize>(line: &[u8; LINE]) -> u32 {
    let word = u32::from_le_bytes([line[LINE - 4], line[LINE - 3], line[LINE - 2], line[LINE - 1]]);
    word >> (32 - 8 * (LINE - DATA))
}

/// Slot and lap of a ticket: `ticket % slots` and `ticket / slots`.
#[inline]
pub const fn slot_of(ticket: u64, slots: u32) -> (u32, u64) {
    ((ticket % slots as u64) as u32, ticket / slots as u64)
}

/// Number of stream bytes that a reader needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// This many bytes from the start, to learn more.
    More(usize),
    /// The whole stream: this many bytes.
    Total(usize),
}

/// The length of a stream, as far as its beginning tells.
///
/// # Errors
/// [`WqeError::Ds`] or [`WqeError::Segment`] for a stream without an end: ds is 0, or the inline
/// header is not in the unit that ds names as the last.
#[inline]
pub fn stream_need(prefix: &[u8]) -> Result<Need, WqeError> {
    if prefix.len() < DS_BYTES {
        return Ok(Need::More(DS_BYTES));
    }
    let ctrl = Ctrl::parse(prefix)?;
    let end = usize::from(ctrl.ds) * DS_BYTES;
    if ctrl.ds == 0 {
        return Err(WqeError::Ds(0));
    }
    // The segments up to the payload have no inline header; unknown opcodes are found by parsing.
    let header = match Opcode::from_code(ctrl.opcode) {
        Some(Opcode::Nop) => return Ok(Need::Total(end)),
        Some(opcode) => opcode.header_bytes(),
        None => 32,
    };
    let mut at = header;
    while at < end {
        let Some(word) = prefix.get(at..at + 4) else { return Ok(Need::More(at + 4)) };
        let count = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
        if count & INLINE_FLAG != 0 {
            let last = at + DS_BYTES == end;
            let total = at + 4 + (count & !INLINE_FLAG) as usize;
            return if last { Ok(Need::Total(total)) } else { Err(WqeError::Segment(at)) };
        }
        at += DS_BYTES;
    }
    Ok(Need::Total(end))
}

#[cfg(test)]
#[path = "inband_tests.rs"]
mod tests;
