//! Both kernels of `kernel.cu`: their arguments, what they compute, and what they must find.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bellpush::abi::wire::{Code, DeviceEndpoint};
use bellpush::gpu::{Dims, Executor, Gpu, HostKernel, HostOptions, KernelArgs, Module, Stream};
use bellpush::transport::{Endpoint, Memory};
use bytemuck::{Pod, Zeroable};

/// `struct producer_args` of kernel.cu.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub struct ProducerArgs {
    pub ep: DeviceEndpoint,
    pub x: u64,
    pub y: u64,
    pub per_block: u64,
    pub signal_offset: u64,
    pub status: u64,
    pub a: f32,
    pub reserved: u32,
}

/// `struct consumer_args` of kernel.cu.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub struct ConsumerArgs {
    pub ep: DeviceEndpoint,
    pub y: u64,
    pub signals: u64,
    pub sums: u64,
    pub per_block: u64,
    pub status: u64,
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
pub const KERNELS: Module = unsafe { Module::new(FATBINS, HOST) };

/// The path that kernel.cu instantiates the verbs for.
pub const PATH: &str = "push/inband";
pub const BLOCKS: u32 = 4;
const THREADS: u32 = 128;
/// 12,000 bytes a piece: four in-band slots, the last not full.
pub const PER_BLOCK: usize = 3000;
pub const FLOATS: usize = BLOCKS as usize * PER_BLOCK;
/// Bytes of all pieces; behind them the consumer's region has a signal of 8 bytes for each.
pub const Y_BYTES: usize = FLOATS * 4;
pub const ARRIVED_BYTES: usize = Y_BYTES + BLOCKS as usize * 8;
/// Statuses and sums of one kernel: a word for each block, and behind 1024 bytes a double for each.
pub const RESULT_BYTES: usize = 2048;
const SUMS: usize = 1024;
const A: f32 = 3.0;

/// Waits for a stream's kernels. One that does not end in time, or fails, ends the process: it may still use memory
/// that a return would free.
pub fn until_idle(stream: &Stream, within: Duration) {
    if let Err(why) = stream.synchronize(within) {
        eprintln!("custom_kernel: {why}");
        std::process::exit(1);
    }
}

/// Blocks and threads of both kernels.
pub fn dims() -> Dims {
    Dims::new(BLOCKS, THREADS)
}

pub fn open(host: bool) -> Result<Arc<Gpu>, Box<dyn Error>> {
    let on_host = || Gpu::open(Executor::Host(HostOptions::default()));
    if host || FATBINS.is_empty() {
        return Ok(on_host()?);
    }
    Ok(Gpu::open(Executor::Cuda(0)).or_else(|_| on_host())?)
}

fn input() -> Vec<f32> {
    (0..FLOATS).map(|i| (i % 1000) as f32).collect()
}

/// The producer's memory, and its kernel's arguments.
pub struct Producer {
    pub x: Memory,
    pub y: Memory,
    result: Memory,
}

impl Producer {
    /// Memory of the GPU's, with the input in it.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, Box<dyn Error>> {
        let x = Memory::from(gpu.alloc(Y_BYTES)?);
        let y = Memory::from(gpu.alloc(Y_BYTES)?);
        let result = Memory::from(gpu.alloc_mapped(RESULT_BYTES, None)?);
        x.write(0, bytemuck::cast_slice(&input()))?;
        y.write(0, bytemuck::cast_slice(&vec![1f32; FLOATS]))?;
        Ok(Self { x, y, result })
    }

    pub fn args(&self, endpoint: &Endpoint) -> Result<ProducerArgs, Box<dyn Error>> {
        Ok(ProducerArgs {
            ep: endpoint.device()?,
            x: self.x.addr(),
            y: self.y.addr(),
            per_block: PER_BLOCK as u64,
            signal_offset: Y_BYTES as u64,
            status: self.result.addr(),
            a: A,
            reserved: 0,
        })
    }

    /// What the verbs returned; if the queue pair ended, why.
    pub fn check(&self, endpoint: &Endpoint) -> Result<(), Box<dyn Error>> {
        statuses("producer", &self.result, endpoint)
    }
}

/// The consumer's memory, and its kernel's arguments.
pub struct Consumer {
    /// Where pieces and signals arrive: host memory that the GPU has mapped, zero-filled.
    pub arrived: Memory,
    result: Memory,
}

impl Consumer {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, Box<dyn Error>> {
        let arrived = Memory::from(gpu.alloc_mapped(ARRIVED_BYTES, None)?);
        let result = Memory::from(gpu.alloc_mapped(RESULT_BYTES, None)?);
        Ok(Self { arrived, result })
    }

    pub fn args(&self, endpoint: &Endpoint) -> Result<ConsumerArgs, Box<dyn Error>> {
        Ok(ConsumerArgs {
            ep: endpoint.device()?,
            y: self.arrived.addr(),
            signals: self.arrived.addr() + Y_BYTES as u64,
            sums: self.result.addr() + SUMS as u64,
            per_block: PER_BLOCK as u64,
            status: self.result.addr(),
        })
    }

    /// What the verbs returned, and whether each block has the sum that it must have.
    pub fn check(&self, endpoint: &Endpoint) -> Result<(), Box<dyn Error>> {
        statuses("consumer", &self.result, endpoint)?;
        let mut raw = [0; RESULT_BYTES - SUMS];
        self.result.read(SUMS, &mut raw)?;
        for (block, piece) in input().chunks_exact(PER_BLOCK).enumerate() {
            let want: f64 = piece.iter().map(|x| f64::from(A * x + 1.0)).sum();
            let got = f64::from_ne_bytes(raw[block * 8..][..8].try_into()?);
            if got != want {
                return Err(format!("block {block}: the sum is {got}, but must be {want}").into());
            }
        }
        Ok(())
    }
}

fn statuses(who: &str, result: &Memory, endpoint: &Endpoint) -> Result<(), Box<dyn Error>> {
    let mut raw = [0; SUMS];
    result.read(0, &mut raw)?;
    for (block, word) in raw.chunks_exact(4).take(BLOCKS as usize).enumerate() {
        if let Err(code) = Code::check(u32::from_ne_bytes(word.try_into()?)) {
            let why = endpoint.failure().map(|e| format!(": {e}")).unwrap_or_default();
            return Err(format!("{who}'s block {block}: {code}{why}").into());
        }
    }
    Ok(())
}
