//! Captures: tshark decodes every opcode as it was built and finds nothing malformed, and an ICRC
//! computed bit by bit from the specification, over the file's bytes, is the stored one.

use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use crate::queue_pairs::{Pair, attr, connect, inline, make_typed, pattern};
use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::InProcess;
use bellpush::nic::soft::link::{Captured, Link, ShmNet, TxBatch};
use bellpush::nic::soft::pcap::{Pcap, try_place};
use bellpush::nic::{Change, QpType, QueuePair};
use bellpush::wire::roce::{
    Addresses, Aeth, AtomicEth, Bth, Deth, Envelope, Extensions, Headers, MAX_PACKET_BYTES,
    NakCode, Opcode, Reth, Service, Syndrome,
};
use bellpush::wire::wqe::{Opcode as Op, Operands, SendWr};
use bellpush::wire::{Iova, Psn, Qpn, Rkey};

/// Headers of an opcode, different for each.
fn headers(opcode: Opcode) -> Headers {
    let n = u32::from(opcode.code());
    let mut bth = Bth::new(opcode, Qpn(0x10_0000 + n), Psn::new(0xff_ff00 + n * 7));
    bth.ack_req = n.is_multiple_of(2);
    bth.solicited = n.is_multiple_of(3);
    let set = opcode.extensions();
    let syndromes = [
        Syndrome::ACK,
        Syndrome::RnrNak { timer: 14 },
        Syndrome::Nak(NakCode::PsnSequence),
        Syndrome::Nak(NakCode::RemoteAccess),
    ];
    let (addr, rkey) = (Iova(0x7f00_0000_1000 + u64::from(n)), Rkey(0xabc0_0000 + n));
    let atomic = AtomicEth { addr: Iova(addr.0 & !7), rkey, swap_add: 5, compare: 6 };
    let aeth = Aeth { syndrome: syndromes[n as usize % 4], msn: 0x10_0000 + n };
    let ext = Extensions {
        deth: set.deth.then_some(Deth { qkey: 0x1111_1111, source: Qpn(0x77) }),
        reth: set.reth.then_some(Reth { addr, rkey, bytes: 0x1234 + n }),
        atomic: set.atomic.then_some(atomic),
        aeth: set.aeth.then_some(aeth),
        atomic_ack: set.atomic_ack.then_some(99),
        imm: set.imm.then_some(0xdead_0000 + n),
        ieth: set.ieth.then_some(Rkey(0xbeef)),
        srqn: set.xrc.then_some(0x1234),
        dc: None,
        masks: None,
    };
    Headers { bth, ext }
}

/// All opcodes but those of XRC, of DC and of atomics with masks, which tshark does not decode.
fn opcodes() -> impl Iterator<Item = Opcode> {
    let plain = |o: &Opcode| !matches!(o.service(), Service::Xrc | Service::Dc);
    let known = move |o: &Opcode| plain(o) && !o.operation().is_masked();
    Opcode::all().filter(known)
}

fn payload_bytes(opcode: Opcode) -> usize {
    if opcode.operation().has_payload() { 64 + usize::from(opcode.code()) % 4 } else { 0 }
}

fn emit(headers: &Headers, envelope: Option<&Envelope>, buf: &mut [u8]) -> usize {
    let mut frame = headers.emit(payload_bytes(headers.bth.opcode), buf);
    frame.payload_mut().iter_mut().zip(1..).for_each(|(to, from)| *to = from);
    frame.finish(envelope)
}

fn envelopes() -> [Envelope; 2] {
    let pair = |src: &str, dst: &str| {
        let (src, dst): (IpAddr, IpAddr) = (src.parse().unwrap(), dst.parse().unwrap());
        Envelope::new(Addresses::new(src, dst).unwrap(), 0xc0de)
    };
    [pair("10.0.0.1", "10.0.0.2"), pair("2001:db8::1", "2001:db8::2")]
}

/// A capture of every opcode, over IPv4 and IPv6.
fn every_opcode(path: &Path) {
    let mut pcap = Pcap::create(path).unwrap();
    let mut buf = [0; MAX_PACKET_BYTES];
    for (at, (envelope, opcode)) in
        envelopes().iter().flat_map(|e| opcodes().map(move |o| (e, o))).enumerate()
    {
        // With the ICRC in the packet, and with the file's writer filling it in.
        let filled = at.is_multiple_of(2);
        let n = emit(&headers(opcode), Some(envelope).filter(|_| !filled), &mut buf);
        let at_ns = 1_700_000_000_123_456_789 + at as u64;
        pcap.record(at_ns, envelope, &buf[..n], filled).unwrap();
    }
}

/// What tshark says of each packet of a file, field by field; nothing where tshark is missing.
fn tshark(path: &Path, fields: &[&str]) -> Option<Vec<Vec<String>>> {
    if Command::new("tshark").arg("-v").output().is_err() {
        println!("SKIPPED: no tshark (./x setup installs it)");
        return None;
    }
    let mut command = Command::new("tshark");
    command.args(["-n", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]);
    command.arg("-r").arg(path).args(["-T", "fields", "-E", "separator=;", "-E", "occurrence=f"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();

    Some(text.lines().map(|line| line.split(';').map(str::to_owned).collect()).collect())
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        _ if text.is_empty() => None,
        Some(hex) => Some(u64::from_str_radix(hex, 16).unwrap()),
        None => Some(text.parse().unwrap()),
    }
}

#[test]
fn tshark_decodes_every_opcode_as_it_was_built() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("every.pcap");
    every_opcode(&path);
    let fields = [
        "_ws.malformed",
        "_ws.expert.message",
        "frame.time_epoch",
        "infiniband.bth.opcode",
        "infiniband.bth.psn",
        "infiniband.bth.destqp",
        "infiniband.bth.a",
        "infiniband.bth.se",
        "infiniband.bth.padcnt",
        "infiniband.reth.va",
        "infiniband.reth.r_key",
        "infiniband.reth.dmalen",
        "infiniband.aeth.syndrome",
        "infiniband.aeth.msn",
        "infiniband.deth.srcqp",
        "infiniband.atomiceth.swapdt",
        "infiniband.immdt",
        "infiniband.invariant.crc",
    ];
    let Some(lines) = tshark(&path, &fields) else { return };
    let opcodes: Vec<Opcode> = opcodes().chain(opcodes()).collect();
    assert_eq!(lines.len(), opcodes.len());
    for (i, (opcode, line)) in opcodes.into_iter().zip(&lines).enumerate() {
        let field = |name: &str| &*line[fields.iter().position(|f| *f == name).unwrap()];
        let value = |name: &str| number(field(&format!("infiniband.{name}")));
        assert_eq!((field("_ws.malformed"), field("_ws.expert.message")), ("", ""), "{opcode:?}");
        assert_eq!(field("frame.time_epoch"), format!("1700000000.{}", 123_456_789 + i));
        let Headers { bth, ext } = headers(opcode);
        assert_eq!(value("bth.opcode"), Some(opcode.code().into()));
        assert_eq!(value("bth.psn"), Some(bth.psn.value().into()));
        assert_eq!(value("bth.destqp"), Some(bth.dest.0.into()));
        assert_eq!(value("bth.padcnt"), Some((payload_bytes(opcode).wrapping_neg() & 3) as u64));
        let flag = |name: &str| matches!(field(&format!("infiniband.{name}")), "1" | "True");
        assert_eq!((flag("bth.a"), flag("bth.se")), (bth.ack_req, bth.solicited));
        // Of an AtomicETH, tshark names address and key as those of a RETH.
        let place = ext.reth.map(|reth| (reth.addr, reth.rkey));
        let place = place.or(ext.atomic.map(|atomic| (atomic.addr, atomic.rkey)));
        assert_eq!(value("reth.va"), place.map(|place| place.0.0));
        assert_eq!(value("reth.r_key"), place.map(|place| place.1.0.into()));
        assert_eq!(value("reth.dmalen"), ext.reth.map(|reth| reth.bytes.into()));
        assert_eq!(value("aeth.syndrome"), ext.aeth.map(|aeth| aeth.syndrome.code().into()));
        assert_eq!(value("aeth.msn"), ext.aeth.map(|aeth| aeth.msn.into()));
        assert_eq!(value("deth.srcqp"), ext.deth.map(|deth| deth.source.0.into()));
        assert_eq!(value("atomiceth.swapdt"), ext.atomic.map(|atomic| atomic.swap_add));
        assert_eq!(
            field("infiniband.immdt"),
            ext.imm.map_or("".into(), |imm| format!("{imm:08x}"))
        );
        // What follows a congestion notification's BTH, tshark leaves alone.
        assert_eq!(value("invariant.crc").is_some(), opcode != Opcode::CNP);
    }
}

#[test]
fn tshark_would_say_so_if_a_packet_were_malformed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short.pcap");
    let mut buf = [0; MAX_PACKET_BYTES];
    let opcode = Opcode::rc(bellpush::wire::roce::Operation::WriteOnly);
    emit(&headers(opcode), None, &mut buf);
    Pcap::create(&path).unwrap().record(0, &envelopes()[0], &buf[..20], false).unwrap();
    let Some(lines) = tshark(&path, &["_ws.malformed", "infiniband.bth.opcode"]) else { return };
    assert_eq!(lines.len(), 1);
    assert_ne!(lines[0][0], "", "{lines:?}");
}

/// CRC-32 (InfiniBand vol. 1, 7.8.1: the polynomial of Ethernet), bit by bit.
fn crc32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        for bit in 0..8 {
            let out = (crc ^ u32::from(byte) >> bit) & 1;
            crc = crc >> 1 ^ if out == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}

/// Whether the ICRC of an Ethernet frame is right, from nothing but its bytes.
fn icrc_is_right(frame: &[u8]) -> bool {
    let mut ip = frame[14..].to_vec();
    let udp = match ip[0] >> 4 {
        4 => {
            for at in [1, 8, 10, 11] {
                ip[at] = 0xff; // ToS, TTL, checksum
            }
            20
        }
        6 => {
            ip[0] |= 0x0f; // traffic class, flow label
            ip[1..4].fill(0xff);
            ip[7] = 0xff; // hop limit
            40
        }
        _ => return false,
    };
    ip[udp + 6..udp + 8].fill(0xff); // UDP checksum
    ip[udp + 8 + 4] = 0xff; // resv8a of the BTH
    let (covered, stored) = ip.split_last_chunk::<4>().unwrap();
    let crc = crc32([0xff; 8].into_iter().chain(covered.iter().copied()));
    crc.to_le_bytes() == *stored
}

/// Frames of a capture.
fn frames(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes[..4], 0xa1b2_3c4du32.to_le_bytes());
    let (mut rest, mut frames) = (&bytes[24..], Vec::new());
    while !rest.is_empty() {
        let n = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        assert_eq!(rest[8..12], rest[12..16]);
        frames.push(rest[16..16 + n].to_vec());
        rest = &rest[16 + n..];
    }
    frames
}

#[test]
fn the_icrc_of_every_frame_is_the_specifications() {
    // Of "123456789", as every table of CRCs has it.
    assert_eq!(crc32(*b"123456789"), 0xcbf4_3926);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("every.pcap");
    every_opcode(&path);
    let frames = frames(&path);
    assert_eq!(frames.len(), 2 * opcodes().count());
    for mut frame in frames {
        assert!(icrc_is_right(&frame));
        // Negative control: a flipped bit is found, wherever it counts.
        let udp = if frame[14] >> 4 == 4 { 20 } else { 40 } + 14;
        for at in (udp..udp + 6).chain(udp + 8..frame.len()).filter(|&at| at != udp + 12) {
            frame[at] ^= 4;
            assert!(!icrc_is_right(&frame), "byte {at}");
            frame[at] ^= 4;
        }
    }
}

#[test]
fn a_captured_link_records_both_ways_and_fills_icrcs_in() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("link.pcap");
    let net = ShmNet::anonymous(false).unwrap();
    let mut a = Captured::new(net.attach_free().unwrap(), &path).unwrap();
    let mut b = net.attach_free().unwrap();
    let mut batch = TxBatch::new(8);
    for opcode in opcodes().take(8) {
        let push = |batch: &mut TxBatch, to| {
            assert!(batch.push(to, |buf| Some(emit(&headers(opcode), None, buf))));
        };
        push(&mut batch, b.address());
        assert_eq!(a.send(1000, &mut batch).unwrap(), 1);
        assert_eq!(b.recv(0, 8, &mut |_| {}).unwrap(), 1);
        push(&mut batch, a.address());
        assert_eq!(b.send(0, &mut batch).unwrap(), 1);
        assert_eq!(a.recv(2000, 8, &mut |_| {}).unwrap(), 1);
    }
    // What is recorded is in the file in a bounded time, without the link being closed.
    a.recv(300_000_000, 8, &mut |_| {}).unwrap();
    let got = frames(&path);
    assert_eq!(got.len(), 16);
    assert!(got.iter().all(|frame| icrc_is_right(frame)));
    let source = |frame: &[u8]| frame[14 + 15];
    assert!(got.chunks(2).all(|pair| (source(&pair[0]), source(&pair[1])) == (1, 2)));
    // And the rest when it is.
    b.send(0, &mut batch).unwrap();
    assert!(batch.push(a.address(), |buf| Some(emit(&headers(Opcode::CNP), None, buf))));
    b.send(0, &mut batch).unwrap();
    a.recv(300_000_001, 8, &mut |_| {}).unwrap();
    drop(a);
    assert_eq!(frames(&path).len(), 17);
}

#[test]
fn a_capture_is_its_owners_alone_and_goes_where_it_was_sent() {
    let folder = tempfile::tempdir().unwrap();
    let [path, link, target] = ["a.pcap", "link", "target"].map(|name| folder.path().join(name));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    drop(Pcap::create(&path).unwrap());
    assert_eq!(mode(&path), 0o600);
    // One that is there is emptied, and is nobody else's from then on.
    std::fs::write(&path, [7; 1000]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    drop(Pcap::create(&path).unwrap());
    assert_eq!((mode(&path), path.metadata().unwrap().len()), (0o600, 24));
    std::fs::write(&target, b"mine").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    assert!(Pcap::create(&link).is_err());
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&target, Some(65534), None).unwrap();
        assert!(Pcap::create(&target).is_err());
        assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    }
}

#[test]
fn a_pipe_without_a_reader_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (told, tells) = std::sync::mpsc::channel();
    let there = path.clone();
    std::thread::spawn(move || told.send(Pcap::create(&there).map(drop)));
    let refused = tells.recv_timeout(std::time::Duration::from_secs(10)).expect("it waits");
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENXIO));
    // To one that is read, writing waits for the reader, whatever opening did.
    let reader = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
    drop(Pcap::create(&path).unwrap());
    assert_eq!(std::io::Read::read(&mut reader.unwrap(), &mut [0; 64]).unwrap(), 24);
}

/// As [`Pcap::create`] would: it makes nothing, empties nothing, and ends no pipe.
#[test]
fn a_place_is_tried_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let [new, old, link, pipe] = ["new", "old", "link", "pipe"].map(|name| dir.path().join(name));
    assert!(try_place(&new).unwrap().is_none() && !new.exists());
    std::fs::write(&old, b"mine").unwrap();
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(try_place(&old).unwrap().is_some());
    assert_eq!(std::fs::read(&old).unwrap(), b"mine");
    assert_eq!(old.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    std::os::unix::fs::symlink(&old, &link).unwrap();
    for place in [&link, &dir.path().join("absent").join("x"), &dir.path().to_owned()] {
        assert!(try_place(place).is_err(), "{}", place.display());
    }
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&old, Some(65534), None).unwrap();
        assert!(try_place(&old).is_err(), "another user's");
    }
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(try_place(&pipe).unwrap_err().raw_os_error(), Some(libc::ENXIO));
    let mut options = std::fs::OpenOptions::new();
    let reader = options.read(true).custom_flags(libc::O_NONBLOCK).open(&pipe);
    let open = try_place(&pipe).unwrap();
    // Its reader sees no end before the writer comes, and one afterwards.
    let read = || std::io::Read::read(&mut reader.as_ref().unwrap(), &mut [0; 64]);
    assert_eq!(read().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    drop(open);
    assert_eq!(read().unwrap(), 0);
}

#[test]
fn a_file_that_cannot_be_written_is_named_once_and_stops_nothing() {
    let net = ShmNet::anonymous(false).unwrap();
    for path in ["/nowhere/x.pcap", "/dev/full"] {
        assert!(Captured::new(net.attach_free().unwrap(), Path::new(path)).is_err());
    }
    // A pipe, whose reader goes away after the beginning.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let reader = std::fs::File::options()
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
        .open(&path)
        .unwrap();
    let mut a = Captured::new(net.attach_free().unwrap(), &path).unwrap();
    drop(reader);
    let mut batch = TxBatch::new(1);
    let me = a.address();
    let (mut failures, mut arrived) = (0, 0);
    for i in 0..10_000 {
        batch.push(me, |buf| Some(emit(&headers(Opcode::CNP), None, buf)));
        failures += u32::from(a.send(i, &mut batch).is_err());
        failures += u32::from(a.recv(i, 8, &mut |_| arrived += 1).is_err());
    }
    assert_eq!((failures, arrived), (1, 10_000));
    assert!(a.describe().ends_with("capture failed"));
}

/// What moves in-process, as packets: payloads, keys and numbers are those of the messages.
#[test]
fn a_captured_in_process_link_shows_its_messages_as_packets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("messages.pcap");
    let link = InProcess::captured(&path).unwrap();
    let mut p = Pair::on(&link, &attr(), &attr());
    let (long, short) = (pattern(10_000, 1), pattern(777, 2));
    p.a.buf.put(0, &long);
    p.b.buf.put(20_000, &short);
    p.b.buf.put(30_000, &41u64.to_ne_bytes());
    let at = |offset| (p.b.buf.at(offset), p.b.buf.mr.rkey);
    let [(to, rkey), (from, _), (counter, _)] = [0, 20_000, 30_000].map(at);
    let (whole, part, word) =
        ([p.a.buf.data(0, 10_000)], [p.a.buf.data(50_000, 777)], [p.a.buf.data(60_000, 8)]);
    let hello = inline(b"hello");
    let fetch = Some(Operands { swap_add: 1, compare: 0 });
    for wr in [
        SendWr::new(Op::RdmaWrite).to(to, rkey).payload(&whole),
        SendWr::new(Op::RdmaRead).to(from, rkey).payload(&part),
        SendWr { atomic: fetch, ..SendWr::new(Op::AtomicFa) }.to(counter, rkey).payload(&word),
        SendWr::new(Op::Nop),
        SendWr { imm: 0x0102_0304, ..SendWr::new(Op::SendImm) }.payload(&hello),
    ] {
        p.a.host.send(&wr).unwrap();
        p.step();
    }
    // The receive comes late: the SEND is refused for now, and said again.
    p.b.host.rq.post(&[p.b.buf.sge(40_000, 100)]).unwrap();
    p.run_for(1_000_000);
    assert_eq!(p.sent().len(), 5);
    let (a, b) = (p.a.qp.qpn().0, p.b.qp.qpn().0);
    drop((p, link));

    let frames = frames(&path);
    assert!(frames.iter().all(|frame| icrc_is_right(frame)));
    // Behind Ethernet, IPv4, UDP and BTH.
    let payload = |frame: &[u8], skip: usize, n: usize| frame[54 + skip..54 + skip + n].to_vec();
    let (reth, aeth) = (16, 4);
    let sent = [
        payload(&frames[0], reth, 4096),
        payload(&frames[1], 0, 4096),
        payload(&frames[2], 0, 10_000 - 2 * 4096),
    ];
    assert!(sent.concat() == long, "the WRITE's payload");
    assert!(payload(&frames[5], aeth, 777) == short, "the READ's payload");

    let fields = [
        "_ws.malformed",
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "infiniband.aeth.syndrome",
        "infiniband.atomicacketh.origremdt",
    ];
    let Some(lines) = tshark(&path, &fields) else { return };
    let field = |line: &[String], i: usize| number(&line[i]);
    let seen: Vec<_> = lines
        .iter()
        .map(|l| (field(l, 1).unwrap(), field(l, 2).unwrap(), field(l, 3).unwrap()))
        .collect();
    assert!(lines.iter().all(|line| line[0].is_empty()), "{lines:?}");
    let (a, b) = (u64::from(a), u64::from(b));
    let expected = [
        (0x06, b, 0), // WRITE first, middle, last
        (0x07, b, 1),
        (0x08, b, 2),
        (0x11, a, 2), // ACK
        (0x0c, b, 3), // READ and its response
        (0x10, a, 3),
        (0x14, b, 4), // FETCH_ADD and its response
        (0x12, a, 4),
        (0x05, b, 5), // SEND with immediate, RNR NAK
        (0x11, a, 5),
    ];
    assert_eq!(seen[..expected.len()], expected);
    assert_eq!(field(&lines[7], 5), Some(41));
    assert_eq!(field(&lines[9], 4).unwrap() >> 5, 0b001, "RNR NAK");
    // However often it was said again, the last time it was taken.
    let rest = &seen[expected.len()..];
    assert!(rest.len() >= 2 && rest.chunks(2).all(|c| c == [(0x05, b, 5), (0x11, a, 5)]));
    assert_eq!(field(lines.last().unwrap(), 4), Some(0x1f), "ACK");
}

/// What an unreliable connection's peer drops was sent all the same: once, and the next message has the next PSN.
#[test]
fn a_captured_in_process_link_shows_dropped_messages_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dropped.pcap");
    let link = InProcess::captured(&path).unwrap();
    let mut p = Pair::on(&link, &attr(), &attr());
    let [(a, _a), (b, _b)] = [0, 1].map(|i| make_typed(&p.nics[i], QpType::Uc, &attr(), None));
    connect(&a, &b, &Change::default());
    let mut sender = HostQp::new(&*a);
    let (hello, long) = (inline(b"hello"), [p.a.buf.data(0, 5000)]);
    let (to, rkey) = (p.b.buf.at(0), p.b.buf.mr.rkey);
    for wr in [
        SendWr::new(Op::Send).payload(&hello),
        SendWr::new(Op::RdmaWrite).to(to, Rkey(rkey.0 ^ 1)).payload(&long),
        SendWr::new(Op::RdmaWrite).to(to, rkey).payload(&hello),
    ] {
        sender.send(&wr).unwrap();
        p.settle();
        assert!(sender.poll_send().unwrap().is_some());
    }
    drop((sender, a, b, p, link));
    // Behind Ethernet, IPv4 and UDP: opcode and PSN.
    let seen: Vec<_> = frames(&path).iter().map(|frame| (frame[42], frame[53])).collect();
    // UC SEND Only, RDMA WRITE First and Last, RDMA WRITE Only; no answers.
    assert_eq!(seen, [(0x24, 0), (0x26, 1), (0x28, 2), (0x2a, 3)]);
}
