//! Common parts of the servers: errors of an exchange over TCP, and GIDs.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Reason why a client is dropped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The client's message is malformed.
    #[error("the client sent {what} '{text}'")]
    Malformed {
        /// Kind of the expected message.
        what: &'static str,
        /// The received text.
        text: String,
    },
    /// The client's address is of another family than the server's.
    #[error("the client's address {0} is not of this NIC's family")]
    Family(IpAddr),
    /// Too many drivers are connected.
    #[error("no more than {0} drivers are served at once")]
    Drivers(usize),
    /// The driver has too many regions.
    #[error("a driver gets no more than {0} regions")]
    Regions(usize),
    /// The connection failed or ended.
    #[error("the client's connection: {0}")]
    Io(#[from] io::Error),
    /// The NIC refused a request.
    #[error(transparent)]
    Nic(#[from] bellpush::nic::NicError),
    /// The NIC's queues failed.
    #[error(transparent)]
    Queue(#[from] bellpush::nic::queue::QueueError),
    /// Memory could not be allocated or accessed.
    #[error(transparent)]
    Memory(#[from] bellpush::mem::MemError),
    /// A received byte is wrong.
    #[error("byte {at} is {is:#04x}, not {want:#04x}")]
    Byte {
        /// Offset of the byte.
        at: usize,
        /// Its value.
        is: u8,
        /// The expected value.
        want: u8,
    },
    /// A datagram is shorter than its GRH area.
    #[error("a datagram of {length} bytes, header area included")]
    Length {
        /// Bytes of the completion.
        length: usize,
    },
    /// An awaited completion did not arrive.
    #[error("{what} did not complete within {timeout:?}")]
    Timeout {
        /// The operation.
        what: &'static str,
        /// The timeout.
        timeout: Duration,
    },
    /// A work request failed.
    #[error("{what} ended with {syndrome:?}")]
    Completion {
        /// The operation.
        what: &'static str,
        /// mlx5 syndrome of the error CQE.
        syndrome: Option<bellpush::wire::cqe::Syndrome>,
    },
}

impl ServeError {
    /// Quotes the received bytes up to a NUL.
    pub fn malformed(what: &'static str, bytes: &[u8]) -> Self {
        let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
        Self::Malformed { what, text: String::from_utf8_lossy(text).into_owned() }
    }
}

/// GID of an address: an IPv4 address becomes an IPv4-mapped IPv6 address (annex A17.4.5.2).
pub fn gid_of(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The address of a GID.
pub fn address_of(gid: Ipv6Addr) -> IpAddr {
    gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4)
}

/// A GID as 32 hexadecimal digits.
pub fn hex_of_gid(gid: Ipv6Addr) -> String {
    format!("{:032x}", u128::from(gid))
}

/// Parses 32 hexadecimal digits.
pub fn gid_of_hex(text: &str) -> Option<Ipv6Addr> {
    let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    digits.then(|| u128::from_str_radix(text, 16).ok().map(Ipv6Addr::from))?
}

#[cfg(test)]
pub mod script {
    //! A client from a recording: its messages are read, the answers are kept.

    use std::io::{self, Read, Write};

    pub struct Script {
        client: io::Cursor<Vec<u8>>,
        pub answers: Vec<u8>,
    }

    impl Script {
        pub fn new(client: &[&[u8]]) -> Self {
            Self { client: io::Cursor::new(client.concat()), answers: Vec::new() }
        }

        pub fn is_read(&self) -> bool {
            self.client.position() == self.client.get_ref().len() as u64
        }
    }

    impl Read for Script {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.client.read(into)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.answers.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_stand_for_addresses_of_both_families() {
        for (address, hex) in [
            ("10.47.0.2", "00000000000000000000ffff0a2f0002"),
            ("fd47::2", "fd470000000000000000000000000002"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(hex_of_gid(gid_of(address)), hex);
            assert_eq!(gid_of_hex(hex).map(address_of), Some(address));
        }
        for wrong in ["", "+0000000000000000000ffff0a2f0002", "00000000000000000000ffff0a2f00020"] {
            assert_eq!(gid_of_hex(wrong), None, "{wrong}");
        }
    }
}
