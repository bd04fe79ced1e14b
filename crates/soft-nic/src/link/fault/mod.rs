//! A link that hurts: loss, duplication, reordering, corruption, delay and a bounded rate, on what
//! a NIC sends over any other link.
//!
//! The decisions depend on the seed and on the order of the packets alone, not on time: the same
//! packets suffer the same faults.

mod spec;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;

pub use spec::{Faults, FaultsError};
/// Shares and times as people write them.
pub(crate) mod units {
    pub(crate) use super::spec::{PERCENT, TIME, one_line, percent, time_ns};
}

use super::{Link, LinkCounters, LinkError, Outgoing, Received, TxBatch, forward_to_inner};
use bellpush_wire::roce::{Fields, MAX_PACKET_BYTES};

/// Packets that are held back at most; while so many are, the link takes no more.
const HELD: usize = 1024;
/// Packets on their way to the link below.
const OUT: usize = 64;
/// How many packets overtake one that is reordered: 1 to this.
const MAX_OVERTAKEN: u64 = 4;
/// How long a reordered packet waits for packets that overtake it.
const OVERTAKE_NS: u64 = 50_000;
/// How far the queue of a bounded rate reaches: what is sent beyond it waits with the sender.
const QUEUE_NS: u64 = 1_000_000;

/// What a [`Faulty`] link has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultCounters {
    /// Packets that the NIC sent.
    pub packets: u64,
    /// Those that were lost.
    pub lost: u64,
    /// Those that were sent twice.
    pub duplicated: u64,
    /// Copies that were held back for others to overtake.
    pub reordered: u64,
    /// Copies of which a bit flipped.
    pub corrupted: u64,
}

/// SplitMix64 (Steele, Lea, Flood 2014): short, and the same everywhere.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// True with this probability. Draws in any case, so that one fault's share does not move
    /// the others' decisions.
    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A packet that is held back.
struct Held {
    to: IpAddr,
    fields: Fields,
    bytes: Box<[u8; MAX_PACKET_BYTES]>,
    len: usize,
}

/// A packet that waits to be overtaken.
struct Waiting {
    place: usize,
    /// Goes on when so many packets have been sent in all, ...
    after: u64,
    /// ... or at this time.
    until: u64,
}

/// A link with faults.
pub struct Faulty<L> {
    inner: L,
    faults: Faults,
    rng: Rng,
    counters: FaultCounters,
    /// Times that the sender had to wait.
    full: u64,
    held: Vec<Held>,
    free: Vec<usize>,
    /// By time, then in the order in which they were put there.
    due: BinaryHeap<Reverse<(u64, u64, usize)>>,
    order: u64,
    waiting: Vec<Waiting>,
    /// When the wire is free again, of a bounded rate.
    wire_free_ns: u64,
    out: TxBatch,
    now_ns: u64,
}

impl<L: Link> Faulty<L> {
    /// A link that does this to what is sent over `inner`.
    ///
    /// # Errors
    /// [`LinkError::NeedsIcrc`] when packets shall be corrupted and those of `inner` have no ICRC
    /// that would show it.
    pub fn new(inner: L, faults: Faults) -> Result<Self, LinkError> {
        if faults.corrupt > 0.0 && !inner.has_icrc() {
            return Err(LinkError::NeedsIcrc);
        }
        let empty = || Held {
            to: inner.address(),
            fields: Fields::default(),
            bytes: Box::new([0; MAX_PACKET_BYTES]),
            len: 0,
        };
        let held: Vec<Held> = (0..HELD).map(|_| empty()).collect();
        Ok(Self {
            held,
            free: (0..HELD).collect(),
            inner,
            rng: Rng(faults.seed),
            faults,
            counters: FaultCounters::default(),
            full: 0,
            due: BinaryHeap::with_capacity(HELD),
            order: 0,
            waiting: Vec::with_capacity(HELD),
            wire_free_ns: 0,
            out: TxBatch::new(OUT),
            now_ns: 0,
        })
    }

    /// Decides on a packet. Both copies that there may be have a place.
    fn accept(&mut self, packet: &Outgoing<'_>) {
        let Faults { loss, dup, .. } = self.faults;
        self.counters.packets += 1;
        let (lost, twice) = (self.rng.happens(loss), self.rng.happens(dup));
        self.counters.lost += u64::from(lost);
        self.counters.duplicated += u64::from(twice && !lost);
        for _ in 0..u64::from(!lost) + u64::from(twice && !lost) {
            self.hold(packet);
        }
        let (sent, mut i) = (self.counters.packets, 0);
        while i < self.waiting.len() {
            if self.waiting[i].after <= sent {
                let place = self.waiting.remove(i).place;
                self.depart(place);
            } else {
                i += 1;
            }
        }
    }

    fn hold(&mut self, packet: &Outgoing<'_>) {
        let bytes = packet.bytes;
        let place = self.free.pop().expect("room for two copies was checked");
        let held = &mut self.held[place];
        (held.to, held.fields, held.len) = (packet.to, packet.fields, bytes.len());
        held.bytes[..bytes.len()].copy_from_slice(bytes);
        let (corrupt, bit) = (self.rng.happens(self.faults.corrupt), self.rng.next());
        if corrupt && !bytes.is_empty() {
            self.counters.corrupted += 1;
            let bit = (bit % (bytes.len() as u64 * 8)) as usize;
            held.bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let (reorder, by) =
            (self.rng.happens(self.faults.reorder), 1 + self.rng.below(MAX_OVERTAKEN));
        if reorder {
            self.counters.reordered += 1;
            let (after, until) = (self.counters.packets + by, self.now_ns + OVERTAKE_NS);
            self.waiting.push(Waiting { place, after, until });
        } else {
            self.depart(place);
        }
    }

    /// Puts a packet on the wire, at whose end it arrives when it is due.
    fn depart(&mut self, place: usize) {
        self.wire_free_ns = self.wire_free_ns.max(self.now_ns);
        if let Some(rate) = self.faults.rate {
            let ns = self.held[place].len as u128 * 1_000_000_000 / u128::from(rate);
            self.wire_free_ns = self.wire_free_ns.saturating_add(ns as u64);
        }
        let due = self.wire_free_ns.saturating_add(self.faults.delay_ns);
        self.due.push(Reverse((due, self.order, place)));
        self.order += 1;
    }

    /// Sends what is due, as far as the link below takes it.
    fn flush(&mut self, now_ns: u64) -> Result<(), LinkError> {
        self.now_ns = now_ns;
        while let Some(i) = self.waiting.iter().position(|w| w.until <= now_ns) {
            let place = self.waiting.remove(i).place;
            self.depart(place);
        }
        loop {
            while self.out.room() > 0
                && let Some(&Reverse((due, _, place))) = self.due.peek()
                && due <= now_ns
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

impl<L: Link> Link for Faulty<L> {
    forward_to_inner!();

    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        self.flush(now_ns)?;
        let mut taken = 0;
        for packet in batch.iter() {
            if self.free.len() < 2 || self.wire_free_ns > now_ns.saturating_add(QUEUE_NS) {
                self.full += 1;
                break;
            }
            self.accept(&packet);
            taken += 1;
        }
        batch.take(taken);
        self.flush(now_ns)?;
        Ok(taken)
    }

    fn recv(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        self.flush(now_ns)?;
        self.inner.recv(now_ns, most, each)
    }

    fn poll_at(&self) -> Option<u64> {
        let due = self.due.peek().map(|&Reverse((due, ..))| due);
        let waiting = self.waiting.iter().map(|w| w.until).min();
        let out = (!self.out.is_empty()).then_some(self.now_ns);
        [due, waiting, out, self.inner.poll_at()].into_iter().flatten().min()
    }

    fn holds(&self) -> bool {
        let here = self.due.is_empty() && self.waiting.is_empty() && self.out.is_empty();
        !here || self.inner.holds()
    }

    fn counters(&self) -> LinkCounters {
        let inner = self.inner.counters();
        LinkCounters { tx_full: inner.tx_full + self.full, ..inner }
    }

    fn faults(&self) -> Option<FaultCounters> {
        Some(self.counters)
    }

    fn describe(&self) -> String {
        format!("{}; faults {}", self.inner.describe(), self.faults)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
