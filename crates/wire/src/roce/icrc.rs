//! The invariant CRC of a RoCEv2 packet: it covers every field that no router changes (InfiniBand
//! vol. 1, 7.8.2, and annex A17.3.3).
//!
//! The CRC is Ethernet's CRC-32. Its input is, in order: 8 bytes of ones in the place of an LRH; IP
//! header, UDP header and BTH, with ones in the fields that may change on the way (IPv4: ToS, TTL,
//! checksum; IPv6: traffic class, flow label, hop limit; UDP: checksum; BTH: the byte with FECN and
//! BECN); extension headers, payload and pad. It is sent with the least significant byte first.

use super::ip::{Envelope, MAX_IP_UDP_BYTES};
use super::{BTH_BYTES, ICRC_BYTES};

const PSEUDO_LRH_BYTES: usize = 8;
/// The byte of the BTH that holds FECN, BECN and 6 reserved bits.
const RESV8A: usize = 4;

/// ICRC of a packet in this envelope. `body` reaches from the BTH to the pad.
///
/// # Panics
/// When `body` is shorter than a BTH or does not fit in a UDP datagram.
#[inline]
pub fn icrc(envelope: &Envelope, body: &[u8]) -> u32 {
    let mut head = [0xff; PSEUDO_LRH_BYTES + MAX_IP_UDP_BYTES + BTH_BYTES];
    let ip = &mut head[PSEUDO_LRH_BYTES..];
    let bth = PSEUDO_LRH_BYTES + envelope.emit_masked(body.len() + ICRC_BYTES, ip);
    let end = bth + BTH_BYTES;
    head[bth..end].copy_from_slice(&body[..BTH_BYTES]);
    head[bth + RESV8A] = 0xff;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head[..end]);
    crc.update(&body[BTH_BYTES..]);
    crc.finalize()
}

/// ICRC of a packet in these headers: IPv4's, of 20 bytes and any options, and UDP's. `body` reaches from the BTH to
/// the pad. Options count as they stand: they are not among the fields that the annex masks, and it says no more of them.
///
/// # Panics
/// When `headers` are shorter than 28 bytes, or `body` than a BTH.
pub fn icrc_of_headers(headers: &[u8], body: &[u8]) -> u32 {
    let mut head = [&[0xff; PSEUDO_LRH_BYTES], headers, &body[..BTH_BYTES]].concat();
    let bth = PSEUDO_LRH_BYTES + headers.len();
    let (tos, ttl, sum, udp_sum) = (1, 8, 10, headers.len() - 2);
    for at in [tos, ttl, sum, sum + 1, udp_sum, udp_sum + 1] {
        head[PSEUDO_LRH_BYTES + at] = 0xff;
    }
    head[bth + RESV8A] = 0xff;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head);
    crc.update(&body[BTH_BYTES..]);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::super::{Envelope, Headers, Packet, PacketError};
    use super::icrc_of_headers;

    fn bytes(hex: &str) -> Vec<u8> {
        let hex: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        let digit = |b: u8| (b as char).to_digit(16).unwrap() as u8;
        hex.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    }

    /// A frame from the IP header on.
    struct Vector {
        source: &'static str,
        frame: &'static str,
    }

    /// ICRCs that others computed.
    const VECTORS: [Vector; 2] = [
        Vector {
            source: "a CNP that a ConnectX-4 Lx sent; scapy, test/contrib/roce.uts, 'RoCE CNP \
                     captured on ConnectX-4 Lx'",
            frame: "45c2003c 718c4000 40119161 0a001101 0a001201  000012b7 00280000 \
                    8100ffff 40000118 00000000  00000000000000000000000000000000 82fd002a",
        },
        Vector {
            source: "a UC SEND ONLY of 18 bytes between mlx5 ports; scapy, test/contrib/roce.uts, \
                     'RoCE layer'",
            frame: "45010040 04784000 4011b4d5 c0a80007 c0a80007  c00012b7 002caca2 \
                    2460ffff 000000d3 00cf1710  4630818be28935d90e9a95505401be885e50 0000 78f353f3",
        },
    ];

    #[test]
    fn captured_packets_check_out_and_changed_ones_do_not() {
        for Vector { source, frame } in VECTORS {
            let mut frame = bytes(frame);
            let check = |frame: &[u8]| {
                let (envelope, udp) = Envelope::parse(frame).unwrap();
                Packet::check(udp, &envelope)
            };
            assert_eq!(check(&frame), Ok(()), "{source}");
            // What may change on the way: ToS, TTL with its checksum, UDP's checksum, FECN.
            for (at, masked) in [(1, true), (8, true), (26, true), (32, true), (5, false)] {
                let was = (frame[at], frame[10], frame[11]);
                frame[at] ^= 0x10;
                Envelope::fix_ipv4_checksum(&mut frame);
                assert_eq!(check(&frame).is_ok(), masked, "{source}: byte {at}");
                (frame[at], frame[10], frame[11]) = was;
            }
            for at in 36..frame.len() {
                frame[at] ^= 1;
                assert!(matches!(check(&frame), Err(PacketError::Icrc { .. })), "{source}: {at}");
                frame[at] ^= 1;
            }
        }
    }

    #[test]
    fn an_ipv6_packet_has_the_icrc_of_the_annex() {
        // zlib's CRC-32 of the bytes that annex A17.3.3 says: 8 of ones, the headers with ones in traffic class, flow
        // label, hop limit, UDP's checksum and the byte with FECN, and the payload.
        let frame = "6a554321 001c1140 20010db8000000000000000000000001 fe800000000000000000000000000002 \
                     c00112b7 001c0000 0440ffff 00010203 80040506 61626364 2bdfb8cc";
        let mut frame = bytes(frame);
        let check = |frame: &[u8]| {
            let (envelope, udp) = Envelope::parse(frame).unwrap();
            Packet::check(udp, &envelope)
        };
        assert_eq!(check(&frame), Ok(()));
        for (at, masked) in [(0, true), (1, true), (2, true), (3, true), (7, true), (9, false)] {
            frame[at] ^= 1; // traffic class, flow label, hop limit; an address
            assert_eq!(check(&frame).is_ok(), masked, "byte {at}");
            frame[at] ^= 1;
        }
    }

    #[test]
    fn options_count_as_they_stand_and_the_rest_as_without() {
        // The captured packets, whose headers have none.
        for Vector { source, frame } in VECTORS {
            let frame = bytes(frame);
            let (body, stored) = frame[28..].split_last_chunk().unwrap();
            assert_eq!(
                icrc_of_headers(&frame[..28], body),
                u32::from_le_bytes(*stored),
                "{source}"
            );
        }
        // zlib's CRC-32 of the bytes that annex A17.3.3 says, with a Router Alert (RFC 2113) behind the addresses.
        let mut frame = bytes(
            "46020034123440003f11107bc0000201c0000202 94040000 c00112b7001c0000 \
             0440ffff0000001180000001 62656c6c ecc025ab",
        );
        let is_right = |frame: &[u8]| {
            let (body, stored) = frame[32..].split_last_chunk().unwrap();
            icrc_of_headers(&frame[..32], body) == u32::from_le_bytes(*stored)
        };
        assert!(is_right(&frame));
        let masked = [1, 8, 10, 11, 30, 31, 36]; // ToS, TTL, checksums, the byte with FECN
        for at in 0..frame.len() {
            frame[at] ^= 1;
            assert_eq!(is_right(&frame), masked.contains(&at), "byte {at}");
            frame[at] ^= 1;
        }
    }

    #[test]
    fn captured_packets_are_what_we_emit() {
        for Vector { source, frame } in VECTORS {
            let frame = bytes(frame);
            let (envelope, udp) = Envelope::parse(&frame).unwrap();
            let packet = Packet::parse(udp).unwrap();
            let mut buf = [0xa5; 128];
            let Headers { bth, ext } = packet.headers;
            let mut out = Headers { bth, ext }.emit(packet.payload.len(), &mut buf);
            out.payload_mut().copy_from_slice(packet.payload);
            let n = out.finish(Some(&envelope));
            assert_eq!(&buf[..n], udp, "{source}");
            assert_eq!(buf[n..], [0xa5; 128][n..], "nothing after the packet is written");
        }
    }
}
