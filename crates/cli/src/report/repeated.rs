//! Rows that were measured several times, each as one: of what was measured the median and the least and greatest, of
//! what was counted the sum.

use std::collections::HashMap;

use super::label::labels;
use super::row::Row;

/// A row and its repetitions.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Repeated {
    /// What the rows have in common; medians and sums.
    pub row: Row,
    /// Its label, which it shares with rows of other sizes alone.
    pub label: String,
    /// Position of the first of them.
    pub first: usize,
    /// How many they are.
    pub runs: usize,
    /// Least and greatest median latency, ns; `None` where fewer than two runs have one.
    pub latency_ns: Option<[f64; 2]>,
    /// Least and greatest median of half a round trip, ns.
    pub one_way_ns: Option<[f64; 2]>,
    /// Least and greatest bandwidth, 10⁹ bytes per second.
    pub gb_s: Option<[f64; 2]>,
}

/// Rows of one label and size as one, in the order of the first of each.
pub(super) fn repeated(rows: &[Row]) -> Vec<Repeated> {
    let (mut places, mut groups) = (HashMap::new(), Vec::<(String, Vec<usize>)>::new());
    for (i, label) in labels(rows).into_iter().enumerate() {
        let place = *places.entry((label.clone(), rows[i].size_bytes)).or_insert(groups.len());
        if place == groups.len() {
            groups.push((label, Vec::new()));
        }
        groups[place].1.push(i);
    }
    let one = |(label, members): (String, Vec<usize>)| {
        let runs: Vec<&Row> = members.iter().map(|&i| &rows[i]).collect();
        merged(label, members[0], &runs)
    };
    groups.into_iter().map(one).collect()
}

fn merged(label: String, first: usize, runs: &[&Row]) -> Repeated {
    let values = |of: fn(&Row) -> Option<f64>| {
        let mut values: Vec<f64> = runs.iter().filter_map(|row| of(row)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let median = |of| middle(&values(of));
    let ends = |of| match values(of)[..] {
        [least, .., greatest] => Some([least, greatest]),
        _ => None,
    };
    let sum = |of: fn(&Row) -> u64| runs.iter().fold(0u64, |all, row| all.saturating_add(of(row)));
    let row = Row {
        messages: sum(|r| r.messages),
        latency_ns_p50: median(|r| r.latency_ns_p50),
        latency_ns_p99: median(|r| r.latency_ns_p99),
        one_way_ns_p50: median(|r| r.one_way_ns_p50),
        one_way_ns_p99: median(|r| r.one_way_ns_p99),
        bandwidth_gb_s: median(|r| Some(r.bandwidth_gb_s)).unwrap_or(0.0),
        messages_per_s: median(|r| Some(r.messages_per_s)).unwrap_or(0.0),
        verified: runs.iter().all(|r| r.verified),
        dropped: sum(|r| r.dropped),
        overwritten: sum(|r| r.overwritten),
        corrupted: sum(|r| r.corrupted),
        max_credits_in_use: runs.iter().filter_map(|r| r.max_credits_in_use).max(),
        ..runs[0].clone()
    };
    Repeated {
        row,
        label,
        first,
        runs: runs.len(),
        latency_ns: ends(|r| r.latency_ns_p50),
        one_way_ns: ends(|r| r.one_way_ns_p50),
        gb_s: ends(|r| Some(r.bandwidth_gb_s)),
    }
}

/// The middle one, of an even number the mean of the middle two.
pub(super) fn middle(sorted: &[f64]) -> Option<f64> {
    let [low, high] = [sorted.len().saturating_sub(1) / 2, sorted.len() / 2];
    let (low, high) = (sorted.get(low)?, sorted.get(high)?);
    // The sum of two values may be more than a number holds.
    Some(low + (high - low) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::sample;
    use super::*;

    #[test]
    fn rows_that_were_measured_once_stay_as_they_are() {
        let rows = sample("host").results;
        let all = repeated(&rows);
        assert_eq!(all.iter().map(|r| r.row.clone()).collect::<Vec<_>>(), rows);
        assert!(all.iter().all(|r| r.runs == 1 && r.latency_ns.is_none() && r.gb_s.is_none()));
    }

    #[test]
    fn runs_of_a_row_are_one_with_median_and_ends() {
        let mut rows = sample("host").results;
        let extra = |ns: f64, gb_s, verified| Row {
            latency_ns_p50: Some(ns),
            bandwidth_gb_s: gb_s,
            dropped: 2,
            verified,
            max_credits_in_use: Some(ns as u64),
            ..rows[1].clone()
        };
        let more = [extra(9e3, 7.0, true), extra(5e3, 6.0, false), extra(7e3, 0.5, true)];
        rows.extend(more);
        let all = repeated(&rows);
        assert_eq!(all.len(), 12, "each path and size once");
        let of = &all[1];
        assert_eq!((of.first, of.runs, of.row.messages, of.row.dropped), (1, 4, 4000, 6));
        // The row's own are 4000 ns and 0.002 GB/s.
        assert_eq!((of.row.latency_ns_p50, of.latency_ns), (Some(6e3), Some([4e3, 9e3])));
        assert_eq!((of.row.bandwidth_gb_s, of.gb_s), (3.25, Some([0.002, 7.0])));
        assert_eq!((of.row.verified, of.row.max_credits_in_use), (false, Some(9000)));
        assert_eq!(of.one_way_ns, None);
    }

    #[test]
    fn a_run_without_a_value_has_no_part_in_the_median() {
        let mut rows = sample("host").results[..1].to_vec();
        let failed = Row { latency_ns_p50: None, verified: false, ..rows[0].clone() };
        rows.extend([failed.clone(), failed]);
        let all = repeated(&rows);
        assert_eq!((all[0].row.latency_ns_p50, all[0].latency_ns), (rows[0].latency_ns_p50, None));
        assert!(!all[0].row.verified);
    }
}
