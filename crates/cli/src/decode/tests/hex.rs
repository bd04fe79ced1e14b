//! Hex as tools and logs really print it.

use super::*;

/// Real output of `hexdump -C` and `od -A x -t x1` of 64 bytes, of which the last 48 are zeros.
#[test]
fn the_last_line_of_hexdump_and_od_is_no_data() {
    let bytes = [&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16][..], &[0; 48]].concat();
    let zeros = "00 00 00 00 00 00 00 00";
    let hexdump = format!(
        "00000000  01 02 03 04 05 06 07 08  09 0a 0b 0c 0d 0e 0f 10  |................|\n\
         00000010  {zeros}  {zeros}  |................|\n*\n00000040\n"
    );
    let od = format!(
        "000000 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 10\n000010 {zeros} {zeros}\n*\n000040\n"
    );
    for text in [hexdump.clone(), od] {
        assert_eq!(hexed(&text), bytes, "{text}");
    }
    let early = hexdump.replace("*\n00000040", "00000008");
    let error = parse(&early, false, false).unwrap_err().0;
    assert_eq!(error, "line 3: the bytes end at 0x20, and not at 0x8");
    // Without an offset before it, a word of 8 digits is one.
    assert_eq!(hexed("00000040\n0000004a\n"), [0, 0, 0, 0x40, 0, 0, 0, 0x4a]);
}

const LOG: &str = "[  123.456789] infiniband mlx5_0: dump_cqe:278:(pid 0): dump error cqe\n\
     [  123.456790] 00000000: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
     [  123.456791] 00000010: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
     [  123.456792] 00000020: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
     [  123.456793] 00000030: 00 00 00 00 00 00 88 13 08 03 61 b3 1e a1 42 d3\n";
const TOLD: &str = "REQ_ERR, IBV_WC_REM_ACCESS_ERR of RDMA_WRITE, QP 0x361b3, wqe_counter 7841";

/// The log with another head of each line; `{}` is the stamp with its brackets.
fn headed(head: &str) -> String {
    let line = |line: &str| {
        let (stamp, rest) = line.split_at(line.find(']').unwrap() + 1);
        head.replace("{}", stamp) + rest + "\n"
    };
    LOG.lines().map(line).collect()
}

#[test]
fn stamps_of_dmesg_are_no_hex() {
    for head in [
        "{}",
        "[Tue Nov 26 10:00:00 2024]", // -T
        "[Nov26 10:00]",              // -e
        "[  +0.000005]",
        "kern  :warn  : {}", // -x
        "kern  :err   : [Tue Nov 26 10:00:00 2024]",
        "2024-11-26T10:00:00,123456+00:00", // --time-format iso
        "{}[    C0]",                       // PRINTK_CALLER
        "{}[ T1234]",
        "<4>{}", // -r
        "<4>{}[    C0]",
        "4,1234,123456789,-;",
        "Nov 26 10:00:00 host kernel: {}",
        "Nov 26 10:00:00.123456 host kernel:",
        "\x1b[32m{}\x1b[0m", // --color=always
        "\x1b[32m[Nov26 10:00]\x1b[0m\x1b[33m",
    ] {
        let all = items(Kind::Cqe, headed(head).as_bytes(), &Options::default());
        let told: Vec<_> = all.iter().map(|item| item.summary.as_str()).collect();
        assert_eq!((told, wrong(&all)), (vec![TOLD], String::new()), "{head}");
    }
    let marked = format!("\u{feff}{LOG}");
    assert_eq!(items(Kind::Cqe, marked.as_bytes(), &Options::default())[0].summary, TOLD);
}

#[test]
fn a_log_with_control_characters_is_no_binary() {
    let refused = |bytes: &[u8]| {
        decode(Kind::Cqe, bytes, &Options::default(), &mut |_| panic!("decoded")).unwrap_err().0
    };
    let bell = LOG.replace("infiniband", "\x07");
    assert!(refused(bell.as_bytes()).starts_with("byte 15: 0x07 in what seems to be text"));
    let ended = format!("{LOG}\0\0\0\0");
    assert!(refused(ended.as_bytes()).contains("0x00 in what seems to be text"));
    let wide: Vec<u8> =
        format!("\u{feff}{LOG}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert!(refused(&wide).contains("UTF-16"));
    // Inline data that are text do not make a WQE text.
    assert_eq!(wrong(&items(Kind::Cqe, &[0; 64], &Options::default())), "");
}

#[test]
fn words_of_a_log_that_look_like_hex_are_none() {
    let lines: Vec<_> = LOG.lines().collect();
    let others = "[  1.5] add\n[  1.5] ACPI BIOS Error\n[  1.5] 802: added\n[  1.5] dead beef\n[  1.5] fed\n";
    let mixed = format!("{}\n{others}{}\n", lines[..3].join("\n"), lines[3..].join("\n"));
    let all = items(Kind::Cqe, mixed.as_bytes(), &Options::default());
    assert_eq!((all.len(), all[0].summary.as_str()), (1, TOLD));
}

/// mlx5_core's report of an error of a send queue has a CQE and a WQE.
#[test]
fn a_log_says_what_its_dumps_are() {
    let zeros = "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00";
    let text = format!(
        "[ 1.5] mlx5_core 0000:03:00.0 eth0: Error cqe on cqn 0x81, ci 0x12, qpn 0x361b3, opcode 0xd\n\
         [ 1.5] 00000000: {zeros}\n[ 1.5] 00000010: {zeros}\n[ 1.5] 00000020: {zeros}\n\
         [ 1.5] 00000030: 00 00 00 00 00 00 88 13 08 03 61 b3 1e a1 42 d3\n\
         [ 1.5] mlx5_core 0000:03:00.0 eth0: WQE DUMP: WQ size 1024 WQ cur size 0, WQE index 0x2a1, len: 64\n\
         [ 1.5] 00000000: 00 02 a1 0a 03 61 b3 02 00 00 00 08 00 00 00 00\n\
         [ 1.5] 00000010: 00 00 00 40 00 00 11 22 00 00 00 00 12 34 56 78\n"
    );
    for kind in [Kind::Cqe, Kind::Wqe] {
        let all = items(kind, text.as_bytes(), &Options::default());
        let told: Vec<_> = all.iter().map(|item| item.summary.as_str()).collect();
        assert_eq!(told, [TOLD, "SEND, wqe_index 673, QP 0x361b3, ds 2 (32 bytes)"]);
        assert_eq!(wrong(&all), "");
    }
}
