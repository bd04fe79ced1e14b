//! The cases that every link passes, and what they are written with.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bellpush::nic::soft::link::{Apart, Built, InPlace, Link, LinkError, Room, TxBatch};
use bellpush::wire::roce::{
    Addresses, Bth, Envelope, Fields, Headers, MAX_HEADER_BYTES, MAX_PACKET_BYTES, Opcode,
    Operation, Packet,
};
use bellpush::wire::{Psn, Qpn};

/// How long a packet may take to arrive.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes NICs' ends of one link.
pub trait Maker {
    fn make() -> Self;
    /// Joins with this address, or with one that is free.
    fn attach(&self, addr: Option<IpAddr>) -> Result<Box<dyn Link>, LinkError>;
    /// An address of this machine that no NIC has.
    fn nobody(&self) -> IpAddr {
        "127.0.99.99".parse().unwrap()
    }
}

pub type Boxed = Box<dyn Link>;

pub fn join(net: &impl Maker) -> Boxed {
    net.attach(None).unwrap()
}

pub fn clock() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Payload of packet `n` of a sequence, `bytes` long.
fn payload(n: u32, bytes: usize) -> impl Iterator<Item = u8> {
    (0..bytes as u32).map(move |i| (i.wrapping_mul(7) ^ n.wrapping_mul(31) ^ i >> 8) as u8)
}

/// Builds a SEND ONLY with this PSN and so many bytes of payload.
pub fn push(link: &dyn Link, batch: &mut TxBatch, to: IpAddr, psn: u32, bytes: usize) -> bool {
    let addresses = Addresses::new(link.address(), to);
    let envelope = addresses.map(|a| Envelope::new(a, link.src_port()));
    let envelope = envelope.filter(|_| link.has_icrc());
    batch.push(to, |buf| {
        let bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn(7), Psn::new(psn));
        let mut frame = Headers::new(bth).emit(bytes, buf);
        for (to, from) in frame.payload_mut().iter_mut().zip(payload(psn, bytes)) {
            *to = from;
        }
        Some(frame.finish(envelope.as_ref()))
    })
}

/// Sends all of a batch, as long as that takes.
pub fn send_all(link: &mut dyn Link, batch: &mut TxBatch) {
    let start = Instant::now();
    while !batch.is_empty() {
        link.send(clock(), batch).unwrap();
        assert!(start.elapsed() < PATIENCE, "the link takes nothing");
    }
}

/// Sends one packet.
pub fn send_one(link: &mut dyn Link, to: IpAddr, psn: u32, bytes: usize) {
    let mut batch = TxBatch::new(1);
    assert!(push(link, &mut batch, to, psn, bytes));
    send_all(link, &mut batch);
}

/// Builds one packet where the link has it, or sends it as any other; whether it was built.
fn build_one(link: &mut dyn Link, to: IpAddr, psn: u32, bytes: usize) -> bool {
    let bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn(7), Psn::new(psn));
    let mut head = [0; MAX_HEADER_BYTES];
    let (start, pad) = Headers::new(bth).emit_apart(bytes, &mut head);
    let packet = Apart { head: &head[..start], payload: bytes, tail: &[0; 7][..pad + 4] };
    let fields = link.fields(&Fields::default());
    let mut fill = |room: Room<'_>| {
        let payload: Vec<u8> = payload(psn, bytes).collect();
        match room {
            Room::Bytes(into) => into.copy_from_slice(&payload),
            Room::Shared(shared) => shared.write(&payload).unwrap(),
        }
        true
    };
    match link.build(to, &fields, packet, &mut fill).unwrap() {
        Built::Yes => true,
        Built::Elsewhere => {
            send_one(link, to, psn, bytes);
            false
        }
        Built::Failed => panic!("its payload was there"),
    }
}

/// PSN, payload's length and source of a packet that arrived.
pub type Got = (u32, usize, IpAddr);

/// Receives once; each packet is checked: ICRC, payload, destination.
pub fn recv(link: &mut dyn Link, most: usize, got: &mut Vec<Got>) -> usize {
    let (me, icrc) = (link.address(), link.has_icrc());
    let count = link.recv(clock(), most, &mut |packet| {
        assert_eq!(packet.envelope.addresses.dst(), me);
        if icrc {
            Packet::check(packet.bytes, &packet.envelope).unwrap();
        }
        let parsed = Packet::parse(packet.bytes).unwrap();
        let psn = parsed.headers.bth.psn.value();
        let bytes = parsed.payload.len();
        assert!(parsed.payload.iter().copied().eq(payload(psn, bytes)), "payload of {psn}");
        got.push((psn, bytes, packet.envelope.addresses.src()));
    });
    count.unwrap()
}

/// Receives until `n` packets have arrived.
pub fn expect(link: &mut dyn Link, n: usize) -> Vec<Got> {
    let (start, mut got) = (Instant::now(), Vec::new());
    while got.len() < n {
        recv(link, 64, &mut got);
        assert!(start.elapsed() < PATIENCE, "{} packets of {n} arrived", got.len());
    }
    got
}

/// Receives what is there, until nothing has come for a while.
pub fn drain(link: &mut dyn Link) -> Vec<Got> {
    let (mut last, mut got) = (Instant::now(), Vec::new());
    while last.elapsed() < Duration::from_millis(20) {
        if recv(link, 64, &mut got) > 0 {
            last = Instant::now();
        }
    }
    got
}

fn largest(link: &dyn Link) -> usize {
    assert!(link.mtu() <= MAX_PACKET_BYTES);
    (link.mtu() - 16) / 4 * 4
}

/// Every length arrives as it was sent, both ways.
pub fn lengths(net: &impl Maker) {
    let (mut a, mut b) = (join(net), join(net));
    let (to_a, to_b) = (a.address(), b.address());
    let largest = largest(&*a).min(4096);
    for (psn, bytes) in (0..).zip((0..largest).step_by(97).chain([largest])) {
        send_one(&mut *a, to_b, psn, bytes);
        assert_eq!(expect(&mut *b, 1), [(psn, bytes, to_a)]);
        send_one(&mut *b, to_a, psn, bytes);
        assert_eq!(expect(&mut *a, 1), [(psn, bytes, to_b)]);
    }
    let counters = a.counters();
    assert_eq!(counters.tx_packets, counters.rx_packets);
    assert_eq!(counters.tx_bytes, b.counters().rx_bytes);
    assert_eq!((counters.tx_lost, counters.rx_dropped), (0, 0));
}

/// Batches to two destinations arrive in order at each.
pub fn batches(net: &impl Maker) {
    let (mut a, mut b, mut c) = (join(net), join(net), join(net));
    let to = [b.address(), c.address()];
    let mut batch = TxBatch::new(24);
    let mut got = [Vec::new(), Vec::new()];
    let mut sent = [Vec::new(), Vec::new()];
    let (mut psn, start) = (0u32, Instant::now());
    while sent[0].len() + sent[1].len() < 2000 {
        // Runs of equal lengths, with shorter ones and other destinations in between.
        let bytes = [1024, 1024, 1024, 1024, 1024, 100, 0, 4, 8][psn as usize % 9];
        let which = usize::from(psn / 7 % 3 == 2);
        if push(&*a, &mut batch, to[which], psn, bytes) {
            sent[which].push((psn, bytes, a.address()));
            psn += 1;
        } else {
            a.send(clock(), &mut batch).unwrap();
            recv(&mut *b, 16, &mut got[0]);
            recv(&mut *c, 16, &mut got[1]);
        }
        assert!(start.elapsed() < PATIENCE);
    }
    while got[0].len() < sent[0].len() || got[1].len() < sent[1].len() {
        a.send(clock(), &mut batch).unwrap();
        recv(&mut *b, 16, &mut got[0]);
        recv(&mut *c, 16, &mut got[1]);
        assert!(start.elapsed() < 2 * PATIENCE);
    }
    assert_eq!(got, sent);
}

/// Packets that are built where the link has them arrive among others as they were sent, and are taken where they lie as
/// they are taken whole.
pub fn in_place(net: &impl Maker) {
    let (mut a, mut b) = (join(net), join(net));
    let (to_a, to_b) = (a.address(), b.address());
    let largest = largest(&*a).min(4096);
    let mut built = Vec::new();
    for (psn, bytes) in (0..).zip((0..largest).step_by(97).chain([largest])) {
        built.push(build_one(&mut *a, to_b, psn, bytes));
        send_one(&mut *a, to_b, psn, bytes);
        a.wake().unwrap();
        if psn % 2 == 0 {
            assert_eq!(expect(&mut *b, 2), [(psn, bytes, to_a); 2]);
            continue;
        }
        let (start, mut came) = (Instant::now(), 0);
        while came < 2 {
            let each = &mut |packet: &InPlace<'_>| {
                let mut whole = packet.head.to_vec();
                if let Some(shared) = packet.shared {
                    assert!(whole.len() >= MAX_HEADER_BYTES && whole.len() < shared.len());
                    let mut rest = vec![0; shared.len() - whole.len()];
                    shared.part(whole.len()..shared.len()).read(&mut rest).unwrap();
                    whole.extend(rest);
                }
                assert_eq!(packet.envelope.addresses.src(), to_a);
                let packet = Packet::parse(&whole).unwrap();
                assert_eq!(packet.headers.bth.psn.value(), psn);
                assert!(packet.payload.iter().copied().eq(payload(psn, bytes)));
            };
            came += b.recv_in_place(clock(), 64, each).unwrap();
            assert!(start.elapsed() < PATIENCE);
        }
    }
    assert!(built.iter().all(|&it| it == a.is_in_place()), "a link does so or does not");
    assert_eq!(a.counters().tx_packets, b.counters().rx_packets);
    assert_eq!(a.counters().tx_bytes, b.counters().rx_bytes);
    assert!(!build_one(&mut *a, net.nobody(), 0, 1000), "nobody is there");
    assert_eq!(drain(&mut *b), []);
}

/// A receiver that stands still holds nobody up for long, and loses packets at most.
pub fn standstill(net: &impl Maker) {
    let (mut a, mut still, mut c) = (join(net), join(net), join(net));
    let (to_still, to_c) = (still.address(), c.address());
    let mut batch = TxBatch::new(32);
    let start = Instant::now();
    for psn in (0..20_000).step_by(16) {
        for i in 0..16 {
            assert!(push(&*a, &mut batch, to_still, psn + i, 1000));
        }
        send_all(&mut *a, &mut batch);
    }
    assert!(start.elapsed() < PATIENCE);
    send_one(&mut *a, to_c, 1, 4);
    assert_eq!(expect(&mut *c, 1)[0].0, 1);
    // What it got while it could is whole, in order and without a gap; then it goes on.
    let got = drain(&mut *still);
    assert!(got.iter().map(|g| g.0).eq(0..got.len() as u32), "{} packets", got.len());
    assert!(!got.is_empty());
    for psn in 30_000..30_010 {
        send_one(&mut *a, to_still, psn, 8);
        assert_eq!(expect(&mut *still, 1)[0].0, psn);
    }
}

/// What is sent to nobody is lost, and what follows is not.
pub fn nobody(net: &impl Maker) {
    let (mut a, mut b) = (join(net), join(net));
    let (nobody, to_b) = (net.nobody(), b.address());
    let other: IpAddr = match to_b {
        IpAddr::V4(_) => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V6(_) => "127.0.0.1".parse().unwrap(),
    };
    let mut batch = TxBatch::new(8);
    for (psn, to) in (0..).zip([nobody, to_b, other, other, to_b, nobody, to_b]) {
        assert!(push(&*a, &mut batch, to, psn, 4));
    }
    send_all(&mut *a, &mut batch);
    let psns: Vec<u32> = expect(&mut *b, 3).iter().map(|got| got.0).collect();
    assert_eq!(psns, [1, 4, 6]);
    assert!(a.counters().tx_lost >= 2, "of the other family: {:?}", a.counters());
}

/// An address belongs to one NIC, until it leaves; free ones are free.
pub fn addresses(net: &impl Maker) {
    let (a, b) = (join(net), join(net));
    assert_ne!(a.address(), b.address());
    let addr = b.address();
    let error = net.attach(Some(addr)).err().expect("in use");
    assert!(matches!(error, LinkError::InUse { addr: it } if it == addr), "{error}");
    assert!(error.to_string().contains(&addr.to_string()));
    drop(b);
    let b = net.attach(Some(addr)).unwrap();
    assert_eq!(b.address(), addr);
    assert!(b.describe().contains(&addr.to_string()));
}

/// A NIC reaches itself.
pub fn oneself(net: &impl Maker) {
    let mut a = join(net);
    let me = a.address();
    send_one(&mut *a, me, 5, 40);
    assert_eq!(expect(&mut *a, 1), [(5, 40, me)]);
}

/// A call hands out about as many as it was asked for.
pub fn bounded(net: &impl Maker) {
    let (mut a, mut b) = (join(net), join(net));
    let to = b.address();
    for psn in 0..50 {
        send_one(&mut *a, to, psn, 16);
    }
    let mut got = Vec::new();
    assert_eq!(recv(&mut *b, 0, &mut got), 0);
    let start = Instant::now();
    while got.len() < 50 {
        let n = recv(&mut *b, 7, &mut got);
        assert!(n <= 7, "{n}");
        assert!(start.elapsed() < PATIENCE);
    }
}

/// One that leaves after sending was heard; one that comes back is reached; what was sent to it
/// before is not its business.
pub fn leaving(net: &impl Maker) {
    let (mut a, mut b) = (join(net), join(net));
    let (to_a, to_b) = (a.address(), b.address());
    send_one(&mut *b, to_a, 1, 8);
    send_one(&mut *a, to_b, 2, 8);
    drop(b);
    send_one(&mut *a, to_b, 3, 8);
    let mut b = net.attach(Some(to_b)).unwrap();
    send_one(&mut *b, to_a, 4, 8);
    assert_eq!(expect(&mut *a, 2), [(1, 8, to_b), (4, 8, to_b)]);
    send_one(&mut *a, to_b, 5, 8);
    assert_eq!(expect(&mut *b, 1), [(5, 8, to_a)]);
}

/// Everything goes through between two threads.
pub fn threads(net: &impl Maker) {
    let (mut a, mut b) = (join(net), join(net));
    let (to_a, to_b) = (a.address(), b.address());
    let (n, heard_all) = (20_000u32, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let heard_all = &heard_all;
        scope.spawn(move || {
            let (mut got, start) = (0, Instant::now());
            let mut batch = TxBatch::new(8);
            // To the end, because a sender that is not scheduled for long loses answers.
            while !heard_all.load(Ordering::Relaxed) {
                let mut packets = Vec::new();
                recv(&mut *b, 32, &mut packets);
                for (psn, _, from) in packets {
                    assert_eq!((psn, from), (got, to_a));
                    got += 1;
                }
                // An answer now and then, which keeps the sender from getting far ahead.
                if batch.is_empty() {
                    push(&*b, &mut batch, to_a, got, 4);
                }
                b.send(clock(), &mut batch).unwrap();
                assert!(start.elapsed() < 4 * PATIENCE, "{got}");
            }
        });
        let (mut psn, mut heard, start) = (0, 0, Instant::now());
        let mut batch = TxBatch::new(16);
        while heard < n {
            let mut packets = Vec::new();
            recv(&mut *a, 32, &mut packets);
            heard = packets.last().map_or(heard, |got| got.0);
            while psn < n && psn < heard + 32 {
                let bytes = psn as usize % 300 * 4;
                if !push(&*a, &mut batch, to_b, psn, bytes) {
                    break;
                }
                psn += 1;
            }
            a.send(clock(), &mut batch).unwrap();
            assert!(start.elapsed() < 4 * PATIENCE, "{psn} {heard}");
        }
        heard_all.store(true, Ordering::Relaxed);
    });
}

/// The suite for a link.
#[macro_export]
macro_rules! suite {
    ($name:ident, $maker:ty) => {
        mod $name {
            use super::*;
            use suite::Maker;

            $crate::suite!(@cases $maker: lengths batches in_place standstill nobody addresses oneself
                bounded leaving threads);
        }
    };
    (@cases $maker:ty: $($case:ident)*) => {
        $(#[test]
        fn $case() {
            suite::$case(&<$maker>::make());
        })*
    };
}
