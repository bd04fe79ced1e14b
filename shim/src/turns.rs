//! What a program that rings by itself waits for: how many doorbells it rings before it waits, and how many messages
//! it has by its next one. Both are taken to be as they were the last time that the turn before was of the same sort,
//! as a processor foresees branches: a message in fragments is several doorbells and several messages, and those of a
//! rendezvous go in turns of different sorts. Hints: nothing is ordered by them.

use std::sync::atomic::{AtomicU32, Ordering};

/// Doorbells and messages of a turn that are counted.
const MOST: u32 = 15;
/// So many of each are told apart in the turn before.
const SORTS: u32 = 4;

/// See above. Written by whoever steps the engine, and by who rings.
#[derive(Default)]
pub struct Turns {
    /// Doorbells of this turn, and the messages that have come after them.
    rings: AtomicU32,
    messages: AtomicU32,
    /// The sort of the turn before.
    before: AtomicU32,
    /// Doorbells and messages of the last turn behind each sort; 0 for none.
    behind: [AtomicU32; (SORTS * SORTS) as usize],
}

impl Turns {
    /// The program has rung. After messages that is another turn.
    pub fn rang(&self) {
        let rings = self.rings.load(Ordering::Relaxed);
        let messages = self.messages.swap(0, Ordering::Relaxed);
        if messages == 0 {
            return self.rings.store((rings + 1).min(MOST), Ordering::Relaxed);
        }
        self.behind_this().store(rings << 8 | messages, Ordering::Relaxed);
        let sort = |count: u32| count.min(SORTS - 1);
        self.before.store(sort(rings) * SORTS + sort(messages), Ordering::Relaxed);
        self.rings.store(1, Ordering::Relaxed);
    }

    /// So many messages have come.
    pub fn came(&self, messages: u64) {
        let before = self.messages.load(Ordering::Relaxed);
        let all = messages.saturating_add(before.into()).min(MOST.into()) as u32;
        self.messages.store(all, Ordering::Relaxed);
    }

    /// Whether the program has rung as often as it is expected to before it waits.
    pub fn has_rung(&self) -> bool {
        self.rings.load(Ordering::Relaxed) >= self.behind_this().load(Ordering::Relaxed) >> 8
    }

    /// Whether any message of this turn's has come.
    pub fn has_any(&self) -> bool {
        self.messages.load(Ordering::Relaxed) > 0
    }

    /// Whether as many messages have come as it is expected to wait for.
    pub fn has_all(&self) -> bool {
        let expected = self.behind_this().load(Ordering::Relaxed) & 0xff;
        self.messages.load(Ordering::Relaxed) >= expected.max(1)
    }

    fn behind_this(&self) -> &AtomicU32 {
        &self.behind[self.before.load(Ordering::Relaxed) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program's turns again and again: doorbells, and the messages after them. How many of the last round's looks
    /// were right: none before the last doorbell, and one until the last message.
    fn right_looks(turns: &Turns, program: &[(u32, u32)], rounds: u32) -> Vec<bool> {
        let mut right = Vec::new();
        for _ in 0..rounds {
            right.clear();
            for &(rings, messages) in program {
                for ring in 1..=rings {
                    turns.rang();
                    right.push(turns.has_rung() == (ring == rings));
                }
                for message in 1..=messages {
                    assert!(!turns.has_all() || message > 1, "of a new turn nothing has come");
                    turns.came(1);
                    right.push(turns.has_all() == (message == messages));
                }
            }
        }
        right
    }

    #[test]
    fn turns_are_foreseen_by_the_turn_before() {
        let programs: [&[(u32, u32)]; 5] =
            [&[(1, 1)], &[(2, 2)], &[(1, 3)], &[(1, 1), (2, 2)], &[(1, 2), (3, 1), (1, 1)]];
        let turns = Turns::default();
        for program in programs {
            let right = right_looks(&turns, program, 4);
            assert!(right.iter().all(|&right| right), "{program:?}: {right:?}");
        }
    }

    #[test]
    fn more_than_is_counted_is_as_much_as_is() {
        let turns = Turns::default();
        right_looks(&turns, &[(40, 300)], 2);
        (0..40).for_each(|_| turns.rang());
        assert!(turns.has_rung());
        turns.came(u64::MAX);
        assert!(turns.has_all());
    }
}
