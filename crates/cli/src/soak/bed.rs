//! A round's NICs, memories and connected endpoints.

use std::sync::Arc;
use std::time::Duration;

use bellpush::gpu::{Gpu, Loaded, Module, Stream};
use bellpush::gpu_engine::{self, EngineOptions};
use bellpush::nic::Nic;
use bellpush::nic::soft::link::{Faulty, Link, ShmNet, UdpLink};
use bellpush::nic::soft::script::{Script, Scripted, ScriptedFaults};
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::transport::{self, Endpoint, Error, Memory};

use super::config::{Carrier, Config, Connection};
use super::model::Who;
use super::rng::{Rng, Use};

/// Statuses that a launch may write.
pub const STATUSES: usize = 1024;
/// Behind the statuses: what a kernel that counts tickets, or waits for a signal, writes.
pub const SCRATCH: usize = STATUSES * 4;

/// One connection; what it is dropped in: the endpoints before anything that they use.
pub struct Ends {
    pub ends: [Endpoint; 2],
    pub stream: usize,
    pub connection: Connection,
}

pub struct Bed {
    pub connections: Vec<Ends>,
    pub streams: Vec<Stream>,
    pub kernels: Loaded,
    pub status: Memory,
    pub memory: [Memory; 2],
    pub nics: Vec<Arc<SoftNic>>,
    pub scripts: Vec<Arc<ScriptedFaults>>,
}

/// Why a round did not begin.
#[derive(Debug)]
pub enum Refused {
    /// This machine, or this GPU, cannot take what was drawn.
    Cannot(String),
    /// It should.
    Failed(String),
}

fn failed(what: &'static str) -> impl Fn(String) -> Refused {
    move |error| Refused::Failed(format!("{what}: {error}"))
}

impl Bed {
    pub fn new(gpu: &Arc<Gpu>, config: &Config) -> Result<Self, Refused> {
        let (nics, scripts) = nics(gpu, config)?;
        let bytes = config.memory_bytes();
        let memory = |on_gpu| -> Result<Memory, Refused> {
            let made = if on_gpu {
                gpu.alloc(bytes).map(Memory::from)
            } else {
                gpu.alloc_mapped(bytes, None).map(Memory::from)
            };
            made.map_err(|e| failed("memory")(e.to_string()))
        };
        let memory = [memory(config.on_gpu[0])?, memory(config.on_gpu[1])?];
        let gpu_failed = |e: bellpush::gpu::GpuError| failed("the GPU")(e.to_string());
        let status = gpu.alloc_mapped(SCRATCH + 64, None).map_err(gpu_failed)?.into();
        let count = if config.streams { config.connections.len() } else { 1 };
        let streams: Result<Vec<_>, _> = (0..count).map(|_| gpu.stream()).collect();
        let kernels = gpu.load(&Module::builtin()).map_err(gpu_failed)?;
        let mut connections = Vec::new();
        for (number, connection) in config.connections.iter().enumerate() {
            let ends = connected(gpu, &nics, &memory, connection).map_err(|refused| {
                let early = scripts.iter().flat_map(|it| it.done()).any(|(_, times)| times > 0);
                match refused {
                    // By the time: on a GPU it takes a while to make them.
                    Refused::Failed(_) if early => {
                        Refused::Cannot("a fault had struck before all was made".into())
                    }
                    other => other,
                }
            })?;
            connections.push(Ends { ends, stream: number % count, connection: connection.clone() });
        }
        let streams = streams.map_err(gpu_failed)?;
        Ok(Self { connections, streams, kernels, status, memory, nics, scripts })
    }

    pub fn read(&self, memory: usize, at: usize, bytes: usize) -> Result<Vec<u8>, String> {
        let mut into = vec![0; bytes];
        let read = self.memory[memory].read(at, &mut into);
        read.map_err(|e| format!("memory {memory} cannot be read: {e}"))?;
        Ok(into)
    }

    pub fn write(&self, memory: usize, at: usize, bytes: &[u8]) -> Result<(), String> {
        let written = self.memory[memory].write(at, bytes);
        written.map_err(|e| format!("memory {memory} cannot be written: {e}"))
    }

    /// Faults of the script that have struck.
    pub fn struck(&self) -> u64 {
        self.scripts.iter().flat_map(|script| script.done()).map(|(_, times)| times).sum()
    }

    /// Receives of an end whose CQEs the script has dropped.
    pub fn lost_receives(&self, who: Who) -> u64 {
        let ends = self.connections.get(who.connection).map(|it| &it.ends);
        // One script for each NIC, of which the second end has the last.
        let script = if who.side == 0 { self.scripts.first() } else { self.scripts.last() };
        match (ends.map(|ends| ends[who.side].address().link), script) {
            (Some(transport::Link::Qp(qp)), Some(script)) => script.lost_receives(qp.qpn),
            _ => 0,
        }
    }

    /// Waits until a stream has nothing to do.
    pub fn idle(&self, connection: usize, limit: Duration) -> Result<(), String> {
        let stream = &self.streams[self.connections[connection].stream];
        stream.synchronize(limit).map_err(|e| format!("the stream of connection {connection}: {e}"))
    }
}

fn connected(
    gpu: &Arc<Gpu>,
    nics: &[Arc<SoftNic>],
    memory: &[Memory; 2],
    connection: &Connection,
) -> Result<[Endpoint; 2], Refused> {
    let [a, b] = [0, nics.len() - 1].map(|n| -> Arc<dyn Nic> { nics[n].clone() });
    let memory = (memory[0].clone(), memory[1].clone());
    match Endpoint::between(gpu, [&a, &b], connection.path, memory, &connection.options) {
        Ok((a, b)) => Ok([a, b]),
        Err(error @ Error::Unsupported { .. }) => Err(Refused::Cannot(error.to_string())),
        Err(error) => Err(failed("the endpoints")(format!("{connection}: {error}"))),
    }
}

type Nics = (Vec<Arc<SoftNic>>, Vec<Arc<ScriptedFaults>>);

fn nics(gpu: &Arc<Gpu>, config: &Config) -> Result<Nics, Refused> {
    let mut rng = Rng::new(config.seed, config.round, Use::Bytes);
    let script: Option<Script> = match &config.trouble {
        Some(trouble) => {
            Some(trouble.script.parse().map_err(|e| failed("the script")(format!("{e}")))?)
        }
        None => None,
    };
    let process = InProcess::new();
    let mut scripts = Vec::new();
    let mut made = |n: usize| {
        let faults = script.as_ref().map(|script| ScriptedFaults::new(script, n, None));
        scripts.extend(faults.clone());
        let (seed, adversary) = (Some(rng.next()), config.adversary);
        SoftConfig { seed, faults, adversary, ..SoftConfig::new(&process) }
    };
    let not_opened = |e: bellpush::nic::NicError| failed("the NIC")(e.to_string());
    let nics = match config.carrier {
        Carrier::Copies { nics, engines, copy_threads } => (0..nics)
            .map(|n| SoftNic::open(SoftConfig { engines, copy_threads, ..made(n) }))
            .collect::<Result<_, _>>()
            .map_err(not_opened)?,
        Carrier::GpuEngine => {
            let offload = gpu_engine::open(gpu, &[], EngineOptions::new(gpu));
            let offload = Some(offload.map_err(|e| failed("the engine")(e.to_string()))?);
            vec![SoftNic::open(SoftConfig { offload, ..made(0) }).map_err(not_opened)?]
        }
        Carrier::Shm { icrc, .. } => {
            // A fault that flips bits needs what shows it.
            let net = ShmNet::anonymous(icrc || script.is_some());
            let net = net.map_err(|e| failed("the link")(e.to_string()))?;
            let attach = || net.attach_free().map(|link| Box::new(link) as Box<dyn Link>);
            on_packets(config, &mut made, attach)?
        }
        Carrier::Udp { .. } => {
            let open = || UdpLink::open_free().map(|link| Box::new(link) as Box<dyn Link>);
            on_packets(config, &mut made, open)?
        }
    };
    Ok((nics, scripts))
}

fn on_packets(
    config: &Config,
    made: &mut impl FnMut(usize) -> SoftConfig,
    mut link: impl FnMut() -> Result<Box<dyn Link>, bellpush::nic::soft::link::LinkError>,
) -> Result<Vec<Arc<SoftNic>>, Refused> {
    let not_opened = |e: &dyn std::fmt::Display| failed("the link")(e.to_string());
    let faults = match config.carrier {
        Carrier::Shm { faults, .. } | Carrier::Udp { faults } => faults,
        _ => None,
    };
    let mut nics = Vec::new();
    for n in 0..2 {
        let soft = made(n);
        let mut link = link().map_err(|e| not_opened(&e))?;
        if let Some(mut faults) = faults {
            faults.seed = faults.seed.wrapping_add(n as u64);
            link = Box::new(Faulty::new(link, faults).map_err(|e| not_opened(&e))?);
        }
        if let Some(script) = &soft.faults {
            link = Box::new(Scripted::new(link, script.clone()).map_err(|e| not_opened(&e))?);
        }
        nics.push(SoftNic::open_on(soft, link).map_err(|e| not_opened(&e))?);
    }
    Ok(nics)
}
