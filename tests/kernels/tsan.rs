//! Kernels under ThreadSanitizer: each `tests/kernels/tsan/*.cpp` is a program of its own that runs a
//! kernel with one thread a lane (`kernels/host/threads.hpp`) and exits with 0 when what it
//! computed is right. Those whose name begins with `deliberate_` are the negative controls: the
//! sanitizer must report them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

const FLAGS: &[&str] = &["-O1", "-fsanitize=thread"];

/// A program of one file and the host executor's C++.
pub fn compile(source: &Path, to: &Path, flags: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cxx = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let mut command = Command::new(&cxx);
    command.args(["-std=c++17", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(flags);
    command.arg("-I").arg(root.join("kernels")).arg("-I").arg(root.join("kernels/include"));
    command.arg("-I").arg(root.join("tests/kernels"));
    command.arg(source);
    command.arg(root.join("kernels/host/exec.cpp")).arg("-o").arg(to);
    command.output().unwrap_or_else(|e| panic!("{cxx}: {e}"))
}

/// Whether programs can be built with a sanitizer, and run: some do not start where the kernel's
/// address space randomisation is larger than they know.
pub fn sanitizer_works(folder: &Path, flags: &[&str]) -> bool {
    let source = folder.join("nothing.cpp");
    let program = folder.join("nothing");
    std::fs::write(&source, "int main() {}\n").unwrap();
    compile(&source, &program, flags).status.success()
        && Command::new(&program).output().is_ok_and(|out| out.status.success())
}

#[test]
fn kernels_have_no_races_and_the_controls_have() {
    let folder = tempfile::tempdir().unwrap();
    if !sanitizer_works(folder.path(), FLAGS) {
        assert!(std::env::var_os("CI").is_none(), "CI must have a working ThreadSanitizer");
        eprintln!("skipped: no working ThreadSanitizer");
        return;
    }
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/tsan");
    let mut sources: Vec<PathBuf> =
        std::fs::read_dir(cases).unwrap().map(|entry| entry.unwrap().path()).collect();
    sources.retain(|path| path.extension().is_some_and(|ext| ext == "cpp"));
    sources.sort();
    let (mut clean, mut controls) = (0, 0);
    for source in sources {
        let name = source.file_stem().unwrap().to_string_lossy().into_owned();
        let program = folder.path().join(&name);
        let compiled = compile(&source, &program, FLAGS);
        assert!(compiled.status.success(), "{name}:\n{}", text(&compiled));
        let ran = Command::new(&program).env("TSAN_OPTIONS", "exitcode=66").output().unwrap();
        let output = text(&ran);
        if name.starts_with("deliberate_") {
            assert!(output.contains("data race"), "{name} was not reported:\n{output}");
            assert_eq!(ran.status.code(), Some(66), "{name}:\n{output}");
            controls += 1;
        } else {
            assert!(ran.status.success(), "{name}:\n{output}");
            clean += 1;
        }
    }
    assert!(clean > 0 && controls > 0, "{clean} programs, {controls} controls");
}
