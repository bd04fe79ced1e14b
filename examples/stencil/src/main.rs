//! A 1D heat equation on two processes. `cargo run -p stencil left [host]` and `cargo run -p stencil right [host]`, in two
//! terminals, each have half of 4,096 points; a kernel of each puts the point at the cut into the other's region at every
//! step (`kernel.cu`), on the first CUDA GPU, or on the host executor where there is none or `host` is given. Exit status
//! 1 when a point is not what one process computes.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bellpush::abi::wire::{Code, DeviceEndpoint};
use bellpush::collective::{Bootstrap, Job};
use bellpush::gpu::{Dims, Executor, Gpu, GpuError, HostKernel, HostOptions, KernelArgs, Module};
use bellpush::nic::Nic;
use bellpush::nic::soft::link::UdpLink;
use bellpush::nic::soft::{SoftConfig, SoftNic};
use bellpush::transport::{Endpoint, Memory, Options};
use bytemuck::{Pod, Zeroable};

/// `struct heat_args` of kernel.cu.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct HeatArgs {
    ep: DeviceEndpoint,
    u: [u64; 2],
    ghost: u64,
    signal: u64,
    status: u64,
    n: u64,
    steps: u64,
    right: u64,
    c: f64,
}
// SAFETY: the layout is the C struct's.
unsafe impl KernelArgs for HeatArgs {}

#[cfg(kernel_fatbin)]
const FATBINS: &[&[u8]] = &[include_bytes!(concat!(env!("OUT_DIR"), "/kernel.fatbin"))];
#[cfg(not(kernel_fatbin))]
const FATBINS: &[&[u8]] = &[];
const HOST: &[(&str, HostKernel)] = bellpush::host_kernels!(heat);
// SAFETY: build.rs made the image, and kernel.cu defines the kernel with BP_KERNEL.
const KERNELS: Module = unsafe { Module::new(FATBINS, HOST) };

/// The path that kernel.cu instantiates the verbs for.
const PATH: &str = "push/inband";
/// Where the left half waits for the right one, and for how long.
const MEETING: &str = "127.0.0.1:29412";
const COMES: Duration = Duration::from_secs(60);
const POINTS: usize = 4096;
const HALF: usize = POINTS / 2;
const STEPS: usize = 100;
const C: f64 = 0.25;
/// The region: two ghosts, and behind them the signal.
const SIGNAL: usize = 16;
const REGION_BYTES: usize = SIGNAL + 8;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let told = match words[..] {
        ["left"] => half(0, false),
        ["left", "host"] => half(0, true),
        ["right"] => half(1, false),
        ["right", "host"] => half(1, true),
        _ => {
            eprintln!("stencil: it takes left|right [host]");
            return ExitCode::from(2);
        }
    };
    match told {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("stencil: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The points before the first step.
fn start() -> Vec<f64> {
    (0..POINTS).map(|i| (i * 7919 % 1000) as f64 / 3.0).collect()
}

/// All points behind the last step, as one process computes them.
fn serial() -> Vec<f64> {
    (0..STEPS).fold(start(), |u, _| {
        let at = |i: usize| u.get(i).copied().unwrap_or(0.0); // beyond both ends it is cold
        let next = |i: usize| u[i] + C * ((at(i.wrapping_sub(1)) - 2.0 * u[i]) + at(i + 1));
        (0..POINTS).map(next).collect()
    })
}

/// One half of the points, by rank: 0 has the left one.
fn half(rank: usize, on_host: bool) -> Result<String, Box<dyn Error>> {
    let host = || Gpu::open(Executor::Host(HostOptions::default()));
    let gpu = if on_host { host() } else { Gpu::open(Executor::Cuda(0)).or_else(|_| host()) }?;

    // 1. Memory, before any kernel runs: the points of even and of odd steps, and the region, which the peer's puts write.
    let (u, v) = (Memory::from(gpu.alloc(HALF * 8)?), Memory::from(gpu.alloc(HALF * 8)?));
    let region = Memory::from(gpu.alloc_mapped(REGION_BYTES, None)?);
    let status = Memory::from(gpu.alloc_mapped(4, None)?);
    u.write(0, bytemuck::cast_slice(&start()[rank * HALF..][..HALF]))?;
    // The first step's ghost is the host's to write: the peer's point at the cut.
    region.write(0, &start()[if rank == 0 { HALF } else { HALF - 1 }].to_ne_bytes())?;

    // 2. The other process, a NIC, which here is software on a UDP port, and an endpoint that is connected with the peer's.
    let job = Job::of_two(rank as u32, MEETING, "stencil", COMES, COMES)?;
    let mut meeting = Bootstrap::join(&job)?;
    let link = Box::new(UdpLink::open_free()?);
    let nic: Arc<dyn Nic> = SoftNic::open_on(SoftConfig::default(), link)?;
    let mut endpoint =
        Endpoint::new(&gpu, &nic, PATH.parse()?, region.clone(), Options::default())?;
    let all = meeting.all_gather(&serde_json::to_vec(&endpoint.address())?)?;
    endpoint.connect(serde_json::from_slice(&all[1 - rank])?)?;

    // 3. The kernel: all steps, each of which waits for the peer's. What fails from here on the peer is told.
    let args = HeatArgs {
        ep: endpoint.device()?,
        u: [u.addr(), v.addr()],
        ghost: region.addr(),
        signal: region.addr() + SIGNAL as u64,
        status: status.addr(),
        n: HALF as u64,
        steps: STEPS as u64,
        right: rank as u64,
        c: C,
    };
    let points = if STEPS.is_multiple_of(2) { &u } else { &v };
    let ended = run(&gpu, &args).and_then(|()| check(&endpoint, &status, points, rank));
    if let Err(why) = ended {
        meeting.fail(&why.to_string());
        if why.is::<Late>() {
            // Its kernel may still use the memory, which a return would free.
            eprintln!("stencil: {why}");
            std::process::exit(1);
        }
        return Err(why);
    }
    meeting.all_gather(b"all is well")?; // the peer may still wait for this process's acknowledgements
    let side = ["left", "right"][rank];
    Ok(format!("{side}: {HALF} points right after {STEPS} steps on {}", gpu.describe()))
}

/// A kernel that has not ended in time.
#[derive(Debug)]
struct Late(GpuError);

impl std::fmt::Display for Late {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the kernel has not ended: {}", self.0)
    }
}

impl Error for Late {}

fn run(gpu: &Arc<Gpu>, args: &HeatArgs) -> Result<(), Box<dyn Error>> {
    let kernel = gpu.load(&KERNELS)?.kernel("heat")?;
    let stream = gpu.stream()?;
    // SAFETY: the arguments name the caller's memory, which lives until the stream was found idle; where it was not, the
    // caller ends the process.
    unsafe { stream.launch(&kernel, Dims::new(1, 128), args)? };
    stream.synchronize(COMES).map_err(|late| Late(late).into())
}

fn check(
    endpoint: &Endpoint,
    status: &Memory,
    points: &Memory,
    rank: usize,
) -> Result<(), Box<dyn Error>> {
    let (mut word, mut found) = ([0; 4], vec![0f64; HALF]);
    status.read(0, &mut word)?;
    if let Err(code) = Code::check(u32::from_ne_bytes(word)) {
        let why = endpoint.failure().map_or_else(String::new, |why| format!(": {why}"));
        return Err(format!("{code}{why}").into());
    }
    points.read(0, bytemuck::cast_slice_mut(&mut found))?;
    let right = &serial()[rank * HALF..][..HALF];
    // To the bit: products with 2 and a quarter are exact, so that a GPU that fuses them with a sum rounds as often.
    match (0..HALF).find(|&i| found[i].to_bits() != right[i].to_bits()) {
        Some(i) => Err(format!("point {i} is {}, not {}", found[i], right[i]).into()),
        None => Ok(()),
    }
}
