//! `kernels/bench/args.h`: kernels that measure and test.

use bytemuck::{Pod, Zeroable};

use crate::KernelArgs;
use crate::entry::OpArgs;
use crate::wire::{DeviceAutoEndpoint, DeviceEndpoint, DeviceMarks};

/// Most endpoints that one benchmark kernel drives.
pub const BENCH_MAX_ENDPOINTS: usize = 8;
/// Auto endpoints of a kernel that measures, at most.
pub const BENCH_MAX_AUTO_ENDPOINTS: usize = 6;

/// `struct bp_bench_rows`: messages of one size, sent in sequence.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct BenchRows {
    /// Endpoints in use; message `m` uses endpoint `m % endpoints`.
    pub endpoints: u32,
    /// Number of messages.
    pub messages: u32,
    /// Latency: number of messages per batch, each followed by a quiet; 0: streaming.
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
    /// Latency: one `u64` per batch, its duration in clock ticks.
    pub ticks: u64,
    /// Address of the [`BenchResult`].
    pub result: u64,
    /// Of kernels that write marks.
    pub marks: DeviceMarks,
    /// Value of the marks of its beginning and end.
    pub round: u64,
}

/// `enum bp_bench_mark`: marks of a round, by [`mark::kind`]. The value of a message's is [`mark::message`]'s.
pub mod mark {
    /// The round begins; its value is [`BenchRows::round`](super::BenchRows::round).
    pub const ROUND_BEGINS: u32 = 1;
    /// A put is called.
    pub const PUT: u32 = 2;
    /// It has returned; beside it stands its [`ticket`].
    pub const PUT_RETURNED: u32 = 3;
    /// All messages of the endpoint up to this one are complete.
    pub const COMPLETE: u32 = 4;
    /// The round ends, with the value of its beginning.
    pub const ROUND_ENDS: u32 = 5;
    /// Beside [`PUT`] and [`COMPLETE`]: the queue pair is that of an auto endpoint's two which has a doorbell.
    pub const OF_AUTO: u32 = 0x80;
    /// Bits of a [`ticket`].
    pub const TICKET_BITS: u32 = 24;

    /// Which mark it is, and whether it is of an auto endpoint.
    pub const fn kind(what: u32) -> (u32, bool) {
        (what & 0x7f, what & OF_AUTO != 0)
    }

    /// The lowest [`TICKET_BITS`] of the position behind a put's last WQE.
    pub const fn ticket(what: u32) -> u32 {
        what >> (32 - TICKET_BITS)
    }

    /// What the value of a message's mark says: the message, its queue pair, and a status.
    pub const fn message(value: u64) -> (u32, u32, u32) {
        (value as u32, (value >> 32) as u32 & 0xff_ffff, (value >> 56) as u32)
    }
}

/// `struct bp_bench_args`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct BenchArgs {
    /// The endpoints.
    pub ep: [DeviceEndpoint; BENCH_MAX_ENDPOINTS],
    /// The messages.
    pub rows: BenchRows,
}

/// `struct bp_auto_bench_args`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct AutoBenchArgs {
    /// The endpoints.
    pub ep: [DeviceAutoEndpoint; BENCH_MAX_AUTO_ENDPOINTS],
    /// The messages.
    pub rows: BenchRows,
}

/// `struct bp_blocks_bench_args`: each message by all blocks together.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct BlocksBenchArgs {
    /// The endpoint.
    pub ep: DeviceEndpoint,
    /// The messages.
    pub rows: BenchRows,
    /// Address of [`BLOCKS_STATE_BYTES`] zeros in the GPU's memory: `bp::blocks_state`.
    pub state: u64,
}

/// `struct bp_turns`: a message to the peer and one back, in turns.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Turns {
    /// Round trips.
    pub messages: u32,
    /// 1: puts, then waits; 0: waits, then puts.
    pub begins: u32,
    /// Address of message 0.
    pub src: u64,
    /// Bytes of a message.
    pub bytes: u64,
    /// Increment from place to place, at both ends; the peer's region begins with place 0.
    pub stride: u64,
    /// Number of places, which messages take in turn.
    pub places: u64,
    /// Offset of the peer's word, to which its signal adds 1.
    pub signal_offset: u64,
    /// Address of this side's word, 0 at the begin.
    pub word: u64,
    /// One `u64` per round trip, its duration in clock ticks.
    pub ticks: u64,
    /// Address of the [`BenchResult`].
    pub result: u64,
}

/// `struct bp_turns_args`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct TurnsArgs {
    /// The endpoint.
    pub ep: DeviceEndpoint,
    /// The messages.
    pub turns: Turns,
}

/// `struct bp_auto_turns_args`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct AutoTurnsArgs {
    /// The endpoint.
    pub ep: DeviceAutoEndpoint,
    /// The messages.
    pub turns: Turns,
}

/// Size of a `bp::blocks_state` (`kernels/include/bellpush/blocks.cuh`).
pub const BLOCKS_STATE_BYTES: usize = 48;

/// `struct bp_auto_op_args`: one verb of an auto endpoint.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct AutoOpArgs {
    /// The endpoint.
    pub ep: DeviceAutoEndpoint,
    /// The verb; its own endpoint is not used.
    pub op: OpArgs,
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
    /// A [`Code`](crate::wire::Code), or 0.
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
    /// A [`Code`](crate::wire::Code), or 0.
    pub status: u64,
}

/// Bytes of the peer's region of [`PostArgs`], which nobody reaches.
pub const POST_REMOTE_BYTES: usize = 1 << 16;
/// Bytes of its local region.
pub const POST_SRC_BYTES: usize = 1 << 12;
/// Signal words that are waited for together.
pub const POST_WORDS: usize = 32;

/// `struct bp_post_args`: posts on queue pairs that were filled by hand and that no NIC reads.
///
/// Message `m` of a queue pair is 64 or 8 bytes at `m * 64` of the peer's region, from `m * 64` of the local one, each
/// modulo its length. Call `i` of caller `c` has message `c * calls + i`; of a batch, as many from that times the
/// batch on.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct PostArgs {
    /// Queue pair 0, for kernels that have their endpoint among their arguments.
    pub ep: DeviceEndpoint,
    /// A [`DeviceEndpoint`] of each queue pair, in the GPU's memory.
    pub endpoints: u64,
    /// Start of the local region.
    pub src: u64,
    /// One [`PostResult`] per block, zeroed.
    pub results: u64,
    /// A zeroed `u64`: blocks that are there.
    pub arrived: u64,
    /// A `bp::message` (three `u64`: offset, address, bytes) of each message that differs; behind them room for
    /// [`POST_WORDS`] `u32`.
    pub list: u64,
    /// Bound of the wait for the other blocks, ns.
    pub limit_ns: u64,
    /// Calls by each caller.
    pub calls: u32,
    /// 1: all blocks post on queue pair 0; 0: block `b` posts on queue pair `b`.
    pub one_qp: u32,
}

/// `struct bp_post_result`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable, PartialEq, Eq)]
pub struct PostResult {
    /// 0, or the highest [`Code`](crate::wire::Code) of any call of the block.
    pub status: u32,
    /// Zero.
    pub reserved: u32,
    /// GPU wall clock when all blocks were there, ns.
    pub start_ns: u64,
    /// When the block's last call had returned.
    pub end_ns: u64,
    /// And when its stores had arrived.
    pub drained_ns: u64,
}

/// From one slot's word of [`StreamArgs`] to the next.
pub const STREAM_WORD_BYTES: usize = 64;
/// Slots of [`StreamArgs`] are multiples of it.
pub const STREAM_UNIT_BYTES: usize = 512;

/// `struct bp_stream_args`: a stream through a window with no protocol around it.
///
/// Slot `s` has in lap `n`, from 1, what lies at place `((n - 1) * slots + s) % places` of the source.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct StreamArgs {
    /// `slots * slot_bytes`, zeroed, in host memory.
    pub window: u64,
    /// Likewise, zeroed: a `u32` each [`STREAM_WORD_BYTES`], the laps in which the slot was stored.
    pub flags: u64,
    /// The same of those in which it was copied out, which the host writes.
    pub credits: u64,
    /// `places * place_bytes`, and a line behind them.
    pub src: u64,
    /// One [`LinkResult`] per block, zeroed: laps and sum stay 0.
    pub results: u64,
    /// Bound of each wait, ns; the first that reaches it ends its warp.
    pub limit_ns: u64,
    /// Slots of the window.
    pub slots: u32,
    /// A multiple of [`STREAM_UNIT_BYTES`].
    pub slot_bytes: u32,
    /// Laps of the window.
    pub laps: u32,
    /// Places of the source.
    pub places: u32,
    /// A multiple of 16, at least a slot's payload.
    pub place_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: the layout is the C struct's (asserted below, and compared field by field by a test).
unsafe impl KernelArgs for BenchArgs {}
// SAFETY: as for BenchArgs.
unsafe impl KernelArgs for AutoBenchArgs {}
// SAFETY: as for BenchArgs.
unsafe impl KernelArgs for BlocksBenchArgs {}
// SAFETY: as for BenchArgs.
unsafe impl KernelArgs for TurnsArgs {}
// SAFETY: as for BenchArgs.
unsafe impl KernelArgs for AutoTurnsArgs {}
// SAFETY: as for BenchArgs.
unsafe impl KernelArgs for AutoOpArgs {}
// SAFETY: as for BenchArgs.
unsafe impl KernelArgs for StoreArgs {}
// SAFETY: as for BenchArgs.
unsafe impl KernelArgs for TearArgs {}
// SAFETY: as for BenchArgs.
unsafe impl KernelArgs for LinkMoveArgs {}
// SAFETY: as for BenchArgs.
unsafe impl KernelArgs for LinkChaseArgs {}
// SAFETY: as for BenchArgs.
unsafe impl KernelArgs for LinkFlagArgs {}
// SAFETY: as for BenchArgs.
unsafe impl KernelArgs for LinkExchangeArgs {}
// SAFETY: as for BenchArgs.
unsafe impl KernelArgs for PostArgs {}
// SAFETY: as for BenchArgs.
unsafe impl KernelArgs for StreamArgs {}

const _: () = {
    assert!(size_of::<BenchArgs>() == 1632);
    assert!(size_of::<AutoBenchArgs>() == 3600);
    assert!(size_of::<BlocksBenchArgs>() == 296);
    assert!(size_of::<TurnsArgs>() == 264);
    assert!(size_of::<AutoTurnsArgs>() == 656);
    assert!(size_of::<AutoOpArgs>() == 880);
    assert!(size_of::<BenchResult>() == 40);
    assert!(size_of::<StoreArgs>() == 40);
    assert!(size_of::<TearArgs>() == 32);
    assert!(size_of::<LinkMoveArgs>() == 56);
    assert!(size_of::<LinkResult>() == 32);
    assert!(size_of::<LinkChaseArgs>() == 40);
    assert!(size_of::<LinkFlagArgs>() == 40);
    assert!(size_of::<LinkExchangeArgs>() == 64);
    assert!(size_of::<LinkExchangeState>() == 24);
    assert!(size_of::<PostArgs>() == 248);
    assert!(size_of::<PostResult>() == 32);
    assert!(size_of::<StreamArgs>() == 72);
};
