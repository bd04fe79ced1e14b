//! What the software NIC does with requests that it or the peer must refuse.

use crate::queue_pairs::{self, Buf, End, Pair, attr, bad_key, inline, make_qp, syndromes};
use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic, Vendor};
use bellpush::nic::{
    Access, Change, Connection, Nic, NicAddress, NicError, QpAddress, QpAttr, QpState, QpType,
    QueuePair,
};
use bellpush::wire::cqe::{CqeOpcode, Syndrome};
use bellpush::wire::wqe::{Flags, Opcode, Operands, Piece, SendWr, Sge};
use bellpush::wire::{Iova, Rkey};

/// Sends one request and expects the error, A in ERR, and B's buffer untouched.
fn fails(p: &mut Pair, wr: &SendWr<'_>, syndrome: Syndrome, vendor: Vendor) {
    let before = p.b.buf.get(0, queue_pairs::BUF_BYTES);
    let cqes = p.send(wr);
    assert_eq!(syndromes(&cqes), [Some(syndrome)], "{wr:?}");
    assert_eq!(cqes[0].opcode, CqeOpcode::ReqErr);
    assert_eq!(cqes[0].vendor_err, vendor as u8, "{wr:?}");
    assert_eq!(p.a.qp.state(), QpState::Err);
    assert_eq!(p.b.buf.get(0, queue_pairs::BUF_BYTES), before);
    assert_eq!(p.nics[0].counters().error(syndrome), 1);
}

#[test]
fn bad_local_entries_are_local_protection_errors() {
    let bytes = queue_pairs::BUF_BYTES as u32;
    for (vendor, make) in [
        (
            Vendor::Key,
            (|_: &Pair| Sge { addr: Iova(0), lkey: bad_key(), bytes: 8 }) as fn(&Pair) -> Sge,
        ),
        (Vendor::Range, |p| p.a.buf.sge(queue_pairs::BUF_BYTES as u64 - 7, 8)),
        (Vendor::Range, |p| Sge { addr: Iova(queue_pairs::A_IOVA - 1), ..p.a.buf.sge(0, 8) }),
        (Vendor::Range, |p| Sge { addr: Iova(u64::MAX - 3), ..p.a.buf.sge(0, 8) }),
        (Vendor::Range, |p| p.a.buf.sge(0, 1 << 30)),
    ] {
        let mut p = Pair::new(&attr());
        let payload = [p.a.buf.data(0, 8), Piece::Data(make(&p))];
        let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey);
        let wr = wr.payload(&payload);
        let flags = Flags::default(); // an error completes visibly, signalled or not
        fails(&mut p, &SendWr { flags, ..wr }, Syndrome::LocalProt, vendor);
    }
    let mut p = Pair::new(&attr());
    let payload = [p.a.buf.data(0, bytes)];
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    assert_eq!(p.send(&wr)[0].opcode, CqeOpcode::Req, "control: all of the region is allowed");
}

#[test]
fn results_need_a_region_that_may_be_written() {
    for opcode in [Opcode::RdmaRead, Opcode::AtomicFa, Opcode::AtomicCs] {
        let mut p = Pair::new(&attr());
        let ro = Buf::new(&p.nics[0], 64, 0, Access { local_write: false, ..Access::ALL });
        let payload = [ro.data(0, 8)];
        let atomic = Some(Operands { swap_add: 1, compare: 0 });
        let wr = SendWr { atomic, ..SendWr::new(opcode) };
        let wr = wr.to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
        fails(&mut p, &wr, Syndrome::LocalProt, Vendor::Right);
    }
}

#[test]
fn bad_remote_access_fails_both_ends() {
    let ops = [Opcode::RdmaWrite, Opcode::RdmaRead, Opcode::AtomicFa, Opcode::AtomicCs];
    for opcode in ops {
        for case in 0..4 {
            let mut p = Pair::new(&attr());
            let none = Buf::new(&p.nics[1], 64, 0, Access::NONE);
            let gone = Buf::new(&p.nics[1], 64, 0, Access::ALL);
            p.nics[1].deregister(gone.mr).unwrap();
            let (to, rkey, vendor) = match case {
                0 => (Iova(0), Rkey(bad_key().0), Vendor::Key),
                1 => (Iova(0), none.mr.rkey, Vendor::Right),
                2 => (p.b.buf.at(queue_pairs::BUF_BYTES as u64), p.b.buf.mr.rkey, Vendor::Range),
                _ => (Iova(0), gone.mr.rkey, Vendor::Key),
            };
            let payload = [p.a.buf.data(0, 8)];
            let atomic = Some(Operands { swap_add: 1, compare: 0 });
            let wr = SendWr { atomic, ..SendWr::new(opcode) }.to(to, rkey).payload(&payload);
            fails(&mut p, &wr, Syndrome::RemoteAccess, vendor);
            assert_eq!(p.b.qp.state(), QpState::Err);
        }
    }
}

#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    let mut p = Pair::new(&attr());
    let payload = [p.a.buf.data(0, 8)];
    let wr = SendWr::new(Opcode::AtomicFa).to(p.b.buf.at(4), p.b.buf.mr.rkey).payload(&payload);
    fails(&mut p, &wr, Syndrome::RemoteInvalReq, Vendor::Misaligned);
    // The address is aligned here, the memory behind it is not.
    let mut p = Pair::new(&attr());
    let odd = Buf::new(&p.nics[1], 64, 4, Access::ALL);
    let payload = [p.a.buf.data(0, 8)];
    let wr = SendWr::new(Opcode::AtomicFa).to(Iova(8), odd.mr.rkey).payload(&payload);
    fails(&mut p, &wr, Syndrome::RemoteInvalReq, Vendor::Misaligned);
}

#[test]
fn a_send_longer_than_its_receive_fails_both_ends() {
    let mut p = Pair::new(&attr());
    p.b.host.rq.post(&[p.b.buf.sge(0, 4), p.b.buf.sge(8, 4)]).unwrap();
    p.b.host.rq.post(&[]).unwrap();
    let payload = inline(&[1; 9]);
    let wr = SendWr::new(Opcode::Send).payload(&payload);
    fails(&mut p, &wr, Syndrome::RemoteInvalReq, Vendor::Length);
    let got = syndromes(&p.received());
    assert_eq!(got, [Some(Syndrome::LocalLength), Some(Syndrome::WrFlush)]);
    assert_eq!(p.nics[1].next_event(), None, "the CQE has told it");
}

#[test]
fn a_receive_into_what_may_not_be_written_fails_both_ends() {
    for case in 0..3 {
        let mut p = Pair::new(&attr());
        let ro = Buf::new(&p.nics[1], 64, 0, Access::NONE);
        let bad = match case {
            0 => ro.sge(0, 8),
            1 => Sge { lkey: bad_key(), ..ro.sge(0, 8) },
            _ => p.b.buf.sge(queue_pairs::BUF_BYTES as u64 - 4, 8),
        };
        // The first entry is good, but nothing moves when any is bad.
        p.b.host.rq.post(&[p.b.buf.sge(0, 8), bad]).unwrap();
        let payload = inline(&[1; 16]);
        let vendor = [Vendor::Right, Vendor::Key, Vendor::Range][case];
        fails(&mut p, &SendWr::new(Opcode::Send).payload(&payload), Syndrome::RemoteOp, vendor);
        assert_eq!(syndromes(&p.received()), [Some(Syndrome::LocalProt)]);
    }
}

#[test]
fn an_empty_receive_queue_is_tried_again_as_often_as_asked() {
    for (rnr_retry, tries) in [(0u8, 1u64), (1, 2), (6, 7)] {
        let mut p = Pair::new(&QpAttr { rnr_retry, ..attr() });
        p.a.host.send(&SendWr::new(Opcode::Send)).unwrap();
        p.run_for(2_000_000);
        assert_eq!(syndromes(&p.sent()), [Some(Syndrome::RnrRetryExc)]);
        assert_eq!(p.nics[0].counters().rnr_waits, tries);
        assert_eq!(p.b.qp.state(), QpState::Rts, "not being ready is no fault");
    }
    let mut p = Pair::new(&QpAttr { rnr_retry: 7, ..attr() });
    p.a.host.send(&SendWr::new(Opcode::Send)).unwrap();
    p.run_for(20_000_000);
    assert!(p.sent().is_empty());
    p.b.host.rq.post(&[]).unwrap();
    p.run_for(100_000);
    assert_eq!(p.sent()[0].opcode, CqeOpcode::Req);
}

#[test]
fn each_message_has_all_tries_of_an_empty_receive_queue() {
    let mut p = Pair::new(&QpAttr { rnr_retry: 2, ..attr() });
    for message in 1..=3 {
        p.a.host.send(&SendWr::new(Opcode::Send)).unwrap();
        // As often as it may be; the third time were one too many.
        let tries = 2 * message;
        assert!(p.run_until(2_000_000, |p| p.nics[0].counters().rnr_waits == tries));
        p.b.host.rq.post(&[]).unwrap();
        p.run_for(1_000_000);
        assert_eq!(syndromes(&p.sent()), [None], "message {message}");
        assert_eq!(p.nics[0].counters().rnr_waits, tries);
    }
}

#[test]
fn a_peer_that_is_not_connected_is_tried_for_a_while() {
    let link = InProcess::new();
    let (nic, mut engines) = SoftNic::manual(&SoftConfig::new(&link)).unwrap();
    let buf = Buf::new(&nic, 64, 0, Access::ALL);
    let end = || {
        let (qp, memory) = make_qp(&nic, &attr());
        let host = bellpush::nic::queue::HostQp::new(&*qp);
        End { qp, host, memory, buf: Buf::new(&nic, 64, 0, Access::ALL) }
    };
    let (mut a, b, mut c) = (end(), end(), end());
    a.qp.connect(b.qp.address()).unwrap();
    let payload = inline(&[7; 8]);
    let wr = SendWr::new(Opcode::RdmaWrite).to(Iova(0), buf.mr.rkey).payload(&payload);
    a.host.send(&wr).unwrap();
    for t in 0..100 {
        engines[0].step(t * 1_000_000);
    }
    assert!(a.host.poll_send().unwrap().is_none());
    b.qp.connect(a.qp.address()).unwrap();
    for t in 100..150 {
        engines[0].step(t * 1_000_000);
    }
    assert_eq!(a.host.poll_send().unwrap().unwrap().opcode, CqeOpcode::Req);
    // C talks to B, which is connected to A and does not answer others.
    c.qp.connect(b.qp.address()).unwrap();
    c.host.send(&wr).unwrap();
    for t in 150..500 {
        engines[0].step(t * 1_000_000);
    }
    let cqe = c.host.poll_send().unwrap().unwrap();
    assert_eq!(cqe.syndrome, Syndrome::TransportRetryExc as u8);
    assert_eq!(b.qp.state(), QpState::Rts);
}

#[test]
fn a_peer_without_the_right_to_be_written_to_refuses_writes_of_every_length() {
    for bytes in [8, 5000] {
        let link = InProcess::new();
        let (mut nics, mut engines) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (nic, engine) = SoftNic::manual(&SoftConfig::new(&link)).unwrap();
            nics.push(nic);
            engines.extend(engine);
        }
        let nics = nics.try_into().ok().expect("two of them");
        let access = Some(Access { remote_write: false, ..Access::ALL });
        let with = Change { access, ..Change::default() };
        let mut p = Pair::of((nics, engines), &attr(), &attr(), &with);
        let payload = [p.a.buf.data(0, bytes)];
        let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey);
        p.a.buf.put(0, &[7; 5000]);
        fails(&mut p, &wr.payload(&payload), Syndrome::RemoteInvalReq, Vendor::Right);
        assert_eq!(p.b.buf.get(0, 5000), [0; 5000]);
    }
}

#[test]
fn a_destroyed_peer_ends_in_a_timeout_and_its_memory_is_left_alone() {
    let mut p = Pair::new(&attr());
    p.b.host.rq.post(&[p.b.buf.sge(0, 8)]).unwrap();
    p.nics[1].destroy_qp(p.b.qp.qpn()).unwrap();
    p.b.memory.fill(0, p.b.memory.len(), 0xa5).unwrap();
    let payload = inline(&[1; 8]);
    p.a.host.send(&SendWr::new(Opcode::Send).payload(&payload)).unwrap();
    p.run_for(300_000_000);
    assert_eq!(syndromes(&p.sent()), [Some(Syndrome::TransportRetryExc)]);
    let mut all = vec![0; p.b.memory.len()];
    p.b.memory.read(0, &mut all).unwrap();
    assert!(all.iter().all(|&b| b == 0xa5));
    assert!(matches!(p.nics[1].destroy_qp(p.b.qp.qpn()), Err(NicError::NoSuchQp(_))));
}

#[test]
fn what_is_outstanding_is_flushed_in_order_and_what_comes_later_too() {
    let mut p = Pair::new(&attr());
    for i in 0..5 {
        p.a.host.rq.post(&[]).unwrap();
        let rkey = if i == 2 { Rkey(bad_key().0) } else { p.b.buf.mr.rkey };
        let payload = inline(&[1; 8]);
        let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), rkey).payload(&payload);
        let flags = if i == 1 { Flags::SIGNALLED } else { Flags::default() };
        p.a.host.sq.post(&SendWr { flags, ..wr }).unwrap();
    }
    p.a.host.sq.ring().unwrap();
    p.settle();
    let flushed = Some(Syndrome::WrFlush);
    let cqes = p.sent();
    assert_eq!(cqes.iter().map(|c| c.wqe_counter).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(syndromes(&cqes), [None, Some(Syndrome::RemoteAccess), flushed, flushed]);
    let recvs: Vec<_> = std::iter::from_fn(|| p.a.host.poll_recv().unwrap()).collect();
    assert_eq!(syndromes(&recvs), [flushed; 5]);
    assert_eq!(p.send(&SendWr::new(Opcode::Nop))[0].syndrome, Syndrome::WrFlush as u8);
    p.a.host.rq.post(&[]).unwrap();
    p.settle();
    assert_eq!(p.a.host.poll_recv().unwrap().unwrap().syndrome, Syndrome::WrFlush as u8);
    // B failed too, and flushes what its owner posts.
    p.b.host.rq.post(&[]).unwrap();
    p.settle();
    assert_eq!(syndromes(&p.received()), [flushed]);
}

#[test]
fn failing_a_queue_pair_flushes_it() {
    let mut p = Pair::new(&QpAttr { rnr_retry: 7, ..attr() });
    p.a.host.send(&SendWr::new(Opcode::Send)).unwrap();
    p.run_for(50_000);
    assert!(p.sent().is_empty());
    p.a.qp.fail();
    p.settle();
    assert_eq!(syndromes(&p.sent()), [Some(Syndrome::WrFlush)]);
}

#[test]
fn a_full_completion_queue_is_an_error_and_nothing_is_overwritten() {
    let mut p = Pair::new(&QpAttr { send_cqes: 4, ..attr() });
    for _ in 0..8 {
        p.a.host.sq.post(&SendWr::new(Opcode::Nop)).unwrap();
    }
    p.a.host.sq.ring().unwrap();
    p.settle();
    assert_eq!(p.a.qp.state(), QpState::Err);
    assert!(p.nics[0].counters().cq_overruns > 0);
    let cqes = p.sent();
    assert_eq!(cqes.iter().map(|c| c.wqe_counter).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn wrong_positions_and_bad_bytes_in_the_ring_are_operation_errors() {
    let cases: [(&str, usize, u8, Vendor); 6] = [
        ("index", 2, 1, Vendor::Index),
        ("qpn", 5, 0x77, Vendor::Qpn),
        ("opcode", 3, 0x77, Vendor::Opcode),
        ("ds of 0", 7, 0, Vendor::Segment),
        ("ds past the producer", 7, 63, Vendor::Producer),
        ("ds without data segment", 7, 1, Vendor::Segment),
    ];
    for (name, at, value, vendor) in cases {
        let mut p = Pair::new(&attr());
        let payload = inline(&[1; 8]);
        let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey);
        p.a.host.sq.post(&wr.payload(&payload)).unwrap();
        p.a.qp.queues().sq.write(at, &[value]).unwrap();
        p.a.host.sq.ring().unwrap();
        // The doorbell's ds is the poster's; only the ring's bytes are wrong.
        p.settle();
        let cqes = p.sent();
        assert_eq!(syndromes(&cqes), [Some(Syndrome::LocalQpOp)], "{name}");
        assert_eq!(cqes[0].vendor_err, vendor as u8, "{name}");
        assert_eq!(p.b.buf.get(0, 8), [0; 8], "{name}");
    }
}

#[test]
fn illegal_moves_are_refused() {
    use QpState::*;
    let link = InProcess::new();
    let (nic, _engines) = SoftNic::manual(&SoftConfig::new(&link)).unwrap();
    let (peer, _m) = make_qp(&nic, &attr());
    let legal = [
        (Reset, Init),
        (Init, Init),
        (Init, Rtr),
        (Rtr, Rts),
        (Rts, Rts),
        (Rts, Sqd),
        (Sqd, Sqd),
        (Sqd, Rts),
        (Reset, Reset),
        (Init, Reset),
        (Rtr, Reset),
        (Rts, Reset),
        (Sqd, Reset),
        (Err, Reset),
        (Reset, Err),
        (Init, Err),
        (Rtr, Err),
        (Rts, Err),
        (Sqd, Err),
        (Err, Err),
    ];
    for from in [Reset, Init, Rtr, Rts, Sqd, Err] {
        for to in [Reset, Init, Rtr, Rts, Sqd, Err] {
            let (qp, _m) = make_qp(&nic, &attr());
            let path = match from {
                Err => vec![Err],
                _ => [Init, Rtr, Rts, Sqd].into_iter().take(from as usize).collect(),
            };
            let connection = Connection::new(qp.address(), peer.address());
            let change = |from, to| match (from, to) {
                (Init, Init) | (Sqd | Rts, Rts) => Change::default(),
                _ => connection.change(QpType::Rc, to),
            };
            let mut at = Reset;
            for step in path {
                qp.modify(step, &change(at, step)).unwrap();
                at = step;
            }
            assert_eq!(qp.state(), from);
            let moved = qp.modify(to, &change(from, to));
            assert_eq!(moved.is_ok(), legal.contains(&(from, to)), "{from:?} to {to:?}");
            assert_eq!(qp.state(), if moved.is_ok() { to } else { from });
        }
    }
    let (qp, _m) = make_qp(&nic, &attr());
    let nobody = QpAddress { nic: NicAddress::InProcess(99), ..peer.address() };
    assert!(matches!(qp.connect(nobody), Result::Err(NicError::NoSuchPeer { .. })));
    let (qp, _m) = make_qp(&nic, &attr());
    qp.connect(peer.address()).unwrap();
    let again = qp.connect(peer.address());
    assert!(matches!(again, Result::Err(NicError::State { from: Rts, .. })));
}

#[test]
fn a_reset_queue_pair_starts_over() {
    let mut p = Pair::new(&attr());
    let payload = inline(&[3; 8]);
    let good = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    let bad = SendWr { remote: None, ..good };
    fails(&mut p, &bad, Syndrome::RemoteAccess, Vendor::Key);
    for end in [&mut p.a, &mut p.b] {
        end.qp.modify(QpState::Reset, &Change::default()).unwrap();
    }
    // Rings and records are the owner's to clear; its CQ goes on where it is.
    p.a.qp.queues().dbr.write(0, &[0; 8]).unwrap();
    p.a.host.sq = bellpush::nic::queue::HostSq::new(p.a.qp.qpn(), p.a.qp.queues());
    p.a.qp.connect(p.b.qp.address()).unwrap();
    p.b.qp.connect(p.a.qp.address()).unwrap();
    let cqes = p.send(&good);
    assert_eq!((cqes[0].opcode, cqes[0].wqe_counter), (CqeOpcode::Req, 0));
    assert_eq!(p.b.buf.get(0, 8), [3; 8]);
}

#[test]
fn attributes_out_of_range_are_refused() {
    let link = InProcess::new();
    let (nic, _engines) = SoftNic::manual(&SoftConfig::new(&link)).unwrap();
    let ok = attr();
    let mem = HostMem::alloc(1 << 20).unwrap();
    let view = View::new(&mem, 0, 1 << 20).unwrap();
    let line = bellpush::nic::LineFormat::L14S2;
    let inband = |slots, bytes, seq0| {
        let window = view.clone();
        let cfg = bellpush::nic::Inband { window, slot_bytes: bytes, slots, line, seq0 };
        QpAttr { inband: Some(cfg), ..attr() }
    };
    for bad in [
        QpAttr { sq_blocks: 3, ..ok.clone() },
        QpAttr { sq_blocks: 48, ..ok.clone() },
        QpAttr { sq_blocks: 1 << 16, ..ok.clone() },
        QpAttr { rq_wqes: 3, ..ok.clone() },
        QpAttr { rq_sges: 64, ..ok.clone() },
        QpAttr { send_cqes: 0, ..ok.clone() },
        QpAttr { recv_cqes: 0, ..ok.clone() },
        QpAttr { rnr_retry: 8, ..ok.clone() },
        QpAttr { ack_timeout: 32, ..ok.clone() },
        inband(0, 64, 1),
        inband(4, 100, 1),
        inband(1 << 15, 64, 1),
        inband(4, 64, 0),
        inband(4, 64, 0x1_0000),
        QpAttr { blueflame: true, ..inband(4, 64, 1) },
    ] {
        let refused = nic.create(&bad, &view).err();
        assert!(matches!(refused, Some(NicError::Attribute { .. })), "{bad:?}");
    }
    assert!(nic.create(&ok, &view).is_ok(), "control");
    assert!(nic.create(&inband(4, 64, 0xffff), &view).is_ok(), "control");
    let short = View::new(&mem, 0, 4096).unwrap();
    assert!(matches!(nic.create(&ok, &short), Err(NicError::Memory(_))));
    let no_engines = SoftConfig { engines: 0, ..SoftConfig::new(&link) };
    assert!(SoftNic::manual(&no_engines).is_err());
}
