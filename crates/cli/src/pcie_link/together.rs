//! `bellpush link --together`: streams of several GPUs at once, to the host and to each other.
//!
//! Every flow runs for the same time, and what it moved in it is its rate: so a flow that shares a
//! link with another is slower than alone, and the ratio says how much of the way is shared.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bellpush::abi::bench::{LinkLap, LinkMoveArgs, LinkResult};
use bellpush::abi::wire::Code;
use bellpush::gpu::{DeviceMem, Dims, Executor, Gpu, Kernel, Mapped, Module, Stream};
use bellpush::mem::{Dma, View};
use bellpush::pcie::sim::{Access, Flow as ModelFlow, Params, simulate_flows};
use bellpush::pcie::topology::{Kind, NodeId, Topology};
use bellpush_cli::link_limits::{self as limits, LOOSE, SHARED};
use serde_json::{Value, json};

use super::test_bed::bug;
use crate::cli::CliError;
use crate::launch::launch;
use crate::plan;

/// Most GPUs of a run.
const MOST_GPUS: usize = 16;
/// Value of every byte that is loaded.
const LOADED: u8 = 1;
/// Measurements of a set; the median counts.
pub const REPEATS: usize = 3;

/// Sizes of a run, which are smaller for kernels on CPU threads.
struct Size {
    blocks: u32,
    threads: u32,
    /// Bytes of a flow's memory, moved again and again.
    bytes: u64,
    time: Duration,
}

impl Size {
    /// A quarter of the SMs saturates any link, and four flows fit.
    fn of(gpu: &Gpu) -> Self {
        if gpu.is_host() {
            return Self { blocks: 1, threads: 32, bytes: 4 << 10, time: Duration::from_millis(2) };
        }
        let blocks = (gpu.describe().sms / 4).max(1);
        Self { blocks, threads: 512, bytes: 2 << 20, time: Duration::from_millis(40) }
    }

    /// Accesses of 16 B: whole rounds of the grid, so that every block has as many.
    fn accesses(&self) -> u64 {
        let grid = u64::from(self.blocks) * u64::from(self.threads);
        (self.bytes / 16 / grid).max(1) * grid
    }
}

/// A stream of one GPU: to host memory, or to another GPU's of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Flow {
    gpu: usize,
    to: Option<usize>,
    access: Access,
}

const fn flow(gpu: usize, access: Access, to: Option<usize>) -> Flow {
    Flow { gpu, to, access }
}

/// The flows that run at once, set by set; of every flow that is in one, first itself alone.
fn sets(gpus: usize) -> Vec<Vec<Flow>> {
    use Access::{Load, Store};
    let to_host = |access| (0..gpus).map(move |g| flow(g, access, None));
    let mut all: Vec<Vec<Flow>> = Vec::new();
    all.extend((0..gpus).map(|g| vec![flow(g, Store, None), flow(g, Load, None)]));
    for access in [Store, Load] {
        let pairs = (0..gpus).flat_map(|a| (a + 1..gpus).map(move |b| [a, b]));
        all.extend(pairs.map(|pair| pair.map(|g| flow(g, access, None)).to_vec()));
        all.push(to_host(access).collect());
    }
    all.push(to_host(Store).chain(to_host(Load)).collect());
    let pairs: Vec<[usize; 2]> = (0..gpus / 2).map(|p| [2 * p, 2 * p + 1]).collect();
    for access in [Store, Load] {
        let way = |[a, b]: [usize; 2]| flow(a, access, Some(b));
        let both = |[a, b]: [usize; 2]| [way([a, b]), way([b, a])];
        all.extend(pairs.iter().map(|&p| both(p).to_vec()));
        all.push(pairs.iter().map(|&p| way(p)).collect());
        all.push(pairs.iter().flat_map(|&p| both(p)).collect());
    }
    let mut each: Vec<Vec<Flow>> = Vec::new();
    for flow in all.iter().flatten() {
        if !each.contains(&vec![*flow]) {
            each.push(vec![*flow]);
        }
    }
    for set in all {
        if set.len() > 1 && !each.contains(&set) {
            each.push(set);
        }
    }
    each
}

/// The GPUs that a list names.
///
/// # Errors
/// A word that names none, one twice, or too many.
pub fn open(list: &str) -> Result<Vec<Arc<Gpu>>, CliError> {
    let see = "give numbers of CUDA devices, such as 0,1";
    let words: Vec<&str> = list.split(',').map(str::trim).collect();
    if words.len() > MOST_GPUS {
        let what = format!("--together: {} GPUs, at most {MOST_GPUS}", words.len());
        return Err(CliError::new(what, see));
    }
    let wrong = |what: String| Err(CliError::new(format!("--together {list}: {what}"), see));
    let mut named: Vec<plan::Gpu> = Vec::new();
    for word in &words {
        let Ok(gpu) = plan::gpu(word) else {
            return wrong(format!("{word:?} is no GPU's number"));
        };
        if gpu == plan::Gpu::Auto {
            return wrong(format!("{word:?} is no GPU's number"));
        }
        let is_host = |gpu: &plan::Gpu| *gpu == plan::Gpu::Host;
        if named.first().is_some_and(|first| is_host(first) != is_host(&gpu)) {
            return wrong("GPUs and CPU threads".into());
        }
        if !is_host(&gpu) && named.contains(&gpu) {
            return wrong(format!("{word} stands twice"));
        }
        named.push(gpu);
    }
    let open = |gpu| match gpu {
        plan::Gpu::Cuda(n) => Gpu::open(Executor::Cuda(n as usize)),
        _ => Gpu::open(Executor::Host(Default::default())),
    };
    Ok(named.into_iter().map(open).collect::<Result<_, _>>()?)
}

enum Memory {
    Host(Mapped, View),
    Gpu(Arc<DeviceMem>),
}

impl Memory {
    fn addr(&self) -> u64 {
        match self {
            Self::Host(mapped, _) => mapped.addr(),
            Self::Gpu(memory) => memory.addr(),
        }
    }

    fn dma(&self) -> &dyn Dma {
        match self {
            Self::Host(_, view) => view,
            Self::Gpu(memory) => &**memory,
        }
    }
}

/// A flow and what it needs.
struct Lane {
    flow: Flow,
    stream: Stream,
    kernel: Kernel,
    memory: Memory,
    results: Arc<DeviceMem>,
    size: Size,
    name: String,
}

impl Lane {
    fn new(gpus: &[Arc<Gpu>], flow: Flow) -> Result<Self, CliError> {
        let gpu = &gpus[flow.gpu];
        let size = Size::of(gpu);
        let bytes = size.accesses() as usize * 16;
        let memory = match flow.to {
            Some(other) => {
                gpu.enable_peer(&gpus[other])?;
                Memory::Gpu(gpus[other].alloc(bytes)?)
            }
            None => {
                let mapped = gpu.alloc_mapped(bytes, None)?;
                let view = View::new(mapped.host(), 0, bytes).map_err(bug)?;
                Memory::Host(mapped, view)
            }
        };
        memory.dma().write(0, &vec![LOADED; bytes]).map_err(bug)?;
        let entry = if flow.access == Access::Store { "bp_link_store" } else { "bp_link_load" };
        Ok(Self {
            kernel: gpu.load(&Module::builtin())?.kernel(entry)?,
            stream: gpu.stream()?,
            results: gpu.alloc(size.blocks as usize * size_of::<LinkResult>())?,
            name: name(gpus, flow),
            flow,
            memory,
            size,
        })
    }

    fn start(&self, value: u8) -> Result<(), CliError> {
        let bytes = self.size.blocks as usize * size_of::<LinkResult>();
        self.results.copy_in(0, &vec![0; bytes])?;
        let args = LinkMoveArgs {
            target: self.memory.addr(),
            accesses: self.size.accesses(),
            results: self.results.addr(),
            limit_ns: self.size.time.as_nanos() as u64,
            access_bytes: 16,
            stride_bytes: 16,
            laps: u32::MAX,
            each_lap: LinkLap::RunOn as u32,
            value: u32::from_ne_bytes([value; 4]),
            lap_bytes: 0,
        };
        let dims = Dims::new(self.size.blocks, self.size.threads);
        Ok(launch(&self.stream, &self.kernel, dims, &args)?)
    }

    /// Its rate, GB/s, and whether all of it moved what it should.
    fn end(&self, value: u8, limit: Duration) -> Result<(f64, bool), CliError> {
        self.stream.synchronize(limit + 20 * self.size.time)?;
        let mut raw = vec![0; self.size.blocks as usize * size_of::<LinkResult>()];
        self.results.copy_out(0, &mut raw)?;
        let results: Vec<LinkResult> =
            raw.chunks_exact(size_of::<LinkResult>()).map(bytemuck::pod_read_unaligned).collect();
        // A flow ends by its time alone.
        let mut right = results.iter().all(|r| Code::check(r.status) == Err(Code::Timeout));
        let share = self.size.accesses() / u64::from(self.size.blocks);
        let laps: u64 = results.iter().map(|r| u64::from(r.laps)).sum();
        if self.flow.access == Access::Load {
            let word = u64::from(u32::from_ne_bytes([LOADED; 4]));
            right &=
                results.iter().all(|r| r.sum == (4 * share * u64::from(r.laps)).wrapping_mul(word));
        } else {
            let mut found = vec![0; self.size.accesses() as usize * 16];
            self.memory.dma().read(0, &mut found).map_err(bug)?;
            right &= found.iter().all(|&byte| byte == value);
        }
        let start = results.iter().map(|r| r.start_ns).min().unwrap_or(0);
        let end = results.iter().map(|r| r.end_ns).max().unwrap_or(0);
        let ns = end.saturating_sub(start).max(1);
        Ok(((laps * share * 16) as f64 / ns as f64, right))
    }
}

fn gpu_name(gpus: &[Arc<Gpu>], i: usize) -> String {
    format!("GPU {}", gpus[i].ordinal().unwrap_or(i))
}

fn name(gpus: &[Arc<Gpu>], flow: Flow) -> String {
    let to = flow.to.map_or_else(|| "host memory".to_owned(), |i| gpu_name(gpus, i));
    let verb = if flow.access == Access::Store { "stores to" } else { "loads from" };
    format!("{} {verb} {to}", gpu_name(gpus, flow.gpu))
}

/// The GPUs' places in a topology.
pub struct Places<'a> {
    topology: &'a Topology,
    gpus: Vec<NodeId>,
}

impl<'a> Places<'a> {
    /// By the GPUs' PCI addresses, or, of a topology that was `given` with other names, in its
    /// order.
    pub fn new(topology: &'a Topology, gpus: &[Arc<Gpu>], given: bool) -> Option<Self> {
        let by_address = gpus.iter().map(|g| topology.find(g.describe().pci.as_deref()?));
        let in_order = || topology.of_kind(Kind::Gpu).into_iter().take(gpus.len()).collect();
        let found: Option<Vec<NodeId>> = by_address.collect();
        let found = found.or_else(|| given.then(in_order))?;
        (found.len() == gpus.len()).then_some(Self { topology, gpus: found })
    }

    /// The topology's name.
    pub fn name(&self) -> &str {
        &self.topology.name
    }

    /// The first GPUs of a topology, in its order.
    fn first(topology: &'a Topology, count: usize) -> Option<Self> {
        let gpus = topology.of_kind(Kind::Gpu);
        (gpus.len() >= count).then(|| Self { topology, gpus: gpus[..count].into() })
    }

    /// Rates of a set in the model, GB/s. Between GPUs there may be NVLink, which no topology has:
    /// these are not predicted.
    fn predict(&self, params: &Params, set: &[Flow]) -> Option<Vec<f64>> {
        let flows: Option<Vec<ModelFlow>> = set
            .iter()
            .map(|f| {
                let gpu = self.gpus[f.gpu];
                let mut up = Some(gpu);
                while let Some(node) = up {
                    if matches!(self.topology.node(node).kind, Kind::Socket | Kind::NumaNode) {
                        break;
                    }
                    up = self.topology.node(node).parent;
                }
                let memory = up.filter(|_| f.to.is_none())?;
                Some(match f.access {
                    Access::Store => ModelFlow::write(gpu, memory),
                    Access::Load => ModelFlow::read(memory, gpu),
                })
            })
            .collect();
        simulate_flows(self.topology, params, &flows?).ok()
    }
}

/// Measures all sets. Rows have the flow, the set in which it ran, its rate and that alone.
///
/// # Errors
/// A GPU fails, or cannot reach another's memory.
pub fn measure(
    gpus: &[Arc<Gpu>],
    places: Option<&Places<'_>>,
    params: &Params,
    limit: Duration,
) -> Result<Vec<Value>, CliError> {
    let mut lanes: Vec<Lane> = Vec::new();
    let mut alone: Vec<f64> = Vec::new();
    let mut rows = Vec::new();
    for set in sets(gpus.len()) {
        for &flow in &set {
            if !lanes.iter().any(|lane| lane.flow == flow) {
                lanes.push(Lane::new(gpus, flow)?);
            }
        }
        let at = |flow: &Flow| lanes.iter().position(|l| l.flow == *flow).expect("opened above");
        let own: Vec<usize> = set.iter().map(at).collect();
        let mut rates = vec![Vec::new(); own.len()];
        let mut right = vec![true; own.len()];
        // The first run finds clocks and TLBs as another set left them: it does not count.
        for run in 0..=REPEATS {
            let value = LOADED + 1 + (rows.len() * (REPEATS + 1) + run) as u8 % 200;
            own.iter().try_for_each(|&lane| lanes[lane].start(value))?;
            for (i, &lane) in own.iter().enumerate() {
                let (rate, is_right) = lanes[lane].end(value, limit)?;
                right[i] &= is_right;
                if run > 0 {
                    rates[i].push(rate);
                }
            }
        }
        let model = places.and_then(|p| p.predict(params, &set));
        let name = set_name(&own.iter().map(|&l| lanes[l].name.as_str()).collect::<Vec<_>>());
        for (i, &lane) in own.iter().enumerate() {
            rates[i].sort_by(f64::total_cmp);
            let gb_per_s = rates[i][REPEATS / 2];
            if lane == alone.len() {
                alone.push(gb_per_s);
            }
            let (flow, spread) = (lanes[lane].flow, rates[i][REPEATS - 1] - rates[i][0]);
            let model = model.as_ref().map(|m| m[i]);
            rows.push(json!({
                "together": name, "flows": own.len(), "row": lanes[lane].name,
                "gpu": gpu_name(gpus, flow.gpu), "peer": flow.to.map(|to| gpu_name(gpus, to)),
                "access": flow.access, "unit": "GB/s", "measured": gb_per_s,
                "spread_percent": spread / gb_per_s * 100.0,
                "alone": alone[lane], "share": gb_per_s / alone[lane],
                "model": model, "error_percent": model.map(|m| (m / gb_per_s - 1.0) * 100.0),
                "verified": right[i],
            }));
        }
    }
    Ok(rows)
}

/// Puts a topology's predictions into saved rows, in place of those of their own day. The GPUs are
/// the topology's first, in the order of their numbers.
///
/// # Errors
/// Rows that are none; a topology of fewer GPUs.
pub fn predict_again(
    rows: &mut [Value],
    topology: &Topology,
    params: &Params,
) -> Result<(), String> {
    let sets = limits::sets(rows)?;
    let number = |name: &str| name.rsplit(' ').next().and_then(|n| n.parse().ok());
    let named = |row: &limits::Row| {
        [Some(&row.gpu), row.peer.as_ref()].map(|n| n.map(|n| (number(n), n.clone())))
    };
    let names: BTreeSet<(Option<u32>, String)> =
        sets.iter().flatten().flat_map(named).flatten().collect();
    let Some(places) = Places::first(topology, names.len()) else {
        let (rows, own) = (names.len(), topology.of_kind(Kind::Gpu).len());
        return Err(format!("{}: {own} GPUs, and the rows are of {rows}", topology.name));
    };
    let at = |name: &String| names.iter().position(|(_, n)| n == name);
    let mut rows = rows.iter_mut();
    for set in &sets {
        let flows: Option<Vec<Flow>> = set
            .iter()
            .map(|r| Some(flow(at(&r.gpu)?, r.access, r.peer.as_ref().and_then(at))))
            .collect();
        let model = flows.and_then(|flows| places.predict(params, &flows));
        for (i, row) in rows.by_ref().take(set.len()).enumerate() {
            let model = model.as_ref().map(|m| m[i]);
            let measured = row["measured"].as_f64();
            row["model"] = json!(model);
            row["error_percent"] =
                json!(model.zip(measured).map(|(model, own)| (model / own - 1.0) * 100.0));
        }
    }
    Ok(())
}

fn set_name(flows: &[&str]) -> String {
    if flows.len() == 1 { "alone".into() } else { flows.join(" + ") }
}

/// The rows, set by set.
pub fn text(rows: &[Value], is_host: bool) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<34} {:>9} {:>8} {:>9} {:>7} {:>9}",
        "flows at once, GB/s", "measured", "spread", "alone", "share", "model"
    )];
    let mut last = "";
    for row in rows {
        let set = row["together"].as_str().unwrap_or_default();
        if set != last {
            lines.push(String::new());
            last = set;
        }
        let number = |field: &str| row[field].as_f64();
        let show = |v: Option<f64>| v.map_or(String::new(), |v| format!("{v:.1}"));
        let (spread, share) = (number("spread_percent"), number("share").map(|s| 100.0 * s));
        lines.push(format!(
            "{:<34} {:>9} {:>7}% {:>9} {:>6}% {:>9}{}",
            row["row"].as_str().unwrap_or_default(),
            show(number("measured")),
            show(spread),
            show(number("alone")),
            share.map_or(String::new(), |s| format!("{s:.0}")),
            show(number("model")),
            if row["verified"] == true { "" } else { "  NOT VERIFIED" },
        ));
    }
    if !is_host {
        lines.push(String::new());
        lines.extend(shared(rows));
        lines.extend(limits::all(rows).into_iter().flat_map(|(access, l)| l.text(access)));
    }
    lines
}

/// What pairs to host memory say of the tree.
fn shared(rows: &[Value]) -> Vec<String> {
    let pairs = rows.chunk_by(|a, b| a["together"] == b["together"]).filter(|set| {
        let is_host = set.iter().all(|r| r["peer"].is_null() && r["access"] == set[0]["access"]);
        set.len() == 2 && is_host
    });
    let line = |set: &[Value]| {
        let sum = |field: &str| -> Option<f64> { set.iter().map(|r| r[field].as_f64()).sum() };
        let (both, alone) = (sum("measured")?, sum("alone")?);
        let (a, b) = (set[0]["gpu"].as_str()?, set[1]["gpu"].as_str()?);
        let what = if set[0]["access"] == "store" { "to" } else { "from" };
        let is_loose = |r: &Value| r["spread_percent"].as_f64().is_none_or(|s| s > LOOSE);
        let how = match both < SHARED * alone {
            _ if set.iter().any(is_loose) => "vary too much to say whether they share a link",
            true => "share a link",
            false => "share none that limits",
        };
        Some(format!("{a} and {b}, {what} host memory: {both:.1} of {alone:.1} GB/s, {how}"))
    };
    pairs.filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flow_runs_alone_before_it_runs_with_others() {
        for gpus in 1..=MOST_GPUS {
            let sets = sets(gpus);
            for (i, set) in sets.iter().enumerate() {
                for flow in set {
                    assert!(sets[..=i].contains(&vec![*flow]), "{gpus}: {flow:?}");
                    assert!(
                        flow.gpu < gpus && flow.to.is_none_or(|to| to < gpus && to != flow.gpu)
                    );
                }
                assert!(!sets[..i].contains(set), "{gpus}: {set:?} twice");
            }
        }
        assert_eq!(sets(1).len(), 3, "alone each way, and both");
    }

    #[test]
    fn pairs_that_get_half_share_a_link() {
        let row = |set: &str, gpu: u32, measured: f64| {
            json!({ "together": set, "gpu": format!("GPU {gpu}"), "access": "store", "peer": null,
                "measured": measured, "alone": 50.0, "spread_percent": 2.0 })
        };
        let rows = [row("a", 0, 26.0), row("a", 1, 25.0), row("b", 0, 50.0), row("b", 2, 49.0)];
        let said = shared(&rows);
        assert_eq!(said[0], "GPU 0 and GPU 1, to host memory: 51.0 of 100.0 GB/s, share a link");
        assert!(said[1].ends_with("99.0 of 100.0 GB/s, share none that limits"), "{said:?}");
        let loose: Vec<Value> = rows
            .into_iter()
            .map(|mut row| {
                row["spread_percent"] = json!(400.0);
                row
            })
            .collect();
        assert!(shared(&loose)[0].contains("vary too much"), "{:?}", shared(&loose));
    }
}
