//! What CUDA alone has: other libraries' contexts, streams and memory. Skipped where there is no GPU.

use std::mem::zeroed;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use bellpush::collective::{self, Communicator, Dtype, Op};
use bellpush::mem::HostMem;
use bellpush::nic::Nic;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::transport::{Endpoint, Local, Memory, Options, Put, Remote};
use cudarc::driver::sys::{self, CUresult};

use super::*;

fn cuda() -> Option<Arc<Gpu>> {
    Gpu::open(Executor::Cuda(0)).inspect_err(|e| eprintln!("skipped, without CUDA: {e}")).ok()
}

#[track_caller]
fn ok(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

fn current() -> sys::CUcontext {
    let mut current = null_mut();
    // SAFETY: writes one pointer.
    ok(unsafe { sys::cuCtxGetCurrent(&raw mut current) });
    current
}

/// The GPU's primary context, current in this thread while it lives.
struct Primary(sys::CUdevice);

impl Primary {
    fn enter() -> Self {
        let (mut device, mut ctx) = (0, null_mut());
        // SAFETY: each writes its result.
        unsafe {
            ok(sys::cuDeviceGet(&raw mut device, 0));
            ok(sys::cuDevicePrimaryCtxRetain(&raw mut ctx, device));
            ok(sys::cuCtxSetCurrent(ctx));
        }
        Self(device)
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // SAFETY: retained by `enter`.
        unsafe {
            sys::cuCtxSetCurrent(null_mut());
            sys::cuDevicePrimaryCtxRelease_v2(self.0);
        }
    }
}

#[test]
fn the_callers_context_stays_current() {
    let _alone = alone();
    let Some(gpu) = cuda() else { return };
    let none = |after: &str| assert!(current().is_null(), "another is current after {after}");
    none("opening");
    let other = Gpu::open(Executor::Cuda(0)).unwrap();
    none("opening again");
    drop(other);
    none("closing");
    let copy = kernel(&gpu, "bp_selftest_copy");
    let (stream, event) = (gpu.stream().unwrap(), gpu.event().unwrap());
    let (device, host) = (gpu.alloc(4096).unwrap(), gpu.alloc_mapped(4096, None).unwrap());
    none("allocating");
    let args = CopyArgs { out: device.addr(), input: device.addr(), words: 8, add: 1 };
    launch(&stream, &copy, Dims::new(1, 32), &args).unwrap();
    stream.copy_to_host(&device, 0, &host, 0, 64).unwrap();
    stream.record(&event).unwrap();
    stream.write_u64(&host, 128, 1).unwrap();
    stream.synchronize(LIMIT).unwrap();
    assert!(event.query().unwrap());
    device.copy_in(0, &[1; 64]).unwrap();
    none("work");
    let graph = stream.capture(|| launch(&stream, &copy, Dims::new(1, 32), &args)).unwrap();
    graph.launch().unwrap();
    stream.synchronize(LIMIT).unwrap();
    none("a graph");
    drop(graph);
    none("dropping a graph");
    drop((stream, event));
    none("dropping a stream and an event");
    drop((device, host, copy));
    none("dropping memory and kernels");
    drop(gpu);
    none("closing the last");
}

#[test]
fn a_stream_that_is_recorded_is_not_followed() {
    let _alone = alone();
    let Some(gpu) = cuda() else { return };
    let _primary = Primary::enter();
    let (stream, event) = (gpu.stream().unwrap(), gpu.event().unwrap());
    let (mut foreign, mut graph) = (null_mut(), null_mut());
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: a stream of the primary context, recorded here alone and then destroyed.
    unsafe {
        ok(sys::cuStreamCreate(&raw mut foreign, 1));
        stream.follow(foreign as u64, &event).unwrap();
        ok(sys::cuStreamBeginCapture_v2(foreign, mode));
        for refused in
            [stream.follow(foreign as u64, &event), stream.precede(foreign as u64, &event)]
        {
            assert!(matches!(refused, Err(GpuError::Recording)), "{refused:?}");
        }
        // The recording is whole, and our stream is none of it.
        ok(sys::cuStreamEndCapture(foreign, &raw mut graph));
        ok(sys::cuGraphDestroy(graph));
        stream.precede(foreign as u64, &event).unwrap();
    }
    stream.synchronize(LIMIT).unwrap();
    // SAFETY: as above; it is idle.
    unsafe {
        ok(sys::cuStreamSynchronize(foreign));
        ok(sys::cuStreamDestroy_v2(foreign));
    }
}

#[test]
fn a_panic_or_another_thread_does_not_spoil_a_recording() {
    let _alone = alone();
    let Some(gpu) = cuda() else { return };
    let stream = gpu.stream().unwrap();
    let copy = kernel(&gpu, "bp_selftest_copy");
    let word = gpu.alloc(8).unwrap();
    let args = CopyArgs { out: word.addr(), input: word.addr(), words: 1, add: 1 };
    let once = || launch(&stream, &copy, Dims::new(1, 1), &args);
    let planted = || stream.capture(|| -> Result<(), GpuError> { panic!("planted") });
    assert!(catch_unwind(AssertUnwindSafe(planted)).is_err());
    once().unwrap(); // executed, not recorded
    stream.synchronize(LIMIT).unwrap();
    let graph = stream
        .capture(|| {
            std::thread::scope(|scope| {
                let other = scope
                    .spawn(|| (once(), stream.query(), stream.synchronize(LIMIT), stream.end()));
                let (launched, asked, waited, ended) = other.join().unwrap();
                assert!(!ended, "there is nothing to end, and nothing to ask");
                assert!(matches!(launched, Err(GpuError::Recording)), "{launched:?}");
                assert!(matches!(asked, Err(GpuError::Recording)), "{asked:?}");
                assert!(matches!(waited, Err(GpuError::Recording)), "{waited:?}");
            });
            once()
        })
        .unwrap();
    for _ in 0..3 {
        graph.launch().unwrap();
    }
    stream.synchronize(LIMIT).unwrap();
    let mut sum = [0; 8];
    word.copy_out(0, &mut sum).unwrap();
    assert_eq!(u64::from_ne_bytes(sum), 4);
}

#[test]
fn a_recording_keeps_what_it_reaches() {
    let _alone = alone();
    let Some(gpu) = cuda() else { return };
    let stream = gpu.stream().unwrap();
    let (host, device) = (gpu.alloc_mapped(4096, None).unwrap(), gpu.alloc(4096).unwrap());
    let seen = Arc::downgrade(&device);
    let graph = {
        let copy = kernel(&gpu, "bp_selftest_copy"); // of a module of its own
        let args = CopyArgs { out: device.addr(), input: device.addr(), words: 1, add: 1 };
        stream.capture(|| {
            stream.copy_to_device(&host, 8, &device, 8, 8)?;
            launch(&stream, &copy, Dims::new(1, 1), &args)?;
            stream.copy_to_host(&device, 0, &host, 0, 8)
        })
    };
    let graph = graph.unwrap();
    drop(device);
    stream.synchronize(LIMIT).unwrap(); // the stream lets go of all
    for sum in 1..=3 {
        graph.launch().unwrap();
        stream.synchronize(LIMIT).unwrap();
        assert_eq!(host.host().load_u64(0, Ordering::Acquire).unwrap(), sum);
    }
    graph.launch().unwrap();
    drop(graph); // while it may run
    stream.synchronize(LIMIT).unwrap();
    assert!(seen.upgrade().is_none(), "kept for ever");
}

/// Earlier calls that are not waited for keep other streams away also after a recording that panicked.
#[test]
fn a_panic_in_a_communicators_recording_forgets_no_call() {
    let _alone = alone();
    let Some(gpu) = cuda() else { return };
    let nic: Arc<dyn Nic> = SoftNic::open(SoftConfig::new(&InProcess::new())).unwrap();
    let options = collective::Options::new("push/inband".parse().unwrap());
    let ranks = Communicator::threads(&[(gpu.clone(), nic)], &options).unwrap();
    let (first, second) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let memory = Memory::from(gpu.alloc(64).unwrap());
    let call = |stream| ranks[0].all_reduce(stream, &memory, &memory, 16, Dtype::F32, Op::Sum);
    call(&first).unwrap();
    let planted = || ranks[0].record(&second, || panic!("planted"));
    assert!(catch_unwind(AssertUnwindSafe(planted)).is_err());
    let refused = call(&second).unwrap_err();
    assert!(matches!(refused, collective::Error::OtherStream), "{refused}");
    ranks[0].synchronize(&first).unwrap();
    call(&second).unwrap();
    ranks[0].synchronize(&second).unwrap();
}

/// A NIC's thread leaves a GPU's context current. The GPU may be closed below it, and opened again.
#[test]
fn a_nic_outlives_a_gpu_that_is_opened_again() {
    let _alone = alone();
    let nic: Arc<dyn Nic> = SoftNic::open(SoftConfig::new(&InProcess::new())).unwrap();
    for round in 1..=3 {
        let Some(gpu) = cuda() else { return };
        let stream = gpu.stream().unwrap();
        let [from, to] = [0, 1].map(|_| Memory::from(gpu.alloc(4096).unwrap()));
        let (path, both) = ("pull/kernel".parse().unwrap(), (from.clone(), to.clone()));
        let (a, _b) = Endpoint::pair(&gpu, &nic, path, both, Options::default()).unwrap();
        from.write(0, &[round; 4096]).unwrap();
        a.put(&stream, Put { from: Local(0), to: Remote(0), bytes: 4096, signal: None }).unwrap();
        a.quiet(&stream).unwrap();
        let mut seen = [0; 4096];
        to.read(0, &mut seen).unwrap();
        assert_eq!(seen, [round; 4096]);
    }
}

/// What is queued on it would not be done when the processor looks.
#[test]
fn pinned_host_memory_is_no_memory_of_the_gpus() {
    let _alone = alone();
    let Some(gpu) = cuda() else { return };
    let _primary = Primary::enter();
    let (pinned, device) = (gpu.alloc_mapped(4096, None).unwrap(), gpu.alloc(4096).unwrap());
    let (mut own, mut managed) = (null_mut(), 0);
    // SAFETY: two allocations, made and freed here alone; what is borrowed is dropped before.
    unsafe {
        ok(sys::cuMemHostAlloc(&raw mut own, 4096, 0));
        ok(sys::cuMemAllocManaged(&raw mut managed, 4096, 1));
        for host in [pinned.host_addr(), own as u64] {
            let refused = gpu.borrow(host, 4096, true).map(|_| ()).unwrap_err();
            assert!(matches!(refused, GpuError::NotGpuMemory { .. }), "{refused}");
        }
        for good in [device.addr(), managed] {
            drop(gpu.borrow(good, 4096, true).unwrap());
        }
        ok(sys::cuMemFreeHost(own));
        ok(sys::cuMemFree_v2(managed));
    }
}

/// Memory that is mapped chunk by chunk behind one address, as PyTorch's expandable segments are.
#[test]
fn memory_that_is_mapped_piece_by_piece_is_borrowed() {
    const CHUNK: usize = 2 << 20;
    let _alone = alone();
    let Some(gpu) = cuda() else { return };
    let _primary = Primary::enter();
    let (mut base, mut chunks) = (0, Vec::new());
    // SAFETY: addresses of the driver's choice, mapped and unmapped here alone.
    unsafe {
        let mut what: sys::CUmemAllocationProp = zeroed();
        what.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        what.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        let mut access: sys::CUmemAccessDesc = zeroed();
        access.location = what.location;
        access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        ok(sys::cuMemAddressReserve(&raw mut base, 3 * CHUNK, 0, 0, 0));
        for i in 0..2 {
            let mut chunk = 0;
            ok(sys::cuMemCreate(&raw mut chunk, CHUNK, &raw const what, 0));
            ok(sys::cuMemMap(base + (i * CHUNK) as u64, CHUNK, 0, chunk, 0));
            chunks.push(chunk);
        }
        ok(sys::cuMemSetAccess(base, 2 * CHUNK, &raw const access, 1));
        let borrow = |at: usize, bytes| gpu.borrow(base + at as u64, bytes, true);
        let across = borrow(CHUNK - 4096, 8192).unwrap();
        across.copy_in(0, &[7; 8192]).unwrap();
        let mut back = [0; 8192];
        across.copy_out(0, &mut back).unwrap();
        assert_eq!(back, [7; 8192]);
        assert!(borrow(0, 2 * CHUNK).is_ok());
        assert!(borrow(CHUNK, CHUNK + 1).is_err(), "reserved, and not mapped");
        drop(across);
        ok(sys::cuMemUnmap(base, 2 * CHUNK));
        for chunk in chunks {
            ok(sys::cuMemRelease(chunk));
        }
        ok(sys::cuMemAddressFree(base, 3 * CHUNK));
    }
}

/// A kernel that waits for the host does not wait in vain while memory is registered: copies look for registered
/// memory, and go on. (The driver's unregistering waits for kernels, and holds up copies by itself meanwhile.)
#[test]
fn copies_go_on_while_memory_is_registered() {
    let _alone = alone();
    let Some(gpu) = cuda() else { return };
    let mem = gpu.alloc(1 << 20).unwrap();
    let plain = gpu.alloc_mapped(4096, None).unwrap();
    let more = HostMem::alloc(16 << 20).unwrap();
    let (stream, host) = wait_for_flag(&gpu, LIMIT, Dims::new(1, 32));
    std::thread::scope(|scope| {
        let registers = scope.spawn(|| gpu.register(&more));
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(100) {
            mem.read_to_host(0, plain.host(), 0, 4096).unwrap();
        }
        host.host().store_u32(0, 1, Ordering::Release).unwrap();
        let registered = registers.join().unwrap().unwrap();
        assert!(since.elapsed() < LIMIT / 2, "the copies waited for the kernel");
        stream.synchronize(LIMIT).unwrap();
        drop(registered);
    });
}
