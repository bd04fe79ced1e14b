//! Programs on several hosts, whose network loses, doubles and reorders.

mod chaos;
mod hostile;
mod lossy;
mod programs;
mod sharing;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bellpush_wire::cm::{MAD_BYTES, Mad, MessageKind};

use crate::{
    Address, ChannelId, DeviceInfo, EventKind, Ids, Param, Parameters, Random, Space, UserEvent,
};

const CHANNEL: ChannelId = ChannelId(0);
const PORT: u16 = 7174;
const SECOND: u64 = 1_000_000_000;

/// What a program calls its first identifier.
const UID: u64 = 77;

fn host(n: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n as u8 + 1).into()
}

/// A message on its way.
#[derive(Clone)]
struct OnWay {
    from: IpAddr,
    to: IpAddr,
    mad: [u8; MAD_BYTES],
}

impl OnWay {
    fn kind(&self) -> MessageKind {
        Mad::parse(&self.mad).unwrap().message.kind()
    }
}

/// Hosts with a process each.
struct World {
    hosts: Vec<Ids>,
    net: VecDeque<OnWay>,
    now_ns: u64,
    /// Kinds of all messages that were sent.
    sent: Vec<MessageKind>,
}

impl World {
    fn new(hosts: usize) -> Self {
        let process = |n| {
            let mut ids = Ids::new(Random::seeded(n as u64 + 1));
            let info = DeviceInfo { address: host(n), guid: n as u64 + 9, mtu: 5 };
            ids.attach(0, info);
            ids.open(CHANNEL);
            ids
        };
        Self {
            hosts: (0..hosts).map(process).collect(),
            net: VecDeque::new(),
            now_ns: 0,
            sent: vec![],
        }
    }

    /// Gives the network what hosts send.
    fn collect(&mut self) {
        for (n, ids) in self.hosts.iter_mut().enumerate() {
            while let Some(send) = ids.next_send() {
                let message = OnWay { from: host(n), to: send.to, mad: send.mad };
                self.sent.push(message.kind());
                self.net.push_back(message);
            }
        }
    }

    fn deliver(&mut self, message: &OnWay) {
        let IpAddr::V4(to) = message.to else { panic!() };
        let Some(ids) = self.hosts.get_mut(usize::from(to.octets()[3]) - 1) else { return };
        ids.receive(self.now_ns, 0, message.from, &message.mad);
    }

    /// Delivers everything in order.
    fn settle(&mut self) {
        self.collect();
        while let Some(message) = self.net.pop_front() {
            self.deliver(&message);
            self.collect();
        }
    }

    /// Drops what is on its way.
    fn lose(&mut self) -> Vec<MessageKind> {
        self.collect();
        self.net.drain(..).map(|message| message.kind()).collect()
    }

    /// Has time pass, and what is due done.
    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        let now = self.now_ns;
        self.hosts.iter_mut().for_each(|ids| ids.poll(now));
    }

    fn event(&mut self, n: usize) -> Option<UserEvent> {
        self.hosts[n].next_event(CHANNEL)
    }

    /// The next event, which must be of this kind.
    #[track_caller]
    fn expect(&mut self, n: usize, kind: EventKind) -> UserEvent {
        let event = self.event(n).unwrap_or_else(|| panic!("no {kind:?}"));
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }

    /// An identifier of a host that listens.
    fn listen(&mut self, n: usize, space: Space, backlog: u32) -> u32 {
        let ids = &mut self.hosts[n];
        let id = ids.create(CHANNEL, UID, space).unwrap();
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT);
        ids.bind(CHANNEL, id, Address::Ip(any)).unwrap();
        ids.listen(CHANNEL, id, backlog).unwrap();
        id
    }

    /// An identifier of a host that asks another.
    fn connect(&mut self, n: usize, to: usize, space: Space, private: &[u8]) -> u32 {
        let id = self.resolve(n, to, space);
        let with = parameters(0x100 + n as u32, private);
        let now = self.now_ns;
        self.hosts[n].connect(now, CHANNEL, id, &with).unwrap();
        id
    }

    /// The same, before it asks.
    fn resolve(&mut self, n: usize, to: usize, space: Space) -> u32 {
        let ids = &mut self.hosts[n];
        let id = ids.create(CHANNEL, UID, space).unwrap();
        let to = SocketAddr::new(host(to), PORT);
        ids.resolve_address(CHANNEL, id, None, to).unwrap();
        self.expect(n, EventKind::AddrResolved);
        self.hosts[n].resolve_route(CHANNEL, id).unwrap();
        self.expect(n, EventKind::RouteResolved);
        id
    }

    fn accept(&mut self, n: usize, id: u32, private: &[u8]) {
        let (now, with) = (self.now_ns, parameters(0x200 + n as u32, private));
        self.hosts[n].accept(now, CHANNEL, id, Some((UID + 1, &with))).unwrap();
    }

    fn establish(&mut self, n: usize, id: u32) {
        let now = self.now_ns;
        self.hosts[n].accept(now, CHANNEL, id, None).unwrap();
    }

    fn disconnect(&mut self, n: usize, id: u32) {
        let now = self.now_ns;
        self.hosts[n].disconnect(now, CHANNEL, id).unwrap();
    }

    fn destroy(&mut self, n: usize, id: u32) -> u32 {
        let now = self.now_ns;
        self.hosts[n].destroy(now, CHANNEL, id).unwrap()
    }

    /// Host 0 asks host 1, which listens: the two identifiers of a connection.
    fn connected(&mut self) -> (u32, u32) {
        self.listen(1, Space::Tcp, 0);
        let a = self.connect(0, 1, Space::Tcp, b"");
        self.settle();
        let b = self.expect(1, EventKind::ConnectRequest).id;
        self.accept(1, b, b"");
        self.settle();
        self.expect(0, EventKind::ConnectResponse);
        self.establish(0, a);
        self.settle();
        self.expect(1, EventKind::Established);
        (a, b)
    }
}

fn parameters(qpn: u32, private: &[u8]) -> Parameters {
    Parameters {
        qpn,
        private: private.to_vec(),
        responder_resources: 3,
        initiator_depth: 2,
        flow_control: true,
        retry: 7,
        rnr_retry: 6,
        ..Parameters::default()
    }
}

fn private(event: &UserEvent) -> &[u8] {
    match &event.param {
        Param::Connection(param) => &param.private,
        Param::Datagrams(param) => &param.private,
    }
}
