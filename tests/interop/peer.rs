//! One end of a test: a process that carries out verbs as it is told (`interop/verbs_peer.c` has
//! the protocol; `bellpush serve verbs` speaks it for the software NIC).

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, expect};

/// Name of an end that is Linux's; some cases know what it does its own way.
pub const RXE: &str = "rxe";
/// Name of an end that is ours.
pub const SOFT: &str = "soft";
/// Bytes of each end's memory.
pub const MEMORY: u64 = 4 << 20;
/// Q_Key with which both ends receive datagrams.
pub const QKEY: u64 = 0x1111_1111;
/// Longest wait for a completion that is to come. TCG is slow.
const COMPLETION_MS: u64 = 20_000;
/// Longer than any request takes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Queue pair types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    Rc,
    Uc,
    Ud,
}

impl Service {
    fn word(self) -> &'static str {
        ["rc", "uc", "ud"][self as usize]
    }
}

/// Which completion queue.
#[derive(Debug, Clone, Copy)]
pub enum Side {
    Send,
    Recv,
}

/// Statuses of completions, as `ibv_wc_status` numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u32);

#[rustfmt::skip]
impl Status {
    pub const SUCCESS: Self = Self(0);
    pub const LOCAL_LENGTH: Self = Self(1);
    pub const LOCAL_QP_OPERATION: Self = Self(2);
    pub const FLUSHED: Self = Self(5);
    pub const REMOTE_INVALID_REQUEST: Self = Self(9);
    pub const REMOTE_ACCESS: Self = Self(10);
    pub const REMOTE_OPERATION: Self = Self(11);
    pub const RETRIES_EXCEEDED: Self = Self(12);
    pub const RNR_RETRIES_EXCEEDED: Self = Self(13);
}

/// `IBV_QPS_ERR`.
pub const STATE_ERR: u64 = 6;

/// A completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    pub status: Status,
    pub bytes: u64,
    pub imm: u64,
}

/// Attributes of a connection, as ibv_modify_qp has them; MTU in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Attributes {
    pub mtu: u64,
    pub timeout: u8,
    pub retry: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    /// Added to the PSN that the other end is told: 0 unless the connection is to fail.
    pub psn_off_by: i32,
}

impl Attributes {
    pub fn mtu(mtu: u64) -> Self {
        // 4.096 us * 2^17, about half a second: no false alarm under TCG. RNR timer 1: 10 us.
        Self { mtu, timeout: 17, retry: 7, rnr_retry: 7, min_rnr_timer: 1, psn_off_by: 0 }
    }
}

/// A work request; the fields that an operation does not use are 0.
#[derive(Debug, Clone, Copy, Default)]
pub struct Work {
    pub operation: &'static str,
    pub offset: u64,
    pub bytes: u64,
    pub address: u64,
    pub rkey: u32,
    pub a: u64,
    pub b: u64,
}

/// One end.
pub struct Peer {
    pub name: String,
    lines: BufReader<TcpStream>,
    gid: String,
    /// Its queue pair's number.
    pub qpn: u64,
    psn: u64,
    /// Where its memory starts, for the other end.
    pub address: u64,
    pub rkey: u32,
}

impl Peer {
    /// Connects and opens its memory.
    pub fn open(name: &str, at: SocketAddr) -> Result<Self, Failure> {
        let start = Instant::now();
        let stream = loop {
            match TcpStream::connect_timeout(&at, Duration::from_secs(5)) {
                Ok(stream) => break stream,
                Err(e) if start.elapsed() > Duration::from_secs(10) => return Err(e.into()),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let lines = BufReader::new(stream);
        let name = name.into();
        let mut peer =
            Self { name, lines, gid: String::new(), address: 0, rkey: 0, qpn: 0, psn: 0 };
        let request = format!("open {MEMORY}");
        let words = peer.ask(&request)?;
        peer.gid = words.first().cloned().unwrap_or_default();
        (peer.address, peer.rkey) = (number(&words, 1), number(&words, 2) as u32);
        Ok(peer)
    }

    /// Asks several things at once; the words of each answer.
    fn ask_all(&mut self, requests: &[String]) -> Result<Vec<Vec<String>>, Failure> {
        let mut text = String::new();
        for request in requests {
            writeln!(text, "{request}").expect("strings take everything");
        }
        self.lines.get_mut().write_all(text.as_bytes())?;
        let mut answers = Vec::new();
        let mut refused = None;
        for request in requests {
            let mut answer = String::new();
            self.lines.read_line(&mut answer)?;
            let words: Vec<String> = answer.split_whitespace().map(str::to_owned).collect();
            if words.first().is_none_or(|word| word != "ok") && refused.is_none() {
                let (peer, request) = (self.name.clone(), request.clone());
                refused = Some(Failure::Refused { peer, request, answer: answer.trim().into() });
            }
            answers.push(words.into_iter().skip(1).collect());
        }
        refused.map_or(Ok(answers), Err)
    }

    fn ask(&mut self, request: &str) -> Result<Vec<String>, Failure> {
        Ok(self.ask_all(&[request.to_owned()])?.remove(0))
    }

    /// A new queue pair in INIT.
    pub fn new_qp(&mut self, service: Service) -> Result<(), Failure> {
        let words = self.ask(&format!("qp {}", service.word()))?;
        (self.qpn, self.psn) = (number(&words, 0), number(&words, 1));
        Ok(())
    }

    /// Moves the queue pair to RTS with another end's queue pair as its peer.
    pub fn connect(&mut self, to: &Peer, with: Attributes) -> Result<(), Failure> {
        self.connect_to(&to.gid, to.qpn, to.psn, with)
    }

    /// Moves the queue pair to RTS with a peer that may be anything.
    pub fn connect_to(
        &mut self,
        gid: &str,
        qpn: u64,
        psn: u64,
        with: Attributes,
    ) -> Result<(), Failure> {
        let Attributes { mtu, timeout, retry, rnr_retry, min_rnr_timer, psn_off_by } = with;
        let psn = psn.wrapping_add_signed(psn_off_by.into()) & 0xff_ffff;
        self.ask(&format!(
            "connect {gid} {qpn} {psn} {mtu} {timeout} {retry} {rnr_retry} {min_rnr_timer}"
        ))?;
        Ok(())
    }

    /// Registers a part of the memory with other rights (of `wra`, or `-`): address and rkey.
    pub fn region(&mut self, offset: u64, bytes: u64, rights: &str) -> Result<(u64, u32), Failure> {
        let words = self.ask(&format!("region {offset} {bytes} {rights}"))?;
        Ok((number(&words, 0), number(&words, 1) as u32))
    }

    /// Writes the patterns of seeds: (offset, bytes, seed).
    pub fn fill(&mut self, areas: &[(u64, u64, u64)]) -> Result<(), Failure> {
        self.areas("fill", areas)
    }

    /// Fails where a pattern is not what it should be.
    pub fn check(&mut self, areas: &[(u64, u64, u64)]) -> Result<(), Failure> {
        self.areas("check", areas)
    }

    fn areas(&mut self, verb: &str, areas: &[(u64, u64, u64)]) -> Result<(), Failure> {
        let line = |&(at, bytes, seed): &(u64, u64, u64)| format!("{verb} {at} {bytes} {seed}");
        let requests: Vec<String> = areas.iter().map(line).collect();
        self.ask_all(&requests).map(|_| ())
    }

    pub fn put(&mut self, offset: u64, value: u64) -> Result<(), Failure> {
        self.ask(&format!("put {offset} {value}")).map(|_| ())
    }

    pub fn get(&mut self, offset: u64) -> Result<u64, Failure> {
        self.ask(&format!("get {offset}")).map(|words| number(&words, 0))
    }

    pub fn post_recv(&mut self, offset: u64, bytes: u64) -> Result<(), Failure> {
        self.ask(&format!("recv {offset} {bytes}")).map(|_| ())
    }

    pub fn post(&mut self, work: Work) -> Result<(), Failure> {
        let Work { operation, offset, bytes, address, rkey, a, b } = work;
        let request = format!("post {operation} {offset} {bytes} {address} {rkey} {a} {b}");
        self.ask(&request).map(|_| ())
    }

    /// The next completion within a time, if there is one.
    pub fn poll(&mut self, side: Side, ms: u64) -> Result<Option<Completion>, Failure> {
        let queue = ["send", "recv"][side as usize];
        let words = self.ask(&format!("poll {queue} {ms}"))?;
        if words.first().is_some_and(|word| word == "none") {
            return Ok(None);
        }
        let [status, bytes, imm] = [0, 1, 2].map(|i| number(&words, i));
        Ok(Some(Completion { status: Status(status as u32), bytes, imm }))
    }

    /// The next completion, which must have this status.
    pub fn completes(&mut self, side: Side, status: Status) -> Result<Completion, Failure> {
        let name = format!("{}'s {side:?} completion", self.name);
        let found = self.poll(side, COMPLETION_MS)?;
        expect(&name, found.map(|completion| completion.status), Some(status))?;
        Ok(found.expect("a status was found"))
    }

    pub fn state(&mut self) -> Result<u64, Failure> {
        self.ask("state").map(|words| number(&words, 0))
    }
}

/// A number in C's notation; what is none is a number that nothing expects.
fn number(words: &[String], index: usize) -> u64 {
    let word = words.get(index).map_or("", String::as_str);
    let parsed = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    };
    parsed.unwrap_or(u64::MAX)
}
