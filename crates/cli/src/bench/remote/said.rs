//! What the two processes of a measurement tell each other, in step: each says something, and hears the other's.

use std::net::IpAddr;
use std::time::Duration;

use bellpush::transport::{Address, Path};
use bellpush::wire::inband::LineFormat;
use bellpush_cli::report::{Places, Row, size};
use serde::{Deserialize, Serialize};

use super::super::payload::Tally;
use super::super::sender::Phase;
use crate::link::Wire;
use crate::plan::{
    BenchPlan, MAX_BLOCKS, MAX_IN_FLIGHT, MAX_MESSAGE_BYTES, MAX_QPS, MAX_TIMEOUT_MS_APART,
};

/// One thing that a side says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Said {
    /// What is to be measured, by the side that connects.
    Hello(Box<Hello>),
    /// This side is ready for what comes next.
    Ready,
    /// Why this side cannot measure the path.
    Unable(String),
    /// The next row, by the side that connects, as all that follow up to [`Said::End`] but for the answers to them.
    Row { path: String, size: u64 },
    /// Addresses of the endpoints that send, and of those that receive.
    Ends { senders: Vec<Address>, receivers: Vec<Address> },
    /// A round of `n` messages, of which the first has this number.
    Round { n: u32, first: u64, phase: Option<Phase> },
    /// So many turns.
    Turns { n: u32 },
    /// What this side sent in the round: messages, nanoseconds, and what ended it early.
    Sent { posted: u32, ns: u64, failure: Option<String> },
    /// What this side received in the round, and the SHA-256 of its bytes.
    Received { tally: Tally, sha256: String },
    /// The row as the side that connects has it.
    Done(Box<Row>),
    /// That was the last row.
    End,
}

/// What is to be measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    pub version: String,
    /// Address of the side that connects, as the other side reaches it.
    pub here: IpAddr,
    /// Carrier of its software NIC's packets; `None` for another NIC.
    pub wire: Option<Wire>,
    /// Whether messages go both ways at once.
    pub both_ways: bool,
    /// Whether the messages are of a file that the other side does not have.
    pub file: bool,
    pub largest_bytes: u64,
    pub window_bytes: u64,
    pub slot_bytes: u64,
    pub line: LineFormat,
    pub places: Places,
    pub credits: bool,
    pub timeout_ms: u64,
    pub qps: u32,
    pub in_flight: u32,
    pub blocks: u32,
    pub seed: u64,
}

impl Hello {
    pub fn of(plan: &BenchPlan, here: IpAddr, wire: Option<Wire>, both_ways: bool) -> Self {
        Self {
            version: crate::cli::version().into(),
            here,
            wire,
            both_ways,
            file: plan.payload.is_some(),
            largest_bytes: plan.largest_bytes() as u64,
            window_bytes: plan.window_bytes,
            slot_bytes: plan.slot_bytes,
            line: plan.line,
            places: plan.places,
            credits: plan.credits,
            timeout_ms: plan.timeout.as_millis() as u64,
            qps: plan.qps,
            in_flight: plan.in_flight,
            blocks: plan.blocks,
            seed: plan.seed,
        }
    }

    /// The plan of the side that listens: its own places and devices, and what is to be measured.
    ///
    /// # Errors
    /// What no command line could have asked for. (Window and slots are refused by the endpoints.)
    pub fn plan(&self, own: &BenchPlan) -> Result<BenchPlan, String> {
        let version = crate::cli::version();
        if self.version != version {
            return Err(format!("one side is bellpush {}, the other {version}", self.version));
        }
        for (what, value, most) in [
            ("message", self.largest_bytes, MAX_MESSAGE_BYTES),
            ("number of queue pairs", self.qps.into(), MAX_QPS),
            ("row in flight", self.in_flight.into(), MAX_IN_FLIGHT),
            ("number of blocks", self.blocks.into(), MAX_BLOCKS),
            ("timeout", self.timeout_ms, MAX_TIMEOUT_MS_APART),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!("a {what} of {value}, where 1 to {most} can be"));
            }
        }
        Ok(BenchPlan {
            sizes_bytes: vec![self.largest_bytes],
            window_bytes: self.window_bytes,
            slot_bytes: self.slot_bytes,
            line: self.line,
            places: self.places,
            credits: self.credits,
            timeout: Duration::from_millis(self.timeout_ms),
            qps: self.qps,
            in_flight: self.in_flight,
            blocks: self.blocks,
            seed: self.seed,
            ..own.clone()
        })
    }
}

/// The path and size of a row that the other side has named.
///
/// # Errors
/// What no row has.
pub fn row(path: &str, bytes: u64, largest: usize) -> Result<(Path, usize), String> {
    let path: Path = path.parse().map_err(|e| format!("{e}"))?;
    match usize::try_from(bytes) {
        Ok(size) if (1..=largest).contains(&size) => Ok((path, size)),
        _ => Err(format!("a message of {}", size::print(bytes))),
    }
}
