//! What a capture means: where it differs from nvidia-smi, where writes may collapse, and what it
//! does not show.

use std::collections::{BTreeMap, BTreeSet};

use super::capture::{Address, Capture, Function, Port};
use super::identity;
use super::model::{Distance, Kind};
use super::nvidia_smi::Matrix;
use super::p2p::{KNOWN_COLLAPSES, KnownCollapse};
use super::tree::{Class, Tree};

/// A pair of which a capture shows another class than nvidia-smi prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// nvidia-smi's name of one device.
    pub a: String,
    /// Its name of the other.
    pub b: String,
    /// Class of the capture.
    pub captured: Class,
    /// Class that nvidia-smi prints.
    pub printed: Distance,
}

/// A capture beside a matrix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Address of each of the matrix' devices that was found.
    pub devices: Vec<(String, Address)>,
    /// Pairs whose class both show.
    pub compared: usize,
    /// Those whose classes differ.
    pub differences: Vec<Difference>,
    /// What was assumed, and what could not be compared.
    pub remarks: Vec<String>,
}

/// Compares the classes of a capture with those of a matrix.
pub fn compare(tree: &Tree<'_>, matrix: &Matrix) -> Comparison {
    let mut out = Comparison::default();
    let mut of_row: BTreeMap<usize, Address> = BTreeMap::new();
    gpus(tree.capture(), matrix, &mut of_row, &mut out.remarks);
    nics(tree.capture(), matrix, &mut of_row, &mut out.remarks);
    for (a, b) in matrix.asymmetries() {
        let (a, b) = (&matrix.rows()[a].name, &matrix.rows()[b].name);
        out.remarks.push(format!("nvidia-smi prints two classes of {a} and {b}"));
    }
    for (&i, &a) in &of_row {
        out.devices.push((matrix.rows()[i].name.clone(), a));
        for (&j, &b) in of_row.range(i + 1..) {
            let captured = tree.captured(a, b);
            let (Some(printed), true) = (matrix.class(i, j), captured != Class::Unknown) else {
                continue;
            };
            out.compared += 1;
            if !captured.allows(printed) {
                let name = |i: usize| matrix.rows()[i].name.clone();
                out.differences.push(Difference { a: name(i), b: name(j), captured, printed });
            }
        }
    }
    out
}

/// Classes of a matrix by the addresses of its devices, the lower first; none of a pair of which it prints two.
pub(super) fn printed(
    capture: &Capture,
    matrix: &Matrix,
) -> BTreeMap<(Address, Address), Distance> {
    let mut of_row = BTreeMap::new();
    gpus(capture, matrix, &mut of_row, &mut Vec::new());
    nics(capture, matrix, &mut of_row, &mut Vec::new());
    let pairs =
        of_row.iter().flat_map(|(&i, &a)| of_row.range(i + 1..).map(move |(&j, &b)| (i, a, j, b)));
    let one = pairs.filter(|&(i, _, j, _)| matrix.class(i, j) == matrix.class(j, i));
    one.filter_map(|(i, a, j, b)| Some(((a.min(b), a.max(b)), matrix.class(i, j)?))).collect()
}

/// nvidia-smi numbers NVIDIA's GPUs by address.
fn gpus(
    capture: &Capture,
    matrix: &Matrix,
    of_row: &mut BTreeMap<usize, Address>,
    remarks: &mut Vec<String>,
) {
    let is_nvidia = |a: &Address| capture.get(*a).is_some_and(identity::is_nvidia);
    let seen: Vec<Address> = capture.of_kind(Kind::Gpu).into_iter().filter(is_nvidia).collect();
    let rows = matrix.of_kind(Kind::Gpu);
    if seen.len() == rows.len() {
        of_row.extend(rows.into_iter().zip(seen));
    } else {
        let (seen, rows) = (seen.len(), rows.len());
        remarks.push(format!(
            "{seen} GPUs of NVIDIA captured, {rows} in nvidia-smi's matrix: not compared"
        ));
    }
}

/// NICs go by the name of their RDMA device, which only sysfs has; else mlx5_N is taken for the
/// Nth of Mellanox' functions by address, which is the order in which Linux finds them.
fn nics(
    capture: &Capture,
    matrix: &Matrix,
    of_row: &mut BTreeMap<usize, Address>,
    remarks: &mut Vec<String>,
) {
    let all: Vec<&Function> = capture.functions().filter(|f| f.kind() == Some(Kind::Nic)).collect();
    let by_name = |name: &str| all.iter().find(|f| f.rdma.as_deref() == Some(name));
    let rows = matrix.of_kind(Kind::Nic);
    let mlx: Vec<&&Function> = all.iter().filter(|f| identity::is_mellanox(f)).collect();
    let numbers: Vec<Option<usize>> = rows
        .iter()
        .map(|&i| matrix.rows()[i].driver_name().strip_prefix("mlx5_")?.parse().ok())
        .collect();
    let in_order = numbers.iter().flatten().count() == mlx.len();
    let (mut missing, mut assumed) = (Vec::new(), false);
    for (&i, number) in rows.iter().zip(numbers) {
        let row = &matrix.rows()[i];
        let nth = number.filter(|_| in_order).and_then(|n| mlx.get(n));
        match (by_name(row.driver_name()), nth) {
            (Some(f), _) => {
                of_row.insert(i, f.address);
            }
            (None, Some(f)) if all.iter().all(|f| f.rdma.is_none()) => {
                assumed = true;
                of_row.insert(i, f.address);
            }
            _ => missing.push(row.driver_name()),
        }
    }
    if assumed {
        remarks.push("mlx5_N is taken for the Nth of Mellanox' functions by address".into());
    }
    if !missing.is_empty() {
        remarks.push(format!("not found in the capture: {}", missing.join(", ")));
    }
}

/// A switch from which GPUs can write to GPUs behind several other root ports at once.
///
/// On some platforms such writes were seen to lose 75 to 95 % of their rate ("collapse",
/// [`KNOWN_COLLAPSES`]). The cause is not known, and of reads of the same pattern nobody has measured
/// anything.
#[derive(Debug, Clone, PartialEq)]
pub struct WriteFan {
    /// Upstream port of the switch.
    pub switch: Address,
    /// Its chip, where it is recognised.
    pub chip: Option<String>,
    /// Its GPUs.
    pub sources: Vec<Address>,
    /// Other root ports, or GPUs on root buses, to which they can write; those of the same chip too, which a
    /// capture does not tell apart.
    pub roots: Vec<Address>,
    /// What was seen on this platform; else it is unknown here.
    pub known: Option<&'static KnownCollapse>,
}

/// Every switch with this pattern.
pub fn write_fans(tree: &Tree<'_>) -> Vec<WriteFan> {
    // Of each first bridge (or GPU on a root bus): its switch and its GPUs.
    let mut below: BTreeMap<Address, (Option<Address>, Vec<Address>)> = BTreeMap::new();
    for gpu in tree.capture().of_kind(Kind::Gpu) {
        let ports = tree.ports(gpu);
        let first = ports.first().map_or(gpu, |&(bridge, _)| bridge);
        let switch = ports.iter().find(|(_, port)| *port == Port::Upstream).map(|&(a, _)| a);
        let entry = below.entry(first).or_default();
        entry.0 = entry.0.or(switch);
        entry.1.push(gpu);
    }
    let capture = tree.capture();
    let mut all = Vec::new();
    for (&first, (switch, sources)) in &below {
        let roots: Vec<Address> = below.keys().copied().filter(|&other| other != first).collect();
        let Some(switch) = *switch else { continue };
        if roots.len() < 2 || sources.len() < KnownCollapse::least_sources() {
            continue;
        }
        let chip = capture.get(switch).and_then(identity::switch_chip);
        let port = capture.get(first).and_then(identity::device);
        let has = |k: &&KnownCollapse| {
            let switch = chip.as_deref().is_some_and(|c| c.contains(k.chip));
            switch && port == Some(k.root_port)
        };
        let known = KNOWN_COLLAPSES.iter().find(has);
        all.push(WriteFan { switch, chip, sources: sources.clone(), roots, known });
    }
    all
}

/// What a capture does not show of what a topology is made of, a sentence each.
pub fn unknowns(tree: &Tree<'_>) -> Vec<String> {
    let capture = tree.capture();
    let wanted: Vec<&Function> =
        capture.functions().filter(|f| capture.kind_of(f).is_some()).collect();
    let mut out = Vec::new();
    let named = capture.functions().any(|f| f.class.is_some() || !f.name.is_empty());
    if !named {
        out.push(
            "what the devices are: this form names none; lspci -tv does, or lspci -nn beside it"
                .to_owned(),
        );
        return out;
    }
    let mut lack = |what: &str, is_lacking: &dyn Fn(&Function) -> bool| {
        let count = wanted.iter().filter(|f| is_lacking(f)).count();
        if count > 0 {
            out.push(format!("{what} of {count} of {} GPUs and NICs", wanted.len()));
        }
    };
    lack("fastest link", &|f| tree.link(f.address).0.is_none());
    lack("MPS and MRRS", &|f| f.mps.is_none());
    lack("relaxed ordering", &|f| f.relaxes.is_none() || capture.is_virtual(f.address));
    lack("NUMA node", &|f| tree.numa(f.address).is_none());
    lack("bridges above", &|f| !tree.top(f.address).is_root);
    let bridges: BTreeSet<Address> = wanted.iter().flat_map(|f| tree.chain(f.address)).collect();
    let of_bridges = |test: &dyn Fn(&Function) -> bool| {
        bridges.iter().filter(|b| capture.get(**b).is_some_and(test)).count()
    };
    let (acs, ports) = (of_bridges(&|f| f.redirects.is_none()), of_bridges(&|f| f.port.is_none()));
    if acs > 0 {
        out.push(format!("ACS of {acs} of {} bridges above them", bridges.len()));
    }
    if ports > 0 {
        let what = "port type of";
        let rule = "taken to alternate below the root ports";
        out.push(format!("{what} {ports} of {} bridges above them: {rule}", bridges.len()));
    }
    let denied = capture.functions().filter(|f| f.denied).count();
    if denied > 0 {
        let why = "their capabilities were hidden: root sees them";
        out.push(format!("{denied} of {} functions: {why}", capture.functions().count()));
    }
    if capture.packages.is_empty() {
        out.push("CPU packages: NUMA nodes are not told apart from them".to_owned());
    }
    out
}
