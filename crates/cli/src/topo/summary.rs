//! What `bellpush topo` says first: for each GPU the NIC to take, how to send, how sure that is, and
//! what it shares. `summary_text` prints it; the JSON has the same.

use bellpush::pcie::Origin;
use bellpush::pcie::sim::{Goal, PathModel, Ranking};
use bellpush::pcie::text::one_line;
use bellpush::pcie::topology::{
    Assigned, Class, Full, Kind, NodeId, Share, Topology, Tree, port_shares,
};
use serde_json::{Value, json};

use super::advice::{Advice, All, Basis, Without, unknown_between, unknown_of};
use super::nics::{Is, ports_of_card};
use super::source::Source;

/// Two rates that are no further apart are one, since a table shows three digits.
const SAME: f64 = 0.99;

/// How to send messages of a size.
pub struct Choice {
    /// Bytes of a message.
    pub bytes: u32,
    /// The best path and those that tie with it; none: no path is possible.
    pub paths: Vec<&'static str>,
    /// Whether what nobody knows decides about it.
    pub is_unknown: bool,
}

/// Base class and subclass of an InfiniBand controller.
const INFINIBAND: u16 = 0x0207;

/// Of more GPUs than this the links' shares are not computed, which takes their cube; ports' are.
const MOST_SENDING: usize = 256;

/// What a GPU gets while it sends alone.
#[derive(Clone, Copy)]
pub enum Alone {
    /// The model's rate, GB/s.
    Model(f64, Origin),
    /// No more than the NIC's port and the links on the way carry, GB/s.
    AtMost(f64),
    /// The port's rate is unknown; no more than the PCIe links on the way carry, GB/s.
    ByLink(f64),
    /// Nothing is known.
    Unknown,
}

impl Alone {
    /// The number, GB/s.
    pub fn gb_per_s(self) -> Option<f64> {
        match self {
            Self::Model(rate, _) | Self::AtMost(rate) | Self::ByLink(rate) => Some(rate),
            Self::Unknown => None,
        }
    }
}

/// One GPU.
pub struct Line {
    /// GPU.
    pub gpu: NodeId,
    /// The NIC that it should take; `None`: none has RDMA.
    pub nic: Option<NodeId>,
    /// The nearest NIC where none has RDMA.
    pub nearest: Option<NodeId>,
    /// Class of the GPU and the NIC.
    pub class: Class,
    /// NICs that are as near.
    pub ties: Vec<NodeId>,
    /// Other GPUs with the same port.
    pub shared_with: Vec<NodeId>,
    /// Paths by size; none: no advice, and [`Self::without`] tells why.
    pub choices: Vec<Choice>,
    /// Why there is no advice.
    pub without: Option<Without>,
    /// Root complexes on the way of which nothing is known.
    pub unknown_roots: Vec<NodeId>,
    /// Sockets on the way between which no rate is known.
    pub unknown_between: Vec<[NodeId; 2]>,
    /// What it gets alone.
    pub alone: Alone,
    /// Its share while all GPUs send, GB/s, and what keeps it from more.
    pub all_send: Option<(f64, Option<Full>)>,
}

/// One NIC.
pub struct Nic {
    /// NIC.
    pub nic: NodeId,
    /// What it is.
    pub is: Is,
    /// Whether it has RDMA; `None`: not known.
    pub has_rdma: Option<bool>,
    /// Its place among the ports of its card, from 1, and how many those are.
    pub port: (usize, usize),
}

/// The summary.
pub struct Summary {
    /// The GPUs.
    pub gpus: Vec<Line>,
    /// The GPUs that send, as [`Full::flows`] counts them.
    pub sending: Vec<NodeId>,
    /// The NICs.
    pub nics: Vec<Nic>,
    /// Whether paths were asked for.
    pub has_paths: bool,
}

/// GPUs and NICs by their names.
pub struct Names<'a> {
    /// Where it comes from.
    pub source: &'a Source,
    /// The topology.
    pub topology: &'a Topology,
    /// Its tree, of a capture.
    tree: Option<Tree<'a>>,
}

impl<'a> Names<'a> {
    /// Of a topology.
    pub fn new(source: &'a Source, topology: &'a Topology) -> Self {
        Self { source, topology, tree: source.tree() }
    }

    /// The class of a pair, with a mark where it is the matrix', since the capture does not show it.
    pub fn class(&self, a: NodeId, b: NodeId, class: Class) -> String {
        let mark = if self.is_printed(a, b) { "*" } else { "" };
        format!("{class}{mark}")
    }

    /// Whether the class of a pair is the matrix'.
    pub fn is_printed(&self, a: NodeId, b: NodeId) -> bool {
        let address = |n: NodeId| self.topology.node(n).id.parse().ok();
        let printed = |tree: &Tree<'_>| tree.printed(address(a)?, address(b)?);
        self.tree.as_ref().and_then(printed).is_some()
    }

    /// `GPU0` of a capture or of a file made of one, else its id.
    pub fn short(&self, n: NodeId) -> String {
        let node = self.topology.node(n);
        one_line(node.name.as_ref().unwrap_or(&node.id))
    }

    /// The same with the address, and the name that a driver gives.
    pub fn long(&self, n: NodeId) -> String {
        let (short, id) = (self.short(n), &self.topology.node(n).id);
        match self.source {
            Source::Captured(capture, _) => {
                let function = id.parse().ok().and_then(|address| capture.get(address));
                let rdma = function.and_then(|f| f.rdma.as_deref());
                let rdma = rdma.map_or(String::new(), |name| format!(" {}", one_line(name)));
                format!("{short} {}{rdma}", one_line(id))
            }
            Source::Matrix(matrix) => {
                let row = matrix.rows().iter().find(|row| row.name == *id);
                let alias = row.and_then(|row| row.alias.as_deref());
                alias.map_or(short.clone(), |alias| format!("{short} {}", one_line(alias)))
            }
            Source::Given(_) => {
                let node = self.topology.node(n);
                let driver = node.model.split(", ").find(|part| part.starts_with("mlx5_"));
                let more = [node.name.as_ref().map(|_| id.as_str()), driver];
                let more = more.into_iter().flatten().map(|part| format!(" {}", one_line(part)));
                short + &more.collect::<String>()
            }
        }
    }

    /// Several, those that follow each other as `GPU0 to GPU7`.
    pub fn list(&self, all: &[NodeId]) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut rest = all;
        while let Some((&first, _)) = rest.split_first() {
            let start = self.numbered(first);
            let follows = |(i, n): (usize, &NodeId)| match (&start, self.numbered(*n)) {
                (Some((name, number)), Some((own, other))) => {
                    *name == own && number.checked_add(i as u64) == Some(other)
                }
                _ => i == 0,
            };
            let run = rest.iter().enumerate().take_while(|&(i, n)| follows((i, n))).count().max(1);
            let (own, more) = rest.split_at(run);
            match own {
                [first, .., last] if run > 2 => {
                    parts.push(format!("{} to {}", self.short(*first), self.short(*last)));
                }
                few => parts.extend(few.iter().map(|&n| self.short(n))),
            }
            rest = more;
        }
        parts.join(", ")
    }

    /// A GPU's or NIC's name and its number.
    fn numbered(&self, n: NodeId) -> Option<(String, u64)> {
        let is_device = matches!(self.topology.node(n).kind, Kind::Gpu | Kind::Nic);
        let name = self.short(n);
        let at = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let is_plain = !name[at..].starts_with('0') || name.len() == at + 1;
        let number = name[at..].parse().ok().filter(|_| is_device && is_plain)?;
        Some((name[..at].to_owned(), number))
    }

    /// What a NIC's name says that it is.
    pub fn model(&self, n: NodeId) -> String {
        let is_name = |part: &&str| {
            let other = ["now Gen", "link unknown", "fastest link", "virtual function", "mlx5_"];
            !other.iter().any(|start| part.starts_with(start))
        };
        let parts = self.topology.node(n).model.split(", ").filter(is_name);
        one_line(&parts.collect::<Vec<_>>().join(", "))
    }
}

impl Summary {
    /// Of all that the command has found.
    pub fn new(
        source: &Source,
        topology: &Topology,
        pairs: &[Assigned<NodeId>],
        (all, basis): (&All, &Basis),
        has_paths: bool,
    ) -> Self {
        let nics = topology.of_kind(Kind::Nic);
        let nics: Vec<Nic> =
            nics.iter().map(|&nic| self::nic(source, topology, nic, basis)).collect();
        let takes = |nic: &NodeId| basis.takes(topology, *nic);
        let sending: Vec<(NodeId, NodeId)> =
            pairs.iter().filter_map(|p| Some((p.gpu, p.nic.filter(takes)?))).collect();
        let port = |nic| basis.port(topology, nic).map(|port| port.gb_per_s);
        // A way that cannot be computed leaves what shares its NIC unknown, and the others as they are.
        let is_known = |pair: &(NodeId, NodeId)| port_shares(topology, &[*pair], &port).is_ok();
        let (sending, unknown): (Vec<_>, Vec<_>) = match sending.len() <= MOST_SENDING {
            true => sending.into_iter().partition(is_known),
            false => (Vec::new(), sending),
        };
        let shares = port_shares(topology, &sending, &port).unwrap_or_default();
        let all_send = |gpu: NodeId, nic: NodeId, alone: Alone| {
            if unknown.iter().any(|pair| pair.1 == nic) {
                return None;
            }
            let at = sending.iter().position(|pair| *pair == (gpu, nic))?;
            let Share { gb_per_s, full } = shares.get(at)?;
            match alone.gb_per_s() {
                Some(rate) if rate * SAME <= *gb_per_s => Some((rate, None)),
                _ => Some((*gb_per_s, full.clone())),
            }
        };
        let line = |pair: &Assigned<NodeId>| {
            let nic = pair.nic.filter(takes);
            let own = all.of.iter().find(|a| a.gpu == pair.gpu && Some(a.nic) == nic);
            let alone =
                nic.map_or(Alone::Unknown, |nic| alone(topology, basis, [pair.gpu, nic], own));
            Line {
                gpu: pair.gpu,
                nic,
                nearest: pair.nic.filter(|nic| !takes(nic)),
                class: pair.class,
                ties: pair.ties.clone(),
                shared_with: pair.shared_with.clone(),
                choices: own.map_or_else(Vec::new, |own| choices(topology, basis, own)),
                without: all.without.iter().find(|w| w.0 == pair.gpu).map(|w| w.1),
                unknown_roots: own.map_or_else(Vec::new, |own| unknown_of(topology, own)),
                unknown_between: own.map_or_else(Vec::new, |own| unknown_between(topology, own)),
                alone,
                all_send: nic.and_then(|nic| all_send(pair.gpu, nic, alone)),
            }
        };
        let gpus = pairs.iter().map(line).collect();
        Self { gpus, sending: sending.iter().map(|pair| pair.0).collect(), nics, has_paths }
    }

    /// The GPUs whose data cross what is full.
    pub fn sending_by(&self, full: &Full) -> Vec<NodeId> {
        full.flows.iter().filter_map(|&i| self.sending.get(i).copied()).collect()
    }

    /// The same as data.
    pub fn json(&self, names: &Names<'_>, basis: &Basis) -> Value {
        let topology = names.topology;
        let id = |n: &NodeId| topology.node(*n).id.clone();
        let ids = |all: &[NodeId]| all.iter().map(id).collect::<Vec<_>>();
        let gpus = self.gpus.iter().map(|line| {
            let choices = line.choices.iter().map(|c| {
                json!({ "bytes": c.bytes, "paths": c.paths, "tie": c.paths.len() > 1,
                    "unknown": c.is_unknown })
            });
            let (alone, is_most) = match line.alone {
                Alone::Model(rate, origin) => {
                    (json!({ "gb_per_s": rate, "origin": origin }), false)
                }
                other => (Value::Null, other.gb_per_s().is_some()),
            };
            let most = line.alone.gb_per_s().filter(|_| is_most);
            let full = line.all_send.as_ref().and_then(|(_, full)| full.as_ref());
            let together = full.map(|full| {
                json!({ "gpus": ids(&self.sending_by(full)), "at_most_gb_per_s": full.gb_per_s })
            });
            let between = line.unknown_between.iter().map(|ends| ids(ends)).collect::<Vec<_>>();
            json!({
                "gpu": id(&line.gpu), "nic": line.nic.as_ref().map(id),
                "nearest_without_rdma": line.nearest.as_ref().map(id),
                "class": line.class.to_string(), "as_near": ids(&line.ties),
                "port_shared_with": ids(&line.shared_with),
                "choices": choices.collect::<Vec<_>>(), "unknown_roots": ids(&line.unknown_roots),
                "unknown_between": between,
                "alone": alone, "alone_at_most_gb_per_s": most,
                "all_send_gb_per_s": line.all_send.as_ref().map(|(rate, _)| *rate),
                "all_send_together": together,
            })
        });
        let nics = self.nics.iter().map(|nic| {
            let (driver, n) = (nic.is, nic.nic);
            let driver = match driver {
                Is::Mlx5 => Some("mlx5"),
                Is::Other(driver) => Some(driver),
                _ => None,
            };
            let priced = (nic.has_rdma != Some(false)).then(|| basis.priced_as(topology, n));
            let port = basis.port(topology, n).map(|port| port.gb_per_s);
            json!({
                "nic": id(&n), "rdma": nic.has_rdma, "driver": driver, "port": nic.port.0,
                "ports_of_card": nic.port.1, "port_gb_per_s": port,
                "link_gb_per_s": topology.link_gb_per_s(n), "priced_as": priced,
            })
        });
        json!({ "gpus": gpus.collect::<Vec<_>>(), "nics": nics.collect::<Vec<_>>() })
    }
}

fn nic(source: &Source, topology: &Topology, nic: NodeId, basis: &Basis) -> Nic {
    let is = basis.nic_is(topology, nic);
    let by_name = topology.nic_family(nic).map(|family| family.has_rdma);
    let has_device = match source {
        // nvidia-smi lists the NICs that have RDMA devices.
        Source::Matrix(_) => true,
        Source::Captured(capture, _) => {
            let function = topology.node(nic).id.parse().ok().and_then(|at| capture.get(at));
            function.is_some_and(|f| f.rdma.is_some() || f.class == Some(INFINIBAND))
        }
        Source::Given(_) => false,
    };
    let has_rdma = if has_device || is == Is::Mlx5 { Some(true) } else { by_name };
    let of_card = ports_of_card(topology, nic);
    let place = of_card.iter().position(|&n| n == nic).unwrap_or(0);
    Nic { nic, is, has_rdma, port: (place + 1, of_card.len()) }
}

fn alone(
    topology: &Topology,
    basis: &Basis,
    [gpu, nic]: [NodeId; 2],
    own: Option<&Advice>,
) -> Alone {
    let port = |nic| basis.port(topology, nic).map(|port| port.gb_per_s);
    // The links of the whole way, if all are known.
    let way = port_shares(topology, &[(gpu, nic)], &port).ok();
    let way = way.and_then(|all| Some(all.first()?.gb_per_s)).filter(|rate| rate.is_finite());
    // Nothing gets there.
    if own.is_some_and(|own| own.ranks.rankings.iter().all(|r| r.paths.is_empty())) {
        return Alone::Unknown;
    }
    let Some(most) = way.or_else(|| basis.most(topology, nic)) else { return Alone::Unknown };
    if basis.port(topology, nic).is_none() {
        return Alone::ByLink(most);
    }
    let is_rate = |r: &&Ranking| r.goal == Goal::Rate;
    let best = own.and_then(|own| own.ranks.rankings.iter().find(is_rate)?.paths.first());
    match best {
        Some((_, f)) if !matches!(basis.nic_is(topology, nic), Is::Other(_)) => {
            Alone::Model(f.value, f.origin)
        }
        _ => Alone::AtMost(most),
    }
}

fn choices(topology: &Topology, basis: &Basis, own: &Advice) -> Vec<Choice> {
    // Where no kernel posts, a CPU does, of which the model has no times beside each other.
    let is_other = matches!(basis.nic_is(topology, own.nic), Is::Other(_));
    let any_nic = |path: &PathModel| matches!(path, PathModel::Pull | PathModel::Staged);
    let of = |r: &Ranking| {
        let Goal::Latency(bytes) = r.goal else { return None };
        let is_tie = |path: PathModel| r.ties.iter().any(|tie| tie.path == path);
        let taken = r.paths.iter().enumerate().filter(|(i, (path, _))| match is_other {
            true => any_nic(path),
            false => *i == 0 || is_tie(*path),
        });
        let taken: Vec<_> = taken.map(|(_, path)| path).collect();
        let is_unknown = basis.nic_is(topology, own.nic) == Is::Unknown
            || taken.iter().any(|(_, f)| f.origin == Origin::Unknown);
        let mut paths: Vec<&'static str> = taken.iter().map(|(path, _)| path.name()).collect();
        if is_other {
            paths.sort_unstable();
        }
        Some(Choice { bytes, paths, is_unknown })
    };
    own.ranks.rankings.iter().filter_map(of).collect()
}
