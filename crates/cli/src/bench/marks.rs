//! Marks of the rows' kernels, for `--trace`.

use std::sync::{Arc, Mutex, PoisonError};

use bellpush::abi::bench::BenchRows;
use bellpush::gpu::{Gpu, GpuError, Marks};
use bellpush::mem::clock::monotonic_ns;
use bellpush_cli::trace::KernelMarks;

/// Marks that are kept: three a message, the newest, as many as events of a device are.
const MARKS: usize = 1 << 18;

pub struct RowMarks {
    marks: Marks,
    /// What rounds measured.
    rounds: Mutex<Vec<String>>,
}

impl RowMarks {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        Ok(Self { marks: Marks::new(gpu, MARKS)?, rounds: Mutex::default() })
    }

    /// Has a round's kernel write marks, by the name of what it measures.
    pub fn begin(&self, rows: &mut BenchRows, what: String) {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        if rounds.last() != Some(&what) {
            rounds.push(what);
        }
        (rows.marks, rows.round) = (self.marks.device(), rounds.len() as u64 - 1);
    }

    /// What kernels have written down.
    pub fn read(&self, gpu: &Gpu) -> Result<KernelMarks, GpuError> {
        let read = self.marks.read()?;
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let gpu = gpu.ordinal().map_or("host executor".into(), |n| format!("GPU {n}"));
        let (program, pid) = ("bellpush".into(), std::process::id());
        Ok(KernelMarks { program, pid, gpu, rounds, read, end_ns: monotonic_ns() })
    }
}
