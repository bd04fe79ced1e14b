//! Builds the simulated fabric of a topology: two hosts, joined by a wire.

use super::{ChannelSpec, Completer, Credits, EndpointId, EndpointSpec, Params, ServerId, Sim};
use crate::tlp::{Addressing, Overhead};
use crate::topology::{Kind, NodeId, PcieLink, Topology};

/// Bytes that RoCEv2 adds to the data of one packet: Ethernet with preamble, FCS and gap 38, IPv4
/// 20, UDP 8, BTH 12, ICRC 4.
const PACKET_OVERHEAD_BYTES: u32 = 82;
/// Smallest unit between an SM and L2, and smallest fetch of a load.
pub(super) const SECTOR_BYTES: u32 = 32;
/// Path MTU.
pub(super) const MTU_BYTES: u32 = 4096;

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
    let completer = Completer { latency_ps, piece_ps: 0, rcb_bytes, wait_ps: 0 };
    EndpointSpec { tags: tags.max(1.0) as u32, completer, relaxed: false, host_side }
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
    attach(sim, node, out, back, endpoint(sms.lines * sms.blocks, 0.0, 128, false))
}

/// Adds a GPU's memory.
pub(super) fn attach_hbm(sim: &mut Sim, node: u32, p: &Params) -> EndpointId {
    let way = internal(3000.0, p.hbm_ns);
    let out = ChannelSpec { joins: true, ..way };
    attach(sim, node, out, way, endpoint(64.0, 0.0, 128, false))
}

/// Adds a socket's memory whose lines lie in a cache: a core or a device has just written them.
pub(super) fn attach_memory(sim: &mut Sim, node: u32, p: &Params) -> EndpointId {
    let way = internal(200.0, p.mesh_ns / 2.0);
    attach(sim, node, way, way, endpoint(64.0, p.memory_ns, 64, true))
}

/// Adds a socket's memory whose lines lie in no cache. Half of a DRAM access is the access itself,
/// equal for every line. The other half is waiting (banks, refresh, other requests), random and
/// independent for every line: a reader of many lines waits for the slowest of them.
pub(super) fn attach_dram(sim: &mut Sim, node: u32, p: &Params) -> EndpointId {
    let way = internal(200.0, p.mesh_ns / 2.0);
    let mut spec = endpoint(64.0, p.memory_ns + p.dram_ns / 2.0, 64, true);
    spec.completer.wait_ps = Params::ps(p.dram_ns / 2.0);
    attach(sim, node, way, way, spec)
}

/// Adds the nodes and channels of one host. Returns the simulator's node of each topology node. The
/// latency of a device's port lies inside the device: it is no part of a link's credit loop.
pub(super) fn add_host(sim: &mut Sim, topology: &Topology, p: &Params) -> Vec<u32> {
    let nodes: Vec<u32> = topology.nodes().map(|_| sim.add_node()).collect();
    // Latency that a node adds to a channel at one of its ends.
    let share = |id: NodeId| match topology.node(id).kind {
        Kind::Socket => p.mesh_ns / 2.0,
        Kind::RootComplex => p.root_complex_ns / 2.0,
        Kind::RootPort => 0.0,
        Kind::Switch => p.switch_ns / 2.0,
        Kind::Gpu | Kind::Nic => 0.0,
    };
    for (id, node) in topology.nodes() {
        if node.kind == Kind::RootComplex {
            sim.set_root_complex(nodes[id.0], node.p2p.reads);
        }
        let Some(parent) = node.parent else { continue };
        let latency_ns = share(id) + share(parent);
        let mut up = match node.link {
            Some(link) => pcie(link, latency_ns + p.link_ns, p),
            None => internal(500.0, latency_ns),
        };
        let mut down = up;
        // A root complex cuts TLPs that it forwards between its ports and out of them.
        let above = topology.node(parent);
        if above.kind == Kind::RootComplex {
            up.cut_bytes = above.p2p.tlp_bytes.unwrap_or(0);
            down.peer_gb_per_s = above.p2p.cap_gb_per_s.unwrap_or(0.0);
            // The root port joins completions from host memory that wait for the link.
            down.joins = true;
        }
        if node.kind == Kind::RootComplex {
            down.cut_bytes = node.p2p.tlp_bytes.unwrap_or(0);
        }
        let port_ns = match node.kind {
            Kind::Gpu => Some(p.gpu_port_ns),
            Kind::Nic => Some(p.nic_port_ns),
            _ => None,
        };
        if port_ns.is_some() {
            down.credits = down.credits.of_endpoint();
        }
        let end = port_ns.map_or(nodes[id.0], |ns| {
            let port = sim.add_node();
            let mut out = internal(1000.0, ns);
            if node.kind == Kind::Gpu {
                out.tlp_ps = [Params::ps(p.gpu_write_ns), Params::ps(p.gpu_read_ns), 0];
            }
            sim.add_channel(nodes[id.0], port, out);
            sim.add_channel(port, nodes[id.0], internal(1000.0, ns));
            port
        });
        sim.add_channel(end, nodes[parent.0], up);
        sim.add_channel(nodes[parent.0], end, down);
    }
    for link in topology.interconnects() {
        let latency_ns = share(link.a) + share(link.b) + p.socket_hop_ns;
        let spec = internal(link.gb_per_s, latency_ns);
        sim.add_channel(nodes[link.a.0], nodes[link.b.0], spec);
        sim.add_channel(nodes[link.b.0], nodes[link.a.0], spec);
    }
    nodes
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
        let nics = (nodes[spec.nic.0], far_nodes[spec.nic.0]);
        sim.add_channel(nics.0, nics.1, wire);
        sim.add_channel(nics.1, nics.0, wire);
        let link = spec.topology.node(spec.nic).link;
        let mrrs_bytes = link.map_or(512, |l| l.mrrs.bytes());
        let peer_reads = sim.readable(near.nic, near.hbm);
        Self { sim, near, far, mrrs_bytes, peer_reads, nodes }
    }
}

fn host(sim: &mut Sim, spec: &TestBedSpec<'_>) -> (Host, Vec<u32>) {
    let p = spec.params;
    let nodes = add_host(sim, spec.topology, p);
    let (gpu, nic) = (nodes[spec.gpu.0], nodes[spec.nic.0]);
    let socket = spec.topology.socket_of(spec.nic).unwrap_or(NodeId(0));
    let socket = nodes[socket.0];
    let way = internal(p.nic_memory_gb_per_s, 0.0);
    let path = spec.topology.path(spec.nic, spec.gpu);
    let slots = path.iter().filter_map(|&n| spec.topology.node(n).p2p.read_slots).min();
    let peer_tags = slots.map_or(p.nic_tags, |slots| p.nic_tags.min(f64::from(slots)));
    let core = internal(200.0, p.mesh_ns / 2.0);
    let host = Host {
        sm: attach_sm(sim, gpu, p, Sms::new(p.blocks, p.sm_read_lines)),
        hbm: attach_hbm(sim, gpu, p),
        nic: attach(sim, nic, way, way, endpoint(p.nic_tags, 0.0, 128, false)),
        nic_peer: attach(sim, nic, way, way, endpoint(peer_tags, 0.0, 128, false)),
        window: attach(sim, nic, way, way, endpoint(1.0, 0.0, 128, false)),
        memory: attach_memory(sim, socket, p),
        cpu: attach(sim, socket, core, core, endpoint(16.0, 0.0, 64, true)),
        nic_memory: sim.add_server(),
    };
    (host, nodes)
}
