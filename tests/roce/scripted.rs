//! Faults that a script names happen to what it names, and to nothing else.

use std::sync::Arc;

use crate::queue_pairs::{Pair, attr, connect, make_qp, pattern, syndromes};
use bellpush::mem::View;
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::link::ShmNet;
use bellpush::nic::soft::script::{Script, Scripted, ScriptedFaults};
use bellpush::nic::soft::{DropReason, Event, InProcess, SoftConfig, SoftNic};
use bellpush::nic::{Change, QpState, QueuePair};
use bellpush::wire::cqe::Syndrome;
use bellpush::wire::wqe::{Opcode, SendWr};

const MS: u64 = 1_000_000;

/// A pair on a packet link of which the first NIC, which sends, has a script.
struct Bed {
    p: Pair,
    faults: Arc<ScriptedFaults>,
}

impl Bed {
    fn new(script: &str) -> Self {
        Self::with(script, &Change { timeout: Some(8), ..Change::default() })
    }

    fn with(script: &str, change: &Change) -> Self {
        let script: Script = script.parse().unwrap();
        let net = ShmNet::anonymous(true).unwrap();
        let (mut engines, mut faults) = (Vec::new(), Vec::new());
        let nics = [1u8, 2].map(|host| {
            let address = [127, 0, 0, host].into();
            // Rules that are one's name it.
            let its = ScriptedFaults::new(&script, 0, Some(address));
            let link = Scripted::new(net.attach(address).unwrap(), its.clone()).unwrap();
            let seed = Some(host.into());
            let config = SoftConfig { seed, faults: Some(its.clone()), ..SoftConfig::default() };
            let (nic, engine) = SoftNic::manual_on(&config, Box::new(link)).unwrap();
            engines.push(engine);
            faults.push(its);
            nic
        });
        let p = Pair::of((nics, engines), &attr(), &attr(), change);
        Self { p, faults: faults.swap_remove(0) }
    }

    /// Posts a WRITE of its own bytes to a place of its own; their number.
    fn write(&mut self, i: u64) {
        self.p.a.buf.put(i as usize * 64, &pattern(64, i));
        let payload = [self.p.a.buf.data(i * 64, 64)];
        let to = self.p.b.buf.at(i * 64);
        let wr = SendWr::new(Opcode::RdmaWrite).to(to, self.p.b.buf.mr.rkey).payload(&payload);
        self.p.a.host.send(&wr).unwrap();
    }

    fn has_arrived(&self, i: u64) -> bool {
        self.p.b.buf.get(i as usize * 64, 64) == pattern(64, i)
    }

    /// Syndromes of what completes within a time: `None` of a success.
    fn completions(&mut self, count: usize, ns: u64) -> Vec<Option<Syndrome>> {
        let mut all = Vec::new();
        self.p.run_until(ns, |p| {
            all.extend(p.sent());
            all.len() >= count
        });
        syndromes(&all)
    }

    fn struck(&self) -> Vec<(usize, u64)> {
        self.faults.done()
    }
}

fn fault(lines: &str) -> String {
    format!("[[fault]]\naddress = \"127.0.0.1\"\n{lines}\n")
}

#[test]
fn the_third_write_fails_with_its_syndrome() {
    let mut bed = Bed::new(&fault(
        "on = \"wqe\"\naction = \"fail\"\nopcode = \"write\"\nnth = 3\n\
         syndrome = \"remote-access-error\"",
    ));
    (0..5).for_each(|i| bed.write(i));
    let flushed = Some(Syndrome::WrFlush);
    let expected = [None, None, Some(Syndrome::RemoteAccess), flushed, flushed];
    assert_eq!(bed.completions(5, 100 * MS), expected);
    assert_eq!([0, 1, 2, 3, 4].map(|i| bed.has_arrived(i)), [true, true, false, false, false]);
    assert_eq!(bed.p.a.qp.state(), QpState::Err);
    assert_eq!(bed.struck(), [(1, 1)]);
}

/// A pair within a process of which A's WQEs fail.
fn in_process(lines: &str) -> Pair {
    let rule = "on = \"wqe\"\naction = \"fail\"\nsyndrome = \"local-protection-error\"";
    let script: Script = format!("[[fault]]\n{rule}\n{lines}\n").parse().unwrap();
    let link = InProcess::new();
    let mut engines = Vec::new();
    let nics = [0, 1].map(|i| {
        let faults = Some(ScriptedFaults::new(&script, i, None)).filter(|_| i == 0);
        let (nic, e) = SoftNic::manual(&SoftConfig { faults, ..SoftConfig::new(&link) }).unwrap();
        engines.extend(e);
        nic
    });
    Pair::of((nics, engines), &attr(), &attr(), &Change::default())
}

/// Also short ones, which otherwise go a way of their own.
#[test]
fn writes_within_a_process_fail() {
    let mut p = in_process("opcode = \"write\"\nnth = 3");
    let payload = [p.a.buf.data(0, 8)];
    let write = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    let failed = Some(Syndrome::LocalProt);
    assert_eq!([0, 1, 2].map(|_| syndromes(&p.send(&write))), [[None], [None], [failed]]);
}

/// A SEND without a receive is fetched again and again.
#[test]
fn a_wqe_is_counted_once_however_often_it_is_looked_at() {
    let mut p = in_process("nth = 2");
    let payload = [p.a.buf.data(0, 8)];
    let send = SendWr::new(Opcode::Send).payload(&payload);
    p.a.host.send(&send).unwrap();
    p.run_for(MS);
    assert!(p.sent().is_empty(), "nobody has posted a receive");
    p.b.host.rq.post(&[p.b.buf.sge(0, 8)]).unwrap();
    p.run_for(MS);
    assert_eq!(syndromes(&p.sent()), [None]);
    p.a.host.send(&send).unwrap();
    p.run_for(MS);
    assert_eq!(syndromes(&p.sent()), [Some(Syndrome::LocalProt)]);
}

#[test]
fn cqes_of_one_cq_stop() {
    let mut bed = Bed::new(&fault("on = \"cqe\"\naction = \"drop\"\ncq = 1\nnth = 2\nevery = 1"));
    (0..4).for_each(|i| bed.write(i));
    assert_eq!(bed.completions(4, 20 * MS), [None], "the first CQ is A's for sends");
    assert!((0..4).all(|i| bed.has_arrived(i)));
    assert_eq!((bed.struck(), bed.p.a.qp.state()), (vec![(1, 3)], QpState::Rts));
}

#[test]
fn a_receiving_end_of_xrc_has_no_cq_that_counts() {
    // The first two are those of the queue pair that is there.
    let mut bed = Bed::new(&fault("on = \"cqe\"\naction = \"drop\"\ncq = 3\nnth = 1"));
    let nic = &bed.p.nics[0];
    let _receives = nic.create_xrc_recv(&nic.create_xrcd()).unwrap();
    let (qp, _memory) = make_qp(nic, &attr());
    let (peer, _peer_memory) = make_qp(&bed.p.nics[1], &attr());
    connect(&qp, &peer, &Change::default());
    let mut host = HostQp::new(&*qp);
    let (payload, to) = ([bed.p.a.buf.data(0, 64)], &bed.p.b.buf);
    let wr = SendWr::new(Opcode::RdmaWrite).to(to.at(0), to.mr.rkey).payload(&payload);
    host.send(&wr).unwrap();
    bed.p.run_for(5 * MS);
    assert_eq!((host.poll_send().unwrap(), bed.struck()), (None, vec![(1, 1)]));
}

#[test]
fn a_cq_overruns_on_command() {
    let mut bed = Bed::new(&fault("on = \"cqe\"\naction = \"overrun\"\nnth = 2"));
    (0..5).for_each(|i| bed.write(i));
    assert_eq!(bed.completions(5, 20 * MS), [None], "nothing more");
    let events: Vec<_> = std::iter::from_fn(|| bed.p.nics[0].next_event()).collect();
    assert!(matches!(events[..], [Event::CqOverrun(_), Event::QpFatal(_)]), "{events:?}");
    assert_eq!(bed.p.a.qp.state(), QpState::Err);
}

#[test]
fn acknowledgements_are_lost_and_requests_come_twice() {
    let mut bed = Bed::new(&fault(
        "on = \"packet\"\naction = \"drop\"\ndirection = \"received\"\npacket = \"ack\"\n\
         qp = 1\nnth = 1\nevery = 1\ntimes = 3",
    ));
    bed.write(0);
    assert_eq!(bed.completions(1, 100 * MS), [None]);
    assert!(bed.has_arrived(0));
    assert_eq!(bed.struck(), [(1, 3)]);
    assert!(bed.p.nics[1].counters().rx_packets >= 4, "{:?}", bed.p.nics[1].counters());
}

#[test]
fn a_peer_that_hears_nothing_is_given_up() {
    let change = Change { timeout: Some(8), retry_cnt: Some(2), ..Change::default() };
    let lines = "on = \"packet\"\naction = \"drop\"\ndirection = \"sent\"\npacket = \"write\"";
    let mut bed = Bed::with(&fault(lines), &change);
    bed.write(0);
    assert_eq!(bed.completions(1, 1000 * MS), [Some(Syndrome::TransportRetryExc)]);
    assert_eq!(bed.struck(), [(1, 3)], "once, and two retries");
}

#[test]
fn packets_are_doubled_spoilt_and_held_back() {
    for (action, direction, dropped) in [
        ("action = \"duplicate\"", "sent", None),
        ("action = \"duplicate\"", "received", None),
        ("action = \"corrupt\"", "sent", Some(1)),
        ("action = \"corrupt\"", "received", Some(0)),
        ("action = \"delay\"\ndelay = \"3ms\"", "sent", None),
        ("action = \"delay\"\ndelay = \"3ms\"", "received", None),
    ] {
        let lines = format!("on = \"packet\"\n{action}\ndirection = \"{direction}\"\nnth = 1");
        // Local ACK timeout of 4.2 ms: nothing is sent again that only comes late.
        let change = Change { timeout: Some(10), ..Change::default() };
        let mut bed = Bed::with(&fault(&lines), &change);
        bed.write(0);
        let begin = bed.p.now_ns;
        assert_eq!(bed.completions(1, 100 * MS), [None], "{lines}");
        assert!(bed.has_arrived(0), "{lines}");
        assert_eq!(bed.struck(), [(1, 1)], "{lines}");
        let is_late = bed.p.now_ns - begin >= 3 * MS;
        assert_eq!(is_late, !lines.contains("duplicate"), "{lines}: {}", bed.p.now_ns - begin);
        if let Some(nic) = dropped {
            let counters = bed.p.nics[nic].counters();
            assert_eq!(counters.dropped(DropReason::Icrc), 1, "{lines}: {counters:?}");
        }
    }
}

#[test]
fn the_port_is_down_for_a_time() {
    // Seven retries of a local ACK timeout of 17 ms.
    let change = Change { timeout: Some(12), ..Change::default() };
    let lines = "on = \"port\"\naction = \"down\"\nafter = \"10ms\"\nfor = \"20ms\"";
    let mut bed = Bed::with(&fault(lines), &change);
    bed.write(0);
    assert_eq!(bed.completions(1, 5 * MS), [None]);
    bed.p.run_for(16 * MS);
    assert_eq!(bed.p.nics[0].next_event(), Some(Event::PortDown));
    bed.write(1);
    bed.p.run_for(2 * MS);
    assert!(!bed.has_arrived(1), "the port is down");
    assert_eq!(bed.completions(1, 100 * MS), [None], "it is sent again");
    assert_eq!(bed.p.nics[0].next_event(), Some(Event::PortUp));
}

#[test]
fn a_queue_pair_and_no_other_ends_at_its_time() {
    let mut bed = Bed::new(&fault("on = \"qp\"\naction = \"error\"\nqp = 1\nafter = \"1ms\""));
    let (qp, _memory) = make_qp(&bed.p.nics[0], &attr());
    let (peer, _peer_memory) = make_qp(&bed.p.nics[1], &attr());
    connect(&qp, &peer, &Change::default());
    bed.p.run_for(2 * MS);
    assert_eq!((bed.p.a.qp.state(), qp.state()), (QpState::Err, QpState::Rts));
    assert_eq!(bed.p.nics[0].next_event(), Some(Event::QpFatal(bed.p.a.qp.qpn())));
    // Once: what is made anew lives.
    bed.p.a.qp.reset().unwrap();
    bed.p.b.qp.reset().unwrap();
    connect(&bed.p.a.qp, &bed.p.b.qp, &Change::default());
    bed.p.run_for(2 * MS);
    assert_eq!(bed.p.a.qp.state(), QpState::Rts);
}

#[test]
fn a_wqe_takes_its_queue_pair_or_the_device_with_it() {
    for (action, device) in [("qp-error", false), ("device-fatal", true)] {
        let mut bed = Bed::new(&fault(&format!("on = \"wqe\"\naction = \"{action}\"\nnth = 2")));
        let (other, _memory) = make_qp(&bed.p.nics[0], &attr());
        let (peer, _peer_memory) = make_qp(&bed.p.nics[1], &attr());
        connect(&other, &peer, &Change::default());
        bed.write(0);
        assert_eq!(bed.completions(1, 100 * MS), [None], "{action}");
        (1..3).for_each(|i| bed.write(i));
        let flushed = Some(Syndrome::WrFlush);
        assert_eq!(bed.completions(2, 100 * MS), [flushed, flushed], "{action}");
        let ended = if device { QpState::Err } else { QpState::Rts };
        assert_eq!((bed.p.a.qp.state(), other.state()), (QpState::Err, ended), "{action}");
        let events: Vec<_> = std::iter::from_fn(|| bed.p.nics[0].next_event()).collect();
        let mine = events.iter().filter(|&&e| e == Event::QpFatal(bed.p.a.qp.qpn())).count();
        assert_eq!(mine, 1, "{action}: {events:?}");
        let whose = if device { other.qpn() } else { bed.p.a.qp.qpn() };
        assert!(events.contains(&Event::QpFatal(whose)), "{action}: {events:?}");
        let told = events.iter().filter(|&&event| event == Event::DeviceFatal).count();
        assert_eq!(told, usize::from(device), "{action}: {events:?}");
    }
}

#[test]
fn a_device_ends_at_its_time() {
    let mut bed = Bed::new(&fault("on = \"device\"\naction = \"fatal\"\nafter = \"1ms\""));
    bed.write(0);
    assert_eq!(bed.completions(1, MS / 2), [None]);
    bed.p.run_for(2 * MS);
    let events: Vec<_> = std::iter::from_fn(|| bed.p.nics[0].next_event()).collect();
    assert_eq!(events[..2], [Event::QpFatal(bed.p.a.qp.qpn()), Event::DeviceFatal]);
    let nic = &bed.p.nics[0];
    let memory = &bed.p.a.memory;
    let view = View::new(memory, 0, memory.len()).unwrap();
    let refused = nic.create(&attr(), &view).map(drop).unwrap_err().to_string();
    assert!(refused.contains("a fault script has ended the device"), "{refused}");
}

#[test]
fn a_share_of_the_wqes_is_the_same_share_again() {
    let which = |seed: u64| {
        let lines = "on = \"packet\"\naction = \"drop\"\ndirection = \"sent\"\npacket = \"write\"\n\
                     share = \"30%\"";
        let mut bed = Bed::new(&format!("seed = {seed}\n{}", fault(lines)));
        let mut times = Vec::new();
        for i in 0..40 {
            bed.write(i);
            assert_eq!(bed.completions(1, 1000 * MS), [None]);
            times.push(bed.struck()[0].1);
        }
        times
    };
    let first = which(7);
    assert!((4..40).contains(&first[39]), "{first:?}");
    assert_eq!(first, which(7));
    assert_ne!(first, which(8));
}

#[test]
fn others_devices_are_left_alone() {
    let lines = "on = \"wqe\"\naction = \"qp-error\"\ndevice = 3";
    let mut bed = Bed::new(&fault(lines));
    bed.write(0);
    assert_eq!((bed.completions(1, 20 * MS), bed.struck()), (vec![None], vec![]));
}

#[test]
fn each_fault_counts_for_itself() {
    let drop = |nth| fault(&format!("on = \"cqe\"\naction = \"drop\"\nnth = {nth}"));
    let mut bed = Bed::new(&[drop(2), drop(4), drop(4)].concat());
    (0..6).for_each(|i| bed.write(i));
    let mut counters = Vec::new();
    bed.p.run_for(20 * MS);
    counters.extend(bed.p.sent().iter().map(|cqe| cqe.wqe_counter));
    assert_eq!(counters, [0, 2, 4, 5]);
    assert_eq!(bed.struck(), [(1, 1), (2, 1), (3, 0)], "the first of two strikes");
}

#[test]
fn what_one_fault_draws_moves_no_others_draws() {
    let dropped = |more: &str| {
        let share = "on = \"cqe\"\naction = \"drop\"\nshare = \"30%\"";
        let mut bed = Bed::new(&[&*fault(share), more].concat());
        let mut seen = Vec::new();
        for i in 0..40 {
            bed.write(i);
            bed.p.run_for(5 * MS);
            seen.push(bed.p.sent().len());
        }
        seen
    };
    let alone = dropped("");
    let acks = "on = \"packet\"\naction = \"duplicate\"\ndirection = \"received\"\nshare = \"50%\"";
    assert_eq!(alone, dropped(&fault(acks)));
}

/// Engines in turns: the one that meets the fault may not have the queue pairs.
#[test]
fn a_device_with_several_engines_ends_whole() {
    for (lines, fatal) in [
        ("on = \"device\"\naction = \"fatal\"\nafter = \"1ms\"", true),
        ("on = \"qp\"\naction = \"error\"\nafter = \"1ms\"", false),
    ] {
        let script: Script = format!("[[fault]]\n{lines}\n").parse().unwrap();
        let faults = Some(ScriptedFaults::new(&script, 0, None));
        let config = SoftConfig { engines: 2, faults, ..SoftConfig::new(&InProcess::new()) };
        let (nic, mut engines) = SoftNic::manual(&config).unwrap();
        let (qps, _memory): (Vec<_>, Vec<_>) = (0..4).map(|_| make_qp(&nic, &attr())).unzip();
        for (a, b) in [(0, 1), (2, 3)] {
            connect(&qps[a], &qps[b], &Change::default());
        }
        for now in (0..4).map(|n| n * MS) {
            for engine in &mut engines {
                engine.step(now);
            }
        }
        assert!(qps.iter().all(|qp| qp.state() == QpState::Err), "{lines}");
        let events: Vec<_> = std::iter::from_fn(|| nic.next_event()).collect();
        let told = events.iter().filter(|&&event| event == Event::DeviceFatal).count();
        assert_eq!((events.len(), told), (4 + told, usize::from(fatal)), "{events:?}");
    }
}

/// It waits for a queue pair that is not connected, and is made later.
#[test]
fn a_queue_pair_that_is_to_end_is_waited_for() {
    let mut bed = Bed::new(&fault("on = \"qp\"\naction = \"error\"\nqp = 2\nafter = \"1ms\""));
    bed.p.run_for(3 * MS);
    let (qp, _memory) = make_qp(&bed.p.nics[0], &attr());
    let (peer, _peer_memory) = make_qp(&bed.p.nics[1], &attr());
    bed.p.run_for(3 * MS);
    assert_eq!((qp.state(), bed.struck()), (QpState::Reset, vec![(1, 0)]));
    connect(&qp, &peer, &Change::default());
    bed.p.run_for(MS);
    assert_eq!((qp.state(), bed.struck()), (QpState::Err, vec![(1, 1)]));
    assert_eq!(bed.p.a.qp.state(), QpState::Rts);
}

/// Also where nobody looked while it was down, and to the step.
#[test]
fn a_short_outage_is_not_missed() {
    let lines = "on = \"port\"\naction = \"down\"\nafter = \"1ms\"\nfor = \"10us\"";
    let mut bed = Bed::new(&fault(lines));
    bed.p.step();
    let begin = bed.p.now_ns;
    assert!(bed.p.run_until(2 * MS, |p| p.now_ns >= begin + MS), "it naps until then");
    let events: Vec<_> = std::iter::from_fn(|| bed.p.nics[0].next_event()).collect();
    assert_eq!(events, [Event::PortDown]);
    assert_eq!(bed.p.now_ns, begin + MS, "the engine says when it wants the next step");
    bed.p.now_ns += 3 * MS;
    bed.p.step();
    assert_eq!(bed.p.nics[0].next_event(), Some(Event::PortUp));
}
