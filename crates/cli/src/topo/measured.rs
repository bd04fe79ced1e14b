//! A result of `bellpush link --json`, for the advice of the machine that it was measured on.

use std::path::Path;

use bellpush::pcie::Origin;
use bellpush::pcie::sim::{CALIBRATION, Origins, Params};
use bellpush::pcie::topology::{Kind, Topology};
use serde_json::Value;

use crate::values;

/// A parameter that a row of this machine was fitted to.
#[derive(Debug, PartialEq)]
struct Fit {
    parameter: &'static str,
    value: f64,
}

/// What a result says of its machine.
#[derive(Debug, PartialEq)]
pub struct Measured {
    fits: Vec<Fit>,
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

fn parse(text: &str) -> Result<Measured, String> {
    let json: Value = serde_json::from_str(text).map_err(|e| format!("no JSON ({e})"))?;
    let meta = &json["meta"];
    if meta["command"] != "link" {
        return Err("not a result of 'bellpush link --json'".into());
    }
    if meta["gpu"].is_null() {
        return Err("kernels on CPU threads: nothing of the machine was measured".into());
    }
    let number = |key: &str| {
        let number = meta["link"][key].as_u64().and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| format!("meta.link.{key} is no number"))
    };
    let link = [number("gen")?, number("lanes")?, number("mps_bytes")?];
    let list = meta["calibration"].as_array().filter(|list| !list.is_empty());
    let list = list.ok_or("no parameter was fitted (--no-fit?)")?;
    let mut fits: Vec<Fit> = Vec::new();
    for (i, entry) in list.iter().enumerate() {
        let fit = fit(entry, &json["results"]);
        let fit = fit.map_err(|what| format!("calibration {}: {what}", i + 1))?;
        if fits.iter().any(|f| f.parameter == fit.parameter) {
            return Err(format!("calibration {}: {} stands twice", i + 1, fit.parameter));
        }
        fits.push(fit);
    }
    Ok(Measured { fits, link })
}

/// One entry: a parameter that is fitted, to rows that were measured and moved what they should.
fn fit(entry: &Value, results: &Value) -> Result<Fit, String> {
    let name = entry["parameter"].as_str().unwrap_or_default();
    let known = CALIBRATION.iter().find(|c| c.parameter == name);
    let parameter =
        known.ok_or_else(|| format!("{name:?} is no parameter that is fitted"))?.parameter;
    let (least, most) = Params::range(parameter);
    let value = entry["value"].as_f64().filter(|v| (least..=most).contains(v));
    let value = value.ok_or_else(|| format!("{parameter}: no value from {least} to {most}"))?;
    let row = entry["row"].as_str().unwrap_or_default();
    for part in row.split(", less ") {
        let rows = results.as_array().map_or(&[][..], |rows| rows);
        let own = rows.iter().find(|r| r["row"] == part);
        let own = own.ok_or_else(|| format!("{parameter}: no row {part:?} in the results"))?;
        let is_number = own["measured"].as_f64().is_some_and(|v| v.is_finite() && v > 0.0);
        if !(is_number && own["verified"] == true) {
            return Err(format!("{parameter}: row {part:?} was not measured and verified"));
        }
    }
    Ok(Fit { parameter, value })
}

impl Measured {
    /// Puts the values into place: these count as measured, all others as before. A parameter that
    /// the command sets stays as it is.
    pub fn apply(&self, params: &mut Params, origins: &mut Origins) {
        for Fit { parameter, value } in &self.fits {
            if origins.of(parameter) == Origin::Read {
                continue;
            }
            params.get_mut(parameter).into_iter().for_each(|own| *own = *value);
            origins.set(parameter, Origin::Measured);
        }
    }

    /// Refuses the result of another machine, as far as the GPUs' links tell.
    pub fn check(&self, path: &Path, topology: &Topology) -> Result<(), String> {
        let [generation, lanes, mps] = self.link;
        let has = |id: &bellpush::pcie::topology::NodeId| {
            topology.node(*id).link.is_some_and(|l| {
                let own = [l.speed.generation().number(), l.speed.lanes(), l.mps.bytes()];
                own == self.link
            })
        };
        if topology.of_kind(Kind::Gpu).iter().any(has) {
            return Ok(());
        }
        Err(format!(
            "{}: measured on Gen{generation} x{lanes}, MPS {mps}; no GPU here has that link",
            path.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn file() -> Value {
        json!({
            "meta": {
                "command": "link", "gpu": "a GPU",
                "link": { "gen": 5, "lanes": 16, "mps_bytes": 256 },
                "calibration": [
                    { "parameter": "gpu_port_ns", "row": "one", "value": 250.0 },
                    { "parameter": "dram_ns", "row": "two, less one", "value": 90.0 },
                ],
            },
            "results": [
                { "row": "one", "measured": 900.0, "verified": true },
                { "row": "two", "measured": 990.0, "verified": true },
            ],
        })
    }

    #[test]
    fn what_was_measured_is_marked_and_nothing_else() {
        let measured = parse(&file().to_string()).unwrap();
        let (mut params, mut origins) = (Params::default(), Origins::default());
        origins.set("dram_ns", Origin::Read);
        measured.apply(&mut params, &mut origins);
        let base = Params::default();
        for &name in Params::NAMES {
            let of = (params.get(name), origins.of(name));
            let want = match name {
                "gpu_port_ns" => (Some(250.0), Origin::Measured),
                "dram_ns" => (base.get(name), Origin::Read),
                _ => (base.get(name), Params::origin(name)),
            };
            assert_eq!(of, want, "{name}");
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
            (&|j| j["meta"]["gpu"] = Value::Null, "CPU threads"),
            (&|j| j["meta"]["link"]["gen"] = json!("x"), "meta.link.gen"),
            (&|j| j["meta"]["calibration"] = json!([]), "no parameter was fitted"),
            (
                &|j| j["meta"]["calibration"][0]["parameter"] = json!("wire_ns\n"),
                "\"wire_ns\\n\" is no",
            ),
            (
                &|j| j["meta"]["calibration"][0]["value"] = json!(-1),
                "calibration 1: gpu_port_ns: no value",
            ),
            (&|j| j["meta"]["calibration"][0]["value"] = json!(1e300), "no value from 0"),
            (&|j| j["meta"]["calibration"][1]["row"] = json!("none"), "no row \"none\""),
            (&|j| j["results"][0]["verified"] = json!(false), "not measured and verified"),
            (&|j| j["results"] = json!(7), "no row \"one\""),
            (&|j| j["meta"]["calibration"][1]["parameter"] = json!("gpu_port_ns"), "stands twice"),
        ] {
            let error = with(change);
            assert!(error.contains(reason) && !error.contains('\n'), "{reason}: {error}");
        }
        assert!(parse("{").unwrap_err().starts_with("no JSON"));
        assert!(parse(&"[".repeat(100_000)).unwrap_err().starts_with("no JSON"));
    }
}
