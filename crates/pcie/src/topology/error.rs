//! Errors of topologies.

use thiserror::Error;

use super::model::Kind;
use crate::text::one_line;
use crate::tlp::TlpError;

/// Reason why a topology was refused. `line` counts from 1 and is `None` outside files.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TopologyError {
    /// The text is not in the format.
    #[error("{}{}", at(.line), one_line(.reason))]
    Syntax {
        /// Line.
        line: Option<usize>,
        /// The parser's message.
        reason: String,
    },
    /// Two nodes have the same name.
    #[error("{}{}: this name is taken", at(.line), one_line(.id))]
    Duplicate {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
    },
    /// A reference to a device that does not exist.
    #[error("{}{}: unknown device {id:?}", at(.line), one_line(.by))]
    UnknownDevice {
        /// Line.
        line: Option<usize>,
        /// Name that does not exist.
        id: String,
        /// The node that refers to it.
        by: String,
    },
    /// A node is its own ancestor.
    #[error("{}{}: loop: its parents lead back to it through {via:?}", at(.line), one_line(.id))]
    Loop {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
        /// Parent on the loop.
        via: String,
    },
    /// A node lies deeper than PCIe has buses.
    #[error("{}{}: below more than {} others", at(.line), one_line(.id), super::model::MAX_LEVELS)]
    TooDeep {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
    },
    /// The parent's kind does not take this child.
    #[error("{}{}: a {kind} cannot hang from a {parent_kind} ({})", at(.line), one_line(.id), one_line(.parent))]
    WrongParent {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
        /// Its kind.
        kind: Kind,
        /// Parent.
        parent: String,
        /// The parent's kind.
        parent_kind: Kind,
    },
    /// The link is invalid: lanes, MPS or the like.
    #[error("{}{}: {source}", at(.line), one_line(.id))]
    Link {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
        /// The link's error.
        source: TlpError,
    },
    /// A number is not positive and finite.
    #[error("{}{}: {field} of {value} must be positive and finite", at(.line), one_line(.id))]
    Number {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
        /// Field.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// A size is none of a packet.
    #[error("{}{}: {field} of {value} must be a power of two from 32 to 4096", at(.line), one_line(.id))]
    Packet {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
        /// Field.
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// A rate is none that a topology takes.
    #[error("{}{}: {field} of {value} must be from 0.001 to 1000000 GB/s", at(.line), one_line(.id))]
    Rate {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
        /// Field.
        field: &'static str,
        /// Its value.
        value: f64,
    },
    /// The root ports of a slot have more lanes in use than the slot has.
    #[error(
        "{}{}: the root ports of slot {} have {used} lanes in use, of {lanes}",
        at(.line), one_line(.id), one_line(.slot)
    )]
    Slot {
        /// Line.
        line: Option<usize>,
        /// The node whose link is one too many.
        id: String,
        /// Slot.
        slot: String,
        /// Lanes in use.
        used: u32,
        /// Lanes that there are.
        lanes: u32,
    },
    /// A capture has more of something than any host, and too much for what looks at every pair.
    #[error("{count} {what}: at most {most}")]
    Many {
        /// How many.
        count: usize,
        /// What.
        what: &'static str,
        /// The most.
        most: usize,
    },
    /// An interconnect joins something else than two sockets.
    #[error("{}interconnect from {} to {}: it joins two sockets", at(.line), one_line(.a), one_line(.b))]
    NotSockets {
        /// Line.
        line: Option<usize>,
        /// One end.
        a: String,
        /// Other end.
        b: String,
    },
    /// No interconnect connects two sockets.
    #[error("{}no interconnect leads from {} to {}", at(.line), one_line(.a), one_line(.b))]
    Unconnected {
        /// Line.
        line: Option<usize>,
        /// One socket.
        a: String,
        /// Other socket.
        b: String,
    },
}

fn at(line: &Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!("line {line}: "))
}
