//! The collapse of posted writes from one switch to several root ports: who would cause it, what it
//! costs where a platform is known to have it, and sends in an order that avoids it.
//!
//! No mechanism explains what was seen, so the behaviour is data of a platform
//! ([`PostedCollapse`]), not of the fabric: thresholds and rate from its source, and *unknown*
//! wherever nobody looked.

use std::collections::{BTreeMap, BTreeSet};

use super::flows::{Flow, Move};
use crate::topology::{
    Cap, Collapse, Kind, KnownCollapse, LoadError, NodeId, Topology, fair_rates_within,
};

/// Writes of one source switch that go up to root complexes at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fan {
    /// The switch nearest to the root complex, by whose uplink they leave.
    pub switch: NodeId,
    /// Devices that write.
    pub sources: usize,
    /// Root ports through which the writes come down, or the links below root complexes. Host
    /// memory lies behind none.
    pub roots: usize,
    /// Places in the list of flows.
    pub flows: Vec<usize>,
}

/// The uplink's switch and the root port of the destination, if a flow is of writes that go from a
/// switch through a root complex to a device. What was reported is of peer writes, so that a write
/// to host memory is none of them.
fn by_uplink(t: &Topology, flow: &Flow) -> Option<(NodeId, NodeId)> {
    if flow.by != Move::Write || matches!(t.node(flow.to).kind, Kind::Socket | Kind::NumaNode) {
        return None;
    }
    let nodes = t.route(flow.from, flow.to).nodes;
    let kind = |n: &NodeId| t.node(*n).kind;
    let root = |n: &NodeId| kind(n) == Kind::RootComplex;
    let up = nodes.iter().position(root)?;
    let down = nodes.iter().rposition(root)?;
    let switch = nodes[..up].iter().rfind(|n| kind(n) == Kind::Switch)?;
    Some((*switch, *nodes.get(down + 1)?))
}

/// The fans of all source switches, also those to one root.
pub fn fans(t: &Topology, flows: &[Flow]) -> Vec<Fan> {
    let mut by_switch: BTreeMap<NodeId, Vec<(usize, NodeId)>> = BTreeMap::new();
    for (i, flow) in flows.iter().enumerate() {
        if let Some((switch, root)) = by_uplink(t, flow) {
            by_switch.entry(switch).or_default().push((i, root));
        }
    }
    let count = |nodes: &mut dyn Iterator<Item = NodeId>| nodes.collect::<BTreeSet<_>>().len();
    by_switch
        .into_iter()
        .map(|(switch, members)| Fan {
            switch,
            sources: count(&mut members.iter().map(|m| flows[m.0].from)),
            roots: count(&mut members.iter().map(|m| m.1)),
            flows: members.iter().map(|m| m.0).collect(),
        })
        .collect()
}

/// The fans that collapse on this platform, with the rate of each, GB/s.
pub(super) fn collapsed(t: &Topology, flows: &[Flow]) -> Vec<(Fan, f64)> {
    let Collapse::Seen(c) = t.collapse() else { return Vec::new() };
    let hit = |f: &Fan| f.sources >= c.sources as usize && f.roots >= c.roots as usize;
    fans(t, flows).into_iter().filter(hit).map(|f| (f, c.gb_per_s)).collect()
}

/// Rates of writes from one end to another that run at once, by arithmetic: their fair shares of links and
/// root complexes, and of what fans that collapse have, GB/s.
///
/// # Errors
/// As [`fair_rates`](crate::topology::fair_rates).
pub fn fair_writes(t: &Topology, ends: &[(NodeId, NodeId)]) -> Result<Vec<f64>, LoadError> {
    let flows: Vec<Flow> = ends.iter().map(|&(from, to)| Flow::write(from, to)).collect();
    let fans = collapsed(t, &flows);
    let cap = |(fan, gb_per_s): (Fan, f64)| Cap { flows: fan.flows, gb_per_s, waiting: Vec::new() };
    let caps: Vec<Cap> = fans.into_iter().map(cap).collect();
    fair_rates_within(t, ends, &caps)
}

/// The same of streams that go on side by side, as [`simulate_flows`](super::simulate_flows) has them: what waits
/// behind a fan that collapses has no more than a flow of it, and a memory takes no more than its limit.
///
/// # Errors
/// As [`fair_rates`](crate::topology::fair_rates).
pub fn fair_streams(t: &Topology, ends: &[(NodeId, NodeId)]) -> Result<Vec<f64>, LoadError> {
    let flows: Vec<Flow> = ends.iter().map(|&(from, to)| Flow::write(from, to)).collect();
    let fans = collapsed(t, &flows).into_iter().map(|(fan, gb_per_s)| {
        let waiting = beside(t, &flows, &fan).map(|(place, _)| place).collect();
        Cap { flows: fan.flows, gb_per_s, waiting }
    });
    let limited = t.nodes().filter_map(|(memory, node)| {
        let gb_per_s = node.memory_write_gb_per_s?;
        let places = (0..ends.len()).filter(|&flow| ends[flow].1 == memory);
        Some(Cap { flows: places.collect(), gb_per_s, waiting: Vec::new() })
    });
    let caps: Vec<Cap> = fans.chain(limited).collect();
    fair_rates_within(t, ends, &caps)
}

/// Flows that are not of the fan and wait behind it, with their places: their data leave one of its sources, or go up
/// by its uplink. A link sends the posted requests of one input in their order, and its inputs in
/// turn.
fn beside<'a>(
    t: &'a Topology,
    flows: &'a [Flow],
    fan: &'a Fan,
) -> impl Iterator<Item = (usize, &'a Flow)> {
    let is_source = |node| fan.flows.iter().any(|&i| flows[i].from == node);
    let goes_up = |f: &Flow| {
        let nodes = t.route(f.from, f.to).nodes;
        let above = t.node(fan.switch).parent;
        nodes.windows(2).any(|way| way[0] == fan.switch && Some(way[1]) == above)
    };
    let others = flows.iter().enumerate().filter(|(i, _)| !fan.flows.contains(i));
    others.filter(move |(_, f)| is_source(f.from) || goes_up(f))
}

/// What a fan that collapses does to flows beside it; `None`: there are none.
fn behind(t: &Topology, flows: &[Flow], fan: &Fan) -> Option<String> {
    let text = |f: &Flow| {
        let (by, at) = f.ends();
        let sign = if f.by == Move::Write { '>' } else { '<' };
        format!("{}{sign}{}", t.node(by).id, t.node(at).id)
    };
    let names: Vec<String> = beside(t, flows, fan).map(|(_, flow)| text(flow)).collect();
    if names.is_empty() {
        return None;
    }
    Some(format!(
        "not of these writes, but from one of their sources or by the uplink of {}: {}; in the \
         model they wait behind them, and the source says nothing of such",
        t.node(fan.switch).id,
        names.join(", ")
    ))
}

/// What is to be said about flows that run at once: fans that collapse, or of which nobody knows.
pub fn warnings(t: &Topology, flows: &[Flow]) -> Vec<String> {
    let name = |f: &Fan| &t.node(f.switch).id;
    // What goes on inside a chip never came up to a root port, and captures do not show chips.
    let unless = |f: &Fan| match t.node(f.switch).chip {
        Some(_) => "",
        None => {
            "; within one chip of several switches they do not, and no [[chip]] here says which \
             these are"
        }
    };
    match t.collapse() {
        Collapse::Absent => Vec::new(),
        Collapse::Seen(c) => collapsed(t, flows)
            .iter()
            .flat_map(|(f, gb_per_s)| {
                let told = format!(
                    "{} sources below {} write to {} root ports at once: their writes collapse to \
                     {gb_per_s} GB/s together ({}); one root port at a time does not{}",
                    f.sources,
                    name(f),
                    f.roots,
                    c.source,
                    unless(f)
                );
                [Some(told), behind(t, flows, f)].into_iter().flatten()
            })
            .collect(),
        Collapse::Unknown => fans(t, flows)
            .iter()
            .filter(|f| f.roots > 1 && f.sources >= KnownCollapse::least_sources())
            .map(|f| {
                format!(
                    "{} sources below {} write to {} root ports at once: on some platforms such \
                     writes collapse to a twentieth; on this one unknown, taken as not",
                    f.sources,
                    name(f),
                    f.roots
                )
            })
            .collect(),
    }
}

/// Orders flows into rounds, to be run one after the other, in which every source switch writes to
/// one root port. Flows keep their order as far as that allows. Each round holds places in `flows`.
pub fn schedule(t: &Topology, flows: &[Flow]) -> Vec<Vec<usize>> {
    let mut rounds: Vec<(BTreeMap<NodeId, NodeId>, Vec<usize>)> = Vec::new();
    for (i, flow) in flows.iter().enumerate() {
        let fan = by_uplink(t, flow);
        let fits = |taken: &BTreeMap<NodeId, NodeId>| {
            fan.is_none_or(|(switch, root)| taken.get(&switch).is_none_or(|&r| r == root))
        };
        let at = rounds.iter().position(|(taken, _)| fits(taken)).unwrap_or_else(|| {
            rounds.push((BTreeMap::new(), Vec::new()));
            rounds.len() - 1
        });
        rounds[at].0.extend(fan);
        rounds[at].1.push(i);
    }
    rounds.into_iter().map(|(_, members)| members).collect()
}

#[cfg(all(test, feature = "toml"))]
#[path = "collapse_tests.rs"]
mod tests;
