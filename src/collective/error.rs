//! Errors of collectives.

use super::{Algorithm, Dtype, Op};
use crate::gpu::GpuError;
use crate::mem::MemError;
use crate::transport;

/// The parameters of a call that all ranks must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Number of elements.
    pub count: u64,
    /// Type of the elements.
    pub dtype: Dtype,
    /// The operation.
    pub op: Op,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Number of channels.
    pub channels: u32,
}

impl Call {
    /// Elements of each channel but the last: a multiple of 16 bytes.
    pub(super) fn share(&self) -> u64 {
        self.count.div_ceil(self.channels.into()).next_multiple_of(16 / self.dtype.bytes())
    }

    /// Blocks of the launch. With several one-shot or two-shot messages, one block per channel
    /// sends and one receives.
    pub(super) fn blocks(&self) -> u32 {
        match self.algorithm {
            Algorithm::OneShot | Algorithm::TwoShot => 2 * self.channels,
            Algorithm::Ring | Algorithm::Ll => self.channels,
        }
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, dtype, op, algorithm, channels } = self;
        write!(f, "{op} of {count} {dtype} ({algorithm}, {channels} channels)")
    }
}

/// Reason of a refusal or failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An endpoint refused a request.
    #[error(transparent)]
    Transport(#[from] transport::Error),
    /// The GPU refused a request.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Memory could not be allocated or accessed.
    #[error(transparent)]
    Memory(#[from] MemError),
    /// A name is unknown.
    #[error("'{given}' is not an {what}: it is one of {known}")]
    Unknown {
        /// Kind of the name.
        what: &'static str,
        /// The given name.
        given: String,
        /// The known names.
        known: String,
    },
    /// An option is out of range.
    #[error("{what} is {value}, but must be {must}")]
    Option {
        /// The option.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The accepted values.
        must: &'static str,
    },
    /// Another rank was created with different options.
    #[error("rank {rank} has {what} {theirs}, this rank {ours}: all ranks need the same")]
    Differs {
        /// The other rank.
        rank: u32,
        /// The option.
        what: &'static str,
        /// Its value there.
        theirs: String,
        /// Its value here.
        ours: String,
    },
    /// The elements reach beyond their memory.
    #[error("{count} {dtype} at offset {offset} leave the {which} of {len} bytes")]
    Range {
        /// `input` or `output`.
        which: &'static str,
        /// Number of elements.
        count: u64,
        /// Their type.
        dtype: Dtype,
        /// Byte offset of the first element.
        offset: u64,
        /// Bytes of the memory.
        len: u64,
    },
    /// The address of the elements is not a multiple of their size.
    #[error("the {which} begins at address {address:#x}: {dtype} needs a multiple of {}", .dtype.bytes())]
    Misaligned {
        /// `input` or `output`.
        which: &'static str,
        /// The address.
        address: u64,
        /// Type of the elements.
        dtype: Dtype,
    },
    /// Input and output overlap without being equal.
    #[error("input and output overlap in part: take the same memory for both, or memory apart")]
    Overlap,
    /// A stream or memory belongs to another GPU than the communicator's.
    #[error("the {what} belongs to another GPU than the communicator")]
    OtherGpu {
        /// The object.
        what: &'static str,
    },
    /// Calls on another stream are outstanding, and nothing orders the two streams.
    #[error(
        "calls were made on another stream and have not been waited for: synchronise the communicator there first"
    )]
    OtherStream,
    /// The stream of earlier calls was dropped: they were cancelled, or can no longer be waited
    /// for.
    #[error("the stream of earlier calls was dropped before they were done")]
    Abandoned,
    /// A rank did not send an awaited message.
    #[error("rank {rank} did not answer within {ms} ms, in call {call}")]
    Silent {
        /// The rank.
        rank: u32,
        /// The call, counted from 0.
        call: u64,
        /// The timeout.
        ms: u128,
    },
    /// The connection to a rank failed.
    #[error("the connection to rank {rank} failed in call {call}{}", because(.why))]
    Link {
        /// The rank.
        rank: u32,
        /// The call, counted from 0.
        call: u64,
        /// The failure of the queue pair, if it has one.
        why: Option<transport::Error>,
    },
    /// Ranks made different calls. Nothing was reduced; the communicator continues.
    #[error("in call {call} rank {rank} calls {theirs}, this rank {ours}")]
    Mismatch {
        /// The first rank that differs from this one.
        rank: u32,
        /// The call, counted from 0.
        call: u64,
        /// Its call.
        theirs: Call,
        /// This rank's call.
        ours: Call,
    },
    /// Other ranks gave up waiting for this rank.
    #[error("this rank came too late to call {call}: rank {rank} gave up waiting for it")]
    Late {
        /// One of these ranks.
        rank: u32,
        /// The call, counted from 0.
        call: u64,
    },
    /// A message is not the one that its signal announced.
    #[error("in call {call} a message of rank {rank} is not the one that was announced")]
    Corrupt {
        /// Its sender.
        rank: u32,
        /// The call, counted from 0.
        call: u64,
    },
    /// An earlier failure ended the communicator.
    #[error("the communicator has ended: {why}")]
    Ended {
        /// The failure.
        why: String,
    },
}

fn because(why: &Option<transport::Error>) -> String {
    why.as_ref().map(|e| format!(": {e}")).unwrap_or_default()
}
