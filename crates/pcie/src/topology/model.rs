//! A topology whose structure has been checked.

use std::collections::HashMap;
use std::fmt;

use super::between::{Interconnect, RawBetween};
use super::error::TopologyError;
use super::p2p::{Chip, Collapse, Iommu, P2p, Slot};
use crate::Origin;
use crate::tlp::{Gen, LinkSpeed, Mps, Mrrs, TlpError};

/// Most levels of nodes: a domain of PCI has 256 buses (PCIe base specification 2.2.6.2, bus numbers of 8 bits).
pub(super) const MAX_LEVELS: usize = 256;

/// Kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Kind {
    /// A CPU package with its memory: one NUMA node, unless it has [`Kind::NumaNode`]s.
    Socket,
    /// A part of a socket with memory of its own (NPS, sub-NUMA clusters).
    NumaNode,
    /// Root complex (host bridge).
    RootComplex,
    /// Root port.
    RootPort,
    /// PCIe switch (its upstream and downstream ports together).
    Switch,
    /// GPU.
    Gpu,
    /// NIC.
    Nic,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Socket => "socket",
            Self::NumaNode => "NUMA node",
            Self::RootComplex => "root complex",
            Self::RootPort => "root port",
            Self::Switch => "switch",
            Self::Gpu => "GPU",
            Self::Nic => "NIC",
        })
    }
}

impl Kind {
    fn may_hang_from(self, parent: Self) -> bool {
        match self {
            Self::Socket => false,
            Self::NumaNode => parent == Self::Socket,
            Self::RootComplex => matches!(parent, Self::Socket | Self::NumaNode),
            Self::RootPort => parent == Self::RootComplex,
            Self::Switch | Self::Gpu | Self::Nic => {
                matches!(parent, Self::RootComplex | Self::RootPort | Self::Switch)
            }
        }
    }
}

/// Index of a node in its topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// A node's link to its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcieLink {
    /// Generation and width.
    pub speed: LinkSpeed,
    /// Maximum payload size in use.
    pub mps: Mps,
    /// Maximum read request size of the device.
    pub mrrs: Mrrs,
}

/// Where the numbers of a node's link come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkOrigin {
    /// Generation and width.
    pub speed: Origin,
    /// Maximum payload size.
    pub mps: Origin,
    /// Maximum read request size.
    pub mrrs: Origin,
}

/// One node.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Unique name.
    pub id: String,
    /// What a GPU or NIC is called, such as GPU0; `None`: as its id says.
    pub name: Option<String>,
    /// Kind of the node.
    pub kind: Kind,
    /// Parent; `None` for sockets.
    pub parent: Option<NodeId>,
    /// Link to the parent. `None` for sockets, for root complexes, and for root ports, whose link
    /// is that of the node below; of a switch or device, unknown.
    pub link: Option<PcieLink>,
    /// Where the link's numbers come from.
    pub link_origin: LinkOrigin,
    /// Most bytes of a packet that a GPU sends, and of one in which what it reads comes; `None`: what
    /// [`Topology::packets_of`] has of its name, else MPS.
    pub packet_bytes: Option<u32>,
    /// Peer-to-peer behaviour; it applies to root complexes.
    pub p2p: P2p,
    /// Whether access control services (ACS) of the ports below this switch or root port redirect
    /// peer traffic to the root complex, where their own `port_acs` does not say.
    pub acs: bool,
    /// Whether ACS of the port above this node redirects; `None`: as the parent's `acs`.
    pub port_acs: Option<bool>,
    /// The chip that holds this switch beside others.
    pub chip: Option<String>,
    /// The slot whose lanes this root port shares.
    pub slot: Option<String>,
    /// The IOMMU of a root complex.
    pub iommu: Iommu,
    /// Whether a GPU or NIC sets the relaxed-ordering attribute of its requests; `None`: unknown.
    pub relaxed_ordering: Option<bool>,
    /// Bandwidth of a root complex to the rest of its socket each way, shared by its ports, GB/s; `None`: none is known.
    pub mesh_gb_per_s: Option<f64>,
    /// What devices read from the memory of a socket or NUMA node at most, all together, GB/s; `None`: no limit is known.
    pub memory_read_gb_per_s: Option<f64>,
    /// What they write to it at most, likewise.
    pub memory_write_gb_per_s: Option<f64>,
    /// Whether a socket or a root complex stands for what nobody knows: which socket the root
    /// complexes below it are of, or the bridges above what hangs from it.
    pub unknown: bool,
    /// The card that a NIC is a port of; `None`: unknown, taken as one of its own.
    pub card: Option<String>,
    /// Free text; a socket's is its CPU's name, a root complex's may be its vendor's.
    pub model: String,
}

/// A checked topology.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    /// Name.
    pub name: String,
    pub(super) nodes: Vec<Node>,
    pub(super) interconnects: Vec<Interconnect>,
    pub(super) chips: Vec<Chip>,
    pub(super) slots: Vec<Slot>,
    pub(super) collapse: Collapse,
    pub(super) measured: Vec<(&'static str, f64)>,
}

/// Distance between two devices, named as nvidia-smi does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "UPPERCASE"))]
pub enum Distance {
    /// One switch between the devices.
    Pix,
    /// Several switches, no root complex.
    Pxb,
    /// Through one root complex.
    Phb,
    /// Through two root complexes of one socket.
    Node,
    /// Across sockets.
    Sys,
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        })
    }
}

/// A link whose numbers have not been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawLink {
    /// Generation number.
    pub generation: u32,
    /// Lanes.
    pub lanes: u32,
    /// Maximum payload size, bytes.
    pub mps: u32,
    /// Maximum read request size, bytes.
    pub mrrs: u32,
}

impl RawLink {
    /// A link of generation `generation` with `lanes` lanes, MPS 256 and MRRS 512.
    pub const fn new(generation: u32, lanes: u32) -> Self {
        Self { generation, lanes, mps: 256, mrrs: 512 }
    }

    fn check(self) -> Result<PcieLink, TlpError> {
        Ok(PcieLink {
            speed: LinkSpeed::new(Gen::new(self.generation)?, self.lanes)?,
            mps: Mps::new(self.mps)?,
            mrrs: Mrrs::new(self.mrrs)?,
        })
    }
}

struct RawNode {
    node: Node,
    parent: Option<String>,
    link: Option<RawLink>,
    line: Option<usize>,
}

/// Collects nodes in any order and checks them together.
pub struct Builder {
    name: String,
    nodes: Vec<RawNode>,
    pub(super) interconnects: Vec<RawBetween>,
    chips: Vec<Chip>,
    slots: Vec<Slot>,
    collapse: Collapse,
    measured: Vec<(&'static str, f64)>,
}

impl Builder {
    /// Starts an empty topology.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            nodes: Vec::new(),
            interconnects: Vec::new(),
            chips: Vec::new(),
            slots: Vec::new(),
            collapse: Collapse::Unknown,
            measured: Vec::new(),
        }
    }

    /// Sets a parameter of the simulation that was measured on this machine.
    #[cfg(feature = "toml")]
    pub(super) fn measured(&mut self, parameter: &'static str, value: f64) {
        self.measured.push((parameter, value));
    }

    /// Adds a node; `line` is its line in a file.
    pub fn add(
        &mut self,
        id: &str,
        kind: Kind,
        parent: Option<&str>,
        link: Option<RawLink>,
        line: Option<usize>,
    ) -> &mut Node {
        let node = Node {
            id: id.to_owned(),
            name: None,
            kind,
            parent: None,
            link: None,
            link_origin: LinkOrigin::default(),
            packet_bytes: None,
            p2p: P2p::default(),
            acs: false,
            port_acs: None,
            chip: None,
            slot: None,
            iommu: Iommu::Unknown,
            relaxed_ordering: None,
            mesh_gb_per_s: None,
            memory_read_gb_per_s: None,
            memory_write_gb_per_s: None,
            unknown: false,
            card: None,
            model: String::new(),
        };
        self.nodes.push(RawNode { node, parent: parent.map(str::to_owned), link, line });
        let last = self.nodes.len() - 1;
        &mut self.nodes[last].node
    }

    /// Adds a chip, which switches name in [`Node::chip`].
    pub fn chip(&mut self, id: &str, crosses: Option<bool>) {
        self.chips.push(Chip { id: id.to_owned(), crosses });
    }

    /// Sets what is known of collapses of posted writes.
    pub fn collapse(&mut self, collapse: Collapse) {
        self.collapse = collapse;
    }

    /// Adds a slot, which root ports name in [`Node::slot`].
    pub fn slot(&mut self, id: &str, lanes: u32) {
        self.slots.push(Slot { id: id.to_owned(), lanes });
    }

    /// Checks the nodes and returns the topology.
    pub fn finish(self) -> Result<Topology, TopologyError> {
        let mut ids = HashMap::new();
        for (i, raw) in self.nodes.iter().enumerate() {
            if ids.insert(raw.node.id.clone(), NodeId(i)).is_some() {
                let (line, id) = (raw.line, raw.node.id.clone());
                return Err(TopologyError::Duplicate { line, id });
            }
        }
        let find = |id: &str, by: &str, line| {
            ids.get(id).copied().ok_or_else(|| TopologyError::UnknownDevice {
                line,
                id: id.to_owned(),
                by: by.to_owned(),
            })
        };
        let mut nodes = Vec::with_capacity(self.nodes.len());
        let mut lines = Vec::with_capacity(self.nodes.len());
        for raw in self.nodes {
            let (mut node, line) = (raw.node, raw.line);
            let id = node.id.clone();
            if let Some(parent) = &raw.parent {
                node.parent = Some(find(parent, &id, line)?);
            }
            if let Some(link) = raw.link {
                let checked = link.check();
                node.link = Some(checked.map_err(|source| TopologyError::Link {
                    line,
                    id: id.clone(),
                    source,
                })?);
            } else {
                node.link_origin = LinkOrigin::default();
            }
            for (field, gb_per_s) in [
                ("p2p_cap_gb_per_s", node.p2p.cap_gb_per_s),
                ("p2p_read_gb_per_s", node.p2p.read_gb_per_s),
                ("p2p_write_gb_per_s", node.p2p.write_gb_per_s),
                ("p2p_far_read_gb_per_s", node.p2p.far_read_gb_per_s),
                ("p2p_far_write_gb_per_s", node.p2p.far_write_gb_per_s),
                ("mesh_gb_per_s", node.mesh_gb_per_s),
                ("memory_read_gb_per_s", node.memory_read_gb_per_s),
                ("memory_write_gb_per_s", node.memory_write_gb_per_s),
            ] {
                gb_per_s.map_or(Ok(()), |gb_per_s| rate(gb_per_s, &id, field, line))?;
            }
            let chip = |id: &String| self.chips.iter().any(|c| c.id == *id);
            let slot = |id: &String| self.slots.iter().any(|s| s.id == *id);
            let no_chip = node.chip.as_ref().filter(|c| !chip(c));
            if let Some(unknown) = no_chip.or(node.slot.as_ref().filter(|s| !slot(s))) {
                return Err(TopologyError::UnknownDevice { line, id: unknown.clone(), by: id });
            }
            nodes.push(node);
            lines.push(line);
        }
        for (i, node) in nodes.iter().enumerate() {
            let mut up = node.parent;
            for level in 0..nodes.len() {
                let Some(parent) = up else { break };
                if level == MAX_LEVELS {
                    return Err(TopologyError::TooDeep { line: lines[i], id: node.id.clone() });
                }
                if parent.0 == i {
                    let via = nodes[node.parent.map_or(i, |p| p.0)].id.clone();
                    return Err(TopologyError::Loop { line: lines[i], id: node.id.clone(), via });
                }
                up = nodes[parent.0].parent;
            }
        }
        for (node, &line) in nodes.iter().zip(&lines) {
            if let Some(parent) = node.parent.map(|p| &nodes[p.0])
                && !node.kind.may_hang_from(parent.kind)
            {
                return Err(TopologyError::WrongParent {
                    line,
                    id: node.id.clone(),
                    kind: node.kind,
                    parent: parent.id.clone(),
                    parent_kind: parent.kind,
                });
            }
        }
        check_slots(&self.slots, &nodes, &lines)?;
        let mut interconnects = Vec::new();
        for raw in self.interconnects {
            let (line, RawBetween { a, b, gb_per_s, .. }) = (raw.line, &raw);
            rate(*gb_per_s, &format!("{a}-{b}"), "gb_per_s", line)?;
            let ends = [find(a, "interconnect", line)?, find(b, "interconnect", line)?];
            let are_sockets = ends.iter().all(|end| nodes[end.0].kind == Kind::Socket);
            if !are_sockets || ends[0] == ends[1] {
                return Err(TopologyError::NotSockets { line, a: raw.a, b: raw.b });
            }
            interconnects.push(raw.joins(ends));
        }
        let topology = Topology {
            name: self.name,
            nodes,
            interconnects,
            chips: self.chips,
            slots: self.slots,
            collapse: self.collapse,
            measured: self.measured,
        };
        topology.check_connected()?;
        Ok(topology)
    }
}

/// No slot's root ports have more lanes in use than the slot.
fn check_slots(
    slots: &[Slot],
    nodes: &[Node],
    lines: &[Option<usize>],
) -> Result<(), TopologyError> {
    for slot in slots {
        let mut used = 0;
        for (node, &line) in nodes.iter().zip(lines) {
            let port = node.parent.map(|p| &nodes[p.0]);
            let here = port.is_some_and(|p| p.slot.as_deref() == Some(&slot.id));
            used += node.link.filter(|_| here).map_or(0, |link| link.speed.lanes());
            if here && used > slot.lanes {
                let (id, slot, lanes) = (node.id.clone(), slot.id.clone(), slot.lanes);
                return Err(TopologyError::Slot { line, id, slot, used, lanes });
            }
        }
    }
    Ok(())
}

/// Rates that a topology takes, GB/s: what is slower than any link by orders takes more picoseconds than are counted.
pub(super) const RATES: [f64; 2] = [0.001, 1e6];

pub(super) fn rate(
    value: f64,
    id: &str,
    field: &'static str,
    line: Option<usize>,
) -> Result<(), TopologyError> {
    if (RATES[0]..=RATES[1]).contains(&value) {
        Ok(())
    } else {
        Err(TopologyError::Rate { line, id: id.to_owned(), field, value })
    }
}

impl Topology {
    /// Every node, with its id.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, node)| (NodeId(i), node))
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// Chips that hold several switches.
    pub fn chips(&self) -> &[Chip] {
        &self.chips
    }

    /// What is known of collapses of posted writes.
    pub fn collapse(&self) -> &Collapse {
        &self.collapse
    }

    /// Sets it.
    pub fn set_collapse(&mut self, collapse: Collapse) {
        self.collapse = collapse;
    }

    /// Slots whose lanes root ports share.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Finds a node by name.
    pub fn find(&self, id: &str) -> Option<NodeId> {
        self.nodes.iter().position(|n| n.id == id).map(NodeId)
    }

    /// Nodes of one kind.
    pub fn of_kind(&self, kind: Kind) -> Vec<NodeId> {
        self.nodes().filter(|(_, n)| n.kind == kind).map(|(id, _)| id).collect()
    }

    /// A node and its ancestors, nearest first.
    pub fn ancestry(&self, id: NodeId) -> Vec<NodeId> {
        std::iter::successors(Some(id), |&n| self.nodes[n.0].parent).collect()
    }

    /// Whether an IOMMU above a node translates its addresses.
    pub fn is_translated(&self, id: NodeId) -> bool {
        self.ancestry(id).into_iter().any(|up| self.node(up).iommu == Iommu::Translates)
    }

    /// The socket that a node descends from, or the node itself if it is a socket.
    pub fn socket_of(&self, id: NodeId) -> Option<NodeId> {
        self.ancestry(id).into_iter().find(|n| self.nodes[n.0].kind == Kind::Socket)
    }

    /// The NUMA node or socket whose memory is nearest to a node.
    pub fn memory_of(&self, id: NodeId) -> Option<NodeId> {
        let has_memory = |n: &NodeId| matches!(self.nodes[n.0].kind, Kind::Socket | Kind::NumaNode);
        self.ancestry(id).into_iter().find(has_memory)
    }

    /// The direct children of a node.
    pub fn children(&self, id: NodeId) -> Vec<NodeId> {
        self.nodes().filter(|(_, n)| n.parent == Some(id)).map(|(c, _)| c).collect()
    }

    /// A copy in which `change` is applied to the peer-to-peer behaviour of every root complex.
    pub fn map_p2p(&self, change: impl Fn(&mut P2p)) -> Self {
        let mut copy = self.clone();
        let roots = copy.nodes.iter_mut().filter(|n| n.kind == Kind::RootComplex);
        roots.for_each(|n| change(&mut n.p2p));
        copy
    }

    /// Nodes from `a` to `b`, both included: those of [`Topology::route`].
    pub fn path(&self, a: NodeId, b: NodeId) -> Vec<NodeId> {
        self.route(a, b).nodes
    }

    /// Distance between two devices: the class of [`Topology::route`].
    pub fn distance(&self, a: NodeId, b: NodeId) -> Distance {
        self.route(a, b).class
    }
}
