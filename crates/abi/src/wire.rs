//! `kernels/include/bellpush/wire.h`: endpoints, queue pairs and statuses. The formats of mlx5, which the header has
//! too, are `bellpush-wire`'s.

use bytemuck::{Pod, Zeroable};

/// `struct bp_window`: a ring of slots. Ticket `i` owns slot `i % slots`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Window {
    /// Address at which the GPU writes the window.
    pub va: u64,
    /// Address of the window in gather entries; 0 for zero-based device memory.
    pub gather_base: u64,
    /// Local key of the window for gather entries.
    pub lkey: u32,
    /// Bytes of a slot, a multiple of 64.
    pub slot_bytes: u32,
    /// Number of slots, a power of two: device code takes slot and lap from a ticket's bits.
    pub slots: u32,
    /// In-band: sequence number of lap 0.
    pub inband_seq0: u32,
}

/// `struct bp_qp_state`: counters that device code alone touches while kernels run.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct QpState {
    /// Next ticket.
    pub reserved: u64,
    /// Tickets below are complete.
    pub done: u64,
    /// Exclusive: WQEs that begin below this ticket get ready words.
    pub marked: u64,
    /// The [`Code`] that ended the queue pair, 0 while it lives.
    pub error: u32,
    /// High-water mark of credits in use.
    pub max_credits: u32,
    /// Exclusive: tickets below are known to the NIC.
    pub rung: u64,
    /// Tickets below are covered by a requested CQE.
    pub signalled: u64,
    /// Exclusive: end of the last WQE that brings data here.
    pub fetched: u64,
    /// Exclusive: clock ticks from a wait's beginning to its first look.
    pub look_after: u32,
    /// Fills the line.
    pub pad: [u32; 17],
    /// Shared: tickets below are known to the NIC, and who rings.
    pub ring: u64,
    /// Fills the line.
    pub ring_pad: [u64; 15],
    /// Next CQE to read, counted from 0.
    pub cq_ci: u64,
    /// The same as it was last reported to the NIC.
    pub cq_ci_reported: u64,
    /// Shared: a caller looks at the CQ.
    pub cq_lock: u32,
    /// Fills the line.
    pub cq_pad: [u32; 27],
}

/// Bytes of a [`QpState`].
pub const QP_STATE_BYTES: usize = size_of::<QpState>();

/// `struct bp_status`: the failure that ended a queue pair. Device code writes it, the host reads
/// it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Status {
    /// A [`Code`]; device code writes it last.
    pub code: u32,
    /// Vendor error << 8 | syndrome of the error CQE.
    pub syndrome: u32,
    /// Ticket of the WQE that failed, or of the wait that ended.
    pub ticket: u64,
}

/// `struct bp_qp`: a queue pair as kernels see it. Addresses are the GPU's.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Qp {
    /// Send queue.
    pub sq: u64,
    /// Send CQ.
    pub cq: u64,
    /// Doorbell record of the queue pair.
    pub dbr: u64,
    /// Doorbell record of the CQ.
    pub cq_dbr: u64,
    /// UAR page.
    pub uar: u64,
    /// `struct bp_qp_state`.
    pub state: u64,
    /// Ready words: one `u32` per basic block, the end of the WQE that starts there.
    pub ready: u64,
    /// Address of the [`Status`].
    pub status: u64,
    /// Window of the path, if it has one.
    pub window: Window,
    /// Bound of every wait, ns; of a copy that `bp::within` made, of waits that may be given up.
    pub timeout_ns: u64,
    /// Queue pair number.
    pub qpn: u32,
    /// Most outstanding tickets of callers that write slots.
    pub slot_limit: u32,
    /// log2 of the SQ's basic blocks.
    pub sq_log: u32,
    /// log2 of the CQ's entries.
    pub cq_log: u32,
    /// Interval, in tickets, at which consecutive WQEs request a CQE: a power of two.
    pub credit_period: u32,
    /// Of a copy that `bp::within` made: what `timeout_ns` was, in µs; otherwise 0.
    pub own_timeout_us: u32,
}

/// `struct bp_endpoint`: one end of a connection as kernels see it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct DeviceEndpoint {
    /// The queue pair.
    pub qp: Qp,
    /// Address of the local region in the GPU.
    pub local_va: u64,
    /// Address of the local region in WQEs.
    pub local_iova: u64,
    /// Length of the local region.
    pub local_bytes: u64,
    /// Address of the peer's region in WQEs.
    pub remote_iova: u64,
    /// Length of the peer's region.
    pub remote_bytes: u64,
    /// Key of the local region.
    pub local_lkey: u32,
    /// Key of the peer's region.
    pub remote_rkey: u32,
    /// Address of eight bytes that receive unused results of atomics.
    pub sink_iova: u64,
    /// Local key of these eight bytes.
    pub sink_lkey: u32,
    /// Bits of [`tag`]: the path that a kernel must be compiled for.
    pub tag: u32,
}

/// Ranges of lengths in [`Choices`], at most.
pub const CHOICE_RANGES: usize = 8;
/// Bits of a choice in [`Choices::choice`] and [`Choices::by_class`].
pub const CHOICE_BITS: u32 = 4;
/// In [`Choices::by_class`]: the class's lengths have several choices.
pub const CHOICE_BY_RANGE: u32 = 15;
/// Classes of lengths in [`Choices::by_class`].
pub const CHOICE_CLASSES: u32 = 62;

/// `struct bp_choices`: which choice a message of a length takes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Choices {
    /// Longest message of each range but the last, in bytes, ascending; `u32::MAX` where there are fewer ranges.
    pub up_to: [u32; CHOICE_RANGES - 1],
    /// The ranges' choices, [`CHOICE_BITS`] bits each.
    pub choice: u32,
    /// The choices of classes of lengths, which end with 3, 4, 6, 8, 12, 16, 24 bytes and so on.
    pub by_class: [u32; 8],
}

/// `struct bp_auto_endpoint`: two queue pairs to one peer, and a table of choices for each scope.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct DeviceAutoEndpoint {
    /// The queue pair with a doorbell, as an endpoint of `push/kernel`.
    pub bell: DeviceEndpoint,
    /// The in-band one, as an endpoint of `push/inband`; zeros where there is none, or no length takes it.
    pub inband: DeviceEndpoint,
    /// Choices of one thread.
    pub by_thread: Choices,
    /// Choices of a warp.
    pub by_warp: Choices,
    /// Choices of a block of more than a warp.
    pub by_block: Choices,
    /// [`tag::AUTO`], the fences, and the line format if there is an in-band queue pair.
    pub tag: u32,
    /// Zero.
    pub reserved: u32,
}

/// Words of a rank's barriers, one for each round.
pub const PEERS_WORDS: usize = 32;

/// `struct bp_remote`: where a peer's words of barriers lie.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct RemoteWords {
    /// Address of the first in WQEs.
    pub iova: u64,
    /// Key of their region.
    pub rkey: u32,
    /// Zero.
    pub reserved: u32,
}

/// `struct bp_peers`: a table of peers as kernels see it. Addresses are the GPU's.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct DevicePeers {
    /// [`DeviceEndpoint`]s, `n * rails` of them, a rank's rails beside each other.
    pub endpoints: u64,
    /// [`RemoteWords`], one for each rank, on rail 0.
    pub remotes: u64,
    /// [`PEERS_WORDS`] words, to which peers add.
    pub words: u64,
    /// A word that says how far this rank's barriers have come.
    pub progress: u64,
    /// This rank.
    pub rank: u32,
    /// Ranks.
    pub n: u32,
    /// Rails, at least 1.
    pub rails: u32,
    /// Rounds of a barrier: log2 of `n`, rounded up.
    pub rounds: u32,
}

/// `struct bp_marks`: where `bp::mark` writes. Addresses are the GPU's; all zero, nothing is written.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct DeviceMarks {
    /// `1 << ring_log` [`MarkEntry`]s in memory that the host reads; 0: nothing is written.
    pub ring: u64,
    /// A word of 8 bytes in the GPU's memory: marks begun so far.
    pub begun: u64,
    /// log2 of the ring's marks.
    pub ring_log: u32,
    /// Zero.
    pub reserved: u32,
}

/// `struct bp_mark`: a mark, two units of 16 bytes that say each in which lap of the ring they were written.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct MarkEntry {
    /// Nanoseconds of the GPU's clock.
    pub ns: u64,
    /// The kernel's own number.
    pub what: u32,
    /// Lap of the ring, from 1.
    pub lap: u32,
    /// The kernel's own.
    pub value: u64,
    /// Block.
    pub block: u32,
    /// Thread of the block.
    pub thread: u16,
    /// Low 16 bits of `lap`.
    pub lap_low: u16,
}

/// `enum bp_tag`: what a kernel must be compiled for to use an endpoint.
pub mod tag {
    /// Data: push or staged.
    pub const PUSH: u32 = 1 << 0;
    /// Data: pull.
    pub const PULL: u32 = 1 << 1;
    /// Kick: doorbell by kernel.
    pub const KERNEL: u32 = 1 << 2;
    /// Kick: BlueFlame.
    pub const BLUEFLAME: u32 = 1 << 3;
    /// Kick: in-band, lines of 12 and 4 bytes.
    pub const INBAND_12_4: u32 = 1 << 4;
    /// Kick: in-band, lines of 14 and 2 bytes.
    pub const INBAND_14_2: u32 = 1 << 5;
    /// Kick: in-band, lines of 60 and 4 bytes.
    pub const INBAND_60_4: u32 = 1 << 6;
    /// The fence before the doorbell has system scope.
    pub const SYSTEM: u32 = 1 << 7;
    /// The doorbell record is visible before the doorbell.
    pub const STRICT: u32 = 1 << 8;
    /// An auto endpoint.
    pub const AUTO: u32 = 1 << 9;
}

/// `enum bp_status_code`: the result of a device verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Code {
    /// A bounded wait ended, and the call may be repeated. As an endpoint's failure: a caller could
    /// not fill the tickets that it held.
    #[error("the wait timed out")]
    Timeout,
    /// The NIC completed a WQE in error.
    #[error("the NIC reported an error completion")]
    CqeError,
    /// The queue pair is in error; the call posted nothing more.
    #[error("the queue pair is in error")]
    Dead,
    /// The arguments were refused, or the kernel was compiled for another path than the endpoint's ([`tag`]).
    #[error(
        "the arguments were refused, or the kernel was compiled for another path than the endpoint's"
    )]
    Invalid,
    /// The operation has not completed yet.
    #[error("not complete yet")]
    Pending,
    /// A call of the host's before this one failed, and this one was not carried out.
    #[error("a call before it failed, and it was not carried out")]
    Flushed,
    /// A code that device code never writes.
    #[error("unknown status {0}")]
    Unknown(u32),
}

impl Code {
    /// `Ok` for `BP_OK`, otherwise the code.
    ///
    /// # Errors
    /// Every code but `BP_OK`.
    pub fn check(raw: u32) -> Result<(), Code> {
        Err(match raw {
            0 => return Ok(()),
            1 => Self::Timeout,
            2 => Self::CqeError,
            3 => Self::Dead,
            4 => Self::Invalid,
            5 => Self::Pending,
            6 => Self::Flushed,
            other => Self::Unknown(other),
        })
    }
}

const _: () = {
    assert!(size_of::<Window>() == 32);
    assert!(size_of::<QpState>() == 384);
    assert!(size_of::<Status>() == 16);
    assert!(size_of::<Qp>() == 128);
    assert!(size_of::<DeviceEndpoint>() == 192);
    assert!(size_of::<Choices>() == 64);
    assert!(size_of::<DeviceAutoEndpoint>() == 584);
    assert!(size_of::<RemoteWords>() == 16);
    assert!(size_of::<DevicePeers>() == 48);
    assert!(size_of::<DeviceMarks>() == 24);
    assert!(size_of::<MarkEntry>() == 32);
};
