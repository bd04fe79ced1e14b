//! What users install (`packaging/`): an installation in a folder, its manual pages and completions, programs against
//! its headers and its library, a wheel. The slow ones install each package in a bare Debian.

#[path = "../support/preloaded.rs"]
mod preloaded;

mod action;
mod bare;
mod crates;
mod door;
mod header;
mod manual;
mod prefix;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use preloaded::{OBJECT, bellpush, root};

/// Cargo's folder with all that a package holds, built.
static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    LazyLock::force(&OBJECT);
    let folder = Path::new(bellpush()).parent().unwrap().to_owned();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "bellpush-c", "--no-default-features"]);
    cargo.arg("--target-dir").arg(folder.parent().unwrap());
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    cargo.current_dir(root()).env("BELLPUSH_NVCC", "none");
    assert!(cargo.status().unwrap().success(), "the C library is not built");
    folder
});

/// `packaging/package.sh KIND BUILT TO`; what it printed.
fn package(kind: &str, to: &Path) -> String {
    let mut script = Command::new(root().join("packaging/package.sh"));
    said(script.arg(kind).arg(&*BUILT).arg(to))
}

/// Runs a program that has to succeed; its output.
fn said(command: &mut Command) -> String {
    let out = run(command);
    assert!(out.status.success(), "{command:?}: {out:?}");
    String::from_utf8(out.stdout).expect("text")
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// The commands that help shows.
fn commands() -> Vec<String> {
    let help = said(Command::new(bellpush()).arg("--help"));
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| !line.is_empty());
    let names = names.filter_map(|line| line.split_whitespace().next());
    let names: Vec<_> = names.filter(|name| *name != "help").map(str::to_owned).collect();
    assert!(names.len() > 10 && names.iter().any(|name| name == "run"), "{help}");
    names
}
