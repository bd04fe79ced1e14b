//! `bellpush sim`: predictions of the PCIe model over topology, path and size.

use std::collections::BTreeSet;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

use bellpush::pcie::scale::{Algorithm, dgx_cluster, wire_costs};
use bellpush::pcie::sim::{
    H200_CURVES, Known, LAYOUT, LAYOUT_IN_HOST, NO_CARD, Params, PathModel, Question, SweepRow,
    TestBedSpec, crossings, derivatives, losses, sensitivity, sweep, window_needed_bytes,
};
use bellpush::pcie::text::one_line;
use bellpush::pcie::topology::{BUILTIN_NAMES, Kind, Knob, NodeId, Topology};
use bellpush_cli::report::human::decimals;
use serde_json::{Value, json};

use crate::flows;
use crate::sim_marks;
use crate::sim_options::Mode;
use crate::sim_report::{Swept, render};
use crate::sim_rows;
use crate::sim_totals::{bound, changed, intervals, signs, totals};
use crate::values::{self, to_csv};
use crate::what::Answer;

/// Arguments of `bellpush sim`.
#[derive(Debug, Clone, clap::Args)]
pub struct SimArgs {
    /// Built-in names or TOML files [default: all built-ins]
    #[arg(long, value_delimiter = ',')]
    pub topology: Vec<String>,
    /// GPU of the topology [default: the first]
    #[arg(long)]
    pub gpu: Option<String>,
    /// NIC of the topology [default: the first]
    #[arg(long)]
    pub nic: Option<String>,
    /// Paths [default: all]
    #[arg(long, value_delimiter = ',')]
    pub path: Vec<String>,
    /// Payload sizes; KiB, MiB, GiB are understood [default: 8,4KiB,256KiB,1MiB; of --what without
    /// the last]
    #[arg(long, value_delimiter = ',')]
    pub sizes: Vec<String>,
    /// Operations in flight, for bandwidth [default: 8]
    #[arg(long)]
    pub in_flight: Option<u32>,
    /// Set a model parameter that has a part in what is asked, as name=value, or a number of the
    /// whole topology, such as acs=on; an unknown name lists them
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Show cases in which push loses; the cause is found by its removal
    #[arg(long)]
    pub losses: bool,
    /// Change every parameter by 30 % and compare push with pull
    #[arg(long)]
    pub sensitivity: bool,
    /// Compare the model with published and measured rows, fitted and predicted ones apart
    #[arg(long)]
    pub validate: bool,
    /// With --validate: fit again without each row, and without its machine, and show the errors
    #[arg(long, requires = "validate")]
    pub leave_one_out: bool,
    /// Show what each of these rows hangs on: its elasticity to latency, tags and MPS
    #[arg(long)]
    pub derivatives: bool,
    /// Run streams side by side: A>B (A writes into B) and A<B (A reads from B), or all-to-all
    /// between the GPUs
    #[arg(long, value_delimiter = ',', value_name = "FLOW")]
    pub flows: Vec<String>,
    /// Messages of this size in place of streams, as many of a flow at once as --in-flight says:
    /// a NIC takes them one by one, every nic_message_ns
    #[arg(long, value_name = "BYTES", requires = "flows")]
    pub message: Option<String>,
    /// Simulate every combination of values beside the topology as it is, such as
    /// mrrs=512..4096,acs=on|off,tags=64|512: `..` doubles; an unknown name lists them
    #[arg(long, value_name = "NAME=VALUES,…", conflicts_with_all = ["losses", "sensitivity", "validate", "derivatives", "scale", "report"])]
    pub what: Option<String>,
    /// Draw the rates of --what to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Simulate all-reduce on this many GPUs, with the costs of each path
    #[arg(long, value_delimiter = ',', value_name = "GPUS")]
    pub scale: Vec<u32>,
    /// Seed of the polling phases [default: 1]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Write JSON to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write CSV to this file, or to standard output with `-`
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with plots: size, window, outstanding reads, distance, the GPU's accesses
    #[arg(long, value_name = "FILE", conflicts_with_all = ["losses", "sensitivity", "validate", "derivatives", "scale", "flows"])]
    pub report: Option<PathBuf>,
}

/// Sizes, operations in flight and seed where the command gives none.
const SIZES: [u32; 4] = [8, 4 << 10, 256 << 10, 1 << 20];
const IN_FLIGHT: u32 = 8;
const SEED: u64 = 1;
/// Most operations at once: more than any built-in window holds.
const MOST_IN_FLIGHT: u32 = 1024;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

impl SimArgs {
    /// Operations at once.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.unwrap_or(IN_FLIGHT)
    }

    /// Seed of the polling phases.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(SEED)
    }
}

/// Runs the command.
pub fn run(args: &SimArgs) -> Result<()> {
    run_to(args, &mut std::io::stdout().lock())
}

/// Sizes that an option takes: 1 B to `most`, in words.
fn parse_size(option: &str, text: &str, (most, words): (u32, &str)) -> Result<u32> {
    let bytes = values::bytes(text).map_err(|e| format!("{option}: {e}"))?;
    let bytes = u32::try_from(bytes).ok().filter(|b| (1..=most).contains(b));
    bytes.ok_or_else(|| format!("{option}: {text}: sizes go from 1 B to {words}").into())
}

/// The default parameters with changes, each as name=value.
pub fn params(sets: &[String]) -> Result<Params> {
    let mut params = Params::default();
    for (i, set) in sets.iter().enumerate() {
        let (name, value) = set.split_once('=').ok_or_else(|| {
            format!("--set {set}: not name=value; the names are {}", Params::NAMES.join(", "))
        })?;
        if sets[..i].iter().any(|other| other.split_once('=').is_some_and(|s| s.0 == name)) {
            return Err(format!("--set {set}: {name} stands twice").into());
        }
        if let Some(knob) = Knob::ALL.into_iter().find(|k| k.name() == name) {
            let meaning = knob.meaning();
            let what = format!("--set {set}: {name} is no parameter, but of the topology");
            return Err(format!("{what} ({meaning}): its file or 'bellpush sim' sets it").into());
        }
        let value: f64 = value.parse().map_err(|_| format!("--set {set}: not a number"))?;
        if Params::is_count(name) && value.is_finite() && value.fract() != 0.0 {
            return Err(format!("--set {set}: must be a whole number").into());
        }
        let names = Params::NAMES.join(", ");
        *params
            .get_mut(name)
            .ok_or_else(|| format!("--set {set}: no such parameter; there are {names}"))? = value;
    }
    params.check().map_err(|e| format!("--set {e}"))?;
    Ok(params)
}

/// Parameters for a topology: those that were measured on it, unless the command sets them.
pub fn params_of(sets: &[String], topology: &Topology) -> Result<Params> {
    let mut all = params(sets)?;
    for &(name, value) in topology.measured() {
        let is_set = sets.iter().any(|set| set.split_once('=').is_some_and(|s| s.0 == name));
        if let Some(own) = all.get_mut(name).filter(|_| !is_set) {
            *own = value;
        }
    }
    Ok(all)
}

/// The device of a kind that the command names, or the first.
pub fn pick(topology: &Topology, wanted: Option<&String>, kind: Kind) -> Result<NodeId> {
    let node = named(topology, wanted, kind)?;
    linked(topology, node)?;
    Ok(node)
}

/// Refuses a device behind a link of which nothing is known: no rate is none.
pub fn linked(topology: &Topology, node: NodeId) -> Result<()> {
    let Some(unknown) = topology.unknown_link(node) else { return Ok(()) };
    let (name, id) = (&topology.name, &topology.node(unknown).id);
    Err(format!("{name}: the link of {id} is unknown: give its gen and lanes in the file").into())
}

fn named(topology: &Topology, wanted: Option<&String>, kind: Kind) -> Result<NodeId> {
    match wanted {
        Some(id) => topology
            .find(id)
            .filter(|&n| topology.node(n).kind == kind)
            .ok_or_else(|| format!("{}: no {kind} {id:?}", topology.name).into()),
        None => topology
            .of_kind(kind)
            .first()
            .copied()
            .ok_or_else(|| format!("{}: no {kind}", topology.name).into()),
    }
}

/// Runs the command with `out` as standard output.
pub fn run_to(args: &SimArgs, out: &mut dyn Write) -> Result<()> {
    let params = params(&args.parameters())?;
    let knobs = args.knobs()?;
    let mode = args.mode()?;
    args.check_options(mode)?;
    let in_flight = args.in_flight();
    if !(1..=MOST_IN_FLIGHT).contains(&in_flight) {
        return Err(format!("--in-flight {in_flight}: must be from 1 to {MOST_IN_FLIGHT}").into());
    }
    let places = [
        ("--csv", &args.csv),
        ("--json", &args.json),
        ("--report", &args.report),
        ("--svg", &args.svg),
    ];
    let taken = values::check_places(&places)?;
    let named: Vec<_> = args.topology.iter().filter_map(values::topology_file).collect();
    values::keep_inputs(&named, &places)?;
    if args.svg.is_some() && args.topology.len() != 1 {
        return Err("--svg: one --topology at a time".into());
    }
    args.check_rows(mode, &params)?;
    if args.derivatives {
        let rows = derivatives(&params, &H200_CURVES)?;
        let rows = rows.iter().map(serde_json::to_value).collect::<std::result::Result<_, _>>()?;
        return emit(args, out, "sim --derivatives", rows, Ends::default());
    }
    if args.leave_one_out {
        let rows = sim_rows::left_out(&params)?;
        return emit(args, out, "sim --validate --leave-one-out", rows, Ends::default());
    }
    if args.validate {
        let rows = sim_rows::all(&params)?;
        let results = rows.iter().map(sim_rows::Row::json).collect();
        emit(args, out, "sim --validate", results, Ends::default())?;
        if args.json.is_none() && args.csv.is_none() {
            let said = [totals(&rows), bound(&rows), intervals(&rows), signs(&rows)];
            write!(out, "{}{}", changed(&params), said.concat())?;
        }
        return Ok(());
    }
    let message = args.message.as_deref();
    let message = message.map(|s| parse_size("--message", s, (1 << 20, "1 MiB"))).transpose()?;
    let messages = message.map(|bytes| (bytes, in_flight));
    let most = match mode {
        Mode::Scale => (1 << 30, "1 GiB"),
        _ => (16 << 20, "at most 16 MiB, TLP by TLP"),
    };
    let sizes = args.sizes.iter().map(|s| parse_size("--sizes", s, most));
    let sizes = match args.sizes.is_empty() {
        // A grid leaves out the largest, whose rates are those of the next: it takes most of the time.
        true if mode == Mode::What => SIZES[..3].into(),
        true => SIZES.into(),
        false => sizes.collect::<Result<Vec<u32>>>()?,
    };
    let mut paths = Vec::new();
    for name in &args.path {
        let found = PathModel::ALL.into_iter().find(|p| p.name() == name);
        paths.push(found.ok_or_else(|| {
            let names = PathModel::ALL.map(|p| p.name()).join(", ");
            format!("--path {name}: no such path; there are {names}")
        })?);
    }
    if paths.is_empty() {
        paths = PathModel::ALL.into();
    }
    let mut names = args.topology.clone();
    if names.is_empty() {
        names = BUILTIN_NAMES.map(str::to_owned).into();
    }
    let topologies = names.iter().map(|name| values::topology(name));
    let mut topologies = topologies.collect::<std::result::Result<Vec<Topology>, _>>()?;
    if let Some(knobs) = &knobs {
        for topology in &mut topologies {
            *topology = args.with(knobs, topology, &params)?;
        }
    }
    args.check_work(mode, &topologies, &paths, &sizes)?;
    if mode == Mode::Flows {
        let question: Option<Question> = match &args.what {
            Some(text) => Some(text.parse().map_err(|e| format!("--what {e}"))?),
            None => None,
        };
        for topology in &topologies {
            flows::check_work(topology, &params, &args.flows, (messages, question.as_ref()))?;
        }
    }
    args.check_sets(mode, &topologies, (&paths, &sizes), messages.map(|m| m.0))?;
    let mut results: Vec<Value> = Vec::new();
    let mut swept: Vec<Swept> = Vec::new();
    let mut known = Known::default();
    let mut ends = Ends::default();
    for topology in topologies {
        let params = params_of(&args.parameters(), &topology)?;
        if !args.flows.is_empty() {
            results.extend(match &args.what {
                None => {
                    let origins = sim_marks::origins(&args.set, &topology);
                    let mut rows = flows::rows(&topology, &params, &args.flows, messages)?;
                    let limit = match messages {
                        None => flows::limit(&topology, &params, &origins, &args.flows)?,
                        Some(_) => None,
                    };
                    rows.extend(limit);
                    rows
                }
                Some(text) => {
                    let question = text.parse().map_err(|e| format!("--what {e}"))?;
                    flows::answer(&topology, &params, &args.flows, (messages, &question))?
                }
            });
            continue;
        }
        let gpu = pick(&topology, args.gpu.as_ref(), Kind::Gpu)?;
        let nic = pick(&topology, args.nic.as_ref(), Kind::Nic)?;
        for (all, end) in ends.iter_mut().zip([gpu, nic]) {
            all.insert(topology.node(end).id.clone());
        }
        let spec =
            TestBedSpec { topology: &topology, gpu, nic, params: &params, seed: args.seed() };
        let asked = (&paths[..], &sizes[..], in_flight);
        let marks =
            || sim_marks::operations(spec, &sim_marks::origins(&args.set, &topology), asked);
        if !args.scale.is_empty() {
            for (path, cost) in wire_costs(spec) {
                for (&gpus, &bytes) in
                    args.scale.iter().flat_map(|g| sizes.iter().map(move |s| (g, s)))
                {
                    for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::TwoLevel] {
                        let ns = dgx_cluster(gpus, cost).all_reduce_ns(algorithm, bytes.into());
                        results.push(json!({
                            "topology": topology.name, "path": path, "gpus": gpus, "bytes": bytes,
                            "algorithm": algorithm, "all_reduce_us": ns / 1000.0,
                        }));
                    }
                }
            }
        } else if args.losses {
            for throughput in [false, true] {
                for loss in
                    losses(spec, &sizes, if throughput { in_flight } else { 1 }, throughput)?
                {
                    let mut row = serde_json::to_value(&loss)?;
                    row["explanation"] = json!(
                        loss.causes.iter().map(|(c, _)| c.text()).collect::<Vec<_>>().join("; ")
                    );
                    results.push(row);
                }
            }
        } else if args.sensitivity {
            for push in [PathModel::PushKernel, PathModel::PushInband] {
                for &bytes in &sizes {
                    // Without pull there is nothing to compare.
                    let Ok(rows) = sensitivity(spec, push, PathModel::Pull, bytes) else {
                        continue;
                    };
                    for row in rows {
                        results.push(json!({
                            "topology": topology.name, "push": push, "bytes": bytes,
                            "parameter": row.parameter, "down": row.ratio[0],
                            "base": row.ratio[1], "up": row.ratio[2], "flips": row.flips,
                        }));
                    }
                }
            }
        } else if let Some(text) = &args.what {
            let prints = args.json.is_none() && args.csv.is_none() && !taken;
            let answer = Answer::new(spec, text, asked, &mut known, prints.then_some(&mut *out))?;
            results.extend(answer.json());
            if let Some(path) = &args.svg {
                values::put(path, &(answer.svg(in_flight)? + "\n"), out)?;
            }
            if prints {
                write!(out, "{}", marks()?)?;
                writeln!(out, "{NO_CARD}.")?;
                let either = [LAYOUT, LAYOUT_IN_HOST];
                let either = if answer.asks_of_reads() { &either[..] } else { &[layout(spec)] };
                either.iter().try_for_each(|layout| writeln!(out, "{layout}."))?;
                writeln!(out)?;
            }
        } else {
            let rows = sweep(spec, &paths, &sizes, in_flight);
            results.extend(rows.iter().map(flat));
            if args.json.is_none() && args.csv.is_none() && !taken {
                print_sweep(spec, &rows, &marks()?, out)?;
            }
            if args.report.is_some() {
                swept.push(Swept::new(spec, rows, in_flight)?);
            }
        }
    }
    if let Some(path) = &args.report {
        values::put(path, &render(&swept, &params, args.seed())?, out)?;
    }
    let table = !args.losses && !args.sensitivity && args.scale.is_empty() && args.flows.is_empty();
    if table && args.json.is_none() && args.csv.is_none() {
        return Ok(());
    }
    if args.sensitivity {
        // What turns an order is what is asked for.
        results.sort_by_key(|row| row["flips"] != true);
    }
    let flips = results.iter().filter(|row| row["flips"] == true).count();
    let total = format!("{} cases, {flips} flips, which stand first", results.len());
    let command = match () {
        () if !args.scale.is_empty() => "sim --scale",
        () if !args.flows.is_empty() => "sim --flows",
        () if args.what.is_some() => "sim --what",
        () if args.losses => "sim --losses",
        () if args.sensitivity => "sim --sensitivity",
        _ => "sim",
    };
    emit(args, out, command, results, ends)?;
    if args.sensitivity && args.json.is_none() && args.csv.is_none() {
        writeln!(out, "{total}")?;
    }
    Ok(())
}

fn flat(row: &SweepRow) -> Value {
    json!({
        "topology": row.topology,
        "class": row.distance,
        "path": row.path,
        "bytes": row.bytes,
        "delivered_ns": row.prediction.map(|p| p.delivered_ns),
        "completed_ns": row.prediction.map(|p| p.completed_ns),
        "in_flight": row.prediction.map(|p| p.in_flight),
        "gb_per_s": row.prediction.map(|p| p.gb_per_s),
        "why_not": row.why_not,
    })
}

fn print_sweep(
    spec: TestBedSpec<'_>,
    rows: &[SweepRow],
    marks: &str,
    out: &mut dyn Write,
) -> Result<()> {
    let route = spec.topology.route(spec.gpu, spec.nic);
    writeln!(out, "{} ({}), model", one_line(&spec.topology.name), route.class)?;
    writeln!(out, "{}", route.text(spec.topology))?;
    let mut notes = route.notes(spec.topology);
    // By it the NIC reads; whoever is refused there has no pull.
    if let Some(back) = route.other_back(spec.topology) {
        writeln!(out, "{} (the way back, {})", back.text(spec.topology), back.class)?;
        let more = back.notes(spec.topology);
        notes.extend(more.into_iter().filter(|note| !route.notes(spec.topology).contains(note)));
    }
    for note in notes {
        writeln!(out, "{note}.")?;
    }
    writeln!(
        out,
        "{:>16} {:>9} {:>13} {:>13} {:>8}",
        "path", "bytes", "delivered us", "completed us", "GB/s"
    )?;
    for row in rows {
        match (row.prediction, &row.why_not) {
            (Some(p), _) => writeln!(
                out,
                "{:>16} {:>9} {:>13.2} {:>13.2} {:>8}",
                row.path.name(),
                row.bytes,
                p.delivered_ns / 1000.0,
                p.completed_ns / 1000.0,
                decimals(p.gb_per_s, 2)
            )?,
            (None, why) => writeln!(
                out,
                "{:>16} {:>9}   {}",
                row.path.name(),
                row.bytes,
                why.as_deref().unwrap_or_default()
            )?,
        }
    }
    for c in crossings(rows) {
        writeln!(
            out,
            "crossing: {} up to {} B, {} from {} B",
            c.small.name(),
            c.below_bytes,
            c.large.name(),
            c.above_bytes
        )?;
    }
    if let Some(need) = window_needed_bytes(spec)? {
        writeln!(out, "window that keeps the wire busy: {} KiB", need.div_ceil(1024))?;
    }
    writeln!(out, "{marks}{NO_CARD}.\n{}.\n", layout(spec))?;
    Ok(())
}

/// Where the queues are modelled: a NIC that cannot read the GPU's memory has them in the host's.
fn layout(spec: TestBedSpec<'_>) -> &'static str {
    let in_host = spec.topology.route(spec.nic, spec.gpu).refuses_reads(spec.topology).is_some();
    if in_host { LAYOUT_IN_HOST } else { LAYOUT }
}

/// GPUs and NICs that operations were simulated between.
type Ends = [BTreeSet<String>; 2];

fn emit(
    args: &SimArgs,
    out: &mut dyn Write,
    command: &str,
    results: Vec<Value>,
    ends: Ends,
) -> Result<()> {
    let mut printed = false;
    let mut put = |path: &PathBuf, text: &str| -> Result<()> {
        printed = true;
        Ok(values::put(path, text, out)?)
    };
    if let Some(path) = &args.csv {
        put(path, &to_csv(&results))?;
    }
    if let Some(path) = &args.json {
        // Of several topologies each may have another.
        let [gpu, nic] = ends.map(|all| all.into_iter().reduce(|_, _| String::new()));
        let [gpu, nic] = [gpu, nic].map(|id| id.filter(|id| !id.is_empty()));
        let meta = json!({
            "command": command, "seed": args.seed(), "set": args.set, "source": "model",
            "in_flight": args.in_flight(), "gpu": gpu, "nic": nic, "message": args.message,
        });
        let text = serde_json::to_string_pretty(&json!({ "meta": meta, "results": results }))?;
        put(path, &(text + "\n"))?;
    }
    if !printed {
        for row in &results {
            let Value::Object(row) = row else { continue };
            let cells: Vec<String> = row
                .iter()
                .filter(|(_, v)| !v.is_null() && *v != "")
                .map(|(k, v)| match v.as_f64() {
                    Some(f) if v.is_f64() => format!("{k} {}", decimals(f, 3)),
                    _ => format!("{k} {}", v.as_str().map_or_else(|| v.to_string(), one_line)),
                })
                .collect();
            writeln!(out, "{}", cells.join("  "))?;
        }
    }
    Ok(())
}
