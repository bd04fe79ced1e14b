//! Ports that a process listens at, as other processes at its address see them.
//!
//! Each is a socket with a name that only one can have, in the network namespace that the address is
//! of: the system gives it free when the process ends, however it does. It listens, so that who finds
//! the name taken can connect and see whose it is: any user can take any name, and what another user
//! has is nothing to this one's programs. Nobody accepts or reads. Who has looked stays in the
//! socket's backlog (Linux: `net.core.somaxconn`, 4096), and where that is full, the port is not seen.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use bellpush_mem::hidden::Hidden;
use bellpush_soft_nic::link::is_this_user;
use socket2::{Domain, SockAddr, Socket, Type};

/// Processes that may look at a claim; the system has a bound of its own.
const BACKLOG: i32 = i32::MAX;
/// How often a name is tried that is taken, and at which nobody listens: its holder may be about to,
/// or about to end.
const TRIES: usize = 5;
/// How long it is left until it is tried again.
const PAUSE: Duration = Duration::from_millis(1);

/// What a process has claimed, by device and service.
#[derive(Default)]
pub struct Claims {
    held: HashMap<(usize, u64), Hidden<Socket>>,
    /// Those of them that nothing listens at any more.
    left: HashSet<(usize, u64)>,
}

/// Who has a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// This process, since now.
    Now,
    /// This process, which had it before: what its identifiers do is looked after elsewhere.
    Before,
    /// Another process of this user.
    ByAnother,
    /// Nobody of this user, and it cannot be had: the program listens without it.
    Not,
}

impl Claims {
    /// Claims a service at a device's address. Takes no longer than a few milliseconds.
    pub fn take(&mut self, device: usize, address: IpAddr, service: u64) -> Claimed {
        let claim = (device, service);
        // What the program has closed behind its device is the next one's.
        if self.held.get(&claim).is_some_and(|held| !held.is_there()) {
            self.held.remove(&claim);
            self.left.remove(&claim);
        }
        if self.held.contains_key(&claim) {
            return if self.left.remove(&claim) { Claimed::Now } else { Claimed::Before };
        }
        match bind(address, service) {
            Ok(socket) => {
                self.held.insert(claim, socket);
                Claimed::Now
            }
            Err(by) => by,
        }
    }

    /// Gives a claim up, if there is one. It is free when it is [released](Self::release): who has
    /// the port next may listen at once, and must not be taken for this process.
    pub fn leave(&mut self, device: usize, service: u64) {
        let claim = (device, service);
        if self.held.contains_key(&claim) {
            self.left.insert(claim);
        }
    }

    /// Whether there are claims to release.
    pub fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Has the system free what was given up, of devices that have told so whoever must know.
    pub fn release(&mut self, has_told: impl Fn(usize) -> bool) {
        for claim in self.left.extract_if(|&(device, _)| has_told(device)) {
            self.held.remove(&claim);
        }
    }
}

fn bind(address: IpAddr, service: u64) -> Result<Hidden<Socket>, Claimed> {
    let name = name(address, service).map_err(|_| Claimed::Not)?;
    for left in (0..TRIES).rev() {
        match listen(&name) {
            Ok(socket) => return Ok(socket),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            Err(_) => break,
        }
        match connect(&name) {
            Ok(holder) if is_this_user(&holder) => return Err(Claimed::ByAnother),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused && left > 0 => {
                std::thread::sleep(PAUSE);
            }
            _ => break,
        }
    }
    Err(Claimed::Not)
}

/// The name of a claim, which begins with a zero byte: no file has it.
fn name(address: IpAddr, service: u64) -> io::Result<SockAddr> {
    // SAFETY: takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    SockAddr::unix(format!("\0bellpush-{user}-{address}-{service:016x}"))
}

/// It is kept before it has a name or connects: what the child of a fork by another thread holds open
/// meanwhile would outlive this process. It comes and goes with the program's identifiers, not with
/// the device.
fn socket() -> io::Result<Hidden<Socket>> {
    let socket = Hidden::make(|| Socket::new(Domain::UNIX, Type::SEQPACKET, None))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn listen(name: &SockAddr) -> io::Result<Hidden<Socket>> {
    let socket = socket()?;
    socket.bind(name)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Connects at once, or not at all.
fn connect(name: &SockAddr) -> io::Result<Hidden<Socket>> {
    let socket = socket()?;
    socket.connect(name)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 81, 0, 1));

    /// A service that no other run of the tests has, nor another test of this one.
    fn service(test: u64) -> u64 {
        0x0106_0000 + (test << 32) + u64::from(std::process::id())
    }

    fn bound(service: u64, kind: Type) -> Socket {
        let socket = Socket::new(Domain::UNIX, kind, None).unwrap();
        socket.bind(&name(HERE, service).unwrap()).unwrap();
        socket
    }

    #[test]
    fn a_port_of_an_address_is_one_holders() {
        let (here, there, service) = (HERE, "127.81.0.2".parse().unwrap(), service(0));
        let (mut one, mut other) = (Claims::default(), Claims::default());
        assert_eq!(one.take(0, here, service), Claimed::Now);
        assert_eq!(one.take(0, here, service), Claimed::Before);
        assert_eq!(other.take(0, here, service), Claimed::ByAnother);
        assert_eq!(other.take(0, there, service), Claimed::Now);
        one.leave(0, service);
        one.release(|_| true);
        assert_eq!(other.take(1, here, service), Claimed::Now);
    }

    #[test]
    fn a_port_is_free_when_its_device_has_told_so() {
        let service = service(5);
        let (mut one, mut other) = (Claims::default(), Claims::default());
        one.leave(0, service);
        assert!(!one.has_left(), "it has none");
        assert_eq!(one.take(0, HERE, service), Claimed::Now);
        one.leave(0, service);
        one.release(|_| false);
        assert_eq!(other.take(0, HERE, service), Claimed::ByAnother);
        assert_eq!(one.take(0, HERE, service), Claimed::Now, "it is given up, and taken again");
        one.release(|_| true);
        assert_eq!(other.take(0, HERE, service), Claimed::ByAnother);
        one.leave(0, service);
        one.release(|device| device == 1);
        assert_eq!(other.take(0, HERE, service), Claimed::ByAnother);
        one.release(|device| device == 0);
        assert!(!one.has_left());
        assert_eq!(other.take(0, HERE, service), Claimed::Now);
    }

    #[test]
    fn a_name_at_which_nobody_listens_is_nobodys_port() {
        let _datagrams = bound(service(1), Type::DGRAM);
        assert_eq!(Claims::default().take(0, HERE, service(1)), Claimed::Now);
        let _silent = bound(service(2), Type::SEQPACKET);
        assert_eq!(Claims::default().take(0, HERE, service(2)), Claimed::Not);
    }

    /// A listener that leaves nobody room to connect could be anybody's.
    #[test]
    fn a_name_that_nobody_can_connect_to_is_nobodys_port() {
        let full = bound(service(3), Type::SEQPACKET);
        full.listen(0).unwrap();
        let at = name(HERE, service(3)).unwrap();
        let _looks: Vec<_> = std::iter::from_fn(|| connect(&at).ok()).take(8).collect();
        assert_eq!(Claims::default().take(0, HERE, service(3)), Claimed::Not);
    }

    #[test]
    fn a_name_that_another_user_has_is_nobodys_port() {
        const NOBODY: u32 = 65534;
        // SAFETY: takes nothing and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            println!("SKIPPED: not root, who can be another user");
            return;
        }
        let name = name(HERE, service(4)).unwrap();
        // By the system call, only this thread becomes the other user, and it ends.
        let others = std::thread::spawn(move || {
            let keep = u32::MAX;
            // SAFETY: takes three numbers.
            let done = unsafe { libc::syscall(libc::SYS_setresuid, keep, NOBODY, keep) };
            (done == 0).then(|| listen(&name).unwrap())
        });
        let Some(_others) = others.join().unwrap() else {
            println!("SKIPPED: cannot be another user");
            return;
        };
        assert_eq!(Claims::default().take(0, HERE, service(4)), Claimed::Not);
    }
}
