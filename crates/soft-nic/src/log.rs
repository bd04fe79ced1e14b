//! Logs: what NICs refuse, try again and move, as events of the crate `tracing`, and a printer of them.
//!
//! Events are of the target `bellpush` and have the number of their queue pair in the field `qp`. Without a subscriber
//! each costs a load and a comparison. Who has a subscriber of its own needs nothing here; [`install`] is for programs
//! that have none: `bellpush`, and the preloaded object. No payload, no address and no key is in a log.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber, debug, trace, warn};

use crate::trace::Kind;
use bellpush_mem::clock::monotonic_ns;
use bellpush_nic::QpState;
use bellpush_wire::cqe::Syndrome;

/// Of all events.
const TARGET: &str = "bellpush";

/// States by their codes.
const STATES: [QpState; 6] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];

fn state(code: u64) -> String {
    STATES
        .get(code as usize)
        .map_or_else(|| code.to_string(), |it| format!("{it:?}").to_uppercase())
}

/// Logs what happened to a queue pair, if it is of what a log tells of; the words are those of [`Kind`].
#[inline]
pub(crate) fn of_qp(qp: u32, kind: Kind, aux: u16, [a, b]: [u64; 2]) {
    match kind {
        Kind::State => {
            debug!(target: TARGET, qp, from = state(a), to = state(b), "state changed");
        }
        Kind::Timeout => warn!(target: TARGET, qp, tries = a, waited_ns = b, "no acknowledgement"),
        Kind::Resent => trace!(target: TARGET, qp, wqe_index = aux, psn = a, "packet sent again"),
        Kind::RnrGot => debug!(target: TARGET, qp, tries = a, waits_ns = b, "peer has no receive"),
        Kind::NakGot => warn!(target: TARGET, qp, nak_code = a, psn = b, "peer refused"),
        Kind::RnrSent => debug!(target: TARGET, qp, psn = a, "no receive is posted"),
        Kind::NakSent => warn!(target: TARGET, qp, nak_code = a, psn = b, "request refused"),
        Kind::Cqe => completed(qp, aux, a),
        _ => {}
    }
}

/// Errors among CQEs; those that are flushed follow one that is none.
fn completed(qp: u32, wqe_index: u16, a: u64) {
    let (syndrome, vendor_error) = ((a >> 32) as u8, (a >> 40) as u8);
    if syndrome != 0 && syndrome != Syndrome::WrFlush as u8 {
        warn!(target: TARGET, qp, wqe_index, syndrome, vendor_error, "completion with error");
    }
}

/// Logs an asynchronous event of an object, by its `ibv_event_type`.
pub(crate) fn of_object(number: u32, event: u64) {
    warn!(target: TARGET, object = number, event, "asynchronous event");
}

/// Logs a call if it was refused.
pub(crate) fn told<T, E: fmt::Display>(qp: u32, result: Result<T, E>) -> Result<T, E> {
    result.inspect_err(|error| warn!(target: TARGET, qp, error = %error, "call refused"))
}

/// What is printed, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Printing {
    level: LevelFilter,
    json: bool,
}

/// Variables that say what is printed. The second is what Rust programs are used to, and has to be ignored where it
/// is another's.
pub const LEVEL_VARIABLE: &str = "BELLPUSH_LOG";
/// As [`LEVEL_VARIABLE`].
pub const RUST_VARIABLE: &str = "RUST_LOG";
/// `text` or `json`.
pub const FORMAT_VARIABLE: &str = "BELLPUSH_LOG_FORMAT";

impl Printing {
    /// By the values of [`LEVEL_VARIABLE`] (`off`, `error`, `warn`, `info`, `debug`, `trace`, also as `bellpush=debug`
    /// among others') and [`FORMAT_VARIABLE`]; `None` where nothing is to be printed.
    ///
    /// # Errors
    /// One line about a value that is none of these.
    pub fn parse(level: &str, format: &str) -> Result<Option<Self>, String> {
        let json = match format {
            "" | "text" => false,
            "json" => true,
            _ => return Err(format!("{FORMAT_VARIABLE}={format}: text or json")),
        };
        let mut own = None;
        for word in level.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (target, level) = word.split_once('=').unwrap_or(("", word));
            // A more special one goes first; other targets are others'.
            if target == TARGET || target.is_empty() && own.is_none() {
                let wrong = |_| format!("{word}: off, error, warn, info, debug or trace");
                own = Some(level.parse::<LevelFilter>().map_err(wrong)?);
            }
        }
        let level = own.unwrap_or(LevelFilter::OFF);
        Ok((level != LevelFilter::OFF).then_some(Self { level, json }))
    }

    /// As the environment says, without [`RUST_VARIABLE`] where that is another program's; what is wrong with it is
    /// no error there.
    ///
    /// # Errors
    /// As [`Printing::parse`].
    pub fn from_environment(ours: bool) -> Result<Option<Self>, String> {
        let value = |name| std::env::var(name).unwrap_or_default();
        let (own, format) = (value(LEVEL_VARIABLE), value(FORMAT_VARIABLE));
        if !own.is_empty() || !ours {
            let told = |error: String| match error.starts_with(FORMAT_VARIABLE) {
                true => error,
                false => format!("{LEVEL_VARIABLE}={own}: {error}"),
            };
            return Self::parse(&own, &format).map_err(told);
        }
        Ok(Self::parse(&value(RUST_VARIABLE), &format).unwrap_or(None))
    }
}

/// Has events of this process printed, each by a call of `say` with a line without its end. Once: whoever comes first
/// stays. Whether this was first.
pub fn install(printing: Printing, say: fn(&str)) -> bool {
    let printer = Printer { printing, say };
    tracing::subscriber::set_global_default(printer).is_ok()
}

struct Printer {
    printing: Printing,
    say: fn(&str),
}

impl Subscriber for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET && *metadata.level() <= self.printing.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.printing.level)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1) // there are none
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        (self.say)(&line(monotonic_ns(), event, self.printing.json));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn line(now_ns: u64, event: &Event<'_>, json: bool) -> String {
    let level: &Level = event.metadata().level();
    let mut fields = Fields { message: String::new(), others: String::new(), json };
    event.record(&mut fields);
    let Fields { message, others, .. } = fields;
    if json {
        return format!(
            "{{\"ts_ns\":{now_ns},\"level\":\"{level}\",\"message\":{message}{others}}}"
        );
    }
    let (s, us) = (now_ns / 1_000_000_000, now_ns / 1000 % 1_000_000);
    format!("{s}.{us:06} {level} {message}{others}")
}

/// The message, and the other fields behind it.
struct Fields {
    message: String,
    others: String,
    json: bool,
}

impl Fields {
    fn add(&mut self, field: &Field, value: &str, is_number: bool) {
        let value = match self.json {
            true if is_number => value.to_owned(),
            true => quoted(value),
            // In one line, whatever is in it.
            false => value.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect(),
        };
        let name = field.name();
        match (name, self.json) {
            ("message", _) => self.message = value,
            (_, true) => write!(self.others, ",\"{name}\":{value}").expect("a string takes all"),
            (_, false) => write!(self.others, " {name}={value}").expect("a string takes all"),
        }
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        let as_name = field.name() == "qp" && !self.json;
        let text = if as_name { format!("{value:#x}") } else { value.to_string() };
        self.add(field, &text, true);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value, false);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"), false);
    }
}

/// A string of JSON (RFC 8259, 7).
fn quoted(text: &str) -> String {
    let mut all = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => all.extend(['\\', c]),
            c if c.is_control() => write!(all, "\\u{:04x}", u32::from(c)).expect("as above"),
            c => all.push(c),
        }
    }
    all + "\""
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn keep(line: &str) {
        LINES.lock().unwrap().push(line.to_owned());
    }

    #[test]
    fn variables_say_what_is_printed() {
        let level = |text: &str| Printing::parse(text, "").map(|it| it.map(|it| it.level));
        assert_eq!(level(""), Ok(None));
        assert_eq!(level("off"), Ok(None));
        assert_eq!(level("debug"), Ok(Some(LevelFilter::DEBUG)));
        assert_eq!(level("hyper=trace,bellpush=warn"), Ok(Some(LevelFilter::WARN)));
        assert_eq!(level("bellpush=warn,trace"), Ok(Some(LevelFilter::WARN)));
        assert_eq!(level("hyper=trace"), Ok(None), "another's");
        assert!(level("loud").unwrap_err().contains("loud: off, error"));
        assert!(Printing::parse("warn", "json").unwrap().unwrap().json);
        assert!(Printing::parse("warn", "xml").unwrap_err().contains("BELLPUSH_LOG_FORMAT=xml"));
    }

    #[test]
    fn what_is_refused_tried_again_and_moved_is_printed() {
        let print = |json, level| {
            let printer = Printer { printing: Printing { level, json }, say: keep };
            LINES.lock().unwrap().clear();
            tracing::subscriber::with_default(printer, || {
                of_qp(17, Kind::State, 0, [2, 3]);
                of_qp(17, Kind::Timeout, 0, [1, 500]);
                of_qp(17, Kind::Done, 0, [8, 8]);
                of_qp(17, Kind::Cqe, 4, [crate::trace::cqe(3, 13, 0x13, 0x88), 0]);
                of_qp(17, Kind::Cqe, 5, [crate::trace::cqe(3, 13, 5, 0), 0]);
                let _ = told(17, Err::<(), _>("a \"quoted\"\nline"));
            });
            let lines = LINES.lock().unwrap();
            lines.iter().map(|line| line.split_once(' ').map_or("", |it| it.1).to_owned()).collect()
        };
        let all: Vec<String> = print(false, LevelFilter::DEBUG);
        assert_eq!(
            all,
            [
                "DEBUG state changed qp=0x11 from=RTR to=RTS",
                "WARN no acknowledgement qp=0x11 tries=1 waited_ns=500",
                "WARN completion with error qp=0x11 wqe_index=4 syndrome=19 vendor_error=136",
                "WARN call refused qp=0x11 error=a \"quoted\"\u{fffd}line",
            ]
        );
        assert_eq!(print(false, LevelFilter::WARN).len(), 3);
        assert_eq!(print(false, LevelFilter::ERROR).len(), 0);
        let _: Vec<String> = print(true, LevelFilter::DEBUG);
        let lines = LINES.lock().unwrap();
        assert!(lines[0].ends_with(
            ",\"level\":\"DEBUG\",\"message\":\"state changed\",\"qp\":17,\"from\":\"RTR\",\"to\":\"RTS\"}"
        ));
        assert!(
            lines[3].ends_with(",\"qp\":17,\"error\":\"a \\\"quoted\\\"\\u000aline\"}"),
            "{}",
            lines[3]
        );
    }
}
