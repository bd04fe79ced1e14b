//! Traces of programs that know nothing of them: `bellpush trace`, `bellpush run --stats`, `--metrics`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde_json::Value;

use crate::preloaded::{LISTEN, OBJECT, Running, alone, bellpush, free_port, there, wait_for};
use crate::shim::PROGRAM;

/// `bellpush trace OPTIONS -o FILE -- COMMAND`.
fn trace(file: &Path, command: &[&str]) -> Running {
    LazyLock::force(&OBJECT);
    let mut run = Command::new(bellpush());
    run.args(["trace", "--link-type", "shm", "-o"]).arg(file).arg("--").args(command);
    Running::spawn(&mut run)
}

/// Server and client of a program, each traced; how the client ended.
fn pair(folder: &Path, command: &[&str]) -> Option<i32> {
    let port = free_port();
    let common = [&["timeout", "10"], command, &["-p", &port]].concat();
    let server = trace(&folder.join("server.json"), &common);
    wait_for(&port, LISTEN);
    let client = trace(&folder.join("client.json"), &[&common[..], &["127.0.0.1"]].concat());
    let ended = client.end();
    server.end();
    ended.code
}

fn explained(file: &Path) -> String {
    let output = Command::new(bellpush()).args(["trace", "--explain"]).arg(file).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let same = Command::new(bellpush()).args(["doctor", "--trace"]).arg(file).output().unwrap();
    assert_eq!(same, output, "doctor says the same");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_programs_wqes_and_waits_are_in_its_trace_and_two_traces_become_one() {
    let _alone = alone();
    if !there("ib_write_lat") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let code = pair(folder.path(), &["ib_write_lat", "-F", "-n", "100"]);
    assert_eq!(code, Some(0));
    let [server, client, both] =
        ["server", "client", "both"].map(|it| folder.path().join(format!("{it}.json")));
    let mode = std::fs::metadata(&client).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut merge = Command::new(bellpush());
    merge.args(["trace", "-o"]).arg(&both).arg("--merge").args([&server, &client]);
    assert!(merge.status().unwrap().success());
    let read =
        |file: &Path| serde_json::from_slice::<Value>(&std::fs::read(file).unwrap()).unwrap();
    let count = |trace: &Value, key: &str, is: &str| {
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event[key] == is).count()
    };
    for file in [&server, &client] {
        let trace = read(file);
        assert_eq!(count(&trace, "cat", "wqe"), 100, "each end writes as often");
        assert_eq!(count(&trace, "cat", "in"), 100);
        assert_eq!(count(&trace, "ph", "s"), 0, "the other end is elsewhere");
        assert!(count(&trace, "cat", "wait") > 0, "it polls for its completions");
        assert_eq!(count(&trace, "name", "RDMA_WRITE"), 100);
    }
    let both = read(&both);
    assert_eq!((count(&both, "ph", "s"), count(&both, "ph", "f")), (200, 200));
    assert!(
        explained(&client).contains("waits for nothing: 100 WQEs done"),
        "{}",
        explained(&client)
    );
}

/// perftest's server posts receives for the messages that it was told of; a client that sends more waits for ever.
#[test]
fn a_run_that_is_killed_says_what_it_waited_for() {
    let _alone = alone();
    if !there("ib_send_lat") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let common = ["ib_send_lat", "-F", "-p", &port];
    let server = [&["timeout", "10"], &common[..], &["-n", "100"]].concat();
    let _server = trace(&folder.path().join("server.json"), &server);
    wait_for(&port, LISTEN);
    let file = folder.path().join("client.json");
    let client =
        [&["timeout", "-s", "KILL", "2"], &common[..], &["-n", "100000000", "127.0.0.1"]].concat();
    let ended = trace(&file, &client).end();
    assert_ne!(ended.code, Some(0), "{ended:?}");
    let text = explained(&file);
    assert!(
        text.contains("not closed; thread ") && text.contains(" polls in vain since "),
        "{text}"
    );
    assert!(text.contains("RNR: the peer's receive queue is empty: WQE 100 (SEND, 2 B)"), "{text}");
}

/// The child of a fork polls a CQ of its parent's, in vain, and then opens a device of its own.
#[test]
fn a_childs_polls_are_not_its_parents() {
    let Some(program) = &*PROGRAM else { return };
    let _alone = alone();
    LazyLock::force(&OBJECT);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forks.json");
    let mut run = Command::new(bellpush());
    run.args(["trace", "-o"]).arg(&file).arg("--").arg(program).arg("forks");
    let ended = Running::spawn(&mut run).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let text = explained(&file);
    let devices: Vec<&str> = text.lines().filter(|line| line.contains(", mlx5_0 (")).collect();
    assert_eq!(devices.len(), 2, "the parent's and the child's: {text}");
    for line in devices {
        let pid = line.split(',').next().unwrap().rsplit(' ').next().unwrap();
        let threads = line.split("; thread ").skip(1).map(|rest| rest.split(' ').next().unwrap());
        let others: Vec<&str> = threads.filter(|thread| *thread != pid).collect();
        assert!(others.is_empty(), "main threads alone poll: {text}");
    }
}

#[test]
fn a_run_counts_and_serves_its_counters_while_it_lasts() {
    let _alone = alone();
    if !there("ibv_devinfo") {
        return;
    }
    LazyLock::force(&OBJECT);
    let lines = "ibv_devinfo >/dev/null; read line; exit 7";
    let mut run = Command::new(bellpush());
    run.args(["run", "--stats", "--metrics=0", "--", "sh", "-c", lines]);
    let mut run = run.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(run.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let at = line.trim().strip_prefix("bellpush: metrics at http://").expect("where it serves");
    let at = at.strip_suffix("/metrics").unwrap().to_owned();
    assert!(at.starts_with("127.0.0.1:"), "{at}");
    let ask = |request: &[u8]| {
        let mut stream = TcpStream::connect(&at).unwrap();
        let mut answer = String::new();
        let asked = stream.write_all(request).and_then(|()| stream.read_to_string(&mut answer));
        asked.map(|_| answer).unwrap_or_default()
    };
    // One that says nothing, and one that says too much, do not keep the next from its answer.
    let _silent = TcpStream::connect(&at).unwrap();
    ask(&[b'x'; 8192]);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let answer = ask(b"GET /metrics HTTP/1.0\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
        if answer.contains("bellpush_wqes_total{program=\"ibv_devinfo\",pid=\"") {
            break;
        }
        assert!(std::time::Instant::now() < until, "{answer}");
    }
    drop(run.stdin.take());
    assert_eq!(run.wait().unwrap().code(), Some(7));
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("ibv_devinfo ") && rest.contains("mlx5_0 (127."), "{rest}");
}

#[test]
fn what_a_device_logs_is_off_until_it_is_asked_for() {
    let _alone = alone();
    if !there("ib_write_lat") {
        return;
    }
    LazyLock::force(&OBJECT);
    let logged = |level: &str, format: &str| {
        let port = free_port();
        let common =
            ["run", "--link-type", "shm", "--", "ib_write_lat", "-F", "-n", "50", "-p", &port];
        let server = Running::spawn(Command::new(bellpush()).args(common));
        wait_for(&port, LISTEN);
        let mut client = Command::new(bellpush());
        client.args(common).arg("127.0.0.1").env("RUST_LOG", "trace");
        client.env("BELLPUSH_LOG", level).env("BELLPUSH_LOG_FORMAT", format);
        let ended = Running::spawn(&mut client).end();
        server.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.text
    };
    assert!(!logged("", "").contains("state changed"));
    let text = logged("bellpush=debug", "json");
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let moves: Vec<_> = lines.filter(|line| line["message"] == "state changed").collect();
    assert!(moves.iter().any(|line| line["from"] == "RTR" && line["to"] == "RTS"), "{text}");
    assert!(moves.iter().all(|line| line["qp"].is_u64() && line["ts_ns"].is_u64()), "{text}");
    assert!(logged("debug", "").contains(" DEBUG state changed qp=0x"));
    let mut wrong = Command::new(bellpush());
    let output = wrong.args(["doctor", "--json"]).env("BELLPUSH_LOG", "loud").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let line = String::from_utf8_lossy(&output.stderr);
    assert!(line.lines().count() == 1 && line.contains("BELLPUSH_LOG=loud: loud: off, "), "{line}");
}

#[test]
fn our_own_endpoints_are_traced_and_what_is_no_trace_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bench.json");
    let mut bench = Command::new(bellpush());
    bench.args(["bench", "--gpu", "host", "--data", "push", "--kick", "kernel", "--sizes", "64"]);
    bench.args(["--messages", "50", "--seconds", "2", "--link", "shm", "--trace"]).arg(&file);
    let output = bench.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = explained(&file);
    let done =
        text.split(" WQEs done").next().and_then(|head| head.rsplit(' ').next()?.parse().ok());
    assert!(done.is_some_and(|done: u64| done >= 50), "{text}");
    for args in [
        &["trace", "--explain", "/dev/null"][..],
        &["doctor", "--trace", "/dev/null"],
        &["trace", "--merge", "/dev/null", "/dev/null", "-o", "/dev/null"],
    ] {
        let output = Command::new(bellpush()).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
    }
}
