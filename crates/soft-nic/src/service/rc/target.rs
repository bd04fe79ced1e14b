//! A target of dynamic connections: a responder for each initiator, which begins with a packet of a session that is
//! new, and is let go for another one's when nothing was heard of it for long.
//!
//! Who has the access key may ask. What one initiator does wrong ends its own session: it is told, and the target goes
//! on for the others.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::responder::Responder;
use crate::counters::DropReason;
use crate::link::port::{Arrived, Port};
use crate::objects::qp::Qp;
use crate::objects::state::Attributes;
use crate::service::PeerPath;
use crate::service::payload::Domain;
use crate::service::requester::Visit;
use bellpush_nic::{AddressVector, MAX_RD_ATOMIC, NicAddress, QpState, QueuePair};
use bellpush_wire::Psn;
use bellpush_wire::roce::{Dceth, Service};

/// Initiators that a target remembers.
const MOST_INITIATORS: usize = 4096;
/// Who was silent for so long may be forgotten for another: no initiator in use waits longer between two tries.
const FORGET_NS: u64 = 600_000_000_000;
/// Packets of responses that a visit builds at most, for each initiator.
const VISIT_RESPONSES: usize = 64;

/// Where an initiator is: the same number at another address is another.
type Who = (IpAddr, u32);

struct Initiator {
    life: u32,
    start: Psn,
    responder: Responder,
    heard_ns: u64,
    /// Whether it stands among those that are due.
    due: bool,
}

/// A target.
pub(crate) struct Target {
    attributes: Attributes,
    initiators: BTreeMap<Who, Initiator>,
    /// Those that something may have to be said to.
    due: Vec<Who>,
}

impl Target {
    pub(crate) fn new(attributes: &Attributes) -> Self {
        Self { attributes: *attributes, initiators: BTreeMap::new(), due: Vec::new() }
    }

    pub(crate) fn apply(&mut self, attributes: &Attributes) {
        self.attributes = *attributes;
    }

    pub(crate) fn on_packet(
        &mut self,
        qp: &Qp,
        domain: Domain<'_>,
        arrived: &Arrived<'_>,
        now_ns: u64,
    ) {
        let packet = arrived.packet;
        // Responses have none.
        let Some(dc) = packet.headers.ext.dc else {
            return qp.counters.dropped(DropReason::Opcode);
        };
        if dc.key != qp.dc_key() {
            return qp.counters.dropped(DropReason::Qkey);
        }
        let who = (arrived.envelope.addresses.src(), dc.source.0);
        let Some(initiator) = self.session(qp, who, &dc, now_ns) else { return };
        initiator.heard_ns = now_ns;
        initiator.responder.on_request(qp, domain, packet);
        if !std::mem::replace(&mut initiator.due, true) {
            self.due.push(who);
        }
    }

    /// The initiator's session that a packet belongs to.
    fn session(&mut self, qp: &Qp, who: Who, dc: &Dceth, now_ns: u64) -> Option<&mut Initiator> {
        match self.initiators.get(&who) {
            Some(known) if (known.life, known.start) == (dc.life, dc.start) => {}
            Some(known)
                if known.life == dc.life && dc.start.distance(known.start) < 0
                    || known.life == dc.life.wrapping_add(1) =>
            {
                // It had ended before the one that is under way began, in this life or the one before.
                qp.counters.dropped(DropReason::Duplicate);
                return None;
            }
            known => {
                if known.is_none() && !self.makes_room(now_ns) {
                    qp.counters.dropped(DropReason::NoReceive);
                    return None;
                }
                let attributes = Attributes {
                    av: AddressVector { nic: NicAddress::Ip(who.0), ..self.attributes.av },
                    dest_qpn: dc.source,
                    rq_psn: dc.start,
                    max_dest_rd_atomic: MAX_RD_ATOMIC,
                    ..self.attributes
                };
                let path = PeerPath::new(Service::Dc, qp.qpn, &attributes)?;
                let mut responder = Responder::new(path, &attributes);
                let mut due = false;
                if let Some(mut before) = self.initiators.remove(&who) {
                    responder.inherit(&mut before.responder);
                    due = before.due;
                }
                let (life, start, heard_ns) = (dc.life, dc.start, now_ns);
                let initiator = Initiator { life, start, responder, heard_ns, due };
                self.initiators.insert(who, initiator);
            }
        }
        self.initiators.get_mut(&who)
    }

    /// Whether there is room for one more initiator, perhaps in place of one that has long been silent.
    fn makes_room(&mut self, now_ns: u64) -> bool {
        if self.initiators.len() >= MOST_INITIATORS {
            self.initiators.retain(|_, it| {
                let recent = now_ns.saturating_sub(it.heard_ns) < FORGET_NS;
                recent || it.due || it.responder.holds_receive()
            });
        }
        self.initiators.len() < MOST_INITIATORS
    }

    pub(crate) fn visit(&mut self, qp: &Qp, domain: Domain<'_>, port: &mut Port) -> Visit {
        let is_over = QueuePair::state(qp) == QpState::Err;
        if is_over {
            qp.land();
            for initiator in self.initiators.values_mut() {
                initiator.responder.farewell(port);
                initiator.responder.flush(qp);
                initiator.due = false;
            }
            self.due.clear();
        }
        if !self.due.is_empty() && qp.is_landing() {
            return Visit::More;
        }
        let initiators = &mut self.initiators;
        self.due.retain(|who| {
            let Some(initiator) = initiators.get_mut(who) else { return false };
            let responder = &mut initiator.responder;
            initiator.due = responder.transmit(qp, domain, port, VISIT_RESPONSES)
                || responder.acknowledge(port, false);
            initiator.due
        });
        if self.due.is_empty() { Visit::Idle } else { Visit::More }
    }

    /// Says what it has received, unless responses are due or WRITEs are yet to land.
    pub(crate) fn acknowledge(&mut self, qp: &Qp, port: &mut Port) {
        for initiator in self.initiators.values_mut().filter(|initiator| initiator.due) {
            let responder = &mut initiator.responder;
            if !responder.owes() && !responder.waits_for(qp) {
                responder.farewell(port);
            }
        }
    }

    /// The target goes: see [`Responder::farewell`].
    pub(crate) fn farewell(&mut self, port: &mut Port) {
        for initiator in self.initiators.values_mut() {
            initiator.responder.farewell(port);
        }
    }
}
