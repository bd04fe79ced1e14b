//! Programs that are not ours under fault scripts: `interop/faults.sh`, where the outcome is certain.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use crate::preloaded::{OBJECT, Running, alone, bellpush, root};

/// Runs the cells of some programs and fault scripts; each must end in one of some ways. What of it was left out.
#[track_caller]
fn cells(programs: &str, faults: &[&str], expected: &str, more: &[&str]) -> Vec<String> {
    LazyLock::force(&OBJECT);
    let folder = tempfile::tempdir().unwrap();
    let build = Path::new(bellpush()).parent().unwrap();
    let mut table = Command::new(root().join("interop/faults.sh"));
    table.arg("-b").arg(build).arg("-o").arg(folder.path()).args(["-p", programs]);
    for fault in faults {
        table.args(["-f", fault]);
    }
    let ended = Running::spawn(table.args(["--expect", expected]).args(more)).end();
    match ended.code {
        Some(77) => println!("SKIPPED: {}", ended.text),
        code => {
            let lines = std::fs::read_to_string(folder.path().join("cells.jsonl"));
            assert_eq!(code, Some(0), "{programs}, {faults:?}: {} {lines:?}", ended.text);
        }
    }
    left_out(&ended.text)
}

/// The lines that name programs which are not installed, said once more: by this test.
fn left_out(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| line.starts_with("SKIPPED: "));
    lines.map(String::from).inspect(|line| println!("{line}")).collect()
}

#[test]
fn a_program_that_is_not_installed_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = Command::new("/usr/bin/python3");
    table.arg(root().join("interop/faults/cells.py")).arg("-o").arg(folder.path());
    // A path with nothing on it: neither the program nor its compiler is to be found.
    table.args(["-b", "none", "-p", "fio *write", "-p", "MPICH *"]).env("PATH", folder.path());
    let ended = Running::spawn(&mut table).end();
    let named = [
        "SKIPPED: fio --ioengine=rdma --verb=write: no fio",
        "SKIPPED: MPICH rc_x: no mpirun.mpich, mpicc.mpich",
    ];
    assert_eq!((ended.code, left_out(&ended.text)), (Some(77), named.map(String::from).into()));
}

/// A program that looks at each CQE's status, one that waits for a CQE that does not come, and what a cell without a
/// fault is.
#[test]
fn programs_end_under_faults_as_they_must() {
    let _alone = alone();
    cells("ib_read_bw *", &["none", "packet-duplicate"], "recovers", &["-t", "60"]);
    cells("ib_write_bw -s *", &["wqe-remote-access"], "reports", &["-t", "60"]);
    // It ends when all has stood still for three seconds.
    cells("ibv_rc_pingpong -n *", &["cqe-drop"], "hangs", &["-t", "30"]);
}

/// In CI, where `./x test --long` has installed them all, none may be missing.
#[test]
#[ignore = "takes minutes"]
fn every_program_is_through_without_a_fault() {
    let _alone = alone();
    let left_out = cells("*", &["none"], "recovers", &["-t", "60"]);
    let is_ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
    assert!(left_out.is_empty() || !is_ci, "CI must have every program: {left_out:?}");
}

/// No fault of the wire makes data wrong that a reliable transport carries, and what is lost once is sent again.
#[test]
#[ignore = "takes minutes"]
fn reliable_transports_make_up_for_what_the_wire_does() {
    let _alone = alone();
    for program in
        ["ib_read_bw *", "rping *", "fi_pingpong *", "Open MPI rc_x", "ucx_perftest rc_x *"]
    {
        let faults = ["packet-duplicate", "packet-drop-once", "packet-corrupt", "packet-delay"];
        cells(program, &faults, "recovers,slow", &["-t", "60"]);
    }
}

/// The side that gets an error CQE never says that it is through. Its peer may wait for ever.
#[test]
#[ignore = "takes minutes"]
fn an_error_cqe_is_told_of() {
    let _alone = alone();
    for program in ["ib_*_bw -*", "ibv_*c_pingpong *", "rcopy *", "MPICH *"] {
        cells(program, &["wqe-*"], "reports,hangs,mute", &[]);
    }
}
