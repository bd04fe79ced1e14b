//! Totals of `bellpush sim --validate`: how many rows are how near, by what was known of them and
//! by who published them, and whether the model has the faster of two movers right.

use bellpush::pcie::sim::{EQUAL, Move, Params};

use crate::sim_rows::{Row, RowKind};

/// A line above totals of other numbers than the model has: what is predicted and fitted was told with its own.
pub fn changed(params: &Params) -> String {
    let own = Params::default();
    let other = |name: &&str| {
        let (now, was) = (params.get(name)?, own.get(name)?);
        (now != was).then(|| format!("{name} is {now} and not {was}"))
    };
    let others: Vec<String> = Params::NAMES.iter().filter_map(other).collect();
    if others.is_empty() {
        return String::new();
    }
    format!("not the totals of docs/results/pcie.md: {}\n", others.join(", "))
}

/// How many of each kind, and how many are how near.
pub fn totals(rows: &[Row]) -> String {
    let mut out = format!("{:<24} {:>5} {:>8} {:>8} {:>8}\n", "", "rows", "5 %", "10 %", "15 %");
    let mut line = |name: &str, error: &dyn Fn(&Row) -> Option<f64>| {
        let errors: Vec<f64> = rows.iter().filter_map(error).map(f64::abs).collect();
        out += &format!("{name:<24} {:>5}", errors.len());
        for most in [5.0, 10.0, 15.0] {
            out += &format!(" {:>8}", errors.iter().filter(|e| **e <= most).count());
        }
        out.push('\n');
    };
    let of = |row: &Row, is: bool| is.then(|| row.error_percent());
    for kind in RowKind::ALL {
        line(kind.name(), &|row| of(row, row.kind == kind));
        line("  published by others", &|row| of(row, row.kind == kind && row.published));
    }
    let own = |row: &Row| row.kind == RowKind::Predicted && !row.repeats;
    line("no repeats", &|row| of(row, own(row)));
    line("  without the 7955WX", &|row| of(row, own(row) && !row.table.starts_with(MOST_ROWS)));
    let once = |row: &Row| own(row) && !row.again;
    line("  each answer once", &|row| of(row, once(row)));
    let rest = |row: &Row| row.kind == RowKind::Predicted && !row.is_translated && !is_of_fpga(row);
    line("without IOMMU and FPGA", &|row| of(row, rest(row)));
    let alone = |row: &Row| row.kind == RowKind::Predicted && row.is_alone;
    line("one stream of a copy", &|row| of(row, alone(row)));
    line("all", &|row| of(row, true));
    line("as first asked", &first_error);
    line("  published by others", &|row| first_error(row).filter(|_| row.published));
    line("asked blind", &|row| of(row, is_blind(row)).map(|error| first(row, error)));
    let is_said = |row: &Row| is_blind(row) && !row.assumes_a_link;
    line("  links by the source", &|row| of(row, is_said(row)).map(|error| first(row, error)));
    line("copies across sockets", &|row| of(row, row.crosses_sockets));
    line("  as first asked", &|row| of(row, row.crosses_sockets).map(|error| first(row, error)));
    out
}

/// The machine of the most rows of one author, whose copies agree.
const MOST_ROWS: &str = "Threadripper PRO 7955WX";

/// FPGAs by their machines' names.
const FPGAS: [&str; 5] = ["Alveo", "VCU128", "VU9P", "Versal", "Agilex"];

/// Whether a row is of a copy by an FPGA's shell.
fn is_of_fpga(row: &Row) -> bool {
    FPGAS.iter().any(|name| row.table.contains(name))
}

/// Whether a row is of a collection of copies that was asked blind, as a whole: before anybody had looked at
/// what the model says of its kinds.
fn is_blind(row: &Row) -> bool {
    row.collection >= 2
}

/// Share by which a measured rate may be above what the model has, and still count as bounded by it.
const ABOVE: f64 = 0.05;

/// How many of the collections' rates are at most a little above what the model says, now and first; and of those that
/// are of several streams. A row of one stream was taken only if the link on its way carries its rate raw.
pub fn bound(rows: &[Row]) -> String {
    let said = |what: &str, taken: &dyn Fn(&Row) -> bool| {
        let rates = || rows.iter().filter(|row| row.collection > 0 && row.is_rate() && taken(row));
        let below = |model: &dyn Fn(&Row) -> f64| {
            rates().filter(|row| row.measured <= (1.0 + ABOVE) * model(row)).count()
        };
        format!(
            "{what}: {}; measured at most {:.2} times the model: {}, by the first answers {}\n",
            rates().count(),
            1.0 + ABOVE,
            below(&|row| row.model),
            below(&|row| row.first.unwrap_or(row.model)),
        )
    };
    said("rates of the collections", &|_| true)
        + &said("  of several streams, which no link's raw rate admitted", &|row| !row.is_alone)
}

/// Error in percent of what the model first said of a row, where later rules move it; else the one given.
fn first(row: &Row, now: f64) -> f64 {
    row.first.map_or(now, |first| 100.0 * (first / row.measured - 1.0))
}

/// Error in percent of what the model said of a row that nobody had looked at, when it was first asked: also where a
/// later rule moves it. `None` of other rows.
fn first_error(row: &Row) -> Option<f64> {
    row.was_predicted.then(|| first(row, row.error_percent()))
}

/// Share by which two rates are plainly apart.
const APART: f64 = 0.05;

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

/// By which share a write is faster than a read.
fn apart(write: f64, read: f64) -> f64 {
    write / read - 1.0
}

impl Pair<'_> {
    fn measured(&self) -> f64 {
        apart(self.write.measured, self.read.measured)
    }

    fn sign(&self) -> Sign {
        let measured = self.measured();
        let model = apart(self.write.model, self.read.model);
        let one_queue = |row: &Row| row.one_queue.unwrap_or(row.model);
        let other = apart(one_queue(self.write), one_queue(self.read));
        match () {
            () if model * other < 0.0 && model.abs().max(other.abs()) > EQUAL => Sign::Unknown,
            () if model.abs() <= EQUAL => Sign::Alike,
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
    let differ = |pair: &Pair<'_>| pair.measured().abs() > EQUAL;
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
    let unseen = with(Sign::Alike).filter(|pair| pair.measured().abs() > APART).count();
    let mut out = format!(
        "writes against reads over equal ends, published pairs more than {:.0} % apart: {}\n\
         \x20 right {}, tie {}, reversed {}\n\
         \x20 tie: {} alike within {:.0} %, of which {unseen} measured more than {:.0} % apart; \
         {} by whether engines take turns at the device's link, which no source states\n",
        100.0 * EQUAL,
        pairs.len(),
        count(Sign::Right),
        count(Sign::Alike) + count(Sign::Unknown),
        count(Sign::Reversed),
        count(Sign::Alike),
        100.0 * EQUAL,
        100.0 * APART,
        count(Sign::Unknown),
    );
    let named = |pair: &&Pair<'_>| pair.sign() != Sign::Alike || pair.measured().abs() > APART;
    for (name, sign) in
        [("reversed", Sign::Reversed), ("unknown", Sign::Unknown), ("alike", Sign::Alike)]
    {
        for Pair { write, read } in with(sign).filter(named) {
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
    use bellpush::pcie::sim::Answer;

    fn row(kind: RowKind, model: f64) -> Row {
        Row::new("t", "r".into(), 100.0, model, kind)
    }

    #[test]
    fn totals_of_other_numbers_say_so() {
        let other = Params { iotlb_entries: 100.0, ..Params::default() };
        let said = "not the totals of docs/results/pcie.md: iotlb_entries is 100 and not 64\n";
        assert_eq!((changed(&other).as_str(), changed(&Params::default()).as_str()), (said, ""));
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
        // Within 15, 10 and 5 %, and of how many; those of others below each. No row here repeats another.
        assert_eq!(lines[0], ["2", "1", "1", "2"], "{text}");
        assert_eq!(lines[1], ["1", "1", "1", "1"], "{text}");
        assert_eq!(lines[2], ["0", "0", "0", "1"], "{text}");
        assert_eq!(lines[4], ["1", "1", "0", "1"], "{text}");
        assert_eq!(lines[6], ["1", "1", "1", "1"], "{text}");
        assert_eq!(lines[8], ["2", "1", "1", "2"], "{text}");
        assert_eq!(lines[13], ["4", "3", "2", "5"], "{text}");
        assert_eq!(lines[14], ["2", "1", "1", "2"], "{text}");
        assert!(text.starts_with("  ") && text.contains("\nknown before "), "{text}");
    }

    /// A row whose answer is another's counts as predicted, and not among those that repeat nothing.
    #[test]
    fn rows_that_repeat_others_are_counted_apart() {
        let rows = [
            row(RowKind::Predicted, 101.0),
            Row { repeats: true, ..row(RowKind::Predicted, 102.0) },
            Row { repeats: true, ..row(RowKind::Known, 102.0) },
        ];
        let text = totals(&rows);
        let counts = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().rev().take(4).map(str::to_owned).collect()
        };
        assert_eq!(counts("predicted"), ["2", "2", "2", "2"], "{text}");
        assert_eq!(counts("no repeats"), ["1", "1", "1", "1"], "{text}");
        assert_eq!(counts("  without the 7955WX"), ["1", "1", "1", "1"], "{text}");
        let table = format!("{MOST_ROWS}, two Switchtec");
        let text = totals(&[Row { table, ..row(RowKind::Predicted, 101.0) }]);
        assert!(text.contains("\n  without the 7955WX         0 "), "{text}");
    }

    /// What two more rules could take out of the count: rows that an IOMMU moves, and FPGAs'.
    #[test]
    fn rows_of_an_iommu_and_of_fpgas_can_be_left_out() {
        let rows = [
            row(RowKind::Predicted, 101.0),
            row(RowKind::Known, 101.0),
            Row { is_translated: true, ..row(RowKind::Predicted, 150.0) },
            Row { table: "Alveo U50, host not named".into(), ..row(RowKind::Predicted, 150.0) },
        ];
        let text = totals(&rows);
        let line = text.lines().find(|line| line.starts_with("without IOMMU and FPGA")).unwrap();
        assert_eq!(line.split_whitespace().skip(4).collect::<Vec<_>>(), ["1", "1", "1", "1"]);
    }

    /// Repeats are told by their answers, alike within 1 %: of two predicted rows of one size and answer the first
    /// counts, none where a known row has it, wherever that stands; of another size each counts, but once.
    #[test]
    fn equal_answers_of_a_size_are_one_prediction() {
        let of = |size: &str, row: Row| row.of_size(size.to_owned());
        let mut rows = [
            of("a", row(RowKind::Predicted, 101.0)),
            of("a", row(RowKind::Predicted, 101.5)),
            of("a", row(RowKind::Predicted, 105.0)),
            of("b", row(RowKind::Predicted, 101.0)),
            of("c", row(RowKind::Predicted, 108.0)),
            of("c", row(RowKind::Seen, 108.0)),
            row(RowKind::Predicted, 105.0),
        ];
        crate::sim_rows::mark_repeats(&mut rows);
        let repeats: Vec<bool> = rows.iter().map(|row| row.repeats).collect();
        assert_eq!(repeats, [false, true, false, false, true, false, false]);
        let again = rows.iter().filter(|row| row.again).count();
        // The test's rows are times and rates alike.
        assert_eq!(again, 4, "{rows:?}");
    }

    /// The blind share is of the later collections alone, by first answers, whatever their kind is now.
    #[test]
    fn blind_rows_are_the_later_collections_by_first_answers() {
        let of = |collection, row: Row| Row { collection, ..row };
        let rows = [
            of(1, row(RowKind::Predicted, 101.0)),
            of(2, moved(RowKind::Predicted)),
            of(3, row(RowKind::Predicted, 112.0)),
        ];
        let text = totals(&rows);
        let line = text.lines().find(|line| line.starts_with("asked blind")).unwrap();
        let counts: Vec<&str> = line.split_whitespace().skip(2).collect();
        assert_eq!(counts, ["2", "0", "0", "1"], "{text}");
        // A link that the rate chose is none of its source.
        let chosen = Row { assumes_a_link: true, ..of(3, row(RowKind::Predicted, 101.0)) };
        let text = totals(&[chosen, of(3, row(RowKind::Predicted, 112.0))]);
        let line = text.lines().find(|line| line.starts_with("  links by the source")).unwrap();
        let counts: Vec<&str> = line.split_whitespace().skip(4).collect();
        assert_eq!(counts, ["1", "0", "0", "1"], "{text}");
    }

    /// Rates alone, of the collections alone; a tenth too slow is no bound.
    #[test]
    fn a_bound_is_of_the_collections_rates() {
        let rate = |model: f64| {
            let row = Row::new("t", "r, GB/s".into(), 100.0, model, RowKind::Predicted);
            Row { collection: 1, ..row }
        };
        let first = Row { first: Some(90.0), is_alone: true, ..rate(96.0) };
        let alone = Row { is_alone: true, ..rate(90.0) };
        let rows = [rate(300.0), rate(96.0), alone, first, Row { collection: 0, ..rate(50.0) }];
        let text = bound(&rows);
        let (text, several) = text.split_once("  of several").unwrap();
        assert!(
            text.starts_with("rates of the collections: 4; measured at most 1.05 times"),
            "{text}"
        );
        assert!(text.ends_with("the model: 3, by the first answers 2\n"), "{text}");
        assert!(several.contains(": 2; ") && several.ends_with("2, by the first answers 2\n"));
        let time = Row { row: "r, ns".into(), ..rate(50.0) };
        assert!(bound(&[time]).starts_with("rates of the collections: 0; "));
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
        assert_eq!(said(&pair([50.0, 49.8], [45.0, 50.0], None)), None, "a tie when measured");
        let mut elsewhere = pair([50.0, 40.0], [50.0, 45.0], None);
        elsewhere[1].mover = Some((Move::Read, "a-c".into()));
        assert_eq!(said(&elsewhere), None);
        let seen = pair([50.0, 40.0], [50.0, 45.0], None).map(|r| Row { kind: RowKind::Seen, ..r });
        assert_eq!(said(&seen), None);
    }

    /// A row that a later rule moves from 130 to 101.
    fn moved(kind: RowKind) -> Row {
        row(kind, 101.0).answered(Answer { now: 101.0, first: 130.0, queued: None })
    }

    /// A row that a later rule moves counts by what was said of it first, and not if it was known then.
    #[test]
    fn what_was_first_asked_counts_what_later_rules_move() {
        let predicted = row(RowKind::Predicted, 104.0);
        let rows = [
            moved(RowKind::Predicted),
            moved(RowKind::Known),
            row(RowKind::Known, 100.0),
            predicted,
        ];
        let text = totals(&rows);
        let line = text.lines().find(|line| line.starts_with("as first asked")).unwrap();
        let counts: Vec<&str> = line.split_whitespace().skip(3).collect();
        assert_eq!(counts, ["2", "1", "1", "1"], "{text}");
    }

    /// Rows across sockets have a line of their own, now and as first asked, whatever their kind.
    #[test]
    fn rows_across_sockets_are_counted_apart() {
        let far = |row: Row| Row { crosses_sockets: true, ..row };
        let rows = [
            far(moved(RowKind::Known)),
            far(row(RowKind::Predicted, 112.0)),
            row(RowKind::Predicted, 100.0),
        ];
        let text = totals(&rows);
        let mut lines = text.lines().skip_while(|line| !line.starts_with("copies across sockets"));
        let mut counts =
            || -> Vec<&str> { lines.next().unwrap().split_whitespace().rev().take(4).collect() };
        assert_eq!(
            (counts(), counts()),
            (vec!["2", "1", "1", "2"], vec!["1", "0", "0", "2"]),
            "{text}"
        );
    }

    #[test]
    fn pairs_alike_that_were_measured_apart_are_named() {
        let pair = |rates: [f64; 2]| {
            let row = |i: usize, by| Row {
                mover: Some((by, "a-b".into())),
                ..Row::new("t", "r".into(), rates[i], 50.0, RowKind::Predicted)
            };
            [row(0, Move::Write), row(1, Move::Read)]
        };
        let text = signs(&pair([50.0, 45.0]));
        assert!(
            text.contains("1 alike within 1 %, of which 1 measured more than 5 % apart"),
            "{text}"
        );
        assert!(text.contains("\n  alike: t: r and r: measured 50.0000 and 45.0000"), "{text}");
        let text = signs(&pair([50.0, 48.5]));
        assert!(text.contains("of which 0 ") && !text.contains("\n  alike: "), "{text}");
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

    /// FNV-1a, 64 bits.
    fn digest(text: &str) -> u64 {
        let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
    }

    /// A guard of the totals that takes no minute: whoever changes a row, a machine, a parameter or a profile
    /// has to run `totals_are_as_the_page_says` too, and to write down of what the totals are.
    #[test]
    fn the_page_has_the_totals_of_these_rows_and_numbers() {
        use bellpush::pcie::sim;
        let rows = [
            format!("{:?}", sim::HOST_ROWS),
            format!("{:?}", sim::HOST_CHECKS),
            format!("{:?}", sim::IOMMU_ROWS),
            format!("{:?}", sim::H200_CURVES),
            format!("{:?}", sim::H200_HOPS),
            format!("{:?}", sim::H200_THREADS),
            format!("{:?}", sim::PEER_ROWS),
            format!("{:?}", sim::ORDER_ROWS),
            format!("{:?}", sim::COPY_ROWS),
            format!("{:?}", sim::SECOND_COPY_ROWS),
            format!("{:?}", sim::THIRD_COPY_ROWS),
            format!("{:?}", sim::COLLAPSE_ROWS),
            format!("{:?}", sim::NFP_SIZES),
        ];
        let numbers = [
            format!("{:?}", Params::default()),
            format!("{:?}", bellpush::pcie::topology::PROFILES),
            format!("{:?}", bellpush::pcie::topology::KNOWN_COLLAPSES),
        ];
        let [rows, numbers] = [rows.concat(), numbers.concat()].map(|text| digest(&text));
        let said = format!("totals of rows {rows:016x} and numbers {numbers:016x}");
        let page = include_str!("../../../docs/results/pcie.md");
        assert!(
            page.contains(&said),
            "docs/results/pcie.md has totals of others: run the ignored test \
             totals_are_as_the_page_says, then write: {said}"
        );
    }

    /// The page has what the command prints.
    #[test]
    #[ignore = "a minute"]
    fn totals_are_as_the_page_says() {
        let rows = crate::sim_rows::all(&Params::default()).unwrap();
        let page = include_str!("../../../docs/results/pcie.md");
        let said = totals(&rows);
        // The pairs that it names stand there in words.
        let (signs, intervals, bound) = (signs(&rows), intervals(&rows), bound(&rows));
        let totals = said.lines().skip(1).chain(signs.lines().take(3)).chain(intervals.lines());
        for line in totals.chain(bound.lines()) {
            assert!(page.contains(line), "docs/results/pcie.md does not say: {line}");
        }
    }
}
