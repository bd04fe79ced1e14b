//! Topology files in TOML, for example:
//!
//! ```toml
//! name = "two root complexes"
//! [[socket]]
//! id = "s0"
//! [[root_complex]]
//! id = "rc0"
//! socket = "s0"
//! [[gpu]]
//! id = "gpu0"
//! parent = "rc0"
//! gen = 5
//! lanes = 16
//! ```

use serde::Deserialize;
use toml::Spanned;

use super::error::TopologyError;
use super::model::{Builder, Kind, RawLink, Topology};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    name: String,
    #[serde(default)]
    socket: Vec<Spanned<SocketEntry>>,
    #[serde(default)]
    interconnect: Vec<Spanned<InterconnectEntry>>,
    #[serde(default)]
    root_complex: Vec<Spanned<RootComplexEntry>>,
    #[serde(default)]
    root_port: Vec<Spanned<RootPortEntry>>,
    #[serde(default)]
    switch: Vec<Spanned<DeviceEntry>>,
    #[serde(default)]
    gpu: Vec<Spanned<DeviceEntry>>,
    #[serde(default)]
    nic: Vec<Spanned<DeviceEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SocketEntry {
    id: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InterconnectEntry {
    from: Spanned<String>,
    to: Spanned<String>,
    gb_per_s: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RootComplexEntry {
    id: Spanned<String>,
    socket: Spanned<String>,
    #[serde(default = "yes")]
    p2p_reads: bool,
    p2p_tlp_bytes: Option<u32>,
    p2p_read_slots: Option<std::num::NonZeroU32>,
    p2p_cap_gb_per_s: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RootPortEntry {
    id: Spanned<String>,
    parent: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceEntry {
    id: Spanned<String>,
    parent: Spanned<String>,
    #[serde(default = "gen5", rename = "gen")]
    generation: Spanned<u32>,
    #[serde(default = "x16")]
    lanes: Spanned<u32>,
    #[serde(default = "mps256")]
    mps: Spanned<u32>,
    #[serde(default = "mrrs512")]
    mrrs: Spanned<u32>,
    #[serde(default)]
    acs: bool,
    #[serde(default)]
    model: String,
}

fn yes() -> bool {
    true
}

fn unspanned(value: u32) -> Spanned<u32> {
    Spanned::new(0..0, value)
}

fn gen5() -> Spanned<u32> {
    unspanned(5)
}

fn x16() -> Spanned<u32> {
    unspanned(16)
}

fn mps256() -> Spanned<u32> {
    unspanned(256)
}

fn mrrs512() -> Spanned<u32> {
    unspanned(512)
}

/// Parses the text of a topology file.
pub fn from_toml(text: &str) -> Result<Topology, TopologyError> {
    let line_of = |start: usize| text[..start.min(text.len())].matches('\n').count() + 1;
    let file: File = toml::from_str(text).map_err(|e| TopologyError::Syntax {
        line: e.span().map(|span| line_of(span.start)),
        reason: e.message().lines().map(str::trim).collect::<Vec<_>>().join(", "),
    })?;
    let mut builder = Builder::new(&file.name);
    for entry in &file.socket {
        let id = &entry.as_ref().id;
        builder.add(id.as_ref(), Kind::Socket, None, None, Some(line_of(id.span().start)));
    }
    for entry in &file.root_complex {
        let e = entry.as_ref();
        let line = Some(line_of(e.socket.span().start));
        let node =
            builder.add(e.id.as_ref(), Kind::RootComplex, Some(e.socket.as_ref()), None, line);
        node.p2p.reads = e.p2p_reads;
        node.p2p.read_slots = e.p2p_read_slots.map(std::num::NonZeroU32::get);
        node.p2p.tlp_bytes = e.p2p_tlp_bytes;
        node.p2p.cap_gb_per_s = e.p2p_cap_gb_per_s;
        if let Some(bytes) = e.p2p_tlp_bytes.filter(|b| !b.is_power_of_two() || *b < 32) {
            return Err(TopologyError::Number {
                line,
                id: e.id.as_ref().clone(),
                field: "p2p_tlp_bytes (a power of two from 32)",
                value: f64::from(bytes),
            });
        }
    }
    for entry in &file.root_port {
        let e = entry.as_ref();
        let line = Some(line_of(e.parent.span().start));
        builder.add(e.id.as_ref(), Kind::RootPort, Some(e.parent.as_ref()), None, line);
    }
    let kinds = [(Kind::Switch, &file.switch), (Kind::Gpu, &file.gpu), (Kind::Nic, &file.nic)];
    for (kind, entries) in kinds {
        for entry in entries {
            let e = entry.as_ref();
            let link = RawLink {
                generation: *e.generation.as_ref(),
                lanes: *e.lanes.as_ref(),
                mps: *e.mps.as_ref(),
                mrrs: *e.mrrs.as_ref(),
            };
            // The error names the line of the faulty field, else that of the parent.
            let bad = [
                (crate::tlp::Gen::new(link.generation).is_err(), &e.generation),
                (!matches!(link.lanes, 1 | 2 | 4 | 8 | 12 | 16 | 32), &e.lanes),
                (crate::tlp::Mps::new(link.mps).is_err(), &e.mps),
                (crate::tlp::Mrrs::new(link.mrrs).is_err(), &e.mrrs),
            ];
            let start = bad
                .iter()
                .find(|(bad, _)| *bad)
                .map_or(e.parent.span().start, |(_, field)| field.span().start);
            let parent = Some(e.parent.as_ref().as_str());
            let node = builder.add(e.id.as_ref(), kind, parent, Some(link), Some(line_of(start)));
            node.acs = e.acs;
            node.model.clone_from(&e.model);
        }
    }
    for entry in &file.interconnect {
        let e = entry.as_ref();
        let line = Some(line_of(e.from.span().start));
        builder.interconnect(e.from.as_ref(), e.to.as_ref(), e.gb_per_s, line);
    }
    builder.finish()
}
