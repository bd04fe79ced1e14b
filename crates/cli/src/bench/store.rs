//! The highest rate at which the GPU can push: plain stores of one block into the window, without
//! credits.

use std::time::Duration;

use bellpush::abi::bench::{BenchResult, StoreArgs};
use bellpush::gpu::{Dims, Module};
use bellpush::transport::Memory;

use super::test_bed::TestBed;
use crate::cli::CliError;
use crate::launch::launch;

/// Bytes stored for the measurement.
const TOTAL_BYTES: u64 = 256 << 20;
const THREADS: u32 = 512;

/// Rate of one block's stores into a new window of `window_bytes`, GB/s. `None` for a window larger
/// than the bench's source, and on the host executor, where a store is a memory copy.
///
/// # Errors
/// One line when the GPU refuses a request.
pub fn rate(bed: &TestBed, window_bytes: u64) -> Result<Option<f64>, CliError> {
    // The source is as long as the window.
    if bed.gpu.is_host() || window_bytes > bed.src.bytes() as u64 {
        return Ok(None);
    }
    let kernel = bed.gpu.load(&Module::builtin())?.kernel("bp_store_rate")?;
    let window = bed.gpu.alloc_mapped(window_bytes as usize, bed.host_numa)?;
    let args = StoreArgs {
        window: window.addr(),
        window_bytes,
        src: bed.src.addr(),
        total_bytes: TOTAL_BYTES.max(window_bytes),
        result: bed.result.addr(),
    };
    launch(&bed.stream, &kernel, Dims::new(1, THREADS), &args)?;
    bed.stream.synchronize(Duration::from_secs(10))?;
    let mut raw = [0; size_of::<BenchResult>()];
    let result = Memory::Host(bed.result.clone());
    result.read(0, &mut raw).map_err(|e| CliError::new(e, "this is a bug: please report it"))?;
    let result: BenchResult = bytemuck::pod_read_unaligned(&raw);
    let ns = result.end_ns.saturating_sub(result.start_ns).max(1);
    Ok(Some(f64::from(result.posted) * window_bytes as f64 / ns as f64))
}
