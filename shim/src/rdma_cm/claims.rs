//! Ports that a process listens at, as other processes at its address see them.
//!
//! Each is a socket with a name that only one can have, in the network namespace that the address is
//! of: the system gives it free when the process ends, however it does. Nobody reads it.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use bellpush_mem::hidden::{Hidden, gather};

/// What a process has claimed, by device and service.
#[derive(Default)]
pub struct Claims(HashMap<(usize, u64), Hidden<OwnedFd>>);

/// Who has a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// This process, since now.
    Now,
    /// This process, which had it before: what its identifiers do is looked after elsewhere.
    Before,
    /// Another.
    ByAnother,
}

impl Claims {
    /// Claims a service at a device's address.
    pub fn take(&mut self, device: usize, address: IpAddr, service: u64) -> Claimed {
        if self.0.contains_key(&(device, service)) {
            return Claimed::Before;
        }
        match bind(address, service) {
            Ok(socket) => {
                // It comes and goes with the program's identifiers, not with the device.
                let (socket, _) = gather(|| Hidden::new(OwnedFd::from(socket)));
                self.0.insert((device, service), socket);
                Claimed::Now
            }
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => Claimed::ByAnother,
            // Without a descriptor for it, the port is not claimed, and the program listens.
            Err(_) => Claimed::Before,
        }
    }

    /// Gives a claim up, if there is one.
    pub fn leave(&mut self, device: usize, service: u64) {
        self.0.remove(&(device, service));
    }
}

fn bind(address: IpAddr, service: u64) -> io::Result<UnixDatagram> {
    // SAFETY: takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    let name = format!("bellpush-{user}-{address}-{service:016x}");
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_an_address_is_one_holders() {
        let [here, there] = ["127.81.0.1", "127.81.0.2"].map(|at| at.parse().unwrap());
        let service = 0x0106_0000 + u64::from(std::process::id());
        let (mut one, mut other) = (Claims::default(), Claims::default());
        assert_eq!(one.take(0, here, service), Claimed::Now);
        assert_eq!(one.take(0, here, service), Claimed::Before);
        assert_eq!(other.take(0, here, service), Claimed::ByAnother);
        assert_eq!(other.take(0, there, service), Claimed::Now);
        one.leave(0, service);
        assert_eq!(other.take(1, here, service), Claimed::Now);
    }
}
