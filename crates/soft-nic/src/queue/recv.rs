//! Receive WQEs: from a queue pair's own receive queue or from an SRQ.

use std::sync::atomic::Ordering;

use crate::contain::alone;
use crate::counters::Live;
use crate::objects::events::Event;
use crate::objects::qp::Qp;
use crate::vendor::Vendor;
use bellpush_mem::Dma;
use bellpush_nic::{QpState, QueuePair};
use bellpush_wire::Iova;
use bellpush_wire::cqe::{Cqe, CqeOpcode, Syndrome};
use bellpush_wire::doorbell::{DBR_RCV_OFFSET, ahead, dbr_counter};
use bellpush_wire::tm::{TagInfo, Told};
use bellpush_wire::wqe::{DS_BYTES, DataSeg, INVALID_LKEY, Sge};

/// Most scatter entries of a receive.
pub(crate) const MAX_RQ_SGES: usize = 32;

/// Where a queue pair's receives stand.
pub(crate) struct Receives {
    /// Receives consumed from the queue pair's own queue.
    ci: u64,
    /// Cleared when the queue pair is destroyed: its memory is not touched any more.
    alive: bool,
    /// The receive that was taken last: kept here, so that taking one moves no more than its
    /// entries.
    taken: Receive,
}

/// A receive WQE, copied out.
#[derive(Clone)]
pub(crate) struct Receive {
    /// What a CQE says of it.
    pub(crate) counter: u16,
    /// What a shared receive queue that matches tags says of the message.
    pub(crate) tag: Option<TagInfo>,
    entries: [Sge; MAX_RQ_SGES],
    count: usize,
}

/// How the completion of a receive says which it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    /// A WQE of a receive queue.
    Wqe(u16),
    /// The same, of a shared receive queue that has counted its message as unexpected.
    Unexpected(u16),
    /// The place of an entry in a list of tags.
    Entry(u16),
}

/// Without entries.
impl Default for Receive {
    fn default() -> Self {
        let none = Sge { addr: Iova(0), lkey: INVALID_LKEY, bytes: 0 };
        Self { counter: 0, tag: None, entries: [none; MAX_RQ_SGES], count: 0 }
    }
}

impl Receive {
    /// The memory of a list's entry, which a message has matched.
    pub(crate) fn of_tag(buffer: Option<Sge>, tag: TagInfo) -> Self {
        let mut receive = Self { tag: Some(tag), ..Self::default() };
        if let Some(buffer) = buffer {
            (receive.entries[0], receive.count) = (buffer, 1);
        }
        receive
    }

    /// What completes it.
    pub(crate) fn name(&self) -> Name {
        match self.tag.map(|tag| (tag.told, tag.index)) {
            None | Some((Told::NoTag, _)) => Name::Wqe(self.counter),
            Some((Told::Unexpected, _)) => Name::Unexpected(self.counter),
            Some((_, index)) => Name::Entry(index),
        }
    }

    /// Reads a list of data segments, which the invalid key may end early.
    pub(crate) fn read(&mut self, counter: u16, segments: &[u8]) {
        (self.counter, self.tag, self.count) = (counter, None, 0);
        for (seg, entry) in segments.chunks_exact(DS_BYTES).zip(&mut self.entries) {
            let sge = Sge::parse(&bytemuck::pod_read_unaligned::<DataSeg>(seg));
            if sge.lkey == INVALID_LKEY {
                break;
            }
            *entry = sge;
            self.count += 1;
        }
    }

    pub(crate) fn entries(&self) -> &[Sge] {
        &self.entries[..self.count]
    }
}

impl Receives {
    pub(crate) fn new() -> Self {
        Self { ci: 0, alive: true, taken: Receive::default() }
    }

    pub(crate) fn kill(&mut self) {
        self.alive = false;
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive
    }

    /// Receives of the queue pair's own queue that were taken.
    pub(crate) fn taken(&self) -> u64 {
        self.ci
    }

    pub(crate) fn reset(&mut self) {
        self.ci = 0;
    }

    /// Takes the next receive, if one is posted.
    pub(crate) fn take(&mut self, qp: &Qp) -> Option<&Receive> {
        let there = self.alive
            && match (&qp.srq, &qp.xrc) {
                (Some(srq), _) => srq.take(&mut self.taken),
                (None, Some(xrc)) => xrc.srq().is_some_and(|srq| srq.take(&mut self.taken)),
                (None, None) => self.take_own(qp),
            };
        there.then_some(&self.taken)
    }

    fn has_own(&self, qp: &Qp) -> bool {
        if !self.alive || qp.attr.rq_wqes == 0 {
            return false;
        }
        // Acquire: the receive WQEs were written before the record.
        let word = qp.queues.dbr.load_u32(DBR_RCV_OFFSET, Ordering::Acquire).unwrap_or(0);
        let posted = ahead(dbr_counter(word), self.ci, qp.attr.rq_wqes);
        posted.is_some_and(|n| n > 0)
    }

    fn take_own(&mut self, qp: &Qp) -> bool {
        if !self.has_own(qp) {
            return false;
        }
        let stride = 1usize << qp.queues.rq_stride_log;
        let mut bytes = [0; MAX_RQ_SGES * DS_BYTES];
        let at = (self.ci % u64::from(qp.attr.rq_wqes)) as usize * stride;
        let bytes = &mut bytes[..stride];
        qp.queues.rq.read(at, bytes).expect("the ring was checked when it was created");
        self.taken.read(self.ci as u16, bytes);
        self.ci += 1;
        true
    }

    /// Flushes receives posted to a queue pair in ERR, a ring of them at most: a program that posts
    /// as fast must not keep the engine here. Says whether there were any. Those of an SRQ are not
    /// the queue pair's.
    pub(crate) fn flush(&mut self, qp: &Qp) -> bool {
        let mut any = false;
        for _ in 0..qp.attr.rq_wqes {
            if qp.srq.is_some() || !self.has_own(qp) {
                break;
            }
            any = true;
            flush(qp, Name::Wqe(self.ci as u16));
            self.ci += 1;
        }
        any
    }
}

/// While the payload of a receive that was taken moves: a panic in that would lose the receive.
pub(crate) struct Moving<'a> {
    pub(crate) qp: &'a Qp,
    pub(crate) taken: Name,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let news = QueuePair::state(self.qp) != QpState::Err;
            // A second panic that leaves this would end the process. ERR first: whoever sees the CQE
            // finds the queue pair in the state it implies.
            alone(|| self.qp.set_error());
            alone(|| flush(self.qp, self.taken));
            if news {
                alone(|| self.qp.events.push(Event::QpFatal(self.qp.qpn)));
            }
        }
    }
}

/// Completes a receive that is not carried out because its queue pair failed.
pub(crate) fn flush(qp: &Qp, taken: Name) {
    fail(qp, taken, Syndrome::WrFlush, Vendor::Flush);
}

/// Completes a receive with an error. A full CQ is counted; there is no other place to say it.
pub(crate) fn fail(qp: &Qp, taken: Name, syndrome: Syndrome, vendor: Vendor) {
    discount(qp, taken);
    let cqe = match taken {
        Name::Wqe(counter) | Name::Unexpected(counter) => {
            Cqe::error(CqeOpcode::RespErr, qp.qpn, counter, syndrome, vendor as u8)
        }
        Name::Entry(index) => cancelled(qp, index),
    };
    qp.complete_receive(&cqe);
}

/// The queue pair that has taken a receive goes, or to RESET. Of itself it says nothing any more;
/// but what a list of tags has given it would be missed there.
pub(crate) fn lose(qp: &Qp, taken: Name) {
    discount(qp, taken);
    if let (Name::Entry(index), Some(srq)) = (taken, &qp.srq)
        && srq.complete(&cancelled(qp, index)).is_err()
    {
        Live::add(&qp.counters.cq_overruns, 1);
    }
}

/// The message will not be told as unexpected.
pub(crate) fn discount(qp: &Qp, taken: Name) {
    if let (Name::Unexpected(_), Some(tags)) = (taken, qp.srq.as_ref().and_then(|srq| srq.tags())) {
        tags.list().discount_unexpected();
    }
}

/// An error's CQE would give a WQE of the receive queue back, of which none was taken.
fn cancelled(qp: &Qp, index: u16) -> Cqe {
    let tag = Some(TagInfo::message(Told::Cancelled, index, [0; 16]));
    Cqe { opcode: CqeOpcode::RespSend, tag, ..Cqe::requester(qp.qpn, 0, 0, 0) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use crate::{CqAttr, Objects, SoftConfig, SoftNic};
    use bellpush_mem::{HostMem, View};
    use bellpush_nic::{Nic, QpAttr, QpType};
    use bellpush_wire::doorbell::{
        CqArm, DBR_CQ_ARM_OFFSET, DBR_CQ_CI_OFFSET, cq_ci_word, dbr_word,
    };

    use super::*;

    #[test]
    fn receives_that_are_posted_while_others_are_flushed_wait_for_their_turn() {
        const MOST: u64 = 1000;
        let attr = QpAttr {
            sq_blocks: 4,
            rq_wqes: 4,
            rq_sges: 1,
            send_cqes: 4,
            recv_cqes: 4,
            rnr_retry: 7,
            ack_timeout: 14,
            inband: None,
            blueflame: false,
        };
        let (nic, mut engines) = SoftNic::manual(&SoftConfig::default()).unwrap();
        let memory = HostMem::alloc(nic.queue_bytes(&attr)).unwrap();
        let queues = SoftNic::place(&attr, &View::new(&memory, 0, memory.len()).unwrap()).unwrap();
        // Whoever is told of a flush takes it, posts another, and asks to be told of that.
        let (rq, cq) = (queues.dbr.clone(), queues.recv_cq_dbr.clone());
        let post = move |n: u64| {
            let arm = CqArm { sequence: n as u8 & 3, solicited_only: false, ci: n as u32 };
            cq.store_u32(DBR_CQ_CI_OFFSET, cq_ci_word(n), Ordering::Release).unwrap();
            cq.store_u32(DBR_CQ_ARM_OFFSET, arm.emit(), Ordering::Release).unwrap();
            rq.store_u32(DBR_RCV_OFFSET, dbr_word(MOST.min(n + 1) as u16), Ordering::Release)
                .unwrap();
        };
        let (flushed, first) = (Arc::new(AtomicU64::new(0)), post.clone());
        let counted = flushed.clone();
        let notify = Arc::new(move |_| post(counted.fetch_add(1, Ordering::Relaxed) + 1));
        let cq = |ring: &View, dbr: &View, notify| {
            let (ring, dbr, uar) = (ring.clone(), dbr.clone(), queues.uar.clone());
            nic.create_cq(&CqAttr { ring, dbr, uar, notify }).unwrap()
        };
        let objects = Objects {
            kind: QpType::Rc,
            pd: nic.default_pd().clone(),
            send_cq: cq(&queues.send_cq, &queues.send_cq_dbr, None),
            recv_cq: Some(cq(&queues.recv_cq, &queues.recv_cq_dbr, Some(notify))),
            srq: None,
            uidx: 0,
        };
        let qp = nic.create_with(&attr, queues.clone(), objects).unwrap();
        first(0);
        qp.modify(QpState::Err, &Default::default()).unwrap();
        engines[0].step(0);
        assert_eq!(flushed.load(Ordering::Relaxed), 4, "a ring of them");
        (1..MOST).for_each(|now| _ = engines[0].step(now));
        assert_eq!(flushed.load(Ordering::Relaxed), MOST, "the others later");
    }
}
