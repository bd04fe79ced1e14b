//! Rows in the order in which they are measured, run by run.

use bellpush::transport::Path;
use bellpush_cli::report::{Row, size};
use indicatif::ProgressBar;

use super::progress;
use crate::plan::BenchPlan;

/// Has `row` measure every path at every size, in each of the plan's runs; `None` leaves the path out. Every other run
/// goes the other way round: over an even number of runs what drifts steadily moves the medians of all rows alike.
///
/// Rows are given by path and size, those of one in the order of their runs, also when an error ended them.
pub fn measure<E>(
    plan: &BenchPlan,
    mut row: impl FnMut(Path, u64, &ProgressBar) -> Result<Option<Row>, E>,
) -> (Vec<Row>, Result<(), E>) {
    let places =
        plan.paths.iter().flat_map(|&path| plan.sizes_bytes.iter().map(move |&s| (path, s)));
    let places: Vec<(Path, u64)> = places.collect();
    let bar = progress(places.len() * plan.runs as usize);
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    let ended = order(places.len(), plan.runs).try_for_each(|nth| {
        let (path, bytes) = places[nth];
        if !left_out.contains(&path) {
            bar.set_message(format!("{path} {}", size::print(bytes)));
            match row(path, bytes, &bar)? {
                Some(row) => insert(&mut rows, row),
                None => left_out.push(path),
            }
        }
        bar.inc(1);
        Ok(())
    });
    bar.finish_and_clear();
    (rows, ended)
}

/// Adds a row behind those of its path and size.
pub fn insert(rows: &mut Vec<Row>, row: Row) {
    let about = |row: &Row| (row.data, row.kick, row.size_bytes);
    let last = rows.iter().rposition(|other| about(other) == about(&row));
    rows.insert(last.map_or(rows.len(), |last| last + 1), row);
}

/// Positions of `count` rows, run after run.
fn order(count: usize, runs: u32) -> impl Iterator<Item = usize> {
    (0..runs).flat_map(move |run| {
        (0..count).map(move |nth| if run % 2 == 0 { nth } else { count - 1 - nth })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::BenchArgs;

    fn plan(runs: u32) -> BenchPlan {
        let args = BenchArgs {
            data: Some("push,tcp".into()),
            kick: None,
            sizes: "8,64".into(),
            ..BenchArgs::default_of_the_command_line()
        };
        let mut plan = BenchPlan::try_from(&args).unwrap();
        plan.paths = vec!["push/kernel".parse().unwrap(), Path::TCP];
        plan.runs = runs;
        plan
    }

    fn of(path: Path, bytes: u64, nth: u64) -> Row {
        Row { messages: nth, ..Row::new(path.data(), path.kick(), bytes) }
    }

    /// Over an even number of runs every row's median is measured as late as every other's.
    #[test]
    fn a_steady_drift_favours_no_row() {
        for runs in [2, 4, 6] {
            let mut late = [const { Vec::new() }; 4];
            order(4, runs).enumerate().for_each(|(when, nth)| late[nth].push(when));
            let middles = late.map(|of| of[of.len() / 2 - 1] + of[of.len() / 2]);
            assert_eq!(middles, [middles[0]; 4], "{runs}");
        }
        assert_eq!(order(3, 3).collect::<Vec<_>>(), [0, 1, 2, 2, 1, 0, 0, 1, 2]);
    }

    #[test]
    fn rows_come_by_path_and_size_in_the_order_of_runs() {
        let mut nth = 0;
        let (rows, ended) = measure(&plan(3), |path, bytes, _| {
            nth += 1;
            Ok::<_, ()>(Some(of(path, bytes, nth)))
        });
        assert_eq!(ended, Ok(()));
        let found: Vec<_> = rows.iter().map(|r| (r.path(), r.size_bytes, r.messages)).collect();
        let push = |bytes, nth| ("push/kernel".to_string(), bytes, nth);
        let tcp = |bytes, nth| ("tcp".to_string(), bytes, nth);
        let expected = [
            [push(8, 1), push(8, 8), push(8, 9)],
            [push(64, 2), push(64, 7), push(64, 10)],
            [tcp(8, 3), tcp(8, 6), tcp(8, 11)],
            [tcp(64, 4), tcp(64, 5), tcp(64, 12)],
        ];
        assert_eq!(found, expected.concat());
    }

    #[test]
    fn a_path_that_is_left_out_is_tried_once_and_an_error_keeps_what_was_measured() {
        let mut tried = 0;
        let (rows, ended) = measure(&plan(4), |path, bytes, _| {
            tried += usize::from(path == Path::TCP);
            Ok::<_, ()>((path != Path::TCP).then(|| of(path, bytes, 0)))
        });
        assert_eq!((rows.len(), ended, tried), (8, Ok(()), 1));
        let mut left = 3;
        let (rows, ended) = measure(&plan(4), |path, bytes, _| {
            left -= 1;
            if left < 0 { Err("over") } else { Ok(Some(of(path, bytes, 0))) }
        });
        assert_eq!((rows.len(), ended), (3, Err("over")));
    }
}
