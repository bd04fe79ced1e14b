//! Programs that call whatever they like, whenever they like, and peers that say what they like: nothing
//! panics, and when all is destroyed, nothing is left.

use bellpush_wire::cm::{Dreq, Message, Mra, PortSpace, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use proptest::prelude::*;

use super::*;
use crate::Opt;

const CHANNELS: [ChannelId; 2] = [ChannelId(0), ChannelId(1)];
const SPACES: [Space; 3] = [Space::Tcp, Space::Udp, Space::Ib];

/// What is done: a number of it, where, to which identifier, and with what.
type Act = (u8, usize, u32, u32);

/// One call of a program's.
fn call(w: &mut World, (what, n, id, with): Act) {
    let (now, n, channel) = (w.now_ns, n % 2, CHANNELS[usize::from(with & 8 != 0)]);
    let ids = &mut w.hosts[n];
    let given = parameters(with % 6, &vec![7; (with % 200) as usize]);
    let ports = [0, PORT, PORT + 1];
    let port = ports[(with % 3) as usize];
    let at = match with % 5 {
        0 => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
        1 => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
        2 => SocketAddr::new(host(9), port),
        3 => "[::]:7174".parse().unwrap(),
        _ => SocketAddr::new(host(n), port),
    };
    match what {
        0 | 1 => drop(ids.create(channel, with.into(), SPACES[(with % 7 / 3) as usize])),
        2 => drop(ids.destroy(now, channel, id)),
        3 => drop(ids.bind(channel, id, Address::Ip(at))),
        5 | 6 => {
            let to = SocketAddr::new(host(usize::from(with & 16 != 0)), PORT);
            let _ = ids.resolve_address(channel, id, (with & 7 == 7).then_some(at), to);
        }
        7 | 8 => drop(ids.resolve_route(channel, id)),
        9 | 10 => drop(ids.connect(now, channel, id, &given)),
        11 | 12 => drop(ids.listen(channel, id, with % 4)),
        13 | 14 => drop(ids.accept(now, channel, id, Some((with.into(), &given))).is_ok()),
        15 => drop(ids.accept(now, channel, id, None).is_ok()),
        16 => drop(ids.reject(now, channel, id, 28, &given.private)),
        17 => drop(ids.disconnect(now, channel, id)),
        18 => drop(ids.is_in_use(now, channel, id)),
        19 => drop(ids.migrate(channel, id, CHANNELS[(with & 1) as usize])),
        20 => drop(ids.qp(channel, id, with % 4)),
        21 => drop(ids.facts(channel, id)),
        23 if with & 1 == 0 => drop(ids.set(channel, id, Opt::AckTimeout(with as u8 >> 1))),
        23 => drop(ids.set(channel, id, Opt::ReuseAddress(with & 2 != 0))),
        22 => {
            ids.close(now, channel);
            ids.open(channel);
        }
        4 => {
            let space = SPACES[(with & 1) as usize];
            let to = SocketAddr::new(host(usize::from(with & 16 != 0)), PORT);
            let given = parameters(1 + with % 6, b"");
            if let Ok(id) = ids.create(channel, with.into(), space) {
                let _ = ids.resolve_address(channel, id, None, to);
                let _ = ids.resolve_route(channel, id);
                let _ = ids.connect(now, channel, id, &given);
            }
        }
        24 | 25 => {
            while let Some(event) = ids.next_event(channel) {
                if event.kind == EventKind::ConnectRequest && with & 3 != 0 {
                    let _ = ids.accept(now, channel, event.id, Some((with.into(), &given)));
                }
                if event.kind == EventKind::ConnectResponse {
                    let _ = ids.accept(now, channel, event.id, None);
                }
            }
        }
        26 => w.pass(SECOND / 20),
        27 => w.pass(SECOND),
        28 => w.settle(),
        29 => drop(w.lose()),
        30 => {
            w.collect();
            w.net.extend(w.net.front().cloned());
            w.net.rotate_left(w.net.len().min(1));
        }
        _ => {
            w.collect();
            if let Some(message) = w.net.pop_front() {
                w.deliver(&message);
            }
        }
    }
}

/// A message that a peer makes up of what was said before.
fn lie(w: &mut World, (what, n, id, with): Act) {
    w.collect();
    let seen = w.net.iter().find_map(|it| match Mad::parse(&it.mad).unwrap().message {
        Message::Req(it) => Some((it.local_id, 0, it.qpn)),
        Message::Rep(it) => Some((it.local_id, it.remote_id, it.qpn)),
        Message::Rtu(it) => Some((it.local_id, it.remote_id, 0)),
        Message::SidrReq(it) => Some((it.request_id, 0, 0)),
        _ => None,
    });
    let (mut local_id, mut remote_id, qpn) = seen.unwrap_or((id, with, id));
    if with & 1 != 0 {
        std::mem::swap(&mut local_id, &mut remote_id);
    }
    let (a, b) = (w.connections_of(0), w.connections_of(1));
    let known: Vec<_> = a.into_iter().chain(b).collect();
    if with & 2 != 0 && !known.is_empty() {
        remote_id = known[id as usize % known.len()];
        local_id = known[with as usize % known.len()];
    }
    let space = if with & 4 == 0 { PortSpace::Tcp } else { PortSpace::Udp };
    let to = n % 2;
    let from = if with & 8 == 0 { 1 - to } else { to };
    let header = bellpush_wire::cm::IpHeader {
        from: SocketAddr::new(host(from), with as u16),
        to: host(to),
    };
    let mut start = [0; 256];
    start[..36].copy_from_slice(&header.emit());
    let head = |len: usize| start[..len].to_vec();
    let mut data = [0; MAD_BYTES];
    data[..4].copy_from_slice(&[1, 7, 2, 3]);
    data[17] = 0x10;
    let Message::Req(blank) = Mad::parse(&data).unwrap().message else { panic!() };
    data[17] = 0x13;
    let Message::Rep(rep) = Mad::parse(&data).unwrap().message else { panic!() };
    let (info, private) = ([0; 72], [0; 148]);
    let service = space.service(PORT);
    let message = match what % 9 {
        0 => {
            let mut path = blank.path;
            path.local_gid = match host(from) {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            (path.ack_timeout, path.traffic_class) = (with as u8 & 31, 1);
            let private = head(92).try_into().unwrap();
            let (mtu, cm_retries) = (with as u8 % 7, with as u8 & 15);
            let local_timeout = id as u8 & 31;
            let ask = Req { local_id, service, qpn: 1 + id % 5, path, private, mtu, ..blank };
            Message::Req(Req { cm_retries, local_timeout, ..ask })
        }
        1 => {
            let (acknowledged, timeout) = (id as u8 & 3, with as u8 & 31);
            Message::Mra(Mra { local_id, remote_id, acknowledged, timeout, private: [0; 222] })
        }
        2 => {
            let (rejected, info_bytes, reason) = (id as u8 & 3, with as u8 & 127, with as u16);
            let local_id = if id & 1 == 0 { 0 } else { local_id };
            let remote_id = if id & 2 == 0 { 0 } else { remote_id };
            let rej = Rej { local_id, remote_id, rejected, info_bytes, reason, info, private };
            Message::Rej(rej)
        }
        3 => Message::Rep(Rep { local_id, remote_id, qpn: id % 3, ..rep }),
        4 => Message::Rtu(Rtu { local_id, remote_id, private: [0; 224] }),
        5 => Message::Dreq(Dreq { local_id, remote_id, remote_qpn: qpn, private: [0; 220] }),
        6 => Message::Drep(bellpush_wire::cm::Drep { local_id, remote_id, private: [0; 224] }),
        7 => {
            let private = head(216).try_into().unwrap();
            Message::SidrReq(SidrReq { request_id: local_id, pkey: 0xffff, service, private })
        }
        _ => Message::SidrRep(SidrRep {
            request_id: remote_id,
            status: with as u8,
            info_bytes: with as u8,
            qpn: id,
            service,
            qkey: 1,
            info,
            private: [0; 136],
        }),
    };
    let mad = Mad { transaction: 1, modifier: 0, message }.emit();
    w.deliver(&OnWay { from: host(from), to: host(to), mad });
}

impl World {
    fn connections_of(&self, n: usize) -> Vec<u32> {
        self.hosts[n].devices[&0].cm.connections.keys().map(|id| id.0).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..Default::default() })]
    #[test]
    fn nothing_is_left_of_whatever_was_done(
        acts in prop::collection::vec((0_u8..44, 0_usize..4, 0_u32..12, 0_u32..512), 0..400)
    ) {
        let mut w = World::new(2);
        w.hosts.iter_mut().for_each(|ids| ids.open(CHANNELS[1]));
        for n in 0..2 {
            w.listen(n, Space::Udp, 0);
        }
        w.listen(0, Space::Tcp, 0);
        let _ = w.connected();
        for act in acts {
            match act.0 {
                36.. => lie(&mut w, act),
                _ => call(&mut w, act),
            }
            for ids in &w.hosts {
                let device = &ids.devices[&0];
                for (connection, owner) in &device.owners {
                    prop_assert_eq!(ids.ids[owner].connection, Some(*connection));
                    prop_assert!(device.cm.connections.contains_key(connection));
                }
                for id in device.cm.by_remote.values().chain(device.cm.by_qpn.values()) {
                    prop_assert!(device.cm.connections.contains_key(id));
                }
                for (id, connection) in &device.cm.connections {
                    if connection.owned {
                        prop_assert!(device.owners.contains_key(id));
                    } else {
                        prop_assert!(connection.due_ns.is_some());
                    }
                }
            }
        }
        let now = w.now_ns;
        for ids in &mut w.hosts {
            CHANNELS.iter().for_each(|&channel| ids.close(now, channel));
            prop_assert!(ids.ids.is_empty());
        }
        for _ in 0..100 {
            w.lose();
            w.pass(1000 * SECOND);
        }
        for ids in &mut w.hosts {
            let device = &ids.devices[&0];
            prop_assert!(device.owners.is_empty() && device.cm.by_remote.is_empty());
            prop_assert!(device.cm.by_qpn.is_empty() && device.cm.services.is_empty());
            prop_assert_eq!(ids.due_ns(), None);
            prop_assert!(ids.detach_idle());
        }
    }
}
