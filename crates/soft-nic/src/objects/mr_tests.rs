use super::*;
use bellpush_mem::{HostMem, View};

fn pd() -> Arc<Pd> {
    Arc::new(Pd::new(Number::fixed(0)))
}

fn table() -> (MrTable, Arc<dyn Dma>) {
    let mem = HostMem::alloc(4096).unwrap();
    (
        MrTable::new(Random::system().unwrap().into(), true),
        Arc::new(View::new(&mem, 0, 100).unwrap()),
    )
}

fn refusal(t: &MrTable, key: u32, addr: u64, bytes: u32, right: Right) -> Option<Vendor> {
    t.read().resolve(0, key, Iova(addr), bytes, right).err()
}

#[test]
fn bounds_are_checked_without_overflow() {
    let (t, mem) = table();
    let mr = t.register(&pd(), mem, (Iova(u64::MAX - 100), Access::ALL), None).unwrap();
    let key = mr.lkey.0;
    let base = u64::MAX - 100;
    for (addr, bytes, expected) in [
        (base, 100, None),
        (base + 99, 1, None),
        (base + 100, 0, None),
        (base, 101, Some(Vendor::Range)),
        (base + 99, u32::MAX, Some(Vendor::Range)),
        (base - 1, 1, Some(Vendor::Range)),
        (0, 1, Some(Vendor::Range)),
    ] {
        assert_eq!(refusal(&t, key, addr, bytes, Right::RemoteWrite), expected, "{addr:#x}");
    }
}

#[test]
fn a_stale_key_fails_after_its_index_is_used_again() {
    let (t, mem) = table();
    let first = t.register(&pd(), mem.clone(), (Iova(0), Access::ALL), None).unwrap();
    assert_ne!(first.lkey.0 & !0xff, 0x100, "the list end's index is not used");
    t.deregister(first).unwrap();
    assert!(matches!(t.deregister(first), Err(NicError::NoSuchRegion(_))));
    let second = again(&t, &mem, first);
    assert_eq!(refusal(&t, first.lkey.0, 0, 1, Right::Gather), Some(Vendor::Key));
    assert_eq!(refusal(&t, second.lkey.0, 0, 1, Right::Gather), None);
}

/// Registers until an index comes again.
fn again(t: &MrTable, mem: &Arc<dyn Dma>, last: Mr) -> Mr {
    for others in 0.. {
        let mr = t.register(&pd(), mem.clone(), (Iova(0), Access::ALL), None).unwrap();
        if mr.lkey.0 >> 8 == last.lkey.0 >> 8 {
            assert!(others >= RESTING, "after {others} others");
            return mr;
        }
        t.deregister(mr).unwrap();
        assert!(others < 4 * BLOCK);
    }
    unreachable!("it came, or failed");
}

#[test]
fn keys_rest_and_do_not_follow_from_each_other() {
    let (t, mem) = table();
    let mut mr = t.register(&pd(), mem.clone(), (Iova(0), Access::ALL), None).unwrap();
    let mut bytes = vec![mr.lkey.0 as u8];
    while bytes.len() < 5 * 256 {
        t.deregister(mr).unwrap();
        mr = again(&t, &mem, mr);
        bytes.push(mr.lkey.0 as u8);
    }
    let steps: std::collections::HashSet<_> =
        bytes.windows(2).map(|two| two[1].wrapping_sub(two[0])).collect();
    assert!(steps.len() > 200, "{} distances between low bytes", steps.len());
    for last in bytes.windows(LOWS as usize) {
        let differ: std::collections::HashSet<_> = last.iter().collect();
        assert_eq!(differ.len(), last.len(), "a low byte comes again too soon");
    }
}

/// Also where nearly all that there are have regions.
#[test]
fn keys_rest_among_few_that_are_free() {
    let (t, mem) = table();
    let register = || t.register(&pd(), mem.clone(), (Iova(0), Access::ALL), None).unwrap();
    for live in 1..=BLOCK {
        let mr = register();
        if live + 4 > BLOCK {
            t.deregister(mr).unwrap();
            again(&t, &mem, mr);
        }
    }
}

fn first_keys(scattered: bool, count: usize) -> Vec<u32> {
    let (t, mem) = (MrTable::new(Random::system().unwrap().into(), scattered), table().1);
    let register = || t.register(&pd(), mem.clone(), (Iova(0), Access::NONE), None).unwrap();
    (0..count).map(|_| register().lkey.0).collect()
}

#[test]
fn keys_differ_from_nic_to_nic() {
    use std::collections::HashSet;
    let firsts: Vec<_> = (0..64).map(|_| first_keys(true, 1)[0]).collect();
    let all: HashSet<_> = firsts.iter().collect();
    assert!(all.len() >= 63, "{} first keys of 64 NICs", all.len()); // of 2^32
    let [ones, zeros] = firsts.iter().fold([0, 0], |[ones, zeros], key| [ones | key, zeros | !key]);
    assert_eq!([ones, zeros], [u32::MAX; 2], "a bit is never used");
    // On the in-process link, low bytes alone: 162 are expected of 256 draws, with a deviation of 5.
    let lows: HashSet<_> = (0..256).map(|_| first_keys(false, 2)[1]).collect();
    assert!(lows.len() > 120, "{} second keys of 256 NICs", lows.len());
}

/// Whoever was told a key knows neither the index nor the low byte of the next.
#[test]
fn keys_do_not_follow_from_one_before() {
    let keys = first_keys(true, 256);
    let next = |two: &[u32]| (two[1] >> 8).wrapping_sub(two[0] >> 8) & INDEX;
    let neighbours = keys.windows(2).filter(|two| next(two) == 1).count();
    assert!(neighbours < 8, "{neighbours} of 255 indices are the next");
    let steps: std::collections::HashSet<_> = keys.windows(2).map(next).collect();
    assert!(steps.len() > 200, "{} distances between indices", steps.len());
    let lows: std::collections::HashSet<_> = keys.iter().map(|key| *key as u8).collect();
    assert!((130..200).contains(&lows.len()), "{} low bytes in 256 draws", lows.len());
}

#[test]
fn a_low_byte_that_a_registrant_chose_rests_as_others_do() {
    let (t, mem) = table();
    let register = |tag| t.register(&pd(), mem.clone(), (Iova(0), Access::ALL), tag).unwrap();
    let mut mr = register(Some(0x5a));
    for _ in 1..LOWS {
        t.deregister(mr).unwrap();
        mr = again(&t, &mem, mr);
        assert_ne!(mr.lkey.0 as u8, 0x5a);
    }
}

#[test]
fn rights_are_told_apart() {
    use Right::*;
    let (t, mem) = table();
    let mr = t.register(&pd(), mem, (Iova(0), Access::NONE), None).unwrap();
    assert_eq!(refusal(&t, mr.lkey.0, 0, 1, Gather), None);
    for right in [LocalWrite, RemoteWrite, RemoteRead, RemoteAtomic] {
        assert_eq!(refusal(&t, mr.lkey.0, 0, 1, right), Some(Vendor::Right), "{right:?}");
    }
    // None stands for another.
    for only in [LocalWrite, RemoteWrite, RemoteRead, RemoteAtomic] {
        let access = Access {
            local_write: only == LocalWrite,
            remote_write: only == RemoteWrite,
            remote_read: only == RemoteRead,
            remote_atomic: only == RemoteAtomic,
            ..Access::NONE
        };
        let (t, mem) = table();
        let mr = t.register(&pd(), mem, (Iova(0), access), None).unwrap();
        for right in [LocalWrite, RemoteWrite, RemoteRead, RemoteAtomic] {
            let refused = (right != only).then_some(Vendor::Right);
            assert_eq!(refusal(&t, mr.lkey.0, 0, 1, right), refused, "{only:?}: {right:?}");
        }
    }
}

#[test]
fn a_region_of_another_protection_domain_is_refused() {
    let (t, mem) = table();
    let mr = t
        .register(&Arc::new(Pd::new(Number::fixed(3))), mem, (Iova(0), Access::ALL), None)
        .unwrap();
    assert_eq!(refusal(&t, mr.lkey.0, 0, 1, Right::Gather), Some(Vendor::Domain));
    assert!(t.read().resolve(3, mr.lkey.0, Iova(0), 1, Right::Gather).is_ok(), "control");
}

#[test]
fn a_wrapping_region_is_refused_and_an_empty_one_reaches_nothing() {
    let (t, mem) = table();
    assert!(t.register(&pd(), mem.clone(), (Iova(u64::MAX - 50), Access::ALL), None).is_err());
    let none = HostMem::alloc(1).unwrap();
    let none = View::new(&none, 0, 0).unwrap();
    let mr = t.register(&pd(), Arc::new(none), (Iova(0), Access::ALL), None).unwrap();
    for right in [Right::Gather, Right::RemoteWrite] {
        assert_eq!(refusal(&t, mr.lkey.0, 0, 1, right), Some(Vendor::Range));
    }
}

#[test]
fn a_region_is_registered_anew_under_its_keys() {
    let (t, mem) = table();
    let mr = t.register(&pd(), mem, (Iova(0), Access::NONE), None).unwrap();
    let right = Right::RemoteWrite;
    assert_eq!(refusal(&t, mr.rkey.0, 0, 1, right), Some(Vendor::Right));
    let access = Some(Access::ALL);
    let same = t.reregister(mr, Reregister { access, ..Reregister::default() }).unwrap();
    assert_eq!((same, refusal(&t, mr.rkey.0, 0, 1, right)), (mr, None));
    let longer = HostMem::alloc(4096).unwrap();
    let longer: Arc<dyn Dma> = Arc::new(View::new(&longer, 0, 200).unwrap());
    let memory = Some((longer.clone(), Iova(1000)));
    let moved = t.reregister(mr, Reregister { memory, ..Reregister::default() }).unwrap();
    assert_eq!((moved.lkey, moved.iova, moved.bytes), (mr.lkey, Iova(1000), 200));
    assert_eq!(refusal(&t, mr.rkey.0, 1100, 100, right), None);
    assert_eq!(refusal(&t, mr.rkey.0, 0, 1, right), Some(Vendor::Range));
    let elsewhere =
        Reregister { pd: Some(Arc::new(Pd::new(Number::fixed(9)))), ..Reregister::default() };
    t.reregister(mr, elsewhere).unwrap();
    assert_eq!(refusal(&t, mr.rkey.0, 1100, 1, right), Some(Vendor::Domain));
    // What cannot be leaves everything as it is.
    let bad = Reregister { memory: Some((longer, Iova(u64::MAX))), access, pd: Some(pd()) };
    assert!(t.reregister(mr, bad).is_err());
    assert_eq!(refusal(&t, mr.rkey.0, 1100, 1, right), Some(Vendor::Domain));
    t.deregister(mr).unwrap();
    assert!(t.reregister(mr, Reregister::default()).is_err());
}

#[test]
fn a_keys_low_byte_can_be_chosen() {
    let (t, mem) = table();
    let mr = t.register(&pd(), mem.clone(), (Iova(0), Access::NONE), Some(0x7e)).unwrap();
    assert_eq!(mr.lkey.0 as u8, 0x7e);
    t.deregister(mr).unwrap();
    assert_ne!(again(&t, &mem, mr).lkey.0 as u8, 0x7e, "a new key");
}

/// Low bytes that registrants choose count as those that are drawn: of the next ones some are always left.
#[test]
fn chosen_low_bytes_leave_some_to_be_drawn() {
    let mut entry =
        Entry { region: None, variant: 0, recent: Used::default(), before: Used::default() };
    let mut uses = |chosen: Option<u8>| entry.renew(chosen, || 7);
    // More chosen ones than a half has, then drawn ones; and a chosen one where the half is all but full.
    (0..=LOWS as u8).for_each(|byte| uses(Some(byte)));
    (0..300).for_each(|_| uses(None));
    for turn in 0..3000 {
        uses((turn % 127 == 126).then_some((turn % 251) as u8));
    }
}
