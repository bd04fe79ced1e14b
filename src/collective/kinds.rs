//! What is reduced, and how: element types, operations, algorithms.

use std::fmt;
use std::str::FromStr;

use super::Error;
use crate::gpu::collective_args::{QUICK_ALL_BYTES, QUICK_BYTES};

/// Type of the elements. The discriminants are `enum bp_coll_dtype`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32 = 0,
    /// IEEE 754 binary16; added up in binary32 and rounded once.
    F16 = 1,
    /// bfloat16; added up in binary32 and rounded once.
    Bf16 = 2,
    /// Two's complement of 32 bits.
    I32 = 3,
}

/// Operation on the elements of all ranks. The discriminants are `enum bp_coll_op`'s.
///
/// A NaN among the elements makes the result the canonical quiet NaN; maximum and minimum are those
/// of IEEE 754-2019 (9.6), where -0 is less than +0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Op {
    /// Sum; of [`Dtype::I32`] modulo 2³².
    Sum = 0,
    /// Largest.
    Max = 1,
    /// Smallest.
    Min = 2,
    /// Sum by number of ranks, infinite where the sum is; of [`Dtype::I32`] the exact quotient, truncated toward zero.
    Mean = 3,
}

/// Who sends what to whom. The discriminants are `enum bp_coll_algorithm`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Algorithm {
    /// Everyone sends everything to everyone: (N - 1) n bytes a rank, one step.
    OneShot = 0,
    /// Everyone reduces a part and sends it to everyone: 2 (N - 1) / N n bytes, two steps.
    TwoShot = 1,
    /// Parts go round a ring twice: 2 (N - 1) / N n bytes, to one neighbour, 2 (N - 1) steps. Partial
    /// results of f16 and bf16 travel as f32, those of an i32 mean in 64 bits.
    Ring = 2,
    /// As [`Algorithm::OneShot`], in one message a channel that shows by itself what of it has come: no
    /// signal, a third more bytes. For shares of up to 8 KiB, and 32 KiB of all ranks together; longer calls are
    /// one-shot.
    Quick = 3,
}

macro_rules! named {
    ($type:ident, $what:literal, $($variant:ident = $name:literal),+) => {
        impl $type {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name in results and on the command line.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The value of this number of the C enumeration.
            pub(super) fn of(raw: u32) -> Option<Self> {
                Self::ALL.iter().copied().find(|&v| v as u32 == raw)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = Error;
            fn from_str(s: &str) -> Result<Self, Error> {
                Self::ALL.iter().copied().find(|v| v.as_str() == s).ok_or_else(|| Error::Unknown {
                    what: $what,
                    given: s.into(),
                    known: [$($name),+].join(", "),
                })
            }
        }
    };
}
named!(Dtype, "element type", F32 = "f32", F16 = "f16", Bf16 = "bf16", I32 = "i32");
named!(Op, "operation", Sum = "sum", Max = "max", Min = "min", Mean = "mean");
named!(
    Algorithm,
    "algorithm",
    OneShot = "one-shot",
    TwoShot = "two-shot",
    Ring = "ring",
    Quick = "quick"
);

impl Dtype {
    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

impl Algorithm {
    /// What is fastest for `bytes` bytes among `ranks` ranks, where nobody says otherwise and they are too
    /// many for quick messages. One step wins while the time of a message is mostly latency, and among two ranks
    /// for longer, since it sends no more than the others there (measured on two GPUs:
    /// docs/results/allreduce-h200.md). The ring keeps each rank's traffic to one neighbour, which pays off among more
    /// than two where regions lie in GPU memory (`in_gpu`), and only where partial results are no wider than elements:
    /// through host memory two steps of small messages stay in the processors' cache, and its long way round does not.
    pub fn choose(bytes: u64, ranks: u32, dtype: Dtype, op: Op, in_gpu: bool) -> Self {
        let widens = dtype.bytes() == 2 || (dtype == Dtype::I32 && op == Op::Mean);
        match bytes.saturating_mul(u64::from(ranks.max(1) - 1)) {
            _ if ranks <= 2 && bytes >= 128 << 20 && !widens => Self::Ring,
            _ if ranks <= 2 => Self::OneShot,
            sent if sent <= 256 << 10 => Self::OneShot,
            _ if bytes >= 32 << 20 && in_gpu && !widens => Self::Ring,
            _ => Self::TwoShot,
        }
    }

    /// Whether quick messages hold a call of `bytes` bytes on that many channels.
    pub(super) fn quick_holds(bytes: u64, ranks: u32, channels: u32) -> bool {
        bytes <= Self::quick_share(ranks) * u64::from(channels)
    }

    /// Bytes of a share that a quick message holds: a multiple of 16, of which all ranks' fit in units of 12.
    pub(super) fn quick_share(ranks: u32) -> u64 {
        QUICK_BYTES.min(QUICK_ALL_BYTES / u64::from(ranks.max(1)) / 12 * 12 / 16 * 16)
    }
}
