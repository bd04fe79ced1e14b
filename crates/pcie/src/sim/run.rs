//! The runner: starts tasks, keeps the queues of sources filled, answers reads, collects results.

use super::calendar::Event;
use super::channel::{Class, Ps};
use super::fabric::{NONE, Outcome};
use super::{
    Completer, Instance, Load, LoadResult, Order, ReadRequest, Running, Sim, SimError, Slab, Step,
    Transfer, Until, Waiting,
};
use crate::tlp::PAGE_BYTES;

/// TLPs that a source keeps ready in its own queue.
const SOURCE_QUEUE: u32 = 3;

/// Step and mixer of splitmix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Sim {
    /// Runs loads concurrently until all have ended.
    ///
    /// # Errors
    /// A step that cannot be, or a deadlock.
    pub fn run(&mut self, loads: Vec<Load>) -> Result<Vec<LoadResult>, SimError> {
        self.run_with(loads, false)
    }

    /// The same, but that the polling phases of a load's runs are spread evenly over their ranges:
    /// the mean of few runs is that of many with drawn phases.
    ///
    /// # Errors
    /// As [`Sim::run`].
    pub fn run_spread(&mut self, loads: Vec<Load>) -> Result<Vec<LoadResult>, SimError> {
        self.spread = Some(self.random());
        let results = self.run_with(loads, false);
        self.spread = None;
        results
    }

    /// The same, but that a load which has done its runs goes on, for at most as many again, until
    /// all have: what is measured of each is beside all others.
    ///
    /// # Errors
    /// As [`Sim::run`].
    pub fn run_together(&mut self, loads: Vec<Load>) -> Result<Vec<LoadResult>, SimError> {
        self.run_with(loads, true)
    }

    /// The same, but only until each load's rate is known: what is in flight then is left there,
    /// and no total is known. The rates are those of [`Sim::run`].
    ///
    /// # Errors
    /// As [`Sim::run`].
    pub fn run_until_steady(mut self, loads: Vec<Load>) -> Result<Vec<LoadResult>, SimError> {
        self.until_steady = true;
        self.run_with(loads, false)
    }

    fn run_with(&mut self, loads: Vec<Load>, together: bool) -> Result<Vec<LoadResult>, SimError> {
        self.together = together;
        self.unfinished = loads.len();
        self.unsteady = loads.len();
        self.running.clear();
        for mut load in loads {
            load.program.check()?;
            for i in 0..load.program.tasks.len() {
                let ends = match load.program.tasks[i].step {
                    Step::Write { from, to, .. } => {
                        if !self.writable(from, to) {
                            return Err(SimError::NoPeerWrites { from: from.0, to: to.0 });
                        }
                        (from, to)
                    }
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
            self.running.push(Running {
                load,
                started: 0,
                result,
                first_sum_ps: 0,
                last_sum_ps: 0,
            });
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
                Event::Piece(request) => self.send_piece(request),
                Event::Timer(timer) => self.task_done(timer),
                Event::Drained(id) => self.write_drained(id),
            }
            while let Some(channel) = self.fabric.drained.pop() {
                match self.endpoint_of_channel.get(channel as usize) {
                    Some(&endpoint) if endpoint != NONE => self.refill(endpoint),
                    _ => {}
                }
            }
            if self.until_steady && self.unsteady == 0 {
                return Ok(self.running.drain(..).map(|r| r.result).collect());
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
        let count = running.load.count;
        let beside = self.together && self.unfinished > 0 && running.started < 2 * count;
        if running.started >= count && !beside {
            return;
        }
        let run = running.started;
        running.started += 1;
        let tasks = &running.load.program.tasks;
        let id = self.free_instances.pop().unwrap_or_else(|| {
            self.instances.push(Instance::default());
            self.instances.len() as u32 - 1
        });
        assert!(id < 1 << 16, "under 65536 operations are in flight");
        let instance = &mut self.instances[id as usize];
        instance.load = load;
        instance.serial = self.begun;
        (instance.run, instance.polls) = (run, 0);
        self.begun += 1;
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

    pub(super) fn random(&mut self) -> u64 {
        self.rng = self.rng.wrapping_add(GOLDEN);
        mixed(self.rng)
    }

    /// A polling phase, as a share of 2^64. Spread phases are a Latin hypercube (McKay, Beckman,
    /// Conover 1979) of midpoints: the n-th phase of a load's runs takes each of as many equal parts
    /// of its range as there are runs, once, in an order of its own.
    fn phase(&mut self, instance: u32) -> u64 {
        let Some(seed) = self.spread else { return self.random() };
        let Instance { load, run, polls, .. } = &mut self.instances[instance as usize];
        *polls += 1;
        let order = mixed(seed ^ *polls);
        let place = |run: u64| mixed(order.wrapping_add(run.wrapping_mul(GOLDEN)));
        let (own, runs) = (place(*run), self.running[*load as usize].load.count);
        let part = (0..runs).filter(|&other| place(other) < own).count() as u128;
        (((2 * part + 1) << 63) / u128::from(runs)) as u64
    }

    /// The longest of `pieces` random waits, each exponentially distributed with this mean.
    pub(super) fn slowest(&mut self, pieces: u64, mean_ps: Ps) -> Ps {
        if mean_ps == 0 {
            return 0;
        }
        let mut least = u64::MAX;
        for _ in 0..pieces {
            least = least.min(self.random());
        }
        // From (0, 1], so that the logarithm is finite.
        let uniform = (least as f64 + 1.0) / (u64::MAX as f64 + 1.0);
        (mean_ps as f64 * -uniform.ln()) as Ps
    }

    fn start_task(&mut self, instance: u32, task: u16) {
        let Instance { load, serial, .. } = self.instances[instance as usize];
        let (step, route, segment, is_first) = {
            let t = &self.running[load as usize].load.program.tasks[task as usize];
            (t.step, t.route, t.segment, t.is_first)
        };
        let timer = instance << 16 | u32::from(task);
        let now = self.cal.now;
        match step {
            Step::Delay { ps } => self.cal.at(now + ps, Event::Timer(timer)),
            Step::Uniform { min_ps, max_ps } => {
                // By scaling: ranges that are nearly equal give waits that are nearly equal.
                let span = u128::from((max_ps - min_ps).max(1));
                let ps = min_ps + ((u128::from(self.phase(instance)) * span) >> 64) as Ps;
                self.cal.at(now + ps, Event::Timer(timer));
            }
            Step::Serve { server, ps } => {
                let free = &mut self.servers[server.0 as usize];
                *free = now.max(*free) + ps;
                let at = *free;
                self.cal.at(at, Event::Timer(timer));
            }
            Step::Take { ring, slots } => self.take_slots(ring, slots, timer),
            Step::Give { ring, slots } => {
                self.give_slots(ring, slots);
                self.cal.at(now, Event::Timer(timer));
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
                    rank: segment.map_or(0, |s| (serial + 1) << 16 | u64::from(s)),
                    page: 0,
                    ready_ps: 0,
                };
                let id = self.transfers.put(transfer);
                self.endpoints[from.0 as usize].writes.put(id, &self.transfers);
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
                    rank: if is_first { 1 } else { 2 },
                    page: 0,
                    ready_ps: 0,
                };
                let id = self.transfers.put(transfer);
                self.endpoints[by.0 as usize].reads.put(id, &self.transfers);
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
            // Both ends of the steady state have a full window in flight. Operations that share a
            // link or a ring end in groups: each end is the mean over a window of them.
            let (count, window) = (running.load.count, u64::from(running.load.window.max(1)));
            let first = count.div_ceil(4).max(2 * window).min(count);
            let full = count.saturating_sub(window);
            let last = if full > first { full } else { count };
            let ends = |end: u64| r.done <= end && r.done + window > end;
            running.first_sum_ps += if ends(first) { u128::from(now) } else { 0 };
            running.last_sum_ps += if ends(last) { u128::from(now) } else { 0 };
            if r.done == last {
                self.unsteady -= 1;
                r.steady_runs = last.saturating_sub(first).max(u64::from(count == 1));
                let between = running.last_sum_ps - running.first_sum_ps;
                r.steady_ps =
                    if count == 1 { now - start } else { (between / u128::from(window)) as Ps };
            }
            if r.done == count {
                r.total_ps = now;
                self.unfinished -= 1;
            }
            self.start_instance(load);
        }
    }

    /// Tops up an endpoint's own queues.
    fn refill(&mut self, endpoint: u32) {
        while let Some(&id) = self.endpoints[endpoint as usize].writes.0.front() {
            let t = self.transfers.items[id as usize];
            if self.fabric.backlog(t.route, Class::Posted, SOURCE_QUEUE) >= SOURCE_QUEUE {
                break;
            }
            let bytes = next_piece(&t);
            let transfer = &mut self.transfers.items[id as usize];
            transfer.to_send -= bytes;
            transfer.addr += u64::from(bytes);
            if transfer.to_send == 0 {
                self.endpoints[endpoint as usize].writes.0.pop_front();
                if t.until == Until::Sent {
                    self.cal.at(self.cal.now, Event::Timer(t.timer));
                }
            }
            let header = (t.route, Class::Posted, id);
            self.fabric.inject(&mut self.cal, header, bytes, (false, t.rank));
        }
        while let Some(&id) = self.endpoints[endpoint as usize].reads.0.front() {
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
                self.endpoints[endpoint as usize].reads.0.pop_front();
            }
            let header = (t.route, Class::NonPosted, request);
            self.fabric.inject(&mut self.cal, header, 0, (false, 0));
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
                let left = t.to_arrive;
                let visible = self.write_translated(owner, left);
                self.drain_write(owner, bytes, visible);
                if left > 0 {
                    return;
                }
                let t = self.transfers.items[owner as usize];
                self.transfers.take(owner);
                match t.until {
                    Until::Sent => {}
                    Until::Visible => self.cal.at(visible, Event::Timer(t.timer)),
                    Until::Acked => {
                        let back = self.fabric.route_ack_ps(t.route + 1);
                        self.cal.at(visible + back, Event::Timer(t.timer));
                    }
                }
            }
            Class::NonPosted => {
                let request = self.requests.items[owner as usize];
                let c = self.endpoints[request.completer as usize].spec.completer;
                let pieces = request.pieces(c.rcb_bytes);
                let known = self.read_translated(request.transfer, request.addr);
                let slowest = self.slowest(pieces, c.wait_ps);
                let endpoint = &mut self.endpoints[request.completer as usize];
                let start = (self.cal.now + c.latency_ps).max(endpoint.completer_free);
                endpoint.completer_free = start + pieces * c.piece_ps;
                // The waits for the lines overlap, as do those of other requests; so do walks.
                let walk = known - self.cal.now;
                self.cal.at(start + walk + slowest + c.piece_ps, Event::Piece(owner));
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

    fn send_piece(&mut self, id: u32) {
        let request = &mut self.requests.items[id as usize];
        let spec = self.endpoints[request.completer as usize].spec;
        let transfer = &self.transfers.items[request.transfer as usize];
        let back = transfer.route + 1;
        // A completion has the attributes of its request (PCIe base specification 2.2.9).
        let relaxed = self.endpoints[transfer.endpoint as usize].order == Order::Relaxed;
        let at = request.addr + u64::from(request.bytes - request.to_send);
        let bytes = spec.completer.piece(at, request.to_send, self.fabric.route_mps(back));
        request.to_send -= bytes;
        let more = request.to_send > 0;
        let header = (back, Class::Completion, id);
        self.fabric.inject(&mut self.cal, header, bytes, (relaxed, 0));
        if more {
            self.cal.at(self.cal.now + spec.completer.piece_ps, Event::Piece(id));
        }
    }
}

impl Waiting {
    /// Queues a transfer, before those of higher rank.
    fn put(&mut self, id: u32, transfers: &Slab<Transfer>) {
        let rank = |id: u32| transfers.items[id as usize].rank;
        let own = rank(id);
        let passes = |other: &&u32| own > 0 && rank(**other) > own;
        let passed = self.0.iter().rev().take_while(passes).count();
        self.0.insert(self.0.len() - passed, id);
    }
}

fn next_piece(t: &Transfer) -> u32 {
    let to_page = (PAGE_BYTES - t.addr % PAGE_BYTES) as u32;
    t.piece_bytes.min(to_page).min(t.to_send)
}

impl Completer {
    /// Length of the next completion of `left` bytes from address `at`, as in `split_completion_mps`
    /// and `split_completion_rcb`.
    fn piece(&self, at: u64, left: u32, mps_bytes: u32) -> u32 {
        let boundary = self.rcb_bytes.min(mps_bytes);
        if !self.merges {
            return left.min(boundary - (at % u64::from(boundary)) as u32);
        }
        if left <= mps_bytes {
            return left;
        }
        mps_bytes - ((at + u64::from(mps_bytes)) % u64::from(boundary)) as u32
    }
}

impl ReadRequest {
    /// Number of completions of the whole request.
    fn pieces(&self, rcb_bytes: u32) -> u64 {
        let rcb = u64::from(rcb_bytes);
        (self.addr + u64::from(self.bytes)).div_ceil(rcb) - self.addr / rcb
    }
}
