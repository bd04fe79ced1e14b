//! What is said of machines that lack something.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{device, name};
use crate::preloaded;

/// What `bellpush bench` says of the device on a machine that another object, preloaded first, makes
/// worse than it is: one line, and status 2.
fn told(object: &Path, doctor: &str) -> String {
    let nic = std::env::var("BELLPUSH_TEST_NIC").unwrap();
    let others = std::env::var("LD_PRELOAD").unwrap_or_default();
    let output = Command::new(preloaded::bellpush())
        .args(["bench", "--gpu", "host", "--sizes", "8", "--messages", "1", "--nic", &nic])
        .args(["--data", "pull", "--kick", "cpu"])
        .env("LD_PRELOAD", format!("{}:{others}", object.display()))
        .env("DOCTOR", doctor)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    // libibverbs and the loader may say something of their own.
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("bellpush: --nic: ")).collect();
    assert_eq!((output.status.code(), lines.len()), (Some(2), 1), "{doctor}: {text}");
    lines[0].into()
}

/// `interop/doctor.c`, compiled, for one test: tests run side by side.
pub fn doctor(object: &str) -> PathBuf {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(object);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("interop/doctor.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&to).arg(source);
    assert!(compiler.env_remove("LD_PRELOAD").status().unwrap().success());
    to
}

#[test]
fn a_machine_that_lacks_something_is_told_what_in_one_line() {
    let Some(name) = name() else { return };
    let (doctor, device) = (doctor("doctor.so"), &name.device);
    for (how, wanted) in [
        ("permission", vec!["cannot open", "ermission denied", "/dev/infiniband/uverbs*"]),
        ("library", vec!["libmlx5.so.1 cannot be loaded", "/nowhere/", "ibverbs-providers"]),
        ("cqe", vec!["CQEs of version 0", "Connect-IB", device]),
    ] {
        let line = told(&doctor, how);
        for part in wanted {
            assert!(line.contains(part), "{how}: {line:?} lacks {part}");
        }
    }
}

/// An old libmlx5: this machine's, in which a function has another name.
#[test]
fn a_libmlx5_that_lacks_a_function_is_told_with_its_name() {
    if name().is_none() {
        return;
    }
    // Whoever asks for the library by name gets the copy, since it is preloaded.
    let nic = device();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    drop(nic);
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let path = paths.into_iter().find(|path| path.contains("libmlx5"));
    let real = std::fs::read(path.expect("a device was open")).unwrap();
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libmlx5-old.so");
    // mlx5dv_init_obj libmlx5 calls by that name itself: a copy without it is not loaded.
    for symbol in
        ["mlx5dv_is_supported", "mlx5dv_query_device", "mlx5dv_create_cq", "mlx5dv_create_qp"]
    {
        let named = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let mut old = real.clone();
        let at = old.windows(named.len()).position(|part| part == named).expect("its name");
        old[at + symbol.len()] = b'_';
        std::fs::write(&copy, &old).unwrap();
        let line = told(&copy, "");
        let wanted = format!("this machine's libmlx5 has no {symbol}: ");
        assert!(line.contains(&wanted) && line.contains("newer rdma-core"), "{line}");
    }
}
