//! Saved results. They allow a comparison with a changed model without the machine.

use std::path::Path;

use bellpush::pcie::sim::{Access, Held, Pattern, Probe, Target};
use bellpush::pcie::topology::RawLink;
use bellpush_cli::link_limits as limits;
use serde::Deserialize;
use serde_json::Value;

use super::test_bed::Measured;
use crate::cli::CliError;
use crate::values;

/// A result of `bellpush link --json`.
#[derive(Debug)]
pub struct Saved {
    /// The circumstances, as saved.
    pub meta: Value,
    /// The link that was measured.
    pub link: RawLink,
    /// The measurements, in their order.
    pub rows: Vec<(Probe, Measured)>,
}

/// A result of `bellpush link --together --json`.
#[derive(Debug)]
pub struct Several {
    /// The circumstances, as saved.
    pub meta: Value,
    /// The rows, as saved, each of which is one.
    pub rows: Vec<Value>,
}

/// A result of one GPU or of several at once.
#[derive(Debug)]
pub enum Either {
    /// Of `bellpush link`.
    One(Saved),
    /// Of `bellpush link --together`.
    Several(Several),
}

#[derive(Deserialize)]
struct Row {
    row: String,
    kind: String,
    target: Option<Target>,
    access: Option<Access>,
    blocks: Option<u32>,
    threads: Option<u32>,
    access_bytes: Option<u32>,
    stride_bytes: Option<u32>,
    offset_bytes: Option<u32>,
    bytes: Option<u32>,
    held: Option<Held>,
    measured: f64,
    spread_percent: f64,
    verified: bool,
}

impl Row {
    /// `None` where the fields do not form a row of `bellpush link`.
    fn probe(&self) -> Option<Probe> {
        let in_range = |n: Option<u32>, most: u32| n.filter(|n| (1..=most).contains(n));
        let probe = match (self.kind.as_str(), self.target) {
            ("stream", Some(target)) => {
                let pattern = Pattern {
                    blocks: in_range(self.blocks, 1024)?,
                    threads: in_range(self.threads, 1024)?,
                    access_bytes: self.access_bytes.filter(|n| [4, 8, 16].contains(n))?,
                    stride_bytes: in_range(self.stride_bytes, 4096)?,
                    offset_bytes: self.offset_bytes.filter(|n| *n < 4096)?,
                };
                Probe::Stream(target, self.access?, pattern)
            }
            ("burst", Some(target)) => {
                Probe::Burst(target, self.access?, in_range(self.bytes, 16 << 20)?)
            }
            ("page", Some(Target::Host)) => {
                Probe::Page(self.held?, in_range(self.bytes, 16 << 20)?)
            }
            ("latency", Some(target)) => Probe::Latency(target),
            ("fence.sys", target) => Probe::FenceSystem(target),
            ("fence.gpu", Some(target)) => Probe::FenceGpu(target),
            ("round-trip", Some(target)) => Probe::RoundTrip(target),
            _ => return None,
        };
        (probe.to_string() == self.row).then_some(probe)
    }
}

/// Reads and checks a file.
///
/// # Errors
/// One line that names the file, the row and the fault.
pub fn read(path: &Path) -> Result<Either, CliError> {
    let wrong =
        |what| CliError::new(what, "give a file that 'bellpush link --json' wrote on a GPU");
    let text = values::read_text(path).map_err(wrong)?;
    parse(&text).map_err(|what| wrong(format!("{}: {what}", path.display())))
}

fn parse(text: &str) -> Result<Either, String> {
    let json: Value = serde_json::from_str(text).map_err(|e| format!("no JSON ({e})"))?;
    let meta = json["meta"].clone();
    let is_several = meta["command"] == "link --together";
    if !(is_several || meta["command"] == "link") {
        return Err("not a result of 'bellpush link'".into());
    }
    if meta["gpu"].is_null() {
        return Err("kernels on CPU threads: there is nothing to compare with a model".into());
    }
    if is_several {
        let rows = json["results"].as_array().cloned().unwrap_or_default();
        limits::sets(&rows)?;
        return Ok(Either::Several(Several { meta, rows }));
    }
    let number = |key: &str| {
        let n = meta["link"][key].as_u64().and_then(|n| u32::try_from(n).ok());
        n.ok_or_else(|| format!("meta.link.{key} is no number"))
    };
    let link =
        RawLink { mps: number("mps_bytes")?, ..RawLink::new(number("gen")?, number("lanes")?) };
    let results = json["results"].as_array().filter(|rows| !rows.is_empty());
    let mut rows = Vec::new();
    for (i, value) in results.ok_or("no results")?.iter().enumerate() {
        let row = Row::deserialize(value).map_err(|e| format!("row {}: {e}", i + 1))?;
        let probe =
            row.probe().ok_or_else(|| format!("row {}: {:?} is unknown", i + 1, row.row))?;
        if !(row.measured.is_finite() && row.measured > 0.0) {
            return Err(format!("row {}: measured {}", i + 1, row.measured));
        }
        let Row { measured: value, spread_percent, verified, .. } = row;
        rows.push((probe, Measured { value, spread_percent, verified }));
    }
    Ok(Either::One(Saved { meta, link, rows }))
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;
    use serde_json::json;

    fn file(rows: Vec<Value>) -> String {
        let link = json!({ "gen": 5, "lanes": 16, "mps_bytes": 256, "source": "given" });
        json!({ "meta": { "command": "link", "gpu": "a GPU", "link": link }, "results": rows })
            .to_string()
    }

    #[test]
    fn every_row_is_found_again() {
        let measured = Measured { value: 2.5, spread_percent: 1.0, verified: true };
        let mut probes: Vec<Probe> = rows::gpu_patterns(132)
            .into_iter()
            .map(|p| Probe::Stream(Target::Peer, Access::Load, p))
            .collect();
        probes.extend([
            Probe::Burst(Target::Host, Access::Store, 64),
            Probe::Page(Held::Core, 4096),
            Probe::Page(Held::Another, 64),
            Probe::Latency(Target::Local),
            Probe::FenceSystem(None),
            Probe::FenceSystem(Some(Target::Peer)),
            Probe::FenceGpu(Target::Host),
            Probe::RoundTrip(Target::Peer),
            Probe::RoundTrip(Target::Host),
        ]);
        let json = probes.iter().map(|&p| rows::json(p, measured, Some(2.0), false)).collect();
        let Either::One(saved) = parse(&file(json)).unwrap() else { panic!("of one GPU") };
        assert_eq!(saved.rows.iter().map(|r| r.0).collect::<Vec<_>>(), probes);
        assert_eq!((saved.link.generation, saved.link.lanes, saved.link.mps), (5, 16, 256));
    }

    #[test]
    fn a_file_without_end_is_not_read_to_it() {
        let refused = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(refused.contains("/dev/zero: not a regular file"), "{refused}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("long.json");
        std::fs::File::create(&file).unwrap().set_len(65 << 20).unwrap();
        let refused = read(&file).unwrap_err().to_string();
        assert!(refused.contains("more than 67108864 bytes"), "{refused}");
    }

    #[test]
    fn what_is_no_such_file_is_refused_with_its_row() {
        let measured = Measured { value: 2.5, spread_percent: 1.0, verified: true };
        let good = rows::json(Probe::Latency(Target::Host), measured, None, false);
        let with = |key: &str, value: Value| {
            let mut row = good.clone();
            row[key] = value;
            parse(&file(vec![good.clone(), row])).unwrap_err()
        };
        assert!(with("kind", json!("teleport")).starts_with("row 2: "));
        assert!(with("target", json!("moon")).contains("moon"));
        assert!(with("row", json!("another row")).contains("another row"));
        assert!(with("measured", json!(-1.0)).contains("measured -1"));
        assert!(parse("{").is_err());
        assert!(parse("{\"meta\": {\"command\": \"bench\"}}").unwrap_err().contains("link"));
        assert!(parse(&file(Vec::new())).unwrap_err().contains("no results"));
    }
}
