//! Files that are none, named as what each command is to read.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

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
