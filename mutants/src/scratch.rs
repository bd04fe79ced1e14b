//! The copy of the tree in which bugs are planted, and `cargo test` in it. Copy and build outputs
//! stay under `target/mutants`, so that the next run builds what has changed and no more.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::plan::Mutant;

/// For a build, and for a test: no test of this tree may hang, so one that does caught nothing.
const BUILD_SECONDS: u32 = 1200;
const TEST_SECONDS: u32 = 600;
/// How `timeout` says that it ended the program.
const TIMED_OUT: i32 = 124;

pub struct Scratch {
    tree: PathBuf,
    target: PathBuf,
    /// Arguments for every `cargo test` of the library's package: features.
    features: Vec<String>,
}

/// What a run of tests led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ran {
    Passed,
    Failed,
    /// Neither: why.
    Neither(String),
}

impl Scratch {
    /// Copies what git knows of `from`, as it is in the work tree, over what is there.
    pub fn copy(from: &Path, features: Vec<String>) -> Result<Self, String> {
        let base = from.join("target/mutants");
        let scratch = Self { tree: base.join("tree"), target: base.join("target"), features };
        let listed = git_files(from)?;
        for file in &listed {
            let (here, there) = (from.join(file), scratch.tree.join(file));
            let bad = |e| format!("{}: {e}", there.display());
            if let Ok(to) = fs::read_link(&here) {
                if fs::read_link(&there).ok().as_ref() != Some(&to) {
                    fs::create_dir_all(there.parent().expect("within the tree")).map_err(bad)?;
                    symlink(to, &there).map_err(bad)?;
                }
                continue;
            }
            let new = fs::read(&here).map_err(|e| format!("{}: {e}", here.display()))?;
            // An equal file keeps its time, by which cargo knows that nothing is to be done.
            if fs::read(&there).ok().as_ref() != Some(&new) {
                fs::create_dir_all(there.parent().expect("within the tree")).map_err(bad)?;
                fs::write(&there, new).map_err(bad)?;
                let rights = fs::metadata(&here).map_err(bad)?.permissions();
                fs::set_permissions(&there, rights).map_err(bad)?;
            }
        }
        scratch.remove_others(&scratch.tree, &listed)?;
        Ok(scratch)
    }

    fn remove_others(&self, folder: &Path, listed: &BTreeSet<PathBuf>) -> Result<(), String> {
        let bad = |e| format!("{}: {e}", folder.display());
        for entry in fs::read_dir(folder).map_err(bad)? {
            let entry = entry.map_err(bad)?;
            let path = entry.path();
            if entry.file_type().map_err(bad)?.is_dir() {
                self.remove_others(&path, listed)?;
            } else if !listed.contains(path.strip_prefix(&self.tree).expect("within it")) {
                fs::remove_file(&path).map_err(bad)?;
            }
        }
        Ok(())
    }

    /// Runs a planted bug's test in the tree as it is: a build first, that one may be told from
    /// the other.
    pub fn test(&self, mutant: &Mutant) -> Ran {
        let objects = mutant.objects().map(|package| [&["build"], package].concat());
        let tests = self.arguments("test --no-run", mutant);
        for build in
            objects.map(|words| words.iter().map(ToString::to_string).collect()).chain([tests])
        {
            match self.cargo(BUILD_SECONDS, &build) {
                Ok((Some(0), _)) => {}
                Ok((Some(TIMED_OUT), _)) => {
                    return Ran::Neither(format!("not built after {BUILD_SECONDS} s"));
                }
                Ok((_, log)) => {
                    return Ran::Neither(format!("does not compile: {}", first_error(&log)));
                }
                Err(why) => return Ran::Neither(why),
            }
        }
        match self.cargo(TEST_SECONDS, &self.arguments("test", mutant)) {
            Ok((code, log)) => judge(code, &log),
            Err(why) => Ran::Neither(why),
        }
    }

    fn arguments(&self, command: &str, mutant: &Mutant) -> Vec<String> {
        let features: &[String] = if mutant.names_package() { &[] } else { &self.features };
        let command = command.split(' ').map(str::to_owned);
        command.chain(features.iter().chain(&mutant.test).cloned()).collect()
    }

    /// The same with the bug in the tree, and takes it out.
    pub fn test_with(&self, mutant: &Mutant) -> Result<Ran, String> {
        let changed = mutant.apply(&self.tree)?;
        let mut before = Vec::new();
        for (file, text) in &changed {
            let path = self.tree.join(file);
            let bad = |e| format!("{}: {e}", path.display());
            before.push((path.clone(), fs::read(&path).map_err(bad)?));
            fs::write(&path, text).map_err(bad)?;
        }
        let ran = self.test(mutant);
        for (path, text) in before {
            fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(ran)
    }

    /// Exit status and output; `timeout` ends the whole process group.
    fn cargo(&self, seconds: u32, command: &[String]) -> Result<(Option<i32>, String), String> {
        let mut run = Command::new("timeout");
        run.args(["--kill-after=10", &seconds.to_string(), "cargo"])
            .args(command)
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_INCREMENTAL", "1")
            // Nobody debugs these programs, and they link faster without.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_TERM_COLOR", "never")
            // Kernels run on the host executor.
            .env("BELLPUSH_NVCC", "none")
            .env_remove("BELLPUSH_WERROR")
            .stdin(Stdio::null());
        let out = run.output().map_err(|e| format!("timeout cargo: {e}"))?;
        let log =
            [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok((out.status.code(), log.concat()))
    }
}

fn git_files(tree: &Path) -> Result<BTreeSet<PathBuf>, String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(tree).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let out = git.output().map_err(|e| format!("git: {e}"))?;
    if !out.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&out.stderr).trim()));
    }
    let names = String::from_utf8(out.stdout).map_err(|_| "a file's name is no UTF-8")?;
    let files = names.split_terminator('\0').map(PathBuf::from);
    // One that was deleted and not yet taken out of the index is listed all the same.
    let there = |file: &PathBuf| fs::symlink_metadata(tree.join(file)).is_ok_and(|it| !it.is_dir());
    Ok(files.filter(there).collect())
}

fn first_error(log: &str) -> String {
    let is_error = |line: &&str| line.contains("error");
    log.lines().find(is_error).unwrap_or("cargo says nothing").trim().to_owned()
}

/// What the output of `cargo test` says: how many tests ran, and what became of them.
fn judge(code: Option<i32>, log: &str) -> Ran {
    let mut begun = 0;
    let (mut passed, mut failed) = (0, 0);
    for line in log.lines() {
        if let Some(rest) = line.strip_prefix("running ") {
            begun += number_before(rest, " test");
        }
        if let Some(rest) = line.strip_prefix("test result: ") {
            passed += rest.split_once(". ").map_or(0, |(_, rest)| number_before(rest, " passed"));
            failed += rest.split_once("; ").map_or(0, |(_, rest)| number_before(rest, " failed"));
        }
    }
    match code {
        Some(TIMED_OUT) => Ran::Neither(format!("not done after {TEST_SECONDS} s")),
        _ if begun == 0 => Ran::Neither("no such test".into()),
        Some(0) if passed == 0 => Ran::Neither("the test is ignored".into()),
        Some(0) => Ran::Passed,
        // A program that was ended by a signal says no result.
        _ if failed > 0 || log.contains("(signal: ") => Ran::Failed,
        code => Ran::Neither(format!("cargo ended with {code:?}: {}", first_error(log))),
    }
}

fn number_before(text: &str, unit: &str) -> u32 {
    text.split_once(unit).and_then(|(number, _)| number.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_judged() {
        let result = |passed: u32, failed: u32| {
            format!(
                "     Running tests/t.rs\n\nrunning {} test\n\ntest result: ok. {passed} passed; \
                 {failed} failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.00s\n",
                passed + failed
            )
        };
        assert_eq!(judge(Some(0), &result(1, 0)), Ran::Passed);
        assert_eq!(judge(Some(101), &result(3, 1)), Ran::Failed);
        let crash = "running 1 test\nerror: test failed\n  process didn't exit successfully: `t` \
                     (signal: 11, SIGSEGV: invalid memory reference)";
        assert_eq!(judge(Some(101), crash), Ran::Failed);
        let neither = |code, log: &str| matches!(judge(code, log), Ran::Neither(_));
        assert!(neither(Some(0), &result(0, 0)), "filtered to nothing");
        assert!(neither(Some(101), "error: no test target named `t`"));
        assert!(neither(Some(TIMED_OUT), "running 1 test\n"), "hangs");
        let ignored = "running 1 test\ntest result: ok. 0 passed; 0 failed; 1 ignored";
        assert!(neither(Some(0), ignored));
    }

    #[test]
    fn a_copy_follows_the_work_tree() {
        let from = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(from.path().join(name), text).unwrap();
        let git = |args: &[&str]| {
            let mut git = Command::new("git");
            assert!(git.arg("-C").arg(from.path()).args(args).status().unwrap().success());
        };
        git(&["init", "--quiet"]);
        write(".gitignore", "/target\n");
        write("kept", "1");
        write("gone", "1");
        fs::create_dir(from.path().join("folder")).unwrap();
        write("folder/file", "1");
        symlink("folder", from.path().join("link")).unwrap();
        git(&["add", "."]);
        let names = |scratch: &Scratch| {
            let mut names: Vec<_> = fs::read_dir(&scratch.tree)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let scratch = Scratch::copy(from.path(), vec![]).unwrap();
        assert_eq!(names(&scratch), [".gitignore", "folder", "gone", "kept", "link"]);
        let time = || fs::metadata(scratch.tree.join(".gitignore")).unwrap().modified().unwrap();
        let before = time();

        // A bug that an interrupted run left behind, a file that was deleted, one that is new.
        fs::write(scratch.tree.join("kept"), "bug").unwrap();
        fs::remove_file(from.path().join("gone")).unwrap();
        write("new", "1");
        let scratch = Scratch::copy(from.path(), vec![]).unwrap();
        assert_eq!(names(&scratch), [".gitignore", "folder", "kept", "link", "new"]);
        assert_eq!(fs::read(scratch.tree.join("kept")).unwrap(), b"1");
        assert_eq!(time(), before, "an equal file was written");
        assert_eq!(fs::read_link(scratch.tree.join("link")).unwrap(), Path::new("folder"));
        assert_eq!(fs::read(scratch.tree.join("link/file")).unwrap(), b"1");
    }
}
