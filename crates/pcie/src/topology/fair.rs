//! What each of several flows has of the links that they share: by arithmetic, without a simulation.
//!
//! Rates are max-min fair: all rise alike until a link is full, those that cross it stay, the others
//! rise on. That is what switches and ports do that take turns among their inputs.

use super::load::{LoadError, answer_ms, links};
use super::model::{Kind, NodeId, Topology};

/// What several flows share, such as a direction of a link.
struct Shared {
    what: Narrowest,
    /// Time that 1 GB of each flow takes of it, ms.
    ms: Vec<f64>,
    /// Those whose data cross it; of the others it has DLLPs alone.
    flows: Vec<usize>,
    /// Those that wait behind its flows, and so rise no more once it is full; they take nothing of it.
    waiting: Vec<usize>,
    /// The fastest of them, GB/s: what all of them have together at most.
    gb_per_s: f64,
}

/// A rate that some of the flows have together at most.
pub(crate) struct Cap {
    /// Their places.
    pub flows: Vec<usize>,
    /// The rate, GB/s.
    pub gb_per_s: f64,
    /// Places of others that wait behind them: none has more than these have when they have no more.
    pub waiting: Vec<usize>,
}

impl Shared {
    fn new(what: Narrowest, flows: usize) -> Self {
        Self { what, ms: vec![0.0; flows], flows: Vec::new(), waiting: Vec::new(), gb_per_s: 0.0 }
    }

    /// A flow's data cross it, alone at `gb_per_s`.
    fn carry(&mut self, flow: usize, gb_per_s: f64) {
        self.ms[flow] += 1000.0 / gb_per_s;
        self.flows.push(flow);
        self.gb_per_s = self.gb_per_s.max(gb_per_s);
    }
}

/// What keeps a flow from more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Narrowest {
    /// This direction of a link; of a NIC's link, by its card's first port.
    Link(NodeId, NodeId),
    /// The wire of a NIC's port.
    Port(NodeId),
}

/// A link or a port that is full.
#[derive(Debug, Clone, PartialEq)]
pub struct Full {
    /// Which.
    pub what: Narrowest,
    /// Places of the flows whose data cross it.
    pub flows: Vec<usize>,
    /// What all of them have together at most, GB/s.
    pub gb_per_s: f64,
}

/// What one of several flows has.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// Its even share of what is full, GB/s: no bound, since it has more where another sends less than its own links
    /// carry, or smaller TLPs. Infinite where nothing is full.
    pub gb_per_s: f64,
    /// What keeps it from more.
    pub full: Option<Full>,
}

/// Rate of each flow of memory writes while all of them run, GB/s.
///
/// # Errors
/// An end that is none, a root complex that refuses, a link that is not known.
pub fn fair_rates(topology: &Topology, flows: &[(NodeId, NodeId)]) -> Result<Vec<f64>, LoadError> {
    let all = shared(topology, flows)?;
    Ok(fill(&all, flows.len()).into_iter().map(|(rate, _)| rate).collect())
}

/// The same where some sets of the flows have no more than a rate together.
///
/// # Errors
/// As [`fair_rates`].
pub(crate) fn fair_rates_within(
    topology: &Topology,
    flows: &[(NodeId, NodeId)],
    caps: &[Cap],
) -> Result<Vec<f64>, LoadError> {
    let mut all = shared(topology, flows)?;
    for cap in caps.iter().filter(|cap| !cap.flows.is_empty()) {
        let (from, to) = flows[cap.flows[0]];
        let mut own = Shared::new(Narrowest::Link(from, to), flows.len());
        cap.flows.iter().for_each(|&flow| own.carry(flow, cap.gb_per_s));
        own.waiting.clone_from(&cap.waiting);
        all.push(own);
    }
    Ok(fill(&all, flows.len()).into_iter().map(|(rate, _)| rate).collect())
}

/// The links that a flow crosses, its rate on each, GB/s, and the size to which its TLPs are cut there.
pub(crate) type Crossed = Vec<(NodeId, NodeId, f64, u32)>;

/// The links that each flow crosses, with its rate on each alone: all that computed rates have of a topology, beside
/// memory and collapses.
pub(crate) fn crossed(
    topology: &Topology,
    flows: &[(NodeId, NodeId)],
) -> Result<Vec<Crossed>, LoadError> {
    flows.iter().map(|&(from, to)| links(topology, from, to)).collect()
}

/// Share of each GPU's data to its NIC while all of them send, and what keeps it from more. A port carries no more than
/// its wire, where `port_gb_per_s` knows that.
///
/// # Errors
/// As [`fair_rates`].
pub fn port_shares(
    topology: &Topology,
    pairs: &[(NodeId, NodeId)],
    port_gb_per_s: &dyn Fn(NodeId) -> Option<f64>,
) -> Result<Vec<Share>, LoadError> {
    let mut all = shared(topology, pairs)?;
    for nic in topology.of_kind(Kind::Nic) {
        let Some(gb_per_s) = port_gb_per_s(nic) else { continue };
        let mut wire = Shared::new(Narrowest::Port(nic), pairs.len());
        let own = pairs.iter().enumerate().filter(|(_, (_, to))| *to == nic);
        own.for_each(|(flow, _)| wire.carry(flow, gb_per_s));
        all.push(wire);
    }
    let share = |(gb_per_s, by): (f64, Option<&Shared>)| Share {
        gb_per_s,
        full: by.map(|s| Full { what: s.what, flows: s.flows.clone(), gb_per_s: s.gb_per_s }),
    };
    Ok(fill(&all, pairs.len()).into_iter().map(share).collect())
}

/// The directions of links that flows cross.
fn shared(topology: &Topology, flows: &[(NodeId, NodeId)]) -> Result<Vec<Shared>, LoadError> {
    fn of(all: &mut Vec<Shared>, what: Narrowest, flows: usize) -> &mut Shared {
        let at = all.iter().position(|s| s.what == what).unwrap_or_else(|| {
            all.push(Shared::new(what, flows));
            all.len() - 1
        });
        &mut all[at]
    }
    let mut all: Vec<Shared> = Vec::new();
    for (i, &(from, to)) in flows.iter().enumerate() {
        for (a, b, gb_per_s, cut) in links(topology, from, to)? {
            of(&mut all, Narrowest::Link(a, b), flows.len()).carry(i, gb_per_s);
            let answered = of(&mut all, Narrowest::Link(b, a), flows.len());
            answered.ms[i] += answer_ms(topology, (a, b), cut, 1.0);
        }
    }
    Ok(all)
}

/// The rate of each flow, and what was full when it rose no more.
fn fill(all: &[Shared], flows: usize) -> Vec<(f64, Option<&Shared>)> {
    let mut rates = vec![(f64::INFINITY, None); flows];
    let mut rising: Vec<usize> = (0..flows).collect();
    while !rising.is_empty() {
        // The rate at which each link is full if all that still rise have it.
        let full = |shared: &Shared| {
            let sum = |flows: &mut dyn Iterator<Item = f64>| flows.sum::<f64>();
            let held = sum(&mut (0..rates.len())
                .filter(|i| rates[*i].0.is_finite())
                .map(|i| rates[i].0 * shared.ms[i]));
            let ms = sum(&mut rising.iter().map(|&i| shared.ms[i]));
            if ms > 0.0 { (1000.0 - held).max(0.0) / ms } else { f64::INFINITY }
        };
        let least = all.iter().map(|s| (full(s), s)).min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((rate, link)) = least.filter(|(rate, _)| rate.is_finite()) else { break };
        let (stay, rise): (Vec<usize>, Vec<usize>) =
            rising.iter().partition(|&&i| link.ms[i] > 0.0 || link.waiting.contains(&i));
        stay.iter().for_each(|&i| rates[i] = (rate, Some(link)));
        rising = rise;
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Flow, Params, simulate_flows};
    use crate::topology::{Builder, Knob, RawLink, builtin};

    /// The simulation takes turns TLP by TLP, and has the same within 2 %.
    #[test]
    fn rates_are_those_of_the_simulation() {
        let dgx = || builtin("dgx-h100").unwrap();
        // Packets of 128 B on Gen4, with DLLPs for each.
        let a100 = dgx().with(Knob::Generation, 4.0).unwrap().map_packets(128);
        for (t, flows) in [
            (dgx(), &[("gpu0", "gpu1")][..]),
            (dgx(), &[("gpu0", "gpu1"), ("gpu1", "gpu0")]),
            (dgx(), &[("gpu0", "gpu1"), ("gpu0", "gpu2"), ("gpu3", "gpu2")]),
            (dgx(), &[("gpu0", "gpu2"), ("gpu1", "gpu3"), ("gpu2", "gpu3")]),
            (builtin("two-sockets").unwrap(), &[("gpu0", "nic0"), ("gpu0", "s0")]),
            (a100, &[("gpu0", "gpu1"), ("gpu1", "gpu0")]),
        ] {
            let ends: Vec<_> =
                flows.iter().map(|(a, b)| (t.find(a).unwrap(), t.find(b).unwrap())).collect();
            let fair = fair_rates(&t, &ends).unwrap();
            let flows: Vec<Flow> = ends.iter().map(|&(a, b)| Flow::write(a, b)).collect();
            let simulated = simulate_flows(&t, &Params::default(), &flows).unwrap();
            for (fair, simulated) in fair.iter().zip(&simulated) {
                let share = fair / simulated;
                assert!((share - 1.0).abs() < 0.02, "{}: {fair} {simulated}", t.name);
            }
        }
        let t = builtin("dgx-h100").unwrap();
        let gpu = t.find("gpu0").unwrap();
        assert!(fair_rates(&t, &[]).unwrap().is_empty());
        assert!(fair_rates(&t, &[(gpu, gpu)]).is_err());
    }

    /// Eight GPUs at the two ports of one card: the card's link is the narrowest, not each port's.
    #[test]
    fn ports_of_a_card_share_its_link() {
        let mut b = Builder::new("one card");
        b.add("s0", Kind::Socket, None, None, None);
        b.add("rc0", Kind::RootComplex, Some("s0"), None, None);
        b.add("sw0", Kind::Switch, Some("rc0"), Some(RawLink::new(5, 16)), None);
        for i in 0..8 {
            let gpu = format!("gpu{i}");
            b.add(&gpu, Kind::Gpu, Some("sw0"), Some(RawLink::new(5, 16)), None);
        }
        for i in 0..2 {
            let (nic, link) = (format!("nic{i}"), Some(RawLink::new(3, 8)));
            b.add(&nic, Kind::Nic, Some("sw0"), link, None).card = Some("c".into());
        }
        let t = b.finish().unwrap();
        let at = |id: String| t.find(&id).unwrap();
        let pairs: Vec<_> =
            (0..8).map(|i| (at(format!("gpu{i}")), at(format!("nic{}", i % 2)))).collect();
        let link = t.link_gb_per_s(at("nic0".into())).unwrap();
        let of = |port: Option<f64>| port_shares(&t, &pairs, &|_| port).unwrap();
        let first = at("nic0".into());
        for Share { gb_per_s, full } in of(Some(5.0)) {
            assert!((gb_per_s - link / 8.0).abs() < 1e-9, "{gb_per_s}");
            let full = full.unwrap();
            assert_eq!(full.what, Narrowest::Link(at("sw0".into()), first));
            assert_eq!((full.flows, full.gb_per_s), ((0..8).collect(), link));
        }
        for (i, Share { gb_per_s, full }) in of(Some(2.0)).into_iter().enumerate() {
            assert!((gb_per_s - 0.5).abs() < 1e-9, "{gb_per_s}");
            let full = full.unwrap();
            assert_eq!(full.what, Narrowest::Port(at(format!("nic{}", i % 2))));
            assert_eq!((full.flows.len(), full.gb_per_s), (4, 2.0));
        }
        assert!((fair_rates(&t, &pairs).unwrap()[0] - link / 8.0).abs() < 1e-9);
    }
}
