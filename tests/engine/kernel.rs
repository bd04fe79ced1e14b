//! WRITEs that the engine carries out as one, and keys that it remembers.

use std::sync::Arc;
use std::time::Duration;

use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::queue::HostQp;
use bellpush::nic::slots::HostSlots;
use bellpush::nic::soft::{Engine, Qp, Reregister, SoftNic};
use bellpush::nic::{Access, LineFormat, Nic, QpAttr, QueuePair};
use bellpush::wire::Iova;
use bellpush::wire::cqe::{Cqe, Syndrome};
use bellpush::wire::wqe::{Flags, Opcode, SendWr};

use super::own::{completion, one, running, told};
use crate::queue_pairs::{Buf, attr, inband, inline, make_qp, pattern, stepped_engine};

/// Blocks and threads: one lane, a partial warp, several warps, several blocks.
const SHAPES: [(u32, u32); 4] = [(1, 1), (1, 7), (1, 96), (3, 64)];

/// Two connected queue pairs and two regions on an engine of that shape.
pub(super) struct Bench {
    engines: Vec<Engine>,
    pub(super) host: HostQp,
    pub(super) src: Buf,
    pub(super) dst: Buf,
    now: u64,
    pub(super) nic: Arc<SoftNic>,
    pub(super) a: Arc<Qp>,
    _rest: (Arc<Qp>, [Arc<HostMem>; 2]),
}

impl Bench {
    pub(super) fn new(shape: (u32, u32), attr: &QpAttr, bytes: usize) -> Self {
        let (nic, engines, [src, dst]) = one(stepped_engine(shape.0, shape.1), bytes);
        let (a, ma) = make_qp(&nic, attr);
        let (b, mb) = make_qp(&nic, &QpAttr { inband: None, ..attr.clone() });
        a.connect(b.address()).unwrap();
        b.connect(a.address()).unwrap();
        let host = HostQp::new(&*a);
        Self { engines, host, src, dst, now: 0, nic, a, _rest: (b, [ma, mb]) }
    }

    pub(super) fn step(&mut self) -> Vec<Cqe> {
        for _ in 0..4 {
            self.now += 1000;
            self.engines.iter_mut().for_each(|e| _ = e.step(self.now));
        }
        std::iter::from_fn(|| self.host.poll_send().unwrap()).collect()
    }

    fn write(&mut self, from: u64, to: u64, bytes: u32, flags: Flags) {
        let payload = [self.src.data(from, bytes)];
        let wr = SendWr::new(Opcode::RdmaWrite).to(self.dst.at(to), self.dst.mr.rkey);
        self.host.sq.post(&SendWr { flags, ..wr }.payload(&payload)).unwrap();
    }
}

pub(super) fn counters(cqes: &[Cqe]) -> Vec<u16> {
    cqes.iter().map(|cqe| cqe.wqe_counter).collect()
}

#[test]
fn writes_that_continue_each_other_are_each_completed_in_order() {
    let data = pattern(64 << 10, 11);
    for shape in SHAPES {
        let mut t = Bench::new(shape, &attr(), 64 << 10);
        t.src.put(0, &data);
        // A row of 20 from the middle of the ring on, CQEs asked for by some.
        for i in 0..50 {
            let flags = if i == 49 { Flags::SIGNALLED } else { Flags::default() };
            t.write(0, 60 << 10, 8, flags);
        }
        t.host.sq.ring().unwrap();
        assert_eq!(counters(&t.step()), [49]);
        let sizes = [1000, 24, 4096, 1, 7, 16, 300, 2000, 64, 512];
        let mut at = 5;
        for i in 0..20 {
            let flags = if i % 4 == 3 { Flags::SIGNALLED } else { Flags::default() };
            t.write(at, at + 3, sizes[i % 10], flags);
            at += u64::from(sizes[i % 10]);
        }
        t.host.sq.ring().unwrap();
        assert_eq!(counters(&t.step()), [53, 57, 61, 65, 69], "{shape:?}");
        assert!(t.dst.get(8, at as usize - 5) == data[5..at as usize], "{shape:?}");
        assert_eq!(t.dst.get(at as usize + 3, 8), [0; 8]);
        let seen = t.nic.counters();
        assert_eq!((seen.offloaded, seen.returned), (70, 0), "{shape:?}");
    }
}

/// The last of two WRITEs to one place is what stays, wherever a row ends.
#[test]
fn what_does_not_continue_comes_after_what_was_coalesced() {
    for shape in SHAPES {
        for turn in 1..6u64 {
            let mut t = Bench::new(shape, &attr(), 64 << 10);
            t.src.put(0, &pattern(32 << 10, 12));
            t.src.put(40 << 10, &[0xfa; 4096]);
            for i in 0..6 {
                t.write(i * 2048, i * 2048, 2048, Flags::default());
                if i == turn {
                    // Over the whole row; from elsewhere, so that nothing joins it.
                    t.write(40 << 10, 0, 4096, Flags::default());
                    t.write(44 << 10, (turn + 1) * 2048 - 1, 1, Flags::default());
                }
            }
            t.write(0, 60 << 10, 8, Flags::SIGNALLED);
            t.host.sq.ring().unwrap();
            assert_eq!(t.step().len(), 1);
            let mut expected = pattern(32 << 10, 12);
            expected[..4096].fill(0xfa);
            expected[(turn as usize + 1) * 2048 - 1] = 0;
            assert!(t.dst.get(0, 6 * 2048) == expected[..6 * 2048], "{shape:?} {turn}");
            assert_eq!(t.nic.counters().returned, 0);
        }
    }
}

/// A row runs over its region's end: all before are done, the one that does is the host's, and its
/// error's; nothing behind it is.
#[test]
fn a_fault_ends_the_coalescing_there() {
    for shape in SHAPES {
        for bad in 0..5u64 {
            let mut t = Bench::new(shape, &attr(), 16 << 10);
            t.src.put(0, &pattern(16 << 10, 13));
            let start = (16 << 10) - bad * 1000 - 500;
            for i in 0..7 {
                t.write(i * 1000, start + i * 1000, 1000, Flags::SIGNALLED);
            }
            t.host.sq.ring().unwrap();
            let cqes = t.step();
            let said: Vec<_> = cqes.iter().map(|cqe| cqe.syndrome).collect();
            let mut expected = vec![0; bad as usize];
            expected.push(Syndrome::RemoteAccess as u8);
            expected.resize(7, Syndrome::WrFlush as u8);
            assert_eq!(said, expected, "{shape:?}");
            assert_eq!(counters(&cqes), [0, 1, 2, 3, 4, 5, 6]);
            let whole = bad as usize * 1000;
            assert!(t.dst.get(start as usize, whole) == pattern(16 << 10, 13)[..whole]);
            assert_eq!(t.dst.get(start as usize + whole, 500), [0; 500]);
            let seen = t.nic.counters();
            assert_eq!((seen.offloaded, seen.returned), (bad, 1), "{shape:?}");
        }
    }
}

#[test]
fn slots_that_continue_are_taken_as_far_as_they_are_whole_and_right() {
    for (line, shape) in LineFormat::ALL.into_iter().flat_map(|l| SHAPES.map(|s| (l, s))) {
        let cfg = inband(line, 8, 1024, 1);
        let mut t = Bench::new(shape, &QpAttr { inband: Some(cfg.clone()), ..attr() }, 64 << 10);
        let mut slots = HostSlots::new(t.a.qpn(), &cfg);
        let data = pattern(64 << 10, 14);
        let post = |slots: &mut HostSlots, t: &Bench, at: usize, bytes: usize| {
            let payload = inline(&data[at..at + bytes]);
            let wr = SendWr::new(Opcode::RdmaWrite).to(t.dst.at(at as u64), t.dst.mr.rkey);
            slots.post(&wr.payload(&payload)).unwrap();
        };
        let retire = |slots: &mut HostSlots, cqes: &[Cqe]| {
            cqes.iter().for_each(|cqe| slots.retire(cqe.wqe_counter));
        };
        // Rows of seven, over several laps, one of them with a short slot in its middle.
        let (mut at, mut sent) = (3, 0);
        for lap in 0..6 {
            for i in 0..7 {
                let bytes = if lap == 3 && i == 2 { 5 } else { 600 + i };
                post(&mut slots, &t, at, bytes);
                (at, sent) = (at + bytes, sent + 1);
            }
            let cqes = t.step();
            assert_eq!(cqes.len(), 7, "{line:?} {shape:?}");
            retire(&mut slots, &cqes);
        }
        assert!(t.dst.get(3, at - 3) == data[3..at], "{line:?} {shape:?}");
        let seen = t.nic.counters();
        assert_eq!((seen.inband, seen.offloaded, seen.returned), (sent, sent, 0));

        // One in the middle that has not come is waited for, and so is what follows it.
        let ticket = sent;
        post(&mut slots, &t, at, 700);
        let mut later = HostSlots::new(t.a.qpn(), &cfg);
        let hole = inline(&data[at + 700..at + 1400]);
        let behind = inline(&data[at + 1400..at + 2100]);
        let (place, rkey) = (t.dst.at(at as u64), t.dst.mr.rkey);
        let to = |offset: usize| {
            let place = Iova(place.0 + offset as u64);
            SendWr::new(Opcode::RdmaWrite).to(place, rkey)
        };
        let (second, third) = (to(700).payload(&hole), to(1400).payload(&behind));
        later.post_as(ticket + 2, &third).unwrap();
        assert_eq!(t.step().len(), 1, "{line:?} {shape:?}");
        assert_eq!(t.dst.get(at + 700, 1400), [0; 1400]);
        later.post_as(ticket + 1, &second).unwrap();
        assert_eq!(t.step().len(), 2);
        assert!(t.dst.get(at, 2100) == data[at..at + 2100]);

        // A range that nobody may write, behind two that are right: the host's to say.
        let outside = SendWr::new(Opcode::RdmaWrite).to(t.dst.at(64 << 10), t.dst.mr.rkey);
        for (i, wr) in [to(2100), to(2800), outside].into_iter().enumerate() {
            later.post_as(ticket + 3 + i as u64, &wr.payload(&hole)).unwrap();
        }
        let said: Vec<_> = t.step().iter().map(|cqe| cqe.syndrome).collect();
        assert_eq!(said, [0, 0, Syndrome::RemoteAccess as u8], "{line:?} {shape:?}");
        assert!(t.dst.get(at + 2800, 700) == data[at + 700..at + 1400]);
        let seen = t.nic.counters();
        assert_eq!((seen.offloaded, seen.returned), (sent + 5, 1), "{line:?} {shape:?}");
    }
}

/// A slot that is longer than one look counts when its last line is there, and all before it.
#[test]
fn long_slots_that_come_in_parts_are_waited_for() {
    let short = (4096, [2500, 220, 333, 2900, 2900, 230, 700, 2500]);
    let long = (8192, [4160, 5900, 400, 5000, 4160, 4160, 2048, 5900]);
    let kinds = LineFormat::ALL.into_iter().flat_map(|l| SHAPES.map(|s| (l, s)));
    for ((line, shape), (slot, sizes)) in kinds.flat_map(|kind| [(kind, short), (kind, long)]) {
        let cfg = inband(line, 4, slot, 1);
        let mut t = Bench::new(shape, &QpAttr { inband: Some(cfg.clone()), ..attr() }, 64 << 10);
        let mut slots = HostSlots::new(t.a.qpn(), &cfg);
        let data = pattern(64 << 10, 15);
        let (mut at, mut sent) = (5, 0);
        let n = line.line_bytes();
        for (lap, bytes) in sizes.into_iter().enumerate() {
            let first = lap % 4 * slot as usize;
            let mut before = vec![0; slot as usize];
            cfg.window.read(first, &mut before).unwrap();
            let payload = inline(&data[at..at + bytes]);
            let wr = SendWr::new(Opcode::RdmaWrite).to(t.dst.at(at as u64), t.dst.mr.rkey);
            slots.post(&wr.payload(&payload)).unwrap();
            let mut whole = vec![0; slot as usize];
            cfg.window.read(first, &mut whole).unwrap();
            cfg.window.write(first, &before).unwrap();
            // A part from the front, the end, what lies between but for one line, and that line.
            let lines = line.lines(36 + bytes);
            let show = |t: &mut Bench, from: usize, to: usize| {
                cfg.window.write(first + from * n, &whole[from * n..to * n]).unwrap();
                t.step()
            };
            let (early, hole) = (lines / 3, lines / 2);
            assert_eq!(show(&mut t, 0, early), []);
            assert_eq!(show(&mut t, lines - 1, lines), []);
            assert_eq!(show(&mut t, early, hole), []);
            assert_eq!(show(&mut t, hole + 1, lines), []);
            assert_eq!(t.dst.get(at, bytes), vec![0; bytes], "{line:?} {shape:?} {bytes}");
            let cqes = show(&mut t, hole, hole + 1);
            assert_eq!(counters(&cqes), [lap as u16], "{line:?} {shape:?} {bytes}");
            assert!(t.dst.get(at, bytes) == data[at..at + bytes], "{line:?} {shape:?} {bytes}");
            slots.retire(cqes[0].wqe_counter);
            (at, sent) = (at + bytes, sent + 1);
        }
        let seen = t.nic.counters();
        assert_eq!((seen.inband, seen.offloaded, seen.returned), (sent, sent, 0));
    }
}

/// A launch that goes on meanwhile forgets a key that is taken away, or stands for something else.
#[test]
fn keys_that_are_remembered_are_forgotten_in_time() {
    let nic = running(Duration::from_millis(500));
    let src = Buf::new(&nic, 8192, 0, Access::ALL);
    let (a, _ma) = make_qp(&nic, &attr());
    let (b, _mb) = make_qp(&nic, &attr());
    a.connect(b.address()).unwrap();
    b.connect(a.address()).unwrap();
    let mut host = HostQp::new(&*a);
    let dst = Buf::new(&nic, 4096, 0, Access::ALL);
    let mut write = |byte: u8| {
        src.put(0, &[byte; 64]);
        let payload = [src.data(0, 64)];
        let wr = SendWr::new(Opcode::RdmaWrite).to(dst.at(0), dst.mr.rkey).payload(&payload);
        host.send(&wr).unwrap();
        completion(&mut host, &nic).syndrome
    };
    for turn in 0..20 {
        assert_eq!(write(turn * 2 + 1), 0);
        // The same key for other memory, and back.
        let elsewhere = HostMem::alloc(4096).unwrap();
        let view = View::new(&elsewhere, 0, 4096).unwrap();
        let there = |view: &View| Reregister {
            memory: Some((Arc::new(view.clone()) as _, dst.mr.iova)),
            ..Default::default()
        };
        nic.reregister(dst.mr, there(&view)).unwrap();
        assert_eq!(write(turn * 2 + 2), 0);
        let mut got = [0; 64];
        view.read(0, &mut got).unwrap();
        assert_eq!(got, [turn * 2 + 2; 64], "turn {turn}");
        assert_eq!(dst.get(0, 64), [turn * 2 + 1; 64]);
        nic.reregister(dst.mr, there(&dst.view)).unwrap();
    }
    let seen = told(&nic, 40);
    assert!(seen.offloaded >= 30, "{seen:?}");
    nic.deregister(dst.mr).unwrap();
    assert_eq!(write(0), Syndrome::RemoteAccess as u8);
    assert_eq!(dst.get(0, 64), [39; 64]);
}
