use std::net::Ipv4Addr;

use bellpush::wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush::wire::roce::{
    Addresses, Bth, Envelope, Headers, MAX_IP_UDP_BYTES, MAX_PACKET_BYTES, Opcode, Operation, Reth,
    Service,
};
use bellpush::wire::wqe::{Opcode as WqeOpcode, Piece, SendWr, Sge};
use bellpush::wire::{Iova, Lkey, Psn, Qpn, Rkey};
use proptest::prelude::*;

use super::text::parse;
use super::*;

mod captures;
mod hex;
mod judged;
mod live;
mod nic;
mod placement;

/// A SEND of ibv_rc_pingpong, as libmlx5 posted it.
const SEND: &str = "0000000a41a5b002000000080000000000000040f10aafd500005573991c5000";

fn items(kind: Kind, bytes: &[u8], options: &Options) -> Vec<Item> {
    let mut all = Vec::new();
    decode(kind, bytes, options, &mut |item| {
        all.push(item);
        true
    })
    .unwrap();
    all
}

fn hexed(text: &str) -> Vec<u8> {
    parse(text, false, false).unwrap().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

fn wrong(items: &[Item]) -> String {
    let all = items.iter().flat_map(|item| &item.wrong);
    all.map(|remark| remark.text.clone() + "\n").collect()
}

fn wqe(text: &str, options: &Options) -> Vec<Item> {
    items(Kind::Wqe, text.as_bytes(), options)
}

#[test]
fn hex_is_read_as_people_have_it() {
    let bytes: Vec<u8> = (0x30..0x50).collect();
    let plain: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    for text in [
        plain.clone(),
        plain.to_uppercase(),
        // xxd
        "00000000: 3031 3233 3435 3637 3839 3a3b 3c3d 3e3f  0123456789:;<=>?\n\
         00000010: 4041 4243 4445 4647 4849 4a4b 4c4d 4e4f  @ABCDEFGHIJKLMNO\n"
            .into(),
        // hexdump -C
        "00000000  30 31 32 33 34 35 36 37  38 39 3a 3b 3c 3d 3e 3f  |0123456789:;<=>?|\n\
         00000010  40 41 42 43 44 45 46 47  48 49 4a 4b 4c 4d 4e 4f  |@ABCDEFGHIJKLMNO|\n\
         00000020\n"
            .into(),
        // od -A x -t x1
        "000000 30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f\n\
         000010 40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f\n\
         000020\n"
            .into(),
        // tcpdump -X
        "\t0x0000:  3031 3233 3435 3637 3839 3a3b 3c3d 3e3f  0123456789:;<=>?\n\
         \t0x0010:  4041 4243 4445 4647 4849 4a4b 4c4d 4e4f  @ABCDEFGHIJKLMNO\n"
            .into(),
        // Wireshark
        "0000   30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f   0123456789:;<=>?\n\
         0010   40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f   @ABCDEFGHIJKLMNO\n"
            .into(),
        // gdb x/8xw of words as the device has them, and a C list
        "0x7ffe0010 <sq+16>:\t0x30313233\t0x34353637\t0x38393a3b\t0x3c3d3e3f\n\
         0x7ffe0020 <sq+32>:\t0x40414243\t0x44454647\t0x48494a4b\t0x4c4d4e4f\n"
            .into(),
        bytes.iter().map(|byte| format!("{byte:#x}, ")).collect(),
        bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect(),
    ] {
        let chunks = parse(&text, false, false).unwrap();
        assert_eq!(chunks.len(), 1, "{text}");
        assert_eq!(chunks[0].bytes, bytes, "{text}");
    }
}

#[test]
fn words_of_a_host_are_turned_when_it_is_said() {
    let gdb = "0x10:\t0x0a000000\t0x02b0a541\n0x18:\t0x08000000\t0x00000000\n";
    let device = hexed(SEND)[..16].to_vec();
    assert_eq!(parse(gdb, true, false).unwrap()[0].bytes, device);
    let plain = "0000000 0000 0a00 a541 02b0 0000 0800 0000 0000\n0000010\n";
    assert_eq!(parse(plain, true, false).unwrap()[0].bytes, device);
    assert!(parse(plain, false, false).unwrap()[0].doubtful);
    let told = items(Kind::Wqe, gdb.as_bytes(), &Options::default());
    assert!(told[0].notes.iter().any(|note| note.text.contains("--host-words")), "{told:?}");
    let too_long = parse(SEND, true, false).unwrap_err().0;
    assert!(too_long.contains("no word of a host"), "{too_long}");
}

#[test]
fn lines_that_hexdump_leaves_out_are_there() {
    let text = "00000000  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|\n*\n\
                00000030  01 02                                             |..|\n00000032\n";
    assert_eq!(hexed(text), [vec![0; 48], vec![1, 2]].concat());
    let far = "00000000  00 00\n*\nffffffffffff0000  01 02\n";
    let error = parse(far, false, false).unwrap_err().0;
    assert!(error.starts_with("line 3: ") && error.contains("stands for more"), "{error}");
    let gap = "00000000  00 00\n00000010  01 02\n";
    assert!(parse(gap, false, false).unwrap_err().0.contains("14 bytes before 0x10"));
}

#[test]
fn what_is_no_hex_is_named_by_its_line() {
    for (text, what) in [
        ("00 01\nhello", "line 2: \"hello\" is not hex"),
        ("00 012", "line 1: \"012\" has an odd number"),
    ] {
        let error = parse(text, false, false).unwrap_err().0;
        assert!(error.contains(what), "{error}");
    }
    let none = decode(Kind::Wqe, b"", &Options::default(), &mut |_| true).unwrap_err();
    assert!(none.0.contains("no bytes"), "{none}");
}

#[test]
fn entries_are_read_as_logs_have_them() {
    // Linux, before and after it printed bytes, from the journal; libmlx5.
    let kernel = "Nov 26 10:00:00 host kernel: infiniband mlx5_0: dump_cqe:272:(pid 0): dump error cqe\n\
         Nov 26 10:00:00 host kernel: 00000000: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
         Nov 26 10:00:00 host kernel: 00000010: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
         Nov 26 10:00:00 host kernel: 00000020: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
         Nov 26 10:00:00 host kernel: 00000030: 00 00 00 00 00 00 88 13 08 03 61 b3 1e a1 42 d3\n";
    let library = "mlx5: host: got completion with error:\n00000000 00000000 00000000 00000000\n\
         00000000 00000000 00000000 00000000\n00000000 00000000 00000000 00000000\n\
         00000000 00008716 0a001f8e 000027d2\ncompletion was found in CQ with status 0xd\n";
    let all = items(Kind::Cqe, format!("{kernel}{library}").as_bytes(), &Options::default());
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!(wrong(&all), "");
    let summaries: Vec<_> = all.iter().map(|item| item.summary.as_str()).collect();
    assert_eq!(
        summaries,
        [
            "REQ_ERR, IBV_WC_REM_ACCESS_ERR of RDMA_WRITE, QP 0x361b3, wqe_counter 7841",
            "REQ_ERR, IBV_WC_RNR_RETRY_EXC_ERR of SEND, QP 0x1f8e, wqe_counter 0",
        ]
    );
    let notes: String = all[0].notes.iter().map(|note| note.text.clone()).collect();
    assert!(
        notes.contains("11.6.2") && notes.contains("rkey") && notes.contains("0x88"),
        "{notes}"
    );
}

#[test]
fn every_syndrome_is_explained() {
    for known in Syndrome::ALL {
        let entry = Cqe::error(CqeOpcode::ReqErr, Qpn(7), 3, known, 0x55).emit(0);
        let all = items(Kind::Cqe, &entry, &Options::default());
        assert_eq!(wrong(&all), "", "{known:?}");
        let notes = &all[0].notes;
        assert!(notes.len() == 3 && notes[1].text.starts_with("usual causes: "), "{notes:?}");
    }
    let mut entry = Cqe::error(CqeOpcode::RespErr, Qpn(7), 3, Syndrome::BadResp, 0).emit(0);
    entry[55] = 0x77;
    assert!(wrong(&items(Kind::Cqe, &entry, &Options::default())).contains("0x77 is not known"));
}

#[test]
fn each_fault_of_an_entry_is_named() {
    let right = Cqe::requester(Qpn(7), 0x10, 5, 64).emit(1);
    let ring = Options { index: Some(16), queue_log: Some(4), ..Options::default() };
    assert_eq!(wrong(&items(Kind::Cqe, &right, &ring)), "", "the second lap");
    let first = Options { index: Some(15), ..ring.clone() };
    let not_yet = wrong(&items(Kind::Cqe, &right, &first));
    assert!(not_yet.contains("owner is 1, where entry 15 of a ring of 16 has 0"), "{not_yet}");
    for (at, value, what) in [
        (63, 0x70, "opcode 0x7 is not known"),
        (56, 0x77, "opcode 0x77 is not known"),
        (44, 0xff, "at most 2^31"),
        (63, 0x04, "byte_cnt is 64, and data in the entry are at most 32"),
    ] {
        let mut entry = right;
        entry[at] = value;
        let found = wrong(&items(Kind::Cqe, &entry, &Options::default()));
        assert!(found.contains(what), "{found:?} for {what}");
    }
    let signed = Options { signed: true, ..Options::default() };
    let mut entry = right;
    assert!(wrong(&items(Kind::Cqe, &entry, &signed)).contains("signature is 0x00"));
    entry[62] = !entry.iter().fold(0, |sum, byte| sum ^ byte);
    assert_eq!(wrong(&items(Kind::Cqe, &entry, &signed)), "");
    assert!(wrong(&items(Kind::Cqe, &right[..40], &Options::default())).contains("hold no CQE"));
}

#[test]
fn a_send_of_libmlx5_has_nothing_wrong() {
    let options = Options { index: Some(0), queue_log: Some(2), ..Options::default() };
    let all = wqe(SEND, &options);
    assert_eq!(wrong(&all), "");
    assert_eq!(all[0].summary, "SEND, wqe_index 0, QP 0x41a5b0, ds 2 (32 bytes)");
    let data = &all[0].parts[1];
    let named: Vec<_> =
        data.fields.iter().map(|f| (f.at, f.name.as_str(), f.value.as_str())).collect();
    assert_eq!(
        named,
        [
            (0x10, "byte_count.inline", "0x0"),
            (0x10, "byte_count", "0x40"),
            (0x14, "lkey", "0xf10aafd5"),
            (0x18, "addr", "0x5573991c5000"),
        ]
    );
}

#[test]
fn each_fault_of_a_wqe_is_named() {
    let right = hexed(SEND);
    let options = Options { index: Some(0), queue_log: Some(2), ..Options::default() };
    for (changes, what) in [
        (&[(3, 0x77)][..], "opcode 0x77 is not known"),
        (&[(7, 0x00)], "ds is 0"),
        (&[(7, 0x03)], "ds 3 passes the WQE's bytes: 48 bytes, and 32 are there"),
        (&[(7, 0x3f)], "16 basic blocks, and the queue has 4"),
        (&[(7, 0x42)], "reserved bits 7:6 are 0x1, not 0"),
        (&[(2, 0x09)], "wqe_index is 9 (0x9), where the queue is at 0"),
        (&[(0, 0x01)], "opmod is 0x01"),
        (&[(8, 0x12)], "signature is 0x12"),
        (&[(11, 0x19)], "reserved bits 4:4"),
        (&[(11, 0xa8)], "fm 0x5 is reserved"),
        (&[(16, 0x80), (19, 0x0d)], "inline data of 13 bytes pass the WQE's end: 12 are there"),
        (&[(3, 0x11)], "ds does not fit the opcode: a segment begins at 0x20, with 0 bytes left"),
    ] {
        let mut bytes = right.clone();
        for &(at, value) in changes {
            bytes[at] = value;
        }
        let found = wrong(&items(Kind::Wqe, &bytes, &options));
        assert!(found.contains(what), "{found:?} for {what}");
    }
    // A READ whose remote segment has a reserved word set, and a NOP in the middle of another queue.
    let mut read = vec![0; 64];
    let sges = [Piece::Data(Sge { bytes: 8, lkey: Lkey(7), addr: Iova(9) })];
    SendWr::new(WqeOpcode::RdmaRead)
        .to(Iova(1), Rkey(2))
        .payload(&sges)
        .emit(0, Qpn(5), &mut read)
        .unwrap();
    assert_eq!(wrong(&items(Kind::Wqe, &read, &options)), "");
    read[28] = 1;
    assert!(wrong(&items(Kind::Wqe, &read, &options)).contains("raddr: reserved are 0x1000000"));
    let signed = Options { signed: true, ..options };
    assert!(wrong(&items(Kind::Wqe, &right, &signed)).contains("signature is 0x00"));
}

/// A send queue of 8 basic blocks after one lap: WQEs of 1, 2 and 1 blocks, from index 7 on.
fn ring() -> Vec<u8> {
    let mut ring = vec![0; 512];
    let inline = [0x55; 60];
    for (index, bytes) in [(7_u16, 8), (8, 60), (10, 8)] {
        let mut wqe = vec![0; 192];
        let piece = [Piece::Inline(&inline[..bytes])];
        let request = SendWr::new(WqeOpcode::RdmaWrite).to(Iova(0x1000), Rkey(7)).payload(&piece);
        let blocks = request.emit(index, Qpn(5), &mut wqe).unwrap() as usize;
        let at = usize::from(index) % 8 * 64;
        for (i, byte) in wqe[..blocks * 64].iter().enumerate() {
            ring[(at + i) % 512] = *byte;
        }
    }
    ring
}

#[test]
fn a_queue_is_walked_around_its_end() {
    let options = Options { index: Some(7), queue_log: Some(3), ..Options::default() };
    let all = items(Kind::Wqe, &ring(), &options);
    assert_eq!(wrong(&all), "");
    let places: Vec<_> = all.iter().map(|item| item.place.as_str()).collect();
    assert_eq!(places, ["0x1c0", "0x0", "0x80", "0xc0"]);
    assert!(all[3].summary.contains("256 bytes of zeros"), "{}", all[3].summary);
    // Without the index the queue begins at block 0; one that begins at another says so.
    let options = Options { index: None, ..options };
    assert_eq!(wrong(&items(Kind::Wqe, &ring(), &options)), "");
    let mut other = ring();
    other[2] = 9;
    assert!(wrong(&items(Kind::Wqe, &other, &options)).contains("no WQE begins here"));
    other = ring();
    other[6] = 6;
    assert!(wrong(&items(Kind::Wqe, &other, &options)).contains("qpn is 0x"));
}

#[test]
fn doorbells_are_compared_with_their_queue_and_record() {
    let sq = ring();
    let record = [0, 0, 0, 0, 0, 0, 0, 10];
    let options = Options { sq: Some(sq.clone()), record: Some(record), ..Options::default() };
    let second = &sq[..8];
    let all = items(Kind::Doorbell, second, &options);
    assert_eq!(wrong(&all), "");
    assert_eq!(all[0].summary, "rings QP 0x5 up to wqe_index 10 (RDMA_WRITE, ds 6)");
    let with = |record: u8, bytes: &[u8]| {
        let options = Options { record: Some([0, 0, 0, 0, 0, 0, 0, record]), ..options.clone() };
        wrong(&items(Kind::Doorbell, bytes, &options))
    };
    assert_eq!(with(11, second), "", "more was posted since");
    assert!(with(8, second).contains("2 basic blocks behind the doorbell, at 8"));
    // Block 1 is the second half of a WQE.
    let inside = [0, 0, 9, 8, 0, 0, 5, 3];
    assert!(with(10, &inside).contains("no WQE begins at block 1"));
    // It is none either when its payload looks like one.
    let mut alike = sq.clone();
    alike[64..72].copy_from_slice(&inside);
    let alike = Options { sq: Some(alike), ..Options::default() };
    assert!(wrong(&items(Kind::Doorbell, &inside, &alike)).contains("no WQE begins at block 1"));
    let otherwise = [0, 0, 8, 8, 0, 0, 5, 3];
    assert!(with(9, &otherwise).contains("begins otherwise"));
    assert!(with(9, &[0, 0, 9, 8, 0, 0, 5, 0]).contains("no WQE of the queue ends before block 1"));
    assert!(with(9, &[0, 0, 9, 0x77, 0, 0, 5, 1]).contains("opcode 0x77"));
    let records = |bytes: &[u8]| wrong(&items(Kind::Dbr, bytes, &options));
    assert_eq!(records(&record), "");
    assert!(records(&[0, 0, 0, 0, 0, 0, 0, 9]).contains("ends before block 1"));
    assert!(records(&[0, 1, 0, 0, 0, 0, 0, 8]).contains("reserved bits 31:16"));
    let cq = Options { cq: true, ..Options::default() };
    let armed = items(Kind::Dbr, &[0, 0, 0, 3, 0x21, 0, 0, 3], &cq);
    assert_eq!(armed[0].summary, "consumer index 3, armed for a solicited CQE from 3 (sequence 2)");
    let bell = items(Kind::Doorbell, &[0x20, 0, 0, 3, 0, 0, 1, 2], &cq);
    assert_eq!(bell[0].summary, "arms CQ 0x102 from consumer index 3");
}

fn envelope() -> Envelope {
    let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    Envelope::new(Addresses::V4 { src, dst }, 0xc000)
}

/// An IP packet.
fn packet_of(operation: Operation, psn: u32, payload: usize, reth: Option<u32>) -> Vec<u8> {
    let bth = Bth::new(Opcode::new(Service::Rc, operation), Qpn(9), Psn::new(psn));
    let mut headers = Headers::new(bth);
    let addr = Iova(0x1000);
    headers.ext.reth = reth.map(|bytes| Reth { addr, rkey: Rkey(1), bytes });
    let mut buf = [0; MAX_PACKET_BYTES];
    let mut frame = headers.emit(payload, &mut buf);
    frame.payload_mut().fill(0xab);
    let n = frame.finish(Some(&envelope()));
    let mut head = [0; MAX_IP_UDP_BYTES];
    let head_bytes = envelope().emit(&[&buf[..n]], &mut head);
    [&head[..head_bytes], &buf[..n]].concat()
}

/// A capture of IP packets.
fn capture_of(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = [0xa1b2_c3d4_u32.to_le_bytes(), [2, 0, 4, 0], [0; 4], [0; 4]].concat();
    file.extend([65535_u32.to_le_bytes(), 101_u32.to_le_bytes()].concat());
    for packet in packets {
        let len = (packet.len() as u32).to_le_bytes();
        file.extend([[0; 4], [0; 4], len, len].concat());
        file.extend(packet);
    }
    file
}

#[test]
fn each_fault_of_a_packet_is_named() {
    let right = packet_of(Operation::WriteOnly, 1, 5, Some(5));
    assert_eq!(wrong(&items(Kind::Packet, &right, &Options::default())), "");
    let bth = 28;
    for (at, value, what) in [
        (10, 0x11, "checksum is wrong"),
        (0, 0x44, "ihl is below 5"),
        (25, 0xff, "a UDP length of 255"),
        (bth, 0x1f, "opcode 0x1f is not known"),
        (bth + 1, 0x41, "transport version 1"),
        (bth + 1, 0x40 | 1 << 4, "a pad of 1 bytes"),
        (bth + 4, 0x01, "reserved bits 29:24 are 0x1"),
        (bth + 8, 0x01, "reserved bits 30:24 are 0x1"),
        (right.len() - 5, 1, "ICRC 0x"),
    ] {
        let mut bytes = right.clone();
        bytes[at] = value;
        let found =
            wrong(&items(Kind::Packet, &bytes, &Options { link: Link::Ip, ..Options::default() }));
        // A pad of 1 leaves bytes that are one too many, which the ICRC tells.
        let pad = what.starts_with("a pad") && found.contains("ICRC");
        assert!(found.contains(what) || pad, "{found:?} for {what}");
    }
    // An AETH's syndrome, between a BTH and an ICRC that is not checked without its envelope.
    let ack = hexed("11400000000000090000000a 80000001 00000000");
    let found = items(Kind::Packet, &ack, &Options { link: Link::Bth, ..Options::default() });
    assert!(wrong(&found).contains("AETH syndrome 0x80 is reserved"), "{found:?}");
    assert!(found[0].notes.iter().any(|note| note.text.contains("not checked")), "{found:?}");
    let long = packet_of(Operation::ReadRequest, 1, 0, Some(0x9000_0000));
    assert!(wrong(&items(Kind::Packet, &long, &Options::default())).contains("at most 2^31"));
}

#[test]
fn each_fault_of_a_stream_is_named() {
    use Operation as Op;
    let first = || packet_of(Op::WriteFirst, 0xff_ffff, 256, Some(300));
    let last = |psn, bytes| packet_of(Op::WriteLast, psn, bytes, None);
    let found =
        |packets: &[Vec<u8>]| wrong(&items(Kind::Pcap, &capture_of(packets), &Options::default()));
    assert_eq!(found(&[first(), last(0, 44)]), "", "PSNs wrap at 24 bits");
    assert!(
        found(&[first(), last(0, 40)]).contains("the message has 296 bytes, and its RETH says 300")
    );
    assert!(found(&[first(), last(2, 44)]).contains("PSN 2 where 0 is due: 2 packets are missing"));
    let ends = items(Kind::Pcap, &capture_of(&[first()]), &Options::default());
    assert_eq!(wrong(&ends), "", "more may have come");
    assert!(ends[1].notes[0].text.contains("WriteFirst without its Last, after 256 bytes"));
    let only = packet_of(Op::SendOnly, 0, 8, None);
    assert!(
        found(&[first(), only.clone()]).contains("SendOnly begins, and WriteFirst has had no Last")
    );
    assert!(found(&[only.clone(), last(1, 44)]).contains("WriteLast without a First"));
    let send = packet_of(Op::SendLast, 0, 8, None);
    assert!(found(&[first(), send]).contains("SendLast in a message that began with WriteFirst"));
    let odd = packet_of(Op::WriteFirst, 0, 300, Some(600));
    assert!(found(&[odd]).contains("a First carries the path MTU whole, and 300 is none"));
    let middle = packet_of(Op::WriteMiddle, 0, 128, None);
    assert!(found(&[first(), middle]).contains("a Middle of 128 bytes, where the First has 256"));
    // The first packet of a capture may be in the middle of a message; a packet again is no fault.
    assert_eq!(found(&[last(7, 44)]), "");
    assert_eq!(found(&[only.clone(), only]), "");
    // A READ takes as many PSNs as its response has packets: 4 of 256 bytes, or 1.
    let read = packet_of(Op::ReadRequest, 5, 0, Some(1024));
    for next in [6, 9] {
        assert_eq!(found(&[read.clone(), packet_of(Op::SendOnly, next, 8, None)]), "");
    }
    assert!(found(&[read, packet_of(Op::SendOnly, 10, 8, None)]).contains("packets are missing"));
}

/// The same packets as pcapng, of either byte order.
fn next_generation(packets: &[Vec<u8>], big: bool) -> Vec<u8> {
    let word = |n: u32| if big { n.to_be_bytes() } else { n.to_le_bytes() };
    let half = |n: u16| if big { n.to_be_bytes() } else { n.to_le_bytes() };
    let block = |kind: u32, body: &[u8]| {
        let len = word(body.len() as u32 + 12);
        [&word(kind)[..], &len, body, &len].concat()
    };
    let section = [&word(0x1a2b_3c4d)[..], &half(1), &half(0), &[0xff; 8]].concat();
    let interface =
        [&half(101)[..], &half(0), &word(0), &half(9), &half(1), &[9, 0, 0, 0], &word(0)].concat();
    let mut file = [block(0x0a0d_0d0a, &section), block(1, &interface)].concat();
    for packet in packets {
        let len = packet.len() as u32;
        let mut body = [word(0), word(0), word(77), word(len), word(len)].concat();
        body.extend(packet);
        body.resize(body.len().next_multiple_of(4), 0);
        file.extend(block(6, &body));
    }
    file
}

#[test]
fn captures_of_both_kinds_are_read() {
    let packets =
        [packet_of(Operation::SendOnly, 1, 8, None), packet_of(Operation::SendOnly, 3, 8, None)];
    let classic = items(Kind::Pcap, &capture_of(&packets), &Options::default());
    for big in [false, true] {
        let all = items(Kind::Pcap, &next_generation(&packets, big), &Options::default());
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].place, "packet 1, 0.000000077 s");
        let same = |all: &[Item]| {
            all.iter().map(|item| (item.summary.clone(), item.wrong.clone())).collect::<Vec<_>>()
        };
        assert_eq!(same(&all), same(&classic));
        assert!(wrong(&all).contains("PSN 3 where 2 is due"));
    }
    let file = capture_of(&packets);
    let none = decode(Kind::Pcap, &file[1..], &Options::default(), &mut |_| true).unwrap_err();
    assert!(none.0.contains("neither as pcap nor as pcapng"));
    let none = decode(Kind::Record, &file, &Options::default(), &mut |_| true).unwrap_err();
    assert!(none.0.contains("not a recording"), "{none}");
}

/// Options of which each changes what is read.
fn options() -> impl Strategy<Value = Options> {
    let queue = prop_oneof![
        Just(QueueType::Guess),
        Just(QueueType::Rc),
        Just(QueueType::Ud),
        Just(QueueType::Xrc),
        Just(QueueType::Dci),
        Just(QueueType::Recv),
        Just(QueueType::Srq),
    ];
    let link =
        prop_oneof![Just(Link::Guess), Just(Link::Ethernet), Just(Link::Ip), Just(Link::Bth)];
    let flags = any::<[bool; 5]>();
    let numbers = (proptest::option::of(any::<u32>()), proptest::option::of(0_u32..6));
    (queue, link, flags, numbers, any::<[u8; 8]>()).prop_map(
        |(queue, link, flags, numbers, record)| {
            let [binary, signed, cq, wide, sq] = flags;
            Options {
                form: if binary { Form::Binary } else { Form::Guess },
                host_words: wide,
                index: numbers.0,
                queue_log: numbers.1,
                queue,
                stride: sq.then_some(32),
                cqe_bytes: if wide { 128 } else { 64 },
                signed,
                cq,
                sq: sq.then(ring),
                record: sq.then_some(record),
                link,
            }
        },
    )
}

/// Bytes that are right but in a few places, of each kind.
fn almost(kind: Kind) -> Vec<u8> {
    let packets = [
        packet_of(Operation::WriteFirst, 1, 256, Some(300)),
        packet_of(Operation::WriteLast, 2, 44, None),
    ];
    match kind {
        Kind::Wqe => ring(),
        Kind::Cqe => {
            Cqe::error(CqeOpcode::ReqErr, Qpn(7), 3, Syndrome::BadResp, 0).emit(0).to_vec()
        }
        Kind::Doorbell | Kind::Dbr => ring()[..8].to_vec(),
        Kind::Packet => packets[0].clone(),
        Kind::Pcap => next_generation(&packets, false),
        Kind::Record | Kind::Live => b"bellpush-record 2\n".to_vec(),
    }
}

fn lines_are_clean(kind: Kind, bytes: &[u8], options: &Options) {
    let mut told = 0;
    let done = decode(kind, bytes, options, &mut |item| {
        told += 1;
        assert!(!item.summary.is_empty() && !item.place.is_empty());
        let text = item.text(false);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert_eq!(item.json()["summary"], item.summary);
        told < 1000
    });
    if let Err(error) = done {
        assert!(!error.0.is_empty() && !error.0.chars().any(char::is_control), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_bytes_are_decoded_or_refused(
        which in 0..Kind::ALL.len(), bytes in prop::collection::vec(any::<u8>(), 0..400), options in options(),
    ) {
        lines_are_clean(Kind::ALL[which], &bytes, &options);
    }

    #[test]
    fn what_is_almost_right_is_decoded_or_refused(
        which in 0..Kind::ALL.len(),
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        cut in any::<usize>(), options in options(),
    ) {
        let mut bytes = almost(Kind::ALL[which]);
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        if cut % 4 == 0 {
            bytes.truncate(cut / 4 % (bytes.len() + 1));
        }
        lines_are_clean(Kind::ALL[which], &bytes, &options);
    }

    #[test]
    fn any_text_is_decoded_or_refused(which in 0..5_usize, text in "[0-9a-fx:*, \\n\\t|\\]\\[.{}k\"]{0,200}", options in options()) {
        lines_are_clean(Kind::ALL[which], text.as_bytes(), &options);
    }

    #[test]
    fn hex_is_what_it_was_made_of(bytes in prop::collection::vec(any::<u8>(), 1..100)) {
        let xxd: String = bytes.chunks(16).enumerate().map(|(i, row)| {
            let hex: String = row.iter().map(|byte| format!("{byte:02x} ")).collect();
            let text: String = row.iter().map(|&b| if b.is_ascii_graphic() { b as char } else { '.' }).collect();
            format!("{:08x}: {hex} {text}\n", i * 16)
        }).collect();
        let chunks = parse(&xxd, false, false).unwrap();
        prop_assert_eq!(&chunks[0].bytes, &bytes);
    }
}
