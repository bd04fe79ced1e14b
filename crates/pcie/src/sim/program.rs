//! Programs: whole operations as graphs of steps.
//!
//! A task starts when all tasks that it waits for are over. One program is run many times, a window
//! of instances at once, so that what overlaps on hardware overlaps here.

use super::channel::Ps;

/// Index of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EndpointId(pub u32);

/// Index of a serial server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

/// Index of a task in its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskId(pub u16);

/// When a write counts as over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Its last TLP is in the source's queue: posted, nothing waits.
    Sent,
    /// Its last byte is at the destination.
    Visible,
    /// The destination's acknowledgement is back, which is what a fence waits for.
    Acked,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// Time passes.
    Delay {
        /// How long.
        ps: Ps,
    },
    /// Time passes, evenly distributed: where in a polling period something arrived.
    Uniform {
        /// At least this.
        min_ps: Ps,
        /// Less than this.
        max_ps: Ps,
    },
    /// A serial resource is taken for a time, in order of arrival.
    Serve {
        /// Which.
        server: ServerId,
        /// For how long.
        ps: Ps,
    },
    /// Posted writes.
    Write {
        /// Source.
        from: EndpointId,
        /// Destination.
        to: EndpointId,
        /// Length.
        bytes: u32,
        /// Address: splits follow it.
        addr: u64,
        /// Largest TLP that the source makes; the path's MPS holds in any case.
        tlp_bytes: u32,
        /// When it is over.
        until: Until,
    },
    /// Read requests and their completions; over when the last byte is back.
    Read {
        /// Requester.
        by: EndpointId,
        /// Completer.
        at: EndpointId,
        /// Length.
        bytes: u32,
        /// Address.
        addr: u64,
        /// Largest read request (MRRS, or what the requester makes).
        request_bytes: u32,
    },
}

#[derive(Debug, Clone)]
pub(super) struct Task {
    pub step: Step,
    /// Route out and back, resolved when the program is loaded.
    pub route: u32,
    pub waits_for: u16,
    pub then: Vec<u16>,
    pub mark: Option<u8>,
}

/// A graph of steps.
#[derive(Debug, Clone, Default)]
pub struct Program {
    pub(super) tasks: Vec<Task>,
    /// What one run of it delivers, for throughput.
    pub bytes: u64,
}

impl Program {
    /// An empty program that delivers `bytes` a run.
    pub fn new(bytes: u64) -> Self {
        Self { tasks: Vec::new(), bytes }
    }

    /// Adds a task that starts after `after`.
    pub fn task(&mut self, step: Step, after: &[TaskId]) -> TaskId {
        let id = TaskId(u16::try_from(self.tasks.len()).expect("a program has under 65536 tasks"));
        for &TaskId(before) in after {
            self.tasks[before as usize].then.push(id.0);
        }
        let waits_for = after.len() as u16;
        self.tasks.push(Task { step, route: 0, waits_for, then: Vec::new(), mark: None });
        id
    }

    /// Makes `task` wait for `before` too. Only earlier tasks can be waited for: no cycles.
    pub fn wait(&mut self, task: TaskId, before: TaskId) {
        assert!(before.0 < task.0, "a task waits for earlier tasks only");
        self.tasks[before.0 as usize].then.push(task.0);
        self.tasks[task.0 as usize].waits_for += 1;
    }

    /// Records when `task` is over, as mark `mark` (0 to 3).
    pub fn mark(&mut self, task: TaskId, mark: u8) {
        self.tasks[task.0 as usize].mark = Some(mark & 3);
    }
}

/// A program to run.
#[derive(Debug, Clone)]
pub struct Load {
    /// What.
    pub program: Program,
    /// How many at once.
    pub window: u32,
    /// How often in all.
    pub count: u64,
}

/// How a load went.
#[derive(Debug, Clone, Default)]
pub struct LoadResult {
    /// Runs that are over.
    pub done: u64,
    /// Virtual time from the start to the end of the last run.
    pub total_ps: Ps,
    /// Steady state: from the end of the first quarter's last run to where no new run starts.
    pub steady_ps: Ps,
    /// Runs in `steady_ps`.
    pub steady_runs: u64,
    /// Latencies of the first runs, at most [`LoadResult::SAMPLES`].
    pub latencies_ps: Vec<Ps>,
    /// Sum over all runs of the time from the start to each mark.
    pub mark_sum_ps: [u128; 4],
    /// Bytes of one run.
    pub bytes: u64,
}

impl LoadResult {
    /// Latencies kept.
    pub const SAMPLES: usize = 4096;

    /// Median latency, ns.
    pub fn median_ns(&self) -> f64 {
        let mut sorted = self.latencies_ps.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map_or(f64::NAN, |&ps| ps as f64 / 1000.0)
    }

    /// Mean latency, ns: what a measurement of many one after the other gives.
    pub fn mean_ns(&self) -> f64 {
        let sum: Ps = self.latencies_ps.iter().sum();
        sum as f64 / self.latencies_ps.len() as f64 / 1000.0
    }

    /// Mean time to a mark, ns.
    pub fn mark_ns(&self, mark: usize) -> f64 {
        self.mark_sum_ps[mark] as f64 / self.done.max(1) as f64 / 1000.0
    }

    /// Data rate in steady state, GB/s.
    pub fn gb_per_s(&self) -> f64 {
        (self.bytes * self.steady_runs) as f64 * 1000.0 / self.steady_ps.max(1) as f64
    }
}
