//! An installation in a folder: programs against it by CMake and pkg-config, wherever it is moved.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::preloaded::{root, there};
use crate::{package, said};

/// What an example prints: the one of endpoints what it has measured, and each at last that all is right.
fn is_right(printed: &str, name: &str) {
    let mut lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.pop(), Some(&*format!("{name}: right")), "{printed}");
    assert_eq!(lines.len(), if name == "endpoint" { 2 } else { 0 }, "{printed}");
}

/// The compiler and linker of C, as pkg-config says; the program runs with the library's folder.
fn by_pkg_config(prefix: &Path, source: &Path, to: &Path) {
    let mut flags = Command::new("pkg-config");
    flags.args(["--cflags", "--libs", "bellpush"]);
    flags.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = said(&mut flags);
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror"]).arg(source).arg("-o").arg(to);
    said(cc.args(flags.split_whitespace()));
    is_right(&said(Command::new(to).env("LD_LIBRARY_PATH", prefix.join("lib"))), "endpoint");
}

/// Both of the example's programs: CMake has the library found where it is.
fn by_cmake(prefix: &Path, build: &Path) {
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(root().join("packaging/example")).arg("-B").arg(build);
    said(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
    said(Command::new("cmake").arg("--build").arg(build));
    for name in ["endpoint", "kernel"] {
        is_right(&said(&mut Command::new(build.join(name))), name);
    }
    // A later series is another interface.
    let script = build.join("later.cmake");
    fs::write(&script, "find_package(bellpush 0.2 QUIET)\nmessage(\"found: ${bellpush_FOUND}\")\n")
        .unwrap();
    let mut later = Command::new("cmake");
    later.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())).arg("-P").arg(script);
    let out = later.output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("found: 0"), "{out:?}");
}

#[test]
fn programs_are_built_against_an_installation_wherever_it_is() {
    let temp = tempfile::tempdir().unwrap();
    let place = |name| temp.path().join(name);
    let (first, second, third) = (place("first"), place("second place"), place("third"));
    package("prefix", &first);
    let example = root().join("packaging/example/endpoint.c");
    if there("pkg-config") {
        by_pkg_config(&first, &example, &temp.path().join("endpoint"));
    }
    // Nothing in it names its place.
    fs::rename(&first, &second).unwrap();
    if there("cmake") {
        by_cmake(&second, &temp.path().join("build"));
    }
    // LD_PRELOAD takes no path with a space.
    fs::rename(&second, &third).unwrap();
    said(Command::new(third.join("bin/bellpush")).args(["run", "--", "true"]));
    compiled_for_gpus(&third, temp.path());
    let texts = fs::read_to_string(third.join("share/doc/bellpush/THIRD-PARTY")).unwrap();
    for text in ["\nclap 4.", "\nserde 1.", "Permission is hereby granted", "Apache License"] {
        assert!(texts.contains(text), "{text}");
    }
    assert!(!texts.contains("\nproptest "), "what only tests use is not packaged");
}

/// The example's kernel by nvcc, where there is one.
fn compiled_for_gpus(prefix: &Path, temp: &Path) {
    let named = std::env::var("BELLPUSH_NVCC").ok().filter(|named| named != "none");
    let fetched = fs::read_dir(root().join(".tools/cuda/lib")).into_iter().flatten().flatten();
    let fetched = fetched.map(|python| python.path().join("site-packages/nvidia/cu13/bin/nvcc"));
    let Some(nvcc) = named.map(Into::into).into_iter().chain(fetched).find(|nvcc| nvcc.is_file())
    else {
        return println!(
            "SKIPPED: no nvcc in BELLPUSH_NVCC or .tools/cuda: the kernel is compiled for CPU threads alone"
        );
    };
    let mut compile = Command::new(nvcc);
    compile.args(["-fatbin", "-std=c++17", "-gencode", "arch=compute_90,code=compute_90", "-o"]);
    compile.arg(temp.join("kernel.fatbin")).arg("-I").arg(prefix.join("include"));
    said(compile.arg(root().join("packaging/example/kernel.cu")));
}

/// What the header declares is what the library exports, both ways.
#[test]
fn the_library_exports_what_its_header_declares() {
    let header = fs::read_to_string(root().join("capi/bellpush.h")).unwrap();
    let code = header.split("/*").map(|part| part.split_once("*/").map_or(part, |it| it.1));
    let code: String = code.collect();
    let declared = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '(');
    let declared = declared.filter_map(|word| word.split_once('(').map(|it| it.0));
    let declared: BTreeSet<_> = declared.filter(|name| name.starts_with("bellpush_")).collect();
    let library = crate::BUILT.join("libbellpush_c.so");
    let listed = said(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library));
    let exported = listed.lines().filter_map(|line| line.split_whitespace().nth(2));
    let exported: BTreeSet<_> = exported.filter(|name| !name.starts_with('_')).collect();
    assert!(declared.len() > 20, "{declared:?}");
    assert_eq!(exported, declared);
}

/// Programs that were linked with it load this series of its interface, not whatever is called libbellpush_c.so.
#[test]
fn the_library_is_named_by_its_series() {
    let temp = tempfile::tempdir().unwrap();
    package("prefix", temp.path());
    let lib = temp.path().join("lib");
    let link = |name: &str| fs::read_link(lib.join(name)).unwrap().display().to_string();
    assert_eq!(link("libbellpush_c.so"), "libbellpush_c.so.0.1");
    assert_eq!(link("libbellpush_c.so.0.1"), "libbellpush_c.so.0.1.0");
    let named = said(Command::new("objdump").arg("-p").arg(lib.join("libbellpush_c.so")));
    let soname = named.lines().find_map(|line| line.trim().strip_prefix("SONAME"));
    assert_eq!(soname.map(str::trim), Some("libbellpush_c.so.0.1"));
}

#[test]
fn the_debian_package_is_maintained_by_who_builds_it() {
    if !there("dpkg-deb") || !there("dpkg-shlibdeps") {
        return println!("SKIPPED: no dpkg-dev");
    }
    let temp = tempfile::tempdir().unwrap();
    let deb = |email: &str| {
        let mut script = Command::new(root().join("packaging/package.sh"));
        script.arg("deb").arg(&*crate::BUILT).arg(temp.path());
        crate::run(script.env("DEBFULLNAME", "Ann Onymous").env("DEBEMAIL", email))
    };
    let refused = deb("nobody");
    assert!(!refused.status.success());
    assert_eq!(
        String::from_utf8_lossy(&refused.stderr),
        "package: who maintains this package? Set DEBFULLNAME and DEBEMAIL, as for Debian's tools\n"
    );
    let made = deb("ann@example.org");
    assert!(made.status.success(), "{made:?}");
    let name = String::from_utf8(made.stdout).unwrap();
    let field = said(Command::new("dpkg-deb").args(["-f", name.trim(), "Maintainer"]));
    assert_eq!(field, "Ann Onymous <ann@example.org>\n");
}
