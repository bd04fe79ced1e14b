//! `bellpush link`: measures PCIe and NVLink of this machine and compares with the model.
//!
//! The rows to which the model is fitted are printed before the measurement ([`CALIBRATION`]). All
//! others are predictions and are shown with their errors.

mod rows;
mod saved;
mod scale;
mod test_bed;
mod together;

use std::io::Write;
use std::path::{Path as FsPath, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bellpush::gpu::{Executor, Gpu};
use bellpush::pcie::Origin;
use bellpush::pcie::sim::{
    CALIBRATION, Calibration, Machine, Params, Probe, Target, calibrate, predict_probe,
};
use bellpush::pcie::tlp::{Gen, LinkSpeed, Mps};
use bellpush::pcie::topology::{LinkOrigin, PcieLink, RawLink, Topology, from_sysfs};
use bellpush_cli::link_limits as limits;
use bellpush_cli::report::{Nic, machine};
use serde_json::{Value, json};

use self::saved::{Either, Saved, Several};
use self::test_bed::{Measured, TestBed};
use crate::bench::test_bed::{node, open_gpu, say_where};
use crate::cli::{CliError, UNVERIFIED};
use crate::{plan, values};

/// Arguments of `bellpush link`.
#[derive(Debug, Clone, clap::Args)]
pub struct LinkArgs {
    /// CUDA device, or `host` for kernels on CPU threads [default: 0 if there is one, else host]
    #[arg(long, value_name = "N|host", allow_hyphen_values = true)]
    gpu: Option<String>,
    /// The other GPU, or `none` [default: the next one, where there is one]
    #[arg(long, value_name = "N|none", allow_hyphen_values = true)]
    peer: Option<String>,
    /// Host memory near the GPU or on another NUMA node [default: where the system puts it]
    #[arg(long, value_name = "near|far")]
    host_numa: Option<String>,
    /// PCIe generation of the GPU's link [default: what sysfs says]
    #[arg(long = "gen", value_name = "N")]
    generation: Option<u32>,
    /// Lanes of the GPU's link [default: what sysfs says]
    #[arg(long, value_name = "N")]
    lanes: Option<u32>,
    /// MPS of the GPU's link, bytes [default: what sysfs says]
    #[arg(long, value_name = "BYTES")]
    mps: Option<u32>,
    /// Start value of a model parameter, as name=value
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Compare with the model without calibrating it
    #[arg(long)]
    no_fit: bool,
    /// Compare a result of --json with the model, instead of measuring; of one of --together, show
    /// what ports, shared links and the host carry
    #[arg(long, value_name = "FILE", conflicts_with_all = ["gpu", "peer", "host_numa", "timeout_ms"])]
    measured: Option<PathBuf>,
    /// Streams of these GPUs at once, to the host and to each other, such as 0,1: which share a
    /// link, and how much of it each gets
    #[arg(long, value_name = "N,N...", allow_hyphen_values = true,
          conflicts_with_all = ["gpu", "peer", "measured", "no_fit", "host_numa", "generation", "lanes", "mps"])]
    together: Option<String>,
    /// Topology of these GPUs, for the model beside: a built-in's name or a TOML file, whose GPUs
    /// are taken by PCI address, or in their order [default: what sysfs says; of --measured the
    /// predictions of its own day]
    #[arg(long, value_name = "TOPOLOGY")]
    topology: Option<String>,
    /// Timeout of one measurement, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    timeout_ms: u64,
    /// Save the result; `-` prints it on stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Save the rows as CSV; `-` prints them on stdout
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// Measures, prints and saves. Exit status 1 when a row did not move the expected bytes.
///
/// # Errors
/// One line for invalid input or a missing device.
pub fn run(args: &LinkArgs) -> Result<ExitCode, CliError> {
    let see = "see 'bellpush link --help'";
    let start = crate::sim::params(&args.set).map_err(|e| CliError::new(e, see))?;
    let places = [("--json", &args.json), ("--csv", &args.csv)];
    values::check_places(&places)?;
    let named = args.topology.as_ref().and_then(values::topology_file);
    values::keep_inputs(args.measured.iter().chain(&named), &places)?;
    let for_several = "--topology is for GPUs that are measured at once, with --together";
    if args.topology.is_some() && args.measured.is_none() && args.together.is_none() {
        return Err(CliError::new(for_several, "give --together, or --measured of such a result"));
    }
    if args.timeout_ms == 0 {
        return Err(CliError::new("--timeout-ms 0: nothing ends at once", "give 1 or more"));
    }
    if let Some(list) = &args.together {
        return at_once(args, &start, list);
    }
    let taken = match &args.measured {
        Some(file) => match saved::read(file)? {
            Either::One(_) if args.topology.is_some() => {
                return Err(CliError::new(for_several, "leave it out: the file is of one GPU"));
            }
            Either::One(saved) => again(saved, args)?,
            Either::Several(saved) => return several_again(args, &start, saved),
        },
        None => measure(args, &start)?,
    };
    compare(args, &start, taken)
}

/// The topology that `--topology` names.
fn given(args: &LinkArgs) -> Result<Option<Topology>, CliError> {
    let read =
        |name| values::topology(name).map_err(|e| CliError::new(e, "see 'bellpush topo --help'"));
    args.topology.as_deref().map(read).transpose()
}

/// Streams of several GPUs at once.
fn at_once(args: &LinkArgs, start: &Params, list: &str) -> Result<ExitCode, CliError> {
    let topology = given(args)?.or_else(|| from_sysfs(FsPath::new("/sys"), None).ok());
    let gpus = together::open(list)?;
    let is_host = gpus[0].is_host();
    let places = topology.as_ref().filter(|_| !is_host);
    let places = places.and_then(|t| together::Places::new(t, &gpus, args.topology.is_some()));
    let out = Printer::new(args);
    if is_host {
        out.line(PROTOCOL_ONLY)?;
    }
    let limit = Duration::from_millis(args.timeout_ms);
    let rows = together::measure(&gpus, places.as_ref(), start, limit)?;
    together::text(&rows, is_host).iter().try_for_each(|line| out.line(line))?;
    let mut meta = common_meta(&gpus[0])?;
    let names: Vec<String> = gpus.iter().map(|gpu| gpu.describe().to_string()).collect();
    meta["command"] = json!("link --together");
    meta["gpus"] = json!(names);
    meta["runs"] = json!(together::REPEATS);
    meta["topology"] = json!(places.map(|p| p.name().to_owned()));
    save_several(&out, meta, &rows)
}

/// A saved result of several GPUs at once, beside the predictions of its own day, or of a topology.
fn several_again(
    args: &LinkArgs,
    start: &Params,
    mut saved: Several,
) -> Result<ExitCode, CliError> {
    let topology = given(args)?;
    let useless = [
        ("--set", !args.set.is_empty() && topology.is_none()),
        ("--no-fit", args.no_fit),
        ("--gen", args.generation.is_some()),
        ("--lanes", args.lanes.is_some()),
        ("--mps", args.mps.is_some()),
    ];
    if let Some((name, _)) = useless.iter().find(|(_, is_given)| *is_given) {
        let what = format!("{name}: the file is of 'link --together', whose limits hang on it not");
        return Err(CliError::new(what, "leave it out"));
    }
    let out = Printer::new(args);
    let gpu = saved.meta["gpu"].as_str().unwrap_or("a GPU");
    let mut head = format!("{gpu} and others at once, measured before");
    if let Some(topology) = &topology {
        let see = "give the topology of these GPUs";
        let put = together::predict_again(&mut saved.rows, topology, start);
        put.map_err(|e| CliError::new(format!("--topology {e}"), see))?;
        head += &format!("; model: {}", topology.name);
        saved.meta["topology"] = json!(topology.name);
    }
    out.line(&head)?;
    together::text(&saved.rows, false).iter().try_for_each(|line| out.line(line))?;
    save_several(&out, saved.meta, &saved.rows)
}

/// Saves rows of several GPUs with the limits that they tell.
fn save_several(out: &Printer<'_>, mut meta: Value, rows: &[Value]) -> Result<ExitCode, CliError> {
    let all = if meta["gpu"].is_null() { Vec::new() } else { limits::all(rows) };
    meta["limits"] = all.iter().map(|(access, limits)| limits.json(*access)).collect();
    out.save(&meta, rows)?;
    let good = rows.iter().all(|row| row["verified"] == true);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(UNVERIFIED) })
}

/// The measurements and their circumstances.
struct Taken {
    rows: Vec<(Probe, Measured)>,
    link: RawLink,
    meta: Value,
    /// Whether a model applies: with kernels on CPU threads nothing crosses a link.
    modelled: bool,
}

impl Taken {
    /// The rows to which parameters are fitted.
    fn fitted(args: &LinkArgs, modelled: bool, with_peer: bool) -> Vec<Calibration> {
        let wanted = |c: &Calibration| modelled && !args.no_fit && (with_peer || !c.peer);
        CALIBRATION.into_iter().filter(wanted).collect()
    }
}

fn measure(args: &LinkArgs, start: &Params) -> Result<Taken, CliError> {
    let wanted = args.gpu.as_deref().map_or(Ok(plan::Gpu::Auto), plan::gpu)?;
    let numa = args.host_numa.as_deref().map(plan::numa).transpose()?;
    let gpu = open_gpu(wanted)?;
    let host_numa = numa.map(|numa| node(&gpu, numa)).transpose()?;
    let peer = peer_of(&gpu, args.peer.as_deref())?;
    let limit = Duration::from_millis(args.timeout_ms);
    let mut bed = TestBed::new(gpu.clone(), peer, host_numa, limit)?;
    let probes = rows::of(&gpu, bed.peer.is_some());
    // Work that brings the GPU and its link out of their idle states before the link is queried.
    bed.measure(probes[0], 1.0)?;
    let (link, source) = link_of(&gpu, args)?;
    say_where(wanted, &gpu);
    let modelled = !gpu.is_host();
    let fitted = Taken::fitted(args, modelled, bed.peer.is_some());
    let names = bed.peer.as_ref().map_or("none".to_owned(), |p| p.gpu.describe().to_string());
    let out = Printer::new(args);
    out.head(
        &format!("{}, peer {names}", gpu.describe()),
        modelled.then_some((link, source)),
        &fitted,
    )?;
    let mut rows: Vec<(Probe, Measured)> = Vec::new();
    for &probe in &probes {
        let expected = if modelled { predict(start, link, probe)? } else { 1.0 };
        rows.push((probe, bed.measure(probe, expected)?));
    }
    Ok(Taken { rows, link, meta: meta(&bed, link, source)?, modelled })
}

/// A saved result in place of a measurement.
fn again(saved: Saved, args: &LinkArgs) -> Result<Taken, CliError> {
    let Saved { meta, link, rows } = saved;
    let (link, source) = link_given(link, "as saved", args)?;
    let with_peer = rows.iter().any(|(probe, _)| *probe == Probe::Latency(Target::Peer));
    let fitted = Taken::fitted(args, true, with_peer);
    let gpu = meta["gpu"].as_str().unwrap_or("a GPU");
    Printer::new(args).head(&format!("{gpu}, measured before"), Some((link, source)), &fitted)?;
    Ok(Taken { rows, link, meta, modelled: true })
}

fn predict(params: &Params, link: RawLink, probe: Probe) -> Result<f64, CliError> {
    predict_probe(params, Machine { link }, probe)
        .map_err(|e| CliError::new(e, "this is a bug: please report it"))
}

/// Fits, predicts, prints and saves.
fn compare(args: &LinkArgs, start: &Params, taken: Taken) -> Result<ExitCode, CliError> {
    let Taken { rows: measured, link, mut meta, modelled } = taken;
    let with_peer = measured.iter().any(|(probe, _)| *probe == Probe::Latency(Target::Peer));
    let fitted = Taken::fitted(args, modelled, with_peer);
    let value =
        |probe| measured.iter().find(|(p, _)| *p == probe).map(|(_, m): &(_, Measured)| m.value);
    let is_fitted = |probe| fitted.iter().any(|c| c.probe == probe);
    let is_base = |probe| fitted.iter().any(|c| c.less == Some(probe));
    let found = |probe| value(probe).filter(|_| is_fitted(probe) || is_base(probe));
    let params = calibrate(start, Machine { link }, found)
        .map_err(|e| CliError::new(e, "this is a bug: please report it"))?;
    let mut results = Vec::new();
    for &(probe, m) in &measured {
        let model = if modelled { Some(predict(&params, link, probe)?) } else { None };
        results.push(rows::json(probe, m, model, is_fitted(probe)));
    }
    meta["calibration"] = fitted
        .iter()
        .map(|c| {
            let mut fit = params.clone();
            let value = fit.get_mut(c.parameter).map(|v| *v);
            json!({ "parameter": c.parameter, "row": c.row(), "value": value })
        })
        .collect();
    let out = Printer::new(args);
    out.rows(&results)?;
    out.save(&meta, &results)?;
    let good = measured.iter().all(|(_, m)| m.verified);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(UNVERIFIED) })
}

/// The GPU at the other end. The host executor gets a second one.
fn peer_of(gpu: &Arc<Gpu>, wanted: Option<&str>) -> Result<Option<Arc<Gpu>>, CliError> {
    let executor = match (wanted, gpu.ordinal()) {
        (Some("none"), _) => return Ok(None),
        (Some(word), own) => match (plan::gpu(word)?, own) {
            (plan::Gpu::Cuda(n), Some(own)) if n as usize != own => Executor::Cuda(n as usize),
            (plan::Gpu::Host, None) => Executor::Host(Default::default()),
            _ => {
                return Err(CliError::new(
                    format!("--peer {word}: that is no peer of {}", gpu.describe()),
                    "give another CUDA device's number, or none",
                ));
            }
        },
        (None, None) => Executor::Host(Default::default()),
        (None, Some(own)) => {
            let count = Gpu::cuda_count()?;
            if count < 2 {
                return Ok(None);
            }
            Executor::Cuda((own + 1) % count)
        }
    };
    Ok(Some(Gpu::open(executor)?))
}

/// The GPU's PCIe link, and the source of this information.
fn link_of(gpu: &Gpu, args: &LinkArgs) -> Result<(RawLink, &'static str), CliError> {
    let pci = gpu.describe().pci.as_deref();
    let (link, source) = match sysfs_link(pci, FsPath::new("/sys")) {
        Ok((link, origin)) => (
            RawLink {
                generation: link.speed.generation().number(),
                lanes: link.speed.lanes(),
                mps: link.mps.bytes(),
                mrrs: link.mrrs.bytes(),
            },
            source_of(origin),
        ),
        Err(source) => (RawLink::new(5, 16), source),
    };
    link_given(link, source, args)
}

/// The link, with the command line's values in place of the given ones.
fn link_given(
    mut link: RawLink,
    mut source: &'static str,
    args: &LinkArgs,
) -> Result<(RawLink, &'static str), CliError> {
    if args.generation.is_some() || args.lanes.is_some() || args.mps.is_some() {
        link.generation = args.generation.unwrap_or(link.generation);
        link.lanes = args.lanes.unwrap_or(link.lanes);
        link.mps = args.mps.unwrap_or(link.mps);
        source = "given";
    }
    let checked = Gen::new(link.generation).and_then(|g| LinkSpeed::new(g, link.lanes));
    checked
        .and_then(|_| Mps::new(link.mps))
        .map_err(|e| CliError::new(e, "see 'bellpush link --help'"))?;
    Ok((link, source))
}

/// The link of the GPU at this address, or the source of what is assumed in its place.
fn sysfs_link(pci: Option<&str>, sysfs: &FsPath) -> Result<(PcieLink, LinkOrigin), &'static str> {
    let pci = pci.ok_or("assumed: the GPU has no PCI address")?;
    let topology = from_sysfs(sysfs, None)
        .map_err(|_| "assumed: sysfs cannot be read as a topology (bellpush topo says why)")?;
    let node = topology.find(pci).ok_or("assumed: sysfs does not show the GPU")?;
    let node = topology.node(node);
    Ok((node.link.ok_or("assumed: sysfs does not show the GPU's link")?, node.link_origin))
}

/// What sysfs says of the link. Who is not root sees no MPS.
fn source_of(origin: LinkOrigin) -> &'static str {
    match (origin.speed == Origin::Read, origin.mps == Origin::Read) {
        (true, true) => "sysfs",
        (true, false) => "sysfs; MPS assumed: root sees it, or --mps",
        (false, true) => "sysfs; fastest link unknown: as it is now, or --gen and --lanes",
        (false, false) => "sysfs; fastest link unknown and MPS assumed: --gen, --lanes, --mps",
    }
}

/// The machine and the build; no NIC and no randomness is involved here.
fn common_meta(gpu: &Gpu) -> Result<Value, CliError> {
    let meta = machine::meta(Nic::default(), &gpu.describe().to_string(), 0);
    let mut meta = serde_json::to_value(&meta)
        .map_err(|e| CliError::new(e, "this is a bug: please report it"))?;
    if let Value::Object(meta) = &mut meta {
        meta.remove("nic");
        meta.remove("seed");
        if gpu.is_host() {
            meta.insert("gpu".into(), Value::Null);
            meta.insert("notes".into(), json!([PROTOCOL_ONLY]));
        }
    }
    Ok(meta)
}

fn meta(bed: &TestBed, link: RawLink, source: &str) -> Result<Value, CliError> {
    let mut meta = common_meta(&bed.gpu)?;
    if let Value::Object(meta) = &mut meta {
        meta.insert("command".into(), "link".into());
        meta.insert("runs".into(), json!(bed.runs()));
        meta.insert("peer".into(), json!(bed.peer.as_ref().map(|p| p.gpu.describe().to_string())));
        meta.insert(
            "link".into(),
            json!({
                "gen": link.generation, "lanes": link.lanes, "mps_bytes": link.mps,
                "source": source,
            }),
        );
    }
    Ok(meta)
}

const PROTOCOL_ONLY: &str =
    "kernels on CPU threads: the rows show that they work; their numbers are no link's";

/// Output of text, unless standard output is for JSON or CSV.
struct Printer<'a> {
    args: &'a LinkArgs,
    quiet: bool,
}

impl<'a> Printer<'a> {
    fn new(args: &'a LinkArgs) -> Self {
        let stdout = |p: &Option<PathBuf>| p.as_ref().is_some_and(|p| p.as_os_str() == "-");
        Self { args, quiet: stdout(&args.json) || stdout(&args.csv) }
    }

    fn line(&self, text: &str) -> Result<(), CliError> {
        if self.quiet {
            return Ok(());
        }
        match writeln!(std::io::stdout().lock(), "{text}") {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(CliError::new(format!("cannot print: {e}"), "check where output goes"))
            }
            _ => Ok(()),
        }
    }

    /// `link` is `None` where the model does not apply.
    fn head(
        &self,
        machine: &str,
        link: Option<(RawLink, &str)>,
        fitted: &[Calibration],
    ) -> Result<(), CliError> {
        self.line(machine)?;
        let Some((link, source)) = link else { return self.line(PROTOCOL_ONLY) };
        self.line(&format!(
            "PCIe Gen{} x{}, MPS {} ({source})",
            link.generation, link.lanes, link.mps
        ))?;
        self.line("fitted, each parameter to one row; all other rows are predictions:")?;
        for c in fitted {
            self.line(&format!("  {:<20} {}", c.parameter, c.row()))?;
        }
        Ok(())
    }

    fn rows(&self, results: &[Value]) -> Result<(), CliError> {
        self.line(&format!(
            "{:<64} {:>10} {:>7} {:>10} {:>8}  ",
            "row", "measured", "spread", "model", "error"
        ))?;
        for row in results {
            self.line(&rows::text(row))?;
        }
        Ok(())
    }

    fn save(&self, meta: &Value, results: &[Value]) -> Result<(), CliError> {
        if let Some(path) = &self.args.csv {
            values::put(path, &values::to_csv(results), &mut std::io::stdout())?;
        }
        if let Some(path) = &self.args.json {
            let json = json!({ "meta": meta, "results": results });
            let text = serde_json::to_string_pretty(&json)
                .map_err(|e| CliError::new(e, "this is a bug: please report it"))?;
            values::put(path, &(text + "\n"), &mut std::io::stdout())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An MPS that nobody read is not said to be sysfs'.
    #[test]
    fn what_is_assumed_of_a_link_is_said() {
        let of = |speed, mps| source_of(LinkOrigin { speed, mps, mrrs: Origin::Assumed });
        assert_eq!(of(Origin::Read, Origin::Read), "sysfs");
        let assumed = of(Origin::Read, Origin::Assumed);
        assert!(assumed.contains("MPS assumed") && assumed.contains("--mps"), "{assumed}");
        assert!(of(Origin::Assumed, Origin::Read).contains("as it is now"));
        assert!(of(Origin::Assumed, Origin::Assumed).contains("MPS assumed"));
    }

    /// Why a link is assumed: a sysfs that cannot be read is not one that lacks the GPU.
    #[test]
    fn why_a_link_is_assumed_is_said() {
        let of = |pci, sysfs| sysfs_link(pci, FsPath::new(sysfs)).unwrap_err();
        assert!(of(None, "/sys").contains("no PCI address"));
        let refused = of(Some("0000:01:00.0"), "/no/such/directory");
        assert!(refused.contains("cannot be read"), "{refused}");
    }
}
