//! What `--tune` prints.

use std::fmt::Write;

use bellpush::transport::{Choice, Machine, Ranges};
use bellpush_cli::report::size;

use crate::bench::measure::Callers;

/// Auto beside the best fixed path, at one size.
pub struct Beside {
    pub scope: &'static str,
    pub bytes: u64,
    pub best: Choice,
    pub best_ns: f64,
    /// Of the same passes, those of its first turn and of its second: how far apart two of the same are.
    pub two_ns: [f64; 2],
    pub auto_ns: f64,
}

impl Beside {
    fn times(&self) -> f64 {
        self.auto_ns / self.best_ns
    }

    /// The longer one of the best path's two over the shorter one.
    fn apart(&self) -> f64 {
        let [one, other] = self.two_ns;
        (one / other).max(other / one)
    }
}

/// What counts as level.
const LEVEL: f64 = 1.05;

/// The ranges, the comparison with its worst row, and notes.
pub fn render(
    machine: &Machine,
    scopes: &[(&'static str, Callers)],
    tables: &[Ranges],
    rows: &[Beside],
    notes: &[String],
) -> String {
    let mut text = format!("{machine}\n\n{:<8} {:>10} path\n", "scope", "up to");
    let mut line = |args: std::fmt::Arguments| _ = writeln!(text, "{args}"); // a String takes everything
    for ((scope, _), table) in scopes.iter().zip(tables) {
        for range in table.ranges() {
            let up_to = range.up_to.map_or("-".into(), |bytes| size::print(bytes.into()));
            line(format_args!("{scope:<8} {up_to:>10} {}", range.path));
        }
    }
    line(format_args!(
        "\nauto beside the best fixed path, which has two turns: medians from put to completion, us"
    ));
    let heads = ["scope", "size", "best", "us", "auto", "times", "apart"];
    let [scope, bytes, best, us, auto, times, apart] = heads;
    line(format_args!("{scope:<8} {bytes:>10} {best:<15} {us:>9} {auto:>9} {times:>6} {apart:>6}"));
    for row in rows {
        let (us, auto) = (row.best_ns / 1e3, row.auto_ns / 1e3);
        let Beside { scope, bytes, best, .. } = row;
        let (bytes, times, apart) = (size::print(*bytes), row.times(), row.apart());
        line(format_args!(
            "{scope:<8} {bytes:>10} {best:<15} {us:>9.2} {auto:>9.2} {times:>6.3} {apart:>6.3}"
        ));
    }
    let level = |ratio: fn(&Beside) -> f64| rows.iter().filter(|row| ratio(row) <= LEVEL).count();
    line(format_args!(
        "within 5 %: auto and the best path at {} of {} sizes, the best path's two turns at {}",
        level(Beside::times),
        rows.len(),
        level(Beside::apart)
    ));
    if let Some(worst) = rows.iter().max_by(|a, b| a.times().total_cmp(&b.times())) {
        let (scope, bytes) = (worst.scope, size::print(worst.bytes));
        line(format_args!("worst: {:.3} times the best, {scope}, {bytes}", worst.times()));
    }
    for note in notes {
        line(format_args!("note: {note}"));
    }
    text
}
