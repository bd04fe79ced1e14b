//! What the two processes of a measurement tell each other, in step: each says something, and hears the other's.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use bellpush::transport::{Address, Path};
use bellpush::wire::inband::LineFormat;
use bellpush_cli::report::{Places, Row, Side, size};
use serde::{Deserialize, Serialize};

use crate::bench::payload::Tally;
use crate::bench::sender::Phase;
use crate::bench::test_bed::TestBed;
use crate::cli::CliError;
use crate::link::Wire;
use crate::plan::{
    BenchPlan, MAX_BLOCKS, MAX_IN_FLIGHT, MAX_MESSAGE_BYTES, MAX_QPS, MAX_TIMEOUT_MS_APART,
    MAX_WINDOW_BYTES,
};

/// One thing that a side says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Said {
    /// This side's way, and what is to be measured, by the side that connects.
    Hello(Way, Box<Wanted>),
    /// This side's way, by the side that listens.
    Here(Way),
    /// What a side has, once it has it.
    Has(Has),
    /// This side is ready for what comes next.
    Ready,
    /// Why this side has no such path.
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
    /// What this side received in the round, the SHA-256 of its bytes, and whether this side's own source has changed.
    Received { tally: Tally, sha256: String, source_damaged: bool },
    /// The row as the side that connects has it.
    Done(Box<Row>),
    /// That was the last row.
    End,
}

impl Said {
    /// What the other side says. Another version may say what this one has no words for, its own number among them.
    ///
    /// # Errors
    /// What no side of this version says.
    pub fn heard(said: &[u8]) -> Result<Self, CliError> {
        serde_json::from_slice(said).map_err(|e| {
            let what = format!("what the other side says is not understood: {e}");
            CliError::new(what, "use one version at both ends")
        })
    }
}

/// How a side's NIC is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Way {
    version: String,
    /// Whether the NIC is a software NIC.
    soft: bool,
    /// The carrier of its packets, where one was chosen.
    wire: Option<Wire>,
    /// What processes share that share memory by name: the boot, the file system, the PID namespace and the user.
    memory: String,
}

impl Way {
    pub fn of(plan: &BenchPlan) -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let shm = std::fs::metadata("/dev/shm").map_or(0, |it| it.dev());
        let pids = std::fs::metadata("/proc/self/ns/pid").map_or(0, |it| it.ino());
        let user = rustix::process::geteuid().as_raw();
        Self {
            version: crate::cli::version().into(),
            soft: plan.nic == "soft",
            wire: plan.link.and_then(|link| link.wire()),
            memory: format!("{} {shm} {pids} {user}", boot.trim()),
        }
    }

    /// The carrier of this side's packets, the other being `theirs`: the one that either has chosen, or UDP.
    ///
    /// # Errors
    /// Two carriers; memory that the two do not share.
    pub fn wire(&self, theirs: &Self, plan: &BenchPlan) -> Result<Wire, CliError> {
        let refuse = |what: String, remedy| Err(CliError::new(what, remedy));
        let (own, other) = (&self.version, &theirs.version);
        if own != other {
            let what = format!("this side is bellpush {own}, the other {other}");
            return refuse(what, "use one version at both ends");
        }
        let wire = match (self.wire, theirs.wire) {
            (Some(a), Some(b)) if a != b => {
                let what = format!("--link is {a} here and {b} at the other side");
                return refuse(what, "give both the same");
            }
            (one, other) => one.or(other).unwrap_or(Wire::Udp),
        };
        if wire == Wire::Shm && !(self.soft && theirs.soft) {
            return refuse("--link shm, and one side's NIC is a card".into(), "give --link udp");
        }
        if wire == Wire::Shm && self.memory != theirs.memory {
            let what = "--link shm joins processes of one host, user, PID namespace and /dev/shm";
            return refuse(what.into(), "give --link udp");
        }
        if wire == Wire::Shm && plan.address.is_some() {
            let what = "--address with --link shm";
            return refuse(what.into(), "leave it out: the two find each other in memory");
        }
        Ok(wire)
    }
}

/// What a side measures with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Has {
    pub nic: String,
    pub executor: String,
    /// Where messages arrive.
    pub dest: Side,
}

impl Has {
    pub fn of(bed: &TestBed, plan: &BenchPlan) -> Self {
        Self {
            nic: bed.nic.name().into(),
            executor: bed.gpu.describe().to_string(),
            dest: plan.dest.side(),
        }
    }
}

/// What is to be measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// Whether messages go both ways at once.
    pub both_ways: bool,
    /// Whether the messages are of a file that the other side does not have.
    pub file: bool,
    largest_bytes: u64,
    window_bytes: u64,
    slot_bytes: u64,
    lines: LineFormat,
    places: Places,
    credits: bool,
    timeout_ms: u64,
    qps: u32,
    in_flight: u32,
    blocks: u32,
    seed: u64,
}

impl Wanted {
    pub fn of(plan: &BenchPlan, both_ways: bool) -> Self {
        Self {
            both_ways,
            file: plan.payload.is_some(),
            largest_bytes: plan.largest_bytes() as u64,
            window_bytes: plan.window_bytes,
            slot_bytes: plan.slot_bytes,
            lines: plan.line,
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
    /// What no command line could have asked for.
    pub fn plan(&self, own: &BenchPlan) -> Result<BenchPlan, CliError> {
        for (what, value, most) in [
            ("message", self.largest_bytes, MAX_MESSAGE_BYTES),
            ("window", self.window_bytes, MAX_WINDOW_BYTES),
            ("slot", self.slot_bytes, MAX_WINDOW_BYTES),
            ("number of queue pairs", self.qps.into(), MAX_QPS),
            ("row in flight", self.in_flight.into(), MAX_IN_FLIGHT),
            ("number of blocks", self.blocks.into(), MAX_BLOCKS),
            ("timeout", self.timeout_ms, MAX_TIMEOUT_MS_APART),
        ] {
            if !(1..=most).contains(&value) {
                return Err(odd(&format!("a {what} of {value}, where 1 to {most} can be")));
            }
        }
        Ok(BenchPlan {
            sizes_bytes: vec![self.largest_bytes],
            window_bytes: self.window_bytes,
            slot_bytes: self.slot_bytes,
            line: self.lines,
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
pub fn path_and_size(path: &str, bytes: u64, largest: usize) -> Result<(Path, usize), CliError> {
    let path: Path = path.parse().map_err(|e| odd(&format!("{e}")))?;
    match usize::try_from(bytes) {
        Ok(size) if (1..=largest).contains(&size) => Ok((path, size)),
        _ => Err(odd(&format!("a message of {}", size::print(bytes)))),
    }
}

/// Something that the other side asks for and no side of this version would.
pub fn odd(what: &str) -> CliError {
    CliError::new(format!("the other side asks for {what}"), "use one version at both ends")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::BenchArgs;

    /// Its number is never compared where a field is another.
    #[test]
    fn a_side_of_another_protocol_is_told_of_versions() {
        let plan = BenchPlan::try_from(&BenchArgs::default_of_the_command_line()).unwrap();
        let hello = Said::Hello(Way::of(&plan), Box::new(Wanted::of(&plan, false)));
        let mut said = serde_json::to_value(&hello).unwrap();
        let heard = |said: &serde_json::Value| Said::heard(&serde_json::to_vec(said).unwrap());
        assert!(heard(&said).is_ok());
        said["Hello"][0]["newer"] = true.into();
        let refused = heard(&said).unwrap_err().to_string();
        assert!(refused.contains("newer") && refused.contains("one version"), "{refused}");
    }

    #[test]
    fn the_carrier_is_what_either_side_has_chosen() {
        let plan = BenchPlan::try_from(&BenchArgs::default_of_the_command_line()).unwrap();
        let way = |wire| Way { wire, ..Way::of(&plan) };
        let (none, udp, shm) = (way(None), way(Some(Wire::Udp)), way(Some(Wire::Shm)));
        for (a, b, wire) in [
            (&none, &none, Wire::Udp),
            (&none, &shm, Wire::Shm),
            (&shm, &none, Wire::Shm),
            (&udp, &none, Wire::Udp),
        ] {
            assert_eq!(a.wire(b, &plan).unwrap(), wire);
        }
        let elsewhere = Way { memory: "another host's".into(), ..none.clone() };
        let card = Way { soft: false, ..none.clone() };
        let older = Way { version: "0.0.1".into(), ..none.clone() };
        assert_eq!(none.wire(&elsewhere, &plan).unwrap(), Wire::Udp);
        let placed = BenchPlan { address: Some([127, 0, 0, 1].into()), ..plan.clone() };
        for (theirs, plan, told) in [
            (&udp, &plan, "--link is shm here and udp"),
            (&elsewhere, &plan, "one host"),
            (&card, &plan, "a card"),
            (&older, &plan, "0.0.1"),
            (&none, &placed, "--address"),
        ] {
            let refused = shm.wire(theirs, plan).unwrap_err().to_string();
            assert!(refused.contains(told), "{refused}");
        }
    }
}
