//! Tells the program the commit that it is built from.
//!
//! Cargo runs this again after a commit, for the commit's name.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    tell_commit(&package);
}

/// The commit, for `--version` and results: `1a2b3c4d5e6f`. Not set outside a checkout. Whether sources
/// differ from it is found when results are written (`src/report/checkout.rs`).
fn tell_commit(root: &Path) {
    for file in head_files(root) {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    if let Some(commit) = git(root, &["rev-parse", "--short=12", "HEAD"]) {
        println!("cargo::rustc-env=BELLPUSH_COMMIT={commit}");
    }
}

/// Without `GIT_OPTIONAL_LOCKS=0`, looking may write files of the checkout anew.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    let out = git.arg("-C").arg(root).args(args).env("GIT_OPTIONAL_LOCKS", "0").output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_string())
}

/// Files that change when another commit is checked out or made, also in a worktree; not the index,
/// which changes whenever somebody looks.
pub fn head_files(root: &Path) -> Vec<PathBuf> {
    let branch = git(root, &["symbolic-ref", "--quiet", "HEAD"]);
    let names = ["HEAD", "logs/HEAD"].map(str::to_owned).into_iter().chain(branch);
    let paths = names.filter_map(|name| git(root, &["rev-parse", "--git-path", &name]));
    // Relative ones are so to the root. One that is not there would have cargo run this every time.
    paths.map(|path| root.join(path)).filter(|path| path.exists()).collect()
}
