//! What the numbers of `bellpush sim` hang on: the nearest limits of its rates, and the numbers
//! that have a part in its times, each with where it comes from. `topo` marks every number by
//! itself.

use std::error::Error;

use bellpush::pcie::Origin;
use bellpush::pcie::sim::{
    Decides, Flow, Nearest, Origins, Params, PathModel, TestBedSpec, decides, flows_decided,
    has_part_in_operation,
};
use bellpush::pcie::topology::Topology;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Largest operation whose limits are looked for: larger ones take seconds each.
const MOST_BYTES: u32 = 64 << 10;

/// Where the parameters come from: what the command sets was read, what was measured on the machine
/// is said to be.
pub fn origins(sets: &[String], topology: &Topology) -> Origins {
    let mut origins = Origins::default();
    topology.measured().iter().for_each(|(name, _)| origins.set(name, Origin::Measured));
    for name in sets.iter().filter_map(|set| set.split_once('=')).map(|set| set.0) {
        origins.set(name, Origin::Read);
    }
    origins
}

fn listed(nearest: &Nearest) -> String {
    let names = |all: &[Decides]| -> Vec<String> {
        all.iter().map(|d| format!("{} ({})", d.name, d.origin.name())).collect()
    };
    match nearest {
        Nearest::Each(all) => names(all).join(", "),
        Nearest::Together(all) => format!("{}, none alone", names(all).join(" with ")),
        Nearest::Times => "times alone".to_owned(),
    }
}

/// Two lines under a table of operations.
pub fn operations(
    spec: TestBedSpec<'_>,
    origins: &Origins,
    (paths, sizes, in_flight): (&[PathModel], &[u32], u32),
) -> Result<String> {
    let small = sizes.iter().copied().min().unwrap_or(1);
    let bytes = sizes.iter().copied().filter(|&b| b <= MOST_BYTES).max().unwrap_or(small);
    let mut limits = Vec::new();
    for &path in paths {
        // A path that does not exist here has said so.
        let Ok(Some(found)) = decides(spec, origins, path, bytes, in_flight) else { continue };
        limits.push(format!("{}: {}", path.name(), listed(&found)));
    }
    let mut out = String::new();
    if !limits.is_empty() {
        let what = format!("{bytes} B, {in_flight} at once");
        out += &format!("nearest limits of the rate of {what}: {}.\n", limits.join("; "));
    }
    let has_part = |name: &&str| {
        paths.iter().any(|&path| has_part_in_operation(spec, path, (small, in_flight), name))
    };
    let with: Vec<&str> = Params::NAMES.iter().copied().filter(has_part).collect();
    let of = |origin: Origin| {
        let names: Vec<&str> =
            with.iter().copied().filter(|name| origins.of(name) == origin).collect();
        (!names.is_empty()).then(|| format!("{} {}", origin.name(), names.join(", ")))
    };
    let all = [Origin::Measured, Origin::Read, Origin::Fitted, Origin::Assumed].map(of);
    let all: Vec<String> = all.into_iter().flatten().collect();
    if !all.is_empty() {
        out += &format!("times of {small} B hang on: {}.\n", all.join("; "));
    }
    Ok(out)
}

/// What decides the sum of flows; `None` where they are too many.
pub fn flows(
    topology: &Topology,
    params: &Params,
    origins: &Origins,
    flows: &[Flow],
) -> Result<Option<String>> {
    Ok(flows_decided(topology, params, origins, flows)?.map(|all| listed(&all)))
}
