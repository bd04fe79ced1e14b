//! The traffic class of RoCE packets, and the priority that it gets.

use super::env::nccl_number;
use super::roce::{interfaces, list, named_by, pfc, ports, trusts_dscp};
use crate::doctor::finding::{Finding, quoted};
use crate::doctor::machine::Machine;
use crate::doctor::machine::dcb::priorities;
use crate::doctor::machine::rdma::{Netdev, Port, RdmaDevice};

/// Bits of ECN below the DSCP in a traffic class, and their value `ECT(0)` (RFC 3168).
const ECN_BITS: u8 = 2;
const ECT_0: u8 = 2;

/// Variables by which programs are told a traffic class.
const VARIABLES: [&str; 3] = ["NCCL_IB_TC", "UCX_IB_TRAFFIC_CLASS", "NVSHMEM_IB_TRAFFIC_CLASS"];

/// A traffic class that is set.
struct Set {
    class: u8,
    /// What sets it.
    by: String,
    /// How another is set, before and behind its number.
    command: [String; 2],
}

/// Traffic classes that are set. The card's own replaces all others.
fn set(m: &Machine, device: &RdmaDevice, port: &Port) -> Vec<Set> {
    let (name, number) = (quoted(&device.name), port.number);
    if let Some(class) = port.traffic_class {
        let file = format!("/sys/class/infiniband/{name}/tc/{number}/traffic_class");
        let command = ["echo ".to_owned(), format!(" > {file}")];
        return vec![Set { class, by: file, command }];
    }
    // 0 is what the RDMA CM begins with.
    let cm = port.tos.filter(|tos| *tos != 0).map(|class| Set {
        class,
        by: "default_roce_tos".to_owned(),
        command: [format!("cma_roce_tos -d {name} -p {number} -t "), String::new()],
    });
    let of_variable = |name: &str| {
        let (by, command) = (name.to_owned(), [format!("export {name}="), String::new()]);
        let value = m.var(name)?;
        let class = match name.starts_with("NCCL_") {
            true => nccl_number(value)?.try_into().ok()?,
            false => value.parse().ok()?,
        };
        Some(Set { class, by, command })
    };
    cm.into_iter().chain(VARIABLES.into_iter().filter_map(of_variable)).collect()
}

pub fn class(m: &Machine) -> Vec<Finding> {
    let mut all = Vec::new();
    for (device, port) in ports(m) {
        let set = set(m, device, port);
        for netdev in interfaces(m, port) {
            let name = named_by(device, port, Some(&netdev.name));
            all.extend(of_interface(&set, netdev).into_iter().map(|f| f.of(name.clone())));
        }
    }
    all
}

/// Nothing where no priority has PFC, or packets without a VLAN have no priority: `roce-flow` tells of that.
fn of_interface(set: &[Set], netdev: &Netdev) -> Vec<Finding> {
    let Some(safe) = pfc(netdev).filter(|safe| !safe.is_empty()) else { return Vec::new() };
    if trusts_dscp(netdev) != Some(true) {
        return Vec::new();
    }
    let dcb = netdev.dcb.known();
    let unseen = |what: String| {
        let by_hand = format!("mlnx_qos -i {0}; dcb app show dev {0}", quoted(&netdev.name));
        Finding::unseen(format!("{what}: the priority of its DSCP"), by_hand)
    };
    let told = |Set { class, by, .. }: &Set| format!("traffic class {class} of {by}");
    let Some(map) = dcb.and_then(|dcb| dcb.dscp.as_ref()) else {
        return set.iter().map(|set| unseen(told(set))).collect();
    };
    // The kernel's table has the DSCPs that somebody has set; what the firmware has for the others it does not tell.
    let priority = |class: u8| map.get(&(class >> ECN_BITS)).copied();
    let described = |class: u8, priority: u8| {
        let dscp = class >> ECN_BITS;
        format!("DSCP {dscp}, priority {priority}, PFC of priorities {}", list(&safe))
    };
    // Manuals take the third of eight: DSCP 26 for priority 3.
    let fitting: Vec<u8> = map.iter().filter(|(_, p)| safe.contains(p)).map(|(d, _)| *d).collect();
    let usual = fitting.iter().find(|dscp| **dscp % 8 == 2).or(fitting.first());
    let better = usual.map(|dscp| dscp << ECN_BITS | ECT_0);
    let wanted = match better {
        Some(class) => format!("a class whose priority has PFC, such as {class}"),
        None => "a DSCP whose priority has PFC".to_owned(),
    };
    let judged = set.iter().map(|set| {
        let [before, behind] = &set.command;
        let Some(priority) = priority(set.class) else { return unseen(told(set)) };
        let found = format!("{}: {}", told(set), described(set.class, priority));
        if safe.contains(&priority) {
            return alone(netdev, found, priority);
        }
        let finding = Finding::warn(found)
            .expected(&wanted)
            .cost("a full switch drops these packets; each loss costs a go-back-N or a timeout")
            .fix("have the switches, PFC, the map of DSCPs and the class say the same priority");
        let other =
            better.map(|class| format!("# if the switches have it: {before}{class}{behind}"));
        other.into_iter().fold(finding, Finding::script)
    });
    let mut all: Vec<Finding> = judged.collect();
    if set.is_empty() {
        let Some(priority) = priority(0) else {
            all.push(unseen("no traffic class is set".to_owned()));
            return all;
        };
        let found = format!("no traffic class is set: {}", described(0, priority));
        all.push(match safe.contains(&priority) {
            true => alone(netdev, found, priority),
            false => Finding::note(found)
                .cost("what sets none itself, as bellpush, sends without PFC")
                .fix(format!("{wanted}: NCCL_IB_TC, UCX_IB_TRAFFIC_CLASS, cma_roce_tos")),
        });
    }
    all
}

/// That a priority has PFC, and whether others are in its queue of the card.
fn alone(netdev: &Netdev, found: String, priority: u8) -> Finding {
    let queues = netdev.dcb.known().and_then(|dcb| dcb.queues);
    let shared = queues.map(|queues| {
        let own = queues[usize::from(priority)];
        priorities(0xff)
            .into_iter()
            .filter(|p| *p != priority && queues[usize::from(*p)] == own)
            .collect::<Vec<u8>>()
    });
    match shared.filter(|others| !others.is_empty()) {
        None => Finding::fine(found),
        Some(others) => Finding::note(format!("{found}; in one queue with {}", list(&others)))
            .cost("a pause of the priority stops the others of its queue"),
    }
}
