//! MPI and OpenSHMEM, unmodified, on software devices: `bellpush run -- mpirun …`. Each rank has a device at an address of
//! its own.
//!
//! The programs are the system's packages; where one is missing its test says so and ends.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::preloaded::{alone, root, run, there};

/// Transports of UCX's that lead over the device.
const TRANSPORTS: [&str; 5] = ["rc_v", "rc_x", "dc_x", "ud_v", "ud_x"];

/// Options of Open MPI's `mpirun`: the machine may have fewer cores than ranks, and the user may be root.
const OPEN_MPI: &[&str] =
    &["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ucx"];
/// Messages by one component, one-sided operations by another. When that one ends, what is last on its way may find a
/// peer that has destroyed its queue pair: for 8 s, if UCX is left to its own timeout.
const ONE_SIDED: &[&str] = &[
    "UCX_RC_TIMEOUT=0.1s",
    "mpirun.openmpi",
    "--allow-run-as-root",
    "--oversubscribe",
    "--mca",
    "pml",
    "ucx",
    "--mca",
    "osc",
    "ucx",
];
const MPICH: &[&str] = &["mpirun.mpich"];
const OPEN_SHMEM: &[&str] =
    &["oshrun", "--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ucx"];

/// Bytes that all ranks' devices send at least, where no message goes by another way.
const SENT: &str = "5000000";

/// `interop/mpi.c`, compiled by a library's own compiler.
fn program(compiler: &str) -> Option<PathBuf> {
    built("mpi", compiler)
}

/// A program of `interop/`, compiled by a library's own compiler.
fn built(name: &str, compiler: &str) -> Option<PathBuf> {
    if !there(compiler) {
        return None;
    }
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{compiler}"));
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-o"]).arg(&to).arg(root().join(format!("interop/{name}.c")));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(to)
}

/// Runs a command in each of some ranks, over one of UCX's transports; what they said.
#[track_caller]
fn ranks(mpirun: &[&str], ranks: &str, transport: &str, command: &[&str]) -> String {
    // Nothing else carries what is for another rank: neither shared memory nor TCP.
    let tls = format!("UCX_TLS={transport},self");
    let words = [&["env", &tls], mpirun, &["-n", ranks], command].concat();
    println!("{words:?}");
    let ended = run(&[], &words);
    assert_eq!(ended.code, Some(0), "{words:?}: {}", ended.text);
    ended.text
}

#[track_caller]
fn checked(mpirun: &[&str], number: &str, transport: &str, program: &Path, parts: &[&str]) {
    let command = [&[program.to_str().unwrap(), SENT], parts].concat();
    let said = ranks(mpirun, number, transport, &command);
    assert!(said.contains(&format!("{number} ranks: all as it should be")), "{said}");
}

/// `interop/shmem.c`, whose processing elements leave without `shmem_finalize`.
#[track_caller]
fn elements(number: &str, transport: &str, program: &Path) {
    let said = ranks(OPEN_SHMEM, number, transport, &[program.to_str().unwrap(), SENT]);
    assert!(said.contains(&format!("{number} PEs: all as it should be")), "{said}");
}

#[test]
fn open_mpi_over_ucx() {
    let _alone = alone();
    let Some(program) = program("mpicc.openmpi") else { return };
    let parts = ["messages", "collectives"];
    for (transport, number) in [("rc_x", "2"), ("ud_v", "3")] {
        checked(OPEN_MPI, number, transport, &program, &parts);
    }
    checked(ONE_SIDED, "2", "dc_x", &program, &["messages", "one-sided"]);
}

#[test]
fn open_shmem_over_ucx() {
    let _alone = alone();
    let Some(program) = built("shmem", "oshcc") else { return };
    elements("2", "rc_x", &program);
    elements("3", "dc_x", &program);
    // What no device sends.
    let words = [&["env", "UCX_TLS=rc_x,self"], OPEN_SHMEM, &["-n", "2"]].concat();
    let ended = run(&[], &[&words[..], &[program.to_str().unwrap(), "1000000000"]].concat());
    assert_ne!(ended.code, Some(0), "negative control");
    assert!(ended.text.contains("not me != 0 || bytes >="), "{}", ended.text);
}

#[test]
fn a_reader_of_counters_counts_its_own_rank() {
    let _alone = alone();
    let Some(program) = program("mpicc.openmpi") else { return };
    // What no device sends: the program itself says so, and ends with an error.
    let words = [&["env", "UCX_TLS=rc_v,self"], OPEN_MPI, &["-n", "2"]].concat();
    let program = [program.to_str().unwrap(), "1000000000", "messages"];
    let ended = run(&[], &[&words[..], &program].concat());
    assert_ne!(ended.code, Some(0), "negative control");
    assert!(ended.text.contains("not bytes >="), "{}", ended.text);
}

#[test]
#[ignore = "all transports take minutes"]
fn open_mpi_over_every_transport() {
    let _alone = alone();
    let Some(program) = program("mpicc.openmpi") else { return };
    for number in ["2", "4"] {
        for transport in TRANSPORTS {
            checked(OPEN_MPI, number, transport, &program, &["messages", "collectives"]);
        }
        // Over datagrams their end takes half a minute, which is UCX's timeout.
        for transport in ["rc_v", "rc_x", "dc_x"] {
            checked(ONE_SIDED, number, transport, &program, &["messages", "one-sided"]);
        }
    }
}

#[test]
#[ignore = "all transports take minutes"]
fn open_shmem_over_every_transport() {
    let _alone = alone();
    let Some(program) = built("shmem", "oshcc") else { return };
    for number in ["2", "4"] {
        for transport in TRANSPORTS {
            elements(number, transport, &program);
        }
    }
}

#[test]
#[ignore = "all transports take minutes; its packages come with ./x test --long"]
fn mpich_over_every_transport() {
    let _alone = alone();
    let Some(program) = program("mpicc.mpich") else { return };
    for number in ["2", "4"] {
        for transport in TRANSPORTS {
            let parts = ["messages", "collectives", "one-sided"];
            checked(MPICH, number, transport, &program, &parts);
        }
    }
}

#[test]
#[ignore = "takes a minute; its packages come with ./x test --long"]
fn netpipe_finds_every_byte_in_its_place() {
    let _alone = alone();
    for (mpirun, program) in [(OPEN_MPI, "NPopenmpi"), (MPICH, "NPmpich2")] {
        if !there(program) {
            continue;
        }
        for transport in TRANSPORTS {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("out");
            let options = ["-i", "-n", "5", "-u", "1048576", "-o", file.to_str().unwrap()];
            let said = ranks(mpirun, "2", transport, &[&[program], &options[..]].concat());
            let passed = said.matches("Integrity check passed").count();
            assert!(passed >= 30 && !said.contains("failed"), "{passed}: {said}");
        }
    }
}

/// mpi4py's own tests. Their source is not part of this tree: `BELLPUSH_MPI4PY` names an unpacked source archive of the
/// version that the system's Python has.
#[test]
#[ignore = "needs mpi4py's source, which is not part of this tree"]
fn mpi4py_passes_its_own_tests() {
    let _alone = alone();
    let Some(source) = std::env::var_os("BELLPUSH_MPI4PY").map(PathBuf::from) else {
        println!("SKIPPED: no source of mpi4py (BELLPUSH_MPI4PY)");
        return;
    };
    let module = Command::new("/usr/bin/python3").args(["-c", "import mpi4py"]).output();
    if !module.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: the system's Python has no mpi4py (python3-mpi4py)");
        return;
    }
    let runner = source.join("test/runtests.py");
    // Ranks that are started later have no `bellpush run` above them.
    let without = ["--no-threads", "-e", "test_spawn", "-e", "test_dynproc"];
    let tests = [&["/usr/bin/python3", runner.to_str().unwrap()], &without[..]].concat();
    // More ranks than cores take minutes.
    let said = ranks(OPEN_MPI, "2", "rc_x", &tests);
    assert_eq!(said.matches("\nOK").count(), 2, "{said}");
}

/// HPC Challenge's tests on a small problem, and what its input file says from line 6 on.
#[test]
#[ignore = "takes a minute; its packages come with ./x test --long"]
fn hpcc_passes() {
    let _alone = alone();
    if !there("hpcc") {
        return;
    }
    let example = "/usr/share/doc/hpcc/examples/_hpccinf.txt";
    let Ok(example) = std::fs::read_to_string(example) else {
        println!("SKIPPED: no {example}");
        return;
    };
    for (number, rows) in [("2", "1"), ("4", "2")] {
        let folder = tempfile::tempdir().unwrap();
        let mut lines: Vec<_> = example.lines().collect();
        // Lines 6 and 11: the size of the problem, and the rows of the grid of ranks.
        (lines[5], lines[10]) = ("200 Ns", rows);
        std::fs::write(folder.path().join("hpccinf.txt"), lines.join("\n") + "\n").unwrap();
        let within = ["sh", "-c", "cd \"$0\" && exec hpcc", folder.path().to_str().unwrap()];
        ranks(OPEN_MPI, number, "rc_x", &within);
        let text = std::fs::read_to_string(folder.path().join("hpccoutf.txt")).unwrap();
        assert!(text.contains("Success=1"), "{text}");
        assert!(text.matches("PASSED").count() >= 7, "{text}");
        assert!(!text.lines().any(|line| line.ends_with("FAILED")), "{text}");
    }
}
