//! What can go wrong in a case.

use std::io;

/// Why a case failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The guest did not come up; its console.
    #[error("the guest did not boot; its console:\n{0}")]
    NoBoot(String),
    /// A command on either side.
    #[error("'{line}': {why}\n{output}")]
    Command {
        /// The command.
        line: String,
        /// Its status, or what else.
        why: String,
        /// What it printed.
        output: String,
    },
    /// A peer refused a request, or found wrong bytes.
    #[error("{peer}: '{request}': {answer}")]
    Refused {
        /// Which end.
        peer: String,
        /// What was asked.
        request: String,
        /// What it said.
        answer: String,
    },
    /// Something is not what it should be.
    #[error("{what} is {is}, not {want}")]
    Wrong {
        /// What.
        what: String,
        /// What it is.
        is: String,
        /// What it should be.
        want: String,
    },
    /// A connection or a process.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Compares, and says by name what differs.
pub fn expect<T: PartialEq + std::fmt::Debug>(what: &str, is: T, want: T) -> Result<(), Failure> {
    if is == want {
        return Ok(());
    }
    Err(Failure::Wrong { what: what.into(), is: format!("{is:?}"), want: format!("{want:?}") })
}
