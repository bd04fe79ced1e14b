//! Signals and values: what they do to the peer's memory, in which order, and how they are waited for.

use std::time::Duration;

use crate::test_bed::*;
use bellpush::abi::entry::{Cmp, OpArgs, Scope, Verb, Watch, WatchArgs};
use bellpush::transport::{Memory, Options};

const SCOPES: [Scope; 3] = [Scope::Thread, Scope::Warp, Scope::Block];

fn narrow() -> Options {
    Options::default().sq_blocks(64).window_bytes(8 * 128).slot_bytes(128)
}

/// Every kernel that the NIC can take, with a scope and the launch's size.
fn kernels(bed: &TestBed) -> Vec<(&'static str, &'static str, Scope, (u32, u32))> {
    let alone = EXTRA_ALONE.iter().map(|&(name, kernel)| (name, kernel, Scope::Block, (1, 45)));
    let shared = EXTRA_SHARED
        .iter()
        .flat_map(|&(name, kernel)| SCOPES.map(|scope| (name, kernel, scope, (2, 64))));
    alone.chain(shared).filter(|(name, ..)| bed.takes(path(name))).collect()
}

fn callers(scope: Scope, (grid, block): (u32, u32)) -> usize {
    (match scope {
        Scope::Thread => grid * block,
        Scope::Warp => grid * block / 32,
        Scope::Block => grid,
    }) as usize
}

/// Values of every length, at addresses of any kind, and nothing beside them.
#[test]
fn values_arrive_whole_and_alone() {
    let bed = TestBed::fibres();
    for (name, kernel, scope, dims) in kernels(&bed) {
        let callers = callers(scope, dims);
        for bytes in [1u64, 2, 4, 8, 16] {
            let (count, stride) = (21, 37);
            let all = callers * count * stride;
            // For the window's few slots all wait for each acknowledgement that an adversary loses.
            let pair = bed.pair(path(name), all, narrow().timeout(Duration::from_secs(25)));
            let mut call = op(&pair, Verb::PutValue, scope, bytes);
            (call.value, call.compare) = (0x8877_6655_4433_2211, 0x10ff_eedd_ccbb_aa99);
            (call.count, call.remote_stride, call.quiet_after) = (count as u32, stride as u64, 1);
            call.local = 0; // no memory of ours is read
            let what = format!("{kernel}, {scope:?}, {bytes} bytes");
            assert_eq!(bed.launch(kernel, dims, call), vec![OK; callers], "{what}");
            let value = [call.value.to_le_bytes(), call.compare.to_le_bytes()].concat();
            let mut wanted = vec![0; all];
            for place in wanted.chunks_mut(stride) {
                place[..bytes as usize].copy_from_slice(&value[..bytes as usize]);
            }
            assert_same(&read(&pair.dst, 0, all), &wanted, &what);
            assert!(pair.a.failure().is_none(), "{what}");
        }
        let pair = bed.pair(path(name), 4096, narrow());
        for (bytes, at) in [(8u64, 4089), (16, 4081), (1, 4096), (3, 0)] {
            let call =
                OpArgs { remote_offset: at, ..op(&pair, Verb::PutValue, Scope::Block, bytes) };
            assert_eq!(bed.launch(kernel, (1, 32), call), [INVALID], "{kernel}: {bytes} at {at}");
        }
    }
}

/// In-band lines of the other formats, over laps in which the count of sequences restarts.
#[test]
fn values_and_signals_in_lines_of_every_format() {
    let bed = TestBed::fibres();
    let formats = [
        ("bp_extra_push_inband_12_4", u32::MAX),
        ("bp_extra_push_inband_14_2", 0xffff),
        ("bp_extra_push_inband_60_4", u32::MAX),
    ];
    if !bed.takes(path("push/inband")) {
        return;
    }
    for (line, (kernel, last)) in LINES.into_iter().zip(formats) {
        for seq0 in [1, 2, last - 1] {
            let options = narrow().line(line).inband_seq0(seq0);
            for bytes in [2u64, 16] {
                let pair = bed.pair(path("push/inband"), 40 * 24 + 8, options.clone());
                let mut call = op(&pair, Verb::PutValue, Scope::Block, bytes);
                (call.value, call.compare) = (0x0807_0605_0403_0201, 0x100f_0e0d_0c0b_0a09);
                (call.count, call.remote_stride, call.quiet_after) = (40, 24, 1);
                let what = format!("{kernel}, from {seq0}");
                assert_eq!(bed.launch(kernel, (1, 32), call), [OK], "{what}");
                let value: Vec<u8> = (1..=bytes as u8).chain(bytes as u8..24).collect();
                let mut wanted = value.repeat(40);
                wanted.chunks_mut(24).for_each(|place| place[bytes as usize..].fill(0));
                assert_same(&read(&pair.dst, 0, 40 * 24), &wanted, &what);
                let set = OpArgs { remote_offset: 40 * 24, ..call };
                let set = OpArgs { op: Verb::SignalSet as u32, remote_stride: 0, ..set };
                assert_eq!(bed.launch(kernel, (1, 32), set), [OK], "{what}");
                assert_eq!(word(&pair.dst, 40 * 24), call.value, "{what}");
            }
        }
    }
}

/// A signal that is set stands at the value, one to which is added counts; both with their data before them, of one
/// slot and of several.
#[test]
fn signals_are_set_or_added_to_behind_their_data() {
    let bed = TestBed::fibres();
    for (name, kernel, scope, dims) in kernels(&bed) {
        let callers = callers(scope, dims);
        for bytes in [48u64, 304] {
            // Each caller's data, and the word for it right behind them.
            let stride = bytes as usize + 8;
            let pair = bed.pair(path(name), callers * stride, narrow());
            let sent = pattern(bytes, callers * stride);
            pair.src.write(0, &sent).unwrap();
            let what = format!("{kernel}, {scope:?}, {bytes} bytes");
            let each = |verb: Verb, at: u64, value: u64| {
                let mut call = op(&pair, verb, scope, bytes);
                (call.local_stride, call.remote_stride) = (stride as u64, stride as u64);
                (call.remote_offset, call.value, call.quiet_after) = (at, value, 1);
                assert_eq!(bed.launch(kernel, dims, call), vec![OK; callers], "{what}, {verb:?}");
            };
            let words = |wanted: u64| {
                let wrong =
                    (0..callers).find(|c| word(&pair.dst, c * stride + bytes as usize) != wanted);
                assert_eq!(wrong, None, "{what}: not all words are {wanted}");
            };
            each(Verb::SignalAdd, bytes, 5);
            each(Verb::SignalAdd, bytes, 3);
            words(8);
            each(Verb::SignalSet, bytes, 1 << 40);
            words(1 << 40);
            each(Verb::SignalSet, bytes, 2);
            words(2);
            // With data, one word for all of them.
            let mut call = op(&pair, Verb::PutSet, scope, bytes);
            (call.local_stride, call.remote_stride) = (stride as u64, stride as u64);
            (call.signal_offset, call.value) = (bytes, 77);
            assert_eq!(bed.launch(kernel, dims, call), vec![OK; callers], "{what}");
            let quiet = OpArgs { op: Verb::SignalAdd as u32, remote_stride: 0, ..call };
            let quiet = OpArgs { remote_offset: bytes, value: 0, quiet_after: 1, ..quiet };
            assert_eq!(bed.launch(kernel, dims, quiet), vec![OK; callers], "{what}");
            assert_eq!(word(&pair.dst, bytes as usize), 77, "{what}");
            for c in 0..callers {
                let (at, bytes) = (c * stride, bytes as usize);
                assert_same(&read(&pair.dst, at, bytes), &sent[at..at + bytes], &what);
            }
            assert!(pair.a.failure().is_none(), "{what}");
        }
    }
}

#[test]
fn words_that_cannot_be_set_are_refused() {
    let bed = TestBed::fibres();
    for (name, kernel, ..) in kernels(&bed) {
        let pair = bed.pair(path(name), 4096, narrow());
        for (verb, at, wanted) in [
            (Verb::SignalSet, 4089, INVALID),
            (Verb::SignalSet, 12, INVALID), // might arrive in halves
            (Verb::SignalAdd, 4089, INVALID),
            (Verb::PutSet, 12, INVALID),
            (Verb::SignalSet, 4088, OK),
            (Verb::PutSet, 4088, OK),
        ] {
            let mut call = op(&pair, verb, Scope::Block, 8);
            let word = if matches!(verb, Verb::PutSet) {
                &mut call.signal_offset
            } else {
                &mut call.remote_offset
            };
            *word = at;
            call.value = 9;
            assert_eq!(bed.launch(kernel, (1, 32), call), [wanted], "{kernel}: {verb:?} at {at}");
        }
    }
}

/// Data and the word that is set behind them are posted together, or neither is.
#[test]
fn a_put_of_one_slot_and_its_set_are_posted_together() {
    for (name, kernel) in
        EXTRA_ALONE.into_iter().chain(EXTRA_SHARED).filter(|k| k.0 != "push/blueflame")
    {
        let (bed, mut engine) = TestBed::manual();
        let options = narrow().timeout(Duration::from_millis(50));
        let pair = bed.pair(path(name), 4096, options);
        let room = if name.starts_with("pull") { 64 } else { 8 };
        pair.src.write(0, &pattern(3, 4096)).unwrap();
        let mut fill = op(&pair, Verb::SignalAdd, Scope::Block, 8);
        (fill.count, fill.remote_offset, fill.value) = (room - 1, 4088, 1);
        assert_eq!(bed.launch(kernel, (1, 32), fill), [OK], "{kernel}");
        let mut call = op(&pair, Verb::PutSet, Scope::Block, 48);
        (call.signal_offset, call.value) = (64, 1);
        // The send queue of a path with a window has room; the window has not.
        let takes_slots = !name.starts_with("pull");
        assert_eq!(bed.launch(kernel, (1, 32), call), [TIMEOUT], "{kernel}, slots: {takes_slots}");
        for now in 1..400 {
            engine.step(now * 1000);
        }
        assert_eq!((word(&pair.dst, 64), word(&pair.dst, 4088)), (0, u64::from(room) - 1));
        assert_eq!(read(&pair.dst, 0, 48), [0; 48], "{kernel}");
        assert_eq!(bed.launch(kernel, (1, 32), call), [OK], "{kernel}");
        for now in 400..800 {
            engine.step(now * 1000);
        }
        assert_eq!(word(&pair.dst, 64), 1, "{kernel}");
        assert_eq!(read(&pair.dst, 0, 48), pattern(3, 48), "{kernel}");
    }
}

/// What every caller of a look gets: its status, and what it found.
struct Look<'a> {
    bed: &'a TestBed,
    pair: &'a Pair,
    words: &'a Memory,
    skip: Option<&'a Memory>,
    n: u32,
}

impl Look<'_> {
    fn at(&self, watch: Watch, cmp: Cmp, scope: Scope, value: u64) -> Vec<(u32, Vec<u32>)> {
        let dims = (2, 48);
        let callers = match scope {
            Scope::Thread => 96,
            Scope::Warp => 3,
            Scope::Block => 2,
        };
        let each = (self.n as usize + 1) * 4;
        let statuses = self.bed.memory(96 * 4);
        let found = self.bed.memory(96 * each);
        found.write(0, &vec![0xff; 96 * each]).unwrap();
        let args = WatchArgs {
            ep: self.pair.a.device().unwrap(),
            watch: watch as u32,
            scope: scope as u32,
            cmp: cmp as u32,
            n: self.n,
            words: self.words.addr(),
            skip: self.skip.map_or(0, |skip| skip.addr()),
            value,
            found: found.addr(),
            status: statuses.addr(),
        };
        self.bed.run("bp_watch_signals", dims, &args);
        let status = read(&statuses, 0, callers * 4);
        let found = read(&found, 0, callers * each);
        let number = |w: &[u8]| u32::from_ne_bytes(w.try_into().unwrap());
        let of = |bytes: &[u8]| bytes.chunks_exact(4).map(number).collect::<Vec<_>>();
        of(&status).into_iter().zip(found.chunks_exact(each).map(of)).collect()
    }
}

/// Warps of 48 threads are three of two blocks' four: `global_thread() / 32` numbers them so.
fn statuses(found: &[(u32, Vec<u32>)]) -> Vec<u32> {
    let mut all: Vec<u32> = found.iter().map(|(status, _)| *status).collect();
    all.dedup();
    all
}

#[test]
fn words_compare_in_every_way() {
    let bed = TestBed::fibres();
    let pair = bed.pair(path("push/kernel"), 64, narrow().timeout(Duration::from_millis(5)));
    let words = bed.memory(64);
    set_word(&words, 0, 1 << 63);
    let look = Look { bed: &bed, pair: &pair, words: &words, skip: None, n: 1 };
    for (cmp, below, same, above) in [
        (Cmp::Eq, false, true, false),
        (Cmp::Ne, true, false, true),
        (Cmp::Gt, true, false, false),
        (Cmp::Ge, true, true, false),
        (Cmp::Lt, false, false, true),
        (Cmp::Le, false, true, true),
    ] {
        for (value, is) in [((1 << 63) - 1, below), (1 << 63, same), (u64::MAX, above)] {
            for scope in SCOPES {
                let test = statuses(&look.at(Watch::Test, cmp, scope, value));
                assert_eq!(test, [if is { OK } else { PENDING }], "{cmp:?} {value:#x} {scope:?}");
            }
            let wait = statuses(&look.at(Watch::Wait, cmp, Scope::Warp, value));
            assert_eq!(wait, [if is { OK } else { TIMEOUT }], "{cmp:?} {value:#x}");
        }
    }
}

#[test]
fn many_words_are_waited_for_at_once() {
    let bed = TestBed::fibres();
    let pair = bed.pair(path("push/kernel"), 64, narrow().timeout(Duration::from_millis(5)));
    for n in [1u32, 7, 8, 9, 32, 33, 100] {
        let (words, skip) = (bed.memory(8 * 128), bed.memory(4 * 128));
        let look = |with_skip: bool| Look {
            bed: &bed,
            pair: &pair,
            words: &words,
            skip: with_skip.then_some(&skip),
            n,
        };
        let there: Vec<u32> = (0..n).filter(|i| i % 3 == 2 || *i == n - 1).collect();
        for &i in &there {
            set_word(&words, i as usize * 8, 4);
        }
        let all_there = there.len() == n as usize;
        for scope in SCOPES {
            let what = format!("{n} words, {scope:?}");
            let all = statuses(&look(false).at(Watch::All, Cmp::Ge, scope, 4));
            assert_eq!(all, [if all_there { OK } else { TIMEOUT }], "{what}");
            for (status, found) in look(false).at(Watch::Any, Cmp::Ge, scope, 4) {
                assert_eq!((status, found[0]), (OK, there[0]), "{what}");
            }
            for (status, found) in look(false).at(Watch::Some, Cmp::Ge, scope, 4) {
                assert_eq!((status, found[0] as usize), (OK, there.len()), "{what}");
                assert_eq!(found[1..=there.len()], there, "{what}");
            }
            for (status, found) in look(false).at(Watch::Any, Cmp::Gt, scope, 4) {
                assert_eq!((status, found[0]), (TIMEOUT, n), "{what}");
            }
        }
        // All that are there are passed over: the others are not there.
        for i in 0..n {
            let value = u32::from(there.contains(&i));
            skip.write(i as usize * 4, &value.to_ne_bytes()).unwrap();
        }
        for scope in SCOPES {
            let what = format!("{n} words, some passed over, {scope:?}");
            let none_wanted = all_there;
            for (status, found) in look(true).at(Watch::Some, Cmp::Ge, scope, 4) {
                let wanted = (if none_wanted { OK } else { TIMEOUT }, 0);
                assert_eq!((status, found[0]), wanted, "{what}");
            }
            for (status, found) in look(true).at(Watch::Any, Cmp::Ge, scope, 4) {
                assert_eq!(
                    (status, found[0]),
                    (if none_wanted { OK } else { TIMEOUT }, n),
                    "{what}"
                );
            }
            let all = statuses(&look(true).at(Watch::All, Cmp::Lt, scope, 4));
            assert_eq!(all, [OK], "{what}");
        }
    }
}
