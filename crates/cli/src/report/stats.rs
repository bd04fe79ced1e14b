//! Order statistics of measured times.
//!
//! Percentiles use the nearest rank: the smallest sample such that at least the given share of all
//! samples is not above it. The result is therefore always a sample, never an interpolation; the
//! median of an even number of samples is the lower of the middle two.

/// Samples, sorted once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    sorted: Vec<u64>,
}

impl Samples {
    /// Sorts the samples.
    pub fn new(mut samples: Vec<u64>) -> Self {
        samples.sort_unstable();
        Self { sorted: samples }
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The percentile by nearest rank; `None` without samples. A percentage out of range gives the
    /// smallest or the largest sample.
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        // Multiplication comes first: whole percentages of whole counts are then exact before the
        // ceiling.
        let rank = (percent * self.sorted.len() as f64 / 100.0).ceil() as usize;
        let last = self.sorted.len().checked_sub(1)?;
        Some(self.sorted[rank.saturating_sub(1).min(last)])
    }

    /// The 50th percentile.
    pub fn median(&self) -> Option<u64> {
        self.percentile(50.0)
    }

    /// The smallest sample.
    pub fn min(&self) -> Option<u64> {
        self.sorted.first().copied()
    }

    /// The largest sample.
    pub fn max(&self) -> Option<u64> {
        self.sorted.last().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        // The textbook example of nearest rank.
        let s = Samples::new(vec![50, 15, 35, 20, 40]);
        let at = |p| s.percentile(p).unwrap();
        assert_eq!((at(5.0), at(30.0), at(40.0), at(50.0), at(100.0)), (15, 20, 20, 35, 50));
        assert_eq!(Samples::new(vec![1, 2]).median(), Some(1));
        assert_eq!(Samples::new(vec![]).median(), None);
        let hundred = Samples::new((1..=100).collect());
        for p in 1..=100 {
            assert_eq!(hundred.percentile(p as f64), Some(p));
        }
    }

    proptest! {
        #[test]
        fn is_the_smallest_sample_that_covers_the_share(
            samples in prop::collection::vec(any::<u64>(), 1..200),
            percent in 0u32..=100,
        ) {
            let s = Samples::new(samples.clone());
            let p = s.percentile(f64::from(percent)).unwrap();
            prop_assert!(samples.contains(&p));
            let n = samples.len() as u64;
            let covers = |v: u64| {
                samples.iter().filter(|&&x| x <= v).count() as u64 * 100 >= u64::from(percent) * n
            };
            prop_assert!(covers(p));
            let smaller = samples.iter().copied().filter(|&x| x < p).max();
            prop_assert!(percent == 0 || smaller.is_none_or(|v| !covers(v)));
        }

        #[test]
        fn grows_with_the_percentage_and_ignores_order(
            samples in prop::collection::vec(any::<u64>(), 1..100),
            (a, b) in (0.0..=100.0f64, 0.0..=100.0f64),
        ) {
            let s = Samples::new(samples.clone());
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(s.percentile(low) <= s.percentile(high));
            prop_assert_eq!(s.percentile(-1.0), s.min());
            prop_assert_eq!(s.percentile(1e9), s.max());
            let reversed = samples.into_iter().rev().collect();
            prop_assert_eq!(&s, &Samples::new(reversed));
        }
    }
}
