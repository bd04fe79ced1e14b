//! Reliable connections over packets (InfiniBand vol. 1, 9.7), and the two ends of extended ones
//! (annex A14), of which one has the requester and the other the responder.

mod replay;
mod requester;
mod responder;
mod target;

use std::net::IpAddr;

pub(crate) use target::Target;

use requester::Requester;
use responder::Responder;

use crate::counters::DropReason;
use crate::link::port::{Incoming, Port, Route};
use crate::objects::qp::Qp;
use crate::objects::state::Attributes;
use crate::queue::sq::SendQueue;
use crate::service::PeerPath;
use crate::service::outstanding::Outstanding;
use crate::service::payload::Domain;
use crate::service::requester::{StepContext, Visit};
use bellpush_nic::{Mtu, QpState, QueuePair};
use bellpush_wire::Qpn;
use bellpush_wire::roce::{Fields, Service};

/// Packets of responses that a visit builds at most.
const VISIT_RESPONSES: usize = 64;

/// Both sides of a reliable connection.
pub(crate) struct Rc {
    path: PeerPath,
    requester: Requester,
    responder: Responder,
}

impl Rc {
    pub(crate) fn new(path: PeerPath, attributes: &Attributes) -> Self {
        let responder = Responder::new(path, attributes);
        Self { path, requester: Requester::new(path, attributes), responder }
    }

    /// An initiator of dynamic connections, which has a peer as soon as there is work for one.
    pub(crate) fn initiator(
        mtu: Mtu,
        attributes: &Attributes,
        (life, streams): (u32, Option<usize>),
    ) -> Self {
        let route = Route { to: IpAddr::from([0; 4]), fields: Fields::default() };
        let path = PeerPath { route, dest: Qpn(0), mtu, service: Service::Dc };
        let mut rc = Self::new(path, attributes);
        rc.requester.dynamic(life, streams);
        rc
    }

    /// Whether a stream of an initiator is in error.
    pub(crate) fn is_in_error(&self, stream: u16) -> bool {
        self.requester.is_in_error(stream)
    }

    /// Takes a stream of an initiator out of error.
    pub(crate) fn reset_stream(&mut self, stream: u16) {
        self.requester.reset_stream(stream);
    }

    /// RC or XRC.
    pub(crate) fn service(&self) -> Service {
        self.path.service
    }

    /// Where the peer's packets come from.
    pub(crate) fn peer(&self) -> IpAddr {
        self.requester.peer()
    }

    /// The send side begins, in RTS.
    pub(crate) fn start(&mut self, attributes: &Attributes) {
        self.requester.start(attributes.sq_psn);
    }

    /// Takes over changed attributes, and the path to the peer if that follows from them.
    pub(crate) fn apply(&mut self, path: Option<PeerPath>, attributes: &Attributes) {
        let path = path.unwrap_or(self.requester.path());
        self.path = path;
        self.requester.apply(path, attributes);
        self.responder.apply(path, attributes);
    }

    pub(crate) fn on_packet(
        &mut self,
        sq: &SendQueue,
        cx: &mut StepContext<'_>,
        domain: Domain<'_>,
        packet: &Incoming<'_>,
    ) {
        let kind = sq.qp.kind;
        if packet.opcode().operation().is_request() {
            if !kind.is_reliable_responder() {
                return cx.counters.dropped(DropReason::Opcode);
            }
            self.responder.on_request(&sq.qp, domain, packet);
        } else {
            self.requester.on_response(sq, cx, domain, packet);
        }
    }

    pub(crate) fn visit(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut StepContext<'_>,
        domain: Domain<'_>,
    ) -> Visit {
        // Timers first: they run whether the link has room or not.
        self.requester.tick(sq, cx);
        let state = QueuePair::state(&*sq.qp);
        if state == QpState::Err {
            sq.qp.land();
            if !self.responder.is_dead() {
                self.responder.farewell(cx.port.as_deref_mut().expect("as below"));
            }
            self.responder.flush(&sq.qp);
            self.requester.rendezvous.extend(self.responder.rendezvous());
            self.requester.flush(&sq.qp, &mut cx.tally);
        }
        let port = cx.port.as_deref_mut().expect("transports are visited with a port");
        // In ERR nothing waits: what it still says is followed by the flush.
        let [asks, answers] = match state {
            QpState::Err => [None, None],
            _ => sq.qp.groups(),
        };
        let later = match &answers {
            Some(group) if self.responder.owes() => group.admit(cx.now_ns).err(),
            _ => None,
        };
        let landing = state != QpState::Err && self.responder.waits_for(&sq.qp);
        let later = later.or(landing.then_some(cx.now_ns));
        if later.is_none() {
            let most = if answers.is_some() { 1 } else { VISIT_RESPONSES };
            let before = port.built_bytes();
            let more = self.responder.transmit(&sq.qp, domain, port, most);
            if let Some(group) = answers {
                group.charge(port.built_bytes() - before, cx.now_ns);
            }
            if more {
                return Visit::More;
            }
        }
        let room = port.room();
        self.requester.rendezvous.extend(self.responder.rendezvous());
        let visit = match state {
            QpState::Rts | QpState::Sqd => {
                self.requester.visit(sq, cx, domain, (state == QpState::Rts, asks))
            }
            _ => Visit::Idle,
        };
        if let Some(at) = later {
            // What is acknowledged comes behind the responses that are due.
            return visit.or_at(at);
        }
        let port = cx.port.as_deref_mut().expect("transports are visited with a port");
        // What is built where the link has it takes no room; but links whose packets join have no such place.
        let alone = port.room() == room;
        if self.responder.acknowledge(port, alone) { Visit::More } else { visit }
    }

    /// Says what it has received, unless responses are due or WRITEs are yet to land.
    pub(crate) fn acknowledge(&mut self, qp: &Qp, port: &mut Port) {
        if !self.responder.owes() && !self.responder.waits_for(qp) {
            self.responder.farewell(port);
        }
    }

    /// The queue pair goes: see [`Responder::farewell`].
    pub(crate) fn farewell(&mut self, port: &mut Port) {
        self.responder.farewell(port);
    }

    /// The queue pair goes, or to RESET: what it has taken of a list of tags is not lost.
    pub(crate) fn lose(&mut self, qp: &Qp) {
        // As they came: a rendezvous is whole before another message begins.
        self.requester.rendezvous.extend(self.responder.rendezvous());
        self.requester.lose(qp);
        self.responder.lose(qp);
    }

    /// The WQE that the NIC carries out by itself, if it is next.
    pub(crate) fn in_turn(&mut self) -> Option<&mut Outstanding> {
        self.requester.in_turn()
    }

    /// How many messages are on their way, and the oldest of them.
    pub(crate) fn on_way(&self) -> (usize, Option<&Outstanding>) {
        self.requester.on_way()
    }
}
