//! WQEs that were taken and are not complete, in the order in which they came.
//!
//! Events may come from a hostile program: no step looks through all of them. A ring has at most 2^15 basic blocks, so
//! that of one index one WQE is open; one that comes again takes the place of the one before.

use std::collections::{BTreeMap, HashMap};

use super::queue::Message;

#[derive(Default)]
pub(super) struct Open {
    all: BTreeMap<u64, Message>,
    of: HashMap<u16, u64>,
    next: u64,
    /// Of all: their blocks, and how many are in flight with how many bytes.
    blocks: u64,
    flying: (u64, u64),
}

fn in_flight(message: &Message) -> (u64, u64) {
    match message.fetched != 0 && message.done == 0 {
        true => (1, message.bytes),
        false => (0, 0),
    }
}

impl Open {
    /// Adds one; the one of the same index that it takes the place of.
    pub fn push(&mut self, message: Message) -> Option<Message> {
        let before = self.remove(message.index);
        self.count(&message);
        self.of.insert(message.index, self.next);
        self.all.insert(self.next, message);
        self.next += 1;
        before
    }

    fn count(&mut self, message: &Message) {
        let (n, bytes) = in_flight(message);
        self.flying = (self.flying.0 + n, self.flying.1.wrapping_add(bytes));
        self.blocks = self.blocks.wrapping_add(message.blocks);
    }

    fn uncount(&mut self, message: &Message) {
        let (n, bytes) = in_flight(message);
        self.flying = (self.flying.0 - n, self.flying.1.wrapping_sub(bytes));
        self.blocks = self.blocks.wrapping_sub(message.blocks);
    }

    /// That of an index.
    pub fn get(&self, index: u16) -> Option<&Message> {
        self.all.get(self.of.get(&index)?)
    }

    /// Changes that of an index, if there is one.
    pub fn change(&mut self, index: u16, change: impl FnOnce(&mut Message)) {
        let Some(mut message) = self.of.get(&index).and_then(|nth| self.all.remove(nth)) else {
            return;
        };
        self.uncount(&message);
        change(&mut message);
        self.count(&message);
        self.all.insert(self.of[&index], message);
    }

    /// Takes that of an index out.
    pub fn remove(&mut self, index: u16) -> Option<Message> {
        let message = self.all.remove(&self.of.remove(&index)?)?;
        self.uncount(&message);
        Some(message)
    }

    /// Takes out that of an index and all before it, if there is one.
    pub fn through(&mut self, index: u16) -> impl Iterator<Item = Message> {
        let taken = match self.of.get(&index) {
            Some(&nth) => {
                let rest = self.all.split_off(&(nth + 1));
                std::mem::replace(&mut self.all, rest)
            }
            None => BTreeMap::new(),
        };
        for message in taken.values() {
            self.uncount(message);
            self.of.remove(&message.index);
        }
        taken.into_values()
    }

    /// All, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Message> + Clone {
        self.all.values()
    }

    /// Their basic blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Those that were taken and are not done, and their bytes.
    pub fn in_flight(&self) -> (u64, u64) {
        self.flying
    }
}
