//! What queries and events say, in the kernel's structs.

use std::net::{IpAddr, SocketAddr};

use bellpush_cm::{Facts, Kind, Param, QpAttributes, Route, Space, UserEvent};
use bellpush_wire::cm::PortSpace;
use bytemuck::{Zeroable, bytes_of, bytes_of_mut};

use super::abi::{
    AF_IB, AddrAnswer, ConnParam, EventAnswer, MAX_PRIVATE, NO_INDEX, PathAnswer, PathData,
    PathRec, QpAttr, RouteAnswer, SOCKADDR_IB_BYTES, UdParam, mask,
};
use crate::abi::verbs::AhAttr;
use crate::layout;

/// The one partition's key, as the network orders its bytes.
const PKEY: u16 = 0xffff;
/// The one port, and the one GID's index.
const PORT: u8 = 1;
const GID_INDEX: u8 = 0;
/// What Linux says of the one path: general, primary, both ways.
const PATH_FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;
/// A selector that says "exactly".
const EXACTLY: u8 = 2;

/// An address as `struct sockaddr_in` or `sockaddr_in6`; how long it is.
fn put_address(into: &mut [u8], at: Option<SocketAddr>) -> u16 {
    let Some(at) = at else { return 0 };
    into[2..4].copy_from_slice(&at.port().to_be_bytes());
    let (family, bytes) = match at.ip() {
        IpAddr::V4(v4) => {
            into[4..8].copy_from_slice(&v4.octets());
            (libc::AF_INET, 16)
        }
        IpAddr::V6(v6) => {
            into[8..24].copy_from_slice(&v6.octets());
            (libc::AF_INET6, 28)
        }
    };
    into[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes
}

/// An address as `struct sockaddr_ib`: GID, partition, service ID.
fn put_ib_address(into: &mut [u8], space: Space, at: Option<SocketAddr>) -> u16 {
    into[..2].copy_from_slice(&AF_IB.to_ne_bytes());
    into[2..4].copy_from_slice(&PKEY.to_be_bytes());
    if let Some(at) = at {
        into[8..24].copy_from_slice(&layout::gid(at.ip()));
        let service = match space {
            Space::Tcp => PortSpace::Tcp.service(at.port()),
            Space::Udp => PortSpace::Udp.service(at.port()),
            Space::Ib => 0,
        };
        into[24..32].copy_from_slice(&service.to_be_bytes());
    }
    SOCKADDR_IB_BYTES as u16
}

/// `UCMA_QUERY_ADDR`, or `UCMA_QUERY_GID` of the same.
pub fn addresses(facts: &Facts, as_gids: bool) -> AddrAnswer {
    let mut answer = AddrAnswer { index: NO_INDEX, ..AddrAnswer::zeroed() };
    let Facts { source, destination, space, .. } = *facts;
    if as_gids {
        answer.source_size = put_ib_address(&mut answer.source, space, source);
        answer.destination_size = put_ib_address(&mut answer.destination, space, destination);
    } else {
        answer.source_size = put_address(&mut answer.source, source);
        answer.destination_size = put_address(&mut answer.destination, destination);
    }
    if let Some(device) = facts.device {
        (answer.node_guid, answer.port, answer.pkey) = (layout::guid(device), PORT, PKEY);
    }
    answer
}

/// `UCMA_QUERY_PATH`.
pub fn path(facts: &Facts) -> PathAnswer {
    let mut answer = PathAnswer::zeroed();
    if let Some(route) = &facts.route {
        answer.paths = 1;
        answer.path = PathData {
            flags: PATH_FLAGS,
            dgid: route.remote_gid,
            sgid: route.local_gid,
            flow_label_hop_limit: [0, 0, 0, route.hop_limit],
            traffic_class: route.traffic_class,
            reversible_paths: 1 << 7,
            pkey: PKEY,
            qos_sl: 0,
            mtu: EXACTLY << 6 | route.mtu,
            rate: EXACTLY << 6 | route.rate,
            lifetime: EXACTLY << 6 | route.packet_lifetime,
            ..PathData::zeroed()
        };
    }
    answer
}

fn path_rec(route: &Route) -> PathRec {
    PathRec {
        dgid: route.remote_gid,
        sgid: route.local_gid,
        reversible: 1,
        mtu: route.mtu.into(),
        pkey: PKEY,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        paths: 1,
        mtu_selector: EXACTLY,
        rate_selector: EXACTLY,
        rate: route.rate,
        lifetime_selector: EXACTLY,
        lifetime: route.packet_lifetime,
        ..PathRec::zeroed()
    }
}

/// `UCMA_CMD_QUERY_ROUTE`, of programs that know no other query.
pub fn route(facts: &Facts) -> RouteAnswer {
    let mut answer = RouteAnswer { index: NO_INDEX, ..RouteAnswer::zeroed() };
    put_address(&mut answer.source, facts.source);
    put_address(&mut answer.destination, facts.destination);
    let Some(device) = facts.device else { return answer };
    (answer.node_guid, answer.port) = (layout::guid(device), PORT);
    let gid = |at: Option<SocketAddr>| at.map_or([0; 16], |at| layout::gid(at.ip()));
    match &facts.route {
        Some(route) => (answer.paths, answer.route[0]) = (1, path_rec(route)),
        None => {
            let (dgid, sgid) = (gid(facts.destination), gid(facts.source));
            answer.route[0] = PathRec { dgid, sgid, pkey: PKEY, ..PathRec::zeroed() };
        }
    }
    answer
}

fn address_vector(dgid: [u8; 16], traffic_class: u8, hop_limit: u8) -> AhAttr {
    AhAttr {
        dgid,
        flow_label: 0,
        sgid_index: GID_INDEX,
        hop_limit,
        traffic_class,
        grh_reserved: 0,
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: PORT,
        reserved: 0,
    }
}

/// `UCMA_CMD_INIT_QP_ATTR`.
pub fn qp_attributes(state: u32, given: &QpAttributes) -> QpAttr {
    let mut answer = QpAttr { mask: mask::STATE, qp_state: state, ..QpAttr::zeroed() };
    if given.is_init {
        answer.mask |= mask::PKEY_INDEX | mask::PORT;
        answer.port_num = PORT;
    }
    if let Some(route) = &given.route {
        answer.mask |= mask::AV;
        answer.ah = address_vector(route.remote_gid, route.traffic_class, route.hop_limit);
        answer.port_num = PORT;
    }
    macro_rules! copy {
        ($($from:ident => $to:ident, $bit:ident;)*) => {$(
            if let Some(value) = given.$from {
                answer.$to = value.into();
                answer.mask |= mask::$bit;
            }
        )*};
    }
    copy! {
        access => qp_access_flags, ACCESS_FLAGS;
        qkey => qkey, QKEY;
        path_mtu => path_mtu, PATH_MTU;
        dest_qpn => dest_qp_num, DEST_QPN;
        rq_psn => rq_psn, RQ_PSN;
        sq_psn => sq_psn, SQ_PSN;
        max_dest_rd_atomic => max_dest_rd_atomic, MAX_DEST_RD_ATOMIC;
        max_rd_atomic => max_rd_atomic, MAX_QP_RD_ATOMIC;
        min_rnr_timer => min_rnr_timer, MIN_RNR_TIMER;
        timeout => timeout, TIMEOUT;
        retry => retry_cnt, RETRY_CNT;
        rnr_retry => rnr_retry, RNR_RETRY;
    }
    answer
}

fn private(bytes: &[u8]) -> ([u8; MAX_PRIVATE], u8) {
    let mut room = [0; MAX_PRIVATE];
    room[..bytes.len()].copy_from_slice(bytes); // messages have less room than that
    (room, bytes.len() as u8)
}

/// `UCMA_CMD_GET_EVENT`; `facts` are of the identifier that it is about.
pub fn event(event: &UserEvent, facts: Option<&Facts>) -> EventAnswer {
    let mut answer = EventAnswer {
        uid: event.uid,
        id: event.id,
        event: event.kind as u32,
        status: event.status,
        ..EventAnswer::zeroed()
    };
    let param = match &event.param {
        Param::Connection(given) => {
            let (private, private_len) = private(&given.private);
            let param = ConnParam {
                qp_num: given.qpn,
                qkey: 0,
                private,
                private_len,
                srq: given.srq.into(),
                responder_resources: given.responder_resources,
                initiator_depth: given.initiator_depth,
                flow_control: given.flow_control.into(),
                retry_count: given.retry,
                rnr_retry_count: given.rnr_retry,
                valid: 0,
            };
            bytes_of(&param).to_vec()
        }
        Param::Datagrams(given) => {
            let (private, private_len) = private(&given.private);
            let route =
                facts.filter(|facts| facts.kind == Kind::Datagrams).and_then(|facts| facts.route);
            let ah = route.map_or(AhAttr::zeroed(), |route| {
                address_vector(route.remote_gid, route.traffic_class, route.hop_limit)
            });
            let (qp_num, qkey) = (given.qpn, given.qkey);
            bytes_of(&UdParam { qp_num, qkey, ah, private, private_len, reserved: [0; 7] }).to_vec()
        }
    };
    bytes_of_mut(&mut answer.param)[..param.len()].copy_from_slice(&param);
    answer
}
