use super::*;
use crate::topology::{Builder, Kind, Knob, RawLink, Topology};
use proptest::prelude::*;

fn link(gb_per_s: f64, credits: Credits) -> ChannelSpec {
    ChannelSpec {
        overhead_bytes: [24, 24, 20],
        unit_bytes: 4,
        credits,
        mps_bytes: 256,
        ..ChannelSpec::internal(gb_per_s, 50_000)
    }
}

fn plain(tags: u32) -> EndpointSpec {
    let completer =
        Completer { latency_ps: 100_000, piece_ps: 0, rcb_bytes: 256, merges: false, wait_ps: 0 };
    EndpointSpec { tags, completer, host_side: true }
}

/// Two endpoints, one link.
fn two(credits: Credits, tags: u32) -> (Sim, EndpointId, EndpointId) {
    let mut sim = Sim::new(1);
    let (a, b) = (sim.add_node(), sim.add_node());
    sim.add_channel(a, b, link(50.0, credits));
    sim.add_channel(b, a, link(50.0, credits));
    let (a, b) = (sim.add_endpoint(a, plain(tags)), sim.add_endpoint(b, plain(tags)));
    (sim, a, b)
}

fn write(from: EndpointId, to: EndpointId, bytes: u32) -> Program {
    let mut p = Program::new(u64::from(bytes));
    let until = Until::Visible;
    p.task(Step::Write { from, to, bytes, addr: 0, tlp_bytes: 256, until }, &[]);
    p
}

fn read(by: EndpointId, at: EndpointId, bytes: u32) -> Program {
    let mut p = Program::new(u64::from(bytes));
    p.task(Step::Read { by, at, bytes, addr: 0, request_bytes: 512 }, &[]);
    p
}

#[test]
fn one_write_takes_wire_and_latency() {
    let (mut sim, a, b) = two(Credits::INFINITE, 32);
    let r = sim.run(vec![Load { program: write(a, b, 256), window: 1, count: 4 }]).unwrap();
    // 280 B at 50 GB/s, and 50 ns.
    assert_eq!(r[0].latencies_ps, vec![55_600; 4]);
    assert!(sim.at_rest());
}

#[test]
fn reads_are_limited_by_tags_as_little_says() {
    let (mut sim, a, b) = two(Credits::INFINITE, 4);
    let r = sim.run(vec![Load { program: read(a, b, 512), window: 64, count: 2000 }]).unwrap();
    // One request out, 200 ns of latencies, 552 B back.
    let round_trip_ns = 0.48 + 50.0 + 100.0 + 50.0 + 11.04;
    let little = 4.0 * 512.0 / round_trip_ns;
    // The four completions share the link, so a little less.
    assert!(r[0].gb_per_s() <= little * 1.01 && r[0].gb_per_s() > little * 0.7);
    let (mut sim, a, b) = two(Credits::INFINITE, 256);
    let r = sim.run(vec![Load { program: read(a, b, 512), window: 256, count: 9000 }]).unwrap();
    assert!((r[0].gb_per_s() / (50.0 * 512.0 / 552.0) - 1.0).abs() < 0.01);
}

#[test]
fn credits_throttle_and_starve() {
    // A far end that forwards holds its buffer until the next link takes the TLP.
    let run = |tlps: u32, bytes: u32| {
        let mut sim = Sim::new(1);
        let (a, m, b) = (sim.add_node(), sim.add_node(), sim.add_node());
        let credits = Credits::buffers(tlps, bytes);
        for (x, y) in [(a, m), (m, b), (m, a), (b, m)] {
            sim.add_channel(x, y, link(50.0, credits));
        }
        let (a, b) = (sim.add_endpoint(a, plain(8)), sim.add_endpoint(b, plain(8)));
        let load = Load { program: write(a, b, 4096), window: 4, count: 200 };
        sim.run(vec![load]).map(|r| (r[0].gb_per_s(), sim.at_rest()))
    };
    let (few, rest_few) = run(2, 256).unwrap();
    let (many, rest_many) = run(256, 256).unwrap();
    assert!(rest_few && rest_many);
    // Two TLPs per 100 ns and their own time.
    assert!(few < 5.2 && many > 45.0, "{few} {many}");
    // Buffers smaller than a TLP can never take one.
    assert!(matches!(run(1, 64), Err(SimError::Deadlock { .. })));
}

#[test]
fn posted_writes_are_not_passed_by_reads() {
    // The second link is slow, so writes fill the buffers before it; a read that comes later waits
    // behind what is there.
    let read_ns = |write_bytes: u32| {
        let mut sim = Sim::new(1);
        let (a, m, b) = (sim.add_node(), sim.add_node(), sim.add_node());
        let credits = Credits::buffers(8, 256);
        for (x, y, gb_per_s) in [(a, m, 50.0), (m, b, 1.0), (b, m, 50.0), (m, a, 50.0)] {
            sim.add_channel(x, y, link(gb_per_s, credits));
        }
        let (a, b) = (sim.add_endpoint(a, plain(8)), sim.add_endpoint(b, plain(8)));
        let mut p = Program::new(0);
        let until = Until::Visible;
        let bytes = write_bytes;
        p.task(Step::Write { from: a, to: b, bytes, addr: 0, tlp_bytes: 256, until }, &[]);
        let later = p.task(Step::Delay { ps: 1_000_000 }, &[]);
        let read = Step::Read { by: a, at: b, bytes: 64, addr: 0, request_bytes: 64 };
        let got = p.task(read, &[later]);
        p.mark(got, 0);
        let result = sim.run(vec![Load { program: p, window: 1, count: 1 }]).unwrap();
        result[0].mark_ns(0) - 1000.0
    };
    let alone = read_ns(4);
    assert!(alone < 400.0, "{alone}");
    // Eight TLPs of 280 B at 1 GB/s are before it in the buffer.
    let behind = read_ns(65_536);
    assert!(behind > 8.0 * 280.0, "{behind}");
}

#[test]
fn a_cap_above_the_links_rate_makes_nothing_faster() {
    let rate = |peer_gb_per_s: f64| {
        let mut sim = Sim::new(1);
        let (a, m, b) = (sim.add_node(), sim.add_node(), sim.add_node());
        sim.set_root_complex(m, Forwards::default());
        let capped =
            ChannelSpec { peer_gb_per_s: [peer_gb_per_s; 3], ..link(50.0, Credits::INFINITE) };
        for (x, y) in [(a, m), (m, b), (b, m), (m, a)] {
            sim.add_channel(x, y, capped);
        }
        let device = EndpointSpec { host_side: false, ..plain(8) };
        let (a, b) = (sim.add_endpoint(a, device), sim.add_endpoint(b, device));
        let load = Load { program: write(a, b, 4096), window: 8, count: 400 };
        sim.run(vec![load]).unwrap()[0].gb_per_s()
    };
    let free = rate(0.0);
    assert!((rate(500.0) / free - 1.0).abs() < 1e-9);
    assert!((rate(10.0) / 10.0 - 1.0).abs() < 0.02, "{}", rate(10.0));
}

/// Host memory, a root port, a device: what the port's link carries for reads of 256 B.
fn reads_through_a_port(joins: bool, dllp_bytes: u32) -> (f64, Carried) {
    let mut sim = Sim::new(1);
    let (device, port, host) = (sim.add_node(), sim.add_node(), sim.add_node());
    let slow = ChannelSpec { dllp_bytes, ..link(10.0, Credits::INFINITE) };
    sim.add_channel(device, port, slow);
    let down = sim.add_channel(port, device, ChannelSpec { joins, ..slow });
    // Memory answers line by line, faster than the link takes them.
    sim.add_channel(port, host, link(200.0, Credits::INFINITE));
    sim.add_channel(host, port, link(200.0, Credits::INFINITE));
    let completer = Completer { rcb_bytes: 64, ..plain(64).completer };
    let by = sim.add_endpoint(device, plain(64));
    let at = sim.add_endpoint(host, EndpointSpec { completer, ..plain(64) });
    let load = Load { program: read(by, at, 256), window: 64, count: 4000 };
    let result = sim.run(vec![load]).unwrap();
    assert!(sim.at_rest());
    let (put_in, taken_out) = sim.bytes_in_out();
    assert_eq!((put_in, taken_out), (4000 * 256, 4000 * 256));
    (result[0].gb_per_s(), sim.carried(down))
}

#[test]
fn lines_join_where_they_wait_for_the_link() {
    let (cut, apart) = reads_through_a_port(false, 0);
    assert_eq!(apart.tlps, 4 * 4000);
    assert!((cut / (10.0 * 64.0 / 84.0) - 1.0).abs() < 0.01, "{cut}");
    let (joined, together) = reads_through_a_port(true, 0);
    // One TLP a read, but for the first that found the link free.
    assert!(together.tlps < 4000 + 8, "{together:?}");
    assert!((joined / (10.0 * 256.0 / 276.0) - 1.0).abs() < 0.01, "{joined}");
}

#[test]
fn every_tlp_is_answered_by_a_dllp_the_other_way() {
    let (with, _) = reads_through_a_port(true, 8);
    // A request for each completion: 8 B of Ack or UpdateFC between the completions.
    assert!((with / (10.0 * 256.0 / 284.0) - 1.0).abs() < 0.01, "{with}");
    // Writes alone have nothing but DLLPs the other way, and lose nothing.
    let rate = |dllp_bytes| {
        let (mut sim, a, b) = two(Credits::INFINITE, 8);
        for node in 0..2 {
            let other = 1 - node;
            sim.add_channel(
                node,
                other,
                ChannelSpec { dllp_bytes, ..link(1.0, Credits::INFINITE) },
            );
        }
        sim.run(vec![Load { program: write(a, b, 4096), window: 8, count: 400 }]).unwrap()[0]
            .gb_per_s()
    };
    assert!((rate(8) / rate(0) - 1.0).abs() < 1e-9);
}

#[test]
fn same_seed_same_numbers() {
    let run = |seed| {
        let t = crate::topology::builtin("two-sockets").unwrap();
        let params = Params::default();
        let gpu = t.find("gpu0").unwrap();
        let nic = t.find("nic0").unwrap();
        let spec = TestBedSpec { topology: &t, gpu, nic, params: &params, seed };
        predict(spec, PathModel::PushKernel, 4096, 4).unwrap().unwrap()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn memory_does_not_grow_with_time() {
    let records = |count| {
        let (mut sim, a, b) = two(Credits::buffers(8, 256), 32);
        let load = |program| Load { program, window: 8, count };
        sim.run(vec![load(write(a, b, 4096)), load(read(a, b, 4096))]).unwrap();
        sim.records()
    };
    // What is outstanding peaks a little higher in a longer run; a leak would be a hundredfold.
    assert!(records(20_000) < 2 * records(200));
}

#[derive(Debug, Clone)]
struct Shape {
    sockets: usize,
    roots: usize,
    /// Parent choice, generation, log2 of lanes, log2 of MPS; even ones are switches.
    devices: Vec<(usize, u32, u32, u32)>,
    cut: bool,
}

fn build(shape: &Shape) -> Topology {
    let mut b = Builder::new("random");
    let mut parents = Vec::new();
    for s in 0..shape.sockets {
        let socket = format!("s{s}");
        b.add(&socket, Kind::Socket, None, None, None);
        if s > 0 {
            b.interconnect(&format!("s{}", s - 1), &socket, 20.0, None);
        }
        for r in 0..shape.roots {
            let id = format!("rc{s}-{r}");
            let root = b.add(&id, Kind::RootComplex, Some(&socket), None, None);
            root.p2p.tlp_bytes = shape.cut.then_some(64);
            parents.push(id);
        }
    }
    for (i, &(parent, generation, lanes, mps)) in shape.devices.iter().enumerate() {
        let parent = parents[parent % parents.len()].clone();
        let raw = RawLink { generation, lanes: 1 << lanes, mps: 1 << mps, mrrs: 512 };
        let kind = match i % 3 {
            0 => Kind::Gpu,
            1 => Kind::Nic,
            _ => Kind::Switch,
        };
        let id = format!("d{i}");
        b.add(&id, kind, Some(&parent), Some(raw), None);
        if kind == Kind::Switch {
            parents.push(id);
        }
    }
    b.finish().expect("legal by construction")
}

fn shapes() -> impl Strategy<Value = Shape> {
    let device = (0usize..64, 1u32..=6, 0u32..=4, 7u32..=10);
    (1usize..=3, 1usize..=3, prop::collection::vec(device, 2..10), any::<bool>())
        .prop_map(|(sockets, roots, devices, cut)| Shape { sockets, roots, devices, cut })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Bytes conserved, credits never negative (an underflow panics) and all back, no deadlock.
    #[test]
    fn random_topologies_conserve_bytes(
        shape in shapes(),
        bytes in 1u32..20_000,
        credit_tlps in 2u32..40,
        tags in 1u32..64,
        order in 0u32..3,
        pages in prop_oneof![Just(1u32), Just(100_000)],
    ) {
        let mut t = build(&shape);
        if order > 0 {
            t = t.with(Knob::RelaxedOrdering, f64::from(order - 1)).unwrap();
            t = t.with(Knob::Iommu, f64::from(u8::from(pages > 1))).unwrap();
        }
        let p = Params {
            credit_tlps: f64::from(credit_tlps),
            nic_tags: f64::from(tags),
            window_kib: 16.0,
            iommu_pages: f64::from(pages),
            write_buffer_ns: f64::from(tags),
            ..Params::default()
        };
        let (gpu, nic) = (t.find("d0").unwrap(), t.find("d1").unwrap());
        let mut bed = TestBed::new(TestBedSpec { topology: &t, gpu, nic, params: &p, seed: 3 });
        let (n, f) = (bed.near, bed.far);
        let load = |program| Load { program, window: 3, count: 12 };
        let loads = vec![
            load(write(n.sm, n.window, bytes)),
            load(write(n.nic, f.nic, bytes)),
            load(write(f.nic, f.hbm, bytes)),
            load(read(n.nic, n.hbm, bytes)),
            load(read(n.nic, n.memory, bytes)),
            load(read(n.sm, n.memory, bytes)),
            load(write(n.sm, n.memory, bytes)),
            load(write(n.nic, n.memory, bytes)),
        ];
        let k = loads.len() as u64;
        let results = bed.sim.run(loads).unwrap();
        prop_assert!(results.iter().all(|r| r.done == 12));
        prop_assert!(bed.sim.at_rest());
        let (sent, got) = bed.sim.bytes_in_out();
        prop_assert_eq!(sent, got);
        prop_assert_eq!(sent, k * 12 * u64::from(bytes));
        for path in [PathModel::PushKernel, PathModel::PushInband, PathModel::Pull, PathModel::Staged] {
            let spec = TestBedSpec { topology: &t, gpu, nic, params: &p, seed: 3 };
            prop_assert!(predict(spec, path, bytes, 2).unwrap().is_some());
        }
    }
}

proptest! {
    /// What goes over a link is cut as the arithmetic cuts it.
    #[test]
    fn transfers_are_cut_as_the_arithmetic_cuts_them(
        addr in 0u64..9000,
        bytes in 1u32..9000,
        mps in 0u32..4,
        mrrs in 0u32..6,
        rcb in prop_oneof![Just(64u32), Just(128)],
        merges in any::<bool>(),
    ) {
        use crate::tlp::{self, Mps, Mrrs, Rcb};
        let (mps, mrrs) = (Mps::new(128 << mps).unwrap(), Mrrs::new(128 << mrrs).unwrap());
        let mut sim = Sim::new(1);
        let (a, b) = (sim.add_node(), sim.add_node());
        let spec = ChannelSpec { mps_bytes: mps.bytes(), ..link(50.0, Credits::INFINITE) };
        let (out, back) = (sim.add_channel(a, b, spec), sim.add_channel(b, a, spec));
        let completer = Completer { rcb_bytes: rcb, merges, ..plain(8).completer };
        let ends = [a, b].map(|n| sim.add_endpoint(n, EndpointSpec { completer, ..plain(8) }));
        let request_bytes = mrrs.bytes();
        let mut run = |step| {
            let before = [out, back].map(|c| sim.carried(c).tlps);
            let mut program = Program::new(0);
            program.task(step, &[]);
            sim.run(vec![Load { program, window: 1, count: 1 }]).unwrap();
            let after = [out, back].map(|c| sim.carried(c).tlps);
            (after[0] - before[0], after[1] - before[1])
        };
        let (from, to, until) = (ends[0], ends[1], Until::Visible);
        let wrote = run(Step::Write { from, to, bytes, addr, tlp_bytes: 4096, until });
        let writes = tlp::split_write(addr, bytes.into(), mps).count() as u64;
        prop_assert_eq!(wrote, (writes, 0));
        let read = run(Step::Read { by: from, at: to, bytes, addr, request_bytes });
        let rcb = Rcb::new(rcb).unwrap();
        let cut = |p: tlp::Piece| match merges {
            true => tlp::split_completion_mps(p.addr, p.bytes.into(), mps, rcb).count() as u64,
            false => tlp::split_completion_rcb(p.addr, p.bytes.into(), rcb).count() as u64,
        };
        let requests: Vec<_> = tlp::split_read(addr, bytes.into(), mrrs).collect();
        let completions: u64 = requests.iter().map(|&p| cut(p)).sum();
        prop_assert_eq!(read, (requests.len() as u64, completions));
    }
}

/// Nanoseconds for which this thread had a processor, where Linux says it: other threads take none of them.
fn on_processor_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// TLP events a second of a processor, in millions: four loads side by side across two sockets.
fn events_per_us() -> f64 {
    let t = crate::topology::builtin("two-sockets").unwrap();
    let params = Params::default();
    let (gpu, nic) = (t.find("gpu0").unwrap(), t.find("nic0").unwrap());
    let mut bed = TestBed::new(TestBedSpec { topology: &t, gpu, nic, params: &params, seed: 1 });
    let (n, f) = (bed.near, bed.far);
    let load = |program| Load { program, window: 4, count: 2000 };
    let (start, begun) = (std::time::Instant::now(), on_processor_ns());
    bed.sim
        .run(vec![
            load(write(n.sm, n.window, 65536)),
            load(write(n.nic, f.nic, 65536)),
            load(write(f.nic, f.hbm, 65536)),
            load(read(n.nic, n.hbm, 65536)),
        ])
        .unwrap();
    let taken = on_processor_ns().zip(begun).map(|(end, begun)| (end - begun) as f64 / 1e9);
    let s = taken.filter(|s| *s > 0.0).unwrap_or(start.elapsed().as_secs_f64());
    let rate = bed.sim.tlp_events() as f64 / s / 1e6;
    println!("{} TLP events in {s:.2} s: {rate:.2} M/s", bed.sim.tlp_events());
    rate
}

/// Speed; run with `--release --ignored --nocapture`.
#[test]
#[ignore = "measures time, in release: ./x test --long runs it"]
fn speed() {
    // Others slow a processor down by its caches too: the best of a few runs tells of the program.
    let best = (0..5).map(|_| events_per_us()).fold(0.0, f64::max);
    let least = if cfg!(debug_assertions) { 1.0 } else { 5.0 };
    assert!(best > least, "{best:.2} M/s");
}

const TRANSFER: Transfer = Transfer {
    route: 0,
    endpoint: 0,
    to_send: 64,
    to_arrive: 64,
    piece_bytes: 64,
    addr: 0,
    timer: 0,
    until: Until::Visible,
    rank: 0,
    page: 0,
    ready_ps: 0,
};
const REQUEST: ReadRequest =
    ReadRequest { transfer: 0, addr: 0, bytes: 64, to_send: 64, to_arrive: 64, completer: 1 };

fn inject(sim: &mut Sim) {
    sim.fabric.inject(&mut sim.cal, (0, Class::Posted, 0), 256, (false, 0));
}

#[test]
fn what_is_left_anywhere_is_no_rest() {
    let left: [fn(&mut Sim); 5] = [
        inject,
        |sim| _ = sim.transfers.put(TRANSFER),
        |sim| _ = sim.requests.put(REQUEST),
        |sim| _ = sim.draining.put((0, 1)),
        |sim| sim.endpoints[0].tags_free -= 1,
    ];
    for (i, leave) in left.into_iter().enumerate() {
        let (mut sim, a, b) = two(Credits::INFINITE, 4);
        sim.run(vec![Load { program: write(a, b, 256), window: 1, count: 1 }]).unwrap();
        assert!(sim.at_rest());
        leave(&mut sim);
        assert!(!sim.at_rest(), "{i}");
    }
}

#[test]
fn records_are_those_of_all_kinds() {
    let (mut sim, a, b) = two(Credits::INFINITE, 4);
    assert_eq!(sim.records(), 0);
    sim.route(a, b).unwrap();
    for (times, put) in [
        (2, inject as fn(&mut Sim)),
        (3, |sim: &mut Sim| _ = sim.transfers.put(TRANSFER)),
        (5, |sim: &mut Sim| _ = sim.requests.put(REQUEST)),
        (7, |sim: &mut Sim| _ = sim.draining.put((0, 1))),
        (11, |sim: &mut Sim| sim.instances.push(Instance::default())),
    ] {
        (0..times).for_each(|_| put(&mut sim));
    }
    assert_eq!(sim.records(), 2 + 3 + 5 + 7 + 11);
}

/// Without an order that is known, writes of a translated device are visible in order too.
#[test]
fn writes_that_may_pass_are_those_of_relaxed_devices() {
    let (mut sim, a, _) = two(Credits::INFINITE, 4);
    let transfer = sim.transfers.put(TRANSFER);
    for (order, may) in [(Order::Unknown, false), (Order::Strict, false), (Order::Relaxed, true)] {
        sim.set_order(a, order);
        assert_eq!(sim.is_relaxed(transfer), may, "{order:?}");
    }
}
