//! UCX, unmodified, on software devices: `bellpush run -- ucx_perftest …`.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::preloaded::{alone, pair_succeeds, there};

/// Runs one of UCX's tests over one transport, in turn by each of these.
fn over(transports: &[&str], test: &[&str]) {
    let _alone = alone();
    if !there("ucx_perftest") {
        return;
    }
    for transport in transports {
        let choice = format!("UCX_TLS={transport},self");
        let command = ["env", &choice, "UCX_NET_DEVICES=mlx5_0:1", "ucx_perftest"];
        let [_, client] = pair_succeeds(&[], &[&command[..], test].concat());
        assert!(client.contains("Final:"), "{transport}: {client}");
    }
}

#[test]
fn queues_made_by_commands_of_the_device_carry_every_operation() {
    for test in ["tag_lat", "stream_bw", "ucp_put_lat", "ucp_get", "ucp_fadd", "ucp_cswap"] {
        over(&["rc_x", "dc_x"], &["-t", test, "-n", "50", "-w", "5"]);
    }
    over(&["rc_x", "ud_x", "dc_x"], &["-t", "tag_bw", "-s", "200000", "-n", "20", "-w", "2"]);
}

#[test]
fn datagrams_wire_connections_up() {
    over(&["rc_v", "ud_v", "ud_x"], &["-t", "tag_lat", "-n", "50", "-w", "5"]);
}

/// Tests that take any size, then atomics.
const MESSAGES: [&str; 11] = [
    "tag_lat",
    "tag_bw",
    "tag_sync_lat",
    "tag_sync_bw",
    "ucp_put_lat",
    "ucp_put_bw",
    "ucp_get",
    "stream_lat",
    "stream_bw",
    "ucp_am_lat",
    "ucp_am_bw",
];
const ATOMICS: [&str; 4] = ["ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"];

/// All tests of UCP as a file for `-b`, a test a line, and how many they are.
fn batch() -> (String, usize) {
    let mut text = String::new();
    for (bytes, times, before) in [(8, 100, 5), (65536, 30, 2), (1 << 20, 10, 1)] {
        for test in MESSAGES {
            writeln!(text, "{test}_{bytes} -t {test} -s {bytes} -n {times} -w {before}").unwrap();
        }
    }
    for bytes in [4, 8] {
        for test in ATOMICS {
            writeln!(text, "{test}_{bytes} -t {test} -s {bytes} -n 100 -w 5").unwrap();
        }
    }
    let tests = text.lines().count();
    (text, tests)
}

/// More sizes, and what options change: wildcards, unexpected messages, lists of pieces, headers, sleep, error handlers,
/// many at once, memory that is registered before.
fn longer_batch() -> (String, usize) {
    let mut text = String::new();
    let sizes = [8, 100, 1024, 8192, 65536, 1 << 20, 4 << 20];
    for (bytes, times) in sizes.into_iter().zip([100, 100, 100, 50, 30, 10, 5]) {
        for test in MESSAGES {
            writeln!(text, "{test}_{bytes} -t {test} -s {bytes} -n {times} -w 2").unwrap();
        }
    }
    for bytes in [4, 8] {
        for test in ATOMICS {
            writeln!(text, "{test}_{bytes} -t {test} -s {bytes} -n 100 -w 5").unwrap();
        }
    }
    let options = [
        ("tag_lat", "-C"),
        ("tag_lat", "-U"),
        ("tag_lat", "-E sleep"),
        ("tag_lat", "-D iov -s 1000,9000"),
        ("tag_lat", "-z -s 65536"),
        ("tag_lat", "-B -s 4096"),
        ("tag_bw", "-C -U"),
        ("tag_bw", "-D iov,iov -s 16,4096,100"),
        ("tag_bw", "-e -s 65536"),
        ("tag_bw", "-O 16 -s 65536"),
        ("stream_lat", "-r recv_data -s 1000"),
        ("stream_bw", "-r recv_data -s 65536"),
        ("stream_bw", "-e -s 4096"),
        ("ucp_am_lat", "-H 32 -s 100"),
        ("ucp_am_bw", "-H 32 -s 65536"),
        ("ucp_put_lat", "-M serialized"),
        ("ucp_put_bw", "-O 16 -s 65536"),
        ("ucp_get", "-O 16 -s 65536"),
    ];
    for (test, options) in options {
        let name = options.replace(' ', "");
        writeln!(text, "{test}_{name} -t {test} {options} -n 50 -w 2").unwrap();
    }
    let tests = text.lines().count();
    (text, tests)
}

#[test]
#[ignore = "minutes: every test of ucx_perftest over every transport"]
fn every_test_runs_over_every_transport() {
    runs_all(batch(), &["rc_v", "rc_x", "dc_x", "ud_v", "ud_x", "ib", "all"]);
}

#[test]
#[ignore = "a minute: sizes and options of ucx_perftest"]
fn a_longer_list_runs_over_queues_made_by_commands() {
    runs_all(longer_batch(), &["rc_x", "dc_x"]);
}

/// Runs a file of tests over one transport after the other: all end well.
fn runs_all((text, tests): (String, usize), transports: &[&str]) {
    let _alone = alone();
    if !there("ucx_perftest") {
        return;
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ucx.batch");
    fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    for transport in transports {
        // What is called all is what no choice at all is; shared memory then carries the most.
        let choice = match *transport {
            "all" => "UCX_TLS=all".into(),
            _ => format!("UCX_TLS={transport},self"),
        };
        let command = ["env", &choice, "ucx_perftest", "-f", "-b", file];
        let [_, client] = pair_succeeds(&[], &command);
        let ended = client.lines().filter(|line| is_result(line)).count();
        assert_eq!(ended, tests, "{transport}: {client}");
    }
}

/// A line of `-f`: the test's name and eight numbers.
fn is_result(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next().is_some_and(|name| MESSAGES.iter().chain(&ATOMICS).any(|t| name.starts_with(t)))
        && words.filter(|word| word.parse::<f64>().is_ok()).count() == 8
}
