//! Streams between devices of one host, side by side: what each gets where they share links.

use super::build::{
    ANSWER_BYTES, MemoryRates, Nodes, PeerLimits, add_host, attach_dram, attach_hbm, attach_memory,
};
use super::collapse::collapsed;
use super::{
    ChannelSpec, Completer, EndpointId, EndpointSpec, IotlbSpec, Load, Params, Program, ServerId,
    Sim, SimError, Step, Until,
};
use crate::topology::{Kind, NodeId, Topology, fair_rates};

/// Who moves the data of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Move {
    /// The source writes into the destination (push).
    Write,
    /// The destination reads from the source (pull).
    Read,
}

/// A stream of data from one GPU, NIC or memory (a socket or NUMA node) to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Where the data come from.
    pub from: NodeId,
    /// Where they go.
    pub to: NodeId,
    /// Who moves them.
    pub by: Move,
}

impl Flow {
    /// A flow of writes.
    pub const fn write(from: NodeId, to: NodeId) -> Self {
        Self { from, to, by: Move::Write }
    }

    /// A flow of reads by `to`.
    pub const fn read(from: NodeId, to: NodeId) -> Self {
        Self { from, to, by: Move::Read }
    }

    /// The requester and its target.
    pub const fn ends(&self) -> (NodeId, NodeId) {
        match self.by {
            Move::Write => (self.from, self.to),
            Move::Read => (self.to, self.from),
        }
    }
}

/// Bytes of one operation of a stream.
const STREAM_BYTES: u32 = 64 << 10;
/// Operations of a stream at once.
const STREAM_WINDOW: u32 = 4;

/// Runs that may pass until all flows end together.
const PASSES: usize = 8;
/// Fewest operations of a stream that are simulated.
const LEAST_RUNS: u64 = 64;
/// The same of many flows, whose sum is what takes the time.
const LEAST_OF_MANY: u64 = 16;
/// Up to so many flows are few.
const FEW_FLOWS: usize = 16;
/// Most operations of a flow for one of the slowest.
const MOST_SHARE: u64 = 40;
/// How many times as fast as another a flow is by arithmetic from where on that is the first guess
/// of its share: passes that start from equal shares would take minutes.
const FAR_APART: f64 = 8.0;

/// Fewest operations of one of so many flows.
fn least_runs(flows: usize, at_once: u32) -> u64 {
    let least = if flows > FEW_FLOWS { LEAST_OF_MANY } else { LEAST_RUNS };
    least.max(4 * u64::from(at_once))
}

/// Operations of each flow of a first pass, so that all end together as far as arithmetic tells.
fn first_counts(topology: &Topology, flows: &[Flow], at_once: u32) -> Vec<u64> {
    let least = least_runs(flows.len(), at_once);
    let ends: Vec<(NodeId, NodeId)> = flows.iter().map(|f| (f.from, f.to)).collect();
    let rates = fair_rates(topology, &ends).unwrap_or_default();
    let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let is_far = rates.iter().any(|rate| *rate > FAR_APART * slowest);
    let share = |rate: &f64| ((rate / slowest * least as f64) as u64).min(MOST_SHARE * least);
    if is_far { rates.iter().map(share).collect() } else { vec![least; flows.len()] }
}

/// TLP transmissions, each hop counted, that a pass of these flows simulates at first; about two
/// passes follow each other.
pub fn flow_transmissions(
    topology: &Topology,
    flows: &[Flow],
    messages: Option<(u32, u32)>,
) -> f64 {
    let (bytes, at_once) = messages.unwrap_or((STREAM_BYTES, STREAM_WINDOW));
    let counts = first_counts(topology, flows, at_once);
    let of = |(flow, count): (&Flow, &u64)| {
        let way = topology.route(flow.from, flow.to).nodes.len() as f64 + 1.0;
        let mps = [flow.from, flow.to].into_iter().filter_map(|n| topology.node(n).link);
        let mps = mps.map(|link| link.mps.bytes()).min().unwrap_or(256);
        let own = [flow.from, flow.ends().0].into_iter().filter_map(|n| topology.packets_of(n));
        let mps = own.map(|packets| packets.0).fold(mps, u32::min);
        let tlps = f64::from(bytes.div_ceil(mps)) + f64::from(u8::from(flow.by == Move::Read));
        *count as f64 * tlps * way
    };
    flows.iter().zip(&counts).map(of).sum()
}

struct Streams<'a> {
    sim: Sim,
    topology: &'a Topology,
    params: &'a Params,
    nodes: Nodes,
    /// What each NIC of the flows takes its messages in turn by.
    messages: Vec<(NodeId, ServerId)>,
    iotlb: Option<usize>,
    /// Whether the lines of host memory lie in a cache.
    cached: bool,
    /// Memories with limits, which flows share.
    limited: Vec<(NodeId, EndpointId)>,
}

impl<'a> Streams<'a> {
    /// A host on which these flows run at once.
    fn new(topology: &'a Topology, params: &'a Params, flows: &[Flow]) -> Self {
        let mut sim = Sim::new(1);
        let nodes = add_host(&mut sim, topology, params);
        for (fan, gb_per_s) in collapsed(topology, flows) {
            // All that a switch's uplink posts to peers shares the collapsed rate.
            let above = topology.node(fan.switch).parent.expect("a switch has a parent");
            sim.limit_posted(nodes.at[fan.switch.0], nodes.at[above.0], gb_per_s);
        }
        let mut messages: Vec<(NodeId, ServerId)> = Vec::new();
        for end in flows.iter().flat_map(|f| [f.from, f.to]) {
            let is_new = messages.iter().all(|(nic, _)| *nic != end);
            if is_new && topology.node(end).kind == Kind::Nic {
                messages.push((end, sim.add_server()));
            }
        }
        Self {
            sim,
            topology,
            params,
            nodes,
            messages,
            iotlb: None,
            cached: true,
            limited: Vec::new(),
        }
    }

    fn is_memory(&self, node: NodeId) -> bool {
        matches!(self.topology.node(node).kind, Kind::Socket | Kind::NumaNode)
    }

    fn mrrs_bytes(&self, node: NodeId) -> u32 {
        self.topology.node(node).link.map_or(512, |l| l.mrrs.bytes())
    }

    fn packet_bytes(&self, node: NodeId) -> u32 {
        self.topology.packets_of(node).map_or(u32::MAX, |packets| packets.0)
    }

    /// The engine of a device that copies, with so many read requests open.
    fn engine(&mut self, node: NodeId, tags: f64) -> EndpointId {
        let completer = Completer {
            latency_ps: 0,
            piece_ps: 0,
            rcb_bytes: ANSWER_BYTES,
            merges: false,
            wait_ps: 0,
        };
        let spec = EndpointSpec {
            tags: tags.clamp(1.0, 1e6) as u32,
            completer,
            host_side: self.is_memory(node),
        };
        let way = ChannelSpec::internal(1000.0, 0);
        let own = self.sim.add_node();
        self.sim.add_channel(own, self.nodes.at[node.0], way);
        self.sim.add_channel(self.nodes.at[node.0], own, way);
        let engine = self.sim.add_endpoint(own, spec);
        self.sim.set_order(engine, self.topology.node(node).relaxed_ordering.into());
        self.sim.set_packets(engine, self.packet_bytes(node));
        if self.topology.is_translated(node) {
            let spec = IotlbSpec::of(self.params);
            let iotlb = *self.iotlb.get_or_insert_with(|| self.sim.add_iotlb(spec));
            self.sim.translate(engine, iotlb);
        }
        engine
    }

    fn target(&mut self, node: NodeId) -> EndpointId {
        let at = self.nodes.at[node.0];
        match self.topology.node(node).kind {
            Kind::Gpu => {
                let hbm = attach_hbm(&mut self.sim, at, self.params);
                self.sim.set_packets(hbm, self.packet_bytes(node));
                hbm
            }
            Kind::Nic => self.engine(node, 1.0),
            _ => self.memory(node),
        }
    }

    /// A socket's memory. One that no limit is known of serves each flow by itself.
    fn memory(&mut self, node: NodeId) -> EndpointId {
        if let Some(&(_, memory)) = self.limited.iter().find(|(of, _)| *of == node) {
            return memory;
        }
        let rates = MemoryRates::of(self.topology.node(node));
        let add = if self.cached { attach_memory } else { attach_dram };
        let (at, own) = (self.nodes.at[node.0], rates.unwrap_or(MemoryRates::UNKNOWN));
        let memory = add(&mut self.sim, at, self.params, own);
        self.limited.extend(rates.map(|_| (node, memory)));
        memory
    }

    /// One operation of a flow.
    fn step(&mut self, flow: &Flow, bytes: u32) -> Step {
        let (by, at) = flow.ends();
        self.nodes.set_ways(&mut self.sim, self.topology, &[by, at]);
        let tags = match self.topology.node(by).kind {
            Kind::Nic => self.params.nic_tags,
            _ => self.params.copy_tags,
        };
        let mrrs_bytes = self.mrrs_bytes(by);
        let limits = PeerLimits::of(self.topology, by, at);
        let peer = !self.is_memory(by) && !self.is_memory(at);
        let (tags, request_bytes) = if peer {
            (limits.tags(tags, mrrs_bytes), mrrs_bytes.min(limits.read_bytes))
        } else {
            (tags, mrrs_bytes)
        };
        let (by, at) = (self.engine(by, tags), self.target(at));
        match flow.by {
            Move::Write => {
                let (tlp_bytes, until) = (4096, Until::Visible);
                Step::Write { from: by, to: at, bytes, addr: 0, tlp_bytes, until }
            }
            Move::Read => Step::Read { by, at, bytes, addr: 0, request_bytes },
        }
    }

    fn load(&mut self, flow: &Flow, bytes: u32, window: u32, count: u64) -> Load {
        let mut program = Program::new(u64::from(bytes));
        let step = self.step(flow, bytes);
        let mut taken = Vec::new();
        for &(nic, server) in &self.messages {
            if flow.from == nic || flow.to == nic {
                let ps = Params::ps(self.params.nic_message_ns);
                taken = vec![program.task(Step::Serve { server, ps }, &taken)];
            }
        }
        program.task(step, &taken);
        Load { program, window, count }
    }
}

/// Rate of every flow, GB/s, while all of them run.
///
/// # Errors
/// A root complex on a flow's way refuses it.
pub fn simulate_flows(
    topology: &Topology,
    params: &Params,
    flows: &[Flow],
) -> Result<Vec<f64>, SimError> {
    simulate_messages(topology, params, flows, (STREAM_BYTES, STREAM_WINDOW))
}

/// Rate of every flow in messages of so many bytes, so many of a flow at once, GB/s, while all of
/// them run. A NIC takes a message every `nic_message_ns`, whichever flow it is of.
///
/// # Errors
/// As [`simulate_flows`].
pub fn simulate_messages(
    topology: &Topology,
    params: &Params,
    flows: &[Flow],
    (bytes, at_once): (u32, u32),
) -> Result<Vec<f64>, SimError> {
    let least = least_runs(flows.len(), at_once);
    let mut counts = first_counts(topology, flows, at_once);
    for _ in 0..PASSES {
        let mut s = Streams::new(topology, params, flows);
        let pairs = flows.iter().zip(&counts);
        let loads = pairs.map(|(f, &n)| s.load(f, bytes, at_once, n)).collect();
        let results = s.sim.run_together(loads)?;
        let ends: Vec<f64> = results.iter().map(|r| r.total_ps as f64).collect();
        let last = ends.iter().copied().fold(1.0, f64::max);
        let late = |end: &f64| last / end.max(1.0);
        if ends.iter().all(|end| late(end) < 1.05) {
            return Ok(results.iter().map(super::LoadResult::gb_per_s).collect());
        }
        // A flow that ends early leaves its share to the others: it gets more to do, so that all
        // end together and every rate is one beside all others.
        for (n, end) in counts.iter_mut().zip(&ends) {
            let more = late(end);
            let more = if more < 2.0 { more * more } else { more };
            *n = ((*n as f64 * more) as u64).min(MOST_SHARE * least);
        }
    }
    let mut s = Streams::new(topology, params, flows);
    let pairs = flows.iter().zip(&counts);
    let loads = pairs.map(|(f, &n)| s.load(f, bytes, at_once, n)).collect();
    Ok(s.sim.run_together(loads)?.iter().map(super::LoadResult::gb_per_s).collect())
}

/// Rate of the first flow while all run, GB/s: each does as much, and goes on until all have.
///
/// # Errors
/// As [`simulate_flows`].
pub(super) fn simulate_beside(
    topology: &Topology,
    params: &Params,
    flows: &[Flow],
) -> Result<f64, SimError> {
    let mut s = Streams::new(topology, params, flows);
    let (window, count) = (STREAM_WINDOW, 4 * LEAST_RUNS);
    let loads = flows.iter().map(|f| s.load(f, STREAM_BYTES, window, count)).collect();
    Ok(s.sim.run_together(loads)?[0].gb_per_s())
}

/// Rate of all flows together where each moves as much, GB/s: all bytes over the time of the last.
///
/// # Errors
/// As [`simulate_flows`].
pub(super) fn simulate_batch(
    topology: &Topology,
    params: &Params,
    flows: &[Flow],
) -> Result<f64, SimError> {
    let count = (8 * LEAST_RUNS / flows.len().max(1) as u64).max(16);
    let mut s = Streams::new(topology, params, flows);
    let loads = flows.iter().map(|f| s.load(f, STREAM_BYTES, STREAM_WINDOW, count)).collect();
    let results = s.sim.run(loads)?;
    let last_ps = results.iter().map(|r| r.total_ps).max().unwrap_or(0).max(1);
    let bytes = flows.len() as u64 * count * u64::from(STREAM_BYTES);
    Ok(bytes as f64 * 1000.0 / last_ps as f64)
}

/// What the rates of flows depend on.
pub(super) fn flows_imprint(
    topology: &Topology,
    params: &Params,
    flows: &[Flow],
    message_bytes: Option<u32>,
) -> String {
    let mut s = Streams::new(topology, params, flows);
    let bytes = message_bytes.unwrap_or(STREAM_BYTES);
    let programs: Vec<Program> = flows.iter().map(|f| s.load(f, bytes, 1, 1).program).collect();
    programs.iter().map(|program| s.sim.imprint(program)).collect()
}

/// The same, of one flow to or from host memory whose lines lie in no cache.
pub(super) fn uncached_imprint(topology: &Topology, params: &Params, flow: Flow) -> String {
    let mut s = Streams { cached: false, ..Streams::new(topology, params, &[flow]) };
    let load = s.load(&flow, STREAM_BYTES, STREAM_WINDOW, LEAST_RUNS);
    s.sim.imprint(&load.program)
}

/// Rate of one flow to or from host memory whose lines lie in no cache, GB/s.
///
/// # Errors
/// As [`simulate_flows`].
pub(super) fn simulate_uncached(
    topology: &Topology,
    params: &Params,
    flow: Flow,
) -> Result<f64, SimError> {
    let mut s = Streams { cached: false, ..Streams::new(topology, params, &[flow]) };
    let load = s.load(&flow, STREAM_BYTES, STREAM_WINDOW, LEAST_RUNS);
    Ok(s.sim.run(vec![load])?[0].gb_per_s())
}

/// Rate of one flow whose operations have `bytes` bytes, with as many at once as the requester
/// holds, GB/s.
///
/// # Errors
/// As [`simulate_flows`].
pub fn simulate_small(
    topology: &Topology,
    params: &Params,
    flow: Flow,
    bytes: u32,
    at_once: u32,
) -> Result<f64, SimError> {
    let mut s = Streams::new(topology, params, &[flow]);
    let load = s.load(&flow, bytes, at_once, 40 * u64::from(at_once));
    Ok(s.sim.run(vec![load])?[0].gb_per_s())
}

/// Time of one operation of `bytes` bytes on the idle host, ns: a write until its last byte has
/// arrived, a read until its last byte has returned.
///
/// # Errors
/// As [`simulate_flows`].
pub fn flow_latency_ns(
    topology: &Topology,
    params: &Params,
    flow: Flow,
    bytes: u32,
) -> Result<f64, SimError> {
    let mut s = Streams::new(topology, params, &[flow]);
    let load = s.load(&flow, bytes, 1, 1);
    Ok(s.sim.run(vec![load])?[0].median_ns())
}

#[cfg(all(test, feature = "toml"))]
#[path = "flows_tests.rs"]
mod tests;
