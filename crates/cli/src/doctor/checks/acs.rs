//! Access Control Services between GPUs and NICs.

use std::collections::BTreeSet;

use bellpush::pcie::topology::{Address, Class, Distance, Tree};

use super::place::{both, way};
use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;

/// Bits of ACS Control (PCIe base specification 7.7.11.3): P2P Request Redirect, P2P Completion
/// Redirect (of reads without relaxed ordering), Direct Translated P2P.
const REQUEST_REDIRECT: u16 = 1 << 2;
const REDIRECT: u16 = REQUEST_REDIRECT | 1 << 3;
const DIRECT_TRANSLATED: u16 = 1 << 6;
/// P2P Egress Control Enable: the port's vector says which ports peers may reach (7.7.11.4).
const EGRESS_CONTROL: u16 = 1 << 5;

pub fn acs(m: &Machine) -> Vec<Finding> {
    let Some((tree, gpus, nics)) = both(m) else { return Vec::new() };
    let mut all = of_switches(m, &tree, &gpus, &nics);
    all.extend(of_roots(m, &tree));
    all
}

/// Switch ports below which a GPU and a NIC are peers.
fn of_switches(m: &Machine, tree: &Tree<'_>, gpus: &[Address], nics: &[Address]) -> Vec<Finding> {
    let mut bridges = BTreeSet::new();
    for &gpu in gpus {
        for &nic in nics {
            if matches!(tree.class(gpu, nic), Class::Known(Distance::Pix | Distance::Pxb)) {
                bridges.extend(way(tree, gpu, nic));
            }
        }
    }
    if bridges.is_empty() {
        return Vec::new();
    }
    let control = |b: &Address| m.pci.more(*b).acs;
    let redirecting: Vec<Address> =
        bridges.iter().filter(|b| control(b).is_some_and(|c| c & REDIRECT != 0)).copied().collect();
    let hidden = bridges.iter().filter(|b| control(b).is_none()).count();
    let mut all: Vec<Finding> = egress(m, &bridges, "switch").into_iter().collect();
    if !redirecting.is_empty() {
        let list =
            redirecting.iter().take(6).map(Address::to_string).collect::<Vec<_>>().join(", ");
        let (n, of) = (redirecting.len(), bridges.len());
        let is_request =
            redirecting.iter().any(|b| control(b).is_some_and(|c| c & REQUEST_REDIRECT != 0));
        let what = if is_request { "requests" } else { "completions" };
        let found = format!("{n} of {of} switch ports redirect peer {what}: {list}");
        // Translated requests pass redirection where bit 6 says so.
        let is_direct =
            redirecting.iter().all(|b| control(b).is_some_and(|c| c & DIRECT_TRANSLATED != 0));
        let ats: BTreeSet<Option<bool>> = nics.iter().map(|nic| m.pci.more(*nic).ats).collect();
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
    if hidden > 0 {
        all.push(Finding::unseen(
            format!(
                "ACS of {hidden} of {} switch ports: configuration space beyond its first \
             64 bytes is hidden",
                bridges.len()
            ),
            "run as root, or lspci -vvv as root (ACSCtl)",
        ));
    }
    if all.is_empty() {
        all.push(Finding::fine(format!("{} switch ports redirect nothing", bridges.len())));
    }
    all
}

/// Ports whose vector decides which peers may be reached. What is redirected is so before (6.12.3).
fn egress(m: &Machine, bridges: &BTreeSet<Address>, kind: &str) -> Option<Finding> {
    let is = |b: &&Address| {
        m.pci.more(**b).acs.is_some_and(|c| c & EGRESS_CONTROL != 0 && c & REQUEST_REDIRECT == 0)
    };
    let ports: Vec<String> = bridges.iter().filter(is).map(Address::to_string).collect();
    let list = ports.iter().take(6).cloned().collect::<Vec<_>>().join(", ");
    let (first, n, of) = (ports.first()?, ports.len(), bridges.len());
    let finding = Finding::warn(format!("{n} of {of} {kind} ports have egress control: {list}"))
        .expected("P2P Egress Control off (bit 5 of ACS Control), or vectors that let peers pass")
        .cost("what a vector blocks is an ACS violation: the request fails, and the GPU's or NIC's with it")
        .fix(format!("look at ACSVec of lspci -vvv -s {first}; clear bit 5 after each boot"));
    let ports = ports.iter().filter(|_| !m.system.is_virtual);
    let lines = ports.map(|b| format!("setpci -s {b} ECAP_ACS+6.w=0000:0020"));
    Some(lines.fold(finding, |finding, line| finding.script(line)))
}

/// Root ports where GPUs reach the NICs that they are given through root complexes. Redirection costs nothing there: what
/// comes from below goes up in any case.
fn of_roots(m: &Machine, tree: &Tree<'_>) -> Vec<Finding> {
    let is_near = |gpu: Address, nic: Address| {
        matches!(tree.class(gpu, nic), Class::Known(Distance::Pix | Distance::Pxb))
    };
    let pairs = m.pairs().into_iter().filter_map(|pair| Some((pair.gpu, pair.nic?)));
    let far = pairs.filter(|(gpu, nic)| !is_near(*gpu, *nic));
    let ends = far.flat_map(|(gpu, nic)| [gpu, nic]);
    let ports: BTreeSet<Address> =
        ends.filter_map(|end| tree.chain(end).first().copied()).collect();
    if ports.is_empty() {
        return Vec::new();
    }
    let control = |port: &&Address| m.pci.more(**port).acs;
    let of = ports.len();
    let mut all: Vec<Finding> = egress(m, &ports, "root").into_iter().collect();
    let redirecting: Vec<String> = ports
        .iter()
        .filter(|port| control(port).is_some_and(|c| c & REDIRECT != 0))
        .map(Address::to_string)
        .collect();
    if !redirecting.is_empty() {
        let list = redirecting.iter().take(6).cloned().collect::<Vec<_>>().join(", ");
        let found =
            format!("{} of {of} root ports redirect peer requests: {list}", redirecting.len());
        all.push(Finding::note(found).cost(
            "none by itself: requests from below a root port go up in any case, and through the \
             IOMMU where it translates (check iommu)",
        ));
    }
    let hidden = ports.iter().filter(|port| control(port).is_none()).count();
    if hidden > 0 {
        all.push(Finding::unseen(
            format!(
                "ACS of {hidden} of {of} root ports: configuration space beyond its first 64 bytes \
                 is hidden"
            ),
            "run as root, or lspci -vvv as root (ACSCtl)",
        ));
    }
    if all.is_empty() {
        all.push(Finding::fine(format!("{of} root ports redirect nothing")));
    }
    all
}
