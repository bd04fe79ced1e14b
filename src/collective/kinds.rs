//! Element types, operations and algorithms of collectives.

use std::fmt;
use std::str::FromStr;

use super::Error;
use crate::abi::collective::{LL_ALL_BYTES, LL_BYTES};

/// Type of the elements. The discriminants are `enum bp_coll_dtype`'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32 = 0,
    /// IEEE 754 binary16; added in binary32 and rounded once.
    F16 = 1,
    /// bfloat16; added in binary32 and rounded once.
    Bf16 = 2,
    /// Two's complement of 32 bits.
    I32 = 3,
}

/// Operation on the elements of all ranks. The discriminants are `enum bp_coll_op`'s.
///
/// If an element is a NaN, the result is the canonical quiet NaN. Maximum and minimum are those of
/// IEEE 754-2019 (section 9.6), where -0 is less than +0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Op {
    /// Sum; for [`Dtype::I32`] modulo 2³².
    Sum = 0,
    /// Maximum.
    Max = 1,
    /// Minimum.
    Min = 2,
    /// Sum divided by the number of ranks, infinite where the sum is; for [`Dtype::I32`] the exact
    /// quotient, truncated toward zero.
    Mean = 3,
}

/// Communication pattern. The discriminants are `enum bp_coll_algorithm`'s. N is the number of
/// ranks, n the bytes of the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Algorithm {
    /// Every rank sends all elements to every other: (N - 1) n bytes per rank, one step.
    OneShot = 0,
    /// Every rank reduces a part and sends the result to every other: 2 (N - 1) / N n bytes per
    /// rank, two steps.
    TwoShot = 1,
    /// Parts travel round a ring twice: 2 (N - 1) / N n bytes to one neighbour, 2 (N - 1) steps.
    /// Partial results of f16 and bf16 travel as f32, those of an i32 mean in 64 bits.
    Ring = 2,
    /// As [`Algorithm::OneShot`], in one message per channel with flags between the data, as NCCL's
    /// LL protocol: no signal, but a third more bytes. For shares of up to 8 KiB, and 32 KiB of all
    /// ranks together; longer calls are one-shot.
    Ll = 3,
}

macro_rules! named {
    ($type:ident, $what:literal, $($variant:ident = $name:literal),+) => {
        impl $type {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name in results and on the command line.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The value with this number in the C enumeration.
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
    Ll = "ll"
);

impl Dtype {
    /// Bytes per element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

impl Algorithm {
    /// The fastest algorithm for `bytes` bytes among `ranks` ranks, if the caller names none and
    /// LL messages do not hold the call (measured: docs/results/allreduce-h200.md). One step
    /// wins while latency dominates a message's time. Between two ranks it wins for longer, since
    /// there it sends no more than the others. The ring keeps each rank's traffic to one neighbour.
    /// That pays off among more than two ranks where regions lie in GPU memory (`in_gpu`), and only
    /// if partial results are no wider than elements. Through host memory, the small messages of
    /// two steps stay in the processors' cache; those of a ring do not.
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

    /// Whether LL messages hold a call of `bytes` bytes on `channels` channels.
    pub(super) fn ll_holds(bytes: u64, ranks: u32, channels: u32) -> bool {
        bytes <= Self::ll_share(ranks) * u64::from(channels)
    }

    /// Bytes of a share that an LL message holds: a multiple of 16; the shares of all ranks fit
    /// in units of 12 bytes.
    pub(super) fn ll_share(ranks: u32) -> u64 {
        LL_BYTES.min(LL_ALL_BYTES / u64::from(ranks.max(1)) / 12 * 12 / 16 * 16)
    }
}
