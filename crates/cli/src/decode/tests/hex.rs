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

/// A WRITE of 64 bytes, as each tool printed it.
const WRITE: &str = "00123408005678040000000800000000\
                     01020304050607080a0b0c0d00000000\
                     0000100099aabbcc1122334455667788\
                     00000008000000030000000000000004";

/// The rows of 16 bytes, with offsets in a radix, and the end; `row` writes the bytes.
fn dumped(bytes: &[u8], offset: impl Fn(usize) -> String, row: impl Fn(&[u8]) -> String) -> String {
    let rows = bytes.chunks(16).enumerate();
    let rows: String = rows.map(|(i, it)| format!("{} {}\n", offset(i * 16), row(it))).collect();
    format!("{rows}{}\n", offset(bytes.len()))
}

fn in_bytes(row: &[u8]) -> String {
    row.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// Words of a little-endian host.
fn in_words(row: &[u8], size: usize) -> String {
    let word =
        |word: &[u8]| word.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
    row.chunks(size).map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn od_counts_in_octal_hex_or_decimal() {
    let bytes = hexed(WRITE);
    let octal = |at: usize| format!("{at:07o}");
    let with_text = |row: &[u8]| in_bytes(row) + "  >..4..Vx|  ab cd <";
    for text in [
        dumped(&bytes, octal, in_bytes),                     // od -t x1
        dumped(&bytes, octal, with_text),                    // od -t x1z
        dumped(&bytes, |at| format!("{at:07}"), in_bytes),   // od -A d -t x1
        dumped(&bytes, |at| format!("{at:06x}"), with_text), // od -A x -t x1z
        dumped(&bytes[..21], octal, in_bytes) + "",
    ] {
        let all = parse(&text, false, false).unwrap();
        assert_eq!((all.len(), &all[0].bytes[..]), (1, &bytes[..all[0].bytes.len()]), "{text}");
        assert!(all[0].bytes.len() == 64 || text.contains("0000025\n"), "{text}");
    }
    let hex = |at: usize| format!("{at:07x}");
    let short = |at: usize| format!("{at:06x}");
    for (text, what) in [
        (dumped(&bytes, octal, |row| in_words(row, 2)), "od -x"),
        (dumped(&bytes, hex, |row| in_words(row, 2)), "hexdump"),
        (dumped(&bytes, hex, |row| in_words(row, 2).replace(' ', "    ")), "hexdump -x"),
        (dumped(&bytes, octal, |row| in_words(row, 4)), "od -t x4"),
        (dumped(&bytes, short, |row| in_words(row, 4)), "od -A x -t x4"),
        (dumped(&bytes, octal, |row| in_words(row, 8)), "od -t x8"),
    ] {
        let all = parse(&text, true, false).unwrap();
        assert_eq!((all.len(), &all[0].bytes), (1, &bytes), "{what}");
        assert!(parse(&text, false, false).unwrap()[0].doubtful, "{what}");
    }
    // 64 bytes of zeros: `*` hides what the offsets count in, but 100 is no hex or decimal end of rows.
    let zeros = "0000000 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n*\n";
    assert_eq!(parse(&format!("{zeros}0000064\n"), false, false).unwrap()[0].bytes.len(), 64);
    assert_eq!(parse(&format!("{zeros}0000100\n"), false, false).unwrap()[0].bytes.len(), 64);
    let words = "0000000 0000 0000 0000 0000 0000 0000 0000 0000\n*\n";
    let error = parse(&format!("{words}0000100\n"), false, false).unwrap_err().0;
    assert_eq!(
        error,
        "line 3: \"0000100\" may be hex or octal: hexdump -v, od -v or od -A x write what is not"
    );
    let octal = "0000000 011000 004064 053000 002170 000000 004000 000000 000000\n0000020\n";
    assert!(parse(octal, false, false).unwrap_err().0.contains("octal"));
    let binary = "00000000: 00000000 00010010 00110100 00001000 00000000 01010110  ..4..V\n";
    assert!(parse(binary, false, false).unwrap_err().0.contains("binary"));
}

#[test]
fn rows_that_no_offset_counts_are_not_left_out() {
    // od -A n writes `*`, too.
    for text in [" 00 00\n*\n 01 02\n", " 00 00\n*\n"] {
        let error = parse(text, false, false).unwrap_err().0;
        assert!(error.contains("'*' without an offset behind it"), "{error}");
    }
    // The last word of 3 bytes is filled up.
    for text in ["0000000 0201 0003\n0000003\n", "0000000 00030201\n0000003\n"] {
        assert_eq!(parse(text, true, false).unwrap()[0].bytes, [1, 2, 3], "{text}");
    }
    let cut = "00000000  01 02 03 04\n00000003\n";
    assert!(parse(cut, false, false).unwrap_err().0.contains("the bytes end at 0x4"));
}

#[test]
fn characters_beside_bytes_are_none_of_them() {
    let row = "61 62 7c 64 65 66 20 20 61 62 20 20 7c 3e 20 20";
    for line in [
        "0000  61 62 7c 64 65 66 20 20 61 62 20 20 7c 3e 20 20   ab|def  ab  |>  \n",
        "0000   61 62 7c 64 65 66 20 20 61 62 20 20 7c 3e 20 20   ab|def  ab  |>  \n",
        "00000000  61 62 7c 64 65 66 20 20  61 62 20 20 7c 3e 20 20  |ab|def  ab  |>  |\n00000010\n",
        "000000 61 62 7c 64 65 66 20 20 61 62 20 20 7c 3e 20 20  >ab|def  ab  |>  <\n000010\n",
    ] {
        assert_eq!(hexed(line), hexed(row), "{line}");
    }
}

#[test]
fn what_may_be_an_offset_or_data_is_refused() {
    for text in ["00123408 00 56 78 04\n", "0012340800567804 00 00 00 08\n", "1234 08 00 56\n"] {
        let error = parse(text, false, false).unwrap_err().0;
        assert!(error.contains("may be an offset or data"), "{error} for {text}");
    }
    // hexdump -C -s 16, od -j 16: the next offset goes on from it.
    for text in ["00000010  01 02 03 04\n00000014\n", "000010 01 02 03 04\n000014 05\n000015\n"] {
        assert_eq!(hexed(text)[..4], [1, 2, 3, 4], "{text}");
    }
    let within = "00000000: 0102 0304\n00000002: 0102\n";
    assert!(parse(within, false, false).unwrap_err().0.contains("the bytes before end at 0x4"));
}

#[test]
fn what_programs_print_is_read() {
    let bytes = hexed(WRITE);
    let list = |words: Vec<String>| words.join(", ");
    let each = list(bytes.iter().map(|byte| format!("{byte:#x}")).collect());
    let bare: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let rows: String = bytes
        .chunks(8)
        .map(|row| {
            let words: Vec<_> = row.iter().map(|byte| format!("{byte:#04x}")).collect();
            format!("<sq+{}>:\t{}\n", 0, words.join("\t"))
        })
        .collect();
    for text in [
        format!("$1 = {{{each}}}\n"), // gdb, p/x
        format!("uint8_t sq[64] = {{{each}}};\n"),
        format!("unsigned char sq[] = {{\n  {each}\n}};\nunsigned int sq_len = 64;\n"), // xxd -i
        rows, // gdb, set print address off
        bare.join(":"),
        bare.join("-"),
        format!("\"\\x{}\"", bare.join("\\x")),
        format!("b'\\x{}'", bare.join("\\x")),
    ] {
        let all = parse(&text, false, false).unwrap();
        assert_eq!((all.len(), &all[0].bytes, all[0].doubtful), (1, &bytes, false), "{text}");
    }
    // Words without their leading zeros are as wide as the widest; bytes are bytes.
    assert_eq!(
        hexed("$1 = {0x12340800, 0x567804, 0x8, 0x0}"),
        hexed("12340800 00567804 00000008 00000000")
    );
    assert_eq!(
        hexed("{0x0 <repeats 12 times>, 0x7, 0x0 <repeats 3 times>}"),
        [vec![0; 12], vec![7], vec![0; 3]].concat()
    );
    assert_eq!(hexed("b'\\x00\\x124\\x08V\\n\\'x'"), *b"\x00\x124\x08V\n'x");
    // gdb's bytes have no order that could be a host's.
    assert!(!parse("0x10 <sq>:\t0x00\t0x12\n", false, false).unwrap()[0].doubtful);
    for (text, what) in [
        ("\"\\x00ab\"", "not one byte of two digits"),
        ("b'\\x00", "without its end"),
        ("b'\\q'", "byte 0 of the string"),
        ("{0x0 <repeats 99999999999 times>}", "more than"),
        ("{0x0 <repeats x times>}", "without a number"),
    ] {
        let error = parse(text, false, false).unwrap_err().0;
        assert!(error.contains(what), "{error} for {text}");
    }
    assert_eq!(hexed(&"ab".repeat(1 << 17)).len(), 1 << 17, "a line as xxd -p | tr -d has it");
    let long = parse(&"zz".repeat(1 << 20), false, false).unwrap_err().0;
    assert!(long.len() < 100, "{}", long.len());
}

#[test]
fn lines_of_tcpdump_and_the_journal_are_no_hex() {
    let packet = packet_of(Operation::SendOnly, 1, 8, None);
    let rows: String = packet
        .chunks(16)
        .enumerate()
        .map(|(i, row)| {
            let words: Vec<_> = row
                .chunks(2)
                .map(|it| it.iter().map(|b| format!("{b:02x}")).collect::<String>())
                .collect();
            format!("\t0x{:04x}:  {}  E..<.. .. ab\n", i * 16, words.join(" "))
        })
        .collect();
    let head = "10:00:00.000001 IP 10.0.0.1.49152 > 10.0.0.2.4791: UDP, length 24\n";
    let verbose = "10:00:00.000002 IP (tos 0x0, ttl 64, id 0, offset 0, flags [DF], proto UDP (17), length 52)\n    \
                   10.0.0.1.49152 > 10.0.0.2.4791: [no cksum] UDP, length 24\n";
    let all =
        items(Kind::Packet, format!("{head}{rows}{verbose}{rows}").as_bytes(), &Options::default());
    assert_eq!((all.len(), wrong(&all)), (2, String::new()));
    assert!(all[1].notes[0].text.contains("retransmission"), "{all:?}");
    // libmlx5's words, through the journal.
    let line = |words: &str| format!("Nov 26 10:00:00 host app[1234]: {words}\n");
    let zeros = line("00000000 00000000 00000000 00000000").repeat(3);
    let text = line("mlx5: host: got completion with error:")
        + &zeros
        + &line("00000000 00008716 0a001f8e 000027d2");
    let all = items(Kind::Cqe, text.as_bytes(), &Options::default());
    assert_eq!(
        all[0].summary,
        "REQ_ERR, IBV_WC_RNR_RETRY_EXC_ERR of SEND, QP 0x1f8e, wqe_counter 0"
    );
}

/// DPDK writes the CQ and the send queue to a file (`rte_hexdump`).
#[test]
fn a_file_of_dpdk_has_two_dumps() {
    let rows = |bytes: &[u8]| -> String {
        let row = |(i, row): (usize, &[u8])| {
            let hex: String = row.iter().map(|byte| format!(" {byte:02X}")).collect();
            format!("{:08X}:{hex} | ..4..Vx........ |\n", i * 16)
        };
        bytes.chunks(16).enumerate().map(row).collect()
    };
    let entry = Cqe::error(CqeOpcode::ReqErr, Qpn(7), 3, Syndrome::RemoteAccess, 0x88).emit(0);
    let text = format!(
        "Unexpected CQE error syndrome 0x13 CQN = 129 SQN = 7 wqe_counter = 3 wq_ci = 4 cq_ci = 0\n\
         MLX5 Error CQ: at [0x7f0000001000], len=64\n{}MLX5 Error SQ: at [0x7f0000002000], len=64\n{}",
        rows(&entry),
        rows(&hexed(WRITE)),
    );
    let all = items(Kind::Cqe, text.as_bytes(), &Options::default());
    let told: Vec<_> = all.iter().map(|item| &item.summary[..14]).collect();
    assert_eq!((told, wrong(&all)), (vec!["REQ_ERR, IBV_W", "RDMA_WRITE, wq"], String::new()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn pieces_of_dumps_are_decoded_or_refused(
        pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..40),
        which in 0..5_usize,
        options in options(),
    ) {
        lines_are_clean(Kind::ALL[which], pieces.concat().as_bytes(), &options);
    }
}

/// What dumps, logs and programs put beside bytes.
const PIECES: [&str; 32] = [
    "\n",
    "\n",
    "\n",
    "*\n",
    "00 ",
    "01 ",
    "ff",
    "0201 ",
    "00000008 ",
    "0000000 ",
    "0000020 ",
    "0000100\n",
    "00000000  ",
    "000010 ",
    "0x0010:  ",
    "00000010: ",
    "0x7ffe0010 <sq+16>:\t",
    "<sq+8>:\t",
    "0x1",
    "0x12340800, ",
    " <repeats 3 times>",
    "$1 = {",
    "uint8_t x[] = {",
    "};\n",
    "b'",
    "\\x00",
    "\"",
    "[  1.5] ",
    "mlx5 dump error cqe\n",
    "WQE DUMP\n",
    "  >..<\n",
    "  |..|\n",
];
