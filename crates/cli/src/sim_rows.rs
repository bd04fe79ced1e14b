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

/// A row beside the model.
pub fn compared(
    table: &str,
    row: String,
    measured: f64,
    model: f64,
    fitted: bool,
    note: &str,
) -> Value {
    json!({
        "table": table, "row": row, "measured": measured, "model": model,
        "error_percent": error_percent(model, measured),
        "kind": if fitted { "fitted" } else { "predicted" }, "note": note,
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
        if m.known_before {
            note += "; known before";
        }
        let unit = if matches!(r.question, CopyQuestion::Longer(..)) { "" } else { ", GB/s" };
        Ok(compared(m.name, format!("{}{unit}", r.what), r.measured, model, false, &note))
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
                let note = "seen before it was predicted";
                rows.push(compared(&table, name, measured[i], model, false, note));
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
            let known = if r.known_before { "known before" } else { "read after the prediction" };
            let note = format!("{}; {}; {known}", r.source, r.note);
            let name = format!("{}, writes {what}, Gb/s", r.name);
            rows.push(compared("Relaxed ordering", name, measured, model, false, &note));
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
