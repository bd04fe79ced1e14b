//! Errors of topologies.

use thiserror::Error;

use super::model::Kind;
use crate::tlp::TlpError;

/// Reason why a topology was refused. `line` counts from 1 and is `None` outside files.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TopologyError {
    /// The text is not in the format.
    #[error("{}{reason}", at(.line))]
    Syntax {
        /// Line.
        line: Option<usize>,
        /// The parser's message.
        reason: String,
    },
    /// Two nodes have the same name.
    #[error("{}{id}: this name is taken", at(.line))]
    Duplicate {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
    },
    /// A reference to a device that does not exist.
    #[error("{}{by}: unknown device {id:?}", at(.line))]
    UnknownDevice {
        /// Line.
        line: Option<usize>,
        /// Name that does not exist.
        id: String,
        /// The node that refers to it.
        by: String,
    },
    /// A node is its own ancestor.
    #[error("{}{id}: loop: its parents lead back to it through {via}", at(.line))]
    Loop {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
        /// Parent on the loop.
        via: String,
    },
    /// The parent's kind does not take this child.
    #[error("{}{id}: a {kind} cannot hang from a {parent_kind} ({parent})", at(.line))]
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
    #[error("{}{id}: {source}", at(.line))]
    Link {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
        /// The link's error.
        source: TlpError,
    },
    /// A number is not positive and finite.
    #[error("{}{id}: {field} of {value} must be positive and finite", at(.line))]
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
    /// No interconnect connects two sockets.
    #[error("{}no interconnect leads from {a} to {b}", at(.line))]
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
