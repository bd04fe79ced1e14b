//! The checks of the bootstrap, on inputs of all kinds.

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..Default::default() })]

    #[test]
    fn anything_that_is_said_is_survived(input in prop::collection::vec(any::<u8>(), 0..300)) {
        run(&input);
    }
}

/// What `./x fuzz bootstrap` has found worth keeping.
#[test]
fn the_corpus_is_survived() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/bootstrap");
    let mut all = Outcome::default();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        println!("{}", path.display()); // shown when the check fails
        let outcome = run(&std::fs::read(path).unwrap());
        all.heard += outcome.heard;
        all.refused += outcome.refused;
        all.exchanges += outcome.exchanges;
    }
    assert!(all.heard > 20 && all.refused > 20 && all.exchanges > 5, "{all:?}");
}

/// The check looks: frames are heard, an exchange comes about, a rank is seated.
#[test]
fn what_is_right_is_taken() {
    let frames = run(&[0, 0, 2, 3, 1, 2, 3, 0, 0, 0]);
    assert_eq!((frames.heard, frames.refused), (2, 0), "{frames:?}");
    let exchange = run(&[1, 0, 1, 2, 8, 8, 1, 5, 0, 1, 6, 0]);
    assert_eq!((exchange.exchanges, exchange.refused), (1, 0), "{exchange:?}");
    let seated = run(&[2, 1, 2, 0, 1, 0, 2]);
    assert_eq!((seated.heard, seated.refused), (2, 0), "{seated:?}");
    let stranger = run(&[2, 1, 2, 0x60, 1, 0x80, 2, 0]);
    assert_eq!((stranger.heard, stranger.refused), (0, 2), "{stranger:?}");
    // A bit of the rank is another in a greeting that is proven: 1 becomes 3, and 5 becomes 1.
    let another = run(&[2, 2, 2, 0x51, 1, 20, 0x52, 5, 20]);
    assert_eq!((another.heard, another.refused), (2, 0), "{another:?}");
    // Rank 1 becomes 5, of which there is none, and a bit of the number of ranks is another.
    let none = run(&[2, 2, 2, 0x52, 1, 20, 0x51, 1, 24]);
    assert_eq!((none.heard, none.refused), (0, 2), "{none:?}");
}

/// What ranks say goes in one frame: rank 0 takes no more than that, from all of them together, and names the first
/// that says more.
#[test]
fn ranks_say_no_more_together_than_a_frame_holds() {
    let half = MAX_FRAME / 2 + 1;
    let (mut one, first) = pair();
    let (mut two, second) = pair();
    let lines = vec![Line::new(first, keys(1)), Line::new(second, keys(2))];
    let says = std::thread::spawn(move || {
        let mut rank = Line::new(one.try_clone().unwrap(), mirrored(keys(1)));
        rank.send(DATA, &vec![0; half], Instant::now() + SOON).unwrap();
        one.read_exact(&mut [0; HEAD]).unwrap(); // why it ended
    });
    two.write_all(&[&[DATA][..], &(half as u32).to_le_bytes()].concat()).unwrap();
    let mut root = Bootstrap::over(lines, (0, 3), SOON);
    let error = root.all_gather(b"").unwrap_err();
    let why = std::io::ErrorKind::InvalidData;
    assert!(
        matches!(&error, BootstrapError::Lost { rank: 2, source } if source.kind() == why),
        "{error}"
    );
    says.join().unwrap();
}

/// A frame of nothing but lengths of 0 is no exchange of two ranks; nobody takes memory for each of them.
#[test]
fn more_parts_than_ranks_are_refused() {
    let (there, here) = pair();
    let mut root = Line::new(there, mirrored(keys(1)));
    root.send(DATA, &[0; 12], Instant::now() + SOON).unwrap();
    let mut rank = Bootstrap::over(vec![Line::new(here, keys(1))], (1, 2), SOON);
    let error = rank.all_gather(b"").unwrap_err();
    assert!(matches!(error, BootstrapError::Lost { rank: 0, .. }), "{error}");
}
