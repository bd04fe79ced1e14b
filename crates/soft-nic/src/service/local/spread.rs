//! Runs: consecutive WRITEs that continue each other at the peer, whose bytes several threads copy.
//!
//! Nothing is seen of it but the time. The engine that owns the queue pair takes WQEs in order and checks them as if
//! it carried them out, and completes them in order, each when all bytes up to its own have been copied. What is not
//! part of the run (an atomic, a SEND, a READ, a WRITE elsewhere or to the same place) is looked at when all of it is
//! complete. Within a run bytes arrive in any order; it contains no two WRITEs to one place, nor one of which another
//! reads what it writes, nor a short one, which may be a flag that stands for the data before it.

use std::ops::Range;

use crate::copy::piece::{Ends, Outcome, Piece};
use crate::copy::{Run, Taken, pause};
use crate::objects::mr::{Regions, Right};
use crate::objects::qp::Qp;
use crate::queue::sq::{Carried, SendQueue, Source};
use crate::service::local::coalesce::after;
use crate::service::local::requester::Sending;
use crate::service::local::responder::answers;
use crate::service::payload::Domain;
use crate::service::requester::{StepContext, VISIT_BYTES, VISIT_WQES};
use bellpush_mem::Dma;
use bellpush_nic::{QpState, QueuePair};
use bellpush_wire::{Iova, PlainWrite};

/// A shorter WRITE waits for all before it: it may be a flag.
pub(super) const SHORT_BYTES: u32 = 512;
/// Bytes of a piece: it takes a thread longer to copy these than to be told of them. A longer piece is a better share
/// of a long run, and too long a one leaves the others idle at its end.
const PIECE_BYTES: Range<u32> = 12 << 10..32 << 10;
/// Bytes of a piece of in-band slots, whose credits it keeps.
const SLOTS_PIECE_BYTES: u32 = 8 << 10;
/// Pieces for each thread, if enough is known to be posted.
const SHARES: u64 = 4;
/// Pieces of slots for each thread that are not copied yet, up to which an engine with several threads does not copy as
/// well.
const ENOUGH_PIECES: usize = 2;
/// Looks without news before it copies all the same what none of them has begun.
const LOOKS_BEFORE_HELP: u32 = 256;
/// What is posted, or was moved without a pause, from which on a thread is woken: in the time that it takes to wake, an
/// engine copies as much.
const WAKE_BYTES: u64 = 128 << 10;

/// Whose bytes go where: the queue pair and its regions, and the peer and its own.
#[derive(Clone, Copy)]
pub(super) struct Between<'a> {
    pub(super) domain: Domain<'a>,
    pub(super) peer: &'a Qp,
    pub(super) remote: &'a Regions,
}

/// Whether there are threads for it. A capture shows each WQE's message.
#[inline]
pub(super) fn is_possible(cx: &StepContext<'_>) -> bool {
    cx.copiers.is_some() && cx.inproc_capture.is_none()
}

/// Whether the next WQE of the ring, which is this one, begins a run that is worth it: it is long itself, or the one
/// behind it continues it. Says how much is known to be posted, if all WQEs are of its length.
#[inline]
pub(super) fn suits(sq: &SendQueue, write: &PlainWrite) -> Option<u64> {
    let known = (sq.producer() - sq.position()).saturating_mul(write.bytes.into());
    if known <= PIECE_BYTES.start.into() {
        return None;
    }
    let continues = || {
        let (next, _) = sq.peek(sq.position() + 1)?;
        let end = after(write.remote.addr, write.bytes);
        Some(next.remote.rkey == write.remote.rkey && Some(next.remote.addr) == end)
    };
    (write.bytes > PIECE_BYTES.start || continues() == Some(true)).then_some(known)
}

/// Where a run has come to.
#[derive(Clone)]
struct Stretch<'a> {
    between: Between<'a>,
    lkey: Option<u32>,
    rkey: u32,
    /// Where the next WRITE must go.
    next: Iova,
    /// Addresses of the memory at both ends, and those in them that the run uses so far.
    bases: [u64; 2],
    used: [Range<u64>; 2],
}

/// A WQE that is part of a run.
struct Next {
    carried: Carried,
    /// Byte of the region, or ticket.
    from: u64,
    to: u64,
    bytes: u32,
}

impl Sending {
    /// Carries out a run, as far as it goes and a visit lasts, when the next WQE begins one; says whether any of it is
    /// complete. `known` bytes are posted, or 0.
    pub(super) fn spread(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut StepContext<'_>,
        between: Between<'_>,
        known: u64,
    ) -> bool {
        let Some(copiers) = cx.copiers.take() else { return false };
        let mut done = 0;
        let threads = copiers.awake();
        if threads > 0
            && let Some((ends, stretch)) = begin(sq, between)
        {
            let share = (known / (SHARES * (1 + threads))).min(PIECE_BYTES.end.into()) as u32;
            let least = if sq.is_inband() { SLOTS_PIECE_BYTES } else { PIECE_BYTES.start };
            let share = share.max(least);
            done = self.carry(sq, cx, Run::begin(copiers, ends), stretch, (threads, share));
        }
        if threads < copiers.count() && known.max(self.moved) >= WAKE_BYTES {
            copiers.wake_one();
        }
        copiers.pass_panic_on();
        cx.copiers = Some(copiers);
        done > 0
    }

    /// Ends when all that was handed out is copied, whatever comes in between: the run's drop sees to it.
    fn carry(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut StepContext<'_>,
        mut run: Run<'_>,
        mut stretch: Stretch<'_>,
        (threads, share): (u64, u32),
    ) -> usize {
        let mut done = 0;
        // While an engine copies it neither finds the next slot nor completes what is copied, so that a sender's credits
        // wait for it. One thread alone is helped, and more of them with what is too much for them. Of a ring more is
        // known to be posted, and who copies as well is done sooner.
        let enough =
            if sq.is_inband() && threads > 1 { ENOUGH_PIECES * threads as usize } else { 0 };
        let mut left = VISIT_BYTES * (1 + threads);
        let most = (VISIT_WQES * (1 + threads as u32)) as usize;
        // A window behind the next slot is that slot again.
        let room = sq.slots().map_or(usize::MAX, |(window, _)| window.slots as usize - 1);
        let mut position = sq.slots().map_or(sq.position(), |(_, ticket)| ticket);
        // The newest piece, which goes to a thread when it is long enough or no more comes.
        let mut open: Option<Piece> = None;
        // Pieces that are copied, all those before them too.
        let (mut copied, mut looks, mut looks_in_vain) = (0, 0, 0);
        loop {
            let taken = run.taken().len();
            let more = left > 0 && taken < room && taken + done < most;
            if let Some(next) = more.then(|| stretch.take(sq, position)).flatten() {
                position += u64::from(next.carried.blocks.max(1));
                left = left.saturating_sub(next.bytes.into());
                extend(&mut run, &mut open, &next, share);
                // Its last byte lies in the newest piece.
                let last = run.count;
                run.taken().push_back(Taken { carried: next.carried, last });
            } else if let Some(piece) = open.take() {
                if enough > 0 {
                    run.add(piece)
                } else {
                    run.copy(piece)
                }
                looks_in_vain = 0;
            } else if run.open() <= enough && looks_in_vain < LOOKS_BEFORE_HELP || !run.help() {
                looks_in_vain += 1;
                pause(&mut looks);
                // More may have been posted. A ringer that keeps no record is heard in the next step.
                if sq.slots().is_none() {
                    sq.glance();
                }
            }
            // Complete what has been copied up to its end.
            while let Some(outcome) = run.oldest() {
                if outcome != Outcome::Done {
                    self.broke_off = true;
                    return done;
                }
                copied += 1;
                looks_in_vain = 0;
                while run.taken().front().is_some_and(|taken| taken.last < copied) {
                    let taken = run.taken().pop_front().expect("there is one");
                    self.complete(sq, cx, taken.carried);
                    done += 1;
                    if QueuePair::state(&*sq.qp) != QpState::Rts {
                        return done;
                    }
                }
            }
            if run.taken().is_empty() {
                return done;
            }
        }
    }
}

/// The memory and the place of a run that the next WQE begins.
fn begin<'a>(sq: &mut SendQueue, between: Between<'a>) -> Option<(Ends, Stretch<'a>)> {
    let ticket = sq.slots().map(|(_, ticket)| ticket);
    let (first, _) = look(sq, ticket.unwrap_or(sq.position()))?;
    let to = between.remote.memory(first.remote.rkey.0)?;
    let to_base = near(&**to)?;
    let (lkey, ends, from_base, used) = match (sq.slots(), first.from) {
        (Some((window, _)), _) => {
            let base = window.window.addr();
            let all = base..base + u64::from(window.slot_bytes) * u64::from(window.slots);
            (None, Ends::Slots { window: window.clone(), to: to.clone() }, base, all)
        }
        (None, from) => {
            let lkey = from?.lkey.0;
            let from = between.domain.regions.memory(lkey)?;
            let ends = Ends::Memory { from: from.clone(), to: to.clone() };
            (Some(lkey), ends, near(&**from)?, 0..0)
        }
    };
    let (rkey, next) = (first.remote.rkey.0, first.remote.addr);
    let (bases, used) = ([from_base, to_base], [used, 0..0]);
    let stretch = Stretch { between, lkey, rkey, next, bases, used };
    if let Some(ticket) = ticket {
        // As a look at the ring has found there.
        let mut look = stretch.clone();
        look.take(sq, ticket)?;
        look.take(sq, ticket + 1)?;
    }
    Some((ends, stretch))
}

/// The WRITE at a position, or in the slot of a ticket, of which no more than the header need have come, if there is
/// one that may be part of a run; and what is left of it once it was carried out.
fn look(sq: &mut SendQueue, position: u64) -> Option<(PlainWrite, Carried)> {
    if sq.slots().is_none() {
        let (write, _) = sq.peek(position)?;
        return Some((write, Carried::plain(position, &write)));
    }
    let write = sq.peek_slot(position)?;
    let carried = Carried { source: Source::Slot, blocks: 0, ..Carried::plain(position, &write) };
    Some((write, carried))
}

/// Address of memory that any thread copies as well as the engine does: the host's own.
fn near(memory: &dyn Dma) -> Option<u64> {
    memory.as_host().filter(|view| !view.mem().is_device()).map(|view| view.addr())
}

impl Stretch<'_> {
    /// The WQE at a position, or in the slot of a ticket, if it is part of the run; it is checked then.
    fn take(&mut self, sq: &mut SendQueue, position: u64) -> Option<Next> {
        let Between { domain, peer, remote } = self.between;
        let (write, carried) = look(sq, position)?;
        let (bytes, to) = (write.bytes, write.remote);
        if bytes < SHORT_BYTES
            || (to.rkey.0, to.addr) != (self.rkey, self.next)
            || !peer.permits(Right::RemoteWrite)
            || !answers(peer, sq.qp.in_process())
        {
            return None;
        }
        let next = after(to.addr, bytes)?;
        let at = remote.resolve(peer.pd, self.rkey, to.addr, bytes, Right::RemoteWrite).ok()?;
        let from = match (self.lkey, write.from) {
            (None, None) => position,
            (Some(lkey), Some(sge)) if sge.lkey.0 == lkey => {
                let (pd, right) = (domain.user.pd, Right::Gather);
                let from = domain.regions.resolve(pd, lkey, sge.addr, bytes, right).ok()?;
                from.offset as u64
            }
            _ => return None,
        };
        let starts = [from, at.offset as u64];
        let mut used = self.used.clone();
        for (i, used) in used.iter_mut().enumerate().skip(usize::from(self.lkey.is_none())) {
            let start = self.bases[i] + starts[i];
            let end = start + u64::from(bytes);
            let all = if used.is_empty() { start..end } else { used.clone() };
            *used = all.start.min(start)..all.end.max(end);
        }
        // What one of the run reads, none of it writes.
        if used[0].start < used[1].end && used[1].start < used[0].end {
            return None;
        }
        (self.used, self.next) = (used, next);
        Some(Next { carried, from, to: starts[1], bytes })
    }
}

/// Adds a WQE's bytes to the newest piece; hands that out when it is long enough and more comes.
fn extend(run: &mut Run<'_>, open: &mut Option<Piece>, next: &Next, share: u32) {
    let slot = next.carried.source == Source::Slot;
    let each = if slot { next.bytes } else { 0 };
    let mut done = 0;
    while done < next.bytes {
        let from = if slot { next.from } else { next.from + u64::from(done) };
        let fits = |piece: &Piece| {
            let length = if slot { u64::from(piece.bytes / each) } else { piece.bytes.into() };
            piece.bytes < share && piece.each == each && piece.from + length == from
        };
        if !open.as_ref().is_some_and(fits)
            && let Some(piece) = open.take()
        {
            run.add(piece);
        }
        let to = next.to + u64::from(done);
        let piece = open.get_or_insert(Piece { from, to, bytes: 0, each });
        // A slot is copied by one thread.
        let part = if slot { next.bytes } else { (next.bytes - done).min(share - piece.bytes) };
        piece.bytes += part;
        done += part;
    }
}
