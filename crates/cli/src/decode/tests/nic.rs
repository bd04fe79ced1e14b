//! WQEs, CQEs and records of real NICs and drivers.

use super::*;

#[test]
fn opcodes_are_those_of_linux() {
    for (code, ds, name) in [
        // Linux has no names for these two; DPDK and DOCA have.
        (0x16, 2, "RECEIVE_EN"),
        (0x17, 2, "SEND_EN"),
        (0x20, 1, "SET_PSV"),
        (0x21, 1, "GET_PSV"),
        (0x22, 1, "CHECK_PSV"),
        // With the entry that it checks.
        (0x23, 2, "DUMP"),
        (0x26, 1, "RGET_PSV"),
        (0x27, 1, "RCHECK_PSV"),
    ] {
        let entry = format!("{:08x}{:08x}{:016x}", 64, 0x1234, 0x1000);
        let all = wqe(
            &format!(
                "000000{code:02x}005678{ds:02x}00000008{}{entry}{}",
                "00".repeat(4),
                "00".repeat(32)
            ),
            &Options::default(),
        );
        assert_eq!(wrong(&all), "", "{name}");
        assert!(all[0].summary.starts_with(&format!("{name}, ")), "{}", all[0].summary);
    }
    // 0x1e is a CQE's opcode, 0x24 nobody's.
    for code in [0x1e, 0x24] {
        let all = wqe(
            &format!("000000{code:02x}0056780100000008{}", "00".repeat(52)),
            &Options::default(),
        );
        assert!(wrong(&all).contains("is not known"), "{code:#x}");
    }
}

#[test]
fn a_signature_error_is_explained() {
    let mut entry = [0; 64];
    (entry[0x20], entry[0x25], entry[0x2f], entry[63]) = (0x20, 7, 64, 0xc1);
    let all = items(Kind::Cqe, &entry, &Options::default());
    assert_eq!(wrong(&all), "");
    assert_eq!(all[0].summary, "SIG_ERR, guard tag, mkey 0x70000, at byte 64 of the transfer");
    let ring = Options { index: Some(0), queue_log: Some(4), ..Options::default() };
    assert!(wrong(&items(Kind::Cqe, &entry, &ring)).contains("owner is 1"));
    entry[63] = 0xb0;
    assert!(wrong(&items(Kind::Cqe, &entry, &ring)).contains("CQE opcode 0xb is not known"));
}

/// A UMR as Linux posts it (`mlx5r_umr_post_send`): no inline data, a translation in memory, relaxed ordering.
fn umr(flags: u8, octowords: u8, ds: u8) -> Vec<u8> {
    let mut wqe = vec![0; 256];
    (wqe[3], wqe[6], wqe[7], wqe[11]) = (WqeOpcode::Umr as u8, 9, ds, 8);
    (wqe[16], wqe[21], wqe[30], wqe[31]) = (flags, octowords, 0x12, 0x34);
    (wqe[64 + 1], wqe[64 + 2], wqe[64 + 0xf], wqe[64 + 0x3b]) = (4, 0xfd, 5, 0x4c);
    (wqe[130], wqe[135], wqe[142]) = (4, 7, 0x10);
    wqe.truncate(usize::from(ds) * 16);
    wqe
}

#[test]
fn a_umr_of_linux_has_nothing_wrong() {
    for (flags, octowords, ds) in
        [(0, 64, 9), (0x10, 4, 9), (0x80, 0, 8), (0x80, 4, 12), (0xc0, 0, 8)]
    {
        let all = items(Kind::Wqe, &umr(flags, octowords, ds), &Options::default());
        assert_eq!(wrong(&all), "", "{flags:#x}");
        assert!(all[0].notes.iter().any(|note| note.text.contains("software NIC")), "{all:?}");
    }
    let short = items(Kind::Wqe, &umr(0, 64, 8), &Options::default());
    assert!(wrong(&short).contains("a segment begins at 0x80, with 0 bytes left"));
}

/// Pages as Linux registers a few (`set_reg_umr_seg`), blocks of one length, and ranges with zeros behind them.
#[test]
fn entries_of_a_umr_are_those_of_its_access_mode() {
    let shown = |mode: u8| {
        let mut wqe = umr(0x80, 4, 12);
        wqe[66] = wqe[66] & 0xfc | mode;
        let item = items(Kind::Wqe, &wqe, &Options::default()).remove(0);
        assert!(item.wrong.is_empty(), "{item:?}");
        let entries = &item.parts[3..];
        assert!(entries.windows(2).all(|two| two[0].name == two[1].name), "{item:?}");
        let ranges = item.text(false).matches("2^31").count();
        (entries[0].name.clone(), entries.len(), ranges, entries[0].fields.clone())
    };
    let (name, count, _, fields) = shown(1);
    assert_eq!((name.as_str(), count), ("mtt", 8));
    let told: Vec<_> = fields.iter().map(|it| (it.name.as_str(), it.value.as_str())).collect();
    assert_eq!(told[..2], [("ptag_63_32", "0x400"), ("ptag_31_8", "0x0")]);
    assert_eq!(told[3..], [("wr_en", "0x1"), ("rd_en", "0x1")]);
    let (name, count, _, fields) = shown(3);
    assert_eq!((name.as_str(), count), ("ksm", 4));
    assert_eq!((fields[1].name.as_str(), fields[1].value.as_str()), ("mkey", "0x7"));
    for mode in [0, 2] {
        let (name, count, ranges, fields) = shown(mode);
        assert_eq!((name.as_str(), count, ranges), ("klm", 4, 0));
        assert_eq!(fields[0].meaning.as_deref(), Some("1024"));
    }
}

/// What follows a translation: of a signature (Linux, `set_sig_umr_segment`), or parameters of TLS without one.
#[test]
fn a_umr_may_end_with_a_bsf() {
    // Ranges (KLM), as Linux's signatures have them, and pages.
    for (flags, octowords, ds, mode) in [(0xa0, 4, 16, 2), (0xa0, 4, 16, 1), (0x80, 0, 12, 1)] {
        let at = usize::from(ds) * 16 - 64;
        let mut wqe = umr(flags, octowords, ds);
        wqe[66] = wqe[66] & 0xfc | mode;
        wqe[23] = 4;
        wqe[at..].fill(0x5b);
        let all = items(Kind::Wqe, &wqe, &Options::default());
        assert_eq!(wrong(&all), "", "{flags:#x}");
        let bsf: Vec<_> = all[0].parts.iter().filter(|part| part.name == "bsf").collect();
        assert_eq!((bsf.len(), bsf[0].at), (4, at));
        assert_eq!(bsf[3].fields[0].value, "5b".repeat(16));
        let text = all[0].text(false);
        assert!(text.contains("bsf_octowords") && !text.contains("  translation_offset"), "{text}");
        // With the flag it is a place, and what follows is too much.
        wqe[16] |= 0x10;
        let all = items(Kind::Wqe, &wqe, &Options::default());
        assert!(wrong(&all).contains("passes the opcode's segments"), "{all:?}");
    }
    let mut short = umr(0xa0, 4, 15);
    short[23] = 4;
    let all = items(Kind::Wqe, &short, &Options::default());
    assert!(wrong(&all).contains("a segment begins at 0xf0, with 0 bytes left"), "{all:?}");
}

#[test]
fn an_atomic_is_aligned() {
    let atomic = |opcode: &str, bytes: &str, addr: &str| {
        let text =
            format!("{opcode} 00000504 00000008 00000000 00000000000000{addr} 00000007 00000000");
        wrong(&wqe(
            &(text + &"00".repeat(16) + bytes + "00000007 0000000000001000"),
            &Options::default(),
        ))
    };
    assert_eq!(atomic("00000011", "00000008", "08"), "");
    assert_eq!(
        atomic("00000012", "00000008", "05"),
        "an atomic at 0x5, which is not a multiple of 8\n"
    );
    assert_eq!(atomic("08000015", "00000004", "0c"), "", "of 4 bytes");
    assert_eq!(
        atomic("09000015", "00000008", "0c"),
        "an atomic at 0xc, which is not a multiple of 8\n"
    );
}

/// A queue of 8 basic blocks that was posted up to index 12; what was posted before lies behind.
#[test]
fn the_lap_before_is_told_from_this_one() {
    let mut queue = vec![0; 512];
    let inline = [0x55; 60];
    let posted = [(0_u16, 8), (1, 60), (3, 60), (5, 60), (7, 8), (8, 8), (9, 60), (11, 8)];
    for (index, bytes) in posted {
        let mut wqe = vec![0; 192];
        let piece = [Piece::Inline(&inline[..bytes])];
        let request = SendWr::new(WqeOpcode::RdmaWrite).to(Iova(0x1000), Rkey(7)).payload(&piece);
        let blocks = request.emit(index, Qpn(5), &mut wqe).unwrap() as usize;
        let at = usize::from(index) % 8 * 64;
        queue[at..at + blocks * 64].copy_from_slice(&wqe[..blocks * 64]);
    }
    let options = Options { index: Some(9), queue_log: Some(3), ..Options::default() };
    let all = items(Kind::Wqe, &queue, &options);
    assert_eq!(wrong(&all), "");
    let told: Vec<_> = all.iter().map(|item| item.summary.split(", QP").next().unwrap()).collect();
    assert_eq!(
        told,
        [
            "RDMA_WRITE, wqe_index 9",
            "RDMA_WRITE, wqe_index 11",
            "1 basic blocks of a WQE of the lap before, which is overwritten",
            "RDMA_WRITE, wqe_index 5",
            "RDMA_WRITE, wqe_index 7",
            "RDMA_WRITE, wqe_index 8",
        ]
    );
    // One whose index is damaged is none of the lap before.
    queue[3 * 64 + 2] = 77;
    assert!(
        wrong(&items(Kind::Wqe, &queue, &options))
            .contains("wqe_index is 77 (0x4d), where the queue is at 11")
    );
    let short = Options { queue_log: Some(2), ..options };
    let error = decode(Kind::Wqe, &queue, &short, &mut |_| true).unwrap_err().0;
    assert_eq!(error, "512 bytes are more than a queue of 256 has");
}

#[test]
fn a_receive_queue_has_a_stride() {
    let entry = "00001000000000070000000000001000";
    let end = "00000000000001000000000000000000";
    let link = |next: &str| format!("0000{next}000000000000000000000000");
    for (queue, wqe) in
        [(QueueType::Recv, entry.to_owned() + end), (QueueType::Srq, link("0001") + entry)]
    {
        let options = Options { queue, stride: Some(32), ..Options::default() };
        let all = items(Kind::Wqe, wqe.repeat(3).as_bytes(), &options);
        assert_eq!((all.len(), wrong(&all)), (3, String::new()));
        assert!(
            all.iter()
                .all(|item| item.summary.contains("1 of") && item.summary.contains("4096 bytes"))
        );
        assert_eq!(all[2].place, "0x40");
        let odd = items(Kind::Wqe, (wqe.repeat(2) + entry).as_bytes(), &options);
        assert!(wrong(&odd).contains("16 bytes hold no WQE of 32"));
    }
}

/// A receive's CQE of a format, with a count.
fn received(format: u8, count: u8) -> [u8; 64] {
    let mut entry = [0; 64];
    (entry[47], entry[59], entry[63]) = (count, 7, 0x20 | format << 2);
    entry
}

#[test]
fn data_in_an_entry_are_no_fields() {
    let mut entry = received(1, 32);
    entry[..32].fill(0x32);
    let all = items(Kind::Cqe, &entry, &Options::default());
    assert_eq!((wrong(&all), all[0].notes.len()), (String::new(), 0), "{all:?}");
    assert_eq!((all[0].parts[0].name.as_str(), all[0].parts[1].fields[0].at), ("data", 0x20));
    // Of 128 bytes, offsets are those of the last 64.
    let options = Options { cqe_bytes: 128, ..Options::default() };
    for (count, shown) in [(64, 64), (40, 40), (65, 64)] {
        let wide = [[0x32; 64], received(2, count)].concat();
        let all = items(Kind::Cqe, &wide, &options);
        assert_eq!((all[0].place.as_str(), wrong(&all).is_empty()), ("0x40", count <= 64));
        let data = all[0].parts.iter().find(|part| part.name == "data").expect("it is shown");
        assert_eq!(data.fields[0].value, "32".repeat(shown));
        assert!(all[0].notes[0].text.contains("before it, at 0x0"), "{all:?}");
    }
    let alone = items(Kind::Cqe, &received(2, 64), &Options::default());
    assert!(alone[0].notes[0].text.contains("--cqe-bytes 128"), "{alone:?}");
}

#[test]
fn mini_entries_are_no_entries() {
    let mini = [0x12, 0x34, 0x56, 0x78, 0, 0, 0, 100].repeat(8);
    let ring = [&received(3, 3)[..], &mini, &[0x77; 64], &received(0, 9)].concat();
    let all = items(Kind::Cqe, &ring, &Options::default());
    let told: Vec<_> = all.iter().map(|item| item.summary.as_str()).collect();
    assert_eq!(wrong(&all), "");
    assert_eq!(
        told,
        [
            "RESP_SEND, QP 0x7, wqe_counter 0, 3 CQEs, compressed",
            "mini-CQEs 0 to 2 of 3",
            "RESP_SEND, QP 0x7, wqe_counter 0, 9 bytes",
        ]
    );
    let fields = &all[1].parts[2].fields;
    let shown: Vec<_> = fields.iter().map(|it| (it.at, &*it.name, &*it.value)).collect();
    assert_eq!(shown, [(16, "rx_hash_result", "0x12345678"), (20, "byte_cnt", "0x64")]);
    // As many as there are, whatever the count says; those of the ninth entry are in its place.
    let all = items(Kind::Cqe, &[received(3, 200); 10].concat(), &Options::default());
    let told: Vec<_> = all[1..].iter().map(|item| (&*item.place, &*item.summary)).collect();
    assert_eq!(told, [("0x40", "mini-CQEs 0 to 7 of 200"), ("0x200", "mini-CQEs 8 to 15 of 200")]);
    // Of sends, each says which WQE and opcode it is of.
    let mut title = received(3, 2);
    (title[63], title[56]) = (3 << 2, 8);
    let minis = hexed("00070800 00000010 00097700 90000000");
    let ring = [&title[..], &minis, &[0; 48]].concat();
    let all = items(Kind::Cqe, &ring, &Options::default());
    assert_eq!(all[1].parts[0].fields[1].meaning.as_deref(), Some("RDMA_WRITE"));
    assert_eq!(
        wrong(&all),
        "byte_cnt is 2415919104, and a message has at most 2^31\nopcode 0x77 is not known\n"
    );
    let mut hostile = received(3, 0);
    hostile[44..48].fill(0xff);
    let all = items(Kind::Cqe, &[hostile; 3].concat(), &Options::default());
    assert_eq!((all.len(), wrong(&all).matches("at most 65535").count()), (3, 3), "none is hidden");
    let unwritten = items(Kind::Cqe, &[0; 256], &Options::default());
    assert_eq!(unwritten[0].summary, "256 bytes of zeros: no CQE was written here");
}

#[test]
fn indices_of_another_lap_are_told() {
    let options = Options { sq: Some(ring()), ..Options::default() };
    let at = |index: u8| wrong(&items(Kind::Dbr, &[0, 0, 0, 0, 0, 0, 0, index], &options));
    assert_eq!((at(11), at(7), at(8), at(10)), Default::default());
    assert_eq!(at(19), "index 19: at block 3 the queue is at index 11\n");
    assert_eq!(at(2), "index 2: at block 2 the queue is at index 10\n");
}

#[test]
fn a_blue_flame_write_is_one_doorbell() {
    let all = items(Kind::Doorbell, &ring()[..64], &Options::default());
    assert_eq!((all.len(), wrong(&all)), (1, String::new()));
    assert!(all[0].notes[0].text.contains("BlueFlame"));
    let registers = ring()[..8].repeat(8);
    assert_eq!(items(Kind::Doorbell, &registers, &Options::default()).len(), 8);
}

#[test]
fn an_armed_record_is_compared() {
    let with = |word: [u8; 4]| {
        let record = Some([&[0; 4][..], &word].concat().try_into().unwrap());
        let options = Options { cq: true, record, ..Options::default() };
        wrong(&items(Kind::Doorbell, &[0x20, 0, 0, 3, 0, 0, 1, 2], &options))
    };
    assert_eq!((with([0x20, 0, 0, 3]), with([0x30, 0, 0, 4])), Default::default());
    for word in [[0x10, 0, 0, 3], [0x20, 0, 0, 2]] {
        assert!(with(word).contains("must be written before the register"), "{word:?}");
    }
}

/// WQEs of mlx5_core's own queues, which its log dumps, have segments of Ethernet.
#[test]
fn a_wqe_of_an_ethernet_queue_has_other_segments() {
    let bytes = "0002a10a 0361b304 00000008 00000000 00000000 c0000000 00000000 00123333 00000001 \
                 02000000 00010800 4500 0000 00000040 00001122 00000000 12345678";
    let log = format!(
        "mlx5_core 0000:03:00.0 eth0: WQE DUMP: WQ size 1024 WQ cur size 0, WQE index 0x2a1, len: 64\n{}",
        hexed(bytes)
            .chunks(16)
            .enumerate()
            .map(|(i, row)| {
                let row: String = row.iter().map(|byte| format!(" {byte:02x}")).collect();
                format!("{:08x}:{row}\n", i * 16)
            })
            .collect::<String>()
    );
    let ethernet = Options { queue: QueueType::Eth, ..Options::default() };
    for all in [items(Kind::Wqe, log.as_bytes(), &Options::default()), wqe(bytes, &ethernet)] {
        assert_eq!((all.len(), wrong(&all)), (1, String::new()));
        assert_eq!(all[0].summary, "SEND, wqe_index 673, QP 0x361b3, ds 4 (64 bytes)");
        assert!(all[0].notes.iter().any(|note| note.text.contains("Ethernet")), "{all:?}");
        assert!(!all[0].parts.iter().any(|part| part.name == "data"), "{all:?}");
    }
    // Of the control segment everything is checked.
    assert!(wrong(&wqe(&bytes.replace("0361b304", "0361b305"), &ethernet)).contains("ds 5 passes"));
}

#[test]
fn what_is_too_short_is_of_its_kind() {
    for (kind, name) in [(Kind::Doorbell, "doorbell"), (Kind::Dbr, "dbr"), (Kind::Cqe, "cqe")] {
        let all = items(kind, &[1; 4], &Options::default());
        assert_eq!((all[0].kind, all[0].wrong.len()), (name, 1));
    }
}

/// What is posted beyond max_rd_atomic waits at the requester; what comes beyond max_dest_rd_atomic, the responder
/// refuses. Both are kept as logarithms.
#[test]
fn limits_of_reads_are_told_of_the_end_that_has_them() {
    let causes = |syndrome: Syndrome| {
        let entry = Cqe::error(CqeOpcode::ReqErr, Qpn(7), 3, syndrome, 0).emit(0);
        items(Kind::Cqe, &entry, &Options::default())[0].notes[1].text.clone()
    };
    let local = causes(Syndrome::LocalQpOp);
    assert!(
        local.contains("max_rd_atomic is 0 (those beyond another max_rd_atomic wait"),
        "{local}"
    );
    let remote = causes(Syndrome::RemoteInvalReq);
    assert!(remote.contains("a max_rd_atomic above the peer's max_dest_rd_atomic"), "{remote}");
    assert!(remote.contains("no power of two (mlx5 keeps log2 of them"), "{remote}");
}
