//! Immediates: what an endpoint's receive queue is for.

use crate::abi::wire::Code;
use crate::nic::QueuePair;
use crate::nic::queue::{HostCq, HostRq};
use crate::wire::cqe::CqeOpcode;

use super::Error;

/// Whether the host reaches what it takes to post receives and to take their completions.
pub(super) fn are_reached(qp: &dyn QueuePair) -> bool {
    let q = qp.queues();
    let queues = [&q.rq, &q.dbr, &q.recv_cq, &q.recv_cq_dbr];
    queues.iter().all(|view| !view.mem().is_far())
}

/// A receive queue of empty receives, each of which an immediate takes, and its CQ.
pub(super) struct Receives {
    rq: HostRq,
    cq: HostCq,
}

impl Receives {
    /// Posts as many receives as there is room for. The queue pair is connected: earlier ones might be forgotten when
    /// its state changes. A peer that is early waits, as RNR has it.
    ///
    /// After a reset the CQ goes on where it was: what `before` had not taken is passed over.
    pub fn post_all(qp: &dyn QueuePair, before: Option<Self>) -> Result<Self, Error> {
        let queues = qp.queues();
        let mut cq = match before {
            Some(before) => before.cq,
            None => HostCq::new(&queues.recv_cq, &queues.recv_cq_dbr),
        };
        while cq.poll()?.is_some() {}
        let mut receives = Self { rq: HostRq::new(queues), cq };
        while receives.rq.free() > 0 {
            receives.rq.post(&[])?;
        }
        Ok(receives)
    }

    /// Takes the oldest immediate that has come, and posts the receive that it took anew.
    pub fn poll(&mut self) -> Result<Option<u32>, Error> {
        let Some(cqe) = self.cq.poll()? else { return Ok(None) };
        if cqe.opcode != CqeOpcode::RespWrImm && cqe.opcode != CqeOpcode::RespSendImm {
            let (syndrome, vendor) = (cqe.syndrome, cqe.vendor_err);
            let ticket = cqe.wqe_counter.into();
            return Err(Error::Completion { code: Code::CqeError, syndrome, vendor, ticket });
        }
        self.rq.retire();
        self.rq.post(&[])?;
        Ok(Some(cqe.imm))
    }
}
