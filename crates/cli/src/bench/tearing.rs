//! `bellpush bench --tearing`: whether lines arrive whole on this machine.
//!
//! A kernel rewrites lines continuously, each with one store of a warp, 16 bytes per lane. All
//! words of a line hold the same counter. The CPU waits for a change of one word of a line and then
//! reads the others. A word older than the awaited one shows that the line arrived in parts.
//! In-band lines of 16 bytes rely on one lane's store arriving whole; 60+4 lines rely on the stores
//! of four lanes arriving together.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bellpush::abi::bench::TearArgs;
use bellpush::gpu::{Dims, Module};
use bellpush::mem::HostMem;

use super::test_bed::TestBed;
use crate::cli::{CliError, UNVERIFIED};
use crate::launch::launch;
use crate::plan::BenchPlan;

const LINES: u32 = 64;
/// Offset of the stop word in the result page.
const STOP: usize = 1024;

struct Count {
    looks: u64,
    torn: u64,
}

/// Prints torn lines by size and by awaited word. Exit status 1 when a line format of the in-band
/// path was torn.
///
/// # Errors
/// One line when the GPU refuses a request.
pub fn run(bed: &TestBed, plan: &BenchPlan) -> Result<ExitCode, CliError> {
    let kernel = bed.gpu.load(&Module::builtin())?.kernel("bp_tear_writer")?;
    let lines = bed.gpu.alloc_mapped(LINES as usize * 128, bed.host_numa)?;
    let (memory, page) = (lines.host(), bed.result.host());
    println!("lines in host memory, written by {}, read by a CPU thread", bed.gpu.describe());
    println!("{:>6}  {:>12}  {:>12}  {:>8}", "bytes", "watched word", "looks", "torn");
    let mut bad = false;
    for line_bytes in [16u32, 32, 64, 128] {
        for watch_last in [false, true] {
            memory.fill(0, memory.len(), 0).map_err(unreachable_range)?;
            page.store_u32(STOP, 0, Ordering::Release).map_err(unreachable_range)?;
            let args = TearArgs {
                lines: lines.addr(),
                line_bytes,
                count: LINES,
                duration_ns: plan.row_limit.as_nanos() as u64 * 2,
                stop: bed.result.addr() + STOP as u64,
            };
            let threads = if bed.gpu.is_host() { 1 } else { 256 };
            launch(&bed.stream, &kernel, Dims::new(1, threads), &args)?;
            let count = watch(memory, line_bytes as usize, watch_last, plan.row_limit)
                .map_err(unreachable_range)?;
            page.store_u32(STOP, 1, Ordering::Release).map_err(unreachable_range)?;
            bed.stream.synchronize(plan.row_limit * 2 + Duration::from_secs(10))?;
            let word = if watch_last { "last" } else { "first" };
            println!("{line_bytes:>6}  {word:>12}  {:>12}  {:>8}", count.looks, count.torn);
            // The sequence number of an in-band line is in its last word.
            bad |= count.torn > 0 && watch_last && line_bytes <= 64 && !bed.gpu.is_host();
        }
    }
    if bed.gpu.is_host() {
        println!("on the host executor a line is several stores: torn ones are to be expected");
    }
    Ok(if bad { ExitCode::from(UNVERIFIED) } else { ExitCode::SUCCESS })
}

fn watch(
    memory: &HostMem,
    line_bytes: usize,
    watch_last: bool,
    limit: Duration,
) -> Result<Count, bellpush::mem::MemError> {
    let since = Instant::now();
    let mut count = Count { looks: 0, torn: 0 };
    let flag = if watch_last { line_bytes - 4 } else { 0 };
    let mut seen = vec![0u32; LINES as usize];
    while since.elapsed() < limit {
        for (i, seen) in seen.iter_mut().enumerate() {
            let line = i * line_bytes;
            // Acquire: orders this load before the loads of the line's other words, by this thread.
            let now = memory.load_u32(line + flag, Ordering::Acquire)?;
            if now == *seen {
                continue;
            }
            *seen = now;
            count.looks += 1;
            let mut torn = false;
            for word in (0..line_bytes).step_by(4) {
                let other = memory.load_u32(line + word, Ordering::Acquire)?;
                // A newer word is of a later rewrite; an older one (in wrapping order) arrived too
                // late.
                torn |= (other.wrapping_sub(now) as i32) < 0;
            }
            count.torn += u64::from(torn);
        }
    }
    Ok(count)
}

fn unreachable_range(e: bellpush::mem::MemError) -> CliError {
    CliError::new(e, "this is a bug: please report it")
}
