//! RDMA over Ethernet.

use std::collections::BTreeSet;

use bellpush::pcie::topology::{Address, candidates};

use crate::doctor::finding::{Finding, quoted};
use crate::doctor::machine::Machine;
use crate::doctor::machine::dcb::priorities as of_mask;
use crate::doctor::machine::rdma::{Netdev, Port, RdmaDevice};
use crate::doctor::read::{Seen, short};

/// What a packet has beside its payload by the kernel's count: GRH, UDP, BTH, XRC, atomic, ICRC.
const HEADERS: u64 = 40 + 8 + 12 + 4 + 28 + 4;

/// `DCB_CAP_DCBX_HOST` (Linux, uapi/linux/dcbnl.h): the host sets them, not the card.
const DCBX_HOST: u8 = 1;

/// Active ports of mlx5 devices with RoCE.
pub fn ports(m: &Machine) -> impl Iterator<Item = (&RdmaDevice, &Port)> {
    let all = m.answering().flat_map(|d| d.ports.iter().map(move |p| (d, p)));
    all.filter(|(_, p)| p.is_active() && p.is_ethernet())
}

/// Whether it is a virtual function beside its physical one: it waits for a virtual machine.
fn is_spare(m: &Machine, device: &RdmaDevice) -> bool {
    let Some(capture) = m.pci.capture.known() else { return false };
    let is_virtual = |d: &RdmaDevice| d.address.is_some_and(|a| capture.is_virtual(a));
    let works = |d: &RdmaDevice| d.is_active() && !is_virtual(d);
    is_virtual(device) && m.mlx5().any(works)
}

fn named(device: &RdmaDevice, port: &Port) -> String {
    named_by(device, port, port.netdev.as_deref())
}

/// A port, and an interface of it.
pub fn named_by(device: &RdmaDevice, port: &Port, netdev: Option<&str>) -> String {
    let name = format!("{}:{}", device.name, port.number);
    short(&netdev.map_or(name.clone(), |netdev| format!("{name} ({netdev})")))
}

/// The interface of a port, or those that its bond is made of.
pub fn interfaces<'a>(m: &'a Machine, port: &Port) -> Vec<&'a Netdev> {
    let own = port.netdev.as_deref().and_then(|name| m.netdev(name));
    match own.and_then(|own| own.bond.as_ref()) {
        Some((_, members)) => members.iter().filter_map(|name| m.netdev(name)).collect(),
        None => own.into_iter().collect(),
    }
}

/// The largest MTU of InfiniBand that fits.
pub fn active_mtu(mtu: u64) -> u64 {
    let fits = |size: &u64| mtu >= size + HEADERS;
    [4096, 2048, 1024, 512, 256].into_iter().find(fits).unwrap_or(0)
}

pub fn mtu(m: &Machine) -> Vec<Finding> {
    let mut all = Vec::new();
    // A port for management is no GPU's, where GPUs are given others.
    let given: BTreeSet<Address> = m.pairs().into_iter().filter_map(|pair| pair.nic).collect();
    let is_taken = |device: &RdmaDevice| {
        given.is_empty() || device.address.is_none_or(|own| given.contains(&own))
    };
    // Which those are is clear where all rates are seen.
    let nics = m.pci.tree().map_or_else(Vec::new, |tree| candidates(&tree));
    let is_seen = |device: &RdmaDevice| {
        device.address.is_some_and(|own| nics.contains(&own))
            && device
                .ports
                .iter()
                .all(|port| port.rate.known().is_some() && port.state.known().is_some())
    };
    let is_clear = given.is_empty() || m.rdma.len() < 2 || m.rdma.iter().all(is_seen);
    for (device, port) in ports(m) {
        let netdev = port.netdev.as_deref().and_then(|n| m.netdev(n));
        let Some((netdev, &mtu)) = netdev.and_then(|n| Some((n, n.mtu.known()?))) else {
            all.push(
                Finding::unseen("no network interface of the port", "ibv_devinfo: active_mtu")
                    .of(named(device, port)),
            );
            continue;
        };
        let active = active_mtu(mtu);
        let found = format!("MTU of {mtu} B: active_mtu of {active} B");
        all.push(
            match active {
                4096 => Finding::fine(found),
                _ if is_spare(m, device) || !is_taken(device) || !is_clear => {
                    Finding::note(found).cost("none, unless jobs of this machine use it")
                }
                _ => Finding::warn(found)
                    .expected("4192 B or more, on the switches as well: active_mtu of 4096 B")
                    .cost(format!("{} packets for each one", 4096 / active.max(1)))
                    .fix("raise the MTU at all hosts and switches of the path")
                    .script(format!(
                        "# once the switches have it: ip link set dev {} mtu 9000",
                        quoted(&netdev.name)
                    )),
            }
            .of(named(device, port)),
        );
    }
    let is_infiniband = |p: &Port| p.is_active() && p.known_layer() == Some("InfiniBand");
    if m.mlx5().any(|d| d.ports.iter().any(is_infiniband)) {
        all.push(Finding::unseen(
            "active_mtu of InfiniBand ports is not in sysfs",
            "ibv_devinfo: active_mtu",
        ));
    }
    all
}

/// That a card cannot be used, where that is so of all its ports.
fn lacks(finding: Finding, device: &RdmaDevice, is_whole: bool) -> Finding {
    if is_whole { finding.lacks_nic(&device.name) } else { finding }
}

pub fn gids(m: &Machine) -> Vec<Finding> {
    let mut all = Vec::new();
    // A port of InfiniBand needs no GID of RoCE, and one whose GIDs have no type may have one.
    let works = |p: &Port| !p.is_ethernet() || p.gids.iter().any(|gid| gid.is_v2 != Some(false));
    let another_works =
        m.answering().flat_map(|d| &d.ports).any(|port| port.is_active() && works(port));
    for (device, port) in ports(m) {
        let v2: Vec<_> = port.gids.iter().filter(|g| g.is_v2 == Some(true)).collect();
        let routed =
            v2.iter().find(|g| g.is_ipv4()).or_else(|| v2.iter().find(|g| !g.is_link_local()));
        let found = |what: &str| format!("{what} among {} GIDs", port.gids.len());
        let finding = if let Some(gid) = routed {
            let address =
                gid.gid.to_ipv4_mapped().map_or_else(|| gid.gid.to_string(), |v4| v4.to_string());
            Finding::fine(format!("index {}: RoCE v2, {address}", gid.index))
        } else if port.hidden_gids > 0 {
            let found = format!(
                "without a type or an address: {} of the GIDs; of the others none is of RoCE v2 and routed",
                port.hidden_gids
            );
            Finding::unseen(found, "ibv_devinfo -v, or show_gids")
        } else if !v2.is_empty() {
            let found = found("RoCE v2 of a link-local address alone");
            if another_works && is_spare(m, device) {
                Finding::note(found)
            } else {
                Finding::warn(found)
            }
            .expected("an IPv4 or global IPv6 address on the interface")
            .cost("no router forwards it; peers with IPv4 cannot be reached")
        } else {
            let found = found("no RoCE v2");
            let mut others = device.ports.iter().filter(|port| port.is_active());
            let is_whole = !others.any(works);
            let finding =
                if is_spare(m, device) { Finding::note(found) } else { Finding::warn(found) };
            lacks(finding, device, is_whole)
                .expected("a GID of RoCE v2: an IP address on the interface")
                .cost("bellpush refuses the port")
        };
        let netdev = port.netdev.as_deref().map_or_else(|| "INTERFACE".to_owned(), quoted);
        all.push(match finding.expected.is_empty() {
            true => finding.of(named(device, port)),
            false => finding
                .of(named(device, port))
                .fix("give the interface an IP address")
                .script(format!("# ip addr add ADDRESS/PREFIX dev {netdev}")),
        });
    }
    all
}

/// Priorities with PFC, by MLNX_OFED's file: a 0 or 1 for each, in the line `enabled` if there is
/// one.
fn priorities(text: &str) -> Option<Vec<u8>> {
    let line = text.lines().find_map(|l| l.trim().strip_prefix("enabled")).unwrap_or(text);
    let flags: Option<Vec<bool>> = line
        .split(|c: char| c.is_whitespace() || c == ',')
        .filter(|w| !w.is_empty())
        .map(|w| match w {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        })
        .collect();
    let flags = flags.filter(|f| f.len() == 8)?;
    Some((0..8).filter(|&n| flags[usize::from(n)]).collect())
}

/// Priorities with PFC: by MLNX_OFED's file, or by the driver's answer to rtnetlink.
pub fn pfc(netdev: &Netdev) -> Option<Vec<u8>> {
    let of_file = netdev.pfc.known().and_then(|text| priorities(text));
    of_file.or_else(|| netdev.dcb.known()?.pfc.map(of_mask))
}

/// Whether the DSCP of a packet tells its priority, and not the tag of a VLAN; likewise.
pub fn trusts_dscp(netdev: &Netdev) -> Option<bool> {
    let of_file = netdev.trust.known().map(|trust| trust.contains("dscp"));
    of_file.or_else(|| netdev.dcb.known()?.dscp.as_ref().map(|all| !all.is_empty()))
}

pub fn list(priorities: &[u8]) -> String {
    let words: Vec<String> = priorities.iter().map(u8::to_string).collect();
    if words.is_empty() { "none".into() } else { words.join(",") }
}

pub fn flow(m: &Machine) -> Vec<Finding> {
    let mut all = Vec::new();
    let mut hidden = Vec::new();
    for (device, port) in ports(m) {
        let netdevs = interfaces(m, port);
        if netdevs.is_empty() {
            hidden.push(format!("{} (no interface is shown)", named(device, port)));
        }
        for netdev in netdevs {
            let name = named_by(device, port, Some(&netdev.name));
            all.extend(odd_dscps(netdev).map(|finding| finding.of(name.clone())));
            match (of_netdev(device, netdev, port.has_vlans), &netdev.dcb) {
                (Some(finding), _) => all.push(finding.of(name)),
                (None, Seen::Unreadable(why)) => hidden.push(format!("{name} ({why})")),
                (None, _) => hidden.push(name),
            }
        }
    }
    if !hidden.is_empty() {
        all.push(Finding::unseen(
            format!(
                "PFC, ECN and trust of {}: neither files of MLNX_OFED nor an answer of rtnetlink",
                short(&hidden.join(", "))
            ),
            "mlnx_qos -i INTERFACE; dcb pfc show dev INTERFACE; of a virtual function on the host",
        ));
    }
    all
}

/// Entries of the map of DSCPs that say what is none: all else is found as if they were not there.
fn odd_dscps(netdev: &Netdev) -> Option<Finding> {
    let odd = netdev.dcb.known().map_or(0, |dcb| dcb.odd_dscps);
    let found = format!(
        "entries of the map of DSCPs that are left out, with a DSCP above 63 or a priority above 7: \
         {odd}"
    );
    let how = format!("dcb app show dev {}", quoted(&netdev.name));
    (odd > 0).then(|| Finding::note(found).fix(how))
}

/// `has_vlans`: whether VLANs above it have GIDs.
fn of_netdev(device: &RdmaDevice, netdev: &Netdev, has_vlans: Option<bool>) -> Option<Finding> {
    let pfc = pfc(netdev);
    let ecn = match &netdev.ecn {
        [Seen::Known(np), Seen::Known(rp)] => {
            Some(np.iter().filter(|p| rp.contains(p)).copied().collect::<Vec<u8>>())
        }
        _ => None,
    };
    if pfc.is_none() && ecn.is_none() {
        return None;
    }
    let trust = trusts_dscp(netdev).map_or("unknown", |dscp| if dscp { "dscp" } else { "pcp" });
    let text =
        |all: &Option<Vec<u8>>| all.as_ref().map_or_else(|| "unknown".to_owned(), |p| list(p));
    let mut found =
        format!("PFC of priorities {}, ECN of {}, trust {trust}", text(&pfc), text(&ecn));
    if netdev.dcb.known().and_then(|dcb| dcb.dcbx).is_some_and(|dcbx| dcbx & DCBX_HOST == 0) {
        found += ", as the card's firmware agrees with the switch (DCBX)";
    }
    let on = |all: &Option<Vec<u8>>| all.as_ref().is_some_and(|p| !p.is_empty());
    let off = |all: &Option<Vec<u8>>| all.as_ref().is_some_and(Vec::is_empty);
    let name = quoted(&netdev.name);
    Some(if off(&pfc) && off(&ecn) {
        Finding::warn(found)
            .expected("PFC or ECN of one priority, on the switches as well")
            .cost("a full switch drops packets, and each loss costs a go-back-N or a timeout")
            .fix(
                "PFC of priority 3 and trust of DSCP, ECN of the same priority, and the same \
             on the switch",
            )
            .script("# once the switches have the same:")
            .script(format!("# mlnx_qos --interface={name} --trust dscp --pfc 0,0,0,1,0,0,0,0"))
            .script(format!("# echo 1 > /sys/class/net/{name}/ecn/roce_np/enable/3"))
            .script(format!("# echo 1 > /sys/class/net/{name}/ecn/roce_rp/enable/3"))
    } else if off(&pfc) && ecn.is_none() {
        let at = device.address.map_or_else(|| "ADDRESS".to_owned(), |at| at.to_string());
        Finding::unseen(
            format!("{found}; without PFC only ECN keeps a full switch from dropping packets"),
            format!("mlxconfig -d {at} query ROCE_CC_PRIO_MASK_P1: priorities with ECN"),
        )
    } else if on(&pfc) && trust == "pcp" && has_vlans == Some(true) {
        Finding::note(found).cost("GIDs of VLANs carry the priority, those without have none")
    } else if on(&pfc) && trust == "pcp" && has_vlans.is_none() {
        Finding::unseen(format!("{found}; whether a VLAN carries the priority"), "show_gids")
    } else if on(&pfc) && trust == "pcp" {
        Finding::warn(found)
            .expected("trust of DSCP, or a VLAN that carries the priority")
            .cost("RoCE v2 without a VLAN has no priority bits: it goes as priority 0, without PFC")
            .fix("trust the DSCP")
            .script(match netdev.trust.known() {
                Some(_) => format!(
                    "# once the switches have the same: mlnx_qos --interface={name} --trust dscp"
                ),
                // The kernel's mlx5 trusts DSCP as soon as there is one; manuals take the third of a priority's eight.
                None => {
                    let priority = pfc.iter().flatten().next().copied().unwrap_or_default();
                    let dscp = 8 * priority + 2;
                    format!(
                        "# once the switches have the same: dcb app add dev {name} dscp-prio \
                         {dscp}:{priority}"
                    )
                }
            })
    } else if on(&pfc)
        && on(&ecn)
        && !pfc.iter().flatten().any(|p| ecn.iter().flatten().any(|e| e == p))
    {
        Finding::warn(found)
            .expected("PFC and ECN of one priority, that of RoCE's packets")
            .cost(
                "RoCE's packets have one of them alone: without PFC they are dropped, without ECN \
                 they hold up all that goes the same way",
            )
            .fix("enable ECN of the priority with PFC, and the same on the switch")
            .script("# once the switches have the same, P the priority with PFC:")
            .script(format!("# echo 1 > /sys/class/net/{name}/ecn/roce_np/enable/P"))
            .script(format!("# echo 1 > /sys/class/net/{name}/ecn/roce_rp/enable/P"))
    } else if on(&pfc) && off(&ecn) {
        Finding::note(found)
            .cost("without ECN no sender slows down: pauses spread to all that goes the same way")
    } else {
        Finding::fine(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mtu_of_the_kernel() {
        for (mtu, active) in
            [(9000, 4096), (4192, 4096), (4191, 2048), (1500, 1024), (1119, 512), (0, 0)]
        {
            assert_eq!(active_mtu(mtu), active, "{mtu}");
        }
    }

    #[test]
    fn priorities_are_eight_flags() {
        assert_eq!(priorities("0 0 0 1 0 0 0 0"), Some(vec![3]));
        let table = "PFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n\tenabled \
             1   0   0   0   0   0   0   1";
        assert_eq!(priorities(table), Some(vec![0, 7]));
        assert_eq!(
            (priorities("8"), priorities(""), priorities("0 0 0 2 0 0 0 0")),
            (None, None, None)
        );
    }
}
