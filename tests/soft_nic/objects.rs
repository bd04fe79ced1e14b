//! CQs, SRQs and protection domains that queue pairs share, on both kinds of link; armings, limits
//! and the events that tell of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::queue_pairs::{self, Buf, attr, inline, syndromes};
use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::queue::{HostCq, HostQp};
use bellpush::nic::soft::{
    Cq, CqAttr, Engine, Event, InProcess, Moderation, Objects, Qp, SoftConfig, SoftNic, Srq,
    SrqAttr,
};
use bellpush::nic::{Access, Change, Nic, NicError, QpAttr, QpState, QpType, QueuePair};
use bellpush::wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush::wire::doorbell::{
    CqArm, DBR_CQ_ARM_OFFSET, DBR_RCV_OFFSET, UAR_CQ_DOORBELL_OFFSET, dbr_word,
};
use bellpush::wire::wqe::{DataSeg, Flags, INVALID_LKEY, Opcode, SendWr, Sge};

/// Two NICs and their engines, on the in-process link or on packets.
struct Nics {
    nics: [Arc<SoftNic>; 2],
    engines: Vec<Engine>,
    now_ns: u64,
}

impl Nics {
    fn both() -> [Self; 2] {
        let link = InProcess::new();
        let mut engines = Vec::new();
        let nics = [0, 1].map(|_| {
            let (nic, e) = SoftNic::manual(&SoftConfig::new(&link)).unwrap();
            engines.extend(e);
            nic
        });
        let (others, theirs) = queue_pairs::packet_nics("", true);
        [Self { nics, engines, now_ns: 0 }, Self { nics: others, engines: theirs, now_ns: 0 }]
    }

    fn run(&mut self) {
        for _ in 0..50 {
            self.now_ns += 1000;
            for engine in &mut self.engines {
                engine.step(self.now_ns);
            }
        }
    }
}

/// A CQ with what its consumer sees.
struct Shared {
    cq: Arc<Cq>,
    host: HostCq,
    dbr: View,
    uar: View,
    told: Arc<AtomicUsize>,
}

impl Shared {
    fn new(nic: &SoftNic, entries: usize) -> Self {
        let mem = HostMem::alloc(entries * 64 + 8192).unwrap();
        let part = |at, n| View::new(&mem, at, n).unwrap();
        let (uar, dbr, ring) = (part(0, 4096), part(4096, 8), part(8192, entries * 64));
        let told = Arc::new(AtomicUsize::new(0));
        let counter = told.clone();
        let notify: bellpush::nic::soft::Notify = Arc::new(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let attr =
            CqAttr { ring: ring.clone(), dbr: dbr.clone(), uar: uar.clone(), notify: Some(notify) };
        let cq = nic.create_cq(&attr).unwrap();
        Self { cq, host: HostCq::new(&ring, &dbr), dbr, uar, told }
    }

    /// As libmlx5 arms: record, then register.
    fn arm(&self, sequence: u8, ci: u32, solicited_only: bool) {
        let word = CqArm { sequence, ci, solicited_only }.emit();
        self.dbr.store_u32(DBR_CQ_ARM_OFFSET, word, Ordering::Release).unwrap();
        let register = u64::from(word) | u64::from(self.cq.number().to_be()) << 32;
        self.uar.store_u64(UAR_CQ_DOORBELL_OFFSET, register, Ordering::Release).unwrap();
    }

    fn take(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.host.poll().unwrap()).collect()
    }

    fn told(&self) -> usize {
        self.told.load(Ordering::Relaxed)
    }
}

fn qp_on(nic: &SoftNic, cq: &Arc<Cq>, srq: Option<&Arc<Srq>>, uidx: u32) -> (Arc<Qp>, HostQp) {
    let rq_wqes = if srq.is_some() { 0 } else { 16 };
    let attr = QpAttr { rq_wqes, ..attr() };
    let memory = HostMem::alloc(nic.queue_bytes(&attr)).unwrap();
    let view = View::new(&memory, 0, memory.len()).unwrap();
    let queues = SoftNic::place(&attr, &view).unwrap();
    let objects = Objects {
        kind: QpType::Rc,
        pd: nic.default_pd().clone(),
        send_cq: cq.clone(),
        recv_cq: Some(cq.clone()),
        srq: srq.cloned(),
        uidx,
    };
    let qp = nic.create_with(&attr, queues, objects).unwrap();
    let host = HostQp::new(&*qp);
    (qp, host)
}

fn pair_up(a: &Qp, b: &Qp) {
    a.connect(b.address()).unwrap();
    b.connect(a.address()).unwrap();
}

#[test]
fn one_cq_serves_both_sides_of_several_queue_pairs() {
    for mut n in Nics::both() {
        let nics = n.nics.clone();
        let (mut ca, mut cb) = (Shared::new(&nics[0], 64), Shared::new(&nics[1], 64));
        let buf = Buf::new(&nics[1], 4096, 0, Access::ALL);
        let mut ends: Vec<_> = (0..3u32)
            .map(|i| {
                (qp_on(&nics[0], &ca.cq, None, 100 + i), qp_on(&nics[1], &cb.cq, None, 200 + i))
            })
            .collect();
        for (a, b) in &ends {
            pair_up(&a.0, &b.0);
        }
        // A ping-pong: each side sends and receives on its one CQ.
        for round in 0..20u64 {
            for (i, (a, b)) in ends.iter_mut().enumerate() {
                b.1.rq.post(&[buf.sge(i as u64 * 64, 8)]).unwrap();
                a.1.rq.post(&[]).unwrap();
                let bytes = (round << 8 | i as u64).to_le_bytes();
                a.1.send(&SendWr::new(Opcode::Send).payload(&inline(&bytes))).unwrap();
                b.1.send(&SendWr::new(Opcode::Send)).unwrap();
                n.run();
                let of = |cq: &mut Shared, base: u32| {
                    let mut cqes = cq.take();
                    cqes.sort_by_key(|c| c.opcode as u8);
                    assert_eq!(cqes.len(), 2);
                    assert!(cqes.iter().all(|c| c.uidx == base + i as u32), "{cqes:?}");
                    assert_eq!(cqes[0].opcode, CqeOpcode::Req);
                    assert_eq!(cqes[1].opcode, CqeOpcode::RespSend);
                };
                of(&mut ca, 100);
                of(&mut cb, 200);
                assert_eq!(buf.get(i * 64, 8), bytes);
                a.1.rq.retire();
                b.1.rq.retire();
                a.1.sq.retire(round as u16);
                b.1.sq.retire(round as u16);
            }
        }
        assert_eq!((ca.told(), cb.told()), (0, 0), "nobody armed them");
    }
}

#[test]
fn moderated_cqs_tell_of_several_entries_together_and_at_the_latest_in_time() {
    for mut n in Nics::both() {
        let nics = n.nics.clone();
        let (mut ca, cb) = (Shared::new(&nics[0], 64), Shared::new(&nics[1], 64));
        let buf = Buf::new(&nics[1], 4096, 0, Access::ALL);
        let (mut a, b) = (qp_on(&nics[0], &ca.cq, None, 0), qp_on(&nics[1], &cb.cq, None, 0));
        pair_up(&a.0, &b.0);
        let mut write = |n: &mut Nics| {
            let wr = SendWr::new(Opcode::RdmaWrite).to(buf.at(0), buf.mr.rkey);
            a.1.sq.post(&wr.payload(&inline(b"x"))).unwrap();
            a.1.sq.ring().unwrap();
            n.run();
        };
        // 50 steps of `run` are 50 us.
        nics[0].moderate(&ca.cq, Moderation { count: 3, period_us: 1000 });
        ca.arm(1, 0, false);
        for told in [0, 0, 1, 1] {
            write(&mut n);
            assert_eq!(ca.told(), told);
        }
        assert_eq!(ca.take().len(), 4);
        // Too few, for too short a time, and then for long enough.
        ca.arm(2, 4, false);
        write(&mut n);
        (0..15).for_each(|_| n.run());
        assert_eq!(ca.told(), 1);
        (0..6).for_each(|_| n.run());
        assert_eq!(ca.told(), 2);
        (0..30).for_each(|_| n.run());
        assert_eq!((ca.told(), ca.take().len()), (2, 1), "once for each arming");
        // Without a count the period alone; without a period at once.
        nics[0].moderate(&ca.cq, Moderation { count: 0, period_us: 200 });
        ca.arm(3, 5, false);
        write(&mut n);
        write(&mut n);
        assert_eq!(ca.told(), 2);
        (0..5).for_each(|_| n.run());
        assert_eq!(ca.told(), 3);
        nics[0].moderate(&ca.cq, Moderation { count: 9, period_us: 0 });
        ca.arm(0, 7, false);
        write(&mut n);
        assert_eq!(ca.told(), 4);
    }
}

#[test]
fn armed_cqs_tell_once_also_of_what_came_before() {
    for mut n in Nics::both() {
        let nics = n.nics.clone();
        let (ca, mut cb) = (Shared::new(&nics[0], 64), Shared::new(&nics[1], 64));
        let (mut a, mut b) = (qp_on(&nics[0], &ca.cq, None, 0), qp_on(&nics[1], &cb.cq, None, 0));
        pair_up(&a.0, &b.0);
        let mut send = |n: &mut Nics, solicited| {
            b.1.rq.post(&[]).unwrap();
            let flags = Flags { solicited, ..Flags::SIGNALLED };
            a.1.send(&SendWr { flags, ..SendWr::new(Opcode::Send) }).unwrap();
            n.run();
        };
        cb.arm(0, 0, false);
        n.run();
        assert_eq!(cb.told(), 0);
        send(&mut n, false);
        assert_eq!(cb.told(), 1);
        send(&mut n, false);
        assert_eq!(cb.told(), 1, "once for an arming");
        // Armed after the first was taken, while the second lies there.
        cb.arm(1, 1, false);
        n.run();
        assert_eq!(cb.told(), 2);
        assert_eq!(cb.take().len(), 2);
        cb.arm(2, 2, true);
        send(&mut n, false);
        assert_eq!(cb.told(), 2);
        send(&mut n, true);
        assert_eq!(cb.told(), 3);
    }
}

/// An SRQ as its poster sees it: a list of free WQEs, as libmlx5 keeps one.
struct HostSrq {
    srq: Arc<Srq>,
    ring: View,
    dbr: View,
    head: u16,
    tail: u16,
    posted: u16,
}

impl HostSrq {
    const WQES: u16 = 8;

    fn new(nic: &SoftNic) -> Self {
        let mem = HostMem::alloc(4096).unwrap();
        let (ring, dbr) = (View::new(&mem, 0, 512).unwrap(), View::new(&mem, 1024, 8).unwrap());
        let pd = nic.default_pd().clone();
        let attr = SrqAttr { pd, ring: ring.clone(), stride_log: 6, dbr: dbr.clone(), limit: 0 };
        let srq = nic.create_srq(&attr).unwrap();
        for i in 0..Self::WQES {
            ring.write(usize::from(i) * 64 + 2, &((i + 1) % Self::WQES).to_be_bytes()).unwrap();
        }
        Self { srq, ring, dbr, head: 0, tail: Self::WQES - 1, posted: 0 }
    }

    fn post(&mut self, sge: &Sge) {
        let at = usize::from(self.head) * 64;
        let end = DataSeg { lkey: INVALID_LKEY.0.into(), ..DataSeg::default() };
        self.ring.write(at + 16, bytemuck::bytes_of(&sge.emit())).unwrap();
        self.ring.write(at + 32, bytemuck::bytes_of(&end)).unwrap();
        let mut next = [0; 2];
        self.ring.read(at + 2, &mut next).unwrap();
        self.head = u16::from_be_bytes(next);
        self.posted += 1;
        self.dbr.store_u32(DBR_RCV_OFFSET, dbr_word(self.posted), Ordering::Release).unwrap();
    }

    fn free(&mut self, index: u16) {
        self.ring.write(usize::from(self.tail) * 64 + 2, &index.to_be_bytes()).unwrap();
        self.tail = index;
    }
}

#[test]
fn queue_pairs_take_their_receives_from_one_srq() {
    for mut n in Nics::both() {
        let nics = n.nics.clone();
        let (ca, mut cb) = (Shared::new(&nics[0], 64), Shared::new(&nics[1], 64));
        let mut srq = HostSrq::new(&nics[1]);
        let buf = Buf::new(&nics[1], 4096, 0, Access::ALL);
        let mut ends: Vec<_> = (0..3)
            .map(|i| {
                let a = qp_on(&nics[0], &ca.cq, None, 0);
                let b = qp_on(&nics[1], &cb.cq, Some(&srq.srq), 10 + i);
                pair_up(&a.0, &b.0);
                (a, b)
            })
            .collect();
        for i in 0..6u64 {
            srq.post(&buf.sge(i * 64, 64));
        }
        for round in 0..40u64 {
            let which = (round * 7 % 3) as usize;
            let bytes = round.to_le_bytes();
            ends[which].0.1.send(&SendWr::new(Opcode::Send).payload(&inline(&bytes))).unwrap();
            n.run();
            let got = cb.take();
            assert_eq!(got.len(), 1, "round {round}");
            assert_eq!((got[0].uidx, got[0].byte_cnt), (10 + which as u32, 8));
            assert_eq!(buf.get((round % 64 * 64) as usize % 4096, 8), bytes);
            srq.free(got[0].wqe_counter);
            srq.post(&buf.sge((6 + round) % 64 * 64, 64));
            let counter = ends[which].0.1.sq.producer() as u16 - 1;
            ends[which].0.1.sq.retire(counter);
        }
        // The limit, once; and the last WQE of a queue pair that fails.
        srq.srq.arm_limit(6).unwrap();
        ends[0].0.1.send(&SendWr::new(Opcode::Send)).unwrap();
        n.run();
        ends[1].1.0.modify(QpState::Err, &Change::default()).unwrap();
        n.run();
        let events: Vec<_> = std::iter::from_fn(|| nics[1].next_event()).collect();
        let expected = [Event::SrqLimit(srq.srq.number()), Event::LastWqe(ends[1].1.0.qpn())];
        assert_eq!(events, expected);
        assert_eq!(cb.take().len(), 1, "receives of an SRQ are not flushed with a queue pair");
    }
}

#[test]
fn an_overrun_is_reported_for_the_cq_and_the_queue_pair() {
    for mut n in Nics::both() {
        let nics = n.nics.clone();
        let (ca, cb) = (Shared::new(&nics[0], 4), Shared::new(&nics[1], 64));
        let (mut a, b) = (qp_on(&nics[0], &ca.cq, None, 0), qp_on(&nics[1], &cb.cq, None, 0));
        pair_up(&a.0, &b.0);
        for _ in 0..5 {
            a.1.sq.post(&SendWr::new(Opcode::Nop)).unwrap();
        }
        a.1.sq.ring().unwrap();
        n.run();
        assert_eq!(a.0.state(), QpState::Err);
        let events: Vec<_> = std::iter::from_fn(|| nics[0].next_event()).collect();
        assert_eq!(events, [Event::CqOverrun(ca.cq.number()), Event::QpFatal(a.0.qpn())]);
    }
}

#[test]
fn a_region_of_another_protection_domain_is_out_of_reach() {
    for mut n in Nics::both() {
        let nics = n.nics.clone();
        let (mut ca, cb) = (Shared::new(&nics[0], 64), Shared::new(&nics[1], 64));
        let (mut a, b) = (qp_on(&nics[0], &ca.cq, None, 0), qp_on(&nics[1], &cb.cq, None, 0));
        pair_up(&a.0, &b.0);
        let foreign = nics[1].create_pd().unwrap();
        let mem = HostMem::alloc(4096).unwrap();
        let view = Arc::new(View::new(&mem, 0, 4096).unwrap());
        let mr = nics[1].register_in(&foreign, view, bellpush::wire::Iova(0), Access::ALL).unwrap();
        let payload = inline(b"no");
        a.1.send(&SendWr::new(Opcode::RdmaWrite).to(mr.iova, mr.rkey).payload(&payload)).unwrap();
        n.run();
        assert_eq!(syndromes(&ca.take()), [Some(Syndrome::RemoteAccess)]);
        let mut bytes = [1; 2];
        mem.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 2]);
    }
}

#[test]
fn objects_that_do_not_go_together_are_refused() {
    let [inproc, packets] = Nics::both();
    let nic = &packets.nics[0];
    let cq = Shared::new(nic, 16);
    let attr = QpAttr { rq_wqes: 0, ..attr() };
    let memory = HostMem::alloc(nic.queue_bytes(&attr)).unwrap();
    let view = View::new(&memory, 0, memory.len()).unwrap();
    let queues = SoftNic::place(&attr, &view).unwrap();
    let good = Objects {
        kind: QpType::Ud,
        pd: nic.default_pd().clone(),
        send_cq: cq.cq.clone(),
        recv_cq: Some(cq.cq.clone()),
        srq: None,
        uidx: 0,
    };
    let srq = HostSrq::new(nic).srq;
    for bad in [
        Objects { srq: Some(srq.clone()), recv_cq: None, ..good.clone() },
        Objects { srq: Some(srq), pd: nic.create_pd().unwrap(), ..good.clone() },
        Objects { uidx: 1 << 24, ..good.clone() },
    ] {
        let refused = nic.create_with(&attr, queues.clone(), bad).err();
        assert!(matches!(refused, Some(NicError::Attribute { .. })), "{refused:?}");
    }
    assert!(nic.create_with(&attr, queues.clone(), good.clone()).is_ok(), "control");
    let refused = inproc.nics[0].create_with(&attr, queues, good).err();
    assert!(matches!(refused, Some(NicError::Attribute { .. })), "datagrams need packets");
}
