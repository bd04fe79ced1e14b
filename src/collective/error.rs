//! What can go wrong with a collective.

use super::{Algorithm, Dtype, Op};
use crate::gpu::GpuError;
use crate::mem::MemError;
use crate::transport;

/// What a rank calls: the part that all ranks must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Elements.
    pub count: u64,
    /// Their type.
    pub dtype: Dtype,
    /// The operation.
    pub op: Op,
    /// Who sends what to whom.
    pub algorithm: Algorithm,
    /// Channels that it is spread over.
    pub channels: u32,
}

impl Call {
    /// Elements of a channel, but for the last ones: whole units of 16 bytes.
    pub(super) fn share(&self) -> u64 {
        self.count.div_ceil(self.channels.into()).next_multiple_of(16 / self.dtype.bytes())
    }

    /// Blocks of its launch: one sends and one receives where everyone sends to everyone in several messages.
    pub(super) fn blocks(&self) -> u32 {
        match self.algorithm {
            Algorithm::OneShot | Algorithm::TwoShot => 2 * self.channels,
            Algorithm::Ring | Algorithm::Quick => self.channels,
        }
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, dtype, op, algorithm, channels } = self;
        write!(f, "{op} of {count} {dtype} ({algorithm}, {channels} channels)")
    }
}

/// Why a communicator refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An endpoint refused something.
    #[error(transparent)]
    Transport(#[from] transport::Error),
    /// The GPU refused something.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Memory trouble.
    #[error(transparent)]
    Memory(#[from] MemError),
    /// A name that is no name.
    #[error("'{given}' is not an {what}: it is one of {known}")]
    Unknown {
        /// What the name should have been one of.
        what: &'static str,
        /// What was given.
        given: String,
        /// What is known.
        known: String,
    },
    /// An option out of range.
    #[error("{what} is {value}, but must be {must}")]
    Option {
        /// The option.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is accepted.
        must: &'static str,
    },
    /// A rank was made with other options than this one.
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
    /// Elements that leave their memory.
    #[error("{count} {dtype} at offset {offset} leave the {which} of {len} bytes")]
    Range {
        /// `input` or `output`.
        which: &'static str,
        /// Number of elements.
        count: u64,
        /// Their type.
        dtype: Dtype,
        /// Offset of the first.
        offset: u64,
        /// Length of the memory.
        len: u64,
    },
    /// Elements at an address that is no multiple of their size.
    #[error("the {which} begins at address {address:#x}: {dtype} needs a multiple of {}", .dtype.bytes())]
    Misaligned {
        /// `input` or `output`.
        which: &'static str,
        /// The address.
        address: u64,
        /// Type of the elements.
        dtype: Dtype,
    },
    /// Input and output share memory without being the same.
    #[error("input and output overlap in part: take the same memory for both, or memory apart")]
    Overlap,
    /// A stream or memory of another GPU than the communicator's.
    #[error("the {what} belongs to another GPU than the communicator")]
    OtherGpu {
        /// The object.
        what: &'static str,
    },
    /// Calls on two streams, which nothing orders.
    #[error(
        "calls were made on another stream and have not been waited for: synchronise the communicator there first"
    )]
    OtherStream,
    /// Calls were ended where they stood, or go on where nobody can wait for them.
    #[error("the stream of earlier calls was dropped before they were done")]
    Abandoned,
    /// A rank did not send what the others waited for.
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
        /// Why the queue pair ended, if it did.
        why: Option<transport::Error>,
    },
    /// Ranks that call different things. Nothing was reduced; the communicator goes on.
    #[error("in call {call} rank {rank} calls {theirs}, this rank {ours}")]
    Mismatch {
        /// The first rank that differs from this one.
        rank: u32,
        /// The call, counted from 0.
        call: u64,
        /// What it calls.
        theirs: Call,
        /// What this rank calls.
        ours: Call,
    },
    /// The others gave up waiting for this rank.
    #[error("this rank came too late to call {call}: rank {rank} gave up waiting for it")]
    Late {
        /// One that gave up.
        rank: u32,
        /// The call, counted from 0.
        call: u64,
    },
    /// A message that is not the one that its signal announced.
    #[error("in call {call} a message of rank {rank} is not the one that was announced")]
    Corrupt {
        /// Who sent it.
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
