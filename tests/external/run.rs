//! `bellpush run` itself: what it passes on, and what is left of it when it is killed.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::preloaded::{OBJECT, Running, alone, bellpush};

/// Bounds what takes a moment, or two seconds where a program is deaf.
const SOON: Duration = Duration::from_secs(60);

/// A shell's lines on a software device, with temporary files in a folder.
fn shell(folder: &Path, lines: &str) -> Running {
    shell_with(&[], folder, lines)
}

/// The same, with options of `bellpush run`.
fn shell_with(options: &[&str], folder: &Path, lines: &str) -> Running {
    LazyLock::force(&OBJECT);
    let mut run = Command::new(bellpush());
    run.arg("run").args(options).args(["--", "sh", "-c", lines]);
    run.env("TMPDIR", folder).env("FOLDER", folder);
    Running::spawn(&mut run)
}

#[track_caller]
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !is() {
        assert!(Instant::now() < end, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn directories(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"bellpush")).count()
}

#[test]
fn what_a_killed_run_has_started_goes_with_it() {
    let _alone = alone();
    // One goes when it is asked, the other does not.
    for lines in ["", "trap '' TERM; "] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("number");
        let wait =
            "echo $$ >$FOLDER/new; mv $FOLDER/new $FOLDER/number; while :; do sleep 0.05; done";
        let mut run = shell(folder.path(), &format!("{lines}{wait}"));
        until("the program's number", || file.exists());
        let number = std::fs::read_to_string(&file).unwrap();
        let status = format!("/proc/{}/status", number.trim());
        assert_eq!(directories(folder.path()), 1);
        run.kill().unwrap();
        // Whoever inherits it may not wait for it.
        until("its end", || {
            std::fs::read_to_string(&status).map_or(true, |text| text.contains("State:\tZ"))
        });
        until("the directory's", || directories(folder.path()) == 0);
    }
}

#[test]
fn what_its_program_has_started_does_not_keep_a_killed_runs_directory() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    // A child of the program's that makes files there as fast as it can, for two seconds: how many those are is the
    // disk's, and the guard tries for ten.
    let child = "timeout 2 sh -c 'for d in $FOLDER/bellpush-run-*; do n=0; while :; do : >$d/$n; n=$((n+1)); \
                 [ $n = 100 ] && : >$FOLDER/begun; done; done' &";
    let mut run = shell(folder.path(), &format!("{child} while :; do sleep 0.05; done"));
    until("the child's files", || folder.path().join("begun").exists());
    run.kill().unwrap();
    until("the directory's", || directories(folder.path()) == 0);
}

#[test]
fn signals_are_the_programs() {
    let _alone = alone();
    let served: &[&str] = &["--metrics=0"];
    for (options, signal, number) in [
        (&[][..], Signal::SIGINT, 2),
        (&[], Signal::SIGTERM, 15),
        (&[], Signal::SIGUSR1, 10),
        (&[], Signal::SIGUSR2, 12),
        // Another thread of `bellpush run` takes none of them.
        (served, Signal::SIGINT, 2),
        (served, Signal::SIGTERM, 15),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let lines =
            format!("trap 'exit 7' {number}; touch $FOLDER/ready; while :; do sleep 0.05; done");
        let run = shell_with(options, folder.path(), &lines);
        until("the program", || folder.path().join("ready").exists());
        // It is `bellpush run` that is signalled.
        kill(Pid::from_raw(run.id() as i32), signal).unwrap();
        let ended = run.end();
        assert_eq!(ended.code, Some(7), "{signal}: {}", ended.text);
        assert_eq!(directories(folder.path()), 0, "{signal}");
    }
}
