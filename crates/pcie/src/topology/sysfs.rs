//! Reads a machine's sysfs or a copy of it (Documentation/ABI/testing/sysfs-bus-pci).
//!
//! Link speed and width, NUMA node, class, IOMMU group and SR-IOV are files and links of sysfs.
//! MPS, MRRS, port type and ACS come from configuration space (PCIe base specification 7.5.3 and
//! 7.7.8), as far as the reader may see it: without privilege the kernel shows its first 64 bytes,
//! and these then are unknown.
//!
//! A copy may have lost its links (`cp -L`) or the folder `bus`. The bridges' bus numbers, which
//! are in the first 64 bytes, then say what is below what.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::capture::{Address, Capture, Function, MAX_FUNCTIONS, Port, Rate, hex};
use super::error::TopologyError;
use super::model::Topology;
use super::tree::Tree;

/// Reason why the machine's topology could not be read.
#[derive(Debug, Error)]
pub enum SysfsError {
    /// A required file or directory could not be read.
    #[error("{path}: {source}")]
    Io {
        /// Path.
        path: PathBuf,
        /// Error of the failing call.
        source: io::Error,
    },
    /// More functions than a machine has.
    #[error("{path}: more than {MAX_FUNCTIONS} functions")]
    Many {
        /// Path.
        path: PathBuf,
    },
    /// The files were read but do not form a valid topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// Reads the topology below `root`, which is `/sys` on a real machine. `socket_gb_per_s` is the
/// bandwidth of peer traffic between two CPU packages, which sysfs does not give; `None`: unknown.
pub fn from_sysfs(root: &Path, socket_gb_per_s: Option<f64>) -> Result<Topology, SysfsError> {
    let capture = capture_sysfs(root)?;
    Ok(Tree::new(&capture).topology("this machine", socket_gb_per_s)?)
}

/// Reads every PCI function below `root`, which is `/sys` on a real machine or a copy of it.
pub fn capture_sysfs(root: &Path) -> Result<Capture, SysfsError> {
    let mut capture = Capture::default();
    let real = &fs::canonicalize(root).unwrap_or(root.to_owned());
    for dir in device_dirs(root, real)? {
        let place = fs::canonicalize(&dir).unwrap_or(dir);
        // A link of a copy may lead to a device of the running machine.
        if place.is_absolute() && !place.starts_with(real) {
            continue;
        }
        if let Some(address) = address_of(&place) {
            let mut function = read_function(&place, address);
            // In its physical function's folder, of whose bus the bridge above is.
            let bus = function.physical.unwrap_or(address).bus;
            if let Some(known) = capture.functions.remove(&address) {
                function.buses = function.buses.or(known.buses);
            }
            capture.functions.insert(address, function);
            above(&mut capture, &place, bus);
        }
    }
    numa(real, &mut capture);
    Ok(capture)
}

/// Where a path leads to, links followed, if that is below `real`.
fn inside(real: &Path, path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok().filter(|path| path.starts_with(real))
}

/// What is in a folder below `real`.
fn entries_inside(real: &Path, dir: &Path) -> Vec<PathBuf> {
    inside(real, dir).and_then(|dir| entries(&dir).ok()).unwrap_or_default()
}

/// How the functions of preloaded software devices begin (docs/preload.md): they are on no bus of the machine's.
const SOFTWARE: &str = "be11:";

/// Folders of the functions: of `bus/pci/devices`, or else below `devices/pci*`.
fn device_dirs(root: &Path, real: &Path) -> Result<Vec<PathBuf>, SysfsError> {
    let dir = root.join("bus/pci/devices");
    let is_out = dir.exists() && inside(real, &dir).is_none();
    let out = || io::Error::other("it leads out of the folder that was named");
    let listed = if is_out {
        Err(SysfsError::Io { path: dir.clone(), source: out() })
    } else {
        entries(&dir)
    };
    let error = match listed {
        Ok(all) if all.len() > MAX_FUNCTIONS => return Err(SysfsError::Many { path: dir }),
        Ok(mut all) => {
            all.retain(|dir| !name_of(dir).starts_with(SOFTWARE));
            return Ok(all);
        }
        Err(error) => error,
    };
    let hosts = entries_inside(real, &root.join("devices")).into_iter().filter(|d| is_host(d));
    let mut open: Vec<PathBuf> = hosts.filter_map(|dir| inside(real, &dir)).collect();
    let mut found = Vec::new();
    while let Some(dir) = open.pop() {
        // A link may lead back up.
        for child in entries(&dir).unwrap_or_default().into_iter().filter(|c| !c.is_symlink()) {
            if address_of(&child).is_some() {
                found.push(child.clone());
                open.push(child);
            } else if is_host(&child) {
                open.push(child);
            }
            if found.len() > MAX_FUNCTIONS {
                return Err(SysfsError::Many { path: dir });
            }
        }
    }
    if found.is_empty() { Err(error) } else { Ok(found) }
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>, SysfsError> {
    let io = |source| SysfsError::Io { path: dir.to_owned(), source };
    fs::read_dir(dir).map_err(io)?.map(|entry| Ok(entry.map_err(io)?.path())).collect()
}

fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn address_of(path: &Path) -> Option<Address> {
    let name = name_of(path);
    (name.matches(':').count() == 2).then(|| name.parse().ok()).flatten()
}

/// `pci0000:00`, and `pci10000:00` of a VMD below its device.
fn host_bus(path: &Path) -> Option<(u32, u8)> {
    let (domain, bus) = name_of(path).strip_prefix("pci")?.split_once(':')?;
    Some((hex(domain).ok()?, u8::try_from(hex(bus).ok()?).ok()?))
}

fn is_host(path: &Path) -> bool {
    host_bus(path).is_some()
}

/// What the folders above say of a function: its bridges, which the list of functions may lack, and
/// the root bus.
fn above(capture: &mut Capture, place: &Path, mut bus: u8) {
    for dir in place.ancestors().skip(1) {
        if let Some(root) = host_bus(dir) {
            capture.roots.insert(root);
            return;
        }
        let Some(bridge) = address_of(dir) else { return };
        let new = || Function::new(bridge);
        let function = capture.functions.entry(bridge).or_insert_with(new);
        if function.buses.is_none() {
            function.set_buses(bus, bus);
        }
        bus = bridge.bus;
    }
}

/// Content of a regular file, of which no sysfs has more than this, and none by way of a link: a copy may lead to
/// anything, to a pipe that nobody writes, a device without end or a file of another machine.
fn content(dir: &Path, name: &str) -> Option<Vec<u8>> {
    const MAX_BYTES: u64 = 64 << 10;
    let path = dir.join(name);
    let mut bytes = Vec::new();
    let is_file = fs::symlink_metadata(&path).is_ok_and(|m| m.is_file());
    let file = is_file.then(|| fs::File::open(&path).ok()).flatten()?;
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn text(dir: &Path, name: &str) -> Option<String> {
    Some(String::from_utf8(content(dir, name)?).ok()?.trim().to_owned())
}

fn id(dir: &Path, name: &str) -> Option<u32> {
    hex(text(dir, name)?.strip_prefix("0x")?).ok()
}

fn rate(dir: &Path, which: &str) -> Option<Rate> {
    let speed = text(dir, &format!("{which}_link_speed"))?;
    let gt_per_s = speed.split_whitespace().next()?.parse().ok()?;
    Rate::new(gt_per_s, text(dir, &format!("{which}_link_width"))?.parse().ok()?)
}

fn read_function(dir: &Path, address: Address) -> Function {
    let mut f = Function::new(address);
    f.class = id(dir, "class").and_then(|class| u16::try_from(class >> 8).ok());
    f.vendor = id(dir, "vendor").and_then(|n| u16::try_from(n).ok());
    f.device = id(dir, "device").and_then(|n| u16::try_from(n).ok());
    // -1 says that the firmware does not tell.
    f.numa = text(dir, "numa_node").and_then(|n| n.parse().ok());
    (f.max, f.now) = (rate(dir, "max"), rate(dir, "current"));
    let group = fs::read_link(dir.join("iommu_group")).ok();
    f.iommu_group = group.and_then(|group| name_of(&group).parse().ok());
    let physical = dir.join("physfn");
    f.is_virtual = physical.is_symlink() || physical.exists();
    // The name alone counts: in a copy the link may lead nowhere.
    f.physical = fs::read_link(physical).ok().and_then(|to| name_of(&to).parse().ok());
    let rdma = entries_inside(dir, &dir.join("infiniband"));
    f.rdma = rdma.iter().map(|path| name_of(path).to_owned()).min();
    let config = content(dir, "config").unwrap_or_default();
    // A conventional PCI function has 256 bytes, of which such a reader sees 64 as well.
    f.denied = !config.is_empty() && config.len() <= 64;
    f.port = port_type(&config);
    let is_bridge = config.get(0x0e).is_some_and(|kind| kind & 0x7f == 1);
    if let (true, Some(&[_, secondary, subordinate])) =
        (is_bridge, config.get(0x18..0x1b).and_then(|b| b.first_chunk()))
    {
        f.set_buses(secondary, subordinate);
    }
    let control = pcie_capability(&config).and_then(|at| read_u16(&config, at + 8));
    let size = |shift: u16| control.map(|c| 128u32 << u32::from(c >> shift & 7).min(5));
    (f.mps, f.mrrs) = (size(5), size(12));
    // Only devices make requests of their own.
    f.relaxes = control.filter(|_| !is_bridge).map(|c| c >> 4 & 1 == 1);
    // Extended capabilities start at 0x100.
    f.redirects = (config.len() > 0x100)
        .then(|| acs_control(&config).is_some_and(|control| control & 0b100 != 0));
    f
}

/// NUMA nodes and the CPU package of each.
fn numa(real: &Path, capture: &mut Capture) {
    let nodes = entries_inside(real, &real.join("devices/system/node"));
    let mut all = BTreeSet::new();
    for dir in nodes.iter().filter_map(|dir| inside(real, dir)) {
        let Some(node) = name_of(&dir).strip_prefix("node").and_then(|n| n.parse().ok()) else {
            continue;
        };
        all.insert(node);
        // `0-63,128-191`; empty for a node of memory alone.
        let cpus = text(&dir, "cpulist").unwrap_or_default();
        let first = cpus.split(['-', ',']).next().unwrap_or_default();
        let cpu: Option<u32> = first.parse().ok();
        let topology = |n: u32| real.join(format!("devices/system/cpu/cpu{n}/topology"));
        let place = cpu.and_then(|n| inside(real, &topology(n)));
        let package = place.and_then(|dir| text(&dir, "physical_package_id"));
        if let Some(package) = package.and_then(|p| p.parse().ok()) {
            capture.packages.insert(node, package);
        }
    }
    capture.numa_nodes = (!all.is_empty()).then_some(all.len());
}

fn read_u16(config: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes([*config.get(at)?, *config.get(at + 1)?]))
}

fn pcie_capability(config: &[u8]) -> Option<usize> {
    let mut at = usize::from(*config.get(0x34)? & 0xfc);
    for _ in 0..48 {
        if at < 0x40 {
            return None;
        }
        if *config.get(at)? == 0x10 {
            return Some(at);
        }
        at = usize::from(*config.get(at + 1)? & 0xfc);
    }
    None
}

fn port_type(config: &[u8]) -> Option<Port> {
    Port::of_code(read_u16(config, pcie_capability(config)? + 2)? >> 4 & 0xf)
}

fn acs_control(config: &[u8]) -> Option<u16> {
    let mut at = 0x100;
    for _ in 0..96 {
        let (id, next) = (read_u16(config, at)?, read_u16(config, at + 2)? >> 4);
        if id == 0x000d {
            return read_u16(config, at + 6);
        }
        if next < 0x100 {
            return None;
        }
        at = usize::from(next);
    }
    None
}

#[cfg(test)]
#[path = "sysfs_tests.rs"]
mod tests;
