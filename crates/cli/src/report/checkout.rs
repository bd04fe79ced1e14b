//! The sources that a program was built from, checked when its results are written. A build
//! script's finding would be out of date after the next edit, since cargo runs it for few edits.

use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

/// Directories and files that programs are built from.
const SOURCES: &[&str] =
    &["build.rs", "Cargo.toml", "Cargo.lock", ".cargo", "src", "crates", "kernels", "shim", "capi"];

/// The commit as `1a2b3c4d5e6f`. `+dirty`: the checkout's sources differ from that commit, or one
/// is newer than the program, which was then built from other sources. `+unchecked`: the checkout
/// is gone.
pub(super) fn describe(commit: &str, root: &Path, program: Option<SystemTime>) -> String {
    let mark = match (differs(commit, root), program) {
        (Some(true), _) => "+dirty",
        (Some(false), Some(program)) if newer(root, program) => "+dirty",
        (Some(false), Some(_)) => "",
        _ => "+unchecked",
    };
    format!("{commit}{mark}")
}

/// Runs a git command that only reads. Without the variable git may rewrite its index, while others
/// work in the checkout. (`git diff` of a working tree rewrites it in any case; `git status` does
/// not.)
fn git(root: &Path, args: &[&str]) -> Option<std::process::Output> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(args).arg("--").args(SOURCES).env("GIT_OPTIONAL_LOCKS", "0");
    git.output().ok()
}

/// Whether sources differ from the commit's or were added; `None` where git cannot tell.
fn differs(commit: &str, root: &Path) -> Option<bool> {
    let since = git(root, &["diff-tree", "--quiet", commit, "HEAD"])?.status.code()?;
    let changed = git(root, &["status", "--porcelain", "--untracked-files=all"])?;
    match (since, changed.status.success()) {
        (0, true) => Some(!changed.stdout.is_empty()),
        (1, _) => Some(true),
        _ => None,
    }
}

/// Whether a source was written after the program. A link counts itself: what it leads to is listed
/// under its own name, and a folder's time says nothing of a file's contents.
fn newer(root: &Path, program: SystemTime) -> bool {
    let Some(files) = git(root, &["ls-files", "-z"]) else { return true };
    let files = String::from_utf8_lossy(&files.stdout);
    files.split_terminator('\0').any(|file| {
        let written = root.join(file).symlink_metadata().and_then(|meta| meta.modified());
        written.map_or(true, |written| written > program)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;

    fn run(root: &Path, args: &[&str]) -> String {
        let mut git = Command::new("git");
        git.arg("-C").arg(root).args(["-c", "user.name=n", "-c", "user.email=n@example.com"]);
        let out = git.args(args).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap().trim().into()
    }

    #[test]
    fn changes_are_found_when_they_are_looked_for() {
        if Command::new("git").arg("--version").output().is_err() {
            return println!("SKIPPED: no git");
        }
        let folder = tempfile::tempdir().unwrap();
        let root = &folder.path().join("a b");
        fs::create_dir_all(root.join("src")).unwrap();
        let source = root.join("src/lib.rs");
        let set_time = |age: u64| {
            let time = SystemTime::now() - Duration::from_secs(age);
            fs::File::options().append(true).open(&source).unwrap().set_modified(time).unwrap();
        };
        fs::write(&source, "one").unwrap();
        fs::write(root.join("README.md"), "one").unwrap();
        // The folder is newer than the program below, the link and what is in the folder are not.
        fs::create_dir_all(root.join("crates")).unwrap();
        std::os::unix::fs::symlink("../src", root.join("crates/link")).unwrap();
        let old = ["-h", "-d", "100 seconds ago"];
        let touched =
            Command::new("touch").args(old).arg(root.join("crates/link")).status().unwrap();
        assert!(touched.success());
        run(root, &["init", "-q"]);
        run(root, &["add", "."]);
        run(root, &["commit", "-q", "-m", "one"]);
        let commit = run(root, &["rev-parse", "--short=12", "HEAD"]);
        let program = Some(SystemTime::now() - Duration::from_secs(50));
        let says = || describe(&commit, root, program)[commit.len()..].to_owned();
        set_time(100);
        // The time differs from the index's, which git would write anew.
        let index = fs::read(root.join(".git/index")).unwrap();
        assert_eq!(says(), "");
        assert_eq!(fs::read(root.join(".git/index")).unwrap(), index, "looking changed something");
        fs::write(root.join("README.md"), "two").unwrap();
        assert_eq!(says(), "", "no program is made of it");

        fs::write(&source, "two").unwrap();
        set_time(100);
        assert_eq!(says(), "+dirty");
        run(root, &["commit", "-q", "-a", "-m", "two"]);
        assert_eq!(says(), "+dirty", "it is another commit's");
        run(root, &["checkout", "-q", &commit]);
        assert_eq!(says(), "+dirty", "the program is older than its source");
        set_time(100);
        assert_eq!(says(), "", "control");
        fs::write(root.join("src/new.rs"), "").unwrap();
        assert_eq!(says(), "+dirty");

        assert_eq!(describe("1a2b3c", &root.join("gone"), program), "1a2b3c+unchecked");
        assert!(describe(&commit, root, None).starts_with(&format!("{commit}+")));
    }
}
