//! An engine that runs elsewhere, on a GPU: what it is leased, and how it gives it back.
//!
//! A queue pair's send side belongs to this NIC's own engine or is leased to the other one
//! (`kernels/engine/engine.h` says how it changes hands). The other engine carries out what is plain and
//! correct; it returns everything else, and the queue pair's own engine goes on where it stood, with
//! the code that it has anyway: an error, a full CQ, a SEND is found and answered here alone.
//!
//! The host writes into the engine's memory by copies and reads what the engine tells from its own.
//! Every wait for the engine is bounded; an engine that does not answer is given up, and memory that
//! it may still reach is never freed.

pub(crate) mod lease;

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::objects::mr::{Region, Regions, Right, Target};
use bellpush_abi::engine::{
    BLOCK_QPS, CONTEXT_ASKED, CONTEXT_BYTES, CONTEXT_FIXED, CONTROL_BLOCK_BYTES,
    CONTROL_BLOCK_EPOCH, Fixed, KEY_KEY, KEY_NEAR, Key, MAX_SLOT_BYTES, RECORD_BYTES,
    RECORD_RETURNED, RECORD_STATE, State, TABLE_KEYS,
};
use bellpush_mem::{Dma, MemError, View};
use bellpush_nic::NicError;

/// How long an engine may take to answer. It ends what it carries out first, 2³¹ bytes at most. An accelerator whose
/// launch does not end says so earlier.
const ANSWER_LIMIT: Duration = Duration::from_secs(40);

/// Where an engine reaches memory, while `keep` lives.
pub struct Reached {
    /// Address of the first byte.
    pub addr: u64,
    /// Whether it is the memory of the engine's own GPU.
    pub near: bool,
    /// Keeps the memory where it is.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// Addresses of what host and engine share, for the engine.
pub struct Shared {
    /// `struct bp_engine_control_block`, and a job a block behind it.
    pub control: u64,
    /// `struct bp_qpc` by slot.
    pub contexts: u64,
    /// `struct bp_qpc_record` by slot.
    pub records: u64,
    /// A word a block: the last epoch that it confirmed.
    pub answers: u64,
    /// Keeps the memory of all that, and the engine's copies of keys.
    pub keep: Arc<dyn Any + Send + Sync>,
}

/// What runs the engine's kernel, which uses the addresses that [`Accelerator::reach`] names and those of [`Shared`]
/// without a further look: an implementation is not to be had by anyone but its [`Offload`].
pub trait Accelerator: Send + Sync {
    /// What it is and where, for people.
    fn describe(&self) -> String;
    /// Blocks of the kernel.
    fn blocks(&self) -> usize;
    /// Zero-filled memory of the engine's.
    ///
    /// # Errors
    /// When there is not as much.
    fn alloc(&self, bytes: usize) -> Result<View, MemError>;
    /// Zero-filled host memory that the engine reaches.
    ///
    /// # Errors
    /// When there is not as much.
    fn alloc_host(&self, bytes: usize) -> Result<View, MemError>;
    /// Where the engine reaches memory, if it does.
    fn reach(&self, memory: &dyn Dma) -> Option<Reached>;
    /// Runs the kernel for a while, or sees to it that it runs. Never waits for what it does. What is
    /// shared is kept until no kernel runs any more.
    ///
    /// # Errors
    /// Why it does not run any more.
    fn run(&self, shared: &Shared) -> Result<(), NicError>;
    /// Whether nothing of the kernel runs or is queued. It begins anew at the next [`Accelerator::run`], remembering
    /// nothing. Waits no longer than another's [`Accelerator::run`] takes.
    ///
    /// # Errors
    /// Why it does not end any more.
    fn rests(&self) -> Result<bool, NicError>;
}

/// An engine elsewhere, for the NICs of one in-process link.
pub struct Offload {
    accelerator: Arc<dyn Accelerator>,
    common: Arc<Common>,
    shared: Shared,
    /// By slot: whether it is in use, and the last number that it was asked with.
    slots: Mutex<Vec<(bool, u64)>>,
    /// Queue pairs that the engine has.
    out: AtomicUsize,
    epoch: Mutex<u64>,
    failed: OnceLock<String>,
}

/// The memory that host and engine share. A kernel that does not end has it for ever.
struct Common {
    control: View,
    contexts: View,
    records: View,
    answers: View,
    mirrors: Mutex<HashMap<u64, Arc<Mirror>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Offload {
    /// An engine that runs on `accelerator`. Several NICs may share it.
    ///
    /// # Errors
    /// [`NicError::Memory`] for what host and engine share.
    pub fn new(accelerator: Arc<dyn Accelerator>) -> Result<Arc<Self>, NicError> {
        let blocks = accelerator.blocks();
        let slots = blocks * BLOCK_QPS;
        let control = accelerator.alloc(CONTROL_BLOCK_BYTES * (1 + blocks))?;
        let contexts = accelerator.alloc(CONTEXT_BYTES * slots)?;
        let records = accelerator.alloc_host(RECORD_BYTES * slots)?;
        let answers = accelerator.alloc_host(8 * blocks)?;
        let mirrors = Mutex::default();
        let common = Arc::new(Common { control, contexts, records, answers, mirrors });
        let Common { control, contexts, records, answers, .. } = &*common;
        let at = |view: &View| accelerator.reach(view).map(|r| r.addr).ok_or(MemError::Far);
        let shared = Shared {
            control: at(control)?,
            contexts: at(contexts)?,
            records: at(records)?,
            answers: at(answers)?,
            keep: common.clone(),
        };
        Ok(Arc::new(Self {
            accelerator,
            common,
            shared,
            slots: Mutex::new(vec![(false, 0); slots]),
            out: AtomicUsize::new(0),
            epoch: Mutex::new(0),
            failed: OnceLock::new(),
        }))
    }

    /// What the engine is and where, for people.
    pub fn describe(&self) -> String {
        self.accelerator.describe()
    }

    /// Memory of the engine's: for queues and windows.
    ///
    /// # Errors
    /// [`NicError::Memory`].
    pub fn alloc(&self, bytes: usize) -> Result<View, NicError> {
        Ok(self.accelerator.alloc(bytes)?)
    }

    /// Why the engine does not work any more, if so.
    pub fn failure(&self) -> Option<NicError> {
        self.failed.get().map(|why| NicError::Engine(why.clone()))
    }

    /// Keeps the engine running. Returns whether it works.
    pub(crate) fn turn(&self) -> bool {
        if self.failed.get().is_some() {
            return false;
        }
        match self.accelerator.run(&self.shared) {
            Ok(()) => true,
            Err(NicError::Engine(why)) => self.give_up(&why),
            Err(why) => self.give_up(&why.to_string()),
        }
    }

    /// Ends the engine as a failure would: for programs that test what they do then.
    pub fn fail(&self, why: &str) {
        let _ = self.failed.set(why.to_owned()); // the first reason is kept
    }

    fn give_up(&self, why: &str) -> bool {
        self.fail(why);
        false
    }

    /// Waits until `done`, keeping the engine running. False: it was given up.
    fn wait(&self, what: &str, done: impl FnMut() -> bool) -> bool {
        self.wait_with(what, done, || self.turn())
    }

    /// Waits until `done`, with a turn of something in between. False: the engine was given up.
    fn wait_with(
        &self,
        what: &str,
        mut done: impl FnMut() -> bool,
        mut turn: impl FnMut() -> bool,
    ) -> bool {
        let since = Instant::now();
        while !done() {
            if !turn() {
                return false;
            }
            if since.elapsed() > ANSWER_LIMIT {
                return self.give_up(&format!("it did not {what} within {ANSWER_LIMIT:?}"));
            }
            std::thread::yield_now();
        }
        true
    }

    /// Waits until no block uses what it looked at before. False: the engine was given up, and may
    /// use it for ever.
    pub(crate) fn quiesce(&self) -> bool {
        let mut epoch = lock(&self.epoch);
        if self.failed.get().is_some() {
            return false;
        }
        *epoch += 1;
        let now = *epoch;
        if self.common.control.store_u64(CONTROL_BLOCK_EPOCH, now, Ordering::Release).is_err() {
            return self.give_up("its memory cannot be written");
        }
        // Acquire: all that the blocks did before they answered.
        let answered = |block: usize| {
            let seen = self.common.answers.load_u64(block * 8, Ordering::Acquire);
            seen.is_ok_and(|seen| seen >= now)
        };
        // An engine that has no queue pair is not launched for this: a CUDA call that gives memory back waits for
        // every launch. One that rests remembers nothing, and its next launch finds what was changed.
        let rests = Cell::new(false);
        let done = || rests.get() || (0..self.accelerator.blocks()).all(answered);
        self.wait_with("confirm a change", done, || {
            if self.out.load(Ordering::Acquire) != 0 {
                return self.turn();
            }
            if self.failed.get().is_some() {
                return false; // a launch that was given up may run for ever, whatever is queued
            }
            match self.accelerator.rests() {
                Ok(now) => {
                    rests.set(now);
                    true
                }
                Err(NicError::Engine(why)) => self.give_up(&why),
                Err(why) => self.give_up(&why.to_string()),
            }
        })
    }

    /// The engine's copy of a NIC's keys.
    pub(crate) fn mirror(
        self: &Arc<Self>,
        table: u64,
        regions: &mut Regions,
    ) -> Result<Arc<Mirror>, NicError> {
        let mut mirrors = lock(&self.common.mirrors);
        if let Some(mirror) = mirrors.get(&table) {
            return Ok(mirror.clone());
        }
        let keys = self.accelerator.alloc(TABLE_KEYS * size_of::<Key>())?;
        let addr = self.accelerator.reach(&keys).ok_or(MemError::Far)?.addr;
        let offload = Arc::downgrade(self);
        let mirror = Arc::new(Mirror { keys, addr, kept: Mutex::default(), offload });
        regions.keys().for_each(|(key, region)| mirror.set(key, region));
        regions.mirrors.push(Arc::downgrade(&mirror));
        mirrors.insert(table, mirror.clone());
        Ok(mirror)
    }

    pub(crate) fn takes_slots_of(bytes: u32) -> bool {
        bytes <= MAX_SLOT_BYTES
    }

    pub(crate) fn reach(&self, view: &View) -> Option<Reached> {
        self.accelerator.reach(view)
    }

    /// A place in the engine for a queue pair; none when it is full.
    pub(crate) fn lease(self: &Arc<Self>) -> Option<Arc<Lease>> {
        let mut slots = lock(&self.slots);
        let slot = slots.iter().position(|slot| !slot.0)?;
        slots[slot].0 = true;
        let number = AtomicU64::new(slots[slot].1);
        let (out, kept) = (AtomicBool::new(false), Mutex::default());
        Some(Arc::new(Lease { offload: self.clone(), slot, number, out, kept }))
    }
}

/// An engine's copy of the keys of a NIC.
pub(crate) struct Mirror {
    keys: View,
    /// Where the engine has it.
    pub(crate) addr: u64,
    /// What keeps regions reachable, by index.
    kept: Mutex<HashMap<usize, Arc<dyn Any + Send + Sync>>>,
    offload: Weak<Offload>,
}

impl Mirror {
    /// Takes a region on, if the engine can reach it. One that it does not know it returns to this
    /// NIC, so nothing depends on it.
    pub(crate) fn set(&self, key: u32, region: &Region) {
        let index = (key >> 8) as usize;
        let (Some(offload), Target::Memory(memory)) = (self.offload.upgrade(), &region.target)
        else {
            return;
        };
        if index >= TABLE_KEYS {
            return;
        }
        let Some(reached) = offload.accelerator.reach(&**memory) else { return };
        let entry = Key {
            va: reached.addr,
            iova: region.iova,
            bytes: region.bytes,
            key: 0,
            pd: region.pd,
            rights: u32::from(Right::bits(region.access)) | if reached.near { KEY_NEAR } else { 0 },
            reserved: 0,
            reserved2: [0; 3],
        };
        let at = index * size_of::<Key>();
        let written = self.keys.write(at, bytemuck::bytes_of(&entry)).and_then(|()| {
            // Release: the entry before its key, for the engine.
            self.keys.store_u32(at + KEY_KEY, key, Ordering::Release)
        });
        if written.is_ok() {
            lock(&self.kept).insert(index, reached.keep);
        }
    }

    /// Forgets a region: after [`Mirror::quiesce`] the engine does not reach it any more.
    pub(crate) fn clear(&self, index: usize) {
        if index < TABLE_KEYS {
            // What cannot be written is an engine that the next quiesce gives up.
            let _ = self.keys.store_u32(index * size_of::<Key>() + KEY_KEY, 0, Ordering::Release);
        }
    }

    /// Waits until the engine has noticed what was cleared. False: it may never.
    pub(crate) fn quiesce(&self, index: usize) -> bool {
        let quiesced = self.offload.upgrade().is_none_or(|offload| offload.quiesce());
        let keep = lock(&self.kept).remove(&index);
        if !quiesced {
            std::mem::forget(keep);
        }
        quiesced
    }
}

/// A queue pair's place in an engine, and who has the queue pair.
pub(crate) struct Lease {
    offload: Arc<Offload>,
    slot: usize,
    /// Odd: the last grant's. Even: the engine was asked to return it.
    number: AtomicU64,
    /// Granted, and [`Lease::take_back`] has not seen it returned.
    out: AtomicBool,
    /// What keeps the queues where the engine reaches them.
    kept: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Lease {
    pub(crate) fn offload(&self) -> &Arc<Offload> {
        &self.offload
    }

    pub(crate) fn is_out(&self) -> bool {
        self.out.load(Ordering::Acquire)
    }

    /// Leases the queue pair. The caller has it, and has not any more when this returns true.
    pub(crate) fn grant(
        &self,
        fixed: &Fixed,
        state: &State,
        keep: Vec<Arc<dyn Any + Send + Sync>>,
    ) -> bool {
        if self.offload.failed.get().is_some() {
            return false;
        }
        let at = self.slot * CONTEXT_BYTES;
        let mut context = [0; size_of::<Fixed>() + size_of::<State>()];
        context[..size_of::<Fixed>()].copy_from_slice(bytemuck::bytes_of(fixed));
        context[size_of::<Fixed>()..].copy_from_slice(bytemuck::bytes_of(state));
        // The counts go on from here; the engine tells them from now on.
        let record = self.slot * RECORD_BYTES + RECORD_STATE;
        let number = (self.number.load(Ordering::Relaxed) + 1) | 1;
        let contexts = &self.offload.common.contexts;
        let written = self
            .offload
            .common
            .records
            .write(record, bytemuck::bytes_of(state))
            .and_then(|()| contexts.write(at + CONTEXT_FIXED, &context));
        if written.is_err() {
            return false;
        }
        *lock(&self.kept) = keep;
        self.number.store(number, Ordering::Relaxed);
        self.out.store(true, Ordering::Release);
        self.offload.out.fetch_add(1, Ordering::AcqRel);
        // Release: the context before the number, for the engine.
        if contexts.store_u64(at + CONTEXT_ASKED, number, Ordering::Release).is_err() {
            self.offload.give_up("its memory cannot be written");
        }
        true
    }

    /// Asks for the queue pair, without waiting.
    pub(crate) fn ask_back(&self) {
        let number = self.number.load(Ordering::Acquire);
        if !self.is_out() || number.is_multiple_of(2) {
            return;
        }
        // One of several callers: the number is theirs all.
        if self
            .number
            .compare_exchange(number, number + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            let at = self.slot * CONTEXT_BYTES + CONTEXT_ASKED;
            if self.offload.common.contexts.store_u64(at, number + 1, Ordering::Release).is_err() {
                self.offload.give_up("its memory cannot be written");
            }
        }
    }

    /// Whether the engine has returned what it was granted last.
    fn is_returned(&self) -> bool {
        // The grant is the odd number at or before the current one.
        let grant = (self.number.load(Ordering::Acquire) - 1) | 1;
        let at = self.slot * RECORD_BYTES + RECORD_RETURNED;
        // Acquire: the state, and all that the engine wrote, before the number.
        self.offload
            .common
            .records
            .load_u64(at, Ordering::Acquire)
            .is_ok_and(|returned| returned == grant)
    }

    /// Asks for the queue pair and waits. False: the engine was given up.
    pub(crate) fn recall(&self) -> bool {
        self.ask_back();
        !self.is_out() || self.offload.wait("return a queue pair", || self.is_returned())
    }

    /// What the engine has done so far, and where it stood when it returned the queue pair.
    pub(crate) fn look(&self) -> State {
        let mut state = State::default();
        let at = self.slot * RECORD_BYTES + RECORD_STATE;
        let read = self.offload.common.records.read(at, bytemuck::bytes_of_mut(&mut state));
        read.expect("the records have a place for every slot");
        state
    }

    /// The queue pair's state, once the engine has returned it.
    pub(crate) fn take_back(&self) -> Option<State> {
        if !self.is_out() || !self.is_returned() {
            return None;
        }
        let state = self.look();
        self.out.store(false, Ordering::Release);
        self.offload.out.fetch_sub(1, Ordering::AcqRel);
        lock(&self.kept).clear();
        Some(state)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.is_out() {
            // Of an engine that was given up: the place is not used again.
            std::mem::forget(std::mem::take(&mut *lock(&self.kept)));
            return;
        }
        let number = self.number.load(Ordering::Relaxed);
        lock(&self.offload.slots)[self.slot] = (false, number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use bellpush_mem::HostMem;
    use bytemuck::Zeroable;

    use super::*;

    /// An engine of one block. A launch confirms every epoch at once; it rests after `lasting` looks, or never.
    struct Paper {
        launches: AtomicU32,
        lasting: AtomicU32,
        answers: Mutex<Option<View>>,
    }

    impl Paper {
        fn memory(bytes: usize) -> Result<View, MemError> {
            let memory = HostMem::alloc(bytes)?;
            View::new(&memory, 0, bytes)
        }
    }

    impl Accelerator for Paper {
        fn describe(&self) -> String {
            "paper".into()
        }
        fn blocks(&self) -> usize {
            1
        }
        fn alloc(&self, bytes: usize) -> Result<View, MemError> {
            Self::memory(bytes)
        }
        fn alloc_host(&self, bytes: usize) -> Result<View, MemError> {
            let view = Self::memory(bytes)?;
            *lock(&self.answers) = Some(view.clone()); // the answers are asked for last
            Ok(view)
        }
        fn reach(&self, memory: &dyn Dma) -> Option<Reached> {
            let addr = memory.as_host()?.addr();
            Some(Reached { addr, near: true, keep: Arc::new(()) })
        }
        fn run(&self, _: &Shared) -> Result<(), NicError> {
            self.launches.fetch_add(1, Ordering::Relaxed);
            let answers = lock(&self.answers);
            answers.as_ref().unwrap().store_u64(0, u64::MAX, Ordering::Release)?;
            Ok(())
        }
        fn rests(&self) -> Result<bool, NicError> {
            match self.lasting.load(Ordering::Relaxed) {
                0 => return Ok(true),
                u32::MAX => return Err(NicError::Engine("it does not end".into())),
                left => self.lasting.store(left - 1, Ordering::Relaxed),
            }
            Ok(false)
        }
    }

    fn paper() -> (Arc<Paper>, Arc<Offload>) {
        let (launches, lasting) = (AtomicU32::new(0), AtomicU32::new(0));
        let paper = Arc::new(Paper { launches, lasting, answers: Mutex::default() });
        let offload = Offload::new(paper.clone()).unwrap();
        (paper, offload)
    }

    /// What frees memory of a GPU waits for its launches: an engine without a queue pair has none for a change.
    #[test]
    fn an_engine_without_queue_pairs_is_not_launched_for_a_change() {
        let (paper, offload) = paper();
        paper.lasting.store(3, Ordering::Relaxed);
        assert!(offload.quiesce());
        assert_eq!(paper.launches.load(Ordering::Relaxed), 0);
        assert_eq!(paper.lasting.load(Ordering::Relaxed), 0, "the launches before were waited for");

        let lease = offload.lease().unwrap();
        assert!(lease.grant(&Fixed::zeroed(), &State::default(), vec![]));
        assert!(offload.quiesce());
        assert_eq!(paper.launches.load(Ordering::Relaxed), 1, "it may use what was changed");
    }

    #[test]
    fn an_engine_that_does_not_end_is_given_up() {
        let (paper, offload) = paper();
        paper.lasting.store(u32::MAX, Ordering::Relaxed);
        assert!(!offload.quiesce());
        assert!(offload.failure().unwrap().to_string().contains("does not end"));
        assert!(!offload.quiesce());
    }

    /// The engine has a queue pair until it has returned it, and that has been looked at.
    #[test]
    fn a_queue_pair_that_came_back_no_longer_counts() {
        let (paper, offload) = paper();
        let lease = offload.lease().unwrap();
        assert!(lease.grant(&Fixed::zeroed(), &State::default(), vec![]));
        let number = lease.number.load(Ordering::Relaxed);
        lease.ask_back();
        let at = lease.slot * RECORD_BYTES + RECORD_RETURNED;
        offload.common.records.store_u64(at, number, Ordering::Release).unwrap();
        assert!(lease.take_back().is_some() && lease.take_back().is_none());
        assert!(offload.quiesce());
        assert_eq!(paper.launches.load(Ordering::Relaxed), 0);
    }
}
