//! Traces: what a NIC did and when, in memory that outlives its process.
//!
//! A recording ([`crate::record`]) has every byte that a NIC saw, and makes its engine and its program take turns for
//! that. A trace has the stages of each WQE alone, 32 bytes an event, and takes no lock: [`Tracing`] is a sealed
//! anonymous file that whoever looks on holds, and each device that is opened claims one of its areas. So a program
//! that is killed leaves everything up to its last event, and whoever looks on needs no thread in it.
//!
//! An area has a head, counters of queue pairs, definitions (what was made), and two rings of events: of the steps of
//! the NIC's first engine, which takes places by itself, and of everyone else. The newest events take the place of the
//! oldest, which are counted as lost. Definitions are kept; those beyond the room are lost. Events of a NIC whose queue
//! pairs are leased to an engine elsewhere are those of this engine alone.

mod hand;
mod look;
mod marks;
mod read;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex};

pub use look::SendLook;
pub use read::{DeviceTrace, Mark, QpCounts};

use bellpush_mem::clock::{Pair, has_steady_ticks, monotonic_ns, ticks};
use bellpush_mem::here::Here;
use bellpush_mem::{HostMem, MemError};
use bellpush_wire::cqe::CqeOpcode;
use hand::Hand;
use look::{Looked, Stale};

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What happened. `a` and `b` are the two words of an event, `aux` its 16 bits more.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name,)* }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

kinds! {
    /// The engine learned of more blocks. `a` was its producer index, `b` is it now.
    Doorbell = "doorbells",
    /// A WQE was taken. `aux` index, `a` position or ticket, `b` opcode, source and blocks (`fetched`).
    Fetched = "wqes fetched",
    /// The first packet of a message was built. `aux` index, `a` peer's queue pair, `b` PSN and bytes.
    Sent = "messages sent",
    /// The last of several was. `aux` index.
    SentLast = "long messages sent",
    /// A WQE is complete: acknowledged, or sent where nobody acknowledges. `aux` index, `a` opcode, `b` bytes.
    Done = "wqes done",
    /// A CQE was written. `aux` WQE's index, `a` CQ, opcode, syndrome, vendor error (`cqe`), `b` bytes.
    Cqe = "cqes",
    /// A packet was built again. `a` its PSN.
    Resent = "packets resent",
    /// Nothing was acknowledged for as long as the timer. `a` how often, `b` nanoseconds in all.
    Timeout = "timeouts",
    /// The peer had no receive. `a` how often in a row, `b` nanoseconds until the next try.
    RnrGot = "rnr naks got",
    /// The peer refused. `a` AETH's NAK code, `b` PSN.
    NakGot = "naks got",
    /// There was no receive for a message. `a` its PSN.
    RnrSent = "rnr naks sent",
    /// A request was refused. `a` NAK code, `b` PSN.
    NakSent = "naks sent",
    /// The first packet of several of a message has come. `a` its PSN.
    Arrived = "long messages begun",
    /// A message's last packet was placed. `a` the first PSN, `b` bytes; `aux` 1 for READs and atomics.
    Placed = "messages placed",
    /// The state changed. `a` from, `b` to.
    State = "state changes",
    /// A queue pair was destroyed.
    Gone = "queue pairs destroyed",
    /// An asynchronous event, by the number of its object. `a` is its `ibv_event_type`.
    Async = "asynchronous events",
    /// A fault of the script struck; the number is the fault's.
    Fault = "faults",
    /// A thread of the program found nothing; the number is the thread's. `a` is 1 where it armed a CQ.
    WaitBegins = "waits begun",
    /// It found something.
    WaitEnds = "waits",
    /// A look at a queue pair: `aux` record's index; `a` posted and taken; `b` state, on its way, announced, written
    /// ([`SendLook`]).
    LookSend = "looks at sends",
    /// A look at its receives: `a` posted, `b` taken.
    LookReceives = "looks at receives",
    /// A look at a CQ, whose number it has: `a` written; `b` taken (24 bits), overrun (1), entries.
    LookCq = "looks at CQs",
    /// A queue pair was made: `aux` service; `a` send CQ and receive CQ; `b` blocks and receives.
    QpMade = "queue pairs made",
    /// It was given a peer: `a` its number.
    Connected = "connections",
    /// A CQ was made: `a` entries.
    CqMade = "CQs made",
}

impl Kind {
    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether the number is a queue pair's.
    pub const fn is_of_qp(self) -> bool {
        use Kind::{Async, CqMade, Fault, LookCq, WaitBegins, WaitEnds};
        !matches!(self, Async | Fault | WaitBegins | WaitEnds | LookCq | CqMade)
    }

    fn is_definition(self) -> bool {
        matches!(self, Self::QpMade | Self::Connected | Self::CqMade)
    }
}

/// The second word of [`Kind::Fetched`].
pub(crate) fn fetched(opcode: u8, source: u8, blocks: u32, signaled: bool) -> u64 {
    u64::from(opcode)
        | u64::from(source) << 8
        | u64::from(signaled) << 15
        | u64::from(blocks as u16) << 16
}

/// The first word of [`Kind::Cqe`].
pub(crate) fn cqe(cq: u32, opcode: u8, syndrome: u8, vendor: u8) -> u64 {
    u64::from(cq & 0xff_ffff)
        | u64::from(opcode) << 24
        | u64::from(syndrome) << 32
        | u64::from(vendor) << 40
}

/// Whether a CQE of this first word tells of a send WQE.
fn is_of_send(a: u64) -> bool {
    let opcode = (a >> 24) as u8;
    opcode == CqeOpcode::Req as u8 || opcode == CqeOpcode::ReqErr as u8
}

/// Areas, each of which one device has that is opened.
const AREAS: usize = 64;
const HEAD_BYTES: usize = 4096;
/// Queue pairs of which there are counters.
const QPS: usize = 4096;
/// Places that are looked at for those of one.
const PROBES: usize = 64;
const QP_WORDS: usize = 32;
const DEFINITIONS: usize = 4096;
/// Events of a device that are kept, in each of its rings.
pub const EVENTS: usize = 1 << 18;
const EVENT_BYTES: usize = 32;

const QPS_AT: usize = HEAD_BYTES;
/// What was made, events of the first engine's steps, and those of everyone else.
const DEFINED: Ring =
    Ring { count: head::DEFINITIONS, at: QPS_AT + QPS * QP_WORDS * 8, entries: DEFINITIONS };
const STEPS: Ring = Ring { count: head::STEPS, at: DEFINED.end(), entries: EVENTS };
const OTHERS: Ring = Ring { count: head::EVENTS, at: STEPS.end(), entries: EVENTS };
const AREA_BYTES: usize = OTHERS.end();
const BYTES: usize = HEAD_BYTES + AREAS * AREA_BYTES;

/// Words of the memory's first page.
const MAGIC: u64 = u64::from_le_bytes(*b"bp-trac2");
const MAGIC_AT: usize = 0;
const CLAIMED_AT: usize = 8;
/// What is wanted: bits of [`EVENTS_WANTED`], [`COUNTS_WANTED`]; and [`IN_TICKS`] where times are the processor's.
const WANTED_AT: usize = 16;
const EVENTS_WANTED: u64 = 1;
const COUNTS_WANTED: u64 = 2;
const IN_TICKS: u64 = 4;

/// A part of an area for events.
struct Ring {
    /// The head's word that says how many there were so far.
    count: usize,
    at: usize,
    /// A power of two.
    entries: usize,
}

impl Ring {
    const fn end(&self) -> usize {
        self.at + self.entries * EVENT_BYTES
    }
}

/// Words of an area's head.
mod head {
    pub(super) const PID: usize = 0;
    pub(super) const INDEX: usize = 8;
    pub(super) const OPENED: usize = 16;
    pub(super) const CLOSED: usize = 24;
    pub(super) const LOOKED: usize = 32;
    /// Events and definitions so far, and events of queue pairs beyond those of which there are counters.
    pub(super) const EVENTS: usize = 40;
    pub(super) const DEFINITIONS: usize = 48;
    pub(super) const UNCOUNTED: usize = 56;
    pub(super) const NAME: usize = 64;
    pub(super) const NAME_BYTES: usize = 64;
    pub(super) const PLACE: usize = 128;
    pub(super) const PLACE_BYTES: usize = 64;
    /// Events of the first engine's steps so far: a line of its own.
    pub(super) const STEPS: usize = 192;
    pub(super) const COUNTERS: usize = 256;
}

/// Last words of a queue pair's counters, behind those of each kind: errors among its CQEs, bytes of its WQEs.
const QP_ERRORS: usize = QP_WORDS - 2;
const QP_BYTES: usize = QP_WORDS - 1;
const _: () = assert!(Kind::ALL.len() < QP_ERRORS);

/// Memory for the traces of many devices, of this process and of others.
pub struct Tracing {
    memory: Arc<HostMem>,
    /// Of whoever made it: others open it by `/proc`. In a program that is traced a descriptor would be in its way.
    file: Option<File>,
    /// When it was made.
    begun: Pair,
}

impl Tracing {
    /// Memory that costs nothing until a device claims an area of it, for events, counters of queue pairs, or both.
    ///
    /// # Errors
    /// The system's.
    pub fn new(events: bool, counts: bool) -> io::Result<Arc<Self>> {
        let file = HostMem::sealed_file(c"bellpush-trace", BYTES)?;
        let memory = HostMem::shared(&file, BYTES).map_err(io::Error::other)?;
        let store = |at, value| memory.store_u64(at, value, Ordering::Release);
        let wanted =
            [(events, EVENTS_WANTED), (counts, COUNTS_WANTED), (has_steady_ticks(), IN_TICKS)];
        let wanted = wanted.into_iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum();
        store(WANTED_AT, wanted).map_err(io::Error::other)?;
        store(MAGIC_AT, MAGIC).map_err(io::Error::other)?;
        Ok(Arc::new(Self { memory, file: Some(file), begun: Pair::sample() }))
    }

    /// That of another process, from a descriptor of it.
    ///
    /// # Errors
    /// The system's; `InvalidData` for a file that is none.
    pub fn open(file: &File) -> io::Result<Arc<Self>> {
        let memory = HostMem::shared(file, BYTES).map_err(io::Error::other)?;
        // Acquire: pairs with the release above.
        match memory.load_u64(MAGIC_AT, Ordering::Acquire) {
            Ok(MAGIC) => Ok(Arc::new(Self { memory, file: None, begun: Pair::sample() })),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The file, for others to open; `None` of one that was opened itself.
    pub fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Devices that found no area.
    pub fn refused(&self) -> u64 {
        let claimed = self.memory.load_u64(CLAIMED_AT, Ordering::Acquire).unwrap_or(0);
        claimed.saturating_sub(AREAS as u64)
    }

    /// An area for a device of this process, by its number and where it is; `None` when all are claimed.
    pub(crate) fn claim(&self, index: usize, place: &str) -> Result<Option<Tracer>, MemError> {
        let area = self.memory.fetch_add_u64(CLAIMED_AT, 1)? as usize;
        if area >= AREAS {
            return Ok(None);
        }
        let base = HEAD_BYTES + area * AREA_BYTES;
        let wanted = self.memory.load_u64(WANTED_AT, Ordering::Relaxed)?;
        let memory = self.memory.clone();
        let tracer = Tracer {
            memory,
            base,
            wanted,
            here: Here::of_this_process(),
            hand: Hand::default(),
            looked: Mutex::default(),
            stale: Mutex::default(),
        };
        let name = std::fs::read("/proc/self/comm").unwrap_or_default();
        tracer.put_text(head::NAME, head::NAME_BYTES, name.trim_ascii())?;
        tracer.put_text(head::PLACE, head::PLACE_BYTES, place.as_bytes())?;
        tracer.put(head::INDEX, index as u64);
        tracer.put(head::OPENED, monotonic_ns());
        tracer.put(head::PID, std::process::id().into());
        Ok(Some(tracer))
    }
}

/// What a device writes its trace with. The child of a fork has the memory as well, and writes nothing there: the device is
/// its parent's, and those that it opens itself have areas of their own.
pub struct Tracer {
    memory: Arc<HostMem>,
    base: usize,
    wanted: u64,
    here: Here,
    hand: Hand,
    /// What the last looks found: what is as it was is not written again.
    looked: Mutex<Looked>,
    /// What stood in rings when they were reset last, by the number of the queue pair.
    stale: Mutex<HashMap<u32, Vec<Stale>>>,
}

impl Tracer {
    /// Writes an event down.
    #[inline]
    pub fn mark(&self, kind: Kind, number: u32, aux: u16, [a, b]: [u64; 2]) {
        if self.here.is_child() {
            return;
        }
        if self.wanted & COUNTS_WANTED != 0 && kind.is_of_qp() {
            self.count(kind, number, [a, b]);
        }
        if self.wanted & EVENTS_WANTED == 0 {
            return;
        }
        let what =
            u64::from(number & 0xff_ffff) | u64::from(aux) << 24 | u64::from(kind as u8 + 1) << 56;
        if self.hand.is_callers() && !kind.is_definition() {
            let Some(nth) = self.next_of_step() else { return };
            let at = self.hand.time(kind, what, a, || self.now());
            return self.write(&STEPS, nth, what, [at, a, b]);
        }
        let ring = if kind.is_definition() { &DEFINED } else { &OTHERS };
        let Ok(nth) = self.memory.fetch_add_u64(self.base + ring.count, 1) else { return };
        if kind.is_definition() && nth >= DEFINITIONS as u64 {
            return; // counted, and so known to be lost
        }
        self.write(ring, nth, what, [self.now(), a, b]);
    }

    /// The place of the next event of the step under way, which this thread is in: nobody else takes any.
    #[inline]
    fn next_of_step(&self) -> Option<u64> {
        let count = self.base + STEPS.count;
        let nth = self.memory.load_u64(count, Ordering::Relaxed).ok()?;
        self.store(count, nth.wrapping_add(1), Ordering::Relaxed);
        // Release: who finds anything of the event finds that its place was taken, as does who looks at what a process
        // that is killed has left.
        fence(Ordering::Release);
        Some(nth)
    }

    /// Writes the event down that is the `nth` of its ring.
    #[inline]
    fn write(&self, ring: &Ring, nth: u64, what: u64, [time, a, b]: [u64; 3]) {
        let at = self.base + ring.at + (nth as usize & (ring.entries - 1)) * EVENT_BYTES;
        // Which lap of the ring it is tells an event that is whole from the one that it takes the place of.
        let lap = nth / ring.entries as u64;
        let words = [time, a, b, what | (lap & 0xff) << 40];
        // Who finds the last word finds the others. A process that is killed leaves all or nothing of it.
        let written = self.memory.publish_words(at, words);
        debug_assert!(written.is_ok(), "the area lies in the memory");
    }

    #[inline]
    fn now(&self) -> u64 {
        if self.wanted & IN_TICKS == 0 { monotonic_ns() } else { ticks() }
    }

    /// The counters' place of a queue pair, which the first event of it takes.
    fn counters_of(&self, qpn: u32) -> Option<usize> {
        let named = u64::from(qpn) | 1 << 32;
        let first = qpn.wrapping_mul(0x9e37_79b1) as usize;
        for step in 0..PROBES {
            let at = self.base + QPS_AT + (first.wrapping_add(step) & (QPS - 1)) * QP_WORDS * 8;
            let found = self.memory.load_u64(at, Ordering::Relaxed).ok()?;
            if found == named {
                return Some(at);
            }
            if found == 0 {
                let taken = self.memory.compare_swap_u64(at, 0, named).ok()?;
                if taken == 0 || taken == named {
                    return Some(at);
                }
            }
        }
        None
    }

    fn count(&self, kind: Kind, qpn: u32, [a, b]: [u64; 2]) {
        let Some(at) = self.counters_of(qpn) else {
            return self.bump(self.base + head::UNCOUNTED, 1);
        };
        self.bump(at + 8 * (1 + kind as usize), 1);
        match kind {
            Kind::Done => self.bump(at + 8 * QP_BYTES, b),
            Kind::Cqe if a >> 32 & 0xff != 0 => self.bump(at + 8 * QP_ERRORS, 1),
            _ => {}
        }
    }

    /// Adds to a counter. A queue pair is one engine's, which is in one step at a time.
    fn bump(&self, at: usize, n: u64) {
        let before = self.memory.load_u64(at, Ordering::Relaxed).unwrap_or(0);
        self.store(at, before.wrapping_add(n), Ordering::Relaxed);
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        let stored = self.memory.store_u64(at, value, order);
        debug_assert!(stored.is_ok(), "the area lies in the memory");
    }

    fn put(&self, word: usize, value: u64) {
        if !self.here.is_child() {
            self.store(self.base + word, value, Ordering::Release);
        }
    }

    fn put_text(&self, at: usize, bytes: usize, text: &[u8]) -> Result<(), MemError> {
        self.memory.write(self.base + at, &text[..text.len().min(bytes)])
    }

    /// The device is closed.
    pub(crate) fn close(&self) {
        self.put(head::CLOSED, monotonic_ns());
    }
}
