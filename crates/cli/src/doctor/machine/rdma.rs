//! RDMA devices and network interfaces (Documentation/ABI/stable/sysfs-class-infiniband).

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use bellpush::mem::dcb::Dcb;
use bellpush::pcie::topology::Address;
use nix::unistd::{AccessFlags, access};

use crate::doctor::read::{Root, Seen};

/// Most GIDs of a port that are looked at: a table has 256 at most.
const MAX_GIDS: usize = 256;

/// One RDMA device.
#[derive(Debug)]
pub struct RdmaDevice {
    /// Name, such as mlx5_0.
    pub name: String,
    /// Version of its firmware.
    pub firmware: Seen<String>,
    /// Its board (PSID).
    pub board: Seen<String>,
    /// GUID of the card, which all its functions have.
    pub image: Seen<String>,
    /// PCI function; none for a software device.
    pub address: Option<Address>,
    /// Name of the PCI driver.
    pub driver: Option<String>,
    /// Its ports.
    pub ports: Vec<Port>,
    /// Whether it is of software, on a network interface that may be a card's: it has a file
    /// `parent` (rxe), or is an RNIC without a board (siw). `None` where neither is shown.
    pub is_software: Option<bool>,
    /// Whether its folder `device` is there, where its driver is.
    pub has_device: bool,
}

/// A port.
#[derive(Debug)]
pub struct Port {
    /// Number, from 1.
    pub number: u32,
    /// State, such as ACTIVE.
    pub state: Seen<String>,
    /// State of the physical link, such as LinkUp.
    pub physical: Seen<String>,
    /// `InfiniBand` or `Ethernet`.
    pub layer: Seen<String>,
    /// Rate in Gb/s, and its text.
    pub rate: Seen<(f64, String)>,
    /// Entries of the GID table that are not zero.
    pub gids: Vec<Gid>,
    /// Entries whose GID or type is not shown, and those of RoCE v2 that have no address yet: an empty entry of a card
    /// has no type (Linux, drivers/infiniband/core/sysfs.c), that of a software device gets its address when it opens.
    pub hidden_gids: usize,
    /// Whether GIDs are of VLANs: they have another interface; `None` where not all show theirs.
    pub has_vlans: Option<bool>,
    /// Counters, those of the hardware included.
    pub counters: BTreeMap<String, u64>,
    /// Network interface.
    pub netdev: Option<String>,
    /// MLNX_OFED's traffic class of all that it sends, if there is one.
    pub traffic_class: Option<u8>,
    /// Type of service of what the RDMA CM connects, if it is set.
    pub tos: Option<u8>,
}

/// An entry of a GID table.
#[derive(Debug, Clone)]
pub struct Gid {
    /// Index.
    pub index: usize,
    /// The GID.
    pub gid: Ipv6Addr,
    /// Whether it is of RoCE v2; `None` for InfiniBand, and where it cannot be seen.
    pub is_v2: Option<bool>,
}

impl Gid {
    /// Whether it is an IPv4 address.
    pub fn is_ipv4(&self) -> bool {
        self.gid.to_ipv4_mapped().is_some()
    }

    /// Whether it is a link-local address, which no router forwards.
    pub fn is_link_local(&self) -> bool {
        self.gid.segments()[0] & 0xffc0 == 0xfe80
    }
}

impl RdmaDevice {
    /// Whether mlx5 drives it.
    pub fn is_mlx5(&self) -> bool {
        match self.driver.as_deref() {
            Some(driver) => driver == "mlx5_core" && self.is_software == Some(false),
            None => self.address.is_some() && self.name.starts_with("mlx5"),
        }
    }

    /// Whether it has what a card has, or nothing that says what it is: Soft-RoCE has neither folder nor board.
    fn may_be_a_card(&self) -> bool {
        self.has_device || self.is_software.is_none() || self.board.known().is_some()
    }

    /// Whether it may be one of mlx5: its driver or its kind is not shown.
    pub fn may_be_mlx5(&self) -> bool {
        match self.driver.as_deref() {
            Some(driver) => driver == "mlx5_core" && self.is_software.is_none(),
            None => self.may_be_a_card() && self.is_software != Some(true) && !self.is_mlx5(),
        }
    }

    /// Whether no port is active, as far as all of them are seen.
    pub fn is_down(&self) -> bool {
        let known = |p: &Port| p.state.known().is_some();
        !self.ports.is_empty() && self.ports.iter().all(known) && !self.is_active()
    }

    /// Whether a port is active.
    pub fn is_active(&self) -> bool {
        self.ports.iter().any(Port::is_active)
    }
}

impl Port {
    /// Whether packets can be sent.
    pub fn is_active(&self) -> bool {
        self.state.known().is_some_and(|s| s == "ACTIVE")
    }

    /// Its link layer, if it is one of the two that mlx5 has.
    pub fn known_layer(&self) -> Option<&str> {
        self.layer.known().map(String::as_str).filter(|l| ["Ethernet", "InfiniBand"].contains(l))
    }

    /// Whether it is RoCE.
    pub fn is_ethernet(&self) -> bool {
        self.known_layer() == Some("Ethernet")
    }

    /// A counter, 0 where there is none.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
}

/// Why it cannot be seen whether there are any; without the modules there is no such class.
pub fn hidden(root: &Root) -> Option<String> {
    match root.names("sys/class/infiniband") {
        Seen::Unreadable(why) => Some(why),
        Seen::Absent if !root.has("sys/class") => Some("/sys/class is not there".to_owned()),
        _ => None,
    }
}

/// All RDMA devices.
pub fn devices(root: &Root) -> Vec<RdmaDevice> {
    root.list("sys/class/infiniband").into_iter().map(|name| device(root, name)).collect()
}

fn device(root: &Root, name: String) -> RdmaDevice {
    let dir = format!("sys/class/infiniband/{name}");
    let event = root.text(&format!("{dir}/device/uevent"));
    let of_event = |key: &str| {
        let text = event.known()?;
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
    };
    let address = of_event("PCI_SLOT_NAME")
        .or_else(|| root.link_name(&format!("{dir}/device")))
        .and_then(|text| text.parse().ok());
    let netdevs = root.list(&format!("{dir}/device/net"));
    let numbers = root.list(&format!("{dir}/ports")).into_iter().filter_map(|n| n.parse().ok());
    let ports = numbers.map(|number| port(root, &dir, number, &netdevs)).collect();
    let board = root.text(&format!("{dir}/board_id"));
    let kind = root.text(&format!("{dir}/node_type"));
    let is_rnic = kind.known().is_some_and(|kind| kind.contains("RNIC"));
    RdmaDevice {
        is_software: match (root.has(&format!("{dir}/parent")), &board, kind.known()) {
            (true, ..) => Some(true),
            (false, Seen::Absent, None) => None,
            (false, board, _) => Some(is_rnic && *board == Seen::Absent),
        },
        has_device: root.has(&format!("{dir}/device")),
        firmware: root.text(&format!("{dir}/fw_ver")),
        image: root.text(&format!("{dir}/sys_image_guid")),
        board,
        driver: of_event("DRIVER").or_else(|| root.link_name(&format!("{dir}/device/driver"))),
        address,
        ports,
        name,
    }
}

/// `4: ACTIVE`.
fn state(text: &str) -> Option<String> {
    Some(text.split_once(':')?.1.trim().to_owned())
}

/// The same of a port, which has one of these (InfiniBand specification, volume 1, 14.2.5.6).
fn port_state(text: &str) -> Option<String> {
    let all = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"];
    state(text).filter(|state| all.contains(&state.as_str()))
}

/// `400 Gb/sec (4X NDR)`.
fn rate(text: &str) -> Option<(f64, String)> {
    let number: f64 = text.split_whitespace().next()?.parse().ok()?;
    (number.is_finite() && number >= 0.0).then(|| (number, text.to_owned()))
}

fn port(root: &Root, device: &str, number: u32, netdevs: &[String]) -> Port {
    let dir = format!("{device}/ports/{number}");
    let gids: Vec<Gid> =
        gid_names(root, &dir, "gids").into_iter().filter_map(|i| gid(root, &dir, i)).collect();
    let interface =
        |gid: &Gid| root.text(&format!("{dir}/gid_attrs/ndevs/{}", gid.index)).known().cloned();
    let of_gid = gids.first().and_then(interface);
    let (shown, typed) = (gid_names(root, &dir, "gids"), gid_names(root, &dir, "gid_attrs/types"));
    let is_hidden = |index: &&usize| !shown.contains(index);
    let is_to_come = |index: &&usize| {
        let kind = || root.text(&format!("{dir}/gid_attrs/types/{index}"));
        !gids.iter().any(|gid| gid.index == **index)
            && kind().known().is_some_and(|kind| kind == ROCE_V2)
    };
    let hidden_gids = typed.iter().filter(is_hidden).count()
        + shown.iter().filter(is_to_come).count()
        + gids.iter().filter(|gid| gid.is_v2.is_none()).count();
    let mut counters = BTreeMap::new();
    for folder in ["counters", "hw_counters"] {
        for name in root.list(&format!("{dir}/{folder}")) {
            if let Seen::Known(value) = root.number(&format!("{dir}/{folder}/{name}")) {
                counters.insert(name, value);
            }
        }
    }
    let only = || if netdevs.len() == 1 { netdevs.first().cloned() } else { None };
    Port {
        number,
        state: root.text(&format!("{dir}/state")).parse("state", |t| port_state(t)),
        physical: root.text(&format!("{dir}/phys_state")).parse("phys_state", |t| state(t)),
        layer: root.text(&format!("{dir}/link_layer")),
        rate: root.text(&format!("{dir}/rate")).parse("rate", |t| rate(t)),
        hidden_gids,
        has_vlans: {
            let all: Option<BTreeSet<String>> = gids.iter().map(interface).collect();
            all.filter(|_| hidden_gids == 0).map(|all| all.len() > 1)
        },
        gids,
        counters,
        netdev: of_gid.or_else(only),
        traffic_class: class(root, &format!("{device}/tc/{number}/traffic_class")),
        tos: {
            let name = device.rsplit('/').next().unwrap_or(device);
            class(root, &format!("{RDMA_CM}/{name}/ports/{number}/default_roce_tos"))
        },
    }
}

/// Where `cma_roce_tos` sets what the RDMA CM takes (Documentation/ABI/testing/configfs-rdma_cm).
const RDMA_CM: &str = "sys/kernel/config/rdma_cm";

/// A traffic class: `Global tclass=106` of MLNX_OFED (nothing where none is set, and rules behind it), or the number.
fn class(root: &Root, name: &str) -> Option<u8> {
    let text = root.text(name);
    let line = text.known()?.lines().next()?;
    line.strip_prefix("Global tclass=").unwrap_or(line).trim().parse().ok()
}

/// The type of a GID of RoCE v2.
const ROCE_V2: &str = "RoCE v2";

fn gid_names(root: &Root, dir: &str, folder: &str) -> Vec<usize> {
    let names = root.list(&format!("{dir}/{folder}")).into_iter();
    names.filter_map(|n| n.parse().ok()).filter(|&n| n < MAX_GIDS).collect()
}

fn gid(root: &Root, dir: &str, index: usize) -> Option<Gid> {
    let text = root.text(&format!("{dir}/gids/{index}"));
    let gid: Ipv6Addr = text.known()?.parse().ok()?;
    // A prefix without an interface is an empty entry of InfiniBand's table, too.
    if gid.segments()[4..] == [0; 4] {
        return None;
    }
    let kind = root.text(&format!("{dir}/gid_attrs/types/{index}"));
    Some(Gid { index, gid, is_v2: kind.known().map(|kind| kind == ROCE_V2) })
}

/// Device nodes of RDMA devices.
#[derive(Debug)]
pub struct Uverbs {
    /// Node of each RDMA device that sysfs names, such as `uverbs0`.
    pub nodes: BTreeMap<String, String>,
    /// Whether sysfs shows whose each node is.
    pub is_whole: bool,
    /// Names in /dev/infiniband.
    pub present: Seen<BTreeSet<String>>,
    /// Nodes that this process may not open for reading and writing; `None` for another machine.
    pub refused: Option<Vec<String>>,
}

impl Uverbs {
    /// Reads it, and on the running machine asks for the rights.
    pub fn read(root: &Root, live: bool) -> Self {
        let mut nodes = BTreeMap::new();
        let class = root.names("sys/class/infiniband_verbs");
        let mut is_whole = class.known().is_some();
        for name in class.known().cloned().unwrap_or_default() {
            // Beside the nodes there is a file `abi_version`.
            match root.text(&format!("sys/class/infiniband_verbs/{name}/ibdev")) {
                Seen::Known(device) => drop(nodes.insert(device, name)),
                _ => is_whole &= !name.starts_with("uverbs"),
            }
        }
        let present = root.names("dev/infiniband").map(|names| names.into_iter().collect());
        let refused = live.then(|| {
            // By the C library, as libibverbs opens them: below `bellpush run` a system call finds none.
            let may = |name: &String| {
                let rights = AccessFlags::R_OK | AccessFlags::W_OK;
                access(&root.path(&format!("dev/infiniband/{name}")), rights).is_ok()
            };
            let is_there = |name: &&String| root.has(&format!("dev/infiniband/{name}"));
            nodes.values().filter(is_there).filter(|n| !may(n)).cloned().collect()
        });
        Self { nodes, is_whole, present, refused }
    }
}

/// A network interface.
#[derive(Debug)]
pub struct Netdev {
    /// Name.
    pub name: String,
    /// MTU.
    pub mtu: Seen<u64>,
    /// MLNX_OFED's `qos/trust`: `pcp` or `dscp`.
    pub trust: Seen<String>,
    /// MLNX_OFED's `qos/pfc`: a 1 for each priority with PFC.
    pub pfc: Seen<String>,
    /// Priorities with ECN for notification point (np) and reaction point (rp).
    pub ecn: [Seen<Vec<u8>>; 2],
    /// What its driver tells by rtnetlink; absent of an interface that no port of RoCE has.
    pub dcb: Seen<Dcb>,
    /// /sys/class/net/NAME/statistics.
    pub statistics: BTreeMap<String, u64>,
    /// PCI function.
    pub address: Option<Address>,
    /// Of a bond: its mode, such as `802.3ad 4`, and the interfaces that are in it.
    pub bond: Option<(String, Vec<String>)>,
    /// Of an interface in a bond: `up` or `down`.
    pub link: Seen<String>,
}

/// All network interfaces.
pub fn netdevs(root: &Root) -> Vec<Netdev> {
    root.list("sys/class/net").into_iter().map(|name| netdev(root, name)).collect()
}

fn netdev(root: &Root, name: String) -> Netdev {
    let dir = format!("sys/class/net/{name}");
    let ecn = ["roce_np", "roce_rp"].map(|point| {
        let folder = format!("{dir}/ecn/{point}/enable");
        root.names(&folder).map(|names| {
            let on =
                |n: &String| root.text(&format!("{folder}/{n}")).known().is_some_and(|v| v == "1");
            names.into_iter().filter(on).filter_map(|n| n.parse().ok()).collect()
        })
    });
    let mut statistics = BTreeMap::new();
    for counter in root.list(&format!("{dir}/statistics")) {
        if let Seen::Known(value) = root.number(&format!("{dir}/statistics/{counter}")) {
            statistics.insert(counter, value);
        }
    }
    Netdev {
        mtu: root.number(&format!("{dir}/mtu")),
        trust: root.text(&format!("{dir}/qos/trust")),
        pfc: root.text(&format!("{dir}/qos/pfc")),
        ecn,
        dcb: Seen::Absent,
        statistics,
        address: root.link_name(&format!("{dir}/device")).and_then(|name| name.parse().ok()),
        bond: root.text(&format!("{dir}/bonding/mode")).known().map(|mode| {
            let slaves = root.text(&format!("{dir}/bonding/slaves"));
            let slaves = slaves.known().map_or("", |it| it.as_str());
            (mode.clone(), slaves.split_whitespace().map(str::to_owned).collect())
        }),
        link: root.text(&format!("{dir}/bonding_slave/mii_status")),
        name,
    }
}
