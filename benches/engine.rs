//! How fast one engine of the software NIC carries out what is posted.
//!
//! Only the engine's steps are timed; posting and polling are not. `memcpy` is what the machine
//! does with the same bytes and no NIC: the bound of the 4 KiB rows.
#![allow(missing_docs)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use bellpush::nic::slots::HostSlots;
use bellpush::nic::{LineFormat, QpAttr, QueuePair};
use bellpush::wire::wqe::{Flags, Opcode, Piece, SendWr};
use common::{Pair, attr, inband, inline};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};

const BATCH: u64 = 512;
const WINDOW: u64 = 128 << 10;

fn wide() -> QpAttr {
    QpAttr { sq_blocks: 1024, send_cqes: 1024, rq_wqes: 1024, recv_cqes: 1024, ..attr() }
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
    make: impl Fn(&Pair, u64) -> (SendWr<'static>, Piece<'static>),
) {
    let mut p = Pair::with(&wide(), &wide());
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
                spent += drain(&mut p);
                assert_eq!(p.sent().len() as u64, BATCH / every);
                p.received();
            }
            spent
        });
    });
}

fn engine(c: &mut Criterion) {
    static DATA: [u8; 4096] = [7; 4096];
    let mut group = c.benchmark_group("engine");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(300));
    group.sample_size(20);
    let write = |p: &Pair, to| SendWr::new(Opcode::RdmaWrite).to(p.b.buf.at(to), p.b.buf.mr.rkey);

    group.throughput(Throughput::Elements(BATCH));
    ring(&mut group, "write_8B_inline", 64, |p, i| (write(p, i * 8), Piece::Inline(&DATA[..8])));
    ring(&mut group, "write_8B_gather", 64, |p, i| (write(p, i * 8), p.a.buf.data(i * 8, 8)));
    ring(&mut group, "write_8B_signalled", 1, |p, i| (write(p, i * 8), p.a.buf.data(i * 8, 8)));
    ring(&mut group, "send_64B", 1, |p, i| (SendWr::new(Opcode::Send), p.a.buf.data(i * 64, 64)));
    for (line, name) in [(LineFormat::L12S4, "l12s4"), (LineFormat::L60S4, "l60s4")] {
        slots(&mut group, &format!("inband_64B_{name}"), line, &DATA[..64]);
    }

    group.throughput(Throughput::Elements(1));
    let mut p = Pair::with(&wide(), &wide());
    group.bench_function("post_step_poll_8B", |b| {
        b.iter(|| {
            let payload = inline(&DATA[..8]);
            let wr = write(&p, 0).payload(&payload);
            p.a.host.send(&wr).unwrap();
            p.now_ns += 1_000;
            p.engines[0].step(p.now_ns);
            assert!(p.a.host.poll_send().unwrap().is_some());
        });
    });

    group.throughput(Throughput::Bytes(BATCH * 4096));
    ring(&mut group, "write_4KiB_window", 64, |p, i| {
        let at = i * 4096 % WINDOW;
        (write(p, at), p.a.buf.data(at, 4096))
    });
    for (line, name) in [(LineFormat::L12S4, "l12s4"), (LineFormat::L60S4, "l60s4")] {
        slots(&mut group, &format!("inband_4KiB_{name}"), line, &DATA);
    }
    let p = Pair::with(&wide(), &wide());
    group.bench_function("memcpy_4KiB", |b| {
        b.iter(|| {
            for i in 0..BATCH as usize {
                let at = i * 4096 % WINDOW as usize;
                p.a.buf.view.mem.copy_to(at, &p.b.buf.view.mem, at, 4096).unwrap();
            }
        });
    });
    group.finish();
}

fn slots(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    line: LineFormat,
    data: &'static [u8],
) {
    let bytes = (line.lines(data.len() + 36) * line.line_bytes()).next_multiple_of(64);
    let cfg = inband(line, 64, bytes as u32, 1);
    let mut p = Pair::with(&QpAttr { inband: Some(cfg.clone()), ..wide() }, &wide());
    let mut slots = HostSlots::new(p.a.qp.qpn(), &cfg);
    group.bench_function(name, |b| {
        b.iter_custom(|iters| {
            let mut spent = Duration::ZERO;
            for _ in 0..iters * (BATCH / 64) {
                let payload = inline(data);
                for i in 0..64 {
                    let wr = SendWr { flags: flags(i, 64), ..SendWr::new(Opcode::RdmaWrite) };
                    let wr = wr.to(p.b.buf.at(i * 8), p.b.buf.mr.rkey).payload(&payload);
                    slots.post(&wr).unwrap();
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
            spent
        });
    });
}

criterion_group!(benches, engine);
criterion_main!(benches);
