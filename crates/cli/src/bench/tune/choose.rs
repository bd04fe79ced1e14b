//! From what each choice takes at each size to ranges of sizes.

use std::collections::BTreeMap;

use bellpush::transport::{Choice, MAX_RANGES, Range, Ranges};

/// What a choice takes at the n-th size, ns.
pub type Costs = BTreeMap<(Choice, usize), f64>;

/// Times of the best that a range may take without being a range too many: medians differ by that from run to run.
const SLACK: f64 = 1.01;

/// The best choice at a size.
pub fn best(costs: &Costs, at: usize) -> Choice {
    let there = costs.iter().filter(|((_, size), _)| *size == at);
    let best = there.min_by(|(_, a), (_, b)| a.total_cmp(b));
    best.expect("something was measured at each size").0.0
}

/// The fewest ranges that take nowhere more than [`SLACK`] times the best; where there are no such, those whose worst
/// is least. Of ranges as good as that, those that take least in all.
pub fn ranges(sizes: &[u64], costs: &Costs) -> Ranges {
    let losses = |at: usize| {
        let least = costs[&(best(costs, at), at)];
        Choice::ALL.map(|choice| costs.get(&(choice, at)).map_or(f64::INFINITY, |ns| ns / least))
    };
    let losses: Vec<[f64; Choice::ALL.len()]> = (0..sizes.len()).map(losses).collect();
    let mut bounds: Vec<f64> =
        losses.iter().flatten().copied().filter(|loss| *loss > SLACK).chain([SLACK]).collect();
    bounds.sort_unstable_by(f64::total_cmp);
    // The first bound is enough unless the best changes more than 7 times.
    let parts = bounds.into_iter().find_map(|bound| split(&losses, bound));
    let parts =
        parts.expect("one choice for all sizes is within the last bound, or was measured nowhere");
    let last = parts.len() - 1;
    let range = |(n, (end, choice)): (usize, (usize, Choice))| Range {
        up_to: (n < last).then(|| sizes[end - 1] as u32),
        path: choice,
    };
    Ranges::new(parts.into_iter().enumerate().map(range).collect())
        .expect("sizes ascend, and there are at most so many parts")
}

/// The fewest parts in which one choice stays within the bound, and of those the ones with the least sum: each part's
/// end and choice.
fn split(losses: &[[f64; Choice::ALL.len()]], bound: f64) -> Option<Vec<(usize, Choice)>> {
    let n = losses.len();
    // least[end]: of the first `end` sizes in so many parts as there were rounds, the sum and the parts.
    let mut least = vec![(f64::INFINITY, Vec::new()); n + 1];
    least[0].0 = 0.0;
    for _ in 0..MAX_RANGES {
        let mut next = vec![(f64::INFINITY, Vec::new()); n + 1];
        for (begin, (before, parts)) in least.iter().enumerate() {
            if before.is_infinite() {
                continue;
            }
            for choice in Choice::ALL {
                let mut sum = *before;
                for end in begin + 1..=n {
                    let loss = losses[end - 1][choice as usize];
                    if loss > bound {
                        break;
                    }
                    sum += loss;
                    if sum < next[end].0 {
                        let mut parts = parts.clone();
                        parts.push((end, choice));
                        next[end] = (sum, parts);
                    }
                }
            }
        }
        least = next;
        if least[n].0.is_finite() {
            return Some(std::mem::take(&mut least[n].1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(of: &[(Choice, &[f64])]) -> Costs {
        let each = |&(choice, all): &(Choice, &[f64])| {
            all.iter().enumerate().map(|(at, ns)| ((choice, at), *ns)).collect::<Vec<_>>()
        };
        of.iter().flat_map(each).collect()
    }

    fn printed(ranges: &Ranges) -> Vec<(Option<u32>, Choice)> {
        ranges.ranges().iter().map(|range| (range.up_to, range.path)).collect()
    }

    #[test]
    fn each_size_takes_what_was_best() {
        use Choice::{Inband, Inline, Pull, Push};
        let seen = costs(&[
            (Inband, &[2.0, 2.1, 3.0, 9.0]),
            (Inline, &[3.0]), // measured at the shortest alone
            (Push, &[3.0, 3.0, 2.5, 5.0]),
            (Pull, &[4.0, 4.0, 4.0, 4.5]),
        ]);
        let found = ranges(&[8, 64, 4096, 65536], &seen);
        assert_eq!(printed(&found), [(Some(64), Inband), (Some(4096), Push), (None, Pull)]);
    }

    #[test]
    fn noise_makes_no_ranges() {
        use Choice::{Pull, Push};
        let seen = costs(&[(Push, &[2.0, 2.01, 2.0, 2.01]), (Pull, &[2.01, 2.0, 2.01, 2.0])]);
        assert_eq!(ranges(&[8, 16, 32, 64], &seen).ranges().len(), 1);
    }

    #[test]
    fn more_turns_than_ranges_cost_least_where_they_are_cut() {
        use Choice::{Pull, Push};
        // Ten turns, of which two cost 2 %, and the others 50 %.
        let push: Vec<f64> = (0..11).map(|n| if n % 2 == 0 { 1.0 } else { 1.5 }).collect();
        let pull: Vec<f64> = (0..11)
            .map(|n| match n {
                4 | 8 => 1.02,
                n if n % 2 == 0 => 1.5,
                _ => 1.0,
            })
            .collect();
        let sizes: Vec<u64> = (0..11).map(|n| 8 << n).collect();
        let seen = costs(&[(Push, &push), (Pull, &pull)]);
        let found = ranges(&sizes, &seen);
        assert!(found.ranges().len() <= MAX_RANGES);
        for (at, &bytes) in sizes.iter().enumerate() {
            let loss = seen[&(found.choice(bytes), at)] / seen[&(best(&seen, at), at)];
            assert!(loss <= 1.02, "{bytes}: {loss}");
        }
    }
}
