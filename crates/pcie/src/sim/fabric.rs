//! The fabric: channels, queues and credits, one TLP at a time.
//!
//! A channel is one direction of a link, with a queue of each class for each of its inputs. Here are
//! the channels, the ways through them, and what waits in the queues; what a channel sends next, and
//! when, is in `serve`. State is kept per outstanding TLP, so memory does not grow with simulated
//! time.

mod serve;

use std::collections::VecDeque;

use super::calendar::Calendar;
use super::channel::{Carried, ChannelSpec, Class, Credits, Ps};

/// No index.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
pub(super) struct Tlp {
    pub route: u32,
    /// Owner: a transfer for writes, a read request for the other classes.
    pub owner: u32,
    /// Data bytes on the wire.
    pub bytes: u32,
    /// Upstream channel whose credit this TLP holds.
    holds: u32,
    holds_units: u32,
    seq: u32,
    next: u32,
    pub hop: u16,
    pub class: Class,
    relaxed: bool,
    /// Its place in the queues inside its source's device: behind those of lower or equal rank.
    rank: u64,
    /// Lines that it takes of the root port's buffer at this hop.
    lines: u16,
}

#[derive(Debug, Clone, Copy)]
struct Queue {
    head: u32,
    tail: u32,
}

/// What a root port has of writes on their way to host memory, beyond the link's credits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pool {
    /// Lines of its buffer that are free.
    left: u32,
    /// When the last write that drained in order was done.
    pub done: Ps,
}

/// No buffer, or one without limit.
const NO_POOL: Pool = Pool { left: u32::MAX, done: 0 };
/// A line of host memory, and of a root port's buffer.
pub(super) const LINE_BYTES: u32 = 64;

#[derive(Debug)]
struct Channel {
    spec: ChannelSpec,
    ps_per_mib: u64,
    inputs: Vec<[Queue; 3]>,
    /// Buffer of the root port of each input.
    pools: Vec<Pool>,
    /// Upstream channel of each input; `NONE` for the endpoint's own.
    upstream: Vec<u32>,
    queued: u32,
    turn: u32,
    seq: u32,
    busy_until: Ps,
    wake_at: Ps,
    headers_left: [u32; 3],
    data_left: [u32; 3],
    returns: VecDeque<(Ps, Class, u32)>,
    finite: bool,
    blocked: bool,
    /// The other direction of the link, where the far end's DLLPs travel.
    reverse: u32,
    carried: Carried,
}

#[derive(Debug)]
struct Route {
    hops: Vec<u32>,
    inputs: Vec<u32>,
    peer_to_peer: bool,
    /// Whether it is peer-to-peer and crosses sockets.
    is_far: bool,
    mps_bytes: u32,
    ack_ps: Ps,
    /// Hops whose queues lie inside the source's device: up to its link.
    inside: u16,
    /// Hop at which its writes take lines of a root port's buffer; `NO_HOP`: at none.
    drain_hop: u16,
}

/// No hop.
const NO_HOP: u16 = u16::MAX;

/// A TLP that reached the end of its route, or the notice that a TLP left its source.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    Nothing,
    Delivered { class: Class, owner: u32, bytes: u32 },
}

#[derive(Debug, Default)]
pub(super) struct Fabric {
    channels: Vec<Channel>,
    routes: Vec<Route>,
    tlps: Vec<Tlp>,
    free: u32,
    live: u32,
    /// TLPs transmitted, summed over hops.
    pub hops_done: u64,
    /// Data bytes that sources injected and that ends of routes consumed.
    pub injected_bytes: u64,
    pub delivered_bytes: u64,
    /// Channels whose source queue has released a TLP since the driver last looked.
    pub drained: Vec<u32>,
}

impl Fabric {
    pub fn new() -> Self {
        Self { free: NONE, ..Self::default() }
    }

    pub fn add_channel(&mut self, spec: ChannelSpec) -> u32 {
        let finite = spec.credits != Credits::INFINITE;
        self.channels.push(Channel {
            spec,
            ps_per_mib: ((1u64 << 20) as f64 * 1000.0 / spec.gb_per_s).round() as u64,
            inputs: Vec::new(),
            pools: Vec::new(),
            upstream: Vec::new(),
            queued: 0,
            turn: 0,
            seq: 0,
            busy_until: 0,
            wake_at: 0,
            headers_left: spec.credits.headers,
            data_left: spec.credits.data,
            returns: VecDeque::new(),
            finite,
            blocked: false,
            reverse: NONE,
            carried: Carried::default(),
        });
        self.channels.len() as u32 - 1
    }

    /// Limits the bandwidth of a channel's peer-to-peer TLPs of a class, wherever they come from.
    pub fn limit(&mut self, channel: u32, class: Class, gb_per_s: f64) {
        let spec = &mut self.channels[channel as usize].spec;
        for caps in [&mut spec.peer_gb_per_s, &mut spec.far_gb_per_s] {
            caps[class as usize] = gb_per_s;
        }
    }

    /// Makes two channels the directions of one link.
    pub fn pair(&mut self, a: u32, b: u32) {
        self.channels[a as usize].reverse = b;
        self.channels[b as usize].reverse = a;
    }

    fn input(&mut self, channel: u32, upstream: u32) -> u32 {
        let c = &mut self.channels[channel as usize];
        if let Some(i) = c.upstream.iter().position(|&u| u == upstream) {
            return i as u32;
        }
        c.upstream.push(upstream);
        c.inputs.push([Queue { head: NONE, tail: NONE }; 3]);
        c.pools.push(NO_POOL);
        c.inputs.len() as u32 - 1
    }

    /// Adds a way for packets of at most so many bytes.
    pub fn add_route(&mut self, hops: Vec<u32>, peer_to_peer: bool, most_bytes: u32) -> u32 {
        let mut inputs = Vec::with_capacity(hops.len());
        let mut upstream = NONE;
        for &hop in &hops {
            let own = self.channels[hop as usize].spec.by_source;
            inputs.push(self.input(hop, if own { hops[0] } else { upstream }));
            upstream = hop;
        }
        let spec = |&h: &u32| &self.channels[h as usize].spec;
        let mps_bytes = hops.iter().map(|h| spec(h).mps_bytes).min().unwrap_or(128);
        let mps_bytes = mps_bytes.min(most_bytes);
        let is_far = peer_to_peer && hops.iter().any(|h| spec(h).crosses_sockets);
        let ack_ps = hops.iter().map(|h| spec(h).latency_ps + spec(h).inside_ps).sum();
        let link = hops.iter().position(|&h| self.channels[h as usize].finite);
        let inside = link.map_or(0, |hop| hop as u16 + 1);
        let drain_hop = NO_HOP;
        self.routes.push(Route {
            hops,
            inputs,
            peer_to_peer,
            is_far,
            mps_bytes,
            ack_ps,
            inside,
            drain_hop,
        });
        self.routes.len() as u32 - 1
    }

    /// Has the writes of a route take lines of the buffer of the root port through which they come
    /// to a hop. All routes through one port have the same.
    pub fn drain(&mut self, route: u32, hop: u16, lines: u32) {
        let r = &mut self.routes[route as usize];
        r.drain_hop = hop;
        let (channel, input) = (r.hops[hop as usize], r.inputs[hop as usize]);
        let lines = lines.max(r.mps_bytes.div_ceil(LINE_BYTES));
        let pool = &mut self.channels[channel as usize].pools[input as usize];
        if pool.left == u32::MAX {
            pool.left = lines;
        }
    }

    /// The root port's buffer of a route that has one.
    pub fn pool(&mut self, route: u32) -> Option<&mut Pool> {
        let r = self.routes.get(route as usize).filter(|r| r.drain_hop != NO_HOP)?;
        let (channel, input) = (r.hops[r.drain_hop as usize], r.inputs[r.drain_hop as usize]);
        Some(&mut self.channels[channel as usize].pools[input as usize])
    }

    /// Gives lines of a root port's buffer back.
    pub fn drained(&mut self, cal: &mut Calendar, route: u32, lines: u32) {
        let Some(pool) = self.pool(route) else { return };
        pool.left += lines;
        let r = &self.routes[route as usize];
        let channel = r.hops[r.drain_hop as usize];
        if self.channels[channel as usize].blocked {
            self.dispatch(cal, channel);
        }
    }

    pub fn spec_of(&self, channel: u32) -> &ChannelSpec {
        &self.channels[channel as usize].spec
    }

    /// The other direction of a channel's link, whose rate carries its DLLPs.
    pub fn reverse_of(&self, channel: u32) -> Option<u32> {
        Some(self.channels[channel as usize].reverse).filter(|&c| c != NONE)
    }

    pub fn route_mps(&self, route: u32) -> u32 {
        self.routes[route as usize].mps_bytes
    }

    /// Latency of an acknowledgement on this route, unloaded.
    pub fn route_ack_ps(&self, route: u32) -> Ps {
        self.routes[route as usize].ack_ps
    }

    pub fn carried(&self, channel: u32) -> Carried {
        self.channels[channel as usize].carried
    }

    pub fn live(&self) -> u32 {
        self.live
    }

    pub fn slab(&self) -> usize {
        self.tlps.len()
    }

    fn alloc(&mut self, tlp: Tlp) -> u32 {
        self.live += 1;
        if self.free == NONE {
            self.tlps.push(tlp);
            return self.tlps.len() as u32 - 1;
        }
        let id = self.free;
        self.free = self.tlps[id as usize].next;
        self.tlps[id as usize] = tlp;
        id
    }

    fn release(&mut self, id: u32) {
        self.live -= 1;
        self.tlps[id as usize].next = self.free;
        self.free = id;
    }

    /// Puts a TLP into the queue of its source.
    pub fn inject(
        &mut self,
        cal: &mut Calendar,
        (route, class, owner): (u32, Class, u32),
        bytes: u32,
        (relaxed, rank): (bool, u64),
    ) {
        self.injected_bytes += u64::from(bytes);
        let r = &self.routes[route as usize];
        let (channel, input) = (r.hops[0], r.inputs[0]);
        let tlp = Tlp {
            route,
            owner,
            bytes,
            holds: NONE,
            holds_units: 0,
            seq: 0,
            next: NONE,
            hop: 0,
            class,
            relaxed,
            rank,
            lines: 0,
        };
        if self.join(channel, input, &tlp) {
            return;
        }
        let id = self.alloc(tlp);
        self.offer(cal, channel, input, id);
    }

    /// Joins a completion with the preceding one of the same read, if that waits at the tail of its
    /// queue.
    fn join(&mut self, channel: u32, input: u32, tlp: &Tlp) -> bool {
        let c = &self.channels[channel as usize];
        let route = &self.routes[tlp.route as usize];
        // A root complex does not join completions that it forwards between its ports.
        if !c.spec.joins || tlp.class != Class::Completion || (route.peer_to_peer && tlp.hop > 0) {
            return false;
        }
        let tail = c.inputs[input as usize][tlp.class as usize].tail;
        if tail == NONE {
            return false;
        }
        let t = &mut self.tlps[tail as usize];
        let fits = t.bytes + tlp.bytes <= route.mps_bytes;
        let joined = t.owner == tlp.owner && t.route == tlp.route && fits;
        if joined {
            t.bytes += tlp.bytes;
        }
        joined
    }

    /// Length of the source's own queue, counted up to `limit`.
    pub fn backlog(&self, route: u32, class: Class, limit: u32) -> u32 {
        let r = &self.routes[route as usize];
        let queue = self.channels[r.hops[0] as usize].inputs[r.inputs[0] as usize][class as usize];
        let (mut at, mut n) = (queue.head, 0);
        while at != NONE && n < limit {
            at = self.tlps[at as usize].next;
            n += 1;
        }
        n
    }

    fn enqueue(&mut self, channel: u32, input: u32, id: u32) {
        if self.enqueue_by_rank(channel, input, id) {
            return;
        }
        let c = &mut self.channels[channel as usize];
        let tlp = &mut self.tlps[id as usize];
        tlp.seq = c.seq;
        tlp.next = NONE;
        c.seq = c.seq.wrapping_add(1);
        c.queued += 1;
        let queue = &mut c.inputs[input as usize][tlp.class as usize];
        let tail = std::mem::replace(&mut queue.tail, id);
        if tail == NONE {
            queue.head = id;
        } else {
            self.tlps[tail as usize].next = id;
        }
    }

    /// Puts a TLP that is still inside its source's device before those of higher rank. `false`:
    /// there are none.
    fn enqueue_by_rank(&mut self, channel: u32, input: u32, id: u32) -> bool {
        let tlp = self.tlps[id as usize];
        let queue = self.channels[channel as usize].inputs[input as usize][tlp.class as usize];
        let behind = |at: u32| at == NONE || self.tlps[at as usize].rank <= tlp.rank;
        if tlp.rank == 0 || tlp.hop >= self.routes[tlp.route as usize].inside || behind(queue.tail)
        {
            return false;
        }
        let (mut before, mut at) = (NONE, queue.head);
        while behind(at) {
            (before, at) = (at, self.tlps[at as usize].next);
        }
        // The sequence of the one that it passes: what waited for that one waits for both.
        let seq = self.tlps[at as usize].seq;
        let own = &mut self.tlps[id as usize];
        (own.seq, own.next) = (seq, at);
        let c = &mut self.channels[channel as usize];
        c.queued += 1;
        if before == NONE {
            c.inputs[input as usize][tlp.class as usize].head = id;
        } else {
            self.tlps[before as usize].next = id;
        }
        true
    }

    /// Handles an arrival at the end of a hop.
    pub fn arrive(&mut self, cal: &mut Calendar, id: u32) -> Outcome {
        let tlp = self.tlps[id as usize];
        let route = &self.routes[tlp.route as usize];
        let here = route.hops[tlp.hop as usize];
        let hop = tlp.hop as usize + 1;
        let units = tlp.bytes.div_ceil(16);
        let last = hop == route.hops.len();
        self.send_dllp(cal.now, here);
        if last {
            self.delivered_bytes += u64::from(tlp.bytes);
            self.give_back(cal, here, tlp.class, units);
            self.release(id);
            return Outcome::Delivered { class: tlp.class, owner: tlp.owner, bytes: tlp.bytes };
        }
        let route = &self.routes[tlp.route as usize];
        let (next, input, p2p) = (route.hops[hop], route.inputs[hop], route.peer_to_peer);
        let drains = tlp.class == Class::Posted && usize::from(route.drain_hop) == hop;
        let lines = if drains { tlp.bytes.div_ceil(LINE_BYTES) as u16 } else { 0 };
        let finite = self.channels[here as usize].finite;
        let cut = self.channels[here as usize].spec.cut_bytes;
        let mut bytes = tlp.bytes;
        if p2p && cut > 0 {
            // All but the last fragment are new TLPs; the last one holds the buffer's credit.
            while bytes > cut {
                let fragment = Tlp { bytes: cut, hop: hop as u16, holds: NONE, ..tlp };
                let f = self.alloc(fragment);
                self.enqueue(next, input, f);
                bytes -= cut;
            }
        }
        let holds = if finite { here } else { NONE };
        let t = Tlp { bytes, hop: hop as u16, lines, holds, holds_units: units, ..tlp };
        self.tlps[id as usize] = t;
        if self.join(next, input, &t) {
            self.give_back(cal, here, t.class, units);
            self.release(id);
            return Outcome::Nothing;
        }
        self.offer(cal, next, input, id);
        Outcome::Nothing
    }
}
