//! What the software NIC does with well-formed work requests.

use crate::queue_pairs::{self, Buf, Pair, attr, inline, pattern};
use bellpush::mem::Dma;
use bellpush::nic::{Access, Nic, QpState, QueuePair};
use bellpush::wire::cqe::CqeOpcode;
use bellpush::wire::wqe::{Flags, MAX_WQE_BYTES, Opcode, Operands, Piece, SendWr};

const UNSIGNALLED: Flags = Flags { cq_update: false, solicited: false, fence: false };

#[test]
fn a_write_arrives_and_completes() {
    let mut p = Pair::new(&attr());
    let data = pattern(5000, 1);
    p.a.buf.put(100, &data);
    let payload = [p.a.buf.data(100, 5000)];
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(777), p.b.buf.mr.rkey).payload(&payload);
    let cqes = p.send(&wr);
    assert_eq!(cqes.len(), 1);
    assert_eq!((cqes[0].opcode, cqes[0].wqe_counter), (CqeOpcode::Req, 0));
    assert_eq!((cqes[0].qpn, cqes[0].send_opcode), (p.a.qp.qpn(), 8));
    assert_eq!(p.b.buf.get(777, 5000), data);
    assert_eq!(p.b.buf.get(776, 1), [0]);
    assert_eq!(p.b.buf.get(5777, 1), [0]);
    assert!(p.received().is_empty());
}

#[test]
fn inline_and_gathered_pieces_join_in_order() {
    let mut p = Pair::new(&attr());
    p.a.buf.put(0, &pattern(300, 2));
    let (x, y) = ([1, 2, 3], [9; 30]);
    let payload =
        [Piece::Inline(&x), p.a.buf.data(0, 100), Piece::Inline(&y), p.a.buf.data(200, 7)];
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    assert_eq!(p.send(&wr).len(), 1);
    let expected = [&x[..], &p.a.buf.get(0, 100), &y, &p.a.buf.get(200, 7)].concat();
    assert_eq!(p.b.buf.get(0, 140), expected);
}

#[test]
fn the_longest_inline_wraps_round_the_ring() {
    let mut p = Pair::new(&attr());
    for round in 0..40 {
        let data = pattern(MAX_WQE_BYTES - 36, round);
        let payload = inline(&data);
        let to = p.b.buf.at(round);
        let wr = SendWr::new(Opcode::RdmaWrite).to(to, p.b.buf.mr.rkey).payload(&payload);
        // 16 blocks and then 1, so that every position of the ring is a start.
        assert_eq!(p.send(&wr).len(), 1, "round {round}");
        assert_eq!(p.b.buf.get(round as usize, data.len()), data);
        assert_eq!(p.send(&SendWr::new(Opcode::Nop)).len(), 1);
    }
}

#[test]
fn a_send_scatters_over_a_receive() {
    let mut p = Pair::new(&attr());
    let data = pattern(200, 3);
    p.a.buf.put(0, &data);
    let entries = [p.b.buf.sge(1000, 50), p.b.buf.sge(2000, 100), p.b.buf.sge(3000, 100)];
    p.b.host.rq.post(&entries).unwrap();
    let payload = [p.a.buf.data(0, 70), p.a.buf.data(70, 130)];
    let wr = SendWr { imm: 0xdead_beef, ..SendWr::new(Opcode::SendImm) }.payload(&payload);
    assert_eq!(p.send(&wr)[0].opcode, CqeOpcode::Req);
    let got = p.received();
    assert_eq!(got.len(), 1);
    assert_eq!((got[0].opcode, got[0].byte_cnt), (CqeOpcode::RespSendImm, 200));
    assert_eq!((got[0].imm, got[0].wqe_counter, got[0].qpn), (0xdead_beef, 0, p.b.qp.qpn()));
    let arrived = [(1000, 50), (2000, 100), (3000, 50)].map(|(at, n)| p.b.buf.get(at, n));
    assert_eq!(arrived.concat(), data);
    assert_eq!(p.b.buf.get(3050, 50), [0; 50]);
}

#[test]
fn solicited_is_passed_on_and_an_empty_send_needs_no_entry() {
    let mut p = Pair::new(&attr());
    p.b.host.rq.post(&[]).unwrap();
    let flags = Flags { solicited: true, ..Flags::SIGNALLED };
    assert_eq!(p.send(&SendWr { flags, ..SendWr::new(Opcode::Send) }).len(), 1);
    let got = p.received();
    assert_eq!((got[0].opcode, got[0].byte_cnt), (CqeOpcode::RespSend, 0));
    assert!(got[0].solicited);
}

#[test]
fn a_write_with_immediate_consumes_a_receive() {
    let mut p = Pair::new(&attr());
    p.b.host.rq.post(&[]).unwrap();
    let payload = inline(b"hello");
    let wr = SendWr { imm: 7, ..SendWr::new(Opcode::RdmaWriteImm) };
    let wr = wr.to(p.b.buf.at(64), p.b.buf.mr.rkey).payload(&payload);
    assert_eq!(p.send(&wr).len(), 1);
    let got = p.received();
    assert_eq!((got[0].opcode, got[0].byte_cnt, got[0].imm), (CqeOpcode::RespWrImm, 5, 7));
    assert_eq!(p.b.buf.get(64, 5), b"hello");
}

#[test]
fn a_read_scatters() {
    let mut p = Pair::new(&attr());
    let data = pattern(1000, 4);
    p.b.buf.put(50, &data);
    let payload = [p.a.buf.data(0, 300), p.a.buf.data(5000, 700)];
    let wr = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(50), p.b.buf.mr.rkey).payload(&payload);
    let cqes = p.send(&wr);
    assert_eq!((cqes[0].opcode, cqes[0].byte_cnt), (CqeOpcode::Req, 1000));
    assert_eq!([p.a.buf.get(0, 300), p.a.buf.get(5000, 700)].concat(), data);
}

#[test]
fn atomics_are_in_the_machines_order_and_return_the_old_value() {
    let mut p = Pair::new(&attr());
    p.b.buf.put(16, &1000u64.to_ne_bytes());
    let split = [p.a.buf.data(0, 3), p.a.buf.data(100, 5)];
    let wr = |opcode, swap_add, compare| {
        let atomic = Some(Operands { swap_add, compare });
        SendWr { atomic, ..SendWr::new(opcode) }.to(p.b.buf.at(16), p.b.buf.mr.rkey)
    };
    let ops = [
        (wr(Opcode::AtomicFa, 5, 0), 1000u64, 1005u64),
        (wr(Opcode::AtomicCs, 42, 1004), 1005, 1005),
        (wr(Opcode::AtomicCs, 42, 1005), 1005, 42),
        (wr(Opcode::AtomicFa, u64::MAX, 0), 42, 41),
    ];
    for (wr, old, new) in ops {
        assert_eq!(p.send(&wr.payload(&split))[0].byte_cnt, 8);
        let got = [p.a.buf.get(0, 3), p.a.buf.get(100, 5)].concat();
        assert_eq!(got, old.to_ne_bytes());
        assert_eq!(p.b.buf.get(16, 8), new.to_ne_bytes());
    }
}

#[test]
fn empty_messages_complete_without_a_look_at_keys() {
    let mut p = Pair::new(&attr());
    for opcode in [Opcode::Nop, Opcode::RdmaWrite, Opcode::RdmaRead] {
        assert_eq!(p.send(&SendWr::new(opcode))[0].opcode, CqeOpcode::Req);
    }
    assert_eq!(p.a.qp.state(), QpState::Rts);
}

#[test]
fn only_signalled_requests_complete_visibly_and_one_completion_frees_all_before() {
    let mut p = Pair::new(&attr());
    let payload = inline(&[1; 8]);
    let to = p.b.buf.at(0);
    let wr = SendWr::new(Opcode::RdmaWrite).to(to, p.b.buf.mr.rkey).payload(&payload);
    for i in 0..64 {
        let flags = if i == 63 { Flags::SIGNALLED } else { UNSIGNALLED };
        p.a.host.sq.post(&SendWr { flags, ..wr }).unwrap();
    }
    assert_eq!(p.a.host.sq.free(), 0);
    assert!(p.a.host.sq.post(&wr).is_err());
    p.a.host.sq.ring().unwrap();
    p.settle();
    let cqes = p.sent();
    assert_eq!(cqes.iter().map(|c| c.wqe_counter).collect::<Vec<_>>(), [63]);
    assert_eq!(p.a.host.sq.free(), 64);
    assert_eq!(p.nics[0].counters().wqes, 64);
    assert_eq!(p.nics[0].counters().bytes, 64 * 8);
}

#[test]
fn counters_of_16_bits_wrap() {
    let mut p = Pair::new(&attr());
    for round in 0..70_000u32 / 32 {
        for i in 0..32 {
            let flags = if i == 31 { Flags::SIGNALLED } else { UNSIGNALLED };
            p.a.host.sq.post(&SendWr { flags, ..SendWr::new(Opcode::Nop) }).unwrap();
        }
        p.a.host.sq.ring().unwrap();
        p.settle();
        let last = (round * 32 + 31) as u16;
        assert_eq!(p.sent().iter().map(|c| c.wqe_counter).collect::<Vec<_>>(), [last]);
    }
}

#[test]
fn a_zero_based_window_is_gathered_from_by_offset() {
    let mut p = Pair::new(&attr());
    let dm = p.nics[0].alloc_dm(4096).unwrap();
    assert_eq!(dm.is_some(), queue_pairs::ON_GPU_ENGINE, "only an engine on a GPU has memory");
    let window = Buf::new(&p.nics[0], 4096, 0, Access::NONE);
    assert_eq!(window.mr.iova.0, 0);
    let data = pattern(64, 9);
    window.put(512, &data);
    let sge = bellpush::wire::wqe::Sge {
        addr: bellpush::wire::Iova(512),
        lkey: window.mr.lkey,
        bytes: 64,
    };
    let payload = [Piece::Data(sge)];
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    assert_eq!(p.send(&wr)[0].opcode, CqeOpcode::Req);
    assert_eq!(p.b.buf.get(0, 64), data);
}

#[test]
fn a_prepared_request_is_rung_by_whoever_stores_the_bell() {
    let mut p = Pair::new(&attr());
    let payload = inline(b"stream");
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    let (index, bell) = p.a.host.sq.prepare(&wr).unwrap();
    assert_eq!(index, 0);
    let q = p.a.qp.queues().clone();
    q.dbr.write((bell.dbr_addr - q.dbr.addr()) as usize, &bell.dbr.to_ne_bytes()).unwrap();
    p.run_for(10_000);
    assert!(p.sent().is_empty(), "a record alone rings nobody");
    q.uar.write((bell.uar_addr - q.uar.addr()) as usize, &bell.uar.to_ne_bytes()).unwrap();
    p.settle();
    assert_eq!(p.sent().len(), 1);
    assert_eq!(p.b.buf.get(0, 6), b"stream");
}

#[test]
fn a_busy_queue_pair_does_not_hold_up_another() {
    let mut p = Pair::new(&bellpush::nic::QpAttr { sq_blocks: 1024, send_cqes: 1024, ..attr() });
    let (other, _memory) = queue_pairs::make_qp(&p.nics[0], &attr());
    other.connect(p.b.qp.address()).unwrap();
    let mut host = bellpush::nic::queue::HostQp::new(&*other);
    for _ in 0..1000 {
        p.a.host.sq.post(&SendWr::new(Opcode::Nop)).unwrap();
    }
    p.a.host.sq.ring().unwrap();
    host.send(&SendWr::new(Opcode::Nop)).unwrap();
    p.step();
    assert!(host.poll_send().unwrap().is_some());
    let first = p.sent().len();
    assert!(first < 1000, "{first} completions in one step: there is no budget");
    p.settle();
    assert_eq!(first + p.sent().len(), 1000);
}
