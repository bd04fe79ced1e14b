//! NICs by name: which have RDMA, and how fast a port of them is at most.

use super::model::{NodeId, Topology};

/// What is known of a family of NICs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NicFamily {
    /// What its functions' names hold, as pci.ids has them.
    pub name: &'static str,
    /// Whether its functions have RDMA devices: whether Linux has a driver of them in
    /// `drivers/infiniband/hw`.
    pub has_rdma: bool,
    /// That driver (mlx4, mlx5, irdma, bnxt_re, ocrdma, hfi1, efa).
    pub driver: Option<&'static str>,
    /// Highest rate of a port of the family by the vendor's data sheets, Gb/s; `None`: it differs
    /// too much, or has no part in anything here.
    pub gbps: Option<u32>,
    /// The same of a card that has two, where that is less.
    pub gbps_of_two: Option<u32>,
}

const fn rdma(name: &'static str, driver: &'static str, gbps: u32) -> NicFamily {
    NicFamily { name, has_rdma: true, driver: Some(driver), gbps: Some(gbps), gbps_of_two: None }
}

const fn mlx5(name: &'static str, gbps: u32) -> NicFamily {
    rdma(name, MLX5, gbps)
}

/// Of which a card with two ports has half of the rate on each.
const fn mlx5_halved(name: &'static str, gbps: u32) -> NicFamily {
    NicFamily { gbps_of_two: Some(gbps / 2), ..mlx5(name, gbps) }
}

const fn rateless(name: &'static str, driver: &'static str) -> NicFamily {
    NicFamily { name, has_rdma: true, driver: Some(driver), gbps: None, gbps_of_two: None }
}

const fn none(name: &'static str) -> NicFamily {
    NicFamily { name, has_rdma: false, driver: None, gbps: None, gbps_of_two: None }
}

/// Driver of the NICs whose queues the library writes.
const MLX5: &str = "mlx5";

/// The families; a name that is part of another stands behind it, and so does what is inside another: the ConnectX of
/// a BlueField.
pub const NIC_FAMILIES: &[NicFamily] = &[
    mlx5_halved("BlueField-3", 400),
    mlx5_halved("BlueField-2", 200),
    mlx5("BlueField", 100),
    rdma("ConnectX-3", "mlx4", 56),
    mlx5("Connect-IB", 56),
    mlx5("ConnectX-4 Lx", 50),
    mlx5("ConnectX-4", 100),
    mlx5("ConnectX-5", 100),
    mlx5("ConnectX-6 Lx", 50),
    mlx5("ConnectX-6", 200),
    mlx5_halved("ConnectX-7", 400),
    mlx5_halved("ConnectX-8", 800),
    rdma("Ethernet Controller E810", "irdma", 100),
    rdma("Ethernet Connection X722", "irdma", 10),
    rdma("OneConnect NIC (Skyhawk)", "ocrdma", 40),
    rdma("Omni-Path HFI", "hfi1", 100),
    rateless("NetXtreme-E", "bnxt_re"),
    rateless("Elastic Fabric Adapter", "efa"),
    none("Elastic Network Adapter"),
    none("NetXtreme BCM57"),
    none("82599"),
    none("X520"),
    none("X540"),
    none("X550"),
    none("XXV710"),
    none("XL710"),
    none("X710"),
    none("I350"),
    none("I210"),
    none("Virtio"),
];

/// Names by vendor and device (pci.ids), for captures that have numbers alone.
const IDS: &[(u16, u16, &str)] = &[
    (0x15b3, 0x1003, "ConnectX-3"),
    (0x15b3, 0x1007, "ConnectX-3 Pro"),
    (0x15b3, 0x1011, "Connect-IB"),
    (0x15b3, 0x1013, "ConnectX-4"),
    (0x15b3, 0x1015, "ConnectX-4 Lx"),
    (0x15b3, 0x1017, "ConnectX-5"),
    (0x15b3, 0x1019, "ConnectX-5 Ex"),
    (0x15b3, 0x101b, "ConnectX-6"),
    (0x15b3, 0x101d, "ConnectX-6 Dx"),
    (0x15b3, 0x101f, "ConnectX-6 Lx"),
    (0x15b3, 0x1021, "ConnectX-7"),
    (0x15b3, 0x1023, "ConnectX-8"),
    (0x15b3, 0xa2d2, "BlueField"),
    (0x15b3, 0xa2d6, "BlueField-2"),
    (0x15b3, 0xa2dc, "BlueField-3"),
    (0x8086, 0x1592, "Ethernet Controller E810"),
    (0x8086, 0x1593, "Ethernet Controller E810"),
    (0x8086, 0x159b, "Ethernet Controller E810"),
    (0x8086, 0x37d0, "Ethernet Connection X722"),
    (0x8086, 0x37d2, "Ethernet Connection X722"),
    (0x8086, 0x24f0, "Omni-Path HFI"),
    (0x8086, 0x24f1, "Omni-Path HFI"),
    (0x8086, 0x10fb, "82599"),
    (0x8086, 0x1528, "X540"),
    (0x8086, 0x1563, "X550"),
    (0x8086, 0x1572, "X710"),
    (0x8086, 0x15ff, "X710"),
    (0x8086, 0x1583, "XL710"),
    (0x8086, 0x158b, "XXV710"),
    (0x8086, 0x1521, "I350"),
    (0x8086, 0x1533, "I210"),
    (0x14e4, 0x165f, "NetXtreme BCM5720"),
    (0x1d0f, 0xec20, "Elastic Network Adapter"),
    (0x1af4, 0x1041, "Virtio network device"),
];

/// The family of a NIC with this name; `None`: a name that says nothing.
pub fn nic_family(name: &str) -> Option<&'static NicFamily> {
    let name = name.to_ascii_lowercase();
    // Not a later generation, whose number goes on where the family's name ends.
    let goes_on = |rest: &str| {
        let mut rest = rest.chars();
        rest.next() == Some('-') && rest.next().is_some_and(|c| c.is_ascii_digit())
    };
    let is_of = |family: &&NicFamily| {
        let part = family.name.to_ascii_lowercase();
        name.match_indices(&part).any(|(at, _)| !goes_on(&name[at + part.len()..]))
    };
    NIC_FAMILIES.iter().find(is_of)
}

/// The name of a NIC by its numbers.
pub(super) fn name_of(vendor: u16, device: u16) -> Option<&'static str> {
    IDS.iter().find(|(v, d, _)| (*v, *d) == (vendor, device)).map(|id| id.2)
}

impl NicFamily {
    /// Whether the library writes its queues: whether it is mlx5 (ConnectX-4 and later).
    pub fn is_mlx5(&self) -> bool {
        self.driver == Some(MLX5)
    }
}

impl Topology {
    /// The family of a NIC by its [`Node::model`](super::Node::model).
    pub fn nic_family(&self, nic: NodeId) -> Option<&'static NicFamily> {
        nic_family(&self.node(nic).model)
    }

    /// The node whose link carries what a node sends to its parent: itself, or of ports of one card below one parent
    /// the first. A card whose ports have different parents has a link to each.
    pub fn link_of(&self, node: NodeId) -> NodeId {
        let place = |n: NodeId| (self.node(n).parent, self.node(n).card.as_ref());
        if place(node).1.is_none() {
            return node;
        }
        self.nodes().map(|(n, _)| n).find(|&n| place(n) == place(node)).unwrap_or(node)
    }

    /// A port of a card whose link is known to be another than that of the first port, which has to be the same.
    pub(super) fn port_with_another_link(&self) -> Option<NodeId> {
        let speed = |n: NodeId| self.node(n).link.map(|link| link.speed);
        let differs = |n: NodeId| {
            speed(n).zip(speed(self.link_of(n))).is_some_and(|(own, first)| own != first)
        };
        self.nodes().map(|(n, _)| n).find(|&n| differs(n))
    }

    /// The nodes with this node's [`Topology::link_of`], this one among them.
    pub fn sharing_link(&self, node: NodeId) -> Vec<NodeId> {
        let link = self.link_of(node);
        self.nodes().map(|(n, _)| n).filter(|&n| self.link_of(n) == link).collect()
    }
}

/// Two ports below a switch, beside two GPUs; `cards` are the ports'.
#[cfg(test)]
pub(crate) fn two_ports(cards: [Option<&str>; 2]) -> Topology {
    use super::{Builder, Kind, RawLink};
    let mut b = Builder::new("two ports");
    let link = Some(RawLink::new(5, 16));
    b.add("s0", Kind::Socket, None, None, None);
    b.add("rc0", Kind::RootComplex, Some("s0"), None, None);
    b.add("sw0", Kind::Switch, Some("rc0"), link, None);
    for (i, card) in cards.into_iter().enumerate() {
        b.add(&format!("gpu{i}"), Kind::Gpu, Some("sw0"), link, None);
        let node = b.add(&format!("nic{i}"), Kind::Nic, Some("sw0"), link, None);
        node.card = card.map(str::to_owned);
    }
    b.finish().unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_lspci_has_them() {
        for (name, has_rdma, gbps) in [
            ("Mellanox Technologies MT27710 Family [ConnectX-4 Lx]", true, Some(50)),
            ("Mellanox Technologies MT27700 Family [ConnectX-4]", true, Some(100)),
            ("Mellanox Technologies MT28800 Family [ConnectX-5 Ex]", true, Some(100)),
            ("Mellanox Technologies MT2892 Family [ConnectX-6 Dx]", true, Some(200)),
            ("Mellanox Technologies MT2894 Family [ConnectX-6 Lx]", true, Some(50)),
            ("Mellanox Technologies MT2910 Family [ConnectX-7]", true, Some(400)),
            ("MT43244 BlueField-3 integrated ConnectX-7 network controller", true, Some(400)),
            ("MT42822 BlueField-2 integrated ConnectX-6 Dx network controller", true, Some(200)),
            ("Broadcom Inc. and subsidiaries BCM57416 NetXtreme-E Dual-Media 10G", true, None),
            ("NetXtreme BCM5720 2-port Gigabit Ethernet PCIe", false, None),
            ("Intel Corporation Ethernet Controller X710 for 10GBASE-T", false, None),
            ("Intel Corporation Ethernet Connection X722 for 10GBASE-T", true, Some(10)),
            ("Intel Corporation Omni-Path HFI Silicon 100 Series [discrete]", true, Some(100)),
            ("Intel Corporation Ethernet 10G 2P X520 Adapter", false, None),
            ("Amazon.com, Inc. Elastic Network Adapter (ENA)", false, None),
        ] {
            let family = nic_family(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!((family.has_rdma, family.gbps), (has_rdma, gbps), "{name}");
        }
        for (name, driver) in [
            ("MT27500 Family [ConnectX-3]", Some("mlx4")),
            ("MT27710 Family [ConnectX-4 Lx]", Some("mlx5")),
            ("OneConnect NIC (Skyhawk)", Some("ocrdma")),
            ("Ethernet Controller X710 for 10GBASE-T", None),
        ] {
            let family = nic_family(name).unwrap();
            assert_eq!((family.driver, family.is_mlx5()), (driver, driver == Some("mlx5")));
            assert_eq!(family.has_rdma, driver.is_some(), "{name}");
        }
        // By the card, not by the ConnectX inside, which has the rate on each of two ports.
        let two = |name: &str| nic_family(name).unwrap().gbps_of_two;
        assert_eq!(two("MT42822 BlueField-2 integrated ConnectX-6 Dx"), Some(100));
        assert_eq!(two("Mellanox Technologies MT2892 Family [ConnectX-6 Dx]"), None);
        assert_eq!(nic_family("ThunderX network interface"), None);
        for (vendor, device, name) in IDS {
            assert!(nic_family(name).is_some(), "{vendor:04x}:{device:04x}");
        }
        let hidden = |(i, f): (usize, &NicFamily)| nic_family(f.name) != Some(&NIC_FAMILIES[i]);
        assert_eq!(NIC_FAMILIES.iter().enumerate().find(|f| hidden(*f)), None);
    }
}
