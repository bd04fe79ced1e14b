//! Paths: who moves the payload, and what tells the NIC.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Reach;
use crate::abi::wire::tag;
use crate::nic::{LineFormat, Order};

/// Who moves the payload to the NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Data {
    /// The GPU writes it into a window of NIC-side memory, or inline into the WQE.
    Push,
    /// The NIC DMA-reads the GPU's memory: standard GPUDirect RDMA.
    Pull,
    /// It is copied to host memory, pipelined, and the NIC reads it there.
    Staged,
    /// No RDMA: a TCP connection.
    Tcp,
    /// Push or pull, as a table has it for the message's length.
    Auto,
}

/// What tells the NIC that there is something to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kick {
    /// A kernel stores doorbell record and doorbell.
    Kernel,
    /// A kernel stores the whole WQE to the UAR.
    Blueflame,
    /// Nothing: the window's lines announce themselves.
    Inband,
    /// The CPU builds the WQE, the stream's memory operation rings.
    Stream,
    /// The CPU builds the WQE and rings.
    Cpu,
}

/// One way from an application's buffer to the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Path {
    data: Data,
    kick: Option<Kick>,
}

/// A combination that makes no sense, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Names that do not go together.
    #[error("there is no path {data}/{kick}: {why}")]
    Refused {
        /// The payload's part.
        data: Data,
        /// The kick's part.
        kick: Kick,
        /// Why, and what to take instead.
        why: &'static str,
    },
    /// A name that is no name.
    #[error("'{given}' is not a {what}: it is one of {known}")]
    Unknown {
        /// What the name should have been one of.
        what: &'static str,
        /// What was given.
        given: String,
        /// What is known.
        known: &'static str,
    },
}

impl Path {
    /// Every fixed path, in the order of the tables: all but [`Path::AUTO`].
    pub const ALL: [Path; 13] = [
        Self::of(Data::Push, Kick::Inband),
        Self::of(Data::Push, Kick::Blueflame),
        Self::of(Data::Push, Kick::Kernel),
        Self::of(Data::Push, Kick::Stream),
        Self::of(Data::Push, Kick::Cpu),
        Self::of(Data::Pull, Kick::Blueflame),
        Self::of(Data::Pull, Kick::Kernel),
        Self::of(Data::Pull, Kick::Stream),
        Self::of(Data::Pull, Kick::Cpu),
        Self::of(Data::Staged, Kick::Kernel),
        Self::of(Data::Staged, Kick::Stream),
        Self::of(Data::Staged, Kick::Cpu),
        Self { data: Data::Tcp, kick: None },
    ];
    /// The baseline without RDMA.
    pub const TCP: Path = Self { data: Data::Tcp, kick: None };
    /// Each message by the path that a table has for its length ([`Tuning`](super::Tuning)).
    pub const AUTO: Path = Self { data: Data::Auto, kick: None };

    const fn of(data: Data, kick: Kick) -> Self {
        Self { data, kick: Some(kick) }
    }

    /// The path of this name.
    ///
    /// # Errors
    /// [`PathError::Refused`] with the reason for a combination that makes no sense.
    pub fn new(data: Data, kick: Kick) -> Result<Self, PathError> {
        let why = match (data, kick) {
            (Data::Pull | Data::Staged, Kick::Inband) => {
                "only pushed data can announce themselves; take push/inband or a doorbell"
            }
            (Data::Staged, Kick::Blueflame) => {
                "the staged copy must be fenced before the NIC is told, which is what BlueFlame \
                 is there to save; take staged/kernel"
            }
            (Data::Tcp, _) => "tcp has no NIC queue to kick; take tcp alone",
            (Data::Auto, _) => "auto chooses the kick too; take auto alone",
            _ => return Ok(Self::of(data, kick)),
        };
        Err(PathError::Refused { data, kick, why })
    }

    /// Who moves the payload.
    pub fn data(self) -> Data {
        self.data
    }

    /// What tells the NIC; `None` for tcp, which has none, and for auto, which chooses it.
    pub fn kick(self) -> Option<Kick> {
        self.kick
    }

    /// Whether kernels post, so that device code can use the endpoint.
    pub fn posted_by_gpu(self) -> bool {
        self == Self::AUTO
            || matches!(self.kick, Some(Kick::Kernel | Kick::Blueflame | Kick::Inband))
    }

    /// Whether payload passes through a window of slots.
    pub fn has_window(self) -> bool {
        matches!(self.data, Data::Push | Data::Staged | Data::Auto)
    }

    /// The name under which our kernels are built for this path, for NICs of this order, and for what the fence before
    /// a doorbell must reach; `None` where the host posts, in-band for NICs that need a doorbell, and for auto with
    /// lines other than 12+4.
    ///
    /// Where no kernel of ours is built for the weaker fence, the name is that of one with the stronger.
    pub fn kernel_name(self, line: LineFormat, order: Order, reach: Reach) -> Option<&'static str> {
        let strict = order == Order::Strict;
        let near = reach == Reach::Gpu && !strict;
        if self == Self::AUTO {
            let name = if strict {
                "auto_strict"
            } else if near {
                "auto_near"
            } else {
                "auto"
            };
            return (line == LineFormat::L12S4).then_some(name);
        }
        Some(match (self.data, self.kick?) {
            (Data::Push | Data::Staged, Kick::Kernel) if near => "push_kernel_near",
            (Data::Pull, Kick::Kernel) if near => "pull_kernel_near",
            (Data::Push | Data::Staged, Kick::Kernel) if strict => "push_kernel_strict",
            (Data::Push | Data::Staged, Kick::Kernel) => "push_kernel",
            (Data::Push, Kick::Blueflame) if strict => "push_blueflame_strict",
            (Data::Push, Kick::Blueflame) => "push_blueflame",
            (Data::Push, Kick::Inband) if !strict => match line {
                LineFormat::L12S4 => "push_inband_12_4",
                LineFormat::L14S2 => "push_inband_14_2",
                LineFormat::L60S4 => "push_inband_60_4",
            },
            (Data::Pull, Kick::Kernel) if strict => "pull_kernel_strict",
            (Data::Pull, Kick::Kernel) => "pull_kernel",
            (Data::Pull, Kick::Blueflame) if strict => "pull_blueflame_strict",
            (Data::Pull, Kick::Blueflame) => "pull_blueflame",
            _ => return None,
        })
    }

    /// `bp_endpoint::tag` of an endpoint on which kernels post: what they must be compiled for.
    pub(super) fn tag(self, line: LineFormat, order: Order, reach: Reach) -> u32 {
        let data = if self.data == Data::Pull { tag::PULL } else { tag::PUSH };
        let kick = match (self.kick, line) {
            (Some(Kick::Inband), LineFormat::L12S4) => tag::INBAND_12_4,
            (Some(Kick::Inband), LineFormat::L14S2) => tag::INBAND_14_2,
            (Some(Kick::Inband), LineFormat::L60S4) => tag::INBAND_60_4,
            (Some(Kick::Blueflame), _) => tag::BLUEFLAME,
            _ => tag::KERNEL,
        };
        let strict = if order == Order::Strict { tag::STRICT } else { 0 };
        let system = if reach == Reach::System { tag::SYSTEM } else { 0 };
        data | kick | strict | system
    }
}

impl Data {
    /// Every value, in the order of the tables.
    pub const ALL: &[Self] = &[Self::Push, Self::Pull, Self::Staged, Self::Tcp, Self::Auto];

    /// The name in results and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pull => "pull",
            Self::Staged => "staged",
            Self::Tcp => "tcp",
            Self::Auto => "auto",
        }
    }
}

impl Kick {
    /// Every value, in the order of the tables.
    pub const ALL: &[Self] =
        &[Self::Kernel, Self::Blueflame, Self::Inband, Self::Stream, Self::Cpu];

    /// The name in results and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Blueflame => "blueflame",
            Self::Inband => "inband",
            Self::Stream => "stream",
            Self::Cpu => "cpu",
        }
    }

    /// Whether a path of this data and kick exists.
    pub fn goes_with(self, data: Data) -> bool {
        Path::new(data, self).is_ok()
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for Kick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kick {
            Some(kick) => write!(f, "{}/{kick}", self.data),
            None => write!(f, "{}", self.data),
        }
    }
}

impl FromStr for Data {
    type Err = PathError;
    fn from_str(s: &str) -> Result<Self, PathError> {
        let known = "push, pull, staged, tcp, auto";
        let found = Self::ALL.iter().copied().find(|v| v.as_str() == s);
        found.ok_or_else(|| PathError::Unknown { what: "data path", given: s.into(), known })
    }
}

impl FromStr for Kick {
    type Err = PathError;
    fn from_str(s: &str) -> Result<Self, PathError> {
        let known = "kernel, blueflame, inband, stream, cpu";
        let found = Self::ALL.iter().copied().find(|v| v.as_str() == s);
        found.ok_or_else(|| PathError::Unknown { what: "kick", given: s.into(), known })
    }
}

impl FromStr for Path {
    type Err = PathError;
    /// `push/inband`, `pull/kernel`, …, `tcp`, `auto`.
    fn from_str(s: &str) -> Result<Self, PathError> {
        match s.split_once('/') {
            Some((data, kick)) => Self::new(data.parse()?, kick.parse()?),
            None if s == "tcp" => Ok(Self::TCP),
            None if s == "auto" => Ok(Self::AUTO),
            None => Err(PathError::Unknown {
                what: "path",
                given: s.into(),
                known: "DATA/KICK (push/inband, pull/kernel, …), tcp and auto",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_a_path_or_refused_by_name() {
        let mut known = 0;
        for &data in Data::ALL {
            for kick in [Kick::Kernel, Kick::Blueflame, Kick::Inband, Kick::Stream, Kick::Cpu] {
                match Path::new(data, kick) {
                    Ok(path) => {
                        assert!(Path::ALL.contains(&path), "{path}");
                        assert_eq!(path.to_string().parse(), Ok(path));
                        known += 1;
                    }
                    Err(e) => assert!(e.to_string().contains(&format!("{data}/{kick}")), "{e}"),
                }
            }
        }
        assert_eq!(known + 1, Path::ALL.len(), "and tcp");
        for path in [Path::TCP, Path::AUTO] {
            assert_eq!(path.to_string().parse(), Ok(path));
        }
    }

    #[test]
    fn json_and_command_line_spell_alike() {
        for &kick in Kick::ALL {
            assert_eq!(serde_json::to_string(&kick).unwrap(), format!("\"{kick}\""));
            assert_eq!(kick.as_str().parse(), Ok(kick));
        }
        for &data in Data::ALL {
            assert_eq!(serde_json::to_string(&data).unwrap(), format!("\"{data}\""));
            assert_eq!(data.as_str().parse(), Ok(data));
        }
    }

    #[test]
    fn unknown_names_are_told_what_there_is() {
        for bad in ["push", "shove/kernel", "push/poke", "", "tcp/cpu", "pull/inband"] {
            assert!(bad.parse::<Path>().is_err(), "{bad}");
        }
        let text = "push/poke".parse::<Path>().unwrap_err().to_string();
        assert!(text.contains("poke") && text.contains("blueflame"), "{text}");
    }
}
