//! What other users and other hosts find of the commands: sockets, files and their rights.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::preloaded::{OBJECT, Running, alone, bellpush, there};

/// Bounds what takes a moment.
const SOON: Duration = Duration::from_secs(60);

/// Numbers of a process and those that it started.
fn family(process: u32) -> Vec<u32> {
    let children = format!("/proc/{process}/task/{process}/children");
    let children = fs::read_to_string(children).unwrap_or_default();
    let all = children.split_whitespace().filter_map(|child| child.parse().ok());
    [process].into_iter().chain(all.flat_map(family)).collect()
}

/// Numbers of the sockets that a process has.
fn sockets(process: u32) -> HashSet<String> {
    let all = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let links = all.filter_map(|entry| fs::read_link(entry.path()).ok());
    let number = |link: PathBuf| {
        Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    links.filter_map(number).collect()
}

/// An address as /proc/net has it: words of 32 bits in the processor's order.
fn address(hex: &str) -> IpAddr {
    let word = |at: usize| u32::from_str_radix(&hex[8 * at..8 * at + 8], 16).unwrap().to_ne_bytes();
    match hex.len() {
        8 => Ipv4Addr::from(word(0)).into(),
        _ => {
            let bytes = [0, 1, 2, 3].map(word).concat();
            Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap()).to_canonical()
        }
    }
}

/// Addresses of the internet's sockets that a process has, each with its kind.
fn addresses(process: u32) -> Vec<(&'static str, IpAddr)> {
    let ours = sockets(process);
    let mut all = Vec::new();
    for kind in ["tcp", "tcp6", "udp", "udp6", "raw", "raw6"] {
        let table = fs::read_to_string(format!("/proc/{process}/net/{kind}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let words: Vec<_> = line.split_whitespace().collect();
            if ours.contains(words[9]) {
                all.push((kind, address(words[1].split(':').next().unwrap())));
            }
        }
    }
    all
}

/// Looks at a command and what it started until it has so many sockets, or has ended. None may be
/// where other hosts reach it.
#[track_caller]
fn reached_from_here_alone(what: &str, mut command: Command, kinds: &[&str]) {
    let mut running = Running::spawn(&mut command);
    let (until, mut seen) = (Instant::now() + SOON, HashSet::new());
    while !kinds.iter().all(|kind| seen.contains(kind)) {
        assert!(Instant::now() < until, "{what}: no sockets but {seen:?}");
        for (kind, at) in family(running.id()).into_iter().flat_map(addresses) {
            assert!(at.is_loopback(), "{what}: {kind} at {at}");
            seen.insert(kind);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    running.kill().unwrap();
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(bellpush());
    command.args(arguments);
    command
}

#[test]
fn other_hosts_reach_nothing_that_was_not_told_to_be_reached() {
    let _alone = alone();
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ib_write_bw", "verbs"]
    {
        let serve = command(&["serve", program, "--port", "0"]);
        reached_from_here_alone(program, serve, &["tcp", "udp"]);
    }
    let row = ["--gpu", "host", "--sizes", "8", "--seconds", "30", "--messages", "1000000000"];
    let bench = |more: &[&str]| command(&[&["bench"], more, &row].concat());
    reached_from_here_alone("bench, tcp", bench(&["--data", "tcp"]), &["tcp"]);
    let udp = ["--data", "pull", "--kick", "cpu", "--link", "udp"];
    reached_from_here_alone("bench, udp", bench(&udp), &["udp"]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let place = format!("localhost:{port}");
    reached_from_here_alone("bench --listen", command(&["bench", "--listen", &place]), &["tcp"]);
    if there("ibv_asyncwatch") {
        LazyLock::force(&OBJECT);
        reached_from_here_alone("run", command(&["run", "--", "ibv_asyncwatch"]), &["udp"]);
        // The metrics' socket is there before the program's.
        let counted = command(&["run", "--metrics=0", "--", "ibv_asyncwatch"]);
        reached_from_here_alone("run --metrics", counted, &["tcp", "udp"]);
    }
}

/// The negative control of the test above.
#[test]
fn a_command_that_was_told_so_is_seen_elsewhere() {
    let mut serve = command(&["serve", "verbs", "--port", "0", "--listen", "0.0.0.0"]);
    let running = Running::spawn(&mut serve);
    let until = Instant::now() + SOON;
    while !addresses(running.id()).contains(&("tcp", Ipv4Addr::UNSPECIFIED.into())) {
        assert!(Instant::now() < until, "it is not seen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What begins with a name in a folder.
fn named(folder: &Path, begin: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let ours = |name: &OsStr| name.as_encoded_bytes().starts_with(begin.as_bytes());
    entries.filter(|entry| ours(&entry.file_name())).map(|entry| entry.path()).collect()
}

#[test]
fn whatever_the_umask_files_with_payload_are_this_users_alone() {
    let _alone = alone();
    if !there("ibv_asyncwatch") {
        return;
    }
    LazyLock::force(&OBJECT);
    let folder = tempfile::tempdir().unwrap();
    let user = fs::metadata("/proc/self").unwrap().uid();
    let shared = format!("bellpush-{user}-");
    let before: HashSet<_> = named(Path::new("/dev/shm"), &shared).into_iter().collect();
    for link in ["udp", "shm"] {
        let capture = folder.path().join(format!("{link}.pcap"));
        let lines = format!(
            "umask 0; exec {} run --link-type {link} --pcap {} -- ibv_asyncwatch",
            bellpush(),
            capture.display()
        );
        let mut run = Command::new("sh");
        run.args(["-c", &lines]).env("TMPDIR", folder.path());
        let running = Running::spawn(&mut run);
        let until = Instant::now() + SOON;
        let mut seen = Vec::new();
        while seen.len() < if link == "shm" { 3 } else { 2 } {
            assert!(Instant::now() < until, "{link}: there is nothing but {seen:?}");
            std::thread::sleep(Duration::from_millis(5));
            let new = named(Path::new("/dev/shm"), &shared);
            seen = new.into_iter().filter(|path| !before.contains(path)).collect();
            seen.extend(named(folder.path(), "bellpush-"));
            seen.extend(named(folder.path(), &format!("{link}.pcap")));
        }
        for path in seen {
            let meta = fs::symlink_metadata(&path).unwrap();
            let mode = meta.permissions().mode() & 0o777;
            let wanted = if meta.is_dir() { 0o700 } else { 0o600 };
            assert_eq!((mode, meta.uid()), (wanted, user), "{}: {mode:o}", path.display());
        }
        drop(running);
    }
}
