//! Recordings of programs that know nothing of them, and their replays: `bellpush run --record`, `bellpush replay`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::preloaded::{alone, bellpush, pair, succeeds, there};

fn replay(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(bellpush()).arg("replay").args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// The recordings in a folder, each of which is to be the same again.
#[track_caller]
fn all_the_same(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.collect();
    for file in &files {
        // It holds payload, and the seed of the device's keys.
        let mode = std::fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file:?}");
        let (code, text) = replay(&[file.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{file:?}: {text}");
        // "the same: S steps, E events": all of a run, and not its beginning.
        let numbers: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
        assert!(text.starts_with("the same: ") && numbers[1] > 150, "{text}");
    }
    files
}

/// All that has a format in a recording of a run without faults is right.
#[track_caller]
fn nothing_is_wrong(file: &Path) {
    let arguments = ["decode", "record", file.to_str().unwrap(), "--brief"];
    let output = Command::new(bellpush()).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{file:?}: {text}");
    for what in ["rings QP 0x", "send counter", ", wqe_index ", "REQ of ", "sent ", "got "] {
        let either = ["RESP_SEND", "receive counter"].iter().any(|other| text.contains(other));
        assert!(text.contains(what) || either, "{what} in {text}");
    }
}

/// perftest ends with the device open when a queue pair fails.
#[test]
fn what_went_wrong_is_in_the_recording_of_a_program_that_does_not_close_its_device() {
    let _alone = alone();
    if !there("ib_write_bw") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("fatal.toml");
    let fault =
        "[[fault]]\non = \"wqe\"\naction = \"device-fatal\"\nopcode = \"write\"\nnth = 40\n";
    std::fs::write(&script, fault).unwrap();
    let recordings = folder.path().join("recordings");
    std::fs::create_dir(&recordings).unwrap();
    let name = recordings.join("%p");
    let options = ["--link-type", "shm", "--record", name.to_str().unwrap()];
    let fault = ["--fault", script.to_str().unwrap()];
    let command = ["timeout", "10", "ib_write_bw", "-F", "-n", "100", "-q", "8"];
    let [_, client] = pair(&[&options[..], &fault].concat(), &command);
    assert_ne!(client.code, Some(0), "{client:?}");
    let shown = all_the_same(&recordings).into_iter().map(|file| {
        let (code, text) = replay(&[file.to_str().unwrap(), "--show"]);
        assert_eq!(code, Some(0), "{text}");
        text
    });
    let ended = shown.filter(|text| text.contains("tells DeviceFatal")).count();
    assert_eq!(ended, 1, "the client's device, which posted");
}

#[test]
fn what_perftest_had_of_the_device_is_the_same_again() {
    let _alone = alone();
    if !there("ib_write_bw") {
        return;
    }
    for link in ["udp", "shm"] {
        for (command, more) in [
            (&["ib_write_lat", "-F", "-n", "500"][..], &[][..]),
            (&["ib_send_bw", "-F", "-n", "200", "-e"], &["--record-payload"]),
            (&["ib_read_bw", "-F", "-n", "100", "-q", "4"], &["--adversary", "5"]),
            (&["ib_send_lat", "-F", "-n", "200", "-c", "UD"], &[]),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let name = folder.path().join("%p-%d");
            let options = ["--link-type", link, "--record", name.to_str().unwrap()];
            let ended = pair(&[&options[..], more].concat(), command);
            assert!(ended.iter().all(|it| it.code == Some(0)), "{command:?} {link}: {ended:?}");
            let files = all_the_same(folder.path());
            assert_eq!(files.len(), 2);
            if !more.contains(&"--adversary") {
                files.iter().for_each(|file| nothing_is_wrong(file));
            }
        }
    }
}

/// `bellpush decode live`, attached to a device while its program runs.
#[test]
fn a_device_is_decoded_while_its_program_runs() {
    let _alone = alone();
    if !there("ib_write_lat") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("%p");
    let options = ["--link-type", "shm", "--record", name.to_str().unwrap()];
    let end = std::thread::spawn({
        let folder = folder.path().to_owned();
        move || {
            let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
            let file = loop {
                let first = std::fs::read_dir(&folder).unwrap().next();
                if let Some(entry) = first {
                    break entry.unwrap().path();
                }
                assert!(std::time::Instant::now() < until, "no recording");
                std::thread::sleep(std::time::Duration::from_millis(10));
            };
            let place = file.to_str().unwrap().to_owned();
            let arguments =
                ["decode", "live", &place, "--brief", "--count", "400", "--seconds", "30"];
            let output = Command::new(bellpush()).args(arguments).output().unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        }
    });
    let ended = pair(&options, &["ib_write_lat", "-F", "-n", "2000"]);
    assert!(ended.iter().all(|it| it.code == Some(0)), "{ended:?}");
    let (code, text) = end.join().unwrap();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("event ")).count(), 400, "{text}");
    for what in ["rings QP 0x", "send counter", ", wqe_index ", "REQ of "] {
        assert!(text.contains(what), "{what} in {text}");
    }
}

#[test]
fn a_connection_manager_is_the_same_again() {
    let _alone = alone();
    if !there("rping") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("%p");
    let script = "rping -s -a 127.0.0.1 -C 5 -v & sleep 0.5; rping -c -a 127.0.0.1 -C 5 -v; wait";
    let options = ["--link-type", "udp", "--record", name.to_str().unwrap()];
    succeeds(&options, &["sh", "-c", script]);
    assert_eq!(all_the_same(folder.path()).len(), 2);
}

#[test]
fn two_runs_are_compared_and_one_is_shown() {
    let _alone = alone();
    if !there("ib_write_bw") {
        return;
    }
    let record = |count: &str| {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("%p");
        let options = ["--link-type", "shm", "--record", name.to_str().unwrap()];
        let ended = pair(&options, &["ib_write_lat", "-F", "-n", count]);
        assert!(ended.iter().all(|it| it.code == Some(0)), "{ended:?}");
        folder
    };
    let [short, long] = ["100", "200"].map(record);
    let first = |folder: &tempfile::TempDir| all_the_same(folder.path()).remove(0);
    let [short, long] = [first(&short), first(&long)];
    let [short, long] = [short.to_str().unwrap(), long.to_str().unwrap()];
    let (code, text) = replay(&[short, "--against", long]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("queue pair 1 of the recordings parts after"), "{text}");
    assert_eq!(replay(&[short, "--against", short]).0, Some(0));
    let (code, text) = replay(&[long, "--show"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("sends RC WriteOnly"), "{text}");
}
