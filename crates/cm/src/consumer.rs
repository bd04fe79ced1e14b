//! What a consumer of a [`crate::Cm`] says and is told.

use std::net::IpAddr;

use bellpush_wire::cm::{MAD_BYTES, Path, Rep, Req, SidrRep, SidrReq};

use crate::connection::ConnId;

/// Most connections of a NIC, half-open ones among them.
pub(crate) const MOST: usize = 1 << 16;

/// What cannot be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// There is no such connection.
    #[error("there is no such connection")]
    Unknown,
    /// The connection is not where this can be done.
    #[error("the connection's state does not allow it")]
    State,
    /// The connection is established already.
    #[error("the connection is established already")]
    Established,
    /// There are too many.
    #[error("the NIC has no more than {MOST} connections")]
    Full,
}

/// What comes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A message is to be sent, as a datagram from queue pair 1 to queue pair 1.
    Send {
        /// Where to.
        to: IpAddr,
        /// The datagram's payload.
        mad: [u8; MAD_BYTES],
    },
    /// The consumer is told.
    Event {
        /// Of which connection.
        id: ConnId,
        /// What.
        event: Event,
    },
}

/// What a consumer is told of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A peer asks for a connection, which is new. To be accepted, rejected or removed.
    Request {
        /// What it says.
        request: Request,
        /// Where it is.
        from: IpAddr,
    },
    /// The peer has accepted. To be established, rejected or removed.
    Response(Box<Rep>),
    /// The peer is ready.
    Established,
    /// The peer has rejected.
    Rejected {
        /// Why: [`bellpush_wire::cm::reason`].
        reason: u16,
        /// Private data.
        private: [u8; 148],
    },
    /// The peer does not answer.
    Unreachable,
    /// The peer has disconnected, or has confirmed that this side did.
    Disconnected {
        /// Whether it did not confirm.
        timed_out: bool,
    },
    /// No packet of the connection is under way any more.
    TimeWaitExit,
    /// A queue pair takes datagrams for the service.
    Datagrams(Box<SidrRep>),
}

/// What a peer asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A connection.
    Connection(Box<Req>),
    /// A queue pair for datagrams.
    Datagrams(Box<SidrReq>),
}

impl Request {
    /// The service ID.
    pub fn service(&self) -> u64 {
        match self {
            Self::Connection(req) => req.service,
            Self::Datagrams(req) => req.service,
        }
    }
}

/// A connection that is asked for.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "fields of a REQ, which says what they are")]
pub struct Connect {
    pub to: IpAddr,
    pub service: u64,
    pub qpn: u32,
    pub psn: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub retry: u8,
    pub rnr_retry: u8,
    pub flow_control: bool,
    pub srq: bool,
    pub mtu: u8,
    pub path: Path,
    pub private: [u8; 92],
}

/// A connection that is accepted.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "fields of a REP, which says what they are")]
pub struct Accept {
    pub qpn: u32,
    pub psn: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub rnr_retry: u8,
    pub flow_control: bool,
    pub srq: bool,
    pub private: [u8; 196],
}
