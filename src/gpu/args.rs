//! Arguments of kernels: mirrors of the `bp_` structures in `kernels/include/bellpush/wire.h` and
//! `kernels/entry/args.h`,
//! in the machine's byte order. A test compares sizes and offsets with the C side.

use bytemuck::{Pod, Zeroable};

use super::KernelArgs;

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
    /// Number of slots.
    pub slots: u32,
    /// In-band: sequence number of lap 0.
    pub inband_seq0: u32,
}

/// Bytes of `struct bp_qp_state`, which only device code reads.
pub const QP_STATE_BYTES: usize = 768;
/// Offset of `max_credits` in `struct bp_qp_state`.
pub const QP_STATE_MAX_CREDITS: usize = 644;

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
    /// Bound of every wait, ns.
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
    /// Zero.
    pub reserved: u32,
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
}

/// `enum bp_op`: the device verbs that the host can request.
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

/// `enum bp_scope`: the group of threads that makes one call.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Every thread makes calls of its own.
    Thread = 0,
    /// Every warp.
    Warp = 1,
    /// Every block.
    Block = 2,
}

/// `struct bp_op_args`: one verb, which every caller calls `count` times.
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
    /// Increment of `remote_offset` from call to call.
    pub remote_stride: u64,
    /// Source, destination or result of the first call; 0 for none.
    pub local: u64,
    /// Increment of `local` from call to call.
    pub local_stride: u64,
    /// Bytes of each call.
    pub bytes: u64,
    /// Operand of atomics and signals; ticket of `Test`.
    pub value: u64,
    /// Compare operand.
    pub compare: u64,
    /// Offset of the signal word in the peer's region.
    pub signal_offset: u64,
    /// One `u32` per caller: the first status other than `BP_OK`.
    pub status: u64,
    /// Whether each caller ends with a `quiet`.
    pub quiet_after: u32,
    /// Zero.
    pub reserved: u32,
}

/// Most endpoints that one benchmark kernel drives.
pub const BENCH_MAX_ENDPOINTS: usize = 8;

/// `struct bp_bench_args`: messages of one size, sent in sequence.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct BenchArgs {
    /// Endpoints; message `m` uses endpoint `m % endpoints`.
    pub ep: [DeviceEndpoint; BENCH_MAX_ENDPOINTS],
    /// Endpoints in use.
    pub endpoints: u32,
    /// Number of messages.
    pub messages: u32,
    /// Latency: number of messages per row, each row followed by a quiet; 0: streaming.
    pub each_quiet: u32,
    /// Streaming: messages per doorbell.
    pub ring_every: u32,
    /// Source of message 0.
    pub src: u64,
    /// Offset in the peer's region of message 0.
    pub remote_offset: u64,
    /// Increment from message to message, at both ends.
    pub stride: u64,
    /// Bytes of a message.
    pub bytes: u64,
    /// Latency: one `u64` per row, its duration in clock ticks.
    pub ticks: u64,
    /// Address of the [`BenchResult`].
    pub result: u64,
}

/// `struct bp_bench_result`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable, PartialEq, Eq)]
pub struct BenchResult {
    /// First status other than `BP_OK`.
    pub status: u32,
    /// Messages whose put succeeded.
    pub posted: u32,
    /// GPU wall clock at the start, ns.
    pub start_ns: u64,
    /// GPU wall clock at the end, ns.
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
    /// Length of the destination in bytes.
    pub window_bytes: u64,
    /// Source, of the same length.
    pub src: u64,
    /// Total bytes to store.
    pub total_bytes: u64,
    /// Address of the [`BenchResult`].
    pub result: u64,
}

/// `struct bp_tear_args`: lines that a kernel rewrites repeatedly.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct TearArgs {
    /// The lines.
    pub lines: u64,
    /// Bytes of a line: 16, 32, 64 or 128.
    pub line_bytes: u32,
    /// Number of lines.
    pub count: u32,
    /// Bound of the run, ns.
    pub duration_ns: u64,
    /// Address of a `u32` that ends the run when it is not 0.
    pub stop: u64,
}

/// `enum bp_link_lap`: the operation at the end of each lap of [`LinkMoveArgs`].
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLap {
    /// No operation: laps overlap.
    RunOn = 0,
    /// A gpu-scope fence by the block's leader, between barriers.
    FenceGpu = 1,
    /// A system-scope fence by the block's leader, between barriers.
    FenceSystem = 2,
    /// A barrier.
    Barrier = 3,
}

/// `struct bp_link_move_args`: the same stores or loads in every lap, shifted by `lap_bytes` per
/// lap.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct LinkMoveArgs {
    /// Address of access 0.
    pub target: u64,
    /// Accesses of the whole grid per lap.
    pub accesses: u64,
    /// One [`LinkResult`] per block, zeroed, in this GPU's memory.
    pub results: u64,
    /// Bound of the run, ns: no lap begins later.
    pub limit_ns: u64,
    /// Bytes of an access: 4, 8 or 16.
    pub access_bytes: u32,
    /// Bytes from one access to the next.
    pub stride_bytes: u32,
    /// Number of laps.
    pub laps: u32,
    /// A [`LinkLap`].
    pub each_lap: u32,
    /// Value of every stored word.
    pub value: u32,
    /// Bytes from one lap to the next.
    pub lap_bytes: u32,
}

/// `struct bp_link_result`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable, PartialEq, Eq)]
pub struct LinkResult {
    /// A [`Code`], or 0.
    pub status: u32,
    /// Laps, loads or rounds that were completed.
    pub laps: u32,
    /// GPU wall clock at the start, ns.
    pub start_ns: u64,
    /// GPU wall clock at the end, ns.
    pub end_ns: u64,
    /// Sum of the loaded 4-byte words.
    pub sum: u64,
}

/// `struct bp_link_chase_args`: dependent loads.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct LinkChaseArgs {
    /// Address of memory that holds zeros.
    pub target: u64,
    /// Its length in bytes: a power of two.
    pub span_bytes: u64,
    /// Address of the [`LinkResult`].
    pub results: u64,
    /// Bound of the run, ns.
    pub limit_ns: u64,
    /// Number of loads.
    pub count: u32,
    /// Bytes from one load to the next: a multiple of 8.
    pub stride_bytes: u32,
}

/// `struct bp_link_flag_args`: round trips of a flag.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct LinkFlagArgs {
    /// Address of the `u64` that this side stores.
    pub store_at: u64,
    /// Address of the `u64` that the other side stores.
    pub watch_at: u64,
    /// Address of the [`LinkResult`].
    pub results: u64,
    /// Bound of each wait, ns.
    pub limit_ns: u64,
    /// Number of round trips.
    pub rounds: u32,
    /// 1 for the side that waits first, else 0.
    pub answers: u32,
}

/// `struct bp_link_exchange_args`: an all-reduce of `f32` by plain stores, without a NIC.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct LinkExchangeArgs {
    /// Address of `count` elements in the GPU's memory.
    pub input: u64,
    /// Address of the `count` sums.
    pub output: u64,
    /// Units of [`LINK_UNIT_BYTES`] that this rank stores: two slots of `most` units in host
    /// memory.
    pub send: u64,
    /// Units of every rank, in the same layout, as copied from the other ranks.
    pub receive: u64,
    /// Address of the [`LinkExchangeState`], in the GPU's memory.
    pub state: u64,
    /// Bound of each wait, ns.
    pub limit_ns: u64,
    /// Number of elements.
    pub count: u32,
    /// Units per slot.
    pub most: u32,
    /// This rank, from 0.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
}

/// Bytes of a unit of [`LinkExchangeArgs`]: three words of 4 bytes, then the call's number + 1.
pub const LINK_UNIT_BYTES: usize = 16;

/// `struct bp_link_exchange_state`: initially zero.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable, PartialEq, Eq)]
pub struct LinkExchangeState {
    /// Number of calls made.
    pub calls: u64,
    /// Blocks of the current call that have ended.
    pub ended: u64,
    /// A [`Code`], or 0.
    pub status: u64,
}

// SAFETY: the layout is the C struct's (asserted below, and compared field by field by a test).
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
            other => Self::Unknown(other),
        })
    }
}
