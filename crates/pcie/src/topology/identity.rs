//! What a PCI function is, by class and vendor or, where a capture has names alone, by name.

use super::capture::Function;
use super::model::Kind;
use super::nics::{self, nic_family};
use super::packets;

pub(super) const HOST_BRIDGE: u16 = 0x0600;
pub(super) const BRIDGE: u16 = 0x0604;

const NVIDIA: u16 = 0x10de;
const AMD_GPU: u16 = 0x1002;
const INTEL: u16 = 0x8086;
const MELLANOX: u16 = 0x15b3;
/// The root port `ioh3420`, which has the number of Intel's.
const QEMU_ROOT_PORT: u16 = 0x3420;

/// Starts of the vendors' names in pci.ids, old and new.
const VENDORS: &[(&str, u16)] = &[
    ("nvidia corporation", NVIDIA),
    ("advanced micro devices, inc. [amd/ati]", AMD_GPU),
    ("advanced micro devices [amd/ati]", AMD_GPU),
    ("ati technologies", AMD_GPU),
    ("intel corporation", INTEL),
    ("mellanox", MELLANOX),
    ("plx technology", 0x10b5),
    ("broadcom / lsi", 0x1000),
    ("lsi logic", 0x1000),
    ("microsemi", 0x11f8),
    ("pmc-sierra", 0x11f8),
    ("microchip", 0x11f8),
    ("advanced micro devices", 0x1022),
    ("broadcom", 0x14e4),
    ("netxtreme", 0x14e4),
];

/// NVSwitches: bridges of NVLink that pci.ids did not name at first.
const NVSWITCHES: &[u16] = &[0x1ac0, 0x1ac1, 0x1ac2, 0x1af1, 0x22a3];

/// AMD's GPUs inside CPUs: Renoir, Cezanne, Raphael, Phoenix, Granite Ridge, Strix.
const AMD_INTEGRATED: &[u16] = &[0x1636, 0x1638, 0x164e, 0x15bf, 0x15c8, 0x13c0, 0x150e];

/// Words in names of NVIDIA's functions that are no GPUs.
const NO_GPU: &[&str] =
    &["audio", "usb", "ucsi", "nvswitch", "bridge", "smbus", "ethernet", "host", "memory control"];

/// Words in names of Ethernet and InfiniBand controllers.
const NIC_WORDS: &[&str] = &[
    "ethernet",
    "connectx",
    "infiniband",
    "network connection",
    "netxtreme",
    "elastic network",
    "elastic fabric",
    "omni-path",
    "connect-ib",
    "virtio network",
    "bluefield-2 integrated",
    "bluefield-3 integrated",
];

/// Words in names of functions that belong to a NIC and are none.
const NO_NIC: &[&str] = &["bridge", "management interface", "dma controller", "switch"];

/// The vendor, by number or else by name.
pub(super) fn vendor(f: &Function) -> Option<u16> {
    let by_name = || {
        let name = f.name.to_ascii_lowercase();
        VENDORS.iter().find(|(start, _)| name.starts_with(start)).map(|&(_, vendor)| vendor)
    };
    f.vendor.or_else(by_name)
}

/// The device, by number or else from a name such as `Device 2bb5`.
pub(super) fn device(f: &Function) -> Option<u16> {
    let by_name = || {
        let digits = f.name.rsplit_once("Device ")?.1.get(..4)?;
        digits.bytes().all(|b| b.is_ascii_hexdigit()).then_some(())?;
        u16::from_str_radix(digits, 16).ok()
    };
    f.device.or_else(by_name)
}

fn has(name: &str, words: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    words.iter().any(|word| name.contains(word))
}

pub(super) fn kind(f: &Function) -> Option<Kind> {
    if f.is_bridge() {
        return None;
    }
    match f.class {
        // Ethernet, InfiniBand and fabric controllers: Omni-Path is of the last.
        Some(0x0200 | 0x0207 | 0x0208) => Some(Kind::Nic),
        Some(class) => is_gpu(f, class).then_some(Kind::Gpu),
        None => kind_by_name(f),
    }
}

/// VGA (0x0300), 3D (0x0302) and other display controllers (0x0380) and accelerators (0x1200) of
/// the vendors that make GPUs. A BMC's VGA is none, nor is a GPU inside a CPU.
fn is_gpu(f: &Function, class: u16) -> bool {
    match (vendor(f), class) {
        (Some(NVIDIA), 0x0300 | 0x0302) => true,
        (Some(AMD_GPU), 0x0300 | 0x0302 | 0x0380 | 0x1200) => {
            device(f).is_none_or(|id| !AMD_INTEGRATED.contains(&id))
        }
        // Data Center GPU Max and Flex have class 0x0380; Arc has 0x0300, and so have the
        // processors' own GPUs, which are on the root bus.
        (Some(INTEL), 0x0380 | 0x1200) => true,
        (Some(INTEL), 0x0300) => f.address.bus != 0,
        _ => false,
    }
}

fn kind_by_name(f: &Function) -> Option<Kind> {
    match vendor(f) {
        Some(NVIDIA) => {
            let switch = device(f).is_some_and(|id| NVSWITCHES.contains(&id));
            let gpu = f.address.function == 0 && !switch && !has(&f.name, NO_GPU);
            return gpu.then_some(Kind::Gpu);
        }
        Some(AMD_GPU) => {
            let words = ["instinct", "radeon pro", "[radeon rx", "aldebaran", "aqua vanjaram"];
            if has(&f.name, &words) && !has(&f.name, NO_GPU) {
                return Some(Kind::Gpu);
            }
        }
        Some(INTEL) if has(&f.name, &["data center gpu", "ponte vecchio", "[arc "]) => {
            return Some(Kind::Gpu);
        }
        _ => {}
    }
    (has(&f.name, NIC_WORDS) && !has(&f.name, NO_NIC)).then_some(Kind::Nic)
}

/// Whether it is a GPU of NVIDIA before Hopper, by its name or its number.
pub(super) fn is_before_hopper(f: &Function) -> bool {
    let is_told = || {
        let by_number = || device(f).is_some_and(packets::is_before_hopper);
        packets::gpu_bytes(&f.name).is_some() || by_number()
    };
    is_nvidia(f) && kind(f) == Some(Kind::Gpu) && is_told()
}

/// Whether a root port is one of an Intel root complex, and not QEMU's, whose host may be any.
pub(super) fn is_intels_root(f: &Function) -> bool {
    vendor(f) == Some(INTEL) && device(f) != Some(QEMU_ROOT_PORT)
}

/// Whether NVIDIA made it: nvidia-smi lists no other GPUs.
pub(super) fn is_nvidia(f: &Function) -> bool {
    vendor(f) == Some(NVIDIA)
}

/// Whether Mellanox made it: its RDMA device is called mlx5_N.
pub(super) fn is_mellanox(f: &Function) -> bool {
    vendor(f) == Some(MELLANOX)
}

/// Whether a NIC has RDMA, as far as can be told: it has an RDMA device, or it is InfiniBand, a
/// ConnectX, or of a family that has it or has it not ([`super::NIC_FAMILIES`]).
pub(super) fn has_rdma(f: &Function) -> Option<bool> {
    if f.rdma.is_some() || f.class == Some(0x0207) || is_mellanox(f) {
        return Some(true);
    }
    nic_family(nic_name(f)).map(|family| family.has_rdma)
}

/// The name of a NIC, by its numbers where the capture has none; empty where neither says it.
pub(super) fn nic_name(f: &Function) -> &str {
    let by_ids = || nics::name_of(f.vendor?, f.device?);
    if f.name.is_empty() { by_ids().unwrap_or_default() } else { &f.name }
}

/// The chip that a switch's port belongs to.
pub(super) fn switch_chip(f: &Function) -> Option<String> {
    let id = device(f);
    match vendor(f)? {
        0x10b5 => Some(id.map_or_else(
            || named(&f.name, "PEX", "PLX PEX switch"),
            |id| format!("PLX PEX {id:04x}"),
        )),
        0x1000 => match id {
            Some(0xc010 | 0xc012) => Some("Broadcom PEX880xx".into()),
            Some(0xc030 | 0xc034) => Some("Broadcom PEX890xx".into()),
            _ => has(&f.name, &["pex"]).then(|| named(&f.name, "PEX", "Broadcom PEX switch")),
        },
        0x11f8 => Some("Microchip Switchtec".into()),
        0x1b21 => Some("ASMedia switch".into()),
        MELLANOX => Some("ConnectX or BlueField switch".into()),
        AMD_GPU => Some("AMD GPU's switch".into()),
        _ => None,
    }
}

/// The word of `name` that starts with `start` and the one after it, or `other`.
fn named(name: &str, start: &str, other: &str) -> String {
    let mut words = name.split_whitespace().skip_while(|word| !word.starts_with(start));
    match (words.next(), words.next()) {
        (Some(word), Some(number)) if word == start => format!("{word} {number}"),
        (Some(word), _) => word.to_owned(),
        _ => other.to_owned(),
    }
}
