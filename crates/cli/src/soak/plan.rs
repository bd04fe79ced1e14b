//! The checked meaning of a `soak` command line.

use std::ops::Range;
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
    /// The rounds to run at most.
    pub rounds: Range<u64>,
    /// Whether each round's operations are listed.
    pub is_told: bool,
    /// Between two lines of progress.
    pub every: Duration,
    /// After which a round hangs.
    pub limit: Duration,
    /// The round before whose last comparison a byte is flipped.
    pub spoil: Option<u64>,
}

impl SoakPlan {
    /// Whether growth counts from here: a third of the time or of the rounds is over, in which the allocator meets most
    /// sizes.
    pub fn is_warm(&self, elapsed: Duration, rounds_done: u64) -> bool {
        let rounds = self.rounds.end - self.rounds.start;
        elapsed >= self.length / 3 || rounds_done >= rounds.div_ceil(3)
    }
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
        let rounds = match (args.round, args.rounds) {
            (Some(_), Some(_)) => {
                let remedy = "leave one of them out: --round is one round";
                return Err(CliError::new("--round and --rounds", remedy));
            }
            (Some(u64::MAX), _) => {
                return Err(CliError::new("--round is 2^64 - 1", "give a lower one"));
            }
            (Some(round), None) => round..round + 1,
            (None, Some(0)) => return Err(CliError::new("--rounds is 0", "give at least 1")),
            (None, rounds) => 0..rounds.unwrap_or(u64::MAX),
        };
        Ok(Self {
            gpu: args.gpu.as_deref().map_or(Ok(plan::Gpu::Auto), plan::gpu)?,
            seed: args.seed,
            length: seconds("--minutes", args.minutes, 60.0, MAX_MINUTES)?,
            rounds,
            is_told: args.round.is_some(),
            every: seconds("--every", args.every, 1.0, 3600.0)?,
            limit: seconds("--limit", args.limit, 1.0, 3600.0)?,
            spoil: args.spoil,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_counts_behind_a_third_of_the_time_or_of_the_rounds() {
        let plan = SoakPlan {
            gpu: plan::Gpu::Auto,
            seed: 1,
            length: Duration::from_secs(90),
            rounds: 0..30,
            is_told: false,
            every: Duration::from_secs(1),
            limit: Duration::from_secs(1),
            spoil: None,
        };
        let at_once = |rounds| plan.is_warm(Duration::ZERO, rounds);
        assert!(!at_once(9) && at_once(10));
        assert!(plan.is_warm(Duration::from_secs(30), 1));
    }
}
