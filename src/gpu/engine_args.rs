//! The argument of the engine's kernel: mirror of `struct bp_engine_args` in `kernels/engine/engine.h`.

use bytemuck::{Pod, Zeroable};

use super::KernelArgs;

/// `struct bp_engine_args`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct EngineArgs {
    /// `struct bp_engine_board`, and a job a block behind it.
    pub board: u64,
    /// `struct bp_qpc` by slot.
    pub contexts: u64,
    /// `struct bp_qpc_record` by slot.
    pub records: u64,
    /// The last epoch that each block confirmed.
    pub answers: u64,
    /// How long a launch runs, in ns.
    pub run_ns: u64,
    /// How often it looks at everything; 0: as often as it can.
    pub rounds: u32,
    /// Longest in-band slot.
    pub slot_bytes: u32,
}

const _: () = assert!(size_of::<EngineArgs>() == 48);

// SAFETY: the layout is the C struct's (its size is asserted on both sides).
unsafe impl KernelArgs for EngineArgs {}
