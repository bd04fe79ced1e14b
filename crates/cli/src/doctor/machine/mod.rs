//! A machine as it was read: every item is known, absent or unreadable, and no default stands in
//! for what was not seen.

pub mod dcb;
pub mod gpu;
pub mod pci;
pub mod rdma;
pub mod system;

use std::collections::{BTreeMap, BTreeSet};

use bellpush::pcie::topology::{Address, Assigned, Kind, Tree, assign_to, candidates};

use super::checks::far;
use super::read::{Root, Seen};
use gpu::Nvidia;
use pci::Pci;
use rdma::{Netdev, RdmaDevice, Uverbs};
use system::System;

/// Most GPUs, and most NICs, of which every pair is looked at: each pair takes time, and no machine
/// is known with more than 16.
pub const RANKED: usize = 64;

/// Where the loader looks first.
pub const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// ConnectX-4 and ConnectX-4 Lx, each with its virtual function: no device memory.
const NO_DEVICE_MEMORY: [u16; 4] = [0x1013, 0x1014, 0x1015, 0x1016];

/// What NCCL reads below the environment, on every machine that has it.
pub const NCCL_CONF: &str = "etc/nccl.conf";

/// Which GPUs the driver maps NIC pages into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mapping {
    /// All of them.
    All,
    /// All but these.
    Without(Vec<Address>),
    /// None.
    None,
}

/// Everything that was read of one machine.
#[derive(Debug)]
pub struct Machine {
    /// Whether it is the running one: its rights can then be tried, and this program runs on it.
    pub live: bool,
    /// Whether device nodes can be looked for: a copy may lack /dev.
    pub has_dev: bool,
    /// Kernel, CPU, limits, control groups, mounts.
    pub system: System,
    /// The environment of the process, or of the file `env`, and below it what NCCL adds from [`NCCL_CONF`].
    pub env: BTreeMap<String, String>,
    /// The variables that come from there.
    pub conf: BTreeSet<String>,
    /// NVIDIA's driver.
    pub nvidia: Nvidia,
    /// PCI functions, the IOMMU.
    pub pci: Pci,
    /// RDMA devices.
    pub rdma: Vec<RdmaDevice>,
    /// Why it cannot be seen whether there are RDMA devices.
    pub rdma_hidden: Option<String>,
    /// Device nodes of RDMA devices.
    pub uverbs: Uverbs,
    /// Network interfaces.
    pub netdevs: Vec<Netdev>,
    /// Bytes of RDMA devices' memory (MEMIC), which verbs alone tell: of what `--live` has opened.
    pub device_memory: BTreeMap<String, u64>,
}

impl Machine {
    /// Reads the machine below `root`.
    pub fn read(root: &Root, live: bool) -> Self {
        let rdma = rdma::devices(root);
        let mut env = if live { own_environment() } else { environment(root) };
        let conf = configured(root, &mut env);
        let mut netdevs = rdma::netdevs(root);
        dcb::ask(root, live, &rdma, &mut netdevs);
        Self {
            live,
            has_dev: root.has("dev"),
            rdma_hidden: rdma::hidden(root),
            system: System::read(root, env.get(LIBRARY_PATH).map_or("", String::as_str)),
            env,
            conf,
            nvidia: Nvidia::read(root, live),
            pci: Pci::read(root),
            uverbs: Uverbs::read(root, live),
            rdma,
            netdevs,
            device_memory: BTreeMap::new(),
        }
    }

    /// Whether NVIDIA's driver may be there and does not show itself: a GPU is bound to it, or a
    /// copy lacks it.
    pub fn is_driver_hidden(&self) -> bool {
        let is_bound = |a: Address| self.pci.more(a).driver.as_deref() == Some("nvidia");
        match self.nvidia.version {
            Seen::Known(_) => false,
            Seen::Unreadable(_) => true,
            Seen::Absent => {
                !self.nvidia.is_shown
                    || !self.nvidia.gpus.is_empty()
                    || self.gpus().into_iter().any(is_bound)
            }
        }
    }

    /// Whether the driver maps NIC pages into its GPUs by its options; `None` where they are not
    /// shown.
    pub fn mapping(&self) -> Option<Mapping> {
        const KEY: &str = "PeerMappingOverride";
        self.nvidia.params.known()?;
        if self.nvidia.registry(KEY) {
            return Some(Mapping::All);
        }
        let own = self.nvidia.registry_of(KEY);
        let (with, without): (Vec<Address>, Vec<Address>) =
            self.nvidia.gpus.iter().map(|(a, _)| *a).partition(|a| own.contains(a));
        Some(match (with.is_empty(), without.is_empty()) {
            (true, _) => Mapping::None,
            (false, true) => Mapping::All,
            (false, false) => Mapping::Without(without),
        })
    }

    /// RDMA devices that bellpush can drive: those of mlx5.
    pub fn mlx5(&self) -> impl Iterator<Item = &RdmaDevice> {
        self.rdma.iter().filter(|d| d.is_mlx5())
    }

    /// Whether a PCI function, or a bridge above it, does not answer.
    pub fn is_gone(&self, address: Address) -> bool {
        self.pci.gone.contains(&address)
    }

    /// Those of [`Machine::mlx5`] whose function is not known to be gone. Of others sysfs has what was once read.
    pub fn answering(&self) -> impl Iterator<Item = &RdmaDevice> {
        self.mlx5().filter(|device| !device.address.is_some_and(|a| self.is_gone(a)))
    }

    /// The RDMA device of a PCI function: none of software on the function's interface.
    pub fn rdma_at(&self, address: Address) -> Option<&RdmaDevice> {
        self.rdma.iter().find(|d| d.address == Some(address) && d.is_software != Some(true))
    }

    /// Whether an RDMA device is known to have no memory (MEMIC), so that its windows are in host memory.
    pub fn lacks_memory(&self, name: &str) -> bool {
        let id = || {
            let device = self.rdma.iter().find(|device| device.name == name)?;
            self.pci.capture.known()?.get(device.address?)?.device
        };
        match self.device_memory.get(name) {
            Some(bytes) => *bytes == 0,
            None => id().is_some_and(|id| NO_DEVICE_MEMORY.contains(&id)),
        }
    }

    /// Name of a NIC: that of its RDMA device, or else its address.
    pub fn nic_name(&self, address: Address) -> String {
        self.rdma_at(address).map_or_else(|| address.to_string(), |d| d.name.clone())
    }

    /// A network interface by name.
    pub fn netdev(&self, name: &str) -> Option<&Netdev> {
        self.netdevs.iter().find(|n| n.name == name)
    }

    /// Addresses of NVIDIA's GPUs, in the order of `nvidia-smi`.
    pub fn gpus(&self) -> Vec<Address> {
        let Some(capture) = self.pci.capture.known() else { return Vec::new() };
        let nvidia = |a: &Address| capture.get(*a).is_some_and(|f| f.vendor == Some(0x10de));
        capture.of_kind(Kind::Gpu).into_iter().filter(nvidia).collect()
    }

    /// The same, and where no PCI function is shown as one, those that the driver has.
    pub fn seen_gpus(&self) -> Vec<Address> {
        let gpus = self.gpus();
        if gpus.is_empty() { self.nvidia.gpus.iter().map(|(a, _)| *a).collect() } else { gpus }
    }

    /// Whether a GPU is this container's: one sees the PCI functions of all, and may have the driver and the nodes of some.
    /// A process of a scheduler, too, may have the right to the nodes of some.
    pub fn is_given(&self, gpu: Address) -> bool {
        if self.has_dev && self.nvidia.refuses(gpu) && self.nvidia.opens_any() {
            return false;
        }
        let has = |own: &Address| self.nvidia.gpus.iter().any(|(a, _)| a == own);
        let is_shut = self.has_dev && self.nvidia.has_a_node() && self.nvidia.lacks_node(gpu);
        self.container().is_none() || self.nvidia.gpus.is_empty() || has(&gpu) && !is_shut
    }

    /// Number of a GPU, and its address.
    pub fn gpu_name(&self, address: Address) -> String {
        match self.gpus().iter().position(|&a| a == address) {
            Some(n) => format!("GPU{n} {address}"),
            None => address.to_string(),
        }
    }

    /// Devices that are or may be of mlx5 and whose PCI function is not shown as a NIC, and functions that do not show
    /// what they are: a GPU may have one of them for its nearest.
    pub fn unplaced(&self) -> Vec<String> {
        let Some(capture) = self.pci.capture.known() else { return Vec::new() };
        let nics = candidates(&Tree::new(capture));
        let is_nic = |a: Address| nics.contains(&a) || capture.is_virtual(a);
        let is_own = |d: &&RdmaDevice| d.is_mlx5() || d.may_be_mlx5();
        let lost = self.rdma.iter().filter(is_own).filter(|d| !d.address.is_some_and(is_nic));
        let lost = lost.map(|d| d.name.clone());
        let unknown = capture.functions().filter(|f| f.class.is_none() && !f.is_bridge());
        lost.chain(unknown.map(|f| f.address.to_string())).collect()
    }

    /// Numbers of GPUs and NICs, where they are too many to rank every pair.
    pub fn unranked(&self) -> Option<(usize, usize)> {
        let capture = self.pci.capture.known()?;
        let (gpus, nics) =
            (capture.of_kind(Kind::Gpu).len(), candidates(&Tree::new(capture)).len());
        (gpus > RANKED || nics > RANKED).then_some((gpus, nics))
    }

    /// The NICs that GPUs are given: physical functions, and virtual ones with an RDMA device whose physical one has none
    /// here, in its place.
    pub fn nics(&self, tree: &Tree<'_>) -> Vec<Address> {
        let mut all = candidates(tree);
        let lone: Vec<Address> = self
            .virtual_nics(tree)
            .into_iter()
            .filter(|v| {
                !all.iter().any(|nic| is_card(tree, *v, *nic) && self.rdma_at(*nic).is_some())
            })
            .collect();
        all.retain(|nic| !lone.iter().any(|v| is_card(tree, *v, *nic)));
        all.extend(lone);
        all
    }

    /// Virtual functions that are RDMA devices of mlx5, as many as are ranked.
    pub fn virtual_nics(&self, tree: &Tree<'_>) -> Vec<Address> {
        let all = self.mlx5().filter_map(|device| device.address);
        all.filter(|a| tree.capture().is_virtual(*a)).take(RANKED).collect()
    }

    /// Those of [`Machine::nics`] that have an RDMA device.
    pub fn rdma_nics(&self, tree: &Tree<'_>) -> Vec<Address> {
        self.nics(tree).into_iter().filter(|nic| self.rdma_at(*nic).is_some()).collect()
    }

    /// RDMA devices that may be of software: nothing shows of what kind they are.
    pub fn of_any_kind(&self) -> impl Iterator<Item = &RdmaDevice> {
        self.rdma.iter().filter(|device| device.is_software.is_none())
    }

    /// Every NVIDIA GPU with the NIC beside it, which has an RDMA device where it is shown which do; none where there are
    /// too many.
    pub fn pairs(&self) -> Vec<Assigned<Address>> {
        let Some(tree) = self.pci.tree() else { return Vec::new() };
        let with_rdma = self.rdma_nics(&tree);
        let is_shown = self.unplaced().is_empty() && self.of_any_kind().next().is_none();
        match is_shown && !with_rdma.is_empty() {
            true => self.pairs_of(&tree, &with_rdma),
            false => self.pairs_of(&tree, &self.nics(&tree)),
        }
    }

    /// The same, of these NICs.
    pub fn pairs_of(&self, tree: &Tree<'_>, nics: &[Address]) -> Vec<Assigned<Address>> {
        if self.unranked().is_some() {
            return Vec::new();
        }
        let gpus = self.gpus();
        let is_own = |pair: &Assigned<Address>| gpus.contains(&pair.gpu) && self.is_given(pair.gpu);
        assign_to(tree, &self.without_slow(tree, nics)).into_iter().filter(is_own).collect()
    }

    /// These NICs without those that no GPU would take: of the NICs that are as near to each of its GPUs, one has more
    /// than twice its rate, also where all of the GPUs share that. Ports for management lie beside those for jobs.
    fn without_slow(&self, tree: &Tree<'_>, nics: &[Address]) -> Vec<Address> {
        let rate = |nic: &Address| {
            let ports = self.rdma_at(*nic)?.ports.iter().filter(|port| port.is_active());
            ports.filter_map(|port| Some(port.rate.known()?.0)).reduce(f64::max)
        };
        let near = |gpu: &Address| -> Vec<Address> {
            let ranks = nics.iter().map(|nic| far(tree.class(*gpu, *nic)));
            let ranks: Vec<u8> = ranks.collect();
            let least = ranks.iter().min();
            let all = nics.iter().zip(&ranks).filter(|(_, rank)| Some(*rank) == least);
            all.map(|(nic, _)| *nic).collect()
        };
        let sets: Vec<Vec<Address>> = tree.capture().of_kind(Kind::Gpu).iter().map(near).collect();
        let is_slow = |nic: &Address| {
            let Some(own) = rate(nic) else { return false };
            let sets: Vec<&Vec<Address>> = sets.iter().filter(|set| set.contains(nic)).collect();
            let share = sets.len().max(2) as f64;
            let fastest = |set: &&Vec<Address>| set.iter().filter_map(rate).fold(0.0, f64::max);
            !sets.is_empty() && sets.iter().all(|set| own < fastest(set) / share)
        };
        nics.iter().copied().filter(|nic| !is_slow(nic)).collect()
    }

    /// A variable that is set and not empty.
    pub fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// Whether this is a container, by what it was made with.
    pub fn container(&self) -> Option<&str> {
        self.system.container.as_deref()
    }
}

/// Whether a virtual function is of the same card as another. Where it does not name its physical one, both are below the
/// same bridge.
pub fn is_card(tree: &Tree<'_>, of: Address, nic: Address) -> bool {
    let capture = tree.capture();
    match capture.physical(of) == of {
        true => of.domain == nic.domain && tree.chain(of) == tree.chain(nic),
        false => capture.is_one_card(of, nic),
    }
}

fn own_environment() -> BTreeMap<String, String> {
    let text = |t: std::ffi::OsString| t.to_string_lossy().into_owned();
    std::env::vars_os().map(|(key, value)| (text(key), text(value))).collect()
}

/// A copy of /proc/PID/environ, or the output of `env`.
fn environment(root: &Root) -> BTreeMap<String, String> {
    let bytes = match root.bytes("env") {
        Seen::Known(bytes) => bytes,
        _ => return BTreeMap::new(),
    };
    let text = String::from_utf8_lossy(&bytes);
    let end = if text.contains('\0') { '\0' } else { '\n' };
    let pairs = text.split(end).filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Adds what NCCL's file of the machine sets and the environment does not (NCCL, setEnvFile()); the names of it.
fn configured(root: &Root, env: &mut BTreeMap<String, String>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let text = root.bytes(NCCL_CONF).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    for line in text.known().map_or("", String::as_str).lines() {
        let Some((name, value)) = line.split_once('=') else { continue };
        if name.starts_with("NCCL_") && !env.contains_key(name) {
            env.insert(name.to_owned(), value.to_owned());
            names.insert(name.to_owned());
        }
    }
    names
}
