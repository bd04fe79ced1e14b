use super::super::wqe::{Opcode, Piece, SendWr, Sge, Wqe};
use super::super::{Iova, Lkey, Qpn, Rkey};
use super::*;
use proptest::prelude::*;

fn format() -> impl Strategy<Value = LineFormat> {
    (0usize..3).prop_map(|i| LineFormat::ALL[i])
}

#[test]
fn sequences_cycle_without_0() {
    let f = LineFormat::L14S2;
    assert_eq!(f.seq(1, 0), 1);
    assert_eq!(f.seq(1, 65_534), 65_535);
    assert_eq!(f.seq(1, 65_535), 1);
    assert_eq!(f.seq(65_535, 1), 1);
    let f = LineFormat::L60S4;
    assert_eq!(f.seq(u32::MAX, 0), u32::MAX);
    assert_eq!(f.seq(u32::MAX, 1), 1);
    assert_eq!(f.seq(u32::MAX - 1, u64::from(u32::MAX)), u32::MAX - 1);
    assert_eq!(f.seq(1, u64::MAX), (u64::MAX % u64::from(u32::MAX)) as u32 + 1);
}

#[test]
fn a_lap_ahead_is_told_from_a_lap_behind() {
    for f in LineFormat::ALL {
        for lap in [0, 1, 70_000, u64::from(u32::MAX) - 1, u64::from(u32::MAX)] {
            for seq0 in [1, 2, f.modulus() - 1, f.modulus()] {
                let now = f.seq(seq0, lap + 1);
                assert_ne!(now, 0);
                assert_eq!(f.standing(now, now), Standing::Expected);
                assert_eq!(f.standing(now, 0), Standing::Stale);
                assert_eq!(f.standing(now, f.seq(seq0, lap)), Standing::Stale);
                assert_eq!(f.standing(now, f.seq(seq0, lap + 2)), Standing::Ahead);
            }
        }
    }
}

#[test]
fn half_of_the_cycle_is_ahead() {
    for f in LineFormat::ALL {
        let (m, half) = (f.modulus(), f.modulus() / 2);
        for seq0 in [1, 2, half, half + 1, m - 1, m] {
            let (now, standing) = (f.seq(seq0, 0), |laps: u32| f.seq(seq0, laps.into()));
            for (laps, expected) in [
                (1, Standing::Ahead),
                (half - 1, Standing::Ahead),
                (half, Standing::Ahead),
                (half + 1, Standing::Stale),
                (m - 1, Standing::Stale),
            ] {
                assert_eq!(f.standing(now, standing(laps)), expected, "{f} {seq0} {laps}");
            }
        }
    }
    let f = LineFormat::L14S2;
    assert_eq!(f.standing(1, 0x1_0000), Standing::Stale, "no number of the format");
}

#[test]
fn tickets_go_round_the_slots() {
    let places = [0, 1, 6, 7, 13, 14, 20].map(|ticket| slot_of(ticket, 7));
    assert_eq!(places, [(0, 0), (1, 0), (6, 0), (0, 1), (6, 1), (0, 2), (6, 2)]);
    assert_eq!(slot_of(u64::MAX, 1 << 16), (0xffff, u64::MAX >> 16));
    assert_eq!(slot_of(9, 1), (0, 9));
}

#[test]
fn a_slot_holds_whole_lines() {
    for (f, slot_bytes, capacity) in [
        (LineFormat::L12S4, 1024, 768),
        (LineFormat::L12S4, 47, 24),
        (LineFormat::L14S2, 1024, 896),
        (LineFormat::L60S4, 1024, 960),
        (LineFormat::L60S4, 127, 60),
        (LineFormat::L60S4, 63, 0),
    ] {
        assert_eq!(f.capacity(slot_bytes), capacity, "{f} {slot_bytes}");
        assert_eq!(f.write_capacity(slot_bytes), capacity.saturating_sub(36));
    }
    // As a write is posted: its stream fills the slot, and one byte more does not fit.
    let inline = [7; 1024];
    for f in LineFormat::ALL {
        let room = f.write_capacity(512);
        let stream = |bytes: usize| {
            let payload = [Piece::Inline(&inline[..bytes])];
            let wr = SendWr::new(Opcode::RdmaWrite).to(Iova(1), Rkey(2)).payload(&payload);
            wr.emit_stream(0, Qpn(1), &mut [0; 1024]).unwrap()
        };
        assert_eq!((stream(room), f.lines(stream(room))), (f.capacity(512), 512 / f.line_bytes()));
        assert!(f.lines(stream(room + 1)) * f.line_bytes() > 512);
    }
}

#[test]
fn formats_have_the_names_that_they_are_read_by() {
    for (f, name) in LineFormat::ALL.into_iter().zip(["12+4", "14+2", "60+4"]) {
        assert_eq!((f.to_string().as_str(), name.parse()), (name, Ok(f)));
    }
    let error = "28+4".parse::<LineFormat>().unwrap_err();
    assert!(error.to_string().contains("28+4"));
}

#[test]
fn a_stream_of_entries_alone_ends_with_the_last() {
    let entry = |lkey| Piece::Data(Sge { addr: Iova(4), lkey: Lkey(lkey), bytes: 6 });
    let payload = [entry(5), entry(6)];
    let wr = SendWr::new(Opcode::Send).payload(&payload);
    let mut stream = [0xa5; 64];
    assert_eq!(wr.emit_stream(5, Qpn(1), &mut stream), Ok(48));
    assert_eq!((stream[7], stream[48]), (3, 0xa5));
    assert_eq!(stream_need(&stream[..20]), Ok(Need::More(36)));
    assert_eq!(stream_need(&stream[..36]), Ok(Need::Total(48)), "what follows is not looked at");
    // The end of the stream is before that of the segments that the opcode has.
    let short = SendWr::new(Opcode::RdmaWrite).to(Iova(1), Rkey(2)).payload(&payload[..1]);
    assert_eq!(short.emit_stream(5, Qpn(1), &mut stream), Ok(48));
    assert_eq!(Wqe::parse_stream(&stream[..20]), Err(WqeError::Ds(3)));
}

#[test]
fn the_length_is_found_from_as_little_as_possible() {
    let inline = [3u8; 500];
    let payload = [Piece::Inline(&inline)];
    let mut stream = [0; 1024];
    let wr = SendWr::new(Opcode::RdmaWrite).to(Iova(1), Rkey(2)).payload(&payload);
    let n = wr.emit_stream(5, Qpn(1), &mut stream).unwrap();
    assert_eq!(n, 536);
    assert_eq!(stream[7], 3, "ds ends with the inline header's unit");
    assert_eq!(stream_need(&stream[..15]), Ok(Need::More(16)));
    assert_eq!(stream_need(&stream[..16]), Ok(Need::More(36)));
    assert_eq!(stream_need(&stream[..36]), Ok(Need::Total(536)));
    for opcode in [Opcode::Send, Opcode::SendImm, Opcode::SendInval] {
        let wr = SendWr::new(opcode).payload(&payload);
        assert_eq!(wr.emit_stream(5, Qpn(1), &mut stream), Ok(520));
        let need = stream_need(&stream[..20]);
        assert_eq!((stream[7], need), (2, Ok(Need::Total(520))), "{opcode:?}");
    }
}

#[test]
fn streams_without_an_end_are_refused() {
    let mut stream = [0u8; 64];
    assert_eq!(stream_need(&stream), Err(WqeError::Ds(0)));
    stream[3] = 0x0a;
    stream[7] = 4;
    stream[16] = 0x80; // inline, but not last
    assert_eq!(stream_need(&stream), Err(WqeError::Segment(16)));
    let not_last = [Piece::Inline(&[1]), Piece::Inline(&[2])];
    let wr = SendWr::new(Opcode::Send).payload(&not_last);
    assert_eq!(wr.emit_stream(0, Qpn(1), &mut stream), Err(WqeError::Segment(16)));
}

#[test]
fn a_line_of_another_lap_is_noticed() {
    let stream = [9; 200];
    for f in LineFormat::ALL {
        let mut slot = [0; 512];
        let lines = f.scatter(&stream, 7, &mut slot);
        let mut out = [0xa5; 200];
        assert_eq!(f.gather(&slot, 7, &mut out), Ok(()));
        assert_eq!(out, stream);
        for torn in 0..lines {
            let mut slot = slot;
            slot[torn * f.line_bytes() + f.data_bytes()] = 6;
            assert_eq!(f.gather(&slot, 7, &mut out), Err(torn));
        }
    }
}

#[test]
fn scrub_laps_clear_what_is_behind_the_stream() {
    for f in LineFormat::ALL {
        let mut slot = [0xa5; 256];
        assert_eq!(f.scatter(&[1], SCRUB_LAPS + 1, &mut slot), 1);
        assert!(slot[f.line_bytes()..].iter().all(|&byte| byte == 0xa5));
        for seq in 1..=SCRUB_LAPS {
            slot.fill(0xa5);
            assert_eq!(f.scatter(&[1], seq, &mut slot), 256 / f.line_bytes());
            assert_eq!((slot[0], f.seq_of(&slot)), (1, seq));
            assert!(slot[f.line_bytes()..].iter().all(|&byte| byte == 0));
        }
    }
}

#[test]
fn no_line_keeps_a_sequence_until_it_is_due() {
    for f in LineFormat::ALL {
        let m = u64::from(f.modulus());
        let laps = [0, 1, 2, m - 1, m, m + 1, m + 2, 2 * m - 1, 2 * m, 2 * m + 1];
        // Every choice of laps whose stream fills the slot; that of the others takes a line.
        for fills in 0..1u32 << laps.len() {
            let mut slot = [0; 256];
            for (i, &lap) in laps.iter().enumerate() {
                let seq = f.seq(1, lap);
                let kept = slot.chunks(f.line_bytes()).position(|line| f.seq_of(line) == seq);
                assert_eq!(kept, None, "{f}, sequence {seq} of lap {lap}, {fills:b}");
                let bytes = if fills >> i & 1 == 1 { f.capacity(256) } else { 1 };
                f.scatter(&[9; 256][..bytes], seq, &mut slot);
            }
        }
    }
}

proptest! {
    #[test]
    fn streams_round_trip(
        f in format(),
        inline in prop::collection::vec(any::<u8>(), 0..400),
        sges in 0usize..3,
        seq in 1u32..0xffff,
    ) {
        let sge = Sge { addr: Iova(4), lkey: Lkey(5), bytes: 6 };
        let mut payload = vec![Piece::Data(sge); sges];
        payload.push(Piece::Inline(&inline));
        let wr = SendWr::new(Opcode::RdmaWrite).to(Iova(1), Rkey(2)).payload(&payload);
        let mut stream = [0xa5; 600];
        let n = wr.emit_stream(77, Qpn(9), &mut stream).unwrap();
        let mut slot = [0; 1024];
        let lines = f.scatter(&stream[..n], seq, &mut slot);
        // As the engine reads it: as many lines as are needed to know more.
        let (mut have, mut out) = (Vec::new(), 0);
        let total = loop {
            match stream_need(&have).unwrap() {
                Need::Total(total) => break total,
                Need::More(more) => {
                    prop_assert!(more > out);
                    out = more;
                    have.resize(f.lines(more) * f.data_bytes(), 0);
                    prop_assert!(f.gather(&slot, seq, &mut have).is_ok());
                }
            }
        };
        prop_assert_eq!(total, n);
        prop_assert!(seq == 1 || f.lines(total) == lines);
        have.resize(total, 0);
        prop_assert!(f.gather(&slot, seq, &mut have).is_ok());
        let wqe = Wqe::parse_stream(&have).unwrap();
        prop_assert_eq!(wqe.pieces(&have).collect::<Vec<_>>(), payload);
    }

    #[test]
    fn any_stream_has_a_length_or_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut have = 0;
        while let Ok(Need::More(more)) = stream_need(&bytes[..have]) {
            prop_assert!(more > have);
            if more > bytes.len() { break; }
            have = more;
        }
    }
}
