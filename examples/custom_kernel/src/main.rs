//! A program with kernels of its own (`kernel.cu`) that call bellpush's device verbs: one kernel
//! computes and sends, piece by piece; another, at the other end, adds up each piece as it arrives.
//!
//! `cargo run -p custom_kernel [host]` runs on the first CUDA GPU, or on the host executor where there
//! is none or `host` is given. Exit status 1 when a result is wrong.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bellpush::abi::wire::{Code, DeviceEndpoint};
use bellpush::gpu::{Dims, Executor, Gpu, HostKernel, HostOptions, KernelArgs, Module};
use bellpush::nic::Nic;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::transport::{Endpoint, Memory, Options, Path};
use bytemuck::{Pod, Zeroable};

/// `struct producer_args` of kernel.cu.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ProducerArgs {
    ep: DeviceEndpoint,
    x: u64,
    y: u64,
    per_block: u64,
    signal_offset: u64,
    status: u64,
    a: f32,
    reserved: u32,
}

/// `struct consumer_args` of kernel.cu.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ConsumerArgs {
    ep: DeviceEndpoint,
    y: u64,
    signals: u64,
    sums: u64,
    per_block: u64,
    status: u64,
}

// SAFETY: the layout is the C struct's.
unsafe impl KernelArgs for ProducerArgs {}
// SAFETY: as above.
unsafe impl KernelArgs for ConsumerArgs {}

#[cfg(kernel_fatbin)]
const FATBINS: &[&[u8]] = &[include_bytes!(concat!(env!("OUT_DIR"), "/kernel.fatbin"))];
#[cfg(not(kernel_fatbin))]
const FATBINS: &[&[u8]] = &[];

const HOST: &[(&str, HostKernel)] = bellpush::host_kernels!(saxpy_and_put, wait_and_sum);
// SAFETY: build.rs made the image, and kernel.cu defines both kernels with BP_KERNEL.
const KERNELS: Module = unsafe { Module::new(FATBINS, HOST) };

const BLOCKS: u32 = 4;
const THREADS: u32 = 128;
/// 12,000 bytes a piece: four in-band slots, the last not full.
const PER_BLOCK: usize = 3000;
const A: f32 = 3.0;

fn main() -> ExitCode {
    let host = std::env::args().nth(1).is_some_and(|arg| arg == "host");
    match open(host).and_then(|gpu| run(&gpu)) {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("custom_kernel: {why}");
            ExitCode::FAILURE
        }
    }
}

fn open(host: bool) -> Result<Arc<Gpu>, Box<dyn Error>> {
    let on_host = || Gpu::open(Executor::Host(HostOptions::default()));
    if host || FATBINS.is_empty() {
        return Ok(on_host()?);
    }
    Ok(Gpu::open(Executor::Cuda(0)).or_else(|_| on_host())?)
}

fn run(gpu: &Arc<Gpu>) -> Result<String, Box<dyn Error>> {
    let floats = BLOCKS as usize * PER_BLOCK;
    let (y_bytes, signal_bytes) = (floats * 4, BLOCKS as usize * 8);

    // 1. Memory, before any kernel runs: the producer's in the GPU, the consumer's in host memory
    //    that the GPU has mapped. Both are zero-filled, the signals too.
    let x = Memory::from(gpu.alloc(y_bytes)?);
    let y = Memory::from(gpu.alloc(y_bytes)?);
    let arrived = Memory::from(gpu.alloc_mapped(y_bytes + signal_bytes, None)?);
    let results = Memory::from(gpu.alloc_mapped(4096, None)?);
    let (sums, sent, seen) = (results.addr(), results.addr() + 1024, results.addr() + 2048);

    // 2. Two endpoints. The path is the one that kernel.cu instantiates the verbs for.
    let nic: Arc<dyn Nic> = SoftNic::open(SoftConfig::new(&InProcess::new()))?;
    let path: Path = "push/inband".parse()?;
    let regions = (y.clone(), arrived.clone());
    let (producer, consumer) = Endpoint::pair(gpu, &nic, path, regions, Options::default())?;

    // 3. Input.
    let input: Vec<f32> = (0..floats).map(|i| (i % 1000) as f32).collect();
    x.write(0, bytemuck::cast_slice(&input))?;
    y.write(0, bytemuck::cast_slice(&vec![1f32; floats]))?;

    // 4. Both kernels at once, on streams of their own: the consumer waits for the producer.
    let module = gpu.load(&KERNELS)?;
    let (put, sum) = (module.kernel("saxpy_and_put")?, module.kernel("wait_and_sum")?);
    let (here, there) = (gpu.stream()?, gpu.stream()?);
    let per_block = PER_BLOCK as u64;
    let consume = ConsumerArgs {
        ep: consumer.device()?,
        y: arrived.addr(),
        signals: arrived.addr() + y_bytes as u64,
        sums,
        per_block,
        status: seen,
    };
    let produce = ProducerArgs {
        ep: producer.device()?,
        x: x.addr(),
        y: y.addr(),
        per_block,
        signal_offset: y_bytes as u64,
        status: sent,
        a: A,
        reserved: 0,
    };
    let dims = Dims::new(BLOCKS, THREADS);
    // SAFETY: the arguments name the memory above, which lives until both streams were found idle. A kernel
    // that fails to end in time ends the program.
    unsafe {
        there.launch(&sum, dims, &consume)?;
        here.launch(&put, dims, &produce)?;
    }
    here.synchronize(Duration::from_secs(30))?;
    there.synchronize(Duration::from_secs(30))?;

    // 5. What the verbs returned; if the queue pair ended, why.
    let mut raw = vec![0; 4096];
    results.read(0, &mut raw)?;
    for (name, at) in [("producer", 1024), ("consumer", 2048)] {
        for (block, word) in raw[at..].chunks_exact(4).take(BLOCKS as usize).enumerate() {
            let code = u32::from_ne_bytes(word.try_into()?);
            if let Err(code) = Code::check(code) {
                let why = producer.failure().map(|e| format!(": {e}")).unwrap_or_default();
                return Err(format!("{name}'s block {block}: {code}{why}").into());
            }
        }
    }

    // 6. The numbers.
    for (block, piece) in input.chunks_exact(PER_BLOCK).enumerate() {
        let want: f64 = piece.iter().map(|x| f64::from(A * x + 1.0)).sum();
        let got = f64::from_ne_bytes(raw[block * 8..][..8].try_into()?);
        if got != want {
            return Err(format!("block {block}: the sum is {got}, but must be {want}").into());
        }
    }
    let credits = producer.max_credits_in_use()?;
    Ok(format!(
        "{BLOCKS} pieces sent, summed and right on {}; at most {credits} credits in use",
        gpu.describe()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_executor_gets_it_right() {
        run(&open(true).unwrap()).unwrap();
    }
}
