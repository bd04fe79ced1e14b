//! What an engine has of a queue pair, whatever its service: visits, leases to an engine elsewhere, flushing
//! (InfiniBand vol. 1, 9.9.2).

use std::sync::Arc;

use crate::adversary::sends;
use crate::copy::Copiers;
use crate::counters::Live;
use crate::link::port::Port;
use crate::objects::qp::Qp;
use crate::offload::Lease;
use crate::queue::sq::{Carried, Scratch, SendQueue};
use crate::queue::uar::Rung;
use crate::report::SendReport;
use crate::service::Transport;
use crate::service::local::capture::InprocCapture;
use crate::service::local::responder;
use crate::vendor::Vendor;
use bellpush_abi::engine::{State, Why};
use bellpush_mem::MemError;
use bellpush_nic::{QpState, QueuePair};
use bellpush_wire::cqe::{Cqe, CqeOpcode, Syndrome};

/// WQEs and bytes of one visit to a queue pair, so that none starves the others. A long WQE may
/// exceed the bytes once.
pub(crate) const VISIT_WQES: u32 = 64;
pub(crate) const VISIT_BYTES: u64 = 256 << 10;

/// What an engine lends a queue pair for a visit.
pub(crate) struct StepContext<'a> {
    pub(crate) now_ns: u64,
    pub(crate) timers: Timers,
    /// Where a WQE is copied to before it is looked at.
    pub(crate) scratch: &'a mut Scratch,
    /// WQEs that one copy is carried out for, besides the first.
    pub(crate) coalesced: &'a mut Vec<Carried>,
    /// What the engine has of the copy threads, on a NIC with such.
    pub(crate) copiers: Option<&'a mut Copiers>,
    pub(crate) counters: &'a Live,
    pub(crate) tally: Tally,
    /// The packet link, on a NIC that has one.
    pub(crate) port: Option<&'a mut Port>,
    /// Who records what goes over the in-process link.
    pub(crate) inproc_capture: Option<&'a InprocCapture>,
}

/// How long a requester waits, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timers {
    /// Between two tries at a peer whose receive queue is empty.
    pub(crate) rnr_ns: u64,
    /// Before a peer that does not answer is given up.
    pub(crate) answer_ns: u64,
}

/// What a step has done; added to the counters once a step.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) wqes: u64,
    pub(crate) bytes: u64,
    pub(crate) inband: u64,
    pub(crate) blueflame: u64,
    pub(crate) errors: u64,
    pub(crate) offloaded: u64,
    pub(crate) returned: u64,
    pub(crate) doorbells: u64,
    pub(crate) arrivals: u64,
    pub(crate) messages: u64,
    pub(crate) acknowledgements: u64,
    /// The last of the arrivals does not end its message.
    pub(crate) under_way: bool,
}

/// Whether a queue pair wants another visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visit {
    /// Nothing is posted that the engine knows of.
    Idle,
    /// At once.
    More,
    /// Not before this time.
    Later(u64),
}

impl Visit {
    /// That visit, or one at a time, whichever is sooner.
    pub(crate) fn or_at(self, at: u64) -> Self {
        match self {
            Self::Idle => Self::Later(at),
            Self::More => Self::More,
            Self::Later(other) => Self::Later(at.min(other)),
        }
    }
}

/// What an engine owns of a queue pair: its send side and its transport.
pub(crate) struct Requester {
    pub(crate) sq: SendQueue,
    /// From RTR on.
    pub(crate) transport: Option<Transport>,
    /// Whether the engine's list of queue pairs to visit has this one.
    pub(crate) listed: bool,
    /// The place in an engine elsewhere, and what is known of its doings.
    pub(crate) leased: Option<Leased>,
}

/// A queue pair's place in an engine elsewhere.
pub(crate) struct Leased {
    pub(crate) lease: Arc<Lease>,
    /// What it had done when its counts were looked at last.
    told: State,
    /// It returned something for this engine to carry out.
    owed: bool,
}

impl Leased {
    pub(crate) fn new(lease: Arc<Lease>) -> Self {
        Self { lease, told: State::default(), owed: false }
    }
}

impl Requester {
    pub(crate) fn new(qp: Arc<Qp>) -> Result<Self, MemError> {
        let sq = SendQueue::new(qp)?;
        Ok(Self { sq, transport: None, listed: false, leased: None })
    }

    pub(crate) fn qp(&self) -> &Arc<Qp> {
        &self.sq.qp
    }

    /// What is posted, taken and on its way. `taken` are doorbells of its page that were taken out of their registers.
    pub(crate) fn report(&self, taken: Rung) -> SendReport {
        let on_way = self.transport.as_ref().map_or((0, None), Transport::on_way);
        SendReport::new(&self.sq, on_way, taken)
    }

    /// Whether an engine elsewhere has the queue pair.
    #[inline]
    pub(crate) fn is_out(&self) -> bool {
        self.leased.as_ref().is_some_and(|leased| leased.lease.is_out())
    }

    /// Leases the queue pair to the engine elsewhere, if it may have it now. `seen` are the UAR's
    /// registers.
    pub(crate) fn lease(&mut self, seen: [u64; 2]) -> bool {
        let Some(leased) = &self.leased else { return false };
        let local = self.transport.as_ref().and_then(Transport::in_process);
        let Some(local) = local.filter(|local| !local.is_trying_again()) else { return false };
        if leased.owed || leased.lease.is_out() {
            return false;
        }
        let (qp, peer) = (&self.sq.qp, local.peer());
        if QueuePair::state(&**qp) != QpState::Rts || !responder::answers(peer, qp.in_process()) {
            return false;
        }
        let counts = leased.told;
        let told = State { registers: seen, ..self.sq.stands() };
        let state = State {
            wqes: counts.wqes,
            bytes: counts.bytes,
            inband: counts.inband,
            blueflame: counts.blueflame,
            doorbells: counts.doorbells,
            ..told
        };
        let Some(granted) = qp.grant(&leased.lease, peer, state) else {
            self.leased = None; // not for that engine, now or later
            return false;
        };
        // The peer may have left meanwhile, before it knew of the lease.
        if granted && !responder::answers(peer, qp.in_process()) {
            leased.lease.ask_back();
        }
        granted
    }

    /// Counts what the engine elsewhere has done, and goes on where it stood if it has returned the
    /// queue pair; the UAR's registers then.
    pub(crate) fn look(&mut self, tally: &mut Tally) -> Option<[u64; 2]> {
        let leased = self.leased.as_mut()?;
        if !leased.lease.is_out() {
            return None;
        }
        let back = leased.lease.take_back();
        let now = back.unwrap_or_else(|| leased.lease.look());
        let told = std::mem::replace(&mut leased.told, now);
        tally.wqes += now.wqes.wrapping_sub(told.wqes);
        tally.offloaded += now.wqes.wrapping_sub(told.wqes);
        tally.bytes += now.bytes.wrapping_sub(told.bytes);
        tally.inband += now.inband.wrapping_sub(told.inband);
        tally.blueflame += now.blueflame.wrapping_sub(told.blueflame);
        tally.doorbells += now.doorbells.wrapping_sub(told.doorbells);
        let state = back?;
        leased.owed = state.why != Why::Asked as u32;
        tally.returned += u64::from(leased.owed);
        self.sq.go_on(&state);
        self.sq.qp.send_cq.take_over([state.cq_pi, state.cq_ci]);
        if let Some(local) = self.transport.as_mut().and_then(Transport::in_process_mut) {
            local.begin_again();
        }
        Some(state.registers)
    }

    /// Gets the queue pair back, and waits for it. False: the engine was given up, and has it.
    pub(crate) fn recall(&self) -> bool {
        self.leased.as_ref().is_none_or(|leased| leased.lease.recall())
    }

    /// Takes up to a budget of WQEs.
    pub(crate) fn visit(&mut self, cx: &mut StepContext<'_>) -> Visit {
        let held = self.sq.look(cx);
        let visit = self.attend(cx);
        if visit == Visit::Idle {
            self.settled();
        }
        held.map_or(visit, |at| visit.or_at(at))
    }

    /// What the engine elsewhere left has been carried out.
    fn settled(&mut self) {
        if let Some(leased) = &mut self.leased {
            leased.owed = false;
        }
    }

    fn attend(&mut self, cx: &mut StepContext<'_>) -> Visit {
        let before = (cx.tally.wqes, cx.tally.errors);
        if let Some(transport) = &mut self.transport {
            let visit = transport.visit(&mut self.sq, cx);
            if visit != Visit::Idle {
                if (cx.tally.wqes, cx.tally.errors) != before {
                    self.settled();
                }
                return visit;
            }
        }
        match QueuePair::state(&*self.sq.qp) {
            QpState::Err => self.flush(cx),
            _ => Visit::Idle,
        }
    }

    /// Completes what is posted to a queue pair in ERR with flush errors.
    fn flush(&mut self, cx: &mut StepContext<'_>) -> Visit {
        for _ in 0..VISIT_WQES {
            let Some(posted) = self.sq.fetch(cx.scratch) else { return Visit::Idle };
            if matches!(posted.wqe, Err((_, Vendor::Overrun))) {
                return Visit::Idle; // nothing that was posted with a credit
            }
            sends::forget(&self.sq.qp, posted.source, self.sq.position());
            self.sq.consume(posted.source, posted.blocks);
            let (op, syndrome) = (CqeOpcode::ReqErr, Syndrome::WrFlush);
            let vendor = Vendor::Flush as u8;
            cx.tally.errors += 1;
            self.sq.qp.complete(&Cqe::error(op, self.sq.qp.qpn, posted.counter, syndrome, vendor));
        }
        Visit::More
    }

    /// The queue pair goes, or to RESET.
    pub(crate) fn lose(&mut self) {
        if let Some(transport) = &mut self.transport {
            transport.lose(&self.sq.qp);
        }
    }

    /// Completes receives posted to a queue pair in ERR; says whether there were any.
    pub(crate) fn flush_receives(&self) -> bool {
        self.sq.qp.receives().flush(&self.sq.qp)
    }
}
