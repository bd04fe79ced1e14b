//! Bytes from a program that means harm, and random sequences against a simple model.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::queue_pairs::{self, Pair, attr, inband};
use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::{Access, Change, LineFormat, Mr, Nic, QpAttr, QpState, QueuePair};
use bellpush::wire::cqe::Cqe;
use bellpush::wire::doorbell::{UAR_BF1_OFFSET, UAR_DOORBELL_OFFSET};
use bellpush::wire::wqe::{Opcode, Operands, Piece, SendWr, Sge};
use bellpush::wire::{Iova, Rkey, blueflame};
use proptest::prelude::*;

const GUARD: usize = 4096;
const BODY: usize = 4096;

/// A region in the middle of memory that nobody may touch.
struct Guarded {
    mem: Arc<HostMem>,
    mr: Mr,
}

impl Guarded {
    fn new(nic: &bellpush::nic::soft::SoftNic, iova: u64) -> Self {
        let mem = HostMem::alloc(BODY + 2 * GUARD).unwrap();
        mem.fill(0, mem.len(), 0xa5).unwrap();
        let view = View::new(&mem, GUARD, BODY).unwrap();
        let mr = nic.register(Arc::new(view), Iova(iova), Access::ALL).unwrap();
        Self { mem, mr }
    }

    fn intact(&self) -> bool {
        let mut guards = vec![0; 2 * GUARD];
        self.mem.read(0, &mut guards[..GUARD]).unwrap();
        self.mem.read(GUARD + BODY, &mut guards[GUARD..]).unwrap();
        guards.iter().all(|&b| b == 0xa5)
    }
}

struct Arena {
    p: Pair,
    a: Guarded,
    b: Guarded,
}

impl Arena {
    fn new(attr: &QpAttr) -> Self {
        let mut p = Pair::new(attr);
        let (a, b) = (Guarded::new(&p.nics[0], 0x1000), Guarded::new(&p.nics[1], 0x1000));
        for _ in 0..8 {
            let sge = Sge { addr: Iova(0x1000 + 4000), lkey: b.mr.lkey, bytes: 96 };
            p.b.host.rq.post(&[sge]).unwrap();
        }
        Self { p, a, b }
    }

    /// Runs until nothing moves, and checks what must hold whatever was posted.
    fn check(&mut self) -> Vec<Cqe> {
        self.p.run_for(400_000);
        self.p.now_ns += 1_000_000_000; // peers that do not answer are given up
        self.p.run_for(20_000);
        let cqes = self.p.sent();
        assert!(self.a.intact() && self.b.intact(), "memory outside a region was touched");
        let errors = cqes.iter().filter(|c| c.opcode.is_error()).count();
        let overran = self.p.nics[0].counters().cq_overruns > 0;
        let in_error = self.p.a.qp.state() == QpState::Err;
        assert_eq!(in_error, errors > 0 || overran, "ERR and an error CQE go together");
        cqes
    }
}

/// A request that is right but for what `noise` does to its bytes.
fn wqe(arena: &Arena, opcode: Opcode, index: u16, noise: &[(usize, u8)]) -> Vec<u8> {
    let sge = Sge { addr: Iova(0x1000 + 8), lkey: arena.a.mr.lkey, bytes: 8 };
    let atomic = Some(Operands { swap_add: 1, compare: 2 });
    let payload = [Piece::Data(sge)];
    let wr = SendWr { atomic, ..SendWr::new(opcode) };
    let wr = wr.to(Iova(0x1000), arena.b.mr.rkey).payload(&payload);
    let mut bytes = vec![0; 256];
    wr.emit(index, arena.p.a.qp.qpn(), &mut bytes).unwrap();
    for &(at, value) in noise {
        bytes[at % 64] = value;
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn mutated_requests(
        ops in prop::collection::vec(
            (0usize..10, prop::collection::vec((0usize..64, any::<u8>()), 0..4)), 1..20),
    ) {
        let mut arena = Arena::new(&attr());
        for (i, (op, noise)) in ops.iter().enumerate() {
            let bytes = wqe(&arena, Opcode::ALL[*op], i as u16, noise);
            arena.p.a.qp.queues().sq.write(i * 64, &bytes[..64]).unwrap();
        }
        let n = ops.len() as u16;
        arena.p.a.qp.queues().dbr.write(4, &u32::from(n).to_be_bytes()).unwrap();
        arena.p.a.qp.queues().uar.store_u64(UAR_DOORBELL_OFFSET, 1, Ordering::Release).unwrap();
        arena.check();
    }

    #[test]
    fn random_rings_doorbells_records_and_receives(
        ring in prop::collection::vec(any::<u8>(), 4096),
        rq in prop::collection::vec(any::<u8>(), 1024),
        bells in prop::collection::vec((any::<u64>(), any::<u64>(), any::<[u8; 8]>()), 1..8),
        consumer: [u8; 8],
    ) {
        let mut arena = Arena::new(&attr());
        let q = arena.p.a.qp.queues().clone();
        q.sq.write(0, &ring).unwrap();
        arena.p.b.qp.queues().rq.write(0, &rq).unwrap();
        for (first, second, record) in bells {
            q.uar.store_u64(UAR_DOORBELL_OFFSET, first, Ordering::Release).unwrap();
            q.uar.store_u64(UAR_BF1_OFFSET, second, Ordering::Release).unwrap();
            q.dbr.write(0, &record).unwrap();
            arena.p.run_for(5_000);
        }
        q.send_cq_dbr.write(0, &consumer).unwrap();
        arena.check();
    }

    #[test]
    fn random_slots(
        format in 0usize..3,
        bytes in prop::collection::vec(any::<u8>(), 1024),
        noise in prop::collection::vec((0usize..64, any::<u8>()), 0..4),
        op in 0usize..10,
    ) {
        let line = LineFormat::ALL[format];
        let cfg = inband(line, 2, 512, 3);
        let mut arena = Arena::new(&QpAttr { inband: Some(cfg.clone()), ..attr() });
        // The first slot is a request with noise in it, the second random but for its sequence.
        let mut slot = vec![0; 512];
        let request = wqe(&arena, Opcode::ALL[op], 0, &noise);
        line.scatter(&request, 3, &mut slot);
        cfg.window.write(0, &slot).unwrap();
        let most = line.capacity(512);
        line.scatter(&bytes[..most], 3, &mut slot);
        cfg.window.write(512, &slot).unwrap();
        arena.check();
    }

    #[test]
    fn random_blueflame(
        op in 0usize..10,
        noise in prop::collection::vec((0usize..64, any::<u8>()), 0..3),
        seal: bool,
    ) {
        let mut arena = Arena::new(&QpAttr { blueflame: true, ..attr() });
        let mut bytes = wqe(&arena, Opcode::ALL[op], 0, &noise);
        if seal {
            blueflame::seal(&mut bytes[..64]);
        }
        arena.p.a.qp.queues().uar.write(UAR_BF1_OFFSET, &bytes).unwrap();
        let cqes = arena.check();
        prop_assert!(seal || noise.iter().any(|n| n.0 / 4 == 3) || cqes.is_empty());
    }
}

#[test]
fn a_ring_that_changes_under_the_reader_does_no_harm() {
    let mut arena = Arena::new(&attr());
    let good = wqe(&arena, Opcode::RdmaWrite, 0, &[]);
    let q = arena.p.a.qp.queues().clone();
    let put_good = |block: usize| {
        let mut bytes = good.clone();
        bytes[2] = block as u8;
        q.sq.write(block * 64, &bytes[..64]).unwrap();
    };
    (0..64).for_each(put_good);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut x = 1u64;
            while !stop.load(Ordering::Relaxed) {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (block, at) = ((x >> 20) as usize % 64, (x >> 30) as usize % 48);
                q.sq.write(block * 64 + at, &[(x >> 40) as u8]).unwrap();
                put_good(block);
            }
        });
        for round in 0..200u16 {
            arena.p.a.qp.modify(QpState::Reset, &Change::default()).unwrap();
            arena.p.b.qp.modify(QpState::Reset, &Change::default()).unwrap();
            arena.p.a.qp.connect(arena.p.b.qp.address()).unwrap();
            arena.p.b.qp.connect(arena.p.a.qp.address()).unwrap();
            q.dbr.write(4, &(60u32 + u32::from(round % 4)).to_be_bytes()).unwrap();
            q.uar.store_u64(UAR_DOORBELL_OFFSET, 1, Ordering::Release).unwrap();
            arena.p.run_for(20_000);
            arena.p.sent();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(arena.p.nics[0].counters().wqes > 0, "some went through");
    assert!(arena.a.intact() && arena.b.intact());
}

#[test]
fn the_guards_notice_a_stray_byte() {
    let arena = Arena::new(&attr());
    assert!(arena.b.intact());
    arena.b.mem.write(GUARD - 1, &[0]).unwrap();
    assert!(!arena.b.intact());
    arena.b.mem.write(GUARD - 1, &[0xa5]).unwrap();
    arena.b.mem.write(GUARD + BODY, &[0]).unwrap();
    assert!(!arena.b.intact());
}

/// An operation on the two buffers of a [`Pair`], small enough to overlap often.
#[derive(Debug, Clone)]
enum Op {
    Write { from: u64, to: u64, n: u32 },
    Inline { data: Vec<u8>, to: u64 },
    Read { from: u64, to: u64, n: u32 },
    Send { from: u64, n: u32, cut: u32, to: [u64; 2] },
    Add { at: u64, add: u64, to: u64 },
    Swap { at: u64, compare: u64, swap: u64, to: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let at = 0u64..256;
    let n = 1u32..200;
    prop_oneof![
        (at.clone(), at.clone(), n.clone()).prop_map(|(from, to, n)| Op::Write { from, to, n }),
        (prop::collection::vec(any::<u8>(), 0..100), at.clone())
            .prop_map(|(data, to)| Op::Inline { data, to }),
        (at.clone(), at.clone(), n.clone()).prop_map(|(from, to, n)| Op::Read { from, to, n }),
        (at.clone(), n, 1u32..200, [at.clone(), at.clone()])
            .prop_map(|(from, n, cut, to)| Op::Send { from, n, cut, to }),
        (0u64..32, 0u64..3, at.clone()).prop_map(|(at, add, to)| Op::Add { at: at * 8, add, to }),
        (0u64..32, 0u64..3, any::<u64>(), at).prop_map(|(at, compare, swap, to)| Op::Swap {
            at: at * 8,
            compare,
            swap,
            to
        }),
    ]
}

/// What the operations do, on plain arrays.
struct Model {
    a: Vec<u8>,
    b: Vec<u8>,
}

impl Model {
    fn apply(&mut self, op: &Op) {
        let range = |at: u64, n: u32| at as usize..at as usize + n as usize;
        match op {
            Op::Write { from, to, n } => {
                self.b[range(*to, *n)].copy_from_slice(&self.a[range(*from, *n)]);
            }
            Op::Inline { data, to } => {
                self.b[range(*to, data.len() as u32)].copy_from_slice(data);
            }
            Op::Read { from, to, n } => {
                self.a[range(*to, *n)].copy_from_slice(&self.b[range(*from, *n)]);
            }
            Op::Send { from, n, cut, to } => {
                let data = self.a[range(*from, *n)].to_vec();
                let (x, y) = data.split_at((*cut).min(*n) as usize);
                self.b[range(to[0], x.len() as u32)].copy_from_slice(x);
                self.b[range(to[1], y.len() as u32)].copy_from_slice(y);
            }
            Op::Add { at, add, to } => self.atomic(*at, *to, |old| old.wrapping_add(*add)),
            Op::Swap { at, compare, swap, to } => {
                self.atomic(*at, *to, |old| if old == *compare { *swap } else { old });
            }
        }
    }

    fn atomic(&mut self, at: u64, to: u64, f: impl Fn(u64) -> u64) {
        let old: [u8; 8] = self.b[at as usize..at as usize + 8].try_into().unwrap();
        let new = f(u64::from_ne_bytes(old)).to_ne_bytes();
        self.b[at as usize..at as usize + 8].copy_from_slice(&new);
        self.a[to as usize..to as usize + 8].copy_from_slice(&old);
    }
}

fn post(p: &mut Pair, op: &Op) {
    let key: Rkey = p.b.buf.mr.rkey;
    let opcode = match op {
        Op::Write { .. } | Op::Inline { .. } => Opcode::RdmaWrite,
        Op::Read { .. } => Opcode::RdmaRead,
        Op::Send { .. } => Opcode::Send,
        Op::Add { .. } => Opcode::AtomicFa,
        Op::Swap { .. } => Opcode::AtomicCs,
    };
    let (local, remote, atomic) = match op {
        Op::Write { from, to, n } => (p.a.buf.data(*from, *n), *to, None),
        Op::Inline { data, to } => (Piece::Inline(data), *to, None),
        Op::Read { from, to, n } => (p.a.buf.data(*to, *n), *from, None),
        Op::Send { from, n, cut, to } => {
            let entries = [p.b.buf.sge(to[0], *cut), p.b.buf.sge(to[1], 200)];
            p.b.host.rq.post(&entries).unwrap();
            (p.a.buf.data(*from, *n), 0, None)
        }
        Op::Add { at, add, to } => (p.a.buf.data(*to, 8), *at, Some((*add, 0))),
        Op::Swap { at, compare, swap, to } => (p.a.buf.data(*to, 8), *at, Some((*swap, *compare))),
    };
    let payload = [local];
    let atomic = atomic.map(|(swap_add, compare)| Operands { swap_add, compare });
    let wr = SendWr { atomic, ..SendWr::new(opcode) };
    p.a.host.sq.post(&wr.to(p.b.buf.at(remote), key).payload(&payload)).unwrap();
}

fn agrees(ops: &[Op], modelled: &[Op]) -> bool {
    let mut p = Pair::new(&attr());
    let start = queue_pairs::pattern(512, 11);
    p.a.buf.put(0, &start);
    let mut model = Model { a: start, b: vec![0; 512] };
    modelled.iter().for_each(|op| model.apply(op));
    // In batches, so that several are in the ring at once.
    for batch in ops.chunks(10) {
        batch.iter().for_each(|op| post(&mut p, op));
        p.a.host.sq.ring().unwrap();
        p.settle();
        let cqes = p.sent();
        assert_eq!(cqes.len(), batch.len());
        assert!(cqes.iter().all(|c| !c.opcode.is_error()), "{cqes:?}");
        p.received();
    }
    p.a.buf.get(0, 512) == model.a && p.b.buf.get(0, 512) == model.b
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_operations_do_what_a_simple_model_does(ops in prop::collection::vec(op(), 1..60)) {
        prop_assert!(agrees(&ops, &ops));
    }
}

#[test]
fn the_model_notices_a_lost_operation() {
    let ops = [Op::Inline { data: vec![1], to: 3 }, Op::Add { at: 8, add: 2, to: 0 }];
    assert!(agrees(&ops, &ops));
    assert!(!agrees(&ops, &ops[..1]));
    assert!(!agrees(&ops[1..], &ops));
}
