//! Files that statements stand for.

use std::net::Ipv6Addr;

use super::{Fields, MAX_FILES, MAX_TREE, Packed, Tree};

/// Largest BAR: 16 TiB.
const MAX_MIB: u64 = 1 << 24;

impl Packed {
    /// What all statements make, as far as it is not too much.
    pub(super) fn expanded(&self) -> Result<Tree, String> {
        let mut tree = Tree::default();
        for (name, target) in &self.links {
            tree.link(name.clone(), target.clone());
        }
        for (address, own) in &self.pci {
            let place =
                self.places.get(address).ok_or_else(|| format!("pci {address}: no place"))?;
            function(address, place, own, &mut tree)
                .map_err(|what| format!("pci {address}: {what}"))?;
            tree.fits()?;
        }
        for (minor, (address, model)) in self.gpus.iter().enumerate() {
            let place = format!("proc/driver/nvidia/gpus/{address}/information");
            let text = format!("Model: \t\t {model}\nIRQ:   \t\t 170\nDevice Minor: \t {minor}\n");
            tree.file(place, text.as_bytes());
        }
        tree.fits()?;
        for (number, (name, own)) in self.rdma.iter().enumerate() {
            device(number, name, own, &mut tree);
            tree.fits()?;
        }
        for (name, own) in &self.ports {
            let (device, number) =
                name.split_once(':').ok_or_else(|| format!("port {name}: no number"))?;
            port(&format!("sys/class/infiniband/{device}/ports/{number}"), own, &mut tree)
                .map_err(|what| format!("port {name}: {what}"))?;
            tree.fits()?;
        }
        for (name, own) in &self.nets {
            net(&format!("sys/class/net/{name}"), own, &mut tree);
            tree.fits()?;
        }
        // What `file` says goes before what others make of it.
        for (path, text) in &self.files {
            tree.file(path.clone(), text.as_bytes());
        }
        for (path, (bytes, zeros)) in &self.raw {
            let mut bytes = bytes.clone();
            bytes.resize(bytes.len() + zeros, 0);
            tree.file(path.clone(), &bytes);
            tree.fits()?;
        }
        if !self.env.is_empty() {
            tree.file("env".into(), self.env.join("\n").as_bytes());
        }
        tree.fits().map(|()| tree)
    }
}

impl Tree {
    /// Adds a file. Beyond what fits, nothing is added any more.
    fn file(&mut self, path: String, content: &[u8]) {
        self.bytes += path.len() + content.len();
        if self.fits().is_ok() {
            self.files.insert(path, content.into());
        }
    }

    fn link(&mut self, path: String, target: String) {
        self.bytes += path.len() + target.len();
        if self.fits().is_ok() {
            self.links.insert(path, target);
        }
    }

    /// Whether there is room for it, and one file more.
    fn fits(&self) -> Result<(), String> {
        if self.files.len() + self.links.len() > MAX_FILES {
            return Err(format!("more than {MAX_FILES} files"));
        }
        match self.bytes {
            0..=MAX_TREE => Ok(()),
            _ => Err(format!("more than {MAX_TREE} B of files and their names")),
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    let read = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    read.map_err(|_| format!("{text}: no number"))
}

/// The code of a size in Device Control: 128 B to 4096 B.
fn code(bytes: u64) -> Result<u8, String> {
    let is_size = bytes.is_power_of_two() && (128..=4096).contains(&bytes);
    is_size
        .then(|| (bytes / 128).trailing_zeros() as u8)
        .ok_or_else(|| format!("{bytes} B: no size of TLPs"))
}

/// Configuration space: bridges' buses, the PCI Express capability at 0x40, ACS at 0x100.
fn config(own: &Fields) -> Result<Vec<u8>, String> {
    let get = |key: &str| own.get(key).map(|value| number(value)).transpose();
    let mut config = vec![0u8; 4096];
    if own.contains_key("dead") {
        return Ok(vec![0xff; 4096]);
    }
    if let Some((first, last)) = own.get("buses").and_then(|b| b.split_once('-')) {
        let bus = |text: &str| u8::from_str_radix(text, 16).map_err(|_| format!("{text}: no bus"));
        config[0x0e] = 1;
        config[0x19] = bus(first)?;
        config[0x1a] = bus(last)?;
    }
    let port = match own.get("port").map(String::as_str) {
        Some("root") => 4,
        Some("up") => 5,
        Some("down") => 6,
        _ => 0,
    };
    let mps = code(get("mps")?.unwrap_or(256))?;
    let mrrs = code(get("mrrs")?.unwrap_or(512))?;
    config[0x34] = 0x40;
    config[0x40] = 0x10;
    config[0x42] = port << 4 | 2;
    config[0x44] = code(get("mpss")?.unwrap_or(256))?;
    config[0x48] = mps << 5 | u8::from(own.get("relaxed").is_none_or(|r| r == "1")) << 4;
    config[0x49] = mrrs << 4;
    if let Some(control) = get("acs")? {
        config[0x100] = 0x0d;
        config[0x102] = 1;
        config[0x106] = control as u8;
    }
    // ATS, enabled.
    if own.contains_key("ats") {
        (config[0x100], config[0x102], config[0x107]) = (0x0f, 1, 0x80);
    }
    config.truncate(get("config")?.unwrap_or(4096) as usize);
    Ok(config)
}

fn function(address: &str, place: &str, own: &Fields, tree: &mut Tree) -> Result<(), String> {
    let dir = format!("sys/devices/{place}");
    tree.file(format!("{dir}/config"), &config(own)?);
    for (key, value) in own {
        let mut file = |name: &str, text: String| {
            tree.file(format!("{dir}/{name}"), (text + "\n").as_bytes());
        };
        match key.as_str() {
            "class" | "vendor" | "device" | "numa_node" | "max_link_speed" | "max_link_width"
            | "current_link_speed" | "current_link_width" => file(key, value.clone()),
            "max" | "now" => {
                let (speed, width) =
                    value.split_once('x').ok_or_else(|| format!("{key}: no link"))?;
                let which = if key == "max" { "max" } else { "current" };
                file(&format!("{which}_link_speed"), format!("{speed} GT/s PCIe"));
                file(&format!("{which}_link_width"), width.into());
            }
            "bar1" => {
                let mib = number(value)?;
                if !(1..=MAX_MIB).contains(&mib) {
                    return Err(format!("bar1: {mib} MiB"));
                }
                file("resource", resource(mib, own.get("bar0").is_some_and(|bits| bits == "64")));
            }
            "physfn" => {
                tree.link(format!("{dir}/physfn"), format!("../{value}"));
            }
            "driver" => {
                tree.link(format!("{dir}/driver"), format!("../drivers/{value}"));
            }
            "group" => {
                let (group, kind) = value.split_once(':').ok_or("group: no type")?;
                let folder = format!("sys/kernel/iommu_groups/{group}");
                tree.file(format!("{folder}/type"), format!("{kind}\n").as_bytes());
                let up = "../".repeat(place.matches('/').count() + 2);
                tree.link(format!("{dir}/iommu_group"), format!("{up}kernel/iommu_groups/{group}"));
            }
            _ => {}
        }
    }
    tree.link(format!("sys/bus/pci/devices/{address}"), format!("../../../devices/{place}"));
    Ok(())
}

/// A GPU's BARs. BAR 0 of 64 bits, as an H100 has it, moves BAR 1 by one line.
fn resource(mib: u64, is_wide: bool) -> String {
    let bar = |at: u64, mib: u64, flags: u32| {
        format!("0x{at:x} 0x{:x} 0x{flags:x}", at + (mib << 20) - 1)
    };
    let large = bar(1 << 40, mib, 0x14220c);
    let none = "0x0 0x0 0x0".to_owned();
    let lines = match is_wide {
        true => vec![
            bar(1 << 42, 16, 0x14220c),
            none.clone(),
            large,
            none.clone(),
            bar(1 << 43, 32, 0x14220c),
            none,
        ],
        false => vec![bar(1 << 30, 16, 0x40200), large, none],
    };
    lines.join("\n")
}

fn device(number: usize, name: &str, own: &Fields, tree: &mut Tree) {
    let dir = format!("sys/class/infiniband/{name}");
    let mut file = |path: String, text: &str| tree.file(path, format!("{text}\n").as_bytes());
    for (key, target) in [("fw", "fw_ver"), ("board", "board_id")] {
        if let Some(value) = own.get(key) {
            file(format!("{dir}/{target}"), value);
        }
    }
    if let Some(at) = own.get("at") {
        let driver = own.get("driver").map_or("mlx5_core", String::as_str);
        file(format!("{dir}/device/uevent"), &format!("DRIVER={driver}\nPCI_SLOT_NAME={at}"));
    }
    file(format!("{dir}/node_type"), own.get("type").map_or("1: CA", String::as_str));
    file(format!("sys/class/infiniband_verbs/uverbs{number}/ibdev"), name);
    file(format!("dev/infiniband/uverbs{number}"), "");
}

fn port(dir: &str, own: &Fields, tree: &mut Tree) -> Result<(), String> {
    let mut file = |path: String, text: &str| tree.file(path, format!("{text}\n").as_bytes());
    for (key, value) in own {
        match key.as_str() {
            "state" | "phys_state" => {
                let code = ["", "DOWN", "INIT", "ARMED", "ACTIVE", "LinkUp"]
                    .iter()
                    .position(|s| s == value);
                file(format!("{dir}/{key}"), &format!("{}: {value}", code.unwrap_or(3)));
            }
            "rate" | "link_layer" => file(format!("{dir}/{key}"), value),
            "netdev" => {}
            _ if key.starts_with("gid") => {
                let index = &key[3..];
                let (kind, gid) = value.split_once(',').ok_or_else(|| format!("{key}: no kind"))?;
                let gid: Ipv6Addr = gid.parse().map_err(|_| format!("{key}: no GID"))?;
                let words = gid.segments().map(|s| format!("{s:04x}"));
                file(format!("{dir}/gids/{index}"), &words.join(":"));
                let kind = if kind == "v2" { "RoCE v2" } else { "IB/RoCE v1" };
                file(format!("{dir}/gid_attrs/types/{index}"), kind);
                if let Some(netdev) = own.get("netdev") {
                    file(format!("{dir}/gid_attrs/ndevs/{index}"), netdev);
                }
            }
            _ => match key.strip_prefix("hw.") {
                Some(name) => file(format!("{dir}/hw_counters/{name}"), value),
                None => file(format!("{dir}/counters/{key}"), value),
            },
        }
    }
    Ok(())
}

fn net(dir: &str, own: &Fields, tree: &mut Tree) {
    let mut file = |path: String, text: &str| tree.file(path, format!("{text}\n").as_bytes());
    for (key, value) in own {
        match key.as_str() {
            "mtu" => file(format!("{dir}/mtu"), value),
            "trust" | "pfc" => file(format!("{dir}/qos/{key}"), value),
            "ecn" => {
                for (point, priority) in
                    ["roce_np", "roce_rp"].into_iter().flat_map(|p| (0..8).map(move |n| (p, n)))
                {
                    let on = value.split(',').any(|n| n == priority.to_string());
                    file(
                        format!("{dir}/ecn/{point}/enable/{priority}"),
                        if on { "1" } else { "0" },
                    );
                }
            }
            _ => file(format!("{dir}/statistics/{key}"), value),
        }
    }
}
