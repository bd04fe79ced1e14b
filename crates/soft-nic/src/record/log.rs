//! How events get into a recording.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::event::{Call, Event, Header, MAGIC, Outcome};
use super::{Record, tap};
use crate::link::pcap::{Kept, create};

/// Events that wait for the file.
const BUFFER_BYTES: usize = 256 << 10;
/// How long the end of a process waits for a step or call.
const PATIENCE: Duration = Duration::from_millis(200);
/// An engine without anything to do brings them there.
const FLUSH_NS: u64 = 50_000_000;

thread_local! {
    /// The recorder whose turn this thread has; 0 for none.
    static HAS_TURN_OF: Cell<u64> = const { Cell::new(0) };
}

/// Writes a recording.
pub(crate) struct Recorder {
    /// Tells it from others: not 0.
    id: u64,
    pub(super) whole: bool,
    turn: Mutex<()>,
    /// Calls that wait for a turn: an engine that is busy would starve them.
    waiting: AtomicUsize,
    log: Mutex<Log>,
}

/// One call or step, of which there is one at a time.
pub(crate) struct Turn<'a> {
    recorder: &'a Recorder,
    _held: MutexGuard<'a, ()>,
}

impl Turn<'_> {
    /// The engine begins a step.
    pub(crate) fn begin_step(&self, now_ns: u64) {
        self.recorder.begin_step(now_ns);
    }

    /// The step is over. One that leaves nothing behind, in memory or in the engine, need not be told of.
    pub(crate) fn end_step(self, leaves_trace: bool) {
        self.recorder.end_step(leaves_trace);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        HAS_TURN_OF.set(0);
        let mut log = self.recorder.log();
        if log.out.len() >= BUFFER_BYTES {
            log.flush();
        }
    }
}

pub(super) struct Log {
    out: Vec<u8>,
    /// `None` once it could not be written: the NIC goes on without.
    file: Option<Kept>,
    flushed_ns: u64,
    /// The latest time of a step.
    now_ns: u64,
    /// A step of which nothing was said yet.
    step: Option<u64>,
    pub(super) words: tap::Words,
    /// Number of the next region.
    pub(super) regions: u32,
    pub(super) up: Option<bool>,
    /// XRC domains so far.
    xrcds: u32,
}

impl Log {
    /// Writes an event down.
    pub(super) fn say(&mut self, event: &Event<'_>) {
        if let Some(now_ns) = self.step.take() {
            self.append(&Event::Step { now_ns });
        }
        self.append(event);
    }

    fn append(&mut self, event: &Event<'_>) {
        let out = std::mem::take(&mut self.out);
        // Into memory: nothing that could fail.
        self.out = postcard::to_extend(event, out).unwrap_or_default();
    }

    fn flush(&mut self) {
        let written = self.file.as_mut().map_or(Ok(()), |file| file.write_all(&self.out));
        self.out.clear();
        if written.is_err() {
            self.file = None;
        }
        self.out.shrink_to(4 * BUFFER_BYTES);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.append(&Event::Closed);
        self.flush();
    }
}

impl Recorder {
    /// Begins a recording.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(record: &Record, header: &Header) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut file = create(&record.path)?;
        file.write_all(MAGIC)?;
        let header = postcard::to_stdvec(header).map_err(io::Error::other)?;
        file.write_all(&header)?;
        let log = Log {
            out: Vec::with_capacity(2 * BUFFER_BYTES),
            file: Some(file),
            flushed_ns: 0,
            now_ns: 0,
            step: None,
            words: tap::Words::default(),
            regions: 0,
            up: None,
            xrcds: 0,
        };
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            whole: record.whole,
            turn: Mutex::default(),
            waiting: AtomicUsize::new(0),
            log: Mutex::new(log),
        })
    }

    /// What was written down reaches the file. Not within a step or call of another thread: who has died in one has
    /// its turn for ever.
    pub(crate) fn flush(&self) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let until = Instant::now() + PATIENCE;
        let _held = loop {
            match self.turn.try_lock() {
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::yield_now(),
                held => break held,
            }
        };
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        self.log().flush();
    }

    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for an XRC domain, from 1.
    pub(crate) fn number_xrcd(&self) -> u32 {
        let mut log = self.log();
        log.xrcds += 1;
        log.xrcds
    }

    /// Whether this thread is in a call or a step: what it does then is written down.
    #[inline]
    pub(super) fn is_ours(&self) -> bool {
        HAS_TURN_OF.get() == self.id
    }

    fn begin<'a>(&'a self, held: MutexGuard<'a, ()>) -> Turn<'a> {
        HAS_TURN_OF.set(self.id);
        Turn { recorder: self, _held: held }
    }

    /// A turn for a step of the engine; [`Turn::begin_step`] begins it.
    pub(crate) fn turn(&self) -> Turn<'_> {
        while self.waiting.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        self.begin(self.turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// As [`Recorder::turn`], unless somebody has one, or waits for one.
    pub(crate) fn try_turn(&self) -> Option<Turn<'_>> {
        if self.waiting.load(Ordering::Acquire) > 0 {
            return None;
        }
        let held = match self.turn.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(self.begin(held))
    }

    fn begin_step(&self, now_ns: u64) {
        let mut log = self.log();
        log.words.begin();
        // As the engine does: of two who step it, the one that looked at the clock first may come second.
        log.now_ns = log.now_ns.max(now_ns);
        log.step = Some(log.now_ns);
    }

    fn end_step(&self, leaves_trace: bool) {
        let mut log = self.log();
        let Some(now_ns) = log.step.take() else { return };
        if leaves_trace {
            log.append(&Event::Step { now_ns });
        } else if !log.out.is_empty() && now_ns.saturating_sub(log.flushed_ns) > FLUSH_NS {
            log.flushed_ns = now_ns;
            log.flush();
        }
    }

    /// A call of the program, by a thread that has no turn; [`Recorder::done`] ends it.
    pub(super) fn call(&self, call: impl FnOnce(&mut Log) -> Call) -> Turn<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let held = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let turn = self.begin(held);
        let mut log = self.log();
        log.words.begin();
        let call = call(&mut log);
        log.say(&Event::Call(call));
        drop(log);
        turn
    }

    pub(super) fn done(&self, turn: Turn<'_>, outcome: Outcome) {
        self.log().say(&Event::Done(outcome));
        drop(turn);
    }

    /// Something that ends with the object that it happened to, whoever drops it and when.
    pub(crate) fn gone(&self, number: u32) {
        let call = Call::Gone { number };
        if self.is_ours() {
            return self.log().say(&Event::Call(call));
        }
        let turn = self.call(|_| call);
        drop(turn);
    }

    /// An asynchronous event.
    pub(crate) fn told(&self, event: crate::objects::events::Event) {
        if self.is_ours() {
            self.log().say(&Event::Told(event));
        }
    }
}
