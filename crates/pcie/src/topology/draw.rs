//! A topology as text: a tree, and what is known of it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::assign::assign_topology;
use super::builtin::builtin;
use super::model::{Kind, NodeId, Topology};
use super::p2p::{Iommu, KnownCollapse};
use super::survey::collapse_text;
use super::tree::Class;
use crate::Origin;
use crate::text::one_line;

/// What stands behind a number that was not read.
fn marked(origin: Origin) -> String {
    if origin == Origin::Read { String::new() } else { format!(" ({origin})") }
}

fn label(topology: &Topology, id: NodeId) -> String {
    let node = topology.node(id);
    let mut text = format!("{} {}", node.kind, one_line(&node.id));
    if let Some(link) = node.link {
        let (generation, lanes) = (link.speed.generation().number(), link.speed.lanes());
        let (from, mark) = (node.link_origin, marked);
        let _ = write!(text, "  Gen{generation} x{lanes}{}", mark(from.speed));
        let _ = write!(text, " MPS {}{}", link.mps.bytes(), mark(from.mps));
        if node.kind != Kind::Switch {
            let _ = write!(text, " MRRS {}{}", link.mrrs.bytes(), mark(from.mrrs));
        }
        let packets = topology.packets_of(id).filter(|packets| packets.0 < link.mps.bytes());
        if let Some((bytes, origin)) = packets {
            let _ = write!(text, " packets {bytes}{}", mark(origin));
        }
    }
    if node.unknown {
        text.push_str("  unknown");
    }
    if !node.model.is_empty() {
        let _ = write!(text, "  {}", one_line(&node.model));
    }
    if let Some(card) = &node.card {
        let _ = write!(text, "  of card {}", one_line(card));
    }
    match node.relaxed_ordering {
        Some(true) => text.push_str("  relaxed ordering"),
        Some(false) => text.push_str("  no relaxed ordering"),
        None => {}
    }
    if let Some(chip) = &node.chip {
        let _ = write!(text, "  of chip {}", one_line(chip));
    }
    if node.acs {
        text.push_str("  ACS");
    }
    match node.port_acs {
        Some(true) => text.push_str("  ACS in the port above"),
        Some(false) => text.push_str("  no ACS in the port above"),
        None => {}
    }
    if node.iommu != Iommu::Unknown {
        let _ = write!(text, "  IOMMU {}", node.iommu.name());
    }
    if node.p2p.reads == Some(false) {
        text.push_str("  no peer reads");
    }
    if node.p2p.writes == Some(false) {
        text.push_str("  no peer writes");
    }
    if let Some(bytes) = node.p2p.read_bytes {
        let _ = write!(text, "  peer reads of {bytes} B");
    }
    if let Some(slots) = node.p2p.read_slots {
        let _ = write!(text, "  {slots} peer reads at once");
    }
    if let Some((bytes, origin)) = cut(topology, id) {
        let _ = write!(text, "  peer TLPs {bytes} B{}", marked(origin));
    }
    for (what, limit) in [
        ("peer reads", node.p2p.read_gb_per_s),
        ("peer writes", node.p2p.write_gb_per_s),
        ("peers", node.p2p.cap_gb_per_s),
        ("peer reads across sockets", node.p2p.far_read_gb_per_s),
        ("peer writes across sockets", node.p2p.far_write_gb_per_s),
        ("mesh", node.mesh_gb_per_s),
        ("reads of memory", node.memory_read_gb_per_s),
        ("writes to memory", node.memory_write_gb_per_s),
    ] {
        if let Some(gb_per_s) = limit {
            let _ = write!(text, "  {what} {gb_per_s} GB/s");
        }
    }
    text
}

/// Size to which a root complex cuts what peers send.
fn cut(topology: &Topology, id: NodeId) -> Option<(u32, Origin)> {
    topology.cut_of(id).filter(|_| topology.node(id).kind == Kind::RootComplex)
}

/// The tree, one node per line, then the links between sockets.
pub fn to_tree(topology: &Topology) -> String {
    let mut out = format!("{}\n", one_line(&topology.name));
    for socket in topology.of_kind(Kind::Socket) {
        tree(topology, socket, "", true, &mut out);
    }
    for link in topology.interconnects() {
        let [a, b] = [link.a, link.b].map(|node| one_line(&topology.node(node).id));
        let (rate, mark) = (link.text(), marked(link.origin));
        let _ = match link.origin {
            Origin::Unknown => writeln!(out, "{a} <-> {b}  {rate}"),
            _ => writeln!(out, "{a} <-> {b}  {rate} each way{mark}"),
        };
    }
    if has_marks(topology) {
        // A built-in example is nobody's machine.
        let is_example = builtin(&topology.name).is_some_and(|example| example == *topology);
        let are = if is_example { "are of the built-in example" } else { "were read" };
        let _ = writeln!(out, "Numbers without a mark {are}.");
    }
    out
}

fn has_marks(topology: &Topology) -> bool {
    let links = topology.nodes().filter(|(_, n)| n.link.is_some()).map(|(_, n)| n.link_origin);
    let mut origins = links.flat_map(|l| [l.speed, l.mps, l.mrrs]);
    let mut told =
        topology.nodes().flat_map(|(id, _)| [topology.packets_of(id), cut(topology, id)]);
    origins.any(|o| o != Origin::Read)
        || told.any(|told| told.is_some_and(|(_, origin)| origin != Origin::Read))
        || topology.interconnects().iter().any(|l| l.origin != Origin::Read)
}

/// The tree, then the distances of all pairs of a GPU and a NIC.
pub fn to_text(topology: &Topology) -> String {
    let mut out = to_tree(topology);
    let (gpus, nics) = (topology.of_kind(Kind::Gpu), topology.of_kind(Kind::Nic));
    if !gpus.is_empty() && !nics.is_empty() {
        let _ = write!(out, "\n{:10}", "");
        for &nic in &nics {
            let _ = write!(out, "{:>14}", one_line(&topology.node(nic).id));
        }
        out.push('\n');
        for &gpu in &gpus {
            let _ = write!(out, "{:10}", one_line(&topology.node(gpu).id));
            for &nic in &nics {
                let _ = write!(out, "{:>14}", topology.class_of(gpu, nic));
            }
            out.push('\n');
        }
        ways(topology, &gpus, &nics, &mut out);
    }
    peers(topology, &gpus, &mut out);
    fans(topology, &gpus, &mut out);
    out
}

/// Widest table of classes, in GPUs.
const MAX_COLUMNS: usize = 40;

/// Classes of the pairs of GPUs.
fn peers(topology: &Topology, gpus: &[NodeId], out: &mut String) {
    if gpus.len() < 2 || gpus.len() > MAX_COLUMNS {
        return;
    }
    let id = |n: NodeId| one_line(&topology.node(n).id);
    let _ = write!(out, "\n{:10}", "");
    for &gpu in gpus {
        let _ = write!(out, "{:>14}", id(gpu));
    }
    out.push('\n');
    for &a in gpus {
        let _ = write!(out, "{:10}", id(a));
        for &b in gpus {
            let class = if a == b { "X".into() } else { topology.class_of(a, b).to_string() };
            let _ = write!(out, "{class:>14}");
        }
        out.push('\n');
    }
}

/// Switches from which GPUs can write to GPUs behind two or more other root ports, and what is known
/// of the rate of such writes.
fn fans(topology: &Topology, gpus: &[NodeId], out: &mut String) {
    if gpus.len() > MAX_COLUMNS {
        return;
    }
    let mut lines = Vec::new();
    for switch in topology.of_kind(Kind::Switch) {
        let below = |n: &&NodeId| topology.ancestry(**n).contains(&switch);
        let own: Vec<NodeId> = gpus.iter().filter(below).copied().collect();
        let Some(&first) = own.first() else { continue };
        let mut roots = BTreeSet::new();
        for &to in gpus.iter().filter(|to| !own.contains(to)) {
            let way = topology.route(first, to);
            let kind = |n: &NodeId| topology.node(*n).kind;
            let is_root = |n: &NodeId| kind(n) == Kind::RootComplex;
            let Some(up) = way.nodes.iter().position(is_root) else { continue };
            let down = way.nodes.iter().rposition(is_root).unwrap_or(up);
            // By the uplink of the switch that is nearest to the root complex.
            let uplink = way.nodes[..up].iter().rfind(|n| kind(n) == Kind::Switch);
            if uplink == Some(&switch) {
                roots.extend(way.nodes.get(down + 1).copied());
            }
        }
        if roots.len() < 2 || own.len() < KnownCollapse::least_sources() {
            continue;
        }
        let list = |all: &mut dyn Iterator<Item = NodeId>| {
            all.map(|n| one_line(&topology.node(n).id)).collect::<Vec<_>>().join(", ")
        };
        let behind = |root: NodeId| {
            let is_behind = |gpu: &NodeId| topology.ancestry(*gpu).contains(&root);
            let gpus = list(&mut gpus.iter().copied().filter(is_behind));
            format!("{} ({gpus})", one_line(&topology.node(root).id))
        };
        let to: Vec<String> = roots.into_iter().map(behind).collect();
        let sources = list(&mut own.into_iter());
        let switch = one_line(&topology.node(switch).id);
        lines.push(format!("{sources} of switch {switch} to {}", to.join(", ")));
    }
    let shows_chips = topology.nodes().all(|(_, n)| n.kind != Kind::Switch || n.chip.is_some());
    out.push_str(&collapse_text(&lines, topology.collapse(), shows_chips));
}

/// The way from each GPU to the NIC that it is given, and what decides about it.
fn ways(topology: &Topology, gpus: &[NodeId], nics: &[NodeId], out: &mut String) {
    out.push('\n');
    let mut notes: Vec<String> = Vec::new();
    let given = assign_topology(topology);
    for &gpu in gpus {
        let own = given.iter().find(|a| a.gpu == gpu).and_then(|a| a.nic);
        let routes = nics.iter().filter(|&&nic| own.is_none_or(|own| own == nic));
        let routes = routes.map(|&nic| topology.route(gpu, nic));
        let Some(route) = routes.min_by_key(|r| r.class) else { continue };
        let class = match (route.nodes.first(), route.nodes.last()) {
            (Some(&from), Some(&to)) => topology.class_of(from, to),
            _ => Class::Known(route.class),
        };
        let _ = write!(out, "{class:4} {}", route.text(topology));
        if route.tree != route.class {
            let _ = write!(out, "  (by the tree {})", route.tree);
        }
        out.push('\n');
        notes.extend(route.notes(topology));
        if let Some(back) = route.other_back(topology) {
            let _ = writeln!(out, "{:4} {}  (the way back)", back.class, back.text(topology));
            notes.extend(back.notes(topology));
        }
    }
    let mut seen = std::collections::HashSet::new();
    for note in notes.iter().filter(|note| seen.insert(note.as_str())) {
        let _ = writeln!(out, "{note}.");
    }
}

fn tree(topology: &Topology, node: NodeId, indent: &str, root: bool, out: &mut String) {
    if root {
        let _ = writeln!(out, "{}", label(topology, node));
    }
    let children = topology.children(node);
    for (i, &child) in children.iter().enumerate() {
        let last = i + 1 == children.len();
        let (branch, bar) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let _ = writeln!(out, "{indent}{branch}{}", label(topology, child));
        tree(topology, child, &format!("{indent}{bar}"), false, out);
    }
}
