//! Unreliable connections and datagrams over packets: whole messages, or nothing of them.

use std::net::{IpAddr, Ipv4Addr};

use crate::queue_pairs::{self, Pair, attr, inline, pattern, syndromes};
use bellpush::nic::soft::DropReason;
use bellpush::nic::{Change, Mtu, QpAttr, QpState, QpType, QueuePair};
use bellpush::wire::Qpn;
use bellpush::wire::cqe::{CqeOpcode, NetworkHeader, Syndrome};
use bellpush::wire::wqe::{Datagram, Opcode, SendWr};

fn uc(faults: &str, mtu: usize) -> Pair {
    let with = Change { path_mtu: Mtu::new(mtu), ..Change::default() };
    let deep = QpAttr { rq_wqes: 256, recv_cqes: 256, ..attr() };
    Pair::typed(QpType::Uc, faults, &deep, &with)
}

#[test]
fn uc_carries_writes_and_sends_of_every_size() {
    for mtu in Mtu::ALL {
        let mut p = uc("", mtu.bytes());
        let m = mtu.bytes() as u32;
        for (i, bytes) in [0, 1, m - 1, m, m + 1, 5 * m + 3].into_iter().enumerate() {
            let data = pattern(bytes as usize, i as u64);
            p.a.buf.put(0, &data);
            let payload = [p.a.buf.data(0, bytes)];
            p.b.host.rq.post(&[p.b.buf.sge(64, bytes + 1)]).unwrap();
            let wr = SendWr { imm: 5, ..SendWr::new(Opcode::SendImm) };
            assert_eq!(p.send(&wr.payload(&payload))[0].opcode, CqeOpcode::Req);
            let got = p.received();
            assert_eq!((got[0].opcode, got[0].byte_cnt), (CqeOpcode::RespSendImm, bytes));
            assert_eq!(p.b.buf.get(64, bytes as usize), data);
            p.b.host.rq.post(&[]).unwrap();
            let wr = SendWr { imm: 6, ..SendWr::new(Opcode::RdmaWriteImm) };
            p.send(&wr.to(p.b.buf.at(70_000), p.b.buf.mr.rkey).payload(&payload));
            let got = p.received();
            assert_eq!(
                (got[0].opcode, got[0].byte_cnt, got[0].imm),
                (CqeOpcode::RespWrImm, bytes, 6)
            );
            assert_eq!(p.b.buf.get(70_000, bytes as usize), data);
        }
    }
}

/// Sends numbered messages and returns the numbers that arrive, each checked byte for byte.
fn uc_survivors(faults: &str) -> (Vec<u64>, Pair) {
    let mut p = uc(faults, 256);
    let mut got = Vec::new();
    for _ in 0..64 {
        p.b.host.rq.post(&[p.b.buf.sge(0, 1300)]).unwrap();
    }
    for i in 0..2000u64 {
        // One message to a buffer at a time: what is there is what was delivered last.
        let mut data = pattern(1 + i as usize * 131 % 1290, i);
        data.splice(..0, i.to_le_bytes());
        p.a.buf.put(0, &data);
        let payload = [p.a.buf.data(0, data.len() as u32)];
        p.a.host.send(&SendWr::new(Opcode::Send).payload(&payload)).unwrap();
        p.run_until(1_000_000, |_| false);
        assert_eq!(p.sent().len(), 1);
        for cqe in p.received() {
            assert_eq!(cqe.opcode, CqeOpcode::RespSend);
            let bytes = p.b.buf.get(0, cqe.byte_cnt as usize);
            assert!(bytes == data, "message {i} is damaged or old");
            got.push(i);
            p.b.host.rq.post(&[p.b.buf.sge(0, 1300)]).unwrap();
        }
    }
    (got, p)
}

#[test]
fn uc_loses_whole_messages_and_delivers_none_twice() {
    let (all, _) = uc_survivors("");
    assert_eq!(all.len(), 2000, "control: nothing is lost on a good link");
    let (got, p) = uc_survivors("loss=5%,dup=5%,reorder=5%,corrupt=1%,seed=3");
    assert!((1000..1900).contains(&got.len()), "{} of 2000 messages", got.len());
    assert!(got.is_sorted_by(|a, b| a < b), "in order, and once");
    let drops = p.nics[1].counters();
    for reason in [DropReason::Message, DropReason::Duplicate, DropReason::Icrc] {
        assert!(drops.dropped(reason) > 0, "{reason:?}");
    }
    assert_eq!(p.b.qp.state(), QpState::Rts);
}

#[test]
fn uc_without_a_receive_drops_and_goes_on() {
    let mut p = uc("", 256);
    let payload = inline(b"lost");
    let wr = SendWr::new(Opcode::Send).payload(&payload);
    assert_eq!(p.send(&wr)[0].opcode, CqeOpcode::Req);
    assert_eq!(p.nics[1].counters().dropped(DropReason::NoReceive), 1);
    p.b.host.rq.post(&[p.b.buf.sge(0, 8)]).unwrap();
    p.send(&wr);
    assert_eq!(p.received()[0].byte_cnt, 4);
    // A key that names nothing: no answer, and nothing happens.
    let bad = bellpush::wire::Rkey(queue_pairs::bad_key().0);
    let wr = SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(0), bad).payload(&payload);
    assert_eq!(p.send(&wr)[0].opcode, CqeOpcode::Req);
    assert_eq!(p.nics[1].counters().dropped(DropReason::Refused), 1);
    assert_eq!((p.a.qp.state(), p.b.qp.state()), (QpState::Rts, QpState::Rts));
    // READs and atomics are not UC's.
    let payload = [p.a.buf.data(0, 8)];
    let wr = SendWr::new(Opcode::RdmaRead).to(p.b.buf.at(0), p.b.buf.mr.rkey).payload(&payload);
    assert_eq!(syndromes(&p.send(&wr)), [Some(Syndrome::LocalQpOp)]);
}

fn ud() -> Pair {
    Pair::typed(QpType::Ud, "", &attr(), &Change { qkey: Some(0x1234), ..Change::default() })
}

fn to_b(p: &Pair) -> Datagram {
    Datagram::new(Ipv4Addr::new(127, 0, 0, 2).to_ipv6_mapped(), p.b.qp.qpn(), 0x1234)
}

#[test]
fn a_datagram_arrives_behind_its_ip_header() {
    let mut p = ud();
    let data = pattern(1000, 1);
    p.a.buf.put(0, &data);
    let payload = [p.a.buf.data(0, 1000)];
    p.b.host.rq.post(&[p.b.buf.sge(0, 30), p.b.buf.sge(100, 2000)]).unwrap();
    let datagram = Some(to_b(&p));
    let wr = SendWr { datagram, imm: 77, ..SendWr::new(Opcode::SendImm) }.payload(&payload);
    assert_eq!(p.send(&wr)[0].opcode, CqeOpcode::Req);
    let got = p.received();
    assert_eq!((got[0].opcode, got[0].byte_cnt, got[0].imm), (CqeOpcode::RespSendImm, 1040, 77));
    assert_eq!((got[0].source, got[0].network), (p.a.qp.qpn(), Some(NetworkHeader::Ipv4)));
    let grh = [p.b.buf.get(0, 30), p.b.buf.get(100, 10)].concat();
    assert_eq!(grh[..20], [0; 20]);
    assert_eq!((grh[20], grh[29]), (0x45, 17), "IPv4 without options, UDP");
    assert_eq!(grh[32..40], [127, 0, 0, 1, 127, 0, 0, 2]);
    assert_eq!(p.b.buf.get(110, 1000), data);
}

#[test]
fn a_datagram_has_the_header_fields_of_its_address_vector() {
    let mut p = ud();
    let payload = inline(b"hello");
    let usual = to_b(&p);
    let marked = Datagram { traffic_class: 0x68, hop_limit: 3, src_port: 0xd123, ..usual };
    for (to, class, hops) in [(usual, 0, 64), (marked, 0x68, 3)] {
        p.b.host.rq.post(&[p.b.buf.sge(0, 100)]).unwrap();
        p.send(&SendWr { datagram: Some(to), ..SendWr::new(Opcode::Send) }.payload(&payload));
        assert_eq!(p.received()[0].byte_cnt, 45);
        let grh = p.b.buf.get(0, 40);
        assert_eq!((grh[20], grh[21], grh[28]), (0x45, class, hops));
    }
}

#[test]
fn what_does_not_fit_is_dropped_or_refused() {
    let mut p = ud();
    let payload = inline(b"hello");
    let send = |p: &mut Pair, datagram| {
        p.send(&SendWr { datagram: Some(datagram), ..SendWr::new(Opcode::Send) }.payload(&payload))
    };
    let good = to_b(&p);
    let count = |p: &Pair, reason| p.nics[1].counters().dropped(reason);
    assert_eq!(send(&mut p, good)[0].opcode, CqeOpcode::Req, "nobody says that it was lost");
    assert_eq!(count(&p, DropReason::NoReceive), 1);
    p.b.host.rq.post(&[p.b.buf.sge(0, 100)]).unwrap();
    send(&mut p, Datagram { qkey: 0x1235, ..good });
    assert_eq!(count(&p, DropReason::Qkey), 1);
    send(&mut p, Datagram { qpn: Qpn(5), ..good });
    assert_eq!(count(&p, DropReason::NoSuchQp), 1);
    assert!(p.received().is_empty());
    // The sender's own key, asked for by the top bit.
    send(&mut p, Datagram { qkey: 0x8000_0000, ..good });
    assert_eq!(p.received()[0].byte_cnt, 45);
    // Too long for one packet.
    let long = [p.a.buf.data(0, 4097)];
    let wr = SendWr { datagram: Some(good), ..SendWr::new(Opcode::Send) }.payload(&long);
    assert_eq!(syndromes(&p.send(&wr)), [Some(Syndrome::LocalLength)]);
    // To an address of the other family.
    let mut p = ud();
    let IpAddr::V6(v6) = "2001:db8::1".parse().unwrap() else { unreachable!() };
    let elsewhere = Datagram { to: v6, ..good };
    assert_eq!(syndromes(&send(&mut p, elsewhere)), [Some(Syndrome::LocalQpOp)]);
}

#[test]
fn a_receive_without_room_for_the_header_fails_its_own_side() {
    let mut p = ud();
    p.b.host.rq.post(&[p.b.buf.sge(0, 44)]).unwrap();
    let payload = inline(b"hello");
    let wr = SendWr { datagram: Some(to_b(&p)), ..SendWr::new(Opcode::Send) }.payload(&payload);
    assert_eq!(p.send(&wr)[0].opcode, CqeOpcode::Req);
    assert_eq!(syndromes(&p.received()), [Some(Syndrome::LocalLength)]);
    assert_eq!(p.b.qp.state(), QpState::Err);
    assert_eq!(p.nics[1].next_event(), None, "the CQE has told it");
}
