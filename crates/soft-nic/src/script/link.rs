//! A link whose packets a script strikes.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use super::{PacketAct, ScriptedFaults};
use crate::link::{
    FaultCounters, Link, LinkCounters, LinkError, Outgoing, Received, TxBatch, forward_to_inner,
};
use bellpush_wire::roce::{Envelope, Fields, Packet};

/// Packets that are held back at most; those behind them go on as if nothing were said of them.
const HELD: usize = 4096;
/// Packets on their way to the link below.
const OUT: usize = 64;

/// A link with a script.
pub struct Scripted<L> {
    inner: L,
    faults: Arc<ScriptedFaults>,
    out: TxBatch,
    sent: VecDeque<Held<(IpAddr, Fields)>>,
    received: VecDeque<Held<Envelope>>,
    now_ns: u64,
}

/// A packet that comes later.
struct Held<T> {
    due_ns: u64,
    with: T,
    bytes: Vec<u8>,
}

impl<L: Link> Scripted<L> {
    /// A link on which a script's faults of packets happen.
    ///
    /// # Errors
    /// [`LinkError::NeedsIcrc`] when packets shall be corrupted and those of `inner` have no ICRC
    /// that would show it.
    pub fn new(inner: L, faults: Arc<ScriptedFaults>) -> Result<Self, LinkError> {
        if faults.corrupts() && !inner.has_icrc() {
            return Err(LinkError::NeedsIcrc);
        }
        let (sent, received) = (VecDeque::new(), VecDeque::new());
        Ok(Self { inner, faults, out: TxBatch::new(OUT), sent, received, now_ns: 0 })
    }

    /// Has room for one more packet, and its copy.
    fn has_room(&mut self, now_ns: u64) -> Result<bool, LinkError> {
        if self.out.room() < 2 {
            self.inner.send(now_ns, &mut self.out)?;
        }
        Ok(self.out.room() >= 2)
    }

    fn accept(&mut self, packet: &Outgoing<'_>) {
        let act = strikes(&self.faults, true, packet.to, packet.bytes);
        let copies = match act {
            Some(PacketAct::Drop) => return,
            Some(PacketAct::Delay(ns)) if self.sent.len() < HELD => {
                let (due_ns, with) = (self.now_ns.saturating_add(ns), (packet.to, packet.fields));
                self.sent.push_back(Held { due_ns, with, bytes: packet.bytes.to_vec() });
                return;
            }
            Some(PacketAct::Duplicate) => 2,
            _ => 1,
        };
        for _ in 0..copies {
            self.out.push_with(packet.to, packet.fields, |buffer| {
                buffer[..packet.bytes.len()].copy_from_slice(packet.bytes);
                if act == Some(PacketAct::Corrupt) {
                    flip(&mut buffer[..packet.bytes.len()]);
                }
                Some(packet.bytes.len())
            });
        }
    }

    /// Sends what was held back long enough.
    fn release(&mut self, now_ns: u64) -> Result<(), LinkError> {
        let mut i = 0;
        while i < self.sent.len() {
            if self.sent[i].due_ns > now_ns {
                i += 1;
                continue;
            }
            if !self.has_room(now_ns)? {
                break;
            }
            let Some(Held { with: (to, fields), bytes, .. }) = self.sent.remove(i) else { break };
            self.out.push_with(to, fields, |buffer| {
                buffer[..bytes.len()].copy_from_slice(&bytes);
                Some(bytes.len())
            });
        }
        if !self.out.is_empty() {
            self.inner.send(now_ns, &mut self.out)?;
        }
        Ok(())
    }
}

/// What a script does to a packet. What is no packet is left alone.
fn strikes(faults: &ScriptedFaults, sent: bool, with: IpAddr, bytes: &[u8]) -> Option<PacketAct> {
    let packet = Packet::parse(bytes).ok()?;
    faults.on_packet(sent, with, &packet)
}

/// A bit in the middle of a packet, behind the BTH of any that has one byte more.
fn flip(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
}

impl<L: Link> Link for Scripted<L> {
    forward_to_inner!();

    fn send(&mut self, now_ns: u64, batch: &mut TxBatch) -> Result<usize, LinkError> {
        self.now_ns = now_ns;
        self.release(now_ns)?;
        let mut count = 0;
        while !batch.is_empty() && self.has_room(now_ns)? {
            let packet = batch.iter().next().expect("it is not empty");
            self.accept(&packet);
            batch.take(1);
            count += 1;
        }
        if !self.out.is_empty() {
            self.inner.send(now_ns, &mut self.out)?;
        }
        Ok(count)
    }

    fn recv(
        &mut self,
        now_ns: u64,
        most: usize,
        each: &mut dyn FnMut(&Received<'_>),
    ) -> Result<usize, LinkError> {
        self.now_ns = now_ns;
        self.release(now_ns)?;
        let (faults, received) = (&self.faults, &mut self.received);
        let mut late = 0;
        while let Some(at) = received.iter().position(|held| held.due_ns <= now_ns) {
            let Some(held) = received.remove(at) else { break };
            let (envelope, bytes) = (held.with, &held.bytes);
            each(&Received { envelope, bytes, checked: false });
            late += 1;
        }
        let came = self.inner.recv(now_ns, most, &mut |packet| {
            let from = packet.envelope.addresses.src();
            match strikes(faults, false, from, packet.bytes) {
                None => each(packet),
                Some(PacketAct::Drop) => {}
                Some(PacketAct::Duplicate) => {
                    each(packet);
                    each(packet);
                }
                Some(PacketAct::Corrupt) => {
                    let mut bytes = packet.bytes.to_vec();
                    flip(&mut bytes);
                    let (envelope, bytes) = (packet.envelope, &bytes);
                    each(&Received { envelope, bytes, checked: false });
                }
                Some(PacketAct::Delay(_)) if received.len() >= HELD => each(packet),
                Some(PacketAct::Delay(ns)) => received.push_back(Held {
                    due_ns: now_ns.saturating_add(ns),
                    with: packet.envelope,
                    bytes: packet.bytes.to_vec(),
                }),
            }
        })?;
        Ok(came + late)
    }

    fn poll_at(&self) -> Option<u64> {
        let sent = self.sent.iter().map(|held| held.due_ns);
        let received = self.received.iter().map(|held| held.due_ns);
        // What the link below had no room for goes on as soon as it can.
        let out = (!self.out.is_empty()).then_some(self.now_ns);
        sent.chain(received).chain(self.inner.poll_at()).chain(out).min()
    }

    fn holds(&self) -> bool {
        let here = self.sent.is_empty() && self.received.is_empty() && self.out.is_empty();
        !here || self.inner.holds()
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }

    fn faults(&self) -> Option<FaultCounters> {
        self.inner.faults()
    }

    fn describe(&self) -> String {
        format!("{}; scripted faults", self.inner.describe())
    }
}
