//! Packets: Ethernet, IP, UDP, RoCEv2, management datagrams.

use std::borrow::Cow;
use std::ops::Range;

use bellpush::wire::Psn;
use bellpush::wire::cm::{
    GSI_QPN, IP_HEADER_BYTES, IpHeader, MAD_BYTES, Mad, Message, MessageKind, PortSpace,
};
use bellpush::wire::fields::{
    BTH, COOKED, COOKED2, ETHERNET, ICRC, IPV4, IPV6, Layout, MAD, UDP, VLAN, extensions,
};
use bellpush::wire::roce::{
    Addresses, BTH_BYTES, Bth, Envelope, ICRC_BYTES, IpError, MAX_PACKET_BYTES, Opcode, Operation,
    Packet, PacketError, ROCE_PORT, Reth,
};

use super::item::Item;
use super::names::{aeth, ethertype, foreign_opcode, packet_opcode};
use super::{options, placement};

/// What a packet begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Link {
    /// By its bytes: Ethernet's type, IP's version, else a BTH.
    #[value(skip)]
    Guess,
    /// An Ethernet header.
    Ethernet,
    /// An IP header.
    Ip,
    /// A BTH.
    Bth,
    /// A protocol family of 4 bytes, then an IP header (BSD loopback).
    #[value(skip)]
    Loopback,
    /// A header of Linux "cooked" captures.
    #[value(skip)]
    Cooked,
    /// One of the second version.
    #[value(skip)]
    Cooked2,
}

/// What a stream needs to know of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// All of its headers.
    Whole(Whole),
    /// A request of one packet, with a PSN, of which nothing else counts.
    Single(Single),
    /// No more than its stream: between which addresses, to which queue pair.
    Part(Addresses, u32),
}

/// As [`Whole`], of an operation that [`Opcode`] does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Single {
    pub addresses: Addresses,
    pub port: u16,
    pub dest: u32,
    pub psn: Psn,
}

/// The headers of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whole {
    pub addresses: Addresses,
    /// UDP's source port.
    pub port: u16,
    pub bth: Bth,
    pub reth: Option<Reth>,
    pub payload: usize,
}

/// What is not in the bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Around {
    /// IP and UDP headers of a packet that begins with its BTH.
    pub envelope: Option<Envelope>,
    /// Its bytes are not all there: neither ICRC nor payload can be checked.
    pub cut: bool,
    /// Its link has no ICRC.
    pub without_icrc: bool,
    /// Bytes of options of its IPv4 header.
    pub options: usize,
}

const ETHERTYPE_IPV4: u64 = 0x0800;
const ETHERTYPE_IPV6: u64 = 0x86dd;
/// IEEE 802.1Q, 802.1ad, and what came before 802.1ad.
const ETHERTYPES_VLAN: [u64; 3] = [0x8100, 0x88a8, 0x9100];
/// Most VLAN tags: 802.1ad has two, some networks have more.
const MOST_TAGS: usize = 4;

/// More bytes than IP, UDP and RoCEv2 headers and the largest path MTU take.
const MOST_OF_A_PACKET: usize = 8192;

/// Shows a header, and says whether it is there. Of a packet that is cut, one that is not there is no fault.
pub(super) fn header(item: &mut Item, layout: &Layout, bytes: &[u8], at: usize, cut: bool) -> bool {
    item.part(layout, bytes, at);
    if bytes.len() >= at + layout.bytes {
        return true;
    }
    let have = bytes.len().saturating_sub(at);
    let what = format!("{} has {} bytes, and {have} are there", layout.name, layout.bytes);
    if cut {
        item.note(at, what)
    } else {
        item.wrong(at, what)
    }
    false
}

fn guessed(bytes: &[u8]) -> Link {
    let version = |at: usize| bytes.get(at).map(|byte| byte >> 4);
    let ethernet = match ETHERNET.number("ethertype", bytes) {
        Some(ETHERTYPE_IPV4) => version(ETHERNET.bytes).is_none_or(|it| it == 4),
        Some(ETHERTYPE_IPV6) => version(ETHERNET.bytes).is_none_or(|it| it == 6),
        Some(other) => ETHERTYPES_VLAN.contains(&other),
        None => false,
    };
    if ethernet {
        return Link::Ethernet;
    }
    let first = bytes.first().copied().unwrap_or(0);
    // 0x64 and 0x65 begin a datagram's BTH, too.
    let length = IPV6.number("payload_length", bytes).unwrap_or(0) as usize;
    let is_ip = match first >> 4 {
        4 => first & 0xf >= 5 && bytes.len() >= IPV4.bytes + UDP.bytes,
        6 if first & 0xe == 4 => length > 0 && bytes.len() == IPV6.bytes + length,
        version => version == 6 && bytes.len() >= IPV4.bytes + UDP.bytes,
    };
    if is_ip { Link::Ip } else { Link::Bth }
}

/// A packet. What a stream needs to know of it, if it is one of RoCEv2.
pub(super) fn packet(
    place: String,
    bytes: &[u8],
    link: Link,
    around: &Around,
) -> (Item, Option<Seen>) {
    let mut item = Item::new("packet", place);
    let link = if link == Link::Guess { guessed(bytes) } else { link };
    let seen = match link {
        Link::Bth | Link::Guess => roce(&mut item, bytes, 0..bytes.len(), bytes.len(), around),
        Link::Ip => ip(&mut item, bytes, 0, around),
        Link::Loopback => loopback(&mut item, bytes, around),
        Link::Ethernet => framed(&mut item, bytes, &ETHERNET, around),
        Link::Cooked => framed(&mut item, bytes, &COOKED, around),
        Link::Cooked2 => framed(&mut item, bytes, &COOKED2, around),
    };
    if item.summary.is_empty() {
        item.summary = format!("{} bytes", bytes.len());
    }
    (item, seen)
}

/// A header that says what follows: Ethernet's, or one of a cooked capture.
fn framed(item: &mut Item, bytes: &[u8], layout: &Layout, around: &Around) -> Option<Seen> {
    if !header(item, layout, bytes, 0, around.cut) {
        return None;
    }
    let mut at = layout.bytes;
    let kind = layout.number("ethertype", bytes).or(layout.number("protocol", bytes));
    let mut kind = kind.unwrap_or(0);
    for _ in 0..MOST_TAGS {
        if ETHERTYPES_VLAN.contains(&kind) {
            if !header(item, &VLAN, bytes, at, around.cut) {
                return None;
            }
            kind = VLAN.number("ethertype", &bytes[at..]).unwrap_or(0);
            at += VLAN.bytes;
        }
    }
    item.summary = match (kind, ethertype(kind)) {
        (ETHERTYPE_IPV4 | ETHERTYPE_IPV6, _) => String::new(),
        (..0x600, _) => {
            format!("a frame of IEEE 802.3 or of the link itself ({kind:#06x}), not IP")
        }
        (_, Some(name)) => format!("{name} (type {kind:#06x}), which is not IP"),
        _ => format!("Ethernet type {kind:#06x}, which is not IP"),
    };
    if item.summary.is_empty() { ip(item, bytes, at, around) } else { None }
}

/// A protocol family, of the byte order of whoever captured, and what follows (BSD: AF_INET and AF_INET6).
fn loopback(item: &mut Item, bytes: &[u8], around: &Around) -> Option<Seen> {
    let word = bytes.first_chunk::<4>().map(|word| u32::from_le_bytes(*word));
    let family = word.map(|word| if word > 0xffff { word.swap_bytes() } else { word });
    match family {
        Some(2 | 10 | 24 | 28 | 30) => ip(item, bytes, 4, around),
        Some(family) => {
            item.summary = format!("protocol family {family}, which is not IP");
            None
        }
        None => ip(item, bytes, bytes.len(), around),
    }
}

/// Names of fields that IPv4 and IPv6 call otherwise.
struct Ip {
    layout: &'static Layout,
    protocol: &'static str,
    /// Its bytes, without those that `beside` counts.
    length: &'static str,
    beside: usize,
}

const V4: Ip = Ip { layout: &IPV4, protocol: "protocol", length: "total_length", beside: 0 };
const V6: Ip =
    Ip { layout: &IPV6, protocol: "next_header", length: "payload_length", beside: IPV6.bytes };

fn ip(item: &mut Item, bytes: &[u8], at: usize, around: &Around) -> Option<Seen> {
    let rest = bytes.get(at..).unwrap_or_default();
    let version = rest.first().map(|first| first >> 4);
    let (names, udp) = match version {
        Some(4) => (&V4, at + usize::from(rest[0] & 0xf) * 4),
        Some(6) => (&V6, at + IPV6.bytes),
        Some(version) => {
            item.wrong(at, format!("IP version {version} is not known"));
            return None;
        }
        None => {
            let what = "the bytes end before the IP header";
            if around.cut {
                item.note(at, what)
            } else {
                item.wrong(at, what)
            }
            return None;
        }
    };
    if !header(item, names.layout, bytes, at, around.cut) {
        return None;
    }
    let number = |name| names.layout.number(name, rest).unwrap_or(0);
    let protocol = number(names.protocol);
    if protocol != 17 {
        item.summary = format!("IP protocol {protocol}, which is not UDP");
        return None;
    }
    if let offset @ 1.. = number("fragment_offset") {
        let at = offset * 8;
        item.summary = format!("an IP fragment from byte {at} of a datagram, without UDP header");
        return None;
    }
    if udp < at + names.layout.bytes {
        item.wrong(at, "ihl is below 5: the header has 20 bytes");
        return None;
    }
    let all = number(names.length) as usize + names.beside;
    udp_of(item, bytes, (at, udp), all, around)
}

/// UDP and what is in it, in an IP packet of `all` bytes that begins at `at`.
fn udp_of(
    item: &mut Item,
    bytes: &[u8],
    (at, udp): (usize, usize),
    all: usize,
    around: &Around,
) -> Option<Seen> {
    let have = bytes.len() - at;
    // The bytes behind IP's are the link's: padding, or a frame check sequence.
    let cut = all > have;
    if !header(item, &UDP, bytes, udp, around.cut) {
        return None;
    }
    let number = |name| UDP.number(name, &bytes[udp..]).unwrap_or(0);
    let port = number("destination_port");
    if port != u64::from(ROCE_PORT) {
        item.summary = format!("UDP to port {port}, which is not RoCEv2's {ROCE_PORT}");
        return None;
    }
    match (cut, around.cut) {
        (true, true) => item.note(
            at,
            format!(
                "the capture has {have} of the IP packet's {all} bytes: payload and ICRC are not checked"
            ),
        ),
        (true, false) => item.wrong(at, format!("IP says {all} bytes, and {have} are there")),
        (false, _) => {}
    }
    // What is cut off is as long as IP says.
    if cut && all > MOST_OF_A_PACKET {
        item.wrong(at, format!("{all} bytes, and no RoCEv2 packet is so long"));
        return None;
    }
    let mut whole = bytes.to_vec();
    whole.resize(whole.len().max(at + all), 0);
    let (envelope, options) = envelope(item, &whole[at..at + all], at);
    let length = number("length") as usize;
    let room = (at + all).saturating_sub(udp);
    if length < room && length >= UDP.bytes {
        item.wrong(udp + 4, format!("UDP says {length} bytes, and IP has {room} for it"));
    }
    let begin = udp + UDP.bytes;
    let end = (udp + length.min(room)).max(begin).min(whole.len());
    let around = Around { envelope, cut, options, ..*around };
    roce(item, &whole, begin..end, bytes.len().min(end), &around)
}

/// IP and UDP headers, if they are right but for IPv4's checksum, without IPv4's options; and how long those are.
fn envelope(item: &mut Item, ip: &[u8], at: usize) -> (Option<Envelope>, usize) {
    let mut ip = Cow::Borrowed(ip);
    let mut options = 0;
    if let Some((plain, bytes)) = options::without(&ip) {
        let begin = at + IPV4.bytes;
        item.bytes("options", begin, &ip[IPV4.bytes..IPV4.bytes + bytes]);
        item.note(begin, format!("{bytes} bytes of IPv4 options, which bellpush does not carry"));
        (ip, options) = (plain.into(), bytes);
    }
    if Envelope::parse(&ip) == Err(IpError::Checksum) {
        item.wrong(at, IpError::Checksum.to_string());
        // The ICRC does not cover it.
        let ip = ip.to_mut();
        ip[10..12].fill(0);
        let right = !options::sum(&ip[..IPV4.bytes]);
        ip[10..12].copy_from_slice(&right.to_be_bytes());
    }
    match Envelope::parse(&ip) {
        Ok((envelope, _)) => (Some(envelope), options),
        Err(error) => {
            item.wrong(at, error.to_string());
            (None, options)
        }
    }
}

/// BTH to ICRC, between two offsets; of the bytes up to `have` are the packet's, and zeros stand for the others.
fn roce(
    item: &mut Item,
    all: &[u8],
    range: Range<usize>,
    have: usize,
    around: &Around,
) -> Option<Seen> {
    let seen = transport(item, all, range, have, around);
    if let Some(Envelope { addresses, src_port, .. }) = around.envelope {
        let (from, to) = (addresses.src(), addresses.dst());
        item.summary += &format!(", from {from} port {src_port} to {to}");
    }
    seen
}

fn transport(
    item: &mut Item,
    all: &[u8],
    Range { start: at, end }: Range<usize>,
    have: usize,
    around: &Around,
) -> Option<Seen> {
    let (bytes, there) = (&all[at..end], &all[..have]);
    if !header(item, &BTH, there, at, around.cut) {
        return None;
    }
    let part = around.envelope.map(|envelope| {
        let qpn = BTH.number("DestQP", bytes).unwrap_or(0);
        Seen::Part(envelope.addresses, qpn as u32)
    });
    let code = bytes[0];
    let Some(opcode) = Opcode::from_code(code) else {
        let placed = placement::request(item, all, at..end, have, around.cut);
        if !placed {
            item.summary = format!("RoCEv2, opcode {code:#04x}");
            match foreign_opcode(code) {
                Some(what) => item.note(at, format!("opcode {code:#04x} is {what}")),
                None => item.wrong(at, format!("opcode {code:#04x} is not known")),
            }
        }
        icrc(item, all, at, end, around);
        let (true, Some(envelope)) = (placed, around.envelope) else { return part };
        let number = |name| BTH.number(name, bytes).unwrap_or(0) as u32;
        return Some(Seen::Single(Single {
            addresses: envelope.addresses,
            port: envelope.src_port,
            dest: number("DestQP"),
            psn: Psn::new(number("PSN")),
        }));
    };
    let mut next = at + BTH_BYTES;
    item.summary = summary(opcode, there, at);
    for layout in extensions(opcode.extensions()) {
        if !header(item, layout, there, next, around.cut) && around.cut {
            return part;
        }
        next += layout.bytes;
    }
    next = next.min(end);
    let parsed = Packet::parse(bytes);
    let room = end.saturating_sub(ICRC_BYTES).max(next);
    match &parsed {
        Ok(packet) => {
            let (from, len) = (next, packet.payload.len());
            let pad = room - from - len;
            item.summary += &extent(packet);
            if !around.cut {
                payload(item, &all[from..from + len], from, packet);
                if pad > 0 && all[from + len..room].iter().any(|&byte| byte != 0) {
                    item.note(from + len, "the pad is not zero");
                }
            }
            if opcode == Opcode::CNP {
                congestion(item, bytes, at);
            }
            message(item, packet, next);
        }
        Err(error) => {
            if !around.cut {
                item.bytes("payload, pad", next, &all[next..room]);
            }
            item.wrong(wrong_at(error, at, next), error.to_string());
        }
    }
    icrc(item, all, at, end, around);
    let Ok(packet) = parsed else { return part };
    let (bth, reth, payload) = (packet.headers.bth, packet.headers.ext.reth, packet.payload.len());
    let Envelope { addresses, src_port: port, .. } = around.envelope?;
    Some(Seen::Whole(Whole { addresses, port, bth, reth, payload }))
}

fn wrong_at(error: &PacketError, bth: usize, payload: usize) -> usize {
    match error {
        PacketError::Opcode(_) | PacketError::Short { .. } | PacketError::Icrc { .. } => bth,
        PacketError::Version(_) | PacketError::Pad { .. } => bth + 1,
        PacketError::Syndrome(_) => bth + BTH_BYTES,
        PacketError::Payload { .. } => payload,
    }
}

fn summary(opcode: Opcode, bytes: &[u8], at: usize) -> String {
    let number = |name| BTH.number(name, &bytes[at..]).unwrap_or(0);
    let (dest, psn) = (number("DestQP"), number("PSN"));
    let mut line = format!("{} to QP {dest:#x}, PSN {psn}", packet_opcode(opcode));
    if opcode.extensions().aeth
        && let Some(code) = bytes.get(at + BTH_BYTES)
    {
        line += &format!(", {}", aeth(*code));
    }
    line
}

/// What a packet carries or asks for.
fn extent(packet: &Packet<'_>) -> String {
    let ext = &packet.headers.ext;
    let opcode = packet.headers.bth.opcode;
    match (ext.reth, ext.atomic) {
        _ if opcode == Opcode::CNP => String::new(),
        (Some(Reth { addr, rkey, bytes }), _) if opcode.operation() == Operation::ReadRequest => {
            format!(", {bytes} bytes at {:#x}, rkey {:#x}", addr.0, rkey.0)
        }
        (_, Some(atomic)) => format!(", at {:#x}, rkey {:#x}", atomic.addr.0, atomic.rkey.0),
        _ => format!(", {} bytes", packet.payload.len()),
    }
}

/// A congestion notification has BECN 1, and no place in a sequence (annex A17.9.3).
fn congestion(item: &mut Item, bth: &[u8], at: usize) {
    let number = |name| BTH.number(name, bth).unwrap_or(0);
    if number("BECN") == 0 {
        item.wrong(at + 4, "a CNP without BECN: the bit is what it notifies of");
    }
    if let psn @ 1.. = number("PSN") {
        item.note(at + 8, format!("PSN {psn}: ConnectX's CNPs have 0"));
    }
}

/// What a request asks for that it may not.
fn message(item: &mut Item, packet: &Packet<'_>, at: usize) {
    let ext = &packet.headers.ext;
    if let Some(reth) = ext.reth.filter(|reth| reth.bytes > 1 << 31) {
        item.wrong(
            at - 4,
            format!("DMALen is {}, and a message has at most 2^31 bytes", reth.bytes),
        );
    }
    if let Some(atomic) = ext.atomic.filter(|_| ext.masks.is_none())
        && !atomic.addr.0.is_multiple_of(8)
    {
        let addr = atomic.addr.0;
        item.wrong(at - 28, format!("an atomic at {addr:#x}, which is not a multiple of 8"));
    }
    if packet.headers.bth.pkey & 0x7fff == 0 {
        item.wrong(None, "P_Key 0 is no partition");
    }
}

fn icrc(item: &mut Item, all: &[u8], at: usize, end: usize, around: &Around) {
    let bytes = &all[at..end];
    if around.cut || bytes.len() < BTH_BYTES + ICRC_BYTES {
        return;
    }
    let place = end - ICRC_BYTES;
    if around.without_icrc {
        item.note(place, "the link has no ICRC");
        return;
    }
    item.part(&ICRC, all, place);
    let Some(envelope) = around.envelope else {
        let headers = if at == 0 { "are not here" } else { "are wrong" };
        item.note(
            place,
            format!("the ICRC covers IP and UDP headers, which {headers}: it is not checked"),
        );
        return;
    };
    if bytes.len() > MAX_PACKET_BYTES {
        item.wrong(
            at,
            format!("a packet of {} bytes, and the longest has {MAX_PACKET_BYTES}", bytes.len()),
        );
    } else if around.options > 0 {
        options::icrc(item, all, (at, end), around.options);
    } else if let Err(error) = Packet::check(bytes, &envelope) {
        item.wrong(place, error.to_string());
    } else {
        item.means("right");
    }
}

fn payload(item: &mut Item, bytes: &[u8], at: usize, packet: &Packet<'_>) {
    if bytes.is_empty() {
        return;
    }
    let is_mad = packet.headers.bth.dest.0 == GSI_QPN
        && packet.headers.ext.deth.is_some()
        && bytes.len() == MAD_BYTES;
    match is_mad {
        true => mad(item, bytes, at),
        false => item.bytes("payload", at, bytes),
    }
}

/// A management datagram.
fn mad(item: &mut Item, bytes: &[u8], at: usize) {
    let head = MAD.bytes;
    item.fields("mad", MAD.fields.iter(), bytes, at);
    let kind =
        MAD.number("AttributeID", bytes).and_then(|id| MessageKind::from_attribute(id as u16));
    let parsed = Mad::parse(bytes);
    let data = &bytes[head..];
    match (kind, &parsed) {
        (Some(kind), Ok(mad)) => {
            item.fields(&format!("MAD data: {kind:?}"), kind.fields().into_iter(), data, at + head);
            item.summary += &format!(", communication management: {}", told(&mad.message));
        }
        (_, Err(error)) => {
            item.bytes("MAD data", at + head, data);
            item.wrong(at, error.to_string());
        }
        (None, Ok(_)) => {}
    }
}

fn told(message: &Message) -> String {
    match message {
        Message::Req(req) => {
            let service = PortSpace::of(req.service)
                .map_or(format!("service {:#x}", req.service), |(space, port)| {
                    format!("rdma_cm {space:?} port {port}")
                });
            let head = req.private.first_chunk::<IP_HEADER_BYTES>();
            let who = head.and_then(|head| IpHeader::parse(head).ok());
            let who = who.filter(|_| PortSpace::of(req.service).is_some());
            let who = who.map_or(String::new(), |who| format!(", from {} to {}", who.from, who.to));
            format!("REQ for {service}, QP {:#x}, PSN {}{who}", req.qpn, req.psn)
        }
        Message::Rep(rep) => format!("REP, QP {:#x}, PSN {}", rep.qpn, rep.psn),
        Message::Rej(rej) => {
            let why = super::names::meaning("mad", "reason", rej.reason.into());
            format!("REJ, {}", why.unwrap_or_else(|| format!("reason {}", rej.reason)))
        }
        Message::Dreq(dreq) => format!("DREQ, QP {:#x}", dreq.remote_qpn),
        other => format!("{:?}", other.kind()).to_uppercase(),
    }
}
