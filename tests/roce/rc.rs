//! Reliable connections over packets, on a link that does no harm: every operation, size and path
//! MTU.

use crate::queue_pairs::{Pair, attr, inline, pattern};
use bellpush::nic::{Change, Mtu, QpAttr, QpState, QueuePair};
use bellpush::wire::cqe::CqeOpcode;
use bellpush::wire::wqe::{MAX_WQE_BYTES, Opcode, Operands, SendWr};

fn pair(with: &Change) -> Pair {
    Pair::on_packets("", &attr(), &attr(), with)
}

fn sizes(mtu: Mtu) -> [u32; 9] {
    let m = mtu.bytes() as u32;
    [0, 1, 7, m - 1, m, m + 1, 2 * m, 3 * m + 5, 65_536]
}

#[test]
fn writes_sends_and_reads_of_every_size_arrive_at_every_path_mtu() {
    for mtu in Mtu::ALL {
        let mut p = pair(&Change { path_mtu: Some(mtu), ..Change::default() });
        for (i, bytes) in sizes(mtu).into_iter().enumerate() {
            let n = bytes as usize;
            let data = pattern(n, i as u64);
            p.a.buf.put(0, &data);
            let payload =
                [p.a.buf.data(0, bytes / 3), p.a.buf.data((bytes / 3).into(), bytes - bytes / 3)];
            let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(3), p.b.buf.mr.rkey);
            let cqes = p.send(&wr.payload(&payload));
            assert_eq!(cqes.len(), 1, "{mtu:?} {bytes}");
            assert_eq!(cqes[0].opcode, CqeOpcode::Req, "{:?}", cqes[0]);
            assert_eq!(p.b.buf.get(3, n), data, "write of {bytes} at {mtu:?}");

            p.b.buf.put(0, &vec![0; n + 8]);
            let half = bytes / 2;
            p.b.host
                .rq
                .post(&[p.b.buf.sge(5, half), p.b.buf.sge(u64::from(half) + 5, bytes - half + 1)])
                .unwrap();
            let wr = SendWr { imm: 0x0102_0304, ..SendWr::new(Opcode::SendImm) };
            assert_eq!(p.send(&wr.payload(&payload)).len(), 1);
            let got = p.received();
            assert_eq!(got.len(), 1);
            assert_eq!((got[0].opcode, got[0].byte_cnt), (CqeOpcode::RespSendImm, bytes));
            assert_eq!((got[0].imm, got[0].qpn), (0x0102_0304, p.b.qp.qpn()));
            assert_eq!(p.b.buf.get(5, n), data, "send of {bytes} at {mtu:?}");
            assert_eq!(p.b.buf.get(5 + n, 3), [0; 3]);

            p.a.buf.put(0, &vec![0; n + 8]);
            let payload = [p.a.buf.data(1, bytes)];
            let wr = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(5), p.b.buf.mr.rkey);
            let cqes = p.send(&wr.payload(&payload));
            assert_eq!((cqes.len(), cqes[0].byte_cnt), (1, bytes));
            assert_eq!(p.a.buf.get(1, n), data, "read of {bytes} at {mtu:?}");
            assert_eq!(p.a.buf.get(1 + n, 3), [0; 3]);
        }
        assert_eq!(p.nics[0].counters().retransmitted, 0);
        assert!(p.nics[1].counters().drops.iter().all(|&n| n == 0));
    }
}

#[test]
fn a_write_with_immediate_consumes_a_receive() {
    let mut p = pair(&Change { path_mtu: Mtu::new(256), ..Change::default() });
    let data = pattern(1000, 1);
    p.a.buf.put(0, &data);
    let payload = [p.a.buf.data(0, 1000)];
    p.b.host.rq.post(&[]).unwrap();
    let wr = SendWr { imm: 9, ..SendWr::new(Opcode::RdmaWriteImm) };
    assert_eq!(p.send(&wr.to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload)).len(), 1);
    let got = p.received();
    assert_eq!((got[0].opcode, got[0].byte_cnt, got[0].imm), (CqeOpcode::RespWrImm, 1000, 9));
    assert_eq!(p.b.buf.get(0, 1000), data);
}

#[test]
fn atomics_return_the_old_value() {
    let mut p = pair(&Change::default());
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
fn nops_complete_in_their_turn() {
    let mut p = pair(&Change::default());
    let payload = inline(b"x");
    let write = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey);
    for wr in [SendWr::new(Opcode::Nop), write.payload(&payload), SendWr::new(Opcode::Nop)] {
        p.a.host.sq.post(&wr).unwrap();
    }
    p.a.host.sq.ring().unwrap();
    p.settle();
    assert_eq!(p.sent().iter().map(|c| c.wqe_counter).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(p.a.qp.state(), QpState::Rts);
}

#[test]
fn the_longest_requests_and_receives_go_round_the_ends_of_their_rings() {
    let small = QpAttr { sq_blocks: 32, rq_wqes: 2, rq_sges: 32, ..attr() };
    let with = Change { path_mtu: Mtu::new(256), ..Change::default() };
    let mut p = Pair::on_packets("", &small, &small, &with);
    let most = MAX_WQE_BYTES - 16;
    for round in 0..20u64 {
        // 62 entries, or all bytes inline: 16 blocks. A NOP between moves them over the ring's end.
        let data = pattern(most, round);
        p.a.buf.put(0, &data);
        let entries: Vec<_> = (0..62).map(|i| p.a.buf.data(i * 16, 16)).collect();
        let bytes = if round % 2 == 0 { 62 * 16 } else { most - 4 };
        let inline = inline(&data[..bytes]);
        let payload = if round % 2 == 0 { &entries[..] } else { &inline[..] };
        let into: Vec<_> = (0..32).map(|i| p.b.buf.sge(i * 100, 31)).collect();
        p.b.host.rq.post(&into).unwrap();
        assert_eq!(p.send(&SendWr::new(Opcode::Send).payload(payload))[0].opcode, CqeOpcode::Req);
        let got = p.received();
        assert_eq!((got[0].opcode, got[0].byte_cnt), (CqeOpcode::RespSend, bytes as u32));
        let parts: Vec<u8> = (0..32).flat_map(|i| p.b.buf.get(i * 100, 31)).collect();
        assert!(parts[..bytes] == data[..bytes], "round {round}");
        assert_eq!(p.send(&SendWr::new(Opcode::Nop)).len(), 1);
    }
    let counted = [0, 1].map(|i| p.nics[i].counters());
    assert_eq!(counted[0].tx_bytes, counted[1].rx_bytes);
    assert!(counted[0].tx_bytes > 20 * 992, "{} bytes", counted[0].tx_bytes);
}

#[test]
fn a_queue_pair_that_is_to_drain_says_when_it_has() {
    let mut p = pair(&Change { timeout: Some(0), ..Change::default() });
    let payload = inline(b"x");
    let write = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), p.b.buf.mr.rkey);
    p.a.host.send(&write.payload(&payload)).unwrap();
    let now = p.now_ns + 1000;
    p.engines[0].step(now); // sent, and not answered yet
    p.a.qp.modify(QpState::Sqd, &Change::default()).unwrap();
    p.engines[0].step(now + 1000);
    assert!(p.a.qp.is_draining());
    assert!(p.sent().is_empty());
    p.run_for(100_000);
    assert!(!p.a.qp.is_draining());
    assert_eq!((p.sent().len(), p.a.qp.state()), (1, QpState::Sqd));
    p.a.host.send(&write.payload(&payload)).unwrap();
    p.run_for(100_000);
    assert!(p.sent().is_empty(), "nothing is taken in SQD");
    p.a.qp.modify(QpState::Rts, &Change::default()).unwrap();
    p.run_for(100_000);
    assert_eq!(p.sent().len(), 1);
}

/// Of a long READ each part of 32 packets ends as a message does; a program has it with its CQE.
#[test]
fn an_engine_counts_what_a_program_can_see() {
    let mut p = pair(&Change { path_mtu: Mtu::new(1024), ..Change::default() });
    let mut messages = |opcode, bytes| {
        let wr = SendWr::new(opcode).to(p.b.buf.at(0), p.b.buf.mr.rkey);
        p.a.host.send(&wr.payload(&[p.a.buf.data(0, bytes)])).unwrap();
        let mut seen = [0; 2];
        for _ in 0..400 {
            p.now_ns += 1_000;
            for (seen, engine) in seen.iter_mut().zip(&mut p.engines) {
                *seen += engine.step(p.now_ns).messages;
            }
        }
        seen
    };
    assert_eq!(messages(Opcode::RdmaRead, 100 << 10), [1, 0]);
    assert_eq!(messages(Opcode::RdmaRead, 8), [1, 0]);
    assert_eq!(messages(Opcode::AtomicFa, 8), [1, 1]);
    assert_eq!(messages(Opcode::RdmaWrite, 100 << 10), [0, 1]);
}

/// Who drives the engine looks on then.
#[test]
fn an_engine_says_whether_more_of_a_message_is_to_come() {
    let mut p = pair(&Change { path_mtu: Mtu::new(1024), ..Change::default() });
    let turns = |p: &mut Pair, opcode, bytes| {
        let wr = SendWr::new(opcode).to(p.b.buf.at(0), p.b.buf.mr.rkey);
        p.a.host.send(&wr.payload(&[p.a.buf.data(0, bytes)])).unwrap();
        let mut said = Vec::new();
        for _ in 0..20 {
            p.now_ns += 1_000;
            p.engines[0].step(p.now_ns);
            let progress = p.engines[1].step(p.now_ns);
            said.extend((progress.arrivals > 0).then_some(progress.under_way));
        }
        said
    };
    let long = turns(&mut p, Opcode::RdmaWrite, 100 << 10);
    let (last, before) = long.split_last().unwrap();
    assert!(before.len() > 1 && before.iter().all(|&it| it) && !last, "{long:?}");
    assert_eq!(turns(&mut p, Opcode::RdmaWrite, 8), [false]);
    assert_eq!(turns(&mut p, Opcode::RdmaRead, 8), [false]);
    let parts = turns(&mut p, Opcode::RdmaRead, 96 << 10);
    assert!(!parts.is_empty() && parts.iter().all(|&it| it), "{parts:?}");
}
