//! Copies between GPUs that wait for each other, as PyTorch issues them.
//!
//! `dst.copy_(src)` between two GPUs (`aten/src/ATen/native/cuda/Copy.cu`, `copy_device_to_device`)
//! runs on the source GPU's current stream. It waits for what the destination GPU's current stream
//! had before, and that stream waits for it. Two rules follow, from which stream a script makes
//! current:
//!
//! - a stream of the **source**: the destination's stream stays the default one, so copies into one
//!   GPU follow each other in the order of their issue;
//! - a stream of the **destination**: the copy runs on the source's default stream, the NULL stream.
//!   There a copy between two devices starts when all commands issued before to either device have
//!   completed, and those issued after it start when it has (CUDA programming guide, *Programming
//!   Systems with Multiple GPUs*).
//!
//! A GPU sends one copy at a time: `asyncEngineCount` of GPUs of compute capability 12.0 is 2, which
//! CUDA defines as one copy each way at once.
//!
//! A copy is 256 MB, milliseconds: what it waits for between two of them is left out, and rates are
//! those of [`fair_rates`], where the machine's posted writes collapse no more than that
//! ([`fair_writes`]).
//!
//! [`fair_rates`]: crate::topology::fair_rates

use std::collections::HashMap;

use super::collapse::fair_writes;
use crate::topology::{LoadError, NodeId, Topology};

/// Copies that a GPU sends at once.
const AT_ONCE: usize = 1;

/// Of which GPU a script makes a stream current for its copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyStream {
    /// The one that has the data: the source calls these writes.
    Source,
    /// The one that gets them: the source calls these reads.
    Destination,
}

/// A copy that has been issued: its ends and the copies that it waits for.
struct Issued {
    ends: (NodeId, NodeId),
    /// Copies that wait for it.
    later: Vec<usize>,
    /// Copies that it still waits for.
    waits: usize,
    /// What is left of it.
    left: f64,
}

/// The copies of all rounds, in the order of their issue.
fn issue(ends: &[(NodeId, NodeId)], stream: CopyStream, rounds: u32) -> Vec<Issued> {
    let mut all: Vec<Issued> = Vec::new();
    let mut last: HashMap<(NodeId, Option<NodeId>), usize> = HashMap::new();
    for _ in 0..rounds {
        for &(from, to) in ends {
            let own = all.len();
            // A pair has a stream of its own.
            let behind = match stream {
                CopyStream::Source => [(from, Some(to)), (to, None)],
                CopyStream::Destination => [(from, None), (to, None)],
            };
            let mut before: Vec<usize> =
                behind.iter().filter_map(|&key| last.insert(key, own)).collect();
            before.dedup();
            before.iter().for_each(|&i| all[i].later.push(own));
            all.push(Issued {
                ends: (from, to),
                later: Vec::new(),
                waits: before.len(),
                left: 1.0,
            });
        }
    }
    all
}

/// Rate of copies of one size from one GPU to another, issued pair by pair, so many rounds: all
/// their bytes over the time until the last has ended, GB/s.
///
/// # Errors
/// As [`fair_rates`](crate::topology::fair_rates).
pub(super) fn simulate_in_order(
    topology: &Topology,
    ends: &[(NodeId, NodeId)],
    stream: CopyStream,
    rounds: u32,
) -> Result<f64, LoadError> {
    let mut all = issue(ends, stream, rounds);
    let mut known: HashMap<Vec<(NodeId, NodeId)>, Vec<f64>> = HashMap::new();
    let mut ready: Vec<usize> = (0..all.len()).filter(|&i| all[i].waits == 0).collect();
    let mut running: Vec<usize> = Vec::new();
    let mut time = 0.0;
    while !(ready.is_empty() && running.is_empty()) {
        ready.retain(|&i| {
            let own = running.iter().filter(|&&r| all[r].ends.0 == all[i].ends.0);
            let is_busy = own.count() >= AT_ONCE;
            if !is_busy {
                running.push(i);
            }
            is_busy
        });
        running.sort_unstable_by_key(|&i| all[i].ends);
        let pairs: Vec<(NodeId, NodeId)> = running.iter().map(|&i| all[i].ends).collect();
        if !known.contains_key(&pairs) {
            known.insert(pairs.clone(), fair_writes(topology, &pairs)?);
        }
        let rates = &known[&pairs];
        let until = running.iter().zip(rates).map(|(&i, rate)| all[i].left / rate);
        let step = until.fold(f64::INFINITY, f64::min);
        time += step;
        for (&i, rate) in running.iter().zip(rates) {
            all[i].left -= step * rate;
            if all[i].left > 1e-9 {
                continue;
            }
            for later in std::mem::take(&mut all[i].later) {
                all[later].waits -= 1;
                if all[later].waits == 0 {
                    ready.push(later);
                }
            }
        }
        running.retain(|&i| all[i].left > 1e-9);
    }
    Ok(all.len() as f64 / time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Builder, Kind, RawLink};
    use CopyStream::{Destination, Source};

    /// GPUs below one switch, Gen5 x16: 57.6 GB/s one way, 56.0 beside the way back.
    fn switch(gpus: usize) -> (Topology, Vec<NodeId>) {
        let link = Some(RawLink::new(5, 16));
        let mut b = Builder::new("one switch");
        b.add("s0", Kind::Socket, None, None, None);
        b.add("rc0", Kind::RootComplex, Some("s0"), None, None);
        b.add("sw0", Kind::Switch, Some("rc0"), link, None);
        for i in 0..gpus {
            b.add(&format!("gpu{i}"), Kind::Gpu, Some("sw0"), link, None);
        }
        let t = b.finish().unwrap();
        let gpus = t.of_kind(Kind::Gpu);
        (t, gpus)
    }

    #[test]
    fn copies_wait_where_the_streams_do() {
        let (t, gpus) = switch(4);
        let [a, b, c, d] = gpus[..] else { panic!("four") };
        let rate =
            |ends: &[(NodeId, NodeId)], stream| simulate_in_order(&t, ends, stream, 20).unwrap();
        let near =
            |rate: f64, want: f64| assert!((rate / want - 1.0).abs() < 0.01, "{rate} {want}");
        // Nothing in common: both at once.
        near(rate(&[(a, b), (c, d)], Source), 115.2);
        near(rate(&[(a, b), (c, d)], Destination), 115.2);
        // Into one GPU, out of one GPU: one after the other.
        for stream in [Source, Destination] {
            near(rate(&[(a, c), (b, c)], stream), 57.6);
            near(rate(&[(a, b), (a, c)], stream), 57.6);
        }
        // There and back: at once, but not on the NULL stream, which waits for either device.
        near(rate(&[(a, b), (b, a)], Source), 112.1);
        near(rate(&[(a, b), (b, a)], Destination), 57.6);
        // A chain on the NULL streams: c>d of a round runs beside a>b of the next, b>c alone.
        near(rate(&[(a, b), (b, c), (c, d)], Destination), 57.6 * 60.0 / 41.0);
    }

    /// By hand: of four GPUs, twelve copies on the NULL streams take eleven times one, and a round
    /// among many ten times.
    #[test]
    fn each_to_each_on_null_streams_is_almost_one_by_one() {
        let (t, gpus) = switch(4);
        let pairs = gpus.iter().flat_map(|&to| gpus.iter().map(move |&from| (from, to)));
        let ends: Vec<_> = pairs.filter(|(from, to)| from != to).collect();
        let one = simulate_in_order(&t, &ends, Destination, 1).unwrap();
        assert!((one - 57.6 * 12.0 / 11.0).abs() < 0.5, "{one}");
        let many = simulate_in_order(&t, &ends, Destination, 50).unwrap();
        assert!((many - 57.6 * 1.2).abs() < 0.5, "{many}");
    }

    /// A slower copy ends later than the one that runs beside it, and what waits for it begins then.
    #[test]
    fn copies_that_run_at_once_end_each_by_itself() {
        let mut b = Builder::new("one switch");
        b.add("s0", Kind::Socket, None, None, None);
        b.add("rc0", Kind::RootComplex, Some("s0"), None, None);
        b.add("sw0", Kind::Switch, Some("rc0"), Some(RawLink::new(5, 16)), None);
        for (i, generation) in [5, 5, 4, 4, 5].into_iter().enumerate() {
            let link = Some(RawLink::new(generation, 16));
            b.add(&format!("gpu{i}"), Kind::Gpu, Some("sw0"), link, None);
        }
        let t = b.finish().unwrap();
        let g = t.of_kind(Kind::Gpu);
        let ends = [(g[0], g[1]), (g[2], g[3]), (g[3], g[4])];
        let rate = simulate_in_order(&t, &ends, Destination, 1).unwrap();
        assert!((rate / (3.0 * 28.8 / 2.0) - 1.0).abs() < 0.01, "{rate}");
    }
}
