//! What a NIC's queue pairs are at, in words: for people whose program, or kernel, stands still.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::SoftNic;
use crate::objects::cq::CqReport;
use crate::objects::qp::Qp;
use crate::queue::sq::SendQueue;
use crate::queue::uar::Rung;
use crate::service::outstanding::Outstanding;
use bellpush_nic::{QpState, QpType, QueuePair};
use bellpush_wire::Qpn;
use bellpush_wire::cqe::Syndrome;
use bellpush_wire::doorbell::{DBR_SND_OFFSET, Doorbell, UAR_DOORBELL_OFFSETS, ahead, dbr_counter};
use bellpush_wire::wqe::Opcode;

/// A queue pair at one moment: what its program says, and what the NIC knows. Indices of the send
/// queue count basic blocks of 64 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QpReport {
    /// Number.
    pub qpn: Qpn,
    /// Service.
    pub kind: QpType,
    /// State.
    pub state: QpState,
    /// Producer index in the doorbell record, modulo 2^16.
    pub record: u16,
    /// The doorbell registers of its UAR page, [`UAR_DOORBELL_OFFSETS`]; `None` where nobody has
    /// rung. Queue pairs may share a page, or a register, which then says who rang last.
    pub registers: [Option<Doorbell>; UAR_DOORBELL_OFFSETS.len()],
    /// Blocks of the send queue.
    pub blocks: u32,
    /// What the engine knows of the send queue; `None` when it is in a step and did not come out of
    /// it in time.
    pub send: Option<SendReport>,
    /// The CQ of its sends.
    pub send_cq: CqReport,
    /// The first CQE with an error since RESET that is not a flush: index of the WQE, syndrome, and
    /// the NIC's own code.
    pub error: Option<(u16, Syndrome, u8)>,
}

/// A send queue as its engine knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendReport {
    /// Blocks that are known to be posted, and that were taken, since RESET.
    pub posted: u64,
    /// As `posted`.
    pub taken: u64,
    /// Messages that were taken and are not complete.
    pub on_way: usize,
    /// Index and opcode of the oldest of those.
    pub oldest: Option<(u16, Opcode)>,
    /// What was last rung at registers of its page out of which doorbells are taken.
    pub(crate) rung: Rung,
}

impl SendReport {
    pub(crate) fn new(
        sq: &SendQueue,
        (on_way, oldest): (usize, Option<&Outstanding>),
        rung: Rung,
    ) -> Self {
        let oldest = oldest.map(|message| (message.counter, message.opcode));
        Self { posted: sq.producer(), taken: sq.position(), on_way, oldest, rung }
    }
}

impl QpReport {
    fn new(qp: &Qp, send: Option<SendReport>) -> Self {
        let taken = send.map_or_else(Rung::default, |send| send.rung);
        let register = |at: usize| {
            let word = qp.queues.uar.load_u64(UAR_DOORBELL_OFFSETS[at], Ordering::Relaxed);
            word.ok().filter(|&word| word != 0).or(taken[at]).map(Doorbell::parse)
        };
        let record = qp.queues.dbr.load_u32(DBR_SND_OFFSET, Ordering::Relaxed).unwrap_or(0);
        Self {
            qpn: qp.qpn,
            kind: qp.kind,
            state: QueuePair::state(qp),
            record: dbr_counter(record),
            registers: std::array::from_fn(register),
            blocks: qp.attr.sq_blocks,
            send,
            send_cq: qp.send_cq.report(),
            error: qp.first_error(),
        }
    }

    /// Whether something is to be done yet: posted, on its way, or only in the doorbell record.
    pub fn is_outstanding(&self) -> bool {
        let Some(send) = self.send else { return self.state == QpState::Rts };
        let unseen = ahead(self.record, send.taken, self.blocks).is_some_and(|n| n > 0);
        send.posted > send.taken || send.on_way > 0 || unseen
    }
}

impl fmt::Display for QpReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qpn, kind, state, record, .. } = self;
        write!(f, "queue pair {:#08x} ({kind:?}, {state:?}): doorbell record {record}", qpn.0)?;
        for (at, register) in UAR_DOORBELL_OFFSETS.iter().zip(self.registers) {
            let Some(bell) = register else { continue };
            write!(f, ", register {at:#x} {}", bell.next)?;
            if bell.qpn != *qpn {
                write!(f, " of queue pair {:#08x}", bell.qpn.0)?;
            }
        }
        match self.send {
            None => write!(f, "; its engine is in a step that does not end")?,
            Some(send) => {
                write!(f, "; {} blocks posted, {} taken", send.posted, send.taken)?;
                write!(f, ", {} messages on their way", send.on_way)?;
                if let Some((index, opcode)) = send.oldest {
                    write!(f, " (the oldest: WQE {index}, {opcode:?})")?;
                }
            }
        }
        write!(f, "; {}", self.send_cq)?;
        if let Some((index, syndrome, vendor)) = self.error {
            write!(f, "; first error: WQE {index}, {syndrome:?}, vendor {vendor:#04x}")?;
        }
        Ok(())
    }
}

impl SoftNic {
    /// What every queue pair is at, by number. An engine that does not come out of its step within
    /// `patience` is left alone: its queue pairs are reported without what it knows.
    pub fn reports(&self, patience: Duration) -> Vec<QpReport> {
        let of_engine: Vec<_> =
            self.device.engines.iter().map(|seat| seat.sends(patience)).collect();
        let report = |qp: &Arc<Qp>| {
            let sends = of_engine[qp.engine].as_ref();
            QpReport::new(qp, sends.and_then(|sends| sends.get(&qp.qpn.0).copied()))
        };
        // Only now, and only those that are not destroyed: the program takes a destroyed one's
        // queues back, maybe while an engine was waited for.
        let mut reports = self.device.look_at_all(report);
        reports.sort_by_key(|report| report.qpn.0);
        reports
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::SoftConfig;
    use bellpush_mem::{HostMem, View};
    use bellpush_nic::{Nic, QpAttr};

    #[test]
    fn a_queue_pair_that_is_destroyed_meanwhile_is_not_looked_at() {
        let attr = QpAttr {
            sq_blocks: 4,
            rq_wqes: 0,
            rq_sges: 0,
            send_cqes: 4,
            recv_cqes: 0,
            rnr_retry: 7,
            ack_timeout: 14,
            inband: None,
            blueflame: false,
        };
        let (nic, _engines) = SoftNic::manual(&SoftConfig::default()).unwrap();
        let memory = HostMem::alloc(nic.queue_bytes(&attr)).unwrap();
        let qp = nic.create(&attr, &View::new(&memory, 0, memory.len()).unwrap()).unwrap();
        assert_eq!(nic.reports(Duration::ZERO).len(), 1, "control");
        let patience = Duration::from_secs(20);
        let wait_for = |what: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !what() {
                assert!(start.elapsed() < patience);
                std::thread::yield_now();
            }
        };
        std::thread::scope(|s| {
            let seat = &nic.device.engines[0];
            let in_a_step = seat.control();
            let reports = s.spawn(|| nic.reports(patience));
            wait_for(&|| seat.is_waited_for());
            let qpn = qp.qpn;
            let destroyed = s.spawn({
                let nic: &Arc<SoftNic> = &nic;
                move || nic.destroy_qp(qpn).unwrap()
            });
            wait_for(&|| nic.device.qp(qpn.0).is_none());
            drop(in_a_step);
            destroyed.join().unwrap();
            assert_eq!(reports.join().unwrap(), []);
        });
    }
}
