//! Builds the simulated fabric of a topology: two hosts, joined by a wire.

use super::{
    ChannelSpec, Completer, Credits, EndpointId, EndpointSpec, Forwards, IotlbSpec, Load, Params,
    Program, ServerId, Sim, Step,
};
use crate::tlp::{Addressing, Overhead};
use crate::topology::{Kind, Node, NodeId, PcieLink, Topology};

/// Bytes that RoCEv2 adds to the data of one packet: Ethernet with preamble, FCS and gap 38, IPv4
/// 20, UDP 8, BTH 12, ICRC 4.
const PACKET_OVERHEAD_BYTES: u32 = 82;
/// Smallest unit between an SM and L2, and smallest fetch of a load.
pub(super) const SECTOR_BYTES: u32 = 32;
/// Path MTU.
pub(super) const MTU_BYTES: u32 = 4096;
/// Completions in which a GPU or NIC answers another device's reads, bytes. Assumed: no source states how
/// one cuts its answers; `packets.rs` is of what copy engines themselves write and read.
pub(super) const ANSWER_BYTES: u32 = 128;

/// The endpoints of one host.
#[derive(Debug, Clone, Copy)]
pub struct Host {
    /// The GPU's SMs.
    pub sm: EndpointId,
    /// The GPU's memory.
    pub hbm: EndpointId,
    /// The NIC's DMA engine.
    pub nic: EndpointId,
    /// The NIC's DMA engine when it reads a peer: a root complex on the way may limit its open
    /// reads.
    pub nic_peer: EndpointId,
    /// The NIC's window and its doorbell registers.
    pub window: EndpointId,
    /// Host memory beside the NIC.
    pub memory: EndpointId,
    /// A CPU core beside the NIC.
    pub cpu: EndpointId,
    /// The NIC's access to its own memory.
    pub nic_memory: ServerId,
}

/// The topology and the two devices to simulate.
#[derive(Debug, Clone, Copy)]
pub struct TestBedSpec<'a> {
    /// Topology of both hosts.
    pub topology: &'a Topology,
    /// GPU.
    pub gpu: NodeId,
    /// NIC.
    pub nic: NodeId,
    /// Model parameters.
    pub params: &'a Params,
    /// Seed of the polling phases.
    pub seed: u64,
}

/// Two hosts and a wire between them, ready to run.
#[derive(Debug)]
pub struct TestBed {
    /// The simulator.
    pub sim: Sim,
    /// The host that starts operations.
    pub near: Host,
    /// The host at which operations end.
    pub far: Host,
    /// Read request size of the NIC.
    pub mrrs_bytes: u32,
    /// Read request size of the NIC towards the GPU, which a root complex on the way may limit.
    pub peer_read_bytes: u32,
    /// Whether the NIC can read the GPU's memory.
    pub peer_reads: bool,
    /// Simulator nodes of the near host, by topology node.
    pub nodes: Vec<u32>,
}

fn internal(gb_per_s: f64, latency_ns: f64) -> ChannelSpec {
    ChannelSpec::internal(gb_per_s, Params::ps(latency_ns))
}

/// An endpoint that answers after `latency_ns` and cuts completions at `rcb_bytes`.
fn endpoint(tags: f64, latency_ns: f64, rcb_bytes: u32, host_side: bool) -> EndpointSpec {
    let latency_ps = Params::ps(latency_ns);
    let completer = Completer { latency_ps, piece_ps: 0, rcb_bytes, merges: false, wait_ps: 0 };
    EndpointSpec { tags: tags.max(1.0) as u32, completer, host_side }
}

/// Adds an endpoint on a node of its own beside `node`.
fn attach(
    sim: &mut Sim,
    node: u32,
    out: ChannelSpec,
    back: ChannelSpec,
    spec: EndpointSpec,
) -> EndpointId {
    let own = sim.add_node();
    sim.add_channel(own, node, out);
    sim.add_channel(node, own, back);
    sim.add_endpoint(own, spec)
}

/// Limits of a GPU's SMs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sms {
    /// Number of SMs.
    pub blocks: f64,
    /// Lines that each SM has outstanding.
    pub lines: f64,
    /// Share of one TLP in the port's slot for each line of an instruction, bytes.
    pub slot_bytes: u32,
    /// Store rate of one SM's warps at its port, GB/s.
    pub issue_gb_per_s: f64,
}

impl Sms {
    /// SMs whose warps do not limit their store rate.
    pub fn new(blocks: f64, lines: f64) -> Self {
        Self { blocks, lines, slot_bytes: SECTOR_BYTES, issue_gb_per_s: f64::INFINITY }
    }
}

/// Adds SMs as one endpoint.
pub(super) fn attach_sm(sim: &mut Sim, node: u32, p: &Params, sms: Sms) -> EndpointId {
    let port = p.sm_port_gb_per_s.min(sms.issue_gb_per_s) * sms.blocks;
    let mut out = internal(port, p.sm_ns);
    out.unit_bytes = SECTOR_BYTES;
    out.overhead_bytes = [sms.slot_bytes; 3];
    let back = internal(4.0 * p.sm_port_gb_per_s * sms.blocks, p.sm_ns);
    attach(sim, node, out, back, endpoint(sms.lines * sms.blocks, 0.0, ANSWER_BYTES, false))
}

/// Adds a GPU's memory. It answers in lines; those of one read that wait for the way out leave as one
/// completion of at most MPS. No source states how one cuts its answers.
pub(super) fn attach_hbm(sim: &mut Sim, node: u32, p: &Params) -> EndpointId {
    let way = internal(3000.0, p.hbm_ns);
    let out = ChannelSpec { joins: true, ..way };
    attach(sim, node, out, way, endpoint(64.0, 0.0, ANSWER_BYTES, false))
}

/// What memory answers and takes at most, GB/s.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryRates {
    reads: f64,
    writes: f64,
}

impl MemoryRates {
    /// Of one reader and one writer, where no limit is known.
    pub const UNKNOWN: Self = Self { reads: 200.0, writes: 200.0 };
    /// Of all readers and writers together, where one of the two is not known to be limited.
    const NO_LIMIT: f64 = 1e5;

    /// Limits of a socket's or NUMA node's memory, which all devices share; `None`: none is known.
    pub fn of(node: &Node) -> Option<Self> {
        let limits = [node.memory_read_gb_per_s, node.memory_write_gb_per_s];
        let [reads, writes] = limits.map(|limit| limit.unwrap_or(Self::NO_LIMIT));
        limits.iter().any(Option::is_some).then_some(Self { reads, writes })
    }
}

/// Adds a socket's memory whose lines lie in a cache: a core or a device has just written them.
pub(super) fn attach_memory(
    sim: &mut Sim,
    node: u32,
    p: &Params,
    rates: MemoryRates,
) -> EndpointId {
    let way = |gb_per_s| internal(gb_per_s, p.mesh_ns / 2.0);
    let spec = endpoint(64.0, p.memory_ns, 64, true);
    attach(sim, node, way(rates.reads), way(rates.writes), spec)
}

/// Adds a socket's memory whose lines lie in no cache. Half of a DRAM access is the access itself,
/// equal for every line. The other half is waiting (banks, refresh, other requests), random and
/// independent for every line: a reader of many lines waits for the slowest of them.
pub(super) fn attach_dram(sim: &mut Sim, node: u32, p: &Params, rates: MemoryRates) -> EndpointId {
    let way = |gb_per_s| internal(gb_per_s, p.mesh_ns / 2.0);
    let mut spec = endpoint(64.0, p.memory_ns + p.dram_ns / 2.0, 64, true);
    spec.completer.wait_ps = Params::ps(p.dram_ns / 2.0);
    attach(sim, node, way(rates.reads), way(rates.writes), spec)
}

/// The simulator's nodes of a host.
#[derive(Debug, Clone)]
pub(super) struct Nodes {
    /// Of each topology node.
    pub at: Vec<u32>,
    /// The port of each GPU and NIC; functions with one link have one ([`Topology::link_of`]).
    port: Vec<Option<u32>>,
}

impl Nodes {
    /// Sets the router's ways between some nodes, in both directions.
    pub fn set_ways(&self, sim: &mut Sim, topology: &Topology, ends: &[NodeId]) {
        for &from in ends {
            for &to in ends.iter().filter(|&&to| to != from) {
                sim.set_way(self.expand(&topology.route(from, to).nodes));
            }
        }
    }

    /// Puts the devices' ports into a way.
    fn expand(&self, way: &[NodeId]) -> Vec<u32> {
        let mut nodes = Vec::with_capacity(way.len() + 2);
        for (i, n) in way.iter().enumerate() {
            let port = self.port[n.0];
            nodes.extend(port.filter(|_| i > 0));
            nodes.push(self.at[n.0]);
            nodes.extend(port.filter(|_| i == 0 && way.len() > 1));
        }
        nodes
    }
}

/// Bandwidth inside a root complex or chip whose limit is not known, GB/s.
const INSIDE_GB_PER_S: f64 = 500.0;

/// Adds the nodes and channels of one host. A TLP spends a switch's or root complex's latency in
/// the buffer through which it came in, so that the latency is part of that link's credit loop. The
/// latency of a device's port lies inside the device: it is no part of one.
pub(super) fn add_host(sim: &mut Sim, topology: &Topology, p: &Params) -> Nodes {
    let at: Vec<u32> = topology.nodes().map(|_| sim.add_node()).collect();
    sim.set_write_buffer(Params::ps(p.write_buffer_ns));
    let mut nodes = Nodes { port: vec![None; at.len()], at };
    for (id, node) in topology.nodes() {
        if node.kind == Kind::RootComplex {
            // What is unknown is taken as allowed; the route's notes say so.
            let (p2p, _) = topology.p2p_of(id);
            let forwards =
                Forwards { reads: p2p.reads != Some(false), writes: p2p.writes != Some(false) };
            sim.set_root_complex(nodes.at[id.0], forwards);
        }
        if let Some(parent) = node.parent {
            add_link(sim, topology, p, &mut nodes, (id, parent));
        }
    }
    for link in topology.interconnects() {
        let way = internal(link.gb_per_s, p.mesh_ns + p.socket_hop_ns);
        let spec = ChannelSpec { crosses_sockets: !link.in_package, ..way };
        sim.add_channel(nodes.at[link.a.0], nodes.at[link.b.0], spec);
        sim.add_channel(nodes.at[link.b.0], nodes.at[link.a.0], spec);
    }
    cross_chips(sim, topology, p, &nodes);
    nodes
}

/// Time that a TLP spends inside a node before it can leave.
fn inside_ns(kind: Kind, p: &Params) -> f64 {
    match kind {
        Kind::RootComplex => p.root_complex_ns,
        Kind::Switch => p.switch_ns,
        _ => 0.0,
    }
}

/// Adds the two channels between a node and its parent.
fn add_link(
    sim: &mut Sim,
    topology: &Topology,
    p: &Params,
    nodes: &mut Nodes,
    (id, parent): (NodeId, NodeId),
) {
    let (node, above) = (topology.node(id), topology.node(parent));
    let mesh_ns = match above.kind {
        Kind::Socket if node.kind == Kind::NumaNode => p.numa_ns / 2.0,
        Kind::Socket | Kind::NumaNode => p.mesh_ns / 2.0,
        _ => 0.0,
    };
    let mut up = match node.link {
        Some(link) => pcie(link, p.link_ns, p),
        None => internal(node.mesh_gb_per_s.unwrap_or(INSIDE_GB_PER_S), mesh_ns),
    };
    let mut down = up;
    up.inside_ps = Params::ps(inside_ns(above.kind, p));
    down.inside_ps = Params::ps(inside_ns(node.kind, p));
    // A root complex cuts TLPs that it forwards between its ports and out of them.
    if above.kind == Kind::RootComplex {
        let (p2p, _) = topology.p2p_of(parent);
        up.cut_bytes = p2p.tlp_bytes.unwrap_or(0);
        let [near, far] = [p2p.limits(), p2p.far_limits()];
        (down.peer_gb_per_s, down.far_gb_per_s) = ([near[0], 0.0, near[1]], [far[0], 0.0, far[1]]);
    }
    // A root port joins completions from host memory that wait for its link, whether the tree shows
    // it as a node or not.
    down.joins = matches!(above.kind, Kind::RootComplex | Kind::RootPort) && node.link.is_some();
    if node.kind == Kind::RootComplex {
        down.cut_bytes = topology.cut_of(id).map_or(0, |cut| cut.0);
    }
    let port_ns = match node.kind {
        Kind::Gpu => Some(p.gpu_port_ns),
        Kind::Nic => Some(p.nic_port_ns),
        _ => None,
    };
    if port_ns.is_some() {
        down.credits = down.credits.of_endpoint();
        // Moved by a third, a yes stays a yes.
        up.by_source = p.engines_in_turn > 0.5;
    }
    let (own, top) = (nodes.at[id.0], nodes.at[parent.0]);
    let shared = nodes.port[topology.link_of(id).0];
    let end = port_ns.map_or(own, |ns| {
        let port = shared.unwrap_or_else(|| sim.add_node());
        nodes.port[id.0] = Some(port);
        let mut out = internal(1000.0, ns);
        if node.kind == Kind::Gpu {
            out.tlp_ps = [Params::ps(p.gpu_write_ns), Params::ps(p.gpu_read_ns), 0];
        }
        sim.add_channel(own, port, out);
        sim.add_channel(port, own, internal(1000.0, ns));
        port
    });
    if shared.is_none() {
        sim.add_channel(end, top, up);
        sim.add_channel(top, end, down);
    }
}

/// Joins the switches of each chip that is known to cross inside.
fn cross_chips(sim: &mut Sim, topology: &Topology, p: &Params, nodes: &Nodes) {
    for chip in topology.chips().iter().filter(|c| c.crosses == Some(true)) {
        let inside = |n: &&NodeId| topology.node(**n).chip.as_ref() == Some(&chip.id);
        let switches = topology.of_kind(Kind::Switch);
        let mut way = internal(INSIDE_GB_PER_S, 0.0);
        way.inside_ps = Params::ps(p.chip_ns);
        for &a in switches.iter().filter(inside) {
            for &b in switches.iter().filter(inside).filter(|&&b| b != a) {
                sim.add_channel(nodes.at[a.0], nodes.at[b.0], way);
            }
        }
    }
}

fn pcie(link: PcieLink, latency_ns: f64, p: &Params) -> ChannelSpec {
    let generation = link.speed.generation();
    let overhead = Overhead::new(generation, Addressing::Bits64, false);
    ChannelSpec {
        unit_bytes: 4,
        overhead_bytes: [overhead.mwr_bytes, overhead.mrd_bytes, overhead.cpld_bytes],
        credits: Credits::buffers(p.credit_tlps.max(2.0) as u32, link.mps.bytes()),
        mps_bytes: link.mps.bytes(),
        // A FLIT has bytes of its own for Acks and credits.
        dllp_bytes: if generation.flit_mode() { 0 } else { p.dllp_bytes.max(0.0) as u32 },
        ..ChannelSpec::internal(link.speed.raw_gbps() / 8.0, Params::ps(latency_ns))
    }
}

impl TestBed {
    /// Builds both hosts.
    pub fn new(spec: TestBedSpec<'_>) -> Self {
        let p = spec.params;
        let mut sim = Sim::new(spec.seed);
        let (near, nodes) = host(&mut sim, &spec);
        let (far, far_nodes) = host(&mut sim, &spec);
        let mut wire = internal(p.wire_gb_per_s, p.wire_ns);
        wire.overhead_bytes = [PACKET_OVERHEAD_BYTES; 3];
        wire.mps_bytes = MTU_BYTES;
        let nics = (nodes.at[spec.nic.0], far_nodes.at[spec.nic.0]);
        sim.add_channel(nics.0, nics.1, wire);
        sim.add_channel(nics.1, nics.0, wire);
        let link = spec.topology.node(spec.nic).link;
        let mrrs_bytes = link.map_or(512, |l| l.mrrs.bytes());
        let peer_read_bytes = peer_limits(&spec).read_bytes.min(mrrs_bytes);
        let peer_reads = sim.readable(near.nic, near.hbm);
        Self { sim, near, far, mrrs_bytes, peer_read_bytes, peer_reads, nodes: nodes.at }
    }
}

impl TestBed {
    /// Time in which an SM loads a word of host memory beside the NIC, ns.
    pub(super) fn host_word_ns(&mut self) -> f64 {
        let mut p = Program::new(8);
        let (by, at) = (self.near.sm, self.near.memory);
        p.task(Step::Read { by, at, bytes: 8, addr: 0, request_bytes: 32 }, &[]);
        let run = self.sim.run(vec![Load { program: p, window: 1, count: 1 }]);
        // Host memory is no peer: nothing refuses it, and one read alone ends.
        run.map_or(0.0, |r| r[0].median_ns())
    }
}

/// Limits of a device's reads from a peer by the root complexes on the way.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerLimits {
    /// Reads open at once.
    pub slots: f64,
    /// Largest read.
    pub read_bytes: u32,
}

impl PeerLimits {
    /// Limits on one way.
    pub fn of(topology: &Topology, by: NodeId, at: NodeId) -> Self {
        let route = topology.route(by, at);
        let p2p = || route.roots(topology).map(|n| topology.node(n).p2p);
        let slots = p2p().filter_map(|p| p.read_slots).min();
        let read_bytes = p2p().filter_map(|p| p.read_bytes).min().unwrap_or(u32::MAX);
        Self { slots: slots.map_or(f64::INFINITY, f64::from), read_bytes }
    }

    /// Reads that a requester with so many tags and requests of `mrrs_bytes` has open, each of them
    /// cut to `read_bytes` by a root complex.
    pub fn tags(self, tags: f64, mrrs_bytes: u32) -> f64 {
        let pieces = mrrs_bytes.div_ceil(self.read_bytes.min(mrrs_bytes));
        (tags * f64::from(pieces)).min(self.slots)
    }
}

fn peer_limits(spec: &TestBedSpec<'_>) -> PeerLimits {
    PeerLimits::of(spec.topology, spec.nic, spec.gpu)
}

fn host(sim: &mut Sim, spec: &TestBedSpec<'_>) -> (Host, Nodes) {
    let p = spec.params;
    let t = spec.topology;
    let nodes = add_host(sim, t, p);
    let (gpu, nic) = (nodes.at[spec.gpu.0], nodes.at[spec.nic.0]);
    let near = t.memory_of(spec.nic).unwrap_or(NodeId(0));
    nodes.set_ways(sim, t, &[spec.gpu, spec.nic, near]);
    let socket = nodes.at[near.0];
    let way = internal(p.nic_memory_gb_per_s, 0.0);
    let mrrs_bytes = t.node(spec.nic).link.map_or(512, |l| l.mrrs.bytes());
    let peer_tags = peer_limits(spec).tags(p.nic_tags, mrrs_bytes);
    let core = internal(200.0, p.mesh_ns / 2.0);
    let rates = MemoryRates::of(t.node(near)).unwrap_or(MemoryRates::UNKNOWN);
    let host = Host {
        sm: attach_sm(sim, gpu, p, Sms::new(p.blocks, p.sm_read_lines)),
        hbm: attach_hbm(sim, gpu, p),
        nic: attach(sim, nic, way, way, endpoint(p.nic_tags, 0.0, ANSWER_BYTES, false)),
        nic_peer: attach(sim, nic, way, way, endpoint(peer_tags, 0.0, ANSWER_BYTES, false)),
        window: attach(sim, nic, way, way, endpoint(1.0, 0.0, ANSWER_BYTES, false)),
        memory: attach_memory(sim, socket, p, rates),
        cpu: attach(sim, socket, core, core, endpoint(16.0, 0.0, 64, true)),
        nic_memory: sim.add_server(),
    };
    let requesters = [(spec.gpu, host.sm), (spec.nic, host.nic), (spec.nic, host.nic_peer)];
    for (device, endpoint) in requesters {
        sim.set_order(endpoint, t.node(device).relaxed_ordering.into());
    }
    // What the GPU answers; its SMs' own TLPs are lines anyhow.
    sim.set_packets(host.hbm, t.packets_of(spec.gpu).map_or(u32::MAX, |packets| packets.0));
    let mut iotlb = None;
    for (_, endpoint) in requesters.into_iter().filter(|(n, _)| t.is_translated(*n)) {
        let iotlb = *iotlb.get_or_insert_with(|| sim.add_iotlb(IotlbSpec::of(p)));
        sim.translate(endpoint, iotlb);
    }
    (host, nodes)
}
