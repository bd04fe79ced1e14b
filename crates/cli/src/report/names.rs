//! Names of a run's choices, in results and on the command line. Those of a path are the transport's, those of line
//! formats the wire format's.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One side of the interconnect: `gpu` or `host`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The GPU.
    Gpu,
    /// The host.
    Host,
}

/// A word that names no side.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a side: it is one of gpu, host")]
pub struct UnknownSide(String);

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Gpu => "gpu",
            Self::Host => "host",
        })
    }
}

impl FromStr for Side {
    type Err = UnknownSide;

    fn from_str(word: &str) -> Result<Self, UnknownSide> {
        match word {
            "gpu" => Ok(Self::Gpu),
            "host" => Ok(Self::Host),
            _ => Err(UnknownSide(word.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush::wire::inband::LineFormat;

    #[test]
    fn json_and_command_line_spell_alike() {
        for line in LineFormat::ALL {
            assert_eq!(serde_json::to_string(&line).unwrap(), format!("\"{line}\""));
            assert_eq!(line.to_string().parse(), Ok(line));
            let name = line.to_string();
            let (payload, sequence) = name.split_once('+').unwrap();
            assert_eq!(payload.parse(), Ok(line.data_bytes()));
            assert_eq!(sequence.parse(), Ok(line.seq_bytes()));
        }
        for side in [Side::Gpu, Side::Host] {
            assert_eq!(serde_json::to_string(&side).unwrap(), format!("\"{side}\""));
            assert_eq!(side.to_string().parse(), Ok(side));
        }
    }

    #[test]
    fn unknown_names_list_the_known() {
        let side = "shove".parse::<Side>().unwrap_err();
        assert_eq!(side.to_string(), "'shove' is not a side: it is one of gpu, host");
        let line = "12-4".parse::<LineFormat>().unwrap_err();
        assert_eq!(line.to_string(), "'12-4' is not a line format: it is one of 12+4, 14+2, 60+4");
    }
}
