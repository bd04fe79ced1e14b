//! Event simulation at TLP level.
//!
//! [`Sim`] is a fabric of channels between nodes, endpoints that write, read and complete, and a
//! runner of [`Program`]s. It is deterministic: the same seed gives the same numbers, bit for bit.
//! Memory depends on what is outstanding, not on simulated time.

mod build;
mod fabric;
mod h200;
mod hosts;
mod ops;
mod params;
mod program;
mod study;

use std::collections::{HashMap, VecDeque};

use thiserror::Error;

pub use fabric::{Carried, ChannelSpec, Class, Credits, Ps};
pub use program::{EndpointId, Load, LoadResult, Program, ServerId, Step, TaskId, Until};

pub use build::{Host, Rig, RigSpec};
pub use h200::{
    Curve, CurveRow, H200_CURVES, H200_HOPS, HopPath, HopRow, simulate_curve, simulate_doorbell,
    simulate_hop,
};
pub use hosts::{HOST_RESIDUALS, HOST_ROWS, HostRow, Metric, NfpHost, simulate_host_row};
pub use ops::{Path, Prediction, predict};
pub use params::Params;

pub use study::{
    Cause, Crossing, Loss, SensitivityRow, SweepRow, crossings, losses, plot_svg, sensitivity,
    sweep, window_needed_bytes,
};

use fabric::{Calendar, Event, Fabric, NONE, Outcome};

use super::tlp::PAGE_BYTES;

/// TLPs that a source keeps ready in its own queue.
const SOURCE_QUEUE: u32 = 3;

/// How a completer cuts what it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    /// At every multiple of RCB.
    Never,
    /// At RCB, but a piece joins the one that still waits for the link, up to MPS.
    Waiting,
    /// Up to MPS at once.
    Always,
}

/// How an endpoint answers reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Completer {
    /// From the request's arrival to the first piece.
    pub latency_ps: Ps,
    /// A request occupies the completer's one server for this long,
    pub request_ps: Ps,
    /// and every RCB piece of it for this long.
    pub piece_ps: Ps,
    /// Read completion boundary.
    pub rcb_bytes: u32,
    /// How pieces are cut.
    pub combine: Combine,
}

/// An endpoint: requester and completer in one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EndpointSpec {
    /// Read requests that may be outstanding.
    pub tags: u32,
    /// How it answers.
    pub completer: Completer,
    /// Its completions carry the relaxed-ordering attribute.
    pub relaxed: bool,
    /// Host memory or a CPU: traffic with it is not peer-to-peer.
    pub host_side: bool,
}

#[derive(Debug)]
struct Endpoint {
    spec: EndpointSpec,
    node: u32,
    tags_free: u32,
    writes: VecDeque<u32>,
    reads: VecDeque<u32>,
    completer_free: Ps,
}

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

/// Slots of fixed-size records, reused.
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

#[derive(Debug)]
struct Instance {
    load: u32,
    start: Ps,
    tasks_left: u32,
    waits: Vec<u16>,
}

#[derive(Debug)]
struct Running {
    load: Load,
    started: u64,
    result: LoadResult,
    quarter_ps: Ps,
}

/// The simulation could not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SimError {
    /// Nothing left to happen, and work left to do.
    #[error("deadlock after {time_ps} ps: {instances} operations unfinished, {tlps} TLPs stuck")]
    Deadlock {
        /// When.
        time_ps: Ps,
        /// Operations.
        instances: usize,
        /// TLPs.
        tlps: u32,
    },
    /// A step names endpoints that no channels join.
    #[error("no way from endpoint {from} to endpoint {to}")]
    NoRoute {
        /// Source.
        from: u32,
        /// Destination.
        to: u32,
    },
    /// Credits that can never hold one TLP, or a read that a root complex does not forward.
    #[error("endpoint {by} cannot read endpoint {at}: a root complex on the way forwards no reads")]
    NoPeerReads {
        /// Requester.
        by: u32,
        /// Completer.
        at: u32,
    },
}

/// The simulator.
#[derive(Debug)]
pub struct Sim {
    cal: Calendar,
    fabric: Fabric,
    /// Channels that leave each node: (far node, channel).
    nodes: Vec<Vec<(u32, u32)>>,
    /// Nodes that turn peer traffic around, and whether they forward reads.
    turns: Vec<Option<bool>>,
    endpoints: Vec<Endpoint>,
    endpoint_of_channel: HashMap<u32, u32>,
    routes: HashMap<(u32, u32), u32>,
    servers: Vec<Ps>,
    transfers: Slab<Transfer>,
    requests: Slab<ReadRequest>,
    instances: Vec<Instance>,
    free_instances: Vec<u32>,
    running: Vec<Running>,
    rng: u64,
}

impl Sim {
    /// An empty fabric.
    pub fn new(seed: u64) -> Self {
        Self {
            cal: Calendar::default(),
            fabric: Fabric::new(),
            nodes: Vec::new(),
            turns: Vec::new(),
            endpoints: Vec::new(),
            endpoint_of_channel: HashMap::new(),
            routes: HashMap::new(),
            servers: Vec::new(),
            transfers: Slab::default(),
            requests: Slab::default(),
            instances: Vec::new(),
            free_instances: Vec::new(),
            running: Vec::new(),
            rng: seed ^ 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Adds a node; the number is its name.
    pub fn add_node(&mut self) -> u32 {
        self.nodes.push(Vec::new());
        self.turns.push(None);
        self.nodes.len() as u32 - 1
    }

    /// Marks a node as a root complex: a route over it is peer traffic, and reads are forwarded or
    /// not.
    pub fn set_root_complex(&mut self, node: u32, forwards_reads: bool) {
        self.turns[node as usize] = Some(forwards_reads);
    }

    /// Adds a channel from one node to another.
    pub fn add_channel(&mut self, from: u32, to: u32, spec: ChannelSpec) -> u32 {
        let channel = self.fabric.add_channel(spec);
        self.nodes[from as usize].push((to, channel));
        channel
    }

    /// Puts an endpoint on a node that has exactly one channel out.
    pub fn add_endpoint(&mut self, node: u32, spec: EndpointSpec) -> EndpointId {
        let id = self.endpoints.len() as u32;
        self.endpoints.push(Endpoint {
            spec,
            node,
            tags_free: spec.tags,
            writes: VecDeque::new(),
            reads: VecDeque::new(),
            completer_free: 0,
        });
        for &(_, channel) in &self.nodes[node as usize] {
            self.endpoint_of_channel.insert(channel, id);
        }
        EndpointId(id)
    }

    /// Adds a serial server.
    pub fn add_server(&mut self) -> ServerId {
        self.servers.push(0);
        ServerId(self.servers.len() as u32 - 1)
    }

    /// TLP transmissions so far, each hop counted: the measure of the simulator's speed.
    pub fn tlp_events(&self) -> u64 {
        self.fabric.hops_done
    }

    /// Data bytes that entered the fabric, and that left it.
    pub fn bytes_in_out(&self) -> (u64, u64) {
        (self.fabric.injected_bytes, self.fabric.delivered_bytes)
    }

    /// Simulated time.
    pub fn now_ps(&self) -> Ps {
        self.cal.now
    }

    /// What a channel carried so far.
    pub fn carried(&self, channel: u32) -> Carried {
        self.fabric.carried(channel)
    }

    /// Records allocated for TLPs, transfers, read requests and instances: the simulator's memory.
    pub fn records(&self) -> usize {
        self.fabric.slab()
            + self.transfers.items.len()
            + self.requests.items.len()
            + self.instances.len()
    }

    /// After a run: nothing outstanding, every tag free, every credit back.
    pub fn at_rest(&self) -> bool {
        self.fabric.live() == 0
            && self.transfers.live() == 0
            && self.requests.live() == 0
            && self.endpoints.iter().all(|e| e.tags_free == e.spec.tags)
            && self.fabric.credits_conserved()
    }

    /// Fewest hops from one node to another.
    fn hops(&self, from: u32, to: u32) -> Option<Vec<(u32, u32)>> {
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

    /// The route and, always at the next number, the way back.
    fn route(&mut self, from: EndpointId, to: EndpointId) -> Result<u32, SimError> {
        if let Some(&route) = self.routes.get(&(from.0, to.0)) {
            return Ok(route);
        }
        let (a, b) = (self.endpoints[from.0 as usize].node, self.endpoints[to.0 as usize].node);
        let no_route = SimError::NoRoute { from: from.0, to: to.0 };
        let out = self.hops(a, b).ok_or(no_route)?;
        let back = self.hops(b, a).ok_or(no_route)?;
        let peer = self.is_peer(from, to)
            && out.iter().any(|&(node, _)| self.turns[node as usize].is_some());
        let route = self.fabric.add_route(out.iter().map(|h| h.1).collect(), peer);
        self.fabric.add_route(back.iter().map(|h| h.1).collect(), peer);
        self.routes.insert((from.0, to.0), route);
        Ok(route)
    }

    fn is_peer(&self, a: EndpointId, b: EndpointId) -> bool {
        !self.endpoints[a.0 as usize].spec.host_side && !self.endpoints[b.0 as usize].spec.host_side
    }

    fn readable(&self, by: EndpointId, at: EndpointId) -> bool {
        if !self.is_peer(by, at) {
            return true;
        }
        let node = |e: EndpointId| self.endpoints[e.0 as usize].node;
        let hops = self.hops(node(by), node(at)).unwrap_or_default();
        hops.iter().all(|&(n, _)| self.turns[n as usize] != Some(false))
    }

    /// Runs loads side by side until all are over.
    pub fn run(&mut self, loads: Vec<Load>) -> Result<Vec<LoadResult>, SimError> {
        let begin = self.cal.now;
        self.running.clear();
        for mut load in loads {
            for i in 0..load.program.tasks.len() {
                let ends = match load.program.tasks[i].step {
                    Step::Write { from, to, .. } => (from, to),
                    Step::Read { by, at, .. } => {
                        if !self.readable(by, at) {
                            return Err(SimError::NoPeerReads { by: by.0, at: at.0 });
                        }
                        (by, at)
                    }
                    _ => continue,
                };
                load.program.tasks[i].route = self.route(ends.0, ends.1)?;
            }
            let result = LoadResult { bytes: load.program.bytes, ..LoadResult::default() };
            self.running.push(Running { load, started: 0, result, quarter_ps: begin });
        }
        for load in 0..self.running.len() as u32 {
            for _ in 0..self.running[load as usize].load.window {
                self.start_instance(load);
            }
        }
        while let Some(event) = self.cal.pop() {
            match event {
                Event::Arrive(tlp) => {
                    if let Outcome::Delivered { class, owner, bytes } =
                        self.fabric.arrive(&mut self.cal, tlp)
                    {
                        self.delivered(class, owner, bytes);
                    }
                }
                Event::Wake(channel) => self.fabric.wake(&mut self.cal, channel),
                Event::Piece(request) => self.emit_piece(request),
                Event::Timer(timer) => self.task_done(timer),
            }
            while let Some(channel) = self.fabric.drained.pop() {
                if let Some(&endpoint) = self.endpoint_of_channel.get(&channel) {
                    self.refill(endpoint);
                }
            }
        }
        let unfinished = self.instances.len() - self.free_instances.len();
        if unfinished > 0 {
            return Err(SimError::Deadlock {
                time_ps: self.cal.now,
                instances: unfinished,
                tlps: self.fabric.live(),
            });
        }
        Ok(self.running.drain(..).map(|r| r.result).collect())
    }

    fn start_instance(&mut self, load: u32) {
        let running = &mut self.running[load as usize];
        if running.started == running.load.count {
            return;
        }
        running.started += 1;
        let tasks = &running.load.program.tasks;
        let id = self.free_instances.pop().unwrap_or_else(|| {
            self.instances.push(Instance { load, start: 0, tasks_left: 0, waits: Vec::new() });
            self.instances.len() as u32 - 1
        });
        assert!(id < 1 << 16, "under 65536 operations are in flight");
        let instance = &mut self.instances[id as usize];
        instance.load = load;
        instance.start = self.cal.now;
        instance.tasks_left = tasks.len() as u32;
        instance.waits.clear();
        instance.waits.extend(tasks.iter().map(|t| t.waits_for));
        let ready: Vec<u16> =
            (0..tasks.len() as u16).filter(|&t| tasks[t as usize].waits_for == 0).collect();
        for task in ready {
            self.start_task(id, task);
        }
    }

    fn random(&mut self) -> u64 {
        // splitmix64.
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn start_task(&mut self, instance: u32, task: u16) {
        let load = self.instances[instance as usize].load;
        let (step, route) = {
            let t = &self.running[load as usize].load.program.tasks[task as usize];
            (t.step, t.route)
        };
        let timer = instance << 16 | u32::from(task);
        let now = self.cal.now;
        match step {
            Step::Delay { ps } => self.cal.at(now + ps, Event::Timer(timer)),
            Step::Uniform { min_ps, max_ps } => {
                let ps = min_ps + self.random() % (max_ps - min_ps).max(1);
                self.cal.at(now + ps, Event::Timer(timer));
            }
            Step::Serve { server, ps } => {
                let free = &mut self.servers[server.0 as usize];
                *free = now.max(*free) + ps;
                let at = *free;
                self.cal.at(at, Event::Timer(timer));
            }
            Step::Write { from, bytes, addr, tlp_bytes, until, .. } => {
                let piece_bytes = tlp_bytes.min(self.fabric.route_mps(route)).max(1);
                let transfer = Transfer {
                    route,
                    endpoint: from.0,
                    to_send: bytes,
                    to_arrive: bytes,
                    piece_bytes,
                    addr,
                    timer,
                    until,
                };
                let id = self.transfers.put(transfer);
                self.endpoints[from.0 as usize].writes.push_back(id);
                self.refill(from.0);
            }
            Step::Read { by, bytes, addr, request_bytes, .. } => {
                let transfer = Transfer {
                    route,
                    endpoint: by.0,
                    to_send: bytes,
                    to_arrive: bytes,
                    piece_bytes: request_bytes.max(1),
                    addr,
                    timer,
                    until: Until::Visible,
                };
                let id = self.transfers.put(transfer);
                self.endpoints[by.0 as usize].reads.push_back(id);
                self.refill(by.0);
            }
        }
    }

    fn task_done(&mut self, timer: u32) {
        let (id, task) = (timer >> 16, timer as u16);
        let now = self.cal.now;
        let instance = &mut self.instances[id as usize];
        let load = instance.load;
        let start = instance.start;
        instance.tasks_left -= 1;
        let over = instance.tasks_left == 0;
        let t = &self.running[load as usize].load.program.tasks[task as usize];
        let (mark, count) = (t.mark, t.then.len());
        if let Some(mark) = mark {
            let sums = &mut self.running[load as usize].result.mark_sum_ps;
            sums[mark as usize] += u128::from(now - start);
        }
        for i in 0..count {
            let next = self.running[load as usize].load.program.tasks[task as usize].then[i];
            let waits = &mut self.instances[id as usize].waits[next as usize];
            *waits -= 1;
            if *waits == 0 {
                self.start_task(id, next);
            }
        }
        if over {
            self.free_instances.push(id);
            let running = &mut self.running[load as usize];
            let r = &mut running.result;
            r.done += 1;
            if r.latencies_ps.len() < LoadResult::SAMPLES {
                r.latencies_ps.push(now - start);
            }
            // Both ends of the steady state have a full window in flight.
            let count = running.load.count;
            let first = count.div_ceil(4);
            let last = count.saturating_sub(u64::from(running.load.window)).max(first + 1);
            if r.done == first {
                running.quarter_ps = now;
            }
            if r.done == last.min(count) {
                r.steady_runs = r.done.saturating_sub(first).max(u64::from(count == 1));
                r.steady_ps = now - if count == 1 { start } else { running.quarter_ps };
            }
            if r.done == count {
                r.total_ps = now;
            }
            self.start_instance(load);
        }
    }

    /// Tops up an endpoint's own queues.
    fn refill(&mut self, endpoint: u32) {
        while let Some(&id) = self.endpoints[endpoint as usize].writes.front() {
            let t = self.transfers.items[id as usize];
            if self.fabric.backlog(t.route, Class::Posted, SOURCE_QUEUE) >= SOURCE_QUEUE {
                break;
            }
            let bytes = next_piece(&t);
            let transfer = &mut self.transfers.items[id as usize];
            transfer.to_send -= bytes;
            transfer.addr += u64::from(bytes);
            if transfer.to_send == 0 {
                self.endpoints[endpoint as usize].writes.pop_front();
                if t.until == Until::Sent {
                    self.cal.at(self.cal.now, Event::Timer(t.timer));
                }
            }
            let header = (t.route, Class::Posted, id);
            self.fabric.inject(&mut self.cal, header, bytes, false, 0);
        }
        while let Some(&id) = self.endpoints[endpoint as usize].reads.front() {
            let t = self.transfers.items[id as usize];
            if self.endpoints[endpoint as usize].tags_free == 0
                || self.fabric.backlog(t.route, Class::NonPosted, SOURCE_QUEUE) >= SOURCE_QUEUE
            {
                break;
            }
            let bytes = next_piece(&t);
            let completer = self.completer_of(t.timer);
            let request = self.requests.put(ReadRequest {
                transfer: id,
                addr: t.addr,
                bytes,
                to_send: bytes,
                to_arrive: bytes,
                completer,
            });
            self.endpoints[endpoint as usize].tags_free -= 1;
            let transfer = &mut self.transfers.items[id as usize];
            transfer.to_send -= bytes;
            transfer.addr += u64::from(bytes);
            if transfer.to_send == 0 {
                self.endpoints[endpoint as usize].reads.pop_front();
            }
            let header = (t.route, Class::NonPosted, request);
            self.fabric.inject(&mut self.cal, header, 0, false, 0);
        }
    }

    fn completer_of(&self, timer: u32) -> u32 {
        let load = self.instances[(timer >> 16) as usize].load;
        let task = &self.running[load as usize].load.program.tasks[timer as u16 as usize];
        match task.step {
            Step::Read { at, .. } => at.0,
            _ => NONE,
        }
    }

    fn delivered(&mut self, class: Class, owner: u32, bytes: u32) {
        match class {
            Class::Posted => {
                let t = &mut self.transfers.items[owner as usize];
                t.to_arrive -= bytes;
                if t.to_arrive > 0 {
                    return;
                }
                let t = *t;
                self.transfers.take(owner);
                match t.until {
                    Until::Sent => {}
                    Until::Visible => self.cal.at(self.cal.now, Event::Timer(t.timer)),
                    Until::Acked => {
                        let back = self.fabric.route_ack_ps(t.route + 1);
                        self.cal.at(self.cal.now + back, Event::Timer(t.timer));
                    }
                }
            }
            Class::NonPosted => {
                let request = self.requests.items[owner as usize];
                let endpoint = &mut self.endpoints[request.completer as usize];
                let c = endpoint.spec.completer;
                let pieces = u64::from(pieces(request.addr, request.to_send, c.rcb_bytes));
                let start = (self.cal.now + c.latency_ps).max(endpoint.completer_free);
                endpoint.completer_free = start + c.request_ps + pieces * c.piece_ps;
                self.cal.at(start + c.request_ps + c.piece_ps, Event::Piece(owner));
            }
            Class::Completion => {
                let request = &mut self.requests.items[owner as usize];
                request.to_arrive -= bytes;
                if request.to_arrive > 0 {
                    return;
                }
                let id = request.transfer;
                let length = request.bytes;
                self.requests.take(owner);
                let t = &mut self.transfers.items[id as usize];
                t.to_arrive -= length;
                let t = *t;
                self.endpoints[t.endpoint as usize].tags_free += 1;
                if t.to_arrive == 0 {
                    self.transfers.take(id);
                    self.cal.at(self.cal.now, Event::Timer(t.timer));
                }
                self.refill(t.endpoint);
            }
        }
    }

    fn emit_piece(&mut self, id: u32) {
        let request = self.requests.items[id as usize];
        let spec = self.endpoints[request.completer as usize].spec;
        let c = spec.completer;
        let back = self.transfers.items[request.transfer as usize].route + 1;
        let mps = self.fabric.route_mps(back);
        let at = request.addr + u64::from(request.bytes - request.to_send);
        let limit = if c.combine == Combine::Always { mps } else { c.rcb_bytes };
        let mut bytes = request.to_send.min(limit - (at % u64::from(limit)) as u32);
        if c.combine == Combine::Always && request.to_send > mps {
            bytes = mps - ((at + u64::from(mps)) % u64::from(c.rcb_bytes)) as u32;
        } else if c.combine == Combine::Always {
            bytes = request.to_send;
        }
        let merge = if c.combine == Combine::Waiting { mps } else { 0 };
        self.requests.items[id as usize].to_send -= bytes;
        let header = (back, Class::Completion, id);
        self.fabric.inject(&mut self.cal, header, bytes, spec.relaxed, merge);
        let left = request.to_send - bytes;
        if left > 0 {
            let n = u64::from(pieces(at + u64::from(bytes), left.min(limit), c.rcb_bytes));
            self.cal.at(self.cal.now + n * c.piece_ps, Event::Piece(id));
        }
    }
}

fn next_piece(t: &Transfer) -> u32 {
    let to_page = (PAGE_BYTES - t.addr % PAGE_BYTES) as u32;
    t.piece_bytes.min(to_page).min(t.to_send)
}

fn pieces(addr: u64, bytes: u32, rcb: u32) -> u32 {
    let rcb = u64::from(rcb);
    ((addr + u64::from(bytes)).div_ceil(rcb) - addr / rcb) as u32
}

#[cfg(test)]
mod tests;
