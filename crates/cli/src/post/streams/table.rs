//! Streams as a table and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::bare::Best;
use super::rate::Rate;
use super::{Bare, Line, MESSAGE_BYTES};
use crate::post::cases::Place;
use crate::post::table::number;

/// The table, with what was wrong; nothing where there are no rows.
pub fn render(lines: &[Line]) -> String {
    let mut text = String::new();
    if lines.is_empty() {
        return text;
    }
    text.push_str(
        "streams: GB/s of messages of 1 MiB on one queue pair, the window in pinned host memory, the engine on a CPU;\n\
         bare: the same stores and copies with no protocol around them, by one block, by up to four, and by up to four with\n\
         slots given back in their order; times: bare by up to four over the row\n",
    );
    let width = lines.iter().map(|line| line.row.name().len()).max().unwrap_or(0);
    // A String takes everything.
    let _ = write!(text, "{:<width$} {:<6}", "row", "slots");
    for head in ["GB/s", "min", "max", "one", "four", "in order", "times"] {
        let _ = write!(text, " {head:>8}");
    }
    text.push('\n');
    for line in lines {
        let (rate, bare) = (&line.rate, &line.bare);
        let _ = write!(text, "{:<width$} {:<6}", line.row.name(), line.row.window.slot);
        let cells = [
            rate.median,
            rate.min,
            rate.max,
            bare.one_block.rate.median,
            bare.up_to_four.rate.median,
            bare.in_order.rate.median,
            line.times_floor().unwrap_or(0.0),
        ];
        for cell in cells {
            let _ = write!(text, " {:>8}", number(cell));
        }
        let end = line.wrong().map_or(String::new(), |wrong| format!("  NOT VERIFIED: {wrong}"));
        let _ = writeln!(text, "{end}");
    }
    let mut said = Vec::new();
    for line in lines {
        let about = (line.row.mode, line.row.window);
        if said.contains(&about) {
            continue;
        }
        said.push(about);
        let Bare { one_block, up_to_four, in_order } = &line.bare;
        let (name, window) = (about.0.name(), about.1.name);
        let ways = [one_block, up_to_four, in_order].map(how);
        let _ = writeln!(
            text,
            "bare {name}, window {window}: {}; in order {}",
            ways[..2].join("; "),
            ways[2]
        );
    }
    text
}

/// Which of those tried it was, and how far it varied.
fn how(best: &Best) -> String {
    let (shape, rate) = (&best.shape, &best.rate);
    let several = |n: usize| if n == 1 { "" } else { "s" };
    format!(
        "{} block{}, slots of {} KiB, {} thread{}: {} ({} to {})",
        shape.blocks,
        several(shape.blocks as usize),
        shape.slot_bytes >> 10,
        shape.threads,
        several(shape.threads),
        number(rate.median),
        number(rate.min),
        number(rate.max)
    )
}

/// A row of the JSON result, with the fields that other rows have.
pub fn json(line: &Line) -> Value {
    let Line { row, rate, bare } = line;
    json!({
        "row": row.name(),
        "place": Place::Window.name(),
        "size_bytes": MESSAGE_BYTES,
        "window_bytes": row.window.bytes,
        "slot_bytes": row.window.slot_bytes,
        "qps": 1,
        "unit": "GB/s",
        "median": rate.median,
        "min": rate.min,
        "max": rate.max,
        "floor": bare.up_to_four.rate.median,
        "times_floor": line.times_floor(),
        "bare": {
            "one_block": of_best(&bare.one_block),
            "up_to_four": of_best(&bare.up_to_four),
            "in_order": of_best(&bare.in_order),
        },
        "verified": line.verified(),
        "wrong": line.wrong(),
    })
}

fn of_best(best: &Best) -> Value {
    let (shape, Rate { median, min, max, .. }) = (&best.shape, &best.rate);
    json!({
        "median": median,
        "min": min,
        "max": max,
        "blocks": shape.blocks,
        "slot_bytes": shape.slot_bytes,
        "threads": shape.threads,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Mode, rows};
    use super::*;
    use crate::post::streams::ring::Shape;

    fn line(nth: usize, rate: f64, wrong: Option<&str>) -> Line {
        let row = rows(16)[nth];
        let best = |blocks, in_order, rate, wrong: Option<&str>| {
            let (mode, window_bytes) = (row.mode, row.window.bytes);
            let slot_bytes = 2048;
            let shape = Shape { mode, window_bytes, slot_bytes, blocks, threads: 8, in_order };
            Best { shape, rate: Rate::new(vec![rate], wrong.map(str::to_owned)) }
        };
        let bare = Bare {
            one_block: best(1, false, 15.0, None),
            up_to_four: best(4, false, 20.0, wrong),
            in_order: best(2, true, 12.0, None),
        };
        Line { row, rate: Rate::new(vec![rate], None), bare }
    }

    #[test]
    fn the_bare_exchange_stands_beside_its_rows_once_with_which_it_was() {
        let lines = [line(0, 8.0, None), line(1, 10.0, None), line(6, 5.0, None)];
        let text = render(&lines);
        let row = "streams push/kernel, window 128KiB, copy threads 3";
        let found = text.lines().find(|l| l.starts_with(row)).unwrap();
        let cells: Vec<_> = found[row.len()..].split_whitespace().collect();
        assert_eq!(cells, ["4KiB", "8.00", "8.00", "8.00", "15.0", "20.0", "12.0", "2.50"]);
        let bare = "bare push/kernel, window 128KiB: 1 block, slots of 2 KiB, 8 threads: 15.0 (15.0 to 15.0); 4 blocks";
        assert_eq!(text.matches(bare).count(), 1, "{text}");
        assert!(text.contains("bare push/inband 60+4") && !text.contains("NOT VERIFIED"));
        assert_eq!(render(&[]), "");
    }

    #[test]
    fn what_is_wrong_with_the_bare_exchange_marks_its_row() {
        let bad = line(2, 8.0, Some("slot 3 differs"));
        assert!(!bad.verified() && bad.row.mode == Mode::Lines12);
        assert!(render(std::slice::from_ref(&bad)).contains("NOT VERIFIED: slot 3 differs"));
        let json = json(&bad);
        assert_eq!((&json["verified"], &json["wrong"]), (&json!(false), &json!("slot 3 differs")));
        assert_eq!(
            (&json["floor"], &json["bare"]["one_block"]["median"]),
            (&json!(20.0), &json!(15.0))
        );
    }
}
