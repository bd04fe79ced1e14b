use super::super::{
    Addresses, MAX_HEADER_BYTES, MAX_PACKET_BYTES, NakCode, Operation, Position, Service, Syndrome,
    Tail,
};
use super::*;
use crate::{Iova, Psn, Qpn};
use proptest::prelude::*;

fn envelope() -> Envelope {
    let addresses = Addresses::V4 { src: [127, 0, 0, 1].into(), dst: [127, 0, 0, 2].into() };
    Envelope::new(addresses, 0xc000)
}

/// Headers of an opcode with every extension filled from `seed`.
fn headers(opcode: Opcode, seed: u64) -> Headers {
    let low = seed as u32;
    let mut bth = Bth::new(opcode, Qpn(low & Qpn::MAX), Psn::new(low >> 3));
    (bth.solicited, bth.ack_req, bth.becn) = (seed & 1 != 0, seed & 2 != 0, seed & 4 != 0);
    let (set, addr, rkey) = (opcode.extensions(), Iova(seed), Rkey(low));
    let syndromes =
        [Syndrome::ACK, Syndrome::RnrNak { timer: 7 }, Syndrome::Nak(NakCode::PsnSequence)];
    let aeth = Aeth { syndrome: syndromes[low as usize % 3], msn: low >> 8 };
    let atomic = AtomicEth { addr, rkey, swap_add: seed ^ 5, compare: !seed };
    let ext = Extensions {
        srqn: set.xrc.then_some(low >> 8),
        dc: set.dc.then_some(Dceth {
            key: seed,
            source: Qpn(low >> 8),
            start: Psn::new(low >> 5),
            life: !low,
        }),
        deth: set.deth.then_some(Deth { qkey: low, source: Qpn(low >> 8) }),
        reth: set.reth.then_some(Reth { addr, rkey, bytes: !low }),
        atomic: set.atomic.then_some(atomic),
        masks: set.masks.then_some(Masks { bytes: low, change: seed, compare: seed ^ 3 }),
        aeth: set.aeth.then_some(aeth),
        atomic_ack: set.atomic_ack.then_some(seed),
        imm: set.imm.then_some(low),
        ieth: set.ieth.then_some(rkey),
    };
    Headers { bth, ext }
}

fn emit(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut buf = [0xa5; MAX_PACKET_BYTES];
    let mut frame = headers.emit(payload.len(), &mut buf);
    frame.payload_mut().copy_from_slice(payload);
    let n = frame.finish(Some(&envelope()));
    assert!(buf[n..].iter().all(|&b| b == 0xa5));
    buf[..n].to_vec()
}

#[test]
fn a_write_with_immediate_has_the_specifications_bytes() {
    let opcode = Opcode::rc(Operation::WriteOnlyImm);
    let mut headers = Headers::new(Bth::new(opcode, Qpn(0x112233), Psn::new(0x445566)));
    let reth = Reth { addr: Iova(0x0102_0304_0506_0708), rkey: Rkey(0x090a_0b0c), bytes: 5 };
    (headers.ext.reth, headers.ext.imm) = (Some(reth), Some(0xdead_beef));
    let packet = emit(&headers, b"hello");
    #[rustfmt::skip]
    let expected = [
        0x0b, 0x70, 0xff, 0xff, 0, 0x11, 0x22, 0x33, 0, 0x44, 0x55, 0x66,
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 5,
        0xde, 0xad, 0xbe, 0xef, b'h', b'e', b'l', b'l', b'o', 0, 0, 0,
    ];
    assert_eq!(packet[..packet.len() - 4], expected);
}

#[test]
fn the_longest_packet_fits_and_a_longer_one_is_refused() {
    let headers = headers(Opcode::new(Service::Dc, Operation::WriteOnlyImm), 0);
    let mut packet = emit(&headers, &[7; MAX_PATH_MTU]);
    assert_eq!(packet.len(), MAX_PACKET_BYTES);
    assert_eq!(Packet::parse(&packet).unwrap().payload.len(), MAX_PATH_MTU);
    packet.extend([0; 4]);
    let error = PacketError::Payload { opcode: 0xeb, bytes: MAX_PATH_MTU + 4 };
    assert_eq!(Packet::parse(&packet), Err(error));
}

#[test]
fn the_longest_headers_are_as_long_as_is_said() {
    let most = Opcode::all().map(|opcode| BTH_BYTES + opcode.extensions().bytes()).max();
    assert_eq!(most, Some(MAX_HEADER_BYTES));
}

#[test]
fn what_is_wrong_is_named() {
    let ack = emit(&headers(Opcode::rc(Operation::Acknowledge), 3), &[]);
    let parse = |at: usize, value: u8| {
        let mut bytes = ack.clone();
        bytes[at] = value;
        Packet::parse(&bytes).unwrap_err()
    };
    assert_eq!(parse(0, 0xc0), PacketError::Opcode(0xc0));
    assert_eq!(parse(1, 0x4f), PacketError::Version(15));
    assert_eq!(parse(1, 0x60), PacketError::Pad { pad: 2, bytes: 0 });
    assert_eq!(parse(12, 0x40), PacketError::Syndrome(0x40));
    assert_eq!(Packet::parse(&ack[..15]), Err(PacketError::Short { bytes: 15, need: 20 }));
    assert_eq!(Packet::parse(&ack[..3]), Err(PacketError::Short { bytes: 3, need: 16 }));
    let longer = [&ack[..], &[0; 4]].concat();
    assert_eq!(Packet::parse(&longer), Err(PacketError::Payload { opcode: 0x11, bytes: 4 }));
    let odd = [&ack[..], &[0]].concat();
    assert_eq!(Packet::parse(&odd), Err(PacketError::Pad { pad: 0, bytes: 1 }));
    assert_eq!(
        Packet::check(&[0; 15], &envelope()),
        Err(PacketError::Short { bytes: 15, need: 16 })
    );
    assert_eq!(Packet::check(&[0; 3], &envelope()), Err(PacketError::Short { bytes: 3, need: 16 }));
}

#[test]
fn a_packet_of_a_base_header_alone_is_checked() {
    let send = emit(&headers(Opcode::rc(Operation::send(Position::Only, Tail::Plain)), 1), &[]);
    assert_eq!(send.len(), BTH_BYTES + ICRC_BYTES);
    assert_eq!(Packet::check(&send, &envelope()), Ok(()));
    let stored = u32::from_le_bytes(*send.last_chunk().unwrap());
    let mut bad = send.clone();
    bad[15] ^= 1;
    let error = PacketError::Icrc { stored: stored ^ 1 << 24, computed: stored };
    assert_eq!(Packet::check(&bad, &envelope()), Err(error));
    let word = |packet: &[u8]| u32::from_be_bytes(*packet.last_chunk().unwrap());
    let shown = format!("ICRC {:#010x}, computed {:#010x}", word(&bad), word(&send));
    assert_eq!(error.to_string(), shown, "as the bytes lie");
}

#[test]
fn a_frame_without_icrc_ends_in_zeros() {
    let mut buf = [0xa5; MAX_PACKET_BYTES];
    let send = Opcode::rc(Operation::send(Position::Only, Tail::Plain));
    let n = headers(send, 1).emit(0, &mut buf).finish(None);
    assert_eq!((n, &buf[n - 4..n]), (16, &[0; 4][..]));
}

#[test]
#[should_panic(expected = "extension headers are those of the opcode")]
fn a_missing_extension_is_our_own_mistake() {
    let bth = Bth::new(Opcode::rc(Operation::ReadRequest), Qpn(1), Psn::new(0));
    let _ = Headers::new(bth).emit(0, &mut [0; 64]);
}

proptest! {
    #[test]
    fn every_opcode_survives_the_wire(
        index in any::<prop::sample::Index>(),
        seed in any::<u64>(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let opcodes: Vec<Opcode> = Opcode::all().collect();
        let opcode = opcodes[index.index(opcodes.len())];
        let payload = if opcode.operation().has_payload() { &payload[..] } else { &[] };
        let mut headers = headers(opcode, seed);
        let mut bytes = emit(&headers, payload);
        let packet = Packet::parse(&bytes).unwrap();
        headers.bth.pad = packet.headers.bth.pad;
        prop_assert_eq!(packet, Packet { headers, payload });
        prop_assert_eq!(Packet::check(&bytes, &envelope()), Ok(()));
        prop_assert!(bytes.len().is_multiple_of(4));
        // Any changed bit is noticed, except in the byte that routers change.
        let bit = index.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(Packet::check(&bytes, &envelope()).is_ok(), bit / 8 == 4);
    }

    /// What is said of a packet by its beginning is what all of it says, whoever changes the rest; and the payload lies
    /// in it, behind what was looked at and before pad and ICRC.
    #[test]
    fn headers_are_checked_without_the_payload(
        index in any::<prop::sample::Index>(),
        seed in any::<u64>(),
        (code, second) in any::<(Option<u8>, Option<u8>)>(),
        bytes in 0..MAX_PACKET_BYTES + 9,
        cut in 0..MAX_HEADER_BYTES + 9,
    ) {
        let opcodes: Vec<Opcode> = Opcode::all().collect();
        let mut whole = vec![0xa5; bytes.max(MAX_HEADER_BYTES)];
        headers(opcodes[index.index(opcodes.len())], seed).emit_apart(0, &mut whole);
        whole[0] = code.unwrap_or(whole[0]);
        whole[1] = second.unwrap_or(whole[1]);
        whole.truncate(bytes);
        let said = Headers::parse(&whole[..bytes.min(MAX_HEADER_BYTES)], bytes);
        let all = Packet::parse(&whole);
        prop_assert_eq!(said.clone().map(|(headers, _)| headers), all.map(|it| it.headers));
        if let (Ok((headers, at)), Ok(all)) = (said, all) {
            prop_assert_eq!(at.start, headers.bytes());
            prop_assert_eq!(at.end + usize::from(headers.bth.pad) + ICRC_BYTES, bytes);
            prop_assert_eq!(all.payload, &whole[at]);
        }
        // A head of any length is read no further than it goes.
        let _ = Headers::parse(&whole[..cut.min(bytes)], bytes);
    }

    #[test]
    fn any_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok(packet) = Packet::parse(&bytes) {
            let rest = packet.headers.bytes() + usize::from(packet.headers.bth.pad) + ICRC_BYTES;
            prop_assert_eq!(packet.payload.len() + rest, bytes.len());
        }
        let _ = Packet::check(&bytes, &envelope());
    }
}
