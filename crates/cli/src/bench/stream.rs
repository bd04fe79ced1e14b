//! A stream alone, for `bench --post`: the rate of one path at one size.

use std::sync::Arc;

use bellpush::gpu::Gpu;

use super::measure::{Lane, Seen};
use super::payload::{Payload, Tags};
use super::test_bed::TestBed;
use super::{BenchArgs, ask, transport_error};
use crate::cli::CliError;
use crate::plan::BenchPlan;

/// A software NIC with its memories, on which streams are measured that differ in path, window and slots.
pub struct Streams(TestBed);

impl Streams {
    /// With the copy threads and the memory that the command line asks for.
    ///
    /// # Errors
    /// One line for a command line that is wrong, or a device that refuses.
    pub fn open(gpu: &Arc<Gpu>, args: &BenchArgs) -> Result<Self, CliError> {
        TestBed::on(gpu.clone(), &BenchPlan::try_from(args)?, None).map(Self)
    }

    /// GB/s of the command line's one path at its one size, on a new queue pair, and what was wrong, if anything was.
    ///
    /// # Errors
    /// As [`Streams::open`].
    pub fn rate(&self, args: &BenchArgs) -> Result<(f64, Option<String>), CliError> {
        let (bed, plan) = (&self.0, BenchPlan::try_from(args)?);
        let (path, size) = (plan.paths[0], plan.sizes_bytes[0]);
        let (ask, payload) = (ask(&plan, bed, path), Payload::Tags(Tags::new(plan.seed)));
        let lane = Lane::new(bed, path, &ask).map_err(|e| transport_error(&e))?;
        let seen = lane.rate(size as usize, &payload, &ask).map_err(|e| transport_error(&e))?;
        Ok((seen.gb_per_s(size), wrong(&seen)))
    }
}

fn wrong(seen: &Seen) -> Option<String> {
    if seen.is_whole() {
        return None;
    }
    let tally = &seen.tally;
    if seen.source_damaged {
        return Some("the source changed while it was sent".into());
    }
    Some(seen.failure.clone().unwrap_or_else(|| {
        format!(
            "of {} messages {} were lost, {} overwritten and {} corrupted",
            seen.posted, tally.missing, tally.overwritten, tally.corrupted
        )
    }))
}
