//! Cards with two links, bonds of their ports, and errors of PCIe links.

use std::collections::BTreeMap;

use bellpush::pcie::topology::{Address, Tree};

use super::pcie::{devices, named};
use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;

/// The slot of a function: functions of one device are ports of a card.
pub fn slot(a: Address) -> (u32, u8, u8) {
    (a.domain, a.bus, a.device)
}

/// Cards whose functions are in two slots, by a function of each.
pub fn split(m: &Machine, tree: &Tree<'_>) -> Vec<Vec<Address>> {
    let mut cards: BTreeMap<&str, Vec<Address>> = BTreeMap::new();
    for device in m.mlx5() {
        // A virtual function has its card's GUID as well, and may have a number of its own.
        let address = device.address.filter(|a| !tree.capture().is_virtual(*a));
        if let (Some(image), Some(address)) = (device.image.known(), address) {
            cards.entry(image).or_default().push(address);
        }
    }
    let mut all: Vec<Vec<Address>> = cards.into_values().collect();
    for functions in &mut all {
        functions.sort();
        functions.dedup_by_key(|a| slot(*a));
    }
    all.retain(|functions| functions.len() > 1);
    all
}

/// Of such a card each link has half of the lanes, and both share the ports.
pub fn socket_direct(m: &Machine) -> Vec<Finding> {
    let Some(tree) = m.pci.tree() else { return Vec::new() };
    let mut all = Vec::new();
    for functions in split(m, &tree) {
        let names: Vec<String> = functions
            .iter()
            .map(|a| match m.pci.more(*a).numa.known() {
                Some(node @ 0..) => format!("{} (NUMA node {node})", named(m, &tree, *a)),
                _ => named(m, &tree, *a),
            })
            .collect();
        all.push(
            Finding::note(format!(
                "{} are one card, each with a link of its own",
                names.join(" and ")
            ))
            .cost(
                "a GPU that takes the half at its own socket crosses none; together they have \
                     the rate of the card's ports, and not twice that",
            ),
        );
    }
    all
}

/// Modes of bonding of which mlx5 makes a LAG (Linux, `mlx5_lag_check_prereq`): active-backup, and those that hash.
const LAG_MODES: [&str; 3] = ["active-backup 1", "balance-xor 2", "802.3ad 4"];

/// Bonds of interfaces of mlx5.
pub fn bonds(m: &Machine) -> Vec<Finding> {
    let is_mlx5 = |a: &Address| m.pci.more(*a).driver.as_deref() == Some("mlx5_core");
    let mut all = Vec::new();
    for bond in &m.netdevs {
        let Some((mode, names)) = &bond.bond else { continue };
        let slaves: Vec<_> = names.iter().filter_map(|name| m.netdev(name)).collect();
        let own: Vec<_> =
            slaves.iter().filter_map(|it| Some((*it, it.address.filter(is_mlx5)?))).collect();
        if own.is_empty() {
            continue;
        }
        let listed = names.join(", ");
        let is_one_card = own.len() == names.len()
            && own.iter().all(|(_, address)| slot(*address) == slot(own[0].1));
        let down: Vec<&str> = own
            .iter()
            .filter(|(it, _)| it.link.known().is_some_and(|link| link != "up"))
            .map(|(it, _)| it.name.as_str())
            .collect();
        let finding = if slaves.len() < names.len() {
            let hidden = names.iter().filter(|name| m.netdev(name).is_none());
            let hidden: Vec<&str> = hidden.map(String::as_str).collect();
            let found = format!("a bond of {listed}, of which {} is not shown", hidden.join(", "));
            Finding::unseen(found, "ip -details link show; rdma link")
        } else if !LAG_MODES.contains(&mode.as_str()) {
            Finding::warn(format!("a bond of mode {mode}: {listed}"))
                .expected("active-backup, balance-xor or 802.3ad, of which mlx5 makes a LAG")
                .cost("RDMA goes by one port alone, and stops when that is down")
                .fix("set another mode of the bond, and of the switch's ports")
        } else if names.len() > 1 && !is_one_card {
            Finding::warn(format!("a bond of several cards: {listed}"))
                .expected("ports of one card, of which mlx5 makes a LAG")
                .cost(
                    "the bond is TCP's alone: RDMA has each port by itself, without the bond's \
                     address",
                )
                .fix("bond the ports of one card, or give each port an address of its own")
        } else if !down.is_empty() && down.len() < names.len() {
            Finding::warn(format!("{} of the bond of {listed} is down", down.join(", ")))
                .expected("all ports of the bond up")
                .cost("the other ports' rate is all that there is")
                .fix("look at its cable and at the switch's port")
        } else if !down.is_empty() {
            let found = format!("no port of the bond of {listed} is up");
            // A bond that nobody uses lies beside a port that works.
            let works = m.mlx5().any(|device| device.is_active());
            let finding = if works { Finding::note(found) } else { Finding::warn(found) };
            finding
                .expected("all ports of the bond up")
                .cost("the bond sends nothing")
                .fix("look at cables and the switch's ports, or take the bond away")
        } else if own.iter().any(|(it, _)| it.link.known().is_none()) {
            let found = format!("a bond of mode {mode}: {listed}; whether each is up");
            Finding::unseen(found, "cat /sys/class/net/INTERFACE/bonding_slave/mii_status")
        } else {
            Finding::fine(format!("a bond of mode {mode}: {listed}"))
        };
        all.push(finding.of(bond.name.clone()));
    }
    all
}

/// A kind of uncorrected error that probing for devices raises as well (PCIe base specification 6.2.4.2).
const PROBED: &str = "UnsupReq";

/// What the kernel has counted of GPUs, NICs and the bridges above them.
pub fn errors(m: &Machine) -> Vec<Finding> {
    let Some(tree) = m.pci.tree() else { return Vec::new() };
    let (own, bridges) = devices(m, &tree);
    let (mut all, mut counted) = (Vec::new(), 0);
    for a in own.into_iter().chain(bridges) {
        let [corrected, nonfatal, fatal] = m.pci.more(a).errors;
        counted += usize::from(corrected.is_some() && nonfatal.is_some() && fatal.is_some());
        let said = |what: &str, counts: &[(String, u64)]| {
            let each: Vec<_> = counts.iter().map(|(name, n)| format!("{name} {n}")).collect();
            format!("{what}: {}", each.join(", "))
        };
        let fatal = fatal.unwrap_or_default();
        let nonfatal: Vec<_> =
            nonfatal.unwrap_or_default().into_iter().filter(|(name, _)| name != PROBED).collect();
        let corrected = corrected.unwrap_or_default();
        let finding = if !fatal.is_empty() {
            Finding::warn(said("fatal errors", &fatal))
                .expected("none")
                .cost("the link was reset, and what was under way on it is lost")
        } else if !nonfatal.is_empty() {
            Finding::warn(said("uncorrected errors", &nonfatal))
                .expected("none")
                .cost("requests were lost, or answered with poisoned or no data")
        } else if !corrected.is_empty() {
            // A link may have one every few seconds and be right: 10^-12 of its bits (7.5.3.20, 8.3).
            let what = said("corrected errors", &corrected);
            all.push(Finding::note(what).of(named(m, &tree, a)).cost(
                "each is a TLP or DLLP that went again: those that grow by many a minute tell \
                         of a bad slot, riser or cable",
            ));
            continue;
        } else {
            continue;
        };
        all.push(finding.of(named(m, &tree, a)).fix(
            "look in dmesg for AER, and read the counters again under load; seat the card, its \
             riser or cable again",
        ));
    }
    if all.is_empty() && counted > 0 {
        all.push(Finding::fine(format!("no errors at {counted} GPUs, NICs and bridges")));
    }
    all
}
