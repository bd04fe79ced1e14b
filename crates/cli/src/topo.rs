//! `bellpush topo`: draws a PCIe topology, classifies its GPU-NIC pairs, recommends a path.

use std::path::{Path as FsPath, PathBuf};

use bellpush::pcie::sim::{LAYOUT, NO_CARD, Params, PathModel, TestBedSpec, predict};
use bellpush::pcie::topology::{
    BUILTIN_NAMES, Kind, NodeId, Topology, builtin, from_sysfs, from_toml, to_svg, to_text,
};
use serde_json::json;

use crate::values;

/// Arguments of `bellpush topo`.
#[derive(Debug, Clone, clap::Args)]
pub struct TopoArgs {
    /// Built-in name, TOML file, or `machine` for the running one
    #[arg(default_value = "machine")]
    topology: String,
    /// Bandwidth in GB/s between sockets of the running machine, which sysfs does not give
    #[arg(long, default_value_t = 22.0, allow_negative_numbers = true)]
    socket_gb_per_s: f64,
    /// Omit the recommendation
    #[arg(long)]
    no_predict: bool,
    /// Write a drawing to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write JSON to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Loads a topology: a built-in one, a file, or the running machine.
pub fn load(name: &str, socket_gb_per_s: f64) -> Result<Topology, Box<dyn std::error::Error>> {
    if name == "machine" {
        // Containers and machines without PCI do not have this directory.
        let names = BUILTIN_NAMES.join(", ");
        return from_sysfs(FsPath::new("/sys"), socket_gb_per_s)
            .map_err(|e| format!("this machine: {e} (name a file, or one of {names})").into());
    }
    if let Some(topology) = builtin(name) {
        return Ok(topology);
    }
    let text = std::fs::read_to_string(name)
        .map_err(|e| format!("{name}: {e} (built in: {})", BUILTIN_NAMES.join(", ")))?;
    from_toml(&text).map_err(|e| format!("{name}: {e}").into())
}

/// Runs the command.
pub fn run(args: &TopoArgs) -> Result<(), Box<dyn std::error::Error>> {
    run_to(args, &mut std::io::stdout().lock())
}

struct Advice {
    gpu: String,
    nic: String,
    class: String,
    bytes: u32,
    best: &'static str,
    ns: Vec<(&'static str, Option<f64>)>,
}

fn advise(topology: &Topology, gpu: NodeId, nic: NodeId) -> Vec<Advice> {
    let params = Params::default();
    let spec = TestBedSpec { topology, gpu, nic, params: &params, seed: 1 };
    let of = |bytes| {
        let mut ns = Vec::new();
        for path in PathModel::ALL {
            // A path that does not exist here is part of the answer, not a failure.
            let p = predict(spec, path, bytes, 1).ok().flatten();
            ns.push((path.name(), p.map(|p| p.completed_ns)));
        }
        // A path that no card supports is shown, but not recommended.
        let on_a_card = PathModel::ALL.iter().zip(&ns).filter(|(path, _)| path.on_a_card());
        let known = on_a_card.filter_map(|(_, &(name, ns))| Some((name, ns?)));
        let best = known.min_by(|a, b| a.1.total_cmp(&b.1)).map_or("none", |b| b.0);
        let id = |n| topology.node(n).id.clone();
        let class = topology.distance(gpu, nic).to_string();
        Advice { gpu: id(gpu), nic: id(nic), class, bytes, best, ns }
    };
    [8, 4096, 256 << 10].map(of).into()
}

/// Runs the command with `out` as standard output.
pub fn run_to(
    args: &TopoArgs,
    out: &mut dyn std::io::Write,
) -> Result<(), Box<dyn std::error::Error>> {
    if !(args.socket_gb_per_s.is_finite() && args.socket_gb_per_s > 0.0) {
        let given = args.socket_gb_per_s;
        return Err(format!("--socket-gb-per-s {given}: must be more than 0").into());
    }
    let taken = values::check_places(&[("--svg", &args.svg), ("--json", &args.json)])?;
    let topology = load(&args.topology, args.socket_gb_per_s)?;
    let mut advice = Vec::new();
    if !args.no_predict {
        for &gpu in &topology.of_kind(Kind::Gpu) {
            // The nearest NIC of each GPU.
            let nics = topology.of_kind(Kind::Nic);
            let nearest = nics.into_iter().min_by_key(|&nic| topology.distance(gpu, nic));
            advice.extend(nearest.map(|nic| advise(&topology, gpu, nic)).unwrap_or_default());
        }
    }
    if let Some(path) = &args.svg {
        values::put(path, &(to_svg(&topology) + "\n"), out)?;
    }
    if let Some(path) = &args.json {
        let pairs = topology.of_kind(Kind::Gpu).into_iter().flat_map(|gpu| {
            let nics = topology.of_kind(Kind::Nic);
            nics.into_iter().map(move |nic| (gpu, nic))
        });
        let results: Vec<_> = pairs
            .map(|(gpu, nic)| {
                let (g, n) = (&topology.node(gpu).id, &topology.node(nic).id);
                let best: Vec<_> = advice
                    .iter()
                    .filter(|a| &a.gpu == g && &a.nic == n)
                    .map(|a| {
                        let ns: serde_json::Map<_, _> =
                            a.ns.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
                        json!({ "bytes": a.bytes, "path": a.best, "completed_ns": ns })
                    })
                    .collect();
                json!({ "gpu": g, "nic": n, "class": topology.distance(gpu, nic), "advice": best })
            })
            .collect();
        let meta = json!({ "command": "topo", "topology": topology.name, "source": "model" });
        let text = serde_json::to_string_pretty(&json!({ "meta": meta, "results": results }))?;
        values::put(path, &(text + "\n"), out)?;
    }
    if taken {
        return Ok(());
    }
    writeln!(out, "{}", to_text(&topology))?;
    for kind in [Kind::Gpu, Kind::Nic] {
        if topology.of_kind(kind).is_empty() {
            writeln!(out, "{}: no {kind}, so no pair to class", topology.name)?;
        }
    }
    if !advice.is_empty() {
        writeln!(out, "Predicted completion, us (model; ConnectX and wire parameters assumed):")?;
        for a in &advice {
            write!(
                out,
                "{:>6} {:>6} {:>4} {:>8} B  use {:<15}",
                a.gpu, a.nic, a.class, a.bytes, a.best
            )?;
            for (name, ns) in &a.ns {
                match ns {
                    Some(ns) => write!(out, "  {name} {:.2}", ns / 1000.0)?,
                    None => write!(out, "  {name} -")?,
                }
            }
            writeln!(out)?;
        }
        writeln!(out, "{NO_CARD}.\n{LAYOUT}.")?;
    }
    Ok(())
}
