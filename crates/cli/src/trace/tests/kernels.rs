//! Marks of kernels beside devices: what is drawn of them, and what is said.

use bellpush::abi::bench::mark;
use bellpush::gpu::{Mark, MarksRead};
use bellpush::mem::clock::monotonic_ns;

use super::*;
use crate::trace::{BlockEnd, KernelMarks, Stage};

/// A mark of block 2: when, what, message and status, of queue pair 0x11.
fn of_message(ns: u64, what: u32, message: u64, status: u64) -> Mark {
    Mark { ns, what, value: message | 0x11 << 32 | status << 56, block: 2, thread: 0 }
}

fn of_round(ns: u64, what: u32, round: u64) -> Mark {
    Mark { ns, what, value: round, block: 2, thread: 0 }
}

fn kernels(pid: u32, marks: Vec<Mark>, lost: u64) -> KernelMarks {
    KernelMarks {
        program: "bellpush".into(),
        pid,
        gpu: "GPU 0".into(),
        rounds: vec!["push/kernel, 8 B".into(), "push/kernel, 64 B".into()],
        read: MarksRead { marks, lost, within_ns: 700 },
        end_ns: 1_000_000,
    }
}

/// A trace of these marks alone.
fn drawn(marks: Vec<Mark>, lost: u64) -> Trace {
    let mut trace = timeline(&[]);
    trace.add_kernels(&kernels(42, marks, lost));
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
    let mark = of_message(10, mark::PUT, 0, 0);
    let mut kernels =
        KernelMarks { gpu: "GPU 1".into(), ..kernels(std::process::id(), vec![mark], 0) };
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

/// Marks of a message on a queue pair: it is called now, and has returned with a ticket.
struct Puts(Vec<Mark>);

impl Puts {
    fn put(&mut self, qpn: u32, message: u64, ticket: u32) {
        self.put_on((qpn, 0), qpn, message, ticket);
    }

    /// Of an endpoint that has another queue pair's name.
    fn put_on(&mut self, (name, beside): (u32, u32), qpn: u32, message: u64, ticket: u32) {
        for (what, qpn) in [(mark::PUT | beside, name), (mark::PUT_RETURNED | ticket << 8, qpn)] {
            let value = message | u64::from(qpn) << 32;
            self.0.push(Mark { ns: monotonic_ns(), what, value, block: 0, thread: 0 });
        }
    }
}

/// From what to what arrows of a name go, each by the message and index that its ends say.
fn arrows(trace: &Trace, name: &str) -> Vec<(u64, u64)> {
    let ends = |ph: char| trace.events.iter().filter(move |e| e.ph == ph && e.name == name);
    let slice = |arrow: &Event, cat: &str, key: &str| {
        let at = |e: &&Event| (e.pid, e.tid, e.ts) == (arrow.pid, arrow.tid, arrow.ts);
        let found = of(trace, cat).into_iter().find(at).expect("an arrow's end");
        found.args[key].as_u64().unwrap()
    };
    let mut all: Vec<_> = ends('s')
        .zip(ends('f'))
        .map(|(s, f)| (slice(s, "kernel", "message"), slice(f, "wqe", "wqe_index")))
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn arrows_go_from_puts_to_the_doorbell_that_tells_of_them() {
    let mut bed = Bed::new("");
    let (qpn, other) = (bed.qps[0].qpn().0, bed.qps[1].qpn().0);
    let mut puts = Puts(Vec::new());
    let payload = [Piece::Inline(&DATA)];
    let write = SendWr::new(Opcode::RdmaWrite).to(Iova(64), bed.mr.rkey).payload(&payload);
    // Three that are rung for together, of a block of the ring each, then one by itself.
    for message in 0..3 {
        puts.put(qpn, message, message as u32 + 1);
        bed.sq.post(&write).unwrap();
    }
    bed.sq.ring().unwrap();
    bed.steps(3);
    puts.put(qpn, 3, 4);
    bed.write(Flags::SIGNALLED);
    bed.steps(3);
    // Nobody rang for these, or on another queue pair.
    puts.put(qpn, 4, 5);
    puts.put(other, 5, 2);

    let mut trace = bed.trace();
    trace.add_kernels(&kernels(std::process::id(), puts.0.clone(), 0));
    is_well_formed(&trace);
    assert_eq!(arrows(&trace, "posted"), [(0, 0), (1, 1), (2, 2), (3, 3)]);
    let doorbells: Vec<_> =
        of(&trace, "mark").into_iter().filter(|e| e.name == "doorbell").map(|e| e.ts).collect();
    let mut heads: Vec<_> =
        trace.events.iter().filter(|e| e.ph == 'f' && e.name == "posted").map(|e| e.ts).collect();
    heads.sort_by(f64::total_cmp);
    let [first, second] = doorbells[..] else { panic!("{doorbells:?}") };
    assert_eq!(heads, [first, first, first, second]);
    // Each message's own arrow goes on from there.
    assert_eq!(trace.events.iter().filter(|e| e.ph == 's' && e.name == "message").count(), 4);

    // Of another process it is another queue pair, though its number is the same.
    let mut trace = bed.trace();
    trace.add_kernels(&kernels(std::process::id() ^ 1, puts.0, 0));
    assert_eq!(arrows(&trace, "posted"), []);
}

#[test]
fn a_put_of_an_auto_endpoint_names_the_queue_pair_that_it_took() {
    let mut bed = Bed::new("");
    let (bell, taken) = (0x77, bed.qps[0].qpn().0);
    let mut puts = Puts(Vec::new());
    puts.put_on((bell, mark::OF_AUTO), taken, 0, 1);
    bed.write(Flags::SIGNALLED);
    bed.steps(3);
    let (what, value) = (mark::COMPLETE | mark::OF_AUTO, u64::from(bell) << 32);
    puts.0.push(Mark { ns: monotonic_ns(), what, value, block: 0, thread: 0 });
    puts.put_on((bell, mark::OF_AUTO), taken, 1, 2);
    puts.0.pop();

    let mut trace = bed.trace();
    trace.add_kernels(&kernels(std::process::id(), puts.0, 0));
    let slices: Vec<_> = of(&trace, "kernel").into_iter().filter(|e| e.name == "put").collect();
    assert_eq!(slices[0].args["qp"], format!("{taken:#x}"));
    assert!(slices[0].args.contains_key("complete_after_us"), "{slices:?}");
    assert_eq!(arrows(&trace, "posted"), [(0, 0)]);
    // Which one the put takes that has not returned, nobody knows.
    assert_eq!((slices[1].args.get("qp"), &slices[1].args["unfinished"]), (None, &true.into()));
    assert_eq!(end(&trace).qpn, 0);
}

/// Tickets are said by their lowest 24 bits, and queue pairs count on.
#[test]
fn tickets_of_the_next_lap_are_of_the_next_wqe() {
    let wqe = |at: u64, end: u64| {
        let flow = crate::trace::flows::posted(0x11, end);
        Event::slice("RDMA_WRITE", (42, 1), (at, at + 5)).of("wqe").with("flow", flow)
    };
    let mut puts = Puts(Vec::new());
    (0..2).for_each(|message| puts.put(0x11, message, 9));
    for (put, ns) in puts.0.chunks_mut(2).zip([100, 300]) {
        put.iter_mut().for_each(|mark| mark.ns = ns);
    }
    let mut trace = timeline(&[]);
    trace.events.extend([wqe(310, (1 << 24) + 9), wqe(110, 9)]);
    trace.add_kernels(&kernels(42, puts.0, 0));
    let starts = |ph| trace.events.iter().filter(move |e| e.ph == ph).map(|e| e.ts);
    let pairs: Vec<_> = starts('s').zip(starts('f')).collect();
    assert_eq!(pairs, [(0.1, 0.11), (0.3, 0.31)]);
}
