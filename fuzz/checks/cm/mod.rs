//! Sequences of the connection manager: two hosts whose programs call what they like in any order, a network that
//! loses, doubles and reorders, and peers that lie. Any input is a sequence.
//!
//! What must hold, whatever the bytes say:
//!
//! - a program is told what rdma_cm tells, in its order: nothing of an identifier that it did not ask for, nothing
//!   after the end, each event once;
//! - an event says what the message said that led to it, and comes of a message of the identifier's peer alone, which
//!   names the identifier's own communication ID, and the peer's once that is known;
//! - a message is answered with no more than two, and to nobody but its sender;
//! - a call that an identifier's stage does not allow is refused;
//! - requests that wait are bounded, and when everything is destroyed, nothing is left and nothing is waited for.

mod legal;
mod lies;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bellpush_cm::{
    Address, ChannelId, DeviceInfo, EventKind, IdError, Ids, Kind, Parameters, Random, Space, Stage,
};
use bellpush_wire::cm::{IP_HEADER_BYTES, MAD_BYTES, Mad, Message};

const CHANNELS: [ChannelId; 2] = [ChannelId(0), ChannelId(1)];
const PORT: u16 = 7174;
const SECOND: u64 = 1_000_000_000;
/// Steps of a sequence at most.
const MOST: usize = 300;
/// Requests of a flood, and of these such as may wait for a service that nobody offers.
const FLOOD: u32 = 150;
const MOST_HELD: usize = 64;
const BACKLOG: u32 = 3;

/// What a sequence led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Events that programs were told.
    pub events: u64,
    /// Connections that the passive side was told of as established.
    pub established: u64,
    /// Connections that ended with an event.
    pub ended: u64,
    /// Answers of datagram services.
    pub datagrams: u64,
    /// Messages that were made up, and those of them that led to an event.
    pub lies: u64,
    pub believed: u64,
    /// Calls that were refused.
    pub refused: u64,
}

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn u8(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.u8()))
    }
}

/// The hosts are 0 and 1; the others have no programs.
fn host(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n % 4 + 1).into()
}

#[derive(Clone)]
struct OnWay {
    from: IpAddr,
    to: IpAddr,
    mad: [u8; MAD_BYTES],
}

/// What is known of an identifier: what the program has called and been told.
#[derive(Debug, Default)]
struct Known {
    uid: u64,
    passive: bool,
    datagrams: bool,
    calls: Vec<Call>,
    told: Vec<EventKind>,
    /// Where its peer is, and the peer's communication ID, once they are known.
    peer: Option<IpAddr>,
    remote_id: Option<u32>,
    qpn: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    ResolveAddress,
    ResolveRoute,
    Listen,
    Connect,
    Accept,
    Disconnect,
}

struct Host {
    ids: Ids,
    known: BTreeMap<u32, Known>,
    /// Identifiers by the communication IDs that their messages have named.
    named: BTreeMap<u32, u32>,
}

struct World {
    hosts: [Host; 2],
    net: VecDeque<OnWay>,
    now_ns: u64,
    /// Whether programs read their events late: what led to one is not known then.
    lazy: bool,
    uids: u64,
    /// Requests of floods so far.
    flooded: u32,
    outcome: Outcome,
}

/// Panics when something is wrong.
pub fn run(data: &[u8]) -> Outcome {
    let mut input = Input(data);
    let mut w = World::new(input.u8() & 1 != 0);
    for _ in 0..MOST {
        if input.0.is_empty() {
            break;
        }
        w.step(&mut input);
    }
    w.end();
    w.outcome
}

fn parameters(input: &mut Input<'_>) -> Parameters {
    let (qpn, bytes) = (u32::from(input.u8() % 6) + 1, input.u8());
    Parameters {
        qpn,
        private: vec![bytes; usize::from(bytes)],
        responder_resources: bytes & 7,
        initiator_depth: bytes >> 4,
        flow_control: bytes & 8 != 0,
        retry: bytes,
        rnr_retry: bytes >> 3,
        srq: bytes & 1 != 0,
    }
}

impl World {
    fn new(lazy: bool) -> Self {
        let process = |n: u8| {
            let mut ids = Ids::new(Random::seeded(u64::from(n) + 1));
            ids.attach(0, DeviceInfo { address: host(n), guid: 9 + u64::from(n), mtu: 5 });
            CHANNELS.iter().for_each(|&channel| ids.open(channel));
            Host { ids, known: BTreeMap::new(), named: BTreeMap::new() }
        };
        let hosts = [process(0), process(1)];
        let (net, outcome) = (VecDeque::new(), Outcome::default());
        let mut w = Self { hosts, net, now_ns: 0, lazy, uids: 1, flooded: 0, outcome };
        // Somebody listens from the first.
        w.listener(1, Space::Tcp);
        w.listener(1, Space::Udp);
        w
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let (what, n) = (input.u8(), usize::from(input.u8() & 1));
        let id = self.pick(n, input.u8());
        match what % 32 {
            0 | 1 => drop(self.create(n, input.u8())),
            2 => self.destroy(n, id),
            3 => self.bind(n, id, input.u8()),
            4 => self.listen(n, id),
            5 => self.resolve_address(n, id, input.u8()),
            6 => self.resolve_route(n, id),
            7 => self.connect(n, id, &parameters(input)),
            // From nothing to a request.
            8..=11 => {
                let id = self.create(n, what >> 5);
                self.resolve_address(n, id, input.u8());
                self.resolve_route(n, id);
                self.connect(n, id, &parameters(input));
            }
            12 | 13 => self.accept(n, id, &parameters(input)),
            14 => self.establish(n, id),
            15 => self.disconnect(n, id),
            16 => self.reject(n, id, input.u8()),
            17 => self.call(n, |ids, now| ids.is_in_use(now, channel_of(id), id)),
            18 => self.migrate(n, id, input.u8()),
            19 => self.flood(n, input.u8()),
            20 => self.read(n),
            // All that programs would do next, with what is there.
            21 => self.answer_all(n, &parameters(input)),
            22 | 23 => self.pass(u64::from(input.u8()) * SECOND / 40),
            24 => self.pass(u64::from(input.u8()) * SECOND),
            25 => {
                self.net.pop_front();
            }
            26 => {
                let again = self.net.front().cloned();
                self.net.extend(again);
                self.net.rotate_left(1.min(self.net.len()));
            }
            27 | 28 => self.lie(input),
            29 => {
                for _ in 0..20 {
                    self.deliver_next();
                }
            }
            _ => self.deliver_next(),
        }
    }

    // ---- Calls ----------------------------------------------------------------------------------

    /// An identifier that is there, or now and then one that is not.
    fn pick(&self, n: usize, at: u8) -> u32 {
        let known = &self.hosts[n].known;
        let one = known.keys().nth(usize::from(at) % known.len().max(1)).copied();
        if at > 250 { u32::from(at) } else { one.unwrap_or(u32::from(at)) }
    }

    fn channel(&mut self, n: usize, id: u32) -> (ChannelId, Option<(Stage, Kind, Space)>) {
        let ids = &mut self.hosts[n].ids;
        for channel in CHANNELS {
            match ids.look(channel, id) {
                Ok(seen) => return (channel, Some(seen)),
                Err(IdError::OtherChannel) => {}
                Err(other) => assert_eq!(other, IdError::Unknown),
            }
        }
        (CHANNELS[0], None)
    }

    /// Carries a call out and takes what it sends; whether it was refused is no matter here.
    fn call<T>(&mut self, n: usize, body: impl FnOnce(&mut Ids, u64) -> Result<T, IdError>) {
        let now = self.now_ns;
        self.outcome.refused += u64::from(body(&mut self.hosts[n].ids, now).is_err());
        self.collect(n, None);
        self.heed(n);
    }

    /// The same, of a call that must be refused but where it `may` be carried out.
    fn must<T>(
        &mut self,
        n: usize,
        (id, call, may): (u32, Call, bool),
        body: impl FnOnce(&mut Ids, u64) -> Result<T, IdError>,
    ) -> bool {
        let now = self.now_ns;
        let done = body(&mut self.hosts[n].ids, now);
        let error = done.as_ref().err().copied();
        assert!(may || error.is_some(), "{call:?} of {id} at the wrong time was not refused");
        self.outcome.refused += u64::from(error.is_some());
        if error.is_none() {
            self.hosts[n].known.get_mut(&id).expect("it was called").calls.push(call);
        }
        self.collect(n, Some(id));
        self.heed(n);
        error.is_none()
    }

    fn create(&mut self, n: usize, how: u8) -> u32 {
        let space = if how & 1 == 0 { Space::Tcp } else { Space::Udp };
        self.uids += 1;
        let uid = self.uids;
        let id = self.hosts[n].ids.create(CHANNELS[usize::from(how >> 1 & 1)], uid, space).unwrap();
        let known = Known { uid, datagrams: space == Space::Udp, ..Known::default() };
        assert!(self.hosts[n].known.insert(id, known).is_none(), "{id} is another's");
        id
    }

    fn listener(&mut self, n: usize, space: Space) {
        let id = self.create(n, u8::from(space == Space::Udp));
        self.bind(n, id, 0);
        self.listen(n, id);
    }

    fn destroy(&mut self, n: usize, id: u32) {
        let (channel, seen) = self.channel(n, id);
        let now = self.now_ns;
        let host = &mut self.hosts[n];
        assert_eq!(host.ids.destroy(now, channel, id).is_ok(), seen.is_some());
        host.known.remove(&id);
        host.named.retain(|_, of| *of != id);
        self.collect(n, None);
        // Those who asked it and were not read go as well.
        self.forget_gone(n);
        self.heed(n);
    }

    fn forget_gone(&mut self, n: usize) {
        let all: Vec<u32> = self.hosts[n].known.keys().copied().collect();
        for id in all {
            if self.channel(n, id).1.is_none() {
                self.hosts[n].known.remove(&id);
                self.hosts[n].named.retain(|_, of| *of != id);
            }
        }
    }

    fn bind(&mut self, n: usize, id: u32, at: u8) {
        let (channel, seen) = self.channel(n, id);
        let ip = [Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::LOCALHOST.into(), host(n as u8), host(3)];
        let port = [PORT, 0, PORT + 1][usize::from(at >> 2) % 3];
        let to = Address::Ip(SocketAddr::new(ip[usize::from(at & 3)], port));
        let done = self.hosts[n].ids.bind(channel, id, to);
        let may = seen.is_some_and(|(stage, ..)| stage == Stage::Idle) && at & 3 != 3;
        assert!(may || done.is_err(), "bound twice, or to another's address");
        self.outcome.refused += u64::from(done.is_err());
    }

    fn listen(&mut self, n: usize, id: u32) {
        let (channel, seen) = self.channel(n, id);
        let may = seen.is_some_and(|(stage, ..)| matches!(stage, Stage::Idle | Stage::Bound));
        self.must(n, (id, Call::Listen, may), |ids, _| ids.listen(channel, id, BACKLOG));
    }

    fn resolve_address(&mut self, n: usize, id: u32, to: u8) {
        let (channel, seen) = self.channel(n, id);
        let may = seen.is_some_and(|(stage, ..)| matches!(stage, Stage::Idle | Stage::Bound));
        // Mostly the other host.
        let at = if to < 200 { host(1 - n as u8) } else { host(to) };
        let to = SocketAddr::new(at, PORT + u16::from(to % 16 == 1));
        let call = (id, Call::ResolveAddress, may);
        if self.must(n, call, |ids, _| ids.resolve_address(channel, id, None, to)) {
            self.hosts[n].known.get_mut(&id).unwrap().peer = Some(to.ip());
        }
    }

    fn resolve_route(&mut self, n: usize, id: u32) {
        let (channel, seen) = self.channel(n, id);
        let may = seen.is_some_and(|(stage, ..)| stage == Stage::AddrResolved);
        let call = (id, Call::ResolveRoute, may);
        assert_eq!(self.must(n, call, |ids, _| ids.resolve_route(channel, id)), may);
    }

    fn connect(&mut self, n: usize, id: u32, with: &Parameters) {
        let (channel, seen) = self.channel(n, id);
        let room = |kind| if kind == Kind::Connection { 92 } else { 216 } - IP_HEADER_BYTES;
        let may = seen.is_some_and(|(stage, kind, _)| {
            stage == Stage::RouteResolved && with.private.len() <= room(kind)
        });
        if let Some(known) = self.hosts[n].known.get_mut(&id).filter(|_| may) {
            known.qpn = with.qpn;
        }
        let call = (id, Call::Connect, may);
        assert_eq!(self.must(n, call, |ids, now| ids.connect(now, channel, id, with)), may);
    }

    fn accept(&mut self, n: usize, id: u32, with: &Parameters) {
        let (channel, seen) = self.channel(n, id);
        let room = |kind| if kind == Kind::Connection { 196 } else { 136 };
        let once = |known: &Known| known.passive && !known.calls.contains(&Call::Accept);
        let may = self.hosts[n].known.get(&id).is_some_and(once)
            && seen.is_some_and(|(stage, kind, _)| {
                stage == Stage::Connecting && with.private.len() <= room(kind)
            });
        self.uids += 1;
        let uid = self.uids;
        if let Some(known) = self.hosts[n].known.get_mut(&id).filter(|_| may) {
            (known.qpn, known.uid) = (with.qpn, uid);
        }
        let call = (id, Call::Accept, may);
        self.must(n, call, |ids, now| ids.accept(now, channel, id, Some((uid, with))));
    }

    fn establish(&mut self, n: usize, id: u32) {
        let (channel, _) = self.channel(n, id);
        let answered = |known: &Known| {
            self.lazy && !known.passive || known.told.contains(&EventKind::ConnectResponse)
        };
        let may = self.hosts[n].known.get(&id).is_some_and(answered);
        let call = (id, Call::Accept, may);
        self.must(n, call, |ids, now| ids.accept(now, channel, id, None));
    }

    fn disconnect(&mut self, n: usize, id: u32) {
        let (channel, _) = self.channel(n, id);
        let asked = |known: &Known| known.passive || known.calls.contains(&Call::Connect);
        let may = self.hosts[n].known.get(&id).is_some_and(asked);
        let call = (id, Call::Disconnect, may);
        assert_eq!(self.must(n, call, |ids, now| ids.disconnect(now, channel, id)), may);
    }

    fn reject(&mut self, n: usize, id: u32, why: u8) {
        let (channel, _) = self.channel(n, id);
        let private = vec![1; usize::from(why)];
        self.call(n, |ids, now| ids.reject(now, channel, id, why.into(), &private));
    }

    fn migrate(&mut self, n: usize, id: u32, to: u8) {
        let (channel, _) = self.channel(n, id);
        self.call(n, |ids, _| ids.migrate(channel, id, CHANNELS[usize::from(to & 1)]));
    }

    /// Accepts, establishes and confirms whatever was told.
    fn answer_all(&mut self, n: usize, with: &Parameters) {
        self.read(n);
        let all: Vec<u32> = self.hosts[n].known.keys().copied().collect();
        for id in all {
            let Some(known) = self.hosts[n].known.get(&id) else { continue };
            let is_new = !known.calls.contains(&Call::Accept);
            match known.told.last() {
                Some(EventKind::ConnectRequest) if is_new && known.passive => {
                    self.accept(n, id, with);
                }
                Some(EventKind::ConnectResponse) if is_new => self.establish(n, id),
                Some(EventKind::Disconnected) => self.disconnect(n, id),
                _ => {}
            }
        }
    }

    // ---- The network ----------------------------------------------------------------------------

    /// Takes what a host sends, because of an identifier if the caller knows of one; how many, and to whom.
    fn collect(&mut self, n: usize, of: Option<u32>) -> Vec<IpAddr> {
        let mut to = Vec::new();
        let host_ip = host(n as u8);
        while let Some(send) = self.hosts[n].ids.next_send() {
            let mad = Mad::parse(&send.mad).expect("what is sent is understood");
            let own = match &mad.message {
                Message::Req(it) => Some(it.local_id),
                Message::Rep(it) => Some(it.local_id),
                Message::SidrReq(it) => Some(it.request_id),
                _ => None,
            };
            if let (Some(own), Some(id)) = (own, of) {
                self.hosts[n].named.insert(own, id);
            }
            to.push(send.to);
            self.net.push_back(OnWay { from: host_ip, to: send.to, mad: send.mad });
        }
        while self.hosts[n].ids.next_offer().is_some() {}
        // Nobody keeps more messages than a network would.
        self.net.truncate(200);
        to
    }

    fn deliver_next(&mut self) {
        if let Some(message) = self.net.pop_front() {
            self.deliver(&message);
        }
    }

    /// Delivers a message, and looks at what becomes of it.
    fn deliver(&mut self, message: &OnWay) -> usize {
        let Some(n) = (0..2).find(|&n| host(n) == message.to).map(usize::from) else { return 0 };
        if !self.lazy {
            self.read(n);
        }
        self.hosts[n].ids.receive(self.now_ns, 0, message.from, &message.mad);
        let to = self.collect(n, None);
        assert!(to.len() <= 2, "{} answers", to.len());
        assert!(to.iter().all(|&to| to == message.from), "{to:?} hear of {}", message.from);
        if self.lazy {
            return 0;
        }
        let events = self.take(n);
        let mad = Mad::parse(&message.mad).ok();
        assert!(mad.is_some() || events.is_empty(), "{events:?} of nothing");
        for event in &events {
            let because = &mad.as_ref().expect("it was understood").message;
            self.is_because(n, event, message.from, because);
            self.heard(n, event);
        }
        assert!(events.len() <= 1, "{events:?}");
        events.len()
    }

    fn pass(&mut self, ns: u64) {
        self.now_ns += ns;
        for n in 0..2 {
            self.hosts[n].ids.poll(self.now_ns);
            self.collect(n, None);
            self.heed(n);
        }
    }

    // ---- The end --------------------------------------------------------------------------------

    /// Everything is destroyed, and nobody answers any more.
    fn end(&mut self) {
        let now = self.now_ns;
        for n in 0..2 {
            self.read(n);
            let host = &mut self.hosts[n];
            CHANNELS.iter().for_each(|&channel| host.ids.close(now, channel));
            let all: Vec<u32> = host.known.keys().copied().collect();
            for id in all {
                assert_eq!(self.channel(n, id).1, None, "{id} outlives its channel");
            }
            assert!(self.take(n).is_empty());
            self.collect(n, None);
        }
        let mut sent = 0;
        for _ in 0..40 {
            self.now_ns += 1000 * SECOND;
            for n in 0..2 {
                self.hosts[n].ids.poll(self.now_ns);
                sent += self.collect(n, None).len();
            }
        }
        assert!(sent <= 17 * 2 * (MOST + FLOOD as usize), "{sent} messages of nobody");
        for host in &mut self.hosts {
            assert_eq!(host.ids.due_ns(), None, "something is waited for");
            assert!(host.ids.detach_idle(), "something is left: {:?}", host.ids);
        }
    }
}

fn channel_of(id: u32) -> ChannelId {
    CHANNELS[(id & 1) as usize]
}
