//! `bellpush decode`: what the documentation shows, files, pipes and statuses.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/decode")
}

fn decode(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellpush"));
    command.current_dir(fixtures()).arg("decode").args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The same of what a pipe brings.
fn piped(args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bellpush"));
    command.arg("decode").args(args).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Who refuses its options reads nothing.
    let written = child.stdin.take().unwrap().write_all(input);
    assert!(written.is_ok() || child.wait().unwrap().code() == Some(2));
    child.wait_with_output().unwrap()
}

/// Asserts status 2 and one line on stderr, and returns it.
fn refused(output: &Output) -> String {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr.trim_end().into()
}

#[test]
fn what_the_documentation_shows_is_what_comes() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/decode.md");
    let page = fs::read_to_string(page).unwrap();
    let mut shown = 0;
    for block in page.split("```").skip(1).step_by(2) {
        let Some(block) = block.strip_prefix("\n$ bellpush decode ") else { continue };
        for example in block.split("\n$ bellpush decode ") {
            let (args, expected) = example.split_once('\n').unwrap();
            let args: Vec<_> = args.split(' ').collect();
            assert_eq!(text(&decode(&args)).trim_end(), expected.trim_end(), "{args:?}");
            shown += 1;
        }
    }
    assert!(shown >= 3, "{shown}");
}

#[test]
fn the_status_says_whether_something_is_wrong() {
    for (args, status) in [
        (&["wqe", "write.hex"][..], 0),
        (&["wqe", "write.hex", "--wqe-index", "0x1234"], 0),
        (&["wqe", "write.hex", "--wqe-index", "0x1235"], 1),
        (&["wqe", "bad.hex"], 1),
        (&["wqe", "datagram.hex"], 0),
        (&["wqe", "datagram.hex", "--qp", "rc"], 1),
        (&["cqe", "dmesg.txt"], 0),
        (&["pcap", "pingpong.pcap"], 0),
    ] {
        let output = decode(args);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {}", text(&output));
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn a_capture_of_the_udp_link_has_nothing_wrong_until_a_byte_changes() {
    let mut file = fs::read(fixtures().join("pingpong.pcap")).unwrap();
    let right = piped(&["pcap", "-"], &file);
    let told = text(&right);
    assert_eq!(right.status.code(), Some(0), "{told}");
    assert_eq!(told.matches("ICRC ").count(), 12, "{told}");
    assert!(!told.contains("wrong"), "{told}");
    let payload = 24 + 16 + 14 + 20 + 8 + 12 + 5;
    file[payload] ^= 1;
    let output = piped(&["pcap", "--brief"], &file);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("wrong at 0x76: ICRC 0x"), "{}", text(&output));
    // Without its third packet, the first two PSNs of one direction have a gap to the next.
    let _ = file.drain(24..24 + 16 + 122);
    let output = piped(&["pcap", "--brief"], &file);
    assert!(!text(&output).contains("missing"), "it begins later: {}", text(&output));
}

#[test]
fn json_says_the_same() {
    let output = decode(&["wqe", "bad.hex", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let item = &json[0];
    assert_eq!((&item["kind"], item["parts"][0]["name"].as_str()), (&"wqe".into(), Some("ctrl")));
    let opcode = &item["parts"][0]["fields"][2];
    assert_eq!(opcode["name"], "opmod_idx_opcode.opcode");
    assert_eq!((&opcode["value"], &opcode["bits"]), (&"0x8".into(), &"7:0".into()));
    assert_eq!(opcode["meaning"], "RDMA_WRITE");
    assert_eq!(item["wrong"].as_array().unwrap().len(), 2);
    let none =
        piped(&["pcap", "--json"], &fs::read(fixtures().join("pingpong.pcap")).unwrap()[..24]);
    assert_eq!(text(&none), "[]\n");
}

#[test]
fn a_doorbell_is_compared_with_the_files_of_its_queue_and_record() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let sq = write("sq", &format!("0000000a41a5b00200000008{}", "00".repeat(52)));
    let dbr = write("dbr", "00000000 00000000");
    let args = ["doorbell", "-", "--sq", &sq, "--dbr", &dbr, "--brief"];
    let behind = piped(&args, b"0x0000000a 0x41a5b002");
    assert_eq!(behind.status.code(), Some(1));
    assert!(
        text(&behind).contains("1 basic blocks behind the doorbell, at 0"),
        "{}",
        text(&behind)
    );
    let dbr = write("dbr", "00000000 00000001");
    let args = ["doorbell", "-", "--sq", &sq, "--dbr", &dbr, "--brief"];
    assert_eq!(piped(&args, b"0x0000000a 0x41a5b002").status.code(), Some(0));
    let odd = write("odd", &"00".repeat(65));
    let line = refused(&piped(&["doorbell", "--sq", &odd], b"00"));
    assert!(line.contains("65 bytes are no send queue"), "{line}");
}

#[test]
fn an_option_that_would_change_nothing_is_refused() {
    for (args, what) in [
        (&["wqe", "write.hex", "--cq"][..], "--cq is for doorbells and their records only"),
        (&["wqe", "write.hex", "--link", "ip"], "--link is for packets"),
        (&["wqe", "write.hex", "--cqe-bytes", "128"], "--cqe-bytes is for CQEs"),
        (&["wqe", "write.hex", "--dbr", "write.hex"], "--dbr is for doorbells"),
        (&["wqe", "write.hex", "--stride", "32"], "--stride is for WQEs with --qp recv or srq"),
        (&["wqe", "write.hex", "--qp", "recv", "--signed"], "--signed is for WQEs to send"),
        (&["wqe", "write.hex", "--qp", "srq", "--wqe-index", "1"], "--wqe-index is for WQEs to"),
        (&["wqe", "write.hex", "--host-words", "--binary"], "--host-words is for hex"),
        (&["cqe", "dmesg.txt", "--qp", "ud"], "--qp is for WQEs only"),
        (&["cqe", "dmesg.txt", "--wqe-index", "6"], "needs both --wqe-index and --queue-log"),
        (&["pcap", "pingpong.pcap", "--hex"], "--hex is for bytes of memory"),
        (&["pcap", "pingpong.pcap", "--signed"], "--signed is for"),
        (&["record", "pingpong.pcap", "--queue-log", "4"], "--queue-log is for WQEs to send"),
        (
            &["doorbell", "-", "--cq", "--sq", "write.hex"],
            "--sq is for doorbells and records of a queue pair",
        ),
        (&["wqe", "write.hex", "--qp", "recv", "--stride", "48"], "a power of two from 16"),
        (&["doorbell", "write.hex", "--dbr", "write.hex"], "write.hex: 48 bytes are no doorbell"),
        (&["pcap", "pingpong.pcap", "--link", "ip"], "--link is for packets without a capture"),
    ] {
        let line = refused(&decode(args));
        assert!(line.contains(what), "{line} for {args:?}");
    }
    let binary = piped(&["wqe", "--host-words"], &[0; 64]);
    assert!(refused(&binary).contains("--host-words is for words of hex"));
    let strides = piped(&["wqe", "--qp", "recv", "--stride", "16", "--brief"], &b"00".repeat(64));
    assert_eq!(text(&strides).lines().filter(|line| line.contains("receive WQE")).count(), 4);
}

#[test]
fn what_is_live_ends_by_itself_and_refuses_what_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nic");
    let place = path.to_str().unwrap();
    let since = std::time::Instant::now();
    fs::write(&path, "bellpush-record 2\n").unwrap();
    let output = decode(&["live", place, "--seconds", "1", "--json"]);
    assert_eq!((output.status.code(), text(&output).as_str()), (Some(0), "[]\n"));
    let line = String::from_utf8_lossy(&output.stderr);
    assert!(line.contains("nothing was decoded until the end"), "{line}");
    assert!(since.elapsed().as_secs() >= 1);
    fs::write(&path, "something else entirely").unwrap();
    let line = refused(&decode(&["live", place]));
    assert!(line.contains("not a recording of this version"), "{line}");
    fs::write(&path, "bellpush-record 1\n").unwrap();
    let line = refused(&decode(&["live", place]));
    assert!(line.contains("of format 1, and this bellpush reads format 2"), "{line}");
    let line = refused(&decode(&["live", folder.path().to_str().unwrap()]));
    assert!(line.contains("not a file"), "{line}");
    assert!(refused(&decode(&["live", "/nowhere"])).contains("No such file"));
    for (args, what) in [
        (["record", place, "--seconds", "1"], "--seconds is for 'decode live' only"),
        (["live", place, "--queue-log", "3"], "--queue-log is for"),
        (["live", place, "--seconds", "0"], "0 is not in 1..=86400"),
    ] {
        let output = decode(&args);
        let line = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && line.contains(what), "{line}");
    }
}

#[test]
fn what_cannot_be_decoded_is_refused_in_a_line() {
    for (args, input, what) in [
        (&["wqe"][..], &b"hello\n"[..], "line 1: \"hello\" is not hex"),
        (&["wqe"], b"", "no bytes in it"),
        (&["wqe", "--hex"], b"\xff\xfe", "byte 0: not text"),
        (&["pcap"], b"GIF89a", "neither as pcap nor as pcapng"),
        (&["record"], b"GIF89a", "not a recording"),
        (&["wqe", "nowhere.hex"], b"", "No such file"),
        (&["wqe", "--queue-log", "99"], b"", "--queue-log"),
        (&["wqe", "--cqe-bytes", "32"], b"", "--cqe-bytes"),
    ] {
        let line = refused(&piped(args, input));
        assert!(line.contains(what), "{line} for {args:?}");
    }
    // What mends it is said of each kind.
    assert!(refused(&piped(&["pcap"], b"GIF89a")).contains("pcapng and ERF can be decoded"));
    assert!(refused(&piped(&["wqe"], b"hello\n")).contains("forms of hex"));
    let healthy = piped(&["cqe"], b"[  1.5] usb 1-1: new device\n");
    assert!(refused(&healthy).contains("no dump in these 1 lines of a log"));
}

#[test]
fn a_capture_that_is_cut_is_decoded_up_to_there() {
    let mut file = fs::read(fixtures().join("pingpong.pcap")).unwrap();
    file.truncate(file.len() - 3);
    let cut = piped(&["pcap", "--brief"], &file);
    assert_eq!(cut.status.code(), Some(0), "{}", text(&cut));
    assert_eq!(text(&cut).lines().filter(|line| line.starts_with("packet ")).count(), 11);
    assert!(text(&cut).contains("end: the file ends within packet 12\n"), "{}", text(&cut));
    file[24 + 16 + 14 + 20 + 8 + 12 + 5] ^= 1;
    assert_eq!(piped(&["pcap"], &file).status.code(), Some(1), "what is wrong before is");
}

#[test]
fn a_capture_of_which_nothing_was_judged_says_so() {
    let mut file = fs::read(fixtures().join("pingpong.pcap")).unwrap();
    file[20] = 147;
    let output = piped(&["pcap", "--brief"], &file);
    assert_eq!(output.status.code(), Some(0));
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, "bellpush: 0 of 12 packets are RoCEv2: nothing was judged\n");
    let output = piped(&["pcap"], &file[..24]);
    assert_eq!(output.status.code(), Some(0));
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, "bellpush: the capture has no packets: nothing was judged\n");
}

#[test]
fn a_fifo_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR)
        .unwrap();
    // Its end is a program of its own's: one that hangs is ended.
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "20", env!("CARGO_BIN_EXE_bellpush"), "decode", "live"]);
    let output = command.arg(&fifo).args(["--seconds", "1"]).output().unwrap();
    let line = refused(&output);
    assert!(line.contains("not a file that a device's recording grows in"), "{line}");
    let line = refused(&decode(&["live", "--seconds", "1"]));
    assert!(line.contains("stdin is none") && line.contains("decode live FILE"), "{line}");
}
