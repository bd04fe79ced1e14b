//! Programs: whole operations as graphs of steps.
//!
//! A task starts when all tasks that it depends on have ended. A program runs many times, with a
//! window of instances at once, so that the steps of different operations overlap as they do on
//! hardware.

use super::SimError;
use super::channel::Ps;

/// Most tasks of a program: they are counted in 16 bits.
const MOST_TASKS: usize = u16::MAX as usize;

/// Index of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EndpointId(pub u32);

/// Index of a serial server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

/// Index of a ring of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RingId(pub u32);

/// Index of a task in its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskId(pub u16);

/// Condition that ends a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Its last TLP is in the source's queue: posted, without any wait.
    Sent,
    /// Its last byte is at the destination.
    Visible,
    /// The destination's acknowledgement has returned; a fence waits for this.
    Acked,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// Simulated time passes.
    Delay {
        /// Duration.
        ps: Ps,
    },
    /// A random duration, uniformly distributed: the phase of a polling period at which an event
    /// arrived.
    Uniform {
        /// Shortest duration.
        min_ps: Ps,
        /// Upper bound, exclusive.
        max_ps: Ps,
    },
    /// The step occupies a serial server, in order of arrival.
    Serve {
        /// The server.
        server: ServerId,
        /// Duration.
        ps: Ps,
    },
    /// Slots of a ring are taken, behind all who wait for some.
    Take {
        /// The ring.
        ring: RingId,
        /// How many, at most as many as the ring has.
        slots: u32,
    },
    /// Slots of a ring are free again. Takes no time.
    Give {
        /// The ring.
        ring: RingId,
        /// How many.
        slots: u32,
    },
    /// Posted writes.
    Write {
        /// Source.
        from: EndpointId,
        /// Destination.
        to: EndpointId,
        /// Length.
        bytes: u32,
        /// Address; the split into TLPs depends on it.
        addr: u64,
        /// Largest TLP of the source; the MPS of the route applies in any case.
        tlp_bytes: u32,
        /// Condition that ends the step.
        until: Until,
    },
    /// Read requests and their completions. The step ends when the last byte has returned.
    Read {
        /// Requester.
        by: EndpointId,
        /// Completer.
        at: EndpointId,
        /// Length.
        bytes: u32,
        /// Address.
        addr: u64,
        /// Largest read request: MRRS, or the requester's own limit.
        request_bytes: u32,
    },
}

#[derive(Debug, Clone)]
pub(super) struct Task {
    pub step: Step,
    /// Route there and back, resolved when the program is loaded.
    pub route: u32,
    pub waits_for: u16,
    pub then: Vec<u16>,
    pub mark: Option<u8>,
    pub segment: Option<u16>,
    pub is_first: bool,
}

/// A graph of steps.
#[derive(Debug, Clone, Default)]
pub struct Program {
    pub(super) tasks: Vec<Task>,
    /// Bytes that one run delivers, for the bandwidth.
    pub bytes: u64,
    /// Whether tasks were left out, beyond the most.
    is_too_long: bool,
}

impl Program {
    /// An empty program that delivers `bytes` per run.
    pub fn new(bytes: u64) -> Self {
        Self { tasks: Vec::new(), bytes, is_too_long: false }
    }

    /// Adds a task that starts after `after`. Beyond 65535 tasks none is added, and the program does not run.
    pub fn task(&mut self, step: Step, after: &[TaskId]) -> TaskId {
        if self.tasks.len() == MOST_TASKS {
            self.is_too_long = true;
            return TaskId(u16::MAX - 1);
        }
        let id = TaskId(self.tasks.len() as u16);
        for &TaskId(before) in after {
            self.tasks[before as usize].then.push(id.0);
        }
        let waits_for = after.len() as u16;
        let (then, mark, segment, is_first) = (Vec::new(), None, None, false);
        self.tasks.push(Task { step, route: 0, waits_for, then, mark, segment, is_first });
        id
    }

    /// Refuses a program that has not all of its tasks.
    pub(super) fn check(&self) -> Result<(), SimError> {
        if self.is_too_long { Err(SimError::TooManySteps) } else { Ok(()) }
    }

    /// Slots of a ring that one run takes.
    pub(super) fn takes(&self, of: RingId) -> u64 {
        let taken = self.tasks.iter().map(|t| match t.step {
            Step::Take { ring, slots } if ring == of => u64::from(slots),
            _ => 0,
        });
        taken.sum()
    }

    /// Puts a write into a segment of its run: inside its device it passes what waits there of later
    /// segments and of runs that began later. Writes without a segment keep the order of issue.
    pub fn segment(&mut self, task: TaskId, segment: u16) {
        self.tasks[task.0 as usize].segment = Some(segment);
    }

    /// Puts a read before the others of its requester that are not asked for yet, of any run.
    pub fn first(&mut self, task: TaskId) {
        self.tasks[task.0 as usize].is_first = true;
    }

    /// Records the end of `task` as mark `mark` (0 to 3).
    pub fn mark(&mut self, task: TaskId, mark: u8) {
        self.tasks[task.0 as usize].mark = Some(mark & 3);
    }
}

/// A program to run.
#[derive(Debug, Clone)]
pub struct Load {
    /// The program.
    pub program: Program,
    /// Runs at once.
    pub window: u32,
    /// Runs in total.
    pub count: u64,
}

/// Results of a load.
#[derive(Debug, Clone, Default)]
pub struct LoadResult {
    /// Runs that have ended.
    pub done: u64,
    /// Simulated time from the start to the end of the last run.
    pub total_ps: Ps,
    /// Length of the steady state: from the end of the first quarter to the point at which no new
    /// run starts. Each of the two is a mean over the ends of a window of runs.
    pub steady_ps: Ps,
    /// Runs in `steady_ps`.
    pub steady_runs: u64,
    /// Latencies of the first runs: at most [`LoadResult::SAMPLES`].
    pub latencies_ps: Vec<Ps>,
    /// Sum over all runs of the time from the start to each mark.
    pub mark_sum_ps: [u128; 4],
    /// Bytes of one run.
    pub bytes: u64,
}

impl LoadResult {
    /// Number of latencies that are kept.
    pub const SAMPLES: usize = 4096;

    /// Median latency, ns.
    pub fn median_ns(&self) -> f64 {
        let mut sorted = self.latencies_ps.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map_or(f64::NAN, |&ps| ps as f64 / 1000.0)
    }

    /// Mean latency, ns: comparable with a measurement of many operations in sequence.
    pub fn mean_ns(&self) -> f64 {
        let sum: Ps = self.latencies_ps.iter().sum();
        sum as f64 / self.latencies_ps.len() as f64 / 1000.0
    }

    /// Mean time from the start to a mark, ns.
    pub fn mark_ns(&self, mark: usize) -> f64 {
        self.mark_sum_ps[mark] as f64 / self.done.max(1) as f64 / 1000.0
    }

    /// Data rate in steady state, GB/s.
    pub fn gb_per_s(&self) -> f64 {
        (self.bytes * self.steady_runs) as f64 * 1000.0 / self.steady_ps.max(1) as f64
    }
}
