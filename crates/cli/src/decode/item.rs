//! What is told of one thing: its fields, what is wrong with it, and what else there is to say.

use std::fmt::Write as _;

use bellpush::wire::fields::{BTH, Field, Layout, Value};
use serde_json::json;

use super::names::meaning;

/// A field as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Offset of its word from the beginning of the bytes.
    pub at: usize,
    /// Highest and lowest bit, if it is not the whole word.
    pub bits: Option<(usize, usize)>,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What the value means.
    pub meaning: Option<String>,
}

/// A segment or a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its offset.
    pub at: usize,
    /// Its fields. Those that are reserved and zero are left out.
    pub fields: Vec<Shown>,
}

/// A remark about some byte, or about the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Offset of what it is about.
    pub at: Option<usize>,
    /// What there is to say.
    pub text: String,
}

/// A WQE, a CQE, a doorbell, a record or a packet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Item {
    /// What it is: `wqe`, `receive`, `cqe`, `doorbell`, `dbr`, `packet`; `end` of a file that ends within something.
    pub kind: &'static str,
    /// Where it is from: an offset in the input, a number in a capture, a time in a recording.
    pub place: String,
    /// It in a line.
    pub summary: String,
    /// Its segments or headers.
    pub parts: Vec<Part>,
    /// What is wrong with it.
    pub wrong: Vec<Remark>,
    /// What else there is to say.
    pub notes: Vec<Remark>,
}

/// Bytes that a line shows.
const SHOWN: usize = 64;

pub(super) fn hex(bytes: &[u8]) -> String {
    let shown: String = bytes.iter().take(SHOWN).map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() > SHOWN { format!("{shown}... ({} bytes)", bytes.len()) } else { shown }
}

/// Columns of a remark.
const COLUMNS: usize = 110;

/// A remark in lines that fit a terminal; those behind the first are indented.
fn wrapped(text: &str) -> String {
    let (mut lines, mut columns) = (String::new(), 0);
    for word in text.split(' ') {
        let width = word.chars().count() + 1;
        if columns > 8 && columns + width > COLUMNS {
            lines += "\n     ";
            columns = 5;
        } else if columns > 0 {
            lines.push(' ');
        }
        lines += word;
        columns += width;
    }
    lines + "\n"
}

impl Item {
    pub(super) fn new(kind: &'static str, place: impl Into<String>) -> Self {
        Self { kind, place: place.into(), ..Self::default() }
    }

    pub(super) fn wrong(&mut self, at: impl Into<Option<usize>>, text: impl Into<String>) {
        self.wrong.push(Remark { at: at.into(), text: text.into() });
    }

    pub(super) fn note(&mut self, at: impl Into<Option<usize>>, text: impl Into<String>) {
        self.notes.push(Remark { at: at.into(), text: text.into() });
    }

    /// Shows a segment that begins at an offset. Reserved fields that are set are wrong.
    pub(super) fn part(&mut self, layout: &Layout, bytes: &[u8], at: usize) {
        let segment = bytes.get(at..).unwrap_or_default();
        self.fields(layout.name, layout.fields.iter(), segment, at);
    }

    pub(super) fn fields<'a>(
        &mut self,
        name: &str,
        fields: impl Iterator<Item = &'a Field>,
        segment: &[u8],
        at: usize,
    ) {
        let mut part = Part { name: name.into(), at, fields: Vec::new() };
        for field in fields {
            let Some(value) = field.value(segment) else { break };
            if field.reserved {
                self.reserved(name, field, value, at);
                if value.is_zero() {
                    continue;
                }
            }
            // What a NIC leaves there says nothing while it is zero.
            if value.is_zero()
                && ["rsvd", "inline_or", "offload"].iter().any(|n| field.name.starts_with(n))
            {
                continue;
            }
            let (value, meaning) = match value {
                Value::Number(n) => (format!("{n:#x}"), meaning(name, field.name, n)),
                Value::Bytes(bytes) => (hex(bytes), super::names::address(field.name, bytes)),
            };
            let (at, bits) = (at + field.at, field.place());
            part.fields.push(Shown { at, bits, name: field.name.into(), value, meaning });
        }
        self.parts.push(part);
    }

    fn reserved(&mut self, name: &str, field: &Field, value: Value<'_>, at: usize) {
        if value.is_zero() {
            return;
        }
        let value = match value {
            Value::Number(n) => format!("{n:#x}"),
            Value::Bytes(bytes) => hex(bytes),
        };
        let bits = field.place().map(|(high, low)| format!(" bits {high}:{low}"));
        let bits = bits.unwrap_or_default();
        self.wrong(at + field.at, format!("{name}: reserved{bits} are {value}, not 0"));
    }

    /// Says what the last field that is shown means.
    pub(super) fn means(&mut self, text: &str) {
        if let Some(field) = self.parts.last_mut().and_then(|part| part.fields.last_mut()) {
            field.meaning = Some(text.into());
        }
    }

    /// Leaves out what a field of the last segment is said to mean: here it means nothing.
    pub(super) fn unmeant(&mut self, name: &str) {
        let shown = self.parts.last_mut().into_iter().flat_map(|part| &mut part.fields);
        shown.filter(|field| field.name == name).for_each(|field| field.meaning = None);
    }

    /// Shows bytes that have no fields.
    pub(super) fn bytes(&mut self, name: &str, at: usize, bytes: &[u8]) {
        let shown = Shown {
            at,
            bits: None,
            name: format!("{} bytes", bytes.len()),
            value: hex(bytes),
            meaning: None,
        };
        self.parts.push(Part { name: name.into(), at, fields: vec![shown] });
    }

    /// Whether it is a packet of RoCEv2: one with a base transport header.
    pub fn is_roce(&self) -> bool {
        self.parts.iter().any(|part| part.name == BTH.name)
    }

    /// In words: a line, and unless that is enough its fields; then what is wrong and what else there is to say.
    pub fn text(&self, brief: bool) -> String {
        let mut text = format!("{}: {}\n", self.place, self.summary);
        for part in self.parts.iter().filter(|_| !brief) {
            let _ = writeln!(text, "  {}", part.name); // a String takes all
            for field in &part.fields {
                let bits = field.bits.map_or(String::new(), |(high, low)| format!("{high}:{low}"));
                let line =
                    format!("    {:#04x} {bits:<6}{:<30} {}", field.at, field.name, field.value);
                let means = field.meaning.as_ref().map_or(String::new(), |it| format!("  {it}"));
                let _ = writeln!(text, "{line}{means}");
            }
        }
        for (word, remarks) in [("wrong", &self.wrong), ("note", &self.notes)] {
            for remark in remarks {
                let at = remark.at.map_or(String::new(), |at| format!(" at {at:#04x}"));
                text += &wrapped(&format!("  {word}{at}: {}", remark.text));
            }
        }
        text
    }

    /// As JSON. Numbers are strings in hex: they have up to 64 bits.
    pub fn json(&self) -> serde_json::Value {
        let remarks = |all: &[Remark]| -> Vec<_> {
            all.iter().map(|remark| json!({"at": remark.at, "text": remark.text})).collect()
        };
        let field = |field: &Shown| {
            let bits = field.bits.map(|(high, low)| format!("{high}:{low}"));
            json!({"at": field.at, "bits": bits, "name": field.name, "value": field.value,
                   "meaning": field.meaning})
        };
        let part = |part: &Part| {
            let fields: Vec<_> = part.fields.iter().map(field).collect();
            json!({"name": part.name, "at": part.at, "fields": fields})
        };
        json!({
            "kind": self.kind, "place": self.place, "summary": self.summary,
            "parts": self.parts.iter().map(part).collect::<Vec<_>>(),
            "wrong": remarks(&self.wrong), "notes": remarks(&self.notes),
        })
    }
}
