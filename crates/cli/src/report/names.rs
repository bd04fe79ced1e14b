//! Names of a run's choices, in results and on the command line. Those of a path are the transport's, those of line
//! formats the wire format's.

use std::fmt;
use std::str::FromStr;

use bellpush::transport::MemoryPlace;
use serde::{Deserialize, Serialize};

/// Places of queues and window that were asked for: `sq=gpu,cq=host`, those left open omitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Places {
    /// Send queue.
    pub sq: MemoryPlace,
    /// Doorbell record.
    pub dbr: MemoryPlace,
    /// Completion queue.
    pub cq: MemoryPlace,
    /// Window.
    pub window: MemoryPlace,
}

/// Text that names no places.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrongPlaces {
    /// Not `PART=PLACE`.
    #[error(
        "'{0}' is not PART=PLACE: the parts are sq, dbr, cq, window, the places auto, gpu, host"
    )]
    Unknown(String),
    /// One part, two places.
    #[error("{0} is placed twice")]
    Twice(String),
}

impl Places {
    fn named(&self) -> [(&'static str, MemoryPlace); 4] {
        [("sq", self.sq), ("dbr", self.dbr), ("cq", self.cq), ("window", self.window)]
    }

    /// Whether all are left open.
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let placed = self.named().into_iter().filter(|(_, place)| *place != MemoryPlace::Auto);
        let words: Vec<String> = placed.map(|(part, place)| format!("{part}={place}")).collect();
        f.pad(&words.join(","))
    }
}

impl FromStr for Places {
    type Err = WrongPlaces;

    fn from_str(list: &str) -> Result<Self, WrongPlaces> {
        let (mut places, mut seen) = (Self::default(), Vec::new());
        for word in list.split(',').map(str::trim) {
            let unknown = || WrongPlaces::Unknown(word.into());
            let (part, place) = word.split_once('=').ok_or_else(unknown)?;
            let to = match part {
                "sq" => &mut places.sq,
                "dbr" => &mut places.dbr,
                "cq" => &mut places.cq,
                "window" => &mut places.window,
                _ => return Err(unknown()),
            };
            if seen.contains(&part) {
                return Err(WrongPlaces::Twice(part.into()));
            }
            seen.push(part);
            *to = place.parse().map_err(|_| unknown())?;
        }
        Ok(places)
    }
}

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
    fn places_are_read_as_they_are_printed() {
        for text in ["sq=gpu,dbr=gpu,window=gpu", "cq=host", ""] {
            let list = if text.is_empty() { "sq=auto" } else { text };
            assert_eq!(list.parse::<Places>().unwrap().to_string(), text);
        }
        let placed: Places = " window=host, cq=gpu".parse().unwrap();
        assert_eq!((placed.window, placed.cq), (MemoryPlace::Host, MemoryPlace::Gpu));
        assert!(!placed.is_open() && Places::default().is_open());
        for wrong in ["", "sq", "rq=gpu", "sq=dram", "sq=gpu,", "SQ=gpu"] {
            let why = wrong.parse::<Places>().unwrap_err().to_string();
            assert!(
                why.contains("sq, dbr, cq, window") && why.contains("auto, gpu, host"),
                "{why}"
            );
        }
        let twice = "sq=gpu,cq=host,sq=gpu".parse::<Places>().unwrap_err();
        assert_eq!(twice.to_string(), "sq is placed twice");
    }

    #[test]
    fn unknown_names_list_the_known() {
        let side = "shove".parse::<Side>().unwrap_err();
        assert_eq!(side.to_string(), "'shove' is not a side: it is one of gpu, host");
        let line = "12-4".parse::<LineFormat>().unwrap_err();
        assert_eq!(line.to_string(), "'12-4' is not a line format: it is one of 12+4, 14+2, 60+4");
    }
}
