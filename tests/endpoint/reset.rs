//! Endpoints whose queue pairs ended, taken back to their beginning in the same memory.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::test_bed::*;
use bellpush::abi::entry::{OpArgs, Scope, Verb};
use bellpush::abi::wire::DeviceEndpoint;
use bellpush::nic::soft::link::ShmNet;
use bellpush::nic::soft::{SoftConfig, SoftNic};
use bellpush::nic::{Access, Nic, NicError, QpAddress};
use bellpush::transport::{
    Address, CompareSwap, Endpoint, Error, FetchAdd, Get, Link, Local, Memory, Options, Path,
    Progress, Put, Remote,
};
use bellpush::wire::{Iova, Rkey};

const REGION: usize = 64 << 10;
const WRONG: Rkey = Rkey(0x00ab_cd00);

/// Paths and kernels, those for sharing too.
const KERNELS: [(&str, &str); 9] = [
    ("push/kernel", "bp_verb_push_kernel"),
    ("push/blueflame", "bp_verb_push_blueflame"),
    ("push/inband", "bp_verb_push_inband_12_4"),
    ("pull/kernel", "bp_verb_pull_kernel"),
    ("pull/blueflame", "bp_verb_pull_blueflame"),
    ("staged/kernel", "bp_verb_push_kernel"),
    ("push/kernel", "bp_verb_shared_push_kernel"),
    ("pull/kernel", "bp_verb_shared_pull_kernel"),
    ("push/inband", "bp_verb_shared_push_inband_12_4"),
];

/// Few of everything, so that queues and slots are used again.
fn narrow() -> Options {
    Options::default().sq_blocks(64).window_bytes(8 * 128).slot_bytes(128)
}

/// Resets both ends and connects them again; how far `a` had come.
fn again(pair: &mut Pair) -> Progress {
    let progress = pair.a.reset().unwrap();
    pair.b.reset().unwrap();
    let (to_a, to_b) = (pair.a.address(), pair.b.address());
    pair.a.connect(to_b).unwrap();
    pair.b.connect(to_a).unwrap();
    progress
}

/// All verbs of an endpoint's, one way.
fn all_verbs(bed: &TestBed, from: (&Endpoint, &Memory), to: &Memory, seed: u64) {
    let ((ep, here), stream, path) = (from, &bed.stream, from.0.path());
    let done = |what| ep.quiet(stream).unwrap_or_else(|e| panic!("{path}, {what}: {e}"));
    let sent = pattern(seed, REGION);
    here.write(0, &sent).unwrap();
    to.write(0, &pattern(seed + 1, REGION)).unwrap();
    for (at, bytes) in [(0, 1), (1, 100), (200, 5000), (8192, 40_000)] {
        ep.put(stream, message(at, at, bytes)).unwrap();
        done("put");
        let found = read(to, at as usize, bytes as usize);
        assert_same(&found, &sent[at as usize..(at + bytes) as usize], &format!("{path}: put"));
    }
    set_word(to, 56 << 10, 5);
    let signalled = message(0, 0, 3000);
    ep.put(stream, Put { signal: signal(56 << 10, 2), ..signalled }).unwrap();
    done("put with a signal");
    assert_eq!(word(to, 56 << 10), 7, "{path}");
    let get = Get { from: Remote(8192), to: Local(32 << 10), bytes: 3001 };
    ep.get(stream, get).unwrap();
    done("get");
    assert_same(&read(here, 32 << 10, 3001), &read(to, 8192, 3001), &format!("{path}: get"));
    let word_at = Remote(56 << 10);
    ep.fetch_add(stream, FetchAdd { word: word_at, add: 3, old: Local(60 << 10) }).unwrap();
    done("fetch_add");
    let old = Local((60 << 10) + 8);
    ep.compare_swap(stream, CompareSwap { word: word_at, compare: 10, swap: 77, old }).unwrap();
    done("compare_swap");
    assert_eq!([0, 8].map(|at| word(here, (60 << 10) + at)), [7, 10], "{path}");
    assert_eq!(word(to, 56 << 10), 77, "{path}");
    assert!(ep.failure().is_none(), "{path}");
}

/// Both ends after a failure, three times, while another pair goes on.
#[test]
fn every_verb_of_every_path_works_after_a_reset() {
    let bed = TestBed::fibres();
    for path in bed.paths().filter(|&p| p != Path::TCP) {
        let other = bed.pair(path, REGION, narrow());
        let mut pair = bed.pair(path, REGION, narrow());
        let device = pair.a.device().ok();
        for round in 0..3 {
            // An end that addresses nothing fails; the other does not.
            let b = pair.b.address();
            pair.a.reset().unwrap();
            pair.b.reset().unwrap();
            pair.a.connect(Address { rkey: WRONG, ..pair.b.address() }).unwrap();
            pair.b.connect(pair.a.address()).unwrap();
            assert!(b != pair.b.address(), "{path}: another first PSN");
            pair.a.put(&bed.stream, message(0, 0, 100)).unwrap();
            assert!(pair.a.quiet(&bed.stream).is_err(), "{path}");
            other.a.put(&bed.stream, message(0, 0, 100)).unwrap();

            let progress = again(&mut pair);
            assert_eq!(progress.complete, 0, "{path}");
            assert!(progress.lost() > 0, "{path}: {progress:?}");
            all_verbs(&bed, (&pair.a, &pair.src), &pair.dst, 10 * round);
            all_verbs(&bed, (&pair.b, &pair.dst), &pair.src, 10 * round + 5);
            other.a.quiet(&bed.stream).unwrap();
        }
        // What kernels hold is as good as before.
        let bytes = |d: &DeviceEndpoint| bytemuck::bytes_of(d).to_vec();
        assert_eq!(pair.a.device().ok().as_ref().map(bytes), device.as_ref().map(bytes), "{path}");
    }
}

/// What is complete is told to the ticket, whether a kernel has taken its CQE or nobody.
#[test]
fn a_reset_tells_how_far_it_came() {
    for (name, kernel) in KERNELS {
        let bed = TestBed::fibres();
        if !bed.takes(path(name)) {
            continue;
        }
        let mut pair = bed.pair(path(name), REGION, narrow());
        let target = bed.memory(REGION);
        let mr = bed.nic.register(target.dma(), Iova(target.addr()), Access::ALL).unwrap();
        let mut op = op(&pair, Verb::PutInline, Scope::Block, 100);
        (op.ep.remote_iova, op.ep.remote_rkey) = (mr.iova.0, mr.rkey.0);
        (op.count, op.quiet_after) = (3, 1);
        assert_eq!(bed.launch(kernel, (1, 32), op), [OK], "{name}, {kernel}");
        bed.nic.deregister(mr).unwrap();
        op.quiet_after = 0;
        let ended = bed.launch(kernel, (1, 32), op);
        assert!(
            ended.len() == 1 && [OK, CQE_ERROR, DEAD].contains(&ended[0]),
            "{kernel}: {ended:?}"
        );
        let dead = OpArgs { op: Verb::Quiet as u32, count: 1, ..op };
        assert_eq!(bed.launch(kernel, (1, 32), dead), [CQE_ERROR], "{name}, {kernel}");
        let progress = again(&mut pair);
        // A hundred bytes take three blocks of the ring, or three slots of 48 payload bytes.
        assert_eq!(progress.complete, 9, "{name}, {kernel}: {progress:?}");
        assert!(progress.lost() > 0, "{name}, {kernel}: {progress:?}");
        // With CQEs that nobody has taken.
        let op = OpArgs { ep: pair.a.device().unwrap(), count: 2, ..op };
        assert_eq!(bed.launch(kernel, (1, 32), op), [OK], "{name}, {kernel}");
        let test = OpArgs { op: Verb::Quiet as u32, count: 1, ..op };
        assert_eq!(bed.launch(kernel, (1, 32), test), [OK], "{name}, {kernel}");
        let progress = again(&mut pair);
        assert_eq!(progress.lost(), 0, "{name}, {kernel}: {progress:?}");
    }
}

/// An engine that stands still has WQEs, doorbells and slots before it, which a reset takes away: what comes is what
/// is posted after it, and nothing twice.
#[test]
fn what_was_posted_before_a_reset_is_never_carried_out() {
    for (name, kernel) in KERNELS {
        let (bed, mut engine) = TestBed::manual();
        let mut pair = bed.pair(path(name), REGION, narrow().timeout(Duration::from_millis(50)));
        let what = format!("{name}, {kernel}");
        let mut now = 0;
        for (round, bytes) in [8u64, 100, 20].into_iter().enumerate() {
            let mut put = op(&pair, Verb::Put, Scope::Block, bytes);
            pair.src.write(0, &pattern(1, REGION)).unwrap();
            (put.count, put.remote_offset, put.remote_stride) = (2, 4096, 128);
            let posted = bed.launch(kernel, (1, 32), put)[0];
            assert!([OK, TIMEOUT].contains(&posted), "{what}: {posted}");
            let progress = again(&mut pair);
            // What is complete is the round before's.
            assert!(progress.lost() > 0, "{what}: {progress:?}");
            assert_eq!(progress.complete > 0, round > 0, "{what}: {progress:?}");
            step(&mut engine, &mut now);
            assert_eq!(read(&pair.dst, 0, REGION), vec![0; REGION], "{what}: nothing was posted");
            let sent = pattern(2 + round as u64, REGION);
            pair.src.write(0, &sent).unwrap();
            let put = OpArgs { ep: pair.a.device().unwrap(), count: 1, remote_offset: 64, ..put };
            assert_eq!(bed.launch(kernel, (1, 32), put), [OK], "{what}");
            step(&mut engine, &mut now);
            let quiet = OpArgs { op: Verb::Quiet as u32, ..put };
            assert_eq!(bed.launch(kernel, (1, 32), quiet), [OK], "{what}");
            let mut wanted = vec![0; REGION];
            wanted[64..64 + bytes as usize].copy_from_slice(&sent[..bytes as usize]);
            assert_same(&read(&pair.dst, 0, REGION), &wanted, &what);
            pair.dst.write(0, &vec![0; REGION]).unwrap();
        }
    }
}

/// CQEs go on where they were, over the CQ's end.
#[test]
fn completions_go_on_over_many_resets() {
    let bed = TestBed::fibres();
    for path in bed.paths().filter(|&p| p != Path::TCP) {
        let mut pair = bed.pair(path, REGION, narrow());
        for round in 0..9u64 {
            // More CQEs than twice the CQ's 128 entries, once.
            let puts = if round == 2 { 300 } else { 50 };
            let sent = pattern(round, REGION);
            pair.src.write(0, &sent).unwrap();
            for at in 0..puts {
                pair.a.put(&bed.stream, message(at * 100, at * 100, 100)).unwrap();
                if puts == 300 || at % 3 == round % 3 {
                    pair.a.quiet(&bed.stream).unwrap_or_else(|e| panic!("{path}, {round}: {e}"));
                }
            }
            pair.a.quiet(&bed.stream).unwrap();
            let bytes = puts as usize * 100;
            assert_same(&read(&pair.dst, 0, bytes), &sent[..bytes], &format!("{path}"));
            let progress = again(&mut pair);
            assert_eq!(progress.lost(), 0, "{path}: {progress:?}");
            assert!(progress.posted >= puts, "{path}: {progress:?}");
        }
    }
}

#[test]
fn a_reset_is_refused_while_calls_are_queued() {
    for name in ["push/kernel", "push/inband", "push/stream"] {
        let (bed, mut engine) = TestBed::manual();
        let mut pair = bed.pair(path(name), REGION, narrow().timeout(Duration::from_millis(300)));
        let filled = (0..4).try_for_each(|_| pair.a.put(&bed.stream, message(0, 0, 500)));
        assert!(filled.is_ok() || name == "push/stream", "{name}: {filled:?}");
        if name != "push/stream" {
            assert!(matches!(pair.a.reset(), Err(Error::Busy)), "{name}");
        }
        bed.stream.synchronize(Duration::from_secs(30)).unwrap();
        again(&mut pair);
        pair.src.write(0, &pattern(3, 64)).unwrap();
        pair.a.put(&bed.stream, message(0, 0, 64)).unwrap();
        bed.stream.synchronize(Duration::from_secs(30)).unwrap();
        step(&mut engine, &mut 0);
        pair.a.quiet(&bed.stream).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_same(&read(&pair.dst, 0, 64), &pattern(3, 64), name);
    }
}

/// A wait that gave up while its WQEs were out; what it left is gone with the reset.
#[test]
fn a_peer_that_is_not_reset_or_is_gone_is_told_at_once() {
    let bed = TestBed::fibres();
    for path in bed.paths().filter(|&p| p != Path::TCP) {
        let Pair { mut a, b, src: _src, dst } = bed.pair(path, REGION, narrow());
        let old = b.address();
        a.reset().unwrap();
        assert!(
            matches!(a.device(), Err(Error::NotConnected | Error::Unsupported { .. })),
            "{path}"
        );
        let refused = a.put(&bed.stream, message(0, 0, 8));
        assert!(matches!(refused, Err(Error::NotConnected)), "{path}: {refused:?}");
        assert!(matches!(a.connect(old), Err(Error::PeerNotReset)), "{path}");
        drop(b);
        let since = Instant::now();
        let gone = Address { link: reset_link(old), ..old };
        let told = a.connect(gone).and_then(|()| {
            a.put(&bed.stream, message(0, 0, 8))?;
            a.quiet(&bed.stream)
        });
        let known =
            matches!(told, Err(Error::Nic(NicError::NoSuchPeer { .. }) | Error::Completion { .. }));
        assert!(known, "{path}: {told:?}");
        assert!(since.elapsed() < Duration::from_secs(12), "{path}: {:?}", since.elapsed());
        // Another peer takes its place.
        a.reset().unwrap();
        let mut c = Endpoint::new(&bed.gpu, &bed.nic, path, dst.clone(), narrow()).unwrap();
        a.connect(c.address()).unwrap();
        c.connect(a.address()).unwrap();
        a.put(&bed.stream, message(0, 0, 8)).unwrap();
        a.quiet(&bed.stream).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
}

/// As if the peer had been reset before it went.
fn reset_link(old: Address) -> Link {
    match old.link {
        Link::Qp(qp) => Link::Qp(QpAddress { psn: qp.psn.plus(7), ..qp }),
        tcp => tcp,
    }
}

#[test]
fn tcp_is_not_reset() {
    let bed = TestBed::fibres();
    let mut pair = bed.pair(Path::TCP, 64, Options::default());
    assert!(matches!(pair.a.reset(), Err(Error::Unsupported { what: "be reset", .. })));
    pair.a.put(&bed.stream, message(0, 0, 8)).unwrap();
    pair.a.quiet(&bed.stream).unwrap();
}

/// A NIC on a link of packets, which goes with all of its queue pairs when it is dropped.
fn on_packets(net: &ShmNet, host: u8) -> Arc<dyn Nic> {
    let link = net.attach(IpAddr::from([127, 0, 0, host])).unwrap();
    SoftNic::open_on(SoftConfig::default(), Box::new(link)).unwrap()
}

/// Over packets: a peer is killed, which is told in time, also to who connects to it again; another takes its place.
#[test]
fn a_peer_that_was_killed_over_packets_is_replaced() {
    let bed = TestBed::fibres();
    for name in ["push/inband", "push/kernel", "pull/blueflame", "staged/cpu"] {
        let net = ShmNet::anonymous(true).unwrap();
        let (nic, path) = (on_packets(&net, 1), path(name));
        let options = || narrow().timeout(Duration::from_millis(900));
        let end = |nic: &Arc<dyn Nic>, memory: &Memory| {
            Endpoint::new(&bed.gpu, nic, path, memory.clone(), options()).unwrap()
        };
        let (src, dst) = (bed.memory(REGION), bed.memory(REGION));
        let mut a = end(&nic, &src);
        let fails = |a: &Endpoint| {
            let since = Instant::now();
            let told = a.put(&bed.stream, message(0, 0, 300)).and_then(|()| a.quiet(&bed.stream));
            assert!(told.is_err(), "{name}");
            assert!(since.elapsed() < Duration::from_secs(8), "{name}: {:?}", since.elapsed());
        };
        for round in 0..2u8 {
            let theirs = on_packets(&net, 2 + round);
            let mut b = end(&theirs, &dst);
            a.connect(b.address()).unwrap();
            b.connect(a.address()).unwrap();
            all_verbs(&bed, (&a, &src), &dst, round.into());
            b.reset().unwrap();
            let reset = b.address();
            drop((b, theirs));
            fails(&a);
            bed.stream.synchronize(Duration::from_secs(30)).unwrap();
            assert!(a.reset().unwrap().lost() > 0, "{name}");
            // A link of packets does not know who is there.
            a.connect(reset).unwrap();
            fails(&a);
            bed.stream.synchronize(Duration::from_secs(30)).unwrap();
            a.reset().unwrap();
        }
    }
}
