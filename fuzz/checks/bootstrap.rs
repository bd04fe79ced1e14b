//! Bootstrap of a job's processes: what strangers say before the handshake, and what ranks say after it with the
//! right keys. The first byte of an input says which.
//!
//! What must hold, whatever the bytes say:
//!
//! - of a connection's frames those are heard that are whole, right and in their order, and nothing behind the first
//!   that is not;
//! - an exchange is what all ranks said, in the order of ranks, at every rank; or an error that names the first rank
//!   that did not say its part, of which the others hear, and after which there is no other exchange;
//! - nobody has a rank's seat, or passes for rank 0, who does not know the secret; who does has its own seat alone, and
//!   not one of another start, size or communicator; strangers are bounded;
//! - nobody is turned away for good without a proof;
//! - everything ends soon: at the latest when its time is over.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use hmac::Mac;

use super::bootstrap::{Bootstrap, BootstrapError};
use super::frames::{DATA, FAILED, HEAD, Keys, Line, MAC, MAX_FRAME, mac};
use super::handshake::fuzzed::{GREETING, MOST, REPLY, Root, SAID, greeting, reached, says};
use super::job::Job;

/// How long what is not there is waited for.
const PATIENCE: Duration = Duration::from_millis(20);
/// Longest that an input takes, on a machine that does much else.
const SOON: Duration = Duration::from_secs(20);
const SECRET: &str = "0123456789abcdef";
const CHALLENGE: usize = 52;

/// What an input led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Frames that were heard; ranks that were seated.
    pub heard: u64,
    /// Frames, exchanges and handshakes that were refused.
    pub refused: u64,
    /// Exchanges that were whole.
    pub exchanges: u64,
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let n = usize::from(self.u8()) % (most + 1);
        (0..n).map(|_| self.u8()).collect()
    }
}

/// Panics when something is wrong.
pub fn run(data: &[u8]) -> Outcome {
    let (mut input, begin) = (Input(data), Instant::now());
    let mut outcome = Outcome::default();
    match input.u8() % 4 {
        0 => frames(&mut input, &mut outcome),
        1 => exchange(&mut input, &mut outcome),
        2 => strangers(&mut input, &mut outcome),
        _ => false_root(&mut input, &mut outcome),
    }
    assert!(begin.elapsed() < SOON, "it took {:?}", begin.elapsed());
    outcome
}

/// Two ends of a connection. (Frames go over any stream.)
fn pair() -> (TcpStream, TcpStream) {
    let (a, b) = UnixStream::pair().expect("two sockets");
    let tcp = |end| TcpStream::from(OwnedFd::from(end));
    (tcp(a), tcp(b))
}

fn keys(of: u8) -> Keys {
    Keys { sends: [of; 32], receives: [of ^ 0x80; 32] }
}

/// The other end's.
fn mirrored(keys: Keys) -> Keys {
    Keys { sends: keys.receives, receives: keys.sends }
}

/// A frame as bytes, and whether it is right: the next of its connection.
struct Frame {
    kind: u8,
    payload: Vec<u8>,
    bytes: Vec<u8>,
    is_right: bool,
}

/// A frame of the input's, mostly right.
fn frame(input: &mut Input<'_>, key: &[u8; 32], number: u64, payload: Vec<u8>) -> Frame {
    let how = input.u8();
    let mut kind = if how & 1 == 0 { DATA } else { FAILED };
    let mut head = [&[kind][..], &(payload.len() as u32).to_le_bytes()].concat();
    let mut sealed = *key;
    let mut counted = number;
    let mut is_right = false;
    match how >> 3 {
        // A right MAC over what makes no sense.
        1 => {
            kind = input.u8();
            head[0] = kind;
            is_right = matches!(kind, DATA | FAILED);
        }
        2 => head[1..].copy_from_slice(&(MAX_FRAME as u32 + 1 + u32::from(how)).to_le_bytes()),
        3 => sealed[0] ^= 1,
        4 => counted = number.wrapping_add(u64::from(input.u8() | 1)),
        // More than comes.
        5 => head[1..].copy_from_slice(&(payload.len() as u32 + 1 + u32::from(how)).to_le_bytes()),
        _ => is_right = true,
    }
    let tag = mac(&sealed, counted, &head, &payload).finalize().into_bytes();
    let mut bytes = [&head[..], &payload, &tag].concat();
    match how >> 3 {
        6 => {
            let at = usize::from(input.u8()) % bytes.len();
            let flip = input.u8();
            bytes[at] ^= flip;
            is_right = flip == 0;
        }
        7 => {
            let cut = usize::from(input.u8()) % bytes.len();
            bytes.truncate(cut);
            is_right = false;
        }
        _ => {}
    }
    Frame { kind, payload, bytes, is_right }
}

/// Frames of one connection.
fn frames(input: &mut Input<'_>, outcome: &mut Outcome) {
    let (mut there, here) = pair();
    let (ours, closes) = (keys(1), input.u8() & 1 == 0);
    let mut line = Line::new(here, ours);
    let mut right = Vec::new();
    let mut spoilt = false;
    for number in 0..input.u8() % 6 {
        let payload = input.bytes(200);
        let frame = frame(input, &ours.receives, number.into(), payload);
        there.write_all(&frame.bytes).expect("there is room");
        spoilt |= !frame.is_right;
        if !spoilt {
            right.push((frame.kind, frame.payload));
        }
    }
    if closes {
        drop(there);
    }
    let until = Instant::now() + PATIENCE;
    for expected in &right {
        let heard = line.receive(until + SOON).expect("a right frame");
        assert!(&heard == expected, "{heard:?} and not {expected:?}");
        outcome.heard += 1;
    }
    let behind = line.receive(until);
    assert!(behind.is_err(), "heard behind what is wrong: {behind:?}");
    outcome.refused += u64::from(spoilt);
}

/// What a rank says in an exchange.
struct Part {
    bytes: Vec<u8>,
    says: Option<(u8, Vec<u8>)>,
}

fn part(input: &mut Input<'_>, key: &[u8; 32], payload: Vec<u8>) -> Part {
    let frame = frame(input, key, 0, payload);
    let says = frame.is_right.then_some((frame.kind, frame.payload));
    Part { bytes: frame.bytes, says }
}

fn exchange(input: &mut Input<'_>, outcome: &mut Outcome) {
    match input.u8() % 3 {
        0 => at_rank_0(input, outcome),
        1 => at_a_rank(input, outcome),
        _ => numbers(input, outcome),
    }
}

/// Rank 0, whose ranks say what they like.
fn at_rank_0(input: &mut Input<'_>, outcome: &mut Outcome) {
    let ranks = 2 + u32::from(input.u8() % 4);
    let mine = input.bytes(40);
    let mut theirs = Vec::new();
    let mut lines = Vec::new();
    let mut parts = Vec::new();
    for rank in 1..ranks {
        let (mut there, here) = pair();
        let own = keys(rank as u8);
        let payload = input.bytes(60);
        let part = part(input, &own.receives, payload);
        there.write_all(&part.bytes).expect("there is room");
        lines.push(Line::new(here, own));
        // Who says nothing right has closed, so that nobody waits.
        if part.says.is_none() {
            there.shutdown(std::net::Shutdown::Write).expect("it is open");
        }
        theirs.push(Line::new(there, mirrored(own)));
        parts.push(part.says);
    }
    let mut root = Bootstrap::over(lines, (0, ranks), SOON);
    let said = root.all_gather(&mine);
    let fault = (1u32..).zip(&parts).find(|(_, says)| !matches!(says, Some((DATA, _))));
    let soon = || Instant::now() + SOON;
    match (fault, said) {
        (None, Ok(all)) => {
            let parts = parts.iter().flatten().map(|(_, bytes)| bytes.clone());
            let right: Vec<_> = [mine].into_iter().chain(parts).collect();
            assert_eq!(all, right);
            for line in &mut theirs {
                let (kind, packed) = line.receive(soon()).expect("what all said");
                let lengths: Vec<_> =
                    right.iter().map(|one| (one.len() as u32).to_le_bytes()).collect();
                let whole: Vec<_> = right
                    .iter()
                    .zip(&lengths)
                    .flat_map(|(one, n)| [&n[..], one].concat())
                    .collect();
                assert_eq!((kind, packed), (DATA, whole));
            }
            outcome.exchanges += 1;
        }
        (Some((first, says)), Err(error)) => {
            let named = match &error {
                BootstrapError::Failed { rank, why } => {
                    let told = says.as_ref().map(|(_, bytes)| String::from_utf8_lossy(bytes));
                    assert_eq!(Some(why.as_str()), told.as_deref(), "{error}");
                    *rank
                }
                BootstrapError::Lost { rank, .. } => {
                    assert!(says.is_none(), "rank {rank} said {says:?}: {error}");
                    *rank
                }
                other => panic!("{other}"),
            };
            assert_eq!(named, first, "{error}");
            for line in &mut theirs {
                let heard = line.receive(soon()).expect("why it ended");
                assert_eq!(heard, (FAILED, error.to_string().into_bytes()));
            }
            let again = root.all_gather(b"");
            assert!(matches!(again, Err(BootstrapError::Ended)), "{again:?}");
            outcome.refused += 1;
        }
        (fault, said) => panic!("{fault:?}: {said:?}"),
    }
}

/// Another rank, whose rank 0 says what it likes.
fn at_a_rank(input: &mut Input<'_>, outcome: &mut Outcome) {
    let ranks = 2 + u32::from(input.u8() % 4);
    let own = keys(9);
    let (mut there, here) = pair();
    let payload = if input.u8() & 1 == 0 {
        // What all said, or nearly.
        let mut packed = Vec::new();
        let n = ranks - u32::from(input.u8() > 230) + u32::from(input.u8() > 230);
        for _ in 0..n {
            let one = input.bytes(30);
            let length = one.len() as u32 + u32::from(input.u8() > 245);
            packed.extend(length.to_le_bytes());
            packed.extend(one);
        }
        packed
    } else {
        input.bytes(100)
    };
    let part = part(input, &own.receives, payload);
    there.write_all(&part.bytes).expect("there is room");
    there.shutdown(std::net::Shutdown::Write).expect("it is open");
    let mut rank = Bootstrap::over(vec![Line::new(here, own)], (1, ranks), SOON);
    let said = rank.all_gather(b"mine");
    match (&part.says, &said) {
        (Some((DATA, packed)), Ok(all)) => {
            assert_eq!(all.len(), ranks as usize, "{packed:?}");
            let again: Vec<u8> = all
                .iter()
                .flat_map(|one| [&(one.len() as u32).to_le_bytes()[..], one].concat())
                .collect();
            assert_eq!(&again, packed);
            outcome.exchanges += 1;
        }
        (Some((FAILED, why)), Err(BootstrapError::Told { why: told })) => {
            assert_eq!(told, &String::from_utf8_lossy(why));
        }
        (None | Some((DATA, _)), Err(BootstrapError::Lost { rank: 0, .. })) => {}
        (says, said) => panic!("{says:?}: {said:?}"),
    }
    if said.is_err() {
        assert!(matches!(rank.all_gather(b""), Err(BootstrapError::Ended)));
        outcome.refused += 1;
    }
}

/// How many NICs ranks want.
fn numbers(input: &mut Input<'_>, outcome: &mut Outcome) {
    let own = keys(3);
    let (mut there, here) = pair();
    let payload = match input.u8() % 4 {
        0 => input.bytes(12),
        n => (u64::from(n) * u64::from(input.u8())).to_le_bytes().into(),
    };
    let bytes = frame(&mut Input(&[]), &own.receives, 0, payload.clone()).bytes;
    there.write_all(&bytes).expect("there is room");
    let (wanted, channels) = (usize::from(input.u8()) + 1, u32::from(input.u8()));
    let mut root = Bootstrap::over(vec![Line::new(here, own)], (0, 2), SOON);
    let said: Option<u64> = payload.try_into().ok().map(u64::from_le_bytes).filter(|&n| n > 0);
    match (root.nics(Some(wanted), channels, 1), said) {
        (Ok(n), Some(theirs)) => {
            let least = theirs.min(wanted as u64).min(channels.max(1).into());
            assert_eq!(n as u64, least);
            outcome.exchanges += 1;
        }
        (Err(BootstrapError::Garbled { rank: 1, .. }), None) => outcome.refused += 1,
        (n, said) => panic!("{said:?}: {n:?}"),
    }
}

fn job(rank: u32, ranks: u32) -> Job {
    Job {
        rank,
        ranks,
        local_rank: rank,
        root: "127.0.0.1:1".parse().expect("an address"),
        secret: SECRET.into(),
        start: "a start".into(),
        communicator: "a name".into(),
        join_timeout: SOON,
        timeout: SOON,
    }
}

/// Somebody at rank 0's door.
struct Guest {
    stream: TcpStream,
    /// The seat that it is to have.
    rank: Option<u32>,
    is_whole: bool,
}

/// Strangers and ranks at rank 0's door.
fn strangers(input: &mut Input<'_>, outcome: &mut Outcome) {
    let ranks = 2 + u32::from(input.u8() % 3);
    let (mut root, at) = Root::new(&job(0, ranks)).expect("a listener");
    let mut guests: Vec<Guest> = Vec::new();
    let mut taken = vec![false; ranks as usize];
    for _ in 0..input.u8() % 5 {
        let mut stream = TcpStream::connect(at).expect("it listens");
        root.turn();
        let mut challenge = [0; CHALLENGE];
        stream.set_read_timeout(Some(SOON)).expect("a timeout");
        stream.read_exact(&mut challenge).expect("a challenge");
        let (said, rank) = say(input, &challenge, ranks);
        stream.write_all(&said).expect("there is room");
        let is_whole = said.len() >= GREETING;
        // Who has the seat keeps it.
        let rank = rank.filter(|&rank| is_whole && !taken[rank as usize]);
        rank.inspect(|&rank| taken[rank as usize] = true);
        let mut guest = Guest { stream, rank, is_whole };
        settle(&mut root, &mut guest, outcome);
        guests.push(guest);
    }
    assert!(root.strangers() <= guests.iter().filter(|guest| !guest.is_whole).count());
    assert!(root.strangers() <= MOST);
    for (rank, seat) in (1..).zip(root.seats().iter()) {
        assert_eq!(seat.is_some(), taken[rank], "the seat of rank {rank}");
    }
}

/// What a guest says, and the rank whose seat that is to give it.
fn say(input: &mut Input<'_>, challenge: &[u8; CHALLENGE], ranks: u32) -> (Vec<u8>, Option<u32>) {
    let (how, mut rank) = (input.u8(), u32::from(input.u8() % 6));
    let mut asks = job(rank, ranks);
    let mut is_right = (1..ranks).contains(&rank);
    match how >> 4 {
        1 => asks.ranks = u32::from(input.u8()),
        2 => asks.start = "another".into(),
        3 => asks.communicator = String::from_utf8_lossy(&input.bytes(9)).into(),
        4 => asks.rank = u32::MAX - rank,
        _ => {}
    }
    is_right &= (asks.ranks, &*asks.start, asks.rank) == (ranks, "a start", rank);
    is_right &= asks.communicator == "a name";
    let mut said = says(&asks, how);
    if how >> 4 == 5 {
        let at = usize::from(input.u8()) % SAID;
        said[at] ^= 1 << (how & 7);
        match at {
            // Who knows the secret and names another rank is that rank.
            20..24 => {
                rank = u32::from_le_bytes(said[20..24].try_into().expect("four bytes"));
                is_right = (1..ranks).contains(&rank);
            }
            // Of the nonce, anything is right.
            28..60 => {}
            _ => is_right = false,
        }
    }
    let secret = if how >> 4 == 6 { "another 89abcdef" } else { SECRET };
    is_right &= secret == SECRET;
    let mut all = greeting(secret, challenge, said);
    match how >> 4 {
        7 => {
            all.truncate(usize::from(input.u8()) % GREETING);
            is_right = false;
        }
        8 => {
            let at = SAID + usize::from(input.u8()) % (GREETING - SAID);
            all[at] ^= 1;
            is_right = false;
        }
        // The proof of another connection.
        9 => {
            let mut other = *challenge;
            other[20] ^= 1;
            all = greeting(SECRET, &other, said);
            is_right = false;
        }
        10 => all = input.bytes(255),
        _ => {}
    }
    is_right &= how >> 4 != 10;
    (all, is_right.then_some(rank))
}

/// Has rank 0 look until it has answered, if it is to.
fn settle(root: &mut Root, guest: &mut Guest, outcome: &mut Outcome) {
    let mut answer = [0; REPLY];
    let mut got = 0;
    guest.stream.set_nonblocking(true).expect("a flag");
    let end = Instant::now() + SOON;
    // One that is not whole is waited for in vain.
    let mut looks = if guest.is_whole { u32::MAX } else { 3 };
    while got < REPLY && looks > 0 && Instant::now() < end {
        root.turn();
        match guest.stream.read(&mut answer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => looks -= 1,
            Err(_) => break,
        }
    }
    match guest.rank {
        Some(rank) => {
            assert_eq!((got, answer[0]), (REPLY, 0), "rank {rank} is not seated");
            outcome.heard += 1;
        }
        None => {
            assert!(got == 0 || answer[0] != 0, "a stranger is seated");
            outcome.refused += 1;
        }
    }
}

/// Who stands for rank 0 and does not know the secret.
fn false_root(input: &mut Input<'_>, outcome: &mut Outcome) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let stream =
        TcpStream::connect(listener.local_addr().expect("its address")).expect("it listens");
    let (mut there, _) = listener.accept().expect("a connection");
    let how = input.u8();
    let mut first = [&b"bellpush bootstrap 5"[..], &[how; 32]].concat();
    if how & 1 != 0 {
        let at = usize::from(input.u8()) % first.len();
        first[at] ^= input.u8();
    }
    first.extend(input.bytes(REPLY));
    // Answers are 49 bytes: mostly whole ones.
    first.resize(first.len().max(CHALLENGE + REPLY * usize::from(how & 2 != 0)), how);
    there.write_all(&first).expect("there is room");
    if how & 4 != 0 {
        there.shutdown(std::net::Shutdown::Write).expect("it is open");
    }
    let reached = reached(&job(1, 2), stream, Instant::now() + PATIENCE);
    let (taken, for_good) = reached.unwrap_or_default();
    assert!(!taken, "somebody passes for rank 0");
    assert!(!for_good, "turned away for good without a proof");
    outcome.refused += 1;
}

const _: () = assert!(HEAD == 5 && MAC == 32);

#[cfg(test)]
#[path = "bootstrap_tests.rs"]
mod tests;
