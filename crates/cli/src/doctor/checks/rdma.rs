//! RDMA devices.

use std::collections::BTreeMap;

use bellpush::pcie::tlp::{Gen, LinkSpeed};
use bellpush::pcie::topology::{Address, Kind, Rate, Tree};

use super::card::{slot, split};
use crate::doctor::finding::{Finding, Need, quoted};
use crate::doctor::machine::Machine;
use crate::doctor::machine::rdma::{Netdev, Port, RdmaDevice};
use crate::doctor::read::short;

const MELLANOX: u16 = 0x15b3;
/// Retransmissions, and packets that were out of order or late, above which a loss is no accident.
const LOSS: f64 = 1e-6;

pub fn devices(m: &Machine) -> Vec<Finding> {
    if m.mlx5().next().is_some() {
        let names: Vec<String> = m.answering().map(described).collect();
        let fine = Finding::fine("driven by mlx5").of(names.join(", "));
        return if names.is_empty() { Vec::new() } else { vec![fine] };
    }
    let hidden: Vec<String> =
        m.rdma.iter().filter(|d| d.may_be_mlx5()).map(|d| short(&d.name)).collect();
    if !hidden.is_empty() {
        let found = format!("drivers of {}", short(&hidden.join(", ")));
        return vec![Finding::unseen(found, "ibv_devices").hides(&[Need::Nic])];
    }
    if let Some(why) = &m.rdma_hidden {
        let found = format!("RDMA devices: {}", short(why));
        return vec![Finding::unseen(found, "ibv_devices").hides(&[Need::Nic])];
    }
    let none = |found: String| {
        Finding::prevents(&[Need::Nic], found)
            .expected("a device of mlx5: ConnectX-4 or later")
            .cost(
                "no card: puts go over the software NIC (--nic soft), on this machine or over UDP",
            )
    };
    if !m.rdma.is_empty() {
        let others: Vec<String> = m.rdma.iter().map(described).collect();
        let found = format!("no device of mlx5 among {}", others.join(", "));
        return vec![none(short(&found)).fix("put in a ConnectX-4 or later")];
    }
    let cards: Vec<_> = m.pci.capture.known().map_or_else(Vec::new, |capture| {
        let is_mellanox = |a: &bellpush::pcie::topology::Address| {
            capture.get(*a).is_some_and(|f| f.vendor == Some(MELLANOX))
        };
        capture.of_kind(Kind::Nic).into_iter().filter(is_mellanox).collect()
    });
    let Some(&first) = cards.first() else {
        return vec![none("no RDMA device".into()).fix("put in a ConnectX-4 or later")];
    };
    let bound = m.pci.more(first).driver;
    let with =
        bound.clone().map_or_else(|| "no driver".to_owned(), |d| format!("driver {}", short(&d)));
    let found =
        format!("{} functions of ConnectX, {first} with {with}, no RDMA device", cards.len());
    vec![match bound.as_deref() {
        Some("vfio-pci") => none(found).fix(
            "leave the card to its virtual machine, or unbind \
         vfio-pci",
        ),
        Some("mlx4_core") => {
            none(found).fix("put in a ConnectX-4 or later: mlx4 drives older ones")
        }
        _ => none(found)
            .fix(
                "load mlx5_ib (kernel, MLNX_OFED or DOCA-Host); in a container, share the \
             host's network or move the device in (rdma dev set DEVICE netns)",
            )
            .script("modprobe mlx5_ib"),
    }]
}

fn described(device: &RdmaDevice) -> String {
    let at = device.address.map_or_else(|| "software".to_owned(), |a| a.to_string());
    format!("{} ({at})", short(&device.name))
}

pub fn nodes(m: &Machine) -> Vec<Finding> {
    let devices: Vec<&str> = m.mlx5().map(|d| d.name.as_str()).collect();
    if devices.is_empty() || !m.has_dev {
        return Vec::new();
    }
    let inside = m.container().is_some();
    let blocked = |names: &[&str], found: String| {
        let finding = Finding::warn(found).cost("these devices cannot be opened here");
        names.iter().copied().fold(finding, Finding::lacks_nic)
    };
    let missing: Vec<&str> = devices
        .iter()
        .filter(|name| {
            let node = m.uverbs.nodes.get(**name);
            let there = |n: &String| m.uverbs.present.known().is_some_and(|all| all.contains(n));
            !node.is_some_and(there)
        })
        .copied()
        .collect();
    // Names of nodes are those of sysfs: without them it is not seen which are missing.
    let no_module = m.uverbs.nodes.is_empty() && m.system.lacks_module("ib_uverbs");
    if !missing.is_empty() && !m.uverbs.is_whole && !no_module {
        let found = format!("/sys/class/infiniband_verbs of {}", short(&missing.join(", ")));
        let finding = Finding::unseen(found, "ls /dev/infiniband, ibv_devinfo");
        return vec![match missing.len() == devices.len() {
            true => finding.hides(&[Need::Nic]),
            false => missing.into_iter().fold(finding, Finding::lacks_nic),
        }];
    }
    if missing.len() == devices.len() {
        let expected = "/dev/infiniband/uverbs0 and so on";
        if m.uverbs.nodes.is_empty() {
            return vec![
                blocked(&devices, "no node of a device: ib_uverbs is not loaded".into())
                    .expected(expected)
                    .fix("load ib_uverbs")
                    .script("modprobe ib_uverbs"),
            ];
        }
        let found = format!("no /dev/infiniband/uverbs* of {}", short(&missing.join(", ")));
        return vec![match inside {
            true => blocked(&devices, found)
                .expected(expected)
                .fix(
                    "start the container with the devices: --device=/dev/infiniband, or the \
                 RDMA device plugin",
                )
                .script(
                    "# start the container again: docker run --device=/dev/infiniband \
                 --cap-add=IPC_LOCK",
                ),
            false => blocked(&devices, found)
                .expected(expected)
                .fix("start udev")
                .script("udevadm trigger -s infiniband_verbs"),
        }];
    }
    let mut all = Vec::new();
    if !missing.is_empty() {
        all.push(
            blocked(&missing, format!("no node of {}", short(&missing.join(", "))))
                .expected("a node of each device")
                .fix("give the container their nodes, if it is to use them"),
        );
    }
    let has_node = |name: &&str| !missing.contains(name);
    let there = || devices.iter().copied().filter(has_node).collect::<Vec<_>>().join(", ");
    let which = if missing.is_empty() { String::new() } else { there() };
    match &m.uverbs.refused {
        None => all.push(
            Finding::unseen(
                "nodes are there; the rights of a recorded machine cannot be tried",
                "run there",
            )
            .of(which),
        ),
        Some(refused) if refused.is_empty() => {
            all.push(Finding::fine("nodes are there and can be opened").of(which))
        }
        Some(refused) => {
            let of = m.uverbs.nodes.iter().filter(|(_, node)| refused.contains(node));
            let of: Vec<&str> = of.map(|(device, _)| device.as_str()).collect();
            all.push(
                blocked(&of, format!("no right to {}", short(&refused.join(", "))))
                    .expected("read and write /dev/infiniband/uverbs*")
                    .fix("rdma-core's udev rules give everyone the right")
                    .script("chmod 0666 /dev/infiniband/uverbs*"),
            );
        }
    }
    all
}

fn of_port(device: &RdmaDevice, port: &Port) -> String {
    format!("{}:{}", short(&device.name), port.number)
}

/// Active ports by their link layer. Of one whose layer is not shown nothing of RoCE is looked at.
fn layers(all: &[(&RdmaDevice, &Port)]) -> Vec<Finding> {
    let mut known = BTreeMap::<&str, Vec<String>>::new();
    let mut hidden = Vec::new();
    for &(device, port) in all.iter().filter(|(_, port)| port.is_active()) {
        let Some(layer) = port.known_layer() else {
            let why = port.layer.known().map_or_else(|| port.layer.why_not(), String::as_str);
            let found = format!(
                "link layer: {}; so neither is what roce-mtu, roce-gid, roce-flow and roce-class look at",
                short(why)
            );
            let finding =
                Finding::unseen(found, "ibv_devinfo: link_layer").of(of_port(device, port));
            // Of RoCE it is of use with a GID of version 2 alone.
            let is_of_use = |port: &Port| {
                let layer = port.known_layer();
                let has_v2 = port.gids.iter().any(|gid| gid.is_v2 == Some(true));
                port.is_active() && (layer == Some("InfiniBand") || has_v2)
            };
            hidden.push(match device.ports.iter().any(is_of_use) {
                true => finding,
                false => finding.lacks_nic(&device.name),
            });
            continue;
        };
        known.entry(layer).or_default().push(of_port(device, port));
    }
    let told = |(layer, ports): (&str, Vec<String>)| {
        Finding::fine(format!("active, {layer}")).of(ports.join(", "))
    };
    known.into_iter().map(told).chain(hidden).collect()
}

pub fn ports(m: &Machine) -> Vec<Finding> {
    let all: Vec<(&RdmaDevice, &Port)> =
        m.answering().flat_map(|d| d.ports.iter().map(move |p| (d, p))).collect();
    let active: Vec<String> =
        all.iter().filter(|(_, p)| p.is_active()).map(|(d, p)| of_port(d, p)).collect();
    let mut findings = Vec::new();
    findings.extend(layers(&all));
    // What is not seen may be active.
    let hides: &[Need] = if active.is_empty() { &[Need::Nic] } else { &[] };
    let hidden = |found: String| Finding::unseen(found, "ibv_devinfo").hides(hides);
    // Another port of the same card is enough.
    let may_lack = |finding: Finding, d: &RdmaDevice| match hides.is_empty() && !d.is_active() {
        true => finding.lacks_nic(&d.name),
        false => finding,
    };
    for device in m.answering().filter(|d| d.ports.is_empty()) {
        let finding = hidden("no ports are shown".to_owned()).of(short(&device.name));
        findings.push(may_lack(finding, device));
    }
    for device in m.rdma.iter().filter(|d| d.may_be_mlx5()) {
        let finding = Finding::unseen("its driver is not shown", "ibv_devinfo");
        findings.push(finding.of(short(&device.name)).lacks_nic(&device.name));
    }
    for (device, port) in all.iter().filter(|(_, p)| p.state.known().is_none()) {
        let found = format!("state: {}", short(port.state.why_not()));
        findings.push(may_lack(hidden(found).of(of_port(device, port)), device));
    }
    for (device, port) in all {
        let Some(state) = port.state.known().filter(|_| !port.is_active()) else { continue };
        let link = port.physical.known().map_or("unknown", String::as_str);
        let layer = port.known_layer().map_or(String::new(), |layer| format!(", {layer}"));
        let found = format!("{} (link {}){layer}", short(state), short(link));
        let waits = matches!(state.as_str(), "INIT" | "ARMED");
        // A port that nobody has plugged in lies beside one that works.
        let finding = if waits { Finding::warn(found) } else { Finding::note(found) };
        let finding = finding.cost("this port sends nothing");
        let mut finding = finding.of(of_port(device, port)).expected("ACTIVE");
        if device.is_down() {
            finding = finding.lacks_nic(&device.name);
        }
        if waits {
            finding =
                finding.fix("start a subnet manager: the link is up and nobody has given it a LID");
        } else if let Some(netdev) = port.netdev.as_ref().filter(|_| port.is_ethernet()) {
            finding = finding
                .fix(format!("bring up {}, and look at cable and switch port", short(netdev)))
                .script(format!("ip link set dev {} up", quoted(netdev)));
        } else {
            finding =
                finding.fix("look at cable and switch port; InfiniBand needs a subnet manager");
        }
        findings.push(finding);
    }
    findings
}

pub fn firmware(m: &Machine) -> Vec<Finding> {
    let mut boards: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for device in m.answering() {
        if let (Some(board), Some(version)) = (device.board.known(), device.firmware.known()) {
            let names = boards.entry(board).or_default().entry(version).or_default();
            names.push(&device.name);
        }
    }
    let mut all = Vec::new();
    for (board, versions) in &boards {
        if let (1, Some((version, names))) = (versions.len(), versions.first_key_value()) {
            let found = short(&format!("{version} of board {board}"));
            all.push(Finding::fine(found).of(short(&names.join(", "))));
            continue;
        }
        let list: Vec<String> =
            versions.iter().map(|(v, names)| format!("{v} of {}", names.join(", "))).collect();
        let found = short(&format!("{board}: {}", list.join("; ")));
        all.push(
            Finding::warn(found)
                .expected("one version for all cards of a board")
                .cost("cards of one job differ in features and speed")
                .fix("update the older ones: mlxfwmanager --online -u, or mlxup"),
        );
    }
    all
}

pub fn window(m: &Machine) -> Vec<Finding> {
    let measured = m.answering().filter_map(|d| Some((d, *m.device_memory.get(&d.name)?)));
    let mut all: Vec<Finding> =
        measured.map(|(device, bytes)| measured_window(device, bytes)).collect();
    if m.pci.capture.known().is_none() {
        return all;
    }
    let others = m.answering().filter(|d| !m.device_memory.contains_key(&d.name));
    let (without, with): (Vec<_>, Vec<_>) = others.partition(|d| m.lacks_memory(&d.name));
    let names = |all: &[&RdmaDevice]| {
        short(&all.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(", "))
    };
    if !without.is_empty() {
        let found = format!("ConnectX-4 has no device memory: {}", names(&without));
        all.push(Finding::note(found).cost(HOST_WINDOW));
    }
    if !with.is_empty() {
        all.push(Finding::unseen(
            format!("device memory of {} is not in sysfs", names(&with)),
            "ibv_devinfo -v, \"maximum available device memory\": 128 or 256 KiB on ConnectX-5 \
             to -7",
        ));
    }
    all
}

/// What it costs to have no device memory.
const HOST_WINDOW: &str =
    "the window is in host memory, and the NIC reads a push's payload from there";

/// Of a device that `--live` has opened.
fn measured_window(device: &RdmaDevice, bytes: u64) -> Finding {
    let finding = match bytes {
        0 => Finding::note("no device memory").cost(HOST_WINDOW),
        bytes => Finding::fine(format!("{bytes} B of device memory")),
    };
    finding.of(short(&device.name)).source("measured")
}

/// Active ports of one card, which share its link.
#[derive(Default)]
struct Card {
    /// Sum of their rates, Gb/s.
    gbps: f64,
    /// The highest of their rates, Gb/s.
    most: f64,
    /// Their names.
    ports: Vec<String>,
}

/// What a link carries, Gb/s, with its encoding and without the TLPs' headers.
fn raw_gbps(rate: Rate) -> Option<f64> {
    let link = LinkSpeed::new(Gen::new(rate.generation).ok()?, rate.lanes).ok()?;
    Some(link.raw_gbps())
}

pub fn rate(m: &Machine) -> Vec<Finding> {
    let Some(tree) = m.pci.tree() else { return Vec::new() };
    let mut all = Vec::new();
    // Functions of one card share its link.
    let mut cards: BTreeMap<Slot, Card> = BTreeMap::new();
    let mut narrow = Vec::new();
    for device in m.answering() {
        for port in device.ports.iter().filter(|p| p.is_active()) {
            let Some((gbps, text)) = port.rate.known() else { continue };
            if text.contains("(1X ")
                && port.layer.known().is_some_and(|layer| layer == "InfiniBand")
            {
                narrow.push(of_port(device, port));
                all.push(
                    Finding::warn(short(text))
                        .of(of_port(device, port))
                        .expected("4X")
                        .cost("a quarter of the cable's rate")
                        .fix("change the cable, or look at the switch port"),
                );
            }
            if let Some(a) = device.address.filter(|a| !tree.capture().is_virtual(*a)) {
                let card = cards.entry(slot(a)).or_default();
                card.gbps += gbps;
                card.most = card.most.max(*gbps);
                card.ports.push(of_port(device, port));
            }
        }
    }
    all.extend(
        split(m, &tree).into_iter().filter_map(|halves| of_halves(&tree, &halves, &mut cards)),
    );
    for device in m.mlx5() {
        let Some(address) = device.address else { continue };
        let (max, now) = tree.link(address);
        let (Some(Card { gbps, most, ports }), Some(rate)) = (cards.remove(&slot(address)), max)
        else {
            continue;
        };
        // Which `pcie-link` tells of.
        let is_below = now.is_some_and(|now| now.common(rate) != rate);
        let Some(limit) = raw_gbps(rate) else { continue };
        let found = format!("{gbps:.0} Gb/s of ports on {rate}, which carries {limit:.0} Gb/s");
        let subject = ports.join(", ");
        // An x16 of Gen3 under a port of 100 Gb/s is what vendors pair: 126 for 100. The second
        // port of such a card is for other networks, or for when the first is down.
        all.push(if most <= limit && gbps > limit {
            Finding::note(found)
                .of(subject)
                .cost("PCIe carries each of the ports, and not all of them at once")
        } else if gbps > limit && is_half(m, device) {
            let how = "read rates and links of both of the card's functions, which share its ports";
            Finding::unseen(format!("{found}, a half of a card"), how).of(subject)
        } else if gbps > limit {
            let few = "PCIe bounds the rate";
            Finding::warn(found)
                .of(subject)
                .expected("a link that carries its ports")
                .cost(format!("{few}: {:.0} % of the ports' rate at most", limit / gbps * 100.0))
                .fix("move the card to a wider or faster slot, or count on the lower rate")
        } else if is_below || narrow.iter().any(|port| subject.split(", ").any(|own| own == port)) {
            // What carries its ports' rate carries less than it should.
            continue;
        } else {
            Finding::fine(found).of(subject)
        });
    }
    all
}

/// Whether another function is of the same card, in another slot, of which not all is seen: of those that are whole, both
/// links are looked at together.
fn is_half(m: &Machine, device: &RdmaDevice) -> bool {
    m.mlx5().any(|other| {
        let slots = other.address.zip(device.address);
        let images = other.image.known().zip(device.image.known());
        slots.is_some_and(|(a, b)| slot(a) != slot(b)) && images.is_some_and(|(x, y)| x == y)
    })
}

/// Domain, bus and device.
type Slot = (u32, u8, u8);

/// Of a card with a link to each of two sockets, which share its ports: what both links carry, beside the ports of one.
/// It is taken out of `cards`, unless not all of it is seen.
fn of_halves(
    tree: &Tree<'_>,
    halves: &[Address],
    cards: &mut BTreeMap<Slot, Card>,
) -> Option<Finding> {
    let of = |a: &Address| {
        let (max, now) = tree.link(*a);
        let max = max?;
        let is_whole = now.is_none_or(|now| now.common(max) == max);
        Some((cards.get(&slot(*a))?, raw_gbps(max)?, is_whole))
    };
    let all: Vec<(&Card, f64, bool)> = halves.iter().map(of).collect::<Option<_>>()?;
    let gbps = all.iter().map(|(card, ..)| card.gbps).fold(0.0, f64::max);
    let limit: f64 = all.iter().map(|(_, limit, _)| limit).sum();
    let least = all.iter().map(|(_, limit, _)| *limit).fold(f64::INFINITY, f64::min);
    let is_whole = all.iter().all(|(.., is_whole)| *is_whole);
    let ports: Vec<&str> =
        all.iter().flat_map(|(card, ..)| &card.ports).map(String::as_str).collect();
    let subject = ports.join(", ");
    let found = format!(
        "{gbps:.0} Gb/s of one card's ports on {} links, which carry {limit:.0} Gb/s",
        all.len()
    );
    halves.iter().for_each(|a| drop(cards.remove(&slot(*a))));
    let finding = if gbps > limit {
        Finding::warn(found)
            .expected("links that carry the ports together")
            .cost(format!(
                "PCIe bounds the rate: {:.0} % of the ports' rate at most",
                limit / gbps * 100.0
            ))
            .fix("move the card to wider or faster slots, or count on the lower rate")
    } else if gbps > least {
        Finding::note(found).cost(format!("one half alone carries {least:.0} Gb/s"))
    } else if is_whole {
        Finding::fine(found)
    } else {
        // Which `pcie-link` tells of.
        return None;
    };
    Some(finding.of(subject))
}

/// Counters of errors on the link, and of packets that had to go again.
pub const LINK: [&str; 7] = [
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_xmit_discards",
    "rx_icrc_encapsulated",
];
/// Errors of a symbol that a link of InfiniBand may have: a bit error rate of 1e-12 (InfiniBand
/// specification, volume 2, 6.4) is one in 10^8 packets of 1 KiB, and most symbols are idle ones.
const SYMBOL_ERRORS: f64 = 1e-9;
/// The same of the interface: those of its statistics that no usual traffic raises.
pub const NETDEV: [&str; 2] = ["rx_crc_errors", "rx_fifo_errors"];
pub const AGAIN: [&str; 5] = [
    "packet_seq_err",
    "local_ack_timeout_err",
    "out_of_sequence",
    "roce_adp_retrans",
    "roce_slow_restart",
];

pub fn counters(m: &Machine) -> Vec<Finding> {
    let mut all = Vec::new();
    for device in m.answering() {
        for port in device.ports.iter().filter(|p| p.is_active()) {
            let netdev = port.netdev.as_deref().and_then(|name| m.netdev(name));
            all.push(of_counters(port, netdev).of(of_port(device, port)));
        }
    }
    all
}

fn of_counters(port: &Port, netdev: Option<&Netdev>) -> Finding {
    if port.counters.is_empty() {
        return Finding::unseen(
            "no counters",
            "they are the physical function's, or need `rdma stat`",
        );
    }
    let nonzero = |names: &[&str]| -> Vec<String> {
        let seen = names.iter().map(|n| (n, port.counter(n))).filter(|(_, value)| *value > 0);
        seen.map(|(n, value)| format!("{n} {value}")).collect()
    };
    let count = ["port_xmit_packets", "port_rcv_packets"].map(|name| port.counters.get(name));
    let is_counted = count.iter().all(Option::is_some);
    let packets = count.into_iter().flatten().fold(0, |sum: u64, n| sum.saturating_add(*n));
    let (mut link, mut again) = (nonzero(&LINK), nonzero(&AGAIN));
    let symbols = port.counter("symbol_error");
    if !is_counted || symbols as f64 <= SYMBOL_ERRORS * packets as f64 {
        link.retain(|text| !text.starts_with("symbol_error "));
        again.extend((symbols > 0).then(|| format!("symbol_error {symbols}")));
    }
    for name in NETDEV {
        let value = netdev.and_then(|n| n.statistics.get(name)).copied().unwrap_or(0);
        link.extend((value > 0).then(|| format!("{name} {value}")));
    }
    let count: u64 = AGAIN.iter().fold(0, |sum: u64, n| sum.saturating_add(port.counter(n)));
    let marks = port.counter("np_ecn_marked_roce_packets");
    let ecn =
        if marks > 0 { format!("; {marks} packets were marked by ECN") } else { String::new() };
    let of = format!("of {packets} packets{ecn}");
    let share = count as f64 / packets.max(1) as f64;
    let fix = "read the counters twice: those that grow count; then cable, switch, and PFC or ECN";
    let unready = port.counter("rnr_nak_retry_err");
    if unready > 0 {
        again.push(format!("rnr_nak_retry_err {unready}"));
    }
    if !link.is_empty() {
        let found = format!("{} {of}", [link, again].concat().join(", "));
        return Finding::warn(found)
            .expected("no errors of the link")
            .cost("packets are lost and go again: a timeout costs milliseconds")
            .fix(fix);
    }
    if !is_counted && !again.is_empty() {
        let found = format!("{} of an unknown number of packets", again.join(", "));
        return Finding::unseen(found, "perfquery -x, or ethtool -S INTERFACE");
    }
    if share > LOSS {
        return Finding::warn(format!("{} {of}", again.join(", ")))
            .expected("less than one in a million")
            .cost(
                "go-back-N sends all packets behind a lost one again; a timeout costs milliseconds",
            )
            .fix(fix);
    }
    if unready as f64 > LOSS * packets as f64 {
        return Finding::warn(format!("{} {of}", again.join(", ")))
            .expected("a receive posted for each send")
            .cost("the receiver had no buffer: the sender waits for its RNR timer and sends again")
            .fix("post receives earlier, or more of them; the network is not at fault");
    }
    if !again.is_empty() {
        return Finding::note(format!("{} {of}", again.join(", ")));
    }
    // A counter that is not there has counted nothing: errors are in one folder, retransmissions in another.
    let is_shown = |names: &[&str]| names.iter().any(|name| port.counters.contains_key(*name));
    match (is_shown(&LINK), is_shown(&AGAIN)) {
        (true, true) => Finding::fine(format!("no errors and no retransmissions {of}")),
        (true, false) => Finding::unseen(
            format!("no errors {of}; retransmissions are not shown"),
            "rdma statistic show link, or counters of the port's folder hw_counters",
        ),
        (false, true) => Finding::unseen(
            format!("no retransmissions {of}; errors of the link are not shown"),
            "perfquery -x, or ethtool -S INTERFACE",
        ),
        (false, false) => Finding::unseen(
            "counters of neither errors nor retransmissions",
            "perfquery -x, ethtool -S INTERFACE, and rdma statistic show link",
        ),
    }
}
