//! Layouts that host and GPU engine share: mirrors of the structures in `kernels/engine/engine.h`, in the
//! machine's byte order. A test compares sizes and offsets with the C side.

use bytemuck::{Pod, Zeroable};

use crate::KernelArgs;

/// Queue pairs that one thread block of the engine serves.
pub const BLOCK_QPS: usize = 32;
/// Largest number of memory keys of a NIC that an engine has room for.
pub const TABLE_KEYS: usize = 4096;
/// Bytes of `struct bp_engine_control_block`, and of each job that follows it.
pub const CONTROL_BLOCK_BYTES: usize = 128;
/// Offset of the epoch on the control block.
pub const CONTROL_BLOCK_EPOCH: usize = 0;
/// Offset of the word on the control block that ends the engine.
pub const CONTROL_BLOCK_STOP: usize = 8;
/// Shared memory of a thread block, without the buffer for a slot's data stream.
pub const SHARED_BYTES: u32 = 24576;
/// Longest in-band slot that the GPU engine accepts, in bytes.
pub const MAX_SLOT_BYTES: u32 = 64 << 10;

/// Offset of the requested grant in `struct bp_qpc`.
pub const CONTEXT_ASKED: usize = 0;
/// Offset of a context's fixed part, which the state follows.
pub const CONTEXT_FIXED: usize = 128;
/// Bytes of `struct bp_qpc`.
pub const CONTEXT_BYTES: usize = 384;
/// Offset of the returned grant in `struct bp_qpc_record`.
pub const RECORD_RETURNED: usize = 0;
/// Offset of the state in a record.
pub const RECORD_STATE: usize = 128;
/// Bytes of `struct bp_qpc_record`.
pub const RECORD_BYTES: usize = 256;

/// `enum bp_return`: why the engine returned a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Why {
    /// The host asked for the queue pair.
    Asked = 0,
    /// The engine does not execute this kind of WQE, slot or BlueFlame buffer.
    Wqe = 1,
    /// The engine found no key, range or right for an access.
    Key = 2,
    /// The send CQ is full.
    CqFull = 3,
}

/// `enum bp_qpc_line`: how the slots of an in-band queue pair are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Line {
    /// Not in-band.
    None = 0,
    /// 12 bytes of data, 4 of sequence.
    L12S4 = 1,
    /// 14 bytes of data, 2 of sequence.
    L14S2 = 2,
    /// 60 bytes of data, 4 of sequence.
    L60S4 = 3,
}

/// `struct bp_key`: a memory region, as the engine sees it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Key {
    /// Address of the first byte in the engine's GPU.
    pub va: u64,
    /// Address of the first byte in WQEs (IOVA).
    pub iova: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The memory key; 0 for a free entry. The host writes it last and clears it first.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// Rights of the region: bit 0 gather, 1 local write, 2 remote write, 3 remote read, 4 remote
    /// atomic; and [`KEY_NEAR`].
    pub rights: u32,
    /// Zero.
    pub reserved: u32,
    /// Zero.
    pub reserved2: [u64; 3],
}

/// In [`Key::rights`]: the region is memory of the engine's own GPU.
pub const KEY_NEAR: u32 = 32;
/// Offset of [`Key::key`].
pub const KEY_KEY: usize = 24;

/// `struct bp_qpc_state`: the progress of a send queue.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct State {
    /// Consumer index: basic blocks taken.
    pub ci: u64,
    /// Producer index: basic blocks known to be posted.
    pub producer: u64,
    /// UAR registers as last read.
    pub registers: [u64; 2],
    /// In-band: ticket of the next slot.
    pub ticket: u64,
    /// Producer index of the send CQ.
    pub cq_pi: u64,
    /// Consumer index of the send CQ, as last read.
    pub cq_ci: u64,
    /// WQEs that the engine has executed since the context was first granted.
    pub wqes: u64,
    /// Payload bytes of these WQEs.
    pub bytes: u64,
    /// WQEs among them that arrived in in-band slots.
    pub inband: u64,
    /// WQEs among them that arrived by BlueFlame.
    pub blueflame: u64,
    /// Number of changes seen in UAR registers.
    pub doorbells: u64,
    /// Doorbell record as last read.
    pub dbr_seen: u32,
    /// Reason of the return: a [`Why`].
    pub why: u32,
    /// Zero.
    pub reserved: [u64; 3],
}

/// `struct bp_qpc_fixed`: the memory and the attributes of a queue pair. Addresses are those of the
/// engine's GPU.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Fixed {
    /// Send queue.
    pub sq: u64,
    /// Doorbell record.
    pub dbr: u64,
    /// UAR page.
    pub uar: u64,
    /// Send CQ.
    pub cq: u64,
    /// Doorbell record of the send CQ.
    pub cq_dbr: u64,
    /// In-band window.
    pub window: u64,
    /// Key table of this end's NIC.
    pub keys: u64,
    /// Key table of the peer's NIC.
    pub peer_keys: u64,
    /// Queue pair number.
    pub qpn: u32,
    /// Protection domain.
    pub pd: u32,
    /// User index of CQEs.
    pub uidx: u32,
    /// Basic blocks of the send queue.
    pub sq_blocks: u32,
    /// Entries of the send CQ.
    pub cqes: u32,
    /// The peer's protection domain.
    pub peer_pd: u32,
    /// Rights that the peer grants through its queue pair, as in [`Key::rights`].
    pub peer_rights: u32,
    /// 1: WQEs arrive in the UAR's second BlueFlame buffer.
    pub blueflame: u32,
    /// A [`Line`].
    pub line: u32,
    /// Bytes of a slot.
    pub slot_bytes: u32,
    /// Number of slots.
    pub slots: u32,
    /// Sequence of the first lap.
    pub seq0: u32,
    /// Zero.
    pub reserved: [u32; 4],
}

const _: () = {
    assert!(size_of::<Key>() == 64);
    assert!(size_of::<State>() == 128);
    assert!(size_of::<Fixed>() == 128);
    assert!(CONTEXT_FIXED + size_of::<Fixed>() + size_of::<State>() == CONTEXT_BYTES);
    assert!(RECORD_STATE + size_of::<State>() == RECORD_BYTES);
    assert!(std::mem::offset_of!(Key, key) == KEY_KEY);
};

/// `struct bp_engine_args`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct EngineArgs {
    /// Address of the `struct bp_engine_control_block`, followed by one job per block.
    pub control: u64,
    /// Address of the `struct bp_qpc`s, by slot.
    pub contexts: u64,
    /// Address of the `struct bp_qpc_record`s, by slot.
    pub records: u64,
    /// Address of the last epoch that each block has confirmed.
    pub answers: u64,
    /// Duration of a launch, ns.
    pub run_ns: u64,
    /// Number of rounds over all queue pairs; 0: as many as fit into `run_ns`.
    pub rounds: u32,
    /// Longest in-band slot, bytes.
    pub slot_bytes: u32,
}

const _: () = assert!(size_of::<EngineArgs>() == 48);

// SAFETY: the layout is the C struct's (its size is asserted on both sides).
unsafe impl KernelArgs for EngineArgs {}
