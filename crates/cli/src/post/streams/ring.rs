//! The bare exchange: a kernel stores the slots of a window in host memory, threads copy them out and give them back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use bellpush::abi::bench::{LinkResult, STREAM_UNIT_BYTES, STREAM_WORD_BYTES, StreamArgs};
use bellpush::abi::wire::Code;
use bellpush::gpu::{Dims, Gpu, GpuError, Loaded, Mapped, Module, Stream};
use bellpush::mem::{Dma, MemError, View};
use bellpush::transport::Memory;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Mode;
use crate::cli::CliError;
use crate::launch::launch;
use crate::post::bug;

/// Bytes of the source: more than of any window, so that a slot has something else in each lap.
const SRC_BYTES: usize = 8 << 20;
/// Behind them, for loads of a last line's fourth word.
const SRC_BEHIND: usize = 64;
/// Bytes of a run on a GPU; every one of them is compared.
const RUN_BYTES: usize = 64 << 20;
/// Laps of the window, at least: from the second on a slot waits for its credit.
const LEAST_LAPS: usize = 3;
const MAX_BLOCKS: usize = 64;
/// Looks between those at the clock.
const LOOKS: u32 = 1024;
/// Bound of the wait for all threads.
const READY: Duration = Duration::from_secs(10);
/// What a destination has before a run.
const POISON: u8 = 0xa5;

/// One way to exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub mode: Mode,
    pub window_bytes: usize,
    /// A multiple of [`STREAM_UNIT_BYTES`].
    pub slot_bytes: usize,
    pub blocks: u32,
    /// Threads that copy.
    pub threads: usize,
    /// Slots are given back in the order in which they were sent, as a queue pair's completions come; otherwise each when
    /// it has been copied.
    pub in_order: bool,
}

impl Shape {
    pub fn slots(&self) -> usize {
        self.window_bytes / self.slot_bytes
    }

    fn payload(&self) -> usize {
        self.mode.payload(self.slot_bytes)
    }

    /// From one place of the source to the next.
    fn place_bytes(&self) -> usize {
        self.payload().next_multiple_of(64)
    }

    fn places(&self) -> usize {
        SRC_BYTES / self.place_bytes()
    }

    fn laps(&self, run_bytes: usize) -> usize {
        (run_bytes / (self.slots() * self.payload())).max(LEAST_LAPS)
    }

    /// The slots that a thread copies, in their order: by lap, from 1, and number.
    fn slots_of(&self, thread: usize, laps: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (slots, threads) = (self.slots(), self.threads);
        (1..=laps).flat_map(move |lap| (thread..slots).step_by(threads).map(move |s| (lap, s)))
    }

    /// The bytes of a slot in a lap.
    fn payload_of<'a>(&self, source: &'a [u8], lap: usize, slot: usize) -> &'a [u8] {
        let place = ((lap - 1) * self.slots() + slot) % self.places();
        &source[place * self.place_bytes()..][..self.payload()]
    }

    /// The first slot that a thread has not copied out as it was sent.
    fn differs(&self, source: &[u8], thread: usize, laps: usize, got: &[u8]) -> Option<Wrong> {
        let mut parts = got.chunks_exact(self.payload());
        self.slots_of(thread, laps)
            .find(|&(lap, slot)| parts.next() != Some(self.payload_of(source, lap, slot)))
            .map(|(lap, slot)| Wrong::Content { lap, slot })
    }
}

/// What is wrong with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    #[error("the kernel of the bare exchange: {0}")]
    Kernel(Code),
    #[error("of the bare exchange slot {slot} did not come in lap {lap}")]
    Missing { lap: usize, slot: usize },
    #[error("of the bare exchange slot {slot} has other bytes in lap {lap} than were sent")]
    Content { lap: usize, slot: usize },
}

/// The window with its words, the source, and room for all that comes.
pub struct Ring {
    gpu: Arc<Gpu>,
    stream: Stream,
    kernels: Loaded,
    window: Mapped,
    flags: Mapped,
    credits: Mapped,
    src: Memory,
    source: Vec<u8>,
    results: Memory,
    room: Vec<u8>,
    limit: Duration,
    /// Processors for threads of their own; empty where there are too few.
    processors: Vec<usize>,
}

impl Ring {
    /// For windows of up to `window_bytes`, in host memory on a NUMA node if one is given.
    ///
    /// # Errors
    /// One line when there is too little memory, or no kernel.
    pub fn new(
        gpu: &Arc<Gpu>,
        numa: Option<usize>,
        window_bytes: usize,
        limit: Duration,
    ) -> Result<Self, CliError> {
        let words = window_bytes / STREAM_UNIT_BYTES * STREAM_WORD_BYTES;
        let source = source(SRC_BYTES + SRC_BEHIND);
        let src = Memory::Device(gpu.alloc(source.len())?);
        src.write(0, &source).map_err(bug)?;
        Ok(Self {
            stream: gpu.stream()?,
            kernels: gpu.load(&Module::builtin())?,
            window: gpu.alloc_mapped(window_bytes, numa)?,
            flags: gpu.alloc_mapped(words, numa)?,
            credits: gpu.alloc_mapped(words, numa)?,
            results: Memory::Device(gpu.alloc(MAX_BLOCKS * size_of::<LinkResult>())?),
            src,
            source,
            room: Vec::new(),
            limit,
            processors: processors(),
            gpu: gpu.clone(),
        })
    }

    /// Exchanges once: GB/s of payload by the GPU's clock, from the first store until every slot has been given back.
    ///
    /// # Errors
    /// One line when the GPU or the system refuses something.
    pub fn run(&mut self, shape: &Shape) -> Result<(f64, Option<Wrong>), CliError> {
        let is_host = self.gpu.is_host();
        let laps = shape.laps(if is_host { 0 } else { RUN_BYTES });
        let bytes = laps * shape.slots() * shape.payload();
        if self.room.len() < bytes {
            self.room.resize(bytes, POISON);
        }
        let args = self.reset(shape, laps).map_err(bug)?;
        let kernel = self.kernels.kernel(shape.mode.kernel())?;
        let dims = Dims::new(shape.blocks, if is_host { 32 } else { 512 });
        let view = |mapped: &Mapped| View::new(mapped.host(), 0, mapped.bytes());
        let host = Host {
            window: view(&self.window).map_err(bug)?,
            flags: view(&self.flags).map_err(bug)?,
            credits: view(&self.credits).map_err(bug)?,
            shape: *shape,
            laps,
            limit: self.limit,
            yields: is_host,
        };
        let mut parts = parts(shape, laps, &mut self.room[..bytes]);
        let pinned = shape.threads + 2 <= self.processors.len() && !is_host;
        let to = |thread: usize| pinned.then(|| self.processors[1 + thread]);
        let bound = self.limit * 3 + Duration::from_secs(10);
        // Not on a processor that a thread has to itself.
        let pin = if pinned { Pin::to(self.processors[0]) } else { None };
        let ended = exchange(&host, &mut parts, to, || {
            launch(&self.stream, &kernel, dims, &args)?;
            self.stream.synchronize(bound)
        });
        drop(pin);
        let mut wrong = ended?;
        let mut raw = vec![0; shape.blocks as usize * size_of::<LinkResult>()];
        self.results.read(0, &mut raw).map_err(bug)?;
        let results: Vec<LinkResult> =
            raw.chunks_exact(size_of::<LinkResult>()).map(bytemuck::pod_read_unaligned).collect();
        let status = results.iter().map(|r| r.status).max().unwrap_or(0);
        wrong = wrong.or_else(|| Code::check(status).err().map(Wrong::Kernel));
        wrong = wrong.or_else(|| compare(shape, laps, &self.source, &parts));
        let start = results.iter().map(|r| r.start_ns).min().unwrap_or(0);
        let end = results.iter().map(|r| r.end_ns).max().unwrap_or(0);
        Ok((bytes as f64 / end.saturating_sub(start).max(1) as f64, wrong))
    }

    /// Makes all of it as it was before anything was stored, and returns the kernel's argument.
    fn reset(&self, shape: &Shape, laps: usize) -> Result<StreamArgs, MemError> {
        for memory in [&self.window, &self.flags, &self.credits] {
            memory.host().fill(0, memory.bytes(), 0)?;
        }
        self.results.write(0, &vec![0; self.results.bytes()])?;
        Ok(StreamArgs {
            window: self.window.addr(),
            flags: self.flags.addr(),
            credits: self.credits.addr(),
            src: self.src.addr(),
            results: self.results.addr(),
            limit_ns: u64::try_from(self.limit.as_nanos()).unwrap_or(u64::MAX),
            slots: shape.slots() as u32,
            slot_bytes: shape.slot_bytes as u32,
            laps: laps as u32,
            places: shape.places() as u32,
            place_bytes: shape.place_bytes() as u32,
            reserved: 0,
        })
    }
}

/// No two words alike, and none is 0.
fn source(bytes: usize) -> Vec<u8> {
    let word = |i: u32| i.wrapping_mul(0x9e37_79b1).to_ne_bytes(); // an odd factor
    (1..=bytes as u32 / 4).flat_map(word).collect()
}

/// The room as its threads fill it.
fn parts<'a>(shape: &Shape, laps: usize, mut room: &'a mut [u8]) -> Vec<&'a mut [u8]> {
    let of = |thread| shape.slots_of(thread, laps).count() * shape.payload();
    (0..shape.threads)
        .map(|thread| {
            let (own, rest) = std::mem::take(&mut room).split_at_mut(of(thread));
            room = rest;
            own
        })
        .collect()
}

/// The threads' side of a run.
struct Host {
    window: View,
    flags: View,
    credits: View,
    shape: Shape,
    laps: usize,
    /// Bound of each wait.
    limit: Duration,
    /// Whether a thread that waits lets others run: on the host executor, which may want its processor.
    yields: bool,
}

/// What the threads of a run say to each other.
struct Turn {
    ready: AtomicUsize,
    begins: AtomicBool,
    /// One has given up, and the others need not wait.
    over: AtomicBool,
    /// By slot, the last lap in which it was copied; and how many slots have been given back, of all laps.
    copied: Vec<Apart<AtomicU32>>,
    given: Apart<AtomicUsize>,
}

/// In a pair of cache lines of its own, as they are fetched: threads that write neighbours do not wait for each other.
#[repr(align(128))]
struct Apart<T>(T);

impl Turn {
    fn new(slots: usize) -> Self {
        let (ready, given) = (AtomicUsize::new(0), Apart(AtomicUsize::new(0)));
        let copied = (0..slots).map(|_| Apart(AtomicU32::new(0))).collect();
        Self { ready, begins: false.into(), over: false.into(), copied, given }
    }

    /// Gives back all that was copied without a gap, through `give(lap, slot)`: whoever fills a gap does so for the others.
    fn give_in_order(
        &self,
        mut give: impl FnMut(usize, usize) -> Result<(), MemError>,
    ) -> Result<(), MemError> {
        let slots = self.copied.len();
        loop {
            // One order of this load, those below and the stores before them: of two threads that each copied a slot,
            // one at least sees the other's.
            let nth = self.given.0.load(Ordering::SeqCst);
            let (lap, slot) = (nth / slots + 1, nth % slots);
            if (self.copied[slot].0.load(Ordering::SeqCst) as usize) < lap {
                return Ok(());
            }
            let next =
                self.given.0.compare_exchange(nth, nth + 1, Ordering::SeqCst, Ordering::SeqCst);
            if next.is_ok() {
                give(lap, slot)?;
            }
        }
    }
}

/// Has threads copy, each on the processor that `to` names, while `kernel` runs; the first that gave up.
fn exchange(
    host: &Host,
    parts: &mut [&mut [u8]],
    to: impl Fn(usize) -> Option<usize>,
    kernel: impl FnOnce() -> Result<(), GpuError>,
) -> Result<Option<Wrong>, CliError> {
    let turn = Turn::new(host.shape.slots());
    let (turn, count) = (&turn, parts.len());
    thread::scope(|scope| {
        let mut workers = Vec::new();
        let mut refused: Option<io::Error> = None;
        for (thread, part) in parts.iter_mut().enumerate() {
            let to = to(thread);
            let work = move || host.work(turn, thread, to, part);
            match thread::Builder::new().name("copy".into()).spawn_scoped(scope, work) {
                Ok(worker) => workers.push(worker),
                Err(e) => refused = Some(e),
            }
        }
        let since = Instant::now();
        while refused.is_none()
            && turn.ready.load(Ordering::Acquire) < count
            && since.elapsed() < READY
        {
            thread::yield_now();
        }
        turn.begins.store(true, Ordering::Release);
        let ran = match &refused {
            Some(_) => Ok(()),
            None => kernel(),
        };
        // Whatever the kernel has stored is there; what is not there now does not come.
        turn.over.store(true, Ordering::Release);
        let ended: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        if let Some(e) = refused {
            return Err(CliError::new(format!("no thread to copy: {e}"), "end other programs"));
        }
        ran?;
        let mut wrong = None;
        for one in ended {
            let copied = one.map_err(|_| bug("a thread that copies panicked"))?;
            wrong = wrong.or(copied.map_err(bug)?);
        }
        Ok(wrong)
    })
}

impl Host {
    /// A thread's part; what it waited for in vain.
    fn work(
        &self,
        turn: &Turn,
        thread: usize,
        to: Option<usize>,
        into: &mut [u8],
    ) -> Result<Option<Wrong>, MemError> {
        let _pin = to.and_then(Pin::to);
        into.fill(POISON);
        turn.ready.fetch_add(1, Ordering::AcqRel);
        while !turn.begins.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let mut slots = into.chunks_exact_mut(self.shape.payload());
        for (lap, slot) in self.shape.slots_of(thread, self.laps) {
            let Some(part) = slots.next() else { break };
            let copied = self.copy(turn, (lap, slot), part);
            if !matches!(copied, Ok(true)) {
                turn.over.store(true, Ordering::Release);
                return copied.map(|_| Some(Wrong::Missing { lap, slot }));
            }
            // Release: the GPU stores to the slot again when this thread's loads are done.
            let give = |lap: usize, slot: usize| {
                self.credits.store_u32(slot * STREAM_WORD_BYTES, lap as u32, Ordering::Release)
            };
            if !self.shape.in_order {
                give(lap, slot)?;
                continue;
            }
            // Release, too: another thread may give it back.
            turn.copied[slot].0.store(lap as u32, Ordering::SeqCst);
            turn.give_in_order(give)?;
        }
        Ok(None)
    }

    /// Copies a slot as it comes; false where it did not, in time.
    fn copy(
        &self,
        turn: &Turn,
        (lap, slot): (usize, usize),
        into: &mut [u8],
    ) -> Result<bool, MemError> {
        let (at, lap) = (slot * self.shape.slot_bytes, lap as u32);
        let mut wait = Wait { looks: 0, since: None };
        match self.shape.mode {
            Mode::Kernel => {
                // Acquire: what the GPU stored before the flag.
                while self.flags.load_u32(slot * STREAM_WORD_BYTES, Ordering::Acquire)? != lap {
                    if wait.is_over(self, turn) {
                        return Ok(false);
                    }
                }
                self.window.read(at, into)?;
                Ok(true)
            }
            Mode::Lines60 => self.join::<64, 60>(turn, wait, (at, lap), into),
            Mode::Lines12 => self.join::<16, 12>(turn, wait, (at, lap), into),
        }
    }

    fn join<const LINE: usize, const DATA: usize>(
        &self,
        turn: &Turn,
        mut wait: Wait,
        (at, lap): (usize, u32),
        into: &mut [u8],
    ) -> Result<bool, MemError> {
        let mut have = 0;
        loop {
            let rest = &mut into[have * DATA..];
            have += self.window.join_lines::<LINE, DATA>(at + have * LINE, u32::MAX, lap, rest)?;
            if have * DATA == into.len() {
                return Ok(true);
            }
            if wait.is_over(self, turn) {
                return Ok(false);
            }
        }
    }
}

/// This thread on one processor, until it is dropped.
struct Pin {
    before: CpuSet,
}

impl Pin {
    /// `None` where the system refuses: slower, and no error.
    fn to(processor: usize) -> Option<Self> {
        let before = sched_getaffinity(None).ok()?;
        let mut set = CpuSet::new();
        set.set(processor);
        sched_setaffinity(None, &set).ok()?;
        Some(Self { before })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.before); // what it could do before
    }
}

/// A bounded wait.
struct Wait {
    looks: u32,
    since: Option<Instant>,
}

impl Wait {
    /// Counts a look that found nothing; whether there may be no more.
    fn is_over(&mut self, host: &Host, turn: &Turn) -> bool {
        self.looks += 1;
        if !self.looks.is_multiple_of(LOOKS) {
            std::hint::spin_loop();
            return false;
        }
        if host.yields {
            thread::yield_now();
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        turn.over.load(Ordering::Acquire) || since.elapsed() > host.limit
    }
}

/// Compares every byte that came with what was sent, by as many threads as copied; the first that differs.
fn compare(shape: &Shape, laps: usize, source: &[u8], parts: &[&mut [u8]]) -> Option<Wrong> {
    thread::scope(|scope| {
        let looks: Vec<_> = parts
            .iter()
            .enumerate()
            .map(|(thread, part)| scope.spawn(move || shape.differs(source, thread, laps, part)))
            .collect();
        looks.into_iter().find_map(|look| match look.join() {
            Ok(differs) => differs,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// Processors that this process may run on.
pub fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&n| set.is_set(n)).collect()
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
