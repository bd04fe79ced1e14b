//! Topologies as the text of a file, which [`from_toml`](super::from_toml) reads.

use std::fmt::Write as _;

use super::model::{Kind, Node, NodeId, PcieLink, Topology};
use super::p2p::{Collapse, Iommu};
use crate::Origin;

/// The word for what is unknown.
pub(super) const UNKNOWN: &str = "unknown";

/// One table of the file, field by field.
struct Table {
    text: String,
}

impl Table {
    fn new(head: &str) -> Self {
        Self { text: format!("\n{head}\n") }
    }

    fn put(&mut self, field: &str, value: impl Into<toml::Value>) -> &mut Self {
        let _ = writeln!(self.text, "{field} = {}", value.into());
        self
    }

    fn put_some<T: Into<toml::Value>>(&mut self, field: &str, value: Option<T>) -> &mut Self {
        if let Some(value) = value {
            self.put(field, value);
        }
        self
    }

    fn put_true(&mut self, field: &str, value: bool) -> &mut Self {
        self.put_some(field, value.then_some(true))
    }

    fn put_text(&mut self, field: &str, text: &str) -> &mut Self {
        self.put_some(field, (!text.is_empty()).then_some(text))
    }
}

/// The file of a topology. Numbers that nobody read are marked there as assumed, so that a reader
/// of the file marks and moves them as before. What is unknown is so in the file: a link, a card, the
/// socket of root complexes, the bridges above a device.
pub fn to_toml(topology: &Topology) -> String {
    let mut text = format!("name = {}\n", toml::Value::from(topology.name.as_str()));
    text += &collapse(&topology.collapse);
    for chip in &topology.chips {
        let mut t = Table::new("[[chip]]");
        text += &t.put("id", chip.id.as_str()).put_some("crosses", chip.crosses).text;
    }
    for slot in &topology.slots {
        let mut t = Table::new("[[slot]]");
        text += &t.put("id", slot.id.as_str()).put("lanes", i64::from(slot.lanes)).text;
    }
    for kind in [
        Kind::Socket,
        Kind::NumaNode,
        Kind::RootComplex,
        Kind::RootPort,
        Kind::Switch,
        Kind::Gpu,
        Kind::Nic,
    ] {
        topology.of_kind(kind).into_iter().for_each(|id| text += &node(topology, id));
    }
    for way in &topology.interconnects {
        let id = |n: NodeId| topology.node(n).id.as_str();
        let mut t = Table::new("[[interconnect]]");
        let is_known = way.origin != Origin::Unknown;
        t.put("from", id(way.a)).put("to", id(way.b));
        t.put_some("gb_per_s", is_known.then_some(way.gb_per_s));
        t.put_true("assumed", way.origin.is_uncertain());
        text += &t.put_true("in_package", way.in_package).text;
    }
    if !topology.measured.is_empty() {
        let mut t = Table::new("[measured]");
        topology.measured.iter().for_each(|(name, value)| _ = t.put(name, *value));
        text += &t.text;
    }
    text
}

fn collapse(collapse: &Collapse) -> String {
    let mut t = Table::new("[posted_write_collapse]");
    match collapse {
        Collapse::Unknown => return String::new(),
        Collapse::Absent => t.put("seen", false).put("source", ""),
        Collapse::Seen(c) => {
            t.put("sources", i64::from(c.sources)).put("roots", i64::from(c.roots));
            t.put("gb_per_s", c.gb_per_s).put("source", c.source.as_str())
        }
    };
    t.text
}

fn node(topology: &Topology, id: NodeId) -> String {
    let n = topology.node(id);
    let parent = n.parent.map(|p| topology.node(p));
    let table = match n.kind {
        Kind::Socket => "[[socket]]",
        Kind::NumaNode => "[[numa]]",
        Kind::RootComplex => "[[root_complex]]",
        Kind::RootPort => "[[root_port]]",
        Kind::Switch => "[[switch]]",
        Kind::Gpu => "[[gpu]]",
        Kind::Nic => "[[nic]]",
    };
    let mut t = Table::new(table);
    t.put("id", n.id.as_str()).put_some("name", n.name.as_deref());
    match (n.kind, parent) {
        (Kind::Socket, _) => {
            t.put_true("unknown", n.unknown).put_text("cpu", &n.model);
        }
        (Kind::RootComplex, Some(part)) if part.kind == Kind::NumaNode => {
            let socket = part.parent.map(|s| topology.node(s).id.as_str());
            t.put_some("socket", socket).put("numa", part.id.as_str());
        }
        (Kind::NumaNode | Kind::RootComplex, parent) => {
            t.put_some("socket", parent.map(|p| p.id.as_str()));
        }
        (_, parent) => {
            t.put_some("parent", parent.map(|p| p.id.as_str()));
        }
    }
    match n.kind {
        Kind::RootComplex => root_complex(&mut t, n),
        Kind::RootPort => {
            t.put_true("acs", n.acs).put_some("slot", n.slot.as_deref());
        }
        Kind::Switch | Kind::Gpu | Kind::Nic => device(&mut t, n),
        Kind::Socket | Kind::NumaNode => {
            t.put_some("memory_read_gb_per_s", n.memory_read_gb_per_s);
            t.put_some("memory_write_gb_per_s", n.memory_write_gb_per_s);
        }
    }
    t.text
}

fn root_complex(t: &mut Table, n: &Node) {
    let p = &n.p2p;
    t.put_true("unknown", n.unknown);
    t.put_some("p2p_reads", p.reads).put_some("p2p_writes", p.writes);
    t.put_some("p2p_tlp_bytes", p.tlp_bytes.map(i64::from));
    t.put_some("p2p_read_slots", p.read_slots.map(i64::from));
    t.put_some("p2p_read_bytes", p.read_bytes.map(i64::from));
    t.put_some("p2p_cap_gb_per_s", p.cap_gb_per_s);
    t.put_some("p2p_read_gb_per_s", p.read_gb_per_s);
    t.put_some("p2p_write_gb_per_s", p.write_gb_per_s);
    t.put_some("p2p_far_read_gb_per_s", p.far_read_gb_per_s);
    t.put_some("p2p_far_write_gb_per_s", p.far_write_gb_per_s);
    t.put_some("iommu", (n.iommu != Iommu::Unknown).then_some(n.iommu.name()));
    t.put_some("mesh_gb_per_s", n.mesh_gb_per_s).put_text("model", &n.model);
}

fn device(t: &mut Table, n: &Node) {
    if let Some(PcieLink { speed, mps, mrrs }) = n.link {
        let own = n.link_origin;
        let mut assumed: Vec<toml::Value> = Vec::new();
        for (field, value, origin) in [
            ("gen", speed.generation().number(), own.speed),
            ("lanes", speed.lanes(), own.speed),
            ("mps", mps.bytes(), own.mps),
            ("mrrs", mrrs.bytes(), own.mrrs),
        ] {
            t.put(field, i64::from(value));
            if origin != Origin::Read {
                assumed.push(field.into());
            }
        }
        t.put_some("assumed", (!assumed.is_empty()).then_some(assumed));
    } else {
        t.put("link", UNKNOWN);
    }
    t.put_some("packet_bytes", n.packet_bytes.map(i64::from));
    if n.kind == Kind::Nic {
        t.put("card", n.card.as_deref().unwrap_or(UNKNOWN));
    }
    t.put_true("acs", n.acs).put_some("port_acs", n.port_acs);
    t.put_some("relaxed_ordering", n.relaxed_ordering);
    t.put_some("chip", n.chip.as_deref()).put_text("model", &n.model);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{BUILTIN_NAMES, builtin, from_toml, to_text};

    fn again(t: &Topology) -> Topology {
        let text = to_toml(t);
        from_toml(&text).unwrap_or_else(|e| panic!("{}: {e}\n{text}", t.name))
    }

    fn by_id(t: &Topology) -> Vec<(String, Option<String>, Node)> {
        let name = |id: NodeId| t.node(id).id.clone();
        let all = t.nodes().map(|(id, n)| {
            let without = Node { parent: None, ..n.clone() };
            (name(id), n.parent.map(name), without)
        });
        let mut all: Vec<_> = all.collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    #[test]
    fn a_file_has_all_that_a_topology_has() {
        let machine = include_str!("../../machines/esc8000a-e13p.toml");
        let odd = "name = 'a \"b\" \\ c'\n[posted_write_collapse]\nseen = false\nsource = ''\n\
            [[socket]]\nid = 's0'\ncpu = 'Xeon \"x\"'\n[[socket]]\nid = 's1'\n\
            [[numa]]\nid = 'n0'\nsocket = 's0'\n[[slot]]\nid = 'A'\nlanes = 8\n\
            [[interconnect]]\nfrom = 's0'\nto = 's1'\ngb_per_s = 20.5\nassumed = true\n\
            in_package = true\n[[socket]]\nid = 's2'\n[[interconnect]]\nfrom = 's0'\nto = 's2'\n\
            [[root_complex]]\nid = 'rc0'\nsocket = 's0'\nnuma = 'n0'\np2p_reads = false\n\
            p2p_writes = true\np2p_tlp_bytes = 64\np2p_read_slots = 7\np2p_read_bytes = 128\n\
            p2p_cap_gb_per_s = 9.5\np2p_read_gb_per_s = 3.0\np2p_write_gb_per_s = 4.0\n\
            p2p_far_read_gb_per_s = 2.0\np2p_far_write_gb_per_s = 2.5\nmodel = 'Intel'\n\
            iommu = 'translates'\nmesh_gb_per_s = 70.0\n\
            [[root_port]]\nid = 'rp0'\nparent = 'rc0'\nacs = true\nslot = 'A'\n\
            [[gpu]]\nid = 'g'\nparent = 'rp0'\ngen = 4\nlanes = 8\nmps = 128\nmrrs = 4096\npacket_bytes = 64\n\
            name = 'GPU0'\nassumed = ['mps']\nrelaxed_ordering = false\nport_acs = false\nmodel = 'a GPU'\n\
            [measured]\ndram_ns = 90.25\ngpu_port_ns = 250.0\n";
        let files = [machine, odd].map(|text| from_toml(text).unwrap());
        let builtins = BUILTIN_NAMES.iter().map(|name| builtin(name).unwrap());
        for t in builtins.chain(files) {
            let saved = again(&t);
            assert_eq!(by_id(&saved), by_id(&t), "{}", t.name);
            assert_eq!((&saved.chips, &saved.slots), (&t.chips, &t.slots));
            assert_eq!((&saved.collapse, &saved.name), (&t.collapse, &t.name));
            assert_eq!(saved.measured(), t.measured(), "{}", t.name);
            assert_eq!(saved.interconnects.len(), t.interconnects.len());
            for (a, b) in saved.interconnects.iter().zip(&t.interconnects) {
                let all = |l: &crate::topology::Interconnect| (l.gb_per_s, l.origin, l.in_package);
                assert_eq!(all(a), all(b), "{}", t.name);
            }
            assert_eq!(again(&saved), saved, "{}", t.name);
            assert_eq!(to_text(&again(&saved)), to_text(&saved));
        }
    }
}
