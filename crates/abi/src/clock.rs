//! `kernels/entry/clock.h`: what the host asks of the GPU's clock.

use bytemuck::{Pod, Zeroable};

use crate::KernelArgs;

/// `struct bp_clock_words`: question and answer, in mapped memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct ClockWords {
    /// The host's: the question's number, from 1.
    pub question: u32,
    /// Fills the line.
    pub pad: [u32; 15],
    /// The GPU's clock when it saw the question, in nanoseconds.
    pub ns: u64,
    /// Between two readings that differ, in nanoseconds; 0: they never did.
    pub step_ns: u32,
    /// The question that is answered, written last.
    pub answered: u32,
    /// Fills the line.
    pub fill: [u64; 6],
}

/// `struct bp_clock_args`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct ClockArgs {
    /// Address of the [`ClockWords`].
    pub words: u64,
    /// Bound of the kernel's waits together, in nanoseconds.
    pub limit_ns: u64,
    /// Number of questions.
    pub questions: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: the layout is the C struct's (asserted below, and compared field by field by a test).
unsafe impl KernelArgs for ClockArgs {}

const _: () = {
    assert!(size_of::<ClockWords>() == 128);
    assert!(size_of::<ClockArgs>() == 24);
};
