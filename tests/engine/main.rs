//! The engine of `kernels/engine/engine.cuh`: the tests of the software NIC's own engine, byte for byte the
//! same, on it; and what is its alone.

#[path = "../support/nics.rs"]
mod nics;
#[path = "../support/queue_pairs.rs"]
mod queue_pairs;
#[path = "../support/test_bed.rs"]
mod test_bed;

#[path = "../soft_nic/coalesce.rs"]
mod coalesce;
#[path = "../endpoint/delivery.rs"]
mod delivery;
#[path = "../soft_nic/errors.rs"]
mod errors;
#[path = "../soft_nic/inband.rs"]
mod inband;
mod kernel;
#[path = "../endpoint/model.rs"]
mod model;
#[path = "../soft_nic/ops.rs"]
mod ops;
#[path = "../endpoint/placement.rs"]
mod placement;
#[path = "../endpoint/reset.rs"]
mod reset;
mod runs;
#[path = "../endpoint/verbs_immediates.rs"]
mod verbs_immediates;
#[path = "../endpoint/verbs_signals.rs"]
mod verbs_signals;

/// Which engine the NICs have.
const ENGINE: &str = "kernel";

mod own {
    use std::sync::Arc;
    use std::time::Duration;

    use bellpush::gpu::{Executor, Gpu, HostOptions};
    use bellpush::gpu_engine::EngineOptions;
    use bellpush::mem::{Dma, HostMem, View};
    use bellpush::nic::queue::HostQp;
    use bellpush::nic::slots::HostSlots;
    use bellpush::nic::soft::offload::Offload;
    use bellpush::nic::soft::{Counters, Engine, InProcess, SoftConfig, SoftNic};
    use bellpush::nic::{Access, LineFormat, Nic, NicError, QpAttr, QpState, QpType, QueuePair};
    use bellpush::transport::{Endpoint, Memory, MemoryPlace, Options};
    use bellpush::wire::Rkey;
    use bellpush::wire::cqe::{CqeOpcode, Syndrome};
    use bellpush::wire::wqe::{Flags, Opcode, Operands, SendWr};

    use crate::test_bed::message;

    use crate::queue_pairs::{
        Buf, Pair, attr, inband, inline, make_at, make_qp, pattern, stepped_engine, syndromes,
    };

    /// What is plain and correct is the engine's: nothing comes back.
    #[test]
    fn data_operations_are_carried_out_by_the_engine() {
        let mut p = Pair::new(&attr());
        p.b.buf.put(0, &pattern(4096, 1));
        let payload = [p.a.buf.data(0, 2000)];
        let eight = [p.a.buf.data(8, 8)];
        let atomic = Some(Operands { swap_add: 1, compare: 0 });
        let to = |wr: SendWr<'static>| wr.to(p.b.buf.at(0), p.b.buf.mr.rkey);
        let (write, read) = (to(SendWr::new(Opcode::RdmaWrite)), to(SendWr::new(Opcode::RdmaRead)));
        let add = to(SendWr { atomic, ..SendWr::new(Opcode::AtomicFa) });
        let swap = to(SendWr { atomic, ..SendWr::new(Opcode::AtomicCs) });
        let bytes = [7; 30];
        let short = inline(&bytes);
        let requests = [
            write.payload(&payload),
            read.payload(&payload),
            add.payload(&eight),
            swap.payload(&eight),
            write.payload(&short),
            SendWr::new(Opcode::Nop),
        ];
        for wr in &requests {
            assert_eq!(p.send(wr)[0].opcode, CqeOpcode::Req);
        }
        let seen = p.nics[0].counters();
        assert_eq!((seen.wqes, seen.offloaded, seen.returned), (6, 6, 0));
        // Control: a SEND is not the engine's, and what follows it is again.
        p.b.host.rq.post(&[]).unwrap();
        assert_eq!(p.send(&SendWr::new(Opcode::Send))[0].opcode, CqeOpcode::Req);
        assert_eq!(p.send(&requests[0])[0].opcode, CqeOpcode::Req);
        let seen = p.nics[0].counters();
        assert_eq!((seen.wqes, seen.offloaded, seen.returned), (8, 7, 1));
    }

    /// Both ring at one page from then on, whose registers are the host's to look at.
    #[test]
    fn a_newcomer_at_its_page_takes_a_queue_pair_back_where_it_was() {
        let mut p = Pair::new(&attr());
        let send = |p: &mut Pair, i: u8| {
            let bytes = [i; 16];
            let payload = inline(&bytes);
            let to = (p.b.buf.at(16 * u64::from(i)), p.b.buf.mr.rkey);
            p.a.host
                .send(&SendWr::new(Opcode::RdmaWrite).to(to.0, to.1).payload(&payload))
                .unwrap();
        };
        for i in 0..5 {
            send(&mut p, i);
            p.settle();
            assert_eq!(p.sent().len(), 1);
        }
        assert_eq!(p.nics[0].counters().offloaded, 5, "control: it is the engine's");
        send(&mut p, 5); // rung, and not seen yet
        let page = Some(p.a.qp.queues().uar.clone());
        let (_other, _memory) = make_at(&p.nics[0], (QpType::Rc, &attr()), None, page);
        for i in 6..9 {
            p.settle();
            assert_eq!(p.sent().len(), 1, "{i}");
            send(&mut p, i);
        }
        p.settle();
        assert_eq!(p.sent().len(), 1);
        (0..9).for_each(|i| assert_eq!(p.b.buf.get(16 * usize::from(i), 16), [i; 16]));
        assert_eq!(p.nics[0].counters().wqes, 9);
    }

    #[test]
    fn slots_and_blueflame_are_the_engines_too() {
        let cfg = inband(LineFormat::L60S4, 4, 1024, 1);
        let mut p = Pair::new(&QpAttr { inband: Some(cfg.clone()), ..attr() });
        let mut slots = HostSlots::new(p.a.qp.qpn(), &cfg);
        let data = pattern(700, 3);
        for _ in 0..9 {
            let payload = inline(&data);
            let to = (p.b.buf.at(3), p.b.buf.mr.rkey);
            slots.post(&SendWr::new(Opcode::RdmaWrite).to(to.0, to.1).payload(&payload)).unwrap();
            p.settle();
            p.sent().iter().for_each(|cqe| slots.retire(cqe.wqe_counter));
        }
        let seen = p.nics[0].counters();
        assert_eq!((seen.inband, seen.offloaded, seen.returned), (9, 9, 0));
        assert_eq!(p.b.buf.get(3, 700), data);

        // Streams shorter than a WRITE's headers: their slots' other lines are of an earlier lap.
        for line in LineFormat::ALL {
            let cfg = inband(line, 2, 512, 1);
            let mut p = Pair::new(&QpAttr { inband: Some(cfg.clone()), ..attr() });
            let mut slots = HostSlots::new(p.a.qp.qpn(), &cfg);
            for (i, opcode) in
                [Opcode::Nop, Opcode::RdmaWrite, Opcode::Send].into_iter().enumerate()
            {
                for _ in 0..5 {
                    p.b.host.rq.post(&[]).unwrap();
                    slots.post(&SendWr::new(opcode)).unwrap();
                    p.settle();
                    let cqes = p.sent();
                    assert_eq!(cqes.len(), 1, "{line:?} {opcode:?}");
                    assert_eq!(cqes[0].opcode, CqeOpcode::Req);
                    slots.retire(cqes[0].wqe_counter);
                }
                let seen = p.nics[0].counters();
                let theirs = 5 * (i as u64 + 1).min(2);
                assert_eq!((seen.offloaded, seen.returned), (theirs, seen.wqes - theirs));
            }
        }

        let mut p = Pair::new(&QpAttr { blueflame: true, ..attr() });
        for i in 0..9 {
            let payload = inline(&data[i..i + 100]);
            let to = (p.b.buf.at(3), p.b.buf.mr.rkey);
            let wr = SendWr::new(Opcode::RdmaWrite).to(to.0, to.1).payload(&payload);
            p.a.host.sq.post_blueflame(&wr).unwrap();
            p.settle();
            assert_eq!(p.sent().len(), 1);
            assert_eq!(p.b.buf.get(3, 100), data[i..i + 100]);
        }
        let seen = p.nics[0].counters();
        assert_eq!((seen.blueflame, seen.offloaded, seen.returned), (9, 9, 0));

        // A WQE in the buffer may name memory too.
        for i in 0..9 {
            let bytes = [64, 7, 300][i % 3];
            p.a.buf.put(0, &data[i..i + bytes]);
            let payload = [p.a.buf.data(0, bytes as u32)];
            let to = (p.b.buf.at(16), p.b.buf.mr.rkey);
            let wr = SendWr::new(Opcode::RdmaWrite).to(to.0, to.1).payload(&payload);
            p.a.host.sq.post_blueflame(&wr).unwrap();
            p.settle();
            assert_eq!(p.sent().len(), 1);
            assert_eq!(p.b.buf.get(16, bytes), data[i..i + bytes]);
        }
        let seen = p.nics[0].counters();
        assert_eq!((seen.blueflame, seen.offloaded, seen.returned), (18, 18, 0));
    }

    /// One NIC whose engine has some shape, and two regions of `bytes` on it.
    pub fn one(offload: Arc<Offload>, bytes: usize) -> (Arc<SoftNic>, Vec<Engine>, [Buf; 2]) {
        let config = SoftConfig { offload: Some(offload), ..SoftConfig::new(&InProcess::new()) };
        let (nic, engines) = SoftNic::manual(&config).unwrap();
        let bufs = [0, 1].map(|_| Buf::new(&nic, bytes, 0, Access::ALL));
        (nic, engines, bufs)
    }

    #[test]
    fn payload_of_every_size_and_alignment_is_shared_among_warps_and_blocks() {
        const BYTES: usize = 300 << 10;
        let data = pattern(BYTES, 5);
        for (blocks, threads) in [(1, 1), (1, 7), (1, 96), (3, 64)] {
            let (nic, mut engines, [src, dst]) = one(stepped_engine(blocks, threads), BYTES);
            let (a, _ma) = make_qp(&nic, &attr());
            let (b, _mb) = make_qp(&nic, &attr());
            a.connect(b.address()).unwrap();
            b.connect(a.address()).unwrap();
            let mut host = HostQp::new(&*a);
            src.put(0, &data);
            let mut now = 0;
            let sizes = [1, 3, 16, 333, 1024, 1025, 5000, 40_001, 131_072, 262_144 + 17];
            for (i, n) in sizes.into_iter().enumerate() {
                for (from, to) in [(0, 0), (1, 0), (0, 3), (5, 9), (4, 12)] {
                    dst.put(0, &vec![0xee; BYTES]);
                    let payload = [src.data(from, n)];
                    let opcode = [Opcode::RdmaWrite, Opcode::RdmaRead][i % 2];
                    let wr = match opcode {
                        Opcode::RdmaWrite => SendWr::new(opcode).to(dst.at(to), dst.mr.rkey),
                        _ => SendWr::new(opcode).to(src.at(from), src.mr.rkey),
                    };
                    let back = [dst.data(to, n)];
                    let entries = if opcode == Opcode::RdmaWrite { &payload } else { &back };
                    host.send(&wr.payload(entries)).unwrap();
                    for _ in 0..3 {
                        now += 1000;
                        engines.iter_mut().for_each(|e| {
                            e.step(now);
                        });
                    }
                    let cqe = host.poll_send().unwrap().expect("complete");
                    assert_eq!(cqe.opcode, CqeOpcode::Req);
                    let (from, to, n) = (from as usize, to as usize, n as usize);
                    assert!(
                        dst.get(to, n) == data[from..from + n],
                        "{blocks}x{threads}: {n} {from} {to}"
                    );
                    assert!(dst.get(0, to).iter().all(|&b| b == 0xee));
                    assert_eq!(dst.get(to + n, 1), [0xee]);
                }
            }
            let seen = nic.counters();
            assert_eq!((seen.offloaded, seen.returned), (50, 0), "{blocks}x{threads}");
        }
    }

    #[test]
    fn more_queue_pairs_than_places_are_served_all_the_same() {
        let (nic, mut engines, [src, dst]) = one(stepped_engine(1, 4), 4096);
        let mut ends = Vec::new();
        for _ in 0..20 {
            let (a, ma) = make_qp(&nic, &attr());
            let (b, mb) = make_qp(&nic, &attr());
            a.connect(b.address()).unwrap();
            b.connect(a.address()).unwrap();
            ends.push((HostQp::new(&*a), a, b, ma, mb));
        }
        for round in 0..3 {
            src.put(0, &pattern(4096, round));
            for (i, (host, ..)) in ends.iter_mut().enumerate() {
                let at = i as u64 * 64;
                let payload = [src.data(at, 64)];
                let wr = SendWr::new(Opcode::RdmaWrite).to(dst.at(at), dst.mr.rkey);
                host.send(&wr.payload(&payload)).unwrap();
            }
            (0..4).for_each(|_| engines.iter_mut().for_each(|e| _ = e.step(round * 1000)));
            for (host, ..) in &mut ends {
                assert_eq!(host.poll_send().unwrap().expect("complete").opcode, CqeOpcode::Req);
            }
            assert_eq!(dst.get(0, 20 * 64), pattern(4096, round)[..20 * 64]);
        }
        let seen = nic.counters();
        assert!(seen.offloaded > 0 && seen.offloaded < seen.wqes, "{seen:?}");
        // Places come free with their queue pairs.
        for (_, a, b, ..) in ends.drain(..) {
            nic.destroy_qp(a.qpn()).unwrap();
            nic.destroy_qp(b.qpn()).unwrap();
        }
        let (a, _ma) = make_qp(&nic, &attr());
        let (b, _mb) = make_qp(&nic, &attr());
        a.connect(b.address()).unwrap();
        b.connect(a.address()).unwrap();
        let before = nic.counters().offloaded;
        HostQp::new(&*a).send(&SendWr::new(Opcode::Nop)).unwrap();
        (0..3).for_each(|_| engines.iter_mut().for_each(|e| _ = e.step(9000)));
        assert_eq!(nic.counters().offloaded, before + 1);
    }

    #[test]
    fn a_region_that_is_changed_or_goes_is_not_reached_any_more() {
        let mut p = Pair::new(&attr());
        let other = Buf::new(&p.nics[1], 4096, 0, Access::ALL);
        let payload = inline(&[1; 8]);
        let wr = SendWr::new(Opcode::RdmaWrite).to(other.at(0), other.mr.rkey).payload(&payload);
        assert_eq!(p.send(&wr)[0].opcode, CqeOpcode::Req);
        // Elsewhere under the same key.
        let elsewhere = HostMem::alloc(4096).unwrap();
        let view = View::new(&elsewhere, 0, 4096).unwrap();
        let memory = Some((Arc::new(view.clone()) as Arc<dyn Dma>, other.mr.iova));
        let change = bellpush::nic::soft::Reregister { memory, ..Default::default() };
        p.nics[1].reregister(other.mr, change).unwrap();
        let again = inline(&[2; 8]);
        let wr2 = SendWr::new(Opcode::RdmaWrite).to(other.at(0), other.mr.rkey).payload(&again);
        assert_eq!(p.send(&wr2)[0].opcode, CqeOpcode::Req);
        let mut got = [0; 8];
        view.read(0, &mut got).unwrap();
        assert_eq!((got, other.get(0, 8)), ([2; 8], vec![1; 8]));
        assert_eq!(p.nics[0].counters().returned, 0);
        p.nics[1].deregister(other.mr).unwrap();
        assert_eq!(syndromes(&p.send(&wr)), [Some(Syndrome::RemoteAccess)]);
        view.read(0, &mut got).unwrap();
        assert_eq!(got, [2; 8]);
    }

    /// An engine that runs all the time, with launches that end often.
    pub fn running(run: Duration) -> Arc<SoftNic> {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let options = EngineOptions { blocks: 2, threads: 1, run, ..EngineOptions::new(&gpu) };
        let offload = Some(bellpush::gpu_engine::open(&gpu, &[], options).unwrap());
        SoftNic::open(SoftConfig { offload, ..SoftConfig::new(&InProcess::new()) }).unwrap()
    }

    pub fn completion(host: &mut HostQp, nic: &SoftNic) -> bellpush::wire::cqe::Cqe {
        let since = std::time::Instant::now();
        loop {
            if let Some(cqe) = host.poll_send().unwrap() {
                return cqe;
            }
            if since.elapsed() > Duration::from_secs(60) {
                panic!("no completion: {:?}, {:?}", nic.trouble(), nic.counters());
            }
            std::thread::yield_now();
        }
    }

    /// The counters when they tell of so many WQEs: an engine that runs tells what it did now and then, and the NIC's
    /// thread looks now and then. A completion waits for neither.
    pub fn told(nic: &SoftNic, wqes: u64) -> Counters {
        let since = std::time::Instant::now();
        loop {
            let seen = nic.counters();
            if seen.wqes == wqes {
                return seen;
            }
            assert!(since.elapsed() < Duration::from_secs(20), "not {wqes} WQEs: {seen:?}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn nothing_is_lost_from_launch_to_launch_or_when_regions_come_and_go() {
        let nic = running(Duration::from_micros(200));
        let (src, dst) =
            (Buf::new(&nic, 8192, 0, Access::ALL), Buf::new(&nic, 8192, 0, Access::ALL));
        let (a, _ma) = make_qp(&nic, &attr());
        let (b, _mb) = make_qp(&nic, &attr());
        a.connect(b.address()).unwrap();
        b.connect(a.address()).unwrap();
        let mut host = HostQp::new(&*a);
        for i in 0..300u64 {
            src.put(0, &pattern(8192, i));
            let n = [8, 700, 8192][i as usize % 3];
            let payload = [src.data(0, n)];
            let wr = SendWr::new(Opcode::RdmaWrite).to(dst.at(0), dst.mr.rkey).payload(&payload);
            host.send(&wr).unwrap();
            assert_eq!(completion(&mut host, &nic).opcode, CqeOpcode::Req, "message {i}");
            assert_eq!(dst.get(0, n as usize), pattern(8192, i)[..n as usize], "message {i}");
            if i % 20 == 0 {
                let short_lived = Buf::new(&nic, 4096, 0, Access::ALL);
                nic.deregister(short_lived.mr).unwrap();
            }
        }
        let seen = told(&nic, 300);
        assert!(seen.offloaded > 250, "{seen:?}");
        // An error in between is the host's to say, and the engine's launches go on.
        let payload = inline(&[0; 8]);
        host.send(&SendWr::new(Opcode::RdmaWrite).to(dst.at(0), Rkey(7)).payload(&payload))
            .unwrap();
        assert_eq!(completion(&mut host, &nic).syndrome, Syndrome::RemoteAccess as u8);
        assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Err));
        host.send(&SendWr::new(Opcode::Nop)).unwrap();
        assert_eq!(completion(&mut host, &nic).syndrome, Syndrome::WrFlush as u8);
        assert!(nic.trouble().is_none());
    }

    /// Queues and window in the sender's memory or the host's: all is the engine's, and nothing comes back.
    #[test]
    fn queues_wherever_they_lie_are_the_engines() {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let stream = gpu.stream().unwrap();
        let place = |n: usize, part: usize| [MemoryPlace::Host, MemoryPlace::Gpu][n >> part & 1];
        for n in 0..16 {
            let options = Options::default()
                .sq_place(place(n, 0))
                .dbr_place(place(n, 1))
                .cq_place(place(n, 2))
                .window_place(place(n, 3));
            for path in ["push/inband", "push/kernel", "pull/kernel", "push/blueflame"] {
                let soft = running(Duration::from_millis(5));
                let nic: Arc<dyn Nic> = soft.clone();
                let memory = [0; 2].map(|_| Memory::from(gpu.alloc(4096).unwrap()));
                let pair = Endpoint::pair(
                    &gpu,
                    &nic,
                    path.parse().unwrap(),
                    memory.into(),
                    options.clone(),
                );
                let (a, _b) = pair.unwrap();
                let put = |at: u64| {
                    a.put(&stream, message(at * 64, at * 64, 64)).unwrap();
                    a.quiet(&stream).unwrap();
                };
                let since = std::time::Instant::now();
                let what = format!("{path}: {:?}", a.options());
                let seen = || {
                    let seen = soft.counters();
                    [seen.wqes, seen.offloaded, seen.returned]
                };
                // The host's engine may take what is posted before the GPU's has the queue pair.
                let mut first = 0;
                while seen()[1] == 0 {
                    assert!(since.elapsed() < Duration::from_secs(20), "{what}: {:?}", seen());
                    put(8);
                    first += 1;
                }
                for at in 0..8 {
                    put(at);
                }
                // The engine tells its counts a little later, and each by itself. One of the first was
                // its own, or more.
                while seen()[0] != first + 8 || seen()[1] <= 8 {
                    assert!(since.elapsed() < Duration::from_secs(20), "{what}: {:?}", seen());
                    std::thread::yield_now();
                }
                assert_eq!(seen()[2], 0, "{what}");
            }
        }
    }

    #[test]
    fn a_peer_that_goes_is_left_alone_at_once() {
        let nic = running(Duration::from_millis(5));
        let dst = Buf::new(&nic, 4096, 0, Access::ALL);
        let (a, _ma) = make_qp(&nic, &attr());
        let (b, mb) = make_qp(&nic, &attr());
        a.connect(b.address()).unwrap();
        b.connect(a.address()).unwrap();
        let mut host = HostQp::new(&*a);
        let payload = inline(&[3; 8]);
        let wr = SendWr::new(Opcode::RdmaWrite).to(dst.at(0), dst.mr.rkey).payload(&payload);
        host.send(&wr).unwrap();
        assert_eq!(completion(&mut host, &nic).opcode, CqeOpcode::Req);
        nic.destroy_qp(b.qpn()).unwrap();
        drop((b, mb));
        dst.put(0, &[9; 8]);
        host.send(&wr).unwrap();
        assert_eq!(completion(&mut host, &nic).syndrome, Syndrome::TransportRetryExc as u8);
        assert_eq!(dst.get(0, 8), [9; 8]);
    }

    #[test]
    fn what_is_asked_for_between_two_launches_is_returned_by_the_next() {
        let mut p = Pair::new(&attr());
        let payload = inline(&[1; 8]);
        let to = (p.b.buf.at(0), p.b.buf.mr.rkey);
        let wr = SendWr::new(Opcode::RdmaWrite).to(to.0, to.1).payload(&payload);
        for _ in 0..3 {
            assert_eq!(p.send(&wr)[0].opcode, CqeOpcode::Req);
            p.a.qp.modify(QpState::Sqd, &Default::default()).unwrap();
            p.a.host.send(&wr).unwrap();
            p.run_for(10_000);
            assert!(p.sent().is_empty(), "control: nothing is sent in SQD");
            p.a.qp.modify(QpState::Rts, &Default::default()).unwrap();
            p.settle();
            assert_eq!(p.sent().len(), 1);
        }
        let seen = p.nics[0].counters();
        assert_eq!((seen.wqes, seen.offloaded, seen.returned), (6, 6, 0));
        let since = std::time::Instant::now();
        p.nics[0].destroy_qp(p.a.qp.qpn()).unwrap();
        assert!(p.nics[0].trouble().is_none());
        assert!(since.elapsed() < Duration::from_secs(3), "the engine's answer was not waited for");
    }

    #[test]
    fn an_engine_that_cannot_be_launched_is_the_nics_trouble() {
        let gpu = Gpu::open(Executor::Host(HostOptions { max_lanes: 1, ..Default::default() }));
        let gpu = gpu.unwrap();
        let options = EngineOptions { threads: 2, rounds: Some(2), ..EngineOptions::new(&gpu) };
        let offload = bellpush::gpu_engine::open(&gpu, &[], options).unwrap();
        let (nic, mut engines, _) = one(offload, 4096);
        let (a, _ma) = make_qp(&nic, &attr());
        let (b, _mb) = make_qp(&nic, &attr());
        a.connect(b.address()).unwrap();
        b.connect(a.address()).unwrap();
        (0..3).for_each(|i| _ = engines[0].step(i));
        let why = nic.trouble().expect("it does not run").to_string();
        assert!(why.starts_with("the NIC's engine is gone: ") && why.contains("lanes"), "{why}");
    }

    #[test]
    fn an_engine_that_dies_is_the_nics_trouble_and_holds_nobody_up() {
        let gpu = Gpu::open(Executor::Host(HostOptions::default())).unwrap();
        let options = EngineOptions { rounds: Some(2), ..EngineOptions::new(&gpu) };
        let offload = bellpush::gpu_engine::open(&gpu, &[], options).unwrap();
        let (nic, mut engines, [_, dst]) = one(offload.clone(), 4096);
        let (a, _ma) = make_qp(&nic, &attr());
        let (b, _mb) = make_qp(&nic, &attr());
        a.connect(b.address()).unwrap();
        b.connect(a.address()).unwrap();
        let mut host = HostQp::new(&*a);
        let payload = inline(&[3; 8]);
        let wr = SendWr::new(Opcode::RdmaWrite).to(dst.at(0), dst.mr.rkey).payload(&payload);
        host.send(&wr).unwrap();
        (0..3).for_each(|i| _ = engines[0].step(i));
        assert_eq!(host.poll_send().unwrap().unwrap().opcode, CqeOpcode::Req);
        assert!(nic.trouble().is_none(), "control: it works");
        offload.fail("the test ended it");
        (0..40).for_each(|i| _ = engines[0].step(i));
        let why = nic.trouble().expect("it has died").to_string();
        assert_eq!(why, "the NIC's engine is gone: the test ended it");
        // What it had does not move; nothing waits for it, and new queue pairs do without.
        let refused = a.modify(QpState::Reset, &Default::default()).unwrap_err();
        assert!(matches!(refused, NicError::Engine(_)), "{refused}");
        let (c, _mc) = make_qp(&nic, &attr());
        let (d, _md) = make_qp(&nic, &attr());
        c.connect(d.address()).unwrap();
        d.connect(c.address()).unwrap();
        let mut other = HostQp::new(&*c);
        let flags = Flags::SIGNALLED;
        other.send(&SendWr { flags, ..wr }).unwrap();
        (0..3).for_each(|i| _ = engines[0].step(i));
        assert_eq!(other.poll_send().unwrap().unwrap().opcode, CqeOpcode::Req);
        nic.destroy_qp(a.qpn()).unwrap();
    }
}
