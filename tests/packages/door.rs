//! `./x package`: what it builds, with what, and who packages it.

use std::fs;
use std::process::Command;

use crate::preloaded::root;
use crate::said;

/// Lines of bash after those of `x`, whose cargo says its arguments alone.
fn door(lines: &str) -> String {
    let script = format!(
        "set -- help; source ./x >/dev/null; cargo() {{ echo \"cargo $*\"; }}; exec() {{ echo \"$*\"; }}
         features() {{ echo --features=mlx5; }}; target_folder() {{ echo '/else where'; }}; {lines}"
    );
    said(Command::new("bash").args(["-c", &script]).current_dir(root()))
}

#[test]
fn a_wheel_expects_no_library_of_verbs_and_the_library_no_feature_of_the_program() {
    let built = |features: &str| {
        ["cli", "shim", "c"].map(|name| {
            let features = if name == "shim" { "" } else { features };
            format!("cargo build --release --package bellpush-{name}{features}\n")
        })
    };
    let packaged = |kind: &str| format!("packaging/package.sh {kind} /else where/release /to\n");
    for (kind, features) in
        [("wheel", ""), ("deb", " --features=mlx5"), ("prefix", " --features=mlx5")]
    {
        let wanted = built(features).concat() + &packaged(kind);
        let lines = format!("packaging/package.sh() {{ :; }}; package {kind} /to");
        assert_eq!(door(&lines), wanted);
    }
}

#[test]
fn a_packaged_program_is_told_whether_its_sources_are_the_commits() {
    let told = door("cargo() { echo \"$BELLPUSH_PACKAGED\"; }; package prefix /to");
    let told = told.lines().next().unwrap_or_default();
    assert!(["clean", "dirty"].contains(&told), "{told}");
}

/// A build takes minutes: it is not begun for a package that could not be made.
#[test]
fn who_packages_is_asked_before_anything_is_built() {
    let refused =
        door("export DEBFULLNAME=Ann DEBEMAIL=nobody; (package deb /to) 2>&1 || echo refused");
    let wanted = "package: who maintains this package? Set DEBFULLNAME and DEBEMAIL, as for Debian's tools\nrefused\n";
    assert_eq!(refused, wanted);
}

#[test]
fn another_kind_is_refused_before_anything_is_built() {
    for wrong in [&["package", "rpm"][..], &["package"], &["package", "deb", "a", "b"]] {
        let out = Command::new(root().join("x")).args(wrong).output().unwrap();
        let text = String::from_utf8(out.stderr).unwrap();
        assert!(
            !out.status.success() && text == "x: ./x package prefix|deb|wheel|crates [DIR]\n",
            "{text}"
        );
    }
}

#[test]
#[ignore = "minutes: builds in release"]
fn a_wheel_is_packaged_by_one_command() {
    let folder = tempfile::tempdir().unwrap();
    said(Command::new(root().join("x")).args(["package", "wheel"]).arg(folder.path()));
    let files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let wheels = files.filter(|file| file.extension().is_some_and(|it| it == "whl"));
    assert_eq!(wheels.count(), 1);
}

/// With what bellpush-mlx5 wants, cargo compiles each crate from its file; without, it makes them all the same.
#[test]
fn crates_are_compiled_where_all_of_them_can_be() {
    let packed = |lines: &str| door(&format!("mv() {{ :; }}; {lines} crates /to"));
    let all = packed("");
    assert!(
        all.starts_with("cargo package --quiet --allow-dirty --target-dir /to/target "),
        "{all}"
    );
    assert!(all.contains(" --package=bellpush-mlx5") && all.contains(" --package=bellpush-cli"));
    let without = packed("features() { :; };");
    assert!(without.starts_with("cargo package --quiet --no-verify --allow-dirty "), "{without}");
}
