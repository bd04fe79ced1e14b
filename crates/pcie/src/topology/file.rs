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

use super::between::{RawBetween, UNKNOWN_GB_PER_S};
use super::error::TopologyError;
use super::model::{Builder, Kind, LinkOrigin, RawLink, Topology, rate};
use super::p2p::{Collapse, Iommu, P2p, PostedCollapse};
use super::save::UNKNOWN;
use crate::Origin;

/// Most nodes of a file: more than any host has, and few enough for what looks at every pair.
pub const MAX_NODES: usize = 1024;
/// Most interconnects of a file: those that join each of 64 sockets to each, and some.
const MAX_INTERCONNECTS: usize = 2048;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a topology")]
struct File {
    #[serde(default)]
    name: String,
    #[serde(default)]
    socket: Vec<Spanned<SocketEntry>>,
    posted_write_collapse: Option<Spanned<CollapseEntry>>,
    #[serde(default)]
    numa: Vec<Spanned<NumaEntry>>,
    #[serde(default)]
    chip: Vec<Spanned<ChipEntry>>,
    #[serde(default)]
    slot: Vec<Spanned<SlotEntry>>,
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
    #[serde(default)]
    measured: std::collections::BTreeMap<Spanned<String>, f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table of a socket")]
struct SocketEntry {
    id: Spanned<String>,
    #[serde(default)]
    unknown: bool,
    #[serde(default)]
    cpu: String,
    memory_read_gb_per_s: Option<f64>,
    memory_write_gb_per_s: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table of a NUMA node")]
struct NumaEntry {
    id: Spanned<String>,
    socket: Spanned<String>,
    memory_read_gb_per_s: Option<f64>,
    memory_write_gb_per_s: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table of a chip")]
struct ChipEntry {
    id: Spanned<String>,
    crosses: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table of a slot")]
struct SlotEntry {
    id: Spanned<String>,
    #[serde(default = "x16")]
    lanes: Spanned<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table of a collapse")]
struct CollapseEntry {
    #[serde(default = "yes")]
    seen: bool,
    sources: Option<std::num::NonZeroU32>,
    roots: Option<u32>,
    gb_per_s: Option<f64>,
    source: String,
}

fn yes() -> bool {
    true
}

/// A collapse that was seen needs its numbers, one that was not has none.
fn collapse(e: &CollapseEntry, line: usize) -> Result<Collapse, TopologyError> {
    const ID: &str = "posted_write_collapse";
    let missing =
        |what: &str| TopologyError::Syntax { line: Some(line), reason: format!("{ID}: {what}") };
    let bad =
        |field, value| TopologyError::Number { line: Some(line), id: ID.into(), field, value };
    match (e.seen, e.sources, e.roots, e.gb_per_s) {
        (false, None, None, None) => Ok(Collapse::Absent),
        (false, ..) => Err(missing("what was not seen has no numbers")),
        (true, Some(_), Some(roots @ 0..=1), Some(_)) => {
            Err(bad("roots (at least 2)", f64::from(roots)))
        }
        (true, Some(sources), Some(roots), Some(gb_per_s)) => {
            rate(gb_per_s, ID, "gb_per_s", Some(line))?;
            let (sources, source) = (sources.get(), e.source.clone());
            Ok(Collapse::Seen(PostedCollapse { sources, roots, gb_per_s, source }))
        }
        _ => Err(missing("sources, roots and gb_per_s are needed")),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum IommuEntry {
    Unknown,
    Off,
    Translates,
}

impl From<&IommuEntry> for Iommu {
    fn from(entry: &IommuEntry) -> Self {
        match entry {
            IommuEntry::Unknown => Self::Unknown,
            IommuEntry::Off => Self::Off,
            IommuEntry::Translates => Self::Translates,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table of an interconnect")]
struct InterconnectEntry {
    from: Spanned<String>,
    to: Spanned<String>,
    gb_per_s: Option<f64>,
    #[serde(default)]
    assumed: bool,
    #[serde(default)]
    in_package: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table of a root complex")]
struct RootComplexEntry {
    id: Spanned<String>,
    socket: Spanned<String>,
    numa: Option<Spanned<String>>,
    #[serde(default)]
    unknown: bool,
    p2p_reads: Option<bool>,
    p2p_writes: Option<bool>,
    p2p_tlp_bytes: Option<Spanned<u32>>,
    p2p_read_slots: Option<std::num::NonZeroU32>,
    p2p_read_bytes: Option<Spanned<u32>>,
    p2p_cap_gb_per_s: Option<f64>,
    p2p_read_gb_per_s: Option<f64>,
    p2p_write_gb_per_s: Option<f64>,
    p2p_far_read_gb_per_s: Option<f64>,
    p2p_far_write_gb_per_s: Option<f64>,
    iommu: Option<IommuEntry>,
    mesh_gb_per_s: Option<f64>,
    #[serde(default)]
    model: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table of a root port")]
struct RootPortEntry {
    id: Spanned<String>,
    parent: Spanned<String>,
    #[serde(default)]
    acs: bool,
    slot: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "the table of a switch, GPU or NIC")]
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
    packet_bytes: Option<Spanned<u32>>,
    #[serde(default)]
    acs: bool,
    port_acs: Option<bool>,
    relaxed_ordering: Option<Spanned<bool>>,
    chip: Option<Spanned<String>>,
    #[serde(default)]
    assumed: Vec<Guessed>,
    link: Option<Spanned<LinkEntry>>,
    card: Option<Spanned<String>>,
    name: Option<String>,
    #[serde(default)]
    model: String,
}

/// What stands in place of a link's numbers.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum LinkEntry {
    Unknown,
}

/// A number that a file has and nobody read.
#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Guessed {
    Gen,
    Lanes,
    Mps,
    Mrrs,
}

impl DeviceEntry {
    /// Whether the file gives any number of the link.
    fn has_numbers(&self) -> bool {
        let numbers = [&self.generation, &self.lanes, &self.mps, &self.mrrs];
        !self.assumed.is_empty() || numbers.iter().any(|number| !number.span().is_empty())
    }
}

fn unspanned(value: u32) -> Spanned<u32> {
    Spanned::new(0..0, value)
}

/// What a file leaves out has no place in it.
fn origin(value: &Spanned<u32>, is_guessed: bool) -> Origin {
    if is_guessed || value.span().is_empty() { Origin::Assumed } else { Origin::Read }
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

/// What the parser found, in a file's words: it has Rust's names of types.
fn in_words(reason: &str) -> String {
    let words = [
        ("invalid type: map, expected a sequence", "a table in double brackets is expected here"),
        ("sequence", "list"),
        ("expected a map", "expected a table"),
        ("expected u32", "expected a whole number from 0"),
        ("expected a nonzero u32", "expected a whole number from 1"),
        ("expected f64", "expected a number"),
    ];
    words.iter().fold(reason.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

/// Parses the text of a topology file.
pub fn from_toml(text: &str) -> Result<Topology, TopologyError> {
    let line_of = |start: usize| text[..start.min(text.len())].matches('\n').count() + 1;
    let file: File = toml::from_str(text).map_err(|e| TopologyError::Syntax {
        line: e.span().map(|span| line_of(span.start)),
        reason: in_words(&e.message().lines().map(str::trim).collect::<Vec<_>>().join(", ")),
    })?;
    let devices = file.gpu.len() + file.nic.len() + file.switch.len() + file.root_port.len();
    let nodes = devices + file.root_complex.len() + file.numa.len() + file.socket.len();
    if nodes > MAX_NODES {
        let reason = format!("{nodes} sockets, ports and devices: at most {MAX_NODES}");
        return Err(TopologyError::Syntax { line: None, reason });
    }
    let (joined, most) = (file.interconnect.len(), MAX_INTERCONNECTS);
    if joined > most {
        let reason = format!("{joined} interconnects: at most {most}");
        return Err(TopologyError::Syntax { line: None, reason });
    }
    let mut builder = Builder::new(&file.name);
    let mut names = std::collections::HashSet::new();
    for (id, kind) in file
        .chip
        .iter()
        .map(|c| (&c.as_ref().id, "chip"))
        .chain(file.slot.iter().map(|s| (&s.as_ref().id, "slot")))
    {
        if !names.insert((id.as_ref().clone(), kind)) {
            let line = Some(line_of(id.span().start));
            return Err(TopologyError::Duplicate { line, id: id.as_ref().clone() });
        }
    }
    if let Some(entry) = &file.posted_write_collapse {
        builder.collapse(collapse(entry.as_ref(), line_of(entry.span().start))?);
    }
    for entry in &file.chip {
        builder.chip(entry.as_ref().id.as_ref(), entry.as_ref().crosses);
    }
    for entry in &file.slot {
        builder.slot(entry.as_ref().id.as_ref(), *entry.as_ref().lanes.as_ref());
    }
    for entry in &file.socket {
        let e = entry.as_ref();
        let line = line_of(e.id.span().start);
        let has_limit = e.memory_read_gb_per_s.is_some() || e.memory_write_gb_per_s.is_some();
        let is_own = |n: &Spanned<NumaEntry>| n.as_ref().socket.as_ref() == e.id.as_ref();
        if has_limit && file.numa.iter().any(is_own) {
            let id = e.id.as_ref();
            let reason =
                format!("{id}: its memory is that of its NUMA nodes, which have the limits");
            return Err(TopologyError::Syntax { line: Some(line), reason });
        }
        let node = builder.add(e.id.as_ref(), Kind::Socket, None, None, Some(line));
        node.unknown = e.unknown;
        node.model.clone_from(&e.cpu);
        node.memory_read_gb_per_s = e.memory_read_gb_per_s;
        node.memory_write_gb_per_s = e.memory_write_gb_per_s;
    }
    for entry in &file.numa {
        let e = entry.as_ref();
        let line = Some(line_of(e.socket.span().start));
        let node = builder.add(e.id.as_ref(), Kind::NumaNode, Some(e.socket.as_ref()), None, line);
        node.memory_read_gb_per_s = e.memory_read_gb_per_s;
        node.memory_write_gb_per_s = e.memory_write_gb_per_s;
    }
    for entry in &file.root_complex {
        root_complex(&mut builder, entry.as_ref(), &file.numa, &line_of)?;
    }
    for entry in &file.root_port {
        let e = entry.as_ref();
        let line = Some(line_of(e.parent.span().start));
        let node = builder.add(e.id.as_ref(), Kind::RootPort, Some(e.parent.as_ref()), None, line);
        node.acs = e.acs;
        node.slot.clone_from(&e.slot);
    }
    let kinds = [(Kind::Switch, &file.switch), (Kind::Gpu, &file.gpu), (Kind::Nic, &file.nic)];
    for (kind, entries) in kinds {
        for entry in entries {
            device(&mut builder, kind, entry.as_ref(), &line_of)?;
        }
    }
    for entry in &file.interconnect {
        let e = entry.as_ref();
        let line = Some(line_of(e.from.span().start));
        let origin = match (e.gb_per_s, e.assumed) {
            (None, _) => Origin::Unknown,
            (_, true) => Origin::Assumed,
            (_, false) => Origin::Read,
        };
        let gb_per_s = e.gb_per_s.unwrap_or(UNKNOWN_GB_PER_S);
        let (a, b) = (e.from.as_ref().clone(), e.to.as_ref().clone());
        builder.joined(RawBetween { a, b, gb_per_s, origin, in_package: e.in_package, line });
    }
    for (name, value) in &file.measured {
        let line = Some(line_of(name.span().start));
        let fit = crate::sim::fitted(name.as_ref(), *value);
        let (parameter, value) = fit.map_err(|reason| TopologyError::Syntax {
            line,
            reason: format!("measured: {reason}"),
        })?;
        builder.measured(parameter, value);
    }
    let topology = builder.finish()?;
    if let Some(port) = topology.port_with_another_link() {
        let id = &topology.node(port).id;
        let entry = file.nic.iter().find(|nic| nic.as_ref().id.as_ref() == id);
        let reason = format!("{id}: its gen and lanes are not those of another port of its card");
        let line = entry.map(|entry| line_of(entry.as_ref().id.span().start));
        return Err(TopologyError::Syntax { line, reason });
    }
    // Everything else hangs from these.
    let least =
        [("socket", file.socket.is_empty()), ("root_complex", file.root_complex.is_empty())];
    if let Some((lacks, _)) = least.iter().find(|(_, is_empty)| *is_empty) {
        let reason = format!(
            "no [[{lacks}]]: a topology has a [[socket]] and a [[root_complex]] of it at least, and \
             below that what is asked about: a [[gpu]], a [[nic]]"
        );
        return Err(TopologyError::Syntax { line: None, reason });
    }
    Ok(topology)
}

/// An error about a size of packets of a root complex or device.
fn packet(line: usize, id: &str, field: &'static str, value: u32) -> TopologyError {
    TopologyError::Packet { line: Some(line), id: id.to_owned(), field, value }
}

fn root_complex(
    builder: &mut Builder,
    e: &RootComplexEntry,
    numa: &[Spanned<NumaEntry>],
    line_of: &impl Fn(usize) -> usize,
) -> Result<(), TopologyError> {
    let id = e.id.as_ref();
    let mut line = line_of(e.socket.span().start);
    let mut parent = e.socket.as_ref();
    if let Some(node) = &e.numa {
        line = line_of(node.span().start);
        let known = numa.iter().map(AsRef::as_ref).find(|n| n.id.as_ref() == node.as_ref());
        if known.is_none_or(|n| n.socket.as_ref() != e.socket.as_ref()) {
            let at = format!("{} in {}", node.as_ref(), e.socket.as_ref());
            return Err(TopologyError::UnknownDevice { line: Some(line), id: at, by: id.clone() });
        }
        parent = node.as_ref();
    }
    let power = |bytes: &Option<Spanned<u32>>, field| match bytes {
        Some(b) if !b.as_ref().is_power_of_two() || !(32..=4096).contains(b.as_ref()) => {
            Err(packet(line_of(b.span().start), id, field, *b.as_ref()))
        }
        bytes => Ok(bytes.as_ref().map(|b| *b.as_ref())),
    };
    let tlp_bytes = power(&e.p2p_tlp_bytes, "p2p_tlp_bytes")?;
    let read_bytes = power(&e.p2p_read_bytes, "p2p_read_bytes")?;
    let node = builder.add(id, Kind::RootComplex, Some(parent), None, Some(line));
    node.p2p = P2p {
        reads: e.p2p_reads,
        writes: e.p2p_writes,
        tlp_bytes,
        read_slots: e.p2p_read_slots.map(std::num::NonZeroU32::get),
        read_bytes,
        cap_gb_per_s: e.p2p_cap_gb_per_s,
        read_gb_per_s: e.p2p_read_gb_per_s,
        write_gb_per_s: e.p2p_write_gb_per_s,
        far_read_gb_per_s: e.p2p_far_read_gb_per_s,
        far_write_gb_per_s: e.p2p_far_write_gb_per_s,
    };
    node.unknown = e.unknown;
    node.model.clone_from(&e.model);
    node.iommu = e.iommu.as_ref().map_or(Iommu::Unknown, Iommu::from);
    node.mesh_gb_per_s = e.mesh_gb_per_s;
    Ok(())
}

fn device(
    builder: &mut Builder,
    kind: Kind,
    e: &DeviceEntry,
    line_of: &impl Fn(usize) -> usize,
) -> Result<(), TopologyError> {
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
    let field = bad.iter().find(|(bad, _)| *bad).map(|(_, field)| field.span().start);
    let line = line_of(field.unwrap_or(e.parent.span().start));
    if let Some(chip) = e.chip.as_ref().filter(|_| kind != Kind::Switch) {
        let reason = format!("{}: a {kind} is no part of a chip of switches", e.id.as_ref());
        return Err(TopologyError::Syntax { line: Some(line_of(chip.span().start)), reason });
    }
    if let Some(order) = e.relaxed_ordering.as_ref().filter(|_| kind == Kind::Switch) {
        let reason = format!("{}: a switch makes no requests to relax", e.id.as_ref());
        return Err(TopologyError::Syntax { line: Some(line_of(order.span().start)), reason });
    }
    if let Some(unknown) = &e.link
        && e.has_numbers()
    {
        let reason = format!("{}: an unknown link has no gen, lanes, mps and mrrs", e.id.as_ref());
        return Err(TopologyError::Syntax { line: Some(line_of(unknown.span().start)), reason });
    }
    if let Some(card) = e.card.as_ref().filter(|_| kind != Kind::Nic) {
        let reason = format!("{}: a {kind} is no port of a NIC's card", e.id.as_ref());
        return Err(TopologyError::Syntax { line: Some(line_of(card.span().start)), reason });
    }
    if let Some(packets) = &e.packet_bytes {
        let (bytes, line) = (*packets.as_ref(), line_of(packets.span().start));
        if kind != Kind::Gpu {
            let reason = format!("{}: a {kind} moves packets of MPS", e.id.as_ref());
            return Err(TopologyError::Syntax { line: Some(line), reason });
        }
        if !bytes.is_power_of_two() || !(32..=4096).contains(&bytes) {
            return Err(packet(line, e.id.as_ref(), "packet_bytes", bytes));
        }
    }
    let parent = Some(e.parent.as_ref().as_str());
    let link = e.link.is_none().then_some(link);
    let node = builder.add(e.id.as_ref(), kind, parent, link, Some(line));
    node.packet_bytes = e.packet_bytes.as_ref().map(|bytes| *bytes.as_ref());
    node.card = e.card.as_ref().map(|c| c.as_ref().clone()).filter(|c| c != UNKNOWN);
    node.name.clone_from(&e.name);
    (node.acs, node.port_acs) = (e.acs, e.port_acs);
    let origin = |value, field| origin(value, e.assumed.contains(&field));
    node.relaxed_ordering = e.relaxed_ordering.as_ref().map(|r| *r.as_ref());
    node.link_origin = LinkOrigin {
        speed: origin(&e.generation, Guessed::Gen).max(origin(&e.lanes, Guessed::Lanes)),
        mps: origin(&e.mps, Guessed::Mps),
        mrrs: origin(&e.mrrs, Guessed::Mrrs),
    };
    node.chip = e.chip.as_ref().map(|c| c.as_ref().clone());
    node.model.clone_from(&e.model);
    Ok(())
}
