//! Why a topology was refused.

use thiserror::Error;

use super::model::Kind;
use crate::tlp::TlpError;

/// Why a topology was refused. `line` counts from 1 and is `None` outside files.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TopologyError {
    /// Not the format.
    #[error("{}{reason}", at(.line))]
    Syntax {
        /// Line.
        line: Option<usize>,
        /// What the parser said.
        reason: String,
    },
    /// Two nodes of one name.
    #[error("{}{id}: this name is taken", at(.line))]
    Duplicate {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
    },
    /// A reference to nothing.
    #[error("{}{by}: unknown device {id:?}", at(.line))]
    UnknownDevice {
        /// Line.
        line: Option<usize>,
        /// Name that does not exist.
        id: String,
        /// Who refers to it.
        by: String,
    },
    /// Parents that lead back.
    #[error("{}{id}: loop: its parents lead back to it through {via}", at(.line))]
    Loop {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
        /// Parent on the loop.
        via: String,
    },
    /// A kind that cannot hang there.
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
    /// Zero lanes, impossible MPS and the like.
    #[error("{}{id}: {source}", at(.line))]
    Link {
        /// Line.
        line: Option<usize>,
        /// Name.
        id: String,
        /// What is wrong with the link.
        source: TlpError,
    },
    /// A number that cannot be.
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
    /// Two sockets between which no interconnect leads.
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
