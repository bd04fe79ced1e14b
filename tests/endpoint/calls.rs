//! Who may call an endpoint, in which order, and what `quiet` then says: two streams, two threads, more
//! calls than there are statuses, streams that end early, and rings shallower than their windows.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::test_bed::*;
use bellpush::abi::entry::{Scope, Verb};
use bellpush::abi::wire::Code;
use bellpush::gpu::{GpuError, HostOptions, Stream};
use bellpush::transport::{
    CompareSwap, Data, Endpoint, Error, FetchAdd, Get, Kick, Local, Memory, Options, Path, Put,
    Remote,
};

const N: usize = 96;
const EACH: usize = 64;

fn put(ep: &Endpoint, stream: &Stream, n: usize) -> Result<(), Error> {
    let at = (n * EACH) as u64;
    ep.put(stream, message(at, at, EACH as u64))
}

/// A pair that sends from the GPU's own memory.
fn device_pair(bed: &TestBed, path: Path, bytes: usize, options: Options) -> Pair {
    let (src, dst) = (Memory::from(bed.gpu.alloc(bytes).unwrap()), bed.memory(bytes));
    let memory = (src.clone(), dst.clone());
    let (a, b) = Endpoint::pair(&bed.gpu, &bed.nic, path, memory, options).unwrap();
    Pair { a, b, src, dst }
}

/// What was accepted arrives, what is not is refused with its reason, and nothing else happens.
#[test]
fn two_streams_are_ordered_or_refused_on_every_path() {
    let bed = TestBed::fibres();
    let other = bed.gpu.stream().unwrap();
    for path in bed.paths() {
        for memory in ["device", "mapped"] {
            let pair = match memory {
                "device" => device_pair(&bed, path, N * EACH, Options::default()),
                _ => bed.pair(path, N * EACH, Options::default()),
            };
            let what = format!("{path}, {memory}");
            let sent = pattern(40, N * EACH);
            pair.src.write(0, &sent).unwrap();
            let mut wanted = vec![0; N * EACH];
            let mut refused = 0;
            for n in 0..N {
                let stream = [&bed.stream, &other][n % 2];
                match put(&pair.a, stream, n) {
                    Ok(()) => wanted[n * EACH..][..EACH].copy_from_slice(&sent[n * EACH..][..EACH]),
                    Err(Error::OtherStream) => refused += 1,
                    Err(e) => panic!("{what}: {e}"),
                }
            }
            // A call that ends before it returns leaves nothing to be ordered.
            let ends = path == Path::TCP || path.kick() == Some(Kick::Cpu);
            assert_eq!(refused, if ends { 0 } else { N / 2 }, "{what}");
            let waits = pair.a.quiet(&other);
            assert_eq!(matches!(waits, Err(Error::OtherStream)), !ends, "{what}: {waits:?}");
            pair.a.quiet(&bed.stream).unwrap();
            assert_same(&read(&pair.dst, 0, N * EACH), &wanted, &what);

            // After `quiet`, and after the stream was waited for, any other may come.
            put(&pair.a, &other, 1).unwrap();
            other.synchronize(Duration::from_secs(5)).unwrap();
            put(&pair.a, &bed.stream, 3).unwrap();
            pair.a.quiet(&bed.stream).unwrap();
            for n in [1, 3] {
                wanted[n * EACH..][..EACH].copy_from_slice(&sent[n * EACH..][..EACH]);
            }
            assert_same(&read(&pair.dst, 0, N * EACH), &wanted, &what);
        }
    }
}

/// The same for the other verbs, which use the same queues.
#[test]
fn every_verb_is_refused_on_another_stream() {
    let bed = TestBed::fibres();
    let other = bed.gpu.stream().unwrap();
    for path in bed.paths().filter(|p| !matches!(p.kick(), None | Some(Kick::Cpu))) {
        let pair = bed.pair(path, 4096, Options::default());
        let ep = &pair.a;
        ep.get(&bed.stream, Get { from: Remote(0), to: Local(0), bytes: 8 }).unwrap();
        let refused = |r| matches!(r, Err(Error::OtherStream));
        assert!(refused(ep.put(&other, message(0, 0, 8))), "{path}");
        let signalled = Put { signal: signal(64, 1), ..message(0, 0, 8) };
        assert!(refused(ep.put(&other, signalled)), "{path}");
        assert!(refused(ep.get(&other, Get { from: Remote(0), to: Local(0), bytes: 8 })), "{path}");
        let (place, old) = (Remote(64), Local(64));
        let add = FetchAdd { word: place, add: 1, old };
        assert!(refused(ep.fetch_add(&other, add)), "{path}");
        let swap = CompareSwap { word: place, compare: 0, swap: 1, old };
        assert!(refused(ep.compare_swap(&other, swap)), "{path}");
        ep.quiet(&bed.stream).unwrap();
        ep.fetch_add(&other, FetchAdd { word: Remote(64), add: 5, old: Local(128) }).unwrap();
        ep.quiet(&other).unwrap();
        assert_eq!((word(&pair.dst, 64), word(&pair.src, 128)), (5, 0), "{path}");
    }
}

/// Threads take turns; each `quiet` covers at least what its own thread has put.
#[test]
fn two_threads_share_an_endpoint() {
    let bed = TestBed::fibres();
    for path in bed.paths() {
        let pair = bed.pair(path, N * EACH, Options::default());
        let sent = pattern(41, N * EACH);
        pair.src.write(0, &sent).unwrap();
        let (pair, bed, sent) = (&pair, &bed, &sent);
        std::thread::scope(|s| {
            for thread in 0..2 {
                s.spawn(move || {
                    for n in (thread..N).step_by(2) {
                        put(&pair.a, &bed.stream, n).unwrap();
                        if n % 16 < 2 {
                            pair.a.quiet(&bed.stream).unwrap();
                            let found = read(&pair.dst, n * EACH, EACH);
                            assert_same(&found, &sent[n * EACH..][..EACH], &format!("{path}, {n}"));
                        }
                    }
                    pair.a.quiet(&bed.stream).unwrap();
                });
            }
        });
        assert_same(&read(&pair.dst, 0, N * EACH), sent, &path.to_string());
    }
}

/// A recorded call would run at another time, or twice.
#[test]
fn a_recording_stream_is_refused() {
    let bed = TestBed::fibres();
    for path in bed.paths() {
        let pair = device_pair(&bed, path, 4096, Options::default());
        let graph = bed.stream.capture(|| {
            assert!(matches!(put(&pair.a, &bed.stream, 0), Err(Error::Recording)), "{path}");
            assert!(matches!(pair.a.quiet(&bed.stream), Err(Error::Recording)), "{path}");
            Ok::<(), GpuError>(())
        });
        assert!(graph.is_ok() || bed.gpu.is_host(), "{path}");
        drop(graph);
        put(&pair.a, &bed.stream, 0).unwrap();
        pair.a.quiet(&bed.stream).unwrap();
    }
}

/// A failure stays `quiet`'s to report, however many calls come after it, and is reported once.
#[test]
fn a_failure_is_reported_by_quiet_after_any_number_of_calls() {
    let (bed, mut engine) = TestBed::manual();
    let timeout = Duration::from_millis(500); // one wait takes it whole, the others must not
    let options = Options::default().sq_blocks(64).timeout(timeout);
    let pair = bed.pair(path("pull/kernel"), 4096, options);
    for _ in 0..65 {
        pair.a.put(&bed.stream, message(0, 0, 64)).unwrap(); // the last finds no room
    }
    bed.stream.synchronize(Duration::from_secs(5)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            for now in 0.. {
                engine.step(now * 1000);
                if done.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let (a, stream) = (&pair.a, &bed.stream);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            for n in 0..600 {
                a.put(stream, message(0, 0, 64)).unwrap_or_else(|e| panic!("call {n}: {e}"));
                if n % 32 == 31 {
                    stream.synchronize(Duration::from_secs(5)).unwrap(); // fewer than time out in a queue
                }
            }
            [a.quiet(stream), a.quiet(stream)]
        }));
        done.store(true, Ordering::Relaxed);
        let [first, second] = ended.unwrap();
        let told = matches!(first, Err(Error::Verb { verb: "put", code: Code::Timeout }));
        assert!(told, "{first:?}");
        second.unwrap();
    });
}

/// A signal that was queued behind a put which gave up, or was refused, is not carried out, on whatever queue pair it
/// goes. When `quiet` has reported the put, calls are carried out again.
#[test]
fn calls_behind_one_that_failed_are_flushed() {
    for name in ["push/kernel", "push/inband", "push/blueflame", "pull/kernel", "auto"] {
        let (bed, mut engine) = TestBed::manual();
        let options = Options::default()
            .sq_blocks(64)
            .window_bytes(8 * 128)
            .slot_bytes(128)
            .timeout(Duration::from_millis(50));
        let pair = bed.pair(path(name), 4096, options);
        let sent = pattern(41, 4096);
        pair.src.write(0, &sent).unwrap();
        let add = || {
            let add = FetchAdd { word: Remote(4088), add: 1, old: Local(4000) };
            pair.a.fetch_add(&bed.stream, add).unwrap();
        };
        let mut now = 0;
        let mut quiet = || {
            bed.stream.synchronize(Duration::from_secs(5)).unwrap();
            step(&mut engine, &mut now);
            pair.a.quiet(&bed.stream)
        };
        for _ in 0..66 {
            pair.a.put(&bed.stream, message(0, 0, 8)).unwrap(); // the last ones find no room
        }
        add();
        let told = quiet();
        let gave_up = Error::Verb { verb: "put", code: Code::Timeout }.to_string();
        assert_eq!(told.map_err(|e| e.to_string()), Err(gave_up), "{name}");
        assert_eq!(word(&pair.dst, 4088), 0, "{name}: the word was changed");
        pair.a.put(&bed.stream, message(96, 96, 96)).unwrap();
        add();
        quiet().unwrap();
        assert_eq!(word(&pair.dst, 4088), 1, "{name}");
        assert_eq!(read(&pair.dst, 96, 96), sent[96..192], "{name}");
    }
}

/// What was queued behind a kernel that failed never ran, and `quiet` must not take its silence for success.
#[test]
fn calls_that_never_ran_are_an_error() {
    let collective_timeout = Duration::from_millis(250);
    let options = HostOptions { collective_timeout, ..HostOptions::default() };
    for name in ["push/kernel", "push/stream", "pull/stream"] {
        let bed = TestBed::new(options.clone(), running_nic());
        if !bed.gpu.is_host() {
            return; // a GPU's kernel that fails takes its context along
        }
        // Lanes that wait for one which waits for a signal: a fault of the host executor.
        let waits = bed.pair(path("push/kernel"), 4096, Options::default());
        let mut stuck = op(&waits, Verb::WaitSignal, Scope::Block, 0);
        (stuck.value, stuck.status) = (1, waits.src.addr() + 8);
        let mut pair = device_pair(&bed, path(name), 4096, Options::default());
        pair.src.write(0, &[1; 4096]).unwrap();
        put(&pair.a, &bed.stream, 0).unwrap();
        pair.a.quiet(&bed.stream).unwrap();
        let fails = bed.gpu.stream().unwrap();
        bed.queue_on(&fails, "bp_verb_push_kernel", &stuck);
        put(&pair.a, &fails, 1).unwrap();
        let fault = pair.a.quiet(&fails);
        assert!(matches!(fault, Err(Error::Gpu(GpuError::Fault { .. }))), "{name}: {fault:?}");
        assert!(matches!(pair.a.quiet(&bed.stream), Err(Error::OtherStream)), "{name}");
        drop(fails);
        for _ in 0..2 {
            let later = put(&pair.a, &bed.stream, 2).and_then(|()| pair.a.quiet(&bed.stream));
            assert!(matches!(later, Err(Error::NotRun { .. })), "{name}: {later:?}");
        }
        assert_eq!(read(&pair.dst, EACH, EACH), [0; EACH], "{name}");
        // Both ends begin again.
        pair.a.reset().unwrap();
        pair.b.reset().unwrap();
        pair.a.connect(pair.b.address()).unwrap();
        pair.b.connect(pair.a.address()).unwrap();
        put(&pair.a, &bed.stream, 2).unwrap();
        pair.a.quiet(&bed.stream).unwrap();
        assert_eq!(read(&pair.dst, EACH, 2 * EACH), [[0; EACH], [1; EACH]].concat(), "{name}");
    }
}

/// More slots than the ring has blocks: a message waits for both.
#[test]
fn a_window_may_have_more_slots_than_the_ring_has_blocks() {
    let bed = TestBed::fibres();
    for path in bed.paths().filter(|p| p.has_window() && p.kick() != Some(Kick::Inband)) {
        let options = Options::default().sq_blocks(64).slot_bytes(64);
        let pair = device_pair(&bed, path, 1 << 16, options);
        let sent = pattern(42, 1 << 16);
        pair.src.write(0, &sent).unwrap();
        pair.a.put(&bed.stream, Put { signal: signal(65528, 7), ..message(0, 0, 60_000) }).unwrap();
        pair.a.quiet(&bed.stream).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_same(&read(&pair.dst, 0, 60_000), &sent[..60_000], &path.to_string());
        assert_eq!(word(&pair.dst, 65528), 7, "{path}");
        assert!(pair.a.max_credits_in_use().unwrap() <= 64, "{path}");
    }
}

/// A payload that no copy has brought, because the stream failed before, is not sent in another's place.
#[test]
fn a_payload_behind_a_fault_is_not_sent() {
    let options =
        HostOptions { collective_timeout: Duration::from_millis(250), ..HostOptions::default() };
    for path in Path::ALL {
        let bed = TestBed::new(options.clone(), running_nic());
        if !bed.gpu.is_host() || !bed.takes(path) {
            continue; // a GPU's kernel that fails takes its context along
        }
        let waits = bed.pair("push/kernel".parse().unwrap(), 4096, Options::default());
        let mut stuck = op(&waits, Verb::WaitSignal, Scope::Block, 0);
        (stuck.value, stuck.status) = (1, waits.src.addr() + 8);
        let pair = device_pair(&bed, path, 4096, Options::default());
        pair.src.write(0, &[1; 4096]).unwrap();
        pair.dst.write(0, &[9; 4096]).unwrap();
        let fails = bed.gpu.stream().unwrap();
        bed.queue_on(&fails, "bp_verb_push_kernel", &stuck);
        let ended = put(&pair.a, &fails, 0).and_then(|()| pair.a.quiet(&fails));
        assert!(matches!(ended, Err(Error::Gpu(GpuError::Fault { .. }))), "{path}: {ended:?}");
        assert_eq!(read(&pair.dst, 0, EACH), [9; EACH], "{path}");
    }
}

/// A kernel reads what is pushed, and reaches its own GPU's memory. Other memory receives, and is pulled.
#[test]
fn another_gpus_memory_is_not_pushed() {
    let (bed, other) = (TestBed::fibres(), TestBed::fibres());
    for path in bed.paths() {
        let far = Memory::from(other.gpu.alloc(4096).unwrap());
        let both = (far, bed.memory(4096));
        let (a, b) = Endpoint::pair(&bed.gpu, &bed.nic, path, both, Options::default()).unwrap();
        put(&b, &bed.stream, 0).unwrap();
        b.quiet(&bed.stream).unwrap();
        let refused = |r| matches!(r, Err(Error::Gpu(GpuError::OtherGpu { .. })));
        let pulls = path.data() == Data::Pull;
        assert_eq!(refused(put(&a, &bed.stream, 0)), !pulls, "{path}");
        let signalled = Put { signal: signal(64, 1), ..message(0, 0, 8) };
        assert_eq!(refused(a.put(&bed.stream, signalled)), !pulls, "{path}");
        a.quiet(&bed.stream).unwrap();
    }
}
