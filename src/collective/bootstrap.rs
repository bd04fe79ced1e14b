//! Bootstrap of a job's processes: rank 0 listens, the others connect, and both sides of a
//! connection prove that they know the job's secret (`handshake`). The processes then exchange
//! their endpoints' addresses and the like in authenticated frames (`frames`).
//!
//! Guarantees: every frame comes from a process that knows the secret, and belongs to this join.
//! Nothing is encrypted. Everything is bounded: joining and each exchange by timeouts of their own,
//! an unauthenticated peer by the time and bytes of a handshake, and the number of such peers.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Job;
use super::frames::{DATA, FAILED, Line, MAX_FRAME};
use super::handshake::{self, Joining};
use super::job::LEAST_SECRET;
use super::member::{MAX_RANKS, MAX_TIMEOUT};
use crate::nic::soft::SoftConfig;

/// Reason why a job's ranks could not be connected.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// An environment variable is not set.
    #[error("{name} is not set, and all ranks of a job need it alike")]
    Missing {
        /// The variable.
        name: &'static str,
    },
    /// The value of an environment variable is invalid.
    #[error("{name} is '{given}', but must be {must}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value.
        given: String,
        /// The accepted values.
        must: &'static str,
    },
    /// No secret was set, and none could be made.
    #[error(
        "BELLPUSH_JOB_SECRET is not set, and {} cannot stand in for it: {source}",
        .path.display()
    )]
    Secret {
        /// The user's file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The secret can be guessed.
    #[error(
        "the job's secret (BELLPUSH_JOB_SECRET) has {bytes} bytes, and must have {LEAST_SECRET} or more: whoever \
         sees a handshake can try short ones, so let 'openssl rand -hex 16' choose it"
    )]
    ShortSecret {
        /// Its bytes.
        bytes: usize,
    },
    /// The number of ranks is zero or above the limit.
    #[error("{ranks} ranks: a job has 1 to {MAX_RANKS}")]
    Ranks {
        /// Number of ranks.
        ranks: u32,
    },
    /// This process is already joining a communicator with the same name, and the two joins could
    /// cross.
    #[error(
        "this process is joining a communicator named '{communicator}' already: those that are joined at once need names of their own"
    )]
    Twice {
        /// The name.
        communicator: String,
    },
    /// The rank is not below the number of ranks.
    #[error("rank {rank} of {ranks} ranks: ranks count from 0")]
    Rank {
        /// The rank.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
    },
    /// A timeout of 0.
    #[error("the timeout of {what} is 0, and must be more")]
    NoTime {
        /// Of what.
        what: &'static str,
    },
    /// Rank 0 could not listen.
    #[error("rank 0 cannot listen at {root}: {source}")]
    Listen {
        /// The address.
        root: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// Rank 0 did not answer.
    #[error("rank 0 did not answer at {root} within {ms} ms: {source}")]
    NoRoot {
        /// Its expected address.
        root: SocketAddr,
        /// The timeout.
        ms: u128,
        /// Error of the last attempt.
        source: io::Error,
    },
    /// Some ranks did not join.
    #[error("rank {} did not join within {ms} ms", list(.ranks))]
    Absent {
        /// The ranks.
        ranks: Vec<u32>,
        /// The timeout.
        ms: u128,
    },
    /// Rank 0 refused this rank, or it does not belong to the job.
    #[error("rank 0 at {root} refused rank {rank}: {why}")]
    Refused {
        /// Its address.
        root: SocketAddr,
        /// This rank.
        rank: u32,
        /// The reason.
        why: &'static str,
    },
    /// A rank left during an exchange, or exceeded the timeout.
    #[error("the connection to rank {rank} failed: {source}")]
    Lost {
        /// The rank.
        rank: u32,
        /// The cause.
        source: io::Error,
    },
    /// A rank's answer could not be parsed.
    #[error("rank {rank} does not say {what}: is it of another version?")]
    Garbled {
        /// The rank.
        rank: u32,
        /// The expected contents.
        what: &'static str,
    },
    /// An earlier exchange failed. It is then unknown to which exchange a received frame belongs.
    #[error("an earlier exchange of these ranks has failed")]
    Ended,
    /// A rank failed by itself and told the others before it left.
    #[error("rank {rank} gave up: {why}")]
    Failed {
        /// The rank.
        rank: u32,
        /// Its reason.
        why: String,
    },
    /// Rank 0 reported an error.
    #[error("rank 0 says: {why}")]
    Told {
        /// Its error.
        why: String,
    },
}

fn list(ranks: &[u32]) -> String {
    ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Bytes of a length in what rank 0 sends.
const LENGTH: usize = 4;

/// This process's connections to the other processes of its job.
pub struct Bootstrap {
    rank: u32,
    ranks: u32,
    timeout: Duration,
    /// At rank 0: the connections to the others, by rank - 1. At the others: the connection to rank
    /// 0.
    lines: Vec<Line>,
    /// Whether an exchange has failed.
    ended: bool,
}

impl Bootstrap {
    /// Joins the job; returns when all ranks have joined.
    ///
    /// # Errors
    /// [`BootstrapError`]; every rank that joined gets the names of the absent ones.
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
        let mut joined = Self::over(lines, (job.rank, job.ranks), timeout);
        if !absent.is_empty() {
            let error = BootstrapError::Absent { ranks: absent, ms: join_timeout.as_millis() };
            joined.fail(&error.to_string());
            return Err(error);
        }
        // Rank 0 answers when all ranks are present, or names the absent ones. It may have started
        // to wait as late as this rank.
        joined.exchange(&[], join_timeout + timeout)?;
        Ok(joined)
    }

    /// Rank `rank` of `ranks`, once it is connected.
    pub(super) fn over(lines: Vec<Line>, (rank, ranks): (u32, u32), timeout: Duration) -> Self {
        Self { rank, ranks, timeout, lines, ended: false }
    }

    /// Address of this process on its connection to rank 0; at rank 0, on that to rank 1. `None` in a job of one rank.
    ///
    /// # Errors
    /// The system's.
    pub fn local_address(&self) -> io::Result<Option<SocketAddr>> {
        self.lines.first().map(Line::local_address).transpose()
    }

    /// Gathers the bytes of all ranks, in the order of ranks, at every rank.
    ///
    /// # Errors
    /// [`BootstrapError::Lost`] names a rank that left or exceeded the timeout; the other ranks are
    /// told. Later exchanges fail with [`BootstrapError::Ended`].
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

    /// Exchanges bytes through rank 0, which itself waits for the other ranks for up to
    /// `root_waits`.
    fn send_and_receive(
        &mut self,
        mine: &[u8],
        root_waits: Duration,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let deadline = Instant::now() + self.timeout;
        if self.rank != 0 {
            let lost = |source| BootstrapError::Lost { rank: 0, source };
            let root = &mut self.lines[0];
            // A rank 0 that has closed the connection may have sent its reason before.
            let sent = root.send(DATA, mine, deadline);
            let (kind, all) = match (root.receive(deadline + root_waits), sent) {
                (Ok(said), Ok(())) => said,
                (Ok(said), _) if said.0 == FAILED => said,
                (_, Err(source)) | (Err(source), _) => return Err(lost(source)),
            };
            if kind == FAILED {
                return Err(BootstrapError::Told { why: String::from_utf8_lossy(&all).into() });
            }
            let all = unpack(&all, self.ranks as usize);
            return all.ok_or_else(|| lost(io::ErrorKind::InvalidData.into()));
        }
        let mut all = vec![mine.to_vec()];
        // All of them go in one frame: what does not fit is not taken, and who says it is named.
        let lengths = LENGTH * self.ranks as usize;
        let mut room = MAX_FRAME.saturating_sub(lengths + mine.len());
        for (rank, line) in (1u32..).zip(&mut self.lines) {
            match line.receive_at_most(room, deadline) {
                Ok((DATA, theirs)) => {
                    room -= theirs.len();
                    all.push(theirs);
                }
                ended => {
                    let error = match ended {
                        Ok((_, why)) => {
                            let why = String::from_utf8_lossy(&why).into();
                            BootstrapError::Failed { rank, why }
                        }
                        Err(source) => BootstrapError::Lost { rank, source },
                    };
                    self.fail(&error.to_string());
                    return Err(error);
                }
            }
        }
        // For all ranks together: each waits for so long behind what it has sent.
        let (packed, until) = (pack(&all), Instant::now() + self.timeout);
        for rank in 1..self.ranks {
            if let Err(source) = self.lines[rank as usize - 1].send(DATA, &packed, until) {
                let error = BootstrapError::Lost { rank, source };
                // Ranks that already have the gathered bytes read this in the next exchange.
                self.fail(&error.to_string());
                return Err(error);
            }
        }
        Ok(all)
    }

    /// Tells the other ranks why this rank leaves; their exchanges fail at once.
    /// Takes no longer than an exchange's timeout, however many they are.
    pub fn fail(&mut self, why: &str) {
        // One that takes nothing does not keep those behind it from being told.
        let each = self.timeout / self.lines.len().max(1) as u32;
        for line in &mut self.lines {
            // A rank that is gone cannot be told.
            let _ = line.send(FAILED, why.as_bytes(), Instant::now() + each);
        }
    }

    /// Cores for this process: those that it may run on, divided by the number of ranks of the job
    /// that may run on the same cores. The result does not depend on whether a launcher binds its
    /// processes.
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

    /// Number of NICs of each rank: the minimum of the ranks' requests and of the channels, since a
    /// NIC without a channel sends nothing. A rank without a request gets as many as have a thread
    /// each on its `cores` ([`SoftConfig::engines_for`]).
    ///
    /// # Errors
    /// [`BootstrapError::Garbled`] names a rank that requests zero or sends no number; otherwise
    /// as [`Bootstrap::all_gather`].
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

/// This host, its boot, and the processors that this process may run on, as Linux reports them.
fn run_on() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed_list"));
    format!("{} {}", host.trim(), allowed.unwrap_or_default())
}

fn pack(all: &[Vec<u8>]) -> Vec<u8> {
    all.iter().flat_map(|one| [&(one.len() as u32).to_le_bytes()[..], one].concat()).collect()
}

/// What [`pack`] made of so many; `None` of anything else, before more memory is taken than there are bytes.
fn unpack(mut bytes: &[u8], ranks: usize) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    while !bytes.is_empty() && all.len() < ranks {
        let (length, rest) = bytes.split_first_chunk::<LENGTH>()?;
        let length = u32::from_le_bytes(*length) as usize;
        all.push(rest.get(..length)?.to_vec());
        bytes = &rest[length..];
    }
    (bytes.is_empty() && all.len() == ranks).then_some(all)
}
