//! Packets: Ethernet, IP, UDP, RoCEv2, management datagrams.

use bellpush::wire::cm::{
    GSI_QPN, IP_HEADER_BYTES, IpHeader, MAD_BYTES, Mad, Message, MessageKind, PortSpace,
};
use bellpush::wire::fields::{BTH, ETHERNET, ICRC, IPV4, IPV6, Layout, MAD, UDP, VLAN, extensions};
use bellpush::wire::roce::{
    Addresses, BTH_BYTES, Bth, Envelope, ICRC_BYTES, MAX_PACKET_BYTES, Opcode, Packet, PacketError,
    ROCE_PORT, Reth,
};

use super::item::Item;
use super::names::{aeth, packet_opcode};

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
    /// So many bytes that are not looked at, then an IP header.
    #[value(skip)]
    Skip(usize),
}

/// What a stream needs to know of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub addresses: Addresses,
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
}

const ETHERTYPE_IPV4: u64 = 0x0800;
const ETHERTYPE_IPV6: u64 = 0x86dd;
const ETHERTYPE_VLAN: u64 = 0x8100;

/// Shows a header, and says whether it is there.
fn header(item: &mut Item, layout: &Layout, bytes: &[u8], at: usize) -> bool {
    if bytes.len() < at + layout.bytes {
        let have = bytes.len().saturating_sub(at);
        item.part(layout, bytes, at);
        item.wrong(at, format!("{} has {} bytes, and {have} are there", layout.name, layout.bytes));
        return false;
    }
    item.part(layout, bytes, at);
    true
}

fn guessed(bytes: &[u8]) -> Link {
    let ethertype = ETHERNET.number("ethertype", bytes);
    let first = bytes.first().copied().unwrap_or(0);
    let is_ip = |first: u8| first == 0x45 || first >> 4 == 6;
    match ethertype {
        Some(ETHERTYPE_IPV4 | ETHERTYPE_IPV6 | ETHERTYPE_VLAN) => Link::Ethernet,
        _ if is_ip(first) && bytes.len() >= IPV4.bytes + UDP.bytes => Link::Ip,
        _ => Link::Bth,
    }
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
        Link::Bth | Link::Guess => roce(&mut item, bytes, 0, bytes.len(), around),
        Link::Ip => ip(&mut item, bytes, 0, around),
        Link::Skip(n) => ip(&mut item, bytes, n, around),
        Link::Ethernet => ethernet(&mut item, bytes, around),
    };
    if item.summary.is_empty() {
        item.summary = format!("{} bytes", bytes.len());
    }
    (item, seen)
}

fn ethernet(item: &mut Item, bytes: &[u8], around: &Around) -> Option<Seen> {
    if !header(item, &ETHERNET, bytes, 0) {
        return None;
    }
    let mut at = ETHERNET.bytes;
    let mut ethertype = ETHERNET.number("ethertype", bytes)?;
    // Two tags are the most that there are (802.1ad).
    for _ in 0..2 {
        if ethertype == ETHERTYPE_VLAN {
            if !header(item, &VLAN, bytes, at) {
                return None;
            }
            ethertype = VLAN.number("ethertype", &bytes[at..])?;
            at += VLAN.bytes;
        }
    }
    if !matches!(ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6) {
        item.summary = format!("Ethernet type {ethertype:#06x}, which is not IP");
        return None;
    }
    ip(item, bytes, at, around)
}

fn ip(item: &mut Item, bytes: &[u8], at: usize, around: &Around) -> Option<Seen> {
    let rest = bytes.get(at..).unwrap_or_default();
    let version = rest.first().copied().unwrap_or(0) >> 4;
    let (layout, udp) = match version {
        4 => (&IPV4, at + usize::from(rest[0] & 0xf) * 4),
        6 => (&IPV6, at + IPV6.bytes),
        _ => {
            item.wrong(at, format!("IP version {version} is not known"));
            return None;
        }
    };
    if !header(item, layout, bytes, at) {
        return None;
    }
    let protocol = layout.number(if version == 4 { "protocol" } else { "next_header" }, rest)?;
    if protocol != 17 {
        item.summary = format!("IP protocol {protocol}, which is not UDP");
        return None;
    }
    // The addresses' checks come with the envelope's: what is wrong does not keep the headers from being shown.
    let length =
        layout.number(if version == 4 { "total_length" } else { "payload_length" }, rest)?;
    let all = length as usize + if version == 4 { 0 } else { IPV6.bytes };
    let envelope = match Envelope::parse(&rest[..all.min(rest.len())]) {
        Ok((envelope, _)) => Some(envelope),
        Err(error) if around.cut => {
            item.note(at, error.to_string());
            None
        }
        Err(error) => {
            item.wrong(at, error.to_string());
            None
        }
    };
    if all > rest.len() && !around.cut {
        let have = rest.len();
        item.wrong(at, format!("IP says {all} bytes, and {have} are there"));
    }
    if udp < at + layout.bytes {
        item.wrong(at, "ihl is below 5: the header has 20 bytes");
        return None;
    }
    if !header(item, &UDP, bytes, udp) {
        return None;
    }
    let number = |name| UDP.number(name, &bytes[udp..]).unwrap_or(0);
    let port = number("destination_port");
    if port != u64::from(ROCE_PORT) {
        item.summary = format!("UDP to port {port}, which is not RoCEv2's {ROCE_PORT}");
        return None;
    }
    let begin = udp + UDP.bytes;
    let length = number("length") as usize;
    let end = (udp + length.max(UDP.bytes)).min(bytes.len()).max(begin);
    roce(item, bytes, begin, end, &Around { envelope, ..*around })
}

/// BTH to ICRC, between two offsets.
fn roce(item: &mut Item, all: &[u8], at: usize, end: usize, around: &Around) -> Option<Seen> {
    let bytes = &all[at..end];
    if !header(item, &BTH, &all[..end], at) {
        return None;
    }
    let code = bytes[0];
    let Some(opcode) = Opcode::from_code(code) else {
        item.summary = format!("RoCEv2, opcode {code:#04x}");
        item.wrong(at, format!("opcode {code:#04x} is not known"));
        icrc(item, all, at, end, around);
        return None;
    };
    let mut next = at + BTH_BYTES;
    for layout in extensions(opcode.extensions()) {
        if !header(item, layout, &all[..end], next) {
            break;
        }
        next += layout.bytes;
    }
    let parsed = Packet::parse(bytes);
    item.summary = summary(opcode, &all[..end], at);
    let room = end.saturating_sub(ICRC_BYTES).max(next).min(end);
    match &parsed {
        Ok(packet) => {
            let (from, len) = (next, packet.payload.len());
            let pad = room - from - len;
            item.summary += &format!(", {len} bytes");
            if !around.cut {
                payload(item, &all[from..from + len], from, packet);
                if pad > 0 && all[from + len..room].iter().any(|&byte| byte != 0) {
                    item.note(from + len, "the pad is not zero");
                }
            }
            message(item, packet, next);
        }
        Err(error) if around.cut => item.note(at, error.to_string()),
        Err(error) => {
            item.bytes("payload, pad", next, &all[next..room]);
            item.wrong(wrong_at(error, at, next), error.to_string());
        }
    }
    icrc(item, all, at, end, around);
    let packet = parsed.ok()?;
    let (bth, ext) = (packet.headers.bth, packet.headers.ext);
    let addresses = around.envelope?.addresses;
    Some(Seen { addresses, bth, reth: ext.reth, payload: packet.payload.len() })
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
        item.note(
            place,
            "the ICRC covers IP and UDP headers, which are not here: it is not checked",
        );
        return;
    };
    if bytes.len() > MAX_PACKET_BYTES {
        item.wrong(
            at,
            format!("a packet of {} bytes, and the longest has {MAX_PACKET_BYTES}", bytes.len()),
        );
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
