//! Plots of results: latency and bandwidth over message size, one line per path.
//!
//! The colour stands for the data path, the marker for the kick; variants of the same data path
//! differ in their dash. The colours (Okabe and Ito) remain distinct with every common colour
//! vision. Filled markers are what a NIC did; hollow ones on thin lines are artefacts of the
//! software NIC, which the legend names apart.

use super::frame::{Axis, Form, Frame, Label};
use super::human::{gb_s, time_ns};
use super::notes::{Footnotes, SOFTWARE};
use super::row::Results;
use super::series::{Of, Series, series};
use super::{ReportError, size};

/// Median latency over size, both axes logarithmic.
///
/// # Errors
/// [`ReportError::Draw`] for errors of the plotting library.
pub fn latency_svg(results: &Results) -> Result<String, ReportError> {
    latency(results, |frame, lines| frame.svg(lines, Form::Wide))
}

/// Bandwidth over size, both axes logarithmic: what one path is many times as fast at does not
/// flatten the others.
///
/// # Errors
/// [`ReportError::Draw`] for errors of the plotting library.
pub fn bandwidth_svg(results: &Results) -> Result<String, ReportError> {
    bandwidth(results, |frame, lines| frame.svg(lines, Form::Wide))
}

/// Both plots, each in a wide and a narrow form.
pub(super) fn figures(results: &Results) -> Result<[String; 2], ReportError> {
    let figure = |frame: &Frame<'_>, lines: &[Series]| frame.figure(lines);
    Ok([latency(results, figure)?, bandwidth(results, figure)?])
}

type Drawn = Result<String, ReportError>;

fn latency(results: &Results, draw: impl Fn(&Frame<'_>, &[Series]) -> Drawn) -> Drawn {
    let lines = in_decades(series(results, |row| row.latency_ns_p50.filter(|ns| *ns > 0.0)));
    let y = decades(extent(&lines, |(_, y)| y));
    let label = |v: &f64| tick_time(10f64.powf(*v));
    let title = "Latency, post to completion, p50";
    draw(&framed("latency", title, &remarks(results, &lines), &lines, y, &label), &lines)
}

fn bandwidth(results: &Results, draw: impl Fn(&Frame<'_>, &[Series]) -> Drawn) -> Drawn {
    let lines =
        in_decades(series(results, |row| Some(row.bandwidth_gb_s).filter(|rate| *rate > 0.0)));
    let y = decades(extent(&lines, |(_, y)| y));
    let label = |v: &f64| tick_gb_s(10f64.powf(*v));
    let title = "Bandwidth, GB/s (10⁹ bytes a second)";
    draw(&framed("bandwidth", title, &remarks(results, &lines), &lines, y, &label), &lines)
}

/// Lines of values above 0 as a logarithmic axis has them: a median is that of values, and not of their logarithms.
fn in_decades(mut lines: Vec<Series>) -> Vec<Series> {
    for line in &mut lines {
        line.points.iter_mut().for_each(|at| at.1 = at.1.log10());
        line.bars.iter_mut().for_each(|bar| (bar.1, bar.2) = (bar.1.log10(), bar.2.log10()));
    }
    lines
}

fn framed<'a>(
    name: &'static str,
    title: &'a str,
    remarks: &'a [String],
    lines: &[Series],
    y: Axis,
    y_label: Label<'a>,
) -> Frame<'a> {
    let x = sizes(extent(lines, |(x, _)| x));
    Frame { name, title, remarks, x, x_name: "message size", x_label: &tick_size, y, y_label }
}

/// Remarks below a plot: whose numbers it shows, then the footnotes of its lines.
fn remarks(results: &Results, lines: &[Series]) -> Vec<String> {
    let mut remarks = Vec::new();
    if results.results.iter().any(super::Row::on_host_executor) {
        remarks.push("Kernels on the host executor: no ranking of paths means anything.".into());
    }
    let has = |of: Of| lines.iter().any(|line| line.of == of);
    if !has(Of::Nic) && (has(Of::Software) || has(Of::Artefact)) {
        remarks.push(format!("Measured on the {SOFTWARE}: no number here is a NIC's."));
    }
    let repeated = lines.iter().any(|line| !line.bars.is_empty());
    if repeated {
        remarks.push("Bars: least to greatest of repeated rows; the line is their median.".into());
    }
    let texts = Footnotes::of(&results.results);
    for (i, text) in texts.texts().iter().enumerate() {
        if lines.iter().any(|line| line.marks.contains(&(i + 1))) {
            remarks.push(format!("[{}] {text}.", i + 1));
        }
    }
    remarks
}

/// A logarithmic axis in powers of two; only even powers when there is no room for all.
pub(super) fn sizes((low, high): (f64, f64)) -> Axis {
    let (first, last) = (low.floor() as i32, high.ceil() as i32);
    let step = (last - first) / 11 + 1;
    let ticks = (first..=last).filter(|shift| shift % step == 0).map(f64::from).collect();
    let pad = if high - low < 1.0 { 1.0 } else { 0.25 };
    Axis { low: low - pad, high: high + pad, ticks }
}

/// A logarithmic axis: powers of ten, with 2 and 5 between them when there are few; two of them at least.
pub(super) fn decades((low, high): (f64, f64)) -> Axis {
    let (low, high) = (low - 0.08, high + 0.08);
    let (first, last) = (low.floor() as i32, high.ceil() as i32);
    let step = (last - first) / 12 + 1;
    let within: &[f64] = if last - first <= 5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let ticks: Vec<f64> = (first..=last)
        .filter(|decade| decade % step == 0)
        .flat_map(|decade| within.iter().map(move |m| f64::from(decade) + m.log10()))
        .filter(|v| (low..=high).contains(v))
        .collect();
    // Values of one size may all lie between two ticks.
    if ticks.len() < 2 { decades((low, high)) } else { Axis { low, high, ticks } }
}

/// A logarithmic axis of ratios with 1 in its middle, and ticks at like differences where they are all near it.
pub(super) fn ratios((low, high): (f64, f64)) -> Axis {
    const LEAST: f64 = 1.02;
    let most = low.abs().max(high.abs()).max(LEAST.log10()) * 1.06;
    let far = 10f64.powf(most);
    if far > 2.5 {
        return decades((-most, most));
    }
    let steps = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
    let step = steps.into_iter().find(|step| (far - 1.0) / step < 5.0).unwrap_or(0.5);
    let ticks = (-5..=5).map(|i| (1.0 + step * f64::from(i)).log10());
    Axis { low: -most, high: most, ticks: ticks.filter(|v| v.abs() <= most).collect() }
}

/// A linear axis from zero with steps of 1, 2 or 5.
pub(super) fn from_zero((_, high): (f64, f64)) -> Axis {
    let high = if high > 0.0 { high * 1.06 } else { 1.0 };
    let rough = high / 6.0;
    let decade = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * decade).into_iter().find(|s| *s >= rough);
    let step = step.unwrap_or(high);
    let ticks = (0..=8).map(|i| f64::from(i) * step).take_while(|v| *v <= high).collect();
    Axis { low: 0.0, high, ticks }
}

/// Minimum and maximum of a coordinate.
pub(super) fn extent(lines: &[Series], of: impl Fn((f64, f64)) -> f64) -> (f64, f64) {
    let ends = |line: &'_ Series| {
        let bars = line.bars.iter().flat_map(|&(x, low, high)| [(x, low), (x, high)]);
        line.points.iter().copied().chain(bars).collect::<Vec<_>>()
    };
    let values = || lines.iter().flat_map(ends).map(&of);
    let (low, high) =
        (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

/// `2 µs` rather than `2.00 µs`.
pub(super) fn tick_time(ns: f64) -> String {
    let text = time_ns(ns);
    match text.split_once(' ') {
        Some((number, unit)) => format!("{} {unit}", trimmed(number)),
        None => text,
    }
}

pub(super) fn tick_gb_s(value: f64) -> String {
    trimmed(&gb_s(value))
}

/// The size whose logarithm to base 2 is given.
pub(super) fn tick_size(v: &f64) -> String {
    size::print(1 << (v.round().clamp(0.0, 63.0) as u32))
}

pub(super) fn tick_ratio(value: f64) -> String {
    match (1e-3..1e5).contains(&value) {
        true => trimmed(&format!("{value:.3}")),
        false => format!("{value:.0e}"),
    }
}

fn trimmed(number: &str) -> String {
    let (digits, power) = number.split_at(number.find('e').unwrap_or(number.len()));
    let digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    };
    format!("{digits}{power}")
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::sample;
    use super::*;

    #[test]
    fn every_path_has_a_line_in_the_legend() {
        let results = sample("cuda:X");
        for svg in [latency_svg(&results).unwrap(), bandwidth_svg(&results).unwrap()] {
            for text in ["push/inband", "push/kernel", "pull/kernel [1]", "tcp", "4 KiB", "1 MiB"] {
                assert!(svg.lines().any(|l| l == text), "{text} is missing");
            }
            assert!(svg.contains("Measured on the software NIC: no number here is a NIC"));
            assert!(
                !svg.contains("http") || svg.matches("http").count() == 1,
                "only its namespace"
            );
        }
        let host = latency_svg(&sample("host")).unwrap();
        assert!(host.contains("no ranking of paths means anything"));
    }

    /// What is a NIC's, and what is not, stands in the legend.
    #[test]
    fn the_legend_says_whose_numbers_they_are() {
        let mut results = sample("cuda:X");
        let has = |r: &Results, text: &str| latency_svg(r).unwrap().lines().any(|l| l == text);
        for heading in ["software NIC", "artefacts of the software NIC", "no NIC"] {
            assert!(has(&results, heading), "{heading}");
        }
        assert!(!has(&results, "numbers of a NIC"));
        results.meta.nic.software = false;
        for row in &mut results.results {
            row.engine = None;
        }
        assert!(has(&results, "numbers of a NIC") && has(&results, "no NIC"));
        assert!(!has(&results, "artefacts of the software NIC"));
        assert!(!latency_svg(&results).unwrap().contains("no number here"));
    }

    /// A path that is ten thousand times as fast as another leaves it its place.
    #[test]
    fn bandwidths_far_apart_are_apart() {
        let mut results = sample("cuda:X");
        results.results.retain(|row| row.size_bytes > 8);
        for row in &mut results.results {
            row.bandwidth_gb_s = match row.data {
                super::super::Data::Pull => 40.0,
                super::super::Data::Push => 0.04,
                _ => 0.02,
            };
        }
        let svg = bandwidth_svg(&results).unwrap();
        let tick = |text: &str| {
            let lines: Vec<&str> = svg.lines().collect();
            let at = lines.iter().position(|l| *l == text).expect(text);
            let y = lines[at - 1].split(" y=\"").nth(1).unwrap().split('"').next().unwrap();
            y.parse::<f64>().unwrap()
        };
        assert!(tick("0.02") - tick("0.05") > 20.0, "pixels between the two slowest");
    }

    #[test]
    fn extremes_are_drawn() {
        let mut results = sample("cuda:X");
        results.results.truncate(1);
        latency_svg(&results).unwrap();
        results.results[0].latency_ns_p50 = Some(1e300);
        results.results[0].bandwidth_gb_s = 1e300;
        results.results[0].size_bytes = u64::MAX;
        latency_svg(&results).unwrap();
        bandwidth_svg(&results).unwrap();
        results.results[0].latency_ns_p50 = Some(0.0);
        results.results[0].bandwidth_gb_s = 0.0;
        assert!(latency_svg(&results).unwrap().contains("nothing was measured"));
        assert!(bandwidth_svg(&results).unwrap().contains("nothing was measured"));
    }

    /// Values of one size may lie between two ticks.
    #[test]
    fn an_axis_has_two_ticks_at_least() {
        for value in [0.031, 0.07, 1.0, 3.3, 7.0, 41.0, 1.4e300] {
            let axis = decades((f64::log10(value), f64::log10(value)));
            assert!(axis.ticks.len() >= 2, "{value}: {:?}", axis.ticks);
            assert!(axis.low < value.log10() && value.log10() < axis.high);
        }
    }

    #[test]
    fn repeated_rows_have_bars() {
        let mut results = sample("cuda:X");
        let strokes = |r: &Results| latency_svg(r).unwrap().matches("<polyline").count();
        let once = strokes(&results);
        assert!(!latency_svg(&results).unwrap().contains("Bars:"));
        let mut again = results.results[0].clone();
        again.latency_ns_p50 = again.latency_ns_p50.map(|ns| ns * 1.5);
        results.results.push(again);
        assert_eq!(strokes(&results), once + 3, "a bar and its ends");
        assert!(latency_svg(&results).unwrap().contains("Bars:"));
    }

    #[test]
    fn ticks_are_short() {
        assert_eq!(tick_time(2000.0), "2 µs");
        assert_eq!(tick_time(500.0), "500 ns");
        assert_eq!(
            [0.0, 2.5, 60.0, 1e-5, 2.5e-6].map(tick_gb_s),
            ["0", "2.5", "60", "1e-5", "2.5e-6"].map(String::from)
        );
    }
}
