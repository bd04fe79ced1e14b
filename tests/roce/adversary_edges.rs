//! Payloads that are sent before they have come: what the adversary says of them, and of what lies beside them.

use crate::adversary::{LONG_NS, nics, pair, silent};
use crate::dc::{Dc, Initiator};
use crate::queue_pairs::{Buf, Pair, attr, pattern, syndromes};
use bellpush::nic::soft::{AdversaryKind, Finding, InProcess, SoftConfig, SoftNic};
use bellpush::nic::{Access, Change, Mtu, QueuePair};
use bellpush::wire::Rkey;
use bellpush::wire::cqe::Syndrome;
use bellpush::wire::wqe::{Flags, Opcode, Operands, SendWr};

const SEEDS: std::ops::RangeInclusive<u64> = 1..=4;

fn write<'a>(to: &Buf, offset: u64) -> SendWr<'a> {
    SendWr::new(Opcode::RdmaWrite).to(to.at(offset), to.mr.rkey)
}

fn quiet(wr: SendWr<'_>) -> SendWr<'_> {
    SendWr { flags: Flags::default(), ..wr }
}

fn complete(p: &mut Pair) {
    let done = p.run_until(LONG_NS, |p| p.a.host.poll_send().unwrap().is_some());
    assert!(done, "nothing completes");
}

fn found(p: &Pair) -> Finding {
    let all = p.nics[0].findings();
    let [it] = &all[..] else { panic!("{all:?}") };
    assert_eq!((it.kind, it.qpn), (AdversaryKind::Payload, p.a.qp.qpn()), "{it}");
    assert!(p.nics[1].findings().is_empty());
    it.clone()
}

#[test]
fn what_is_fetched_is_not_to_be_sent_before_it_is_there() {
    for seed in SEEDS {
        let mut p = pair(seed, ",payload");
        // Of the read's second entry the last bytes, as a second entry.
        let back = [p.a.buf.data(0, 700), p.a.buf.data(2000, 800)];
        let wr = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(0), p.b.buf.mr.rkey);
        p.a.host.send(&quiet(wr.payload(&back))).unwrap();
        let on = [p.a.buf.data(5000, 100), p.a.buf.data(2799, 50)];
        p.a.host.send(&write(&p.b.buf, 4000).payload(&on)).unwrap();
        complete(&mut p);
        let it = found(&p);
        assert_eq!((it.wqe.is_some(), it.behind), (true, Some(0)), "{it}");
        assert_eq!((it.address, it.bytes), (p.a.buf.at(2799).0, 50), "{it}");
        assert!(it.to_string().contains("has yet to write (WQE 0x0); set the fence flag"), "{it}");

        let mut p = pair(seed, ",payload");
        let old = [p.a.buf.data(1000, 8)];
        let atomic = Some(Operands { swap_add: 1, compare: 0 });
        let wr = SendWr { atomic, ..SendWr::new(Opcode::AtomicFa) };
        p.a.host.send(&quiet(wr.to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&old))).unwrap();
        p.a.host.send(&write(&p.b.buf, 4000).payload(&old)).unwrap();
        complete(&mut p);
        assert_eq!(found(&p).behind, Some(0));
    }
}

/// Of B's WRITE to A's memory some bytes have landed; A sends all of them.
#[test]
fn what_arrives_is_not_to_be_sent_before_it_is_there() {
    for seed in SEEDS {
        let mut p = half_arrived(seed);
        let on = [p.a.buf.data(0, 3000)];
        p.a.host.send(&write(&p.b.buf, 0).payload(&on)).unwrap();
        complete(&mut p);
        let it = found(&p);
        assert_eq!((it.wqe, it.behind), (Some(0), None), "{it}");
        assert_eq!((it.address, it.bytes), (p.a.buf.at(0).0, 3000), "{it}");
        assert!(it.seen.contains("yet to arrive"), "{it}");
    }
}

/// A pair of which B puts bytes into A's memory that have landed in part.
fn half_arrived(seed: u64) -> Pair {
    let small = Change { path_mtu: Mtu::new(4096), ..Change::default() };
    let mut p = Pair::of(nics(&format!("{seed},payload,writes")), &attr(), &attr(), &small);
    let access = Access { relaxed_order: true, ..Access::ALL };
    let of = &p.a.buf;
    let mem = of.view.clone();
    let mr = bellpush::nic::Nic::register(&*p.nics[0], std::sync::Arc::new(mem), of.at(0), access);
    let mr = mr.unwrap();
    p.b.buf.put(4096, &pattern(3000, seed | 1));
    let payload = [p.b.buf.data(4096, 3000)];
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.a.buf.at(0), mr.rkey).payload(&payload);
    p.b.host.send(&wr).unwrap();
    let some = |p: &mut Pair| p.a.buf.get(0, 3000).iter().any(|&byte| byte != 0);
    assert!(p.run_until(LONG_NS, some), "nothing comes");
    p
}

#[test]
fn memory_beside_what_is_on_its_way_may_be_sent() {
    for seed in SEEDS {
        let mut p = half_arrived(seed);
        let back = [p.a.buf.data(5000, 100), p.a.buf.data(5200, 100)];
        let wr = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(0), p.b.buf.mr.rkey);
        p.a.host.send(&quiet(wr.payload(&back))).unwrap();
        let beside = [p.a.buf.data(3000, 2000), p.a.buf.data(5100, 100), p.a.buf.data(5300, 8)];
        p.a.host.send(&write(&p.b.buf, 0).payload(&beside)).unwrap();
        complete(&mut p);
        silent(&p);
        // And all of it, once that has come.
        let all = [p.a.buf.data(0, 5300)];
        assert!(p.run_until(LONG_NS, |p| p.b.host.poll_send().unwrap().is_some()));
        p.a.host.send(&write(&p.b.buf, 0).payload(&all)).unwrap();
        complete(&mut p);
        silent(&p);
    }
}

/// Two NICs in one process, each with such an adversary.
fn in_process(seed: u64) -> Pair {
    let (link, mut engines) = (InProcess::new(), Vec::new());
    let nics = [0, 1].map(|_| {
        let adversary = Some(format!("{seed},payload").parse().unwrap());
        let config = SoftConfig { adversary, ..SoftConfig::new(&link) };
        let (nic, own) = SoftNic::manual(&config).unwrap();
        engines.extend(own);
        nic
    });
    Pair::of((nics, engines), &attr(), &attr(), &Change::default())
}

#[test]
fn what_a_read_that_failed_does_not_fetch_may_be_sent() {
    for mut p in SEEDS.flat_map(|seed| [pair(seed, ",payload"), in_process(seed)]) {
        let stray = Rkey(p.b.buf.mr.rkey.0 ^ 0x100);
        // The first is refused, the second flushed.
        for at in [0, 1000] {
            let back = [p.a.buf.data(at, 100)];
            let wr = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(0), stray).payload(&back);
            p.a.host.send(&wr).unwrap();
            complete(&mut p);
            p.a.host.send(&write(&p.b.buf, 0).payload(&back)).unwrap();
            complete(&mut p);
        }
        silent(&p);
    }
}

#[test]
fn what_a_read_of_a_failed_stream_does_not_fetch_may_be_sent_by_another() {
    for seed in SEEDS {
        let mut dc = Dc::on(nics(&format!("{seed},payload")));
        dc.from.push(Initiator::with(&dc.nics[0], |qp| qp.set_streams(4)));
        let from = dc.from.len() - 1;
        let (to, at, rkey) = (dc.target(0), dc.to[0].buf.at(0), dc.to[0].buf.mr.rkey);
        let back = [dc.buf.data(0, 100)];
        let mut post = |opcode, stream, rkey| {
            let wr = SendWr { stream, ..SendWr::new(opcode) }.to(at, rkey).payload(&back);
            dc.post(from, to, &wr);
            dc.run(1_000_000);
            syndromes(&dc.sent(from))
        };
        let refused = post(Opcode::RdmaRead, 1, Rkey(rkey.0 ^ 0x100));
        assert_eq!(refused, [Some(Syndrome::RemoteAccess)]);
        assert_eq!(post(Opcode::RdmaWrite, 2, rkey), [None]);
        let findings = dc.nics[0].findings();
        assert!(findings.is_empty(), "{findings:?}");
    }
}
