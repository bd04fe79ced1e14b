//! What is judged, what is only named, and where captures end.

use super::*;

fn notes(items: &[Item]) -> String {
    let all = items.iter().flat_map(|item| &item.notes);
    all.map(|remark| remark.text.clone() + "\n").collect()
}

/// A packet from its BTH on: an opcode, flags, a queue pair, a PSN, what follows and an ICRC.
fn base(code: u8, flags: u8, psn: u8, rest: &[u8]) -> Vec<Item> {
    let bytes = [&[code, 0, 0xff, 0xff, flags, 0, 0, 0xd2, 0, 0, 0, psn], rest, &[0; 4]].concat();
    items(Kind::Packet, &bytes, &Options { link: Link::Bth, ..Options::default() })
}

#[test]
fn an_mmo_that_is_no_copy_is_named_and_not_judged() {
    for opmod in [2, 3, 4, 7] {
        let all = wqe(
            &format!("{opmod:02x}00002f0056780400000008{}", "5a".repeat(52)),
            &Options::default(),
        );
        assert_eq!(wrong(&all), "", "{opmod}");
        let told = format!("the segments of MMO with opmod 0x0{opmod} are not decoded\n");
        assert_eq!(notes(&all), told);
    }
    let all = wqe(&format!("000000150056780600000008{}", "00".repeat(84)), &Options::default());
    assert_eq!(wrong(&all), "opmod 0x00 is none of ATOMIC_MASKED_FA's\n");
}

#[test]
fn a_wait_for_data_or_a_time_is_named_and_not_judged() {
    for opmod in [1, 2] {
        let all = wqe(
            &format!("{opmod:02x}00000f0056780300000008{}", "5a".repeat(36)),
            &Options::default(),
        );
        assert_eq!(wrong(&all), "", "{opmod}");
        let told = format!("the segments of WAIT with opmod 0x0{opmod} are not decoded\n");
        assert_eq!(notes(&all), told);
    }
    // One for an entry of a CQ has reserved words.
    let all = wqe(&format!("0000000f0056780200000008{}", "5a".repeat(20)), &Options::default());
    assert!(wrong(&all).contains("wait: reserved are"), "{all:?}");
}

#[test]
fn what_comes_back_is_scattered_by_data_segments() {
    let far = "0000000000001000 00000007 00000000";
    let read =
        format!("0000001000567803 0000000800000000 {far} 80000004 0102030400000000 00000000");
    let all = wqe(&read, &Options::default());
    assert_eq!(wrong(&all), "RDMA_READ scatters what comes back, and not to inline data\n");
    let operands = "0000000000000001 0000000000000000";
    let data = "00000010 00000007 0000000000002000";
    let atomic = format!("0000001200567804 0000000800000000 {far} {operands} {data}");
    let all = wqe(&atomic, &Options::default());
    assert_eq!(wrong(&all), "an atomic does not return 16 bytes\n");
    assert_eq!(all[0].wrong[0].at, Some(0x30), "the data segment");
}

#[test]
fn the_end_of_a_list_has_no_bytes() {
    let list = "00000000 00000100 0000000000000000";
    let options = Options { queue: QueueType::Recv, ..Options::default() };
    let text = wqe(list, &options)[0].text(false);
    assert!(text.contains("ends a list") && !text.contains("2^31"), "{text}");
    let whole = wqe(&list.replace("00000100", "00000007"), &options)[0].text(false);
    assert!(whole.contains("2^31 bytes"), "{whole}");
}

#[test]
fn a_responders_cqe_has_no_opcode_of_a_wqe() {
    for (code, shown) in [(CqeOpcode::RespSend, false), (CqeOpcode::Req, true)] {
        let mut entry = Cqe::requester(Qpn(7), 0, 5, 64).emit(0);
        entry[63] = (code as u8) << 4;
        let text = items(Kind::Cqe, &entry, &Options::default())[0].text(false);
        assert!(text.contains("sop_drop_qpn.sop"), "{text}");
        assert_eq!(text.contains("NOP"), shown, "{text}");
    }
    let entry = Cqe::error(CqeOpcode::RespErr, Qpn(7), 3, Syndrome::LocalProt, 0).emit(0);
    let text = items(Kind::Cqe, &entry, &Options::default())[0].text(false);
    assert!(!text.contains("NOP"), "{text}");
}

#[test]
fn an_access_error_is_of_a_write_with_immediate() {
    let entry = Cqe::error(CqeOpcode::RespErr, Qpn(7), 3, Syndrome::LocalAccess, 0).emit(0);
    let told = notes(&items(Kind::Cqe, &entry, &Options::default()));
    assert!(told.contains("an RDMA WRITE with immediate of the peer"), "{told}");
}

#[test]
fn a_requesters_cqe_counts_the_bytes_of_reads_alone() {
    for (opcode, told) in [
        (WqeOpcode::RdmaWrite, "REQ of RDMA_WRITE, QP 0x7, wqe_counter 5"),
        (WqeOpcode::Send, "REQ of SEND, QP 0x7, wqe_counter 5"),
        (WqeOpcode::RdmaRead, "REQ of RDMA_READ, QP 0x7, wqe_counter 5, 64 bytes"),
    ] {
        let mut entry = Cqe::requester(Qpn(7), opcode as u8, 5, 64).emit(0);
        assert_eq!(items(Kind::Cqe, &entry, &Options::default())[0].summary, told);
        entry[44] = 0xff;
        let all = items(Kind::Cqe, &entry, &Options::default());
        assert_eq!(wrong(&all).contains("at most 2^31"), opcode == WqeOpcode::RdmaRead);
    }
}

#[test]
fn opcodes_of_others_are_named_and_not_judged() {
    for (code, told) in [
        (0xc0, "manufacturer-specific"),
        (0xff, "manufacturer"),
        (0x44, "of RD"),
        (0x5c, "of RD"),
        (0x5d, "of RD"),
    ] {
        let all = base(code, 0, 1, &[0; 8]);
        assert_eq!(wrong(&all), "", "{code:#x}");
        assert!(notes(&all).contains(told), "{all:?}");
    }
    for code in [0x15, 0x56, 0x5b, 0x5e, 0x9f, 0xbf] {
        let all = base(code, 0, 1, &[0; 8]);
        assert!(wrong(&all).contains("is not known"), "{code:#x}");
    }
    let own = &base(0xe4, 0, 1, &[0; 24])[0].summary;
    assert!(own.starts_with("DC SEND Only (bellpush's own code) to QP 0xd2"), "{own}");
}

#[test]
fn a_congestion_notification_has_its_bit() {
    let right = base(0x81, 0x40, 0, &[0; 16]);
    assert_eq!(
        (wrong(&right), right[0].summary.as_str()),
        (String::new(), "CNP to QP 0xd2, PSN 0")
    );
    assert!(!notes(&right).contains("PSN"));
    assert!(wrong(&base(0x81, 0, 0, &[0; 16])).contains("a CNP without BECN"));
    assert!(notes(&base(0x81, 0x40, 7, &[0; 16])).contains("PSN 7"));
}

#[test]
fn a_queue_pair_has_one_service() {
    let first = packet_of(Operation::WriteFirst, 1, 256, Some(300));
    let of_uc = |psn| {
        let mut last = packet_of(Operation::WriteLast, psn, 44, None);
        last[28] |= (Service::Uc as u8) << 5;
        last
    };
    let found = |second: Vec<u8>| {
        let all = items(Kind::Pcap, &capture_of(&[first.clone(), second]), &Options::default());
        (wrong(&all).contains("a packet of UC where those before are of RC"), notes(&all))
    };
    assert!(found(of_uc(2)).0);
    let (judged, told) = found(of_uc(0x80_0000));
    assert!(!judged && told.contains("another service"), "a number that is used again: {told}");
}

#[test]
fn a_line_says_what_is_asked_for_and_by_whom() {
    let read = packet_of(Operation::ReadRequest, 1, 0, Some(1024));
    assert_eq!(
        items(Kind::Packet, &read, &Options::default())[0].summary,
        "RC RDMA READ Request to QP 0x9, PSN 1, 1024 bytes at 0x1000, rkey 0x1, from 10.0.0.1 port 49152 to 10.0.0.2"
    );
    let atomic = [&[0, 0, 0, 0, 0, 0, 0x20, 0][..], &[0, 0, 0, 3], &[0; 16]].concat();
    let all = base(0x14, 0, 1, &atomic);
    assert_eq!(all[0].summary, "RC FetchAdd to QP 0xd2, PSN 1, at 0x2000, rkey 0x3");
}

#[test]
fn a_file_that_ends_within_a_packet_is_decoded_up_to_it() {
    let packets = [1, 2].map(|psn| packet_of(Operation::SendOnly, psn, 8, None));
    let classic = capture_of(&packets);
    let next = next_generation(&packets, false);
    let second = 24 + (classic.len() - 24) / 2;
    for (file, end) in [
        (&classic[..classic.len() - 3], "the file ends within packet 2"),
        (&classic[..second + 7], "the file ends within the header of packet 2"),
        (&next[..next.len() - 3], "the file ends within a block after packet 1"),
        (&next[..next.len() - 62], "the file ends within a block after packet 1"),
    ] {
        let all = items(Kind::Pcap, file, &Options::default());
        let told: Vec<_> =
            all.iter().map(|item| (item.kind, wrong(std::slice::from_ref(item)))).collect();
        assert_eq!(told, [("packet", String::new()), ("end", String::new())], "{all:?}");
        assert_eq!(all[1].summary, end);
    }
    // A length that no packet has is damage.
    let mut damaged = classic.clone();
    damaged[second + 8..second + 12].copy_from_slice(&[0xff; 4]);
    let error = decode(Kind::Pcap, &damaged, &Options::default(), &mut |_| true).unwrap_err();
    assert!(error.0.contains("passes the file's end"), "{error}");
    let packed = decode(Kind::Pcap, b"\x1f\x8b\x08\0", &Options::default(), &mut |_| true);
    assert!(packed.unwrap_err().0.contains("gzip"));
}

#[test]
fn times_of_pcapng_are_said_where_it_has_them() {
    let packet = packet_of(Operation::SendOnly, 1, 8, None);
    let file = next_generation(std::slice::from_ref(&packet), false);
    for (resolution, time) in [(63, "0.000000000"), (0x80 | 127, "0.000000000"), (6, "0.000077000")]
    {
        let mut file = file.clone();
        let option = file.windows(5).position(|it| it == [9, 0, 1, 0, 9]).unwrap();
        file[option + 4] = resolution;
        let all = items(Kind::Pcap, &file, &Options::default());
        assert_eq!(all[0].place, format!("packet 1, {time} s"), "{resolution:#x}");
    }
    // A Simple Packet Block has no time.
    let mut simple = file[..file.len() - 32 - packet.len().next_multiple_of(4)].to_vec();
    let len = (packet.len().next_multiple_of(4) as u32 + 16).to_le_bytes();
    simple.extend([&3_u32.to_le_bytes()[..], &len, &(packet.len() as u32).to_le_bytes()].concat());
    simple.extend(&packet);
    simple.resize(simple.len().next_multiple_of(4), 0);
    simple.extend(len);
    assert_eq!(items(Kind::Pcap, &simple, &Options::default())[0].place, "packet 1");
}

#[test]
fn records_of_erf_in_a_capture_are_read() {
    let ip = packet_of(Operation::SendOnly, 1, 8, None);
    let frame = [&[2; 12][..], &[8, 0], &ip].concat();
    let whole = (frame.len() as u16).to_be_bytes();
    let len = (frame.len() as u16 + 18).to_be_bytes();
    let record = [&[0; 8][..], &[2, 0], &len, &[0, 0], &whole, &[0, 0], &frame].concat();
    let mut file = capture_of(&[record]);
    file[20..24].copy_from_slice(&197_u32.to_le_bytes());
    let all = items(Kind::Pcap, &file, &Options::default());
    assert!(all[0].summary.starts_with("RC SEND Only to QP 0x9, PSN 1"), "{}", all[0].summary);
    assert_eq!(wrong(&all), "");
}

#[test]
fn a_log_without_a_dump_is_told_from_an_empty_input() {
    let log = "[  1.5] usb 1-1: new device\n[  2.5] mlx5_core 0000:03:00.0: enabled\n";
    let error = decode(Kind::Cqe, log.as_bytes(), &Options::default(), &mut |_| true).unwrap_err();
    assert!(error.0.contains("no dump in these 2 lines") && error.0.contains("dump error cqe"));
}

#[test]
fn decimal_numbers_are_not_read_as_hex() {
    for text in ["[10, 11, 12, 13]", "sq = [0, 16]", "[1, 2,\n3]"] {
        let error = parse(text, false, false).unwrap_err().0;
        assert!(error.contains("decimal or hex"), "{error} for {text}");
    }
    for text in ["[0x10, 0x11]", "[00, 01]", "[0a, 0b]"] {
        assert_eq!(hexed(text).len(), 2, "{text}");
    }
    // xxd -d
    let rows = ["00000000", "00000016"].map(|at| format!("{at}: {}\n", "0102 ".repeat(8)));
    let error = parse(&rows.concat(), false, false).unwrap_err().0;
    assert!(error.contains("offsets seem to be decimal"), "{error}");
}
