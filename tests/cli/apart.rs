//! `bellpush bench` between two processes, of one network or of two.

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_bellpush");
const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn bench(secret: &str, args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["bench", "--gpu", "host"]).args(args).env("BELLPUSH_JOB_SECRET", secret);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    command
}

/// A place that nobody listens at.
fn place() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// What became of a process, which has a minute.
fn end(mut child: Child) -> Output {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("no end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// Both sides: the one that listens, and the one that connects.
fn both(listens: &[&str], connects: &[&str]) -> [Output; 2] {
    let place = place();
    let listener = bench(SECRET, &[&["--listen", &place], listens].concat()).spawn().unwrap();
    let short: &[_] = if connects.contains(&"--messages") { &[] } else { &["--messages", "60"] };
    let there = ["--seconds", "0.1", "--connect", &place];
    let client = bench(SECRET, &[short, &there, connects].concat()).spawn().unwrap();
    [end(listener), end(client)]
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The rows, which are alike at both sides, all verified.
#[track_caller]
fn rows(outputs: &[Output; 2]) -> Vec<serde_json::Value> {
    let of = |output: &Output| {
        assert!(output.status.success(), "{}", said(output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        json["results"].as_array().unwrap().clone()
    };
    let [listens, connects] = [of(&outputs[0]), of(&outputs[1])];
    assert_eq!(listens, connects);
    for row in &connects {
        assert_eq!((&row["verified"], &row["processes"]), (&true.into(), &2.into()), "{row}");
    }
    connects
}

#[test]
fn every_path_is_verified_by_the_other_side() {
    let paths = ["--data", "push,pull,staged,tcp,auto", "--sizes", "8,5000"];
    let all = rows(&both(&["--json", "-"], &[&paths[..], &["--json", "-"]].concat()));
    assert_eq!(all.len(), 14 * 2, "{all:#?}");
    for row in &all {
        let one_way = row["one_way_ns_p50"].as_f64().unwrap();
        assert!(one_way > 0.0 && row["both_ways"] == false && row["dest"] == "host", "{row}");
    }
}

#[test]
fn runs_of_a_row_stand_together_at_both_sides() {
    let paths = ["--data", "push,pull", "--kick", "kernel", "--sizes", "8,64", "--runs", "3"];
    let outputs = both(&["--json", "-"], &[&paths[..], &["--json", "-"]].concat());
    let all = rows(&outputs);
    assert_eq!(all.len(), 4 * 3, "{all:#?}");
    for runs in all.chunks(3) {
        for run in runs {
            assert_eq!(
                [&run["data"], &run["size_bytes"]],
                [&runs[0]["data"], &runs[0]["size_bytes"]]
            );
        }
    }
    for output in &outputs {
        let table = said(output).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(table.contains("p99 one way of runs GB/s of runs"), "{table}");
    }
}

/// Messages of which the memory holds two.
#[test]
fn long_messages_have_round_trips() {
    let long = ["--data", "push", "--kick", "kernel", "--sizes", "16MiB", "--link", "shm"];
    let rows = rows(&both(&["--json", "-"], &[&long[..], &["--json", "-"]].concat()));
    assert!(rows[0]["one_way_ns_p50"].is_number(), "{}", rows[0]);
}

#[test]
fn messages_go_both_ways_through_memory_through_loss_and_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sent");
    std::fs::write(&file, [7; 100_001]).unwrap();
    let paths = ["--data", "push,pull", "--kick", "kernel,cpu", "--sizes", "4096", "--json", "-"];
    for (here, there) in [
        (&["--link", "shm"][..], &["--both-ways", "--link", "shm"][..]),
        (&[], &["--both-ways", "--qps", "3", "--link", "udp,loss=1%,seed=5"]),
        (&["--dest", "gpu"], &["--payload", file.to_str().unwrap(), "--link", "shm"]),
    ] {
        let all = rows(&both(&[here, &["--json", "-"]].concat(), &[&paths, there].concat()));
        assert_eq!(all.len(), 4, "{there:?}");
        for row in &all {
            assert_eq!(row["both_ways"], there.contains(&"--both-ways"), "{row}");
            assert_eq!(row["dest"], if here.contains(&"--dest") { "gpu" } else { "host" }, "{row}");
        }
    }
}

#[test]
fn one_side_says_what_keeps_the_other_from_measuring() {
    for (here, there, told) in [
        (&["--link", "shm"][..], &["--link", "udp"][..], "--link is udp here and shm"),
        (&["--nic", "mlx5_99"], &[], "--nic: "),
        (&[], &["--data", "pull", "--kick", "kernel", "--blocks", "2"], "pull/kernel is left out"),
    ] {
        let [listens, connects] = both(here, &[&["--sizes", "8"], there].concat());
        let (here, there) = (said(&listens), said(&connects));
        assert_eq!((listens.status.code(), connects.status.code()), (Some(2), Some(2)), "{there}");
        assert!((here.clone() + &there).contains(told), "{here} {there}");
    }
    for (args, told) in [
        (&["--listen", "--sizes", "8"][..], "--sizes with --listen"),
        (&["--listen", "--both-ways"], "--both-ways"),
        (&["--listen", "--runs", "2"], "--runs with --listen"),
        (&["--listen", "--engines", "2"], "--engines with --listen"),
        (&["--listen", "--nic", "mlx5_0", "--address", "127.0.0.1"], "--address is the software"),
        (&["--connect", "127.0.0.1", "--timeout-ms", "70000"], "more than a minute"),
        (&["--connect", "127.0.0.1", "--listen"], "cannot be used with"),
        (&["--both-ways"], "--connect"),
        (&["--connect", "127.0.0.1", "--post"], "--post with"),
        (&["--connect", "127.0.0.1:0"], "--connect: "),
        (&["--connect", "nosuch.invalid"], "of the host that listens, with a port"),
        (&["--listen", "256.1.1.1"], "of the host that listens, with a port"),
    ] {
        let output = end(bench(SECRET, args).spawn().unwrap());
        let told_is = said(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {told_is}");
        assert!(told_is.contains(told) && told_is.trim().lines().count() == 1, "{told_is}");
        assert!(!told_is.contains("rank"), "{told_is}");
    }
    // An address of documentation (RFC 5737) is no host's own.
    let output = end(bench(SECRET, &["--listen", "192.0.2.1:29411"]).spawn().unwrap());
    let told = said(&output);
    assert!(told.contains("--listen: cannot listen at 192.0.2.1:29411: "), "{told}");
    assert!(!told.contains("rank"), "{told}");
}

/// Whoever has another secret is no side, and who is killed is missed at once.
#[test]
fn strangers_are_refused_and_the_dead_are_missed() {
    let place = place();
    let listener = bench(SECRET, &["--listen", &place]).spawn().unwrap();
    let stranger = bench(&SECRET.replace('0', "1"), &["--connect", &place]).spawn().unwrap();
    let stranger = end(stranger);
    assert_eq!(stranger.status.code(), Some(2), "{}", said(&stranger));
    let long =
        ["--data", "push", "--messages", "100000000", "--seconds", "50", "--connect", &place];
    let mut client = bench(SECRET, &long).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    client.kill().unwrap();
    client.wait().unwrap();
    let listener = end(listener);
    let told = said(&listener);
    assert_eq!(listener.status.code(), Some(2), "{told}");
    assert!(told.contains("the other side: "), "{told}");
}

/// Two networks, a wire between them that is longer than one side thinks, and packets that get lost.
#[test]
fn two_networks_of_other_mtus_with_loss() {
    let script = r#"
        set -e
        ip link add wire0 type veth peer name wire1 2>/dev/null || exit 77
        unshare -n sleep 100 & other=$!
        trap 'kill $other' EXIT
        sleep 0.2
        ip link set wire1 netns $other
        there() { nsenter -t $other -n "$@"; }
        ip addr add 10.77.0.1/24 dev wire0; ip link set wire0 mtu 1500 up; ip link set lo up
        there ip addr add 10.77.0.2/24 dev wire1; there ip link set wire1 mtu 9000 up
        there timeout 50 "$0" bench --gpu host --listen 10.77.0.2 --link udp,loss=1%,seed=3 --json - >"$1" &
        timeout 50 "$0" bench --gpu host --connect 10.77.0.2 --link udp,loss=1%,seed=4 --both-ways --data push,pull,tcp \
            --kick kernel,inband --sizes 8,100000 --messages 60 --seconds 0.1 --json -
        wait $!
    "#;
    let dir = tempfile::tempdir().unwrap();
    let there = dir.path().join("there");
    let mut command = Command::new("unshare");
    command.args(["-rn", "bash", "-c", script, PROGRAM]).arg(&there);
    command.env("BELLPUSH_JOB_SECRET", SECRET).stdout(Stdio::piped()).stderr(Stdio::piped());
    let skipped = |why: &str| {
        assert!(std::env::var_os("CI").is_none(), "no network namespaces here: {why}");
        eprintln!("skipped: no network namespaces: {why}");
    };
    let Ok(child) = command.spawn() else { return skipped("no unshare") };
    let connects = end(child);
    if connects.status.code() == Some(77) || said(&connects).contains("unshare failed") {
        return skipped(&said(&connects));
    }
    assert!(connects.status.success(), "{}", said(&connects));
    let listens = Output { stdout: std::fs::read(there).unwrap(), ..connects.clone() };
    assert_eq!(rows(&[listens, connects]).len(), 8);
}
