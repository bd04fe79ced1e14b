//! The table of a comparison.

use std::fmt::Write as _;

use super::rows::{Better, Key};
use super::{Comparison, Interval};

/// Longest name that stands before its values; a longer one stands above them.
const MOST: usize = 72;
/// What the columns mean.
const LEGEND: &str = "A before, B after: medians. B÷A above 1: a longer time, a higher rate. Least, most: any run of \
                      each. ?: too few runs";

/// The unit of a measure; of one that is called by its unit, that.
fn unit(measure: &str) -> &str {
    match measure {
        "latency_ns_p50" | "latency_ns_p99" | "one_way_ns_p50" | "one_way_ns_p99"
        | "completed_ns" | "delivered_ns" => "ns",
        "bandwidth_gb_s" | "gb_per_s" => "GB/s",
        "messages_per_us" => "1/us",
        "all_reduce_us" => "us",
        "ratio" | "times_off" => "times",
        unit => unit,
    }
}

impl Comparison {
    pub(super) fn text(&self, brief: bool, failed: Option<(f64, &[usize])>) -> String {
        let names: Vec<String> = self.rows.iter().map(|r| r.key.text(&self.common)).collect();
        let is_shown = |verdict: &str| !brief || matches!(verdict, "better" | "worse");
        let widths = names.iter().map(|n| n.chars().count()).filter(|n| *n <= MOST);
        let width = widths.max().unwrap_or(0).max(3);
        let mut out = String::new();
        for (side, files) in ["A, before: ", "B, after:  "].into_iter().zip(&self.files) {
            let _ = writeln!(out, "{side}{}", files.join(", "));
        }
        // A field that some rows lack is left out of names, too, where that leaves them apart.
        let has_all =
            |field: &&(String, String)| self.rows.iter().all(|r| r.key.row.contains(field));
        let shared: Vec<_> = self.common.iter().filter(has_all).cloned().collect();
        if !shared.is_empty() && !self.rows.is_empty() {
            let all = Key { row: shared, measure: String::new() };
            let _ = writeln!(out, "every row:  {}", all.text(&[]));
        }
        let _ = writeln!(
            out,
            "\n{:<width$} {:<15} {:<5} {:<6} {:>11} {:>11} {:>7} {:>16}  B is",
            "row", "measure", "unit", "better", "A, before", "B, after", "B÷A", "B÷A least, most"
        );
        for (row, name) in self.rows.iter().zip(&names).filter(|(row, _)| is_shown(row.verdict())) {
            let interval = row.interval.map_or("-".into(), interval);
            let mut name = name.as_str();
            if name.chars().count() > width {
                let _ = writeln!(out, "{name}");
                name = "";
            }
            let unit = unit(&row.key.measure);
            let measure = if unit == row.key.measure { "median" } else { &row.key.measure };
            let better = match row.better {
                Better::Less => "less",
                Better::More => "more",
            };
            let _ = writeln!(
                out,
                "{name:<width$} {measure:<15} {unit:<5} {better:<6} {:>11} {:>11} {:>7} {interval:>16}  {}",
                number(row.before),
                number(row.after),
                times(row.ratio),
                row.verdict()
            );
        }
        let _ = writeln!(out, "{LEGEND}");
        let count = |verdict: &str| self.rows.iter().filter(|r| r.verdict() == verdict).count();
        let [better, worse, same, unknown] = ["better", "worse", "same", "?"].map(count);
        let _ = writeln!(out, "{better} better, {worse} worse, {same} the same, {unknown} unknown");
        self.notes.iter().for_each(|note| _ = writeln!(out, "note: {note}"));
        for name in self.names(&self.unverified) {
            let _ = writeln!(out, "NOT VERIFIED: {name}");
        }
        if let Some((limit, failed)) = failed {
            for name in self.names(&self.missing) {
                let _ = writeln!(out, "MISSING: {name}");
            }
            let limit = (1e8 * limit).round() / 1e6; // as it was given
            let _ = write!(out, "{} worse by more than {limit} %", failed.len());
            let unjudged = format!(", {unknown} not judged");
            out += if unknown > 0 { &unjudged } else { "" };
            out.push('\n');
            let noise = self.noise.filter(|noise| *noise > limit / 100.0 && !failed.is_empty());
            if let Some(noise) = noise {
                let _ = writeln!(
                    out,
                    "note: {limit} % is less than the noise of ±{:.1} %: such rows may be chance; give more runs",
                    100.0 * noise
                );
            }
            for &i in failed {
                let (row, name) = (&self.rows[i], &names[i]);
                let _ = match row.loss() {
                    loss if loss < 1e6 => {
                        writeln!(out, "  {name} {}: {:.1} % worse", row.key.measure, 100.0 * loss)
                    }
                    loss => {
                        writeln!(
                            out,
                            "  {name} {}: worse by a factor of {loss:.1e}",
                            row.key.measure
                        )
                    }
                };
            }
        }
        out
    }
}

/// The least and the greatest ratio; from the least on where nothing bounds it.
fn interval(Interval { low, high }: Interval) -> String {
    match high {
        Some(high) => format!("[{}, {}]", times(low), times(high)),
        None if low == 0.0 => "any".to_owned(),
        None => format!("{} or more", times(low)),
    }
}

/// A ratio, in as many characters as its column has where it is none that machines give.
pub(super) fn times(ratio: f64) -> String {
    match ratio {
        v if v != 0.0 && !(1e-3..1e4).contains(&v) => format!("{v:.1e}"),
        v => format!("{v:.3}"),
    }
}

fn number(value: f64) -> String {
    match value {
        // What would not fit its column, or be all zeros.
        v if v != 0.0 && !(1e-3..1e11).contains(&v) => format!("{v:.3e}"),
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.4}"),
    }
}
