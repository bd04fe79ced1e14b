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
    /// `bp::fence` between two puts; of auto endpoints only.
    Fence = 11,
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
    /// Operand of atomics and signals; ticket of `Test`; bits of a warp's active lanes of `PutLanes`; messages of each
    /// call of `PutBatch`.
    pub value: u64,
    /// Compare operand; bytes that each lane of `PutLanes` puts more than the lane before it.
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

// SAFETY: the layout is the C struct's (asserted below, and compared field by field by a test).
unsafe impl KernelArgs for OpArgs {}

const _: () = {
    assert!(size_of::<OpArgs>() == 288);
};
