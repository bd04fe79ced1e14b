//! The path that `bellpush topo` recommends, how sure that is, and what it hangs on.

use std::fmt::Write as _;
use std::time::Duration;

use bellpush::pcie::Origin;
use bellpush::pcie::sim::{
    EQUAL, Figure, GOALS, Goal, HangsOn, MOVE, NicModel, Origins, Params, Ranking, Ranks,
    TestBedSpec, has_part_in_ranks, impossible, rank, unknown_roots, unknown_sockets,
};
use bellpush::pcie::text::one_line;
use bellpush::pcie::topology::{Assigned, Class, Distance, NodeId, Peer, Topology};
use bellpush_cli::report::human::decimals;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::nics::Is;
use crate::cli::CliError;
use crate::sim_options::Asked;

/// Most kinds of pairs that are ranked: each takes seconds, and a file may have any number.
const MOST_KINDS: usize = 8;
/// Most moves that are named behind a tie.
const MOST_MOVES: usize = 3;

/// What is advised for, and with which numbers.
pub struct Basis {
    /// The NIC.
    pub nic: NicModel,
    /// Why it is this one.
    pub why: String,
    /// Parameters.
    pub params: Params,
    /// Where they come from.
    pub origins: Origins,
    /// Whether the command names the NIC: then every NIC is taken for it.
    pub is_named: bool,
}

/// The advice of one pair.
pub struct Advice {
    /// GPU.
    pub gpu: NodeId,
    /// NIC.
    pub nic: NodeId,
    /// Its paths by each goal.
    pub ranks: Ranks,
}

/// Why a pair has no advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// The model takes no guess for a link.
    Link,
    /// The class is not known.
    Class,
    /// The NIC has no RDMA.
    Rdma,
    /// There are too many kinds of pairs.
    Kinds,
}

/// What pairs that differ in nothing have alike: their part of the topology, and the wire.
type Alike = ((Topology, [NodeId; 2]), f64);

/// Advice of all pairs.
#[derive(Default)]
pub struct All {
    /// Of the pairs whose links and class are known.
    pub of: Vec<Advice>,
    /// GPUs of the other pairs.
    pub without: Vec<(NodeId, Without)>,
}

impl All {
    /// Ranks the paths of every pair; pairs that differ in nothing are ranked once.
    pub fn new(topology: &Topology, pairs: &[Assigned<NodeId>], basis: &Basis) -> Self {
        let mut all = Self::default();
        let mut kinds: Vec<(Alike, [NodeId; 2])> = Vec::new();
        let mut known: Vec<([NodeId; 2], usize)> = Vec::new();
        for pair in pairs {
            let Some(nic) = pair.nic else { continue };
            if !basis.takes(topology, nic) {
                all.without.push((pair.gpu, Without::Rdma));
                continue;
            }
            if let Some(why) = lacks(topology, pair, nic) {
                all.without.push((pair.gpu, why));
                continue;
            }
            let params = basis.params_of(topology, nic);
            let part = (topology.part(pair.gpu, nic), params.wire_gb_per_s);
            let at = kinds.iter().position(|(kind, _)| *kind == part).unwrap_or(kinds.len());
            if at == MOST_KINDS {
                all.without.push((pair.gpu, Without::Kinds));
                continue;
            }
            if at == kinds.len() {
                kinds.push((part, [pair.gpu, nic]));
            }
            known.push(([pair.gpu, nic], at));
        }
        let bar = progress(kinds.len());
        let ranked = kinds.iter().map(|(_, [gpu, nic])| {
            let params = &basis.params_of(topology, *nic);
            let spec = TestBedSpec { topology, gpu: *gpu, nic: *nic, params, seed: 1 };
            let ranks = rank(spec, basis.nic, &basis.origins, &GOALS);
            bar.inc(1);
            ranks
        });
        let ranked: Vec<Ranks> = ranked.collect();
        bar.finish_and_clear();
        let of = known.into_iter().map(|([gpu, nic], at)| {
            let mut ranks = ranked[at].clone();
            let is_other = matches!(basis.nic_is(topology, nic), Is::Other(_));
            let is_rated = basis.port(topology, nic).is_some();
            // Another NIC's times and rates say nothing of this one.
            for r in &mut ranks.rankings {
                if is_other || r.goal == Goal::Rate && !is_rated {
                    r.paths.iter_mut().for_each(|(_, f)| f.origin = Origin::Unknown);
                }
            }
            Advice { gpu, nic, ranks }
        });
        all.of = of.collect();
        all
    }
}

/// What a terminal shows while kinds of pairs are ranked; others see nothing of it.
fn progress(kinds: usize) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{bar:30} {pos}/{len} kinds of pairs ranked, {elapsed}");
    let bar = ProgressBar::new(kinds as u64);
    if kinds == 0 {
        return bar;
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar, // the template is ours; a bar of another look would do
    }
}

/// Refuses a `--set` of what has no part in the advice of any pair.
///
/// # Errors
/// One line that names it.
pub fn check_sets(
    topology: &Topology,
    pairs: &[Assigned<NodeId>],
    basis: &Basis,
    sets: &[String],
) -> Result<(), CliError> {
    let mut kinds: Vec<(Topology, [NodeId; 2])> = Vec::new();
    for pair in pairs {
        let is_advised =
            |nic: &NodeId| basis.takes(topology, *nic) && lacks(topology, pair, *nic).is_none();
        if let Some(nic) = pair.nic.filter(is_advised) {
            let part = topology.part(pair.gpu, nic);
            if !kinds.contains(&part) {
                kinds.push(part);
            }
        }
    }
    let has_part = |name: &str| {
        kinds.iter().take(MOST_KINDS).any(|(topology, [gpu, nic])| {
            let (gpu, nic, params) = (*gpu, *nic, &basis.params);
            let spec = TestBedSpec { topology, gpu, nic, params, seed: 1 };
            has_part_in_ranks(spec, basis.nic, &GOALS, name)
        })
    };
    let names = sets.iter().filter_map(|set| set.split_once('=')).map(|set| set.0);
    for name in names {
        if !has_part(name) {
            let of = format!("the advice on {}", topology.name);
            return Err(Asked::Set(name).without_part(&of));
        }
    }
    Ok(())
}

/// What is not known of a pair, and without which there is no advice.
fn lacks(topology: &Topology, pair: &Assigned<NodeId>, nic: NodeId) -> Option<Without> {
    let linked = |n: NodeId| topology.unknown_link(n).is_none();
    let class = topology.distance(pair.gpu, nic);
    // A class of a capture leaves ACS aside, which the topology's ways do not.
    let is_known = pair.class.allows(class) || class == Distance::Phb;
    // A matrix may have a class without a way.
    let is_vague = matches!(pair.class, Class::NodeOrSys | Class::Unknown)
        || topology.class_of(pair.gpu, nic) == Class::Unknown;
    if !is_known || is_vague {
        return Some(Without::Class);
    }
    (!(linked(pair.gpu) && linked(nic))).then_some(Without::Link)
}

fn goal(goal: Goal) -> String {
    match goal {
        Goal::Latency(bytes) => format!("{bytes} B"),
        Goal::Rate => "GB/s".to_owned(),
    }
}

/// `use pull`, or `tie pull, staged`.
fn verdict(ranking: &Ranking) -> String {
    let Some((best, _)) = ranking.paths.first() else { return "use none".to_owned() };
    if ranking.ties.is_empty() {
        return format!("use {}", best.name());
    }
    let others = ranking.ties.iter().map(|t| format!(", {}", t.path.name()));
    format!("tie {}{}", best.name(), others.collect::<String>())
}

fn figure(goal: Goal, f: &Figure) -> String {
    let unit = if goal == Goal::Rate { 1.0 } else { 1000.0 };
    let [value, low, high] = [f.value, f.low, f.high].map(|v| v / unit);
    let [value, low, high] = [value, low, high].map(|v| decimals(v, 2));
    format!("{value}{} [{low}, {high}]", f.origin.letter())
}

/// Root complexes on the NIC's way to the GPU of which nobody knows whether they forward reads.
fn unknown_reads(topology: &Topology, advice: &Advice) -> Option<String> {
    let way = topology.route(advice.nic, advice.gpu);
    names(topology, way.unknown_peers(topology, Peer::Reads, false))
}

/// Root complexes on which the advice hangs without anything being known of them.
pub fn unknown_of(topology: &Topology, advice: &Advice) -> Vec<NodeId> {
    let mut all: Vec<NodeId> = Vec::new();
    for r in &advice.ranks.rankings {
        let ends = [advice.gpu, advice.nic];
        let of = r.paths.iter().map(|(path, _)| unknown_roots(topology, ends, *path, r.goal));
        all.extend(of.flatten());
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Sockets between which the rate of what the advice is about is not known.
pub fn unknown_between(topology: &Topology, advice: &Advice) -> Vec<[NodeId; 2]> {
    let mut all: Vec<[NodeId; 2]> = Vec::new();
    for r in &advice.ranks.rankings {
        let ends = [advice.gpu, advice.nic];
        let of = r.paths.iter().map(|(path, _)| unknown_sockets(topology, ends, *path, r.goal));
        all.extend(of.flatten());
    }
    all.sort_unstable();
    all.dedup();
    all
}

fn names(topology: &Topology, nodes: Vec<NodeId>) -> Option<String> {
    let mut names: Vec<String> =
        nodes.into_iter().map(|n| one_line(&topology.node(n).id)).collect();
    names.sort();
    (!names.is_empty()).then(|| names.join(", "))
}

fn pair_text(topology: &Topology, advice: &Advice, basis: &Basis, out: &mut String) {
    let id = |n: NodeId| one_line(&topology.node(n).id);
    let (gpu, nic) = (id(advice.gpu), id(advice.nic));
    let class = topology.distance(advice.gpu, advice.nic);
    for r in &advice.ranks.rankings {
        let (goal_name, verdict) = (goal(r.goal), verdict(r));
        // No advice: the NIC has not all of these paths.
        let verdict = match (basis.nic_is(topology, advice.nic), verdict.strip_prefix("use ")) {
            (Is::Other(_), Some(best)) => format!("a ConnectX-7's: {best}"),
            _ => verdict,
        };
        if r.goal == Goal::Rate && basis.port(topology, advice.nic).is_none() {
            let most = topology.link_gb_per_s(advice.nic);
            let most = most.map_or(String::new(), |m| format!(", at most {m:.1} by its PCIe link"));
            let _ = writeln!(
                out,
                "{gpu:>6} {nic:>6} {class:>4} {goal_name:>10}  unknown rate: that of the NIC's port \
                 is not known{most}"
            );
            continue;
        }
        let _ = write!(out, "{gpu:>6} {nic:>6} {class:>4} {goal_name:>10}  {verdict:<15}");
        for (path, f) in &r.paths {
            let _ = write!(out, "  {} {}", path.name(), figure(r.goal, f));
        }
        out.push('\n');
        for tie in &r.ties {
            let (shown, more) = tie.because.split_at(tie.because.len().min(MOST_MOVES));
            let _ = write!(out, "{:32}tie with {}: {}", "", tie.path.name(), shown.join(", "));
            let _ = match more.len() {
                0 => writeln!(out),
                n => writeln!(out, ", and {n} more"),
            };
        }
    }
    for (path, why) in advice.ranks.rankings.first().map_or(&[][..], |r| &r.absent[..]) {
        let why = impossible(topology, [advice.gpu, advice.nic], *path, why);
        let _ = writeln!(out, "{:32}no {}: {}", "", path.name(), one_line(&why));
    }
    let pulls =
        |r: &&Ranking| r.paths.first().is_some_and(|p| p.0 == bellpush::pcie::sim::PathModel::Pull);
    if let Some(roots) = unknown_reads(topology, advice)
        && let Some(r) = advice.ranks.rankings.iter().find(pulls)
    {
        let next = r.paths.get(1).map_or("none", |p| p.0.name());
        let _ = writeln!(
            out,
            "{:32}peer reads of {}: unknown, taken as allowed; where they are refused there is no \
             pull: {next} for {}",
            "",
            roots,
            goal(r.goal)
        );
    }
}

fn causes(all: &[Advice]) -> Vec<&HangsOn> {
    let mut found: Vec<&HangsOn> = Vec::new();
    for cause in all.iter().flat_map(|a| &a.ranks.hangs_on) {
        if !found.contains(&cause) {
            found.push(cause);
        }
    }
    found
}

/// What the command prints.
pub fn text(topology: &Topology, all: &All, basis: &Basis) -> String {
    let mut out = String::new();
    for (why, text) in [
        (
            Without::Rdma,
            "pairs without an RDMA NIC: no advice (--nic takes every NIC for one).".into(),
        ),
        (Without::Link, "pairs without prediction: a link is not known.".to_owned()),
        (Without::Class, "pairs without prediction: the class is not known.".into()),
        (
            Without::Kinds,
            format!(
                "pairs without prediction: they are of more than {MOST_KINDS} different kinds."
            ),
        ),
    ] {
        let pairs = all.without.iter().filter(|(_, own)| *own == why).count();
        if pairs > 0 {
            let _ = writeln!(out, "{pairs} {text}");
        }
    }
    if all.of.is_empty() {
        return out;
    }
    let percent = MOVE * 100.0;
    let _ = writeln!(out, "Advice for --nic {} ({}).", basis.nic, basis.why);
    let _ = writeln!(out, "Modelled is {}.", basis.nic.text());
    let _ = writeln!(
        out,
        "us to the completion that the sender sees, and GB/s of eight operations of 64 KiB; \
         [least, most] with any one\nassumed or fitted number {percent:.0} % less or more. Behind a \
         number stands the weakest of what it hangs on: m measured, r read,\nf fitted, a assumed, \
         u unknown. tie: with one number moved the other is no more than {:.0} % worse.",
        EQUAL * 100.0
    );
    let mut priced: Vec<(String, Vec<String>)> = Vec::new();
    for advice in &all.of {
        let nic = one_line(&topology.node(advice.nic).id);
        let text = basis.priced_as(topology, advice.nic);
        match priced.iter_mut().find(|(other, _)| *other == text) {
            Some((_, nics)) if nics.contains(&nic) => {}
            Some((_, nics)) => nics.push(nic),
            None => priced.push((text, vec![nic])),
        }
    }
    for (text, nics) in priced {
        let _ = writeln!(out, "{}: times are those of {text}.", nics.join(", "));
    }
    for advice in &all.of {
        pair_text(topology, advice, basis, &mut out);
    }
    let measured = bellpush::pcie::sim::CALIBRATION.iter().map(|c| c.parameter);
    let measured: Vec<String> = measured
        .filter(|name| basis.origins.of(name) == Origin::Measured)
        .filter_map(|name| Some(format!("{name} {:.4}", basis.params.get(name)?)))
        .collect();
    if !measured.is_empty() {
        let _ = writeln!(out, "measured, not moved: {}.", measured.join(", "));
    }
    let causes = causes(&all.of);
    for origin in [Origin::Assumed, Origin::Fitted] {
        let named: Vec<String> = causes
            .iter()
            .filter(|c| c.origin == origin)
            .map(|c| c.value.map_or(c.name.clone(), |v| format!("{} {v}", c.name)))
            .collect();
        if !named.is_empty() {
            let _ = writeln!(out, "{origin}: {}.", named.join(", "));
        }
    }
    out
}

/// The advice of one pair as data.
pub fn rows(topology: &Topology, all: &All, gpu: NodeId, nic: NodeId) -> Vec<Value> {
    let own = all.of.iter().filter(|a| a.gpu == gpu && a.nic == nic);
    own.flat_map(|a| &a.ranks.rankings).map(|r| row(topology, [gpu, nic], r)).collect()
}

fn row(topology: &Topology, pair: [NodeId; 2], r: &Ranking) -> Value {
    let why = |(path, error): &_| (*path, impossible(topology, pair, *path, error));
    let absent: Vec<_> = r.absent.iter().map(why).collect();
    let figures: serde_json::Map<String, Value> =
        r.paths.iter().map(|(path, f)| (path.name().to_owned(), json!(f))).collect();
    let (bytes, unit) = match r.goal {
        Goal::Latency(bytes) => (json!(bytes), "ns"),
        Goal::Rate => (Value::Null, "GB/s"),
    };
    json!({
        "bytes": bytes, "unit": unit, "path": r.paths.first().map(|p| p.0.name()),
        "figures": figures, "ties": r.ties, "absent": absent,
    })
}

/// The numbers that the advice hangs on.
pub fn basis_json(all: &All, basis: &Basis) -> Value {
    json!({ "nic": basis.nic, "why": basis.why, "hangs_on": causes(&all.of) })
}
