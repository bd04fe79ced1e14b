//! The event queue.

use super::channel::Ps;

/// An event of the fabric or of its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A TLP reached the end of its current hop.
    Arrive(u32),
    /// A channel may send again.
    Wake(u32),
    /// For the driver: a completer has a completion ready.
    Piece(u32),
    /// For the driver: a task of an instance has ended.
    Timer(u32),
    /// For the driver: a root port's buffer has room again.
    Drained(u32),
}

/// Deterministic event queue: simultaneous events occur in the order in which they were scheduled.
#[derive(Debug, Default)]
pub(super) struct Calendar {
    heap: std::collections::BinaryHeap<std::cmp::Reverse<(Ps, u64, u8, u32)>>,
    seq: u64,
    pub now: Ps,
}

impl Calendar {
    pub fn at(&mut self, time: Ps, event: Event) {
        let (kind, id) = match event {
            Event::Arrive(id) => (0, id),
            Event::Wake(id) => (1, id),
            Event::Piece(id) => (2, id),
            Event::Timer(id) => (3, id),
            Event::Drained(id) => (4, id),
        };
        debug_assert!(time >= self.now, "time runs backwards");
        self.heap.push(std::cmp::Reverse((time, self.seq, kind, id)));
        self.seq += 1;
    }

    pub fn pop(&mut self) -> Option<Event> {
        let std::cmp::Reverse((time, _, kind, id)) = self.heap.pop()?;
        self.now = time;
        Some(match kind {
            0 => Event::Arrive(id),
            1 => Event::Wake(id),
            2 => Event::Piece(id),
            3 => Event::Timer(id),
            _ => Event::Drained(id),
        })
    }
}
