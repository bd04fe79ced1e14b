//! Rings of slots: a sender takes slots in the order of its tickets and writes them; each is free
//! again when its credit is back (docs/protocol.md, section 3).

use std::collections::VecDeque;

use super::calendar::Event;
use super::{RingId, Sim};

/// Slots, and who waits for some.
#[derive(Debug)]
pub(super) struct Ring {
    free: u32,
    /// Timers and what they wait for, in the order in which they came.
    waiting: VecDeque<(u32, u32)>,
}

impl Sim {
    /// Adds a ring of so many slots.
    pub fn add_ring(&mut self, slots: u32) -> RingId {
        self.rings.push(Ring { free: slots, waiting: VecDeque::new() });
        RingId(self.rings.len() as u32 - 1)
    }

    pub(super) fn take_slots(&mut self, ring: RingId, slots: u32, timer: u32) {
        self.rings[ring.0 as usize].waiting.push_back((timer, slots));
        self.grant(ring);
    }

    pub(super) fn give_slots(&mut self, ring: RingId, slots: u32) {
        self.rings[ring.0 as usize].free += slots;
        self.grant(ring);
    }

    /// No one passes who waits: slots are taken in the order of tickets.
    fn grant(&mut self, ring: RingId) {
        let ring = &mut self.rings[ring.0 as usize];
        while let Some(&(timer, slots)) = ring.waiting.front()
            && slots <= ring.free
        {
            ring.waiting.pop_front();
            ring.free -= slots;
            self.cal.at(self.cal.now, Event::Timer(timer));
        }
    }
}
