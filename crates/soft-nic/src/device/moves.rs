//! How a queue pair moves from state to state, and takes attributes over.
//!
//! All that can refuse a move is asked before anything is changed: a queue pair of which a move was refused is as it
//! was, its source port included.

use std::sync::atomic::Ordering;

use super::{Device, Place};
use crate::contain;
use crate::engine::Core;
use crate::objects::qp::{Groups, Qp};
use crate::objects::state::Attributes;
use crate::service::Transport;
use bellpush_nic::{Change, NicAddress, NicError, QpState, QpType, QueuePair};

/// What a move changes besides attributes of verbs.
#[derive(Debug, Clone, Default)]
pub struct Extra {
    /// Groups of a schedule that requests and responses go by; `None` leaves them.
    pub groups: Option<Groups>,
    /// The stream of a DC initiator that is taken out of error.
    pub stream: Option<u16>,
}

impl Device {
    pub(crate) fn modify(
        &self,
        qp: &Qp,
        to: QpState,
        change: &Change,
        extra: Extra,
    ) -> Result<(), NicError> {
        if to == QpState::Err && *change == Change::default() {
            // Between two steps: which receives of an SRQ are held is known then.
            let shared = qp.srq.is_some() || qp.adversary.is_some();
            let _held = shared.then(|| self.seat(qp).control());
            qp.set_error();
            qp.land();
            return Ok(());
        }
        let mut core = self.seat(qp).control();
        // Under the lock: an engine that panics is marked before it takes the lock to end its queue
        // pairs, so none is brought up behind that.
        if self.seat(qp).failed.load(Ordering::Acquire) && to != QpState::Reset {
            return Err(contain::refusal(self.ended.load(Ordering::Relaxed)));
        }
        if !core.recall(qp.qpn.0) {
            return Err(self
                .offload
                .as_ref()
                .and_then(|it| it.failure())
                .expect("it was given up"));
        }
        let (from, before) = (QueuePair::state(qp), qp.attributes());
        let after = qp.check(from, to, change)?;
        self.allows(&core, qp, to, &extra)?;
        let way = (to == QpState::Rtr).then(|| self.way(&core, qp, &after)).transpose()?;
        core.take_port(change.src_port)?;
        let moved = match to {
            QpState::Reset => self.start_over(&mut core, qp),
            _ => self.advance(&mut core, qp, (from, to), (&before, &after), way),
        };
        if let Err(refused) = moved {
            core.leave_port(change.src_port);
            return Err(refused);
        }
        if change.src_port.is_some() || to == QpState::Reset {
            core.leave_port(before.src_port);
        }
        if let Some(groups) = extra.groups {
            qp.set_groups(groups);
        }
        if let Some(stream) = extra.stream {
            core.reset_stream(qp.qpn.0, stream);
        }
        if from == QpState::Reset {
            core.begin(qp.qpn.0);
        }
        core.enter(qp.qpn.0, from, to, &after);
        if matches!(to, QpState::Rts | QpState::Sqd) {
            core.wake(qp.qpn.0);
        }
        drop(core);
        if to == QpState::Reset {
            self.wait_for_peers(qp);
        }
        Ok(())
    }

    /// Waits until no peer's engine in this process carries out a request that it took up before the queue pair's state
    /// changed; what an adversary still keeps of those lands. Not under the lock of this queue pair's engine.
    pub(crate) fn wait_for_peers(&self, qp: &Qp) {
        if matches!(self.place, Place::InProcess(..)) {
            // Such an engine has the regions locked for as long as it is at requests: a visit's, which end by
            // `VISIT_BYTES` and the message that goes beyond. Nothing of this device is locked here meanwhile.
            drop(self.mrs.write());
            qp.land();
        }
    }

    /// Whether a queue pair can have what a move changes besides attributes.
    fn allows(&self, core: &Core, qp: &Qp, to: QpState, extra: &Extra) -> Result<(), NicError> {
        if extra.groups.is_some() {
            qp.may_be_paced()?;
        }
        let Some(stream) = extra.stream else { return Ok(()) };
        if (QueuePair::state(qp), to) != (QpState::Rts, QpState::Rts) {
            return Err(qp.refused(QpState::Rts));
        }
        let must = "one that is in error";
        let not = NicError::Attribute { what: "DC stream", value: stream.into(), must };
        if core.is_in_error(qp.qpn.0, stream) { Ok(()) } else { Err(not) }
    }

    /// Moves to another state than RESET.
    fn advance(
        &self,
        core: &mut Core,
        qp: &Qp,
        (from, to): (QpState, QpState),
        (before, after): (&Attributes, &Attributes),
        way: Option<Transport>,
    ) -> Result<(), NicError> {
        qp.take_over(to, after);
        if (from, to) == (QpState::Rts, QpState::Sqd) {
            // Until the engine has looked; the in-process link has nothing on its way.
            let packets = matches!(self.place, Place::Packets { .. });
            qp.draining.store(packets, Ordering::Relaxed);
        }
        // Before the state: a peer in this process takes no lock to look at that.
        if let Err(refused) = qp.advance(from, to) {
            qp.take_over(from, before);
            return Err(refused);
        }
        if to == QpState::Err {
            qp.land();
        }
        if let Some(way) = way {
            core.carry(qp.qpn.0, way);
        }
        Ok(())
    }

    /// Moves to RESET, from whatever state the queue pair is in by then.
    fn start_over(&self, core: &mut Core, qp: &Qp) -> Result<(), NicError> {
        core.reset(qp.qpn.0)?;
        qp.receives().reset();
        qp.forget(self.random());
        qp.start_over();
        // A recording has what the NIC reads, and not what a look does.
        if let Some(trace) = qp.events.trace().filter(|_| self.recorder.is_none()) {
            trace.reset(qp);
        }
        // Behind the state: a peer in this process has nothing accepted any more.
        qp.bring_about();
        Ok(())
    }

    pub(crate) fn reset_stream(&self, qp: &Qp, stream: u16) -> Result<(), NicError> {
        let extra = Extra { stream: Some(stream), ..Extra::default() };
        self.modify(qp, QpState::Rts, &Change::default(), extra)
    }

    /// The way to the peer of a queue pair that is to enter RTR.
    fn way(&self, core: &Core, qp: &Qp, attributes: &Attributes) -> Result<Transport, NicError> {
        let (nic, qpn) = (attributes.av.nic, attributes.dest_qpn);
        let none = NicError::NoSuchPeer { nic, qpn: qpn.0 };
        match (&self.place, nic) {
            (Place::InProcess(link, _), NicAddress::InProcess(number)) => {
                Ok(Transport::within(qp, link.find(number, qpn).ok_or(none)?))
            }
            (Place::Packets { mtu, .. }, nic) => {
                let ud = qp.kind == QpType::Ud;
                let connected = !matches!(qp.kind, QpType::Ud | QpType::Dci | QpType::Dct);
                if connected
                    && !matches!(nic, NicAddress::Ip(to) if core.reaches(to.to_canonical()))
                {
                    return Err(none);
                }
                if !ud && attributes.path_mtu > *mtu {
                    let (value, must) =
                        (attributes.path_mtu.bytes() as u64, "what the link's packets can carry");
                    return Err(NicError::Attribute { what: "path MTU", value, must });
                }
                let initiator = (self.random(), qp.error_streams());
                let transport = Transport::new(qp.kind, qp.qpn, *mtu, attributes, initiator);
                transport.ok_or(none)
            }
            _ => Err(none),
        }
    }
}

#[cfg(test)]
#[path = "moves_tests.rs"]
mod tests;
