//! A rate, measured several times.

use crate::cli::CliError;
use crate::post::measure::middle;

/// GB/s.
#[derive(Debug, Clone, PartialEq)]
pub struct Rate {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// What was wrong with the first run in which anything was.
    pub wrong: Option<String>,
}

impl Rate {
    pub fn new(mut values: Vec<f64>, wrong: Option<String>) -> Self {
        values.sort_by(f64::total_cmp);
        let (min, max) = (values[0], values[values.len() - 1]);
        Self { median: middle(&values), min, max, wrong }
    }

    /// Of so many runs, after one that does not count; a run in which something was wrong is the last.
    ///
    /// # Errors
    /// What `run` returns.
    pub fn of(
        runs: u32,
        mut run: impl FnMut(u32) -> Result<(f64, Option<String>), CliError>,
    ) -> Result<Self, CliError> {
        let mut values = Vec::new();
        for nth in 0..=runs {
            let (value, wrong) = run(nth)?;
            if nth > 0 || wrong.is_some() {
                values.push(value);
            }
            if wrong.is_some() {
                return Ok(Self::new(values, wrong));
            }
        }
        Ok(Self::new(values, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_run_does_not_count_and_a_wrong_one_is_the_last() {
        let given = |wrong_at: u32| {
            let mut ran = Vec::new();
            let rate = Rate::of(3, |nth| {
                ran.push(nth);
                Ok((f64::from(10 - nth), (nth == wrong_at).then(|| format!("run {nth}"))))
            });
            (rate.unwrap(), ran)
        };
        let (rate, ran) = given(9);
        assert_eq!((rate.median, rate.min, rate.max, rate.wrong), (8.0, 7.0, 9.0, None));
        assert_eq!(ran, [0, 1, 2, 3]);
        for wrong_at in [0, 2] {
            let (rate, ran) = given(wrong_at);
            assert_eq!(
                (rate.wrong, ran.len() as u32),
                (Some(format!("run {wrong_at}")), wrong_at + 1)
            );
        }
    }
}
