//! Event simulation at the level of TLPs.
//!
//! [`Sim`] holds a fabric of channels between nodes, endpoints that write, read and complete, and a
//! runner of [`Program`]s. The simulation is deterministic: the same seed gives the same numbers,
//! bit for bit. Its memory grows with the outstanding TLPs, not with simulated time.
//!
//! | files | what |
//! |---|---|
//! | `program`, `run`, `calendar` | steps, what runs them, events in their order |
//! | `fabric`, `fabric/serve`, `channel` | queues and ways, what a link sends next, its credits |
//! | `order`, `iotlb`, `ring` | writes into host memory, translation, slots of a window |
//! | `build`, `params`, `nic` | hosts of a topology, the numbers that it does not give, NICs |
//! | `decides` | the nearest limits of a rate |
//! | `ops`, `flows`, `collapse` | operations of every path, streams side by side |
//! | `study`, `what`, `rank`, `imprint`, `part` | sweeps, questions, advice; what hangs on what |
//! | `hosts`, `iommu`, `h200`, `peers`, `order_rows`, `copies` | rows that others and we measured |
//! | `copy_order`, `first` | copies that wait for each other, what was said without later rules |
//! | `probe`, `probe_names`, `calibrate`, `fit`, `derivatives` | `bellpush link`, fits, their worth |

mod build;
mod calendar;
mod calibrate;
mod channel;
mod collapse;
mod collapse_rows;
mod copies;
mod copy_machines;
mod copy_order;
mod copy_rows;
mod copy_sim;
mod decides;
mod derivatives;
mod fabric;
mod first;
mod fit;
mod flows;
mod h200;
mod hosts;
mod imprint;
mod iommu;
mod iotlb;
mod nfp_sizes;
mod nic;
mod ops;
mod order;
mod order_rows;
mod packets;
mod parallel;
mod params;
mod part;
mod peers;
mod probe;
mod probe_names;
mod program;
mod rank;
mod ring;
mod run;
mod second_machines;
mod second_rows;
mod study;
mod third_rows;
mod what;
mod work;

use std::collections::{HashMap, VecDeque};

use thiserror::Error;

pub use channel::{Carried, ChannelSpec, Class, Credits, Ps};
pub use program::{EndpointId, Load, LoadResult, Program, RingId, ServerId, Step, TaskId, Until};

pub use build::{Host, TestBed, TestBedSpec};
pub use calibrate::{CALIBRATION, Calibration, calibrate, fitted};
pub use collapse::{Fan, fair_streams, fair_writes, fans, schedule, warnings};
pub use collapse_rows::COLLAPSE_ROWS;
pub use copies::{At, Copied, CopyMachine, CopyQuestion, CopyRow, DeviceAt, End, SwitchAt};
pub use copy_order::CopyStream;
pub use copy_rows::{COPY_ROWS, copy_rows};
pub use copy_sim::{crosses_sockets, simulate_copy_row, simulate_copy_row_first};
pub use decides::{Decides, Nearest, decides, flows_decided};
pub use derivatives::{Derivative, derivatives};
pub use first::{Answer, MOVED, answer_copy_row, answer_peer_row};
pub use fit::{Group, LeftOut, leave_one_out};
pub use flows::{
    Flow, Move, flow_latency_ns, flow_transmissions, simulate_flows, simulate_messages,
    simulate_small,
};
pub use h200::{
    Curve, CurveRow, H200_CURVES, H200_HOPS, H200_THREADS, HopPath, HopRow, simulate_curve,
    simulate_doorbell, simulate_hop,
};
pub use hosts::{
    HOST_CHECKS, HOST_RESIDUALS, HOST_ROWS, HostCheck, HostRow, Metric, NfpDevice, NfpHost,
    simulate_host_row, simulate_nfp,
};
pub use iommu::{IOMMU_ROWS, IOMMU_WINDOWS_KIB, iommu_row_is_fitted, simulate_iommu_row};
pub use iotlb::IotlbSpec;
pub use nfp_sizes::{NFP_SIZES, NfpSize};
pub use nic::{NicModel, NoNic};
pub use ops::{LAYOUT, LAYOUT_IN_HOST, Layout, NO_CARD, PathModel, Prediction, predict};
pub use order::Order;
pub use order_rows::{ORDER_ROWS, OrderMachine, OrderRow, simulate_order};
pub use params::{ParamError, Params};
pub use part::{
    Compared, has_part_in_flows, has_part_in_operation, has_part_in_ranks, has_part_in_rows,
    knob_has_part_in_operation,
};
pub use peers::{PEER_ROWS, PeerRow, Standing, Traffic, simulate_peer_row};
pub use probe::{Access, BURST_THREADS, Held, Machine, Pattern, Probe, Target, predict_probe};
pub use second_rows::SECOND_COPY_ROWS;
pub use third_rows::THIRD_COPY_ROWS;

pub use rank::{
    EQUAL, Figure, GOALS, Goal, HangsOn, MOVE, Origins, Ranking, Ranks, Tie, rank, unknown_roots,
    unknown_sockets,
};
pub use study::{
    Cause, Crossing, Loss, SensitivityRow, SweepRow, crossings, impossible, losses, sensitivity,
    sweep, window_needed_bytes,
};

pub use what::{Axis, Known, MOST_COMBINATIONS, Question, WhatError};
pub use work::{MOST_TRANSMISSIONS, check_steps, transmissions};

use calendar::Calendar;
use fabric::Fabric;

/// Timing and cutting of an endpoint's completions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Completer {
    /// Time from a request's arrival to the first completion.
    pub latency_ps: Ps,
    /// Least time between two completions, of any request.
    pub piece_ps: Ps,
    /// Read completion boundary: a completion ends at a multiple of it. Completions of one request
    /// that wait for a channel with [`ChannelSpec::joins`] travel as one TLP.
    pub rcb_bytes: u32,
    /// Whether it merges what it returns up to MPS, so that completions but the last end at a
    /// multiple of `rcb_bytes`; else it cuts at every multiple.
    pub merges: bool,
    /// Mean of the extra wait of each RCB unit beyond `latency_ps`, exponentially distributed and
    /// independent. A request is answered after the longest of its waits.
    pub wait_ps: Ps,
}

/// An endpoint: requester and completer in one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EndpointSpec {
    /// Read requests that may be outstanding.
    pub tags: u32,
    /// Its behaviour as a completer.
    pub completer: Completer,
    /// Host memory or a CPU: traffic with it is not peer-to-peer.
    pub host_side: bool,
}

#[derive(Debug)]
struct Endpoint {
    spec: EndpointSpec,
    order: Order,
    packet_bytes: u32,
    node: u32,
    tags_free: u32,
    writes: Waiting,
    reads: Waiting,
    completer_free: Ps,
}

/// Transfers that wait inside their device.
#[derive(Debug, Default)]
struct Waiting(VecDeque<u32>);

#[derive(Debug, Clone, Copy)]
struct Transfer {
    route: u32,
    endpoint: u32,
    to_send: u32,
    to_arrive: u32,
    piece_bytes: u32,
    addr: u64,
    timer: u32,
    until: Until,
    /// Its place among what waits inside its device; 0: behind all.
    rank: u64,
    /// The page that was looked up last, from 1, and when its address is known.
    page: u64,
    ready_ps: Ps,
}

#[derive(Debug, Clone, Copy)]
struct ReadRequest {
    transfer: u32,
    addr: u64,
    bytes: u32,
    to_send: u32,
    to_arrive: u32,
    completer: u32,
}

/// An array of records whose places are reused.
#[derive(Debug)]
struct Slab<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    fn put(&mut self, item: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self.items[id as usize] = item;
            return id;
        }
        self.items.push(item);
        self.items.len() as u32 - 1
    }

    fn take(&mut self, id: u32) {
        self.free.push(id);
    }

    fn live(&self) -> usize {
        self.items.len() - self.free.len()
    }
}

#[derive(Debug, Default)]
struct Instance {
    load: u32,
    /// Which run of its load it is, and how many polling phases it has taken.
    run: u64,
    polls: u64,
    /// How many began before it, in this run or earlier ones.
    serial: u64,
    start: Ps,
    tasks_left: u32,
    waits: Vec<u16>,
}

#[derive(Debug)]
struct Running {
    load: Load,
    started: u64,
    result: LoadResult,
    /// Sums of the ends of a window of runs: at the steady state's begin, and at its end.
    first_sum_ps: u128,
    last_sum_ps: u128,
}

/// Reason why a simulation stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SimError {
    /// Operations are unfinished and no event is left.
    #[error("deadlock after {time_ps} ps: {instances} operations unfinished, {tlps} TLPs stuck")]
    Deadlock {
        /// Simulated time.
        time_ps: Ps,
        /// Unfinished operations.
        instances: usize,
        /// TLPs in the fabric.
        tlps: u32,
    },
    /// No channels connect two endpoints of a step.
    #[error("no way from endpoint {from} to endpoint {to}")]
    NoRoute {
        /// Source.
        from: u32,
        /// Destination.
        to: u32,
    },
    /// A root complex on the way does not forward a read.
    #[error("endpoint {by} cannot read endpoint {at}: a root complex on the way forwards no reads")]
    NoPeerReads {
        /// Requester.
        by: u32,
        /// Completer.
        at: u32,
    },
    /// A root complex on the way does not forward a write.
    #[error(
        "endpoint {from} cannot write to endpoint {to}: a root complex on the way forwards no writes"
    )]
    NoPeerWrites {
        /// Source.
        from: u32,
        /// Destination.
        to: u32,
    },
    /// An operation has more steps than a program can have.
    #[error("over 65535 steps: smaller sizes, or larger window_kib or inband_data_bytes")]
    TooManySteps,
}

/// Peer traffic that a root complex forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forwards {
    /// Memory reads.
    pub reads: bool,
    /// Memory writes.
    pub writes: bool,
}

impl Default for Forwards {
    fn default() -> Self {
        Self { reads: true, writes: true }
    }
}

/// The simulator.
#[derive(Debug)]
pub struct Sim {
    cal: Calendar,
    fabric: Fabric,
    /// Channels that leave each node: (far node, channel).
    nodes: Vec<Vec<(u32, u32)>>,
    /// Root complexes, and what they forward.
    turns: Vec<Option<Forwards>>,
    /// Ways between nodes that a router has given: all nodes, both ends included.
    ways: HashMap<(u32, u32), Vec<u32>>,
    endpoints: Vec<Endpoint>,
    /// The endpoint that a channel leaves; [`NONE`](fabric::NONE): none.
    endpoint_of_channel: Vec<u32>,
    routes: HashMap<(u32, u32), u32>,
    servers: Vec<Ps>,
    rings: Vec<ring::Ring>,
    transfers: Slab<Transfer>,
    requests: Slab<ReadRequest>,
    instances: Vec<Instance>,
    free_instances: Vec<u32>,
    begun: u64,
    /// Whether loads go on until all have done their runs, and how many have not.
    together: bool,
    unfinished: usize,
    /// Whether a run ends when all rates of a steady state are known, and how many are not.
    until_steady: bool,
    unsteady: usize,
    running: Vec<Running>,
    rng: u64,
    /// The order in which spread polling phases are taken; `None`: phases are drawn.
    spread: Option<u64>,
    iotlbs: Vec<iotlb::Iotlb>,
    /// IOTLB of each endpoint whose requests are translated, and of the routes that they take.
    iotlb_of: HashMap<u32, usize>,
    translated_routes: HashMap<u32, usize>,
    /// What a root port can hold of writes in order, as time at its link's rate.
    write_buffer_ps: Ps,
    /// How the writes of a route leave a root port's buffer.
    drains: Vec<Option<order::Drain>>,
    draining: Slab<(u32, u32)>,
}

impl Sim {
    /// A simulator with an empty fabric.
    pub fn new(seed: u64) -> Self {
        Self {
            cal: Calendar::default(),
            fabric: Fabric::new(),
            nodes: Vec::new(),
            turns: Vec::new(),
            ways: HashMap::new(),
            endpoints: Vec::new(),
            endpoint_of_channel: Vec::new(),
            routes: HashMap::new(),
            servers: Vec::new(),
            rings: Vec::new(),
            transfers: Slab::default(),
            requests: Slab::default(),
            instances: Vec::new(),
            free_instances: Vec::new(),
            begun: 0,
            together: false,
            unfinished: 0,
            until_steady: false,
            unsteady: 0,
            running: Vec::new(),
            rng: seed ^ 0x9e37_79b9_7f4a_7c15,
            spread: None,
            iotlbs: Vec::new(),
            iotlb_of: HashMap::new(),
            translated_routes: HashMap::new(),
            write_buffer_ps: 0,
            drains: Vec::new(),
            draining: Slab::default(),
        }
    }

    /// Adds a node and returns its number.
    pub fn add_node(&mut self) -> u32 {
        self.nodes.push(Vec::new());
        self.turns.push(None);
        self.nodes.len() as u32 - 1
    }

    /// Marks a node as a root complex: a route through it is peer-to-peer, and it forwards reads
    /// and writes or refuses them.
    pub fn set_root_complex(&mut self, node: u32, forwards: Forwards) {
        self.turns[node as usize] = Some(forwards);
    }

    /// Sets the way from the first node to the last. TLPs between endpoints on or beside these two
    /// take it, unless one channel joins the two (NVLink, a wire). Without it they take the fewest
    /// hops.
    pub fn set_way(&mut self, nodes: Vec<u32>) {
        if let (Some(&from), Some(&to)) = (nodes.first(), nodes.last()) {
            self.ways.insert((from, to), nodes);
        }
    }

    /// Adds a channel from one node to another.
    pub fn add_channel(&mut self, from: u32, to: u32, spec: ChannelSpec) -> u32 {
        let channel = self.fabric.add_channel(spec);
        if let Some(&(_, back)) = self.nodes[to as usize].iter().find(|&&(node, _)| node == from) {
            self.fabric.pair(channel, back);
        }
        self.nodes[from as usize].push((to, channel));
        channel
    }

    /// Puts an endpoint on a node that has exactly one channel out.
    pub fn add_endpoint(&mut self, node: u32, spec: EndpointSpec) -> EndpointId {
        let id = self.endpoints.len() as u32;
        self.endpoints.push(Endpoint {
            spec,
            order: Order::default(),
            packet_bytes: u32::MAX,
            node,
            tags_free: spec.tags,
            writes: Waiting::default(),
            reads: Waiting::default(),
            completer_free: 0,
        });
        for &(_, channel) in &self.nodes[node as usize] {
            let all = channel as usize + 1;
            let own = &mut self.endpoint_of_channel;
            own.resize(all.max(own.len()), fabric::NONE);
            own[channel as usize] = id;
        }
        EndpointId(id)
    }

    /// Adds a serial server.
    pub fn add_server(&mut self) -> ServerId {
        self.servers.push(0);
        ServerId(self.servers.len() as u32 - 1)
    }

    /// Number of TLP transmissions so far, counting each hop: the unit of the simulator's speed.
    pub fn tlp_events(&self) -> u64 {
        self.fabric.hops_done
    }

    /// Data bytes that have entered the fabric, and that have left it.
    pub fn bytes_in_out(&self) -> (u64, u64) {
        (self.fabric.injected_bytes, self.fabric.delivered_bytes)
    }

    /// Counters of a channel.
    pub fn carried(&self, channel: u32) -> Carried {
        self.fabric.carried(channel)
    }

    /// Records allocated for TLPs, transfers, read requests and instances: the simulator's memory.
    pub fn records(&self) -> usize {
        self.fabric.slab()
            + self.transfers.items.len()
            + self.requests.items.len()
            + self.draining.items.len()
            + self.instances.len()
    }

    /// Whether the fabric is idle after a run: nothing outstanding, all tags free, all credits
    /// returned.
    pub fn at_rest(&self) -> bool {
        self.fabric.live() == 0
            && self.transfers.live() == 0
            && self.requests.live() == 0
            && self.draining.live() == 0
            && self.endpoints.iter().all(|e| e.tags_free == e.spec.tags)
            && self.fabric.credits_conserved()
    }

    /// Limits the bandwidth of peer-to-peer writes between two adjacent nodes.
    fn limit_posted(&mut self, from: u32, to: u32, gb_per_s: f64) {
        if let Some((_, channel)) = self.channel(from, to) {
            self.fabric.limit(channel, Class::Posted, gb_per_s);
        }
    }

    /// The channel between two adjacent nodes.
    fn channel(&self, from: u32, to: u32) -> Option<(u32, u32)> {
        let out = self.nodes[from as usize].iter().find(|&&(node, _)| node == to)?;
        Some((from, out.1))
    }

    /// The way that was set between two endpoints' nodes, each of them on the way's end or beside
    /// it.
    fn given(&self, from: u32, to: u32) -> Option<Vec<(u32, u32)>> {
        let beside = |node: u32| match self.nodes[node as usize][..] {
            [(only, _)] => only,
            _ => node,
        };
        let (a, b) = (beside(from), beside(to));
        if self.channel(a, b).is_some() {
            return None;
        }
        let way = self.ways.get(&(a, b))?;
        let nodes: Vec<u32> = [from].iter().chain(way).chain([&to]).copied().collect();
        nodes.windows(2).filter(|w| w[0] != w[1]).map(|w| self.channel(w[0], w[1])).collect()
    }

    /// The way between two nodes, as (node, channel that leaves it).
    fn hops(&self, from: u32, to: u32) -> Option<Vec<(u32, u32)>> {
        self.given(from, to).or_else(|| self.fewest(from, to))
    }

    fn fewest(&self, from: u32, to: u32) -> Option<Vec<(u32, u32)>> {
        let mut came: Vec<Option<(u32, u32)>> = vec![None; self.nodes.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(here) = queue.pop_front() {
            if here == to {
                let mut hops = Vec::new();
                let mut at = to;
                while at != from {
                    let (before, channel) = came[at as usize]?;
                    hops.push((before, channel));
                    at = before;
                }
                hops.reverse();
                return Some(hops);
            }
            for &(next, channel) in &self.nodes[here as usize] {
                if next != from && came[next as usize].is_none() {
                    came[next as usize] = Some((here, channel));
                    queue.push_back(next);
                }
            }
        }
        None
    }

    /// The route; the route back has the next number.
    fn route(&mut self, from: EndpointId, to: EndpointId) -> Result<u32, SimError> {
        if let Some(&route) = self.routes.get(&(from.0, to.0)) {
            return Ok(route);
        }
        let ends = [from, to].map(|end| &self.endpoints[end.0 as usize]);
        let ([a, b], [own, other]) = (ends.map(|e| e.node), ends.map(|e| e.packet_bytes));
        let no_route = SimError::NoRoute { from: from.0, to: to.0 };
        let out = self.hops(a, b).ok_or(no_route)?;
        let back = self.hops(b, a).ok_or(no_route)?;
        let peer = self.is_forwarded(from, to);
        let route = self.fabric.add_route(out.iter().map(|h| h.1).collect(), peer, own);
        self.fabric.add_route(back.iter().map(|h| h.1).collect(), peer, own.min(other));
        self.routes.insert((from.0, to.0), route);
        if let Some(iotlb) = self.iotlb(from, to) {
            self.translated_routes.insert(route, iotlb);
        }
        self.drain_route(from, to, route);
        Ok(route)
    }

    fn is_peer(&self, a: EndpointId, b: EndpointId) -> bool {
        !self.endpoints[a.0 as usize].spec.host_side && !self.endpoints[b.0 as usize].spec.host_side
    }

    /// Whether what goes from one endpoint to another is peer traffic that a root complex forwards.
    fn is_forwarded(&self, from: EndpointId, to: EndpointId) -> bool {
        let node = |e: EndpointId| self.endpoints[e.0 as usize].node;
        let hops = || self.hops(node(from), node(to)).unwrap_or_default();
        self.is_peer(from, to) && hops().iter().any(|&(n, _)| self.turns[n as usize].is_some())
    }

    /// Whether every root complex on the way from one endpoint to another forwards what `what`
    /// tells. Host memory is no peer.
    fn forwards(&self, from: EndpointId, to: EndpointId, what: fn(&Forwards) -> bool) -> bool {
        if !self.is_peer(from, to) {
            return true;
        }
        let node = |e: EndpointId| self.endpoints[e.0 as usize].node;
        let hops = self.hops(node(from), node(to)).unwrap_or_default();
        hops.iter().all(|&(n, _)| self.turns[n as usize].as_ref().is_none_or(what))
    }

    fn readable(&self, by: EndpointId, at: EndpointId) -> bool {
        self.forwards(by, at, |f| f.reads)
    }

    fn writable(&self, from: EndpointId, to: EndpointId) -> bool {
        self.forwards(from, to, |f| f.writes)
    }
}

#[cfg(test)]
mod tests;
