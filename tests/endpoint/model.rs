//! Sequences of random operations on random paths, against a model of both memories.

use std::sync::OnceLock;

use crate::test_bed::*;
use bellpush::transport::{CompareSwap, FetchAdd, Get, Kick, Local, Options, Path, Put, Remote};
use proptest::prelude::*;

const REGION: usize = 16 << 10;
/// The last words of a region are for atomics.
const WORDS: usize = REGION - 64;

#[derive(Debug, Clone, Copy)]
enum Op {
    Put { local: usize, remote: usize, bytes: usize },
    PutSignal { local: usize, remote: usize, bytes: usize, word: usize, value: u64 },
    Get { local: usize, remote: usize, bytes: usize },
    FetchAdd { word: usize, value: u64, result: usize },
    CompareSwap { word: usize, compare: u64, swap: u64, result: usize },
    Quiet,
}

/// Mostly small, now and then of many slots; never into the words.
fn range() -> impl Strategy<Value = (usize, usize, usize)> {
    let bytes = prop_oneof![4 => 1usize..300, 2 => 300usize..2000, 1 => 2000usize..9000];
    bytes.prop_flat_map(|bytes| (0..WORDS - bytes, 0..WORDS - bytes, Just(bytes)))
}

fn place() -> impl Strategy<Value = usize> {
    (0usize..8).prop_map(|n| WORDS + n * 8)
}

fn operation() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => range().prop_map(|(local, remote, bytes)| Op::Put { local, remote, bytes }),
        2 => (range(), place(), any::<u64>()).prop_map(|((local, remote, bytes), word, value)| {
            Op::PutSignal { local, remote, bytes, word, value }
        }),
        2 => range().prop_map(|(local, remote, bytes)| Op::Get { local, remote, bytes }),
        2 => (place(), any::<u64>(), place())
            .prop_map(|(word, value, result)| Op::FetchAdd { word, value, result }),
        // Few values, so that some comparisons hold.
        2 => (place(), 0u64..3, 0u64..3, place()).prop_map(|(word, compare, swap, result)| {
            Op::CompareSwap { word, compare, swap, result }
        }),
        1 => Just(Op::Quiet),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    let window = prop_oneof![Just((128u32, 1u64)), Just((128, 5)), Just((256, 8)), Just((4096, 2))];
    let seq0 = prop_oneof![Just(2u32), Just(65533), Just(u32::MAX - 3)];
    (window, 0usize..3, seq0).prop_map(|((slot_bytes, slots), line, inband_seq0)| {
        Options::default()
            .slot_bytes(slot_bytes)
            .window_bytes(slots * u64::from(slot_bytes))
            .line(LINES[line])
            .inband_seq0(if line == 1 { inband_seq0.min(65533) } else { inband_seq0 })
            .sq_blocks(64)
    })
}

/// Two memories, changed as the operations say, one after the other.
struct Model {
    src: Vec<u8>,
    dst: Vec<u8>,
}

fn at(memory: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(memory[offset..offset + 8].try_into().expect("eight bytes"))
}

impl Model {
    fn add(&mut self, word: usize, value: u64) -> u64 {
        let old = at(&self.dst, word);
        self.dst[word..word + 8].copy_from_slice(&old.wrapping_add(value).to_ne_bytes());
        old
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Put { local, remote, bytes } => {
                self.dst[remote..remote + bytes].copy_from_slice(&self.src[local..local + bytes]);
            }
            Op::PutSignal { local, remote, bytes, word, value } => {
                self.apply(Op::Put { local, remote, bytes });
                self.add(word, value);
            }
            Op::Get { local, remote, bytes } => {
                self.src[local..local + bytes].copy_from_slice(&self.dst[remote..remote + bytes]);
            }
            Op::FetchAdd { word, value, result } => {
                let old = self.add(word, value);
                self.src[result..result + 8].copy_from_slice(&old.to_ne_bytes());
            }
            Op::CompareSwap { word, compare, swap, result } => {
                let old = at(&self.dst, word);
                if old == compare {
                    self.dst[word..word + 8].copy_from_slice(&swap.to_ne_bytes());
                }
                self.src[result..result + 8].copy_from_slice(&old.to_ne_bytes());
            }
            Op::Quiet => {}
        }
    }
}

fn bed() -> &'static TestBed {
    static BED: OnceLock<TestBed> = OnceLock::new();
    BED.get_or_init(TestBed::fibres)
}

fn run(path: Path, options: Options, ops: &[Op]) {
    let bed = bed();
    if !bed.takes(path) {
        return;
    }
    let pair = bed.pair(path, REGION, options);
    let (a, stream) = (&pair.a, &bed.stream);
    let mut model = Model { src: pattern(1, REGION), dst: pattern(2, REGION) };
    model.dst[WORDS..].fill(0);
    pair.src.write(0, &model.src).unwrap();
    pair.dst.write(0, &model.dst).unwrap();
    let quiet = |model: &Model, n: usize| {
        a.quiet(stream).unwrap();
        assert_same(&read(&pair.dst, 0, REGION), &model.dst, &format!("{path}: op {n}, remote"));
        assert_same(&read(&pair.src, 0, REGION), &model.src, &format!("{path}: op {n}, local"));
    };
    for (n, &op) in ops.iter().enumerate() {
        let u = |v: usize| v as u64;
        let one_sided = matches!(op, Op::Get { .. } | Op::FetchAdd { .. } | Op::CompareSwap { .. });
        if one_sided && path == Path::TCP {
            continue;
        }
        model.apply(op);
        match op {
            Op::Put { local, remote, bytes } => {
                a.put(stream, message(u(local), u(remote), u(bytes))).unwrap();
            }
            Op::PutSignal { local, remote, bytes, word, value } => {
                let put = message(u(local), u(remote), u(bytes));
                a.put(stream, Put { signal: signal(u(word), value), ..put }).unwrap();
            }
            Op::Get { local, remote, bytes } => {
                let (from, to) = (Remote(u(remote)), Local(u(local)));
                a.get(stream, Get { from, to, bytes: u(bytes) }).unwrap();
            }
            Op::FetchAdd { word, value, result } => {
                let (word, old) = (Remote(u(word)), Local(u(result)));
                a.fetch_add(stream, FetchAdd { word, add: value, old }).unwrap();
            }
            Op::CompareSwap { word, compare, swap, result } => {
                let (word, old) = (Remote(u(word)), Local(u(result)));
                a.compare_swap(stream, CompareSwap { word, compare, swap, old }).unwrap();
            }
            Op::Quiet => quiet(&model, n),
        }
        // The source of a later put: what a get or an atomic brings must be there.
        if one_sided {
            quiet(&model, n);
        }
    }
    quiet(&model, ops.len());
    assert!(a.failure().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn both_memories_are_what_the_model_says(
        path in 0..Path::ALL.len(),
        options in options(),
        ops in prop::collection::vec(operation(), 1..40),
    ) {
        run(Path::ALL[path], options, &ops);
    }

    /// The paths with the most that can go wrong, more often.
    #[test]
    fn inband_and_blueflame_are_what_the_model_says(
        inband in any::<bool>(),
        options in options(),
        ops in prop::collection::vec(operation(), 1..60),
    ) {
        let kick = if inband { Kick::Inband } else { Kick::Blueflame };
        let found = Path::ALL.into_iter().find(|p| p.has_window() && p.kick() == Some(kick));
        run(found.expect("a path"), options, &ops);
    }
}
