//! The drawing of a comparison: ratios over the message size, or one row below the other.

use std::fmt::Write as _;

use bellpush_cli::report::chart::{Chart, Line, Quantity};

use super::rows::Key;
use super::table::times;
use super::{Comparison, Interval, Row};
use crate::cli::CliError;

/// Most lines of a plot that can be told apart.
const MOST_LINES: usize = 12;
/// Most rows that are drawn one below the other: a page of paper.
const MOST_ROWS: usize = 60;
/// Of a row, in pixels, and of the part for its name, its ratio, and the whole.
const ROW: f64 = 20.0;
const NAMES: f64 = 470.0;
const RATIOS: f64 = 360.0;
const WIDTH: f64 = 960.0;
const TOP: f64 = 56.0;
/// Greatest ratio over the size: an axis goes to the next power of ten.
const MOST_RATIO: f64 = 1e300;
/// Characters that a name has room for.
const NAME_CHARS: usize = 60;

const STYLE: &str = "text{fill:#1f2328}.more{fill:#57606a}.ground{fill:#fff}\
    .one{stroke:#8c959f}.same,.unknown{stroke:#57606a;fill:#57606a}\
    .better{stroke:#0072b2;fill:#0072b2}.worse{stroke:#d55e00;fill:#d55e00}\
    @media screen and (prefers-color-scheme:dark){text{fill:#e6edf3}.more{fill:#9ba6b2}\
    .ground{fill:#161b22}.same,.unknown{stroke:#9ba6b2;fill:#9ba6b2}\
    .better{stroke:#56b4e9;fill:#56b4e9}.worse{stroke:#ff9a4d;fill:#ff9a4d}}";

impl Comparison {
    /// The drawing as SVG: over the size where most rows have one.
    pub(super) fn svg(&self) -> Result<String, CliError> {
        let lines = self.lines();
        let sized = lines.iter().map(|line| line.points.len()).sum::<usize>();
        if 2 * sized > self.rows.len() { over_size(lines) } else { Ok(self.list()) }
    }

    /// Of rows that have message sizes: a line for what differs in nothing else.
    pub(super) fn lines(&self) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for row in &self.rows {
            let is_size = |field: &&(String, String)| field.0 == "size_bytes" || field.0 == "bytes";
            let size = row.key.row.iter().find(is_size).and_then(|f| f.1.parse::<f64>().ok());
            let Some(size) = size else { continue };
            let rest = Key {
                row: row.key.row.iter().filter(|f| !is_size(f)).cloned().collect(),
                measure: String::new(),
            };
            // A legend cuts long names: what tells most lines apart comes first.
            let label = format!("{} {}", row.key.measure, rest.text(&self.common));
            let at = lines.iter().position(|line| line.label == label).unwrap_or_else(|| {
                lines.push(Line { label, points: Vec::new(), bars: Vec::new() });
                lines.len() - 1
            });
            let drawn = |ratio: f64| ratio.clamp(1.0 / MOST_RATIO, MOST_RATIO);
            lines[at].points.push((size, drawn(row.ratio)));
            // A logarithmic axis has no place for 0, nor for what has no bound.
            let whole = row.interval.filter(|interval| interval.low > 0.0);
            let bar = whole.and_then(|it| Some((size, drawn(it.low), drawn(it.high?))));
            lines[at].bars.extend(bar);
        }
        lines
    }

    /// A row below the other: its ratio as a dot, its interval as a bar, a line where nothing changed.
    fn list(&self) -> String {
        let shown: Vec<&Row> = self.rows.iter().take(MOST_ROWS).collect();
        let ends = shown.iter().flat_map(|row| match row.interval {
            Some(Interval { low, high }) => [low, high.unwrap_or(row.ratio)],
            None => [row.ratio; 2],
        });
        let ends = ends.filter(|end| *end > 0.0);
        // As far to the left as to the right: half as much is as far as twice.
        let most = ends.map(|end| end.ln().abs()).fold(0.02, f64::max) * 1.05;
        let x = |ratio: f64| {
            let share = ratio.max(f64::MIN_POSITIVE).ln() / most;
            NAMES + RATIOS * (0.5 + 0.5 * share.clamp(-1.0, 1.0))
        };
        let left_out = self.rows.len() - shown.len();
        let height = TOP + ROW * shown.len() as f64 + if left_out > 0 { 28.0 } else { 12.0 };
        let mut svg = format!(
            "<svg class=\"plot\" xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"system-ui, sans-serif\" \
             font-size=\"12\">\n<style>{STYLE}</style>\n\
             <rect width=\"100%\" height=\"100%\" class=\"ground\"/>\n\
             <text x=\"16\" y=\"24\" font-size=\"16\">After by before</text>\n\
             <text x=\"16\" y=\"44\" class=\"more\">Of times, less is better; of rates, more. Bars: as \
             far as repetitions vary.</text>\n<line x1=\"{0}\" y1=\"{TOP}\" x2=\"{0}\" y2=\"{1}\" \
             class=\"one\"/>\n",
            x(1.0),
            TOP + ROW * shown.len() as f64
        );
        for (i, row) in shown.into_iter().enumerate() {
            let y = TOP + ROW * (i as f64 + 0.5);
            // Rows that have a name of their own need no more.
            let named = row.key.row.iter().find(|field| field.0 == "row").map(|f| f.1.clone());
            let name = named.unwrap_or_else(|| row.key.text(&self.common));
            let name = format!("{name} {}", row.key.measure);
            let class = match row.verdict() {
                "?" => "unknown",
                verdict => verdict,
            };
            let _ = writeln!(
                svg,
                "<text x=\"16\" y=\"{0}\">{1}</text><circle cx=\"{2:.1}\" cy=\"{y}\" r=\"4\" \
                 class=\"{class}\"/><text x=\"{3}\" y=\"{0}\" text-anchor=\"end\">{4} \
                 {5}</text>",
                y + 4.0,
                escaped(&name),
                x(row.ratio),
                WIDTH - 16.0,
                times(row.ratio),
                row.verdict(),
            );
            // What has no bound ends at the drawing's edge.
            if let Some(Interval { low, high }) = row.interval {
                let _ = writeln!(
                    svg,
                    "<line x1=\"{:.1}\" y1=\"{y}\" x2=\"{:.1}\" y2=\"{y}\" stroke-width=\"2\" \
                     class=\"{class}\"/>",
                    x(low),
                    x(high.unwrap_or(f64::MAX))
                );
            }
        }
        if left_out > 0 {
            let _ = writeln!(
                svg,
                "<text x=\"16\" y=\"{}\" class=\"more\">and {left_out} rows more</text>",
                height - 10.0
            );
        }
        svg + "</svg>"
    }
}

fn over_size(mut lines: Vec<Line>) -> Result<String, CliError> {
    let mut remarks = vec!["After by before: of times, less is better; of rates, more.".into()];
    if lines.iter().any(|line| !line.bars.is_empty()) {
        remarks.push("Bars: as far as repetitions vary; none where the least of one is 0.".into());
    }
    if lines.len() > MOST_LINES {
        remarks.push(format!("The first {MOST_LINES} of {} lines.", lines.len()));
        lines.truncate(MOST_LINES);
    }
    lines.iter_mut().for_each(|l| l.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let title = "After by before".to_owned();
    let (x, y) = (Quantity::Bytes, Quantity::Ratio);
    let chart = Chart { title, x_name: "message size", x, y, lines, remarks };
    chart.svg().map_err(|e| CliError::new(e, "this is a bug: please report it"))
}

/// As much of a name as there is room for, as text of an SVG.
fn escaped(name: &str) -> String {
    let name = bellpush_cli::report::human::printable(name);
    let short: String = match name.chars().count() > NAME_CHARS {
        true => name.chars().take(NAME_CHARS - 1).chain(['…']).collect(),
        false => name,
    };
    short.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
