//! A result of `bellpush link --json`, for the advice and the file of the machine that it was
//! measured on.

use std::path::Path;

use bellpush::pcie::sim::{Access, CALIBRATION, Calibration, Machine, Params, fitted};
use bellpush::pcie::tlp::{Gen, LinkSpeed, Mps};
use bellpush::pcie::topology::{Kind, NodeId, RawLink, Topology};
use bellpush_cli::link_limits::{self as limits, Carries, Limits};
use serde_json::Value;

use crate::values;

/// Share by which a value may miss the row that it was fitted to: fits end within a hundredth, and
/// later fits move earlier rows by less.
const MISSED: f64 = 0.05;

/// What a result says of its machine.
#[derive(Debug, PartialEq)]
pub enum Measured {
    /// Of one GPU and its link.
    One(One),
    /// Of several GPUs at once.
    Several(Several),
}

/// What a result of several GPUs at once says of host memory.
#[derive(Debug, PartialEq)]
pub struct Several {
    /// The GPUs' names.
    gpus: Vec<String>,
    /// What all read from it and write to it at most, where it is the narrowest, GB/s.
    limits: [Option<f64>; 2],
}

/// What a result of one GPU says.
#[derive(Debug, PartialEq)]
pub struct One {
    fits: Vec<(&'static str, f64)>,
    /// The GPU's name.
    gpu: String,
    /// Generation, lanes and MPS of the GPU's link.
    link: [u32; 3],
}

/// Reads and checks a result.
///
/// # Errors
/// One line that names the file and the fault.
pub fn read(path: &Path) -> Result<Measured, String> {
    let text = values::read_text(path)?;
    parse(&text).map_err(|what| format!("{}: {what}", path.display()))
}

/// Reads and checks the text of a result.
///
/// # Errors
/// What is wrong with it, in which control characters of its own may stand.
pub fn parse(text: &str) -> Result<Measured, String> {
    let json: Value = serde_json::from_str(text).map_err(|e| format!("no JSON ({e})"))?;
    let meta = &json["meta"];
    let is_several = meta["command"] == "link --together";
    if !(is_several || meta["command"] == "link") {
        return Err("not a result of 'bellpush link --json'".into());
    }
    if meta["gpu"].is_null() {
        return Err("kernels on CPU threads: nothing of the machine was measured".into());
    }
    if is_several {
        return several(meta, json["results"].as_array().map_or(&[], Vec::as_slice));
    }
    let gpu = meta["gpu"].as_str().ok_or("meta.gpu is no name")?.to_owned();
    let number = |key: &str| {
        let number = meta["link"][key].as_u64().and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| format!("meta.link.{key} is no number"))
    };
    let link = [number("gen")?, number("lanes")?, number("mps_bytes")?];
    let [generation, lanes, mps] = link;
    let speed = Gen::new(generation).and_then(|g| LinkSpeed::new(g, lanes));
    speed.and_then(|_| Mps::new(mps)).map_err(|e| format!("meta.link: {e}"))?;
    let list = meta["calibration"].as_array().filter(|list| !list.is_empty());
    let list = list.ok_or("no parameter was fitted (--no-fit?)")?;
    let mut fits: Vec<Fit> = Vec::new();
    for (i, entry) in list.iter().enumerate() {
        let fit = fit(entry, &json["results"]);
        let fit = fit.map_err(|what| format!("calibration {}: {what}", i + 1))?;
        let name = fit.of.parameter;
        if fits.iter().any(|f| f.of.parameter == name) {
            return Err(format!("calibration {}: {name} stands twice", i + 1));
        }
        fits.push(fit);
    }
    let link_of = RawLink { mps, ..RawLink::new(generation, lanes) };
    explain(&fits, Machine { link: link_of })?;
    let fits = fits.iter().map(|fit| (fit.of.parameter, fit.value)).collect();
    Ok(Measured::One(One { fits, gpu, link }))
}

/// Limits of host memory that rows of several GPUs tell.
fn several(meta: &Value, rows: &[Value]) -> Result<Measured, String> {
    let names = meta["gpus"].as_array().filter(|names| !names.is_empty());
    let names = names.map(|names| names.iter().map(|n| n.as_str().map(str::to_owned)).collect());
    let gpus: Vec<String> = names.flatten().ok_or("meta.gpus are no names")?;
    let sets = limits::sets(rows)?;
    if let Some(at) = sets.iter().flatten().position(|row| !row.verified) {
        return Err(format!("row {}: it did not move what it should", at + 1));
    }
    let limit = |access| match Limits::of(&sets, access).and_then(|l| l.host) {
        Some(Carries::This(gb_per_s)) => Some(gb_per_s),
        Some(Carries::AtLeast(_)) | None => None,
    };
    let limits = [limit(Access::Load), limit(Access::Store)];
    if limits.iter().all(Option::is_none) {
        let why =
            "no limit of host memory: all GPUs at once have what their ports and shared links";
        return Err(format!("{why} carry, or fewer than three ran"));
    }
    Ok(Measured::Several(Several { gpus, limits }))
}

/// A value, and the row that it was fitted to as it was measured: the difference of two, of some.
struct Fit {
    of: &'static Calibration,
    value: f64,
    measured: f64,
}

/// Refuses values with which the model does not predict the rows that they were fitted to: somebody
/// has changed them, or another model or other start values found them.
fn explain(fits: &[Fit], machine: Machine) -> Result<(), String> {
    let mut params = Params::default();
    for fit in fits {
        params.get_mut(fit.of.parameter).into_iter().for_each(|own| *own = fit.value);
    }
    for (i, fit) in fits.iter().enumerate() {
        let model = fit.of.predict(&params, machine).map_err(|e| e.to_string())?;
        if (model - fit.measured).abs() > MISSED * fit.measured.abs() {
            let (name, row, measured) = (fit.of.parameter, fit.of.row(), fit.measured);
            return Err(format!(
                "calibration {}: {name} {}: row {row:?} was measured as {measured:.1}, and with \
                 this value the model predicts {model:.1} (fit again: bellpush link --measured)",
                i + 1,
                fit.value
            ));
        }
    }
    Ok(())
}

/// One entry: a parameter that is fitted, to rows that were measured and moved what they should.
fn fit(entry: &Value, results: &Value) -> Result<Fit, String> {
    let name = entry["parameter"].as_str().unwrap_or_default();
    let (parameter, value) = fitted(name, entry["value"].as_f64().unwrap_or(f64::NAN))?;
    let row = entry["row"].as_str().unwrap_or_default();
    let of = CALIBRATION.iter().find(|c| c.parameter == parameter);
    let of = of.ok_or_else(|| format!("{parameter} is fitted to no row"))?;
    if row != of.row() {
        return Err(format!("{parameter} is fitted to row {:?}, not to {row:?}", of.row()));
    }
    let mut all = Vec::new();
    for probe in [Some(of.probe), of.less].into_iter().flatten() {
        let part = probe.to_string();
        let rows = results.as_array().map_or(&[][..], |rows| rows);
        let own = rows.iter().find(|r| r["row"] == part);
        let own = own.ok_or_else(|| format!("{parameter}: no row {part:?} in the results"))?;
        let value = own["measured"].as_f64().filter(|v| v.is_finite() && *v > 0.0);
        let is_number = value.is_some();
        if !(is_number && own["verified"] == true) {
            return Err(format!("{parameter}: row {part:?} was not measured and verified"));
        }
        all.extend(value);
    }
    let measured = all[0] - all.get(1).copied().unwrap_or(0.0);
    Ok(Fit { of, value, measured })
}

impl Measured {
    /// Makes what was measured the topology's own: parameters' values, or limits of its memory.
    ///
    /// # Errors
    /// A result of another machine, as far as the GPUs' links and names tell; a topology of several
    /// memories, since the rows do not say whose the host memory was.
    pub fn put(self, path: &Path, topology: &mut Topology) -> Result<(), String> {
        match self {
            Self::One(one) => {
                one.check(path, topology)?;
                topology.set_measured(one.fits);
            }
            Self::Several(several) => {
                let memory = several.memory(topology);
                let memory = memory.map_err(|what| format!("{}: {what}", path.display()))?;
                let [reads, writes] = several.limits;
                topology.limit_memory(memory, reads, writes);
            }
        }
        Ok(())
    }
}

impl Several {
    /// The memory that all the rows are of.
    fn memory(&self, topology: &Topology) -> Result<NodeId, String> {
        let gpus = topology.of_kind(Kind::Gpu);
        if gpus.len() < self.gpus.len() {
            return Err(format!("of {} GPUs; here are {}", self.gpus.len(), gpus.len()));
        }
        let is_here = |name: &&String| gpus.iter().any(|&g| may_be(&topology.node(g).model, name));
        if let Some(other) = self.gpus.iter().find(|name| !is_here(name)) {
            let names: Vec<_> = gpus.iter().map(|&g| topology.node(g).model.as_str()).collect();
            return Err(format!("measured on {other:?}; the GPUs here are {:?}", names.join(", ")));
        }
        let parts = topology.of_kind(Kind::NumaNode);
        let all = if parts.is_empty() { topology.of_kind(Kind::Socket) } else { parts };
        match all[..] {
            [memory] if !topology.node(memory).unknown => Ok(memory),
            [_] => Err("the topology does not know whose the host memory is".into()),
            _ => Err(format!(
                "the rows do not say whose the host memory was, and {} has {} (give the limits in \
                 its file: memory_read_gb_per_s, memory_write_gb_per_s)",
                topology.name,
                all.len()
            )),
        }
    }
}

impl One {
    /// Refuses the result of another machine, as far as the GPUs' links and names tell.
    fn check(&self, path: &Path, topology: &Topology) -> Result<(), String> {
        let [generation, lanes, mps] = self.link;
        let has = |id: &bellpush::pcie::topology::NodeId| {
            topology.node(*id).link.is_some_and(|l| {
                let own = [l.speed.generation().number(), l.speed.lanes(), l.mps.bytes()];
                own == self.link
            })
        };
        let gpus = topology.of_kind(Kind::Gpu);
        let names: Vec<_> = gpus.iter().map(|&g| topology.node(g).model.as_str()).collect();
        if !names.iter().any(|name| may_be(name, &self.gpu)) {
            let (path, gpu, names) = (path.display(), &self.gpu, names.join(", "));
            return Err(format!("{path}: measured on {gpu:?}; the GPUs here are {names:?}"));
        }
        if gpus.iter().any(has) {
            return Ok(());
        }
        Err(format!(
            "{}: measured on Gen{generation} x{lanes}, MPS {mps}; no GPU here has that link",
            path.display()
        ))
    }
}

/// Whether a topology's GPU may have the driver's name `measured`. A topology may have no name, or
/// that of the chip alone (H200; GH100 [H200]); both have the same number, if they have one.
fn may_be(name: &str, measured: &str) -> bool {
    let is_number = |word: &&str| {
        let is_memory = word.ends_with("GB") || word.starts_with("HBM");
        word.len() > 2 && word.bytes().any(|b| b.is_ascii_digit()) && !is_memory
    };
    let words = |text: &str| -> Vec<String> {
        let split = text.split(|c: char| !c.is_ascii_alphanumeric());
        split.filter(is_number).map(str::to_uppercase).collect()
    };
    let (own, theirs) = (words(name), words(measured));
    own.is_empty() || theirs.is_empty() || own.iter().any(|word| theirs.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellpush::pcie::sim::{Probe, predict_probe};
    use serde_json::json;

    /// A result whose rows are what the model says of these values.
    fn file() -> Value {
        let params = Params { gpu_port_ns: 250.0, dram_ns: 90.0, ..Params::default() };
        let of = |name: &str| *CALIBRATION.iter().find(|c| c.parameter == name).unwrap();
        let (port, dram) = (of("gpu_port_ns"), of("dram_ns"));
        let row = |probe: Probe| {
            let value = predict_probe(&params, Machine::default(), probe).unwrap();
            json!({ "row": probe.to_string(), "measured": value, "verified": true })
        };
        json!({
            "meta": {
                "command": "link", "gpu": "a GPU",
                "link": { "gen": 5, "lanes": 16, "mps_bytes": 256 },
                "calibration": [
                    { "parameter": "gpu_port_ns", "row": port.row(), "value": 250.0 },
                    { "parameter": "dram_ns", "row": dram.row(), "value": 90.0 },
                ],
            },
            "results": [row(port.probe), row(dram.probe), row(dram.less.unwrap())],
        })
    }

    #[test]
    fn names_of_chips_and_of_boards_are_compared_by_number() {
        for (name, measured, is_it) in [
            ("", "NVIDIA H200", true),
            ("a GPU", "NVIDIA H200", true),
            ("GH100 [H200 SXM 141GB]", "NVIDIA H200", true),
            ("AD102 [GeForce RTX 4090]", "NVIDIA GeForce RTX 4090", true),
            ("H100", "NVIDIA H100 80GB HBM3", true),
            ("H100", "NVIDIA H200", false),
            ("NVIDIA H100 80GB HBM3", "NVIDIA H200 141GB HBM3", false),
            ("GA100 [A100 SXM4 80GB]", "NVIDIA H100 80GB HBM3", false),
        ] {
            assert_eq!(may_be(name, measured), is_it, "{name} {measured}");
        }
    }

    #[test]
    fn what_is_no_result_is_refused_in_one_line() {
        let with = |change: &dyn Fn(&mut Value)| {
            let mut json = file();
            change(&mut json);
            parse(&json.to_string()).unwrap_err()
        };
        for (change, reason) in [
            (
                &(|j: &mut Value| j["meta"]["command"] = json!("bench")) as &dyn Fn(&mut Value),
                "link",
            ),
            (&|j| j["meta"]["command"] = json!("link --together"), "meta.gpus are no names"),
            (&|j| j["meta"]["gpu"] = Value::Null, "CPU threads"),
            (&|j| j["meta"]["gpu"] = json!(100), "meta.gpu is no name"),
            (&|j| j["meta"]["link"]["gen"] = json!("x"), "meta.link.gen"),
            (&|j| j["meta"]["calibration"] = json!([]), "no parameter was fitted"),
            (
                &|j| j["meta"]["calibration"][0]["parameter"] = json!("wire_ns\n"),
                "\"wire_ns\\n\" is no",
            ),
            (
                &|j| j["meta"]["calibration"][0]["value"] = json!(-1),
                "calibration 1: gpu_port_ns: -1 is not from",
            ),
            (&|j| j["meta"]["calibration"][0]["value"] = json!(1e6), "1000000 is not from"),
            (&|j| j["meta"]["calibration"][0]["value"] = json!("x"), "NaN is not from"),
            (
                &|j| j["meta"]["calibration"][1]["row"] = json!("none"),
                "dram_ns is fitted to row \"64 B loaded from host memory, less 64 B that",
            ),
            (
                &|j| {
                    let other = j["meta"]["calibration"][0]["row"].clone();
                    j["meta"]["calibration"][1]["row"] = other;
                },
                "dram_ns is fitted to row \"64 B loaded from host memory",
            ),
            (&|j| j["results"][2]["row"] = json!("none"), "dram_ns: no row \"64 B that this GPU"),
            (&|j| j["meta"]["link"]["lanes"] = json!(7), "meta.link: "),
            (
                &|j| j["meta"]["calibration"][0]["value"] = json!(20.0),
                "gpu_port_ns 20: row \"a word of host memory loaded\" was measured as ",
            ),
            (
                &|j| j["results"][0]["measured"] = json!(47.0),
                "was measured as 47.0, and with this value the model predicts ",
            ),
            (
                &|j| j["meta"]["calibration"][1]["value"] = json!(130.0),
                "calibration 2: dram_ns 130",
            ),
            (&|j| j["results"][0]["verified"] = json!(false), "not measured and verified"),
            (&|j| j["results"] = json!(7), "no row \"a word of host memory loaded\""),
            (
                &|j| j["meta"]["calibration"][1] = j["meta"]["calibration"][0].clone(),
                "calibration 2: gpu_port_ns stands twice",
            ),
        ] {
            let error = with(change);
            assert!(error.contains(reason) && !error.contains('\n'), "{reason}: {error}");
        }
        let Measured::One(read) = parse(&file().to_string()).unwrap() else { panic!("of one") };
        assert_eq!(read.fits, [("gpu_port_ns", 250.0), ("dram_ns", 90.0)]);
        assert!(parse("{").unwrap_err().starts_with("no JSON"));
        assert!(parse(&"[".repeat(100_000)).unwrap_err().starts_with("no JSON"));
    }
}
