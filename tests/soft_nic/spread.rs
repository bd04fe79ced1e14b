//! WRITEs that continue each other, copied by several threads: nothing but the time may tell.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::queue_pairs::{self, Buf, attr, inband, inline, make_qp, syndromes};
use bellpush::mem::{Dma, HostMem, PAGE_BYTES, View};
use bellpush::nic::queue::HostQp;
use bellpush::nic::slots::HostSlots;
use bellpush::nic::soft::{Event, InProcess, Nap, Qp, SoftConfig, SoftNic};
use bellpush::nic::{Access, LineFormat, Mr, Nic, NicError, QpAttr, QpState, QueuePair};
use bellpush::wire::Iova;
use bellpush::wire::cqe::{Cqe, Syndrome};
use bellpush::wire::wqe::{Flags, Opcode, Operands, Piece, SendWr, Sge};
use bellpush_broken_mem::{Fate, Late};
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_secs(20);
const QUIET: Flags = Flags { cq_update: false, solicited: false, fence: false };
const KIB: u64 = 1 << 10;
/// Source and destination of a bed.
const BYTES: usize = 64 << 10;

const NO_REST: Nap = Nap { spin: Duration::ZERO, give_way: Duration::ZERO, nap: Duration::ZERO };

/// A NIC with copy threads that stay awake, and a queue pair connected to another.
/// The NIC's WQEs, once they are so many at least: it counts at the end of a step, in which the last CQE came.
fn counted(nic: &SoftNic, at_least: u64) -> u64 {
    let end = Instant::now() + PATIENCE;
    while nic.counters().wqes < at_least && Instant::now() < end {
        std::thread::yield_now();
    }
    nic.counters().wqes
}

struct Bed {
    nic: Arc<SoftNic>,
    qp: Arc<Qp>,
    host: HostQp,
    from: Buf,
    _kept: [Arc<HostMem>; 2],
    _peer: Arc<Qp>,
}

impl Bed {
    fn new(copy_threads: usize, attr: &QpAttr) -> Self {
        let give_way = Duration::from_secs(60);
        Self::with(copy_threads, attr, Nap { give_way, ..NO_REST })
    }

    fn with(copy_threads: usize, attr: &QpAttr, nap: Nap) -> Self {
        let config = SoftConfig { copy_threads, nap, ..SoftConfig::new(&InProcess::new()) };
        let nic = SoftNic::open(config).unwrap();
        let ((qp, kept), (peer, more)) = (make_qp(&nic, attr), make_qp(&nic, &queue_pairs::attr()));
        qp.connect(peer.address()).unwrap();
        peer.connect(qp.address()).unwrap();
        let from = Buf::new(&nic, BYTES, 0, Access::ALL);
        from.put(0, &noise(BYTES, 7));
        Self { host: HostQp::new(&*qp), nic, qp, from, _kept: [kept, more], _peer: peer }
    }

    fn late(&self, range: Range<usize>, fate: Fate) -> (Arc<Late>, View, Mr) {
        let view = View::new(&HostMem::alloc(BYTES).unwrap(), 0, BYTES).unwrap();
        let late = Arc::new(Late::new(view.clone(), range, fate));
        let mr = self.nic.register(late.clone(), Iova(0), Access::ALL).unwrap();
        (late, view, mr)
    }

    /// Posts WRITEs from a region to another, (from, to, bytes) each.
    fn post(&mut self, lkey: &Mr, to: &Mr, writes: &[(u64, u64, u32)], flags: Flags) {
        for &(from, at, bytes) in writes {
            let sge = Sge { addr: Iova(from), lkey: lkey.lkey, bytes };
            let payload = [Piece::Data(sge)];
            let wr = SendWr::new(Opcode::RdmaWrite).to(Iova(at), to.rkey).payload(&payload);
            self.host.sq.post(&SendWr { flags, ..wr }).unwrap();
        }
    }

    /// A WRITE of nothing, whose completion says that all before it are complete.
    fn fence(&mut self) {
        self.host.sq.post(&SendWr::new(Opcode::Nop)).unwrap();
        self.host.sq.ring().unwrap();
        loop {
            let cqe = self.host.wait_send(PATIENCE).unwrap();
            assert!(!cqe.opcode.is_error(), "{cqe:?}");
            if cqe.wqe_counter.wrapping_add(1) == self.host.sq.producer() as u16 {
                return;
            }
        }
    }
}

fn get(view: &View, at: usize, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    view.read(at, &mut out).unwrap();
    out
}

/// Bytes that repeat nowhere.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let word = |i: u64| (i + seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ i;
    (0..bytes as u64).map(|i| (word(i / 8) >> (i % 8 * 8)) as u8).collect()
}

/// A row of WRITEs of 4 KiB, from one place on to another.
fn row(count: u64, from: u64, to: u64) -> Vec<(u64, u64, u32)> {
    (0..count).map(|i| (from + i * 4 * KIB, to + i * 4 * KIB, 4096)).collect()
}

/// 32 KiB in eight WRITEs of one length, and of two lengths.
fn rows(from: u64, to: u64) -> [Vec<(u64, u64, u32)>; 2] {
    let uneven =
        row(8, from, to).into_iter().enumerate().map(|(i, (from, to, bytes))| match i % 2 {
            0 => (from, to, bytes - 1024),
            _ => (from - 1024, to - 1024, bytes + 1024),
        });
    [row(8, from, to), uneven.collect()]
}

#[test]
fn a_completion_comes_after_the_copy_that_it_covers() {
    let mut bed = Bed::new(1, &attr());
    let (late, to, mr) = bed.late(0..8192, Fate::Late);
    let from = bed.from.mr;
    bed.post(&from, &mr, &row(8, 0, 0), Flags::SIGNALLED);
    bed.host.sq.ring().unwrap();
    for i in 0..8 {
        let cqe = bed.host.wait_send(PATIENCE).unwrap();
        assert_eq!((cqe.wqe_counter, cqe.opcode.is_error()), (i, false));
        let at = usize::from(i) * 4096;
        assert!(get(&to, at, 4096) == bed.from.get(at, 4096), "WRITE {i} is complete");
    }
    assert!(late.has_begun(), "no copy thread took part");
    let counters = bed.nic.counters();
    assert_eq!((counters.wqes, counters.bytes), (8, 32 << 10));
}

#[test]
fn an_atomic_waits_for_the_copies_before_it() {
    let mut bed = Bed::new(1, &attr());
    let (late, to, mr) = bed.late(0..8192, Fate::Late);
    let from = bed.from.mr;
    bed.post(&from, &mr, &row(8, 0, 0), QUIET);
    let payload = [bed.from.data(0, 8)];
    let add = SendWr::new(Opcode::AtomicFa).to(Iova(40 * KIB), mr.rkey).payload(&payload);
    let atomic = Some(Operands { swap_add: 1, compare: 0 });
    bed.host.sq.post(&SendWr { atomic, ..add }).unwrap();
    let expected = bed.from.get(0, 32 << 10);
    bed.host.sq.ring().unwrap();
    let start = Instant::now();
    while to.load_u64(40 << 10, Ordering::Acquire).unwrap() == 0 {
        assert!(start.elapsed() < PATIENCE);
    }
    assert!(get(&to, 0, 32 << 10) == expected, "the signal came before the data");
    assert!(late.has_begun(), "no copy thread took part");
}

#[test]
fn what_lies_where_an_earlier_write_goes_comes_after_it() {
    for row_of in rows(0, 0) {
        let mut bed = Bed::new(1, &attr());
        let (late, to, mr) = bed.late(0..8192, Fate::Late);
        let from = bed.from.mr;
        bed.post(&from, &mr, &row_of, QUIET);
        bed.post(&from, &mr, &row(1, 48 * KIB, 0), QUIET);
        bed.fence();
        assert!(get(&to, 0, 4096) == bed.from.get(48 << 10, 4096), "an earlier WRITE came later");
        assert!(get(&to, 4096, 28 << 10) == bed.from.get(4096, 28 << 10));
        assert!(late.has_begun(), "no copy thread took part");
    }
}

#[test]
fn what_an_earlier_write_reads_is_written_after_it() {
    for row in rows(8 * KIB, 0) {
        let mut bed = Bed::new(1, &attr());
        let (_, memory, mr) = bed.late(0..8192, Fate::Late);
        let before = noise(BYTES, 3);
        memory.write(0, &before).unwrap();
        bed.post(&mr, &mr, &row, QUIET);
        bed.fence();
        assert!(get(&memory, 0, 32 << 10) == before[8 << 10..40 << 10]);
    }
}

/// A short WRITE behind the data may be a flag, also where the data end.
#[test]
fn a_short_write_waits_for_the_copies_before_it() {
    for row in rows(0, 0) {
        let mut bed = Bed::new(1, &attr());
        let (late, to, mr) = bed.late(0..8192, Fate::Late);
        let from = bed.from.mr;
        bed.from.put(32 << 10, &1u64.to_ne_bytes());
        bed.post(&from, &mr, &row, QUIET);
        bed.post(&from, &mr, &[(32 * KIB, 32 * KIB, 8)], QUIET);
        let expected = bed.from.get(0, 32 << 10);
        bed.host.sq.ring().unwrap();
        let start = Instant::now();
        while to.load_u64(32 << 10, Ordering::Acquire).unwrap() == 0 {
            assert!(start.elapsed() < PATIENCE);
        }
        assert!(get(&to, 0, 32 << 10) == expected, "the flag came before the data");
        assert!(late.has_begun(), "no copy thread took part");
    }
}

#[test]
fn what_runs_out_of_the_region_fails_alone_after_those_before_it() {
    let mut bed = Bed::new(3, &attr());
    let to = Buf::new(&bed.nic, 30_000, 0, Access::ALL);
    let (from, mr) = (bed.from.mr, to.mr);
    bed.post(&from, &mr, &row(10, 0, 0), Flags::SIGNALLED);
    bed.host.sq.ring().unwrap();
    let cqes: Vec<Cqe> = (0..10).map(|_| bed.host.wait_send(PATIENCE).unwrap()).collect();
    assert!(cqes[..7].iter().all(|cqe| !cqe.opcode.is_error()), "{cqes:?}");
    let flushed = Some(Syndrome::WrFlush);
    assert_eq!(syndromes(&cqes[7..]), [Some(Syndrome::RemoteAccess), flushed, flushed]);
    assert!(to.get(0, 28 << 10) == bed.from.get(0, 28 << 10));
    assert_eq!(to.get(28 << 10, 30_000 - (28 << 10)), vec![0; 30_000 - (28 << 10)]);
    assert_eq!(bed.qp.state(), QpState::Err);
}

#[test]
fn a_panic_of_a_copy_thread_ends_the_engines_queue_pairs() {
    let mut bed = Bed::new(1, &attr());
    let (late, _, mr) = bed.late(0..8192, Fate::Panics);
    let from = bed.from.mr;
    bed.post(&from, &mr, &row(8, 0, 0), Flags::SIGNALLED);
    bed.host.sq.ring().unwrap();
    for _ in 0..8 {
        let cqe = bed.host.wait_send(PATIENCE).unwrap();
        assert_eq!(Syndrome::from_code(cqe.syndrome), Some(Syndrome::WrFlush));
    }
    assert!(late.has_begun());
    assert_eq!(bed.qp.state(), QpState::Err);
    assert!(matches!(bed.nic.trouble(), Some(NicError::Engine(_))));
    let start = Instant::now();
    while bed.nic.next_event() != Some(Event::DeviceFatal) {
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn a_long_write_is_copied_in_parts() {
    let mut bed = Bed::new(1, &attr());
    let (late, to, mr) = bed.late(0..8192, Fate::Late);
    let from = bed.from.mr;
    bed.post(&from, &mr, &[(1, 3, 50_001)], QUIET);
    bed.fence();
    assert!(get(&to, 3, 50_001) == bed.from.get(1, 50_001));
    assert_eq!((get(&to, 0, 3), get(&to, 50_004, 3)), (vec![0; 3], vec![0; 3]));
    assert!(late.has_begun(), "no copy thread took part");
}

#[test]
fn a_thread_that_parks_is_woken_by_a_long_run() {
    let mut bed = Bed::with(1, &attr(), Nap { give_way: Duration::from_millis(100), ..NO_REST });
    let (late, _, mr) = bed.late(0..BYTES, Fate::Late);
    let other = Buf::new(&bed.nic, BYTES, 0, Access::ALL).mr;
    let from = bed.from.mr;
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    while !late.has_begun() {
        assert!(start.elapsed() < PATIENCE, "it sleeps on");
        for _ in 0..3 {
            bed.post(&from, &other, &row(16, 0, 0), QUIET);
        }
        bed.fence();
        bed.post(&from, &mr, &row(8, 0, 0), QUIET);
        bed.fence();
    }
}

#[test]
fn copy_threads_are_bounded_and_park_when_the_nic_goes() {
    let config = |copy_threads| SoftConfig { copy_threads, ..SoftConfig::new(&InProcess::new()) };
    let refused = SoftNic::open(config(65)).map(drop);
    assert!(matches!(refused, Err(NicError::Attribute { value: 65, .. })));
    let nic = SoftNic::open(config(8)).unwrap();
    std::thread::sleep(Duration::from_millis(5)); // some park
    drop(nic); // joins them
    for (cores, engines, threads) in [(1, 1, 0), (2, 1, 0), (4, 1, 1), (16, 1, 7), (16, 12, 2)] {
        assert_eq!(SoftConfig::copy_threads_for(cores, engines), threads);
    }
}

/// Stores a line, its sequence last.
fn store(window: &View, at: usize, line: &[u8]) {
    for (i, word) in line.chunks(8).enumerate() {
        let word = u64::from_ne_bytes(word.try_into().unwrap());
        window.store_u64(at + i * 8, word, Ordering::Release).unwrap();
    }
}

/// WRITEs by slots: one of them lacks a line in its middle for a while.
#[test]
fn a_slot_that_lacks_a_line_is_waited_for_and_those_behind_it_come_once_it_is_there() {
    for line in LineFormat::ALL {
        let cfg = inband(line, 16, 4096, 5);
        let mut bed = Bed::new(2, &QpAttr { inband: Some(cfg.clone()), ..attr() });
        let to = Buf::new(&bed.nic, BYTES, 0, Access::ALL);
        let data = noise(BYTES, 9);
        let mut held = vec![0; line.line_bytes()];
        let middle = 3 * 4096 + 16 * line.line_bytes();
        let each = 2048;
        let shadow = inband(line, 16, 4096, 5);
        let mut ahead = HostSlots::new(bed.qp.qpn(), &shadow);
        for i in 0..8 {
            let payload = inline(&data[i * each..][..each]);
            let wr = SendWr::new(Opcode::RdmaWrite).to(to.at((i * each) as u64), to.mr.rkey);
            ahead.post(&wr.payload(&payload)).unwrap();
        }
        // Whole slots but for that line, the first slot's beginning last.
        shadow.window.read(middle, &mut held).unwrap();
        let mut all = vec![0; 8 * 4096];
        shadow.window.read(0, &mut all).unwrap();
        all[middle..][..held.len()].fill(0);
        cfg.window.write(PAGE_BYTES, &all[PAGE_BYTES..]).unwrap();
        all[..4096].chunks(held.len()).enumerate().rev().for_each(|(i, line)| {
            store(&cfg.window, i * held.len(), line);
        });
        for i in 0..3 {
            assert_eq!(bed.host.wait_send(PATIENCE).unwrap().wqe_counter, i);
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(bed.host.poll_send().unwrap(), None);
        assert!(to.get(0, 3 * each) == data[..3 * each]);
        assert_eq!(to.get(3 * each, each), vec![0; each], "nothing of a slot that is not whole");
        store(&cfg.window, middle, &held);
        for i in 3..8 {
            assert_eq!(bed.host.wait_send(PATIENCE).unwrap().wqe_counter, i);
        }
        assert!(to.get(0, 8 * each) == data[..8 * each]);
    }
}

/// Rings and windows that somebody writes over while WQEs are taken from them and slots are copied.
#[test]
fn what_changes_under_the_copies_does_no_harm() {
    for round in 0..12 {
        let cfg = (round % 2 == 0).then(|| inband(LineFormat::ALL[round / 2 % 3], 16, 4096, 5));
        let mut bed = Bed::new(2, &QpAttr { inband: cfg.clone(), ..attr() });
        let guarded = View::new(&HostMem::alloc(3 * BYTES).unwrap(), 0, 3 * BYTES).unwrap();
        let inside = Arc::new(guarded.part(BYTES, BYTES).unwrap());
        let to = bed.nic.register(inside, Iova(0), Access::ALL).unwrap();
        let mut slots = cfg.as_ref().map(|cfg| HostSlots::new(bed.qp.qpn(), cfg));
        let target = cfg.as_ref().map_or(&bed.qp.queues().sq, |cfg| &cfg.window).clone();
        let (data, over) = (noise(2048, 1), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut at = round as u64 + 1;
                while !over.load(Ordering::Relaxed) {
                    at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let place = (at >> 33) as usize % (target.len() / 8) * 8;
                    let word = target.load_u64(place, Ordering::Relaxed).unwrap();
                    target
                        .store_u64(place, word ^ 1 << (at >> 20 & 63), Ordering::Relaxed)
                        .unwrap();
                    target.store_u64(place, word, Ordering::Relaxed).unwrap();
                    std::thread::yield_now();
                }
            });
            let start = Instant::now();
            let payload = [[bed.from.data(0, 2048)], inline(&data)];
            for i in (0..).take_while(|_| start.elapsed() < Duration::from_millis(20)) {
                let wr = SendWr::new(Opcode::RdmaWrite).to(Iova(i % 32 * 2048), to.rkey);
                match &mut slots {
                    Some(slots) => drop(slots.post(&wr.payload(&payload[1]))),
                    None => drop(bed.host.sq.post(&wr.payload(&payload[0]))),
                }
                if i % 16 == 15 {
                    bed.host.sq.ring().unwrap();
                }
                while let Some(cqe) = bed.host.poll_send().unwrap() {
                    if let Some(slots) = &mut slots {
                        slots.retire(cqe.wqe_counter);
                    }
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(bed.nic.trouble().is_none(), "a thread of the NIC panicked");
        for at in [0, 2 * BYTES] {
            assert!(get(&guarded, at, BYTES) == vec![0; BYTES], "round {round}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any row of WRITEs within one memory, or to another, does what they do one after the other.
    #[test]
    fn a_row_does_what_its_writes_do(
        writes in prop::collection::vec((0u64..30_000, 0u64..30_000, 1u32..20_000, 0u8..8), 1..40),
        (threads, apart) in (1usize..4, any::<bool>()),
    ) {
        let mut bed = Bed::new(threads, &attr());
        let other = Buf::new(&bed.nic, BYTES, 0, Access::ALL);
        let source = bed.from.get(0, BYTES);
        let mut model = if apart { vec![0; BYTES] } else { source.clone() };
        let mut row: Vec<(u64, u64, u32)> = Vec::new();
        for (from, to, bytes, kind) in writes {
            // Mostly where the last one ended, at one end or at both.
            let last = row.last().copied();
            let (next_from, next_to) =
                last.map_or((from, to), |w| (w.0 + u64::from(w.2), w.1 + u64::from(w.2)));
            let from = if kind == 7 { from } else { next_from };
            let to = if kind == 6 { to } else { next_to };
            let fits = |at: u64| at as usize + bytes as usize <= BYTES;
            if fits(from) && fits(to) {
                let n = bytes as usize;
                let read = if apart { &source } else { &model };
                let moved = read[from as usize..][..n].to_vec();
                model[to as usize..][..n].copy_from_slice(&moved);
                row.push((from, to, bytes));
            }
        }
        let (from, to) = (bed.from.mr, if apart { other.mr } else { bed.from.mr });
        bed.post(&from, &to, &row, Flags::SIGNALLED);
        bed.fence();
        let place = if apart { &other } else { &bed.from };
        prop_assert!(place.get(0, BYTES) == model);
        prop_assert_eq!(counted(&bed.nic, row.len() as u64 + 1), row.len() as u64 + 1);
    }

    /// Slots of a row, of which some are something else: elsewhere, where a later one goes, shorter, or for another region.
    /// Those behind them may be again what the row would have gone on with.
    #[test]
    fn a_row_of_slots_does_what_its_writes_do(
        odd in prop::collection::vec((0usize..8, 0usize..5, any::<bool>()), 8..80),
        line in prop::sample::select(&LineFormat::ALL[..]),
    ) {
        const EACH: usize = 600;
        let cfg = inband(line, 32, 1024, 2);
        let mut bed = Bed::new(2, &QpAttr { inband: Some(cfg.clone()), ..attr() });
        let regions = [0; 2].map(|_| Buf::new(&bed.nic, BYTES, 0, Access::ALL));
        let mut models = [0; 2].map(|_| vec![0; BYTES]);
        let (mut slots, data) = (HostSlots::new(bed.qp.qpn(), &cfg), noise(BYTES, 1));
        let (count, mut done, mut asked) = (odd.len(), 0, 0);
        for (i, (what, ahead, asks)) in odd.into_iter().enumerate() {
            let next = i * EACH;
            let (region, at, bytes) = match what {
                0 => (0, next + ahead * EACH, EACH),
                1 => (0, next, EACH - 1),
                2 => (1, next, EACH),
                _ => (0, next, EACH),
            };
            let part = &data[i * 100..][..bytes];
            models[region][at..at + bytes].copy_from_slice(part);
            let (to, payload) = (&regions[region], inline(part));
            // A window's last slot has its credit from a CQE behind it.
            let flags = if asks || i % 8 == 7 { Flags::SIGNALLED } else { QUIET };
            asked += u32::from(flags.cq_update);
            while slots.credits() == 0 {
                slots.retire(bed.host.wait_send(PATIENCE).unwrap().wqe_counter);
                done += 1;
            }
            let wr = SendWr::new(Opcode::RdmaWrite).to(to.at(at as u64), to.mr.rkey);
            slots.post(&SendWr { flags, ..wr.payload(&payload) }).unwrap();
        }
        let wr = SendWr::new(Opcode::Nop);
        while slots.credits() == 0 {
            slots.retire(bed.host.wait_send(PATIENCE).unwrap().wqe_counter);
            done += 1;
        }
        slots.post(&SendWr { flags: Flags::SIGNALLED, ..wr }).unwrap();
        for _ in done..asked + 1 {
            prop_assert!(!bed.host.wait_send(PATIENCE).unwrap().opcode.is_error());
        }
        for (region, model) in regions.iter().zip(&models) {
            prop_assert!(region.get(0, BYTES) == *model);
        }
        prop_assert_eq!(counted(&bed.nic, count as u64 + 1), count as u64 + 1);
    }

    /// Messages through slots arrive, whatever their lengths and wherever they go.
    #[test]
    fn slots_do_what_their_writes_do(
        writes in prop::collection::vec((0usize..50_000, 1usize..3000, any::<bool>()), 1..60),
        line in prop::sample::select(&LineFormat::ALL[..]),
    ) {
        let cfg = inband(line, 16, 4096, 2);
        let mut bed = Bed::new(2, &QpAttr { inband: Some(cfg.clone()), ..attr() });
        let to = Buf::new(&bed.nic, BYTES, 0, Access::ALL);
        let (mut slots, mut model, data) = (HostSlots::new(bed.qp.qpn(), &cfg), vec![0; BYTES], noise(BYTES, 1));
        let mut next = 0;
        let count = writes.len();
        let mut done = 0;
        for (i, (at, bytes, jumps)) in writes.into_iter().enumerate() {
            let at = if jumps && i % 4 == 0 { at } else { next };
            let at = if at + bytes <= BYTES { at } else { 0 };
            next = at + bytes;
            let part = &data[i * 100..][..bytes];
            model[at..next].copy_from_slice(part);
            let payload = inline(part);
            let wr = SendWr::new(Opcode::RdmaWrite).to(to.at(at as u64), to.mr.rkey);
            while i - done >= 16 {
                slots.retire(bed.host.wait_send(PATIENCE).unwrap().wqe_counter);
                done += 1;
            }
            slots.post(&wr.payload(&payload)).unwrap();
        }
        for _ in done..count {
            let cqe = bed.host.wait_send(PATIENCE).unwrap();
            prop_assert!(!cqe.opcode.is_error());
        }
        prop_assert!(to.get(0, BYTES) == model);
    }
}
