//! Recorded machines: a text of tests/fixtures/doctor, expanded to the tree that `--root` reads.
//!
//! A line is a statement; docs/doctor.md has them. In values `~` stands for a space and `|` for the
//! end of a line. A later statement about the same thing adds to the earlier or replaces it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

type Fields = BTreeMap<String, String>;

/// A machine as its text says it.
#[derive(Debug, Default, Clone)]
pub struct Recorded {
    /// What it is.
    pub what: String,
    /// Where it comes from.
    pub source: String,
    /// Check, severity, and part of what is found.
    pub expected: Vec<(String, String, String)>,
    files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
    /// Path below /sys/devices, by address.
    places: BTreeMap<String, String>,
    pci: BTreeMap<String, Fields>,
    rdma: BTreeMap<String, Fields>,
    ports: BTreeMap<String, Fields>,
    nets: BTreeMap<String, Fields>,
    env: Vec<String>,
    dropped: Vec<String>,
}

/// Folder of the texts.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/doctor")
}

/// Names of all of them.
pub fn names() -> Vec<String> {
    let name = |path: PathBuf| {
        (path.extension()? == "machine").then(|| path.file_stem()?.to_str().map(str::to_owned))?
    };
    let entries = fs::read_dir(folder()).unwrap();
    let mut names: Vec<String> = entries.filter_map(|e| name(e.unwrap().path())).collect();
    names.sort();
    names
}

/// The machine of this name.
pub fn recorded(name: &str) -> Recorded {
    let mut machine = Recorded::default();
    machine.add(name);
    machine
}

fn text(value: &str) -> String {
    value.replace('~', " ").replace('|', "\n")
}

fn fields<'a>(words: impl Iterator<Item = &'a str>) -> Fields {
    let pair = |word: &'a str| {
        let (key, value) = word.split_once('=').unwrap_or_else(|| panic!("{word}: no ="));
        (key.to_owned(), text(value))
    };
    words.map(pair).collect()
}

impl Recorded {
    fn add(&mut self, name: &str) {
        let path = folder().join(format!("{name}.machine"));
        let all = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for line in all.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            self.statement(line);
        }
    }

    /// Adds one statement.
    pub fn statement(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut words = rest.split_whitespace();
        match word {
            "what" => self.what = rest.into(),
            "source" => self.source = rest.into(),
            "base" => {
                // The rest is the base's; what it is and where it comes from is its own.
                let own = (self.what.clone(), self.source.clone());
                self.add(rest);
                (self.what, self.source) = own;
                self.expected.clear();
            }
            "expect" => {
                let (check, severity) = (words.next().unwrap(), words.next().unwrap());
                let found = words.collect::<Vec<_>>().join(" ");
                self.expected.push((check.into(), severity.into(), found));
            }
            "file" => {
                let (path, value) = rest.split_once(" = ").unwrap();
                self.file(path, &text(value));
            }
            "link" => {
                let (path, target) = rest.split_once(" -> ").unwrap();
                self.links.insert(path.into(), target.into());
            }
            "drop" => self.dropped.push(rest.into()),
            "env" => self.env.push(rest.into()),
            "kernel" => self.file("proc/sys/kernel/osrelease", rest),
            "cmdline" => self.file("proc/cmdline", rest),
            "cpu" => self.file("proc/cpuinfo", &format!("processor\t: 0\nmodel name\t: {rest}")),
            "modules" => {
                let lines: Vec<_> = words.map(|m| format!("{m} 16384 0 - Live 0x0")).collect();
                self.file("proc/modules", &lines.join("\n"));
            }
            "memlock" => self.file(
                "proc/self/limits",
                &format!(
                    "Limit  Soft Limit  Hard Limit  Units\nMax locked \
             memory         {rest}            {rest}            bytes"
                ),
            ),
            "capabilities" => {
                self.file("proc/self/status", &format!("Name:\tbash\nCapEff:\t{rest}"))
            }
            "shm" => {
                self.file("proc/self/mounts", &format!("tmpfs /dev/shm tmpfs rw,nosuid{rest} 0 0"))
            }
            "nvidia" => self.nvidia(rest),
            "gpu" => {
                let (address, model) = rest.split_once(' ').unwrap();
                let place = format!("proc/driver/nvidia/gpus/{address}/information");
                self.file(&place, &format!("Model: \t\t {model}\nIRQ:   \t\t 170"));
            }
            "dev" => words.for_each(|name| self.file(&format!("dev/{name}"), "")),
            "node" => self.node(rest),
            "pci" => {
                let place = words.next().unwrap();
                let address = place.rsplit('/').next().unwrap().to_owned();
                if place.contains('/') {
                    self.places.insert(address.clone(), place.into());
                }
                self.pci.entry(address).or_default().extend(fields(words));
            }
            "rdma" => add(&mut self.rdma, words),
            "port" => add(&mut self.ports, words),
            "net" => add(&mut self.nets, words),
            _ => panic!("{line}: no such statement"),
        }
    }

    fn file(&mut self, path: &str, content: &str) {
        self.files.insert(path.into(), format!("{content}\n"));
    }

    fn nvidia(&mut self, rest: &str) {
        let mut words = rest.split_whitespace();
        let (kind, version) = (words.next().unwrap(), words.next().unwrap());
        let module = match kind {
            "open" => {
                format!("NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build")
            }
            _ => format!("NVIDIA UNIX x86_64 Kernel Module  {version}  Wed Mar 22 2023"),
        };
        let lines = format!("NVRM version: {module}\nGCC version:  gcc version 11.4.0");
        self.file("proc/driver/nvidia/version", &lines);
        let dwords = words.collect::<Vec<_>>().join(" ");
        let params =
            format!("EnableStreamMemOPs: 0\nRegistryDwords: \"{dwords}\"\nDmaRemapPeerMmio: 1");
        self.file("proc/driver/nvidia/params", &params);
    }

    fn node(&mut self, rest: &str) {
        let (number, rest) = rest.split_once(' ').unwrap();
        let own = fields(rest.split_whitespace());
        let dir = format!("sys/devices/system/node/node{number}");
        let first = own["cpulist"].split('-').next().unwrap().to_owned();
        self.file(&format!("{dir}/cpulist"), &own["cpulist"]);
        self.file(&format!("{dir}/distance"), &own["distance"].replace(',', " "));
        let package = format!("sys/devices/system/cpu/cpu{first}/topology/physical_package_id");
        self.file(&package, &own["package"]);
    }

    /// Writes the tree below `root`.
    pub fn write(&self, root: &Path) {
        let mut files = BTreeMap::new();
        let mut links = self.links.clone();
        for (address, own) in &self.pci {
            let place = self.places.get(address).unwrap_or_else(|| panic!("{address}: no place"));
            function(address, place, own, &mut files, &mut links);
        }
        for (number, (name, own)) in self.rdma.iter().enumerate() {
            device(number, name, own, &mut files);
        }
        for (name, own) in &self.ports {
            let (device, number) = name.split_once(':').unwrap();
            port(&format!("sys/class/infiniband/{device}/ports/{number}"), own, &mut files);
        }
        for (name, own) in &self.nets {
            net(&format!("sys/class/net/{name}"), own, &mut files);
        }
        // What `file` says goes before what others make of it.
        let own = self.files.iter();
        files.extend(own.map(|(path, text)| (path.clone(), text.clone().into_bytes())));
        if !self.env.is_empty() {
            files.insert("env".into(), self.env.join("\n").into_bytes());
        }
        let is_dropped = |path: &String| self.dropped.iter().any(|d| path.starts_with(d.as_str()));
        for (path, content) in files.iter().filter(|(path, _)| !is_dropped(path)) {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        for (path, target) in links.iter().filter(|(path, _)| !is_dropped(path)) {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        }
        fs::create_dir_all(root.join("proc")).unwrap();
        fs::create_dir_all(root.join("sys")).unwrap();
    }
}

fn add<'a>(to: &mut BTreeMap<String, Fields>, mut words: impl Iterator<Item = &'a str>) {
    let name = words.next().unwrap().to_owned();
    to.entry(name).or_default().extend(fields(words));
}

fn number(text: &str) -> u64 {
    let read = |digits: &str, radix| u64::from_str_radix(digits, radix).unwrap();
    match text.strip_prefix("0x") {
        Some(digits) => read(digits, 16),
        None => read(text, 10),
    }
}

/// Configuration space: bridges' buses, the PCI Express capability at 0x40, ACS at 0x100.
fn config(own: &Fields) -> Vec<u8> {
    let get = |key: &str| own.get(key).map(|v| number(v));
    let mut config = vec![0u8; 4096];
    if own.contains_key("dead") {
        return vec![0xff; 4096];
    }
    if let Some((first, last)) = own.get("buses").and_then(|b| b.split_once('-')) {
        config[0x0e] = 1;
        config[0x19] = u8::from_str_radix(first, 16).unwrap();
        config[0x1a] = u8::from_str_radix(last, 16).unwrap();
    }
    let port = match own.get("port").map(String::as_str) {
        Some("root") => 4,
        Some("up") => 5,
        Some("down") => 6,
        _ => 0,
    };
    let code = |bytes: u64| (bytes / 128).trailing_zeros() as u8;
    let (mps, mrrs) = (code(get("mps").unwrap_or(256)), code(get("mrrs").unwrap_or(512)));
    config[0x34] = 0x40;
    config[0x40] = 0x10;
    config[0x42] = port << 4 | 2;
    config[0x44] = code(get("mpss").unwrap_or(256));
    config[0x48] = mps << 5 | u8::from(own.get("relaxed").is_none_or(|r| r == "1")) << 4;
    config[0x49] = mrrs << 4;
    if let Some(control) = get("acs") {
        config[0x100] = 0x0d;
        config[0x102] = 1;
        config[0x106] = control as u8;
    }
    // ATS, enabled.
    if own.contains_key("ats") {
        (config[0x100], config[0x102], config[0x107]) = (0x0f, 1, 0x80);
    }
    config.truncate(get("config").unwrap_or(4096) as usize);
    config
}

fn function(
    address: &str,
    place: &str,
    own: &Fields,
    files: &mut BTreeMap<String, Vec<u8>>,
    links: &mut BTreeMap<String, String>,
) {
    let dir = format!("sys/devices/{place}");
    files.insert(format!("{dir}/config"), config(own));
    for (key, value) in own {
        let mut file = |name: &str, text: String| {
            files.insert(format!("{dir}/{name}"), (text + "\n").into_bytes());
        };
        match key.as_str() {
            "class" | "vendor" | "device" | "numa_node" | "max_link_speed" | "max_link_width"
            | "current_link_speed" | "current_link_width" => file(key, value.clone()),
            "max" | "now" => {
                let (speed, width) = value.split_once('x').unwrap();
                let which = if key == "max" { "max" } else { "current" };
                file(&format!("{which}_link_speed"), format!("{speed} GT/s PCIe"));
                file(&format!("{which}_link_width"), width.into());
            }
            "bar1" => {
                let bar = |at: u64, mib: u64, flags: u32| {
                    format!("0x{at:x} 0x{:x} 0x{flags:x}", at + (mib << 20) - 1)
                };
                let large = bar(1 << 40, number(value), 0x14220c);
                // `bar0=64`: BAR 0 of 64 bits, as an H100 has it, moves BAR 1 by one line.
                let lines = match own.get("bar0").map(String::as_str) {
                    Some("64") => [
                        &bar(1 << 42, 16, 0x14220c),
                        "0x0 0x0 0x0",
                        &large,
                        "0x0 0x0 0x0",
                        &bar(1 << 43, 32, 0x14220c),
                        "0x0 0x0 0x0",
                    ]
                    .join("\n"),
                    _ => [&bar(1 << 30, 16, 0x40200), &large, "0x0 0x0 0x0"].join("\n"),
                };
                file("resource", lines);
            }
            "physfn" => {
                links.insert(format!("{dir}/physfn"), format!("../{value}"));
            }
            "driver" => {
                links.insert(format!("{dir}/driver"), format!("../drivers/{value}"));
            }
            "group" => {
                let (group, kind) = value.split_once(':').unwrap();
                let folder = format!("sys/kernel/iommu_groups/{group}");
                files.insert(format!("{folder}/type"), format!("{kind}\n").into_bytes());
                let up = "../".repeat(place.matches('/').count() + 2);
                links.insert(
                    format!("{dir}/iommu_group"),
                    format!("{up}kernel/iommu_groups/{group}"),
                );
            }
            _ => {}
        }
    }
    links.insert(format!("sys/bus/pci/devices/{address}"), format!("../../../devices/{place}"));
}

fn device(number: usize, name: &str, own: &Fields, files: &mut BTreeMap<String, Vec<u8>>) {
    let dir = format!("sys/class/infiniband/{name}");
    let mut file =
        |path: String, text: &str| drop(files.insert(path, format!("{text}\n").into_bytes()));
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

fn port(dir: &str, own: &Fields, files: &mut BTreeMap<String, Vec<u8>>) {
    let mut file =
        |path: String, text: &str| drop(files.insert(path, format!("{text}\n").into_bytes()));
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
                let (kind, gid) = value.split_once(',').unwrap();
                let gid: std::net::Ipv6Addr = gid.parse().unwrap();
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
}

fn net(dir: &str, own: &Fields, files: &mut BTreeMap<String, Vec<u8>>) {
    let mut file =
        |path: String, text: &str| drop(files.insert(path, format!("{text}\n").into_bytes()));
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
