//! How events get into a recording.
//!
//! Whoever has the turn has the log with it, in its thread: what an engine looks at a million times a second takes no
//! lock. At the end of a turn, what it said goes to those that wait for the file, where also a thread finds it that
//! ends the process while another has its turn for ever.

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::event::{Call, Event, Header, MAGIC, Outcome};
use super::{Record, tap};
use crate::link::pcap::{Kept, create};

/// Events that wait for the file.
const BUFFER_BYTES: usize = 256 << 10;
/// How long the end of a process waits for a step or call, and for whoever is at the file.
const PATIENCE: Duration = Duration::from_millis(200);
/// An engine without anything to do brings them there.
const FLUSH_NS: u64 = 50_000_000;
/// Bytes that are copied one by one: numbers, which a call would take longer for.
const FEW: usize = 10;

thread_local! {
    static HELD: Held = const {
        Held { of: Cell::new(0), log: RefCell::new(ManuallyDrop::new(None)) }
    };
}

/// The turn that a thread has. It has no destructor: the turn takes the log back, and of a thread that ends within one
/// nobody can.
struct Held {
    /// The recorder; 0 for none.
    of: Cell<u64>,
    log: RefCell<ManuallyDrop<Option<Box<Log>>>>,
}

/// Writes a recording.
pub(crate) struct Recorder {
    /// Tells it from others: not 0.
    id: u64,
    pub(super) whole: bool,
    /// Whose turn it is; the log is here between turns.
    turn: Mutex<Option<Box<Log>>>,
    /// Calls that wait for a turn: an engine that is busy would starve them.
    waiting: AtomicUsize,
    out: Mutex<Out>,
    /// Numbers of the next region, and of the next queue's memory; XRC domains so far.
    regions: AtomicU32,
    queues: AtomicU32,
    xrcds: AtomicU32,
}

/// One call or step, of which there is one at a time.
pub(crate) struct Turn<'a> {
    recorder: &'a Recorder,
    held: MutexGuard<'a, Option<Box<Log>>>,
    /// The turn of another recorder that the thread is in.
    outer: (u64, Option<Box<Log>>),
}

impl Turn<'_> {
    /// The engine begins a step.
    pub(crate) fn begin_step(&self, now_ns: u64) {
        self.recorder.with(|log| log.begin_step(now_ns));
    }

    /// The step is over. One that leaves nothing behind, in memory or in the engine, need not be told of.
    pub(crate) fn end_step(self, leaves_trace: bool) {
        self.recorder.with(|log| log.end_step(leaves_trace));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let (of, outer) = std::mem::take(&mut self.outer);
        HELD.with(|held| {
            held.of.set(of);
            *self.held = std::mem::replace(&mut **held.log.borrow_mut(), outer);
        });
        if let Some(log) = &mut *self.held
            && (!log.out.is_empty() || log.is_due)
        {
            log.join(&mut self.recorder.out.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// What whoever has the turn knows.
pub(super) struct Log {
    /// What this turn said.
    out: Vec<u8>,
    /// The turns before said something that may not be in the file yet.
    is_behind: bool,
    /// It is time to bring it there.
    is_due: bool,
    flushed_ns: u64,
    /// The latest time of a step.
    now_ns: u64,
    /// A step of which nothing was said yet.
    step: Option<u64>,
    pub(super) words: tap::Words,
    pub(super) up: Option<bool>,
}

/// Where events are encoded to: the end of a vector. Postcard's own copies each number by a call.
struct Encoder<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Encoder<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        match bytes.len() {
            ..=FEW => bytes.iter().for_each(|&byte| self.0.push(byte)),
            _ => self.0.extend_from_slice(bytes),
        }
        Ok(())
    }

    #[inline]
    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

impl Log {
    fn new() -> Box<Self> {
        Box::new(Self {
            out: Vec::with_capacity(BUFFER_BYTES),
            is_behind: false,
            is_due: false,
            flushed_ns: 0,
            now_ns: 0,
            step: None,
            words: tap::Words::default(),
            up: None,
        })
    }

    /// Writes an event down.
    #[inline]
    pub(super) fn say(&mut self, event: &Event<'_>) {
        if let Some(now_ns) = self.step.take() {
            self.append(&Event::Step { now_ns });
        }
        self.append(event);
    }

    fn append(&mut self, event: &Event<'_>) {
        // Into memory: nothing that could fail.
        let _ = postcard::serialize_with_flavor(event, Encoder(&mut self.out));
    }

    fn begin_step(&mut self, now_ns: u64) {
        self.words.begin();
        // As the engine does: of two who step it, the one that looked at the clock first may come second.
        self.now_ns = self.now_ns.max(now_ns);
        self.step = Some(self.now_ns);
    }

    fn end_step(&mut self, leaves_trace: bool) {
        let Some(now_ns) = self.step.take() else { return };
        if leaves_trace {
            self.append(&Event::Step { now_ns });
        } else if self.is_behind && now_ns.saturating_sub(self.flushed_ns) > FLUSH_NS {
            (self.flushed_ns, self.is_due) = (now_ns, true);
        }
    }

    /// What a turn said joins what waits for the file.
    fn join(&mut self, out: &mut Out) {
        out.bytes.extend_from_slice(&self.out);
        self.out.clear();
        self.out.shrink_to(4 * BUFFER_BYTES);
        self.is_behind = true;
        if self.is_due || out.bytes.len() >= BUFFER_BYTES {
            out.flush();
            (self.is_behind, self.is_due) = (false, false);
        }
    }
}

/// What waits for the file.
struct Out {
    bytes: Vec<u8>,
    /// `None` once it could not be written: the NIC goes on without.
    file: Option<Kept>,
}

impl Out {
    fn flush(&mut self) {
        let written = self.file.as_mut().map_or(Ok(()), |file| file.write_all(&self.bytes));
        self.bytes.clear();
        if written.is_err() {
            self.file = None;
        }
        self.bytes.shrink_to(4 * BUFFER_BYTES);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let turn = self.turn.get_mut().unwrap_or_else(PoisonError::into_inner);
        let out = self.out.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Whose turn had no end has the log: what the NIC did in it is not there, and so neither is an end.
        if let Some(mut log) = turn.take() {
            log.append(&Event::Closed);
            log.join(out);
        }
        out.flush();
    }
}

/// A lock, by somebody who cannot wait for ever; `None`: whoever has it keeps it.
fn patiently<T>(lock: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let until = Instant::now() + PATIENCE;
    loop {
        match lock.try_lock() {
            Ok(held) => return Some(held),
            Err(TryLockError::Poisoned(held)) => return Some(held.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
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
        let out = Out { bytes: Vec::with_capacity(2 * BUFFER_BYTES), file: Some(file) };
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            whole: record.whole,
            turn: Mutex::new(Some(Log::new())),
            waiting: AtomicUsize::new(0),
            out: Mutex::new(out),
            regions: AtomicU32::new(0),
            queues: AtomicU32::new(0),
            xrcds: AtomicU32::new(0),
        })
    }

    /// What was written down reaches the file. Not within a step or call of another thread: who has died in one has
    /// its turn for ever, and what was said in it is lost.
    pub(crate) fn flush(&self) {
        let own = self.with(|log| {
            if let Some(mut out) = patiently(&self.out) {
                log.is_due = true;
                log.join(&mut out);
            }
        });
        if own.is_some() {
            return;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let _held = patiently(&self.turn);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        if let Some(mut out) = patiently(&self.out) {
            out.flush();
        }
    }

    /// The log, if this thread is in a call or a step of this recorder's: what it does then is written down.
    #[inline]
    pub(super) fn with<R>(&self, use_it: impl FnOnce(&mut Log) -> R) -> Option<R> {
        HELD.with(|held| {
            if held.of.get() != self.id {
                return None;
            }
            held.log.try_borrow_mut().ok()?.as_deref_mut().map(use_it)
        })
    }

    /// Writes an event down, if this thread is in a call or a step.
    #[inline]
    pub(super) fn say(&self, event: &Event<'_>) {
        self.with(|log| log.say(event));
    }

    /// A number for a region, from 0.
    pub(super) fn number_region(&self) -> u32 {
        self.regions.fetch_add(1, Ordering::Relaxed)
    }

    /// A queue's place among those whose words are known, from 0.
    pub(super) fn number_queue(&self) -> u32 {
        self.queues.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for an XRC domain, from 1.
    pub(crate) fn number_xrcd(&self) -> u32 {
        self.xrcds.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether this thread is in a call or a step.
    #[inline]
    pub(super) fn is_ours(&self) -> bool {
        HELD.with(|held| held.of.get() == self.id)
    }

    fn begin<'a>(&'a self, mut held: MutexGuard<'a, Option<Box<Log>>>) -> Turn<'a> {
        let log = held.take();
        let outer = HELD.with(|place| {
            let log = std::mem::replace(&mut **place.log.borrow_mut(), log);
            (place.of.replace(self.id), log)
        });
        Turn { recorder: self, held, outer }
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

    /// A call of the program, by a thread that has no turn; [`Recorder::done`] ends it.
    pub(super) fn call(&self, call: Call) -> Turn<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let held = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let turn = self.begin(held);
        self.with(|log| {
            log.words.begin();
            log.say(&Event::Call(call));
        });
        turn
    }

    pub(super) fn done(&self, turn: Turn<'_>, outcome: Outcome) {
        self.say(&Event::Done(outcome));
        drop(turn);
    }

    /// Something that ends with the object that it happened to, whoever drops it and when.
    pub(crate) fn gone(&self, number: u32) {
        let call = Call::Gone { number };
        if self.is_ours() {
            return self.say(&Event::Call(call));
        }
        let turn = self.call(call);
        drop(turn);
    }

    /// An asynchronous event.
    pub(crate) fn told(&self, event: crate::objects::events::Event) {
        self.say(&Event::Told(event));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::link::ShmNet;
    use crate::objects::cq::CqAttr;
    use crate::record::{End, event_names, replay};
    use crate::{SoftConfig, SoftNic};
    use bellpush_mem::{HostMem, View};

    /// A recorder of a file in a folder that goes with it.
    pub(in crate::record) fn recorder() -> (Recorder, std::path::PathBuf, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nic");
        let record = Record { path: path.clone(), whole: false, script: None };
        (Recorder::new(&record, &Header::of_tests()).unwrap(), path, dir)
    }

    fn says(recorder: &Recorder, port: u16) {
        recorder.say(&Event::Port { port, granted: true });
    }

    #[test]
    fn what_was_said_in_turns_reaches_the_file_while_another_thread_has_its_turn_for_ever() {
        let (recorder, path, _dir) = recorder();
        drop(recorder.call(Call::Pd));
        std::thread::scope(|scope| {
            let stuck = || {
                let turn = recorder.call(Call::Quiesce);
                says(&recorder, 1);
                std::mem::forget(turn);
            };
            scope.spawn(stuck).join().unwrap();
        });
        recorder.flush();
        assert_eq!(event_names(&path), ["call Pd"]);
        drop(recorder);
        assert_eq!(event_names(&path), ["call Pd"], "a turn is missing before the end");
    }

    #[test]
    fn a_process_ends_although_a_thread_died_at_the_file() {
        for is_in_turn in [false, true] {
            let (recorder, _, _dir) = recorder();
            let recorder = Arc::new(recorder);
            std::thread::scope(|scope| {
                let dies = || std::mem::forget(recorder.out.lock().unwrap());
                scope.spawn(dies).join().unwrap();
            });
            let ((ends, ended), its) = (channel(), recorder.clone());
            std::thread::spawn(move || {
                let turn = is_in_turn.then(|| its.turn());
                its.flush();
                std::mem::forget(turn);
                ends.send(()).unwrap();
            });
            assert_eq!(ended.recv_timeout(25 * PATIENCE), Ok(()), "in a turn: {is_in_turn}");
        }
    }

    #[test]
    fn a_turn_that_panics_gives_the_log_back() {
        let (recorder, path, _dir) = recorder();
        let panics = || {
            let _turn = recorder.call(Call::Pd);
            says(&recorder, 1);
            recorder.with(|_| panic!("planted"));
        };
        std::thread::scope(|scope| assert!(scope.spawn(panics).join().is_err()));
        drop(recorder.call(Call::Quiesce));
        drop(recorder);
        let said =
            ["call Pd", "  may send from UDP port 1", "call Quiesce", "the device is closed"];
        assert_eq!(event_names(&path), said);
    }

    #[test]
    fn a_process_that_ends_within_a_turn_does_not_wait_for_it() {
        let (recorder, path, _dir) = recorder();
        let turn = recorder.call(Call::Pd);
        let start = Instant::now();
        recorder.flush();
        assert!(start.elapsed() < PATIENCE);
        assert_eq!(event_names(&path), ["call Pd"]);
        recorder.done(turn, Outcome::Done);
        drop(recorder);
        assert_eq!(event_names(&path), ["call Pd", "  done", "the device is closed"]);
    }

    #[test]
    fn a_turn_within_one_of_another_recorder_leaves_that_as_it_was() {
        let ((one, path, _dir), (other, other_path, _other_dir)) = (recorder(), recorder());
        let turn = one.call(Call::Pd);
        let inner = other.call(Call::Quiesce);
        says(&one, 1); // not this thread's turn now
        says(&other, 2);
        drop(inner);
        says(&one, 3);
        says(&other, 4);
        drop(turn);
        says(&one, 5);
        drop((one, other));
        let [first, second] = [&path, &other_path].map(|path| event_names(path));
        assert_eq!(first, ["call Pd", "  may send from UDP port 3", "the device is closed"]);
        assert_eq!(second, ["call Quiesce", "  may send from UDP port 2", "the device is closed"]);
    }

    #[test]
    fn memories_have_numbers_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nic");
        let record = Some(Record { path: path.clone(), whole: false, script: None });
        let link = ShmNet::anonymous(true).unwrap().attach([127, 0, 0, 1].into()).unwrap();
        let config = SoftConfig { record, ..SoftConfig::default() };
        let (nic, mut engine) = SoftNic::manual_on(&config, Box::new(link)).unwrap();
        // As if it had registered and let go so many.
        let recorder = nic.device.recorder.as_ref().unwrap();
        recorder.regions.store(1 << 20, Ordering::Relaxed);
        let memory = HostMem::alloc(12288).unwrap();
        let view = |at, bytes| View::new(&memory, at, bytes).unwrap();
        let (ring, dbr, uar) = (view(0, 4096), view(4096, 8), view(8192, 4096));
        let cq = nic.create_cq(&CqAttr { ring, dbr, uar, notify: None }).unwrap();
        engine.step(1);
        drop((cq, nic, engine));
        let played = replay(std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(played.end, End::Same, "{played:#?}");
    }

    #[test]
    fn an_idle_step_brings_to_the_file_what_was_said_long_ago() {
        let (recorder, path, _dir) = recorder();
        drop(recorder.call(Call::Pd));
        for (now_ns, events) in [(1, 0), (FLUSH_NS, 0), (FLUSH_NS + 1, 1)] {
            let turn = recorder.turn();
            turn.begin_step(now_ns);
            turn.end_step(false);
            assert_eq!(event_names(&path).len(), events, "{now_ns}");
        }
    }
}
