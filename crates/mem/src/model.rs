//! Memory whose accesses loom sees: the code that runs is model-checked on it as it is.
//!
//! A [`HostMem`] made by [`HostMem::modelled`] behaves as mapped memory does, within one execution of
//! a loom model:
//! - a word that is accessed as an atomic is an atomic of loom's, with the order that the caller
//!   names: a load may return any value that the C++ memory model allows, stale ones among them;
//! - a copy's bytes that are no such words are noted in cells of loom's, a line each: two accesses
//!   that nothing orders, one of which writes, fail the model as the data race that they are;
//! - in memory that is *raced on by design* ([`Shape::Halves`]: windows, whose lines say by themselves
//!   whether they are whole) every access is one of relaxed 4-byte atomics. A load of 8 bytes is two
//!   loads there, the later half first, which is weaker than what a machine does.
//!
//! Everything else of the program (locks of the engine, its maps) loom does not see: a model lets
//! one thread run the engine, and others touch modelled memory only.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64};

use crate::host::Owner;
use crate::{Dma, HostMem, MemError};

/// Tries every interleaving of `model`'s threads with at most `preemptions` switches that nothing
/// asked for.
///
/// # Panics
/// When one of them fails.
pub fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Bytes of a word.
const WORD: usize = 8;
/// Bytes whose accesses one cell notes.
const LINE: usize = 64;

/// How the words of a modelled memory are accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// What is accessed as an atomic is so by one size; the rest is guarded by it.
    Guarded,
    /// All of it is 4-byte atomics.
    Halves,
}

#[derive(Clone)]
enum Word {
    Whole(Arc<AtomicU64>),
    Halves(Arc<[AtomicU32; 2]>),
}

/// Bytes, and what loom is to know of them.
pub(crate) struct Model {
    shape: Shape,
    /// Held for no operation of loom's: another thread of the model could wait for it then.
    state: Mutex<State>,
}

struct State {
    bytes: Vec<u8>,
    words: BTreeMap<usize, Word>,
    lines: BTreeMap<usize, Arc<UnsafeCell<()>>>,
}

// SAFETY: the threads of a loom model are fibres of one thread.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl HostMem {
    /// Zero-filled memory of `bytes` bytes for one execution of a loom model.
    pub fn modelled(bytes: usize, shape: Shape) -> Arc<Self> {
        let place = Self::alloc(bytes).expect("a page or more");
        let state =
            State { bytes: vec![0; place.len()], words: BTreeMap::new(), lines: BTreeMap::new() };
        let model = Arc::new(Model { shape, state: Mutex::new(state) });
        let (base, len) = (place.base, place.len);
        // The mapping is only for an address that nothing else has.
        Arc::new(Self::over(base, len, Owner::Model { dma: model.clone(), model, place }))
    }
}

impl Model {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The word at an offset, as an atomic from now on if `make` says of what size.
    fn word(&self, offset: usize, make: Option<usize>) -> Option<Word> {
        let at = offset / WORD * WORD;
        let make = if self.shape == Shape::Halves { Some(4) } else { make };
        let mut state = self.state();
        if let Some(word) = state.words.get(&at) {
            return Some(word.clone());
        }
        let now: [u8; WORD] = state.bytes[at..at + WORD].try_into().expect("8 bytes");
        let half = |i: usize| u32::from_ne_bytes(now[i * 4..][..4].try_into().expect("4 bytes"));
        let word = match make? {
            WORD => Word::Whole(Arc::new(AtomicU64::new(u64::from_ne_bytes(now)))),
            _ => Word::Halves(Arc::new([0, 1].map(|i| AtomicU32::new(half(i))))),
        };
        state.words.insert(at, word.clone());
        Some(word)
    }

    fn line(&self, offset: usize) -> Arc<UnsafeCell<()>> {
        self.state().lines.entry(offset / LINE).or_default().clone()
    }

    pub(crate) fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        match self.word(offset, Some(4)).expect("made") {
            Word::Halves(halves) => halves[offset % WORD / 4].load(order),
            Word::Whole(_) => panic!("a 4-byte load of an 8-byte word at {offset}"),
        }
    }

    pub(crate) fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        match self.word(offset, Some(4)).expect("made") {
            Word::Halves(halves) => halves[offset % WORD / 4].store(value, order),
            Word::Whole(_) => panic!("a 4-byte store to an 8-byte word at {offset}"),
        }
    }

    pub(crate) fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        match self.word(offset, Some(8)).expect("made") {
            Word::Whole(word) => word.load(order),
            Word::Halves(halves) => {
                let later = halves[1].load(order).to_ne_bytes();
                let first = halves[0].load(Ordering::Relaxed).to_ne_bytes();
                u64::from_ne_bytes([first, later].concat().try_into().expect("8 bytes"))
            }
        }
    }

    pub(crate) fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        match self.word(offset, Some(8)).expect("made") {
            Word::Whole(word) => word.store(value, order),
            Word::Halves(_) => panic!("an 8-byte store to 4-byte words at {offset}"),
        }
    }

    /// Calls `atomic` for the words among these bytes that are atomics, and `plain` for the ranges
    /// between them, each of which is noted as an access of its lines.
    fn pieces(
        &self,
        (offset, bytes): (usize, usize),
        write: bool,
        mut atomic: impl FnMut(&Word, usize, usize),
        mut plain: impl FnMut(&mut [u8], usize),
    ) {
        let mut at = offset;
        while at < offset + bytes {
            let end = ((at / WORD + 1) * WORD).min(offset + bytes);
            if let Some(word) = self.word(at, None) {
                atomic(&word, at, end);
            } else {
                let line = self.line(at);
                if write {
                    line.with_mut(|_| ());
                } else {
                    line.with(|_| ());
                }
                plain(&mut self.state().bytes[at..end], at - offset);
            }
            at = end;
        }
    }
}

// SAFETY: names no address.
unsafe impl Dma for Model {
    fn bytes(&self) -> usize {
        self.state().bytes.len()
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemError> {
        let (mut loaded, n) = (vec![], into.len());
        self.pieces(
            (offset, n),
            false,
            |word, at, end| {
                let all = match word {
                    Word::Whole(word) => word.load(Ordering::Relaxed).to_ne_bytes().to_vec(),
                    Word::Halves(halves) => {
                        let touched =
                            |i: usize| at % WORD < (i + 1) * 4 && i * 4 < (end - 1) % WORD + 1;
                        let load = |i: usize| {
                            if touched(i) { halves[i].load(Ordering::Relaxed) } else { 0 }
                        };
                        [load(0).to_ne_bytes(), load(1).to_ne_bytes()].concat()
                    }
                };
                let from = at % WORD;
                loaded.push((at - offset, all[from..from + (end - at)].to_vec()));
            },
            |bytes, to| into[to..to + bytes.len()].copy_from_slice(bytes),
        );
        for (at, bytes) in loaded {
            into[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemError> {
        self.pieces(
            (offset, from.len()),
            true,
            |word, at, end| {
                let part = &from[at - offset..end - offset];
                match word {
                    Word::Whole(word) => {
                        let whole = part.try_into().expect("a whole word is written at once");
                        word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
                    }
                    Word::Halves(halves) => {
                        assert!(at % 4 == 0 && end % 4 == 0, "4-byte words are written whole");
                        for (i, half) in part.chunks(4).enumerate() {
                            let value = u32::from_ne_bytes(half.try_into().expect("4 bytes"));
                            halves[at % WORD / 4 + i].store(value, Ordering::Relaxed);
                        }
                    }
                }
            },
            |bytes, at| bytes.copy_from_slice(&from[at..at + bytes.len()]),
        );
        Ok(())
    }

    fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, MemError> {
        match self.word(offset, Some(8)).expect("made") {
            Word::Whole(word) => Ok(word.fetch_add(add, Ordering::AcqRel)),
            Word::Halves(_) => panic!("an 8-byte atomic on 4-byte words at {offset}"),
        }
    }

    fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, MemError> {
        match self.word(offset, Some(8)).expect("made") {
            Word::Whole(word) => Ok(word
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|old| old)),
            Word::Halves(_) => panic!("an 8-byte atomic on 4-byte words at {offset}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::View;

    /// Bytes behind a flag, published and seen with these orders.
    fn hand_over(publish: Ordering, see: Ordering) -> Result<(), ()> {
        let model = move || {
            explore(2, move || {
                let mem = HostMem::modelled(64, Shape::Guarded);
                let view = View::new(&mem, 0, 64).unwrap();
                view.store_u64(56, 0, Ordering::Relaxed).unwrap();
                let to = view.clone();
                let writer = loom::thread::spawn(move || {
                    to.mem.write(3, b"bell").unwrap();
                    to.store_u64(56, 1, publish).unwrap();
                });
                if view.load_u64(56, see).unwrap() == 1 {
                    let mut got = [0; 4];
                    view.mem.read(3, &mut got).unwrap();
                    assert_eq!(&got, b"bell");
                }
                writer.join().unwrap();
            });
        };
        catch_unwind(AssertUnwindSafe(model)).map_err(drop)
    }

    #[test]
    fn bytes_that_nothing_orders_fail_the_model() {
        use Ordering::{Acquire, Relaxed, Release};
        assert_eq!(hand_over(Release, Acquire), Ok(()));
        assert_eq!(hand_over(Relaxed, Acquire), Err(()));
        assert_eq!(hand_over(Release, Relaxed), Err(()));
    }

    #[test]
    fn halves_are_what_was_written() {
        explore(2, || {
            let mem = HostMem::modelled(64, Shape::Halves);
            mem.write(4, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
            assert_eq!(
                mem.load_u64(0, Ordering::Relaxed).unwrap().to_ne_bytes(),
                [0, 0, 0, 0, 1, 2, 3, 4]
            );
            let mut got = [0; 6];
            mem.read(6, &mut got).unwrap();
            assert_eq!(got, [3, 4, 5, 6, 7, 8]);
            mem.store_u32(8, u32::MAX, Ordering::Release).unwrap();
            assert_eq!(mem.load_u32(8, Ordering::Acquire).unwrap(), u32::MAX);
        });
    }
}
