//! Endpoints on every path: what was put arrives, byte for byte, and nothing beside it changes.

use std::time::Duration;

use crate::test_bed::*;
use bellpush::abi::entry::{Scope, Verb};
use bellpush::nic::LineFormat;
use bellpush::transport::{
    Address, CompareSwap, Data, Endpoint, Error, FetchAdd, Get, Kick, Local, Options, Path, Put,
    Remote,
};

const SIZES: [usize; 18] =
    [1, 3, 4, 7, 8, 15, 16, 17, 63, 64, 100, 220, 221, 4095, 4096, 4097, 3 * 4096 + 5, 200_000];
const REGION: usize = 256 << 10;

fn put(bed: &TestBed, pair: &Pair, local: usize, remote: usize, bytes: usize) {
    let ep = &pair.a;
    ep.put(&bed.stream, message(local as u64, remote as u64, bytes as u64)).unwrap();
    ep.quiet(&bed.stream).unwrap_or_else(|e| panic!("{}: {bytes} bytes: {e}", ep.path()));
}

#[test]
fn every_size_arrives_on_every_path_and_nothing_beside_it_changes() {
    let bed = TestBed::fibres();
    for path in bed.paths() {
        let pair = bed.pair(path, REGION, Options::default());
        let sent = pattern(1, REGION);
        let mut wanted = pattern(2, REGION);
        pair.src.write(0, &sent).unwrap();
        pair.dst.write(0, &wanted).unwrap();
        for (i, bytes) in SIZES.into_iter().enumerate() {
            let local = [1, 0, 7, 16, 4097][i % 5];
            let remote = [3, 1, 0, 4095, 17, 8][i % 6];
            put(&bed, &pair, local, remote, bytes);
            wanted[remote..remote + bytes].copy_from_slice(&sent[local..local + bytes]);
            assert_same(&read(&pair.dst, 0, REGION), &wanted, &format!("{path}, {bytes} bytes"));
        }
        assert_same(&read(&pair.src, 0, REGION), &sent, &format!("{path}, the source"));
        assert!(pair.a.failure().is_none());
        let slots = if path.has_window() { 32 } else { 0 };
        let used = pair.a.max_credits_in_use().unwrap();
        assert!(used <= slots && (used > 0) == (slots > 0), "{path}: {used} credits of {slots}");
    }
}

/// One message with more CQEs than the CQ has entries.
#[test]
fn a_long_message_passes_through_few_slots_and_a_small_queue() {
    let bed = TestBed::fibres();
    for path in bed.paths() {
        for slots in [8, 15, 63] {
            let options =
                Options::default().sq_blocks(64).slot_bytes(128).window_bytes(slots * 128);
            let pair = bed.pair(path, REGION, options);
            let sent = pattern(slots, REGION);
            pair.src.write(0, &sent).unwrap();
            put(&bed, &pair, 0, 0, REGION);
            let what = format!("{path}, {slots} slots");
            assert_same(&read(&pair.dst, 0, REGION), &sent, &what);
            assert!(pair.a.failure().is_none(), "{what}");
        }
    }
}

/// In lines of every format, of slots that a warp loads ahead and of longer ones, aligned or not, past the restart of
/// the sequences.
#[test]
fn a_long_message_by_many_warps_arrives_in_lines_of_every_format() {
    let bed = TestBed::fibres();
    if !bed.takes(path("push/inband")) {
        return;
    }
    let kernels =
        ["bp_verb_push_inband_12_4", "bp_verb_push_inband_14_2", "bp_verb_push_inband_60_4"];
    for (line, kernel) in LINES.into_iter().zip(kernels) {
        let last = if line == LineFormat::L14S2 { 0xffff } else { u32::MAX };
        for (slot_bytes, bytes) in [(128u32, 20_000u64), (4096, 200_000), (8192, 400_000)] {
            let options = Options::default()
                .slot_bytes(slot_bytes)
                .window_bytes(9 * u64::from(slot_bytes))
                .line(line)
                .inband_seq0(last - 1);
            let pair = bed.pair(path("push/inband"), bytes as usize + 64, options);
            let sent = pattern(bytes, bytes as usize + 64);
            pair.src.write(0, &sent).unwrap();
            for (from, to, cut) in [(0, 0, 0), (4, 8, 20), (3, 5, 1), (1, 16, 7)] {
                pair.dst.write(0, &vec![0; sent.len()]).unwrap();
                let mut call = op(&pair, Verb::Put, Scope::Block, bytes - cut);
                (call.local, call.remote_offset, call.quiet_after) = (call.local + from, to, 1);
                let what = format!("{line}, slots of {slot_bytes}, {from} to {to}");
                assert_eq!(bed.launch(kernel, (1, 160), call), [OK], "{what}");
                let [from, to, n] = [from, to, bytes - cut].map(|n| n as usize);
                let mut wanted = vec![0; sent.len()];
                wanted[to..to + n].copy_from_slice(&sent[from..from + n]);
                assert_same(&read(&pair.dst, 0, sent.len()), &wanted, &what);
            }
            assert!(pair.a.failure().is_none(), "{line}, {slot_bytes}");
        }
    }
}

/// In slots short and long, aligned or not, behind puts that were deferred until the window was full.
#[test]
fn a_long_message_by_doorbell_passes_behind_deferred_posts() {
    const SLOTS: u64 = 9;
    let bed = TestBed::fibres();
    let kernels = [
        ("push/kernel", "bp_verb_push_kernel"),
        ("push/kernel", "bp_verb_push_kernel_strict"),
        ("push/blueflame", "bp_verb_push_blueflame"),
    ];
    for (kick, kernel) in kernels.into_iter().filter(|(kick, _)| bed.takes(path(kick))) {
        for (slot_bytes, bytes) in [(128u32, 20_000u64), (4096, 200_000), (8192, 400_000)] {
            let options = Options::default()
                .slot_bytes(slot_bytes)
                .window_bytes(SLOTS * u64::from(slot_bytes));
            let pair = bed.pair(path(kick), bytes as usize + 64, options);
            let sent = pattern(bytes, bytes as usize + 64);
            pair.src.write(0, &sent).unwrap();
            for (from, to, cut) in [(0, 0, 0), (16, 32, 16), (4, 8, 20), (3, 5, 1)] {
                pair.dst.write(0, &vec![0; sent.len()]).unwrap();
                let what = format!("{kernel}, slots of {slot_bytes}, {from} to {to}");
                for _ in 0..SLOTS {
                    let mut before = op(&pair, Verb::Put, Scope::Block, 64);
                    before.flags = DEFER_RING | UNSIGNALLED;
                    before.remote_offset = to;
                    assert_eq!(bed.launch(kernel, (1, 160), before), [OK], "{what}, before");
                }
                let mut call = op(&pair, Verb::Put, Scope::Block, bytes - cut);
                (call.local, call.remote_offset, call.quiet_after) = (call.local + from, to, 1);
                assert_eq!(bed.launch(kernel, (1, 160), call), [OK], "{what}");
                let [from, to, n] = [from, to, bytes - cut].map(|n| n as usize);
                let mut wanted = vec![0; sent.len()];
                wanted[to..to + n].copy_from_slice(&sent[from..from + n]);
                assert_same(&read(&pair.dst, 0, sent.len()), &wanted, &what);
            }
            assert!(pair.a.failure().is_none(), "{kernel}, {slot_bytes}");
        }
    }
}

#[test]
fn both_directions_at_once() {
    let bed = TestBed::fibres();
    for path in bed.paths() {
        let pair = bed.pair(path, 8192, Options::default());
        let (a, b) = (pattern(3, 8192), pattern(4, 8192));
        pair.src.write(0, &a).unwrap();
        pair.dst.write(0, &b).unwrap();
        pair.a.put(&bed.stream, message(1, 4097, 3001)).unwrap();
        pair.b.put(&bed.stream, message(5, 4099, 3003)).unwrap();
        pair.a.quiet(&bed.stream).unwrap();
        pair.b.quiet(&bed.stream).unwrap();
        assert_same(&read(&pair.dst, 4097, 3001), &a[1..3002], "there");
        assert_same(&read(&pair.src, 4099, 3003), &b[5..3008], "back");
    }
}

#[test]
fn a_signal_counts_and_comes_after_its_data() {
    let bed = TestBed::fibres();
    for path in bed.paths() {
        let pair = bed.pair(path, REGION, Options::default());
        let sent = pattern(5, REGION);
        pair.src.write(0, &sent).unwrap();
        set_word(&pair.dst, REGION - 8, 1000);
        let last = REGION as u64 - 8;
        for (n, bytes) in [1u64, 220, 4097, 100_001].into_iter().enumerate() {
            pair.a
                .put(&bed.stream, Put { signal: signal(last, 1 << n), ..message(9, 33, bytes) })
                .unwrap();
            pair.a.quiet(&bed.stream).unwrap();
            assert_eq!(word(&pair.dst, REGION - 8), 1000 + (2 << n) - 1, "{path}");
            let found = read(&pair.dst, 33, bytes as usize);
            assert_same(&found, &sent[9..9 + bytes as usize], &format!("{path}, {bytes} bytes"));
        }
    }
}

#[test]
fn get_and_atomics_on_every_rdma_path_and_none_on_tcp() {
    let bed = TestBed::fibres();
    for path in bed.paths() {
        let pair = bed.pair(path, REGION, Options::default());
        let (ep, stream) = (&pair.a, &bed.stream);
        if path == Path::TCP {
            let refused = |r| matches!(r, Err(Error::Unsupported { .. }));
            assert!(refused(ep.get(stream, Get { from: Remote(0), to: Local(0), bytes: 8 })));
            assert!(refused(
                ep.fetch_add(stream, FetchAdd { word: Remote(0), add: 1, old: Local(0) })
            ));
            assert!(refused(ep.compare_swap(
                stream,
                CompareSwap { word: Remote(0), compare: 1, swap: 2, old: Local(0) }
            )));
            continue;
        }
        let there = pattern(6, REGION);
        let mut here = pattern(7, REGION);
        pair.dst.write(0, &there).unwrap();
        pair.src.write(0, &here).unwrap();
        for (local, remote, bytes) in [(1, 2, 1), (7, 33, 221), (5, 4095, 4097), (9, 1, 150_003)] {
            ep.get(
                stream,
                Get { from: Remote(remote as u64), to: Local(local as u64), bytes: bytes as u64 },
            )
            .unwrap();
            ep.quiet(stream).unwrap();
            here[local..local + bytes].copy_from_slice(&there[remote..remote + bytes]);
            assert_same(&read(&pair.src, 0, REGION), &here, &format!("{path}: get {bytes}"));
        }
        set_word(&pair.dst, 64, u64::MAX - 1);
        for (n, old) in [(3, u64::MAX - 1), (5, 1), (0, 6)] {
            ep.fetch_add(stream, FetchAdd { word: Remote(64), add: n, old: Local(128) }).unwrap();
            ep.quiet(stream).unwrap();
            assert_eq!(word(&pair.src, 128), old, "{path}: fetch_add");
        }
        for (compare, swap, old, new) in [(6, 99, 6, 99), (6, 1, 99, 99), (99, 0, 99, 0)] {
            ep.compare_swap(
                stream,
                CompareSwap { word: Remote(64), compare, swap, old: Local(136) },
            )
            .unwrap();
            ep.quiet(stream).unwrap();
            assert_eq!((word(&pair.src, 136), word(&pair.dst, 64)), (old, new), "{path}: swap");
        }
        assert!(ep.failure().is_none());
    }
}

#[test]
fn ranges_and_empty_messages_are_refused_before_anything_is_queued() {
    let bed = TestBed::fibres();
    let eight = message(0, 0, 8);
    for path in bed.paths() {
        let pair = bed.pair(path, 4096, Options::default());
        let (ep, stream) = (&pair.a, &bed.stream);
        let told = |put| ep.put(stream, put).unwrap_err();
        assert!(matches!(told(Put { bytes: 0, ..eight }), Error::Empty));
        let local = told(Put { from: Local(4000), bytes: 97, ..eight });
        assert!(matches!(local, Error::Range { which: "local", offset: 4000, .. }), "{path}");
        let remote = told(Put { to: Remote(u64::MAX), bytes: 2, ..eight });
        assert!(matches!(remote, Error::Range { which: "remote", .. }), "{path}");
        let word = told(Put { signal: signal(4089, 1), ..eight });
        assert!(matches!(word, Error::Misaligned { offset: 4089 }), "{path}: {word}");
        let word = told(Put { signal: signal(4096, 1), ..eight });
        assert!(matches!(word, Error::Range { which: "remote", .. }), "{path}: {word}");
        let word = ep.fetch_add(stream, FetchAdd { word: Remote(4), add: 1, old: Local(0) });
        assert!(matches!(word, Err(Error::Misaligned { offset: 4 })), "{path}: {word:?}");
        let swap = CompareSwap { word: Remote(8), compare: 0, swap: 1, old: Local(4089) };
        let old = ep.compare_swap(stream, swap);
        assert!(matches!(old, Err(Error::Range { which: "local", .. })), "{path}: {old:?}");
        pair.a.quiet(stream).unwrap();
        put(&bed, &pair, 0, 4000, 96); // and it still works
    }
}

/// An endpoint without a peer says so, one with a peer takes no other, and each path wants its own kind.
#[test]
fn an_endpoint_connects_once_and_to_its_own_kind() {
    let bed = TestBed::fibres();
    let end = |path| Endpoint::new(&bed.gpu, &bed.nic, path, bed.memory(64), Options::default());
    let eight = message(0, 0, 8);
    for path in bed.paths() {
        let (mut a, mut b) = (end(path).unwrap(), end(path).unwrap());
        assert!(matches!(a.put(&bed.stream, eight), Err(Error::NotConnected)), "{path}");
        let device = a.device().err();
        match path.posted_by_gpu() {
            true => assert!(matches!(device, Some(Error::NotConnected)), "{path}: {device:?}"),
            false => assert!(matches!(device, Some(Error::Unsupported { .. })), "{path}"),
        }
        let other = if path == Path::TCP { path_of_a_nic(&bed) } else { Path::TCP };
        let stranger = end(other).unwrap();
        let refused = a.connect(stranger.address()).unwrap_err();
        assert!(matches!(refused, Error::OtherLink { .. }), "{path}: {refused}");
        a.connect(b.address()).unwrap();
        b.connect(a.address()).unwrap();
        a.put(&bed.stream, eight).unwrap();
        // What was sent there was not waited for, and would be forgotten.
        let again = a.connect(b.address());
        assert!(matches!(again, Err(Error::AlreadyConnected)), "{path}: {again:?}");
        a.quiet(&bed.stream).unwrap();
    }
}

fn path_of_a_nic(bed: &TestBed) -> Path {
    bed.paths().find(|&path| path != Path::TCP).unwrap()
}

/// An address comes from elsewhere: its region must end before addresses do.
#[test]
fn a_peers_region_that_no_addresses_name_is_refused() {
    let bed = TestBed::fibres();
    for path in bed.paths() {
        let end = || {
            Endpoint::new(&bed.gpu, &bed.nic, path, bed.memory(4096), Options::default()).unwrap()
        };
        let (mut a, mut b) = (end(), end());
        let good = b.address();
        for (iova, bytes) in [(u64::MAX - 100, 4096), (1, u64::MAX)] {
            let refused = a.connect(Address { iova, bytes, ..good });
            assert!(matches!(refused, Err(Error::PeerRegion { .. })), "{path}: {refused:?}");
        }
        a.connect(good).unwrap();
        b.connect(a.address()).unwrap();
        a.put(&bed.stream, message(0, 1024, 64)).unwrap();
        a.quiet(&bed.stream).unwrap();
    }
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let bed = TestBed::fibres();
    let refused = |path: Path, options: Options| {
        let made = Endpoint::new(&bed.gpu, &bed.nic, path, bed.memory(64), options);
        match made.err() {
            Some(Error::Option { what, .. }) => what,
            other => panic!("{path}: {other:?}"),
        }
    };
    let default = Options::default;
    for path in bed.paths() {
        for sq_blocks in [0, 63, 100, 32768, 65536] {
            assert!(refused(path, default().sq_blocks(sq_blocks)).contains("queue"));
        }
        let none = Duration::ZERO;
        assert!(refused(path, default().timeout(none)).contains("timeout"));
        if !path.has_window() {
            continue;
        }
        for slot_bytes in [0, 1, 63, 65, 4095] {
            assert!(refused(path, default().slot_bytes(slot_bytes)).contains("slot"));
        }
        for window_bytes in [0, 4095, 2 << 30] {
            assert!(refused(path, default().window_bytes(window_bytes)).contains("window"));
        }
        let tiny = default().slot_bytes(64).window_bytes(64 * 32769);
        if path.kick() == Some(Kick::Inband) {
            // An atomic's 64 bytes do not fit beside the sequences, whatever the line.
            for line in LINES {
                let slot = default().slot_bytes(64).line(line);
                assert!(refused(path, slot).contains("slot"), "{line:?}");
            }
        } else {
            assert!(refused(path, tiny).contains("window"));
        }
    }
    for (data, kick) in [(Data::Pull, Kick::Inband), (Data::Staged, Kick::Blueflame)] {
        assert!(Path::new(data, kick).is_err());
    }
}

#[test]
fn windows_of_one_slot_and_of_every_slot_size() {
    let bed = TestBed::fibres();
    for path in bed.paths().filter(|p| p.has_window()) {
        for slot_bytes in [64u32, 128, 256, 4096] {
            let inband = path.kick() == Some(Kick::Inband);
            if inband && slot_bytes == 64 {
                continue;
            }
            for slots in [1u32, 3] {
                let window_bytes = u64::from(slots * slot_bytes);
                let options = Options::default().window_bytes(window_bytes).slot_bytes(slot_bytes);
                let pair = bed.pair(path, 1 << 14, options);
                let sent = pattern(u64::from(slot_bytes + slots), 1 << 14);
                pair.src.write(0, &sent).unwrap();
                let bytes = 3 * slot_bytes as usize + 5;
                // Many at once, more than the window holds.
                for k in 0..5 {
                    pair.a.put(&bed.stream, message(k, 100 + k, bytes as u64)).unwrap();
                }
                pair.a.put(&bed.stream, Put { signal: signal(0, 1), ..message(3, 77, 1) }).unwrap();
                pair.a.quiet(&bed.stream).unwrap();
                let what = format!("{path}, {slots} slots of {slot_bytes}");
                let found = read(&pair.dst, 104, bytes);
                assert_same(&found, &sent[4..4 + bytes], &what);
                assert_eq!((word(&pair.dst, 0), read(&pair.dst, 77, 1)[0]), (1, sent[3]), "{what}");
                let used = pair.a.max_credits_in_use().unwrap();
                // What fits into a WQE needs no slot with BlueFlame.
                let least = u32::from(path.kick() != Some(Kick::Blueflame) || bytes > 220);
                assert!((least..=slots).contains(&used), "{what}: {used} credits in use");
            }
        }
    }
}

#[test]
fn inband_sequences_wrap_around() {
    let bed = TestBed::fibres();
    if !bed.takes(path("push/inband")) {
        return;
    }
    let near_end = |line| if line == LineFormat::L14S2 { 65533 } else { u32::MAX - 3 };
    for line in LINES {
        for slots in [1, 2, 5] {
            let inband_seq0 = near_end(line);
            let window_bytes = 128 * slots;
            let options = Options::default()
                .window_bytes(window_bytes)
                .slot_bytes(128)
                .line(line)
                .inband_seq0(inband_seq0);
            let pair = bed.pair(path("push/inband"), 8192, options);
            let sent = pattern(slots, 8192);
            pair.src.write(0, &sent).unwrap();
            let mut wanted = vec![0; 8192];
            // Sizes change, so that a slot's last lines are of laps long ago.
            for n in 0..60usize {
                let bytes = [1, 44, 5, 300, 64, 2, 17][n % 7];
                let (local, remote) = (n * 3 % 1000, n * 97 % 7000);
                pair.a
                    .put(&bed.stream, message(local as u64, remote as u64, bytes as u64))
                    .unwrap();
                wanted[remote..remote + bytes].copy_from_slice(&sent[local..local + bytes]);
                if n.is_multiple_of(11) {
                    pair.a
                        .fetch_add(
                            &bed.stream,
                            FetchAdd { word: Remote(8184), add: 1, old: Local(8184) },
                        )
                        .unwrap();
                }
            }
            pair.a.quiet(&bed.stream).unwrap();
            wanted[8184] = 6;
            let what = format!("{line:?}, {slots} slots");
            assert_same(&read(&pair.dst, 0, 8192), &wanted, &what);
        }
    }
}

/// A whole cycle of the 16-bit sequence on one slot: 65,535 laps, and the restart twice.
#[test]
fn a_short_sequence_goes_round_twice() {
    // On the engine as a kernel, `inband` of the NIC's tests has it stepped: 66,000 round trips between two spinning
    // threads take minutes where processors are few.
    let bed = TestBed::fibres();
    if ON_GPU_ENGINE || !bed.takes(path("push/inband")) {
        return;
    }
    let options = Options::default()
        .window_bytes(128)
        .slot_bytes(128)
        .line(LineFormat::L14S2)
        .inband_seq0(65533)
        .timeout(Duration::from_secs(150));
    let bytes = 66_000 * 64; // 64 bytes a slot
    let pair = bed.pair(path("push/inband"), bytes, options);
    let sent = pattern(11, bytes);
    pair.src.write(0, &sent).unwrap();
    put(&bed, &pair, 0, 0, bytes);
    assert_same(&read(&pair.dst, 0, bytes), &sent, "two rounds");
}

/// More slots than the send queue has blocks: the CQ must have room for all of their completions.
#[test]
fn an_inband_window_may_be_deeper_than_the_send_queue() {
    let bed = TestBed::fibres();
    if !bed.takes(path("push/inband")) {
        return;
    }
    let options = Options::default().sq_blocks(64).slot_bytes(128);
    let pair = bed.pair(path("push/inband"), 1 << 16, options);
    let sent = pattern(12, 1 << 16);
    pair.src.write(0, &sent).unwrap();
    let mut op = op(&pair, Verb::Put, Scope::Block, 8);
    (op.count, op.local_stride, op.remote_stride, op.quiet_after) = (3000, 16, 16, 1);
    assert_eq!(bed.launch("bp_verb_push_inband_12_4", (1, 1), op), [OK]);
    for at in (0..48_000).step_by(16) {
        assert_eq!(read(&pair.dst, at, 8), sent[at..at + 8]);
    }
}

/// Without credits a slot is written again before the NIC has read it: that this is seen shows that
/// the tests above would see it.
#[test]
fn without_credits_slots_are_overwritten() {
    let bed = TestBed::fibres();
    for credits in [true, false] {
        let options = Options::default().window_bytes(4 * 64).slot_bytes(64).credits(credits);
        let pair = bed.pair(path("push/kernel"), 4096, options);
        let sent = pattern(13, 4096);
        pair.src.write(0, &sent).unwrap();
        let mut op = op(&pair, Verb::Put, Scope::Block, 64);
        (op.count, op.local_stride, op.remote_stride) = (16, 64, 64);
        (op.flags, op.quiet_after) = (DEFER_RING, 1);
        assert_eq!(bed.launch("bp_verb_push_kernel", (1, 32), op), [OK]);
        let found = read(&pair.dst, 0, 1024);
        assert_eq!(found == sent[..1024], credits, "credits: {credits}");
        assert_eq!(pair.a.max_credits_in_use().unwrap(), if credits { 4 } else { 16 });
    }
}
