//! What queue pairs tell of their moves, and when: drained send queues, the last receive of a shared queue.

use std::sync::atomic::Ordering;

use crate::queue_pairs::{
    self, Buf, Pair, attr, bad_key, connect, inline, make_typed, pattern, syndromes,
};
use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::{DropReason, Event, SoftNic, SrqAttr};
use bellpush::nic::{Access, Change, Connection, Mtu, QpAttr, QpState, QpType, QueuePair};
use bellpush::wire::cqe::Syndrome;
use bellpush::wire::doorbell::{DBR_RCV_OFFSET, dbr_word};
use bellpush::wire::wqe::{Opcode, Operands, Piece, SendWr, Sge};
use bellpush::wire::{Iova, Rkey};

fn both() -> [Pair; 2] {
    [Pair::new(&attr()), Pair::on_packets("", &attr(), &attr(), &Change::default())]
}

fn events(nic: &SoftNic) -> Vec<Event> {
    std::iter::from_fn(|| nic.next_event()).collect()
}

#[test]
fn a_drained_send_queue_is_told_of_once_for_each_time_that_it_was_asked_for() {
    for mut p in both() {
        let qp = p.a.qp.clone();
        let told = [Event::SqDrained(qp.qpn())];
        let asked = Change { sqd_event: Some(true), ..Change::default() };
        qp.modify(QpState::Sqd, &asked).unwrap();
        p.settle();
        assert_eq!(events(&p.nics[0]), told);
        // Attributes that change meanwhile drain nothing.
        qp.modify(QpState::Sqd, &Change { timeout: Some(9), ..Change::default() }).unwrap();
        p.settle();
        assert_eq!(events(&p.nics[0]), [], "it had drained before");
        // The next time nobody asks.
        qp.modify(QpState::Rts, &Change::default()).unwrap();
        assert_eq!(syndromes(&p.send(&SendWr::new(Opcode::Nop))), [None]);
        qp.modify(QpState::Sqd, &Change::default()).unwrap();
        p.settle();
        assert_eq!(events(&p.nics[0]), [], "it was not asked for");
        qp.modify(QpState::Rts, &Change::default()).unwrap();
        qp.modify(QpState::Sqd, &asked).unwrap();
        p.settle();
        assert_eq!(events(&p.nics[0]), told);
    }
}

#[test]
fn the_last_wqe_of_a_message_that_has_begun_is_told_behind_its_cqe() {
    for by in [QpType::Rc, QpType::Uc] {
        let mut p = Pair::on_packets("", &attr(), &attr(), &Change::default());
        let mem = HostMem::alloc(8192).unwrap();
        let (ring, dbr) = (View::new(&mem, 0, 512).unwrap(), View::new(&mem, 4096, 8).unwrap());
        let pd = p.nics[1].default_pd().clone();
        let srq = SrqAttr { pd, ring: ring.clone(), stride_log: 6, dbr: dbr.clone(), limit: 0 };
        let srq = p.nics[1].create_srq(&srq).unwrap();
        let to = p.b.buf.sge(0, 100_000);
        let mut wqe = [0; 64];
        wqe[16..20].copy_from_slice(&to.bytes.to_be_bytes());
        wqe[20..24].copy_from_slice(&to.lkey.0.to_be_bytes());
        wqe[24..32].copy_from_slice(&to.addr.0.to_be_bytes());
        wqe[36..40].copy_from_slice(&0x100u32.to_be_bytes());
        ring.write(0, &wqe).unwrap();
        dbr.store_u32(DBR_RCV_OFFSET, dbr_word(1), Ordering::Release).unwrap();
        let (a, _a) = make_typed(&p.nics[0], by, &attr(), None);
        let none = QpAttr { rq_wqes: 0, ..attr() };
        let (b, _b) = make_typed(&p.nics[1], by, &none, Some(srq));
        connect(&a, &b, &Change { path_mtu: Mtu::new(256), ..Change::default() });
        p.a.buf.put(0, &pattern(100_000, 3));
        let (mut sender, mut receiver) = (HostQp::new(&*a), HostQp::new(&*b));
        sender.send(&SendWr::new(Opcode::Send).payload(&[p.a.buf.data(0, 100_000)])).unwrap();
        // A part of it has come.
        p.engines[0].step(1_000);
        p.engines[1].step(1_000);
        assert_eq!(p.b.buf.get(0, 100), pattern(100, 3));
        assert!(receiver.poll_recv().unwrap().is_none());
        b.modify(QpState::Err, &Change::default()).unwrap();
        let (mut told, mut flushed) = (false, false);
        for now in 2..20 {
            told |= events(&p.nics[1]).contains(&Event::LastWqe(b.qpn()));
            let cqe = receiver.poll_recv().unwrap();
            flushed |= cqe.is_some_and(|it| it.syndrome == Syndrome::WrFlush as u8);
            assert!(!told || flushed, "{by:?}: a receive was still to come");
            p.engines[1].step(now * 1_000);
        }
        assert!(told && flushed, "{by:?}: {told}, {flushed}");
    }
}

#[test]
fn the_rnr_tries_of_a_connection_are_those_that_it_was_given() {
    for mut p in both() {
        for (tries, waits) in [(0, 1), (3, 4)] {
            for qp in [&p.a.qp, &p.b.qp] {
                qp.reset().unwrap();
            }
            let (to_a, to_b) = (p.a.qp.address(), p.b.qp.address());
            for (qp, local, peer) in [(&p.a.qp, to_a, to_b), (&p.b.qp, to_b, to_a)] {
                let mut connection = Connection::new(local, peer);
                connection.with.rnr_retry = Some(tries);
                connection.with.min_rnr_timer = Some(1);
                qp.connect_with(&connection).unwrap();
            }
            p.a.host.begin_again(&*p.a.qp);
            let before = p.nics[0].counters().rnr_waits;
            p.a.host.send(&SendWr::new(Opcode::Send).payload(&inline(b"x"))).unwrap();
            let mut cqes = Vec::new();
            assert!(
                p.run_until(100_000_000, |p| {
                    cqes.extend(p.sent());
                    !cqes.is_empty()
                }),
                "{tries} tries do not end"
            );
            assert_eq!(syndromes(&cqes), [Some(Syndrome::RnrRetryExc)]);
            assert_eq!(p.nics[0].counters().rnr_waits - before, waits);
        }
    }
}

#[test]
fn an_empty_access_needs_the_right_of_its_queue_pair_too() {
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead] {
        for mut p in both() {
            let none = Change { access: Some(Access::NONE), ..Change::default() };
            let wr = SendWr::new(opcode).to(p.b.buf.at(0), p.b.buf.mr.rkey);
            assert_eq!(syndromes(&p.send(&wr)), [None], "{opcode:?}: control");
            p.b.qp.modify(QpState::Rts, &none).unwrap();
            let told = [Some(Syndrome::RemoteInvalReq)];
            assert_eq!(syndromes(&p.send(&wr)), told, "{opcode:?}");
        }
    }
}

#[test]
fn unreliable_connections_neither_read_nor_have_atomics_on_any_link() {
    for opcode in [Opcode::RdmaRead, Opcode::AtomicFa, Opcode::AtomicCs] {
        for p in both() {
            let [(a, _a), (b, _b)] =
                [0, 1].map(|i| make_typed(&p.nics[i], QpType::Uc, &attr(), None));
            connect(&a, &b, &Change::default());
            let (mut p, mut host) = (p, HostQp::new(&*a));
            let payload = [p.a.buf.data(0, 8)];
            let atomic = Some(Operands { swap_add: 1, compare: 0 });
            let wr = SendWr { atomic, ..SendWr::new(opcode) };
            let to = (p.b.buf.at(0), p.b.buf.mr.rkey);
            host.send(&wr.to(to.0, to.1).payload(&payload)).unwrap();
            p.settle();
            let cqe = host.poll_send().unwrap().unwrap();
            assert_eq!(syndromes(&[cqe]), [Some(Syndrome::LocalQpOp)], "{opcode:?}");
            assert_eq!(p.b.buf.get(0, 8), [0; 8]);
        }
    }
}

/// What an unreliable connection's peer refuses is dropped there: its sender hears of nothing, and both go on.
#[test]
fn unreliable_connections_hear_of_no_refusal_on_any_link() {
    for (link, mut p) in ["in process", "packets"].into_iter().zip(both()) {
        let [(a, _a), (b, _b)] = [0, 1].map(|i| make_typed(&p.nics[i], QpType::Uc, &attr(), None));
        connect(&a, &b, &Change::default());
        let (mut sender, mut receiver) = (HostQp::new(&*a), HostQp::new(&*b));
        let none = Buf::new(&p.nics[1], 64, 0, Access::NONE);
        let (at, key) = (p.b.buf.at(0), p.b.buf.mr.rkey);
        let data = [p.a.buf.data(0, 8)];
        p.a.buf.put(0, &[7; 8]);
        let imm = SendWr { imm: 5, ..SendWr::new(Opcode::RdmaWriteImm) };
        let refused = [
            SendWr::new(Opcode::RdmaWrite).to(Iova(0), Rkey(bad_key().0)),
            SendWr::new(Opcode::RdmaWrite).to(Iova(0), none.mr.rkey),
            SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(queue_pairs::BUF_BYTES as u64), key),
            SendWr::new(Opcode::Send), // nobody has posted a receive
            SendWr { imm: 5, ..SendWr::new(Opcode::SendImm) },
            imm.to(at, key),
        ];
        for (i, wr) in refused.iter().enumerate() {
            sender.send(&wr.payload(&data)).unwrap();
            p.settle();
            let cqe = sender.poll_send().unwrap().expect("it is complete");
            assert_eq!(syndromes(&[cqe]), [None], "{link}, {i}");
        }
        assert_eq!([a.state(), b.state()], [QpState::Rts; 2], "{link}");
        assert_eq!(p.b.buf.get(0, 8), [0; 8], "{link}");
        let drops = p.nics[1].counters();
        assert_eq!(
            (drops.dropped(DropReason::Refused), drops.dropped(DropReason::NoReceive)),
            (3, 3),
            "{link}"
        );
        assert_eq!((events(&p.nics[0]), events(&p.nics[1])), (vec![], vec![]), "{link}");

        // A refused immediate takes no receive: the next one has it.
        receiver.rq.post(&[p.b.buf.sge(64, 4)]).unwrap();
        for to in [(at, Rkey(bad_key().0)), (at, key)] {
            sender.send(&imm.to(to.0, to.1).payload(&data)).unwrap();
            p.settle();
            assert_eq!(syndromes(&[sender.poll_send().unwrap().unwrap()]), [None], "{link}");
        }
        let cqe = receiver.poll_recv().unwrap().expect("the second took it");
        assert_eq!((syndromes(&[cqe]), cqe.imm), (vec![None], 5), "{link}");
        assert_eq!(receiver.poll_recv().unwrap(), None, "{link}");
        assert_eq!(p.b.buf.get(0, 8), [7; 8], "{link}");

        // A receive that is too short is the receiver's own mistake: the sender hears of that neither.
        receiver.rq.post(&[p.b.buf.sge(64, 4)]).unwrap();
        sender.send(&SendWr::new(Opcode::Send).payload(&data)).unwrap();
        p.settle();
        assert_eq!(syndromes(&[sender.poll_send().unwrap().unwrap()]), [None], "{link}");
        let cqe = receiver.poll_recv().unwrap().expect("it failed");
        assert_eq!(syndromes(&[cqe]), [Some(Syndrome::LocalLength)], "{link}");
        assert_eq!([a.state(), b.state()], [QpState::Rts, QpState::Err], "{link}");
        assert_eq!(events(&p.nics[1]), [], "{link}");
        // And that nobody is there any more.
        sender.send(&SendWr::new(Opcode::RdmaWrite).to(at, key).payload(&data)).unwrap();
        p.settle();
        assert_eq!(syndromes(&[sender.poll_send().unwrap().unwrap()]), [None], "{link}");
        assert_eq!(p.nics[1].counters().dropped(DropReason::State), 1, "{link}");

        // Its own mistakes are a sender's as ever.
        let bad = [Piece::Data(Sge { lkey: bad_key(), ..p.a.buf.sge(0, 8) })];
        sender.send(&SendWr::new(Opcode::RdmaWrite).to(at, key).payload(&bad)).unwrap();
        p.settle();
        let cqe = sender.poll_send().unwrap().unwrap();
        assert_eq!(syndromes(&[cqe]), [Some(Syndrome::LocalProt)], "{link}");
        assert_eq!(a.state(), QpState::Err, "{link}");
    }
}

/// A receive may be longer than its region where the message is not.
#[test]
fn of_a_receive_only_what_is_written_must_be_allowed_on_any_link() {
    for (link, mut p) in ["in process", "packets"].into_iter().zip(both()) {
        let end = queue_pairs::BUF_BYTES as u64;
        for (bytes, told) in [(8, None), (9, Some(Syndrome::LocalProt))] {
            p.b.host.rq.post(&[p.b.buf.sge(64, 4), p.b.buf.sge(end - 4, 64)]).unwrap();
            p.a.buf.put(0, &[7; 9]);
            let sent = p.send(&SendWr::new(Opcode::Send).payload(&[p.a.buf.data(0, bytes)]));
            let got = syndromes(&p.received());
            assert_eq!(got, [told], "{link}, {bytes}");
            let heard = told.map(|_| Syndrome::RemoteOp);
            assert_eq!(syndromes(&sent), [heard], "{link}, {bytes}");
        }
        assert_eq!(p.b.buf.get(end as usize - 4, 4), [7; 4], "{link}");
    }
}
