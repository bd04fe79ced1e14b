//! Runs of one row: posts, times, checks.

use std::sync::Arc;
use std::time::Duration;

use bellpush::abi::bench::PostResult;
use bellpush::gpu::{Dims, Gpu, Loaded, Module, Stream};

use super::bug;
use super::cases::{Case, Size, Unit};
use super::check::{Wrong, check};
use super::queues::Queues;
use crate::cli::CliError;
use crate::launch::launch;

/// A GPU with the kernels, and the floors measured so far.
pub struct Bench {
    gpu: Arc<Gpu>,
    stream: Stream,
    kernels: Loaded,
    numa: Option<usize>,
    runs: u32,
    timeout: Duration,
    floors: Vec<(Case, Measured)>,
}

/// A row and its floor.
#[derive(Debug, Clone)]
pub struct Line {
    pub case: Case,
    pub size: Size,
    pub row: Measured,
    pub floor: Option<Measured>,
}

/// What the runs of a row gave, in its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// The median where the clock is read when all stores have arrived.
    pub drained: f64,
    /// What was wrong with the first run in which anything was.
    pub wrong: Option<Wrong>,
}

impl Line {
    /// Whether all runs, of the floor too, left in the queues what they posted.
    pub fn verified(&self) -> bool {
        self.wrong().is_none()
    }

    /// The first thing that was wrong.
    pub fn wrong(&self) -> Option<Wrong> {
        self.row.wrong.or_else(|| self.floor?.wrong)
    }

    /// How many times as long as its floor the row takes.
    pub fn times_floor(&self) -> Option<f64> {
        let floor = self.floor?.median;
        Some(match self.case.shape.unit {
            Unit::Ns => self.row.median / floor,
            Unit::PerSecond => floor / self.row.median,
        })
    }
}

impl Bench {
    pub fn new(
        gpu: Arc<Gpu>,
        numa: Option<usize>,
        runs: u32,
        timeout: Duration,
    ) -> Result<Self, CliError> {
        let (stream, kernels) = (gpu.stream()?, gpu.load(&Module::builtin())?);
        Ok(Self { gpu, stream, kernels, numa, runs, timeout, floors: Vec::new() })
    }

    /// Measures a row, and its floor if no row before it had the same.
    pub fn line(&mut self, case: &Case) -> Result<Line, CliError> {
        let (size, row) = self.measure(case)?;
        let floor = case.floor_case().map(|floor| self.floor(floor)).transpose()?;
        Ok(Line { case: *case, size, row, floor })
    }

    fn floor(&mut self, floor: Case) -> Result<Measured, CliError> {
        if let Some((_, known)) = self.floors.iter().find(|(case, _)| *case == floor) {
            return Ok(*known);
        }
        let (_, measured) = self.measure(&floor)?;
        self.floors.push((floor, measured));
        Ok(measured)
    }

    fn measure(&self, case: &Case) -> Result<(Size, Measured), CliError> {
        let sms = (!self.gpu.is_host()).then_some(self.gpu.describe().sms);
        let size = case.size(sms);
        let kernel = self.kernels.kernel(case.kernel)?;
        let queues = Queues::new(&self.gpu, self.numa, case, size)?;
        let (mut values, mut drained, mut wrong) = (Vec::new(), Vec::new(), None);
        for run in 0..=self.runs {
            let args = queues.reset(self.timeout, run).map_err(bug)?;
            launch(&self.stream, &kernel, Dims::new(size.blocks, size.threads), &args)?;
            self.stream.synchronize(self.timeout * 2 + Duration::from_secs(10))?;
            let found = queues.found().map_err(bug)?;
            wrong = wrong.or(check(case, size, queues.local_iova(), &found).err());
            // The first run warms up.
            if run > 0 {
                values.push(value(case, size, &found.results, |r| r.end_ns));
                drained.push(value(case, size, &found.results, |r| r.drained_ns));
            }
        }
        values.sort_by(f64::total_cmp);
        drained.sort_by(f64::total_cmp);
        let (min, max) = (values[0], values[values.len() - 1]);
        let (median, drained) = (middle(&values), middle(&drained));
        Ok((size, Measured { median, min, max, drained, wrong }))
    }
}

/// The middle one, of an even number the mean of two.
pub fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 }
}

/// A run's value, from the first block's start to the last one's end.
fn value(case: &Case, size: Size, results: &[PostResult], end: fn(&PostResult) -> u64) -> f64 {
    let start = results.iter().map(|r| r.start_ns).min().unwrap_or(0);
    let ns = results.iter().map(end).max().unwrap_or(0).saturating_sub(start).max(1) as f64;
    let puts = f64::from(size.puts) * f64::from(size.qps);
    match case.shape.unit {
        Unit::Ns => ns / puts,
        Unit::PerSecond => puts / ns * 1e3,
    }
}

#[cfg(test)]
mod tests {
    use bellpush::gpu::{Executor, HostOptions};

    use super::super::cases::{CASES, Place};
    use super::*;

    /// A floor is of the row's kernel, place and shape, and measured once.
    #[test]
    fn rows_have_floors_of_their_own_place_and_shape() {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let mut bench = Bench::new(gpu, None, 1, Duration::from_secs(20)).unwrap();
        let mut measured = |name: &str, place| {
            let row = CASES.iter().find(|case| case.name == name && case.place == place);
            let line = bench.line(row.unwrap()).unwrap();
            assert!(line.verified(), "{name}: {:?}", line.wrong());
            bench.floors.len()
        };
        assert_eq!(measured("exclusive thread", Place::Ggh), 1);
        assert_eq!(measured("exclusive thread, endpoint copied", Place::Ggh), 1, "the same");
        assert_eq!(measured("exclusive, a thread an SM, endpoint copied", Place::Ggh), 2);
        assert_eq!(measured("exclusive warp", Place::Ggh), 3);
        assert_eq!(measured("exclusive block", Place::Ggh), 3, "four lanes store a WQE for both");
        assert_eq!(measured("exclusive thread", Place::Hhh), 4);
    }

    #[test]
    fn the_middle_of_values() {
        assert_eq!(middle(&[1.0]), 1.0);
        assert_eq!(middle(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(middle(&[1.0, 2.0, 4.0, 9.0]), 3.0);
    }
}
