//! What programs are told (`rdma_get_cm_event`).

/// What happened: Linux's `enum rdma_cm_event_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[expect(missing_docs, reason = "librdmacm's own names")]
pub enum EventKind {
    AddrResolved = 0,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    TimewaitExit = 15,
}

/// Private data of a program's, at most so many bytes as any message has room for.
pub type Private = Vec<u8>;

/// What an event says of a connection (`struct rdma_conn_param`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "librdmacm's own names")]
pub struct ConnParam {
    pub qpn: u32,
    pub private: Private,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub retry: u8,
    pub rnr_retry: u8,
    pub srq: bool,
}

/// What an event says of datagrams (`struct rdma_ud_param`); where to, the identifier knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "librdmacm's own names")]
pub struct DatagramParam {
    pub qpn: u32,
    pub qkey: u32,
    pub private: Private,
}

/// What an event says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Param {
    /// Of a connection.
    Connection(ConnParam),
    /// Of datagrams.
    Datagrams(DatagramParam),
}

/// An event as a program gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserEvent {
    /// What the program calls the identifier; of a request, the one that listens.
    pub uid: u64,
    /// The identifier; of a request, a new one.
    pub id: u32,
    /// What happened.
    pub kind: EventKind,
    /// 0, a REJ's reason, or a negative errno.
    pub status: i32,
    /// What it says.
    pub param: Param,
}

/// An event that waits for the program.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Whose event it is; of a request, the identifier that listens.
    pub(crate) of: u32,
    /// The event, but for what the program calls the identifier.
    pub(crate) event: UserEvent,
}
