//! Predictions of the measurements of `bellpush link`: single accesses, streams, fences, flags.
//!
//! The model coalesces a warp's access as the hardware does: lanes that touch neighbouring bytes of
//! one 128 B line make one TLP (a store) or one request of whole 32 B sectors (a load). A TLP has
//! no holes: byte enables mask bytes of its first and last DW only (PCIe base specification 2.2.5).
//! Parts of a line that two instructions write are not merged.

use super::build::{SECTOR_BYTES, Sms};
use super::h200::{Bench, LINE_BYTES, bench};
use super::{EndpointId, Load, Params, Program, SimError, Step, TaskId, Until};
use crate::topology::RawLink;

/// Owner of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Target {
    /// This GPU's.
    Local,
    /// The host's, over PCIe.
    Host,
    /// Another GPU's, over NVLink.
    Peer,
}

/// Kind of a GPU's access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Access {
    /// Stores.
    Store,
    /// Loads, four per thread in flight.
    Load,
}

/// Place of the loaded page of host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Held {
    /// The cache of the core that has just written it.
    Core,
    /// The last-level cache, which receives this GPU's stores.
    Device,
    /// No cache; each load takes another page.
    Another,
}

/// Accesses of a grid: access i is at `offset_bytes + i * stride_bytes`. The threads take them in
/// turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// Number of blocks, each on an SM of its own.
    pub blocks: u32,
    /// Threads per block.
    pub threads: u32,
    /// Bytes of a thread's access: 4, 8 or 16.
    pub access_bytes: u32,
    /// Bytes from one access to the next.
    pub stride_bytes: u32,
    /// Offset of the first access from the start of a line, bytes.
    pub offset_bytes: u32,
}

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Probe {
    /// Bandwidth of an endless stream, GB/s. Loads from the host are from memory in no cache.
    Stream(Target, Access, Pattern),
    /// Time in ns in which one block of 512 threads accesses so many bytes, 16 B per thread. Loads
    /// end when the last one returns, stores at the end of a system-scope fence. Loads from the
    /// host are from memory in no cache.
    Burst(Target, Access, u32),
    /// Time of the same loads, from host memory in another place.
    Page(Held, u32),
    /// Latency of a dependent load, ns; in host memory, of words that a core has just written.
    Latency(Target),
    /// Time of a 64 B store and a system-scope fence after it, ns; `None`: the fence alone.
    FenceSystem(Option<Target>),
    /// Time of the store and a gpu-scope fence, ns.
    FenceGpu(Target),
    /// Time of a flag and of the answering flag, ns. The CPU or a peer GPU answers.
    RoundTrip(Target),
}

/// Threads of a [`Probe::Burst`].
pub const BURST_THREADS: u32 = 512;
/// Loads that a thread has in flight.
const UNROLL: u32 = 4;
/// Number of warps, with 16 B accesses, to which `sm_read_lines` applies.
const READ_WARPS: f64 = 16.0;
const READ_PARTS: f64 = 4.0;
/// TLPs or requests in one run of a simulated stream's program.
const STREAM_PARTS: u32 = 128;
/// Approximate number of bytes that a simulation of bursts loads.
const BURST_BYTES: u32 = 2 << 20;

impl Pattern {
    /// Contiguous accesses of 16 B from the start of a line.
    pub const fn dense(blocks: u32, threads: u32) -> Self {
        Self { blocks, threads, access_bytes: 16, stride_bytes: 16, offset_bytes: 0 }
    }

    /// Lengths of the TLPs or requests of a warp's instruction `n`, as runs of (length, count).
    fn parts(&self, access: Access, n: u32) -> Vec<(u32, u32)> {
        let unit = if access == Access::Load { SECTOR_BYTES } else { 1 };
        let mut parts: Vec<(u32, u32)> = Vec::new();
        let mut open: Option<(u64, u64)> = None;
        let mut close = |(start, end): (u64, u64)| {
            let length = (end - start) as u32;
            match parts.last_mut() {
                Some((same, count)) if *same == length => *count += 1,
                _ => parts.push((length, 1)),
            }
        };
        let lanes = self.threads.min(32);
        let (unit, line) = (u64::from(unit), u64::from(LINE_BYTES));
        for lane in 0..lanes {
            let i = u64::from(n) * u64::from(lanes) + u64::from(lane);
            let at = u64::from(self.offset_bytes) + i * u64::from(self.stride_bytes);
            let (from, to) =
                (at / unit * unit, (at + u64::from(self.access_bytes)).next_multiple_of(unit));
            open = Some(match open {
                Some((start, end)) if from <= end && start / line == (to - 1) / line => {
                    (start, end.max(to))
                }
                Some(done) => {
                    close(done);
                    (from, to)
                }
                None => (from, to),
            });
        }
        open.into_iter().for_each(&mut close);
        parts
    }

    /// Number of lines that a warp's instruction touches.
    fn lines(&self) -> u32 {
        let last = (self.threads.min(32) - 1) * self.stride_bytes + self.access_bytes - 1;
        (self.offset_bytes + last) / LINE_BYTES - self.offset_bytes / LINE_BYTES + 1
    }

    /// Store rate of a block's warps, GB/s of the port's slots.
    fn issue_gb_per_s(&self, p: &Params) -> f64 {
        let sectors: u32 = self
            .parts(Access::Store, 0)
            .iter()
            .map(|&(bytes, n)| n * bytes.div_ceil(SECTOR_BYTES))
            .sum();
        let slots = f64::from(SECTOR_BYTES * (sectors + self.lines()));
        f64::from(self.threads.div_ceil(32)) * slots / p.warp_store_ns
    }

    /// Requests that one SM has outstanding: four loads per warp, less the loss while a warp waits
    /// for the slowest of them, on which `sm_read_lines` is calibrated.
    fn outstanding(&self, p: &Params) -> f64 {
        let parts: u32 = self.parts(Access::Load, 0).iter().map(|&(_, n)| n).sum();
        let warps = f64::from(self.threads.div_ceil(32));
        p.sm_read_lines * warps / READ_WARPS * f64::from(parts) / READ_PARTS
    }
}

/// The measured machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// The GPU's PCIe link.
    pub link: RawLink,
}

impl Default for Machine {
    fn default() -> Self {
        Self { link: RawLink::new(5, 16) }
    }
}

fn endpoint(b: &Bench, target: Target) -> EndpointId {
    match target {
        Target::Local => b.hbm,
        Target::Host => b.memory,
        Target::Peer => b.peer_hbm,
    }
}

/// The predicted value: GB/s or ns, according to the [`Probe`].
///
/// # Errors
/// [`SimError`]; none for the machine that this builds.
pub fn predict_probe(p: &Params, machine: Machine, probe: Probe) -> Result<f64, SimError> {
    match probe {
        Probe::Stream(target, access, pattern) => stream(p, machine, target, access, pattern),
        Probe::Burst(target, Access::Store, bytes) => stored(p, machine, target, bytes),
        Probe::Burst(target, Access::Load, bytes) => {
            let host = target == Target::Host;
            loaded(p, machine, bytes, |b| if host { b.dram } else { endpoint(b, target) })
        }
        Probe::Page(Held::Core | Held::Device, bytes) => loaded(p, machine, bytes, |b| b.memory),
        // The model has no address translation.
        Probe::Page(Held::Another, bytes) => loaded(p, machine, bytes, |b| b.dram),
        Probe::Latency(target) => once(p, machine, |b, g| {
            let read = Step::Read {
                by: b.sm,
                at: endpoint(b, target),
                bytes: SECTOR_BYTES,
                addr: 0,
                request_bytes: SECTOR_BYTES,
            };
            g.task(read, &[]);
        }),
        Probe::FenceSystem(None) => Ok(p.fence_idle_ns),
        // The fence follows the store to L2, which answers it.
        Probe::FenceSystem(Some(Target::Local)) => once(p, machine, |b, g| {
            let there = g.task(store(b, Target::Local, 64, Until::Visible), &[]);
            g.task(delay(p.fence_idle_ns), &[there]);
        }),
        Probe::FenceSystem(Some(target)) => once(p, machine, |b, g| {
            let acked = g.task(store(b, target, 64, Until::Acked), &[]);
            g.task(delay(fence_ns(p, target)), &[acked]);
        }),
        // A GPU's stores are performed in its own L2, whatever their target.
        Probe::FenceGpu(_) => Ok(p.fence_gpu_ns),
        Probe::RoundTrip(target) => round_trip(p, machine, target),
    }
}

fn delay(ns: f64) -> Step {
    Step::Delay { ps: Params::ps(ns) }
}

fn fence_ns(p: &Params, target: Target) -> f64 {
    match target {
        Target::Local => p.fence_idle_ns,
        Target::Host => p.fence_pcie_ns,
        Target::Peer => p.fence_nvlink_ns,
    }
}

fn store(b: &Bench, target: Target, bytes: u32, until: Until) -> Step {
    let to = endpoint(b, target);
    Step::Write { from: b.sm, to, bytes, addr: 0, tlp_bytes: LINE_BYTES, until }
}

fn once(
    p: &Params,
    machine: Machine,
    build: impl FnOnce(&Bench, &mut Program),
) -> Result<f64, SimError> {
    let mut b = bench(p, machine.link, Sms::new(1.0, p.sm_read_lines));
    let mut program = Program::new(0);
    build(&b, &mut program);
    // As in the measurement: the mean of a thousand.
    Ok(b.sim.run(vec![Load { program, window: 1, count: 1000 }])?[0].mean_ns())
}

fn stream(
    p: &Params,
    machine: Machine,
    target: Target,
    access: Access,
    pattern: Pattern,
) -> Result<f64, SimError> {
    let parts: u32 = pattern.parts(access, 0).iter().map(|&(_, n)| n).sum();
    let slot_bytes = SECTOR_BYTES * pattern.lines() / parts.max(1);
    let mut sms = Sms::new(f64::from(pattern.blocks), pattern.outstanding(p));
    sms.slot_bytes = slot_bytes;
    if access == Access::Store {
        sms.issue_gb_per_s = pattern.issue_gb_per_s(p);
    }
    let mut b = bench(p, machine.link, sms);
    // `sm_read_lines` was fitted on a stream from DRAM and includes DRAM's effect.
    let at = endpoint(&b, target);
    let useful = pattern.access_bytes * pattern.threads.min(32);
    let instructions = (STREAM_PARTS / parts).max(1);
    let mut program = Program::new(u64::from(useful * instructions));
    for n in 0..instructions {
        for (length, count) in pattern.parts(access, n) {
            let bytes = length * count;
            let step = match access {
                Access::Store => Step::Write {
                    from: b.sm,
                    to: at,
                    bytes,
                    addr: 0,
                    tlp_bytes: length,
                    until: Until::Visible,
                },
                Access::Load => Step::Read { by: b.sm, at, bytes, addr: 0, request_bytes: length },
            };
            program.task(step, &[]);
        }
    }
    // Enough operations in flight that SMs, tags and links are the limit.
    let window = (8 * pattern.blocks).clamp(16, 128);
    let count = u64::from(window) * 6;
    Ok(b.sim.run(vec![Load { program, window, count }])?[0].gb_per_s())
}

/// Bytes of one instruction of each warp of a burst.
const BURST_STEP_BYTES: u32 = BURST_THREADS * 16;

/// A block's SM, with all loads of one round in flight at once.
fn block(p: &Params, machine: Machine) -> Bench {
    let lines = BURST_STEP_BYTES * UNROLL / LINE_BYTES;
    bench(p, machine.link, Sms::new(1.0, f64::from(lines)))
}

fn stored(p: &Params, machine: Machine, target: Target, bytes: u32) -> Result<f64, SimError> {
    let mut b = block(p, machine);
    let mut g = Program::new(u64::from(bytes));
    let to = endpoint(&b, target);
    let store = |from: u32| Step::Write {
        from: b.sm,
        to,
        bytes: BURST_STEP_BYTES.min(bytes - from),
        addr: u64::from(from),
        tlp_bytes: LINE_BYTES,
        until: Until::Acked,
    };
    let steps = (0..bytes).step_by(BURST_STEP_BYTES as usize);
    let parts: Vec<TaskId> = steps.map(|from| g.task(store(from), &[])).collect();
    g.task(delay(fence_ns(p, target)), &parts);
    Ok(b.sim.run(vec![Load { program: g, window: 1, count: 5 }])?[0].mean_ns())
}

fn loaded(
    p: &Params,
    machine: Machine,
    bytes: u32,
    source: impl Fn(&Bench) -> EndpointId,
) -> Result<f64, SimError> {
    let mut b = block(p, machine);
    let mut g = Program::new(u64::from(bytes));
    let at = source(&b);
    let steps = bytes.div_ceil(BURST_STEP_BYTES);
    for warp in 0..BURST_THREADS / 32 {
        // A warp issues its next four loads when the last four have returned.
        let mut before = Vec::new();
        for round in (0..steps).step_by(UNROLL as usize) {
            before = vec![g.task(delay(p.lap_ns), &before)];
            let mut loads = Vec::new();
            for n in round..(round + UNROLL).min(steps) {
                // One instruction of each warp, in turn.
                let from = n * BURST_STEP_BYTES + warp * 512;
                let bytes = 512.min(bytes.saturating_sub(from));
                if bytes > 0 {
                    let (addr, request_bytes) = (u64::from(from), LINE_BYTES);
                    let load = Step::Read { by: b.sm, at, bytes, addr, request_bytes };
                    loads.push(g.task(load, &before));
                }
            }
            before = loads;
        }
    }
    // Waits for DRAM are random: enough bursts for a steady mean, within reason.
    let count = u64::from((BURST_BYTES / bytes.max(1)).clamp(8, 256));
    Ok(b.sim.run(vec![Load { program: g, window: 1, count }])?[0].mean_ns())
}

fn round_trip(p: &Params, machine: Machine, target: Target) -> Result<f64, SimError> {
    let half = |target| Ok(predict_probe(p, machine, Probe::Latency(target))? / 2.0);
    // Polls follow each other. The first poll that begins after the flag's arrival sees it, half to
    // one and a half times a load later.
    let poll = |half_ns: f64| Step::Uniform {
        min_ps: Params::ps(half_ns),
        max_ps: Params::ps(3.0 * half_ns),
    };
    let (here, local) = (half(target)?, half(Target::Local)?);
    once(p, machine, |b, g| match target {
        // The flag lies in the memory of its reader.
        Target::Local | Target::Peer => {
            let rung = g.task(store(b, target, 8, Until::Visible), &[]);
            let seen = g.task(poll(local), &[rung]);
            let answer = Step::Write {
                from: b.peer_sm,
                to: b.hbm,
                bytes: 8,
                addr: 0,
                tlp_bytes: 8,
                until: Until::Visible,
            };
            let answered = g.task(answer, &[seen]);
            g.task(poll(local), &[answered]);
        }
        // Both flags lie in host memory. A core's read of a line that was just written costs as
        // much as any other read of memory.
        Target::Host => {
            let rung = g.task(store(b, target, 8, Until::Visible), &[]);
            let seen = g.task(poll(p.memory_ns / 2.0), &[rung]);
            let answered = g.task(delay(p.memory_ns), &[seen]);
            g.task(poll(here), &[answered]);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warps_coalesce_as_the_hardware_does() {
        let dense = Pattern::dense(1, 512);
        assert_eq!(dense.parts(Access::Store, 0), [(128, 4)]);
        assert_eq!(dense.parts(Access::Load, 3), [(128, 4)]);
        let shifted = Pattern { offset_bytes: 16, ..dense };
        assert_eq!(shifted.parts(Access::Store, 0), [(112, 1), (128, 3), (16, 1)]);
        // Loads fetch whole sectors.
        assert_eq!(shifted.parts(Access::Load, 0), [(128, 4), (32, 1)]);
        let words = Pattern { access_bytes: 4, stride_bytes: 4, ..dense };
        assert_eq!(words.parts(Access::Store, 0), [(128, 1)]);
        let holes = Pattern { stride_bytes: 32, ..dense };
        assert_eq!(holes.parts(Access::Store, 0), [(16, 32)]);
        assert_eq!(holes.parts(Access::Load, 0), [(128, 8)]);
        let lines = Pattern { access_bytes: 8, stride_bytes: 128, ..dense };
        assert_eq!(lines.parts(Access::Store, 0), [(8, 32)]);
        assert_eq!(lines.parts(Access::Load, 0), [(32, 32)]);
        let one = Pattern::dense(1, 1);
        assert_eq!(one.parts(Access::Store, 2), [(16, 1)]);
    }

    /// What DRAM adds to a block's loads grows with the lines that it waits for: measured on two
    /// H200s, in no cache less where the GPU had just written them. The parameter is the first row.
    #[test]
    fn bursts_wait_for_the_slowest_line_of_dram() {
        let p = Params::default();
        // The same mean with nothing left to chance.
        let even = Params { memory_ns: p.memory_ns + p.dram_ns, dram_ns: 0.0, ..p.clone() };
        let loaded = |p: &Params, probe| predict_probe(p, Machine::default(), probe).unwrap();
        for (bytes, want) in [(64, 107.0), (1 << 10, 183.0), (4 << 10, 282.0), (64 << 10, 563.0)] {
            let dram = Probe::Burst(Target::Host, Access::Load, bytes);
            let base = loaded(&p, Probe::Page(Held::Device, bytes));
            let (got, flat) = (loaded(&p, dram) - base, loaded(&even, dram) - base);
            println!("{bytes} B: {want} measured, {got:.0} predicted, {flat:.0} without chance");
            assert!((got / want - 1.0).abs() < 0.2, "{bytes}: {got} {want}");
            assert!(bytes < 1 << 10 || flat < 0.75 * want, "{bytes}: {flat} {want}");
        }
    }

    /// An SM's port takes a slot of 32 B a line and one a sector: measured on an H200 at 1.98 GHz,
    /// 50.6, 25.3, 21.1 and 15.8 GB/s.
    #[test]
    fn strided_stores_of_one_sm_cost_slots() {
        let p = Params { sm_port_gb_per_s: 50.6 * 1.25, ..Params::default() };
        for (stride_bytes, want) in [(16, 50.6), (32, 25.3), (64, 21.1), (128, 15.8)] {
            let pattern = Pattern { stride_bytes, ..Pattern::dense(1, 512) };
            let probe = Probe::Stream(Target::Peer, Access::Store, pattern);
            let got = predict_probe(&p, Machine::default(), probe).unwrap();
            assert!((got / want - 1.0).abs() < 0.01, "{stride_bytes}: {got} {want}");
        }
    }

    #[test]
    fn instructions_follow_each_other() {
        let odd = Pattern::dense(1, 5);
        assert_eq!(odd.parts(Access::Store, 0), [(80, 1)]);
        assert_eq!(odd.parts(Access::Store, 1), [(48, 1), (32, 1)]);
        // From the second line on: 144 to 655.
        assert_eq!(Pattern { offset_bytes: 144, ..Pattern::dense(1, 32) }.lines(), 5);
    }

    /// Sixteen warps that store four lines of four sectors each 19.2 ns: a slot a sector, one a line.
    #[test]
    fn warps_issue_and_wait_for_so_much() {
        let p = Params { sm_read_lines: 164.0, warp_store_ns: 20.0, ..Params::default() };
        let dense = Pattern::dense(1, 512);
        assert_eq!(dense.issue_gb_per_s(&p), 16.0 * 32.0 * 20.0 / 20.0);
        let words = Pattern { access_bytes: 4, stride_bytes: 4, ..Pattern::dense(1, 128) };
        assert_eq!(words.issue_gb_per_s(&p), 4.0 * 32.0 * 5.0 / 20.0);
        assert_eq!(dense.outstanding(&p), 164.0);
        assert_eq!(words.outstanding(&p), 164.0 / 4.0 / 4.0);
        let fences = [Target::Local, Target::Host, Target::Peer].map(|t| fence_ns(&p, t));
        assert_eq!(fences, [p.fence_idle_ns, p.fence_pcie_ns, p.fence_nvlink_ns]);
        // Four loads of 16 B by each of 512 threads.
        let b = block(&p, Machine::default());
        assert_eq!(b.sim.endpoints[b.sm.0 as usize].spec.tags, 256);
    }

    fn at(probe: Probe) -> f64 {
        predict_probe(&Params::default(), Machine::default(), probe).unwrap()
    }

    /// One warp is its instructions' rate: measured on an H200, 26.7 GB/s.
    #[test]
    fn one_warp_stores_as_fast_as_it_issues() {
        let got = at(Probe::Stream(Target::Peer, Access::Store, Pattern::dense(1, 32)));
        assert!((got / 26.7 - 1.0).abs() < 0.01, "{got}");
    }

    /// What is a line longer than an instruction of each warp takes a line longer.
    #[test]
    fn the_last_round_of_a_burst_is_what_is_left() {
        for access in [Access::Store, Access::Load] {
            let of = |bytes| at(Probe::Burst(Target::Local, access, bytes));
            let (one, more, two) = (of(8 << 10), of((8 << 10) + 64), of(16 << 10));
            assert!(more - one < 0.2 * (two - one), "{access:?}: {one} {more} {two}");
        }
        let word = at(Probe::Latency(Target::Local));
        let line = at(Probe::Burst(Target::Local, Access::Load, 64));
        let more = line - word - Params::default().lap_ns;
        assert!((0.0..2.0).contains(&more), "{word} {line}");
    }

    /// A flag's way and the poll that sees it, twice: a poll takes a load on the mean.
    #[test]
    fn a_flag_is_seen_a_load_later() {
        let p = Params::default();
        let local = at(Probe::Latency(Target::Local));
        let peer = at(Probe::RoundTrip(Target::Peer));
        let want = 2.0 * (p.sm_ns + p.nvlink_ns + p.hbm_ns + local);
        assert!((peer / want - 1.0).abs() < 0.01, "{peer} {want}");
        let word = at(Probe::Latency(Target::Host));
        let host = at(Probe::RoundTrip(Target::Host));
        let want = (word - p.memory_ns) / 2.0 + 2.0 * p.memory_ns + word;
        assert!((host - want).abs() < 35.0, "{host} {want}");
    }
}
