//! The model against published rates of NICs' writes into host memory with and without relaxed
//! ordering. Nothing was fitted to them. What a row states of its machine is its link, the NIC's
//! rate, where the memory is, and whether the CPU puts a device's writes into its last-level cache
//! (Intel: DDIO) or into memory (AMD's EPYC).

use super::flows::{flows_imprint, simulate_uncached, uncached_imprint};
use super::{Flow, Params, SimError, simulate_flows};
use crate::topology::{Builder, Kind, RawLink, Topology};

/// A machine as a row states it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OrderMachine {
    /// Generation of the NIC's link.
    pub generation: u32,
    /// Its lanes.
    pub lanes: u32,
    /// The NIC's rate, Gb/s.
    pub nic_gbps: f64,
    /// Whether writes go into a cache.
    pub cached: bool,
    /// Whether the memory belongs to the other socket.
    pub far: bool,
    /// Pages of 4 KiB over which the writes are spread behind an IOMMU that translates; 0: none.
    pub pages: u32,
}

/// A published pair of rates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OrderRow {
    /// Machine, in words.
    pub name: &'static str,
    /// The same for the model.
    pub machine: OrderMachine,
    /// Rate in order, Gb/s.
    pub strict: Option<f64>,
    /// Rate with relaxed ordering, Gb/s.
    pub relaxed: Option<f64>,
    /// Whether the rates were known when the mechanism was written.
    pub known_before: bool,
    /// What the source leaves open.
    pub note: &'static str,
    /// Who published them.
    pub source: &'static str,
}

const fn nic(generation: u32, lanes: u32, nic_gbps: f64, cached: bool, far: bool) -> OrderMachine {
    OrderMachine { generation, lanes, nic_gbps, cached, far, pages: 0 }
}

const NFP: f64 = 1000.0;

/// The rows. Those with `known_before` were read before the mechanism was written, the others after
/// its predictions had been written down.
pub const ORDER_ROWS: [OrderRow; 6] = [
    OrderRow {
        name: "EPYC, 200 Gb/s",
        machine: nic(4, 16, 200.0, false, false),
        strict: Some(150.0),
        relaxed: Some(200.0),
        known_before: true,
        note: "the source names neither model nor socket: own socket assumed; the other: 136",
        source: "openucx/ucx#8062",
    },
    OrderRow {
        name: "Arm, ConnectX-4 Lx, other socket",
        machine: nic(3, 8, 50.0, false, true),
        strict: Some(10.0),
        relaxed: Some(40.0),
        known_before: false,
        note: "one TCP stream; the source says GB/s, which a port of 50 Gb/s does not have",
        source: "Linux, commit 17347d5430c4 (mlx5e)",
    },
    OrderRow {
        name: "Emerald Rapids, 400 Gb/s",
        machine: nic(5, 16, 400.0, true, false),
        strict: Some(128.0),
        relaxed: Some(320.0),
        known_before: true,
        note: "about 16, more than 40 GB/s; \"traffic can take different PCIe path\" in order",
        source: "openucx/ucx#10955",
    },
    OrderRow {
        name: "Ivy Bridge, NFP, 512 B, other socket",
        machine: nic(3, 8, NFP, true, true),
        strict: Some(54.45),
        relaxed: None,
        known_before: true,
        note: "as fast as on its own socket",
        source: "pcie-bench/data",
    },
    OrderRow {
        name: "Broadwell, NFP, 512 B, other socket",
        machine: nic(3, 8, NFP, true, true),
        strict: Some(53.01),
        relaxed: None,
        known_before: true,
        note: "as fast as on its own socket",
        source: "pcie-bench/data",
    },
    OrderRow {
        name: "eight 400 Gb/s NICs, host memory",
        machine: nic(5, 16, 400.0, true, false),
        strict: Some(376.0),
        relaxed: None,
        known_before: false,
        note: "CPU not named, Intel assumed; relaxed ordering was off by default",
        source: "kvcache-ai/Mooncake#1459",
    },
];

fn machine(m: &OrderMachine, relaxed: bool) -> Topology {
    let mut b = Builder::new("a NIC and host memory");
    for s in ["s0", "s1"] {
        b.add(s, Kind::Socket, None, None, None);
    }
    b.unknown_interconnect("s0", "s1");
    b.add("rc0", Kind::RootComplex, Some("s0"), None, None);
    let link = RawLink::new(m.generation, m.lanes);
    b.add("nic0", Kind::Nic, Some("rc0"), Some(link), None).relaxed_ordering = Some(relaxed);
    b.finish().expect("legal by construction")
}

fn flow_of(params: &Params, m: &OrderMachine, relaxed: bool) -> (Topology, Params, Flow) {
    let params = Params { iommu_pages: f64::from(m.pages.max(1)), ..params.clone() };
    let mut t = machine(m, relaxed);
    if m.pages > 0 {
        t = t.with(crate::topology::Knob::Iommu, 1.0).expect("a switch has no bounds");
    }
    let find = |id| t.find(id).expect("was added above");
    let flow = Flow::write(find("nic0"), find(if m.far { "s1" } else { "s0" }));
    (t, params, flow)
}

/// What a row depends on.
pub(super) fn order_imprint(params: &Params, m: &OrderMachine) -> String {
    let (t, params, flow) = flow_of(params, m, false);
    match m.cached {
        true => flows_imprint(&t, &params, &[flow], None),
        false => uncached_imprint(&t, &params, flow),
    }
}

/// Simulates a NIC's writes into host memory in order, and with relaxed ordering, Gb/s.
///
/// # Errors
/// As [`simulate_flows`].
pub fn simulate_order(params: &Params, m: &OrderMachine) -> Result<[f64; 2], SimError> {
    let mut gbps = [0.0; 2];
    for (relaxed, gbps) in [false, true].into_iter().zip(&mut gbps) {
        let (t, params, flow) = flow_of(params, m, relaxed);
        let rate = if m.cached {
            simulate_flows(&t, &params, &[flow])?[0]
        } else {
            simulate_uncached(&t, &params, flow)?
        };
        *gbps = (8.0 * rate).min(m.nic_gbps);
    }
    Ok(gbps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iommu_translates_where_a_row_has_pages() {
        for row in ORDER_ROWS {
            let pages = |pages| OrderMachine { pages, ..row.machine };
            for (machine, translated) in [(pages(0), false), (pages(1024), true)] {
                let (t, params, flow) = flow_of(&Params::default(), &machine, true);
                assert_eq!(t.is_translated(flow.from), translated);
                assert_eq!(params.iommu_pages, f64::from(machine.pages.max(1)));
            }
        }
    }
}
