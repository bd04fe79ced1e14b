//! Rows of `bellpush sim --validate`: copies on other machines, the other sizes of pcie-bench's
//! sweep, writes with and without an order, and every fitted row without itself.

use std::error::Error;

use bellpush::pcie::sim::{
    COPY_ROWS, CopyQuestion, LeftOut, Metric, NFP_SIZES, NfpHost, ORDER_ROWS, Params,
    leave_one_out, simulate_copy_row, simulate_host_row, simulate_order,
};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn error_percent(model: f64, measured: f64) -> f64 {
    (model / measured - 1.0) * 100.0
}

/// What was known of a row when the model said its number: docs/pcie.md, Errors, defines the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    /// A number of the model was fitted to it.
    Fitted,
    /// It was known when the mechanism was written; nothing was fitted to it.
    Known,
    /// It had been looked at before the model was asked; nothing was fitted to it.
    Seen,
    /// Nobody had looked at it before the model was asked.
    Predicted,
}

impl RowKind {
    const ALL: [Self; 4] = [Self::Predicted, Self::Known, Self::Seen, Self::Fitted];

    /// Of rows that nobody had looked at, unless they are fitted.
    pub const fn fitted(is_fitted: bool) -> Self {
        if is_fitted { Self::Fitted } else { Self::Predicted }
    }

    /// Of rows that are not fitted.
    pub const fn known(is_known: bool) -> Self {
        if is_known { Self::Known } else { Self::Predicted }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Known => "known before",
            Self::Seen => "seen before",
            Self::Predicted => "predicted",
        }
    }
}

/// Totals of compared rows: how many of each kind, and how many are how near.
pub fn totals(rows: &[Value]) -> String {
    let mut out = format!("{:<13} {:>5} {:>8} {:>8} {:>8}\n", "", "rows", "5 %", "10 %", "15 %");
    let mut line = |name: &str, is: &dyn Fn(&Value) -> bool| {
        let errors = rows.iter().filter(|row| is(&row["kind"])).map(|row| &row["error_percent"]);
        let errors: Vec<f64> = errors.map(|e| e.as_f64().map_or(f64::NAN, f64::abs)).collect();
        out += &format!("{name:<13} {:>5}", errors.len());
        for most in [5.0, 10.0, 15.0] {
            out += &format!(" {:>8}", errors.iter().filter(|e| **e <= most).count());
        }
        out.push('\n');
    };
    for kind in RowKind::ALL {
        line(kind.name(), &|own| own == kind.name());
    }
    line("all", &|_| true);
    out
}

/// A row beside the model.
pub fn compared(
    table: &str,
    row: String,
    measured: f64,
    model: f64,
    kind: RowKind,
    note: &str,
) -> Value {
    json!({
        "table": table, "row": row, "measured": measured, "model": model,
        "error_percent": error_percent(model, measured),
        "kind": kind.name(), "note": note,
    })
}

/// Copies on machines that others measured.
pub fn copies(params: &Params) -> Result<Vec<Value>> {
    let row = |r: &bellpush::pcie::sim::CopyRow| {
        let model = simulate_copy_row(params, r)?;
        let m = r.machine;
        let mut note = m.source.to_owned();
        if !m.assumed.is_empty() {
            note += &format!("; assumed: {}", m.assumed);
        }
        let unit = if matches!(r.question, CopyQuestion::Longer(..)) { "" } else { ", GB/s" };
        let (name, kind) = (format!("{}{unit}", r.what), RowKind::known(m.known_before));
        Ok(compared(m.name, name, r.measured, model, kind, &note))
    };
    COPY_ROWS.iter().map(row).collect()
}

/// Rates of the sizes of pcie-bench's sweep that its two hosts' tables do not have.
pub fn sizes() -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for (i, host) in [NfpHost::IVY_BRIDGE, NfpHost::BROADWELL].iter().enumerate() {
        for (bytes, reads, writes) in NFP_SIZES {
            for (what, metric, measured) in
                [("read", Metric::ReadGbps, reads), ("write", Metric::WriteGbps, writes)]
            {
                let Some(measured) = measured else { continue };
                let model = simulate_host_row(host, metric, bytes)?;
                let (table, name) =
                    (format!("{}, sweep", host.name), format!("{what}, Gb/s, {bytes} B"));
                rows.push(compared(&table, name, measured[i], model, RowKind::Seen, ""));
            }
        }
    }
    Ok(rows)
}

/// NICs' writes into host memory in order, and relaxed.
pub fn ordering(params: &Params) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for r in ORDER_ROWS {
        let model = simulate_order(params, &r.machine)?;
        for (what, measured, model) in
            [("in order", r.strict, model[0]), ("relaxed", r.relaxed, model[1])]
        {
            let Some(measured) = measured else { continue };
            let note = format!("{}; {}", r.source, r.note);
            let name = format!("{}, writes {what}, Gb/s", r.name);
            let kind = RowKind::known(r.known_before);
            rows.push(compared("Relaxed ordering", name, measured, model, kind, &note));
        }
    }
    Ok(rows)
}

/// Every row of the fitted groups, without itself and without its machine.
pub fn left_out(params: &Params) -> Result<Vec<Value>> {
    let row = |r: &LeftOut| {
        let error = |model: f64| error_percent(model, r.measured);
        json!({
            "group": r.group, "machine": r.machine, "row": r.row, "measured": r.measured,
            "in_use_percent": error(r.in_use), "all_rows_percent": error(r.with_all),
            "without_row_percent": r.without_row.map(error),
            "without_machine_percent": r.without_machine.map(error),
        })
    };
    Ok(leave_one_out(params)?.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_count_each_row_once_by_its_kind_and_error() {
        let row = |kind, model| compared("t", "r".into(), 100.0, model, kind, "");
        let rows = [
            row(RowKind::Fitted, 101.0),
            row(RowKind::Seen, 90.5),
            row(RowKind::Predicted, 95.5),
            row(RowKind::Predicted, 112.0),
            row(RowKind::Known, 300.0),
        ];
        let text = totals(&rows);
        let lines: Vec<Vec<&str>> =
            text.lines().skip(1).map(|l| l.split_whitespace().rev().take(4).collect()).collect();
        // Within 15, 10 and 5 %, and of how many.
        assert_eq!(lines[0], ["2", "1", "1", "2"], "{text}");
        assert_eq!(lines[1], ["0", "0", "0", "1"], "{text}");
        assert_eq!(lines[2], ["1", "1", "0", "1"], "{text}");
        assert_eq!(lines[3], ["1", "1", "1", "1"], "{text}");
        assert_eq!(lines[4], ["4", "3", "2", "5"], "{text}");
        assert!(text.starts_with("  ") && text.contains("\nknown before "), "{text}");
    }
}
