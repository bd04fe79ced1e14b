//! Sockets of the UDP link: how they are opened, what they let through, how much they hold.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{SockaddrStorage, setsockopt, sockopt};
use quinn_udp::{UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use crate::link::LinkError;
use bellpush_mem::hidden::Hidden;
use bellpush_wire::roce::ROCE_PORT;

/// Receive buffer that is asked for, in bytes: some milliseconds of a fast sender, for an engine
/// that naps or shares its core.
const RECV_BUFFER_BYTES: usize = 32 << 20;

pub(super) fn system(call: &'static str) -> impl Fn(io::Error) -> LinkError {
    move |source| LinkError::System { call, source }
}

/// A socket with the state of its options.
pub(super) struct Opened {
    pub(super) socket: Hidden<Socket>,
    pub(super) state: UdpSocketState,
    /// Receive buffer that was got.
    pub(super) recv_bytes: usize,
}

/// Opens the socket that holds the address: unconnected, with DF, so that IPv4 packets have ID 0
/// (RFC 6864, section 4.1; Linux does so for sockets that are not connected). A deaf one receives
/// nothing.
pub(super) fn open_udp(addr: SocketAddr, deaf: bool) -> Result<Opened, LinkError> {
    // Kept before it holds the address: the child of a fork by another thread would hold it as well.
    let make = || Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP));
    let socket = Hidden::make(make).map_err(system("socket"))?;
    if addr.is_ipv6() {
        socket.set_only_v6(true).map_err(system("IPV6_V6ONLY"))?;
    }
    if deaf {
        socket.attach_filter(&NOTHING).map_err(system("SO_ATTACH_FILTER"))?;
    }
    socket.bind(&addr.into()).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => LinkError::InUse { addr: addr.ip() },
        io::ErrorKind::AddrNotAvailable => LinkError::NotLocal { addr: addr.ip() },
        _ => LinkError::System { call: "bind of a UDP socket", source },
    })?;
    with_state(socket)
}

/// Has a UDP socket receive nothing from now on: the raw socket does.
pub(super) fn deafen(opened: &Opened) -> Result<(), LinkError> {
    opened.socket.attach_filter(&NOTHING).map_err(system("SO_ATTACH_FILTER"))?;
    // The raw socket could not tell apart what was merged for this one.
    setsockopt(&opened.socket, sockopt::UdpGroSegment, &false)
        .map_err(|errno| system("UDP_GRO")(errno.into()))
}

/// Opens a raw socket, if this process may have one. Of IPv4 it shows all RoCEv2 packets, with their
/// IP headers. Of IPv6: packets without a UDP checksum, from the UDP header on, which a UDP socket
/// drops as RFC 8200 (8.1) has it; Linux's Soft-RoCE sends no checksum.
pub(super) fn open_raw(addr: IpAddr, scope: u32) -> Result<Option<Opened>, LinkError> {
    let (domain, filter) = match addr {
        IpAddr::V4(_) => (Domain::IPV4, ROCE_IN_IPV4.as_slice()),
        IpAddr::V6(_) => (Domain::IPV6, NO_CHECKSUM.as_slice()),
    };
    let socket = match Hidden::make(|| Socket::new(domain, Type::RAW, Some(Protocol::UDP))) {
        Ok(socket) => socket,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(system("raw socket")(error)),
    };
    socket.attach_filter(filter).map_err(system("SO_ATTACH_FILTER"))?;
    socket.bind(&with_port(addr, scope, 0).into()).map_err(system("bind of a raw socket"))?;
    with_state(socket).map(Some)
}

fn with_state(socket: Hidden<Socket>) -> Result<Opened, LinkError> {
    // It asks for the class, too.
    let state = UdpSocketState::new(UdpSockRef::from(&*socket)).map_err(system("UDP options"))?;
    let is_v6 = socket.domain().map_err(system("SO_DOMAIN"))? == Domain::IPV6;
    let hops = match is_v6 {
        true => setsockopt(&socket, sockopt::Ipv6RecvHopLimit, &true),
        false => setsockopt(&socket, sockopt::Ipv4RecvTtl, &true),
    };
    hops.map_err(|errno| system("IP_RECVTTL")(errno.into()))?;
    // Force needs CAP_NET_ADMIN; without it the system's limit holds, which the size got shows.
    if setsockopt(&socket, sockopt::RcvBufForce, &RECV_BUFFER_BYTES).is_err() {
        socket.set_recv_buffer_size(RECV_BUFFER_BYTES).map_err(system("SO_RCVBUF"))?;
    }
    let recv_bytes = socket.recv_buffer_size().map_err(system("SO_RCVBUF"))?;
    socket.is_watched();
    Ok(Opened { socket, state, recv_bytes })
}

const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_HALF_AT_X: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
const X_IS_IP_HEADER: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// For a UDP socket that is only to send and to hold its address.
const NOTHING: [SockFilter; 1] = [SockFilter::new(RETURN, 0, 0, 0)];

/// For a raw socket of IPv4, whose filter begins at the IP header.
const ROCE_IN_IPV4: [SockFilter; 5] = [
    SockFilter::new(X_IS_IP_HEADER, 0, 0, 0),
    SockFilter::new(LOAD_HALF_AT_X, 0, 0, 2), // UDP destination port
    SockFilter::new(JUMP_IF_EQUAL, 0, 1, ROCE_PORT as u32),
    SockFilter::new(RETURN, 0, 0, u32::MAX),
    SockFilter::new(RETURN, 0, 0, 0),
];

/// For a raw socket of IPv6, whose filter begins at the UDP header.
const NO_CHECKSUM: [SockFilter; 6] = [
    SockFilter::new(LOAD_HALF, 0, 0, 6), // checksum
    SockFilter::new(JUMP_IF_EQUAL, 0, 3, 0),
    SockFilter::new(LOAD_HALF, 0, 0, 2), // destination port
    SockFilter::new(JUMP_IF_EQUAL, 0, 1, ROCE_PORT as u32),
    SockFilter::new(RETURN, 0, 0, u32::MAX),
    SockFilter::new(RETURN, 0, 0, 0),
];

/// A network interface.
#[derive(Debug, Clone)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) mtu: usize,
    pub(super) is_up: bool,
    /// Of an IPv6 address that is local to the interface.
    pub(super) scope: u32,
}

const DEFAULT_MTU: usize = 1500;
const LOOPBACK_MTU: usize = 65536;

/// The interface that has an address; all of 127.0.0.0/8 is on the loopback interface.
pub(super) fn interface_of(addr: IpAddr) -> Result<Option<Interface>, LinkError> {
    let all = getifaddrs().map_err(|errno| system("getifaddrs")(errno.into()))?;
    for entry in all {
        let Some(has) = entry.address.as_ref().and_then(ip) else { continue };
        let flags = entry.flags;
        let loopback = flags.contains(InterfaceFlags::IFF_LOOPBACK);
        if has == addr || loopback && addr.is_ipv4() && addr.is_loopback() {
            let path = format!("/sys/class/net/{}/mtu", entry.interface_name);
            let mtu = std::fs::read_to_string(path).ok().and_then(|mtu| mtu.trim().parse().ok());
            let default = if loopback { LOOPBACK_MTU } else { DEFAULT_MTU };
            let scope = match addr {
                IpAddr::V6(addr) if is_link_local(addr) => {
                    entry.address.as_ref().and_then(|a| Some(a.as_sockaddr_in6()?.scope_id()))
                }
                _ => None,
            };
            return Ok(Some(Interface {
                mtu: mtu.unwrap_or(default),
                is_up: is_up(flags),
                scope: scope.unwrap_or(0),
                name: entry.interface_name,
            }));
        }
    }
    Ok(None)
}

pub(super) fn is_up(flags: InterfaceFlags) -> bool {
    flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING)
}

fn ip(addr: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = addr.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| addr.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

fn is_link_local(addr: Ipv6Addr) -> bool {
    addr.segments()[0] & 0xffc0 == 0xfe80
}

/// RoCEv2's port at an address, which lies on the interface with this scope if it is local to one.
pub(super) fn endpoint(addr: IpAddr, scope: u32) -> SocketAddr {
    with_port(addr, scope, ROCE_PORT)
}

pub(super) fn with_port(addr: IpAddr, scope: u32, port: u16) -> SocketAddr {
    match addr {
        IpAddr::V6(v6) if is_link_local(v6) => SocketAddrV6::new(v6, port, 0, scope).into(),
        _ => SocketAddr::new(addr, port),
    }
}
