//! Counters of cards that grow while something is measured.

use std::collections::{BTreeMap, BTreeSet};

use bellpush::mem::ethtool;

use super::checks::{AGAIN, LINK, NETDEV, interfaces};
use super::finding::Finding;
use super::machine::Machine;
use super::machine::rdma::{Netdev, Port};
use super::read::short;

/// The port that a name of `--nic` is of: `mlx5_0:1` of `mlx5_0:1,tc=106`.
pub fn port(nic: &str) -> &str {
    nic.split(',').next().unwrap_or(nic)
}

/// The card of it: `NAME` of `NAME:PORT:GID-INDEX,tc=N,sl=N` (docs/hardware.md); none of the software NIC.
pub fn card(nic: &str) -> Option<&str> {
    port(nic).split(':').next().filter(|name| *name != "soft")
}

/// Counters by their names, or why there are none.
pub type Counters = Result<BTreeMap<String, u64>, String>;

/// Counters that were there before, and are more now: by how much. Of one that is new it is not known.
pub fn grown(
    before: &BTreeMap<String, u64>,
    after: BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let grown = after.into_iter().filter_map(|(name, after)| {
        let more = after.saturating_sub(*before.get(&name)?);
        (more > 0).then_some((name, more))
    });
    grown.collect()
}

/// The same of two readings, both of which have to be there.
pub fn between(before: Counters, after: Counters) -> Counters {
    Ok(grown(&before?, after?))
}

/// Counters of the devices of mlx5, by device, port and name; of their interfaces those that `rdma-counters` looks at,
/// by the interface, which ports may share.
pub fn counters(m: &Machine) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for device in m.mlx5() {
        for port in &device.ports {
            let named = |(name, value): (&String, &u64)| {
                (format!("{}:{} {name}", device.name, port.number), *value)
            };
            all.extend(port.counters.iter().map(named));
            let netdev = port.netdev.as_deref().and_then(|name| m.netdev(name));
            let of_netdev = |net: &Netdev, name: &str| {
                Some((format!("{} {name}", net.name), *net.statistics.get(name)?))
            };
            all.extend(
                netdev.iter().flat_map(|net| NETDEV.map(|name| of_netdev(net, name))).flatten(),
            );
        }
    }
    all
}

/// A port's interface, and of a bond those that it is made of: their drivers count, the bond's does not.
fn names<'a>(m: &'a Machine, port: &'a Port) -> BTreeSet<&'a str> {
    let members = interfaces(m, port).into_iter().map(|netdev| netdev.name.as_str());
    members.chain(port.netdev.as_deref()).collect()
}

/// Counters of this machine's interfaces of mlx5 that their driver alone has: pause frames and packets that a port has
/// discarded. A driver without any has none.
pub fn of_drivers(m: &Machine) -> BTreeMap<String, u64> {
    let ports = m.mlx5().flat_map(|device| &device.ports);
    let interfaces: BTreeSet<&str> = ports.flat_map(|port| names(m, port)).collect();
    let mut all = BTreeMap::new();
    for interface in interfaces {
        let counted = ethtool::counters(interface).unwrap_or_default();
        let told = counted.into_iter().filter(|(name, _)| is_told_of(name));
        all.extend(told.map(|(name, value)| (format!("{interface} {}", short(&name)), value)));
    }
    all
}

/// Of a driver's counters.
fn is_told_of(name: &str) -> bool {
    ["pause", "discard"].iter().any(|part| name.contains(part))
}

/// Packets that were sent again: since the peer had no receive for them, or was silent.
const REPEATED: [&str; 2] = ["rnr_nak_retry_err", "duplicate_request"];

/// Whether a counter that grows says that packets were lost, or sent again.
fn is_loss(name: &str) -> bool {
    let known = || LINK.iter().chain(&AGAIN).chain(&NETDEV).chain(&REPEATED);
    // Single symbols are what a link may have.
    name != "symbol_error" && (known().any(|own| *own == name) || name.contains("discard"))
}

/// What it means that counters grew while this NIC was measured.
pub fn findings(counters: &BTreeMap<String, u64>, m: &Machine, nic: &str) -> Vec<Finding> {
    let (card, nic) = (card(nic), port(nic));
    let ports = m.mlx5().filter(|own| Some(own.name.as_str()) == card).flat_map(|own| &own.ports);
    let interfaces: BTreeSet<&str> = ports.flat_map(|port| names(m, port)).collect();
    let parts = |name: &str| {
        let (of, counter) = name.split_once(' ').unwrap_or(("", name));
        (of.split(':').next().unwrap_or(of).to_owned(), counter.to_owned())
    };
    let told = |is_own: bool, is_it: fn(&str) -> bool| {
        let grown = counters.iter().filter(|(name, _)| {
            let (of, counter) = parts(name);
            (Some(of.as_str()) == card || interfaces.contains(of.as_str())) == is_own
                && is_it(&counter)
        });
        let all: Vec<String> = grown.map(|(name, more)| format!("{name} +{more}")).collect();
        (!all.is_empty()).then(|| short(&all.join(", ")))
    };
    let mut all = Vec::new();
    all.extend(told(true, is_loss).map(|list| {
        Finding::warn(format!("grew meanwhile: {list}"))
            .of(nic)
            .expected("no packet is lost or sent again")
            .cost("packets are lost and go again: a timeout costs milliseconds")
            .fix("look at cable and switch port, and at roce-flow; then measure again")
    }));
    all.extend(told(false, is_loss).map(|list| {
        Finding::note(format!("grew meanwhile: {list}")).cost("of cards that were not measured")
    }));
    all.extend(told(true, |name| name.contains("pause")).map(|list| {
        let cost = "a receiver or a switch was full and made its sender wait";
        Finding::note(format!("grew meanwhile: {list}")).of(nic).cost(cost)
    }));
    all
}
