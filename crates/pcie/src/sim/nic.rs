//! The NICs that advice can be for, and the paths that each has.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::{Layout, PathModel};

/// A NIC that advice is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum NicModel {
    /// A ConnectX-7, as docs/hardware.md has it: queues in host memory, two fences of system scope,
    /// BlueFlame of 256 B, no in-band slots.
    #[default]
    Cx7,
    /// bellpush's software NIC, with its queues where they suit a path best.
    Software,
}

/// A word that names no NIC.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no NIC that is modelled; there are cx7, software")]
pub struct NoNic(String);

impl FromStr for NicModel {
    type Err = NoNic;

    fn from_str(text: &str) -> Result<Self, NoNic> {
        match text {
            "cx7" => Ok(Self::Cx7),
            "software" => Ok(Self::Software),
            _ => Err(NoNic(text.to_owned())),
        }
    }
}

impl fmt::Display for NicModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cx7 => "cx7",
            Self::Software => "software",
        })
    }
}

impl NicModel {
    /// Paths that it has. No ConnectX has an engine that reads a window of lines.
    pub const fn paths(self) -> &'static [PathModel] {
        match self {
            Self::Cx7 => &[
                PathModel::PushKernel,
                PathModel::PushBlueflame,
                PathModel::Pull,
                PathModel::Staged,
            ],
            Self::Software => &PathModel::ALL,
        }
    }

    /// Where its queues lie, and what orders them.
    pub const fn layout(self) -> Layout {
        match self {
            Self::Cx7 => Layout::Card,
            Self::Software => Layout::Best,
        }
    }

    /// What is modelled, in one sentence.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Cx7 => {
                "a ConnectX-7: WQE, doorbell record and CQE in host memory, a fence of system scope \
                 before the record and one before the doorbell, BlueFlame with 220 B inline and both \
                 fences; never measured on a card"
            }
            Self::Software => {
                "the software NIC: WQE and record in GPU memory behind one fence of GPU scope, \
                 push/inband and push/blueflame without a fence; by default its queues lie in host \
                 memory: longer"
            }
        }
    }

    /// The NIC for which advice is given where the command names none, and why.
    pub fn by_default(name: &str) -> (Self, &'static str) {
        let card = ["ConnectX", "MT27", "MT28", "MT4"].iter().any(|part| name.contains(part));
        let why = if card {
            "the NIC's name is a ConnectX's"
        } else {
            "the default: the NIC of a PCIe tree is a card, and a ConnectX is the one that is modelled"
        };
        (Self::Cx7, why)
    }
}
