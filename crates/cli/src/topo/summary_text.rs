//! The summary as text: a table with a line for each GPU, and a sentence for what the table cannot
//! say.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use bellpush::pcie::Origin;
use bellpush::pcie::text::one_line;
use bellpush::pcie::topology::{Class, Full, Kind, Narrowest, NodeId};
use bellpush_cli::report::human::decimals;

use super::advice::{Basis, Without};
use super::nics::{Is, ports_of_card};
use super::source::Source;
use super::summary::{Alone, Choice, Line, Names, Nic, Summary};

/// What each path is.
const PATHS: [(&str, &str); 5] = [
    (
        "push/blueflame",
        "the GPU writes descriptor and payload in one doorbell write (220 B at most)",
    ),
    ("push/kernel", "the GPU writes the payload into the NIC's memory, then rings its doorbell"),
    (
        "push/inband",
        "the GPU writes numbered lines, from which the software NIC sees that they are whole",
    ),
    ("pull", "the NIC reads GPU memory (GPUDirect RDMA)"),
    ("staged", "the payload is copied to host memory, where the NIC reads it"),
];

fn gb(rate: f64) -> String {
    decimals(rate, if rate < 10.0 { 2 } else { 1 })
}

fn cell(choice: &Choice) -> String {
    let mark = if choice.is_unknown { " ?" } else { "" };
    match choice.paths[..] {
        [] => "none possible".to_owned(),
        _ => choice.paths.join(" or ") + mark,
    }
}

fn size(bytes: u32) -> String {
    if bytes < 1024 { format!("{bytes} B") } else { format!("{} KiB", bytes / 1024) }
}

fn alone(rate: Alone) -> String {
    match rate {
        Alone::Model(rate, origin) => format!("{}{}", gb(rate), origin.letter()),
        Alone::AtMost(rate) => format!("<= {}", gb(rate)),
        Alone::ByLink(rate) => format!("unknown, <= {}", gb(rate)),
        Alone::Unknown => "unknown".to_owned(),
    }
}

/// What is printed first. `collapses`: whether the details warn of writes between GPUs.
pub fn text(summary: &Summary, names: &Names<'_>, basis: &Basis, collapses: bool) -> String {
    let mut out = head(summary, names);
    if summary.gpus.iter().any(|line| line.nic.or(line.nearest).is_some()) {
        table(summary, names, &mut out);
    }
    if names.source.is_beside_a_stranger() {
        out += "No class of nvidia-smi's matrix was compared: fewer than two of its devices are known in the \
                capture. Are both of one machine, and of all its GPUs?\n";
    }
    nics(summary, names, basis, &mut out);
    shares(summary, names, &mut out);
    choices(summary, names, &mut out);
    if collapses {
        out += "Writes between GPUs can lose most of their rate on some machines: \"posted-write \
                collapse\" below has\nthe GPUs of this one, and what to do.\n";
    }
    out + "\nDetails:\n"
}

fn head(summary: &Summary, names: &Names<'_>) -> String {
    let name = one_line(&names.topology.name);
    let (gpus, nics) = (summary.gpus.len(), summary.nics.len());
    let has = summary.nics.iter().filter(|nic| nic.has_rdma == Some(true)).count();
    let unknown = summary.nics.iter().filter(|nic| nic.has_rdma.is_none()).count();
    let many = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let (all_gpus, all_nics) = (many(gpus, "GPU"), many(nics, "NIC"));
    let mut out = format!("{name}: {all_gpus}, {all_nics}, {has} with RDMA");
    if unknown > 0 {
        let _ = write!(out, ", of {unknown} unknown");
    }
    out.push_str(match (gpus, has + unknown) {
        (0, _) => ".\nNo GPU: nothing to advise.\n",
        (_, 0) if nics > 0 => {
            ".\nNo NIC with RDMA was found: no GPU can send by RDMA from here.\n\n"
        }
        (_, 0) => ".\nNo NIC was found: nothing to advise.\n",
        _ => ".\nThe NIC that each GPU should take, and how to send messages of a size:\n\n",
    });
    out
}

fn row(summary: &Summary, names: &Names<'_>, line: &Line, sizes: &[u32]) -> Vec<String> {
    let nic = match line.nic {
        None => match line.nearest {
            Some(nic) => format!("none with RDMA (nearest: {})", names.long(nic)),
            None => "none with RDMA".to_owned(),
        },
        Some(nic) => {
            let ports = summary.nics.iter().find(|n| n.nic == nic).map(|n| n.port);
            let port = ports.filter(|(_, of)| *of > 1);
            let port = port.map_or_else(String::new, |(port, of)| format!(" port {port} of {of}"));
            let or = match line.ties.len() {
                0 => String::new(),
                1..4 => format!(" (or {})", names.list(&line.ties)),
                many => format!(" (or {many} others)"),
            };
            names.long(nic) + &port + &or
        }
    };
    let class = match (line.class, line.nic) {
        (_, None) if line.nearest.is_none() => "-".to_owned(),
        (Class::Unknown, _) => "unknown".to_owned(),
        (class, Some(nic)) => names.class(line.gpu, nic, class),
        (class, _) => class.to_string(),
    };
    let mut cells = vec![names.long(line.gpu), nic, class];
    for &bytes in sizes {
        let choice = line.choices.iter().find(|c| c.bytes == bytes);
        let none = if line.nic.is_none() { "-" } else { "unknown" };
        cells.push(choice.map_or_else(|| none.to_owned(), cell));
    }
    cells.push(if line.nic.is_none() { "-".to_owned() } else { alone(line.alone) });
    cells.push(match &line.all_send {
        Some((_, None)) => "the same".to_owned(),
        Some((rate, Some(_))) => format!("~{}", gb(*rate)),
        None if line.nic.is_none() => "-".to_owned(),
        None => "unknown".to_owned(),
    });
    let shared = names.list(&line.shared_with);
    cells.push(if shared.is_empty() || line.nic.is_none() { "-".to_owned() } else { shared });
    cells
}

fn table(summary: &Summary, names: &Names<'_>, out: &mut String) {
    let mut sizes: Vec<u32> = Vec::new();
    if summary.has_paths {
        let first = summary.gpus.iter().find(|line| !line.choices.is_empty());
        let known = first.map(|line| line.choices.iter().map(|c| c.bytes).collect());
        sizes = known.unwrap_or_else(|| vec![8, 4096, 256 << 10]);
    }
    let mut rows: Vec<Vec<String>> = vec![["GPU", "NIC to take", "class"].map(String::from).into()];
    rows[0].extend(sizes.iter().map(|&bytes| size(bytes)));
    rows[0].extend(["GB/s alone", "if all send", "port shared with"].map(String::from));
    rows.extend(summary.gpus.iter().map(|line| row(summary, names, line, &sizes)));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..rows[0].len()).map(|column| width(column).unwrap_or(0)).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    out.push('\n');
}

/// What each NIC is, those alike in one line.
fn nics(summary: &Summary, names: &Names<'_>, basis: &Basis, out: &mut String) {
    let mut all: Vec<(String, Vec<NodeId>)> = Vec::new();
    for nic in &summary.nics {
        let is_priced = |line: &Line| line.nic == Some(nic.nic) && !line.choices.is_empty();
        let text = nic_text(nic, names, basis, summary.gpus.iter().any(is_priced));
        match all.iter_mut().find(|(other, _)| *other == text) {
            Some((_, nics)) => nics.push(nic.nic),
            None => all.push((text, vec![nic.nic])),
        }
    }
    for (text, nics) in all {
        let _ = writeln!(out, "{}: {text}", names.list(&nics));
    }
}

fn nic_text(nic: &Nic, names: &Names<'_>, basis: &Basis, is_priced: bool) -> String {
    let (topology, n) = (names.topology, nic.nic);
    let model = names.model(n);
    let model = if model.is_empty() { "name unknown".to_owned() } else { model };
    if nic.is == Is::NoRdma {
        return format!(
            "{model}. No RDMA: not for GPUDirect RDMA, and no GPU should take it for that."
        );
    }
    let what = match (nic.is, nic.has_rdma) {
        (Is::Mlx5, _) => "RDMA (mlx5)".to_owned(),
        (Is::Other(driver), _) => format!("RDMA ({driver})"),
        (_, Some(true)) => "RDMA".to_owned(),
        (_, Some(false)) => "no RDMA by its name".to_owned(),
        (_, None) => "whether it has RDMA is unknown".to_owned(),
    };
    let mut text = format!("{model}. {what}");
    let _ = match basis.port(topology, n) {
        Some(port) => write!(text, "; port {} GB/s ({})", gb(port.gb_per_s), port.said),
        None => write!(text, "; port's rate unknown"),
    };
    let node = topology.node(n);
    let _ = match (topology.link_gb_per_s(n), node.link) {
        (Some(rate), Some(link)) => {
            let (generation, lanes) = (link.speed.generation().number(), link.speed.lanes());
            write!(text, "; PCIe Gen{generation} x{lanes} {} GB/s", gb(rate))
        }
        _ => write!(text, "; PCIe link unknown"),
    };
    if nic.port.1 > 1 {
        let _ = write!(text, ", shared by {} ports", nic.port.1);
    }
    if let Is::Other(_) = nic.is {
        text += ".\n  Not mlx5: kernels cannot post to it, push does not exist there, and a CPU posts. pull \
                 needs its driver to register\n  GPU memory. Which of pull and staged is faster is \
                 unknown";
    }
    if is_priced {
        let _ = write!(text, "; times below are of {}", basis.taken_for(topology, n));
    }
    text + "."
}

/// What keeps GPUs from more while all send.
fn shares(summary: &Summary, names: &Names<'_>, out: &mut String) {
    let full = summary.gpus.iter().filter_map(|line| line.all_send.as_ref()?.1.as_ref());
    let mut all: Vec<&Full> = Vec::new();
    full.for_each(|full| {
        if all.iter().all(|other| other.what != full.what) {
            all.push(full);
        }
    });
    for full in all {
        let gpus = summary.sending_by(full);
        let together = if gpus.len() > 1 { " together" } else { "" };
        let _ = writeln!(
            out,
            "If all GPUs send at once, {} get at most {} GB/s{together}: {}.",
            names.list(&gpus),
            gb(full.gb_per_s),
            narrowest(names, full.what)
        );
    }
}

fn narrowest(names: &Names<'_>, by: Narrowest) -> String {
    let topology = names.topology;
    let (a, b) = match by {
        Narrowest::Port(nic) => return format!("the wire of {}'s port is full", names.short(nic)),
        Narrowest::Link(a, b) => (a, b),
    };
    let node = |n: NodeId| topology.node(n);
    for (nic, other) in [(a, b), (b, a)] {
        if node(nic).kind != Kind::Nic || node(nic).parent != Some(other) {
            continue;
        }
        let ports = ports_of_card(topology, nic);
        let ports = match ports[..] {
            [_] => format!("of {}", names.list(&ports)),
            _ => format!("that {} share", names.list(&ports)),
        };
        return format!("the PCIe link {ports} is full");
    }
    let is_socket = |n: NodeId| matches!(node(n).kind, Kind::Socket | Kind::NumaNode);
    if is_socket(a) && is_socket(b) {
        let rate = topology
            .between(a, b)
            .map_or_else(String::new, |l| format!(" ({} GB/s, {})", l.gb_per_s, l.origin));
        return format!("the link between {} and {}{rate} is full", names.short(a), names.short(b));
    }
    format!("the link between {} and {} is full", names.short(a), names.short(b))
}

/// What nobody knows of root complexes on the ways.
fn unknown_roots(roots: &[NodeId], names: &Names<'_>, out: &mut String) {
    let topology = names.topology;
    // Of some it is reported that they forward both, and not at what rate.
    let forwards = |&root: &NodeId| {
        let (p2p, _) = topology.p2p_of(root);
        p2p.reads == Some(true) && p2p.writes == Some(true)
    };
    let (known, roots): (Vec<NodeId>, Vec<NodeId>) = roots.iter().copied().partition(forwards);
    if !roots.is_empty() {
        let _ = writeln!(
            out,
            ". Nobody reports whether root complexes on the way forward reads and writes between devices, \
             and how fast;\n  the choice assumes that they do. Where they refuse reads, take staged in \
             place of pull.\n  Root complexes: {}.",
            names.list(&roots)
        );
    }
    if !known.is_empty() {
        let _ = writeln!(
            out,
            "{} on the way forward reads and writes between devices, and not all of their rates are reported;\n  \
             the choice assumes that they limit nothing.\n  Root complexes: {}.",
            if roots.is_empty() { ". Root complexes" } else { "  Others" },
            names.list(&known)
        );
    }
    out.push_str(
        "  Measure: ib_write_bw and ib_read_bw with --use_cuda, from such a GPU through its NIC.\n",
    );
    if roots.is_empty() {
        return;
    }
    let cpu =
        |&root: &NodeId| topology.socket_of(root).map_or("", |s| topology.node(s).model.as_str());
    let cpus: BTreeSet<String> = roots.iter().map(|root| one_line(cpu(root))).collect();
    if cpus.contains("") {
        out.push_str(
            "  Of some CPUs it is known, and nothing here names this machine's: add --cpu NAME, as \
             lscpu has it.\n",
        );
    } else {
        let cpus: Vec<String> = cpus.into_iter().collect();
        let _ = writeln!(out, "  That is so of {}.", cpus.join(", "));
    }
}

/// What the cells of the paths mean.
fn choices(summary: &Summary, names: &Names<'_>, out: &mut String) {
    let all = || summary.gpus.iter().flat_map(|line| &line.choices);
    if all().any(|c| c.paths.len() > 1) {
        out.push_str("A or B: a tie, either can be the faster.\n");
    }
    let mut roots: Vec<NodeId> =
        summary.gpus.iter().flat_map(|l| l.unknown_roots.clone()).collect();
    roots.sort_unstable();
    roots.dedup();
    let mut sockets: Vec<[NodeId; 2]> =
        summary.gpus.iter().flat_map(|l| l.unknown_between.clone()).collect();
    sockets.sort_unstable();
    sockets.dedup();
    if all().any(|c| c.is_unknown) {
        out.push_str("?: unknown");
        match (roots.is_empty(), sockets.is_empty()) {
            (true, true) => out.push_str(", as said of the NIC.\n"),
            (true, false) => out.push_str(".\n"),
            (false, _) => unknown_roots(&roots, names, out),
        }
        if !sockets.is_empty() {
            let ends = sockets.iter().map(|ends| ends.map(|n| names.short(n)).join(" and "));
            let _ = writeln!(
                out,
                "  What goes between sockets is unknown from 64 KiB on, and taken as not limited: {}.\n  \
                 --socket-gb-per-s gives what the link between them carries.",
                ends.collect::<Vec<_>>().join(", ")
            );
        }
    }
    for (path, what) in PATHS {
        if all().any(|c| c.paths.contains(&path)) {
            let _ = writeln!(out, "{path}: {what}.");
        }
    }
    let rates = || summary.gpus.iter().filter(|l| l.nic.is_some()).map(|l| l.alone);
    let modelled = |origin| rates().any(|r| matches!(r, Alone::Model(_, own) if own == origin));
    if rates().any(|rate| matches!(rate, Alone::Model(..))) {
        out.push_str("GB/s alone: 8 messages of 64 KiB in flight of one GPU, nothing else sending");
        if modelled(Origin::Assumed) {
            out.push_str("; a: hangs on assumed numbers");
        }
        if modelled(Origin::Unknown) {
            out.push_str("; u: hangs on what is unknown");
        }
        out.push_str(".\n");
    }
    if summary.gpus.iter().any(|line| line.nic.is_some()) {
        out.push_str("<=: what ports and links carry at most.\n");
    }
    let is_printed = |line: &Line| line.nic.is_some_and(|nic| names.is_printed(line.gpu, nic));
    if summary.gpus.iter().any(is_printed) {
        out.push_str("*: by nvidia-smi's matrix; the capture does not show it.\n");
    }
    if summary.gpus.iter().any(|line| matches!(line.all_send, Some((_, Some(_))))) {
        out.push_str(
            "~: an even share; a GPU has more where another sends less, or smaller TLPs.\n",
        );
    }
    without(summary, names, out);
}

/// Why a GPU has no path, and what would give it one.
fn without(summary: &Summary, names: &Names<'_>, out: &mut String) {
    for (why, text) in [
        (Without::Class, "no path, since the way to the NIC is not known"),
        (Without::Link, "no path, since a PCIe link on the way is not known"),
        (Without::Kinds, "no path: more different pairs of a GPU and a NIC than are simulated"),
        (Without::Rdma, "no NIC with RDMA"),
    ] {
        let of: Vec<&Line> = summary.gpus.iter().filter(|l| l.without == Some(why)).collect();
        if of.is_empty() {
            continue;
        }
        let gpus: Vec<NodeId> = of.iter().map(|line| line.gpu).collect();
        let _ = write!(out, "{}: {text}", names.list(&gpus));
        match (why, names.source) {
            (Without::Rdma, _) => {
                let mut near: Vec<NodeId> = of.iter().filter_map(|line| line.nearest).collect();
                near.sort_unstable();
                near.dedup();
                let _ = write!(out, "; the nearest without: {}, for TCP alone", names.list(&near));
            }
            (Without::Class | Without::Link, Source::Matrix(_)) => {
                out.push_str(
                    ": nvidia-smi shows no links.\n  Add --from FILE: the whole `lspci -vvv` of that \
                     machine, as root",
                );
            }
            (Without::Class | Without::Link, Source::Captured(..)) => {
                out.push_str(
                    ".\n  Add --from FILE: the whole `lspci -vvv` of that machine, as root, with all \
                     bridges",
                );
            }
            _ => {}
        }
        out.push_str(".\n");
    }
}
