use super::super::{Executor, HostOptions, Module};
use super::*;

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct Yields(u64);
// SAFETY: selftest.cu's struct.
unsafe impl KernelArgs for Yields {}

const LIMIT: Duration = Duration::from_secs(10);

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
    stream.launch_own(&kernel, Dims::new(1, 1), &Yields(0), kept).unwrap();
    stream.synchronize(LIMIT).unwrap();
    assert!(seen.upgrade().is_none(), "kept for ever");
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
