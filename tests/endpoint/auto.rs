//! Auto endpoints: each choice delivers, lengths take theirs, and what orders two queue pairs.

use std::time::Duration;

use crate::test_bed::*;
use bellpush::abi::bench::AutoOpArgs;
use bellpush::abi::entry::{OpArgs, Scope, Verb};
use bellpush::abi::wire::{DeviceAutoEndpoint, tag};
use bellpush::nic::{Order, QpAddress};
use bellpush::transport::{
    Address, Choice, CompareSwap, Endpoint, Error, FetchAdd, Get, Link, Local, Memory, Options,
    Path, Put, Range, Ranges, Reach, Remote, Tuning,
};
use bellpush::wire::Qpn;

const BYTES: usize = 80 << 10;
const SIGNAL: u64 = BYTES as u64 - 8;
const LENGTHS: [u64; 8] = [1, 8, 45, 220, 221, 3000, 9001, 70_000];

fn options(tuning: Tuning) -> Options {
    Options::default().tuning(Some(tuning)).timeout(Duration::from_secs(5))
}

fn always(choice: Choice) -> Tuning {
    Tuning::for_all(Ranges::always(choice))
}

/// Up to 64 bytes in-band, to 200 inline, to 4096 pushed, the rest pulled.
fn each_its_own() -> Tuning {
    let range = |up_to, path| Range { up_to, path };
    let ranges = vec![
        range(Some(64), Choice::Inband),
        range(Some(200), Choice::Inline),
        range(Some(4096), Choice::Push),
        range(None, Choice::Pull),
    ];
    Tuning::for_all(Ranges::new(ranges).unwrap())
}

/// The kernel of one caller at a time, for the NIC's order.
fn kernel_of(bed: &TestBed) -> &'static str {
    if bed.nic.order() == Order::Strict { "bp_verb_auto_strict" } else { "bp_verb_auto" }
}

fn op(pair: &Pair, verb: Verb, scope: Scope, bytes: u64) -> AutoOpArgs {
    let mut op: OpArgs = bytemuck::Zeroable::zeroed();
    (op.op, op.scope, op.count, op.bytes) = (verb as u32, scope as u32, 1, bytes);
    op.local = pair.src.addr();
    AutoOpArgs { ep: pair.a.auto_device().expect("it is connected"), op }
}

fn launch(bed: &TestBed, kernel: &str, dims: (u32, u32), args: AutoOpArgs) -> Vec<u32> {
    bed.launch_any(kernel, dims, |status| AutoOpArgs { op: OpArgs { status, ..args.op }, ..args })
}

/// A put of each length by the host, by a kernel with its ticket, and with a signal; then gets and atomics.
fn everything_works(bed: &TestBed, tuning: Tuning, what: &str) {
    let pair = bed.pair(Path::AUTO, BYTES, options(tuning));
    let kernel = kernel_of(bed);
    for (n, bytes) in LENGTHS.into_iter().enumerate() {
        let what = format!("{what}, {bytes} bytes");
        let same = |seed: u64, run: &mut dyn FnMut()| {
            let sent = pattern(seed, BYTES);
            // That the peer has it all does not give the source back: the NIC may yet send it again.
            pair.a.quiet(&bed.stream).unwrap_or_else(|e| panic!("{what}: {e}"));
            pair.src.write(0, &sent).unwrap();
            pair.dst.write(0, &[0; BYTES]).unwrap();
            run();
            assert_same(&read(&pair.dst, 0, bytes as usize), &sent[..bytes as usize], &what);
        };
        same(3 * n as u64, &mut || {
            let put = Put { signal: signal(SIGNAL, 7), ..message(0, 0, bytes) };
            pair.a.put(&bed.stream, put).unwrap();
            pair.a.put(&bed.stream, message(0, 0, bytes)).unwrap();
            pair.a.quiet(&bed.stream).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(word(&pair.dst, SIGNAL as usize), 7, "{what}");
        });
        for dims in [(1, 32), (1, 64)] {
            same(3 * n as u64 + 1, &mut || {
                let args = op(&pair, Verb::Test, Scope::Block, bytes);
                assert_eq!(launch(bed, kernel, dims, args), [OK], "{what}");
            });
        }
        // No quiet: the signal alone says that the data are there.
        same(3 * n as u64 + 2, &mut || {
            let mut args = op(&pair, Verb::PutSignal, Scope::Block, bytes);
            (args.op.signal_offset, args.op.value) = (SIGNAL, 5);
            assert_eq!(launch(bed, kernel, (1, 32), args), [OK], "{what}");
            let mut args = op(&pair, Verb::WaitSignal, Scope::Block, 0);
            (args.op.local, args.op.value) = (pair.dst.addr() + SIGNAL, 5);
            assert_eq!(launch(bed, kernel, (1, 32), args), [OK], "{what}");
        });
    }
    set_word(&pair.dst, 0, 40);
    for (verb, value, after) in [(Verb::FetchAdd, 2, 42), (Verb::CompareSwap, 50, 50)] {
        let before = word(&pair.dst, 0);
        let mut args = op(&pair, verb, Scope::Block, 8);
        (args.op.value, args.op.compare, args.op.quiet_after) = (value, 42, 1);
        assert_eq!(launch(bed, kernel, (1, 32), args), [OK], "{what}");
        assert_eq!((word(&pair.src, 0), word(&pair.dst, 0)), (before, after), "{what}");
    }
    let mut args = op(&pair, Verb::Get, Scope::Block, 8);
    (args.op.local, args.op.quiet_after) = (args.op.local + 64, 1);
    assert_eq!(launch(bed, kernel, (1, 32), args), [OK], "{what}");
    let stream = &bed.stream;
    pair.a.fetch_add(stream, FetchAdd { word: Remote(0), add: 1, old: Local(0) }).unwrap();
    let swap = CompareSwap { word: Remote(0), compare: 51, swap: 9, old: Local(8) };
    pair.a.compare_swap(stream, swap).unwrap();
    pair.a.get(stream, Get { from: Remote(0), to: Local(16), bytes: 8 }).unwrap();
    pair.a.quiet(stream).unwrap();
    assert_eq!([0, 8, 16, 64].map(|at| word(&pair.src, at)), [50, 51, 9, 50], "{what}");
    assert!(pair.a.failure().is_none(), "{what}");
}

#[test]
fn each_choice_delivers() {
    let bed = TestBed::fibres();
    for choice in Choice::ALL {
        everything_works(&bed, always(choice), choice.as_str());
    }
    everything_works(&bed, each_its_own(), "a table");
}

/// A kernel's waits look at the in-band queue pair where some length takes it, and not else.
#[test]
fn waits_look_at_what_lengths_take() {
    let bed = TestBed::fibres();
    let has_lines = bed.nic.order() != Order::Strict;
    let takes_lines = |tuning| {
        let pair = bed.pair(Path::AUTO, BYTES, options(tuning));
        pair.a.auto_device().expect("it is connected").inband.tag != 0
    };
    assert_eq!(takes_lines(each_its_own()), has_lines);
    assert_eq!(takes_lines(always(Choice::Inband)), has_lines);
    for choice in [Choice::Inline, Choice::Push, Choice::Pull] {
        assert!(!takes_lines(always(choice)), "{}", choice.as_str());
    }
}

/// Of the in-band queue pair waits tell nothing where its tag is gone, slots' credits are counted, and what is pulled or
/// inline takes none.
#[test]
fn a_length_takes_its_choice() {
    let bed = TestBed::fibres();
    if bed.nic.order() == Order::Strict {
        return; // no in-band queue pair
    }
    for (bytes, choice) in [
        (1, Choice::Inband),
        (3, Choice::Inband),
        (64, Choice::Inband),
        (65, Choice::Inline),
        (192, Choice::Inline),
        (193, Choice::Inline),
        (200, Choice::Inline),
        (201, Choice::Push),
        (4096, Choice::Push),
        (4097, Choice::Pull),
        (70_000, Choice::Pull),
    ] {
        for (kernel, scope, dims) in [
            ("bp_verb_auto", Scope::Block, (1, 32)),
            ("bp_verb_auto", Scope::Block, (1, 64)),
            ("bp_verb_shared_auto", Scope::Warp, (1, 32)),
            ("bp_verb_shared_auto", Scope::Thread, (1, 1)),
        ] {
            let pair = bed.pair(Path::AUTO, BYTES, options(each_its_own()));
            let mut args = op(&pair, Verb::Test, scope, bytes);
            args.ep.inband.tag = 0;
            let inband = launch(&bed, kernel, dims, args) == [INVALID];
            let slots = pair.a.max_credits_in_use().unwrap();
            let found = match (inband, slots) {
                (true, _) => Choice::Inband,
                (false, 0) if bytes <= 200 => Choice::Inline,
                (false, 0) => Choice::Pull,
                (false, _) => Choice::Push,
            };
            assert_eq!(found, choice, "{bytes} bytes, {kernel}, {scope:?}");
        }
    }
}

/// The tables of scopes differ: a block of one thread, or of one warp, posts as that does.
#[test]
fn each_scope_has_its_table() {
    let bed = TestBed::fibres();
    let [slots, none] = [Choice::Push, Choice::Pull].map(Ranges::always);
    let shared = "bp_verb_shared_auto";
    for (kernel, scope, threads, at) in [
        (shared, Scope::Thread, 1, 0),
        (shared, Scope::Warp, 32, 1),
        (shared, Scope::Block, 1, 0),
        (shared, Scope::Block, 32, 1),
        (shared, Scope::Block, 33, 2),
        ("bp_verb_auto", Scope::Block, 32, 1),
        ("bp_verb_auto", Scope::Block, 64, 2),
    ] {
        if bed.nic.order() == Order::Strict {
            break; // these kernels are built for the software NIC's order
        }
        for pushed in 0..3 {
            let of = |n| if n == pushed { slots.clone() } else { none.clone() };
            let tuning = Tuning::new(of(0), of(1), of(2));
            let pair = bed.pair(Path::AUTO, BYTES, options(tuning));
            let args = op(&pair, Verb::Test, scope, 64);
            assert_eq!(launch(&bed, kernel, (1, threads), args), [OK]);
            let used = pair.a.max_credits_in_use().unwrap();
            assert_eq!(used > 0, pushed == at, "{kernel}, {scope:?} of {threads}, {pushed}");
        }
    }
}

/// What the NIC cannot read is pushed, and free when the call returns.
#[test]
fn payload_outside_the_region_is_pushed() {
    let bed = TestBed::fibres();
    let pair = bed.pair(Path::AUTO, BYTES, options(always(Choice::Pull)));
    let (elsewhere, sent) = (bed.memory(BYTES), pattern(5, BYTES));
    elsewhere.write(0, &sent).unwrap();
    let mut args = op(&pair, Verb::Test, Scope::Block, 9001);
    args.op.local = elsewhere.addr();
    assert_eq!(launch(&bed, kernel_of(&bed), (1, 32), args), [OK]);
    assert_same(&read(&pair.dst, 0, 9001), &sent[..9001], "pushed");
    assert!(pair.a.max_credits_in_use().unwrap() > 0);
}

/// Few of everything: pulled, pushed and inline WQEs take turns in one ring, of which no put asks for a CQE.
#[test]
fn wqes_of_every_kind_share_a_queue_pair() {
    let bed = TestBed::fibres();
    let narrow = || options(each_its_own()).sq_blocks(64).window_bytes(8 * 256).slot_bytes(256);
    let kernels = [(kernel_of(&bed), Scope::Block, 1), ("bp_verb_shared_auto", Scope::Thread, 32)];
    for (kernel, scope, callers) in kernels {
        if kernel.contains("shared") && bed.nic.order() == Order::Strict {
            continue;
        }
        let pair = bed.pair(Path::AUTO, BYTES, narrow());
        let sent = pattern(6, BYTES);
        pair.src.write(0, &sent).unwrap();
        for (n, bytes) in
            [5000, 150, 300, 5000, 64, 201, 4097, 199].into_iter().cycle().take(40).enumerate()
        {
            if n % 4 == 0 {
                pair.dst.write(0, &[0; BYTES]).unwrap(); // where nothing is on its way
            }
            let mut args = op(&pair, Verb::Put, scope, bytes);
            (args.op.count, args.op.flags) = (1 + n as u32 % 5, UNSIGNALLED);
            let statuses = launch(&bed, kernel, (1, 32), args);
            assert_eq!(statuses, vec![OK; callers], "{kernel}, {n}: {bytes} bytes");
            if n % 4 == 3 {
                let quiet = op(&pair, Verb::Quiet, scope, 0);
                assert_eq!(launch(&bed, kernel, (1, 32), quiet), vec![OK; callers]);
                assert_same(&read(&pair.dst, 0, bytes as usize), &sent[..bytes as usize], kernel);
            }
        }
        assert!(pair.a.failure().is_none(), "{kernel}: {:?}", pair.a.failure());
        assert!(pair.a.max_credits_in_use().unwrap() <= 8, "{kernel}");
    }
}

/// Lanes of one warp, each for itself: their messages take all of the table's choices at once.
#[test]
fn lanes_of_a_warp_take_different_choices() {
    let bed = TestBed::fibres();
    if bed.nic.order() == Order::Strict {
        return;
    }
    const STRIDE: usize = 6400;
    let narrow = options(each_its_own()).sq_blocks(64).window_bytes(8 * 4096);
    let pair = bed.pair(Path::AUTO, 64 * STRIDE, narrow);
    let sent = pattern(10, 64 * STRIDE);
    pair.src.write(0, &sent).unwrap();
    for flags in [0, UNSIGNALLED] {
        pair.dst.write(0, &[0; 64 * STRIDE]).unwrap();
        let mut args = op(&pair, Verb::Put, Scope::Thread, 1);
        (args.op.compare, args.op.flags, args.op.quiet_after) = (200, flags, 1);
        (args.op.local_stride, args.op.remote_stride) = (STRIDE as u64, STRIDE as u64);
        assert_eq!(launch(&bed, "bp_verb_shared_auto", (2, 32), args), [OK; 64]);
        for thread in 0..64 {
            let (at, bytes) = (thread * STRIDE, 1 + 200 * (thread % 32));
            assert_same(&read(&pair.dst, at, bytes), &sent[at..at + bytes], "a lane's");
        }
    }
}

/// An engine that stands still: nothing behind the fence is posted before what lies in front of it is complete.
#[test]
fn a_fence_waits_for_both_queue_pairs() {
    for (bytes, first) in [(9001, "pull"), (300, "push"), (40, "in-band")] {
        let (bed, mut engine) = TestBed::manual();
        let options = options(each_its_own()).timeout(Duration::from_millis(30));
        let pair = bed.pair(Path::AUTO, BYTES, options);
        let sent = pattern(7, BYTES);
        pair.src.write(0, &sent).unwrap();
        let mut args = op(&pair, Verb::Fence, Scope::Block, bytes);
        (args.op.signal_offset, args.op.value) = (SIGNAL, 3);
        assert_eq!(launch(&bed, "bp_verb_auto", (1, 32), args), [TIMEOUT], "{first}");
        step(&mut engine, &mut 0);
        assert_same(&read(&pair.dst, 0, bytes as usize), &sent[..bytes as usize], first);
        assert_eq!(word(&pair.dst, SIGNAL as usize), 0, "{first}: it was not posted");
    }
    let bed = TestBed::fibres();
    let pair = bed.pair(Path::AUTO, BYTES, options(each_its_own()));
    let mut args = op(&pair, Verb::Fence, Scope::Block, 9001);
    (args.op.signal_offset, args.op.value, args.op.quiet_after) = (SIGNAL, 3, 1);
    assert_eq!(launch(&bed, kernel_of(&bed), (1, 32), args), [OK]);
    assert_eq!(word(&pair.dst, SIGNAL as usize), 3);
}

/// The signal follows its data on their queue pair: the other one's verbs refuse, and are not called.
#[test]
fn a_signal_goes_where_its_data_go() {
    let bed = TestBed::fibres();
    if bed.nic.order() == Order::Strict {
        return;
    }
    let forget_inband = |ep: &mut DeviceAutoEndpoint| ep.inband.tag = 0;
    let forget_bell = |ep: &mut DeviceAutoEndpoint| ep.bell.tag = 0;
    for (choice, forget) in [
        (Choice::Inband, &forget_bell as &dyn Fn(&mut DeviceAutoEndpoint)),
        (Choice::Push, &forget_inband),
        (Choice::Pull, &forget_inband),
        (Choice::Blueflame, &forget_inband),
    ] {
        for bytes in [16, 9001] {
            let pair = bed.pair(Path::AUTO, BYTES, options(always(choice)));
            let mut args = op(&pair, Verb::PutSignal, Scope::Block, bytes);
            (args.op.signal_offset, args.op.value) = (SIGNAL, 1);
            forget(&mut args.ep);
            assert_eq!(launch(&bed, "bp_verb_auto", (1, 32), args), [OK], "{choice}, {bytes}");
            let mut wait = op(&pair, Verb::WaitSignal, Scope::Block, 0);
            (wait.op.local, wait.op.value) = (pair.dst.addr() + SIGNAL, 1);
            assert_eq!(launch(&bed, "bp_verb_auto", (1, 32), wait), [OK], "{choice}, {bytes}");
        }
    }
}

#[test]
fn kernels_of_weaker_fences_or_other_lines_are_refused() {
    let bed = TestBed::fibres();
    if bed.nic.order() == Order::Strict {
        return;
    }
    let pair = bed.pair(Path::AUTO, BYTES, options(each_its_own()));
    assert_eq!(pair.a.reach(), Reach::System);
    for verb in [
        Verb::Put,
        Verb::PutSignal,
        Verb::Get,
        Verb::FetchAdd,
        Verb::CompareSwap,
        Verb::Quiet,
        Verb::Test,
    ] {
        let args = op(&pair, verb, Scope::Block, 8);
        assert_eq!(launch(&bed, "bp_verb_auto_near", (1, 32), args), [INVALID], "{verb:?}");
        for changed in [tag::STRICT, tag::INBAND_14_2] {
            let mut args = args;
            args.ep.tag |= changed;
            assert_eq!(launch(&bed, "bp_verb_auto", (1, 32), args), [INVALID], "{verb:?}");
        }
        let mut args = args;
        args.ep.tag &= !tag::AUTO;
        assert_eq!(launch(&bed, "bp_verb_auto", (1, 32), args), [INVALID], "{verb:?}");
    }
    for (offset, bytes) in [(0, 0), (1, BYTES as u64), (u64::MAX, 8), (0, u64::MAX)] {
        for verb in [Verb::Put, Verb::PutSignal] {
            let mut args = op(&pair, verb, Scope::Block, bytes);
            args.op.remote_offset = offset;
            assert_eq!(launch(&bed, "bp_verb_auto", (1, 32), args), [INVALID], "{offset}, {bytes}");
        }
    }
    assert!(pair.a.failure().is_none());
}

/// A peer without an in-band queue pair, on a NIC that has none: the table goes without it too.
#[test]
fn ends_agree_on_the_in_band_queue_pair() {
    let bed = TestBed::fibres();
    let make = |tuning| {
        let memory = bed.memory(BYTES);
        let end = Endpoint::new(&bed.gpu, &bed.nic, Path::AUTO, memory.clone(), options(tuning));
        (end.unwrap(), memory)
    };
    for has_it in [true, false] {
        let ((mut a, src), (mut b, dst)) =
            (make(always(Choice::Inband)), make(always(Choice::Pull)));
        let (mut to_a, mut to_b) = (a.address(), b.address());
        for address in [&mut to_a, &mut to_b] {
            let Link::Auto { inband, .. } = &mut address.link else { panic!("{address:?}") };
            assert_eq!(inband.is_some(), bed.nic.order() == Order::Later);
            *inband = inband.filter(|_| has_it);
        }
        a.connect(to_b).unwrap();
        b.connect(to_a).unwrap();
        let is_there = has_it && bed.nic.order() == Order::Later;
        let choice = if is_there { Choice::Inband } else { Choice::Push };
        assert_eq!(a.tuning().unwrap().warp.choice(8), choice);
        let (pair, sent) = (Pair { a, b, src, dst }, pattern(8, BYTES));
        pair.src.write(0, &sent).unwrap();
        let args = op(&pair, Verb::Test, Scope::Block, 64);
        assert_eq!(launch(&bed, kernel_of(&bed), (1, 32), args), [OK]);
        pair.a.put(&bed.stream, message(64, 64, 64)).unwrap();
        pair.a.quiet(&bed.stream).unwrap();
        assert_same(&read(&pair.dst, 0, 128), &sent[..128], "whichever way");
    }
}

#[test]
fn what_is_no_auto_endpoint_says_so() {
    let bed = TestBed::fibres();
    let pair = bed.pair(Path::AUTO, BYTES, options(always(Choice::Push)));
    let told = pair.a.device().unwrap_err().to_string();
    assert!(told.contains("auto cannot be used as one queue pair"), "{told}");
    let fixed = bed.pair(path("push/kernel"), BYTES, Options::default());
    let told = fixed.a.auto_device().unwrap_err().to_string();
    assert!(told.contains("make the endpoint with Path::AUTO"), "{told}");
    let memory = bed.memory(64);
    let alone =
        Endpoint::new(&bed.gpu, &bed.nic, Path::AUTO, memory, options(always(Choice::Push)));
    assert!(matches!(alone.as_ref().unwrap().auto_device(), Err(Error::NotConnected)));
    let told = alone.unwrap().connect(fixed.b.address()).unwrap_err().to_string();
    assert!(told.contains("auto cannot connect to a queue pair"), "{told}");
    let path = path("push/kernel");
    let mut alone =
        Endpoint::new(&bed.gpu, &bed.nic, path, bed.memory(64), Options::default()).unwrap();
    let told = alone.connect(pair.b.address()).unwrap_err().to_string();
    assert!(told.contains("cannot connect to an auto endpoint"), "{told}");
}

/// Calls on another stream are refused whichever queue pair they would take, until quiet has waited.
#[test]
fn calls_are_on_one_stream() {
    let bed = TestBed::fibres();
    let pair = bed.pair(Path::AUTO, BYTES, options(each_its_own()));
    let held = bed.pair(path("push/kernel"), 64, Options::default());
    let mut hold = crate::test_bed::op(&held, Verb::WaitSignal, Scope::Block, 0);
    (hold.local, hold.value) = (held.src.addr(), 1);
    let statuses = bed.memory(4);
    hold.status = statuses.addr();
    let kernel = match bed.nic.order() {
        Order::Strict => "bp_verb_push_kernel_strict",
        _ => "bp_verb_push_kernel",
    };
    // Dropped before what the kernel on it reaches.
    let (stream, other) = (bed.gpu.stream().unwrap(), bed.gpu.stream().unwrap());
    for (first, second) in [(8, 9001), (9001, 8)] {
        set_word(&held.src, 0, 0);
        bed.queue_on(&stream, kernel, &hold);
        pair.a.put(&stream, message(0, 0, first)).unwrap();
        // The other queue pair has nothing queued.
        let refused = pair.a.put(&other, message(0, 0, second));
        assert!(matches!(refused, Err(Error::OtherStream)), "{first}: {refused:?}");
        assert!(matches!(pair.a.quiet(&other), Err(Error::OtherStream)), "{first}");
        set_word(&held.src, 0, 1);
        pair.a.quiet(&stream).unwrap();
        pair.a.put(&other, message(0, 0, second)).unwrap();
        pair.a.quiet(&other).unwrap();
    }
}

/// Everything in the GPU's memory: one fence of GPU scope, and no BlueFlame, which would need more.
#[test]
fn near_endpoints_take_the_weaker_fence() {
    use bellpush::transport::MemoryPlace::Gpu;
    let bed = TestBed::fibres();
    if !bed.gpu.is_host() || bed.nic.order() == Order::Strict {
        return; // queues that only an engine on a GPU reaches
    }
    for choice in Choice::ALL {
        let near = options(always(choice)).sq_place(Gpu).dbr_place(Gpu).window_place(Gpu);
        let (src, dst) = (Memory::from(bed.gpu.alloc(BYTES).unwrap()), bed.memory(BYTES));
        let (a, b) =
            Endpoint::pair(&bed.gpu, &bed.nic, Path::AUTO, (src.clone(), dst.clone()), near)
                .unwrap();
        assert_eq!(a.reach(), Reach::Gpu, "{choice}");
        assert!(!a.tuning().unwrap().block.choice(8).is_blueflame(), "{choice}");
        let sent = pattern(9, BYTES);
        src.write(0, &sent).unwrap();
        let pair = Pair { a, b, src, dst };
        for kernel in ["bp_verb_auto_near", "bp_verb_auto"] {
            pair.dst.write(0, &[0; BYTES]).unwrap();
            let args = op(&pair, Verb::Test, Scope::Block, 9001);
            assert_eq!(launch(&bed, kernel, (1, 32), args), [OK], "{choice}, {kernel}");
            assert_same(&read(&pair.dst, 0, 9001), &sent[..9001], kernel);
        }
    }
}

/// A connection that fails, and a reset, take no queue pair away.
#[test]
fn the_in_band_queue_pair_is_there_after_a_connection_that_failed() {
    let bed = TestBed::fibres();
    if bed.nic.order() == Order::Strict {
        return;
    }
    let mut pair = bed.pair(Path::AUTO, BYTES, options(each_its_own()));
    pair.a.reset().unwrap();
    pair.b.reset().unwrap();
    let to = pair.b.address();
    let Link::Auto { bell, inband: Some(inband) } = to.link else { panic!("{to:?}") };
    let nobody = QpAddress { qpn: Qpn(0x00ab_cdef), ..inband };
    let link = Link::Auto { bell, inband: Some(nobody) };
    // On a packet link nobody is asked whether the other is there.
    let told = pair.a.connect(Address { link, ..to }).is_err();
    assert_eq!(told, !crate::ENGINE.ends_with("packets"));
    pair.a.reset().unwrap();
    pair.a.connect(to).unwrap();
    pair.b.connect(pair.a.address()).unwrap();
    assert_eq!(pair.a.tuning().unwrap().block, each_its_own().block);
    let args = op(&pair, Verb::Put, Scope::Block, 64);
    let args = AutoOpArgs { op: OpArgs { quiet_after: 1, ..args.op }, ..args };
    let sent = pattern(3, 64);
    pair.src.write(0, &sent).unwrap();
    assert_eq!(launch(&bed, kernel_of(&bed), (1, 32), args), [OK]);
    assert_same(&read(&pair.dst, 0, 64), &sent, "in-band");
}
