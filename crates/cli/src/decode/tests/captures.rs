//! Packets and captures as tools write them.

use super::*;

fn write(psn: u32) -> Vec<u8> {
    packet_of(Operation::WriteOnly, psn, 8, Some(8))
}

/// The same of a capture: a link type, and what comes before IP.
fn on_link(link: u32, head: &[u8], ip: &[u8]) -> Vec<Item> {
    let mut file = capture_of(&[[head, ip].concat()]);
    file[20..24].copy_from_slice(&link.to_le_bytes());
    items(Kind::Pcap, &file, &Options::default())
}

const TOLD: &str =
    "RC RDMA WRITE Only to QP 0x9, PSN 1, 8 bytes, from 10.0.0.1 port 49152 to 10.0.0.2";

#[test]
fn tags_of_802_1ad_are_read() {
    let mut frame = vec![2; 12];
    frame.extend([0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0]);
    let head = frame.clone();
    frame.extend(write(1));
    let guessed = items(Kind::Packet, &frame, &Options::default());
    for all in [guessed, on_link(1, &head, &write(1))] {
        assert_eq!((all[0].summary.as_str(), wrong(&all)), (TOLD, String::new()));
        assert_eq!(all[0].parts.iter().filter(|part| part.name == "vlan").count(), 2);
    }
}

#[test]
fn cooked_captures_say_what_follows() {
    let first = |kind: [u8; 2]| [&[0, 0, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0][..], &kind].concat();
    let second = |kind: [u8; 2]| [&kind[..], &[0; 18]].concat();
    for (link, head) in [(113, first([8, 0])), (276, second([8, 0]))] {
        let all = on_link(link, &head, &write(1));
        assert_eq!((all[0].summary.as_str(), wrong(&all)), (TOLD, String::new()), "{link}");
    }
    let arp = [0, 1, 8, 0, 6, 4, 0, 1, 0, 0, 0, 0, 0, 0];
    for (link, head) in [(113, first([8, 6])), (276, second([8, 6]))] {
        let all = on_link(link, &head, &arp);
        assert_eq!(wrong(&all), "", "{link}");
        assert_eq!(all[0].summary, "ARP (type 0x0806), which is not IP");
    }
    let tagged = [first([0x81, 0]), vec![0, 5, 8, 0]].concat();
    assert_eq!(on_link(113, &tagged, &write(1))[0].summary, TOLD);
    // LLC, and a family of BSD's loopback that is not IP.
    assert!(on_link(113, &first([0, 4]), &arp)[0].summary.contains("802.3"));
    for family in [[2, 0, 0, 0], [0, 0, 0, 2]] {
        assert_eq!(on_link(0, &family, &write(1))[0].summary, TOLD);
    }
    let iso = on_link(0, &[7, 0, 0, 0], &arp);
    assert_eq!(
        (iso[0].summary.as_str(), wrong(&iso)),
        ("protocol family 7, which is not IP", String::new())
    );
    assert_eq!(on_link(147, &[], &arp)[0].summary, "of link type 147, which is not decoded");
}

/// A capture of the packets' first bytes, as `tcpdump -s` takes them.
fn snapped(packets: &[Vec<u8>], most: usize) -> Vec<Item> {
    let mut file = capture_of(&[]);
    for packet in packets {
        let len = packet.len().min(most);
        file.extend([[0; 4], [0; 4], (len as u32).to_le_bytes()].concat());
        file.extend((packet.len() as u32).to_le_bytes());
        file.extend(&packet[..len]);
    }
    items(Kind::Pcap, &file, &Options::default())
}

#[test]
fn what_the_snap_length_cuts_is_not_wrong() {
    let message = [
        packet_of(Operation::WriteFirst, 1, 256, Some(600)),
        packet_of(Operation::WriteMiddle, 2, 256, None),
        packet_of(Operation::WriteLast, 3, 88, None),
    ];
    let next = packet_of(Operation::SendOnly, 4, 8, None);
    for most in [0, 1, 19, 20, 27, 28, 39, 40, 50, 56, 60, 200] {
        let all = snapped(&[&message[..], std::slice::from_ref(&next)].concat(), most);
        assert_eq!(wrong(&all), "", "{most}");
        assert!(
            most > 56
                || all[0].notes.iter().any(|note| note.text.contains("are there")
                    || note.text.contains("bytes end before")
                    || note.text.contains("the capture has")),
            "{most}: {:?}",
            all[0]
        );
    }
    // Whole headers are enough to follow PSNs and lengths.
    let lost = snapped(&[message[0].clone(), message[2].clone()], 60);
    assert!(wrong(&lost).contains("PSN 3 where 2 is due: 1 packets are missing"));
    let mut short = message.clone();
    short[2] = packet_of(Operation::WriteLast, 3, 84, None);
    assert!(
        wrong(&snapped(&short, 60)).contains("the message has 596 bytes, and its RETH says 600")
    );
    // Without a snap length they are cut, whoever did it.
    let cut =
        items(Kind::Packet, &message[0][..60], &Options { link: Link::Ip, ..Options::default() });
    assert_eq!(wrong(&cut), "IP says 316 bytes, and 60 are there\n");
    // Bytes behind IP's may be missing: they are the link's.
    let mut padded = message[2].clone();
    padded.extend([0; 4]);
    let ip = message[2].len();
    let all = snapped(&[padded], ip);
    assert!(all[0].parts.iter().any(|part| part.name == "icrc" || part.name == "ICRC"), "{all:?}");
}

#[test]
fn lengths_of_udp_and_ip_agree() {
    let mut short = write(1);
    short[25] -= 4;
    let all = items(Kind::Packet, &short, &Options::default());
    assert!(wrong(&all).contains("UDP says 44 bytes, and IP has 48 for it"), "{}", wrong(&all));
    // The ICRC does not cover IPv4's checksum.
    let mut sum = write(1);
    sum[10] ^= 1;
    let all = items(Kind::Packet, &sum, &Options::default());
    assert_eq!(wrong(&all), "IPv4 header checksum is wrong\n");
    assert_eq!(all[0].summary, TOLD);
}

/// A Router Alert (RFC 2113) behind the addresses; the ICRC is zlib's CRC-32 of what annex A17.3.3 says.
#[test]
fn ipv4_options_hide_neither_icrc_nor_psn() {
    let packet = hexed(
        "46020034 12344000 3f11107b c0000201 c0000202 94040000 c00112b7 001c0000 \
         0440ffff 00000011 80000001 62656c6c ecc025ab",
    );
    let told = |packet: &[u8]| {
        let item = items(Kind::Packet, packet, &Options::default()).remove(0);
        let icrc = item.parts.iter().find(|part| part.name == "icrc").expect("it is shown");
        let meaning = icrc.fields[0].meaning.clone().unwrap_or_default();
        let remarks: Vec<_> = item.notes.iter().map(|it| it.text.clone()).collect();
        (item.summary, meaning, remarks)
    };
    let (summary, meaning, remarks) = told(&packet);
    assert!(summary.starts_with("RC SEND Only to QP 0x11, PSN 1, 4 bytes, from 192.0.2.1 port"));
    assert_eq!(meaning, "right, if it covers the IPv4 options as they stand");
    assert_eq!(remarks, ["4 bytes of IPv4 options, which bellpush does not carry"]);
    // Payload: what the number would be is said, and no verdict. ToS is not covered.
    let mut changed = packet.clone();
    changed[44] ^= 1;
    let (_, meaning, remarks) = told(&changed);
    assert_eq!((meaning.as_str(), remarks.len()), ("", 2));
    assert!(remarks[1].contains("nothing says how IPv4 options count"), "{remarks:?}");
    assert_eq!(wrong(&items(Kind::Packet, &changed, &Options::default())), "");
    // Its own checksum covers the options.
    let mut sum = packet.clone();
    sum[22] ^= 1;
    let all = items(Kind::Packet, &sum, &Options::default());
    assert_eq!(wrong(&all), "IPv4 header checksum is wrong\n");
    // PSNs are followed.
    let mut later = packet.clone();
    later[43] = 3;
    let file = capture_of(&[packet.clone(), later]);
    assert!(wrong(&items(Kind::Pcap, &file, &Options::default())).contains("PSN 3 where 2 is due"));
    // A length that ends within the options, and a packet that is cut, have no place for them.
    for end in 20..packet.len() {
        let mut short = packet[..end].to_vec();
        short[3] = end as u8;
        items(Kind::Packet, &short, &Options { link: Link::Ip, ..Options::default() });
    }
}

#[test]
fn packets_that_are_not_rocev2_are_not_judged() {
    let plain = |bytes: &[u8]| {
        items(Kind::Packet, bytes, &Options { link: Link::Ip, ..Options::default() })
    };
    // A later fragment has no UDP header; DNS may have IP options and no checksum.
    let mut fragment = write(1);
    (fragment[6], fragment[7]) = (0, 0x10);
    assert_eq!(wrong(&plain(&fragment)), "");
    assert!(plain(&fragment)[0].summary.contains("fragment from byte 128"));
    let mut dns = write(1);
    (dns[10], dns[22], dns[23]) = (0, 0, 53);
    assert_eq!(wrong(&plain(&dns)), "");
    let mut first = write(1);
    first[6] = 0x20;
    assert!(wrong(&plain(&first)).contains("an IP fragment"));
}

#[test]
fn a_datagram_from_its_bth_is_no_ipv6() {
    let bth = hexed("644000000000000900000001 00000011 00000005 0102030405060708 00000000");
    for bytes in [bth.clone(), [bth, vec![0; 40]].concat()] {
        let all = items(Kind::Packet, &bytes, &Options::default());
        assert!(all[0].summary.starts_with("UD SEND Only"), "{}", all[0].summary);
    }
}

#[test]
fn stamps_of_odd_captures_are_right() {
    let packet = write(1);
    let mut modified = capture_of(&[]);
    modified[..4].copy_from_slice(&0xa1b2_cd34_u32.to_le_bytes());
    for psn in [1, 2] {
        let len = (packet.len() as u32).to_le_bytes();
        modified.extend([[7, 0, 0, 0], [5, 0, 0, 0], len, len, [1; 4], [0; 4]].concat());
        modified.extend(write(psn));
    }
    let all = items(Kind::Pcap, &modified, &Options::default());
    assert_eq!((all.len(), wrong(&all)), (2, String::new()));
    assert_eq!(all[1].place, "packet 2, 7.000005000 s");
    // if_tsoffset, in the interface's options.
    let file = next_generation(&[packet], false);
    let interface = 28;
    let mut moved = file[..interface + 16].to_vec();
    moved.extend([14, 0, 8, 0, 100, 0, 0, 0, 0, 0, 0, 0]);
    moved.extend(&file[interface + 16..]);
    let len = u32::from_le_bytes(file[interface + 4..interface + 8].try_into().unwrap()) + 12;
    moved[interface + 4..interface + 8].copy_from_slice(&len.to_le_bytes());
    let end = interface + len as usize;
    moved[end - 4..end].copy_from_slice(&len.to_le_bytes());
    let all = items(Kind::Pcap, &moved, &Options::default());
    assert_eq!(all[0].place, "packet 1, 100.000000077 s");
}

/// The obsolete Packet Block has 16 bits for the interface, and how many packets were lost.
#[test]
fn old_blocks_of_packets_are_read() {
    let packets = [1, 2].map(write);
    let len = 32 + packets[0].len().next_multiple_of(4);
    let all = |file: &[u8]| items(Kind::Pcap, file, &Options::default());
    for big in [false, true] {
        let file = next_generation(&packets, big);
        let mut old = file.clone();
        for at in [old.len() - 2 * len, old.len() - len] {
            let (kind, lost) = match big {
                true => ([0, 0, 0, 2], [0, 0, 0, 3]),
                false => ([2, 0, 0, 0], [0, 0, 3, 0]),
            };
            old[at..at + 4].copy_from_slice(&kind);
            old[at + 8..at + 12].copy_from_slice(&lost);
        }
        let told = all(&old);
        assert_eq!((told.len(), wrong(&told)), (2, String::new()));
        assert_eq!(told, all(&file));
    }
}

/// The packet with another source port of UDP; the ICRC is that of the one before.
#[test]
fn another_source_port_and_psn_are_another_connection() {
    let file = |far: u32, port: u8| {
        let mut second = write(far);
        second[21] = port;
        let all = items(Kind::Pcap, &capture_of(&[write(1), second]), &Options::default());
        wrong(&all).lines().filter(|line| line.contains("missing")).count()
    };
    assert_eq!((file(70_000, 0), file(70_000, 9), file(3, 9)), (1, 0, 1));
}
