//! How fast one engine of the software NIC carries out what is posted.
//!
//! Only the engine's steps are timed; posting and polling are not. `memcpy` is what the machine
//! does with the same bytes and no NIC: the bound of the 4 KiB rows. Before each batch of a `cold`
//! row, the core's own caches are filled with other memory, and no line is used twice in a batch:
//! every line that the engine touches is a miss, as it is when a device has written it.
//!
//! Aims, of a core of any server of the last years: 15 M WQE/s of 8 B in cache, 10 M if each is
//! signalled; 4 M with a receive's CQE, in band, or out of cache; 1 µs from a post to its completion; 100 ns for a
//! step that finds nothing; 4 KiB at a quarter of what memcpy does with them, a tenth out of cache. It is the
//! CPU's engine: `engine: cpu` is printed, and no WQE may have been carried out elsewhere.
#![allow(missing_docs)]

mod aim;
#[path = "../tests/support/queue_pairs.rs"]
mod queue_pairs;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bellpush::nic::slots::HostSlots;
use bellpush::nic::soft::{InProcess, SoftConfig, SoftNic};
use bellpush::nic::{Access, LineFormat, QpAttr, QueuePair};
use bellpush::wire::wqe::{Flags, Opcode, Piece, SendWr};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput};
use queue_pairs::{Buf, Pair, attr, inband, inline, make_qp};

/// Which engine the NICs have.
const ENGINE: &str = "cpu";

const BATCH: u64 = 512;
const WINDOW: u64 = 128 << 10;

fn wide() -> QpAttr {
    QpAttr { sq_blocks: 1024, send_cqes: 1024, rq_wqes: 1024, recv_cqes: 1024, ..attr() }
}

/// Twice what any core's own caches hold.
const CACHES: usize = 16 << 20;

/// Fills this core's caches with something else.
fn evict(other: &mut [u8]) {
    other.iter_mut().step_by(64).for_each(|b| *b = b.wrapping_add(1));
    std::hint::black_box(other);
}

/// Steps until the batch is done; only this is timed.
fn drain(p: &mut Pair) -> Duration {
    let start = Instant::now();
    let mut done = 0;
    while done < BATCH {
        p.now_ns += 1_000;
        done += p.engines[0].step(p.now_ns).wqes;
    }
    start.elapsed()
}

fn flags(i: u64, every: u64) -> Flags {
    if i % every == every - 1 { Flags::SIGNALLED } else { Flags::default() }
}

/// Batches through the ring: `make` says what request `i` of a batch is.
fn ring(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    every: u64,
    cold: bool,
    make: impl Fn(&Pair, u64) -> (SendWr<'static>, Piece<'static>),
) {
    let mut p = Pair::with(&wide(), &wide());
    let mut other = vec![0; CACHES];
    if cold {
        let bytes = BATCH as usize * 4096;
        p.a.buf = Buf::new(&p.nics[0], bytes, 0, Access::ALL);
        p.b.buf = Buf::new(&p.nics[1], bytes, 0, Access::ALL);
    }
    group.bench_function(name, |b| {
        b.iter_custom(|iters| {
            let mut spent = Duration::ZERO;
            for _ in 0..iters {
                for i in 0..BATCH {
                    let (wr, piece) = make(&p, i);
                    if wr.opcode == Opcode::Send {
                        p.b.host.rq.post(&[p.b.buf.sge(0, 4096)]).unwrap();
                    }
                    let payload = [piece];
                    let wr = SendWr { flags: flags(i, every), payload: &payload, ..wr };
                    p.a.host.sq.post(&wr).unwrap();
                }
                p.a.host.sq.ring().unwrap();
                if cold {
                    evict(&mut other);
                }
                spent += drain(&mut p);
                assert_eq!(p.sent().len() as u64, BATCH / every);
                p.received();
            }
            aim::note(name, BATCH * iters, spent);
            spent
        });
    });
    on_the_cpu(&p.nics[0]);
}

/// Another engine would be another bench.
fn on_the_cpu(nic: &SoftNic) {
    assert_eq!(nic.counters().offloaded, 0, "a kernel carried out WQEs of this bench");
}

fn engine(c: &mut Criterion) {
    static DATA: [u8; 4096] = [7; 4096];
    let mut group = c.benchmark_group("engine");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(300));
    group.sample_size(20);
    let write = |p: &Pair, to| SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(to), p.b.buf.mr.rkey);

    group.throughput(Throughput::Elements(BATCH));
    ring(&mut group, "write_8B_inline", 64, false, |p, i| {
        (write(p, i * 8), Piece::Inline(&DATA[..8]))
    });
    ring(&mut group, "write_8B_gather", 64, false, |p, i| {
        (write(p, i * 8), p.a.buf.data(i * 8, 8))
    });
    ring(&mut group, "write_8B_signalled", 1, false, |p, i| {
        (write(p, i * 8), p.a.buf.data(i * 8, 8))
    });
    ring(&mut group, "send_64B", 1, false, |p, i| {
        (SendWr::new(Opcode::Send), p.a.buf.data(i * 64, 64))
    });
    ring(&mut group, "write_8B_gather_cold", 64, true, |p, i| {
        (write(p, i * 4096), p.a.buf.data(i * 4096, 8))
    });
    for (line, name) in [(LineFormat::L12S4, "l12s4"), (LineFormat::L60S4, "l60s4")] {
        slots(&mut group, &format!("inband_64B_{name}"), line, false, &DATA[..64]);
    }
    group.throughput(Throughput::Elements(1));
    for (pairs, name) in [(1, "idle_step_2_qps"), (2, "idle_step_4_qps")] {
        let cfg = inband(LineFormat::L12S4, 64, 4096, 1);
        idle(&mut group, name, pairs, &wide());
        idle(&mut group, &format!("{name}_inband"), pairs, &QpAttr { inband: Some(cfg), ..wide() });
    }

    group.throughput(Throughput::Elements(1));
    let mut p = Pair::with(&wide(), &wide());
    group.bench_function("post_step_poll_8B", |b| {
        aim::iter(b, "post_step_poll_8B", 1, || {
            let payload = inline(&DATA[..8]);
            let wr = write(&p, 0).payload(&payload);
            p.a.host.send(&wr).unwrap();
            p.now_ns += 1_000;
            p.engines[0].step(p.now_ns);
            assert!(p.a.host.poll_send().unwrap().is_some());
        });
    });
    on_the_cpu(&p.nics[0]);

    group.throughput(Throughput::Bytes(BATCH * 4096));
    ring(&mut group, "write_4KiB_window", 64, false, |p, i| {
        let at = i * 4096 % WINDOW;
        (write(p, at), p.a.buf.data(at, 4096))
    });
    for (line, name) in [(LineFormat::L12S4, "l12s4"), (LineFormat::L60S4, "l60s4")] {
        slots(&mut group, &format!("inband_4KiB_{name}"), line, false, &DATA);
        slots(&mut group, &format!("inband_4KiB_{name}_cold"), line, true, &DATA);
    }
    for (every, name) in [(64, "write_4KiB_cold"), (1, "write_4KiB_cold_signalled")] {
        ring(&mut group, name, every, true, |p, i| {
            (write(p, i * 4096), p.a.buf.data(i * 4096, 4096))
        });
    }
    let p = Pair::with(&wide(), &wide());
    group.bench_function("memcpy_4KiB", |b| {
        aim::iter(b, "memcpy_4KiB", BATCH, || {
            for i in 0..BATCH as usize {
                let at = i * 4096 % WINDOW as usize;
                p.a.buf.view.mem().copy_to(at, p.b.buf.view.mem(), at, 4096).unwrap();
            }
        });
    });
    group.finish();
}

fn slots(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    line: LineFormat,
    cold: bool,
    data: &'static [u8],
) {
    let bytes = (line.lines(data.len() + 36) * line.line_bytes()).next_multiple_of(64);
    let cfg = inband(line, 64, bytes as u32, 1);
    let mut p = Pair::with(&QpAttr { inband: Some(cfg.clone()), ..wide() }, &wide());
    let mut slots = HostSlots::new(p.a.qp.qpn(), &cfg);
    let mut other = vec![0; CACHES];
    let stride = if cold { 4096 } else { 8 };
    if cold {
        p.b.buf = Buf::new(&p.nics[1], 64 * 4096, 0, Access::ALL);
    }
    group.bench_function(name, |b| {
        b.iter_custom(|iters| {
            let mut spent = Duration::ZERO;
            for _ in 0..iters * (BATCH / 64) {
                let payload = inline(data);
                for i in 0..64 {
                    let wr = SendWr { flags: flags(i, 64), ..SendWr::new(Opcode::RdmaWrite) };
                    let wr = wr.to(p.b.buf.at(i * stride), p.b.buf.mr.rkey).payload(&payload);
                    slots.post(&wr).unwrap();
                }
                if cold {
                    evict(&mut other);
                }
                let start = Instant::now();
                let mut done = 0;
                while done < 64 {
                    p.now_ns += 1_000;
                    done += p.engines[0].step(p.now_ns).wqes;
                }
                spent += start.elapsed();
                p.sent().iter().for_each(|c| slots.retire(c.wqe_counter));
            }
            aim::note(name, BATCH * iters, spent);
            spent
        });
    });
}

/// A step that finds nothing: one end of each pair was made with `attr`, and nothing is posted.
fn idle(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, pairs: usize, attr: &QpAttr) {
    let (nic, mut engines) = SoftNic::manual(&SoftConfig::new(&InProcess::new())).unwrap();
    let ends: Vec<_> = (0..pairs).map(|_| [attr, &wide()].map(|a| make_qp(&nic, a))).collect();
    for [(a, _), (b, _)] in &ends {
        a.connect(b.address()).unwrap();
        b.connect(a.address()).unwrap();
    }
    engines[0].step(1);
    group.bench_function(name, |b| aim::iter(b, name, 1, || engines[0].step(2)));
}

fn main() -> ExitCode {
    let mut c = Criterion::default().configure_from_args();
    engine(&mut c);
    c.final_summary();
    let mut aims = aim::Aims::default();
    let millions = |name: &str| aim::rate(name).map(|rate| rate / 1e6);
    for (name, wanted) in [
        ("write_8B_inline", 15.0),
        ("write_8B_gather", 15.0),
        ("write_8B_signalled", 10.0),
        ("write_8B_gather_cold", 4.0),
        ("send_64B", 4.0),
        ("inband_64B_l12s4", 4.0),
        ("inband_64B_l60s4", 4.0),
    ] {
        aims.at_least(name, millions(name), wanted, "M WQE/s");
    }
    let ns = |name: &str| aim::rate(name).map(|rate| 1e9 / rate);
    aims.at_most("post_step_poll_8B", ns("post_step_poll_8B"), 1000.0, "ns");
    for name in ["idle_step_2_qps", "idle_step_2_qps_inband", "idle_step_4_qps"] {
        aims.at_most(name, ns(name), 100.0, "ns");
    }
    let memcpy = aim::rate("memcpy_4KiB");
    for (name, wanted) in [
        ("write_4KiB_window", 0.25),
        ("inband_4KiB_l12s4", 0.1),
        ("inband_4KiB_l60s4", 0.25),
        ("write_4KiB_cold", 0.1),
    ] {
        let ratio = aim::rate(name).zip(memcpy).map(|(rate, memcpy)| rate / memcpy);
        aims.at_least(name, ratio, wanted, "of memcpy");
    }
    aims.end()
}
