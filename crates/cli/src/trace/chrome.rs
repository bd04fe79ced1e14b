//! The file: the JSON of Chrome's trace viewer ("Trace Event Format"), which Perfetto reads.

use std::collections::HashSet;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ends::Ends;
use super::flows;
use super::timeline::DEVICES;
use crate::input::{self, InputError};

/// Longest file that is read.
const MAX_BYTES: u64 = 1 << 30;
/// What the last character counts: another format has another.
pub(super) const FORMAT: &str = "bellpush-trace 1";

/// An event of the format; its times are microseconds of the host's monotonic clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// What is shown.
    pub name: String,
    /// The phase: X a slice, i an instant, C a counter, M metadata, s and f the ends of an arrow.
    pub ph: char,
    /// When, or when it begins.
    #[serde(default)]
    pub ts: f64,
    /// How long a slice is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dur: Option<f64>,
    /// The device: its process's number, plus 2^22 for each device before it of the same process.
    pub pid: u32,
    /// The track.
    #[serde(default)]
    pub tid: u32,
    /// What kind it is of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cat: String,
    /// What the ends of an arrow have in common.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// "e" where an arrow ends at the slice around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bp: Option<String>,
    /// What an instant is of: "t" its track, "p" its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s: Option<String>,
    /// More.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub args: Map<String, Value>,
}

impl Event {
    pub(super) fn new(
        ph: char,
        name: impl Into<String>,
        (pid, tid): (u32, u32),
        ts_ns: u64,
    ) -> Self {
        Self {
            name: name.into(),
            ph,
            ts: micros(ts_ns),
            dur: None,
            pid,
            tid,
            cat: String::new(),
            id: None,
            bp: None,
            s: None,
            args: Map::new(),
        }
    }

    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.args.insert(key.into(), value.into());
        self
    }

    pub(super) fn of(mut self, cat: &str) -> Self {
        self.cat = cat.into();
        self
    }

    /// A slice between two times.
    pub(super) fn slice(
        name: impl Into<String>,
        track: (u32, u32),
        (from_ns, to_ns): (u64, u64),
    ) -> Self {
        // Of the difference: that of two long numbers has none of its last digits.
        let dur = Some(micros(to_ns.saturating_sub(from_ns)));
        Self { dur, ..Self::new('X', name, track, from_ns) }
    }

    fn is_arrow(&self) -> bool {
        matches!(self.ph, 's' | 'f')
    }
}

pub(super) fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// A trace as it stands in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// All events, in no order.
    #[serde(rename = "traceEvents")]
    pub events: Vec<Event>,
    /// Perfetto's hint.
    #[serde(rename = "displayTimeUnit", default)]
    unit: String,
    /// Where everything stood at the end.
    #[serde(rename = "otherData")]
    pub(super) ends: Ends,
}

/// Why a file is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It cannot be read.
    #[error("{0}")]
    Input(#[from] InputError),
    /// It is not text.
    #[error("{0}")]
    Text(#[from] std::string::FromUtf8Error),
    /// It is empty.
    #[error("it is empty: a trace is written when its program ends")]
    Empty,
    /// It is not JSON, or not of this format.
    #[error("it is no trace of bellpush: {0}")]
    Json(#[from] serde_json::Error),
    /// It is a trace of another version.
    #[error("it is of another format than {FORMAT}")]
    Format,
}

fn text(path: &Path) -> Result<String, TraceError> {
    let text = String::from_utf8(input::read(path, MAX_BYTES)?)?;
    if text.trim().is_empty() { Err(TraceError::Empty) } else { Ok(text) }
}

impl Trace {
    pub(super) fn new(events: Vec<Event>, ends: Ends) -> Self {
        let mut trace = Self { events, unit: "ns".into(), ends };
        trace.draw_arrows();
        trace
    }

    /// Reads a trace whole.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        Self::parse(&text(path)?)
    }

    /// Reads a trace's text.
    ///
    /// # Errors
    /// [`TraceError`], but that of a file.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let trace: Self = serde_json::from_str(text)?;
        if trace.ends.format != FORMAT { Err(TraceError::Format) } else { Ok(trace) }
    }

    /// As [`explain`](super::explain()) says of its file.
    pub fn explained(&self) -> Vec<String> {
        super::explain::lines(&self.ends)
    }

    /// Reads where everything stood at the end, and none of the events.
    ///
    /// # Errors
    /// [`TraceError`].
    pub(super) fn read_ends(path: &Path) -> Result<Ends, TraceError> {
        #[derive(Deserialize)]
        struct Rest {
            #[serde(rename = "traceEvents")]
            _events: IgnoredAny,
            #[serde(rename = "otherData")]
            ends: Ends,
        }
        let rest: Rest = serde_json::from_str(&text(path)?)?;
        if rest.ends.format != FORMAT { Err(TraceError::Format) } else { Ok(rest.ends) }
    }

    /// Puts another trace of the same host beside this one. Arrows between them are drawn anew.
    pub fn merge(&mut self, other: Self) {
        let taken: HashSet<u32> = self.events.iter().map(|event| event.pid).collect();
        // Numbers of processes come again.
        let shift = match other.events.iter().any(|event| taken.contains(&event.pid)) {
            true => taken.iter().max().map_or(0, |most| (most / DEVICES + 1).wrapping_mul(DEVICES)),
            false => 0,
        };
        let moved = |event: Event| Event { pid: event.pid.wrapping_add(shift), ..event };
        self.events.extend(other.events.into_iter().map(moved));
        self.ends.extend(other.ends, shift);
        self.draw_arrows();
    }

    /// Draws all arrows, of all that is there, in the place of those that were drawn before.
    pub(super) fn draw_arrows(&mut self) {
        self.events.retain(|event| !event.is_arrow());
        flows::link(&mut self.events);
    }

    /// Writes it, for its owner alone.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(path)?;
        // The mode above is a new file's alone.
        if file.metadata()?.is_file() {
            file.set_permissions(Permissions::from_mode(0o600))?;
        }
        let mut out = BufWriter::new(file);
        self.write_to(&mut out)?;
        out.flush()
    }

    /// As [`Trace::write`]: an event a line.
    ///
    /// # Errors
    /// The system's.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"{\"displayTimeUnit\":")?;
        serde_json::to_writer(&mut *out, &self.unit)?;
        out.write_all(b",\"traceEvents\":[")?;
        for (nth, event) in self.events.iter().enumerate() {
            out.write_all(if nth == 0 { b"\n" } else { b",\n" })?;
            serde_json::to_writer(&mut *out, event)?;
        }
        out.write_all(b"\n],\"otherData\":")?;
        serde_json::to_writer(&mut *out, &self.ends)?;
        out.write_all(b"}\n")
    }
}
