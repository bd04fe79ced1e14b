//! The measured rows, and their formats.

use bellpush::gpu::Gpu;
use bellpush::pcie::sim::{Access, CALIBRATION, Held, Pattern, Probe, Target};
use serde_json::{Value, json};

use super::test_bed::Measured;

/// All rows; those of the calibration come first.
pub fn of(gpu: &Gpu, with_peer: bool) -> Vec<Probe> {
    let mut rows: Vec<Probe> = Vec::new();
    let mut add = |row: Probe| {
        if !rows.contains(&row) {
            rows.push(row);
        }
    };
    if !gpu.is_host() {
        CALIBRATION.iter().filter(|c| with_peer || !c.peer).for_each(|c| add(c.probe));
    }
    let patterns = if gpu.is_host() { host_patterns() } else { gpu_patterns(gpu.describe().sms) };
    let targets: &[Target] =
        if with_peer { &[Target::Host, Target::Peer] } else { &[Target::Host] };
    add(Probe::Latency(Target::Local));
    add(Probe::FenceSystem(None));
    add(Probe::Burst(Target::Local, Access::Load, 64));
    add(Probe::FenceSystem(Some(Target::Local)));
    add(Probe::FenceGpu(Target::Local));
    for &target in targets {
        add(Probe::Latency(target));
        add(Probe::RoundTrip(target));
        add(Probe::FenceSystem(Some(target)));
        add(Probe::FenceGpu(target));
        for access in [Access::Store, Access::Load] {
            patterns.iter().for_each(|&p| add(Probe::Stream(target, access, p)));
            let bursts: &[u32] = if gpu.is_host() {
                &[64, 4096]
            } else {
                &[64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]
            };
            bursts.iter().for_each(|&bytes| add(Probe::Burst(target, access, bytes)));
        }
    }
    let pages: &[u32] = if gpu.is_host() { &[64, 4096] } else { &[64, 1 << 10, 4 << 10, 64 << 10] };
    for held in [Held::Core, Held::Device, Held::Another] {
        pages.iter().for_each(|&bytes| add(Probe::Page(held, bytes)));
    }
    rows
}

/// Shapes of streams on CPU threads: one of each kind.
pub fn host_patterns() -> Vec<Pattern> {
    let one = Pattern::dense(1, 32);
    let words = Pattern { access_bytes: 4, stride_bytes: 4, ..one };
    let eights = Pattern { access_bytes: 8, stride_bytes: 64, ..one };
    let shifted = Pattern { offset_bytes: 16, ..one };
    vec![one, Pattern::dense(2, 64), words, eights, shifted]
}

/// Shapes of streams on a GPU of so many SMs.
pub fn gpu_patterns(sms: u32) -> Vec<Pattern> {
    let mut found = Vec::new();
    for blocks in [1, 2, 3, 4, 8, 16, sms] {
        found.push(Pattern::dense(blocks, 512));
    }
    for threads in [32, 64, 128, 256, 1024] {
        found.push(Pattern::dense(1, threads));
    }
    for blocks in [1, sms] {
        let dense = Pattern::dense(blocks, 512);
        for bytes in [4, 8] {
            found.push(Pattern { access_bytes: bytes, stride_bytes: bytes, ..dense });
        }
        for stride_bytes in [32, 64, 128] {
            found.push(Pattern { stride_bytes, ..dense });
        }
        for offset_bytes in [16, 32, 64, 96] {
            found.push(Pattern { offset_bytes, ..dense });
        }
    }
    found
}

/// The result row.
pub fn json(probe: Probe, measured: Measured, model: Option<f64>, fitted: bool) -> Value {
    let (kind, target, access, pattern, bytes) = match probe {
        Probe::Stream(target, access, p) => ("stream", Some(target), Some(access), Some(p), None),
        Probe::Burst(target, access, n) => ("burst", Some(target), Some(access), None, Some(n)),
        Probe::Page(_, n) => ("page", Some(Target::Host), Some(Access::Load), None, Some(n)),
        Probe::Latency(target) => ("latency", Some(target), Some(Access::Load), None, None),
        Probe::FenceSystem(target) => ("fence.sys", target, None, None, None),
        Probe::FenceGpu(target) => ("fence.gpu", Some(target), None, None, None),
        Probe::RoundTrip(target) => ("round-trip", Some(target), None, None, None),
    };
    let held = if let Probe::Page(held, _) = probe { Some(held) } else { None };
    json!({
        "row": probe.to_string(),
        "kind": kind,
        "target": target,
        "access": access,
        "blocks": pattern.map(|p| p.blocks),
        "threads": pattern.map(|p| p.threads),
        "access_bytes": pattern.map(|p| p.access_bytes),
        "stride_bytes": pattern.map(|p| p.stride_bytes),
        "offset_bytes": pattern.map(|p| p.offset_bytes),
        "bytes": bytes,
        "held": held,
        "unit": if pattern.is_some() { "GB/s" } else { "ns" },
        "measured": measured.value,
        "spread_percent": measured.spread_percent,
        "model": model,
        "error_percent": model.map(|model| (model / measured.value - 1.0) * 100.0),
        "source": model.map(|_| if fitted { "fitted" } else { "predicted" }),
        "verified": measured.verified,
    })
}

/// A result row as a line.
pub fn text(row: &Value) -> String {
    let number = |key: &str, digits: usize| {
        row[key].as_f64().map_or(String::new(), |v| format!("{v:.digits$}"))
    };
    let digits = if row["unit"] == "ns" { 0 } else { 1 };
    let error = row["error_percent"].as_f64().map_or(String::new(), |v| format!("{v:+.1} %"));
    let bad = if row["verified"] == true { "" } else { " NOT VERIFIED" };
    format!(
        "{:<64} {:>10} {:>6}% {:>10} {error:>8}  {} {}{bad}",
        row["row"].as_str().unwrap_or_default(),
        number("measured", digits),
        number("spread_percent", 1),
        number("model", digits),
        row["unit"].as_str().unwrap_or_default(),
        row["source"].as_str().unwrap_or_default(),
    )
}
