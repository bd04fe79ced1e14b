//! Loss: timers, and what is sent again.

use super::Requester;
use crate::counters::Live;
use crate::queue::sq::SendQueue;
use crate::service::requester::StepContext;
use crate::trace::Kind;
use crate::vendor::Vendor;
use bellpush_wire::cqe::Syndrome as Cause;

/// First interval of a timer that is longer than it. A loss that nothing else shows need not wait out
/// a long timer, which says how long a peer may be silent: what is missing goes again after this time,
/// twice that, and so on, up to the timer's. The sum of all intervals stays what the timer and the
/// number of retries say. (ConnectX retransmits adaptively as well.)
const FIRST_NS: u64 = 4096 << 14;

impl Requester {
    pub(super) fn restart_timer(&mut self, now_ns: u64) {
        let running = self.is_outstanding();
        self.deadline = self.interval_ns().filter(|_| running).map(|ns| now_ns + ns);
    }

    /// How long nothing may be heard until the queue pair fails.
    fn patience_ns(&self) -> Option<u64> {
        self.timeout_ns.map(|ns| ns * (u64::from(self.retry_cnt) + 1))
    }

    /// How long until what nothing is heard of goes again.
    fn interval_ns(&self) -> Option<u64> {
        let (timer, patience) = (self.timeout_ns?, self.patience_ns()?);
        let first = if self.retry_cnt == 0 { timer } else { timer.min(FIRST_NS) };
        let longer = first << self.tries.min(17); // the longest timer is 2^17 times the first interval
        Some(longer.min(timer).min(patience.saturating_sub(self.waited_ns)))
    }

    /// The oldest is known to be missing: sends again from it on, once.
    pub(super) fn resume(&mut self, now_ns: u64) {
        if self.recovering != Some(self.oldest) {
            self.recovering = Some(self.oldest);
            self.rewind();
            self.restart_timer(now_ns);
        }
    }

    pub(super) fn rewind(&mut self) {
        self.cursor = 0;
        self.reads = 0;
        self.at = match self.outstanding.front() {
            Some(message) => self.oldest.distance(message.first).max(0) as u32,
            None => 0,
        };
    }

    /// It may send nothing before then, and so is answered nothing: the timer runs from there on.
    pub(super) fn hold(&mut self, until_ns: u64) {
        if let (Some(deadline), Some(interval)) = (self.deadline, self.interval_ns()) {
            self.deadline = Some(deadline.max(until_ns.saturating_add(interval)));
        }
    }

    /// Looks at the timer: what nothing was heard of for so long goes again, or is given up.
    pub(in crate::service::rc) fn tick(&mut self, sq: &SendQueue, cx: &mut StepContext<'_>) {
        if self.deadline.is_none_or(|at| cx.now_ns < at) {
            return;
        }
        self.deadline = None;
        if !self.is_outstanding() {
            return;
        }
        Live::add(&cx.counters.timeouts, 1);
        self.waited_ns += self.interval_ns().unwrap_or(0);
        sq.qp.mark(Kind::Timeout, 0, [u64::from(self.tries) + 1, self.waited_ns]);
        if self.patience_ns().is_none_or(|most| self.waited_ns >= most) {
            return self.fail(sq, cx, (Cause::TransportRetryExc, Vendor::NoAnswer));
        }
        self.tries += 1;
        self.recovering = Some(self.oldest);
        self.rewind();
        self.restart_timer(cx.now_ns);
    }
}
