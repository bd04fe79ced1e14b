//! Where queues and windows lie: every placement delivers, what follows for the fence before a doorbell, and what is
//! refused. On the host executor all of it is host memory, so what is told apart here is what endpoint and kernels say.

use std::sync::Arc;

use crate::nics::Fabric;
use crate::test_bed::*;
use bellpush::abi::entry::{Scope, Verb};
use bellpush::abi::wire::tag;
use bellpush::mem::{HostMem, View};
use bellpush::nic::{Inband, LineFormat, Nic, NicError, Order, QpAttr, QueueMemory};
use bellpush::transport::{
    Data, Endpoint, Error, Get, Kick, Local, Memory, MemoryPlace, Options, Path, Put, Reach, Remote,
};

use MemoryPlace::{Auto, Gpu as OnGpu, Host};

/// The four choices: send queue, doorbell record, completion queue, window.
type Places = [MemoryPlace; 4];

const BYTES: usize = 32 << 10;

fn options([sq, dbr, cq, window]: Places) -> Options {
    Options::default().sq_place(sq).dbr_place(dbr).cq_place(cq).window_place(window)
}

/// Each part in GPU memory or in the host's.
fn each() -> impl Iterator<Item = Places> {
    (0..16).map(|n| [0, 1, 2, 3].map(|i| if n >> i & 1 == 0 { Host } else { OnGpu }))
}

/// A pair whose sender's region is GPU memory.
fn pair(bed: &TestBed, path: Path, options: Options) -> Result<Pair, Error> {
    let (src, dst) = (Memory::from(bed.gpu.alloc(BYTES).unwrap()), bed.memory(BYTES));
    let memory = (src.clone(), dst.clone());
    let (a, b) = Endpoint::pair(&bed.gpu, &bed.nic, path, memory, options)?;
    Ok(Pair { a, b, src, dst })
}

/// Whether GPU and NIC can do it: libmlx5's queues lie in one piece, a GPU's memory is looked into by kernels alone, and
/// a staged window is host memory.
fn can(bed: &TestBed, path: Path, [sq, dbr, cq, window]: Places) -> bool {
    let queues = [sq, dbr, cq].contains(&OnGpu);
    let has_window = path.has_window() && window == OnGpu;
    let far = !bed.gpu.is_host();
    !(path.data() == Data::Staged && window == OnGpu
        || bed.nic.order() == Order::Strict && queues
        || far && !path.posted_by_gpu() && (queues || has_window)
        || far && !ON_GPU_ENGINE && (queues || has_window && path.kick() == Some(Kick::Inband)))
}

fn deliver(bed: &TestBed, pair: &Pair, seed: u64) {
    let sent = pattern(seed, BYTES);
    pair.src.write(0, &sent).unwrap();
    let bytes = 9001;
    let put = Put { signal: signal(0, 3), ..message(5, 64, bytes) };
    pair.a.put(&bed.stream, put).unwrap();
    pair.a.put(&bed.stream, message(1, 20_000, 17)).unwrap();
    pair.a.quiet(&bed.stream).unwrap_or_else(|e| panic!("{}: {e}", pair.a.path()));
    assert_same(&read(&pair.dst, 64, 9001), &sent[5..9006], "put");
    assert_same(&read(&pair.dst, 20_000, 17), &sent[1..18], "small put");
    assert_eq!(word(&pair.dst, 0), 3);
    pair.a.get(&bed.stream, Get { from: Remote(64), to: Local(16_384), bytes }).unwrap();
    pair.a.quiet(&bed.stream).unwrap();
    assert_same(&read(&pair.src, 16_384, 9001), &sent[5..9006], "get");
}

#[test]
fn every_placement_delivers_on_every_path() {
    let bed = TestBed::fibres();
    let mut made = 0;
    for path in bed.paths().filter(|&path| path != Path::TCP) {
        for places in
            each().chain([[Auto; 4], [OnGpu, Auto, Auto, Auto], [Auto, Auto, Auto, OnGpu]])
        {
            let what = format!("{path}, {places:?}");
            match pair(&bed, path, options(places)) {
                Ok(pair) => {
                    assert!(can(&bed, path, places), "{what}: made");
                    deliver(&bed, &pair, made);
                    made += 1;
                }
                Err(Error::Unsupported { .. } | Error::Nic(NicError::Unsupported { .. })) => {
                    assert!(!can(&bed, path, places), "{what}: refused");
                }
                Err(other) => panic!("{what}: {other}"),
            }
        }
    }
    if bed.gpu.is_host() && bed.nic.order() == Order::Later {
        assert_eq!(made, 9 * 19 + 3 * 10); // staged: without a window in GPU memory
    }
}

/// 32 and 256 slots: what a ConnectX's device memory holds, and a MiB.
#[test]
fn windows_of_128_kib_and_of_a_mib_deliver_on_every_path() {
    let bed = TestBed::fibres();
    for path in bed.paths().filter(|path| path.has_window()) {
        for (window_bytes, slots) in [(128 << 10, 32), (1 << 20, 256)] {
            for place in [Auto, Host, OnGpu] {
                if !can(&bed, path, [Auto, Auto, Auto, place]) {
                    continue;
                }
                let options = Options::default().window_bytes(window_bytes).window_place(place);
                let memory = [0; 2].map(|_| bed.memory(3 << 20));
                let [src, dst] = memory.clone();
                let pair = Endpoint::pair(&bed.gpu, &bed.nic, path, memory.into(), options);
                let (a, _b) = match pair {
                    // A device may have less memory than that.
                    Err(Error::Nic(NicError::Device(_))) if place == Auto => continue,
                    pair => pair.unwrap_or_else(|e| panic!("{path}, {place}: {e}")),
                };
                let sent = pattern(window_bytes, 3 << 20);
                src.write(0, &sent).unwrap();
                a.put(&bed.stream, message(3, 8, (3 << 20) - 8)).unwrap();
                a.quiet(&bed.stream).unwrap_or_else(|e| panic!("{path}, {place}: {e}"));
                let what = format!("{path}, {window_bytes} bytes, {place}");
                assert_same(&read(&dst, 8, (3 << 20) - 8), &sent[3..(3 << 20) - 5], &what);
                let used = a.max_credits_in_use().unwrap();
                assert!((1..=slots).contains(&used), "{what}: {used} slots in use");
            }
        }
    }
}

/// The scope is the GPU's exactly where send queue, doorbell record, window (if there is one) and local region are this
/// GPU's memory, and a kernel rings. The completion queue does not matter: nothing is stored there.
#[test]
fn the_fence_reaches_as_far_as_what_it_orders() {
    let bed = TestBed::fibres();
    for path in bed.paths().filter(|path| path.posted_by_gpu()) {
        for places in each().filter(|&places| can(&bed, path, places)) {
            let [sq, dbr, _, window] = places;
            let near = sq == OnGpu && dbr == OnGpu && (window == OnGpu || !path.has_window());
            let gpu = near && path.kick() == Some(Kick::Kernel);
            let what = format!("{path}, {places:?}");
            let near = pair(&bed, path, options(places)).unwrap();
            assert_eq!(near.a.reach() == Reach::Gpu, gpu, "{what}");
            let system = near.a.device().unwrap().tag & tag::SYSTEM != 0;
            assert_eq!(system, !gpu, "{what}: the tag");
            // The peer's region is host memory, which its own puts read from and its gets write to.
            assert_eq!(near.b.reach(), Reach::System, "{what}: the peer");
        }
        if bed.gpu.is_host() {
            let left_open = pair(&bed, path, options([Auto; 4])).unwrap();
            assert_eq!(left_open.a.reach(), Reach::System, "{path}");
        }
    }
    for name in ["push/cpu", "pull/stream", "tcp"] {
        let posted_by_host = pair(&bed, path(name), options([Auto; 4])).unwrap();
        assert_eq!(posted_by_host.a.reach(), Reach::System, "{name}");
    }
}

/// A kernel with the weaker fence is refused where one part lies elsewhere; with the stronger it is taken everywhere.
#[test]
fn a_kernel_that_fences_for_the_gpu_alone_needs_everything_there() {
    let bed = TestBed::fibres();
    if !can(&bed, path("push/kernel"), [OnGpu; 4]) {
        return;
    }
    for (name, kernel) in
        [("push/kernel", "bp_verb_push_kernel"), ("pull/kernel", "bp_verb_pull_kernel")]
    {
        for (places, status) in [
            ([OnGpu, OnGpu, OnGpu, OnGpu], OK),
            ([OnGpu, OnGpu, Host, OnGpu], OK),
            ([Host, OnGpu, OnGpu, OnGpu], INVALID),
            ([OnGpu, Host, OnGpu, OnGpu], INVALID),
        ] {
            let pair = pair(&bed, path(name), options(places)).unwrap();
            pair.src.write(0, &pattern(7, BYTES)).unwrap();
            let mut op = op(&pair, Verb::Put, Scope::Block, 5000);
            op.quiet_after = 1;
            let what = format!("{name}, {places:?}");
            assert_eq!(bed.launch(&format!("{kernel}_near"), (1, 32), op), [status], "{what}");
            assert_eq!(
                read(&pair.dst, 0, 5000) == pattern(7, BYTES)[..5000],
                status == OK,
                "{what}"
            );
            assert_eq!(bed.launch(kernel, (1, 32), op), [OK], "{what}");
            assert_same(&read(&pair.dst, 0, 5000), &pattern(7, BYTES)[..5000], &what);
        }
    }
}

#[test]
fn a_staged_window_is_host_memory() {
    let bed = TestBed::fibres();
    let staged = Path::ALL.into_iter().filter(|path| path.data() == Data::Staged);
    for path in staged {
        let why = pair(&bed, path, Options::default().window_place(OnGpu)).err().unwrap();
        let why = why.to_string();
        assert!(why.contains("window in GPU memory") && why.contains("push"), "{why}");
        pair(&bed, path, Options::default().window_place(Host)).unwrap();
    }
}

/// An engine on a CPU thread does not take memory that only copies reach, and one on a GPU takes what it reaches.
#[test]
fn a_nic_refuses_queues_that_no_engine_of_it_looks_into() {
    let nic: Arc<dyn Nic> = match ON_GPU_ENGINE {
        true => running_nic(),
        false => Fabric::new().open(),
    };
    if nic.order() == Order::Strict {
        return;
    }
    let view = |bytes| View::new(&HostMem::alloc(bytes).unwrap(), 0, bytes).unwrap();
    let far = |bytes| View::new(&HostMem::far(Arc::new(view(bytes))).unwrap(), 0, bytes).unwrap();
    let attr = QpAttr {
        sq_blocks: 64,
        rq_wqes: 0,
        rq_sges: 0,
        send_cqes: 64,
        recv_cqes: 0,
        rnr_retry: 7,
        ack_timeout: 14,
        inband: None,
        blueflame: false,
    };
    let main = || QueueMemory::from(view(nic.queue_bytes(&attr)));
    let window =
        |window| Inband { window, slot_bytes: 128, slots: 8, line: LineFormat::L12S4, seq0: 2 };
    let inband = |window_of| QpAttr { inband: Some(window(window_of)), ..attr.clone() };
    let made = |attr: &QpAttr, memory| nic.create_qp(attr, memory).map(|qp| qp.qpn());
    for (attr, memory) in [
        (attr.clone(), QueueMemory::from(far(nic.queue_bytes(&attr)))),
        (attr.clone(), QueueMemory { sq: Some(far(4096)), ..main() }),
        (attr.clone(), QueueMemory { dbr: Some(far(8)), ..main() }),
        (attr.clone(), QueueMemory { send_cq: Some(far(4096)), ..main() }),
        (inband(far(1024)), main()),
    ] {
        let why = made(&attr, memory).expect_err("it is refused");
        assert!(matches!(why, NicError::Unsupported { .. }), "{why}");
        let why = why.to_string();
        let remedy = if ON_GPU_ENGINE { "gpu_engine::open" } else { "sq_place" };
        assert!(
            why.contains("'soft'") && why.contains("host memory") && why.contains(remedy),
            "{why}"
        );
    }
    // Control: the same in memory of the host's, in pieces that are long enough.
    made(&inband(view(1024)), main()).unwrap();
    let apart = |bytes: usize| QueueMemory {
        sq: Some(view(bytes)),
        dbr: Some(view(64)),
        send_cq: Some(view(4096)),
        ..main()
    };
    made(&attr, apart(4096)).unwrap();
    let short = made(&attr, apart(4032)).expect_err("it is refused");
    assert!(matches!(short, NicError::Attribute { what: "send queue's bytes", .. }), "{short}");
}
