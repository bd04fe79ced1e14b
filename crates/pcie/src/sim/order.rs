//! Relaxed ordering of writes: how a root port drains them into host memory.
//!
//! A posted request passes no other posted request, unless it carries the relaxed-ordering
//! attribute (PCIe base specification 2.4.1, row A, column 2). A root port that keeps writes in
//! order holds each line until the memory has it and has said so, and lets it go behind all that
//! came before. Its buffer is finite: one slow write (a far socket, a walk of the IOMMU, a line in
//! no cache) holds up those behind it, down to the link. Writes that may pass others are handed on
//! as soon as their address is known.
//!
//! ID-based ordering (IDO), by which writes of different requesters pass each other, is not
//! modelled: one port's writes share one order. Nor is an order of peer writes: between root ports
//! they wait for the link's credits alone.

use super::calendar::Event;
use super::fabric::LINE_BYTES;
use super::{Credits, EndpointId, Ps, Sim};

/// How the requests of a device are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// Not known: writes are visible in order, and a root port holds any number of them.
    #[default]
    Unknown,
    /// In order, by a root port with a finite buffer.
    Strict,
    /// With the relaxed-ordering attribute: writes pass writes, completions pass writes.
    Relaxed,
}

impl From<Option<bool>> for Order {
    /// From whether relaxed ordering is in use.
    fn from(relaxed: Option<bool>) -> Self {
        match relaxed {
            None => Self::Unknown,
            Some(false) => Self::Strict,
            Some(true) => Self::Relaxed,
        }
    }
}

/// How writes of a route leave the root port's buffer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Drain {
    /// Hop that leaves the root complex.
    hop: u16,
    /// Lines that the root port holds.
    lines: u32,
    /// Whether in order, each until the memory has answered; else until its address is known.
    ordered: bool,
    /// Time in which the memory takes a line, and the mean of a wait of its own.
    access_ps: Ps,
    wait_ps: Ps,
    /// Way of the answer to the root port.
    back_ps: Ps,
}

impl Sim {
    /// Sets how a device's requests are ordered. To be called before its first operation.
    pub fn set_order(&mut self, endpoint: EndpointId, order: Order) {
        self.endpoints[endpoint.0 as usize].order = order;
    }

    /// Limits the packets that an endpoint's device sends, and those in which what it reads comes, to so
    /// many bytes. To be called before its first operation.
    pub fn set_packets(&mut self, endpoint: EndpointId, bytes: u32) {
        self.endpoints[endpoint.0 as usize].packet_bytes = bytes;
    }

    pub(super) fn order(&self, endpoint: EndpointId) -> Order {
        self.endpoints[endpoint.0 as usize].order
    }

    /// Sets what root ports hold of writes in order, as time at their links' rates.
    pub fn set_write_buffer(&mut self, ps: Ps) {
        self.write_buffer_ps = ps;
    }

    /// How writes from one endpoint to another leave a root port's buffer; `None` where none holds
    /// them.
    pub(super) fn drain_of(&self, from: EndpointId, to: EndpointId) -> Option<Drain> {
        let ordered = match self.order(from) {
            Order::Unknown => return None,
            Order::Strict => true,
            Order::Relaxed if self.iotlb(from, to).is_some() => false,
            Order::Relaxed => return None,
        };
        let (a, b) = (&self.endpoints[from.0 as usize], &self.endpoints[to.0 as usize]);
        if !b.spec.host_side {
            return None;
        }
        let hops = self.hops(a.node, b.node)?;
        let hop = hops.iter().position(|&(n, _)| self.turns[n as usize].is_some())?;
        let spec = |channel| self.fabric.spec_of(channel);
        // The link of the root port: what is above it lies inside the root complex.
        let mut links = hops[..hop].iter().rev().map(|&(_, c)| spec(c));
        let link = links.find(|s| s.credits != Credits::INFINITE)?;
        let bytes = link.gb_per_s * self.write_buffer_ps as f64 / 1000.0;
        let way = hops[hop..].iter().map(|&(_, c)| spec(c));
        let completer = b.spec.completer;
        Some(Drain {
            hop: hop as u16,
            lines: (bytes / f64::from(LINE_BYTES)) as u32,
            ordered,
            access_ps: completer.latency_ps,
            wait_ps: completer.wait_ps,
            back_ps: way.map(|s| s.latency_ps + s.inside_ps).sum(),
        })
    }

    pub(super) fn drain_route(&mut self, from: EndpointId, to: EndpointId, route: u32) {
        let Some(drain) = self.drain_of(from, to) else { return };
        self.fabric.drain(route, drain.hop, drain.lines);
        self.drains.resize(self.drains.len().max(route as usize + 1), None);
        self.drains[route as usize] = Some(drain);
    }

    /// Whether a transfer's writes may pass others.
    pub(super) fn is_relaxed(&self, transfer: u32) -> bool {
        let endpoint = self.transfers.items[transfer as usize].endpoint;
        self.endpoints[endpoint as usize].order == Order::Relaxed
    }

    /// What has arrived of a write leaves the root port's buffer once it is in memory.
    pub(super) fn drain_write(&mut self, transfer: u32, bytes: u32, visible: Ps) {
        let route = self.transfers.items[transfer as usize].route;
        let Some(&Some(drain)) = self.drains.get(route as usize) else { return };
        let lines = bytes.div_ceil(LINE_BYTES);
        let mut at = visible;
        if drain.ordered {
            at += drain.access_ps + self.slowest(u64::from(lines), drain.wait_ps);
            if let Some(pool) = self.fabric.pool(route) {
                pool.done = pool.done.max(at);
                at = pool.done;
            }
            at += drain.back_ps;
        }
        let id = self.draining.put((route, lines));
        self.cal.at(at, Event::Drained(id));
    }

    pub(super) fn write_drained(&mut self, id: u32) {
        let (route, lines) = self.draining.items[id as usize];
        self.draining.take(id);
        self.fabric.drained(&mut self.cal, route, lines);
    }
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
