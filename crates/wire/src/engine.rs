//! What host and engine share when an engine runs on a GPU: mirrors of the structures in
//! `kernels/engine/engine.h`, in the machine's byte order. A test compares sizes and offsets with the C side.

use bytemuck::{Pod, Zeroable};

/// Queue pairs of a block of the engine.
pub const BLOCK_QPS: usize = 32;
/// Keys of a NIC that an engine knows.
pub const TABLE_KEYS: usize = 4096;
/// Bytes of `struct bp_engine_board`, and of a job behind it.
pub const BOARD_BYTES: usize = 128;
/// Offset of the epoch on the board.
pub const BOARD_EPOCH: usize = 0;
/// Offset of the word on the board that ends the engine.
pub const BOARD_STOP: usize = 8;
/// Shared memory of a block, beside the stream of a slot.
pub const SHARED_BYTES: u32 = 24576;
/// Longest in-band slot that an engine on a GPU takes.
pub const MAX_SLOT_BYTES: u32 = 64 << 10;

/// Offsets in the context and the record of `kernels/engine/engine.h`.
pub const CONTEXT_ASKED: usize = 0;
/// Where a context's fixed part begins; its state follows.
pub const CONTEXT_FIXED: usize = 128;
/// Bytes of `struct bp_qpc`.
pub const CONTEXT_BYTES: usize = 384;
/// Where a record says which grant was returned.
pub const RECORD_RETURNED: usize = 0;
/// Where a record's state begins.
pub const RECORD_STATE: usize = 128;
/// Bytes of `struct bp_qpc_record`.
pub const RECORD_BYTES: usize = 256;

/// `enum bp_return`: why the engine returned a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Why {
    /// The host asked for it.
    Asked = 0,
    /// A WQE, a slot or a BlueFlame buffer that it does not carry out.
    Wqe = 1,
    /// A key, range or right that it does not find.
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

/// `struct bp_key`: a memory region.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Key {
    /// Where the engine's GPU reaches the first byte.
    pub va: u64,
    /// Its address in WQEs.
    pub iova: u64,
    /// Length.
    pub bytes: u64,
    /// The key; 0: none. Written last, cleared first.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// What the region allows: bit 0 gather, 1 local write, 2 remote write, 3 read, 4 atomic; and
    /// [`KEY_NEAR`].
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

/// `struct bp_qpc_state`: where a send queue stands.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub struct State {
    /// Basic blocks taken.
    pub ci: u64,
    /// Basic blocks known to be posted.
    pub producer: u64,
    /// UAR registers as last seen.
    pub registers: [u64; 2],
    /// In-band: the next slot's ticket.
    pub ticket: u64,
    /// Producer index of the send CQ.
    pub cq_pi: u64,
    /// Its consumer index as last read.
    pub cq_ci: u64,
    /// WQEs that the engine has carried out since the context was first granted.
    pub wqes: u64,
    /// Their payload.
    pub bytes: u64,
    /// Those of them that came in slots.
    pub inband: u64,
    /// Those of them that came by BlueFlame.
    pub blueflame: u64,
    /// UAR registers seen to change.
    pub doorbells: u64,
    /// Doorbell record as last seen.
    pub dbr_seen: u32,
    /// [`Why`] it was returned.
    pub why: u32,
    /// Zero.
    pub reserved: [u64; 3],
}

/// `struct bp_qpc_fixed`: what a queue pair is made of, at the addresses of the engine's GPU.
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
    /// Its doorbell record.
    pub cq_dbr: u64,
    /// In-band window.
    pub window: u64,
    /// Keys of this end's NIC.
    pub keys: u64,
    /// Keys of the peer's.
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
    /// What the peer allows through its queue pair, as [`Key::rights`].
    pub peer_rights: u32,
    /// 1: WQEs come in the UAR's second buffer.
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
