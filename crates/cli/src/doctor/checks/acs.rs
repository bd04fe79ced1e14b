//! Access Control Services between GPUs and NICs.

use std::collections::BTreeSet;

use bellpush::pcie::topology::{Address, Class, Distance, Tree};

use super::place::{both, way};
use crate::doctor::finding::{Finding, Severity};
use crate::doctor::machine::Machine;
use crate::doctor::machine::pci::CONVENTIONAL;

/// Bits of ACS Control (PCIe base specification 7.7.11.3): P2P Request Redirect, P2P Completion
/// Redirect (of reads without relaxed ordering), Direct Translated P2P.
const REQUEST_REDIRECT: u16 = 1 << 2;
const REDIRECT: u16 = REQUEST_REDIRECT | 1 << 3;
const DIRECT_TRANSLATED: u16 = 1 << 6;
/// Translation Blocking: a request whose address ATS has translated is an error (6.12.1.1).
const TRANSLATION_BLOCKING: u16 = 1 << 1;
/// P2P Egress Control Enable: the port's vector says which ports peers may reach (7.7.11.4).
const EGRESS_CONTROL: u16 = 1 << 5;

pub fn acs(m: &Machine) -> Vec<Finding> {
    let Some((tree, gpus, nics)) = both(m) else { return Vec::new() };
    let (between, roots) = (between(&tree, &gpus, &nics), far_roots(m, &tree));
    let mut all = of_switches(m, &tree, &between, &nics);
    // What a NIC has translated goes to host memory by every port above it, also where no peer does.
    let upper: BTreeSet<Address> = nics
        .iter()
        .flat_map(|nic| tree.chain(*nic))
        .filter(|b| !between.contains(b) && !roots.contains(b) && !m.system.is_virtual)
        .collect();
    let upper = blocking(m, &tree, &upper, "upper", &nics);
    if upper.is_some() {
        all.retain(|finding| finding.severity != Severity::Fine);
    }
    all.extend(upper);
    all.extend(of_roots(m, &tree, &roots, &nics));
    all
}

/// Ports whose ACS Control has one of these bits, and a text that names some.
fn with(m: &Machine, bridges: &BTreeSet<Address>, bits: u16) -> (Vec<Address>, String) {
    let has = |b: &&Address| m.pci.more(**b).acs.is_some_and(|c| c & bits != 0);
    let ports: Vec<Address> = bridges.iter().filter(has).copied().collect();
    let list = ports.iter().take(6).map(Address::to_string).collect::<Vec<_>>().join(", ");
    (ports, list)
}

/// The finding, with the lines that clear a bit of these ports' ACS Control, which virtual machines have no say in.
fn clearing(m: &Machine, finding: Finding, ports: &[Address], bit: u16) -> Finding {
    let ports = ports.iter().filter(|_| !m.system.is_virtual);
    let lines = ports.map(|b| format!("setpci -s {b} ECAP_ACS+6.w=0000:{bit:04x}"));
    lines.fold(finding, |finding, line| finding.script(line))
}

/// What these ports redirect.
fn redirected(m: &Machine, ports: &[Address]) -> &'static str {
    let is_request = |b: &Address| m.pci.more(*b).acs.is_some_and(|c| c & REQUEST_REDIRECT != 0);
    if ports.iter().any(is_request) { "requests" } else { "completions" }
}

/// Ports that block what ATS of a NIC below them has translated, where that is on or may be.
fn blocking(
    m: &Machine,
    tree: &Tree<'_>,
    bridges: &BTreeSet<Address>,
    kind: &str,
    nics: &[Address],
) -> Option<Finding> {
    let ats = |port: &Address| -> BTreeSet<Option<bool>> {
        let below = nics.iter().filter(|nic| tree.chain(**nic).contains(port));
        below.map(|nic| m.pci.more(*nic).ats).filter(|ats| *ats != Some(false)).collect()
    };
    let used: BTreeSet<Address> = bridges.iter().filter(|b| !ats(b).is_empty()).copied().collect();
    let (ports, list) = with(m, &used, TRANSLATION_BLOCKING);
    let is_on = ports.iter().any(|port| ats(port).contains(&Some(true)));
    let which = if is_on { "is enabled" } else { "may be enabled, which is hidden" };
    let (first, n, of) = (ports.first()?, ports.len(), bridges.len());
    let found = format!(
        "{n} of {of} {kind} ports block translated requests, and ATS of NICs below {which}: {list}"
    );
    let finding = Finding::warn(found)
        .expected("Translation Blocking off (bit 1 of ACS Control), or ATS of the NICs off")
        .cost("what the NIC has translated is an ACS violation: the request fails")
        .fix(format!("look at ACSCtl of lspci -vvv -s {first}; clear bit 1 after each boot"));
    Some(clearing(m, finding, &ports, TRANSLATION_BLOCKING))
}

fn is_near(tree: &Tree<'_>, gpu: Address, nic: Address) -> bool {
    matches!(tree.class(gpu, nic), Class::Known(Distance::Pix | Distance::Pxb))
}

/// Switch ports below which a GPU and a NIC are peers.
fn between(tree: &Tree<'_>, gpus: &[Address], nics: &[Address]) -> BTreeSet<Address> {
    let mut bridges = BTreeSet::new();
    for &gpu in gpus {
        for nic in nics.iter().filter(|nic| is_near(tree, gpu, **nic)) {
            bridges.extend(way(tree, gpu, *nic));
        }
    }
    bridges
}

/// What these switch ports redirect and block.
fn of_switches(
    m: &Machine,
    tree: &Tree<'_>,
    bridges: &BTreeSet<Address>,
    nics: &[Address],
) -> Vec<Finding> {
    if bridges.is_empty() {
        return Vec::new();
    }
    let control = |b: &Address| m.pci.more(*b).acs;
    let (redirecting, list) = with(m, bridges, REDIRECT);
    let mut all: Vec<Finding> = egress(m, bridges, "switch").into_iter().collect();
    all.extend(blocking(m, tree, bridges, "switch", nics));
    if !redirecting.is_empty() {
        let (n, of, what) = (redirecting.len(), bridges.len(), redirected(m, &redirecting));
        let found = format!("{n} of {of} switch ports redirect peer {what}: {list}");
        // Translated requests pass redirection where bit 6 says so, and bit 1 does not block them.
        let passes = |c: u16| c & (DIRECT_TRANSLATED | TRANSLATION_BLOCKING) == DIRECT_TRANSLATED;
        // Also of those below a port that may redirect.
        let may =
            |b: &Address| redirecting.contains(b) || bridges.contains(b) && control(b).is_none();
        let is_above = |nic: &&Address| tree.chain(**nic).iter().any(may);
        let ats: BTreeSet<Option<bool>> =
            nics.iter().filter(is_above).map(|nic| m.pci.more(*nic).ats).collect();
        let is_direct =
            redirecting.iter().all(|b| control(b).is_some_and(passes)) && !ats.is_empty();
        if is_direct && !ats.contains(&Some(false)) && ats.contains(&None) {
            let found = format!("{found}, and whether the NICs' ATS is enabled");
            all.push(Finding::unseen(found, "run as root, or lspci -vvv as root (ATSCtl)"));
            return all;
        }
        if is_direct && !ats.contains(&Some(false)) {
            all.push(
                Finding::note(format!("{found}, but what the NICs' ATS has translated"))
                    .cost("requests of the GPU climb to the root complex"),
            );
            return all;
        }
        let mut finding = Finding::warn(found)
            .expected("P2P Request and Completion Redirect off (bits 2 and 3 of ACS Control)")
            .cost(
                "traffic between GPU and NIC climbs to the root complex, and shares its \
                 way with host memory",
            )
            .fix(
                "clear ACS Control of these ports after each boot; in a virtual machine \
                 ACS has to be on: enable ATS in the NIC instead",
            );
        // Below a hypervisor the bridges are its own, and ACS is what keeps machines apart.
        finding = match m.system.is_virtual {
            true => {
                finding.script("# a virtual machine: leave ACS on; ATS of the NIC, on the host")
            }
            false => finding.script(
                "# not where virtual machines have devices below these ports: without ACS \
                 nothing keeps them apart",
            ),
        };
        // A guest's bridges are its hypervisor's.
        let ports = redirecting.iter().filter(|_| !m.system.is_virtual);
        finding.script.extend(ports.map(|b| format!("setpci -s {b} ECAP_ACS+6.w=0000")));
        all.push(finding);
    }
    all.extend(hidden(m, bridges, "switch"));
    if all.is_empty() {
        all.push(Finding::fine(format!("{} switch ports redirect nothing", bridges.len())));
    }
    all
}

/// Ports whose vector decides which peers may be reached. What is redirected is so before (6.12.3).
fn egress(m: &Machine, bridges: &BTreeSet<Address>, kind: &str) -> Option<Finding> {
    let redirects = |b: &Address| m.pci.more(*b).acs.is_some_and(|c| c & REQUEST_REDIRECT != 0);
    let open: BTreeSet<Address> = bridges.iter().filter(|b| !redirects(b)).copied().collect();
    let (ports, list) = with(m, &open, EGRESS_CONTROL);
    let (first, n, of) = (ports.first()?, ports.len(), bridges.len());
    let finding = Finding::warn(format!("{n} of {of} {kind} ports have egress control: {list}"))
        .expected("P2P Egress Control off (bit 5 of ACS Control), or vectors that let peers pass")
        .cost("what a vector blocks is an ACS violation: the request fails, and the GPU's or NIC's with it")
        .fix(format!("look at ACSVec of lspci -vvv -s {first}; clear bit 5 after each boot"));
    Some(clearing(m, finding, &ports, EGRESS_CONTROL))
}

/// Ports whose ACS is hidden from this reader, and those where the machine shows no reader more.
fn hidden(m: &Machine, bridges: &BTreeSet<Address>, kind: &str) -> Vec<Finding> {
    let of = bridges.len();
    let without = bridges.iter().map(|b| m.pci.more(*b)).filter(|more| more.acs.is_none());
    let (short, cut): (Vec<_>, Vec<_>) = without.partition(|more| more.config == CONVENTIONAL);
    let mut all = Vec::new();
    if !cut.is_empty() {
        let found = format!(
            "ACS of {} of {of} {kind} ports: configuration space beyond its first 64 bytes is hidden",
            cut.len()
        );
        all.push(Finding::unseen(found, "run as root, or lspci -vvv as root (ACSCtl)"));
    }
    if !short.is_empty() {
        let found = format!(
            "ACS of {} of {of} {kind} ports: they have 256 bytes of configuration space here, without \
             extended capabilities",
            short.len()
        );
        let how = "look for MMCONFIG in dmesg; in a virtual machine, bellpush doctor on the host";
        all.push(Finding::unseen(found, how));
    }
    all
}

/// Root ports where GPUs reach the NICs that they are given through root complexes. Redirection costs nothing there: what
/// comes from below goes up in any case.
fn far_roots(m: &Machine, tree: &Tree<'_>) -> BTreeSet<Address> {
    let pairs = m.pairs().into_iter().filter_map(|pair| Some((pair.gpu, pair.nic?)));
    let far = pairs.filter(|(gpu, nic)| !is_near(tree, *gpu, *nic));
    let ends = far.flat_map(|(gpu, nic)| [gpu, nic]);
    ends.filter_map(|end| tree.chain(end).first().copied()).collect()
}

/// What these root ports redirect and block.
fn of_roots(
    m: &Machine,
    tree: &Tree<'_>,
    ports: &BTreeSet<Address>,
    nics: &[Address],
) -> Vec<Finding> {
    if ports.is_empty() {
        return Vec::new();
    }
    let of = ports.len();
    // What a guest's root ports say is its hypervisor's word, and none of the ports that its devices are below.
    if m.system.is_virtual {
        let found = format!("ACS of the host: the {of} root ports here are a hypervisor's");
        return vec![Finding::unseen(found, "bellpush doctor on the host")];
    }
    let mut all: Vec<Finding> = egress(m, ports, "root").into_iter().collect();
    all.extend(blocking(m, tree, ports, "root", nics));
    let (redirecting, list) = with(m, ports, REDIRECT);
    if !redirecting.is_empty() {
        let (n, what) = (redirecting.len(), redirected(m, &redirecting));
        let found = format!("{n} of {of} root ports redirect peer {what}: {list}");
        all.push(Finding::note(found).cost(
            "none by itself: requests from below a root port go up in any case, and through the \
             IOMMU where it translates (check iommu)",
        ));
    }
    all.extend(hidden(m, ports, "root"));
    if all.is_empty() {
        all.push(Finding::fine(format!("{of} root ports redirect nothing")));
    }
    all
}
