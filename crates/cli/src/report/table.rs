//! The terminal table: one line per path, grouped by size, with footnotes and notes below.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};

use super::human::{gb_s, per_second, printable, range, time_ns};
use super::notes::{Footnotes, SOFTWARE, notes};
use super::repeated::{Repeated, repeated};
use super::row::{Meta, Results, Row};
use super::size;

/// Width to which notes are wrapped.
const WIDTH: usize = 100;

/// A column after the size.
pub(super) struct Column {
    pub name: &'static str,
    /// Whether it holds numbers.
    pub numeric: bool,
    pub cell: fn(&Repeated) -> String,
    /// Whether a row has something for it: without one, the column is left out.
    used: fn(&Repeated) -> bool,
}

const fn column(name: &'static str, numeric: bool, cell: fn(&Repeated) -> String) -> Column {
    Column { name, numeric, cell, used: |_| true }
}

/// What the runs of a row gave, from the least to the greatest.
const fn of_runs(name: &'static str, cell: fn(&Repeated) -> String) -> Column {
    Column { name, numeric: true, cell, used: |it| it.runs > 1 }
}

const COLUMNS: [Column; 14] = [
    column("path", false, |it| it.label.clone()),
    of_runs("runs", |it| it.runs.to_string()),
    column("messages", true, |it| it.row.messages.to_string()),
    column("p50", true, |it| time(it.row.latency_ns_p50)),
    of_runs("of runs", |it| ends(it.latency_ns, time_ns)),
    column("p99", true, |it| time(it.row.latency_ns_p99)),
    // Of rows between two processes.
    Column {
        used: |it| it.row.one_way_ns_p50.is_some(),
        ..column("one way", true, |it| time(it.row.one_way_ns_p50))
    },
    Column {
        used: |it| it.one_way_ns.is_some(),
        ..of_runs("of runs", |it| ends(it.one_way_ns, time_ns))
    },
    column("GB/s", true, |it| gb_s(it.row.bandwidth_gb_s)),
    of_runs("of runs", |it| ends(it.gb_s, gb_s)),
    column("rate", true, |it| per_second(it.row.messages_per_s)),
    column("credits", true, |it| it.row.max_credits_in_use.map_or("–".into(), |n| n.to_string())),
    column("faults", false, |it| faults(&it.row)),
    column("verified", false, |it| if it.row.verified { "✓" } else { "✗" }.into()),
];

/// The columns after the size that these rows have.
pub(super) fn columns(rows: &[Repeated]) -> Vec<Column> {
    COLUMNS.into_iter().filter(|column| rows.iter().any(column.used)).collect()
}

fn time(ns: Option<f64>) -> String {
    ns.map_or("–".into(), time_ns)
}

fn ends(ends: Option<[f64; 2]>, text: fn(f64) -> String) -> String {
    ends.map_or("–".into(), |ends| range(ends.map(text)))
}

fn faults(row: &Row) -> String {
    let counts =
        [(row.dropped, "dropped"), (row.overwritten, "overwritten"), (row.corrupted, "corrupted")];
    let some: Vec<String> =
        counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    if some.is_empty() { "0".into() } else { some.join(", ") }
}

/// Positions of the rows by size, ascending; within a size in their own order.
pub(super) fn groups(rows: &[Repeated]) -> Vec<(u64, Vec<usize>)> {
    let mut groups = std::collections::BTreeMap::<u64, Vec<usize>>::new();
    for (i, row) in rows.iter().enumerate() {
        groups.entry(row.row.size_bytes).or_default().push(i);
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
    let (rows, footnotes) = (repeated(&results.results), Footnotes::of(&results.results));
    let columns = columns(&rows);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.add_row(["size"].into_iter().chain(columns.iter().map(|c| c.name)).chain([""]));
    let mut starts = Vec::new();
    for (bytes, members) in groups(&rows) {
        starts.push(table.row_count());
        for (nth, i) in members.into_iter().enumerate() {
            let size = if nth == 0 { size::print(bytes) } else { String::new() };
            let (cells, mark) =
                (columns.iter().map(|c| (c.cell)(&rows[i])), footnotes.mark(rows[i].first));
            table.add_row([size].into_iter().chain(cells).chain([mark]));
        }
    }
    let numeric = [true].into_iter().chain(columns.iter().map(|c| c.numeric));
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
    fn runs_of_a_row_are_one_line_with_median_and_ends() {
        let mut results = sample("cuda:NVIDIA H200");
        for ns in [2900.0, 2400.0] {
            let again = Row { latency_ns_p50: Some(ns), ..results.results[0].clone() };
            results.results.push(again);
        }
        let text = render(&results);
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("size path runs messages p50 of runs p99 GB/s of runs rate"));
        let row = "8 B push/inband 3 3000 2.50 µs 2.40..2.90 µs 3.75 µs 0.0032 0.0032..0.0032 400";
        assert!(flat.contains(row), "{text}");
        assert!(flat.contains("tcp 1 1000 21.0 µs – 31.5 µs"), "{text}");
        assert_eq!(text.matches("push/inband").count(), 3, "one line a size");
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
