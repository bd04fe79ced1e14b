//! The terminal table: one line per path, grouped by size, with footnotes and notes below.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};

use super::human::{gb_s, per_second, printable, time_ns};
use super::label::labels;
use super::notes::{Footnotes, SOFTWARE, notes};
use super::row::{Meta, Results, Row};
use super::size;

/// Width to which notes are wrapped.
const WIDTH: usize = 100;

/// Columns after the size: heading, whether they hold numbers, and the cell of a row, whose label is given.
type Column = (&'static str, bool, fn(&Row, &str) -> String);

const COLUMNS: [Column; 10] = [
    ("path", false, |_, label| label.into()),
    ("messages", true, |row, _| row.messages.to_string()),
    ("p50", true, |row, _| time(row.latency_ns_p50)),
    ("p99", true, |row, _| time(row.latency_ns_p99)),
    ONE_WAY,
    ("GB/s", true, |row, _| gb_s(row.bandwidth_gb_s)),
    ("rate", true, |row, _| per_second(row.messages_per_s)),
    ("credits", true, |row, _| row.max_credits_in_use.map_or("–".into(), |n| n.to_string())),
    ("faults", false, |row, _| faults(row)),
    ("verified", false, |row, _| if row.verified { "✓" } else { "✗" }.into()),
];
/// Of rows between two processes.
const ONE_WAY: Column = ("one way", true, |row, _| time(row.one_way_ns_p50));

/// The columns after the size that these rows have.
pub(super) fn columns(rows: &[Row]) -> Vec<Column> {
    let apart = rows.iter().any(|row| row.one_way_ns_p50.is_some());
    COLUMNS.into_iter().filter(|(name, ..)| apart || *name != ONE_WAY.0).collect()
}

fn time(ns: Option<f64>) -> String {
    ns.map_or("–".into(), time_ns)
}

fn faults(row: &Row) -> String {
    let counts =
        [(row.dropped, "dropped"), (row.overwritten, "overwritten"), (row.corrupted, "corrupted")];
    let some: Vec<String> =
        counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    if some.is_empty() { "0".into() } else { some.join(", ") }
}

/// Positions of the rows by size, ascending; within a size in their own order.
pub(super) fn groups(rows: &[Row]) -> Vec<(u64, Vec<usize>)> {
    let mut groups = std::collections::BTreeMap::<u64, Vec<usize>>::new();
    for (i, row) in rows.iter().enumerate() {
        groups.entry(row.size_bytes).or_default().push(i);
    }
    groups.into_iter().collect()
}

/// The circumstances of the results, as names and values.
pub(super) fn facts(meta: &Meta) -> Vec<(&'static str, String)> {
    let m = &meta.machine;
    let nic = if meta.nic.software {
        format!("{} ({SOFTWARE})", meta.nic.name)
    } else {
        meta.nic.name.clone()
    };
    let nodes = if m.numa_nodes == 1 { "node" } else { "nodes" };
    let host = format!("{}, {} CPUs, {} NUMA {nodes}", m.cpu, m.cores, m.numa_nodes);
    let memory = format!("{:.0} GiB", m.memory_bytes as f64 / f64::from(1 << 30));
    let gpu = match (&meta.gpu, &meta.driver) {
        (Some(gpu), Some(driver)) => format!("{gpu}, driver {driver}"),
        (Some(gpu), None) => gpu.clone(),
        _ => "none".into(),
    };
    let facts = [
        ("NIC", nic),
        ("executor", meta.executor.clone()),
        ("GPU", gpu),
        ("host", host),
        ("bellpush", format!("{} ({})", meta.version, meta.commit)),
        ("memory", memory),
        ("kernel", m.kernel.clone()),
        ("date", meta.date.clone()),
        ("seed", meta.seed.to_string()),
        ("command", meta.command_line.clone()),
    ];
    facts.map(|(name, value)| (name, printable(&value))).into()
}

/// The whole table as text, with a final newline.
pub fn render(results: &Results) -> String {
    let rows = &results.results;
    let (labels, footnotes, columns) = (labels(rows), Footnotes::of(rows), columns(rows));
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.add_row(["size"].into_iter().chain(columns.iter().map(|(name, ..)| *name)).chain([""]));
    let mut starts = Vec::new();
    for (bytes, members) in groups(rows) {
        starts.push(table.row_count());
        for (nth, i) in members.into_iter().enumerate() {
            let size = if nth == 0 { size::print(bytes) } else { String::new() };
            let cells = columns.iter().map(|(.., cell)| cell(&rows[i], &labels[i]));
            table.add_row([size].into_iter().chain(cells).chain([footnotes.mark(i)]));
        }
    }
    let numeric = [true].into_iter().chain(columns.iter().map(|(_, numeric, _)| *numeric));
    for (i, numeric) in numeric.enumerate() {
        if let Some(column) = table.column_mut(i).filter(|_| numeric) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }

    let mut text = String::new();
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_string()).collect();
    let rule = "─".repeat(lines.iter().map(|l| l.chars().count()).max().unwrap_or(0));
    for (name, value) in facts(&results.meta).into_iter().take(5) {
        let _ = writeln!(text, " {name}: {value}"); // writing to a String cannot fail
    }
    text.push('\n');
    for (i, line) in lines.iter().enumerate() {
        if starts.contains(&i) {
            text.push_str(&rule);
            text.push('\n');
        }
        text.push_str(line);
        text.push('\n');
    }
    text.push_str(&rule);
    text.push('\n');
    for (i, note) in footnotes.texts().iter().enumerate() {
        wrap(&mut text, &format!(" [{}] ", i + 1), note);
    }
    for note in notes(results) {
        wrap(&mut text, " note: ", &note);
    }
    text
}

/// Appends a paragraph whose further lines are indented as far as its first.
fn wrap(text: &mut String, head: &str, paragraph: &str) {
    let indent = head.chars().count();
    text.push_str(head);
    let mut column = indent;
    for word in paragraph.split_whitespace() {
        let width = word.chars().count();
        if column > indent && column + 1 + width > WIDTH {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            column = indent;
        }
        if column > indent {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::super::notes;
    use super::super::row::tests::sample;
    use super::*;

    #[test]
    fn one_line_a_path_under_its_size() {
        let mut results = sample("cuda:NVIDIA H200");
        results.results[1].verified = false;
        results.results[1].dropped = 3;
        results.results[1].corrupted = 1;
        results.results[3].latency_ns_p50 = None;
        let text = render(&results);
        let line = |at: usize| {
            let first = text.lines().position(|l| l.contains("8 B")).unwrap();
            text.lines().nth(first + at).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line(0), "8 B push/inband 1000 2.50 µs 3.75 µs 0.0032 400 k/s – 0 ✓");
        assert!(line(1).ends_with("– 3 dropped, 1 corrupted ✗"), "{}", line(1));
        assert!(line(2).starts_with("pull/kernel 1000") && line(2).ends_with("✓ [1]"));
        assert!(line(3).starts_with("tcp 1000 – 31.5 µs"));
        assert!(line(4).starts_with("──"));
        assert!(line(5).starts_with("4 KiB push/inband"));
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(&format!("[1] {}", notes::PULL_BY_COPY_ENGINE)));
        assert!(flat.contains(&format!("note: {}", notes::SAME_MEMORY)));
        assert!(flat.contains("NIC: soft (software NIC)"));
        assert!(text.lines().all(|l| l.chars().count() <= 113), "{text}");
    }

    #[test]
    fn the_host_executor_is_no_contest() {
        let flat = render(&sample("host")).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("no ranking of paths means anything"));
    }

    #[test]
    fn hostile_strings_stay_text() {
        let mut results = sample("host");
        results.meta.nic.name = "\x1b[31mred".into();
        results.meta.notes.push("a\u{9b}b".into());
        for row in &mut results.results {
            row.artefact = Some("x\ny\x07".into());
            row.nic = "n\n".repeat(row.size_bytes.ilog2() as usize);
        }
        let text = render(&results);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
}
