//! What packet links carry between two threads: 4 KiB packets as fast as they go, and the time of a
//! short packet one way. Beside them, what a plain memcpy of 1 MiB does.
//!
//! A packet's payload is copied from a region of 64 MiB into the frame and, on the other side, to
//! another region, as a NIC gathers and scatters; where the link has an ICRC, it is computed and
//! checked. `cargo bench --bench links`.
//!
//! Aims, beside memcpy: shared memory a third of it, with ICRC a sixth, UDP on loopback a twentieth; a
//! packet of 8 B one way in 1 µs, over UDP in 20 µs. (With fewer cores than two threads want, latencies
//! are the scheduler's.)

mod aim;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bellpush::mem::{Dma, HostMem, View};
use bellpush::nic::soft::link::{Link, Received, ShmNet, TxBatch, UdpLink};
use bellpush::wire::roce::{
    Addresses, Bth, Envelope, Headers, Opcode, Operation, Packet, Position,
};
use bellpush::wire::{Psn, Qpn};

const REGION: usize = 64 << 20;
const RUN: Duration = Duration::from_secs(2);
const ROUND_TRIPS: u32 = 20_000;

fn region() -> View {
    let mem = HostMem::alloc(REGION).unwrap();
    View::new(&mem, 0, REGION).unwrap()
}

fn now(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

/// Builds a WRITE MIDDLE with payload from the region.
fn push(batch: &mut TxBatch, link: &dyn Link, envelope: &Envelope, from: &View, n: u32) -> bool {
    let bth = Bth::new(Opcode::rc(Operation::write(Position::Middle, false)), Qpn(1), Psn::new(n));
    let at = n as usize % (REGION / 4096) * 4096;
    batch.push(envelope.addresses.dst(), |buf| {
        let mut frame = Headers::new(bth).emit(4096, buf);
        from.read(at, frame.payload_mut()).unwrap();
        Some(frame.finish(Some(envelope).filter(|_| link.has_icrc())))
    })
}

/// Takes a packet as a NIC does: checks it, copies its payload to the region.
fn take(packet: &Received<'_>, icrc: bool, to: &View) {
    if icrc {
        Packet::check(packet.bytes, &packet.envelope).unwrap();
    }
    let parsed = Packet::parse(packet.bytes).unwrap();
    let psn = parsed.headers.bth.psn.value() as usize;
    to.write(psn % (REGION / 4096) * 4096, parsed.payload).unwrap();
}

/// Nanoseconds of a 4 KiB packet at the sender and at the receiver, by turns in one thread: what
/// each costs where neither waits, and both share a cache.
fn cost(mut a: Box<dyn Link>, mut b: Box<dyn Link>) -> (f64, f64) {
    let addresses = Addresses::new(a.address(), b.address()).unwrap();
    let envelope = Envelope::new(addresses, a.src_port());
    let (from, to, icrc) = (region(), region(), b.has_icrc());
    let (start, mut batch) = (Instant::now(), TxBatch::new(16));
    let (mut sending, mut receiving, mut sent, mut arrived) = (0, 0, 0, 0);
    while start.elapsed() < RUN / 2 {
        let t0 = Instant::now();
        while push(&mut batch, &*a, &envelope, &from, sent) {
            sent += 1;
        }
        a.send(now(start), &mut batch).unwrap();
        let t1 = Instant::now();
        arrived += b.recv(now(start), 32, &mut |packet| take(packet, icrc, &to)).unwrap();
        sending += (t1 - t0).as_nanos();
        receiving += t1.elapsed().as_nanos();
    }
    (sending as f64 / f64::from(sent), receiving as f64 / arrived as f64)
}

/// 4 KiB packets a second, with at most `window` on their way.
fn stream(mut a: Box<dyn Link>, mut b: Box<dyn Link>, window: u64) -> f64 {
    let addresses = Addresses::new(a.address(), b.address()).unwrap();
    let envelope = Envelope::new(addresses, a.src_port());
    let (from, to) = (region(), region());
    let (arrived, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let (arrived, stop) = (&arrived, &stop);
        scope.spawn(move || {
            let icrc = b.has_icrc();
            while !stop.load(Ordering::Relaxed) {
                let n = b.recv(now(start), 32, &mut |packet| take(packet, icrc, &to));
                arrived.fetch_add(n.unwrap() as u64, Ordering::Relaxed);
            }
        });
        // Batches that stay in a core's cache.
        let (mut batch, mut sent, mut lost, mut last) = (TxBatch::new(16), 0u64, 0u64, (0, start));
        while start.elapsed() < RUN {
            let there = arrived.load(Ordering::Relaxed);
            // What a socket's buffer lost never arrives: it is given up after a while.
            if there != last.0 {
                last = (there, Instant::now());
            } else if last.1.elapsed() > Duration::from_millis(5) {
                lost = sent - there;
            }
            while sent.saturating_sub(there + lost) < window
                && push(&mut batch, &*a, &envelope, &from, sent as u32)
            {
                sent += 1;
            }
            a.send(now(start), &mut batch).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    arrived.into_inner() as f64 / start.elapsed().as_secs_f64()
}

/// Nanoseconds of a packet of 8 bytes one way: half a round trip.
fn latency(mut a: Box<dyn Link>, mut b: Box<dyn Link>) -> f64 {
    let start = Instant::now();
    let answer = |link: &mut dyn Link, batch: &mut TxBatch, to, bytes: usize| {
        batch.push(to, |buf| {
            let opcode = Opcode::rc(Operation::SendOnly);
            let mut frame = Headers::new(Bth::new(opcode, Qpn(1), Psn::new(0))).emit(bytes, buf);
            frame.payload_mut().fill(1);
            Some(frame.finish(None))
        });
        link.send(0, batch).unwrap();
    };
    let wait = |link: &mut dyn Link| while link.recv(0, 1, &mut |_| {}).unwrap() == 0 {};
    let (to_a, to_b) = (a.address(), b.address());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut batch = TxBatch::new(1);
            for _ in 0..ROUND_TRIPS {
                wait(&mut *b);
                answer(&mut *b, &mut batch, to_a, 8);
            }
        });
        let mut batch = TxBatch::new(1);
        for _ in 0..ROUND_TRIPS {
            answer(&mut *a, &mut batch, to_b, 8);
            wait(&mut *a);
        }
    });
    start.elapsed().as_nanos() as f64 / f64::from(2 * ROUND_TRIPS)
}

/// Bytes a second of memcpy, 1 MiB at a time through the regions.
fn memcpy() -> f64 {
    let (from, mut to) = (vec![1u8; REGION], vec![2u8; REGION]);
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < RUN / 2 {
        for at in (0..REGION).step_by(1 << 20) {
            to[at..at + (1 << 20)].copy_from_slice(black_box(&from[at..at + (1 << 20)]));
        }
        black_box(&mut to);
        bytes += REGION;
    }
    bytes as f64 / start.elapsed().as_secs_f64()
}

/// Bytes a second of packets of 4 KiB, and nanoseconds of 8 B one way.
fn report(
    name: &str,
    pair: impl Fn() -> (Box<dyn Link>, Box<dyn Link>),
    window: u64,
) -> (f64, f64) {
    let (a, b) = pair();
    let (tx_ns, rx_ns) = cost(a, b);
    println!("{name:24} costs the sender {tx_ns:.0} ns a packet, the receiver {rx_ns:.0} ns");
    let (a, b) = pair();
    let packets = stream(a, b, window);
    let (a, b) = pair();
    let ns = latency(a, b);
    let gb = packets * 4096.0 / 1e9;
    println!("{name:24} {:8.0} k packets/s {gb:6.2} GB/s  8 B one way {ns:6.0} ns", packets / 1e3);
    (gb * 1e9, ns)
}

fn main() -> ExitCode {
    if !std::env::args().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS; // `cargo test` runs benches, too
    }
    let memcpy = memcpy();
    println!("{:24} {:36.2} GB/s", "memcpy, 1 MiB pieces", memcpy / 1e9);
    let shm = |icrc| {
        let net = ShmNet::anonymous(icrc).unwrap();
        let link = || -> Box<dyn Link> { Box::new(net.attach_free().unwrap()) };
        (link(), link())
    };
    let udp = || {
        let (a, b) = (UdpLink::open_free().unwrap(), UdpLink::open_free().unwrap());
        (Box::new(a) as Box<dyn Link>, Box::new(b) as Box<dyn Link>)
    };
    let mut aims = aim::Aims::default();
    for (name, (rate, ns), wanted, most_ns) in [
        ("shared memory", report("shared memory", || shm(false), u64::MAX), 0.33, 1_000.0),
        (
            "shared memory, ICRC",
            report("shared memory, ICRC", || shm(true), u64::MAX),
            0.16,
            1_000.0,
        ),
        ("UDP on loopback", report("UDP on loopback", udp, 1024), 0.05, 20_000.0),
    ] {
        aims.at_least(name, Some(rate / memcpy), wanted, "of memcpy");
        aims.at_most(&format!("{name}, 8 B one way"), Some(ns), most_ns, "ns");
    }
    aims.end()
}
