//! The requester of the in-process link: takes WQEs from a queue pair, checks them, has them carried out, completes
//! them (InfiniBand vol. 1, 9.7.2).

use std::sync::Arc;

use crate::adversary::sends;
use crate::counters::{DropReason, Live};
use crate::objects::mr::{MrTable, Regions, Right, with_both};
use crate::objects::qp::Qp;
use crate::queue::sq::{Carried, Posted, SendQueue, Source};
use crate::service::local::coalesce;
use crate::service::local::execute::{self, Message};
use crate::service::local::responder::{Refusal, answers};
use crate::service::local::spread;
use crate::service::outstanding::{Failure, check_local};
use crate::service::payload::Domain;
use crate::service::requester::{StepContext, VISIT_BYTES, VISIT_WQES, Visit};
use crate::trace::Kind;
use crate::vendor::Vendor;
use bellpush_nic::{QpState, QpType, QueuePair};
use bellpush_wire::PlainWrite;
use bellpush_wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush_wire::wqe::{Opcode, WQEBB_BYTES};

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
            // What most WQEs are. A capture shows each WQE's message, and whole; an adversary looks at each,
            // and the peer's at each that it has to acknowledge.
            let adversary = sq.qp.adversary.is_some() || peer.adversary.is_some();
            let whole = cx.inproc_capture.is_some() || adversary;
            let plain = if whole { None } else { sq.peek(sq.position()) };
            let spreads = !self.broke_off && !whole && spread::is_possible(cx);
            let goes_on = match &plain {
                Some((write, _)) if spreads && write.bytes >= spread::SHORT_BYTES => {
                    spread::suits(sq, write)
                        .is_some_and(|known| self.spread(sq, cx, between, known))
                }
                Some((write, block)) if write.bytes < spread::SHORT_BYTES => {
                    self.write_short(sq, cx, between, (write, block))
                }
                None if spreads && sq.has_slots_in_a_row() => self.spread(sq, cx, between, 0),
                _ => false,
            };
            if goes_on {
                continue;
            }
            // 1. Take: copied out before anything of it is believed.
            let Some(mut posted) = sq.fetch(cx.scratch) else {
                self.moved = 0;
                return Visit::Idle;
            };
            // Of these bytes alone: the ring may have changed since the look above.
            if self.moved >= coalesce::COALESCE_FROM_BYTES && !whole {
                coalesce::collect(sq, &mut posted, cx.scratch, cx.coalesced, |sge, to| {
                    let (n, gather, write) = (sge.bytes, Right::Gather, Right::RemoteWrite);
                    let from = local.resolve(sq.qp.pd, sge.lkey.0, sge.addr, n, gather);
                    let to = remote.resolve(peer.pd, to.rkey.0, to.addr, n, write);
                    peer.permits(write)
                        && matches!((from, to), (Ok(from), Ok(to)) if !from.meets(to, n as usize))
                });
            }
            if self.retry == Retry::default() {
                sq.trace_fetched(&posted);
            }
            // 2. Check and carry out.
            let bytes = sq.bytes(&posted, cx.scratch);
            let done = match &posted.wqe {
                Ok(wqe) => {
                    let msg = Message { wqe, bytes, domain, from: sq.qp.in_process() };
                    let nak = |(syndrome, vendor)| Refusal::Nak(syndrome, vendor);
                    let checked = has(sq.qp.kind, wqe.opcode);
                    let checked = checked.and_then(|()| check_local(wqe, bytes, domain));
                    checked.map_err(nak).and_then(|()| {
                        let done = execute::execute(&msg, peer, remote);
                        let is_heard = sq.qp.kind != QpType::Uc;
                        let done = if is_heard { done } else { unheard(peer, done) };
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
            match (failed, &posted.wqe) {
                (None, Ok(wqe)) => {
                    if wqe.flags.cq_update {
                        peer.land_acknowledged();
                    }
                    self.complete(sq, cx, posted.carried(wqe));
                    let mut coalesced = std::mem::take(cx.coalesced);
                    coalesced.drain(..).for_each(|part| self.complete(sq, cx, part));
                    *cx.coalesced = coalesced; // with its room
                }
                (failed, _) => {
                    cx.coalesced.clear();
                    let why = failed.unwrap_or((Syndrome::LocalQpOp, Vendor::Segment));
                    self.fail(sq, cx, &posted, why);
                }
            }
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
                let limit = match sq.qp.kind {
                    QpType::Rc => sq.qp.attributes().rnr_retry,
                    _ => sq.qp.attr.rnr_retry, // connections that have no such attribute
                };
                if limit < 7 && retry.rnr_tries >= limit {
                    return Err((Syndrome::RnrRetryExc, Vendor::Rnr));
                }
                retry.rnr_tries = retry.rnr_tries.saturating_add(1);
                sq.qp.mark(Kind::RnrGot, 0, [retry.rnr_tries.into(), cx.timers.rnr_ns]);
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

    /// Carries out a short WRITE whose memory may be accessed; false when anything is not as it should be: the usual
    /// way says what.
    #[inline]
    fn write_short(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut StepContext<'_>,
        spread::Between { domain, peer, remote }: spread::Between<'_>,
        (write, block): (&PlainWrite, &[u8; WQEBB_BYTES]),
    ) -> bool {
        let (n, to, right) = (write.bytes, write.remote, Right::RemoteWrite);
        if !answers(peer, sq.qp.in_process()) || !peer.permits(right) {
            return false;
        }
        let Ok(to) = remote.resolve(peer.pd, to.rkey.0, to.addr, n, right) else { return false };
        let moved = match write.from {
            None => to.mem.write(to.offset, &block[PlainWrite::INLINE_AT..][..n as usize]),
            Some(sge) => {
                let (key, pd) = (sge.lkey.0, domain.user.pd);
                let from = domain.regions.resolve(pd, key, sge.addr, n, Right::Gather);
                let Ok(from) = from else { return false };
                from.copy_to(to, n as usize)
            }
        };
        if moved.is_ok() {
            self.complete(sq, cx, Carried::plain(sq.position(), write));
        }
        moved.is_ok()
    }

    fn fail(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut StepContext<'_>,
        posted: &Posted,
        (syndrome, vendor): (Syndrome, Vendor),
    ) {
        sends::forget(&sq.qp, posted.source, sq.position());
        self.take(sq, posted.source, posted.blocks);
        cx.tally.errors += 1;
        let (op, qpn) = (CqeOpcode::ReqErr, sq.qp.qpn);
        // ERR first: whoever sees the CQE finds the queue pair in the state it implies.
        sq.qp.set_error();
        sq.qp.complete(&Cqe::error(op, qpn, posted.counter, syndrome, vendor as u8));
    }

    pub(super) fn complete(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut StepContext<'_>,
        carried: Carried,
    ) {
        let Carried { source, counter, blocks, opcode, bytes, cq_update } = carried;
        sends::complete(&sq.qp, source, sq.position());
        sq.qp.mark(Kind::Done, counter, [opcode as u64, bytes.into()]);
        self.take(sq, source, blocks);
        cx.tally.wqes += 1;
        cx.tally.bytes += u64::from(bytes);
        self.moved += u64::from(bytes);
        cx.tally.inband += u64::from(source == Source::Slot);
        cx.tally.blueflame += u64::from(source == Source::BlueFlame);
        if cq_update {
            let bytes = if opcode.scatters() { bytes } else { 0 };
            sq.qp.complete(&Cqe::requester(sq.qp.qpn, opcode as u8, counter, bytes));
        }
    }

    fn take(&mut self, sq: &mut SendQueue, source: Source, blocks: u32) {
        self.retry = Retry::default();
        self.broke_off = false;
        sq.consume(source, blocks);
    }
}

/// What an unreliable connection hears of what became of a request at its peer: nothing (InfiniBand vol. 1, 9.8.3).
fn unheard(peer: &Qp, done: Result<(), Refusal>) -> Result<(), Refusal> {
    use Syndrome::{RemoteAccess, RemoteInvalReq, RemoteOp};
    match done {
        // The responder has counted what it dropped.
        Err(Refusal::Nak(RemoteAccess | RemoteInvalReq | RemoteOp, _)) => {}
        Err(Refusal::Rnr) => peer.counters.dropped(DropReason::NoReceive),
        Err(Refusal::NoAnswer) => peer.counters.dropped(DropReason::State),
        Ok(()) | Err(Refusal::Nak(..)) => return done,
    }
    Ok(())
}

/// Whether a service has an operation.
fn has(kind: QpType, opcode: Opcode) -> Result<(), Failure> {
    match kind == QpType::Uc && (opcode.scatters() || opcode == Opcode::SendInval) {
        true => Err((Syndrome::LocalQpOp, Vendor::Opcode)),
        false => Ok(()),
    }
}
