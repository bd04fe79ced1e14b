//! GPUs and NVIDIA's driver.

use std::collections::BTreeSet;

use bellpush::pcie::topology::{Address, Capture, Function, Kind};

use super::{least, nodes};
use crate::doctor::finding::{Finding, Need};
use crate::doctor::machine::{Machine, Mapping};
use crate::doctor::read::{Seen, short};
use crate::doctor::verdict::label;

/// First driver with dma-buf (open kernel modules), and first Linux with ibv_reg_dmabuf_mr.
const DMABUF_DRIVER: u32 = 515;
const DMABUF_LINUX: (u32, u32) = (5, 12);
/// BAR 1 below which a region of usual size does not fit: GPUs without a large BAR have 256 MiB.
const SMALL_BAR: u64 = 1 << 30;

/// Base class of GPUs (PCI Code and ID Assignment specification).
const DISPLAY: u16 = 0x03;

/// How many functions may be GPUs by what is not shown of them: displays without a vendor, or all where none shows its
/// class. Of a copy that lacks the class of some these are as a rule bridges.
fn nameless(capture: &Capture) -> usize {
    let is_display = |f: &&Function| f.class.is_some_and(|class| class >> 8 == DISPLAY);
    let displays = capture.functions().filter(|f| is_display(f) && f.vendor.is_none()).count();
    match capture.functions().all(|f| f.class.is_none()) {
        true => capture.functions().count(),
        false => displays,
    }
}

pub fn present(m: &Machine) -> Vec<Finding> {
    let gpus = m.gpus();
    let driver = &m.nvidia.version;
    if gpus.is_empty() && m.nvidia.gpus.is_empty() {
        if let Seen::Unreadable(why) = &m.pci.capture {
            let found = format!("PCI functions: {}", short(why));
            return vec![Finding::unseen(found, "lspci").hides(&[Need::Gpu])];
        }
        if m.pci.capture == Seen::Absent && !m.pci.is_shown {
            let found = "PCI functions: /sys/bus is not there";
            return vec![Finding::unseen(found, "lspci").hides(&[Need::Gpu])];
        }
        let nameless = m.pci.capture.known().map_or(0, nameless);
        if nameless > 0 {
            let found = format!("PCI functions that do not show what they are: {nameless}");
            return vec![Finding::unseen(found, "lspci").hides(&[Need::Gpu])];
        }
        let others = m.pci.capture.known().map_or(0, |c| c.of_kind(Kind::Gpu).len());
        let found = match others {
            0 => "no GPU".to_owned(),
            n => format!("{n} GPUs, none of NVIDIA"),
        };
        return vec![
            Finding::prevents(&[Need::Gpu], found)
                .expected("an NVIDIA GPU of compute capability 8.0 or later")
                .cost("kernels run on CPU threads (the host executor): right, not fast")
                .fix("run on a machine with such a GPU, or use --gpu host"),
        ];
    }
    let count = gpus.len().max(m.nvidia.gpus.len());
    if m.is_driver_hidden() {
        return vec![unseen_driver(m).hides(&[Need::Gpu])];
    }
    if driver.known().is_none() {
        return vec![no_driver(m, count)];
    }
    let mut all = nodes::missing(m);
    all.extend(nodes::rights(m));
    all.extend(nodes::fabric(m));
    let gpus_of_driver = usable(m);
    all.extend(least::generation(m, &gpus_of_driver));
    let mut of_driver = least::driver(m, &gpus_of_driver);
    if of_driver.is_empty() {
        of_driver.extend(driven(m, count, all.is_empty()));
    }
    all.splice(0..0, of_driver);
    if let Some(why) = &m.nvidia.list_hidden {
        let found = format!("the driver's list of GPUs: {}", short(why));
        all.push(Finding::unseen(found, "nvidia-smi -L").hides(&[Need::Gpu]));
        return all;
    }
    if m.nvidia.gpus.is_empty() {
        let needs: BTreeSet<_> = gpus.iter().map(|gpu| least::other_module(m, *gpu)).collect();
        let needed = needs.first().copied().flatten().filter(|_| needs.len() == 1);
        let found = format!("the driver has none of {count} GPUs");
        let (found, fix) = without(found, needed);
        all.push(
            Finding::prevents(&[Need::Gpu], found)
                .expected("all of them in /proc/driver/nvidia/gpus")
                .cost("CUDA finds no GPU")
                .fix(fix),
        );
        return all;
    }
    all.extend(
        gpus.into_iter().filter_map(|address| Some(lost(m, address)?.of(m.gpu_name(address)))),
    );
    all
}

/// GPUs that the driver has, or may have where its list is hidden, that this container is given and that answer.
fn usable(m: &Machine) -> Vec<Address> {
    let mut all: BTreeSet<Address> = m.nvidia.gpus.iter().map(|(a, _)| *a).collect();
    if m.nvidia.list_hidden.is_some() {
        let is_free = |a: &Address| m.pci.more(*a).driver.is_none_or(|driver| driver == "nvidia");
        all.extend(m.gpus().into_iter().filter(is_free));
    }
    all.into_iter().filter(|a| m.is_given(*a) && !m.is_gone(*a)).collect()
}

/// The GPUs that the driver has and that answer: which, if those are not all, or something else is said of them.
fn driven(m: &Machine, count: usize, is_all: bool) -> Option<Finding> {
    let has_node = |a: Address| !m.has_dev || m.nvidia.makes_nodes || !m.nvidia.lacks_node(a);
    let is_it = |a: Address| !m.is_gone(a) && has_node(a) && !m.nvidia.refuses(a);
    let have: Vec<_> = m.nvidia.gpus.iter().filter(|(a, _)| is_it(*a)).collect();
    let mut models: Vec<&str> = have.iter().map(|(_, model)| model.as_str()).collect();
    models.dedup();
    let version = m.nvidia.driver().unwrap_or("of unknown version");
    let n = have.len();
    let found = format!("{n} of {count} GPUs have the driver {version}: {}", models.join(", "));
    let names: Vec<String> = have.iter().map(|(a, _)| label(m, *a)).collect();
    let finding = Finding::fine(short(&found));
    (n > 0)
        .then(|| if n < count || !is_all { finding.of(short(&names.join(", "))) } else { finding })
}

/// What is said of a GPU of which a container sees the PCI function alone.
pub const NOT_GIVEN: &str = "not given to this container";

/// What to do about a GPU that the driver does not have.
const LOST: &str = "look in dmesg for lines of NVRM, such as Xid 79 (off the bus); reset the GPU \
                    or power the machine off and on";

/// That the driver lacks GPUs, and what to do about it: they may need the other kernel module.
fn without(found: String, needed: Option<&str>) -> (String, String) {
    match needed {
        Some(kind) => (
            format!("{found}: the {kind} kernel module alone drives such a GPU"),
            format!("install the {kind} kernel module of the driver in the place of the other"),
        ),
        None => (found, LOST.to_owned()),
    }
}

/// A GPU that the driver does not have.
fn lost(m: &Machine, address: Address) -> Option<Finding> {
    let cost = "CUDA does not see this GPU";
    if !m.is_given(address) {
        let is_inside = m.container().is_some();
        let found =
            if is_inside { NOT_GIVEN } else { "no right to its node: not given to this process" };
        return Some(Finding::note(found).cost(cost));
    }
    let bound = m.pci.more(address).driver;
    if let Some(other) = bound.filter(|d| d != "nvidia") {
        let found = format!("driver {}", short(&other));
        return Some(
            Finding::warn(found)
                .expected("driver nvidia")
                .cost(cost)
                .lacks_of_gpu(Need::Gpu, address)
                .fix("unbind the GPU from this driver, or leave it to the virtual machine"),
        );
    }
    if m.nvidia.gpus.iter().any(|(a, _)| *a == address) {
        return None;
    }
    let (found, fix) =
        without("the driver does not have it".to_owned(), least::other_module(m, address));
    Some(
        Finding::warn(found)
            .expected("every GPU in /proc/driver/nvidia/gpus")
            .cost(cost)
            .lacks_of_gpu(Need::Gpu, address)
            .fix(fix),
    )
}

/// The driver may be there, and is not seen.
pub fn unseen_driver(m: &Machine) -> Finding {
    let why = short(m.nvidia.version.why_not());
    Finding::unseen(
        format!("NVIDIA's driver: /proc/driver/nvidia/version: {why}"),
        "nvidia-smi, or read it on the host",
    )
}

fn no_driver(m: &Machine, count: usize) -> Finding {
    let bound: BTreeSet<String> =
        m.gpus().into_iter().filter_map(|a| m.pci.more(a).driver).collect();
    let list = short(&bound.iter().cloned().collect::<Vec<_>>().join(", "));
    let with = if bound.is_empty() { String::new() } else { format!(", bound to {list}") };
    let finding = Finding::prevents(
        &[Need::Gpu],
        format!(
            "{count} NVIDIA GPU{} without NVIDIA's driver{with}",
            if count == 1 { "" } else { "s" }
        ),
    )
    .expected("the module nvidia: /proc/driver/nvidia/version")
    .cost("no CUDA: kernels run on CPU threads");
    if bound.iter().any(|driver| driver == "vfio-pci") {
        return finding
            .fix("leave the GPUs to their virtual machine, or unbind vfio-pci and load nvidia");
    }
    let finding =
        finding.fix("install NVIDIA's driver, with the open kernel modules for GPUs since Turing");
    match bound.is_empty() {
        true => finding.script("modprobe nvidia"),
        // The module finds no GPU that another driver has.
        false => finding.script(format!(
            "# blacklist {list} in /etc/modprobe.d, update the initramfs and reboot"
        )),
    }
}

pub fn module(m: &Machine) -> Vec<Finding> {
    let version = m.nvidia.driver().unwrap_or("?");
    match m.nvidia.is_open() {
        None => Vec::new(),
        Some(true) => vec![Finding::fine(format!("open kernel module {}", short(version)))],
        Some(false) => vec![
            Finding::note(format!("closed kernel module {}", short(version)))
                .expected("open kernel module, on GPUs since Turing")
                .cost("no dma-buf: GPU memory is registered by nvidia_peermem alone")
                .fix("install the open kernel modules"),
        ],
    }
}

/// Whether GPU memory is registered by dma-buf.
pub enum DmaBuf {
    /// It is.
    Works,
    /// It is not; why.
    Refused(String),
    /// That is not to be seen; why.
    Unseen(String),
}

/// Whether driver and kernel have dma-buf.
pub fn dmabuf(m: &Machine) -> DmaBuf {
    let mut why = Vec::new();
    match (m.nvidia.is_open(), m.nvidia.major()) {
        (Some(true), Some(n)) if n >= DMABUF_DRIVER => {}
        (Some(true), Some(_)) => why.push(format!("the driver is older than {DMABUF_DRIVER}")),
        (Some(true), None) => return DmaBuf::Unseen("the driver's version is unknown".to_owned()),
        (Some(false), _) => why.push("the kernel module is the closed one".to_owned()),
        (None, _) if m.is_driver_hidden() => {
            return DmaBuf::Unseen("the driver is not shown".to_owned());
        }
        (None, _) => why.push("there is no driver".to_owned()),
    }
    match m.system.kernel() {
        Some(version) if version >= DMABUF_LINUX => {}
        Some((major, minor)) => why.push(format!("Linux {major}.{minor} is older than 5.12")),
        None if why.is_empty() => {
            return DmaBuf::Unseen("the kernel's release is unknown".to_owned());
        }
        None => {}
    }
    if why.is_empty() { DmaBuf::Works } else { DmaBuf::Refused(why.join(", ")) }
}

/// Whether the module is loaded that registers GPU memory by its address.
fn has_peermem(m: &Machine) -> bool {
    m.system.module("nvidia_peermem") || m.system.module("nv_peer_mem")
}

/// Whether that module is known to be missing.
pub fn lacks_peermem(m: &Machine) -> bool {
    m.system.lacks_module("nvidia_peermem") && m.system.lacks_module("nv_peer_mem")
}

pub fn memory(m: &Machine) -> Vec<Finding> {
    if m.is_driver_hidden() && !m.rdma.is_empty() {
        return vec![unseen_driver(m).hides(&[Need::GpuMemory])];
    }
    if m.nvidia.version.known().is_none() || m.rdma.is_empty() {
        return Vec::new();
    }
    let is_consumer =
        |model: &String| model.contains("GeForce") || model.split(' ').any(|w| w == "GB10");
    let given = m.nvidia.gpus.iter().filter(|(a, _)| m.is_given(*a));
    let (consumer, others): (Vec<_>, Vec<_>) = given.partition(|(_, model)| is_consumer(model));
    // The memory of a GB10 is the machine's, in a way that other devices do not see.
    let refused = |finding: Finding| {
        finding
            .expected("a data centre or professional GPU with memory of its own")
            .cost("GPUDirect RDMA is refused: pull and destinations in GPU memory")
            .fix("use paths push and staged, with destinations in host memory")
    };
    let mut all: Vec<Finding> = consumer
        .iter()
        .map(|(a, model)| {
            let finding = refused(Finding::warn(short(model))).of(m.gpu_name(*a));
            finding.lacks_of_gpu(Need::GpuMemory, *a)
        })
        .collect();
    if others.is_empty() && !all.is_empty() {
        return all;
    }
    let names: Vec<String> = others.iter().map(|(a, _)| label(m, *a)).collect();
    let subject = if all.is_empty() { String::new() } else { short(&names.join(", ")) };
    all.extend(registration(m).into_iter().map(|finding| finding.of(subject.clone())));
    all
}

/// How GPU memory is registered, of GPUs that may.
fn registration(m: &Machine) -> Vec<Finding> {
    let unseen = |found: String| {
        let how = "try `bellpush doctor --live --nic`, or load nvidia_peermem";
        vec![Finding::unseen(found, how).hides(&[Need::GpuMemory])]
    };
    match (dmabuf(m), has_peermem(m)) {
        (DmaBuf::Works, true) => vec![Finding::fine("dma-buf and nvidia_peermem")],
        (DmaBuf::Works, false) => vec![Finding::fine("dma-buf")],
        (DmaBuf::Refused(why), true) => {
            vec![Finding::fine(format!("nvidia_peermem (no dma-buf: {why})"))]
        }
        (DmaBuf::Unseen(_), true) => vec![Finding::fine("nvidia_peermem")],
        (DmaBuf::Unseen(why), false) => unseen(format!("whether there is dma-buf: {why}")),
        (DmaBuf::Refused(why), false) if !lacks_peermem(m) => {
            unseen(format!("modules, such as nvidia_peermem, are not shown (no dma-buf: {why})"))
        }
        (DmaBuf::Refused(_), false) if is_backported(m) => {
            unseen("this kernel may have ibv_reg_dmabuf_mr as a backport".to_owned())
        }
        (DmaBuf::Refused(why), false) => vec![
            Finding::prevents(
                &[Need::GpuMemory],
                format!(
                    "neither dma-buf ({why}) nor \
             nvidia_peermem"
                ),
            )
            .expected(
                "open kernel modules of driver 515 or later on Linux 5.12 or later; \
                 or nvidia_peermem",
            )
            .cost("the NIC cannot reach GPU memory: no pull, no destination in GPU memory")
            .fix(
                "load nvidia_peermem (with the peer memory interface of MLNX_OFED or \
                 DOCA-Host)",
            )
            .script("modprobe nvidia_peermem"),
        ],
    }
}

/// Enterprise kernels bring newer RDMA under an old number.
fn is_backported(m: &Machine) -> bool {
    let release = m.system.release.known().map_or("", String::as_str);
    m.nvidia.is_open() == Some(true) && release.contains(".el8")
}

pub fn bar1(m: &Machine) -> Vec<Finding> {
    // Grace has its GPU's memory in the CPU's address space, and leaves BAR 1 alone.
    if m.rdma.is_empty() || m.system.is_arm != Some(false) {
        return Vec::new();
    }
    let mut all = Vec::new();
    let sizes: Vec<_> =
        m.gpus().into_iter().filter_map(|a| Some((a, m.pci.more(a).bar1?))).collect();
    for &(address, bytes) in sizes.iter().filter(|(_, bytes)| *bytes < SMALL_BAR) {
        all.push(
            Finding::warn(format!("BAR 1 of {} MiB", bytes >> 20))
                .of(m.gpu_name(address))
                .expected("as large as the GPU's memory")
                .cost("registrations of GPU memory fail beyond it, less what the driver keeps")
                .fix("turn on \"Above 4G decoding\" and \"Resizable BAR\" in the firmware"),
        );
    }
    if all.is_empty()
        && let Some((_, least)) = sizes.iter().min_by_key(|(_, bytes)| bytes)
    {
        all.push(Finding::fine(format!("BAR 1 of {} GiB or more", least >> 30)));
    }
    all
}

/// Modules that use nvidia, in the order in which they can be removed.
const HOLDERS: [&str; 7] = [
    "nvidia_fs",
    "gdrdrv",
    "nvidia_peermem",
    "nv_peer_mem",
    "nvidia_drm",
    "nvidia_modeset",
    "nvidia_uvm",
];

pub fn peer_mapping(m: &Machine) -> Vec<Finding> {
    if m.is_driver_hidden() && m.mlx5().next().is_some() {
        return vec![unseen_driver(m).hides(&[Need::NicPages])];
    }
    if m.nvidia.version.known().is_none() || m.mlx5().next().is_none() {
        return Vec::new();
    }
    let found = "RegistryDwords has no PeerMappingOverride=1";
    let mut without = Vec::new();
    let (is_part, found) = match m.mapping() {
        None => {
            let why = short(m.nvidia.params.why_not());
            let found = format!("/proc/driver/nvidia/params: {why}");
            let how = "read it on the host";
            return vec![Finding::unseen(found, how).hides(&[Need::NicPages])];
        }
        Some(Mapping::All) => {
            return vec![Finding::fine("RegistryDwords has PeerMappingOverride=1")];
        }
        Some(Mapping::None) => (false, found.to_owned()),
        Some(Mapping::Without(gpus)) => {
            let names: Vec<String> = gpus.iter().map(|a| m.gpu_name(*a)).collect();
            without = gpus;
            (true, short(&format!("{found} of {}", names.join(", "))))
        }
    };
    let dwords = m.nvidia.dwords_with("PeerMappingOverride", 1);
    let holders = HOLDERS.into_iter().filter(|name| m.system.module(name));
    let held: Vec<&str> = holders.chain(["nvidia"]).collect();
    let mended = |finding: Finding| {
        finding
            .expected(format!("options nvidia NVreg_RegistryDwords=\"{dwords}\""))
            .fix(
                "set the option and load the module again (the script writes a file of modprobe.d)",
            )
            .script("# one line alone may set it; others: grep -r NVreg_Registry /etc/modprobe.d")
            .script(format!(
                "printf 'options nvidia NVreg_RegistryDwords=\"%s\"\\n' '{dwords}' \
                 > /etc/modprobe.d/bellpush-peer-mapping.conf"
            ))
            .script(format!(
                "# then, with no process on the GPUs, modprobe -r {} && modprobe nvidia, and \
                 the others again; or reboot (update the initramfs first, if it has the module)",
                held.join(" ")
            ))
    };
    if m.system.is_admin() {
        return vec![mended(
            Finding::warn(format!(
                "{found}; this process has CAP_SYS_ADMIN, so the driver lets it"
            ))
            .cost(
                "no other process maps NIC pages into a GPU: push and the kicks kernel and stream",
            ),
        )];
    }
    if is_part {
        let finding =
            Finding::warn(found).cost("these GPUs have no push and no kick by kernel or stream");
        let lacks = |f: Finding, gpu: Address| f.lacks_of_gpu(Need::NicPages, gpu);
        return vec![mended(without.into_iter().fold(finding, lacks))];
    }
    vec![mended(
        Finding::prevents(&[Need::NicPages], found)
            .cost("the driver refuses NIC pages in a GPU: no push, no kick by kernel or stream"),
    )]
}

pub fn gdrcopy(m: &Machine) -> Vec<Finding> {
    if m.nvidia.version.known().is_none() {
        return Vec::new();
    }
    if m.system.modules.known().is_none() {
        return Vec::new();
    }
    match (m.system.module("gdrdrv"), m.nvidia.gdrdrv) {
        (true, false) if m.has_dev => vec![
            Finding::warn("module gdrdrv without /dev/gdrdrv")
                .expected("/dev/gdrdrv")
                .cost(
                    "UCX and NVSHMEM copy small messages with cudaMemcpy; bellpush does not \
                 use it",
                )
                .fix("start gdrdrv by its script, or give the container the device")
                .script(
                    "test -e /dev/gdrdrv || mknod -m 666 /dev/gdrdrv c \
                     \"$(awk '$2 == \"gdrdrv\" {print $1}' /proc/devices)\" 0",
                ),
        ],
        (true, _) => vec![Finding::fine("gdrdrv")],
        (false, _) => vec![
            Finding::note("no module gdrdrv")
                .cost(
                    "UCX and NVSHMEM copy small messages with cudaMemcpy; bellpush does not \
                 use it",
                )
                .fix("install gdrcopy where those matter"),
        ],
    }
}
