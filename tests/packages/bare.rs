//! Each package in a bare Debian 12, where nothing of this machine is: `packaging/try-*.sh`. Where none can be made, the
//! crates are tried on this machine, and the others are left out.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::crates::published;
use crate::preloaded::{root, there};
use crate::{BUILT, package, said};

/// Whether a Debian can be made here.
fn can_be_made() -> bool {
    let root = said(Command::new("id").arg("-u")) == "0\n";
    if !root {
        println!("SKIPPED: not root");
    }
    there("debootstrap") && root
}

/// A script of `packaging/` that tries what it is given in a Debian below the folder.
fn tried(script: &str, what: &Path, folder: &Path, variables: &[(&str, &str)]) {
    let mut script = Command::new(root().join("packaging").join(script));
    let text = said(script.arg(what).arg(folder).envs(variables.iter().copied()));
    println!("{text}");
    assert!(text.contains("all of it went well"), "{text}");
}

/// From nothing to `bellpush run -- ib_write_bw`, the example's programs, a job of GitHub Actions, the Dockerfile.
#[test]
#[ignore = "minutes: makes a Debian"]
fn a_bare_debian_runs_programs_after_one_command() {
    if !can_be_made() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let deb = package("deb", temp.path());
    tried("try-chroot.sh", Path::new(deb.trim()), &temp.path().join("chroot"), &[]);
    tried("docker/try.sh", Path::new(deb.trim()), &temp.path().join("docker"), &[]);
}

/// Endpoints on NumPy's arrays and a bench's frame, with Debian's Python and no compiler.
#[test]
#[ignore = "minutes: makes a Debian, fetches NumPy and pandas"]
fn a_bare_debian_has_endpoints_in_python_after_the_wheel() {
    if !can_be_made() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let mut script = Command::new(root().join("packaging/package.sh"));
    script.arg("wheel").arg(&*BUILT).arg(temp.path());
    let mut needs = "";
    if cfg!(feature = "mlx5") {
        // This build's program has real NICs, and wants the libraries that the wheel of `./x package` does not.
        script.env("BELLPUSH_WHEEL_EXPECTS", "libibverbs.so.1,libmlx5.so.1");
        needs = "libibverbs1 ibverbs-providers";
    }
    let wheel = said(&mut script);
    let folder = temp.path().join("wheel");
    tried("try-wheel.sh", Path::new(wheel.trim()), &folder, &[("BELLPUSH_TRY_APT", needs)]);
}

/// The program from the crates' own files, without an nvcc, a libclang, a GPU, a network or the checkout.
#[test]
#[ignore = "minutes: builds everything anew"]
fn the_program_is_installed_from_its_crates() {
    let temp = tempfile::tempdir().unwrap();
    let files = temp.path().join("crates");
    said(Command::new(root().join("x")).args(["package", "crates"]).arg(&files));
    let made = fs::read_dir(&files).unwrap().map(|entry| entry.unwrap().path());
    let made: Vec<_> =
        made.filter(|path| path.extension().is_some_and(|it| it == "crate")).collect();
    assert_eq!(made.len(), published().len());
    if can_be_made() {
        let less = [("BELLPUSH_TRY_CARGO", "--debug")];
        return tried("try-crates.sh", &files, &temp.path().join("root"), &less);
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["install", "--quiet", "--debug", "--path"]);
    cargo.arg(temp.path().join(format!("bellpush-cli-{}", env!("CARGO_PKG_VERSION"))));
    cargo.arg("--root").arg(temp.path().join("root")).env("BELLPUSH_NVCC", "none");
    cargo.arg("--target-dir").arg(temp.path().join("target")).current_dir(temp.path());
    for path in made {
        said(Command::new("tar").arg("-xzf").arg(&path).arg("-C").arg(temp.path()));
        let folder = path.file_stem().unwrap().to_str().unwrap();
        let name = folder.rsplit_once('-').unwrap().0;
        let place = temp.path().join(folder);
        cargo.args(["--config", &format!("patch.crates-io.{name}.path='{}'", place.display())]);
    }
    said(&mut cargo);
    let program = temp.path().join("root/bin/bellpush");
    let version = said(Command::new(&program).arg("--version"));
    assert_eq!(version, format!("bellpush {} (unknown)\n", env!("CARGO_PKG_VERSION")));
    let mut bench = Command::new(&program);
    let rows = said(bench.args(["bench", "--sizes", "8", "--messages", "50", "--json", "-"]));
    assert!(rows.contains("\"verified\": true") || rows.contains("\"verified\":true"), "{rows}");
}
