//! Packets of one connection, one after the other: PSNs, messages, lengths (InfiniBand vol. 1, 9.7.2 and 9.7.4 for RC,
//! 9.8 for UC, 9.7.5 for responses).

use std::collections::BTreeMap;
use std::net::IpAddr;

use bellpush::wire::Psn;
use bellpush::wire::roce::{Operation, Position, Service};

use super::item::Item;
use super::packet::{Seen, Single, Whole};

/// Most streams that are followed; of more, packets are shown and not compared with those before.
const MOST: usize = 1 << 16;

/// Who sends, who gets, which queue pair, requests or responses.
type Key = (IpAddr, IpAddr, u32, bool);

/// A message of which the last packet has not come.
#[derive(Debug, Clone, Copy)]
struct Open {
    operation: Operation,
    /// Bytes of its first packet: the path MTU.
    mtu: usize,
    /// Bytes so far.
    bytes: u64,
    /// What its RETH says.
    says: Option<u32>,
}

/// The message that a stream is in.
#[derive(Debug, Clone, Copy)]
enum State {
    /// Nobody knows: the capture begins, packets are missing, or some come again.
    Unknown,
    /// None: the one before has ended.
    Between,
    /// One that has begun.
    Within(Open),
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    /// The PSN that the next packet has: from, and how many more it may be. A READ takes as many as its response has
    /// packets, which the path MTU decides.
    next: Psn,
    slack: u32,
    /// The same behind the highest that was seen.
    high: (Psn, u32),
    state: State,
    /// What the queue pair is of: it has one service.
    service: Service,
    /// UDP's source port.
    port: u16,
}

/// What a packet is that a stream has, and the PSNs that it takes: at least, and perhaps more.
#[derive(Debug, Clone, Copy)]
struct Taken {
    service: Service,
    port: u16,
    psn: Psn,
    takes: (u32, u32),
}

/// The streams of a capture.
#[derive(Debug, Default)]
pub(super) struct Streams {
    all: BTreeMap<Key, Stream>,
}

/// The smallest path MTU.
const LEAST_MTU: u32 = 256;
const MTUS: [usize; 5] = [256, 512, 1024, 2048, 4096];

/// PSNs that a packet takes: at least, and more that it may.
fn takes(seen: &Whole) -> (u32, u32) {
    if seen.bth.opcode.operation() != Operation::ReadRequest {
        return (1, 0);
    }
    let bytes = seen.reth.map_or(0, |reth| reth.bytes.min(1 << 31));
    let least = bytes.div_ceil(4096).max(1);
    (least, bytes.div_ceil(LEAST_MTU).max(1) - least)
}

fn family(operation: Operation) -> u8 {
    match operation {
        op if op.is_send() => 0,
        op if op.is_write() => 1,
        op if op.is_read_response() => 2,
        _ => 3,
    }
}

impl Streams {
    /// Compares a packet with those before it of its stream.
    pub(super) fn take(&mut self, item: &mut Item, seen: &Seen) {
        match seen {
            Seen::Whole(seen) => self.whole(item, seen),
            Seen::Single(seen) => self.single(item, seen),
            // Its PSN and what it does to its message are not known: the next packet begins anew.
            Seen::Part(addresses, qpn) => {
                for requests in [false, true] {
                    self.all.remove(&(addresses.src(), addresses.dst(), *qpn, requests));
                }
            }
        }
    }

    fn whole(&mut self, item: &mut Item, seen: &Whole) {
        let opcode = seen.bth.opcode;
        let operation = opcode.operation();
        let connected = matches!(opcode.service(), Service::Rc | Service::Uc | Service::Xrc);
        // Acknowledgements are cumulative: their PSNs are those of requests, and some are left out.
        if !connected || !(operation.is_request() || operation.is_read_response()) {
            return;
        }
        let (from, to) = (seen.addresses.src(), seen.addresses.dst());
        let key = (from, to, seen.bth.dest.0, operation.is_request());
        let before = self.all.get(&key).copied();
        let psn = seen.bth.psn;
        let taken = Taken { service: opcode.service(), port: seen.port, psn, takes: takes(seen) };
        let before = before.filter(|before| !is_another(item, &taken, before));
        let responses = operation.is_read_response();
        let follows = before.is_some_and(|before| {
            same_service(item, &taken, &before) && sequence(item, psn, responses, &before)
        });
        let state = before.filter(|_| follows).map_or(State::Unknown, |before| before.state);
        let state = message(item, seen, state);
        self.goes_on(key, before, &taken, state);
    }

    /// A request of one packet: a message of its own.
    fn single(&mut self, item: &mut Item, seen: &Single) {
        let key = (seen.addresses.src(), seen.addresses.dst(), seen.dest, true);
        let before = self.all.get(&key).copied();
        // FLUSH and ATOMIC WRITE are of RC alone.
        let (service, port, psn) = (Service::Rc, seen.port, seen.psn);
        let taken = Taken { service, port, psn, takes: (1, 0) };
        let before = before.filter(|before| !is_another(item, &taken, before));
        let follows = before.is_some_and(|before| {
            same_service(item, &taken, &before) && sequence(item, psn, false, &before)
        });
        if let Some(Stream { state: State::Within(open), .. }) = before.filter(|_| follows) {
            let what = format!("another request, and {:?} has had no Last", open.operation);
            item.wrong(None, what);
        }
        self.goes_on(key, before, &taken, State::Between);
    }

    /// Where a stream is behind a packet.
    fn goes_on(&mut self, key: Key, before: Option<Stream>, taken: &Taken, state: State) {
        let &Taken { service, port, psn, takes: (least, slack) } = taken;
        if before.is_none() && self.all.len() >= MOST && !self.all.contains_key(&key) {
            return;
        }
        let next = psn.plus(least);
        let behind = before.filter(|before| next.before(before.high.0));
        let high = behind.map_or((next, slack), |before| before.high);
        self.all.insert(key, Stream { next, slack, high, state, service, port });
    }

    /// Messages that have begun, and of which the last packet is not there.
    pub(super) fn unfinished(&self) -> Vec<String> {
        let within = |state| if let State::Within(open) = state { Some(open) } else { None };
        let open = self.all.iter().filter_map(|(key, it)| Some((key, within(it.state)?)));
        open.map(|((from, to, qpn, _), open)| {
            format!(
                "{from} to QP {qpn:#x} at {to}: {:?} without its Last, after {} bytes",
                open.operation, open.bytes
            )
        })
        .collect()
    }
}

/// Whether the packet is of another connection than those before it: numbers of queue pairs are used again, and a
/// connection keeps its source port (annex A17) and its service. Of one that lost packets the PSN goes on close by.
fn is_another(item: &mut Item, taken: &Taken, before: &Stream) -> bool {
    const CLOSE: i32 = 1 << 12;
    let differs = match (taken.port != before.port, taken.service != before.service) {
        (true, _) => "source port",
        (_, true) => "service",
        (false, false) => return false,
    };
    let another = !(-CLOSE..=CLOSE).contains(&taken.psn.distance(before.next));
    if another {
        let what = format!("another {differs} and another PSN: taken for another connection");
        item.note(None, what);
    }
    another
}

/// Whether the packet is of the service that those before it are of.
fn same_service(item: &mut Item, taken: &Taken, before: &Stream) -> bool {
    let same = taken.service == before.service;
    if !same {
        let name = |service: Service| format!("{service:?}").to_uppercase();
        let (now, then) = (name(taken.service), name(before.service));
        let what = format!("a packet of {now} where those before are of {then}");
        item.wrong(None, format!("{what}: a queue pair has one service"));
    }
    same
}

/// Whether the packet follows the one before.
fn sequence(item: &mut Item, psn: Psn, responses: bool, before: &Stream) -> bool {
    let distance = psn.distance(before.next);
    if (0..=before.slack as i32).contains(&distance) {
        return true;
    }
    let (high, slack) = before.high;
    let beyond = psn.distance(high);
    if beyond < 0 {
        let what =
            format!("PSN {} was sent before, {} back: a retransmission", psn.value(), -beyond);
        item.note(None, what);
        return false;
    }
    // Between two READs' responses lie PSNs of requests that have no response of their own.
    if responses && !matches!(before.state, State::Within(_)) {
        return true;
    }
    if let missing @ 1.. = beyond - slack as i32 {
        let due = high.value();
        let what = format!("PSN {} where {due} is due: {missing} packets are missing", psn.value());
        item.wrong(None, what);
    }
    false
}

/// Whether the packet fits its message, and where the stream is behind it.
fn message(item: &mut Item, seen: &Whole, state: State) -> State {
    let operation = seen.bth.opcode.operation();
    let position = operation.position();
    let open = match (state, position.starts()) {
        (State::Within(begun), true) => {
            let what = format!("{operation:?} begins, and {:?} has had no Last", begun.operation);
            item.wrong(None, what);
            None
        }
        (State::Between, false) => {
            item.wrong(None, format!("{operation:?} without a First before it"));
            None
        }
        (State::Within(begun), false) if family(begun.operation) != family(operation) => {
            let what = format!("{operation:?} in a message that began with {:?}", begun.operation);
            item.wrong(None, what);
            None
        }
        (State::Within(begun), false) => Some(begun),
        _ => None,
    };
    let payload = seen.payload;
    match position {
        Position::Only => {
            if operation.is_write() {
                length(item, seen.reth.map(|reth| reth.bytes), payload as u64);
            }
            State::Between
        }
        Position::First => {
            if !MTUS.contains(&payload) {
                item.wrong(
                    None,
                    format!("a First carries the path MTU whole, and {payload} is none"),
                );
            }
            let says = seen.reth.filter(|_| operation.is_write()).map(|reth| reth.bytes);
            State::Within(Open { operation, mtu: payload, bytes: payload as u64, says })
        }
        Position::Middle => {
            let Some(open) = open else {
                if !MTUS.contains(&payload) {
                    let what =
                        format!("a Middle carries the path MTU whole, and {payload} is none");
                    item.wrong(None, what);
                }
                return State::Unknown;
            };
            if payload != open.mtu {
                let mtu = open.mtu;
                item.wrong(None, format!("a Middle of {payload} bytes, where the First has {mtu}"));
            }
            State::Within(Open { bytes: open.bytes + payload as u64, ..open })
        }
        Position::Last => {
            let Some(open) = open else { return State::Between };
            if payload == 0 || payload > open.mtu {
                let mtu = open.mtu;
                item.wrong(None, format!("a Last of {payload} bytes, where the First has {mtu}"));
            }
            length(item, open.says, open.bytes + payload as u64);
            State::Between
        }
    }
}

fn length(item: &mut Item, says: Option<u32>, bytes: u64) {
    if let Some(says) = says.filter(|says| u64::from(*says) != bytes) {
        item.wrong(None, format!("the message has {bytes} bytes, and its RETH says {says}"));
    }
}
