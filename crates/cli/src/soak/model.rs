//! What both memories must hold: a reference on the host, and what is still under way there.
//!
//! An operation is applied when it is posted. Until its end has quieted it is pending: a host must not touch what it
//! touches, and when its queue pair ends nobody knows whether it was carried out.

use std::ops::Range;

/// A place in one of the two memories: 0 is that of the ends that are called `a`, 1 that of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub memory: usize,
    pub at: usize,
}

/// Who posts: a connection, and one of its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who {
    pub connection: usize,
    pub side: usize,
}

/// What an operation does to memory.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    Copy { from: Place, to: Place, bytes: usize },
    Value { to: Place, bytes: Vec<u8> },
    Word { at: Place, change: Change, old: Option<Place> },
}

/// What an atomic, or a signal, does to a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Add(u64),
    Set(u64),
    Swap { compare: u64, with: u64 },
}

/// An access of a pending operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Access {
    place: Place,
    bytes: usize,
    writes: bool,
}

impl Access {
    fn range(&self) -> Range<usize> {
        self.place.at..self.place.at + self.bytes
    }

    fn meets(&self, other: &Self) -> bool {
        let (a, b) = (self.range(), other.range());
        self.place.memory == other.place.memory && a.start < b.end && b.start < a.end
    }
}

/// Bytes that a pending operation changes.
struct Write {
    who: Who,
    place: Place,
    before: Vec<u8>,
    after: Vec<u8>,
    is_word: bool,
}

/// The first range of bytes that are not as they should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub memory: usize,
    pub at: usize,
    pub bytes: usize,
    /// Wrong bytes in all.
    pub wrong: usize,
    pub expected: Vec<u8>,
    pub seen: Vec<u8>,
}

/// Bytes of a difference that are told.
const TOLD: usize = 32;

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { memory, at, bytes, wrong, expected, seen } = self;
        write!(
            f,
            "memory {memory}, offset {at:#x}: {bytes} bytes differ in a row, {wrong} in all; expected \
             {expected:02x?}, seen {seen:02x?}"
        )
    }
}

pub struct Model {
    now: [Vec<u8>; 2],
    accesses: Vec<(Who, Access)>,
    writes: Vec<Write>,
}

impl Model {
    pub fn new(a: Vec<u8>, b: Vec<u8>) -> Self {
        Self { now: [a, b], accesses: Vec::new(), writes: Vec::new() }
    }

    /// A word's value when all that was posted is done.
    pub fn word(&self, at: Place) -> u64 {
        let bytes = &self.now[at.memory][at.at..at.at + 8];
        u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// Whether anything is pending of `who`.
    pub fn is_pending(&self, who: Who) -> bool {
        self.accesses.iter().any(|(of, _)| *of == who)
    }

    /// Whether something that is pending of the connection's other end writes to the memory of `who`'s peer.
    pub fn is_peer_writing(&self, who: Who) -> bool {
        let (peer, memory) = (Who { side: 1 - who.side, ..who }, 1 - who.side);
        let is_it = |(of, access): &(Who, Access)| {
            *of == peer && access.writes && access.place.memory == memory
        };
        self.accesses.iter().any(is_it)
    }

    /// Whose pending operations must be waited for before `who` posts this. `in_order`: the peer's memory sees what one
    /// end posts in its order; so it may write there again, and fetch what it wrote.
    pub fn in_the_way(&self, who: Who, effects: &[Effect], in_order: bool) -> Vec<Who> {
        let mut found = Vec::new();
        for new in effects.iter().flat_map(accesses) {
            for &(of, old) in &self.accesses {
                if !(new.writes || old.writes) || !new.meets(&old) || found.contains(&of) {
                    continue;
                }
                let remote = old.place.memory == 1 - who.side;
                if !(in_order && of == who && remote && old.writes) {
                    found.push(of);
                }
            }
        }
        found
    }

    /// Applies what was posted.
    pub fn apply(&mut self, who: Who, effects: &[Effect]) {
        for effect in effects {
            self.accesses.extend(accesses(effect).map(|access| (who, access)));
            match effect {
                &Effect::Copy { from, to, bytes } => {
                    let bytes = self.now[from.memory][from.at..from.at + bytes].to_vec();
                    self.write(who, to, bytes, false);
                }
                Effect::Value { to, bytes } => self.write(who, *to, bytes.clone(), false),
                &Effect::Word { at, change, old } => {
                    let before = self.word(at);
                    let after = match change {
                        Change::Add(value) => before.wrapping_add(value),
                        Change::Set(value) => value,
                        Change::Swap { compare, with } if before == compare => with,
                        Change::Swap { .. } => before,
                    };
                    self.write(who, at, after.to_ne_bytes().to_vec(), true);
                    if let Some(old) = old {
                        self.write(who, old, before.to_ne_bytes().to_vec(), false);
                    }
                }
            }
        }
    }

    fn write(&mut self, who: Who, place: Place, after: Vec<u8>, is_word: bool) {
        let there = &mut self.now[place.memory][place.at..place.at + after.len()];
        let before = there.to_vec();
        there.copy_from_slice(&after);
        self.writes.push(Write { who, place, before, after, is_word });
    }

    /// The host has written, where nothing is pending.
    pub fn written_by_host(&mut self, at: Place, bytes: &[u8]) {
        self.now[at.memory][at.at..at.at + bytes.len()].copy_from_slice(bytes);
    }

    /// All of `who` is done.
    pub fn settle(&mut self, who: Who) {
        self.accesses.retain(|(of, _)| *of != who);
        self.writes.retain(|write| write.who != who);
    }

    /// Compares a part of a memory, of which nothing may be under way.
    pub fn compare(&self, memory: usize, at: usize, seen: &[u8]) -> Option<Difference> {
        let expected = &self.now[memory][at..at + seen.len()];
        difference(memory, at, expected, seen, |_| false)
    }

    /// Compares a connection's part of a memory after one of its queue pairs has ended: what was pending was carried out in
    /// whole, in part or not at all, the words among it as a whole. `in_order`, for what each side has posted: what lies before a
    /// word that was changed was carried out. What was seen is what there is from now on.
    pub fn compare_ended(
        &mut self,
        connection: usize,
        (memory, at): (usize, usize),
        seen: &[u8],
        in_order: [bool; 2],
    ) -> Option<Difference> {
        let mut done = self.known_done(connection, (memory, at), seen);
        done.iter_mut().zip(in_order).filter(|(_, is)| !is).for_each(|(done, _)| *done = 0);
        let expected = &self.now[memory][at..at + seen.len()];
        let allowed = |offset: usize| self.is_allowed(connection, (memory, at), seen, offset, done);
        let found = difference(memory, at, expected, seen, allowed);
        self.now[memory][at..at + seen.len()].copy_from_slice(seen);
        found
    }

    /// The writes to a place of a connection's, with their numbers.
    fn writes_to(&self, connection: usize, place: Place) -> impl Iterator<Item = (usize, &Write)> {
        self.writes.iter().enumerate().filter(move |(_, write)| {
            let its = write.place.at..write.place.at + write.after.len();
            write.who.connection == connection
                && write.place.memory == place.memory
                && its.contains(&place.at)
        })
    }

    /// For each end, the number of the last write of which a word tells that it was carried out, plus 1.
    fn known_done(
        &self,
        connection: usize,
        (memory, at): (usize, usize),
        seen: &[u8],
    ) -> [usize; 2] {
        let mut done = [0; 2];
        for (number, write) in self.writes.iter().enumerate() {
            let (start, is_its) =
                (write.place.at, write.who.connection == connection && write.is_word);
            if !is_its || write.place.memory != memory || write.before == write.after {
                continue;
            }
            // Values that come twice say nothing.
            let mut its =
                self.writes_to(connection, write.place).map(|(_, write)| write).peekable();
            let is_new = its.peek().is_some_and(|first| first.before != write.after);
            let once = its.filter(|other| other.after == write.after).count() == 1;
            if is_new && once && seen[start - at..start - at + 8] == write.after[..] {
                let side = &mut done[write.who.side];
                *side = (*side).max(number + 1);
            }
        }
        done
    }

    fn is_allowed(
        &self,
        connection: usize,
        (memory, at): (usize, usize),
        seen: &[u8],
        offset: usize,
        done: [usize; 2],
    ) -> bool {
        let place = Place { memory, at: at + offset };
        let mut writes = self.writes_to(connection, place).peekable();
        let Some(&(_, first)) = writes.peek() else { return false };
        if first.is_word {
            let start = first.place.at - at;
            let word = &seen[start..start + 8];
            return first.before == word || writes.any(|(_, write)| write.after == word);
        }
        let within = |write: &Write| place.at - write.place.at;
        let mut values = vec![first.before[within(first)]];
        for (number, write) in writes {
            // Results land at the end that asked, which no word of the peer's tells of.
            if write.place.memory != write.who.side && number < done[write.who.side] {
                values.clear();
            }
            values.push(write.after[within(write)]);
        }
        values.contains(&seen[offset])
    }
}

fn accesses(effect: &Effect) -> impl Iterator<Item = Access> + use<> {
    let access = |place, bytes, writes| Some(Access { place, bytes, writes });
    let two = match effect {
        &Effect::Copy { from, to, bytes } => [access(from, bytes, false), access(to, bytes, true)],
        Effect::Value { to, bytes } => [access(*to, bytes.len(), true), None],
        &Effect::Word { at, old, .. } => {
            [access(at, 8, true), old.and_then(|old| access(old, 8, true))]
        }
    };
    two.into_iter().flatten()
}

/// Where two parts of memory differ, but for differences that are allowed.
fn difference(
    memory: usize,
    at: usize,
    expected: &[u8],
    seen: &[u8],
    allowed: impl Fn(usize) -> bool,
) -> Option<Difference> {
    if expected == seen {
        return None;
    }
    let is_wrong = |&i: &usize| expected[i] != seen[i] && !allowed(i);
    let wrong: Vec<usize> = (0..seen.len()).filter(is_wrong).collect();
    let first = *wrong.first()?;
    let bytes = wrong.iter().enumerate().take_while(|&(i, &w)| w == first + i).count();
    let told = first..first + bytes.min(TOLD);
    let (expected, seen) = (expected[told.clone()].to_vec(), seen[told].to_vec());
    Some(Difference { memory, at: at + first, bytes, wrong: wrong.len(), expected, seen })
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
