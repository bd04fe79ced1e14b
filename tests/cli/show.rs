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
