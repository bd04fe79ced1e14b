//! Odd and hostile commands: one line, exit status 2, no panic, and soon.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest that a refusal may take, in a debug build beside other tests.
const SOON: Duration = Duration::from_secs(60);

/// Exit status and standard error of the command; killed after [`SOON`].
fn refuse(dir: &std::path::Path, args: &[&str]) -> (Option<i32>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bellpush"))
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > SOON {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{args:?}: still running");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn odd_commands_are_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::create_dir(dir.path().join("dir")).unwrap();
    std::fs::File::create(dir.path().join("huge")).unwrap().set_len(1 << 30).unwrap();
    std::fs::write(dir.path().join("binary"), b"\xff\xfe\0bad").unwrap();
    file("empty", "");
    file("deep.toml", &format!("a={}", "[".repeat(100_000)));
    file("deep.json", &"[".repeat(100_000));
    let mut many = String::from("[[socket]]\nid='s'\n[[root_complex]]\nid='r'\nsocket='s'\n");
    (0..20_000).for_each(|i| many += &format!("[[gpu]]\nid='g{i}'\nparent='r'\n"));
    file("many", &many);
    let slow =
        "[[socket]]\nid='s'\nmemory_write_gb_per_s=1e-9\n[[root_complex]]\nid='r'\nsocket='s'\n";
    file("slow.toml", &format!("{slow}[[gpu]]\nid='g'\nparent='r'\n"));
    let gpu = |i: u32| {
        let (bus, slot, name) = (i / 32 + 1, i % 32, "3D controller: NVIDIA Corporation GA100");
        format!("{bus:02x}:{slot:02x}.0 {name}\n\tNUMA node: {i}\n")
    };
    file("many.lspci", &(0..2000).map(gpu).collect::<String>());
    file("nodes.lspci", &(0..1000).map(gpu).collect::<String>());
    let mut joined = String::from("[[socket]]\nid='s'\n[[socket]]\nid='t'\n");
    (0..5000).for_each(|_| joined += "[[interconnect]]\nfrom='s'\nto='t'\n");
    file("joined.toml", &joined);
    let row = "\"together\":\"alone\",\"row\":\"r\",\"gpu\":\"g\",\"access\":\"store\",\
               \"spread_percent\":0,\"verified\":true,\"measured\":1";
    let result = |flows: u64| {
        let meta = "{\"command\":\"link --together\",\"gpu\":\"x\"}";
        format!("{{\"meta\":{meta},\"results\":[{{{row},\"flows\":{flows}}}]}}")
    };
    file("flows.json", &result(u64::MAX));
    let none = "{\"meta\":{\"command\":\"link --together\",\"gpu\":\"x\"},\"results\":[]}";
    file("none.json", none);
    file("alone.json", &result(1));
    let flow = ["--topology", "same-switch", "--flows", "gpu0>nic0"];
    let with = |more: &[&'static str]| [&["sim"], &flow[..], more].concat();
    let one = |topology: &'static str, path: &'static str, more: &[&'static str]| {
        [&["sim", "--topology", topology, "--path", path], more].concat()
    };
    let small = ["--sizes", "1MiB", "--set", "inband_data_bytes=1"];
    let small_what = ["--sizes", "1MiB", "--what", "inband_data_bytes=1"];
    let large = ["--sizes", "16MiB", "--set", "inband_data_bytes=16"];
    let segments = ["--sizes", "16MiB", "--set", "window_kib=8"];
    for (args, said) in [
        (vec!["topo", "nowhere"], "No such file"),
        (vec!["sim", "--topology", "slow.toml", "--flows", "g>s"], "must be from 0.001 to 1000000"),
        (vec!["topo", "dir"], "not a regular file"),
        (vec!["topo", "fifo"], "not a regular file"),
        (vec!["topo", "/dev/zero"], "not a regular file"),
        (vec!["topo", "huge"], "more than 67108864 bytes"),
        (vec!["topo", "binary"], "utf-8"),
        (vec!["topo", "empty"], "no [[socket]]"),
        (vec!["topo", "deep.toml"], "line 1"),
        (vec!["topo", "many"], "20002 sockets, ports and devices: at most 1024"),
        (vec!["topo", "joined.toml"], "5000 interconnects: at most 2048"),
        (vec!["topo", "--from", "many.lspci"], "2000 GPUs and NICs: at most 1024"),
        (vec!["topo", "--from", "nodes.lspci"], "1000 NUMA nodes of GPUs and NICs: at most 64"),
        (vec!["topo", "--from", "fifo"], "not a regular file"),
        (vec!["topo", "--nvidia-smi", "fifo"], "not a regular file"),
        (vec!["topo", "two-sockets", "--measured", "fifo"], "not a regular file"),
        (vec!["topo", "two-sockets", "--measured", "deep.json"], "no JSON"),
        (vec!["topo", "two-sockets", "--measured", "alone.json"], "meta.gpus are no names"),
        (vec!["topo", "two-sockets", "--json", "dir"], "dir"),
        (vec!["topo", "two-sockets", "--json", "-", "--save", "-"], "one result"),
        (vec!["topo", "two-sockets", "--set", "wire_ns=nan"], "wire_ns"),
        (vec!["topo", "two-sockets", "--set", "wire_ns=-1"], "wire_ns"),
        (vec!["topo", "two-sockets", "--set", "acs=on"], "no parameter, but of the topology"),
        (vec!["topo", "two-sockets", "--socket-gb-per-s", "nan"], "socket-gb-per-s"),
        (vec!["topo", "two-sockets", "--cpu", ""], "--cpu: empty"),
        (vec!["topo", "two-sockets", "--cpu", " "], "--cpu: empty"),
        (vec!["sim", "--topology", "fifo"], "not a regular file"),
        (vec!["sim", "--topology", "many"], "at most 1024"),
        (vec!["sim", "--sizes", "99999999999999999999"], "--sizes"),
        (vec!["sim", "--in-flight", "0"], "--in-flight 0"),
        (vec!["sim", "--csv", "dir"], "dir"),
        (vec!["sim", "--sensitivity", "--sizes", "16MiB"], "TLP transmissions to simulate"),
        (vec!["sim", "--losses", "--sizes", "16MiB"], "TLP transmissions to simulate"),
        (vec!["sim", "--scale", "131072", "--topology", "dgx-h100"], "2 to 65536, in nodes of 8"),
        (vec!["sim", "--scale", "65536,65536", "--topology", "dgx-h100"], "steps of ranks"),
        (vec!["sim", "--set", "wire_ns=1e308"], "wire_ns=1e308: must be from 0 to 1000000000"),
        (vec!["sim", "--what", "wire_ns=1e308"], "wire_ns=1e308: must be from 0"),
        (
            vec![
                "sim",
                "--topology",
                "dgx-h100",
                "--flows",
                "all-to-all",
                "--message",
                "1MiB",
                "--in-flight",
                "1024",
            ],
            "--flows: ",
        ),
        (one("same-switch", "push/inband", &small), "push/inband of 1048576 B: over 65535 steps"),
        (one("same-switch", "push/inband", &small_what), "over 65535 steps"),
        (one("same-switch", "push/inband", &large), "over 65535 steps"),
        (one("desktop", "push/kernel", &segments), "over 65535 steps"),
        (vec!["sim", "--scale", "8", "--set", "inband_data_bytes=1"], "over 65535 steps"),
        (with(&["--set", "acs=nan"]), "on or off"),
        (with(&["--set", "gen=5.5"]), "1 to 6"),
        (with(&["--set", "acs=on", "--set", "acs=off"]), "stands twice"),
        (with(&["--set", "link_ns=1", "--set", "link_ns=2"]), "stands twice"),
        (with(&["--what", "gen=1..1e300"]), "combinations"),
        (with(&["--message", "0"]), "--message"),
        (vec!["link", "--measured", "fifo"], "not a regular file"),
        (vec!["link", "--measured", "dir"], "not a regular file"),
        (vec!["link", "--measured", "deep.json"], "no JSON"),
        (vec!["link", "--measured", "flows.json"], "flows at the end"),
        (vec!["link", "--measured", "none.json"], "no results"),
        (vec!["link", "--gpu", "host", "--topology", "desktop"], "--together"),
        (vec!["link", "--measured", "alone.json", "--no-fit"], "leave it out"),
        (vec!["link", "--measured", "alone.json", "--together", "0"], "cannot be used with"),
        (vec!["link", "--gpu", "host", "--json", "nowhere/x"], "does not exist"),
    ] {
        let (status, error) = refuse(dir.path(), &args);
        assert!(status == Some(2) && error.contains(said), "{args:?}: {status:?} {error}");
        assert!(error.lines().count() == 1, "{args:?}: {error}");
    }
}

/// A ranking takes seconds: a terminal is told how far it is, and nobody else.
#[test]
fn a_terminal_sees_how_far_a_ranking_is() {
    let line =
        format!("timeout 60 {} topo same-switch > /dev/null", env!("CARGO_BIN_EXE_bellpush"));
    let Ok(shown) = Command::new("script").args(["-qec", &line, "/dev/null"]).output() else {
        return println!("SKIPPED: no script(1), which makes a terminal");
    };
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("0/1 kinds of pairs ranked"), "{shown}");
    let output = Command::new("bash").args(["-c", &line]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
