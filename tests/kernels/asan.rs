//! Kernels and the host executor's C++ under AddressSanitizer and UndefinedBehaviorSanitizer: the programs of
//! [`super::device`] and of [`super::tsan`], and `tests/kernels/asan/deliberate_*.cpp`, which must be reported.
//!
//! A lane of these programs is a thread (`kernels/host/threads.hpp`), so that the sanitizers know each stack. The
//! executor's fibres are corosensei's, in Rust; docs/reliability.md says how they are run with its annotations.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use super::tsan::{compile, sanitizer_works, text};

/// Without optimisation: it takes half of the time to compile, and no access is optimised away.
const FLAGS: &[&str] = &["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"];
/// Minutes, most of them the compiler's.
const SLOW: &[&str] = &["batches", "contract", "refused"];

fn run(program: &Path) -> Output {
    // exec.cpp's memory goes with its grid, and what these programs keep is of no interest.
    let options = "exitcode=66:detect_leaks=0:detect_stack_use_after_return=1";
    let mut command = Command::new(program);
    command.env("ASAN_OPTIONS", options).env("UBSAN_OPTIONS", "exitcode=67").output().unwrap()
}

fn programs(folder: &str, of: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels").join(folder);
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|ext| ext == "cpp"))
        .filter(|path| of(&path.file_stem().unwrap().to_string_lossy()))
        .collect();
    found.sort();
    found
}

/// Compiles and runs each, two at once.
fn run_all(programs: Vec<PathBuf>) -> Vec<(String, Output)> {
    let folder = tempfile::tempdir().unwrap();
    if !sanitizer_works(folder.path(), FLAGS) {
        assert!(std::env::var_os("CI").is_none(), "CI must have a working AddressSanitizer");
        eprintln!("skipped: no working AddressSanitizer");
        return Vec::new();
    }
    let (left, done) = (Mutex::new(programs), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let Some(source) = left.lock().unwrap().pop() else { break };
            let name = source.file_stem().unwrap().to_string_lossy().into_owned();
            let program = folder.path().join(&name);
            let compiled = compile(&source, &program, FLAGS);
            assert!(compiled.status.success(), "{name}:\n{}", text(&compiled));
            done.lock().unwrap().push((name, run(&program)));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    done.into_inner().unwrap()
}

fn none_is_reported(programs: Vec<PathBuf>) {
    assert!(!programs.is_empty());
    for (name, ran) in run_all(programs) {
        assert!(ran.status.success(), "{name}:\n{}", text(&ran));
    }
}

#[test]
fn kernels_stay_within_their_memory() {
    let mut all = programs("device", |name| !SLOW.contains(&name));
    all.extend(programs("tsan", |name| !name.starts_with("deliberate_")));
    none_is_reported(all);
}

#[test]
#[ignore = "slow: the compiler takes minutes"]
fn kernels_that_take_long_to_compile_stay_within_their_memory() {
    none_is_reported(programs("device", |name| SLOW.contains(&name)));
}

#[test]
fn what_the_sanitizers_must_report_they_do() {
    let expected = [
        ("deliberate_behind_shared_memory", "heap-buffer-overflow", 66),
        ("deliberate_behind_the_slots", "heap-buffer-overflow", 66),
        ("deliberate_shift", "shift exponent 32 is too large", 67),
    ];
    let controls = programs("asan", |_| true);
    assert_eq!(controls.len(), expected.len());
    for (name, ran) in run_all(controls) {
        let (_, report, status) = expected.iter().find(|(of, ..)| *of == name).expect(&name);
        let output = text(&ran);
        assert!(output.contains(report), "{name} was not reported:\n{output}");
        assert_eq!(ran.status.code(), Some(*status), "{name}:\n{output}");
    }
}
