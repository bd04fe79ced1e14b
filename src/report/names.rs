//! The names of a path's choices, as results and the command line spell them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A word that names none of the choices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not a {what}: it is one of {choices}")]
pub struct UnknownName {
    /// The word.
    pub given: String,
    /// What it should have named.
    pub what: &'static str,
    /// The words that do, separated by commas.
    pub choices: String,
}

macro_rules! names {
    ($(#[$doc:meta])* $enum:ident, $what:literal { $($(#[$vdoc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $enum {
            $($(#[$vdoc])* #[serde(rename = $name)] $variant,)+
        }

        impl $enum {
            /// Every value, in the order in which reports list them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name in results and on the command line.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl fmt::Display for $enum {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $enum {
            type Err = UnknownName;

            fn from_str(word: &str) -> Result<Self, UnknownName> {
                Self::ALL.iter().copied().find(|v| v.as_str() == word).ok_or_else(|| UnknownName {
                    given: word.into(),
                    what: $what,
                    choices: [$($name),+].join(", "),
                })
            }
        }
    };
}

names! {
    /// Who moves the payload.
    Data, "data path" {
        /// The GPU writes it into the NIC's window, or inline into the WQE.
        Push = "push",
        /// The NIC reads it from GPU memory: standard GPUDirect RDMA.
        Pull = "pull",
        /// It is copied to host memory, where the NIC reads it.
        Staged = "staged",
        /// No RDMA at all: the baseline.
        Tcp = "tcp",
    }
}

names! {
    /// What tells the NIC that there is something to send.
    Kick, "kick" {
        /// A CUDA kernel stores the doorbell.
        Kernel = "kernel",
        /// The UAR store carries the whole WQE, inline payload and all.
        Blueflame = "blueflame",
        /// The data announce themselves; no doorbell.
        Inband = "inband",
        /// The CPU builds the WQE, a memory operation of the stream rings.
        Stream = "stream",
        /// The CPU does both.
        Cpu = "cpu",
    }
}

names! {
    /// One side of the interconnect.
    Side, "side" {
        /// The GPU.
        Gpu = "gpu",
        /// The host.
        Host = "host",
    }
}

names! {
    /// Format of an in-band line: bytes of payload + bytes of sequence.
    Line, "line format" {
        /// 16 bytes, one store of one lane.
        L12p4 = "12+4",
        /// 16 bytes, with the short sequence.
        L14p2 = "14+2",
        /// 64 bytes, four lanes; whole as measured, not by architecture.
        L60p4 = "60+4",
    }
}

impl Kick {
    /// Whether a path of this data and kick exists: data announce themselves, or travel in the
    /// doorbell store, only where the GPU pushes them, and tcp has no kick.
    pub const fn goes_with(self, data: Data) -> bool {
        match (data, self) {
            (Data::Tcp, _) => false,
            (Data::Push, _) => true,
            (_, Self::Inband | Self::Blueflame) => false,
            _ => true,
        }
    }
}

impl Line {
    /// Payload bytes of a line.
    pub const fn payload_bytes(self) -> u64 {
        match self {
            Self::L12p4 => 12,
            Self::L14p2 => 14,
            Self::L60p4 => 60,
        }
    }

    /// Bytes of a whole line.
    pub const fn line_bytes(self) -> u64 {
        match self {
            Self::L12p4 | Self::L14p2 => 16,
            Self::L60p4 => 64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_command_line_spell_alike() {
        for &kick in Kick::ALL {
            assert_eq!(serde_json::to_string(&kick).unwrap(), format!("\"{kick}\""));
            assert_eq!(kick.as_str().parse(), Ok(kick));
        }
        for &line in Line::ALL {
            assert_eq!(serde_json::to_string(&line).unwrap(), format!("\"{line}\""));
            let (payload, sequence) = line.as_str().split_once('+').unwrap();
            assert_eq!(payload.parse(), Ok(line.payload_bytes()));
            let sequence: u64 = sequence.parse().unwrap();
            assert_eq!(line.payload_bytes() + sequence, line.line_bytes());
        }
    }

    #[test]
    fn unknown_names_list_the_known() {
        assert_eq!(
            "shove".parse::<Data>().unwrap_err().to_string(),
            "'shove' is not a data path: it is one of push, pull, staged, tcp"
        );
    }

    #[test]
    fn only_push_has_every_kick() {
        let kicks = |data| Kick::ALL.iter().filter(|k| k.goes_with(data)).count();
        assert_eq!(
            (kicks(Data::Push), kicks(Data::Pull), kicks(Data::Staged), kicks(Data::Tcp)),
            (5, 3, 3, 0)
        );
    }
}
