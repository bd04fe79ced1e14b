//! The page of `bellpush sim --report`: plots of sweeps of the model.

use std::collections::BTreeMap;
use std::error::Error;

use bellpush::pcie::sim::{
    Access, Curve, H200_CURVES, Machine, Params, PathModel, Pattern, Probe, SweepRow, Target,
    TestBedSpec, crossings, predict, predict_probe, window_needed_bytes,
};
use bellpush::pcie::text::one_line;
use bellpush_cli::report::chart::{Chart, Line, Quantity};
use bellpush_cli::report::machine::invocation;
use bellpush_cli::report::page::{Section, Table, page};
use bellpush_cli::report::size;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Window sizes, KiB.
const WINDOWS_KIB: [u32; 8] = [16, 32, 64, 128, 256, 512, 1024, 4096];
/// Numbers of outstanding read requests of a NIC.
const TAGS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// One-way latencies of the wire, ns: 600 is within a rack, 5,000 over a kilometre.
const WIRES_NS: [u32; 7] = [300, 600, 1_200, 2_500, 5_000, 20_000, 100_000];
/// Message size of the window and tag sweeps, bytes.
const MESSAGE_BYTES: u32 = 256 << 10;

/// Sweeps of one topology.
pub struct Swept {
    name: String,
    rows: Vec<SweepRow>,
    /// push/inband: (window in KiB, GB/s), and window ÷ round trip.
    window: [Vec<(f64, f64)>; 2],
    /// pull: (outstanding reads, GB/s); empty where the topology has no pull.
    tags: Vec<(f64, f64)>,
    /// (Wire latency in ns, needed window in bytes).
    distance: Vec<(f64, f64)>,
}

impl Swept {
    /// Sweeps a topology. `rows` are its predictions by size and path.
    pub fn new(spec: TestBedSpec<'_>, rows: Vec<SweepRow>, in_flight: u32) -> Result<Self> {
        let with = |params: &Params, path, bytes, in_flight| {
            predict(TestBedSpec { params, ..spec }, path, bytes, in_flight).ok().flatten()
        };
        let mut window = [Vec::new(), Vec::new()];
        for kib in WINDOWS_KIB {
            let params = Params { window_kib: f64::from(kib), ..spec.params.clone() };
            let bytes = f64::from(kib) * 1024.0;
            if let Some(p) = with(&params, PathModel::PushInband, MESSAGE_BYTES, in_flight) {
                window[0].push((bytes, p.gb_per_s));
            }
            // A slot is in use from its first store until its credit returns.
            if let Some(p) = with(&params, PathModel::PushInband, 4096, 1) {
                window[1].push((bytes, bytes / p.completed_ns));
            }
        }
        let mut tags = Vec::new();
        for n in TAGS {
            let params = Params { nic_tags: f64::from(n), ..spec.params.clone() };
            if let Some(p) = with(&params, PathModel::Pull, MESSAGE_BYTES, in_flight) {
                tags.push((f64::from(n), p.gb_per_s));
            }
        }
        let mut distance = Vec::new();
        for wire_ns in WIRES_NS {
            let params = Params { wire_ns: f64::from(wire_ns), ..spec.params.clone() };
            let need = window_needed_bytes(TestBedSpec { params: &params, ..spec })?;
            distance.extend(need.map(|need| (f64::from(wire_ns), need as f64)));
        }
        Ok(Self { name: one_line(&spec.topology.name), rows, window, tags, distance })
    }

    fn section(&self) -> Result<Section> {
        let line = |path: PathModel, value: fn(&SweepRow) -> Option<f64>| Line {
            label: path.name().into(),
            points: self
                .rows
                .iter()
                .filter(|r| r.path == path)
                .filter_map(|r| Some((f64::from(r.bytes), value(r)?)))
                .collect(),
            bars: Vec::new(),
        };
        let chart = |title: String, y, value: fn(&SweepRow) -> Option<f64>| Chart {
            title,
            x_name: "message size",
            x: Quantity::Bytes,
            y,
            lines: PathModel::ALL.into_iter().map(|path| line(path, value)).collect(),
            remarks: Vec::new(),
        };
        let latency = chart(
            format!("{}: first store to the completion that the sender sees", self.name),
            Quantity::TimeNs,
            |r| r.prediction.map(|p| p.completed_ns),
        );
        let in_flight = self.rows.iter().find_map(|r| r.prediction.map(|p| p.in_flight));
        let rate = chart(
            format!("{}: GB/s of payload, {} in flight", self.name, in_flight.unwrap_or(1)),
            Quantity::GbPerS,
            |r| r.prediction.map(|p| p.gb_per_s),
        );
        let class = self.rows.first().map_or(String::new(), |r| format!(" ({})", r.distance));
        let mut text: Vec<String> = crossings(&self.rows)
            .iter()
            .map(|c| {
                format!(
                    "Latencies cross between {} and {}: {} is faster below, {} above.",
                    size::print(u64::from(c.below_bytes)),
                    size::print(u64::from(c.above_bytes)),
                    c.small.name(),
                    c.large.name()
                )
            })
            .collect();
        if text.is_empty() {
            text.push("No two paths' latencies cross between these sizes.".into());
        }
        let missing: BTreeMap<&str, &str> = self
            .rows
            .iter()
            .filter(|r| r.path.max_bytes().is_none())
            .filter_map(|r| Some((r.path.name(), r.why_not.as_deref()?)))
            .collect();
        text.extend(missing.iter().map(|(path, why)| format!("There is no {path} here: {why}.")));
        Ok(Section {
            heading: format!("{}{class}", self.name),
            text,
            figures: vec![latency.figure()?, rate.figure()?],
            table: None,
        })
    }
}

fn topologies(swept: &[Swept], of: impl Fn(&Swept) -> &Vec<(f64, f64)>) -> Vec<Line> {
    swept
        .iter()
        .map(|s| Line { label: s.name.clone(), points: of(s).clone(), bars: Vec::new() })
        .collect()
}

fn window_section(swept: &[Swept]) -> Result<Section> {
    let mut lines = topologies(swept, |s| &s.window[0]);
    if let Some(first) = swept.first() {
        let label = format!("window ÷ round trip, {}", first.name);
        // A bound above the wire's bandwidth is meaningless.
        let most = lines.iter().flat_map(|l| l.points.iter().map(|p| p.1)).fold(0.0, f64::max);
        let points = first.window[1].iter().copied().filter(|p| p.1 < 1.1 * most).collect();
        lines.push(Line { label, points, bars: Vec::new() });
    }
    let chart = Chart {
        title: "push/inband: GB/s over the size of the window".into(),
        x_name: "window",
        x: Quantity::Bytes,
        y: Quantity::GbPerS,
        lines,
        remarks: vec!["MEMIC of a ConnectX is at most 128 to 256 KiB.".into()],
    };
    let distance = Chart {
        title: "Window that keeps the wire busy, over the wire's length".into(),
        x_name: "one-way time of the wire",
        x: Quantity::TimeNs,
        y: Quantity::Bytes,
        lines: topologies(swept, |s| &s.distance),
        remarks: vec!["1 µs is 200 m of fibre.".into()],
    };
    let text = "A slot of the window is away from its first store until the GPU sees its credit: \
                throughput is at most the window divided by that round trip. The window that is \
                needed is that time times the wire's bandwidth.";
    Ok(Section {
        heading: "The window".into(),
        text: vec![text.into()],
        figures: vec![chart.figure()?, distance.figure()?],
        table: None,
    })
}

fn tags_section(swept: &[Swept]) -> Result<Section> {
    let chart = Chart {
        title: "pull: GB/s over the read requests that the NIC may have outstanding".into(),
        x_name: "outstanding read requests",
        x: Quantity::Count,
        y: Quantity::GbPerS,
        lines: topologies(swept, |s| &s.tags),
        remarks: Vec::new(),
    };
    let text = "Reads are limited by what is outstanding divided by the round trip to the GPU; a \
                root complex that keeps few peer reads open does not get better with more tags.";
    Ok(Section {
        heading: "Outstanding reads".into(),
        text: vec![text.into()],
        figures: vec![chart.figure()?],
        table: None,
    })
}

/// One line per memory and kind of access.
fn access_lines(
    params: &Params,
    at: &[u32],
    pattern: impl Fn(u32) -> Pattern,
) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (name, target) in [("host", Target::Host), ("peer", Target::Peer)] {
        for (what, access) in [("stores to", Access::Store), ("loads from", Access::Load)] {
            let mut points = Vec::new();
            for &x in at {
                let probe = Probe::Stream(target, access, pattern(x));
                points.push((f64::from(x), predict_probe(params, Machine::default(), probe)?));
            }
            lines.push(Line { label: format!("{what} {name}"), points, bars: Vec::new() });
        }
    }
    Ok(lines)
}

fn access_section(params: &Params) -> Result<Section> {
    let dense = Pattern::dense(132, 512);
    let measured = |label: &str, curve: Curve| Line {
        label: format!("{label}, measured"),
        points: H200_CURVES
            .iter()
            .filter(|r| r.curve == curve)
            .map(|r| (f64::from(r.blocks), r.gb_per_s))
            .collect(),
        bars: Vec::new(),
    };
    let mut blocks =
        access_lines(params, &[1, 2, 4, 8, 16, 32, 64, 132], |n| Pattern { blocks: n, ..dense })?;
    blocks.extend([
        measured("stores to host", Curve::HostStore),
        measured("loads from host", Curve::HostLoad),
        measured("stores to peer", Curve::PeerStore),
        measured("loads from peer", Curve::PeerLoad),
    ]);
    let charts = [
        ("over blocks of 512 threads, 16 B each", "blocks", Quantity::Count, blocks),
        (
            "of one block, over its threads, 16 B each",
            "threads",
            Quantity::Count,
            access_lines(params, &[32, 64, 128, 256, 512, 1024], |n| Pattern::dense(1, n))?,
        ),
        (
            "of one block of 512 threads, over the size of an access",
            "bytes a thread",
            Quantity::Bytes,
            access_lines(params, &[4, 8, 16], |n| Pattern {
                blocks: 1,
                access_bytes: n,
                stride_bytes: n,
                ..dense
            })?,
        ),
        (
            "of 132 blocks, 16 B each, over the stride: bytes that were asked for",
            "from access to access",
            Quantity::Bytes,
            access_lines(params, &[16, 32, 64, 128, 256], |n| Pattern {
                stride_bytes: n,
                ..dense
            })?,
        ),
    ];
    let mut figures = Vec::new();
    for (title, x_name, x, lines) in charts {
        let title = format!("A GPU's GB/s {title}");
        let remarks = Vec::new();
        figures.push(Chart { title, x_name, x, y: Quantity::GbPerS, lines, remarks }.figure()?);
    }
    let text = "What a GPU's SMs store to and load from host memory (PCIe Gen5 x16) and a peer's \
                (NVLink). bellpush link measures the same on the machine at hand.";
    Ok(Section {
        heading: "The GPU's accesses".into(),
        text: vec![text.into()],
        figures,
        table: None,
    })
}

fn parameters(params: &Params) -> Section {
    let (mut params, start) = (params.clone(), Params::default());
    let mut rows = Vec::new();
    for &name in Params::NAMES {
        let (value, default) =
            (params.get_mut(name).map(|v| *v), start.clone().get_mut(name).map(|v| *v));
        let text = |v: Option<f64>| v.map_or(String::new(), |v| v.to_string());
        rows.push(vec![name.to_owned(), text(value), text(default)]);
    }
    let head = ["parameter", "here", "default"].map(str::to_owned).into();
    Section {
        heading: "Parameters".into(),
        text: vec!["Times in ns, bandwidths in GB/s.".into()],
        table: Some(Table { head, rows }),
        ..Section::default()
    }
}

/// Renders the page.
///
/// # Errors
/// Errors of the model and of the plotting library.
pub fn render(swept: &[Swept], params: &Params, seed: u64) -> Result<String> {
    let notes = [
        "All numbers are the model's, unless a line is called measured.".to_owned(),
        "NIC, wire and root complexes have assumed parameters: bellpush sim --sensitivity says \
         what hangs on them."
            .to_owned(),
        format!("Seed {seed}: the same seed gives the same page."),
    ];
    let mut sections = Vec::new();
    for one in swept {
        sections.push(one.section()?);
    }
    sections.push(window_section(swept)?);
    sections.push(tags_section(swept)?);
    sections.push(access_section(params)?);
    sections.push(parameters(params));
    Ok(page("bellpush: what the PCIe model predicts", &notes, &sections, &invocation()))
}
