//! Copies that the NIC makes by itself.

use crate::queue_pairs::{Pair, attr, bad_key, pattern, syndromes};
use bellpush::mem::Dma;
use bellpush::nic::{Access, Change, QpType, QueuePair};
use bellpush::wire::cqe::{Cqe, Syndrome};
use bellpush::wire::mmo::MAX_COPY_BYTES;
use bellpush::wire::wqe::{Opcode, SendWr, Sge};

/// Posts a copy at A as libmlx5 does, settles, and takes A's completions.
fn copy(p: &mut Pair, from: Sge, to: Sge) -> Vec<Cqe> {
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
    p.settle();
    p.sent()
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
fn an_unreliable_connection_does_not_copy() {
    let mut p = Pair::typed(QpType::Uc, "", &attr(), &Change::default());
    let (from, to) = (p.a.buf.sge(0, 100), p.a.buf.sge(1000, 100));
    assert_eq!(syndromes(&copy(&mut p, from, to)), [Some(Syndrome::LocalQpOp)]);
}
