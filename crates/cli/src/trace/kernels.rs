//! Marks of the benchmark's kernels on the timeline: a process for the GPU, a track for each block.

use std::collections::{BTreeMap, HashMap, HashSet};

use bellpush::abi::bench::mark;
use bellpush::gpu::{Mark, MarksRead};

use super::chrome::{Event, Trace, micros};
use super::ends::{BlockEnd, KernelsEnd, Stage};
use super::flows;
use super::timeline::DEVICES;

/// What a benchmark's kernels wrote down.
#[derive(Debug, Clone)]
pub struct KernelMarks {
    /// Name of the process.
    pub program: String,
    /// Its number.
    pub pid: u32,
    /// The GPU that ran them.
    pub gpu: String,
    /// What was measured, by the number that marks of rounds have.
    pub rounds: Vec<String>,
    /// The marks.
    pub read: MarksRead,
    /// When they were read, in nanoseconds of `CLOCK_MONOTONIC`.
    pub end_ns: u64,
}

impl Trace {
    /// Puts kernels beside the devices.
    pub fn add_kernels(&mut self, kernels: &KernelMarks) {
        let own = kernels.pid % DEVICES;
        let taken: HashSet<u32> = self.events.iter().map(|event| event.pid).collect();
        let free = |nth: &u32| !taken.contains(&(own + nth * DEVICES));
        let pid = own + (0..512).find(free).unwrap_or(0) * DEVICES;
        let KernelMarks { program, gpu, read, .. } = kernels;
        let name = format!("{program} {}, {gpu} kernels", kernels.pid);
        self.ends.clock += &format!("; {gpu} kernels within {} ns", read.within_ns);
        let named = |what: &str, tid: u32, name: String| {
            Event::new('M', what, (pid, tid), 0).with("name", name)
        };
        self.events.push(named("process_name", 0, name.clone()));

        let mut blocks: BTreeMap<u32, Block> = BTreeMap::new();
        for mark in &read.marks {
            let tid = blocks.len() as u32 + 1;
            let block = blocks.entry(mark.block).or_insert_with(|| Block::new((pid, tid)));
            block.take(mark, &kernels.rounds, &mut self.events);
        }
        let mut ends = KernelsEnd {
            pid,
            name,
            end_ns: kernels.end_ns,
            marks: read.marks.len() as u64,
            lost: read.lost,
            within_ns: read.within_ns,
            blocks: Vec::new(),
        };
        for (number, block) in blocks {
            self.events.push(named("thread_name", block.track.1, format!("block {number}")));
            let end = block.finish(kernels.end_ns, &kernels.rounds, &mut self.events);
            ends.blocks.push(BlockEnd { block: number, ..end });
        }
        self.ends.kernels.push(ends);
        self.draw_arrows();
    }
}

/// A put that was called.
struct Put {
    message: u32,
    /// The endpoint, by a queue pair of it.
    endpoint: u32,
    /// The queue pair that it takes; 0 where the put alone knows.
    qpn: u32,
    since_ns: u64,
}

/// What a block has come to.
struct Block {
    track: (u32, u32),
    /// The round that it is in, and since when.
    round: Option<(u64, u64)>,
    put: Option<Put>,
    /// Since when it waits: the last put has returned, or something was complete.
    waits_ns: u64,
    /// By endpoint: slices of puts whose messages are not complete, and when those began.
    open: HashMap<u32, Vec<(usize, u64)>>,
    end: BlockEnd,
}

impl Block {
    fn new(track: (u32, u32)) -> Self {
        let (open, end) = (HashMap::new(), BlockEnd::default());
        Self { track, round: None, put: None, waits_ns: 0, open, end }
    }

    fn take(&mut self, mark: &Mark, rounds: &[String], events: &mut Vec<Event>) {
        let (message, endpoint, status) = mark::message(mark.value);
        let (kind, is_auto) = mark::kind(mark.what);
        let qpn = if is_auto { 0 } else { endpoint };
        match kind {
            mark::ROUND_BEGINS => {
                self.round = Some((mark.value, mark.ns));
                (self.put, self.waits_ns) = (None, 0);
                self.open.clear();
                self.end.round = named(rounds, mark.value);
            }
            mark::PUT => {
                self.put = Some(Put { message, endpoint, qpn, since_ns: mark.ns });
                self.stands(Stage::Called, mark, qpn, 0);
            }
            mark::PUT_RETURNED => {
                // A put whose call was lost has no slice.
                let Some(put) = self.put.take().filter(|put| put.message == message) else {
                    return;
                };
                let slice = self.slice(&Put { qpn, ..put }, mark.ns);
                let (slice, stage) = if status == 0 {
                    let open = self.open.entry(put.endpoint).or_default();
                    open.push((events.len(), put.since_ns));
                    let ticket = mark::ticket(mark.what).into();
                    (slice.with(flows::FLOW, flows::posted(qpn, ticket)), Stage::Returned)
                } else {
                    (slice.with("status", status), Stage::Failed)
                };
                events.push(slice);
                self.waits_ns = mark.ns;
                self.stands(stage, mark, qpn, status);
            }
            mark::COMPLETE if status != 0 => self.stands(Stage::Failed, mark, qpn, status),
            mark::COMPLETE => {
                for (at, since_ns) in self.open.remove(&endpoint).unwrap_or_default() {
                    let after = micros(mark.ns.saturating_sub(since_ns));
                    events[at].args.insert("complete_after_us".into(), after.into());
                }
                if self.waits_ns != 0 {
                    let slice = Event::slice("wait", self.track, (self.waits_ns, mark.ns));
                    events.push(slice.of("kernel").with("message", message));
                    self.waits_ns = mark.ns;
                }
                if self.open.is_empty() {
                    self.stands(Stage::Complete, mark, qpn, 0);
                }
            }
            mark::ROUND_ENDS => {
                if let Some((round, since_ns)) = self.round.take_if(|it| it.0 == mark.value) {
                    let name = named(rounds, round);
                    events.push(Event::slice(name, self.track, (since_ns, mark.ns)).of("round"));
                }
            }
            _ => {}
        }
    }

    fn slice(&self, put: &Put, to_ns: u64) -> Event {
        let slice = Event::slice("put", self.track, (put.since_ns, to_ns)).of(flows::PUT);
        let slice = slice.with("message", put.message);
        if put.qpn == 0 { slice } else { slice.with("qp", format!("{:#x}", put.qpn)) }
    }

    fn stands(&mut self, stage: Stage, mark: &Mark, qpn: u32, status: u32) {
        let (message, ..) = mark::message(mark.value);
        let BlockEnd { block, round, .. } = std::mem::take(&mut self.end);
        self.end = BlockEnd { block, stage, round, message, qpn, since_ns: mark.ns, status };
    }

    /// Draws what has not ended.
    fn finish(self, end_ns: u64, rounds: &[String], events: &mut Vec<Event>) -> BlockEnd {
        if let Some((round, since_ns)) = self.round {
            let slice = Event::slice(named(rounds, round), self.track, (since_ns, end_ns));
            events.push(slice.of("round").with("unfinished", true));
        }
        if let Some(put) = &self.put {
            events.push(self.slice(put, end_ns).with("unfinished", true));
        }
        self.end
    }
}

/// What a round measured.
fn named(rounds: &[String], round: u64) -> String {
    let known = usize::try_from(round).ok().and_then(|round| rounds.get(round));
    known.cloned().unwrap_or_else(|| "unknown round".into())
}
