//! Copies of a machine what the checks read of it, for `--machine` elsewhere. Of files that hold more
//! than that, such as mounts and serial numbers, the lines that are read alone.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::machine::pci::CONFIG_SPACE;
use super::machine::system::{IDENTITY, kept_mounts};
use super::machine::{LIBRARY_PATH, Machine, NCCL_CONF};
use super::read::{Asked, MAX_BYTES, Root, Seen};
use crate::cli::CliError;

/// Variables that are recorded: others are nobody's business.
const VARIABLES: [&str; 5] =
    ["NCCL_", "UCX_", "NVSHMEM_", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];
/// Files of a PCI function that the topology reads.
const FUNCTION: [&str; 9] = [
    "class",
    "vendor",
    "device",
    "numa_node",
    "max_link_speed",
    "max_link_width",
    "current_link_speed",
    "current_link_width",
    "config",
];

/// Writes what was asked of `root` below `dir`, which has to be new or empty.
pub fn write(root: &Root, machine: &Machine, dir: &Path) -> Result<usize, CliError> {
    let wrong = |e: io::Error| {
        CliError::new(format!("--record {}: {e}", dir.display()), "name a new or empty directory")
    };
    fs::create_dir_all(dir).map_err(wrong)?;
    if fs::read_dir(dir).map_err(wrong)?.next().is_some() {
        return Err(wrong(io::Error::other("it is not empty")));
    }
    let mut copy = Copy { root, dir, files: 0 };
    copy.all(machine).map_err(wrong)?;
    Ok(copy.files)
}

struct Copy<'a> {
    root: &'a Root,
    dir: &'a Path,
    files: usize,
}

impl Copy<'_> {
    fn all(&mut self, machine: &Machine) -> io::Result<()> {
        let asked = self.root.asked();
        // Functions first: the links to their folders have to be there before what is below them.
        self.functions()?;
        for (name, how) in &asked {
            match how {
                Asked::Content => self.file(name)?,
                Asked::Link => self.link(name)?,
                Asked::Presence | Asked::Names => {}
            }
        }
        for (name, how) in &asked {
            match how {
                Asked::Presence if self.root.has(name) => self.placeholder(name)?,
                Asked::Names => {
                    // Other devices' names, such as volumes', are their owners'.
                    let is_read = |c: &String| name != "dev" || c.starts_with("nvidia");
                    for child in self.root.list(name).into_iter().filter(is_read) {
                        self.placeholder(&format!("{name}/{child}"))?;
                    }
                }
                _ => {}
            }
        }
        for (name, answer) in self.root.answers() {
            self.put(&name, answer.as_bytes())?;
        }
        let is_ours = |name: &&String| {
            VARIABLES.iter().any(|start| name.starts_with(start)) && !machine.conf.contains(*name)
        };
        let ours = machine.env.iter().filter(|(name, _)| is_ours(name));
        let mut lines: Vec<String> =
            ours.map(|(name, value)| format!("{name}={}", value.replace('\n', " "))).collect();
        // Of where the loader looks, what has libcuda.
        let first = machine.system.cudas.iter().filter(|cuda| cuda.is_first);
        let first: Vec<&str> = first.map(|cuda| cuda.folder.as_str()).collect();
        lines.extend((!first.is_empty()).then(|| format!("{LIBRARY_PATH}={}", first.join(":"))));
        self.put("env", (lines.join("\n") + "\n").as_bytes())
    }

    fn place(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.dir.join(name);
        fs::create_dir_all(path.parent().unwrap_or(self.dir))?;
        Ok(path)
    }

    fn put(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.files += 1;
        let path = self.place(name)?;
        fs::write(&path, content).map_err(|e| named(&path, &e))
    }

    fn file(&mut self, name: &str) -> io::Result<()> {
        let bytes = if name.ends_with("/config") { CONFIG_SPACE } else { MAX_BYTES };
        match self.root.head(name, bytes) {
            Seen::Known(content) if !self.dir.join(name).is_dir() => {
                self.put(name, &kept(name, content))
            }
            _ => Ok(()),
        }
    }

    /// A link whose last part alone matters.
    fn link(&mut self, name: &str) -> io::Result<()> {
        let Some(last) = self.root.link_name(name) else { return Ok(()) };
        let path = self.place(name)?;
        match path.symlink_metadata() {
            Ok(_) => Ok(()),
            Err(_) => symlink(Path::new("recorded").join(last), path),
        }
    }

    fn placeholder(&mut self, name: &str) -> io::Result<()> {
        let path = self.place(name)?;
        if path.symlink_metadata().is_err() {
            match self.root.is_dir(name) {
                true => fs::create_dir(path)?,
                false => fs::write(path, "")?,
            }
        }
        Ok(())
    }

    fn functions(&mut self) -> io::Result<()> {
        let list = "sys/bus/pci/devices";
        if self.root.has(list) {
            fs::create_dir_all(self.dir.join(list))?;
        }
        for address in self.root.list(list) {
            let Some(place) = self.root.below(&format!("{list}/{address}"), "sys") else {
                continue;
            };
            let own = format!("sys/{place}");
            fs::create_dir_all(self.dir.join(&own))?;
            // In a copy they may be folders, and no links to where they are on the bus.
            let link = self.dir.join(list).join(&address);
            if link != self.dir.join(&own) {
                symlink(format!("../../../{place}"), &link).map_err(|e| named(&link, &e))?;
            }
            self.group(&own)?;
            FUNCTION.iter().try_for_each(|name| self.file(&format!("{own}/{name}")))?;
            for child in self.root.list(&format!("{own}/infiniband")) {
                fs::create_dir_all(self.dir.join(format!("{own}/infiniband/{child}")))?;
            }
            self.link(&format!("{own}/physfn"))?;
        }
        self.packages()
    }

    /// A function's link to its IOMMU group, with the folder that it leads to.
    fn group(&self, function: &str) -> io::Result<()> {
        let (link, all) = (format!("{function}/iommu_group"), "sys/kernel/iommu_groups");
        let number = self.root.below(&link, all).and_then(|name| name.parse::<u32>().ok());
        let Some(number) = number else { return Ok(()) };
        fs::create_dir_all(self.dir.join(format!("{all}/{number}")))?;
        let up = "../".repeat(function.matches('/').count());
        let link = self.dir.join(link);
        // Two names of a copy's bus may be of one function.
        if link.symlink_metadata().is_ok() {
            return Ok(());
        }
        symlink(format!("{up}kernel/iommu_groups/{number}"), &link).map_err(|e| named(&link, &e))
    }

    /// CPU package of each NUMA node, by its first CPU.
    fn packages(&mut self) -> io::Result<()> {
        let nodes = "sys/devices/system/node";
        let mut cpus = BTreeSet::new();
        for node in self.root.list(nodes) {
            let name = format!("{nodes}/{node}/cpulist");
            self.file(&name)?;
            let list = self.root.text(&name);
            let first = list.known().and_then(|l| l.split(['-', ',']).next()?.parse::<u32>().ok());
            cpus.extend(first);
        }
        cpus.into_iter().try_for_each(|cpu| {
            self.file(&format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"))
        })
    }
}

/// An error with the file that it is about.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Of a file's content what the checks read: other lines and serial numbers are nobody's business.
fn kept(name: &str, content: Vec<u8>) -> Vec<u8> {
    let lines = |is_read: fn(&str) -> bool| {
        let text = String::from_utf8_lossy(&content).into_owned();
        let lines = text.lines().filter(|line| is_read(line)).map(|line| format!("{line}\n"));
        lines.collect::<String>().into_bytes()
    };
    let last = name.rsplit('/').next().unwrap_or(name);
    match (name, last) {
        ("proc/self/mounts" | "proc/mounts", _) => {
            kept_mounts(&String::from_utf8_lossy(&content)).into_bytes()
        }
        // Whose the numbers are is their owner's.
        ("proc/self/uid_map", _) => {
            let text = String::from_utf8_lossy(&content);
            let is_own = text.split_whitespace().eq(IDENTITY);
            (if is_own { IDENTITY.join(" ") } else { "0 1 1".to_owned() } + "\n").into_bytes()
        }
        ("proc/self/status", _) => lines(|line| line.starts_with("CapEff:")),
        ("proc/cpuinfo", _) => lines(|line| {
            let read = ["model name", "flags", "CPU implementer", "CPU part"];
            read.iter().any(|start| line.starts_with(start))
        }),
        ("proc/cmdline", _) => {
            let text = String::from_utf8_lossy(&content);
            let is_read = |word: &&str| word.contains("iommu") || word.contains("pcie_bus_");
            let words: Vec<&str> = text.split_whitespace().filter(is_read).collect();
            (words.join(" ") + "\n").into_bytes()
        }
        (NCCL_CONF, _) => lines(|line| line.starts_with("NCCL_")),
        (_, "information") => {
            lines(|line| line.starts_with("Model:") || line.starts_with("Device Minor:"))
        }
        (_, "config") => without_serial(content),
        _ => content,
    }
}

/// Id of the Device Serial Number capability (PCIe base specification 7.9.3).
const SERIAL: u16 = 0x0003;

/// Extended configuration space with the 8 bytes of every serial number 0.
fn without_serial(mut config: Vec<u8>) -> Vec<u8> {
    let mut at = 0x100;
    // A capability has 4 bytes at least: more steps than these would go in a ring.
    for _ in 0..(4096 - 0x100) / 4 {
        let Some(&[a, b, c, d]) = config.get(at..at + 4) else { break };
        let header = u32::from_le_bytes([a, b, c, d]);
        if header as u16 == SERIAL {
            config.iter_mut().skip(at + 4).take(8).for_each(|byte| *byte = 0);
        }
        at = (header >> 20) as usize & 0xffc;
        if at < 0x100 {
            break;
        }
    }
    config
}
