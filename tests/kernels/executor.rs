//! The executors run the same kernels: on the host always, on CUDA where a GPU and nvcc were there.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bellpush::gpu::{
    Dims, Executor, Gpu, GpuError, HostKernel, HostOptions, Kernel, KernelArgs, Lanes, Mapped,
    Module, Stream,
};
use bellpush::mem::{Dma, HostMem, MemError};
use bytemuck::{Pod, Zeroable};

#[cfg(feature = "cuda")]
mod cuda;
mod marks;

const LIMIT: Duration = Duration::from_secs(20);

macro_rules! args {
    ($($name:ident { $($field:ident),* })*) => {$(
        #[derive(Clone, Copy, Pod, Zeroable)]
        #[repr(C)]
        struct $name {
            $($field: u64),*
        }
        // SAFETY: selftest.cu's struct of the same name.
        unsafe impl KernelArgs for $name {}
    )*};
}
args! {
    CopyArgs { out, input, words, add }
    ReduceArgs { out, rounds }
    FlagArgs { flag, result, timeout_ns }
    StuckArgs { flag }
    YieldArgs { yields }
}

/// With CUDA, a test that allocates waits for the spinning kernel of another: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every executor that this machine has.
fn executors() -> Vec<(&'static str, Arc<Gpu>)> {
    let host = |options| Gpu::open(Executor::Host(options)).unwrap();
    let mut all = vec![
        ("fibres", host(HostOptions::default())),
        ("fibres on 3 threads", host(HostOptions { workers: 3, ..HostOptions::default() })),
        ("threads", host(HostOptions::threads())),
    ];
    match Gpu::open(Executor::Cuda(0)) {
        Ok(gpu) => all.push(("cuda", gpu)),
        Err(e) => eprintln!("without CUDA: {e}"),
    }
    all
}

fn kernel(gpu: &Arc<Gpu>, name: &str) -> Kernel {
    gpu.load(&Module::builtin()).unwrap().kernel(name).unwrap()
}

/// Queues a kernel of selftest.cu.
fn launch<A: KernelArgs>(
    stream: &Stream,
    kernel: &Kernel,
    dims: Dims,
    args: &A,
) -> Result<(), GpuError> {
    // SAFETY: the tests keep what an argument names until the stream is idle, or dropped: a stream of fibres
    // ends them, and the others' memory a test keeps by itself.
    unsafe { stream.launch(kernel, dims, args) }
}

fn u64s(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap())).collect()
}

#[test]
fn work_of_a_stream_runs_in_order() {
    let _alone = alone();
    for (name, gpu) in executors() {
        let copy = kernel(&gpu, "bp_selftest_copy");
        let stream = gpu.stream().unwrap();
        let words = 1000u64;
        let n = words as usize * 8;
        let host = gpu.alloc_mapped(n + 4096, None).unwrap();
        let (a, b) = (gpu.alloc(n).unwrap(), gpu.alloc(n).unwrap());
        let mem = host.host();
        for i in 0..words {
            mem.store_u64(i as usize * 8, i * i, Ordering::Relaxed).unwrap();
        }
        let (start, end) = (gpu.event().unwrap(), gpu.event().unwrap());
        stream.copy_to_device(&host, 0, &a, 0, n).unwrap();
        stream.record(&start).unwrap();
        let dims = Dims::new(3, 64);
        for (out, input) in [(&b, &a), (&a, &b)] {
            let args = CopyArgs { out: out.addr(), input: input.addr(), words, add: 5 };
            launch(&stream, &copy, dims, &args).unwrap();
        }
        stream.record(&end).unwrap();
        stream.copy_to_host(&a, 8, &host, 8, n - 8).unwrap();
        stream.write_u64(&host, n, 77).unwrap();
        stream.write_u32(&host, n + 8, 78).unwrap();
        end.wait(LIMIT).unwrap();
        stream.synchronize(LIMIT).unwrap();
        assert_eq!(mem.load_u64(n, Ordering::Acquire).unwrap(), 77, "{name}");
        assert_eq!(mem.load_u32(n + 8, Ordering::Acquire).unwrap(), 78, "{name}");
        for i in 1..words {
            let got = mem.load_u64(i as usize * 8, Ordering::Relaxed).unwrap();
            assert_eq!(got, i * i + 10, "{name}");
        }
        assert!(stream.elapsed_ns(&start, &end).unwrap() > 0, "{name}");
        assert!(start.query().unwrap() && stream.query().unwrap(), "{name}");
    }
}

#[test]
fn collectives_agree() {
    let _alone = alone();
    for (name, gpu) in executors() {
        let reduce = kernel(&gpu, "bp_selftest_reduce");
        let stream = gpu.stream().unwrap();
        let out = gpu.alloc(4096).unwrap();
        for (grid, block) in [(1u64, 1u64), (1, 32), (5, 33), (2, 256), (1, 31)] {
            let args = ReduceArgs { out: out.addr(), rounds: 20 };
            let dims = Dims::new(grid as u32, block as u32).shared(256);
            launch(&stream, &reduce, dims, &args).unwrap();
            stream.synchronize(LIMIT).unwrap();
            let mut bytes = vec![0; grid as usize * 24];
            out.copy_out(0, &mut bytes).unwrap();
            let odd = if block >= 32 { 0xaaaa_aaaa } else { 0xaaaa_aaaa & ((1u64 << block) - 1) };
            // The thread that reports is in warp 0, so its ballot is warp 0's.
            for (i, got) in u64s(&bytes).chunks(3).enumerate() {
                let want = [block * (block - 1) / 2, odd, 0];
                assert_eq!(got, want, "{name}, {grid} x {block}, block {i}");
            }
        }
    }
}

fn wait_for_flag(gpu: &Arc<Gpu>, timeout: Duration, dims: Dims) -> (Stream, Mapped) {
    let stream = gpu.stream().unwrap();
    let host = gpu.alloc_mapped(4096, None).unwrap();
    run_to_flag(&stream, &host, timeout, dims);
    (stream, host)
}

/// Queues a kernel that waits for a flag, and returns when it runs.
fn run_to_flag(stream: &Stream, host: &Mapped, timeout: Duration, dims: Dims) {
    let flag = kernel(stream.gpu(), "bp_selftest_flag");
    let args = FlagArgs {
        flag: host.addr(),
        result: host.addr() + 64,
        timeout_ns: timeout.as_nanos() as u64,
    };
    launch(stream, &flag, dims, &args).unwrap();
    let since = Instant::now();
    while host.host().load_u32(64, Ordering::Acquire).unwrap() == 0 {
        assert!(since.elapsed() < LIMIT);
        std::thread::yield_now();
    }
}

#[test]
fn a_running_kernel_sees_the_host_and_disturbs_nobody() {
    let _alone = alone();
    for (name, gpu) in executors() {
        let mem = gpu.alloc(1 << 20).unwrap();
        let other = gpu.stream().unwrap();
        let plain = gpu.alloc_mapped(4096, None).unwrap();
        let free = bellpush::mem::HostMem::alloc(1 << 20).unwrap();
        let (stream, host) = wait_for_flag(&gpu, LIMIT, Dims::new(2, 40));
        assert!(matches!(
            stream.synchronize(Duration::from_millis(20)),
            Err(GpuError::Timeout { .. })
        ));
        // Copies of every kind, from this and other threads, while the kernel spins.
        std::thread::scope(|scope| {
            for t in 0..4usize {
                let mem = &mem;
                scope.spawn(move || {
                    let at = t * 4096;
                    mem.copy_in(at, &[t as u8 + 1; 4096]).unwrap();
                    let mut back = [0; 4096];
                    mem.copy_out(at, &mut back).unwrap();
                    assert_eq!(back, [t as u8 + 1; 4096]);
                    for i in 0..10 {
                        assert!(mem.fetch_add(1 << 19, 1).unwrap() < 40, "{i}");
                    }
                });
            }
        });
        let count = mem.compare_swap(1 << 19, 40, 7).unwrap();
        assert_eq!(count, 40, "{name}");
        mem.read_to_host(4096, &free, 0, 8192).unwrap(); // not registered
        mem.write_from_host(65536, &free, 0, 8192).unwrap();
        mem.read_to_host(65536, plain.host(), 8, 16).unwrap(); // registered
        assert_eq!(plain.host().load_u32(8, Ordering::Relaxed).unwrap(), 0x0202_0202);
        assert!(mem.read_to_host(0, &free, (1 << 20) - 4, 8).is_err());
        assert!(mem.copy_out((1 << 20) - 4, &mut [0; 8]).is_err());
        assert!(mem.fetch_add(3, 1).is_err());
        // Another stream releases it.
        other.write_u32(&host, 0, 1).unwrap();
        other.synchronize(LIMIT).unwrap();
        stream.synchronize(LIMIT).unwrap();
        assert_eq!(host.host().load_u32(64, Ordering::Acquire).unwrap(), 2, "{name}");
    }
}

#[test]
fn a_device_side_wait_ends_by_itself() {
    let _alone = alone();
    for (name, gpu) in executors() {
        let (stream, host) = wait_for_flag(&gpu, Duration::from_millis(30), Dims::new(1, 32));
        stream.synchronize(LIMIT).unwrap();
        assert_eq!(host.host().load_u32(64, Ordering::Acquire).unwrap(), 3, "{name}");
    }
}

#[test]
fn what_cannot_be_launched_is_refused() {
    let _alone = alone();
    for (name, gpu) in executors() {
        let copy = kernel(&gpu, "bp_selftest_copy");
        let stream = gpu.stream().unwrap();
        let yields = YieldArgs { yields: 0 };
        let refused = |dims| launch(&stream, &copy, dims, &CopyArgs::zeroed()).unwrap_err();
        assert!(matches!(refused(Dims::new(0, 32)), GpuError::EmptyLaunch { .. }));
        assert!(matches!(refused(Dims::new(1, 1025)), GpuError::BlockTooLarge { .. }));
        assert!(matches!(
            refused(Dims::new(1, 32).shared(1 << 20)),
            GpuError::SharedTooLarge { .. }
        ));
        let wrong_args = launch(&stream, &copy, Dims::new(1, 1), &yields).unwrap_err();
        assert!(matches!(wrong_args, GpuError::ArgsSize { takes: 32, given: 8, .. }), "{name}");
        if gpu.is_host() {
            let lanes = refused(Dims::new(1024, 1024));
            assert!(matches!(lanes, GpuError::TooManyLanes { lanes: 1_048_576, .. }));
        }
        let loaded = gpu.load(&Module::builtin()).unwrap();
        let missing = loaded.kernel("bp_no_such").err().unwrap().to_string();
        assert!(
            missing.contains("bp_no_such") && missing.contains("bp_selftest_copy"),
            "{missing}"
        );
        let elsewhere = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let other = kernel(&elsewhere, "bp_selftest_copy");
        let error = launch(&stream, &other, Dims::new(1, 1), &CopyArgs::zeroed()).unwrap_err();
        assert!(matches!(error, GpuError::OtherGpu { .. }), "{name}");
        let unrecorded = gpu.event().unwrap();
        assert!(stream.elapsed_ns(&unrecorded, &unrecorded).is_err(), "{name}");
    }
}

#[test]
fn lanes_that_do_not_meet_are_a_fault_and_not_a_hang() {
    let _alone = alone();
    let options =
        HostOptions { collective_timeout: Duration::from_millis(50), ..HostOptions::default() };
    for workers in [1, 2] {
        let gpu = Gpu::open(Executor::Host(HostOptions { workers, ..options.clone() })).unwrap();
        let stuck = kernel(&gpu, "bp_selftest_stuck");
        let stream = gpu.stream().unwrap();
        let host = gpu.alloc_mapped(8, None).unwrap();
        let (before, behind) = (gpu.event().unwrap(), gpu.event().unwrap());
        stream.record(&before).unwrap();
        launch(&stream, &stuck, Dims::new(2, 32), &StuckArgs { flag: host.addr() }).unwrap();
        stream.record(&behind).unwrap();
        let fault = stream.synchronize(LIMIT).unwrap_err();
        assert!(matches!(&fault, GpuError::Fault { kernel, .. } if kernel == "bp_selftest_stuck"));
        for (event, after) in [(&before, false), (&behind, true)] {
            let ended = event.wait(LIMIT).and_then(|()| stream.elapsed_ns(&before, event));
            assert_eq!(ended.is_err(), after, "an event says what its work ended with: {ended:?}");
        }
        assert!(stream.write_u32(&host, 0, 1).is_err(), "the stream stays failed");
        drop(stream);
        // The stacks of the lanes that were given up serve the next launch.
        let stream = gpu.stream().unwrap();
        host.host().store_u32(0, 1, Ordering::Release).unwrap();
        launch(&stream, &stuck, Dims::new(2, 32), &StuckArgs { flag: host.addr() }).unwrap();
        stream.synchronize(LIMIT).unwrap();
    }
}

#[test]
fn dropping_a_busy_stream_ends_its_lanes() {
    let _alone = alone();
    for lanes in [1, 7] {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let since = Instant::now();
        let (stream, host) = wait_for_flag(&gpu, Duration::from_secs(3600), Dims::new(1, lanes));
        drop(stream);
        drop(host);
        assert!(since.elapsed() < LIMIT);
    }
}

/// Spins without a yield until the word at its argument's address is not 0: a user's kernel that does not keep
/// to the rules.
unsafe extern "C" fn never_yields(args: *const c_void) -> usize {
    if !args.is_null() {
        // SAFETY: the argument is a StuckArgs, whose word the test keeps.
        let flag = unsafe { AtomicU32::from_ptr((*args.cast::<StuckArgs>()).flag as *mut u32) };
        while flag.load(Ordering::Acquire) == 0 {
            std::hint::spin_loop();
        }
    }
    size_of::<StuckArgs>()
}

/// Lanes that cannot be ended run on when their stream is dropped, and what it was given stays.
#[test]
fn memory_outlives_a_stream_whose_kernel_cannot_be_ended() {
    let _alone = alone();
    let table: &[(&str, HostKernel)] = &[("never_yields", never_yields)];
    // SAFETY: the function does as BP_KERNEL's do.
    let own = unsafe { Module::new(&[], Vec::leak(table.to_vec())) };
    let cases = [
        (HostOptions::default(), own, "never_yields"),
        (HostOptions::threads(), Module::builtin(), "bp_selftest_stuck"),
    ];
    std::thread::scope(|scope| {
        for (options, module, name) in cases {
            scope.spawn(move || {
                let gpu = Gpu::open(Executor::Host(options)).unwrap();
                let kernel = gpu.load(&module).unwrap().kernel(name).unwrap();
                let stream = gpu.stream().unwrap();
                let (host, device) =
                    (gpu.alloc_mapped(4096, None).unwrap(), gpu.alloc(4096).unwrap());
                let args = StuckArgs { flag: host.addr() };
                stream.copy_to_device(&host, 0, &device, 0, 64).unwrap(); // the stream keeps both
                launch(&stream, &kernel, Dims::new(1, 2), &args).unwrap();
                let given = Arc::downgrade(host.host());
                let given_device = Arc::downgrade(&device);
                drop((host, device));
                let since = Instant::now();
                drop(stream);
                assert!(since.elapsed() < LIMIT, "{name}");
                let memory = given.upgrade().unwrap_or_else(|| panic!("{name}: freed below it"));
                assert!(given_device.upgrade().is_some(), "{name}");
                memory.store_u32(0, 1, Ordering::Release).unwrap(); // and now it ends
            });
        }
    });
}

/// The same of a stream that was told to end before it is dropped: by then its work counts as failed.
#[test]
fn memory_outlives_a_stream_that_could_not_be_ended() {
    let _alone = alone();
    let gpu = Gpu::open(Executor::Host(HostOptions::threads())).unwrap();
    let stream = gpu.stream().unwrap();
    let (host, device) = (gpu.alloc_mapped(4096, None).unwrap(), gpu.alloc(4096).unwrap());
    stream.copy_to_device(&host, 0, &device, 0, 64).unwrap(); // the stream keeps both
    run_to_flag(&stream, &host, Duration::from_secs(3600), Dims::new(1, 2));
    assert!(!stream.end(), "lanes that are threads cannot be ended");
    assert!(matches!(stream.synchronize(Duration::ZERO), Err(GpuError::Fault { .. })));
    let given = Arc::downgrade(host.host());
    drop((host, device, stream));
    let memory = given.upgrade().expect("freed below the lanes that use it");
    memory.store_u32(0, 1, Ordering::Release).unwrap(); // and now they end
}

#[test]
fn a_stream_that_was_ended_runs_nothing_more() {
    let _alone = alone();
    let (stream, host) = wait_for_flag(
        &Gpu::open(Executor::Host(HostOptions::default())).unwrap(),
        Duration::from_secs(3600),
        Dims::new(1, 7),
    );
    let given = Arc::downgrade(host.host());
    assert!(stream.end(), "fibres end at their next yield");
    let refused = stream.write_u32(&host, 0, 1).unwrap_err();
    assert!(matches!(refused, GpuError::Fault { .. }), "{refused}");
    assert!(stream.synchronize(LIMIT).is_err());
    drop((stream, host));
    assert!(given.upgrade().is_none(), "nothing runs that needs it");
}

#[test]
fn memory_that_the_processor_does_not_reach_is_not_mapped() {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let far = HostMem::far(gpu.alloc(4096).unwrap()).unwrap();
    let refused = gpu.register(&far).map(|_| ()).unwrap_err();
    assert!(matches!(refused, GpuError::Mem(MemError::Far)), "{refused}");
}

#[test]
fn a_gpu_says_what_it_is_or_what_is_missing() {
    let _alone = alone();
    let host = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    assert_eq!(host.describe().to_string(), "host");
    assert!(host.is_host() && host.ordinal().is_none());
    let absent = Gpu::open(Executor::Cuda(4096)).unwrap_err().to_string();
    assert!(!absent.is_empty() && !absent.contains('\n'), "{absent}");
    if let Ok(gpu) = Gpu::open(Executor::Cuda(0)) {
        assert!(Gpu::cuda_count().unwrap() > 0);
        let about = gpu.describe();
        assert!(about.to_string().starts_with("cuda:"), "{about}");
        assert!(about.pci.as_deref().is_some_and(|pci| pci.contains(':')), "{about:?}");
    }
}

/// Processor time of this process: unlike the wall clock, much the same on a busy machine.
fn processor_ns() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut t) };
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}

/// Not an assertion: `cargo test --release --test kernels executor:: -- --ignored --nocapture`.
#[test]
#[ignore = "prints measurements, in release: ./x test --long runs it"]
fn what_a_launch_and_a_yield_cost() {
    let _alone = alone();
    for lanes in [Lanes::Fibres, Lanes::Threads] {
        let options = HostOptions { lanes, ..HostOptions::threads() };
        let gpu = Gpu::open(Executor::Host(options)).unwrap();
        let kernel = kernel(&gpu, "bp_selftest_yield");
        let stream = gpu.stream().unwrap();
        for (grid, block) in [(1, 1), (1, 32), (1, 256), (8, 128)] {
            let dims = Dims::new(grid, block);
            let time = |launches: u32, yields: u64| {
                let (since, used) = (Instant::now(), processor_ns());
                for _ in 0..launches {
                    launch(&stream, &kernel, dims, &YieldArgs { yields }).unwrap();
                    stream.synchronize(LIMIT).unwrap();
                }
                let n = f64::from(launches);
                (since.elapsed().as_nanos() as f64 / n, (processor_ns() - used) / n)
            };
            time(10, 0);
            let launch = time(200, 0);
            let yields =
                2_000_000 / u64::from(grid * block) / if lanes == Lanes::Fibres { 1 } else { 50 };
            let per_yield = time(1, yields).1 / (yields * dims.lanes()) as f64;
            println!(
                "{lanes:?} {grid} x {block}: launch and synchronise {:.0} ns \
                 ({:.0} of processor), {per_yield:.1} ns of processor a yield of a lane",
                launch.0, launch.1
            );
        }
    }
}
