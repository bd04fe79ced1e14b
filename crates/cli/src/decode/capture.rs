//! pcap and pcapng (Internet-Drafts draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng), and ERF (Endace, "Extensible
//! Record Format").

use std::fmt;

use super::DecodeError;
use super::packet::Link;

/// A packet of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured<'a> {
    /// Its number, from 1.
    pub number: u64,
    /// When, in ns since 1970, if the capture says it.
    pub at_ns: Option<u64>,
    /// What it begins with, or the link type of one that is not known here.
    pub link: Result<Link, Foreign>,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Whether the capture has a part of them only.
    pub cut: bool,
}

/// What is not known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// A link type of the tcpdump group's list.
    Type(u32),
    /// A type of ERF's records.
    Erf(u8),
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(code) => write!(f, "link type {code}"),
            Self::Erf(code) => write!(f, "ERF type {code}"),
        }
    }
}

/// What a link type's packets begin with (the tcpdump group's list).
fn link_of(code: u32) -> Result<Link, Foreign> {
    Ok(match code {
        1 => Link::Ethernet,
        12 | 14 | 101 | 228 | 229 => Link::Ip,
        0 | 108 => Link::Loopback,
        113 => Link::Cooked,
        276 => Link::Cooked2,
        // 197 is ERF's records: `erf::within`.
        _ => return Err(Foreign::Type(code)),
    })
}

fn wrong(at: usize, what: impl fmt::Display) -> DecodeError {
    DecodeError(format!("byte {at}: {what}"))
}

/// Integers of a file of either byte order.
#[derive(Clone, Copy)]
struct Order {
    big: bool,
}

impl Order {
    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let word: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(if self.big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) })
    }

    fn i64(self, bytes: &[u8], at: usize) -> Option<i64> {
        let word: [u8; 8] = bytes.get(at..at + 8)?.try_into().ok()?;
        Some(if self.big { i64::from_be_bytes(word) } else { i64::from_le_bytes(word) })
    }

    fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let word: [u8; 2] = bytes.get(at..at + 2)?.try_into().ok()?;
        Some(if self.big { u16::from_be_bytes(word) } else { u16::from_le_bytes(word) })
    }
}

const MAGIC_US: u32 = 0xa1b2_c3d4;
const MAGIC_NS: u32 = 0xa1b2_3c4d;
/// Of an old Linux, whose packets' headers have an interface and a protocol, too.
const MAGIC_MODIFIED: u32 = 0xa1b2_cd34;
/// How compressed files begin (RFC 1952, RFC 8878, the formats of xz and lz4).
const COMPRESSED: [(&[u8], &str); 4] = [
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x04\x22\x4d\x18", "lz4"),
];
const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// Longest packet of a capture (libpcap, `MAXIMUM_SNAPLEN`), and more than a block around it takes: a length beyond is
/// damage, and not the end of a file that was still written.
const MOST_OF_A_PACKET: usize = 262_144;
const MOST_OF_A_BLOCK: usize = 2 * MOST_OF_A_PACKET;

/// Where a capture ends, if not behind a packet: who captured was killed, or is not done.
pub type Cut = Option<String>;

/// Hands over the packets of a capture, until `each` says that it is enough.
///
/// # Errors
/// [`DecodeError`], which names the byte; packets before it were handed over.
pub fn packets(
    bytes: &[u8],
    each: &mut dyn FnMut(Captured<'_>) -> bool,
) -> Result<Cut, DecodeError> {
    let each = &mut |it: Captured<'_>| match it.link {
        Err(Foreign::Type(erf::LINK)) => each(erf::within(&it)),
        _ => each(it),
    };
    let order = |big| Order { big };
    for big in [false, true] {
        match order(big).u32(bytes, 0) {
            Some(magic @ (MAGIC_US | MAGIC_NS | MAGIC_MODIFIED)) => {
                return classic(bytes, order(big), magic, each);
            }
            Some(SECTION) => return next_generation(bytes, each),
            _ => {}
        }
    }
    if erf::is(bytes) {
        return erf::packets(bytes, each);
    }
    let packed = COMPRESSED.iter().find(|(magic, _)| bytes.starts_with(magic));
    Err(DecodeError(match packed {
        Some((_, how)) => format!("it is compressed ({how}): unpack it first"),
        None => "it begins neither as pcap nor as pcapng, nor as ERF".into(),
    }))
}

fn classic(
    bytes: &[u8],
    order: Order,
    magic: u32,
    each: &mut dyn FnMut(Captured<'_>) -> bool,
) -> Result<Cut, DecodeError> {
    let kind = order.u32(bytes, 20).ok_or_else(|| wrong(0, "the header has 24 bytes"))?;
    let link = link_of(kind & 0xffff);
    let unit = if magic == MAGIC_NS { 1 } else { 1000 };
    let head_bytes = if magic == MAGIC_MODIFIED { 24 } else { 16 };
    let (mut at, mut number) = (24, 0);
    while at < bytes.len() {
        let word = |i: usize| order.u32(bytes, at + i * 4);
        let head = (word(0), word(1), word(2), word(3));
        let (Some(s), Some(fraction), Some(len), Some(whole)) = head else {
            return Ok(Some(format!("the file ends within the header of packet {}", number + 1)));
        };
        let begin = at + head_bytes;
        let packet = begin.checked_add(len as usize).and_then(|end| bytes.get(begin..end));
        let Some(packet) = packet else {
            if len as usize > MOST_OF_A_PACKET {
                return Err(wrong(at, format!("a packet of {len} bytes passes the file's end")));
            }
            return Ok(Some(format!("the file ends within packet {}", number + 1)));
        };
        number += 1;
        let at_ns = Some(u64::from(s) * 1_000_000_000 + u64::from(fraction) * unit);
        let cut = whole > len;
        if !each(Captured { number, at_ns, link, bytes: packet, cut }) {
            break;
        }
        at = begin + packet.len();
    }
    Ok(None)
}

/// An interface of a pcapng section.
#[derive(Clone, Copy)]
struct Interface {
    link: Result<Link, Foreign>,
    snaplen: u32,
    /// Units of a time stamp in a second.
    per_second: u128,
    /// Seconds that a time stamp is behind.
    offset: i64,
}

/// Most interfaces of a section.
const MOST_INTERFACES: usize = 1 << 16;

fn next_generation(
    bytes: &[u8],
    each: &mut dyn FnMut(Captured<'_>) -> bool,
) -> Result<Cut, DecodeError> {
    let (mut at, mut number) = (0, 0);
    let mut order = Order { big: false };
    let mut interfaces: Vec<Interface> = Vec::new();
    while at < bytes.len() {
        let cut =
            |number: u64| Ok(Some(format!("the file ends within a block after packet {number}")));
        let Some(kind) = order.u32(bytes, at) else { return cut(number) };
        if kind == SECTION {
            let is = |big| Order { big }.u32(bytes, at + 8) == Some(BYTE_ORDER);
            order.big = is(true);
            if !order.big && !is(false) {
                return Err(wrong(at, "a section without its byte order"));
            }
            interfaces.clear();
        }
        let Some(len) = order.u32(bytes, at + 4) else { return cut(number) };
        let len = len as usize;
        let block = at.checked_add(len).and_then(|end| bytes.get(at..end));
        let fits = len >= 12 && len.is_multiple_of(4);
        if block.is_none() && fits && len <= MOST_OF_A_BLOCK {
            return cut(number);
        }
        let Some(block) = block.filter(|_| fits) else {
            return Err(wrong(
                at,
                format!("a block of {len} bytes passes the file's end, or is none"),
            ));
        };
        let body = &block[8..len - 4];
        let found = match kind {
            1 if interfaces.len() < MOST_INTERFACES => {
                interfaces.extend(interface(order, body));
                None
            }
            // The obsolete Packet Block: behind the interface's number is how many packets were lost.
            2 => stamped(order, body, order.u16(body, 0).map(u32::from), &interfaces),
            3 => simple(order, body, interfaces.first()),
            6 => stamped(order, body, order.u32(body, 0), &interfaces),
            _ => None,
        };
        if matches!(kind, 2 | 3 | 6) {
            number += 1;
            let found = found.ok_or_else(|| wrong(at, "a packet's block that does not fit"))?;
            if !each(Captured { number, ..found }) {
                break;
            }
        }
        at += len;
    }
    Ok(None)
}

fn interface(order: Order, body: &[u8]) -> Option<Interface> {
    let link = link_of(order.u16(body, 0)?.into());
    let snaplen = order.u32(body, 4)?;
    let (mut at, mut per_second, mut offset) = (8, 1_000_000, 0);
    while let (Some(code), Some(len)) = (order.u16(body, at), order.u16(body, at + 2)) {
        if code == 0 {
            break;
        }
        // if_tsresol: a power of 10, or of 2.
        if code == 9
            && len == 1
            && let Some(&resolution) = body.get(at + 4)
        {
            let power = u32::from(resolution & 0x7f);
            let base: u128 = if resolution & 0x80 != 0 { 2 } else { 10 };
            per_second = base.checked_pow(power).unwrap_or(u128::MAX);
        }
        // if_tsoffset
        if code == 14 && len == 8 {
            offset = order.i64(body, at + 4).unwrap_or(0);
        }
        at += 4 + usize::from(len).next_multiple_of(4);
    }
    Some(Interface { link, snaplen, per_second, offset })
}

/// A packet of an interface whose number is in the first word.
fn stamped<'a>(
    order: Order,
    body: &'a [u8],
    interface: Option<u32>,
    interfaces: &[Interface],
) -> Option<Captured<'a>> {
    let word = |i: usize| order.u32(body, i * 4);
    let of = *interfaces.get(interface? as usize)?;
    let stamp = u64::from(word(1)?) << 32 | u64::from(word(2)?);
    let (len, whole) = (word(3)?, word(4)?);
    let bytes = body.get(20..20_usize.checked_add(len as usize)?)?;
    let at_ns = u128::from(stamp) * 1_000_000_000 / of.per_second;
    let at_ns = (at_ns as u64).wrapping_add_signed(of.offset.wrapping_mul(1_000_000_000));
    Some(Captured { number: 0, at_ns: Some(at_ns), link: of.link, bytes, cut: whole > len })
}

fn simple<'a>(order: Order, body: &'a [u8], of: Option<&Interface>) -> Option<Captured<'a>> {
    let of = of?;
    let whole = order.u32(body, 0)?;
    let most = if of.snaplen == 0 { u32::MAX } else { of.snaplen };
    let len = whole.min(most);
    let bytes = body.get(4..4_usize.checked_add(len as usize)?)?;
    Some(Captured { number: 0, at_ns: None, link: of.link, bytes, cut: whole > len })
}

mod erf {
    //! Records one after the other, without a header of the file: 16 bytes, extension headers, a packet. Numbers are
    //! big-endian, but for the time stamp.

    use super::{Captured, Cut, DecodeError, Foreign, Link, wrong};

    /// The link type of captures whose packets are such records (the tcpdump group's list).
    pub(super) const LINK: u32 = 197;
    const HEAD_BYTES: usize = 16;
    const EXTENSION_BYTES: usize = 8;
    /// In a record's type, and in that of an extension header: another one follows.
    const MORE: u8 = 0x80;
    const ETHERNET: [u8; 3] = [2, 11, 16];
    const IP: [u8; 2] = [22, 23];
    /// The last type that is assigned.
    const LAST: u8 = 48;
    /// Records that a file's beginning is known by.
    const LOOKED_AT: usize = 2;

    struct Record<'a> {
        kind: u8,
        at_ns: u64,
        bytes: &'a [u8],
        /// Bytes of the packet on the wire.
        whole: usize,
        next: usize,
    }

    fn record(bytes: &[u8], at: usize) -> Result<Record<'_>, &'static str> {
        let head =
            bytes.get(at..at + HEAD_BYTES).ok_or("the file ends within a record's header")?;
        let stamp = u64::from_le_bytes(head[..8].try_into().expect("8 bytes"));
        let short = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
        let (kind, len, whole) = (head[8] & !MORE, short(10), short(14));
        let all = bytes.get(at..at + len).filter(|_| len >= HEAD_BYTES);
        let all =
            all.ok_or("a record that passes the file's end, or is shorter than its header")?;
        let (mut begin, mut more) = (HEAD_BYTES, head[8] & MORE != 0);
        while more {
            let first = all.get(begin).ok_or("an extension header that passes its record's end")?;
            more = first & MORE != 0;
            begin += EXTENSION_BYTES;
        }
        // Its offset, and a byte that is not used.
        begin += if ETHERNET.contains(&kind) { 2 } else { 0 };
        let packet = all.get(begin..).ok_or("headers that pass their record's end")?;
        // Records are padded.
        let bytes = &packet[..packet.len().min(whole)];
        let ns = ((stamp & 0xffff_ffff) * 1_000_000_000) >> 32;
        let at_ns = (stamp >> 32) * 1_000_000_000 + ns;
        Ok(Record { kind, at_ns, bytes, whole, next: at + len })
    }

    /// Whether bytes begin as such records do: of types that there are, in the order of their times.
    pub(super) fn is(bytes: &[u8]) -> bool {
        let (mut at, mut before) = (0, 0);
        for _ in 0..LOOKED_AT {
            match record(bytes, at) {
                Ok(it) if (1..=LAST).contains(&it.kind) && it.at_ns >= before => {
                    (at, before) = (it.next, it.at_ns);
                }
                _ => return false,
            }
            if at == bytes.len() {
                break;
            }
        }
        at > 0
    }

    fn link(kind: u8) -> Result<Link, Foreign> {
        match kind {
            kind if ETHERNET.contains(&kind) => Ok(Link::Ethernet),
            kind if IP.contains(&kind) => Ok(Link::Ip),
            kind => Err(Foreign::Erf(kind)),
        }
    }

    /// What is in a packet of a capture whose packets are records. One that is none stays of a link that is not known.
    pub(super) fn within<'a>(it: &Captured<'a>) -> Captured<'a> {
        match record(it.bytes, 0) {
            Ok(Record { kind, bytes, whole, .. }) => {
                Captured { link: link(kind), bytes, cut: whole > bytes.len(), ..*it }
            }
            Err(_) => *it,
        }
    }

    /// Whether the file ends before the record that begins there does.
    fn is_cut(bytes: &[u8], at: usize) -> bool {
        let len = bytes.get(at + 10..at + 12).map(|len| u16::from_be_bytes([len[0], len[1]]));
        len.is_none_or(|len| usize::from(len) >= HEAD_BYTES && at + usize::from(len) > bytes.len())
    }

    pub(super) fn packets(
        bytes: &[u8],
        each: &mut dyn FnMut(Captured<'_>) -> bool,
    ) -> Result<Cut, DecodeError> {
        let (mut at, mut number) = (0, 0);
        while at < bytes.len() {
            number += 1;
            if is_cut(bytes, at) {
                return Ok(Some(format!("the file ends within packet {number}")));
            }
            let it = record(bytes, at).map_err(|what| wrong(at, what))?;
            let Record { kind, at_ns, bytes, whole, next } = it;
            let (at_ns, cut) = (Some(at_ns), whole > bytes.len());
            if !each(Captured { number, at_ns, link: link(kind), bytes, cut }) {
                break;
            }
            at = next;
        }
        Ok(None)
    }
}
