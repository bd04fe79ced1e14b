//! `UCX_*`.

use super::{JOB, Library, List, devices, gid_index, said, set, unset};
use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;
use crate::doctor::read::short;

/// Values of UCX that turn something off.
fn is_off(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "0" | "n" | "no" | "false" | "off" | "f")
}

/// Names of several transports (ucp_tl_aliases), of those that are looked at here.
const ALIASES: [(&str, &[&str]); 10] = [
    ("ib", &["rc_mlx5", "dc_mlx5", "ud_mlx5", "rc_verbs", "ud_verbs"]),
    ("rc", &["rc_mlx5", "rc_verbs"]),
    ("rc_x", &["rc_mlx5"]),
    ("rc_v", &["rc_verbs"]),
    ("dc", &["dc_mlx5"]),
    ("dc_x", &["dc_mlx5"]),
    ("ud", &["ud_mlx5", "ud_verbs"]),
    ("ud_x", &["ud_mlx5"]),
    ("ud_v", &["ud_verbs"]),
    ("cuda", &["cuda_copy"]),
];

/// Whether UCX_TLS, which is no list of devices, has a transport.
fn has(value: &str, transport: &str) -> bool {
    let (excludes, list) = value.strip_prefix('^').map_or((false, value), |rest| (true, rest));
    if list.split(',').next() == Some("all") {
        return true;
    }
    let is_alias =
        |word: &str| ALIASES.iter().any(|(name, all)| *name == word && all.contains(&transport));
    let is_named = |word: &str| word.strip_prefix('\\').unwrap_or(word) == transport;
    list.split(',').any(|word| is_named(word) || is_alias(word)) != excludes
}

/// UCX_TLS without verbs, or without what knows GPU memory.
fn transports(m: &Machine) -> Option<Finding> {
    let name = "UCX_TLS";
    let value = m.env.get(name).filter(|value| !value.is_empty())?;
    m.mlx5().next()?;
    let (_, verbs) = ALIASES[0];
    if !verbs.iter().any(|transport| has(value, transport)) {
        let found =
            format!("{}: no rc, dc or ud, and there are {}", set(m, name, value), devices(m));
        let finding = Finding::warn(found)
            .expected("rc among them")
            .cost("UCX uses TCP or nothing between hosts");
        return Some(unset(m, finding, name));
    }
    if m.nvidia.version.known().is_none() || has(value, "cuda_copy") {
        return None;
    }
    let finding = Finding::warn(format!("{}: no cuda_copy", set(m, name, value)))
        .expected("cuda or cuda_copy among them")
        .cost("UCX takes GPU memory for host memory, and crashes: gdr_copy and cuda_ipc do not tell them apart")
        .source("openucx/ucx#3776");
    Some(unset(m, finding, name))
}

/// UCX_NET_DEVICES that names what is not there, what is down, or no card.
fn network(m: &Machine, list: &List<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    if list.chooses_all() {
        return all;
    }
    let there = |entry: &str| list.is_there(m, entry) || m.netdev(entry).is_some();
    let missing = list.lost(there);
    let cost = match list.excludes {
        true => "UCX uses the devices that are meant to be left out",
        false => "UCX warns and leaves them out; with none left it has no network",
    };
    if !missing.is_empty() {
        all.push(list.missing(m, &missing, cost));
    }
    all.extend(list.down(m));
    all.extend(list.nothing_left(m, "UCX uses TCP or nothing between hosts"));
    let is_card = |entry: &String| list.is_there(m, entry);
    if !list.excludes
        && missing.is_empty()
        && m.mlx5().next().is_some()
        && !list.entries.iter().any(is_card)
    {
        let finding = Finding::warn(format!("{}: no RDMA device", list.set(m)))
            .expected(format!("some of {}", devices(m)))
            .cost("UCX uses TCP between hosts");
        all.push(unset(m, finding, list.name));
    }
    all.extend(portless(m, list));
    all
}

/// Devices without a port, which UCX takes since its pull request 11142 (2026).
fn portless(m: &Machine, list: &List<'_>) -> Option<Finding> {
    let is_portless = |e: &&String| m.rdma.iter().any(|d| d.name == **e);
    let entries: Vec<&str> = list.entries.iter().filter(is_portless).map(String::as_str).collect();
    let first = entries.first()?;
    let found = format!("{}: no port at {}", list.set(m), entries.join(", "));
    let cost = match list.excludes {
        true => "UCX before 1.21 warns and does not leave them out",
        false => "UCX before 1.21 warns and leaves them out; with none left it has no network",
    };
    let finding = Finding::warn(short(&found))
        .expected(format!("{}:1 and so on", short(first)))
        .cost(cost)
        .source("openucx/ucx#11142");
    Some(
        finding
            .fix(format!("name ports in UCX_NET_DEVICES, such as {}:1", short(first)))
            .script(format!("# {JOB}: name ports in UCX_NET_DEVICES, such as {}:1", short(first))),
    )
}

pub fn ucx(m: &Machine) -> Vec<Finding> {
    let mut all = Vec::new();
    let list = List::of(m, Library::Ucx, "UCX_NET_DEVICES");
    all.extend(list.iter().flat_map(|list| network(m, list)));
    all.extend(transports(m));
    let name = "UCX_IB_GPU_DIRECT_RDMA";
    if let Some(value) = m.var(name).filter(|value| is_off(value))
        && m.mlx5().next().is_some()
        && !m.gpus().is_empty()
    {
        let finding =
            Finding::warn(set(m, name, value)).expected("try").cost("UCX goes through host memory");
        all.push(unset(m, finding, name));
    }
    let index = m.var("UCX_IB_GID_INDEX").and_then(|value| value.parse().ok());
    gid_index(m, "UCX_IB_GID_INDEX", index, list.as_ref(), &mut all);
    said(all, m, "UCX_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_those_of_ucx() {
        for (list, rc, cuda) in [
            ("all", true, true),
            ("rc", true, false),
            ("rc_x,cuda", true, true),
            ("\\rc_mlx5,cuda_copy", true, true),
            ("\\rc", false, false),
            ("ud:aux,tcp", false, false),
            ("ib,gdr_copy,cuda_ipc", true, false),
            ("rc, cuda", true, false),
            ("^ib", false, true),
            ("^cuda", true, false),
            ("^rc_v,sm", true, true),
        ] {
            assert_eq!((has(list, "rc_mlx5"), has(list, "cuda_copy")), (rc, cuda), "{list}");
        }
    }
}
