//! What a NIC does to the program's memory, as it goes into a recording.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::event::{Event, Tail};
use super::log::Recorder;
use super::{QUEUE, SHORT, hash};
use bellpush_mem::{Dma, Hook, Hooked, HostMem, MemError, View};

/// Words of a region that are known; of more than these every load is written down.
const MOST_WORDS: usize = 64;

/// What loads of words found last, by region.
#[derive(Default)]
pub(super) struct Words {
    regions: Vec<Vec<Word>>,
    /// Steps and calls so far.
    turn: u64,
}

struct Word {
    offset: u64,
    bytes: u8,
    value: Option<u64>,
    turn: u64,
    nth: u8,
}

impl Words {
    /// A step or call begins.
    pub(super) fn begin(&mut self) {
        self.turn += 1;
    }

    /// A load of a word: which one of this turn it is, and what the last one found. `None` for one of more words than
    /// are known.
    pub(super) fn load(
        &mut self,
        region: u32,
        offset: u64,
        bytes: u8,
    ) -> Option<(u8, &mut Option<u64>)> {
        let at = region as usize;
        if at >= self.regions.len() {
            self.regions.resize_with(at + 1, Vec::new);
        }
        let (words, turn) = (&mut self.regions[at], self.turn);
        let known = words.iter().position(|word| word.offset == offset && word.bytes == bytes);
        let index = match known {
            Some(index) => index,
            None if words.len() == MOST_WORDS => return None,
            None => {
                words.push(Word { offset, bytes, value: None, turn: 0, nth: 0 });
                words.len() - 1
            }
        };
        let word = &mut words[index];
        word.nth = if word.turn == turn { word.nth.saturating_add(1) } else { 0 };
        word.turn = turn;
        Some((word.nth, &mut word.value))
    }

    /// What the last load of a word found.
    pub(super) fn set(&mut self, region: u32, offset: u64, bytes: u8, value: Option<u64>) {
        let words = self.regions.get_mut(region as usize);
        let of = |word: &&mut Word| word.offset == offset && word.bytes == bytes;
        if let Some(word) = words.and_then(|words| words.iter_mut().find(of)) {
            word.value = value;
        }
    }
}

/// Whether an access is one of a word.
pub(super) fn is_word(offset: usize, bytes: usize) -> bool {
    matches!(bytes, 4 | 8) && offset.is_multiple_of(bytes)
}

pub(super) fn word_of(bytes: &[u8]) -> u64 {
    match bytes.try_into() {
        Ok(bytes) => u64::from_ne_bytes(bytes),
        Err(_) => bytes.try_into().map_or(0, u32::from_ne_bytes).into(),
    }
}

/// Takes [`word_of`] back.
pub(super) fn put_word(value: u64, into: &mut [u8]) {
    match into.len() {
        4 => into.copy_from_slice(&(value as u32).to_ne_bytes()),
        _ => into.copy_from_slice(&value.to_ne_bytes()),
    }
}

/// Memory of the program, and who writes down what the NIC does there.
struct Tap<M> {
    memory: M,
    region: u32,
    /// Whether it is a queue's: loads of its words are told from copies.
    queue: bool,
    recorder: Arc<Recorder>,
}

/// Memory as taps reach it.
trait Reach: Send + Sync {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError>;
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError>;
    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError>;
    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError>;
}

/// A queue's words have an order.
impl Reach for Arc<HostMem> {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        match into.len() {
            // Acquire: as the NIC's own load would, of what the program wrote before.
            8 if is_word(offset, 8) => {
                into.copy_from_slice(&self.load_u64(offset, Ordering::Acquire)?.to_ne_bytes());
                Ok(())
            }
            4 if is_word(offset, 4) => {
                into.copy_from_slice(&self.load_u32(offset, Ordering::Acquire)?.to_ne_bytes());
                Ok(())
            }
            _ => HostMem::read(self, offset, into),
        }
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        // Release: as the NIC's own store would, for whoever polls the word.
        match *from {
            [a, b, c, d, e, f, g, h] if is_word(offset, 8) => {
                let word = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
                self.store_u64(offset, word, Ordering::Release)
            }
            [a, b, c, d] if is_word(offset, 4) => {
                self.store_u32(offset, u32::from_ne_bytes([a, b, c, d]), Ordering::Release)
            }
            _ => HostMem::write(self, offset, from),
        }
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        self.fetch_add_u64(offset, add)
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        self.compare_swap_u64(offset, compare, swap)
    }
}

impl Reach for Arc<dyn Dma> {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        (**self).read(offset, into)
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        (**self).write(offset, from)
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        (**self).fetch_add(offset, add)
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        (**self).compare_swap(offset, compare, swap)
    }
}

impl<M> Tap<M> {
    /// Writes down that memory is not there, if it is not.
    fn check<T>(&self, offset: usize, len: usize, result: &Result<T, MemError>) -> bool {
        if result.is_err() {
            let (region, offset) = (self.region, offset as u64);
            self.recorder.log().say(&Event::Faulted { region, offset, len: len as u64 });
        }
        result.is_ok()
    }

    fn is_whole(&self, len: usize) -> bool {
        self.queue && len <= QUEUE || !self.queue && self.recorder.whole || len <= SHORT
    }

    fn say_read(&self, offset: usize, bytes: &[u8]) {
        let (region, at) = (self.region, offset as u64);
        let mut log = self.recorder.log();
        if self.queue && is_word(offset, bytes.len()) {
            let value = word_of(bytes);
            if let Some((nth, last)) = log.words.load(region, at, bytes.len() as u8) {
                if *last != Some(value) {
                    *last = Some(value);
                    let bytes = bytes.len() as u8;
                    log.say(&Event::Word { region, offset: at, bytes, nth, value });
                }
                return;
            }
        }
        match self.is_whole(bytes.len()) {
            true => log.say(&Event::Read { region, offset: at, bytes }),
            false => log.say(&Event::ReadHashed { region, offset: at, tail: tail(bytes) }),
        }
    }
}

pub(super) fn tail(bytes: &[u8]) -> Tail {
    Tail { len: bytes.len() as u32, hash: hash(bytes) }
}

impl<M: Reach> Hook for Tap<M> {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        let result = self.memory.read(offset, into);
        if self.recorder.is_ours() && self.check(offset, into.len(), &result) {
            self.say_read(offset, into);
        }
        result
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        let result = self.memory.write(offset, from);
        if self.recorder.is_ours() && self.check(offset, from.len(), &result) {
            let (region, at) = (self.region, offset as u64);
            let mut log = self.recorder.log();
            match self.is_whole(from.len()) {
                true => log.say(&Event::Wrote { region, offset: at, bytes: from }),
                false => log.say(&Event::WroteHashed { region, offset: at, tail: tail(from) }),
            }
        }
        result
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        let result = self.memory.fetch_add(offset, add);
        self.say_changed(offset, (true, [add, 0]), &result);
        result
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        let result = self.memory.compare_swap(offset, compare, swap);
        self.say_changed(offset, (false, [compare, swap]), &result);
        result
    }
}

impl<M> Tap<M> {
    fn say_changed(
        &self,
        offset: usize,
        (add, operands): (bool, [u64; 2]),
        result: &Result<u64, MemError>,
    ) {
        if !self.recorder.is_ours() || !self.check(offset, 8, result) {
            return;
        }
        if let Ok(old) = *result {
            let (region, offset) = (self.region, offset as u64);
            self.recorder.log().say(&Event::Changed { region, offset, add, operands, old });
        }
    }
}

/// A view of a queue, tapped.
pub(super) fn queue(recorder: &Arc<Recorder>, region: u32, view: &View) -> View {
    let (memory, recorder) = (view.mem().clone(), recorder.clone());
    let (addr, bytes) = (memory.addr(), memory.len());
    let hooked = Hooked::new(addr, bytes, Box::new(Tap { memory, region, queue: true, recorder }));
    let tapped = View::hooked(hooked, view.offset(), view.len());
    tapped.expect("the same part of memory that begins with a page")
}

/// A region of the program's, tapped.
pub(super) fn region(recorder: &Arc<Recorder>, region: u32, memory: Arc<dyn Dma>) -> Arc<dyn Dma> {
    let (addr, bytes) = (memory.place().unwrap_or(0), memory.bytes());
    let recorder = recorder.clone();
    Hooked::new(addr, bytes, Box::new(Tap { memory, region, queue: false, recorder }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_of_a_word_are_counted_in_each_turn_and_told_apart() {
        let mut words = Words::default();
        words.begin();
        let nth = |words: &mut Words, offset| words.load(3, offset, 8).map(|(nth, _)| nth);
        assert_eq!(
            [0, 0, 8, 0].map(|at| nth(&mut words, at)),
            [Some(0), Some(1), Some(0), Some(2)]
        );
        words.set(3, 8, 8, Some(7));
        words.begin();
        assert_eq!(words.load(3, 8, 8), Some((0, &mut Some(7))));
        assert_eq!(words.load(3, 8, 4), Some((0, &mut None)), "half of it is another word");
        for at in 2..MOST_WORDS as u64 - 1 {
            assert_eq!(nth(&mut words, 8 * at), Some(0), "{at}");
        }
        assert_eq!(nth(&mut words, 8 * MOST_WORDS as u64), None, "one too many");
        assert_eq!(nth(&mut words, 0), Some(0), "those that are known stay");
    }
}
