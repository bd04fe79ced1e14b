use super::*;
use proptest::prelude::*;

fn v4() -> Envelope {
    let addresses = Addresses::V4 { src: [192, 168, 0, 7].into(), dst: [10, 0, 0, 1].into() };
    Envelope::new(addresses, 0xc001)
}

fn v6() -> Envelope {
    let src = "2001:db8::1".parse().unwrap();
    let addresses = Addresses::V6 { src, dst: "fe80::2".parse().unwrap() };
    Envelope { traffic_class: 0xa5, flow_label: 0x5_4321, ..Envelope::new(addresses, 7) }
}

#[test]
fn the_ipv4_header_of_rfc_1071s_field_guide_has_its_checksum() {
    // A common worked example: 4500 0073 0000 4000 4011 b861 c0a8 0001 c0a8 00c7.
    let addresses = Addresses::V4 { src: [192, 168, 0, 1].into(), dst: [192, 168, 0, 199].into() };
    let mut buf = [0; 256];
    let n = Envelope::new(addresses, 1).emit(&[&[0; 0x73 - 28]], &mut buf);
    assert_eq!(n, 28);
    assert_eq!(buf[..12], [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61]);
}

#[test]
fn udp_checksums_verify_and_are_never_zero() {
    for last in 0..=u16::MAX {
        let mut buf = [0; 64];
        let mut payload = *b"abcd__";
        payload[4..].copy_from_slice(&last.to_be_bytes());
        let n = v6().emit(&[&payload[..2], &payload[2..]], &mut buf);
        let checksum = u16::from_be_bytes([buf[n - 2], buf[n - 1]]);
        assert_ne!(checksum, 0);
        // Over all words, checksum included, the sum is all ones (RFC 768).
        let pseudo = sum(&buf[8..40], 17 + 14);
        let header = sum(&buf[40..48], u64::from(pseudo));
        assert_eq!(sum(&payload, u64::from(header)), 0xffff);
    }
}

#[test]
fn what_is_not_udp_in_ip_is_refused() {
    let mut buf = [0; 128];
    for envelope in [v4(), v6()] {
        let n = envelope.emit(&[b"payload"], &mut buf);
        buf[n..n + 7].copy_from_slice(b"payload");
        let whole = &buf[..n + 7];
        assert_eq!(Envelope::parse(whole), Ok((envelope, &b"payload"[..])));
        for bytes in 0..whole.len() {
            assert_eq!(Envelope::parse(&whole[..bytes]), Err(IpError::Short { bytes }));
        }
    }
    let changed = |envelope: Envelope, at: usize, value: u8| {
        let mut buf = [0; 64];
        let n = envelope.emit(&[], &mut buf);
        buf[at] = value;
        if buf[0] >> 4 == 4 && at != 10 {
            Envelope::fix_ipv4_checksum(&mut buf);
        }
        Envelope::parse(&buf[..n]).unwrap_err()
    };
    assert_eq!(changed(v4(), 0, 0x55), IpError::Header(0x55));
    assert_eq!(changed(v4(), 0, 0x46), IpError::Header(0x46));
    assert_eq!(changed(v4(), 6, 0x20), IpError::Fragment);
    assert_eq!(changed(v4(), 7, 1), IpError::Fragment);
    assert_eq!(changed(v4(), 9, 6), IpError::Protocol(6));
    assert_eq!(changed(v4(), 10, 0), IpError::Checksum);
    assert_eq!(changed(v4(), 3, 27), IpError::Short { bytes: 28 });
    assert_eq!(changed(v4(), 25, 9), IpError::Length { udp: 9, ip: 8 });
    assert_eq!(changed(v4(), 25, 7), IpError::Length { udp: 7, ip: 8 });
    assert_eq!(changed(v6(), 6, 44), IpError::Protocol(44));
    assert_eq!(changed(v6(), 5, 9), IpError::Short { bytes: 48 });
}

#[test]
fn an_odd_payload_is_summed_with_a_zero_behind_it() {
    // The example of RFC 1071, 3: 0001 f203 f4f5 f6f7 has the sum ddf2.
    let words = [0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!((sum(&words, 0), sum(&words[..7], 0)), (0xddf2, 0xdcfb));
    assert_eq!(sum(&[0x12], 0xffff), 0x1200);
    assert_eq!((sum(&[], 0xffff), sum(&[], 0x1_0000)), (0xffff, 1));
    let mut buf = [0; 64];
    let n = v6().emit(&[&[7, 8], &[9]], &mut buf);
    let header = sum(&buf[40..48], u64::from(sum(&buf[8..40], 17 + 11)));
    assert_eq!((n, sum(&[7, 8, 9], header.into())), (48, 0xffff));
}

#[test]
fn a_sender_chooses_fields_and_ipv4_has_no_flow_label() {
    let fields = Fields { traffic_class: 1, hop_limit: 2, src_port: 3, flow_label: 4 };
    let of = |e: Envelope| (e.traffic_class, e.hop_limit, e.src_port, e.flow_label);
    assert_eq!(of(v4().with(&fields)), (1, 2, 3, 0));
    assert_eq!(of(v6().with(&fields)), (1, 2, 3, 4));
    assert_eq!((v4().with(&fields).addresses, v4().with(&fields).dst_port), (v4().addresses, 4791));
    let mut buf = [0; 64];
    v6().with(&Fields { flow_label: 0xf0_1234, ..fields }).emit(&[], &mut buf);
    assert_eq!(buf[..4], [0x60, 0x10, 0x12, 0x34], "20 bits");
}

#[test]
fn what_routers_change_is_masked() {
    for (envelope, ones) in [(v4(), vec![1, 8, 10, 11, 26, 27]), (v6(), vec![2, 3, 7, 46, 47])] {
        let (mut buf, mut masked) = ([0; 64], [0; 64]);
        let n = envelope.emit_fields(8, &mut buf);
        assert_eq!(envelope.emit_masked(8, &mut masked), n);
        for at in 0..n {
            let half = if n == 48 && at < 2 { [0x0f, 0xff][at] } else { 0 };
            let expected = if ones.contains(&at) { 0xff } else { buf[at] | half };
            assert_eq!(masked[at], expected, "byte {at} of {n}");
        }
    }
}

#[test]
fn addresses_are_of_one_family() {
    let (a, b): (IpAddr, IpAddr) = ("1.2.3.4".parse().unwrap(), "::1".parse().unwrap());
    assert_eq!(Addresses::new(a, b), None);
    assert_eq!(Addresses::new(a, a).unwrap().header_bytes(), 28);
    let both = Addresses::new(b, b).unwrap();
    assert_eq!((both.src(), both.dst(), both.header_bytes()), (b, b, MAX_IP_UDP_BYTES));
    assert_eq!(MAX_IP_UDP_BYTES, 48);
}

proptest! {
    #[test]
    fn any_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        if let Ok((envelope, payload)) = Envelope::parse(&bytes) {
            prop_assert!(payload.len() + envelope.addresses.header_bytes() <= bytes.len());
        }
    }
}

#[test]
fn source_ports_follow_flow_labels() {
    // Values of Linux's rdma_flow_label_to_udp_sport and rdma_calc_flow_label.
    for (label, port) in [(0, 0xc000), (1, 0xc001), (0x3fff, 0xffff), (0x4000, 0xc001)] {
        assert_eq!(udp_src_port(label), port, "{label:#x}");
    }
    assert_eq!(udp_src_port(0xf_ffff), 0xc000 | (0x3fff ^ 0x3f));
    assert_eq!(flow_label_of(Qpn(0x11), Qpn(0x12)), 0x132);
    assert_eq!(flow_label_of(Qpn(0x12), Qpn(0x11)), 0x132, "both ways one");
    let v = 0x12_3456u64 * 0x65_4321;
    let v = v ^ v >> 20;
    assert_eq!(flow_label_of(Qpn(0x12_3456), Qpn(0x65_4321)), ((v ^ v >> 40) & 0xf_ffff) as u32);
}
