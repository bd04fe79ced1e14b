//! `bellpush doctor --machine`, of texts that stand for machines, and of those that stand for none.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::diagnoses::{doctor, folder, machine, on};
use crate::recorded::{names, recorded, text_of};

/// The program, whose temporary files lie in a folder of their own.
fn bellpush(temporary: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "30", env!("CARGO_BIN_EXE_bellpush"), "doctor"]).args(args);
    command.env("TMPDIR", temporary).output().unwrap()
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

/// A text says what its files say. Each of the table is made of its text by the same means.
#[test]
fn a_text_is_the_machine_that_it_stands_for() {
    for name in names().into_iter().step_by(4) {
        let dir = machine(&name, &[]);
        let file = text_of(&name);
        let (status, text) = doctor(&["--machine", file.to_str().unwrap()]).unwrap();
        let (own_status, own) = on(dir.path(), &[]);
        // It has a name of its own, and says what it is.
        let rest = |text: &str| text[text.find("\n  machine ").unwrap()..].to_owned();
        assert_eq!((status, rest(&text)), (own_status, rest(&own)), "{name}");
        assert!(text.contains("\n  recorded ") && !own.contains("\n  recorded "), "{text}");
        let head: Vec<&str> =
            text.split("\n  machine ").next().unwrap().split_whitespace().collect();
        assert!(
            head.join(" ").contains(&recorded(&name).what[..40.min(recorded(&name).what.len())]),
            "{text}"
        );
    }
}

/// The command of the page, as a program: nothing of it stays, and `--record` keeps the files.
#[test]
fn a_row_of_the_table_is_seen_by_one_command() {
    let (temporary, to) = (folder(), folder());
    let file = text_of("mps-mismatch");
    let shown = bellpush(temporary.path(), &["--machine", file.to_str().unwrap()]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert_eq!(shown.status.code(), Some(1), "{text}");
    assert!(text.contains("WARNING pcie-mps  mlx5_0 0000:02:00.0\n"), "{text}");
    assert!(is_empty(temporary.path()));
    let copy = to.path().join("copy");
    let args = ["--machine", file.to_str().unwrap(), "--record", copy.to_str().unwrap()];
    assert_eq!(bellpush(temporary.path(), &args).status.code(), Some(0));
    assert!(
        is_empty(temporary.path())
            && copy.join("sys/bus/pci/devices/0000:02:00.0/config").is_file()
    );
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor.md")).unwrap();
    assert!(page.contains("doctor --machine tests/fixtures/doctor/mps-mismatch.machine"));
}

/// What is no machine, or would be more than one, is one line and status 2, and nothing is written but where it may be.
#[test]
fn what_stands_for_no_machine_is_refused() {
    let (temporary, dir) = (folder(), folder());
    let outside = dir.path().join("outside");
    fs::write(&outside, "as it was").unwrap();
    let up = format!("file ../{} = changed", outside.file_name().unwrap().to_str().unwrap());
    let long = format!("file {} = x", "a/".repeat(600) + "b");
    let name = format!("file {} = x", "a".repeat(300));
    let many: String = (0..5000).map(|n| format!("pci {n:04x}:00:00.0 class=0x0\n")).collect();
    let files: String = (0..20_000).map(|n| format!("dev {n}\n")).collect();
    let zeros: String = (0..30_000).map(|n| format!("bytes {n} = +4096\n")).collect();
    let words: String = (0..70_000).map(|n| format!("dev {}\n", n % 9)).collect();
    let drops: String = (0..2_000).map(|n| format!("drop {n}\n")).collect();
    // Each GID has the name again.
    let gids: String = (0..9_000).map(|n| format!("gid{n}=v2,:: ")).collect();
    let names: String =
        (0..4).map(|n| format!("port a:{n} netdev={} {gids}\n", "n".repeat(900))).collect();
    let value = format!("net a mtu={}", "1".repeat(2000));
    let deep = format!("file {}b = x", "a/".repeat(100));
    let large = format!("what {}\n", "x".repeat(1 << 20));
    let place = "pci pci0000:00/0000:00:01.0";
    let cases: &[(&str, &str)] = &[
        ("", "no statement"),
        ("# nothing\n\n", "no statement"),
        ("\u{1b}[2J\u{202e} x", "no such statement"),
        ("kernel 6.8\nfiles x = y", "line 2: files: no such statement"),
        (&up, "no name of a file"),
        ("file /etc/passwd = x", "no name of a file"),
        ("file a/./b = x", "no name of a file"),
        ("file a//b = x", "no name of a file"),
        (&long, "no name of a file"),
        (&name, "no name of a file"),
        ("file a = 1\nfile a/b = 2", "is no folder"),
        ("link sys/x -> class\nfile sys/x/y = 1", "is no folder"),
        ("file sys/x = 1\nlink sys/x -> class", "a file and a link"),
        ("link sys/x -> ../../etc", "leads out"),
        ("link sys/x -> /etc", "leads out"),
        ("link sys/x -> a/../../../etc", "leads out"),
        ("link a/b/c -> ../..\nlink sys/x -> ../a/b/c/../../etc/passwd", "leads out"),
        ("link sys/x -> y/../z", "leads out"),
        ("file x", "no \" = \""),
        ("bytes x", "no \" = \""),
        ("bytes x = 123", "no hexadecimal: 123"),
        ("bytes x = 0g", "no hexadecimal"),
        ("bytes x = é", "no hexadecimal"),
        ("bytes x = 00+", "no hexadecimal"),
        ("bytes x = 00+4097", "no hexadecimal"),
        ("bytes x = 00+-1", "no hexadecimal"),
        ("bytes ../x = 00", "no name of a file"),
        ("base ../other", "no name of a machine"),
        ("base gone", "No such file"),
        ("base own", "more than 8"),
        ("rdma ../../../x at=0000:00:00.0", "no name of a file"),
        ("port mlx5_0 state=ACTIVE", "no number"),
        ("port a:1 gid0=v2,zz", "no GID"),
        ("port a:1 gid0=v2", "no kind"),
        ("net", "no name"),
        ("net a mtu", "mtu: no ="),
        ("nvidia open", "kind and version"),
        ("node 0", "node: its number"),
        ("node 0 cpulist=0-1", "no distance"),
        ("pci 0000:00:01.0 class=0x0", "no place"),
        (&format!("{place} mps=100"), "no size of TLPs"),
        (&format!("{place} mps=18446744073709551616"), "no number"),
        (&format!("{place} mrrs=65536"), "no size of TLPs"),
        (&format!("{place} buses=zz-01"), "no bus"),
        (&format!("{place} bar1=18446744073709551615"), "bar1"),
        (&format!("{place} now=16"), "no link"),
        (&format!("{place} group=1"), "no type"),
        (&format!("{place} physfn=../../../../../etc"), "leads out"),
        ("pci ../../../../x/y class=0x0", "no name of a file"),
        (&many, "more than 4096"),
        (&files, "more than 16384 files"),
        (&zeros, "B of files and their names"),
        (&words, "more than 65536 statements and fields"),
        (&drops, "more than 1024"),
        (&names, "more than 16384 files"),
        (&value, "longer than 1024"),
        (&deep, "no name of a file"),
        (&large, "more than 1048576"),
        ("expect acs", "two words"),
    ];
    let path = dir.path().join("own.machine");
    let refused = |why: &str| {
        let output = bellpush(temporary.path(), &["--machine", path.to_str().unwrap()]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{why}: {said}");
        assert!(said.lines().count() == 1 && said.contains(why), "{why}: {said}");
        assert!(said.trim_end().chars().all(|c| !c.is_control() && c != '\u{202e}'), "{said:?}");
        assert!(output.stdout.is_empty() && is_empty(temporary.path()), "{why}");
    };
    for (text, why) in cases {
        fs::write(&path, text).unwrap();
        refused(why);
    }
    fs::write(&path, b"\x1f\x8b\x08\x00\xff").unwrap();
    refused("neither a directory nor a text");
    assert_eq!(fs::read_to_string(&outside).unwrap(), "as it was");
}

/// What makes many files of few bytes is refused before it has taken much time or memory.
#[test]
fn a_text_that_grows_is_refused_soon() {
    let (temporary, dir) = (folder(), folder());
    let nets = |of: usize, n: usize| -> String {
        (0..n).map(|n| format!("net {of}x{n} ecn=\n")).collect()
    };
    let drops: String = (0..60_000).map(|n| format!("drop {n:x}\n")).collect();
    fs::write(dir.path().join("hang.machine"), drops + &nets(0, 2000)).unwrap();
    for n in 0..8 {
        let base = if n < 7 { format!("base grow{}\n", n + 1) } else { String::new() };
        let path = dir.path().join(format!("grow{n}.machine"));
        fs::write(path, base + &nets(n, 50_000)).unwrap();
    }
    for name in ["hang", "grow0"] {
        let mut command = Command::new("bash");
        let script = "ulimit -v 500000; exec timeout --signal=KILL 20 \"$@\"";
        command.args(["-c", script, "-", env!("CARGO_BIN_EXE_bellpush"), "doctor", "--machine"]);
        let path = dir.path().join(format!("{name}.machine"));
        let output = command.arg(path).env("TMPDIR", temporary.path()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {said}");
        assert!(said.lines().count() == 1 && said.contains("more than"), "{name}: {said}");
    }
}

/// A signal leaves nothing, and a text that is refused has no folder at any time.
#[test]
fn a_signal_leaves_no_folder() {
    let (temporary, dir) = (folder(), folder());
    let path = dir.path().join("own.machine");
    let files: String = (0..15_000).map(|n| format!("dev {n}\n")).collect();
    fs::write(&path, files).unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bellpush"));
        command.args(["doctor", "--machine"]).arg(&path).env("TMPDIR", temporary.path());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let soon = |what: &dyn Fn() -> bool| {
            let end = Instant::now() + Duration::from_secs(20);
            while !what() && Instant::now() < end {
                thread::sleep(Duration::from_millis(1));
            }
        };
        // Some of its files are there.
        soon(&|| {
            let all = fs::read_dir(temporary.path()).unwrap().flatten().next();
            all.is_some_and(|own| own.path().join("dev").is_dir())
        });
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(signal as i32), "it had ended before");
        soon(&|| is_empty(temporary.path()));
        assert!(is_empty(temporary.path()), "{signal}");
    }
    fs::write(&path, "file /etc/passwd = x").unwrap();
    let output = bellpush(&dir.path().join("gone"), &["--machine", path.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no name of a file"), "{said}");
}

/// A result does not replace the text, or its base.
#[test]
fn a_text_is_not_written_over() {
    let (temporary, dir) = (folder(), folder());
    let (own, base) = (dir.path().join("own.machine"), dir.path().join("low.machine"));
    fs::write(&base, "kernel 6.8.0\n").unwrap();
    fs::write(&own, "base low\n").unwrap();
    let before = fs::read_to_string(&own).unwrap() + &fs::read_to_string(&base).unwrap();
    std::os::unix::fs::symlink(&own, dir.path().join("other")).unwrap();
    for to in ["own.machine", "low.machine", "other"] {
        let to = dir.path().join(to);
        let args = ["--machine", own.to_str().unwrap(), "--json", to.to_str().unwrap()];
        let output = bellpush(temporary.path(), &args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && said.contains("would replace"), "{said}");
        let after = fs::read_to_string(&own).unwrap() + &fs::read_to_string(&base).unwrap();
        assert!(before == after && is_empty(temporary.path()));
    }
    // Nor is a topology.
    let file = dir.path().join("two-sockets.toml");
    let topo = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bellpush"));
        command.arg("topo").args(args).output().unwrap()
    };
    let file = file.to_str().unwrap();
    assert!(topo(&["two-sockets", "--no-predict", "--save", file]).status.success());
    let before = fs::read(file).unwrap();
    for to in ["--json", "--svg", "--html"] {
        assert_eq!(topo(&[file, "--no-predict", to, file]).status.code(), Some(2), "{to}");
        assert_eq!(fs::read(file).unwrap(), before, "{to}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(60))]
    /// No text makes it panic, or leaves a file outside of its folder.
    #[test]
    fn any_text_is_read_or_refused(
        picks in proptest::collection::vec((proptest::prelude::any::<usize>(), "[ -~]{0,40}"), 1..12),
        name in 0usize..3,
    ) {
        let mut own = recorded(["ib-switches", "roce-genoa", "bond"][name]);
        let text = fs::read_to_string(text_of("roce-genoa")).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("base")).collect();
        for (pick, content) in picks {
            let line = lines[pick % lines.len()];
            let at = line.char_indices().nth(pick / 7 % line.len().max(1)).map_or(0, |(at, _)| at);
            let _ = own.statement(&format!("{}{content}{}", &line[..at], &line[at..]));
        }
        let dir = folder();
        let within = dir.path().join("within");
        fs::create_dir(&within).unwrap();
        if own.write(&within).is_ok() {
            let (status, _) = on(&within, &[]);
            proptest::prop_assert!([0, 1, 3].contains(&status));
        }
        proptest::prop_assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
