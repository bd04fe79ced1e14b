//! `NCCL_*`.

use bellpush::pcie::topology::Class;

use super::super::gpu::lacks_peermem;
use super::super::place::far;
use super::{JOB, Library, List, devices, gid_index, said, set, unset};
use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;
use crate::doctor::read::short;

/// A number as NCCL reads it (strtoll of base 0, its prefix): a word is 0, and what is too large NCCL's
/// default.
pub fn nccl_number(value: &str) -> Option<i64> {
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
    match &digits[..end] {
        "" => Some(0),
        digits => Some(sign * i64::from_str_radix(digits, radix).ok()?),
    }
}

pub fn nccl(m: &Machine) -> Vec<Finding> {
    let mut all = Vec::new();
    let disable = m.var("NCCL_IB_DISABLE");
    if let Some(value) = disable.filter(|v| nccl_number(v).is_some_and(|n| n != 0))
        && m.mlx5().next().is_some()
    {
        let found = format!("{}, and there are {}", set(m, "NCCL_IB_DISABLE", value), devices(m));
        all.push(unset(
            m,
            Finding::warn(found)
                .expected("NCCL on the RDMA devices")
                .cost("NCCL uses TCP sockets: a tenth of the rate, through host memory"),
            "NCCL_IB_DISABLE",
        ));
    }
    all.extend(net(m));
    let list = List::of(m, Library::Nccl, "NCCL_IB_HCA");
    all.extend(list.iter().flat_map(|list| hca(m, list)));
    all.extend(interface(m));
    all.extend(gdr_level(m));
    let dmabuf = m.var("NCCL_DMABUF_ENABLE");
    if let Some(value) = dmabuf.filter(|v| nccl_number(v) == Some(0))
        && lacks_peermem(m)
        && m.mlx5().next().is_some()
        && m.nvidia.version.known().is_some()
    {
        let name = "NCCL_DMABUF_ENABLE";
        let read = if value == "0" { "" } else { ", which NCCL reads as 0" };
        let found = format!("{}{read}, and nvidia_peermem is not loaded", set(m, name, value));
        let finding = Finding::warn(found)
            .expected("dma-buf, or nvidia_peermem")
            .cost("NCCL goes through host memory");
        all.push(unset(m, finding, name));
    }
    let index = m.var("NCCL_IB_GID_INDEX").and_then(nccl_number);
    gid_index(m, "NCCL_IB_GID_INDEX", index, list.as_ref(), &mut all);
    said(all, m, "NCCL_")
}

/// NCCL_NET, the network by name.
fn net(m: &Machine) -> Option<Finding> {
    let net = m.var("NCCL_NET")?;
    let found = set(m, "NCCL_NET", net);
    let finding = if net.eq_ignore_ascii_case("socket") && m.mlx5().next().is_some() {
        Finding::warn(found).expected("IB").cost("NCCL uses TCP sockets")
    } else if net.eq_ignore_ascii_case("ib") && m.rdma.is_empty() && m.rdma_hidden.is_none() {
        Finding::warn(format!("{found}, and there is no RDMA device"))
            .expected("an RDMA device, or another network")
            .cost("NCCL finds no network of this name, and does not start")
    } else {
        return None;
    };
    Some(unset(m, finding, "NCCL_NET"))
}

/// NCCL_IB_HCA that names what is not there, what is down, more than is meant, or nothing.
fn hca(m: &Machine, list: &List<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    let missing = list.lost(|entry| list.is_there(m, entry));
    if !missing.is_empty() {
        let cost = match list.excludes {
            true => "NCCL uses the devices that are meant to be left out",
            false => {
                "NCCL does not use the devices that are meant, and takes sockets if none is left"
            }
        };
        all.push(list.missing(m, &missing, cost));
    }
    all.extend(list.down(m));
    all.extend(list.nothing_left(m, "NCCL uses TCP sockets"));
    all.extend(wider(m, list));
    all
}

/// An entry that is the name of a device and the start of others: `mlx5_1` of `mlx5_10`.
fn wider(m: &Machine, list: &List<'_>) -> Option<Finding> {
    if list.exact {
        return None;
    }
    let name_of = |entry: &str| entry.split(':').next().unwrap_or_default().to_owned();
    let names: Vec<String> = list.entries.iter().map(|entry| name_of(entry)).collect();
    let is_device = |name: &String| m.rdma.iter().any(|d| d.name == *name);
    // A start that is no device's name means all of them.
    let starts: Vec<&String> = names.iter().filter(|name| !is_device(name)).collect();
    let is_meant = |device: &str| {
        names.iter().any(|name| name == device)
            || starts.iter().any(|start| device.starts_with(start.as_str()))
    };
    let is_beside = |device: &str| {
        names.iter().any(|name| is_device(name) && device.starts_with(name.as_str()))
    };
    let more = m.rdma.iter().map(|d| d.name.as_str());
    let more: Vec<&str> = more.filter(|name| is_beside(name) && !is_meant(name)).collect();
    if more.is_empty() {
        return None;
    }
    let mark = if list.excludes { "^=" } else { "=" };
    let whole = format!("{}={mark}{}", list.name, list.entries.join(","));
    let found = format!("{}: names are starts, and so {} as well", list.set(m), more.join(", "));
    let cost = match list.excludes {
        true => "NCCL leaves out devices that are not named",
        false => "NCCL uses devices that are not named, be they other GPUs' or other networks'",
    };
    Some(
        Finding::warn(short(&found))
            .expected("= before the first name, where names are whole")
            .cost(cost)
            .fix(short(&whole))
            .script(short(&format!("# {JOB}: export {whole}"))),
    )
}

/// NCCL_SOCKET_IFNAME that leaves no interface. One character is as none for NCCL.
fn interface(m: &Machine) -> Option<Finding> {
    let name = "NCCL_SOCKET_IFNAME";
    let list = List::of(m, Library::Nccl, name).filter(|list| list.value.len() > 1)?;
    let entry_of = |entry: &String| entry.split(':').next().unwrap_or_default().to_owned();
    let entries: Vec<String> = list.entries.iter().map(entry_of).collect();
    let is_named = |netdev: &str| entries.iter().any(|entry| list.names(entry, netdev));
    if m.netdevs.is_empty()
        || entries.is_empty()
        || m.netdevs.iter().any(|netdev| is_named(&netdev.name) != list.excludes)
    {
        return None;
    }
    let what = if list.excludes { "excludes every interface" } else { "no such interface" };
    let blank = match entries.iter().any(|entry| entry.trim() != entry) {
        true => ", with a blank that is a part of the name",
        false => "",
    };
    let finding = Finding::warn(format!("{}: {what}{blank}", list.set(m)))
        .expected("an interface of this machine")
        .cost("NCCL's bootstrap finds no interface");
    Some(unset(m, finding, name))
}

/// What NCCL_NET_GDR_LEVEL allows, in the order of [`far`]; `None` where NCCL does not know the value and takes
/// its default (ncclGetLevel(): names are capitals, what begins with a digit is a number of old).
fn level(value: &str) -> Option<u8> {
    match value {
        // Nearer than any NIC.
        "LOC" | "NVL" | "NVB" | "C2C" => Some(0),
        "PIX" => Some(1),
        "PXB" | "P2C" | "PXN" => Some(2),
        // NCCL's PHB is one NUMA node.
        "PHB" => Some(4),
        "SYS" => Some(u8::MAX),
        _ if value.starts_with(|c: char| c.is_ascii_digit()) => {
            let old = usize::try_from(nccl_number(value)?).ok()?;
            Some([0, 1, 2, 4].get(old).copied().unwrap_or(u8::MAX))
        }
        _ => None,
    }
}

/// NCCL_NET_GDR_LEVEL nearer than a GPU's NIC.
fn gdr_level(m: &Machine) -> Option<Finding> {
    let name = "NCCL_NET_GDR_LEVEL";
    let value = m.env.get(name).filter(|value| !value.is_empty())?;
    let Some(level) = level(value) else {
        let finding = Finding::warn(format!("{}: no level of NCCL", set(m, name, value)))
            .expected("LOC, PIX, PXB, PHB or SYS, in capitals")
            .cost("NCCL takes its default, PXB, without a word");
        return m.mlx5().next().is_some().then(|| unset(m, finding, name));
    };
    let is_beyond = |class: Class| class != Class::Unknown && far(class) > level;
    let pairs: Vec<_> =
        m.pairs().into_iter().filter(|p| p.nic.is_some() && !m.rdma.is_empty()).collect();
    let beyond = pairs.iter().filter(|p| is_beyond(p.class)).count();
    if beyond == 0 || !m.unplaced().is_empty() {
        return None;
    }
    let found =
        format!("{}: nearer than the NIC of {beyond} of {} GPUs", set(m, name, value), pairs.len());
    let seen = pairs.iter().map(|p| p.class).filter(|class| *class != Class::Unknown);
    let needed = match seen.map(far).max().unwrap_or(0) {
        0..=2 => "PXB",
        3..=4 => "PHB",
        _ => "SYS",
    };
    // Unset, NCCL's own level is PXB: that would change nothing for GPUs on other root ports.
    Some(
        Finding::warn(found)
            .expected(format!("{needed}, which these pairs have"))
            .cost("NCCL copies through host memory for these GPUs")
            .fix(format!("{name}={needed}; without it NCCL takes PXB at most"))
            .script(format!("# {JOB}: export {name}={needed}")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_levels_are_those_of_nccl() {
        for (text, value) in [
            ("1", Some(1)),
            ("0x2", Some(2)),
            ("-1", Some(-1)),
            ("010", Some(8)),
            ("08", Some(0)),
            ("3x", Some(3)),
            ("true", Some(0)),
            ("99999999999999999999", None),
        ] {
            assert_eq!(nccl_number(text), value, "{text}");
        }
        for (text, value) in [
            ("NVL", Some(0)),
            ("PIX", Some(1)),
            ("PXN", Some(2)),
            ("3", Some(4)),
            ("9", Some(u8::MAX)),
            ("NODE", None),
            ("pix", None),
        ] {
            assert_eq!(level(text), value, "{text}");
        }
    }
}
