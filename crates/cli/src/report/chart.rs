//! Plots of any quantity over any other, in the style of the results' plots.

use super::ReportError;
use super::frame::{Axis, Form, Frame};
use super::plot::{
    decades, extent, from_zero, ratios, sizes, tick_gb_s, tick_ratio, tick_size, tick_time,
};
use super::series::{DASHES, Of, Series, Shape};

/// Quantity of an axis, which also determines the axis's scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Bytes, in powers of two.
    Bytes,
    /// A count, in powers of two.
    Count,
    /// Nanoseconds, in powers of ten.
    TimeNs,
    /// Bandwidth in 10⁹ bytes per second, from zero.
    GbPerS,
    /// A ratio, logarithmic: half as much is as far from 1 as twice.
    Ratio,
}

/// One line. Points that the axis cannot show (zero on a logarithmic axis) are omitted.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Label in the legend.
    pub label: String,
    /// Points in the axes' quantities, ascending.
    pub points: Vec<(f64, f64)>,
    /// Bars around points: position, least and greatest value.
    pub bars: Vec<(f64, f64, f64)>,
}

/// A plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Title above the plot.
    pub title: String,
    /// Name below the horizontal axis.
    pub x_name: &'static str,
    /// Quantity of the horizontal axis.
    pub x: Quantity,
    /// Quantity of the vertical axis.
    pub y: Quantity,
    /// The lines. Colour, dash and marker of a line depend on its position only.
    pub lines: Vec<Line>,
    /// Remarks below the plot, one per line.
    pub remarks: Vec<String>,
}

/// Colours for which `plot` has dark counterparts.
const COLOURS: [(u8, u8, u8); 4] =
    [(0x00, 0x72, 0xb2), (0xd5, 0x5e, 0x00), (0x00, 0x9e, 0x73), (0x6e, 0x6e, 0x6e)];
const SHAPES: [Shape; 5] = [Shape::Circle, Shape::Square, Shape::Up, Shape::Diamond, Shape::Down];

impl Quantity {
    fn position(self, value: f64) -> Option<f64> {
        let position = match self {
            Self::Bytes | Self::Count => value.log2(),
            Self::TimeNs | Self::Ratio => value.log10(),
            Self::GbPerS => value,
        };
        position.is_finite().then_some(position)
    }

    fn axis(self, extent: (f64, f64)) -> Axis {
        match self {
            Self::Bytes | Self::Count => sizes(extent),
            Self::TimeNs => decades(extent),
            Self::GbPerS => from_zero(extent),
            Self::Ratio => ratios(extent),
        }
    }

    fn label(self) -> fn(&f64) -> String {
        match self {
            Self::Bytes => tick_size,
            Self::Count => |v| format!("{:.0}", v.exp2()),
            Self::TimeNs => |v| tick_time(10f64.powf(*v)),
            Self::GbPerS => |v| tick_gb_s(*v),
            Self::Ratio => |v| tick_ratio(10f64.powf(*v)),
        }
    }
}

impl Chart {
    /// The plot as SVG.
    ///
    /// # Errors
    /// [`ReportError::Draw`] for errors of the plotting library.
    pub fn svg(&self) -> Result<String, ReportError> {
        self.draw(|frame, lines| frame.svg(lines, Form::Wide))
    }

    /// The plot for a page: wide, and narrow for a phone, of which the page's style shows one.
    ///
    /// # Errors
    /// [`ReportError::Draw`] for errors of the plotting library.
    pub fn figure(&self) -> Result<String, ReportError> {
        self.draw(|frame, lines| frame.figure(lines))
    }

    fn draw(
        &self,
        draw: impl Fn(&Frame<'_>, &[Series]) -> Result<String, ReportError>,
    ) -> Result<String, ReportError> {
        let mut lines = Vec::new();
        for (i, line) in self.lines.iter().enumerate() {
            let place = |&(x, y)| Some((self.x.position(x)?, self.y.position(y)?));
            let bar = |&(x, low, high)| {
                Some((self.x.position(x)?, self.y.position(low)?, self.y.position(high)?))
            };
            lines.push(Series {
                label: line.label.clone(),
                colour: COLOURS[i % COLOURS.len()],
                shape: SHAPES[i % SHAPES.len()],
                dash: i / COLOURS.len() % DASHES.len(),
                of: Of::Unsaid,
                marks: Vec::new(),
                points: line.points.iter().filter_map(place).collect(),
                bars: line.bars.iter().filter_map(bar).collect(),
            });
        }
        lines.retain(|line| !line.points.is_empty());
        let frame = Frame {
            name: "chart",
            title: &self.title,
            remarks: &self.remarks,
            x: self.x.axis(extent(&lines, |(x, _)| x)),
            x_name: self.x_name,
            x_label: &self.x.label(),
            y: self.y.axis(extent(&lines, |(_, y)| y)),
            y_label: &self.y.label(),
        };
        draw(&frame, &lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(y: Quantity, lines: Vec<Line>) -> Chart {
        let title = "a title".to_owned();
        Chart { title, x_name: "size", x: Quantity::Bytes, y, lines, remarks: vec!["so".into()] }
    }

    #[test]
    fn lines_names_and_ticks_are_there() {
        let line = |label: &str, y: f64| Line {
            label: label.into(),
            points: vec![(8.0, y), (4096.0, 3.0 * y)],
            bars: Vec::new(),
        };
        let svg = chart(Quantity::TimeNs, vec![line("pull", 900.0), line("staged", 2500.0)]);
        let svg = svg.svg().unwrap();
        for text in ["a title", "size", "pull", "staged", "4 KiB", "1 µs", "so"] {
            assert!(svg.lines().any(|l| l == text), "{text} is missing");
        }
        let many = (0..9).map(|i| line(&format!("line {i}"), 1.0 + f64::from(i))).collect();
        assert!(chart(Quantity::GbPerS, many).svg().unwrap().contains("line 8"));
    }

    /// A row that is three times as slow does not press the others onto one line.
    #[test]
    fn ratios_are_as_far_from_one_either_way() {
        let line = |label: &str, y: f64| Line {
            label: label.into(),
            points: vec![(8.0, y)],
            bars: Vec::new(),
        };
        let ticks = |ratios: &[f64]| {
            let lines = ratios.iter().map(|&ratio| line("a", ratio)).collect();
            let svg = chart(Quantity::Ratio, lines).svg().unwrap();
            let lines: Vec<&str> = svg.lines().collect();
            let y = |text: &str| {
                let at = lines.iter().position(|l| *l == text).expect(text);
                let y = lines[at - 1].split(" y=\"").nth(1).unwrap().split('"').next().unwrap();
                y.parse::<f64>().unwrap()
            };
            let [least, one, most] = ["0.5", "1", "2"].map(y);
            assert!((least - one - (one - most)).abs() <= 2.0, "{least}, {one}, {most}");
        };
        ticks(&[3.0, 1.1]);
        ticks(&[0.3]);
        let near = chart(Quantity::Ratio, vec![line("a", 1.03), line("b", 0.95)]).svg().unwrap();
        for tick in ["0.96", "0.98", "1", "1.02", "1.04"] {
            assert!(near.lines().any(|l| l == tick), "{tick}: {near}");
        }
        for odd in [1.0, 1e300, 1e-300] {
            assert!(chart(Quantity::Ratio, vec![line("a", odd)]).svg().unwrap().contains("\n1\n"));
        }
    }

    /// Labels of sizes stay apart beside long names and on a phone, however many sizes there are.
    #[test]
    fn labels_of_sizes_do_not_cross() {
        // Of a character, an upper estimate: the font's size is 12.9 pixels.
        const ADVANCE: f64 = 8.0;
        for (sizes, name) in [(2, 40), (4, 40), (11, 44), (12, 8), (13, 44), (24, 44), (30, 4)] {
            let points = (0..sizes).map(|i| (f64::from(8 << i), 1.1)).collect();
            let label = "x".repeat(name);
            let line = Line { label, points, bars: Vec::new() };
            let svg = chart(Quantity::Ratio, vec![line]).figure().unwrap();
            for form in svg.split("<svg ").skip(1) {
                let lines: Vec<&str> = form.lines().collect();
                let mut found = Vec::new();
                for (nth, text) in lines.iter().enumerate() {
                    if !text.ends_with(" B") && !text.ends_with("iB") {
                        continue;
                    }
                    let x =
                        lines[nth - 1].split(" x=\"").nth(1).unwrap().split('"').next().unwrap();
                    let half = ADVANCE * text.chars().count() as f64 / 2.0;
                    found.push((x.parse::<f64>().unwrap(), half));
                }
                found.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert!(found.len() >= 2, "{sizes} sizes: {found:?}");
                for pair in found.windows(2) {
                    let [(from, a), (to, b)] = [pair[0], pair[1]];
                    assert!(from + a < to - b, "{sizes} sizes, names of {name}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_shown_is_left_out() {
        let zero = Line {
            label: "nothing".into(),
            points: vec![(0.0, 0.0), (8.0, 0.0)],
            bars: Vec::new(),
        };
        let svg = chart(Quantity::TimeNs, vec![zero]).svg().unwrap();
        assert!(!svg.contains("nothing\n") && svg.contains("nothing was measured"));
    }
}
