//! Copies that the NIC makes by itself.

use crate::queue_pairs::{A_IOVA, Buf, Pair, attr, bad_key, pattern, syndromes};
use bellpush::mem::Dma;
use bellpush::nic::{Access, Change, Nic, QpType, QueuePair};
use bellpush::wire::Iova;
use bellpush::wire::cqe::{Cqe, Syndrome};
use bellpush::wire::mmo::MAX_COPY_BYTES;
use bellpush::wire::wqe::{Opcode, SendWr, Sge};

/// Posts a copy at A as libmlx5 does, settles, and takes A's completions.
fn copy(p: &mut Pair, from: Sge, to: Sge) -> Vec<Cqe> {
    post(p, from, to);
    p.settle();
    p.sent()
}

fn post(p: &mut Pair, from: Sge, to: Sge) {
    let index = p.a.host.sq.post(&SendWr::new(Opcode::Nop)).unwrap();
    let mut wqe = [0; 64];
    wqe[0] = 1;
    wqe[1..3].copy_from_slice(&(index as u16).to_be_bytes());
    wqe[3] = 0x2f;
    wqe[4..8].copy_from_slice(&(p.a.qp.qpn().0 << 8 | 4).to_be_bytes());
    wqe[11] = 8;
    wqe[32..48].copy_from_slice(bytemuck::bytes_of(&from.emit()));
    wqe[48..64].copy_from_slice(bytemuck::bytes_of(&to.emit()));
    p.a.qp.queues().sq.write(index as usize % 64 * 64, &wqe).unwrap();
    p.a.host.sq.ring().unwrap();
}

fn pair() -> Pair {
    Pair::on_packets("", &attr(), &attr(), &Change::default())
}

#[test]
fn bytes_are_where_they_were_copied_to_before_the_completion() {
    let mut p = pair();
    let data = pattern(50_001, 1);
    p.a.buf.put(0, &data);
    let (from, to) = (p.a.buf.sge(0, 50_001), p.a.buf.sge(60_000, 50_001));
    let cqes = copy(&mut p, from, to);
    assert_eq!((cqes.len(), cqes[0].send_opcode, syndromes(&cqes)), (1, 0x2f, vec![None]));
    assert_eq!(p.a.buf.get(60_000, 50_002), [&data[..], &[0]].concat());
}

#[test]
fn a_copy_needs_its_keys_rights_and_lengths() {
    let protection = [Some(Syndrome::LocalProt)];
    for bad in 0..3 {
        let mut p = pair();
        p.a.buf.put(0, &[7; 100]);
        let (mut from, mut to) = (p.a.buf.sge(0, 100), p.a.buf.sge(1000, 100));
        let unwritable = crate::queue_pairs::Buf::new(&p.nics[0], 4096, 0x9_0000, Access::NONE);
        match bad {
            0 => from.lkey = bad_key(),
            1 => to = unwritable.sge(0, 100),
            _ => to = p.a.buf.sge(crate::queue_pairs::BUF_BYTES as u64 - 99, 100),
        }
        assert_eq!(syndromes(&copy(&mut p, from, to)), protection, "{bad}");
        assert_eq!(p.a.buf.get(1000, 100), [0; 100]);
        assert_eq!(unwritable.get(0, 100), [0; 100]);
    }
    for (from, to) in [(100, 99), (MAX_COPY_BYTES + 1, MAX_COPY_BYTES + 1), (0, 0)] {
        let mut p = pair();
        let (from, to) = (p.a.buf.sge(0, from), p.a.buf.sge(1000, to));
        assert_eq!(syndromes(&copy(&mut p, from, to)), [Some(Syndrome::LocalLength)]);
    }
}

#[test]
fn an_unreliable_queue_pair_does_not_copy() {
    let qkey = Some(0x1234);
    for (kind, with) in
        [(QpType::Uc, Change::default()), (QpType::Ud, Change { qkey, ..Change::default() })]
    {
        let mut p = Pair::typed(kind, "", &attr(), &with);
        p.a.buf.put(0, &[7; 100]);
        let (from, to) = (p.a.buf.sge(0, 100), p.a.buf.sge(1000, 100));
        assert_eq!(syndromes(&copy(&mut p, from, to)), [Some(Syndrome::LocalQpOp)], "{kind:?}");
        assert_eq!(p.a.buf.get(1000, 100), [0; 100], "{kind:?}");
    }
}

#[test]
fn what_overlaps_is_copied_as_it_was() {
    let mut p = pair();
    for bytes in [9, 4096, 50_000] {
        for (from, to) in [(1000, 1000), (1000, 1001), (1001, 1000), (1000, 1008), (1064, 1000)] {
            let data = pattern(bytes, 3);
            p.a.buf.put(from, &data);
            let sge = |at: usize| p.a.buf.sge(at as u64, bytes as u32);
            let (source, place) = (sge(from), sge(to));
            assert_eq!(syndromes(&copy(&mut p, source, place)), [None]);
            assert!(p.a.buf.get(to, bytes) == data, "{bytes} {from} {to}");
        }
    }
}

#[test]
fn ranges_that_wrap_or_leave_their_region_are_refused() {
    let end = crate::queue_pairs::BUF_BYTES as u64;
    for offset in [end, end - 99, u64::MAX - 0x10_0000, u64::MAX - 0x10_0000 - 50, u64::MAX] {
        for writes in [false, true] {
            let mut p = pair();
            let addr = Iova(A_IOVA.wrapping_add(offset));
            let (good, bad) = (p.a.buf.sge(0, 100), Sge { addr, ..p.a.buf.sge(0, 100) });
            let (from, to) = if writes { (good, bad) } else { (bad, good) };
            let cqes = copy(&mut p, from, to);
            assert_eq!(syndromes(&cqes), [Some(Syndrome::LocalProt)], "{offset:#x} {writes}");
        }
    }
}

#[test]
fn a_region_may_go_before_its_copy_comes() {
    for read_first in [false, true] {
        for writes in [false, true] {
            let mut p = pair();
            let gone = Buf::new(&p.nics[0], 4096, 0x9_0000, Access::ALL);
            let (good, bad) = (p.a.buf.sge(0, 100), gone.sge(0, 100));
            if read_first {
                // The copy waits until its response has come.
                let read = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(0), p.b.buf.mr.rkey);
                p.a.host.send(&read.payload(&[p.a.buf.data(8192, 100)])).unwrap();
            }
            let (from, to) = if writes { (good, bad) } else { (bad, good) };
            post(&mut p, from, to);
            if read_first {
                p.engines[0].step(1_000);
            }
            p.nics[0].deregister(gone.mr).unwrap();
            p.settle();
            let protection = Some(Syndrome::LocalProt);
            let expected = if read_first { vec![None, protection] } else { vec![protection] };
            assert_eq!(syndromes(&p.sent()), expected, "{read_first} {writes}");
        }
    }
}

/// The others of its engine wait no longer than for one.
#[test]
fn a_visit_copies_once() {
    let mut p = pair();
    let bytes = MAX_COPY_BYTES;
    let room = Buf::new(&p.nics[0], 2 * bytes as usize, 0x4000_0000, Access::ALL);
    let data = pattern(bytes as usize, 5);
    room.put(0, &data);
    (0..8).for_each(|_| post(&mut p, room.sge(0, bytes), room.sge(bytes.into(), bytes)));
    let mut done = 0;
    for _ in 0..100 {
        p.step();
        let now = p.sent();
        assert!(now.len() <= 1 && syndromes(&now).iter().all(Option::is_none));
        done += now.len();
    }
    assert_eq!(done, 8);
    assert!(room.get(bytes as usize, bytes as usize) == data);
}
