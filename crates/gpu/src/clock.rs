//! A GPU's clock beside the host's.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bellpush_abi::clock::{ClockArgs, ClockWords};
use bellpush_mem::clock::{Pair, monotonic_ns};

use super::{Dims, Gpu, GpuError, Kernel, Mapped, Module, Stream};

/// Questions of a sample, of which the one that was answered first counts.
const QUESTIONS: u32 = 64;
/// Bound of a sample: a GPU that is full has no room for the kernel that answers.
const LIMIT: Duration = Duration::from_secs(1);
/// How far the two clocks' rates may be apart, in parts of a million, where one sample alone says nothing of it:
/// more than quartz oscillators differ by.
const DRIFT_PPM: u64 = 100;

const QUESTION_AT: usize = std::mem::offset_of!(ClockWords, question);
const NS_AT: usize = std::mem::offset_of!(ClockWords, ns);
const ANSWERED_AT: usize = std::mem::offset_of!(ClockWords, step_ns);

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// `ticks` are nanoseconds of the GPU's clock, and `apart` of the host's.
    pair: Pair,
    /// Between two readings of the GPU's clock.
    step_ns: u64,
}

impl Sample {
    fn within_ns(&self) -> u64 {
        (self.pair.apart / 2).saturating_add(self.step_ns)
    }
}

/// Times of a GPU as those of `CLOCK_MONOTONIC`, between two samples.
pub(super) struct Clock {
    stream: Stream,
    kernel: Kernel,
    words: Mapped,
    first: Sample,
    /// Whether every sample so far was answered. A kernel that was not done may answer later questions.
    answers: Mutex<bool>,
}

impl Clock {
    /// Samples both clocks.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let kernel = gpu.load(&Module::builtin())?.kernel("bp_clock")?;
        let words = gpu.alloc_mapped(size_of::<ClockWords>(), None)?;
        let stream = gpu.urgent_stream()?;
        let first = sample(&stream, &kernel, &words)?;
        Ok(Self { stream, kernel, words, first, answers: Mutex::new(true) })
    }

    /// Samples both clocks again. What a GPU that has no room for that has written is converted by the first sample.
    pub(super) fn until_now(&self) -> Conversion {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let last = answers.then(|| sample(&self.stream, &self.kernel, &self.words));
        let last = last.and_then(Result::ok);
        *answers = last.is_some();
        Conversion::new(self.first, last, monotonic_ns())
    }
}

/// How times of the GPU become the host's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conversion {
    first: Pair,
    rate: f64,
    /// How far they may be off.
    pub(super) within_ns: u64,
}

impl Conversion {
    fn new(first: Sample, last: Option<Sample>, now_ns: u64) -> Self {
        let (rate, within_ns) = match last {
            Some(last) if last.pair.ticks > first.pair.ticks => {
                // On a line between two points no point is farther off than the worse of them.
                (first.pair.ns_per_tick(&last.pair), first.within_ns().max(last.within_ns()))
            }
            _ => {
                let since = now_ns.saturating_sub(first.pair.ns);
                let drift = since.saturating_mul(DRIFT_PPM) / 1_000_000;
                (1.0, first.within_ns().saturating_add(drift))
            }
        };
        Self { first: first.pair, rate, within_ns }
    }

    /// A time of the host's clock.
    pub(super) fn host_ns(&self, gpu_ns: u64) -> u64 {
        self.first.ns_at(gpu_ns, self.rate)
    }
}

fn sample(stream: &Stream, kernel: &Kernel, words: &Mapped) -> Result<Sample, GpuError> {
    let memory = words.host();
    memory.fill(0, words.bytes(), 0)?;
    let limit_ns = LIMIT.as_nanos() as u64;
    let args = ClockArgs { words: words.addr(), limit_ns, questions: QUESTIONS, reserved: 0 };
    // SAFETY: the kernel's own argument; the stream keeps the memory.
    unsafe { stream.launch_keeping(kernel, Dims::new(1, 1), &args, [words.keep()])? };
    let since = Instant::now();
    let ask = |question: u32| {
        let before = monotonic_ns();
        memory.store_u32(QUESTION_AT, question, Ordering::Release)?;
        loop {
            let answer = memory.load_u64(ANSWERED_AT, Ordering::Acquire)?;
            if (answer >> 32) as u32 == question {
                let apart = monotonic_ns().saturating_sub(before);
                let ticks = memory.load_u64(NS_AT, Ordering::Acquire)?;
                let pair = Pair { ticks, ns: before + apart / 2, apart };
                return Ok(Sample { pair, step_ns: answer & 0xffff_ffff });
            }
            if since.elapsed() > LIMIT {
                return Err(GpuError::Timeout { what: "a look at the GPU's clock", after: LIMIT });
            }
            std::hint::spin_loop();
        }
    };
    let samples: Result<Vec<Sample>, GpuError> = (1..=QUESTIONS).map(ask).collect();
    stream.synchronize(2 * LIMIT)?;
    Ok(samples?.into_iter().min_by_key(|it| it.pair.apart).expect("there are questions"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Executor, HostOptions};

    fn at(ticks: u64, ns: u64, apart: u64) -> Sample {
        Sample { pair: Pair { ticks, ns, apart }, step_ns: 32 }
    }

    #[test]
    fn between_two_samples_times_lie_on_a_line_and_the_worse_sample_says_how_far_off() {
        // The GPU's clock runs 1 % fast.
        let to = Conversion::new(at(1000, 50_000, 20), Some(at(102_000, 150_000, 60)), 0);
        assert_eq!([1000, 51_500, 102_000].map(|gpu| to.host_ns(gpu)), [50_000, 100_000, 150_000]);
        assert_eq!(to.within_ns, 62);
        // Whatever a kernel writes down becomes some time.
        assert_eq!(to.host_ns(u64::MAX), 49_009);
        assert_eq!(to.host_ns(0), 49_010);
    }

    #[test]
    fn without_a_second_sample_rates_may_differ() {
        for last in [None, Some(at(1000, 60_000, 20))] {
            let to = Conversion::new(at(1000, 50_000, 20), last, 1_000_050_000);
            assert_eq!((to.host_ns(2000), to.within_ns), (51_000, 42 + 100_000));
        }
    }

    /// There both clocks are the same, and so are the times.
    #[test]
    fn on_the_host_executor_the_clocks_are_found_to_agree() {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let clock = Clock::new(&gpu).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        // Between the two samples: beyond them the line's error grows with the distance.
        let between = monotonic_ns();
        let to = clock.until_now();
        for ns in [clock.first.pair.ticks, between] {
            let off = to.host_ns(ns).abs_diff(ns);
            assert!(off <= to.within_ns, "{off} ns off, within {}", to.within_ns);
        }
    }
}
