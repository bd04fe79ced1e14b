//! What decides a rate: the nearest limits, those of which a looser one raises it.

use super::ops::{Operation, loaded_runs};
use super::{
    EQUAL, Flow, Layout, Origins, Params, PathModel, SimError, TestBedSpec, flow_transmissions,
    simulate_flows,
};
use crate::Origin;
use crate::topology::{Guess, Kind, Knob, Limit, NodeId, Peer, RootProfile, Topology};

/// A limit, and where its number comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decides {
    /// Parameter, or what of the topology.
    pub name: &'static str,
    /// Where it comes from.
    pub origin: Origin,
}

/// Parameters that limit rates, and what makes each looser.
const LIMITS: [(&str, f64); 13] = [
    ("nic_tags", 2.0),
    ("copy_tags", 2.0),
    ("credit_tlps", 2.0),
    ("window_kib", 2.0),
    ("segment_kib", 2.0),
    ("wire_gb_per_s", 2.0),
    ("nic_memory_gb_per_s", 2.0),
    ("nic_message_ns", 0.5),
    ("iotlb_walk_ns", 0.5),
    ("write_buffer_ns", 2.0),
    ("blocks", 2.0),
    ("sm_port_gb_per_s", 2.0),
    ("sm_read_lines", 2.0),
];

/// The largest TLP that there is.
const MOST_TLP_BYTES: u32 = 4096;

/// More TLP transmissions of flows than this are not simulated again and again.
const MOST_FLOWS: f64 = 5e5;

/// Everything with one limit looser.
fn looser(
    topology: &Topology,
    params: &Params,
    origins: &Origins,
    ends: &[NodeId],
) -> Vec<(Decides, Topology, Params)> {
    let mut all = Vec::new();
    let guess = topology.guessed(Guess::Generation, true).is_some();
    if let Some(faster) = topology.with_faster_links() {
        let origin = if guess { Origin::Assumed } else { Origin::Read };
        all.push((Decides { name: "links", origin }, faster, params.clone()));
    }
    let roots = topology.of_kind(Kind::RootComplex);
    let of_profile = |&n: &NodeId| {
        let (p2p, profile) = topology.p2p_of(n);
        let is_seen = |limit| matches!(limit, Limit::Seen(_));
        let seen = |p: &RootProfile, of| is_seen(p.limit(of, "")) || is_seen(p.far_limit(of, ""));
        let own = topology.node(n).p2p;
        let has_limits = (p2p.limits(), p2p.far_limits()) != (own.limits(), own.far_limits());
        has_limits && profile.is_some_and(|p| seen(p, Peer::Reads) || seen(p, Peer::Writes))
    };
    let by_profile = if roots.iter().any(of_profile) { Origin::Fitted } else { Origin::Read };
    let cut = roots.iter().filter_map(|&n| Some(topology.cut_of(n)?.1)).max();
    let origin = cut.map_or(by_profile, |cut| cut.max(by_profile));
    let uncut = cut.map(|_| MOST_TLP_BYTES);
    let free = topology.map_p2p(|p| {
        (p.cap_gb_per_s, p.read_gb_per_s, p.write_gb_per_s) = (Some(f64::INFINITY), None, None);
        (p.far_read_gb_per_s, p.far_write_gb_per_s) = (None, None);
        (p.read_slots, p.read_bytes, p.tlp_bytes) = (None, None, uncut);
    });
    all.push((Decides { name: "root complex", origin }, free, params.clone()));
    if let Some(faster) = topology.with_faster_memory() {
        all.push((Decides { name: "memory", origin: Origin::Read }, faster, params.clone()));
    }
    let known = topology.interconnects().iter().filter(|link| link.origin != Origin::Unknown);
    if let Some(origin) = known.map(|link| link.origin).max() {
        let decides = Decides { name: "rate between sockets", origin };
        all.push((decides, topology.scale_interconnects(2.0), params.clone()));
    }
    if ends.iter().any(|&n| topology.node(n).link.is_some_and(|l| l.mrrs.bytes() < 4096))
        && let Some(larger) = topology.with(Knob::Mrrs, 4096.0)
    {
        let guess = topology.guessed(Guess::Mrrs, true).is_some();
        let origin = if guess { Origin::Assumed } else { Origin::Read };
        all.push((Decides { name: "MRRS", origin }, larger, params.clone()));
    }
    let packets = topology.of_kind(Kind::Gpu).into_iter().filter_map(|n| topology.packets_of(n));
    if let Some(origin) = packets.map(|packets| packets.1).max() {
        let larger = topology.map_packets(MOST_TLP_BYTES);
        all.push((Decides { name: "the GPUs' packets", origin }, larger, params.clone()));
    }
    for (name, factor) in LIMITS {
        let Some(params) = params.scaled(name, factor) else { continue };
        all.push((Decides { name, origin: origins.of(name) }, topology.clone(), params));
    }
    all
}

/// Limits of which a looser one raises the rate of an operation with so many in flight, the one
/// that raises it most first; none where times alone decide it. `None` where the path does not
/// carry the size.
///
/// # Errors
/// As [`predict`](super::predict).
pub fn decides(
    spec: TestBedSpec<'_>,
    origins: &Origins,
    path: PathModel,
    bytes: u32,
    in_flight: u32,
) -> Result<Option<Vec<Decides>>, SimError> {
    if !path.carries(bytes) {
        return Ok(None);
    }
    let operation =
        |spec: TestBedSpec<'_>| Operation::new(spec, Layout::Best, path, bytes, in_flight);
    let rate = |of: Operation| of.rate(loaded_runs(bytes, in_flight));
    let base = operation(spec);
    let (imprint, base) = (base.imprint_at_once(), rate(base)?);
    let mut found: Vec<(Decides, f64)> = Vec::new();
    for (limit, topology, params) in
        looser(spec.topology, spec.params, origins, &[spec.gpu, spec.nic])
    {
        let other = operation(TestBedSpec { topology: &topology, params: &params, ..spec });
        if other.imprint_at_once() != imprint {
            found.push((limit, rate(other)?));
        }
    }
    Ok(Some(nearest(found, base)))
}

/// The same of the sum of flows; `None` where they are too many to be simulated again.
///
/// # Errors
/// As [`simulate_flows`].
pub fn flows_decided(
    topology: &Topology,
    params: &Params,
    origins: &Origins,
    flows: &[Flow],
) -> Result<Option<Vec<Decides>>, SimError> {
    if flow_transmissions(topology, flows, None) > MOST_FLOWS {
        return Ok(None);
    }
    let sum = |t: &Topology, p: &Params| Ok(simulate_flows(t, p, flows)?.iter().sum::<f64>());
    let base = sum(topology, params)?;
    let ends: Vec<NodeId> = flows.iter().map(|f| f.ends().0).collect();
    let mut found = Vec::new();
    for (limit, t, p) in looser(topology, params, origins, &ends) {
        let has_part = super::flows::flows_imprint(&t, &p, flows, None)
            != super::flows::flows_imprint(topology, params, flows, None);
        if has_part {
            found.push((limit, sum(&t, &p)?));
        }
    }
    Ok(Some(nearest(found, base)))
}

/// Those that raise a rate by more than rates are equal by.
fn nearest(mut found: Vec<(Decides, f64)>, base: f64) -> Vec<Decides> {
    found.retain(|(_, rate)| *rate > base * (1.0 + EQUAL));
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found.into_iter().map(|(limit, _)| limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::builtin;

    fn first(topology: &str, path: PathModel, bytes: u32, params: &Params) -> Option<Decides> {
        let t = builtin(topology).unwrap();
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        let spec = TestBedSpec { topology: &t, gpu, nic, params, seed: 1 };
        let all = decides(spec, &Origins::default(), path, bytes, 8).unwrap().unwrap();
        all.first().cloned()
    }

    #[test]
    fn rates_name_their_nearest_limits() {
        let p = Params::default();
        let is = |name, origin| Some(Decides { name, origin });
        let pull = |topology, p: &Params| first(topology, PathModel::Pull, 64 << 10, p);
        assert_eq!(pull("same-switch", &p), is("wire_gb_per_s", Origin::Assumed));
        assert_eq!(pull("two-root-complexes-slow-reads", &p), is("root complex", Origin::Read));
        assert_eq!(pull("two-sockets", &p), is("rate between sockets", Origin::Assumed));
        let few = Params { nic_tags: 4.0, ..p.clone() };
        assert_eq!(pull("two-root-complexes", &few).unwrap().name, "MRRS");
        // Few small messages wait for times alone.
        assert_eq!(first("same-switch", PathModel::PushInband, 8, &p), None);
        let none = TestBedSpec {
            topology: &builtin("desktop").unwrap(),
            gpu: NodeId(0),
            nic: NodeId(0),
            params: &p,
            seed: 1,
        };
        let large = decides(none, &Origins::default(), PathModel::PushBlueflame, 4096, 8);
        assert_eq!(large, Ok(None), "does not carry it");
    }

    #[test]
    fn flows_name_their_nearest_limits() {
        let t = builtin("two-sockets").unwrap();
        let (gpu, far) = (t.find("gpu0").unwrap(), t.find("s1").unwrap());
        let p = Params::default();
        let limits = |flows: &[Flow]| flows_decided(&t, &p, &Origins::default(), flows).unwrap();
        let names = limits(&[Flow::write(gpu, far)]).unwrap();
        assert_eq!(names[0].name, "rate between sockets");
        let near = t.find("s0").unwrap();
        assert_eq!(limits(&[Flow::write(gpu, near)]).unwrap()[0].name, "links");
        let mut slow = t.clone();
        slow.limit_memory(near, Some(20.0), None);
        let of = |flow| flows_decided(&slow, &p, &Origins::default(), &[flow]).unwrap().unwrap();
        assert_eq!(of(Flow::read(near, gpu))[0].name, "memory");
        assert_eq!(of(Flow::write(gpu, near))[0].name, "links", "the other way has no limit");
        assert_eq!(limits(&[Flow::write(gpu, near); 64]), None, "too many");
    }

    /// A root complex's limits come from its CPU's family where that adds to what its file says.
    #[test]
    #[cfg(feature = "toml")]
    fn limits_of_a_family_are_fitted() {
        let origin = |t: &Topology| {
            let all = looser(t, &Params::default(), &Origins::default(), &[]);
            all.iter().find(|l| l.0.name == "root complex").unwrap().0.origin
        };
        let plain = builtin("two-root-complexes").unwrap();
        assert_eq!(origin(&plain), Origin::Read);
        let text = include_str!("../../machines/esc8000a-e13p.toml");
        let text = text.replace("AMD EPYC 9575F 64-Core Processor", "AMD EPYC 7261");
        let naples = crate::topology::from_toml(&text).unwrap();
        assert_eq!(origin(&naples), Origin::Fitted);
        let known = naples.map_p2p(|p| (p.writes, p.write_gb_per_s) = (Some(true), Some(20.0)));
        assert_eq!(origin(&known), Origin::Read);
    }

    #[test]
    fn the_nearest_limit_raises_a_rate_most() {
        let of = |name, rate| (Decides { name, origin: Origin::Read }, rate);
        let found = vec![of("equal", 1009.0), of("near", 1011.0), of("nearest", 2000.0)];
        let names: Vec<&str> = nearest(found, 1000.0).iter().map(|d| d.name).collect();
        assert_eq!(names, ["nearest", "near"]);
    }
}
