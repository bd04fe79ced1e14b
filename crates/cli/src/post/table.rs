//! Rows of posting as a table and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::cases::Unit;
use super::measure::Line;

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Ns => "ns",
            Self::PerSecond => "M/s",
        }
    }
}

/// The table, with what was wrong; nothing but the GPU where there are no rows.
pub fn render(gpu: &str, lines: &[Line]) -> String {
    if lines.is_empty() {
        return format!("{gpu}\n");
    }
    let mut text = format!(
        "{gpu}: ns a put (of batches, a WQE) or millions of puts a second; g: this GPU's memory, h: pinned host\n\
         memory, of send queue, doorbell record and doorbell; floor: the same stores and fences alone\n"
    );
    let width = lines.iter().map(|line| line.case.name.len()).max().unwrap_or(0);
    let heads = ["unit", "median", "min", "max", "floor", "times"];
    let [unit, median, min, max, floor, times] = heads;
    let mut line = |name: &str, place: &str, cells: [&str; 6], end: &str| {
        let [unit, cells @ ..] = cells;
        let _ = write!(text, "{name:<width$} {place:<8} {unit:<4}"); // a String takes everything
        cells.iter().for_each(|cell| {
            let _ = write!(text, " {cell:>8}");
        });
        let _ = writeln!(text, "{end}");
    };
    line("row", "place", [unit, median, min, max, floor, times], "");
    for row in lines {
        let shape = row.case.shape;
        let floor = row.floor.map_or(String::new(), |floor| number(floor.median));
        let times = row.times_floor().map_or(String::new(), |times| format!("{times:.2}"));
        let measured = [row.row.median, row.row.min, row.row.max].map(number);
        let [median, min, max] = measured.each_ref().map(String::as_str);
        let end = row.wrong().map_or(String::new(), |wrong| format!("  NOT VERIFIED: {wrong}"));
        let cells = [shape.unit.name(), median, min, max, &floor, &times];
        line(row.case.name, row.case.place.name(), cells, &end);
    }
    text
}

pub fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// A row of the JSON result.
pub fn json(line: &Line) -> Value {
    let Line { case, size, row, floor } = line;
    json!({
        "row": case.name,
        "place": case.place.name(),
        "kernel": case.kernel,
        "blocks": size.blocks,
        "threads": size.threads,
        "qps": size.qps,
        "puts": u64::from(size.puts) * u64::from(size.qps),
        "unit": case.shape.unit.name(),
        "median": row.median,
        "min": row.min,
        "max": row.max,
        "drained": row.drained,
        "floor": floor.map(|floor| floor.median),
        "times_floor": line.times_floor(),
        "verified": line.verified(),
        "wrong": line.wrong().map(|wrong| wrong.to_string()),
    })
}
