//! How the processes of a job come together: rank 0 listens, the others connect, and each shows that it knows the
//! job's secret (`handshake`). Then they exchange what they need to know, such as their endpoints' addresses, in
//! frames that are authenticated too (`frames`).
//!
//! The secret keeps strangers out, and what comes is what a process of this job has said in this joining; nothing is
//! encrypted. Everything is bounded: joining and each exchange by timeouts of their own, a stranger by the
//! time and bytes of a handshake, and the number of those at once.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Job;
use super::frames::{DATA, FAILED, Line};
use super::handshake::{self, Joining};
use super::member::{MAX_RANKS, MAX_TIMEOUT};
use crate::nic::soft::SoftConfig;

/// Why a job's ranks did not come together.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// A variable of the environment that is not set.
    #[error("{name} is not set, and all ranks of a job need it alike")]
    Missing {
        /// The variable.
        name: &'static str,
    },
    /// A variable that says something else than it should.
    #[error("{name} is '{given}', but must be {must}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What it says.
        given: String,
        /// What is accepted.
        must: &'static str,
    },
    /// No secret was named, and none could be made.
    #[error(
        "BELLPUSH_JOB_SECRET is not set, and {} cannot stand in for it: {source}",
        .path.display()
    )]
    Secret {
        /// The user's file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// More ranks than a job may have, or none.
    #[error("{ranks} ranks: a job has 1 to {MAX_RANKS}")]
    Ranks {
        /// Number of ranks.
        ranks: u32,
    },
    /// A rank of this process joins a communicator while it joins one of the same name: they could cross.
    #[error(
        "this process is joining a communicator named '{communicator}' already: those that are joined at once need names of their own"
    )]
    Twice {
        /// The name.
        communicator: String,
    },
    /// A rank past the last.
    #[error("rank {rank} of {ranks} ranks: ranks count from 0")]
    Rank {
        /// The rank.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
    },
    /// Rank 0 could not listen.
    #[error("rank 0 cannot listen at {root}: {source}")]
    Listen {
        /// Where.
        root: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Rank 0 was not there.
    #[error("rank 0 did not answer at {root} within {ms} ms: {source}")]
    NoRoot {
        /// Where it should be.
        root: SocketAddr,
        /// The timeout.
        ms: u128,
        /// What the last try ended with.
        source: io::Error,
    },
    /// Ranks that did not come.
    #[error("rank {} did not join within {ms} ms", list(.ranks))]
    Absent {
        /// The ranks.
        ranks: Vec<u32>,
        /// The timeout.
        ms: u128,
    },
    /// The root did not take this rank, or is not the job's.
    #[error("rank 0 at {root} refused rank {rank}: {why}")]
    Refused {
        /// Where it is.
        root: SocketAddr,
        /// This rank.
        rank: u32,
        /// The reason.
        why: &'static str,
    },
    /// A rank that left during an exchange, or took too long for it.
    #[error("the connection to rank {rank} failed: {source}")]
    Lost {
        /// The rank.
        rank: u32,
        /// How.
        source: io::Error,
    },
    /// A rank that said something else than it was asked for.
    #[error("rank {rank} does not say {what}: is it of another version?")]
    Garbled {
        /// The rank.
        rank: u32,
        /// What was asked for.
        what: &'static str,
    },
    /// After a failure it is not known which exchange a frame that comes is of.
    #[error("an earlier exchange of these ranks has failed")]
    Ended,
    /// A rank that failed by itself, as it said before it left.
    #[error("rank {rank} gave up: {why}")]
    Failed {
        /// The rank.
        rank: u32,
        /// What it said.
        why: String,
    },
    /// What rank 0 found.
    #[error("rank 0 says: {why}")]
    Told {
        /// Its error.
        why: String,
    },
}

fn list(ranks: &[u32]) -> String {
    ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// This process's connections to the others of its job.
pub struct Bootstrap {
    rank: u32,
    ranks: u32,
    timeout: Duration,
    /// Rank 0: the others' connections, by rank - 1. Others: the one to rank 0.
    lines: Vec<Line>,
    /// An exchange has failed.
    ended: bool,
}

impl Bootstrap {
    /// Joins the job; returns when all ranks have.
    ///
    /// # Errors
    /// Names who is missing, at every rank that came.
    pub fn join(job: &Job) -> Result<Self, BootstrapError> {
        job.check()?;
        let (join_timeout, timeout) =
            (job.join_timeout.min(MAX_TIMEOUT), job.timeout.min(MAX_TIMEOUT));
        let job = &Job { join_timeout, timeout, ..job.clone() };
        let _joining = Joining::begin(job)?;
        let (lines, absent) = match job.rank {
            0 if job.ranks > 1 => handshake::gather(job)?,
            0 => Default::default(),
            _ => (vec![handshake::reach(job)?], Vec::new()),
        };
        let mut joined = Self { rank: job.rank, ranks: job.ranks, timeout, lines, ended: false };
        for line in &joined.lines {
            let limit = |source| BootstrapError::Lost { rank: 0, source };
            line.limit(timeout).map_err(limit)?;
        }
        if !absent.is_empty() {
            let error = BootstrapError::Absent { ranks: absent, ms: join_timeout.as_millis() };
            joined.fail(&error.to_string());
            return Err(error);
        }
        // Rank 0 answers when everyone is there, or says who is not: it may have begun to wait when this rank did.
        joined.exchange(&[], join_timeout + timeout)?;
        Ok(joined)
    }

    /// Everyone's bytes, in the order of ranks.
    ///
    /// # Errors
    /// [`BootstrapError::Lost`] names a rank that left or took longer than the timeout; the others
    /// are told. From then on [`BootstrapError::Ended`].
    pub fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.exchange(mine, self.timeout)
    }

    fn exchange(
        &mut self,
        mine: &[u8],
        root_waits: Duration,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        if self.ended {
            return Err(BootstrapError::Ended);
        }
        let all = self.send_and_receive(mine, root_waits);
        self.ended = all.is_err();
        all
    }

    /// The root itself waits for the other ranks, for up to `root_waits`.
    fn send_and_receive(
        &mut self,
        mine: &[u8],
        root_waits: Duration,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let deadline = Instant::now() + self.timeout;
        if self.rank != 0 {
            let lost = |source| BootstrapError::Lost { rank: 0, source };
            let root = &mut self.lines[0];
            // If it has closed, it may have said why before.
            let sent = root.send(DATA, mine);
            let (kind, all) = match (root.receive(deadline + root_waits), sent) {
                (Ok(said), Ok(())) => said,
                (Ok(said), _) if said.0 == FAILED => said,
                (_, Err(source)) | (Err(source), _) => return Err(lost(source)),
            };
            if kind == FAILED {
                return Err(BootstrapError::Told { why: String::from_utf8_lossy(&all).into() });
            }
            let all = unpack(&all).filter(|all| all.len() == self.ranks as usize);
            return all.ok_or_else(|| lost(io::ErrorKind::InvalidData.into()));
        }
        let mut all = vec![mine.to_vec()];
        for (rank, line) in (1u32..).zip(&mut self.lines) {
            match line.receive(deadline) {
                Ok((DATA, theirs)) => all.push(theirs),
                ended => {
                    let error = match ended {
                        Ok((_, why)) => {
                            let why = String::from_utf8_lossy(&why).into();
                            BootstrapError::Failed { rank, why }
                        }
                        Err(source) => BootstrapError::Lost { rank, source },
                    };
                    tell(&mut self.lines, &error.to_string());
                    return Err(error);
                }
            }
        }
        let packed = pack(&all);
        for rank in 1..self.ranks {
            if let Err(source) = self.lines[rank as usize - 1].send(DATA, &packed) {
                let error = BootstrapError::Lost { rank, source };
                // Those that have what was gathered read this with the next.
                tell(&mut self.lines, &error.to_string());
                return Err(error);
            }
        }
        Ok(all)
    }

    /// Tells the others why this rank leaves; their exchanges fail with it, at once.
    pub fn fail(&mut self, why: &str) {
        tell(&mut self.lines, why);
    }

    /// Cores that are this process's: those that it may run on, by the number of ranks of the job that may run on the
    /// same ones. So it is the same whether a launcher binds its processes or not.
    ///
    /// # Errors
    /// As [`Bootstrap::all_gather`].
    pub fn cores(&mut self) -> Result<usize, BootstrapError> {
        let mine = run_on();
        let sharing = self
            .all_gather(mine.as_bytes())?
            .iter()
            .filter(|theirs| **theirs == mine.as_bytes())
            .count();
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Ok((cores / sharing.max(1)).max(1))
    }

    /// How many NICs each rank brings: the least of what all want, and of the channels, since a NIC without one sends
    /// nothing. Who wants no number has room for a thread each on its `cores` ([`SoftConfig::engines_for`]).
    ///
    /// # Errors
    /// [`BootstrapError::Garbled`] names a rank that wants none or says no number; else as
    /// [`Bootstrap::all_gather`].
    pub fn nics(
        &mut self,
        wanted: Option<usize>,
        channels: u32,
        cores: usize,
    ) -> Result<usize, BootstrapError> {
        let wanted = wanted.unwrap_or_else(|| SoftConfig::engines_for(cores));
        let mut least = if self.ranks == 1 { 1 } else { u64::from(channels.max(1)) };
        for (rank, said) in (0u32..).zip(self.all_gather(&(wanted as u64).to_le_bytes())?) {
            let number = said.try_into().ok().map(u64::from_le_bytes).filter(|&n| n > 0);
            let what = "how many NICs it wants, 1 or more";
            least = least.min(number.ok_or(BootstrapError::Garbled { rank, what })?);
        }
        Ok(least as usize)
    }
}

/// This host, since when it runs, and the processors that this process may run on, as Linux says it.
fn run_on() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed_list"));
    format!("{} {}", host.trim(), allowed.unwrap_or_default())
}

fn tell(lines: &mut [Line], why: &str) {
    for line in lines {
        // One that is gone needs not be told.
        let _ = line.send(FAILED, why.as_bytes());
    }
}

fn pack(all: &[Vec<u8>]) -> Vec<u8> {
    all.iter().flat_map(|one| [&(one.len() as u32).to_le_bytes()[..], one].concat()).collect()
}

fn unpack(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk()?;
        let length = u32::from_le_bytes(*length) as usize;
        all.push(rest.get(..length)?.to_vec());
        bytes = &rest[length..];
    }
    Some(all)
}
