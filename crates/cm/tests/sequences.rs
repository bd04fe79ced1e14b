//! Sequences of calls and messages (`./x fuzz cm`).

#[path = "../../../fuzz/checks/cm/mod.rs"]
mod check;

use proptest::prelude::*;

use check::run;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_sequence_is_survived(input in prop::collection::vec(any::<u8>(), 0..1500)) {
        run(&input);
    }
}

/// What `./x fuzz cm` has found worth keeping.
#[test]
fn the_corpus_is_survived() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/cm");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        println!("{}", path.display()); // shown when the check fails
        run(&std::fs::read(path).unwrap());
        count += 1;
    }
    assert!(count > 40, "{count} sequences");
}

/// The check looks: connections come about, and end.
#[test]
fn a_sequence_does_something() {
    let (ask, deliver, answer, end) = ([8, 0, 0, 0, 1, 0], [29, 0, 0], [21], [15, 0, 0]);
    let (by, of) = ([0, 0, 1, 0], [1, 0, 1, 0]);
    let all =
        [&[0][..], &ask, &deliver, &answer, &of, &deliver, &answer, &by, &deliver, &end, &deliver];
    let outcome = run(&all.concat());
    assert_eq!((outcome.established, outcome.ended), (1, 1), "{outcome:?}");
    let ask = [40, 0, 0, 0, 1, 0];
    let all = [&[0][..], &ask, &deliver, &answer, &of, &deliver];
    let outcome = run(&all.concat());
    assert_eq!(outcome.datagrams, 1, "{outcome:?}");
}
