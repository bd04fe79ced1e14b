//! What decides a rate: the nearest limits, those of which a looser one raises it, or a set that does so together
//! where none does alone. Another set may do as well: the first limits of the list are tightened first.

use super::flows::flows_imprint;
use super::ops::{Operation, loaded_runs};
use super::{
    EQUAL, Flow, Layout, Origins, Params, PathModel, SimError, TestBedSpec, flow_transmissions,
    simulate_flows,
};
use crate::Origin;
use crate::topology::{Collapse, Guess, Kind, Knob, Limit, NodeId, Peer, RootProfile, Topology};

/// A limit, and where its number comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decides {
    /// Parameter, or what of the topology.
    pub name: &'static str,
    /// Where it comes from.
    pub origin: Origin,
}

/// The nearest limits of a rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nearest {
    /// Each raises it by itself, the first most.
    Each(Vec<Decides>),
    /// They raise it together, and none of them does without the others: limits that are equal hide each
    /// other.
    Together(Vec<Decides>),
    /// No limit: times alone decide it.
    Times,
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

/// What makes a limit looser.
type Change = Box<dyn Fn(&mut Topology, &mut Params)>;

/// A limit, and what makes it looser.
struct Looser {
    limit: Decides,
    change: Change,
}

/// What has a rate on a topology.
trait Rated {
    /// Rates of equal texts are equal.
    fn imprint(&self, topology: &Topology, params: &Params) -> String;
    /// The rate, GB/s.
    fn rate(&self, topology: &Topology, params: &Params) -> Result<f64, SimError>;
}

/// All limits, each with what makes it looser.
fn looser(topology: &Topology, origins: &Origins, ends: &[NodeId]) -> Vec<Looser> {
    let mut all = Vec::new();
    let mut add = |name, origin, change: Change| {
        all.push(Looser { limit: Decides { name, origin }, change });
    };
    let guess = topology.guessed(Guess::Generation, true).is_some();
    let guessed = |guess| if guess { Origin::Assumed } else { Origin::Read };
    if topology.with_faster_links().is_some() {
        let faster = |t: &mut Topology| *t = t.with_faster_links().expect("as before");
        add("links", guessed(guess), Box::new(move |t, _| faster(t)));
    }
    let (origin, cut) = of_roots(topology);
    let uncut = cut.then_some(MOST_TLP_BYTES);
    let free = move |t: &mut Topology| {
        *t = t.map_p2p(|p| {
            (p.cap_gb_per_s, p.read_gb_per_s, p.write_gb_per_s) = (Some(f64::INFINITY), None, None);
            (p.far_read_gb_per_s, p.far_write_gb_per_s) = (None, None);
            (p.read_slots, p.read_bytes, p.tlp_bytes) = (None, None, uncut);
        });
    };
    add("root complex", origin, Box::new(move |t, _| free(t)));
    if matches!(topology.collapse(), Collapse::Seen(_)) {
        add(
            "posted-write collapse",
            Origin::Read,
            Box::new(|t, _| t.set_collapse(Collapse::Absent)),
        );
    }
    if topology.with_faster_memory().is_some() {
        let faster = |t: &mut Topology| *t = t.with_faster_memory().expect("as before");
        add("memory", Origin::Read, Box::new(move |t, _| faster(t)));
    }
    let known = topology.interconnects().iter().filter(|link| link.origin != Origin::Unknown);
    if let Some(origin) = known.map(|link| link.origin).max() {
        add("rate between sockets", origin, Box::new(|t, _| *t = t.scale_interconnects(2.0)));
    }
    if ends.iter().any(|&n| topology.node(n).link.is_some_and(|l| l.mrrs.bytes() < 4096)) {
        let guess = topology.guessed(Guess::Mrrs, true).is_some();
        let larger = |t: &mut Topology| *t = t.with(Knob::Mrrs, 4096.0).expect("an MRRS");
        add("MRRS", guessed(guess), Box::new(move |t, _| larger(t)));
    }
    let packets = topology.of_kind(Kind::Gpu).into_iter().filter_map(|n| topology.packets_of(n));
    if let Some(origin) = packets.map(|packets| packets.1).max() {
        let larger = |t: &mut Topology| *t = t.map_packets(MOST_TLP_BYTES);
        add("the GPUs' packets", origin, Box::new(move |t, _| larger(t)));
    }
    for (name, factor) in LIMITS {
        let scale = move |p: &mut Params| *p.get_mut(name).expect("a parameter") *= factor;
        add(name, origins.of(name), Box::new(move |_, p| scale(p)));
    }
    all
}

/// Where the limits of root complexes come from, and whether any cuts what peers send.
fn of_roots(topology: &Topology) -> (Origin, bool) {
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
    (cut.map_or(by_profile, |cut| cut.max(by_profile)), cut.is_some())
}

/// An operation of which so many are in flight.
struct Operations<'a> {
    spec: TestBedSpec<'a>,
    path: PathModel,
    bytes: u32,
    in_flight: u32,
}

impl Operations<'_> {
    fn on(&self, topology: &Topology, params: &Params) -> Operation {
        let spec = TestBedSpec { topology, params, ..self.spec };
        Operation::new(spec, Layout::Best, self.path, self.bytes, self.in_flight)
    }
}

impl Rated for Operations<'_> {
    fn imprint(&self, topology: &Topology, params: &Params) -> String {
        self.on(topology, params).imprint_at_once()
    }

    fn rate(&self, topology: &Topology, params: &Params) -> Result<f64, SimError> {
        self.on(topology, params).rate(loaded_runs(self.bytes, self.in_flight))
    }
}

impl Rated for &[Flow] {
    fn imprint(&self, topology: &Topology, params: &Params) -> String {
        flows_imprint(topology, params, self, None)
    }

    fn rate(&self, topology: &Topology, params: &Params) -> Result<f64, SimError> {
        Ok(simulate_flows(topology, params, self)?.iter().sum())
    }
}

/// The nearest limits of the rate of an operation with so many in flight. `None` where the path does
/// not carry the size.
///
/// # Errors
/// As [`predict`](super::predict).
pub fn decides(
    spec: TestBedSpec<'_>,
    origins: &Origins,
    path: PathModel,
    bytes: u32,
    in_flight: u32,
) -> Result<Option<Nearest>, SimError> {
    if !path.carries(bytes) {
        return Ok(None);
    }
    let looser = looser(spec.topology, origins, &[spec.gpu, spec.nic]);
    let of = Operations { spec, path, bytes, in_flight };
    nearest(looser, (spec.topology, spec.params), &of).map(Some)
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
) -> Result<Option<Nearest>, SimError> {
    if flow_transmissions(topology, flows, None) > MOST_FLOWS {
        return Ok(None);
    }
    let ends: Vec<NodeId> = flows.iter().map(|f| f.ends().0).collect();
    nearest(looser(topology, origins, &ends), (topology, params), &flows).map(Some)
}

/// Those of the limits that raise a rate, alone or together.
fn nearest(
    looser: Vec<Looser>,
    (topology, params): (&Topology, &Params),
    of: &impl Rated,
) -> Result<Nearest, SimError> {
    let (base, known) = (of.rate(topology, params)?, of.imprint(topology, params));
    // The imprint and the rate with these limits looser; `None`: as the other imprint.
    let ask = |looser: &[&Looser], other: &str| -> Result<Option<(String, f64)>, SimError> {
        let (mut topology, mut params) = (topology.clone(), params.clone());
        looser.iter().for_each(|one| (one.change)(&mut topology, &mut params));
        let imprint = of.imprint(&topology, &params);
        let is_other = imprint != other;
        is_other.then(|| Ok((imprint, of.rate(&topology, &params)?))).transpose()
    };
    let mut found = Vec::new();
    for one in &looser {
        if let Some((_, rate)) = ask(&[one], &known)? {
            found.push((one.limit.clone(), rate));
        }
    }
    let each = raising(found, base);
    if !each.is_empty() {
        return Ok(Nearest::Each(each));
    }
    let mut kept: Vec<&Looser> = looser.iter().collect();
    let Some((mut imprint, rate)) = ask(&kept, &known)? else { return Ok(Nearest::Times) };
    if !raises(rate, base) {
        return Ok(Nearest::Times);
    }
    // Tightened one by one: what the rate can do without is left out.
    for one in &looser {
        let others: Vec<&Looser> =
            kept.iter().copied().filter(|kept| kept.limit != one.limit).collect();
        match ask(&others, &imprint)? {
            Some((_, rate)) if !raises(rate, base) => {}
            Some((other, _)) => (imprint, kept) = (other, others),
            None => kept = others,
        }
    }
    Ok(Nearest::Together(kept.into_iter().map(|one| one.limit.clone()).collect()))
}

/// Whether a rate is higher by more than rates are equal by.
fn raises(rate: f64, base: f64) -> bool {
    rate > base * (1.0 + EQUAL)
}

/// Those that raise a rate, the one that raises it most first.
fn raising(mut found: Vec<(Decides, f64)>, base: f64) -> Vec<Decides> {
    found.retain(|(_, rate)| raises(*rate, base));
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found.into_iter().map(|(limit, _)| limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::builtin;

    fn of(topology: &str, path: PathModel, bytes: u32, params: &Params) -> Nearest {
        let t = builtin(topology).unwrap();
        let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
        let spec = TestBedSpec { topology: &t, gpu, nic, params, seed: 1 };
        decides(spec, &Origins::default(), path, bytes, 8).unwrap().unwrap()
    }

    /// The names of limits each of which raises a rate.
    fn names(nearest: &Nearest) -> Vec<&'static str> {
        let Nearest::Each(all) = nearest else { panic!("{nearest:?}") };
        all.iter().map(|limit| limit.name).collect()
    }

    #[test]
    fn rates_name_their_nearest_limits() {
        let p = Params::default();
        let pull = |topology, p: &Params| of(topology, PathModel::Pull, 64 << 10, p);
        let first = |nearest: Nearest| match nearest {
            Nearest::Each(all) => (all[0].name, all[0].origin),
            other => panic!("{other:?}"),
        };
        assert_eq!(first(pull("same-switch", &p)), ("wire_gb_per_s", Origin::Assumed));
        assert_eq!(
            first(pull("two-root-complexes-slow-reads", &p)),
            ("root complex", Origin::Read)
        );
        assert_eq!(first(pull("two-sockets", &p)), ("rate between sockets", Origin::Assumed));
        let few = Params { nic_tags: 4.0, ..p.clone() };
        assert_eq!(names(&pull("two-root-complexes", &few))[0], "MRRS");
        // Few small messages wait for times alone.
        assert_eq!(of("same-switch", PathModel::PushInband, 8, &p), Nearest::Times);
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

    /// A NIC's tags and its wire are equal limits of a pull over two root complexes: neither shows beside
    /// the other.
    #[test]
    fn equal_limits_are_named_together() {
        let p = Params::default();
        let pull = |p: &Params| of("two-root-complexes", PathModel::Pull, 64 << 10, p);
        let Nearest::Together(both) = pull(&p) else { panic!("{:?}", pull(&p)) };
        let both: Vec<&str> = both.iter().map(|limit| limit.name).collect();
        assert_eq!(both, ["nic_tags", "wire_gb_per_s"]);
        let many = Params { nic_tags: 2.0 * p.nic_tags, ..p.clone() };
        assert_eq!(names(&pull(&many)), ["wire_gb_per_s"]);
        let fast = Params { wire_gb_per_s: 2.0 * p.wire_gb_per_s, ..p.clone() };
        let mut either = names(&pull(&fast));
        either.sort_unstable();
        assert_eq!(either, ["MRRS", "nic_tags"]);
    }

    /// What a platform loses by a collapse is decided by that alone.
    #[test]
    #[cfg(feature = "toml")]
    fn a_collapse_is_a_limit() {
        let text = include_str!("../../machines/esc8000a-e13p.toml");
        let t = crate::topology::from_toml(text).unwrap();
        let gpu = |id| t.find(id).unwrap();
        let flows = [("gpu0", "gpu4"), ("gpu1", "gpu6")];
        let flows = flows.map(|(from, to)| Flow::write(gpu(from), gpu(to)));
        let limits = |flows: &[Flow]| {
            flows_decided(&t, &Params::default(), &Origins::default(), flows).unwrap().unwrap()
        };
        assert_eq!(names(&limits(&flows)), ["posted-write collapse"]);
        assert!(!names(&limits(&flows[..1])).contains(&"posted-write collapse"));
    }

    #[test]
    fn flows_name_their_nearest_limits() {
        let t = builtin("two-sockets").unwrap();
        let (gpu, far) = (t.find("gpu0").unwrap(), t.find("s1").unwrap());
        let p = Params::default();
        let limits = |flows: &[Flow]| flows_decided(&t, &p, &Origins::default(), flows).unwrap();
        assert_eq!(names(&limits(&[Flow::write(gpu, far)]).unwrap())[0], "rate between sockets");
        let near = t.find("s0").unwrap();
        assert_eq!(names(&limits(&[Flow::write(gpu, near)]).unwrap())[0], "links");
        let mut slow = t.clone();
        slow.limit_memory(near, Some(20.0), None);
        let of = |flow| flows_decided(&slow, &p, &Origins::default(), &[flow]).unwrap().unwrap();
        assert_eq!(names(&of(Flow::read(near, gpu)))[0], "memory");
        assert_eq!(names(&of(Flow::write(gpu, near)))[0], "links", "the other way has no limit");
        assert_eq!(limits(&[Flow::write(gpu, near); 64]), None, "too many");
    }

    /// A root complex's limits come from its CPU's family where that adds to what its file says.
    #[test]
    #[cfg(feature = "toml")]
    fn limits_of_a_family_are_fitted() {
        let origin = |t: &Topology| {
            let all = looser(t, &Origins::default(), &[]);
            all.iter().find(|one| one.limit.name == "root complex").unwrap().limit.origin
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
        let names: Vec<&str> = raising(found, 1000.0).iter().map(|d| d.name).collect();
        assert_eq!(names, ["nearest", "near"]);
    }
}
