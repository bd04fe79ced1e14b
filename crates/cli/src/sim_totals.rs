//! Totals of `bellpush sim --validate`: how many rows are how near, by what was known of them and
//! by who published them, and whether the model has the faster of two movers right.

use bellpush::pcie::sim::{Move, TIE};

use crate::sim_rows::{Row, RowKind};

/// How many of each kind, and how many are how near.
pub fn totals(rows: &[Row]) -> String {
    let mut out = format!("{:<24} {:>5} {:>8} {:>8} {:>8}\n", "", "rows", "5 %", "10 %", "15 %");
    let mut line = |name: &str, is: &dyn Fn(&Row) -> bool| {
        let errors: Vec<f64> =
            rows.iter().filter(|row| is(row)).map(|row| row.error_percent().abs()).collect();
        out += &format!("{name:<24} {:>5}", errors.len());
        for most in [5.0, 10.0, 15.0] {
            out += &format!(" {:>8}", errors.iter().filter(|e| **e <= most).count());
        }
        out.push('\n');
    };
    for kind in RowKind::ALL {
        line(kind.name(), &|row| row.kind == kind);
        line("  published by others", &|row| row.kind == kind && row.published);
    }
    line("all", &|_| true);
    out
}

/// What the model says of which of two movers is faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Right,
    /// It has both alike.
    Alike,
    /// It has one or the other in front by what nobody knows of the device.
    Unknown,
    Reversed,
}

/// A device that writes and one that reads, over equal ends, whose rates differ.
struct Pair<'a> {
    write: &'a Row,
    read: &'a Row,
}

impl Pair<'_> {
    fn sign(&self) -> Sign {
        let apart = |write: f64, read: f64| write / read - 1.0;
        let measured = apart(self.write.measured, self.read.measured);
        let model = apart(self.write.model, self.read.model);
        let one_queue = |row: &Row| row.one_queue.unwrap_or(row.model);
        let other = apart(one_queue(self.write), one_queue(self.read));
        match () {
            () if model * other < 0.0 && model.abs().max(other.abs()) > TIE => Sign::Unknown,
            () if model.abs() <= TIE => Sign::Alike,
            () if model * measured > 0.0 => Sign::Right,
            () => Sign::Reversed,
        }
    }
}

/// Pairs of published rows that nobody had seen in a sweep, and that differ by more than a tie.
fn pairs(rows: &[Row]) -> Vec<Pair<'_>> {
    let of = |by: Move| {
        let taken = |row: &&Row| row.published && row.kind != RowKind::Seen;
        let named = move |row: &Row| row.mover.as_ref().is_some_and(|(own, _)| *own == by);
        rows.iter().filter(taken).filter(move |row| named(row))
    };
    let ends = |row: &Row| (row.table.clone(), row.mover.as_ref().map(|(_, ends)| ends.clone()));
    let differ = |pair: &Pair<'_>| (pair.write.measured / pair.read.measured - 1.0).abs() > TIE;
    let pairs = of(Move::Write).flat_map(|write| {
        of(Move::Read)
            .filter(move |read| ends(read) == ends(write))
            .map(move |read| Pair { write, read })
    });
    pairs.filter(differ).collect()
}

/// How often the model has the faster of two movers right, and each pair that it has reversed or
/// leaves open.
pub fn signs(rows: &[Row]) -> String {
    let pairs = pairs(rows);
    let with = |sign: Sign| pairs.iter().filter(move |pair| pair.sign() == sign);
    let count = |sign| with(sign).count();
    let mut out = format!(
        "writes against reads over equal ends, published pairs more than {:.0} % apart: {}\n\
         \x20 right {}, tie {}, reversed {}\n\
         \x20 tie: {} alike within {:.0} %; {} by whether engines take turns at the device's link, \
         which no source states\n",
        100.0 * TIE,
        pairs.len(),
        count(Sign::Right),
        count(Sign::Alike) + count(Sign::Unknown),
        count(Sign::Reversed),
        count(Sign::Alike),
        100.0 * TIE,
        count(Sign::Unknown),
    );
    for (name, sign) in [("reversed", Sign::Reversed), ("unknown", Sign::Unknown)] {
        for Pair { write, read } in with(sign) {
            let numbers =
                |of: &dyn Fn(&Row) -> f64| format!("{:.4} and {:.4}", of(write), of(read));
            out += &format!(
                "  {name}: {}: {} and {}: measured {}, model {}, one queue {}\n",
                write.table,
                write.row,
                read.row,
                numbers(&|row| row.measured),
                numbers(&|row| row.model),
                numbers(&|row| row.one_queue.unwrap_or(row.model)),
            );
        }
    }
    out
}

/// How the rows fare that hang on what nobody states: whether the engines of a device take turns.
pub fn intervals(rows: &[Row]) -> String {
    let open = || rows.iter().filter(|row| row.one_queue.is_some());
    let inside = |row: &&Row| {
        let (a, b) = (row.model, row.one_queue.unwrap_or(row.model));
        (a.min(b) / 1.15..=a.max(b) / 0.85).contains(&row.measured)
    };
    format!(
        "rows that hang on whether a device's engines take turns (model) or share one queue \
         (one_queue): {}\n  measured between the two, or within 15 % of one: {}\n",
        open().count(),
        open().filter(inside).count(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush::pcie::sim::{Answer, Params};

    fn row(kind: RowKind, model: f64) -> Row {
        Row::new("t", "r".into(), 100.0, model, kind)
    }

    #[test]
    fn totals_count_each_row_once_by_its_kind_and_error() {
        let own = Row { published: false, ..row(RowKind::Predicted, 112.0) };
        let rows = [
            row(RowKind::Fitted, 101.0),
            row(RowKind::Seen, 90.5),
            row(RowKind::Predicted, 95.5),
            own,
            row(RowKind::Known, 300.0),
        ];
        let text = totals(&rows);
        let lines: Vec<Vec<&str>> =
            text.lines().skip(1).map(|l| l.split_whitespace().rev().take(4).collect()).collect();
        // Within 15, 10 and 5 %, and of how many; those of others below each.
        assert_eq!(lines[0], ["2", "1", "1", "2"], "{text}");
        assert_eq!(lines[1], ["1", "1", "1", "1"], "{text}");
        assert_eq!(lines[2], ["0", "0", "0", "1"], "{text}");
        assert_eq!(lines[4], ["1", "1", "0", "1"], "{text}");
        assert_eq!(lines[6], ["1", "1", "1", "1"], "{text}");
        assert_eq!(lines[8], ["4", "3", "2", "5"], "{text}");
        assert!(text.starts_with("  ") && text.contains("\nknown before "), "{text}");
    }

    #[test]
    fn a_sign_is_right_a_tie_or_reversed() {
        let pair = |measured: [f64; 2], model: [f64; 2], one_queue: Option<[f64; 2]>| {
            let row = |i: usize, by| Row {
                one_queue: one_queue.map(|rates| rates[i]),
                mover: Some((by, "a-b".into())),
                ..Row::new("t", "r".into(), measured[i], model[i], RowKind::Predicted)
            };
            [row(0, Move::Write), row(1, Move::Read)]
        };
        let said = |rows: &[Row]| pairs(rows).first().map(Pair::sign);
        assert_eq!(said(&pair([50.0, 40.0], [50.0, 45.0], None)), Some(Sign::Right));
        assert_eq!(said(&pair([50.0, 40.0], [45.0, 50.0], None)), Some(Sign::Reversed));
        assert_eq!(said(&pair([50.0, 40.0], [50.0, 50.5], None)), Some(Sign::Alike));
        let unknown = Some([50.0, 20.0]);
        assert_eq!(said(&pair([50.0, 40.0], [45.0, 50.0], unknown)), Some(Sign::Unknown));
        // What is unknown leaves a right order open too.
        assert_eq!(said(&pair([40.0, 50.0], [45.0, 50.0], unknown)), Some(Sign::Unknown));
        assert_eq!(said(&pair([50.0, 49.5], [45.0, 50.0], None)), None, "a tie when measured");
        let mut elsewhere = pair([50.0, 40.0], [50.0, 45.0], None);
        elsewhere[1].mover = Some((Move::Read, "a-c".into()));
        assert_eq!(said(&elsewhere), None);
        let seen = pair([50.0, 40.0], [50.0, 45.0], None).map(|r| Row { kind: RowKind::Seen, ..r });
        assert_eq!(said(&seen), None);
    }

    #[test]
    fn what_a_later_rule_moves_was_known_before() {
        let answered = |kind, first, by_turns: bool| {
            row(kind, 100.0).answered(Answer {
                now: 100.0,
                first,
                queued: by_turns.then_some(first),
            })
        };
        let moved = answered(RowKind::Predicted, 90.0, true);
        assert_eq!((moved.kind, moved.first), (RowKind::Known, Some(90.0)));
        assert_eq!(moved.one_queue, Some(90.0), "nobody states which");
        assert_eq!(
            answered(RowKind::Predicted, 90.0, false).one_queue,
            None,
            "two documents say it"
        );
        let unmoved = answered(RowKind::Predicted, 99.5, true);
        assert_eq!((unmoved.kind, unmoved.first), (RowKind::Predicted, None));
        assert_eq!(answered(RowKind::Fitted, 90.0, true).kind, RowKind::Fitted);
        assert!(intervals(&[moved, unmoved]).contains("(one_queue): 1\n"));
    }

    /// The page has what the command prints.
    #[test]
    #[ignore = "a minute"]
    fn totals_are_as_the_page_says() {
        let rows = crate::sim_rows::all(&Params::default()).unwrap();
        let page = include_str!("../../../docs/results/pcie.md");
        let said = totals(&rows);
        // The pairs that it names stand there in words.
        let (signs, intervals) = (signs(&rows), intervals(&rows));
        for line in said.lines().skip(1).chain(signs.lines().take(3)).chain(intervals.lines()) {
            assert!(page.contains(line), "docs/results/pcie.md does not say: {line}");
        }
    }
}
