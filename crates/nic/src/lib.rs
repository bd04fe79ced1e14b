//! NICs: the traits that their users know them by, attributes of queue pairs, and host-side queues.
//!
//! A NIC hands out memory regions, device-memory windows and queue pairs whose rings lie in memory
//! that the caller's GPU has mapped. It does not say who posts: a kernel, a stream or the CPU
//! write the same mlx5 bytes.

#![forbid(unsafe_code)]

mod attr;
pub mod queue;
pub mod slots;

use std::sync::Arc;

pub use attr::{
    AddressVector, Change, Connection, MAX_RD_ATOMIC, Mtu, NicAddress, QpAddress, QpType,
};
use bellpush_mem::{Dma, MemError, View};
pub use bellpush_wire::inband::LineFormat;
use bellpush_wire::{Iova, Lkey, Qpn, Rkey};

/// What a peer and the local queue may do with a memory region (InfiniBand vol. 1, 10.6.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Access {
    /// Scatter of SEND, READ and atomic results into it.
    pub local_write: bool,
    /// Target of RDMA WRITE.
    pub remote_write: bool,
    /// Source of RDMA READ.
    pub remote_read: bool,
    /// Target of FETCH_ADD and CMP_SWAP.
    pub remote_atomic: bool,
    /// Peers' WRITEs may land in any order (`IBV_ACCESS_RELAXED_ORDERING`). A NIC need not heed it.
    pub relaxed_order: bool,
}

impl Access {
    /// Everything allowed; WRITEs land in order.
    pub const ALL: Self = Self {
        local_write: true,
        remote_write: true,
        remote_read: true,
        remote_atomic: true,
        relaxed_order: false,
    };
    /// Gather only.
    pub const NONE: Self = Self {
        local_write: false,
        remote_write: false,
        remote_read: false,
        remote_atomic: false,
        relaxed_order: false,
    };
}

/// A registered memory region. Dropping the registration is [`Nic::deregister`]'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mr {
    /// Key of local gather and scatter entries.
    pub lkey: Lkey,
    /// Key that a peer's remote-address segment names.
    pub rkey: Rkey,
    /// Address of the first byte in WQEs; 0 for zero-based regions.
    pub iova: Iova,
    /// Length in bytes.
    pub bytes: u64,
}

/// A window of the NIC's own memory: device memory (MEMIC) and its zero-based region.
#[derive(Debug, Clone)]
pub struct Dm {
    /// Where the CPU writes it, and the GPU once it has mapped it. Device memory is written in whole
    /// 4-byte words.
    pub view: View,
    /// Its region: gather addresses are offsets into the window.
    pub mr: Mr,
}

/// In-band reception: the NIC watches a window's slots instead of a send queue.
#[derive(Debug, Clone)]
pub struct Inband {
    /// The window; slot `i` starts at `i * slot_bytes`.
    pub window: View,
    /// Bytes of a slot, a multiple of 64.
    pub slot_bytes: u32,
    /// Number of slots.
    pub slots: u32,
    /// Line format of every slot.
    pub line: LineFormat,
    /// Sequence of lap 0; laps count up from it and skip 0.
    pub seq0: u32,
}

/// What must be visible to a NIC before a doorbell (`docs/protocol.md`, section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Order {
    /// WQEs: the NIC takes the later of doorbell record and doorbell.
    Later,
    /// WQEs, and then the doorbell record: the NIC reads the record when the doorbell reaches it.
    /// Its registers may be mapped write-combining.
    Strict,
}

/// What a queue pair is made of. Depths are powers of two.
#[derive(Debug, Clone)]
pub struct QpAttr {
    /// Send queue depth in 64-byte basic blocks; 0 for a queue pair that only receives.
    pub sq_blocks: u32,
    /// Receive queue depth in WQEs; 0 for none.
    pub rq_wqes: u32,
    /// Scatter entries of a receive WQE (1, 2, 4, …); ignored without a receive queue.
    pub rq_sges: u32,
    /// Entries of the send CQ.
    pub send_cqes: u32,
    /// Entries of the receive CQ; 0 for none.
    pub recv_cqes: u32,
    /// How often a SEND is tried again when the peer's receive queue is empty (0..=7; 7: without
    /// end, InfiniBand vol. 1, 9.7.5.2.8).
    pub rnr_retry: u8,
    /// Local ACK timeout's code, 4.096 µs · 2^n (1..=31; 0: none). With 7 retries a peer is silent for eight times that
    /// before the queue pair fails.
    pub ack_timeout: u8,
    /// In-band window, for a queue pair whose sends announce themselves.
    pub inband: Option<Inband>,
    /// Whole WQEs are stored to the UAR (`kernels/include/bellpush/impl/doorbell.cuh`): with [`Order::Later`] with a
    /// check word in `ctrl.imm` of RDMA_WRITE, and executed from there without reading the SQ.
    pub blueflame: bool,
}

/// Where a queue pair's rings and registers lie, for whoever posts.
#[derive(Debug, Clone)]
pub struct Queues {
    /// Send queue, `sq_blocks * 64` bytes.
    pub sq: View,
    /// Receive queue.
    pub rq: View,
    /// log2 of a receive WQE's stride in bytes.
    pub rq_stride_log: u32,
    /// Doorbell record of the queue pair: two big-endian words, receive then send.
    pub dbr: View,
    /// UAR page, this queue pair's own; within the queue memory, or a page of the NIC's. The
    /// doorbell register lies at [`UAR_DOORBELL_OFFSET`](bellpush_wire::doorbell::UAR_DOORBELL_OFFSET).
    pub uar: View,
    /// What a doorbell must not overtake.
    pub order: Order,
    /// Send CQ.
    pub send_cq: View,
    /// Doorbell record of the send CQ: consumer index, then arm word.
    pub send_cq_dbr: View,
    /// Receive CQ (empty without one).
    pub recv_cq: View,
    /// Doorbell record of the receive CQ.
    pub recv_cq_dbr: View,
}

/// Memory for a queue pair's queues, zero-filled and mapped by the GPU that posts.
///
/// One piece has room for everything. What is named beside it lies in a piece of its own, and its room in the first
/// stays unused: a queue is best near whoever reads it most.
#[derive(Debug, Clone)]
pub struct QueueMemory {
    /// [`Nic::queue_bytes`]: registers, receives, the CQs' doorbell records, and what has no piece of its own.
    pub main: View,
    /// Send queue, `sq_blocks * 64` bytes.
    pub sq: Option<View>,
    /// Doorbell record of the queue pair, 8 bytes.
    pub dbr: Option<View>,
    /// Send CQ, `send_cqes * 64` bytes.
    pub send_cq: Option<View>,
}

impl From<View> for QueueMemory {
    fn from(main: View) -> Self {
        Self { main, sq: None, dbr: None, send_cq: None }
    }
}

/// Queue pair states (InfiniBand vol. 1, 10.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum QpState {
    /// Created.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained.
    Sqd,
    /// Everything outstanding is flushed in error.
    Err,
}

/// A queue pair of some NIC.
pub trait QueuePair: Send + Sync {
    /// Its number.
    fn qpn(&self) -> Qpn;
    /// Its rings.
    fn queues(&self) -> &Queues;
    /// Its address for the peer.
    fn address(&self) -> QpAddress;
    /// Its state.
    fn state(&self) -> QpState;
    /// Connects to a peer and moves through INIT and RTR to RTS.
    fn connect(&self, peer: QpAddress) -> Result<(), NicError>;
    /// Moves to ERR: what is outstanding is flushed with error CQEs.
    fn fail(&self);
    /// Moves to RESET, whatever state it is in, for another [`QueuePair::connect`]. All that was posted and did not
    /// complete is forgotten. [`QueuePair::address`] has another first PSN, drawn at random, so that packets of the
    /// connection before do not fit. Doorbell record and in-band slots are cleared; posters begin at WQE 0. The CQs go
    /// on where they were: CQEs that were not taken stay, and no more come until it is connected.
    ///
    /// Nobody may post or ring while this runs.
    ///
    /// # Errors
    /// What the NIC refuses; the queue pair does not work then.
    fn reset(&self) -> Result<(), NicError>;
    /// What happened to it outside of any request, or to its NIC, that may be why a wait of its own
    /// ended. Other queue pairs' troubles are not its.
    fn trouble(&self) -> Option<NicError> {
        None
    }
}

/// A NIC.
pub trait Nic: Send + Sync {
    /// `soft`, or the verbs device's name.
    fn name(&self) -> &str;
    /// Whether it is software, to be said wherever results are printed.
    fn is_software(&self) -> bool;
    /// What its doorbells must not overtake.
    fn order(&self) -> Order;
    /// Whether it has atomics on 8 bytes with results in this machine's byte order.
    fn atomics(&self) -> bool {
        true
    }
    /// What is wrong with the NIC as a whole that may be why something else failed: its port is
    /// down, its engine is gone. `None` when all is well.
    fn trouble(&self) -> Option<NicError>;
    /// Registers memory; WQEs address it from `iova`.
    fn register(&self, mem: Arc<dyn Dma>, iova: Iova, access: Access) -> Result<Mr, NicError>;
    /// Ends a registration: later use of its keys is a protection error.
    fn deregister(&self, mr: Mr) -> Result<(), NicError>;
    /// Allocates device memory. `None` from a NIC that has none: a window is then host memory, which
    /// the caller registers.
    fn alloc_dm(&self, bytes: usize) -> Result<Option<Dm>, NicError>;
    /// Bytes of device memory (MEMIC) that it says it has; 0 where windows are host memory.
    fn dm_bytes(&self) -> u64 {
        0
    }
    /// Allocates memory of the NIC's own for a queue pair's queues, zero-filled, at its address for
    /// kernels. `None` from a NIC whose queues lie in memory that the caller brings.
    fn alloc_queues(&self, _bytes: usize) -> Result<Option<View>, NicError> {
        Ok(None)
    }
    /// Bytes of queue memory that [`Nic::create_qp`] takes for these attributes.
    fn queue_bytes(&self, attr: &QpAttr) -> usize;
    /// Creates a queue pair with its queues in `memory`.
    ///
    /// # Errors
    /// [`NicError::Unsupported`] from a NIC that does not reach that memory, or lays queues out in one piece only.
    fn create_qp(&self, attr: &QpAttr, memory: QueueMemory)
    -> Result<Arc<dyn QueuePair>, NicError>;
    /// Destroys a queue pair; its memory is not touched after this returns, and no region by what came for it.
    fn destroy_qp(&self, qpn: Qpn) -> Result<(), NicError>;
}

/// Why a NIC refused something.
#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// A recording could not be begun.
    #[error("the recording cannot be written: {0}")]
    Recording(#[source] std::io::Error),
    /// An attribute is out of range.
    #[error("{what} is {value}, but must be {must}")]
    Attribute {
        /// The attribute.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is accepted.
        must: &'static str,
    },
    /// A key that names no region.
    #[error("no memory region has lkey {0:#x}")]
    NoSuchRegion(u32),
    /// A queue pair number that names none.
    #[error("no queue pair has number {0:#x}")]
    NoSuchQp(u32),
    /// A peer that is not on the link.
    #[error("no NIC {nic:?} with queue pair {qpn:#x} on the link")]
    NoSuchPeer {
        /// NIC part of the address.
        nic: NicAddress,
        /// Queue pair part of the address.
        qpn: u32,
    },
    /// A state change that the state machine does not allow.
    #[error("queue pair {qpn:#x} cannot go from {from:?} to {to:?}")]
    State {
        /// The queue pair.
        qpn: u32,
        /// Where it is.
        from: QpState,
        /// Where it was to go.
        to: QpState,
    },
    /// A state change without an attribute that it needs.
    #[error("queue pair {qpn:#x} cannot go from {from:?} to {to:?} without {what}")]
    Missing {
        /// The queue pair.
        qpn: u32,
        /// Where it is.
        from: QpState,
        /// Where it was to go.
        to: QpState,
        /// The attribute.
        what: &'static str,
    },
    /// A state change with an attribute that it does not take.
    #[error("queue pair {qpn:#x} cannot change {what} from {from:?} to {to:?}")]
    Superfluous {
        /// The queue pair.
        qpn: u32,
        /// Where it is.
        from: QpState,
        /// Where it was to go.
        to: QpState,
        /// The attribute.
        what: &'static str,
    },
    /// A table is full.
    #[error("the NIC holds no more than {limit} {what}")]
    Full {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The system gave no random numbers, from which keys and PSNs are drawn.
    #[error("the system gives no random numbers: {0}")]
    Random(#[source] std::io::Error),
    /// The system gave no thread to an engine.
    #[error("cannot start an engine's thread: {0}")]
    Thread(#[source] std::io::Error),
    /// Memory trouble.
    #[error(transparent)]
    Memory(#[from] MemError),
    /// The engine on a GPU does not work any more: queue pairs that it had do not move.
    #[error("the NIC's engine is gone: {0}")]
    Engine(String),
    /// What this NIC cannot do at all.
    #[error("NIC '{nic}' cannot take {what}")]
    Unsupported {
        /// The NIC.
        nic: String,
        /// What, and what to take instead.
        what: &'static str,
    },
    /// A device refused something, and says why itself.
    #[error(transparent)]
    Device(Box<dyn std::error::Error + Send + Sync>),
    /// A verbs device was asked for, and this program has no support for any.
    #[error(
        "'{0}' is a verbs device's name, and this program was built without the feature `mlx5`: \
         build with --features mlx5 (./x does where rdma-core's headers and libclang are there), or \
         take soft"
    )]
    NotBuilt(String),
}
