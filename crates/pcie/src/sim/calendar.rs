//! The event queue.
//!
//! TLPs leave a channel one after the other and travel equally long, so they arrive in the order in
//! which they left. The heap holds the next arrival of each channel alone: it is as small as the
//! fabric, however many TLPs are on their way.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

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

/// What stands in the heap: an event, or in place of a TLP the channel on which it arrives next.
#[derive(Debug, Clone, Copy)]
struct Entry {
    time: Ps,
    seq: u64,
    event: Event,
}

impl Entry {
    fn key(&self) -> u128 {
        u128::from(self.time) << 64 | u128::from(self.seq)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The greatest is the next.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// Deterministic event queue: simultaneous events occur in the order in which they were scheduled.
#[derive(Debug, Default)]
pub(super) struct Calendar {
    heap: BinaryHeap<Entry>,
    /// The heap's first entry is over: what comes next takes its place, or removes it.
    first_is_over: bool,
    /// TLPs on their way on each channel: when they arrive, their place in the order, which.
    arrivals: Vec<VecDeque<(Ps, u64, u32)>>,
    seq: u64,
    pub now: Ps,
}

impl Calendar {
    /// Schedules an event other than an arrival.
    pub fn at(&mut self, time: Ps, event: Event) {
        debug_assert!(time >= self.now, "time runs backwards");
        debug_assert!(!matches!(event, Event::Arrive(_)), "arrivals are those of a channel");
        self.push(Entry { time, seq: self.seq, event });
        self.seq += 1;
    }

    /// Schedules the arrival of a TLP at a channel's end: no sooner than those before it there.
    pub fn arrive_at(&mut self, time: Ps, channel: u32, tlp: u32) {
        let lane = channel as usize;
        if lane >= self.arrivals.len() {
            self.arrivals.resize_with(lane + 1, VecDeque::new);
        }
        let on_its_way = &mut self.arrivals[lane];
        debug_assert!(time >= on_its_way.back().map_or(self.now, |last| last.0), "passes another");
        if on_its_way.is_empty() {
            self.push(Entry { time, seq: self.seq, event: Event::Arrive(channel) });
        }
        self.arrivals[lane].push_back((time, self.seq, tlp));
        self.seq += 1;
    }

    /// Most events schedule another one: it takes the place of the one that is over, which costs
    /// half of a removal and an insertion.
    fn push(&mut self, entry: Entry) {
        if std::mem::take(&mut self.first_is_over)
            && let Some(mut first) = self.heap.peek_mut()
        {
            *first = entry;
            return;
        }
        self.heap.push(entry);
    }

    pub fn pop(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.first_is_over) {
            self.heap.pop();
        }
        let first = *self.heap.peek()?;
        self.now = first.time;
        self.first_is_over = true;
        let Event::Arrive(channel) = first.event else { return Some(first.event) };
        let on_its_way = &mut self.arrivals[channel as usize];
        let (_, _, tlp) = on_its_way.pop_front()?;
        if let Some(&(time, seq, _)) = on_its_way.front() {
            self.push(Entry { time, seq, event: first.event });
        }
        Some(Event::Arrive(tlp))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Events come in the order of their times, simultaneous ones in that in which they were
    /// scheduled: as from a sorted list, whatever is scheduled in between.
    #[test]
    fn events_come_in_order() {
        let (mut cal, mut sorted) = (Calendar::default(), BTreeMap::new());
        let (mut last, mut state, mut told) = ([0; 4], 1u64, 0);
        for id in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (kind, delay) = (state >> 60, (state >> 40) % 50);
            let channel = (kind % 4) as u32;
            let (time, event) = if kind < 8 {
                let end = &mut last[channel as usize];
                *end = (cal.now + delay).max(*end);
                cal.arrive_at(*end, channel, id);
                (*end, Event::Arrive(id))
            } else {
                cal.at(cal.now + delay, Event::Timer(id));
                (cal.now + delay, Event::Timer(id))
            };
            sorted.insert((time, id), event);
            // As many are taken as are scheduled, in groups.
            for _ in 0..(state >> 33) % 3 {
                let first = sorted.pop_first();
                assert_eq!(cal.pop(), first.map(|f| f.1));
                told += u32::from(first.is_some());
                assert!(first.is_none_or(|f| f.0.0 == cal.now));
            }
        }
        while let Some((_, event)) = sorted.pop_first() {
            assert_eq!(cal.pop(), Some(event));
            told += 1;
        }
        assert_eq!((cal.pop(), cal.pop(), told), (None, None, 20_000));
    }

    #[test]
    fn entries_are_equal_where_none_is_before_the_other() {
        let entry = |seq, id| Entry { time: 5, seq, event: Event::Timer(id) };
        assert!(entry(1, 2) == entry(1, 3) && entry(1, 2) != entry(2, 2));
    }
}
