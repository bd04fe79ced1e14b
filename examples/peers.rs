//! Four ranks, each with a table of peers: puts round the ring, barriers, and an all-gather.
//!
//! `cargo run --example peers [PATH]`: PATH is `push/inband` unless given, and one whose posts a kernel makes. The
//! ranks are in one process here, each with a stream of its own; processes would send each other the addresses, which
//! are text. Kernels run on the first CUDA GPU, or, where there is none, on the host executor.

use std::error::Error;
use std::sync::Arc;

use bellpush::gpu::{Executor, Gpu, HostOptions, Stream};
use bellpush::nic::Nic;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::transport::{Local, Memory, Options, Path, Peers, PeersAddress, Put, Remote};

const RANKS: u32 = 4;
const RAILS: u32 = 2;
const CHUNK: usize = 3000;

fn main() -> Result<(), Box<dyn Error>> {
    let path: Path = std::env::args().nth(1).as_deref().unwrap_or("push/inband").parse()?;
    let gpu = Gpu::open(Executor::Cuda(0))
        .or_else(|_| Gpu::open(Executor::Host(HostOptions::default())))?;
    println!("{path} on {}: {}", gpu.describe(), exchange(&gpu, path)?);
    Ok(())
}

struct Rank {
    peers: Peers,
    region: Memory,
    stream: Stream,
}

/// Has every rank send to its neighbour, and then everybody everything, and says what arrived.
///
/// # Errors
/// What GPU, NIC or table refuse, and bytes that are not those sent.
pub fn exchange(gpu: &Arc<Gpu>, path: Path) -> Result<String, Box<dyn Error>> {
    // A rail is a NIC. All ranks of this process use the same two.
    let link = InProcess::new();
    let open = || Ok::<_, Box<dyn Error>>(SoftNic::open(SoftConfig::new(&link))? as Arc<dyn Nic>);
    let rails = (0..RAILS).map(|_| open()).collect::<Result<Vec<_>, _>>()?;

    let rank = |n| {
        let region = Memory::from(gpu.alloc_mapped(CHUNK * RANKS as usize, None)?);
        let options = Options::default();
        let peers = Peers::new(gpu, &rails, (n, RANKS), path, region.clone(), &options)?;
        Ok::<_, Box<dyn Error>>(Rank { peers, region, stream: gpu.stream()? })
    };
    let mut ranks = (0..RANKS).map(rank).collect::<Result<Vec<_>, _>>()?;
    let all: Vec<PeersAddress> = ranks.iter().map(|r| r.peers.address().clone()).collect();
    ranks.iter_mut().try_for_each(|r| r.peers.connect(&all))?;

    // Each rank's first bytes go to its neighbour, by rails in turn. The barrier waits for the puts of both rails and
    // for all ranks, so that everybody may look when it has passed.
    for (n, rank) in (0..RANKS).zip(&ranks) {
        rank.region.write(0, &[n as u8 + 1; 512])?;
        for part in 0..8 {
            let Some(to) = rank.peers.endpoint((n + 1) % RANKS, part % RAILS) else { continue };
            let (from, at) = (64 * u64::from(part), 1024 + 64 * u64::from(part));
            to.put(
                &rank.stream,
                Put { from: Local(from), to: Remote(at), bytes: 64, signal: None },
            )?;
        }
        rank.peers.barrier(&rank.stream)?;
    }
    for (n, rank) in (0..RANKS).zip(&ranks) {
        rank.peers.finish(&rank.stream)?;
        let mut arrived = [0; 512];
        rank.region.read(1024, &mut arrived)?;
        if arrived != [((n + RANKS - 1) % RANKS) as u8 + 1; 512] {
            return Err(format!("{path}: rank {n} has not what its neighbour sent").into());
        }
    }

    // The same by a kernel that puts and calls the barrier itself, step after step (kernels/entry/peers.cu).
    let chunk = |n: u32| vec![0x10 + n as u8; CHUNK];
    for (n, rank) in (0..RANKS).zip(&ranks) {
        rank.region.write(n as usize * CHUNK, &chunk(n))?;
    }
    ranks.iter().try_for_each(|rank| rank.peers.all_gather(&rank.stream, CHUNK as u64))?;
    let wanted = (0..RANKS).map(chunk).collect::<Vec<_>>().concat();
    for (n, rank) in (0..RANKS).zip(&ranks) {
        rank.peers.finish(&rank.stream)?;
        let mut arrived = vec![0; wanted.len()];
        rank.region.read(0, &mut arrived)?;
        if arrived != wanted {
            return Err(format!("{path}: rank {n} has not what all ranks sent").into());
        }
    }
    Ok(format!("{RANKS} ranks on {RAILS} rails have {} bytes each", wanted.len()))
}
