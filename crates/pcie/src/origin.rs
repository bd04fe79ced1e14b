//! Where a number comes from.

use std::fmt;

/// Where a number comes from, the surest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Origin {
    /// `bellpush link` measured it on this machine.
    Measured,
    /// It stands in the file, the capture, the command or a specification.
    #[default]
    Read,
    /// It was fitted to measurements of other machines: of an H200, or of pcie-bench's hosts.
    Fitted,
    /// Nobody measured it; the model needs a value.
    Assumed,
    /// Nothing is known.
    Unknown,
}

impl Origin {
    /// In one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Read => "read",
            Self::Fitted => "fitted",
            Self::Assumed => "assumed",
            Self::Unknown => "unknown",
        }
    }

    /// In one letter, behind a number.
    pub const fn letter(self) -> char {
        match self {
            Self::Measured => 'm',
            Self::Read => 'r',
            Self::Fitted => 'f',
            Self::Assumed => 'a',
            Self::Unknown => 'u',
        }
    }

    /// Whether another value may be the right one.
    pub const fn is_uncertain(self) -> bool {
        matches!(self, Self::Fitted | Self::Assumed)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
