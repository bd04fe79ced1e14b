//! Files that are none, named as what each command is to read.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use bellpush::nic::soft::AdversaryKind;

/// One that hangs is ended, long after it should have been.
fn bellpush(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "30", env!("CARGO_BIN_EXE_bellpush")]);
    command.args(args).current_dir(dir).output().unwrap()
}

#[test]
fn what_is_no_file_is_refused_in_one_line_and_soon() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    std::fs::write(at("empty"), "").unwrap();
    let _listener = UnixListener::bind(at("socket")).unwrap();
    // Others have no end of their own, and `?` is the input.
    let commands = [
        "decode wqe ?",
        "decode cqe ?",
        "decode packet ?",
        "decode pcap ?",
        "decode record ?",
        "decode live ? --seconds 1",
        "decode doorbell empty --sq ?",
        "decode doorbell empty --dbr ?",
        "show ?",
        "show empty ?",
        "compare ? empty",
        "compare empty ?",
        "trace --explain ?",
        "trace --merge ? empty",
        "replay ?",
        "replay ? --show",
        "replay ? --against empty",
        "replay empty --against ?",
        "doctor --machine ?",
        "doctor --trace ?",
        "topo ?",
        "topo --from ?",
        "topo --nvidia-smi ?",
        "topo two-sockets --measured ?",
        "sim --topology ?",
        "link --measured ?",
        "run --fault ? -- true",
        "bench --payload ?",
    ];
    std::thread::scope(|scope| {
        for input in ["fifo", "folder", "/dev/zero", "socket"] {
            let dir = dir.path();
            scope.spawn(move || {
                for command in commands {
                    let args: Vec<&str> =
                        command.split(' ').map(|a| if a == "?" { input } else { a }).collect();
                    let output = bellpush(dir, &args);
                    let said = String::from_utf8(output.stderr).unwrap();
                    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
                    assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
                    let first = ["show empty", "compare empty", "replay empty", "decode live"];
                    // A folder is a machine there, if it is one.
                    let is_folder = input == "folder" && command.starts_with("doctor");
                    let is_first = first.iter().any(|first| command.starts_with(first));
                    assert!(
                        is_first || is_folder || said.contains("not a regular file"),
                        "{args:?}: {said}"
                    );
                }
            });
        }
    });
    // A folder is one there.
    let output = bellpush(dir.path(), &["topo", "--sysfs", "fifo"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.lines().count() == 1, "{said}");
}

/// What a shell's `<(...)` names is read as a file is.
#[test]
fn a_pipe_with_a_writer_is_read() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    for (command, file) in [
        ("show", "docs/results/h200.json"),
        ("topo --no-predict --from", "tests/fixtures/topo/cmlgpu.lspci"),
        ("compare docs/results/h200.json", "docs/results/h200.json"),
    ] {
        let bellpush = env!("CARGO_BIN_EXE_bellpush");
        let line = format!("cd {root} && {bellpush} {command} <(sleep 0.1; cat {file})");
        let mut shell = Command::new("timeout");
        let output = shell.args(["--signal=KILL", "30", "bash", "-c", &line]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout.len() > 500, "{line}: {said}");
    }
}

/// By another name it is the same file.
#[test]
fn what_is_read_is_not_written_over() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("input"), "mine").unwrap();
    std::os::unix::fs::symlink("input", dir.path().join("other")).unwrap();
    for (command, why) in [
        ("sim --topology input --json other", "a file that is read"),
        ("sim --topology two-sockets --topology input --csv input", "a file that is read"),
        ("link --measured input --csv other", "a file that is read"),
        ("link --measured input --topology other --json input", "a file that is read"),
        ("bench --payload input --json other", "a file that is read"),
        ("bench --payload input --trace other", "a file that is read"),
        ("bench --json both --trace both", "one result fits in a file"),
        ("run --fault input --record other -- touch ran", "a file that is read"),
        ("run --fault input --pcap input -- touch ran", "a file that is read"),
        ("trace --fault input --record other -- touch ran", "a file that is read"),
        ("trace --fault input -o input -- touch ran", "a file that is read"),
        ("run --record both --pcap both -- touch ran", "one result fits in a file"),
        ("trace --record both -o both -- touch ran", "one result fits in a file"),
        ("trace --pcap ./both --output both -- touch ran", "one result fits in a file"),
    ] {
        let output = bellpush(dir.path(), &command.split(' ').collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{command}: {said}");
        assert_eq!(std::fs::read(dir.path().join("input")).unwrap(), b"mine", "{command}");
        assert!(!dir.path().join("ran").exists(), "{command}: the program was started");
    }
}

/// A name that is built in stands for no file, and /dev/null holds nothing.
#[test]
fn what_is_not_read_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    for command in [
        "topo two-sockets --json two-sockets",
        "topo two-sockets --json two-sockets",
        "topo two-sockets --json /dev/null --svg /dev/null",
    ] {
        let output = bellpush(dir.path(), &command.split(' ').collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {said}");
    }
}

#[test]
fn names_that_are_not_utf_8_are_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    for option in ["--pcap", "--record"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bellpush"));
        command.args(["run", option]).arg(OsStr::from_bytes(b"a\xff")).args(["--", "true"]);
        let output = command.current_dir(dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains("UTF-8"), "{option}: {said}");
    }
}

#[test]
fn a_place_that_cannot_be_written_is_told_before_the_program_starts() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for folder in ["folder", "sealed"] {
        std::fs::create_dir(at(folder)).unwrap();
    }
    std::fs::write(at("file"), "mine").unwrap();
    std::os::unix::fs::symlink("file", at("link")).unwrap();
    let mut wrong = vec![
        ("absent/x", "its directory does not exist"),
        ("absent/%p-%d", "its directory does not exist"),
        ("folder", "it is a directory"),
        ("fifo", "No such device"),
        ("link", "symbolic links"),
        ("file/x", "its directory does not exist"),
    ];
    // Root may write there.
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        std::fs::set_permissions(at("sealed"), Permissions::from_mode(0o500)).unwrap();
        wrong.push(("sealed/%p", "Permission denied"));
    }
    for command in ["run --record", "run --pcap", "trace --record", "trace --pcap"] {
        for (place, why) in &wrong {
            let line = format!("{command} {place} -- touch ran");
            let output = bellpush(dir.path(), &line.split(' ').collect::<Vec<_>>());
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(2) && said.contains(why), "{line}: {said}");
            assert_eq!(said.lines().count(), 1, "{line}: {said}");
            assert!(!at("ran").exists(), "{line}: the program was started");
        }
    }
    assert_eq!(std::fs::read(at("file")).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(at("folder")).unwrap().count(), 0);
}

#[test]
fn devices_do_not_share_a_file() {
    let dir = tempfile::tempdir().unwrap();
    for command in ["run --record", "run --pcap", "trace --record", "trace --pcap"] {
        let rest = "two-%p --devices 2 -- touch ran";
        let command = format!("{command} {rest}");
        let output = bellpush(dir.path(), &command.split(' ').collect::<Vec<_>>());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains("%d, the device's number") && said.lines().count() == 1, "{said}");
        assert!(!dir.path().join("ran").exists(), "{command}: the program was started");
    }
}

#[test]
fn help_names_every_kind_of_adversary() {
    let output = bellpush(Path::new("."), &["run", "--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    let listed = help.split_once("kinds:").unwrap().1.split_once('[').unwrap().0;
    let named: Vec<_> = listed.split([',', ' ', '\n']).filter(|word| !word.is_empty()).collect();
    assert_eq!(named, AdversaryKind::ALL.map(|kind| kind.to_string()));
}
