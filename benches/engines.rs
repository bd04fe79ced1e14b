//! What the engines of a NIC cost each other: each has a thread, a queue pair to another NIC, and memory of its
//! own, so that all they share is what the NICs keep for all queue pairs. A WQE at a time: posted, rung for,
//! carried out.
//!
//! And what copy threads make of one queue pair: 1 MiB from a window, in WQEs of a slot each, from the doorbell to the
//! last completion. The rows that a machine has cores for.
//!
//! Aims: 1 M WQE/s a thread, and beside another engine four fifths of what it does alone. With a copy thread at
//! least as fast as without.
#![allow(missing_docs)]

mod aim;
#[path = "../tests/support/queue_pairs.rs"]
mod queue_pairs;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bellpush::nic::queue::HostQp;
use bellpush::nic::soft::{Engine, InProcess, Nap, Qp, SoftConfig, SoftNic};
use bellpush::nic::{Access, QpAttr, QueuePair};
use bellpush::wire::wqe::{Flags, Opcode, SendWr};
use criterion::{Criterion, Throughput};
use queue_pairs::{Buf, attr, make_qp};

/// Which engine the NICs have.
const ENGINE: &str = "cpu";

const WQES: u64 = 4096;

/// A queue pair that one engine serves, and where it reads and writes.
struct Lane {
    engine: Engine,
    host: HostQp,
    from: Buf,
    to: Buf,
    _ends: [(Arc<SoftNic>, Arc<Qp>); 2],
}

impl Lane {
    fn run(&mut self, wqes: u64) {
        let payload = [self.from.data(0, 64)];
        let wr =
            SendWr::new(Opcode::RdmaWrite).to(self.to.at(0), self.to.mr.rkey).payload(&payload);
        for i in 0..wqes {
            let last = i % 32 == 31;
            let flags = if last { Flags::SIGNALLED } else { Flags::default() };
            self.host.sq.post(&SendWr { flags, ..wr }).unwrap();
            self.host.sq.ring().unwrap();
            let mut steps = 0..1000;
            while self.engine.step(i).wqes == 0 {
                steps.next().expect("the engine finds what was posted");
            }
            if last {
                self.host.poll_send().unwrap().unwrap();
            }
        }
    }
}

fn lanes(count: usize) -> Vec<Lane> {
    let link = InProcess::new();
    let config = SoftConfig { engines: count, ..SoftConfig::new(&link) };
    let (nic, engines) = SoftNic::manual(&config).unwrap();
    let (peer, _) = SoftNic::manual(&config).unwrap();
    engines
        .into_iter()
        .map(|engine| {
            let ((qp, _), (other, _)) = (make_qp(&nic, &attr()), make_qp(&peer, &attr()));
            qp.connect(other.address()).unwrap();
            other.connect(qp.address()).unwrap();
            let host = HostQp::new(&*qp);
            let from = Buf::new(&nic, 4096, 0, Access::ALL);
            let to = Buf::new(&peer, 4096, 0, Access::ALL);
            Lane { engine, host, from, to, _ends: [(nic.clone(), qp), (peer.clone(), other)] }
        })
        .collect()
}

fn engines(c: &mut Criterion) {
    let mut group = c.benchmark_group("engines");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(300));
    group.sample_size(20);
    // What one thread does in the time: the same for any number of them, if they cost each other nothing.
    group.throughput(Throughput::Elements(WQES));
    for count in [1, 2] {
        let mut lanes = lanes(count);
        let name = format!("write_64B_each_rung_{count}_engines");
        group.bench_function(&name, |b| {
            b.iter_custom(|iters| {
                let start = Instant::now();
                std::thread::scope(|scope| {
                    for lane in &mut lanes {
                        scope.spawn(move || lane.run(WQES * iters));
                    }
                });
                let spent = start.elapsed();
                aim::note(&name, WQES * iters, spent);
                spent
            });
        });
    }
    group.finish();
}

const MESSAGE: u64 = 1 << 20;
/// Window and slot.
const WINDOWS: [(u64, u64, &str); 2] = [(128 << 10, 2 << 10, "2KiB"), (1 << 20, 8 << 10, "8KiB")];

fn copying(c: &mut Criterion) {
    let mut group = c.benchmark_group("copying");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(300));
    group.sample_size(20).throughput(Throughput::Bytes(MESSAGE));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for (window, slot, shown) in WINDOWS {
        // Engine, poster and copy threads.
        for copy_threads in [0, 1, 3, 7].into_iter().filter(|n| n + 2 <= cores || *n == 0) {
            let nap = Nap::for_threads(copy_threads + 2, cores + 1);
            let config = SoftConfig { copy_threads, nap, ..SoftConfig::new(&InProcess::new()) };
            let nic = SoftNic::open(config).unwrap();
            let wide = QpAttr { sq_blocks: 1024, send_cqes: 1024, ..attr() };
            let ((qp, _kept), (peer, _too)) = (make_qp(&nic, &wide), make_qp(&nic, &wide));
            qp.connect(peer.address()).unwrap();
            peer.connect(qp.address()).unwrap();
            let from = Buf::new(&nic, window as usize, 0, Access::ALL);
            let to = Buf::new(&nic, MESSAGE as usize, 0, Access::ALL);
            let mut host = HostQp::new(&*qp);
            let name = format!("1MiB_of_{shown}_{copy_threads}_copy_threads");
            group.bench_function(&name, |b| {
                b.iter_custom(|iters| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..iters {
                        for at in (0..MESSAGE).step_by(slot as usize) {
                            let payload = [from.data(at % window, slot as u32)];
                            let last = at + slot == MESSAGE;
                            let flags = if last { Flags::SIGNALLED } else { Flags::default() };
                            let wr = SendWr::new(Opcode::RdmaWrite).to(to.at(at), to.mr.rkey);
                            host.sq.post(&SendWr { flags, ..wr }.payload(&payload)).unwrap();
                        }
                        let start = Instant::now();
                        host.sq.ring().unwrap();
                        while host.poll_send().unwrap().is_none() {
                            std::hint::spin_loop();
                        }
                        spent += start.elapsed();
                    }
                    aim::note(&name, MESSAGE * iters, spent);
                    spent
                });
            });
        }
    }
    group.finish();
}

fn main() -> ExitCode {
    println!("engine: {ENGINE}");
    let mut c = Criterion::default().configure_from_args();
    engines(&mut c);
    copying(&mut c);
    c.final_summary();
    let mut aims = aim::Aims::default();
    let [one, two] = [1, 2].map(|n| aim::rate(&format!("write_64B_each_rung_{n}_engines")));
    aims.at_least("one engine", one.map(|rate| rate / 1e6), 1.0, "M WQE/s");
    let ratio = one.zip(two).map(|(one, two)| two / one);
    aims.at_least("a thread of two", ratio, 0.8, "of one alone");
    for (_, _, shown) in WINDOWS {
        let rate = |n| aim::rate(&format!("1MiB_of_{shown}_{n}_copy_threads"));
        let ratio = rate(0).zip(rate(1)).map(|(none, one)| one / none);
        aims.at_least("a copy thread", ratio, 1.0, "of none");
    }
    aims.end()
}
