//! The set-up of a run: GPU, NIC, stream, source and destination memory.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bellpush::gpu::{Executor, Gpu, GpuError, HostOptions, Mapped, Stream};
use bellpush::gpu_engine::{self, EngineOptions};
use bellpush::mem;
use bellpush::nic::soft::trace::Tracing;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::nic::{Nic, open_verbs};
use bellpush::transport::Memory;
use bellpush_cli::report::Side;

use super::marks::RowMarks;
use crate::cli::CliError;
use crate::link::Wire;
use crate::plan::{self, BenchPlan, Dest, EngineAt, Numa};

/// Bytes of source and destination, each of which holds a round of messages.
pub const REGION_BYTES: usize = 32 << 20;
/// Room behind it in the destination, for the word to which a peer's signals add.
const WORD_BYTES: usize = 64;
/// Messages of a round.
pub const ROUND_MESSAGES: usize = 4096;

pub struct TestBed {
    pub gpu: Arc<Gpu>,
    /// The sending and the receiving NIC, which are the same one without packets.
    pub nic: Arc<dyn Nic>,
    pub peer: Arc<dyn Nic>,
    /// A note: the carrier of packets between them, or the recording of messages as packets.
    pub link: Option<String>,
    /// A note: the GPU of the NIC's engine, and the places of memory.
    pub engine: Option<String>,
    /// Threads that help the software NIC's engines to copy.
    pub copy_threads: u32,
    pub stream: Stream,
    pub src: Memory,
    pub dst: Memory,
    /// Offset in the destination of the word to which a peer's signals add: behind all messages, alike at both ends
    /// whatever memory theirs is.
    pub word: usize,
    /// `u64` ticks of each message of a round.
    pub ticks: Memory,
    /// A `BenchResult`, followed by the stop word of the tearing test.
    pub result: Mapped,
    pub host_numa: Option<usize>,
    pub timeout: Duration,
    /// Where kernels write marks, for a trace.
    pub marks: Option<RowMarks>,
}

/// What a side of two processes has before it knows the other.
pub struct Devices {
    gpu: Arc<Gpu>,
    /// A card; a software NIC is made when both sides know what carries its packets.
    card: Option<Arc<dyn Nic>>,
}

impl Devices {
    pub fn open(plan: &BenchPlan) -> Result<Self, CliError> {
        let card = (plan.nic != "soft").then(|| open_card(plan)).transpose()?;
        Ok(Self { gpu: open_gpu(plan.gpu)?, card })
    }
}

/// Where one of two processes finds the other.
pub struct Apart {
    /// What carries the packets of its software NIC.
    pub wire: Wire,
    /// Address of its software NIC; `None` for the first free one of loopback.
    pub address: Option<IpAddr>,
    /// Name of the memory that both share.
    pub name: String,
}

impl TestBed {
    pub fn new(plan: &BenchPlan) -> Result<Self, CliError> {
        Self::traced(plan, None)
    }

    /// Whose software NICs and kernels write down what they do and when.
    pub fn traced(plan: &BenchPlan, tracing: Option<&Arc<Tracing>>) -> Result<Self, CliError> {
        Self::on(open_gpu(plan.gpu)?, plan, tracing)
    }

    /// Of a GPU that is open already.
    pub fn on(
        gpu: Arc<Gpu>,
        plan: &BenchPlan,
        tracing: Option<&Arc<Tracing>>,
    ) -> Result<Self, CliError> {
        let engine_gpu = engine_gpu(plan.engine, &gpu)?;
        let copy_threads = copy_threads(plan);
        let nics = open_nics(plan, (&gpu, engine_gpu.as_ref()), copy_threads, tracing)?;
        let bed = Self::of(plan, gpu, engine_gpu, copy_threads, nics)?;
        let marks = tracing.map(|_| RowMarks::new(&bed.gpu)).transpose();
        Ok(Self { marks: marks.map_err(|e| gpu_error(&e))?, ..bed })
    }

    /// With the peer in another process.
    pub fn apart(plan: &BenchPlan, devices: Devices, at: &Apart) -> Result<Self, CliError> {
        let Devices { gpu, card } = devices;
        let (nic, link) = match card {
            Some(card) => (card, None),
            None => open_apart(plan, at)?,
        };
        Self::of(plan, gpu, None, 0, (nic.clone(), nic, link))
    }

    fn of(
        plan: &BenchPlan,
        gpu: Arc<Gpu>,
        engine_gpu: Option<Arc<Gpu>>,
        copy_threads: u32,
        (nic, peer, link): Nics,
    ) -> Result<Self, CliError> {
        let host_numa = plan.host_numa.map(|numa| node(&gpu, numa)).transpose()?;
        let engine = engine_gpu.as_ref().map(|at| lie(plan, &gpu, at));
        let region = REGION_BYTES.max(plan.largest_bytes()).next_multiple_of(64);
        say_where(plan.gpu, &gpu);
        let refused = |e: GpuError| gpu_error(&e);
        let into = region + WORD_BYTES;
        let dst = match plan.dest {
            Dest::Host => Memory::Host(gpu.alloc_mapped(into, host_numa).map_err(refused)?),
            Dest::Gpu => Memory::Device(gpu.alloc(into).map_err(refused)?),
            Dest::Engine => {
                let at = engine_gpu.as_ref().unwrap_or(&gpu);
                Memory::Device(at.alloc(into).map_err(refused)?)
            }
        };
        Ok(Self {
            stream: gpu.stream().map_err(refused)?,
            src: match plan.source {
                Side::Host => Memory::Host(gpu.alloc_mapped(region, host_numa).map_err(refused)?),
                Side::Gpu => Memory::Device(gpu.alloc(region).map_err(refused)?),
            },
            word: region,
            dst,
            ticks: Memory::Device(gpu.alloc(ROUND_MESSAGES * 8).map_err(refused)?),
            result: gpu.alloc_mapped(mem::PAGE_BYTES, host_numa).map_err(refused)?,
            host_numa,
            timeout: plan.timeout,
            marks: None,
            nic,
            peer,
            link,
            engine,
            copy_threads,
            gpu,
        })
    }
}

/// The requested GPU; by default the first one, or the host executor if there is none, which
/// [`say_where`] says.
pub fn open_gpu(wanted: plan::Gpu) -> Result<Arc<Gpu>, CliError> {
    let host = || Gpu::open(Executor::Host(HostOptions::default())).map_err(|e| gpu_error(&e));
    match wanted {
        plan::Gpu::Host => host(),
        plan::Gpu::Cuda(n) => Gpu::open(Executor::Cuda(n as usize)).map_err(|e| gpu_error(&e)),
        plan::Gpu::Auto => Gpu::open(Executor::Cuda(0)).or_else(|_| host()),
    }
}

/// Says that kernels run on the host executor, and why, where nobody asked for it. Called when all
/// else is known to be there, so that an error is the only line.
pub fn say_where(wanted: plan::Gpu, gpu: &Gpu) {
    if !(wanted == plan::Gpu::Auto && gpu.is_host()) {
        return;
    }
    if let Err(why) = Gpu::open(Executor::Cuda(0)) {
        eprintln!("bellpush: no GPU measurements: {why}; kernels run on the host executor");
    }
}

/// The NUMA node that is near or far from the GPU.
pub fn node(gpu: &Gpu, numa: Numa) -> Result<usize, CliError> {
    let option = match numa {
        Numa::Near => "near",
        Numa::Far => "far",
    };
    let nodes = mem::node_count();
    if nodes < 2 {
        return Err(CliError::new(
            format!("--host-numa {option}: this machine has one NUMA node"),
            "leave it out, or run on a machine with two sockets",
        ));
    }
    let pci = gpu.describe().pci.clone();
    let near = pci.as_deref().and_then(mem::node_of_pci).ok_or_else(|| {
        CliError::new(
            format!("--host-numa {option}: the system does not say which node is the GPU's"),
            "leave it out",
        )
    })?;
    Ok(match numa {
        Numa::Near => near,
        Numa::Far => (0..nodes).find(|n| *n != near).unwrap_or(near),
    })
}

/// The engine's GPU, if the engine runs on one.
fn engine_gpu(at: EngineAt, gpu: &Arc<Gpu>) -> Result<Option<Arc<Gpu>>, CliError> {
    match at {
        EngineAt::Host => Ok(None),
        EngineAt::Gpu(n) if gpu.ordinal() == Some(n as usize) => Ok(Some(gpu.clone())),
        // With kernels on CPU threads, the engine runs on other CPU threads.
        EngineAt::Gpu(_) if gpu.is_host() => open_gpu(plan::Gpu::Host).map(Some),
        EngineAt::Gpu(n) => open_gpu(plan::Gpu::Cuda(n)).map(Some),
    }
}

/// The places of memory, and the number of crossings of the payload between the two GPUs.
fn lie(plan: &BenchPlan, gpu: &Gpu, engine: &Gpu) -> String {
    let name = |gpu: &Gpu| gpu.ordinal().map_or("the host executor".into(), |n| format!("gpu:{n}"));
    let (sender, engine_at) = (name(gpu), name(engine));
    let (dest, back) = match plan.dest {
        Dest::Host => ("host memory".to_string(), 0),
        Dest::Gpu => (sender.clone(), 1),
        Dest::Engine => (engine_at.clone(), 0),
    };
    // What is pushed from host memory goes through the sender's GPU, which stores it into the window.
    let (source, there) = match plan.source {
        Side::Host => ("in host memory".to_string(), usize::from(pushes(plan))),
        Side::Gpu => (format!("on {sender}"), 1),
    };
    let crosses = match (gpu.ordinal(), engine.ordinal()) {
        (Some(a), Some(b)) if a != b && there + back != 0 => {
            format!("the payload crosses between the GPUs {} time(s)", there + back)
        }
        _ => "the payload crosses between no GPUs".into(),
    };
    format!(
        "engine on {engine_at}: queues and push window there (of posts by the host, and staged, in \
         host memory) and send CQ on {sender}, unless placed otherwise; source {source}, \
         destination {dest}; {crosses}"
    )
}

/// Whether any path pushes: what is said of crossings is then of those that do.
fn pushes(plan: &BenchPlan) -> bool {
    plan.paths.iter().any(|path| path.has_window())
}

/// Copy threads that were asked for, or that the machine has cores for where the engine copies at all.
fn copy_threads(plan: &BenchPlan) -> u32 {
    if plan.nic != "soft" || plan.link.is_some() || plan.engine != EngineAt::Host {
        return 0;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let fitting = || SoftConfig::copy_threads_for(cores, plan.engines as usize) as u32;
    plan.copy_threads.unwrap_or_else(fitting)
}

type Nics = (Arc<dyn Nic>, Arc<dyn Nic>, Option<String>);

fn open_nics(
    plan: &BenchPlan,
    (gpu, engine_gpu): (&Arc<Gpu>, Option<&Arc<Gpu>>),
    copy_threads: u32,
    tracing: Option<&Arc<Tracing>>,
) -> Result<Nics, CliError> {
    if plan.nic != "soft" {
        let nic = open_card(plan)?;
        return Ok((nic.clone(), nic, None));
    }
    let refused =
        |e| CliError::new(format!("the software NIC did not start: {e}"), "try --engines 1");
    let Some(link) = &plan.link else {
        let link = match &plan.pcap {
            Some(path) => InProcess::captured(path).map_err(|e| {
                CliError::new(format!("--pcap {}: {e}", path.display()), "give another file")
            })?,
            None => InProcess::new(),
        };
        let offload = engine_gpu.map(|at| {
            let peers: &[Arc<Gpu>] =
                if Arc::ptr_eq(at, gpu) { &[] } else { std::slice::from_ref(gpu) };
            gpu_engine::open(at, peers, EngineOptions::new(at)).map_err(|e| {
                CliError::new(format!("--engine: {e}"), "give another GPU, or --engine host")
            })
        });
        let offload = offload.transpose()?;
        let engines = plan.engines as usize;
        let copy_threads = copy_threads as usize;
        let trace = tracing.map(|tracing| (tracing.clone(), 0));
        let config = SoftConfig { engines, copy_threads, offload, trace, ..SoftConfig::new(&link) };
        let nic = SoftNic::open(config).map_err(refused)?;
        let recorded = |_| format!("{}: times include recording", nic.describe());
        let described = plan.pcap.as_ref().map(recorded);
        return Ok((nic.clone(), nic, described));
    };
    let ends = link
        .pair(plan.pcap.as_deref())
        .map_err(|e| CliError::new(format!("--link: {e}"), "give another link, or leave it out"))?;
    let mut index = 0..;
    let [a, b] = ends.map(|end| {
        let trace = tracing.cloned().zip(index.next());
        SoftNic::open_on(SoftConfig { trace, ..SoftConfig::default() }, end)
    });
    let (a, b) = (a.map_err(refused)?, b.map_err(refused)?);
    let link = format!("RoCEv2 packets between two software NICs: {}", a.describe());
    Ok((a, b, Some(link)))
}

fn open_card(plan: &BenchPlan) -> Result<Arc<dyn Nic>, CliError> {
    open_verbs(&plan.nic).map_err(|e| {
        CliError::new(format!("--nic: {e}"), "docs/hardware.md says what a real NIC needs")
    })
}

/// The software NIC of one of two processes.
fn open_apart(plan: &BenchPlan, at: &Apart) -> Result<(Arc<dyn Nic>, Option<String>), CliError> {
    let refused = |e: &dyn std::fmt::Display| {
        let remedy = "give --address one of this host's that no other NIC has";
        CliError::new(format!("the software NIC did not start: {e}"), remedy)
    };
    let link = plan.link.unwrap_or_default();
    let end =
        link.end(at.wire, at.address, &at.name, plan.pcap.as_deref()).map_err(|e| refused(&e))?;
    let nic = SoftNic::open_on(SoftConfig::default(), end).map_err(|e| refused(&e))?;
    let link =
        format!("RoCEv2 packets between the software NICs of two processes: {}", nic.describe());
    Ok((nic, Some(link)))
}

pub fn gpu_error(error: &GpuError) -> CliError {
    let remedy = match error {
        GpuError::NoDriver | GpuError::NoDevice | GpuError::NoSuchDevice { .. } => {
            "give another --gpu, or --gpu host for kernels on CPU threads"
        }
        GpuError::NotBuilt { .. } => "run ./x setup and build again, or give --gpu host",
        GpuError::Pin { .. } => {
            "raise the locked-memory limit (ulimit -l unlimited), or --gpu host"
        }
        _ => "see the message; --gpu host runs without a GPU",
    };
    CliError::new(error, remedy)
}
