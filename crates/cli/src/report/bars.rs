//! Bars of several lines at one position: side by side, so that none hides another.

use super::frame::Axis;
use super::series::Series;

/// From one line's bars to the next one's, pixels at most.
const MOST: f64 = 6.0;

/// How far apart, in the axis's positions, the lines' bars at one position stand: all of them within half the way to the
/// next position, and within the axis, which is `across` pixels long.
pub(super) fn step(lines: &[Series], axis: &Axis, across: i32) -> f64 {
    let mut at: Vec<f64> = lines.iter().flat_map(|line| &line.bars).map(|bar| bar.0).collect();
    at.sort_by(f64::total_cmp);
    let (Some(first), Some(last)) = (at.first(), at.last()) else { return 0.0 };
    let edge = (first - axis.low).min(axis.high - last);
    let apart = at.windows(2).map(|pair| pair[1] - pair[0]).filter(|apart| *apart > 0.0);
    let room = apart.fold(f64::INFINITY, f64::min).min(4.0 * edge) / 2.0;
    let count = lines.iter().filter(|line| !line.bars.is_empty()).count();
    (room / count as f64).min(MOST * (axis.high - axis.low) / f64::from(across))
}

/// Bars of a line from their lower to their upper ends, `shift` beside its points.
pub(super) fn beside(line: &Series, shift: f64) -> Vec<[(f64, f64); 2]> {
    line.bars.iter().map(|&(x, low, high)| [(x + shift, low), (x + shift, high)]).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::plot::{latency_svg, sizes};
    use super::super::row::{Row, tests::sample};
    use super::super::series::{Of, Shape};
    use super::*;

    #[test]
    fn bars_stay_at_their_size_and_within_the_axes() {
        for at in [&[3.0][..], &[3.0, 12.0], &[3.0, 4.0, 5.0, 6.0], &[3.0, 3.5, 20.0]] {
            let line = Series {
                label: "a".into(),
                colour: (0, 0, 0),
                shape: Shape::Up,
                dash: 0,
                of: Of::Unsaid,
                marks: Vec::new(),
                points: at.iter().map(|&x| (x, 1.5)).collect(),
                bars: at.iter().map(|&x| (x, 1.0, 2.0)).collect(),
            };
            let (first, last) = (at[0], at[at.len() - 1]);
            let axis = sizes((first, last));
            let step = step(&vec![line; 13], &axis, 600);
            let pixels = step * 600.0 / (axis.high - axis.low);
            assert!(pixels > 0.5 && pixels < MOST + 0.1, "{at:?}: {pixels}");
            let most = 6.0 * step;
            assert!(first - most > axis.low && last + most < axis.high, "{at:?}: {step}");
            assert!(at.windows(2).all(|pair| pair[0] + most < pair[1] - most), "{at:?}: {step}");
        }
    }

    #[test]
    fn no_bar_hides_another() {
        let mut results = sample("cuda:X");
        let slower = |row: &Row| {
            let latency_ns_p50 = row.latency_ns_p50.map(|ns| 1.5 * ns);
            Row { latency_ns_p50, ..row.clone() }
        };
        results.results.extend(results.results.iter().map(slower).collect::<Vec<_>>());
        let svg = latency_svg(&results).unwrap();
        // Upright strokes of two ends, but for those of the axes.
        let strokes = svg.split("<polyline ").skip(1).filter(|it| !it.contains("\"#57606A\""));
        let points = strokes.filter_map(|it| it.split(" points=\"").nth(1)?.split('"').next());
        let x = |point: &str| point.split(',').next().map(str::to_owned);
        let upright =
            points.filter_map(|points| match points.split_whitespace().collect::<Vec<_>>()[..] {
                [from, to] if x(from) == x(to) => x(from),
                _ => None,
            });
        let bars: Vec<String> = upright.collect();
        let apart: BTreeSet<&String> = bars.iter().collect();
        assert_eq!((bars.len(), apart.len()), (12, 12), "{bars:?}");
    }
}
