//! What the engines, the queue pairs and the user of a software NIC share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};

use super::counters::Live;
use super::engine::Seat;
use super::inproc::InProcess;
use super::mr::MrTable;
use super::qp::{self, Qp};
use super::requester::Timers;
use crate::nic::{NicError, QpAddress, QpAttr, QpState, QueuePair, Queues};
use crate::wire::Qpn;

/// Most queue pairs of a NIC.
const MAX_QPS: usize = 1 << 16;
/// Queue pair numbers 0 and 1 are special (InfiniBand vol. 1, 9.2.3); the first pages are left to
/// them and to whoever wants fixed numbers.
const FIRST_QPN: u32 = 0x100;

pub(super) struct Device {
    pub(super) id: u64,
    link: Arc<InProcess>,
    myself: Weak<Device>,
    pub(super) mrs: Arc<MrTable>,
    qps: RwLock<HashMap<u32, Arc<Qp>>>,
    next_qpn: AtomicU32,
    pub(super) engines: Vec<Seat>,
    pub(super) counters: Arc<Live>,
    pub(super) timers: Timers,
}

impl Device {
    pub(super) fn new(link: &Arc<InProcess>, engines: usize, timers: Timers) -> Arc<Self> {
        let made = link.attach(|id| {
            Ok::<_, std::convert::Infallible>(Arc::new_cyclic(|myself| Self {
                id,
                link: link.clone(),
                myself: myself.clone(),
                mrs: Arc::new(MrTable::new()),
                qps: RwLock::default(),
                next_qpn: AtomicU32::new(FIRST_QPN),
                engines: (0..engines).map(|_| Seat::default()).collect(),
                counters: Arc::default(),
                timers,
            }))
        });
        match made {
            Ok(device) => device,
            Err(never) => match never {},
        }
    }

    pub(super) fn qp(&self, qpn: u32) -> Option<Arc<Qp>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).get(&qpn).cloned()
    }

    fn seat(&self, qpn: u32) -> &Seat {
        &self.engines[qpn as usize % self.engines.len()]
    }

    pub(super) fn create_qp(&self, attr: &QpAttr, queues: Queues) -> Result<Arc<Qp>, NicError> {
        let mut qps = self.qps.write().unwrap_or_else(PoisonError::into_inner);
        if qps.len() >= MAX_QPS {
            return Err(NicError::Full { what: "queue pairs", limit: MAX_QPS });
        }
        let qpn = loop {
            let next = self.next_qpn.fetch_add(1, Ordering::Relaxed) & Qpn::MAX;
            if next >= FIRST_QPN && !qps.contains_key(&next) {
                break next;
            }
        };
        let seat = self.seat(qpn);
        let qp = Arc::new(Qp::new(
            Qpn(qpn),
            self.id,
            self.myself.clone(),
            attr,
            queues,
            self.mrs.clone(),
            seat.attention.clone(),
            self.counters.clone(),
        )?);
        seat.control().add(qp.clone())?;
        qps.insert(qpn, qp.clone());
        Ok(qp)
    }

    pub(super) fn destroy_qp(&self, qpn: u32) -> Result<(), NicError> {
        let removed = self.qps.write().unwrap_or_else(PoisonError::into_inner).remove(&qpn);
        let qp = removed.ok_or(NicError::NoSuchQp(qpn))?;
        self.seat(qpn).control().remove(qpn);
        // The lock waits for a peer's engine that is in there; later ones get no answer.
        qp.set_error();
        qp.responder().kill();
        Ok(())
    }

    pub(super) fn modify(
        &self,
        qp: &Qp,
        to: QpState,
        peer: Option<QpAddress>,
    ) -> Result<(), NicError> {
        let found = match (to, peer) {
            (QpState::Rtr, Some(peer)) => {
                let none = NicError::NoSuchPeer { nic: peer.nic, qpn: peer.qpn.0 };
                Some((peer, self.link.find(peer).ok_or(none)?))
            }
            (QpState::Rtr, None) => return Err(NicError::NoSuchPeer { nic: 0, qpn: 0 }),
            _ => None,
        };
        if to == QpState::Err {
            qp.set_error();
            return Ok(());
        }
        let mut core = self.seat(qp.qpn.0).control();
        let from = QueuePair::state(qp);
        if !qp::allowed(from, to) {
            return Err(qp.refused(to));
        }
        if let Some((address, peer)) = found {
            qp.set_remote(address);
            core.connect(qp.qpn.0, peer);
        }
        if to == QpState::Reset {
            core.reset(qp.qpn.0)?;
            qp.responder().reset();
        }
        qp.advance(from, to)?;
        if to == QpState::Rts {
            core.wake(qp.qpn.0);
        }
        Ok(())
    }

    /// Ends everything: queue pairs answer nobody, and no region is held any more.
    pub(super) fn shut_down(&self) {
        self.link.detach(self.id);
        let qpns: Vec<u32> = {
            let qps = self.qps.read().unwrap_or_else(PoisonError::into_inner);
            qps.keys().copied().collect()
        };
        for qpn in qpns {
            let _ = self.destroy_qp(qpn); // gone already is as good
        }
        self.mrs.clear();
    }
}
