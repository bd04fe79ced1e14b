//! Names of a run's choices, in results and on the command line. Those of a path are the
//! transport's.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::wire::inband::LineFormat;

/// A word that names none of the choices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not a {what}: it is one of {choices}")]
pub struct UnknownName {
    /// The given word.
    pub given: String,
    /// Kind of the choice.
    pub what: &'static str,
    /// The valid words, separated by commas.
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
            /// All values, in the order of the reports.
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
    /// One side of the interconnect.
    Side, "side" {
        /// The GPU.
        Gpu = "gpu",
        /// The host.
        Host = "host",
    }
}

names! {
    /// Format of an in-band line: payload bytes + sequence bytes.
    Line, "line format" {
        /// 16 bytes, one store of one lane.
        L12p4 = "12+4",
        /// 16 bytes, with the 2-byte sequence.
        L14p2 = "14+2",
        /// 64 bytes, stored by four lanes; arrival as a whole is measured, and not guaranteed by
        /// the architecture.
        L60p4 = "60+4",
    }
}

impl From<Line> for LineFormat {
    fn from(line: Line) -> Self {
        match line {
            Line::L12p4 => Self::L12S4,
            Line::L14p2 => Self::L14S2,
            Line::L60p4 => Self::L60S4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_command_line_spell_alike() {
        for &line in Line::ALL {
            assert_eq!(serde_json::to_string(&line).unwrap(), format!("\"{line}\""));
            let (payload, sequence) = line.as_str().split_once('+').unwrap();
            let format = LineFormat::from(line);
            assert_eq!(payload.parse(), Ok(format.data_bytes()));
            assert_eq!(sequence.parse(), Ok(format.seq_bytes()));
        }
    }

    #[test]
    fn unknown_names_list_the_known() {
        assert_eq!(
            "shove".parse::<Side>().unwrap_err().to_string(),
            "'shove' is not a side: it is one of gpu, host"
        );
    }
}
