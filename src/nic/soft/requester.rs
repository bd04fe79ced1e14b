//! The requester: takes WQEs from a queue pair, checks them, has them carried out, completes them
//! (InfiniBand vol. 1, 9.7.2 and 9.9.2).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::counters::Live;
use super::inband::{Slot, Watch};
use super::inproc::{self, Message};
use super::mr::{MrTable, Regions, Right, with_both};
use super::qp::Qp;
use super::responder::Refusal;
use super::vendor::{Vendor, of_parse};
use crate::mem::{Dma, MemError};
use crate::nic::{QpState, QueuePair};
use crate::wire::blueflame::{self, BF_BYTES};
use crate::wire::cqe::{Cqe, CqeOpcode, Syndrome};
use crate::wire::doorbell::{DBR_SND_OFFSET, Doorbell, UAR_BF1_OFFSET, ahead, dbr_counter};
use crate::wire::wqe::{Ctrl, MAX_WQE_BYTES, Opcode, Piece, WQEBB_BYTES, Wqe};

/// WQEs and bytes of one visit to a queue pair, so that none starves the others. A long WQE may
/// exceed the bytes once.
const VISIT_WQES: u32 = 64;
const VISIT_BYTES: u64 = 256 << 10;

/// Room for the longest WQE of a ring, or of a BlueFlame buffer.
pub(super) type Scratch = [u8; MAX_WQE_BYTES.next_multiple_of(WQEBB_BYTES)];

/// What an engine lends a queue pair for a visit.
pub(super) struct Visitor<'a> {
    pub(super) now_ns: u64,
    pub(super) timers: Timers,
    /// Where a WQE is copied to before it is looked at.
    pub(super) scratch: &'a mut Scratch,
    pub(super) counters: &'a Live,
    pub(super) tally: Tally,
}

/// How long a requester waits, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timers {
    /// Between two tries at a peer whose receive queue is empty.
    pub(super) rnr_ns: u64,
    /// Before a peer that does not answer is given up.
    pub(super) answer_ns: u64,
}

/// What a step has done; added to the counters once a step.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) wqes: u64,
    pub(super) bytes: u64,
    pub(super) inband: u64,
    pub(super) blueflame: u64,
    pub(super) errors: u64,
}

/// Whether a queue pair wants another visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Visit {
    /// Nothing is posted that the engine knows of.
    Idle,
    /// At once.
    More,
    /// Not before this time.
    Later(u64),
}

/// Send side of a queue pair, owned by its engine.
pub(super) struct Requester {
    pub(super) qp: Arc<Qp>,
    peer: Option<Peer>,
    /// Basic blocks consumed and known to be posted.
    ci: u64,
    producer: u64,
    /// Doorbell record as last seen: only a changed one counts, because a record that a ringer
    /// does not keep would seem to lie ahead after a wrap of its 16 bits.
    dbr_seen: u32,
    watch: Option<Watch>,
    retry: Retry,
    /// Whether the engine's list of queue pairs to visit has this one.
    pub(super) listed: bool,
}

/// The other end, and what a visit needs at hand beside it.
struct Peer {
    qp: Arc<Qp>,
    /// The regions of this end.
    local: Arc<MrTable>,
}

/// The message at the head of the queue, as it is tried again.
#[derive(Default)]
struct Retry {
    rnr_tries: u8,
    unanswered_since: Option<u64>,
    not_before: u64,
}

/// Where a WQE came from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Ring,
    BlueFlame,
    Slot,
}

/// A WQE in the scratch buffer.
struct Posted {
    source: Source,
    /// What a CQE says of it.
    counter: u16,
    blocks: u32,
    bytes: usize,
    wqe: Result<Wqe, (Syndrome, Vendor)>,
}

impl Requester {
    pub(super) fn new(qp: Arc<Qp>) -> Result<Self, MemError> {
        let watch = qp.attr.inband.as_ref().map(Watch::new).transpose()?;
        Ok(Self {
            qp,
            peer: None,
            ci: 0,
            producer: 0,
            dbr_seen: 0,
            watch,
            retry: Retry::default(),
            listed: false,
        })
    }

    pub(super) fn is_inband(&self) -> bool {
        self.watch.is_some()
    }

    /// Learns the producer index from UAR registers that changed, and from the doorbell record.
    ///
    /// The later of the two counts. Silicon reads the record on a doorbell and trusts it; that a
    /// register alone suffices is this NIC's reading, for ringers that keep no record.
    pub(super) fn ring(&mut self, registers: [Option<u64>; 2]) {
        let blocks = self.qp.attr.sq_blocks;
        for register in registers.into_iter().flatten() {
            let bell = Doorbell::parse(register);
            if bell.qpn == self.qp.qpn {
                self.learn(ahead(bell.next, self.ci, blocks));
            }
        }
        // Acquire: the WQEs were written before the record. The register was loaded before it, so
        // a record written before the doorbell is seen here.
        let record = self.qp.queues.dbr.load_u32(DBR_SND_OFFSET, Ordering::Acquire);
        let record = record.unwrap_or(self.dbr_seen);
        if record != self.dbr_seen {
            self.dbr_seen = record;
            self.learn(ahead(dbr_counter(record), self.ci, blocks));
        }
    }

    fn learn(&mut self, distance: Option<u32>) {
        if let Some(distance) = distance {
            self.producer = self.producer.max(self.ci + u64::from(distance));
        }
    }

    /// Takes up to a budget of WQEs.
    pub(super) fn visit(&mut self, cx: &mut Visitor<'_>) -> Visit {
        match QueuePair::state(&*self.qp) {
            QpState::Rts => {}
            QpState::Err => return self.flush(cx),
            _ => return Visit::Idle,
        }
        if self.retry.not_before > cx.now_ns {
            return Visit::Later(self.retry.not_before);
        }
        if !self.has_work() {
            return Visit::Idle;
        }
        self.qp.send_cq.prefetch();
        // Taken out meanwhile: that costs no count of references.
        let Some(peer) = self.peer.take() else { return Visit::Idle };
        let visit = with_both(&peer.local, &peer.qp.mrs, |local, remote| {
            self.run(cx, &peer.qp, local, remote)
        });
        self.peer = Some(peer);
        visit
    }

    /// Whether a visit would find anything: for an in-band queue pair without news, one load.
    fn has_work(&self) -> bool {
        match &self.watch {
            Some(watch) => !watch.is_waiting(),
            None => self.ci < self.producer || self.qp.attr.blueflame,
        }
    }

    /// Gives the send side its peer.
    pub(super) fn connect(&mut self, peer: Arc<Qp>) {
        self.peer = Some(Peer { qp: peer, local: self.qp.mrs.clone() });
    }

    fn run(&mut self, cx: &mut Visitor<'_>, peer: &Qp, local: &Regions, remote: &Regions) -> Visit {
        let limit = cx.tally.bytes + VISIT_BYTES;
        for _ in 0..VISIT_WQES {
            // 1. Take: copied out before anything of it is believed.
            let Some(posted) = self.fetch(cx.scratch) else { return Visit::Idle };
            // 2. Check and carry out.
            let bytes = match &self.watch {
                Some(watch) => watch.stream(posted.bytes),
                None => &cx.scratch[..posted.bytes],
            };
            let done = match &posted.wqe {
                Ok(wqe) => {
                    let (from, pd) = (self.qp.in_process(), self.qp.pd.number());
                    let msg = Message { wqe, bytes, local, from, pd };
                    check_local(&msg).and_then(|()| inproc::carry_out(&msg, peer, remote))
                }
                Err((syndrome, vendor)) => Err(Refusal::Nak(*syndrome, *vendor)),
            };
            // 3. Complete, wait, or fail.
            let failed = match done {
                Ok(()) => None,
                Err(Refusal::Nak(syndrome, vendor)) => Some((syndrome, vendor)),
                Err(wait) => match self.retry(cx, wait) {
                    Ok(at) => return Visit::Later(at),
                    Err(failed) => Some(failed),
                },
            };
            self.finish(cx, &posted, failed);
            // Also when the peer's engine moved this queue pair to ERR meanwhile.
            if QueuePair::state(&*self.qp) != QpState::Rts || cx.tally.bytes >= limit {
                break;
            }
        }
        Visit::More
    }

    /// Copies the next WQE to the scratch buffer and parses the copy.
    fn fetch(&mut self, scratch: &mut Scratch) -> Option<Posted> {
        if let Some(watch) = &mut self.watch {
            return fetch_slot(watch, &self.qp);
        }
        if self.ci < self.producer {
            return Some(self.fetch_ring(scratch));
        }
        self.qp.attr.blueflame.then(|| self.fetch_blueflame(scratch)).flatten()
    }

    fn fetch_ring(&self, scratch: &mut Scratch) -> Posted {
        let ring = &self.qp.queues.sq;
        let size = self.qp.attr.sq_blocks as usize * WQEBB_BYTES;
        let start = (self.ci % u64::from(self.qp.attr.sq_blocks)) as usize * WQEBB_BYTES;
        let checked = "the ring was checked when the queue pair was created";
        ring.read(start, &mut scratch[..WQEBB_BYTES]).expect(checked);
        let ctrl = Ctrl::parse(&scratch[..WQEBB_BYTES]).expect("a block holds it");
        let known = (self.producer - self.ci) as u32;
        let blocks = ctrl.blocks().min(known);
        let bytes = blocks as usize * WQEBB_BYTES;
        if blocks > 1 {
            // The later blocks may begin again at the ring's start.
            let before_end = (size - start).min(bytes);
            let (head, tail) = scratch[..bytes].split_at_mut(before_end);
            ring.read(start + WQEBB_BYTES, &mut head[WQEBB_BYTES..]).expect(checked);
            ring.read(0, tail).expect(checked);
        }
        let wqe = if ctrl.blocks() > known {
            Err((Syndrome::LocalQpOp, Vendor::Producer))
        } else {
            self.check(&scratch[..bytes], Wqe::parse)
        };
        Posted { source: Source::Ring, counter: self.ci as u16, blocks, bytes, wqe }
    }

    /// A whole WQE in the UAR's second BlueFlame buffer. Its sender uses it only while nothing
    /// else is outstanding, so that it is next in order.
    fn fetch_blueflame(&self, scratch: &mut Scratch) -> Option<Posted> {
        let uar = &self.qp.queues.uar;
        let first = uar.load_u64(UAR_BF1_OFFSET, Ordering::Acquire).ok()?;
        if first == 0 {
            return None;
        }
        // A cheap look at the first 8 bytes; what counts is the copy that the check word covers.
        let blocks_of = |bytes: &[u8]| {
            let ctrl = Ctrl::parse(bytes).ok()?;
            let ours = ctrl.index == self.ci as u16 && ctrl.qpn == self.qp.qpn && ctrl.ds > 0;
            let bytes = ctrl.blocks() as usize * WQEBB_BYTES;
            (ours && bytes <= BF_BYTES).then_some(bytes)
        };
        let mut look = [0; 16];
        look[..8].copy_from_slice(&first.to_ne_bytes());
        let bytes = blocks_of(&look)?;
        let copy = &mut scratch[..bytes];
        uar.read(UAR_BF1_OFFSET, copy).ok()?;
        if blocks_of(copy) != Some(bytes) || !blueflame::is_whole(copy) {
            return None;
        }
        let wqe = self.check(copy, Wqe::parse).and_then(|wqe| {
            // The check word lies where other opcodes have their immediate.
            let plain = wqe.opcode == Opcode::RdmaWrite;
            if plain { Ok(wqe) } else { Err((Syndrome::LocalQpOp, Vendor::Opcode)) }
        });
        let (counter, blocks) = (self.ci as u16, (bytes / WQEBB_BYTES) as u32);
        Some(Posted { source: Source::BlueFlame, counter, blocks, bytes, wqe })
    }

    fn check(
        &self,
        bytes: &[u8],
        parse: impl Fn(&[u8]) -> Result<Wqe, crate::wire::wqe::WqeError>,
    ) -> Result<Wqe, (Syndrome, Vendor)> {
        let wqe = parse(bytes).map_err(of_parse)?;
        check_place(&wqe, self.ci as u16, &self.qp)?;
        Ok(wqe)
    }

    /// Decides about a message that the peer did not take: when to try again, or how it fails.
    fn retry(&mut self, cx: &Visitor<'_>, why: Refusal) -> Result<u64, (Syndrome, Vendor)> {
        let retry = &mut self.retry;
        let pause = match why {
            Refusal::Rnr => {
                Live::add(&cx.counters.rnr_waits, 1);
                let limit = self.qp.attr.rnr_retry;
                if limit < 7 && retry.rnr_tries >= limit {
                    return Err((Syndrome::RnrRetryExc, Vendor::Rnr));
                }
                retry.rnr_tries = retry.rnr_tries.saturating_add(1);
                retry.unanswered_since = None;
                cx.timers.rnr_ns
            }
            _ => {
                let since = *retry.unanswered_since.get_or_insert(cx.now_ns);
                if cx.now_ns.saturating_sub(since) >= cx.timers.answer_ns {
                    return Err((Syndrome::TransportRetryExc, Vendor::NoAnswer));
                }
                cx.timers.answer_ns / 8
            }
        };
        retry.not_before = cx.now_ns + pause.max(1);
        Ok(retry.not_before)
    }

    fn finish(
        &mut self,
        cx: &mut Visitor<'_>,
        posted: &Posted,
        failed: Option<(Syndrome, Vendor)>,
    ) {
        self.retry = Retry::default();
        self.consume(posted);
        let qpn = self.qp.qpn;
        let wqe = match (failed, &posted.wqe) {
            (None, Ok(wqe)) => wqe,
            (failed, _) => {
                let (syndrome, vendor) = failed.unwrap_or((Syndrome::LocalQpOp, Vendor::Segment));
                cx.tally.errors += 1;
                let op = CqeOpcode::ReqErr;
                // ERR first: whoever sees the CQE finds the queue pair in the state it implies.
                self.qp.set_error();
                self.qp.complete(&Cqe::error(op, qpn, posted.counter, syndrome, vendor as u8));
                return;
            }
        };
        cx.tally.wqes += 1;
        cx.tally.bytes += u64::from(wqe.bytes);
        cx.tally.inband += u64::from(posted.source == Source::Slot);
        cx.tally.blueflame += u64::from(posted.source == Source::BlueFlame);
        if wqe.flags.cq_update {
            let bytes = if wqe.opcode.scatters() { wqe.bytes } else { 0 };
            self.qp.complete(&Cqe::requester(qpn, wqe.opcode as u8, posted.counter, bytes));
        }
    }

    fn clear_blueflame(&self) {
        let cleared = self.qp.queues.uar.fill(UAR_BF1_OFFSET, WQEBB_BYTES, 0);
        cleared.expect("the page was checked when the queue pair was created");
    }

    /// Moves past a WQE, before its CQE tells anyone that its place is free.
    fn consume(&mut self, posted: &Posted) {
        match posted.source {
            Source::Slot => {
                self.watch.as_mut().expect("a slot has a window").advance();
                return;
            }
            // The buffer is the sender's again when it sees the CQE.
            Source::BlueFlame => self.clear_blueflame(),
            // A doorbell may overtake the look at the buffer, and then the WQE came by the ring. The
            // copy in the buffer must go: 2^16 blocks later its index would be the next one again.
            // A sender uses the buffer only while it is idle, so nothing newer can be in it.
            Source::Ring if self.qp.attr.blueflame => self.clear_blueflame(),
            Source::Ring => {}
        }
        self.ci += u64::from(posted.blocks);
        self.producer = self.producer.max(self.ci);
    }

    /// Completes what is posted to a queue pair in ERR with flush errors.
    fn flush(&mut self, cx: &mut Visitor<'_>) -> Visit {
        self.retry = Retry::default();
        for _ in 0..VISIT_WQES {
            let Some(posted) = self.fetch(cx.scratch) else { return Visit::Idle };
            if matches!(posted.wqe, Err((_, Vendor::Overrun))) {
                return Visit::Idle; // nothing that was posted with a credit
            }
            self.consume(&posted);
            let (op, syndrome) = (CqeOpcode::ReqErr, Syndrome::WrFlush);
            let vendor = Vendor::Flush as u8;
            cx.tally.errors += 1;
            self.qp.complete(&Cqe::error(op, self.qp.qpn, posted.counter, syndrome, vendor));
        }
        Visit::More
    }

    /// Completes receives posted to a queue pair in ERR; says whether there were any.
    pub(super) fn flush_receives(&self) -> bool {
        self.qp.receives().flush(&self.qp)
    }
}

fn check_place(wqe: &Wqe, index: u16, qp: &Qp) -> Result<(), (Syndrome, Vendor)> {
    let wrong = if wqe.index != index {
        Vendor::Index
    } else if wqe.qpn != qp.qpn {
        Vendor::Qpn
    } else {
        return Ok(());
    };
    Err((Syndrome::LocalQpOp, wrong))
}

fn fetch_slot(watch: &mut Watch, qp: &Qp) -> Option<Posted> {
    let counter = watch.ticket as u16;
    let (bytes, wqe) = match watch.fetch() {
        Slot::Waiting => return None,
        Slot::Bad(syndrome, vendor) => (0, Err((syndrome, vendor))),
        Slot::Whole(bytes) => {
            let wqe = Wqe::parse_stream(watch.stream(bytes)).map_err(of_parse);
            (bytes, wqe.and_then(|wqe| check_place(&wqe, counter, qp).map(|()| wqe)))
        }
    };
    Some(Posted { source: Source::Slot, counter, blocks: 0, bytes, wqe })
}

/// Checks every local entry before anything moves: keys, ranges, and the right to be written to.
fn check_local(msg: &Message<'_>) -> Result<(), Refusal> {
    let right = if msg.wqe.opcode.scatters() { Right::LocalWrite } else { Right::Gather };
    for piece in msg.wqe.pieces(msg.bytes) {
        let Piece::Data(sge) = piece else { continue };
        msg.local
            .resolve(msg.pd, sge.lkey.0, sge.addr, sge.bytes, right)
            .map_err(|vendor| Refusal::Nak(Syndrome::LocalProt, vendor))?;
    }
    Ok(())
}
