//! Variables of the environment that contradict the machine.

mod nccl;
mod nvshmem;
mod ucx;

use std::collections::BTreeSet;

pub use nccl::{nccl, nccl_number};
pub use nvshmem::nvshmem;
pub use ucx::ucx;

use bellpush::pcie::topology::Address;

use super::least;
use crate::doctor::finding::{Finding, Need, Severity};
use crate::doctor::machine::rdma::{Port, RdmaDevice};
use crate::doctor::machine::{Machine, NCCL_CONF};
use crate::doctor::read::short;
use crate::doctor::verdict::label;

/// Whose list it is: they agree in commas and `^`, and not in more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Library {
    /// Entries are starts of names, or whole names behind `=` (parseStringList(), matchIf()).
    Nccl,
    /// Entries are whole names, with ranges such as `mlx5_[0-3]:1` since 1.22 (ucs_config_sscanf_allow_list_with_ranges()).
    Ucx,
    /// Entries are whole names (nvshmemt_parse_hca_list()).
    Nvshmem,
}

/// A list of devices or interfaces, to the letter: no library leaves blanks out.
struct List<'a> {
    name: &'static str,
    value: &'a str,
    library: Library,
    /// Whether it names what is left out.
    excludes: bool,
    /// Whether entries are whole names.
    exact: bool,
    entries: Vec<String>,
}

impl<'a> List<'a> {
    /// The list of a variable that is set and not empty.
    fn of(m: &'a Machine, library: Library, name: &'static str) -> Option<Self> {
        let value = m.env.get(name).map(String::as_str).filter(|value| !value.is_empty())?;
        let rest = value.strip_prefix('^');
        let (excludes, rest) = (rest.is_some(), rest.unwrap_or(value));
        let whole = rest.strip_prefix('=').filter(|_| library == Library::Nccl);
        let exact = library != Library::Nccl || whole.is_some();
        let entries = whole.unwrap_or(rest).split(',').filter(|entry| !entry.is_empty());
        let entries = match library {
            Library::Ucx => entries.flat_map(expanded).collect(),
            _ => entries.map(str::to_owned).collect(),
        };
        Some(Self { name, value, library, excludes, exact, entries })
    }

    /// Whether an entry names a thing of this name.
    fn names(&self, entry: &str, name: &str) -> bool {
        if self.exact { name == entry } else { name.starts_with(entry) }
    }

    /// Whether an entry names a device, or a port of it.
    fn names_device(&self, entry: &str, device: &RdmaDevice) -> bool {
        let (name, port) = parts(entry);
        self.names(name, &device.name)
            && port.is_none_or(|p| device.ports.iter().any(|own| own.number.to_string() == p))
    }

    /// Whether the list chooses a port.
    fn chooses(&self, device: &RdmaDevice, port: &Port) -> bool {
        if self.entries.is_empty() {
            // For NCCL an empty list has everything, so that `^` leaves nothing.
            return !(self.excludes && self.library == Library::Nccl);
        }
        let is_port = |n: &str| port.number.to_string() == n;
        let named = self
            .entries
            .iter()
            .any(|entry| self.names_device(entry, device) && parts(entry).1.is_none_or(is_port));
        named != self.excludes || self.is_all()
    }

    fn is_all(&self) -> bool {
        self.library == Library::Ucx && self.entries.first().is_some_and(|first| first == "all")
    }

    /// Entries that name nothing. What is to be left out need not be there, unless a blank is why it is not.
    fn lost(&self, there: impl Fn(&str) -> bool) -> Vec<&str> {
        let is_lost = |entry: &&str| {
            !there(entry) && (!self.excludes || entry.trim() != *entry && there(entry.trim()))
        };
        self.entries.iter().map(String::as_str).filter(is_lost).collect()
    }

    fn is_there(&self, m: &Machine, entry: &str) -> bool {
        m.rdma.iter().any(|device| self.names_device(entry, device))
    }

    /// What is set, for a reader.
    fn set(&self, m: &Machine) -> String {
        set(m, self.name, self.value)
    }

    /// That some entries name nothing.
    fn missing(&self, m: &Machine, missing: &[&str], cost: &str) -> Finding {
        let named = |entry: &&str| match entry.trim() == *entry {
            true => (*entry).to_owned(),
            false => format!("{entry:?}, whose blank is a part of the name"),
        };
        let names: Vec<String> = missing.iter().map(named).collect();
        let found = format!("{}: no {}", self.set(m), short(&names.join(", ")));
        unset(m, Finding::warn(found).expected(devices(m)).cost(cost), self.name)
    }

    /// Entries that name ports of which none is active, as far as all are seen.
    fn down(&self, m: &Machine) -> Option<Finding> {
        let is_down = |entry: &&String| {
            let (_, port) = parts(entry);
            let devices = m.rdma.iter().filter(|d| self.names_device(entry, d));
            let mut ports = devices
                .flat_map(|d| &d.ports)
                .filter(|p| port.is_none_or(|n| p.number.to_string() == n))
                .peekable();
            ports.peek().is_some() && ports.all(is_inactive)
        };
        let down: Vec<&str> = match self.excludes {
            true => Vec::new(),
            false => self.entries.iter().filter(is_down).map(String::as_str).collect(),
        };
        if down.is_empty() {
            return None;
        }
        let found = format!("{}: no active port at {}", self.set(m), short(&down.join(", ")));
        let finding = Finding::warn(found)
            .expected("ports in state ACTIVE")
            .cost("they send nothing; with no other port named there is no RDMA");
        Some(unset(m, finding, self.name))
    }

    /// That a list of what is left out leaves no device of mlx5, or none that can send.
    fn nothing_left(&self, m: &Machine, cost: &str) -> Option<Finding> {
        let is_out = |d: &RdmaDevice| match d.ports.is_empty() {
            true => self.entries.is_empty() || self.entries.iter().any(|e| self.names_device(e, d)),
            false => !d.ports.iter().any(|port| self.chooses(d, port)),
        };
        // Of a device that does not show its driver nobody knows whether it is left.
        if !self.excludes
            || self.chooses_all()
            || m.mlx5().next().is_none()
            || m.rdma.iter().any(RdmaDevice::may_be_mlx5)
        {
            return None;
        }
        let (chosen, others): (Vec<_>, Vec<_>) = m
            .mlx5()
            .flat_map(|d| d.ports.iter().map(move |p| (d, p)))
            .partition(|(d, p)| self.chooses(d, p));
        let is_whole = m.mlx5().all(|d| !d.ports.is_empty());
        let what = if m.mlx5().all(is_out) {
            "excludes every device of mlx5"
        } else if is_whole
            && chosen.iter().all(|(_, p)| is_inactive(p))
            && others.iter().any(|(_, p)| p.is_active())
        {
            "excludes every active port"
        } else {
            return None;
        };
        let finding = Finding::warn(format!("{}: {what}", self.set(m)))
            .expected(format!("some of {}", devices(m)))
            .cost(cost);
        Some(unset(m, finding, self.name))
    }

    /// Whether nothing is left out.
    fn chooses_all(&self) -> bool {
        self.is_all() || self.entries.is_empty() && self.library != Library::Nccl
    }
}

/// `mlx5_[0-3]:1` is four entries.
fn expanded(entry: &str) -> Vec<String> {
    let range = || {
        let (start, rest) = entry.split_once('[')?;
        let (numbers, end) = rest.split_once(']')?;
        let (first, last) = numbers.split_once('-')?;
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        let is_one = !start.contains(']') && !end.contains(['[', ']']);
        (is_one && first <= last && last - first < 64)
            .then(|| (first..=last).map(|n| format!("{start}{n}{end}")).collect())
    };
    range().unwrap_or_else(|| vec![entry.to_owned()])
}

fn is_inactive(port: &Port) -> bool {
    port.state.known().is_some_and(|state| state != "ACTIVE")
}

/// A variable and its value, and where that is if not in the environment.
fn set(m: &Machine, name: &str, value: &str) -> String {
    match m.conf.contains(name) {
        true => short(&format!("{name}={value} (/{NCCL_CONF})")),
        false => short(&format!("{name}={value}")),
    }
}

/// A script cannot change its caller's environment.
const JOB: &str = "in the environment of the job";

fn unset(m: &Machine, finding: Finding, name: &str) -> Finding {
    if m.conf.contains(name) {
        let how = format!("take {name} out of /{NCCL_CONF}, or name what is there");
        return finding.script(format!("# {how}")).fix(how);
    }
    finding
        .fix(format!("unset {name}, or name what is there"))
        .script(format!("# {JOB}: unset {name}"))
}

/// Device and port of an entry `name` or `name:2`.
fn parts(entry: &str) -> (&str, Option<&str>) {
    let mut words = entry.split(':');
    (words.next().unwrap_or(entry), words.next().filter(|port| !port.is_empty()))
}

fn devices(m: &Machine) -> String {
    let names: Vec<String> = m.rdma.iter().map(|d| d.name.clone()).collect();
    if names.is_empty() { "no RDMA device".into() } else { short(&names.join(", ")) }
}

/// An index of a GID that is not one of RoCE v2 with an address, at ports that `list` chooses.
fn gid_index(
    m: &Machine,
    name: &str,
    index: Option<i64>,
    list: Option<&List<'_>>,
    all: &mut Vec<Finding>,
) {
    // Less than 0 is a choice by the library.
    let Some(index) = index.and_then(|n| usize::try_from(n).ok()) else { return };
    let all_ports = m.mlx5().flat_map(|d| d.ports.iter().map(move |p| (d, p)));
    let mut ports: Vec<_> = all_ports.filter(|(_, p)| p.is_active() && p.is_ethernet()).collect();
    let is_chosen = |(d, p): &(&RdmaDevice, &Port)| list.is_none_or(|list| list.chooses(d, p));
    // A list that names nothing here is told of elsewhere, and will be mended.
    if m.rdma.iter().flat_map(|d| d.ports.iter().map(move |p| (d, p))).any(|port| is_chosen(&port))
    {
        ports.retain(is_chosen);
    }
    for (device, port) in ports.into_iter().filter(|(_, p)| p.hidden_gids == 0) {
        let gid = port.gids.iter().find(|g| g.index == index);
        let what = match gid {
            None => "empty",
            Some(gid) if gid.is_v2 == Some(false) => "of RoCE v1, which no router forwards",
            Some(gid) if gid.is_link_local() && port.gids.iter().any(|g| g.is_ipv4()) => {
                "link-local"
            }
            Some(_) => continue,
        };
        let better = port.gids.iter().find(|g| g.is_v2 == Some(true) && g.is_ipv4());
        let expected = better.map_or_else(
            || "RoCE v2".to_owned(),
            |g| format!("RoCE v2 of an IPv4 address: index {}", g.index),
        );
        let of = format!("{}:{}", short(&device.name), port.number);
        let value = m.var(name).unwrap_or_default();
        let read =
            if value == index.to_string() { String::new() } else { format!(", read as {index},") };
        let found = format!("{}{read} at {of} is {what}", set(m, name, value));
        all.push(unset(
            m,
            Finding::warn(found)
                .expected(expected)
                .cost("connections time out, or stay in one subnet"),
            name,
        ));
    }
}

/// The GPUs that CUDA numbers, in PCI's order: those that this container can open.
fn numbered(m: &Machine) -> Vec<(Address, String)> {
    let given = m.nvidia.gpus.iter().filter(|(gpu, _)| m.is_given(*gpu));
    let mut gpus: Vec<_> = given.cloned().collect();
    gpus.sort_unstable();
    gpus
}

pub fn cuda(m: &Machine) -> Vec<Finding> {
    let name = "CUDA_VISIBLE_DEVICES";
    let gpus = numbered(m);
    let count = gpus.len();
    let Some(value) = m.env.get(name).filter(|_| count > 0) else { return Vec::new() };
    let entries: Vec<&str> = value.split(',').map(str::trim).collect();
    // An index below the count, or the start of a UUID.
    let is_one = |entry: &&&str| match entry.parse::<i64>() {
        Ok(n) => (0..count as i64).contains(&n),
        Err(_) => ["GPU-", "MIG-"].iter().any(|start| entry.starts_with(start)),
    };
    // CUDA shows the devices before the first wrong one.
    let shown: Vec<&str> = entries.iter().take_while(is_one).copied().collect();
    let distinct: BTreeSet<&str> = shown.iter().copied().collect();
    let set = set(m, name, value);
    let finding = if shown.is_empty() {
        let finding = Finding::prevents(&[Need::Gpu], format!("{set} hides every GPU"))
            .expected(format!("indices below {count}, or UUIDs"))
            .cost("CUDA finds no GPU");
        return vec![unset(m, finding, name)];
    } else if shown.len() < entries.len() {
        Finding::warn(format!("{set} names a GPU that is not there"))
            .expected(format!("indices below {count}"))
            .cost("CUDA leaves out the GPUs from there on")
    } else if distinct.len() < entries.len() {
        Finding::warn(format!("{set} names a GPU twice"))
            .expected("each GPU once")
            .cost("CUDA finds no GPU, or fewer than are named")
    } else {
        Finding::fine(set)
    };
    let finding = match left_out(m, gpus, &distinct) {
        Left::These(gpus) => {
            let named: Vec<String> = gpus.iter().map(|gpu| label(m, *gpu)).collect();
            // No fault by itself; one where CUDA refuses the others.
            let finding = match finding.severity {
                Severity::Fine => Finding::note(finding.found)
                    .expected("the GPUs that work among those that it names")
                    .cost("CUDA sees the others alone"),
                _ => finding,
            };
            gpus.iter().fold(finding, |f, gpu| f.lacks_of_gpu(Need::Gpu, *gpu)).of(named.join(", "))
        }
        Left::Some if finding.severity == Severity::Fine => {
            let found = format!("{}: whether it leaves out the GPUs that work", finding.found);
            return vec![
                Finding::unseen(found, "set CUDA_DEVICE_ORDER=PCI_BUS_ID, and name GPUs by index")
                    .hides(&[Need::Gpu]),
            ];
        }
        Left::Unknown if finding.severity == Severity::Fine => Finding::note(finding.found)
            .expected("indices, to be seen here")
            .cost("CUDA may see some of the GPUs alone: names do not show here of which they are"),
        Left::Some | Left::Unknown | Left::None => finding,
    };
    vec![if finding.severity > Severity::Fine { unset(m, finding, name) } else { finding }]
}

/// What a list of GPUs leaves out.
enum Left {
    /// None, or some of GPUs that can all be used.
    None,
    /// The same by names: it is not known which.
    Unknown,
    /// These GPUs.
    These(Vec<Address>),
    /// Some, it is not known which, of GPUs some of which are refused.
    Some,
}

/// Those of `gpus` that `shown` does not name. CUDA counts the fastest ones first, unless `CUDA_DEVICE_ORDER` has them
/// in PCI's order: as they are where all are of one model.
fn left_out(m: &Machine, gpus: Vec<(Address, String)>, shown: &BTreeSet<&str>) -> Left {
    // Instances of MIG may be of one GPU, however many they are.
    let has_parts = shown.iter().any(|entry| entry.starts_with("MIG-"));
    if gpus.len() < 2 || !has_parts && shown.len() >= gpus.len() {
        return Left::None;
    }
    let is_ordered = m.var("CUDA_DEVICE_ORDER") == Some("PCI_BUS_ID")
        || gpus.iter().all(|(_, model)| *model == gpus[0].1);
    let numbers: Option<BTreeSet<usize>> = shown.iter().map(|entry| entry.parse().ok()).collect();
    let is_there = |(gpu, _): &(Address, String)| !m.is_gone(*gpu);
    if let Some(numbers) = numbers.filter(|_| is_ordered && gpus.iter().all(is_there)) {
        let others = gpus.iter().enumerate().filter(|(nth, _)| !numbers.contains(nth));
        return Left::These(others.map(|(_, (gpu, _))| *gpu).collect());
    }
    let gpus: Vec<Address> = gpus.into_iter().map(|(gpu, _)| gpu).collect();
    let are_alike = least::generation(m, &gpus).is_empty();
    match (are_alike, shown.iter().all(|entry| entry.parse::<usize>().is_ok())) {
        (true, true) => Left::None,
        (true, false) => Left::Unknown,
        (false, _) => Left::Some,
    }
}

/// The variables that the checks look at, those of traffic classes (`class.rs`) among them.
const LOOKED_AT: [&str; 23] = [
    "NCCL_DMABUF_ENABLE",
    "NCCL_IB_DISABLE",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA",
    "NCCL_IB_TC",
    "NCCL_NET",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_SOCKET_IFNAME",
    "NVSHMEM_ENABLE_NIC_PE_MAPPING",
    "NVSHMEM_HCA_LIST",
    "NVSHMEM_HCA_PE_MAPPING",
    "NVSHMEM_HCA_PREFIX",
    "NVSHMEM_IBGDA_NIC_HANDLER",
    "NVSHMEM_IB_DISABLE_DMABUF",
    "NVSHMEM_IB_ENABLE_IBGDA",
    "NVSHMEM_IB_GID_INDEX",
    "NVSHMEM_IB_TRAFFIC_CLASS",
    "NVSHMEM_REMOTE_TRANSPORT",
    "UCX_IB_GID_INDEX",
    "UCX_IB_GPU_DIRECT_RDMA",
    "UCX_IB_TRAFFIC_CLASS",
    "UCX_NET_DEVICES",
    "UCX_TLS",
];

/// The findings, or that what is set and looked at is in order.
fn said(mut all: Vec<Finding>, m: &Machine, start: &str) -> Vec<Finding> {
    let set = m.env.keys().filter(|name| name.starts_with(start));
    let (seen, others): (Vec<_>, Vec<_>) = set.partition(|name| LOOKED_AT.contains(&name.as_str()));
    if seen.is_empty() && others.is_empty() {
        return all;
    }
    let (count, is_whole) = (seen.len() + others.len(), others.is_empty());
    let others = others.into_iter().map(|name| short(name)).collect::<Vec<_>>().join(", ");
    if !all.is_empty() {
        if !is_whole {
            all.push(Finding::note(format!("not looked at: {others}")));
        }
        return all;
    }
    vec![match (seen.len(), is_whole) {
        (_, true) => {
            Finding::fine(format!("{count} of {start}* are set, and none contradicts the machine"))
        }
        (0, false) => Finding::note(format!("none of {start}* that is set is looked at: {others}")),
        (n, false) => Finding::fine(format!(
            "{n} of {count} {start}* that are set are looked at, and none contradicts the machine; \
             not looked at: {others}"
        )),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A variable that a check names is one that is said to be looked at, and no other is.
    #[test]
    fn what_is_looked_at_is_what_the_checks_name() {
        let sources = [
            include_str!("nccl.rs"),
            include_str!("nvshmem.rs"),
            include_str!("ucx.rs"),
            include_str!("../class.rs"),
        ];
        let is_name = |word: &str| {
            word.split_once('_').is_some_and(|(start, rest)| {
                ["NCCL", "NVSHMEM", "UCX"].contains(&start) && !rest.is_empty()
            }) && word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
        };
        let mut named: Vec<&str> =
            sources.iter().flat_map(|text| text.split('"')).filter(|word| is_name(word)).collect();
        named.sort_unstable();
        named.dedup();
        assert_eq!(named, LOOKED_AT);
    }
}
