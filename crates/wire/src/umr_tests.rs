use super::*;
use proptest::prelude::*;

fn round_trip(umr: &Umr) -> Result<Umr, WqeError> {
    let mut wqe = vec![0xa5; umr.wqe_bytes() + 1];
    let all = umr.wqe_bytes();
    let flags = Flags { fence: true, ..Flags::SIGNALLED };
    umr.emit(5, flags, (7, Qpn(9)), &mut wqe)?;
    assert_eq!(wqe[all], 0xa5);
    let parsed = super::super::wqe::Wqe::parse(&wqe)?;
    assert_eq!((parsed.imm, parsed.index, parsed.qpn), (5, 7, Qpn(9)));
    assert_eq!(parsed.flags, flags);
    Umr::parse(&wqe[..all])
}

fn part(bytes: u32, stride: u32) -> Part {
    Part { addr: Iova(0x1122_3344_5566_7788), lkey: Lkey(0x99aa_bb01), bytes, stride }
}

#[test]
fn a_bind_has_the_bytes_that_libmlx5_writes() {
    // set_umr_control_seg, set_umr_mkey_seg and set_umr_data_seg, for a window of type 2.
    let mut wqe = vec![0; 192];
    let translation = Some(Translation { repeat: 1, parts: vec![part(0x1000, 0)] });
    let umr = Umr {
        check_free: true,
        tag: Some(7),
        qpn: Some(Qpn(0x123)),
        free: Some(false),
        start: Some(Iova(0x1122_3344_5566_7788)),
        bytes: Some(0x1000),
        rights: (mask::RIGHTS, mask::REMOTE_WRITE | mask::REMOTE_READ),
        translation,
        ..Umr::default()
    };
    assert_eq!(umr.wqe_bytes(), 192);
    umr.emit_segments(&mut wqe);
    assert_eq!(wqe[16..24], [0xa0, 0, 0, 0, 0, 4, 0, 0]);
    assert_eq!(wqe[24..32], 0x203c_6041u64.to_be_bytes());
    assert_eq!(wqe[64..72], [0, 0, 0x30, 0, 0, 1, 0x23, 7]);
    assert_eq!(wqe[80..88], 0x1122_3344_5566_7788u64.to_be_bytes());
    assert_eq!(wqe[88..96], 0x1000u64.to_be_bytes());
    assert_eq!(wqe[128..136], [0, 0, 0x10, 0, 0x99, 0xaa, 0xbb, 1]);
    // libmlx5 sets the flag of an offset, which is 0.
    assert_eq!(UMR_TRANSLATION_OFFSET, 0x10);
    wqe[16] |= UMR_TRANSLATION_OFFSET;
    assert_eq!(Umr::parse(&wqe), Ok(umr));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let strided = Translation { repeat: 3, parts: vec![part(8, 10), part(6, 10)] };
    assert_eq!((strided.row_bytes(), strided.bytes(), strided.octowords()), (14, 42, 3));
    let umr = Umr { translation: Some(strided), ..Umr::default() };
    let mut good = vec![0; umr.wqe_bytes()];
    umr.emit_segments(&mut good);
    assert_eq!(Umr::parse(&good).as_ref(), Ok(&umr));
    for (at, byte) in [
        (16, 0x00), // the translation is elsewhere
        (16, 0x81), // a flag that is not known
        (21, 5),    // more entries than the WQE holds
        (23, 1),    // an offset
        (30, 0x10), // signatures
        (131, 15),  // not the sum of the entries
        (139, 0),   // no repetition
        (143, 4),   // more entries than there are
        (143, 0),   // none
        (147, 0),   // an empty entry
    ] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert!(Umr::parse(&bad).is_err(), "byte {at} {byte:#x}");
    }
    assert!(Umr::parse(&good[..127]).is_err());
    let list = Translation { repeat: 1, parts: vec![part(8, 0), part(8, 0)] };
    let umr = Umr { translation: Some(list), ..Umr::default() };
    let mut hole = vec![0; umr.wqe_bytes()];
    umr.emit_segments(&mut hole);
    hole[131] = 0;
    assert_eq!(Umr::parse(&hole), Err(WqeError::Segment(144)), "an entry behind the end");
}

/// A WQE with units of a translation.
fn with_units(units: &[[u8; 16]]) -> Vec<u8> {
    let mut wqe = vec![0; UMR_HEADER_BYTES];
    (wqe[16], wqe[21]) = (UMR_INLINE, units.len() as u8);
    wqe.extend(units.concat());
    wqe
}

#[test]
fn a_block_has_as_many_entries_as_it_says() {
    let head = |row: u8, entries: u8| {
        [0, 0, 0, row, 0, 0, 4, 0, 0, 0, 0, 2, 0, 0, 0, entries] // twice
    };
    let entry = |bytes: u8| [0, 9, 0, bytes, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0x10, 0];
    let parse = |units: &[[u8; 16]]| Umr::parse(&with_units(units)).map(|umr| umr.translation);
    let whole = parse(&[head(7, 2), entry(3), entry(4)]).unwrap().unwrap();
    assert_eq!((whole.repeat, whole.row_bytes(), whole.parts[1].stride), (2, 7, 9));
    // Sums that are right do not make up for entries that are not there.
    assert_eq!(parse(&[head(7, 3), entry(3), entry(4)]), Err(WqeError::Segment(128)));
    assert_eq!(parse(&[head(0, 0), entry(3), entry(4)]), Err(WqeError::Segment(128)));
    assert_eq!(parse(&[head(3, 2), entry(3), entry(0)]), Err(WqeError::Segment(160)), "empty");
}

#[test]
fn a_range_has_2_to_the_31_bytes_at_most() {
    let range = |bytes: u32| {
        let mut unit = [0; 16];
        unit[..4].copy_from_slice(&bytes.to_be_bytes());
        Umr::parse(&with_units(&[[0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0x10, 0], unit]))
    };
    let parts = range(1 << 31).unwrap().translation.unwrap().parts;
    assert_eq!((parts[0].bytes, parts[1].bytes), (8, 1 << 31));
    assert_eq!(range((1 << 31) + 1), Err(WqeError::Segment(144)));
    assert_eq!(range(u32::MAX), Err(WqeError::Segment(144)));
}

#[test]
fn an_invalidation_frees_the_key_of_any_queue_pair() {
    let umr = Umr::invalidate();
    assert_eq!((umr.tag, umr.qpn, umr.free), (Some(0), Some(ANY_QPN), Some(true)));
    let mut wqe = vec![0; umr.wqe_bytes()];
    umr.emit_segments(&mut wqe);
    // set_umr_control_seg of libmlx5 for IBV_WR_LOCAL_INV: low byte, queue pair and free.
    assert_eq!((wqe[16], &wqe[24..32]), (0x88, &0x2000_6000u64.to_be_bytes()[..]));
    assert_eq!(wqe[64..72], [0x40, 0, 0, 0, 0xff, 0xff, 0xff, 0]);
    assert_eq!(Umr::parse(&wqe), Ok(umr), "without a translation");
    assert_eq!(Umr::parse(&wqe[..100]), Err(WqeError::Ds(6)));
}

#[test]
fn the_longest_translation_fits_and_a_longer_one_does_not() {
    let of = |entries: usize| {
        let translation = Some(Translation { repeat: 1, parts: vec![part(8, 0); entries] });
        Umr { translation, ..Umr::default() }
    };
    // Whole blocks: 8 units of header, and 52 of 55.
    let umr = of(52);
    assert_eq!((umr.wqe_bytes() / DS_BYTES, round_trip(&umr)), (60, Ok(umr)));
    assert_eq!(round_trip(&of(53)), Err(WqeError::Ds(64)));
    let mut short = vec![0; 191];
    let need = of(4).emit(5, Flags::default(), (7, Qpn(9)), &mut short);
    assert_eq!(need, Err(WqeError::Short { have: 191, need: 192 }));
}

proptest! {
    #[test]
    fn changes_round_trip(
        checks: (bool, bool),
        tag: Option<u8>,
        qpn in prop::option::of(0u32..1 << 24),
        free: Option<bool>,
        range: (Option<u64>, Option<u64>),
        rights in (0u64..16, 0u64..16),
        parts in prop::collection::vec((1u32..65536, 0u32..65536, any::<u64>(), 1u32..), 1..20),
        repeat in prop::option::of(2u32..),
    ) {
        let parts = parts.into_iter().map(|(bytes, stride, addr, lkey)| Part {
            addr: Iova(addr),
            lkey: Lkey(if lkey == REPEAT { 1 } else { lkey }),
            bytes,
            stride: if repeat.is_some() { stride } else { 0 },
        });
        let translation = Translation { repeat: repeat.unwrap_or(1), parts: parts.collect() };
        let rights = (rights.0 << 18, (rights.0 & rights.1) << 18);
        let umr = Umr {
            check_free: checks.0,
            check_qpn: checks.1,
            tag,
            qpn: qpn.map(Qpn),
            free,
            start: range.0.map(Iova),
            bytes: range.1,
            rights,
            translation: Some(translation),
        };
        prop_assert_eq!(round_trip(&umr), Ok(umr));
    }

    #[test]
    fn any_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..1024)) {
        let _ = Umr::parse(&bytes);
    }
}
