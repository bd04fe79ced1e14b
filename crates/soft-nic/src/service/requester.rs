//! The requester: takes WQEs from a queue pair, checks them, has them carried out, completes them
//! (InfiniBand vol. 1, 9.7.2 and 9.9.2).

use std::sync::Arc;

use crate::counters::Live;
use crate::link::port::Port;
use crate::objects::mr::{MrTable, Regions, Right, with_both};
use crate::objects::qp::Qp;
use crate::offload::Lease;
use crate::queue::sq::{Posted, Scratch, SendQueue, Source};
use crate::report::SendReport;
use crate::service::Transport;
use crate::service::local::capture::InprocCapture;
use crate::service::local::coalesce;
use crate::service::local::execute::{self, Message};
use crate::service::local::responder::{self, Refusal};
use crate::vendor::Vendor;
use bellpush_abi::engine::{State, Why};
use bellpush_mem::MemError;
use bellpush_nic::{QpState, QueuePair};
use bellpush_wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush_wire::wqe::Piece;

/// WQEs and bytes of one visit to a queue pair, so that none starves the others. A long WQE may
/// exceed the bytes once.
const VISIT_WQES: u32 = 64;
const VISIT_BYTES: u64 = 256 << 10;

/// What an engine leases a queue pair for a visit.
pub(crate) struct StepContext<'a> {
    pub(crate) now_ns: u64,
    pub(crate) timers: Timers,
    /// Where a WQE is copied to before it is looked at.
    pub(crate) scratch: &'a mut Scratch,
    /// WQEs that one copy is carried out for, besides the first.
    pub(crate) coalesced: &'a mut Vec<Posted>,
    pub(crate) counters: &'a Live,
    pub(crate) tally: Tally,
    /// The packet link, on a NIC that has one.
    pub(crate) port: Option<&'a mut Port>,
    /// Who records what goes over the in-process link.
    pub(crate) inproc_capture: Option<&'a InprocCapture>,
}

/// How long a requester waits, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timers {
    /// Between two tries at a peer whose receive queue is empty.
    pub(crate) rnr_ns: u64,
    /// Before a peer that does not answer is given up.
    pub(crate) answer_ns: u64,
}

/// What a step has done; added to the counters once a step.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) wqes: u64,
    pub(crate) bytes: u64,
    pub(crate) inband: u64,
    pub(crate) blueflame: u64,
    pub(crate) errors: u64,
    pub(crate) offloaded: u64,
    pub(crate) returned: u64,
    pub(crate) doorbells: u64,
}

/// Whether a queue pair wants another visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visit {
    /// Nothing is posted that the engine knows of.
    Idle,
    /// At once.
    More,
    /// Not before this time.
    Later(u64),
}

/// What an engine owns of a queue pair: its send side, and on a packet link the transport.
pub(crate) struct Requester {
    pub(crate) sq: SendQueue,
    peer: Option<Peer>,
    retry: Retry,
    /// Bytes since there was nothing to do.
    moved: u64,
    /// From RTR on, on a packet link.
    pub(crate) transport: Option<Transport>,
    /// Whether the engine's list of queue pairs to visit has this one.
    pub(crate) listed: bool,
    /// The place in an engine elsewhere, and what is known of its doings.
    pub(crate) leased: Option<Leased>,
}

/// A queue pair's place in an engine elsewhere.
pub(crate) struct Leased {
    pub(crate) lease: Arc<Lease>,
    /// What it had done when its counts were looked at last.
    told: State,
    /// It returned something for this engine to carry out.
    owed: bool,
}

impl Leased {
    pub(crate) fn new(lease: Arc<Lease>) -> Self {
        Self { lease, told: State::default(), owed: false }
    }
}

/// The other end, and what a visit needs at hand beside it.
struct Peer {
    qp: Arc<Qp>,
    /// The regions of this end.
    local: Arc<MrTable>,
}

/// The message at the head of the queue, as it is tried again.
#[derive(Default, PartialEq, Eq)]
struct Retry {
    rnr_tries: u8,
    unanswered_since: Option<u64>,
    not_before: u64,
}

impl Requester {
    pub(crate) fn new(qp: Arc<Qp>) -> Result<Self, MemError> {
        let sq = SendQueue::new(qp)?;
        Ok(Self {
            sq,
            peer: None,
            retry: Retry::default(),
            moved: 0,
            transport: None,
            listed: false,
            leased: None,
        })
    }

    pub(crate) fn qp(&self) -> &Arc<Qp> {
        &self.sq.qp
    }

    /// What is posted, taken and on its way.
    pub(crate) fn report(&self) -> SendReport {
        let on_way = self.transport.as_ref().map_or((0, None), Transport::on_way);
        SendReport::new(&self.sq, on_way)
    }

    /// Whether an engine elsewhere has the queue pair.
    #[inline]
    pub(crate) fn is_out(&self) -> bool {
        self.leased.as_ref().is_some_and(|leased| leased.lease.is_out())
    }

    /// Leases the queue pair to the engine elsewhere, if it may have it now. `seen` are the UAR's
    /// registers.
    pub(crate) fn lease(&mut self, seen: [u64; 2]) -> bool {
        let Some(leased) = &self.leased else { return false };
        if leased.owed || leased.lease.is_out() || self.retry != Retry::default() {
            return false;
        }
        let qp = &self.sq.qp;
        let Some(peer) = &self.peer else { return false };
        if QueuePair::state(&**qp) != QpState::Rts || !responder::answers(&peer.qp, qp.in_process())
        {
            return false;
        }
        let counts = leased.told;
        let told = State { registers: seen, ..self.sq.stands() };
        let state = State {
            wqes: counts.wqes,
            bytes: counts.bytes,
            inband: counts.inband,
            blueflame: counts.blueflame,
            doorbells: counts.doorbells,
            ..told
        };
        let Some(granted) = qp.grant(&leased.lease, &peer.qp, state) else {
            self.leased = None; // not for that engine, now or later
            return false;
        };
        // The peer may have left meanwhile, before it knew of the lease.
        if granted && !responder::answers(&peer.qp, qp.in_process()) {
            leased.lease.ask_back();
        }
        granted
    }

    /// Counts what the engine elsewhere has done, and goes on where it stood if it has returned the
    /// queue pair; the UAR's registers then.
    pub(crate) fn look(&mut self, tally: &mut Tally) -> Option<[u64; 2]> {
        let leased = self.leased.as_mut()?;
        if !leased.lease.is_out() {
            return None;
        }
        let back = leased.lease.take_back();
        let now = back.unwrap_or_else(|| leased.lease.look());
        let told = std::mem::replace(&mut leased.told, now);
        tally.wqes += now.wqes.wrapping_sub(told.wqes);
        tally.offloaded += now.wqes.wrapping_sub(told.wqes);
        tally.bytes += now.bytes.wrapping_sub(told.bytes);
        tally.inband += now.inband.wrapping_sub(told.inband);
        tally.blueflame += now.blueflame.wrapping_sub(told.blueflame);
        tally.doorbells += now.doorbells.wrapping_sub(told.doorbells);
        let state = back?;
        leased.owed = state.why != Why::Asked as u32;
        tally.returned += u64::from(leased.owed);
        self.sq.go_on(&state);
        self.sq.qp.send_cq.take_over([state.cq_pi, state.cq_ci]);
        self.moved = 0;
        Some(state.registers)
    }

    /// Gets the queue pair back, and waits for it. False: the engine was given up, and has it.
    pub(crate) fn recall(&self) -> bool {
        self.leased.as_ref().is_none_or(|leased| leased.lease.recall())
    }

    /// Takes up to a budget of WQEs.
    pub(crate) fn visit(&mut self, cx: &mut StepContext<'_>) -> Visit {
        let visit = self.attend(cx);
        if visit == Visit::Idle {
            self.settled();
        }
        visit
    }

    /// What the engine elsewhere left has been carried out.
    fn settled(&mut self) {
        if let Some(leased) = &mut self.leased {
            leased.owed = false;
        }
    }

    fn attend(&mut self, cx: &mut StepContext<'_>) -> Visit {
        if let Some(transport) = &mut self.transport {
            let visit = transport.visit(&mut self.sq, cx);
            if visit != Visit::Idle || QueuePair::state(&*self.sq.qp) != QpState::Err {
                return visit;
            }
        }
        match QueuePair::state(&*self.sq.qp) {
            QpState::Rts => {}
            QpState::Err => return self.flush(cx),
            _ => return Visit::Idle,
        }
        if self.retry.not_before > cx.now_ns {
            return Visit::Later(self.retry.not_before);
        }
        if !self.sq.has_work() {
            self.moved = 0;
            return Visit::Idle;
        }
        self.sq.qp.send_cq.prefetch();
        // Taken out meanwhile: that costs no count of references.
        let Some(peer) = self.peer.take() else { return Visit::Idle };
        let visit = with_both(&peer.local, &peer.qp.mrs, |local, remote| {
            self.run(cx, &peer.qp, local, remote)
        });
        self.peer = Some(peer);
        visit
    }

    /// Gives the send side its peer.
    pub(crate) fn connect(&mut self, peer: Arc<Qp>) {
        self.peer = Some(Peer { qp: peer, local: self.sq.qp.mrs.clone() });
    }

    fn run(
        &mut self,
        cx: &mut StepContext<'_>,
        peer: &Qp,
        local: &Regions,
        remote: &Regions,
    ) -> Visit {
        let limit = cx.tally.bytes + VISIT_BYTES;
        for _ in 0..VISIT_WQES {
            // 1. Take: copied out before anything of it is believed.
            let Some(mut posted) = self.sq.fetch(cx.scratch) else {
                self.moved = 0;
                return Visit::Idle;
            };
            let (own, other) = (self.sq.qp.pd, peer.pd);
            // A capture shows each WQE's message.
            if self.moved >= coalesce::COALESCE_FROM_BYTES && cx.inproc_capture.is_none() {
                coalesce::collect(&self.sq, &mut posted, cx.scratch, cx.coalesced, |sge, to| {
                    let (n, write) = (sge.bytes, Right::RemoteWrite);
                    peer.permits(write)
                        && local.resolve(own, sge.lkey.0, sge.addr, n, Right::Gather).is_ok()
                        && remote.resolve(other, to.rkey.0, to.addr, n, write).is_ok()
                });
            }
            // 2. Check and carry out.
            let bytes = self.sq.bytes(&posted, cx.scratch);
            let done = match &posted.wqe {
                Ok(wqe) => {
                    let (from, pd) = (self.sq.qp.in_process(), self.sq.qp.pd);
                    let msg = Message { wqe, bytes, local, from, pd };
                    check_local(&msg).and_then(|()| {
                        let done = execute::execute(&msg, peer, remote);
                        if let Some(capture) = cx.inproc_capture {
                            capture.record(&msg, peer, done);
                        }
                        done
                    })
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
            if failed.is_none() {
                let mut coalesced = std::mem::take(cx.coalesced);
                coalesced.drain(..).for_each(|part| self.finish(cx, &part, None));
                *cx.coalesced = coalesced; // with its room
            }
            cx.coalesced.clear();
            // Also when the peer's engine moved this queue pair to ERR meanwhile.
            if QueuePair::state(&*self.sq.qp) != QpState::Rts || cx.tally.bytes >= limit {
                break;
            }
        }
        Visit::More
    }

    /// Decides about a message that the peer did not take: when to try again, or how it fails.
    fn retry(&mut self, cx: &StepContext<'_>, why: Refusal) -> Result<u64, (Syndrome, Vendor)> {
        let retry = &mut self.retry;
        let pause = match why {
            Refusal::Rnr => {
                Live::add(&cx.counters.rnr_waits, 1);
                let limit = self.sq.qp.attr.rnr_retry;
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
        cx: &mut StepContext<'_>,
        posted: &Posted,
        failed: Option<(Syndrome, Vendor)>,
    ) {
        self.retry = Retry::default();
        self.settled();
        self.sq.consume(posted);
        let qpn = self.sq.qp.qpn;
        let wqe = match (failed, &posted.wqe) {
            (None, Ok(wqe)) => wqe,
            (failed, _) => {
                let (syndrome, vendor) = failed.unwrap_or((Syndrome::LocalQpOp, Vendor::Segment));
                cx.tally.errors += 1;
                let op = CqeOpcode::ReqErr;
                // ERR first: whoever sees the CQE finds the queue pair in the state it implies.
                self.sq.qp.set_error();
                self.sq.qp.complete(&Cqe::error(op, qpn, posted.counter, syndrome, vendor as u8));
                return;
            }
        };
        cx.tally.wqes += 1;
        cx.tally.bytes += u64::from(wqe.bytes);
        self.moved += u64::from(wqe.bytes);
        cx.tally.inband += u64::from(posted.source == Source::Slot);
        cx.tally.blueflame += u64::from(posted.source == Source::BlueFlame);
        if wqe.flags.cq_update {
            let bytes = if wqe.opcode.scatters() { wqe.bytes } else { 0 };
            self.sq.qp.complete(&Cqe::requester(qpn, wqe.opcode as u8, posted.counter, bytes));
        }
    }

    /// Completes what is posted to a queue pair in ERR with flush errors.
    fn flush(&mut self, cx: &mut StepContext<'_>) -> Visit {
        self.retry = Retry::default();
        for _ in 0..VISIT_WQES {
            let Some(posted) = self.sq.fetch(cx.scratch) else { return Visit::Idle };
            if matches!(posted.wqe, Err((_, Vendor::Overrun))) {
                return Visit::Idle; // nothing that was posted with a credit
            }
            self.sq.consume(&posted);
            let (op, syndrome) = (CqeOpcode::ReqErr, Syndrome::WrFlush);
            let vendor = Vendor::Flush as u8;
            cx.tally.errors += 1;
            self.sq.qp.complete(&Cqe::error(op, self.sq.qp.qpn, posted.counter, syndrome, vendor));
        }
        Visit::More
    }

    /// Completes receives posted to a queue pair in ERR; says whether there were any.
    pub(crate) fn flush_receives(&self) -> bool {
        self.sq.qp.receives().flush(&self.sq.qp)
    }
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
