//! `NVSHMEM_*`.

use super::super::gpu::{DmaBuf, dmabuf, lacks_peermem};
use super::{JOB, Library, List, devices, gid_index, said, set, unset};
use crate::doctor::finding::Finding;
use crate::doctor::machine::{Machine, Mapping};
use crate::doctor::read::short;

/// Whether a variable is on: set, and beginning with none of 0, n and f (nvshmemi_getenv_bool()).
fn is_on(m: &Machine, name: &str) -> bool {
    m.env.get(name).is_some_and(|v| !v.starts_with(['0', 'n', 'N', 'f', 'F']))
}

const IBGDA: &str = "NVSHMEM_IB_ENABLE_IBGDA";

/// IBGDA, and what it needs.
fn ibgda(m: &Machine) -> Option<Finding> {
    let warned = |found: &str| Finding::warn(format!("{IBGDA}=1, {found}"));
    let none = "IBGDA does not start: no PE of another host is reached by it";
    if m.mlx5().next().is_none() {
        let finding = warned("and there is no device of mlx5").expected("an mlx5 device");
        return Some(unset(m, finding.cost(none), IBGDA));
    }
    let prefix = m.env.get("NVSHMEM_HCA_PREFIX").map_or("mlx5", String::as_str);
    if !m.mlx5().any(|device| device.name.contains(prefix)) {
        let found = format!("and no name of {} has {prefix:?} in it", devices(m));
        let finding = warned(&short(&found))
            .expected("NVSHMEM_HCA_PREFIX, which the names of the devices have in them")
            .cost("IBGDA leaves out these devices")
            .fix("set NVSHMEM_HCA_PREFIX to the start of their names");
        return Some(finding.script(format!("# {JOB}: NVSHMEM_HCA_PREFIX, as the names begin")));
    }
    let name = "NVSHMEM_IBGDA_NIC_HANDLER";
    let set_to = m.env.get(name).map_or("auto", String::as_str);
    let handler: String = set_to.split_whitespace().collect::<String>().to_ascii_lowercase();
    let no_gdrdrv = m.system.lacks_module("gdrdrv");
    let by_cpu = if no_gdrdrv { "cpu_host_memory" } else { "cpu" };
    match handler.as_str() {
        "cpu" if no_gdrdrv => {
            let finding = warned(&format!("{}, and gdrdrv is not loaded", set(m, name, set_to)))
                .expected("gdrcopy, or cpu_host_memory")
                .cost(none)
                .fix("load gdrdrv, or NVSHMEM_IBGDA_NIC_HANDLER=cpu_host_memory");
            Some(finding.script(format!("# {JOB}: export {name}=cpu_host_memory")))
        }
        "cpu" | "cpu_host_memory" => None,
        "gpu" | "auto" if m.mapping() == Some(Mapping::None) && !m.system.is_admin() => {
            let cost = match handler.as_str() {
                "gpu" => none,
                _ => {
                    "doorbells by the GPU are refused; NVSHMEM 3.4.5 and later let a CPU thread \
                     ring them, earlier ones do not start"
                }
            };
            let finding = warned("without PeerMappingOverride=1")
                .expected(format!("the option, or {name}={by_cpu}"))
                .cost(cost)
                .fix(format!("set the option (check peer-mapping), or {name}={by_cpu}"));
            Some(finding.script(format!("# {JOB}: export {name}={by_cpu}")))
        }
        "gpu" | "auto" => None,
        _ => {
            let finding = warned(&format!("{}: no handler of NVSHMEM", set(m, name, set_to)))
                .expected("auto, gpu, cpu or cpu_host_memory");
            Some(unset(m, finding.cost(none), name))
        }
    }
}

/// Lists of devices.
fn lists(m: &Machine, list: &List<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    let missing = list.lost(|entry| list.is_there(m, entry));
    if !missing.is_empty() {
        let cost = match list.excludes {
            true => "NVSHMEM uses the devices that are meant to be left out",
            false => "NVSHMEM finds no device for these PEs",
        };
        all.push(list.missing(m, &missing, cost));
    }
    all.extend(list.down(m));
    all.extend(list.nothing_left(m, "NVSHMEM finds no device, and reaches no other host"));
    all
}

pub fn nvshmem(m: &Machine) -> Vec<Finding> {
    let mut all = Vec::new();
    if is_on(m, IBGDA) {
        all.extend(ibgda(m));
    }
    let [chosen, mapped] = ["NVSHMEM_HCA_LIST", "NVSHMEM_HCA_PE_MAPPING"]
        .map(|name| List::of(m, Library::Nvshmem, name));
    all.extend([&chosen, &mapped].into_iter().flatten().flat_map(|list| lists(m, list)));
    let transport = m.var("NVSHMEM_REMOTE_TRANSPORT");
    // With IBGDA nothing else is needed.
    if transport.is_some_and(|v| v.eq_ignore_ascii_case("none"))
        && m.mlx5().next().is_some()
        && !is_on(m, IBGDA)
    {
        let found = format!("NVSHMEM_REMOTE_TRANSPORT=none, and there are {}", devices(m));
        let finding = Finding::warn(found)
            .expected("ibrc (the default), ibdevx, or IBGDA")
            .cost("NVSHMEM reaches no PE of another host");
        all.push(unset(m, finding, "NVSHMEM_REMOTE_TRANSPORT"));
    }
    if let Some(mapped) = &mapped {
        let enable = "NVSHMEM_ENABLE_NIC_PE_MAPPING";
        if let Some(chosen) = &chosen {
            let finding = Finding::warn(format!("{} and {}", mapped.set(m), chosen.set(m)))
                .expected("one of the two")
                .cost("NVSHMEM ignores the mapping of PEs");
            all.push(unset(m, finding, mapped.name));
        } else if !is_on(m, enable) {
            let finding = Finding::warn(format!("{} without {enable}=1", mapped.set(m)))
                .expected(format!("{enable}=1"))
                .cost("every PE takes its nearest NIC, whatever is mapped")
                .fix(format!("{enable}=1"));
            all.push(finding.script(format!("# {JOB}: export {enable}=1")));
        }
    }
    let disable = "NVSHMEM_IB_DISABLE_DMABUF";
    if is_on(m, disable) && lacks_peermem(m) && matches!(dmabuf(m), DmaBuf::Works) {
        let finding = Finding::warn(format!("{disable}=1, and nvidia_peermem is not loaded"))
            .expected("dma-buf, or nvidia_peermem")
            .cost("the symmetric heap cannot be registered");
        all.push(unset(m, finding, disable));
    }
    let index = m.var("NVSHMEM_IB_GID_INDEX").and_then(|value| value.parse().ok());
    gid_index(m, "NVSHMEM_IB_GID_INDEX", index, chosen.as_ref(), &mut all);
    said(all, m, "NVSHMEM_")
}
