//! FLUSH and ATOMIC WRITE, which rxe sends.

use bellpush::wire::roce::icrc;

use super::*;

/// An IP packet of these bytes from the BTH to before the ICRC, which is right.
fn packet(body: &[u8]) -> Vec<u8> {
    let whole = [body, &icrc(&envelope(), body).to_le_bytes()].concat();
    let mut head = [0; MAX_IP_UDP_BYTES];
    let head_bytes = envelope().emit(&[&whole], &mut head);
    [&head[..head_bytes], &whole].concat()
}

fn flush(psn: u8, feth: &str, bytes: u32) -> Vec<u8> {
    let text =
        format!("1c00ffff 00000009 800000{psn:02x} {feth} 0000000000001000 00000001 {bytes:08x}");
    packet(&hexed(&text))
}

fn atomic_write(psn: u8, addr: u64, payload: &str) -> Vec<u8> {
    let text = format!("1d00ffff 00000009 800000{psn:02x} {addr:016x} 00000001 00000008 {payload}");
    packet(&hexed(&text))
}

const FLOW: &str = ", from 10.0.0.1 port 49152 to 10.0.0.2";
const WORD: &str = "0102030405060708";

#[test]
fn each_field_is_shown() {
    let all = items(Kind::Packet, &flush(3, "00000003", 4096), &Options::default());
    let item = &all[0];
    assert_eq!(
        (item.summary.clone(), wrong(&all)),
        (format!("RC FLUSH to QP 0x9, PSN 3, 4096 bytes{FLOW}"), String::new())
    );
    let part = |name| item.parts.iter().find(|part| part.name == name).unwrap();
    let feth: Vec<_> =
        part("feth").fields.iter().map(|it| it.meaning.as_deref().unwrap()).collect();
    assert_eq!(feth, ["the range of the RETH", "global visibility and persistence"]);
    assert_eq!(part("reth").at, 28 + 12 + 4);
    assert_eq!(part("icrc").fields[0].meaning.as_deref(), Some("right"));
    let whole = items(Kind::Packet, &flush(3, "00000011", 0), &Options::default());
    assert_eq!(whole[0].summary, format!("RC FLUSH to QP 0x9, PSN 3, the whole region{FLOW}"));
    let all = items(Kind::Packet, &atomic_write(4, 0x1000, WORD), &Options::default());
    assert_eq!(
        (all[0].summary.clone(), wrong(&all)),
        (format!("RC ATOMIC WRITE to QP 0x9, PSN 4, 8 bytes{FLOW}"), String::new())
    );
    let payload = all[0].parts.iter().find(|part| part.name == "payload").unwrap();
    assert_eq!(payload.fields[0].value, WORD);
}

#[test]
fn what_may_not_be_is_named() {
    let of = |packet: &[u8]| wrong(&items(Kind::Packet, packet, &Options::default()));
    for (packet, what) in [
        (flush(1, "00000000", 8), "PLT is 0x0"),
        (flush(1, "00000004", 8), "PLT is 0x4"),
        (flush(1, "00000021", 8), "SEL 2 is not known"),
        (flush(1, "00000041", 8), "reserved bits 31:6 are 0x1"),
        (flush(1, "00000001", 0x8000_0001), "a message has at most 2^31"),
        (atomic_write(1, 0x1004, WORD), "not a multiple of 8"),
        (atomic_write(1, 0x1000, "01020304"), "4 bytes of payload, and an ATOMIC WRITE has 8"),
        (packet(&hexed("1c00ffff 00000009 80000001")), "feth has 4 bytes, and"),
        (packet(&hexed("1d00ffff 00000009 80000001 00000000")), "reth has 16 bytes, and"),
    ] {
        let all = of(&packet);
        assert!(all.contains(what), "{what}: {all}");
    }
    let mut damaged = atomic_write(1, 0x1000, WORD);
    damaged[60] ^= 1;
    assert!(of(&damaged).contains("ICRC 0x"));
}

#[test]
fn they_take_a_psn_of_their_stream() {
    let write = |psn| packet_of(Operation::WriteOnly, psn, 8, Some(8));
    let stream = [write(1), flush(2, "00000001", 8), atomic_write(3, 0x1000, WORD), write(4)];
    assert_eq!(wrong(&items(Kind::Pcap, &capture_of(&stream), &Options::default())), "");
    let lost = [write(1), flush(3, "00000001", 8), write(4)];
    let all = items(Kind::Pcap, &capture_of(&lost), &Options::default());
    assert_eq!(wrong(&all), "PSN 3 where 2 is due: 1 packets are missing\n");
    let first = packet_of(Operation::WriteFirst, 1, 256, Some(512));
    let all =
        items(Kind::Pcap, &capture_of(&[first, flush(2, "00000001", 8)]), &Options::default());
    assert!(
        wrong(&all).contains("another request, and WriteFirst has had no Last"),
        "{}",
        wrong(&all)
    );
}

/// A record of ERF: its type, what is between its header and the packet, the packet.
fn erf(kind: u8, between: &[u8], packet: &[u8]) -> Vec<u8> {
    let stamp = (7_u64 << 32 | 1 << 31).to_le_bytes();
    let body = [between, packet].concat();
    let (len, whole) = ((16 + body.len()) as u16, packet.len() as u16);
    [&stamp[..], &[kind, 4], &len.to_be_bytes(), &[0; 2], &whole.to_be_bytes(), &body].concat()
}

#[test]
fn records_of_erf_are_packets() {
    let write = |psn| packet_of(Operation::WriteOnly, psn, 8, Some(8));
    let frame = [&[2; 12][..], &[8, 0], &write(2)].concat();
    let file = [
        erf(22, &[], &write(1)),
        erf(2, &[0; 2], &frame),
        erf(0x80 | 22, &[0x80, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0], &write(3)),
        erf(21, &[], &[0; 40]),
    ];
    let all = items(Kind::Pcap, &file.concat(), &Options::default());
    assert_eq!((all.len(), wrong(&all)), (4, String::new()));
    assert_eq!(all[0].place, "packet 1, 7.500000000 s");
    assert_eq!(all[2].summary, format!("RC RDMA WRITE Only to QP 0x9, PSN 3, 8 bytes{FLOW}"));
    assert_eq!(all[3].summary, "of ERF type 21, which is not decoded");
    let refused =
        |bytes: &[u8]| decode(Kind::Pcap, bytes, &Options::default(), &mut |_| true).unwrap_err().0;
    let mut short = file.concat();
    short.truncate(short.len() - 1);
    let all = items(Kind::Pcap, &short, &Options::default());
    assert_eq!((all.len(), all[3].summary.as_str()), (4, "the file ends within packet 4"));
    assert!(refused(&[0; 64]).contains("neither as pcap nor as pcapng, nor as ERF"));
}
