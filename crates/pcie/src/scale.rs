//! All-reduce at scale: a message-level simulation whose costs come from the TLP model.
//!
//! The cost model follows LogGP (Alexandrov et al., SPAA 1995): a message of n bytes arrives after
//! L + n·G and occupies the sender's port for g + n·G. L, g and G of a path come from the TLP-level
//! simulation of that path ([`Cost::from_model`]); those of NVLink and TCP come from measurements.
//! The simulation covers every rank and assumes no symmetry. It does not count the arithmetic of
//! the reduction.

use super::sim::{Params, PathModel, SimError, TestBedSpec, predict};

/// LogGP parameters of one kind of link.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Cost {
    /// L + 2o: time until a small message is in the receiver's memory, ns.
    pub latency_ns: f64,
    /// g: least time between two messages of one sender, ns.
    pub gap_ns: f64,
    /// 1/G: bandwidth, GB/s.
    pub gb_per_s: f64,
}

impl Cost {
    /// Costs of a path on a topology: latency of one 8 B message, gap of 8 B messages in flight,
    /// bandwidth of 1 MiB messages in flight. `None` where the path cannot carry these sizes.
    pub fn from_model(spec: TestBedSpec<'_>, path: PathModel) -> Result<Option<Self>, SimError> {
        let (small, large) = (predict(spec, path, 8, 16)?, predict(spec, path, 1 << 20, 8)?);
        Ok(small.zip(large).map(|(small, large)| Self {
            latency_ns: small.delivered_ns,
            gap_ns: 8.0 / small.gb_per_s,
            gb_per_s: large.gb_per_s,
        }))
    }

    /// TCP sockets without RDMA. Bandwidth and latency are those of NCCL's all-reduce over sockets
    /// between two H200s; the latency is half the time of its two small messages.
    pub const TCP: Self = Self { latency_ns: 20_500.0, gap_ns: 5_000.0, gb_per_s: 2.8 };

    /// NVLink of an H200: one-way latency of an in-band flag, bandwidth of one rank.
    pub const NVLINK: Self = Self { latency_ns: 1_280.0, gap_ns: 100.0, gb_per_s: 364.0 };

    fn message_ns(&self, bytes: f64) -> (f64, f64) {
        let transfer = bytes / self.gb_per_s;
        (self.latency_ns + transfer, self.gap_ns.max(transfer))
    }
}

/// All-reduce algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Algorithm {
    /// Reduce-scatter and all-gather around one ring.
    Ring,
    /// Reduce up a binary tree, broadcast down it; chunks are pipelined.
    Tree,
    /// Ring inside each node, a ring across nodes for each local rank, then a ring inside each
    /// node.
    TwoLevel,
}

/// The machines, and the costs of their links.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cluster {
    /// Number of GPUs.
    pub gpus: u32,
    /// GPUs per node.
    pub gpus_per_node: u32,
    /// Nodes per rack.
    pub nodes_per_rack: u32,
    /// Cost of a link inside a node.
    pub local: Cost,
    /// Cost of a link between two nodes of one rack.
    pub wire: Cost,
    /// Latency that a link between racks adds, ns.
    pub rack_ns: f64,
    /// Bandwidth of a link between racks, as a fraction of `wire`'s (1: no oversubscription).
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

    /// `steps` steps of a ring. In each step every rank sends `bytes` to the next rank, once it has
    /// received those of the previous step.
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
        // Rank r's parent is (r - 1) / 2, which keeps low levels of the tree inside a node only by
        // chance. As NCCL does, order the tree by node, so that subtrees stay local.
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

/// Costs of a link for each path on a topology, TCP last. Paths that do not exist there are
/// omitted.
pub fn wire_costs(spec: TestBedSpec<'_>) -> Vec<(&'static str, Cost)> {
    let paths = [PathModel::PushKernel, PathModel::PushInband, PathModel::Pull, PathModel::Staged];
    let known = paths.into_iter().filter_map(|path| {
        let cost = Cost::from_model(spec, path).ok().flatten()?;
        Some((path.name(), cost))
    });
    known.chain([("tcp", Cost::TCP)]).collect()
}

/// A DGX-like cluster: 8 GPUs per node, 4 nodes per rack; links between racks add 1 µs at full
/// bandwidth.
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

    const LOCAL: Cost = Cost { latency_ns: 100.0, gap_ns: 10.0, gb_per_s: 400.0 };

    /// Clusters of few GPUs, whose costs are summed by hand below.
    fn small(gpus: u32, gpus_per_node: u32) -> Cluster {
        let (nodes_per_rack, rack_ns, rack_bandwidth) = (2, 500.0, 0.25);
        let (local, wire) = (LOCAL, WIRE);
        Cluster { gpus, gpus_per_node, nodes_per_rack, local, wire, rack_ns, rack_bandwidth }
    }

    #[test]
    fn a_link_is_inside_a_node_in_a_rack_or_between_racks() {
        let cluster = small(12, 2);
        for (from, to, latency_ns, gb_per_s) in [
            (0, 1, 100.0, 400.0),
            (3, 2, 100.0, 400.0),
            (1, 2, 2_000.0, 50.0),
            (0, 3, 2_000.0, 50.0),
            (3, 4, 2_500.0, 12.5),
            (7, 8, 2_500.0, 12.5),
            (8, 11, 2_000.0, 50.0),
            (11, 0, 2_500.0, 12.5),
        ] {
            let cost = cluster.cost(from, to);
            assert_eq!((cost.latency_ns, cost.gb_per_s), (latency_ns, gb_per_s), "{from}, {to}");
        }
        assert_eq!(dgx_cluster(8, WIRE).rack_ns, 1_000.0);
        // A port is busy for its gap, or as long as the bytes take.
        assert_eq!(WIRE.message_ns(5_000.0), (2_100.0, 300.0));
        assert_eq!(WIRE.message_ns(50_000.0), (3_000.0, 1_000.0));
    }

    #[test]
    fn a_ring_is_as_late_as_its_longest_way() {
        // Ports are free in time here: a step waits for the step before.
        for (gpus, per_node) in [(2, 1), (3, 2), (5, 2), (12, 2), (12, 3)] {
            let wire = Cost { gap_ns: 0.0, ..WIRE };
            let cluster = Cluster { wire, ..small(gpus, per_node) };
            let bytes = 1_000 * u64::from(gpus);
            let cost = |i: u32| cluster.cost(i % gpus, (i + 1) % gpus).message_ns(1_000.0).0;
            let way = |from: u32| (from..from + 2 * (gpus - 1)).map(cost).sum::<f64>();
            let want = (0..gpus).map(way).fold(0.0, f64::max);
            let got = cluster.all_reduce_ns(Algorithm::Ring, bytes);
            assert!((got - want).abs() < 1e-6, "{gpus}: {got} {want}");
        }
        // A gap that is longer than the way: each message waits for the port.
        let wire = Cost { gap_ns: 10_000.0, ..WIRE };
        let slow = Cluster { wire, ..small(4, 1) };
        let slow = Cluster { nodes_per_rack: 4, ..slow };
        let want = 5.0 * 10_000.0 + 2_000.0 + 20.0;
        assert!((slow.all_reduce_ns(Algorithm::Ring, 4_000) - want).abs() < 1e-6);
    }

    #[test]
    fn a_tree_goes_up_and_comes_down() {
        // 3 to 2, and 2 and 1 to 0: 1 and 3 inside their nodes.
        let (local, wire) = (LOCAL.message_ns(1_000.0), WIRE.message_ns(1_000.0));
        let want = local.0 + wire.0 + local.1 + wire.0 + local.0;
        let got = small(4, 2).all_reduce_ns(Algorithm::Tree, 1_000);
        assert!((got - want).abs() < 1e-6, "{got} {want}");
        // 6 hangs from 4, 5 too, and 7 from 6: three levels, and 4's port serves two.
        let flat = Cluster { nodes_per_rack: 8, ..small(8, 1) };
        let want = 3.0 * wire.0 + 2.0 * wire.1 + 3.0 * wire.0 + wire.1;
        let got = flat.all_reduce_ns(Algorithm::Tree, 1_000);
        assert!((got - want).abs() < 1e-6, "{got} {want}");
        // Chunks of 256 KiB, one behind the other.
        let chunk = WIRE.message_ns(262_144.0);
        for (chunks, bytes) in [(1, 262_144), (2, 262_145), (4, 1 << 20)] {
            let want = 2.0 * chunk.0 + f64::from(chunks - 1) * chunk.1;
            let got = small(2, 1).all_reduce_ns(Algorithm::Tree, bytes);
            assert!((got - want).abs() < 1e-6, "{chunks}: {got} {want}");
        }
    }

    #[test]
    fn a_chunk_waits_for_the_ports_of_the_one_before() {
        // 1, 2 and 4 hang from 0, 3 from 2 and 7 from 6 inside their nodes; 5 and 6 from 4 across.
        let (local, wire) = (LOCAL.message_ns(262_144.0), WIRE.message_ns(262_144.0));
        let first = 2.0 * local.0 + wire.0;
        let at_4 = |root: f64| root + 2.0 * local.1 + local.0;
        let at_6 = |root: f64| at_4(root) + wire.1 + wire.0;
        // 6 sends the second chunk up when it has sent the first one down to 7.
        let second = at_6(first) + local.1 + wire.0 + local.0;
        let want = at_6(second) + local.0;
        let got =
            Cluster { nodes_per_rack: 2, ..small(8, 5) }.all_reduce_ns(Algorithm::Tree, 1 << 19);
        assert!((got - want).abs() < 1e-6, "{got} {want}");
    }

    #[test]
    fn two_levels_are_rings_of_rings() {
        let cluster = Cluster { nodes_per_rack: 4, ..small(12, 3) };
        let (inside, across) = (LOCAL.message_ns(40_000.0).0, WIRE.message_ns(10_000.0).0);
        let want = 2.0 * 2.0 * inside + 2.0 * 3.0 * across;
        let got = cluster.all_reduce_ns(Algorithm::TwoLevel, 120_000);
        assert!((got - want).abs() < 1e-6, "{got} {want}");
        // A node that is not full is a ring of those that there are.
        let alone = small(3, 8).all_reduce_ns(Algorithm::TwoLevel, 120_000);
        assert!((alone - 4.0 * inside).abs() < 1e-6, "{alone}");
    }

    #[test]
    fn costs_of_paths_are_the_models() {
        let topology = crate::topology::builtin("two-root-complexes").unwrap();
        let params = Params::default();
        let (gpu, nic) = (topology.find("gpu0").unwrap(), topology.find("nic0").unwrap());
        let spec = TestBedSpec { topology: &topology, gpu, nic, params: &params, seed: 1 };
        let path = PathModel::Pull;
        let cost = Cost::from_model(spec, path).unwrap().unwrap();
        let [small, large] = [(8, 16), (1 << 20, 8)]
            .map(|(bytes, in_flight)| predict(spec, path, bytes, in_flight).unwrap().unwrap());
        assert_eq!((cost.latency_ns, cost.gb_per_s), (small.delivered_ns, large.gb_per_s));
        assert!((cost.gap_ns * small.gb_per_s - 8.0).abs() < 1e-9);
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
        // The most memory that this process ever had; other systems than Linux do not say it.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        println!("{most:?}");
        if let Some(most) = most {
            let kib: u64 = most.trim().trim_end_matches(" kB").parse().unwrap();
            assert!(kib < 2 << 20, "{kib} KiB");
        }
        // Two seconds on an idle processor.
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    }
}
