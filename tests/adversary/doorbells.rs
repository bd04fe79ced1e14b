//! Kind `doorbell`: a NIC that reads the doorbell record when a doorbell comes, and believes it alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::queue_pairs::{Buf, attr, inline, make_qp};
use crate::test_bed::*;
use bellpush::abi::entry::{Scope, Verb};
use bellpush::gpu::HostOptions;
use bellpush::mem::HostMem;
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::{AdversaryKind, Engine, Finding, InProcess, Qp, SoftConfig, SoftNic};
use bellpush::nic::{Access, Nic, NicError, Order, QueuePair};
use bellpush::transport::Options;
use bellpush::wire::doorbell::{DBR_SND_OFFSET, UAR_DOORBELL_OFFSET};
use bellpush::wire::wqe::{Opcode, SendWr};

const MS: u64 = 1_000_000;

/// A NIC with the order of silicon, and a queue pair that is connected to itself.
struct Alone {
    nic: Arc<SoftNic>,
    engine: Engine,
    qp: Arc<Qp>,
    host: HostQp,
    to: Buf,
    now_ns: u64,
    _memory: Arc<HostMem>,
}

impl Alone {
    fn new(kinds: &str, order: Order) -> Self {
        let adversary = Some(kinds.parse().unwrap());
        let config = SoftConfig { adversary, order, ..SoftConfig::new(&InProcess::new()) };
        let (nic, mut engines) = SoftNic::manual(&config).unwrap();
        let (qp, _memory) = make_qp(&nic, &attr());
        qp.connect(qp.address()).unwrap();
        let (host, to) = (HostQp::new(&*qp), Buf::new(&nic, 4096, 0, Access::ALL));
        Self { nic, engine: engines.remove(0), qp, host, to, now_ns: 0, _memory }
    }

    fn run_for(&mut self, ns: u64) {
        let end = self.now_ns + ns;
        while self.now_ns < end {
            self.now_ns += MS / 10;
            self.engine.step(self.now_ns);
        }
    }

    /// Writes a WQE that writes this byte, and neither record nor register.
    fn post(&mut self, byte: u8) {
        let payload = [byte];
        let payload = inline(&payload);
        let wr =
            SendWr::new(Opcode::RdmaWrite).to(self.to.at(0), self.to.mr.rkey).payload(&payload);
        self.host.sq.post(&wr).unwrap();
    }

    fn write_record(&self) {
        let word = self.host.sq.bell().dbr;
        self.qp.queues().dbr.store_u32(DBR_SND_OFFSET, word, Ordering::Release).unwrap();
    }

    fn write_register(&self) {
        let word = self.host.sq.bell().uar;
        self.qp.queues().uar.store_u64(UAR_DOORBELL_OFFSET, word, Ordering::Release).unwrap();
    }

    fn there(&self) -> u8 {
        self.to.get(0, 1)[0]
    }

    /// The findings, all of this kind and of the queue pair's record.
    #[track_caller]
    fn findings(&self) -> Vec<Finding> {
        let all = self.nic.findings();
        for it in &all {
            assert_eq!((it.kind, it.qpn, it.bytes), (AdversaryKind::Doorbell, self.qp.qpn(), 4));
            assert_eq!(it.address, self.qp.queues().dbr.addr() + DBR_SND_OFFSET as u64);
            assert_eq!(it.posted_at, None);
        }
        all
    }
}

/// Record, then register: each message is there within the freedoms' longest wait, over three laps of the ring.
#[test]
fn a_record_before_its_doorbell_is_nobodys_finding() {
    for kinds in ["1,doorbell", "2,doorbell,payload", "3", "4", "5", "6"] {
        let mut it = Alone::new(kinds, Order::Strict);
        for byte in (1..=200).cycle().take(400) {
            it.post(byte);
            it.write_record();
            // No program does both in no time.
            it.run_for(MS / 10);
            it.write_register();
            it.run_for(MS);
            assert_eq!(it.there(), byte, "{kinds}");
            while it.host.poll_send().unwrap().is_some() {}
        }
        assert_eq!(it.nic.findings(), [], "{kinds}");
    }
}

#[test]
fn wqes_that_no_doorbell_tells_of_stay_where_they_are_and_are_told_of_once() {
    let mut it = Alone::new("1,doorbell", Order::Strict);
    for (byte, findings) in [(1, 0), (2, 1)] {
        it.post(byte);
        it.write_record();
        it.run_for(600 * MS);
        assert_eq!(it.findings().len(), findings, "a second of the first's");
    }
    let [found] = &it.findings()[..] else { panic!("{:?}", it.findings()) };
    assert_eq!(found.wqe, Some(0));
    assert!(found.to_string().contains("no doorbell was rung"), "{found}");
    it.run_for(5000 * MS);
    assert_eq!((it.findings().len(), it.there()), (1, 0));
    it.write_register();
    it.run_for(MS);
    assert_eq!((it.findings().len(), it.there()), (1, 2), "the doorbell starts both");
}

/// What is posted and counted before the queue pair may send begins with a doorbell like all.
#[test]
fn what_was_posted_before_rts_waits_for_its_doorbell() {
    let mut it = Alone::new("1,doorbell", Order::Strict);
    it.qp.reset().unwrap();
    it.host = HostQp::new(&*it.qp);
    it.post(1);
    it.write_record();
    it.qp.connect(it.qp.address()).unwrap();
    it.run_for(10 * MS);
    assert_eq!(it.there(), 0);
    it.write_register();
    it.run_for(MS);
    assert_eq!((it.there(), it.findings()), (1, vec![]));
}

#[test]
fn a_doorbell_before_its_record_is_told_of_and_starts_nothing() {
    let mut it = Alone::new("1,doorbell", Order::Strict);
    it.post(1);
    it.write_register();
    it.run_for(MS);
    it.write_record();
    it.run_for(900 * MS);
    assert_eq!(
        (it.findings(), it.there()),
        (vec![], 0),
        "the doorbell has gone by; another may come"
    );
    it.run_for(200 * MS);
    let [found] = &it.findings()[..] else { panic!("{:?}", it.findings()) };
    assert_eq!(found.wqe, Some(0));
    assert!(found.to_string().contains("before the doorbell record"), "{found}");
    it.post(2);
    it.write_record();
    it.write_register();
    it.run_for(MS);
    assert_eq!((it.findings().len(), it.there()), (1, 2));
    assert_eq!(it.nic.finding_counts(), [(AdversaryKind::Doorbell, 1)]);
}

/// As DOCA GPUNetIO and NCCL's GDAKI do, where the first doorbell is for a NIC that has the record by another way.
#[test]
fn a_doorbell_that_is_rung_again_behind_its_record_is_nobodys_finding() {
    let mut it = Alone::new("1,doorbell", Order::Strict);
    for byte in 1..=100 {
        it.post(byte);
        it.write_register();
        it.run_for(MS);
        it.write_record();
        it.run_for(MS);
        assert_eq!(it.there(), byte - 1);
        it.write_register();
        it.run_for(MS);
        assert_eq!(it.there(), byte, "the same bytes are another doorbell");
        while it.host.poll_send().unwrap().is_some() {}
    }
    it.run_for(2000 * MS);
    assert_eq!(it.findings(), []);
}

/// A ringer that keeps no record.
#[test]
fn a_doorbell_without_a_record_is_told_of() {
    let mut it = Alone::new("1,doorbell", Order::Strict);
    it.post(1);
    it.write_register();
    it.run_for(1100 * MS);
    let [found] = &it.findings()[..] else { panic!("{:?}", it.findings()) };
    assert!(found.to_string().contains("before the doorbell record"), "{found}");
    assert_eq!(it.there(), 0);
}

/// Whoever posts to this NIC's own order, in which the later of the two counts, is not held to silicon's.
#[test]
fn queue_pairs_of_the_software_nics_order_are_left_alone() {
    let mut it = Alone::new("1,doorbell", Order::Later);
    it.post(1);
    it.write_register();
    it.run_for(2000 * MS);
    assert_eq!((it.nic.findings(), it.there()), (vec![], 1));
}

/// With `record`, which looks early, one of two queue pairs is of either kind: neither hides the other for good.
#[test]
fn with_all_kinds_some_queue_pairs_wait_for_doorbells() {
    let waits = |seed: u64| {
        let mut it = Alone::new(&seed.to_string(), Order::Strict);
        it.post(1);
        it.write_record();
        it.run_for(10 * MS);
        it.there() == 0
    };
    let count = (1..=40).filter(|&seed| waits(seed)).count();
    assert!((8..=32).contains(&count), "{count} of 40");
}

#[test]
fn in_band_slots_are_not_on_offer_in_silicons_order() {
    let config = SoftConfig { order: Order::Strict, ..SoftConfig::default() };
    let (nic, _engines) = SoftNic::manual(&config).unwrap();
    let bed = TestBed::new(HostOptions::default(), nic.clone());
    assert_eq!(nic.order(), Order::Strict);
    for name in ["push/inband", "push/kernel", "push/blueflame", "pull/kernel", "pull/blueflame"] {
        assert_eq!(bed.takes(path(name)), name != "push/inband", "{name}");
    }
    let inband = Some(crate::queue_pairs::inband(bellpush::nic::LineFormat::L14S2, 4, 64, 1));
    let memory = HostMem::alloc(1 << 16).unwrap();
    let view = bellpush::mem::View::new(&memory, 0, 1 << 16).unwrap();
    let refused = nic.create(&bellpush::nic::QpAttr { inband, ..attr() }, &view);
    assert!(matches!(refused, Err(NicError::Unsupported { .. })));
}

/// The verbs of device code that post as silicon asks for it, on every path that a card takes.
#[test]
fn strict_kernels_are_nobodys_finding() {
    for seed in 1..=3 {
        let adversary = Some(format!("{seed},doorbell,payload,cqe").parse().unwrap());
        let order = Order::Strict;
        let config = SoftConfig { adversary, order, ..SoftConfig::new(&InProcess::new()) };
        let nic = SoftNic::open(config).unwrap();
        let bed = TestBed::new(HostOptions::default(), nic.clone());
        for name in ["push/kernel", "push/blueflame", "pull/kernel", "pull/blueflame"] {
            let p = bed.pair(path(name), 1 << 16, Options::default());
            let sent = pattern(seed, 1 << 16);
            p.src.write(0, &sent).unwrap();
            let mut op = op(&p, Verb::Put, Scope::Block, 1 << 10);
            (op.count, op.quiet_after, op.local_stride, op.remote_stride) =
                (64, 1, 1 << 10, 1 << 10);
            let kernel = format!("bp_verb_{}", name.replace('/', "_"));
            assert_eq!(bed.launch(&kernel, (1, 32), op), [OK], "{name}, seed {seed}");
            assert_same(&read(&p.dst, 0, 1 << 16), &sent, name);
        }
        assert_eq!(nic.findings(), [], "seed {seed}");
    }
}
