//! The part of a topology that traffic between two devices can touch.

use std::collections::BTreeSet;

use super::between::Interconnect;
use super::model::{Kind, NodeId, Topology};
use crate::Origin;
use crate::tlp::{Gen, LinkSpeed, Mps, Mrrs};

/// A number that a capture or file does not give, moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guess {
    /// Bandwidth between sockets, by 30 %.
    Interconnects,
    /// Generations of links, by one.
    Generation,
    /// MPS of links, to half and twice.
    Mps,
    /// MRRS of devices, to half and twice.
    Mrrs,
    /// Sizes of packets that are told from what hardware is called, to half and twice.
    Packets,
}

impl Guess {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Interconnects, Self::Generation, Self::Mps, Self::Mrrs, Self::Packets];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interconnects => "rate between sockets",
            Self::Generation => "generation of links",
            Self::Mps => "MPS",
            Self::Mrrs => "MRRS",
            Self::Packets => "size of packets",
        }
    }

    /// The move.
    pub const fn text(self, up: bool) -> &'static str {
        match (self, up) {
            (Self::Interconnects, false) => "rate between sockets -30 %",
            (Self::Interconnects, true) => "rate between sockets +30 %",
            (Self::Generation, false) => "assumed links one generation slower",
            (Self::Generation, true) => "assumed links one generation faster",
            (Self::Mps, false) => "assumed MPS halved",
            (Self::Mps, true) => "assumed MPS doubled",
            (Self::Mrrs, false) => "assumed MRRS halved",
            (Self::Mrrs, true) => "assumed MRRS doubled",
            (Self::Packets, false) => "assumed packets halved",
            (Self::Packets, true) => "assumed packets doubled",
        }
    }
}

impl Topology {
    /// A copy whose links are a generation faster, as far as there is one; `None` without a link.
    pub(crate) fn with_faster_links(&self) -> Option<Self> {
        let mut copy = self.clone();
        let links = copy.nodes.iter_mut().filter_map(|node| node.link.as_mut());
        let mut any = false;
        for link in links {
            let next = Gen::new(link.speed.generation().number() + 1);
            let faster = next.and_then(|next| LinkSpeed::new(next, link.speed.lanes()));
            if let Ok(speed) = faster {
                (link.speed, any) = (speed, true);
            }
        }
        any.then_some(copy)
    }

    /// The topology of two devices, what is above them, and the sockets between, with names that
    /// do not depend on the rest: pairs that differ in nothing have equal parts. Also the two
    /// devices in it. Ways and times in it are those of the whole.
    pub fn part(&self, a: NodeId, b: NodeId) -> (Self, [NodeId; 2]) {
        let mut kept: Vec<NodeId> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut keep = |nodes: Vec<NodeId>| {
            kept.extend(nodes.into_iter().filter(|&n| seen.insert(n)));
        };
        keep(self.ancestry(a));
        keep(self.ancestry(b));
        if let (Some(from), Some(to)) = (self.socket_of(a), self.socket_of(b)) {
            keep(self.socket_path(from, to));
        }
        let new = |n: NodeId| kept.iter().position(|&k| k == n).map(NodeId);
        let mut part = self.clone();
        part.name = String::new();
        part.nodes = kept
            .iter()
            .enumerate()
            .map(|(i, &n)| {
                let mut node = self.node(n).clone();
                (node.id, node.name) = (format!("n{i}"), None);
                node.parent = node.parent.and_then(new);
                node.model = self.name_of_part(n);
                node.card = None;
                node
            })
            .collect();
        let joined = |l: &Interconnect| Some(Interconnect { a: new(l.a)?, b: new(l.b)?, ..*l });
        part.interconnects = self.interconnects.iter().filter_map(joined).collect();
        let uses = |id: &str, of: fn(&super::Node) -> Option<&String>| {
            part.nodes.iter().any(|n| of(n).is_some_and(|own| own == id))
        };
        part.chips.retain(|c| uses(&c.id, |n| n.chip.as_ref()));
        part.slots.retain(|s| uses(&s.id, |n| n.slot.as_ref()));
        let ends = [a, b].map(|n| new(n).unwrap_or(NodeId(0)));
        (part, ends)
    }

    /// A copy in which what is assumed of this kind is less or more; `None` where nothing is.
    pub fn guessed(&self, what: Guess, up: bool) -> Option<Self> {
        let mut copy = self.clone();
        if what == Guess::Interconnects {
            let factor = if up { 1.3 } else { 0.7 };
            let assumed = copy.interconnects.iter_mut().filter(|l| l.origin.is_uncertain());
            assumed.for_each(|l| l.gb_per_s *= factor);
        }
        let step = |bytes: u32| if up { bytes * 2 } else { bytes / 2 };
        if what == Guess::Packets {
            let told = |found: Option<(u32, Origin)>| found.filter(|f| f.1.is_uncertain());
            for (id, node) in self.nodes() {
                let own = &mut copy.nodes[id.0];
                let packets = told(self.packets_of(id)).map(|f| step(f.0));
                own.packet_bytes = packets.or(own.packet_bytes);
                let cut = told(self.cut_of(id)).filter(|_| node.kind == Kind::RootComplex);
                own.p2p.tlp_bytes = cut.map(|f| step(f.0)).or(own.p2p.tlp_bytes);
            }
        }
        for node in &mut copy.nodes {
            let (Some(link), origin) = (&mut node.link, node.link_origin) else { continue };
            if what == Guess::Generation && origin.speed.is_uncertain() {
                let number = link.speed.generation().number();
                let moved = if up { number + 1 } else { number.saturating_sub(1) };
                let speed = Gen::new(moved).and_then(|g| LinkSpeed::new(g, link.speed.lanes()));
                link.speed = speed.unwrap_or(link.speed);
            }
            if what == Guess::Mps && origin.mps.is_uncertain() {
                link.mps = Mps::new(step(link.mps.bytes())).unwrap_or(link.mps);
            }
            if what == Guess::Mrrs && origin.mrrs.is_uncertain() {
                link.mrrs = Mrrs::new(step(link.mrrs.bytes())).unwrap_or(link.mrrs);
            }
        }
        (copy != *self).then_some(copy)
    }
}
