//! NVIDIA's driver, as /proc/driver/nvidia shows it.

use std::collections::{BTreeMap, BTreeSet};

use bellpush::pcie::topology::Address;
use nix::unistd::{AccessFlags, access};

use crate::doctor::read::{Root, Seen};

/// NVIDIA's driver.
#[derive(Debug)]
pub struct Nvidia {
    /// Line `NVRM version` of /proc/driver/nvidia/version.
    pub version: Seen<String>,
    /// /proc/driver/nvidia/params.
    pub params: Seen<BTreeMap<String, String>>,
    /// Whether /proc is there: a copy may lack it.
    pub is_shown: bool,
    /// Why the driver's list of GPUs is not known.
    pub list_hidden: Option<String>,
    /// GPUs that the driver has: address and model.
    pub gpus: Vec<(Address, String)>,
    /// Numbers of their nodes /dev/nvidia0 and so on, of those that tell it.
    pub minors: BTreeMap<Address, u32>,
    /// Names in /dev that begin with `nvidia`.
    pub nodes: Vec<String>,
    /// Those of them that this process may not open for reading and writing, by their mode or by a control group of
    /// devices (inode_permission() of Linux asks both).
    pub refused: BTreeSet<String>,
    /// Whether nvidia-modprobe is there, which is setuid root and makes the nodes at the first use.
    pub makes_nodes: bool,
    /// Whether /dev/gdrdrv is there.
    pub gdrdrv: bool,
}

impl Nvidia {
    /// Reads it, and on the running machine asks for the rights: a recording has the answer.
    pub fn read(root: &Root, live: bool) -> Self {
        let version = root.text("proc/driver/nvidia/version");
        let nodes: Vec<String> =
            root.list("dev").into_iter().filter(|n| n.starts_with("nvidia")).collect();
        let refused = root.answer("access/nvidia", live, || {
            let may = |name: &String| {
                let rights = AccessFlags::R_OK | AccessFlags::W_OK;
                access(&root.path(&format!("dev/{name}")), rights).is_ok()
            };
            let all: Vec<String> = nodes.iter().filter(|name| !may(name)).cloned().collect();
            all.join("\n")
        });
        let first = |text: &String| {
            let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
            Some(line.trim_start_matches("NVRM version:").trim().to_owned())
        };
        Self {
            version: version.parse("/proc/driver/nvidia/version", first),
            params: root.text("proc/driver/nvidia/params").map(|text| fields(&text)),
            is_shown: root.has("proc"),
            list_hidden: match root.names("proc/driver/nvidia/gpus") {
                Seen::Known(_) => None,
                other => Some(other.why_not().to_owned()),
            },
            gpus: gpus(root, "Model")
                .into_iter()
                .map(|(a, model)| (a, model.unwrap_or_default()))
                .collect(),
            minors: gpus(root, "Device Minor")
                .into_iter()
                .filter_map(|(a, minor)| Some((a, minor?.parse().ok()?)))
                .collect(),
            refused: refused
                .known()
                .map_or("", |it| it.as_str())
                .lines()
                .map(str::to_owned)
                .collect(),
            nodes,
            makes_nodes: root.has("usr/bin/nvidia-modprobe"),
            gdrdrv: root.has("dev/gdrdrv"),
        }
    }

    /// Whether there is a node of any GPU, such as /dev/nvidia0.
    pub fn has_a_node(&self) -> bool {
        self.numbered_nodes() > 0
    }

    /// How many nodes of GPUs there are.
    pub fn numbered_nodes(&self) -> usize {
        let is_it = |n: &&String| n.strip_prefix("nvidia").is_some_and(is_number);
        self.nodes.iter().filter(is_it).count()
    }

    /// Whether a GPU is known to have no node.
    pub fn lacks_node(&self, gpu: Address) -> bool {
        let node = self.minors.get(&gpu).map(|minor| format!("nvidia{minor}"));
        node.is_some_and(|node| !self.nodes.contains(&node))
    }

    /// Whether this process is known to have no right to a GPU's node.
    pub fn refuses(&self, gpu: Address) -> bool {
        let node = self.minors.get(&gpu).map(|minor| format!("nvidia{minor}"));
        node.is_some_and(|node| self.refused.contains(&node))
    }

    /// Whether this process may open the node of any of the driver's GPUs, as far as that is known.
    pub fn opens_any(&self) -> bool {
        self.gpus.iter().any(|(gpu, _)| !self.lacks_node(*gpu) && !self.refuses(*gpu))
    }

    /// Whether the kernel module is the open one.
    pub fn is_open(&self) -> Option<bool> {
        self.version.known().map(|line| line.contains("Open Kernel Module"))
    }

    /// Version of the driver, such as 550.54.15.
    pub fn driver(&self) -> Option<&str> {
        let word = |w: &&str| {
            let mut parts = w.split('.');
            let number = |p: Option<&str>| p.is_some_and(|p| p.parse::<u32>().is_ok());
            number(parts.next()) && number(parts.next())
        };
        self.version.known()?.split_whitespace().find(word)
    }

    /// Its major number.
    pub fn major(&self) -> Option<u32> {
        self.driver()?.split('.').next()?.parse().ok()
    }

    /// A parameter of the module.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.known()?.get(name).map(String::as_str)
    }

    /// `RegistryDwords` as they are, with `key` set to `value`. Entries with characters of no
    /// entry are left out: the text goes into a script.
    pub fn dwords_with(&self, key: &str, value: u32) -> String {
        let dwords = self.param("RegistryDwords").unwrap_or_default();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '=';
        let others = dwords.trim_matches('"').split([';', ',']).map(str::trim).filter(|entry| {
            !entry.is_empty()
                && entry.chars().all(plain)
                && entry.split('=').next().is_some_and(|name| name != key)
        });
        let all: String = others.map(|entry| format!("{entry};")).collect();
        format!("{all}{key}={value};")
    }

    /// Whether `RegistryDwords` sets a key to a number other than 0.
    pub fn registry(&self, key: &str) -> bool {
        let dwords = self.param("RegistryDwords").unwrap_or_default();
        dwords.trim_matches('"').split([';', ',']).any(|entry| is_set(entry, key))
    }

    /// GPUs for which `RegistryDwordsPerDevice` does so: `pci=0000:19:00.0;key=1;pci=…`.
    pub fn registry_of(&self, key: &str) -> Vec<Address> {
        let dwords = self.param("RegistryDwordsPerDevice").unwrap_or_default();
        let (mut all, mut of) = (Vec::new(), None);
        for entry in dwords.trim_matches('"').split([';', ',']) {
            match entry.trim().strip_prefix("pci=") {
                Some(text) => of = device(text.trim()),
                None => all.extend(of.filter(|_| is_set(entry, key))),
            }
        }
        all
    }
}

/// Whether a name's end is a number, as of the nodes of GPUs.
pub fn is_number(end: &str) -> bool {
    !end.is_empty() && end.bytes().all(|b| b.is_ascii_digit())
}

/// Whether an entry sets a key to a number other than 0.
fn is_set(entry: &str, key: &str) -> bool {
    let (name, value) = entry.split_once('=').unwrap_or((entry, "0"));
    let value = value.trim();
    let number = match value.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => value.parse(),
    };
    name.trim() == key && number.is_ok_and(|n| n != 0)
}

/// A device as the driver's options name it: `bus:slot`, `domain:bus:slot` or
/// `domain:bus:slot.function` (NVIDIA/open-gpu-kernel-modules, nv-reg.h).
fn device(text: &str) -> Option<Address> {
    let text = match text.matches(':').count() {
        1 => format!("0000:{text}"),
        _ => text.to_owned(),
    };
    if text.contains('.') { text.parse().ok() } else { format!("{text}.0").parse().ok() }
}

/// Lines `name: value`.
fn fields(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}

/// What the driver tells of each of its GPUs.
fn gpus(root: &Root, field: &str) -> Vec<(Address, Option<String>)> {
    let mut gpus = Vec::new();
    for name in root.list("proc/driver/nvidia/gpus") {
        let Ok(address) = name.parse() else { continue };
        let text = root.text(&format!("proc/driver/nvidia/gpus/{name}/information"));
        gpus.push((address, text.known().and_then(|text| fields(text).remove(field))));
    }
    gpus
}
