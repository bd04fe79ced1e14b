use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::objects::mr::{MrTable, Pd};
use crate::objects::number::Number;
use crate::random::Random;
use bellpush_mem::{HostMem, View};
use bellpush_nic::Mr;
use bellpush_wire::Lkey;
use bellpush_wire::umr::Part;

const ME: User = User { pd: 4, qpn: Qpn(0x111) };
const OTHER: User = User { qpn: Qpn(0x222), ..ME };

struct Keys {
    table: MrTable,
    pd: Arc<Pd>,
    mr: Mr,
    read_only: Mr,
}

impl Keys {
    fn new() -> Self {
        let (table, pd) =
            (MrTable::new(Random::seeded(0).into(), true), Arc::new(Pd::new(Number::fixed(ME.pd))));
        let mem = HostMem::alloc(4096).unwrap();
        let view = Arc::new(View::new(&mem, 0, 4096).unwrap());
        let mr = table.register(&pd, view.clone(), (Iova(0x1000), Access::ALL), None).unwrap();
        let read_only = table.register(&pd, view, (Iova(0x1000), Access::NONE), None).unwrap();
        Self { table, pd, mr, read_only }
    }

    fn key(&self, most: usize) -> u32 {
        self.table.create_indirect(&self.pd, Indirect::new(most, true), None).unwrap().0
    }

    fn part(&self, addr: u64, bytes: u32) -> Part {
        Part { addr: Iova(addr), lkey: self.mr.lkey, bytes, stride: 0 }
    }

    /// A bind of `parts` at their first address, for this queue pair.
    fn bind(&self, parts: &[Part]) -> Umr {
        Umr {
            check_free: true,
            tag: Some(0x55),
            qpn: Some(ME.qpn),
            free: Some(false),
            start: Some(parts[0].addr),
            bytes: Some(parts.iter().map(|p| u64::from(p.bytes)).sum()),
            rights: (mask::RIGHTS, mask::REMOTE_WRITE | mask::REMOTE_READ),
            translation: Some(Translation { repeat: 1, parts: parts.to_vec() }),
            ..Umr::default()
        }
    }

    fn update(&self, user: User, key: u32, umr: &Umr) -> Result<(), Vendor> {
        self.table.write().update(user, key, umr)
    }

    /// Where bytes of a range lie in the memory.
    fn walk(
        &self,
        user: User,
        range: (u32, u64, u32),
        right: Right,
    ) -> Result<Vec<(usize, usize)>, Vendor> {
        let (regions, mut all) = (self.table.read(), vec![]);
        let (key, addr, bytes) = range;
        regions.walk(
            user,
            (key, Iova(addr), bytes),
            0..bytes as usize,
            right,
            &mut |span, n| {
                all.push((span.offset, n));
                Ok(())
            },
        )?;
        Ok(all)
    }
}

fn with_tag(key: u32, tag: u8) -> u32 {
    key & !0xff | u32::from(tag)
}

#[test]
fn a_window_is_bound_used_and_taken_back() {
    let k = Keys::new();
    let key = k.key(1);
    let write = Right::RemoteWrite;
    assert_eq!(k.walk(ME, (key, 0x1100, 8), write), Err(Vendor::Right), "free");
    k.update(ME, key, &k.bind(&[k.part(0x1100, 64)])).unwrap();
    assert_eq!(k.walk(ME, (key, 0x1100, 8), write), Err(Vendor::Key), "the old key");
    let bound = with_tag(key, 0x55);
    assert_eq!(k.walk(ME, (bound, 0x1100, 64), write), Ok(vec![(0x100, 64)]));
    assert_eq!(k.walk(ME, (bound, 0x1101, 64), write), Err(Vendor::Range));
    assert_eq!(k.walk(ME, (bound, 0x10ff, 1), write), Err(Vendor::Range));
    assert_eq!(k.walk(ME, (bound, 0x1100, 8), Right::RemoteAtomic), Err(Vendor::Right));
    assert_eq!(k.walk(OTHER, (bound, 0x1100, 8), write), Err(Vendor::Mkey), "another's window");
    let again = k.bind(&[k.part(0x1000, 8)]);
    assert_eq!(k.update(ME, bound, &again), Err(Vendor::Mkey), "it is not free");
    assert_eq!(k.update(OTHER, bound, &Umr::invalidate()), Err(Vendor::Mkey));
    assert_eq!(k.update(ME, key, &Umr::invalidate()), Err(Vendor::Mkey), "the old key");
    assert_eq!(k.walk(ME, (bound, 0x1100, 64), write), Ok(vec![(0x100, 64)]), "nothing changed");
    k.update(ME, bound, &Umr::invalidate()).unwrap();
    assert_eq!(k.walk(ME, (bound, 0x1100, 8), write), Err(Vendor::Key));
    assert_eq!(k.walk(ME, (with_tag(key, 0), 0x1100, 8), write), Err(Vendor::Mkey));
    k.update(OTHER, key, &Umr { qpn: Some(OTHER.qpn), ..again }).unwrap();
    k.table.destroy_indirect(Rkey(key)).unwrap();
    assert_eq!(k.walk(OTHER, (bound, 0x1000, 8), write), Err(Vendor::Key));
    assert!(k.table.destroy_indirect(Rkey(key)).is_err());
}

#[test]
fn a_key_of_parts_is_there_at_once_and_stays_as_it_is() {
    let k = Keys::new();
    let other = |lkey, bytes| Part { lkey, ..k.part(0x1000, bytes) };
    let made = |iova, parts: Vec<Part>| {
        let attr = PartsAttr { iova: Iova(iova), access: Access::ALL, tag: Some(7), parts };
        k.table.create_parts(&k.pd, attr).map(|key| key.0)
    };
    let key = made(0, vec![k.part(0x1800, 0x100), k.part(0x1000, 0x80)]).unwrap();
    assert_eq!(key as u8, 7);
    let write = Right::RemoteWrite;
    for user in [ME, OTHER] {
        assert_eq!(k.walk(user, (key, 0xf0, 32), write), Ok(vec![(0x8f0, 16), (0, 16)]));
    }
    assert_eq!(k.walk(ME, (key, 0x170, 17), write), Err(Vendor::Range));
    assert_eq!(k.walk(User { pd: 5, ..ME }, (key, 0, 8), write), Err(Vendor::Domain));
    let bind = k.bind(&[k.part(0x1000, 8)]);
    for umr in [Umr { check_free: false, ..bind.clone() }, bind, Umr::invalidate()] {
        assert_eq!(k.update(ME, key, &umr), Err(Vendor::Mkey), "{umr:?}");
    }
    let invalidated = k.table.read().invalidate(ME, Rkey(key));
    assert_eq!(invalidated, Err(Vendor::Mkey));
    assert_eq!(k.walk(ME, (key, 0, 1), write), Ok(vec![(0x800, 1)]));
    // What it stands for is looked at with each access.
    let itself = Part { addr: Iova(0), ..other(Lkey(key), 64) };
    let wild = [other(k.read_only.lkey, 64), itself, k.part(0x1fff, 64)];
    for (part, why) in wild.into_iter().zip([Vendor::Right, Vendor::Key, Vendor::Range]) {
        let key = made(0x10, vec![part]).unwrap();
        assert_eq!(k.walk(ME, (key, 0x10, 64), write), Err(why), "{part:?}");
    }
    assert!(made(0, vec![]).is_err() && made(u64::MAX - 7, vec![k.part(0x1000, 8)]).is_err());
    k.table.destroy_indirect(Rkey(key)).unwrap();
}

#[test]
fn a_bind_that_cannot_be_changes_nothing() {
    let k = Keys::new();
    let key = k.key(2);
    let good = k.bind(&[k.part(0x1000, 64), k.part(0x1800, 64)]);
    let list = |parts: Vec<Part>| Some(Translation { repeat: 1, parts });
    let write = Umr {
        translation: list(vec![Part { lkey: k.read_only.lkey, ..k.part(0x1000, 128) }]),
        ..good.clone()
    };
    let itself = Part { lkey: Lkey(key), ..k.part(0x1000, 128) };
    let cases = [
        (Umr { translation: None, ..good.clone() }, Vendor::Range),
        (Umr { bytes: Some(129), ..good.clone() }, Vendor::Range),
        (Umr { bytes: Some(0), ..good.clone() }, Vendor::Range),
        (Umr { start: Some(Iova(u64::MAX)), ..good.clone() }, Vendor::Range),
        (Umr { qpn: Some(Qpn(5)), ..good.clone() }, Vendor::Mkey),
        (Umr { translation: list(vec![k.part(0x1fff, 2)]), ..good.clone() }, Vendor::Range),
        (Umr { translation: list(vec![k.part(0x1000, 64); 3]), ..good.clone() }, Vendor::Length),
        (Umr { translation: list(vec![itself]), ..good.clone() }, Vendor::Right),
        (write.clone(), Vendor::Right),
        (
            Umr {
                translation: Some(Translation {
                    repeat: u32::MAX,
                    parts: vec![Part { stride: 0xffff, ..k.part(0x1000, 8) }],
                }),
                ..good.clone()
            },
            Vendor::Range,
        ),
    ];
    for (umr, why) in &cases {
        assert_eq!(k.update(ME, key, umr), Err(*why), "{umr:?}");
        assert_eq!(k.walk(ME, (with_tag(key, 0x55), 0x1000, 1), Right::Gather), Err(Vendor::Key));
    }
    let foreign = User { pd: 9, ..ME };
    assert_eq!(k.update(foreign, key, &good), Err(Vendor::Domain));
    assert_eq!(k.update(ME, k.mr.lkey.0, &good), Err(Vendor::Key), "a region's own key");
    assert_eq!(k.update(ME, 0xffff_ff00, &good), Err(Vendor::Key));
    // Reading only needs no more of the region than that.
    let read = Umr { rights: (mask::RIGHTS, mask::REMOTE_READ), ..write };
    k.update(ME, key, &read).unwrap();
}

#[test]
fn a_region_that_has_gone_is_not_reached_through_a_window() {
    let k = Keys::new();
    let key = k.key(1);
    k.update(ME, key, &k.bind(&[k.part(0x1000, 64)])).unwrap();
    k.table.deregister(k.mr).unwrap();
    let range = (with_tag(key, 0x55), 0x1000, 8);
    assert_eq!(k.walk(ME, range, Right::RemoteRead), Err(Vendor::Key));
    let window = Mr { lkey: Lkey(with_tag(key, 0x55)), ..k.mr };
    assert!(k.table.deregister(window).is_err(), "not a region's key");
}

#[test]
fn a_peer_invalidates_what_it_may() {
    let k = Keys::new();
    let key = k.key(1);
    k.update(ME, key, &k.bind(&[k.part(0x1000, 64)])).unwrap();
    let bound = Rkey(with_tag(key, 0x55));
    let by = |user, key| k.table.read().invalidate(user, key);
    assert_eq!(by(OTHER, bound), Err(Vendor::Mkey));
    assert_eq!(by(ME, Rkey(key)), Err(Vendor::Key));
    assert_eq!(by(ME, k.mr.rkey), Err(Vendor::Mkey), "a region");
    assert_eq!(k.table.read().may_invalidate(ME, bound), Ok(()));
    assert_eq!(by(ME, bound), Ok(()));
    assert_eq!(by(ME, bound), Err(Vendor::Mkey), "once");
    assert_eq!(k.walk(ME, (bound.0, 0x1000, 8), Right::RemoteRead), Err(Vendor::Mkey));
    let fixed = k.table.create_indirect(&k.pd, Indirect::new(1, false), Some(3)).unwrap();
    assert_eq!(fixed.0 as u8, 3);
    k.update(ME, fixed.0, &k.bind(&[k.part(0x1000, 64)])).unwrap();
    assert_eq!(by(ME, Rkey(with_tag(fixed.0, 0x55))), Err(Vendor::Mkey), "type 1");
}

proptest! {
    /// Every byte of a key is the byte that its translation says, whatever part is asked for.
    #[test]
    fn parts_lie_where_the_translation_says(
        repeat in 1u32..4,
        parts in prop::collection::vec((0u64..512, 1u32..40, 0u32..100), 1..6),
        skip in 0u32..200,
        want in 0u32..200,
    ) {
        let k = Keys::new();
        let key = k.key(7);
        let parts: Vec<Part> = parts
            .into_iter()
            .map(|(at, bytes, stride)| Part { stride, ..k.part(0x1000 + at, bytes) })
            .collect();
        let bytes: Vec<u64> = (0..u64::from(repeat))
            .flat_map(|r| parts.iter().flat_map(move |p| {
                let start = p.addr.0 - 0x1000 + r * u64::from(p.stride);
                start..start + u64::from(p.bytes)
            }))
            .collect();
        let translation = Translation { repeat, parts: parts.clone() };
        prop_assert_eq!(translation.bytes(), bytes.len() as u64);
        let (start, length) = (Some(Iova(0)), Some(bytes.len() as u64));
        let umr = Umr { start, bytes: length, translation: Some(translation), ..k.bind(&parts) };
        k.update(ME, key, &umr).unwrap();
        let range = (with_tag(key, 0x55), u64::from(skip), want);
        let found = k.walk(ME, range, Right::RemoteRead);
        match bytes.get(skip as usize..(skip + want) as usize) {
            None => prop_assert_eq!(found, Err(Vendor::Range)),
            Some(expected) => {
                let found: Vec<u64> =
                    found.unwrap().iter().flat_map(|&(at, n)| at as u64..(at + n) as u64).collect();
                prop_assert_eq!(&found[..], expected);
            }
        }
    }
}
