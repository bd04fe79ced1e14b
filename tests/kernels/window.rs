//! Properties of the window arithmetic, and a model of several senders that share a window.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::credit::{
    CreditError, Ledger, MAX_OUTSTANDING, MAX_WQE_BLOCKS, Window, extend_u16, extend_u32, ready_end,
};
use proptest::prelude::*;
use proptest::sample::Index;

/// First tickets whose neighbourhood holds a wrap: of 16 bits, of 32 bits, or none.
fn first_ticket() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        (1u64 << 16) - 300..(1u64 << 16) + 10,
        (1u64 << 32) - 300..(1u64 << 32) + 10,
        0..1u64 << 48,
    ]
}

fn slots() -> impl Strategy<Value = u32> {
    prop_oneof![Just(1), Just(2), 1u32..=9, 1u32..=300, Just(1 << 15), Just(1 << 16)]
}

proptest! {
    #[test]
    fn a_credit_is_free_exactly_when_the_owner_one_lap_before_is_done(
        slots in slots(), ticket in first_ticket(), back in 0u64..100_000,
    ) {
        let done = ticket.saturating_sub(back);
        let owner_before = ticket.checked_sub(slots.into());
        let expected = owner_before.is_none_or(|owner| owner < done);
        prop_assert_eq!(Window::new(slots, 64)?.holds_credit(ticket, done), expected);
    }

    #[test]
    fn tickets_that_hold_credits_together_own_different_slots(
        slots in 2u32..=1 << 16, done in first_ticket(), a: Index, b: Index,
    ) {
        let window = Window::new(slots, 64)?;
        let (a, b) = (done + a.index(slots as usize) as u64, done + b.index(slots as usize) as u64);
        prop_assert!(window.holds_credit(a, done) && window.holds_credit(b, done));
        prop_assume!(a != b);
        prop_assert_ne!(window.slot(a), window.slot(b));
        prop_assert_ne!(window.offset_bytes(a), window.offset_bytes(b));
    }

    #[test]
    fn slot_and_lap_name_the_ticket(slots in slots(), ticket in first_ticket()) {
        let window = Window::new(slots, 64)?;
        prop_assert!(window.slot(ticket) < u64::from(slots));
        prop_assert_eq!(window.lap(ticket) * u64::from(slots) + window.slot(ticket), ticket);
    }

    #[test]
    fn sixteen_bits_name_each_outstanding_ticket(
        done in first_ticket(), ahead in 0..MAX_OUTSTANDING,
    ) {
        let ticket = done + ahead;
        prop_assert_eq!(extend_u16(ticket as u16, done), ticket);
    }

    #[test]
    fn thirty_two_bits_name_each_outstanding_ticket(done in first_ticket(), ahead: u32) {
        let ticket = done + u64::from(ahead);
        prop_assert_eq!(extend_u32(ticket as u32, done), ticket);
    }

    #[test]
    fn a_ready_word_of_this_lap_is_read_and_one_of_an_earlier_lap_is_not(
        start in first_ticket(), blocks in 1..=MAX_WQE_BLOCKS, age in 0u64..(1 << 32) - (1 << 16),
        ring_log in 6u32..=15,
    ) {
        let end = start + u64::from(blocks);
        prop_assert_eq!(ready_end(end as u32, start), Some(end));
        // What an earlier WQE left here ended at or before this start.
        prop_assert_eq!(ready_end((start - age.min(start)) as u32, start), None);
        // What the host put here: the block's number.
        prop_assert_eq!(ready_end((start % (1 << ring_log)) as u32, start), None);
    }

    #[test]
    fn chunks_cover_the_message_once_and_in_order(
        slot_bytes in prop_oneof![Just(1u32), Just(64), 1u32..5000], bytes in 0u64..100_000,
    ) {
        let window = Window::new(4, slot_bytes)?;
        let chunks: Vec<_> = window.chunks(bytes).collect();
        prop_assert_eq!(chunks.len() as u64, window.slots_for(bytes));
        let mut at = 0;
        for (i, chunk) in chunks.iter().enumerate() {
            prop_assert_eq!(chunk.offset_bytes, at);
            prop_assert_eq!(chunk.last, i + 1 == chunks.len());
            prop_assert!(chunk.last || chunk.bytes == slot_bytes);
            prop_assert!(chunk.bytes <= slot_bytes && (chunk.bytes > 0 || bytes == 0));
            at += u64::from(chunk.bytes);
        }
        prop_assert_eq!(at, bytes);
    }

    #[test]
    fn one_wqe_in_every_period_asks_for_a_cqe(
        first in first_ticket(), period in 1u64..50, sizes in prop::collection::vec(1u64..=4, 1..200),
    ) {
        let (mut at, mut silent) = (first, 0);
        for size in sizes {
            let tickets = at..at + size;
            at = tickets.end;
            silent = if Window::asks_for_cqe(&tickets, period) { 0 } else { silent + size };
            prop_assert!(silent < period, "{silent} silent tickets, period {period}");
        }
    }

    #[test]
    fn each_credit_returns_exactly_once(
        slots in 1u32..=40,
        first in first_ticket(),
        steps in prop::collection::vec((any::<bool>(), 1u64..=4, any::<Index>()), 1..400),
    ) {
        let mut ledger = Ledger::new(Window::new(slots, 64)?, first);
        let mut live = VecDeque::new();
        let mut next_return = first;
        for (post, size, pick) in steps {
            if post {
                let size = size.min(slots.into());
                let before = ledger.reserved();
                match ledger.reserve(size)? {
                    Some(wqe) => live.push_back(wqe),
                    None => {
                        prop_assert!(before + size > ledger.done() + u64::from(slots));
                        prop_assert_eq!(ledger.reserved(), before, "a refusal takes no ticket");
                    }
                }
            } else if !live.is_empty() {
                let position = pick.index(live.len());
                let wqe = live[position].clone();
                live.drain(..=position);
                let returned = ledger.complete(wqe.start as u16)?;
                prop_assert_eq!(&returned, &(next_return..wqe.end));
                next_return = wqe.end;
                // The same CQE again returns nothing.
                let again = ledger.complete(wqe.start as u16);
                let refused = matches!(again, Err(CreditError::NotOutstanding { .. }));
                prop_assert!(refused, "{again:?}");
            }
            prop_assert!(ledger.in_use() <= slots.into());
            prop_assert_eq!(ledger.in_use(), ledger.reserved() - ledger.done());
        }
    }
}

#[test]
fn a_window_of_one_slot_alternates() {
    let window = Window::new(1, 64).unwrap();
    let mut ledger = Ledger::new(window, 0xffff_fffe);
    for ticket in 0xffff_fffe_u64..0x1_0000_0003 {
        assert_eq!(ledger.reserve(1), Ok(Some(ticket..ticket + 1)));
        assert_eq!(ledger.reserve(1), Ok(None));
        assert_eq!(ledger.complete(ticket as u16), Ok(ticket..ticket + 1));
    }
}

#[test]
fn shapes_outside_the_arithmetic_are_refused() {
    assert_eq!(Window::new(0, 64), Err(CreditError::Slots { slots: 0 }));
    assert_eq!(Window::new(65537, 64), Err(CreditError::Slots { slots: 65537 }));
    assert_eq!(Window::new(1, 0), Err(CreditError::SlotBytes));
    let mut ledger = Ledger::new(Window::new(2, 64).unwrap(), 0);
    assert_eq!(ledger.reserve(0), Err(CreditError::Tickets { tickets: 0, slots: 2 }));
    assert_eq!(ledger.reserve(3), Err(CreditError::Tickets { tickets: 3, slots: 2 }));
}

/// Why a fresh ring does not hold zeros.
#[test]
fn a_zero_looks_ready_just_before_the_32_bit_wrap() {
    assert_eq!(ready_end(0, (1 << 32) - 17), None);
    assert_eq!(ready_end(0, (1 << 32) - 1), Some(1 << 32));
}

// ---- Several senders, one window, one NIC -----------------------------------------------------

/// What goes wrong in a run of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A slot was written while the WQE that owns it was not sent yet.
    TwoOwners { slot: u64 },
    /// The NIC sent another ticket's bytes.
    Corrupt { ticket: u64 },
    /// Nobody can take a step, and messages remain.
    Deadlock { done: u64 },
    /// A credit came back twice, or for a WQE that was never posted.
    Return(CreditError),
}

#[derive(Clone)]
enum Sender {
    Idle,
    /// Has tickets, waits for their credits.
    Reserved(Range<u64>),
    /// Has written its slots, has not marked its WQE ready.
    Written(Range<u64>),
}

/// Senders take tickets ahead of their credits, as `atomicAdd` does, and wait. The NIC sends WQEs
/// in order as they become ready, and posts a CQE for those that ask for one.
struct Model {
    window: Window,
    /// WQEs take 1 to this many tickets.
    blocks: u64,
    cqe_period: u64,
    checks_credit: bool,
    ledger: Ledger,
    senders: Vec<(Sender, u32)>,
    /// Ticket whose bytes lie in a slot, until the NIC has sent them.
    owner: Vec<Option<u64>>,
    /// End of each WQE that is ready, by its start.
    ready: BTreeMap<u64, u64>,
    next_to_send: u64,
    cqes: VecDeque<u16>,
}

impl Model {
    fn new(window: Window, first: u64, senders: usize, messages: u32, blocks: u64) -> Self {
        Self {
            window,
            blocks,
            cqe_period: window.longest_cqe_period(blocks),
            checks_credit: true,
            ledger: Ledger::new(window, first),
            senders: vec![(Sender::Idle, messages); senders],
            owner: vec![None; window.slots() as usize],
            ready: BTreeMap::new(),
            next_to_send: first,
            cqes: VecDeque::new(),
        }
    }

    /// One step of actor `i`: a sender, then the NIC's engine, then its completion side. Says
    /// whether it could do anything.
    fn step(&mut self, i: usize) -> Result<bool, Fault> {
        if i == self.senders.len() {
            return self.send();
        }
        let Some((sender, left)) = self.senders.get(i).cloned() else { return self.reap() };
        self.senders[i] = match sender {
            Sender::Idle if left == 0 => return Ok(false),
            Sender::Idle => {
                let blocks = 1 + self.ledger.reserved() % self.blocks;
                let wqe = self.ledger.reserve_ahead(blocks).map_err(Fault::Return)?;
                (Sender::Reserved(wqe), left - 1)
            }
            Sender::Reserved(wqe) => {
                if self.checks_credit && !self.window.holds_credit(wqe.end - 1, self.ledger.done())
                {
                    return Ok(false);
                }
                for ticket in wqe.clone() {
                    let slot = self.window.slot(ticket);
                    if self.owner[slot as usize].replace(ticket).is_some() {
                        return Err(Fault::TwoOwners { slot });
                    }
                }
                (Sender::Written(wqe), left)
            }
            Sender::Written(wqe) => {
                self.ready.insert(wqe.start, wqe.end);
                (Sender::Idle, left)
            }
        };
        Ok(true)
    }

    fn send(&mut self) -> Result<bool, Fault> {
        let start = self.next_to_send;
        let Some(end) = self.ready.remove(&start) else { return Ok(false) };
        for ticket in start..end {
            if self.owner[self.window.slot(ticket) as usize].take() != Some(ticket) {
                return Err(Fault::Corrupt { ticket });
            }
        }
        if Window::asks_for_cqe(&(start..end), self.cqe_period) {
            self.cqes.push_back(start as u16);
        }
        self.next_to_send = end;
        Ok(true)
    }

    fn reap(&mut self) -> Result<bool, Fault> {
        let Some(cqe) = self.cqes.pop_front() else { return Ok(false) };
        self.ledger.complete(cqe).map_err(Fault::Return)?;
        Ok(true)
    }

    /// Follows the schedule, then goes round robin until all is sent or nothing moves.
    fn run(&mut self, schedule: &[u8]) -> Result<(), Fault> {
        let actors = self.senders.len() + 2;
        for &choice in schedule {
            self.step(usize::from(choice) % actors)?;
        }
        loop {
            let mut moved = false;
            for actor in 0..actors {
                moved |= self.step(actor)?;
            }
            if !moved {
                break;
            }
        }
        let idle = |(sender, left): &(Sender, u32)| matches!(sender, Sender::Idle) && *left == 0;
        let all = self.senders.iter().all(idle) && self.next_to_send == self.ledger.reserved();
        if all { Ok(()) } else { Err(Fault::Deadlock { done: self.ledger.done() }) }
    }
}

proptest! {
    #[test]
    fn senders_share_a_window_without_overwriting_or_deadlock(
        slots in 1u32..=6,
        first in first_ticket(),
        senders in 1usize..=5,
        blocks in 1u64..=3,
        schedule in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let blocks = blocks.min(slots.into());
        let mut model = Model::new(Window::new(slots, 64)?, first, senders, 30, blocks);
        prop_assert_eq!(model.run(&schedule), Ok(()));
        prop_assert!(model.ledger.reserved() >= first + 30 * senders as u64);
        prop_assert!(model.ledger.reserved() - model.ledger.done() < model.cqe_period);
    }
}

/// Negative control: without the credit check, a slot gets a second owner.
#[test]
fn without_credits_a_slot_is_overwritten() {
    let mut model = Model::new(Window::new(2, 64).unwrap(), 0, 3, 2, 1);
    model.checks_credit = false;
    assert!(matches!(model.run(&[]), Err(Fault::TwoOwners { .. })));
}

/// Negative control: with fewer CQEs than the rule asks for, the senders wait for ever.
#[test]
fn too_few_cqes_deadlock() {
    for blocks in 1..=3 {
        let mut model = Model::new(Window::new(6, 64).unwrap(), 0, 3, 60, blocks);
        model.cqe_period += blocks;
        assert!(matches!(model.run(&[]), Err(Fault::Deadlock { .. })), "{blocks}");
    }
}
