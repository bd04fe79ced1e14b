//! `kernels/entry/peers.h`: what the host requests of a table of peers.

use bytemuck::{Pod, Zeroable};

use crate::KernelArgs;
use crate::wire::DevicePeers;

/// `enum bp_peers_op`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeersOp {
    /// `bp::quiet_all`.
    Quiet = 0,
    /// `bp::sync_all`.
    Sync = 1,
    /// `bp::barrier_all`.
    Barrier = 2,
    /// Every rank's chunk to all regions, round the ring of ranks.
    AllGather = 3,
}

/// `struct bp_peers_status`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct PeersStatus {
    /// A [`Code`](crate::wire::Code); device code writes it last.
    pub code: u32,
    /// The rank that it concerns.
    pub whom: u32,
}

/// `struct bp_peers_args`: one operation, `count` times.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct PeersArgs {
    /// The table.
    pub peers: DevicePeers,
    /// A [`PeersOp`].
    pub op: u32,
    /// A [`Scope`](crate::entry::Scope), of which the grid's first calls.
    pub scope: u32,
    /// All-gather: this rank's region.
    pub local: u64,
    /// All-gather: bytes of a chunk.
    pub bytes: u64,
    /// Address of the [`PeersStatus`].
    pub status: u64,
    /// Calls.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: the layout is the C struct's (asserted below, and compared field by field by a test).
unsafe impl KernelArgs for PeersArgs {}

const _: () = {
    assert!(size_of::<PeersStatus>() == 8);
    assert!(size_of::<PeersArgs>() == 88);
};
