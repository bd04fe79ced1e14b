//! Links and transfer sizes.

use std::collections::{BTreeMap, BTreeSet};

use bellpush::pcie::tlp::{Config, Gen, LinkSpeed, Mps, Mrrs, Tax};
use bellpush::pcie::topology::{Address, Class, Distance, Function, Kind, Tree, candidates};

use super::place::way;
use crate::doctor::finding::{Finding, Need, quoted};
use crate::doctor::machine::{Machine, RANKED};

/// MPS below which headers cost more than 5 %, so that it is worth a boot.
const LEAST_MPS: u32 = 256;
/// MRRS below which a NIC needs more outstanding reads than its tags allow.
const LEAST_MRRS: u32 = 512;
/// MRRS that every device may be given (PCIe base specification 7.5.3.4).
const MOST_MRRS: u32 = 4096;
/// Most devices that a line names.
const LISTED: usize = 8;

/// GPUs and the NICs that they are given, and the bridges above both.
pub fn devices(m: &Machine, tree: &Tree<'_>) -> (Vec<Address>, BTreeSet<Address>) {
    let mut all = m.gpus();
    if !m.rdma.is_empty() {
        all.extend(candidates(tree));
    }
    let bridges = all.iter().flat_map(|&a| tree.chain(a)).collect();
    (all, bridges)
}

pub fn named(m: &Machine, tree: &Tree<'_>, a: Address) -> String {
    match tree.capture().get(a).and_then(Function::kind) {
        Some(Kind::Gpu) => m.gpu_name(a),
        Some(Kind::Nic) if m.rdma_at(a).is_some() => format!("{} {a}", m.nic_name(a)),
        _ => a.to_string(),
    }
}

pub fn links(m: &Machine) -> Vec<Finding> {
    let Some(tree) = m.pci.tree() else { return Vec::new() };
    let (devices, bridges) = devices(m, &tree);
    let (mut all, mut known, mut unknown) = (dead(m, &tree, &devices), Vec::new(), Vec::new());
    all.extend(bridges.iter().filter(|b| m.pci.more(**b).is_dead).map(|b| {
        let finding = off_the_bus(Finding::warn(OFF)).of(b.to_string());
        let below = devices.iter().filter(|a| tree.chain(**a).contains(b));
        below.fold(finding.cost("nothing below it is reached"), |f, a| lost(m, &tree, f, *a))
    }));
    for &a in devices.iter().chain(&bridges).filter(|a| !m.is_gone(**a)) {
        let is_bridge = bridges.contains(&a);
        let Some(f) = tree.capture().get(a) else { continue };
        // The link below a bridge is counted at its other end.
        if is_bridge && tree.chain(a).is_empty() {
            continue;
        }
        // Without the end above, its own says how wide it could be, not how wide the slot is.
        let above = tree.chain(a).last().copied();
        let is_shown = above.is_none_or(|b| tree.capture().get(b).is_some_and(|f| f.max.is_some()));
        let (Some(max), Some(now)) = tree.link(a) else {
            unknown.extend((!is_bridge && !tree.capture().is_virtual(a)).then_some(a));
            continue;
        };
        if !is_shown {
            unknown.push(a);
            continue;
        }
        known.push(a);
        // An idle GPU slows its link down, and so may the switch above it; neither narrows it.
        let is_slow = f.kind() == Some(Kind::Nic) && now.generation < max.generation;
        if now.lanes >= max.lanes && !is_slow {
            continue;
        }
        let share = rate(now.generation, now.lanes) / rate(max.generation, max.lanes) * 100.0;
        all.push(
            Finding::warn(format!("{now}"))
                .of(named(m, &tree, a))
                .expected(format!("{max}, which both ends have"))
                .cost(format!("{share:.0} % of the link's rate"))
                .fix(
                    "seat the card and its riser or cable again; look at the slot's \
                 bifurcation in the firmware",
                ),
        );
    }
    if all.is_empty() && !known.is_empty() {
        let found = format!("{} links as wide as both ends, NICs as fast", known.len());
        let which = if unknown.is_empty() { String::new() } else { list(m, &tree, &known) };
        all.push(Finding::fine(found).of(which));
    }
    if !unknown.is_empty() {
        let found = format!("links of {} GPUs and NICs", unknown.len());
        let how = "sysfs has no max_link_speed of them: a virtual machine hides it";
        all.push(Finding::unseen(found, how).of(list(m, &tree, &unknown)));
    }
    all
}

/// Devices by name, the first of many.
fn list(m: &Machine, tree: &Tree<'_>, all: &[Address]) -> String {
    let names: Vec<String> = all.iter().take(LISTED).map(|a| named(m, tree, *a)).collect();
    match all.len() - names.len() {
        0 => names.join(", "),
        more => format!("{}, {more} more", names.join(", ")),
    }
}

/// A finding by which nobody can use a GPU or a NIC.
fn lost(m: &Machine, tree: &Tree<'_>, finding: Finding, a: Address) -> Finding {
    match tree.capture().get(a).and_then(Function::kind) {
        Some(Kind::Gpu) => finding.lacks_of_gpu(Need::Gpu, a),
        _ => finding.lacks_nic(&m.nic_name(a)),
    }
}

/// What a function shows that does not answer.
const OFF: &str = "configuration space of all ones: it is off the bus";

fn off_the_bus(finding: Finding) -> Finding {
    finding.expected("an answer to reads of configuration space").fix(
        "look in dmesg for AER and for the driver's last lines; power the machine off and on, and \
         seat the card again",
    )
}

/// Devices that do not answer.
fn dead(m: &Machine, tree: &Tree<'_>, devices: &[Address]) -> Vec<Finding> {
    let dead = devices.iter().copied().filter(|a| m.pci.more(*a).is_dead);
    dead.map(|a| {
        let finding = lost(m, tree, Finding::warn(OFF), a).of(named(m, tree, a));
        off_the_bus(finding).cost("nothing reaches this device")
    })
    .collect()
}

fn rate(generation: u32, lanes: u32) -> f64 {
    let speed = Gen::new(generation).and_then(|g| LinkSpeed::new(g, lanes));
    speed.map_or(f64::NAN, LinkSpeed::raw_gbps)
}

/// What gives all below a root port one MPS. `pcie_bus_perf` does not: each device gets the largest of its own and its
/// bridge's, and an MRRS that keeps to it, which holds for reads of memory and not for what peers write
/// (Linux, drivers/pci/probe.c, pcie_write_mps(), pcie_write_mrrs()).
const EVEN: &str = "boot with pci=pcie_bus_safe, or set the size in the firmware; all below a root \
                    port need the same";

/// Whether a device's Device Control can be asked for sizes and ordering. What does not answer has none; another check
/// tells of it. A virtual function has its physical one's: its own fields are reserved and read 0, which is 128 B (PCIe
/// base specification 9.3.5; Linux, drivers/pci/probe.c, pci_configure_relaxed_ordering()). In a guest one may be it that
/// does not say what it is.
fn has_control(m: &Machine, a: Address) -> bool {
    let may_be_virtual = m.system.is_virtual && m.pci.is_nameless(a);
    !m.is_gone(a) && !m.pci.is_virtual(a) && !may_be_virtual
}

pub fn mps(m: &Machine) -> Vec<Finding> {
    let Some(tree) = m.pci.tree() else { return Vec::new() };
    let (devices, _) = devices(m, &tree);
    let (mut all, mut fine, mut hidden) =
        (Vec::new(), BTreeMap::<u32, Vec<Address>>::new(), Vec::new());
    let supports = supports(m, &tree);
    for a in devices.into_iter().filter(|a| has_control(m, *a)) {
        let support = supports.get(&top(&tree, a)).copied().flatten();
        let in_use = tree.capture().get(a).and_then(|f| f.mps);
        let (Some(support), Some(in_use)) = (support, in_use) else {
            hidden.push(a);
            continue;
        };
        let uneven = smaller_above(m, &tree, a, in_use).or_else(|| larger_above(m, &tree, a));
        if let Some(finding) = uneven {
            all.push(finding);
            continue;
        }
        let possible = support;
        if in_use >= possible {
            fine.entry(in_use).or_default().push(a);
            continue;
        }
        let found = format!("MPS of {in_use} B");
        // Without a card the rate of a GPU's own transfers is no matter of the network.
        let is_small = in_use < LEAST_MPS && !m.rdma.is_empty();
        // Of everything, which lets any two devices be peers.
        let is_chosen = m.system.booted_for_pci("pcie_bus_peer2peer");
        let may_be_chosen = is_chosen || m.system.cmdline.known().is_none();
        let finding = match is_small && !may_be_chosen {
            true => Finding::warn(found),
            false if is_chosen => Finding::note(format!("{found}, by pci=pcie_bus_peer2peer")),
            false => Finding::note(found),
        };
        all.push(
            finding
                .of(named(m, &tree, a))
                .expected(format!("{possible} B, which everything below the root port supports"))
                .cost(slower(in_use, possible))
                .fix(EVEN),
        );
    }
    all.extend(smaller_peers(m, &tree));
    if all.is_empty() && !fine.is_empty() {
        let sizes: Vec<String> = fine.keys().map(u32::to_string).collect();
        let found = format!("MPS of {} B, the most that the ways support", sizes.join(" and "));
        let right: Vec<Address> = fine.into_values().flatten().collect();
        let which = if hidden.is_empty() { String::new() } else { list(m, &tree, &right) };
        all.push(Finding::fine(found).of(which));
    }
    all.extend(hidden_config(m, &tree, &hidden, "MPS"));
    all
}

/// A bridge above with a smaller MPS than the device below: it takes the device's large TLPs for
/// malformed ones, a fatal error (PCIe base specification 2.2.2, 6.2).
fn smaller_above(m: &Machine, tree: &Tree<'_>, a: Address, in_use: u32) -> Option<Finding> {
    let sizes = tree.chain(a).into_iter().filter_map(|b| Some((b, tree.capture().get(b)?.mps?)));
    let (bridge, size) = sizes.min_by_key(|(_, size)| *size).filter(|(_, size)| *size < in_use)?;
    let found = format!("MPS of {in_use} B below {bridge} with {size} B");
    Some(
        lost(m, tree, Finding::warn(found), a)
            .of(named(m, tree, a))
            .expected("no MPS larger than that of a bridge above")
            .cost(
                "the bridge takes larger writes for malformed TLPs: a fatal error, the link resets",
            )
            .fix(EVEN),
    )
}

/// A bridge with a larger MPS than the device below, which asks for more than its own: completions
/// of the bridge's size are malformed TLPs to it. Root complexes that cut them at 64 or 128 B hide
/// that.
fn larger_above(m: &Machine, tree: &Tree<'_>, a: Address) -> Option<Finding> {
    let function = tree.capture().get(a)?;
    let (own, asked) = (function.mps?, function.mrrs?);
    let bridge = *tree.chain(a).last()?;
    let above = tree.capture().get(bridge)?.mps.filter(|above| *above > own && asked > own)?;
    let found =
        format!("MPS of {own} B and MRRS of {asked} B below {bridge} with MPS of {above} B");
    Some(
        Finding::warn(found)
            .of(named(m, tree, a))
            .expected("the MPS of the bridge above, or an MRRS of no more than the own MPS")
            .cost(
                "completions and peers' writes of the bridge's size are malformed TLPs to the \
                 device: a fatal error",
            )
            .fix(EVEN),
    )
}

/// Whether the bridge above has a larger MPS: reads that ask for no more than the own one are answered within it. `None`
/// where that is hidden.
fn is_below_larger(tree: &Tree<'_>, a: Address) -> Option<bool> {
    let mps = |a: Address| tree.capture().get(a).and_then(|f| f.mps);
    let Some(above) = tree.chain(a).last().copied() else { return Some(false) };
    Some(mps(above)? > mps(a)?)
}

/// GPUs and NICs below one switch, of which the one has a larger MPS than the other, or than a
/// bridge of the way: switches pass TLPs on as they are.
fn smaller_peers(m: &Machine, tree: &Tree<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    let mps = |a: Address| tree.capture().get(a).and_then(|f| f.mps);
    for gpu in m.gpus().into_iter().take(RANKED) {
        for nic in candidates(tree).into_iter().take(RANKED).filter(|_| !m.rdma.is_empty()) {
            if m.pci.is_virtual(nic) {
                continue;
            }
            if !matches!(tree.class(gpu, nic), Class::Known(Distance::Pix | Distance::Pxb)) {
                continue;
            }
            let way = way(tree, gpu, nic);
            let (Some(of_gpu), Some(of_nic)) = (mps(gpu), mps(nic)) else { continue };
            let ports = way.into_iter().filter_map(mps).min().unwrap_or(of_gpu.min(of_nic));
            let asked = tree.capture().get(nic).and_then(|f| f.mrrs).unwrap_or(0);
            // Writes of the NIC, and completions of its reads.
            let (written, read) = (ports.min(of_gpu), ports.min(of_nic));
            let is_right = of_nic <= written && of_gpu.min(asked) <= read;
            if is_right || all.len() >= RANKED {
                continue;
            }
            let found = format!(
                "MPS of {of_gpu} B, {} of {of_nic} B, {ports} B of the ports between them",
                m.nic_name(nic),
            );
            all.push(
                Finding::warn(found)
                    .lacks_of_pair(Need::GpuMemory, gpu, &m.nic_name(nic))
                    .of(m.gpu_name(gpu))
                    .expected("one MPS of all below a switch")
                    .cost(
                        "the larger writes of the one are malformed TLPs to the other: a fatal \
                         error",
                    )
                    .fix(EVEN),
            );
        }
    }
    all
}

/// The root port above a function, or itself.
fn top(tree: &Tree<'_>, a: Address) -> Address {
    tree.chain(a).first().copied().unwrap_or(a)
}

/// The largest MPS of everything below each root port: a device would refuse a peer's larger TLP as
/// malformed, and a completer's as well. `None` where any of them is hidden.
fn supports(m: &Machine, tree: &Tree<'_>) -> BTreeMap<Address, Option<u32>> {
    let mut all = BTreeMap::new();
    for (&a, more) in m.pci.more.iter().filter(|(a, _)| !m.is_gone(**a)) {
        all.entry(top(tree, a))
            .and_modify(|least: &mut Option<u32>| {
                *least = least.zip(more.mpss).map(|(x, y)| x.min(y));
            })
            .or_insert(more.mpss);
    }
    all
}

/// Rate of large writes with one MPS beside that with another, by `bellpush tlp`'s arithmetic.
fn slower(now: u32, possible: u32) -> String {
    let of = |mps: u32| {
        let config = Config { mps: Mps::new(mps).ok()?, ..Config::pcie_bench() };
        Some(config.effective(0, 1 << 20, Tax::None)?.write)
    };
    match (of(now), of(possible)) {
        (Some(a), Some(b)) => {
            format!("headers: large writes reach {:.0} % of the rate", a / b * 100.0)
        }
        _ => "more headers".to_owned(),
    }
}

fn hidden_config(m: &Machine, tree: &Tree<'_>, all: &[Address], what: &str) -> Option<Finding> {
    let found = format!(
        "{what} of {} GPUs and NICs: configuration space beyond its first 64 bytes is hidden",
        all.len()
    );
    let how = "run as root, or lspci -vvv as root";
    (!all.is_empty()).then(|| Finding::unseen(found, how).of(list(m, tree, all)))
}

pub fn mrrs(m: &Machine) -> Vec<Finding> {
    let Some(tree) = m.pci.tree() else { return Vec::new() };
    if m.rdma.is_empty() {
        return Vec::new();
    }
    let (mut all, mut hidden) = (Vec::new(), Vec::new());
    let (mut right, mut less) = (Vec::new(), BTreeMap::<u32, Vec<Address>>::new());
    for a in candidates(&tree).into_iter().filter(|a| has_control(m, *a)) {
        match tree.capture().get(a).and_then(|f| f.mrrs) {
            None => hidden.push(a),
            Some(bytes) if bytes < LEAST_MRRS && is_below_larger(&tree, a).is_none() => {
                hidden.push(a);
            }
            Some(bytes) if bytes < MOST_MRRS && is_below_larger(&tree, a) == Some(true) => {
                let finding =
                    Finding::note(format!("MRRS of {bytes} B, and an MPS below the bridge's"));
                all.push(
                    finding
                        .of(named(m, &tree, a))
                        .expected("one MPS of both (check pcie-mps) before a larger MRRS")
                        .cost(format!(
                            "{}; with a larger one, completions of the bridge's size are malformed \
                             TLPs to the device",
                            reads(bytes)
                        )),
                );
            }
            Some(bytes) if bytes < LEAST_MRRS => {
                let finding = Finding::warn(format!("MRRS of {bytes} B"))
                    .of(named(m, &tree, a))
                    .expected("512 B or more; 4096 B for the most")
                    .cost(reads(bytes))
                    .fix(
                        "set bits 14:12 of Device Control; the firmware's setting comes back \
                     at boot",
                    );
                all.push(setting(m, finding, a, "5000:7000"));
            }
            Some(bytes) if bytes < MOST_MRRS => less.entry(bytes).or_default().push(a),
            Some(_) => right.push(a),
        }
    }
    let is_whole = all.is_empty() && hidden.is_empty() && less.is_empty();
    all.extend(less.into_iter().map(|(bytes, nics)| {
        let finding = Finding::note(format!("MRRS of {bytes} B")).of(list(m, &tree, &nics));
        finding.expected(format!("{MOST_MRRS} B for the most")).cost(reads(bytes))
    }));
    if !right.is_empty() {
        let which = if is_whole { String::new() } else { list(m, &tree, &right) };
        all.push(Finding::fine(format!("MRRS of {MOST_MRRS} B")).of(which));
    }
    all.extend(hidden_config(m, &tree, &hidden, "MRRS"));
    all
}

/// The finding, with the line that sets bits of a device's Device Control. A guest has no say in them: its hypervisor
/// may keep what it writes to itself.
fn setting(m: &Machine, finding: Finding, a: Address, bits: &str) -> Finding {
    match m.system.is_virtual {
        true => finding.script("# a virtual machine: on the host, bellpush doctor there"),
        false => finding.script(format!("setpci -s {} CAP_EXP+8.w={bits}", quoted(&a.to_string()))),
    }
}

/// Requests that a long read is cut into.
fn reads(bytes: u32) -> String {
    let of = |mrrs: u32| {
        let config = Config { mrrs: Mrrs::new(mrrs).ok()?, ..Config::pcie_bench() };
        Some(config.read_wire(0, 64 << 10, false).up / 16)
    };
    let more = of(bytes).zip(of(MOST_MRRS)).map_or(1, |(a, b)| a / b.max(1));
    format!("{more} times the read requests of 4096 B, each with a tag and a round trip")
}

pub fn relaxed(m: &Machine) -> Vec<Finding> {
    let Some(tree) = m.pci.tree() else { return Vec::new() };
    if m.rdma.is_empty() {
        return Vec::new();
    }
    let is_amd = m.system.cpu.known().is_some_and(|cpu| cpu.contains("AMD"));
    let (mut off, mut on, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
    for a in candidates(&tree).into_iter().filter(|a| has_control(m, *a)) {
        match m.pci.more(a).relaxed {
            Some(true) => on.push(a),
            Some(false) => off.push(a),
            None => hidden.push(a),
        }
    }
    let mut all = Vec::new();
    if !on.is_empty() {
        let is_all = off.is_empty() && hidden.is_empty();
        let which = if is_all { String::new() } else { list(m, &tree, &on) };
        let found = format!("relaxed ordering is enabled at {} NICs", on.len());
        all.push(Finding::fine(found).of(which));
    }
    for a in off {
        let found = "relaxed ordering is disabled";
        let finding = if is_amd { Finding::warn(found) } else { Finding::note(found) };
        let mut finding = finding
            .of(named(m, &tree, a))
            .expected("bit 4 of Device Control set")
            .cost(
                "NCCL and UCX ask for it, and large writes into host memory of AMD's CPUs \
                 go slower without; bellpush's regions do not use it",
            )
            .fix(
                "set the bit; Linux clears it on purpose below some root ports of Haswell \
                 and Broadwell",
            );
        if is_amd {
            finding = setting(m, finding, a, "0010:0010");
        }
        all.push(finding);
    }
    all.extend(hidden_config(m, &tree, &hidden, "relaxed ordering"));
    all
}
