//! What the tests of endpoints and device verbs share: a host executor, a software NIC, pairs of
//! endpoints, and launches of our verb kernels with statuses.

#![allow(dead_code, reason = "each test program uses its part")]

use std::sync::Arc;
use std::time::Duration;

use crate::nics::{self, Fabric, Silent};
use bellpush::abi::KernelArgs;
use bellpush::abi::entry::{OpArgs, Scope, Verb};
use bellpush::abi::wire::tag;
use bellpush::gpu::{Dims, Executor, Gpu, HostOptions, Loaded, Module, Stream};
use bellpush::gpu_engine::EngineOptions;
use bellpush::nic::soft::offload::Offload;
use bellpush::nic::soft::{Engine, InProcess, SoftConfig, SoftNic};
use bellpush::nic::{LineFormat, Nic, NicError, Order, open_verbs};
use bellpush::transport::{Endpoint, Error, Local, Memory, Options, Path, Put, Remote, Signal};

/// Statuses as a kernel writes them.
pub const OK: u32 = 0;
pub const TIMEOUT: u32 = 1;
pub const CQE_ERROR: u32 = 2;
pub const DEAD: u32 = 3;
pub const INVALID: u32 = 4;
pub const PENDING: u32 = 5;
/// A status that no kernel wrote.
pub const UNWRITTEN: u32 = 0xa5a5_a5a5;

pub const DEFER_RING: u32 = 1;
pub const UNSIGNALLED: u32 = 2;

pub const LINES: [LineFormat; 3] = [LineFormat::L12S4, LineFormat::L14S2, LineFormat::L60S4];

/// Paths and their kernels in `kernels/entry/extra.cu`, of one caller, a block.
pub const EXTRA_ALONE: [(&str, &str); 5] = [
    ("push/kernel", "bp_extra_push_kernel"),
    ("push/blueflame", "bp_extra_push_blueflame"),
    ("push/inband", "bp_extra_push_inband_12_4"),
    ("pull/kernel", "bp_extra_pull_kernel"),
    ("staged/kernel", "bp_extra_push_kernel"),
];
/// Those of many callers.
pub const EXTRA_SHARED: [(&str, &str); 3] = [
    ("push/kernel", "bp_extra_shared_push_kernel"),
    ("pull/kernel", "bp_extra_shared_pull_kernel"),
    ("push/inband", "bp_extra_shared_push_inband_12_4"),
];

/// Steps an engine long enough for all that is posted.
pub fn step(engine: &mut Engine, now: &mut u64) {
    for _ in 0..2000 {
        *now += 1000;
        engine.step(*now);
    }
}

pub struct TestBed {
    pub gpu: Arc<Gpu>,
    pub nic: Arc<dyn Nic>,
    pub stream: Stream,
    pub kernels: Loaded,
    _silent: Silent,
}

/// Two connected endpoints: `a` sends from `src`, `b`'s region is `dst`.
pub struct Pair {
    pub a: Endpoint,
    pub b: Endpoint,
    pub src: Memory,
    pub dst: Memory,
}

pub fn path(name: &str) -> Path {
    name.parse().expect("a path")
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let mut all = Vec::with_capacity(bytes + 8);
    while all.len() < bytes {
        all.extend_from_slice(&next().to_le_bytes());
    }
    all.truncate(bytes);
    all
}

impl TestBed {
    pub fn new(options: HostOptions, nic: Arc<dyn Nic>) -> Self {
        // BELLPUSH_TEST_GPU=N: the same tests on a CUDA GPU, where the options mean nothing.
        let executor = match std::env::var("BELLPUSH_TEST_GPU") {
            Ok(n) => Executor::Cuda(n.parse().expect("BELLPUSH_TEST_GPU is a number")),
            Err(_) => Executor::Host(options),
        };
        let gpu = Gpu::open(executor).expect("the executor");
        let stream = gpu.stream().expect("a stream");
        let kernels = gpu.load(&Module::builtin()).expect("our kernels");
        let silent = Silent::of([&nic]);
        Self { gpu, nic, stream, kernels, _silent: silent }
    }

    /// Lanes as fibres, and a NIC with one engine on a thread.
    pub fn fibres() -> Self {
        Self::new(HostOptions::default(), running_nic())
    }

    /// Lanes as threads.
    pub fn threads() -> Self {
        Self::new(HostOptions::threads(), running_nic())
    }

    /// A NIC that moves only when it is stepped.
    pub fn manual() -> (Self, Engine) {
        let (offload, adversary) = (offload(Some(2)), nics::adversary());
        let config = SoftConfig { offload, adversary, ..SoftConfig::new(&InProcess::new()) };
        let (nic, mut engines) = SoftNic::manual(&config).expect("a NIC");
        (Self::new(HostOptions::default(), nics::watched(nic, adversary)), engines.remove(0))
    }

    pub fn memory(&self, bytes: usize) -> Memory {
        self.gpu.alloc_mapped(bytes, None).expect("memory").into()
    }

    pub fn pair(&self, path: Path, bytes: usize, options: Options) -> Pair {
        let (src, dst) = (self.memory(bytes), self.memory(bytes));
        let memory = (src.clone(), dst.clone());
        let (a, b) = Endpoint::pair(&self.gpu, &self.nic, path, memory, options)
            .unwrap_or_else(|e| panic!("{path}: {e}"));
        Pair { a, b, src, dst }
    }

    /// Whether the NIC can take a path: the software NIC takes all of them.
    pub fn takes(&self, path: Path) -> bool {
        if self.nic.order() == Order::Later {
            return true;
        }
        let made = Endpoint::new(&self.gpu, &self.nic, path, self.memory(64), Options::default());
        match made {
            Ok(_) => true,
            Err(Error::Unsupported { .. } | Error::Nic(NicError::Unsupported { .. })) => false,
            Err(other) => panic!("{path}: {other}"),
        }
    }

    /// Every path that the NIC can take.
    pub fn paths(&self) -> impl Iterator<Item = Path> {
        Path::ALL.into_iter().filter(|&path| self.takes(path))
    }

    /// Queues a verb's kernel of one warp on a stream, and does not wait for it. The endpoint in `op`, and the
    /// memory that it names, must live until the stream is idle or dropped.
    pub fn queue_on<A: KernelArgs>(&self, stream: &Stream, kernel: &str, op: &A) {
        self.queue_block_on(stream, kernel, 32, op);
    }

    /// The same of a block of so many threads.
    pub fn queue_block_on<A: KernelArgs>(
        &self,
        stream: &Stream,
        kernel: &str,
        threads: u32,
        op: &A,
    ) {
        let kernel = self.kernels.kernel(kernel).expect("a verb's kernel");
        // SAFETY: as the caller says; all tests keep their endpoints longer than their streams.
        let launched = unsafe { stream.launch(&kernel, Dims::new(1, threads), op) };
        launched.expect("a launch");
    }

    /// Launches a kernel of ours, and waits for it. What its argument names lives until then.
    pub fn run(&self, kernel: &str, (grid, block): (u32, u32), args: &impl KernelArgs) {
        let kernel = self.kernels.kernel(kernel).expect("a kernel of ours");
        // SAFETY: the memory lives until the stream is idle, and one that never is ends the test.
        let launched = unsafe { self.stream.launch(&kernel, Dims::new(grid, block), args) };
        launched.expect("a launch");
        self.stream.synchronize(Duration::from_secs(30)).expect("the kernel ends");
    }

    /// Launches a verb kernel and returns what its callers wrote.
    pub fn launch(&self, kernel: &str, dims: (u32, u32), mut op: OpArgs) -> Vec<u32> {
        // A NIC that needs the doorbell record first gets the kernels that see to it. (Those for
        // sharing are built for the software NIC's order only, which a software device has as well.)
        let strict = match self.nic.order() {
            Order::Strict if !kernel.contains("shared") && !kernel.ends_with("strict") => "_strict",
            _ => "",
        };
        if kernel.contains("shared") {
            op.ep.tag &= !tag::STRICT;
        }
        self.launch_any(&format!("{kernel}{strict}"), dims, |status| OpArgs { status, ..op })
    }

    /// Launches a kernel whose arguments are made with the address of its callers' statuses, which it returns.
    pub fn launch_any<A: KernelArgs>(
        &self,
        kernel: &str,
        (grid, block): (u32, u32),
        args: impl FnOnce(u64) -> A,
    ) -> Vec<u32> {
        let callers = (grid * block) as usize;
        let statuses = self.memory(callers * 4);
        let unwritten: Vec<u8> = UNWRITTEN.to_ne_bytes().repeat(callers);
        statuses.write(0, &unwritten).expect("in range");
        let args = args(statuses.addr());
        self.run(kernel, (grid, block), &args);
        let raw = read(&statuses, 0, callers * 4);
        let words = raw.chunks_exact(4).map(|w| u32::from_ne_bytes(w.try_into().expect("four")));
        words.take_while(|&s| s != UNWRITTEN).collect()
    }
}

/// The software NIC; with BELLPUSH_TEST_NIC=NAME the same tests on a verbs device.
pub fn running_nic() -> Arc<dyn Nic> {
    match std::env::var("BELLPUSH_TEST_NIC") {
        Ok(name) => open_verbs(&name).unwrap_or_else(|e| panic!("{e}")),
        Err(_) => {
            let offload = offload(None);
            Fabric::new().open_with(|config| SoftConfig { offload, ..config })
        }
    }
}

/// Whether NICs get the engine of `kernels/engine/engine.cuh`. The program says so, in a constant of its root:
/// a suite that another program takes in then runs on that one's engine, whatever the two are called.
pub const ON_GPU_ENGINE: bool = match crate::ENGINE.as_bytes() {
    b"cpu" | b"adversary" | b"adversary by packets" => false,
    b"kernel" => true,
    _ => panic!("ENGINE is \"cpu\", \"kernel\", \"adversary\" or \"adversary by packets\""),
};
/// The engine of `kernels/engine/engine.cuh`, where the program wants it: on the host executor, or with
/// BELLPUSH_TEST_ENGINE=N on a CUDA GPU (beside BELLPUSH_TEST_GPU).
fn offload(rounds: Option<u32>) -> Option<Arc<Offload>> {
    println!("engine: {}", crate::ENGINE);
    if !ON_GPU_ENGINE {
        return None;
    }
    let cuda = |name| {
        let n: String = std::env::var(name).ok()?;
        Some(Gpu::open(Executor::Cuda(n.parse().expect("a device's number"))).expect("the GPU"))
    };
    let (gpu, peers, shape) = match cuda("BELLPUSH_TEST_ENGINE") {
        Some(gpu) => (gpu, cuda("BELLPUSH_TEST_GPU"), None),
        None => {
            let host = Gpu::open(Executor::Host(HostOptions::default())).expect("the executor");
            (host, None, Some((2, 1)))
        }
    };
    let usual = EngineOptions::new(&gpu);
    let (blocks, threads) = shape.unwrap_or((usual.blocks, usual.threads));
    let options = EngineOptions { blocks, threads, rounds, ..usual };
    let peers: Vec<_> = peers.into_iter().filter(|p| p.ordinal() != gpu.ordinal()).collect();
    Some(bellpush::gpu_engine::open(&gpu, &peers, options).expect("an engine"))
}

/// One call of a verb by every caller, from the region's start to the region's start.
pub fn op(pair: &Pair, verb: Verb, scope: Scope, bytes: u64) -> OpArgs {
    let mut op: OpArgs = bytemuck::Zeroable::zeroed();
    op.ep = pair.a.device().expect("a path that kernels post on");
    op.op = verb as u32;
    op.scope = scope as u32;
    op.count = 1;
    op.local = pair.src.addr();
    op.bytes = bytes;
    op
}

/// A message without a signal.
pub fn message(from: u64, to: u64, bytes: u64) -> Put {
    Put { from: Local(from), to: Remote(to), bytes, signal: None }
}

/// What adds to the peer's word behind a message.
pub fn signal(word: u64, add: u64) -> Option<Signal> {
    Some(Signal { word: Remote(word), add })
}

pub fn read(memory: &Memory, offset: usize, bytes: usize) -> Vec<u8> {
    let mut into = vec![0; bytes];
    memory.read(offset, &mut into).expect("in range");
    into
}

pub fn word(memory: &Memory, offset: usize) -> u64 {
    u64::from_ne_bytes(read(memory, offset, 8).try_into().expect("eight bytes"))
}

pub fn set_word(memory: &Memory, offset: usize, value: u64) {
    memory.write(offset, &value.to_ne_bytes()).expect("in range");
}

/// Says where two memories differ first instead of printing them.
#[track_caller]
pub fn assert_same(found: &[u8], wanted: &[u8], what: &str) {
    if let Some(at) = found.iter().zip(wanted).position(|(f, w)| f != w) {
        let (f, w) = (found[at], wanted[at]);
        let wrong = found.iter().zip(wanted).filter(|(f, w)| f != w).count();
        panic!("{what}: byte {at} is {f:#04x}, not {w:#04x} ({wrong} bytes differ)");
    }
    assert_eq!(found.len(), wanted.len(), "{what}");
}

/// The status with which a failed queue pair ended.
pub fn syndrome(failure: Option<Error>) -> Option<u8> {
    match failure? {
        Error::Completion { syndrome, .. } => Some(syndrome),
        other => panic!("{other}"),
    }
}
