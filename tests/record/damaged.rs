//! Recordings that are damaged in one place, which is no end of theirs.

use crate::play::{Made, PLAIN, read, recorded};
use crate::queue_pairs::pattern;
use bellpush::nic::soft::record::{self, End, Following};
use bellpush::wire::wqe::{Opcode, SendWr};

const BYTES: u32 = 100_000;

/// What the sender of so many messages recorded, with their payload.
fn sent(messages: u64) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (mut p, files) = recorded(dir.path(), Made { whole: true, ..PLAIN });
    for round in 0..messages {
        p.a.buf.put(0, &pattern(BYTES as usize, round));
        let payload = [p.a.buf.data(0, BYTES)];
        let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey);
        p.a.host.send(&wr.payload(&payload)).unwrap();
        assert!(p.run_until(2_000_000_000, |p| !p.sent().is_empty()));
    }
    drop(p);
    read(&files[0])
}

#[track_caller]
fn refused(damaged: &[u8]) {
    let played = record::replay(damaged.to_vec());
    assert!(played.is_err(), "{played:?}");
    assert!(record::show(damaged.to_vec(), &mut std::io::sink()).is_err());
    assert!(record::formats(damaged.to_vec(), &mut |_| true).is_err());
    let mut following = Following::default();
    let mut fed = damaged.chunks(64 << 10).map(|part| following.feed(part, &mut |_| true));
    assert!(fed.any(|fed| fed.is_err()));
}

#[test]
fn a_length_beyond_the_end_is_damage_where_much_follows() {
    let bytes = sent(15);
    let data = pattern(BYTES as usize, 0);
    let at = bytes.windows(64).position(|part| part == &data[..64]).unwrap();
    assert!(at < bytes.len() / 10 && bytes.len() - at > 2 << 20, "{at} of {}", bytes.len());
    // The two bytes before it say how many the NIC read there.
    let mut damaged = bytes.clone();
    damaged[at - 2..at + 2].copy_from_slice(&[0xff, 0xff, 0xff, 0x7f]);
    refused(&damaged);
    // Where the file ends soon, its program was ended, as far as anybody can tell.
    for bytes in [&bytes, &damaged] {
        let End::Stops { unread } = record::replay(bytes[..at + 100].to_vec()).unwrap().end else {
            panic!("it stops");
        };
        assert!((103..120).contains(&unread), "{unread}");
    }
}

#[test]
fn nothing_follows_the_end() {
    let bytes = sent(1);
    assert_eq!(record::replay(bytes.clone()).unwrap().end, End::Same);
    // What ends before the first call is a recording, and what ends sooner is none.
    let is_one = |&at: &usize| record::replay(bytes[..at].to_vec()).is_ok();
    let first = (18..bytes.len()).find(is_one).unwrap();
    assert_eq!(bytes[first], 0, "a call");
    let mut damaged = bytes.clone();
    damaged[first] = *bytes.last().unwrap();
    refused(&damaged);
    refused(&[&bytes[..], &[0]].concat());
    let mut following = Following::default();
    assert!(following.feed(&bytes, &mut |_| true).unwrap() && following.is_closed());
    assert!(following.feed(&[], &mut |_| true).is_ok());
    assert!(following.feed(&[0], &mut |_| true).is_err());
}
