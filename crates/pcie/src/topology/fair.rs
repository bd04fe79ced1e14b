//! What each of several flows has of the links that they share: by arithmetic, without a simulation.
//!
//! Rates are max-min fair: all rise alike until a link is full, those that cross it stay, the others
//! rise on. That is what switches and ports do that take turns among their inputs.

use super::load::{LoadError, answer_ms, links};
use super::model::{NodeId, Topology};

/// A direction of a link: the time that 1 GB of each flow takes of it, ms.
struct Shared {
    ends: (NodeId, NodeId),
    ms: Vec<f64>,
}

/// Rate of each flow of memory writes while all of them run, GB/s.
///
/// # Errors
/// An end that is none, a root complex that refuses, a link that is not known.
pub fn fair_rates(topology: &Topology, flows: &[(NodeId, NodeId)]) -> Result<Vec<f64>, LoadError> {
    let mut all: Vec<Shared> = Vec::new();
    for (i, &(from, to)) in flows.iter().enumerate() {
        for (a, b, gb_per_s) in links(topology, from, to)? {
            let answered = (b, a, answer_ms(topology, a, b, 1.0));
            for (a, b, ms) in [(a, b, 1000.0 / gb_per_s), answered] {
                let at = all.iter().position(|s| s.ends == (a, b)).unwrap_or_else(|| {
                    all.push(Shared { ends: (a, b), ms: vec![0.0; flows.len()] });
                    all.len() - 1
                });
                all[at].ms[i] += ms;
            }
        }
    }
    let mut rates = vec![f64::INFINITY; flows.len()];
    let mut rising: Vec<usize> = (0..flows.len()).collect();
    while !rising.is_empty() {
        // The rate at which each link is full if all that still rise have it.
        let full = |shared: &Shared| {
            let sum = |flows: &mut dyn Iterator<Item = f64>| flows.sum::<f64>();
            let held = sum(&mut (0..rates.len())
                .filter(|i| rates[*i].is_finite())
                .map(|i| rates[i] * shared.ms[i]));
            let ms = sum(&mut rising.iter().map(|&i| shared.ms[i]));
            if ms > 0.0 { (1000.0 - held).max(0.0) / ms } else { f64::INFINITY }
        };
        let least = all.iter().map(|s| (full(s), s)).min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((rate, link)) = least.filter(|(rate, _)| rate.is_finite()) else { break };
        let (stay, rise): (Vec<usize>, Vec<usize>) =
            rising.iter().partition(|&&i| link.ms[i] > 0.0);
        stay.iter().for_each(|&i| rates[i] = rate);
        rising = rise;
    }
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Flow, Params, simulate_flows};
    use crate::topology::builtin;

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
}
