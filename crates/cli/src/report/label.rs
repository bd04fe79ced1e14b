//! Names of the lines of a table and a plot.

use std::collections::HashMap;

use super::human::printable;
use super::row::Row;
use super::size;
use super::{Data, Kick};
use bellpush::transport::Reach;

/// A label per row: its path, followed by the fields that distinguish it from the other rows of
/// that path. Rows with the same label differ only in size.
pub fn labels(rows: &[Row]) -> Vec<String> {
    let values: Vec<Vec<String>> =
        rows.iter().map(|row| FIELDS.iter().map(|field| field(row)).collect()).collect();
    // For each path its first row, and the fields in which another row of it differs.
    let mut paths: HashMap<(Data, Option<Kick>), (usize, [bool; FIELDS.len()])> = HashMap::new();
    for (i, row) in rows.iter().enumerate() {
        let (first, differs) = paths.entry((row.data, row.kick)).or_insert((i, Default::default()));
        for (field, differs) in differs.iter_mut().enumerate() {
            *differs |= values[i][field] != values[*first][field];
        }
    }
    let label = |(row, values): (&Row, &Vec<String>)| {
        let (_, differs) = paths[&(row.data, row.kick)];
        let apart =
            values.iter().zip(differs).filter(|(value, differs)| *differs && !value.is_empty());
        let parts = std::iter::once(row.path()).chain(apart.map(|(value, _)| value.clone()));
        printable(&parts.collect::<Vec<_>>().join(", "))
    };
    rows.iter().zip(&values).map(label).collect()
}

const FIELDS: [fn(&Row) -> String; 20] = [
    |r| r.nic.clone(),
    |r| r.executor.clone(),
    |r| r.engine.map_or(String::new(), |e| format!("{e} engine")),
    |r| r.line.map_or(String::new(), |l| l.to_string()),
    |r| r.window_bytes.map_or(String::new(), |b| format!("window {}", size::print(b))),
    |r| r.slot_bytes.map_or(String::new(), |b| format!("slot {}", size::print(b))),
    |r| r.host_numa.clone().unwrap_or_default(),
    |r| r.from.map_or(String::new(), |from| format!("from {from}")),
    |r| r.dest.map_or(String::new(), |d| format!("to {d}")),
    |r| r.in_flight.map_or(String::new(), |n| format!("{n} in flight")),
    |r| r.processes.map_or(String::new(), |n| format!("{n} processes")),
    |r| r.both_ways.map_or("", |both| if both { "both ways" } else { "one way" }).to_string(),
    |r| r.blocks.map_or(String::new(), |n| format!("{n} blocks")),
    |r| r.qps.map_or(String::new(), |n| format!("{n} QPs")),
    |r| r.engines.map_or(String::new(), |n| format!("{n} engines")),
    |r| r.places.map_or(String::new(), |p| p.to_string()),
    |r| if r.reach == Some(Reach::Gpu) { "fence of the GPU".into() } else { String::new() },
    |r| r.copy_threads.map_or(String::new(), |n| format!("{n} copy threads")),
    |r| r.credits.map_or("", |on| if on { "credits" } else { "no credits" }).to_string(),
    |r| r.observer.map_or(String::new(), |o| format!("{o} clock")),
];

#[cfg(test)]
mod tests {
    use super::super::{Data, Kick};
    use super::*;
    use bellpush::wire::inband::LineFormat;

    #[test]
    fn only_what_differs_is_named() {
        let base = Row { nic: "soft".into(), ..Row::new(Data::Push, Some(Kick::Inband), 8) };
        let rows = [
            Row { line: Some(LineFormat::L12S4), ..base.clone() },
            Row { line: Some(LineFormat::L60S4), credits: Some(true), ..base.clone() },
            Row { line: Some(LineFormat::L60S4), credits: Some(false), ..base.clone() },
            Row { kick: Some(Kick::Kernel), ..base.clone() },
            Row { kick: None, nic: "a\nb".into(), ..Row::new(Data::Tcp, None, 8) },
        ];
        assert_eq!(
            labels(&rows),
            [
                "push/inband, 12+4",
                "push/inband, 60+4, credits",
                "push/inband, 60+4, no credits",
                "push/kernel",
                "tcp"
            ]
        );
    }
}
