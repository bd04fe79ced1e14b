//! Unreliable connections over packets (InfiniBand vol. 1, 9.8.3).
//!
//! Nothing is acknowledged: a send is complete when its last packet is built. Where a packet is
//! missing, its whole message is: what comes of it is dropped until a message begins. Packets from
//! before the one expected are dropped as well, so that a message that the link doubled is
//! delivered once.

use std::net::IpAddr;

use crate::counters::DropReason;
use crate::link::port::Incoming;
use crate::objects::qp::Qp;
use crate::objects::state::Attributes;
use crate::queue::sq::SendQueue;
use crate::service::PeerPath;
use crate::service::outstanding::Outstanding;
use crate::service::payload::Domain;
use crate::service::reassembly::{Reassembly, Refused};
use crate::service::requester::{StepContext, Visit};
use crate::trace::Kind;
use crate::vendor::Vendor;
use bellpush_nic::{QpState, QueuePair};
use bellpush_wire::Psn;
use bellpush_wire::cqe::Syndrome as Cause;
use bellpush_wire::wqe::{Opcode, Wqe};

/// Packets of a visit, so that no queue pair starves the others.
const VISIT_PACKETS: usize = 64;

/// Both sides of an unreliable connection.
pub(crate) struct Uc {
    path: PeerPath,
    /// PSN of the next message; the message that is being sent, and its next packet.
    next: Psn,
    message: Option<Outstanding>,
    at: u32,
    /// PSN expected next.
    expected: Psn,
    reassembly: Reassembly,
    /// PSN that the message that is coming in began with, and its bytes so far, for a trace.
    begun: (Psn, u64),
}

impl Uc {
    pub(crate) fn new(path: PeerPath, attributes: &Attributes) -> Self {
        Self {
            path,
            next: attributes.sq_psn,
            message: None,
            at: 0,
            expected: attributes.rq_psn,
            reassembly: Reassembly::default(),
            begun: (attributes.rq_psn, 0),
        }
    }

    /// Where the peer's packets come from.
    pub(crate) fn peer(&self) -> IpAddr {
        self.path.route.to
    }

    pub(crate) fn start(&mut self, attributes: &Attributes) {
        self.next = attributes.sq_psn;
    }

    pub(crate) fn apply(&mut self, path: PeerPath) {
        self.path = path;
    }

    pub(crate) fn on_way(&self) -> (usize, Option<&Outstanding>) {
        (self.message.iter().len(), self.message.as_ref())
    }

    pub(crate) fn on_packet(&mut self, sq: &SendQueue, domain: Domain<'_>, packet: &Incoming<'_>) {
        let qp = &*sq.qp;
        let psn = packet.headers.bth.psn;
        let starts = packet.opcode().operation().position().starts();
        let distance = psn.distance(self.expected);
        if distance < 0 {
            return qp.counters.dropped(DropReason::Duplicate);
        }
        if distance > 0 || starts {
            self.reassembly.abandon();
        }
        self.expected = psn.plus(1);
        if !starts && !self.reassembly.is_under_way() {
            return qp.counters.dropped(DropReason::Message);
        }
        match self.reassembly.accept(qp, domain, packet, self.path.mtu) {
            Ok(ended) => self.trace_message(qp, packet, ended),
            Err(Refused::Receive(..)) => qp.set_error(),
            Err(refused) => {
                self.reassembly.abandon();
                qp.counters.dropped(match refused {
                    Refused::NotReady => DropReason::NoReceive,
                    _ => DropReason::Refused,
                });
            }
        }
    }

    /// Has it in the trace how a message comes.
    #[inline]
    fn trace_message(&mut self, qp: &Qp, packet: &Incoming<'_>, ended: bool) {
        let Some(trace) = qp.events.trace() else { return };
        let psn = packet.headers.bth.psn;
        if packet.opcode().operation().position().starts() {
            self.begun = (psn, 0);
            if !ended {
                trace.mark(Kind::Arrived, qp.qpn.0, 0, [psn.value().into(), 0]);
            }
        }
        self.begun.1 += packet.payload.len() as u64;
        if ended {
            let (first, bytes) = self.begun;
            trace.mark(Kind::Placed, qp.qpn.0, 0, [first.value().into(), bytes]);
        }
    }

    pub(crate) fn visit(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut StepContext<'_>,
        domain: Domain<'_>,
    ) -> Visit {
        let state = QueuePair::state(&*sq.qp);
        if state == QpState::Err {
            if let Some(message) = self.message.take() {
                message.fail(&sq.qp, &mut cx.tally, (Cause::WrFlush, Vendor::Flush));
            }
            self.reassembly.flush(&sq.qp);
            return Visit::Idle;
        }
        let mut loaded = None;
        for _ in 0..VISIT_PACKETS {
            if self.message.is_none() {
                if state != QpState::Rts || !sq.has_work() {
                    return Visit::Idle;
                }
                let from = (self.next, self.path.mtu);
                let Some((mut message, wqe)) =
                    Outstanding::take(sq, cx.scratch, domain, from, &mut Vec::new())
                else {
                    return Visit::Idle;
                };
                if message.opcode.scatters() || message.opcode == Opcode::SendInval {
                    message.waits = false;
                    message.failed = message.failed.or(Some((Cause::LocalQpOp, Vendor::Opcode)));
                }
                (self.next, self.at, loaded) = (message.end(), 0, wqe);
                self.message = Some(message);
            }
            if !self.send_next(sq, cx, domain, &mut loaded) {
                return Visit::More;
            }
            if QueuePair::state(&*sq.qp) == QpState::Err {
                break;
            }
        }
        Visit::More
    }

    /// The WQE that the NIC carries out by itself, if it is next.
    pub(crate) fn in_turn(&mut self) -> Option<&mut Outstanding> {
        self.message.as_mut().filter(|message| message.waits)
    }

    /// Sends the next packet of the message; says whether there was room, and no UMR in the way.
    fn send_next(
        &mut self,
        sq: &SendQueue,
        cx: &mut StepContext<'_>,
        domain: Domain<'_>,
        loaded: &mut Option<Wqe>,
    ) -> bool {
        let Some(mut message) = self.message.take() else { return true };
        let port = cx.port.as_deref_mut().expect("transports are visited with a port");
        if message.waits {
            self.message = Some(message);
            return false;
        }
        if message.failed.is_none() && self.at < message.packets {
            if port.room() == 0 {
                self.message = Some(message);
                return false;
            }
            let wqe = match loaded.take() {
                Some(wqe) => Ok(wqe),
                None => message.load(sq, cx.scratch),
            };
            let sent = wqe.and_then(|wqe| {
                let service = (self.path.service, self.path.dest);
                let (headers, part) = message.request(&wqe, self.at, self.path.mtu, service);
                let pieces = wqe.pieces(message.wqe_bytes(cx.scratch));
                port.send(&self.path.route, &headers, part.len(), |into| {
                    domain.gather(pieces, part.start, into)
                })
                .map_err(|vendor| (Cause::LocalProt, vendor))?;
                Ok(wqe)
            });
            match sent {
                Ok(wqe) => *loaded = Some(wqe),
                Err(failure) => message.failed = Some(failure),
            }
            message.trace_sent(&sq.qp, self.path.dest, (self.at, 1));
            self.at += 1;
        }
        match message.failed {
            Some(failure) => message.fail(&sq.qp, &mut cx.tally, failure),
            None if self.at >= message.packets => {
                message.complete(&sq.qp, &mut cx.tally);
                *loaded = None;
            }
            None => self.message = Some(message),
        }
        true
    }
}
