//! Peers that mean harm.

use bellpush_wire::cm::{Dreq, Message, Mra, PortSpace, Rej, Rep, Req, Rtu, SidrReq};
use proptest::prelude::*;

use super::*;

/// The last message of a kind that a host was sent.
fn last(w: &World, kind: MessageKind) -> Message {
    let of = |message: &&OnWay| message.kind() == kind;
    Mad::parse(&w.net.iter().rev().find(of).unwrap().mad).unwrap().message
}

fn say(w: &mut World, from: usize, to: usize, message: Message) {
    let mad = Mad { transaction: 1, modifier: 0, message }.emit();
    w.deliver(&OnWay { from: host(from), to: host(to), mad });
}

/// Host 0 has asked host 1: the REQ.
fn asked() -> (World, Req) {
    let mut w = World::new(3);
    w.listen(1, Space::Tcp, 0);
    w.connect(0, 1, Space::Tcp, b"");
    w.collect();
    let Message::Req(req) = last(&w, MessageKind::Req) else { panic!() };
    (w, req)
}

#[test]
fn a_stranger_cannot_answer_for_the_peer() {
    let (mut w, req) = asked();
    let (local_id, remote_id) = (5, req.local_id);
    let rej = Rej {
        local_id,
        remote_id,
        rejected: 0,
        info_bytes: 0,
        reason: 28,
        info: [0; 72],
        private: [0; 148],
    };
    say(&mut w, 2, 0, Message::Rej(rej));
    let rep = Rep {
        local_id,
        remote_id,
        qkey: 0,
        qpn: 7,
        psn: 0,
        responder_resources: 0,
        initiator_depth: 0,
        ack_delay: 0,
        failover: 0,
        flow_control: false,
        rnr_retry: 0,
        srq: false,
        guid: 0,
        private: [0; 196],
    };
    say(&mut w, 2, 0, Message::Rep(rep));
    assert!(w.event(0).is_none());
    w.settle();
    w.expect(1, EventKind::ConnectRequest);
}

#[test]
fn a_stranger_cannot_end_or_establish_a_connection() {
    let mut w = World::new(3);
    w.listen(1, Space::Tcp, 0);
    let a = w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    let b = w.expect(1, EventKind::ConnectRequest).id;
    w.accept(1, b, b"");
    w.collect();
    let Message::Rep(rep) = last(&w, MessageKind::Rep) else { panic!() };
    let rtu = Rtu { local_id: rep.remote_id, remote_id: rep.local_id, private: [0; 224] };
    say(&mut w, 2, 1, Message::Rtu(rtu));
    say(&mut w, 0, 1, Message::Rtu(Rtu { local_id: rep.remote_id + 1, ..rtu }));
    assert!(w.event(1).is_none(), "not its peer, and not the connection's other end");
    w.settle();
    w.establish(0, a);
    w.settle();
    w.expect(1, EventKind::Established);
    let (local_id, remote_id) = (rep.remote_id, rep.local_id);
    let dreq = Dreq { local_id, remote_id, remote_qpn: rep.qpn, private: [0; 220] };
    say(&mut w, 2, 1, Message::Dreq(dreq));
    say(&mut w, 0, 1, Message::Dreq(Dreq { remote_qpn: rep.qpn + 1, ..dreq }));
    assert!(w.event(1).is_none());
    say(&mut w, 0, 1, Message::Dreq(dreq));
    w.expect(1, EventKind::Disconnected);
}

/// A listener's program reads requests of the kind that its port space has.
#[test]
fn a_request_is_of_the_kind_that_the_port_has() {
    let (mut w, req) = asked();
    w.net.clear();
    w.listen(1, Space::Udp, 0);
    say(&mut w, 0, 1, Message::Req(Req { service: PortSpace::Udp.service(PORT), ..req }));
    w.collect();
    let Message::Rej(rej) = last(&w, MessageKind::Rej) else { panic!() };
    assert_eq!((rej.reason, rej.remote_id), (8, req.local_id));
    let mut private = [0; 216];
    private[..36].copy_from_slice(&req.private[..36]);
    let service = PortSpace::Tcp.service(PORT);
    let ask = SidrReq { request_id: 7, pkey: 0xffff, service, private };
    say(&mut w, 0, 1, Message::SidrReq(ask));
    w.collect();
    let Message::SidrRep(rep) = last(&w, MessageKind::SidrRep) else { panic!() };
    assert_eq!((rep.request_id, rep.status), (7, 2));
    assert!(w.event(1).is_none(), "no program is told");
    say(&mut w, 0, 1, Message::SidrReq(SidrReq { service: PortSpace::Udp.service(PORT), ..ask }));
    w.expect(1, EventKind::ConnectRequest);
}

#[test]
fn nobody_has_packets_sent_to_a_third_party() {
    for change in [
        (|req: &mut Req| req.path.local_gid[15] = 3) as fn(&mut Req),
        |req| req.private[19] = 3, // who asks
        |req| req.private[35] = 3, // who is asked
        |req| req.private[0] = 1,
        |req| req.mtu = 0,
        |req| req.mtu = 6,
        |req| req.transport = 1,
        |req| req.service = PortSpace::Tcp.service(PORT) | 1 << 40,
    ] {
        let (mut w, mut req) = asked();
        w.net.clear();
        change(&mut req);
        say(&mut w, 0, 1, Message::Req(req));
        assert!(w.event(1).is_none());
        // What nobody offers waits a little for somebody who does.
        w.pass(SECOND / 10);
        w.settle();
        w.expect(0, EventKind::Rejected);
        // It is forgotten: the same identifier's next request is a new one.
        w.connect(0, 1, Space::Tcp, b"");
        w.settle();
        w.expect(1, EventKind::ConnectRequest);
    }
}

#[test]
fn times_that_a_peer_names_are_bounded() {
    let (mut w, mut req) = asked();
    w.net.clear();
    (req.path.ack_timeout, req.local_timeout, req.cm_retries) = (31, 0, 15);
    say(&mut w, 0, 1, Message::Req(req));
    let b = w.expect(1, EventKind::ConnectRequest).id;
    assert_eq!(w.hosts[1].qp(CHANNEL, b, 3).unwrap().timeout, Some(21));
    w.accept(1, b, b"");
    w.lose();
    let first = w.hosts[1].due_ns().unwrap();
    assert!(first >= SECOND / 100, "{first} ns after 4 µs that the peer asked for");
    // An MRA delays once, and by no more than Linux asks for.
    let local_id = req.local_id;
    let Message::Rep(rep) = ({
        w.pass(first);
        w.collect();
        last(&w, MessageKind::Rep)
    }) else {
        panic!()
    };
    let mut due = vec![];
    for _ in 0..3 {
        w.now_ns += SECOND;
        let (remote_id, acknowledged) = (rep.local_id, 1);
        let mra = Mra { local_id, remote_id, acknowledged, timeout: 31, private: [0; 222] };
        say(&mut w, 0, 1, Message::Mra(mra));
        due.push(w.hosts[1].due_ns().unwrap());
    }
    assert!(due[0] < 72 * SECOND && due.iter().all(|&at| at == due[0]), "{due:?}");
    // A time of 0 would be for ever.
    let (mut w, mut req) = asked();
    w.net.clear();
    req.path.ack_timeout = 0;
    say(&mut w, 0, 1, Message::Req(req));
    let b = w.expect(1, EventKind::ConnectRequest).id;
    assert_eq!(w.hosts[1].qp(CHANNEL, b, 3).unwrap().timeout, Some(16));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..Default::default() })]
    /// Messages of any content, with IDs that are someone's: nothing panics, and every wait ends.
    #[test]
    fn any_messages_are_survived(
        messages in prop::collection::vec((0x10_u8..0x19, any::<[bool; 3]>(), any::<[u8; 32]>()), 1..40)
    ) {
        let (mut w, req) = asked();
        w.settle();
        let request = w.event(1).unwrap();
        w.accept(1, request.id, b"");
        w.collect();
        let Message::Rep(rep) = last(&w, MessageKind::Rep) else { panic!() };
        for (kind, [to, own, swap], noise) in messages {
            let mut mad = w.net[0].mad;
            mad[17] = kind;
            mad[24..56].copy_from_slice(&noise);
            let (a, b) = if swap { (req.local_id, rep.local_id) } else { (rep.local_id, req.local_id) };
            if own {
                mad[24..28].copy_from_slice(&a.to_be_bytes());
                mad[28..32].copy_from_slice(&b.to_be_bytes());
            }
            let (from, to) = if to { (1, 0) } else { (0, 1) };
            w.deliver(&OnWay { from: host(from), to: host(to), mad });
            w.pass(SECOND / 100);
        }
        w.net.clear();
        for _ in 0..400 {
            w.pass(SECOND);
            w.lose();
        }
        prop_assert!(w.hosts.iter().all(|ids| ids.due_ns().is_none()));
    }
}
