//! How large a packet is that a stated piece of hardware sends: two rules, with their sources and what
//! they were said to do before the model had them, in docs/results/pcie-packets.md. Drawings, loads,
//! the simulation and the rows that it is compared with have them from here.
//!
//! 1. A GPU of NVIDIA of a compute capability below 9 sends packets of at most 128 B, and what it reads
//!    comes in such, whatever its link's MPS. NVIDIA's DCGM counts 12.3 % of protocol beside the payload
//!    of its copies, and 8 % beside that of later ones (`RunSubtestPcieBandwidth`); of powers of two only
//!    128 and 256 B have that.
//! 2. Intel's root complexes forward peers' writes and completions in packets of 64 B (NVIDIA/nccl,
//!    `INTEL_P2P_OVERHEAD`).
//!
//! A number that is told from what hardware is called is assumed: nobody read it of this machine. A
//! file's own goes before.

use super::model::{Kind, NodeId, Topology};
use crate::Origin;
use crate::text::one_line;

/// Most bytes of a packet of NVIDIA's GPUs before Hopper.
pub(crate) const GPU_BYTES: u32 = 128;
/// Bytes of a packet that an Intel root complex forwards to a peer.
const PEER_BYTES: u32 = 64;

/// The name of a GPU of which a capture shows the numbers of PCI alone.
pub(super) const BEFORE_HOPPER: &str = "NVIDIA GPU before Hopper";
/// The name of a root complex of which a capture shows the vendor alone.
pub(super) const INTEL: &str = "Intel";

/// Starts of the chips' names in pci.ids, Fermi to Ada.
const CHIPS: [&str; 9] = ["GF1", "GK1", "GK2", "GM1", "GM2", "GP1", "GV1", "TU1", "GA1"];
/// The chips of Ada, whose start is a word of others too.
const ADA: [&str; 5] = ["AD102", "AD103", "AD104", "AD106", "AD107"];
/// Words of boards' names.
const BOARDS: [&str; 45] = [
    "GTX", "TITAN", "QUADRO", "TESLA", "ADA", "K20", "K40", "K80", "M4", "M6", "M10", "M40", "M60",
    "P4", "P6", "P40", "P100", "V100", "V100S", "T4", "T4G", "T10", "T40", "A2", "A10", "A10G",
    "A16", "A30", "A30X", "A40", "A100", "A100X", "A800", "A2000", "A4000", "A4500", "A5000",
    "A5500", "A6000", "L2", "L4", "L20", "L40", "L40G", "L40S",
];
/// Vendors of other GPUs, some of whose names have such words.
const OTHERS: [&str; 4] = ["AMD", "RADEON", "INSTINCT", "INTEL"];

/// Size to which the root complexes of this CPU cut what peers send, where one is known.
pub(crate) fn peer_bytes(cpu: &str) -> Option<u32> {
    let is_intel = [INTEL, "Xeon", "E5-"].iter().any(|part| cpu.contains(part));
    is_intel.then_some(PEER_BYTES)
}

/// Most bytes of a packet of the GPU of this name, of a driver or of pci.ids, where that is less than
/// MPS.
pub(crate) fn gpu_bytes(name: &str) -> Option<u32> {
    let name = name.to_ascii_uppercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    if OTHERS.iter().any(|other| words.contains(other)) {
        return None;
    }
    let is_chip = |word: &&str| {
        CHIPS.iter().any(|chip| word.len() >= 5 && word.starts_with(chip))
            || ADA.iter().any(|chip| word.starts_with(chip))
    };
    // GeForce RTX 20 to 40.
    let is_rtx = |pair: &[&str]| {
        let number: u32 = pair[1].parse().unwrap_or(0);
        pair[0] == "RTX" && (2000..5000).contains(&number)
    };
    let is_before = name.contains(&BEFORE_HOPPER.to_ascii_uppercase())
        || words.iter().any(|word| is_chip(word) || BOARDS.contains(word))
        || words.windows(2).any(is_rtx);
    is_before.then_some(GPU_BYTES)
}

/// Whether this PCI device of NVIDIA, a GPU, is one before Hopper: pci.ids has Hopper from 0x2300 to
/// 0x23ff, Ada up to 0x28ff and what came later behind that.
pub(super) fn is_before_hopper(device: u16) -> bool {
    device < 0x2900 && !(0x2300..0x2400).contains(&device)
}

impl Topology {
    /// Most bytes of a packet that a GPU sends, and of one in which what it reads comes, and where that
    /// comes from; `None`: MPS.
    pub fn packets_of(&self, gpu: NodeId) -> Option<(u32, Origin)> {
        let node = self.node(gpu);
        let by_name = || Some((gpu_bytes(&node.model)?, Origin::Assumed));
        let own = node.packet_bytes.map(|bytes| (bytes, Origin::Read));
        own.or_else(by_name).filter(|_| node.kind == Kind::Gpu)
    }

    /// Size to which a root complex cuts what peers send, and where that comes from; `None`: it does
    /// not, or nobody knows.
    pub fn cut_of(&self, root: NodeId) -> Option<(u32, Origin)> {
        let node = self.node(root);
        let by_name = || peer_bytes(self.cpu_of(root)).or_else(|| peer_bytes(&node.model));
        let own = node.p2p.tlp_bytes.map(|bytes| (bytes, Origin::Read));
        own.or_else(|| Some((by_name()?, Origin::Assumed)))
    }

    /// A copy whose GPUs send packets of so many bytes, as far as MPS allows.
    pub(crate) fn map_packets(&self, bytes: u32) -> Self {
        let mut copy = self.clone();
        let gpus = copy.nodes.iter_mut().filter(|node| node.kind == Kind::Gpu);
        gpus.for_each(|node| node.packet_bytes = Some(bytes));
        copy
    }

    /// Most bytes of a packet of data from one end to another, which the first writes or, where that is
    /// memory, the other reads; `u32::MAX`: MPS.
    pub(super) fn packet_bytes(&self, from: NodeId, to: NodeId) -> u32 {
        let is_memory = matches!(self.node(from).kind, Kind::Socket | Kind::NumaNode);
        let mover = if is_memory { to } else { from };
        self.packets_of(mover).map_or(u32::MAX, |packets| packets.0)
    }

    /// The name of a part of a topology by which the rules know it: all of a name that they ask for.
    pub(super) fn name_of_part(&self, id: NodeId) -> String {
        let node = self.node(id);
        match node.kind {
            Kind::Socket => node.model.clone(),
            Kind::Gpu if gpu_bytes(&node.model).is_some() => BEFORE_HOPPER.to_owned(),
            Kind::RootComplex if peer_bytes(&node.model).is_some() => INTEL.to_owned(),
            _ => String::new(),
        }
    }

    /// What the rules say of a way's ends and root complexes, one sentence each.
    pub(super) fn packet_notes(&self, nodes: &[NodeId], is_peer: bool) -> Vec<String> {
        let id = |n: NodeId| one_line(&self.node(n).id);
        let assumed = |found: Option<(u32, Origin)>| found.filter(|f| f.1 == Origin::Assumed);
        let ends = [nodes.first(), nodes.last()].into_iter().flatten().copied();
        let gpus = ends.filter_map(|n| Some((n, assumed(self.packets_of(n))?.0)));
        let mut notes: Vec<String> = gpus
            .map(|(n, bytes)| {
                let source = "NVIDIA/DCGM, RunSubtestPcieBandwidth: GPUs before Hopper";
                format!("{} moves {bytes} B a packet (assumed; {source})", id(n))
            })
            .collect();
        let is_root = |n: &&NodeId| is_peer && self.node(**n).kind == Kind::RootComplex;
        let cuts = nodes.iter().filter(is_root);
        let cuts: Vec<(String, u32)> =
            cuts.filter_map(|&n| Some((id(n), assumed(self.cut_of(n))?.0))).collect();
        if let Some(&(_, bytes)) = cuts.first() {
            let roots: Vec<String> = cuts.into_iter().map(|cut| cut.0).collect();
            let source = "NVIDIA/nccl, INTEL_P2P_OVERHEAD: Intel's root complexes";
            let roots = roots.join(", ");
            notes.push(format!("{roots} cut peers' packets to {bytes} B (assumed; {source})"));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_complexes_of_intel_cut_and_no_others() {
        for cpu in ["Xeon W-2123", "E5-2650 v4", "Intel(R) Core(TM) Ultra 9 285K", INTEL] {
            assert_eq!(peer_bytes(cpu), Some(64), "{cpu}");
        }
        for cpu in ["EPYC 7542", "Threadripper PRO 7955WX", "Ryzen 9 3900X", "NVIDIA Grace CPU", ""]
        {
            assert_eq!(peer_bytes(cpu), None, "{cpu}");
        }
    }

    /// Names as nvidia-smi, lspci and files have them.
    #[test]
    fn gpus_before_hopper_are_told_by_their_names() {
        for name in [
            "NVIDIA A100-SXM4-40GB",
            "NVIDIA Corporation GA100 [A100 SXM4 40GB]",
            "A100 SXM4 40GB, now Gen1 x16",
            "Tesla P100 PCIe 12GB",
            "GP100GL",
            "Tesla T4",
            "NVIDIA L4",
            "NVIDIA L40S",
            "RTX 6000 Ada Generation",
            "GeForce RTX 3090",
            "NVIDIA GeForce RTX 4090",
            "NVIDIA GeForce GTX 1080 Ti",
            "NVIDIA RTX A6000",
            "AD102GL",
            BEFORE_HOPPER,
        ] {
            assert_eq!(gpu_bytes(name), Some(128), "{name}");
        }
        for name in [
            "",
            "a GPU",
            "H100",
            "NVIDIA H100 80GB HBM3",
            "NVIDIA H200",
            "GH100 [H100 SXM5 80GB]",
            "GH200 480GB",
            "NVIDIA B200",
            "NVIDIA Corporation Device 2bb5",
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "NVIDIA GeForce RTX 5090",
            "AMD Instinct MI100",
            "Radeon Pro V100",
            "Intel Data Center GPU Max 1550",
            "ADM-PCIE-9V3",
        ] {
            assert_eq!(gpu_bytes(name), None, "{name}");
        }
    }

    /// As pci.ids has them, and Blackwell's as captures do.
    #[test]
    fn gpus_before_hopper_are_told_by_their_numbers() {
        for (device, what) in [
            (0x102d, "K80"),
            (0x15f8, "P100"),
            (0x1eb8, "T4"),
            (0x20b0, "A100"),
            (0x2235, "A40"),
            (0x2684, "RTX 4090"),
            (0x28e1, "the last of Ada"),
        ] {
            assert!(is_before_hopper(device), "{what}");
        }
        for (device, what) in [
            (0x2302, "the first of Hopper"),
            (0x2330, "H100"),
            (0x2335, "H200"),
            (0x2342, "GH200"),
            (0x2901, "B200"),
            (0x2b85, "RTX 5090"),
            (0x2bb5, "RTX PRO 6000"),
        ] {
            assert!(!is_before_hopper(device), "{what}");
        }
    }
}
