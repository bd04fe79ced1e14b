//! rdma-core 44's own Python tests on the preloaded device, all modules of them.
//!
//! Their source is not part of this tree: `BELLPUSH_RDMA_CORE` names a checkout of v44.0, else
//! `./x setup` fetches one into `.tools`. pyverbs itself is the system's (python3-pyverbs).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use crate::preloaded::{OBJECT, Running, alone, bellpush};
use serde::Deserialize;

/// Bounds the run, which takes seconds.
const PATIENCE: Duration = Duration::from_secs(600);
/// Tests that must pass.
const LEAST_PASSED: usize = 175;
/// Tests in the modules of v44.0.
const TESTS: usize = 273;
/// The interpreter that the system's packages are for.
const PYTHON: &str = "/usr/bin/python3";

/// Why tests skip themselves: part of what they say, and what it means here. A test that says
/// something else has lost a capability.
const REASONS: &[(&str, &str)] = &[
    ("a fork's child", "left out, see docs/preload.md"),
    ("non EFA device", "another vendor's device"),
    ("Create QP type 8", "raw packets and flow steering: there is no Ethernet below the link"),
    ("Raw Packet QP", "raw packets: there is no Ethernet below the link"),
    ("Multicast is not supported", "multicast: the device has none"),
    ("Allocating dmabuf", "needs a graphics card"),
    ("cuda-python", "needs a GPU and its Python package"),
    ("Crypto login", "encryption: the device has none"),
    ("Create Mkey is not supported", "signatures (T10-DIF, CRC): the device has none"),
    ("MEMIC atomic operations", "a load that changes memory needs more than memory behind it"),
    ("huge pages", "the machine has no huge pages set aside"),
    ("scapy", "needs python3-scapy"),
    ("PCI device", "a PCI function that a program drives by itself (vfio): there is none"),
    ("switchdev mode", "flow steering between functions: the device is no switch"),
    ("does not support reformat", "flow steering: the device has none"),
    ("LAG affinity", "the device has one port"),
    ("128B compression", "compressed CQEs: the device has none, and libmlx5 reads none"),
    ("Packet pacing", "rates of raw packets: there is no Ethernet below the link"),
    ("VAR allocation", "virtio emulation: the device has none"),
    ("Extended QP is not supported", "RDMA atomic write: mlx5 has none"),
];

/// A line of `interop/pyverbs_run.py`.
#[derive(Deserialize)]
struct Line {
    test: String,
    how: String,
    why: String,
}

fn source() -> Option<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let named = std::env::var_os("BELLPUSH_RDMA_CORE").map(PathBuf::from);
    let source = named.unwrap_or_else(|| root.join(".tools/rdma-core-44.0")).join("tests");
    if source.join("run_tests.py").is_file() {
        return Some(source);
    }
    println!("SKIPPED: no tests of rdma-core 44 (BELLPUSH_RDMA_CORE, or ./x setup fetches them)");
    None
}

fn has_pyverbs() -> bool {
    let mut python = Command::new(PYTHON);
    python.args(["-c", "import pyverbs"]).stdout(Stdio::null()).stderr(Stdio::null());
    let there = python.status().is_ok_and(|status| status.success());
    if !there {
        println!("SKIPPED: no python3-pyverbs (./x setup installs it)");
    }
    there
}

/// The run's lines; what else was said is in the file.
fn run(source: &Path, said: &Path) -> Vec<Line> {
    LazyLock::force(&OBJECT);
    let lines = said.with_extension("json");
    let runner =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("interop/pyverbs_run.py");
    let mut command = Command::new(bellpush());
    // Tests of connections fork a process for either side, and both are at the device's one address.
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let address = format!("127.{}.{low}.1", 1 + high % 250);
    command
        .args(["run", "--address", &address, "--", PYTHON, "-B"])
        .arg(runner)
        .arg(source)
        .arg(&lines);
    command.args(["--dev", "mlx5_0", "-v"]);
    Running::spawn_into(&mut command, &File::create(said).unwrap()).wait(PATIENCE);
    let text = fs::read_to_string(lines).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn table(lines: &[Line]) -> String {
    let of = |how: &str| lines.iter().filter(|line| line.how == how).count();
    let mut text = format!(
        "# rdma-core 44's Python tests on the preloaded device\n\n\
         **Of {} tests {} passed, {} failed, {} were skipped, on a machine with {} huge pages set aside.**\n\n\
         `cargo test --release --test external pyverbs:: -- --ignored` with `BELLPUSH_WRITE_RESULTS` set writes this file.\n\n\
         | module | passed | failed | skipped |\n|---|---|---|---|\n",
        lines.len(),
        of("passed"),
        of("failed"),
        of("skipped"),
        // Tests that want some skip themselves without.
        fs::read_to_string("/proc/sys/vm/nr_hugepages").map_or(String::new(), |n| n.trim().into()),
    );
    let mut modules: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    let mut skips: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for line in lines {
        let name = line.test.trim_start_matches("tests.");
        let how = ["passed", "failed", "skipped"].iter().position(|how| *how == line.how);
        modules.entry(name.split('.').next().unwrap()).or_default()[how.unwrap()] += 1;
        if line.how == "skipped" {
            let here = reason(&line.why).unwrap_or("?");
            let short = name.rsplit('.').next().unwrap();
            skips.entry((here, &line.why)).or_default().push(short);
        }
    }
    for (module, [passed, failed, skipped]) in modules {
        writeln!(text, "| {module} | {passed} | {failed} | {skipped} |").unwrap();
    }
    text += "\n| why here | what the tests say | tests |\n|---|---|---|\n";
    for ((here, why), tests) in skips {
        let (why, tests) = (why.replace('|', "/"), tests.join(", "));
        writeln!(text, "| {here} | {why} | {tests} |").unwrap();
    }
    text
}

fn reason(why: &str) -> Option<&'static str> {
    REASONS.iter().find(|(part, _)| why.contains(part)).map(|(_, here)| *here)
}

#[test]
#[ignore = "needs rdma-core's source, which is not part of this tree"]
fn all_modules_pass_or_say_what_is_missing() {
    let _alone = alone();
    let Some(source) = source() else { return };
    if !has_pyverbs() {
        return;
    }
    let said = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pyverbs.txt");
    let lines = run(&source, &said);
    assert!(lines.len() >= TESTS, "{} of {TESTS} tests ran: see {said:?}", lines.len());
    let table = table(&lines);
    if std::env::var_os("BELLPUSH_WRITE_RESULTS").is_some() {
        let results = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("docs/results/pyverbs.md");
        fs::write(results, &table).unwrap();
    }
    println!("{table}");
    let of = |how: &str| lines.iter().filter(|line| line.how == how).collect::<Vec<_>>();
    let failed: Vec<_> = of("failed").iter().map(|line| (&line.test, &line.why)).collect();
    assert!(failed.is_empty(), "{failed:?}: see {said:?}");
    let odd: Vec<_> = of("skipped").into_iter().filter(|l| reason(&l.why).is_none()).collect();
    let odd: Vec<_> = odd.iter().map(|line| (&line.test, &line.why)).collect();
    assert!(odd.is_empty(), "skipped for reasons that are not known: {odd:?}");
    assert!(of("passed").len() >= LEAST_PASSED, "{} passed: see {said:?}", of("passed").len());
}
