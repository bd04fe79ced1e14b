//! Window arithmetic, stated once: the reference model of `kernels/include/bellpush/impl/credit.cuh`.
//!
//! A *ticket* is a u64 that never wraps in practice; a queue hands tickets out in order, one for
//! each basic block (or in-band slot), and a WQE owns the tickets `start..end`. Rings hold only the
//! low bits of a ticket, so what is read back from one is extended again by the rules below.
//!
//! Guarantees, each of them a property test in `tests/kernels/window.rs`:
//! - **Slot.** Ticket `t` owns slot `t % slots`.
//! - **Credit.** `done` counts the tickets known to be complete: all below it are. Ticket `t` may
//!   write its slot only when `done > t - slots`, that is, when the ticket that owned the slot one
//!   lap before is complete ([`Window::holds_credit`]). So no slot ever has two live owners.
//! - **Return.** A CQE for the WQE `start..end` completes every ticket below `end`: a send queue
//!   completes in order, so `done = end` returns each credit exactly once ([`Ledger::complete`]).
//! - **Progress.** WQEs ask for a CQE so often ([`Window::asks_for_cqe`]) that the largest one still
//!   fits behind the tickets that no requested CQE covers; otherwise a full window would wait for a
//!   CQE that nobody asked for.
//!
//! mlx5 PRM, "Work Queue Structures" (wqe_index, wqe_counter: 16 bits) and "Completion Queue
//! Entries"; a queue has at most 2^15 basic blocks, so that 16 bits name each outstanding WQE.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;

/// The most tickets that may be outstanding by this arithmetic: with more, two of them would share a 16-bit
/// wqe_counter. Queues and windows stay at half of it (2^15, docs/protocol.md), so that a doorbell record of 16 bits
/// that is behind is not taken for one that is ahead.
pub const MAX_OUTSTANDING: u64 = 1 << 16;

/// The ticket that a 16-bit index names: the first one, from `not_before` on, with these low bits.
///
/// `wqe_counter` of a CQE is extended from `done`, a doorbell's producer index from the tickets
/// that the NIC already knows of. Right as long as fewer than 2^16 tickets lie between.
pub const fn extend_u16(index: u16, not_before: u64) -> u64 {
    not_before + index.wrapping_sub(not_before as u16) as u64
}

/// The ticket that a 32-bit word names: the first one, from `not_before` on, with these low bits.
pub const fn extend_u32(word: u32, not_before: u64) -> u64 {
    not_before + word.wrapping_sub(not_before as u32) as u64
}

/// The most blocks of a WQE: its control segment counts at most 63 units, four to a block.
pub const MAX_WQE_BLOCKS: u32 = 16;

/// End of the WQE that starts at `start`, if its ready word says that it is whole.
///
/// A ready word holds the low 32 bits of the WQE's end, at most [`MAX_WQE_BLOCKS`] after its start; a word left from an
/// earlier lap ends at or before the start. A fresh ring holds each block's own number, which is a whole number of laps
/// away from each ticket of that block. A ring has more blocks than a WQE, so that none of them takes it for ready.
pub const fn ready_end(word: u32, start: u64) -> Option<u64> {
    let blocks = word.wrapping_sub(start as u32);
    if blocks == 0 || blocks > MAX_WQE_BLOCKS { None } else { Some(start + blocks as u64) }
}

/// Part of a message, as large as a slot at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Where it starts in the message.
    pub offset_bytes: u64,
    /// Its length.
    pub bytes: u32,
    /// Whether the message ends with it: an immediate, a signal or a CQE belongs to this one.
    pub last: bool,
}

/// Why a window's shape or a completion is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CreditError {
    /// A number of slots outside the range that the arithmetic covers.
    #[error("a window has 1 to {MAX_OUTSTANDING} slots, not {slots}")]
    Slots {
        /// Slots asked for.
        slots: u32,
    },
    /// A slot that holds nothing.
    #[error("a window's slots hold at least one byte")]
    SlotBytes,
    /// A WQE that takes no ticket, or more than there are.
    #[error("a WQE takes 1 to {slots} tickets here, not {tickets}")]
    Tickets {
        /// Tickets asked for.
        tickets: u64,
        /// Slots of the window.
        slots: u64,
    },
    /// A CQE for a WQE that is not outstanding: its credits returned before, or it was never posted.
    #[error(
        "wqe_counter {wqe_counter:#06x} names no outstanding WQE ({done} done, {posted} posted)"
    )]
    NotOutstanding {
        /// The CQE's counter.
        wqe_counter: u16,
        /// Tickets complete.
        done: u64,
        /// Tickets posted.
        posted: u64,
    },
}

/// The shape of a window: a ring of slots of equal size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    slots: u64,
    slot_bytes: u32,
}

impl Window {
    /// A window of `slots` slots of `slot_bytes` bytes each; `slots` need not be a power of two.
    pub const fn new(slots: u32, slot_bytes: u32) -> Result<Self, CreditError> {
        if slots == 0 || slots as u64 > MAX_OUTSTANDING {
            return Err(CreditError::Slots { slots });
        }
        if slot_bytes == 0 {
            return Err(CreditError::SlotBytes);
        }
        Ok(Self { slots: slots as u64, slot_bytes })
    }

    /// Number of slots.
    pub const fn slots(&self) -> u64 {
        self.slots
    }

    /// The slot that a ticket owns.
    pub const fn slot(&self, ticket: u64) -> u64 {
        ticket % self.slots
    }

    /// How often the ring has gone round before a ticket: what an in-band slot's sequence counts.
    pub const fn lap(&self, ticket: u64) -> u64 {
        ticket / self.slots
    }

    /// Where a ticket's slot starts in the window.
    pub const fn offset_bytes(&self, ticket: u64) -> u64 {
        self.slot(ticket) * self.slot_bytes as u64
    }

    /// Whether a ticket may write its slot: `done > ticket - slots`, without the underflow.
    pub const fn holds_credit(&self, ticket: u64, done: u64) -> bool {
        ticket < done.saturating_add(self.slots)
    }

    /// Credits in use when the tickets `done..reserved` are outstanding. Tickets that are reserved
    /// but still wait for a credit hold none, so this never exceeds the number of slots.
    pub const fn in_use(&self, reserved: u64, done: u64) -> u64 {
        let outstanding = reserved - done;
        if outstanding < self.slots { outstanding } else { self.slots }
    }

    /// The longest period of [`Window::asks_for_cqe`] that cannot deadlock when a WQE takes up to
    /// `blocks` tickets: `period - 1` silent tickets and the largest WQE fit the window together.
    pub const fn longest_cqe_period(&self, blocks: u64) -> u64 {
        assert!(0 < blocks && blocks <= self.slots, "a WQE must fit the window");
        self.slots - blocks + 1
    }

    /// Whether the WQE that owns `tickets` asks for a CQE, when every `period`-th ticket does. The
    /// answer depends on the tickets alone, so posters that share a queue need not agree on it.
    pub const fn asks_for_cqe(tickets: &Range<u64>, period: u64) -> bool {
        tickets.start / period != tickets.end / period
    }

    /// Slots that a message of `bytes` takes: an empty message takes one, for its WQE.
    pub const fn slots_for(&self, bytes: u64) -> u64 {
        if bytes == 0 { 1 } else { bytes.div_ceil(self.slot_bytes as u64) }
    }

    /// A message cut into slots: all of them full but the last.
    pub fn chunks(&self, bytes: u64) -> impl ExactSizeIterator<Item = Chunk> + use<> {
        let (count, slot_bytes) = (self.slots_for(bytes), self.slot_bytes);
        let count = usize::try_from(count).expect("a message's slots fit the address space");
        (0..count).map(move |i| {
            let offset_bytes = i as u64 * u64::from(slot_bytes);
            let left = bytes - offset_bytes;
            Chunk { offset_bytes, bytes: left.min(slot_bytes.into()) as u32, last: i + 1 == count }
        })
    }
}

/// Books of one queue with a window: who holds which ticket, and what a CQE completes.
///
/// Device code keeps three of these numbers (`bp_qp_state`: reserved, done, signalled) and reads a
/// WQE's end from its ready word; the ledger also remembers each WQE, so that a test can tell a
/// credit that returns twice from one that returns once.
#[derive(Debug, Clone)]
pub struct Ledger {
    window: Window,
    reserved: u64,
    done: u64,
    outstanding: VecDeque<Range<u64>>,
}

impl Ledger {
    /// Books that start at ticket `first`; every ticket below it is complete.
    pub const fn new(window: Window, first: u64) -> Self {
        Self { window, reserved: first, done: first, outstanding: VecDeque::new() }
    }

    /// Next ticket to hand out.
    pub const fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Tickets below are complete.
    pub const fn done(&self) -> u64 {
        self.done
    }

    /// Credits in use.
    pub const fn in_use(&self) -> u64 {
        self.window.in_use(self.reserved, self.done)
    }

    /// Takes the next tickets for one WQE, or none at all when their credits are not free yet: a
    /// ticket never leaves a hole.
    pub fn reserve(&mut self, tickets: u64) -> Result<Option<Range<u64>>, CreditError> {
        let slots = self.window.slots;
        if tickets == 0 || tickets > slots {
            return Err(CreditError::Tickets { tickets, slots });
        }
        if !self.window.holds_credit(self.reserved + tickets - 1, self.done) {
            return Ok(None);
        }
        Ok(Some(self.push(tickets)))
    }

    /// Takes the next tickets whether their credits are free or not, as `atomicAdd` does; the
    /// caller waits for [`Window::holds_credit`] of the last one before it writes.
    pub fn reserve_ahead(&mut self, tickets: u64) -> Result<Range<u64>, CreditError> {
        let slots = self.window.slots;
        if tickets == 0 || tickets > slots {
            return Err(CreditError::Tickets { tickets, slots });
        }
        Ok(self.push(tickets))
    }

    fn push(&mut self, tickets: u64) -> Range<u64> {
        let range = self.reserved..self.reserved + tickets;
        self.reserved = range.end;
        self.outstanding.push_back(range.clone());
        range
    }

    /// Applies a CQE: the WQE whose first block has this index, and all before it, are complete.
    /// Returns the tickets whose credits return.
    pub fn complete(&mut self, wqe_counter: u16) -> Result<Range<u64>, CreditError> {
        let start = extend_u16(wqe_counter, self.done);
        let Ok(position) = self.outstanding.binary_search_by_key(&start, |wqe| wqe.start) else {
            let (done, posted) = (self.done, self.reserved);
            return Err(CreditError::NotOutstanding { wqe_counter, done, posted });
        };
        let returned = self.done..self.outstanding[position].end;
        self.outstanding.drain(..=position);
        self.done = returned.end;
        Ok(returned)
    }
}
