//! Fault scripts as people write them: TOML, a table `[[fault]]` for each fault.

use std::net::IpAddr;

use serde::Deserialize;

use crate::link::units::{PERCENT, TIME, one_line, percent, time_ns};
use bellpush_wire::cqe::Syndrome;
use bellpush_wire::wqe::Opcode;

/// Longest script, in bytes: it travels in an environment variable, in which some characters take
/// two, and for which Linux has 128 KiB.
pub const MAX_SCRIPT_BYTES: usize = 32 << 10;

/// What goes wrong on devices, and when.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Script {
    pub(super) seed: u64,
    pub(super) rules: Vec<Rule>,
}

/// Why a script makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// It is not TOML, or has other keys.
    #[error("{0}")]
    Toml(String),
    /// It is too long.
    #[error("a fault script has at most 32768 bytes, and this is longer")]
    Long,
    /// A fault makes no sense.
    #[error("fault {number}: {what}")]
    Fault {
        /// Which, from 1 on.
        number: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// A fault: where it strikes, and which of the matches.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rule {
    /// Only on this device of a process.
    pub(super) device: Option<usize>,
    /// Only on devices at this address.
    pub(super) address: Option<IpAddr>,
    pub(super) what: What,
    pub(super) when: When,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum What {
    Wqe {
        qp: Which,
        opcode: Option<Work>,
        act: WqeAct,
    },
    Cqe {
        cq: Option<u32>,
        qp: Which,
        kind: Option<Completion>,
        act: CqeAct,
    },
    Packet {
        sent: bool,
        qp: Which,
        kind: Option<PacketKind>,
        peer: Option<IpAddr>,
        act: PacketAct,
    },
    /// By the time alone.
    Qp(Which),
    Port,
    Device,
}

/// A queue pair: its place in the order of creation on its device, from 1 on, or its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Any,
    Nth(u32),
    Number(u32),
}

/// Which of the matches are struck.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct When {
    /// The first one, from 1 on.
    pub(super) nth: u64,
    /// And of those behind it one in so many.
    pub(super) every: u64,
    /// So often; `None` without end.
    pub(super) times: Option<u64>,
    pub(super) share: f64,
    pub(super) after_ns: u64,
    /// Until this time.
    pub(super) until_ns: u64,
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($word:literal => $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $name { $($variant),+ }

        impl $name {
            fn of(word: &str) -> Result<Self, String> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!("{word:?} is none of {}", [$($word),+].join(", "))),
                }
            }
        }
    };
}

words! {
    /// What a WQE does.
    Work {
        "send" => Send, "write" => Write, "write-imm" => WriteImm, "read" => Read,
        "atomic" => Atomic, "local" => Local,
    }
}

words! {
    /// What a CQE reports.
    Completion { "send" => Send, "receive" => Receive, "error" => Error }
}

words! {
    /// What a packet is.
    PacketKind {
        "request" => Request, "send" => Send, "write" => Write, "read-request" => ReadRequest,
        "atomic-request" => AtomicRequest, "response" => Response, "read-response" => ReadResponse,
        "atomic-response" => AtomicResponse, "ack" => Ack, "nak" => Nak, "rnr-nak" => RnrNak,
    }
}

/// What becomes of a WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WqeAct {
    /// It completes with this syndrome.
    Fail(Syndrome),
    /// Its queue pair goes to ERR, and it is flushed.
    QpError,
    /// The device ends.
    Fatal,
}

/// What becomes of a CQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CqeAct {
    /// It is never written.
    Drop,
    /// It finds no room.
    Overrun,
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketAct {
    Drop,
    Duplicate,
    /// A bit flips.
    Corrupt,
    /// It comes so many nanoseconds later, behind others.
    Delay(u64),
}

impl Work {
    pub(super) fn is(self, opcode: Opcode) -> bool {
        match self {
            Self::Write => opcode == Opcode::RdmaWrite,
            Self::WriteImm => opcode == Opcode::RdmaWriteImm,
            Self::Read => opcode == Opcode::RdmaRead,
            Self::Atomic => opcode.is_atomic(),
            Self::Local => opcode.is_local(),
            Self::Send => matches!(opcode, Opcode::Send | Opcode::SendImm | Opcode::SendInval),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    fault: Vec<Raw>,
}

/// A table as it is written.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Raw {
    on: String,
    action: String,
    device: Option<usize>,
    address: Option<IpAddr>,
    qp: Option<u32>,
    qpn: Option<u32>,
    cq: Option<u32>,
    opcode: Option<String>,
    completion: Option<String>,
    packet: Option<String>,
    direction: Option<String>,
    peer: Option<IpAddr>,
    syndrome: Option<String>,
    delay: Option<String>,
    nth: Option<u64>,
    every: Option<u64>,
    times: Option<u64>,
    share: Option<String>,
    after: Option<String>,
    r#for: Option<String>,
}

/// Syndromes by their names in libibverbs (`ibv_wc_status_str`), as words.
const SYNDROMES: [(&str, Syndrome); 12] = [
    ("local-length-error", Syndrome::LocalLength),
    ("local-qp-operation-error", Syndrome::LocalQpOp),
    ("local-protection-error", Syndrome::LocalProt),
    ("memory-window-bind-error", Syndrome::MwBind),
    ("bad-response-error", Syndrome::BadResp),
    ("local-access-error", Syndrome::LocalAccess),
    ("remote-invalid-request-error", Syndrome::RemoteInvalReq),
    ("remote-access-error", Syndrome::RemoteAccess),
    ("remote-operation-error", Syndrome::RemoteOp),
    ("transport-retry-exceeded", Syndrome::TransportRetryExc),
    ("rnr-retry-exceeded", Syndrome::RnrRetryExc),
    ("aborted-error", Syndrome::RemoteAborted),
];

impl std::str::FromStr for Script {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Self, ScriptError> {
        if text.len() > MAX_SCRIPT_BYTES {
            return Err(ScriptError::Long);
        }
        let error = |e: toml::de::Error| {
            let begin = e.span().map_or(0, |span| span.start).min(text.len());
            let line = text.as_bytes()[..begin].iter().filter(|&&byte| byte == b'\n').count() + 1;
            let what = e.message().lines().map(str::trim).collect::<Vec<_>>().join(", ");
            let what = one_line(&what);
            ScriptError::Toml(format!("line {line}: {what}"))
        };
        let file: File = toml::from_str(text).map_err(error)?;
        let rule = |(index, raw): (usize, &Raw)| {
            raw.rule().map_err(|what| ScriptError::Fault { number: index + 1, what })
        };
        let rules = file.fault.iter().enumerate().map(rule).collect::<Result<_, _>>()?;
        Ok(Self { seed: file.seed, rules })
    }
}

impl Script {
    /// Whether it corrupts packets, which only an ICRC shows.
    pub fn corrupts(&self) -> bool {
        self.rules.iter().any(Rule::corrupts)
    }

    /// Whether it names a device that a process with so many has not.
    pub fn names_beyond(&self, devices: usize) -> bool {
        self.rules.iter().any(|rule| rule.device.is_some_and(|device| device >= devices))
    }
}

impl Rule {
    pub(super) fn corrupts(&self) -> bool {
        matches!(self.what, What::Packet { act: PacketAct::Corrupt, .. })
    }
}

impl Raw {
    fn rule(&self) -> Result<Rule, String> {
        let what = self.what()?;
        self.only_what_counts()?;
        let when = self.when(&what)?;
        // GIDs show 127.0.0.2 as ::ffff:127.0.0.2.
        let address = self.address.map(|at| at.to_canonical());
        Ok(Rule { device: self.device, address, what, when })
    }

    fn what(&self) -> Result<What, String> {
        let qp = self.which()?;
        match (&*self.on, &*self.action) {
            ("wqe", "fail") => {
                let name = self.syndrome.as_deref().ok_or("a WQE fails with a syndrome")?;
                let act = WqeAct::Fail(syndrome(name)?);
                Ok(What::Wqe { qp, opcode: self.work()?, act })
            }
            ("wqe", "qp-error") => Ok(What::Wqe { qp, opcode: self.work()?, act: WqeAct::QpError }),
            ("wqe", "device-fatal") => {
                Ok(What::Wqe { qp, opcode: self.work()?, act: WqeAct::Fatal })
            }
            ("cqe", "drop") => self.cqe(qp, CqeAct::Drop),
            ("cqe", "overrun") => self.cqe(qp, CqeAct::Overrun),
            ("packet", "drop") => self.on_packets(qp, PacketAct::Drop),
            ("packet", "duplicate") => self.on_packets(qp, PacketAct::Duplicate),
            ("packet", "corrupt") => self.on_packets(qp, PacketAct::Corrupt),
            ("packet", "delay") => {
                let delay = self.delay.as_deref().ok_or("a packet is delayed by a delay")?;
                self.on_packets(qp, PacketAct::Delay(time("delay", delay)?))
            }
            ("qp", "error") => Ok(What::Qp(qp)),
            ("port", "down") => Ok(What::Port),
            ("device", "fatal") => Ok(What::Device),
            ("", _) => Err("it lacks on: where it strikes".into()),
            (on, action) => Err(format!(
                "no fault has on = {on:?} and action = {action:?}; there are {}",
                ALL.map(|(on, actions, _)| format!("{on}: {}", actions.join(", "))).join("; ")
            )),
        }
    }

    fn which(&self) -> Result<Which, String> {
        match (self.qp, self.qpn) {
            (None, None) => Ok(Which::Any),
            (Some(0), _) => Err("qp counts from 1, the first that the device made".into()),
            (Some(nth), None) => Ok(Which::Nth(nth)),
            (None, Some(number)) if number < 1 << 24 => Ok(Which::Number(number)),
            (None, Some(_)) => Err("qpn has 24 bits".into()),
            (Some(_), Some(_)) => Err("qp and qpn both name a queue pair".into()),
        }
    }

    fn work(&self) -> Result<Option<Work>, String> {
        self.opcode.as_deref().map(Work::of).transpose()
    }

    fn cqe(&self, qp: Which, act: CqeAct) -> Result<What, String> {
        let kind = self.completion.as_deref().map(Completion::of).transpose()?;
        if self.cq == Some(0) {
            return Err("cq counts from 1, the first that the device made".into());
        }
        Ok(What::Cqe { cq: self.cq, qp, kind, act })
    }

    fn on_packets(&self, qp: Which, act: PacketAct) -> Result<What, String> {
        let sent = match self.direction.as_deref() {
            Some("sent") => true,
            Some("received") => false,
            _ => return Err("direction is \"sent\" or \"received\"".into()),
        };
        if sent && matches!(qp, Which::Nth(_)) {
            return Err("a packet that is sent names its destination alone: qpn, not qp".into());
        }
        let kind = self.packet.as_deref().map(PacketKind::of).transpose()?;
        let peer = self.peer.map(|at| at.to_canonical());
        Ok(What::Packet { sent, qp, kind, peer, act })
    }

    /// A key that the fault does not look at was written for nothing.
    fn only_what_counts(&self) -> Result<(), String> {
        let written = [
            ("qp", self.qp.is_some()),
            ("qpn", self.qpn.is_some()),
            ("cq", self.cq.is_some()),
            ("opcode", self.opcode.is_some()),
            ("completion", self.completion.is_some()),
            ("packet", self.packet.is_some()),
            ("direction", self.direction.is_some()),
            ("peer", self.peer.is_some()),
            ("syndrome", self.syndrome.is_some()),
            ("delay", self.delay.is_some()),
            ("nth", self.nth.is_some()),
            ("every", self.every.is_some()),
            ("times", self.times.is_some()),
            ("share", self.share.is_some()),
            ("for", self.r#for.is_some()),
        ];
        let Some((_, _, keys)) = ALL.iter().find(|(on, ..)| *on == self.on) else { return Ok(()) };
        let is_used = |key: &str| match key {
            "syndrome" => self.action == "fail",
            "delay" => self.action == "delay",
            _ => keys.contains(&key),
        };
        match written.iter().find(|&&(key, is)| is && !is_used(key)) {
            None => Ok(()),
            Some((key, _)) => {
                let (on, action) = (&self.on, &self.action);
                Err(format!("on = {on:?}, action = {action:?} has no use for {key}"))
            }
        }
    }

    fn when(&self, what: &What) -> Result<When, String> {
        let by_time = matches!(what, What::Device | What::Qp(_));
        let after_ns = self.after.as_deref().map_or(Ok(0), |text| time("after", text))?;
        if self.r#for.as_deref().and_then(time_ns) == Some(0) {
            return Err("for = 0 is never".into());
        }
        let until_ns = match &self.r#for {
            None => u64::MAX,
            Some(text) => after_ns.saturating_add(time("for", text)?),
        };
        if by_time && self.after.is_none() {
            let action = if *what == What::Device { "device-fatal" } else { "qp-error" };
            let on = &self.on;
            return Err(format!(
                "on = {on:?} needs after; for one at a WQE take on = \"wqe\", action = {action:?}"
            ));
        }
        let share = match &self.share {
            None => 1.0,
            Some(text) => percent(text).ok_or(format!("share = {text:?} is not {PERCENT}"))?,
        };
        if share == 0.0 {
            return Err("share = 0% is never".into());
        }
        // Without a number of times: the one that is counted, or all that are drawn or in the time.
        let others = self.every.is_some() || self.times.is_some() || self.share.is_some();
        let counted = self.nth.is_some() && !others;
        let (nth, every) =
            (self.nth.unwrap_or(1), self.every.unwrap_or(if counted { u64::MAX } else { 1 }));
        if nth == 0 || every == 0 {
            return Err("nth and every count from 1".into());
        }
        let times = match self.times {
            _ if by_time => Some(1),
            Some(0) => return Err("times = 0 is never".into()),
            Some(times) => Some(times),
            None => None,
        };
        Ok(When { nth, every, times, share, after_ns, until_ns })
    }
}

/// Where faults strike, what they do there, and the keys that say which.
const ALL: [(&str, &[&str], &[&str]); 6] = [
    (
        "wqe",
        &["fail", "qp-error", "device-fatal"],
        &["qp", "qpn", "opcode", "syndrome", "nth", "every", "times", "share", "for"],
    ),
    (
        "cqe",
        &["drop", "overrun"],
        &["qp", "qpn", "cq", "completion", "nth", "every", "times", "share", "for"],
    ),
    (
        "packet",
        &["drop", "duplicate", "corrupt", "delay"],
        &[
            "qp",
            "qpn",
            "packet",
            "direction",
            "peer",
            "delay",
            "nth",
            "every",
            "times",
            "share",
            "for",
        ],
    ),
    ("qp", &["error"], &["qp", "qpn"]),
    ("port", &["down"], &["for"]),
    ("device", &["fatal"], &[]),
];

fn time(key: &str, text: &str) -> Result<u64, String> {
    time_ns(text).ok_or_else(|| format!("{key} = {text:?} is not {TIME}"))
}

fn syndrome(name: &str) -> Result<Syndrome, String> {
    let found = SYNDROMES.iter().find(|(known, _)| *known == name);
    found.map(|&(_, syndrome)| syndrome).ok_or_else(|| {
        format!("no syndrome is named {name:?}; there are {}", SYNDROMES.map(|(s, _)| s).join(", "))
    })
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
