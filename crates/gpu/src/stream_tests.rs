use super::*;
use crate::{Executor, HostOptions, Module};

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct Word(u64);
// SAFETY: selftest.cu's structs of one word.
unsafe impl KernelArgs for Word {}

const LIMIT: Duration = Duration::from_secs(10);
/// After this a kernel has begun: one that has not would not run once its stream is ended.
const BEGUN: Duration = Duration::from_millis(400);

/// A thread that waits, and finds the stream idle just before another's work is queued.
#[test]
fn what_a_launch_is_given_stays_whoever_waits_meanwhile() {
    let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
    let kernel = gpu.load(&Module::builtin()).unwrap().kernel("bp_selftest_yield").unwrap();
    let stream = gpu.stream().unwrap();
    let given: Kept = Arc::new(7);
    let seen = Arc::downgrade(&given);
    let another_waits = || -> Kept {
        std::thread::scope(|scope| scope.spawn(|| stream.synchronize(LIMIT)).join())
            .unwrap()
            .unwrap();
        assert!(seen.upgrade().is_some(), "let go of before the work that reaches it is queued");
        Arc::new(8)
    };
    let kept = std::iter::once(given).chain(std::iter::once_with(another_waits));
    // SAFETY: the kernel uses no address.
    unsafe { stream.launch_keeping(&kernel, Dims::new(1, 1), &Word(0), kept) }.unwrap();
    stream.synchronize(LIMIT).unwrap();
    assert!(seen.upgrade().is_none(), "kept for ever");
}

/// The stream was ended, and says so when it is dropped; that is no sign that nothing runs.
#[test]
fn what_lanes_still_use_outlives_a_stream_that_was_ended() {
    let gpu = Gpu::open(Executor::Host(HostOptions::threads())).unwrap();
    let kernel = gpu.load(&Module::builtin()).unwrap().kernel("bp_selftest_stuck").unwrap();
    let (stream, flag) = (gpu.stream().unwrap(), gpu.alloc(4).unwrap());
    let given: Kept = Arc::new(7);
    let seen = Arc::downgrade(&given);
    // A lane waits for the flag, the other one for that lane.
    let kept = [given, flag.clone()]; // lanes may see it later than this test ends
    // SAFETY: `kept` keeps the flag.
    unsafe { stream.launch_keeping(&kernel, Dims::new(1, 2), &Word(flag.addr()), kept) }.unwrap();
    std::thread::sleep(BEGUN);
    assert!(!stream.end(), "threads are not ended");
    drop(stream);
    assert!(seen.upgrade().is_some(), "freed below a running kernel");
    flag.copy_in(0, &1u32.to_ne_bytes()).unwrap();
}

#[test]
fn while_a_thread_records_others_are_refused() {
    let mut state = State::default();
    assert!(state.may_queue().is_ok() && state.may_ask().is_ok());
    state.recorder = Some(std::thread::current().id());
    assert!(state.may_queue().is_ok(), "the recording thread queues");
    assert!(matches!(state.may_ask(), Err(GpuError::Recording)));
    let other = std::thread::scope(|scope| scope.spawn(|| state.may_queue()).join().unwrap());
    assert!(matches!(other, Err(GpuError::Recording)));
}
