//! Arguments of the collective kernels: mirrors of the structures in `kernels/collective/collective.h`. A test
//! compares sizes and offsets with the C side.

use bytemuck::{Pod, Zeroable};

use crate::KernelArgs;

/// Bytes before a message's payload (`BP_COLL_HEADER_BYTES`).
pub const HEADER_BYTES: u64 = 64;
/// Messages of a stream that may be outstanding to a rank (`BP_COLL_DEPTH`).
pub const DEPTH: u64 = 4;
/// Bytes of `struct bp_coll_channel`, which only device code reads.
pub const CHANNEL_BYTES: usize = 128;
/// Bytes of `struct bp_coll_shared`.
pub const SHARED_BYTES: usize = 128;
/// Offset of `status` in `struct bp_coll_shared`.
pub const SHARED_STATUS: usize = 20;

/// Largest payload of an LL message, in bytes (`BP_COLL_LL_BYTES`).
pub const LL_BYTES: u64 = 8192;
/// Slots per stream of LL messages (`BP_COLL_LL_SLOTS`).
pub const LL_SLOTS: u64 = 2;
/// Bytes of an LL message's slot (`BP_COLL_LL_SLOT_BYTES`).
pub const LL_SLOT_BYTES: u64 = 11008;
/// Largest total payload of all ranks' LL messages, in bytes (`BP_COLL_LL_ALL_BYTES`).
pub const LL_ALL_BYTES: u64 = 8 * 4104;
/// Shared memory of a block (`BP_COLL_BLOCK_BYTES`).
pub const BLOCK_BYTES: u32 = (64 + 8 * 192 + LL_ALL_BYTES + LL_SLOT_BYTES) as u32;

/// `struct bp_coll_call`: the parameters of a rank's call.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct CollCall {
    /// Number of the call, from 0.
    pub call: u64,
    /// Number of elements to reduce.
    pub count: u64,
    /// `enum bp_coll_dtype`.
    pub dtype: u32,
    /// `enum bp_coll_op`.
    pub op: u32,
    /// `enum bp_coll_algorithm`.
    pub algorithm: u32,
    /// Channels that the call uses.
    pub channels: u32,
}

/// `struct bp_coll_status`: the failure that ended a call. Device code writes it, the host reads
/// it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct CollStatus {
    /// `enum bp_coll_code`; device code writes it last.
    pub code: u32,
    /// Rank that the status concerns.
    pub rank: u32,
    /// The call of this rank.
    pub own: CollCall,
    /// The call of that rank, where calls differ.
    pub said: CollCall,
}

/// `struct bp_coll_args`: one all-reduce of one rank. Addresses are the GPU's.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct CollArgs {
    /// Address of the elements.
    pub input: u64,
    /// Address of the results.
    pub output: u64,
    /// Elements per channel, except the last ones: a multiple of 16 bytes.
    pub share: u64,
    /// Number of elements.
    pub count: u64,
    /// `enum bp_coll_dtype`.
    pub dtype: u32,
    /// `enum bp_coll_op`.
    pub op: u32,
    /// `enum bp_coll_algorithm`.
    pub algorithm: u32,
    /// Channels of the call.
    pub channels: u32,
    /// This rank, from 0.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Payload capacity of a slot, bytes.
    pub chunk_bytes: u32,
    /// 1: a negative control, slots are read without a wait.
    pub unwaited: u8,
    /// 1: the next kernel may start before this one has ended.
    pub early: u8,
    /// Number of channels of the communicator.
    pub all_channels: u16,
    /// Address of the [`crate::wire::DeviceEndpoint`]s, by channel and rank.
    pub endpoints: u64,
    /// Address of the `struct bp_coll_channel`s, by channel.
    pub channel_state: u64,
    /// Address of the `struct bp_coll_shared`.
    pub shared: u64,
    /// Address of two [`CollStatus`]: a mismatch of calls, and the failure that ended the
    /// communicator.
    pub status: u64,
    /// Address of this rank's region.
    pub region: u64,
    /// Offset in a region: each rank's reason to give up.
    pub reports: u64,
    /// Offset in a region: slots of LL messages, by channel and rank.
    pub ll_slots: u64,
    /// Offset in a region: number of messages that each rank has sent, by channel.
    pub all_to_all_signals: u64,
    /// Offset in a region: number of ring messages that the preceding rank has sent, by channel.
    pub ring_signals: u64,
    /// Offset in a region: slots, by channel and rank.
    pub all_to_all_slots: u64,
    /// Offset in a region: slots of the ring, by channel.
    pub ring_slots: u64,
    /// Address of the slots from which LL messages are sent.
    pub ll_stage: u64,
    /// Address of the slots from which other messages are sent.
    pub stage: u64,
    /// Largest payload of a message of this call, bytes.
    pub piece_bytes: u64,
    /// Bound of each wait, ns.
    pub timeout_ns: u64,
    /// Time for which a rank that gives up listens for the others' reasons, ns.
    pub grace_ns: u64,
}

// SAFETY: the layout is the C struct's (asserted below, and compared field by field by a test).
unsafe impl KernelArgs for CollArgs {}

const _: () = {
    assert!(size_of::<CollCall>() == 32);
    assert!(size_of::<CollStatus>() == 72);
    assert!(size_of::<CollArgs>() == 192);
};
