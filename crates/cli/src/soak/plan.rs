//! The checked meaning of a `soak` command line.

use std::time::Duration;

use super::SoakArgs;
use crate::cli::CliError;
use crate::plan;

/// Longest run: four weeks.
const MAX_MINUTES: f64 = 40_320.0;

#[derive(Debug, Clone, PartialEq)]
pub struct SoakPlan {
    pub gpu: plan::Gpu,
    pub seed: u64,
    pub length: Duration,
    /// The one round to run.
    pub round: Option<u64>,
    /// Between two lines of progress.
    pub every: Duration,
    /// After which a round hangs.
    pub limit: Duration,
    /// The round before whose last comparison a byte is flipped.
    pub spoil: Option<u64>,
}

impl TryFrom<&SoakArgs> for SoakPlan {
    type Error = CliError;

    fn try_from(args: &SoakArgs) -> Result<Self, CliError> {
        let seconds = |option: &str, value: f64, unit: f64, most: f64| {
            if value.is_finite() && value > 0.0 && value <= most {
                return Ok(Duration::from_secs_f64(value * unit));
            }
            let what = format!("{option} is {value}");
            Err(CliError::new(what, format!("give more than 0 and at most {most}")))
        };
        Ok(Self {
            gpu: args.gpu.as_deref().map_or(Ok(plan::Gpu::Auto), plan::gpu)?,
            seed: args.seed,
            length: seconds("--minutes", args.minutes, 60.0, MAX_MINUTES)?,
            round: args.round,
            every: seconds("--every", args.every, 1.0, 3600.0)?,
            limit: seconds("--limit", args.limit, 1.0, 3600.0)?,
            spoil: args.spoil,
        })
    }
}
