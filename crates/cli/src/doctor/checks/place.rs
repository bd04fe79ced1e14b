//! What lies between GPUs and NICs.

use std::collections::BTreeSet;

use bellpush::pcie::topology::{
    Address, Class, Distance, Kind, Limit, Peer, RootProfile, Tree, write_fans,
};

use crate::doctor::checks::gpu::{DmaBuf, dmabuf};
use crate::doctor::finding::{Finding, Need};
use crate::doctor::machine::rdma::RdmaDevice;
use crate::doctor::machine::{Machine, RANKED};
use crate::doctor::read::short;

const NVIDIA: u16 = 0x10de;

/// GPUs and NICs, if there are both, and the tree above them.
pub fn both(m: &Machine) -> Option<(Tree<'_>, Vec<Address>, Vec<Address>)> {
    let tree = m.pci.tree()?;
    let (mut gpus, mut nics) = (m.gpus(), m.nics(&tree));
    gpus.retain(|gpu| m.is_given(*gpu));
    gpus.truncate(RANKED);
    nics.truncate(RANKED);
    (!gpus.is_empty() && !nics.is_empty() && !m.rdma.is_empty()).then_some((tree, gpus, nics))
}

/// How the type of a domain is seen.
const TYPE: &str = "cat /sys/bus/pci/devices/ADDRESS/iommu_group/type: identity does not translate";

/// What is said of GPUs and NICs with domains of some types.
type Tell = fn(&Machine, &str, &[Vec<Address>; 2]) -> Finding;

pub fn iommu(m: &Machine) -> Vec<Finding> {
    let Some((_, mut gpus, mut nics)) = both(m) else { return Vec::new() };
    // What is kept for a virtual machine has a domain for it, and is asked only if it is all that there is.
    let is_driven = |gpu: &Address| m.nvidia.gpus.iter().any(|(a, _)| a == gpu);
    if gpus.iter().any(is_driven) {
        gpus.retain(is_driven);
    }
    // A card without an active port is not asked for GPU memory, while another is.
    let is_down = |nic: &Address| m.rdma_at(*nic).is_some_and(RdmaDevice::is_down);
    if !nics.iter().all(is_down) {
        nics.retain(|nic| !is_down(nic));
    }
    let all: Vec<Address> = gpus.iter().chain(&nics).copied().collect();
    let domain = |a: &Address| m.pci.more(*a).domain;
    let kinds: BTreeSet<String> = all.iter().filter_map(domain).collect();
    let booted = m.system.booted_with("iommu=pt") || m.system.booted_with("iommu.passthrough=1");
    let mut findings = Vec::new();
    // Linux, Documentation/ABI/testing/sysfs-kernel-iommu_groups, has DMA, DMA-FQ and identity;
    // drivers/iommu/iommu.c prints others of devices that no driver of the kernel may use.
    let (translating, others): (Vec<&String>, Vec<&String>) =
        kinds.iter().filter(|kind| *kind != "identity").partition(|kind| kind.starts_with("DMA"));
    for (tell, kinds) in [(translates as Tell, translating), (blocked, others)] {
        let of = |side: &[Address]| -> Vec<Address> {
            let is_it = |a: &&Address| domain(a).is_some_and(|own| kinds.contains(&&own));
            side.iter().filter(is_it).copied().collect()
        };
        let own = [of(&gpus), of(&nics)];
        let named: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
        findings.extend((!kinds.is_empty()).then(|| tell(m, &named.join(" and "), &own)));
    }
    if !findings.is_empty() {
        let (own, hidden): (Vec<Address>, Vec<Address>) = all
            .iter()
            .filter(|a| domain(a).is_none_or(|kind| kind == "identity"))
            .partition(|a| domain(a).is_some() || booted);
        if !own.is_empty() {
            findings.push(Finding::fine("domains of type identity").of(names(m, &own)));
        }
        if !hidden.is_empty() {
            findings.push(Finding::unseen("type of the domain", TYPE).of(names(m, &hidden)));
        }
        return findings;
    }
    if !kinds.is_empty() {
        let hidden: Vec<Address> =
            all.iter().filter(|a| m.pci.more(**a).domain.is_none()).copied().collect();
        if hidden.is_empty() || booted {
            return vec![Finding::fine("domains of type identity")];
        }
        let found = format!(
            "domains of type identity of {} of {} GPUs and NICs; not shown is that of {}",
            all.len() - hidden.len(),
            all.len(),
            names(m, &hidden)
        );
        return vec![Finding::unseen(short(&found), TYPE)];
    }
    if m.pci.iommus.is_empty() && m.pci.groups.known().is_none_or(|&n| n == 0) {
        // A copy without the folder says nothing.
        return vec![match m.pci.groups.known() {
            // What a virtual machine is given goes through its host's.
            Some(_) if m.system.is_virtual => Finding::unseen(
                "this virtual machine has no IOMMU; its host's translates what is passed through",
                "look at ACS and ATS on the host: bellpush doctor there",
            ),
            Some(_) => Finding::fine("no IOMMU in use"),
            None => {
                Finding::unseen("no /sys/kernel/iommu_groups", "copy it, or read /proc/cmdline")
            }
        }];
    }
    match booted {
        true => vec![Finding::fine("passed through, by the kernel's command line")],
        false => {
            vec![Finding::unseen("an IOMMU is in use; the type of its domains is hidden", TYPE)]
        }
    }
}

/// GPUs and NICs by their names.
fn names(m: &Machine, all: &[Address]) -> String {
    let gpus = m.gpus();
    let name = |a: &Address| if gpus.contains(a) { m.gpu_name(*a) } else { m.nic_name(*a) };
    short(&all.iter().map(name).collect::<Vec<_>>().join(", "))
}

/// GPUs and NICs with domains of which nobody knows whether they reach memory.
fn blocked(m: &Machine, kind: &str, [gpus, nics]: &[Vec<Address>; 2]) -> Finding {
    let found = format!("domains of type {}: whether a device may reach memory", short(kind));
    let how = "dmesg | grep -i iommu; a device of a virtual machine or of vfio has such a domain";
    let finding = Finding::unseen(found, how).of(names(m, &[&gpus[..], nics].concat()));
    let finding = gpus.iter().fold(finding, |f, gpu| f.lacks_of_gpu(Need::Gpu, *gpu));
    nics.iter().fold(finding, |f, nic| f.lacks_nic(&m.nic_name(*nic)))
}

/// The GPUs and NICs for which device addresses are translated.
fn translates(m: &Machine, kind: &str, [gpus, nics]: &[Vec<Address>; 2]) -> Finding {
    let of_them = |finding: Finding| finding.of(names(m, &[&gpus[..], nics].concat()));
    let of_some = |mut finding: Finding| {
        for &gpu in gpus {
            finding = finding.lacks_of_gpu(Need::GpuMemory, gpu);
        }
        for &nic in nics {
            finding = finding.lacks_of_nic(Need::GpuMemory, &m.nic_name(nic));
        }
        of_them(finding)
    };
    let found = format!("domains of type {}: device addresses are translated", short(kind));
    if m.system.is_arm.is_none() {
        let found = format!("{found}; whether that is usual here: the CPU is not shown");
        return of_them(Finding::unseen(found, "cat /proc/cpuinfo"));
    }
    if m.system.is_arm == Some(true) {
        return of_them(Finding::note(found))
            .cost("usual on Arm servers, where the driver maps peers through the SMMU");
    }
    let mend = |finding: Finding| {
        finding
            .expected("identity (iommu=pt), or no IOMMU")
            .fix(
                "boot with iommu=pt; with intel_iommu=on or amd_iommu=on where virtual \
             machines need it",
            )
            .script(
                "# Debian: add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then \
             update-grub and reboot",
            )
            .script("# RHEL: grubby --update-kernel=ALL --args=iommu=pt, and reboot")
    };
    // nvidia_peermem hands out physical addresses; with dma-buf the driver should map them, and was
    // seen not to.
    match dmabuf(m) {
        DmaBuf::Unseen(why) => of_some(Finding::unseen(
            format!("{found}; whether there is dma-buf: {}", short(&why)),
            "uname -r, and cat /proc/driver/nvidia/version",
        )),
        DmaBuf::Refused(_) => mend(of_some(Finding::warn(found)).cost(
            "nvidia_peermem gives the NIC physical addresses, which then mean other \
                 memory or none",
        )),
        DmaBuf::Works => mend(of_them(Finding::warn(found)).cost(
            "peer transfers climb to the root complex; a driver was seen to give out addresses \
             that are not mapped",
        )),
    }
}

/// Bridges of the way between two functions below one switch, without the ones above both.
pub fn way(tree: &Tree<'_>, a: Address, b: Address) -> Vec<Address> {
    let (up_a, up_b) = (tree.chain(a), tree.chain(b));
    let shared = up_a.iter().zip(&up_b).take_while(|(x, y)| x == y).count();
    up_a[shared..].iter().chain(&up_b[shared..]).copied().collect()
}

pub fn platform(m: &Machine) -> Vec<Finding> {
    let Some((tree, gpus, nics)) = both(m) else { return Vec::new() };
    let pairs: Vec<_> = m.pairs().into_iter().filter_map(|p| Some((p.gpu, p.nic?))).collect();
    let near = |&(g, n): &(Address, Address)| {
        matches!(tree.class(g, n), Class::Known(Distance::Pix | Distance::Pxb))
    };
    let through = pairs.iter().filter(|p| !near(p)).count();
    if pairs.is_empty() || through == 0 {
        return Vec::new();
    }
    // A guest's root ports are its hypervisor's, whatever CPU they stand for.
    if m.system.is_virtual {
        let found = format!(
            "{through} of {} GPUs reach their NIC through root ports of a hypervisor: the host's tree \
             and ACS decide what is forwarded",
            pairs.len()
        );
        return vec![Finding::unseen(found, "bellpush doctor on the host")];
    }
    let cpu = short(m.system.cpu.known().map_or("unknown CPU", String::as_str));
    let of = format!(
        "{through} of {} GPUs reach their NIC through a root complex of {cpu}",
        pairs.len()
    );
    // Neoverse-V2 is other vendors' as well; the root ports of Grace are NVIDIA's.
    let is_nvidia = |a: Address| tree.capture().get(a).is_some_and(|f| f.vendor == Some(NVIDIA));
    let is_grace =
        pairs.iter().any(|&(gpu, _)| tree.chain(gpu).first().is_some_and(|a| is_nvidia(*a)));
    let is_it = |p: &&RootProfile| p.name != "Grace" || is_grace;
    let Some(profile) = RootProfile::of(&cpu).filter(is_it) else {
        return vec![Finding::unseen(
            format!("{of}, of which nobody has reported whether it forwards peer reads and writes"),
            "measure: bellpush doctor --live --nic, ib_write_bw and ib_read_bw with --use_cuda",
        )];
    };
    let name = profile.name;
    match (profile.reads, profile.writes) {
        (Some(false), _) => {
            let found = format!("{of} ({name}), which refuses peer reads");
            let each = gpus.iter().flat_map(|g| nics.iter().map(move |n| (*g, *n)));
            let far = each.filter(|pair| !near(pair));
            let finding = far.fold(Finding::warn(found), |f, (gpu, nic)| {
                f.lacks_of_pair(Need::GpuMemory, gpu, &m.nic_name(nic))
            });
            vec![
                finding
                    .expected(
                        "a platform that forwards peer reads, or GPU and NIC behind one switch",
                    )
                    .cost(
                        "pull fails or crawls: the NIC's reads of GPU memory are not answered; \
                 writes pass",
                    )
                    .fix("use paths push or staged")
                    .source(profile.source),
            ]
        }
        (Some(true), Some(true)) => {
            let seen = match profile.limit(Peer::Reads, "") {
                Limit::Unknown => String::new(),
                Limit::AtLeast(rate) => format!(", reads of {rate} GB/s were seen"),
                Limit::Seen([_, most]) => format!(", of reads at most {most} GB/s"),
            };
            vec![
                Finding::fine(format!("{of} ({name}), which forwards reads and writes{seen}"))
                    .source(profile.source),
            ]
        }
        _ => vec![
            Finding::unseen(
                format!("{of} ({name}), which forwards writes; of reads nobody has reported"),
                "measure: ib_read_bw with --use_cuda, or bellpush doctor --live --nic",
            )
            .source(profile.source),
        ],
    }
}

pub fn collapse(m: &Machine) -> Vec<Finding> {
    let Some(tree) = m.pci.tree() else { return Vec::new() };
    let mut all = Vec::new();
    for fan in write_fans(&tree) {
        let chip = short(fan.chip.as_deref().unwrap_or("unknown chip"));
        let (gpus, roots) = (fan.sources.len(), fan.roots.len());
        let found = format!(
            "{gpus} GPUs of one {chip} switch can write to {roots} other root ports at once"
        );
        let finding = match fan.known.is_some() {
            true => Finding::warn(found)
                .expected("writes to one root port at a time")
                .cost(
                    "on EPYC 9005 with PEX890xx such writes lost 75 to 95 % of their rate; of reads \
                 nobody has measured it",
                )
                .fix("order the exchange in rounds, one root port at a time: bellpush sim --flows"),
            false => Finding::note(found).cost("whether their rate collapses here is unknown"),
        };
        all.push(finding.of(fan.switch.to_string()));
    }
    // One line says it of all switches where nothing was reported.
    if all.len() > 1 && all.iter().all(|f| f.severity == crate::doctor::finding::Severity::Note) {
        all.truncate(1);
    }
    all
}

/// Order of nearness.
pub fn far(class: Class) -> u8 {
    match class {
        Class::Known(Distance::Pix) => 1,
        Class::Known(Distance::Pxb) => 2,
        Class::Known(Distance::Phb) => 3,
        Class::Known(Distance::Node) => 4,
        Class::NodeOrSys => 5,
        Class::Known(Distance::Sys) => 6,
        Class::Unknown => 7,
    }
}

pub fn numa(m: &Machine) -> Vec<Finding> {
    let Some((tree, gpus, nics)) = both(m) else { return Vec::new() };
    let nodes = m.system.distances.len();
    if nodes < 2 {
        return Vec::new();
    }
    let of = |a: &Address| m.pci.more(*a).numa;
    let hidden = gpus.iter().chain(&nics).filter(|a| of(a).known().is_none()).count();
    let lost: Vec<String> = gpus
        .iter()
        .chain(&nics)
        .filter(|a| tree.numa(**a).is_none() && of(a).known().is_some())
        .map(|a| match tree.capture().get(*a).and_then(|f| f.kind()) {
            Some(Kind::Gpu) => m.gpu_name(*a),
            _ => m.nic_name(*a),
        })
        .collect();
    if lost.is_empty() && hidden > 0 {
        let found = format!("NUMA nodes of {hidden} GPUs and NICs");
        return vec![Finding::unseen(found, "cat /sys/bus/pci/devices/ADDRESS/numa_node")];
    }
    if lost.is_empty() {
        return vec![Finding::fine(format!("{nodes} nodes; every GPU and NIC has one"))];
    }
    let found = format!("{nodes} nodes, and none is told of {}", lost.join(", "));
    vec![
        Finding::warn(short(&found))
            .expected("numa_node of 0 or more")
            .cost("threads, queues and memory are placed by chance, on the far socket as well")
            .fix("update the firmware (ACPI _PXM); in a virtual machine, give it the host's nodes")
            .script("# for now: echo NODE > /sys/bus/pci/devices/ADDRESS/numa_node"),
    ]
}
