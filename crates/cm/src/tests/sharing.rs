//! Processes that have devices at one address.

use super::*;
use crate::Offer;
use bellpush_wire::cm::{Message, PortSpace};

#[test]
fn ids_are_those_of_the_process() {
    let mut cm = crate::Cm::new(1, crate::Random::seeded(7));
    let (first, count) = (5 << 27, 4);
    cm.confine(first, count);
    let mut ids = Vec::new();
    for _ in 0..count {
        cm.find(0, host(9), 5, [0; 216]).unwrap();
        let Some(crate::Output::Send { mad, .. }) = cm.output() else { panic!("no request") };
        let Message::SidrReq(req) = Mad::parse(&mad).unwrap().message else { panic!("no request") };
        ids.push(req.request_id);
    }
    ids.sort_unstable();
    assert_eq!(ids, [first, first + 1, first + 2, first + 3]);
}

#[test]
fn what_a_process_listens_at_is_told_until_nobody_does() {
    let mut w = World::new(1);
    let info = DeviceInfo { address: host(7), guid: 1, mtu: 5 };
    w.hosts[0].attach(1, info);
    assert_eq!(w.hosts[0].next_offer(), None);
    let id = w.hosts[0].create(CHANNEL, UID, Space::Tcp).unwrap();
    let here = SocketAddr::new(host(0), PORT);
    w.hosts[0].bind(CHANNEL, id, Address::Ip(here)).unwrap();
    assert_eq!(w.hosts[0].next_offer(), None, "it does not listen yet");
    w.hosts[0].listen(CHANNEL, id, 0).unwrap();
    let service = PortSpace::Tcp.service(PORT);
    let offers = |w: &mut World| std::iter::from_fn(|| w.hosts[0].next_offer()).collect::<Vec<_>>();
    let offer = |device, offered| Offer { device, service, offered };
    assert_eq!(offers(&mut w), [offer(0, true), offer(1, false)], "at one address alone");
    // A device that comes later is told as well.
    w.hosts[0].attach(0, DeviceInfo { address: host(0), ..info });
    assert_eq!(offers(&mut w), [offer(0, true), offer(1, false)]);
    w.destroy(0, id);
    assert_eq!(offers(&mut w), [offer(0, false), offer(1, false)]);
}
