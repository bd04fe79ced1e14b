//! Runs of in-band slots. The engine would miss its cache at every slot that it looked at, and so it looks at the first
//! two, and then at the beginning of the last one of each piece: whether that has come. What the slots of a piece ask for,
//! the thread that copies them checks against what the run expects ([`crate::copy::piece`]). The first slot that is
//! something else ends the run, and the engine takes it by itself.

use std::sync::Arc;

use crate::copy::piece::{Ends, MOST_SLOTS, Outcome, Piece, Slots};
use crate::copy::{Copiers, Run, pause};
use crate::objects::mr::Right;
use crate::queue::sq::{Carried, SendQueue, Source};
use crate::service::local::coalesce::after;
use crate::service::local::requester::Sending;
use crate::service::local::responder::answers;
use crate::service::local::spread::{Between, SHORT_BYTES, meet, near};
use crate::service::requester::{StepContext, VISIT_BYTES, VISIT_WQES};
use bellpush_nic::{QpState, QueuePair};
use bellpush_wire::wqe::Opcode;
use bellpush_wire::{Iova, PlainWrite};

/// Bytes of a piece. Its header costs the engine one miss, and its outcome another.
const PIECE_BYTES: u32 = 12 << 10;
/// A window has at least so many pieces, so that several threads have one.
const PIECES: u32 = 8;
/// Looks at a piece's last slot before fewer slots are a piece: most often they come in the time of a few.
const PATIENCE: u32 = 64;
/// Looks without any outcome after which the engine does without the threads. One of them may not run.
const STALLED: u32 = 1 << 16;

/// Where a run of slots has come to.
struct Row<'a> {
    between: Between<'a>,
    slots: Arc<Slots>,
    each: u32,
    /// Ticket and address of what is handed out next.
    ticket: u64,
    next: Iova,
    /// Addresses of the window's memory, and of byte 0 of the region.
    window: std::ops::Range<u64>,
    base: u64,
}

impl Sending {
    /// Carries out a run, as far as it goes and a visit lasts, when the next slot begins one; says how many are complete.
    pub(super) fn spread_slots(
        &mut self,
        sq: &mut SendQueue,
        cx: &mut StepContext<'_>,
        copiers: &mut Copiers,
        between: Between<'_>,
        threads: u64,
    ) -> usize {
        let Some(mut row) = begin(sq, copiers, between) else { return 0 };
        let mut run = Run::begin(copiers, Ends::Slots(row.slots.clone()));
        let slots = row.slots.window.slots;
        let piece = (PIECE_BYTES / row.each).min(slots / PIECES).clamp(1, MOST_SLOTS);
        let mut left = VISIT_BYTES * (1 + threads);
        let most = (VISIT_WQES * (1 + threads as u32)) as usize;
        // Slots that are complete, and that are handed out and not complete.
        let (mut done, mut out) = (0, 0);
        let (mut waited, mut stalled, mut looks, mut goes_on) = (0, 0, 0, true);
        loop {
            // A window behind the next slot is that slot again.
            let room = (slots as usize - 1 - out).min(most.saturating_sub(done + out));
            let want = piece.min(room as u32);
            let more = goes_on && want > 0 && left > 0 && run.has_room();
            let come = if more { row.come(sq, want, waited < PATIENCE) } else { 0 };
            if come > 0 {
                waited = 0;
                match row.take(sq, come) {
                    Some(piece) => {
                        left = left.saturating_sub(piece.bytes.into());
                        out += come as usize;
                        run.add(piece);
                    }
                    None => goes_on = false,
                }
            } else {
                waited += u32::from(more);
                stalled += 1;
                if !run.help() {
                    pause(&mut looks);
                }
            }
            // Complete what has been copied, in order.
            while let Some((piece, outcome)) = run.oldest() {
                stalled = 0;
                let Outcome::Slots { copied, asked } = outcome else {
                    self.broke_off = true;
                    return done;
                };
                for i in 0..copied {
                    let write = asked >> i & 1 != 0;
                    self.complete(sq, cx, row.carried(piece.from + u64::from(i), write));
                    (done, out) = (done + 1, out - 1);
                    if QueuePair::state(&*sq.qp) != QpState::Rts {
                        return done;
                    }
                }
                if u32::from(copied) * row.each < piece.bytes {
                    return done;
                }
            }
            self.broke_off |= stalled >= STALLED;
            if out == 0 && (!more || waited > PATIENCE) || stalled >= STALLED {
                return done;
            }
        }
    }
}

/// The run that the next two slots begin.
fn begin<'a>(sq: &mut SendQueue, copiers: &Copiers, between: Between<'a>) -> Option<Row<'a>> {
    let (window, ticket) = sq.slots().map(|(window, ticket)| (window.clone(), ticket))?;
    let first = sq.peek_slot(ticket)?;
    let second = sq.peek_slot(ticket + 1)?;
    let next = after(first.remote.addr, first.bytes);
    let continues = second.remote.rkey == first.remote.rkey && Some(second.remote.addr) == next;
    if first.bytes < SHORT_BYTES || second.bytes != first.bytes || !continues {
        return None;
    }
    let PlainWrite { bytes, remote, .. } = first;
    let to = between.remote.memory(remote.rkey.0)?;
    let base = near(&**to)?;
    let right = Right::RemoteWrite;
    let at = between.remote.resolve(between.peer.pd, remote.rkey.0, remote.addr, bytes, right).ok()?;
    let start = window.window.addr();
    let all = start..start + u64::from(window.slot_bytes) * u64::from(window.slots);
    copiers.turn.begin(ticket);
    let (qpn, rkey, turn) = (sq.qp.qpn, remote.rkey, copiers.turn.clone());
    let (to, at, addr) = (to.clone(), at.offset as u64, remote.addr);
    let slots = Arc::new(Slots { window, to, qpn, rkey, addr, at, turn });
    Some(Row { between, slots, each: bytes, ticket, next: addr, window: all, base })
}

impl Row<'_> {
    /// How many of the next slots have begun to come: `want`, or if that is not so and nothing more `may_come`, fewer.
    fn come(&self, sq: &SendQueue, want: u32, may_come: bool) -> u32 {
        let has = |n: u32| sq.has_slot(self.ticket + u64::from(n) - 1);
        match has(want) {
            true => want,
            false if may_come => 0,
            false => (1..want).take_while(|&n| has(n)).count() as u32,
        }
    }

    /// The next `count` slots, if there is a place for what they are expected to ask for.
    fn take(&mut self, sq: &SendQueue, count: u32) -> Option<Piece> {
        let Between { peer, remote, .. } = self.between;
        if !peer.permits(Right::RemoteWrite) || !answers(peer, sq.qp.in_process()) {
            return None;
        }
        let bytes = self.each.checked_mul(count)?;
        let next = after(self.next, bytes)?;
        let (rkey, right) = (self.slots.rkey.0, Right::RemoteWrite);
        let at = remote.resolve(peer.pd, rkey, self.next, bytes, right).ok()?;
        let (from, to) = (self.ticket, at.offset as u64);
        let start = self.base + to;
        // What one of the run reads, none of it writes.
        if meet(&self.window, &(start..start + u64::from(bytes))) {
            return None;
        }
        self.ticket += u64::from(count);
        self.next = next;
        Some(Piece { from, to, bytes, each: self.each })
    }

    fn carried(&self, ticket: u64, cq_update: bool) -> Carried {
        Carried {
            source: Source::Slot,
            counter: ticket as u16,
            blocks: 0,
            opcode: Opcode::RdmaWrite,
            bytes: self.each,
            cq_update,
        }
    }
}
