//! `bellpush show` and what the command line says when it cannot.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use bellpush_cli::report::{Data, Kick, Meta, Nic, Results, Row, Side};

fn bellpush(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bellpush")).args(args).output().unwrap()
}

/// Asserts exit status 2, an empty stdout and one line on stderr, and returns the line.
fn refused(args: &[&str]) -> String {
    let output = bellpush(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty());
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("bellpush: ") && stderr.contains("; "), "{stderr}");
    stderr.trim_end().to_string()
}

fn results() -> Results {
    let row = |data, kick, size, ns: f64| Row {
        nic: "soft".into(),
        executor: "host".into(),
        engine: Some(Side::Host),
        messages: 100,
        latency_ns_p50: Some(ns),
        latency_ns_p99: Some(2.0 * ns),
        bandwidth_gb_s: 1.5,
        messages_per_s: 1e6,
        verified: true,
        ..Row::new(data, kick, size)
    };
    let nic = Nic { name: "soft".into(), software: true };
    Results {
        meta: Meta { nic, executor: "host".into(), ..Meta::default() },
        results: vec![
            row(Data::Push, Some(Kick::Inband), 64, 2500.0),
            row(Data::Pull, Some(Kick::Kernel), 64, 3800.0),
            row(Data::Tcp, None, 4096, 21_000.0),
        ],
    }
}

fn saved(dir: &Path, results: &Results) -> String {
    let path = dir.join("r.json");
    results.write_json(&path).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn a_good_file_gives_its_table() {
    let dir = tempfile::tempdir().unwrap();
    let file = saved(dir.path(), &results());
    let output = bellpush(&["show", &file]);
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
    let table = String::from_utf8(output.stdout).unwrap();
    for text in ["push/inband", "pull/kernel", "tcp", "64 B", "4 KiB", "2.50 µs", "✓"] {
        assert!(table.contains(text), "{text} is missing:\n{table}");
    }
    let flat = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("no ranking of paths means anything"), "{table}");
}

#[test]
fn a_report_can_be_made_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = saved(dir.path(), &results());
    let report = dir.path().join("report");
    let output = bellpush(&["show", &file, "--report", report.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    for name in ["index.html", "latency.svg", "bandwidth.svg", "results.json"] {
        assert!(report.join(name).is_file(), "{name}");
    }
    let blocked = refused(&["show", &file, "--report", &file]);
    assert!(blocked.contains("cannot create") && blocked.contains("can be written"), "{blocked}");
}

#[test]
fn stdin_is_a_file_too() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bellpush"))
        .args(["show", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(results().to_json().unwrap().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().contains("push/inband"));
}

#[test]
fn an_unverified_row_gives_status_1() {
    let dir = tempfile::tempdir().unwrap();
    let mut results = results();
    results.results[1].verified = false;
    let output = bellpush(&["show", &saved(dir.path(), &results)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains("✗"));
}

#[test]
fn files_that_cannot_be_shown() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_string()
    };
    let missing = dir.path().join("none.json");
    assert!(refused(&["show", missing.to_str().unwrap()]).ends_with("; check the name"));
    assert!(refused(&["show", dir.path().to_str().unwrap()]).ends_with("; name a file in it"));

    let line = refused(&["show", &write("empty.json", b"")]);
    assert!(line.ends_with("it is empty; make one with 'bellpush bench --json FILE'"), "{line}");
    for (name, bytes) in [
        ("text.json", b"hello".as_slice()),
        ("other.json", b"{\"meta\": 3}"),
        ("list.json", b"[]"),
        ("cut.json", &results().to_json().unwrap().as_bytes()[..300]),
        ("binary.json", b"\xff\xfe\x00\x01"),
    ] {
        let line = refused(&["show", &write(name, bytes)]);
        assert!(line.contains("it is not a bellpush result: "), "{line}");
    }

    let json = results().to_json().unwrap();
    let line = refused(&["show", &write("word.json", json.replace("inband", "shout").as_bytes())]);
    assert!(line.contains("unknown variant `shout`"), "{line}");
    let line =
        refused(&["show", &write("kick.json", json.replace("\"tcp\"", "\"pull\"").as_bytes())]);
    assert!(
        line.contains("row 3 is not valid: kick is null, which is for tcp and auto only"),
        "{line}"
    );
    let mut none = results();
    none.results.clear();
    let line = refused(&["show", &write("none.json", &serde_json::to_vec(&none).unwrap())]);
    assert!(line.contains("it has no rows"), "{line}");
}

#[test]
fn usage_errors_are_one_line() {
    assert!(refused(&["show"]).contains("<FILE.json>"));
    assert!(refused(&["shwo"]).contains("unrecognized subcommand 'shwo'"));
    assert!(refused(&["bench", "--messages", "x"]).contains("invalid value 'x' for '--messages"));
    assert!(refused(&["bench", "--size", "8"]).contains("'--sizes'"));
    assert!(refused(&["bench", "--window", "64"]).contains("smaller than a slot"));
}

#[test]
fn version_and_help() {
    let version = bellpush(&["--version"]);
    let text = String::from_utf8(version.stdout).unwrap();
    assert!(version.status.success());
    assert!(text.starts_with(&format!("bellpush {} (", env!("CARGO_PKG_VERSION"))), "{text}");
    assert!(bellpush(&["bench", "--help"]).status.success());
    assert_eq!(bellpush(&[]).status.code(), Some(2));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = saved(dir.path(), &results());
    let mut child = Command::new(env!("CARGO_BIN_EXE_bellpush"))
        .args(["show", &file])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}

/// A result twice is no repetition, and one that is shown beside others is not written over.
#[test]
fn results_stay_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report").display().to_string();
    let file = saved(dir.path(), &results());
    let own = format!("{report}/results.json");
    for _ in 0..2 {
        assert_eq!(bellpush(&["show", &file, "--report", &report]).status.code(), Some(0));
        assert_eq!(bellpush(&["show", &own, "--report", &report]).status.code(), Some(0));
    }
    assert!(refused(&["show", &file, &own]).contains("the same result a second time"));
    let mut other = results();
    other.results[0].latency_ns_p50 = Some(2600.0);
    let other = saved(dir.path(), &other);
    let told = refused(&["show", &other, &own, "--report", &report]);
    assert!(told.contains("one of the files to show"), "{told}");
    assert_eq!(Results::parse(&fs::read(&own).unwrap()).unwrap(), results());
    assert_eq!(bellpush(&["show", &other, &own]).status.code(), Some(0));
}

/// What has no end is refused before memory is full.
#[test]
fn a_file_without_end_is_refused() {
    let told = refused(&["show", "/dev/zero"]);
    assert!(told.contains("cannot read /dev/zero: not a regular file"), "{told}");
}

/// Of an even number of runs a plot has what the table has: the mean of the middle two.
#[test]
fn a_plot_has_the_median_of_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let mut all = results();
    all.results.truncate(1);
    all.results.push(Row { latency_ns_p50: Some(7500.0), ..all.results[0].clone() });
    let report = dir.path().join("report").display().to_string();
    let table = bellpush(&["show", &saved(dir.path(), &all), "--report", &report]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("5.00 µs"), "{table:?}");
    let svg = fs::read_to_string(format!("{report}/latency.svg")).unwrap();
    let points = |lines: &str| -> Vec<Vec<f64>> {
        let points = lines.split("points=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
        points
            .map(|p| p.split(' ').filter_map(|at| at.split_once(',')?.1.parse().ok()).collect())
            .collect()
    };
    let own: Vec<Vec<f64>> = points(&svg)
        .into_iter()
        .zip(svg.lines().filter(|line| line.contains("points=\"")))
        .filter(|(_, line)| line.contains("<polyline") && line.contains("#0072B2"))
        .map(|(points, _)| points)
        .collect();
    // The line is a point, and its bar goes from one run to the other: 5 µs is nearer to 7.5 than to 2.5 in decades.
    let point = own.iter().find(|points| points.len() == 1).unwrap()[0];
    let bar = own.iter().find(|points| points.len() == 2 && points[0] != points[1]).unwrap();
    let (low, high) = (bar[0].max(bar[1]), bar[0].min(bar[1]));
    let share = (low - point) / (low - high);
    assert!((share - 2f64.ln() / 3f64.ln()).abs() < 0.02, "{share}");
}

const TRACE: &str = r#"{"displayTimeUnit":"ns","traceEvents":[],"otherData":{
    "format":"bellpush-trace 1","clock":"","queues":[],"cqs":[],
    "programs":[{"pid":1,"name":"a\u202eb\u001bc\u200b"}]}}"#;

/// A merged trace has the name that a trace has by default, and the first is no place for it.
#[test]
fn a_trace_that_is_merged_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["trace.json", "other.json"] {
        fs::write(dir.path().join(name), TRACE).unwrap();
    }
    std::os::unix::fs::symlink("other.json", dir.path().join("link")).unwrap();
    let merge = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bellpush"));
        command.current_dir(dir.path()).args(["trace", "--merge", "trace.json", "other.json"]);
        command.args(more).output().unwrap()
    };
    for more in [&[][..], &["-o", "./other.json"], &["-o", "link"]] {
        let output = merge(more);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {told}");
        assert!(told.contains("one of the traces to merge") && told.lines().count() == 1, "{told}");
    }
    for name in ["trace.json", "other.json"] {
        assert_eq!(fs::read_to_string(dir.path().join(name)).unwrap(), TRACE, "{name}");
    }
    assert!(merge(&["-o", "both.json"]).status.success());
}

#[test]
fn a_trace_does_not_turn_its_explanation_around() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.json");
    fs::write(&path, TRACE).unwrap();
    let output = bellpush(&["trace", "--explain", path.to_str().unwrap()]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(told, "a\u{fffd}b\u{fffd}c\u{fffd}: not closed\n");
}
