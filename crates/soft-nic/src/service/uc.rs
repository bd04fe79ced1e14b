//! Unreliable connections over packets (InfiniBand vol. 1, 9.8.3).
//!
//! Nothing is acknowledged: a send is complete when its last packet is built. Where a packet is
//! missing, its whole message is: what comes of it is dropped until a message begins. Packets from
//! before the one expected are dropped as well, so that a message that the link doubled is
//! delivered once.

use std::net::IpAddr;

use crate::counters::DropReason;
use crate::objects::events::Event;
use crate::objects::state::Attributes;
use crate::queue::sq::SendQueue;
use crate::service::Path;
use crate::service::assembly::{Assembly, Refused};
use crate::service::flight::Flight;
use crate::service::payload::Domain;
use crate::service::requester::{Visit, Visitor};
use crate::vendor::Vendor;
use bellpush_nic::{QpState, QueuePair};
use bellpush_wire::Psn;
use bellpush_wire::cqe::Syndrome as Cause;
use bellpush_wire::roce::Packet;
use bellpush_wire::wqe::{Opcode, Wqe};

/// Packets of a visit, so that no queue pair starves the others.
const VISIT_PACKETS: usize = 64;

/// Both sides of an unreliable connection.
pub(crate) struct Uc {
    path: Path,
    /// PSN of the next message; the message that is being sent, and its next packet.
    next: Psn,
    flight: Option<Flight>,
    at: u32,
    /// PSN expected next.
    expected: Psn,
    assembly: Assembly,
}

impl Uc {
    pub(crate) fn new(path: Path, attributes: &Attributes) -> Self {
        Self {
            path,
            next: attributes.sq_psn,
            flight: None,
            at: 0,
            expected: attributes.rq_psn,
            assembly: Assembly::default(),
        }
    }

    /// Where the peer's packets come from.
    pub(crate) fn peer(&self) -> IpAddr {
        self.path.route.to
    }

    pub(crate) fn start(&mut self, attributes: &Attributes) {
        self.next = attributes.sq_psn;
    }

    pub(crate) fn apply(&mut self, path: Path) {
        self.path = path;
    }

    pub(crate) fn on_way(&self) -> (usize, Option<&Flight>) {
        (self.flight.iter().len(), self.flight.as_ref())
    }

    pub(crate) fn on_packet(&mut self, sq: &SendQueue, domain: Domain<'_>, packet: &Packet<'_>) {
        let qp = &*sq.qp;
        let psn = packet.headers.bth.psn;
        let starts = packet.opcode().operation().position().starts();
        let distance = psn.distance(self.expected);
        if distance < 0 {
            return qp.counters.dropped(DropReason::Duplicate);
        }
        if distance > 0 || starts {
            self.assembly.abandon();
        }
        self.expected = psn.plus(1);
        if !starts && !self.assembly.is_under_way() {
            return qp.counters.dropped(DropReason::Message);
        }
        match self.assembly.accept(qp, domain, packet, self.path.mtu) {
            Ok(_) => {}
            Err(Refused::Receive(..)) => {
                qp.events.push(Event::QpFatal(qp.qpn));
                qp.set_error();
            }
            Err(refused) => {
                self.assembly.abandon();
                qp.counters.dropped(match refused {
                    Refused::NotReady => DropReason::NoReceive,
                    _ => DropReason::Refused,
                });
            }
        }
    }

    pub(crate) fn visit(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut Visitor<'_>,
        domain: Domain<'_>,
    ) -> Visit {
        let state = QueuePair::state(&*sq.qp);
        if state == QpState::Err {
            if let Some(flight) = self.flight.take() {
                flight.fail(&sq.qp, &mut cx.tally, (Cause::WrFlush, Vendor::Flush));
            }
            self.assembly.flush(&sq.qp);
            return Visit::Idle;
        }
        let mut loaded = None;
        for _ in 0..VISIT_PACKETS {
            if self.flight.is_none() {
                if state != QpState::Rts || !sq.has_work() {
                    return Visit::Idle;
                }
                let from = (self.next, self.path.mtu);
                let Some((mut flight, wqe)) =
                    Flight::take(sq, cx.scratch, domain, from, &mut Vec::new())
                else {
                    return Visit::Idle;
                };
                if flight.opcode.scatters() || flight.opcode == Opcode::SendInval {
                    flight.waits = false;
                    flight.failed = flight.failed.or(Some((Cause::LocalQpOp, Vendor::Opcode)));
                }
                (self.next, self.at, loaded) = (flight.end(), 0, wqe);
                self.flight = Some(flight);
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

    /// The UMR that is next, if there is one.
    pub(crate) fn umr(&mut self) -> Option<&mut Flight> {
        self.flight.as_mut().filter(|flight| flight.waits)
    }

    /// Sends the next packet of the message; says whether there was room, and no UMR in the way.
    fn send_next(
        &mut self,
        sq: &SendQueue,
        cx: &mut Visitor<'_>,
        domain: Domain<'_>,
        loaded: &mut Option<Wqe>,
    ) -> bool {
        let Some(mut flight) = self.flight.take() else { return true };
        let port = cx.port.as_deref_mut().expect("transports are visited with a port");
        if flight.waits {
            self.flight = Some(flight);
            return false;
        }
        if flight.failed.is_none() && self.at < flight.packets {
            if port.room() == 0 {
                self.flight = Some(flight);
                return false;
            }
            let wqe = match loaded.take() {
                Some(wqe) => Ok(wqe),
                None => flight.load(sq, cx.scratch),
            };
            let sent = wqe.and_then(|wqe| {
                let service = (self.path.service, self.path.dest);
                let (headers, part) = flight.request(&wqe, self.at, self.path.mtu, service);
                let pieces = wqe.pieces(flight.wqe_bytes(cx.scratch));
                port.send(&self.path.route, &headers, part.len(), |into| {
                    domain.gather(pieces, part.start, into)
                })
                .map_err(|vendor| (Cause::LocalProt, vendor))?;
                Ok(wqe)
            });
            match sent {
                Ok(wqe) => *loaded = Some(wqe),
                Err(failure) => flight.failed = Some(failure),
            }
            self.at += 1;
        }
        match flight.failed {
            Some(failure) => flight.fail(&sq.qp, &mut cx.tally, failure),
            None if self.at >= flight.packets => {
                flight.complete(&sq.qp, &mut cx.tally);
                *loaded = None;
            }
            None => self.flight = Some(flight),
        }
        true
    }
}
