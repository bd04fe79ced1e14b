//! How queue pairs end: ERR, what it comes of, and what is told of it.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::Qp;
use crate::counters::Live;
use crate::objects::cq::Overrun;
use crate::objects::events::Event;
use crate::trace::Kind;
use crate::vendor::Vendor;
use bellpush_nic::{QpState, QueuePair};
use bellpush_wire::cqe::{Cqe, Syndrome};

/// Receives of an SRQ that messages on their way have taken. The last of them is complete, in ERR, before the queue
/// pair's last WQE is told of (InfiniBand vol. 1, 10.3.1): who learns of that may have the SRQ's receives counted.
#[derive(Default)]
pub(super) struct Held {
    receives: AtomicU32,
    awaited: AtomicBool,
}

// Sequentially consistent: of the two that end and let go at once, one sees the other.
impl Held {
    /// It ends; says whether nothing is held, and the last WQE to be told of now.
    fn end(&self) -> bool {
        self.awaited.store(true, Ordering::SeqCst);
        self.receives.load(Ordering::SeqCst) == 0 && self.awaited.swap(false, Ordering::SeqCst)
    }

    /// One is let go; says whether the last WQE is to be told of now.
    fn let_go(&self) -> bool {
        let left = self.receives.fetch_sub(1, Ordering::SeqCst) - 1;
        left == 0 && self.awaited.swap(false, Ordering::SeqCst)
    }

    /// The queue pair begins again.
    pub(super) fn clear(&self) {
        self.awaited.store(false, Ordering::SeqCst);
        self.receives.store(0, Ordering::SeqCst);
    }
}

impl Qp {
    /// Moves to ERR; its engine flushes what is outstanding.
    pub(crate) fn set_error(&self) {
        let before = self.state.swap(QpState::Err as u8, Ordering::AcqRel);
        self.attention.store(true, Ordering::Release);
        if before == QpState::Err as u8 {
            return;
        }
        self.mark(Kind::State, 0, [before.into(), QpState::Err as u64]);
        self.call_senders_back();
        // Last: a sink may panic.
        if self.srq.is_some() && self.held.end() {
            self.tell_last_wqe();
        }
    }

    /// Whether it is in ERR.
    pub(crate) fn is_in_error(&self) -> bool {
        QueuePair::state(self) == QpState::Err
    }

    /// A message has taken a receive, and goes on.
    pub(crate) fn hold_receive(&self) {
        if self.srq.is_some() {
            self.held.receives.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A receive that was held is complete, or is about to be.
    pub(crate) fn let_receive_go(&self) {
        if self.srq.is_some() && self.held.let_go() {
            self.tell_last_wqe();
        }
    }

    /// Who learns of it polls the CQ until it is empty, and has all that was received (10.3.1).
    fn tell_last_wqe(&self) {
        self.release_completions();
        self.events.push(Event::LastWqe(self.qpn));
    }

    pub(super) fn wrote(&self, pushed: Result<(), Overrun>, cqe: &Cqe) -> bool {
        let written = pushed.is_ok();
        if !written {
            Live::add(&self.counters.cq_overruns, 1);
            if QueuePair::state(self) != QpState::Err {
                self.events.push(Event::QpFatal(self.qpn));
            }
            self.set_error();
        } else if cqe.opcode.is_error() {
            let syndrome = Syndrome::from_code(cqe.syndrome);
            let syndrome = syndrome.expect("only known syndromes are written");
            self.counters.error(syndrome);
            if (syndrome, cqe.vendor_err) == (Syndrome::WrFlush, Vendor::Script as u8) {
                self.events.push(Event::QpFatal(self.qpn));
            }
            if syndrome != Syndrome::WrFlush {
                let first = (cqe.wqe_counter, syndrome, cqe.vendor_err);
                self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(first);
            }
        }
        written
    }

    /// Index of the WQE, syndrome and vendor error of the first CQE since RESET that is an error
    /// and no flush.
    pub(crate) fn first_error(&self) -> Option<(u16, Syndrome, u8)> {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
