//! What queue pairs and CQs write down of themselves.

use super::Kind;
use crate::objects::cq::Cq;
use crate::objects::qp::Qp;
use bellpush_nic::QpState;
use bellpush_wire::Qpn;

impl Qp {
    /// Writes an event of it down, on a NIC with a trace.
    #[inline]
    pub(crate) fn mark(&self, kind: Kind, aux: u16, words: [u64; 2]) {
        crate::log::of_qp(self.qpn.0, kind, aux, words);
        if let Some(trace) = self.events.trace() {
            trace.mark(kind, self.qpn.0, aux, words);
        }
    }

    /// Has it in the trace that there is one.
    pub(crate) fn trace_made(&self) {
        let recv = self.recv_cq.as_ref().map_or(0, |cq| cq.number());
        let cqs = u64::from(self.send_cq.number()) | u64::from(recv) << 32;
        let sizes = u64::from(self.attr.sq_blocks) | u64::from(self.attr.rq_wqes) << 32;
        self.mark(Kind::QpMade, self.kind as u16, [cqs, sizes]);
    }

    /// Has its peer in the trace, in a move to RTR.
    pub(crate) fn trace_connected(&self, to: QpState, peer: Qpn) {
        if to == QpState::Rtr {
            self.mark(Kind::Connected, 0, [peer.0.into(), 0]);
        }
    }
}

impl Cq {
    /// Has it in the trace that there is one.
    pub(crate) fn trace_made(&self) {
        if let Some(trace) = self.events.trace() {
            trace.mark(Kind::CqMade, self.number(), 0, [self.entries().into(), 0]);
        }
    }
}
