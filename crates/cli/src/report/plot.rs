//! SVG plots: latency and bandwidth over message size, one line per path.
//!
//! The colour stands for the data path, the marker for the kick; variants of the same data path
//! differ in their dash. The colours (Okabe and Ito) remain distinct with every common colour
//! vision. The SVG carries a style sheet that replaces them by lighter ones on dark screens.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::element::{ComposedElement, DashedPathElement};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::human::{gb_s, time_ns};
use super::notes::SOFTWARE;
use super::row::Results;
use super::series::{DASHES, Series, series};
use super::{ReportError, size};

const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
const SUBTLE: RGBColor = RGBColor(0x57, 0x60, 0x6a);
const GRID: RGBColor = RGBColor(0xe3, 0xe6, 0xea);
const SURFACE: RGBColor = RGBColor(0xff, 0xff, 0xff);

/// Each colour of a plot and its replacement on a dark screen.
const DARK: [(&str, &str); 8] = [
    ("#1F2328", "#E6EDF3"),
    ("#57606A", "#9BA6B2"),
    ("#E3E6EA", "#30363D"),
    ("#FFFFFF", "#161B22"),
    ("#0072B2", "#56B4E9"),
    ("#D55E00", "#FF9A4D"),
    ("#009E73", "#2CC79A"),
    ("#6E6E6E", "#B4B4B4"),
];

const FONT: &str = "system-ui, sans-serif";
/// Font sizes; the SVG backend writes them divided by 1.24.
const TEXT_SIZE: u32 = 16;
const TITLE_SIZE: u32 = 20;
const WIDTH: u32 = 960;
const HEIGHT: u32 = 440;
const TITLE_HEIGHT: u32 = 34;
const LEGEND_LINE: i32 = 21;
/// Advance of a character at the text size, an upper estimate.
const CHAR_WIDTH: i32 = 7;
const LEGEND_MAX_CHARS: usize = 44;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// An axis: the range of positions, and the labelled positions.
#[derive(Clone)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (value - self.low) / (self.high - self.low);
        from + (f64::from(to - from) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // The library calls this twice: for the labelled lines, and for the fine lines between
        // them, which this plot does not have.
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// Median latency over size, both axes logarithmic.
///
/// # Errors
/// [`ReportError::Draw`] for errors of the plotting library.
pub fn latency_svg(results: &Results) -> Result<String, ReportError> {
    let y = |ns: f64| (ns > 0.0).then(|| ns.log10());
    let lines = series(&results.results, |row| row.latency_ns_p50.and_then(y));
    let axis = decades(extent(&lines, |(_, y)| y));
    let label = |v: &f64| tick_time(10f64.powf(*v));
    draw("latency", "Latency, post to completion, p50", results, &lines, axis, &label)
}

/// Bandwidth over size, the size axis logarithmic.
///
/// # Errors
/// [`ReportError::Draw`] for errors of the plotting library.
pub fn bandwidth_svg(results: &Results) -> Result<String, ReportError> {
    let lines = series(&results.results, |row| Some(row.bandwidth_gb_s));
    let axis = from_zero(extent(&lines, |(_, y)| y));
    draw("bandwidth", "Bandwidth, GB/s (10⁹ bytes a second)", results, &lines, axis, &|v| {
        tick_gb_s(*v)
    })
}

fn draw(
    name: &'static str,
    title: &str,
    results: &Results,
    lines: &[Series],
    y: Axis,
    y_label: Label<'_>,
) -> Result<String, ReportError> {
    let remarks = remarks(results, lines);
    let frame = Frame {
        name,
        title,
        remarks: &remarks,
        x: sizes(extent(lines, |(x, _)| x)),
        x_name: "message size",
        x_label: &tick_size,
        y,
        y_label,
    };
    frame.svg(lines)
}

/// Format of an axis position.
pub(super) type Label<'a> = &'a dyn Fn(&f64) -> String;

/// Everything of a plot except its lines.
pub(super) struct Frame<'a> {
    /// Name for error messages.
    pub name: &'static str,
    pub title: &'a str,
    pub remarks: &'a [String],
    pub x: Axis,
    pub x_name: &'a str,
    pub x_label: Label<'a>,
    pub y: Axis,
    pub y_label: Label<'a>,
}

impl Frame<'_> {
    pub(super) fn svg(&self, lines: &[Series]) -> Result<String, ReportError> {
        let legend_height = 90 + LEGEND_LINE * i32::try_from(lines.len()).unwrap_or(1000);
        let height = HEIGHT.max(legend_height.unsigned_abs()) + 18 * self.remarks.len() as u32;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            let drawn = draw_on(&root, self, lines);
            let drawn = drawn.and_then(|()| root.present());
            drawn.map_err(|e| ReportError::Draw { plot: self.name, reason: e.to_string() })?;
        }
        Ok(themed(&svg, self.title))
    }
}

fn draw_on(root: &Area<'_>, frame: &Frame<'_>, lines: &[Series]) -> Drawn {
    let Frame { title, remarks, .. } = frame;
    root.fill(&SURFACE)?;
    let text = |size: u32, colour: &RGBColor| (FONT, size).into_font().color(colour);
    root.draw_text(title, &text(TITLE_SIZE, &INK), (16, 12))?;
    let (_, height) = root.dim_in_pixel();
    let foot = 18 * remarks.len() as u32;
    for (i, remark) in remarks.iter().enumerate() {
        let at = (16, (height - foot) as i32 + 18 * i as i32 - 4);
        root.draw_text(remark, &text(TEXT_SIZE, &SUBTLE), at)?;
    }

    let (_, body) = root.split_vertically(TITLE_HEIGHT);
    let (body, _) = body.split_vertically(height - TITLE_HEIGHT - foot);
    let longest = lines.iter().map(|s| s.label.chars().count()).max().unwrap_or(0);
    let legend = 64 + CHAR_WIDTH * longest.min(LEGEND_MAX_CHARS) as i32;
    let (left, right) = body.split_horizontally(WIDTH as i32 - legend);

    if lines.is_empty() {
        let middle = Pos::new(HPos::Center, VPos::Center);
        let (w, h) = body.dim_in_pixel();
        let at = (w as i32 / 2, h as i32 / 2);
        body.draw_text("nothing was measured", &text(TEXT_SIZE, &SUBTLE).pos(middle), at)?;
        return Ok(());
    }
    let mut chart = ChartBuilder::on(&left)
        .margin(10)
        .margin_right(18)
        .x_label_area_size(48)
        .y_label_area_size(66)
        .build_cartesian_2d(frame.x.clone(), frame.y.clone())?;
    chart
        .configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(SUBTLE)
        .label_style(text(TEXT_SIZE, &SUBTLE))
        .x_desc(frame.x_name)
        .axis_desc_style(text(TEXT_SIZE, &SUBTLE))
        .x_label_formatter(frame.x_label)
        .y_label_formatter(frame.y_label)
        .draw()?;
    for line in lines {
        let style = colour(line).stroke_width(2);
        match DASHES[line.dash] {
            None => chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?,
            Some((dash, gap)) => chart.draw_series(DashedLineSeries::new(
                line.points.iter().copied(),
                dash,
                gap,
                style,
            ))?,
        };
        chart.draw_series(line.points.iter().map(|at| marker(*at, line)))?;
    }
    draw_legend(&right, lines)
}

fn draw_legend(area: &Area<'_>, lines: &[Series]) -> Drawn {
    let style = (FONT, TEXT_SIZE).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    for (i, line) in lines.iter().enumerate() {
        let y = 18 + LEGEND_LINE * i as i32;
        let sample = [(4, y), (40, y)];
        let stroke = colour(line).stroke_width(2);
        match DASHES[line.dash] {
            None => area.draw(&PathElement::new(sample, stroke))?,
            Some((dash, gap)) => {
                area.draw(&DashedPathElement::new(sample, dash, gap, stroke))?;
            }
        }
        area.draw(&marker((22, y), line))?;
        let label = if line.label.chars().count() > LEGEND_MAX_CHARS {
            line.label.chars().take(LEGEND_MAX_CHARS - 1).chain(['…']).collect()
        } else {
            line.label.clone()
        };
        area.draw_text(&label, &style, (48, y))?;
    }
    Ok(())
}

fn colour(line: &Series) -> RGBColor {
    let (r, g, b) = line.colour;
    RGBColor(r, g, b)
}

type Marker<C, DB> = ComposedElement<C, DB, Polygon<(i32, i32)>, PathElement<(i32, i32)>>;

/// A marker of a constant size in pixels, ringed in the surface's colour so that markers on
/// crossing lines stay apart.
fn marker<C, DB: DrawingBackend>(at: C, line: &Series) -> Marker<C, DB> {
    let corners = line.shape.corners();
    let ring: Vec<_> = corners.iter().chain(corners.first()).copied().collect();
    EmptyElement::at(at)
        + Polygon::new(corners, colour(line).filled())
        + PathElement::new(ring, SURFACE.stroke_width(1))
}

/// Remarks below a plot.
fn remarks(results: &Results, lines: &[Series]) -> Vec<String> {
    let mut remarks = Vec::new();
    if results.results.iter().any(super::Row::on_host_executor) {
        remarks.push("Kernels on the host executor: no ranking of paths means anything.".into());
    } else if results.meta.nic.software {
        remarks.push(format!("Measured on the {SOFTWARE}."));
    }
    if lines.iter().any(|line| line.footnoted) {
        remarks.push(format!("* The {SOFTWARE}'s own number, not a NIC's: see the footnotes."));
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

/// A logarithmic axis: powers of ten, with 2 and 5 between them when there are few.
pub(super) fn decades((low, high): (f64, f64)) -> Axis {
    let (low, high) = (low - 0.08, high + 0.08);
    let (first, last) = (low.floor() as i32, high.ceil() as i32);
    let step = (last - first) / 12 + 1;
    let within: &[f64] = if last - first <= 5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let ticks = (first..=last)
        .filter(|decade| decade % step == 0)
        .flat_map(|decade| within.iter().map(move |m| f64::from(decade) + m.log10()))
        .filter(|v| (low..=high).contains(v))
        .collect();
    Axis { low, high, ticks }
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
    let values = || lines.iter().flat_map(|line| line.points.iter().map(|&at| of(at)));
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
    trimmed(&gb_s(value)).into()
}

/// The size whose logarithm to base 2 is given.
pub(super) fn tick_size(v: &f64) -> String {
    size::print(1 << (v.round().clamp(0.0, 63.0) as u32))
}

fn trimmed(number: &str) -> &str {
    if number.contains('.') && !number.contains('e') {
        number.trim_end_matches('0').trim_end_matches('.')
    } else {
        number
    }
}

/// Adds the dark screen's colours and a title for screen readers.
fn themed(svg: &str, title: &str) -> String {
    let mut style = String::from("<style>@media (prefers-color-scheme: dark) {");
    for (light, dark) in DARK {
        for attribute in ["fill", "stroke"] {
            style += &format!(".plot [{attribute}=\"{light}\"]{{{attribute}:{dark}}}");
        }
    }
    style += "}</style>";
    let open = "<svg ";
    let labelled = format!("<svg class=\"plot\" role=\"img\" aria-label=\"{title}\" ");
    let svg = svg.replacen(open, &labelled, 1);
    match svg.find('>') {
        Some(end) => format!("{}\n{style}{}", &svg[..=end], &svg[end + 1..]),
        None => svg,
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::sample;
    use super::*;

    #[test]
    fn every_path_has_a_line_in_the_legend() {
        let results = sample("cuda:X");
        for svg in [latency_svg(&results).unwrap(), bandwidth_svg(&results).unwrap()] {
            for text in ["push/inband", "push/kernel", "pull/kernel *", "tcp", "4 KiB", "1 MiB"] {
                assert!(svg.lines().any(|l| l == text), "{text} is missing");
            }
            assert!(svg.contains("Measured on the software NIC."));
            assert!(
                !svg.contains("http") || svg.matches("http").count() == 1,
                "only its namespace"
            );
        }
        let host = latency_svg(&sample("host")).unwrap();
        assert!(host.contains("no ranking of paths means anything"));
    }

    #[test]
    fn colours_are_those_with_a_dark_counterpart() {
        let svg = latency_svg(&sample("cuda:X")).unwrap();
        let (_, drawing) = svg.split_once("</style>").unwrap();
        for (at, _) in drawing.match_indices("=\"#") {
            let colour = &drawing[at + 2..at + 9];
            assert!(DARK.iter().any(|(light, _)| *light == colour), "{colour}");
        }
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
        bandwidth_svg(&results).unwrap();
    }

    #[test]
    fn ticks_are_short() {
        assert_eq!(tick_time(2000.0), "2 µs");
        assert_eq!(tick_time(500.0), "500 ns");
        assert_eq!(
            (tick_gb_s(0.0), tick_gb_s(2.5), tick_gb_s(60.0)),
            ("0".into(), "2.5".into(), "60".into())
        );
    }
}
