//! What a NIC is to the advice: whether it has RDMA, whether kernels can post to it, how fast it is
//! at most, and as what its times are computed.

use bellpush::pcie::Origin;
use bellpush::pcie::sim::{NicModel, Params};
use bellpush::pcie::topology::{NodeId, Topology};

use super::advice::Basis;

/// Bits of a byte: rates of wires are Gb/s by their names, GB/s in the model.
const BITS: f64 = 8.0;

/// What is known of a NIC by the command, its name and its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Is {
    /// The command names the NIC for which every NIC is taken.
    Named,
    /// It has no RDMA: no path is advised.
    NoRdma,
    /// mlx5: ConnectX-4 and later.
    Mlx5,
    /// An RDMA NIC with another driver, to which no kernel of ours posts.
    Other(&'static str),
    /// Its name says nothing.
    Unknown,
}

/// What a port carries at most, and who says it.
#[derive(Debug, Clone, PartialEq)]
pub struct Port {
    /// GB/s.
    pub gb_per_s: f64,
    /// In words.
    pub said: String,
}

/// What a device is whose name its driver has given: of sysfs, and of nvidia-smi's matrix. Where systemd names devices
/// (`rocep1s0`), names tell nothing of drivers.
fn named(text: &str) -> Option<Is> {
    const OTHERS: [(&str, &str); 6] = [
        ("mlx4_", "mlx4"),
        ("bnxt_re", "bnxt_re"),
        ("irdma", "irdma"),
        ("ocrdma", "ocrdma"),
        ("efa_", "efa"),
        ("hfi1_", "hfi1"),
    ];
    if text.contains("mlx5_") {
        return Some(Is::Mlx5);
    }
    OTHERS.iter().find(|(name, _)| text.contains(name)).map(|&(_, driver)| Is::Other(driver))
}

impl Basis {
    /// What a NIC is.
    pub fn nic_is(&self, topology: &Topology, nic: NodeId) -> Is {
        if self.is_named {
            return Is::Named;
        }
        let node = topology.node(nic);
        match topology.nic_family(nic) {
            Some(family) if !family.has_rdma => Is::NoRdma,
            Some(family) if family.is_mlx5() => Is::Mlx5,
            Some(family) => Is::Other(family.driver.unwrap_or("another driver")),
            None => named(&node.id).or_else(|| named(&node.model)).unwrap_or(Is::Unknown),
        }
    }

    /// Whether advice is given for this NIC: one without RDMA has no path.
    pub fn takes(&self, topology: &Topology, nic: NodeId) -> bool {
        self.nic_is(topology, nic) != Is::NoRdma
    }

    /// What the NIC's port carries at most; `None`: neither the command nor its name tells.
    pub fn port(&self, topology: &Topology, nic: NodeId) -> Option<Port> {
        if self.origins.of("wire_gb_per_s") != Origin::Assumed {
            let gb_per_s = self.params.wire_gb_per_s;
            return Some(Port { gb_per_s, said: "wire_gb_per_s as given".into() });
        }
        if self.is_named {
            let (gb_per_s, nic) = (self.params.wire_gb_per_s, self.nic);
            let said = format!("{} Gb/s assumed of --nic {nic}", gb_per_s * BITS);
            return Some(Port { gb_per_s, said });
        }
        let family = topology.nic_family(nic)?;
        let ports = ports_of_card(topology, nic).len();
        let (gbps, of) = match family.gbps_of_two {
            Some(gbps) if ports > 1 => (gbps, format!("{} with several", family.name)),
            _ => (family.gbps?, family.name.to_owned()),
        };
        let said = format!("{gbps} Gb/s, a port's most of {of}");
        Some(Port { gb_per_s: f64::from(gbps) / BITS, said })
    }

    /// What the NIC gets at most: the least of its port and its PCIe link, GB/s.
    pub fn most(&self, topology: &Topology, nic: NodeId) -> Option<f64> {
        let port = self.port(topology, nic).map(|port| port.gb_per_s);
        let both = [port, topology.link_gb_per_s(nic)];
        both.into_iter().flatten().min_by(f64::total_cmp)
    }

    /// The parameters for this NIC: the wire of its port, if that is known.
    pub fn params_of(&self, topology: &Topology, nic: NodeId) -> Params {
        let mut params = self.params.clone();
        if let Some(port) = self.port(topology, nic) {
            params.wire_gb_per_s = port.gb_per_s;
        }
        params
    }

    /// The NIC of which a NIC's times are.
    pub fn taken_for(&self, topology: &Topology, nic: NodeId) -> String {
        let model = match self.nic {
            NicModel::Cx7 => "a ConnectX-7",
            NicModel::Software => "the software NIC",
        };
        let place = match self.nic_is(topology, nic) {
            Is::Other(_) => " in its place",
            Is::Unknown => " for want of its name",
            _ => "",
        };
        format!("{model}{place}")
    }

    /// The same with the wire.
    pub fn priced_as(&self, topology: &Topology, nic: NodeId) -> String {
        let port = self.port(topology, nic).map(|port| port.said);
        let wire = port.unwrap_or_else(|| {
            format!("{} Gb/s assumed, port's rate unknown", self.params.wire_gb_per_s * BITS)
        });
        format!("{} ({wire})", self.taken_for(topology, nic))
    }
}

/// The ports of a NIC's card that share its PCIe link, this one among them. Virtual functions are ports of none.
pub fn ports_of_card(topology: &Topology, nic: NodeId) -> Vec<NodeId> {
    let is_virtual = |n: NodeId| topology.node(n).model.contains("virtual function");
    let mut ports = topology.sharing_link(nic);
    ports.retain(|&n| n == nic || !is_virtual(n) && !is_virtual(nic));
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_what_the_driver_that_named_it_drives() {
        for (name, is) in [
            ("mlx5_10", Some(Is::Mlx5)),
            ("mlx4_0", Some(Is::Other("mlx4"))),
            ("bnxt_re1, link unknown", Some(Is::Other("bnxt_re"))),
            ("efa_0", Some(Is::Other("efa"))),
            ("NIC0", None),
            ("rocep1s0", None),
        ] {
            assert_eq!(named(name), is, "{name}");
        }
    }
}
