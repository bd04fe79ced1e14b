//! A connection: its state, what it sends again, and when.

use std::net::IpAddr;

use bellpush_wire::cm::MAD_BYTES;

/// A connection of a [`crate::Cm`]: its local communication ID, or the ID of its request for a
/// datagram service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub(crate) u32);

/// Where a connection is (InfiniBand vol. 1, 12.9.5 to 12.9.8, and 12.11 for datagrams).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// REQ is sent.
    ReqSent,
    /// REQ has come, and the consumer is to answer.
    ReqReceived,
    /// REP is sent.
    RepSent,
    /// REP has come, and the consumer is to answer.
    RepReceived,
    /// Both sides may send.
    Established,
    /// DREQ is sent.
    DreqSent,
    /// DREQ has come, and the consumer is to answer.
    DreqReceived,
    /// Packets of the connection may still be under way.
    TimeWait,
    /// It is over; the consumer still has its ID.
    Closed,
    /// SIDR_REQ is sent.
    SidrSent,
    /// SIDR_REQ has come, and the consumer is to answer.
    SidrReceived,
    /// SIDR_REP is sent; it is sent again to whoever asks again.
    SidrAnswered,
}

/// How often and after which time a message is sent again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) wait_ns: u64,
    pub(crate) retries: u8,
}

impl Patience {
    /// No shorter than this whatever a peer asks for: a message that was just sent is still under way.
    const LEAST_NS: u64 = 10_000_000;

    /// Of a peer that says how long it takes to answer.
    pub(crate) fn with(code: u8, retries: u8) -> Self {
        Self { wait_ns: timeout_ns(code).max(Self::LEAST_NS), retries }
    }
}

/// Longest time that is waited for an answer, by its code: 69 s, what Linux asks for.
const LONGEST: u8 = 24;

/// The time that a code of five bits stands for, in nanoseconds.
pub(crate) fn timeout_ns(code: u8) -> u64 {
    4096 << code.min(LONGEST)
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) state: State,
    /// Whether the consumer still has it. What it owes its peer, it does without one.
    pub(crate) owned: bool,
    /// Where its peer is: messages from elsewhere are not for it.
    pub(crate) peer: IpAddr,
    /// The peer's communication ID; 0 until it is known.
    pub(crate) remote_id: u32,
    /// The peer's queue pair; 0 until it is known.
    pub(crate) remote_qpn: u32,
    pub(crate) local_qpn: u32,
    /// Service ID that was asked for.
    pub(crate) service: u64,
    pub(crate) transaction: u64,
    pub(crate) patience: Patience,
    /// The last message that wants an answer, or that repeats one.
    pub(crate) message: Option<[u8; MAD_BYTES]>,
    /// How often it may be sent again.
    pub(crate) left: u8,
    /// When something is to be done.
    pub(crate) due_ns: Option<u64>,
    /// Whether the peer has said that its answer takes longer: it may do so once for a message.
    pub(crate) delayed: bool,
    /// How long packets may be under way when it is over.
    pub(crate) linger_ns: u64,
}
