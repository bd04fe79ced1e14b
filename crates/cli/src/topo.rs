//! `bellpush topo`: draws a PCIe topology, of this machine or of another's captures, classifies its
//! GPU-NIC pairs, gives every GPU a NIC, recommends a path.

#[path = "topo/advice.rs"]
mod advice;
#[path = "topo/measured.rs"]
pub mod measured;
#[path = "topo/nics.rs"]
mod nics;
#[path = "topo/page.rs"]
mod page;
#[path = "topo/source.rs"]
mod source;
#[path = "topo/summary.rs"]
mod summary;
#[path = "topo/summary_text.rs"]
mod summary_text;

use std::path::PathBuf;

use bellpush::pcie::sim::NicModel;
use bellpush::pcie::text::one_line;
use bellpush::pcie::topology::{
    Assigned, Kind, LinkLoad, NodeId, Topology, Tree, Workload, assign, assign_topology, compare,
    loads, matrix_text, survey_text, to_svg_loaded, to_text, to_toml, to_tree, unknowns,
    write_fans,
};
use bellpush_cli::report::human::decimals;
use serde_json::{Value, json};

use crate::sim_marks;
use crate::values;
use advice::{All, Basis};
use source::Source;
use summary::{Names, Summary};

/// Arguments of `bellpush topo`.
#[derive(Debug, Clone, clap::Args)]
pub struct TopoArgs {
    /// Built-in name, TOML file, or `machine` for the running one, which is the default
    #[arg(conflicts_with_all = ["sysfs", "from"])]
    topology: Option<String>,
    /// Another machine's /sys, copied to this directory
    #[arg(long, value_name = "DIR", conflicts_with = "from")]
    sysfs: Option<PathBuf>,
    /// Output of `lspci -tv`, `-t`, `-vv`, `-vvv`, each with or without `-nn`; several complement
    /// each other
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,
    /// Output of `nvidia-smi topo -m`: alone, or to be compared with the rest
    #[arg(long, value_name = "FILE")]
    nvidia_smi: Option<PathBuf>,
    /// The machine's CPU, as `lscpu` names it: of some it is known what their root complexes forward. A capture of
    /// another machine does not name it [default: of this machine /proc/cpuinfo's]
    #[arg(long, value_name = "NAME")]
    cpu: Option<String>,
    /// Bandwidth in GB/s between CPU packages of a machine, which no capture shows [default: unknown, no limit]
    #[arg(long, allow_negative_numbers = true)]
    socket_gb_per_s: Option<f64>,
    /// Omit the recommendation
    #[arg(long)]
    no_predict: bool,
    /// NIC that the recommendation is for: cx7 or software [default: by the NIC's name, else cx7]
    #[arg(long, value_name = "NIC")]
    nic: Option<String>,
    /// Set a model parameter, as name=value, which then counts as read; an unknown name lists them
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Result of `bellpush link --json` on this machine: what was fitted to it counts as measured;
    /// of one of --together, what host memory answers and takes becomes the topology's
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,
    /// Write the topology to this TOML file, or to standard output with `-`: to be edited and given
    /// to `topo` and `sim`, with what --measured found
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Load of the links: `all-reduce`, `all-to-all`, or pairs such as `gpu0>nic0,gpu1>nic1`
    #[arg(long, value_name = "WORKLOAD")]
    load: Option<String>,
    /// Write a drawing to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a page with the drawing to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write JSON to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &TopoArgs) -> Result<(), Box<dyn std::error::Error>> {
    run_to(args, &mut std::io::stdout().lock())
}

/// For which NIC advice is given, and with which numbers.
fn basis(
    args: &TopoArgs,
    topology: &Topology,
    pairs: &[Assigned<NodeId>],
) -> Result<Basis, Box<dyn std::error::Error>> {
    let (nic, why) = match &args.nic {
        Some(word) => (word.parse().map_err(|e| format!("--nic {e}"))?, "as the command says"),
        None => {
            let first = pairs.iter().find_map(|pair| pair.nic);
            NicModel::by_default(first.map_or("", |nic| &topology.node(nic).model))
        }
    };
    let params = crate::sim::params_of(&args.set, topology)?;
    let origins = sim_marks::origins(&args.set, topology);
    let is_named = args.nic.is_some();
    Ok(Basis { nic, why: why.to_owned(), params, origins, is_named })
}

/// Every GPU with its NIC, as nodes of the topology.
fn assigned(source: &Source, topology: &Topology) -> Vec<Assigned<NodeId>> {
    let Some(tree) = source.tree() else { return assign_topology(topology) };
    let node = |a: &dyn ToString| topology.find(&a.to_string());
    let all = assign(&tree).into_iter().filter_map(|a| {
        Some(Assigned {
            gpu: node(&a.gpu)?,
            nic: a.nic.and_then(|nic| node(&nic)),
            class: a.class,
            ties: a.ties.iter().filter_map(|nic| node(nic)).collect(),
            shared_with: a.shared_with.iter().filter_map(|gpu| node(gpu)).collect(),
        })
    });
    all.collect()
}

fn rows_json(
    source: &Source,
    topology: &Topology,
    pairs: &[Assigned<NodeId>],
    (advice, basis): (&All, &Basis),
) -> Vec<Value> {
    let tree = source.tree();
    let address = |n: NodeId| topology.node(n).id.parse().ok();
    let ends = |gpu, nic| Some((tree.as_ref()?, address(gpu)?, address(nic)?));
    let class = |gpu: NodeId, nic: NodeId| {
        let captured = ends(gpu, nic).map(|(tree, a, b)| tree.class(a, b).to_string());
        captured.unwrap_or_else(|| topology.class_of(gpu, nic).to_string())
    };
    let is_printed =
        |gpu, nic| ends(gpu, nic).is_some_and(|(tree, a, b)| tree.printed(a, b).is_some());
    let mut rows = Vec::new();
    for gpu in topology.of_kind(Kind::Gpu) {
        for nic in topology.of_kind(Kind::Nic) {
            let (g, n) = (&topology.node(gpu).id, &topology.node(nic).id);
            let is_its = pairs.iter().any(|a| a.gpu == gpu && a.nic == Some(nic))
                && basis.takes(topology, nic);
            let mut advice = advice::rows(topology, advice, gpu, nic);
            if matches!(basis.nic_is(topology, nic), nics::Is::Other(_)) {
                // Figures of a ConnectX-7 in its place: the NIC has not all of these paths.
                advice.iter_mut().for_each(|row| row["path"] = Value::Null);
            }
            rows.push(json!({
                "gpu": g, "nic": n, "class": class(gpu, nic), "assigned": is_its,
                "class_of_nvidia_smi": is_printed(gpu, nic),
                "advice": advice,
            }));
        }
    }
    rows
}

/// What a capture shows beside the pairs.
fn capture_json(source: &Source) -> Value {
    let Source::Captured(capture, matrix) = source else { return Value::Null };
    let tree = source.tree().unwrap_or_else(|| Tree::new(capture));
    let devices = capture.functions().filter_map(|f| {
        let (max, now) = tree.link(f.address);
        let rate = |r: bellpush::pcie::topology::Rate| r.to_string();
        Some(json!({
            "address": f.address.to_string(),
            "kind": match capture.kind_of(f)? { Kind::Gpu => "gpu", _ => "nic" },
            "name": f.name, "link": max.map(rate), "link_now": now.map(rate),
            "numa_node": tree.numa(f.address), "iommu_group": f.iommu_group,
            "virtual": capture.is_virtual(f.address),
            "relaxed_ordering": f.relaxes.filter(|_| !capture.is_virtual(f.address)),
        }))
    });
    let differences = matrix.as_ref().map(|matrix| {
        let c = compare(&tree, matrix);
        let differ = c.differences.iter().map(|d| {
            let (captured, printed) = (d.captured.to_string(), d.printed.to_string());
            json!({ "a": d.a, "b": d.b, "captured": captured, "nvidia_smi": printed })
        });
        json!({
            "compared": c.compared, "remarks": c.remarks, "differ": differ.collect::<Vec<_>>(),
        })
    });
    let fans = write_fans(&tree).into_iter().map(|c| {
        let roots: Vec<String> = c.roots.iter().map(ToString::to_string).collect();
        let word = if c.known.is_some() { "reported" } else { "unknown" };
        let senders: Vec<String> = c.sources.iter().map(ToString::to_string).collect();
        let seen = c.known.map(|k| {
            let seen = k.seen();
            json!({
                "platform": k.platform, "senders": seen.sources, "roots": seen.roots,
                "gb_per_s": seen.gb_per_s, "source": seen.source,
            })
        });
        json!({
            "switch": c.switch.to_string(), "chip": c.chip, "senders": senders, "roots": roots,
            "collapse": word, "seen": seen, "of_one_chip": "unknown",
        })
    });
    json!({
        "devices": devices.collect::<Vec<_>>(), "unknown": unknowns(&tree),
        "writes_to_several_roots": fans.collect::<Vec<_>>(), "nvidia_smi": differences,
    })
}

/// What is printed of the topology itself.
fn told(source: &Source, topology: &Topology) -> String {
    match source {
        Source::Given(_) => to_text(topology),
        Source::Captured(capture, matrix) => {
            let tree = source.tree().unwrap_or_else(|| Tree::new(capture));
            let survey = survey_text(&tree, matrix.as_ref());
            format!("{}\n{survey}", to_tree(topology))
        }
        Source::Matrix(matrix) => format!("{}\n{}", to_tree(topology), matrix_text(matrix)),
    }
}

/// An end of a link by name: of several ports of one card, all.
pub(crate) fn ports(topology: &Topology, end: NodeId) -> String {
    let ports = topology.sharing_link(end).into_iter().map(|n| one_line(&topology.node(n).id));
    ports.collect::<Vec<_>>().join(", ")
}

fn load_text(topology: &Topology, workload: &str, loads: &[LinkLoad]) -> String {
    let mut text = format!("\nBusiest links under {workload}, for buffers of 1 GB:\n");
    for l in loads.iter().take(8) {
        let [from, to] = [l.from, l.to].map(|end| ports(topology, end));
        let [buffers, rate] = [decimals(l.buffers, 2), decimals(l.gb_per_s(), 1)];
        text += &format!("{from} -> {to}  {buffers} GB of {rate} GB/s, ");
        text += &format!("{:.1} ms\n", l.ms);
    }
    text
}

/// Runs the command with `out` as standard output.
pub fn run_to(
    args: &TopoArgs,
    out: &mut dyn std::io::Write,
) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(given) = args.socket_gb_per_s.filter(|g| !(g.is_finite() && *g > 0.0)) {
        return Err(format!("--socket-gb-per-s {given}: must be more than 0").into());
    }
    if args.cpu.as_ref().is_some_and(|cpu| cpu.trim().is_empty()) {
        return Err("--cpu: empty: give the CPU's name, as lscpu has it".into());
    }
    for (name, is_given) in [
        ("--set", !args.set.is_empty()),
        ("--nic", args.nic.is_some()),
        ("--measured", args.measured.is_some() && args.save.is_none()),
    ] {
        if args.no_predict && is_given {
            return Err(format!("{name} is for the recommendation: leave out --no-predict").into());
        }
    }
    let places = [
        ("--svg", &args.svg),
        ("--html", &args.html),
        ("--json", &args.json),
        ("--save", &args.save),
    ];
    let taken = values::check_places(&places)?;
    let named = args.topology.as_ref().and_then(values::topology_file);
    let inputs = args.from.iter().chain(&args.nvidia_smi).chain(&args.measured).chain(&named);
    values::keep_inputs(inputs, &places)?;
    let source = Source::read(args)?;
    let mut topology = source.topology(args)?;
    let is_given = matches!(source, Source::Given(_));
    if args.socket_gb_per_s.is_some() && (is_given || topology.interconnects().is_empty()) {
        let why = if is_given { "it says its own" } else { "it has no CPU packages to join" };
        return Err(format!("--socket-gb-per-s: no part in {}: {why}", topology.name).into());
    }
    if let Some(cpu) = source.cpu(args)
        && !topology.name_cpu(&cpu)
        && args.cpu.is_some()
    {
        return Err(format!("--cpu: {} has no CPU package", topology.name).into());
    }
    if let Some(path) = &args.measured {
        measured::read(path)?.put(path, &mut topology)?;
    }
    let pairs = assigned(&source, &topology);
    let basis = basis(args, &topology, &pairs)?;
    advice::check_sets(&topology, &pairs, &basis, &args.set)?;
    let advice = if args.no_predict { All::default() } else { All::new(&topology, &pairs, &basis) };
    let loaded = match &args.load {
        Some(text) => loads(&topology, &text.parse::<Workload>()?).map_err(|e| e.to_string())?,
        None => Vec::new(),
    };
    let names = Names::new(&source, &topology);
    let summary = Summary::new(&source, &topology, &pairs, (&advice, &basis), !args.no_predict);
    let mut text = told(&source, &topology);
    let collapses = text.contains("posted-write collapse");
    text = summary_text::text(&summary, &names, &basis, collapses) + &text;
    if let Some(workload) = &args.load {
        text += &load_text(&topology, workload, &loaded);
    }
    if let Some(path) = &args.svg {
        values::put(path, &(to_svg_loaded(&topology, &loaded) + "\n"), out)?;
    }
    if let Some(path) = &args.html {
        let page = page::html(&topology, args.load.as_deref(), &loaded, &text);
        values::put(path, &(page + "\n"), out)?;
    }
    if let Some(path) = &args.save {
        // Such a file would be refused.
        if topology.of_kind(Kind::RootComplex).is_empty() {
            let what = "--save: nothing to save: neither a GPU nor a NIC was found";
            return Err(format!("{}: {what}", topology.name).into());
        }
        values::put(path, &to_toml(&topology), out)?;
    }
    if let Some(path) = &args.json {
        let results = rows_json(&source, &topology, &pairs, (&advice, &basis));
        let meta = json!({
            "command": "topo", "topology": topology.name, "source": "model",
            "advice": advice::basis_json(&advice, &basis), "set": args.set,
        });
        let id = |n: NodeId| &topology.node(n).id;
        let links = loaded.iter().map(|l| {
            json!({ "from": id(l.from), "to": id(l.to), "buffers": l.buffers,
                "gb_per_s": l.gb_per_s(), "ms": l.ms })
        });
        let links = args.load.as_ref().map(|_| links.collect::<Vec<_>>());
        let all = json!({
            "meta": meta, "summary": summary.json(&names, &basis), "results": results,
            "loads": links, "capture": capture_json(&source),
        });
        values::put(path, &(serde_json::to_string_pretty(&all)? + "\n"), out)?;
    }
    if taken {
        return Ok(());
    }
    writeln!(out, "{text}")?;
    for kind in [Kind::Gpu, Kind::Nic] {
        if topology.of_kind(kind).is_empty() {
            writeln!(out, "{}: no {kind}, so no pair to class", one_line(&topology.name))?;
        }
    }
    if source.is_guest(args) && pairs.iter().any(|pair| pair.nic.is_some()) {
        let what = "the host's root ports and ACS decide what is forwarded: bellpush doctor there";
        writeln!(out, "{}: a virtual machine, {what}", one_line(&topology.name))?;
    }
    write!(out, "{}", advice::text(&topology, &advice, &basis))?;
    Ok(())
}
