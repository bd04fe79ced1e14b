//! How the processes of a job find each other: rank 0 listens, the others connect, and each shows
//! that it knows the job's secret (HMAC-SHA-256 over both sides' nonces, both ways). Then they
//! exchange what they need to know, such as their endpoints' addresses.
//!
//! The secret keeps strangers out; it does not encrypt, and who can change packets on the way can do
//! what it likes. Everything is bounded: each step by the timeout, a stranger by the time and bytes
//! of a handshake, and the number of those at once.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, atomic::AtomicUsize, atomic::Ordering};
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::Job;
use super::member::{MAX_RANKS, MAX_TIMEOUT};
use crate::nic::soft::SoftConfig;

const MAGIC: &[u8; 20] = b"bellpush bootstrap 2";
const NONCE: usize = 32;
/// What a client says: magic, rank, ranks, nonce, MAC.
const HELLO: usize = 20 + 4 + 4 + NONCE + 32;
/// A frame's kinds, and the longest one.
const DATA: u8 = 1;
const FAILED: u8 = 2;
const MAX_FRAME: usize = 64 << 20;
/// A handshake may take so long, and so many may be under way.
const HANDSHAKE: Duration = Duration::from_secs(2);
const HANDSHAKES: usize = 64;
/// Pause between two tries to reach the root.
const RETRY: Duration = Duration::from_millis(50);

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

/// Why the root refused, as one byte.
const REFUSALS: [&str; 5] = [
    "taken",
    "it does not know the job's secret (BELLPUSH_JOB_SECRET, or the user's file that stands in for it)",
    "the number of ranks differs",
    "the rank has joined already",
    "there is no such rank",
];

/// This process's connections to the others of its job.
pub struct Bootstrap {
    rank: u32,
    ranks: u32,
    timeout: Duration,
    /// Rank 0: the others' connections, by rank - 1. Others: the one to rank 0.
    streams: Vec<TcpStream>,
}

impl Bootstrap {
    /// Joins the job; returns when all ranks have.
    ///
    /// # Errors
    /// Names who is missing, at every rank that came.
    pub fn join(job: &Job) -> Result<Self, BootstrapError> {
        job.check()?;
        let job = &Job { timeout: job.timeout.min(MAX_TIMEOUT), ..job.clone() };
        let streams = match job.rank {
            0 if job.ranks > 1 => gather(job)?,
            0 => Vec::new(),
            _ => vec![reach(job)?],
        };
        let mut joined = Self { rank: job.rank, ranks: job.ranks, timeout: job.timeout, streams };
        for stream in &joined.streams {
            let limit = |source| BootstrapError::Lost { rank: 0, source };
            stream.set_write_timeout(Some(joined.timeout)).map_err(limit)?;
        }
        // Rank 0 answers when everyone is there, or says who is not.
        joined.all_gather(&[])?;
        Ok(joined)
    }

    /// Everyone's bytes, in the order of ranks.
    ///
    /// # Errors
    /// [`BootstrapError::Lost`] names a rank that left or took longer than the timeout; the others
    /// are told.
    pub fn all_gather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let deadline = Instant::now() + self.timeout;
        if self.rank != 0 {
            let lost = |source| BootstrapError::Lost { rank: 0, source };
            let root = &mut self.streams[0];
            // If it has closed, it may have said why before.
            let sent = send(root, DATA, mine);
            // The root itself may wait a timeout long for another rank.
            let (kind, all) = match (receive(root, deadline + self.timeout), sent) {
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
        for (rank, stream) in (1u32..).zip(&mut self.streams) {
            match receive(stream, deadline) {
                Ok((DATA, theirs)) => all.push(theirs),
                ended => {
                    let error = match ended {
                        Ok((_, why)) => {
                            let why = String::from_utf8_lossy(&why).into();
                            BootstrapError::Failed { rank, why }
                        }
                        Err(source) => BootstrapError::Lost { rank, source },
                    };
                    tell(&mut self.streams, &error.to_string());
                    return Err(error);
                }
            }
        }
        let packed = pack(&all);
        for rank in 1..self.ranks {
            let stream = &mut self.streams[rank as usize - 1];
            if let Err(source) = send(stream, DATA, &packed) {
                let error = BootstrapError::Lost { rank, source };
                // Those that have what was gathered read this with the next.
                tell(&mut self.streams, &error.to_string());
                return Err(error);
            }
        }
        Ok(all)
    }

    /// Tells the others why this rank leaves; their exchanges fail with it, at once.
    pub fn fail(&mut self, why: &str) {
        tell(&mut self.streams, why);
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

fn tell(streams: &mut [TcpStream], why: &str) {
    for stream in streams {
        // One that is gone needs not be told.
        let _ = send(stream, FAILED, why.as_bytes());
    }
}

// ---- Rank 0 ------------------------------------------------------------------------------------

fn gather(job: &Job) -> Result<Vec<TcpStream>, BootstrapError> {
    let listen = |source| BootstrapError::Listen { root: job.root, source };
    let listener = TcpListener::bind(job.root).map_err(listen)?;
    listener.set_nonblocking(true).map_err(listen)?;
    let deadline = Instant::now() + job.timeout;
    let mut seats: Vec<Option<TcpStream>> = (1..job.ranks).map(|_| None).collect();
    let (found, joined) = mpsc::channel();
    let busy = Arc::new(AtomicUsize::new(0));
    while seats.iter().any(Option::is_none) && Instant::now() < deadline {
        while busy.load(Ordering::Relaxed) < HANDSHAKES {
            let Ok((stream, _)) = listener.accept() else { break };
            busy.fetch_add(1, Ordering::Relaxed);
            let (job, found, busy) = (job.clone(), found.clone(), busy.clone());
            std::thread::spawn(move || {
                admit(&job, stream, &found);
                busy.fetch_sub(1, Ordering::Relaxed);
            });
        }
        match joined.recv_timeout(Duration::from_millis(5)) {
            Ok((rank, known)) => seat(&mut seats, rank, known),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
    let absent: Vec<u32> =
        (1..).zip(&seats).filter(|(_, seat)| seat.is_none()).map(|(rank, _)| rank).collect();
    let mut streams: Vec<TcpStream> = seats.into_iter().flatten().collect();
    if absent.is_empty() {
        return Ok(streams);
    }
    let error = BootstrapError::Absent { ranks: absent, ms: job.timeout.as_millis() };
    tell(&mut streams, &error.to_string());
    Err(error)
}

/// A client that knows the secret, with what it must be told to believe us.
struct Known {
    stream: TcpStream,
    proof: [u8; 32],
}

/// One handshake, up to the answer. A stranger is told so; what makes no sense is dropped.
fn admit(job: &Job, mut stream: TcpStream, found: &Sender<(u32, Known)>) {
    let until = Instant::now() + HANDSHAKE;
    let mut nonce = [0; NONCE];
    let mut hello = [0; HELLO];
    let ready = stream.set_nonblocking(false).is_ok()
        && stream.set_nodelay(true).is_ok()
        && stream.set_write_timeout(Some(HANDSHAKE)).is_ok()
        && random(&mut nonce).is_ok()
        && stream.write_all(&[&MAGIC[..], &nonce].concat()).is_ok();
    if !ready || read_all(&mut stream, &mut hello, until).is_err() || hello[..20] != MAGIC[..] {
        return;
    }
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| hello[at + i]));
    let (rank, ranks, theirs) = (word(20), word(24), &hello[28..28 + NONCE]);
    let mut mac = keyed(&job.secret);
    mac.update(b"rank");
    mac.update(&nonce);
    mac.update(&hello[..28 + NONCE]);
    // In constant time.
    let refusal = match mac.verify_slice(&hello[28 + NONCE..]) {
        Err(_) => 1,
        Ok(()) if ranks != job.ranks => 2,
        Ok(()) if rank == 0 || rank >= ranks => 4,
        Ok(()) => {
            let proof = proof(&job.secret, theirs, &nonce, rank);
            let _ = found.send((rank, Known { stream, proof })); // else the root has given up
            return;
        }
    };
    refuse(&mut stream, refusal);
}

fn refuse(stream: &mut TcpStream, refusal: u8) {
    // Padded to the answer's length; a stranger learns the reason and nothing else.
    let mut answer = [0; 33];
    answer[0] = refusal;
    let _ = stream.write_all(&answer);
    let _ = stream.shutdown(Shutdown::Both);
}

fn seat(seats: &mut [Option<TcpStream>], rank: u32, mut known: Known) {
    let place = &mut seats[rank as usize - 1];
    if place.is_some() {
        return refuse(&mut known.stream, 3);
    }
    let answer = [&[0u8][..], &known.proof].concat();
    if known.stream.write_all(&answer).is_ok() {
        *place = Some(known.stream);
    }
}

// ---- The others --------------------------------------------------------------------------------

fn reach(job: &Job) -> Result<TcpStream, BootstrapError> {
    let deadline = Instant::now() + job.timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let tried = TcpStream::connect_timeout(&job.root, left.max(Duration::from_millis(1)))
            .and_then(|stream| greet(job, stream, deadline));
        match tried {
            Ok((0, stream)) => return Ok(stream),
            Ok((refusal, _)) => {
                let why = REFUSALS.get(usize::from(refusal)).unwrap_or(&"it is not the job's");
                return Err(BootstrapError::Refused { root: job.root, rank: job.rank, why });
            }
            // Not there yet, or no longer the one that was there.
            Err(_) if left > RETRY => std::thread::sleep(RETRY),
            Err(source) => {
                let ms = job.timeout.as_millis();
                return Err(BootstrapError::NoRoot { root: job.root, ms, source });
            }
        }
    }
}

/// The handshake; what the root said.
fn greet(job: &Job, mut stream: TcpStream, deadline: Instant) -> io::Result<(u8, TcpStream)> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HANDSHAKE))?;
    let mut first = [0; 20 + NONCE];
    read_all(&mut stream, &mut first, deadline)?;
    if first[..20] != MAGIC[..] {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let root_nonce = &first[20..];
    let mut nonce = [0; NONCE];
    random(&mut nonce)?;
    let mut hello =
        [&MAGIC[..], &job.rank.to_le_bytes(), &job.ranks.to_le_bytes(), &nonce].concat();
    let mut mac = keyed(&job.secret);
    mac.update(b"rank");
    mac.update(root_nonce);
    mac.update(&hello);
    hello.extend(mac.finalize().into_bytes());
    stream.write_all(&hello)?;
    let mut answer = [0; 33];
    read_all(&mut stream, &mut answer, deadline)?;
    // A root that does not know the secret is none of ours.
    let right = answer[1..] == proof(&job.secret, &nonce, root_nonce, job.rank);
    let said = if answer[0] == 0 && !right { u8::MAX } else { answer[0] };
    Ok((said, stream))
}

// ---- Bytes -------------------------------------------------------------------------------------

fn keyed(secret: &str) -> Hmac<Sha256> {
    Hmac::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length")
}

/// What only a root that knows the secret can say to this client.
fn proof(secret: &str, client_nonce: &[u8], root_nonce: &[u8], rank: u32) -> [u8; 32] {
    let mut mac = keyed(secret);
    mac.update(b"root");
    mac.update(client_nonce);
    mac.update(root_nonce);
    mac.update(&rank.to_le_bytes());
    mac.finalize().into_bytes().into()
}

fn random(into: &mut [u8]) -> io::Result<()> {
    std::fs::File::open("/dev/urandom")?.read_exact(into)
}

fn read_all(stream: &mut TcpStream, mut into: &mut [u8], until: Instant) -> io::Result<()> {
    while !into.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => into = &mut into[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn send(stream: &mut TcpStream, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).ok().filter(|&n| n as usize <= MAX_FRAME);
    let length = length.ok_or(io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&[kind][..], &length.to_le_bytes()].concat())?;
    stream.write_all(bytes)
}

fn receive(stream: &mut TcpStream, until: Instant) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    read_all(stream, &mut head, until)?;
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if length > MAX_FRAME || !matches!(head[0], DATA | FAILED) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    read_all(stream, &mut bytes, until)?;
    Ok((head[0], bytes))
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
