//! The checks, on inputs of all kinds.

use proptest::prelude::*;

use super::model::Kind;
use super::run;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_sequence_is_survived(input in prop::collection::vec(any::<u8>(), 0..1500)) {
        run(&input);
    }
}

/// What `./x fuzz uverbs` has found worth keeping.
#[test]
fn the_corpus_is_survived() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/uverbs");
    let mut count = 0;
    let mut kinds = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        println!("{}", path.display()); // shown when the check fails
        kinds |= run(&std::fs::read(path).unwrap()).kinds;
        count += 1;
    }
    assert!(count > 40, "{count} sequences");
    // A queue pair of DEVX wants two of its objects and a command of 300 bytes that agree; no input has found that yet.
    assert_eq!(kinds | 1 << Kind::DevxQp as u32, 0xffff, "objects of all other kinds are made");
}

/// The check looks: a queue pair is made, moved as far as it goes, and destroyed when it may be.
#[test]
fn a_sequence_does_something() {
    let cq = [2, 0, 3, 0, 0, 9, 0];
    let qp = [4, 0, 0, 0, 0, 0, 0, 0, 0, 16, 20, 0];
    let step = [16, 0, 0, 0, 1, 0, 0];
    let destroy_cq = [23, 2, 0, 0];
    let outcome = run(&[&[0][..], &cq, &qp, &step, &step, &step, &destroy_cq].concat());
    assert_eq!((outcome.made, outcome.moved, outcome.busy), (4, 3, 1), "{outcome:?}");
    assert_eq!((outcome.destroyed, outcome.refused), (4, 1), "{outcome:?}");
}
