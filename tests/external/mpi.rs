//! MPI and OpenSHMEM, unmodified, on software devices: `bellpush run -- mpirun …`. Each rank has a device at an address of
//! its own.
//!
//! The programs are the system's packages; where one is missing its test says so and ends.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::preloaded::{OBJECT, Running, alone, bellpush, root, run, there};

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
    there(compiler).then(|| compile(name, compiler, compiler))
}

fn compile(name: &str, compiler: &str, called: &str) -> PathBuf {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{called}"));
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-o"]).arg(&to).arg(root().join(format!("interop/{name}.c")));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    to
}

/// What `./x test --long` fetches from PyPI: MPICH, and mpi4py's source.
fn fetched(path: &str) -> Option<PathBuf> {
    let path = root().join(".tools/mpi").join(path);
    let is_there = path.exists();
    if !is_there {
        println!("SKIPPED: no {} (./x test --long fetches it)", path.display());
    }
    is_there.then_some(path)
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

/// Ranks at addresses of an interface, each with a device at its own: libfabric leaves the loopback interface out.
const BY_OFI: &str = r#"
    ip link set lo up; ip link add b0 type bridge; ip link set b0 up
    ranks=
    for n in $(seq "$RANKS"); do
      ip addr add "10.0.0.$n/24" dev b0
      ranks="$ranks ${ranks:+:} -n 1 $BELLPUSH run --address 10.0.0.$n -- $PROGRAM $SENT messages collectives one-sided"
    done
    "$BELLPUSH" run -- lstopo-no-graphics "$HWLOC_XMLFILE"
    exec "$MPIEXEC" $ranks
"#;

/// Debian's MPICH has no libfabric; PyPI's has. Its hwloc is built without PCI, and MPICH ends where a NIC's function is not
/// in there: a file has it, of Debian's hwloc.
#[test]
#[ignore = "wants MPICH of PyPI, which comes with ./x test --long"]
fn mpich_over_libfabric() {
    let _alone = alone();
    let (Some(compiler), Some(mpiexec)) = (fetched("bin/mpicc"), fetched("bin/mpiexec")) else {
        return;
    };
    if !there("lstopo-no-graphics") {
        return;
    }
    LazyLock::force(&OBJECT);
    let program = compile("mpi", compiler.to_str().unwrap(), "mpich-ofi");
    let folder = tempfile::tempdir().unwrap();
    for number in ["2", "4"] {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "sh", "-e", "-c", BY_OFI]);
        command.env("BELLPUSH", bellpush()).env("PROGRAM", &program).env("MPIEXEC", &mpiexec);
        command.env("HWLOC_XMLFILE", folder.path().join(format!("{number}.xml")));
        command.env("HWLOC_THISSYSTEM", "1").env("RANKS", number).env("SENT", SENT);
        command.env("MPIR_CVAR_CH4_NETMOD", "ofi").env("MPIR_CVAR_NOLOCAL", "1");
        command.env("FI_PROVIDER", "verbs;ofi_rxm");
        let ended = Running::spawn(&mut command).end();
        assert_eq!(ended.code, Some(0), "{}", ended.text);
        let line = format!("{number} ranks: all as it should be");
        assert!(ended.text.contains(&line), "{}", ended.text);
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

/// mpi4py's own tests, of the version that the system's Python has.
#[test]
#[ignore = "wants mpi4py's source, which comes with ./x test --long"]
fn mpi4py_passes_its_own_tests() {
    let _alone = alone();
    let Some(source) = fetched("mpi4py-3.1.4") else { return };
    let module = Command::new("/usr/bin/python3").args(["-c", "import mpi4py"]).output();
    if !module.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: the system's Python has no mpi4py (python3-mpi4py)");
        return;
    }
    let runner = source.join("test/runtests.py");
    // Ranks that are started later have no `bellpush run` above them.
    let without = ["--no-threads", "-e", "test_spawn", "-e", "test_dynproc"];
    let tests = [&["/usr/bin/python3", runner.to_str().unwrap()], &without[..]].concat();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for number in [2, 4] {
        // Each rank polls, and each device wants its turn too: more ranks than cores take many minutes.
        if number > 2 && cores < 6 {
            println!("SKIPPED: {number} ranks on {cores} cores");
            continue;
        }
        let said = ranks(OPEN_MPI, &number.to_string(), "rc_x", &tests);
        assert_eq!(said.matches("\nOK").count(), number, "{said}");
    }
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
