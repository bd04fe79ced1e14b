//! Calls of a program, as they go into a recording.

use std::sync::Arc;

use super::event::{Call, CqCall, Outcome, Place, QpCall, RegisterCall, SrqCall, SrqSort};
use super::log::Recorder;
use super::tap;
use crate::objects::cq::{CqAttr, CqLayout};
use crate::objects::mr::Reregister;
use crate::objects::qp::Objects;
use crate::objects::srq::SrqAttr;
use bellpush_mem::{Dma, View};
use bellpush_nic::{Access, Mr, NicError, QpAttr, Queues};
use bellpush_wire::Iova;

/// Carries out a call that comes from outside of the NIC. Where a recorder is there it is the thread's turn meanwhile,
/// and call and outcome are written down; not of a call that is part of another.
pub(crate) fn outside<T>(
    recorder: Option<&Arc<Recorder>>,
    call: impl FnOnce() -> Call,
    run: impl FnOnce() -> Result<T, NicError>,
    outcome: impl FnOnce(&T) -> Outcome,
) -> Result<T, NicError> {
    let Some(recorder) = recorder.filter(|recorder| !recorder.is_ours()) else { return run() };
    let turn = recorder.call(call());
    let result = run();
    recorder.done(turn, result.as_ref().map_or(Outcome::Refused, outcome));
    result
}

/// As [`outside`], of a call that returns nothing.
pub(crate) fn plainly(recorder: Option<&Arc<Recorder>>, call: Call, run: impl FnOnce()) {
    let run = || {
        run();
        Ok(())
    };
    // It refuses nothing.
    let _ = outside(recorder, || call, run, |&()| Outcome::Done);
}

/// Queues and regions of a program whose accesses a recorder sees.
pub(crate) mod hooked {
    use super::*;

    /// A view whose accesses are seen.
    pub(crate) fn view(recorder: &Arc<Recorder>, view: &View) -> (Place, View) {
        let region = recorder.number_region();
        let place = Place {
            region,
            addr: view.mem().addr(),
            bytes: view.mem().len() as u64,
            offset: view.offset() as u64,
            len: view.len() as u64,
        };
        (place, tap::queue(recorder, region, view))
    }

    /// A CQ's memory, and the call that makes one of it.
    pub(crate) fn cq(recorder: &Arc<Recorder>, attr: &CqAttr, layout: CqLayout) -> (Call, CqAttr) {
        let [ring, dbr, uar] = [&attr.ring, &attr.dbr, &attr.uar].map(|it| view(recorder, it));
        let call = CqCall {
            ring: ring.0,
            dbr: dbr.0,
            uar: uar.0,
            notify: attr.notify.is_some(),
            entry_bytes: layout.entry_bytes as u64,
            collapsed: layout.collapsed,
            overrun_ignored: layout.overrun_ignored,
            timestamp: layout.timestamp.is_some(),
        };
        let attr = CqAttr { ring: ring.1, dbr: dbr.1, uar: uar.1, notify: attr.notify.clone() };
        (Call::Cq(call), attr)
    }

    /// A shared receive queue's memory, and the call that makes one of it.
    pub(crate) fn srq(recorder: &Arc<Recorder>, attr: &SrqAttr, sort: SrqSort) -> (Call, SrqAttr) {
        let [ring, dbr] = [&attr.ring, &attr.dbr].map(|it| view(recorder, it));
        let (pd, stride_log, limit) = (attr.pd.number(), attr.stride_log, attr.limit);
        let call = SrqCall { pd, ring: ring.0, stride_log, dbr: dbr.0, limit, sort };
        (Call::Srq(call), SrqAttr { ring: ring.1, dbr: dbr.1, ..attr.clone() })
    }

    /// A queue pair's memory, and the call that makes one of it.
    pub(crate) fn qp(
        recorder: &Arc<Recorder>,
        attr: &QpAttr,
        queues: Queues,
        objects: &Objects,
    ) -> (Call, Queues) {
        if attr.inband.is_some() || attr.blueflame {
            let what = "a queue pair with an in-band window or BlueFlame buffer";
            return (Call::Other(what.into()), queues);
        }
        let [sq, rq, dbr, uar] =
            [&queues.sq, &queues.rq, &queues.dbr, &queues.uar].map(|it| view(recorder, it));
        let call = QpCall {
            kind: objects.kind,
            pd: objects.pd.number(),
            send_cq: objects.send_cq.number(),
            recv_cq: objects.recv_cq.as_ref().map(|cq| cq.number()),
            srq: objects.srq.as_ref().map(|srq| srq.number()),
            uidx: objects.uidx,
            sq_blocks: attr.sq_blocks,
            rq_wqes: attr.rq_wqes,
            rq_sges: attr.rq_sges,
            rnr_retry: attr.rnr_retry,
            ack_timeout: attr.ack_timeout,
            sq: sq.0,
            rq: rq.0,
            rq_stride_log: queues.rq_stride_log,
            dbr: dbr.0,
            uar: uar.0,
            order: queues.order,
        };
        let queues = Queues { sq: sq.1, rq: rq.1, dbr: dbr.1, uar: uar.1, ..queues };
        (Call::Qp(Box::new(call)), queues)
    }

    /// What a region is to be, and the call that changes it.
    pub(crate) fn changed(
        recorder: &Arc<Recorder>,
        mr: &Mr,
        change: Reregister,
    ) -> (Call, Reregister) {
        let (pd, access) = (change.pd.as_ref().map(|pd| pd.number()), change.access);
        let memory = change.memory.map(|(memory, iova)| {
            let region = recorder.number_region();
            let (addr, bytes) = (memory.place().unwrap_or(0), memory.bytes() as u64);
            ((region, addr, bytes, iova.0), (tap::region(recorder, region, memory), iova))
        });
        let (place, memory) = memory.unzip();
        let call = Call::Reregister { region: (*mr).into(), pd, memory: place, access };
        (call, Reregister { memory, ..change })
    }

    /// A region's memory, and the call that registers it.
    pub(crate) fn region(
        recorder: &Arc<Recorder>,
        pd: u32,
        memory: Arc<dyn Dma>,
        (iova, access): (Iova, Access),
        tag: Option<u8>,
    ) -> (Call, Arc<dyn Dma>) {
        let region = recorder.number_region();
        let (addr, bytes) = (memory.place().unwrap_or(0), memory.bytes() as u64);
        let call = RegisterCall { pd, region, addr, bytes, iova: iova.0, access, tag };
        (Call::Register(call), tap::region(recorder, region, memory))
    }
}
