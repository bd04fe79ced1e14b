//! Whole operations on every path: from the GPU's first store to the completion that it sees.
//!
//! [`Layout::Best`] is the layout that suits a path best, which is not the default one. WQE and
//! doorbell record lie in GPU memory, behind one fence of GPU scope (`reach::gpu`). By default
//! endpoints keep both in host memory, behind a fence of system scope, with a second fence on
//! silicon (`order::strict`): [`Layout::Card`]. [`LAYOUT`] says so in the output.

use super::build::{Host, MTU_BYTES, TestBed, TestBedSpec};
use super::{EndpointId, Load, LoadResult, Params, Program, RingId, SimError, Step, TaskId, Until};

/// The model of a path: mover of the data, and kick of the NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum PathModel {
    /// Payload into the window, system fence, WQE, DBR, fence, doorbell, WQE fetch.
    #[cfg_attr(feature = "serde", serde(rename = "push/kernel"))]
    PushKernel,
    /// In-band lines: no fence, no doorbell.
    #[cfg_attr(feature = "serde", serde(rename = "push/inband"))]
    PushInband,
    /// WQE with inline payload in the doorbell store; small payloads only.
    #[cfg_attr(feature = "serde", serde(rename = "push/blueflame"))]
    PushBlueflame,
    /// Doorbell, WQE fetch, payload fetch: standard GPUDirect RDMA.
    #[cfg_attr(feature = "serde", serde(rename = "pull"))]
    Pull,
    /// Pipelined copy to host memory; the CPU posts; the NIC fetches there.
    #[cfg_attr(feature = "serde", serde(rename = "staged"))]
    Staged,
}

/// Assumption behind the modelled doorbell paths, in one sentence.
pub const LAYOUT: &str = "push/kernel and pull: modelled with WQE and doorbell record in GPU memory behind one fence of GPU \
     scope; endpoints keep them in host memory by default, behind a system-scope fence (two on a card): longer";
/// The same where the NIC cannot read the GPU's memory: it fetches WQEs from the host's.
pub const LAYOUT_IN_HOST: &str = "push/kernel: modelled with WQE and doorbell record in host memory behind one fence of system scope, as the \
     NIC cannot read GPU memory here; a card has two: longer";
/// Requirement of the paths without a fence, in one sentence.
pub const NO_CARD: &str = "push/inband and push/blueflame: modelled as the software NIC takes them, without a fence; no card \
     does (on a card BlueFlame saves the WQE's fetch and no fence)";

/// Where queues lie and what orders them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Layout {
    /// WQE, doorbell record and CQE in GPU memory, one fence of GPU scope; push/inband and
    /// push/blueflame with none, as the software NIC takes them.
    #[default]
    Best,
    /// A ConnectX (docs/hardware.md): WQE, record and CQE in host memory, a fence of system scope
    /// before the record and another before the doorbell or the BlueFlame buffer
    /// (`order::strict`), the GPU polls host memory. BlueFlame saves the fetch of the WQE alone.
    Card,
}

impl PathModel {
    /// All paths.
    pub const ALL: [Self; 5] =
        [Self::PushKernel, Self::PushInband, Self::PushBlueflame, Self::Pull, Self::Staged];

    /// The path's name, as in the rest of bellpush.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PushKernel => "push/kernel",
            Self::PushInband => "push/inband",
            Self::PushBlueflame => "push/blueflame",
            Self::Pull => "pull",
            Self::Staged => "staged",
        }
    }

    /// Largest payload in bytes; `None`: unlimited. The BlueFlame buffer has 256 B, of which
    /// control segment, remote address and inline header take 36.
    pub const fn max_bytes(self) -> Option<u64> {
        match self {
            Self::PushBlueflame => Some(220),
            _ => None,
        }
    }

    pub(super) fn carries(self, bytes: u32) -> bool {
        bytes > 0 && self.max_bytes().is_none_or(|max| u64::from(bytes) <= max)
    }
}

/// Simulated costs of one path and size.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Prediction {
    /// Mean time until the last byte is in the remote GPU's memory, ns.
    pub delivered_ns: f64,
    /// Mean time until the sender sees the completion, ns; staged at both ends, until the last byte is
    /// in the remote GPU's memory.
    pub completed_ns: f64,
    /// Payload bandwidth with `in_flight` operations at once, GB/s.
    pub gb_per_s: f64,
    /// Number of operations at once.
    pub in_flight: u32,
}

/// Piece of a pipelined copy to host memory.
const STAGE_BYTES: u32 = 64 << 10;

/// Simulates one operation alone for latency, and `in_flight` at once for bandwidth, with
/// [`Layout::Best`]. `None` where the path cannot carry the size; an error where the path cannot
/// exist on the topology.
pub fn predict(
    spec: TestBedSpec<'_>,
    path: PathModel,
    bytes: u32,
    in_flight: u32,
) -> Result<Option<Prediction>, SimError> {
    if !path.carries(bytes) {
        return Ok(None);
    }
    let operation = |window| Operation::new(spec, Layout::Best, path, bytes, window);
    let alone = operation(1).run_alone()?;
    let gb_per_s = match in_flight {
        0 | 1 => alone.gb_per_s(),
        _ => operation(in_flight).rate(loaded_runs(bytes, in_flight))?,
    };
    Ok(Some(Prediction {
        delivered_ns: alone.mark_ns(0),
        completed_ns: alone.mean_ns(),
        gb_per_s,
        in_flight,
    }))
}

/// Operations with so many in flight: enough for a steady state, few enough for large messages.
pub(super) fn loaded_runs(bytes: u32, in_flight: u32) -> u64 {
    let n = u64::from(in_flight);
    (64 * n).min((16 << 20) / u64::from(bytes)).max(4 * n)
}

/// Operations that [`predict`] simulates.
pub(super) fn runs(bytes: u32, in_flight: u32) -> u64 {
    let loaded = if in_flight > 1 { loaded_runs(bytes, in_flight) } else { 0 };
    Operation::ALONE_RUNS + loaded
}

/// An operation of one path and size, ready to run.
pub(super) struct Operation {
    bed: TestBed,
    pub(super) program: Program,
    window: u32,
    slots: Slots,
}

impl Operation {
    /// Runs of an operation alone whose mean is its latency.
    const ALONE_RUNS: u64 = 3;

    pub(super) fn new(
        spec: TestBedSpec<'_>,
        layout: Layout,
        path: PathModel,
        bytes: u32,
        window: u32,
    ) -> Self {
        let mut bed = TestBed::new(spec);
        let slots = Slots::new(&mut bed, spec.params);
        let program = program(&mut bed, spec.params, layout, (path, bytes, slots));
        Self { bed, program, window, slots }
    }

    /// Data rate of a steady state of so many runs, GB/s.
    pub(super) fn rate(self, count: u64) -> Result<f64, SimError> {
        let Self { bed, program, window, .. } = self;
        Ok(bed.sim.run_until_steady(vec![Load { program, window, count }])?.remove(0).gb_per_s())
    }

    #[cfg(test)]
    pub(super) fn run(mut self, count: u64) -> Result<LoadResult, SimError> {
        let load = Load { program: self.program, window: self.window, count };
        Ok(self.bed.sim.run(vec![load])?.remove(0))
    }

    /// Runs one at a time, with polling phases spread over their ranges: the mean of many runs.
    pub(super) fn run_alone(mut self) -> Result<LoadResult, SimError> {
        let load = Load { program: self.program, window: 1, count: Self::ALONE_RUNS };
        Ok(self.bed.sim.run_spread(vec![load])?.remove(0))
    }

    /// What the result depends on: operations of equal imprints take equal times.
    pub(super) fn imprint(&self) -> String {
        self.in_ring() + &self.bed.sim.imprint(&self.program)
    }

    /// The same without what cannot limit so many at once, and so not fewer either.
    pub(super) fn imprint_at_once(&self) -> String {
        self.in_ring() + &self.bed.sim.imprint_at_once(&self.program, self.window)
    }

    /// A ring that holds all that is in flight is one that nothing waits for.
    fn in_ring(&self) -> String {
        let slots = self.program.takes(self.slots.ring) * u64::from(self.window);
        format!("{} {} ", self.window, slots.min(u64::from(self.slots.count)))
    }
}

/// The window as a ring of slots, which all operations in flight share in the order of their
/// tickets.
#[derive(Debug, Clone, Copy)]
struct Slots {
    ring: RingId,
    count: u32,
}

impl Slots {
    fn new(bed: &mut TestBed, p: &Params) -> Self {
        let count = ((p.window_kib * 1024.0) as u32 / MTU_BYTES).max(2);
        Self { ring: bed.sim.add_ring(count), count }
    }

    fn period(self) -> usize {
        period(self.count) as usize
    }
}

/// Slots whose credits return with one CQE: the largest power of two that is at most a quarter of
/// the ring (docs/protocol.md, section 4).
pub(super) fn period(slots: u32) -> u32 {
    1 << (slots / 4).max(1).ilog2()
}

struct Writer<'a> {
    g: Program,
    p: &'a Params,
    near: Host,
    far: Host,
    mrrs_bytes: u32,
    peer_read_bytes: u32,
    peer_reads: bool,
    /// Half of the time in which a word of host memory is loaded, of a GPU that polls there.
    host_poll_ns: Option<f64>,
    /// Time in which the other end's GPU loads a word of its host memory.
    far_word_ns: f64,
    /// The last step on the wire of each chunk, the remote NIC's write, and what ends the delivery.
    wired: Vec<TaskId>,
    written: Vec<TaskId>,
    landed: Vec<TaskId>,
    slots: Slots,
    /// Whether chunks hold slots, and of how many chunks CQEs have given them back.
    holds: bool,
    given: usize,
    /// Part of the operation that the GPU's stores belong to.
    segment: u16,
}

impl Writer<'_> {
    fn delay(&mut self, ns: f64, after: &[TaskId]) -> TaskId {
        self.g.task(Step::Delay { ps: Params::ps(ns) }, after)
    }

    fn poll(&mut self, after: &[TaskId]) -> TaskId {
        let half = self.host_poll_ns.unwrap_or(self.p.sm_ns + self.p.hbm_ns);
        let step = Step::Uniform { min_ps: Params::ps(half), max_ps: Params::ps(3.0 * half) };
        self.g.task(step, after)
    }

    /// A store of the GPU, in its segment: it waits for those of its own segment and the ones
    /// before, not for later ones.
    fn store(&mut self, step: Step, after: &[TaskId]) -> TaskId {
        let stored = self.g.task(step, after);
        self.g.segment(stored, self.segment);
        stored
    }

    /// Where the NIC writes CQEs.
    fn cq(&self) -> EndpointId {
        if self.host_poll_ns.is_some() { self.near.memory } else { self.near.hbm }
    }

    /// `order::strict`: WQE and record into host memory, each behind its fence of system scope. The
    /// first fence also waits for the payload's acknowledgements.
    fn announce(&mut self, wqe_bytes: u32, after: &[TaskId], payload: &[TaskId]) -> TaskId {
        let until = if self.p.fence_pcie_ns > 0.0 { Until::Acked } else { Until::Sent };
        let (from, to) = (self.near.sm, self.near.memory);
        let store = |bytes| Step::Write { from, to, bytes, addr: 0, tlp_bytes: 64, until };
        let built = self.delay(self.p.post_ns, after);
        let wqe = self.store(store(wqe_bytes), &[built]);
        let fence = self.delay(self.p.fence_pcie_ns, &[payload, &[wqe]].concat());
        let record = self.store(store(4), &[fence]);
        self.delay(self.p.fence_pcie_ns, &[record])
    }

    /// A card's doorbell: the NIC fetches the WQE from host memory.
    fn ring_card(&mut self, after: &[TaskId], payload: &[TaskId]) -> TaskId {
        let told = self.announce(64, after, payload);
        let (from, to) = (self.near.sm, self.near.window);
        let rung = self.store(line_write(from, to, 8, 0), &[told]);
        let begun = self.delay(self.p.nic_process_ns, &[rung]);
        self.fetch_wqe(self.near.memory, begun)
    }

    /// The GPU rings the doorbell. The NIC then fetches the WQE from GPU memory, or from host
    /// memory where no root complex forwards reads.
    fn ring(&mut self, after: &[TaskId]) -> TaskId {
        if self.host_poll_ns.is_some() {
            return self.ring_card(after, &[]);
        }
        // WQE into GPU memory, DBR behind a fence, doorbell behind the same fence.
        let mut built = self.delay(self.p.post_ns + self.p.fence_gpu_ns, after);
        let mut queue = self.near.hbm;
        if !self.peer_reads {
            let (from, to) = (self.near.sm, self.near.memory);
            queue = to;
            let until = Until::Acked;
            let wqe = Step::Write { from, to, bytes: 64, addr: 0, tlp_bytes: 64, until };
            let stored = self.store(wqe, &[built]);
            built = self.delay(self.p.fence_pcie_ns, &[stored]);
        }
        let (from, to) = (self.near.sm, self.near.window);
        let rung = self.store(line_write(from, to, 8, 0), &[built]);
        let begun = self.delay(self.p.nic_process_ns, &[rung]);
        self.fetch_wqe(queue, begun)
    }

    /// The NIC fetches a WQE: before payload that it has not asked for yet, with the same tags. No
    /// source states a ConnectX's order. Corundum, a NIC whose source is open, has one DMA engine for
    /// both and gives descriptors strict priority (`fpga/common/rtl/mqnic_core.v`, `dma_if_mux`).
    fn fetch_wqe(&mut self, at: EndpointId, after: TaskId) -> TaskId {
        let fetched = self.fetch(at, 64, 0, after);
        self.g.first(fetched);
        fetched
    }

    fn fetch(&mut self, at: EndpointId, bytes: u32, addr: u64, after: TaskId) -> TaskId {
        let peer = at == self.near.hbm;
        let (by, request_bytes) = if peer {
            (self.near.nic_peer, self.peer_read_bytes)
        } else {
            (self.near.nic, self.mrrs_bytes)
        };
        let read = Step::Read { by, at, bytes, addr, request_bytes };
        self.g.task(read, &[after])
    }

    /// The NIC reads the chunk from its own memory.
    fn read_window(&mut self, bytes: u32, after: &[TaskId]) -> TaskId {
        let ps = Params::ps(f64::from(bytes) / self.p.nic_memory_gb_per_s);
        self.g.task(Step::Serve { server: self.near.nic_memory, ps }, after)
    }

    /// The wire, and the remote NIC's write into its GPU.
    fn send(&mut self, bytes: u32, addr: u64, after: TaskId) {
        let landed = self.send_to(self.far.hbm, bytes, addr, after);
        self.landed.push(landed);
    }

    fn send_to(&mut self, to: EndpointId, bytes: u32, addr: u64, after: TaskId) -> TaskId {
        let wire = Step::Write {
            from: self.near.nic,
            to: self.far.nic,
            bytes,
            addr,
            tlp_bytes: MTU_BYTES,
            until: Until::Visible,
        };
        let wired = self.g.task(wire, &[after]);
        let land = Step::Write {
            from: self.far.nic,
            to,
            bytes,
            addr,
            tlp_bytes: MTU_BYTES,
            until: Until::Visible,
        };
        let written = self.g.task(land, &[wired]);
        self.wired.push(wired);
        self.written.push(written);
        written
    }

    /// The CQE of the chunks from `from` on: acknowledged by the peer, reported to the GPU. The GPU
    /// sees it when the chunks are written, not before: the peer acknowledges what its link has
    /// taken, and the CQE's way is no shorter than theirs.
    fn complete(&mut self, from: usize) -> TaskId {
        let wired = self.wired[from..].to_vec();
        let acked = self.delay(self.p.wire_ns, &wired);
        let cqe = line_write(self.near.nic, self.cq(), 64, 0);
        let told = self.g.task(cqe, &[acked]);
        let after = [&[told], &self.written[from..]].concat();
        self.poll(&after)
    }

    /// Takes slots of the window for chunks, behind all that were asked for before.
    fn take(&mut self, slots: u32, after: &[TaskId]) -> TaskId {
        self.holds = true;
        let step = Step::Take { ring: self.slots.ring, slots };
        self.g.task(step, after)
    }

    /// Before a chunk that a CQE's chunks precede: gives their slots back.
    fn give_period(&mut self) {
        if self.wired.len() >= self.given + self.slots.period() {
            let seen = self.complete(self.given);
            self.give_after(seen);
        }
    }

    fn give_after(&mut self, seen: TaskId) {
        let slots = (self.wired.len() - self.given) as u32;
        self.given = self.wired.len();
        if self.holds {
            self.g.task(Step::Give { ring: self.slots.ring, slots }, &[seen]);
        }
    }
}

fn line_write(from: EndpointId, to: EndpointId, bytes: u32, addr: u64) -> Step {
    Step::Write { from, to, bytes, addr, tlp_bytes: 128, until: Until::Visible }
}

/// The program of one operation, which may use `share` bytes of the window.
fn program(
    bed: &mut TestBed,
    p: &Params,
    layout: Layout,
    (path, bytes, slots): (PathModel, u32, Slots),
) -> Program {
    let g = Program::new(u64::from(bytes));
    let host_poll_ns = (layout == Layout::Card).then(|| bed.host_word_ns() / 2.0);
    // Both hosts are of one topology.
    let far_word_ns = if p.staged_ends < 2.0 { 0.0 } else { bed.host_word_ns() };
    let (near, far, mrrs_bytes) = (bed.near, bed.far, bed.mrrs_bytes);
    let (peer_read_bytes, peer_reads) = (bed.peer_read_bytes, bed.peer_reads);
    let mut w = Writer {
        g,
        p,
        near,
        far,
        mrrs_bytes,
        peer_read_bytes,
        peer_reads,
        host_poll_ns,
        far_word_ns,
        wired: Vec::new(),
        written: Vec::new(),
        landed: Vec::new(),
        slots,
        holds: false,
        given: 0,
        segment: 0,
    };
    match path {
        PathModel::PushInband => inband(&mut w, bytes),
        PathModel::PushKernel => push_kernel(&mut w, bytes),
        PathModel::PushBlueflame => {
            // Control segment, remote address and inline header, in 64 B stores.
            let total = (bytes + 36).next_multiple_of(64);
            let built = match layout {
                Layout::Best => w.delay(p.post_ns, &[]),
                Layout::Card => w.announce(total, &[], &[]),
            };
            let store = Step::Write {
                from: near.sm,
                to: near.window,
                bytes: total,
                addr: 0,
                tlp_bytes: 64,
                until: Until::Visible,
            };
            let stored = w.g.task(store, &[built]);
            let begun = w.delay(p.nic_process_ns, &[stored]);
            w.send(bytes, 0, begun);
        }
        PathModel::Pull => {
            let wqe = w.ring(&[]);
            for (addr, n) in chunks(bytes, MTU_BYTES) {
                let here = w.fetch(near.hbm, n, addr, wqe);
                w.send(n, addr, here);
            }
        }
        PathModel::Staged => staged(&mut w, bytes),
    }
    finish(w)
}

fn chunks(bytes: u32, size: u32) -> impl Iterator<Item = (u64, u32)> {
    (0..bytes).step_by(size as usize).map(move |at| (u64::from(at), size.min(bytes - at)))
}

fn inband(w: &mut Writer<'_>, bytes: u32) {
    let (from, to) = (w.near.sm, w.near.window);
    // A 64 B line holds data and a sequence number; a chunk fills a slot.
    let built = w.delay(w.p.post_ns, &[]);
    let data = (w.p.inband_data_bytes as u32).clamp(1, 64);
    let tlp_bytes = w.p.store_tlp_bytes as u32;
    for (addr, n) in chunks(bytes, MTU_BYTES / 64 * data) {
        w.give_period();
        let taken = w.take(1, &[built]);
        let lines = n.div_ceil(data) * 64;
        let store = Step::Write {
            from,
            to,
            bytes: lines,
            addr: addr / u64::from(data) * 64,
            tlp_bytes,
            until: Until::Visible,
        };
        let here = w.g.task(store, &[taken]);
        let seen = w.delay(w.p.nic_scan_ns, &[here]);
        let read = w.read_window(lines, &[seen]);
        w.send(n, addr, read);
    }
}

fn push_kernel(w: &mut Writer<'_>, bytes: u32) {
    let until = if w.p.fence_pcie_ns > 0.0 { Until::Acked } else { Until::Sent };
    let tlp_bytes = w.p.store_tlp_bytes as u32;
    let (from, to) = (w.near.sm, w.near.window);
    // A message larger than half the window is sent in segments, each with a fence and a doorbell.
    let limit = (w.p.segment_kib * 1024.0) as u32 / MTU_BYTES;
    let segment = (w.slots.count / 2).min(limit).max(1) * MTU_BYTES;
    for (s, (base, length)) in chunks(bytes, segment).enumerate() {
        w.segment = s as u16;
        let after = [w.take(length.div_ceil(MTU_BYTES), &[])];
        let mut acks = Vec::new();
        for (at, n) in chunks(length, MTU_BYTES) {
            let store = Step::Write { from, to, bytes: n, addr: base + at, tlp_bytes, until };
            acks.push(w.store(store, &after));
        }
        // The fence waits for the round trip, for which posted writes did not wait.
        let wqe = if w.host_poll_ns.is_some() {
            w.ring_card(&after, &acks)
        } else {
            let fence = w.delay(w.p.fence_pcie_ns, &acks);
            w.ring(&[fence])
        };
        for (at, n) in chunks(length, MTU_BYTES) {
            w.give_period();
            let read = w.read_window(n, &[wqe]);
            w.send(n, base + at, read);
        }
    }
}

fn staged(w: &mut Writer<'_>, bytes: u32) {
    let (sm, memory, cpu, window) = (w.near.sm, w.near.memory, w.near.cpu, w.near.window);
    for (s, (base, length)) in chunks(bytes, STAGE_BYTES).enumerate() {
        w.segment = s as u16;
        let copy = Step::Write {
            from: sm,
            to: memory,
            bytes: length,
            addr: base,
            tlp_bytes: w.p.store_tlp_bytes as u32,
            until: Until::Acked,
        };
        let copied = w.store(copy, &[]);
        let fence = w.delay(w.p.fence_pcie_ns, &[copied]);
        let flag = w.store(line_write(sm, memory, 8, 0), &[fence]);
        let posted = w.delay(w.p.cpu_post_ns, &[flag]);
        let rung = w.g.task(line_write(cpu, window, 8, 0), &[posted]);
        let begun = w.delay(w.p.nic_process_ns, &[rung]);
        let wqe = w.fetch_wqe(memory, begun);
        if w.p.staged_ends < 2.0 {
            for (at, n) in chunks(length, MTU_BYTES) {
                let here = w.fetch(memory, n, base + at, wqe);
                w.send(n, base + at, here);
            }
            continue;
        }
        let mut landed = Vec::new();
        for (at, n) in chunks(length, MTU_BYTES) {
            let here = w.fetch(memory, n, base + at, wqe);
            landed.push(w.send_to(w.far.memory, n, base + at, here));
        }
        let loaded = unstage(w, length, base, &landed);
        w.landed.push(loaded);
    }
}

/// The other end's copy of a piece: the NIC's CQE, the CPU that polls it and raises a flag, the GPU
/// that polls the flag and loads the piece from host memory.
fn unstage(w: &mut Writer<'_>, bytes: u32, addr: u64, landed: &[TaskId]) -> TaskId {
    let (memory, sm, nic) = (w.far.memory, w.far.sm, w.far.nic);
    let cqe = w.g.task(line_write(nic, memory, 64, 0), landed);
    let posted = w.delay(w.p.memory_ns / 2.0 + w.p.cpu_post_ns, &[cqe]);
    let half = w.far_word_ns / 2.0;
    let step = Step::Uniform { min_ps: Params::ps(half), max_ps: Params::ps(3.0 * half) };
    let seen = w.g.task(step, &[posted]);
    let load = Step::Read { by: sm, at: memory, bytes, addr, request_bytes: 128 };
    w.g.task(load, &[seen])
}

fn finish(mut w: Writer<'_>) -> Program {
    let landed = std::mem::take(&mut w.landed);
    let delivered = w.delay(0.0, &landed);
    w.g.mark(delivered, 0);
    let seen = w.complete(0);
    w.give_after(seen);
    w.g
}

#[cfg(test)]
#[path = "ops_tests.rs"]
mod tests;
