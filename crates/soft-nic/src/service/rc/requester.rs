//! The requester of a reliable connection (InfiniBand vol. 1, 9.7.2, 9.7.3, 9.7.5 and 9.9.2).
//!
//! Messages on their way stand in a queue; a cursor in it says which packet goes next. What is lost
//! is sent again from the oldest packet that is not acknowledged on (go-back-N): the cursor goes
//! back, and packets are built from the WQEs once more. A long READ is asked for in parts, so that
//! the responses that are on their way are bounded as requests are; after a loss the rest of a part
//! is asked for again.

mod loss;
mod session;
mod streams;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use crate::counters::{DropReason, Live};
use crate::link::place::Payload;
use crate::link::port::Incoming;
use crate::objects::pace::SchedElement;
use crate::objects::qp::Qp;
use crate::objects::state::Attributes;
use crate::queue::recv;
use crate::queue::sq::{Scratch, SendQueue};
use crate::service::PeerPath;
use crate::service::outstanding::{
    Failure, MAX_OUTSTANDING, Outstanding, atomic_operation, entries,
};
use crate::service::payload::Domain;
use crate::service::rendezvous::Pending;
use crate::service::requester::{StepContext, Tally, Visit};
use crate::trace::Kind;
use crate::vendor::Vendor;
use bellpush_wire::cqe::Syndrome as Cause;
use bellpush_wire::roce::{
    Aeth, AtomicEth, Dceth, NakCode, Operation, Reth, Syndrome, ack_timeout_ns, rnr_timer_ns,
};
use bellpush_wire::wqe::{Opcode, Wqe};
use bellpush_wire::{Iova, Psn};
use session::Turn;
use streams::{FLUSHED, Streams};

/// PSNs that may be on their way.
const WINDOW: i32 = 128;
/// Packets of a visit, so that no queue pair starves the others.
const VISIT_PACKETS: usize = 32;
/// Responses that are asked for with one READ request.
const READ_PART: u32 = 32;
/// Packets after which an acknowledgement is asked for within a message.
const ACK_EVERY: u32 = 16;

pub(super) struct Requester {
    path: PeerPath,
    timeout_ns: Option<u64>,
    retry_cnt: u8,
    rnr_retry: u8,
    max_rd_atomic: u8,
    outstanding: VecDeque<Outstanding>,
    /// PSN of the next message, the oldest that is not acknowledged, and the one after the last
    /// that was ever sent.
    next: Psn,
    oldest: Psn,
    sent: Psn,
    /// The packet to be sent next: of which outstanding message, and which of its packets.
    cursor: usize,
    at: u32,
    /// READ requests and atomics that are not answered.
    reads: u8,
    /// When the oldest is given up waiting for.
    deadline: Option<u64>,
    /// Intervals that nothing was heard for, and their sum.
    tries: u32,
    waited_ns: u64,
    rnr_tries: u8,
    not_before: u64,
    /// What is being sent again from this PSN on; news that it is missing are old news.
    recovering: Option<Psn>,
    /// Memory for WQEs that do not stay in a ring.
    spare: Vec<Vec<u8>>,
    /// Of an initiator of dynamic connections: what its requests say of their session.
    session: Option<Dceth>,
    /// PSNs that its messages have taken in this life.
    lived: u32,
    /// Of one with streams.
    streams: Option<Streams>,
    /// Rendezvous that have matched, which come before what is posted.
    pub(super) rendezvous: Pending,
}

/// A WQE in the scratch buffer.
type Loaded = Option<Wqe>;

impl Requester {
    pub(super) fn new(path: PeerPath, attributes: &Attributes) -> Self {
        let psn = attributes.sq_psn;
        let mut requester = Self {
            path,
            timeout_ns: None,
            retry_cnt: 0,
            rnr_retry: 0,
            max_rd_atomic: 0,
            outstanding: VecDeque::new(),
            next: psn,
            oldest: psn,
            sent: psn,
            cursor: 0,
            at: 0,
            reads: 0,
            deadline: None,
            tries: 0,
            waited_ns: 0,
            rnr_tries: 0,
            not_before: 0,
            recovering: None,
            spare: Vec::new(),
            session: None,
            lived: 0,
            streams: None,
            rendezvous: Pending::default(),
        };
        requester.apply(path, attributes);
        requester
    }

    pub(super) fn start(&mut self, psn: Psn) {
        (self.next, self.oldest, self.sent) = (psn, psn, psn);
    }

    pub(super) fn apply(&mut self, path: PeerPath, attributes: &Attributes) {
        self.path = path;
        self.timeout_ns = ack_timeout_ns(attributes.timeout);
        self.retry_cnt = attributes.retry_cnt;
        self.rnr_retry = attributes.rnr_retry;
        self.max_rd_atomic = attributes.max_rd_atomic;
    }

    pub(super) fn path(&self) -> PeerPath {
        self.path
    }

    /// Where responses come from.
    pub(super) fn peer(&self) -> IpAddr {
        self.path.route.to
    }

    pub(super) fn on_way(&self) -> (usize, Option<&Outstanding>) {
        (self.outstanding.len(), self.outstanding.front())
    }

    /// The WQE for the NIC itself that everything before is complete of, if there is one.
    pub(super) fn in_turn(&mut self) -> Option<&mut Outstanding> {
        self.outstanding.front_mut().filter(|message| message.waits)
    }

    fn is_outstanding(&self) -> bool {
        self.sent != self.oldest
    }

    // ---- Sending ---------------------------------------------------------------------------

    /// Sends what may be sent now, and takes new WQEs if it may: as much as a visit allows, or a packet
    /// when its group may send one.
    pub(super) fn visit(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut StepContext<'_>,
        domain: Domain<'_>,
        (may_take, group): (bool, Option<Arc<SchedElement>>),
    ) -> Visit {
        let waits = self.not_before > cx.now_ns;
        let wants = self.cursor < self.outstanding.len() || may_take && sq.has_work();
        let Some(group) = group.filter(|_| wants && !waits) else {
            return self.transmit(sq, cx, domain, (may_take, VISIT_PACKETS));
        };
        if let Err(at) = group.admit(cx.now_ns) {
            self.hold(at);
            let settled = self.settle(sq, cx);
            return if settled { Visit::More } else { self.until().or_at(at) };
        }
        let built = |cx: &StepContext<'_>| cx.port.as_ref().map_or(0, |port| port.built_bytes());
        let before = built(cx);
        let visit = self.transmit(sq, cx, domain, (may_take, 1));
        group.charge(built(cx) - before, cx.now_ns);
        self.hold(group.due_ns());
        visit
    }

    /// When what is on its way is to be looked at.
    fn until(&self) -> Visit {
        match self.deadline {
            Some(at) if self.is_outstanding() => Visit::Later(at),
            _ => Visit::Idle,
        }
    }

    fn transmit(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut StepContext<'_>,
        domain: Domain<'_>,
        (may_take, mut left): (bool, usize),
    ) -> Visit {
        if self.not_before > cx.now_ns {
            return Visit::Later(self.not_before);
        }
        let mut loaded = None;
        while self.cursor < self.outstanding.len() || may_take {
            if left == 0 || cx.port.as_ref().is_none_or(|port| port.room() == 0) {
                self.settle(sq, cx);
                return Visit::More;
            }
            left -= 1;
            if self.cursor == self.outstanding.len() {
                match self.take(sq, cx.scratch, domain) {
                    Some(wqe) => loaded = wqe,
                    None => break,
                }
            }
            if !self.send_next(sq, cx, domain, &mut loaded) {
                break;
            }
        }
        if self.settle(sq, cx) {
            return Visit::More;
        }
        self.until()
    }

    /// Takes the next WQE, if one is posted and may go.
    fn take(
        &mut self,
        sq: &mut SendQueue,
        scratch: &mut Scratch,
        domain: Domain<'_>,
    ) -> Option<Loaded> {
        let stopped = self.outstanding.back().is_some_and(|f| f.failed.is_some() || f.waits);
        let full =
            self.outstanding.len() >= MAX_OUTSTANDING || self.next.distance(self.oldest) >= WINDOW;
        if stopped || full {
            return None;
        }
        let from = (self.next, self.path.mtu);
        let (mut message, wqe) = match self.rendezvous.next(&sq.qp, domain, from, &mut self.spare) {
            Some(message) => (message, None),
            None if !sq.has_work() => return None,
            None => {
                let to = self.session.is_some().then(|| self.turn(sq, scratch));
                if to == Some(Turn::Waits) {
                    return None;
                }
                Outstanding::take(sq, scratch, domain, from, &mut self.spare)?
            }
        };
        if message.opcode.scatters() && self.max_rd_atomic == 0 && message.failed.is_none() {
            message.failed = Some((Cause::LocalQpOp, Vendor::Opcode));
        }
        if self.streams.as_ref().is_some_and(|it| it.has_failed(message.stream)) {
            (message.failed, message.packets, message.waits) = (Some(FLUSHED), 0, false);
        }
        self.next = message.end();
        self.lived = self.lived.saturating_add(message.packets);
        self.at = 0;
        self.outstanding.push_back(message);
        Some(wqe)
    }

    /// Sends the packet at the cursor; says whether to go on.
    fn send_next(
        &mut self,
        sq: &SendQueue,
        cx: &mut StepContext<'_>,
        domain: Domain<'_>,
        loaded: &mut Loaded,
    ) -> bool {
        let message = &self.outstanding[self.cursor];
        if message.failed.is_some() {
            return false;
        }
        if self.at >= message.packets {
            (self.cursor, self.at, *loaded) = (self.cursor + 1, 0, None);
            return true;
        }
        let psn = message.first.plus(self.at);
        let waits = message.flags.fence && self.at == 0 && self.reads > 0
            || message.opcode.scatters() && self.reads >= self.max_rd_atomic;
        if waits || psn.distance(self.oldest) >= WINDOW {
            return false;
        }
        let wqe = match loaded.take() {
            Some(wqe) => Ok(wqe),
            None => message.load(sq, cx.scratch),
        };
        let n = match wqe.and_then(|wqe| {
            let n = self.emit(cx, domain, psn, &wqe)?;
            *loaded = Some(wqe);
            Ok(n)
        }) {
            Ok(n) => n,
            Err(failure) => {
                self.outstanding[self.cursor].failed = Some(failure);
                return false;
            }
        };
        let after = psn.plus(n);
        if after.distance(self.sent) > 0 {
            self.sent = after;
            self.outstanding[self.cursor].trace_sent(&sq.qp, self.path.dest, (self.at, n));
        } else {
            Live::add(&cx.counters.retransmitted, 1);
            let counter = self.outstanding[self.cursor].counter;
            sq.qp.mark(Kind::Resent, counter, [psn.value().into(), u64::from(self.tries)]);
        }
        self.at += n;
        if self.deadline.is_none() {
            self.restart_timer(cx.now_ns);
        }
        true
    }

    /// Builds the packet at the cursor; returns how many PSNs it takes.
    fn emit(
        &mut self,
        cx: &mut StepContext<'_>,
        domain: Domain<'_>,
        psn: Psn,
        wqe: &Wqe,
    ) -> Result<u32, Failure> {
        let (path, at) = (self.path, self.at);
        let message = &self.outstanding[self.cursor];
        let port = cx.port.as_deref_mut().expect("transports are visited with a port");
        if self.session.is_some() && !port.reaches(path.route.to) {
            return Err((Cause::LocalQpOp, Vendor::Address));
        }
        if !message.opcode.scatters() {
            let (mut headers, part) = message.request(wqe, at, path.mtu, (path.service, path.dest));
            headers.ext.dc = self.session;
            headers.bth.ack_req = at + 1 == message.packets || (at + 1).is_multiple_of(ACK_EVERY);
            let pieces = wqe.pieces(message.wqe_bytes(cx.scratch));
            port.send(&path.route, &headers, part.len(), |into| {
                domain.gather(pieces, part.start, into)
            })
            .map_err(|vendor| (Cause::LocalProt, vendor))?;
            return Ok(1);
        }
        let remote = wqe.remote.ok_or((Cause::LocalQpOp, Vendor::Segment))?;
        let (operation, n) = match message.opcode {
            Opcode::RdmaRead => {
                (Operation::ReadRequest, (READ_PART - at % READ_PART).min(message.packets - at))
            }
            op => (atomic_operation(op), 1),
        };
        let mut headers = path.headers(operation, psn);
        headers.bth.ack_req = true;
        headers.ext.srqn = wqe.srqn;
        headers.ext.dc = self.session;
        if let Some(ops) = wqe.atomic {
            let (addr, rkey) = (remote.addr, remote.rkey);
            headers.ext.atomic =
                Some(AtomicEth { addr, rkey, swap_add: ops.swap_add, compare: ops.compare });
            headers.ext.masks = wqe.masks;
        } else {
            let start = path.mtu.part(at, message.bytes).start;
            let end = path.mtu.part(at + n - 1, message.bytes).end;
            let addr = Iova(remote.addr.0.wrapping_add(start as u64));
            headers.ext.reth = Some(Reth { addr, rkey: remote.rkey, bytes: (end - start) as u32 });
        }
        port.send(&path.route, &headers, 0, |_| Ok::<_, Failure>(()))?;
        self.reads += 1;
        Ok(n)
    }

    // ---- Responses -------------------------------------------------------------------------

    /// Takes a response.
    pub(super) fn on_response(
        &mut self,
        sq: &SendQueue,
        cx: &mut StepContext<'_>,
        domain: Domain<'_>,
        packet: &Incoming<'_>,
    ) {
        let psn = packet.headers.bth.psn;
        if psn.distance(self.oldest) < 0 || psn.distance(self.sent) >= 0 {
            return cx.counters.dropped(DropReason::Response);
        }
        let operation = packet.opcode().operation();
        let acknowledged = match packet.headers.ext.aeth {
            Some(Aeth { syndrome: Syndrome::Ack { .. }, .. })
                if operation == Operation::Acknowledge =>
            {
                psn.plus(1)
            }
            _ => psn,
        };
        if self.acknowledge(acknowledged, sq, cx) {
            // Responses of a READ or an atomic are missing before this one (9.7.5.1.1).
            return self.resume(cx.now_ns);
        }
        match (operation, packet.headers.ext.aeth) {
            (Operation::Acknowledge, Some(aeth)) => self.on_syndrome(aeth.syndrome, psn, sq, cx),
            (Operation::AtomicAcknowledge, _) => {
                let old = packet.headers.ext.atomic_ack.unwrap_or(0);
                let (bytes, n) = self.outstanding.front().map_or(([0; 8], 8), |f| f.scattered(old));
                self.on_data(sq, cx, domain, Payload::Bytes(&bytes[..n]), (true, true));
            }
            (operation, _) => {
                let ends = operation.position().ends();
                self.on_data(sq, cx, domain, packet.payload, (false, ends));
            }
        }
    }

    fn on_syndrome(
        &mut self,
        syndrome: Syndrome,
        psn: Psn,
        sq: &SendQueue,
        cx: &mut StepContext<'_>,
    ) {
        if let Syndrome::Nak(code) = syndrome {
            sq.qp.mark(Kind::NakGot, 0, [code as u64, psn.value().into()]);
        }
        let cause = match syndrome {
            Syndrome::Ack { .. } => return,
            _ if psn != self.oldest => return cx.counters.dropped(DropReason::Response),
            Syndrome::RnrNak { timer } => return self.on_rnr(timer, sq, cx),
            Syndrome::Nak(NakCode::PsnSequence) => {
                Live::add(&cx.counters.sequence_naks, 1);
                return self.resume(cx.now_ns);
            }
            Syndrome::Nak(NakCode::RemoteAccess) => Cause::RemoteAccess,
            Syndrome::Nak(NakCode::RemoteOperational) => Cause::RemoteOp,
            Syndrome::Nak(NakCode::InvalidRequest | NakCode::InvalidRdRequest) => {
                Cause::RemoteInvalReq
            }
        };
        self.fail(sq, cx, (cause, Vendor::Nak));
    }

    fn on_rnr(&mut self, timer: u8, sq: &SendQueue, cx: &mut StepContext<'_>) {
        if self.not_before > cx.now_ns {
            return; // of a packet that was sent twice
        }
        Live::add(&cx.counters.rnr_waits, 1);
        if self.rnr_retry < 7 && self.rnr_tries >= self.rnr_retry {
            return self.fail(sq, cx, (Cause::RnrRetryExc, Vendor::Rnr));
        }
        self.rnr_tries = self.rnr_tries.saturating_add(1);
        self.not_before = cx.now_ns + rnr_timer_ns(timer);
        sq.qp.mark(Kind::RnrGot, 0, [self.rnr_tries.into(), rnr_timer_ns(timer)]);
        self.recovering = None;
        self.rewind();
        self.deadline = None;
    }

    /// Data for the oldest outstanding message: all before it is acknowledged, and its PSN is the one expected.
    fn on_data(
        &mut self,
        sq: &SendQueue,
        cx: &mut StepContext<'_>,
        domain: Domain<'_>,
        data: Payload<'_>,
        (atomic, ends): (bool, bool),
    ) {
        let Some(message) = self.outstanding.front_mut() else {
            return cx.counters.dropped(DropReason::Response);
        };
        let part = self.path.mtu.part(message.got, message.bytes);
        let part_ends =
            (message.got + 1).is_multiple_of(READ_PART) || message.got + 1 == message.packets;
        let fits = message.opcode.scatters()
            && message.opcode.is_atomic() == atomic
            && message.failed.is_none()
            && (data.len(), ends) == (part.len(), part_ends);
        if !fits {
            return self.fail(sq, cx, (Cause::BadResp, Vendor::Sequence));
        }
        let moved = message.load(sq, cx.scratch).and_then(|wqe| {
            let to = entries(&wqe, message.wqe_bytes(cx.scratch));
            domain.scatter(to, part.start, data).map_err(|vendor| (Cause::LocalProt, vendor))
        });
        if let Err(failure) = moved {
            return self.fail(sq, cx, failure);
        }
        message.got += 1;
        cx.tally.messages += u64::from(message.got == message.packets);
        let next = message.first.plus(message.got);
        if part_ends {
            self.reads = self.reads.saturating_sub(1);
        }
        self.acknowledge(next, sq, cx);
    }

    /// Everything before `end` has arrived, as far as that needs no response with data. Says
    /// whether there is one that should have come before `end`.
    fn acknowledge(&mut self, end: Psn, sq: &SendQueue, cx: &mut StepContext<'_>) -> bool {
        let before = self.oldest;
        let mut missing = false;
        while let Some(message) = self.outstanding.front().filter(|message| !message.waits) {
            let arrived = match message.opcode.scatters() {
                true => message.first.plus(message.got),
                false if end.distance(message.end()) >= 0 => message.end(),
                false if end.distance(self.oldest) > 0 => end,
                false => self.oldest,
            };
            self.oldest = arrived;
            if arrived != message.end() || message.failed.is_some() {
                missing = message.opcode.scatters() && end.distance(arrived) > 0;
                break;
            }
            self.pop(&sq.qp, &mut cx.tally);
        }
        if let (0, Some(message)) = (self.cursor, self.outstanding.front()) {
            self.at = self.at.max(self.oldest.distance(message.first).max(0) as u32);
        }
        if self.oldest != before {
            (self.tries, self.waited_ns) = (0, 0);
            (self.rnr_tries, self.not_before) = (0, 0);
            if self.recovering.is_some_and(|psn| psn != self.oldest) {
                self.recovering = None;
            }
            self.restart_timer(cx.now_ns);
        }
        missing
    }

    fn pop(&mut self, qp: &Qp, tally: &mut Tally) {
        let Some(message) = self.outstanding.pop_front() else { return };
        message.complete(qp, tally);
        message.recycle(&mut self.spare);
        match self.cursor {
            0 => self.at = 0,
            _ => self.cursor -= 1,
        }
    }

    // ---- Ends ------------------------------------------------------------------------------

    /// Completes what needs no answer and has nothing before it, and reports a failed WQE whose
    /// turn has come; says whether there was one.
    fn settle(&mut self, sq: &SendQueue, cx: &mut StepContext<'_>) -> bool {
        self.acknowledge(self.oldest, sq, cx);
        let failed = self.outstanding.front().and_then(|message| message.failed);
        failed.map(|failure| self.fail(sq, cx, failure)).is_some()
    }

    /// The oldest outstanding message fails, and with it the queue pair, or its stream.
    fn fail(&mut self, sq: &SendQueue, cx: &mut StepContext<'_>, failure: Failure) {
        if self.contain(&sq.qp, &mut cx.tally, failure) {
            return;
        }
        if let Some(message) = self.outstanding.pop_front() {
            message.fail(&sq.qp, &mut cx.tally, failure);
        }
        self.flush(&sq.qp, &mut cx.tally);
    }

    /// Flushes what is on its way, of a queue pair in ERR.
    pub(super) fn flush(&mut self, qp: &Qp, tally: &mut Tally) {
        for message in std::mem::take(&mut self.outstanding) {
            message.fail(qp, tally, (Cause::WrFlush, Vendor::Flush));
        }
        self.rendezvous.cancel().for_each(|name| recv::flush(qp, name));
        (self.cursor, self.at, self.deadline, self.not_before) = (0, 0, None, 0);
        self.oldest = self.sent;
    }

    /// The queue pair goes, or to RESET.
    pub(super) fn lose(&mut self, qp: &Qp) {
        let begun = self.outstanding.drain(..).filter_map(|message| message.entry());
        begun.for_each(|name| recv::lose(qp, name));
        self.rendezvous.cancel().for_each(|name| recv::lose(qp, name));
    }
}
