//! Marks of kernels beside devices: what is drawn of them, and what is said.

use bellpush::abi::bench::mark;
use bellpush::gpu::{Mark, MarksRead};

use super::*;
use crate::trace::{BlockEnd, KernelMarks, Stage};

/// A mark of block 2: when, what, message and status, of queue pair 0x11.
fn of_message(ns: u64, what: u32, message: u64, status: u64) -> Mark {
    Mark { ns, what, value: message | 0x11 << 32 | status << 56, block: 2, thread: 0 }
}

fn of_round(ns: u64, what: u32, round: u64) -> Mark {
    Mark { ns, what, value: round, block: 2, thread: 0 }
}

/// A trace of these marks alone.
fn drawn(marks: Vec<Mark>, lost: u64) -> Trace {
    let kernels = KernelMarks {
        program: "bellpush".into(),
        pid: 42,
        gpu: "GPU 0".into(),
        rounds: vec!["push/kernel, 8 B".into(), "push/kernel, 64 B".into()],
        read: MarksRead { marks, lost, within_ns: 700 },
        end_ns: 1_000_000,
    };
    let mut trace = timeline(&[]);
    trace.add_kernels(&kernels);
    is_well_formed(&trace);
    trace
}

fn said(trace: &Trace) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    trace.write(&file).unwrap();
    assert_eq!(&Trace::read(&file).unwrap(), trace);
    explain(&file).unwrap()
}

fn end(trace: &Trace) -> &BlockEnd {
    &trace.ends.kernels[0].blocks[0]
}

#[test]
fn puts_and_waits_of_a_round_are_slices_of_its_block() {
    let trace = drawn(
        vec![
            of_round(1000, mark::ROUND_BEGINS, 1),
            of_message(1100, mark::PUT, 0, 0),
            of_message(1200, mark::PUT_RETURNED, 0, 0),
            of_message(1250, mark::PUT, 1, 0),
            of_message(1300, mark::PUT_RETURNED, 1, 0),
            of_message(1900, mark::COMPLETE, 1, 0),
            of_round(2000, mark::ROUND_ENDS, 1),
        ],
        3,
    );
    let slices: Vec<_> = trace.events.iter().filter(|event| event.ph == 'X').collect();
    let times: Vec<_> = slices.iter().map(|s| (&*s.name, s.ts, s.dur.unwrap())).collect();
    let expected = [
        ("put", 1.1, 0.1),
        ("put", 1.25, 0.05),
        ("wait", 1.3, 0.6),
        ("push/kernel, 64 B", 1.0, 1.0),
    ];
    assert_eq!(times, expected);
    assert_eq!((&slices[0].args["message"], &slices[0].args["qp"]), (&0.into(), &"0x11".into()));
    let after = |nth: usize| slices[nth].args["complete_after_us"].as_f64().unwrap();
    assert!((after(0) - 0.8).abs() < 1e-9 && (after(1) - 0.65).abs() < 1e-9, "{slices:?}");
    let names: Vec<_> =
        trace.events.iter().filter(|e| e.ph == 'M').map(|e| e.args["name"].clone()).collect();
    assert_eq!(names, ["bellpush 42, GPU 0 kernels", "block 2"]);
    assert!(trace.ends.clock.ends_with("; GPU 0 kernels within 700 ns"), "{}", trace.ends.clock);
    let lines = said(&trace);
    assert_eq!(lines[0], "bellpush 42, GPU 0 kernels: 7 marks, within 700 ns; 3 more are lost");
    let is = "block 2: all messages are complete, the last message 1 (push/kernel, 64 B; QP 0x11)";
    assert!(lines[1].starts_with(is), "{lines:?}");
}

#[test]
fn a_put_that_has_not_returned_is_drawn_to_the_end_and_named() {
    let marks = vec![of_round(1000, mark::ROUND_BEGINS, 0), of_message(1100, mark::PUT, 5, 0)];
    let trace = drawn(marks.clone(), 0);
    let open: Vec<_> = trace.events.iter().filter(|e| e.args.contains_key("unfinished")).collect();
    assert_eq!(open.iter().map(|e| &*e.name).collect::<Vec<_>>(), ["push/kernel, 8 B", "put"]);
    let is = "block 2: put of message 5 (push/kernel, 8 B; QP 0x11) has not returned since 998 us";
    assert_eq!(said(&trace)[1], is);
    // Returned, it is waited for.
    let returned = [&marks[..], &[of_message(1200, mark::PUT_RETURNED, 5, 0)]].concat();
    let line = said(&drawn(returned.clone(), 0)).remove(1);
    assert!(line.contains("message 5 (push/kernel, 8 B; QP 0x11) is not known to be complete"));
    // The wait failed.
    let failed = [&returned[..], &[of_message(1300, mark::COMPLETE, 5, 1)]].concat();
    let line = said(&drawn(failed, 0)).remove(1);
    assert!(line.ends_with(" failed 998 us before the end: the wait timed out"), "{line}");
}

/// The oldest marks are lost, or a kernel wrote anything at all: what is there is drawn.
#[test]
fn marks_without_their_beginnings_are_taken_for_what_they_are() {
    let trace = drawn(
        vec![
            of_message(1100, mark::PUT_RETURNED, 3, 0),
            of_message(1200, mark::COMPLETE, 3, 0),
            of_round(1300, mark::ROUND_ENDS, 0),
            of_message(1400, 77, 3, 0),
            of_round(1500, mark::ROUND_BEGINS, u64::MAX),
        ],
        1 << 20,
    );
    let slices: Vec<_> = trace.events.iter().filter(|e| e.ph == 'X').collect();
    assert_eq!(slices.iter().map(|e| &*e.name).collect::<Vec<_>>(), ["unknown round"]);
    assert_eq!(end(&trace).stage, Stage::Complete);
}

#[test]
fn kernels_stay_beside_their_devices_and_in_merged_traces() {
    let bed = Bed::new("");
    let mut trace = bed.trace();
    let mut kernels = KernelMarks {
        program: "bellpush".into(),
        pid: std::process::id(),
        gpu: "GPU 1".into(),
        rounds: Vec::new(),
        read: MarksRead { marks: vec![of_message(10, mark::PUT, 0, 0)], lost: 0, within_ns: 0 },
        end_ns: 20,
    };
    trace.add_kernels(&kernels);
    let pids = |trace: &Trace| {
        let names = trace.events.iter().filter(|e| e.name == "process_name");
        names.map(|e| e.pid).collect::<std::collections::HashSet<_>>().len()
    };
    assert_eq!(pids(&trace), 3, "two devices and a GPU");
    kernels.gpu = "GPU 0".into();
    let mut other = timeline(&[]);
    other.add_kernels(&kernels);
    trace.merge(other);
    is_well_formed(&trace);
    assert_eq!(pids(&trace), 4);
    let lines = said(&trace);
    for gpu in ["GPU 0", "GPU 1"] {
        assert!(lines.iter().any(|l| l.contains(&format!("{gpu} kernels: 1 marks"))), "{lines:?}");
    }
}
