//! A link that keeps no more order than a network does: kinds `packets`, `acks` and `routing`.
//!
//! The packets to one queue pair wait in their order, those to several pass each other: RoCEv2 orders nothing between
//! them. With `routing` a packet of a reliable connection is overtaken now and then, as where switches choose a way
//! for each packet; go-back-N makes up for that. With `acks` an acknowledgement comes so late now and then, never two
//! of a queue pair in a row, that it passes for lost and its requests come twice.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;

use super::{Adversary, Kind, LONGEST_NS, wait_ns};
use crate::link::{
    FaultCounters, Link, LinkCounters, LinkError, Outgoing, Received, Rng, TxBatch,
    forward_to_inner,
};
use bellpush_wire::roce::{Aeth, Fields, MAX_PACKET_BYTES, Operation, Packet, Service, Syndrome};

/// Packets that are held back at most; while so many are, the link takes no more.
const HELD: usize = 1024;
/// Packets on their way to the link below.
const OUT: usize = 64;
/// Queue pairs of peers whose order is remembered at most.
const FLOWS: usize = 1 << 16;
/// How late an acknowledgement comes that passes for lost: a requester of ours has asked again by then. It comes at
/// last, because a peer that has it sent may end.
const LOST_NS: u64 = 150_000_000;
/// One of so many acknowledgements passes for lost, one of so many packets is overtaken.
const LOST: u64 = 32;
const OVERTAKEN: u64 = 128;

/// A packet that is held back.
struct Held {
    to: IpAddr,
    fields: Fields,
    bytes: Box<[u8; MAX_PACKET_BYTES]>,
    len: usize,
}

/// What goes to one queue pair.
#[derive(Default)]
struct Flow {
    due_ns: u64,
    /// The acknowledgement before passes for lost.
    lost: bool,
}

/// The link.
pub(crate) struct Unruly {
    inner: Box<dyn Link>,
    adversary: Adversary,
    rng: Rng,
    flows: HashMap<(IpAddr, u32), Flow>,
    held: Vec<Held>,
    free: Vec<usize>,
    /// By time, then in the order in which they were put there.
    due: BinaryHeap<Reverse<(u64, u64, usize)>>,
    order: u64,
    full: u64,
    out: TxBatch,
    now_ns: u64,
}

impl Unruly {
    /// Whether an adversary does anything here.
    pub(crate) fn suits(adversary: Adversary) -> bool {
        [Kind::Packets, Kind::Acks, Kind::Routing].into_iter().any(|kind| adversary.has(kind))
    }

    pub(crate) fn new(inner: Box<dyn Link>, adversary: Adversary) -> Self {
        let empty = || Held {
            to: inner.address(),
            fields: Fields::default(),
            bytes: Box::new([0; MAX_PACKET_BYTES]),
            len: 0,
        };
        Self {
            held: (0..HELD).map(|_| empty()).collect(),
            free: (0..HELD).collect(),
            inner,
            adversary,
            rng: Rng(adversary.seed.rotate_left(32)),
            flows: HashMap::new(),
            due: BinaryHeap::with_capacity(HELD),
            order: 0,
            full: 0,
            out: TxBatch::new(OUT),
            now_ns: 0,
        }
    }

    /// Decides on a packet, for which there is a place.
    fn accept(&mut self, packet: &Outgoing<'_>) {
        let parsed = Packet::parse(packet.bytes).ok();
        let dest = parsed.as_ref().map_or(0, |it| it.headers.bth.dest.0);
        if self.flows.len() >= FLOWS {
            self.flows.clear();
        }
        let flow = self.flows.entry((packet.to, dest)).or_default();
        let is_ack = parsed.as_ref().is_some_and(|it| {
            let ack =
                matches!(it.headers.ext.aeth, Some(Aeth { syndrome: Syndrome::Ack { .. }, .. }));
            ack && it.opcode().operation() == Operation::Acknowledge
        });
        if is_ack && self.adversary.has(Kind::Acks) {
            flow.lost = !flow.lost && self.rng.below(LOST) == 0;
            if flow.lost && self.free.len() > HELD / 2 {
                return self.hold(packet, self.now_ns + LOST_NS);
            }
        }
        let wait = if self.adversary.has(Kind::Packets) { wait_ns(&mut self.rng) } else { 0 };
        let mut due = flow.due_ns.max(self.now_ns + wait);
        flow.due_ns = due;
        let reliable = parsed.as_ref().is_some_and(|it| it.opcode().service() == Service::Rc);
        if reliable && self.adversary.has(Kind::Routing) && self.rng.below(OVERTAKEN) == 0 {
            due += LONGEST_NS / 2;
        }
        self.hold(packet, due);
    }

    fn hold(&mut self, packet: &Outgoing<'_>, due: u64) {
        let place = self.free.pop().expect("room was checked");
        let (held, bytes) = (&mut self.held[place], packet.bytes);
        (held.to, held.fields, held.len) = (packet.to, packet.fields, bytes.len());
        held.bytes[..bytes.len()].copy_from_slice(bytes);
        self.due.push(Reverse((due, self.order, place)));
        self.order += 1;
    }

    /// Sends what is due by then, as far as the link below takes it now.
    fn flush(&mut self, (now_ns, until_ns): (u64, u64)) -> Result<(), LinkError> {
        self.now_ns = now_ns;
        loop {
            while self.out.room() > 0
                && let Some(&Reverse((due, _, place))) = self.due.peek()
                && due <= until_ns
            {
                self.due.pop();
                self.free.push(place);
                let Held { to, fields, bytes, len } = &self.held[place];
                self.out.push_with(*to, *fields, |buf| {
                    buf[..*len].copy_from_slice(&bytes[..*len]);
                    Some(*len)
                });
            }
            if self.out.is_empty() || self.inner.send(now_ns, &mut self.out)? == 0 {
                return Ok(());
            }
        }
    }
}

impl Drop for Unruly {
    /// What was sent is on its way, whatever becomes of who sent it.
    fn drop(&mut self) {
        while !self.due.is_empty() || !self.out.is_empty() {
            let before = self.due.len() + self.out.len();
            if self.flush((self.now_ns, u64::MAX)).is_err()
                || self.due.len() + self.out.len() == before
            {
                return;
            }
        }
    }
}

impl Link for Unruly {
    forward_to_inner!();

    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        self.flush((now_ns, now_ns))?;
        let mut taken = 0;
        for packet in batch.iter() {
            if self.free.is_empty() {
                self.full += 1;
                break;
            }
            self.accept(&packet);
            taken += 1;
        }
        batch.take(taken);
        self.flush((now_ns, now_ns))?;
        Ok(taken)
    }

    fn recv(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        self.flush((now_ns, now_ns))?;
        self.inner.recv(now_ns, most, each)
    }

    fn poll_at(&self) -> Option<u64> {
        let due = self.due.peek().map(|&Reverse((due, ..))| due);
        let out = (!self.out.is_empty()).then_some(self.now_ns);
        [due, out, self.inner.poll_at()].into_iter().flatten().min()
    }

    fn holds(&self) -> bool {
        !self.due.is_empty() || !self.out.is_empty() || self.inner.holds()
    }

    fn counters(&self) -> LinkCounters {
        let inner = self.inner.counters();
        LinkCounters { tx_full: inner.tx_full + self.full, ..inner }
    }

    fn faults(&self) -> Option<FaultCounters> {
        self.inner.faults()
    }

    fn describe(&self) -> String {
        format!("{}; adversary {}", self.inner.describe(), self.adversary)
    }
}
