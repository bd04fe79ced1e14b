//! What a NIC does to the program's memory, as it goes into a recording.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::event::{Event, Tail};
use super::log::{Log, Recorder};
use super::{QUEUE, SHORT, hash};
use bellpush_mem::{Dma, Hook, Hooked, HostMem, MemError, View};

/// Words of a queue that are known; of more than these every load is written down.
const MOST_WORDS: usize = 64;

/// What loads of words found last, by queue: memories are numbered without end, and most are no queues.
#[derive(Default)]
pub(super) struct Words {
    queues: Vec<Queue>,
    /// Steps and calls so far.
    turn: u64,
}

#[derive(Default)]
struct Queue {
    words: Vec<Word>,
    /// Where the next load finds its word, if they go round as before.
    next: usize,
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
    #[inline]
    pub(super) fn load(
        &mut self,
        queue: u32,
        offset: u64,
        bytes: u8,
    ) -> Option<(u8, &mut Option<u64>)> {
        let at = queue as usize;
        if at >= self.queues.len() {
            self.queues.resize_with(at + 1, Queue::default);
        }
        let (Queue { words, next }, turn) = (&mut self.queues[at], self.turn);
        let is_it = |word: &Word| word.offset == offset && word.bytes == bytes;
        let index = match words.get(*next) {
            Some(word) if is_it(word) => *next,
            _ => match words.iter().position(is_it) {
                Some(index) => index,
                None if words.len() == MOST_WORDS => return None,
                None => {
                    words.push(Word { offset, bytes, value: None, turn: 0, nth: 0 });
                    words.len() - 1
                }
            },
        };
        *next = if index + 1 < words.len() { index + 1 } else { 0 };
        let word = &mut words[index];
        word.nth = if word.turn == turn { word.nth.saturating_add(1) } else { 0 };
        word.turn = turn;
        Some((word.nth, &mut word.value))
    }

    /// What the last load of a word found.
    pub(super) fn set(&mut self, queue: u32, offset: u64, bytes: u8, value: Option<u64>) {
        let queue = self.queues.get_mut(queue as usize);
        let of = |word: &&mut Word| word.offset == offset && word.bytes == bytes;
        if let Some(word) = queue.and_then(|queue| queue.words.iter_mut().find(of)) {
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
    /// A queue's place among queues: loads of its words are told from copies.
    queue: Option<u32>,
    recorder: Arc<Recorder>,
}

/// Memory as taps reach it.
trait Reach: Send + Sync {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError>;
    fn load(&self, offset: usize, bytes: usize) -> Result<u64, MemError>;
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError>;
    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError>;
    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError>;
}

/// A queue's words have an order.
impl Reach for Arc<HostMem> {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        match into.len() {
            bytes if is_word(offset, bytes) => {
                put_word(Reach::load(self, offset, bytes)?, into);
                Ok(())
            }
            _ => HostMem::read(self, offset, into),
        }
    }

    #[inline]
    fn load(&self, offset: usize, bytes: usize) -> Result<u64, MemError> {
        // Acquire: as the NIC's own load would, of what the program wrote before.
        match bytes {
            4 => self.load_u32(offset, Ordering::Acquire).map(u64::from),
            _ => self.load_u64(offset, Ordering::Acquire),
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

    fn load(&self, offset: usize, bytes: usize) -> Result<u64, MemError> {
        (**self).load(offset, bytes)
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
    /// Writes down that memory is not there.
    #[cold]
    fn say_faulted(&self, log: &mut Log, offset: usize, len: usize) {
        let (region, offset, len) = (self.region, offset as u64, len as u64);
        log.say(&Event::Faulted { region, offset, len });
    }

    fn is_whole(&self, len: usize) -> bool {
        let all = if self.queue.is_some() { len <= QUEUE } else { self.recorder.whole };
        all || len <= SHORT
    }

    fn say_read(&self, log: &mut Log, offset: usize, bytes: &[u8]) {
        let (region, at) = (self.region, offset as u64);
        if let Some(queue) = self.queue.filter(|_| is_word(offset, bytes.len())) {
            return self.say_load(log, (queue, offset), (word_of(bytes), bytes));
        }
        match self.is_whole(bytes.len()) {
            true => log.say(&Event::Read { region, offset: at, bytes }),
            false => log.say(&Event::ReadHashed { region, offset: at, tail: tail(bytes) }),
        }
    }

    /// A word of a queue's was loaded.
    #[inline]
    fn say_load(
        &self,
        log: &mut Log,
        (queue, offset): (u32, usize),
        (value, as_bytes): (u64, &[u8]),
    ) {
        let (region, offset, bytes) = (self.region, offset as u64, as_bytes.len() as u8);
        match log.words.load(queue, offset, bytes) {
            Some((_, last)) if *last == Some(value) => {}
            Some((nth, last)) => {
                *last = Some(value);
                log.say(&Event::Word { region, offset, bytes, nth, value });
            }
            None => log.say(&Event::Read { region, offset, bytes: as_bytes }),
        }
    }
}

pub(super) fn tail(bytes: &[u8]) -> Tail {
    Tail { len: bytes.len() as u32, hash: hash(bytes) }
}

impl<M: Reach> Hook for Tap<M> {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        let result = self.memory.read(offset, into);
        self.recorder.with(|log| match &result {
            Ok(()) => self.say_read(log, offset, into),
            Err(_) => self.say_faulted(log, offset, into.len()),
        });
        result
    }

    #[inline]
    fn load(&self, offset: usize, bytes: usize) -> Result<u64, MemError> {
        let Some(queue) = self.queue.filter(|_| is_word(offset, bytes)) else {
            let mut word = [0; 8];
            self.read(offset, &mut word[..bytes])?;
            return Ok(word_of(&word[..bytes]));
        };
        let result = self.memory.load(offset, bytes);
        self.recorder.with(|log| match result {
            Ok(value) => {
                let mut as_bytes = [0; 8];
                put_word(value, &mut as_bytes[..bytes]);
                self.say_load(log, (queue, offset), (value, &as_bytes[..bytes]));
            }
            Err(_) => self.say_faulted(log, offset, bytes),
        });
        result
    }

    /// An engine does so for each register in each step: what has not changed takes no look at whose turn it is.
    #[inline]
    fn poll(&self, offset: usize, seen: u64) -> Result<u64, MemError> {
        let result = self.memory.load(offset, 8);
        if result.as_ref().is_ok_and(|&value| value == seen) {
            return result;
        }
        self.recorder.with(|log| match result {
            Ok(value) => {
                let (region, offset, bytes) = (self.region, offset as u64, 8);
                let known = self.queue.and_then(|queue| log.words.load(queue, offset, bytes));
                if let Some((_, last)) = known {
                    *last = Some(value);
                }
                log.say(&Event::Word { region, offset, bytes, nth: 0, value });
            }
            Err(_) => self.say_faulted(log, offset, 8),
        });
        result
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        let result = self.memory.write(offset, from);
        let (region, at, bytes) = (self.region, offset as u64, from);
        self.recorder.with(|log| match result {
            Err(_) => self.say_faulted(log, offset, from.len()),
            Ok(()) if self.is_whole(from.len()) => {
                log.say(&Event::Wrote { region, offset: at, bytes });
            }
            Ok(()) => log.say(&Event::WroteHashed { region, offset: at, tail: tail(bytes) }),
        });
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
        let (region, at) = (self.region, offset as u64);
        self.recorder.with(|log| match *result {
            Ok(old) => log.say(&Event::Changed { region, offset: at, add, operands, old }),
            Err(_) => self.say_faulted(log, offset, 8),
        });
    }
}

/// A view of a queue, tapped.
pub(super) fn queue(recorder: &Arc<Recorder>, region: u32, view: &View) -> View {
    let (memory, recorder) = (view.mem().clone(), recorder.clone());
    let (addr, bytes, queue) = (memory.addr(), memory.len(), Some(recorder.number_queue()));
    let hooked = Hooked::new(addr, bytes, Box::new(Tap { memory, region, queue, recorder }));
    let tapped = View::hooked(hooked, view.offset(), view.len());
    tapped.expect("the same part of memory that begins with a page")
}

/// A region of the program's, tapped.
pub(super) fn region(recorder: &Arc<Recorder>, region: u32, memory: Arc<dyn Dma>) -> Arc<dyn Dma> {
    let (addr, bytes) = (memory.place().unwrap_or(0), memory.bytes());
    let recorder = recorder.clone();
    Hooked::new(addr, bytes, Box::new(Tap { memory, region, queue: None, recorder }))
}

#[cfg(test)]
mod tests {
    use super::super::event_names;
    use super::super::log::tests::recorder;
    use super::*;

    #[test]
    fn a_register_that_says_what_it_said_is_not_told_of() {
        let (recorder, path, _dir) = recorder();
        let recorder = Arc::new(recorder);
        let memory = HostMem::alloc(bellpush_mem::PAGE_BYTES).unwrap();
        let view = queue(&recorder, 3, &View::new(&memory, 64, 64).unwrap());
        for value in [0, 0, 7, 7, 0] {
            memory.store_u64(72, value, Ordering::Relaxed).unwrap();
            let turn = recorder.turn();
            turn.begin_step(value);
            assert_eq!(view.poll_u64(8, 0).unwrap(), value);
            assert_eq!(view.poll_u64(8, value).unwrap(), value);
            turn.end_step(false);
            assert_eq!(view.poll_u64(8, 9).unwrap(), value, "nobody's turn");
        }
        drop((view, recorder));
        let loads = "  loads 0x7 at 0x48 of memory 3";
        let step = "step at 0.000000007 s";
        assert_eq!(event_names(&path), [step, loads, step, loads, "the device is closed"]);
    }

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
