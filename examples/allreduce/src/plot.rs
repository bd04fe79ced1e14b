//! Plots of results that were written before: time and bus bandwidth over size, beside NCCL's of the same run.

use std::fs;
use std::path::{Path, PathBuf};

use bellpush_cli::report::chart::{Chart, Line, Quantity};
use serde::Deserialize;

use crate::Failure;
use crate::table::{Compared, Row};

#[derive(Deserialize)]
struct Saved {
    results: Vec<Row>,
}

/// Draws `STEM-time.svg` and `STEM-rate.svg`.
pub fn draw(stem: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    let mut saved = Vec::new();
    for file in files {
        let said = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
        let text = fs::read(file).map_err(|e| said(&e))?;
        let rows = serde_json::from_slice::<Saved>(&text).map_err(|e| said(&e))?.results;
        saved.push((file.file_stem().map_or(String::new(), |s| s.to_string_lossy().into()), rows));
    }
    let ours = |f: fn(&Row) -> f64| move |row: &Row| Some(f(row));
    let theirs = |f: fn(&Compared) -> f64| move |row: &Row| row.nccl.as_ref().map(f);
    let chart = |title: &str, y, lines| Chart {
        title: title.into(),
        x_name: "bytes a rank",
        x: Quantity::Bytes,
        y,
        lines,
        remarks: vec![
            "medians; NCCL's lines are of the same run as bellpush's of that name".into(),
        ],
    };
    let times = lines(&saved, ours(|r| r.time_us * 1e3), theirs(|n| n.time_us * 1e3));
    let rates = lines(&saved, ours(|r| r.bus_gb_s), theirs(|n| n.bus_gb_s));
    for (what, chart) in [
        ("time", chart("All-reduce: time of a call", Quantity::TimeNs, times)),
        ("rate", chart("All-reduce: bus bandwidth", Quantity::GbPerS, rates)),
    ] {
        let mut to = stem.as_os_str().to_owned();
        to.push(format!("-{what}.svg"));
        fs::write(&to, chart.svg()?).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    Ok(())
}

/// A line of ours and one of NCCL's for each file.
fn lines(
    saved: &[(String, Vec<Row>)],
    ours: impl Fn(&Row) -> Option<f64>,
    theirs: impl Fn(&Row) -> Option<f64>,
) -> Vec<Line> {
    let line = |label: String, rows: &[Row], y: &dyn Fn(&Row) -> Option<f64>| Line {
        label,
        points: rows.iter().filter_map(|row| Some((row.bytes as f64, y(row)?))).collect(),
        bars: Vec::new(),
    };
    saved
        .iter()
        .flat_map(|(name, rows)| {
            [line(name.clone(), rows, &ours), line(format!("NCCL beside {name}"), rows, &theirs)]
        })
        .collect()
}
