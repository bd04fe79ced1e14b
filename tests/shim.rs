//! Unmodified rdma-core and perftest on software devices: `bellpush run` and the preloaded object.
//!
//! The programs are the system's packages; where one is missing its test says so and ends
//! (`./x setup` installs them).

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bounds every program.
const PATIENCE: Duration = Duration::from_secs(60);

/// One test at a time: the programs poll, and machines have few cores.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bellpush() -> &'static str {
    env!("CARGO_BIN_EXE_bellpush")
}

/// Builds the preloaded object beside the program. `cargo test` builds one package's tests.
static OBJECT: LazyLock<()> = LazyLock::new(|| {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "bellpush-shim"]);
    let folder = Path::new(bellpush()).parent().unwrap();
    cargo.arg("--target-dir").arg(folder.parent().unwrap());
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).env("BELLPUSH_NVCC", "none");
    assert!(cargo.status().unwrap().success(), "the preloaded object is not built");
});

/// Whether a program is there.
fn there(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()));
    if !found {
        println!("SKIPPED: no {program} (./x setup installs it)");
    }
    found
}

/// What a program said and how it ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    text: String,
}

/// A program on its way; killed if it is not waited for.
struct Running(Child);

impl Running {
    /// `bellpush run OPTIONS -- COMMAND`.
    fn start(options: &[&str], command: &[&str]) -> Self {
        LazyLock::force(&OBJECT);
        let mut run = Command::new(bellpush());
        run.arg("run").args(options).arg("--").args(command);
        Self::spawn(&mut run)
    }

    fn spawn(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn end(mut self) -> Ended {
        let until = Instant::now() + PATIENCE;
        // Nothing here says more than a pipe holds.
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "not done in time: {:?}", self.kill());
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        Ended { code: self.0.try_wait().unwrap().unwrap().code(), text }
    }

    fn kill(&mut self) -> std::io::Result<()> {
        self.0.kill()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.kill();
        let _ = self.0.wait();
    }
}

fn run(options: &[&str], command: &[&str]) -> Ended {
    Running::start(options, command).end()
}

#[track_caller]
fn succeeds(options: &[&str], command: &[&str]) -> String {
    let ended = run(options, command);
    assert_eq!(ended.code, Some(0), "{command:?}: {}", ended.text);
    ended.text
}

/// A TCP port that nobody listens on.
fn free_port() -> String {
    TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port().to_string()
}

/// State of a TCP socket in `/proc/net/tcp`.
const LISTEN: &str = " 0A ";

/// Waits until a socket with that local port is in that state.
fn wait_for(port: &str, state: &str) {
    let until = Instant::now() + PATIENCE;
    let wanted = format!(":{:04X} ", port.parse::<u16>().unwrap());
    // Number, local address, remote address, state.
    let matches = |line: &str| {
        line.split_once(": ").is_some_and(|(_, line)| {
            line.find(&wanted).is_some_and(|at| at < 40) && line.contains(state)
        })
    };
    let there = |file: &&str| fs::read_to_string(file).is_ok_and(|text| text.lines().any(matches));
    while !["/proc/net/tcp", "/proc/net/tcp6"].iter().any(there) {
        assert!(Instant::now() < until, "TCP port {port} is not in state {state}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program's server and client, each on a device of its own; what both said.
#[track_caller]
fn pair(options: &[&str], command: &[&str]) -> [Ended; 2] {
    let port = free_port();
    let common = [command, &["-p", &port]].concat();
    let server = Running::start(options, &common);
    // A connection to see whether it listens would take the client's place.
    wait_for(&port, LISTEN);
    let client = run(options, &[&common[..], &["127.0.0.1"]].concat());
    [server.end(), client]
}

#[track_caller]
fn pair_succeeds(options: &[&str], command: &[&str]) -> [String; 2] {
    pair(options, command).map(|ended| {
        assert_eq!(ended.code, Some(0), "{command:?}: {}", ended.text);
        ended.text
    })
}

/// A program of `interop/`, compiled.
fn compiled(name: &str) -> Option<PathBuf> {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("interop/{name}.c"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&to).arg(source);
    let output = compiler.args(["-libverbs", "-lmlx5"]).output().ok()?;
    if output.status.success() {
        return Some(to);
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("infiniband/"), "{text}");
    println!("SKIPPED: no libibverbs-dev (./x setup installs it)");
    None
}

/// `interop/preloaded.c`, compiled.
static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("preloaded"));

#[track_caller]
fn case(name: &[&str]) {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    succeeds(&[], &[&[program.to_str().unwrap()], name].concat());
}

#[test]
fn devices_say_that_they_are_software_and_where_they_are() {
    let _alone = alone();
    if !there("ibv_devinfo") {
        return;
    }
    let options = ["--devices", "2", "--address", "127.77.0.5", "--mtu", "1024"];
    let text = succeeds(&options, &["ibv_devinfo", "-v"]);
    for wanted in [
        "hca_id:\tmlx5_0",
        "hca_id:\tmlx5_1",
        "board_id:\t\t\tbellpush soft",
        "::ffff:127.77.0.5, RoCE v2",
        "active_mtu:\t\t1024 (3)",
        "link_layer:\t\tEthernet",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    // What is not there is not claimed.
    for absent in ["max_raw_ethy_qp:\t\t0", "max_mcast_grp:\t\t\t0", "NO SUPPORT"] {
        assert!(text.contains(absent), "{absent}: {text}");
    }
    let without = Command::new("ibv_devinfo").output().unwrap();
    assert!(!String::from_utf8_lossy(&without.stdout).contains("bellpush"), "negative control");
}

#[test]
fn files_are_found_by_path_and_gone_afterwards() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    LazyLock::force(&OBJECT);
    let mut command = Command::new(bellpush());
    let script = "ls /sys/class/infiniband /sys/class/infiniband/mlx5_0/ports/1 \
                  && cat /sys/class/infiniband/mlx5_0/board_id && test -c /dev/infiniband/uverbs0 \
                  && ls \"$TMPDIR\" && exit 7";
    command.args(["run", "--", "sh", "-c", script]).env("TMPDIR", folder.path());
    let ended = Running::spawn(&mut command).end();
    assert_eq!(ended.code, Some(7), "{}", ended.text);
    for wanted in ["mlx5_0", "gid_attrs", "bellpush soft", "bellpush-run-"] {
        assert!(ended.text.contains(wanted), "{wanted}: {}", ended.text);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "all is tidied up");
}

#[test]
fn what_cannot_be_run_is_refused_in_one_line() {
    let _alone = alone();
    for (options, command, wanted) in [
        (&["--devices", "0"][..], "true", "number of devices is 0"),
        (&["--mtu", "1500"], "true", "path MTU is 1500"),
        (&["--link", "lose=1%"], "true", "lose"),
        (&["--dm-bytes", "100"], "true", "device memory is 100"),
        (&[], "/no/such/program", "cannot start /no/such/program"),
    ] {
        let ended = run(options, &[command]);
        assert_eq!(ended.code, Some(2), "{}", ended.text);
        assert!(ended.text.contains(wanted) && ended.text.lines().count() == 1, "{}", ended.text);
    }
    let mut elsewhere = Command::new(bellpush());
    elsewhere.args(["run", "true"]).env("BELLPUSH_SHIM", "/no/such.so");
    let ended = Running::spawn(&mut elsewhere).end();
    assert!(ended.code == Some(2) && ended.text.contains("cargo build -p bellpush-shim"));
}

#[test]
fn an_address_that_is_taken_is_said_to_be() {
    let _alone = alone();
    if !there("ibv_devinfo") {
        return;
    }
    let _holder = std::net::UdpSocket::bind("127.77.0.6:4791").unwrap();
    let ended = run(&["--address", "127.77.0.6"], &["ibv_devinfo"]);
    assert!(ended.text.contains("127.77.0.6 is in use"), "{}", ended.text);
    assert_ne!(ended.code, Some(0));
}

#[test]
fn operations_of_each_kind_carry_their_bytes() {
    case(&["operations"]);
}

#[test]
fn what_is_in_use_is_not_destroyed() {
    case(&["order"]);
}

#[test]
fn memory_that_is_not_there_is_not_registered() {
    case(&["registration"]);
}

#[test]
fn keys_and_memory_that_are_gone_are_errors_and_no_crash() {
    case(&["gone"]);
}

#[test]
fn without_a_doorbell_nothing_is_sent() {
    case(&["doorbell"]);
}

#[test]
fn device_memory_goes_both_ways() {
    case(&["device_memory"]);
}

#[test]
fn regions_queues_and_windows_change_while_in_use() {
    case(&["changes"]);
}

#[test]
fn events_come_once_and_do_not_hold_up_the_end() {
    case(&["events"]);
}

#[test]
fn commands_that_are_wrong_get_the_kernels_answers() {
    case(&["commands"]);
}

#[test]
fn a_fork_takes_nothing_along() {
    case(&["forks"]);
}

#[test]
fn a_descriptor_that_was_doubled_keeps_the_device() {
    case(&["doubled"]);
}

#[test]
fn a_few_hundred_openings_leave_nothing_behind() {
    case(&["cycles", "300"]);
}

#[test]
#[ignore = "10,000 openings take a minute"]
fn ten_thousand_openings_leave_nothing_behind() {
    case(&["cycles", "10000"]);
}

#[test]
fn pingpongs_of_each_service_polling_and_with_events() {
    let _alone = alone();
    for (program, options) in [
        ("ibv_rc_pingpong", &["-n", "100"][..]),
        ("ibv_rc_pingpong", &["-n", "300", "-e"]),
        ("ibv_uc_pingpong", &["-n", "300", "-e"]),
        ("ibv_ud_pingpong", &["-n", "300", "-e", "-s", "1024"]),
        ("ibv_srq_pingpong", &["-n", "300", "-e"]),
    ] {
        if !there(program) {
            return;
        }
        let texts = pair_succeeds(&[], &[&[program, "-g", "0", "-c"], options].concat());
        for text in texts {
            assert!(text.contains("iters in"), "{text}");
        }
    }
}

#[test]
fn perftest_finds_the_device_and_verifies() {
    let _alone = alone();
    for command in [
        &["ib_write_bw", "-F", "-n", "100", "-s", "4096"][..],
        &["ib_send_bw", "-F", "-n", "100", "-e", "-s", "1024"],
        &["ib_read_lat", "-F", "-n", "50"],
        &["ib_atomic_bw", "-F", "-n", "50"],
    ] {
        if !there(command[0]) {
            return;
        }
        pair_succeeds(&[], command);
    }
}

#[test]
fn faults_of_the_link_are_made_good_and_captured() {
    let _alone = alone();
    if !there("ib_send_lat") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("%p.pcap");
    let options = ["--link", "loss=2%,dup=1%,reorder=1%,seed=5", "--pcap", file.to_str().unwrap()];
    // Its two ends part when both have said that they are done. A pingpong's last acknowledgement
    // may be lost after its sender has left, over any link that loses.
    pair_succeeds(&options, &["ib_send_lat", "-F", "-n", "200", "-s", "4096"]);
    let captures: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(captures.len(), 2, "one a process");
    assert!(captures.iter().all(|file| file.metadata().unwrap().len() > 100_000));
}

#[test]
fn shared_memory_carries_as_well() {
    let _alone = alone();
    if !there("ibv_rc_pingpong") {
        return;
    }
    let options = ["--link-type", "shm"];
    pair_succeeds(&options, &["ibv_rc_pingpong", "-g", "0", "-c", "-e", "-n", "200"]);
}

#[test]
fn a_peer_that_is_killed_is_an_error_in_time() {
    let _alone = alone();
    // Its client always has WRITEs outstanding; a pingpong may have none, and would wait.
    if !there("ib_write_bw") {
        return;
    }
    let port = free_port();
    // `bellpush run` would outlive its program: the program is started as by hand.
    let folder = tempfile::tempdir().unwrap();
    let capture = folder.path().join("client.pcap");
    let command = |more: &[&str], options: String| {
        LazyLock::force(&OBJECT);
        let object = Path::new(bellpush()).with_file_name("libbellpush_shim.so");
        let mut command = Command::new("ib_write_bw");
        command.args(["-F", "--run_infinitely", "-s", "4096", "-p", &port]).args(more);
        command.env("LD_PRELOAD", object).env("BELLPUSH_PRELOAD", options);
        // A program that is killed leaves its sysfs files there.
        command.env("TMPDIR", folder.path());
        Running::spawn(command.stdin(Stdio::null()))
    };
    let mut server = command(&[], "{}".into());
    wait_for(&port, LISTEN);
    let client = command(&["127.0.0.1"], format!(r#"{{"pcap": {capture:?}}}"#));
    let until = Instant::now() + PATIENCE;
    while !fs::metadata(&capture).is_ok_and(|file| file.len() > 1 << 20) {
        assert!(Instant::now() < until, "nothing is sent");
        std::thread::sleep(Duration::from_millis(5));
    }
    server.kill().unwrap();
    let ended = client.end();
    assert!(ended.text.contains("Failed status 12"), "{}", ended.text); // retries used up
    assert_ne!(ended.code, Some(0));
}

#[test]
fn connections_by_rdma_cm_are_refused() {
    let _alone = alone();
    if !there("ib_write_bw") {
        return;
    }
    let ended = run(&[], &["ib_write_bw", "-R", "-p", &free_port()]);
    assert!(ended.text.contains("rdma_create_event_channel failed"), "{}", ended.text);
    assert_ne!(ended.code, Some(0));
}

#[test]
#[ignore = "all of perftest takes minutes"]
fn all_of_perftest() {
    let _alone = alone();
    let all: Vec<Vec<&str>> = [
        "ib_write_bw -n 100 -a",
        "ib_write_bw -n 500 -b",
        "ib_write_bw -n 500 -q 8",
        "ib_write_bw -n 500 -c UC",
        "ib_write_lat -n 500",
        "ib_write_lat -n 500 -c UC",
        "ib_send_bw -n 100 -a",
        "ib_send_bw -n 500 -b -q 8",
        "ib_send_bw -n 500 -c UC",
        "ib_send_bw -n 500 -c UD",
        "ib_send_bw -n 500 -q 4 --use-srq",
        "ib_send_bw -n 500 -e",
        "ib_send_lat -n 500",
        "ib_send_lat -n 500 -c UD",
        "ib_read_bw -n 50 -a",
        "ib_read_bw -n 300 -b",
        "ib_read_bw -n 300 -q 8",
        "ib_read_lat -n 300",
        "ib_atomic_bw -n 300 -A CMP_AND_SWAP -q 8",
        "ib_atomic_bw -n 300 -b",
        "ib_atomic_lat -n 300",
    ]
    .map(|line| line.split(' ').chain(["-F"]).collect())
    .into();
    for command in all {
        if !there(command[0]) {
            return;
        }
        println!("{command:?}");
        pair_succeeds(&[], &command);
    }
}

#[test]
#[ignore = "polling pingpongs take their time where cores are few"]
fn all_pingpongs() {
    let _alone = alone();
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        for events in [&[][..], &["-e"]] {
            if !there(program) {
                return;
            }
            pair_succeeds(&[], &[&[program, "-g", "0", "-s", "1024"], events].concat());
        }
    }
}

/// Each line is a part that was shown.
const DEVX: &str = "caps\nconnected\nwrites\natomics\nsignals\nregisters\nrefusals\ninitiator\ntarget\nmkeys\nend\n";

#[test]
fn commands_of_the_device_make_connect_and_query_what_gpu_libraries_use() {
    let _alone = alone();
    let Some(program) = compiled("devx") else { return };
    for options in [&[][..], &["--link", "loss=2%,seed=7"]] {
        let ended = Running::start(options, &[program.to_str().unwrap()]).end();
        assert_eq!(ended.code, Some(0), "{options:?}: {}", ended.text);
        assert!(ended.text.contains(DEVX), "{options:?}: {}", ended.text);
    }
}

#[test]
fn a_queue_pair_that_stands_still_is_told_with_what_its_program_and_its_nic_know() {
    let _alone = alone();
    let Some(program) = compiled("devx") else { return };
    let program = [program.to_str().unwrap(), "late"];
    let ended = Running::start(&["--verbose"], &program).end();
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    let lines: Vec<_> = ended.text.lines().filter(|line| line.contains("queue pair 0x")).collect();
    let still: Vec<_> = lines.iter().filter(|line| line.contains("stands still")).collect();
    // Once, though it stood for longer than it takes to be told twice; SIGUSR2 asked for both.
    assert_eq!((still.len(), lines.len()), (1, 3), "{}", ended.text);
    for part in ["(Rc, Rts)", "doorbell record 1;", "0 blocks posted, 0 taken", "0 written"] {
        assert!(still[0].contains(part), "{part}: {}", still[0]);
    }
    // Without the option SIGUSR2 does what it always does.
    let ended = Running::start(&[], &program).end();
    assert_ne!(ended.code, Some(0), "{}", ended.text);
    assert!(!ended.text.contains("queue pair 0x"), "{}", ended.text);
}
