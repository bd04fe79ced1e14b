//! Scripted faults: what [`Script`] says goes wrong on one device, counted by what it does.
//!
//! The same script on the same sequence of WQEs, CQEs and packets strikes the same ones. `share`
//! draws from the script's seed.

mod link;
mod spec;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub use link::Scripted;
pub(crate) use spec::{CqeAct, PacketAct, WqeAct};
pub use spec::{MAX_SCRIPT_BYTES, Script, ScriptError};

use crate::link::Rng;
use crate::objects::events::Events;
use crate::objects::qp::Qp;
use crate::trace::Kind;
use spec::{Completion, PacketKind, Rule, What, When, Which};

use bellpush_wire::Qpn;
use bellpush_wire::cqe::{Cqe, CqeOpcode};
use bellpush_wire::roce::{Aeth, Operation, Packet, Syndrome as Answer};
use bellpush_wire::wqe::Opcode;

/// A script on one device. Its link, its engine and its owner share it.
pub struct ScriptedFaults {
    rules: Vec<Live>,
    /// The engine's time, and that of its first step, which `after` counts from.
    now_ns: AtomicU64,
    begin_ns: AtomicU64,
    /// CQEs of receives that were dropped, by queue pair number.
    lost: Mutex<HashMap<u32, u64>>,
    /// Queue pairs and CQs in the order in which they were made, from 1 on.
    born: Mutex<Born>,
    /// The device is to end.
    fatal: AtomicBool,
    tell: OnceLock<StrikeSink>,
    /// Who writes every strike down.
    trace: OnceLock<Arc<Events>>,
}

/// Called when a fault strikes for the first time, with its number in the script from 1 on, on
/// whatever thread met it: it must only pass the news on.
pub type StrikeSink = Box<dyn Fn(usize) + Send + Sync>;

#[derive(Default)]
struct Born {
    qps: HashMap<u32, u32>,
    qp_count: u32,
    cq_count: u32,
}

/// A fault with what has become of it.
struct Live {
    rule: Rule,
    /// Its number in the script, from 1 on.
    number: usize,
    /// Of its own: what one draws does not move the others' draws.
    rng: Mutex<Rng>,
    matched: AtomicU64,
    done: AtomicU64,
}

/// No step yet.
const NEVER: u64 = u64::MAX;

impl ScriptedFaults {
    /// What a script does on a device: its number in its process, from 0 on, and its address.
    pub fn new(script: &Script, device: usize, address: Option<IpAddr>) -> Arc<Self> {
        let is_its = |rule: &Rule| {
            rule.device.is_none_or(|index| index == device)
                && rule.address.is_none_or(|at| Some(at) == address)
        };
        let live = |(index, rule): (usize, &Rule)| Live {
            rule: rule.clone(),
            number: index + 1,
            rng: Mutex::new(Rng(script.seed ^ (index as u64) << 32)),
            matched: AtomicU64::new(0),
            done: AtomicU64::new(0),
        };
        let rules = script.rules.iter().enumerate().filter(|(_, rule)| is_its(rule));
        Arc::new(Self {
            rules: rules.map(live).collect(),
            now_ns: AtomicU64::new(0),
            begin_ns: AtomicU64::new(NEVER),
            lost: Mutex::default(),
            born: Mutex::default(),
            fatal: AtomicBool::new(false),
            tell: OnceLock::new(),
            trace: OnceLock::new(),
        })
    }

    /// How often each fault that is this device's has struck, by its number in the script from 1
    /// on.
    pub fn done(&self) -> Vec<(usize, u64)> {
        self.rules.iter().map(|live| (live.number, live.done.load(Ordering::Relaxed))).collect()
    }

    /// Receives of a queue pair that are complete and that no CQE tells of, because `drop` struck it
    /// (error CQEs are not counted), since the device was opened. Its number names it also after a reset.
    pub fn lost_receives(&self, qpn: Qpn) -> u64 {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get(&qpn.0).copied().unwrap_or(0)
    }

    fn corrupts(&self) -> bool {
        self.rules.iter().any(|live| live.rule.corrupts())
    }

    /// Has someone told when a fault strikes for the first time. The first who asks is.
    pub fn tell_first(&self, sink: StrikeSink) {
        let _ = self.tell.set(sink); // somebody is told already
    }

    /// Has every strike written down in a device's trace.
    pub(crate) fn trace_to(&self, events: &Arc<Events>) {
        let _ = self.trace.set(events.clone()); // a script of two devices is the first one's
    }

    /// Takes the engine's time over; when something is to happen by the time next.
    pub(crate) fn begin_step(&self, now_ns: u64) -> Option<u64> {
        if self.begin_ns.load(Ordering::Relaxed) == NEVER {
            self.begin_ns.store(now_ns, Ordering::Relaxed);
        }
        self.now_ns.store(now_ns, Ordering::Relaxed);
        let ends = |live: &Live| live.rule.what == What::Device && live.strikes(self, true);
        if self.rules.iter().any(ends) {
            self.fatal.store(true, Ordering::Relaxed);
        }
        let begin = self.begin_ns.load(Ordering::Relaxed);
        let times = self.rules.iter().flat_map(|live| live.times());
        times.filter(|at| *at != u64::MAX).map(|at| begin + at).filter(|at| *at > now_ns).min()
    }

    /// Whether the device is to end now; says so once.
    pub(crate) fn ends_device(&self) -> bool {
        self.fatal.load(Ordering::Relaxed) && self.fatal.swap(false, Ordering::Relaxed)
    }

    /// Whether some queue pair is to go to ERR because its time has come, and none has yet.
    pub(crate) fn ends_some(&self) -> bool {
        self.rules.iter().any(|live| live.ends_qps(self).is_some())
    }

    /// Those of the queue pairs that are to go to ERR now. One that does not live yet is waited for.
    pub(crate) fn take_ends(&self, mut live: Vec<Arc<Qp>>) -> Vec<Arc<Qp>> {
        let mut ends = Vec::new();
        for rule in &self.rules {
            let Some(which) = rule.ends_qps(self) else { continue };
            let its = |qp: &mut Arc<Qp>| self.is(which, qp.qpn);
            let before = ends.len();
            ends.extend(live.extract_if(.., its));
            if ends.len() > before {
                rule.done.store(1, Ordering::Relaxed);
                rule.tell(self);
            }
        }
        ends
    }

    /// Whether the port is down. It is once, where a step comes too late for all of its time.
    pub(crate) fn holds_port_down(&self) -> bool {
        let age = self.age_ns();
        let holds = |live: &&Live| {
            let When { after_ns, until_ns, .. } = live.rule.when;
            live.rule.what == What::Port
                && age >= after_ns
                && (age < until_ns || live.done.load(Ordering::Relaxed) == 0)
        };
        let mut held = false;
        for live in self.rules.iter().filter(holds) {
            held = true;
            if live.done.swap(1, Ordering::Relaxed) == 0 {
                live.tell(self);
            }
        }
        held
    }

    /// A queue pair was made.
    pub(crate) fn made_qp(&self, qpn: Qpn) {
        let mut born = self.born();
        born.qp_count += 1;
        let nth = born.qp_count;
        born.qps.insert(qpn.0, nth);
    }

    /// A CQ was made; which one it is.
    pub(crate) fn made_cq(&self) -> u32 {
        let mut born = self.born();
        born.cq_count += 1;
        born.cq_count
    }

    /// What becomes of a WQE that the NIC takes; asked once for each.
    pub(crate) fn on_wqe(&self, qpn: Qpn, opcode: Opcode) -> Option<WqeAct> {
        let act = self.first(|what| match *what {
            What::Wqe { qp, opcode: of, act } => {
                let is_it = of.is_none_or(|work| work.is(opcode)) && self.is(qp, qpn);
                is_it.then_some(act)
            }
            _ => None,
        });
        if act == Some(WqeAct::Fatal) {
            self.fatal.store(true, Ordering::Relaxed);
        }
        act
    }

    /// What becomes of a CQE of the CQ that was made as the `nth`.
    pub(crate) fn on_cqe(&self, nth: u32, cqe: &Cqe) -> Option<CqeAct> {
        let act = self.first(|what| match *what {
            What::Cqe { cq, qp, kind, act } => {
                let is_it = cq.is_none_or(|cq| cq == nth)
                    && kind.is_none_or(|kind| reports(cqe.opcode) == Some(kind))
                    && self.is(qp, cqe.qpn);
                is_it.then_some(act)
            }
            _ => None,
        });
        if act == Some(CqeAct::Drop) && reports(cqe.opcode) == Some(Completion::Receive) {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            *lost.entry(cqe.qpn.0).or_default() += 1;
        }
        act
    }

    /// What becomes of a packet to or from a peer.
    fn on_packet(&self, is_sent: bool, with: IpAddr, packet: &Packet<'_>) -> Option<PacketAct> {
        self.first(|what| match *what {
            What::Packet { sent, qp, kind, peer, act } => {
                let is_it = sent == is_sent
                    && peer.is_none_or(|peer| peer == with)
                    && kind.is_none_or(|kind| is_kind(kind, packet))
                    && self.is(qp, packet.headers.bth.dest);
                is_it.then_some(act)
            }
            _ => None,
        })
    }

    /// What the first fault does that strikes. Those behind it count the match as well.
    fn first<T>(&self, mut act: impl FnMut(&What) -> Option<T>) -> Option<T> {
        let mut first = None;
        for live in &self.rules {
            if let Some(act) = act(&live.rule.what)
                && live.strikes(self, first.is_none())
            {
                first = Some(act);
            }
        }
        first
    }

    fn is(&self, which: Which, qpn: Qpn) -> bool {
        match which {
            Which::Any => true,
            Which::Number(number) => number == qpn.0,
            Which::Nth(nth) => self.born().qps.get(&qpn.0) == Some(&nth),
        }
    }

    fn born(&self) -> MutexGuard<'_, Born> {
        self.born.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds since the engine's first step.
    fn age_ns(&self) -> u64 {
        match self.begin_ns.load(Ordering::Relaxed) {
            NEVER => 0,
            begin => self.now_ns.load(Ordering::Relaxed).saturating_sub(begin),
        }
    }
}

impl Live {
    fn is_due(&self, faults: &ScriptedFaults) -> bool {
        (self.rule.when.after_ns..self.rule.when.until_ns).contains(&faults.age_ns())
    }

    /// The queue pairs that it ends, if their time has come and none has ended yet.
    fn ends_qps(&self, faults: &ScriptedFaults) -> Option<Which> {
        match self.rule.what {
            What::Qp(which) if self.done.load(Ordering::Relaxed) == 0 => {
                self.is_due(faults).then_some(which)
            }
            _ => None,
        }
    }

    /// When something happens by the time alone, in nanoseconds since the first step.
    fn times(&self) -> [u64; 2] {
        let When { after_ns, until_ns, .. } = self.rule.when;
        match self.rule.what {
            What::Port => [after_ns, until_ns],
            What::Qp(_) | What::Device => [after_ns, u64::MAX],
            _ => [u64::MAX; 2],
        }
    }

    fn draw(&self, share: f64) -> bool {
        share >= 1.0 || self.rng.lock().unwrap_or_else(PoisonError::into_inner).happens(share)
    }

    /// Counts a match; whether it is one that is struck, and may be.
    fn strikes(&self, faults: &ScriptedFaults, may: bool) -> bool {
        if !self.is_due(faults) {
            return false;
        }
        let When { nth, every, times, share, .. } = self.rule.when;
        let n = self.matched.fetch_add(1, Ordering::Relaxed) + 1;
        if n < nth || !(n - nth).is_multiple_of(every) || !self.draw(share) || !may {
            return false;
        }
        let more = |done: u64| times.is_none_or(|times| done < times).then_some(done + 1);
        let before = self.done.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if before == Ok(0) {
            self.tell(faults);
        }
        if before.is_ok() {
            self.mark(faults);
        }
        before.is_ok()
    }

    fn mark(&self, faults: &ScriptedFaults) {
        if let Some(trace) = faults.trace.get().and_then(|events| events.trace()) {
            trace.mark(Kind::Fault, self.number as u32, 0, [0; 2]);
        }
    }

    fn tell(&self, faults: &ScriptedFaults) {
        if let Some(tell) = faults.tell.get() {
            tell(self.number);
        }
    }
}

fn reports(opcode: CqeOpcode) -> Option<Completion> {
    use CqeOpcode::{Req, ReqErr, RespErr, RespSend, RespSendImm, RespSendInv, RespWrImm};
    match opcode {
        Req => Some(Completion::Send),
        RespWrImm | RespSend | RespSendImm | RespSendInv => Some(Completion::Receive),
        ReqErr | RespErr => Some(Completion::Error),
        _ => None,
    }
}

fn is_kind(kind: PacketKind, packet: &Packet<'_>) -> bool {
    let operation = packet.opcode().operation();
    let answer = match packet.headers.ext.aeth {
        Some(Aeth { syndrome, .. }) if operation == Operation::Acknowledge => Some(syndrome),
        _ => None,
    };
    match kind {
        PacketKind::Request => operation.is_request(),
        PacketKind::Send => operation.is_send(),
        PacketKind::Write => operation.is_write(),
        PacketKind::ReadRequest => operation == Operation::ReadRequest,
        PacketKind::AtomicRequest => operation.is_atomic(),
        PacketKind::Response => !operation.is_request() && operation != Operation::Cnp,
        PacketKind::ReadResponse => operation.is_read_response(),
        PacketKind::AtomicResponse => operation == Operation::AtomicAcknowledge,
        PacketKind::Ack => matches!(answer, Some(Answer::Ack { .. })),
        PacketKind::Nak => matches!(answer, Some(Answer::Nak(_))),
        PacketKind::RnrNak => matches!(answer, Some(Answer::RnrNak { .. })),
    }
}

#[cfg(test)]
mod tests;
