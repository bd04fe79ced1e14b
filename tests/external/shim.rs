//! Unmodified rdma-core and perftest on software devices: `bellpush run` and the preloaded object.
//!
//! The programs are the system's packages; where one is missing its test says so and ends
//! (`./x setup` installs them).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::preloaded::{
    LISTEN, OBJECT, PATIENCE, Running, alone, bellpush, compiled, free_port, pair_succeeds, run,
    succeeds, there, wait_for,
};

/// Programs of `interop/`, compiled.
pub static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("preloaded"));
static CAPABILITIES: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("capabilities"));

#[track_caller]
fn case_of(program: &Option<PathBuf>, name: &[&str]) {
    let _alone = alone();
    let Some(program) = program else { return };
    succeeds(&[], &[&[program.to_str().unwrap()], name].concat());
}

#[track_caller]
fn case(name: &[&str]) {
    case_of(&PROGRAM, name);
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
    for absent in ["max_raw_ethy_qp:\t\t0", "max_mcast_grp:\t\t\t0"] {
        assert!(text.contains(absent), "{absent}: {text}");
    }
    let without = Command::new("ibv_devinfo").output().unwrap();
    assert!(!String::from_utf8_lossy(&without.stdout).contains("bellpush"), "negative control");
}

#[test]
fn a_device_that_another_thread_has_just_closed_is_opened() {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    // No other address would do.
    succeeds(&["--address", "127.77.0.6"], &[program.to_str().unwrap(), "reopened"]);
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
fn a_regions_file_that_another_process_cuts_off_is_an_error() {
    case(&["cut"]);
}

#[test]
fn completions_come_once_each_while_their_cq_is_resized() {
    case(&["resized"]);
    let Some(program) = &*PROGRAM else { return };
    let _alone = alone();
    succeeds(&["--adversary", "7,cqe"], &[program.to_str().unwrap(), "resized"]);
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
fn memory_on_demand_is_needed_when_it_is_used() {
    case_of(&CAPABILITIES, &["paging"]);
}

#[test]
fn completions_are_stamped_with_the_devices_clock() {
    case_of(&CAPABILITIES, &["timestamps"]);
}

#[test]
fn xrc_domains_of_one_file_are_one() {
    case_of(&CAPABILITIES, &["domains"]);
}

#[test]
fn a_free_key_stands_for_what_a_work_request_says() {
    case_of(&CAPABILITIES, &["keys"]);
}

#[test]
fn a_moderated_cq_has_one_event_for_several_completions() {
    case_of(&CAPABILITIES, &["moderation"]);
}

#[test]
fn a_ports_counters_count() {
    case_of(&CAPABILITIES, &["counters"]);
}

#[test]
fn what_is_not_there_is_refused_and_named() {
    let _alone = alone();
    let Some(program) = &*CAPABILITIES else { return };
    let ended = run(&["--verbose"], &[program.to_str().unwrap(), "refused"]);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    let refusals: Vec<_> = ended.text.lines().skip(1).collect(); // the first says where the device is
    let calls = [
        "ibv_create_counters: this device has no such call",
        "ibv_create_wq: this device has no such call", // and then the older way
        "ibv_create_wq: this device has no such command",
        "ibv_create_qp: ",
        "ibv_attach_mcast: this device has no such command",
        "mlx5dv_alloc_var: this device has no such call",
        "mlx5dv_devx_general_cmd, QUERY_NIC_VPORT_CONTEXT: this device has no such command",
        "mlx5dv_devx_create_cmd_comp: this device has no such call",
        "a call of a library that is newer than this device (object 0x63, method 0x3): ",
    ];
    assert_eq!(refusals.len(), calls.len(), "{refusals:#?}");
    for (refusal, call) in refusals.iter().zip(calls) {
        assert!(refusal.starts_with(&format!("bellpush: {call}")), "{refusal} is not {call}");
    }
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
fn what_was_destroyed_is_not_mapped_any_more() {
    case(&["cycles", "20"]);
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
        // On-demand paging, of the buffer and of all memory, prefetched; timestamps; device memory;
        // the extended API of sends.
        ("ibv_rc_pingpong", &["-n", "100", "-e", "-o"]),
        ("ibv_rc_pingpong", &["-n", "100", "-e", "-O", "-P"]),
        ("ibv_rc_pingpong", &["-n", "100", "-t"]),
        ("ibv_rc_pingpong", &["-n", "100", "-e", "-j", "-N"]),
    ] {
        if !there(program) {
            return;
        }
        let texts = pair_succeeds(&[], &[&[program, "-g", "0", "-c"], options].concat());
        for text in texts {
            assert!(text.contains("iters in"), "{text}");
        }
    }
    for events in [&[][..], &["-e"]] {
        let texts = pair_succeeds(&[], &[&["ibv_xsrq_pingpong", "-g", "0"], events].concat());
        assert!(texts.iter().all(|text| text.contains("success")), "{texts:?}");
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
#[ignore = "polling pingpongs take their time where cores are few"]
fn all_pingpongs() {
    let _alone = alone();
    for service in ["rc", "uc", "ud", "srq", "xsrq"] {
        let program = format!("ibv_{service}_pingpong");
        for events in [&[][..], &["-e"]] {
            if !there(&program) {
                return;
            }
            pair_succeeds(&[], &[&[&*program, "-g", "0", "-s", "1024"], events].concat());
        }
    }
}

/// Each line is a part that was shown.
const DEVX: &str = "caps\nconnected\nwrites\nports\nnumbers\nmapping\nschedule\nparts\natomics\nsignals\nregisters\nrefusals\ninitiator\ntarget\nmkeys\nagain\nend\n";

#[test]
fn commands_of_the_device_make_connect_and_query_what_gpu_libraries_use() {
    let _alone = alone();
    let Some(program) = compiled("devx") else { return };
    let program = program.to_str().unwrap();
    for (options, command) in
        [(&[][..], &[program][..]), (&["--link", "loss=2%,seed=7"], &[program, "lossy"])]
    {
        let ended = Running::start(options, command).end();
        assert_eq!(ended.code, Some(0), "{options:?}: {}", ended.text);
        assert!(ended.text.contains(DEVX), "{options:?}: {}", ended.text);
    }
}

/// `rounds` is fewer puts than it takes to pass the end of WQE indices, where packets are lost.
#[test]
fn nccls_requests_by_kernels_go_through_the_device() {
    let _alone = alone();
    let Some(program) = compiled("gdaki") else { return };
    let program = program.to_str().unwrap();
    let shown = "caps\naddress\nqueues\nputs\nwaits\ngets\nerrors\nend\n";
    for (options, arguments) in [
        (&[][..], &["33000"][..]),
        (&["--link-type", "shm"], &["2000"]),
        // Of doorbells in a page that two queue pairs ring at, one was lost now and then.
        (&["--link-type", "shm"], &["20000", "open"]),
        (&["--link", "loss=2%,seed=7", "--mtu", "1024"], &["200"]),
    ] {
        let ended = Running::start(options, &[&[program], arguments].concat()).end();
        assert_eq!(ended.code, Some(0), "{options:?}: {}", ended.text);
        assert!(ended.text.contains(shown), "{options:?}: {}", ended.text);
    }
}

/// The object reaches queues, CQs and records in a GPU's memory by the driver's copies alone; here the driver is the
/// test's.
#[test]
fn queues_may_lie_in_a_gpus_memory() {
    let _alone = alone();
    let Some(program) = compiled("gdaki") else { return };
    let driver = program.with_file_name("copies.so");
    let source = crate::preloaded::root().join("interop/copies.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
    compiler.args(["-Wl,-soname,libcuda.so.1", "-o"]).arg(&driver).arg(source);
    assert!(compiler.status().unwrap().success());
    let command = [program.to_str().unwrap(), "3000", driver.to_str().unwrap()];
    for options in [&[][..], &["--link-type", "shm"]] {
        let ended = Running::start(options, &command).end();
        assert_eq!(ended.code, Some(0), "{options:?}: {}", ended.text);
        assert!(ended.text.contains("errors\ncopies\nend\n"), "{options:?}: {}", ended.text);
    }
}

#[test]
fn dynamic_connections_reach_whom_each_work_request_names() {
    let _alone = alone();
    let Some(program) = compiled("dc") else { return };
    for options in
        [&[][..], &["--link", "loss=2%,dup=1%,reorder=1%,seed=3"], &["--link-type", "shm"]]
    {
        let ended = Running::start(options, &[program.to_str().unwrap()]).end();
        assert_eq!(ended.code, Some(0), "{options:?}: {}", ended.text);
        assert!(
            ended.text.contains("operations\nstreams\nrefusals\nend\n"),
            "{options:?}: {}",
            ended.text
        );
    }
}

#[test]
fn events_of_the_device_and_receive_pools_are_what_devx_programs_wait_for() {
    let _alone = alone();
    let Some(program) = compiled("devx_events") else { return };
    let ended = Running::start(&[], &[program.to_str().unwrap()]).end();
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert!(ended.text.contains("completions\nrefusals\npool 0\npool 1\nend\n"), "{}", ended.text);
}

#[test]
fn pools_that_match_tags_are_made_by_commands_of_the_device() {
    let _alone = alone();
    let Some(program) = compiled("devx_tags") else { return };
    for options in [&[][..], &["--link", "loss=2%,seed=5"], &["--link-type", "shm"]] {
        let ended = Running::start(options, &[program.to_str().unwrap()]).end();
        assert_eq!(ended.code, Some(0), "{options:?}: {}", ended.text);
        assert!(ended.text.contains("refusals\ntags 0\ntags 1\nend\n"), "{}", ended.text);
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
    // Without the option it is told when it is asked for, and no more.
    let ended = Running::start(&[], &program).end();
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    let told = ended.text.matches("queue pair 0x").count();
    assert_eq!((told, ended.text.matches("stands still").count()), (2, 0), "{}", ended.text);
}
