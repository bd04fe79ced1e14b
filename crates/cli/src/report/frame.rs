//! How a plot is drawn: title, axes, lines, legend, remarks; wide, or narrow for a phone.
//!
//! The SVG carries a style sheet that replaces its colours by lighter ones on dark screens.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::element::{ComposedElement, DashedPathElement};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::series::{DASHES, Of, Series};
use super::{ReportError, bars};

const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
const SUBTLE: RGBColor = RGBColor(0x57, 0x60, 0x6a);
const GRID: RGBColor = RGBColor(0xe3, 0xe6, 0xea);
const SURFACE: RGBColor = RGBColor(0xff, 0xff, 0xff);

/// Each colour of a plot and its replacement on a dark screen.
const DARK: [(&str, &str); 9] = [
    ("#1F2328", "#E6EDF3"),
    ("#57606A", "#9BA6B2"),
    ("#E3E6EA", "#30363D"),
    ("#FFFFFF", "#161B22"),
    ("#0072B2", "#56B4E9"),
    ("#D55E00", "#FF9A4D"),
    ("#009E73", "#2CC79A"),
    ("#6E6E6E", "#B4B4B4"),
    ("#CC79A7", "#E6A3C8"),
];

const FONT: &str = "system-ui, sans-serif";
/// Font sizes; the SVG backend writes them divided by 1.24.
const TEXT_SIZE: u32 = 16;
const TITLE_SIZE: u32 = 20;
/// Advance of a character at the text size and at the title's, upper estimates.
const CHAR_WIDTH: i32 = 8;
const TITLE_CHAR_WIDTH: i32 = 10;
const TITLE_LINE: i32 = 22;
const LEGEND_LINE: i32 = 21;
const REMARK_LINE: i32 = 18;
const LEGEND_MAX_CHARS: usize = 44;
/// Beside axes and lines: margins, and the vertical axis's labels.
const MARGIN: i32 = 10;
const RIGHT_MARGIN: i32 = 18;
const Y_LABELS: i32 = 66;
/// Between two labels of the horizontal axis, at least.
const LABEL_GAP: i32 = 8;
/// Sample and margins of a line of the legend.
const LEGEND_SAMPLE: i32 = 64;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// The form of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The legend beside the plot.
    Wide,
    /// For a phone's width: the legend below.
    Narrow,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
        }
    }

    /// Width, and least height of axes and lines, in pixels.
    fn size(self) -> (i32, i32) {
        match self {
            Self::Wide => (960, 406),
            Self::Narrow => (480, 350),
        }
    }
}

/// An axis: the range of positions, and the labelled positions.
#[derive(Clone)]
pub(super) struct Axis {
    pub low: f64,
    pub high: f64,
    pub ticks: Vec<f64>,
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

/// A line of the legend.
enum Entry<'a> {
    Heading(&'static str),
    Line(&'a Series),
}

/// Lines under what their numbers are of, where that is said of any.
fn entries(lines: &[Series]) -> Vec<Entry<'_>> {
    let mut entries = Vec::new();
    for of in Of::ALL {
        let mut own = lines.iter().filter(|line| line.of == of).peekable();
        if let Some(heading) = of.heading().filter(|_| own.peek().is_some()) {
            entries.push(Entry::Heading(heading));
        }
        entries.extend(own.map(Entry::Line));
    }
    entries
}

impl Frame<'_> {
    /// Both forms, for a page whose style shows the one that fits.
    pub(super) fn figure(&self, lines: &[Series]) -> Result<String, ReportError> {
        Ok(self.svg(lines, Form::Wide)? + "\n" + &self.svg(lines, Form::Narrow)?)
    }

    pub(super) fn svg(&self, lines: &[Series], form: Form) -> Result<String, ReportError> {
        let (width, body) = form.size();
        let chars = |advance: i32| ((width - 32) / advance) as usize;
        let title = wrapped(self.title, chars(TITLE_CHAR_WIDTH));
        let remarks = self.remarks.iter().flat_map(|text| wrapped(text, chars(CHAR_WIDTH)));
        let remarks: Vec<String> = remarks.collect();
        let entries = entries(lines);
        let longest = entries.iter().map(|entry| match entry {
            Entry::Heading(text) => CHAR_WIDTH * text.chars().count() as i32,
            Entry::Line(line) => {
                let chars = line.label.chars().count().min(LEGEND_MAX_CHARS) as i32;
                LEGEND_SAMPLE + CHAR_WIDTH * chars
            }
        });
        let column = longest.max().unwrap_or(0);
        let columns = if form == Form::Narrow { (width / column.max(1)).clamp(1, 2) } else { 1 };
        let count = entries.len() as i32;
        let beside = if form == Form::Wide { column + 8 } else { 0 };
        let across = width - beside - MARGIN - Y_LABELS - RIGHT_MARGIN;
        let x = thinned(&self.x, self.x_label, across);
        let layout = Layout {
            form,
            title_height: 12 + TITLE_LINE * title.len() as i32,
            legend: column,
            columns,
            legend_height: 16 + LEGEND_LINE * ((count + columns - 1) / columns),
            body,
            foot: REMARK_LINE * remarks.len() as i32,
            bar_step: bars::step(lines, &x, across),
            x,
        };
        let mut svg = String::new();
        {
            let size = (width as u32, layout.height() as u32);
            let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            let drawn = draw_on(&root, self, &layout, (&title, &remarks), (lines, &entries));
            let drawn = drawn.and_then(|()| root.present());
            drawn.map_err(|e| ReportError::Draw { plot: self.name, reason: e.to_string() })?;
        }
        Ok(themed(&svg, self.title, form))
    }
}

/// Heights and widths of a plot's parts, in pixels.
struct Layout {
    form: Form,
    title_height: i32,
    /// Width of a column of the legend.
    legend: i32,
    columns: i32,
    legend_height: i32,
    /// Least height of axes and lines.
    body: i32,
    foot: i32,
    /// The horizontal axis, with as many labels as there is room for.
    x: Axis,
    /// From one line's bars to the next one's, in the axis's positions.
    bar_step: f64,
}

/// The axis with every label, or every second, or third, so that none reaches its neighbour on so many pixels.
fn thinned(axis: &Axis, label: Label<'_>, across: i32) -> Axis {
    let half = |tick: &f64| CHAR_WIDTH * label(tick).chars().count() as i32 / 2;
    let apart = |pair: &[f64]| {
        let [from, to] = [pair[0], pair[1]].map(|tick| axis.map(&tick, (0, across)));
        to - from >= half(&pair[0]) + half(&pair[1]) + LABEL_GAP
    };
    let every = |step: usize| axis.ticks.iter().copied().step_by(step).collect::<Vec<_>>();
    let fitting = (1..axis.ticks.len()).map(every).find(|ticks| ticks.windows(2).all(apart));
    Axis { ticks: fitting.unwrap_or_else(|| every(axis.ticks.len().max(1))), ..axis.clone() }
}

impl Layout {
    /// Of axes and lines, and of the legend where it is beside them.
    fn middle(&self) -> i32 {
        match self.form {
            Form::Wide => self.body.max(self.legend_height),
            Form::Narrow => self.body,
        }
    }

    fn height(&self) -> i32 {
        let below = if self.form == Form::Narrow { self.legend_height } else { 0 };
        self.title_height + self.middle() + below + self.foot + 6
    }
}

fn draw_on(
    root: &Area<'_>,
    frame: &Frame<'_>,
    layout: &Layout,
    (title, remarks): (&[String], &[String]),
    (lines, entries): (&[Series], &[Entry<'_>]),
) -> Drawn {
    root.fill(&SURFACE)?;
    let text = |size: u32, colour: &RGBColor| (FONT, size).into_font().color(colour);
    for (i, line) in title.iter().enumerate() {
        root.draw_text(line, &text(TITLE_SIZE, &INK), (16, 12 + TITLE_LINE * i as i32))?;
    }
    for (i, remark) in remarks.iter().enumerate() {
        let at = (16, layout.height() - layout.foot + REMARK_LINE * i as i32 - 6);
        root.draw_text(remark, &text(TEXT_SIZE, &SUBTLE), at)?;
    }
    let (_, body) = root.split_vertically(layout.title_height);
    let (body, rest) = body.split_vertically(layout.middle());
    let (width, _) = layout.form.size();
    let (left, legend) = match layout.form {
        Form::Wide => body.split_horizontally(width - layout.legend - 8),
        Form::Narrow => (body, rest),
    };
    if lines.is_empty() {
        let middle = Pos::new(HPos::Center, VPos::Center);
        let (w, h) = left.dim_in_pixel();
        let at = (w as i32 / 2, h as i32 / 2);
        return left.draw_text("nothing was measured", &text(TEXT_SIZE, &SUBTLE).pos(middle), at);
    }
    let mut chart = ChartBuilder::on(&left)
        .margin(MARGIN)
        .margin_right(RIGHT_MARGIN)
        .x_label_area_size(48)
        .y_label_area_size(Y_LABELS)
        .build_cartesian_2d(layout.x.clone(), frame.y.clone())?;
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
    let with_bars = lines.iter().filter(|line| !line.bars.is_empty());
    let middle = with_bars.clone().count().saturating_sub(1) as f64 / 2.0;
    for (nth, line) in with_bars.enumerate() {
        let style = colour(line).stroke_width(1);
        let end = || PathElement::new([(-2, 0), (2, 0)], style);
        let bars = bars::beside(line, (nth as f64 - middle) * layout.bar_step);
        chart.draw_series(bars.iter().map(|bar| PathElement::new(*bar, style)))?;
        chart.draw_series(bars.iter().flatten().map(|at| EmptyElement::at(*at) + end()))?;
    }
    // Artefacts lie below what they are not to hide.
    for line in Of::ALL.iter().rev().flat_map(|of| lines.iter().filter(move |l| l.of == *of)) {
        let style = stroke(line);
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
    draw_legend(&legend, entries, layout)
}

fn draw_legend(area: &Area<'_>, entries: &[Entry<'_>], layout: &Layout) -> Drawn {
    let at = Pos::new(HPos::Left, VPos::Center);
    let style = (FONT, TEXT_SIZE).into_font().color(&INK).pos(at);
    let heading = (FONT, TEXT_SIZE).into_font().color(&SUBTLE).pos(at);
    let columns = layout.columns;
    let rows = (entries.len() as i32 + columns - 1) / columns;
    let (indent, step) = match layout.form {
        Form::Wide => (0, layout.legend),
        Form::Narrow => (16, layout.form.size().0 / columns),
    };
    for (i, entry) in entries.iter().enumerate() {
        let (column, row) = (i as i32 / rows, i as i32 % rows);
        let (x, y) = (indent + step * column, 14 + LEGEND_LINE * row);
        let line = match entry {
            Entry::Heading(text) => {
                area.draw_text(text, &heading, (x + 4, y))?;
                continue;
            }
            Entry::Line(line) => line,
        };
        let sample = [(x + 4, y), (x + 40, y)];
        match DASHES[line.dash] {
            None => area.draw(&PathElement::new(sample, stroke(line)))?,
            Some((dash, gap)) => {
                area.draw(&DashedPathElement::new(sample, dash, gap, stroke(line)))?;
            }
        }
        area.draw(&marker((x + 22, y), line))?;
        let label = if line.label.chars().count() > LEGEND_MAX_CHARS {
            line.label.chars().take(LEGEND_MAX_CHARS - 1).chain(['…']).collect()
        } else {
            line.label.clone()
        };
        area.draw_text(&label, &style, (x + 48, y))?;
    }
    Ok(())
}

fn colour(line: &Series) -> RGBColor {
    let (r, g, b) = line.colour;
    RGBColor(r, g, b)
}

/// Artefacts are thin.
fn stroke(line: &Series) -> ShapeStyle {
    colour(line).stroke_width(if line.of == Of::Artefact { 1 } else { 2 })
}

type Marker<C, DB> = ComposedElement<C, DB, Polygon<(i32, i32)>, PathElement<(i32, i32)>>;

/// A marker of a constant size in pixels, ringed in the surface's colour so that markers on
/// crossing lines stay apart. Those of artefacts are hollow.
fn marker<C, DB: DrawingBackend>(at: C, line: &Series) -> Marker<C, DB> {
    let corners = line.shape.corners();
    let ring: Vec<_> = corners.iter().chain(corners.first()).copied().collect();
    let (fill, edge) = match line.of {
        Of::Artefact => (SURFACE, colour(line)),
        _ => (colour(line), SURFACE),
    };
    EmptyElement::at(at)
        + Polygon::new(corners, fill.filled())
        + PathElement::new(ring, edge.stroke_width(1))
}

/// Lines of at most `chars` characters, cut between words.
pub(super) fn wrapped(text: &str, chars: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("never empty");
        if last.is_empty() {
            *last = word.into();
        } else if last.chars().count() + 1 + word.chars().count() <= chars {
            *last += " ";
            *last += word;
        } else {
            lines.push(word.into());
        }
    }
    lines
}

/// Adds the dark screen's colours, a title for screen readers, and the form as a class.
fn themed(svg: &str, title: &str, form: Form) -> String {
    let mut style = String::from("<style>@media screen and (prefers-color-scheme: dark) {");
    for (light, dark) in DARK {
        for attribute in ["fill", "stroke"] {
            style += &format!(".plot [{attribute}=\"{light}\"]{{{attribute}:{dark}}}");
        }
    }
    style += "}</style>";
    let title = title.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
    let labelled =
        format!("<svg class=\"plot {}\" role=\"img\" aria-label=\"{title}\" ", form.name());
    let svg = svg.replacen("<svg ", &labelled, 1);
    match svg.find(">\n") {
        Some(end) => format!("{}\n{style}{}", &svg[..=end], &svg[end + 1..]),
        None => svg,
    }
}

#[cfg(test)]
mod tests {
    use super::super::plot::latency_svg;
    use super::super::row::tests::sample;
    use super::*;

    #[test]
    fn colours_are_those_with_a_dark_counterpart() {
        let mut results = sample("cuda:X");
        for row in &mut results.results {
            row.artefact = Some("so".into());
        }
        for svg in [latency_svg(&sample("cuda:X")).unwrap(), latency_svg(&results).unwrap()] {
            let (_, drawing) = svg.split_once("</style>").unwrap();
            for (at, _) in drawing.match_indices("=\"#") {
                let colour = &drawing[at + 2..at + 9];
                assert!(DARK.iter().any(|(light, _)| *light == colour), "{colour}");
            }
        }
    }

    #[test]
    fn lines_are_cut_between_words() {
        assert_eq!(wrapped("a bc  def", 4), ["a bc", "def"]);
        assert_eq!(wrapped("longer than that", 3), ["longer", "than", "that"]);
        assert_eq!(wrapped("", 3), [""]);
    }

    #[test]
    fn labels_are_as_many_as_there_is_room_for() {
        let axis = |n: u32| Axis { low: 0.0, high: 10.0, ticks: (0..n).map(f64::from).collect() };
        let count = |n, across| thinned(&axis(n), &|_| "16 KiB".into(), across).ticks.len();
        // 48 pixels a label and 8 between two: every one of ten fits on 560, every second on 280.
        let counts = [(0, 100), (1, 1), (10, 560), (10, 559), (10, 280), (10, 279), (10, 40)];
        assert_eq!(counts.map(|(n, across)| count(n, across)), [0, 1, 10, 5, 5, 4, 1]);
    }

    #[test]
    fn a_title_stays_one_attribute() {
        let svg = themed("<svg width=\"1\">\n</svg>", "a \"b\" <c> & d", Form::Narrow);
        let wanted = "<svg class=\"plot narrow\" role=\"img\" aria-label=\"a &quot;b&quot; &lt;c> \
                      &amp; d\" width=\"1\">\n<style>";
        assert!(svg.starts_with(wanted), "{svg}");
    }
}
