//! One row: messages of one size on one path, timed and verified.

use std::time::{Duration, Instant};

use bellpush::transport::{Endpoint, Error, Path, Reach};
use bellpush_cli::report::stats::Samples;

use super::payload::{Arrived, POISON, Payload, Tally};
pub use super::sender::{Ask, Callers, Phase};
use super::sender::{Sender, stride};
use super::test_bed::{ROUND_MESSAGES, TestBed};

/// Measurements of a row.
#[derive(Default)]
pub struct Seen {
    pub posted: u64,
    pub tally: Tally,
    pub latency_ns: Option<Samples>,
    pub streamed: u64,
    pub streaming: Duration,
    pub max_credits: u32,
    /// What the kernel's fence before a doorbell reached; `None` where the host posted.
    pub reach: Option<Reach>,
    /// Reason of an early end.
    pub failure: Option<String>,
    /// SHA-256 of the received file (with `--payload`).
    pub arrived: Option<String>,
    /// Whether source bytes changed after they were sent.
    pub source_damaged: bool,
}

impl Seen {
    /// GB/s of messages of so many bytes, where they streamed.
    pub fn gb_per_s(&self, size: u64) -> f64 {
        let seconds = self.streaming.as_secs_f64();
        if seconds > 0.0 { self.streamed as f64 * size as f64 / seconds / 1e9 } else { 0.0 }
    }

    /// Whether every message arrived as it was sent.
    pub fn is_whole(&self) -> bool {
        self.failure.is_none()
            && !self.source_damaged
            && self.posted > 0
            && self.tally.whole == self.posted
    }
}

/// A row while it is being measured.
#[derive(Default)]
pub struct Running {
    pub seen: Seen,
    latencies: Vec<u64>,
    file: Option<Arrived>,
}

impl Running {
    /// Counts what a round sent; how many messages that was.
    pub fn sent(&mut self, phase: Option<Phase>, outcome: Sent) -> u32 {
        let seen = &mut self.seen;
        let (posted, took) = match outcome {
            Ok(done) => done,
            Err((posted, why)) => {
                seen.failure = Some(why);
                (posted, Duration::ZERO)
            }
        };
        if phase == Some(Phase::Streaming) && seen.failure.is_none() {
            seen.streamed += u64::from(posted);
            seen.streaming += took;
        }
        seen.posted += u64::from(posted);
        posted
    }

    /// Times of single messages, in nanoseconds.
    pub fn latencies(&mut self) -> &mut Vec<u64> {
        &mut self.latencies
    }

    fn finish(self) -> Seen {
        let Self { mut seen, latencies, file } = self;
        seen.arrived = file.and_then(Arrived::finish);
        seen.latency_ns = (!latencies.is_empty()).then(|| Samples::new(latencies));
        seen
    }
}

/// What came of a round: messages that were posted and the time until they were complete, or what ended it.
pub type Sent = Result<(u32, Duration), (u32, String)>;

/// One path between two ends of this process, ready to measure.
pub struct Lane<'a> {
    sender: Sender<'a>,
    /// Whom messages go to; they are connected as long as they are kept.
    _peers: Vec<Endpoint>,
}

impl<'a> Lane<'a> {
    pub fn new(bed: &'a TestBed, path: Path, ask: &Ask) -> Result<Self, Error> {
        let (mut senders, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..Sender::endpoints(path, ask) {
            let memories = (bed.src.clone(), bed.dst.clone());
            let nics = [&bed.nic, &bed.peer];
            let (a, b) = Endpoint::between(&bed.gpu, nics, path, memories, &ask.options)?;
            senders.push(a);
            peers.push(b);
        }
        Ok(Self { sender: Sender::new(bed, path, ask, senders)?, _peers: peers })
    }

    /// Latencies alone, at most `ask.messages` of them. Every byte is checked all the same.
    pub fn latencies(&self, size: usize, payload: &Payload, ask: &Ask) -> Result<Seen, Error> {
        let mut row = Running::default();
        let at_once = u64::from(ask.in_flight);
        let most = (self.sender.bed.src.bytes() / stride(size)).min(ROUND_MESSAGES) as u64;
        // The first round warms up, and shows how long a message takes.
        let (mut phase, mut rows, since) = (None, 2, Instant::now());
        while row.seen.failure.is_none() {
            let begun = Instant::now();
            let left = ask.messages.saturating_sub(row.latencies.len() as u64).max(1);
            let n = (rows.min(left) * at_once).clamp(1, most.max(1));
            self.round(size, n as u32, phase, payload, &mut row)?;
            let done = row.latencies.len() as u64 >= ask.messages || since.elapsed() > ask.limit;
            if phase.is_some() && done {
                break;
            }
            phase = Some(Phase::Latency);
            if begun.elapsed() < ask.limit / 10 {
                rows *= 4;
            }
        }
        Ok(row.finish())
    }

    /// The rate alone, of at most `ask.messages` messages in rounds that are as long as there is room for. Every byte is
    /// checked all the same.
    pub fn rate(&self, size: usize, payload: &Payload, ask: &Ask) -> Result<Seen, Error> {
        let mut row = Running::default();
        let most = (self.sender.bed.src.bytes() / stride(size)).clamp(1, ROUND_MESSAGES) as u64;
        let mut left = ask.messages.max(1);
        // The first round warms up.
        self.round(size, most.min(left) as u32, None, payload, &mut row)?;
        let since = Instant::now();
        while left > 0 && row.seen.failure.is_none() {
            let n = most.min(left);
            self.round(size, n as u32, Some(Phase::Streaming), payload, &mut row)?;
            left -= n;
            if since.elapsed() > ask.limit {
                break;
            }
        }
        Ok(row.finish())
    }

    /// Sends and checks messages of `size` bytes.
    pub fn row(&self, size: usize, payload: &Payload, ask: &Ask) -> Result<Seen, Error> {
        let most = (self.sender.bed.src.bytes() / stride(size)).clamp(1, ROUND_MESSAGES);
        let mut seen = rounds(ask, size, most, payload, |n, phase, row| {
            self.round(size, n, phase, payload, row)
        })?;
        seen.reach = self.sender.reach;
        seen.max_credits = self.sender.max_credits()?;
        Ok(seen)
    }

    fn round(
        &self,
        size: usize,
        n: u32,
        phase: Option<Phase>,
        payload: &Payload,
        row: &mut Running,
    ) -> Result<(), Error> {
        let (bed, first) = (self.sender.bed, row.seen.posted);
        let sent = self.sender.fill(size, n, first, payload)?;
        poison(bed, sent.len())?;
        let outcome = self.sender.send(size, n, phase, &mut row.latencies);
        let posted = row.sent(phase, outcome);
        let mut got = vec![0; sent.len()];
        bed.dst.read(0, &mut got)?;
        // A foreign tag may belong to a message that the failed call did not count as posted.
        let all = first + u64::from(n);
        for (i, message) in got.chunks_exact(stride(size)).take(posted as usize).enumerate() {
            row.seen.tally.count(payload.look(first + i as u64, all, &message[..size]));
            if let Some(file) = &mut row.file {
                file.take(&message[..size]);
            }
        }
        bed.src.read(0, &mut got)?;
        row.seen.source_damaged |= got != sent;
        Ok(())
    }
}

/// Fills the destination's first bytes, so that a message that does not come is seen.
pub fn poison(bed: &TestBed, bytes: usize) -> Result<(), Error> {
    Ok(bed.dst.write(0, &vec![POISON; bytes])?)
}

/// Measures a row in rounds of at most `most` messages: a short one to warm up, then latencies, then the rate.
///
/// # Errors
/// What `round` returns.
pub fn rounds<E>(
    ask: &Ask,
    size: usize,
    most: usize,
    payload: &Payload,
    mut round: impl FnMut(u32, Option<Phase>, &mut Running) -> Result<(), E>,
) -> Result<Seen, E> {
    let file = match payload {
        Payload::File(bytes) => Some(Arrived::new(bytes.len())),
        Payload::Tags(_) => None,
    };
    let mut row = Running { file, ..Running::default() };
    let wanted = ask.messages.max(payload.pieces(size));
    // A short first round warms up; it is verified, but not timed.
    let warm_up = (wanted / 8).min(16);
    let latency = (wanted / 4).max(1);
    let plan = [
        (None, warm_up),
        (Some(Phase::Latency), latency),
        (Some(Phase::Streaming), wanted - warm_up - latency),
    ];
    for (phase, count) in plan {
        let since = Instant::now();
        let mut left = count;
        let mut at_once = most.min(64) as u64;
        while left > 0 && row.seen.failure.is_none() {
            let n = at_once.min(left);
            let begun = Instant::now();
            round(n as u32, phase, &mut row)?;
            left -= n;
            // Rounds grow until they take a tenth of the limit.
            if begun.elapsed() < ask.limit / 10 {
                at_once = (at_once * 2).min(most as u64);
            }
            let file_done = row.seen.posted >= payload.pieces(size);
            if since.elapsed() > ask.limit / 2 && (phase != Some(Phase::Streaming) || file_done) {
                break;
            }
        }
    }
    Ok(row.finish())
}
