//! The requester of the in-process link: takes WQEs from a queue pair, checks them, has them carried out, completes
//! them (InfiniBand vol. 1, 9.7.2).

use std::sync::Arc;

use crate::counters::Live;
use crate::objects::mr::{MrTable, Regions, Right, with_both};
use crate::objects::qp::Qp;
use crate::queue::sq::{Posted, SendQueue, Source};
use crate::service::local::coalesce;
use crate::service::local::execute::{self, Message};
use crate::service::local::responder::Refusal;
use crate::service::local::spread;
use crate::service::outstanding::check_local;
use crate::service::payload::Domain;
use crate::service::requester::{StepContext, VISIT_BYTES, VISIT_WQES, Visit};
use crate::vendor::Vendor;
use bellpush_nic::{QpState, QueuePair};
use bellpush_wire::cqe::{Cqe, CqeOpcode, Syndrome};

/// A queue pair's send side, whose peer is in this process.
pub(crate) struct Local {
    peer: Arc<Qp>,
    /// The regions of this end.
    regions: Arc<MrTable>,
    sending: Sending,
}

#[derive(Default)]
pub(super) struct Sending {
    retry: Retry,
    /// Bytes since there was nothing to do.
    pub(super) moved: u64,
    /// A run broke off: the next WQE goes by itself, and tells why if it must.
    pub(super) broke_off: bool,
}

/// The message at the head of the queue, as it is tried again.
#[derive(Default, PartialEq, Eq)]
struct Retry {
    rnr_tries: u8,
    unanswered_since: Option<u64>,
    not_before: u64,
}

impl Local {
    pub(crate) fn new(peer: Arc<Qp>, regions: Arc<MrTable>) -> Self {
        Self { peer, regions, sending: Sending::default() }
    }

    pub(crate) fn peer(&self) -> &Arc<Qp> {
        &self.peer
    }

    /// Whether the message at the head was not taken, and is tried again.
    pub(crate) fn is_trying_again(&self) -> bool {
        self.sending.retry != Retry::default()
    }

    /// An engine elsewhere had the queue pair: nothing is known of what the caches hold.
    pub(crate) fn begin_again(&mut self) {
        self.sending.moved = 0;
    }

    /// Takes up to a budget of WQEs. Every step visits a queue pair with in-band slots, most often in vain.
    #[inline]
    pub(crate) fn visit(&mut self, sq: &mut SendQueue, cx: &mut StepContext<'_>) -> Visit {
        let Self { peer, regions, sending } = self;
        if QueuePair::state(&*sq.qp) != QpState::Rts {
            return Visit::Idle;
        }
        if sending.retry.not_before > cx.now_ns {
            return Visit::Later(sending.retry.not_before);
        }
        if !sq.has_work() {
            sending.moved = 0;
            return Visit::Idle;
        }
        sq.qp.send_cq.prefetch();
        with_both(regions, &peer.mrs, |local, remote| sending.run(sq, cx, peer, (local, remote)))
    }
}

impl Sending {
    fn run(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut StepContext<'_>,
        peer: &Qp,
        (local, remote): (&Regions, &Regions),
    ) -> Visit {
        let domain = Domain::of(&sq.qp, local);
        let limit = cx.tally.bytes + VISIT_BYTES;
        let between = spread::Between { domain, peer, remote };
        for _ in 0..VISIT_WQES {
            // Also when the peer's engine moved this queue pair to ERR meanwhile.
            if QueuePair::state(&*sq.qp) != QpState::Rts || cx.tally.bytes >= limit {
                break;
            }
            let spreads = !self.broke_off && spread::is_possible(cx);
            if spreads && sq.has_slots_in_a_row() && self.spread(sq, cx, between, 0) {
                continue;
            }
            // 1. Take: copied out before anything of it is believed.
            let Some(mut posted) = sq.fetch(cx.scratch) else {
                self.moved = 0;
                return Visit::Idle;
            };
            if spreads
                && let Some(known) = spread::suits(sq, &posted, cx.scratch)
                && self.spread(sq, cx, between, known)
            {
                continue;
            }
            // A capture shows each WQE's message.
            if self.moved >= coalesce::COALESCE_FROM_BYTES && cx.inproc_capture.is_none() {
                coalesce::collect(sq, &mut posted, cx.scratch, cx.coalesced, |sge, to| {
                    let (n, gather, write) = (sge.bytes, Right::Gather, Right::RemoteWrite);
                    let from = local.resolve(sq.qp.pd, sge.lkey.0, sge.addr, n, gather);
                    let to = remote.resolve(peer.pd, to.rkey.0, to.addr, n, write);
                    peer.permits(write)
                        && matches!((from, to), (Ok(from), Ok(to)) if !from.meets(to, n as usize))
                });
            }
            // 2. Check and carry out.
            let bytes = sq.bytes(&posted, cx.scratch);
            let done = match &posted.wqe {
                Ok(wqe) => {
                    let msg = Message { wqe, bytes, domain, from: sq.qp.in_process() };
                    let nak = |(syndrome, vendor)| Refusal::Nak(syndrome, vendor);
                    check_local(wqe, bytes, domain).map_err(nak).and_then(|()| {
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
                Err(wait) => match self.retry(sq, cx, wait) {
                    Ok(at) => return Visit::Later(at),
                    Err(failed) => Some(failed),
                },
            };
            self.finish(sq, cx, &posted, failed);
            if failed.is_none() {
                let mut coalesced = std::mem::take(cx.coalesced);
                coalesced.drain(..).for_each(|part| self.finish(sq, cx, &part, None));
                *cx.coalesced = coalesced; // with its room
            }
            cx.coalesced.clear();
        }
        Visit::More
    }

    /// Decides about a message that the peer did not take: when to try again, or how it fails.
    fn retry(
        &mut self,
        sq: &SendQueue,
        cx: &StepContext<'_>,
        why: Refusal,
    ) -> Result<u64, (Syndrome, Vendor)> {
        let retry = &mut self.retry;
        let pause = match why {
            Refusal::Rnr => {
                Live::add(&cx.counters.rnr_waits, 1);
                let limit = sq.qp.attr.rnr_retry;
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

    pub(super) fn finish(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut StepContext<'_>,
        posted: &Posted,
        failed: Option<(Syndrome, Vendor)>,
    ) {
        self.retry = Retry::default();
        self.broke_off = false;
        sq.consume(posted);
        let qpn = sq.qp.qpn;
        let wqe = match (failed, &posted.wqe) {
            (None, Ok(wqe)) => wqe,
            (failed, _) => {
                let (syndrome, vendor) = failed.unwrap_or((Syndrome::LocalQpOp, Vendor::Segment));
                cx.tally.errors += 1;
                let op = CqeOpcode::ReqErr;
                // ERR first: whoever sees the CQE finds the queue pair in the state it implies.
                sq.qp.set_error();
                sq.qp.complete(&Cqe::error(op, qpn, posted.counter, syndrome, vendor as u8));
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
            sq.qp.complete(&Cqe::requester(qpn, wqe.opcode as u8, posted.counter, bytes));
        }
    }
}
