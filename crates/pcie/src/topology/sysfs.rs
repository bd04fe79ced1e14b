//! Reads the running machine's topology from sysfs (Documentation/ABI/testing/sysfs-bus-pci).
//!
//! Link speed and width, NUMA node and class are files of sysfs. MPS, MRRS, port type and ACS come
//! from configuration space (PCIe base specification 7.5.3 and 7.7.8), as far as the reader may see
//! it. Without privilege the kernel shows only 64 bytes; the reader then assumes MPS 256 and MRRS
//! 512.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::error::TopologyError;
use super::model::{Builder, Kind, RawLink, Topology};

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
    /// The files were read but do not form a valid topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

struct Function {
    chain: Vec<String>,
    class: u32,
    config: Vec<u8>,
    dir: PathBuf,
}

/// Reads the topology below `root`, which is `/sys` on a real machine. `socket_gb_per_s` is the
/// bandwidth of peer traffic between two sockets, which sysfs does not give.
pub fn from_sysfs(root: &Path, socket_gb_per_s: f64) -> Result<Topology, SysfsError> {
    let functions = read_functions(root)?;
    let mut builder = Builder::new("this machine");
    let wanted: Vec<&String> = functions
        .iter()
        .filter(|(_, f)| kind_of(f.class).is_some() && f.dir.join("numa_node").exists())
        .map(|(bdf, _)| bdf)
        .collect();
    let mut done = BTreeSet::new();
    let mut sockets = BTreeSet::new();
    for &bdf in &wanted {
        let socket =
            format!("s{}", number(&functions[bdf].dir.join("numa_node")).unwrap_or(0).max(0));
        if sockets.insert(socket.clone()) {
            builder.add(&socket, Kind::Socket, None, None, None);
        }
        let mut parent = socket;
        for (i, name) in functions[bdf].chain.iter().enumerate() {
            if i == 0 {
                if done.insert(name.clone()) {
                    builder.add(name, Kind::RootComplex, Some(&parent), None, None);
                }
                parent.clone_from(name);
                continue;
            }
            let Some(function) = functions.get(name) else { continue };
            let Some(kind) = kind_of(function.class).or_else(|| bridge_kind(function, i)) else {
                continue;
            };
            if done.insert(name.clone()) {
                let link = (kind != Kind::RootPort).then(|| link_of(function));
                let acs = kind == Kind::Switch && switch_redirects(&functions, name);
                builder.add(name, kind, Some(&parent), link, None).acs = acs;
            }
            parent.clone_from(name);
        }
    }
    let all: Vec<&String> = sockets.iter().collect();
    for pair in all.windows(2) {
        builder.interconnect(pair[0], pair[1], socket_gb_per_s, None);
    }
    Ok(builder.finish()?)
}

fn read_functions(root: &Path) -> Result<BTreeMap<String, Function>, SysfsError> {
    let dir = root.join("bus/pci/devices");
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| SysfsError::Io { path, source }
    };
    let mut functions = BTreeMap::new();
    for entry in fs::read_dir(&dir).map_err(io(&dir))? {
        let link = entry.map_err(io(&dir))?.path();
        let real = fs::canonicalize(&link).map_err(io(&link))?;
        let chain: Vec<String> = real
            .components()
            .map(|c| c.as_os_str().to_string_lossy().into_owned())
            .skip_while(|c| !c.starts_with("pci"))
            .collect();
        let Some(bdf) = chain.last().cloned() else { continue };
        let class = fs::read_to_string(real.join("class")).unwrap_or_default();
        let class = u32::from_str_radix(class.trim().trim_start_matches("0x"), 16).unwrap_or(0);
        let config = fs::read(real.join("config")).unwrap_or_default();
        functions.insert(bdf, Function { chain, class, config, dir: real });
    }
    Ok(functions)
}

fn kind_of(class: u32) -> Option<Kind> {
    match class >> 8 {
        0x0300 | 0x0302 => Some(Kind::Gpu),
        0x0200 | 0x0207 => Some(Kind::Nic),
        _ => None,
    }
}

/// A switch takes the name of its upstream port and includes its downstream ports.
fn bridge_kind(function: &Function, depth: usize) -> Option<Kind> {
    if function.class >> 8 != 0x0604 {
        return None;
    }
    match port_type(&function.config) {
        Some(4) => Some(Kind::RootPort),
        Some(5) => Some(Kind::Switch),
        Some(_) => None,
        // Where configuration space is hidden, ports alternate below a root port.
        None if depth == 1 => Some(Kind::RootPort),
        None => depth.is_multiple_of(2).then_some(Kind::Switch),
    }
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

fn port_type(config: &[u8]) -> Option<u16> {
    Some(read_u16(config, pcie_capability(config)? + 2)? >> 4 & 0xf)
}

fn link_of(function: &Function) -> RawLink {
    let speed = fs::read_to_string(function.dir.join("current_link_speed")).unwrap_or_default();
    let gt: f64 = speed.split_whitespace().next().and_then(|s| s.parse().ok()).unwrap_or(8.0);
    let generation = match gt {
        gt if gt < 4.0 => 1,
        gt if gt < 7.0 => 2,
        gt if gt < 12.0 => 3,
        gt if gt < 24.0 => 4,
        gt if gt < 48.0 => 5,
        _ => 6,
    };
    let lanes = number(&function.dir.join("current_link_width"))
        .and_then(|n| u32::try_from(n).ok())
        .unwrap_or(16);
    let control =
        pcie_capability(&function.config).and_then(|at| read_u16(&function.config, at + 8));
    let size = |shift: u16, default: u32| {
        control.map_or(default, |c| 128u32 << u32::from(c >> shift & 7).min(5))
    };
    RawLink { generation, lanes, mps: size(5, 256), mrrs: size(12, 512) }
}

/// Whether any downstream port of the switch has ACS P2P Request Redirect enabled.
fn switch_redirects(functions: &BTreeMap<String, Function>, upstream: &str) -> bool {
    functions.values().any(|f| {
        let below = f.chain.iter().rev().nth(1).is_some_and(|parent| parent == upstream);
        below && acs_control(&f.config).is_some_and(|control| control & 0b100 != 0)
    })
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

fn number(path: &Path) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
#[path = "sysfs_tests.rs"]
mod tests;
