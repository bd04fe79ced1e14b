//! Whether a parameter has a part in what is simulated. Asked by the imprints of programs, so nothing
//! is run.

use super::copies::CopyQuestion;
use super::copy_sim::copy_imprint;
use super::flows::flows_imprint;
use super::h200::{curve_imprint, hop_imprint};
use super::ops::Operation;
use super::order_rows::order_imprint;
use super::peers::peer_imprint;
use super::{
    Flow, Goal, H200_CURVES, H200_HOPS, H200_THREADS, HopPath, IotlbSpec, Layout, NicModel,
    ORDER_ROWS, PEER_ROWS, Params, PathModel, SimError, TestBedSpec, copy_rows,
};
use crate::topology::{Knob, Topology, crossed};

/// Other values of a parameter: around the one that it has, around its default, and far from zero.
/// One value may be without effect where others are not, such as a segment larger than the window.
fn others(params: &Params, name: &str) -> Vec<Params> {
    let (least, most) = Params::range(name);
    let mut all = Vec::new();
    for own in [params, &Params::default()].into_iter().filter_map(|p| p.get(name)) {
        for value in [own, own / 2.0, own * 2.0, own + 100.0] {
            let value = if Params::is_count(name) { value.round() } else { value };
            let mut other = params.clone();
            other.get_mut(name).into_iter().for_each(|own| *own = value.clamp(least, most));
            all.push(other);
        }
    }
    all
}

fn has_part(params: &Params, name: &str, imprint: impl Fn(&Params) -> String) -> bool {
    let as_it_is = imprint(params);
    others(params, name).iter().any(|other| imprint(other) != as_it_is)
}

fn knob_has_part(topology: &Topology, knob: Knob, imprint: impl Fn(&Topology) -> String) -> bool {
    let as_it_is = imprint(topology);
    let others = knob.extremes().into_iter().filter_map(|value| topology.with(knob, value));
    others.into_iter().any(|other| imprint(&other) != as_it_is)
}

/// Whether a parameter has a part in an operation, alone or with others in flight.
pub fn has_part_in_operation(
    spec: TestBedSpec<'_>,
    path: PathModel,
    (bytes, in_flight): (u32, u32),
    name: &str,
) -> bool {
    path.carries(bytes)
        && [1, in_flight].into_iter().any(|window| {
            has_part(spec.params, name, |params| {
                let spec = TestBedSpec { params, ..spec };
                Operation::new(spec, Layout::Best, path, bytes, window).imprint()
            })
        })
}

/// Whether a number of the whole topology has a part in an operation, alone or with others in flight.
pub fn knob_has_part_in_operation(
    spec: TestBedSpec<'_>,
    path: PathModel,
    (bytes, in_flight): (u32, u32),
    knob: Knob,
) -> bool {
    path.carries(bytes)
        && [1, in_flight].into_iter().any(|window| {
            knob_has_part(spec.topology, knob, |topology| {
                let spec = TestBedSpec { topology, ..spec };
                Operation::new(spec, Layout::Best, path, bytes, window).imprint()
            })
        })
}

/// Whether a parameter has a part in what [`rank`](super::rank) ranks by these goals.
pub fn has_part_in_ranks(spec: TestBedSpec<'_>, nic: NicModel, goals: &[Goal], name: &str) -> bool {
    let cases = goals.iter().flat_map(|g| nic.paths().iter().map(move |&path| (path, g.load())));
    cases.into_iter().filter(|(path, (bytes, _))| path.carries(*bytes)).any(
        |(path, (bytes, window))| {
            has_part(spec.params, name, |params| {
                let spec = TestBedSpec { params, ..spec };
                Operation::new(spec, nic.layout(), path, bytes, window).imprint()
            })
        },
    )
}

/// Whether a parameter has a part in flows: streams, or messages of so many bytes.
pub fn has_part_in_flows(
    topology: &Topology,
    params: &Params,
    flows: &[Flow],
    message_bytes: Option<u32>,
    name: &str,
) -> bool {
    has_part(params, name, |params| flows_imprint(topology, params, flows, message_bytes))
}

/// Whether a number of the whole topology has a part in streams.
pub(super) fn knob_has_part_in_flows(
    (topology, params): (&Topology, &Params),
    flows: &[Flow],
    knob: Knob,
) -> bool {
    knob_has_part(topology, knob, |topology| flows_imprint(topology, params, flows, None))
}

/// Whether a number of the whole topology has a part in streams of writes whose rates are computed: whether one of its
/// extremes gives another way, or another rate on a link of it.
pub(super) fn knob_has_part_in_computed(topology: &Topology, flows: &[Flow], knob: Knob) -> bool {
    let ends: Vec<_> = flows.iter().map(|flow| (flow.from, flow.to)).collect();
    knob_has_part(topology, knob, |topology| format!("{:?}", crossed(topology, &ends)))
}

/// The rows that the model is compared with, as far as parameters have a part in them: those of
/// pcie-bench's hosts without an IOMMU have numbers of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compared {
    /// Every row.
    All,
    /// Those of [`leave_one_out`](super::leave_one_out).
    Fitted,
    /// Those of [`derivatives`](super::derivatives).
    Derivatives,
}

/// Whether a parameter has a part in rows.
///
/// # Errors
/// As the simulation's.
pub fn has_part_in_rows(params: &Params, rows: Compared, name: &str) -> Result<bool, SimError> {
    let curves = H200_CURVES.into_iter().map(|r| (r.curve, r.blocks, 512));
    let threads = H200_THREADS.into_iter().map(|(curve, threads, _)| (curve, 1, threads));
    let all_curves = rows != Compared::Derivatives;
    for (curve, blocks, threads) in curves.chain(threads.filter(|_| all_curves)) {
        if has_part(params, name, |p| curve_imprint(p, curve, blocks, threads)) {
            return Ok(true);
        }
    }
    // The pages are those of each row's window.
    let iommu = |p: &Params| format!("{:?}", IotlbSpec { pages: 1, ..IotlbSpec::of(p) });
    if has_part(params, name, iommu) {
        return Ok(true);
    }
    if rows == Compared::Derivatives {
        return Ok(false);
    }
    for r in H200_HOPS {
        for path in [HopPath::Push, HopPath::Pull, HopPath::Inband] {
            if has_part(params, name, |p| hop_imprint(p, path, r.bytes, r.pcie)) {
                return Ok(true);
            }
        }
    }
    if rows == Compared::Fitted {
        return Ok(false);
    }
    let peers = PEER_ROWS.iter().any(|r| has_part(params, name, |p| peer_imprint(p, r)));
    let orders =
        || ORDER_ROWS.iter().any(|r| has_part(params, name, |p| order_imprint(p, &r.machine)));
    // What many streams hang on, single ones of the same machines do.
    let single = |q| !matches!(q, CopyQuestion::EachToEach(..));
    let mut copies = copy_rows().filter(|r| single(r.question));
    let mut in_copies = || copies.any(|r| has_part(params, name, |p| copy_imprint(p, r)));
    Ok(peers || orders() || in_copies())
}

#[cfg(all(test, feature = "toml"))]
#[path = "part_tests.rs"]
mod tests;
