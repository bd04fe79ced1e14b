//! What was measured of a machine, as part of its topology.

use super::model::{NodeId, Topology};

impl Topology {
    /// Limits what devices read from and write to the memory of a socket or NUMA node, GB/s; `None`
    /// leaves what is known.
    pub fn limit_memory(&mut self, memory: NodeId, reads: Option<f64>, writes: Option<f64>) {
        let node = &mut self.nodes[memory.0];
        node.memory_read_gb_per_s = reads.or(node.memory_read_gb_per_s);
        node.memory_write_gb_per_s = writes.or(node.memory_write_gb_per_s);
    }

    /// A copy in which the limits of memory are twice as high; `None` where none is known.
    pub(crate) fn with_faster_memory(&self) -> Option<Self> {
        let mut copy = self.clone();
        let nodes = copy.nodes.iter_mut();
        let limits =
            nodes.flat_map(|n| [&mut n.memory_read_gb_per_s, &mut n.memory_write_gb_per_s]);
        let limits: Vec<&mut f64> = limits.flatten().collect();
        let any = !limits.is_empty();
        limits.into_iter().for_each(|limit| *limit *= 2.0);
        any.then_some(copy)
    }

    /// Parameters of the simulation that were measured on this machine, and their values.
    pub fn measured(&self) -> &[(&'static str, f64)] {
        &self.measured
    }

    /// Sets them.
    pub fn set_measured(&mut self, measured: Vec<(&'static str, f64)>) {
        self.measured = measured;
    }
}
