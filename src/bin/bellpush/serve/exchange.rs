//! What the servers here have in common: errors of a conversation over TCP, and GIDs.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// Why a client is let go.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// What the client sent makes no sense.
    #[error("the client sent {what} '{text}'")]
    Malformed {
        /// What it should have been.
        what: &'static str,
        /// What it is, as text.
        text: String,
    },
    /// The client's address is of another family than ours.
    #[error("the client's address {0} is not of this NIC's family")]
    Family(IpAddr),
    /// There are as many drivers as are served.
    #[error("no more than {0} drivers are served at once")]
    Drivers(usize),
    /// Regions of one driver.
    #[error("a driver gets no more than {0} regions")]
    Regions(usize),
    /// The connection, or its end.
    #[error("the client's connection: {0}")]
    Io(#[from] io::Error),
    /// The NIC refused.
    #[error(transparent)]
    Nic(#[from] bellpush::nic::NicError),
    /// The NIC's queues.
    #[error(transparent)]
    Queue(#[from] bellpush::nic::queue::QueueError),
    /// Memory.
    #[error(transparent)]
    Memory(#[from] bellpush::mem::MemError),
    /// Bytes that are not what they should be.
    #[error("byte {at} is {is:#04x}, not {want:#04x}")]
    Byte {
        /// Where.
        at: usize,
        /// What is there.
        is: u8,
        /// What should be.
        want: u8,
    },
    /// A datagram that is shorter than its header area.
    #[error("a datagram of {length} bytes, header area included")]
    Length {
        /// Bytes of the completion.
        length: usize,
    },
    /// A completion did not come.
    #[error("{what} did not complete within {timeout:?}")]
    Timeout {
        /// Which.
        what: &'static str,
        /// The time.
        timeout: Duration,
    },
    /// A work request failed.
    #[error("{what} ended with {syndrome:?}")]
    Completion {
        /// Which.
        what: &'static str,
        /// mlx5 syndrome of the error CQE.
        syndrome: Option<bellpush::wire::cqe::Syndrome>,
    },
}

impl ServeError {
    /// Quotes what was sent; bytes behind a NUL are left out.
    pub fn malformed(what: &'static str, bytes: &[u8]) -> Self {
        let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
        Self::Malformed { what, text: String::from_utf8_lossy(text).into_owned() }
    }
}

/// GID of an address: an IPv4 address is mapped into IPv6 (annex A17.4.5.2).
pub fn gid_of(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// The address that a GID stands for.
pub fn address_of(gid: Ipv6Addr) -> IpAddr {
    gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4)
}

/// A GID as 32 hexadecimal digits.
pub fn hex_of_gid(gid: Ipv6Addr) -> String {
    format!("{:032x}", u128::from(gid))
}

/// Reads 32 hexadecimal digits.
pub fn gid_of_hex(text: &str) -> Option<Ipv6Addr> {
    let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    digits.then(|| u128::from_str_radix(text, 16).ok().map(Ipv6Addr::from))?
}

#[cfg(test)]
pub mod script {
    //! A client from a recording: what it sent is read, what is answered is kept.

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
