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
fn addresses_are_of_one_family() {
    let (a, b): (IpAddr, IpAddr) = ("1.2.3.4".parse().unwrap(), "::1".parse().unwrap());
    assert_eq!(Addresses::new(a, b), None);
    assert_eq!(Addresses::new(a, a).unwrap().header_bytes(), 28);
    let both = Addresses::new(b, b).unwrap();
    assert_eq!((both.src(), both.dst(), both.header_bytes()), (b, b, 48));
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
