//! PCI functions as a capture shows them: a machine's sysfs, a copy of it, or the output of
//! `lspci`. What the capture does not show is `None`, and no default stands in for it.
//!
//! Guarantee: a bridge's secondary bus is above its own, so that every chain of bridges ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::identity;
use super::model::Kind;
use crate::text::one_line;

/// Functions that one capture may have: more than a machine has, less than exhausts memory.
pub const MAX_FUNCTIONS: usize = 16_384;

/// Reason why a captured text was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {}", one_line(.reason))]
pub struct CaptureError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

impl CaptureError {
    pub(super) fn new(line: usize, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into() }
    }
}

/// Address of a PCI function: domain, bus, device, function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Domain (segment); Intel VMD's start at 0x10000.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        f.pad(&format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
    }
}

/// A text that is no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no PCI address ([domain:]bus:device.function)")]
pub struct NoAddress;

impl FromStr for Address {
    type Err = NoAddress;

    /// Reads `03:00.0` and `0000:03:00.0`.
    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let (rest, function) = text.rsplit_once('.').ok_or(NoAddress)?;
        let (rest, device) = rest.rsplit_once(':').ok_or(NoAddress)?;
        let (domain, bus) = match rest.rsplit_once(':') {
            Some((domain, bus)) if (4..=8).contains(&domain.len()) => (hex(domain)?, bus),
            Some(_) => return Err(NoAddress),
            None => (0, rest),
        };
        if bus.len() != 2 || device.len() != 2 || function.len() != 1 {
            return Err(NoAddress);
        }
        let (bus, device, function) = (hex(bus)?, hex(device)?, hex(function)?);
        if device > 31 || function > 7 {
            return Err(NoAddress);
        }
        // Two digits each: they fit.
        Ok(Self { domain, bus: bus as u8, device: device as u8, function: function as u8 })
    }
}

/// Hexadecimal digits alone: `from_str_radix` takes a sign as well.
pub(super) fn hex(text: &str) -> Result<u32, NoAddress> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(NoAddress);
    }
    u32::from_str_radix(text, 16).map_err(|_| NoAddress)
}

/// Port type of a function's PCI Express capability (PCIe base specification 7.5.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Endpoint or legacy endpoint.
    Endpoint,
    /// Endpoint inside the root complex.
    Integrated,
    /// Root port.
    Root,
    /// Upstream port of a switch.
    Upstream,
    /// Downstream port of a switch.
    Downstream,
    /// Bridge between PCI Express and PCI.
    PciBridge,
}

impl Port {
    /// The port type of the capability's code.
    pub(super) fn of_code(code: u16) -> Option<Self> {
        Some(match code {
            0 | 1 => Self::Endpoint,
            4 => Self::Root,
            5 => Self::Upstream,
            6 => Self::Downstream,
            7 | 8 => Self::PciBridge,
            9 | 10 => Self::Integrated,
            _ => return None,
        })
    }
}

/// Generation and width of a link, as read; both legal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Generation, 1 to 6.
    pub generation: u32,
    /// Lanes.
    pub lanes: u32,
}

impl Rate {
    /// A rate of `gt_per_s` GT/s a lane; `None` where it or the width is none that a link has.
    pub fn new(gt_per_s: f64, lanes: u32) -> Option<Self> {
        let generation = match gt_per_s {
            2.5 => 1,
            5.0 => 2,
            8.0 => 3,
            16.0 => 4,
            32.0 => 5,
            64.0 => 6,
            _ => return None,
        };
        matches!(lanes, 1 | 2 | 4 | 8 | 12 | 16 | 32).then_some(Self { generation, lanes })
    }

    /// The rate that both ends of a link have.
    pub fn common(self, other: Self) -> Self {
        let generation = self.generation.min(other.generation);
        Self { generation, lanes: self.lanes.min(other.lanes) }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gen{} x{}", self.generation, self.lanes)
    }
}

/// One PCI function.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Address.
    pub address: Address,
    /// Base class and subclass, such as 0x0302.
    pub class: Option<u16>,
    /// Vendor.
    pub vendor: Option<u16>,
    /// Device.
    pub device: Option<u16>,
    /// Name of vendor and device; empty where there is none.
    pub name: String,
    /// Name of its RDMA device, such as mlx5_0 (sysfs alone has it).
    pub rdma: Option<String>,
    /// Port type.
    pub port: Option<Port>,
    /// NUMA node.
    pub numa: Option<u32>,
    /// Fastest link of this end.
    pub max: Option<Rate>,
    /// Link as it is now. An idle GPU slows its link down.
    pub now: Option<Rate>,
    /// Maximum payload size in use, bytes.
    pub mps: Option<u32>,
    /// Maximum read request size in use, bytes.
    pub mrrs: Option<u32>,
    /// Whether the function may set the relaxed-ordering attribute (Enable Relaxed Ordering).
    pub relaxes: Option<bool>,
    /// Whether ACS P2P Request Redirect is on.
    pub redirects: Option<bool>,
    /// IOMMU group.
    pub iommu_group: Option<u32>,
    /// A bridge's secondary and subordinate bus.
    pub buses: Option<(u8, u8)>,
    /// Whether it is an SR-IOV virtual function.
    pub is_virtual: bool,
    /// Its physical function, of a virtual one whose folder in sysfs names it.
    pub physical: Option<Address>,
    /// Whether the reader was denied its capabilities.
    pub denied: bool,
}

impl Function {
    pub(super) fn new(address: Address) -> Self {
        Self {
            address,
            class: None,
            vendor: None,
            device: None,
            name: String::new(),
            rdma: None,
            port: None,
            numa: None,
            max: None,
            now: None,
            mps: None,
            mrrs: None,
            relaxes: None,
            redirects: None,
            iommu_group: None,
            buses: None,
            is_virtual: false,
            physical: None,
            denied: false,
        }
    }

    /// [`Kind::Gpu`] or [`Kind::Nic`] for a function that is one.
    pub fn kind(&self) -> Option<Kind> {
        identity::kind(self)
    }

    /// Whether it leads to another bus.
    pub fn is_bridge(&self) -> bool {
        self.buses.is_some() || self.class == Some(identity::BRIDGE)
    }

    /// Whether this function shows that its bus is a root bus, unless a bridge leads there.
    pub(super) fn is_on_root_bus(&self) -> bool {
        matches!(self.port, Some(Port::Root | Port::Integrated))
            || self.class == Some(identity::HOST_BRIDGE)
            || self.port.is_none() && self.is_bridge()
            || self.address.bus == 0
    }

    pub(super) fn set_buses(&mut self, secondary: u8, subordinate: u8) {
        // 0 to 0 is a bridge that nobody has configured; a bus below its own would be a loop.
        if secondary > self.address.bus && subordinate >= secondary {
            self.buses = Some((secondary, subordinate));
        }
    }

    fn add(&mut self, other: Self) {
        fn fill<T>(mine: &mut Option<T>, other: Option<T>) {
            if mine.is_none() {
                *mine = other;
            }
        }
        fill(&mut self.class, other.class);
        fill(&mut self.vendor, other.vendor);
        fill(&mut self.device, other.device);
        fill(&mut self.rdma, other.rdma);
        fill(&mut self.port, other.port);
        fill(&mut self.numa, other.numa);
        fill(&mut self.max, other.max);
        fill(&mut self.now, other.now);
        fill(&mut self.mps, other.mps);
        fill(&mut self.mrrs, other.mrrs);
        fill(&mut self.relaxes, other.relaxes);
        fill(&mut self.redirects, other.redirects);
        fill(&mut self.iommu_group, other.iommu_group);
        fill(&mut self.buses, other.buses);
        fill(&mut self.physical, other.physical);
        if self.name.is_empty() {
            self.name = other.name;
        }
        self.is_virtual |= other.is_virtual;
        self.denied |= other.denied;
    }
}

/// Every function that a capture shows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Capture {
    pub(super) functions: BTreeMap<Address, Function>,
    /// Buses that the capture says are below no bridge.
    pub(super) roots: BTreeSet<(u32, u8)>,
    /// CPU package of each NUMA node with CPUs.
    pub(super) packages: BTreeMap<u32, u32>,
    /// Number of NUMA nodes.
    pub(super) numa_nodes: Option<usize>,
    /// Virtual functions with their physical ones, as these say.
    pub(super) virtuals: BTreeMap<Address, Address>,
}

impl Capture {
    /// The functions, by address.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.values()
    }

    /// One function.
    pub fn get(&self, address: Address) -> Option<&Function> {
        self.functions.get(&address)
    }

    /// Functions of one kind, by address, which is nvidia-smi's order of GPUs.
    pub fn of_kind(&self, kind: Kind) -> Vec<Address> {
        self.functions().filter(|f| self.kind_of(f) == Some(kind)).map(|f| f.address).collect()
    }

    /// What a function counts as. A GPU's virtual functions are guests', and nvidia-smi numbers none of them beside
    /// their physical one; in a guest, which has them alone, they are its GPUs.
    pub fn kind_of(&self, f: &Function) -> Option<Kind> {
        let is_own = |kind: &Kind| *kind != Kind::Gpu || self.physical(f.address) == f.address;
        f.kind().filter(is_own)
    }

    /// Adds what another capture of the same machine shows; where both show it, the first counts.
    pub fn merge(&mut self, other: Self) {
        for (address, function) in other.functions {
            match self.functions.get_mut(&address) {
                Some(mine) => mine.add(function),
                None => {
                    self.functions.insert(address, function);
                }
            }
        }
        self.roots.extend(other.roots);
        self.virtuals.extend(other.virtuals);
        if self.packages.is_empty() {
            self.packages = other.packages;
        }
        self.numa_nodes = self.numa_nodes.or(other.numa_nodes);
    }

    /// Two bridges that lead to one bus, which files that do not belong together say.
    pub fn contradiction(&self) -> Option<String> {
        let mut seen: BTreeMap<(u32, u8), Address> = BTreeMap::new();
        self.functions().find_map(|f| {
            let other = seen.insert((f.address.domain, f.buses?.0), f.address)?;
            let bus = f.buses?.0;
            Some(format!("both {other} and {} lead to bus {bus:02x}", f.address))
        })
    }

    /// Whether a function is an SR-IOV virtual one.
    pub fn is_virtual(&self, address: Address) -> bool {
        self.virtuals.contains_key(&address) || self.get(address).is_some_and(|f| f.is_virtual)
    }

    /// The function whose place, link and card a function has: of a virtual one its physical one, where the capture has
    /// it. By their numbers alone the two may be of different devices, and on different buses (SR-IOV, ARI).
    pub fn physical(&self, address: Address) -> Address {
        let named = self.get(address).and_then(|f| f.physical);
        let own = named.or_else(|| self.virtuals.get(&address).copied());
        // Of a capture that says otherwise nothing is taken that could lead round in a ring.
        let is_its = |a: &Address| {
            a.domain == address.domain && self.get(*a).is_some() && !self.is_virtual(*a)
        };
        own.filter(is_its).unwrap_or(address)
    }

    /// The card of a function. Functions of one device are ports of one card, and virtual ones are of their physical
    /// one's.
    pub(super) fn card(&self, address: Address) -> String {
        let Address { domain, bus, device, .. } = self.physical(address);
        format!("{domain:04x}:{bus:02x}:{device:02x}")
    }

    /// Whether two functions are of one card.
    pub fn is_one_card(&self, a: Address, b: Address) -> bool {
        let slot = |a: Address| Address { function: 0, ..self.physical(a) };
        slot(a) == slot(b)
    }

    /// CPU package of a NUMA node.
    pub fn package(&self, numa: u32) -> Option<u32> {
        self.packages.get(&numa).copied()
    }

    /// What a function shows, or else another one of its device, which has the same place and link.
    pub(super) fn of_device<T>(
        &self,
        address: Address,
        shows: impl Fn(&Function) -> Option<T>,
    ) -> Option<T> {
        let of = |a: Address| {
            let last = Address { function: 7, ..a };
            let mut device = self.functions.range(Address { function: 0, ..a }..=last);
            device.find_map(|(_, f)| shows(f))
        };
        let own = shows(self.get(address)?).or_else(|| of(address));
        own.or_else(|| Some(self.physical(address)).filter(|a| *a != address).and_then(of))
    }

    /// Bridges with the buses below them.
    pub(super) fn bridges(&self) -> BTreeMap<(u32, u8), Address> {
        let below = |f: &Function| Some(((f.address.domain, f.buses?.0), f.address));
        self.functions().filter_map(below).collect()
    }
}
