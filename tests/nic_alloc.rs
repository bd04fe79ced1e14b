//! The steady state allocates nothing, and many queue pairs take little memory.

#[path = "support/queue_pairs.rs"]
mod queue_pairs;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bellpush::nic::queue::HostQp;
use bellpush::nic::slots::HostSlots;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::nic::{Change, LineFormat, Mtu, QpAttr, QueuePair};
use bellpush::wire::wqe::{Opcode, Operands, SendWr};
use queue_pairs::{Pair, attr, inband, inline, make_qp};

/// Which engine the NICs have.
const ENGINE: &str = "cpu";

struct Counting;

thread_local! {
    /// Of this thread: the test harness's own threads allocate when they like.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// What is in use is counted for the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: counts, and leaves everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn calls_of(f: impl FnOnce()) -> usize {
    let before = CALLS.get();
    f();
    CALLS.get() - before
}

/// Rounds of every kind of operation; all of them succeed.
fn rounds(p: &mut Pair, n: usize) {
    let payload = [p.a.buf.data(0, 8)];
    let longer = [p.a.buf.data(0, 100), p.a.buf.data(500, 5000)];
    let atomic = Some(Operands { swap_add: 1, compare: 0 });
    for _ in 0..n {
        let keys = |op: &Opcode| matches!(op, Opcode::SendInval | Opcode::Umr);
        for opcode in Opcode::ALL.into_iter().filter(|op| !keys(op)) {
            let wr = SendWr { atomic, ..SendWr::new(opcode) };
            let wr = wr.to(p.b.buf.at(0), p.b.buf.mr.rkey);
            let wr = wr.payload(if opcode.is_atomic() { &payload } else { &longer });
            if matches!(opcode, Opcode::Send | Opcode::SendImm | Opcode::RdmaWriteImm) {
                p.b.host.rq.post(&[p.b.buf.sge(0, 3000), p.b.buf.sge(3000, 3000)]).unwrap();
            }
            p.a.host.send(&wr).unwrap();
            p.settle();
            assert!(!p.a.host.poll_send().unwrap().expect("a completion").opcode.is_error());
            let _ = p.b.host.poll_recv().unwrap();
        }
    }
}

#[test]
fn no_allocation_per_request() {
    let _alone = ALONE.lock();
    let mut p = Pair::new(&attr());
    rounds(&mut p, 2);
    assert_eq!(calls_of(|| rounds(&mut p, 200)), 0);
    // Negative control: the counter sees an allocation.
    assert_eq!(calls_of(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn no_allocation_per_packet() {
    let _alone = ALONE.lock();
    let with = Change { path_mtu: Mtu::new(256), ..Change::default() };
    let mut p = Pair::on_packets("", &attr(), &attr(), &with);
    rounds(&mut p, 10); // as many READs and atomics as a responder keeps
    assert_eq!(calls_of(|| rounds(&mut p, 200)), 0);
    // Nor does it depend on what is lost and sent again.
    let mut p = Pair::on_packets("loss=20%,dup=5%,seed=1", &attr(), &attr(), &with);
    let mut again = |n: usize| {
        for _ in 0..n {
            let payload = [p.a.buf.data(0, 8000)];
            let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey);
            p.a.host.send(&wr.payload(&payload)).unwrap();
            let end = p.now_ns + 10_000_000_000;
            while p.a.host.poll_send().unwrap().is_none() {
                assert!(p.now_ns < end, "no completion");
                p.now_ns += 100_000;
                let now = p.now_ns;
                for engine in &mut p.engines {
                    engine.step(now);
                }
            }
        }
    };
    again(3);
    assert_eq!(calls_of(|| again(20)), 0);
}

#[test]
fn no_allocation_per_slot_or_blueflame() {
    let _alone = ALONE.lock();
    for on_packets in [false, true] {
        slots_and_blueflame(on_packets);
    }
}

fn slots_and_blueflame(on_packets: bool) {
    let pair = |attr_a: &QpAttr| match on_packets {
        false => Pair::new(attr_a),
        true => Pair::on_packets("", attr_a, &attr(), &Change::default()),
    };
    let cfg = inband(LineFormat::L60S4, 4, 4096, 1);
    let mut p = pair(&QpAttr { inband: Some(cfg.clone()), ..attr() });
    let mut slots = HostSlots::new(p.a.qp.qpn(), &cfg);
    let data = [3; 3000];
    let payload = inline(&data);
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    let mut rounds = |n: usize| {
        for _ in 0..n {
            slots.post(&wr).unwrap();
            p.settle();
            slots.retire(p.a.host.poll_send().unwrap().unwrap().wqe_counter);
        }
    };
    rounds(5);
    assert_eq!(calls_of(|| rounds(500)), 0);

    let mut p = pair(&QpAttr { blueflame: true, ..attr() });
    let payload = inline(&data[..100]);
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    let mut rounds = |n: usize| {
        for _ in 0..n {
            p.a.host.sq.post_blueflame(&wr).unwrap();
            p.settle();
            p.a.host.poll_send().unwrap().unwrap();
        }
    };
    rounds(5);
    assert_eq!(calls_of(|| rounds(500)), 0);
}

#[test]
fn a_thousand_queue_pairs_take_less_than_100_mib() {
    let _alone = ALONE.lock();
    let link = InProcess::new();
    let (nic, mut engines) = SoftNic::manual(&SoftConfig::new(&link)).unwrap();
    let before = IN_USE.load(Ordering::Relaxed);
    let qps: Vec<_> = (0..1000).map(|_| make_qp(&nic, &attr())).collect();
    for pair in qps.chunks_exact(2) {
        pair[0].0.connect(pair[1].0.address()).unwrap();
        pair[1].0.connect(pair[0].0.address()).unwrap();
    }
    engines[0].step(1);
    let bytes = IN_USE.load(Ordering::Relaxed) - before;
    println!("1,000 queue pairs: {} KiB of NIC structures", bytes >> 10);
    assert!(bytes < 100 << 20);
    // All of them work.
    for (i, pair) in qps.chunks_exact(2).enumerate() {
        let mut host = HostQp::new(&*pair[0].0);
        host.send(&SendWr::new(Opcode::Nop)).unwrap();
        engines[0].step(2 + i as u64);
        assert!(!host.poll_send().unwrap().expect("a completion").opcode.is_error());
    }
}
