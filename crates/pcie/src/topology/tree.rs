//! The tree that a capture's bridges form: classes of pairs, rates of links, and the topology.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::capture::{Address, Capture, Function, Port, Rate};
use super::check::{printed, write_fans};
use super::error::TopologyError;
use super::identity;
use super::model::{Builder, Distance, Kind, LinkOrigin, RawLink, Topology};
use super::nics::nic_family;
use super::nvidia_smi::Matrix;
use super::p2p::Collapse;
use super::packets;
use crate::Origin;

/// Bandwidth between NUMA nodes of one CPU package, GB/s: more than any of its links has, because
/// no limit of its own has been published.
const IN_PACKAGE_GB_PER_S: f64 = 512.0;

/// Most GPUs and NICs of a topology, as many with their virtual functions, and most NUMA nodes that they are on: more
/// than a host has, and few enough for what looks at every pair.
const MOST_DEVICES: usize = 1024;
const MOST_FUNCTIONS: usize = 4096;
const MOST_NUMA_NODES: usize = 64;

/// Class of a pair as far as a capture shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The capture shows it.
    Known(Distance),
    /// Different root complexes, of NUMA nodes that the capture does not show.
    NodeOrSys,
    /// The capture does not show the bridges above.
    Unknown,
}

impl Class {
    /// Order of nearness, nearest first.
    pub(super) fn rank(self) -> u8 {
        match self {
            Self::Known(Distance::Pix) => 0,
            Self::Known(Distance::Pxb) => 1,
            Self::Known(Distance::Phb) => 2,
            Self::Known(Distance::Node) => 3,
            // What may be nearer than another socket comes before what is not.
            Self::NodeOrSys | Self::Unknown => 4,
            Self::Known(Distance::Sys) => 5,
        }
    }

    /// Whether the pair may have this distance.
    pub fn allows(self, distance: Distance) -> bool {
        match self {
            Self::Known(own) => own == distance,
            Self::NodeOrSys => matches!(distance, Distance::Node | Distance::Sys),
            Self::Unknown => true,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(distance) => f.pad(&distance.to_string()),
            Self::NodeOrSys => f.pad("NODE|SYS"),
            Self::Unknown => f.pad("?"),
        }
    }
}

/// A size of payload or read request that a link may have.
fn legal(size: Option<u32>) -> Option<u32> {
    size.filter(|s| s.is_power_of_two() && *s <= 4096)
}

/// Where a chain of bridges starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Top {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Whether it is a root bus; else the capture lacks what is above.
    pub is_root: bool,
}

impl fmt::Display for Top {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_root { "pci" } else { "above " };
        write!(f, "{what}{:04x}:{:02x}", self.domain, self.bus)
    }
}

/// A capture with its bridges in order.
#[derive(Debug)]
pub struct Tree<'a> {
    capture: &'a Capture,
    bridges: BTreeMap<(u32, u8), Address>,
    root_buses: BTreeSet<(u32, u8)>,
    /// Classes of a matrix, by addresses in order.
    printed: BTreeMap<(Address, Address), Distance>,
}

impl<'a> Tree<'a> {
    /// The tree of a capture.
    pub fn new(capture: &'a Capture) -> Self {
        let bridges = capture.bridges();
        let mut root_buses = capture.roots.clone();
        for f in capture.functions() {
            let bus = (f.address.domain, f.address.bus);
            if f.is_on_root_bus() {
                root_buses.insert(bus);
            }
        }
        root_buses.retain(|bus| !bridges.contains_key(bus));
        Self { capture, bridges, root_buses, printed: BTreeMap::new() }
    }

    /// The tree with nvidia-smi's matrix beside it, whose classes stand in where the capture shows none.
    pub fn beside(self, matrix: &Matrix) -> Self {
        let printed = printed(self.capture, matrix);
        Self { printed, ..self }
    }

    /// The capture.
    pub fn capture(&self) -> &'a Capture {
        self.capture
    }

    /// Bridges above a function, from the root down. A virtual function's are its physical one's: its bus may be one that
    /// no bridge names.
    pub fn chain(&self, address: Address) -> Vec<Address> {
        let address = self.capture.physical(address);
        let up = |a: &Address| self.bridges.get(&(a.domain, a.bus)).copied();
        // A bridge's secondary bus is above its own: at most 256 steps.
        let mut chain: Vec<Address> = std::iter::successors(up(&address), up).collect();
        chain.reverse();
        chain
    }

    /// NUMA node of a function: its own, or that of a bridge above, for what is below a root
    /// complex belongs to its node. Where the machine has one node, it needs no telling.
    pub fn numa(&self, address: Address) -> Option<u32> {
        let own = |a: Address| self.capture.of_device(a, |f| f.numa);
        let above = || self.chain(address).into_iter().rev().find_map(own);
        let only = (self.capture.numa_nodes == Some(1)).then_some(0);
        own(address).or_else(above).or(only)
    }

    /// Bus at the top of a function's chain.
    pub fn top(&self, address: Address) -> Top {
        let physical = || self.capture.physical(address);
        let top = self.chain(address).first().copied().unwrap_or_else(physical);
        let (domain, bus) = (top.domain, top.bus);
        Top { domain, bus, is_root: self.root_buses.contains(&(domain, bus)) }
    }

    /// Bridges above a function with their port types. Where the capture hides those, ports
    /// alternate below a root port.
    pub fn ports(&self, address: Address) -> Vec<(Address, Port)> {
        let mut ports: Vec<(Address, Port)> = Vec::new();
        for bridge in self.chain(address) {
            let seen = self.capture.get(bridge).and_then(|f| f.port);
            let is_root = self.root_buses.contains(&(bridge.domain, bridge.bus));
            let port = seen.unwrap_or(match ports.last() {
                None if is_root => Port::Root,
                None | Some((_, Port::Root | Port::Downstream)) => Port::Upstream,
                Some(_) => Port::Downstream,
            });
            ports.push((bridge, port));
        }
        ports
    }

    /// Class of a pair, named as nvidia-smi does; like nvidia-smi, it leaves ACS aside.
    pub fn class(&self, a: Address, b: Address) -> Class {
        self.printed(a, b).map_or_else(|| self.captured(a, b), Class::Known)
    }

    /// The class of a pair that is the matrix', since the capture does not show it.
    pub fn printed(&self, a: Address, b: Address) -> Option<Distance> {
        let printed = *self.printed.get(&(a.min(b), a.max(b)))?;
        let captured = self.captured(a, b);
        (!matches!(captured, Class::Known(_)) && captured.allows(printed)).then_some(printed)
    }

    /// Class of a pair by the capture alone.
    pub fn captured(&self, a: Address, b: Address) -> Class {
        let [a, b] = [a, b].map(|own| self.capture.physical(own));
        let (up_a, up_b) = (self.ports(a), self.ports(b));
        let shared = up_a.iter().zip(&up_b).take_while(|(x, y)| x.0 == y.0).count();
        let (top_a, top_b) = (self.top(a), self.top(b));
        let one_bus = (a.domain, a.bus) == (b.domain, b.bus);
        if shared > 0 || one_bus && !top_a.is_root {
            // The nearest shared bridge counts where it is a switch's.
            let from = shared.saturating_sub(1);
            let crossed = up_a[from..].iter().chain(&up_b[shared..]);
            let switches = crossed.filter(|(_, port)| *port == Port::Upstream).count();
            let below = if switches > 1 { Distance::Pxb } else { Distance::Pix };
            return Class::Known(below);
        }
        if top_a == top_b && top_a.is_root {
            return Class::Known(Distance::Phb);
        }
        match (self.numa(a), self.numa(b)) {
            (Some(x), Some(y)) if x != y => Class::Known(Distance::Sys),
            _ if !(top_a.is_root && top_b.is_root) => Class::Unknown,
            (Some(_), Some(_)) => Class::Known(Distance::Node),
            _ => Class::NodeOrSys,
        }
    }

    /// Link above a function: the fastest that both its ends have, and the one it has now. A virtual function's is its
    /// physical one's, whatever its own registers say.
    pub fn link(&self, address: Address) -> (Option<Rate>, Option<Rate>) {
        let port = self.chain(address).last().and_then(|&bridge| self.capture.get(bridge)?.max);
        let physical = self.capture.physical(address);
        let of = |shows: fn(&Function) -> Option<Rate>| {
            let own = || self.capture.of_device(address, shows);
            self.capture.of_device(physical, shows).or_else(own)
        };
        let max = of(|f| f.max).map(|own| port.map_or(own, |port| own.common(port)));
        (max, of(|f| f.now))
    }

    /// Downstream ports of the switch whose upstream port this is.
    pub fn downstream(&self, upstream: Address) -> impl Iterator<Item = &'a Function> {
        let bus = self.capture.get(upstream).and_then(|f| f.buses).map(|(first, _)| first);
        let at = |device, function| Address { bus: bus.unwrap_or(0), device, function, ..upstream };
        let all = self.capture.functions.range(at(0, 0)..=at(31, 7)).map(|(_, f)| f);
        all.filter(move |f| bus.is_some() && f.is_bridge())
    }

    /// Whether the switch whose upstream port this is redirects peer traffic upwards, by any of
    /// its downstream ports; `None` where the capture hides that.
    pub fn redirects(&self, upstream: Address) -> Option<bool> {
        let ports: Vec<Option<bool>> = self.downstream(upstream).map(|f| f.redirects).collect();
        if ports.contains(&Some(true)) {
            return Some(true);
        }
        (!ports.is_empty() && !ports.contains(&None)).then_some(false)
    }

    /// Whether ACS of the switch's port right above a function redirects, where that is not what its switch has in
    /// [`Tree::redirects`]: each downstream port has its own (PCIe base specification 6.12).
    fn port_acs(&self, address: Address) -> Option<bool> {
        let ports = self.ports(address);
        let (&(port, kind), above) = ports.split_last()?;
        let &(switch, _) = above.last().filter(|above| above.1 == Port::Upstream)?;
        let own = self.capture.get(port)?.redirects.filter(|_| kind == Port::Downstream)?;
        (own != (self.redirects(switch) == Some(true))).then_some(own)
    }

    /// The topology of the GPUs and NICs, which are called GPU0, NIC0 and so on by address. Each NUMA node is a socket; a
    /// machine whose capture shows none has one, `s?`. `socket_gb_per_s` is the bandwidth of peer traffic between two CPU
    /// packages, GB/s, which no capture shows; `None`: unknown.
    pub fn topology(
        &self,
        name: &str,
        socket_gb_per_s: Option<f64>,
    ) -> Result<Topology, TopologyError> {
        self.check_numbers()?;
        let mut b = Builder::new(name);
        let mut done = BTreeSet::new();
        let mut sockets = BTreeSet::new();
        let mut counts = BTreeMap::new();
        for f in self.capture.functions() {
            let Some(kind) = self.capture.kind_of(f) else { continue };
            let numa = self.numa(f.address);
            let socket = numa.map_or_else(|| "s?".to_owned(), |n| format!("s{n}"));
            if sockets.insert(numa) {
                let package = numa.and_then(|n| self.capture.package(n));
                let node = b.add(&socket, Kind::Socket, None, None, None);
                node.unknown = numa.is_none();
                node.model = package.map_or_else(String::new, |p| format!("CPU package {p}"));
            }
            let top = self.top(f.address);
            let mut parent = top.to_string();
            if done.insert(parent.clone()) {
                let root = b.add(&parent, Kind::RootComplex, Some(&socket), None, None);
                root.unknown = !top.is_root;
                root.model = self.vendor_of_root(f.address).to_owned();
            }
            for (i, (bridge, port)) in self.ports(f.address).into_iter().enumerate() {
                let id = bridge.to_string();
                let kind = match port {
                    Port::Root if i == 0 => Kind::RootPort,
                    Port::Upstream => Kind::Switch,
                    _ => continue,
                };
                if done.insert(id.clone()) {
                    self.add_bridge(&mut b, bridge, kind, &parent);
                }
                parent = id;
            }
            let link = self.raw_link(f.address);
            let node = b.add(&f.address.to_string(), kind, Some(&parent), link, None);
            let count = counts.entry(kind.to_string()).or_insert(0);
            node.name = Some(format!("{kind}{count}"));
            *count += 1;
            node.model = self.describe(f, link);
            node.link_origin = self.origin(f);
            node.port_acs = self.port_acs(f.address);
            // A virtual function has its physical one's, whatever its own register says.
            let own = !self.capture.is_virtual(f.address);
            node.relaxed_ordering = f.relaxes.filter(|_| own);
            node.card = (kind == Kind::Nic).then(|| self.capture.card(f.address));
        }
        self.join(&mut b, &sockets, socket_gb_per_s);
        if let Some(known) = write_fans(self).iter().find_map(|fan| fan.known) {
            b.collapse(Collapse::Seen(known.seen()));
        }
        b.finish()
    }

    fn check_numbers(&self) -> Result<(), TopologyError> {
        let few = |count: usize, what: &'static str, most: usize| match count > most {
            true => Err(TopologyError::Many { count, what, most }),
            false => Ok(()),
        };
        let is_device = |f: &&Function| self.capture.kind_of(f).is_some();
        let devices = || self.capture.functions().filter(is_device);
        let is_physical = |f: &&Function| self.capture.physical(f.address) == f.address;
        few(devices().filter(is_physical).count(), "GPUs and NICs", MOST_DEVICES)?;
        few(devices().count(), "GPUs, NICs and virtual functions of NICs", MOST_FUNCTIONS)?;
        let nodes: BTreeSet<Option<u32>> = devices().map(|f| self.numa(f.address)).collect();
        few(nodes.len(), "NUMA nodes of GPUs and NICs", MOST_NUMA_NODES)
    }

    fn add_bridge(&self, b: &mut Builder, bridge: Address, kind: Kind, parent: &str) {
        let link = (kind == Kind::Switch).then(|| self.raw_link(bridge)).flatten();
        let node = b.add(&bridge.to_string(), kind, Some(parent), link, None);
        let function = self.capture.get(bridge);
        node.link_origin = function.map(|f| self.origin(f)).unwrap_or_default();
        let redirects = match kind {
            Kind::Switch => self.redirects(bridge),
            _ => function.and_then(|f| f.redirects),
        };
        node.acs = redirects == Some(true);
        node.port_acs = self.port_acs(bridge);
        let chip = function.and_then(identity::switch_chip).filter(|_| kind == Kind::Switch);
        node.model = chip.unwrap_or_default();
    }

    fn raw_link(&self, address: Address) -> Option<RawLink> {
        let (max, now) = self.link(address);
        let rate = max.or(now)?;
        let f = self.capture.get(address)?;
        // An idle GPU lowers its link's speed and not its lanes; a NIC lowers neither.
        let kept = match (now, f.kind()) {
            (Some(now), Some(Kind::Nic)) => rate.common(now),
            (Some(now), _) => Rate { lanes: rate.lanes.min(now.lanes), ..rate },
            (None, _) => rate,
        };
        let usual = RawLink::new(kept.generation, kept.lanes);
        let mps = self.mps(address).unwrap_or(usual.mps);
        let mrrs = legal(f.mrrs).unwrap_or(usual.mrrs).max(128);
        Some(RawLink { mps, mrrs, ..usual })
    }

    /// A function's own, or that of another function of its device, which Linux sets to the same. A virtual function's
    /// register says nothing (SR-IOV 1.1, 3.5.4).
    fn mps(&self, address: Address) -> Option<u32> {
        let is_own = |f: &Function| !self.capture.is_virtual(f.address);
        let shown = |f: &Function| legal(f.mps).filter(|bytes| *bytes >= 128 && is_own(f));
        self.capture.of_device(self.capture.physical(address), shown)
    }

    /// Where the numbers of [`Tree::raw_link`] come from.
    fn origin(&self, f: &Function) -> LinkOrigin {
        let of = |is_read: bool| if is_read { Origin::Read } else { Origin::Assumed };
        let read = |size: Option<u32>| of(legal(size).is_some_and(|s| s >= 128));
        let speed = of(self.link(f.address).0.is_some());
        LinkOrigin { speed, mps: of(self.mps(f.address).is_some()), mrrs: read(f.mrrs) }
    }

    /// Whose the root complex above a function is, by its root port; empty: not known, or not of Intel.
    fn vendor_of_root(&self, address: Address) -> &'static str {
        let is_intel = |&(bridge, port): &(Address, Port)| {
            let function = self.capture.get(bridge);
            port == Port::Root && function.is_some_and(identity::is_intels_root)
        };
        if self.ports(address).first().is_some_and(is_intel) { packets::INTEL } else { "" }
    }

    /// What stands beside a device in a drawing.
    fn describe(&self, f: &Function, link: Option<RawLink>) -> String {
        let mut parts = Vec::new();
        let name = if f.kind() == Some(Kind::Nic) { identity::nic_name(f) } else { &f.name };
        // What stands in brackets, unless it leaves out of which family a NIC is.
        let keeps = |short: &str| nic_family(name).is_none() || nic_family(short).is_some();
        let short = name.rsplit_once('[').and_then(|(_, rest)| rest.split_once(']'));
        let short = short.filter(|(inner, _)| keeps(inner));
        let name = short.map_or(name, |(inner, _)| inner).trim();
        parts.extend((!name.is_empty()).then(|| name.to_owned()));
        if packets::gpu_bytes(name).is_none() && identity::is_before_hopper(f) {
            parts.push(packets::BEFORE_HOPPER.to_owned());
        }
        parts.extend(f.rdma.clone());
        parts.extend(self.capture.is_virtual(f.address).then(|| "virtual function".to_owned()));
        match (self.link(f.address), link) {
            ((_, _), None) => parts.push("link unknown".into()),
            ((None, Some(_)), _) => parts.push("fastest link unknown: as it is now".into()),
            ((Some(max), Some(now)), _) if max != now => parts.push(format!("now {now}")),
            _ => {}
        }
        parts.join(", ")
    }

    /// Joins the sockets: the first NUMA node of every package to that of every other, the
    /// others of a package to its first.
    fn join(&self, b: &mut Builder, sockets: &BTreeSet<Option<u32>>, socket_gb_per_s: Option<f64>) {
        let id = |n: &Option<u32>| n.map_or_else(|| "s?".to_owned(), |n| format!("s{n}"));
        let mut firsts: Vec<(Option<u32>, String)> = Vec::new();
        for numa in sockets {
            let package = numa.and_then(|n| self.capture.package(n));
            let own = firsts.iter().find(|(p, _)| p.is_some() && *p == package);
            if let Some((_, first)) = own {
                b.in_package(first, &id(numa), IN_PACKAGE_GB_PER_S);
                continue;
            }
            for (_, other) in &firsts {
                match socket_gb_per_s {
                    Some(gb_per_s) => b.interconnect(other, &id(numa), gb_per_s, None),
                    None => b.unknown_interconnect(other, &id(numa)),
                }
            }
            firsts.push((package, id(numa)));
        }
    }
}
