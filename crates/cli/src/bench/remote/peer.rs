//! The process at the other end, with which this one keeps in step. What they tell each other is authenticated by the
//! secret of the job that the two are (docs/security.md), and not encrypted.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bellpush::collective::{Bootstrap, BootstrapError, Job};

use super::said::Said;
use crate::cli::CliError;

/// How long the side that listens waits for the other.
const COMES: Duration = Duration::from_secs(300);
/// How long the side that connects tries to.
const ANSWERS: Duration = Duration::from_secs(20);
/// Bound of a step: longer than a kernel may take (three of the longest timeout, and a minute) and than a round that
/// goes well, which grows to a fifth of the row's time. A side whose host posts ever slower is given up by it.
const STEP: Duration = Duration::from_secs(300);
/// Longest thing that is said.
const MOST_BYTES: usize = 64 << 10;

/// The name of the two processes' job.
const NAME: &str = "bellpush bench";

pub struct Peer {
    bootstrap: Bootstrap,
    rank: usize,
    /// Where the side that listens does.
    pub root: SocketAddr,
}

impl Peer {
    /// Waits at `place` for the side that connects.
    pub fn listen(place: &str) -> Result<Self, CliError> {
        let job = Job::of_two(0, place, NAME, COMES, STEP).map_err(|e| unjoined("--listen", &e))?;
        eprintln!("bellpush: waiting at {} for bellpush bench --connect", job.root);
        Self::join(&job, "--listen")
    }

    /// Connects to the side that listens.
    pub fn connect(place: &str) -> Result<Self, CliError> {
        let job =
            Job::of_two(1, place, NAME, ANSWERS, STEP).map_err(|e| unjoined("--connect", &e))?;
        Self::join(&job, "--connect")
    }

    fn join(job: &Job, option: &str) -> Result<Self, CliError> {
        let bootstrap = Bootstrap::join(job).map_err(|e| unjoined(option, &e))?;
        Ok(Self { bootstrap, rank: 1 - job.rank as usize, root: job.root })
    }

    /// This host's address on the way to the other side.
    pub fn here(&self) -> Result<IpAddr, CliError> {
        let here = self.bootstrap.local_address().map_err(|e| lost(&e))?;
        here.map(|here| here.ip()).ok_or_else(|| lost(&"it is gone"))
    }

    /// Says something, and hears what the other side says in the same step.
    pub fn swap(&mut self, mine: &Said) -> Result<Said, CliError> {
        let mine = serde_json::to_vec(mine).map_err(|e| lost(&e))?;
        let all = self.bootstrap.all_gather(&mine).map_err(|e| lost(&e))?;
        let theirs = all.get(self.rank).filter(|said| said.len() <= MOST_BYTES);
        let theirs = theirs.ok_or_else(|| lost(&"it says more than it should"))?;
        Said::heard(theirs)
    }

    /// Says that this side is ready, and hears that the other is.
    pub fn ready(&mut self) -> Result<(), CliError> {
        match self.swap(&Said::Ready)? {
            Said::Ready => Ok(()),
            other => Err(out_of_step(&other)),
        }
    }

    /// Tells the other side why this one leaves.
    pub fn fail(&mut self, why: &CliError) {
        self.bootstrap.fail(&why.to_string());
    }
}

fn lost(why: &dyn std::fmt::Display) -> CliError {
    CliError::new(format!("the other side: {why}"), "see what it says there")
}

/// An answer that does not belong to the step.
pub fn out_of_step(said: &Said) -> CliError {
    let said = format!("{said:?}");
    let short: String = said.chars().take(80).collect();
    CliError::new(format!("the other side is out of step: {short}"), "use one version at both ends")
}

fn unjoined(option: &str, error: &BootstrapError) -> CliError {
    let remedy = match error {
        BootstrapError::Variable { .. } => "give a host, with a port or without",
        BootstrapError::NoRoot { .. } | BootstrapError::Absent { .. } => {
            "start one side with --listen, then the other with --connect"
        }
        BootstrapError::Secret { .. } => "set BELLPUSH_JOB_SECRET to the same at both sides",
        _ => "see docs/two-hosts.md",
    };
    // A job has ranks; a measurement has the side that listens and the one that connects.
    let said = match error {
        BootstrapError::Listen { root, source } => format!("cannot listen at {root}: {source}"),
        BootstrapError::NoRoot { root, ms, source } => {
            format!("nobody answers at {root} within {ms} ms: {source}")
        }
        BootstrapError::Absent { ms, .. } => format!("nobody connected within {ms} ms"),
        _ => error.to_string(),
    };
    CliError::new(format!("{option}: {said}"), remedy)
}
