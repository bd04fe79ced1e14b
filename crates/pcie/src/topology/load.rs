//! Load of every link under a workload: bytes over the time in which the link moves them.
//!
//! Every flow takes [`Topology::path`], whole and at once; no queueing and no protocol but the
//! headers of 64-bit memory writes of MPS, or of the packets that a GPU sends, and a DLLP for each of
//! them on the link's other direction, as in the simulation. It says which link is the narrowest, not how
//! fast a program is.

use std::str::FromStr;

use thiserror::Error;

use super::model::{Kind, NodeId, PcieLink, Topology};
use super::route::Route;
use crate::Origin;
use crate::text::one_line;
use crate::tlp::{Addressing, Config, DLLP_BYTES, Overhead, Rcb, Tax};

/// Pairs that send, with the share of a GPU's buffer that each sends.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// A ring over the GPUs in their order: 2 (n − 1) ÷ n buffers to the next.
    AllReduce,
    /// Every GPU sends 1 ÷ n of its buffer to every other.
    AllToAll,
    /// These senders and receivers, a buffer each.
    Pairs(Vec<(String, String)>),
}

/// Reason why a workload was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LoadError {
    /// Neither a name nor pairs.
    #[error("{0:?} is no workload: all-reduce, all-to-all, or pairs such as gpu0>nic0,gpu1>nic1")]
    NoWorkload(String),
    /// A device that the topology lacks.
    #[error("{id:?}: the topology has no such device; there are {there}")]
    UnknownDevice {
        /// What is wanted.
        id: String,
        /// The ends that there are.
        there: String,
    },
    /// A collective of fewer than two GPUs.
    #[error("{0} GPUs: a collective needs two")]
    FewGpus(usize),
    /// A pair that nothing moves data between.
    #[error("{from}>{to}: {why}")]
    NoFlow {
        /// One end.
        from: String,
        /// Other end.
        to: String,
        /// Why not.
        why: String,
    },
    /// A link that the capture does not show.
    #[error("the link of {0} is not known")]
    UnknownLink(String),
}

impl FromStr for Workload {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<Self, LoadError> {
        match text {
            "all-reduce" => return Ok(Self::AllReduce),
            "all-to-all" => return Ok(Self::AllToAll),
            _ => {}
        }
        let pair = |part: &str| {
            let (from, to) = part.split_once('>')?;
            let (from, to) = (from.trim(), to.trim());
            (!from.is_empty() && !to.is_empty()).then(|| (from.to_owned(), to.to_owned()))
        };
        let pairs: Option<Vec<_>> = text.split(',').map(pair).collect();
        pairs.map(Self::Pairs).ok_or_else(|| LoadError::NoWorkload(text.to_owned()))
    }
}

/// One direction of a link. A NIC at an end of it is the first port of its card ([`Topology::link_of`]).
#[derive(Debug, Clone, PartialEq)]
pub struct LinkLoad {
    /// Node at the link's lower end, or a socket.
    pub from: NodeId,
    /// Node at its upper end, or another socket.
    pub to: NodeId,
    /// Buffers that cross it.
    pub buffers: f64,
    /// Time for buffers of 1 GB, ms: of each flow by the rate that it has there.
    pub ms: f64,
}

impl LinkLoad {
    /// What it moves of all of them, GB/s.
    pub fn gb_per_s(&self) -> f64 {
        1000.0 * self.buffers / self.ms
    }
}

impl Topology {
    /// Data that the link above a node carries one way in memory writes of MPS, GB/s; `None` where
    /// there is none, or nobody knows it.
    pub fn link_gb_per_s(&self, node: NodeId) -> Option<f64> {
        self.node(node).link.map(capacity)
    }
}

/// Bytes of data that a link moves in memory writes of MPS, GB/s.
fn capacity(link: PcieLink) -> f64 {
    let config = Config {
        link: link.speed,
        mps: link.mps,
        mrrs: link.mrrs,
        rcb: Rcb::new(64).expect("64 is one"),
        addressing: Addressing::Bits64,
        ecrc: false,
        pad_dw: false,
    };
    let gbps = config.effective(0, 1 << 20, Tax::None);
    gbps.map_or(link.speed.raw_gbps(), |e| e.write) / 8.0
}

/// Time that the DLLPs for writes of so many buffers of 1 GB, in TLPs of `cut` bytes, take on the
/// link's other direction, ms.
fn dllps_ms(link: PcieLink, cut: u32, buffers: f64) -> f64 {
    if link.speed.generation().flit_mode() {
        return 0.0;
    }
    let gb = buffers * f64::from(DLLP_BYTES) / f64::from(cut.min(link.mps.bytes()));
    1000.0 * gb / (link.speed.raw_gbps() / 8.0)
}

/// What is left of a link's rate with TLPs of `cut` bytes in place of MPS.
fn share(cut: u32, link: PcieLink) -> f64 {
    let (mps, generation) = (link.mps.bytes(), link.speed.generation());
    let head = Overhead::new(generation, Addressing::Bits64, false).mwr_bytes;
    let data = |bytes: u32| f64::from(bytes) / f64::from(bytes + head);
    data(cut.min(mps)) / data(mps)
}

/// Most names that an error lists.
const MOST_NAMES: usize = 32;

fn unknown(topology: &Topology, id: &str) -> LoadError {
    let kinds = [Kind::Gpu, Kind::Nic, Kind::Socket, Kind::NumaNode];
    let ends = kinds.into_iter().flat_map(|kind| topology.of_kind(kind));
    let mut names: Vec<String> = ends.map(|n| one_line(&topology.node(n).id)).collect();
    let more = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    LoadError::UnknownDevice { id: id.to_owned(), there: names.join(", ") + &more }
}

fn flows(topology: &Topology, load: &Workload) -> Result<Vec<(NodeId, NodeId, f64)>, LoadError> {
    let gpus = topology.of_kind(Kind::Gpu);
    let n = gpus.len();
    if !matches!(load, Workload::Pairs(_)) && n < 2 {
        return Err(LoadError::FewGpus(n));
    }
    let share = 1.0 / n.max(1) as f64;
    Ok(match load {
        Workload::AllReduce => {
            (0..n).map(|i| (gpus[i], gpus[(i + 1) % n], 2.0 * (n - 1) as f64 * share)).collect()
        }
        Workload::AllToAll => {
            let pairs = gpus.iter().flat_map(|&a| gpus.iter().map(move |&b| (a, b)));
            pairs.filter(|(a, b)| a != b).map(|(a, b)| (a, b, share)).collect()
        }
        Workload::Pairs(pairs) => {
            let find = |id: &String| topology.find(id).ok_or_else(|| unknown(topology, id));
            let all = pairs.iter().map(|(a, b)| Ok((find(a)?, find(b)?, 1.0)));
            all.collect::<Result<_, _>>()?
        }
    })
}

/// Loads of every direction of every link that a workload uses, the busiest first. A root complex
/// that caps or cuts what it forwards between devices limits what leaves it.
pub fn loads(topology: &Topology, workload: &Workload) -> Result<Vec<LinkLoad>, LoadError> {
    let mut all: Vec<LinkLoad> = Vec::new();
    let mut answers: Vec<(NodeId, NodeId, f64)> = Vec::new();
    for (from, to, buffers) in flows(topology, workload)? {
        for (a, b, gb_per_s, cut) in links(topology, from, to)? {
            answers.push((b, a, answer_ms(topology, (a, b), cut, buffers)));
            let ms = 1000.0 * buffers / gb_per_s;
            match all.iter_mut().find(|l| (l.from, l.to) == (a, b)) {
                Some(load) => {
                    load.buffers += buffers;
                    load.ms += ms;
                }
                None => all.push(LinkLoad { from: a, to: b, buffers, ms }),
            }
        }
    }
    for (from, to, ms) in answers {
        let load = all.iter_mut().find(|l| (l.from, l.to) == (from, to));
        load.into_iter().for_each(|load| load.ms += ms);
    }
    all.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    Ok(all)
}

/// Links of a flow's way, a direction each, with the rate that the flow has there, GB/s, and the size to which its TLPs
/// are cut. Ports of one card have one link.
pub(super) fn links(
    topology: &Topology,
    from: NodeId,
    to: NodeId,
) -> Result<Vec<(NodeId, NodeId, f64, u32)>, LoadError> {
    let way = checked_way(topology, from, to)?;
    let (is_peer, is_far) = (way.is_peer(topology), way.is_far(topology));
    // Size of the packets that move the data, and to which a root complex on the way has cut them.
    let mut cut = topology.packet_bytes(from, to);
    let mut all = Vec::new();
    for step in way.nodes.windows(2) {
        let node = topology.node(step[0]);
        let mut limit = f64::INFINITY;
        if is_peer && node.kind == Kind::RootComplex {
            let (p2p, _) = topology.p2p_of(step[0]);
            cut = cut.min(p2p.tlp_bytes.unwrap_or(u32::MAX));
            let is_down = topology.node(step[1]).parent == Some(step[0]);
            let [writes, _] = if is_far { p2p.far_limits() } else { p2p.limits() };
            limit = if is_down && writes > 0.0 { writes } else { limit };
        }
        let (a, b) = (topology.link_of(step[0]), topology.link_of(step[1]));
        let gb_per_s = rate(topology, a, b, cut)?.unwrap_or(f64::INFINITY).min(limit);
        if gb_per_s < f64::INFINITY {
            all.push((a, b, gb_per_s, cut));
        }
    }
    Ok(all)
}

/// Time that the DLLPs for writes of so many buffers of 1 GB, in TLPs of `cut` bytes, from one node
/// to the next take on the way back, ms.
pub(super) fn answer_ms(
    topology: &Topology,
    (from, to): (NodeId, NodeId),
    cut: u32,
    buffers: f64,
) -> f64 {
    let is_up = topology.node(from).parent == Some(to);
    let link = topology.node(if is_up { from } else { to }).link;
    link.map_or(0.0, |link| dllps_ms(link, cut, buffers))
}

fn is_memory(topology: &Topology, id: NodeId) -> bool {
    matches!(topology.node(id).kind, Kind::Socket | Kind::NumaNode)
}

/// The way of writes between two ends, if they are ends and nothing refuses the writes.
fn checked_way(topology: &Topology, from: NodeId, to: NodeId) -> Result<Route, LoadError> {
    let id = |n: NodeId| topology.node(n).id.clone();
    let wrong = |why: String| Err(LoadError::NoFlow { from: id(from), to: id(to), why });
    if from == to {
        return wrong("both ends are the same".into());
    }
    for end in [from, to] {
        let kind = topology.node(end).kind;
        if matches!(kind, Kind::RootComplex | Kind::RootPort | Kind::Switch) {
            return wrong(format!("a {kind} neither sends nor receives"));
        }
    }
    if is_memory(topology, from) && is_memory(topology, to) {
        return wrong("neither end is a device".into());
    }
    let way = topology.route(from, to);
    if way.is_peer(topology)
        && let Some(root) = way.refuses_writes(topology)
    {
        return wrong(format!("{} refuses peer writes", id(root)));
    }
    Ok(way)
}

/// Rate of the link between two neighbours; `None` for what is no link: a root port's link is that
/// of the node below it, and a root complex is part of its socket.
fn rate(topology: &Topology, a: NodeId, b: NodeId, cut: u32) -> Result<Option<f64>, LoadError> {
    let lower = if topology.node(a).parent == Some(b) { a } else { b };
    let (upper, node) = (if lower == a { b } else { a }, topology.node(lower));
    if node.parent != Some(upper) {
        let link = topology.between(a, b).filter(|link| link.origin != Origin::Unknown);
        return Ok(link.map(|link| link.gb_per_s));
    }
    match (node.kind, node.link) {
        (Kind::RootComplex, _) => Ok(node.mesh_gb_per_s),
        (Kind::RootPort | Kind::Socket | Kind::NumaNode, _) => Ok(None),
        (_, Some(link)) => Ok(Some(capacity(link) * share(cut, link))),
        (_, None) => Err(LoadError::UnknownLink(node.id.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Knob, builtin};

    /// What the simulation has of the same flows: 57.6 GB/s, and 112.1 both ways.
    #[test]
    fn both_ways_answer_each_other() {
        let t = builtin("dgx-h100").unwrap();
        let both = loads(&t, &"gpu0>gpu1,gpu1>gpu0".parse().unwrap()).unwrap();
        assert!(both.iter().all(|l| (l.gb_per_s() - 56.0).abs() < 0.1), "{both:?}");
    }

    /// FLIT mode has no framing; where there are DLLPs, each packet has its own.
    #[test]
    fn packets_have_the_headers_and_dllps_of_their_link() {
        let of = |t: &Topology, flows: &str| loads(t, &flows.parse().unwrap()).unwrap();
        let flit = builtin("same-root-complex").unwrap().with(Knob::Generation, 6.0).unwrap();
        let cut = of(&flit.map_p2p(|p| p.tlp_bytes = Some(64)), "gpu0>nic0");
        let share = cut[0].gb_per_s() / cut[1].gb_per_s();
        assert!((share - (64.0 / 80.0) / (256.0 / 272.0)).abs() < 1e-9, "{share}");
        let slow = builtin("dgx-h100").unwrap().with(Knob::Generation, 4.0).unwrap();
        let a100 = slow.map_packets(128);
        let raw = a100.node(a100.find("gpu0").unwrap()).link.unwrap().speed.raw_gbps() / 8.0;
        let both = of(&a100, "gpu0>gpu1,gpu1>gpu0");
        // 24 B of header and 8 B of DLLPs beside 128 B.
        assert!(both.iter().all(|l| (l.gb_per_s() - raw / 1.25).abs() < 1e-6), "{both:?}");
    }

    #[test]
    fn bytes_are_where_they_cross() {
        let t = builtin("dgx-h100").unwrap();
        // gpu0 and gpu1 share a switch: their flow does not leave it.
        let near = loads(&t, &"gpu0>gpu1".parse().unwrap()).unwrap();
        assert_eq!(near.len(), 2);
        assert!((near[0].gb_per_s() - 57.6).abs() < 0.1, "{}", near[0].gb_per_s());
        // Four switches of two GPUs: of the ring's eight flows, two cross the sockets.
        let ring = loads(&t, &Workload::AllReduce).unwrap();
        let total: f64 = ring.iter().map(|l| l.buffers).sum();
        // Eight flows of 14/8: two links each, and two more for the four between switches.
        assert!((total - 1.75 * (8.0 * 2.0 + 4.0 * 2.0 + 2.0)).abs() < 1e-9, "{total}");
        assert!((ring[0].gb_per_s() - 22.0).abs() < 1e-9);
        assert!((ring[0].ms - 1000.0 * 1.75 / 22.0).abs() < 1e-9);
        let all = loads(&t, &Workload::AllToAll).unwrap();
        // 4 × 4 pairs cross the sockets each way, an eighth of a buffer each.
        assert!((all[0].buffers - 2.0).abs() < 1e-9 && (all[0].gb_per_s() - 22.0).abs() < 1e-9);
    }

    /// Two ports of one card below a switch: each link once, busy with both flows.
    #[test]
    fn ports_of_a_card_load_one_link() {
        let busy = |cards: [&str; 2]| {
            let t = crate::topology::two_ports(cards.map(Some));
            let all = loads(&t, &"gpu0>nic0,gpu1>nic1".parse().unwrap()).unwrap();
            (all.len(), all[0].buffers, all[0].ms)
        };
        let ((few, both, busier), (many, one, alone)) = (busy(["a"; 2]), busy(["a", "b"]));
        assert_eq!((few, both, many, one), (3, 2.0, 4, 1.0));
        assert!((busier / alone - 2.0).abs() < 1e-9, "{busier} ms, {alone} ms of one");
    }

    /// What the simulation says of the same flow.
    #[test]
    fn root_complexes_cap_cut_and_refuse() {
        let t = builtin("two-root-complexes").unwrap();
        let narrowest = |t: &Topology| {
            loads(t, &"gpu0>nic0".parse().unwrap())
                .map(|l| l[0].gb_per_s())
                .map_err(|e| e.to_string())
        };
        assert!(narrowest(&t).unwrap() > 50.0);
        assert_eq!(narrowest(&t.map_p2p(|p| p.cap_gb_per_s = Some(9.0))), Ok(9.0));
        assert_eq!(narrowest(&t.map_p2p(|p| p.write_gb_per_s = Some(7.0))), Ok(7.0));
        assert!(narrowest(&t.map_p2p(|p| p.read_gb_per_s = Some(7.0))).unwrap() > 50.0);
        let cut = narrowest(&t.map_p2p(|p| p.tlp_bytes = Some(64))).unwrap();
        assert!((cut / narrowest(&t).unwrap() - (64.0 / 88.0) / (256.0 / 280.0)).abs() < 1e-9);
        let refused = narrowest(&t.map_p2p(|p| p.writes = Some(false))).unwrap_err();
        assert_eq!(refused, "gpu0>nic0: rc0 refuses peer writes");
        // Of two flows on one link each has its own rate: peers' TLPs are cut, host memory's not.
        let cuts = t.map_p2p(|p| p.tlp_bytes = Some(64));
        let of = |flows: &str| loads(&cuts, &flows.parse().unwrap()).unwrap();
        let (both, alone) = (of("gpu0>nic0,s0>nic0"), [of("gpu0>nic0"), of("s0>nic0")]);
        for l in &both {
            let same = |a: &&LinkLoad| (a.from, a.to) == (l.from, l.to);
            let ms: f64 = alone.iter().flatten().filter(same).map(|a| a.ms).sum();
            assert!((l.ms - ms).abs() < 1e-9, "{} ms, alone {ms}", l.ms);
        }
        let ms = |l: &[LinkLoad]| l[0].ms;
        assert!(both[0].buffers == 2.0 && ms(&alone[0]) > 1.1 * ms(&alone[1]));
        // Host memory is no peer.
        let closed = t.map_p2p(|p| (p.writes, p.cap_gb_per_s) = (Some(false), Some(9.0)));
        assert!(loads(&closed, &"gpu0>s0".parse().unwrap()).unwrap()[0].gb_per_s() > 50.0);
    }

    #[test]
    fn what_is_no_workload_is_refused() {
        for text in ["", "ring", "gpu0", "gpu0>", "gpu0>gpu1,"] {
            assert!(text.parse::<Workload>().is_err(), "{text}");
        }
        let t = builtin("same-switch").unwrap();
        let refused = |text: &str| loads(&t, &text.parse().unwrap()).unwrap_err().to_string();
        assert_eq!(refused("all-reduce"), "1 GPUs: a collective needs two");
        for (text, why) in [
            ("gpu0>gpu0", "gpu0>gpu0: both ends are the same"),
            ("gpu0>sw0", "gpu0>sw0: a switch neither sends nor receives"),
            ("rc0>gpu0", "rc0>gpu0: a root complex neither sends nor receives"),
        ] {
            assert_eq!(refused(text), why);
        }
        assert_eq!(
            refused("gpu0>gpu7"),
            "\"gpu7\": the topology has no such device; there are gpu0, nic0, s0"
        );
    }
}
