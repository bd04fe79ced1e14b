//! WQEs and payloads on their way out: kinds `record` and `payload`.
//!
//! What a doorbell or a doorbell record says is posted is looked at when the NIC learns of it: a copy of the WQE is
//! kept, and a digest of its payload. It is used after a while, and looked at again then and when it is complete,
//! before its CQE is written. It must be the same all the time: a NIC may read it at any of these moments, and again
//! whenever it sends again.

use std::collections::VecDeque;
use std::sync::Arc;

use super::edges::{self, Spot};
use super::{Finding, Kind, LONGEST_NS, State, wait_ns};
use crate::link::Rng;
use crate::objects::mr::{Regions, Right};
use crate::objects::qp::Qp;
use crate::queue::sq::{Scratch, SendQueue, Source};
use crate::service::outstanding::entries;
use crate::service::payload::Domain;
use crate::service::requester::StepContext;
use bellpush_mem::Dma;
use bellpush_wire::Iova;
use bellpush_wire::wqe::{Ctrl, DS_BYTES, WQEBB_BYTES, Wqe};

/// Bytes of payload that one digest stands for.
const PART_BYTES: u32 = 4096;

const CHANGED_PAYLOAD: &str = "payload changed before the WQE was complete";
const PAYLOAD_REMEDY: &str =
    "write there when a completion of this WQE, or of a later one, was polled";
const PAYLOAD_RULE: &str = "InfiniBand vol. 1, 10.8.3; ibv_post_send(3)";
const EARLY_RECORD: &str =
    "WQE written after the doorbell record, or a doorbell, said that it is there";
const RECORD_REMEDY: &str = "write the WQE, then (after a write barrier) the record, then ring";
const RECORD_RULE: &str = "mlx5 PRM, \"Posting a Work Request to a Work Queue\"";
const CHANGED_WQE: &str = "WQE overwritten before it was complete";
const WQE_REMEDY: &str = "reuse its place when a completion of it, or of a later one, was polled";
const WQE_RULE: &str = "mlx5 PRM, \"Send Queue\"; InfiniBand vol. 1, 10.8.3";

/// What is known of a queue pair's sends.
pub(crate) struct Sends {
    /// Position after the last block that is known to be posted.
    known: u64,
    /// Position of the first that was not looked at.
    seen: u64,
    /// When the newest is used.
    due_ns: u64,
    /// What was looked at and is not complete, oldest first.
    taken: VecDeque<Taken>,
    rng: Rng,
}

/// A WQE as it was when the NIC learned of it.
struct Taken {
    position: u64,
    blocks: u32,
    due_ns: u64,
    /// It may be carried out from now on.
    used: bool,
    /// It is right by itself.
    sound: bool,
    /// It writes to the memory of its own side.
    scatters: bool,
    /// Where that is.
    targets: Vec<Spot>,
    /// It begins when something before it is complete, and so does all behind it.
    waits: bool,
    bytes: Vec<u8>,
    payload: Vec<Part>,
}

/// A part of a payload, and its digest.
struct Part {
    key: (u32, Iova, u32),
    start: u32,
    bytes: u32,
    seen: Seen,
    /// What the NIC itself had written by then.
    written: u64,
}

/// What lay where.
#[derive(Clone, Copy)]
struct Seen {
    place: u64,
    digest: u64,
}

impl Sends {
    pub(super) fn new(rng: Rng) -> Self {
        Self { known: 0, seen: 0, due_ns: 0, taken: VecDeque::new(), rng }
    }

    /// The queue begins anew.
    pub(crate) fn reset(&mut self) {
        (self.known, self.seen, self.due_ns) = (0, 0, 0);
        self.taken.clear();
    }

    /// All before that position is posted.
    pub(crate) fn learn(&mut self, known: u64) {
        self.known = self.known.max(known);
    }

    /// Whether something is posted that the queue does not show yet.
    pub(crate) fn holds(&self, producer: u64) -> bool {
        self.known > producer
    }
}

/// Looks at what is newly posted, and shows the queue what is due; says when more is.
pub(crate) fn look(sq: &mut SendQueue, cx: &mut StepContext<'_>) -> Option<u64> {
    let qp = sq.qp.clone();
    let of = qp.adversary.as_deref()?;
    let mut sends = of.sends();
    if sends.known <= sq.producer() {
        return None;
    }
    let regions = qp.mrs.read();
    // What came by BlueFlame has left its place in the ring.
    sends.seen = sends.seen.max(sq.position());
    let blocks = u64::from(qp.attr.sq_blocks);
    let gone = sends.known.saturating_sub(blocks);
    while sends.taken.front().is_some_and(|it| it.position < gone) {
        sends.taken.pop_front();
    }
    let mut again = None;
    loop {
        while sends.seen < sends.known {
            let wait = wait_ns(&mut sends.rng);
            let span = (sends.seen, sends.known);
            let mut taken = take(sq, (span, &of.state), &sends.taken, &regions, cx.scratch);
            let wait = match (again.take(), taken.sound) {
                (Some(()), _) => 0,
                (None, true) => wait,
                // Time to write the WQE that is not there yet: it is told of as that then, and not as a wrong one.
                (None, false) => LONGEST_NS,
            };
            sends.due_ns = sends.due_ns.max(cx.now_ns + wait);
            taken.due_ns = sends.due_ns;
            sends.seen += u64::from(taken.blocks);
            sends.taken.push_back(taken);
        }
        match use_due(&mut sends, &of.state, sq, cx.now_ns) {
            Use::Done(next) => return next,
            Use::Changed => again = Some(()),
        }
    }
}

enum Use {
    /// What is due is shown; when more is.
    Done(Option<u64>),
    /// What follows is to be looked at again.
    Changed,
}

/// Shows the queue what is due.
fn use_due(sends: &mut Sends, state: &Arc<State>, sq: &mut SendQueue, now_ns: u64) -> Use {
    let first = sends.taken.iter().position(|it| !it.used);
    let Some(first) = first else { return Use::Done(None) };
    for i in first..sends.taken.len() {
        let it = &mut sends.taken[i];
        if it.due_ns > now_ns {
            return Use::Done(Some(it.due_ns));
        }
        if state.has(Kind::Record) && !is_the_same(&sq.qp, it.position, &it.bytes) {
            let why = (EARLY_RECORD, RECORD_REMEDY, RECORD_RULE);
            // Who wrote it late posted it.
            let now = ring_block(&sq.qp, it.position);
            report_wqe(state, &sq.qp, (it.position, it.bytes.len()), &now, why);
            sends.seen = it.position;
            sends.taken.truncate(i);
            return Use::Changed;
        }
        it.used = true;
        sq.show(it.position + u64::from(it.blocks));
    }
    Use::Done(None)
}

fn take(
    sq: &SendQueue,
    ((position, known), state): ((u64, u64), &Arc<State>),
    before: &VecDeque<Taken>,
    regions: &Regions,
    scratch: &mut Scratch,
) -> Taken {
    let (blocks, wqe) = sq.read_ring(position, (known - position) as u32, scratch);
    let blocks = blocks.max(1);
    let all = blocks as usize * WQEBB_BYTES;
    let used = Ctrl::parse(&scratch[..all]).map_or(all, |it| usize::from(it.ds) * DS_BYTES);
    let domain = Domain::of(&sq.qp, regions);
    let sound = wqe.is_ok();
    let scatters = wqe.as_ref().is_ok_and(|it| it.opcode.scatters());
    // What came by BlueFlame is not among those before.
    let reads = sq.qp.attr.blueflame || before.iter().any(|it| it.scatters);
    let waits = wqe.as_ref().is_ok_and(|it| it.opcode.waits() || it.flags.fence && reads);
    // What it waits for may still write its payload, or change what its keys mean.
    let is_set = !waits && !before.iter().any(|it| it.waits);
    let bytes = scratch[..used.clamp(DS_BYTES, all)].to_vec();
    let targets = wqe.as_ref().ok().filter(|it| it.opcode.scatters());
    let targets = targets.map_or_else(Vec::new, |it| edges::targets(it, &scratch[..all], domain));
    let payload = wqe.ok().filter(|_| is_set);
    if let Some(wqe) = payload.as_ref().filter(|it| gathers(it) && state.has(Kind::Payload)) {
        let pending = before.iter().map(|it| (it.position, &it.targets[..]));
        let posted = (&bytes[..], position);
        edges::look(state, &sq.qp, posted, edges::sources(wqe, &scratch[..all], domain), pending);
    }
    let payload = payload.map_or_else(Vec::new, |it| digests(&it, &scratch[..all], domain));
    let used = false;
    Taken { position, blocks, due_ns: 0, used, sound, scatters, targets, waits, bytes, payload }
}

/// Whether a WQE sends memory of its own side.
fn gathers(wqe: &Wqe) -> bool {
    !wqe.opcode.scatters() && !wqe.opcode.is_local()
}

/// Digests of the memory that a WQE gathers from.
fn digests(wqe: &Wqe, bytes: &[u8], domain: Domain<'_>) -> Vec<Part> {
    let mut parts = Vec::new();
    if !gathers(wqe) {
        return parts;
    }
    for sge in entries(wqe, bytes) {
        let key = (sge.lkey.0, sge.addr, sge.bytes);
        for start in (0..sge.bytes).step_by(PART_BYTES as usize) {
            let bytes = PART_BYTES.min(sge.bytes - start);
            // Before the look: what is written meanwhile is left out.
            let written = domain.regions.adversary.as_ref().map_or(0, |it| it.written());
            let seen = Seen { place: 0, digest: 0 };
            let part = Part { key, start, bytes, seen, written };
            let Some(seen) = part.read(domain) else { break };
            parts.push(Part { seen, ..part });
        }
    }
    parts
}

impl Part {
    /// What lies there now; `None` of a key that stands for parts of regions, which UMRs change as they come.
    fn read(&self, domain: Domain<'_>) -> Option<Seen> {
        domain.regions.memory(self.key.0)?;
        let range = self.start as usize..(self.start + self.bytes) as usize;
        let mut buffer = [0; PART_BYTES as usize];
        let (mut place, mut digest) = (0, 0u64);
        let walked =
            domain.regions.walk(domain.user, self.key, range, Right::Gather, &mut |span, n| {
                let bytes = &mut buffer[..n];
                place = super::writes::place(span.mem, span.offset);
                span.mem.read(span.offset, bytes).map_err(|_| crate::vendor::Vendor::Dma)?;
                digest = mix(digest, bytes);
                Ok(())
            });
        walked.ok().map(|()| Seen { place, digest })
    }

    /// Whether the program has changed it. Where the key means another place by now, or the NIC itself wrote, nobody can
    /// tell.
    fn is_changed(&self, domain: Domain<'_>, state: &State) -> bool {
        self.read(domain).is_some_and(|now| {
            now.place == self.seen.place
                && now.digest != self.seen.digest
                && !state.has_written(self.written, (now.place, self.bytes as usize))
        })
    }
}

/// As FNV-1a, over words. Each step can be undone: contents that differ in one word have different digests.
fn mix(digest: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    let add =
        |all: u64, word: u64| (all ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    words.fold(digest ^ bytes.len() as u64, add)
}

/// A WQE is complete; nobody was told yet.
pub(crate) fn complete(qp: &Qp, source: Source, position: u64) {
    let Some(of) = qp.adversary.as_deref().filter(|_| source == Source::Ring) else { return };
    let mut sends = of.sends();
    while sends.taken.front().is_some_and(|it| it.position < position) {
        sends.taken.pop_front();
    }
    let is_it = sends.taken.front().is_some_and(|it| it.position == position && it.used);
    let Some(taken) = is_it.then(|| sends.taken.pop_front()).flatten() else { return };
    drop(sends);
    if of.state.has(Kind::Record) && !is_the_same(qp, position, &taken.bytes) {
        let why = (CHANGED_WQE, WQE_REMEDY, WQE_RULE);
        return report_wqe(&of.state, qp, (position, taken.bytes.len()), &taken.bytes, why);
    }
    if of.state.has(Kind::Payload) {
        look_again(&of.state, qp, &taken);
    }
}

/// A WQE has failed, or was flushed: nothing is waited for, and it will fetch nothing. Nobody was told yet.
pub(crate) fn forget(qp: &Qp, source: Source, position: u64) {
    let Some(of) = qp.adversary.as_deref().filter(|_| source == Source::Ring) else { return };
    let mut sends = of.sends();
    while sends.taken.front().is_some_and(|it| it.position <= position) {
        sends.taken.pop_front();
    }
}

/// Whether the payload is as it was.
fn look_again(state: &Arc<State>, qp: &Qp, taken: &Taken) {
    // The engine holds these regions already: waiting behind a writer that waits for the engine would have no end.
    let Some(regions) = qp.mrs.try_read() else { return };
    let domain = Domain::of(qp, &regions);
    if let Some(part) = taken.payload.iter().find(|part| part.is_changed(domain, state)) {
        state.report(Finding {
            kind: Kind::Payload,
            qpn: qp.qpn,
            wqe: Some(taken.position as u16),
            behind: None,
            posted_at: state.files.line(&taken.bytes, (qp.qpn, taken.position as u16)),
            address: part.key.1.0.wrapping_add(part.start.into()),
            bytes: part.bytes,
            seen: CHANGED_PAYLOAD,
            remedy: PAYLOAD_REMEDY,
            rule: PAYLOAD_RULE,
        });
    }
}

/// Where a position of a queue pair's ring lies.
fn place(qp: &Qp, position: u64) -> usize {
    (position as usize & (qp.attr.sq_blocks as usize - 1)) * WQEBB_BYTES
}

/// Whether the ring holds these bytes at a position.
fn is_the_same(qp: &Qp, position: u64, bytes: &[u8]) -> bool {
    let start = place(qp, position);
    let before_end = (qp.attr.sq_blocks as usize * WQEBB_BYTES - start).min(bytes.len());
    let mut now = vec![0; bytes.len()];
    let (head, tail) = now.split_at_mut(before_end);
    let ring = &qp.queues.sq;
    let read = ring.read(start, head).and_then(|()| ring.read(0, tail));
    read.is_err() || now == bytes
}

/// The block at a position of a queue pair's ring; empty where the ring's memory is gone.
fn ring_block(qp: &Qp, position: u64) -> Vec<u8> {
    let mut block = vec![0; WQEBB_BYTES];
    qp.queues.sq.read(place(qp, position), &mut block).map_or_else(|_| Vec::new(), |()| block)
}

/// `posted` begins with the WQE as its poster wrote it.
fn report_wqe(
    state: &Arc<State>,
    qp: &Qp,
    (position, bytes): (u64, usize),
    posted: &[u8],
    (seen, remedy, rule): (&'static str, &'static str, &'static str),
) {
    state.report(Finding {
        kind: Kind::Record,
        qpn: qp.qpn,
        wqe: Some(position as u16),
        behind: None,
        posted_at: state.files.line(posted, (qp.qpn, position as u16)),
        address: place(qp, position) as u64,
        bytes: bytes as u32,
        seen,
        remedy,
        rule,
    });
}
