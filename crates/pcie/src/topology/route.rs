//! The way of a TLP from one node to another: the one router of classes, drawings and simulation.
//!
//! A TLP climbs to the nearest node that it shares with its destination. It climbs on to the root
//! complex where the downstream port through which it enters that node redirects peer requests
//! (ACS P2P Request Redirect, PCIe base specification 6.12), or where an IOMMU translates the
//! sender's addresses, which no switch can route. Between two switches of one chip it stays inside
//! the chip, if the chip is known to do that and nothing redirects.

use super::model::{Distance, Kind, NodeId, Topology};
use super::p2p::{Iommu, P2p};
use super::profiles::{Limit, Peer, RootProfile, known_of};
use super::tree::Class;
use crate::Origin;
use crate::text::one_line;

/// Reason why a TLP climbs further than to the nearest common node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirect {
    /// ACS in the port above this node.
    Port(NodeId),
    /// The IOMMU of this root complex.
    Iommu(NodeId),
}

/// A way from one node to another. The way back may be another one.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Nodes from source to destination, both included. A redirected TLP passes switches twice.
    pub nodes: Vec<NodeId>,
    /// Class of this way.
    pub class: Distance,
    /// Class by the tree alone, without ACS, IOMMU and chips: nvidia-smi's.
    pub tree: Distance,
    /// Why it climbs to the root complex.
    pub redirect: Option<Redirect>,
    /// Whether it crosses between switches inside a chip.
    pub in_chip: bool,
}

impl Topology {
    /// Whether the port above a node redirects peer requests to the root complex.
    pub fn port_redirects(&self, below: NodeId) -> bool {
        let node = self.node(below);
        node.port_acs.unwrap_or_else(|| node.parent.is_some_and(|p| self.node(p).acs))
    }

    /// What is known of a root complex: its own fields, and the profile of its CPU and its vendor's
    /// packets that fill in what they leave unknown.
    pub fn p2p_of(&self, root: NodeId) -> (P2p, Option<&'static RootProfile>) {
        let own = P2p { tlp_bytes: self.cut_of(root).map(|cut| cut.0), ..self.node(root).p2p };
        known_of(self.cpu_of(root), own, "")
    }

    /// The name of the CPU that a node is of; empty: not known.
    pub(super) fn cpu_of(&self, node: NodeId) -> &str {
        self.socket_of(node).map_or("", |socket| &self.node(socket).model)
    }

    /// The way of requests and writes from `from` to `to`.
    pub fn route(&self, from: NodeId, to: NodeId) -> Route {
        let (up, down) = (self.ancestry(from), self.ancestry(to));
        let meet = up.iter().position(|n| down.contains(n));
        let tree = self.join(&up, &down, meet);
        let tree_class = self.class(&tree);
        let done = |nodes: Vec<NodeId>, redirect, in_chip| {
            let class = self.class(&nodes);
            Route { nodes, class, tree: tree_class, redirect, in_chip }
        };
        let below_root = |i: usize| matches!(self.kind(up[i]), Kind::Switch | Kind::RootPort);
        match meet {
            // A switch or root port turns it, unless something redirects.
            Some(i) if i > 0 && up[i] != to && below_root(i) => {
                let Some(why) = self.redirect_at(&up, i) else { return done(tree, None, false) };
                let root = (i..up.len()).find(|&k| !below_root(k)).unwrap_or(i);
                done(self.join(&up, &down, Some(root)), Some(why), false)
            }
            _ => {
                let Some((i, j)) = self.chip_between(&up, &down) else {
                    return done(tree, None, false);
                };
                if let Some(why) = self.redirect_at(&up, i) {
                    return done(tree, Some(why), false);
                }
                let inside = up[..=i].iter().chain(down[..=j].iter().rev()).copied().collect();
                done(inside, None, true)
            }
        }
    }

    /// The switch or device at or above a node whose link is unknown: nothing can be simulated
    /// through it.
    pub fn unknown_link(&self, id: NodeId) -> Option<NodeId> {
        let has_one = |kind| matches!(kind, Kind::Switch | Kind::Gpu | Kind::Nic);
        let lacks = |n: &NodeId| has_one(self.node(*n).kind) && self.node(*n).link.is_none();
        self.ancestry(id).into_iter().find(lacks)
    }

    /// Class of two devices as far as it is known: that of their way, where nothing on it stands
    /// for what nobody knows.
    pub fn class_of(&self, a: NodeId, b: NodeId) -> Class {
        let route = self.route(a, b);
        let is_unknown = |n: NodeId| self.node(n).unknown;
        let roots: Vec<NodeId> = route.roots(self).collect();
        let (Some(&first), Some(&last)) = (roots.first(), roots.last()) else {
            return Class::Known(route.class);
        };
        let sockets = [first, last].map(|root| self.socket_of(root));
        let no_socket = sockets.into_iter().flatten().any(is_unknown);
        let no_bridges = roots.iter().any(|&root| is_unknown(root));
        if first == last {
            // What redirects sends them to the root complex, whatever is between.
            let is_known = !no_bridges || route.redirect.is_some();
            let on_one_bus = [a, b].iter().all(|&n| self.node(n).parent == Some(first));
            return match (is_known, on_one_bus) {
                (true, _) => Class::Known(route.class),
                (false, true) => Class::Known(Distance::Pix),
                (false, false) => Class::Unknown,
            };
        }
        match sockets[0] == sockets[1] || no_socket {
            false => Class::Known(route.class),
            true if no_bridges => Class::Unknown,
            true if no_socket => Class::NodeOrSys,
            true => Class::Known(route.class),
        }
    }

    fn kind(&self, id: NodeId) -> Kind {
        self.node(id).kind
    }

    /// What sends a TLP that has climbed to `up[i]` on to the root complex.
    fn redirect_at(&self, up: &[NodeId], i: usize) -> Option<Redirect> {
        let port = i.checked_sub(1).map(|below| up[below]);
        if let Some(below) = port.filter(|&n| self.port_redirects(n)) {
            return Some(Redirect::Port(below));
        }
        let translates = |&&n: &&NodeId| self.node(n).iommu == Iommu::Translates;
        up.iter().find(translates).map(|&n| Redirect::Iommu(n))
    }

    /// Joins two ancestries at `up[meet]`, or across sockets.
    fn join(&self, up: &[NodeId], down: &[NodeId], meet: Option<usize>) -> Vec<NodeId> {
        if let Some(i) = meet {
            let j = down.iter().position(|&n| n == up[i]).unwrap_or(0);
            return up[..=i].iter().chain(down[..j].iter().rev()).copied().collect();
        }
        let (top_a, top_b) = (up[up.len() - 1], down[down.len() - 1]);
        let mut path = up[..up.len() - 1].to_vec();
        path.extend(self.socket_path(top_a, top_b));
        path.extend(down[..down.len() - 1].iter().rev());
        path
    }

    /// Places of two different switches of one chip that is known to cross inside.
    fn chip_between(&self, up: &[NodeId], down: &[NodeId]) -> Option<(usize, usize)> {
        let chip = |n: NodeId| {
            let id = self.node(n).chip.as_deref()?;
            self.chips().iter().find(|c| c.id == id)
        };
        up.iter().enumerate().find_map(|(i, &a)| {
            let crosses = chip(a).filter(|c| c.crosses == Some(true))?;
            let same = |&b: &NodeId| b != a && chip(b).is_some_and(|c| c.id == crosses.id);
            Some((i, down.iter().position(same)?))
        })
    }

    fn class(&self, nodes: &[NodeId]) -> Distance {
        let count = |kind| nodes.iter().filter(|n| self.kind(**n) == kind).count();
        let (sockets, numa) = (count(Kind::Socket), count(Kind::NumaNode));
        match (sockets.max(numa), count(Kind::RootComplex), count(Kind::Switch)) {
            (2.., _, _) => Distance::Sys,
            (1, _, _) => Distance::Node,
            (0, 1.., _) => Distance::Phb,
            (0, 0, 0 | 1) => Distance::Pix,
            _ => Distance::Pxb,
        }
    }
}

impl Route {
    /// Root complexes on the way.
    pub fn roots<'t>(&'t self, t: &'t Topology) -> impl Iterator<Item = NodeId> + 't {
        self.nodes.iter().copied().filter(|&n| t.node(n).kind == Kind::RootComplex)
    }

    /// The root complex that refuses what `allowed` tells, if one does.
    fn refused(&self, t: &Topology, allowed: fn(&super::P2p) -> Option<bool>) -> Option<NodeId> {
        self.roots(t).find(|&n| allowed(&t.p2p_of(n).0) == Some(false))
    }

    /// The root complex on the way that refuses peer reads.
    pub fn refuses_reads(&self, t: &Topology) -> Option<NodeId> {
        self.refused(t, |p| p.reads)
    }

    /// The root complex on the way that refuses peer writes.
    pub fn refuses_writes(&self, t: &Topology) -> Option<NodeId> {
        self.refused(t, |p| p.writes)
    }

    /// Root complexes on the way of which nobody says whether they forward such traffic between
    /// devices: neither their own fields nor a report on their CPU's family. With `needs_rate` also
    /// those that a report says to forward it, and not at what rate. The class has no part in it: a
    /// way inside a switch crosses none.
    pub fn unknown_peers(&self, t: &Topology, of: Peer, needs_rate: bool) -> Vec<NodeId> {
        let is_unknown = |&n: &NodeId| {
            let (own, (p2p, profile)) = (t.node(n).p2p, t.p2p_of(n));
            let (forwards, own_forwards) = match of {
                Peer::Reads => (p2p.reads, own.reads),
                Peer::Writes => (p2p.writes, own.writes),
            };
            let says_rate = own_forwards.is_some()
                || own.says_rate(of, false)
                || profile.is_some_and(|p| p.limit(of, "") != Limit::Unknown);
            forwards.is_none() || needs_rate && !says_rate
        };
        self.roots(t).filter(is_unknown).collect()
    }

    /// Whether both ends are devices.
    pub(super) fn is_peer(&self, t: &Topology) -> bool {
        let memory = |n: &NodeId| matches!(t.node(*n).kind, Kind::Socket | Kind::NumaNode);
        ![self.nodes.first(), self.nodes.last()].into_iter().flatten().any(memory)
    }

    /// Sockets that it crosses between without anybody knowing at what rate: neither the link's is given
    /// nor, between devices, what the root complex at the end of such traffic has to the other socket.
    pub fn unknown_between(&self, t: &Topology, of: Peer) -> Vec<[NodeId; 2]> {
        let says_rate = |n: NodeId| {
            let (own, profile) = (t.node(n).p2p, t.p2p_of(n).1);
            let seen = || profile.is_some_and(|p| p.far_limit(of, "") != Limit::Unknown);
            own.says_rate(of, true) || seen()
        };
        let roots: Vec<NodeId> = self.roots(t).collect();
        let end = if of == Peer::Reads { roots.first() } else { roots.last() };
        if self.is_peer(t) && end.is_some_and(|&n| says_rate(n)) {
            return Vec::new();
        }
        let unknown = self.between(t).filter(|link| link.origin == Origin::Unknown);
        unknown.map(|link| [link.a.min(link.b), link.a.max(link.b)]).collect()
    }

    /// The way in words: `gpu0 > sw0 > nic0`.
    pub fn text(&self, t: &Topology) -> String {
        let names: Vec<String> = self.nodes.iter().map(|&n| one_line(&t.node(n).id)).collect();
        names.join(" > ")
    }

    /// The way from its destination to its source where that is another one: one port's ACS sends TLPs of one direction
    /// to the root complex.
    pub fn other_back(&self, t: &Topology) -> Option<Self> {
        let (&from, &to) = (self.nodes.first()?, self.nodes.last()?);
        let back = t.route(to, from);
        let same = back.nodes.iter().rev().eq(&self.nodes);
        (!same).then_some(back)
    }

    /// What decides about the way, and what is assumed about it, one sentence each.
    pub fn notes(&self, t: &Topology) -> Vec<String> {
        let id = |n: NodeId| one_line(&t.node(n).id);
        let mut notes = Vec::new();
        match self.redirect {
            Some(Redirect::Port(n)) => {
                notes
                    .push(format!("ACS in the port above {} redirects to the root complex", id(n)));
            }
            Some(Redirect::Iommu(n)) => notes.push(format!(
                "the IOMMU of {} translates: peer traffic goes through the root complex; its cache \
                 misses where there are more pages (iommu_pages) than entries (iotlb_entries)",
                id(n)
            )),
            None => {}
        }
        for &n in [self.nodes.first(), self.nodes.last()].into_iter().flatten() {
            match t.node(n).relaxed_ordering {
                Some(true) => notes.push(format!("{} relaxes the order of its requests", id(n))),
                Some(false) => notes.push(format!(
                    "{} keeps its writes in order: to host memory a root port's buffer limits them \
                     (write_buffer_ns, assumed)",
                    id(n)
                )),
                None => {}
            }
        }
        for &n in self.nodes.iter().filter(|n| t.node(**n).unknown) {
            let what = match t.node(n).kind {
                Kind::Socket => "which socket the root complexes are of: unknown, taken as one",
                _ => "the bridges above: unknown, taken as a root complex",
            };
            notes.push(format!("{}: {what}", id(n)));
        }
        if self.in_chip {
            notes.push("between two switches inside their chip".to_owned());
        } else if let Some(chip) = self.unknown_chip(t) {
            notes.push(format!("whether chip {chip} crosses inside: unknown, taken as no"));
        }
        let (mut unknown, mut passes) = (Vec::new(), Vec::new());
        let mut limits: Vec<(String, Vec<String>)> = Vec::new();
        let mut said: Option<&RootProfile> = None;
        // Host memory is no peer: nothing between devices is allowed or refused on its way.
        let is_peer = self.is_peer(t);
        let is_far = self.is_far(t);
        notes.extend(t.packet_notes(&self.nodes, is_peer));
        for n in self.roots(t).filter(|_| is_peer) {
            let (own, (p2p, profile)) = (t.node(n).p2p, t.p2p_of(n));
            for (what, of, far) in [
                ("reads", Peer::Reads, false),
                ("writes", Peer::Writes, false),
                ("reads across sockets", Peer::Reads, true),
                ("writes across sockets", Peer::Writes, true),
            ] {
                if far && !is_far {
                    continue;
                }
                let refused = if of == Peer::Reads { p2p.reads } else { p2p.writes } == Some(false);
                let is_own = own.says_rate(of, far);
                let text = profile.filter(|_| !is_own && !refused);
                let text = text.and_then(|p| p.limit_text(of, far));
                let Some(text) = text.map(|text| format!("{what}: {text}")) else { continue };
                match limits.iter_mut().find(|(other, _)| *other == text) {
                    Some((_, roots)) => roots.push(id(n)),
                    None => limits.push((text, vec![id(n)])),
                }
            }
            for (what, allowed, own) in
                [("reads", p2p.reads, own.reads), ("writes", p2p.writes, own.writes)]
            {
                let by = profile.filter(|_| own.is_none());
                match (allowed, by) {
                    (Some(true), None) => {}
                    (Some(true), Some(_)) => {
                        passes.push(format!("{} {what}", id(n)));
                        said = by;
                    }
                    (Some(false), by) => {
                        let by = by.map_or(String::new(), RootProfile::cited);
                        notes.push(format!("{} refuses peer {what}{by}", id(n)));
                    }
                    (None, _) => unknown.push(format!("{} {what}", id(n))),
                }
            }
        }
        if let Some(profile) = said {
            notes.push(format!(
                "peer traffic is forwarded: {}{}",
                passes.join(", "),
                profile.cited()
            ));
        }
        notes.extend(limits.iter().map(|(text, roots)| format!("{} {text}", roots.join(", "))));
        notes.extend(self.between(t).filter(|link| link.origin == Origin::Unknown).map(|link| {
            let (a, b) = (id(link.a), id(link.b));
            format!("the rate between {a} and {b}: unknown, taken as no limit")
        }));
        if !unknown.is_empty() {
            notes.push(format!(
                "peer traffic through root complexes unknown, taken as allowed: {}",
                unknown.join(", ")
            ));
        }
        notes
    }

    fn unknown_chip(&self, t: &Topology) -> Option<String> {
        let chips: Vec<&str> =
            self.nodes.iter().filter_map(|&n| t.node(n).chip.as_deref()).collect();
        let (first, last) = (chips.first()?, chips.last()?);
        let unknown = t.chips().iter().any(|c| c.id == *first && c.crosses.is_none());
        let switches: Vec<NodeId> =
            self.nodes.iter().copied().filter(|&n| t.node(n).chip.is_some()).collect();
        (unknown && first == last && switches.first() != switches.last()).then(|| one_line(first))
    }
}
