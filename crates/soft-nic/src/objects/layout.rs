//! What a queue pair is made of: the checks of its attributes, and where its queues lie in memory.

use crate::objects::cq::MAX_CQES;
use crate::objects::qp::Objects;
use crate::queue::recv::MAX_RQ_SGES;
use bellpush_mem::{PAGE_BYTES, View};
use bellpush_nic::{NicError, Order, QpAttr, QpType, QueueMemory, Queues};
use bellpush_wire::cqe::CQE_BYTES;
use bellpush_wire::doorbell::UAR_BYTES;
use bellpush_wire::wqe::{DS_BYTES, WQEBB_BYTES};

/// Largest ring: the send and receive counters have 16 bits, and a counter that lies more than a
/// ring ahead must be recognisable as stale. In a ring of this size one that lies exactly a ring
/// behind is not.
pub(crate) const MAX_RING: u64 = 1 << 15;
/// Largest in-band slot.
const MAX_SLOT_BYTES: u64 = 1 << 20;

fn power_of_two(what: &'static str, value: u64, most: u64) -> Result<(), NicError> {
    if value.is_power_of_two() && value <= most {
        return Ok(());
    }
    Err(NicError::Attribute { what, value, must: "a power of two within the NIC's limit" })
}

/// Checks what a queue pair is to be made of.
pub(crate) fn check(attr: &QpAttr) -> Result<(), NicError> {
    let refuse = |what, value: u64, must| Err(NicError::Attribute { what, value, must });
    if attr.sq_blocks > 0 {
        power_of_two("send queue's blocks", attr.sq_blocks.into(), MAX_RING)?;
    } else if attr.inband.is_some() || attr.blueflame {
        let must = "some for in-band slots and BlueFlame";
        return refuse("send queue's blocks", 0, must);
    }
    power_of_two("send CQ's entries", attr.send_cqes.into(), MAX_CQES)?;
    if attr.rq_wqes > 0 {
        power_of_two("receive queue's WQEs", attr.rq_wqes.into(), MAX_RING)?;
        power_of_two("receive's scatter entries", attr.rq_sges.into(), MAX_RQ_SGES as u64)?;
    }
    if attr.rq_wqes > 0 || attr.recv_cqes > 0 {
        power_of_two("receive CQ's entries", attr.recv_cqes.into(), MAX_CQES)?;
    }
    if attr.rnr_retry > 7 {
        return refuse("RNR retry count", attr.rnr_retry.into(), "0..=7");
    }
    if attr.ack_timeout > 31 {
        return refuse("local ACK timeout's code", attr.ack_timeout.into(), "0..=31");
    }
    let Some(inband) = &attr.inband else { return Ok(()) };
    if attr.blueflame {
        return refuse("BlueFlame", 1, "off for an in-band queue pair");
    }
    let slot_bytes = u64::from(inband.slot_bytes);
    if slot_bytes == 0 || slot_bytes % 64 != 0 || slot_bytes > MAX_SLOT_BYTES {
        return refuse("slot's bytes", slot_bytes, "a multiple of 64, at most 1 MiB");
    }
    if inband.slots == 0 || u64::from(inband.slots) > MAX_RING {
        return refuse("number of slots", inband.slots.into(), "1..=32768");
    }
    if slot_bytes * u64::from(inband.slots) > inband.window.len() as u64 {
        return refuse("window's bytes", inband.window.len() as u64, "at least slots * slot_bytes");
    }
    if inband.window.offset() % 64 != 0 {
        return refuse("window's offset", inband.window.offset() as u64, "a multiple of 64");
    }
    if inband.seq0 == 0 || inband.seq0 > inband.line.modulus() {
        return refuse("first sequence", inband.seq0.into(), "1..=the line format's largest");
    }
    Ok(())
}

/// Offsets of a queue pair's parts in its memory, in the order of [`Queues`], and the total.
///
/// The UAR page comes first, so that it starts a page where the memory does.
struct Layout {
    sq: (usize, usize),
    rq: (usize, usize),
    rq_stride_log: u32,
    dbrs: usize,
    send_cq: (usize, usize),
    recv_cq: (usize, usize),
    total: usize,
}

fn layout(attr: &QpAttr) -> Layout {
    let stride = if attr.rq_wqes == 0 { DS_BYTES } else { attr.rq_sges as usize * DS_BYTES };
    let mut at = UAR_BYTES;
    let mut take = |bytes: usize| {
        let start = at;
        at = (at + bytes).next_multiple_of(WQEBB_BYTES);
        (start, bytes)
    };
    let (dbrs, _) = take(3 * WQEBB_BYTES); // a line each: they are written by different sides
    let sq = take(attr.sq_blocks as usize * WQEBB_BYTES);
    let rq = take(attr.rq_wqes as usize * stride);
    let send_cq = take(attr.send_cqes as usize * CQE_BYTES);
    let recv_cq = take(attr.recv_cqes as usize * CQE_BYTES);
    let total = at.next_multiple_of(PAGE_BYTES);
    Layout { sq, rq, rq_stride_log: stride.trailing_zeros(), dbrs, send_cq, recv_cq, total }
}

/// Bytes of memory that [`place`] takes.
pub(crate) fn queue_bytes(attr: &QpAttr) -> usize {
    layout(attr).total
}

/// Lays the queues out in memory.
pub(crate) fn place(attr: &QpAttr, memory: &View) -> Result<Queues, NicError> {
    if !memory.offset().is_multiple_of(WQEBB_BYTES) {
        let (value, must) = (memory.offset() as u64, "a multiple of 64");
        return Err(NicError::Attribute { what: "queue memory's offset", value, must });
    }
    let l = layout(attr);
    let part = |(start, bytes): (usize, usize)| memory.part(start, bytes);
    Ok(Queues {
        sq: part(l.sq)?,
        rq: part(l.rq)?,
        rq_stride_log: l.rq_stride_log,
        dbr: part((l.dbrs, 8))?,
        uar: part((0, UAR_BYTES))?,
        order: Order::Later,
        send_cq: part(l.send_cq)?,
        send_cq_dbr: part((l.dbrs + WQEBB_BYTES, 8))?,
        recv_cq: part(l.recv_cq)?,
        recv_cq_dbr: part((l.dbrs + 2 * WQEBB_BYTES, 8))?,
    })
}

/// Lays the queues out in memory of several pieces.
pub(crate) fn place_apart(attr: &QpAttr, memory: QueueMemory) -> Result<Queues, NicError> {
    check(attr)?;
    let QueueMemory { main, sq, dbr, send_cq } = memory;
    let q = place(attr, &main)?;
    Ok(Queues {
        sq: sq.unwrap_or(q.sq),
        dbr: dbr.unwrap_or(q.dbr),
        send_cq: send_cq.unwrap_or(q.send_cq),
        ..q
    })
}

/// Checks that queues which lie anywhere are as long as the attributes say.
fn fits(attr: &QpAttr, q: &Queues) -> Result<(), NicError> {
    let l = layout(attr);
    for (what, view, bytes) in [
        ("send queue's bytes", &q.sq, l.sq.1),
        ("receive queue's bytes", &q.rq, l.rq.1),
        ("doorbell record's bytes", &q.dbr, 8),
        ("UAR page's bytes", &q.uar, UAR_BYTES),
    ] {
        long_enough(what, view, bytes)?;
    }
    if attr.rq_wqes > 0 && q.rq_stride_log != l.rq_stride_log {
        let (value, must) = (q.rq_stride_log.into(), "log2 of 16 bytes a scatter entry");
        return Err(NicError::Attribute { what: "receive stride", value, must });
    }
    Ok(())
}

/// Checks the queues of CQs that a queue pair has for itself.
pub(crate) fn cqs_fit(attr: &QpAttr, q: &Queues) -> Result<(), NicError> {
    let l = layout(attr);
    let recv_dbr = if attr.recv_cqes > 0 { 8 } else { 0 };
    for (what, view, bytes) in [
        ("send CQ's bytes", &q.send_cq, l.send_cq.1),
        ("send CQ's doorbell record's bytes", &q.send_cq_dbr, 8),
        ("receive CQ's bytes", &q.recv_cq, l.recv_cq.1),
        ("receive CQ's doorbell record's bytes", &q.recv_cq_dbr, recv_dbr),
    ] {
        long_enough(what, view, bytes)?;
    }
    Ok(())
}

fn long_enough(what: &'static str, view: &View, bytes: usize) -> Result<(), NicError> {
    if view.len() < bytes || !view.offset().is_multiple_of(8) {
        let (value, must) = (view.len() as u64, "what the attributes ask for, 8-byte aligned");
        return Err(NicError::Attribute { what, value, must });
    }
    Ok(())
}

/// Checks that a queue pair's objects go together with its rings.
pub(crate) fn uses(attr: &QpAttr, q: &Queues, objects: &Objects) -> Result<(), NicError> {
    let refuse = |what, value: u64, must| Err(NicError::Attribute { what, value, must });
    let receives = attr.rq_wqes > 0 || objects.srq.is_some();
    if receives && objects.recv_cq.is_none() {
        return refuse("receive CQ", 0, "there for a queue pair with receives");
    }
    if let Some(srq) = &objects.srq {
        if attr.rq_wqes > 0 {
            return refuse("receive queue's WQEs", attr.rq_wqes.into(), "0 with an SRQ");
        }
        if srq.pd().number() != objects.pd.number() {
            let must = "the queue pair's";
            return refuse("SRQ's protection domain", srq.pd().number().into(), must);
        }
    }
    if objects.kind != QpType::Rc && (attr.inband.is_some() || attr.blueflame) {
        return refuse("in-band window or BlueFlame", 1, "off but for reliable connections");
    }
    if matches!(objects.kind, QpType::XrcSend | QpType::Dci) && receives {
        return refuse("receives of XRC's or DC's sending end", 1, "none");
    }
    if objects.kind == QpType::Dct && objects.srq.is_none() {
        return refuse("SRQ of a DC target", 0, "there");
    }
    if objects.uidx > 0xff_ffff {
        return refuse("user index", objects.uidx.into(), "24 bits");
    }
    fits(attr, q)
}
