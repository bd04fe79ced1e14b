//! Studies with the simulation: sweeps, crossings, losses and their causes, sensitivity.

use super::build::MTU_BYTES;
use super::ops::period;
use super::{EQUAL, Params, PathModel, Prediction, SimError, TestBedSpec, predict};
use crate::topology::{Distance, NodeId, Topology};

/// More slots than any window needs: 4 TiB of a wire of seconds.
const MOST_SLOTS: u64 = 1 << 30;

/// One point of a sweep.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SweepRow {
    /// Topology.
    pub topology: String,
    /// Distance between GPU and NIC.
    pub distance: Distance,
    /// Path.
    pub path: PathModel,
    /// Payload, bytes.
    pub bytes: u32,
    /// Prediction; `None` where the path cannot carry the payload.
    pub prediction: Option<Prediction>,
    /// Reason why there is no prediction.
    pub why_not: Option<String>,
}

/// Predicts every path and size.
pub fn sweep(
    spec: TestBedSpec<'_>,
    paths: &[PathModel],
    sizes: &[u32],
    in_flight: u32,
) -> Vec<SweepRow> {
    let mut rows = Vec::new();
    for &path in paths {
        for &bytes in sizes {
            let (prediction, why_not) = match predict(spec, path, bytes, in_flight) {
                Ok(Some(p)) => (Some(p), None),
                Ok(None) => (None, Some("too large for this path".to_owned())),
                Err(e) => (None, Some(impossible(spec.topology, [spec.gpu, spec.nic], path, &e))),
            };
            rows.push(SweepRow {
                topology: spec.topology.name.clone(),
                distance: spec.topology.distance(spec.gpu, spec.nic),
                path,
                bytes,
                prediction,
                why_not,
            });
        }
    }
    rows
}

/// Why a path does not exist between a GPU and a NIC: the root complex that refuses, by its name.
pub fn impossible(
    t: &Topology,
    [gpu, nic]: [NodeId; 2],
    path: PathModel,
    error: &SimError,
) -> String {
    let (to_nic, to_gpu) = (t.route(gpu, nic), t.route(nic, gpu));
    let said =
        |what: &str, n: NodeId| format!("not possible: {} refuses peer {what}", t.node(n).id);
    let text = match error {
        SimError::NoPeerReads { .. } => to_gpu.refuses_reads(t).map(|n| said("reads", n)),
        SimError::NoPeerWrites { .. } => {
            // All but staged ring a doorbell, and push writes into the window.
            let own = to_nic.refuses_writes(t).filter(|_| path != PathModel::Staged);
            let landing = to_gpu.refuses_writes(t).map(|n| {
                format!("{}, which the receiving NIC makes into its GPU", said("writes", n))
            });
            own.map(|n| said("writes", n)).or(landing)
        }
        _ => None,
    };
    text.unwrap_or_else(|| error.to_string())
}

/// A pair of paths that change order between two sizes of a sweep.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Crossing {
    /// The path that is faster up to `below_bytes`.
    pub small: PathModel,
    /// The path that is faster from `above_bytes`.
    pub large: PathModel,
    /// Last size at which `small` is faster.
    pub below_bytes: u32,
    /// First size at which `large` is faster.
    pub above_bytes: u32,
}

/// Crossings of completion latency, for every pair of paths of one topology's sweep.
pub fn crossings(rows: &[SweepRow]) -> Vec<Crossing> {
    let ns = |path: PathModel, bytes: u32| {
        rows.iter()
            .find(|r| r.path == path && r.bytes == bytes)
            .and_then(|r| r.prediction.map(|p| p.completed_ns))
    };
    let mut sizes: Vec<u32> = rows.iter().map(|r| r.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut found = Vec::new();
    for (i, &a) in PathModel::ALL.iter().enumerate() {
        for &b in &PathModel::ALL[i + 1..] {
            for pair in sizes.windows(2) {
                let all = (ns(a, pair[0]), ns(b, pair[0]), ns(a, pair[1]), ns(b, pair[1]));
                let (Some(a0), Some(b0), Some(a1), Some(b1)) = all else { continue };
                if (a0 < b0) != (a1 < b1) {
                    let (small, large) = if a0 < b0 { (a, b) } else { (b, a) };
                    let (below_bytes, above_bytes) = (pair[0], pair[1]);
                    found.push(Crossing { small, large, below_bytes, above_bytes });
                }
            }
        }
    }
    found
}

/// Cause of a loss of push, found by its removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Cause {
    /// The fence before the doorbell waits for a round trip.
    Fence,
    /// A root complex cuts peer writes into small TLPs.
    RootComplexCut,
    /// A root complex caps peer traffic.
    RootComplexCap,
    /// The interconnect between sockets is capped.
    SocketCap,
    /// The doorbell waits until a whole segment is in the window.
    Segment,
    /// The window is too small for the distance.
    Window,
    /// Too few SMs issue stores.
    SmTime,
    /// A GPU's stores make TLPs of 128 B; a NIC's reads make completions of 256 B.
    StoreTlp,
    /// Sequence numbers take room in every line.
    LineFormat,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 9] = [
        Self::Fence,
        Self::Segment,
        Self::RootComplexCut,
        Self::RootComplexCap,
        Self::SocketCap,
        Self::Window,
        Self::SmTime,
        Self::StoreTlp,
        Self::LineFormat,
    ];

    /// The cause in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Fence => "the fence before the doorbell waits for a round trip",
            Self::RootComplexCut => "the root complex cuts peer writes into 64 B TLPs",
            Self::RootComplexCap => "the root complex caps peer traffic",
            Self::SocketCap => "the socket interconnect is capped",
            Self::Segment => "nothing is sent until a whole segment lies in the window",
            Self::Window => "the window is too small for the distance",
            Self::SmTime => "too few SMs store",
            Self::StoreTlp => "stores make 128 B TLPs, completions up to MPS",
            Self::LineFormat => "every line carries a sequence",
        }
    }

    fn take_away(self, topology: &mut Topology, p: &mut Params) {
        match self {
            Self::Fence => p.fence_pcie_ns = 0.0,
            Self::RootComplexCut => *topology = topology.map_p2p(|p| p.tlp_bytes = None),
            // A number in the file, however large, goes before the CPU's profile.
            Self::RootComplexCap => {
                *topology = topology.map_p2p(|p| p.cap_gb_per_s = Some(f64::INFINITY));
            }
            Self::SocketCap => *topology = topology.scale_interconnects(10.0),
            Self::Segment => p.segment_kib = p.segment_kib.min(16.0),
            Self::Window => p.window_kib *= 64.0,
            Self::SmTime => p.blocks = p.blocks.max(64.0),
            Self::StoreTlp => p.store_tlp_bytes = 256.0,
            Self::LineFormat => p.inband_data_bytes = 64.0,
        }
    }
}

/// A case in which push is slower.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Loss {
    /// Topology.
    pub topology: String,
    /// The slower push path.
    pub push: PathModel,
    /// The faster path.
    pub against: PathModel,
    /// Payload, bytes.
    pub bytes: u32,
    /// Whether the comparison is of bandwidth; else of latency.
    pub throughput: bool,
    /// Ratio by which push is worse.
    pub ratio: f64,
    /// Causes whose removal helps push, best first. The number is push's time (or inverse
    /// bandwidth) without the cause, relative to its time with it.
    pub causes: Vec<(Cause, f64)>,
}

fn cost(p: Prediction, throughput: bool) -> f64 {
    if throughput { 1.0 / p.gb_per_s } else { p.completed_ns }
}

/// Of two that are as good as equal it is always the same one.
fn is_better(theirs: f64, best: f64) -> bool {
    theirs * (1.0 + EQUAL) < best
}

fn is_loss(mine: f64, theirs: f64) -> bool {
    mine > theirs * 1.02
}

/// All cases among the sizes in which a push path is more than 2 % worse than the better of pull
/// and staged; of two within [`EQUAL`] than pull.
pub fn losses(
    spec: TestBedSpec<'_>,
    sizes: &[u32],
    in_flight: u32,
    throughput: bool,
) -> Result<Vec<Loss>, SimError> {
    let mut found = Vec::new();
    for &bytes in sizes {
        let mut best: Option<(PathModel, f64)> = None;
        for other in [PathModel::Pull, PathModel::Staged] {
            // A path that does not exist cannot be faster.
            let Ok(Some(theirs)) = predict(spec, other, bytes, in_flight) else { continue };
            let theirs = cost(theirs, throughput);
            if best.is_none_or(|(_, b)| is_better(theirs, b)) {
                best = Some((other, theirs));
            }
        }
        let Some((against, theirs)) = best else { continue };
        for push in [PathModel::PushKernel, PathModel::PushInband, PathModel::PushBlueflame] {
            let Some(mine) = predict(spec, push, bytes, in_flight)? else { continue };
            let mine = cost(mine, throughput);
            if !is_loss(mine, theirs) {
                continue;
            }
            let mut causes = Vec::new();
            for cause in Cause::ALL {
                let (mut topology, mut params) = (spec.topology.clone(), spec.params.clone());
                cause.take_away(&mut topology, &mut params);
                if topology == *spec.topology && params == *spec.params {
                    continue;
                }
                let without = TestBedSpec { topology: &topology, params: &params, ..spec };
                if let Some(p) = predict(without, push, bytes, in_flight)? {
                    let left = cost(p, throughput) / mine;
                    if left < 0.98 {
                        causes.push((cause, left));
                    }
                }
            }
            causes.sort_by(|a, b| a.1.total_cmp(&b.1));
            let topology = spec.topology.name.clone();
            let ratio = mine / theirs;
            found.push(Loss { topology, push, against, bytes, throughput, ratio, causes });
        }
    }
    Ok(found)
}

/// Effect of a parameter on a conclusion.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SensitivityRow {
    /// Parameter.
    pub parameter: &'static str,
    /// Time of push over time of the other path, with the parameter 30 % lower, unchanged, 30 %
    /// higher.
    pub ratio: [f64; 3],
    /// Whether the faster path changes.
    pub flips: bool,
}

/// Whether one of the outer two has another side of 1 than the middle one.
fn flips(ratio: [f64; 3]) -> bool {
    ratio.iter().any(|r| (*r < 1.0) != (ratio[1] < 1.0))
}

/// Changes every parameter by ±30 % and compares two paths. Rows are sorted by effect.
pub fn sensitivity(
    spec: TestBedSpec<'_>,
    push: PathModel,
    other: PathModel,
    bytes: u32,
) -> Result<Vec<SensitivityRow>, SimError> {
    let ratio = |params: &Params| -> Result<f64, SimError> {
        let spec = TestBedSpec { params, ..spec };
        let ns = |path| {
            Ok::<_, SimError>(predict(spec, path, bytes, 1)?.map_or(f64::NAN, |p| p.completed_ns))
        };
        Ok(ns(push)? / ns(other)?)
    };
    let base = ratio(spec.params)?;
    let mut rows = Vec::new();
    for &parameter in Params::NAMES {
        let mut at = [base; 3];
        for (i, factor) in [(0, 0.7), (2, 1.3)] {
            if let Some(params) = spec.params.scaled(parameter, factor) {
                at[i] = ratio(&params)?;
            }
        }
        rows.push(SensitivityRow { parameter, ratio: at, flips: flips(at) });
    }
    let effect = |r: &SensitivityRow| (r.ratio[0] - base).abs().max((r.ratio[2] - base).abs());
    rows.sort_by(|a, b| effect(b).total_cmp(&effect(a)));
    Ok(rows)
}

/// Window that keeps the wire busy, in bytes: the wire's bandwidth times the simulated time until a
/// slot's credit returns, and the slots that wait for the CQE which gives theirs back too. `None` where a root complex lets no push through.
///
/// # Errors
/// [`SimError`], but for refusals.
pub fn window_needed_bytes(spec: TestBedSpec<'_>) -> Result<Option<u64>, SimError> {
    // 4 KiB occupy a slot from the first store to the completion that the GPU sees.
    let away = match predict(spec, PathModel::PushInband, 4096, 1) {
        Err(SimError::NoPeerReads { .. } | SimError::NoPeerWrites { .. }) => return Ok(None),
        away => away?.map_or(0.0, |p| p.completed_ns),
    };
    let away = (away * spec.params.wire_gb_per_s).ceil() as u64;
    let slots = away.div_ceil(MTU_BYTES.into()).clamp(1, MOST_SLOTS) as u32;
    let needed = (slots..).find(|&n| n - (period(n) - 1) >= slots);
    Ok(needed.map(|n| away + u64::from(n - slots) * u64::from(MTU_BYTES)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::builtin;

    fn with<T>(name: &str, params: &Params, f: impl FnOnce(TestBedSpec<'_>) -> T) -> T {
        let t = builtin(name).unwrap();
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        f(TestBedSpec { topology: &t, gpu, nic, params, seed: 1 })
    }

    #[test]
    fn losses_name_the_fence() {
        let p = Params::default();
        let found = with("two-root-complexes", &p, |s| losses(s, &[64], 1, false).unwrap());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].push, found[0].causes[0].0), (PathModel::PushKernel, Cause::Fence));
    }

    #[test]
    fn losses_name_the_window() {
        let far = Params { wire_ns: 20_000.0, window_kib: 128.0, ..Params::default() };
        let found = with("same-switch", &far, |s| losses(s, &[1 << 20], 4, true).unwrap());
        let inband = found.iter().find(|l| l.push == PathModel::PushInband).unwrap();
        assert_eq!(inband.causes[0].0, Cause::Window, "{inband:?}");
    }

    #[test]
    fn a_path_that_is_refused_names_who_refuses() {
        let p = Params::default();
        let paths = [PathModel::Pull, PathModel::PushKernel];
        let rows = with("desktop", &p, |s| sweep(s, &paths, &[4096], 1));
        assert_eq!(rows[0].why_not.as_deref(), Some("not possible: rc0 refuses peer reads"));
        assert!(rows[1].prediction.is_some() && rows[1].why_not.is_none());
        assert!(with("desktop", &p, window_needed_bytes).unwrap().is_some());
        let t = builtin("desktop").unwrap().map_p2p(|p2p| p2p.writes = Some(false));
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        let spec = TestBedSpec { topology: &t, gpu, nic, params: &p, seed: 1 };
        assert_eq!(window_needed_bytes(spec).unwrap(), None, "no push");
    }

    #[test]
    fn crossings_are_where_the_order_changes() {
        let p = Params::default();
        let sizes = [64, 4096, 65536, 1 << 20];
        let rows = with("same-switch", &p, |s| sweep(s, &PathModel::ALL, &sizes, 1));
        let found = crossings(&rows);
        for c in &found {
            let ns = |path, bytes| {
                let row = rows.iter().find(|r| r.path == path && r.bytes == bytes).unwrap();
                row.prediction.unwrap().completed_ns
            };
            assert!(ns(c.small, c.below_bytes) < ns(c.large, c.below_bytes));
            assert!(ns(c.small, c.above_bytes) >= ns(c.large, c.above_bytes));
        }
    }

    #[test]
    fn the_window_that_is_needed_is_enough() {
        let p = Params { wire_ns: 10_000.0, ..Params::default() };
        let need = with("same-root-complex", &p, |s| window_needed_bytes(s).unwrap());
        let rate = |kib: f64| {
            let params = Params { window_kib: kib, ..p.clone() };
            with("same-root-complex", &params, |s| {
                predict(s, PathModel::PushInband, 1 << 20, 4).unwrap().unwrap().gb_per_s
            })
        };
        let kib = need.unwrap() as f64 / 1024.0;
        let (enough, half) = (rate(kib * 1.1), rate(kib / 2.0));
        assert!(enough > 42.0, "{enough} with {kib} KiB");
        assert!(half < 0.62 * enough, "{half}");
    }

    #[test]
    fn sensitivity_moves_the_fence() {
        let p = Params::default();
        let rows = with("same-switch", &p, |s| {
            sensitivity(s, PathModel::PushKernel, PathModel::Pull, 64).unwrap()
        });
        let fence = rows.iter().find(|r| r.parameter == "fence_pcie_ns").unwrap();
        assert!(fence.ratio[0] < fence.ratio[1] && fence.ratio[1] < fence.ratio[2]);
        assert_eq!(rows.len(), Params::NAMES.len());
        let ns = |path| {
            with("same-switch", &p, |s| predict(s, path, 64, 1).unwrap().unwrap().completed_ns)
        };
        let base = ns(PathModel::PushKernel) / ns(PathModel::Pull);
        assert!(rows.iter().all(|r| r.ratio[1] == base));
        let effect = |r: &SensitivityRow| {
            let moved = |side: usize| (r.ratio[side] - base).abs();
            moved(0).max(moved(2))
        };
        assert!(rows.is_sorted_by(|a, b| effect(a) >= effect(b)));
    }

    #[test]
    fn equal_is_neither_better_nor_a_loss() {
        assert!(
            is_better(980.0, 1000.0) && !is_better(995.0, 1000.0) && !is_better(1005.0, 1000.0)
        );
        assert!(is_loss(1030.0, 1000.0) && !is_loss(1010.0, 1000.0) && !is_loss(990.0, 1000.0));
        for (ratio, flip) in [
            ([0.9, 1.1, 1.2], true),
            ([1.2, 1.1, 0.9], true),
            ([0.9, 0.95, 1.05], true),
            ([1.1, 1.1, 1.1], false),
            ([0.8, 0.9, 0.95], false),
            ([1.0, 1.1, 1.2], false),
            ([1.0, 1.0, 1.1], false),
        ] {
            assert_eq!(flips(ratio), flip, "{ratio:?}");
        }
    }

    /// In-band lines that the NIC looks for in a tenth of a millisecond lose against what is better
    /// of pull and staged, by their ratio; a capped root complex is a part of it.
    #[test]
    fn a_loss_is_against_the_better_path() {
        let p = Params { nic_scan_ns: 100_000.0, ..Params::default() };
        let inband = |name: &str, bytes| {
            with(name, &p, |s| {
                let mut found = losses(s, &[bytes], 1, false).unwrap();
                found.retain(|l| l.push == PathModel::PushInband);
                let loss = found.remove(0);
                let ns = |path| predict(s, path, bytes, 1).unwrap().unwrap().completed_ns;
                assert_eq!(loss.ratio, ns(PathModel::PushInband) / ns(loss.against), "{loss:?}");
                loss.against
            })
        };
        assert_eq!(inband("same-switch", 64), PathModel::Pull);
        assert_eq!(inband("two-root-complexes-slow-reads", 64 << 10), PathModel::Staged);
        let capped = builtin("two-root-complexes").unwrap();
        let capped = capped.map_p2p(|p2p| p2p.cap_gb_per_s = Some(1.0));
        let (gpu, nic) = (capped.find("gpu0").unwrap(), capped.find("nic0").unwrap());
        let spec = TestBedSpec { topology: &capped, gpu, nic, params: &p, seed: 1 };
        let found = losses(spec, &[64 << 10], 1, false).unwrap();
        let loss = found.iter().find(|l| l.push == PathModel::PushInband).unwrap();
        assert!(loss.causes.iter().any(|c| c.0 == Cause::RootComplexCap), "{loss:?}");
    }

    #[test]
    fn a_cause_is_taken_away_and_has_its_words() {
        let mut t = builtin("same-switch").unwrap();
        let mut p = Params { window_kib: 256.0, ..Params::default() };
        Cause::Window.take_away(&mut t, &mut p);
        assert_eq!(p.window_kib, 16384.0);
        let mut texts = Cause::ALL.map(Cause::text).to_vec();
        texts.sort_unstable();
        texts.dedup();
        assert!(texts.len() == Cause::ALL.len() && texts.iter().all(|t| t.len() > 9));
    }

    #[test]
    fn writes_that_are_refused_name_whose() {
        let t = builtin("desktop").unwrap().map_p2p(|p2p| p2p.writes = Some(false));
        let ends = [t.find("gpu0").unwrap(), t.find("nic0").unwrap()];
        let error = SimError::NoPeerWrites { from: 0, to: 1 };
        let said = |path| impossible(&t, ends, path, &error);
        let refused = "not possible: rc0 refuses peer writes";
        assert_eq!(said(PathModel::PushKernel), refused);
        let landing = format!("{refused}, which the receiving NIC makes into its GPU");
        assert_eq!(said(PathModel::Staged), landing);
    }

    /// Two paths at three sizes, ns: where the order changes, and where one catches up.
    #[test]
    fn crossings_are_found_between_sizes() {
        let p = Params::default();
        let rows = with("same-switch", &p, |s| {
            sweep(s, &[PathModel::PushBlueflame, PathModel::Pull], &[8, 16, 64], 1)
        });
        let with_ns = |ns: [f64; 6]| {
            let mut rows = rows.clone();
            for (row, ns) in rows.iter_mut().zip(ns) {
                row.prediction.as_mut().unwrap().completed_ns = ns;
            }
            crossings(&rows)
        };
        let (flame, pull) = (PathModel::PushBlueflame, PathModel::Pull);
        let crossing = |small, large, below_bytes, above_bytes| Crossing {
            small,
            large,
            below_bytes,
            above_bytes,
        };
        assert_eq!(with_ns([1.0, 2.0, 4.0, 2.0, 3.0, 3.0]), [crossing(flame, pull, 16, 64)]);
        // What is equal is not faster.
        assert_eq!(with_ns([2.0, 1.0, 1.0, 2.0, 2.0, 2.0]), [crossing(pull, flame, 8, 16)]);
        assert_eq!(with_ns([1.0, 2.0, 3.0, 2.0, 2.0, 2.0]), [crossing(flame, pull, 8, 16)]);
    }

    /// The slots that a CQE gives back together wait for the last of them.
    #[test]
    fn a_period_of_slots_is_on_top_of_the_window() {
        let p = Params { wire_ns: 10_000.0, ..Params::default() };
        let (need, away) = with("same-root-complex", &p, |s| {
            let away = predict(s, PathModel::PushInband, 4096, 1).unwrap().unwrap().completed_ns;
            (window_needed_bytes(s).unwrap().unwrap(), (away * p.wire_gb_per_s).ceil() as u64)
        });
        let mtu = u64::from(MTU_BYTES);
        let (slots, more) = (away.div_ceil(mtu), (need - away) / mtu);
        assert_eq!(more, u64::from(period((slots + more) as u32)) - 1);
    }
}
