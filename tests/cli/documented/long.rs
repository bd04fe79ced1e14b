//! Commands of the pages that build for minutes.

use std::path::Path;
use std::process::{Command, Stdio};

use super::root;

/// The lines of a page's block of `sh` that begins so.
fn block(page: &str, begin: &str) -> String {
    let text = std::fs::read_to_string(root().join("docs").join(page)).unwrap();
    let mut blocks = text.split("\n```sh\n").filter_map(|rest| rest.split("```").next());
    let lines = blocks.find(|lines| lines.starts_with(begin)).expect("the page has the lines");
    lines.to_owned()
}

/// Runs lines of a shell in the checkout, for half an hour at most; what they print.
#[track_caller]
fn shell(lines: &str, variables: &[(&str, &Path)]) -> String {
    let output = Command::new("timeout")
        .args(["1800", "bash", "-ec", lines])
        .current_dir(root().canonicalize().unwrap())
        .envs([("BELLPUSH_NVCC", "none"), ("CARGO_NET_OFFLINE", "true")])
        .env_remove("CARGO_TARGET_DIR")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{lines}\n{told}");
    told
}

#[test]
#[ignore = "minutes: builds the library once more"]
fn a_copy_of_the_example_is_a_crate_of_its_own() {
    let lines = block("tutorial/2-kernel.md", "cp -r examples/custom_kernel ../mine\n");
    for line in [
        "cp Cargo.lock ../mine",
        "sed -i",
        "printf",
        "cargo run --manifest-path ../mine/Cargo.toml",
    ] {
        assert!(lines.contains(line), "{line}");
    }
    let folder = tempfile::tempdir().unwrap();
    let mine = folder.path().join("mine");
    let told = shell(&lines.replace("../mine", mine.to_str().unwrap()), &[]);
    assert!(told.contains("4 pieces sent, summed and right on host"), "{told}");
}

/// As threads of one process, then under a launcher, which here may run as root and on fewer cores than ranks.
#[test]
#[ignore = "minutes: builds in release"]
fn ranks_are_threads_and_processes() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        return println!("SKIPPED: no mpirun; openmpi-bin brings it");
    }
    let lines = block("all-reduce.md", "# Ranks as threads");
    let [threads, launcher] = ["cargo run --release --package allreduce", "mpirun -np 4"];
    assert!(lines.contains(threads) && lines.contains("export BELLPUSH_ROOT="), "{lines}");
    assert!(lines.contains(launcher), "{lines}");
    // target/{debug,release}/deps/NAME
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    let lines = lines
        .replace(launcher, "mpirun --allow-run-as-root --oversubscribe -np 4")
        .replace("target/release", target.join("release").to_str().unwrap());
    let state = tempfile::tempdir().unwrap();
    shell(&lines, &[("CARGO_TARGET_DIR", target), ("XDG_STATE_HOME", state.path())]);
}
