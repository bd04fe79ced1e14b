//! Layouts that unmodified libmlx5 and DEVX programs ask for: queue pairs without a send queue, CQs
//! with entries of 128 bytes, collapsed ones, and CQs that are resized while they are used.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::queue_pairs::{Buf, attr, connect, inline, packet_nics};
use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::queue::{HostCq, HostQp, HostRq};
use bellpush::nic::soft::{Cq, CqAttr, CqLayout, Engine, Objects, Qp, SoftNic};
use bellpush::nic::{Access, Change, Nic, NicError, QpAttr, QpState, QpType, QueuePair};
use bellpush::wire::cqe::{Cqe, CqeOpcode, owner_bit};
use bellpush::wire::doorbell::cq_ci_word;
use bellpush::wire::wqe::{Opcode, SendWr};

struct Ring {
    cq: Arc<Cq>,
    view: View,
    dbr: View,
}

fn cq(nic: &SoftNic, bytes: usize, layout: CqLayout) -> Ring {
    let mem = HostMem::alloc(bytes + 8192).unwrap();
    let part = |at, n| View::new(&mem, at, n).unwrap();
    let (uar, dbr, view) = (part(0, 4096), part(4096, 8), part(8192, bytes));
    let attr = CqAttr { ring: view.clone(), dbr: dbr.clone(), uar, notify: None };
    Ring { cq: nic.create_cq_with(&attr, layout).unwrap(), view, dbr }
}

/// A queue pair on one CQ, and its poster and memory.
fn qp(nic: &SoftNic, attr: &QpAttr, cq: &Arc<Cq>) -> (Arc<Qp>, Arc<HostMem>) {
    let memory = HostMem::alloc(nic.queue_bytes(attr)).unwrap();
    let queues = SoftNic::place(attr, &View::new(&memory, 0, memory.len()).unwrap()).unwrap();
    let objects = Objects {
        kind: QpType::Rc,
        pd: nic.default_pd().clone(),
        send_cq: cq.clone(),
        recv_cq: Some(cq.clone()),
        srq: None,
        uidx: 0,
    };
    (nic.create_with(attr, queues, objects).unwrap(), memory)
}

fn step_all(engines: &mut [Engine], now_ns: u64) {
    for engine in engines {
        engine.step(now_ns);
    }
}

fn entry(view: &View, at: usize) -> Cqe {
    let mut bytes = [0; 64];
    view.read(at, &mut bytes).unwrap();
    Cqe::parse(&bytes).unwrap()
}

#[test]
fn a_queue_pair_without_a_send_queue_receives() {
    let (nics, mut engines) = packet_nics("", true);
    let (ca, cb) = (
        cq(&nics[0], 4096, CqLayout::default()),
        cq(&nics[1], 4096, CqLayout { entry_bytes: 128, ..CqLayout::default() }),
    );
    let (a, _ma) = qp(&nics[0], &attr(), &ca.cq);
    let (b, _mb) = qp(&nics[1], &QpAttr { sq_blocks: 0, ..attr() }, &cb.cq);
    connect(&a, &b, &Change::default());
    let (mut host, mut rq) = (HostQp::new(&*a), HostRq::new(b.queues()));
    let buf = Buf::new(&nics[1], 4096, 0, Access::ALL);
    for i in 0..3 {
        rq.post(&[buf.sge(i * 64, 64)]).unwrap();
        host.send(&SendWr::new(Opcode::Send).payload(&inline(b"to nobody's sends"))).unwrap();
    }
    // A doorbell of the queue pair that has no ring, from nowhere: nothing is there to be sent.
    b.queues().dbr.store_u32(4, 7u32.to_be(), Ordering::Release).unwrap();
    b.queues().uar.store_u64(0x800, u64::MAX, Ordering::Release).unwrap();
    (0..50).for_each(|i| step_all(&mut engines, i * 1000));
    for i in 0..3 {
        let cqe = entry(&cb.view, i * 128 + 64);
        assert_eq!(
            (cqe.opcode, cqe.byte_cnt, cqe.wqe_counter),
            (CqeOpcode::RespSend, 17, i as u16)
        );
    }
    assert_eq!(buf.get(64, 17), b"to nobody's sends");
    assert_eq!(b.state(), QpState::Rts);
    let refused = nics[1].create(
        &QpAttr { sq_blocks: 0, blueflame: true, ..attr() },
        &View::new(&HostMem::alloc(1 << 16).unwrap(), 0, 1 << 16).unwrap(),
    );
    assert!(matches!(refused.err(), Some(NicError::Attribute { .. })), "BlueFlame needs a ring");
}

#[test]
fn a_collapsed_queue_tells_how_far_the_sends_have_come() {
    let (nics, mut engines) = packet_nics("", true);
    let layout = CqLayout { collapsed: true, overrun_ignored: true, ..CqLayout::default() };
    let (ca, cb) = (cq(&nics[0], 512, layout), cq(&nics[1], 4096, CqLayout::default()));
    let (a, _ma) = qp(&nics[0], &attr(), &ca.cq);
    let (b, _mb) = qp(&nics[1], &attr(), &cb.cq);
    connect(&a, &b, &Change::default());
    let mut host = HostQp::new(&*a);
    let buf = Buf::new(&nics[1], 4096, 0, Access::ALL);
    // More completions than the CQ has entries, none of which is ever reported as taken.
    for i in 0..40u16 {
        let payload = inline(b"x");
        let wr = SendWr::new(Opcode::RdmaWrite).to(buf.at(0), buf.mr.rkey).payload(&payload);
        host.send(&wr).unwrap();
        let now = u64::from(i) * 100_000;
        (0..20).for_each(|n| step_all(&mut engines, now + n * 1000));
        assert_eq!(entry(&ca.view, 0).wqe_counter, i);
    }
    assert_eq!((a.state(), nics[0].counters().cq_overruns), (QpState::Rts, 0));
}

#[test]
fn a_queue_is_resized_while_messages_complete() {
    let (nics, mut engines) = packet_nics("", true);
    let (ca, cb) =
        (cq(&nics[0], 4096, CqLayout::default()), cq(&nics[1], 1024, CqLayout::default()));
    let (a, _ma) = qp(&nics[0], &attr(), &ca.cq);
    let (b, _mb) = qp(&nics[1], &attr(), &cb.cq);
    connect(&a, &b, &Change::default());
    let (mut host, mut rq) = (HostQp::new(&*a), HostRq::new(b.queues()));
    let mut sent = HostCq::new(&ca.view, &ca.dbr);
    let mut now = 0;
    let mut send = |n: u16| {
        for _ in 0..n {
            rq.post(&[]).unwrap();
            rq.retire();
            host.send(&SendWr::new(Opcode::Send)).unwrap();
        }
        (0..50).for_each(|_| {
            now += 1000;
            step_all(&mut engines, now);
        });
        while let Some(cqe) = sent.poll().unwrap() {
            host.sq.retire(cqe.wqe_counter);
        }
    };
    send(10);
    let bigger = View::new(&HostMem::alloc(4096).unwrap(), 0, 4096).unwrap();
    cb.cq.resize(bigger.clone(), 64).unwrap();
    assert_eq!(entry(&cb.view, 10 * 64).opcode, CqeOpcode::Resize);
    send(10);
    // What came before the move is copied by the consumer, one index on; what came after is there.
    for index in 11..21u64 {
        let at = index as usize * 64;
        let mut op_own = [0];
        bigger.read(at + 63, &mut op_own).unwrap();
        assert_eq!(op_own[0] & 1, owner_bit(index, 64));
        assert_eq!(u64::from(entry(&bigger, at).wqe_counter), index - 1);
    }
    // As many as the old ring could not have taken.
    cb.dbr.store_u32(0, cq_ci_word(21), Ordering::Relaxed).unwrap();
    (0..4).for_each(|_| send(14));
    assert_eq!((b.state(), nics[1].counters().receives), (QpState::Rts, 76));
    send(9);
    assert_eq!(b.state(), QpState::Err, "control: the new ring is full now");
}
