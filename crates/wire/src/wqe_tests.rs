use std::net::Ipv6Addr;

use super::super::be::Be32;
use super::*;
use crate::Lkey;
use proptest::prelude::*;

fn data(addr: u64, lkey: u32, bytes: u32) -> Piece<'static> {
    Piece::Data(Sge { addr: Iova(addr), lkey: Lkey(lkey), bytes })
}

#[test]
fn an_rdma_write_has_the_bytes_that_libmlx5_writes() {
    let mut buf = [0xa5; 128];
    let payload = [data(0x1122_3344_5566_7788, 0x99aa_bbcc, 0x1000)];
    let wr = SendWr::new(Opcode::RdmaWrite)
        .to(Iova(0x0102_0304_0506_0708), Rkey(0x0a0b_0c0d))
        .payload(&payload);
    assert_eq!(wr.emit(0x1234, Qpn(0x5678), &mut buf), Ok(1));
    #[rustfmt::skip]
    let expected = [
        0, 0x12, 0x34, 0x08,  0, 0x56, 0x78, 3,  0, 0, 0, 8,  0, 0, 0, 0,
        1, 2, 3, 4, 5, 6, 7, 8,  0x0a, 0x0b, 0x0c, 0x0d,  0, 0, 0, 0,
        0, 0, 0x10, 0,  0x99, 0xaa, 0xbb, 0xcc,  0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(buf[..64], expected);
    assert_eq!(buf[64..], [0xa5; 64], "only whole blocks of the WQE are written");
}

#[test]
fn a_count_of_0_means_2_to_the_31() {
    let mut buf = [0; 64];
    let payload = [data(0, 1, MAX_MESSAGE_BYTES)];
    SendWr::new(Opcode::Send).payload(&payload).emit(0, Qpn(1), &mut buf).unwrap();
    assert_eq!(buf[16..20], [0; 4]);
    assert_eq!(Wqe::parse(&buf).unwrap().bytes, MAX_MESSAGE_BYTES);
    let twice = [payload[0], data(0, 1, 1)];
    SendWr::new(Opcode::Send).payload(&twice).emit(0, Qpn(1), &mut buf).unwrap();
    assert_eq!(Wqe::parse(&buf), Err(WqeError::Message((1 << 31) + 1)));
}

#[test]
fn the_largest_inline_fits_and_one_more_does_not() {
    let bytes = [7u8; MAX_WQE_BYTES];
    let mut buf = [0xa5; 1024];
    let largest = [Piece::Inline(&bytes[..MAX_WQE_BYTES - 36])];
    let wr = SendWr::new(Opcode::RdmaWrite).payload(&largest);
    assert_eq!(wr.emit(0, Qpn(1), &mut buf), Ok(16));
    let wqe = Wqe::parse(&buf).unwrap();
    assert_eq!((wqe.ds, wqe.bytes as usize), (63, MAX_WQE_BYTES - 36));
    let over = [Piece::Inline(&bytes[..MAX_WQE_BYTES - 35])];
    let wr = SendWr::new(Opcode::RdmaWrite).payload(&over);
    assert_eq!(wr.emit(0, Qpn(1), &mut buf), Err(WqeError::Ds(64)));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let wqe = |opcode: u32, ds: u32, tail: &[(usize, u32)]| {
        let mut buf = [0u8; 64];
        put(&mut buf, 0, &Be32::new(opcode));
        put(&mut buf, 4, &Be32::new(ds));
        for &(at, word) in tail {
            put(&mut buf, at, &Be32::new(word));
        }
        Wqe::parse(&buf)
    };
    assert_eq!(wqe(0x1b, 1, &[]), Err(WqeError::Opcode(0x1b)));
    assert_eq!(wqe(0x25, 7, &[]), Err(WqeError::Ds(7)));
    assert_eq!(wqe(0x08, 1, &[]), Err(WqeError::Ds(1)));
    assert_eq!(wqe(0x0a, 0, &[]), Err(WqeError::Ds(0)));
    assert_eq!(wqe(0x0a, 5, &[]), Err(WqeError::Short { have: 64, need: 80 }));
    assert_eq!(wqe(0x0a, 2, &[(16, INLINE_FLAG | 13)]), Err(WqeError::Segment(16)));
    assert_eq!(wqe(0x0a, 2, &[(16, u32::MAX)]), Err(WqeError::Segment(16)));
    assert_eq!(wqe(0x10, 3, &[(32, INLINE_FLAG | 4)]), Err(WqeError::Segment(32)));
    assert_eq!(wqe(0x12, 4, &[(48, 4)]), Err(WqeError::AtomicLength(4)));
    assert_eq!(Wqe::parse(&[0; 15]), Err(WqeError::Short { have: 15, need: 16 }));
    assert!(wqe(0x0a, 2, &[(16, INLINE_FLAG | 12)]).is_ok());
}

#[test]
fn opcodes_have_mlx5s_codes_and_headers() {
    use Opcode::*;
    for (code, opcode, header) in [
        (0x00, Nop, 16),
        (0x01, SendInval, 16),
        (0x08, RdmaWrite, 32),
        (0x09, RdmaWriteImm, 32),
        (0x0a, Send, 16),
        (0x0b, SendImm, 16),
        (0x0f, Wait, 32),
        (0x10, RdmaRead, 32),
        (0x11, AtomicCs, 48),
        (0x12, AtomicFa, 48),
        (0x14, AtomicMaskedCs, 48),
        (0x15, AtomicMaskedFa, 48),
        (0x23, Dump, 32),
        (0x25, Umr, 128),
        (0x28, TagMatching, 48),
        (0x2f, Mmo, 64),
    ] {
        assert_eq!((Opcode::from_code(code), opcode as u8), (Some(opcode), code));
        assert_eq!(opcode.header_bytes(), header, "{opcode:?}");
        assert_eq!(opcode.masked().is_some(), matches!(opcode, AtomicMaskedCs | AtomicMaskedFa));
        // A WQE may be its header and no more: one unit less is refused.
        let parse = |ds: u8| {
            let modifier = if opcode.masked().is_some() { 8 } else { 0 };
            let mut wqe = [0; 256];
            (wqe[0], wqe[3], wqe[7]) = (modifier, code, ds);
            Wqe::parse(&wqe)
        };
        let ds = header as u8 / 16;
        assert_eq!(parse(ds - 1), Err(WqeError::Ds(header / 16 - 1)), "{opcode:?}");
        let want = if opcode.is_atomic() { Err(WqeError::AtomicLength(0)) } else { Ok(opcode) };
        assert_eq!(parse(ds).map(|wqe| wqe.opcode), want);
    }
    let known = (0..=u8::MAX).filter(|&code| Opcode::from_code(code).is_some());
    assert_eq!(known.count(), 16);
}

#[test]
fn a_control_segment_takes_whole_blocks() {
    let blocks = |ds: u8| {
        let mut ctrl = [0; 16];
        ctrl[7] = ds;
        Ctrl::parse(&ctrl).unwrap().blocks()
    };
    assert_eq!([0, 1, 4, 5, 8, 9, 63].map(blocks), [1, 1, 1, 2, 2, 3, 16]);
}

#[test]
fn a_datagram_has_the_bytes_that_libmlx5_writes() {
    let to = Datagram {
        traffic_class: 0x5a,
        hop_limit: 7,
        flow_label: 0xf_edcb,
        src_port: 0xc123,
        ..Datagram::new(Ipv6Addr::LOCALHOST, Qpn(0x77), 0x1122_3344)
    };
    let payload = [data(8, 9, 10)];
    let wr = SendWr { datagram: Some(to), ..SendWr::new(Opcode::Send) }.payload(&payload);
    let mut buf = [0; 128];
    assert_eq!(wr.emit(3, Qpn(9), &mut buf), Ok(2));
    #[rustfmt::skip]
    let av = [
        0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0,  0x80, 0, 0, 0x77,  0, 0, 0xc1, 0x23,
        0, 0, 0, 0,  0, 0, 0, 0, 0, 0,  0x5a, 7,  0x40, 0x0f, 0xed, 0xcb,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
    ];
    assert_eq!(buf[16..64], av);
    let wqe = Wqe::parse_datagram(&buf).unwrap();
    assert_eq!((wqe.datagram, wqe.bytes, wqe.ds), (Some(to), 10, 5));
    assert_eq!(Wqe::parse_datagram(&buf[..79]), Err(WqeError::Short { have: 79, need: 80 }));
    let fields = to.fields();
    assert_eq!((fields.traffic_class, fields.hop_limit), (0x5a, 7));
    assert_eq!((fields.flow_label, fields.src_port), (0xf_edcb, 0xc123));
    let plain = Datagram::new(Ipv6Addr::LOCALHOST, Qpn(1), 2).fields();
    assert_eq!((plain.src_port, plain.hop_limit), (4791, 64), "a NIC's own port");
    // A destination's two halves of a key do not meet.
    let both = Datagram { qkey: 0x8000_0001, key_low: 0x8000_0002, ..to };
    assert_eq!(both.dc_key(), 0x8000_0001_8000_0002);
    buf[3] = Opcode::RdmaWrite as u8;
    assert_eq!(Wqe::parse_datagram(&buf), Err(WqeError::Opcode(8)));
}

#[test]
fn a_joined_wqe_has_its_length_in_its_bytes_too() {
    let mut buf = [0; 64];
    let payload = [data(0x1000, 7, 100)];
    let wr = SendWr { stream: 0x1234, ..SendWr::new(Opcode::RdmaWrite) }.payload(&payload);
    wr.emit(1, Qpn(2), &mut buf).unwrap();
    assert_eq!(buf[9..11], [0x12, 0x34]);
    let mut wqe = Wqe::parse(&buf).unwrap();
    assert_eq!(wqe.stream, 0x1234);
    wqe.extend(&mut buf, 0x0102_0304);
    assert_eq!((wqe.bytes, &buf[32..36]), (0x0102_0304, &[1, 2, 3, 4][..]));
    assert_eq!(Wqe::parse(&buf), Ok(wqe));
}

#[test]
fn empty_entries_are_left_out() {
    let mut buf = [0xa5; 128];
    let payload = [data(1, 2, 0), data(3, 4, 5), data(6, 7, 0), data(8, 9, 0), data(1, 1, 0)];
    let wr = SendWr::new(Opcode::Send).payload(&payload);
    assert_eq!((wr.blocks(), wr.emit(0, Qpn(1), &mut buf)), (1, Ok(1)));
    let wqe = Wqe::parse(&buf).unwrap();
    assert_eq!((wqe.ds, wqe.bytes), (2, 5));
    assert_eq!(wqe.pieces(&buf).collect::<Vec<_>>(), [payload[1]]);
}

#[derive(Debug, Clone)]
enum Owned {
    Data(u64, u32, u32),
    Inline(Vec<u8>),
}

fn owned() -> impl Strategy<Value = Owned> {
    prop_oneof![
        (any::<u64>(), any::<u32>(), 1..=1u32 << 24).prop_map(|(a, l, n)| Owned::Data(a, l, n)),
        prop::collection::vec(any::<u8>(), 0..64).prop_map(Owned::Inline),
    ]
}

fn borrowed(pieces: &[Owned]) -> Vec<Piece<'_>> {
    let piece = |p: &'_ Owned| match p {
        Owned::Data(addr, lkey, bytes) => data(*addr, *lkey, *bytes),
        Owned::Inline(_) => data(0, 0, 0),
    };
    pieces
        .iter()
        .map(|p| if let Owned::Inline(d) = p { Piece::Inline(d) } else { piece(p) })
        .collect()
}

#[test]
fn a_dc_wqe_has_its_target_before_its_remote_address() {
    let mut to = Datagram::new(Ipv6Addr::LOCALHOST, Qpn(0x77), 0x1122_3344);
    to.key_low = 0x5566_7788;
    let payload = [data(8, 9, 8)];
    let remote = Remote { addr: Iova(0x1000), rkey: Rkey(5) };
    let wr = SendWr { datagram: Some(to), ..SendWr::new(Opcode::RdmaWrite) };
    let wr = wr.to(remote.addr, remote.rkey).payload(&payload);
    let mut buf = [0; 192];
    wr.emit(3, Qpn(9), &mut buf).unwrap();
    let wqe = Wqe::parse_dc(&buf).unwrap();
    assert_eq!((wqe.datagram, wqe.remote, wqe.bytes), (Some(to), Some(remote), 8));
    assert_eq!(wqe.datagram.unwrap().dc_key(), 0x1122_3344_5566_7788);
    // A short address vector, and none.
    buf[24] &= 0x7f;
    assert_eq!(Wqe::parse_dc(&buf), Err(WqeError::Segment(16)));
    SendWr { datagram: None, ..wr }.emit(3, Qpn(9), &mut buf).unwrap();
    assert!(Wqe::parse_dc(&buf).is_err());
}

proptest! {
    #[test]
    fn ring_wqes_round_trip(
        op in 1usize..7,
        pieces in prop::collection::vec(owned(), 0..10),
        fields: (u16, u32, u64, u32),
        qpn in 0u32..1 << 24,
        srqn in prop::option::of(0u32..1 << 24),
        flags: (bool, bool, bool),
    ) {
        let opcode = Opcode::ALL[op];
        let payload = borrowed(&pieces);
        let has_inline = payload.iter().any(|p| matches!(p, Piece::Inline(_)));
        prop_assume!(!(opcode.scatters() && has_inline));
        let remote = Remote { addr: Iova(fields.2), rkey: Rkey(fields.3) };
        let wr = SendWr {
            opcode,
            flags: Flags { cq_update: flags.0, solicited: flags.1, fence: flags.2 },
            imm: fields.1,
            remote: opcode.has_remote().then_some(remote),
            atomic: None,
            datagram: None,
            srqn,
            stream: 0,
            payload: &payload,
        };
        let mut buf = [0xa5; 1024];
        let blocks = wr.emit(fields.0, Qpn(qpn), &mut buf).unwrap();
        prop_assert!(buf[blocks as usize * 64..].iter().all(|&b| b == 0xa5));
        let wqe = if srqn.is_some() { Wqe::parse_xrc(&buf) } else { Wqe::parse(&buf) };
        let wqe = wqe.unwrap();
        prop_assert_eq!((wqe.blocks(), wqe.srqn), (blocks, srqn));
        prop_assert_eq!((wqe.opcode, wqe.index, wqe.qpn), (opcode, fields.0, Qpn(qpn)));
        prop_assert_eq!((wqe.flags, wqe.imm, wqe.remote), (wr.flags, wr.imm, wr.remote));
        prop_assert_eq!(wqe.pieces(&buf).collect::<Vec<_>>(), payload);
    }

    #[test]
    fn atomics_round_trip(swap_add: u64, compare: u64, cas: bool) {
        let opcode = if cas { Opcode::AtomicCs } else { Opcode::AtomicFa };
        let ops = Operands { swap_add, compare };
        let payload = [data(8, 9, 8)];
        let wr = SendWr { atomic: Some(ops), ..SendWr::new(opcode) }.payload(&payload);
        let mut buf = [0xa5; 64];
        prop_assert_eq!(wr.emit(0, Qpn(1), &mut buf), Ok(1));
        prop_assert_eq!(Wqe::parse(&buf).unwrap().atomic, Some(ops));
    }

    #[test]
    fn any_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(wqe) = Wqe::parse(&bytes) {
            let sum: u64 = wqe.pieces(&bytes).map(|p| match p {
                Piece::Data(sge) => u64::from(sge.bytes),
                Piece::Inline(data) => data.len() as u64,
            }).sum();
            prop_assert_eq!(sum, u64::from(wqe.bytes));
        }
        let _ = Wqe::parse_stream(&bytes);
        let _ = Wqe::parse_xrc(&bytes);
    }
}
