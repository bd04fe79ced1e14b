//! The transport of a queue pair: what the engine visits and, on a packet link, hands packets to.

pub(crate) mod gsi;
pub(crate) mod local;
pub(crate) mod masked;
pub(crate) mod outstanding;
pub(crate) mod payload;
pub(crate) mod rc;
pub(crate) mod reassembly;
pub(crate) mod rendezvous;
pub(crate) mod requester;
pub(crate) mod uc;
pub(crate) mod ud;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::counters::DropReason;
use crate::link::port::{Arrived, Port, Route};
use crate::objects::events::Event;
use crate::objects::qp::Qp;
use crate::objects::state::Attributes;
use crate::queue::sq::SendQueue;
use crate::queue::turn;
use crate::service::local::requester::Local;
use crate::service::outstanding::Outstanding;
use crate::service::payload::Domain;
use crate::service::rc::{Rc, Target};
use crate::service::requester::{StepContext, Visit};
use crate::service::uc::Uc;
use crate::service::ud::Ud;
use bellpush_nic::{Mtu, NicAddress, QpState, QpType, QueuePair};
use bellpush_wire::roce::{
    Bth, Fields, Headers, Opcode, Operation, Service, flow_label_of, udp_src_port,
};
use bellpush_wire::{Psn, Qpn};

/// The way to a connected peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerPath {
    pub(crate) route: Route,
    pub(crate) dest: Qpn,
    pub(crate) mtu: Mtu,
    pub(crate) service: Service,
}

impl PeerPath {
    /// The path from queue pair `local`. Without a flow label, the source port follows from the
    /// two queue pairs' numbers, unless one was named.
    fn new(service: Service, local: Qpn, attributes: &Attributes) -> Option<Self> {
        let (av, dest) = (&attributes.av, attributes.dest_qpn);
        let NicAddress::Ip(to) = av.nic else { return None };
        let flow_label = av.flow_label & 0xf_ffff;
        let spread = if flow_label == 0 { flow_label_of(local, dest) } else { flow_label };
        let fields = Fields {
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
            src_port: attributes.src_port.unwrap_or(udp_src_port(spread)),
            flow_label,
        };
        let route = Route { to: to.to_canonical(), fields };
        Some(Self { route, dest, mtu: attributes.path_mtu, service })
    }

    /// Headers of a packet to the peer, without extensions.
    pub(crate) fn headers(&self, operation: Operation, psn: Psn) -> Headers {
        Headers::new(Bth::new(Opcode::new(self.service, operation), self.dest, psn))
    }
}

/// Both sides of a queue pair's service.
pub(crate) struct Transport {
    local: Qpn,
    service: Of,
    /// Whether a packet came since RTR, and whether the queue pair went to SQD and has not drained.
    established: bool,
    drains: bool,
}

enum Of {
    /// RC between queue pairs of one process.
    Local(Local),
    Rc(Box<Rc>),
    Uc(Box<Uc>),
    Ud(Ud),
    Dct(Box<Target>),
}

impl Transport {
    /// The transport of a queue pair that enters RTR; `None` without a way to its peer. `mtu` is
    /// the most that a datagram carries, `initiator` an initiator's life (see `Dceth`) and its streams
    /// in error at most.
    pub(crate) fn new(
        kind: QpType,
        local: Qpn,
        mtu: Mtu,
        attributes: &Attributes,
        initiator: (u32, Option<usize>),
    ) -> Option<Self> {
        let path = |service| PeerPath::new(service, local, attributes);
        let service = match kind {
            QpType::Rc => Of::Rc(Box::new(Rc::new(path(Service::Rc)?, attributes))),
            QpType::XrcSend | QpType::XrcRecv => {
                Of::Rc(Box::new(Rc::new(path(Service::Xrc)?, attributes)))
            }
            QpType::Uc => Of::Uc(Box::new(Uc::new(path(Service::Uc)?, attributes))),
            QpType::Ud => Of::Ud(Ud::new(mtu, attributes)),
            QpType::Dci => {
                Of::Rc(Box::new(Rc::initiator(attributes.path_mtu, attributes, initiator)))
            }
            QpType::Dct => Of::Dct(Box::new(Target::new(attributes))),
        };
        Some(Self { local, service, established: false, drains: false })
    }

    /// The transport of a queue pair whose peer is in this process.
    pub(crate) fn within(qp: &Qp, peer: Arc<Qp>) -> Self {
        let service = Of::Local(Local::new(peer, qp.mrs.clone()));
        Self { local: qp.qpn, service, established: false, drains: false }
    }

    /// Whether a stream of an initiator is in error.
    pub(crate) fn is_in_error(&self, stream: u16) -> bool {
        matches!(&self.service, Of::Rc(rc) if rc.is_in_error(stream))
    }

    /// Takes a stream of an initiator out of error.
    pub(crate) fn reset_stream(&mut self, stream: u16) {
        if let Of::Rc(rc) = &mut self.service {
            rc.reset_stream(stream);
        }
    }

    /// The in-process service, if it is that.
    pub(crate) fn in_process(&self) -> Option<&Local> {
        match &self.service {
            Of::Local(local) => Some(local),
            _ => None,
        }
    }

    pub(crate) fn in_process_mut(&mut self) -> Option<&mut Local> {
        match &mut self.service {
            Of::Local(local) => Some(local),
            _ => None,
        }
    }

    /// The queue pair enters a state, or takes attributes over within one.
    pub(crate) fn enter(&mut self, from: QpState, to: QpState, attributes: &Attributes) {
        match (from, to) {
            (QpState::Rts, QpState::Sqd) => self.drains = true,
            (QpState::Sqd, QpState::Sqd) => {}
            _ => self.drains = false,
        }
        if (from, to) == (QpState::Rtr, QpState::Rts) {
            match &mut self.service {
                Of::Local(_) => {}
                Of::Rc(rc) => rc.start(attributes),
                Of::Uc(uc) => uc.start(attributes),
                Of::Ud(ud) => ud.start(attributes),
                Of::Dct(_) => {} // it does not send
            }
        }
        match &mut self.service {
            Of::Local(_) => {}
            Of::Rc(rc) => {
                let path = PeerPath::new(rc.service(), self.local, attributes);
                rc.apply(path.filter(|_| rc.service() != Service::Dc), attributes);
            }
            Of::Uc(uc) => {
                if let Some(path) = PeerPath::new(Service::Uc, self.local, attributes) {
                    uc.apply(path);
                }
            }
            Of::Ud(ud) => ud.apply(attributes),
            Of::Dct(target) => target.apply(attributes),
        }
    }

    /// Takes a packet that is addressed to the queue pair.
    pub(crate) fn on_packet(
        &mut self,
        sq: &SendQueue,
        cx: &mut StepContext<'_>,
        domain: Domain<'_>,
        arrived: &Arrived<'_>,
    ) {
        let packet = arrived.packet;
        let state = QueuePair::state(&*sq.qp);
        if !matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return cx.counters.dropped(DropReason::State);
        }
        let (service, from) = match &self.service {
            Of::Local(_) => return cx.counters.dropped(DropReason::State),
            Of::Rc(rc) => (rc.service(), Some(rc.peer())),
            Of::Uc(uc) => (Service::Uc, Some(uc.peer())),
            Of::Ud(_) => (Service::Ud, None),
            Of::Dct(_) => (Service::Dc, None),
        };
        if packet.opcode().service() != service {
            return cx.counters.dropped(DropReason::Opcode);
        }
        if from.is_some_and(|peer| peer != arrived.envelope.addresses.src()) {
            return cx.counters.dropped(DropReason::Source);
        }
        if state == QpState::Rtr && !self.established && sq.qp.kind != QpType::Dct {
            self.established = true;
            sq.qp.events.push(Event::Established(sq.qp.qpn));
        }
        match &mut self.service {
            Of::Local(_) => {}
            Of::Rc(rc) => rc.on_packet(sq, cx, domain, packet),
            Of::Uc(uc) => uc.on_packet(sq, domain, packet),
            Of::Ud(ud) => ud.on_packet(&sq.qp, domain, arrived),
            Of::Dct(target) => target.on_packet(&sq.qp, domain, arrived, cx.now_ns),
        }
    }

    /// Sends what is due and takes new WQEs, as far as the link has room.
    #[inline]
    pub(crate) fn visit(&mut self, sq: &mut SendQueue, cx: &mut StepContext<'_>) -> Visit {
        let visit = match &mut self.service {
            Of::Local(local) => local.visit(sq, cx),
            _ => self.visit_packets(sq, cx),
        };
        if self.drains && self.on_way().0 == 0 {
            self.drained(&sq.qp);
        }
        visit
    }

    /// Nothing is on its way any more, in SQD.
    #[cold]
    fn drained(&mut self, qp: &Qp) {
        self.drains = false;
        if QueuePair::state(qp) != QpState::Sqd {
            return;
        }
        qp.draining.store(false, Ordering::Relaxed);
        if qp.attributes().sqd_event {
            qp.release_completions();
            qp.events.push(Event::SqDrained(qp.qpn));
        }
    }

    fn visit_packets(&mut self, sq: &mut SendQueue, cx: &mut StepContext<'_>) -> Visit {
        let qp = sq.qp.clone();
        let regions = qp.mrs.read();
        let domain = Domain::of(&qp, &regions);
        let mut visit = match &mut self.service {
            Of::Local(_) => Visit::Idle,
            Of::Rc(rc) => rc.visit(sq, cx, domain),
            Of::Uc(uc) => uc.visit(sq, cx, domain),
            Of::Ud(ud) => ud.visit(sq, cx, domain),
            Of::Dct(target) => {
                let port = cx.port.as_deref_mut().expect("transports are visited with a port");
                target.visit(&qp, domain, port)
            }
        };
        drop(regions);
        let next = match &mut self.service {
            Of::Rc(rc) => rc.in_turn(),
            Of::Uc(uc) => uc.in_turn(),
            Of::Local(_) | Of::Ud(_) | Of::Dct(_) => None,
        };
        if let Some(message) = next {
            visit = match turn::execute(message, sq, cx.scratch) {
                true => Visit::More,
                false => visit.or_at(cx.now_ns + turn::LOOK_NS),
            };
        }
        visit
    }

    /// What it has received it acknowledges now, unless something has to come before.
    pub(crate) fn acknowledge(&mut self, qp: &Qp, port: &mut Port) {
        match &mut self.service {
            Of::Rc(rc) => rc.acknowledge(qp, port),
            Of::Dct(target) => target.acknowledge(qp, port),
            Of::Local(_) | Of::Uc(_) | Of::Ud(_) => {}
        }
    }

    /// The queue pair goes: what it owes its peer leaves before it.
    pub(crate) fn farewell(&mut self, port: &mut Port) {
        match &mut self.service {
            Of::Rc(rc) => rc.farewell(port),
            Of::Dct(target) => target.farewell(port),
            Of::Local(_) | Of::Uc(_) | Of::Ud(_) => {}
        }
    }

    /// The queue pair goes, or to RESET: what it has taken of others is theirs again.
    pub(crate) fn lose(&mut self, qp: &Qp) {
        if let Of::Rc(rc) = &mut self.service {
            rc.lose(qp);
        }
    }

    /// How many messages were taken and are not complete, and the oldest of them.
    pub(crate) fn on_way(&self) -> (usize, Option<&Outstanding>) {
        match &self.service {
            Of::Rc(rc) => rc.on_way(),
            Of::Uc(uc) => uc.on_way(),
            Of::Local(_) | Of::Ud(_) | Of::Dct(_) => (0, None),
        }
    }
}
