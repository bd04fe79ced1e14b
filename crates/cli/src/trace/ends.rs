//! Where queues stood when a trace ends: all that an explanation needs.

use serde::{Deserialize, Serialize};

use super::chrome::FORMAT;

/// What stands beside the events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Ends {
    pub format: String,
    /// What times are of, and how far they may be off.
    pub clock: String,
    pub programs: Vec<ProgramEnd>,
    pub queues: Vec<QueueEnd>,
    pub cqs: Vec<CqEnd>,
    #[serde(default)]
    pub kernels: Vec<KernelsEnd>,
}

impl Ends {
    pub(super) fn new() -> Self {
        let clock = "CLOCK_MONOTONIC".into();
        let format = FORMAT.into();
        let (programs, queues, cqs, kernels) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { format, clock, programs, queues, cqs, kernels }
    }

    pub(super) fn extend(&mut self, other: Self, shift: u32) {
        let moved = |pid: u32| pid.wrapping_add(shift);
        let programs = other.programs.into_iter();
        self.programs.extend(programs.map(|it| ProgramEnd { pid: moved(it.pid), ..it }));
        self.queues
            .extend(other.queues.into_iter().map(|it| QueueEnd { pid: moved(it.pid), ..it }));
        self.cqs.extend(other.cqs.into_iter().map(|it| CqEnd { pid: moved(it.pid), ..it }));
        let kernels = other.kernels.into_iter();
        self.kernels.extend(kernels.map(|it| KernelsEnd { pid: moved(it.pid), ..it }));
    }
}

/// A device of a program.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramEnd {
    /// As in the events.
    pub pid: u32,
    /// Name and number of the process, device and address.
    pub name: String,
    /// Whether the device was closed.
    pub closed: bool,
    /// Where its trace ends, in nanoseconds of the host's clock.
    pub end_ns: u64,
    /// Events, definitions and counts that are lost.
    pub lost: [u64; 3],
    /// Threads that still waited.
    pub waits: Vec<WaitEnd>,
    /// Faults of the script, by their number, and how often they struck.
    pub faults: Vec<(u32, u64)>,
}

/// A thread that waited at the end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitEnd {
    /// The thread.
    pub thread: u32,
    /// Since when.
    pub since_ns: u64,
    /// Whether it had armed a CQ first.
    pub armed: bool,
}

/// A queue pair.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueEnd {
    /// As in the events.
    pub pid: u32,
    /// Its number.
    pub qpn: u32,
    /// Its service and state.
    pub kind: String,
    /// As `kind`.
    pub state: String,
    /// The peer's number.
    pub peer: Option<u32>,
    /// CQs of sends and receives.
    pub cqs: [u32; 2],
    /// Blocks of the send queue.
    pub blocks: u32,
    /// WQEs taken, sent and done, and CQEs of them.
    pub fetched: u64,
    /// As `fetched`.
    pub sent: u64,
    /// As `fetched`.
    pub done: u64,
    /// As `fetched`.
    pub completed: u64,
    /// Blocks that the NIC knows of and has not taken.
    pub posted: u64,
    /// Blocks that the doorbell record says beyond those, without a doorbell.
    pub announced: u32,
    /// WQEs that stand in the ring behind those, without a record that says so.
    pub written: u32,
    /// Producer index: where the next WQE would lie.
    pub next: u64,
    /// Blocks since the last WQE that a CQE was written of.
    pub unreported: u64,
    /// Messages on their way, and the oldest: index, opcode, bytes, and when it was sent last (0: not yet).
    pub on_way: u64,
    /// As `on_way`.
    pub oldest: Option<Oldest>,
    /// When something was acknowledged last; 0: never.
    pub done_ns: u64,
    /// What happened last, and when.
    pub last: String,
    /// As `last`.
    pub last_ns: u64,
    /// Timeouts and RNR NAKs since something was acknowledged.
    pub timeouts: u64,
    /// As `timeouts`.
    pub rnr: u64,
    /// When an RNR NAK came last.
    pub rnr_ns: u64,
    /// Packets that were sent again since something was acknowledged.
    pub resent: u64,
    /// Messages that came and found no receive since the last that found one, and when.
    pub refused: u64,
    /// As `refused`.
    pub refused_ns: u64,
    /// Messages that were placed; the PSN of the last.
    pub placed: u64,
    /// As `placed`.
    pub placed_psn: Option<u64>,
    /// Receives that are posted and not taken; `None` where an SRQ has them or nobody looked.
    pub receives: Option<u64>,
    /// The first error that is no flush: index of the WQE, syndrome, vendor error.
    pub error: Option<(u16, u8, u8)>,
    /// The last NAK that came, by its code.
    pub nak: Option<u64>,
    /// Whether the engine came out of its last step.
    pub answered: bool,
}

/// The oldest message that is not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Oldest {
    /// Of its WQE.
    pub index: u16,
    /// Its name.
    pub opcode: String,
    /// Of its payload.
    pub bytes: u64,
    /// When it was sent first; 0: it was not.
    pub sent_ns: u64,
    /// Its first PSN.
    pub psn: u64,
}

/// A CQ.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CqEnd {
    /// As in the events.
    pub pid: u32,
    /// Its number.
    pub number: u32,
    /// Entries that it has.
    pub entries: u64,
    /// CQEs that were written.
    pub written: u64,
    /// Those of them that the consumer had reported taken; `None` where nobody looked.
    pub taken: Option<u64>,
    /// Whether a CQE found no room.
    pub overran: bool,
}

/// A GPU's kernels that wrote marks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelsEnd {
    /// As in the events.
    pub pid: u32,
    /// Name and number of the process, and the GPU.
    pub name: String,
    /// When the marks were read, in nanoseconds of the host's clock.
    pub end_ns: u64,
    /// Marks in the trace, and those that are lost.
    pub marks: u64,
    /// As `marks`.
    pub lost: u64,
    /// How far their times may be off.
    pub within_ns: u64,
    /// Their blocks.
    pub blocks: Vec<BlockEnd>,
}

/// A block that wrote marks.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockEnd {
    /// Its number.
    pub block: u32,
    /// What its last message had come to, and since when.
    pub stage: Stage,
    /// As `stage`.
    pub since_ns: u64,
    /// What was measured.
    pub round: String,
    /// The message's number in its round.
    pub message: u32,
    /// The message's queue pair; 0: not said.
    pub qpn: u32,
    /// What failed returned this `bp_status_code`.
    pub status: u32,
}

/// What a message of a kernel has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// There was none.
    #[default]
    None,
    /// Its put is called.
    Called,
    /// It has returned.
    Returned,
    /// All messages are complete.
    Complete,
    /// The put, or the wait for completion, returned an error.
    Failed,
}
