//! The RDMA IP CM service (InfiniBand vol. 1, annex A11): ports as service IDs, and addresses before
//! the consumer's private data.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of private data that say who asks whom.
pub const IP_HEADER_BYTES: usize = 36;

/// What a service ID's upper 48 bits are: a range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PortSpace {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

impl PortSpace {
    const fn prefix(self) -> u64 {
        match self {
            Self::Tcp => 0x0106_0000,
            Self::Udp => 0x0111_0000,
        }
    }

    /// The service ID of a port.
    pub fn service(self, port: u16) -> u64 {
        self.prefix() | u64::from(port)
    }

    /// The port space and the port of a service ID, if it is one of this service.
    pub fn of(service: u64) -> Option<(Self, u16)> {
        let spaces = [Self::Tcp, Self::Udp];
        let space = spaces.into_iter().find(|space| space.prefix() == service & !0xffff)?;
        Some((space, service as u16))
    }
}

/// Who asks whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpHeader {
    /// Who asks, and from which port.
    pub from: SocketAddr,
    /// Who is asked; which port, the service ID says.
    pub to: IpAddr,
}

/// Reason why private data do not begin with addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpHeaderError {
    /// A version of the service other than 0.
    Service(u8),
    /// Neither IPv4 nor IPv6.
    Ip(u8),
}

impl fmt::Display for IpHeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(n) => write!(f, "version {n} of the RDMA IP CM service is not known"),
            Self::Ip(n) => write!(f, "IP version {n} is not known"),
        }
    }
}

impl std::error::Error for IpHeaderError {}

impl IpHeader {
    /// Reads what private data begin with.
    ///
    /// # Errors
    /// [`IpHeaderError`].
    pub fn parse(bytes: &[u8; IP_HEADER_BYTES]) -> Result<Self, IpHeaderError> {
        let [version, ip, high, low, ..] = *bytes;
        if version != 0 {
            return Err(IpHeaderError::Service(version));
        }
        let wide = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).expect("16 bytes");
        let address = |at| match ip >> 4 {
            4 => {
                let [.., a, b, c, d] = wide(at);
                Ok(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
            }
            6 => Ok(IpAddr::V6(Ipv6Addr::from(wide(at)))),
            other => Err(IpHeaderError::Ip(other)),
        };
        let port = u16::from_be_bytes([high, low]);
        Ok(Self { from: SocketAddr::new(address(4)?, port), to: address(20)? })
    }

    /// What private data begin with. Two addresses of different families are written as IPv6's.
    pub fn emit(&self) -> [u8; IP_HEADER_BYTES] {
        let mut bytes = [0; IP_HEADER_BYTES];
        let (from, to) = (self.from.ip(), self.to);
        let mut wide =
            |at: usize, address: Ipv6Addr| bytes[at..at + 16].copy_from_slice(&address.octets());
        let version = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                wide(4, Ipv6Addr::from_bits(from.to_bits().into()));
                wide(20, Ipv6Addr::from_bits(to.to_bits().into()));
                4
            }
            _ => {
                let six = |address| match address {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                wide(4, six(from));
                wide(20, six(to));
                6
            }
        };
        bytes[1] = version << 4;
        bytes[2..4].copy_from_slice(&self.from.port().to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_services() {
        assert_eq!(PortSpace::Tcp.service(7174), 0x0000_0000_0106_1c06);
        assert_eq!(PortSpace::of(0x0111_ffff), Some((PortSpace::Udp, 0xffff)));
        assert_eq!(PortSpace::of(0x0112_0001), None);
        assert_eq!(PortSpace::of(1 << 63 | 0x0106_0001), None);
    }

    #[test]
    fn addresses_lie_as_the_annex_says() {
        let four =
            IpHeader { from: "10.1.2.3:258".parse().unwrap(), to: "10.1.2.4".parse().unwrap() };
        let bytes = four.emit();
        assert_eq!(bytes[..4], [0, 0x40, 1, 2]);
        assert_eq!(bytes[4..20], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 1, 2, 3]);
        assert_eq!(IpHeader::parse(&bytes), Ok(four));
        let six = IpHeader { from: "[fd00::1]:7".parse().unwrap(), to: "fd00::2".parse().unwrap() };
        assert_eq!(six.emit()[1], 0x60);
        assert_eq!(IpHeader::parse(&six.emit()), Ok(six));
        let with = |at: usize, byte| {
            let mut odd = bytes;
            odd[at] = byte;
            IpHeader::parse(&odd).unwrap_err()
        };
        assert_eq!(with(0, 1), IpHeaderError::Service(1));
        assert_eq!(with(1, 0x50), IpHeaderError::Ip(5));
    }
}
