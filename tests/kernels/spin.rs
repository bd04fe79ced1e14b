//! The models of `models/`, which the model checker Spin explores in full: each holds, and without
//! one of the protocol's parts it does not. `BELLPUSH_WRITE_RESULTS` set: prints the table of
//! docs/reliability.md.

use std::path::Path;
use std::process::Command;

/// What a model is to come to.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Holds,
    /// Something is read that is not there, or a queue overflows.
    Asserts,
    /// The caller does not come to its end.
    Stands,
}
use End::{Asserts, Holds, Stands};

impl End {
    fn word(self) -> &'static str {
        match self {
            Holds => "holds",
            Asserts => "fails",
            Stands => "stands",
        }
    }
}

/// Model, macros, end.
type Case = (&'static str, &'static str, End);

/// Those that take moments.
const QUICK: &[Case] = &[
    ("push", "STRICT", Holds),
    ("push", "RECORD_LEFT_BEHIND", Holds),
    ("push", "NO_FENCE", Asserts),
    ("push", "NO_CREDITS", Asserts),
    ("push", "NEVER_COMPLETES", Stands),
    ("push", "SQ=2 SLOTS=4 STRICT PUTS_ONLY", Holds),
    ("push", "SQ=2 SLOTS=4 NO_RING_CREDITS", Stands),
    ("push", "SLOTS=4 PERIOD=1 STRICT PUTS_ONLY SHALLOW_CQ", Asserts),
    ("inband", "", Holds),
    ("inband", "ONE_SCRUB_LAP", Asserts),
    ("inband", "UNFENCED_SCRUB", Asserts),
    ("inband", "NEVER_COMPLETES", Stands),
];

/// All of the others. Those that end in an error stop at the first one.
const LONG: &[Case] = &[
    ("push", "", Holds),
    ("push", "N=18", Holds),
    ("push", "OWN_PAGE", Holds),
    ("push", "SLOTS=4 PUTS_ONLY N=18", Holds),
    ("push", "SLOTS=4 STRICT", Holds),
    ("push", "SLOTS=4 PERIOD=1 STRICT PUTS_ONLY", Holds),
    ("push", "SQ=2 SLOTS=4", Holds),
    ("push", "SLOTS=4 LARGE PUTS_ONLY", Holds),
    ("push", "SLOTS=4 LARGE PUTS_ONLY WAITS_FOR_REGISTER", Stands),
    ("push", "SLOTS=4 SHORT_COUNTERS PUTS_ONLY", Asserts),
    ("push", "STRICT ONE_FENCE", Stands),
    ("push", "STRICT RECORD_LEFT_BEHIND", Stands),
    ("push", "COMPLETES_EARLY", Asserts),
    ("push", "PERIOD_OF_THE_RING", Stands),
    ("push", "NO_ACQUIRE", Asserts),
    ("push", "NIC_UNORDERED", Asserts),
    ("push", "WAITS_UNRUNG", Stands),
    ("inband", "N=12", Holds),
    ("inband", "N=18", Holds),
    ("inband", "CYCLE=4 N=18", Holds),
    ("inband", "NO_CREDITS", Asserts),
    ("inband", "NO_SCRUB", Asserts),
    ("inband", "ALL_CLEARED_AT_ONE", Asserts),
    ("inband", "NOT_CLEARED", Asserts),
    ("inband", "TORN", Asserts),
    ("inband", "DATA_FIRST", Asserts),
    ("inband", "COMPLETES_EARLY", Asserts),
    ("inband", "SELDOM_SIGNALLED", Stands),
];

fn output(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}: {out:?}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// What pan says of a model: every state, or those before the first error.
fn pan(folder: &Path, defined: &str, option: &str) -> String {
    // Memory in MiB that the states may take.
    let options = ["-O1", "-w", defined, "-DCOLLAPSE", "-DMEMLIM=6000", "-o", "pan", "pan.c"];
    output(Command::new("cc").args(options).current_dir(folder));
    // Depth and hash table, in entries and in its logarithm.
    let arguments = ["-m200000", "-w22"].into_iter().chain(Some(option).filter(|o| !o.is_empty()));
    let said = output(Command::new("./pan").args(arguments).current_dir(folder));
    // At an error it stops as well, and says so by the same words.
    let is_whole = !said.contains("errors: 0") || !said.contains("Search not completed");
    assert!(is_whole && !said.contains("max search depth"), "{said}");
    said
}

/// A number's digits in groups of three.
fn thousands(digits: &str) -> String {
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Explores one; its states.
fn explore(&(model, macros, want): &Case, finds_loops: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("models/{model}.pml"));
    let text = std::fs::read_to_string(&source).unwrap();
    for name in macros.split_whitespace().map(|it| it.split('=').next().unwrap()) {
        let is_used = |line: &str| {
            let is_if = line.starts_with("#if") || line.starts_with("#elif");
            is_if && line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|it| it == name)
        };
        assert!(text.lines().any(is_used), "{model} does not know {name}");
    }
    let defined: Vec<String> = macros.split_whitespace().map(|m| format!("-D{m}")).collect();
    output(Command::new("spin").arg("-a").args(&defined).arg(source).current_dir(&folder));
    let said = pan(folder.path(), "-DSAFETY", "");
    let is = if said.contains("pan:1: assertion violated") {
        Asserts
    } else if said.contains("pan:1: invalid end state") {
        Stands
    } else {
        Holds
    };
    assert_eq!(is, want, "{model} {macros}:\n{said}");
    assert_eq!(said.contains("errors: 0"), want == Holds, "{model} {macros}:\n{said}");
    if finds_loops && want == Holds {
        // Who goes round in a circle is in no end state: there must be no circle.
        let said = pan(folder.path(), "-DNP", "-l");
        assert!(said.contains("errors: 0"), "{model} {macros}:\n{said}");
    }
    let states = said.lines().find_map(|line| line.split_once(" states, stored"));
    states.expect("pan counts states").0.trim().into()
}

fn explore_all(cases: &[Case], finds_loops: bool) {
    if Command::new("spin").arg("-V").output().is_err() {
        println!("SKIPPED: no spin (./x setup installs it)");
        return;
    }
    for case @ (model, macros, end) in cases {
        let states = explore(case, finds_loops);
        if std::env::var_os("BELLPUSH_WRITE_RESULTS").is_some() {
            println!("| `{model}.pml` | {macros} | {} | {} |", end.word(), thousands(&states));
        }
    }
}

#[test]
fn models_hold_and_their_controls_do_not() {
    explore_all(QUICK, true);
}

#[test]
#[ignore = "minutes, and 2 GB of memory"]
fn all_models_hold_and_their_controls_do_not() {
    explore_all(LONG, false);
}
