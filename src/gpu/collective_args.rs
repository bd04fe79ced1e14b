//! What the host hands to the collective kernels: mirrors of the structures in
//! `kernels/collective/collective.h`. A test compares sizes and offsets with the C side.

use bytemuck::{Pod, Zeroable};

use super::KernelArgs;

/// Bytes before a message's payload (`BP_COLL_HEADER_BYTES`).
pub const HEADER_BYTES: u64 = 64;
/// Messages of a stream on their way to a rank (`BP_COLL_DEPTH`).
pub const DEPTH: u64 = 4;
/// Bytes of `struct bp_coll_channel`, which only device code reads.
pub const CHANNEL_BYTES: usize = 128;
/// Bytes of `struct bp_coll_shared`.
pub const SHARED_BYTES: usize = 128;
/// Offset of `status` in `struct bp_coll_shared`.
pub const SHARED_STATUS: usize = 20;

/// Bytes of payload of a quick message at most (`BP_COLL_QUICK_BYTES`).
pub const QUICK_BYTES: u64 = 8192;
/// Slots of a stream of quick messages (`BP_COLL_QUICK_SLOTS`).
pub const QUICK_SLOTS: u64 = 2;
/// Bytes of a quick message's slot (`BP_COLL_QUICK_SLOT_BYTES`).
pub const QUICK_SLOT_BYTES: u64 = 11008;
/// Bytes of payload of all ranks' quick messages at most (`BP_COLL_QUICK_ALL_BYTES`).
pub const QUICK_ALL_BYTES: u64 = 8 * 4104;
/// Shared memory of a block (`BP_COLL_BLOCK_BYTES`).
pub const BLOCK_BYTES: u32 = (64 + 8 * 192 + QUICK_ALL_BYTES + QUICK_SLOT_BYTES) as u32;

/// `struct bp_coll_call`: what a rank calls.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct CollCall {
    /// Number of the call.
    pub call: u64,
    /// Elements that are reduced.
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

/// `struct bp_coll_status`: why a call ended. Device code writes it, the host reads it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct CollStatus {
    /// `enum bp_coll_code`; written last.
    pub code: u32,
    /// The rank that it is about.
    pub rank: u32,
    /// The call.
    pub own: CollCall,
    /// What that rank calls, where ranks differ.
    pub said: CollCall,
}

/// `struct bp_coll_args`: one all-reduce of one rank.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct CollArgs {
    /// Address of the elements.
    pub input: u64,
    /// Address of the results.
    pub output: u64,
    /// Elements of a channel, but the last ones': whole 16 bytes.
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
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Payload that a slot holds.
    pub chunk_bytes: u32,
    /// 1: a negative control, slots are read without waiting for them.
    pub unwaited: u8,
    /// 1: the kernel behind may begin beside this one.
    pub early: u8,
    /// Channels that the communicator has.
    pub all_channels: u16,
    /// [`super::args::DeviceEndpoint`] by channel and rank.
    pub endpoints: u64,
    /// `struct bp_coll_channel` by channel.
    pub channel_state: u64,
    /// `struct bp_coll_shared`.
    pub shared: u64,
    /// Two of [`CollStatus`]: where ranks differ, and what ended the communicator.
    pub status: u64,
    /// Address of this rank's region.
    pub region: u64,
    /// Offset in a region: why each rank gave up.
    pub reports: u64,
    /// Offset in a region: quick messages by channel and rank.
    pub quick_slots: u64,
    /// Offset in a region: messages that each rank has sent, by channel.
    pub exchange_signals: u64,
    /// Offset in a region: messages that the rank before has sent round, by channel.
    pub ring_signals: u64,
    /// Offset in a region: slots by channel and rank.
    pub exchange_slots: u64,
    /// Offset in a region: slots of the ring, by channel.
    pub ring_slots: u64,
    /// Address of the slots to send quick messages from.
    pub quick_stage: u64,
    /// Address of the slots to send from.
    pub stage: u64,
    /// Payload of a message of this call at most.
    pub piece_bytes: u64,
    /// Bound of each wait, in ns.
    pub timeout_ns: u64,
    /// How long a rank that gives up listens for the others' reasons, in ns.
    pub grace_ns: u64,
}

// SAFETY: the layout is the C struct's (asserted below, compared field by field by a test).
unsafe impl KernelArgs for CollArgs {}

const _: () = {
    assert!(size_of::<CollCall>() == 32);
    assert!(size_of::<CollStatus>() == 72);
    assert!(size_of::<CollArgs>() == 192);
};
