//! What kernels that were compiled with `BELLPUSH_WHERE` write into WQEs, and what findings make of it
//! (`kernels/bench/where.cu`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::test_bed::*;
use bellpush::abi::bench::AutoOpArgs;
use bellpush::abi::entry::{Scope, Verb};
use bellpush::abi::wire::{DeviceEndpoint, RemoteWords};
use bellpush::gpu::HostOptions;
use bellpush::nic::soft::link::ShmNet;
use bellpush::nic::soft::{AdversaryKind, Engine, Finding, InProcess, SoftConfig, SoftNic};
use bellpush::transport::{Memory, Options, Path};
use bellpush::wire::Qpn;
use bellpush::wire::line::FileDigest;
use bytemuck::Zeroable;

const FILE: &str = "kernels/bench/where.cu";
const SOURCE: &str = include_str!("../../kernels/bench/where.cu");
/// Lives through the engine's steps of a slow machine.
const LIMIT: Duration = Duration::from_secs(20);

/// The line of the source that has this text, and no other has.
fn line_of(text: &str) -> u16 {
    let lines: Vec<_> = SOURCE.lines().zip(1..).filter(|(line, _)| line.contains(text)).collect();
    let [(_, line)] = lines[..] else { panic!("{text}: {} lines", lines.len()) };
    line
}

/// A NIC that moves when it is stepped, and takes freedoms of these kinds.
fn manual(kinds: &str) -> (TestBed, Arc<SoftNic>, Engine) {
    let adversary = Some(kinds.parse().unwrap());
    let config = SoftConfig { adversary, ..SoftConfig::new(&InProcess::new()) };
    let (nic, mut engines) = SoftNic::manual(&config).unwrap();
    (TestBed::new(HostOptions::default(), nic.clone()), nic, engines.remove(0))
}

/// The same with packets, so that a WQE is complete some steps after it was carried out.
fn with_packets(kinds: &str) -> (TestBed, Arc<SoftNic>, Engine) {
    let config = SoftConfig { adversary: Some(kinds.parse().unwrap()), ..SoftConfig::default() };
    let link = ShmNet::anonymous(false).unwrap().attach_free().unwrap();
    let (nic, engine) = SoftNic::manual_on(&config, Box::new(link)).unwrap();
    (TestBed::new(HostOptions::default(), nic.clone()), nic, engine)
}

/// What a kernel of where.cu is given, and the memory that this names.
struct Call {
    pair: Pair,
    memory: Memory,
    args: AutoOpArgs,
}

const RING_BYTES: usize = 64 * 32;
/// Of the status, behind the gate's words.
const STATUS: usize = 16;

impl Call {
    fn new(bed: &TestBed, path: Path) -> Self {
        let pair = bed.pair(path, 8192, Options::default().sq_blocks(64).slot_bytes(1024));
        let memory = bed.memory(4096 + RING_BYTES);
        let mut args = AutoOpArgs::zeroed();
        let mut table = vec![0; size_of::<DeviceEndpoint>()];
        if path == Path::AUTO {
            args.ep = pair.a.auto_device().unwrap();
            table.extend_from_slice(bytemuck::bytes_of(&args.ep.bell));
        } else {
            args.op.ep = pair.a.device().unwrap();
        }
        (args.op.local, args.op.bytes) = (pair.src.addr(), 3000);
        (args.op.compare, args.op.status) = (memory.addr(), memory.addr() + STATUS as u64);
        memory.write(1024, &table).unwrap();
        let words = RemoteWords { iova: 0x1000, rkey: 0x100, reserved: 0 };
        memory.write(2048, bytemuck::bytes_of(&[words; 2])).unwrap();
        memory.write(STATUS, &UNWRITTEN.to_ne_bytes()).unwrap();
        Self { pair, memory, args }
    }

    fn word32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(read(&self.memory, at, 4).try_into().unwrap())
    }
}

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
            let (bed, ..) = manual("1,record");
            let mut call = Call::new(&bed, path(name));
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
                let line = line_of(&format!("case {verb}:"));
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

/// Runs a kernel that stands still once it has posted, or told of what it has not, while the NIC makes some steps: what
/// that found.
fn found(kernel: &str, verb: u64, kinds: &str, names: &[&str]) -> Vec<Finding> {
    run_on(manual(kinds), (kernel, verb), 20, names)
}

fn run_on(
    (bed, nic, mut engine): (TestBed, Arc<SoftNic>, Engine),
    (kernel, verb): (&str, u64),
    steps: u32,
    names: &[&str],
) -> Vec<Finding> {
    nic.name_kernels(names.iter().copied());
    let mut call = Call::new(&bed, path("pull/kernel"));
    call.args.op.value = verb;
    bed.queue_on(&bed.stream, kernel, &call.args);
    let begun = Instant::now();
    let until = |what: &str, done: &mut dyn FnMut() -> bool| {
        while !done() {
            assert!(begun.elapsed() < LIMIT, "{kernel}: {what}");
        }
    };
    until("does not come", &mut || call.word32(0) == 1);
    for _ in 0..steps {
        engine.step(1000); // time stands still: what was looked at is mostly not due
    }
    call.memory.write(4, &1u32.to_ne_bytes()).unwrap();
    until("does not go on", &mut || call.word32(8) == 1);
    let mut now = 1000;
    until("does not end", &mut || {
        now += 1000;
        engine.step(now);
        call.word32(STATUS) != UNWRITTEN
    });
    bed.stream.synchronize(LIMIT).unwrap();
    assert_eq!(call.word32(STATUS), OK, "{kernel}");
    assert!(call.pair.a.failure().is_none());
    nic.findings()
}

#[track_caller]
fn all_at(findings: &[Finding], kind: AdversaryKind, text: &str) {
    assert!(!findings.is_empty(), "nothing was found");
    for finding in findings {
        let line = finding.posted_at.as_ref().unwrap_or_else(|| panic!("{finding}: no line"));
        assert_eq!((finding.kind, &*line.file, line.line), (kind, FILE, line_of(text)));
        let told = format!("(posted at {FILE}:{})", line.line);
        assert!(finding.to_string().contains(&told), "{finding}");
    }
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
    all_at(&all, AdversaryKind::Payload, "// of what is used again");
}

#[test]
fn a_wqe_that_a_kernel_writes_over_is_found_at_its_put() {
    let mut all = Vec::new();
    for seed in 1..=8 {
        let kinds = format!("{seed},record");
        all.extend(found("bp_where_reuse", 1, &kinds, &NAMES));
        // Also when it is complete, of which nothing but the copy says who posted it.
        let steps = (seed % 4 + 1) as u32;
        all.extend(run_on(with_packets(&kinds), ("bp_where_reuse", 1), steps, &NAMES));
    }
    all_at(&all, AdversaryKind::Record, "// of what is used again");
    for seen in ["written after", "overwritten before it was complete"] {
        assert!(all.iter().any(|it| it.seen.contains(seen)), "{seen}: none of {}", all.len());
    }
}

#[test]
fn a_wqe_that_a_kernel_writes_too_late_is_found_at_its_put() {
    for seed in 1..=3 {
        let kinds = format!("{seed},record");
        let all = found("bp_where_early", 0, &kinds, &NAMES);
        all_at(&all, AdversaryKind::Record, "// of what was told of");
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
    all_at(&all, AdversaryKind::Record, "// of what was told of");
    // A kernel that was compiled as ever.
    let (bed, nic, mut engine) = manual("3,payload");
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
