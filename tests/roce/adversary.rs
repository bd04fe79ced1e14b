//! A NIC that takes every freedom that the rules give: silent about who keeps to them, and what it says of who does not.

use std::net::IpAddr;
use std::sync::Arc;

use crate::queue_pairs::{Buf, Pair, attr, connect, make_qp, pattern};
use bellpush::mem::Dma;
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::link::ShmNet;
use bellpush::nic::soft::{AdversaryKind, Engine, Finding, SoftConfig, SoftNic};
use bellpush::nic::{Access, Change, Mtu, Nic, QpState, QueuePair};
use bellpush::wire::Iova;
use bellpush::wire::cqe::{Cqe, CqeOpcode};
use bellpush::wire::doorbell::DBR_SND_OFFSET;
use bellpush::wire::wqe::{Flags, Opcode, Operands, SendWr};

pub(crate) const ROUNDS: u64 = 60;
pub(crate) const SEEDS: [u64; 3] = [1, 2, 3];
/// Longer than anything waits for.
pub(crate) const LONG_NS: u64 = 2_000_000_000;

pub(crate) fn nics(adversary: &str) -> ([Arc<SoftNic>; 2], Vec<Engine>) {
    let net = ShmNet::anonymous(false).unwrap();
    let mut engines = Vec::new();
    let nics = [1u8, 2].map(|host| {
        let link = net.attach(IpAddr::from([127, 0, 0, host])).unwrap();
        let adversary = Some(adversary.parse().unwrap());
        let config = SoftConfig { seed: Some(host.into()), adversary, ..SoftConfig::default() };
        let (nic, engine) = SoftNic::manual_on(&config, Box::new(link)).unwrap();
        engines.push(engine);
        nic
    });
    (nics, engines)
}

pub(crate) fn pair(seed: u64, kinds: &str) -> Pair {
    let small = Change { path_mtu: Mtu::new(256), ..Change::default() };
    Pair::of(nics(&format!("{seed}{kinds}")), &attr(), &attr(), &small)
}

/// Runs until A has a completion.
pub(crate) fn completion(p: &mut Pair) -> Cqe {
    let mut got = None;
    let done = p.run_until(LONG_NS, |p| {
        got = p.a.host.poll_send().unwrap();
        got.is_some()
    });
    assert!(done, "nothing completes");
    let cqe = got.unwrap();
    assert_eq!(cqe.opcode, CqeOpcode::Req, "{cqe:?}");
    cqe
}

/// Runs until B has received something.
fn receipt(p: &mut Pair) -> Cqe {
    let mut got = None;
    assert!(p.run_until(LONG_NS, |p| {
        got = p.b.host.poll_recv().unwrap();
        got.is_some()
    }));
    got.unwrap()
}

/// Lets everything come to its end.
fn rest(p: &mut Pair) {
    p.run_until(10_000_000, |_| false);
}

#[track_caller]
pub(crate) fn silent(p: &Pair) {
    for nic in &p.nics {
        let findings = nic.findings();
        assert!(findings.is_empty(), "{}", findings[0]);
    }
}

#[track_caller]
fn found(nic: &SoftNic, kind: AdversaryKind) -> Finding {
    let findings = nic.findings();
    assert!(findings.iter().all(|it| it.kind == kind), "{findings:?}");
    assert_eq!(nic.finding_counts(), [(kind, findings.len() as u64)]);
    findings.first().cloned().unwrap_or_else(|| panic!("{kind}: nothing was found"))
}

pub(crate) fn write<'a>(to: &Buf, offset: u64) -> SendWr<'a> {
    SendWr::new(Opcode::RdmaWrite).to(to.at(offset), to.mr.rkey)
}

/// The same without a CQE.
pub(crate) fn quiet(wr: SendWr<'_>) -> SendWr<'_> {
    SendWr { flags: Flags::default(), ..wr }
}

#[test]
fn a_payload_that_stays_until_its_completion_is_nobodys_finding() {
    for seed in SEEDS {
        let mut p = pair(seed, ",payload");
        for round in 0..ROUNDS {
            let data = pattern(1500, round);
            p.a.buf.put(0, &data);
            let payload = [p.a.buf.data(0, 700), p.a.buf.data(700, 800)];
            let wr = write(&p.b.buf, 8).payload(&payload);
            // The first completes with the second.
            p.a.host.send(&quiet(wr)).unwrap();
            p.a.host.send(&wr).unwrap();
            completion(&mut p);
            assert_eq!(p.b.buf.get(8, 1500), data);
        }
        silent(&p);
    }
}

#[test]
fn a_payload_that_changes_before_its_completion_is_found() {
    for seed in SEEDS {
        let mut p = pair(seed, ",payload");
        p.a.buf.put(0, &pattern(6000, seed));
        let payload = [p.a.buf.data(16, 100), p.a.buf.data(116, 5000)];
        p.a.host.send(&write(&p.b.buf, 0).payload(&payload)).unwrap();
        p.step();
        p.a.buf.put(4300, &[0xee]);
        completion(&mut p);
        let finding = found(&p.nics[0], AdversaryKind::Payload);
        // Of parts of 4096 bytes the one with the byte.
        assert_eq!((finding.address, finding.bytes), (p.a.buf.at(4212).0, 904));
        assert_eq!((finding.qpn, finding.wqe), (p.a.qp.qpn(), Some(0)));
        assert!(finding.to_string().contains("before the WQE was complete"), "{finding}");
        assert!(p.nics[1].findings().is_empty());
    }
}

#[test]
fn what_is_inline_may_change_at_once() {
    let mut p = pair(4, "");
    for round in 0..ROUNDS {
        let data = pattern(40, round);
        let payload = crate::queue_pairs::inline(&data);
        p.a.host.send(&write(&p.b.buf, 0).payload(&payload)).unwrap();
        p.step();
        p.a.buf.put(0, &data);
        completion(&mut p);
        assert_eq!(p.b.buf.get(0, 40), data);
    }
    silent(&p);
}

pub(crate) fn relaxed(nic: &SoftNic) -> Buf {
    Buf::new(nic, 4096, 0x5000, Access { relaxed_order: true, ..Access::ALL })
}

#[test]
fn writes_have_landed_when_a_receive_behind_them_completes() {
    for seed in SEEDS {
        let mut p = pair(seed, ",writes");
        let to = relaxed(&p.nics[1]);
        for round in 0..ROUNDS {
            let data = pattern(1500, round);
            p.a.buf.put(0, &data);
            let payload = [p.a.buf.data(0, 1500)];
            p.a.host.send(&quiet(write(&to, 5).payload(&payload))).unwrap();
            // Another to a part of it: the later one stays.
            let over = [p.a.buf.data(100, 300)];
            p.a.host.send(&quiet(write(&to, 500).payload(&over))).unwrap();
            p.b.host.rq.post(&[]).unwrap();
            let wr = SendWr { imm: 1, ..SendWr::new(Opcode::SendImm) };
            p.a.host.send(&wr).unwrap();
            assert_eq!(receipt(&mut p).opcode, CqeOpcode::RespSendImm);
            let wanted = [&data[..495], &data[100..400], &data[795..]].concat();
            assert_eq!(to.get(5, 1500), wanted, "seed {seed}, round {round}");
            to.put(5, &[0; 1500]);
            completion(&mut p);
        }
        rest(&mut p);
        assert_eq!(to.get(5, 1500), [0; 1500], "nothing lands late");
        silent(&p);
    }
}

#[test]
fn reads_and_atomics_of_the_queue_pair_come_behind_its_writes() {
    for seed in SEEDS {
        let mut p = pair(seed, ",writes,atomics");
        let to = relaxed(&p.nics[1]);
        for round in 0..ROUNDS {
            let data = pattern(1000, round);
            p.a.buf.put(0, &data);
            let payload = [p.a.buf.data(0, 1000)];
            p.a.host.send(&quiet(write(&to, 0).payload(&payload))).unwrap();
            let back = [p.a.buf.data(2000, 1000)];
            let wr = SendWr::new(Opcode::RdmaRead).to(to.at(0), to.mr.rkey).payload(&back);
            p.a.host.send(&wr).unwrap();
            completion(&mut p);
            assert_eq!(p.a.buf.get(2000, 1000), data, "seed {seed}, round {round}");
            p.a.host.send(&quiet(write(&to, 0).payload(&payload))).unwrap();
            let old = [p.a.buf.data(4000, 8)];
            let ops = Operands { swap_add: 1, compare: 0 };
            let wr = SendWr { atomic: Some(ops), ..SendWr::new(Opcode::AtomicFa) };
            p.a.host.send(&wr.to(to.at(8), to.mr.rkey).payload(&old)).unwrap();
            completion(&mut p);
            assert_eq!(p.a.buf.get(4000, 8), data[8..16], "seed {seed}, round {round}");
        }
        silent(&p);
    }
}

#[test]
fn a_write_that_is_complete_has_landed_unless_all_are_late() {
    for (kinds, late) in [(",writes", false), (",writes=all", true)] {
        let mut p = pair(5, kinds);
        let to = relaxed(&p.nics[1]);
        let mut missing = 0;
        for round in 0..ROUNDS {
            let data = pattern(1000, round);
            p.a.buf.put(0, &data);
            let payload = [p.a.buf.data(0, 1000)];
            p.a.host.send(&write(&p.b.buf, 0).payload(&payload)).unwrap();
            completion(&mut p);
            missing += u64::from(p.b.buf.get(0, 1000) != data);
            p.a.host.send(&write(&to, 0).payload(&payload)).unwrap();
            completion(&mut p);
            missing += u64::from(to.get(0, 1000) != data);
            rest(&mut p);
            assert_eq!(p.b.buf.get(0, 1000), data, "it comes at last");
            assert_eq!(to.get(0, 1000), data, "it comes at last");
        }
        assert_eq!(missing > 0, late, "{kinds}: {missing}");
        silent(&p);
    }
}

#[test]
fn a_place_that_is_cleared_before_its_write_has_landed_is_found() {
    for seed in SEEDS {
        let mut p = pair(seed, ",writes");
        let to = relaxed(&p.nics[1]);
        for round in 0..ROUNDS {
            p.a.buf.put(0, &pattern(1000, round));
            let payload = [p.a.buf.data(0, 1000)];
            p.a.host.send(&write(&to, 0).payload(&payload)).unwrap();
            // The last byte is there: the others need not be.
            let last = pattern(1000, round)[999];
            assert!(p.run_until(LONG_NS, |_| to.get(999, 1)[0] == last));
            to.put(0, &[!pattern(1000, round + 1)[999]; 1000]);
            completion(&mut p);
        }
        let finding = found(&p.nics[1], AdversaryKind::Writes);
        assert_eq!((finding.qpn, finding.wqe), (p.b.qp.qpn(), None));
        assert!((0x5000..0x5000 + 1000).contains(&finding.address) && finding.bytes <= 64);
        assert!(p.nics[0].findings().is_empty());
    }
}

#[test]
fn writes_have_landed_when_their_region_or_queue_pair_is_gone() {
    for end in ["region", "queue pair", "reset", "error"] {
        // Complete, and not landed.
        let mut p = pair(6, ",writes=all");
        for round in 0..20 {
            let to = relaxed(&p.nics[1]);
            let data = pattern(1000, round);
            p.a.buf.put(0, &data);
            let payload = [p.a.buf.data(0, 1000)];
            p.a.host.send(&write(&to, 0).payload(&payload)).unwrap();
            completion(&mut p);
            match end {
                "region" => p.nics[1].deregister(to.mr).unwrap(),
                "queue pair" if round == 19 => p.nics[1].destroy_qp(p.b.qp.qpn()).unwrap(),
                "reset" if round == 19 => {
                    p.b.qp.modify(QpState::Reset, &Change::default()).unwrap();
                }
                "error" if round == 19 => {
                    p.b.qp.modify(QpState::Err, &Change::default()).unwrap();
                }
                _ => continue,
            }
            assert_eq!(to.get(0, 1000), data, "{end}");
        }
    }
}

#[test]
fn a_wqe_that_comes_after_its_doorbell_record_is_found() {
    for (kinds, seen) in [(",record", true), (",payload", false)] {
        let mut p = pair(7, kinds);
        p.a.buf.put(0, &pattern(100, 0));
        for round in 0..ROUNDS as u32 {
            let record = (round + 1).to_be_bytes();
            p.a.qp.queues().dbr.write(DBR_SND_OFFSET, &record).unwrap();
            p.step();
            let payload = [p.a.buf.data(0, 100)];
            // Written, and rung for, before anything waits any longer: silicon had read it by now.
            p.a.host.send(&write(&p.b.buf, 0).payload(&payload)).unwrap();
            if p.nics[0].counters().errors.iter().any(|&n| n > 0) {
                break; // what lay there was carried out
            }
            if !p.run_until(LONG_NS, |p| p.a.host.poll_send().unwrap().is_some()) {
                break;
            }
        }
        match seen {
            true => {
                let finding = found(&p.nics[0], AdversaryKind::Record);
                assert_eq!((finding.qpn, finding.wqe), (p.a.qp.qpn(), Some(0)));
                assert!(finding.seen.contains("after the doorbell record"), "{finding}");
            }
            false => silent(&p),
        }
    }
}

#[test]
fn wqes_before_their_record_and_their_doorbell_are_nobodys_finding() {
    for seed in SEEDS {
        let mut p = pair(seed, ",record");
        for round in 0..ROUNDS {
            let data = pattern(400, round);
            p.a.buf.put(0, &data);
            for part in 0..8u64 {
                let payload = [p.a.buf.data(part * 50, 50)];
                let wr = write(&p.b.buf, part * 50).payload(&payload);
                p.a.host.send(&if part == 7 { wr } else { quiet(wr) }).unwrap();
                if part % 3 == round % 3 {
                    p.step();
                }
            }
            completion(&mut p);
            assert_eq!(p.b.buf.get(0, 400), data);
        }
        silent(&p);
    }
}

#[test]
fn completions_come_late_and_in_their_order() {
    let mut p = pair(8, ",cqe");
    let mut late = 0;
    for round in 0..ROUNDS {
        let data = pattern(64, round);
        p.a.buf.put(0, &data);
        let payload = [p.a.buf.data(0, 64)];
        for _ in 0..3 {
            p.a.host.send(&write(&p.b.buf, 0).payload(&payload)).unwrap();
        }
        p.run_until(LONG_NS, |p| p.nics[0].counters().wqes == 3 * (round + 1));
        let first = p.sent();
        late += u64::from(first.len() < 3);
        let mut all = first;
        assert!(p.run_until(LONG_NS, |p| {
            all.extend(p.sent());
            all.len() == 3
        }));
        let counters: Vec<u16> = all.iter().map(|cqe| cqe.wqe_counter).collect();
        let wanted: Vec<u16> = (0..3).map(|i| (round * 3 + i) as u16).collect();
        assert_eq!(counters, wanted);
    }
    assert!(late > ROUNDS / 4, "{late}");
    silent(&p);
}

#[test]
fn what_is_put_off_for_a_cq_is_there_when_its_queue_pair_is_gone() {
    let mut p = pair(9, ",cqe");
    let payload = [p.a.buf.data(0, 64)];
    for _ in 0..8 {
        p.a.host.send(&write(&p.b.buf, 0).payload(&payload)).unwrap();
    }
    assert!(p.run_until(LONG_NS, |p| p.nics[0].counters().wqes == 8));
    p.nics[0].destroy_qp(p.a.qp.qpn()).unwrap();
    assert_eq!(p.sent().len(), 8);
}

/// Two connections between two NICs: rounds in which the second one's message came first, of `ROUNDS`.
fn overtaken(kinds: &str) -> u64 {
    let mut p = pair(10, kinds);
    let (a, _a) = make_qp(&p.nics[0], &attr());
    let (b, _b) = make_qp(&p.nics[1], &attr());
    connect(&a, &b, &Change::default());
    let mut second = HostQp::new(&*a);
    let mut overtaken = 0;
    for round in 0..ROUNDS {
        // Four packets of the first, one of the second.
        let data = pattern(1000, round + 1);
        p.a.buf.put(0, &data);
        p.b.buf.put(0, &[0; 3000]);
        let payload = [p.a.buf.data(0, 1000)];
        p.a.host.send(&write(&p.b.buf, 0).payload(&payload)).unwrap();
        second.send(&write(&p.b.buf, 2000).payload(&payload)).unwrap();
        assert!(p.run_until(LONG_NS, |p| {
            let [first, second] = [0, 2000].map(|at| p.b.buf.get(at, 1000) == data);
            overtaken += u64::from(!first && second);
            p.a.host.poll_send().unwrap().is_some()
        }));
        assert!(p.run_until(LONG_NS, |_| second.poll_send().unwrap().is_some()));
    }
    // Within each, everything came in order.
    assert_eq!(p.nics.iter().map(|nic| nic.counters().retransmitted).sum::<u64>(), 0);
    silent(&p);
    overtaken
}

#[test]
fn packets_of_one_queue_pair_pass_those_of_another() {
    assert_eq!(overtaken(",cqe"), 0);
    assert!(overtaken(",packets") > ROUNDS / 10);
}

#[test]
fn what_acks_and_routing_do_is_made_up_for() {
    for kinds in [",acks", ",routing"] {
        let mut p = pair(11, kinds);
        for round in 0..400 {
            let data = pattern(1000, round);
            p.a.buf.put(0, &data);
            let payload = [p.a.buf.data(0, 1000)];
            p.a.host.send(&write(&p.b.buf, 0).payload(&payload)).unwrap();
            completion(&mut p);
            assert_eq!(p.b.buf.get(0, 1000), data);
        }
        let seen = p.nics[0].counters();
        assert!(seen.retransmitted > 0, "{kinds}");
        assert_eq!(seen.sequence_naks > 0, kinds == ",routing");
        silent(&p);
    }
}

/// A WRITE on one queue pair, then an atomic on another: rounds in which the word had changed and some of the WRITE's
/// bytes were not there, though its packets came first.
fn unordered_atomics(kinds: &str) -> u64 {
    let mut p = pair(12, kinds);
    let (a, _a) = make_qp(&p.nics[0], &attr());
    let (b, _b) = make_qp(&p.nics[1], &attr());
    connect(&a, &b, &Change::default());
    let mut second = HostQp::new(&*a);
    let to = relaxed(&p.nics[1]);
    let mut early = 0;
    for round in 0..ROUNDS {
        let data = pattern(1000, round);
        p.a.buf.put(0, &data);
        let payload = [p.a.buf.data(0, 1000)];
        p.a.host.send(&write(&to, 0).payload(&payload)).unwrap();
        p.step();
        let old = [p.a.buf.data(4000, 8)];
        let ops = Operands { swap_add: 1, compare: 0 };
        let wr = SendWr { atomic: Some(ops), ..SendWr::new(Opcode::AtomicFa) };
        second.send(&wr.to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&old)).unwrap();
        let wanted = (round + 1).to_ne_bytes();
        assert!(p.run_until(LONG_NS, |p| p.b.buf.get(0, 8) == wanted));
        early += u64::from(to.get(0, 1000) != data);
        assert!(p.run_until(LONG_NS, |_| second.poll_send().unwrap().is_some()));
        completion(&mut p);
    }
    early
}

#[test]
fn atomics_pass_the_writes_of_other_queue_pairs() {
    assert_eq!(unordered_atomics(",writes"), 0);
    assert!(unordered_atomics(",writes,atomics") > 0);
}

#[test]
fn the_same_seed_decides_the_same() {
    let run = |seed: u64| {
        let mut p = pair(seed, "");
        let mut times = Vec::new();
        for round in 0..ROUNDS {
            p.a.buf.put(0, &pattern(700, round));
            let payload = [p.a.buf.data(0, 700)];
            p.a.host.send(&write(&p.b.buf, 0).payload(&payload)).unwrap();
            completion(&mut p);
            times.push(p.now_ns);
        }
        silent(&p);
        times
    };
    assert_eq!(run(13), run(13));
    assert_ne!(run(13), run(14));
}

/// The same memory under a key without relaxed ordering.
fn strict(nic: &SoftNic, of: &Buf) -> Buf {
    let mr = nic.register(Arc::new(of.view.clone()), Iova(0x9000), Access::ALL).unwrap();
    Buf { view: of.view.clone(), mr }
}

#[test]
fn the_later_of_two_writes_stays_whatever_their_keys() {
    for seed in SEEDS {
        let mut p = pair(seed, ",writes");
        let late = relaxed(&p.nics[1]);
        let soon = strict(&p.nics[1], &late);
        for round in 0..ROUNDS {
            let (first, last) = (pattern(1500, round), pattern(1500, round + 1000));
            p.a.buf.put(0, &first);
            p.a.buf.put(2000, &last);
            let payload = [[p.a.buf.data(0, 1500)], [p.a.buf.data(2000, 1500)]];
            let order = if round % 4 == 0 { [&soon, &late] } else { [&late, &soon] };
            for (to, payload) in order.into_iter().zip(&payload) {
                p.a.host.send(&quiet(write(to, 3).payload(payload))).unwrap();
            }
            p.b.host.rq.post(&[]).unwrap();
            p.a.host.send(&SendWr { imm: 1, ..SendWr::new(Opcode::SendImm) }).unwrap();
            receipt(&mut p);
            assert_eq!(late.get(3, 1500), last, "seed {seed}, round {round}");
            completion(&mut p);
        }
        silent(&p);
    }
}

#[test]
fn what_a_fence_or_a_read_before_it_brings_is_nobodys_finding() {
    for seed in SEEDS {
        let mut p = pair(seed, ",payload");
        for round in 0..ROUNDS {
            let data = pattern(1500, round);
            p.b.buf.put(0, &data);
            let back = [p.a.buf.data(0, 1500)];
            let wr = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(0), p.b.buf.mr.rkey);
            p.a.host.send(&quiet(wr.payload(&back))).unwrap();
            let flags = Flags { fence: true, ..Flags::default() };
            let wr = write(&p.b.buf, 4000).payload(&back);
            p.a.host.send(&SendWr { flags, ..wr }).unwrap();
            // Behind the fence as well.
            p.a.host.send(&write(&p.b.buf, 8000).payload(&back)).unwrap();
            completion(&mut p);
            assert_eq!(p.b.buf.get(4000, 1500), data);
            assert_eq!(p.b.buf.get(8000, 1500), data);
        }
        silent(&p);
    }
}

#[test]
fn a_payload_behind_a_fence_with_nothing_to_wait_for_is_looked_at() {
    let mut p = pair(14, ",payload");
    let payload = [p.a.buf.data(0, 1000)];
    let flags = Flags { fence: true, ..Flags::SIGNALLED };
    p.a.host.send(&SendWr { flags, ..write(&p.b.buf, 0).payload(&payload) }).unwrap();
    p.step();
    p.a.buf.put(0, &[0xee]);
    completion(&mut p);
    found(&p.nics[0], AdversaryKind::Payload);
}

#[test]
fn what_the_nic_itself_writes_to_a_payload_is_nobodys_finding() {
    for seed in SEEDS {
        let mut p = pair(seed, ",payload");
        for round in 0..ROUNDS {
            // Parts of one page: the peer writes to the first, or counts in it, while the second is sent.
            let payload = [p.a.buf.data(0, 3000)];
            for _ in 0..4 {
                p.a.host.send(&quiet(write(&p.b.buf, 0).payload(&payload))).unwrap();
            }
            p.a.host.send(&write(&p.b.buf, 0).payload(&payload)).unwrap();
            p.step();
            p.b.buf.put(8000, &pattern(500, round));
            let other = [p.b.buf.data(8000, 500)];
            p.b.host.send(&write(&p.a.buf, 1000).payload(&other)).unwrap();
            let old = [p.b.buf.data(9000, 8)];
            let ops = Operands { swap_add: 1, compare: 0 };
            let wr = SendWr { atomic: Some(ops), ..SendWr::new(Opcode::AtomicFa) };
            p.b.host.send(&wr.to(p.a.buf.at(2000), p.a.buf.mr.rkey).payload(&old)).unwrap();
            completion(&mut p);
            for _ in 0..2 {
                assert!(p.run_until(LONG_NS, |p| p.b.host.poll_send().unwrap().is_some()));
            }
        }
        silent(&p);
    }
}
