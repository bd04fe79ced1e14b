//! In-band slots in a row that all blocks of the engine take.

use bellpush::gpu::{Executor, Gpu, HostOptions};
use bellpush::gpu_engine::EngineOptions;
use bellpush::mem::Dma;
use bellpush::nic::queue::HostQp;
use bellpush::nic::slots::HostSlots;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::nic::{Access, Inband, LineFormat, Nic, QpAttr, QueuePair};
use bellpush::wire::Rkey;
use bellpush::wire::cqe::{Cqe, Syndrome};
use bellpush::wire::wqe::{Flags, Opcode, Operands, SendWr};

use super::kernel::{Bench, counters};
use super::own::{completion, told};
use crate::queue_pairs::{Buf, attr, inband, inline, make_qp, pattern};

/// A block takes a slot a warp by itself. Of two warps and of three, and with one block, which is the control.
const SHAPES: [(u32, u32); 3] = [(3, 64), (4, 96), (1, 64)];
const SLOTS: u32 = 32;
const SLOT: u32 = 1024;
/// Payload of a slot.
const EACH: usize = 700;
const BYTES: usize = 64 << 10;
/// A slot in the middle of a run: a block of two warps or three has taken one alone and a round, and all blocks
/// have begun.
const MIDDLE: usize = 14;

/// An engine, and the poster of slots to it.
struct Posts {
    t: Bench,
    cfg: Inband,
    slots: HostSlots,
}

impl Posts {
    fn new(shape: (u32, u32), line: LineFormat, seq0: u32) -> Self {
        let cfg = inband(line, SLOTS, SLOT, seq0);
        let t = Bench::new(shape, &QpAttr { inband: Some(cfg.clone()), ..attr() }, BYTES);
        let slots = HostSlots::new(t.a.qpn(), &cfg);
        Self { t, cfg, slots }
    }

    fn to(&self, at: usize) -> SendWr<'static> {
        SendWr::new(Opcode::RdmaWrite).to(self.t.dst.at(at as u64), self.t.dst.mr.rkey)
    }

    fn write(&mut self, at: usize, data: &[u8], flags: Flags) {
        let payload = inline(data);
        let wr = SendWr { flags, ..self.to(at) };
        self.slots.post(&wr.payload(&payload)).unwrap();
    }

    /// `n` slots that continue each other, from one byte of the region on: all ask for a CQE.
    fn run(&mut self, at: usize, n: usize, data: &[u8]) {
        for part in data[..n * EACH].chunks(EACH).enumerate() {
            self.write(at + part.0 * EACH, part.1, Flags::SIGNALLED);
        }
    }

    fn step(&mut self) -> Vec<Cqe> {
        let cqes = self.t.step();
        cqes.iter().for_each(|cqe| self.slots.retire(cqe.wqe_counter));
        cqes
    }

    fn is(&self, at: usize, data: &[u8]) -> bool {
        self.t.dst.get(at, data.len()) == data
    }
}

fn kinds() -> impl Iterator<Item = (LineFormat, (u32, u32))> {
    LineFormat::ALL.into_iter().flat_map(|line| SHAPES.map(|shape| (line, shape)))
}

#[test]
fn runs_of_slots_arrive_whole_over_laps_and_where_sequences_restart() {
    let data = pattern(BYTES, 21);
    for (line, shape) in kinds() {
        // A lap in which sequences restart comes second, or third.
        for seq0 in [line.modulus(), line.modulus() - 1] {
            let mut p = Posts::new(shape, line, seq0);
            let mut sent = 0;
            for (turn, n) in [31, 32, 9, 32, 27, 32].into_iter().enumerate() {
                p.t.dst.put(0, &[0; BYTES]);
                let at = 3 + turn * 5; // whole units, and odd places
                // Some ask for a CQE, in two lanes' worth of slots at least.
                for i in 0..n {
                    let asks = i % 5 == 2 || i == n - 1;
                    let flags = if asks { Flags::SIGNALLED } else { Flags::default() };
                    let from = i * EACH;
                    p.write(at + from, &data[turn + from..][..EACH], flags);
                }
                let expected = (0..n).filter(|i| i % 5 == 2 || *i == n - 1);
                let expected: Vec<_> = expected.map(|i| (sent + i) as u16).collect();
                let what = format!("{line:?} {shape:?} {seq0} {turn}");
                assert_eq!(counters(&p.step()), expected, "{what}");
                assert!(p.is(at, &data[turn..][..n * EACH]), "{what}");
                assert!(p.is(0, &vec![0; at]) && p.is(at + n * EACH, &[0; 16]), "{what}");
                sent += n;
            }
            let seen = p.t.nic.counters();
            let sent = sent as u64;
            assert_eq!((seen.inband, seen.offloaded, seen.returned), (sent, sent, 0));
            assert_eq!(seen.bytes, sent * EACH as u64);
        }
    }
}

/// What ends before such a slot is completed; it and what follows are when it is whole.
#[test]
fn a_slot_that_lacks_a_line_ends_a_run_until_the_line_comes() {
    let data = pattern(BYTES, 22);
    for (line, shape) in kinds() {
        for held in [4, MIDDLE, 25] {
            // A line of no lap, of the lap before, and of the next one.
            for seq in [0, 1, 3u32] {
                let mut p = Posts::new(shape, line, 1);
                p.run(0, 32, &data);
                assert_eq!(p.step().len(), 32);
                p.t.dst.put(0, &[0; BYTES]);
                p.run(1, 32, &data);
                let at = held * SLOT as usize + 5 * line.line_bytes();
                let mut whole = vec![0; line.line_bytes()];
                p.cfg.window.read(at, &mut whole).unwrap();
                let mut torn = whole.clone();
                torn[line.data_bytes()..].copy_from_slice(&seq.to_le_bytes()[..line.seq_bytes()]);
                p.cfg.window.write(at, &torn).unwrap();
                let what = format!("{line:?} {shape:?} {held} {seq}");
                let early: Vec<_> = (32..32 + held as u16).collect();
                assert_eq!(counters(&p.step()), early, "{what}");
                assert!(p.is(1, &data[..held * EACH]), "{what}");
                assert!(p.is(1 + held * EACH, &[0; EACH]), "{what}");
                p.cfg.window.write(at, &whole).unwrap();
                assert_eq!(p.step().len(), 32 - held, "{what}");
                assert!(p.is(1, &data[..32 * EACH]) && p.is(1 + 32 * EACH, &[0; 16]), "{what}");
                assert_eq!(p.t.nic.counters().returned, 0, "{what}");
            }
        }
    }
}

/// Nothing behind a WQE that is refused is seen, nor a byte of it.
#[test]
fn a_refused_wqe_ends_a_run_for_good() {
    let data = pattern(BYTES, 23);
    // A key that is none; a length that no slot has room for; a region's end.
    let refused = [Syndrome::RemoteAccess, Syndrome::LocalLength, Syndrome::RemoteAccess];
    for (line, shape) in kinds() {
        for (which, syndrome) in refused.into_iter().enumerate() {
            let mut p = Posts::new(shape, line, 1);
            let at = if which == 2 { BYTES - MIDDLE * EACH - 300 } else { 8 };
            p.run(at, MIDDLE, &data);
            for i in MIDDLE..30 {
                let payload = inline(&data[i * EACH..][..EACH]);
                let rkey = if i == MIDDLE && which == 0 { Rkey(7) } else { p.t.dst.mr.rkey };
                let wr =
                    SendWr::new(Opcode::RdmaWrite).to(p.t.dst.at((at + i * EACH) as u64), rkey);
                p.slots.post(&wr.payload(&payload)).unwrap();
            }
            if which == 1 {
                let count = (0x8000_0000 | (2 * SLOT)).to_be_bytes();
                let n = line.data_bytes();
                let place = MIDDLE * SLOT as usize + 32 / n * line.line_bytes() + 32 % n;
                p.cfg.window.write(place, &count).unwrap();
            }
            let cqes = p.step();
            let what = format!("{line:?} {shape:?} {which}");
            let said: Vec<_> = cqes.iter().map(|cqe| cqe.syndrome).collect();
            let mut expected = vec![0; MIDDLE];
            expected.push(syndrome as u8);
            expected.resize(30, Syndrome::WrFlush as u8);
            assert_eq!(said, expected, "{what}");
            assert!(p.is(at, &data[..MIDDLE * EACH]), "{what}");
            let behind = BYTES.min(at + 30 * EACH) - (at + MIDDLE * EACH);
            assert!(p.is(at + MIDDLE * EACH, &vec![0; behind]), "{what}");
            assert_eq!(p.t.nic.counters().returned, 1, "{what}");
        }
    }
}

/// An atomic in the middle finds all before it done, and nothing behind it. So does a WRITE elsewhere, a shorter one,
/// and one that is marked.
#[test]
fn what_is_not_of_the_run_keeps_its_place() {
    let data = pattern(BYTES, 24);
    for (line, shape) in kinds() {
        for kind in 0..4 {
            let mut p = Posts::new(shape, line, 1);
            let at = 8;
            p.run(at, MIDDLE, &data);
            // In a slot before the last round's, and one behind.
            let word = at + 8 * EACH / 8 * 8;
            let mut expected = data[..30 * EACH].to_vec();
            let end = match kind {
                0 => {
                    let back = [p.t.src.data(0, 8)];
                    let atomic = Some(Operands { swap_add: 5, compare: 0 });
                    let wr = SendWr { atomic, ..SendWr::new(Opcode::AtomicFa) };
                    let wr = wr.to(p.t.dst.at(word as u64), p.t.dst.mr.rkey).payload(&back);
                    p.slots.post(&wr).unwrap();
                    let place = word - at..word - at + 8;
                    let old = u64::from_le_bytes(data[place.clone()].try_into().unwrap());
                    expected[place].copy_from_slice(&old.wrapping_add(5).to_le_bytes());
                    MIDDLE * EACH
                }
                1 => {
                    // Over the last of the run and the first behind it, which comes later.
                    let over = (MIDDLE - 1) * EACH + 9;
                    p.write(at + over, &[0xee; EACH], Flags::SIGNALLED);
                    expected[over..MIDDLE * EACH].fill(0xee);
                    MIDDLE * EACH
                }
                _ => {
                    let marked = Flags { fence: kind == 3, ..Flags::SIGNALLED };
                    p.write(at + MIDDLE * EACH, &data[MIDDLE * EACH..][..5], marked);
                    MIDDLE * EACH + 5
                }
            };
            let left = 15;
            for part in data[end..][..left * EACH].chunks(EACH).enumerate() {
                p.write(at + end + part.0 * EACH, part.1, Flags::SIGNALLED);
            }
            let what = format!("{line:?} {shape:?} {kind}");
            let all: Vec<_> = (0..(MIDDLE + 1 + left) as u16).collect();
            assert_eq!(counters(&p.step()), all, "{what}");
            assert!(p.is(at, &expected[..end + left * EACH]), "{what}");
            if kind == 0 {
                let old = p.t.src.get(0, 8);
                assert_eq!(old, data[word - at..word - at + 8], "{what}");
            }
            let seen = p.t.nic.counters();
            assert_eq!((seen.offloaded, seen.returned), (all.len() as u64, 0), "{what}");
        }
    }
}

/// A long message through the window as credits come back, with blocks on threads of their own.
#[test]
fn long_messages_pass_through_an_engine_that_runs() {
    const MESSAGE: usize = 400 * EACH + 77;
    let gpu = Gpu::open(Executor::Host(HostOptions { workers: 3, ..Default::default() })).unwrap();
    let options = EngineOptions { blocks: 3, threads: 64, ..EngineOptions::new(&gpu) };
    let offload = Some(bellpush::gpu_engine::open(&gpu, &[], options).unwrap());
    let nic = SoftNic::open(SoftConfig { offload, ..SoftConfig::new(&InProcess::new()) }).unwrap();
    for line in LineFormat::ALL {
        let dst = Buf::new(&nic, MESSAGE, 0, Access::ALL);
        let cfg = inband(line, SLOTS, SLOT, line.modulus()); // sequences restart with the second lap
        let (a, _ma) = make_qp(&nic, &QpAttr { inband: Some(cfg.clone()), ..attr() });
        let (b, _mb) = make_qp(&nic, &attr());
        a.connect(b.address()).unwrap();
        b.connect(a.address()).unwrap();
        let (mut host, mut slots) = (HostQp::new(&*a), HostSlots::new(a.qpn(), &cfg));
        for round in 0..3 {
            let data = pattern(MESSAGE, round);
            let parts: Vec<_> = data.chunks(EACH).enumerate().collect();
            let mut left = parts.len();
            for (i, part) in parts {
                while slots.credits() == 0 {
                    let cqe = completion(&mut host, &nic);
                    assert_eq!(cqe.syndrome, 0);
                    left -= 1;
                    slots.retire(cqe.wqe_counter);
                }
                let payload = inline(part);
                let to = dst.at((i * EACH) as u64);
                let wr = SendWr::new(Opcode::RdmaWrite).to(to, dst.mr.rkey).payload(&payload);
                slots.post(&wr).unwrap();
            }
            for _ in 0..left {
                slots.retire(completion(&mut host, &nic).wqe_counter);
            }
            assert!(dst.get(0, MESSAGE) == data, "{line:?} {round}");
        }
    }
    let seen = told(&nic, 3 * 3 * MESSAGE.div_ceil(EACH) as u64);
    // The CPU's engine visits a queue pair that has come since it last leased some: once, for so many WQEs at most.
    const VISIT: u64 = 64;
    let by_cpu = seen.wqes - seen.offloaded;
    assert!(by_cpu <= LineFormat::ALL.len() as u64 * VISIT, "{seen:?}");
    assert_eq!(seen.returned, 0);
    assert!(nic.trouble().is_none());
}
