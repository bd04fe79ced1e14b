//! Argument of the engine's kernel: mirror of `struct bp_engine_args` in `kernels/engine/engine.h`.

use bytemuck::{Pod, Zeroable};

use super::KernelArgs;

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
