//! What each of several flows has of the links that they share: by arithmetic, without a simulation.
//!
//! Rates are max-min fair: all rise alike until a link is full, those that cross it stay, the others
//! rise on. That is what switches and ports do that take turns among their inputs.

use super::load::{LoadError, answer_ms, links};
use super::model::{Kind, NodeId, Topology};

/// What several flows share, such as a direction of a link: the time that 1 GB of each takes of it,
/// ms.
struct Shared {
    what: Narrowest,
    ms: Vec<f64>,
}

/// What keeps a flow from more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Narrowest {
    /// This direction of a link; of a NIC's link, by its card's first port.
    Link(NodeId, NodeId),
    /// The wire of a NIC's port.
    Port(NodeId),
}

/// Rate of each flow of memory writes while all of them run, GB/s.
///
/// # Errors
/// An end that is none, a root complex that refuses, a link that is not known.
pub fn fair_rates(topology: &Topology, flows: &[(NodeId, NodeId)]) -> Result<Vec<f64>, LoadError> {
    let all = shared(topology, flows, &|n| n)?;
    Ok(fill(&all, flows.len()).into_iter().map(|(rate, _)| rate).collect())
}

/// Rate of each GPU's data to its NIC while all of them send, GB/s, and what keeps it from more.
/// Ports of one card share the card's link, and a port carries no more than its wire, where
/// `port_gb_per_s` knows that.
///
/// # Errors
/// As [`fair_rates`].
pub fn port_shares(
    topology: &Topology,
    pairs: &[(NodeId, NodeId)],
    port_gb_per_s: &dyn Fn(NodeId) -> Option<f64>,
) -> Result<Vec<(f64, Option<Narrowest>)>, LoadError> {
    let nics = topology.of_kind(Kind::Nic);
    let first_port = |n: NodeId| {
        let place = |n: NodeId| (topology.node(n).card.as_ref(), topology.node(n).parent);
        let same = nics.iter().find(|&&other| place(other).0.is_some() && place(other) == place(n));
        same.copied().unwrap_or(n)
    };
    let mut all = shared(topology, pairs, &first_port)?;
    for &nic in &nics {
        let Some(gb_per_s) = port_gb_per_s(nic) else { continue };
        let of = |&(_, to): &(NodeId, NodeId)| if to == nic { 1000.0 / gb_per_s } else { 0.0 };
        all.push(Shared { what: Narrowest::Port(nic), ms: pairs.iter().map(of).collect() });
    }
    Ok(fill(&all, pairs.len()))
}

/// The directions of links that flows cross, each link by what `same` makes of its ends.
fn shared(
    topology: &Topology,
    flows: &[(NodeId, NodeId)],
    same: &dyn Fn(NodeId) -> NodeId,
) -> Result<Vec<Shared>, LoadError> {
    let mut all: Vec<Shared> = Vec::new();
    for (i, &(from, to)) in flows.iter().enumerate() {
        for (a, b, gb_per_s) in links(topology, from, to)? {
            let answered = (b, a, answer_ms(topology, a, b, 1.0));
            for (a, b, ms) in [(a, b, 1000.0 / gb_per_s), answered] {
                let what = Narrowest::Link(same(a), same(b));
                let at = all.iter().position(|s| s.what == what).unwrap_or_else(|| {
                    all.push(Shared { what, ms: vec![0.0; flows.len()] });
                    all.len() - 1
                });
                all[at].ms[i] += ms;
            }
        }
    }
    Ok(all)
}

/// The rate of each flow, and what was full when it rose no more.
fn fill(all: &[Shared], flows: usize) -> Vec<(f64, Option<Narrowest>)> {
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
            rising.iter().partition(|&&i| link.ms[i] > 0.0);
        stay.iter().for_each(|&i| rates[i] = (rate, Some(link.what)));
        rising = rise;
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Flow, Params, simulate_flows};
    use crate::topology::{Builder, RawLink, builtin};

    /// The simulation takes turns TLP by TLP, and has the same within 2 %.
    #[test]
    fn rates_are_those_of_the_simulation() {
        for (name, flows) in [
            ("dgx-h100", &[("gpu0", "gpu1")][..]),
            ("dgx-h100", &[("gpu0", "gpu1"), ("gpu1", "gpu0")]),
            ("dgx-h100", &[("gpu0", "gpu1"), ("gpu0", "gpu2"), ("gpu3", "gpu2")]),
            ("dgx-h100", &[("gpu0", "gpu2"), ("gpu1", "gpu3"), ("gpu2", "gpu3")]),
            ("two-sockets", &[("gpu0", "nic0"), ("gpu0", "s0")]),
        ] {
            let t = builtin(name).unwrap();
            let ends: Vec<_> =
                flows.iter().map(|(a, b)| (t.find(a).unwrap(), t.find(b).unwrap())).collect();
            let fair = fair_rates(&t, &ends).unwrap();
            let flows: Vec<Flow> = ends.iter().map(|&(a, b)| Flow::write(a, b)).collect();
            let simulated = simulate_flows(&t, &Params::default(), &flows).unwrap();
            for (fair, simulated) in fair.iter().zip(&simulated) {
                let share = fair / simulated;
                assert!((share - 1.0).abs() < 0.02, "{name}: {fair} {simulated}");
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
        for (rate, narrowest) in of(Some(5.0)) {
            assert!((rate - link / 8.0).abs() < 1e-9, "{rate}");
            assert_eq!(narrowest, Some(Narrowest::Link(at("sw0".into()), first)));
        }
        for (i, (rate, narrowest)) in of(Some(2.0)).into_iter().enumerate() {
            assert!((rate - 0.5).abs() < 1e-9, "{rate}");
            assert_eq!(narrowest, Some(Narrowest::Port(at(format!("nic{}", i % 2)))));
        }
        // The same flows without a word of cards have a link each.
        assert!((fair_rates(&t, &pairs).unwrap()[0] - link / 4.0).abs() < 1e-9);
    }
}
