//! Results that `compare` reads, and `topo --measured`.

use super::{Outcome, refused};
use crate::cli::CliError;
use crate::{compare, measured};

/// What stands between the two texts of a comparison.
const BETWEEN: &str = "\n---\n";

/// Two results, or one beside itself: what is told of them is lines without control characters, and a drawing.
pub fn comparison(text: &str) -> Outcome {
    let two = text.split_once(BETWEEN);
    let (before, after) = two.unwrap_or((text, text));
    let [table, csv, svg] = match compare::told(before, after) {
        Ok(told) => told,
        Err(e) => {
            let places =
                ["column ", "result ", "results ", "rows of ", "meta.", "not the same", "no row"];
            return refused(&e, text, &places);
        }
    };
    for told in [&table, &csv, &svg] {
        assert!(!told.chars().any(|c| c.is_control() && c != '\n'), "{told:?} of {text:?}");
    }
    assert!(csv.starts_with("row,measure,before,after"), "{csv}");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    let counts = table.lines().find(|line| line.ends_with(" unknown")).expect("a line of counts");
    // What is beside itself is neither better nor worse.
    let moved = ["0 better, ", "0 worse, "];
    assert!(two.is_some() || moved.iter().all(|none| counts.contains(none)), "{table} of {text:?}");
    assert!(two.is_some() || !table.contains("MISSING"), "{table} of {text:?}");
    Outcome::Accepted
}

/// A result of `link` for a topology: it fits a machine with its link, or is refused by name.
pub fn of_a_link(text: &str) -> Outcome {
    let wrong =
        |what: String| CliError::new(format!("measured: {what}"), "see 'bellpush topo --help'");
    let measured = match measured::parse(text) {
        Ok(measured) => measured,
        Err(what) => {
            let places = [
                "column ",
                "link --json",
                "meta.",
                "calibration ",
                "fitted",
                "row ",
                "CPU threads",
                "limit",
            ];
            return refused(&wrong(what), text, &places);
        }
    };
    let mut topology = bellpush::pcie::topology::builtin("dgx-h100").expect("it is built in");
    if let Err(what) = measured.put("measured".as_ref(), &mut topology) {
        return refused(&wrong(what), text, &["GPUs", "no GPU here", "memory"]);
    }
    Outcome::Accepted
}
