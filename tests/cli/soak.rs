//! `bellpush soak` on the host executor: a short run, what it says when something is wrong, wrong input.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn soak(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellpush"));
    command.args(["soak", "--gpu", "host"]).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The rounds of this seed have most paths and carriers, faults that strike and adversaries.
#[test]
fn a_short_run_is_clean() {
    let output = soak(&["--minutes", "5", "--rounds", "40", "--seed", "1"]);
    let told = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    for line in
        ["rounds                40,", "mismatches            0", "behind the warm-up", "\nclean\n"]
    {
        assert!(told.contains(line), "{line:?}: {told}");
    }
    assert!(told.contains(" rounds, 0 findings"), "{told}");
    assert!(!told.contains("growth was not looked at"), "{told}");
    let one = stdout(&soak(&["--minutes", "5", "--rounds", "1", "--seed", "1"]));
    assert!(one.contains("growth was not looked at"), "of one round: {one}");
}

/// The control: one byte of the target is flipped.
#[test]
fn one_wrong_byte_is_found_and_told_with_its_place() {
    for round in ["0", "3"] {
        let output = soak(&["--round", round, "--spoil", round, "--seed", "1"]);
        let told = stdout(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        for part in [
            &format!("FOUND in round {round} of seed 1: memory 1, offset 0x"),
            ": 1 bytes differ in a row, 1 in all; expected [",
            "], seen [",
            ", from address 0x",
            "\n  round: ",
            &format!("\n  again: bellpush soak --seed 1 --round {round}\n"),
            "mismatches            1",
        ] {
            assert!(told.contains(part), "{part:?}: {told}");
        }
    }
}

#[test]
fn a_round_that_does_not_end_is_a_finding() {
    let output = soak(&["--rounds", "20", "--limit", "0.000001", "--seed", "1"]);
    let told = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("the round has not ended after") && told.contains("\n  at: "), "{told}");
}

#[test]
fn a_signal_ends_the_run_with_what_it_has() {
    // Whether tests run in a shell's background or not, where SIGINT is ignored. An ignored one changes nothing.
    for (sigint, signal) in [
        ("--default-signal=INT", Signal::SIGTERM),
        ("--default-signal=INT", Signal::SIGINT),
        ("--ignore-signal=INT", Signal::SIGTERM),
    ] {
        let mut command = Command::new("env");
        command.args([sigint, env!("CARGO_BIN_EXE_bellpush")]);
        command.args(["soak", "--gpu", "host", "--minutes", "10", "--seed", "1", "--every", "0.1"]);
        let mut run = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut told = BufReader::new(run.stdout.take().unwrap());
        let mut text = String::new();
        // The first line of progress behind a round.
        while !text.contains(" rounds, ") {
            assert_ne!(told.read_line(&mut text).unwrap(), 0, "it ended by itself: {text}");
        }
        let pid = Pid::from_raw(run.id() as i32);
        if sigint.starts_with("--ignore") {
            kill(pid, Signal::SIGINT).unwrap();
            let before = text.lines().count();
            while text.lines().count() < before + 3 {
                assert_ne!(told.read_line(&mut text).unwrap(), 0, "it ended by SIGINT: {text}");
            }
        }
        kill(pid, signal).unwrap();
        told.read_to_string(&mut text).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(0), "{text}");
        let ended = format!("\nended by {signal} after ");
        for part in ["\nrounds                ", "mismatches            0\n", &ended, "\nclean\n"] {
            assert!(text.contains(part), "{part:?}: {text}");
        }
    }
}

/// In this round a script ends the device, and now and then the first to be told of it is the atomic that brings
/// earlier WRITEs about before a wait: the wait has nothing left to wait for.
#[test]
fn a_device_may_end_anywhere_in_a_wait() {
    for _ in 0..10 {
        let output = soak(&["--seed", "61", "--round", "903"]);
        assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    }
}

fn is_clean(seed: &str, round: &str) {
    let output = soak(&["--seed", seed, "--round", round]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
}

/// In these rounds a script drops the CQE of a receive, whose immediate nobody is told of: one between others, the last,
/// one that an adversary has put off.
#[test]
fn an_immediate_whose_cqe_is_dropped_does_not_come() {
    for (seed, round) in [("202", "130"), ("203", "636"), ("204", "1029"), ("104", "334")] {
        is_clean(seed, round);
    }
}

/// A put over tcp gives up: its stream is behind a kernel that waits for a queue pair that a script has ended. The
/// connection itself goes on.
#[test]
fn no_fault_ends_a_tcp_connection_and_its_stream_is_waited_for() {
    is_clean("201", "2481");
}

/// A put of many slots loses the CQE that would give it room and gives up; an atomic that is queued behind it needs no
/// slot, and is carried out.
#[test]
fn a_call_that_gave_up_is_not_told_of_by_those_behind_it() {
    is_clean("303", "891");
}

/// A script ends the device, in one of five tries while a connection that was reset is made again.
#[test]
fn a_device_may_end_within_a_reset() {
    for _ in 0..15 {
        is_clean("205", "241");
    }
}

#[test]
fn a_round_is_made_of_the_same_each_time() {
    let listed = |seed: &str| {
        let told = stdout(&soak(&["--round", "6", "--seed", seed]));
        told.lines().filter(|line| line.contains("Op {")).map(String::from).collect::<Vec<_>>()
    };
    let once = listed("5");
    assert!(!once.is_empty() && once == listed("5"));
    assert_ne!(once, listed("6"));
}

#[test]
fn wrong_input_is_one_line_with_a_remedy() {
    let wrong: [(&[&str], &str); 12] = [
        (&["--minutes", "0"], "--minutes is 0; give more than 0"),
        (&["--minutes", "-1"], "--minutes is -1; give more than 0"),
        (&["--minutes", "NaN"], "--minutes is NaN; give more than 0"),
        (&["--minutes", "1e9"], "--minutes is 1000000000; give more than 0 and at most 40320"),
        (&["--minutes", "soon"], "invalid value 'soon'"),
        (&["--seed", "-1"], "invalid value '-1'"),
        (&["--every", "0"], "--every is 0; give more than 0"),
        (&["--limit", "inf"], "--limit is inf; give more than 0"),
        (&["--rounds", "0"], "--rounds is 0; give at least 1"),
        (&["--rounds", "1", "--round", "1"], "--round and --rounds; leave one of them out"),
        (&["--round", "18446744073709551615"], "--round is 2^64 - 1; give a lower one"),
        (&["--paths", "tcp"], "unexpected argument '--paths'"),
    ];
    for (args, part) in wrong {
        let output = soak(args);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.starts_with("bellpush: ") && told.contains(part), "{args:?}: {told}");
        assert_eq!((told.lines().count(), output.stdout.len()), (1, 0), "{args:?}: {told}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_bellpush")).args(["soak", "--gpu", "x"]).output();
    assert_eq!(output.unwrap().status.code(), Some(2));
}
