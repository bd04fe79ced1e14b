//! Puts of `--live`: one path after the other, timed, and their bytes compared.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bellpush::gpu::{Executor, Gpu, GpuError, HostOptions, Stream};
use bellpush::nic::{Nic, NicError};
use bellpush::transport::{Endpoint, Error, Local, Memory, Options, Path, Put, Remote};

use super::read::short;

/// Bytes of a put.
pub const BYTES: u64 = 4096;
/// Puts of a path: the median of few is steady enough to tell what works.
pub const PUTS: usize = 9;
/// Longest wait for one put.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why a path carried nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The NIC has not what it takes, and says so before anything is sent.
    #[error("{0}")]
    Unsupported(String),
    /// It was tried.
    #[error("{0}")]
    Failed(String),
    /// It was not.
    #[error("not begun: the time was up")]
    NotBegun,
}

impl Failure {
    pub fn of(error: impl std::fmt::Display) -> Self {
        Self::Failed(short(&error.to_string()))
    }
}

/// The first GPU that opens, or else CPU threads and why CUDA was refused.
pub fn gpu() -> Result<(Arc<Gpu>, Option<String>), GpuError> {
    let opened = Gpu::open(Executor::Cuda(0)).or_else(|why| {
        // Of several, one may be too old.
        let others = 1..Gpu::cuda_count().unwrap_or(0);
        others.map(|n| Gpu::open(Executor::Cuda(n))).find_map(Result::ok).ok_or(why)
    });
    match opened {
        Ok(gpu) => Ok((gpu, None)),
        Err(why) => {
            Ok((Gpu::open(Executor::Host(HostOptions::default()))?, Some(short(&why.to_string()))))
        }
    }
}

/// Median time of a put, its bytes compared.
pub fn time(gpu: &Arc<Gpu>, nic: &Arc<dyn Nic>, path: Path) -> Result<f64, Failure> {
    let stream = gpu.stream().map_err(Failure::of)?;
    let room = BYTES as usize;
    let from = Memory::from(gpu.alloc(room).map_err(Failure::of)?);
    let to = Memory::from(gpu.alloc_mapped(room, None).map_err(Failure::of)?);
    let mut options = Options::default();
    options.timeout = PATIENCE;
    let pair = Endpoint::pair(gpu, nic, path, (from.clone(), to.clone()), options);
    let (sender, _receiver) = pair.map_err(|e| match e {
        Error::Unsupported { .. } | Error::Nic(NicError::Unsupported { .. }) => {
            Failure::Unsupported(short(&e.to_string()))
        }
        other => Failure::of(other),
    })?;
    let mut times = Vec::new();
    for turn in 0..PUTS {
        let message = message(turn);
        from.write(0, &message).map_err(Failure::of)?;
        times.push(put(&sender, &stream).map_err(Failure::of)?);
        let mut arrived = vec![0; room];
        to.read(0, &mut arrived).map_err(Failure::of)?;
        if arrived != message {
            return Err(Failure::of("other bytes arrived than were sent"));
        }
    }
    times.sort_unstable();
    Ok(times[PUTS / 2].as_nanos() as f64)
}

/// Other bytes in each packet of each turn: its words are all different (an odd factor).
fn message(turn: usize) -> Vec<u8> {
    let word = |nth: u64| (turn as u64 * BYTES + nth + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..BYTES / 8).flat_map(|nth| word(nth).to_le_bytes()).collect()
}

fn put(sender: &Endpoint, stream: &Stream) -> Result<Duration, Error> {
    let put = Put { from: Local(0), to: Remote(0), bytes: BYTES, signal: None };
    let begun = Instant::now();
    sender.put(stream, put)?;
    sender.quiet(stream)?;
    Ok(begun.elapsed())
}

/// Failures, those of one reason together.
pub fn reasons(failed: &[(Path, &Failure)]) -> String {
    let mut told: Vec<(String, Vec<String>)> = Vec::new();
    for (path, why) in failed {
        let (path, why) = (path.to_string(), why.to_string());
        match told.iter_mut().find(|(own, _)| *own == why) {
            Some((_, paths)) => paths.push(path),
            None => told.push((why, vec![path])),
        }
    }
    let told = told.into_iter().map(|(why, paths)| format!("{}: {why}", paths.join(", ")));
    told.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// No packet carries what another does, of any turn.
    #[test]
    fn packets_carry_other_bytes() {
        let all: Vec<Vec<u8>> = (0..PUTS).map(message).collect();
        let packets = all.iter().flat_map(|message| message.chunks(256));
        let distinct: BTreeSet<&[u8]> = packets.collect();
        assert_eq!(distinct.len(), PUTS * BYTES as usize / 256);
    }
}
