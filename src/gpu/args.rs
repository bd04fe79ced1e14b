//! What the host hands to kernels: mirrors of the `bp_` structures in `kernels/include/bellpush/wire.h`,
//! `kernels/entry/args.h` and `kernels/bench/args.h`, in the machine's byte order. A test compares sizes and offsets with
//! the C side.

use bytemuck::{Pod, Zeroable};

use super::KernelArgs;

/// `struct bp_window`: ring of slots. Ticket `i` owns slot `i % slots`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Window {
    /// Where the GPU writes.
    pub va: u64,
    /// What a gather entry calls that place (0 for zero-based device memory).
    pub gather_base: u64,
    /// Key of the gather entry.
    pub lkey: u32,
    /// Bytes of a slot, a multiple of 64.
    pub slot_bytes: u32,
    /// Number of slots.
    pub slots: u32,
    /// In-band: sequence of lap 0.
    pub inband_seq0: u32,
}

/// Bytes of `struct bp_qp_state`, which only device code reads.
pub const QP_STATE_BYTES: usize = 768;
/// Offset of `max_credits` in `struct bp_qp_state`.
pub const QP_STATE_MAX_CREDITS: usize = 644;

/// `struct bp_status`: why a queue pair ended. Device code writes it, the host reads it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Status {
    /// A [`Code`]; written last.
    pub code: u32,
    /// Vendor error << 8 | syndrome of the error CQE.
    pub syndrome: u32,
    /// The WQE that failed, or the ticket that was waited for.
    pub ticket: u64,
}

/// `struct bp_qp`: a queue pair as kernels see it.
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
    /// One `u32` a basic block: end of the WQE that starts there.
    pub ready: u64,
    /// [`Status`].
    pub status: u64,
    /// Window of the path, if it has one.
    pub window: Window,
    /// Bound of every wait, in ns.
    pub timeout_ns: u64,
    /// Queue pair number.
    pub qpn: u32,
    /// Tickets that may be out at once of callers that write slots.
    pub slot_limit: u32,
    /// log2 of the SQ's basic blocks.
    pub sq_log: u32,
    /// log2 of the CQ's entries.
    pub cq_log: u32,
    /// How often a row of WQEs asks for a CQE, in tickets: a power of two.
    pub credit_period: u32,
    /// Zero.
    pub reserved: u32,
}

/// `struct bp_endpoint`: one end of a connection as kernels see it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct DeviceEndpoint {
    /// The queue pair.
    pub qp: Qp,
    /// Local region, as the GPU addresses it.
    pub local_va: u64,
    /// The same place as WQEs address it.
    pub local_iova: u64,
    /// Length of the local region.
    pub local_bytes: u64,
    /// Peer's region, as WQEs address it.
    pub remote_iova: u64,
    /// Length of the peer's region.
    pub remote_bytes: u64,
    /// Key of the local region.
    pub local_lkey: u32,
    /// Key of the peer's region.
    pub remote_rkey: u32,
    /// Eight bytes for results of atomics that nobody asked for.
    pub sink_iova: u64,
    /// Key of those.
    pub sink_lkey: u32,
    /// Zero.
    pub reserved: u32,
}

/// `enum bp_op`: the verbs that the host can ask for.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// `bp::put`.
    Put = 0,
    /// `bp::put_inline`.
    PutInline = 1,
    /// `bp::put_signal`.
    PutSignal = 2,
    /// `bp::get`.
    Get = 3,
    /// `bp::fetch_add`.
    FetchAdd = 4,
    /// `bp::compare_swap`.
    CompareSwap = 5,
    /// `bp::quiet`.
    Quiet = 6,
    /// `bp::test`.
    Test = 7,
    /// `bp::wait_signal`.
    WaitSignal = 8,
}

/// `enum bp_scope`: who calls a verb.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every thread for itself.
    Thread = 0,
    /// Every warp.
    Warp = 1,
    /// Every block.
    Block = 2,
}

/// `struct bp_op_args`: one verb, `count` times by every caller.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct OpArgs {
    /// The endpoint.
    pub ep: DeviceEndpoint,
    /// A [`Verb`].
    pub op: u32,
    /// A [`Scope`].
    pub scope: u32,
    /// Calls by each caller.
    pub count: u32,
    /// `bp::flags`.
    pub flags: u32,
    /// Offset into the peer's region of the first call.
    pub remote_offset: u64,
    /// Added to it call by call.
    pub remote_stride: u64,
    /// Source, destination or result of the first call; 0 for none.
    pub local: u64,
    /// Added to it call by call.
    pub local_stride: u64,
    /// Length of each call.
    pub bytes: u64,
    /// Operand of atomics and signals; ticket of `Test`.
    pub value: u64,
    /// Compare operand.
    pub compare: u64,
    /// Offset of the signal word in the peer's region.
    pub signal_offset: u64,
    /// One `u32` a caller: first status that was not ok.
    pub status: u64,
    /// Whether each caller waits for completion at its end.
    pub quiet_after: u32,
    /// Zero.
    pub reserved: u32,
}

/// Endpoints that one benchmark kernel drives at most.
pub const BENCH_MAX_ENDPOINTS: usize = 8;

/// `struct bp_bench_args`: messages of one size, in a row.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct BenchArgs {
    /// Message `m` goes by endpoint `m % endpoints`.
    pub ep: [DeviceEndpoint; BENCH_MAX_ENDPOINTS],
    /// Endpoints in use.
    pub endpoints: u32,
    /// Number of messages.
    pub messages: u32,
    /// Latency: a quiet after so many messages, a row; 0: streaming.
    pub each_quiet: u32,
    /// Streaming: messages a doorbell.
    pub ring_every: u32,
    /// Source of message 0.
    pub src: u64,
    /// Offset in the peer's region of message 0.
    pub remote_offset: u64,
    /// From message to message, at both ends.
    pub stride: u64,
    /// Length of a message.
    pub bytes: u64,
    /// `u64` clock ticks a whole row (latency).
    pub ticks: u64,
    /// [`BenchResult`].
    pub result: u64,
}

/// `struct bp_bench_result`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable, PartialEq, Eq)]
pub struct BenchResult {
    /// First status that was not ok.
    pub status: u32,
    /// Messages whose put was accepted.
    pub posted: u32,
    /// GPU wall clock at the start.
    pub start_ns: u64,
    /// GPU wall clock at the end.
    pub end_ns: u64,
    /// SM clock at the start.
    pub start_ticks: u64,
    /// SM clock at the end.
    pub end_ticks: u64,
}

/// `struct bp_store_args`: plain stores into a window.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct StoreArgs {
    /// Destination.
    pub window: u64,
    /// Its length.
    pub window_bytes: u64,
    /// Source, as long.
    pub src: u64,
    /// Bytes to store in all.
    pub total_bytes: u64,
    /// [`BenchResult`].
    pub result: u64,
}

/// `struct bp_tear_args`: lines rewritten for a while.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct TearArgs {
    /// The lines.
    pub lines: u64,
    /// 16, 32, 64 or 128.
    pub line_bytes: u32,
    /// Number of lines.
    pub count: u32,
    /// Bound of the run.
    pub duration_ns: u64,
    /// `u32` that ends the run when it is not 0.
    pub stop: u64,
}

/// `enum bp_link_lap`: what ends each lap of [`LinkMoveArgs`].
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLap {
    /// Nothing: laps overlap.
    RunOn = 0,
    /// A gpu-scope fence of the block's leader, between barriers.
    FenceGpu = 1,
    /// A system-scope fence of the block's leader, between barriers.
    FenceSystem = 2,
    /// A barrier.
    Barrier = 3,
}

/// `struct bp_link_move_args`: the same stores or loads in every lap, each `lap_bytes` further.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct LinkMoveArgs {
    /// Address of access 0.
    pub target: u64,
    /// Accesses of the whole grid in a lap.
    pub accesses: u64,
    /// A [`LinkResult`] a block, in this GPU's memory, zeroed.
    pub results: u64,
    /// No lap begins after this time.
    pub limit_ns: u64,
    /// 4, 8 or 16.
    pub access_bytes: u32,
    /// From access to access.
    pub stride_bytes: u32,
    /// Laps.
    pub laps: u32,
    /// A [`LinkLap`].
    pub each_lap: u32,
    /// Every word stored.
    pub value: u32,
    /// From a lap to the next.
    pub lap_bytes: u32,
}

/// `struct bp_link_result`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable, PartialEq, Eq)]
pub struct LinkResult {
    /// A [`Code`], or 0.
    pub status: u32,
    /// Laps, loads or rounds that were done.
    pub laps: u32,
    /// GPU wall clock at the start.
    pub start_ns: u64,
    /// GPU wall clock at the end.
    pub end_ns: u64,
    /// Sum of the 4-byte words that were loaded.
    pub sum: u64,
}

/// `struct bp_link_chase_args`: loads that wait for each other.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct LinkChaseArgs {
    /// Zeros.
    pub target: u64,
    /// How many: a power of two.
    pub span_bytes: u64,
    /// [`LinkResult`].
    pub results: u64,
    /// Bound of the run.
    pub limit_ns: u64,
    /// Loads.
    pub count: u32,
    /// From load to load, a multiple of 8.
    pub stride_bytes: u32,
}

/// `struct bp_link_flag_args`: round trips of a flag.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct LinkFlagArgs {
    /// `u64` that this side stores.
    pub store_at: u64,
    /// `u64` that the other side stores.
    pub watch_at: u64,
    /// [`LinkResult`].
    pub results: u64,
    /// Bound of each wait.
    pub limit_ns: u64,
    /// Round trips.
    pub rounds: u32,
    /// 1 for the side that waits first.
    pub answers: u32,
}

/// `struct bp_link_exchange_args`: an all-reduce of `f32` by bare stores.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct LinkExchangeArgs {
    /// `count` elements of the GPU's memory.
    pub input: u64,
    /// As many, which receive the sums.
    pub output: u64,
    /// Units of [`LINK_UNIT_BYTES`] that this rank stores, two slots of `most` in host memory.
    pub send: u64,
    /// The same of every rank, as the others' are copied there.
    pub receive: u64,
    /// [`LinkExchangeState`] in the GPU's memory.
    pub state: u64,
    /// Bound of each wait.
    pub limit_ns: u64,
    /// Elements.
    pub count: u32,
    /// Units of a slot.
    pub most: u32,
    /// This rank.
    pub rank: u32,
    /// All of them.
    pub ranks: u32,
}

/// Bytes of a unit of [`LinkExchangeArgs`]: three words of 4 bytes with the call's number + 1 behind them.
pub const LINK_UNIT_BYTES: usize = 16;

/// `struct bp_link_exchange_state`: zeros at first.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable, PartialEq, Eq)]
pub struct LinkExchangeState {
    /// Calls that were made.
    pub calls: u64,
    /// Blocks of the call that have ended.
    pub ended: u64,
    /// A [`Code`], or 0.
    pub status: u64,
}

// SAFETY: the layout is the C struct's (asserted below, compared field by field by a test).
unsafe impl KernelArgs for OpArgs {}
// SAFETY: as for OpArgs.
unsafe impl KernelArgs for BenchArgs {}
// SAFETY: as for OpArgs.
unsafe impl KernelArgs for StoreArgs {}
// SAFETY: as for OpArgs.
unsafe impl KernelArgs for TearArgs {}
// SAFETY: as for OpArgs.
unsafe impl KernelArgs for LinkMoveArgs {}
// SAFETY: as for OpArgs.
unsafe impl KernelArgs for LinkChaseArgs {}
// SAFETY: as for OpArgs.
unsafe impl KernelArgs for LinkFlagArgs {}
// SAFETY: as for OpArgs.
unsafe impl KernelArgs for LinkExchangeArgs {}

const _: () = {
    assert!(size_of::<Window>() == 32);
    assert!(size_of::<Status>() == 16);
    assert!(size_of::<Qp>() == 128);
    assert!(size_of::<DeviceEndpoint>() == 192);
    assert!(size_of::<OpArgs>() == 288);
    assert!(size_of::<BenchArgs>() == 1600);
    assert!(size_of::<BenchResult>() == 40);
    assert!(size_of::<StoreArgs>() == 40);
    assert!(size_of::<TearArgs>() == 32);
    assert!(size_of::<LinkMoveArgs>() == 56);
    assert!(size_of::<LinkResult>() == 32);
    assert!(size_of::<LinkChaseArgs>() == 40);
    assert!(size_of::<LinkFlagArgs>() == 40);
    assert!(size_of::<LinkExchangeArgs>() == 64);
    assert!(size_of::<LinkExchangeState>() == 24);
};

/// `enum bp_status_code`: what a verb returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Code {
    /// A bounded wait ended, and the call may be made again; as an endpoint's failure, a caller that could not
    /// fill the tickets that it held.
    #[error("the wait timed out")]
    Timeout,
    /// The NIC completed a WQE in error.
    #[error("the NIC reported an error completion")]
    CqeError,
    /// The queue pair is in error, and the call posted no more.
    #[error("the queue pair is in error")]
    Dead,
    /// The arguments were refused.
    #[error("the arguments were refused")]
    Invalid,
    /// Not complete yet.
    #[error("not complete yet")]
    Pending,
    /// A number that device code never writes.
    #[error("unknown status {0}")]
    Unknown(u32),
}

impl Code {
    /// `Ok` for `BP_OK`, else the code.
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
            other => Self::Unknown(other),
        })
    }
}
