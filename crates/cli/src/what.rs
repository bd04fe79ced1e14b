//! `bellpush sim --what`: a table of operations under every combination of some values.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write;

use bellpush::pcie::sim::{Known, PathModel, Question, SweepRow, TestBedSpec};
use bellpush::pcie::text::one_line;
use bellpush_cli::report::chart::{Chart, Line, Quantity};
use bellpush_cli::report::human::decimals;
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Most lines of a plot that can be told apart.
const MOST_LINES: usize = 12;

/// The answer for one topology.
pub struct Answer {
    name: String,
    question: Question,
    /// As it is, then every combination.
    rows: Vec<Vec<SweepRow>>,
    combinations: Vec<Vec<f64>>,
}

impl Answer {
    /// Simulates what is not `known`, and writes the table to `out` as its rows come.
    pub fn new(
        spec: TestBedSpec<'_>,
        text: &str,
        asked: (&[PathModel], &[u32], u32),
        known: &mut Known,
        out: Option<&mut dyn Write>,
    ) -> Result<Self> {
        let question: Question = text.parse().map_err(|e| format!("--what {e}"))?;
        let combinations = question.combinations();
        let name = one_line(&spec.topology.name);
        let mut answer = Self { name, question, rows: Vec::new(), combinations };
        let mut base: Vec<SweepRow> = Vec::new();
        let mut written = Ok(());
        let mut out = out;
        let mut each = |i: usize, rows: &[SweepRow]| {
            let Some(out) = out.as_deref_mut().filter(|_| written.is_ok()) else { return };
            if i == 0 {
                base = rows.to_vec();
                written = out.write_all(answer.head().as_bytes());
            }
            let text = answer.text(i, rows, &base);
            written = written.as_ref().map_or(Ok(()), |()| out.write_all(text.as_bytes()));
        };
        let rows = answer.question.answer(spec, asked, known, &mut each);
        answer.rows = rows.map_err(|e| format!("--what {e}"))?;
        written?;
        Ok(answer)
    }

    /// Values of a combination as they are written; dashes for the topology as it is.
    fn settings(&self, i: usize) -> Vec<String> {
        let axes = self.question.axes.iter().enumerate();
        let value = |(k, axis): (usize, &bellpush::pcie::sim::Axis)| {
            i.checked_sub(1).map_or("-".to_owned(), |i| axis.text(self.combinations[i][k]))
        };
        axes.map(value).collect()
    }

    /// A row for every combination, path and size.
    pub fn json(&self) -> Vec<Value> {
        let mut all = Vec::new();
        for (i, rows) in self.rows.iter().enumerate() {
            let settings: serde_json::Map<String, Value> = self
                .question
                .axes
                .iter()
                .zip(self.settings(i))
                .filter(|_| i > 0)
                .map(|(axis, value)| (axis.name.clone(), json!(value)))
                .collect();
            for (row, base) in rows.iter().zip(&self.rows[0]) {
                let both = row.prediction.zip(base.prediction);
                all.push(json!({
                    "topology": self.name, "settings": settings, "path": row.path,
                    "bytes": row.bytes, "class": row.distance,
                    "completed_ns": row.prediction.map(|p| p.completed_ns),
                    "gb_per_s": row.prediction.map(|p| p.gb_per_s),
                    "time_ratio": both.map(|(a, b)| a.completed_ns / b.completed_ns),
                    "rate_ratio": both.map(|(a, b)| a.gb_per_s / b.gb_per_s),
                    "why_not": row.why_not,
                }));
            }
        }
        all
    }

    /// Whether peer reads are one of its numbers, so that they pass or not.
    pub fn asks_of_reads(&self) -> bool {
        self.question.axes.iter().any(|axis| axis.name == "p2p_reads")
    }

    fn widths(&self) -> Vec<usize> {
        self.question.axes.iter().map(|a| a.name.len().max(8)).collect()
    }

    fn cells(&self, values: &[String]) -> String {
        let all = values.iter().zip(self.widths()).map(|(v, w)| format!("{v:>w$}"));
        all.collect::<Vec<_>>().join(" ")
    }

    /// The head of the table.
    fn head(&self) -> String {
        let names: Vec<String> = self.question.axes.iter().map(|a| a.name.clone()).collect();
        format!(
            "{}, model: every combination of {}\n{} {:>15} {:>9} {:>5} {:>13} {:>6} {:>8} {:>6}\n",
            self.name,
            names.join(", "),
            self.cells(&names),
            "path",
            "bytes",
            "class",
            "completed us",
            "x",
            "GB/s",
            "x"
        )
    }

    /// Rows of the table: of a combination, beside those of the topology as it is.
    fn text(&self, i: usize, rows: &[SweepRow], base: &[SweepRow]) -> String {
        let mut out = String::new();
        for (row, base) in rows.iter().zip(base) {
            let (path, bytes, class) = (row.path.name(), row.bytes, row.distance);
            let settings = self.cells(&self.settings(i));
            let _ = write!(out, "{settings} {path:>15} {bytes:>9} {class:>5}");
            let Some(p) = row.prediction else {
                let _ = writeln!(out, "  {}", row.why_not.as_deref().unwrap_or_default());
                continue;
            };
            let ratio = |of: fn(&bellpush::pcie::sim::Prediction) -> f64| {
                base.prediction.map_or("-".into(), |b| format!("{:.2}", of(&p) / of(&b)))
            };
            let _ = writeln!(
                out,
                " {:>13.2} {:>6} {:>8} {:>6}",
                p.completed_ns / 1000.0,
                ratio(|p| p.completed_ns),
                decimals(p.gb_per_s, 2),
                ratio(|p| p.gb_per_s)
            );
        }
        out
    }

    /// Rates of the largest size over the first number that takes several values, a line for every
    /// path and every combination of the rest.
    pub fn svg(&self, in_flight: u32) -> Result<String> {
        let axes = &self.question.axes;
        let several = |a: &bellpush::pcie::sim::Axis| !a.is_switch() && a.values.len() > 1;
        let Some(x) = axes.iter().position(several) else {
            let why = "--svg: --what has no number of several values to draw over";
            return Err(why.into());
        };
        let largest = self.rows[0].iter().map(|r| r.bytes).max().unwrap_or(0);
        let mut lines: Vec<Line> = Vec::new();
        for (i, rows) in self.rows.iter().enumerate().skip(1) {
            let rest: Vec<String> = (axes.iter().zip(self.settings(i)).enumerate())
                .filter(|(k, _)| *k != x)
                .map(|(_, (axis, value))| format!("{}={value}", axis.name))
                .collect();
            for row in rows.iter().filter(|r| r.bytes == largest) {
                let Some(p) = row.prediction else { continue };
                let label = [&[row.path.name().to_owned()], &rest[..]].concat().join(", ");
                let point = (self.combinations[i - 1][x], p.gb_per_s);
                match lines.iter_mut().find(|l| l.label == label) {
                    Some(line) => line.points.push(point),
                    None => lines.push(Line { label, points: vec![point], bars: Vec::new() }),
                }
            }
        }
        let mut remarks = vec![format!("{largest} B, {in_flight} in flight; the model's numbers.")];
        if lines.is_empty() {
            return Err("--svg: nothing to draw: no path of these exists with these values".into());
        }
        if lines.len() > MOST_LINES {
            remarks.push(format!("The first {MOST_LINES} of {} lines.", lines.len()));
            lines.truncate(MOST_LINES);
        }
        for line in &mut lines {
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        let name = &axes[x].name;
        let chart = Chart {
            title: format!("{}: GB/s of payload over {name}", self.name),
            x_name: "value",
            x: Quantity::Count,
            y: Quantity::GbPerS,
            lines,
            remarks,
        };
        Ok(chart.svg()?)
    }
}
