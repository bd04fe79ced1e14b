//! All-reduce at scale: message-level simulation whose costs come from the TLP model.
//!
//! LogGP-like: a message of n bytes over a link takes L + n·G, and the sender's port is busy for
//! g + n·G. L, g and G of a path are taken from the TLP-level simulation of that path
//! ([`Cost::from_model`]); NVLink and TCP come from measured rows. Every rank is simulated; nothing
//! relies on symmetry. Reduction arithmetic is not counted.

use super::sim::{Params, Path, RigSpec, SimError, predict};

/// LogGP parameters of one kind of link.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Cost {
    /// L + 2o: a small message's time until it is in the receiver's memory, ns.
    pub latency_ns: f64,
    /// g: between two messages of one sender, ns.
    pub gap_ns: f64,
    /// 1/G, GB/s.
    pub gb_per_s: f64,
}

impl Cost {
    /// Costs of a path on a topology: latency at 8 B, gap from 8 B messages in flight, bandwidth at
    /// 1 MiB in flight.
    pub fn from_model(spec: RigSpec<'_>, path: Path) -> Result<Option<Self>, SimError> {
        let (small, large) = (predict(spec, path, 8, 16)?, predict(spec, path, 1 << 20, 8)?);
        Ok(small.zip(large).map(|(small, large)| Self {
            latency_ns: small.delivered_ns,
            gap_ns: 8.0 / small.gb_per_s,
            gb_per_s: large.gb_per_s,
        }))
    }

    /// Sockets, no RDMA: 2.8 GB/s of bus bandwidth and 41 µs for two small messages, as NCCL's
    /// all-reduce over sockets measured on two H200s.
    pub const TCP: Self = Self { latency_ns: 20_500.0, gap_ns: 5_000.0, gb_per_s: 2.8 };

    /// NVLink of an H200: in-band flag one way, and one rank's 364 GB/s.
    pub const NVLINK: Self = Self { latency_ns: 1_280.0, gap_ns: 100.0, gb_per_s: 364.0 };

    fn message_ns(&self, bytes: f64) -> (f64, f64) {
        let transfer = bytes / self.gb_per_s;
        (self.latency_ns + transfer, self.gap_ns.max(transfer))
    }
}

/// Algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Algorithm {
    /// Reduce-scatter and all-gather around one ring.
    Ring,
    /// Reduce up a binary tree, broadcast down, pipelined in chunks.
    Tree,
    /// Ring inside each node, then one ring across nodes for each local rank, then inside again.
    TwoLevel,
}

/// Machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cluster {
    /// GPUs in all.
    pub gpus: u32,
    /// GPUs of one node.
    pub gpus_per_node: u32,
    /// Nodes of one rack.
    pub nodes_per_rack: u32,
    /// Inside a node.
    pub local: Cost,
    /// Between nodes of a rack.
    pub wire: Cost,
    /// Between racks: added latency, ns,
    pub rack_ns: f64,
    /// and bandwidth as a fraction of the wire's (1 = no oversubscription).
    pub rack_bandwidth: f64,
}

impl Cluster {
    fn cost(&self, from: u32, to: u32) -> Cost {
        let node = |gpu| gpu / self.gpus_per_node;
        let rack = |gpu| node(gpu) / self.nodes_per_rack;
        if node(from) == node(to) {
            self.local
        } else if rack(from) == rack(to) {
            self.wire
        } else {
            Cost {
                latency_ns: self.wire.latency_ns + self.rack_ns,
                gap_ns: self.wire.gap_ns,
                gb_per_s: self.wire.gb_per_s * self.rack_bandwidth,
            }
        }
    }

    /// Time of an all-reduce of `bytes` on every GPU, ns.
    pub fn all_reduce_ns(&self, algorithm: Algorithm, bytes: u64) -> f64 {
        let ranks: Vec<u32> = (0..self.gpus).collect();
        if self.gpus < 2 {
            return 0.0;
        }
        match algorithm {
            Algorithm::Ring => {
                let n = ranks.len() as f64;
                let mut ready = vec![0.0; ranks.len()];
                self.ring(&ranks, bytes as f64 / n, 2 * (ranks.len() - 1), &mut ready);
                max(&ready)
            }
            Algorithm::Tree => self.tree(bytes as f64),
            Algorithm::TwoLevel => self.two_level(bytes as f64),
        }
    }

    /// `steps` steps of a ring: in each, everyone sends `bytes` to the next, having received the
    /// previous step's.
    fn ring(&self, ranks: &[u32], bytes: f64, steps: usize, ready: &mut [f64]) {
        let n = ranks.len();
        if n < 2 {
            return;
        }
        let costs: Vec<(f64, f64)> =
            (0..n).map(|i| self.cost(ranks[i], ranks[(i + 1) % n]).message_ns(bytes)).collect();
        let mut port = ready.to_vec();
        let mut next = vec![0.0; n];
        for _ in 0..steps {
            for i in 0..n {
                let start = ready[i].max(port[i]);
                port[i] = start + costs[i].1;
                next[(i + 1) % n] = start + costs[i].0;
            }
            ready.copy_from_slice(&next);
        }
    }

    fn tree(&self, bytes: f64) -> f64 {
        // Rank r's parent is (r - 1) / 2, so neighbours in rank are near in the tree's lower levels
        // only by chance: as NCCL does, order the tree by node so that subtrees stay local.
        let n = self.gpus as usize;
        let chunk = (256.0 * 1024.0_f64).min(bytes);
        let chunks = (bytes / chunk).ceil() as usize;
        let parent = |r: usize| {
            // Clear the lowest set bit: a binomial tree, whose low levels are inside a node.
            r & (r - 1)
        };
        let cost: Vec<(f64, f64)> = (0..n)
            .map(|r| match r {
                0 => (0.0, 0.0),
                r => self.cost(r as u32, parent(r) as u32).message_ns(chunk),
            })
            .collect();
        let mut port = vec![0.0f64; n];
        let mut done = 0.0f64;
        let mut have = vec![0.0f64; n];
        for _ in 0..chunks {
            have.fill(0.0);
            // Up: children have higher numbers.
            for r in (1..n).rev() {
                let start = have[r].max(port[r]);
                port[r] = start + cost[r].1;
                let p = parent(r);
                have[p] = have[p].max(start + cost[r].0);
            }
            // Down: the root's port serves its children one after the other.
            let mut got = vec![f64::NAN; n];
            got[0] = have[0];
            for r in 1..n {
                let p = parent(r);
                let start = got[p].max(port[p]);
                port[p] = start + cost[r].1;
                got[r] = start + cost[r].0;
                done = done.max(got[r]);
            }
        }
        done
    }

    fn two_level(&self, bytes: f64) -> f64 {
        let (n, local) = (self.gpus, self.gpus_per_node.min(self.gpus));
        let nodes = n / local;
        let mut ready = vec![0.0; n as usize];
        let inside = |ready: &mut [f64]| {
            for node in 0..nodes {
                let ranks: Vec<u32> = (node * local..(node + 1) * local).collect();
                let mut mine: Vec<f64> = ranks.iter().map(|&r| ready[r as usize]).collect();
                let part = bytes / f64::from(local);
                self.ring(&ranks, part, local as usize - 1, &mut mine);
                for (&r, t) in ranks.iter().zip(mine) {
                    ready[r as usize] = t;
                }
            }
        };
        inside(&mut ready);
        for lane in 0..local {
            let ranks: Vec<u32> = (0..nodes).map(|node| node * local + lane).collect();
            let mut mine: Vec<f64> = ranks.iter().map(|&r| ready[r as usize]).collect();
            let part = bytes / f64::from(local) / f64::from(nodes);
            self.ring(&ranks, part, 2 * (nodes as usize - 1), &mut mine);
            for (&r, t) in ranks.iter().zip(mine) {
                ready[r as usize] = t;
            }
        }
        inside(&mut ready);
        max(&ready)
    }
}

fn max(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

/// Costs of the wire for each path on a topology, TCP last; paths that do not exist are left out.
pub fn wire_costs(spec: RigSpec<'_>) -> Vec<(&'static str, Cost)> {
    let paths = [Path::PushKernel, Path::PushInband, Path::Pull, Path::Staged];
    let known = paths.into_iter().filter_map(|path| {
        let cost = Cost::from_model(spec, path).ok().flatten()?;
        Some((path.name(), cost))
    });
    known.chain([("tcp", Cost::TCP)]).collect()
}

/// A DGX-like cluster: 8 GPUs a node, 4 nodes a rack, 1 µs more between racks at full bandwidth.
pub fn dgx_cluster(gpus: u32, wire: Cost) -> Cluster {
    Cluster {
        gpus,
        gpus_per_node: 8,
        nodes_per_rack: 4,
        local: Cost::NVLINK,
        wire,
        rack_ns: Params::default().wire_ns + 400.0,
        rack_bandwidth: 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: Cost = Cost { latency_ns: 2_000.0, gap_ns: 300.0, gb_per_s: 50.0 };

    #[test]
    fn a_uniform_ring_costs_what_the_formula_says() {
        let flat = Cluster { gpus_per_node: 1, rack_ns: 0.0, ..dgx_cluster(64, WIRE) };
        let bytes = 64u64 << 20;
        let chunk = bytes as f64 / 64.0;
        let want = 126.0 * (2_000.0 + chunk / 50.0);
        let got = flat.all_reduce_ns(Algorithm::Ring, bytes);
        assert!((got / want - 1.0).abs() < 1e-9, "{got} {want}");
    }

    #[test]
    fn a_binomial_tree_is_shallow_and_small_messages_prefer_it() {
        let cluster = dgx_cluster(1024, WIRE);
        let tree = cluster.all_reduce_ns(Algorithm::Tree, 1024);
        let ring = cluster.all_reduce_ns(Algorithm::Ring, 1024);
        let two = cluster.all_reduce_ns(Algorithm::TwoLevel, 1024);
        assert!(tree < two && two < ring, "{tree} {two} {ring}");
        // At most 10 levels up and 10 down of the dearest hop, and the ports' queues.
        assert!(tree < 20.0 * 3_100.0 + 20.0 * 300.0, "{tree}");
        let large = 1u64 << 30;
        let tree = cluster.all_reduce_ns(Algorithm::Tree, large);
        assert!(cluster.all_reduce_ns(Algorithm::TwoLevel, large) < tree);
    }

    #[test]
    fn one_gpu_needs_nothing_and_slower_racks_cost() {
        assert_eq!(dgx_cluster(1, WIRE).all_reduce_ns(Algorithm::Ring, 1 << 20), 0.0);
        let full = dgx_cluster(256, WIRE);
        let half = Cluster { rack_bandwidth: 0.5, ..full };
        let ns = |c: &Cluster| c.all_reduce_ns(Algorithm::TwoLevel, 1 << 28);
        assert!(ns(&half) > 1.2 * ns(&full));
    }

    #[test]
    #[ignore = "measures time, in release: ./x test --long runs it"]
    fn sixteen_thousand_gpus() {
        let start = std::time::Instant::now();
        for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::TwoLevel] {
            let ns = dgx_cluster(16_384, WIRE).all_reduce_ns(algorithm, 1 << 30);
            println!("{algorithm:?} {:.2} ms, {:.2?} so far", ns / 1e6, start.elapsed());
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        println!("{:?}", status.lines().find(|l| l.starts_with("VmHWM")));
    }
}
