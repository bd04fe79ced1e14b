use std::sync::atomic::AtomicUsize;

use super::*;
use bellpush_broken_mem::{Fate, Late};
use bellpush_mem::HostMem;
use bellpush_wire::Qpn;
use bellpush_wire::doorbell::cq_ci_word;

#[test]
fn a_full_queue_refuses_and_goes_on_when_the_consumer_reports() {
    let mem = HostMem::alloc(4096).unwrap();
    let (ring, dbr) = (View::new(&mem, 0, 256).unwrap(), View::new(&mem, 1024, 8).unwrap());
    let events = Arc::new(Events::default());
    let cq = Cq::private(Number::fixed(5), (ring.clone(), dbr.clone()), 4, events.clone()).unwrap();
    let op_own = |entry: usize| {
        let mut byte = [0];
        ring.read(entry * 64 + 63, &mut byte).unwrap();
        byte[0]
    };
    let cqe = Cqe::requester(Qpn(1), 8, 0, 0);
    assert_eq!([0, 1, 2, 3].map(op_own), [0xf1; 4]);
    for _ in 0..4 {
        cq.push(&cqe).unwrap();
    }
    assert_eq!(events.pop(), None);
    assert!(cq.push(&cqe).is_err());
    assert_eq!(events.pop(), Some(Event::CqOverrun(5)));
    // A consumer index from nowhere leaves no room either.
    dbr.store_u32(0, cq_ci_word(77), Ordering::Relaxed).unwrap();
    assert!(cq.push(&cqe).is_err());
    assert_eq!(events.pop(), None, "once is enough");
    dbr.store_u32(0, cq_ci_word(1), Ordering::Relaxed).unwrap();
    cq.push(&cqe).unwrap();
    assert_eq!([0, 1].map(op_own), [0x01, 0x00], "the second lap has owner 1");
    assert!(cq.push(&cqe).is_err());
}

struct Armable {
    cq: Cq,
    dbr: View,
    told: Arc<AtomicUsize>,
}

impl Armable {
    fn new() -> Self {
        let mem = HostMem::alloc(8192).unwrap();
        let part = |at, n| View::new(&mem, at, n).unwrap();
        let told = Arc::new(AtomicUsize::new(0));
        let counter = told.clone();
        let notify: Notify = Arc::new(move |number| {
            assert_eq!(number, 9);
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let dbr = part(1024, 8);
        let attr = CqAttr {
            ring: part(0, 1024),
            dbr: dbr.clone(),
            uar: part(4096, 4096),
            notify: Some(notify),
        };
        Self {
            cq: Cq::shared(Number::fixed(9), &attr, CqLayout::default(), Arc::default()).unwrap(),
            dbr,
            told,
        }
    }

    fn arm(&self, sequence: u8, ci: u32, solicited_only: bool) {
        let word = CqArm { sequence, ci, solicited_only }.emit();
        self.dbr.store_u32(DBR_CQ_ARM_OFFSET, word, Ordering::Relaxed).unwrap();
        self.cq.armed();
    }

    fn told(&self) -> usize {
        self.told.load(Ordering::Relaxed)
    }
}

#[test]
fn one_event_comes_for_each_arming() {
    let a = Armable::new();
    let cqe = Cqe::requester(Qpn(1), 8, 0, 0);
    a.cq.push(&cqe).unwrap();
    assert_eq!(a.told(), 0, "it was not armed");
    // libmlx5's first arming: sequence 0, written over what it had set to 0 itself.
    a.arm(0, 1, false);
    assert_eq!(a.told(), 0, "entry 0 was consumed");
    a.cq.push(&cqe).unwrap();
    a.cq.push(&cqe).unwrap();
    assert_eq!(a.told(), 1);
    a.arm(1, 2, false);
    assert_eq!(a.told(), 2, "entry 2 was there before the arming");
    a.arm(1, 3, false);
    a.cq.push(&cqe).unwrap();
    assert_eq!(a.told(), 2, "the same sequence is the same arming");
}

#[test]
fn an_arming_for_solicited_entries_waits_for_one_or_an_error() {
    use bellpush_wire::cqe::{CqeOpcode, Syndrome};
    let a = Armable::new();
    let plain = Cqe::requester(Qpn(1), 8, 0, 0);
    a.arm(0, 0, true);
    a.cq.push(&plain).unwrap();
    assert_eq!(a.told(), 0);
    a.cq.push(&Cqe { solicited: true, ..plain }).unwrap();
    assert_eq!(a.told(), 1);
    a.arm(1, 2, true);
    a.cq.push(&plain).unwrap();
    assert_eq!(a.told(), 1);
    a.cq.push(&Cqe::error(CqeOpcode::ReqErr, Qpn(1), 0, Syndrome::WrFlush, 0)).unwrap();
    assert_eq!(a.told(), 2);
}

fn cq_of(bytes: usize, layout: CqLayout) -> (Cq, View, View) {
    let mem = HostMem::alloc(16384).unwrap();
    let part = |at, n| View::new(&mem, at, n).unwrap();
    let (ring, dbr, uar) = (part(0, bytes), part(8192, 8), part(4096, 4096));
    let attr = CqAttr { ring: ring.clone(), dbr: dbr.clone(), uar, notify: None };
    (Cq::shared(Number::fixed(3), &attr, layout, Arc::default()).unwrap(), ring, dbr)
}

fn entry(ring: &View, at: usize) -> Result<Cqe, bellpush_wire::cqe::CqeOpcodeError> {
    let mut bytes = [0; CQE_BYTES];
    ring.read(at, &mut bytes).unwrap();
    Cqe::parse(&bytes)
}

fn cqe(counter: u16) -> Cqe {
    Cqe::requester(Qpn(1), 8, counter, 0)
}

#[test]
fn an_entry_of_128_bytes_ends_with_its_cqe() {
    let layout = CqLayout { entry_bytes: 128, ..CqLayout::default() };
    let (cq, ring, _) = cq_of(512, layout);
    assert_eq!(cq.entries(), 4);
    (7..9).for_each(|counter| cq.push(&cqe(counter)).unwrap());
    assert_eq!(entry(&ring, 64).unwrap().wqe_counter, 7);
    assert_eq!(entry(&ring, 192).unwrap().wqe_counter, 8);
    let mut first = [1; 64];
    ring.read(0, &mut first).unwrap();
    assert_eq!(first, [0; 64], "nothing in front of the CQE");
    assert!(Ring::checked(ring, CqLayout { entry_bytes: 96, ..layout }).is_err());
}

#[test]
fn a_collapsed_queue_writes_one_entry_over_and_over() {
    let layout = CqLayout { collapsed: true, overrun_ignored: true, ..CqLayout::default() };
    let (cq, ring, _) = cq_of(256, layout);
    for counter in 0..9 {
        cq.push(&cqe(counter)).unwrap();
        let mut op_own = [0];
        ring.read(63, &mut op_own).unwrap();
        assert_eq!(op_own[0], u8::from(counter / 4 % 2 == 1), "owner of the place it stands for");
        assert_eq!(entry(&ring, 0).unwrap().wqe_counter, counter);
        assert_eq!(entry(&ring, 64).unwrap().opcode, CqeOpcode::Invalid);
    }
    // Without oi, what is not reported as taken is not overwritten.
    let (cq, ..) = cq_of(256, CqLayout { overrun_ignored: false, ..layout });
    (0..4).for_each(|counter| cq.push(&cqe(counter)).unwrap());
    assert!(cq.push(&cqe(4)).is_err());
}

/// What libmlx5 does to a CQ that was resized: see `mlx5_cq_resize_copy_cqes`.
fn copy_over(old: &View, old_entries: u32, new: &View, new_entries: u32, mut ci: u64) -> u64 {
    loop {
        let at = (ci as usize % old_entries as usize) * CQE_BYTES;
        let found = entry(old, at).unwrap();
        let mut bytes = [0; CQE_BYTES];
        old.read(at, &mut bytes).unwrap();
        assert_eq!(bytes[63] & 1, owner_bit(ci, old_entries), "in software's hands");
        if found.opcode == CqeOpcode::Resize {
            return ci;
        }
        bytes[63] = bytes[63] & !1 | owner_bit(ci + 1, new_entries);
        new.write(((ci + 1) as usize % new_entries as usize) * CQE_BYTES, &bytes).unwrap();
        ci += 1;
    }
}

#[test]
fn a_resized_queue_goes_on_in_its_new_ring() {
    for (from, to) in [(4u32, 8u32), (8, 4)] {
        let (cq, old, dbr) = cq_of(from as usize * 64, CqLayout::default());
        let new = View::new(&HostMem::alloc(4096).unwrap(), 0, to as usize * 64).unwrap();
        (0..3).for_each(|counter| cq.push(&cqe(counter)).unwrap());
        dbr.store_u32(0, cq_ci_word(1), Ordering::Relaxed).unwrap();
        cq.resize(new.clone(), 64).unwrap();
        assert_eq!(cq.entries(), to);
        cq.push(&cqe(3)).unwrap(); // before the consumer has copied anything
        assert_eq!(copy_over(&old, from, &new, to, 1), 3);
        // The resize counts as taken: the next index to be taken is one more than before.
        for (index, counter) in [(2u64, 1), (3, 2), (4, 3)] {
            let at = (index as usize % to as usize) * 64;
            let mut op_own = [0];
            new.read(at + 63, &mut op_own).unwrap();
            assert_eq!(op_own[0] & 1, owner_bit(index, to));
            assert_eq!(entry(&new, at).unwrap().wqe_counter, counter);
        }
        let mut before = [0; 256];
        old.read(0, &mut before).unwrap();
        dbr.store_u32(0, cq_ci_word(5), Ordering::Relaxed).unwrap();
        (0..to as u16).for_each(|counter| cq.push(&cqe(counter)).unwrap());
        assert!(cq.push(&cqe(9)).is_err(), "as full as the new ring is");
        let mut after = [0; 256];
        old.read(0, &mut after).unwrap();
        assert_eq!(before, after, "the old ring is let alone");
    }
}

#[test]
fn a_ring_without_room_for_what_waits_is_refused_and_nothing_changes() {
    let (cq, old, dbr) = cq_of(512, CqLayout::default());
    let new = View::new(&HostMem::alloc(4096).unwrap(), 0, 256).unwrap();
    (0..4).for_each(|counter| cq.push(&cqe(counter)).unwrap());
    assert!(matches!(cq.resize(new.clone(), 64), Err(NicError::Attribute { .. })));
    assert!(matches!(cq.resize(new.part(0, 192).unwrap(), 64), Err(NicError::Attribute { .. })));
    cq.push(&cqe(4)).unwrap();
    assert_eq!(entry(&old, 256).unwrap().wqe_counter, 4);
    (5..8).for_each(|counter| cq.push(&cqe(counter)).unwrap());
    // Full: the new ring is too small for what waits; and the old one has no room for the entry that
    // says where the new one begins.
    assert!(matches!(cq.resize(new.clone(), 64), Err(NicError::Attribute { .. })));
    let longer = View::new(&HostMem::alloc(4096).unwrap(), 0, 1024).unwrap();
    assert!(matches!(cq.resize(longer, 64), Err(NicError::Full { .. })));
    dbr.store_u32(0, cq_ci_word(8), Ordering::Relaxed).unwrap();
    cq.resize(new, 64).unwrap();
}

#[test]
fn a_record_before_the_first_entry_reports_nothing() {
    let (cq, _, dbr) = cq_of(256, CqLayout::default());
    cq.push(&cqe(0)).unwrap();
    // Ahead by 2^24 - 2 entries, or behind by two, of which one was never there.
    dbr.store_u32(0, cq_ci_word(0xff_ffff), Ordering::Relaxed).unwrap();
    let new = View::new(&HostMem::alloc(4096).unwrap(), 0, 512).unwrap();
    assert!(matches!(cq.resize(new.clone(), 64), Err(NicError::Full { .. })));
    dbr.store_u32(0, cq_ci_word(0), Ordering::Relaxed).unwrap();
    cq.resize(new, 64).unwrap();
}

#[test]
fn a_ring_that_lies_askew_is_refused() {
    let mem = HostMem::alloc(16384).unwrap();
    let part = |at, n| View::new(&mem, at, n).unwrap();
    let (dbr, uar) = (part(8192, 8), part(4096, 4096));
    for at in [4, 8, 32, 63] {
        let attr = CqAttr { ring: part(at, 256), dbr: dbr.clone(), uar: uar.clone(), notify: None };
        let number = Number::fixed(1);
        let made = Cq::shared(number, &attr, CqLayout::default(), Arc::default());
        assert!(matches!(made, Err(NicError::Attribute { .. })), "{at}");
        let (cq, ..) = cq_of(256, CqLayout::default());
        assert!(matches!(cq.resize(attr.ring, 64), Err(NicError::Attribute { .. })), "{at}");
    }
}

#[test]
fn rings_and_records_of_other_sizes_are_refused() {
    let mem = HostMem::alloc(16384).unwrap();
    let part = |at, n| View::new(&mem, at, n).unwrap();
    let made = |ring, dbr, uar| {
        let attr = CqAttr { ring, dbr, uar, notify: None };
        Cq::shared(Number::fixed(1), &attr, CqLayout::default(), Arc::default())
    };
    for bytes in [0, 64 * 3, 64 * 5] {
        assert!(made(part(0, bytes), part(8192, 8), part(4096, 4096)).is_err(), "{bytes}");
    }
    for (at, bytes, is_fine) in
        [(8192, 8, true), (8192, 64, true), (8192, 4, false), (8196, 8, false)]
    {
        let made = made(part(0, 256), part(at, bytes), part(4096, 4096));
        assert_eq!(made.is_ok(), is_fine, "{bytes} bytes at {at}");
    }
    assert!(made(part(0, 256), part(8192, 8), part(4096, 2048)).is_err());
}

#[test]
fn room_behind_others_is_what_the_ring_has_left() {
    let (cq, _, dbr) = cq_of(256, CqLayout::default());
    (0..2).for_each(|counter| cq.push(&cqe(counter)).unwrap());
    assert!((0..2).all(|more| cq.has_room_behind(more).is_ok()) && !cq.report().overran);
    assert!(cq.has_room_behind(2).is_err() && cq.report().overran);
    dbr.store_u32(0, cq_ci_word(1), Ordering::Relaxed).unwrap();
    assert!(cq.has_room_behind(2).is_ok() && cq.has_room_behind(3).is_err());
    let report = cq.report();
    assert_eq!((cq.number(), report.number, report.written, report.taken), (3, 3, 2, Some(1)));
    assert_eq!(report.to_string(), "CQ 0x3: 2 written, 1 taken, overrun");
    let (cq, ..) = cq_of(256, CqLayout::default());
    (0..3).for_each(|counter| cq.push(&cqe(counter)).unwrap());
    assert!(cq.has_room_behind(0).is_ok() && cq.has_room_behind(1).is_err());
    let (cq, ..) = cq_of(256, CqLayout { overrun_ignored: true, ..CqLayout::default() });
    assert!(cq.has_room_behind(9).is_ok());
    assert_eq!(cq.report().to_string(), "CQ 0x3: 0 written");
}

#[test]
fn an_engine_elsewhere_goes_on_where_this_one_was() {
    let mem = HostMem::alloc(4096).unwrap();
    let (ring, dbr) = (View::new(&mem, 0, 256).unwrap(), View::new(&mem, 1024, 8).unwrap());
    let views = (ring.clone(), dbr.clone());
    let cq = Cq::private(Number::fixed(5), views, 4, Arc::default()).unwrap();
    (0..3).for_each(|counter| cq.push(&cqe(counter)).unwrap());
    assert_eq!(cq.hand_over().unwrap().2, [3, 0]);
    cq.take_over([6, 4]);
    // Two of four wait: the record, from which nothing can be told, is not needed.
    dbr.store_u32(0, cq_ci_word(77), Ordering::Relaxed).unwrap();
    assert!(cq.has_room_behind(1).is_ok() && cq.has_room_behind(2).is_err());
    (6..8).for_each(|counter| cq.push(&cqe(counter)).unwrap());
    assert_eq!([128, 192].map(|at| entry(&ring, at).unwrap().wqe_counter), [6, 7]);
    assert!(cq.push(&cqe(8)).is_err());
    let (shared, ..) = cq_of(256, CqLayout::default());
    assert!(shared.hand_over().is_none(), "others complete to it");
    assert!(shared.notify_with(Arc::new(|_| {})) && !shared.notify_with(Arc::new(|_| {})));
    assert!(!cq.notify_with(Arc::new(|_| {})), "nobody arms it");
}

#[test]
fn what_is_held_back_is_told_when_it_is_due() {
    let a = Armable::new();
    a.cq.moderate(Moderation { count: 3, period_us: 10 });
    a.arm(0, 0, false);
    assert_eq!(a.cq.release(5), None, "nothing waits");
    (0..2).for_each(|counter| a.cq.push(&cqe(counter)).unwrap());
    assert_eq!((a.told(), a.cq.release(1_000)), (0, Some(11_000)));
    assert_eq!((a.told(), a.cq.release(10_999)), (0, Some(11_000)));
    assert_eq!((a.cq.release(11_000), a.told()), (None, 1));
    a.arm(1, 2, false);
    (2..5).for_each(|counter| a.cq.push(&cqe(counter)).unwrap());
    assert_eq!((a.told(), a.cq.release(12_000)), (2, None), "three are enough");
}

#[test]
fn a_ring_is_resized_to_just_what_waits_and_to_other_entries() {
    let of = |bytes| View::new(&HostMem::alloc(4096).unwrap(), 0, bytes).unwrap();
    let (cq, ..) = cq_of(512, CqLayout::default());
    (0..3).for_each(|counter| cq.push(&cqe(counter)).unwrap());
    cq.resize(of(256), 64).unwrap();
    let (cq, ..) = cq_of(512, CqLayout::default());
    let new = of(1024);
    cq.resize(new.clone(), 128).unwrap();
    cq.push(&cqe(7)).unwrap();
    assert_eq!((cq.entries(), entry(&new, 192).unwrap().wqe_counter), (8, 7));
    let plain = CqLayout::default();
    for layout in
        [CqLayout { overrun_ignored: true, ..plain }, CqLayout { collapsed: true, ..plain }]
    {
        let (cq, ..) = cq_of(512, layout);
        assert!(cq.resize(of(512), 64).is_err(), "{layout:?}");
    }
}

/// One that comes while a CQ is resized, and is held back by an adversary, finds its room in the new ring. Who resizes
/// and who completes wait for each other behind somebody who is told of an earlier entry.
#[test]
fn no_entry_is_lost_that_comes_while_a_queue_is_resized() {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    const ROUNDS: u64 = 300;
    const PAUSE: Duration = Duration::from_millis(1);
    let (mut resized, mut refused) = (0, 0);
    for seed in 0..ROUNDS {
        let adversary = adversary::State::new(format!("{seed},cqe").parse().unwrap());
        let mem = HostMem::alloc(16384).unwrap();
        let part = |at, n| View::new(&mem, at, n).unwrap();
        let (tells, told) = channel();
        let goes_on = Arc::new(AtomicBool::new(false));
        let wait = |flag: &AtomicBool| {
            let start = Instant::now();
            while !flag.load(Ordering::Relaxed) && start.elapsed() < Duration::from_secs(20) {
                std::hint::spin_loop();
            }
        };
        let flag = goes_on.clone();
        let notify: Notify = Arc::new(move |_| {
            tells.send(()).unwrap();
            wait(&flag);
        });
        let (ring, dbr, uar) = (part(0, 1024), part(8192, 8), part(4096, 4096));
        let attr = CqAttr { ring, dbr: dbr.clone(), uar, notify: Some(notify) };
        let cq = Cq::shared(Number::fixed(3), &attr, CqLayout::default(), Arc::default());
        let cq = cq.unwrap().under(Some(&adversary));
        (0..7).for_each(|counter| cq.push_now(&cqe(counter)).unwrap());
        let arm = CqArm { sequence: 0, ci: 0, solicited_only: false }.emit();
        dbr.store_u32(DBR_CQ_ARM_OFFSET, arm, Ordering::Relaxed).unwrap();
        // Seven wait, and one says that the ring is another: there is no room for the eighth.
        let pushed = std::thread::scope(|scope| {
            scope.spawn(|| cq.armed());
            told.recv().unwrap();
            let resizes = scope.spawn(|| cq.resize(part(12288, 512), 64));
            std::thread::sleep(PAUSE);
            // It comes before who has waited is awake.
            goes_on.store(true, Ordering::Relaxed);
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(seed % 30) {}
            let pushed = cq.push(&cqe(7)).is_ok();
            resized += u64::from(resizes.join().unwrap().is_ok());
            pushed
        });
        cq.release_late(u64::MAX);
        let moved = u64::from(cq.entries() == 8);
        refused += u64::from(!pushed);
        assert_eq!(cq.report().written - moved, 7 + u64::from(pushed), "seed {seed}: {moved}");
    }
    assert!(resized > 0 && refused > 0, "control: {resized} resized, {refused} refused");
}

#[test]
fn a_solicited_entry_that_a_resize_moves_on_is_told_as_ever() {
    let a = Armable::new();
    a.cq.push(&cqe(0)).unwrap();
    a.cq.push(&Cqe { solicited: true, ..cqe(1) }).unwrap();
    let new = View::new(&HostMem::alloc(4096).unwrap(), 0, 512).unwrap();
    a.cq.resize(new, 64).unwrap();
    // The consumer has copied both, each one index on, and has taken the first.
    a.arm(0, 2, true);
    assert_eq!(a.told(), 1);
    // It has taken the second as well, and nothing else is there.
    a.arm(1, 3, true);
    assert_eq!(a.told(), 1);
    // What it has taken does not move.
    a.dbr.store_u32(0, cq_ci_word(3), Ordering::Relaxed).unwrap();
    let new = View::new(&HostMem::alloc(4096).unwrap(), 0, 512).unwrap();
    a.cq.resize(new, 64).unwrap();
    a.arm(2, 3, true);
    assert_eq!(a.told(), 1);
}

#[test]
fn a_resize_is_no_completion_and_keeps_those_that_are() {
    let a = Armable::new();
    let resize = || {
        let new = View::new(&HostMem::alloc(4096).unwrap(), 0, 512).unwrap();
        a.cq.resize(new, 64).unwrap();
    };
    a.cq.push(&cqe(0)).unwrap();
    a.dbr.store_u32(0, cq_ci_word(1), Ordering::Relaxed).unwrap();
    a.arm(0, 1, false);
    resize();
    // Another CQ of the page is armed, for which all of them are looked at.
    a.cq.armed();
    assert_eq!(a.told(), 0, "nothing has come");
    a.cq.push(&cqe(1)).unwrap();
    assert_eq!(a.told(), 1, "the arming holds still");
    a.cq.push(&cqe(2)).unwrap();
    resize();
    // The consumer has copied both, each one index on, and has taken the first.
    a.arm(1, 4, false);
    assert_eq!(a.told(), 2);
}

#[test]
fn entries_come_while_the_ring_that_is_next_is_marked() {
    let (cq, old, _) = cq_of(512, CqLayout::default());
    let host = View::new(&HostMem::alloc(4096).unwrap(), 0, 1024).unwrap();
    // Its only write takes a third of a second.
    let slow = HostMem::far(Arc::new(Late::new(host, 0..0, Fate::Late))).unwrap();
    let new = View::new(&slow, 0, 1024).unwrap();
    let (says, hears) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let cq = &cq;
        let resizes = scope.spawn(move || {
            says.send(()).unwrap();
            cq.resize(new, 64)
        });
        hears.recv().unwrap();
        std::thread::sleep(Late::BY);
        cq.push(&cqe(7)).unwrap();
        resizes.join().unwrap().unwrap();
    });
    assert_eq!(entry(&old, 0).unwrap().wqe_counter, 7, "before the ring was another");
    assert_eq!(entry(&old, 64).unwrap().opcode, CqeOpcode::Resize);
}
