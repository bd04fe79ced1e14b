//! IPv4 (RFC 791), IPv6 (RFC 8200) and UDP (RFC 768) headers of a packet: its envelope.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Qpn;

/// UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;
/// Bytes of a UDP header.
pub const UDP_HEADER_BYTES: usize = 8;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// Bytes of the longest IP and UDP headers that are emitted.
pub const MAX_IP_UDP_BYTES: usize = IPV6_BYTES + UDP_HEADER_BYTES;

const PROTOCOL_UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;

/// Source and destination address, of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Addresses {
    /// IPv4.
    V4 {
        /// Source.
        src: Ipv4Addr,
        /// Destination.
        dst: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Source.
        src: Ipv6Addr,
        /// Destination.
        dst: Ipv6Addr,
    },
}

impl Addresses {
    /// The pair; `None` when the families differ.
    pub fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4 { src, dst }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6 { src, dst }),
            _ => None,
        }
    }

    /// Source address.
    pub fn src(self) -> IpAddr {
        match self {
            Self::V4 { src, .. } => src.into(),
            Self::V6 { src, .. } => src.into(),
        }
    }

    /// Destination address.
    pub fn dst(self) -> IpAddr {
        match self {
            Self::V4 { dst, .. } => dst.into(),
            Self::V6 { dst, .. } => dst.into(),
        }
    }

    /// Bytes of IP and UDP header.
    pub fn header_bytes(self) -> usize {
        UDP_HEADER_BYTES
            + match self {
                Self::V4 { .. } => IPV4_BYTES,
                Self::V6 { .. } => IPV6_BYTES,
            }
    }
}

/// Header fields that a sender takes from its address vector. Of these the ICRC covers the port
/// only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Fields {
    /// IPv4: ToS; IPv6: traffic class.
    pub traffic_class: u8,
    /// IPv4: TTL; IPv6: hop limit.
    pub hop_limit: u8,
    /// UDP source port.
    pub src_port: u16,
    /// IPv6: flow label, 20 bits.
    pub flow_label: u32,
}

impl Default for Fields {
    /// 64 hops, source port 4791, zeros elsewhere.
    fn default() -> Self {
        Self { traffic_class: 0, hop_limit: 64, src_port: ROCE_PORT, flow_label: 0 }
    }
}

/// UDP source port of a flow label: 14 bits of the label, at 0xc000 and above (annex A17.4.5.2; the
/// same function as Linux's `rdma_flow_label_to_udp_sport`).
pub fn udp_src_port(flow_label: u32) -> u16 {
    (flow_label & 0x3fff ^ (flow_label & 0xf_ffff) >> 14) as u16 | 0xc000
}

/// Flow label of a connection for which none was set (Linux's `rdma_calc_flow_label`).
pub fn flow_label_of(local: Qpn, remote: Qpn) -> u32 {
    let mut v = u64::from(local.0) * u64::from(remote.0);
    v ^= v >> 20;
    v ^= v >> 40;
    v as u32 & 0xf_ffff
}

/// Contents of the IP and UDP headers, without lengths and checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Envelope {
    /// Source and destination.
    pub addresses: Addresses,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// IPv4: ToS; IPv6: traffic class.
    pub traffic_class: u8,
    /// IPv4: TTL; IPv6: hop limit.
    pub hop_limit: u8,
    /// IPv6: flow label, 20 bits.
    pub flow_label: u32,
    /// IPv4: identification. The ICRC covers it.
    pub id: u16,
    /// IPv4: flags and fragment offset. The ICRC covers them.
    pub fragment: u16,
}

/// Reason why bytes are not a UDP datagram in IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpError {
    /// The bytes end within a header.
    Short {
        /// Bytes given.
        bytes: usize,
    },
    /// First byte of a header that is neither IPv4 nor IPv6, or that has options or extension
    /// headers.
    Header(u8),
    /// Not UDP.
    Protocol(u8),
    /// A fragment; RoCEv2 is never fragmented (annex A17.3.1.1).
    Fragment,
    /// The IPv4 header checksum is wrong.
    Checksum,
    /// UDP's length does not fit into the length that IP gives.
    Length {
        /// Length in the UDP header.
        udp: usize,
        /// Bytes that IP carries.
        ip: usize,
    },
}

impl fmt::Display for IpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { bytes } => write!(f, "an IP packet cut off after {bytes} bytes"),
            Self::Header(n) => write!(f, "an IP header that begins with {n:#04x} is not carried"),
            Self::Protocol(n) => write!(f, "IP protocol {n} is not UDP"),
            Self::Fragment => f.write_str("an IP fragment"),
            Self::Checksum => f.write_str("IPv4 header checksum is wrong"),
            Self::Length { udp, ip } => write!(f, "a UDP length of {udp} in {ip} bytes"),
        }
    }
}

impl std::error::Error for IpError {}

impl Envelope {
    /// The envelope of a RoCEv2 packet: destination port 4791, DF with ID 0, 64 hops.
    pub fn new(addresses: Addresses, src_port: u16) -> Self {
        Self {
            addresses,
            src_port,
            dst_port: ROCE_PORT,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            id: 0,
            fragment: DONT_FRAGMENT,
        }
    }

    /// The same envelope with a sender's fields.
    #[must_use]
    pub fn with(self, fields: &Fields) -> Self {
        let Fields { traffic_class, hop_limit, src_port, flow_label } = *fields;
        let flow_label = match self.addresses {
            Addresses::V4 { .. } => 0,
            Addresses::V6 { .. } => flow_label,
        };
        Self { traffic_class, hop_limit, src_port, flow_label, ..self }
    }

    /// Writes IP and UDP headers for `payload` to the start of `buf` and returns their length. All
    /// parts of the payload but the last have even lengths. The UDP checksum is 0 (none) for IPv4;
    /// it is computed for IPv6, which requires it.
    ///
    /// # Panics
    /// When `buf` is shorter than [`MAX_IP_UDP_BYTES`], or a payload does not fit in a datagram.
    pub fn emit(&self, payload: &[&[u8]], buf: &mut [u8]) -> usize {
        let n = self.emit_fields(payload.iter().map(|part| part.len()).sum(), buf);
        if let Addresses::V6 { .. } = self.addresses {
            let sum = self.udp_checksum(payload);
            buf[n - 2..n].copy_from_slice(&sum.to_be_bytes());
        } else {
            Self::fix_ipv4_checksum(buf);
        }
        n
    }

    /// Writes the headers with ones in the fields that the ICRC does not cover. `payload_bytes` is
    /// the length of UDP's payload, ICRC included.
    pub(super) fn emit_masked(&self, payload_bytes: usize, buf: &mut [u8]) -> usize {
        let masked = Self { traffic_class: 0xff, hop_limit: 0xff, flow_label: 0xf_ffff, ..*self };
        let n = masked.emit_fields(payload_bytes, buf);
        buf[n - 2..n].fill(0xff);
        if let Addresses::V4 { .. } = self.addresses {
            buf[10..12].fill(0xff);
        }
        n
    }

    /// The headers with checksums of 0.
    fn emit_fields(&self, payload_bytes: usize, buf: &mut [u8]) -> usize {
        let udp_bytes = u16::try_from(payload_bytes + UDP_HEADER_BYTES).expect("fits in UDP");
        let ip_bytes = match self.addresses {
            Addresses::V4 { src, dst } => {
                let total = udp_bytes.checked_add(IPV4_BYTES as u16).expect("fits in IPv4");
                buf[0] = 0x45;
                buf[1] = self.traffic_class;
                buf[2..4].copy_from_slice(&total.to_be_bytes());
                buf[4..6].copy_from_slice(&self.id.to_be_bytes());
                buf[6..8].copy_from_slice(&self.fragment.to_be_bytes());
                buf[8] = self.hop_limit;
                buf[9] = PROTOCOL_UDP;
                buf[10..12].fill(0);
                buf[12..16].copy_from_slice(&src.octets());
                buf[16..20].copy_from_slice(&dst.octets());
                IPV4_BYTES
            }
            Addresses::V6 { src, dst } => {
                let class = u32::from(self.traffic_class);
                let first = 6 << 28 | class << 20 | self.flow_label & 0xf_ffff;
                buf[..4].copy_from_slice(&first.to_be_bytes());
                buf[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
                buf[6] = PROTOCOL_UDP;
                buf[7] = self.hop_limit;
                buf[8..24].copy_from_slice(&src.octets());
                buf[24..40].copy_from_slice(&dst.octets());
                IPV6_BYTES
            }
        };
        let udp = &mut buf[ip_bytes..ip_bytes + UDP_HEADER_BYTES];
        udp[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        udp[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
        udp[6..8].fill(0);
        ip_bytes + UDP_HEADER_BYTES
    }

    /// Parses IP and UDP headers; returns them and UDP's payload. It does not check UDP's checksum:
    /// the ICRC covers more.
    ///
    /// # Errors
    /// [`IpError`].
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), IpError> {
        let short = IpError::Short { bytes: bytes.len() };
        let first = *bytes.first().ok_or(short)?;
        match first >> 4 {
            4 => Self::parse_v4(bytes.split_first_chunk().ok_or(short)?, short),
            6 => Self::parse_v6(bytes.split_first_chunk().ok_or(short)?, short),
            _ => Err(IpError::Header(first)),
        }
    }

    fn parse_v4<'a>(
        (head, rest): (&[u8; IPV4_BYTES], &'a [u8]),
        short: IpError,
    ) -> Result<(Self, &'a [u8]), IpError> {
        if head[0] != 0x45 {
            return Err(IpError::Header(head[0]));
        }
        if sum(head, 0) != 0xffff {
            return Err(IpError::Checksum);
        }
        let fragment = u16::from_be_bytes([head[6], head[7]]);
        if fragment & !DONT_FRAGMENT != 0 {
            return Err(IpError::Fragment);
        }
        if head[9] != PROTOCOL_UDP {
            return Err(IpError::Protocol(head[9]));
        }
        let total = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let ip = total.checked_sub(IPV4_BYTES).and_then(|n| rest.get(..n)).ok_or(short)?;
        let ipv4 = |at: usize| Ipv4Addr::from([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (src_port, dst_port, payload) = parse_udp(ip, short)?;
        let envelope = Self {
            addresses: Addresses::V4 { src: ipv4(12), dst: ipv4(16) },
            src_port,
            dst_port,
            traffic_class: head[1],
            hop_limit: head[8],
            flow_label: 0,
            id: u16::from_be_bytes([head[4], head[5]]),
            fragment,
        };
        Ok((envelope, payload))
    }

    fn parse_v6<'a>(
        (head, rest): (&[u8; IPV6_BYTES], &'a [u8]),
        short: IpError,
    ) -> Result<(Self, &'a [u8]), IpError> {
        if head[6] != PROTOCOL_UDP {
            return Err(IpError::Protocol(head[6]));
        }
        let bytes = usize::from(u16::from_be_bytes([head[4], head[5]]));
        let ip = rest.get(..bytes).ok_or(short)?;
        let address = |at: usize| {
            let octets: [u8; 16] = head[at..at + 16].try_into().expect("16 bytes");
            Ipv6Addr::from(octets)
        };
        let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let (src_port, dst_port, payload) = parse_udp(ip, short)?;
        let envelope = Self {
            addresses: Addresses::V6 { src: address(8), dst: address(24) },
            src_port,
            dst_port,
            traffic_class: (first >> 20) as u8,
            hop_limit: head[7],
            flow_label: first & 0xf_ffff,
            id: 0,
            fragment: DONT_FRAGMENT,
        };
        Ok((envelope, payload))
    }

    /// Writes the checksum of an IPv4 header without options.
    ///
    /// # Panics
    /// When `header` is shorter than an IPv4 header.
    pub(super) fn fix_ipv4_checksum(header: &mut [u8]) {
        header[10..12].fill(0);
        let checksum = !sum(&header[..IPV4_BYTES], 0);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }

    /// UDP checksum over pseudo header, header and payload.
    fn udp_checksum(&self, payload: &[&[u8]]) -> u16 {
        let bytes = payload.iter().map(|part| part.len()).sum::<usize>() + UDP_HEADER_BYTES;
        let addresses = match self.addresses {
            Addresses::V4 { src, dst } => sum(&dst.octets(), u64::from(sum(&src.octets(), 0))),
            Addresses::V6 { src, dst } => sum(&dst.octets(), u64::from(sum(&src.octets(), 0))),
        };
        // The length occurs twice: in the pseudo header and in UDP's own.
        let fields = 2 * bytes as u64
            + u64::from(PROTOCOL_UDP)
            + u64::from(self.src_port)
            + u64::from(self.dst_port);
        let start = u64::from(addresses) + fields;
        match !payload.iter().fold(sum(&[], start), |so_far, part| sum(part, so_far.into())) {
            0 => 0xffff, // 0 says that there is none
            checksum => checksum,
        }
    }
}

fn parse_udp(ip: &[u8], short: IpError) -> Result<(u16, u16, &[u8]), IpError> {
    let (head, rest) = ip.split_first_chunk::<UDP_HEADER_BYTES>().ok_or(short)?;
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let bytes = usize::from(word(4));
    let payload = bytes.checked_sub(UDP_HEADER_BYTES).and_then(|n| rest.get(..n));
    let payload = payload.ok_or(IpError::Length { udp: bytes, ip: ip.len() })?;
    Ok((word(0), word(2), payload))
}

/// Ones' complement sum of big-endian 16-bit words (RFC 1071), added to `start`.
fn sum(bytes: &[u8], start: u64) -> u16 {
    let (words, odd) = bytes.as_chunks::<2>();
    let mut sum = words.iter().fold(start, |sum, &w| sum + u64::from(u16::from_be_bytes(w)));
    if let [last] = odd {
        sum += u64::from(*last) << 8;
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
#[path = "ip_tests.rs"]
mod tests;
