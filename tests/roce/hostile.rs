//! Packets from a peer that means harm.

#[path = "../../fuzz/checks/session.rs"]
mod sessions;
#[path = "../../fuzz/checks/stream.rs"]
mod streams;

use proptest::prelude::*;

use sessions::session;
use streams::stream;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_session_is_survived(input in prop::collection::vec(any::<u8>(), 0..1500)) {
        session(&input);
    }

    /// Sessions of well-formed requests: more of them get far.
    #[test]
    fn sessions_of_requests_are_survived(
        kind in 0u8..5,
        ops in prop::collection::vec((0u8..0x18, 0u8..64, any::<u16>(), any::<u8>()), 1..60),
    ) {
        let mut input = vec![kind];
        for (code, flags, addr, bytes) in ops {
            let service = [0, 0, 0x20, 0x60, 0xa0][usize::from(kind)];
            input.extend([0, code | service, 0, flags & 0x33]);
            input.extend((addr % 4000).to_le_bytes());
            input.extend([bytes, 0, bytes, 0, bytes, 0]);
        }
        session(&input);
    }
}

/// What `./x fuzz session` has found worth keeping.
#[test]
fn the_corpus_is_survived() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/session");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        println!("{}", path.display()); // shown when the check fails
        session(&std::fs::read(path).unwrap());
        count += 1;
    }
    assert!(count > 40, "{count} sessions");
}

#[test]
fn a_session_does_something() {
    // SEND ONLY of 256 bytes into a receive: post one, send one.
    let receive = [6, 0xff, 3, 0, 0];
    let send = [0, 4, 0, 1, 0, 0, 0];
    let outcome = session(&[&[0][..], &receive, &send].concat());
    assert_eq!((outcome.sent, outcome.responses, outcome.received), (1, 1, 1), "{outcome:?}");
    assert_eq!((outcome.dropped, outcome.failed), (0, false));
    // To an SRQ of XRC, with the opcode of XRC.
    let xrc = [0, 0xa4, 0, 1, 0, 0, 0];
    let outcome = session(&[&[4][..], &receive, &xrc].concat());
    assert_eq!((outcome.sent, outcome.responses, outcome.received), (1, 1, 1), "{outcome:?}");
    // A window is bound and then written through: a UMR, and a WRITE ONLY of 256 bytes.
    let bind = [5, 9, 0, 0, 0, 0x90, 1];
    let write = [0, 0x0a, 0, 0x09, 0, 0, 0];
    let outcome = session(&[&[0][..], &bind, &write].concat());
    assert_eq!((outcome.completed, outcome.responses), (1, 1), "{outcome:?}");
    assert_eq!((outcome.dropped, outcome.failed), (0, false));
    let outcome = session(&[&[0][..], &write].concat());
    assert!(outcome.failed, "control: the window is not bound, {outcome:?}");
    // The same with a wrong ICRC.
    let send = [0, 4, 0, 1, 0, 0, 200];
    let outcome = session(&[&[0][..], &receive, &send].concat());
    assert_eq!((outcome.responses, outcome.received, outcome.dropped), (0, 0, 1), "{outcome:?}");
}

/// The check looks: a packet that is wrong in one thing counts as refused, and the same without does not.
#[test]
fn what_has_to_be_refused_is() {
    let receive = [6, 0xff, 3, 0, 0];
    let [send, write, read, add] = [4, 0x0a, 0x0c, 0x14];
    // Kind of queue pair, and the packet, after the byte that says it is one.
    let wrong: [(&str, u8, &[u8]); 13] = [
        ("ICRC", 0, &[send, 0, 1, 0, 0, 200]),
        ("address", 0, &[send, 0, 1, 0, 0, 201]),
        ("address, UC", 2, &[0x20 + send, 0, 1, 0, 0, 201]),
        ("partition", 0, &[send, 0, 0xf9, 0x34, 0x12, 0, 0, 8, 0, 0]),
        ("service", 0, &[0x20 + send, 0, 1, 0, 0, 0]),
        ("queue key", 3, &[0x60 + send, 0, 0x81, 0, 0, 0]),
        ("length of a first packet", 0, &[0, 0, 0x31, 0, 0, 8, 0, 0]),
        ("more than the first packet says", 0, &[write, 0, 0x41, 0, 0, 100, 0, 0]),
        ("less than the first packet says", 0, &[write, 0, 0x41, 0, 0, 44, 1, 0]),
        ("key", 0, &[write, 0, 0x0d, 1, 2, 3, 4, 0, 0, 0]),
        ("end", 0, &[write, 0, 1, 0xa0, 0x0f, 0]),
        ("end of a READ", 0, &[read, 0, 0x41, 0xa0, 0x0f, 200, 0, 0]),
        ("alignment", 0, &[add, 0, 1, 0, 0, 0]),
    ];
    for (what, kind, packet) in wrong {
        let outcome = session(&[&[kind][..], &receive, &[0], packet].concat());
        assert_eq!((outcome.sent, outcome.refused), (1, 1), "{what}: {outcome:?}");
        assert_eq!((outcome.delivered, outcome.fetched), (0, 0), "{what}: {outcome:?}");
    }
    let right: [(u8, &[u8]); 5] = [
        (0, &[send, 0, 1, 0, 0, 0]),
        (2, &[0x20 + send, 0, 1, 0, 0, 0]),
        (0, &[write, 0, 0x41, 0, 0, 0, 1, 0]),
        (0, &[read, 0, 0x41, 0, 0, 200, 0, 0]),
        (0, &[add, 0, 0x41, 8, 0, 0]),
    ];
    for (kind, packet) in right {
        let outcome = session(&[&[kind][..], &receive, &[0], packet].concat());
        assert_eq!(
            (outcome.refused, outcome.dropped, outcome.failed),
            (0, 0, false),
            "{packet:x?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_stream_of_wqes_is_survived(input in prop::collection::vec(any::<u8>(), 0..800)) {
        stream(&input);
    }
}

#[test]
fn a_stream_does_something() {
    for packets in [0, 1] {
        // Of each opcode one that is right, and one with each fault that it can have.
        let mut input = vec![packets];
        for opcode in 0..7 {
            for fault in (0..12u8).map(|n| if n == 11 { 0 } else { 132 + n }) {
                input.extend([0, opcode, fault, 100, 0, 8, 0, 16, 0]);
                input.extend([0; 16]);
            }
        }
        let outcomes: Vec<_> =
            input[1..].chunks(25 * 12).map(|part| stream(&[&[packets], part].concat())).collect();
        let carried: u64 = outcomes.iter().map(|outcome| outcome.carried).sum();
        let refused: u64 = outcomes.iter().map(|outcome| outcome.refused).sum();
        assert_eq!((carried + refused, refused), (84, 57), "{outcomes:?}");
    }
}
