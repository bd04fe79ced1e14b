//! Kernel, CPU, limits, control groups, mounts, modules, libraries.

use std::collections::{BTreeMap, BTreeSet};

use crate::doctor::read::{Root, Seen};

/// CAP_IPC_LOCK and CAP_SYS_ADMIN (include/uapi/linux/capability.h).
const IPC_LOCK: u32 = 14;
const SYS_ADMIN: u32 = 21;

/// /proc/self/uid_map of the machine's own user namespace.
pub const IDENTITY: [&str; 3] = ["0", "0", "4294967295"];

/// Most groups above each other that are read.
const MAX_GROUPS: usize = 64;

/// A limit: a number, or `None` for none.
pub type Limit = Option<u64>;

/// A control group of version 2: that of this process, or one above it.
#[derive(Debug)]
pub struct Group {
    /// Its path, without a slash at its ends.
    pub path: String,
    /// memory.max and memory.current.
    pub memory: (Seen<Limit>, Seen<u64>),
    /// `inactive_file` of memory.stat: page cache that the kernel takes back before it kills.
    pub reclaimable: Option<u64>,
    /// pids.max and pids.current.
    pub pids: (Seen<Limit>, Seen<u64>),
    /// Lines of rdma.max, by device.
    pub rdma: BTreeMap<String, String>,
}

/// Control groups of this process. A limit holds for all groups below it.
#[derive(Debug)]
pub struct Cgroup {
    /// Its path; unreadable for version 1.
    pub path: Seen<String>,
    /// Its own group, then the ones above it up to the mount's root.
    pub groups: Vec<Group>,
}

/// The system.
#[derive(Debug)]
pub struct System {
    /// Release of Linux.
    pub release: Seen<String>,
    /// Kernel's command line.
    pub cmdline: Seen<String>,
    /// Name of the CPU.
    pub cpu: Seen<String>,
    /// Whether the CPU says that there is a hypervisor.
    pub is_virtual: bool,
    /// Whether it is an Arm; `None` where the CPU is not shown.
    pub is_arm: Option<bool>,
    /// Limit of locked memory, bytes.
    pub locked: Seen<Limit>,
    /// Effective capabilities.
    pub capabilities: Seen<u64>,
    /// Whether its user namespace is not the machine's: capabilities are then of no use to drivers
    /// (capable() of Linux asks for those of the machine's).
    pub is_remapped: bool,
    /// Huge pages of the default size: total and free.
    pub hugepages: Seen<(u64, u64)>,
    /// Choice of /sys/kernel/mm/transparent_hugepage/enabled.
    pub transparent: Seen<String>,
    /// Size of /dev/shm, `None` for half of the memory.
    pub shm: Seen<Limit>,
    /// Control group.
    pub cgroup: Cgroup,
    /// What the container was made with, if it is one.
    pub container: Option<String>,
    /// Modules, built-in ones included as far as sysfs names them.
    pub modules: Seen<BTreeSet<String>>,
    /// Distances of each NUMA node, in the order of the nodes (ACPI SLIT: 10 is local).
    pub distances: BTreeMap<u32, Vec<u32>>,
    /// Full names of libibverbs, libmlx5 and libcuda, where their folder was found.
    pub libraries: Seen<BTreeMap<&'static str, String>>,
    /// Every libcuda whose version is shown: those that the loader takes first, in their order, then those of the usual
    /// folders.
    pub cudas: Vec<Cuda>,
}

/// CUDA's library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cuda {
    /// Its folder.
    pub folder: String,
    /// Its version, such as 550.54.15.
    pub version: String,
    /// Whether `LD_LIBRARY_PATH` names the folder.
    pub is_first: bool,
}

impl System {
    /// Reads it. `first` is `LD_LIBRARY_PATH`.
    pub fn read(root: &Root, first: &str) -> Self {
        let info = root.text("proc/cpuinfo");
        let cpuinfo = info.known().map_or("", String::as_str);
        let status = root.text("proc/self/status");
        let capabilities = |text: &String| {
            let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        };
        let (meminfo, mounts) = (root.text("proc/meminfo"), mounts(root));
        Self {
            release: root.text("proc/sys/kernel/osrelease"),
            cmdline: root.text("proc/cmdline"),
            cpu: info.clone().parse("cpuinfo", |text| crate::values::cpu_name(text)),
            is_virtual: crate::values::is_guest(cpuinfo),
            is_arm: info.known().map(|text| text.contains("CPU implementer")),
            locked: root.text("proc/self/limits").parse("limits", |text| locked(text)),
            capabilities: status.parse("status", capabilities),
            is_remapped: root
                .text("proc/self/uid_map")
                .known()
                .is_some_and(|map| map.split_whitespace().ne(IDENTITY)),
            hugepages: meminfo.parse("meminfo", |t| {
                Some((field(t, "HugePages_Total")?, field(t, "HugePages_Free")?))
            }),
            transparent: root
                .text("sys/kernel/mm/transparent_hugepage/enabled")
                .parse("enabled", |t| Some(t.split_once('[')?.1.split_once(']')?.0.to_owned())),
            shm: shm(&mounts),
            cgroup: cgroup(root),
            container: container(root, &mounts),
            modules: modules(root),
            distances: distances(root),
            libraries: libraries(root),
            cudas: cudas(root, first),
        }
    }

    /// Major and minor number of the kernel.
    pub fn kernel(&self) -> Option<(u32, u32)> {
        let mut parts = self.release.known()?.split(['.', '-']);
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }

    /// Whether locked memory has no limit for this process.
    pub fn may_lock(&self) -> bool {
        self.has_capability(IPC_LOCK)
    }

    /// Whether the driver takes this process for an administrator.
    pub fn is_admin(&self) -> bool {
        self.has_capability(SYS_ADMIN)
    }

    fn has_capability(&self, bit: u32) -> bool {
        !self.is_remapped && self.capabilities.known().is_some_and(|set| set >> bit & 1 == 1)
    }

    /// Whether a word is on the kernel's command line.
    pub fn booted_with(&self, word: &str) -> bool {
        self.cmdline.known().is_some_and(|line| line.split_whitespace().any(|w| w == word))
    }

    /// Whether `pci=` has a word on the kernel's command line.
    pub fn booted_for_pci(&self, word: &str) -> bool {
        let line = self.cmdline.known().map_or("", String::as_str);
        let lists = line.split_whitespace().filter_map(|w| w.strip_prefix("pci="));
        lists.flat_map(|list| list.split(',')).any(|own| own == word)
    }

    /// Whether a module is loaded.
    pub fn module(&self, name: &str) -> bool {
        self.modules.known().is_some_and(|all| all.contains(name))
    }

    /// Whether a module is not loaded: known to be missing, where `module` may not have seen it.
    pub fn lacks_module(&self, name: &str) -> bool {
        self.modules.known().is_some_and(|all| !all.contains(name))
    }
}

/// A line `name: number kB` of meminfo.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn locked(text: &str) -> Option<Limit> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    limit(line.split_whitespace().next()?)
}

fn limit(word: &str) -> Option<Limit> {
    match word {
        "unlimited" | "max" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

/// A line of /proc/self/mounts.
struct Mount<'a> {
    at: &'a str,
    kind: &'a str,
    options: &'a str,
}

/// Mounts, in their order; unreadable where the end is not read, or there is none.
fn mounts(root: &Root) -> Seen<String> {
    let own = root.whole("proc/self/mounts");
    let text = if own == Seen::Absent { root.whole("proc/mounts") } else { own };
    text.parse("mounts", |text| (!text.is_empty()).then(|| text.clone()))
}

fn each_mount(text: &str) -> impl DoubleEndedIterator<Item = Mount<'_>> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        Some(Mount { at: words.next()?, kind: words.next()?, options: words.next()? })
    })
}

/// Size of /dev/shm by its mount option; the last mount is on top. Without a mount of its own it is
/// a folder of /dev, as in some containers.
fn shm(mounts: &Seen<String>) -> Seen<Limit> {
    let size = |text: &String| {
        let last = |at: &str| each_mount(text).rfind(|mount| mount.at == at);
        let mount = last("/dev/shm").or_else(|| last("/dev"))?;
        let option = mount.options.split(',').find_map(|o| o.strip_prefix("size="));
        let Some(text) = option else { return Some(None) };
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "k" => 1 << 10,
            "m" => 1 << 20,
            "g" => 1 << 30,
            _ => 1,
        };
        digits.parse::<u64>().ok()?.checked_mul(unit).map(Some)
    };
    mounts.clone().parse("mounts of /dev/shm and /dev", size)
}

fn cgroup(root: &Root) -> Cgroup {
    let unified = |text: &String| {
        let line = text.lines().find_map(|line| line.strip_prefix("0::"))?;
        Some(line.trim().trim_matches('/').to_owned())
    };
    let path = root.text("proc/self/cgroup").parse("version 1 of control groups", unified);
    let own = match path.known().map(String::as_str) {
        // Names that lead out of their folder are nobody's groups.
        Some(path) if !path.contains("..") => path,
        _ => "",
    };
    let parts: Vec<&str> = own.split('/').filter(|part| !part.is_empty()).collect();
    let paths = (0..=parts.len()).rev().map(|n| parts[..n].join("/"));
    let groups = paths.take(MAX_GROUPS).map(|path| group(root, path)).collect();
    Cgroup { groups, path }
}

fn group(root: &Root, path: String) -> Group {
    let dir = match path.as_str() {
        "" => "sys/fs/cgroup".to_owned(),
        path => format!("sys/fs/cgroup/{path}"),
    };
    let max = |name: &str| root.text(&format!("{dir}/{name}")).parse(name, |text| limit(text));
    let stat = root.text(&format!("{dir}/memory.stat"));
    let inactive = |text: &String| {
        let line = text.lines().find_map(|line| line.strip_prefix("inactive_file "))?;
        line.trim().parse().ok()
    };
    let rdma = root.text(&format!("{dir}/rdma.max"));
    let lines = rdma.known().map_or("", String::as_str).lines();
    Group {
        memory: (max("memory.max"), root.number(&format!("{dir}/memory.current"))),
        reclaimable: stat.known().and_then(inactive),
        pids: (max("pids.max"), root.number(&format!("{dir}/pids.current"))),
        rdma: lines
            .filter_map(|line| line.split_once(' '))
            .map(|(device, limits)| (device.to_owned(), limits.to_owned()))
            .collect(),
        path,
    }
}

/// What made the container: by its own files, its mounts, or the names of control groups, which a
/// namespace of them hides.
fn container(root: &Root, mounts: &Seen<String>) -> Option<String> {
    let files = [
        (".dockerenv", "Docker"),
        ("run/.containerenv", "Podman"),
        ("run/secrets/kubernetes.io", "Kubernetes"),
        ("var/run/secrets/kubernetes.io", "Kubernetes"),
        (".singularity.d", "Apptainer"),
    ];
    if let Some((_, name)) = files.into_iter().find(|(file, _)| root.has(file)) {
        return Some(name.into());
    }
    let by_systemd = root.text("run/systemd/container");
    if let Some(name) = by_systemd.known().filter(|name| !name.is_empty()) {
        return Some(name.clone());
    }
    let kinds =
        [("kubepods", "Kubernetes"), ("docker", "Docker"), ("libpod", "Podman"), ("lxc", "LXC")];
    for file in ["proc/1/cgroup", "proc/self/cgroup"] {
        let text = root.text(file);
        let groups = text.known().map_or("", String::as_str);
        if let Some((_, name)) = kinds.iter().find(|(mark, _)| groups.contains(mark)) {
            return Some((*name).to_owned());
        }
    }
    let all: Vec<Mount<'_>> = each_mount(mounts.known().map_or("", String::as_str)).collect();
    let is_mounted = |at: &str| all.iter().any(|mount| mount.at == at);
    if is_mounted("/dev/termination-log") {
        return Some("Kubernetes".into());
    }
    // A root of layers is a live system's as well; one whose names of hosts are mounted is not.
    let is_layered = all.iter().any(|mount| mount.at == "/" && mount.kind == "overlay");
    (is_layered && is_mounted("/etc/hosts")).then(|| "a container of layers".to_owned())
}

/// Of the mounts the lines that are read, without what is mounted and what is nobody's business.
pub fn kept_mounts(text: &str) -> String {
    let line = |mount: Mount<'_>| match (mount.at, mount.kind) {
        ("/dev/shm" | "/dev", _) => {
            Some(format!("- {} {} {} 0 0\n", mount.at, mount.kind, mount.options))
        }
        ("/", "overlay") => Some("- / overlay - 0 0\n".to_owned()),
        ("/dev/termination-log" | "/etc/hosts", _) => Some(format!("- {} - - 0 0\n", mount.at)),
        _ => None,
    };
    each_mount(text).filter_map(line).collect()
}

fn modules(root: &Root) -> Seen<BTreeSet<String>> {
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let loaded = root
        .whole("proc/modules")
        .map(|text| text.lines().filter_map(first).collect::<BTreeSet<String>>());
    match (loaded, root.names("sys/module")) {
        (Seen::Known(mut all), names) => {
            all.extend(names.known().cloned().unwrap_or_default());
            Seen::Known(all)
        }
        (_, Seen::Known(names)) if !names.is_empty() => Seen::Known(names.into_iter().collect()),
        (loaded, _) => loaded,
    }
}

fn distances(root: &Root) -> BTreeMap<u32, Vec<u32>> {
    let mut all = BTreeMap::new();
    for name in root.list("sys/devices/system/node") {
        let Some(node) = name.strip_prefix("node").and_then(|n| n.parse().ok()) else { continue };
        let text = root.text(&format!("sys/devices/system/node/{name}/distance"));
        let row = text.known().map_or("", String::as_str).split_whitespace();
        all.insert(node, row.filter_map(|word| word.parse().ok()).collect());
    }
    all
}

/// Folders of libraries, the first with libibverbs or libcuda counts.
const FOLDERS: [&str; 13] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib/x86_64-linux-gnu",
    "lib64",
    "usr/lib",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia",
    "usr/lib/aarch64-linux-gnu/tegra",
    "usr/lib/wsl/lib",
    // Where clouds mount the driver's: NVIDIA's own images have it in LD_LIBRARY_PATH.
    "usr/local/nvidia/lib64",
    "run/opengl-driver/lib",
    "usr/local/cuda/compat",
];

fn libraries(root: &Root) -> Seen<BTreeMap<&'static str, String>> {
    let mut found = BTreeMap::new();
    let mut seen = false;
    for folder in FOLDERS {
        for name in ["libibverbs.so.1", "libmlx5.so.1", "libcuda.so.1"] {
            let path = format!("{folder}/{name}");
            if found.contains_key(name) || !root.has(&path) {
                continue;
            }
            found.insert(name, root.link_name(&path).unwrap_or_else(|| name.to_owned()));
        }
        seen |= root.has(folder);
    }
    if seen { Seen::Known(found) } else { Seen::Absent }
}

fn cudas(root: &Root, first: &str) -> Vec<Cuda> {
    let mut all: Vec<Cuda> = Vec::new();
    let named = first.split(':').filter_map(|folder| folder.strip_prefix('/'));
    let named = named.map(|folder| (folder.trim_end_matches('/'), true));
    for (folder, is_first) in named.chain(FOLDERS.map(|folder| (folder, false))) {
        let (path, folder) = (format!("{folder}/libcuda.so.1"), format!("/{folder}"));
        if all.iter().any(|own| own.folder == folder) || !root.has(&path) {
            continue;
        }
        let version = root.link_name(&path);
        let version = version.as_deref().and_then(|name| name.strip_prefix("libcuda.so."));
        if let Some(version) = version.filter(|version| major(version).is_some_and(|n| n > 1)) {
            all.push(Cuda { folder, version: version.to_owned(), is_first });
        }
    }
    all
}

/// The first number of a version.
pub fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}
