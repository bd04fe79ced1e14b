//! Peers that mean harm: messages that are made up, of what was said before or of nothing.

use std::net::{IpAddr, SocketAddr};

use bellpush_cm::EventKind;
use bellpush_wire::cm::{
    Drep, Dreq, IP_HEADER_BYTES, IpHeader, MAD_BYTES, Mad, Message, Mra, PortSpace, Rej, Rep, Req,
    Rtu, SidrRep, SidrReq,
};

use super::{BACKLOG, Call, FLOOD, Input, MOST_HELD, OnWay, PORT, World, host};

impl World {
    /// More requests than anybody reads, for a service that is offered or for one that is not.
    pub(super) fn flood(&mut self, n: usize, how: u8) {
        self.read(n);
        let from = host(2);
        let service = PortSpace::Tcp.service(PORT + u16::from(how & 1));
        let mut answers = 0;
        for _ in 0..FLOOD {
            // Of numbers that nobody has had.
            self.flooded += 1;
            let numbers = (0x5a5a_0000 + self.flooded, 0x5a_0000 + self.flooded);
            let req = request(from, host(n as u8), service, numbers);
            let mad = Mad { transaction: 1, modifier: 0, message: Message::Req(req) }.emit();
            self.hosts[n].ids.receive(self.now_ns, 0, from, &mad);
            answers += self.collect(n, None).len();
        }
        let events = self.take(n);
        let asked = events.iter().filter(|event| event.kind == EventKind::ConnectRequest).count();
        let offered = self.hosts[n].known.values().filter(|it| it.calls.contains(&Call::Listen));
        assert!(asked <= offered.count() * BACKLOG as usize, "{asked} requests wait");
        assert!(asked > 0 || answers + MOST_HELD >= FLOOD as usize || self.is_offered(n));
        for event in &events {
            self.heard(n, event);
        }
    }

    pub(super) fn is_offered(&self, n: usize) -> bool {
        self.hosts[n].known.values().any(|it| it.calls.contains(&Call::Listen))
    }

    /// A message that somebody makes up, of what was said before or of nothing.
    pub(super) fn lie(&mut self, input: &mut Input<'_>) {
        let (kind, how) = (input.u8(), input.u8());
        let to = how & 1;
        let from = if how & 6 == 0 { host(2 + (how >> 3 & 1)) } else { host(1 - to) };
        let ids = [usize::from(to), usize::from(1 - to)]
            .map(|n| self.hosts[n].named.keys().copied().collect::<Vec<_>>());
        let mut one = |of: usize| match input.u8() {
            at @ 0..200 if !ids[of].is_empty() => ids[of][usize::from(at) % ids[of].len()],
            0..230 => 0,
            _ => input.u32(),
        };
        let (remote_id, local_id) = (one(0), one(1));
        let with = input.u8();
        let qpn = self.hosts[usize::from(to)]
            .named
            .get(&remote_id)
            .and_then(|id| self.hosts[usize::from(to)].known.get(id))
            .map_or(0, |known| known.qpn);
        let qpn = if how & 64 == 0 { qpn } else { with.into() };
        let space = if kind >> 4 & 1 == 0 { PortSpace::Tcp } else { PortSpace::Udp };
        let service = space.service(PORT);
        let req = request(from, host(to), service, (local_id, u32::from(with)));
        let mut message = made_up(kind, (local_id, remote_id, qpn), (with, service), &req);
        if let Message::Req(it) = &mut message
            && how & 128 != 0
        {
            (it.mtu, it.transport, it.cm_retries) = (with & 15, with >> 6, with & 15);
            (it.local_timeout, it.path.ack_timeout) = (with & 31, with & 31);
        }
        let mut mad = Mad { transaction: with.into(), modifier: 0, message }.emit();
        if how & 32 != 0 {
            // Of any content, at one place.
            let at = usize::from(input.u8());
            mad[at % MAD_BYTES] ^= input.u8();
        }
        self.outcome.lies += 1;
        let events = self.deliver(&OnWay { from, to: host(to), mad });
        self.outcome.believed += events as u64;
    }
}

/// A right request of somebody.
fn request(from: IpAddr, to: IpAddr, service: u64, (local_id, qpn): (u32, u32)) -> Req {
    let mut data = [0; MAD_BYTES];
    data[..4].copy_from_slice(&[1, 7, 2, 3]);
    data[17] = 0x10;
    let Message::Req(mut req) = Mad::parse(&data).expect("a REQ of zeros").message else {
        panic!("no REQ")
    };
    let header = IpHeader { from: SocketAddr::new(from, 4000), to };
    req.private[..IP_HEADER_BYTES].copy_from_slice(&header.emit());
    (req.local_id, req.qpn, req.service, req.mtu) = (local_id, qpn, service, 3);
    (req.cm_retries, req.local_timeout, req.path.ack_timeout) = (3, 17, 16);
    let IpAddr::V4(v4) = from else { panic!("{from}") };
    req.path.local_gid = v4.to_ipv6_mapped().octets();
    req
}

/// A message of a kind.
fn made_up(
    kind: u8,
    (local_id, remote_id, qpn): (u32, u32, u32),
    (with, service): (u8, u64),
    req: &Req,
) -> Message {
    let (info, reason) = ([0; 72], with.into());
    match kind % 9 {
        0 => Message::Req(*req),
        1 => {
            let (acknowledged, timeout) = (with & 3, with >> 3);
            Message::Mra(Mra { local_id, remote_id, acknowledged, timeout, private: [0; 222] })
        }
        2 => {
            let (rejected, info_bytes, private) = (with & 3, with & 127, [0; 148]);
            let rej = Rej { local_id, remote_id, rejected, info_bytes, reason, info, private };
            Message::Rej(rej)
        }
        3 => Message::Rep(Rep {
            local_id,
            remote_id,
            qkey: 0,
            qpn: with.into(),
            psn: u32::from(with) << 9,
            responder_resources: with & 7,
            initiator_depth: with >> 4,
            ack_delay: 0,
            failover: 0,
            flow_control: false,
            rnr_retry: with & 7,
            srq: false,
            guid: 0,
            private: [with; 196],
        }),
        4 => Message::Rtu(Rtu { local_id, remote_id, private: [0; 224] }),
        5 => Message::Dreq(Dreq { local_id, remote_id, remote_qpn: qpn, private: [0; 220] }),
        6 => Message::Drep(Drep { local_id, remote_id, private: [0; 224] }),
        7 => {
            let mut private = [0; 216];
            private[..IP_HEADER_BYTES].copy_from_slice(&req.private[..IP_HEADER_BYTES]);
            Message::SidrReq(SidrReq { request_id: local_id, pkey: 0xffff, service, private })
        }
        _ => Message::SidrRep(SidrRep {
            request_id: remote_id,
            status: with & 3,
            info_bytes: with & 63,
            qpn: with.into(),
            service,
            qkey: 1,
            info,
            private: [0; 136],
        }),
    }
}
