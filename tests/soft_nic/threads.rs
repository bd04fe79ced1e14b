//! Engines on threads, several engines, queue pairs that share a UAR page, and changes under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::queue_pairs::{self, Buf, attr, inband, inline, make_qp};
use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::queue::HostQp;
use bellpush::nic::slots::HostSlots;
use bellpush::nic::soft::{InProcess, Nap, SoftConfig, SoftNic};
use bellpush::nic::{Access, Change, LineFormat, Nic, NicError, QpAttr, QpState, QueuePair};
use bellpush::wire::wqe::{Flags, Opcode, SendWr};

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn two_nics_of_two_engines_carry_many_queue_pairs() {
    let link = InProcess::new();
    let config = SoftConfig { engines: 2, ..SoftConfig::new(&link) };
    let (a, b) = (SoftNic::open(config.clone()).unwrap(), SoftNic::open(config).unwrap());
    std::thread::scope(|s| {
        for i in 0..6u64 {
            let (a, b) = (&a, &b);
            s.spawn(move || {
                let ((qa, _ma), (qb, _mb)) = (make_qp(a, &attr()), make_qp(b, &attr()));
                qa.connect(qb.address()).unwrap();
                qb.connect(qa.address()).unwrap();
                let (mut ha, mut hb) = (HostQp::new(&*qa), HostQp::new(&*qb));
                let to = Buf::new(b, 4096, 0, Access::ALL);
                for n in 0..300u64 {
                    hb.rq.post(&[to.sge(0, 64)]).unwrap();
                    let bytes = (n << 8 | i).to_le_bytes();
                    let payload = inline(&bytes);
                    ha.send(&SendWr::new(Opcode::Send).payload(&payload)).unwrap();
                    assert!(!ha.wait_send(PATIENCE).unwrap().opcode.is_error());
                    assert_eq!(hb.wait_recv(PATIENCE).unwrap().wqe_counter, n as u16);
                    assert_eq!(to.get(0, 8), bytes);
                }
                a.destroy_qp(qa.qpn()).unwrap();
                b.destroy_qp(qb.qpn()).unwrap();
                b.deregister(to.mr).unwrap();
            });
        }
    });
    // They count at the end of a step, in which the last CQE came.
    let end = Instant::now() + PATIENCE;
    while a.counters().wqes + b.counters().receives < 3600 && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(a.counters().wqes, 1800);
    assert_eq!(b.counters().receives, 1800);
}

#[test]
fn a_thread_sees_in_band_slots_and_regions_come_and_go_meanwhile() {
    let link = InProcess::new();
    let nic = SoftNic::open(SoftConfig::new(&link)).unwrap();
    let cfg = inband(LineFormat::L60S4, 8, 1024, 1);
    let ((qa, _ma), (qb, _mb)) =
        (make_qp(&nic, &QpAttr { inband: Some(cfg.clone()), ..attr() }), make_qp(&nic, &attr()));
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    let to = Buf::new(&nic, 8 * 1024, 0, Access::ALL);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let other = Buf::new(&nic, 4096, 0, Access::ALL);
                nic.deregister(other.mr).unwrap();
                assert!(matches!(nic.deregister(other.mr), Err(NicError::NoSuchRegion(_))));
            }
        });
        let (mut slots, mut host) = (HostSlots::new(qa.qpn(), &cfg), HostQp::new(&*qa));
        let mut posted = 0u64;
        while posted < 20_000 {
            let data = [(posted / 8) as u8; 700];
            let at = posted % 8 * 1024;
            let payload = inline(&data);
            let flags = if posted % 4 == 3 { Flags::SIGNALLED } else { Flags::default() };
            let wr = SendWr { flags, ..SendWr::new(Opcode::RdmaWrite) };
            slots.post(&wr.to(to.at(at), to.mr.rkey).payload(&payload)).unwrap();
            posted += 1;
            if slots.credits() == 0 {
                while slots.credits() < 8 {
                    let cqe = host.wait_send(PATIENCE).unwrap();
                    assert!(!cqe.opcode.is_error(), "{cqe:?}");
                    slots.retire(cqe.wqe_counter);
                }
                for slot in 0..8 {
                    assert_eq!(to.get(slot * 1024, 700), data, "torn or stale");
                }
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn queue_pairs_that_share_a_uar_page_are_all_found() {
    // Several engines must not hide doorbells on one page from each other.
    [1, 4].into_iter().for_each(share_a_page);
}

fn share_a_page(engines: usize) {
    let link = InProcess::new();
    let config = SoftConfig { engines, ..SoftConfig::new(&link) };
    let (nic, mut engines) = SoftNic::manual(&config).unwrap();
    let mut step = |now| {
        for engine in &mut engines {
            engine.step(now);
        }
    };
    let uar = HostMem::alloc(4096).unwrap();
    let uar = View::new(&uar, 0, 4096).unwrap();
    let mut ends: Vec<_> = (0..5)
        .map(|_| {
            let memory = HostMem::alloc(nic.queue_bytes(&attr())).unwrap();
            let view = View::new(&memory, 0, memory.len()).unwrap();
            let mut queues = SoftNic::place(&attr(), &view).unwrap();
            queues.uar = uar.clone();
            nic.create_on(&attr(), queues).unwrap()
        })
        .map(|qp| (HostQp::new(&*qp), qp))
        .collect();
    let peer = make_qp(&nic, &attr()).0;
    for (_, qp) in &ends {
        qp.connect(peer.address()).unwrap();
    }
    peer.connect(ends[0].1.address()).unwrap();
    for round in 0..100u64 {
        // All ring before the engine looks: one register survives, the records tell the rest.
        for (host, _) in ends.iter_mut().take(1 + round as usize % 4) {
            host.send(&SendWr::new(Opcode::Nop)).unwrap();
        }
        // Clears the page's registers, and must not lose what the others rang.
        ends[4].1.modify(QpState::Reset, &Change::default()).unwrap();
        step(1 + round);
        for (i, (host, _)) in ends.iter_mut().enumerate() {
            let done = host.poll_send().unwrap();
            assert_eq!(done.is_some(), i <= round as usize % 4, "round {round}, queue pair {i}");
        }
    }
    nic.destroy_qp(ends[1].1.qpn()).unwrap();
    ends[2].0.send(&SendWr::new(Opcode::Nop)).unwrap();
    step(1000);
    assert!(ends[2].0.poll_send().unwrap().is_some(), "the page outlives one of its users");
}

#[test]
fn a_register_alone_rings_and_a_record_that_is_not_kept_does_no_harm() {
    let mut p = queue_pairs::Pair::new(&attr());
    for _ in 0..70_000u32 / 16 {
        for i in 0..16 {
            let flags = if i == 15 { Flags::SIGNALLED } else { Flags::default() };
            p.a.host.sq.post(&SendWr { flags, ..SendWr::new(Opcode::Nop) }).unwrap();
        }
        let bell = p.a.host.sq.bell();
        let at = bellpush::wire::doorbell::UAR_DOORBELL_OFFSET;
        p.a.qp.queues().uar.write(at, &bell.uar.to_ne_bytes()).unwrap();
        p.settle();
        assert_eq!(p.sent().len(), 1);
    }
    assert_eq!(p.a.qp.state(), bellpush::nic::QpState::Rts);
}

/// In a ring of 2^15 blocks, the largest, an index that is a whole ring old is that of a
/// whole ring ahead.
#[test]
fn a_register_that_is_a_ring_late_rings_for_nothing() {
    use bellpush::wire::doorbell::{DBR_SND_OFFSET, UAR_BF1_OFFSET, UAR_DOORBELL_OFFSET};
    const BLOCKS: u32 = 1 << 15;
    let mut p =
        queue_pairs::Pair::new(&QpAttr { sq_blocks: BLOCKS, send_cqes: 2 * BLOCKS, ..attr() });
    let nop = |flags| SendWr { flags, ..SendWr::new(Opcode::Nop) };
    let mut others = 0u64;
    // Stores the record alone, and rings for another queue pair of the page, so that it is read.
    let mut record = |p: &mut queue_pairs::Pair| {
        let bell = p.a.host.sq.bell();
        others += 1;
        let queues = p.a.qp.queues();
        queues.dbr.write(DBR_SND_OFFSET, &bell.dbr.to_ne_bytes()).unwrap();
        queues.uar.write(UAR_BF1_OFFSET, &others.to_ne_bytes()).unwrap();
        p.settle();
        assert_eq!(p.sent().len(), 1);
        bell.uar
    };
    p.a.host.sq.post(&nop(Flags::SIGNALLED)).unwrap();
    let late = record(&mut p);
    for _ in 1..BLOCKS {
        p.a.host.sq.post(&nop(Flags::default())).unwrap();
    }
    p.a.host.sq.post(&nop(Flags::SIGNALLED)).unwrap();
    record(&mut p);
    let done = p.nics[0].counters().wqes;
    p.a.qp.queues().uar.write(UAR_DOORBELL_OFFSET, &late.to_ne_bytes()).unwrap();
    p.settle();
    assert_eq!((p.sent().len(), p.nics[0].counters().wqes), (0, done));
    assert_eq!(p.a.qp.state(), QpState::Rts);
}

/// A program zeroes the record after the reset (libmlx5 does): until then it says what was
/// posted before.
#[test]
fn a_record_of_before_a_reset_announces_nothing() {
    use bellpush::wire::doorbell::{DBR_SND_OFFSET, UAR_BF1_OFFSET, UAR_DOORBELL_OFFSET};
    for sq_blocks in [64, 1 << 15] {
        let mut p = queue_pairs::Pair::new(&QpAttr { sq_blocks, ..attr() });
        let queues = p.a.qp.queues().clone();
        for _ in 0..3 {
            let flags = Flags::default();
            p.a.host.sq.post(&SendWr { flags, ..SendWr::new(Opcode::Nop) }).unwrap();
        }
        let bell = p.a.host.sq.bell();
        queues.dbr.write(DBR_SND_OFFSET, &bell.dbr.to_ne_bytes()).unwrap();
        queues.uar.write(UAR_DOORBELL_OFFSET, &bell.uar.to_ne_bytes()).unwrap();
        p.settle();
        let done = p.nics[0].counters().wqes;
        assert_eq!(done, 3);
        p.a.qp.modify(QpState::Reset, &Change::default()).unwrap();
        // Another queue pair of the page rings.
        queues.uar.write(UAR_BF1_OFFSET, &1u64.to_ne_bytes()).unwrap();
        p.settle();
        queues.dbr.write(DBR_SND_OFFSET, &0u32.to_ne_bytes()).unwrap();
        p.a.qp.connect(p.b.qp.address()).unwrap();
        p.settle();
        assert_eq!(p.nics[0].counters().wqes, done, "{sq_blocks} blocks");
    }
}

/// The register's bytes come back after 2^16 blocks: two largest rings. The NIC may know one
/// of them by
/// the record alone.
#[test]
fn a_register_that_says_the_same_two_rings_later_rings() {
    use bellpush::wire::doorbell::{DBR_SND_OFFSET, UAR_BF1_OFFSET, UAR_DOORBELL_OFFSET};
    const BLOCKS: u32 = 1 << 15;
    let mut p =
        queue_pairs::Pair::new(&QpAttr { sq_blocks: BLOCKS, send_cqes: 2 * BLOCKS, ..attr() });
    let post = |p: &mut queue_pairs::Pair, blocks: u32| {
        for i in 1..=blocks {
            let flags = if i == blocks { Flags::SIGNALLED } else { Flags::default() };
            p.a.host.sq.post(&SendWr { flags, ..SendWr::new(Opcode::Nop) }).unwrap();
        }
        let bell = p.a.host.sq.bell();
        p.a.qp.queues().dbr.write(DBR_SND_OFFSET, &bell.dbr.to_ne_bytes()).unwrap();
        bell.uar
    };
    post(&mut p, 1);
    let first = post(&mut p, BLOCKS - 1);
    p.a.qp.queues().uar.write(UAR_DOORBELL_OFFSET, &first.to_ne_bytes()).unwrap();
    p.settle();
    assert_eq!(p.sent().len(), 2);
    // Of the second ring the record alone is seen, in a look that another queue pair's
    // register has caused.
    post(&mut p, BLOCKS);
    p.a.qp.queues().uar.write(UAR_BF1_OFFSET, &1u64.to_ne_bytes()).unwrap();
    p.settle();
    assert_eq!(p.sent().len(), 1);
    let again = post(&mut p, BLOCKS);
    assert_eq!(again, first);
    p.a.qp.queues().uar.write(UAR_DOORBELL_OFFSET, &again.to_ne_bytes()).unwrap();
    p.settle();
    assert_eq!(p.sent().len(), 1);
}

#[test]
fn dropping_a_nic_ends_its_threads_and_frees_its_regions() {
    let link = InProcess::new();
    let nic = SoftNic::open(SoftConfig { nap: Nap::default(), ..SoftConfig::new(&link) }).unwrap();
    let mem = HostMem::alloc(4096).unwrap();
    let view = View::new(&mem, 0, 4096).unwrap();
    nic.register(Arc::new(view), bellpush::wire::Iova(0), Access::ALL).unwrap();
    let (qp, memory) = make_qp(&nic, &attr());
    qp.connect(qp.address()).unwrap(); // to itself: the cycle must not keep anything
    drop(nic);
    assert_eq!(Arc::strong_count(&mem), 1);
    assert!(matches!(
        qp.connect(qp.address()),
        Err(NicError::State { .. } | NicError::NoSuchQp(_))
    ));
    drop(qp);
    assert_eq!(Arc::strong_count(&memory), 1);
}

/// One thread connects while another creates: each holds a lock that the other is about to take.
#[test]
fn queue_pairs_are_made_and_connected_from_several_threads_at_once() {
    let nic = SoftNic::open(SoftConfig::default()).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    for _ in 0..3 {
        let (nic, done) = (nic.clone(), done.clone());
        std::thread::spawn(move || {
            for _ in 0..300 {
                let ((a, _ma), (b, _mb)) = (make_qp(&nic, &attr()), make_qp(&nic, &attr()));
                a.connect(b.address()).unwrap();
                b.connect(a.address()).unwrap();
                for qp in [a, b] {
                    nic.destroy_qp(qp.qpn()).unwrap();
                }
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..3 {
        ended.recv_timeout(PATIENCE).expect("nobody waits for ever");
    }
}
