//! What joins sockets: the links between them, and the way from one to another.
//!
//! Nobody states what such a link carries of peer traffic. One whose rate is not given is unknown: it
//! limits nothing, and the numbers of what crosses it are marked so. What one root complex has to the
//! other socket is another limit, which reports by CPU tell ([`RootProfile::far`](super::RootProfile)).

use std::collections::{HashMap, HashSet, VecDeque};

use super::error::TopologyError;
use super::model::{Builder, Kind, NodeId, Topology};
use super::route::Route;
use crate::Origin;

/// What the model takes for a rate that is unknown, GB/s: more than all links of a host carry.
pub(crate) const UNKNOWN_GB_PER_S: f64 = 1000.0;

/// A link between two sockets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interconnect {
    /// One end.
    pub a: NodeId,
    /// Other end.
    pub b: NodeId,
    /// Bandwidth for peer traffic each way, GB/s; of one whose rate is unknown, none that limits.
    pub gb_per_s: f64,
    /// Where it comes from.
    pub origin: Origin,
    /// Whether the two are NUMA nodes of one CPU package, which a capture has as sockets.
    pub in_package: bool,
}

/// A link whose ends have not been looked for.
#[derive(Debug)]
pub(super) struct RawBetween {
    pub a: String,
    pub b: String,
    pub gb_per_s: f64,
    pub origin: Origin,
    pub in_package: bool,
    /// Its line in a file.
    pub line: Option<usize>,
}

impl RawBetween {
    pub fn joins(&self, [a, b]: [NodeId; 2]) -> Interconnect {
        let Self { gb_per_s, origin, in_package, .. } = *self;
        Interconnect { a, b, gb_per_s, origin, in_package }
    }
}

impl Builder {
    fn join(&mut self, (a, b): (&str, &str), gb_per_s: f64, origin: Origin) -> &mut RawBetween {
        let (a, b) = (a.to_owned(), b.to_owned());
        let raw = RawBetween { a, b, gb_per_s, origin, in_package: false, line: None };
        self.interconnects.push(raw);
        let last = self.interconnects.len() - 1;
        &mut self.interconnects[last]
    }

    /// Joins two sockets.
    pub fn interconnect(&mut self, a: &str, b: &str, gb_per_s: f64, line: Option<usize>) {
        self.join((a, b), gb_per_s, Origin::Read).line = line;
    }

    /// Joins two sockets by a link whose rate is assumed.
    pub fn assumed_interconnect(&mut self, a: &str, b: &str, gb_per_s: f64) {
        self.join((a, b), gb_per_s, Origin::Assumed);
    }

    /// Joins two sockets by a link whose rate nothing shows.
    pub fn unknown_interconnect(&mut self, a: &str, b: &str) {
        self.join((a, b), UNKNOWN_GB_PER_S, Origin::Unknown);
    }

    /// Joins two NUMA nodes of one CPU package by a link whose rate is assumed.
    pub(super) fn in_package(&mut self, a: &str, b: &str, gb_per_s: f64) {
        self.join((a, b), gb_per_s, Origin::Assumed).in_package = true;
    }

    /// Joins two sockets as a file has it.
    #[cfg(feature = "toml")]
    pub(super) fn joined(&mut self, raw: RawBetween) {
        self.interconnects.push(raw);
    }
}

impl Interconnect {
    /// Its rate in words.
    pub fn text(&self) -> String {
        match self.origin {
            Origin::Unknown => "rate unknown".to_owned(),
            _ => format!("{} GB/s", self.gb_per_s),
        }
    }

    fn joins(&self, ends: [NodeId; 2]) -> bool {
        [self.a, self.b] == ends || [self.b, self.a] == ends
    }
}

impl Topology {
    /// Links between sockets.
    pub fn interconnects(&self) -> &[Interconnect] {
        &self.interconnects
    }

    /// The link between two neighbouring sockets.
    pub fn between(&self, a: NodeId, b: NodeId) -> Option<&Interconnect> {
        self.interconnects.iter().find(|link| link.joins([a, b]))
    }

    /// Sockets from `a` to `b`, both included, in the fewest hops. Empty where no interconnects
    /// connect them.
    pub fn socket_path(&self, a: NodeId, b: NodeId) -> Vec<NodeId> {
        if a == b {
            return vec![a];
        }
        let beside = self.beside();
        let mut from: HashMap<NodeId, NodeId> = HashMap::new();
        let mut queue = VecDeque::from([a]);
        while let Some(here) = queue.pop_front() {
            if here == b {
                let mut path: Vec<NodeId> =
                    std::iter::successors(Some(b), |n| from.get(n).copied()).collect();
                path.reverse();
                return path;
            }
            for &next in beside.get(&here).into_iter().flatten() {
                if next != a && !from.contains_key(&next) {
                    from.insert(next, here);
                    queue.push_back(next);
                }
            }
        }
        Vec::new()
    }

    /// The neighbours of every socket that has some, in the order of the links.
    fn beside(&self) -> HashMap<NodeId, Vec<NodeId>> {
        let mut beside: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
        for link in &self.interconnects {
            beside.entry(link.a).or_default().push(link.b);
            beside.entry(link.b).or_default().push(link.a);
        }
        beside
    }

    pub(super) fn check_connected(&self) -> Result<(), TopologyError> {
        let sockets = self.of_kind(Kind::Socket);
        let Some(&first) = sockets.first() else { return Ok(()) };
        let beside = self.beside();
        let mut reached = HashSet::from([first]);
        let mut open = vec![first];
        while let Some(here) = open.pop() {
            for &next in beside.get(&here).into_iter().flatten() {
                if reached.insert(next) {
                    open.push(next);
                }
            }
        }
        match sockets.iter().find(|socket| !reached.contains(*socket)) {
            None => Ok(()),
            Some(&socket) => Err(TopologyError::Unconnected {
                line: None,
                a: self.node(first).id.clone(),
                b: self.node(socket).id.clone(),
            }),
        }
    }

    /// A copy whose interconnects are `factor` times as fast.
    pub fn scale_interconnects(&self, factor: f64) -> Self {
        let mut copy = self.clone();
        copy.interconnects.iter_mut().for_each(|link| link.gb_per_s *= factor);
        copy
    }
}

impl Route {
    /// Whether it crosses between CPU packages.
    pub fn is_far(&self, t: &Topology) -> bool {
        self.between(t).any(|link| !link.in_package)
    }

    /// The links between sockets that it crosses.
    pub fn between<'t>(&'t self, t: &'t Topology) -> impl Iterator<Item = &'t Interconnect> + 't {
        self.nodes.windows(2).filter_map(|ends| t.between(ends[0], ends[1]))
    }
}
