//! Ranks paths by time and by rate, with what the order hangs on: every number that is assumed or
//! fitted is moved by 30 % down and up, one at a time.
//!
//! Most numbers change nothing of an operation: neither a channel on its ways, nor an endpoint, nor
//! a step. Those are found without a simulation ([`Operation::imprint`]) and left out, exactly.

use std::collections::BTreeMap;

use super::ops::Operation;
use super::parallel::in_parallel;
use super::{NicModel, Params, PathModel, SimError, TestBedSpec};
use crate::Origin;
use crate::topology::{Guess, NodeId, Peer, Topology};

/// By what paths are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Goal {
    /// Time until the sender sees the completion of one operation of so many bytes, ns.
    Latency(u32),
    /// Rate of eight operations of 64 KiB in flight, GB/s, each begun as one ends.
    Rate,
}

impl Goal {
    /// Bytes of an operation, and how many are in flight.
    pub(super) const fn load(self) -> (u32, u32) {
        match self {
            Self::Latency(bytes) => (bytes, 1),
            Self::Rate => (RATE.0, RATE.1),
        }
    }
}

/// Operations of [`Goal::Rate`]: bytes, in flight, runs.
const RATE: (u32, u32, u64) = (64 << 10, 8, 40);

/// The goals of an advice.
pub const GOALS: [Goal; 4] =
    [Goal::Latency(8), Goal::Latency(4096), Goal::Latency(256 << 10), Goal::Rate];

/// Largest operation, in bytes, of which the rate of a root complex decides next to nothing.
const SMALL: u32 = 4096;

/// Two times or rates that are no further apart than this count as equal.
pub const EQUAL: f64 = 0.01;
/// Share by which a number is moved.
pub const MOVE: f64 = 0.3;

/// Where parameters come from, where not from the model's defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// Says where a parameter comes from.
    pub fn set(&mut self, name: &str, origin: Origin) {
        self.0.insert(name.to_owned(), origin);
    }

    /// Where it comes from.
    pub fn of(&self, name: &str) -> Origin {
        self.0.get(name).copied().unwrap_or_else(|| Params::origin(name))
    }
}

/// A time or a rate of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Figure {
    /// With every number as it is.
    pub value: f64,
    /// Least with one number moved.
    pub low: f64,
    /// Greatest with one number moved.
    pub high: f64,
    /// The weakest origin among the numbers that it hangs on.
    pub origin: Origin,
}

/// A path that is as good as the best when one number is moved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Tie {
    /// The path.
    pub path: PathModel,
    /// The moves, such as `wire_ns +30 %`.
    pub because: Vec<String>,
}

/// The paths by one goal.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Ranking {
    /// By what.
    pub goal: Goal,
    /// The paths that exist here and carry the size, best first.
    pub paths: Vec<(PathModel, Figure)>,
    /// The paths that do not exist here, and why.
    /// ([`impossible`](super::impossible) has it in words, of a pair.)
    #[cfg_attr(feature = "serde", serde(skip))]
    pub absent: Vec<(PathModel, SimError)>,
    /// The paths that are no worse than the best when one number is moved.
    pub ties: Vec<Tie>,
}

/// A number on which a ranking hangs.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct HangsOn {
    /// Parameter, or what is assumed of the topology.
    pub name: String,
    /// Its value, of a parameter.
    pub value: Option<f64>,
    /// Where it comes from.
    pub origin: Origin,
}

/// Rankings of one pair.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranks {
    /// One a goal.
    pub rankings: Vec<Ranking>,
    /// The numbers that move any of them.
    pub hangs_on: Vec<HangsOn>,
}

/// One number moved.
struct Moved {
    name: String,
    text: String,
    value: Option<f64>,
    origin: Origin,
    topology: Topology,
    params: Params,
}

fn moves(topology: &Topology, params: &Params, origins: &Origins) -> Vec<Moved> {
    let mut all = Vec::new();
    for &name in Params::NAMES {
        let (origin, value) = (origins.of(name), params.get(name).unwrap_or(f64::NAN));
        for (sign, factor) in [('-', 1.0 - MOVE), ('+', 1.0 + MOVE)] {
            let (least, most) = Params::range(name);
            let to = (value * factor).clamp(least, most);
            let mut params = params.clone();
            if let Some(own) = params.get_mut(name).filter(|own| **own != to) {
                *own = to;
                let text = format!("{name} {sign}{:.0} %", MOVE * 100.0);
                let (name, value, topology) = (name.to_owned(), Some(value), topology.clone());
                all.push(Moved { name, text, value, origin, topology, params });
            }
        }
    }
    all.retain(|m| m.origin.is_uncertain());
    for guess in Guess::ALL {
        for up in [false, true] {
            let Some(topology) = topology.guessed(guess, up) else { continue };
            let (text, origin) = (guess.text(up).to_owned(), Origin::Assumed);
            let name = guess.name().to_owned();
            all.push(Moved { name, text, value: None, origin, topology, params: params.clone() });
        }
    }
    all
}

/// What is ranked: the pair, the NIC and the parameters.
#[derive(Debug, Clone, Copy)]
struct Bed<'a> {
    topology: &'a Topology,
    ends: [NodeId; 2],
    nic: NicModel,
    params: &'a Params,
    seed: u64,
}

impl Bed<'_> {
    fn operation(&self, path: PathModel, goal: Goal) -> Operation {
        let [gpu, nic] = self.ends;
        let (topology, params) = (self.topology, self.params);
        let spec = TestBedSpec { topology, gpu, nic, params, seed: self.seed };
        let (bytes, in_flight) = goal.load();
        Operation::new(spec, self.nic.layout(), path, bytes, in_flight)
    }
}

fn run(operation: Operation, goal: Goal) -> Result<f64, SimError> {
    Ok(match goal {
        Goal::Latency(_) => operation.run_alone()?.mean_ns(),
        Goal::Rate => operation.rate(RATE.2)?,
    })
}

/// Root complexes that a path crosses between the GPU and the NIC, and of which nobody says whether
/// they forward what it sends, or, where much is sent, at what rate
/// ([`Route::unknown_peers`](crate::topology::Route::unknown_peers)).
pub fn unknown_roots(
    t: &Topology,
    [gpu, nic]: [NodeId; 2],
    path: PathModel,
    goal: Goal,
) -> Vec<NodeId> {
    let is_much = goal.load().0 > SMALL;
    let (to_nic, to_gpu) = (t.route(gpu, nic), t.route(nic, gpu));
    // The receiving NIC writes into its GPU, on a machine like this.
    let mut all = to_gpu.unknown_peers(t, Peer::Writes, is_much);
    if path != PathModel::Staged {
        // All but staged ring a doorbell, and push writes the payload too.
        let is_payload = is_much && path != PathModel::Pull;
        all.extend(to_nic.unknown_peers(t, Peer::Writes, is_payload));
    }
    if path == PathModel::Pull {
        all.extend(to_gpu.unknown_peers(t, Peer::Reads, is_much));
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Sockets between which a path sends much, and of which nobody says at what rate
/// ([`Route::unknown_between`](crate::topology::Route::unknown_between)).
pub fn unknown_sockets(
    t: &Topology,
    [gpu, nic]: [NodeId; 2],
    path: PathModel,
    goal: Goal,
) -> Vec<[NodeId; 2]> {
    if goal.load().0 <= SMALL {
        return Vec::new();
    }
    let to_gpu = t.route(nic, gpu);
    // The receiving NIC writes into its GPU, on a machine like this.
    let mut all = to_gpu.unknown_between(t, Peer::Writes);
    all.extend(match (path, t.memory_of(nic)) {
        (PathModel::Pull, _) => to_gpu.unknown_between(t, Peer::Reads),
        // Host memory is beside the NIC.
        (PathModel::Staged, Some(memory)) => t.route(gpu, memory).unknown_between(t, Peer::Writes),
        _ => t.route(gpu, nic).unknown_between(t, Peer::Writes),
    });
    all.sort_unstable();
    all.dedup();
    all
}

/// Ranks the NIC's paths between a GPU and a NIC by each goal. A path that does not exist between
/// the two, or does not carry the size, is in no ranking.
pub fn rank(spec: TestBedSpec<'_>, nic: NicModel, origins: &Origins, goals: &[Goal]) -> Ranks {
    let (topology, ends) = spec.topology.part(spec.gpu, spec.nic);
    let bed = Bed { topology: &topology, ends, nic, params: spec.params, seed: spec.seed };
    let moved = moves(&topology, spec.params, origins);
    let mut cases: Vec<(Goal, PathModel)> = Vec::new();
    for &goal in goals {
        let paths = nic.paths().iter().filter(|p| p.carries(goal.load().0));
        cases.extend(paths.map(|&p| (goal, p)));
    }
    let base = in_parallel(cases.len(), |i| {
        let operation = bed.operation(cases[i].1, cases[i].0);
        (operation.imprint(), run(operation, cases[i].0))
    });
    // `None`: the number changes nothing of the case.
    let others = in_parallel(cases.len() * moved.len(), |job| {
        let (case, m) = (job / moved.len(), &moved[job % moved.len()]);
        let (goal, path) = cases[case];
        base[case].1.ok()?;
        let bed = Bed { topology: &m.topology, params: &m.params, ..bed };
        let operation = bed.operation(path, goal);
        let other = (operation.imprint() != base[case].0).then(|| run(operation, goal).ok());
        // A step may have a number that its time does not hang on, such as of walks that never come.
        other.filter(|&other| other != base[case].1.ok())
    });
    let at = |case: usize, m: usize| others[case * moved.len() + m];
    let figure = |case: usize| {
        let value = base[case].1.ok()?;
        let (goal, path) = cases[case];
        let is_known = unknown_roots(&topology, ends, path, goal).is_empty()
            && unknown_sockets(&topology, ends, path, goal).is_empty();
        let origin = if is_known { Origin::Read } else { Origin::Unknown };
        let mut figure = Figure { value, low: value, high: value, origin };
        for (m, by) in moved.iter().enumerate() {
            let Some(other) = at(case, m) else { continue };
            figure.origin = figure.origin.max(by.origin);
            figure.low = figure.low.min(other.unwrap_or(value));
            figure.high = figure.high.max(other.unwrap_or(value));
        }
        Some(figure)
    };
    let mut rankings = Vec::new();
    for &goal in goals {
        let cost = |value: f64| if goal == Goal::Rate { 1.0 / value } else { value };
        let mut found: Vec<(usize, Figure)> = (0..cases.len())
            .filter(|&c| cases[c].0 == goal)
            .filter_map(|c| Some((c, figure(c)?)))
            .collect();
        found.sort_by(|a, b| cost(a.1.value).total_cmp(&cost(b.1.value)));
        let mut ties = Vec::new();
        if let Some((&(best, own), rest)) = found.split_first() {
            for &(case, theirs) in rest {
                let is_no_worse = |mine: Option<f64>, other: Option<f64>| match (mine, other) {
                    (Some(mine), Some(other)) => cost(other) <= cost(mine) * (1.0 + EQUAL),
                    (mine, other) => mine.is_none() && other.is_some(),
                };
                let with = |m: usize| {
                    if at(best, m).is_none() && at(case, m).is_none() {
                        return false;
                    }
                    let mine = at(best, m).unwrap_or(Some(own.value));
                    is_no_worse(mine, at(case, m).unwrap_or(Some(theirs.value)))
                };
                let mut because: Vec<String> = Vec::new();
                if is_no_worse(Some(own.value), Some(theirs.value)) {
                    because.push(format!("within {:.0} % as it is", EQUAL * 100.0));
                }
                let flips = (0..moved.len()).filter(|&m| with(m));
                because.extend(flips.map(|m| moved[m].text.clone()));
                if !because.is_empty() {
                    ties.push(Tie { path: cases[case].1, because });
                }
            }
        }
        let why = |c: usize| {
            let error = base[c].1.err()?;
            Some((cases[c].1, error))
        };
        let absent = (0..cases.len()).filter(|&c| cases[c].0 == goal).filter_map(why).collect();
        let paths = found.into_iter().map(|(c, figure)| (cases[c].1, figure)).collect();
        rankings.push(Ranking { goal, paths, absent, ties });
    }
    let mut hangs_on: Vec<HangsOn> = Vec::new();
    for (m, by) in moved.iter().enumerate() {
        let known = hangs_on.last().is_some_and(|c| c.name == by.name);
        if !known && (0..cases.len()).any(|case| at(case, m).is_some()) {
            let (name, value, origin) = (by.name.clone(), by.value, by.origin);
            hangs_on.push(HangsOn { name, value, origin });
        }
    }
    Ranks { rankings, hangs_on }
}

#[cfg(test)]
#[path = "rank_tests.rs"]
mod tests;
