//! The model against published rates of NICs' writes into host memory with and without relaxed
//! ordering. Nothing was fitted to them. What a row states of its machine is its link, the NIC's
//! rate, where the memory is, and whether the CPU puts a device's writes into its last-level cache
//! (Intel: DDIO) or into memory (AMD's EPYC).

use super::flows::simulate_uncached;
use super::{Flow, Params, SimError, simulate_flows};
use crate::topology::{Builder, Kind, RawLink, Topology};

/// A machine as a row states it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OrderMachine {
    /// Generation of the NIC's x16 link.
    pub generation: u32,
    /// The NIC's rate, Gb/s.
    pub nic_gbps: f64,
    /// Whether writes go into a cache.
    pub cached: bool,
    /// Whether the memory belongs to the other socket.
    pub far: bool,
    /// Pages of 4 KiB over which the writes are spread behind an IOMMU that translates; 0: none.
    pub pages: u32,
}

fn machine(m: &OrderMachine, relaxed: bool) -> Topology {
    let mut b = Builder::new("a NIC and host memory");
    for s in ["s0", "s1"] {
        b.add(s, Kind::Socket, None, None, None);
    }
    b.interconnect("s0", "s1", 1000.0, None);
    b.add("rc0", Kind::RootComplex, Some("s0"), None, None);
    let link = RawLink::new(m.generation, 16);
    b.add("nic0", Kind::Nic, Some("rc0"), Some(link), None).relaxed_ordering = Some(relaxed);
    b.finish().expect("legal by construction")
}

/// Simulates a NIC's writes into host memory in order, and with relaxed ordering, Gb/s.
///
/// # Errors
/// As [`simulate_flows`].
pub fn simulate_order(params: &Params, m: &OrderMachine) -> Result<[f64; 2], SimError> {
    let params = Params { iommu_pages: f64::from(m.pages.max(1)), ..params.clone() };
    let mut gbps = [0.0; 2];
    for (relaxed, gbps) in [false, true].into_iter().zip(&mut gbps) {
        let mut t = machine(m, relaxed);
        if m.pages > 0 {
            t = t.with(crate::topology::Knob::Iommu, 1.0).expect("a switch has no bounds");
        }
        let find = |id| t.find(id).expect("was added above");
        let flow = Flow::write(find("nic0"), find(if m.far { "s1" } else { "s0" }));
        let rate = if m.cached {
            simulate_flows(&t, &params, &[flow])?[0]
        } else {
            simulate_uncached(&t, &params, flow)?
        };
        *gbps = (8.0 * rate).min(m.nic_gbps);
    }
    Ok(gbps)
}
