//! Looks at queue pairs and CQs for a trace: what no event tells, because nothing happens.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Kind, Tracer, head};
use crate::SoftNic;
use crate::objects::cq::CqReport;
use crate::objects::qp::Qp;
use crate::report::QpReport;
use bellpush_mem::Dma;
use bellpush_mem::clock::monotonic_ns;
use bellpush_wire::doorbell::{DBR_RCV_OFFSET, ahead, dbr_counter};
use bellpush_wire::wqe::{Ctrl, DS_BYTES, WQEBB_BYTES};

/// What the last looks found.
pub(super) type Looked = HashMap<(Kind, u32), (u16, [u64; 2])>;

/// WQEs that are looked for in a ring behind what is announced.
const MOST_WRITTEN: u16 = 64;
/// Queue pairs whose rings' contents before a reset are kept.
const MOST_STALE: usize = 4096;

/// What a look at a send queue found; its parts of the words of [`Kind::LookSend`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendLook {
    /// Producer index in the doorbell record.
    pub record: u16,
    /// Blocks that the NIC knows of and has taken, modulo 2^32.
    pub posted: u32,
    /// As `posted`.
    pub taken: u32,
    /// [`bellpush_nic::QpState`], by its place.
    pub state: u8,
    /// Messages on their way, at most 255.
    pub on_way: u8,
    /// WQEs that stand in the ring behind what a record or a doorbell says, at most 64.
    pub written: u16,
    /// Blocks that the record says beyond what the NIC knows of.
    pub announced: u16,
    /// Whether the engine came out of its step to be asked.
    pub answered: bool,
}

impl SendLook {
    pub(super) fn emit(self) -> (u16, [u64; 2]) {
        let a = u64::from(self.posted) | u64::from(self.taken) << 32;
        let b = u64::from(self.state)
            | u64::from(self.on_way) << 8
            | u64::from(self.written) << 16
            | u64::from(self.announced) << 32
            | u64::from(self.answered) << 48;
        (self.record, [a, b])
    }

    /// From the words of an event.
    pub fn parse(record: u16, [a, b]: [u64; 2]) -> Self {
        Self {
            record,
            posted: a as u32,
            taken: (a >> 32) as u32,
            state: b as u8,
            on_way: (b >> 8) as u8,
            written: (b >> 16) as u16,
            announced: (b >> 32) as u16,
            answered: b >> 48 & 1 != 0,
        }
    }
}

impl SoftNic {
    /// Has the trace of [`crate::SoftConfig::trace`], if there is one, say what queue pairs and CQs are at, and what
    /// the NIC counts. Whoever looks after the NIC calls it now and then. An engine that does not come out of its
    /// step within `patience` is left alone.
    pub fn look_for_trace(&self, patience: Duration) {
        let Some(tracer) = self.device.events.trace() else { return };
        for report in self.reports(patience) {
            tracer.look_at_cq(&report.send_cq);
            tracer.look_at_sends(
                &report,
                self.device
                    .qp(report.qpn.0)
                    .map_or(0, |qp| written(&qp, &report, &tracer.stale(report.qpn.0))),
            );
        }
        self.device.look_at_all(|qp| {
            if let Some([posted, taken]) = receives(qp) {
                tracer.look(Kind::LookReceives, qp.qpn.0, 0, [posted, taken]);
            }
            qp.recv_cq.iter().for_each(|cq| tracer.look_at_cq(&cq.report()));
        });
        for (nth, (_, value)) in self.counters().named().into_iter().enumerate() {
            tracer.put(head::COUNTERS + 8 * nth, value);
        }
        tracer.put(head::LOOKED, monotonic_ns());
    }
}

impl Tracer {
    /// Has it known to looks what stands in the ring of a queue pair that is reset: WQEs of its life before.
    pub(crate) fn reset(&self, qp: &Qp) {
        let mut stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        if stale.len() >= MOST_STALE {
            stale.clear();
        }
        stale.insert(qp.qpn.0, ring(qp));
    }

    fn stale(&self, qpn: u32) -> Vec<Stale> {
        let stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        stale.get(&qpn).cloned().unwrap_or_default()
    }

    fn look(&self, kind: Kind, number: u32, aux: u16, words: [u64; 2]) {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.insert((kind, number), (aux, words)) != Some((aux, words)) {
            self.mark(kind, number, aux, words);
        }
    }

    fn look_at_cq(&self, cq: &CqReport) {
        let taken = cq.taken.map_or(1 << 63, u64::from) | u64::from(cq.overran) << 24;
        self.look(Kind::LookCq, cq.number, 0, [cq.written, taken]);
    }

    fn look_at_sends(&self, report: &QpReport, written: u16) {
        let send = report.send.unwrap_or_default();
        let announced = ahead(report.record, send.posted, report.blocks).unwrap_or(0);
        let look = SendLook {
            record: report.record,
            posted: send.posted as u32,
            taken: send.taken as u32,
            state: report.state as u8,
            on_way: send.on_way.min(255) as u8,
            written,
            announced: announced.min(u16::MAX.into()) as u16,
            answered: report.send.is_some(),
        };
        let (aux, words) = look.emit();
        self.look(Kind::LookSend, report.qpn.0, aux, words);
    }
}

/// The first 16 bytes of a basic block.
pub(super) type Stale = [u8; DS_BYTES];

/// What stands in a ring, as far as looks go.
fn ring(qp: &Qp) -> Vec<Stale> {
    let blocks = usize::from(MOST_WRITTEN).min(qp.attr.sq_blocks as usize);
    let read = |block: usize| {
        let mut ctrl = [0; DS_BYTES];
        qp.queues.sq.read(block * WQEBB_BYTES, &mut ctrl).map_or([0; DS_BYTES], |()| ctrl)
    };
    (0..blocks).map(read).collect()
}

/// WQEs in the ring behind what the record and the doorbells say: written, and never announced.
fn written(qp: &Qp, report: &QpReport, before: &[Stale]) -> u16 {
    let Some(send) = report.send.filter(|_| qp.attr.inband.is_none() && report.blocks > 0) else {
        return 0;
    };
    let unseen = ahead(report.record, send.posted, report.blocks).unwrap_or(0);
    let (mut position, mut count) = (send.posted + u64::from(unseen), 0);
    let end = send.taken + u64::from(report.blocks);
    while count < MOST_WRITTEN && position < end {
        let mut ctrl = [0; DS_BYTES];
        let place = (position as usize & (report.blocks as usize - 1)) * WQEBB_BYTES;
        let read = qp.queues.sq.read(place, &mut ctrl);
        // The same as before a reset: of then or of now, and nobody can tell.
        if position < before.len() as u64 && before[position as usize] == ctrl {
            break;
        }
        let Some(ctrl) = read.ok().and_then(|()| Ctrl::parse(&ctrl).ok()) else { break };
        let is_next = ctrl.index == position as u16 && ctrl.qpn == qp.qpn && ctrl.ds > 0;
        if !is_next {
            break;
        }
        position += u64::from(ctrl.blocks());
        count += 1;
    }
    count
}

/// Receives that are posted and were taken, of a queue pair that has its own.
fn receives(qp: &Qp) -> Option<[u64; 2]> {
    if qp.attr.rq_wqes == 0 || qp.srq.is_some() {
        return None;
    }
    let word = qp.queues.dbr.load_u32(DBR_RCV_OFFSET, Ordering::Relaxed).ok()?;
    let taken = qp.receives().taken();
    let waiting = ahead(dbr_counter(word), taken, qp.attr.rq_wqes).unwrap_or(0);
    Some([taken + u64::from(waiting), taken])
}
