use super::*;

const A: Who = Who { connection: 0, side: 0 };

fn model() -> Model {
    Model::new((0..64).collect(), vec![0; 64])
}

fn copy(from: usize, to: usize, bytes: usize) -> Effect {
    let (from, to) = (Place { memory: 0, at: from }, Place { memory: 1, at: to });
    Effect::Copy { from, to, bytes }
}

fn add(at: usize, value: u64) -> Effect {
    Effect::Word { at: Place { memory: 1, at }, change: Change::Add(value), old: None }
}

/// The control: every single wrong byte is seen, wherever it is.
#[test]
fn each_wrong_byte_is_seen() {
    let mut model = model();
    model.apply(A, &[copy(8, 16, 20)]);
    model.settle(A);
    let mut right = vec![0u8; 64];
    right[16..36].copy_from_slice(&(8..28).collect::<Vec<u8>>());
    assert_eq!(model.compare(1, 0, &right), None);
    for at in 0..64 {
        let mut seen = right.clone();
        seen[at] ^= 1;
        let found = model.compare(1, 0, &seen).expect("a difference");
        assert_eq!((found.at, found.bytes, found.wrong), (at, 1, 1));
        assert_eq!((found.expected[0], found.seen[0]), (right[at], seen[at]));
    }
}

#[test]
fn after_an_end_bytes_are_old_or_new_and_others_are_as_ever() {
    let seen_with = |changes: &[(usize, u8)]| {
        let mut model = model();
        model.apply(A, &[copy(8, 16, 4), copy(32, 18, 4)]);
        let mut seen = vec![0u8; 64];
        changes.iter().for_each(|&(at, byte)| seen[at] = byte);
        let found = model.compare_ended(0, (1, 0), &seen, [true; 2]);
        assert_eq!(model.compare(1, 0, &seen), None, "what was seen is what there is");
        found.map(|found| found.at)
    };
    assert_eq!(seen_with(&[]), None);
    assert_eq!(seen_with(&[(16, 8), (19, 11)]), None);
    assert_eq!(seen_with(&[(18, 32), (19, 11)]), None, "of the second, not all of the first");
    assert_eq!(seen_with(&[(16, 9)]), Some(16), "a byte of another place");
    assert_eq!(seen_with(&[(22, 1)]), Some(22), "behind what was put");
}

#[test]
fn a_word_is_one_of_its_values_and_tells_of_what_lies_before_it() {
    let told = |in_order, word: u64, data: &[(usize, u8)]| {
        let mut model = model();
        model.apply(A, &[copy(8, 16, 2), add(40, 0x1_0000_0001), copy(12, 17, 2), add(40, 5)]);
        let mut seen = vec![0u8; 64];
        seen[40..48].copy_from_slice(&word.to_ne_bytes());
        data.iter().for_each(|&(at, byte)| seen[at] = byte);
        model.compare_ended(0, (1, 0), &seen, [in_order, true]).map(|found| found.at)
    };
    assert_eq!(told(true, 0, &[]), None);
    assert_eq!(told(true, 0x1_0000_0001, &[(16, 8), (17, 9)]), None);
    assert_eq!(told(true, 0x1_0000_0001, &[(16, 8), (17, 12)]), None, "the next has begun");
    assert_eq!(told(true, 0x1_0000_0001, &[(16, 8)]), Some(17), "the signal, not its data");
    assert_eq!(told(false, 0x1_0000_0001, &[(16, 8)]), None);
    assert_eq!(told(true, 0x1_0000_0006, &[(16, 8), (17, 9)]), Some(17));
    assert_eq!(told(true, 0x1_0000_0006, &[(16, 8), (17, 12), (18, 13)]), None);
    assert_eq!(told(true, 1, &[]), Some(40), "half of an addition");
}

#[test]
fn what_is_pending_is_in_the_way_of_what_it_touches() {
    let mut model = model();
    model.apply(A, &[copy(8, 16, 4)]);
    let b = Who { side: 1, ..A };
    let back = |from, to| {
        let (from, to) = (Place { memory: 1, at: from }, Place { memory: 0, at: to });
        Effect::Copy { from, to, bytes: 4 }
    };
    let way = |who, effect, in_order| !model.in_the_way(who, &[effect], in_order).is_empty();
    assert!(!way(A, copy(8, 18, 4), true), "again to the same place, in order");
    assert!(way(A, copy(8, 18, 4), false));
    assert!(!way(A, back(16, 0), true), "fetched behind the put");
    assert!(way(A, back(0, 9), true), "into what may still be read");
    assert!(!way(A, back(0, 12), true));
    assert!(way(b, back(17, 40), true), "by the other end");
    assert!(model.is_pending(A) && !model.is_pending(b) && !model.is_peer_writing(A));
    model.settle(A);
    assert!(model.in_the_way(b, &[back(17, 8)], true).is_empty() && !model.is_pending(A));
    // What the other end fetches lands where this one puts.
    model.apply(b, &[copy(0, 50, 4)]);
    assert!(model.is_peer_writing(A) && !model.is_peer_writing(b));
}

/// Behind a call that gave up the soak's own kernels post all the same. The other end's order stays.
#[test]
fn an_end_without_order_leaves_the_others_order() {
    let b = Who { side: 1, ..A };
    let back = |at| [Place { memory: 1, at: 8 }, Place { memory: 0, at }];
    let seen_at_a = |in_order| {
        let mut model = model();
        let [from, to] = back(16);
        let word =
            Effect::Word { at: Place { memory: 0, at: 40 }, change: Change::Set(7), old: None };
        model.apply(b, &[Effect::Copy { from, to, bytes: 4 }, word]);
        let mut seen: Vec<u8> = (0..64).collect();
        seen[40..48].copy_from_slice(&7u64.to_ne_bytes());
        model.compare_ended(0, (0, 0), &seen, in_order).map(|found| found.at)
    };
    assert_eq!(seen_at_a([true, true]), Some(16), "the word, not its data");
    assert_eq!(seen_at_a([false, true]), Some(16));
    assert_eq!(seen_at_a([true, false]), None);
}
