//! `kernels/entry/args.h`: the verbs that the host requests.

use bytemuck::{Pod, Zeroable};

use crate::KernelArgs;
use crate::wire::DeviceEndpoint;

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
    /// `bp::put` of `lanes_scope`: every thread is a caller.
    PutLanes = 9,
    /// `bp::put_strided`.
    PutBatch = 10,
    /// `bp::put_signal` of `signal_set`. This and what follows: `kernels/entry/extra.cu`.
    PutSet = 11,
    /// `bp::signal` of `signal_add`, at the remote offset.
    SignalAdd = 12,
    /// `bp::signal` of `signal_set`.
    SignalSet = 13,
    /// `bp::put_value` of as many bytes.
    PutValue = 14,
    /// `bp::put` on `bp::within`, of `compare` ns.
    PutWithin = 15,
    /// `bp::wait` on `bp::within`, of `compare` ns.
    WaitWithin = 16,
    /// `bp::wait_local`.
    WaitLocal = 17,
    /// `bp::fence` of the endpoint and another; of an auto endpoint, between two puts.
    Fence = 18,
    /// `bp::posted` and `bp::completed`.
    CountTickets = 19,
    /// `bp::put_imm` of `value`.
    PutImm = 20,
    /// `bp::signal` of `signal_imm`, of `value`.
    SignalImm = 21,
    /// `bp::put` of `blocks_scope`: all blocks together.
    PutBlocks = 22,
    /// `bp::put_signal` of `blocks_scope` and `signal_add`.
    PutSignalBlocks = 23,
    /// `bp::put_vector` of `value` messages, whose list lies at `compare`.
    PutVector = 24,
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
    /// A [`Scope`]; of `PutBlocks` the first block's rank.
    pub scope: u32,
    /// Calls by each caller.
    pub count: u32,
    /// `bp::flags`.
    pub flags: u32,
    /// Offset into the peer's region of the first call.
    pub remote_offset: u64,
    /// Increment of `remote_offset` from call to call.
    pub remote_stride: u64,
    /// Source, destination or result of the first call; 0 for none. Of `Fence` another [`DeviceEndpoint`], of
    /// `CountTickets` two `u64`.
    pub local: u64,
    /// Increment of `local` from call to call.
    pub local_stride: u64,
    /// Bytes of each call.
    pub bytes: u64,
    /// Operand of atomics and signals; ticket of `Test`; bits of a warp's active lanes of `PutLanes`; messages of each
    /// call of `PutBatch`; the first 8 bytes of `PutValue`; ticket of `WaitWithin` and `WaitLocal`.
    pub value: u64,
    /// Compare operand; bytes that each lane of `PutLanes` puts more than the lane before it; the last 8 of `PutValue`;
    /// nanoseconds of `PutWithin` and `WaitWithin`; address of a `bp::blocks_state` of `PutBlocks`,
    /// of the list of `PutVector`.
    pub compare: u64,
    /// Offset of the signal word in the peer's region.
    pub signal_offset: u64,
    /// One `u32` per caller: the first status other than `BP_OK`.
    pub status: u64,
    /// Whether each caller ends with a `quiet`.
    pub quiet_after: u32,
    /// Blocks of `PutBlocks` that are not of this grid.
    pub others: u32,
    /// A `u32` that is not 0 once a call has failed, or 0. A block's calls, but `Quiet`, are then `BP_FLUSHED`.
    pub failed: u64,
}

// SAFETY: the layout is the C struct's (asserted below, and compared field by field by a test).
unsafe impl KernelArgs for OpArgs {}

/// `enum bp_watch`: the verbs that look at signal words.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// `bp::test_signal`.
    Test = 0,
    /// `bp::wait_signal`.
    Wait = 1,
    /// `bp::wait_signal_all`.
    All = 2,
    /// `bp::wait_signal_any`.
    Any = 3,
    /// `bp::wait_signal_some`.
    Some = 4,
}

/// `enum bp_cmp`: how a signal word compares with a value.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cmp {
    /// Equal.
    Eq = 0,
    /// Not equal.
    Ne = 1,
    /// Greater.
    Gt = 2,
    /// At least.
    Ge = 3,
    /// Less.
    Lt = 4,
    /// At most.
    Le = 5,
}

/// `struct bp_watch_args`: one look at signal words, or wait for them, by every caller.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct WatchArgs {
    /// The endpoint.
    pub ep: DeviceEndpoint,
    /// A [`Watch`].
    pub watch: u32,
    /// A [`Scope`].
    pub scope: u32,
    /// A [`Cmp`].
    pub cmp: u32,
    /// Words.
    pub n: u32,
    /// Address of `n` words of 8 bytes; of `Test` and `Wait` of one.
    pub words: u64,
    /// Address of `n` words of 4 bytes: those that are not 0 are passed over; 0 for none.
    pub skip: u64,
    /// What the words are compared with.
    pub value: u64,
    /// Address of `n + 1` `u32` per caller: of `Any` the index; of `Some` how many, and the indices behind it.
    pub found: u64,
    /// One `u32` per caller: its status.
    pub status: u64,
}

// SAFETY: the layout is the C struct's (asserted below, and compared field by field by a test).
unsafe impl KernelArgs for WatchArgs {}

const _: () = {
    assert!(size_of::<OpArgs>() == 296);
    assert!(size_of::<WatchArgs>() == 248);
};
