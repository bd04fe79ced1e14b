//! What kernels that were compiled with `BELLPUSH_WHERE` write into WQEs, and what findings make of it
//! (`kernels/bench/where.cu`).

use crate::gated::*;
use crate::test_bed::*;
use bellpush::abi::entry::{Scope, Verb};
use bellpush::nic::soft::{AdversaryKind, Finding};
use bellpush::transport::Options;
use bellpush::wire::Qpn;
use bellpush::wire::line::FileDigest;

const FILE: &str = "kernels/bench/where.cu";
const SOURCE: &str = include_str!("../../kernels/bench/where.cu");

/// Every verb of every way to post puts its caller's line into each of its WQEs.
#[test]
fn every_verb_names_the_line_that_called_it() {
    let (file, other) = (FileDigest::of(FILE), FileDigest::of("put.cuh"));
    let of_paths = [
        ("pull/kernel", "bp_where_pull", 0..18),
        ("push/kernel", "bp_where_push", 0..18),
        ("push/blueflame", "bp_where_blueflame", 0..18),
        ("pull/kernel", "bp_where_shared", 0..18),
        ("pull/kernel", "bp_where_shared", 200..202),
        ("auto", "bp_where_auto", 100..106),
    ];
    for (name, kernel, verbs) in of_paths {
        for verb in verbs {
            // Nothing steps this NIC: all that is posted stays in the ring.
            let Bench { bed, .. } = manual("1,record");
            let mut call = Call::new(&bed, path(name), usual());
            call.args.op.value = verb;
            if verb == 105 {
                set_word(&call.memory, 64, 1); // the other rank has come
            }
            bed.run(kernel, (1, 32), &call.args);
            let what = format!("{kernel}, verb {verb}");
            assert_eq!(call.word32(STATUS), OK, "{what}");
            let args = &call.args;
            let qpn = if name == "auto" { args.ep.bell.qp.qpn } else { args.op.ep.qp.qpn };
            let ring = read(&call.memory, 4096, RING_BYTES);
            let (mut at, mut wqes) = (0usize, 0);
            while ring[at * 32..][..8] != [0; 8] {
                let wqe = &ring[at * 32..][..32];
                let is_at = (Qpn(qpn), at as u16);
                let line = line_of(SOURCE, &format!("case {verb}:"));
                assert_eq!(file.line(wqe, is_at), Some(line), "{what}, block {at}");
                assert_eq!(other.line(wqe, is_at), None);
                at += (wqe[7] as usize & 0x3f).div_ceil(4);
                wqes += 1;
            }
            let least = match (verb, name) {
                (5 | 101 | 201, _) | (13, _) => 2,
                (6, "push/kernel" | "push/blueflame") => 4,
                (7, "push/kernel" | "push/blueflame") => 2,
                (9, _) => 32,
                (10 | 11, _) => 5,
                (12, _) => 3,
                (17, "push/kernel" | "push/blueflame") => 3,
                (6, _) => 2,
                _ => 1,
            };
            assert_eq!(wqes, least, "{what}");
        }
    }
}

/// What is found when a kernel stands still and the NIC makes some steps.
fn found(kernel: &str, verb: u64, kinds: &str, names: &[&str]) -> Vec<Finding> {
    found_by(manual(kinds), (kernel, verb), 20, names)
}

fn found_by(bench: Bench, (kernel, verb): (&str, u64), steps: u32, names: &[&str]) -> Vec<Finding> {
    bench.nic.name_kernels(names.iter().copied());
    let mut call = Call::new(&bench.bed, path("pull/kernel"), usual());
    call.args.op.value = verb;
    play(bench, &call, kernel, |bench| bench.stand(steps))
}

const NAMES: [&str; 3] = ["src/halo.cuh", FILE, "put.cuh"];

#[test]
fn a_payload_that_a_kernel_uses_again_is_found_at_its_put() {
    let mut all = Vec::new();
    for seed in 1..=8 {
        let kinds = format!("{seed},payload");
        all.extend(found("bp_where_reuse", 0, &kinds, &NAMES));
        assert_eq!(found("bp_where_reuse", 2, &kinds, &NAMES), [], "who waits is right");
    }
    all_at(&all, (FILE, SOURCE), AdversaryKind::Payload, "// of what is used again");
}

#[test]
fn a_wqe_that_a_kernel_writes_over_is_found_at_its_put() {
    let mut all = Vec::new();
    for seed in 1..=8 {
        let kinds = format!("{seed},record");
        all.extend(found("bp_where_reuse", 1, &kinds, &NAMES));
        // Also when it is complete, of which nothing but the copy says who posted it.
        let steps = (seed % 4 + 1) as u32;
        all.extend(found_by(with_packets(&kinds), ("bp_where_reuse", 1), steps, &NAMES));
    }
    all_at(&all, (FILE, SOURCE), AdversaryKind::Record, "// of what is used again");
    for seen in ["written after", "overwritten before it was complete"] {
        assert!(all.iter().any(|it| it.seen.contains(seen)), "{seen}: none of {}", all.len());
    }
}

#[test]
fn a_wqe_that_a_kernel_writes_too_late_is_found_at_its_put() {
    for seed in 1..=3 {
        let kinds = format!("{seed},record");
        let all = found("bp_where_early", 0, &kinds, &NAMES);
        all_at(&all, (FILE, SOURCE), AdversaryKind::Record, "// of what was told of");
        assert_eq!(found("bp_where_early", 1, &kinds, &NAMES), [], "the order is right");
    }
}

/// A line is told where it is known, and nothing in its place where it is not.
#[test]
fn a_line_that_is_not_known_is_not_told() {
    let unknown: [&[&str]; 3] = [&[], &["src/halo.cuh", "put.cuh"], &[FILE, "mine/where.cu"]];
    for names in unknown {
        let all = found("bp_where_early", 0, "1,record", names);
        assert!(
            !all.is_empty() && all.iter().all(|it| it.posted_at.is_none()),
            "{names:?}: {all:?}"
        );
    }
    let all = found("bp_where_early", 0, "1,record", &[FILE, FILE]);
    all_at(&all, (FILE, SOURCE), AdversaryKind::Record, "// of what was told of");
    // A kernel that was compiled as ever.
    let Bench { bed, nic, mut engine } = manual("3,payload");
    nic.name_kernels([FILE, "verbs.cu", "put.cuh", "wqe.cuh"]);
    let pair = bed.pair(path("pull/kernel"), 4096, Options::default());
    let mut now = 0;
    for round in 0..8u8 {
        let call = op(&pair, Verb::Put, Scope::Block, 48);
        assert_eq!(bed.launch("bp_verb_pull_kernel", (1, 32), call), [OK]);
        engine.step(now);
        pair.src.write(5, &[round + 1]).unwrap();
        step(&mut engine, &mut now);
    }
    let all = nic.findings();
    assert!(!all.is_empty() && all.iter().all(|it| it.posted_at.is_none()), "{all:?}");
}
