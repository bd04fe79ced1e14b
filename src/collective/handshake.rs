//! Handshake between rank 0 and another process of a job. Each side proves that it knows the job's
//! secret with HMAC-SHA-256 over nonces of both sides. A rank also sends the start of the job and
//! its communicator's name, so that a process left over from an earlier start does not get a rank's
//! place, and two joins at once do not cross.
//!
//! All joins of a process that listen at one address share a listener ([`Door`]), which they drive
//! in turn. No thread is started, and no thread waits for an unauthenticated peer. The number of
//! such peers is limited; the oldest makes room for the next. A rank retries until its timeout if
//! it is refused without proof of the secret, or if its place is taken. The place may be held by an
//! attempt of its own that it gave up, or by the process that it replaces; it is free once that
//! connection is closed.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use super::Job;
use super::bootstrap::BootstrapError;
use super::frames::{Keys, Line, keyed, read_all};

const MAGIC: &[u8; 20] = b"bellpush bootstrap 5";
const NONCE: usize = 32;
/// Bytes of a rank's greeting: magic, rank, ranks, nonce, start of the job, communicator; a MAC
/// follows.
const SAYS: usize = 20 + 4 + 4 + NONCE + 32 + 32;
const HELLO: usize = SAYS + 32;
/// Bytes of the join's number in rank 0's answer, which also has a result and a proof.
const ID: usize = 16;
const ANSWER: usize = 1 + ID + 32;
/// Bound of a handshake. The number of concurrent handshakes is limited too.
const HANDSHAKE: Duration = Duration::from_secs(5);
const HANDSHAKES: usize = 128;
/// Interval between two looks at new connections.
const TURN: Duration = Duration::from_millis(2);
/// Pauses between two attempts to reach rank 0: the first and the longest.
const RETRY: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(400)];

/// Reasons of refusals, by their byte on the wire, and whether a refusal is final if it is proven
/// to come from rank 0.
const REFUSALS: [(&str, bool); 7] = [
    ("taken", false),
    (
        "it does not know the job's secret (BELLPUSH_JOB_SECRET, or the user's file that stands in for it)",
        false,
    ),
    ("the number of ranks differs", true),
    // The connection of a given-up attempt, or of an earlier process of the rank, may close in a
    // moment.
    ("the rank has joined already", false),
    ("there is no such rank", true),
    // Rank 0, or this process, may be about to end.
    (
        "it is of another start of the job (the launcher's name of it and number of restarts, or BELLPUSH_JOB_START)",
        false,
    ),
    ("it joins no communicator of this name", false),
];
const STRANGER: u8 = 1;
const OTHER_SIZE: u8 = 2;
const SEATED: u8 = 3;
const NO_SUCH_RANK: u8 = 4;
const OTHER_START: u8 = 5;
const OTHER_NAME: u8 = 6;

type Name = [u8; 32];

fn named(text: &str) -> Name {
    Sha256::digest(text.as_bytes()).into()
}

fn random(into: &mut [u8]) -> io::Result<()> {
    std::fs::File::open("/dev/urandom")?.read_exact(into)
}

/// The messages of both sides, from which the secret makes proofs.
struct Greeting {
    root_nonce: [u8; NONCE],
    says: [u8; SAYS],
}

impl Greeting {
    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|i| self.says[at + i]))
    }

    fn nonce(&self) -> &[u8] {
        &self.says[28..28 + NONCE]
    }

    fn start(&self) -> &[u8] {
        &self.says[28 + NONCE..][..32]
    }

    fn communicator(&self) -> &[u8] {
        &self.says[60 + NONCE..][..32]
    }

    /// Proof that the rank knows the secret, with fresh nonces.
    fn hello(&self, secret: &str) -> Hmac<Sha256> {
        let mut mac = keyed(secret.as_bytes());
        mac.update(b"rank");
        mac.update(&self.root_nonce);
        mac.update(&self.says);
        mac
    }

    /// Proof that rank 0 knows the secret, with fresh nonces and over its answer.
    fn answer(&self, secret: &str, said: &[u8]) -> Hmac<Sha256> {
        let mut mac = keyed(secret.as_bytes());
        mac.update(b"root");
        mac.update(self.nonce());
        mac.update(&self.root_nonce);
        mac.update(said);
        mac
    }

    /// Keys of rank 0's frames and of the rank's: of this connection in this join.
    fn keys(&self, secret: &str, id: &[u8]) -> [[u8; 32]; 2] {
        [&b"frames of rank 0"[..], &b"frames of the rank"[..]].map(|whose| {
            let mut mac = keyed(secret.as_bytes());
            mac.update(whose);
            mac.update(&self.root_nonce);
            mac.update(&self.says);
            mac.update(id);
            mac.finalize().into_bytes().into()
        })
    }
}

/// A join of a communicator by a rank of this process. A second one at the same time could meet the
/// peers of the first.
pub(super) struct Joining(SocketAddr, u32, Name);

static JOINING: LazyLock<Mutex<HashSet<(SocketAddr, u32, Name)>>> = LazyLock::new(Mutex::default);

impl Joining {
    pub fn begin(job: &Job) -> Result<Self, BootstrapError> {
        let key = (job.root, job.rank, named(&job.communicator));
        match JOINING.lock().unwrap_or_else(PoisonError::into_inner).insert(key) {
            true => Ok(Self(key.0, key.1, key.2)),
            false => Err(BootstrapError::Twice { communicator: job.communicator.clone() }),
        }
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        let Self(root, rank, name) = *self;
        JOINING.lock().unwrap_or_else(PoisonError::into_inner).remove(&(root, rank, name));
    }
}

// ---- Rank 0 ------------------------------------------------------------------------------------

/// The listener of this process, and the awaited ranks.
struct Door {
    listener: TcpListener,
    /// Connections that have not been authenticated, the oldest first.
    knocks: VecDeque<Knock>,
    gatherings: HashMap<Name, Gathering>,
}

struct Knock {
    stream: TcpStream,
    until: Instant,
    root_nonce: [u8; NONCE],
    hello: [u8; HELLO],
    got: usize,
}

/// A communicator whose ranks are joining.
struct Gathering {
    job: Job,
    id: [u8; ID],
    seats: Vec<Option<Line>>,
}

static DOORS: LazyLock<Mutex<HashMap<SocketAddr, Door>>> = LazyLock::new(Mutex::default);

fn doors() -> MutexGuard<'static, HashMap<SocketAddr, Door>> {
    DOORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a rank has joined and is still connected: one that is gone may join again.
fn is_held(seat: &Option<Line>) -> bool {
    seat.as_ref().is_some_and(|line| !line.is_closed())
}

/// Waits for up to `job.join_timeout`. Returns the connections in the order of ranks, and the
/// absent ranks.
pub(super) fn gather(job: &Job) -> Result<(Vec<Line>, Vec<u32>), BootstrapError> {
    let listen = |source| BootstrapError::Listen { root: job.root, source };
    let deadline = Instant::now() + job.join_timeout;
    let name = named(&job.communicator);
    let mut id = [0; ID];
    random(&mut id).map_err(listen)?;
    let seats = (1..job.ranks).map(|_| None).collect();
    {
        let mut doors = doors();
        if let Entry::Vacant(place) = doors.entry(job.root) {
            let listener = TcpListener::bind(job.root).map_err(listen)?;
            listener.set_nonblocking(true).map_err(listen)?;
            let (knocks, gatherings) = (VecDeque::new(), HashMap::new());
            place.insert(Door { listener, knocks, gatherings });
        }
        let door = doors.get_mut(&job.root).expect("it is there now");
        door.gatherings.insert(name, Gathering { job: job.clone(), id, seats });
    }
    loop {
        let mut doors = doors();
        let door = doors.get_mut(&job.root).expect("who joins keeps the door");
        door.turn();
        let seats = (1..).zip(&door.gatherings[&name].seats);
        let absent: Vec<u32> = seats.filter(|(_, seat)| !is_held(seat)).map(|(r, _)| r).collect();
        if absent.is_empty() || Instant::now() >= deadline {
            let seats = door.gatherings.remove(&name).expect("this join's own").seats;
            if door.gatherings.is_empty() {
                doors.remove(&job.root);
            }
            return Ok((seats.into_iter().flatten().collect(), absent));
        }
        drop(doors);
        std::thread::sleep(TURN);
    }
}

impl Door {
    /// Reads from unauthenticated connections, then accepts new ones, which may displace old ones.
    /// Never waits.
    fn turn(&mut self) {
        for _ in 0..self.knocks.len() {
            let Some(mut knock) = self.knocks.pop_front() else { break };
            match knock.listen() {
                Ok(true) => self.admit(knock),
                Ok(false) if Instant::now() < knock.until => self.knocks.push_back(knock),
                Ok(false) | Err(_) => {} // An unauthenticated peer.
            }
        }
        for _ in 0..HANDSHAKES / 2 {
            let Ok((stream, _)) = self.listener.accept() else { break };
            if let Ok(knock) = Knock::challenge(stream) {
                if self.knocks.len() == HANDSHAKES {
                    self.knocks.pop_front();
                }
                self.knocks.push_back(knock);
            }
        }
    }

    /// Answers one handshake. A malformed one gets no answer.
    fn admit(&mut self, knock: Knock) {
        let (says, mac) = knock.hello.split_first_chunk().expect("it is longer");
        let said = Greeting { root_nonce: knock.root_nonce, says: *says };
        if said.says[..20] != MAGIC[..] || knock.stream.set_nonblocking(false).is_err() {
            return;
        }
        let Some(gathering) =
            self.gatherings.iter_mut().find(|(name, _)| name[..] == *said.communicator())
        else {
            return refuse(knock.stream, OTHER_NAME, None);
        };
        let Gathering { job, id, seats } = gathering.1;
        // In constant time.
        if said.hello(&job.secret).verify_slice(mac).is_err() {
            return refuse(knock.stream, STRANGER, None);
        }
        let (rank, ranks) = (said.word(20), said.word(24));
        let refusal = match rank {
            _ if *said.start() != named(&job.start) => OTHER_START,
            _ if ranks != job.ranks => OTHER_SIZE,
            _ if rank == 0 || rank >= ranks => NO_SUCH_RANK,
            _ if is_held(&seats[rank as usize - 1]) => SEATED,
            _ => 0,
        };
        let answer = [&[refusal][..], &id[..]].concat();
        let proof = said.answer(&job.secret, &answer).finalize().into_bytes();
        if refusal != 0 {
            return refuse(knock.stream, refusal, Some((&id[..], &proof[..])));
        }
        let mut stream = knock.stream;
        if stream.write_all(&[&answer[..], &proof].concat()).is_ok() {
            let [sends, receives] = said.keys(&job.secret, &id[..]);
            seats[rank as usize - 1] = Some(Line::new(stream, Keys { sends, receives }));
        }
    }
}

/// Sends the reason of a refusal. An unauthenticated peer learns nothing but the reason.
fn refuse(mut stream: TcpStream, refusal: u8, proof: Option<(&[u8], &[u8])>) {
    let (id, mac) = proof.unwrap_or((&[0; ID], &[0; 32]));
    let _ = stream.write_all(&[&[refusal][..], id, mac].concat());
    let _ = stream.shutdown(Shutdown::Both);
}

impl Knock {
    fn challenge(mut stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(HANDSHAKE))?;
        let mut root_nonce = [0; NONCE];
        random(&mut root_nonce)?;
        // The buffer of a new connection holds the nonce.
        stream.write_all(&[&MAGIC[..], &root_nonce].concat())?;
        let until = Instant::now() + HANDSHAKE;
        Ok(Self { stream, until, root_nonce, hello: [0; HELLO], got: 0 })
    }

    /// Whether the whole greeting has arrived.
    fn listen(&mut self) -> io::Result<bool> {
        while self.got < HELLO {
            match self.stream.read(&mut self.hello[self.got..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.got += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}

// ---- The others --------------------------------------------------------------------------------

/// Result of an attempt.
enum Tried {
    Taken(Line),
    /// Reason of the refusal, and whether it is final.
    Refused(&'static str, bool),
}

/// Connects to rank 0.
pub(super) fn reach(job: &Job) -> Result<Line, BootstrapError> {
    let deadline = Instant::now() + job.join_timeout;
    let mut pause = RETRY[0];
    // The refusal tells more than the last attempt's end, for which little time may have been left.
    let mut refused = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let each = left.clamp(Duration::from_millis(1), HANDSHAKE);
        let tried = TcpStream::connect_timeout(&job.root, each)
            .and_then(|stream| greet(job, stream, Instant::now() + each));
        let over = left <= pause;
        match tried {
            Ok(Tried::Taken(line)) => return Ok(line),
            Ok(Tried::Refused(why, end)) if end || over => {
                return Err(BootstrapError::Refused { root: job.root, rank: job.rank, why });
            }
            Err(source) if over => {
                let (root, rank, ms) = (job.root, job.rank, job.join_timeout.as_millis());
                return Err(match refused {
                    Some(why) => BootstrapError::Refused { root, rank, why },
                    None => BootstrapError::NoRoot { root, ms, source },
                });
            }
            Ok(Tried::Refused(why, _)) => {
                refused = Some(why);
                std::thread::sleep(pause);
            }
            // Rank 0 does not listen yet, or has been replaced.
            Err(_) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(RETRY[1]);
    }
}

/// Performs the handshake.
fn greet(job: &Job, mut stream: TcpStream, until: Instant) -> io::Result<Tried> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HANDSHAKE))?;
    let mut first = [0; 20 + NONCE];
    read_all(&mut stream, &mut first, until)?;
    if first[..20] != MAGIC[..] {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut nonce = [0; NONCE];
    random(&mut nonce)?;
    let says = [
        &MAGIC[..],
        &job.rank.to_le_bytes(),
        &job.ranks.to_le_bytes(),
        &nonce,
        &named(&job.start),
        &named(&job.communicator),
    ];
    let said = Greeting {
        root_nonce: std::array::from_fn(|i| first[20 + i]),
        says: says.concat().try_into().expect("these are its parts"),
    };
    let mac = said.hello(&job.secret).finalize().into_bytes();
    stream.write_all(&[&said.says[..], &mac].concat())?;
    let mut answer = [0; ANSWER];
    read_all(&mut stream, &mut answer, until)?;
    // A rank 0 that does not know the secret is not of this job.
    let (told, proof) = answer.split_at(1 + ID);
    let proven = said.answer(&job.secret, told).verify_slice(proof).is_ok();
    if told[0] == 0 && proven {
        let [receives, sends] = said.keys(&job.secret, &told[1..]);
        return Ok(Tried::Taken(Line::new(stream, Keys { sends, receives })));
    }
    let (why, end) = match REFUSALS.get(usize::from(told[0])) {
        Some(&refusal) if told[0] != 0 => refusal,
        _ => ("it is not the job's", false),
    };
    Ok(Tried::Refused(why, end && proven))
}

/// For checks of what strangers and ranks say (`fuzz/checks/bootstrap.rs`).
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzed {
    use super::*;

    pub const SAID: usize = SAYS;
    pub const GREETING: usize = HELLO;
    pub const REPLY: usize = ANSWER;
    pub const MOST: usize = HANDSHAKES;

    /// A rank's greeting, with the proof of whoever knows the secret.
    pub fn greeting(secret: &str, challenge: &[u8; 20 + NONCE], says: [u8; SAYS]) -> Vec<u8> {
        let root_nonce = std::array::from_fn(|i| challenge[20 + i]);
        let mac = Greeting { root_nonce, says }.hello(secret).finalize().into_bytes();
        [&says[..], &mac].concat()
    }

    /// What a rank of a job says, with this nonce.
    pub fn says(job: &Job, nonce: u8) -> [u8; SAYS] {
        let numbers = [job.rank.to_le_bytes(), job.ranks.to_le_bytes()].concat();
        let names = [named(&job.start), named(&job.communicator)].concat();
        let all = [&MAGIC[..], &numbers, &[nonce; NONCE], &names].concat();
        all.try_into().expect("these are its parts")
    }

    /// Rank 0 of a job, and where it listens.
    pub struct Root(Door, Name);

    impl Root {
        pub fn new(job: &Job) -> io::Result<(Self, SocketAddr)> {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            listener.set_nonblocking(true)?;
            let at = listener.local_addr()?;
            let seats = (1..job.ranks).map(|_| None).collect();
            let (name, id) = (named(&job.communicator), [7; ID]);
            let gatherings = HashMap::from([(name, Gathering { job: job.clone(), id, seats })]);
            Ok((Self(Door { listener, knocks: VecDeque::new(), gatherings }, name), at))
        }

        pub fn turn(&mut self) {
            self.0.turn();
        }

        /// Connections that are not authenticated.
        pub fn strangers(&self) -> usize {
            self.0.knocks.len()
        }

        /// Which seats are taken, and by whom.
        pub fn seats(&mut self) -> &mut Vec<Option<Line>> {
            &mut self.0.gatherings.get_mut(&self.1).expect("its own").seats
        }
    }

    /// What a rank makes of what rank 0, or who stands for it, says: whether it takes it for rank 0, or for good for
    /// one that refuses it.
    pub fn reached(job: &Job, stream: TcpStream, until: Instant) -> io::Result<(bool, bool)> {
        Ok(match greet(job, stream, until)? {
            Tried::Taken(_) => (true, false),
            Tried::Refused(_, end) => (false, end),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// All that the keys of a connection are made of makes others: secret, both nonces, join, rank,
    /// start, communicator, direction.
    #[test]
    fn no_other_connection_or_direction_has_the_same_keys() {
        let said = |root: u8, at: usize| {
            let mut says = [0; SAYS];
            says[at] ^= 1;
            Greeting { root_nonce: [root; NONCE], says }
        };
        let id = [0; ID];
        let mut keys = said(0, 0).keys("secret", &id).to_vec();
        keys.extend(said(1, 0).keys("secret", &id));
        for at in [20, 24, 28, 28 + NONCE, 60 + NONCE, SAYS - 1] {
            keys.extend(said(0, at).keys("secret", &id));
        }
        keys.extend(said(0, 0).keys("another", &id));
        keys.extend(said(0, 0).keys("secret", &[1; ID]));
        let different: HashSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
        assert_eq!(said(0, 0).keys("secret", &id)[..], keys[..2], "control");
    }
}
