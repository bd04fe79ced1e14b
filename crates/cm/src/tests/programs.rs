//! What programs do, over a network that keeps everything.

use super::*;
use crate::{IdError, Opt, Stage};

#[test]
fn a_connection_is_made_and_ended() {
    let mut w = World::new(2);
    w.listen(1, Space::Tcp, 0);
    let a = w.connect(0, 1, Space::Tcp, b"hello");
    w.settle();
    let request = w.expect(1, EventKind::ConnectRequest);
    assert_eq!((request.uid, &private(&request)[..6]), (UID, &b"hello\0"[..]));
    assert_eq!(private(&request).len(), 56);
    let Param::Connection(param) = &request.param else { panic!() };
    // What the one has on its way, the other answers.
    assert_eq!((param.responder_resources, param.initiator_depth), (2, 3));
    let b = request.id;
    assert_eq!(w.hosts[1].qp(CHANNEL, b, 2).unwrap().dest_qpn, Some(0x100));
    w.accept(1, b, b"welcome");
    w.settle();
    let response = w.expect(0, EventKind::ConnectResponse);
    assert_eq!((response.uid, &private(&response)[..7]), (UID, &b"welcome"[..]));
    let [rtr, rts] = [2, 3].map(|state| {
        let of = |n: usize, id| w.hosts[n].qp(CHANNEL, id, state).unwrap();
        (of(0, a), of(1, b))
    });
    assert_eq!((rtr.0.dest_qpn, rtr.1.dest_qpn), (Some(0x201), Some(0x100)));
    assert_eq!((rtr.0.rq_psn, rtr.1.rq_psn), (rts.1.sq_psn, rts.0.sq_psn), "PSNs cross over");
    assert_eq!((rts.0.max_rd_atomic, rtr.1.max_dest_rd_atomic), (Some(3), Some(2)));
    assert_eq!((rts.0.retry, rts.1.retry, rts.1.rnr_retry), (Some(7), Some(7), Some(6)));
    assert_eq!(rtr.0.path_mtu, Some(5));
    assert_eq!(rtr.0.route.unwrap().remote_gid[10..], [0xff, 0xff, 10, 0, 0, 2]);
    w.establish(0, a);
    w.settle();
    assert_eq!(w.expect(1, EventKind::Established).uid, UID + 1);
    let sent = [MessageKind::Req, MessageKind::Rep, MessageKind::Rtu];
    assert_eq!(w.sent, sent);

    w.disconnect(0, a);
    w.settle();
    assert_eq!(w.expect(1, EventKind::Disconnected).status, 0);
    assert!(w.event(0).is_none(), "the peer's program has not said yet");
    w.disconnect(1, b);
    w.settle();
    assert_eq!(w.expect(0, EventKind::Disconnected).status, 0);
    w.pass(SECOND);
    for n in 0..2 {
        w.expect(n, EventKind::TimewaitExit);
    }
    // Address, route, response, two of the end; request's event is the listener's.
    assert_eq!((w.destroy(0, a), w.destroy(1, b)), (5, 3));
    w.pass(100 * SECOND);
    w.settle();
    assert!(!w.hosts[1].detach_idle(), "the listener is there");
    assert!(w.hosts[0].detach_idle());
}

#[test]
fn both_may_end_at_once() {
    let mut w = World::new(2);
    let (a, b) = w.connected();
    w.disconnect(0, a);
    w.disconnect(1, b);
    w.settle();
    for n in 0..2 {
        assert_eq!(w.expect(n, EventKind::Disconnected).status, 0);
    }
    w.pass(SECOND);
    for n in 0..2 {
        w.expect(n, EventKind::TimewaitExit);
    }
}

#[test]
fn who_is_destroyed_says_so() {
    let mut w = World::new(2);
    let (a, b) = w.connected();
    w.destroy(0, a);
    w.settle();
    w.expect(1, EventKind::Disconnected);
    w.destroy(1, b);
    w.settle();
    assert!(w.hosts[0].detach_idle());
    assert_eq!(w.sent[3..], [MessageKind::Dreq, MessageKind::Drep]);
}

#[test]
fn a_request_is_rejected_with_the_programs_words() {
    let mut w = World::new(2);
    w.listen(1, Space::Tcp, 0);
    w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    let b = w.expect(1, EventKind::ConnectRequest).id;
    w.hosts[1].reject(0, CHANNEL, b, 28, b"no").unwrap();
    w.settle();
    let rejected = w.expect(0, EventKind::Rejected);
    assert_eq!((rejected.status, &private(&rejected)[..2]), (28, &b"no"[..]));
    assert!(w.hosts[1].accept(0, CHANNEL, b, Some((1, &parameters(1, b"")))).is_err());
}

#[test]
fn a_response_can_be_rejected() {
    let mut w = World::new(2);
    w.listen(1, Space::Tcp, 0);
    let a = w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    let b = w.expect(1, EventKind::ConnectRequest).id;
    w.accept(1, b, b"");
    w.settle();
    w.expect(0, EventKind::ConnectResponse);
    w.hosts[0].reject(0, CHANNEL, a, 28, b"").unwrap();
    w.settle();
    assert_eq!(w.expect(1, EventKind::Rejected).status, 28);
}

#[test]
fn where_nobody_listens_a_request_is_rejected() {
    for space in [Space::Tcp, Space::Udp] {
        let mut w = World::new(2);
        w.connect(0, 1, space, b"");
        w.settle();
        w.pass(SECOND / 10);
        w.settle();
        let (kind, status) = match space {
            Space::Tcp => (EventKind::Rejected, 8),
            _ => (EventKind::Unreachable, 1),
        };
        assert_eq!(w.expect(0, kind).status, status);
    }
}

#[test]
fn a_listener_that_goes_rejects_those_who_wait() {
    let mut w = World::new(2);
    let listener = w.listen(1, Space::Tcp, 0);
    w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    assert_eq!(w.destroy(1, listener), 0, "nobody has read the request");
    w.settle();
    assert_eq!(w.expect(0, EventKind::Rejected).status, 28);
    assert!(!w.hosts[1].has_events(CHANNEL));
    w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    w.pass(SECOND / 10);
    w.settle();
    assert_eq!(w.expect(0, EventKind::Rejected).status, 8);
}

#[test]
fn who_gives_up_is_forgotten_by_the_peer() {
    let mut w = World::new(2);
    w.listen(1, Space::Tcp, 0);
    let a = w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    let b = w.expect(1, EventKind::ConnectRequest).id;
    w.destroy(0, a);
    w.settle();
    let with = parameters(9, b"");
    assert_eq!(w.hosts[1].accept(0, CHANNEL, b, Some((5, &with))), Err(IdError::Stage));
    assert!(w.event(1).is_none(), "an identifier that was not accepted has no events");
}

#[test]
fn datagrams_are_offered() {
    let mut w = World::new(2);
    w.listen(1, Space::Udp, 0);
    let a = w.connect(0, 1, Space::Udp, b"who");
    w.settle();
    let request = w.expect(1, EventKind::ConnectRequest);
    assert_eq!((private(&request).len(), &private(&request)[..3]), (180, &b"who"[..]));
    w.accept(1, request.id, b"me");
    w.settle();
    let established = w.expect(0, EventKind::Established);
    let Param::Datagrams(param) = &established.param else { panic!() };
    assert_eq!((param.qpn, param.qkey, &param.private[..2]), (0x201, 0x0123_4567, &b"me"[..]));
    assert_eq!(w.hosts[0].qp(CHANNEL, a, 1).unwrap().qkey, Some(0x0123_4567));
    let refused = w.resolve(0, 1, Space::Udp);
    w.hosts[0].connect(0, CHANNEL, refused, &parameters(1, b"")).unwrap();
    w.settle();
    let b = w.expect(1, EventKind::ConnectRequest).id;
    w.hosts[1].reject(0, CHANNEL, b, 28, b"no").unwrap();
    w.settle();
    assert_eq!(w.expect(0, EventKind::Unreachable).status, 2);
}

/// A request that comes a little before its listener waits for it.
#[test]
fn a_listener_may_come_a_little_late() {
    for space in [Space::Tcp, Space::Udp] {
        let mut w = World::new(2);
        w.connect(0, 1, space, b"early");
        w.settle();
        assert!(w.event(0).is_none(), "nobody says that nobody listens");
        w.listen(1, space, 0);
        w.pass(SECOND / 10);
        w.settle();
        let request = w.expect(1, EventKind::ConnectRequest);
        assert_eq!(&private(&request)[..5], b"early");
        w.accept(1, request.id, b"me");
        w.settle();
        assert!(w.event(1).is_none(), "it is told once");
    }
}

/// So many of one host wait, and are answered in the end; those behind them at once.
#[test]
fn there_is_an_end_to_what_waits_for_a_listener() {
    let mut w = World::new(2);
    for _ in 0..70 {
        w.connect(0, 1, Space::Tcp, b"");
    }
    w.settle();
    let refused = |w: &mut World| std::iter::from_fn(|| w.event(0)).count();
    assert_eq!(refused(&mut w), 6);
    w.pass(SECOND / 10);
    w.settle();
    assert_eq!(refused(&mut w), 64);
}

#[test]
fn no_more_wait_than_the_backlog_says() {
    let mut w = World::new(2);
    w.listen(1, Space::Tcp, 2);
    for n in 0..4 {
        let id = w.resolve(0, 1, Space::Tcp);
        w.hosts[0].connect(0, CHANNEL, id, &parameters(0x1000 + n, b"")).unwrap();
    }
    w.settle();
    for _ in 0..2 {
        w.expect(1, EventKind::ConnectRequest);
    }
    assert!(w.event(1).is_none());
    // Those who found no room ask again.
    w.pass(SECOND);
    w.settle();
    for _ in 0..2 {
        w.expect(1, EventKind::ConnectRequest);
    }
}

#[test]
fn what_a_stage_does_not_allow_is_refused() {
    let mut w = World::new(2);
    let ids = &mut w.hosts[0];
    let id = ids.create(CHANNEL, UID, Space::Tcp).unwrap();
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let with = parameters(1, b"");
    assert_eq!(ids.resolve_route(CHANNEL, id), Err(IdError::Stage));
    assert_eq!(ids.connect(0, CHANNEL, id, &with), Err(IdError::Stage));
    assert_eq!(ids.accept(0, CHANNEL, id, None), Err(IdError::Stage));
    assert_eq!(ids.disconnect(0, CHANNEL, id), Err(IdError::Stage));
    assert_eq!(ids.qp(CHANNEL, id, 1), Err(IdError::Stage));
    let elsewhere = Address::Ip(at("10.9.9.9:1"));
    let not_local = IdError::NotLocal(at("10.9.9.9:1").ip());
    assert_eq!(ids.bind(CHANNEL, id, elsewhere), Err(not_local));
    assert_eq!(ids.bind(ChannelId(5), id, elsewhere), Err(IdError::OtherChannel));
    assert_eq!(ids.bind(CHANNEL, 99, elsewhere), Err(IdError::Unknown));
    ids.bind(CHANNEL, id, Address::Ip(at("10.0.0.1:5"))).unwrap();
    assert_eq!(ids.disconnect(0, CHANNEL, id), Err(IdError::Stage), "never connected");
    assert_eq!(ids.bind(CHANNEL, id, Address::Ip(at("10.0.0.1:6"))), Err(IdError::Stage));
    assert_eq!(ids.set(CHANNEL, id, Opt::ReuseAddress(true)), Err(IdError::Stage));
    let other = ids.create(CHANNEL, UID, Space::Tcp).unwrap();
    assert_eq!(ids.bind(CHANNEL, other, Address::Ip(at("10.0.0.1:5"))), Err(IdError::InUse));
    assert_eq!(ids.look(CHANNEL, id).unwrap().0, Stage::Bound);
    // Longer than a REQ has room for behind the addresses.
    let id = w.resolve(0, 1, Space::Tcp);
    let long = w.hosts[0].connect(0, CHANNEL, id, &parameters(1, &[0; 57]));
    assert!(matches!(long, Err(IdError::Value(_))));
    assert_eq!(w.hosts[0].connect(0, CHANNEL, id, &parameters(1, &[0; 56])), Ok(()));
}

#[test]
fn librdmacm_may_ask_for_infinibands_addresses() {
    let mut w = World::new(1);
    let ids = &mut w.hosts[0];
    let id = ids.create(CHANNEL, UID, Space::Ib).unwrap();
    ids.bind(CHANNEL, id, Address::IbAny).unwrap();
    let tcp = ids.create(CHANNEL, UID, Space::Tcp).unwrap();
    assert!(matches!(ids.bind(CHANNEL, tcp, Address::IbAny), Err(IdError::Unsupported(_))));
    assert_eq!(ids.listen(CHANNEL, id, 1), Err(IdError::Stage));
}

#[test]
fn an_identifier_takes_its_events_along() {
    let mut w = World::new(2);
    let other = ChannelId(1);
    w.hosts[1].open(other);
    let listener = w.listen(1, Space::Tcp, 0);
    w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    assert_eq!(w.hosts[1].migrate(CHANNEL, listener, other), Ok(0));
    assert!(w.event(1).is_none());
    let request = w.hosts[1].next_event(other).unwrap();
    assert_eq!(w.hosts[1].destroy(0, CHANNEL, request.id), Err(IdError::OtherChannel));
    assert_eq!(w.hosts[1].migrate(other, listener, CHANNEL), Ok(1));
    w.hosts[1].close(0, other);
    w.settle();
    assert_eq!(w.expect(0, EventKind::Rejected).status, 28, "its channel is closed");
}

#[test]
fn nothing_is_made_on_a_channel_that_is_closed_meanwhile() {
    let mut w = World::new(1);
    let (ids, closed) = (&mut w.hosts[0], ChannelId(1));
    let id = ids.create(CHANNEL, UID, Space::Tcp).unwrap();
    assert_eq!(ids.create(closed, UID, Space::Tcp), Err(IdError::Unknown));
    assert_eq!(ids.migrate(CHANNEL, id, closed), Err(IdError::Unknown));
    ids.close(0, CHANNEL);
    assert!(ids.detach_idle(), "nothing is left");
}

#[test]
fn a_device_that_comes_later_takes_requests_as_well() {
    let mut w = World::new(2);
    w.hosts[1].open(CHANNEL);
    assert!(w.hosts[1].detach_idle());
    w.listen(1, Space::Tcp, 0);
    w.hosts[1].attach(0, DeviceInfo { address: host(1), guid: 1, mtu: 5 });
    w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    w.expect(1, EventKind::ConnectRequest);
}

#[test]
fn changes_of_channels_are_told_once() {
    let mut w = World::new(2);
    while w.hosts[0].next_changed().is_some() {}
    w.listen(1, Space::Tcp, 0);
    w.connect(0, 1, Space::Tcp, b"");
    w.settle();
    assert_eq!(w.hosts[1].next_changed(), Some((CHANNEL, true)));
    assert_eq!(w.hosts[1].next_changed(), None);
    w.event(1);
    assert_eq!(w.hosts[1].next_changed(), Some((CHANNEL, false)));
}

#[test]
fn localhost_is_any_address_where_no_device_is_on_it() {
    let mut w = World::new(2);
    let ids = &mut w.hosts[1];
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let listener = ids.create(CHANNEL, UID, Space::Tcp).unwrap();
    ids.bind(CHANNEL, listener, Address::Ip(at("127.0.0.1:7174"))).unwrap();
    let facts = ids.facts(CHANNEL, listener).unwrap();
    assert_eq!((facts.source, facts.device), (Some(at("0.0.0.0:7174")), None));
    let other = ids.create(CHANNEL, UID, Space::Tcp).unwrap();
    let not_local = Err(IdError::NotLocal(at("127.0.0.2:1").ip()));
    assert_eq!(ids.bind(CHANNEL, other, Address::Ip(at("127.0.0.2:1"))), not_local);
    // Of a device elsewhere, the loopback interface's addresses are its own.
    ids.resolve_address(CHANNEL, other, Some(at("127.0.0.1:0")), at("127.0.0.1:7174")).unwrap();
    let facts = ids.facts(CHANNEL, other).unwrap();
    assert_eq!(facts.destination, Some(at("10.0.0.2:7174")));
    assert_eq!(facts.source.unwrap().ip(), at("10.0.0.2:0").ip());
}

#[test]
fn an_identifier_goes_through_the_device_that_it_is_bound_to() {
    let mut w = World::new(1);
    let ids = &mut w.hosts[0];
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let info = |text: &str| crate::DeviceInfo { address: at(text).ip(), guid: 1, mtu: 3 };
    ids.attach(1, info("10.1.0.1:0"));
    ids.attach(2, info("[fd00::1]:0"));
    let mut resolve = |from: Option<&str>, to: &str| {
        let id = ids.create(CHANNEL, UID, Space::Tcp).unwrap();
        ids.resolve_address(CHANNEL, id, from.map(at), at(to))?;
        ids.resolve_route(CHANNEL, id)?;
        let facts = ids.facts(CHANNEL, id)?;
        Ok::<_, IdError>((facts.device.unwrap(), facts.source.unwrap().ip(), facts.route.unwrap()))
    };
    let (device, source, route) = resolve(Some("10.1.0.1:0"), "10.9.0.1:7").unwrap();
    assert_eq!((device, source, route.mtu), (1, at("10.1.0.1:0").ip(), 3));
    let (device, source, _) = resolve(None, "10.9.0.1:7").unwrap();
    assert_eq!((device, source), (0, host(0)), "else the first of the family");
    assert_eq!(resolve(None, "[fd00::9]:7").unwrap().0, 2);
    let mixed = resolve(Some("10.1.0.1:0"), "[fd00::9]:7");
    assert!(matches!(mixed, Err(IdError::Value(_))), "{mixed:?}");
}

#[test]
fn a_process_may_connect_to_itself() {
    let mut w = World::new(1);
    w.listen(0, Space::Tcp, 0);
    let a = w.connect(0, 0, Space::Tcp, b"");
    w.settle();
    let b = w.expect(0, EventKind::ConnectRequest).id;
    w.accept(0, b, b"");
    w.settle();
    assert_eq!(w.expect(0, EventKind::ConnectResponse).id, a);
    w.establish(0, a);
    w.settle();
    assert_eq!(w.expect(0, EventKind::Established).id, b);
    w.disconnect(0, a);
    w.settle();
    assert_eq!(w.expect(0, EventKind::Disconnected).id, b);
    w.disconnect(0, b);
    w.settle();
    assert_eq!(w.expect(0, EventKind::Disconnected).id, a);
}

#[test]
fn there_is_an_end_to_what_a_process_may_have() {
    let mut ids = Ids::new(crate::Random::seeded(1));
    ids.open(CHANNEL);
    let create = |ids: &mut Ids| ids.create(CHANNEL, UID, Space::Tcp);
    for number in 0..1 << 16 {
        assert_eq!(create(&mut ids), Ok(number));
    }
    assert_eq!(create(&mut ids), Err(IdError::Full));
    ids.destroy(0, CHANNEL, 77).unwrap();
    assert_eq!(create(&mut ids), Ok(77), "the lowest that is free");
    let mut cm = crate::Cm::new(1, crate::Random::seeded(1));
    let ended = (0..1 << 17).find(|_| cm.find(0, host(9), 5, [0; 216]).is_err());
    assert_eq!(ended, Some(1 << 16));
}
