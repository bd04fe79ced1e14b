//! The least that an all-reduce by way of the host's processors can take: kernels store words with flags to host
//! memory, threads copy what has come to where the others' kernels look, which add it up. No queue, no work-queue
//! entry, no doorbell, no completion, no check: what any engine on these processors needs besides is its own.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bellpush::abi::bench::{LINK_UNIT_BYTES, LinkExchangeArgs, LinkExchangeState};
use bellpush::abi::wire::Code;
use bellpush::gpu::{DeviceMem, Dims, Gpu, GpuError, Kernel, Mapped, Module, Stream};
use bellpush::mem::HostMem;

use crate::Failure;
use crate::meet::Meeting;

/// Longest call.
pub const MOST_BYTES: u64 = 256 << 10;
/// Units of a slot: three words of 4 bytes each.
const MOST_UNITS: usize = (MOST_BYTES as usize).div_ceil(12);
/// Bound of a kernel's wait, and of a thread's for the kernels.
const LIMIT: Duration = Duration::from_secs(10);
/// Units for which a thread more copies, and a block more waits.
const UNITS_A_THREAD: usize = 96;
const UNITS_A_BLOCK: usize = 256;
/// Units that are looked at together: 8 lines of the cache.
const LOOK: usize = 32;

/// Where all ranks' memories are told: of each, the one that it looks at.
pub type Places = Arc<Mutex<Vec<Option<Arc<HostMem>>>>>;

/// One rank's part.
pub struct Bare {
    kernel: Kernel,
    send: Mapped,
    receive: Mapped,
    state: Arc<DeviceMem>,
    /// Where the other ranks look.
    others: Vec<Arc<HostMem>>,
    /// Threads that copy, at most.
    threads: usize,
    calls: AtomicU64,
    rank: u32,
    ranks: u32,
}

impl Bare {
    /// Meets the others, which bring the same `places`.
    pub fn join(
        gpu: &Arc<Gpu>,
        places: &Places,
        (rank, ranks): (u32, u32),
        meeting: &mut Meeting,
    ) -> Result<Self, Failure> {
        let slots = 2 * MOST_UNITS * LINK_UNIT_BYTES;
        let send = gpu.alloc_mapped(slots, None)?;
        let receive = gpu.alloc_mapped(ranks as usize * slots, None)?;
        {
            let mut all = places.lock().unwrap_or_else(PoisonError::into_inner);
            all.resize(ranks as usize, None);
            all[rank as usize] = Some(receive.host().clone());
        }
        meeting.all_gather(&[])?;
        let all = places.lock().unwrap_or_else(PoisonError::into_inner);
        let others = (0..).zip(all.iter()).filter(|(r, _)| *r != rank);
        let others = others.filter_map(|(_, mem)| mem.clone()).collect();
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Ok(Self {
            kernel: gpu.load(&Module::builtin())?.kernel("bp_link_exchange")?,
            send,
            receive,
            state: gpu.alloc(size_of::<LinkExchangeState>())?,
            others,
            // A core for each rank's own thread.
            threads: (cores / ranks.max(1) as usize).saturating_sub(1).clamp(1, 12),
            calls: AtomicU64::new(0),
            rank,
            ranks,
        })
    }

    /// Queues a call of `count` elements.
    pub fn queue(
        &self,
        stream: &Stream,
        input: &DeviceMem,
        output: &DeviceMem,
        count: u64,
    ) -> Result<(), GpuError> {
        let units = units_of(count);
        let args = LinkExchangeArgs {
            input: input.addr(),
            output: output.addr(),
            send: self.send.addr(),
            receive: self.receive.addr(),
            state: self.state.addr(),
            limit_ns: LIMIT.as_nanos() as u64,
            count: count as u32,
            most: MOST_UNITS as u32,
            rank: self.rank,
            ranks: self.ranks,
        };
        // On the host executor a block's threads are fibres of one of the CPU's.
        let (most, block) = if stream.gpu().is_host() { (1, 8) } else { (32, UNITS_A_BLOCK) };
        let grid = units.div_ceil(UNITS_A_BLOCK).clamp(1, most);
        let dims = Dims::new(grid as u32, block as u32).early();
        // SAFETY: the argument's memory is this value's and the caller's, who both wait for the stream.
        unsafe { stream.launch(&self.kernel, dims, &args) }
    }

    /// Copies for `calls` calls of `count` elements, which `run` makes and waits for, once all threads are there.
    pub fn relay<R>(
        &self,
        calls: u32,
        count: u64,
        run: impl FnOnce() -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let first = self.calls.fetch_add(calls.into(), Ordering::Relaxed);
        let units = units_of(count);
        let threads = units.div_ceil(UNITS_A_THREAD).clamp(1, self.threads);
        let each = units.div_ceil(threads);
        let (started, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for t in 0..threads {
                let (started, stop) = (&started, &stop);
                scope.spawn(move || {
                    started.fetch_add(1, Ordering::Relaxed);
                    let part = (t * each).min(units)..((t + 1) * each).min(units);
                    for call in first..first + u64::from(calls) {
                        if !self.copy(call, part.clone(), stop) {
                            break;
                        }
                    }
                });
            }
            while started.load(Ordering::Relaxed) < threads {
                std::thread::yield_now();
            }
            let result = run();
            // All calls are done, or will never be.
            stop.store(true, Ordering::Release);
            result
        })
    }

    /// Copies a part of a call to all others, as it comes; whether all of it did.
    fn copy(&self, call: u64, mut part: std::ops::Range<usize>, stop: &AtomicBool) -> bool {
        let from = self.send.host();
        let flag = (call as u32).wrapping_add(1);
        let slot = call as usize % 2 * MOST_UNITS;
        let to = 2 * MOST_UNITS * self.rank as usize + slot;
        let mut seen = [0; LOOK * LINK_UNIT_BYTES];
        let (mut looks, mut since) = (0u32, None);
        while !part.is_empty() {
            let look = part.len().min(LOOK);
            let seen = &mut seen[..look * LINK_UNIT_BYTES];
            // Acquire: if this rank's kernels have ended, what they stored is there for the read below.
            let last = stop.load(Ordering::Acquire);
            // The kernel writes while this reads: words and their flag come together, in 16 aligned bytes, and what
            // is looked at and copied is what was read.
            if from.read((slot + part.start) * LINK_UNIT_BYTES, seen).is_err() {
                return false;
            }
            let there = |unit: &&[u8]| unit[12..] == flag.to_ne_bytes();
            let come = seen.chunks_exact(LINK_UNIT_BYTES).take_while(there).count();
            for other in &self.others {
                let at = (to + part.start) * LINK_UNIT_BYTES;
                if come > 0 && other.write(at, &seen[..come * LINK_UNIT_BYTES]).is_err() {
                    return false;
                }
            }
            part.start += come;
            looks += 1;
            if come == 0 && last {
                return false;
            }
            if come == 0 && looks.is_multiple_of(4096) {
                // Where there are fewer cores than threads, the kernel may be one of those that wait.
                std::thread::yield_now();
                if since.get_or_insert_with(Instant::now).elapsed() > LIMIT {
                    return false;
                }
            }
        }
        true
    }

    /// Whether all calls that have ended were right ended.
    pub fn check(&self) -> Result<(), Failure> {
        let mut raw = [0; size_of::<LinkExchangeState>()];
        self.state.copy_out(0, &mut raw)?;
        let state: LinkExchangeState = bytemuck::pod_read_unaligned(&raw);
        Code::check(state.status as u32)
            .map_err(|e| format!("bare exchange, call {}: {e}", state.calls))?;
        Ok(())
    }
}

fn units_of(count: u64) -> usize {
    count.div_ceil(3) as usize
}
