//! PCI functions, their capabilities, and the IOMMU.

use std::collections::{BTreeMap, BTreeSet};

use bellpush::pcie::topology::{Address, Capture, Kind, Tree, capture_sysfs};

use crate::doctor::read::{Root, Seen};

const MELLANOX: u16 = 0x15b3;

/// Virtual functions of mlx5 (Linux, drivers/net/ethernet/mellanox/mlx5/core/main.c, mlx5_core_pci_table:
/// MLX5_PCI_DEV_IS_VF).
const VIRTUAL: [u16; 8] = [0x1012, 0x1014, 0x1016, 0x1018, 0x101a, 0x101c, 0x101e, 0xa2d3];

/// What the topology leaves out of a GPU, a NIC or a bridge above one.
#[derive(Debug, Clone)]
pub struct More {
    /// Bytes of configuration space that are shown: 64 to a reader without rights.
    pub config: usize,
    /// Largest MPS that it supports (Device Capabilities, bits 2:0).
    pub mpss: Option<u32>,
    /// Whether relaxed ordering is enabled (Device Control, bit 4).
    pub relaxed: Option<bool>,
    /// Size of BAR 1.
    pub bar1: Option<u64>,
    /// ACS Control (PCIe base specification 7.7.11.3), 0 without that capability; `None` where it
    /// is hidden.
    pub acs: Option<u16>,
    /// Whether ATS is enabled (10.5.1.3).
    pub ats: Option<bool>,
    /// Its NUMA node as the firmware tells, -1 for none.
    pub numa: Seen<i64>,
    /// Whether its configuration space is all ones: it does not answer (PCIe base specification
    /// 2.3.2, Unsupported Request).
    pub is_dead: bool,
    /// Its driver.
    pub driver: Option<String>,
    /// Type of its IOMMU group's domain: `identity`, `DMA`, `DMA-FQ`.
    pub domain: Option<String>,
    /// Errors that the kernel has counted (AER): corrected, uncorrected, and of the latter the fatal ones, each kind
    /// with its count, if there was any. `None` where it counts none.
    pub errors: [Option<Vec<(String, u64)>>; 3],
}

impl More {
    /// Nothing of what there may be.
    const UNSEEN: Self = Self {
        config: 0,
        mpss: None,
        relaxed: None,
        bar1: None,
        acs: None,
        ats: None,
        numa: Seen::Absent,
        is_dead: false,
        driver: None,
        domain: None,
        errors: [const { None }; 3],
    };
}

/// PCI.
#[derive(Debug)]
pub struct Pci {
    /// The functions.
    pub capture: Seen<Capture>,
    /// More of GPUs, NICs and the bridges above them.
    pub more: BTreeMap<Address, More>,
    /// Those of them that do not answer, or are below a bridge that does not.
    pub gone: BTreeSet<Address>,
    /// Whether /sys/bus is there: a copy may lack it.
    pub is_shown: bool,
    /// Number of IOMMU groups.
    pub groups: Seen<usize>,
    /// IOMMUs that the kernel uses, such as `dmar0`.
    pub iommus: Vec<String>,
}

impl Pci {
    /// Reads it.
    pub fn read(root: &Root) -> Self {
        let capture = match capture_sysfs(&root.path("sys")) {
            Ok(capture) => Seen::Known(capture),
            Err(_) if !root.has("sys/bus/pci") => Seen::Absent,
            Err(e) => Seen::Unreadable(e.to_string()),
        };
        let wanted = capture.known().map(of_interest).unwrap_or_default();
        let more: BTreeMap<Address, More> =
            wanted.into_iter().map(|a| (a, more(root, a))).collect();
        Self {
            gone: capture.known().map(|capture| gone(capture, &more)).unwrap_or_default(),
            more,
            groups: root.names("sys/kernel/iommu_groups").map(|names| names.len()),
            is_shown: root.has("sys/bus"),
            iommus: root.list("sys/class/iommu"),
            capture,
        }
    }

    /// The tree of its bridges.
    pub fn tree(&self) -> Option<Tree<'_>> {
        self.capture.known().map(Tree::new)
    }

    /// Whether a function is a virtual one, in its guest as well, where nothing names its physical one. Of those of
    /// ConnectX the device id says so.
    pub fn is_virtual(&self, address: Address) -> bool {
        let Some(capture) = self.capture.known() else { return false };
        let id = capture.get(address).and_then(|f| Some((f.vendor?, f.device?)));
        let is_mlx5 = |(vendor, id)| vendor == MELLANOX && VIRTUAL.contains(&id);
        capture.is_virtual(address) || id.is_some_and(is_mlx5)
    }

    /// Whether it is not seen what a function is.
    pub fn is_nameless(&self, address: Address) -> bool {
        let function = self.capture.known().and_then(|capture| capture.get(address));
        function.is_none_or(|f| f.vendor.is_none() || f.device.is_none())
    }

    /// More of a function; nothing where nothing was read.
    pub fn more(&self, address: Address) -> More {
        self.more.get(&address).cloned().unwrap_or(More::UNSEEN)
    }
}

/// GPUs, NICs and the bridges above them, and what is below the same root ports.
fn of_interest(capture: &Capture) -> BTreeSet<Address> {
    let tree = Tree::new(capture);
    let mut all = BTreeSet::new();
    for kind in [Kind::Gpu, Kind::Nic] {
        for address in capture.of_kind(kind) {
            all.insert(address);
            all.extend(tree.chain(address));
        }
    }
    let tops: BTreeSet<Address> =
        all.iter().filter_map(|a| tree.chain(*a).first().copied()).collect();
    let below = |a: &Address| tree.chain(*a).first().is_some_and(|top| tops.contains(top));
    all.extend(capture.functions().map(|f| f.address).filter(below));
    all
}

/// Functions that do not answer, and what is below them.
fn gone(capture: &Capture, more: &BTreeMap<Address, More>) -> BTreeSet<Address> {
    let dead: BTreeSet<Address> = more.iter().filter(|(_, m)| m.is_dead).map(|(a, _)| *a).collect();
    if dead.is_empty() {
        return dead;
    }
    let tree = Tree::new(capture);
    let is_gone = |a: &Address| dead.contains(a) || tree.chain(*a).iter().any(|b| dead.contains(b));
    more.keys().copied().filter(is_gone).collect()
}

/// Bytes of a configuration space (PCIe base specification 7.2.1).
pub const CONFIG_SPACE: u64 = 4096;
/// Bytes of it without extended capabilities, where the machine shows no reader more of it.
pub const CONVENTIONAL: usize = 256;

fn more(root: &Root, address: Address) -> More {
    let dir = format!("sys/bus/pci/devices/{address}");
    let config = root.head(&format!("{dir}/config"), CONFIG_SPACE);
    let config = config.known().cloned().unwrap_or_default();
    let express = express(&config);
    let mpss = express.and_then(|at| config.get(at + 4)).map(|byte| 128u32 << (byte & 7).min(5));
    let relaxed = express.and_then(|at| config.get(at + 8)).map(|byte| byte & 0x10 != 0);
    let domain = root.text(&format!("{dir}/iommu_group/type"));
    let head = config.get(..64);
    let is_dead = head.is_some_and(|head| head.iter().all(|&byte| byte == 0xff));
    let is_whole = config.len() > 0x100 && !is_dead;
    let extended = |id: u16| {
        let at = extended(&config, id)?;
        Some(u16::from_le_bytes([*config.get(at + 6)?, *config.get(at + 7)?]))
    };
    More {
        config: config.len(),
        mpss,
        is_dead,
        relaxed,
        acs: is_whole.then(|| extended(ACS).unwrap_or(0)),
        ats: is_whole.then(|| extended(ATS).is_some_and(|control| control & ATS_ENABLE != 0)),
        numa: root.text(&format!("{dir}/numa_node")).parse("numa_node", |text| text.parse().ok()),
        bar1: root.text(&format!("{dir}/resource")).known().and_then(|text| bar1(text)),
        driver: root.link_name(&format!("{dir}/driver")),
        domain: domain.known().cloned(),
        errors: ["correctable", "nonfatal", "fatal"]
            .map(|kind| root.text(&format!("{dir}/aer_dev_{kind}")).known().map(|it| counts(it))),
    }
}

/// Lines of a name and a count each (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats), without the sum.
fn counts(text: &str) -> Vec<(String, u64)> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let counted = lines.filter_map(|(name, n)| Some((name.to_owned(), n.trim().parse().ok()?)));
    counted.filter(|(name, n)| *n > 0 && !name.starts_with("TOTAL_")).collect()
}

/// Offset of the PCI Express capability (PCIe base specification 7.5.3), of which Device Control
/// has to be there.
fn express(config: &[u8]) -> Option<usize> {
    let mut at = usize::from(*config.get(0x34)? & 0xfc);
    for _ in 0..48 {
        if at < 0x40 || at + 10 > config.len() {
            return None;
        }
        if config[at] == 0x10 {
            return Some(at);
        }
        at = usize::from(config[at + 1] & 0xfc);
    }
    None
}

/// Ids of the extended capabilities ACS and ATS, whose control registers are both at 6, and the bit
/// that enables ATS.
const ACS: u16 = 0x000d;
const ATS: u16 = 0x000f;
const ATS_ENABLE: u16 = 1 << 15;

/// Offset of an extended capability.
fn extended(config: &[u8], id: u16) -> Option<usize> {
    let mut at = 0x100;
    for _ in 0..(4096 - 0x100) / 8 {
        let header = u32::from_le_bytes(*config.get(at..at + 4)?.first_chunk()?);
        if header as u16 == id {
            return Some(at);
        }
        at = (header >> 20) as usize & 0xffc;
        if at < 0x100 {
            return None;
        }
    }
    None
}

/// Flags of a resource (include/linux/ioport.h): ports, and a BAR of 64 bits.
const IO: u64 = 0x100;
const MEM_64: u64 = 0x10_0000;

/// Size of NVIDIA's BAR 1 by sysfs' file `resource`, a line `start end flags` for each register:
/// the second BAR of memory. A BAR of 64 bits has two registers, so that BAR 1 is in line 1 where BAR 0
/// has 32 bits, and in line 2 where it has 64.
fn bar1(text: &str) -> Option<u64> {
    let (mut number, mut is_upper) = (0, false);
    for line in text.lines().take(6) {
        let mut words = line.split_whitespace();
        let mut word = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let (start, end, flags) = (word()?, word()?, word()?);
        if std::mem::take(&mut is_upper) {
            continue;
        }
        is_upper = flags & MEM_64 != 0;
        if flags & IO != 0 || end <= start {
            continue;
        }
        number += 1;
        if number == 2 {
            return Some((end - start).saturating_add(1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_1_is_the_second_of_memory() {
        let first = "0x91000000 0x91ffffff 0x40200\n0x2000000000 0x3fffffffff 0x14220c\n\
                     0x0 0x0 0x0\n0x1000 0x107f 0x40101";
        assert_eq!(bar1(first), Some(128 << 30), "BAR 0 of 32 bits");
        let upper = "0x0 0x0 0x0";
        let h100 = format!(
            "0x28a0000000 0x28a0ffffff 0x14220c\n{upper}\n0x2000000000 0x3fffffffff 0x14220c\n\
             {upper}\n0x2a00000000 0x2a01ffffff 0x14220c\n{upper}"
        );
        assert_eq!(bar1(&h100), Some(128 << 30), "16M, 128G, 32M (fastfetch-cli/fastfetch#1658)");
        let ports = "0x1000 0x107f 0x40101\n0x91000000 0x91ffffff 0x40200";
        assert_eq!((bar1(ports), bar1(upper), bar1("x")), (None, None, None));
        let all = "0x1 0x2 0x200\n0x0 0xffffffffffffffff 0x200";
        assert_eq!(bar1(all), Some(u64::MAX), "no size of a device");
    }

    #[test]
    fn a_capability_behind_the_end_is_none() {
        let mut config = vec![0; 64];
        config[0x34] = 0x40;
        assert_eq!(express(&config), None);
        config.resize(0x48, 0);
        config[0x40] = 0x10;
        assert_eq!(express(&config), None, "without Device Control");
        config.resize(0x4a, 0);
        assert_eq!(express(&config), Some(0x40));
    }
}
