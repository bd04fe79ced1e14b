//! Transfers that must succeed: every operation, size and path MTU, every byte checked, and the
//! bytes around them.

use std::time::{Duration, Instant};

use crate::failure::{Failure, expect};
use crate::peer::{Attributes, Completion, Peer, QKEY, RXE, Service, Side, Status, Work};

/// Path MTUs of InfiniBand.
pub const MTUS: [u64; 5] = [256, 512, 1024, 2048, 4096];
const SRC: u64 = 64;
const DST: u64 = 2 << 20;
/// Bytes that are watched on either side of a destination.
const GUARD: u64 = 64;
/// Global route header before a datagram's payload.
const GRH: u64 = 40;

/// Packets of the longest message of UC, which nothing slows down: what a tap's queue and a socket
/// hold.
const UC_BURST: u64 = 256;
/// How long what nobody acknowledges may take.
const ARRIVAL: Duration = Duration::from_secs(5);

/// Sizes of each class: nothing, a byte, not a multiple of 4, around a packet, many packets.
fn sizes(mtu: u64) -> [u64; 8] {
    [0, 1, 7, mtu - 1, mtu, mtu + 1, 64 << 10, 1 << 20]
}

/// Two connected queue pairs.
pub fn connect(
    from: &mut Peer,
    to: &mut Peer,
    service: Service,
    with: Attributes,
) -> Result<(), Failure> {
    from.new_qp(service)?;
    to.new_qp(service)?;
    // The end that will not send first is connected first.
    to.connect(from, with)?;
    from.connect(to, with)
}

/// RC: all operations, in one direction.
pub fn rc(from: &mut Peer, to: &mut Peer, mtu: u64) -> Result<u32, Failure> {
    rc_with(from, to, Attributes::mtu(mtu))
}

/// RC over a link that loses packets. Linux's end has a local ACK timeout of 14, 67 ms, with which it tries for ever; ours sends
/// again as early with a longer one too.
pub fn rc_lossy(from: &mut Peer, to: &mut Peer, mtu: u64) -> Result<u32, Failure> {
    let usual = Attributes::mtu(mtu);
    let timeout = if from.name == RXE { 14 } else { usual.timeout };
    rc_with(from, to, Attributes { timeout, ..usual })
}

fn rc_with(from: &mut Peer, to: &mut Peer, with: Attributes) -> Result<u32, Failure> {
    connect(from, to, Service::Rc, with)?;
    let mtu = with.mtu;
    let mut done = 0;
    for bytes in sizes(mtu) {
        for operation in ["write", "write_imm", "read", "send", "send_imm"] {
            message(from, to, Service::Rc, operation, bytes, done)?;
            done += 1;
        }
    }
    Ok(done + atomics(from, to)?)
}

/// UC has no READ and no atomics.
pub fn uc(from: &mut Peer, to: &mut Peer, mtu: u64) -> Result<u32, Failure> {
    connect(from, to, Service::Uc, Attributes::mtu(mtu))?;
    let mut done = 0;
    for bytes in sizes(mtu).into_iter().filter(|&bytes| bytes <= UC_BURST * mtu) {
        for operation in ["write", "write_imm", "send", "send_imm"] {
            message(from, to, Service::Uc, operation, bytes, done)?;
            done += 1;
        }
    }
    Ok(done)
}

/// A datagram fits into a packet.
pub fn ud(from: &mut Peer, to: &mut Peer, mtu: u64) -> Result<u32, Failure> {
    connect(from, to, Service::Ud, Attributes::mtu(mtu))?;
    let mut done = 0;
    for bytes in sizes(mtu).into_iter().filter(|&bytes| bytes <= mtu) {
        for operation in ["send", "send_imm"] {
            message(from, to, Service::Ud, operation, bytes, done)?;
            done += 1;
        }
    }
    Ok(done)
}

/// One message.
fn message(
    from: &mut Peer,
    to: &mut Peer,
    service: Service,
    operation: &'static str,
    bytes: u64,
    number: u32,
) -> Result<(), Failure> {
    let header = if service == Service::Ud { GRH } else { 0 };
    let arrival = if service == Service::Uc { ARRIVAL } else { Duration::ZERO };
    let run = |from: &mut Peer, to: &mut Peer| {
        let seed = u64::from(number) * 4;
        // Not aligned, on either side.
        let (src, dst) = (SRC + bytes % 7, DST + bytes % 5);
        let source = [(src, bytes, seed)];
        let before = (dst - header - GUARD, GUARD, seed + 1);
        let after = (dst + bytes, GUARD, seed + 2);
        let wanted = [before, (dst, bytes, seed), after];
        let stale = [before, (dst, bytes, seed + 3), after];
        let reads = operation == "read";
        let (source_end, target_end) = if reads { (&mut *to, &mut *from) } else { (from, to) };
        source_end.fill(&source)?;
        target_end.fill(&stale)?;
        let (requester, responder) =
            if reads { (target_end, source_end) } else { (source_end, target_end) };

        let receives = !matches!(operation, "write" | "read");
        if receives {
            responder.post_recv(dst - header, bytes + header)?;
        }
        let imm = 0xc0de_0000 + u64::from(number);
        let (offset, remote) = if reads { (dst, src) } else { (src, dst) };
        let (address, rkey) = (responder.address + remote, responder.rkey);
        let b = if header > 0 { QKEY } else { 0 };
        requester.post(Work { operation, offset, bytes, address, rkey, a: imm, b })?;
        requester.completes(Side::Send, Status::SUCCESS)?;
        if receives {
            let found = responder.completes(Side::Recv, Status::SUCCESS)?;
            let imm = if operation.ends_with("imm") { imm } else { 0 };
            let want = Completion { status: Status::SUCCESS, bytes: bytes + header, imm };
            expect("the receive's completion", found, want)?;
        }
        let target_end = if reads { requester } else { responder };
        // A completion of UC does not say that the message has arrived.
        let start = Instant::now();
        loop {
            match target_end.check(&wanted) {
                Err(_) if operation == "write" && start.elapsed() < arrival => {}
                found => return found,
            }
        }
    };
    run(from, to).map_err(|e| at(operation, bytes, e))
}

fn at(operation: &str, bytes: u64, failure: Failure) -> Failure {
    Failure::Command {
        line: format!("{operation} of {bytes} bytes"),
        why: "failed".into(),
        output: failure.to_string(),
    }
}

/// FETCH_ADD (with carry over 32 bits and wrapping), CMP_SWAP that matches and that does not.
fn atomics(from: &mut Peer, to: &mut Peer) -> Result<u32, Failure> {
    let old = 0x0123_4567_ffff_fff0;
    let cases = [
        ("fetch_add", 0x20, 0, old + 0x20),
        ("fetch_add", u64::MAX, 0, old - 1),
        ("cmp_swap", old, 0xfeed_f00d_dead_beef, 0xfeed_f00d_dead_beef),
        ("cmp_swap", old + 1, 0xfeed_f00d_dead_beef, old),
    ];
    for (operation, a, b, new) in cases {
        let run = |from: &mut Peer, to: &mut Peer| {
            let around = [(DST - 8, 8, 1), (DST + 8, 8, 2)];
            to.fill(&around)?;
            to.put(DST, old)?;
            from.put(SRC, 0)?;
            let (address, rkey) = (to.address + DST, to.rkey);
            from.post(Work { operation, offset: SRC, bytes: 8, address, rkey, a, b })?;
            from.completes(Side::Send, Status::SUCCESS)?;
            expect("the old value", from.get(SRC)?, old)?;
            expect("the new value", to.get(DST)?, new)?;
            to.check(&around)
        };
        run(from, to).map_err(|e| at(operation, 8, e))?;
    }
    Ok(cases.len() as u32)
}
