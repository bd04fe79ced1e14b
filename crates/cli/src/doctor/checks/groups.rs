//! IOMMU groups: which devices a virtual machine gets together.

use std::collections::{BTreeMap, BTreeSet};

use bellpush::pcie::topology::{Address, Capture, Function, Tree};

use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;
use crate::doctor::read::short;
use crate::doctor::verdict::label;

/// What Linux wants of ports to part the devices below them (drivers/iommu/iommu.c, REQ_ACS_FLAGS): Source Validation,
/// Request and Completion Redirect, Upstream Forwarding (PCIe base specification 7.7.11.3).
const APART: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 4;

/// Base class of bridges, which a virtual machine is not given (drivers/vfio: they may keep their drivers).
const BRIDGE: u16 = 0x06;

fn is_given(function: &&Function) -> bool {
    !function.is_bridge() && function.class.is_none_or(|class| class >> 8 != BRIDGE)
}

fn named(m: &Machine, address: Address) -> String {
    match m.gpus().contains(&address) {
        true => label(m, address),
        false => m.nic_name(address),
    }
}

pub fn groups(m: &Machine) -> Vec<Finding> {
    let Some(capture) = m.pci.capture.known() else { return Vec::new() };
    if m.pci.groups.known().is_none_or(|&number| number == 0) {
        return Vec::new();
    }
    let nics = m.mlx5().filter_map(|device| device.address);
    let own: BTreeSet<Address> = m.gpus().into_iter().chain(nics).collect();
    let group_of = |a: &Address| capture.get(*a).and_then(|function| function.iommu_group);
    let hidden: Vec<String> =
        own.iter().filter(|a| group_of(a).is_none()).map(|a| named(m, *a)).collect();
    let mut all = BTreeMap::<u32, Vec<Address>>::new();
    for function in capture.functions().filter(is_given) {
        if let Some(group) = function.iommu_group {
            all.entry(group).or_default().push(function.address);
        }
    }
    all.retain(|_, members| members.iter().any(|a| own.contains(a)));
    let is_shared =
        |members: &[Address]| !members.iter().all(|a| capture.is_one_card(*a, members[0]));
    let shared = all.iter().filter(|(_, members)| is_shared(members));
    let mut found: Vec<Finding> =
        shared.map(|(group, members)| share(m, capture, *group, members, &own)).collect();
    if !hidden.is_empty() {
        found.push(Finding::unseen(
            format!("IOMMU groups of {}", short(&hidden.join(", "))),
            "ls -l /sys/bus/pci/devices/ADDRESS/iommu_group",
        ));
    }
    if found.is_empty() && !own.is_empty() {
        found.push(Finding::fine(format!("{} GPUs and NICs, none with another card", own.len())));
    }
    found
}

/// A group of several cards.
fn share(
    m: &Machine,
    capture: &Capture,
    group: u32,
    members: &[Address],
    own: &BTreeSet<Address>,
) -> Finding {
    let names = |all: &[Address]| all.iter().map(|a| named(m, *a)).collect::<Vec<_>>().join(", ");
    let (ours, others): (Vec<Address>, Vec<Address>) =
        members.iter().partition(|a| own.contains(a));
    let others = match others.is_empty() {
        true => String::new(),
        false => format!(" and {}", names(&others)),
    };
    let tree = Tree::new(capture);
    let above: BTreeSet<Address> = members.iter().flat_map(|a| tree.chain(*a)).collect();
    let (mut without, mut unseen) = (Vec::new(), 0);
    for port in above {
        // Packets do not turn round in an upstream port: it needs no ACS.
        let is_upstream = capture.get(port).and_then(|f| f.port)
            == Some(bellpush::pcie::topology::Port::Upstream);
        match m.pci.more(port).acs {
            _ if is_upstream => {}
            Some(control) if control & APART == APART => {}
            Some(_) => without.push(port.to_string()),
            None => unseen += 1,
        }
    }
    let why = match (without.is_empty(), unseen) {
        (false, _) => format!("; no ACS at {}", without.join(", ")),
        (true, 0) => String::new(),
        (true, ports) => format!("; ACS of {ports} ports above them is hidden"),
    };
    Finding::note(short(&format!("IOMMU group {group} has {}{others}{why}", names(&ours))))
        .of(names(&ours))
        .cost("none on this machine; a virtual machine (VFIO) is given all of them or none")
        .fix(
            "for virtual machines, turn on ACS in the firmware: peer traffic below a switch then climbs \
             to its root port",
        )
}
