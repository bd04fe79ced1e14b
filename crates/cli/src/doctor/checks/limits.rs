//! Limits of the process.

use crate::doctor::finding::{Finding, Need};
use crate::doctor::machine::Machine;
use crate::doctor::machine::system::{Group, Limit};
use crate::doctor::read::{Seen, short};

/// What one queue pair's queues need to be pinned.
const QUEUES: u64 = 1 << 20;
/// /dev/shm that NCCL and jobs of several processes need at least.
const SHM: u64 = 1 << 30;

/// Bytes for a reader.
fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{:.1} GiB", b as f64 / (1u64 << 30) as f64),
        b if b >= 1 << 20 => format!("{:.0} MiB", b as f64 / (1u64 << 20) as f64),
        b => format!("{:.0} KiB", b as f64 / 1024.0),
    }
}

pub fn locked(m: &Machine) -> Vec<Finding> {
    let limit = match &m.system.locked {
        Seen::Known(limit) => *limit,
        other => {
            return vec![Finding::unseen(
                format!("limit of locked memory: {}", short(other.why_not())),
                "ulimit -l",
            )];
        }
    };
    let Some(bytes) = limit else { return vec![Finding::fine("unlimited")] };
    let found = size(bytes);
    if m.system.may_lock() {
        return vec![Finding::fine(format!("{found}, and CAP_IPC_LOCK, which lifts it"))];
    }
    if m.rdma.is_empty() {
        return vec![Finding::note(format!("{found}; a card's queues and regions are pinned"))];
    }
    let finding = match bytes < QUEUES {
        true => Finding::prevents(&[Need::Nic], found)
            .cost("ibv_create_cq and ibv_reg_mr fail with ENOMEM"),
        false => Finding::warn(found)
            .cost("registrations beyond it fail with ENOMEM: queues, windows and regions together"),
    };
    let finding = finding.expected("unlimited");
    vec![match m.container() {
        Some(_) => {
            finding.fix("start the container with --ulimit memlock=-1 --cap-add=IPC_LOCK").script(
                "# start the container again: docker run --ulimit memlock=-1 \
             --cap-add=IPC_LOCK",
            )
        }
        None => finding
            .fix(
                "raise it in limits.conf and log in again; LimitMEMLOCK=infinity for a service \
             (slurmd, sshd)",
            )
            .script(
                "printf '* soft memlock unlimited\\n* hard memlock unlimited\\n' > \
             /etc/security/limits.d/90-bellpush.conf",
            ),
    }]
}

pub fn hugepages(m: &Machine) -> Vec<Finding> {
    let thp = m
        .system
        .transparent
        .known()
        .map_or_else(String::new, |t| format!("; transparent ones: {}", short(t)));
    match m.system.hugepages {
        Seen::Known((0, _)) => vec![
            Finding::note(format!("none are reserved{thp}"))
                .cost(
                    "nothing for bellpush; perftest's --use_hugepages and UCX's huge \
                 allocations fail",
                )
                .fix("sysctl vm.nr_hugepages, if a program wants them"),
        ],
        Seen::Known((total, free)) => vec![Finding::fine(format!("{free} of {total} free{thp}"))],
        _ => Vec::new(),
    }
}

pub fn cgroup(m: &Machine) -> Vec<Finding> {
    let c = &m.system.cgroup;
    if let Seen::Unreadable(why) = &c.path {
        return vec![Finding::unseen(short(why), "look at /sys/fs/cgroup/memory")];
    }
    if c.path == Seen::Absent {
        return Vec::new();
    }
    let mut all = memory(&c.groups);
    all.extend(processes(&c.groups));
    let of = |limits: &str, key: &str| -> Option<Limit> {
        let value =
            limits.split_whitespace().find_map(|w| w.strip_prefix(key)?.strip_prefix('='))?;
        if value == "max" { Some(None) } else { value.parse().ok().map(Some) }
    };
    let mut closed = Vec::new();
    for device in m.mlx5() {
        let lines: Vec<&String> =
            c.groups.iter().filter_map(|g| g.rdma.get(&device.name)).collect();
        let of = |line: &&&String| [of(line, "hca_handle"), of(line, "hca_object")];
        if lines.iter().any(|line| of(&line).contains(&Some(Some(0)))) {
            closed.push(device.name.clone());
        } else if let Some(limits) =
            lines.iter().find(|line| of(line).iter().any(|l| matches!(l, Some(Some(_)))))
        {
            let finding = Finding::note(format!("rdma.max: {}", short(limits)));
            all.push(finding.of(short(&device.name)));
        }
    }
    if !closed.is_empty() {
        let found =
            format!("rdma.max allows no handles or objects of {}", short(&closed.join(", ")));
        let finding = closed.iter().fold(Finding::warn(found), |f, name| f.lacks_nic(name));
        all.push(
            finding
                .of("rdma.max")
                .expected("hca_handle=max hca_object=max")
                .cost("ibv_open_device fails with EAGAIN")
                .fix("raise rdma.max of the control group"),
        );
    }
    // The root of all groups has no such files; a group below it without them shows nothing.
    let hidden = |name: &str, is_known: fn(&Group) -> bool| {
        (!c.groups.iter().any(is_known)).then(|| name.to_owned())
    };
    let hidden: Vec<String> = [
        hidden("memory.max", |g| g.memory.0.known().is_some()),
        hidden("pids.max", |g| g.pids.0.known().is_some()),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !hidden.is_empty() {
        let path = short(c.path.known().map_or("", String::as_str));
        let found = format!("limits of /{path} and of the groups above it");
        let finding = Finding::unseen(found, "look below /sys/fs/cgroup on the host");
        all.push(finding.of(hidden.join(", ")));
    } else if all.is_empty() {
        all.push(Finding::fine("no limit of memory, processes or RDMA objects is set"));
    }
    all
}

/// Limits of memory. Whatever share it has, what is left decides what can still be pinned.
fn memory(groups: &[Group]) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut least: Option<(f64, Finding)> = None;
    for group in groups {
        let Some(Some(max)) = group.memory.0.known() else { continue };
        let Some(current) = group.memory.1.known() else {
            let found = format!("memory.current, of {} at most", size(*max));
            all.push(Finding::unseen(found, "cat memory.current").of(outer(
                "memory.max",
                groups,
                group,
            )));
            continue;
        };
        let now = current.saturating_sub(group.reclaimable.unwrap_or(0));
        let text = format!("memory {} of {}", size(now), size(*max));
        if now / 9 >= max / 10 && group.reclaimable.is_none() {
            let found = format!("{text}, and how much of it is page cache");
            all.push(Finding::unseen(found, "cat memory.stat").of(outer(
                "memory.max",
                groups,
                group,
            )));
            continue;
        }
        if now / 9 >= max / 10 {
            let finding = Finding::warn(text)
                .expected("room for regions and windows")
                .cost("pinned memory counts: registration ends in an out-of-memory kill")
                .fix("raise memory.max, or the container's --memory");
            all.push(finding.of(outer("memory.max", groups, group)));
            continue;
        }
        let share = now as f64 / *max as f64;
        if least.as_ref().is_none_or(|(most, _)| share > *most) {
            least = Some((share, Finding::fine(text).of(outer("memory.max", groups, group))));
        }
    }
    if all.is_empty() {
        all.extend(least.map(|(_, finding)| finding));
    }
    all
}

/// What is limited, and the path of a group above that of the process.
fn outer(what: &str, groups: &[Group], group: &Group) -> String {
    match groups.first() {
        Some(own) if own.path != group.path => short(&format!("{what} of /{}", group.path)),
        _ => what.to_owned(),
    }
}

/// Limits of processes; of those with room enough, the one with the least.
fn processes(groups: &[Group]) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut least: Option<(u64, Finding)> = None;
    for group in groups {
        let Some(Some(max)) = group.pids.0.known() else { continue };
        let Some(now) = group.pids.1.known() else {
            let found = format!("pids.current, of {max} at most");
            all.push(
                Finding::unseen(found, "cat pids.current").of(outer("pids.max", groups, group)),
            );
            continue;
        };
        let (room, text) =
            (max.saturating_sub(*now), format!("{now} of {max} processes and threads"));
        if room < 64 {
            let finding = Finding::warn(text)
                .expected("64 more")
                .cost("threads of the software NIC, of NCCL and of UCX cannot start")
                .fix("raise pids.max, or the container's --pids-limit");
            all.push(finding.of(outer("pids.max", groups, group)));
        } else if least.as_ref().is_none_or(|(least, _)| room < *least) {
            least = Some((room, Finding::fine(text).of(outer("pids.max", groups, group))));
        }
    }
    if all.is_empty() {
        all.extend(least.map(|(_, finding)| finding));
    }
    all
}

pub fn shm(m: &Machine) -> Vec<Finding> {
    let bytes = match m.system.shm {
        Seen::Known(Some(bytes)) => bytes,
        Seen::Known(None) => return vec![Finding::fine("half of the memory")],
        Seen::Unreadable(ref why) => return vec![Finding::unseen(short(why), "df /dev/shm")],
        Seen::Absent => return Vec::new(),
    };
    if bytes >= SHM {
        return vec![Finding::fine(size(bytes))];
    }
    let found = size(bytes);
    if m.gpus().is_empty() && m.rdma.is_empty() {
        return vec![Finding::note(found).cost("jobs of several ranks put their memory there")];
    }
    let finding = Finding::warn(found).expected("1 GiB or more").cost(
        "NCCL, MPI and jobs of several ranks put their shared memory there: bus errors, \
         or \"No space left\"",
    );
    vec![match m.container() {
        Some(_) => finding
            .fix("start the container with --shm-size=1g --ulimit memlock=-1, or --ipc=host")
            .script("# start the container again: docker run --shm-size=1g"),
        None => finding.fix("remount it larger").script("mount -o remount,size=2g /dev/shm"),
    }]
}

pub fn container(m: &Machine) -> Vec<Finding> {
    let mut all = Vec::new();
    if let Some(kind) = m.container() {
        let found = format!("{}: drivers, modules and PCI settings are the host's", short(kind));
        all.push(
            Finding::note(found).cost("what is to be mended there cannot be mended from here"),
        );
    }
    if m.system.is_virtual {
        all.push(
            Finding::note("a virtual machine: its PCI tree is what the hypervisor shows")
                .cost("ACS, MPS, links and NUMA nodes may be other ones than the host's"),
        );
    }
    all
}
