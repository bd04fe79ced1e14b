//! Errors on purpose: what the requester is told, and that nothing else is touched.

use std::thread;
use std::time::Duration;

use crate::failure::{Failure, expect};
use crate::peer::{
    Attributes, Completion, Peer, QKEY, RXE, STATE_ERR, Service, Side, Status, Work,
};
use crate::transfers::connect;

const MTU: u64 = 1024;
const SRC: u64 = 0;
const DST: u64 = 2 << 20;
/// Long enough for what must not happen to have happened.
const QUIET_MS: u64 = 300;

/// A case: requester, responder.
pub type Case = fn(&mut Peer, &mut Peer) -> Result<(), Failure>;

/// All of them, by name.
pub const CASES: &[(&str, Case)] = &[
    ("control: a wrong byte is found", |from, to| {
        connect(from, to, Service::Rc, Attributes::mtu(MTU))?;
        from.fill(&[(SRC, 300, 1), (SRC + 299, 1, 2)])?;
        from.post(write(to.address + DST, to.rkey))?;
        from.completes(Side::Send, Status::SUCCESS)?;
        to.check(&[(DST, 299, 1)])?;
        expect("whether 300 bytes are right", to.check(&[(DST, 300, 1)]).is_ok(), false)
    }),
    ("write, unknown rkey", |from, to| {
        let rkey = to.rkey ^ 0xffff_ff00;
        refused(from, to, write(to.address + DST, rkey), Status::REMOTE_ACCESS)
    }),
    ("write, beyond the region", |from, to| {
        let (address, rkey) = to.region(DST, 4096, "wra")?;
        refused(from, to, write(address + 4096 - 299, rkey), Status::REMOTE_ACCESS)
    }),
    ("write, address that wraps", |from, to| {
        refused(from, to, write(u64::MAX - 100, to.rkey), Status::REMOTE_ACCESS)
    }),
    ("write, no right to write", |from, to| {
        let (address, rkey) = to.region(DST, 4096, "ra")?;
        refused(from, to, write(address, rkey), Status::REMOTE_ACCESS)
    }),
    ("read, no right to read", |from, to| {
        let (address, rkey) = to.region(DST, 4096, "wa")?;
        let read = Work { operation: "read", ..write(address, rkey) };
        refused(from, to, read, Status::REMOTE_ACCESS)
    }),
    ("fetch_add, no right to", |from, to| {
        let (address, rkey) = to.region(DST, 4096, "wr")?;
        let add = Work { operation: "fetch_add", bytes: 8, a: 1, ..write(address, rkey) };
        refused(from, to, add, Status::REMOTE_ACCESS)
    }),
    ("cmp_swap, not aligned", |from, to| {
        if from.name == RXE {
            return Ok(()); // its ibv_post_send refuses it
        }
        let swap = Work { operation: "cmp_swap", bytes: 8, ..write(to.address + DST + 4, to.rkey) };
        refused(from, to, swap, Status::REMOTE_INVALID_REQUEST)
    }),
    ("send, receive too short", |from, to| {
        connect(from, to, Service::Rc, Attributes::mtu(MTU))?;
        to.post_recv(DST, 100)?;
        from.post(send(300))?;
        // A length error is answered as an invalid request (9.7.4.1); rxe says otherwise.
        let (theirs, own) = match to.name == RXE {
            true => (Status::REMOTE_OPERATION, Status::LOCAL_QP_OPERATION),
            false => (Status::REMOTE_INVALID_REQUEST, Status::LOCAL_LENGTH),
        };
        from.completes(Side::Send, theirs)?;
        to.completes(Side::Recv, own)?;
        expect("requester's state", from.state()?, STATE_ERR)
    }),
    ("send, receive comes late", |from, to| {
        // RNR timer 20: 10 ms (InfiniBand vol. 1, table 45).
        let with = Attributes { min_rnr_timer: 20, ..Attributes::mtu(MTU) };
        connect(from, to, Service::Rc, with)?;
        from.fill(&[(SRC, 3000, 5)])?;
        from.post(send(3000))?;
        expect("a completion without a receive", from.poll(Side::Send, QUIET_MS)?, None)?;
        to.post_recv(DST, 3000)?;
        from.completes(Side::Send, Status::SUCCESS)?;
        let found = to.completes(Side::Recv, Status::SUCCESS)?;
        let want = Completion { status: Status::SUCCESS, bytes: 3000, imm: 0 };
        expect("the receive's completion", found, want)?;
        to.check(&[(DST, 3000, 5)])
    }),
    ("send, no receive, 2 retries", |from, to| {
        let with = Attributes { min_rnr_timer: 14, rnr_retry: 2, ..Attributes::mtu(MTU) };
        connect(from, to, Service::Rc, with)?;
        from.post(send(300))?;
        from.completes(Side::Send, Status::RNR_RETRIES_EXCEEDED)?;
        expect("requester's state", from.state()?, STATE_ERR)
    }),
    ("write to a queue pair that is gone", |from, to| {
        let with = Attributes { timeout: 14, retry: 2, ..Attributes::mtu(MTU) };
        connect(from, to, Service::Rc, with)?;
        to.new_qp(Service::Rc)?;
        from.post(write(to.address + DST, to.rkey))?;
        from.completes(Side::Send, Status::RETRIES_EXCEEDED)?;
        expect("requester's state", from.state()?, STATE_ERR)
    }),
    ("write with a PSN from elsewhere", |from, to| {
        let with = Attributes { timeout: 14, retry: 2, ..Attributes::mtu(MTU) };
        from.new_qp(Service::Rc)?;
        to.new_qp(Service::Rc)?;
        // The responder waits for a PSN that is long gone, and says so until the retries run out.
        to.connect(from, Attributes { psn_off_by: -1000, ..with })?;
        from.connect(to, with)?;
        to.fill(&[(DST, 300, 7)])?;
        from.post(write(to.address + DST, to.rkey))?;
        from.completes(Side::Send, Status::RETRIES_EXCEEDED)?;
        to.check(&[(DST, 300, 7)])
    }),
    ("UC write, unknown rkey: dropped", |from, to| {
        connect(from, to, Service::Uc, Attributes::mtu(MTU))?;
        to.fill(&[(DST, 300, 7)])?;
        from.post(write(to.address + DST, to.rkey ^ 0xffff_ff00))?;
        from.completes(Side::Send, Status::SUCCESS)?;
        thread::sleep(Duration::from_millis(QUIET_MS));
        to.check(&[(DST, 300, 7)])
    }),
    ("UC send without a receive: dropped, the next arrives", |from, to| {
        connect(from, to, Service::Uc, Attributes::mtu(MTU))?;
        from.fill(&[(SRC, 3000, 8)])?;
        from.post(send(2000))?;
        from.completes(Side::Send, Status::SUCCESS)?;
        thread::sleep(Duration::from_millis(QUIET_MS));
        to.post_recv(DST, 3000)?;
        from.post(send(3000))?;
        from.completes(Side::Send, Status::SUCCESS)?;
        expect("bytes", to.completes(Side::Recv, Status::SUCCESS)?.bytes, 3000)?;
        to.check(&[(DST, 3000, 8)])
    }),
    ("UD, wrong Q_Key: dropped, the next arrives", |from, to| {
        connect(from, to, Service::Ud, Attributes::mtu(MTU))?;
        to.post_recv(DST, 2000)?;
        from.fill(&[(SRC, 300, 9)])?;
        from.post(Work { b: QKEY ^ 1, ..send(200) })?;
        from.completes(Side::Send, Status::SUCCESS)?;
        expect("a receive with a wrong Q_Key", to.poll(Side::Recv, QUIET_MS)?, None)?;
        from.post(Work { b: QKEY, ..send(300) })?;
        from.completes(Side::Send, Status::SUCCESS)?;
        expect("bytes", to.completes(Side::Recv, Status::SUCCESS)?.bytes, 340)?;
        to.check(&[(DST + 40, 300, 9)])
    }),
];

/// 300 bytes to an address.
fn write(address: u64, rkey: u32) -> Work {
    Work { operation: "write", offset: SRC, bytes: 300, address, rkey, a: 0, b: 0 }
}

fn send(bytes: u64) -> Work {
    Work { operation: "send", offset: SRC, bytes, ..Work::default() }
}

/// The request ends with a status and touches nothing, what was posted behind it is flushed, and
/// the requester's queue pair is in error.
fn refused(from: &mut Peer, to: &mut Peer, work: Work, status: Status) -> Result<(), Failure> {
    connect(from, to, Service::Rc, Attributes::mtu(MTU))?;
    let watched = [(DST - 4096, 3 * 4096, 3)];
    to.fill(&watched)?;
    from.post(work)?;
    from.completes(Side::Send, status)?;
    expect("requester's state", from.state()?, STATE_ERR)?;
    from.post(work)?;
    from.completes(Side::Send, Status::FLUSHED)?;
    to.check(&watched)
}
