//! WRITEs that continue each other, which the NIC may carry out as one copy: nothing but
//! the time may tell.

use std::sync::Arc;

use crate::queue_pairs::{Buf, Pair, attr, inline, pattern, syndromes};
use bellpush::nic::{Access, Nic, QpState, QueuePair};
use bellpush::wire::Iova;
use bellpush::wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush::wire::wqe::{Flags, Opcode, SendWr};
use proptest::prelude::*;

const UNSIGNALLED: Flags = Flags { cq_update: false, solicited: false, fence: false };
const BYTES: usize = 1 << 16;
/// Rows are coalesced where much was moved before them.
const BEFORE: u32 = 64 << 10;

fn pair() -> Pair {
    let mut p = Pair::new(&attr());
    p.a.buf = Buf::new(&p.nics[0], BYTES + BEFORE as usize, 0, Access::ALL);
    p.b.buf = Buf::new(&p.nics[1], BYTES, 0, Access::ALL);
    p.a.buf.put(0, &pattern(BYTES, 7));
    p
}

/// Posts writes of `bytes` from one place to another behind a long one, and rings once.
fn post(p: &mut Pair, writes: &[(u64, u64, u32, bool)]) {
    let before = Buf::new(&p.nics[1], BEFORE as usize, 1 << 40, Access::ALL);
    let payload = [p.a.buf.data(BYTES as u64, BEFORE)];
    let wr = SendWr::new(Opcode::RdmaWrite).to(before.at(0), before.mr.rkey).payload(&payload);
    p.a.host.sq.post(&SendWr { flags: UNSIGNALLED, ..wr }).unwrap();
    for &(from, to, bytes, signal) in writes {
        let payload = [p.a.buf.data(from, bytes)];
        let flags = if signal { Flags { cq_update: true, ..UNSIGNALLED } } else { UNSIGNALLED };
        let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(to), p.b.buf.mr.rkey);
        p.a.host.sq.post(&SendWr { flags, ..wr }.payload(&payload)).unwrap();
    }
    p.a.host.sq.ring().unwrap();
    p.settle();
}

fn counters(cqes: &[Cqe]) -> Vec<u16> {
    assert!(cqes.iter().all(|c| c.opcode == CqeOpcode::Req), "{cqes:?}");
    cqes.iter().map(|c| c.wqe_counter - 1).collect() // the long one is 0
}

#[test]
fn a_row_arrives_whole_and_each_of_it_completes() {
    let mut p = pair();
    let row: Vec<_> =
        (0..40).map(|i| (i * 600, 100 + i * 600, 600, i % 3 == 2 || i == 39)).collect();
    post(&mut p, &row);
    let signalled: Vec<u16> = (0..40).filter(|i| i % 3 == 2 || *i == 39).collect();
    assert_eq!(counters(&p.sent()), signalled);
    assert_eq!(p.b.buf.get(100, 24_000), p.a.buf.get(0, 24_000));
    assert_eq!((p.b.buf.get(99, 1), p.b.buf.get(24_100, 1)), (vec![0], vec![0]));
    let seen = p.nics[0].counters();
    assert_eq!((seen.wqes, seen.bytes), (41, 24_000 + u64::from(BEFORE)));
}

#[test]
fn what_runs_out_of_the_region_fails_alone_after_those_before_it() {
    let mut p = pair();
    let end = BYTES as u64;
    let row: Vec<_> = (0..6).map(|i| (i * 1000, end - 3500 + i * 1000, 1000, true)).collect();
    post(&mut p, &row);
    let cqes = p.sent();
    assert_eq!(counters(&cqes[..3]), [0, 1, 2]);
    let flushed = Some(Syndrome::WrFlush);
    assert_eq!(syndromes(&cqes[3..]), [Some(Syndrome::RemoteAccess), flushed, flushed]);
    assert_eq!(cqes[3].wqe_counter, 4);
    assert_eq!(p.b.buf.get(BYTES - 3500, 3000), p.a.buf.get(0, 3000));
    assert_eq!(p.b.buf.get(BYTES - 500, 500), [0; 500]);
    assert_eq!(p.a.qp.state(), QpState::Err);
}

#[test]
fn a_local_region_that_ends_in_a_row_fails_alone_too() {
    let mut p = pair();
    let end = (BYTES as u64) + u64::from(BEFORE);
    post(&mut p, &[(end - 150, 0, 100, true), (end - 50, 100, 100, true), (0, 200, 100, true)]);
    let cqes = p.sent();
    assert_eq!(counters(&cqes[..1]), [0]);
    let flushed = Some(Syndrome::WrFlush);
    assert_eq!(syndromes(&cqes[1..]), [Some(Syndrome::LocalProt), flushed]);
    assert_eq!(p.b.buf.get(0, 100), p.a.buf.get(end as usize - 150, 100));
    assert_eq!(p.b.buf.get(100, 200), [0; 200]);
}

#[test]
fn other_requests_between_writes_keep_their_place() {
    let mut p = pair();
    let data = [0x5a; 8];
    let (own, other) = (p.b.buf.at(0), p.b.buf.mr.rkey);
    for i in 0..3u64 {
        let payload = [p.a.buf.data(i * 64, 64)];
        let to = p.b.buf.at(i * 64);
        let write = SendWr::new(Opcode::RdmaWrite).to(to, other).payload(&payload);
        p.a.host.sq.post(&write).unwrap();
        // Over what came just before: it must not be overtaken.
        let over = inline(&data);
        let write = SendWr::new(Opcode::RdmaWrite).to(own, other).payload(&over);
        p.a.host.sq.post(&write).unwrap();
    }
    p.a.host.sq.ring().unwrap();
    p.settle();
    assert_eq!(p.sent().len(), 6);
    assert_eq!(p.b.buf.get(0, 8), data);
    assert_eq!(p.b.buf.get(8, 184), p.a.buf.get(8, 184));
}

/// Each WRITE but the first takes along what the one before it wrote.
#[test]
fn a_row_that_reads_what_it_wrote_goes_one_by_one() {
    let mut p = pair();
    let view = p.a.buf.view.clone();
    let mr = p.nics[1].register(Arc::new(view.clone()), Iova(0), Access::ALL).unwrap();
    p.b.buf = Buf { view, mr };
    let row: Vec<_> = (0..20).map(|i| (i * 600, (i + 1) * 600, 600, i == 19)).collect();
    let first = p.a.buf.get(0, 600);
    post(&mut p, &row);
    assert_eq!(counters(&p.sent()), [19]);
    assert_eq!(p.a.buf.get(0, 21 * 600), first.repeat(21));
}

proptest! {
    /// Any row does what its writes do one after the other.
    #[test]
    fn a_row_does_what_its_writes_do(
        writes in prop::collection::vec((0u64..4000, 0u64..4000, 1u32..20_000, any::<bool>(), 0u8..4), 1..30),
    ) {
        let mut p = pair();
        let mut model = vec![0; BYTES];
        let source = p.a.buf.get(0, BYTES);
        let mut row: Vec<(u64, u64, u32, bool)> = Vec::new();
        for (from, to, bytes, signal, kind) in writes {
            // Mostly where the last one ended, at one end or at both.
            let (next_from, next_to) = row.last().map_or((from, to), |w| {
                (w.0 + u64::from(w.2), w.1 + u64::from(w.2))
            });
            let from = if kind == 3 { from } else { next_from };
            let to = if kind == 2 { to } else { next_to };
            let fits = |at: u64| at as usize + bytes as usize <= BYTES;
            if !fits(from) || !fits(to) {
                continue;
            }
            let n = bytes as usize;
            model[to as usize..][..n].copy_from_slice(&source[from as usize..][..n]);
            row.push((from, to, bytes, signal));
        }
        post(&mut p, &row);
        let signalled: Vec<u16> =
            row.iter().enumerate().filter(|(_, w)| w.3).map(|(i, _)| i as u16).collect();
        prop_assert_eq!(counters(&p.sent()), signalled);
        prop_assert!(p.b.buf.get(0, BYTES) == model);
        prop_assert_eq!(p.nics[0].counters().wqes, row.len() as u64 + 1);
    }
}
