//! An engine's queue pairs that are leased to an engine elsewhere: what is leased when, and how it comes
//! back ([`crate::offload`] is the other side).

use std::sync::Arc;

use crate::engine::{Core, activate};
use crate::offload::Offload;
use crate::queue::uar::{Rung, Uar};
use crate::service::requester::{Leased, Tally};
use bellpush_nic::{QpState, QueuePair};

impl Core {
    /// Gives a queue pair a place in an engine elsewhere, if it suits and there is one.
    pub(crate) fn enlist(&mut self, qpn: u32, offload: &Arc<Offload>) {
        let Some(&slot) = self.queues.by_qpn.get(&qpn) else { return };
        let alone = match self.queues.uars.iter().find(|uar| uar.qps.contains(&slot)) {
            Some(uar) if uar.qps.len() > 1 => {
                // Two on a page: their registers are looked at here.
                for other in uar.qps.clone() {
                    let Some(requester) = &mut self.queues.slots[other] else { continue };
                    if requester.recall() {
                        // What it had yet to take is taken here.
                        self.resume(other, &mut Tally::default());
                        if let Some(requester) = &mut self.queues.slots[other] {
                            requester.leased = None;
                        }
                    }
                }
                false
            }
            _ => true,
        };
        if let Some(requester) = &mut self.queues.slots[slot]
            && requester.qp().suits(alone)
        {
            requester.leased = offload.lease().map(Leased::new);
        }
    }

    /// Gets a queue pair back from an engine elsewhere. False: that engine was given up, and has it.
    pub(crate) fn recall(&mut self, qpn: u32) -> bool {
        let Some(&slot) = self.queues.by_qpn.get(&qpn) else { return true };
        let recalled = self.queues.slots[slot].as_ref().is_none_or(|requester| requester.recall());
        recalled && {
            self.resume(slot, &mut Tally::default());
            true
        }
    }

    /// Goes on with a queue pair that an engine elsewhere has returned; says whether it has.
    fn resume(&mut self, slot: usize, tally: &mut Tally) -> bool {
        let Some(requester) = &mut self.queues.slots[slot] else { return false };
        let Some(registers) = requester.look(tally) else { return false };
        if let Some(uar) = self.queues.uars.iter_mut().find(|uar| uar.qps.contains(&slot)) {
            uar.go_on(registers);
        }
        // Without a look at the record when all is in order: one that nobody keeps seems to lie
        // ahead after a wrap.
        if QueuePair::state(&**requester.qp()) == QpState::Err {
            requester.sq.ring(Rung::default());
        }
        activate(requester, slot, &mut self.queues.active);
        true
    }

    /// Leases what may be leased, keeps the engine elsewhere running, and takes back what it returned.
    pub(crate) fn offload(&mut self, offload: &Offload, tally: &mut Tally) -> bool {
        let mut leased = false;
        for slot in 0..self.queues.slots.len() {
            let Some(requester) = &mut self.queues.slots[slot] else { continue };
            if requester.leased.is_none() {
                continue;
            }
            if !requester.is_out() {
                let uar = self.queues.uars.iter().find(|uar| uar.qps.contains(&slot));
                if requester.lease(uar.map_or([0; 2], Uar::seen)) {
                    requester.listed = false;
                    self.queues.active.retain(|&s| s != slot);
                }
            }
            leased |= requester.is_out();
        }
        if !leased || !offload.turn() {
            return false;
        }
        let mut any = false;
        for slot in 0..self.queues.slots.len() {
            any |= self.resume(slot, tally);
        }
        any
    }
}
