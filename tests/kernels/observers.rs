//! The programs of `tests/cuda`, which count on GPUs what is seen too early, are compiled as their first lines say: they
//! are run by hand, and a change of the headers must not leave them behind.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The nvcc that the kernels were compiled with: `BELLPUSH_NVCC`, or what `./x` found and wrote down.
fn nvcc(root: &Path) -> Option<PathBuf> {
    let named = std::env::var("BELLPUSH_NVCC").ok();
    let found = named.or_else(|| {
        let noted = std::fs::read_to_string(root.join(".tools/nvcc")).ok()?;
        noted.split_whitespace().next().map(str::to_owned)
    });
    found.filter(|nvcc| nvcc != "none").map(|nvcc| root.join(nvcc))
}

#[test]
#[ignore = "slow: nvcc takes minutes"]
fn the_observers_compile() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(nvcc) = nvcc(root) else {
        println!("SKIPPED: no nvcc (./x setup --cuda)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let sources: Vec<_> = root.join("tests/cuda").read_dir().unwrap().map(|e| e.unwrap()).collect();
    assert!(sources.len() >= 2);
    for source in sources {
        let path = source.path();
        let output = Command::new(&nvcc)
            .args(["-std=c++17", "-O3", "-arch=sm_90", "-Ikernels/include", "-c", "-o"])
            .args([folder.path().join("program.o"), path.clone()])
            .current_dir(root)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", path.display());
    }
}
