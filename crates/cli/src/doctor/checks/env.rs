//! Variables of the environment that contradict the machine.

use std::collections::BTreeSet;

use bellpush::pcie::topology::Class;

use super::gpu::{DmaBuf, dmabuf, lacks_peermem};
use super::place::far;
use crate::doctor::finding::{Finding, Need};
use crate::doctor::machine::rdma::{Port, RdmaDevice};
use crate::doctor::machine::{Machine, Mapping};
use crate::doctor::read::short;

/// A number as NCCL reads it (strtoll of base 0, its prefix): words have none. NCCL takes them for
/// 0, or since 2.30 for its default.
fn number(value: &str) -> Option<i64> {
    let text = value.trim_start();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(rest) => (16, rest),
        None if digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    Some(sign * i64::from_str_radix(&digits[..end], radix).ok()?)
}

/// Whether a variable of NVSHMEM is on: all but what begins with 0, n or f, by its
/// nvshmemi_getenv_bool().
fn is_on(value: Option<&str>) -> bool {
    value.is_some_and(|v| !v.starts_with(['0', 'n', 'N', 'f', 'F']))
}

/// Values of UCX that turn something off.
fn is_off(value: Option<&str>) -> bool {
    value.is_some_and(|v| {
        matches!(v.to_ascii_lowercase().as_str(), "0" | "n" | "no" | "false" | "off" | "f")
    })
}

fn set(name: &str, value: &str) -> String {
    short(&format!("{name}={value}"))
}

/// A script cannot change its caller's environment.
const JOB: &str = "in the environment of the job";

fn unset(finding: Finding, name: &str) -> Finding {
    finding
        .fix(format!("unset {name}, or name what is there"))
        .script(format!("# {JOB}: unset {name}"))
}

/// Device and port of an entry `name` or `name:2`.
fn parts(entry: &str) -> (&str, Option<&str>) {
    let mut words = entry.split(':');
    (words.next().unwrap_or(entry), words.next())
}

/// Whether an entry names a device. `prefix`: a start of its name does.
fn names(entry: &str, device: &RdmaDevice, prefix: bool) -> bool {
    let (name, port) = parts(entry);
    let named = if prefix { device.name.starts_with(name) } else { device.name == name };
    named && port.is_none_or(|p| device.ports.iter().any(|own| own.number.to_string() == p))
}

/// Whether there is a device `name`, or a port `name:2` of it.
fn is_there(m: &Machine, entry: &str, prefix: bool) -> bool {
    m.rdma.iter().any(|d| names(entry, d, prefix))
}

/// Whether an entry names ports, and none of them is active as far as all are seen.
fn is_down(m: &Machine, entry: &str, prefix: bool) -> bool {
    let (_, port) = parts(entry);
    let devices = m.rdma.iter().filter(|d| names(entry, d, prefix));
    let mut ports = devices
        .flat_map(|d| &d.ports)
        .filter(|p| port.is_none_or(|n| p.number.to_string() == n))
        .peekable();
    ports.peek().is_some() && ports.all(|p| p.state.known().is_some_and(|s| s != "ACTIVE"))
}

/// Entries of a list that name ports which are down.
fn down(m: &Machine, name: &str, value: &str, prefix: bool) -> Option<Finding> {
    let entries = value.strip_prefix('=').unwrap_or(value);
    let down = lost(entries, |entry| !is_down(m, entry, prefix));
    if down.is_empty() {
        return None;
    }
    let found = format!("{}: no active port at {}", set(name, value), short(&down.join(", ")));
    let finding = Finding::warn(found)
        .expected("ports in state ACTIVE")
        .cost("they send nothing; with no other port named there is no RDMA");
    Some(unset(finding, name))
}

/// Entries of a list that name nothing.
fn lost(list: &str, there: impl Fn(&str) -> bool) -> Vec<&str> {
    let entries = list.split(',').map(str::trim).filter(|e| !e.is_empty());
    entries.filter(|e| !there(e)).collect()
}

fn devices(m: &Machine) -> String {
    let names: Vec<String> = m.rdma.iter().map(|d| d.name.clone()).collect();
    if names.is_empty() { "no RDMA device".into() } else { short(&names.join(", ")) }
}

/// A list of devices of which some are not there.
fn list(m: &Machine, name: &str, value: &str, missing: &[&str], cost: &str) -> Finding {
    let found = format!("{}: no {}", set(name, value), short(&missing.join(", ")));
    unset(Finding::warn(found).expected(devices(m)).cost(cost), name)
}

/// Whether a list of devices, with its `^` and `=`, chooses a port.
fn chooses(list: Option<&str>, device: &RdmaDevice, port: &Port, prefix: bool) -> bool {
    let Some(list) = list.filter(|list| *list != "all") else { return true };
    let (excludes, list) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
    let (prefix, list) = list.strip_prefix('=').map_or((prefix, list), |rest| (false, rest));
    let named = list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let is_port = |n: &str| port.number.to_string() == n;
        names(entry, device, prefix) && parts(entry).1.is_none_or(is_port)
    });
    named != excludes
}

/// An index of a GID that is not one of RoCE v2 with an address, at ports that `list` chooses.
fn gid_index(m: &Machine, name: &str, list: (&str, bool), all: &mut Vec<Finding>) {
    let Some(index) = m.var(name).and_then(|v| v.parse::<usize>().ok()) else { return };
    let all_ports = m.mlx5().flat_map(|d| d.ports.iter().map(move |p| (d, p)));
    let mut ports: Vec<_> = all_ports.filter(|(_, p)| p.is_active() && p.is_ethernet()).collect();
    let is_chosen = |(d, p): &(&RdmaDevice, &Port)| chooses(m.var(list.0), d, p, list.1);
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
        let found = format!("{name}={index} at {}:{} is {what}", short(&device.name), port.number);
        all.push(unset(
            Finding::warn(found)
                .expected(expected)
                .cost("connections time out, or stay in one subnet"),
            name,
        ));
    }
}

pub fn nccl(m: &Machine) -> Vec<Finding> {
    let mut all = Vec::new();
    let disable = m.var("NCCL_IB_DISABLE");
    if let Some(value) = disable.filter(|v| number(v).is_some_and(|n| n != 0))
        && m.mlx5().next().is_some()
    {
        let found = format!("{}, and there are {}", set("NCCL_IB_DISABLE", value), devices(m));
        all.push(unset(
            Finding::warn(found)
                .expected("NCCL on the RDMA devices")
                .cost("NCCL uses TCP sockets: a tenth of the rate, through host memory"),
            "NCCL_IB_DISABLE",
        ));
    }
    if let Some(net) =
        m.var("NCCL_NET").filter(|n| n.eq_ignore_ascii_case("socket") && m.mlx5().next().is_some())
    {
        all.push(unset(
            Finding::warn(set("NCCL_NET", net)).expected("IB").cost("NCCL uses TCP sockets"),
            "NCCL_NET",
        ));
    }
    if let Some(value) = m.var("NCCL_IB_HCA").filter(|v| !v.starts_with('^')) {
        let exact = value.strip_prefix('=');
        let names = exact.unwrap_or(value);
        let missing = lost(names, |e| is_there(m, e, exact.is_none()));
        if !missing.is_empty() {
            all.push(list(
                m,
                "NCCL_IB_HCA",
                value,
                &missing,
                "NCCL does not use the devices that are meant, and takes sockets if none is left",
            ));
        }
    }
    all.extend(hca(m));
    if let Some(value) = m.var("NCCL_SOCKET_IFNAME").filter(|v| !v.starts_with('^')) {
        let exact = value.strip_prefix('=');
        let names = exact.unwrap_or(value);
        let is_netdev = |e: &str| {
            m.netdevs
                .iter()
                .any(|n| if exact.is_some() { n.name == e } else { n.name.starts_with(e) })
        };
        let missing = lost(names, is_netdev);
        if !m.netdevs.is_empty() && missing.len() == lost(names, |_| false).len() {
            let found = format!("{}: no such interface", set("NCCL_SOCKET_IFNAME", value));
            all.push(unset(
                Finding::warn(found)
                    .expected("an interface of this machine")
                    .cost("NCCL's bootstrap finds no interface"),
                "NCCL_SOCKET_IFNAME",
            ));
        }
    }
    gdr_level(m, &mut all);
    if m.var("NCCL_DMABUF_ENABLE").and_then(number) == Some(0)
        && lacks_peermem(m)
        && m.mlx5().next().is_some()
        && m.nvidia.version.known().is_some()
    {
        let finding = Finding::warn("NCCL_DMABUF_ENABLE=0, and nvidia_peermem is not loaded")
            .expected("dma-buf, or nvidia_peermem")
            .cost("NCCL goes through host memory");
        all.push(unset(finding, "NCCL_DMABUF_ENABLE"));
    }
    gid_index(m, "NCCL_IB_GID_INDEX", ("NCCL_IB_HCA", true), &mut all);
    said(all, m, "NCCL_")
}

/// NCCL_IB_HCA that leaves nothing, or what is down.
fn hca(m: &Machine) -> Option<Finding> {
    let value = m.var("NCCL_IB_HCA")?;
    let Some(excluded) = value.strip_prefix('^') else {
        return down(m, "NCCL_IB_HCA", value, !value.starts_with('='));
    };
    let exact = excluded.strip_prefix('=');
    let entries: Vec<&str> =
        exact.unwrap_or(excluded).split(',').map(str::trim).filter(|e| !e.is_empty()).collect();
    let is_out = |d: &RdmaDevice| entries.iter().any(|e| names(e, d, exact.is_none()));
    if m.mlx5().next().is_none() || !m.mlx5().all(is_out) {
        return None;
    }
    let found = format!("{}: excludes every device of mlx5", set("NCCL_IB_HCA", value));
    let finding = Finding::warn(found)
        .expected(format!("some of {}", devices(m)))
        .cost("NCCL uses TCP sockets");
    Some(unset(finding, "NCCL_IB_HCA"))
}

/// NCCL_NET_GDR_LEVEL nearer than a GPU's NIC.
fn gdr_level(m: &Machine, all: &mut Vec<Finding>) {
    let Some(value) = m.var("NCCL_NET_GDR_LEVEL") else { return };
    let level = match value.to_ascii_uppercase().as_str() {
        "LOC" | "0" => 0,
        "PIX" | "1" => 1,
        "PXB" | "2" => 2,
        // NCCL's PHB is one NUMA node.
        "PHB" | "3" => 4,
        _ => return,
    };
    let is_beyond = |class: Class| class != Class::Unknown && far(class) > level;
    let pairs: Vec<_> =
        m.pairs().into_iter().filter(|p| p.nic.is_some() && !m.rdma.is_empty()).collect();
    let beyond = pairs.iter().filter(|p| is_beyond(p.class)).count();
    if beyond == 0 || !m.unplaced().is_empty() {
        return;
    }
    let found = format!(
        "{}: nearer than the NIC of {beyond} of {} GPUs",
        set("NCCL_NET_GDR_LEVEL", value),
        pairs.len()
    );
    let seen = pairs.iter().map(|p| p.class).filter(|class| *class != Class::Unknown);
    let needed = match seen.map(far).max().unwrap_or(0) {
        0..=2 => "PXB",
        3..=4 => "PHB",
        _ => "SYS",
    };
    // Unset, NCCL's own level is PXB: that would change nothing for GPUs on other root ports.
    all.push(
        Finding::warn(found)
            .expected(format!("{needed}, which these pairs have"))
            .cost("NCCL copies through host memory for these GPUs")
            .fix(format!("NCCL_NET_GDR_LEVEL={needed}; without it NCCL takes PXB at most"))
            .script(format!("# {JOB}: export NCCL_NET_GDR_LEVEL={needed}")),
    );
}

/// Devices without a port, which UCX takes since its pull request 11142 (2026).
fn portless(m: &Machine) -> Option<Finding> {
    let value = m.var("UCX_NET_DEVICES").filter(|v| !v.starts_with('^'))?;
    let is_portless = |e: &&str| m.rdma.iter().any(|d| d.name == *e);
    let entries: Vec<&str> = value.split(',').map(str::trim).filter(is_portless).collect();
    let first = entries.first()?;
    let found = format!("{}: no port at {}", set("UCX_NET_DEVICES", value), entries.join(", "));
    let finding = Finding::warn(short(&found))
        .expected(format!("{}:1 and so on", short(first)))
        .cost("UCX before 1.21 warns and leaves them out; with none left it has no network")
        .source("openucx/ucx#11142");
    Some(
        finding
            .fix(format!("UCX_NET_DEVICES={}:1", short(first)))
            .script(format!("# {JOB}: name ports in UCX_NET_DEVICES, such as {}:1", short(first))),
    )
}

/// Transports of UCX that use verbs, and those that know GPU memory.
const IB: [&str; 4] = ["ib", "rc", "dc", "ud"];

pub fn ucx(m: &Machine) -> Vec<Finding> {
    let mut all = Vec::new();
    if let Some(value) = m.var("UCX_NET_DEVICES").filter(|v| !v.starts_with('^') && *v != "all") {
        let is_netdev = |e: &str| m.netdev(e).is_some();
        let is_pattern = |e: &str| e.contains(['*', '?', '[']);
        let missing = lost(value, |e| is_pattern(e) || is_there(m, e, false) || is_netdev(e));
        if !missing.is_empty() {
            all.push(list(
                m,
                "UCX_NET_DEVICES",
                value,
                &missing,
                "UCX warns and leaves them out; with none left it has no network",
            ));
        }
    }
    all.extend(m.var("UCX_NET_DEVICES").and_then(|v| down(m, "UCX_NET_DEVICES", v, false)));
    all.extend(portless(m));
    if let Some(value) = m.var("UCX_TLS").filter(|v| !v.starts_with('^')) {
        let has = |starts: &[&str]| {
            value.split(',').map(str::trim).any(|t| {
                let base = t.trim_start_matches('\\').split('_').next().unwrap_or_default();
                t == "all"
                    || starts
                        .iter()
                        .any(|s| base == *s || base == format!("{s}x") || base == format!("{s}v"))
            })
        };
        let verbs = m.mlx5().next().is_some();
        if verbs && !has(&IB) {
            let found =
                format!("{}: no rc, dc or ud, and there are {}", set("UCX_TLS", value), devices(m));
            all.push(unset(
                Finding::warn(found)
                    .expected("rc among them")
                    .cost("UCX uses TCP or nothing between hosts"),
                "UCX_TLS",
            ));
        } else if verbs && m.nvidia.version.known().is_some() && !has(&["cuda", "gdr"]) {
            let found = format!("{}: no cuda", set("UCX_TLS", value));
            all.push(unset(
                Finding::warn(found)
                    .expected("cuda among them")
                    .cost("UCX takes GPU memory for host memory, and crashes"),
                "UCX_TLS",
            ));
        }
    }
    if is_off(m.var("UCX_IB_GPU_DIRECT_RDMA")) && m.mlx5().next().is_some() && !m.gpus().is_empty()
    {
        let finding = Finding::warn("UCX_IB_GPU_DIRECT_RDMA=n")
            .expected("try")
            .cost("UCX goes through host memory");
        all.push(unset(finding, "UCX_IB_GPU_DIRECT_RDMA"));
    }
    gid_index(m, "UCX_IB_GID_INDEX", ("UCX_NET_DEVICES", false), &mut all);
    said(all, m, "UCX_")
}

pub fn nvshmem(m: &Machine) -> Vec<Finding> {
    let mut all = Vec::new();
    if is_on(m.var("NVSHMEM_IB_ENABLE_IBGDA")) {
        let by_cpu =
            m.var("NVSHMEM_IBGDA_NIC_HANDLER").is_some_and(|v| v.eq_ignore_ascii_case("cpu"));
        let name = "NVSHMEM_IB_ENABLE_IBGDA";
        let ibgda = |found: &str| Finding::warn(format!("{name}=1, {found}"));
        if m.mlx5().next().is_none() {
            all.push(unset(
                ibgda("and there is no device of mlx5")
                    .expected("an mlx5 device")
                    .cost("NVSHMEM's initialisation fails"),
                name,
            ));
        } else if !by_cpu && m.mapping() == Some(Mapping::None) && !m.system.is_admin() {
            all.push(
                ibgda("without PeerMappingOverride=1")
                    .expected("the option, or NVSHMEM_IBGDA_NIC_HANDLER=cpu")
                    .cost(
                        "doorbells by the GPU are refused; NVSHMEM 3.4.5 and later let a CPU \
                     thread ring them",
                    )
                    .fix("set the option (check peer-mapping), or NVSHMEM_IBGDA_NIC_HANDLER=cpu")
                    .script(format!("# {JOB}: export NVSHMEM_IBGDA_NIC_HANDLER=cpu")),
            );
        }
    }
    for name in ["NVSHMEM_HCA_LIST", "NVSHMEM_HCA_PE_MAPPING"] {
        let Some(value) = m.var(name).filter(|v| !v.starts_with('^')) else { continue };
        let missing = lost(value, |e| is_there(m, e, name == "NVSHMEM_HCA_LIST"));
        if !missing.is_empty() {
            all.push(list(m, name, value, &missing, "NVSHMEM finds no device for these PEs"));
        }
        all.extend(down(m, name, value, name == "NVSHMEM_HCA_LIST"));
    }
    if m.var("NVSHMEM_REMOTE_TRANSPORT").is_some_and(|v| v.eq_ignore_ascii_case("none"))
        && m.mlx5().next().is_some()
    {
        let found = format!("NVSHMEM_REMOTE_TRANSPORT=none, and there are {}", devices(m));
        let finding = Finding::warn(found)
            .expected("ibrc (the default), or ibdevx")
            .cost("NVSHMEM reaches no PE of another host but by IBGDA");
        all.push(unset(finding, "NVSHMEM_REMOTE_TRANSPORT"));
    }
    if let (Some(list), Some(_)) = (m.var("NVSHMEM_HCA_LIST"), m.var("NVSHMEM_HCA_PE_MAPPING")) {
        let found = format!("{} and NVSHMEM_HCA_PE_MAPPING", set("NVSHMEM_HCA_LIST", list));
        let finding = Finding::warn(found)
            .expected("one of the two")
            .cost("NVSHMEM takes one of them and ignores the other");
        all.push(unset(finding, "NVSHMEM_HCA_LIST"));
    }
    if is_on(m.var("NVSHMEM_IB_DISABLE_DMABUF"))
        && lacks_peermem(m)
        && matches!(dmabuf(m), DmaBuf::Works)
    {
        let finding =
            Finding::warn("NVSHMEM_IB_DISABLE_DMABUF=1, and nvidia_peermem is not loaded")
                .expected("dma-buf, or nvidia_peermem")
                .cost("the symmetric heap cannot be registered");
        all.push(unset(finding, "NVSHMEM_IB_DISABLE_DMABUF"));
    }
    gid_index(m, "NVSHMEM_IB_GID_INDEX", ("NVSHMEM_HCA_LIST", true), &mut all);
    said(all, m, "NVSHMEM_")
}

pub fn cuda(m: &Machine) -> Vec<Finding> {
    let name = "CUDA_VISIBLE_DEVICES";
    let count = m.nvidia.gpus.len();
    let Some(value) = m.env.get(name).filter(|_| count > 0) else { return Vec::new() };
    let entries: Vec<&str> = value.split(',').map(str::trim).collect();
    // An index below the count, or the start of a UUID.
    let is_one = |entry: &str| match entry.parse::<i64>() {
        Ok(n) => (0..count as i64).contains(&n),
        Err(_) => ["GPU-", "MIG-"].iter().any(|start| entry.starts_with(start)),
    };
    // CUDA shows the devices before the first wrong one.
    if !entries.first().is_some_and(|first| is_one(first)) {
        return vec![unset(
            Finding::prevents(&[Need::Gpu], format!("{} hides every GPU", set(name, value)))
                .expected(format!("indices below {count}, or UUIDs"))
                .cost("CUDA finds no GPU"),
            name,
        )];
    }
    if !entries.iter().all(|entry| is_one(entry)) {
        return vec![unset(
            Finding::warn(format!("{} names a GPU that is not there", set(name, value)))
                .expected(format!("indices below {count}"))
                .cost("CUDA leaves out the GPUs from there on"),
            name,
        )];
    }
    let distinct: BTreeSet<&&str> = entries.iter().collect();
    if distinct.len() < entries.len() {
        return vec![unset(
            Finding::warn(format!("{} names a GPU twice", set(name, value)))
                .expected("each GPU once")
                .cost("CUDA finds no GPU, or fewer than are named"),
            name,
        )];
    }
    vec![Finding::fine(set(name, value))]
}

/// The findings, or that what is set is in order.
fn said(all: Vec<Finding>, m: &Machine, start: &str) -> Vec<Finding> {
    let count = m.env.keys().filter(|k| k.starts_with(start)).count();
    if all.is_empty() && count > 0 {
        return vec![Finding::fine(format!(
            "{count} of {start}* are set, and none contradicts the machine"
        ))];
    }
    all
}
