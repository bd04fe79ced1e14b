//! What the devices' sysfs files say, and how they lie, as Linux has them: a device is a PCI function behind a bridge,
//! and the classes have links to it. Programs find a NIC's distance to CPUs and GPUs, and the speed of its slot, by the
//! directories that its link leads through.

use std::net::IpAddr;

use bellpush_soft_nic::Counters;
use bellpush_soft_nic::link::interface_name;

use crate::counters;
use crate::rdma_cm;

/// `major` of the devices' character devices: that of InfiniBand (Linux's `devices.txt`), with
/// minors from `IB_UVERBS_BASE_MINOR` on.
const MAJOR: u32 = 231;
const FIRST_MINOR: u32 = 192;
/// The file of a device's only GID.
pub const GID: &str = "ports/1/gids/0";
/// The port's logical state, below a device's directory.
pub const STATE: &str = "ports/1/state";
/// Its physical state.
pub const PHYS_STATE: &str = "ports/1/phys_state";
/// Board: what says to people and programs that this is software.
pub const BOARD: &str = "bellpush soft";
/// Firmware version: the crate's.
pub const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// A file or a link of the tree.
pub enum Entry {
    /// A file with a line, or some.
    Text(String),
    /// A file of other bytes.
    Bytes(Vec<u8>),
    /// A link to a path.
    Link(String),
}

/// `st_rdev` of a device.
pub fn rdev(index: usize) -> u64 {
    libc::makedev(MAJOR, FIRST_MINOR + index as u32)
}

/// `node_guid` of a device: of the locally administered kind, and the same in every process.
pub fn guid(index: usize) -> [u8; 8] {
    [0x02, 0x62, 0x70, 0xff, 0xfe, 0, 0, index as u8 + 1]
}

/// GID of an address.
pub fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn words(bytes: &[u8]) -> String {
    let pairs = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    pairs.collect::<Vec<_>>().join(":")
}

/// What a device's GID file says: zeros while it has no address, as an empty entry of the table.
pub fn gid_line(address: Option<IpAddr>) -> String {
    words(&address.map_or([0; 16], gid))
}

/// The network interface of a device: a device without an address will have one of 127.0.0.0/16.
pub fn interface(address: Option<IpAddr>) -> String {
    address.and_then(interface_name).unwrap_or_else(|| "lo".into())
}

fn bridge(index: usize) -> String {
    format!("devices/pcibe11:00/be11:00:{index:02x}.0")
}

/// Name of a device's PCI function.
fn function(index: usize) -> String {
    format!("be11:{:02x}:00.0", index + 1)
}

fn pci(index: usize) -> String {
    format!("{}/{}", bridge(index), function(index))
}

fn infiniband(index: usize) -> String {
    format!("{}/infiniband/mlx5_{index}", pci(index))
}

/// The port's directory of a device, below the tree's root.
pub fn port(index: usize) -> String {
    format!("{}/ports/1", infiniband(index))
}

/// The device that a path leads to, and the file below its directory.
pub fn of_device(path: &str) -> Option<(usize, &str)> {
    let (_, below) = path.split_once("/infiniband/mlx5_")?;
    let (index, file) = below.split_once('/')?;
    Some((index.parse().ok()?, file))
}

/// All processors, as a mask and as a list.
fn processors() -> [String; 2] {
    // SAFETY: asks for a number.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }.clamp(1, 1 << 16) as usize;
    let group = |at: usize| (1u64 << (count - 32 * at).min(32)) - 1;
    let mask: Vec<_> =
        (0..count.div_ceil(32)).rev().map(|at| format!("{:08x}", group(at))).collect();
    [mask.join(","), format!("0-{}", count - 1)]
}

/// What all bridges and functions have. The link is rated as that of a ConnectX-6: it says nothing of software.
fn pci_entries(folder: &str, class: &str, rest: [(&str, &str); 2]) -> Vec<(String, Entry)> {
    let [mask, list] = processors();
    let texts = [
        ("class", class),
        ("vendor", "0x15b3"),
        ("subsystem_vendor", "0x15b3"),
        ("subsystem_device", "0x0000"),
        ("numa_node", "-1"),
        ("local_cpus", &mask),
        ("local_cpulist", &list),
        ("max_link_speed", "16.0 GT/s PCIe"),
        ("max_link_width", "16"),
        ("current_link_speed", "16.0 GT/s PCIe"),
        ("current_link_width", "16"),
    ];
    let text = |(name, text): (&str, &str)| (format!("{folder}/{name}"), Entry::Text(text.into()));
    texts.into_iter().chain(rest).map(text).collect()
}

/// What a device's function is: a ConnectX-7, an InfiniBand controller.
const VENDOR: u16 = 0x15b3;
const DEVICE: u16 = 0x1021;
const CLASS: u32 = 0x02_0700;
/// Bytes of a function's configuration space that every reader sees.
const HEADER_BYTES: usize = 64;

/// A function's header (PCIe 7.5.1): what it is, and no BAR, for nobody reaches any.
fn header(vendor: u16, device: u16, class: u32) -> Vec<u8> {
    let mut header = vec![0; HEADER_BYTES];
    header[0..2].copy_from_slice(&vendor.to_le_bytes());
    header[2..4].copy_from_slice(&device.to_le_bytes());
    header[4] = 0b110; // answers accesses of memory, and makes some
    header[9..12].copy_from_slice(&class.to_le_bytes()[..3]);
    header[0x2c..0x2e].copy_from_slice(&vendor.to_le_bytes());
    header
}

/// What Linux lists of a function's BARs, expansion ROM and windows (`resource_show`): begin, end, flags.
fn resources() -> String {
    ["0x0000000000000000 0x0000000000000000 0x0000000000000000"; 13].join("\n")
}

/// A port's logical state, as Linux writes it (`state_show` of its sysfs.c).
pub fn state_line(is_up: bool) -> &'static str {
    if is_up { "4: ACTIVE" } else { "1: DOWN" }
}

/// A port's physical state, as Linux writes it (`phys_state_show`).
pub fn phys_state_line(is_up: bool) -> &'static str {
    if is_up { "5: LinkUp" } else { "3: Disabled" }
}

/// Files that stand for no device.
pub fn common() -> Vec<(String, Entry)> {
    let files = [
        ("class/infiniband_verbs/abi_version", "6"),
        ("class/nvidia_peermem/version", BOARD),
        ("class/misc/rdma_cm/abi_version", rdma_cm::VERSION),
        ("dev/infiniband/rdma_cm", ""),
    ];
    files.map(|(name, text)| (name.into(), Entry::Text(text.into()))).into()
}

/// The files of a device, below the tree's root.
pub fn device(index: usize, address: Option<IpAddr>) -> Vec<(String, Entry)> {
    let (pci, ib, port) = (pci(index), infiniband(index), port(index));
    let verbs = format!("{pci}/infiniband_verbs/uverbs{index}");
    let guid = words(&guid(index));
    let number = format!("{MAJOR}:{}", FIRST_MINOR + index as u32);
    let modalias = "pci:v000015B3d00001021sv000015B3sd00000000bc02sc07i00";
    let mut entries =
        pci_entries(&bridge(index), "0x060400", [("device", "0x1979"), ("enable", "1")]);
    let (class, device) = (format!("{CLASS:#08x}"), format!("{DEVICE:#06x}"));
    entries.extend(pci_entries(&pci, &class, [("device", &device), ("modalias", modalias)]));
    let texts = [
        (format!("{verbs}/ibdev"), format!("mlx5_{index}")),
        (format!("{verbs}/dev"), number),
        (format!("{verbs}/abi_version"), "1".into()),
        // libpci, which perftest asks, ends a program over a function that has them not.
        (format!("{pci}/resource"), resources()),
        (format!("{pci}/irq"), "0".into()),
        (format!("{ib}/node_type"), "1: CA".into()),
        (format!("{ib}/node_guid"), guid.clone()),
        (format!("{ib}/sys_image_guid"), guid),
        (format!("{ib}/node_desc"), format!("{BOARD} {FIRMWARE}")),
        (format!("{ib}/board_id"), BOARD.into()),
        (format!("{ib}/hca_type"), BOARD.into()),
        (format!("{ib}/hw_rev"), "0".into()),
        (format!("{ib}/fw_ver"), FIRMWARE.into()),
        (format!("{ib}/{STATE}"), state_line(true).into()),
        (format!("{ib}/{PHYS_STATE}"), phys_state_line(true).into()),
        (format!("{port}/link_layer"), "Ethernet".into()),
        (format!("{port}/lid"), "0x0".into()),
        (format!("{port}/lid_mask_count"), "0".into()),
        (format!("{port}/sm_lid"), "0x0".into()),
        (format!("{port}/sm_sl"), "0".into()),
        (format!("{port}/cap_mask"), format!("{:#010x}", PORT_CAPS)),
        (format!("{port}/rate"), "100 Gb/sec (4X EDR)".into()),
        (format!("{ib}/{GID}"), gid_line(address)),
        (format!("{port}/gid_attrs/types/0"), "RoCE v2".into()),
        (format!("{port}/gid_attrs/ndevs/0"), interface(address)),
        (format!("{port}/pkeys/0"), "0xffff".into()),
        (format!("dev/infiniband/uverbs{index}"), String::new()),
    ];
    entries.extend(texts.map(|(name, text)| (name, Entry::Text(text))));
    let header = header(VENDOR, DEVICE, CLASS);
    entries.push((format!("{pci}/config"), Entry::Bytes(header)));
    let none = counters::values(&Counters::default());
    entries.extend(
        none.map(|(name, value)| (format!("{port}/{name}"), Entry::Text(value.to_string()))),
    );
    let function = function(index);
    let links = [
        (format!("{ib}/device"), format!("../../../{function}")),
        (format!("{verbs}/device"), format!("../../../{function}")),
        (format!("class/infiniband/mlx5_{index}"), format!("../../{ib}")),
        (format!("class/infiniband_verbs/uverbs{index}"), format!("../../{verbs}")),
        (format!("bus/pci/devices/{function}"), format!("../../../{pci}")),
        // What it is a device of: NCCL places one by its function only if that is the bus `pci`.
        (format!("{}/subsystem", bridge(index)), "../../../bus/pci".into()),
        (format!("{pci}/subsystem"), "../../../../bus/pci".into()),
        (format!("{ib}/subsystem"), "../../../../../../class/infiniband".into()),
        (format!("{verbs}/subsystem"), "../../../../../../class/infiniband_verbs".into()),
    ];
    entries.extend(links.map(|(name, to)| (name, Entry::Link(to))));
    entries
}

/// `port_cap_flags`: IP_BASED_GIDS.
pub const PORT_CAPS: u32 = 1 << 26;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_device_wherever_it_begins() {
        let below = |path| of_device(path);
        assert_eq!(below("class/infiniband/mlx5_3/ports/1/gids/0"), Some((3, GID)));
        assert_eq!(
            below("devices/pcibe11:00/be11:00:00.0/be11:01:00.0/infiniband/mlx5_0/node_type"),
            Some((0, "node_type"))
        );
        assert_eq!(below("class/infiniband/mlx5_3"), None);
        assert_eq!(below("class/infiniband_verbs/uverbs0/dev"), None);
    }

    #[test]
    fn links_lead_to_files_of_the_tree() {
        let all: Vec<_> = common().into_iter().chain(device(15, None)).collect();
        for (name, entry) in &all {
            let Entry::Link(to) = entry else { continue };
            let mut at: Vec<_> = name.split('/').collect();
            at.pop();
            for part in to.split('/') {
                match part {
                    ".." => assert!(at.pop().is_some(), "{name} leads out of the tree"),
                    part => at.push(part),
                }
            }
            let folder = at.join("/") + "/";
            assert!(all.iter().any(|(name, _)| name.starts_with(&folder)), "{name} -> {to}");
        }
    }
}
