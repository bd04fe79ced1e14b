//! Hostile traces, and what a queue pair's earlier life and other services leave in one.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use bellpush::nic::NicAddress;
use bellpush::wire::wqe::{Datagram, Sge};

use super::super::ends::{CqEnd, Ends, ProgramEnd, QueueEnd};
use super::super::explain::lines;
use super::*;

/// More than any of these takes, and far less than a square of what there is would.
const PATIENCE: Duration = Duration::from_secs(20);
const MANY: u32 = 200_000;

#[test]
fn as_many_queues_as_a_file_holds_are_explained() {
    let mut ends = Ends::new();
    for nth in 0..MANY {
        let pid = 1 + nth % 2;
        // Each has a peer that is another's, and CQs that no queue pair before it has.
        let queue = QueueEnd { pid, qpn: nth, peer: Some(MANY + nth), ..QueueEnd::default() };
        let cqs = [nth, nth + MANY];
        ends.queues.push(QueueEnd { cqs, answered: true, state: "RTS".into(), ..queue });
        let written = u64::from(nth == MANY - 1);
        let cq = CqEnd { pid, number: nth, written, taken: Some(0), ..CqEnd::default() };
        ends.cqs.push(cq);
        ends.programs.push(ProgramEnd { pid, ..ProgramEnd::default() });
    }
    let since = Instant::now();
    let lines = lines(&ends);
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    let queues = lines.iter().filter(|line| line.starts_with("QP ")).count();
    assert_eq!(queues, MANY as usize, "each once");
    assert!(lines.iter().any(|line| line.contains("1 CQE that was not polled")));
}

/// A NIC with a trace, without a peer.
fn alone(events: bool, counts: bool) -> (Arc<Tracing>, Arc<SoftNic>, Engine) {
    let tracing = Tracing::new(events, counts).unwrap();
    let (nic, engine) = opened(&tracing);
    (tracing, nic, engine)
}

/// A NIC that is device 0 of a trace, which may have more of that number.
fn opened(tracing: &Arc<Tracing>) -> (Arc<SoftNic>, Engine) {
    let link = ShmNet::anonymous(false).unwrap().attach_free().unwrap();
    let config = SoftConfig { trace: Some((tracing.clone(), 0)), ..SoftConfig::default() };
    SoftNic::manual_on(&config, Box::new(link)).unwrap()
}

#[test]
fn as_many_events_as_a_device_has_are_drawn() {
    let (tracing, nic, _engine) = alone(true, false);
    let tracer = nic.tracer().unwrap();
    // WQEs that are taken and sent, and of which none is ever complete.
    for nth in 0..EVENTS as u64 / 2 {
        tracer.mark(Kind::Fetched, 7, nth as u16, [nth, 8 | 1 << 15 | 1 << 16]);
        tracer.mark(Kind::Sent, 7, nth as u16, [9, nth & 0xff_ffff]);
    }
    let since = Instant::now();
    let trace = timeline(&tracing.devices(true));
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    let counter = trace.events.iter().rfind(|event| event.ph == 'C').unwrap();
    assert_eq!(counter.args["wqes"], 1 << 16, "of each index one");
}

#[test]
fn a_life_before_a_reset_is_over() {
    let mut bed = Bed::new("");
    for _ in 0..3 {
        bed.write(Flags::SIGNALLED);
    }
    bed.steps(4);
    bed.send();
    bed.steps(4);
    bed.qps[0].reset().unwrap();
    bed.qps[0].connect(bed.qps[1].address()).unwrap();
    bed.steps(40);
    let (own, _) = bed.said();
    assert!(own.contains("RTS") && !own.contains("doorbell seen"), "{own}");
    let trace = bed.trace();
    is_well_formed(&trace);
    let sent = of(&trace, "wqe").into_iter().find(|wqe| wqe.name == "SEND").unwrap();
    assert_eq!(sent.args.get("given_up"), Some(&true.into()), "{sent:?}");
    assert!(!sent.args.contains_key("unfinished"), "{sent:?}");
    let reset = trace.events.iter().find(|event| event.name == "RTS to RESET").unwrap();
    assert!((sent.ts + sent.dur.unwrap() - reset.ts).abs() < 0.001, "{sent:?} {reset:?}");
    // What is written there afterwards, and not announced, is of this life.
    let queues = bed.qps[0].queues();
    bed.sq = HostSq::new(bed.qps[0].qpn(), queues);
    bed.sq.post(&SendWr::new(Opcode::RdmaRead).to(Iova(0), bed.mr.rkey)).unwrap();
    bed.steps(4);
    let (own, _) = bed.said();
    assert!(own.contains("1 WQE posted, doorbell seen for 0"), "{own}");
}

#[test]
fn arrows_lead_to_receivers_of_uc_and_ud() {
    for kind in [QpType::Uc, QpType::Ud] {
        let mut bed = Bed::typed("", (true, true), kind);
        let region = HostMem::alloc(4096).unwrap();
        let view = View::new(&region, 0, region.len()).unwrap();
        let mr = bed.nics[1].register(Arc::new(view), Iova(0), Access::ALL).unwrap();
        let mut rq = HostRq::new(bed.qps[1].queues());
        let payload = [Piece::Inline(&DATA)];
        let NicAddress::Ip(to) = bed.nics[1].address().0 else { panic!("an address") };
        let to = match to {
            IpAddr::V4(four) => four.to_ipv6_mapped(),
            IpAddr::V6(six) => six,
        };
        let datagram = Datagram::new(to, bed.qps[1].qpn(), 1 << 31);
        let datagram = (kind == QpType::Ud).then_some(datagram);
        for _ in 0..2 {
            rq.post(&[Sge { addr: Iova(0), bytes: 200, lkey: mr.lkey }]).unwrap();
            let send = SendWr { datagram, flags: Flags::SIGNALLED, ..SendWr::new(Opcode::Send) };
            bed.sq.post(&send.payload(&payload)).unwrap();
            bed.sq.ring().unwrap();
            bed.steps(4);
            bed.sq.retire(bed.cq.poll().unwrap().expect("it is sent").wqe_counter);
        }
        let trace = bed.trace();
        is_well_formed(&trace);
        let placed = of(&trace, "in");
        assert_eq!(placed.len(), 2, "{kind:?}");
        assert!(placed.iter().all(|it| it.args["bytes"] == DATA.len()), "{placed:?}");
        let arrows = trace.events.iter().filter(|event| event.ph == 's').count();
        assert_eq!(arrows, 2, "{kind:?}");
    }
}

/// Queue pairs beyond those that have counters cost no more than the others, and are counted.
#[test]
fn counters_of_many_queue_pairs() {
    let (tracing, nic, _engine) = alone(false, true);
    let tracer = nic.tracer().unwrap();
    (0..2000).for_each(|qpn| tracer.mark(Kind::Done, qpn, 0, [8, 100]));
    let [device] = &tracing.devices(false)[..] else { panic!("one device") };
    assert_eq!((device.qps.len(), device.lost[2]), (2000, 0), "more than 512");
    let since = Instant::now();
    (0..MANY).for_each(|qpn| tracer.mark(Kind::Done, qpn, 0, [8, 100]));
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    let [device] = &tracing.devices(false)[..] else { panic!("one device") };
    let counted: u64 = device.qps.iter().map(|qp| qp.of(Kind::Done)).sum();
    assert_eq!(counted + device.lost[2], 2000 + u64::from(MANY));
    let text = super::super::stats::text(std::slice::from_ref(device), 0);
    let line = format!("queue pairs beyond those that have counters: events {}", device.lost[2]);
    assert!(text.contains(&line), "{line}");
}

/// A device that a program closes and opens again has a place of its own each time, and one name.
#[test]
fn a_device_that_is_opened_again_counts_on() {
    let (tracing, first, _engine) = alone(false, true);
    first.tracer().unwrap().mark(Kind::Done, 7, 0, [8, 100]);
    let (again, _engine_of_again) = opened(&tracing);
    (0..2).for_each(|index| again.tracer().unwrap().mark(Kind::Done, 7, index, [8, 10]));
    again.tracer().unwrap().mark(Kind::Done, 9, 0, [8, 1]);
    let devices = tracing.devices(false);
    assert_eq!(devices.len(), 2);
    let metrics = super::super::stats::prometheus(&devices, 0);
    let samples: Vec<_> = metrics.lines().filter_map(|line| line.split_once("} ")).collect();
    let names: std::collections::BTreeSet<_> = samples.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), samples.len(), "{metrics}");
    for (family, qp, sum) in
        [("wqes_done", "0x7", "3"), ("bytes", "0x7", "120"), ("bytes", "0x9", "1")]
    {
        let (head, tail) = (format!("bellpush_qp_{family}_total{{"), format!(",qp=\"{qp}\""));
        let is = |name: &str| name.starts_with(&head) && name.ends_with(&tail);
        let found = samples.iter().find(|(name, _)| is(name)).map(|(_, sum)| *sum);
        assert_eq!(found, Some(sum), "{family} of {qp} in {metrics}");
    }
}
