//! librdmacm, unmodified, on software devices: `bellpush run -- rping …`.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::perftest::{BANDWIDTHS, LATENCIES};
use crate::preloaded::{
    Ended, OBJECT, PATIENCE, Running, alone, bellpush, compiled, run, succeeds, there,
};

/// Cases of `interop/rdma_cm.c`.
static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| compiled("rdma_cm"));

#[track_caller]
fn case(name: &str) {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    succeeds(&[], &[program.to_str().unwrap(), name]);
}

#[test]
fn what_is_wrong_is_said_by_the_kernels_errno() {
    case("errors");
}

#[test]
fn programs_of_older_kernels_are_understood() {
    case("old");
}

#[test]
fn a_channel_is_readable_while_it_has_events() {
    case("events");
}

#[test]
fn waits_end_by_events_signals_and_cancellation() {
    case("waiting");
}

#[test]
fn children_have_channels_of_their_own() {
    case("forks");
}

#[test]
fn a_child_is_found_at_its_parents_address() {
    case("family");
}

#[test]
fn a_port_is_one_processs_while_it_listens_there() {
    case("ports");
}

#[test]
fn another_users_sockets_keep_nobody_from_listening() {
    case("squatted");
}

#[test]
fn a_device_goes_with_the_last_channel_and_comes_back_at_once() {
    case("again");
}

/// An address of the loopback interface that no other run of the tests has.
fn address(last: u8) -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{last}", 1 + (pid >> 8) % 254, pid & 0xff)
}

/// A server on a device of its own, at the first address. It says where in a capture, whose file is
/// there as soon as the device is: until then, no client could find it.
struct Server {
    running: Running,
    folder: tempfile::TempDir,
}

impl Server {
    fn start(options: &[&str], command: &[&str]) -> Self {
        LazyLock::force(&OBJECT);
        let folder = tempfile::tempdir().unwrap();
        let capture = folder.path().join("server.pcap");
        let said = File::create(folder.path().join("said")).unwrap();
        let mut program = Command::new(bellpush());
        program.arg("run").args(options).args(["--address", &address(1)]);
        program.arg("--pcap").arg(&capture).arg("--").args(command);
        let running = Running::spawn_into(&mut program, &said);
        let until = Instant::now() + PATIENCE;
        while !capture.exists() {
            assert!(Instant::now() < until, "{command:?} opens no device");
            std::thread::sleep(Duration::from_millis(5));
        }
        // It listens as soon as it has a device, or a little later: clients ask again.
        std::thread::sleep(Duration::from_millis(300));
        Self { running, folder }
    }

    fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("said")).unwrap()
    }

    fn end(mut self) -> Ended {
        let code = self.running.wait(PATIENCE);
        Ended { code, text: self.said() }
    }
}

/// Runs a program's server and client, each on a device of its own; what both said. The client's
/// words have `SERVER` where the server's address is to be.
#[track_caller]
fn pair(options: &[&str], server: &str, client: &str) -> Option<[String; 2]> {
    pair_with(options, server, client, &address(2))
}

/// The same, with the client at an address.
#[track_caller]
fn pair_with(options: &[&str], server: &str, client: &str, at: &str) -> Option<[String; 2]> {
    let client = client.replace("SERVER", &address(1));
    let [server, client] = [server, &client].map(|line| line.split(' ').collect::<Vec<_>>());
    if !there(server[0]) {
        return None;
    }
    let running = Server::start(options, &server);
    let asked = run(&[options, &["--address", at]].concat(), &client);
    assert_eq!(asked.code, Some(0), "{client:?}: {} {}", asked.text, running.said());
    let answered = running.end();
    assert_eq!(answered.code, Some(0), "{server:?}: {}", answered.text);
    Some([answered.text, asked.text])
}

#[test]
fn rping_pings() {
    let _alone = alone();
    let Some([server, client]) = pair(&[], "rping -s -v -V -C 5", "rping -c -a SERVER -v -V -C 5")
    else {
        return;
    };
    for said in [server, client] {
        assert!(said.contains("rdma-ping-4: EFGH"), "{said}");
    }
}

/// What came last reaches a capture although the program ends at once.
#[test]
fn a_capture_has_all_of_a_connection() {
    let _alone = alone();
    if !there("rping") {
        return;
    }
    let Server { mut running, folder } = Server::start(&[], &["rping", "-s", "-V", "-C", "5"]);
    let client = ["rping", "-c", "-a", &address(1), "-V", "-C", "5"];
    let asked = run(&["--address", &address(2)], &client);
    assert_eq!((asked.code, running.wait(PATIENCE)), (Some(0), Some(0)), "{}", asked.text);
    // 4 messages of 322 bytes, 5 times 4 SENDs, a READ and a WRITE.
    let bytes = fs::metadata(folder.path().join("server.pcap")).unwrap().len();
    assert!(bytes > 5_000, "{bytes}");
}

#[test]
fn rping_pings_over_every_link() {
    let _alone = alone();
    let lossy = ["--link", "loss=3%,dup=3%,reorder=3%,seed=5"];
    for options in [&["--link-type", "shm"][..], &lossy] {
        pair(options, "rping -s -V -C 20", "rping -c -a SERVER -V -C 20");
    }
}

#[test]
fn two_processes_connect_at_one_address() {
    let _alone = alone();
    for (server, client) in [
        ("rping -s -V -C 20", "rping -c -a SERVER -V -C 20"),
        ("ucmatose -c 10 -C 20 -S 5000", "ucmatose -s SERVER -c 10 -C 20 -S 5000"),
        ("udaddy", "udaddy -s SERVER"),
        ("ib_write_bw -F -R -n 100", "ib_write_bw -F -R -n 100 SERVER"),
        ("ib_read_bw -F -R -n 100", "ib_read_bw -F -R -n 100 SERVER"),
    ] {
        println!("{server}");
        pair_with(&[], server, client, &address(1));
    }
    let lossy = ["--link", "loss=3%,dup=3%,reorder=3%,seed=5"];
    pair_with(&lossy, "rping -s -V -C 20", "rping -c -a SERVER -V -C 20", &address(1));
}

#[test]
fn rping_pings_over_ipv6() {
    let _alone = alone();
    if !there("rping") || !there("unshare") || !there("ip") {
        return;
    }
    LazyLock::force(&OBJECT);
    // Two addresses of the loopback interface, in a network of the script's own.
    let script = r#"
        ip link set lo up && ip addr add fd77::1/128 dev lo && ip addr add fd77::2/128 dev lo || exit 77
        for client in fd77::2 fd77::1; do # the second time both are at one address
            "$0" run --address fd77::1 -- rping -s -a fd77::1 -V -C 5 & server=$!
            sleep 1
            "$0" run --address $client -- rping -c -a fd77::1 -V -C 5 && wait $server || exit 1
        done
    "#;
    let mut unshared = Command::new("unshare");
    let ended = Running::spawn(unshared.args(["-n", "sh", "-c", script, bellpush()])).end();
    if ended.code == Some(77) || ended.text.contains("unshare failed") {
        println!("SKIPPED: no network namespace of its own: {}", ended.text);
        return;
    }
    assert_eq!(ended.code, Some(0), "{}", ended.text);
}

#[test]
fn the_packages_examples_run() {
    let _alone = alone();
    for (server, client) in [
        ("ucmatose", "ucmatose -s SERVER"),
        ("ucmatose -c 10 -C 20 -S 5000", "ucmatose -s SERVER -c 10 -C 20 -S 5000"),
        ("ucmatose -m -c 3", "ucmatose -s SERVER -m -c 3"),
        ("udaddy", "udaddy -s SERVER"),
        ("rdma_server", "rdma_client -s SERVER"),
        ("rdma_xserver -c r", "rdma_xclient -s SERVER -c r"),
        ("rstream -S 65536 -I 10 -C 10", "rstream -s SERVER -S 65536 -I 10 -C 10"),
        ("rstream -T b -S 100 -I 10 -C 10", "rstream -T b -s SERVER -S 100 -I 10 -C 10"),
        ("rstream -T n -S 100 -I 10 -C 10", "rstream -T n -s SERVER -S 100 -I 10 -C 10"),
        ("riostream -S 4096 -I 10 -C 10", "riostream -s SERVER -S 4096 -I 10 -C 10"),
    ] {
        println!("{server}");
        pair(&[], server, client);
    }
}

#[test]
fn perftest_connects_by_rdma_cm() {
    let _alone = alone();
    for command in
        ["ib_write_bw -F -R -n 100", "ib_send_lat -F -R -n 50", "ib_send_bw -F -R -c UD -n 50"]
    {
        pair(&[], command, &format!("{command} SERVER"));
    }
}

#[test]
#[ignore = "all of perftest takes minutes"]
fn all_of_perftest_connects_by_rdma_cm() {
    let _alone = alone();
    let tools =
        BANDWIDTHS.iter().chain(&LATENCIES).map(|program| format!("{program} -F -R -n 100"));
    let more = ["-c UD", "-q 8"].map(|options| format!("ib_send_bw -F -R -n 100 {options}"));
    for command in tools.chain(more) {
        println!("{command}");
        pair(&[], &command, &format!("{command} SERVER"));
    }
}

#[test]
fn where_nobody_listens_a_program_is_told_at_once() {
    let _alone = alone();
    if !there("rping") {
        return;
    }
    // The client is at the address that it asks.
    let (begin, own) = (Instant::now(), address(1));
    let ended = run(&["--address", &own], &["rping", "-c", "-a", &own, "-C", "1", "-d"]);
    assert!(ended.text.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{}", ended.text);
    assert!(begin.elapsed() < Duration::from_secs(5));
    // Nobody is there at all.
    let ended = run(&["--address", &own], &["rping", "-c", "-a", &address(2), "-C", "1", "-d"]);
    assert!(ended.text.contains("RDMA_CM_EVENT_UNREACHABLE, error -110"), "{}", ended.text);
}

#[test]
fn a_program_that_ends_without_a_word_still_tells_its_peer() {
    let _alone = alone();
    let Some(program) = &*PROGRAM else { return };
    if !there("rping") {
        return;
    }
    let own = address(2);
    // What a wire delays it does not lose.
    for link in [&[][..], &["--link", "delay=100ms"]] {
        let server = Server::start(&[], &["rping", "-s", "-d"]);
        let client = [link, &["--address", &own]].concat();
        succeeds(&client, &[program.to_str().unwrap(), "leaves", &address(1)]);
        let ended = server.end();
        assert!(ended.text.contains("RDMA_CM_EVENT_DISCONNECTED"), "{link:?}: {}", ended.text);
    }
}

#[test]
fn multicast_is_refused() {
    let _alone = alone();
    if !there("mckey") {
        return;
    }
    let own = address(1);
    let options = ["--verbose", "--address", &own];
    let ended = run(&options, &["mckey", "-m", "239.1.1.1", "-b", &own]);
    let line = "rdma_join_multicast: multicast is not supported";
    assert!(ended.text.contains(line), "{}", ended.text);
    assert!(ended.text.contains("Operation not supported"), "{}", ended.text);
    assert_ne!(ended.code, Some(0));
}
