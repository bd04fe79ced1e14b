//! What the device code stores and loads, in which order: each `tests/kernels/device/*.cpp` is a program of its own
//! that includes the headers with some of `kernels/include/bellpush/impl/order.cuh`'s accesses replaced by its own, so
//! that it sees them one by one, and can let others come between two of them. It exits with 0 when all is as it must
//! be.

use std::path::Path;
use std::process::{Command, Output};

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// Each header that a user may include is whole by itself, and needs no other folder.
#[test]
fn public_headers_stand_alone() {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/include");
    let cxx = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let entries = std::fs::read_dir(include.join("bellpush")).unwrap();
    let headers = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let mut compiled = 0;
    for header in headers {
        let mut command = Command::new(&cxx);
        command.args(["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]);
        command.args(["-x", "c++", "/dev/null", "-I"]).arg(&include).arg("-include").arg(&header);
        let output = command.output().unwrap_or_else(|e| panic!("{cxx}: {e}"));
        assert!(output.status.success(), "{}:\n{}", header.display(), text(&output));
        compiled += 1;
    }
    assert!(compiled > 0);
}

fn run(name: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    let cxx = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let mut command = Command::new(&cxx);
    command.args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    command.arg("-I").arg(root.join("kernels")).arg("-I").arg(root.join("kernels/include"));
    command.arg(root.join("tests/kernels/device").join(name).with_extension("cpp"));
    command.arg(root.join("kernels/host/exec.cpp")).arg("-o").arg(&program);
    let compiled = command.output().unwrap_or_else(|e| panic!("{cxx}: {e}"));
    assert!(compiled.status.success(), "{name}:\n{}", text(&compiled));
    let ran = Command::new(&program).output().unwrap();
    assert!(ran.status.success(), "{name}:\n{}", text(&ran));
}

#[test]
fn ready_words_and_ringers() {
    run("ring");
}

#[test]
fn pieces_of_shared_payload() {
    run("control_block");
}

#[test]
fn in_band_lines() {
    run("lines");
}

#[test]
fn signals_that_the_gpu_engine_sets() {
    run("marked");
}

#[test]
fn bounds_of_single_calls() {
    run("bounded");
}

#[test]
fn clocks() {
    run("clock");
}

#[test]
fn kernels_of_another_path() {
    run("tags");
}

#[test]
fn waits_and_errors() {
    run("waits");
}

#[test]
fn several_cqes_a_look() {
    run("cqes");
}

#[test]
fn arguments_that_are_refused() {
    run("refused");
}

#[test]
fn what_is_complete_stays_complete() {
    run("complete");
}

#[test]
fn statuses_are_those_of_a_random_nic() {
    run("contract");
}

#[test]
fn a_pipeline_records_what_came_before_an_error() {
    run("pipeline_error");
}

#[test]
fn the_leader_alone_ends_a_queue_pair() {
    run("lanes_wait");
}

#[test]
fn batches_among_all_else() {
    run("batches");
}
