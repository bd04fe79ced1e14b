//! Two endpoints of one process, one put between them, and a look at what arrived.
//!
//! `cargo run --example quickstart [PATH]`: PATH is `push/inband` unless given; `pull/kernel`,
//! `staged/cpu`, `tcp` and the others of `Path::ALL` do as well. Kernels run on the first CUDA GPU,
//! or, where there is none, on the host executor. The NIC is the software NIC.

use std::error::Error;
use std::sync::Arc;

use bellpush::gpu::{Executor, Gpu, HostOptions};
use bellpush::nic::Nic;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::transport::{Endpoint, Local, Memory, Options, Path, Put, Remote};

fn main() -> Result<(), Box<dyn Error>> {
    let path: Path = std::env::args().nth(1).as_deref().unwrap_or("push/inband").parse()?;
    let gpu = &Gpu::open(Executor::Cuda(0))
        .or_else(|_| Gpu::open(Executor::Host(HostOptions::default())))?;
    println!("{path} on {}: {}", gpu.describe(), put_and_look(gpu, path)?);
    Ok(())
}

/// Sends 10,000 bytes by `path` and says what arrived.
///
/// # Errors
/// What GPU, NIC or endpoint refuse, and bytes that are not those sent.
pub fn put_and_look(gpu: &Arc<Gpu>, path: Path) -> Result<String, Box<dyn Error>> {
    let nic: Arc<dyn Nic> = SoftNic::open(SoftConfig::new(&InProcess::new()))?;
    // The sender's region is GPU memory, the receiver's host memory that the GPU has mapped.
    let (from, to) =
        (Memory::from(gpu.alloc(16384)?), Memory::from(gpu.alloc_mapped(16384, None)?));
    let (sender, _receiver) =
        Endpoint::pair(gpu, &nic, path, (from.clone(), to.clone()), Options::default())?;

    let message: Vec<u8> = (0..10_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    from.write(256, &message)?;

    // The put is queued on a stream, behind the kernels that would have made the payload. A message
    // longer than a slot of the window goes in chunks, each under a credit.
    let stream = gpu.stream()?;
    let bytes = message.len() as u64;
    sender.put(&stream, Put { from: Local(256), to: Remote(512), bytes, signal: None })?;
    sender.quiet(&stream)?; // bounded; reports the first error of all that was queued

    let mut arrived = vec![0; message.len()];
    to.read(512, &mut arrived)?;
    if arrived != message {
        return Err(format!("{path}: other bytes arrived than were sent").into());
    }
    let credits = sender.max_credits_in_use()?;
    Ok(format!("{} bytes arrived, at most {credits} credits in use", arrived.len()))
}
