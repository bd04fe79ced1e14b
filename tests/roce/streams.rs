//! Streams of an initiator of dynamic connections: an error ends one of them, and the others go on.

use crate::dc::{Dc, Initiator};
use crate::queue_pairs::{bad_key, pattern, syndromes};
use bellpush::nic::{NicError, QpState, QueuePair};
use bellpush::wire::cqe::Syndrome;
use bellpush::wire::wqe::{Datagram, Opcode, Piece, SendWr, Sge};
use bellpush::wire::{Iova, Rkey};

/// The initiator with streams.
const STREAMS: usize = 2;

/// Two targets, and an initiator that ends with so many streams in error.
fn dc(faults: &str, most_in_error: u32) -> Dc {
    let mut dc = Dc::new(faults);
    dc.from.push(Initiator::with(&dc.nics[0], |qp| qp.set_streams(most_in_error)));
    dc
}

/// What a posted request is to come to.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Good,
    /// A key that the target does not have.
    Stray,
    /// A local key that there is not.
    Mistake,
}

/// Posts a WRITE of 8 bytes to a slot of a target's memory, of a stream.
fn post(dc: &mut Dc, to: Datagram, (target, slot): (usize, u64), stream: u16, kind: Kind) {
    let (at, rkey) = (dc.to[target].buf.at(slot * 8), dc.to[target].buf.mr.rkey);
    let rkey = if kind == Kind::Stray { Rkey(rkey.0 ^ 0x100) } else { rkey };
    dc.buf.put(slot as usize * 8, &(slot + 1).to_ne_bytes());
    let good = [dc.buf.data(slot * 8, 8)];
    let nothing = [Piece::Data(Sge { addr: Iova(0), lkey: bad_key(), bytes: 8 })];
    let payload = if kind == Kind::Mistake { &nothing } else { &good };
    let wr = SendWr { stream, ..SendWr::new(Opcode::RdmaWrite) }.to(at, rkey).payload(payload);
    dc.post(STREAMS, to, &wr);
}

/// Posts all of that to a target, each into a slot of its own, and says what became of it.
fn burst(dc: &mut Dc, target: usize, of: &[(u16, Kind)]) -> Vec<Option<Syndrome>> {
    for (slot, &(stream, kind)) in of.iter().enumerate() {
        dc.to[target].buf.put(slot * 8, &[0; 8]);
        let to = dc.target(target);
        post(dc, to, (target, slot as u64), stream, kind);
    }
    dc.run(400_000);
    let cqes = dc.sent(STREAMS);
    for (slot, cqe) in cqes.iter().enumerate() {
        let wrote = dc.to[target].buf.get(slot * 8, 8) == (slot as u64 + 1).to_ne_bytes();
        assert_eq!(wrote, !cqe.opcode.is_error(), "{of:?}: {slot}");
    }
    syndromes(&cqes)
}

const OK: Option<Syndrome> = None;
const REMOTE: Option<Syndrome> = Some(Syndrome::RemoteAccess);
const LOCAL: Option<Syndrome> = Some(Syndrome::LocalProt);
const FLUSHED: Option<Syndrome> = Some(Syndrome::WrFlush);

#[test]
fn an_error_ends_its_stream_alone_until_that_is_reset() {
    use Kind::*;
    for (kind, error) in [(Stray, REMOTE), (Mistake, LOCAL)] {
        let mut dc = dc("", 4);
        let of = [(1, Good), (7, kind), (1, Good), (7, Good), (0xffff, Good), (7, kind), (1, Good)];
        let expected = [OK, error, OK, FLUSHED, OK, FLUSHED, OK];
        assert_eq!(burst(&mut dc, 0, &of), expected);
        let qp = dc.from[STREAMS].qp.clone();
        assert_eq!((qp.state(), dc.nics[0].next_event()), (QpState::Rts, None));
        // Whoever it is for, and however often.
        assert_eq!(burst(&mut dc, 1, &[(7, Good), (3, Good), (7, kind)]), [FLUSHED, OK, FLUSHED]);
        assert!(matches!(qp.reset_stream(3), Err(NicError::Attribute { value: 3, .. })));
        qp.reset_stream(7).unwrap();
        assert!(qp.reset_stream(7).is_err(), "twice");
        assert_eq!(burst(&mut dc, 0, &[(7, Good), (7, kind), (0, Good)]), [OK, error, OK]);
    }
}

#[test]
fn so_many_streams_in_error_end_the_queue_pair_and_reset_begins_anew() {
    use Kind::*;
    let mut dc = dc("", 3);
    let of = [(1, Stray), (2, Mistake), (9, Good), (3, Stray), (9, Good)];
    assert_eq!(burst(&mut dc, 0, &of), [REMOTE, LOCAL, OK, REMOTE, FLUSHED]);
    let qp = dc.from[STREAMS].qp.clone();
    assert_eq!(qp.state(), QpState::Err);
    assert!(matches!(qp.reset_stream(1), Err(NicError::State { .. })));
    qp.reset().unwrap();
    dc.from[STREAMS].host.begin_again(&*qp);
    dc.from[STREAMS].begin();
    let again = [(1, Good), (2, Stray), (3, Good), (4, Stray), (3, Good)];
    assert_eq!(burst(&mut dc, 0, &again), [OK, REMOTE, OK, REMOTE, OK]);
    // One at most, as without streams.
    dc.from[STREAMS] = Initiator::with(&dc.nics[0], |qp| qp.set_streams(1));
    assert_eq!(burst(&mut dc, 0, &[(1, Stray), (2, Good)]), [REMOTE, FLUSHED]);
}

#[test]
fn a_target_that_does_not_answer_fails_what_it_was_asked_for_by_streams() {
    let mut dc = dc("", 4);
    let (wrong, right) = (Datagram { key_low: 1, ..dc.target(0) }, dc.target(1));
    for (slot, (to, stream)) in
        [(wrong, 1), (wrong, 2), (wrong, 1), (right, 2), (right, 3)].into_iter().enumerate()
    {
        let target = usize::from(to == right);
        post(&mut dc, to, (target, slot as u64), stream, Kind::Good);
    }
    dc.run(200_000_000);
    let silent = Some(Syndrome::TransportRetryExc);
    assert_eq!(syndromes(&dc.sent(STREAMS)), [silent, silent, FLUSHED, FLUSHED, OK]);
    let qp = dc.from[STREAMS].qp.clone();
    assert_eq!(qp.state(), QpState::Rts);
    for stream in [1, 2] {
        qp.reset_stream(stream).unwrap();
    }
    assert_eq!(burst(&mut dc, 0, &[(1, Kind::Good), (2, Kind::Good)]), [OK, OK]);
}

#[test]
fn messages_behind_an_error_arrive_once_and_in_order_over_a_bad_link() {
    let mut dc = dc("loss=3%,dup=2%,reorder=2%,seed=5", 8);
    let (mut expected, mut got) = (vec![Vec::new(); 2], vec![Vec::new(); 2]);
    for round in 0..40u64 {
        let mut wanted = Vec::new();
        for i in 0..8u64 {
            // Streams 0 to 3, of which one meets an error somewhere in each round.
            let (stream, target) = ((i % 4) as u16, (round / 3 + i / 4) as usize % 2);
            let bad = i == round % 8;
            let after = (0..i).any(|j| j == round % 8 && j % 4 == i % 4);
            let data = pattern(1 + (round as usize * 97 + i as usize * 311) % 900, round * 8 + i);
            dc.buf.put(i as usize * 1024, &data);
            let payload = [dc.buf.data(i * 1024, data.len() as u32)];
            let rkey = Rkey(dc.to[target].buf.mr.rkey.0 ^ 0x100);
            let stray = SendWr::new(Opcode::RdmaWrite).to(dc.to[target].buf.at(0), rkey);
            let wr = if bad { stray } else { SendWr::new(Opcode::Send) };
            if !bad && !after {
                dc.to[target].post();
                expected[target].push(data.clone());
            }
            let to = dc.target(target);
            dc.post(STREAMS, to, &SendWr { stream, ..wr }.payload(&payload));
            wanted.push(if bad { REMOTE } else { after.then_some(Syndrome::WrFlush) });
        }
        let mut seen = Vec::new();
        for _ in 0..400 {
            dc.run(1_000_000);
            seen.extend(syndromes(&dc.sent(STREAMS)));
            if seen.len() >= wanted.len() {
                break;
            }
        }
        assert_eq!(seen, wanted, "round {round}");
        dc.from[STREAMS].qp.reset_stream((round % 4) as u16).unwrap();
        for (got, to) in got.iter_mut().zip(&mut dc.to) {
            got.extend(to.take().into_iter().map(|(_, bytes)| bytes));
        }
    }
    assert_eq!(got, expected);
}
