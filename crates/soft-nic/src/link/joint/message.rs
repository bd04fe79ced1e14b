//! What processes at one address tell each other: one message in each datagram of a socket.
//!
//! Both ends are processes of one user, and either may write anything: what is not a message is none.

use std::net::{IpAddr, Ipv6Addr};

use super::share::Share;
use crate::link::{Notice, Received};
use bellpush_wire::roce::{Addresses, Envelope, MAX_PACKET_BYTES};

/// "bellpush", and the version of these messages.
const MAGIC: [u8; 8] = *b"bellpjt2";

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const PACKET: u8 = 3;
const MANAGES: u8 = 4;
const OFFERS: u8 = 5;
const WITHDRAWS: u8 = 6;

/// Bytes of the longest message but packets.
pub(super) const SHORT_BYTES: usize = 16;
/// Bytes before a packet's.
pub(super) const PACKET_HEADER_BYTES: usize = 32;
/// Bytes of the longest message, and one: a longer one is seen to be longer.
pub(super) const BUFFER_BYTES: usize = PACKET_HEADER_BYTES + MAX_PACKET_BYTES + 1;

/// What a member tells the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToKeeper {
    /// It wants to be a member, with the share that it has.
    Hello(Share),
    Notice(Notice),
}

/// What the keeper tells a member.
#[derive(Debug)]
pub(super) enum ToMember<'a> {
    /// It is a member, with this share.
    Welcome(Share),
    /// A packet for it.
    Packet(Received<'a>),
}

/// A message that is no packet, with zeros behind it.
pub(super) type Short = [u8; SHORT_BYTES];

fn short(kind: u8, rest: &[u8]) -> Short {
    let mut bytes = [0; SHORT_BYTES];
    bytes[0] = kind;
    bytes[1..][..rest.len()].copy_from_slice(rest);
    bytes
}

impl ToKeeper {
    pub(super) fn emit(self) -> Short {
        match self {
            Self::Hello(share) => {
                let mut bytes = short(HELLO, &MAGIC);
                bytes[9] = share.number();
                bytes
            }
            Self::Notice(Notice::Manages) => short(MANAGES, &[]),
            Self::Notice(Notice::Offers(service)) => short(OFFERS, &service.to_ne_bytes()),
            Self::Notice(Notice::Withdraws(service)) => short(WITHDRAWS, &service.to_ne_bytes()),
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &Short = bytes.try_into().ok()?;
        let word: [u8; 8] = bytes[1..9].try_into().expect("8 bytes");
        let service = u64::from_ne_bytes(word);
        Some(match (bytes[0], bytes[9]) {
            (HELLO, number) if word == MAGIC => Self::Hello(Share::new(number)?),
            (MANAGES, _) => Self::Notice(Notice::Manages),
            (OFFERS, _) => Self::Notice(Notice::Offers(service)),
            (WITHDRAWS, _) => Self::Notice(Notice::Withdraws(service)),
            _ => return None,
        })
    }
}

pub(super) fn welcome(share: Share) -> Short {
    let mut bytes = short(WELCOME, &MAGIC);
    bytes[9] = share.number();
    bytes
}

/// What goes before a packet: all that its ICRC covers, but the member's own address.
pub(super) fn packet_header(envelope: &Envelope) -> [u8; PACKET_HEADER_BYTES] {
    let mut bytes = [0; PACKET_HEADER_BYTES];
    let source = match envelope.addresses.src() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    bytes[0] = PACKET;
    (bytes[1], bytes[2]) = (envelope.traffic_class, envelope.hop_limit);
    bytes[4..6].copy_from_slice(&envelope.src_port.to_ne_bytes());
    bytes[6..8].copy_from_slice(&envelope.id.to_ne_bytes());
    bytes[8..10].copy_from_slice(&envelope.fragment.to_ne_bytes());
    bytes[12..16].copy_from_slice(&envelope.flow_label.to_ne_bytes());
    bytes[16..].copy_from_slice(&source.octets());
    bytes
}

impl<'a> ToMember<'a> {
    /// A message to the member at an address.
    pub(super) fn parse(bytes: &'a [u8], here: IpAddr) -> Option<Self> {
        match *bytes.first()? {
            WELCOME if bytes.len() == SHORT_BYTES && bytes[1..9] == MAGIC => {
                Some(Self::Welcome(Share::new(bytes[9])?))
            }
            PACKET => parse_packet(bytes, here).map(Self::Packet),
            _ => None,
        }
    }
}

fn parse_packet(bytes: &[u8], here: IpAddr) -> Option<Received<'_>> {
    let (header, bytes) = bytes.split_first_chunk::<PACKET_HEADER_BYTES>()?;
    if bytes.len() > MAX_PACKET_BYTES {
        return None;
    }
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let octets: [u8; 16] = header[16..].try_into().expect("16 bytes");
    let source = Ipv6Addr::from(octets).to_canonical();
    // Of another family there are none.
    let addresses = Addresses::new(source, here)?;
    let flow_label = u32::from_ne_bytes(header[12..16].try_into().expect("4 bytes")) & 0xf_ffff;
    let envelope = Envelope {
        traffic_class: header[1],
        hop_limit: header[2],
        id: half(6),
        fragment: half(8),
        flow_label,
        ..Envelope::new(addresses, half(4))
    };
    Some(Received { envelope, bytes, checked: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_as_they_went_in() {
        for message in [
            ToKeeper::Hello(Share::wrapping(0)),
            ToKeeper::Hello(Share::wrapping(7)),
            ToKeeper::Notice(Notice::Manages),
            ToKeeper::Notice(Notice::Offers(0x0106_0000_0000_1234)),
            ToKeeper::Notice(Notice::Withdraws(u64::MAX)),
        ] {
            assert_eq!(ToKeeper::parse(&message.emit()), Some(message));
        }
        let (from, here) = ("192.0.2.7", "192.0.2.9");
        let (from, here): (IpAddr, IpAddr) = (from.parse().unwrap(), here.parse().unwrap());
        let usual = Envelope::new(Addresses::new(from, here).unwrap(), 0xc123);
        let envelope =
            Envelope { traffic_class: 0x6a, hop_limit: 3, id: 0x1234, fragment: 0x4000, ..usual };
        let bytes = [&packet_header(&envelope)[..], b"packet"].concat();
        let Some(ToMember::Packet(received)) = ToMember::parse(&bytes, here) else {
            panic!("no packet");
        };
        assert_eq!((received.envelope, received.bytes), (envelope, &b"packet"[..]));
        let share = Share::new(5).unwrap();
        let message = welcome(share);
        let welcomed = ToMember::parse(&message, here);
        assert!(matches!(welcomed, Some(ToMember::Welcome(s)) if s == share));
    }

    #[test]
    fn what_is_no_message_is_none() {
        let hello = ToKeeper::Hello(Share::wrapping(1)).emit();
        let mut other = hello;
        other[8] ^= 1;
        let mut beyond = hello;
        beyond[9] = Share::MOST;
        for wrong in
            [&other[..], &beyond, &hello[..15], &[&hello[..], &[0]].concat(), &[], &[9; 16]]
        {
            assert_eq!(ToKeeper::parse(wrong), None, "{wrong:?}");
        }
        let here: IpAddr = "192.0.2.9".parse().unwrap();
        let v6 = Addresses::new("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()).unwrap();
        let header = packet_header(&Envelope::new(v6, 7));
        let long = [&header[..], &[0; MAX_PACKET_BYTES + 1]].concat();
        for wrong in [&header[..], &header[..31], &long, &[], &[WELCOME; 16], &[7; 64]] {
            assert!(ToMember::parse(wrong, here).is_none(), "{} bytes", wrong.len());
        }
    }
}
