//! `bellpush bench` on the host executor: messages by several blocks, lines of every format.

use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    let short = ["bench", "--gpu", "host", "--seconds", "0.1", "--messages", "40"];
    Command::new(env!("CARGO_BIN_EXE_bellpush")).args(short).args(args).output().unwrap()
}

#[test]
fn messages_by_several_blocks_are_measured_and_verified() {
    let paths = ["--data", "push,pull", "--kick", "kernel,inband", "--sizes", "8,200KiB"];
    for line in ["12+4", "60+4"] {
        let more = ["--blocks", "3", "--line", line, "--json", "-"];
        let output = bench(&[&paths[..], &more].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{line}: {told}");
        assert!(
            told.contains("pull/kernel is left out") && told.contains("several blocks"),
            "{told}"
        );
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = json["results"].as_array().unwrap();
        assert_eq!(rows.len(), 4, "two paths and two sizes: {json}");
        for row in rows {
            assert_eq!((&row["blocks"], &row["verified"]), (&3.into(), &true.into()), "{row}");
        }
    }
}

/// Lines that four lanes write, by the one block that there usually is.
#[test]
fn rows_of_every_line_format_are_verified() {
    for line in ["12+4", "14+2", "60+4"] {
        let paths = ["--data", "push", "--kick", "inband", "--sizes", "8,5000", "--json", "-"];
        let output = bench(&[&paths[..], &["--line", line]].concat());
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn several_blocks_are_refused_where_they_mean_nothing() {
    for (more, said) in [(&["--tune"][..], "--tune"), (&["--qps", "2"], "--qps with --blocks 2")] {
        let output = bench(&[&["--blocks", "2"], more].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(said), "{told}");
    }
}

/// Every run is kept, and every place of a result takes them for repetitions.
#[test]
fn runs_are_kept_and_are_one_row_with_median_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("runs.json").display().to_string();
    let rows = ["--data", "push", "--kick", "kernel", "--sizes", "8,64", "--runs", "3"];
    let measured = bench(&[&rows[..], &["--json", &file]].concat());
    let told = String::from_utf8(measured.stdout).unwrap();
    assert!(measured.status.success(), "{told}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let rows = json["results"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "a path and two sizes, three runs of each");
    assert!(
        rows.chunks(3).all(|runs| runs.iter().all(|r| r["size_bytes"] == runs[0]["size_bytes"]))
    );

    assert!(told.contains("3 runs of all rows, every other in reverse order"), "{told}");
    let line = told.lines().find(|line| line.contains("8 B")).unwrap();
    let cells: Vec<_> = line.split_whitespace().collect();
    assert_eq!(cells[2..5], ["push/kernel", "3", "120"], "{line}");
    let mut p50: Vec<f64> =
        rows[..3].iter().map(|r| r["latency_ns_p50"].as_f64().unwrap()).collect();
    p50.sort_by(f64::total_cmp);
    let shown = |ns| bellpush_cli::report::human::time_ns(ns);
    assert_eq!(cells[5..7].join(" "), shown(p50[1]), "{line}");
    let ends = bellpush_cli::report::human::range([p50[0], p50[2]].map(shown));
    assert!(line.contains(&ends), "{ends}: {line}");

    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_bellpush")).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run(&["show", &file]), told, "show has what bench printed");
    let compared = run(&["compare", &file, &file, "--json", "-"]);
    let compared: serde_json::Value = serde_json::from_str(&compared).unwrap();
    let of = |row: &&serde_json::Value| row["measure"] == "latency_ns_p50";
    let first = compared["results"].as_array().unwrap().iter().find(of).unwrap();
    assert_eq!(first["before"], p50[1]);
    assert_eq!(first["low"].as_f64().unwrap(), p50[0] / p50[2], "{first}");
}

#[test]
fn runs_that_mean_nothing_are_refused() {
    for (args, said) in [
        (&["--runs", "0"][..], "--runs is 0"),
        (&["--runs", "1001"], "give a number from 1 to 1000"),
        (&["--runs", "-1"], "--runs"),
        (&["--runs", "4294967296"], "--runs"),
        (&["--runs", "many"], "--runs"),
        (&["--runs", "2", "--tune"], "--tune"),
        (&["--runs", "2", "--tearing"], "--tearing"),
    ] {
        let output = bench(args);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && told.contains(said), "{args:?}: {told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

/// A number's slices and instants of a trace, by what they are of.
fn traced<'a>(trace: &'a serde_json::Value, cat: &str, name: &str) -> Vec<&'a serde_json::Value> {
    let events = trace["traceEvents"].as_array().unwrap().iter();
    events.filter(|event| event["cat"] == cat && event["name"] == name).collect()
}

/// When arrows from puts begin, and when they end.
fn arrows(trace: &serde_json::Value) -> Vec<(f64, f64)> {
    let of = |ph: &'static str| {
        let events = trace["traceEvents"].as_array().unwrap().iter();
        let posted = events.filter(move |event| event["ph"] == ph && event["name"] == "posted");
        posted.map(|event| event["ts"].as_f64().unwrap())
    };
    of("s").zip(of("f")).collect()
}

#[test]
fn a_trace_that_cannot_be_written_costs_no_result() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rows.json");
    let mut run = Command::new(env!("CARGO_BIN_EXE_bellpush"));
    run.args(["bench", "--gpu", "host", "--data", "push", "--kick", "kernel", "--sizes", "64"]);
    run.args(["--messages", "20", "--trace", "/dev/full", "--json"]).arg(&file);
    let output = run.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("cannot write /dev/full"), "{said}");
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(saved["results"].as_array().unwrap().len(), 1, "{saved}");
}

/// What the kernel calls, the NIC sees after, and the kernel waits for; on the host executor, or with BELLPUSH_TEST_GPU=N
/// on a CUDA GPU.
#[test]
fn a_trace_has_the_kernels_puts_around_their_doorbells() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace.json").display().to_string();
    let gpu = std::env::var("BELLPUSH_TEST_GPU").unwrap_or_else(|_| "host".into());
    let mut run = Command::new(env!("CARGO_BIN_EXE_bellpush"));
    run.args(["bench", "--gpu", &gpu, "--seconds", "5", "--messages", "80", "--data", "push"]);
    run.args(["--kick", "kernel", "--sizes", "64", "--json", "-", "--trace", &file]);
    let output = run.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let notes = said["meta"]["notes"].to_string();
    assert!(notes.contains("write down for --trace"), "{notes}");

    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let ends = &trace["otherData"]["kernels"][0];
    assert_eq!(ends["lost"], 0, "{ends}");
    let clock = trace["otherData"]["clock"].as_str().unwrap();
    let within: f64 = clock.split(" within ").skip(1).map(number).sum();
    let us = |event: &serde_json::Value, key: &str| event[key].as_f64().unwrap();
    let puts = traced(&trace, "kernel", "put");
    assert_eq!(puts.len(), 80, "a slice for each message");
    let rounds = traced(&trace, "round", "push/kernel, 64 B");
    let mut doorbells: Vec<f64> =
        traced(&trace, "mark", "doorbell").iter().map(|event| us(event, "ts")).collect();
    doorbells.sort_by(f64::total_cmp);
    // One message after the other: the first round, which warms up, and the one of latencies.
    let alone = 10 + 20;
    for (put, &doorbell) in puts[..alone].iter().zip(&doorbells) {
        let called = us(put, "ts");
        let complete = called + us(&put["args"], "complete_after_us");
        let off = within / 1000.0;
        let between = called - off..=complete + off;
        assert!(between.contains(&doorbell), "{put}: {doorbell}, within {off} us");
        assert!(called + us(put, "dur") <= complete, "{put}");
        let holds = |round: &&&serde_json::Value| {
            us(round, "ts") <= called && complete <= us(round, "ts") + us(round, "dur") + 0.002
        };
        assert!(rounds.iter().any(|round| holds(&round)), "{put} in {rounds:?}");
    }
    // The doorbell that the NIC saw, by the ticket and not by time.
    let ends = arrows(&trace);
    assert_eq!(ends.len(), puts.len(), "an arrow from each put");
    let rung: Vec<f64> =
        traced(&trace, "wqe", "RDMA_WRITE").iter().map(|it| us(it, "ts")).collect();
    assert!(ends.iter().all(|(_, to)| rung.contains(to) && doorbells.contains(to)), "{ends:?}");
    let mut explain = Command::new(env!("CARGO_BIN_EXE_bellpush"));
    let explained = explain.args(["trace", "--explain", &file]).output().unwrap();
    let lines = String::from_utf8(explained.stdout).unwrap();
    assert!(lines.contains("block 0: all messages are complete, the last message "), "{lines}");
}

/// The number that a text begins with.
fn number(text: &str) -> f64 {
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

/// Paths whose kernels differ, and several blocks, write marks as well.
#[test]
fn every_kind_of_kernel_writes_marks() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace.json").display().to_string();
    let ways: [&[&str]; 6] = [
        &["--data", "push", "--kick", "inband", "--line", "60+4"],
        &["--data", "push", "--kick", "blueflame"],
        &["--data", "pull", "--kick", "kernel", "--in-flight", "4"],
        &["--data", "auto"],
        &["--data", "push", "--kick", "kernel", "--in-flight", "8", "--qps", "2"],
        &["--data", "push", "--kick", "kernel", "--blocks", "2"],
    ];
    for way in ways {
        let output = bench(&[way, &["--sizes", "64", "--trace", &file]].concat());
        assert!(output.status.success(), "{way:?}: {}", String::from_utf8_lossy(&output.stderr));
        let trace: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let blocks = if way.contains(&"--blocks") { 2 } else { 1 };
        let puts = traced(&trace, "kernel", "put");
        assert!(puts.len() >= 40 * blocks, "{way:?}: {} puts", puts.len());
        let complete = |put: &&&serde_json::Value| put["args"].get("complete_after_us").is_some();
        assert_eq!(puts.iter().filter(complete).count(), puts.len(), "{way:?}");
        assert!(puts.iter().all(|put| put["args"]["qp"].is_string()), "{way:?}");
        // To its doorbell, or where there is none to its fetch.
        let ends = arrows(&trace);
        // A block may come to a message that another has had sent.
        let most = puts.len();
        assert!((most / blocks..=most).contains(&ends.len()), "{way:?}: {} of {most}", ends.len());
        // A clock may count in steps of 10 ns: another block rings in the one in which this block is called.
        assert!(ends.iter().all(|(from, to)| from <= to), "{way:?}: {ends:?}");
        assert_eq!(trace["otherData"]["kernels"][0]["blocks"].as_array().unwrap().len(), blocks);
    }
}
