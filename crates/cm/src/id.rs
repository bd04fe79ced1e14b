//! One identifier (`struct rdma_cm_id`), and the attributes of its queue pair.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use bellpush_wire::cm::{Path, PortSpace};

use crate::connection::ConnId;
use crate::error::IdError;
use crate::ids::{ChannelId, DeviceInfo};

/// A port space (`enum rdma_port_space`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// `RDMA_PS_TCP`.
    Tcp,
    /// `RDMA_PS_UDP`.
    Udp,
    /// `RDMA_PS_IB`: only to be bound to no address in particular, as librdmacm does to see whether
    /// it can.
    Ib,
}

impl Space {
    /// Its port space of the RDMA IP CM service; `None` of InfiniBand's own.
    pub fn ports(self) -> Option<PortSpace> {
        match self {
            Self::Tcp => Some(PortSpace::Tcp),
            Self::Udp => Some(PortSpace::Udp),
            Self::Ib => None,
        }
    }
}

impl From<PortSpace> for Space {
    fn from(space: PortSpace) -> Self {
        match space {
            PortSpace::Tcp => Self::Tcp,
            PortSpace::Udp => Self::Udp,
        }
    }
}

/// What an identifier's queue pair is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reliable connection.
    Connection,
    /// Unreliable datagrams.
    Datagrams,
}

/// How far an identifier is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "librdmacm's own names")]
pub enum Stage {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Listening,
    Connecting,
    Disconnected,
}

/// An address as a program gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// Of IPv4 or IPv6.
    Ip(SocketAddr),
    /// InfiniBand's own, of no port in particular.
    IbAny,
}

/// What a program says of a connection that it asks for or accepts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "librdmacm's own names")]
pub struct Parameters {
    pub qpn: u32,
    pub private: Vec<u8>,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub retry: u8,
    pub rnr_retry: u8,
    pub srq: bool,
}

/// Queue key of datagram queue pairs whose program chooses none (`RDMA_UDP_QKEY`).
pub(crate) const UDP_QKEY: u32 = 0x0123_4567;
/// How long a queue pair waits for an acknowledgement, by its code, unless the program says: 0.27 s.
pub(crate) const ACK_TIMEOUT: u8 = 16;
/// Longest that a peer may have this side wait: 8.6 s.
const LONGEST_ACK_TIMEOUT: u8 = 21;
const HOP_LIMIT: u8 = 64;
/// Packet rate of the path, by its code: 100 Gbit/s, as the port says.
pub(crate) const RATE: u8 = 16;

/// An identifier.
#[derive(Debug)]
pub(crate) struct Id {
    pub(crate) channel: ChannelId,
    /// What the program calls it; 0 while it has not been told of it.
    pub(crate) uid: u64,
    pub(crate) space: Space,
    pub(crate) kind: Kind,
    pub(crate) stage: Stage,
    pub(crate) source: Option<SocketAddr>,
    pub(crate) destination: Option<SocketAddr>,
    pub(crate) device: Option<usize>,
    pub(crate) connection: Option<ConnId>,
    /// Whether a peer asked for the connection.
    pub(crate) is_passive: bool,
    /// Whether it holds its source's port.
    pub(crate) has_port: bool,
    /// Requests that may still wait for the program.
    pub(crate) backlog: u32,
    pub(crate) events_reported: u32,
    pub(crate) shares: bool,
    pub(crate) v6_only: bool,
    pub(crate) traffic_class: u8,
    pub(crate) ack_timeout: u8,
    /// PSN that the peer is to begin with.
    pub(crate) psn: u32,
    pub(crate) link: Link,
}

/// What is known of the connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Link {
    pub(crate) remote_qpn: u32,
    /// PSN to begin with.
    pub(crate) remote_psn: u32,
    pub(crate) mtu: u8,
    pub(crate) ack_timeout: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry: u8,
    pub(crate) rnr_retry: u8,
    /// Whether the peer has said what it says of itself.
    pub(crate) is_known: bool,
}

/// Way to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "an address vector's fields")]
pub struct Route {
    pub local_gid: [u8; 16],
    pub remote_gid: [u8; 16],
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// Path MTU by its code: 1 is 256 bytes.
    pub mtu: u8,
    /// Rate by its code.
    pub rate: u8,
    /// How long packets are under way at most: 4.096 µs · 2^n.
    pub packet_lifetime: u8,
}

/// Attributes that a queue pair is to be given; `None` of what the state does not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "names of `struct ibv_qp_attr`")]
pub struct QpAttributes {
    pub access: Option<u32>,
    pub qkey: Option<u32>,
    pub is_init: bool,
    pub route: Option<Route>,
    pub path_mtu: Option<u8>,
    pub dest_qpn: Option<u32>,
    pub rq_psn: Option<u32>,
    pub sq_psn: Option<u32>,
    pub max_dest_rd_atomic: Option<u8>,
    pub max_rd_atomic: Option<u8>,
    pub min_rnr_timer: Option<u8>,
    pub timeout: Option<u8>,
    pub retry: Option<u8>,
    pub rnr_retry: Option<u8>,
}

/// States of a queue pair that attributes are asked for, by their numbers.
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
/// `IBV_ACCESS_REMOTE_WRITE`, `_READ` and `_ATOMIC`.
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ_ATOMIC: u32 = 1 << 2 | 1 << 3;

/// GID of an address.
pub(crate) fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Address of a GID.
pub(crate) fn address(gid: [u8; 16]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(gid)).to_canonical()
}

impl Id {
    /// The way to the peer, once it is known.
    pub(crate) fn route(&self, device: &DeviceInfo) -> Option<Route> {
        let mtu = if self.link.is_known { self.link.mtu } else { device.mtu };
        Some(Route {
            local_gid: gid(device.address),
            remote_gid: gid(self.destination?.ip()),
            traffic_class: self.traffic_class,
            hop_limit: HOP_LIMIT,
            mtu,
            rate: RATE,
            packet_lifetime: self.ack_timeout.saturating_sub(1),
        })
    }

    /// The same, as a REQ says it.
    pub(crate) fn path(&self, route: &Route) -> Path {
        Path {
            // Ethernet has no local identifiers: the permissive one.
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: route.local_gid,
            remote_gid: route.remote_gid,
            flow_label: 0,
            rate: route.rate,
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit,
            sl: route.traffic_class >> 5,
            subnet_local: false,
            ack_timeout: self.ack_timeout,
        }
    }

    /// Attributes of its queue pair for a state.
    pub(crate) fn qp(&self, state: u32, device: &DeviceInfo) -> Result<QpAttributes, IdError> {
        let mut out = QpAttributes::default();
        match (state, self.kind) {
            (INIT, Kind::Connection) => {
                let reads = self.link.responder_resources > 0;
                out.access = Some(REMOTE_WRITE | if reads { REMOTE_READ_ATOMIC } else { 0 });
                out.is_init = true;
            }
            (INIT, Kind::Datagrams) => (out.qkey, out.is_init) = (Some(UDP_QKEY), true),
            (RTR | RTS, Kind::Datagrams) => {}
            (RTR, Kind::Connection) if self.link.is_known => {
                out.route = self.route(device);
                out.path_mtu = Some(self.link.mtu);
                out.dest_qpn = Some(self.link.remote_qpn);
                out.rq_psn = Some(self.psn);
                out.max_dest_rd_atomic = Some(self.link.responder_resources);
                out.min_rnr_timer = Some(0);
            }
            (RTS, Kind::Connection) if self.link.is_known => {
                out.sq_psn = Some(self.link.remote_psn);
                out.max_rd_atomic = Some(self.link.initiator_depth);
                out.timeout = Some(self.link.ack_timeout);
                out.retry = Some(self.link.retry);
                out.rnr_retry = Some(self.link.rnr_retry);
            }
            _ => return Err(IdError::Stage),
        }
        Ok(out)
    }
}

/// A time that a peer says, within bounds; 0 would be for ever.
pub(crate) fn bounded_ack_timeout(code: u8) -> u8 {
    if code == 0 { ACK_TIMEOUT } else { code.min(LONGEST_ACK_TIMEOUT) }
}
