//! What a capture or a matrix shows, as text.

use std::fmt::Write as _;

use super::assign::{Assigned, assign, assign_matrix};
use super::capture::{Address, Function, Port};
use super::check::{Comparison, compare, unknowns, write_fans};
use super::identity;
use super::model::Kind;
use super::nvidia_smi::Matrix;
use super::p2p::{Collapse, KNOWN_COLLAPSES, LOOKED_FOR, PostedCollapse};
use super::tree::Tree;
use crate::text::one_line;

/// Widest table of classes, in devices; a wider one is for the JSON.
const MAX_COLUMNS: usize = 40;

/// A word or more of others' text for one line, not too long.
fn short(text: &str) -> String {
    one_line(text).chars().take(60).collect()
}

/// Every GPU and NIC with its links, classes, NICs of the GPUs, warnings, and what is not known.
pub fn survey_text(tree: &Tree<'_>, matrix: Option<&Matrix>) -> String {
    let capture = tree.capture();
    let mut out = String::new();
    let (gpus, nics) = (capture.of_kind(Kind::Gpu), capture.of_kind(Kind::Nic));
    let devices: Vec<Address> = gpus.iter().chain(&nics).copied().collect();
    let label = |a: Address| {
        let place = |all: &[Address]| all.iter().position(|&other| other == a);
        let gpu = place(&gpus).map(|i| format!("GPU{i}"));
        gpu.or_else(|| place(&nics).map(|i| format!("NIC{i}"))).unwrap_or_else(|| a.to_string())
    };
    for &a in &devices {
        if let Some(f) = capture.get(a) {
            let _ = writeln!(out, "{:6} {}", label(a), device(tree, f));
        }
    }
    switches(tree, &devices, &mut out);
    if devices.len() > 1 && devices.len() <= MAX_COLUMNS {
        let _ = writeln!(out, "\nClasses, as nvidia-smi names them (ACS aside):");
        let _ = write!(out, "{:6}", "");
        devices.iter().for_each(|&a| {
            let _ = write!(out, "{:>9}", label(a));
        });
        out.push('\n');
        for &a in &devices {
            let _ = write!(out, "{:6}", label(a));
            for &b in &devices {
                let class = if a == b { "X".to_owned() } else { marked(tree, a, b) };
                let _ = write!(out, "{class:>9}");
            }
            out.push('\n');
        }
        if devices.iter().any(|&a| devices.iter().any(|&b| tree.printed(a, b).is_some())) {
            out.push_str("*: by nvidia-smi's matrix; the capture does not show it\n");
        }
    }
    let no_rdma = |a: &Address| capture.get(*a).and_then(identity::has_rdma) == Some(false);
    let class = |a: &Assigned<Address>| match a.nic {
        Some(nic) => marked(tree, a.gpu, nic),
        None => a.class.to_string(),
    };
    assignment(&assign(tree), &|a| label(*a), &no_rdma, &class, &mut out);
    warnings(tree, &label, &mut out);
    if let Some(matrix) = matrix {
        comparison(&compare(tree, matrix), &mut out);
    }
    let unknown = unknowns(tree);
    if !unknown.is_empty() {
        out.push_str("\nNot known:\n");
        unknown.iter().for_each(|line| {
            let _ = writeln!(out, "  {line}");
        });
    }
    out
}

/// The class of a pair, with a mark where it is the matrix'.
fn marked(tree: &Tree<'_>, a: Address, b: Address) -> String {
    let mark = if tree.printed(a, b).is_some() { "*" } else { "" };
    format!("{}{mark}", tree.class(a, b))
}

fn device(tree: &Tree<'_>, f: &Function) -> String {
    let (max, now) = tree.link(f.address);
    let mut text = f.address.to_string();
    let _ = match (max, now) {
        (Some(max), Some(now)) if max == now => write!(text, "  {max}"),
        (Some(max), Some(now)) => write!(text, "  {max} (now {now})"),
        (Some(max), None) => write!(text, "  {max} (now unknown)"),
        (None, Some(now)) => write!(text, "  fastest unknown (now {now})"),
        (None, None) => write!(text, "  link unknown"),
    };
    if let (Some(max), Some(now)) = (max, now)
        && now.lanes < max.lanes
    {
        let _ = write!(text, ", fewer lanes than both ends have");
    }
    if let Some(numa) = tree.numa(f.address) {
        let _ = write!(text, "  NUMA node {numa}");
        if let Some(package) = tree.capture().package(numa) {
            let _ = write!(text, " of package {package}");
        }
    }
    if let Some(group) = f.iommu_group {
        let _ = write!(text, "  IOMMU group {group}");
    }
    match f.relaxes.filter(|_| !tree.capture().is_virtual(f.address)) {
        Some(true) => text.push_str("  RlxdOrd+"),
        Some(false) => text.push_str("  RlxdOrd-"),
        None => {}
    }
    if tree.capture().is_virtual(f.address) {
        text.push_str("  virtual function");
    }
    if let Some(rdma) = &f.rdma {
        let _ = write!(text, "  {}", short(rdma));
    }
    if f.kind() == Some(Kind::Nic) && identity::has_rdma(f) == Some(false) {
        text.push_str("  no RDMA");
    }
    if !f.name.is_empty() {
        let _ = write!(text, "  {}", short(&f.name));
    } else if let (Some(vendor), Some(id)) = (f.vendor, f.device) {
        let _ = write!(text, "  {vendor:04x}:{id:04x}");
    }
    text
}

const REDIRECTS: &str = "ACS redirects peer traffic upwards";

/// At how many of its downstream ports a switch redirects: ACS is each port's own.
fn redirecting(tree: &Tree<'_>, upstream: Address) -> String {
    let ports: Vec<Option<bool>> = tree.downstream(upstream).map(|f| f.redirects).collect();
    let count = |acs: Option<bool>| ports.iter().filter(|own| **own == acs).count();
    let (own, hidden, all) = (count(Some(true)), count(None), ports.len());
    match (own == all, hidden) {
        (true, _) => REDIRECTS.to_owned(),
        (false, 0) => format!("ACS redirects at {own} of {all} ports"),
        (false, _) => format!("ACS redirects at {own} of {all} ports, unknown at {hidden}"),
    }
}

fn switches(tree: &Tree<'_>, devices: &[Address], out: &mut String) {
    let mut seen: Vec<(Address, Port)> = devices.iter().flat_map(|&a| tree.ports(a)).collect();
    seen.sort_by_key(|&(a, _)| a);
    seen.dedup();
    for (a, port) in seen {
        let Some(f) = tree.capture().get(a) else { continue };
        let redirects = match port {
            Port::Upstream => tree.redirects(a),
            Port::Root => f.redirects,
            _ => continue,
        };
        let acs = match (redirects, port) {
            (Some(true), Port::Upstream) => redirecting(tree, a),
            (Some(true), _) => REDIRECTS.to_owned(),
            (Some(false), _) => "ACS redirects nothing".to_owned(),
            (None, _) => "ACS unknown".to_owned(),
        };
        if port == Port::Root {
            let _ = writeln!(out, "root port {a}  {acs}");
            continue;
        }
        let chip = identity::switch_chip(f).unwrap_or_else(|| "chip unknown".into());
        let (chip, ports) = (short(&chip), tree.downstream(a).count());
        let _ = writeln!(out, "switch {a}  {chip}, {ports} downstream ports, {acs}");
    }
}

fn assignment<T>(
    all: &[Assigned<T>],
    label: &dyn Fn(&T) -> String,
    no_rdma: &dyn Fn(&T) -> bool,
    class: &dyn Fn(&Assigned<T>) -> String,
    out: &mut String,
) {
    if all.iter().all(|a| a.nic.is_none()) {
        return;
    }
    let _ = writeln!(out, "\nNIC of each GPU, the nearest:");
    let list = |all: &[T]| all.iter().map(label).collect::<Vec<_>>().join(", ");
    for a in all {
        let Some(nic) = &a.nic else { continue };
        let _ = write!(out, "{:6} {:6} {}", label(&a.gpu), label(nic), class(a));
        if no_rdma(nic) {
            out.push_str("; no RDMA: for TCP alone");
        }
        if !a.ties.is_empty() {
            let _ = write!(out, "; as near: {}", list(&a.ties));
        }
        if !a.shared_with.is_empty() {
            let _ = write!(out, "; shared with {}", list(&a.shared_with));
        }
        out.push('\n');
    }
}

fn warnings(tree: &Tree<'_>, label: &dyn Fn(Address) -> String, out: &mut String) {
    let all = write_fans(tree);
    let gpus = tree.capture().of_kind(Kind::Gpu);
    let list =
        |all: &mut dyn Iterator<Item = Address>| all.map(label).collect::<Vec<_>>().join(", ");
    let behind = |root: Address| {
        let is_behind = |&gpu: &Address| gpu == root || tree.chain(gpu).first() == Some(&root);
        format!("{root} ({})", list(&mut gpus.iter().copied().filter(is_behind)))
    };
    let lines: Vec<String> = all
        .iter()
        .map(|c| {
            let chip = short(c.chip.as_deref().unwrap_or("chip unknown"));
            let to: Vec<String> = c.roots.iter().map(|&root| behind(root)).collect();
            let (from, to) = (list(&mut c.sources.iter().copied()), to.join(", "));
            format!("{from} of switch {} ({chip}) to {to}", c.switch)
        })
        .collect();
    let known = all.iter().find_map(|c| c.known);
    let collapse = known.map_or(Collapse::Unknown, |k| Collapse::Seen(k.seen()));
    out.push_str(&collapse_text(&lines, &collapse, false));
}

/// What writes of several GPUs below one switch to several root ports may lose, where that was seen,
/// which GPUs are meant (a line each: senders, their switch, root ports), and what to do. Empty
/// without such GPUs. `shows_chips`: whether root ports of one chip are known, and left out.
pub(super) fn collapse_text(lines: &[String], collapse: &Collapse, shows_chips: bool) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let pattern = |c: &PostedCollapse| {
        format!(
            "while {} or more GPUs below one switch write to GPUs behind {} or more other root\n  \
             ports at the same time, all these writes together get {} GB/s. Of reads in place of\n  \
             these writes nobody has measured anything.",
            c.sources, c.roots, c.gb_per_s
        )
    };
    let on = |c: &PostedCollapse| {
        let known = KNOWN_COLLAPSES.iter().find(|k| k.seen() == *c);
        match known {
            Some(k) => format!("{} (on GitHub: {})", k.platform, short(&c.source)),
            None => short(&c.source),
        }
    };
    let rounds = "let the GPUs of one switch write behind one root port at a time: with FILE of\n  \
                  topo --save FILE, bellpush sim --topology FILE --flows 'A>B,C>D' prints rounds that do.";
    let (title, happens, seen, advice) = match collapse {
        Collapse::Seen(c) => (
            "Writes between GPUs that lose most of their rate (posted-write collapse):",
            pattern(c),
            format!("{}.", on(c)),
            rounds.to_owned(),
        ),
        Collapse::Absent => {
            return "\nWrites of GPUs below one switch to several root ports at once: whether they \
                    lose rate\nwas looked for on this platform, and they do not.\n"
                .to_owned();
        }
        Collapse::Unknown => {
            let seen: Vec<PostedCollapse> = KNOWN_COLLAPSES.iter().map(|k| k.seen()).collect();
            let places: Vec<String> = seen.iter().map(on).collect();
            let others = LOOKED_FOR.map(|(platform, what)| format!("  {platform}: {what}."));
            (
                "Writes between GPUs that may lose most of their rate (posted-write collapse):",
                seen.first().map_or_else(String::new, pattern),
                format!(
                    "{}.\n  Whether it happens on this platform is unknown. Elsewhere (on GitHub: \
                     local-inference-lab/rtx6kpro):\n{}",
                    places.join(", "),
                    others.join("\n")
                ),
                format!("measure two such writes alone and at once. Where they lose,\n  {rounds}"),
            )
        }
    };
    let mut out = format!("\n{title}\n  What happens: {happens}\n  Where it was seen: {seen}\n");
    let _ = writeln!(
        out,
        "  Which writes here have this shape (to two or more of the root ports named):"
    );
    lines.iter().for_each(|line| {
        let _ = writeln!(out, "    {line}");
    });
    if !shows_chips {
        out.push_str(
            "  Unless both switches are of one chip, which may carry such writes inside, where they lose\n  \
             nothing. Which switches share a chip is not shown here: [[chip]] of the saved FILE says it.\n",
        );
    }
    let _ = writeln!(out, "  What to do: {advice}");
    out
}

fn comparison(c: &Comparison, out: &mut String) {
    let different = c.differences.len();
    let _ = writeln!(out, "\nBeside nvidia-smi: {} classes, {different} differ.", c.compared);
    for d in &c.differences {
        let (a, b) = (short(&d.a), short(&d.b));
        let _ = writeln!(out, "  {a} {b}: {} here, {} of nvidia-smi", d.captured, d.printed);
    }
    for remark in &c.remarks {
        let _ = writeln!(out, "  {}", one_line(remark));
    }
}

/// What a matrix alone shows: itself, the NICs of the GPUs, and what it lacks.
pub fn matrix_text(matrix: &Matrix) -> String {
    let mut out = matrix.to_text();
    let name = |i: &usize| short(&matrix.rows()[*i].name);
    assignment(&assign_matrix(matrix), &name, &|_| false, &|a| a.class.to_string(), &mut out);
    let hidden = (0..matrix.rows().len())
        .flat_map(|a| (0..a).map(move |b| (a, b)))
        .filter(|&(a, b)| matrix.class(a, b).is_none())
        .count();
    out.push_str(
        "\nNot known:\n  links, switches, root ports, ACS: a matrix shows classes alone\n",
    );
    if hidden > 0 {
        let _ = writeln!(out, "  classes of {hidden} pairs that NVLinks join");
    }
    for (a, b) in matrix.asymmetries() {
        let _ = writeln!(out, "  which of two classes {} and {} have", name(&a), name(&b));
    }
    out
}
