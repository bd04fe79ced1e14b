//! What a run sets up once: GPU, NIC, stream, source and destination memory.

use std::sync::Arc;
use std::time::Duration;

use bellpush::gpu::{Executor, Gpu, GpuError, HostOptions, Mapped, Stream};
use bellpush::mem;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::nic::{Nic, open_verbs};
use bellpush::report::Side;
use bellpush::transport::Memory;

use crate::cli::CliError;
use crate::plan::{self, BenchPlan, Numa};

/// Bytes of source and of destination; a round of messages fits into them.
pub const REGION_BYTES: usize = 32 << 20;
/// Messages of a round.
pub const ROUND_MESSAGES: usize = 4096;

pub struct Rig {
    pub gpu: Arc<Gpu>,
    /// The NIC that sends, and the one that receives: the same one without packets.
    pub nic: Arc<dyn Nic>,
    pub peer: Arc<dyn Nic>,
    /// A note: what carries packets between them, or records messages as packets.
    pub link: Option<String>,
    pub stream: Stream,
    pub src: Memory,
    pub dst: Memory,
    /// `u64` ticks of each message of a round.
    pub ticks: Memory,
    /// A `BenchResult`, and behind it the tearing test's stop word.
    pub result: Mapped,
    pub host_numa: Option<usize>,
    pub timeout: Duration,
}

impl Rig {
    pub fn new(plan: &BenchPlan) -> Result<Self, CliError> {
        let gpu = open_gpu(plan.gpu)?;
        let host_numa = plan.host_numa.map(|numa| node(&gpu, numa)).transpose()?;
        let (nic, peer, link) = open_nics(plan)?;
        let region = REGION_BYTES.max(plan.largest_bytes());
        let refused = |e: GpuError| gpu_error(&e);
        let dst = match plan.dest {
            Side::Host => Memory::Host(gpu.alloc_mapped(region, host_numa).map_err(refused)?),
            Side::Gpu => Memory::Device(gpu.alloc(region).map_err(refused)?),
        };
        Ok(Self {
            stream: gpu.stream().map_err(refused)?,
            src: Memory::Device(gpu.alloc(region).map_err(refused)?),
            dst,
            ticks: Memory::Device(gpu.alloc(ROUND_MESSAGES * 8).map_err(refused)?),
            result: gpu.alloc_mapped(mem::PAGE_BYTES, host_numa).map_err(refused)?,
            host_numa,
            timeout: plan.timeout,
            nic,
            peer,
            link,
            gpu,
        })
    }
}

/// The GPU asked for; without a word about it the first one, or the host where there is none.
pub fn open_gpu(wanted: plan::Gpu) -> Result<Arc<Gpu>, CliError> {
    let host = || Gpu::open(Executor::Host(HostOptions::default())).map_err(|e| gpu_error(&e));
    match wanted {
        plan::Gpu::Host => host(),
        plan::Gpu::Cuda(n) => Gpu::open(Executor::Cuda(n as usize)).map_err(|e| gpu_error(&e)),
        plan::Gpu::Auto => match Gpu::open(Executor::Cuda(0)) {
            Ok(gpu) => Ok(gpu),
            Err(why) => {
                eprintln!("bellpush: no GPU measurements: {why}; kernels run on the host executor");
                host()
            }
        },
    }
}

/// The NUMA node that is near or far, seen from the GPU.
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

type Nics = (Arc<dyn Nic>, Arc<dyn Nic>, Option<String>);

fn open_nics(plan: &BenchPlan) -> Result<Nics, CliError> {
    if plan.nic != "soft" {
        let nic = open_verbs(&plan.nic).map_err(|e| {
            CliError::new(format!("--nic: {e}"), "docs/hardware.md says what a real NIC needs")
        })?;
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
        let config = SoftConfig { engines: plan.engines as usize, ..SoftConfig::new(&link) };
        let nic = SoftNic::open(config).map_err(refused)?;
        let recorded = |_| format!("{}: times include recording", nic.describe());
        let described = plan.pcap.as_ref().map(recorded);
        return Ok((nic.clone(), nic, described));
    };
    let ends = link
        .pair(plan.pcap.as_deref())
        .map_err(|e| CliError::new(format!("--link: {e}"), "give another link, or leave it out"))?;
    let [a, b] = ends.map(|end| SoftNic::open_on(SoftConfig::default(), end));
    let (a, b) = (a.map_err(refused)?, b.map_err(refused)?);
    let link = format!("RoCEv2 packets between two software NICs: {}", a.describe());
    Ok((a, b, Some(link)))
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
