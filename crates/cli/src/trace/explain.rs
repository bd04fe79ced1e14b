//! What each queue of a trace waits for, a line each.

use std::collections::HashMap;
use std::path::Path;

use bellpush::abi::wire::Code;
use bellpush::wire::cqe::Syndrome;

use super::chrome::{Trace, TraceError};
use super::ends::{BlockEnd, CqEnd, Ends, KernelsEnd, ProgramEnd, QueueEnd, Stage};
use super::queue::{GONE, nak};
use crate::decode::syndrome;
use crate::report::human::printable;

/// What has been going on for less than this when a trace ends stands still for no reason; a program of which nothing came
/// for longer, while others went on, stood still itself.
pub(super) const SOON_NS: u64 = 100_000_000;

/// Says for each program, queue pair and CQ of a trace what happened last and what it waits for, a line each.
///
/// # Errors
/// [`TraceError`].
pub fn explain(path: &Path) -> Result<Vec<String>, TraceError> {
    Ok(lines(&Trace::read_ends(path)?))
}

/// What a trace ends with, by what it is looked up by: a file may have very many of each.
#[derive(Default)]
struct Found<'a> {
    queues: HashMap<u32, Vec<&'a QueueEnd>>,
    cqs: HashMap<u32, Vec<&'a CqEnd>>,
    /// By its own number and its peer's: the first.
    connected: HashMap<(u32, u32), &'a QueueEnd>,
    /// By its device and number: the first.
    numbered: HashMap<(u32, u32), &'a CqEnd>,
}

impl<'a> Found<'a> {
    fn new(ends: &'a Ends) -> Self {
        let mut found = Self::default();
        for queue in &ends.queues {
            found.queues.entry(queue.pid).or_default().push(queue);
            if let Some(peer) = queue.peer {
                found.connected.entry((queue.qpn, peer)).or_insert(queue);
            }
        }
        for cq in &ends.cqs {
            found.cqs.entry(cq.pid).or_default().push(cq);
            found.numbered.entry((cq.pid, cq.number)).or_insert(cq);
        }
        found
    }
}

pub(super) fn lines(ends: &Ends) -> Vec<String> {
    let (mut lines, mut found) = (Vec::new(), Found::new(ends));
    // Traces of one host are of one clock.
    let latest_ns = ends.programs.iter().map(|program| program.end_ns).max().unwrap_or(0);
    for program in &ends.programs {
        lines.push(printable(&said_of_program(program, latest_ns)));
        // Once, however often the file names a device.
        for queue in found.queues.remove(&program.pid).unwrap_or_default() {
            let peer = queue.peer.and_then(|peer| found.connected.get(&(peer, queue.qpn)));
            lines.push(printable(&said_of_queue(queue, peer.copied(), &found, program.end_ns)));
        }
        for cq in found.cqs.remove(&program.pid).unwrap_or_default() {
            lines.extend(said_of_cq(cq).map(|line| printable(&line)));
        }
    }
    for kernels in &ends.kernels {
        lines.push(printable(&said_of_kernels(kernels)));
        let said = kernels.blocks.iter().map(|block| said_of_block(block, kernels.end_ns));
        lines.extend(said.map(|line| printable(&line)));
    }
    lines
}

/// A time before the trace's end.
fn ago(end_ns: u64, ns: u64) -> String {
    let ns = end_ns.saturating_sub(ns);
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1000),
        10_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

fn said_of_program(program: &ProgramEnd, latest_ns: u64) -> String {
    let ProgramEnd { name, closed, end_ns, waits, faults, lost, .. } = program;
    let mut line = format!("{name}: {}", if *closed { "closed" } else { "not closed" });
    for wait in waits {
        let how = if wait.armed { "waits for an event" } else { "polls in vain" };
        line += &format!("; thread {} {how} since {}", wait.thread, ago(*end_ns, wait.since_ns));
    }
    if !closed && latest_ns.saturating_sub(*end_ns) >= SOON_NS {
        line += &format!("; nothing came of it in the last {}", ago(latest_ns, *end_ns));
    }
    for (fault, count) in faults {
        line += &format!("; fault {fault} of the script struck {}", times(*count));
    }
    if lost[0] > 0 {
        line += &format!("; the oldest {} events are lost", lost[0]);
    }
    if lost[1] > 0 {
        line += &format!("; {} objects are unknown", lost[1]);
    }
    line
}

fn times(count: u64) -> String {
    if count == 1 { "once".into() } else { format!("{count} times") }
}

fn wqes(count: u64) -> String {
    if count == 1 { "1 WQE".into() } else { format!("{count} WQEs") }
}

fn said_of_queue(
    queue: &QueueEnd,
    peer: Option<&QueueEnd>,
    found: &Found<'_>,
    end_ns: u64,
) -> String {
    // A DCI goes on after an error of one peer.
    let why = if queue.error.is_some() && queue.state != "RTS" {
        failed(queue)
    } else {
        stuck(queue, peer, end_ns).or_else(|| unpolled(queue, found)).unwrap_or_else(|| idle(queue))
    };
    let QueueEnd { qpn, kind, state, last, .. } = queue;
    let last = match &**last {
        "" => String::new(),
        last => format!(" (last: {last}, {} before the end)", ago(end_ns, queue.last_ns)),
    };
    format!("QP {qpn:#x} ({kind}, {state}): {why}{last}")
}

fn failed(queue: &QueueEnd) -> String {
    let (index, code, vendor) = queue.error.unwrap_or_default();
    let name =
        Syndrome::from_code(code).map_or_else(|| format!("syndrome {code:#04x}"), syndrome::name);
    let nak =
        queue.nak.map_or(String::new(), |code| format!(", after the peer's NAK: {}", nak(code)));
    format!("in error since WQE {index} ended with {name} (vendor {vendor:#04x}){nak}")
}

/// What holds the queue pair up, if anything does.
fn stuck(queue: &QueueEnd, peer: Option<&QueueEnd>, end_ns: u64) -> Option<String> {
    if !queue.answered {
        return Some("its engine is in a step that does not end".into());
    }
    if let Some(why) = unacknowledged(queue, peer, end_ns) {
        return Some(why);
    }
    let known = queue.fetched;
    if queue.state == GONE {
        return None;
    }
    if queue.posted > 0 {
        let why = match &*queue.state {
            "RTS" if end_ns.saturating_sub(queue.last_ns) < SOON_NS => {
                "the NIC had not come to them when the trace ended".into()
            }
            "RTS" => "the NIC has not come to them".into(),
            state => format!("the queue pair is in {state}, and sends from RTS on"),
        };
        return Some(format!("{} blocks are posted and not fetched: {why}", queue.posted));
    }
    let unrung = u64::from(queue.announced) + u64::from(queue.written);
    if unrung > 0 {
        let (index, posted) = (queue.next & 0xffff, known.saturating_add(unrung));
        let what = match queue.announced {
            0 => {
                "it stands in the ring, and neither the doorbell record nor a doorbell tells of it"
            }
            _ => "the doorbell record tells of it, and no doorbell was rung",
        };
        let posted = wqes(posted);
        return Some(format!("{posted} posted, doorbell seen for {known}: index {index}: {what}"));
    }
    if queue.refused > 0 {
        let since = ago(end_ns, queue.refused_ns);
        let refused = queue.refused;
        return Some(format!(
            "RNR: its own receive queue is empty; {refused} RNR NAKs sent, the last {since} before the end"
        ));
    }
    let blocks = u64::from(queue.blocks);
    if blocks > 0 && queue.unreported >= blocks && queue.done == queue.fetched {
        return Some(format!(
            "no credit: all {blocks} blocks of the ring are done, and none since asked for a CQE that says so"
        ));
    }
    None
}

fn unacknowledged(queue: &QueueEnd, peer: Option<&QueueEnd>, end_ns: u64) -> Option<String> {
    let oldest = queue.oldest.as_ref().filter(|_| queue.on_way > 0)?;
    let what = format!("WQE {} ({}, {} B)", oldest.index, oldest.opcode, oldest.bytes);
    let more = if queue.on_way > 1 {
        format!(" and {} behind it", queue.on_way - 1)
    } else {
        String::new()
    };
    if queue.rnr > 0 {
        let receives = peer.and_then(|peer| peer.receives);
        let known = receives.map_or(String::new(), |n| format!(", which has {n} receives posted"));
        let said = ago(end_ns, queue.rnr_ns);
        return Some(format!(
            "RNR: the peer's receive queue is empty{known}: {what}{more}, {} RNR NAKs, the last {said} before the end",
            queue.rnr
        ));
    }
    if oldest.sent_ns == 0 {
        return Some(format!(
            "{what}{more} fetched, and not sent: it waits for what is before it, or for room"
        ));
    }
    let since = end_ns.saturating_sub(queue.done_ns.max(oldest.sent_ns));
    let silent = ago(since, 0);
    let has = |peer: &QueueEnd| {
        let distance = peer.placed_psn.map(|psn| psn.wrapping_sub(oldest.psn) & 0xff_ffff);
        distance.is_some_and(|distance| distance < 1 << 23)
    };
    let why = match peer {
        Some(peer) if peer.state == "ERR" => "the peer is in ERR, and answers nobody",
        Some(peer) if peer.state == GONE => "the peer was destroyed",
        _ if queue.timeouts == 0 && since < SOON_NS => "it was under way when the trace ended",
        Some(peer) if has(peer) => "the peer has placed it: its acknowledgement is lost",
        Some(_) => "it has not come to the peer",
        None => "peer silent",
    };
    let (timeouts, resent) = (queue.timeouts, queue.resent);
    Some(format!(
        "{what}{more} sent, no acknowledgement since {silent}: {why}; {timeouts} timeouts, {resent} packets sent again"
    ))
}

fn waiting(cq: &CqEnd) -> Option<u64> {
    cq.taken.map(|taken| cq.written.saturating_sub(taken)).filter(|&waiting| waiting > 0)
}

fn unpolled(queue: &QueueEnd, found: &Found<'_>) -> Option<String> {
    let of = |number| found.numbered.get(&(queue.pid, number));
    let cq = queue.cqs.into_iter().filter_map(of).find(|cq| waiting(cq).is_some())?;
    let cqes = match waiting(cq)? {
        1 => "1 CQE that was".into(),
        n => format!("{n} CQEs that were"),
    };
    Some(format!("all that is posted is done; CQ {:#x} has {cqes} not polled", cq.number))
}

fn idle(queue: &QueueEnd) -> String {
    let receives = queue.receives.map_or(String::new(), |n| format!(", {n} receives posted"));
    let QueueEnd { done, placed, state, .. } = queue;
    if state.is_empty() && *done == 0 && *placed == 0 {
        return "nothing is known of it: its events are lost".into();
    }
    format!("waits for nothing: {} done, {placed} messages placed{receives}", wqes(*done))
}

fn said_of_cq(cq: &CqEnd) -> Option<String> {
    let CqEnd { number, entries, written, .. } = cq;
    if cq.overran {
        return Some(format!(
            "CQ {number:#x}: overran: {written} CQEs written, {entries} entries, not polled in time"
        ));
    }
    let waiting = waiting(cq)?;
    let full = if waiting >= *entries && *entries > 0 { "full: " } else { "" };
    Some(format!("CQ {number:#x}: {full}{waiting} of {written} CQEs written and not polled"))
}

fn said_of_kernels(kernels: &KernelsEnd) -> String {
    let KernelsEnd { name, marks, lost, within_ns, .. } = kernels;
    let lost = if *lost > 0 { format!("; {lost} more are lost") } else { String::new() };
    format!("{name}: {marks} marks, within {within_ns} ns{lost}")
}

fn said_of_block(block: &BlockEnd, end_ns: u64) -> String {
    let BlockEnd { block: number, stage, since_ns, round, message, qpn, status } = block;
    let qp = if *qpn == 0 { String::new() } else { format!("; QP {qpn:#x}") };
    let what = format!("message {message} ({round}{qp})");
    let since = ago(end_ns, *since_ns);
    let said = match stage {
        Stage::None => "no put was called".into(),
        Stage::Called => format!("put of {what} has not returned since {since}"),
        Stage::Returned => {
            format!("{what} is not known to be complete, put returned {since} before the end")
        }
        Stage::Complete => {
            format!("all messages are complete, the last {what}, {since} before the end")
        }
        Stage::Failed => {
            let why = Code::check(*status).err().map_or(String::new(), |code| format!(": {code}"));
            format!("{what} failed {since} before the end{why}")
        }
    };
    format!("block {number}: {said}")
}
