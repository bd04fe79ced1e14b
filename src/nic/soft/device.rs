//! What the engines, the queue pairs and the user of a software NIC share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
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
    /// Queue pairs created so far.
    dealt: AtomicUsize,
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
                dealt: AtomicUsize::new(0),
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

    fn seat(&self, qp: &Qp) -> &Seat {
        &self.engines[qp.engine]
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
        let engine = deal(self.dealt.fetch_add(1, Ordering::Relaxed), self.engines.len());
        let seat = &self.engines[engine];
        let qp = Arc::new(Qp::new(
            Qpn(qpn),
            engine,
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
        self.seat(&qp).control().remove(qpn);
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
        let mut core = self.seat(qp).control();
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

/// The engine of the `n`th queue pair. Each round of the deal begins one engine later: ends that
/// are made in turn, one to send and one to receive, would else put all the work on every other
/// engine.
fn deal(n: usize, engines: usize) -> usize {
    (n + n / engines) % engines
}

#[cfg(test)]
mod tests {
    use super::deal;

    #[test]
    fn senders_are_spread_however_pairs_are_made() {
        for engines in 1..=8 {
            let most = |senders: &[usize]| {
                let mut load = vec![0; engines];
                senders.iter().for_each(|&n| load[deal(n, engines)] += 1);
                load.iter().max().unwrap() - load.iter().min().unwrap()
            };
            let all: Vec<usize> = (0..2 * engines * engines).collect();
            let every_other: Vec<usize> = all.iter().copied().step_by(2).collect();
            assert_eq!(most(&all), 0, "{engines} engines, all send");
            assert_eq!(most(&every_other), 0, "{engines} engines, every other one sends");
            assert_eq!(most(&all[..engines * engines]), 0, "{engines} engines, the first half");
        }
    }
}
