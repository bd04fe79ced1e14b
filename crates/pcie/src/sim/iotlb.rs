//! The translation cache of an IOMMU (IOTLB): what an access of a device waits for when its page is
//! not in it.
//!
//! Accesses are spread evenly over `pages` pages, as pcie-bench's are over its window, so that a
//! cache of `entries` holds the page with probability entries ÷ pages. A miss is a walk of the
//! page table by one of `walkers`. A page is looked up once an operation; writes of one device
//! become visible in their order, so one that waits holds up those behind it.

use super::{EndpointId, Params, Ps, Sim};
use crate::tlp::PAGE_BYTES;

/// An IOTLB and its load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IotlbSpec {
    /// Entries.
    pub entries: u32,
    /// Pages over which accesses are spread.
    pub pages: u32,
    /// Time of a walk.
    pub walk_ps: Ps,
    /// Walks at once.
    pub walkers: u32,
}

impl IotlbSpec {
    pub(super) fn of(p: &Params) -> Self {
        let whole = |value: f64| value.clamp(1.0, 1e6) as u32;
        Self {
            entries: whole(p.iotlb_entries),
            pages: whole(p.iommu_pages),
            walk_ps: Params::ps(p.iotlb_walk_ns),
            walkers: whole(p.iotlb_walkers).min(4096),
        }
    }

    /// Share of accesses whose page is not in it.
    pub fn miss_share(&self) -> f64 {
        (1.0 - f64::from(self.entries) / f64::from(self.pages.max(1))).max(0.0)
    }
}

#[derive(Debug)]
pub(super) struct Iotlb {
    pub spec: IotlbSpec,
    /// When each walker is free.
    free: Vec<Ps>,
    /// When the last write that was translated became visible.
    written: Ps,
}

impl Sim {
    /// Adds an IOTLB.
    pub fn add_iotlb(&mut self, spec: IotlbSpec) -> usize {
        let free = vec![0; spec.walkers.max(1) as usize];
        self.iotlbs.push(Iotlb { spec, free, written: 0 });
        self.iotlbs.len() - 1
    }

    /// Has an IOTLB translate what an endpoint asks of host memory and, through root complexes, of
    /// peers. To be called before the endpoint's first operation.
    pub fn translate(&mut self, endpoint: EndpointId, iotlb: usize) {
        self.iotlb_of.insert(endpoint.0, iotlb);
    }

    /// The IOTLB that translates what goes from one endpoint to another.
    pub(super) fn iotlb(&self, from: EndpointId, to: EndpointId) -> Option<usize> {
        let iotlb = *self.iotlb_of.get(&from.0)?;
        let node = |e: EndpointId| self.endpoints[e.0 as usize].node;
        let through = || {
            let hops = self.hops(node(from), node(to)).unwrap_or_default();
            hops.iter().any(|&(n, _)| self.turns[n as usize].is_some())
        };
        (self.endpoints[to.0 as usize].spec.host_side || through()).then_some(iotlb)
    }

    /// When the address of a TLP of a transfer is known. `place` tells the pages of a transfer
    /// apart.
    fn translated(&mut self, transfer: u32, place: u64) -> Ps {
        let now = self.cal.now;
        let t = self.transfers.items[transfer as usize];
        let Some(&iotlb) = self.translated_routes.get(&t.route) else { return now };
        let page = place / PAGE_BYTES + 1;
        if t.page != page {
            let ready = self.look_up(iotlb);
            let t = &mut self.transfers.items[transfer as usize];
            (t.page, t.ready_ps) = (page, ready);
        }
        self.transfers.items[transfer as usize].ready_ps.max(now)
    }

    fn look_up(&mut self, iotlb: usize) -> Ps {
        let now = self.cal.now;
        let share = self.iotlbs[iotlb].spec.miss_share();
        // Where all pages fit no chance is drawn: other results stay as they are.
        if share <= 0.0 || (self.random() as f64 / u64::MAX as f64) >= share {
            return now;
        }
        let own = &mut self.iotlbs[iotlb];
        let Some(first) = own.free.iter_mut().min() else { return now };
        *first = now.max(*first) + own.spec.walk_ps;
        *first
    }

    /// When a read request's address is known.
    pub(super) fn read_translated(&mut self, transfer: u32, addr: u64) -> Ps {
        self.translated(transfer, addr)
    }

    /// When what has arrived of a write is visible, behind the writes before it unless it may pass
    /// them.
    pub(super) fn write_translated(&mut self, transfer: u32, left: u32) -> Ps {
        let ready = self.translated(transfer, u64::from(left));
        let route = self.transfers.items[transfer as usize].route;
        let Some(&iotlb) = self.translated_routes.get(&route) else { return ready };
        if self.is_relaxed(transfer) {
            return ready;
        }
        let written = &mut self.iotlbs[iotlb].written;
        *written = ready.max(*written);
        *written
    }
}

#[cfg(test)]
#[path = "iotlb_tests.rs"]
mod tests;
