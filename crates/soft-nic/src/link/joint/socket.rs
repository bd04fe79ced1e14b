//! Sockets between processes at one address: their names are the network namespace's, as addresses
//! are, and go with the processes that have them.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll;
use rustix::net::RecvFlags;
use socket2::{Domain, SockAddr, Socket, Type};

use super::share::Share;
use super::user::is_this_user;
use crate::link::LinkError;
use bellpush_mem::hidden::Hidden;

/// Send buffer that is asked for, in bytes: packets that a member has not taken yet.
const SEND_BUFFER_BYTES: usize = 4 << 20;
/// Processes that may wait to be heard.
const BACKLOG: i32 = 32;

/// A socket between a keeper and a member.
pub(super) struct Line(Hidden<Socket>);

/// The name of an address's keeper, which begins with a zero byte: no file has it.
fn name(addr: IpAddr) -> io::Result<SockAddr> {
    let user = nix::unistd::geteuid();
    SockAddr::unix(format!("\0bellpush-{user}-{addr}"))
}

/// The name of one of its shares.
fn share_name(addr: IpAddr, share: Share) -> io::Result<SockAddr> {
    let user = nix::unistd::geteuid();
    SockAddr::unix(format!("\0bellpush-{user}-{addr}-share-{}", share.number()))
}

/// It is kept before it has a name or connects: what the child of a fork by another thread holds open would outlive this
/// process. It may go while the device lives, so that who looks whether the program has closed descriptors of the
/// device does not hear of it.
fn socket() -> io::Result<Hidden<Socket>> {
    let socket = Hidden::make(|| Socket::new(Domain::UNIX, Type::SEQPACKET, None))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A share of an address that is a process's as long as this lives: the kernel gives its name to one
/// at a time, whoever is the keeper.
pub(super) struct Hold(Hidden<Socket>);

impl Hold {
    /// The first share from a number on that nobody has; `None` where all are taken, which may be by
    /// others than this user.
    ///
    /// # Errors
    /// [`LinkError::System`].
    pub(super) fn any(addr: IpAddr, first: u8) -> Result<Option<(Share, Self)>, LinkError> {
        for number in 0..Share::MOST {
            let share = Share::wrapping(first.wrapping_add(number));
            if let Some(hold) = Self::one(addr, share)? {
                return Ok(Some((share, hold)));
            }
        }
        Ok(None)
    }

    fn one(addr: IpAddr, share: Share) -> Result<Option<Self>, LinkError> {
        let socket = Hidden::make(|| Socket::new(Domain::UNIX, Type::DGRAM, None))
            .map_err(|source| LinkError::System { call: "socket", source })?;
        let bound = share_name(addr, share).and_then(|name| socket.bind(&name));
        match bound {
            Ok(()) => Ok(Some(Self(socket))),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(source) => Err(LinkError::System { call: "bind of a share's name", source }),
        }
    }

    /// Whether the program has not closed it.
    pub(super) fn is_there(&self) -> bool {
        self.0.is_there()
    }

    /// Closes it as the program would.
    #[cfg(test)]
    pub(super) fn close(&self) {
        nix::unistd::close(std::os::fd::AsRawFd::as_raw_fd(&*self.0)).unwrap();
    }
}

/// Whether some process has a share of an address.
pub(super) fn is_held(addr: IpAddr, share: Share) -> bool {
    let look = || {
        let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
        socket.connect(&share_name(addr, share)?)
    };
    !look().is_err_and(|e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused)
}

/// Waits for members of an address.
pub(super) fn listen(addr: IpAddr) -> io::Result<Hidden<Socket>> {
    let socket = socket()?;
    socket.bind(&name(addr)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// The next process of this user that wants to be a member. Of other users none is heard, nor keeps
/// others waiting.
pub(super) fn accept(listener: &Socket) -> io::Result<Option<Line>> {
    for _ in 0..BACKLOG {
        match Hidden::make(|| listener.accept().map(|(socket, _)| socket)) {
            Ok(socket) => {
                socket.set_nonblocking(true)?;
                if let Some(line) = Line::of_this_user(socket) {
                    return Ok(Some(line));
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

/// A line to the keeper of an address, if it is this user's.
pub(super) fn connect(addr: IpAddr) -> io::Result<Option<Line>> {
    let socket = socket()?;
    socket.connect(&name(addr)?)?;
    Ok(Line::of_this_user(socket))
}

/// What came over a line.
pub(super) enum Came<'a> {
    Message(&'a [u8]),
    Nothing,
    /// The other end is gone, or the program has closed this one.
    End,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Yes,
    Full,
    End,
}

impl Line {
    fn of_this_user(socket: Hidden<Socket>) -> Option<Self> {
        if !is_this_user(&socket) {
            return None;
        }
        // Without a right to it, what the system gives by itself is enough for most.
        let size = SEND_BUFFER_BYTES;
        if nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::SndBufForce, &size)
            .is_err()
        {
            let _ = socket.set_send_buffer_size(size);
        }
        Some(Self(socket))
    }

    pub(super) fn is_there(&self) -> bool {
        self.0.is_there()
    }

    pub(super) fn send(&self, parts: &[&[u8]]) -> Sent {
        let mut slices = [IoSlice::new(&[]); 2];
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        match self.0.send_vectored_with_flags(&slices[..parts.len()], flags) {
            Ok(_) => Sent::Yes,
            Err(e) if is_for_now(&e) => Sent::Full,
            Err(_) => Sent::End,
        }
    }

    pub(super) fn receive<'a>(&self, into: &'a mut [u8]) -> Came<'a> {
        match rustix::net::recv(&*self.0, &mut *into, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Came::End, // nobody sends an empty message
            Ok((n, _)) => Came::Message(&into[..n]),
            Err(e) if is_for_now(&e.into()) => Came::Nothing,
            Err(_) => Came::End,
        }
    }
}

fn is_for_now(error: &io::Error) -> bool {
    let out_of_memory = error.raw_os_error() == Some(libc::ENOBUFS);
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) || out_of_memory
}

impl AsFd for Line {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Descriptors that come and go, behind one that stays: it is readable when one of them is.
pub(super) struct Bundle(Hidden<OwnedFd>);

fn system(source: rustix::io::Errno) -> LinkError {
    LinkError::System { call: "epoll", source: source.into() }
}

impl Bundle {
    pub(super) fn new() -> Result<Self, LinkError> {
        let fd = Hidden::make(|| epoll::create(epoll::CreateFlags::CLOEXEC)).map_err(system)?;
        fd.is_watched();
        Ok(Self(fd))
    }

    /// Takes one in. Without it, what comes is found when the engine looks by itself.
    pub(super) fn add(&self, one: impl AsFd) {
        let _ = epoll::add(&*self.0, one, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    }

    /// Takes one out, before it is closed: a copy in another process would have it readable for ever.
    pub(super) fn remove(&self, one: impl AsFd) {
        let _ = epoll::delete(&*self.0, one);
    }

    pub(super) fn descriptor(&self) -> Result<OwnedFd, LinkError> {
        let copy = self.0.as_fd().try_clone_to_owned();
        copy.map_err(|source| LinkError::System { call: "dup of a socket", source })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use super::*;

    const PYTHON: &str = "/usr/bin/python3";

    /// A process, of this user or of another, that has connected to an address's keeper.
    fn caller(addr: IpAddr, user: Option<&str>) -> Child {
        let me = nix::unistd::geteuid();
        let lines = format!(
            "import socket, sys\n\
             s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
             s.connect('\\0bellpush-{me}-{addr}')\n\
             print('connected', flush=True)\n\
             sys.stdin.read()"
        );
        let mut command = Command::new(PYTHON);
        if let Some(user) = user {
            command = Command::new("setpriv");
            command.args(["--reuid", user, "--regid", user, "--clear-groups", PYTHON]);
        }
        command.args(["-c", &lines]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "connected\n");
        child
    }

    /// Only root can become another user.
    #[test]
    fn a_process_of_another_user_is_not_heard() {
        if !nix::unistd::geteuid().is_root() || !Path::new(PYTHON).exists() {
            return println!("SKIPPED: not root, or no Python");
        }
        let [high, low] = (std::process::id() as u16).to_be_bytes();
        let addr = IpAddr::from([127, 1, high, low]);
        let listener = listen(addr).unwrap();
        for (user, heard) in [(Some("65534"), false), (None, true)] {
            let mut child = caller(addr, user);
            assert_eq!(accept(&listener).unwrap().is_some(), heard, "user {user:?}");
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }
}
