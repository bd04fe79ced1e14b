//! What requests and replies say of a connection.

use std::net::IpAddr;

use bellpush_wire::cm::{Rep, Req, reason};

use crate::id::{Link, address, bounded_ack_timeout};

/// What a request says of the connection.
pub(crate) fn link_of(req: &Req, from: IpAddr, own_mtu: u8) -> Result<Link, Option<u16>> {
    if !(1..=5).contains(&req.mtu) {
        return Err(Some(reason::INVALID_MTU));
    }
    if address(req.path.local_gid) != from {
        return Err(Some(reason::INVALID_GID));
    }
    Ok(Link {
        remote_qpn: req.qpn,
        remote_psn: req.psn,
        mtu: req.mtu.min(own_mtu),
        ack_timeout: bounded_ack_timeout(req.path.ack_timeout),
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        retry: req.retry,
        rnr_retry: req.rnr_retry,
        is_known: true,
    })
}

/// What a reply adds.
pub(crate) fn reply(asked: Link, rep: &Rep) -> Link {
    Link {
        remote_qpn: rep.qpn,
        remote_psn: rep.psn,
        responder_resources: rep.initiator_depth,
        initiator_depth: rep.responder_resources,
        rnr_retry: rep.rnr_retry,
        is_known: true,
        ..asked
    }
}
