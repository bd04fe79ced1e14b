//! Programs that lack one step (`kernels/bench/wrong.cu`): the adversary names queue pair, WQE, address, line and what is
//! missing, and says nothing of the same program with that step. One for what each suite is about, at least.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::gated::*;
use crate::test_bed::*;
use bellpush::abi::entry::{Scope, Verb};
use bellpush::nic::soft::{AdversaryKind, Finding};
use bellpush::transport::{Choice, MemoryPlace, Options, Path, Ranges, Tuning};

const FILE: &str = "kernels/bench/wrong.cu";
const SOURCE: &str = include_str!("../../kernels/bench/wrong.cu");
const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;

/// What would have ordered it, as far as the finding says so in these words.
const COMPLETION: &str = "when a completion of this WQE, or of a later one, was polled";
const FENCE: &str = "set the fence flag";
const ARRIVAL: &str = "an atomic that follows it";

/// A program, where its put reads from, and what the wrong one is told.
struct Program {
    kernel: &'static str,
    options: Options,
    path: Path,
    /// Text of the line that is named.
    line: &'static str,
    /// Of the first byte that is named, in the sender's region; how many.
    at: (u64, u32),
    /// The WQE that is named, and the one that it is behind.
    wqes: (u16, Option<u16>),
    remedy: &'static str,
}

impl Program {
    fn new(kernel: &'static str, line: &'static str) -> Self {
        let (at, wqes, remedy) = ((0, 48), (0, None), COMPLETION);
        Self { kernel, options: usual(), path: path("pull/kernel"), line, at, wqes, remedy }
    }

    fn run(&self, seed: u64, right: bool) -> (Vec<Finding>, Call) {
        let bench = manual(&format!("{seed},payload,record,cqe"));
        bench.nic.name_kernels([FILE, "put.cuh", "peers.cuh"]);
        let mut call = Call::new(&bench.bed, self.path, self.options.clone());
        call.args.op.value = right.into();
        set_word(&call.memory, 64, 1); // the other rank has come to the barrier
        let findings = play(bench, &call, self.kernel, |bench| bench.stand(20));
        (findings, call)
    }

    #[track_caller]
    fn is_told(&self) {
        let mut all = Vec::new();
        for seed in SEEDS {
            let (found, call) = self.run(seed, false);
            for finding in &found {
                let bell =
                    if self.path == Path::AUTO { &call.args.ep.bell } else { &call.args.op.ep };
                assert_eq!(finding.qpn.0, bell.qp.qpn, "{finding}");
                assert_eq!(
                    (finding.wqe, finding.behind),
                    (Some(self.wqes.0), self.wqes.1),
                    "{finding}"
                );
                let at = bell.local_iova + self.at.0;
                assert_eq!((finding.address, finding.bytes), (at, self.at.1), "{finding}");
                assert!(finding.remedy.contains(self.remedy), "{finding}");
            }
            all.extend(found);
            assert_eq!(self.run(seed, true).0, [], "{}: who waits is right", self.kernel);
        }
        all_at(&all, (FILE, SOURCE), AdversaryKind::Payload, self.line);
    }
}

#[test]
fn an_auto_endpoints_pull_that_is_taken_for_a_push() {
    let tuning = Tuning::for_all(Ranges::always(Choice::Pull));
    let options = usual().tuning(Some(tuning));
    let program = Program::new("bp_wrong_auto", "// taken for pushed");
    Program { options, path: Path::AUTO, ..program }.is_told();
}

#[test]
fn waits_that_ended_before_what_they_were_for() {
    Program::new("bp_wrong_timeout", "// given up").is_told();
    let program = Program::new("bp_wrong_ticket", "// of another ticket");
    Program { wqes: (1, None), ..program }.is_told();
}

#[test]
fn messages_of_which_only_the_peer_was_told() {
    let program = Program::new("bp_wrong_batch", "// of a batch");
    Program { wqes: (4, None), at: (256, 48), ..program }.is_told();
    Program::new("bp_wrong_signal", "// signalled").is_told();
    let options = usual().receives(4);
    Program { options, ..Program::new("bp_wrong_imm", "// with an immediate") }.is_told();
}

#[test]
fn what_was_fetched_is_sent_on_without_a_wait() {
    let program = Program::new("bp_wrong_get", "// of what get brings");
    Program { at: (40, 48), wqes: (1, Some(0)), remedy: FENCE, ..program }.is_told();
    let program = Program::new("bp_wrong_atomic", "// of what fetch_add brings");
    Program { at: (0, 8), wqes: (1, Some(0)), remedy: FENCE, ..program }.is_told();
}

#[test]
fn a_barrier_of_ranks_that_waits_for_no_put() {
    Program::new("bp_wrong_barrier", "// before a barrier").is_told();
}

/// Of a stage of two slots one message is written over another which the NIC has not sent.
#[test]
fn a_stage_that_is_used_again_too_soon() {
    let mut all = Vec::new();
    for seed in SEEDS {
        let program = Program::new("bp_wrong_stage", "// from a stage");
        let (found, call) = program.run(seed, false);
        for finding in &found {
            let wqe = finding.wqe.unwrap();
            assert!(wqe < 2, "{finding}: of the last two nothing is written over");
            assert_eq!(
                finding.address,
                call.args.op.ep.local_iova + 64 * u64::from(wqe),
                "{finding}"
            );
            assert!(finding.remedy.contains(COMPLETION), "{finding}");
        }
        all.extend(found);
        let (found, call) = program.run(seed, true);
        assert_eq!(found, [], "who waits is right");
        for n in 0..4u64 {
            let message = (0..6).map(|i| n * 0x0101_0101_0101_0101 + i);
            let message: Vec<u8> = message.flat_map(u64::to_ne_bytes).collect();
            assert_same(&read(&call.pair.dst, n as usize * 64, 48), &message, "a message");
        }
    }
    all_at(&all, (FILE, SOURCE), AdversaryKind::Payload, "// from a stage");
}

/// A kernel that sends on what a peer puts into its region, some of which has come.
#[test]
fn what_a_peer_puts_is_sent_on_before_it_has_come() {
    const BYTES: usize = 3000;
    let run = |seed: u64, right: bool| {
        let bench = manual_relaxed(&format!("{seed},payload,writes"));
        bench.nic.name_kernels([FILE]);
        let mut call = Call::new(&bench.bed, path("pull/kernel"), usual());
        call.args.op.value = right.into();
        call.args.op.bytes = BYTES as u64;
        let Pair { b, src, dst, .. } = &call.pair;
        let sent = pattern(seed, BYTES);
        dst.write(0, &sent).unwrap();
        let verb = if right { Verb::PutSignal } else { Verb::Put };
        let mut peer = op(&call.pair, verb, Scope::Block, BYTES as u64);
        peer.flags = UNSIGNALLED; // what is to be acknowledged at once lands at once
        (peer.ep, peer.local) = (b.device().unwrap(), dst.addr());
        (peer.signal_offset, peer.value) = (4096, 1);
        assert_eq!(bench.bed.launch("bp_verb_pull_kernel", (1, 32), peer), [OK]);
        let findings = play(bench, &call, "bp_wrong_forward", |bench| {
            let mut now = 0;
            while read(src, 0, BYTES) == [0; BYTES] {
                now += 500;
                assert!(now < 1_000_000, "the peer's put does not come");
                bench.engine.step(now);
            }
        });
        if right {
            assert_same(&read(dst, 0, BYTES), &sent, "what came is what was sent on");
        }
        (findings, call)
    };
    let mut all = Vec::new();
    for seed in SEEDS {
        let (found, call) = run(seed, false);
        for finding in &found {
            assert_eq!(
                (finding.qpn.0, finding.wqe),
                (call.args.op.ep.qp.qpn, Some(0)),
                "{finding}"
            );
            assert_eq!(finding.address, call.args.op.ep.local_iova, "{finding}");
            assert!(finding.seen.contains("yet to arrive"), "{finding}");
            assert!(finding.remedy.contains(ARRIVAL), "{finding}");
        }
        all.extend(found);
        assert_eq!(run(seed, true).0, [], "who waits is right");
    }
    all_at(&all, (FILE, SOURCE), AdversaryKind::Payload, "// of what a peer puts");
}

/// Wherever the queues lie: a NIC that is told of a WQE before it is written has another one's bytes.
#[test]
fn a_wqe_in_any_memory_that_is_told_of_before_it_is_written() {
    const WHERE: &str = "kernels/bench/where.cu";
    let run = |places: [MemoryPlace; 4], verb: u64| {
        let [sq, dbr, cq, window] = places;
        let options = usual().sq_place(sq).dbr_place(dbr).cq_place(cq).window_place(window);
        let bench = manual("1,record");
        bench.nic.name_kernels([WHERE]);
        let mut call = Call::new(&bench.bed, path("pull/kernel"), options);
        call.args.op.value = verb;
        let findings = play(bench, &call, "bp_where_early", |bench| bench.stand(20));
        (findings, call)
    };
    let source = include_str!("../../kernels/bench/where.cu");
    for n in 0..16 {
        let place = |i| if n >> i & 1 == 0 { MemoryPlace::Host } else { MemoryPlace::Gpu };
        let places = [0, 1, 2, 3].map(place);
        let (found, call) = run(places, 0);
        all_at(&found, (WHERE, source), AdversaryKind::Record, "// of what was told of");
        for finding in found {
            assert_eq!(
                (finding.qpn.0, finding.wqe),
                (call.args.op.ep.qp.qpn, Some(0)),
                "{finding}"
            );
            let told = finding.to_string();
            assert!(
                told.contains("ring offset 0x0") && told.contains("write the WQE, then"),
                "{told}"
            );
        }
        assert_eq!(run(places, 1).0, [], "{places:?}: the order is right");
    }
}

/// A suite that relies on more fails, whatever it makes of its data: at the end of what its NICs belong to.
#[test]
fn what_is_found_under_a_suite_fails_it() {
    let (bed, mut engine) = TestBed::manual();
    let pair = bed.pair(path("pull/kernel"), 4096, usual());
    // A finding ends the engine, and what waits for it.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let mut now = 0;
        for round in 0..8u8 {
            let call = op(&pair, Verb::Put, Scope::Block, 48);
            bed.launch("bp_verb_pull_kernel", (1, 32), call);
            engine.step(now);
            pair.src.write(5, &[round + 1]).unwrap();
            step(&mut engine, &mut now);
        }
    }));
    drop(pair);
    let told = catch_unwind(AssertUnwindSafe(|| drop(bed))).expect_err("it ends in silence");
    let told = told.downcast_ref::<String>().expect("a message");
    assert!(told.contains("payload changed before the WQE was complete"), "{told}");
}
