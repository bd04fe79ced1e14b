//! What a UDP or raw socket has received, several datagrams a call, with what the system tells of each: the sender, the
//! class and hops of its IP header, and into how long packets it was merged from.

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

/// Datagrams of one call.
pub const DATAGRAMS: usize = 16;
/// Longest datagram, merged or not.
const BUFFER_BYTES: usize = 65536;
/// Room for the control messages of a datagram, as often as a socket may be asked for them.
const CONTROL_BYTES: usize = 256;

/// Control messages, aligned as `cmsghdr` is.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// What the system tells of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// Who sent it.
    pub from: SocketAddr,
    /// ToS of IPv4, traffic class of IPv6, if the socket was asked to tell (`IP_RECVTOS`, `IPV6_RECVTCLASS`).
    pub class: Option<u8>,
    /// TTL of IPv4, hop limit of IPv6, if the socket was asked to tell (`IP_RECVTTL`, `IPV6_RECVHOPLIMIT`).
    pub hops: Option<u8>,
    /// Bytes of each of the packets that it was merged from, but for the last, which may be shorter; at least 1.
    pub stride: usize,
    /// Bytes.
    pub len: usize,
}

/// Room for the datagrams of a call.
pub struct Datagrams {
    bytes: Box<[u8]>,
    controls: Box<[Control; DATAGRAMS]>,
    told: [Option<Told>; DATAGRAMS],
    /// Datagrams of the last call.
    count: usize,
}

impl Default for Datagrams {
    fn default() -> Self {
        let bytes = vec![0; DATAGRAMS * BUFFER_BYTES].into();
        let controls = Box::new([Control([0; CONTROL_BYTES]); DATAGRAMS]);
        Self { bytes, controls, told: [None; DATAGRAMS], count: 0 }
    }
}

impl Datagrams {
    /// Receives what is there, and waits for nothing; says how many came, those without an address of IP among them.
    ///
    /// # Errors
    /// As `recvmmsg`; that there is nothing is none.
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<usize> {
        self.count = 0;
        let mut names = [const { MaybeUninit::<libc::sockaddr_storage>::uninit() }; DATAGRAMS];
        // SAFETY: all zeros are a vector and a header.
        let (mut vectors, mut headers): ([libc::iovec; DATAGRAMS], [libc::mmsghdr; DATAGRAMS]) =
            unsafe { (zeroed(), zeroed()) };
        let mut buffers = self.bytes.chunks_exact_mut(BUFFER_BYTES);
        for i in 0..DATAGRAMS {
            let buffer = buffers.next().expect("one for each");
            vectors[i] =
                libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut headers[i].msg_hdr;
            header.msg_name = names[i].as_mut_ptr().cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = &raw mut vectors[i];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut self.controls[i]).cast();
            header.msg_controllen = CONTROL_BYTES as _;
        }
        let fd = socket.as_fd().as_raw_fd();
        let count = loop {
            // SAFETY: each header leads to room of the length that it says, which outlives the call.
            let n = unsafe {
                let most = DATAGRAMS as libc::c_uint;
                libc::recvmmsg(
                    fd,
                    headers.as_mut_ptr(),
                    most,
                    libc::MSG_DONTWAIT as _,
                    ptr::null_mut(),
                )
            };
            match usize::try_from(n) {
                Ok(count) => break count,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                    error => return Err(error),
                },
            }
        };
        for i in 0..count {
            // SAFETY: the call has filled in the header and where it leads, the name as far as its family goes.
            self.told[i] = unsafe {
                match headers[i].msg_hdr.msg_namelen {
                    0 => None,
                    _ => told(&headers[i], names[i].as_ptr()),
                }
            };
        }
        self.count = count;
        Ok(count)
    }

    /// A datagram of the last call; `None` if it had no address of IP.
    #[inline]
    pub fn get(&self, at: usize) -> Option<(&Told, &[u8])> {
        let told = self.told[..self.count].get(at)?.as_ref()?;
        Some((told, &self.bytes[at * BUFFER_BYTES..][..told.len]))
    }
}

/// # Safety
/// `name` leads to an address, whole for its family, with room for any.
unsafe fn sender(name: *const libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: as the caller promises, every address begins with its family.
    match i32::from(unsafe { (*name).ss_family }) {
        libc::AF_INET => {
            // SAFETY: of that family, and aligned for any.
            let v4 = unsafe { &*name.cast::<libc::sockaddr_in>() };
            let ip = u32::from_be(v4.sin_addr.s_addr).into();
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*name.cast::<libc::sockaddr_in6>() };
            let (ip, port) = (v6.sin6_addr.s6_addr.into(), u16::from_be(v6.sin6_port));
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// # Safety
/// A receive has filled the header and the name in.
unsafe fn told(header: &libc::mmsghdr, name: *const libc::sockaddr_storage) -> Option<Told> {
    let len = (header.msg_len as usize).min(BUFFER_BYTES);
    // SAFETY: as the caller promises.
    let from = unsafe { sender(name)? };
    let mut told = Told { from, class: None, hops: None, stride: len.max(1), len };
    // SAFETY: the header is filled in.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&header.msg_hdr) };
    // SAFETY: what the macros answer lies whole within the control messages, or is null.
    while let Some(message) = unsafe { next.as_ref() } {
        // SAFETY: the message's own bytes.
        let data = unsafe { libc::CMSG_DATA(message) };
        let bytes = message.cmsg_len.saturating_sub(data.addr() - ptr::from_ref(message).addr());
        let mut value = 0i32.to_ne_bytes();
        let used = bytes.min(value.len());
        // SAFETY: no more than the message has; a number of one byte is that of IPv4's class.
        unsafe { ptr::copy_nonoverlapping(data, value.as_mut_ptr(), used) };
        let number = if bytes == 1 { value[0].into() } else { i32::from_ne_bytes(value) };
        match (message.cmsg_level, message.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                told.class = u8::try_from(number).ok();
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                told.hops = u8::try_from(number).ok();
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                told.stride = usize::try_from(number).unwrap_or(0).max(1)
            }
            _ => {}
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(&header.msg_hdr, message) };
    }
    Some(told)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn ask(socket: &UdpSocket, level: i32, option: i32, value: i32) {
        let bytes = size_of::<i32>() as libc::socklen_t;
        // SAFETY: a number and its length.
        let done = unsafe {
            libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), bytes)
        };
        assert_eq!(done, 0);
    }

    #[test]
    fn a_datagram_comes_with_its_class_hops_and_sender() {
        use libc::{IP_RECVTOS, IP_RECVTTL, IP_TOS, IP_TTL, IPPROTO_IP, IPPROTO_IPV6};
        use libc::{IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS, IPV6_TCLASS, IPV6_UNICAST_HOPS};
        let v4 = ("127.0.0.1:0", IPPROTO_IP, [IP_RECVTOS, IP_RECVTTL, IP_TOS, IP_TTL]);
        let v6 = (
            "[::1]:0",
            IPPROTO_IPV6,
            [IPV6_RECVTCLASS, IPV6_RECVHOPLIMIT, IPV6_TCLASS, IPV6_UNICAST_HOPS],
        );
        for (any, level, [tell_class, tell_hops, class, hops]) in [v4, v6] {
            // A machine may have no IPv6.
            let Ok(to) = UdpSocket::bind(any) else { continue };
            let from = UdpSocket::bind(any).unwrap();
            let send =
                |bytes: usize| from.send_to(&vec![7; bytes], to.local_addr().unwrap()).unwrap();
            let mut all = Datagrams::default();
            assert_eq!(all.receive(&to).unwrap(), 0, "nothing was sent");
            send(3);
            for (option, value) in [(tell_class, 1), (tell_hops, 1)] {
                ask(&to, level, option, value);
            }
            for (option, value) in [(class, 0xab), (hops, 9)] {
                ask(&from, level, option, value);
            }
            send(0);
            send(5000);
            assert_eq!(all.receive(&to).unwrap(), 3);
            let sender = from.local_addr().unwrap();
            for (at, len) in [3, 0, 5000].into_iter().enumerate() {
                let (told, bytes) = all.get(at).unwrap();
                assert_eq!(
                    (told.from, told.stride, bytes),
                    (sender, len.max(1), &vec![7; len][..])
                );
                if at > 0 {
                    assert_eq!((told.class, told.hops), (Some(0xab), Some(9)));
                }
            }
            assert!(all.get(3).is_none());
        }
    }
}
